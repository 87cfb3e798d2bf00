"""Reading an archive that a host sent: nothing in it may lead out of the place where it is put."""

import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

from tfdeploy.errors import CollectError

CHUNK = 1 << 20


@dataclass(frozen=True)
class Member:
    path: str
    kind: Literal["file", "directory", "link"]
    executable: bool = False
    target: str = ""
    content: BinaryIO | None = None

    def chunks(self) -> Iterator[bytes]:
        while self.content and (chunk := self.content.read(CHUNK)):
            yield chunk


def members(stream: BinaryIO) -> Iterator[Member]:
    """One after another, as they come. Whatever is neither a file, a directory nor a link within is refused."""
    seen: set[str] = set()
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for each in archive:
                path = safe_path(each.name)
                if not path:
                    continue
                if path in seen:
                    raise CollectError(f"{path!r:.200} stands twice in what the host sent")
                seen.add(path)
                yield _member(archive, each, path)
    except tarfile.TarError as error:
        raise CollectError(f"what the host sent broke off: {error}", "Try again") from None


def safe_path(name: str) -> str:
    """The name without ./; nothing for the top itself."""
    path = posixpath.normpath(name)
    if name.startswith("/") or path.startswith(("../", "/")) or path == ".." or "\0" in name:
        raise CollectError(f"{name!r:.200} leads out of the directory")
    return "" if path == "." else path


def _member(archive: tarfile.TarFile, each: tarfile.TarInfo, path: str) -> Member:
    if each.isdir():
        return Member(path, "directory")
    if each.issym():
        return Member(path, "link", target=_inside(path, each.linkname))
    if each.isreg():
        return Member(path, "file", executable=bool(each.mode & 0o100), content=archive.extractfile(each))  # type: ignore[arg-type]
    raise CollectError(f"{path!r:.200} is neither a file, a directory nor a link")


def _inside(path: str, target: str) -> str:
    lands = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or lands == ".." or lands.startswith("../"):
        raise CollectError(f"the link {path!r:.100} leads out of the directory, to {target!r:.100}")
    return target

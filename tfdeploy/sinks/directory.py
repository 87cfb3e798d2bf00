"""A directory on the controller: TO/JOB/ATTEMPT, and TO/JOB/latest leads to the newest."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfdeploy.errors import CollectError


class DirectorySink:
    def __init__(self, parent: Path, attempt: str) -> None:
        self.parent = parent
        self.final = parent / attempt
        self.temporary = parent / f".{attempt}.{os.getpid()}"
        if self.final.exists():
            raise CollectError(
                "it was collected there already", "Remove it, or name another place", where=str(self.final)
            )
        with self._errors():
            self.temporary.mkdir(parents=True)

    def file(self, path: str, chunks: Iterable[bytes], *, executable: bool = False) -> None:
        with self._errors():
            where = self._place(path)
            descriptor = os.open(
                where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if executable else 0o644
            )
            with os.fdopen(descriptor, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)

    def link(self, path: str, target: str) -> None:
        with self._errors():
            self._place(path).symlink_to(target)

    def directory(self, path: str) -> None:
        with self._errors():
            (self.temporary / path).mkdir(parents=True, exist_ok=True)

    def publish(self, manifest: bytes) -> str:
        with self._errors():
            self.file("manifest.json", [manifest])
            self.temporary.rename(self.final)
            pointer = self.parent / f".latest.{os.getpid()}"
            pointer.unlink(missing_ok=True)
            pointer.symlink_to(self.final.name)
            pointer.replace(self.parent / "latest")
        return str(self.final)

    def abandon(self) -> None:
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _place(self, path: str) -> Path:
        where = self.temporary / path
        where.parent.mkdir(parents=True, exist_ok=True)
        return where

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CollectError(
                f"cannot be written: {error.strerror or error}",
                "Make room or name another place",
                where=str(self.final),
            ) from None

"""Where collected files go. A sink keeps everything under a temporary name until one rename publishes it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tfdeploy.errors import InputError


class Sink(Protocol):
    """One attempt at one destination. Paths are relative, with / between, and were checked; calls come from threads."""

    def file(self, path: str, chunks: Iterable[bytes], *, executable: bool = False) -> None: ...

    def link(self, path: str, target: str) -> None: ...

    def directory(self, path: str) -> None: ...

    def publish(self, manifest: bytes) -> str:
        """The manifest last, then one rename; where it all is now."""

    def abandon(self) -> None:
        """What was written so far is removed."""


def open_sink(to: str, job: str, attempt: str) -> Sink:
    """The destination that `to` names."""
    from tfdeploy.sinks.directory import DirectorySink

    if "://" in to:
        raise InputError("only directories can be collected to yet", "Name a directory on this machine", where=to)
    return DirectorySink(Path(to).expanduser().absolute() / job, attempt)

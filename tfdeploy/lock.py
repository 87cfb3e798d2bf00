"""Who holds a host or watches a job: a line in a file on the host, whose age says when the holder was last alive. Pure.

A host's lock is held for the seconds of a launch, so that ports, slots and GPUs are given out by one controller at a
time. A job's watch is held for as long as somebody watches it.
"""

import getpass
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime

LOCK_STALE_AFTER = 60
"""Seconds without a sign of life after which a host's lock may be taken from its holder."""
WATCH_STALE_AFTER = 30
SECONDS_BETWEEN_BEATS = 10


@dataclass(frozen=True, slots=True)
class Holder:
    job: str
    generation: str
    who: str
    since: str

    def line(self) -> str:
        return "\t".join((self.job, self.generation, self.who, self.since))

    @classmethod
    def parse(cls, line: str) -> "Holder":
        parts = [*(part.strip() for part in line.strip().split("\t")), "", "", "", ""]
        return cls(*("".join(filter(str.isprintable, part)) for part in parts[:4]))

    def __str__(self) -> str:
        return f"{self.who or 'somebody'}, for job {self.job or '?'}, since {self.since or '?'}"


def me(job: str, generation: str) -> Holder:
    return Holder(job, generation, this_controller(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def this_controller() -> str:
    """user@machine, and which of the user's processes."""
    return f"{_user()}@{platform.node()} (pid {os.getpid()})"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in some containers
        return f"uid-{os.getuid()}"

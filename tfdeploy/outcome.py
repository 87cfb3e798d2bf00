"""How a job ended, as it is kept on its hosts: a frozen value."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from tfdeploy.errors import InputError

Ended = Literal["succeeded", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    state: Ended
    reason: str
    at: float
    task: str = ""
    """The first task that failed."""
    host: str = ""
    exit_code: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Outcome":
        try:
            found = cls(**json.loads(text))
            if found.state not in ("succeeded", "failed", "stopped"):
                raise ValueError(found.state)
            if not all(isinstance(each, str) and each.isprintable() for each in (found.reason, found.task, found.host)):
                raise ValueError("not plain text")
            if not abs(float(found.at)) < 1e15 or not (found.exit_code is None or type(found.exit_code) is int):
                raise ValueError("not a number")
            return replace(found, at=float(found.at))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InputError(f"its record of the job's end cannot be read: {error!r:.100}") from None

"""How a job ended, as it is kept on its hosts: a frozen value."""

import json
from dataclasses import asdict, dataclass
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
            data = json.loads(text)
            if data["state"] not in ("succeeded", "failed", "stopped"):
                raise ValueError(data["state"])
            return cls(**data)
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise InputError(f"its record of the job's end cannot be read: {error!r:.100}") from None

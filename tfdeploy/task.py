"""A planned task and the roles there are: frozen values. Touches nothing."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["chief", "ps", "worker", "evaluator", "tensorboard"]
ROLES: tuple[Role, ...] = ("chief", "ps", "worker", "evaluator", "tensorboard")
IN_CLUSTER: tuple[Role, ...] = ("chief", "ps", "worker")


@dataclass(frozen=True, slots=True)
class Task:
    role: Role
    index: int
    host: str
    address: str
    """Where peers reach its machine."""
    name: str
    """Its stable name, as in worker-0.mnist; it moves with the task."""
    port: int
    gpus: tuple[str, ...] = ()
    """UUIDs where facts are known, else the indices that the inventory declares."""

    @property
    def id(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def endpoint(self) -> str:
        return f"{self.name}:{self.port}"

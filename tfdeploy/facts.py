"""What a host has: frozen values that the planner reads. Touches nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG instance, in the host's own order."""

    uuid: str
    model: str = ""
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """One host as it was found; memory in bytes, addresses with the preferred one first."""

    cpus: float
    memory: int
    gpus: tuple[Gpu, ...] = ()
    listening: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    """Ports that other jobs' labels hold, whether or not anything listens there yet."""
    addresses: tuple[str, ...] = ()

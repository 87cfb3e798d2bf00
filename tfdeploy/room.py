"""What is left of a host while a plan is made: slots, CPUs, memory, GPUs, ports. Pure."""

import ipaddress
from collections.abc import Iterator

from tfdeploy.errors import InputError
from tfdeploy.facts import Facts
from tfdeploy.inventory import Host
from tfdeploy.spec import TaskSpec
from tfdeploy.task import Role, Task
from tfdeploy.wording import counted, show_size, some


class Room:
    """What is left of one host while the plan is made."""

    def __init__(self, host: Host, facts: Facts | None, taken_ports: dict[str, set[int]], job: str) -> None:
        """What `job` itself has there already counts as free: it is planned anew."""
        self.host = host
        self.address = _address(host, facts)
        others = [each for each in facts.reserved if each.job != job] if facts else []
        mine = [each for each in facts.reserved if each.job == job] if facts else []
        own = {each.port for each in mine}
        self.slots = host.slots - sum(each.slot for each in others)
        self.cpus: float | None = facts.cpus - sum(each.cpus for each in others) if facts else None
        self.memory: int | None = facts.memory - sum(each.memory for each in others) if facts else None
        self.gpus_known = facts is not None or host.gpus is not None
        given = {gpu for each in others for gpu in each.gpus}
        kept = {gpu for each in mine for gpu in each.gpus}
        self.gpus: list[str] | None = _gpus(host, facts, given, kept) if self.gpus_known else None
        self.guessed_gpus = 0
        jobs = sorted({each.job for each in others})
        self.held_by = f"; {some(jobs)} {'run' if len(jobs) > 1 else 'runs'} there" if jobs else ""
        self.tasks: list[Task] = []
        # Two names of one machine share its ports.
        self.taken = taken_ports.setdefault(self.address, set())
        self.taken |= ((facts.listening - own) | facts.held | {each.port for each in others}) if facts else set()
        if host.connection.port and host.connection.host == self.address:
            self.taken.add(host.connection.port)
        self.ports = _ports(host, self.taken)
        self.next_port = next(self.ports, None)

    def shortage(self, need: TaskSpec, *, slot: bool = True) -> str:
        """What is missing for one more task, or nothing."""
        if slot and self.slots < 1:
            return f"no slot left of {self.host.slots} (tfdeploy_slots){self.held_by}"
        if self.gpus is not None and need.gpus > len(self.gpus):
            return f"{counted(need.gpus, 'GPU')} needed, {len(self.gpus)} free"
        if self.cpus is not None and need.cpus and need.cpus > self.cpus + 1e-9:
            return f"{need.cpus:g} CPUs needed, {self.cpus:g} left"
        if self.memory is not None and need.memory and need.memory > self.memory:
            return f"{show_size(need.memory)} of memory needed, {show_size(self.memory)} left"
        if self.free_port() is None:
            ranges = ",".join(f"{first}-{last}" for first, last in self.host.ports)
            return f"no port left in {ranges} (tfdeploy_ports)"
        return ""

    def free_port(self) -> int | None:
        while self.next_port is not None and self.next_port in self.taken:
            self.next_port = next(self.ports, None)
        return self.next_port

    def take(self, role: Role, index: int, need: TaskSpec, job: str, *, slot: bool = True) -> Task:
        port = self.free_port()
        assert port is not None
        self.taken.add(port)
        self.slots -= slot
        self.cpus = self.cpus - (need.cpus or 0) if self.cpus is not None else None
        self.memory = self.memory - (need.memory or 0) if self.memory is not None else None
        name = f"{role}-{index}.{job}"
        task = Task(role, index, self.host.name, self.address, name, port, self.take_gpus(need.gpus))
        self.tasks.append(task)
        return task

    def take_gpus(self, count: int) -> tuple[str, ...]:
        if self.gpus is not None:
            taken, self.gpus = self.gpus[:count], self.gpus[count:]
            return tuple(taken)
        first, self.guessed_gpus = self.guessed_gpus, self.guessed_gpus + count
        return tuple(str(index) for index in range(first, first + count))

    def has(self, role: Role) -> bool:
        return any(task.role == role for task in self.tasks)


def _ports(host: Host, taken: set[int]) -> Iterator[int]:
    return (port for first, last in host.ports for port in range(first, last + 1) if port not in taken)


def _address(host: Host, facts: Facts | None) -> str:
    if host.address:
        return host.address
    entered = host.connection.host
    if facts and entered not in facts.addresses:
        return next((address for address in facts.addresses if not is_loopback(address)), entered)
    return entered


def _gpus(host: Host, facts: Facts | None, given: set[str], kept: set[str]) -> list[str]:
    """Those left when other jobs have what was `given` to them; what the job itself has `kept` it may use again."""
    if facts is None:
        declared = host.gpus or ()
        return [str(index) for index in range(declared)] if isinstance(declared, int) else list(declared)
    free = [gpu.uuid for gpu in facts.gpus if gpu.uuid not in given and (gpu.uuid in kept or not gpu.in_use)]
    if host.gpus is None:
        return free
    if isinstance(host.gpus, int):
        return free[: max(0, host.gpus - len(given & {gpu.uuid for gpu in facts.gpus}))]
    known = {str(index): gpu.uuid for index, gpu in enumerate(facts.gpus)} | {g.uuid: g.uuid for g in facts.gpus}
    for declared_gpu in host.gpus:
        if declared_gpu not in known:
            raise InputError(
                f"tfdeploy_gpus names {declared_gpu}, the host has {counted(len(facts.gpus), 'GPU')}",
                "Correct the inventory",
                where=host.name,
            )
    wanted = {known[gpu] for gpu in host.gpus}
    return [uuid for uuid in free if uuid in wanted]


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"

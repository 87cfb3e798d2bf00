"""Gives every task a host, a port and GPUs. Pure.

The rules, in the order in which they are applied:

1. A group named like a role pins it: its tasks go only there, and those hosts take only their own roles.
2. ps: one on each of the first hosts that have room, then a second round.
3. chief, evaluator and tensorboard share the first ps host and take no slot. Without ps the chief trains like
   a worker, so it takes the first host's slot, and the other two share its host.
4. Spares: the last hosts that could take a worker.
5. Workers fill the hosts left over, host by host, and then the ps hosts' free slots.
"""

from collections.abc import Iterable, Iterator, Mapping

from tfdeploy.errors import InputError, NoRoom
from tfdeploy.facts import Facts
from tfdeploy.inventory import Host, Inventory
from tfdeploy.room import Room, is_loopback
from tfdeploy.spec import FILE_NAME, JobSpec, TaskSpec
from tfdeploy.task import ROLES, Role, Task
from tfdeploy.wording import counted, some


class Placing:
    """One plan in the making."""

    def __init__(self, inventory: Inventory, job: JobSpec, hosts: tuple[Host, ...], facts: Mapping[str, Facts]) -> None:
        self.job = job
        taken_ports: dict[str, set[int]] = {}
        self.rooms = [Room(host, facts.get(host.name), taken_ports, job.name) for host in hosts]
        self.groups: dict[Role, frozenset[str]] = {role: frozenset(inventory.groups.get(role) or ()) for role in ROLES}
        self.pinned = {role for role in ROLES if self.groups[role] and self.wanted(role) != 0}
        self.reserved: frozenset[str] = frozenset().union(*(self.groups[role] for role in self.pinned))
        self.tasks: dict[Role, list[Task]] = {role: [] for role in ROLES}
        self.spares: tuple[str, ...] = ()
        self.warnings: list[str] = []

    def place(self) -> None:
        self.warn_of_idle_groups()
        self.place_ps()
        for role in ("chief", "evaluator", "tensorboard"):
            self.place_single(role)
        self.keep_spares()
        self.place_workers()

    def wanted(self, role: Role) -> int | None:
        """How many tasks; None: as many as there is room for."""
        given: TaskSpec | None = getattr(self.job.tasks, role)
        if given is not None and given.count is not None:
            return given.count
        if role == "worker" or (role == "ps" and self.groups["ps"]):
            return None
        return 0 if given is None else 1

    def need(self, role: Role) -> TaskSpec:
        return getattr(self.job.tasks, role) or TaskSpec()

    def open_to(self, role: Role) -> list[Room]:
        """The hosts that may take this role, by its group."""
        if role not in self.pinned:
            return [room for room in self.rooms if room.host.name not in self.reserved]
        rooms = [room for room in self.rooms if room.host.name in self.groups[role]]
        if not rooms:
            raise InputError(
                f"it pins {role} to {some(sorted(self.groups[role]))}, left out by -N, --exclude or --limit",
                "Keep one of them, or rename the group",
                where=f"group {role}",
            )
        return rooms

    def place_ps(self) -> None:
        count = self.wanted("ps")
        if count == 0:
            return
        rooms = self.open_to("ps")
        asked = len(rooms) if count is None else count
        active = rooms
        while active and len(self.tasks["ps"]) < asked:
            active = [room for room in active if len(self.tasks["ps"]) < asked and self.put("ps", room)]
        if len(self.tasks["ps"]) < asked:
            raise self.impossible("ps", asked, rooms)

    def place_single(self, role: Role) -> None:
        if not self.wanted(role):
            return
        slot = role == "chief" and not self.tasks["ps"] and role not in self.pinned
        rooms = self.rooms_for_single(role)
        if not any(self.put(role, room, slot=slot) for room in rooms):
            raise self.impossible(role, 1, rooms, slot=slot)

    def rooms_for_single(self, role: Role) -> list[Room]:
        if role in self.pinned:
            return self.open_to(role)
        for companion in ("ps", "chief"):
            if rooms := [room for room in self.rooms if room.has(companion)]:
                return rooms
        return self.open_to("worker")

    def keep_spares(self) -> None:
        asked = self.job.spares
        if not asked:
            return
        role: Role = "ps" if self.wanted("worker") == 0 else "worker"
        free = [room for room in self.open_to(role) if not room.tasks]
        fit = [room for room in free if not room.shortage(self.need(role))]
        if len(fit) < asked:
            raise NoRoom(
                f"{counted(asked, 'spare')} asked for, {counted(len(fit), 'host')} left that could be one",
                "Ask for fewer, or add hosts",
                where="spares",
            )
        self.spares = tuple(room.host.name for room in fit[-asked:])

    def place_workers(self) -> None:
        count = self.wanted("worker")
        if count == 0:
            return
        kept = set(self.spares)
        rooms = [room for room in self.open_to("worker") if room.host.name not in kept]
        rooms = [room for room in rooms if not room.has("ps")] + [room for room in rooms if room.has("ps")]
        for room in rooms:
            while (count is None or len(self.tasks["worker"]) < count) and self.put("worker", room):
                pass
        placed = len(self.tasks["worker"])
        if placed < (1 if count is None else count):
            raise self.impossible("worker", count or 1, rooms)
        if count is None:
            self.warn_of_idle_hosts(rooms)

    def put(self, role: Role, room: Room, *, slot: bool = True) -> bool:
        need = self.need(role)
        if room.shortage(need, slot=slot):
            return False
        index = len(self.tasks[role])
        self.tasks[role].append(room.take(role, index, need, self.job.name, slot=slot))
        return True

    def impossible(self, role: Role, asked: int, rooms: list[Room], *, slot: bool = True) -> NoRoom:
        need, placed = self.need(role), len(self.tasks[role])
        why = [f"{room.host.name}: {room.shortage(need, slot=slot)}" for room in rooms]
        what = f"{counted(asked, role)} asked for, {placed} fit" if asked > 1 else f"no host has room for {role}-0"
        if not rooms:
            what += "; every host is pinned to other roles, or a spare"
        remedy = f"Ask for fewer or for less, add hosts, or pin {role} with a group of that name"
        return NoRoom(f"{what}{'; ' if why else ''}{some(why, '; ')}", remedy, where=f"tasks.{role}")

    def warn_of_idle_groups(self) -> None:
        for role in ("chief", "evaluator", "tensorboard"):
            if self.groups[role] and self.wanted(role) == 0:
                self.warnings.append(f"the inventory has a group {role}, but no {role} is asked for: add --{role}")

    def warn_of_idle_hosts(self, rooms: list[Room]) -> None:
        need = self.need("worker")
        idle = [f"{room.host.name} ({room.shortage(need)})" for room in rooms if not room.tasks]
        if idle:
            self.warnings.append(f"no worker fits on {some(idle)}")


# --- remarks on a finished plan --------------------------------------------------------------------------


def check_success(job: JobSpec, tasks: Mapping[Role, list[Task]]) -> None:
    success = job.policies.success
    role: Role = "chief" if success == "chief" else "worker"
    if success and not tasks[role]:
        raise InputError(f"success is {success}, but the job has no {role}", "Change one", where="policies.success")
    if not tasks["chief"] and not tasks["worker"]:
        raise InputError("neither a chief nor a worker, so nothing trains", "Ask for one", where="tasks")


def remarks(job: JobSpec, tasks: tuple[Task, ...], rooms: list[Room]) -> Iterator[str]:
    if job.runtime == "docker" and job.image is None and job.build is None:
        yield f"no image: up needs --image, or image: in {FILE_NAME} (tfdeploy init writes a trainer)"
    hosts = dict.fromkeys(task.host for task in tasks)
    if len(hosts) > 1:
        if job.shared is None:
            yield f"no shared: on {len(hosts)} hosts, checkpoints of ps and chief need one directory"
        yield from _doubtful_addresses(rooms)
    guessed = [room.host.name for room in rooms if room.guessed_gpus]
    if guessed:
        yield f"GPUs of {some(guessed)} are not known and taken to be there: declare tfdeploy_gpus"
    if job.legacy_flags and any(task.role == "chief" for task in tasks):
        yield "legacy_flags know only ps and worker: TF1 trainers take worker 0 for the chief"


def _doubtful_addresses(rooms: list[Room]) -> Iterator[str]:
    used = [room for room in rooms if room.tasks]
    for room in used:
        if room.host.address and is_loopback(room.address):
            raise InputError(
                f"tfdeploy_address {room.address} is the host itself, and the job has other hosts",
                "Give the address of the NIC that the training shall use",
                where=room.host.name,
            )
    loopback = [room.host.name for room in used if is_loopback(room.address)]
    if loopback:
        yield f"peers cannot reach {some(loopback)} at a loopback address: declare tfdeploy_address"
    yield from _shared_addresses(room for room in used if not is_loopback(room.address))


def _shared_addresses(rooms: Iterable[Room]) -> Iterator[str]:
    by_address: dict[str, list[str]] = {}
    for room in rooms:
        by_address.setdefault(room.address, []).append(room.host.name)
    for address, names in by_address.items():
        if len(names) > 1:
            yield f"{some(names)} have the same address {address}: one machine under several names?"

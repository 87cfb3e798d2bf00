"""What a host has: frozen values, read from what one script printed there. `ask` is the only effect."""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdeploy.errors import TfdeployError
from tfdeploy.paths import HOST_HOME

if TYPE_CHECKING:
    from tfdeploy.remote import Runs

# Bridges and the like that an engine makes: peers do not reach a task there, unless the inventory says so.
INNER_INTERFACES = ("docker", "podman", "br-", "veth", "virbr", "lx", "cni", "flannel", "cali", "tun", "tailscale")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG instance, in the host's own order."""

    uuid: str
    model: str = ""
    in_use: bool = False
    memory: int = 0


@dataclass(frozen=True, slots=True)
class System:
    id: str = ""
    version: str = ""
    like: tuple[str, ...] = ()
    name: str = ""
    kernel: str = ""
    machine: str = ""
    init: str = ""

    @property
    def family(self) -> str:
        """As Ansible names it; nothing for a system that our roles do not know."""
        kin = {self.id, *self.like}
        if kin & {"debian", "ubuntu"}:
            return "Debian"
        return "RedHat" if kin & {"rhel", "fedora", "centos"} else ""


@dataclass(frozen=True, slots=True)
class Engine:
    """The Docker engine; no version where none answers."""

    version: str = ""
    error: str = ""
    kind: str = ""
    rootless: bool = False
    swarm: bool = False
    live_restore: bool = False
    root: str = ""
    foreign: tuple[str, ...] = ()
    """Running containers that are not ours."""
    answers: bool = False
    """It gave an image that it was asked for; then nothing else was asked."""

    @property
    def fault(self) -> str:
        """What makes it unfit for tasks; nothing where it is fit."""
        if self.answers:
            return ""
        if self.kind == "snap":
            return "Docker comes from a snap"
        if self.kind == "podman":
            return "the docker command is podman"
        if self.rootless:
            return "Docker runs rootless"
        if not self.version:
            return self.error or "no Docker engine answers"
        if _version(self.version) < (20, 10):
            return f"Docker {self.version} is older than 20.10"
        return ""


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a task of a job that is not over holds on the host."""

    job: str
    task: str
    port: int
    slot: int = 0
    cpus: float = 0.0
    memory: int = 0
    gpus: tuple[str, ...] = ()

    def line(self) -> str:
        """As it is kept on the host."""
        gpus = ",".join(self.gpus) or "-"
        return f"{self.task} {self.port} {self.slot} {self.cpus:g} {self.memory} {gpus}"

    @classmethod
    def parse(cls, job: str, line: str) -> "Reservation | None":
        match line.split():
            case [task, port, slot, cpus, memory, gpus] if 0 < _whole(port) < 65536:
                given = () if gpus == "-" else tuple(gpus.split(","))
                return cls(job, task, _whole(port), _whole(slot), _number(cpus, 0.0), _whole(memory), given)
        return None


@dataclass(frozen=True, slots=True)
class JobTrace:
    """A job of ours that the host knows."""

    name: str
    generation: str
    over: bool


@dataclass(frozen=True, slots=True)
class Image:
    """The trainer's image as the host has it."""

    id: str
    user: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """One host as it was found; memory and disk in bytes, addresses with the preferred one first."""

    cpus: float
    memory: int
    gpus: tuple[Gpu, ...] = ()
    listening: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    """Ports on labels of containers whose job the host does not know otherwise."""
    reserved: tuple[Reservation, ...] = ()
    jobs: tuple[JobTrace, ...] = ()
    image: Image | None = None
    addresses: tuple[str, ...] = ()

    root: bool = True
    system: System = System()
    engine: Engine = Engine()
    interfaces: tuple[Interface, ...] = ()
    """All of them; `addresses` leaves out those that only lead to what runs on the host itself."""
    disk: str = ""
    disk_free: int = 0
    python: str = ""
    tools: frozenset[str] = frozenset()
    firewall: tuple[str, ...] = ()
    selinux: str = ""
    time_service: str = ""
    clock_offset: float = 0.0
    """How far the host's clock is ahead of the controller's, in seconds: the least that the measurement allows."""
    cards: int = 0
    """NVIDIA cards on the PCI bus, with a driver or without."""
    driver: str = ""
    toolkit: str = ""
    converged: str = ""
    """The digest that the last whole convergence left."""


def ask(remote: "Runs", image: str = "") -> Facts:
    """One round trip."""
    given = {"image": image, "home": getattr(remote, "home", HOST_HOME)}
    before = time.time()
    output = remote.run("".join(f"{key}={shlex.quote(value)}\n" for key, value in given.items()) + _script())
    after = time.time()
    if "\x1eclock_end\n" not in output.stdout:
        raise TfdeployError(f"its facts could not be read: {output.stderr.strip()[-200:] or 'the script broke off'}")
    return parse(output.stdout, before=before, after=after)


def of_all(entered: Mapping[str, "Runs | TfdeployError"], image: str = "") -> dict[str, Facts | TfdeployError]:
    """Every host's facts, or why there are none."""
    from tfdeploy import remote

    asked = remote.on_each(remote.answered(entered), lambda each: ask(each, image))
    return {name: answer if isinstance(answer, TfdeployError) else asked[name] for name, answer in entered.items()}


def parse(printed: str, *, before: float, after: float) -> Facts:
    """Facts from the script's output; `before` and `after` are the controller's clock around it.

    What a terminal would obey is dropped first: facts are shown to the user.
    """
    printed = "".join(character for character in printed if character.isprintable() or character in "\n\t\x1e")
    sections = {name.strip(): body for name, _, body in (part.partition("\n") for part in printed.split("\x1e")[1:])}

    def text(name: str) -> str:
        return sections.get(name, "").strip()

    def lines(name: str) -> list[str]:
        return [line.strip() for line in sections.get(name, "").splitlines() if line.strip()]

    interfaces = _interfaces(lines("addresses"), text("route"))
    rows = [line.split("\t") for line in sections.get("containers", "").splitlines()]
    disk, disk_free = _disk(lines("disk"))
    gpus = [values for values in (_values(line) for line in lines("gpus")) if len(values) == 5]
    busy = frozenset(lines("gpu_processes"))
    active = _active(lines("services"))
    jobs, reserved = _jobs(lines("jobs"))
    image = _image(text("image"))
    known = {job.name for job in jobs}
    return Facts(
        cpus=_number(text("cpus"), 1.0),
        memory=_meminfo(lines("memory"), "MemTotal"),
        gpus=tuple(Gpu(row[0], row[1], row[0] in busy, _whole(row[2]) << 20) for row in gpus),
        listening=frozenset(_listening(lines("listening"))),
        held=frozenset(
            port
            for row in rows
            if len(row) == 4 and row[2] and row[2] not in known and 0 < (port := _whole(row[3])) < 65536
        ),
        reserved=reserved,
        jobs=jobs,
        image=image,
        addresses=tuple(each.address for each in interfaces if not each.name.startswith(INNER_INTERFACES)),
        root=text("root") == "0",
        system=_system(lines("os"), text("kernel"), text("machine"), text("init")),
        engine=Engine(answers=True) if image else _engine(text("engine"), text("engine_kind"), rows),
        interfaces=interfaces,
        disk=disk,
        disk_free=disk_free,
        python=text("python").rpartition("/")[2],
        tools=frozenset(lines("tools")),
        firewall=(*(service for service in active if service == "firewalld"), *lines("firewall")),
        selinux=text("selinux"),
        time_service=next((service for service in active if service != "firewalld"), ""),
        clock_offset=clock_offset(
            _number(text("clock_start"), before), _number(text("clock_end"), after), before, after
        ),
        cards=len(lines("cards")),
        driver=gpus[0][4] if gpus else "",
        toolkit=_last_word(lines("toolkit")),
        converged=text("converged"),
    )


def clock_offset(host_start: float, host_end: float, before: float, after: float) -> float:
    """The host's clock lies between `host_end - after` and `host_start - before` ahead of ours: what is surely off."""
    least, most = sorted((host_end - after, host_start - before))
    if least <= 0 <= most:
        return 0.0
    return least if least > 0 else most


@cache
def _script() -> str:
    return Path(__file__).with_name("scripts").joinpath("facts.sh").read_text()


def _system(release: list[str], kernel: str, machine: str, init: str) -> System:
    values = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in release)}
    return System(
        id=values.get("ID", ""),
        version=values.get("VERSION_ID", ""),
        like=tuple(values.get("ID_LIKE", "").split()),
        name=values.get("PRETTY_NAME", ""),
        kernel=kernel,
        machine=machine,
        init=init,
    )


def _active(lines: list[str]) -> list[str]:
    """Of the services on the first line, those whose state on the second is `active`."""
    names, states = (line.split() for line in (*lines, "", "")[:2])
    return [name for name, state in zip(names, states, strict=False) if state == "active"]


def _engine(info: str, kind: str, rows: list[list[str]]) -> Engine:
    said: Mapping[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError):
        loaded = json.loads(info)
        said = loaded if isinstance(loaded, dict) else {}
    swarm, errors = said.get("Swarm"), said.get("ServerErrors")
    state = swarm.get("LocalNodeState") if isinstance(swarm, dict) else ""
    return Engine(
        version=str(said.get("ServerVersion") or ""),
        error=str(errors[0]) if isinstance(errors, list) and errors else "",
        kind=kind.split("\n")[0],
        rootless="name=rootless" in str(said.get("SecurityOptions")),
        swarm=state not in ("", "inactive", None),
        live_restore=said.get("LiveRestoreEnabled") is True,
        root=str(said.get("DockerRootDir") or ""),
        foreign=tuple(row[1] for row in rows if len(row) == 4 and row[0] == "running" and not row[2]),
    )


def _jobs(lines: list[str]) -> tuple[tuple[JobTrace, ...], tuple[Reservation, ...]]:
    """`job NAME GENERATION running|over`, each followed by its reservations."""
    jobs: list[JobTrace] = []
    reserved: list[Reservation] = []
    for line in lines:
        match line.split():
            case ["job", name, generation, state]:
                jobs.append(JobTrace(name, generation, state == "over"))
            case _ if jobs and not jobs[-1].over and (found := Reservation.parse(jobs[-1].name, line)):
                reserved.append(found)
    return tuple(jobs), tuple(reserved)


def _image(said: str) -> Image | None:
    id_, _, user = said.partition(" ")
    return Image(id_, user) if id_.startswith("sha256:") else None


def _interfaces(listed: list[str], route: str) -> tuple[Interface, ...]:
    """The one that leads out of the machine first, IPv4 before IPv6."""
    found = []
    for line in listed:
        words = line.split()
        if len(words) > 3 and words[2] in ("inet", "inet6"):
            found.append(Interface(words[1], words[3].partition("/")[0]))
    words = route.split()
    preferred = words[words.index("src") + 1] if "src" in words[:-1] else ""
    return tuple(sorted(found, key=lambda each: (each.address != preferred, ":" in each.address)))


def _listening(lines: list[str]) -> set[int]:
    """Decimal from `ss`, or `hex` and four digits from /proc where there is no `ss`."""
    ports = set()
    for line in lines:
        base, _, digits = line.rpartition(" ")
        with contextlib.suppress(ValueError):
            ports.add(int(digits, 16 if base == "hex" else 10))
    return {port for port in ports if 0 < port < 65536}


def _values(line: str) -> list[str]:
    return [value.strip() for value in line.split(",")]


def _meminfo(lines: list[str], key: str) -> int:
    for line in lines:
        words = line.split()
        if words[0] == f"{key}:" and len(words) > 1:
            return _whole(words[1]) * 1024
    return 0


def _disk(lines: list[str]) -> tuple[str, int]:
    """From df's last line; device and mount point may have spaces in them."""
    found = re.search(r"\s(\d+)\s+\S+%\s+(/.*)$", lines[-1]) if lines else None
    return (found[2], _whole(found[1]) * 1024) if found else ("", 0)


def _last_word(lines: list[str]) -> str:
    return lines[0].split()[-1] if lines else ""


def _number(text: str, default: float) -> float:
    """A plain finite number; anything else is what we took it for before."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if abs(number) < 1e15:
            return number
    return default


def _whole(text: str) -> int:
    return max(0, int(_number(text, 0.0)))


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split(".")[:2]:
        digits = "".join(character for character in part if character in "0123456789")
        numbers.append(_whole(digits))
    return tuple(numbers)

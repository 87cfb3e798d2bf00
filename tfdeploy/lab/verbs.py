"""What can be done with a lab: up, status, down, and the faults kill, start, cut, heal and slow."""

import json
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tfdeploy.errors import InputError, TfdeployError
from tfdeploy.lab import identity, image, layout, machine
from tfdeploy.lab.identity import Identity
from tfdeploy.lab.layout import LABEL, Lab, LabHost, SeenHost
from tfdeploy.report import Report

BYTES_FOR_IMAGE = 1 << 30
BYTES_PER_HOST = 128 << 20
INOTIFY_PER_HOST = 8
INOTIFY_SPARE = 128
SECONDS_TO_BOOT = 90
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")

T = TypeVar("T")


@dataclass(frozen=True)
class HostStatus:
    name: str
    address: str
    port: int
    state: str  # running, booting, cut, paused, stopped


@dataclass(frozen=True)
class LabStatus:
    name: str
    inventory: str
    subnet: str
    debian: str
    shared: str
    hosts: tuple[HostStatus, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def up(
    name: str,
    count: int,
    report: Report,
    *,
    inventory: Path,
    subnet: str = "",
    debian: str = "12",
    ask_password: Callable[[], str],
) -> LabStatus:
    """Bring the lab to `count` good hosts, from nothing, from fewer, from more, or from what a killed run left."""
    layout.check_name(name)
    layout.check_count(count)
    with identity.locked(name):
        _check_inventory(inventory, name)
        machine.make_ready(report, ask_password)
        me = _identity(name, inventory, subnet, debian)
        _check_disk(count)
        try:
            host_image = image.ensure(me.debian, report)
        except TfdeployError:
            if not _containers(name):
                identity.forget(name)
            raise
        _allow_inotify(name, count)
        _make_networks(me.lab)
        _make_hosts(me, count, host_image, report)
        hosts = me.lab.hosts(count)
        _each(hosts, _heal)
        report.doing("waiting for the hosts to boot")
        _each(hosts, _wait_until_booted)
        identity.write(inventory, layout.inventory(me.lab, hosts, me.directory, me.sockets, me.password))
    return status(name)


def status(name: str) -> LabStatus:
    me = identity.need(name)
    hosts = [me.lab.host(host.index) for host in seen_hosts(name)]
    down = _links_down()
    states = {host.index: host.state for host in seen_hosts(name)}
    return LabStatus(
        name,
        str(me.inventory),
        str(me.lab.subnet),
        me.debian,
        layout.SHARED,
        tuple(
            HostStatus(host.name, host.address, host.port, state)
            for host, state in zip(
                hosts, _each(hosts, lambda host: _state(host, states[host.index], down)), strict=True
            )
        ),
    )


def down(name: str, report: Report) -> None:
    """No container, network, volume, mount or process of the lab is left. Works on what is left of a lab, too."""
    layout.check_name(name)
    with identity.locked(name):
        me = identity.load(name)
        if me is None and not (machine.engine_answers() and _containers(name)):
            identity.need(name)
        if me is not None:
            identity.close_connections(me)
        report.doing("removing hosts, networks and volumes")
        if machine.engine_answers():
            _sweep(name)
        if me is not None and _belongs_to(me.inventory) == name:
            me.inventory.unlink()
        identity.forget(name)
        if not identity.names():
            _restore_inotify()


def kill(name: str, host: str) -> None:
    """Power loss: no process gets a word in."""
    machine.docker("kill", "--signal=KILL", _find(name, host).container)


def start(name: str, host: str) -> None:
    found = _find(name, host)
    machine.docker("start", found.container)
    _wait_until_booted(found)


def cut(name: str, host: str) -> None:
    """A cable pulled: packets vanish, nobody is told."""
    for link in _links(_find(name, host)):
        machine.as_root("ip", "link", "set", link, "down")


def heal(name: str, host: str) -> None:
    _heal(_find(name, host))


def slow(name: str, host: str, rate: str | None) -> None:
    """Limit what goes into and out of a host; no rate lifts the limit."""
    found = _find(name, host)
    bits = layout.check_rate(rate) if rate else 0
    for interface, link in zip(_interfaces(found), _links(found), strict=True):
        into = (*machine.root_words(), *_shaping(link, bits))
        out_of = (*machine.docker_words(), "exec", found.container, *_shaping(interface, bits))
        for words in (into, out_of):
            if bits:
                machine.run(words)
            else:
                machine.succeeds(words)


def ssh_words(name: str, host: str, command: tuple[str, ...]) -> tuple[str, ...]:
    found, me = _find(name, host), identity.need(name)
    target = f"{found.user}@{found.address}"
    return ("ssh", *layout.ssh_options(me.directory, me.sockets), "-i", str(me.directory / "key"), target, *command)


def seen_hosts(name: str) -> tuple[SeenHost, ...]:
    def label(container: Any, key: str) -> str:
        return str(container["Config"]["Labels"].get(f"{LABEL}.{key}", ""))

    return tuple(
        sorted(
            (
                SeenHost(
                    int(label(container, "index")),
                    container["State"]["Status"],
                    label(container, "made-from"),
                )
                for container in machine.inspect("container", _containers(name))
            ),
            key=lambda host: host.index,
        )
    )


def _identity(name: str, inventory: Path, subnet: str, debian: str) -> Identity:
    """The lab's identity; where it has none, whatever an earlier run left of it goes first."""
    known = identity.load(name)
    if known is None:
        _sweep(name)
        taken = machine.networks_in_use()
        chosen = layout.check_subnet(subnet, taken) if subnet else layout.free_subnet(taken)
        return identity.make(Lab(name, chosen), debian, inventory)
    wished = {"--subnet": (subnet, str(known.lab.subnet)), "--debian": (debian, known.debian)}
    for flag, (wish, is_now) in wished.items():
        if wish and wish != is_now:
            raise InputError(
                f"the lab {name!r} is there already with {is_now}",
                f"`tfdeploy lab down --name {name}` first, or leave {flag} out",
                where=flag,
            )
    if known.inventory != inventory:
        known = replace(known, inventory=inventory)
        identity.keep(known)
    return known


def _check_inventory(path: Path, name: str) -> None:
    """A lab overwrites its own inventory only."""
    if not path.parent.is_dir():
        raise InputError(f"there is no directory {path.parent}", "Make it, or name another file", where="--inventory")
    if not path.exists():
        return
    owner = _belongs_to(path)
    if owner is None:
        raise InputError(f"{path} exists and is not a lab's", "Name another file", where="--inventory")
    if owner != name and owner in identity.names():
        raise InputError(f"{path} belongs to the lab {owner!r}", "Name another file", where="--inventory")


def _belongs_to(path: Path) -> str | None:
    try:
        first = path.read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return None
    return first.removeprefix(layout.INVENTORY_MARK) if first.startswith(layout.INVENTORY_MARK) else None


def _check_disk(count: int) -> None:
    where, free = machine.free_bytes()
    needed = BYTES_FOR_IMAGE + count * BYTES_PER_HOST
    if free < needed:
        raise TfdeployError(
            f"{count} hosts need {needed >> 20} MiB in {where}, and {free >> 20} MiB are free",
            "Make room, or ask for fewer hosts",
        )


def _allow_inotify(name: str, count: int) -> None:
    """systemd takes several inotify instances; where they run out, hosts do not boot. `down` sets it back."""
    others = set(machine.docker("ps", "--all", "--quiet", f"--filter=label={LABEL}").split()) - set(_containers(name))
    needed = (count + len(others)) * INOTIFY_PER_HOST + INOTIFY_SPARE
    is_now = int(INOTIFY.read_text())
    if is_now >= needed:
        return
    before = identity.labs() / ".inotify"
    if not before.exists():
        identity.write(before, str(is_now))
    machine.as_root("sysctl", "-q", "-w", f"fs.inotify.max_user_instances={needed}")


def _restore_inotify() -> None:
    before = identity.labs() / ".inotify"
    if before.exists():
        machine.as_root("sysctl", "-q", "-w", f"fs.inotify.max_user_instances={before.read_text()}")
        before.unlink()


def _make_networks(lab: Lab) -> None:
    there = machine.docker("network", "ls", f"--filter=label={LABEL}={lab.name}", "--format={{.Name}}").split()
    mtu = machine.uplink_mtu()
    for words in layout.network_words(lab, mtu=mtu):
        if words[-1] not in there:
            machine.docker(*words)
    machine.docker(*layout.volume_words(lab, lab.shared_volume))


def _make_hosts(me: Identity, count: int, host_image: str, report: Report) -> None:
    made_from = layout.made_from(host_image, me.public_key)
    seen = seen_hosts(me.lab.name)
    todo = layout.changes(seen, count, made_from)
    hosts = me.lab.hosts(max(count, *(host.index for host in seen), 0))
    keys = identity.host_keys(me, hosts[:count])
    publics = {host: public for host, (_, public) in keys.items()}
    identity.write(me.directory / "known_hosts", layout.known_hosts(hosts[:count], publics))
    if todo.remove:
        report.doing(f"removing {_listed(hosts[index - 1] for index in todo.remove)}")
        identity.close_connections(me)
        _each((hosts[index - 1] for index in todo.remove), _remove)
        report.done(f"removed {_listed(hosts[index - 1] for index in todo.remove)}")
    missing = machine.missing_capabilities()

    def create(host: LabHost) -> None:
        for volume in host.volumes:
            machine.docker(*layout.volume_words(host.lab, volume))
        machine.docker(*layout.create_words(host, host_image, made_from, missing))
        if host.second_address:
            machine.docker("network", "connect", f"--ip={host.second_address}", host.lab.second_network, host.container)
        private, public = keys[host.name]
        archive = layout.identity_archive(host, private, public, me.public_key, me.password)
        machine.docker("cp", "-", f"{host.container}:/", data=archive)
        machine.docker("start", host.container)

    if todo.create:
        report.doing(f"making {_listed(hosts[index - 1] for index in todo.create)}")
        _each((hosts[index - 1] for index in todo.create), create)
        report.done(f"made {_listed(hosts[index - 1] for index in todo.create)}")
    if todo.start:
        _each((hosts[index - 1] for index in todo.start), _start_again)
        report.done(f"started {_listed(hosts[index - 1] for index in todo.start)}")


def _start_again(host: LabHost) -> None:
    if not machine.succeeds((*machine.docker_words(), "unpause", host.container)):
        machine.docker("start", host.container)


def _remove(host: LabHost) -> None:
    machine.docker("rm", "--force", "--volumes", host.container)
    machine.docker("volume", "rm", "--force", *host.volumes)


def _sweep(name: str) -> None:
    """Everything that carries the lab's label, whoever made it."""
    if containers := _containers(name):
        machine.docker("rm", "--force", "--volumes", *containers)
    for kind in ("network", "volume"):
        if found := machine.docker(kind, "ls", "--quiet", f"--filter=label={LABEL}={name}").split():
            machine.docker(kind, "rm", *found)


def _containers(name: str) -> list[str]:
    return machine.docker("ps", "--all", "--quiet", f"--filter=label={LABEL}={name}").split()


def _find(name: str, wanted: str) -> LabHost:
    """By its name or its number."""
    me = identity.need(name)
    hosts = [me.lab.host(host.index) for host in seen_hosts(name)]
    for host in hosts:
        if wanted in (host.name, str(host.index)):
            return host
    raise InputError(f"the lab {name!r} has no host {wanted!r}", f"It has {_listed(hosts)}")


def _wait_until_booted(host: LabHost) -> None:
    """Until systemd has settled and sshd answers. A `degraded` system is up: Debian 13 is, in a container."""
    deadline = time.monotonic() + SECONDS_TO_BOOT
    words = (*machine.docker_words(), "exec", host.container, "systemctl", "is-system-running", "--wait")
    while time.monotonic() < deadline:
        if machine.output(words) in ("running", "degraded") and _ssh_answers(host):
            return
        time.sleep(0.1)
    raise TfdeployError(
        f"the host has not booted within {SECONDS_TO_BOOT} s",
        f"Look at `docker logs {host.container}`, or make it anew: `tfdeploy lab down`, then `lab up`",
        where=host.name,
    )


def _ssh_answers(host: LabHost) -> bool:
    try:
        with socket.create_connection((host.address, host.port), timeout=1) as connection:
            connection.settimeout(1)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _state(host: LabHost, engine_state: str, links_down: frozenset[int]) -> str:
    if engine_state != "running":
        return "paused" if engine_state == "paused" else "stopped"
    if links_down.intersection(_link_numbers(host)):
        return "cut"
    return "running" if _ssh_answers(host) else "booting"


def _interfaces(host: LabHost) -> list[str]:
    return ["eth0", "eth1"] if host.second_address else ["eth0"]


def _link_numbers(host: LabHost) -> list[int]:
    """The numbers, on this machine, of the links that the host's interfaces are the other ends of."""
    paths = [f"/sys/class/net/{interface}/iflink" for interface in _interfaces(host)]
    said = machine.output((*machine.docker_words(), "exec", host.container, "cat", *paths))
    return [int(number) for number in said.split()]


def _links(host: LabHost) -> list[str]:
    numbers = _link_numbers(host)
    if not numbers:
        raise InputError("the host is not running, so it has no links", "Start it first", where=host.name)
    names = {link["ifindex"]: link["ifname"] for link in _all_links()}
    return [names[number] for number in numbers]


def _heal(host: LabHost) -> None:
    for link in _links(host):
        machine.as_root("ip", "link", "set", link, "up")


def _links_down() -> frozenset[int]:
    return frozenset(link["ifindex"] for link in _all_links() if "UP" not in link["flags"])


def _all_links() -> list[Any]:
    links: list[Any] = json.loads(machine.run(("ip", "-j", "link", "show", "type", "veth")))
    return links


def _shaping(interface: str, bits: int) -> tuple[str, ...]:
    if not bits:
        return ("tc", "qdisc", "del", "dev", interface, "root")
    burst = max(16 << 10, bits // 8 // 100)
    return (
        "tc", "qdisc", "replace", "dev", interface, "root", "tbf",
        "rate", f"{bits}bit", "burst", str(burst), "latency", "50ms",
    )  # fmt: skip


def _each(hosts: Iterable[LabHost], do: Callable[[LabHost], T]) -> list[T]:
    """On all hosts at once; the first failure is raised when all are done."""
    with ThreadPoolExecutor(16) as pool:
        return [future.result() for future in [pool.submit(do, host) for host in hosts]]


def _listed(hosts: Iterable[LabHost]) -> str:
    return ", ".join(host.name for host in hosts)

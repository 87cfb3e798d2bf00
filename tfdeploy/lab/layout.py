"""What a lab is made of: names, addresses, hosts, inventory and engine arguments, as values. Pure."""

import hashlib
import io
import re
import shlex
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from tfdeploy.errors import InputError

LABEL = "tfdeploy.lab"
SHARED = "/srv/shared"
MOST_HOSTS = 100
FIRST_ADDRESS = 10
SUDO_USER = "ops"
INVENTORY_MARK = "# A lab of tfdeploy's: "

# Set aside for benchmarks (RFC 2544) and so hardly ever routed at a site.
RANGES = IPv4Network("198.18.0.0/15")
RANGE_PREFIX = 24

CONTAINER_OPTIONS = (
    "--cap-add=ALL",
    "--security-opt=seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
    "--security-opt=systempaths=unconfined",
    "--device-cgroup-rule=a *:* rwm",
    "--cgroupns=private",
    "--tmpfs=/run",
    "--tmpfs=/run/lock",
    "--tmpfs=/tmp:exec",
    "--env=container=docker",
    "--stop-signal=SIGRTMIN+3",
    # A reboot from inside ends PID 1 with a signal: the engine starts it again. `kill` and `stop` are left alone.
    "--restart=on-failure",
)


@dataclass(frozen=True)
class Lab:
    name: str
    subnet: IPv4Network

    @property
    def network(self) -> str:
        return f"tfdeploy-lab-{self.name}"

    @property
    def second_network(self) -> str:
        return f"{self.network}-nic2"

    @property
    def halves(self) -> tuple[IPv4Network, IPv4Network]:
        """The subnet of all hosts, and that of second NICs."""
        first, second = self.subnet.subnets(1)
        return first, second

    @property
    def shared_volume(self) -> str:
        return f"{self.network}-shared"

    def host(self, index: int) -> "LabHost":
        return LabHost(self, index)

    def hosts(self, count: int) -> tuple["LabHost", ...]:
        return tuple(self.host(index) for index in range(1, count + 1))


@dataclass(frozen=True)
class LabHost:
    """Counted from 1. The second host is entered as a user who must give a password to sudo; the third has two NICs."""

    lab: Lab
    index: int
    port: int = 22

    @property
    def name(self) -> str:
        return f"{self.lab.name}-{self.index}"

    @property
    def container(self) -> str:
        return f"tfdeploy-lab-{self.name}"

    @property
    def address(self) -> str:
        return str(self.lab.halves[0][FIRST_ADDRESS + self.index])

    @property
    def second_address(self) -> str | None:
        return str(self.lab.halves[1][FIRST_ADDRESS + self.index]) if self.index == 3 else None

    @property
    def user(self) -> str:
        return SUDO_USER if self.index == 2 else "root"

    @property
    def home(self) -> str:
        return "/root" if self.user == "root" else f"/home/{self.user}"

    @property
    def volumes(self) -> dict[str, str]:
        """An engine cannot keep its layers on the overlay that the host itself stands on."""
        return {
            f"{self.container}-docker": "/var/lib/docker",
            f"{self.container}-containerd": "/var/lib/containerd",
        }


@dataclass(frozen=True)
class SeenHost:
    """A lab host as the engine knows it."""

    index: int
    state: str
    made_from: str


@dataclass(frozen=True)
class Changes:
    remove: tuple[int, ...]
    create: tuple[int, ...]
    start: tuple[int, ...]


def changes(seen: Iterable[SeenHost], count: int, made_from: str) -> Changes:
    """What makes `count` good hosts of what is there. One never started, or made from other parts, is made anew."""
    by_index = {host.index: host for host in seen}
    good = {
        index
        for index, host in by_index.items()
        if index <= count and host.made_from == made_from and host.state != "created"
    }
    return Changes(
        remove=tuple(sorted(by_index.keys() - good)),
        create=tuple(index for index in range(1, count + 1) if index not in good),
        start=tuple(sorted(index for index in good if by_index[index].state != "running")),
    )


def check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?", name):
        raise InputError(
            f"{name!r} cannot be a lab's name",
            "Use 1 to 20 of a-z, 0-9 and '-', beginning with a letter and not ending with '-'",
            where="--name",
        )
    return name


def check_count(count: int) -> int:
    if not 1 <= count <= MOST_HOSTS:
        raise InputError(f"{count} hosts cannot be made", f"Ask for 1 to {MOST_HOSTS}", where="--hosts")
    return count


def check_rate(rate: str) -> int:
    """`100mbit` in bits per second."""
    found = re.fullmatch(r"([1-9]\d{0,5})(kbit|mbit|gbit)", rate)
    if not found:
        raise InputError(
            f"{rate!r} is not a rate",
            "Write a number and kbit, mbit or gbit, such as 100mbit",
            where="--rate",
        )
    return int(found[1]) * {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}[found[2]]


def check_subnet(text: str, taken: Iterable[IPv4Network]) -> IPv4Network:
    try:
        subnet = IPv4Network(text)
    except ValueError as error:
        raise InputError(f"{error}", f"Give a network such as {RANGES[0]}/24", where="--subnet") from None
    if subnet.prefixlen != RANGE_PREFIX:
        raise InputError(f"{text} is not a /{RANGE_PREFIX}", f"Give a network such as {RANGES[0]}/24", where="--subnet")
    clash = next((other for other in taken if other.overlaps(subnet)), None)
    if clash:
        raise InputError(
            f"{text} is in use on this machine: {clash} is routed or belongs to another network",
            "Leave --subnet out to have a free one chosen",
            where="--subnet",
        )
    return subnet


def free_subnet(taken: Sequence[IPv4Network]) -> IPv4Network:
    for candidate in RANGES.subnets(new_prefix=RANGE_PREFIX):
        if not any(other.overlaps(candidate) for other in taken):
            return candidate
    raise InputError(f"no /24 of {RANGES} is free on this machine", "Name a free one with --subnet")


def made_from(image: str, key: str) -> str:
    """A digest of what every host of a lab is made of; it changes when hosts must be made anew."""
    return hashlib.sha256("\0".join((image, key, *CONTAINER_OPTIONS)).encode()).hexdigest()[:16]


def network_words(lab: Lab, *, mtu: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The network of all hosts, and one for second NICs that leads nowhere else."""
    common = (
        "network",
        "create",
        f"--label={LABEL}={lab.name}",
        f"--opt=com.docker.network.driver.mtu={mtu}",
    )
    first, second = lab.halves
    return (
        (*common, f"--subnet={first}", lab.network),
        (*common, "--internal", f"--subnet={second}", lab.second_network),
    )


def volume_words(lab: Lab, volume: str) -> tuple[str, ...]:
    return ("volume", "create", f"--label={LABEL}={lab.name}", volume)


def create_words(host: LabHost, image: str, made_from: str, missing_capabilities: Sequence[str]) -> tuple[str, ...]:
    return (
        "create",
        f"--name={host.container}",
        f"--hostname={host.name}",
        f"--label={LABEL}={host.lab.name}",
        f"--label={LABEL}.index={host.index}",
        f"--label={LABEL}.made-from={made_from}",
        f"--network={host.lab.network}",
        f"--ip={host.address}",
        *CONTAINER_OPTIONS,
        *(f"--cap-drop={capability}" for capability in missing_capabilities),
        *(f"--volume={volume}:{path}" for volume, path in host.volumes.items()),
        f"--volume={host.lab.shared_volume}:{SHARED}",
        image,
    )


def identity_archive(host: LabHost, host_key: str, host_key_public: str, authorized: str, password: str) -> bytes:
    """The files that make one host different from another, as a tar for `docker cp`."""
    owner = 0 if host.user == "root" else 1000
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, "etc/ssh/ssh_host_ed25519_key", host_key, 0o600)
        _add(tar, "etc/ssh/ssh_host_ed25519_key.pub", host_key_public, 0o644)
        _add_directory(tar, f"{host.home[1:]}/.ssh", owner)
        _add(tar, f"{host.home[1:]}/.ssh/authorized_keys", authorized, 0o600, owner)
        if host.user != "root":
            _add(tar, "lab/password", f"{host.user}:{password}\n", 0o600)
    return archive.getvalue()


def _add(tar: tarfile.TarFile, path: str, text: str, mode: int, owner: int = 0) -> None:
    member = tarfile.TarInfo(path)
    content = text.encode()
    member.size, member.mode, member.uid, member.gid = len(content), mode, owner, owner
    tar.addfile(member, io.BytesIO(content))


def _add_directory(tar: tarfile.TarFile, path: str, owner: int) -> None:
    member = tarfile.TarInfo(path)
    member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, 0o700, owner, owner
    tar.addfile(member)


def known_hosts(hosts: Iterable[LabHost], public_keys: Mapping[str, str]) -> str:
    return "".join(f"{host.address} {' '.join(public_keys[host.name].split()[:2])}\n" for host in hosts)


def ssh_options(directory: Path, sockets: str) -> tuple[str, ...]:
    """For OpenSSH, to a lab whose keys are in `directory`; `sockets` is where connections are kept open."""
    return (
        "-o", f'UserKnownHostsFile="{directory / "known_hosts"}"',
        "-o", "GlobalKnownHostsFile=/dev/null",
        "-o", "StrictHostKeyChecking=yes",
        "-o", "IdentitiesOnly=yes",
        "-o", f'ControlPath="{sockets}%r@%h"',
    )  # fmt: skip


def inventory(lab: Lab, hosts: Iterable[LabHost], directory: Path, sockets: str, password: str) -> str:
    lines = [
        f"{INVENTORY_MARK}{lab.name}",
        f"# `tfdeploy lab up --name {lab.name}` writes it, `tfdeploy lab down --name {lab.name}` removes it.",
        "[lab]",
    ]
    for host in hosts:
        become = "" if host.user == "root" else f" ansible_become_password={password}"
        lines.append(f"{host.name} ansible_host={host.address} ansible_user={host.user}{become}")
    lines += [
        "",
        "[lab:vars]",
        f"ansible_ssh_private_key_file={directory / 'key'}",
        f"ansible_ssh_common_args={shlex.join(ssh_options(directory, sockets))}",
        "ansible_python_interpreter=/usr/bin/python3",
    ]
    return "\n".join(lines) + "\n"

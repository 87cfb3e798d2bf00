"""Hosts and how to enter them: frozen values, and `read`, which has Ansible's own code read an inventory."""

import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tfdeploy.errors import InputError

INVENTORY_KINDS = "Name a file, a directory or host1,host2, (with a comma)"
DEFAULT_PORTS = ((2222, 2321),)

# Names become ssh arguments, directories and labels: nothing that a shell, a path or a template would read.
_HOST_NAME = re.compile(r"[\w:](?:[\w:%@+-]|\.(?!\.))*")
_ADDRESS = re.compile(r"[\w:](?:[\w:%-]|\.(?!\.))*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Secret:
    """A password that no repr, log or traceback shows."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "********"


@dataclass(frozen=True, slots=True)
class Connection:
    """How Ansible would enter a host; None where neither inventory nor ansible.cfg says anything."""

    host: str
    port: int | None = None
    user: str | None = None
    private_key_file: str | None = None
    password: Secret | None = None
    ssh_common_args: str = ""
    ssh_extra_args: str = ""
    become: bool = False
    become_method: str = "sudo"
    become_user: str = "root"
    become_password: Secret | None = None
    connection: str = "ssh"
    python: str = "auto"


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    connection: Connection
    groups: tuple[str, ...] = ()
    address: str | None = None
    """tfdeploy_address: where peers reach its tasks."""
    gpus: int | tuple[str, ...] | None = None
    """tfdeploy_gpus: how many, or which (index or UUID); None: not declared."""
    slots: int = 1
    ports: tuple[tuple[int, int], ...] = DEFAULT_PORTS
    """tfdeploy_ports: ranges, both ends included."""


@dataclass(frozen=True, slots=True)
class Inventory:
    hosts: tuple[Host, ...]
    """In inventory order, those that --limit left."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Every group's hosts, those that --limit left out included."""
    warnings: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.groups.get("all", ()) or any(host.name == name for host in self.hosts)


@dataclass(frozen=True, slots=True)
class Vault:
    """Ansible's --vault-id, --vault-password-file, and the password that was typed for --ask-vault-pass."""

    ids: tuple[str, ...] = ()
    password_files: tuple[str, ...] = ()
    password: Secret | None = None


def read(
    sources: Iterable[str],
    *,
    limit: str | None = None,
    vault: Vault | None = None,
    extra_vars: tuple[str, ...] = (),
) -> Inventory:
    """The inventory that Ansible would see in these sources, templated and decrypted; extra variables as for -e."""
    given = tuple(sources)
    if not given:
        raise InputError("no inventory given", INVENTORY_KINDS)
    for source in given:
        _check_exists(source)
    with _nothing_collected():
        try:
            from tfdeploy import ansible_inventory

            return ansible_inventory.read(given, limit, vault or Vault(), extra_vars)
        except SystemExit as refusal:  # Ansible's vault code ends the process where the locale is not UTF-8
            raise InputError(str(refusal).removeprefix("ERROR: "), "Set LC_ALL=C.UTF-8") from refusal


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Ansible makes 40,000 objects that stay: looking for garbage among them took 5 % of `tfdeploy plan`."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_ports(text: object) -> tuple[tuple[int, int], ...]:
    """`2222-2321`, `2222,2230-2240`, a number or a list of these; ValueError says what is wrong."""
    parts = text if isinstance(text, list | tuple) else str(text).split(",")
    ranges = tuple(_port_range(str(part).strip()) for part in parts)
    if not ranges:
        raise ValueError("no port in it")
    return ranges


def parse_gpus(value: object) -> int | tuple[str, ...] | None:
    """A count, or GPUs by index or UUID; `all` leaves it to what the host has."""
    if isinstance(value, bool):
        raise ValueError("neither a number nor a list")
    if isinstance(value, list | tuple):
        return _distinct(str(part).strip() for part in value)
    text = str(value).strip()
    if text == "all":
        return None
    if re.fullmatch(r"-?[0-9]{1,6}", text):
        if text.startswith("-"):
            raise ValueError("less than 0")
        return int(text)
    return _distinct(part.strip() for part in text.split(","))


def parse_slots(value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError("not a whole number")
    if int(text) < 1:
        raise ValueError("less than 1")
    return int(text)


def is_host_name(name: str) -> bool:
    return len(name) <= 253 and bool(_HOST_NAME.fullmatch(name))


def parse_address(value: object) -> str:
    text = str(value).strip()
    if len(text) > 253 or not _ADDRESS.fullmatch(text):
        raise ValueError("neither an IP address nor a host name")
    return text


def _distinct(parts: Iterable[str]) -> tuple[str, ...]:
    gpus = tuple(parts)
    for gpu in gpus:
        if not re.fullmatch(r"[A-Za-z0-9/_.-]+", gpu):
            raise ValueError(f"{gpu!r:.60} is neither an index nor a UUID")
    if len(set(gpus)) < len(gpus):
        raise ValueError("a GPU stands in it twice")
    return gpus


def _port_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?", text)
    if not match:
        raise ValueError(f"{text!r:.60} is not a port or a range of ports")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{text} is not within 1-65535, lower end first")
    return first, last


def _check_exists(source: str) -> None:
    if "," in source:
        return
    if "\0" in source or not Path(source).expanduser().exists():
        raise InputError(
            "no such inventory",
            "Name a file, a directory or host1,host2, (with a comma)",
            where=repr(source)[1:-1],
        )

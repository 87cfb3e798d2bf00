"""A lab's directory on this machine: its keys, its known_hosts and the choices that hold for its whole life."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from tfdeploy import paths
from tfdeploy.errors import InputError, LockedError, TfdeployError
from tfdeploy.lab import layout, machine
from tfdeploy.lab.layout import Lab, LabHost


@dataclass(frozen=True)
class Identity:
    lab: Lab
    debian: str
    password: str
    inventory: Path
    directory: Path

    @property
    def sockets(self) -> str:
        """What the names of its SSH sockets begin with."""
        return str(paths.runtime() / f"{self.lab.name}:")

    @property
    def public_key(self) -> str:
        return (self.directory / "key.pub").read_text()


def labs() -> Path:
    return paths.state() / "labs"


def names() -> list[str]:
    return sorted(path.parent.name for path in labs().glob("*/lab.json"))


def load(name: str) -> Identity | None:
    """Nothing where there is no lab, or where a run was killed before it had made the lab's keys."""
    directory = labs() / name
    try:
        kept = json.loads((directory / "lab.json").read_text())
        lab = Lab(name, IPv4Network(kept["subnet"]))
        return Identity(lab, kept["debian"], kept["password"], Path(kept["inventory"]), directory)
    except (FileNotFoundError, KeyError, ValueError):
        return None


def need(name: str) -> Identity:
    found = load(layout.check_name(name))
    if found is None:
        others = f" (there is: {', '.join(names())})" if names() else ""
        raise InputError(f"there is no lab {name!r}{others}", f"Make it with `tfdeploy lab up --name {name}`")
    return found


def make(lab: Lab, debian: str, inventory: Path) -> Identity:
    directory = labs() / lab.name
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)
        _make_key(directory / "key", f"tfdeploy-lab-{lab.name}")
        identity = Identity(lab, debian, secrets.token_urlsafe(12), inventory, directory)
        keep(identity)
    except (OSError, TfdeployError) as error:
        forget(lab.name)
        raise TfdeployError(f"the lab's keys could not be made in {directory}: {error}") from None
    return identity


def keep(identity: Identity) -> None:
    kept = {
        "subnet": str(identity.lab.subnet),
        "debian": identity.debian,
        "password": identity.password,
        "inventory": str(identity.inventory),
    }
    write(identity.directory / "lab.json", json.dumps(kept))


def forget(name: str) -> None:
    shutil.rmtree(labs() / name, ignore_errors=True)


def host_keys(identity: Identity, hosts: Iterable[LabHost]) -> dict[str, tuple[str, str]]:
    """Each host's private and public key, made before its first boot so that known_hosts is right from the start."""
    keys = {}
    for host in hosts:
        path = identity.directory / f"{host.name}.key"
        if not path.with_suffix(".key.pub").exists():
            _make_key(path, host.name)
        keys[host.name] = (path.read_text(), path.with_suffix(".key.pub").read_text())
    return keys


def close_connections(identity: Identity) -> None:
    """An SSH connection that is kept open would hide that a host was made anew."""
    for socket in paths.runtime().glob(f"{identity.lab.name}:*"):
        machine.succeeds(("ssh", "-o", f"ControlPath={socket}", "-O", "exit", "lab"))
        socket.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.touch(mode=0o600)
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One change of a lab at a time."""
    labs().mkdir(parents=True, exist_ok=True, mode=0o700)
    with (labs() / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"another command is changing the lab {name!r}", "Wait for it, then try again") from None
        yield


def _make_key(path: Path, comment: str) -> None:
    path.unlink(missing_ok=True)
    machine.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)))

"""Where things are on the controller: what ships with the package, and what is kept for the user."""

import os
import stat
from pathlib import Path

from tfdeploy.errors import TfdeployError

HOST_HOME = "/var/lib/tfdeploy"
"""Where a host keeps its jobs."""
PACKAGE = Path(__file__).resolve().parent


def playbook(name: str) -> Path:
    return _shipped("playbooks") / name


def roles() -> Path:
    return _shipped("roles")


def state() -> Path:
    """What must outlive a command and cannot be made again, such as a lab's keys."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache() -> Path:
    """What can be made again at any time."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def runtime() -> Path:
    """Sockets. The kernel takes about a hundred characters, so that the state directory may lie too deep."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    directory = Path(given) / "tfdeploy" if given else Path(f"/tmp/tfdeploy-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise TfdeployError(f"{directory} is not a directory of yours alone", "Remove it, then try again")
    return directory


def _shipped(directory: str) -> Path:
    """Inside the package in a wheel, beside it in a checkout."""
    inside = PACKAGE / directory
    return inside if inside.is_dir() else PACKAGE.parent / directory


def _xdg(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "tfdeploy"

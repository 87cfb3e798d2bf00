"""Where things are on the controller: what ships with the package, and what is kept for the user."""

import os
from pathlib import Path

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


def _shipped(directory: str) -> Path:
    """Inside the package in a wheel, beside it in a checkout."""
    inside = PACKAGE / directory
    return inside if inside.is_dir() else PACKAGE.parent / directory


def _xdg(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "tfdeploy"

"""Tests never touch the user's home, keys or SSH configuration."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
TFDEPLOY = str(Path(sys.executable).with_name("tfdeploy"))

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of the tests' own, for this process and all that it starts."""
    directory = tmp_path_factory.mktemp("home")
    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(directory))
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "ANSIBLE_CONFIG"):
        patch.delenv(variable, raising=False)
    patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    yield directory
    patch.undo()


@pytest.fixture
def tfdeploy(tmp_path: Path) -> Run:
    """The command as a user runs it, in a directory of the test's own."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        cwd = options.pop("cwd", tmp_path)
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [TFDEPLOY, *words], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options
        )

    return run

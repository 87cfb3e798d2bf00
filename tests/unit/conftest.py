"""What several unit tests share: a home of their own, made-up hosts, and the command in this process."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tfdeploy.cli import main
from tfdeploy.inventory import Connection, Host, Inventory


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for variable in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(variable)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    directory = tmp_path / "demo"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command, within this process."""

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(list(words))
        shown = capsys.readouterr()
        return Outcome(int(exit_.value.code or 0), shown.out, shown.err)

    return run


@pytest.fixture
def free_port() -> int:
    """One that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def hosts() -> Callable[..., Inventory]:
    """`hosts("a", "b", groups={"ps": ("a",)}, slots=2)`: an inventory with no file behind it."""

    def make(*names: str, groups: dict[str, tuple[str, ...]] | None = None, **values: object) -> Inventory:
        made = tuple(
            Host(name, Connection(host=f"10.0.0.{number}"), **values)  # type: ignore[arg-type]
            for number, name in enumerate(names, start=1)
        )
        return Inventory(made, {"all": names, **(groups or {})})

    return make

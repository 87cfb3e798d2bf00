"""Lab fixtures: the engine, and labs that are gone when their tests are."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TFDEPLOY
from tfdeploy.lab import machine
from tfdeploy.report import Silent


@dataclass(frozen=True)
class LabUnderTest:
    """A lab in a directory of its own, driven by the command as a user would."""

    name: str
    directory: Path

    def __call__(self, verb: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = self.tfdeploy("lab", verb, "--name", self.name, *words)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "-o", "json").stdout)
        return found

    def states(self) -> dict[str, str]:
        return {host["name"]: host["state"] for host in self.status()["hosts"]}

    def on(self, host: int, command: str) -> str:
        return self("ssh", str(host), "--", command).stdout.strip()

    def tfdeploy(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command on the lab's inventory; standard input is nobody's."""
        return subprocess.run(
            [TFDEPLOY, *words],
            cwd=self.directory,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """In a session of its own, and with Ctrl-C at work even where the tests run in the background."""
        return subprocess.Popen(
            [TFDEPLOY, *words],
            cwd=self.directory,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def write(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text)
        return name

    def on_all(self, command: str) -> list[str]:
        return [self.in_container(host, command) for host in (1, 2, 3)]

    def in_container(self, host: int, command: str) -> str:
        """As root, past SSH: for what must be done to a host that cannot be entered."""
        return machine.docker("exec", f"tfdeploy-lab-{self.name}-{host}", "sh", "-c", command).strip()

    def ansible(self, pattern: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["ansible", "-i", "lab.ini", pattern, *words]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True)

    def containers(self) -> dict[str, str]:
        """Each host's container id: another id is another machine."""
        listed = machine.docker(
            "ps", "--all", f"--filter=label=tfdeploy.lab={self.name}", "--format={{.Names}} {{.ID}}"
        )
        return dict(line.split() for line in listed.splitlines())


@pytest.fixture(scope="session")
def engine() -> None:
    """The Docker engine of this machine, installed and started by the project's own role."""

    def no_password() -> str:
        raise AssertionError("lab tests need root, or sudo without a password")

    machine.make_ready(Silent(), no_password)


@pytest.fixture
def lab(engine: None, tmp_path: Path) -> Iterator[LabUnderTest]:
    """A name for a lab that the test makes, and its removal."""
    made = LabUnderTest("test", tmp_path)
    yield made
    made("down", check=False)


def three_hosts(name: str, directory: Path) -> Iterator[LabUnderTest]:
    made = LabUnderTest(name, directory)
    made("up", "--hosts", "3")
    yield made
    made("down")


@pytest.fixture(scope="module")
def hosts(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    """Three hosts that are up, for tests that leave them as they were."""
    yield from three_hosts("hosts", tmp_path_factory.mktemp("hosts"))


def eventually(true: Callable[[], Any], what: str, seconds: float = 90) -> Any:
    """What it answers once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := true():
            return answer
        time.sleep(0.2)
    raise AssertionError(f"{what}: not after {seconds} s")

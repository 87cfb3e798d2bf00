"""Lab fixtures: the engine, and labs that are gone when their tests are."""

import io
import json
import os
import signal
import subprocess
import tarfile
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


@pytest.fixture(scope="session")
def gang(engine: None, trainer: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    """Three provisioned hosts for jobs; each test takes its own down."""
    made = LabUnderTest("gang", tmp_path_factory.mktemp("gang"))
    made("up", "--hosts", "3")
    try:
        done = made.tfdeploy("provision", "lab.ini")
        assert done.returncode == 0, done.stderr
        yield made
        # Watchers of a job that a failed test has left would look for its hosts for ever.
        made.tfdeploy("down", "--all", "--discard", "--grace", "1", "-i", "lab.ini")
    finally:
        made("down")


TRAINER = "tfdeploy-test-trainer"
APPLETS = ("cat", "env", "id", "ls", "mkdir", "printf", "rm", "sh", "sleep", "stat", "touch", "true")


@pytest.fixture(scope="session")
def trainer(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An image without a registry: run by root, by a uid, by a user with a name, and one of another kind of machine."""
    files = _file_system(_busybox(tmp_path_factory.mktemp("busybox")))
    variants = {"root": (), "uid": ("--change=USER 1234",), "named": ("--change=USER trainer",)}
    for tag, words in variants.items():
        machine.docker("import", *words, "-", f"{TRAINER}:{tag}", data=files)
    saved = subprocess.check_output((*machine.docker_words(), "save", f"{TRAINER}:root"))
    machine.docker("load", data=_for_another_machine(saved))
    yield
    machine.docker("rmi", "--force", *(f"{TRAINER}:{tag}" for tag in (*variants, "arm64")))


def _busybox(directory: Path) -> bytes:
    """Debian's static one, unpacked and not installed: it would take the place of the machine's own."""
    download = ("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "busybox-static")
    if subprocess.run(download, cwd=directory, stdout=subprocess.DEVNULL).returncode:
        subprocess.run(("apt-get", "-qq", "update"), check=True, stdout=subprocess.DEVNULL)
        subprocess.run(download, check=True, cwd=directory, stdout=subprocess.DEVNULL)
    package = next(directory.glob("busybox-static_*.deb"))
    subprocess.run(("dpkg-deb", "--extract", str(package), "busybox"), check=True, cwd=directory)
    return next((directory / "busybox").glob("**/bin/busybox")).read_bytes()


def _file_system(program: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:

        def add(name: str, data: bytes = b"", mode: int = 0o644, **more: Any) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            for key, value in more.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(data))

        add("bin/busybox", program, 0o755)
        for applet in APPLETS:
            add(f"bin/{applet}", type=tarfile.SYMTYPE, linkname="busybox")
        add("tmp", mode=0o1777, type=tarfile.DIRTYPE)
        add("etc/passwd", b"root:x:0:0::/:/bin/sh\ntrainer:x:4321:4322::/:/bin/sh\n")
    return archive.getvalue()


def _for_another_machine(saved: bytes) -> bytes:
    """The archive with a config that says arm64, under a tag that says so; in the form that has no digests to match."""
    with tarfile.open(fileobj=io.BytesIO(saved)) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())[0]
        config = json.load(tar.extractfile(manifest["Config"]) or io.BytesIO()) | {"architecture": "arm64"}
        layers = {
            f"{number}.tar": (tar.extractfile(layer) or io.BytesIO()).read()
            for number, layer in enumerate(manifest["Layers"])
        }
    said = [{"Config": "config.json", "RepoTags": [f"{TRAINER}:arm64"], "Layers": list(layers)}]
    files = {"manifest.json": json.dumps(said).encode(), "config.json": json.dumps(config).encode(), **layers}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def eventually(true: Callable[[], Any], what: str, seconds: float = 90) -> Any:
    """What it answers once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := true():
            return answer
        time.sleep(0.2)
    raise AssertionError(f"{what}: not after {seconds} s")

"""Three provisioned hosts and an image without a registry, for tests of jobs; gone when these tests are."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import LabUnderTest
from tfdeploy.lab import machine

TRAINER = "tfdeploy-test-trainer"
APPLETS = ("cat", "env", "id", "ls", "mkdir", "printf", "rm", "sh", "sleep", "stat", "touch", "true")


@pytest.fixture(scope="package")
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

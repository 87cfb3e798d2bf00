"""What a user gets from `pip install`: the wheel, in an empty environment, away from the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import PROJECT

PROBE = """
from tfdeploy import paths
print(paths.playbook("controller.yml").is_file(), (paths.roles() / "docker/tasks/main.yml").is_file(), paths.roles())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", out, PROJECT], check=True, capture_output=True
    )
    return next(out.glob("*.whl"))


def test_playbooks_and_roles_are_in_the_wheel_and_tests_are_not(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for directory in ("playbooks", "roles"):
        tracked = subprocess.check_output(["git", "ls-files", directory], cwd=PROJECT, text=True).splitlines()
        assert tracked
        assert {f"tfdeploy/{name}" for name in tracked} <= set(names)
    assert not [name for name in names if "molecule" in name or name.startswith("tests")]


def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shipped = next(environment.glob("lib/python*/site-packages")) / "tfdeploy"

    def run(*words: str) -> str:
        command = [str(environment / "bin" / words[0]), *words[1:]]
        roles = {"ANSIBLE_ROLES_PATH": str(shipped / "roles")}
        return subprocess.check_output(command, cwd=tmp_path, env=clean | roles, text=True)

    assert "Commands:" in run("tfdeploy", "--help")
    found = run("python", "-c", PROBE).split()
    assert found[:2] == ["True", "True"]
    assert found[2] == str(shipped / "roles")
    playbook = str(shipped / "playbooks/controller.yml")
    assert "playbook: " in run("ansible-playbook", "--syntax-check", "-i", "localhost,", playbook)

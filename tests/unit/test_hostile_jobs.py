"""The same hostile values, in what a job gives to scripts: sh takes them literally, or never sees them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launches import GENERATION, launch, on_port
from tests.unit.test_hostile_values import HOSTILE, quoted, refused_in
from tfdeploy import containers, host_scripts, spec, tf_config
from tfdeploy.errors import InputError
from tfdeploy.host_scripts import Site
from tfdeploy.launch import Launch
from tfdeploy.lock import Holder

DOCKER = """#!/bin/sh
# Stands in for docker: keeps the words, the environment and fd 3 of `create`.
[ "$1" = create ] || exit 0
printf '%s\\0' "$@" >words
env -0 >environment
cat <&3 >lines
"""
HOLDER = Holder("demo", GENERATION, "me", "now")


def as_job(line: str) -> spec.JobSpec | None:
    try:
        return spec.parse(f"image: a\n{line}\n", "job.yml")
    except InputError as error:
        refused_in("job.yml:2: ", error)
        return None


@pytest.fixture
def ran(tmp_path: Path, free_port: int) -> Any:
    """Runs a reservation; what docker was told, and whether anything was left that nobody asked for."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(DOCKER)
    (tmp_path / "bin" / "docker").chmod(0o755)
    (tmp_path / "cwd").mkdir()

    def run(made: Launch, secrets: dict[str, str] | None = None, **site: Any) -> tuple[list[str], dict[str, str], Path]:
        home = tmp_path / "home"
        where = Site(**{"name": "a", "home": str(home), "image_user": f"{os.getuid()}:{os.getgid()}"} | site)
        script = host_scripts.reserve(on_port(made, free_port), where, HOLDER, secrets or {})
        done = subprocess.run(
            ["sh", "-s"],
            input=script.encode(),
            capture_output=True,
            env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": "/nobody"},
            cwd=tmp_path / "cwd",
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        assert {path.name for path in (tmp_path / "cwd").iterdir()} <= {"words", "environment", "lines"}
        if made.plan.job.runtime == "process":
            return [], {}, home
        words = (tmp_path / "cwd" / "words").read_bytes().decode().split("\0")[:-1]
        lines = (tmp_path / "cwd" / "lines").read_bytes().decode().split("\n")[:-1]
        had = (tmp_path / "cwd" / "environment").read_bytes().decode().split("\0")[:-1]
        named = {word.removeprefix("--env=") for word in words if word.startswith("--env=")}
        exported = {key: value for key, value in (each.split("=", 1) for each in had) if key in named}
        return words, dict(line.split("=", 1) for line in lines) | exported, home

    return run


def given(job: spec.JobSpec, **more: Any) -> Launch | None:
    """None where a template is refused when it is rendered, with its place named."""
    made = launch(**spec.dump(job) | {"name": "demo", "tasks": {"worker": {"count": 1}}} | more)
    try:
        containers.create_words(made, made.plan.tasks[0], own="/")
    except InputError as error:
        refused_in("worker-0: ", error)
        return None
    return made


@pytest.mark.parametrize("value", HOSTILE)
def test_as_a_value_of_env(value: str, ran: Any) -> None:
    job = as_job(f"env: {{A: {quoted(value)}}}")
    if job and (made := given(job)):
        _, environment, _ = ran(made)
        assert environment["A"] == containers.environment(made, made.plan.tasks[0])["A"]


@pytest.mark.parametrize("value", HOSTILE)
def test_as_words_of_a_command_and_an_entrypoint(value: str, ran: Any) -> None:
    job = as_job(f"command: [{quoted(value)}]")
    if job and (made := given(job, entrypoint=["x", *(job.command or ())])):
        words, _, _ = ran(made)
        command = tf_config.command(made.plan, made.plan.tasks[0]) or ()
        assert words[words.index(made.image) + 1 :] == [*command, *command]


@pytest.mark.parametrize("value", [value for value in HOSTILE if "\0" not in value])
def test_as_a_secret(value: str, ran: Any) -> None:
    _, _, home = ran(launch(secrets=["A"]), {"A": value})
    assert (home / "jobs/demo/tasks/worker-0/secrets/A").read_bytes() == value.encode()


@pytest.mark.parametrize("value", HOSTILE)
def test_as_a_mount(value: str, ran: Any) -> None:
    job = as_job(f"mounts: [{quoted(f'/{value}:/{value}')}]")
    if job and (made := given(job)):
        words, _, _ = ran(made)
        assert [word for word in words if word.startswith("--mount=")][-1].count(value.replace('"', '""')) == 2


@pytest.mark.parametrize("value", HOSTILE)
def test_as_a_user(value: str, ran: Any) -> None:
    job = as_job(f"tasks: {{worker: {{user: {quoted(value)}}}}}")
    if job and (made := given(job, tasks=spec.dump(job)["tasks"])):
        script = host_scripts.reserve(made, Site("a"), HOLDER, {})
        done = subprocess.run(["sh", "-n"], input=script.encode(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("value", [value for value in HOSTILE if "\0" not in value])
def test_as_what_a_plain_process_is_told(value: str, ran: Any) -> None:
    literal = value.replace("{", "(").replace("}", ")")
    made = launch(runtime="process", command=["x", literal], env={"A": literal})
    _, _, home = ran(made, inherited={"B": value}, cwd=f"/{value}")
    told = json.loads((home / "jobs/demo/tasks/worker-0/spec.json").read_text())
    assert (told["argv"], told["env"]["A"], told["env"]["B"], told["cwd"]) == (
        ["x", literal],
        literal,
        value,
        f"/{value}",
    )


@pytest.mark.parametrize("value", [value for value in HOSTILE if "\0" not in value and "\n" not in value])
def test_as_whoever_holds_a_lock(value: str, tmp_path: Path) -> None:
    holder = Holder("demo", "g", value, "now")
    (tmp_path / "jobs" / "demo").mkdir(parents=True)
    script = host_scripts.beat("demo", str(tmp_path), holder)
    done = subprocess.run(["sh", "-s"], input=script.encode(), capture_output=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"")
    assert (tmp_path / "jobs/demo/watch").read_bytes().decode() == f"{holder.line()}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]


@pytest.mark.parametrize("value", HOSTILE)
def test_as_the_command_of_exec_every_word_stays_one(value: str) -> None:
    made = launch()
    words = host_scripts.exec_words(made, "/home", made.plan.tasks[0], ["x", value], tty=False)
    assert words[-2:] == ("x", value)

"""The scripts that hosts are given, run for real by `sh` in a directory of the test's own; docker has a stand-in."""

import io
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.unit.launches import GENERATION, launch, on_port
from tfdeploy import containers, facts, host_scripts, lock, truth
from tfdeploy.host_scripts import Site, records
from tfdeploy.launch import Launch
from tfdeploy.lock import Holder
from tfdeploy.outcome import Outcome
from tfdeploy.plan import Wishes
from tfdeploy.truth import State

DOCKER = """#!/bin/sh
# Stands in for docker: keeps every call's words, environment and fd 3 under $CALLS, and answers from there.
call=$CALLS/$(printf %03d $(ls "$CALLS" | grep -c '^[0-9]*$'))
mkdir "$call"
printf '%s\\0' "$@" >"$call/words"
env -0 >"$call/environment"
[ "$1" != create ] || cat <&3 >"$call/lines"
[ ! -e "$CALLS/fails-$1" ] || { cat "$CALLS/fails-$1" >&2; exit 1; }
[ ! -e "$CALLS/says-$1" ] || cat "$CALLS/says-$1"
"""
ME = f"{os.getuid()}:{os.getgid()}"
HOLDER = Holder("demo", GENERATION, "me@here (pid 1)", "2026-11-18T16:00:00Z")
OTHER = Holder("other", "g0", "you@there (pid 2)", "2026-11-18T15:59:00Z")
OUTCOME = Outcome("failed", """worker-0: it's "over", $HOME `id` \\\\n""", 1.0, "worker-0", "a", 1)


@dataclass(frozen=True)
class Call:
    words: tuple[str, ...]
    environment: dict[str, str]
    lines: str

    @property
    def task_environment(self) -> dict[str, str]:
        """What the container would get: lines of a file, and names whose values docker itself has."""
        read = dict(line.split("=", 1) for line in self.lines.split("\n")[:-1])
        named = [word.removeprefix("--env=") for word in self.words if word.startswith("--env=")]
        return read | {name: self.environment[name] for name in named}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def records(self) -> dict[str, str]:
        return dict(records(self.out))


@dataclass(frozen=True)
class Machine:
    """One host: its home, and a docker that only notes what it is told."""

    home: Path
    calls_at: Path
    path: str

    def run(self, script: str, **options: Any) -> Answer:
        done = subprocess.run(
            ["sh", "-s"],
            input=script.encode(),
            capture_output=True,
            env={"PATH": self.path, "CALLS": str(self.calls_at)},
            timeout=60,
            **options,
        )
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def says(self, command: str, text: str | bytes) -> None:
        (self.calls_at / f"says-{command}").write_bytes(text if isinstance(text, bytes) else text.encode())

    def fails(self, command: str, text: str) -> None:
        (self.calls_at / f"fails-{command}").write_text(f"{text}\n")

    @property
    def calls(self) -> list[Call]:
        return [
            Call(
                tuple((call / "words").read_bytes().decode().split("\0")[:-1]),
                dict(each.split("=", 1) for each in (call / "environment").read_bytes().decode().split("\0")[:-1]),
                (call / "lines").read_bytes().decode() if (call / "lines").exists() else "",
            )
            for call in sorted(each for each in self.calls_at.iterdir() if each.is_dir())
        ]

    def called(self, command: str) -> list[Call]:
        return [call for call in self.calls if call.words[0] == command]

    def site(self, **values: Any) -> Site:
        return Site(**{"name": "a", "home": str(self.home), "image_user": ME} | values)

    @property
    def own(self) -> Path:
        return self.home / "jobs" / "demo"

    def reserve(self, made: Launch, secrets: dict[str, str] | None = None, **site: Any) -> Answer:
        return self.run(host_scripts.reserve(made, self.site(**site), HOLDER, secrets or {}))

    def tree(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.home)): path.read_text() if path.is_file() else ""
            for path in self.home.rglob("*")
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    home, calls, commands = (tmp_path / name for name in ("its home", "calls", "bin"))
    for directory in (home, calls, commands):
        directory.mkdir()
    (commands / "docker").write_text(DOCKER)
    (commands / "docker").chmod(0o755)
    return Machine(home, calls, f"{commands}:{os.environ['PATH']}")


@pytest.fixture
def made(free_port: int) -> Launch:
    return on_port(launch(), free_port)


def old(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


def test_the_library_is_plain_sh() -> None:
    subprocess.run(["sh", "-n", PROJECT / "tfdeploy" / "scripts" / "host.sh"], check=True)


# --- reserve ---


def test_reserve_makes_all_and_starts_nothing(machine: Machine, made: Launch) -> None:
    answer = machine.reserve(made)
    assert (answer.code, list(answer.records), answer.err) == (0, ["reserved"], "")
    assert [call.words[0] for call in machine.calls] == ["create"]
    assert machine.called("create")[0].words == containers.create_words(made, made.plan.tasks[0], own=str(machine.own))
    assert Launch.from_json((machine.own / "launch.json").read_text()) == made
    assert (machine.own / "generation").read_text() == f"{GENERATION}\n"
    assert (machine.home / "lock").read_text() == f"{HOLDER.line()}\n"


def test_what_is_reserved_is_read_back_by_the_facts(machine: Machine, free_port: int) -> None:
    made = on_port(launch(tasks={"worker": {"count": 1, "cpus": 1.5, "memory": "1GiB", "gpus": 2}}), free_port)
    machine.reserve(made)
    script = f"home='{machine.home}'\nimage=\n" + (PROJECT / "tfdeploy/scripts/facts.sh").read_text()
    host = facts.parse(machine.run(script).out, before=0, after=0)
    assert host.jobs == (facts.JobTrace("demo", GENERATION, over=False),)
    assert host.reserved == (facts.Reservation("demo", "worker-0", free_port, 1, 1.5, 1 << 30, ("0", "1")),)


def test_a_job_that_is_over_is_known_but_holds_nothing(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.run(host_scripts.finish("demo", str(machine.home), OUTCOME.to_json()))
    script = f"home='{machine.home}'\nimage=\n" + (PROJECT / "tfdeploy/scripts/facts.sh").read_text()
    host = facts.parse(machine.run(script).out, before=0, after=0)
    assert (host.jobs, host.reserved) == ((facts.JobTrace("demo", GENERATION, over=True),), ())


VALUES = {
    "SINGLE": "it's",
    "DOUBLE": 'a "b" c',
    "LINES": "one\ntwo\n\nfour\n",
    "RETURN": "a\r",
    "DOLLARS": "$HOME $(id) `id` ${x}",
    "BACKSLASHES": "\\n \\ \\\\",
    "EMPTY": "",
    "SPACES": "  a  ",
    "HASH": "# a",
    "EQUALS": "a=b=c",
    "UNICODE": "grüße 🚀 \u2028",
    "ESCAPE": "\x1b[31m\x01",
    "ITSELF": GENERATION,
    "ITSELF_IN_LINES": f"a\n{GENERATION}\ntouch executed\n",
    "LONG": "x" * 100_000,
    "LONG_LINES": "y\n" * 50_000,
    "DOCUMENT": "<<'END'\nEND\n",
    "home": "/elsewhere",
    "IFS": "/",
}


def test_environment_values_arrive_exactly(machine: Machine, free_port: int) -> None:
    made = on_port(launch(env=VALUES), free_port)
    answer = machine.reserve(made)
    assert (answer.code, answer.err) == (0, "")
    given = machine.called("create")[0].task_environment
    assert {key: given[key] for key in VALUES} == VALUES
    assert given == containers.environment(made, made.plan.tasks[0])


def test_no_value_of_the_environment_stands_in_the_words(machine: Machine, free_port: int) -> None:
    machine.reserve(on_port(launch(env={"A": "needle", "B": "needle\n"}), free_port))
    assert not [word for word in machine.called("create")[0].words if "needle" in word]


def test_a_long_tf_config_arrives_whole(machine: Machine, free_port: int) -> None:
    names = [f"host-{number}" for number in range(1500)]
    made = on_port(launch(*names), free_port)
    machine.reserve(made, name="host-7")
    config = machine.called("create")[0].task_environment["TF_CONFIG"]
    assert len(config) < 100_000
    assert len(json.loads(config)["cluster"]["worker"]) == 1500


SECRETS = {
    "PLAIN": "hunter2",
    "QUOTES": 'it\'s "one" $HOME `id` \\',
    "LINES": "-----BEGIN-----\n%s\\n\n-----END-----\n",
    "UNICODE": "schlüssel 🔑",
    "EMPTY": "",
    "DASH": "-n",
    "LONG": "z" * 100_000,
}


def test_secrets_are_files_with_exact_bytes_that_only_the_task_may_read(machine: Machine, free_port: int) -> None:
    made = on_port(launch(secrets=list(SECRETS)), free_port)
    answer = machine.reserve(made, SECRETS)
    assert (answer.code, answer.err) == (0, "")
    directory = machine.own / "tasks" / "worker-0" / "secrets"
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        name: value.encode() for name, value in SECRETS.items()
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o400}
    assert not stat.S_IMODE(directory.stat().st_mode) & 0o077


def test_docker_never_hears_a_secret(machine: Machine, free_port: int) -> None:
    machine.reserve(on_port(launch(secrets=["TOKEN"]), free_port), {"TOKEN": "needle"})
    (call,) = machine.called("create")
    assert not [text for text in (*call.words, *call.environment.values(), call.lines) if "needle" in text]
    assert call.task_environment["TOKEN_FILE"] == "/run/secrets/TOKEN"
    assert "needle" not in (machine.own / "launch.json").read_text()


def test_reserving_again_is_fine(machine: Machine, free_port: int) -> None:
    made = on_port(launch(secrets=["TOKEN"]), free_port)
    assert machine.reserve(made, {"TOKEN": "a"}).code == 0
    before = machine.tree()
    assert machine.reserve(made, {"TOKEN": "a"}).code == 0
    assert machine.tree() == before


def test_the_hosts_file_is_the_hosts_own_and_then_the_jobs(machine: Machine, free_port: int) -> None:
    made = launch("a", "b", wishes=Wishes(ps=1, workers=1))
    named = tuple(
        replace(task, port=free_port, address="localhost" if task.host == "b" else task.address)
        for task in made.plan.tasks
    )
    machine.reserve(replace(made, plan=replace(made.plan, tasks=named)))
    own, _, ours = (machine.own / "hosts").read_text().partition("# tfdeploy: demo\n")
    assert own == Path("/etc/hosts").read_text()
    first, second = ours.splitlines()
    assert first == "10.0.0.1 ps-0.demo"
    assert second in ("127.0.0.1 worker-0.demo", "::1 worker-0.demo")


def test_a_peer_that_the_host_cannot_look_up_is_a_failure_that_names_it(machine: Machine, made: Launch) -> None:
    lost = tuple(replace(task, address="no-such-machine.invalid") for task in made.plan.tasks)
    answer = machine.reserve(replace(made, plan=replace(made.plan, tasks=lost)))
    assert answer.code != 0
    assert "failed" in answer.records
    assert "no-such-machine.invalid" in answer.err


def test_directories_are_open_to_pass_through_and_no_more(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    task = machine.own / "tasks" / "worker-0"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (machine.own, machine.own / "tasks", task)}
    assert set(modes.values()) == {0o711}
    assert stat.S_IMODE((machine.own / "launch.json").stat().st_mode) == 0o600


def test_the_shared_directory_is_made_and_remembered(machine: Machine, free_port: int, tmp_path: Path) -> None:
    (tmp_path / "all of us").mkdir()
    made = on_port(launch(shared=str(tmp_path / "all of us")), free_port)
    assert machine.reserve(made).code == 0
    assert (tmp_path / "all of us" / "demo").is_dir()
    assert (machine.own / "shared").read_text() == f"{tmp_path}/all of us/demo\n"


def test_no_shared_directory_is_a_failure_that_names_it(machine: Machine, free_port: int, tmp_path: Path) -> None:
    made = on_port(launch(shared=str(tmp_path / "nowhere")), free_port)
    answer = machine.reserve(made)
    assert answer.code != 0
    assert answer.records["failed"] == f"shared: {tmp_path}/nowhere"
    assert answer.err == f"there is no directory {tmp_path}/nowhere\n"


def test_a_docker_that_refuses_is_a_failure_at_its_task(machine: Machine, made: Launch) -> None:
    machine.fails("create", "Error response from daemon: no space left on device")
    answer = machine.reserve(made)
    assert answer.code != 0
    assert answer.records == {"failed": "worker-0"}
    assert "no space left on device" in answer.err
    assert not (machine.own / "reserved").exists()


# --- whose files they are ---


def passwd(*lines: str) -> bytes:
    """/etc/passwd as `docker cp` sends it."""
    text = "".join(f"{line}\n" for line in lines).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("passwd")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("user", "owner"),
    [("", (0, 0)), ("1234", (1234, None)), ("1234:99", (1234, 99)), ("me", (77, 88)), ("me:staff", (77, 88))],
)
def test_outputs_and_secrets_belong_to_the_images_user(
    machine: Machine, free_port: int, user: str, owner: tuple[int, int | None]
) -> None:
    machine.says("cp", passwd("root:x:0:0::/:/bin/sh", "me:x:77:88::/:/bin/sh"))
    assert machine.reserve(on_port(launch(secrets=["A"]), free_port), {"A": "b"}, image_user=user).code == 0
    task = machine.own / "tasks" / "worker-0"
    for path in (task / "outputs", task / "outputs" / "0", task / "secrets", task / "secrets" / "A"):
        assert path.stat().st_uid == owner[0]
        assert owner[1] in (None, path.stat().st_gid)


def test_a_user_that_the_image_does_not_have_is_a_failure(machine: Machine, made: Launch) -> None:
    """Else the task could neither write its outputs nor read its secrets, and nobody would know why."""
    machine.says("cp", passwd("root:x:0:0::/:/bin/sh"))
    answer = machine.reserve(made, image_user="nobody-knows")
    assert answer.code != 0
    assert answer.records["failed"] == "worker-0"
    assert "nobody-knows" in answer.err


# --- the lock ---


def test_a_lock_that_somebody_else_holds_is_respected(machine: Machine, made: Launch) -> None:
    (machine.home / "lock").write_text(f"{OTHER.line()}\n")
    answer = machine.reserve(made)
    assert answer.code == 75
    assert Holder.parse(answer.records["held"]) == OTHER
    assert machine.tree() == {"lock": f"{OTHER.line()}\n"}
    assert machine.calls == []


def test_a_lock_without_a_sign_of_life_may_be_taken(machine: Machine, made: Launch) -> None:
    (machine.home / "lock").write_text(f"{OTHER.line()}\n")
    old(machine.home / "lock", lock.LOCK_STALE_AFTER + 5)
    assert machine.reserve(made).code == 0
    assert (machine.home / "lock").read_text() == f"{HOLDER.line()}\n"


def test_ones_own_lock_is_taken_again(machine: Machine, made: Launch) -> None:
    (machine.home / "lock").write_text(f"{HOLDER.line()}\n")
    assert machine.reserve(made).code == 0


def test_a_home_that_is_not_there_yet_is_made(machine: Machine, made: Launch) -> None:
    machine.home.rmdir()
    assert machine.reserve(made).code == 0


def test_of_many_at_once_exactly_one_gets_the_lock(machine: Machine, made: Launch) -> None:
    holders = [replace(HOLDER, generation=f"g{number}") for number in range(8)]
    scripts = [
        host_scripts.reserve(replace(made, generation=each.generation), machine.site(), each, {}) for each in holders
    ]
    with ThreadPoolExecutor(len(scripts)) as pool:
        answers = list(pool.map(machine.run, scripts))
    assert sorted(answer.code for answer in answers) == [0] + [75] * 7
    winner = next(holder for holder, answer in zip(holders, answers, strict=True) if answer.code == 0)
    told = {Holder.parse(answer.records["held"]) for answer in answers if answer.code}
    assert told == {winner}
    assert (machine.own / "generation").read_text() == f"{winner.generation}\n"


def test_a_sign_of_life_keeps_ones_own_lock_and_nobody_elses(machine: Machine) -> None:
    for holder, fresh in ((HOLDER, True), (OTHER, False)):
        (machine.home / "lock").write_text(f"{holder.line()}\n")
        old(machine.home / "lock", 50)
        machine.run(host_scripts.keep_lock(str(machine.home), HOLDER))
        assert (time.time() - (machine.home / "lock").stat().st_mtime < 40) is fresh


def test_a_sign_of_life_makes_no_lock(machine: Machine) -> None:
    machine.run(host_scripts.keep_lock(str(machine.home), HOLDER))
    assert machine.tree() == {}


def test_who_holds_what_is_told_and_taken_away(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.run(host_scripts.beat("demo", str(machine.home), OTHER))
    said = records(machine.run(host_scripts.lock_status(str(machine.home))).out)
    assert [(word, Holder.parse(body.partition("\n")[2])) for word, body in said] == [
        ("lock", HOLDER),
        ("watch", OTHER),
    ]
    released = machine.run(host_scripts.lock_release(str(machine.home)))
    assert [word for word, _ in records(released.out)] == ["lock", "watch"]
    assert not (machine.home / "lock").exists()
    assert not (machine.own / "watch").exists()


def test_nothing_held_is_an_empty_answer(machine: Machine) -> None:
    assert records(machine.run(host_scripts.lock_status(str(machine.home))).out) == [("lock", "")]


# --- what was planned is looked at again ---


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port that somebody listens on."""
    address = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    with socket.socket(request.param) as listening:
        try:
            listening.bind((address, 0))
        except OSError:
            pytest.skip("this machine has no such addresses")
        listening.listen()
        yield int(listening.getsockname()[1])


def test_a_port_that_was_taken_meanwhile_is_told_before_anything_is_made(machine: Machine, listener: int) -> None:
    answer = machine.reserve(on_port(launch(), listener))
    assert (answer.code, answer.records) == (76, {"moved": f"port {listener} is taken by somebody else"})
    assert list(machine.tree()) == ["lock"]
    assert machine.calls == []


def test_a_port_is_looked_at_again_at_the_start(machine: Machine, listener: int) -> None:
    answer = machine.run(host_scripts.start(on_port(launch(), listener), machine.site(), HOLDER))
    assert (answer.code, list(answer.records)) == (76, ["moved"])
    assert machine.calls == []


def test_a_port_that_somebody_only_connected_from_is_free(machine: Machine) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert machine.reserve(on_port(launch(), client.getsockname()[1])).code == 0


def another_job(machine: Machine, name: str = "other", generation: str = "g0") -> None:
    directory = machine.home / "jobs" / name
    directory.mkdir(parents=True)
    (directory / "generation").write_text(f"{generation}\n")
    (directory / "reserved").write_text("worker-0 2222 1 0 0 -\n")


def test_another_job_that_came_is_told(machine: Machine, made: Launch) -> None:
    another_job(machine)
    answer = machine.reserve(made)
    assert (answer.code, answer.records) == (76, {"moved": "another job came or went"})
    assert not machine.own.exists()


def test_another_job_that_went_is_told(machine: Machine, made: Launch) -> None:
    assert machine.reserve(made, others=(("other", "g0"),)).code == 76


def test_another_launch_of_another_job_is_told(machine: Machine, made: Launch) -> None:
    another_job(machine, generation="g1")
    assert machine.reserve(made, others=(("other", "g0"),)).code == 76


def test_jobs_that_were_there_already_are_no_surprise(machine: Machine, made: Launch) -> None:
    known = [("a-b", "g2"), ("a", "g1"), ("a0", "g3"), ("other", "g0")]
    for name, generation in known:
        another_job(machine, name, generation)
    assert machine.reserve(made, others=tuple(known)).code == 0


def test_the_same_job_launched_by_somebody_else_exists(machine: Machine, made: Launch) -> None:
    machine.own.mkdir(parents=True)
    (machine.own / "generation").write_text("g-theirs\n")
    (machine.own / "reserved").write_text("")
    answer = machine.reserve(made)
    assert (answer.code, answer.records) == (77, {"exists": "g-theirs"})
    assert machine.calls == []
    machine.run(host_scripts.undo(made, machine.site(), HOLDER))
    theirs = {"jobs": "", "jobs/demo": "", "jobs/demo/generation": "g-theirs\n", "jobs/demo/reserved": ""}
    assert machine.tree() == theirs


def test_a_launch_that_was_broken_off_before_it_held_anything_is_cleared_away(machine: Machine, made: Launch) -> None:
    machine.own.mkdir(parents=True)
    (machine.own / "generation").write_text("g-broken-off\n")
    (machine.own / "stray").write_text("")
    assert machine.reserve(made).code == 0
    assert not (machine.own / "stray").exists()
    assert (machine.own / "generation").read_text() == f"{made.generation}\n"


# --- undo ---


def test_undo_leaves_the_host_as_it_was(machine: Machine, free_port: int, tmp_path: Path) -> None:
    another_job(machine)
    before = machine.tree()
    (tmp_path / "shared").mkdir()
    made = on_port(
        launch(secrets=["A"], shared=str(tmp_path / "shared"), outputs=[{"from": "/x", "to": "/y"}]), free_port
    )
    assert machine.reserve(made, {"A": "b"}, others=(("other", "g0"),)).code == 0
    assert machine.tree() != before
    answer = machine.run(host_scripts.undo(made, machine.site(), HOLDER))
    assert (answer.code, answer.err) == (0, "")
    assert machine.tree() == before


@pytest.mark.parametrize("command", ["create", "cp"])
def test_undo_after_half_a_reservation_leaves_the_host_as_it_was(machine: Machine, made: Launch, command: str) -> None:
    machine.fails(command, "no")
    assert machine.reserve(made, image_user="named").code != 0
    machine.run(host_scripts.undo(made, machine.site(), HOLDER))
    assert machine.tree() == {}


def test_undo_removes_the_containers_of_this_launch(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.says("ps", "c1\nc2\n")
    machine.run(host_scripts.undo(made, machine.site(), HOLDER))
    asked = machine.called("ps")[-1].words
    assert {"label=tfdeploy.job=demo", f"label=tfdeploy.generation={GENERATION}"} <= set(asked)
    assert machine.called("rm")[-1].words == ("rm", "--force", "--volumes", "c1", "c2")


def test_undo_twice_and_undo_of_nothing_are_fine(machine: Machine, made: Launch) -> None:
    for _ in range(2):
        answer = machine.run(host_scripts.undo(made, machine.site(), HOLDER))
        assert (answer.code, answer.err) == (0, "")
    assert machine.tree() == {}


@pytest.mark.parametrize("command", ["ps", "rm"])
def test_an_undo_that_docker_refused_does_not_call_itself_done(machine: Machine, made: Launch, command: str) -> None:
    machine.reserve(made)
    machine.says("ps", "c1\n")
    machine.fails(command, "Cannot connect to the Docker daemon")
    assert machine.run(host_scripts.undo(made, machine.site(), HOLDER)).code != 0
    assert not (machine.home / "lock").exists()


def test_undo_gives_back_only_ones_own_lock(machine: Machine, made: Launch) -> None:
    (machine.home / "lock").write_text(f"{OTHER.line()}\n")
    machine.run(host_scripts.undo(made, machine.site(), HOLDER))
    assert machine.tree() == {"lock": f"{OTHER.line()}\n"}


# --- start, look, stop ---


def inspected(task: str, generation: str = GENERATION, **state: Any) -> str:
    said = {"Status": "running", "ExitCode": 0, "StartedAt": "2026-11-18T16:00:00.5Z"} | state
    return json.dumps({"task": task, "generation": generation, "state": said, "restarts": 0}) + "\n"


def test_start_starts_all_says_how_they_are_and_gives_the_lock_back(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.says("ps", "c1\n")
    machine.says("inspect", inspected("worker-0"))
    answer = machine.run(host_scripts.start(made, machine.site(), HOLDER))
    assert (answer.code, answer.err) == (0, "")
    assert machine.called("start")[0].words == ("start", "tfdeploy-demo-worker-0")
    view = truth.host_view(answer.out, GENERATION)
    assert view.states["worker-0"]["state"] is State.RUNNING
    assert not (machine.home / "lock").exists()


def test_all_tasks_of_a_host_start_with_one_word(machine: Machine, free_port: int) -> None:
    made = on_port(launch("a", wishes=Wishes(ps=1, workers=2)), free_port)
    machine.run(host_scripts.start(made, machine.site(), HOLDER))
    assert machine.called("start")[0].words[1:] == tuple(containers.name(made, task) for task in made.plan.tasks)


def test_a_start_that_failed_names_the_task_and_keeps_the_lock_for_the_undo(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.fails("start", "Error response from daemon: no such device")
    answer = machine.run(host_scripts.start(made, machine.site(), HOLDER))
    assert answer.code != 0
    assert answer.records == {"failed": "worker-0"}
    assert (machine.home / "lock").exists()


def test_a_look_tells_the_whole_job(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.run(host_scripts.beat("demo", str(machine.home), OTHER))
    machine.says("ps", "c1\n")
    machine.says("inspect", inspected("worker-0", Status="exited", ExitCode=3) + inspected("worker-0", "gone"))
    view = truth.host_view(machine.run(host_scripts.look("demo", str(machine.home))).out)
    assert (view.launch, view.watcher, view.supervised, view.outcome) == (made, OTHER, True, None)
    assert (view.states["worker-0"]["state"], view.states["worker-0"]["exit_code"]) == (State.FAILED, 3)
    assert view.now > made.at


def test_a_look_at_a_job_that_the_host_does_not_know(machine: Machine) -> None:
    view = truth.host_view(machine.run(host_scripts.look("demo", str(machine.home))).out)
    assert (view.launch, view.watcher, view.outcome, view.states, view.broken) == (None, None, None, {}, "")


def test_an_engine_that_does_not_answer_is_said(machine: Machine) -> None:
    machine.fails("ps", "Cannot connect to the Docker daemon")
    view = truth.host_view(machine.run(host_scripts.look("demo", str(machine.home))).out)
    assert view.broken == "the Docker engine does not answer"


def test_usage_is_measured_twice(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    answer = machine.run(host_scripts.look("demo", str(machine.home), usage=True))
    assert [word for word, _ in records(answer.out)].count("usage") == 2
    truth.host_view(answer.out)


def test_what_we_stopped_has_not_failed(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.says("ps", "c1\n")
    machine.says("inspect", inspected("worker-0", Status="exited", ExitCode=143))
    answer = machine.run(host_scripts.stop("demo", str(machine.home), ["worker-0"], 7))
    assert machine.called("stop")[0].words == ("stop", "--time", "7", "c1")
    assert truth.host_view(answer.out, GENERATION).states["worker-0"]["state"] is State.STOPPED


@pytest.mark.parametrize("tasks", [[], ["worker-0"], ["worker-0", "worker-1", "ps-0"]])
def test_nothing_to_stop_is_fine(machine: Machine, tasks: list[str]) -> None:
    answer = machine.run(host_scripts.stop("demo", str(machine.home), tasks, 7))
    assert (answer.code, answer.err, machine.called("stop")) == (0, "", [])


def test_jobs_are_listed_by_name(machine: Machine, made: Launch) -> None:
    assert machine.run(host_scripts.job_names(str(machine.home))).out == ""
    machine.reserve(made)
    another_job(machine)
    assert machine.run(host_scripts.job_names(str(machine.home))).out == "demo\n"


def test_changes_end_when_the_controller_goes(machine: Machine, made: Launch) -> None:
    machine.says("events", "start\ndie\n")
    answer = machine.run(host_scripts.changes(made, str(machine.home)))
    assert answer.out in ("start\ndie\n", "start\n", "")
    process = launch(runtime="process", command=["true"])
    (machine.home / "jobs" / "demo" / "tasks").mkdir(parents=True)
    assert machine.run(host_scripts.changes(process, str(machine.home))).out in ("changed\n", "")


def test_logs_ask_for_what_is_wished(machine: Machine, made: Launch) -> None:
    machine.says("logs", "2026-11-18T16:00:00Z hello\n")
    since = "2026-11-18T15:00:00Z"
    script = host_scripts.logs(made, str(machine.home), made.plan.tasks[0], follow=False, tail=5, since=since)
    assert machine.run(script).out == "2026-11-18T16:00:00Z hello\n"
    words = ("logs", "--timestamps", "--tail", "5", "--since", since, "tfdeploy-demo-worker-0")
    assert machine.calls[0].words == words


# --- the end ---


def test_how_it_ended_is_kept_exactly_and_the_watch_is_over(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.run(host_scripts.beat("demo", str(machine.home), HOLDER))
    assert machine.run(host_scripts.finish("demo", str(machine.home), OUTCOME.to_json())).code == 0
    view = truth.host_view(machine.run(host_scripts.look("demo", str(machine.home))).out)
    assert (view.outcome, view.watcher) == (OUTCOME, None)


def test_the_end_of_a_job_that_is_gone_is_kept_nowhere(machine: Machine) -> None:
    assert machine.run(host_scripts.finish("demo", str(machine.home), OUTCOME.to_json())).code == 0
    assert machine.tree() == {}


def test_one_watches_and_the_second_is_told_who(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    beat = [host_scripts.beat("demo", str(machine.home), each) for each in (HOLDER, OTHER)]
    assert machine.run(beat[0]).records == {}
    assert machine.run(beat[0]).records == {}
    assert Holder.parse(machine.run(beat[1]).records["held"]) == HOLDER
    old(machine.own / "watch", lock.WATCH_STALE_AFTER + 5)
    assert machine.run(beat[1]).records == {}
    assert Holder.parse(machine.run(beat[0]).records["held"]) == OTHER


def test_of_many_watchers_at_once_exactly_one_wins(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    holders = [replace(HOLDER, who=f"watcher {number}") for number in range(8)]
    scripts = [host_scripts.beat("demo", str(machine.home), each) for each in holders]
    with ThreadPoolExecutor(len(scripts)) as pool:
        answers = list(pool.map(machine.run, scripts))
    assert sum("held" in answer.records for answer in answers) == 7
    assert {answer.code for answer in answers} == {0}


def test_nobody_watches_a_job_that_is_gone(machine: Machine) -> None:
    assert machine.run(host_scripts.beat("demo", str(machine.home), HOLDER)) == Answer(0, "", "")
    assert machine.tree() == {}


def test_a_watch_is_given_back_only_by_its_holder(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.run(host_scripts.beat("demo", str(machine.home), HOLDER))
    machine.run(host_scripts.release_watch("demo", str(machine.home), OTHER))
    assert (machine.own / "watch").exists()
    machine.run(host_scripts.release_watch("demo", str(machine.home), HOLDER))
    assert not (machine.own / "watch").exists()


def test_outputs_are_surveyed_until_they_are_collected(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    survey = host_scripts.survey("demo", str(machine.home))
    assert machine.run(survey).out == ""
    (machine.own / "tasks/worker-0/outputs/0/model").write_text("x" * 5000)
    ((word, body),) = records(machine.run(survey).out)
    task, size = body.split("\n")
    assert (word, task) == ("outputs", "worker-0")
    assert int(size) >= 5
    (machine.own / "collected").touch()
    assert machine.run(survey).out == ""


def test_removing_a_job_leaves_nothing_and_says_what_is_kept(machine: Machine, free_port: int, tmp_path: Path) -> None:
    another_job(machine)
    before = machine.tree()
    (tmp_path / "shared").mkdir()
    made = on_port(launch(shared=str(tmp_path / "shared")), free_port)
    machine.reserve(made, others=(("other", "g0"),))
    machine.says("ps", "c1\nc2\n")
    machine.says("inspect", "image sha256:1 trainer:1\nimage sha256:1 trainer:1\n")
    answer = machine.run(host_scripts.remove("demo", str(machine.home), 9, OUTCOME.to_json(), discard=True))
    assert (answer.code, answer.err) == (0, "")
    assert "removed" in answer.records
    assert answer.records["kept"].splitlines() == ["image sha256:1 trainer:1", f"shared {tmp_path}/shared/demo"]
    assert machine.called("stop")[0].words == ("stop", "--time", "9", "c1", "c2")
    assert machine.called("rm")[0].words == ("rm", "--force", "--volumes", "c1", "c2")
    assert machine.tree() == before


def test_removing_what_is_gone_already_is_fine(machine: Machine) -> None:
    answer = machine.run(host_scripts.remove("demo", str(machine.home), 9, OUTCOME.to_json(), discard=True))
    assert (answer.code, answer.err, answer.records) == (0, "", {"kept": "", "removed": ""})
    assert machine.tree() == {}


def test_a_removal_that_docker_refused_says_at_which_step_and_can_be_run_again(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.says("ps", "c1\n")
    machine.fails("rm", "device busy")
    script = host_scripts.remove("demo", str(machine.home), 9, OUTCOME.to_json(), discard=True)
    answer = machine.run(script)
    assert answer.code != 0
    assert (answer.records["failed"], "removed" in answer.records) == ("removing its containers", False)
    assert (machine.own / "outcome").exists()
    (machine.calls_at / "fails-rm").unlink()
    assert "removed" in machine.run(script).records
    assert machine.tree() == {}


def test_an_outcome_that_is_there_already_stays(machine: Machine, made: Launch) -> None:
    machine.reserve(made)
    machine.run(host_scripts.finish("demo", str(machine.home), OUTCOME.to_json()))
    machine.fails("ps", "no engine")
    later = replace(OUTCOME, state="stopped").to_json()
    assert machine.run(host_scripts.remove("demo", str(machine.home), 9, later, discard=True)).code != 0
    assert Outcome.from_json((machine.own / "outcome").read_text()) == OUTCOME


# --- the line ---


def test_who_came_first_stands_first(machine: Machine) -> None:
    tickets = ["0000000002.000000-b", "0000000001.000000-a"]
    for ticket in tickets:
        answer = machine.run(host_scripts.queue(str(machine.home), "demo", ticket))
    assert answer.records["queue"].split() == sorted(tickets)
    machine.run(host_scripts.leave_queue(str(machine.home), "demo", tickets[1]))
    assert machine.run(host_scripts.queue(str(machine.home), "demo", tickets[0])).records["queue"] == tickets[0]
    machine.run(host_scripts.leave_queue(str(machine.home), "demo", tickets[0]))
    assert machine.tree() == {}


def test_who_gives_no_sign_of_life_loses_the_place(machine: Machine) -> None:
    machine.run(host_scripts.queue(str(machine.home), "demo", "1-gone"))
    old(machine.home / "queue" / "1-gone", lock.WATCH_STALE_AFTER + 5)
    assert machine.run(host_scripts.queue(str(machine.home), "demo", "2-here")).records["queue"] == "2-here"


# --- plain processes, and users who are not root ---


def ended(machine: Machine, task: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        view = truth.host_view(machine.run(host_scripts.look("demo", str(machine.home))).out)
        if task in view.states and view.states[task]["state"].over:
            return dict(view.states[task])
        time.sleep(0.05)
    raise AssertionError("it did not end")


@pytest.mark.skipif(Path("/run/systemd/system").exists() and os.getuid() == 0, reason="it would be a systemd unit here")
def test_a_plain_process_is_reserved_started_seen_and_removed(machine: Machine, free_port: int) -> None:
    script = 'cat "$TOKEN_FILE" - >"$TFDEPLOY_OUTPUTS/seen"; printf %s "$ODD" >>"$TFDEPLOY_OUTPUTS/seen"; exit 3'
    odd = "it's $HOME\n`id`"
    made = launch(runtime="process", command=["sh", "-c", script], env={"ODD": odd}, secrets=["TOKEN"])
    made = on_port(made, free_port)
    local = {"python": sys.executable, "inherited": {"PATH": os.environ["PATH"]}, "cwd": "/"}
    assert machine.reserve(made, {"TOKEN": "s3"}, **local).code == 0
    answer = machine.run(host_scripts.start(made, machine.site(**local), HOLDER))
    assert (answer.code, answer.err) == (0, "")
    assert ended(machine, "worker-0")["exit_code"] == 3
    assert (machine.own / "tasks/worker-0/outputs/0/seen").read_text() == f"s3{odd}"
    stopped = machine.run(host_scripts.stop("demo", str(machine.home), ["worker-0"], 5))
    assert (stopped.code, stopped.err) == (0, "")
    answer = machine.run(host_scripts.remove("demo", str(machine.home), 5, OUTCOME.to_json(), discard=True))
    assert "removed" in answer.records
    assert machine.tree() == {}


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Machine]:
    """A machine for somebody who is not root: all may enter it, and its docker lets nobody ask."""
    directory = Path(tempfile.mkdtemp(prefix="tfdeploy-unit-", dir="/var/tmp"))
    directory.chmod(0o755)
    for name in ("home", "bin"):
        (directory / name).mkdir()
    (directory / "bin" / "docker").write_text(
        "#!/bin/sh\n# Stands in for docker.\necho permission denied >&2\nexit 1\n"
    )
    (directory / "bin" / "docker").chmod(0o755)
    os.chown(directory / "home", 65534, 65534)
    yield Machine(directory / "home", tmp_path, f"{directory}/bin:/usr/bin:/bin")
    shutil.rmtree(directory)


@pytest.mark.skipif(os.getuid() != 0, reason="whoever runs this is unprivileged already")
def test_plain_processes_with_secrets_need_neither_privilege_nor_docker(foreign: Machine, free_port: int) -> None:
    """With --local everything is done as the user, who may not override permissions."""
    made = on_port(launch(runtime="process", command=["true"], secrets=["A", "B"]), free_port)
    site, home = foreign.site(inherited={}), str(foreign.home)
    as_nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    scripts = [
        *[host_scripts.reserve(made, site, HOLDER, {"A": "1", "B": "2"})] * 2,
        host_scripts.stop("demo", home, ["worker-0"], 1),
        host_scripts.look("demo", home),
        host_scripts.remove("demo", home, 1, OUTCOME.to_json(), discard=True),
        host_scripts.reserve(made, site, HOLDER, {"A": "1", "B": "2"}),
        host_scripts.undo(made, site, HOLDER),
    ]
    for script in scripts:
        answer = foreign.run(script, **as_nobody)
        assert (answer.code, answer.err, "broken" in answer.records) == (0, "", False)
    assert foreign.tree() == {}


# --- records ---


def test_records_are_words_with_lines() -> None:
    assert records("noise\x1ea\n1\n2\n\x1eb\n\x1ec\n") == [("a", "1\n2"), ("b", ""), ("c", "")]
    assert records("") == []

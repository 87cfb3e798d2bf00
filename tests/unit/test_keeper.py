"""The keeper of a task on a host without Docker, as a script of its own: real processes, no host, no Docker."""

import ast
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

KEEPER = Path(__file__).parents[2] / "tfdeploy" / "scripts" / "keeper.py"
LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) (.*)", re.DOTALL)
IGNORES_TERM = "trap '' TERM; echo ready; while :; do sleep 0.1; done"

Make = Callable[..., Path]


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Make]:
    """`task("echo hi", grace=1)`: the directory of a task that is a shell script, or has an `argv` of its own."""
    made: list[Path] = []

    def make(script: str = "", **values: object) -> Path:
        directory = tmp_path / f"task-{len(made)}"
        directory.mkdir()
        made.append(directory)
        spec = {
            "argv": ["sh", "-c", script],
            "env": {"PATH": os.environ["PATH"]},
            "cwd": "/",
            "user": "",
            "hosts": "",
            "grace": 10,
            "restart": "no",
            "max_restarts": 3,
            "log_bytes": 100 * 1024 * 1024,
            "log_files": 5,
        }
        (directory / "spec.json").write_text(json.dumps(spec | values))
        return directory

    yield make
    for directory in made:
        with contextlib.suppress(OSError, ValueError, KeyError):
            recorded = state(directory)
            for who, kill in (("keeper", os.kill), ("pid", os.killpg)):
                if start_of(recorded[who]) == recorded[f"{who}_start"]:
                    kill(recorded[who], signal.SIGKILL)


def keeper(*words: object) -> subprocess.CompletedProcess[str]:
    """Ends only when all that holds its output has ended, so a keeper that held it would be noticed."""
    return subprocess.run(
        [sys.executable, str(KEEPER), *map(str, words)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def background(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(KEEPER), *map(str, words)], stdout=subprocess.PIPE)


def started(directory: Path) -> Path:
    done = keeper("start", directory)
    assert (done.returncode, done.stderr) == (0, "")
    return directory


def state(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "state.json").read_text())
    return found


def look(*directories: Path) -> list[dict[str, Any]]:
    done = keeper("look", *directories)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def said(directory: Path, stream: str = "stdout") -> list[bytes]:
    lines = (directory / "log").read_bytes().split(b"\n")
    assert lines.pop() == b""
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [match[2] for match in found if match and match[1] == stream.encode()]


def until(what: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
    return found


def start_of(pid: int) -> int | None:
    """When a process started, or nothing where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def exited(directory: Path) -> dict[str, Any] | None:
    found = state(directory)
    return found if found["state"] == "exited" and start_of(found["keeper"]) != found["keeper_start"] else None


def has_said(directory: Path, line: bytes) -> bool:
    return (directory / "log").exists() and line in said(directory)


def kill_keeper(directory: Path) -> None:
    found = state(directory)
    os.kill(found["keeper"], signal.SIGKILL)
    until(lambda: start_of(found["keeper"]) is None)


# --- start and end ---


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_of_the_task_is_that_of_run_and_in_its_state(task: Make, script: str, code: int) -> None:
    directory = task(script)
    assert keeper("run", directory).returncode == code
    found = state(directory)
    assert (found["state"], found["exit_code"], found["stopped"], found["oom"]) == ("exited", code, False, False)
    assert found["started"] <= found["finished"]
    assert sorted(each.name for each in directory.iterdir()) == ["log", "spec.json", "state.json"]


@pytest.mark.parametrize("verb", ["run", "start"])
@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ({"argv": ["no-such-command"]}, 127, "no-such-command: No such file or directory"),
        ({"argv": ["/etc/passwd"]}, 126, "/etc/passwd: Permission denied"),
        ({"argv": ["/etc"]}, 126, "/etc: Permission denied"),
        ({"cwd": "/no/such/place"}, 125, "working directory /no/such/place: No such file or directory"),
    ],
)
def test_what_cannot_start_is_told_as_a_shell_would(
    task: Make, verb: str, fault: dict[str, Any], code: int, reason: str
) -> None:
    directory = task("exit 0", restart="always", **fault)
    done = keeper(verb, directory)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"keeper: {reason}\n")
    found = until(lambda: exited(directory))
    assert (found["exit_code"], found["error"], found["pid"], found["restarts"]) == (code, reason, 0, 0)
    assert look(directory)[0]["alive"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("user", ["nobody-of-this-name", "0:nobody-of-this-name"])
def test_an_unknown_user_is_125(task: Make, user: str) -> None:
    done = keeper("start", task("exit 0", user=user))
    assert done.returncode == 125
    assert re.fullmatch(r"keeper: (user|group) nobody-of-this-name is unknown\n", done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("user", "identity"), [("nobody", "65534 65534"), ("4711", "4711 4711 4711"), ("4711:4712", "4711 4712 4712")]
)
def test_root_becomes_the_user_of_the_task(task: Make, user: str, identity: str) -> None:
    directory = task("echo $(id -u) $(id -g) $(id -G) >/dev/stdout", user=user)
    assert keeper("run", directory).returncode == 0
    assert said(directory)[0].decode().startswith(identity)


@pytest.mark.skipif(os.geteuid() == 0, reason="root does become the user")
def test_without_root_user_and_hosts_are_left_alone(task: Make, tmp_path: Path) -> None:
    assert keeper("run", task("exit 4", user="root", hosts=str(tmp_path / "none"))).returncode == 4


def test_the_task_leads_a_session_and_has_clean_signals(task: Make) -> None:
    directory = task(argv=["cat", "/proc/self/stat", "/proc/self/status"])
    words = [sys.executable, str(KEEPER), "run", str(directory)]
    subprocess.run(words, check=True, timeout=60, preexec_fn=ignore_hangup)
    stat, *status = said(directory)
    pid, _, _, _, group, session = stat.split()[:6]
    assert pid == group == session
    masks = [int(line.split()[1], 16) for line in status if line.startswith((b"SigBlk", b"SigIgn"))]
    # The C library keeps 32 and 33 for itself: nobody can set them.
    assert [mask & ~(0b11 << 31) for mask in masks] == [0, 0]


def test_the_task_has_no_files_but_its_streams(task: Make) -> None:
    directory = task(argv=["ls", "/proc/self/fd"])
    with open(os.devnull) as inherited:
        os.set_inheritable(inherited.fileno(), True)
        words = [sys.executable, str(KEEPER), "run", str(directory)]
        subprocess.run(words, close_fds=False, check=True, timeout=60)
    assert said(directory) == [b"0", b"1", b"2", b"3"]  # 3 is the listing's own


def ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_start_returns_while_the_task_runs_and_holds_no_pipe_of_ours(task: Make) -> None:
    directory = started(task("sleep 600"))
    found = state(directory)
    assert (found["state"], found["exit_code"], found["finished"]) == ("running", None, "")
    assert (start_of(found["pid"]), start_of(found["keeper"])) == (found["pid_start"], found["keeper_start"])
    links = [os.readlink(each) for each in Path(f"/proc/{found['keeper']}/fd").iterdir()]
    assert sorted(links)[:3] == ["/dev/null"] * 3
    assert keeper("stop", directory).returncode == 0


def test_start_of_a_task_that_runs_changes_nothing_and_run_is_refused(task: Make) -> None:
    directory = started(task("sleep 600"))
    before = state(directory)
    started(directory)
    assert state(directory) == before
    done = keeper("run", directory)
    assert (done.returncode, done.stderr) == (125, "keeper: the task has a keeper already\n")


def test_a_task_that_has_ended_can_be_started_again(task: Make) -> None:
    directory = task("echo once more")
    assert [keeper("run", directory).returncode for _ in range(2)] == [0, 0]
    assert said(directory) == [b"once more"] * 2


def test_nothing_of_a_task_stays_behind(task: Make, tmp_path: Path) -> None:
    stubborn = "trap '' TERM; echo $$ >>$PIDS; while :; do sleep 0.1; done"
    pids = tmp_path / "pids"
    script = (
        'sh -c "$STUBBORN" & setsid sh -c "$STUBBORN" & (sh -c \'echo $$ >>$PIDS; sleep 600\' &)\n'
        "until [ $(wc -l <$PIDS) = 3 ]; do sleep 0.05; done; exit 5"
    )
    pids.touch()
    directory = task(script, env={"PATH": os.environ["PATH"], "PIDS": str(pids), "STUBBORN": stubborn})
    assert keeper("run", directory).returncode == 5
    assert [start_of(int(pid)) for pid in pids.read_text().split()] == [None] * 3


# --- what the task says ---


def test_both_streams_are_logged_by_line_whatever_the_bytes(task: Make) -> None:
    script = r"printf 'a\377\000b\n\n'; printf 'caf\303\251\r\n' >&2; printf 'no newline'; printf 'nor here' >&2"
    directory = task(script)
    assert keeper("run", directory).returncode == 0
    assert said(directory) == [b"a\xff\x00b", b"", b"no newline"]
    assert said(directory, "stderr") == [b"caf\xc3\xa9\r", b"nor here"]


@pytest.mark.parametrize(
    ("length", "pieces"), [(16384, [16384]), (16385, [16384, 1]), (32768, [16384, 16384]), (200000, [16384] * 12)]
)
def test_long_lines_come_in_pieces_of_16_kib(task: Make, length: int, pieces: list[int]) -> None:
    directory = task(argv=[sys.executable, "-c", f"print('x' * {length}); print('next')"])
    assert keeper("run", directory).returncode == 0
    *long, last = said(directory)
    assert last == b"next"
    assert [len(each) for each in long][: len(pieces)] == pieces
    assert b"".join(long) == b"x" * length


def test_logs_rotate_and_the_oldest_are_dropped(task: Make) -> None:
    directory = task("for i in $(seq 100); do echo $i; done", log_bytes=300, log_files=3)
    assert keeper("run", directory).returncode == 0
    assert sorted(each.name for each in directory.glob("log*")) == ["log", "log.1", "log.2"]
    assert all(each.stat().st_size <= 400 for each in directory.glob("log*"))
    lines = keeper("logs", directory).stdout.splitlines()
    numbers = [int(line.split()[2]) for line in lines]
    assert numbers == list(range(101 - len(numbers), 101))
    assert 14 < len(numbers) < 36


def test_one_log_file_alone_begins_anew(task: Make) -> None:
    directory = task("for i in $(seq 100); do echo $i; done", log_bytes=300, log_files=1)
    assert keeper("run", directory).returncode == 0
    assert [each.name for each in directory.glob("log*")] == ["log"]
    assert said(directory)[-1] == b"100"


def test_follow_prints_every_line_once_over_rotations_until_the_end(task: Make, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"echo 0; until [ -e {gate} ]; do sleep 0.05; done; for i in $(seq 3000); do echo $i; done"
    directory = started(task(script, log_bytes=20000, log_files=20))
    with background("logs", directory, "--follow") as following:
        assert following.stdout
        first = following.stdout.readline()
        gate.touch()
        rest, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert [int(line.split()[2]) for line in (first + rest).splitlines()] == list(range(3001))
    assert (directory / "log.1").exists()


def test_follow_goes_on_over_restarts(task: Make) -> None:
    directory = started(task("echo again; exit 1", restart="on-failure", max_restarts=2))
    assert keeper("logs", directory, "--follow").stdout.count("again") == 3


def test_follow_waits_for_a_task_that_is_not_started_and_ends_with_its_directory(task: Make) -> None:
    directory = task("echo hi")
    following = background("logs", directory, "--follow")
    started(directory)
    assert following.communicate(timeout=60)[0].endswith(b" stdout hi\n")
    (directory / "state.json").unlink()
    following = background("logs", directory, "--follow")
    directory.rename(directory.with_name("elsewhere"))
    following.communicate(timeout=60)


def test_follow_ends_when_its_reader_has_gone_and_nothing_is_said(task: Make) -> None:
    directory = started(task("echo hi; sleep 600"))
    following = background("logs", directory, "--follow")
    assert following.stdout
    following.stdout.readline()
    following.stdout.close()
    assert following.wait(60) == 0


def test_logs_end_quietly_when_nobody_reads_on(task: Make) -> None:
    directory = task("seq 20000")
    assert keeper("run", directory).returncode == 0
    words = f"{sys.executable} {KEEPER} logs {directory} | head -n 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split()[1:], done.stderr) == (["stdout", "1"], "")


@pytest.mark.parametrize("tail", [0, 1, 7, 20, 99, 5000])
def test_tail_counts_over_rotated_files(task: Make, tail: int) -> None:
    directory = task("for i in $(seq 40); do echo $i; done", log_bytes=300, log_files=50)
    assert keeper("run", directory).returncode == 0
    lines = keeper("logs", directory, "--tail", tail).stdout.splitlines()
    assert [int(line.split()[2]) for line in lines] == list(range(1, 41))[max(40 - tail, 0) :]


def test_tail_and_since_of_a_long_file(task: Make) -> None:
    directory = task()
    stamps = [f"2026-11-18T15:{i // 60:02}:{i % 60:02}.000000000Z" for i in range(3600)]
    (directory / "log").write_text("".join(f"{stamp} stdout {'x' * 50}\n" for stamp in stamps))
    everything = (directory / "log").read_text().splitlines(keepends=True)
    assert keeper("logs", directory).stdout == "".join(everything)
    assert keeper("logs", directory, "--tail", 2500).stdout == "".join(everything[-2500:])
    for since in ("2026-11-18T15:30:27Z", "2026-11-18t15:30:26.5z", "2026-11-18T17:30:27+02:00", "2026-11-18 15:30:27"):
        assert keeper("logs", directory, "--since", since).stdout == "".join(everything[1827:])
    assert keeper("logs", directory, "--since", "2026-11-18T15:30:27Z", "--tail", "9").stdout == "".join(
        everything[-9:]
    )


def test_half_a_line_is_not_shown(task: Make) -> None:
    directory = task()
    (directory / "log").write_text("2026-11-18T15:30:27.000000000Z stdout a\n2026-11-18T15:30:27.0000")
    assert keeper("logs", directory).stdout == "2026-11-18T15:30:27.000000000Z stdout a\n"


# --- stop ---


def test_stop_ends_the_task_within_its_grace(task: Make) -> None:
    directories = [started(task("trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.1; done"))]
    directories += [started(task("sleep 600")), task("never started")]
    until(lambda: has_said(directories[0], b"ready"))
    done = keeper("stop", *directories)
    assert (done.returncode, done.stderr) == (0, "")
    ends = [exited(directory) for directory in directories[:2]]
    assert [(end["exit_code"], end["stopped"]) for end in ends if end] == [(9, True), (143, True)]
    assert said(directories[0])[-1] == b"bye"
    assert keeper("stop", *directories).returncode == 0


def test_a_task_that_ignores_the_request_is_killed(task: Make) -> None:
    directory = started(task(IGNORES_TERM, grace=1, restart="always"))
    until(lambda: has_said(directory, b"ready"))
    assert keeper("stop", directory).returncode == 0
    found = exited(directory)
    assert found
    assert (found["exit_code"], found["stopped"], found["restarts"]) == (137, True, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_run_stop_the_task_and_further_ones_break_nothing(task: Make, number: int) -> None:
    directory = task(IGNORES_TERM, grace=1)
    running = background("run", directory)
    until(lambda: has_said(directory, b"ready"))
    while running.poll() is None:
        running.send_signal(number)
        time.sleep(0.01)
    assert running.communicate()[0] == b""
    assert running.returncode == 137
    assert state(directory)["stopped"] is True


def test_a_child_that_is_still_saving_has_the_rest_of_the_grace(task: Make) -> None:
    saving = "trap 'echo told; sleep 3; echo saved; exit' TERM; echo ready; while :; do sleep 0.1; done"
    directory = started(task('sh -c "$SAVING" & wait', env={"PATH": os.environ["PATH"], "SAVING": saving}, grace=30))
    until(lambda: has_said(directory, b"ready"))
    assert keeper("stop", directory).returncode == 0
    assert said(directory) == [b"ready", b"told", b"saved"]


def test_stop_while_it_waits_for_a_restart(task: Make) -> None:
    directory = started(task("exit 7", restart="always", max_restarts=1000))
    until(lambda: state(directory)["state"] == "restarting" and state(directory)["restarts"] > 3)
    assert keeper("stop", directory).returncode == 0
    found = exited(directory)
    assert found
    assert (found["exit_code"], found["stopped"]) == (7, True)


@pytest.mark.parametrize(("script", "code"), [("echo ready; sleep 600", 143), (IGNORES_TERM, 137)])
def test_a_task_without_its_keeper_is_seen_and_stopped(task: Make, script: str, code: int) -> None:
    directory = started(task(script, grace=1))
    until(lambda: has_said(directory, b"ready"))
    kill_keeper(directory)
    (seen,) = look(directory)
    assert (seen["state"], seen["alive"]) == ("running", True)
    done = keeper("start", directory)
    assert (done.returncode, done.stderr) == (125, "keeper: the task still runs without its keeper: stop it first\n")
    assert keeper("stop", directory).returncode == 0
    found = state(directory)
    assert (found["state"], found["exit_code"], found["stopped"]) == ("exited", code, True)
    assert start_of(found["pid"]) is None
    assert look(directory)[0]["alive"] is False


def test_grandchildren_without_task_and_keeper_are_stopped(task: Make) -> None:
    directory = started(task("sleep 600 & echo $!; wait"))
    child = int(until(lambda: (directory / "log").exists() and said(directory))[0])
    kill_keeper(directory)
    os.kill(state(directory)["pid"], signal.SIGKILL)
    until(lambda: start_of(state(directory)["pid"]) is None)
    assert start_of(child) is not None
    assert keeper("stop", directory).returncode == 0
    assert start_of(child) is None


def test_keeper_and_task_both_gone_is_an_unknown_end(task: Make) -> None:
    directory = started(task("exec sleep 600"))
    kill_keeper(directory)
    os.kill(state(directory)["pid"], signal.SIGKILL)
    until(lambda: start_of(state(directory)["pid"]) is None)
    (seen,) = look(directory)
    assert (seen["state"], seen["exit_code"], seen["error"]) == ("exited", None, "unknown: its keeper is gone")
    assert seen["alive"] is False
    assert state(directory)["state"] == "running"
    assert keeper("logs", directory, "--follow").returncode == 0
    assert keeper("stop", directory).returncode == 0
    found = state(directory)
    assert (found["state"], found["exit_code"], found["stopped"]) == ("exited", None, False)
    assert keeper("run", task("exit 0")).returncode == 0


@pytest.mark.parametrize("other", [{"pid_start": 1, "keeper_start": 1}, {"boot": "another"}])
def test_somebody_else_with_the_same_number_is_left_alone(task: Make, other: dict[str, Any]) -> None:
    directory = task("sleep 600")
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        begun = start_of(stranger.pid)
        recorded = {"state": "running", "exit_code": None, "error": "", "stopped": False}
        numbers = {"pid": stranger.pid, "keeper": stranger.pid, "pid_start": begun, "keeper_start": begun}
        (directory / "state.json").write_text(json.dumps(recorded | numbers | other))
        assert look(directory)[0]["error"] == "unknown: its keeper is gone"
        assert keeper("stop", directory).returncode == 0
        assert start_of(stranger.pid) == begun
        stranger.kill()
    assert state(directory)["state"] == "exited"


# --- restart ---


@pytest.mark.parametrize(
    ("policy", "script", "runs"),
    [
        ("no", "exit 1", 1),
        ("on-failure", "exit 0", 1),
        ("on-failure", "exit 1", 3),
        ("on-failure", "[ $(wc -l <$COUNT) = 2 ]", 2),
        ("always", "exit 0", 3),
        ("always", "kill -9 $$", 3),
    ],
)
def test_restarts_are_counted_and_bounded(task: Make, tmp_path: Path, policy: str, script: str, runs: int) -> None:
    count = tmp_path / "count"
    env = {"PATH": os.environ["PATH"], "COUNT": str(count)}
    directory = task(f"echo run >>$COUNT; {script}", env=env, restart=policy, max_restarts=2)
    code = keeper("run", directory).returncode
    assert len(count.read_text().splitlines()) == runs
    found = state(directory)
    assert (found["state"], found["restarts"], found["exit_code"]) == ("exited", runs - 1, code)


def test_a_command_that_vanishes_before_its_restart_ends_it(task: Make, tmp_path: Path) -> None:
    command = tmp_path / "command"
    command.write_text('#!/bin/sh\nrm "$0"; exit 1\n')
    command.chmod(0o755)
    directory = task(argv=[str(command)], restart="always")
    done = keeper("run", directory)
    assert (done.returncode, done.stderr) == (127, f"keeper: {command}: No such file or directory\n")
    found = state(directory)
    assert (found["state"], found["exit_code"], found["restarts"]) == ("exited", 127, 1)


# --- look ---


def test_look_sums_over_the_session_and_tells_what_is_only_created(task: Make) -> None:
    burns = "import time; kept = b'x' * 50_000_000\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)"
    script = f'{sys.executable} -c "$BURNS; time.sleep(600)" & wait'
    directories = [started(task(script, env={"PATH": os.environ["PATH"], "BURNS": burns})), task("never started")]
    until(lambda: has_said(directories[0], b"burnt"))
    running, created = look(*directories)
    assert (running["dir"], running["state"], running["alive"]) == (directories[0].name, "running", True)
    assert running["cpu_seconds"] >= 0.25
    assert running["memory"] > 50_000_000
    assert created == {"dir": directories[1].name, "state": "created"}
    assert state(directories[0]).items() <= running.items()


@pytest.mark.parametrize("text", ["", '{"state": "runn', "[]", '{"state": "running", "pid": "x"}', "\udcff"])
def test_a_broken_state_is_told_in_a_line(task: Make, text: str) -> None:
    directory = task("exit 6")
    (directory / "state.json").write_text(text, errors="surrogateescape")
    (seen,) = look(directory)
    assert (seen["dir"], seen["state"]) == (directory.name, "created")
    assert "state.json" in seen["error"]
    done = keeper("stop", directory)
    assert done.returncode == 1
    assert re.fullmatch(r"keeper: .*state\.json.*\n", done.stderr)
    assert keeper("run", directory).returncode == 6
    assert state(directory)["state"] == "exited"


@pytest.mark.parametrize(
    ("words", "code"), [(["run"], 125), (["start"], 125), (["exec", "--", "true"], 125), (["logs"], 1), (["stop"], 0)]
)
def test_a_directory_that_is_not_there_is_told_in_a_line(tmp_path: Path, words: list[str], code: int) -> None:
    verb, *rest = words
    done = keeper(verb, tmp_path / "none", *rest)
    assert done.returncode == code
    assert re.fullmatch(r"keeper: .*\n", done.stderr) if code else done.stderr == ""


@pytest.mark.parametrize("words", [[], ["dance", "/"], ["stop"], ["logs", "/", "--tail", "many"]])
def test_wrong_words_are_told_in_a_line(words: list[str]) -> None:
    done = keeper(*words)
    assert done.returncode == 2
    assert re.fullmatch(r"keeper: .*\n", done.stderr)


# --- what the task sees ---


def test_exec_has_the_surroundings_of_the_task(task: Make, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "TF_CONFIG": '{"a": "é\n"}'}
    directory = task("exit 0", env=env, cwd=str(tmp_path))
    done = keeper("exec", directory, "--", "sh", "-c", 'echo "$TF_CONFIG$(pwd)$HOME"; exit 4', "--")
    assert (done.returncode, done.stdout) == (4, f'{{"a": "é\n"}}{tmp_path}\n')
    done = keeper("exec", directory, "--", "no-such-command")
    assert (done.returncode, done.stderr) == (127, "keeper: no-such-command: No such file or directory\n")
    assert keeper("exec", directory).returncode == 125


def test_the_task_has_its_environment_only(task: Make) -> None:
    directory = task(argv=["env"], env={"PATH": os.environ["PATH"], "ONLY": "é"})
    assert keeper("run", directory).returncode == 0
    assert sorted(said(directory)) == sorted(["ONLY=é".encode(), f"PATH={os.environ['PATH']}".encode()])


def test_the_hosts_file_is_seen_by_the_task_only(task: Make, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    if not may_unshare():
        pytest.skip("no mount namespaces here")
    hosts = tmp_path / "hosts"
    hosts.write_text("192.0.2.7 worker-0.mnist\n")
    before = Path("/etc/hosts").read_bytes()
    directory = task("cat /etc/hosts; (echo x >>/etc/hosts) || echo read-only; sleep 600", hosts=str(hosts))
    started(directory)
    until(lambda: has_said(directory, b"read-only"))
    assert said(directory)[0] == b"192.0.2.7 worker-0.mnist"
    assert Path("/etc/hosts").read_bytes() == before
    assert keeper("exec", directory, "--", "cat", "/etc/hosts").stdout == hosts.read_text()
    assert keeper("stop", directory).returncode == 0


def may_unshare() -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(0x20000) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_the_script_is_python_3_6() -> None:
    ast.parse(KEEPER.read_text(), feature_version=(3, 6))

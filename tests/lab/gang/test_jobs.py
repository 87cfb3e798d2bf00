"""Jobs on real hosts: launched by all or none, seen from anywhere, ended in every way. One lab of three hosts."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TFDEPLOY
from tests.lab.conftest import LabUnderTest, eventually
from tests.lab.gang.conftest import TRAINER
from tfdeploy import gang as gang_start
from tfdeploy import host_scripts, inventory, lock, remote, spec
from tfdeploy import up as work
from tfdeploy.errors import LockedError, TfdeployError, UnreachableError
from tfdeploy.lab import machine
from tfdeploy.plan import Wishes
from tfdeploy.report import Silent

pytestmark = pytest.mark.lab

ROOT = f"{TRAINER}:root"
FOR_EVER = ("sleep", "1000000")
HOME = "/var/lib/tfdeploy"


@pytest.fixture(autouse=True)
def nothing_left(gang: LabUnderTest) -> Iterator[None]:
    """Each test takes its jobs down itself; what a failed one has left shall not fail the others."""
    yield
    left = traces(gang)
    if any(left):
        gang.tfdeploy("down", "--all", "--discard", "--grace", "1", "-i", "lab.ini")
        gang.on_all(f"rm -rf {HOME}/jobs {HOME}/lock {HOME}/queue")
    for remembered in Path(os.environ["HOME"], ".local/state/tfdeploy/jobs").glob("*.json"):
        remembered.unlink()
    assert not any(left), left


def up(
    lab: LabUnderTest, job: str, *words: str, command: tuple[str, ...] = FOR_EVER, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Detached, of the plain image, on lab.ini unless it says otherwise."""
    return lab.tfdeploy(*up_words(job, *words, command=command), env=env)


def up_words(job: str, *words: str, command: tuple[str, ...] = FOR_EVER) -> tuple[str, ...]:
    given = () if any(word.endswith(".ini") for word in words) else ("lab.ini",)
    image = () if "--image" in words else ("--image", ROOT)
    return ("up", *given, "--name", job, *image, "--detach", *words, "--", *command)


def status(lab: LabUnderTest, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = lab.tfdeploy("status", "-o", "json", *words, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def states(view: dict[str, Any]) -> dict[str, str]:
    return {task["task"]: task["state"] for task in view["tasks"]}


def down(lab: LabUnderTest, *words: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    done = lab.tfdeploy("down", "--grace", "1", *words, env=env)
    assert done.returncode == code, done.stderr
    return done.stderr


def elsewhere(directory: Path) -> dict[str, str]:
    """Another machine of the user's: it remembers nothing."""
    return {"XDG_STATE_HOME": str(directory / "elsewhere")}


def tasks_there(lab: LabUnderTest) -> list[list[str]]:
    return [sorted(said.split()) for said in lab.on_all("docker ps -a --format '{{.Names}}'")]


def traces(lab: LabUnderTest) -> list[str]:
    """Whatever of jobs is on each host."""
    return lab.on_all(
        f"ls -d {HOME}/jobs/* {HOME}/lock {HOME}/queue 2>/dev/null; docker ps -aq; "
        "systemctl list-units --plain --no-legend 'tfdeploy-*' 2>/dev/null"
    )


def job_file(lab: LabUnderTest, name: str, **keys: Any) -> str:
    """YAML takes JSON."""
    return lab.write(f"{name}.yml", json.dumps({"name": name, **keys}))


def inventory_with(lab: LabUnderTest, name: str, *, slots: int = 1, without: str = "") -> str:
    lines = [
        f"{line} tfdeploy_slots={slots}" if line.startswith("gang-") else line
        for line in (lab.directory / "lab.ini").read_text().splitlines()
        if not without or not line.startswith(without)
    ]
    return lab.write(name, "\n".join(lines) + "\n")


# --- seen, repeated, changed -----------------------------------------------------------------------------


def test_a_job_is_seen_from_anywhere_and_launched_once(gang: LabUnderTest, tmp_path: Path) -> None:
    launched = up(gang, "seen", "--ps", "1")
    assert launched.returncode == 0, launched.stderr
    assert "tfdeploy attach seen" in launched.stderr
    eventually(lambda: status(gang)["supervised"], "a watcher")
    here = status(gang)
    assert (here["job"], here["state"]) == ("seen", "running")
    assert states(here) == {"ps-0": "running", "worker-0": "running", "worker-1": "running"}

    there = status(gang, "-i", "lab.ini", env=elsewhere(tmp_path))
    assert (there["generation"], states(there)) == (here["generation"], states(here))
    listed = json.loads(gang.tfdeploy("ls", "-i", "lab.ini", "-o", "json", env=elsewhere(tmp_path)).stdout)
    assert [job["job"] for job in listed["jobs"]] == ["seen"]
    assert "seen" in gang.tfdeploy("ls").stdout
    nowhere = gang.tfdeploy("status", env=elsewhere(tmp_path))
    assert nowhere.returncode == 2
    assert "--via" in nowhere.stderr

    again = up(gang, "seen", "--ps", "1")
    assert again.returncode == 0
    assert "runs already" in again.stderr
    assert status(gang)["generation"] == here["generation"]

    other = up(gang, "seen", "--ps", "1", command=("sleep", "2000000"))
    assert other.returncode == 2
    assert "2000000" in other.stderr
    assert "--replace" in other.stderr
    checked = gang.tfdeploy(*up_words("seen", "--ps", "1", "--check", command=("sleep", "2000000")))
    assert checked.returncode == 0
    assert "--replace would change" in checked.stdout
    assert status(gang)["generation"] == here["generation"]

    assert up(gang, "seen", "--ps", "1", "--replace", command=("sleep", "2000000")).returncode == 0
    assert status(gang)["generation"] != here["generation"]
    assert [len(each) for each in tasks_there(gang)] == [1, 1, 1]
    assert f"image {ROOT}" in down(gang)
    assert gang.tfdeploy("status").returncode == 2


def test_one_host_s_name_is_enough(gang: LabUnderTest, tmp_path: Path) -> None:
    """--via, entered as the user's own ssh configuration says. The host with a sudo password is left out."""
    two = inventory_with(gang, "two.ini", without="gang-2")
    assert up(gang, "via", two, "--ps", "1").returncode == 0
    address = gang.status()["hosts"][0]["address"]
    found = via(gang, tmp_path, "status", "--via", address, "-o", "json")
    assert found.returncode == 0, found.stderr
    assert states(json.loads(found.stdout)) == {"ps-0": "running", "worker-0": "running"}
    listed = via(gang, tmp_path, "ls", "--via", address, "-o", "json")
    assert states(json.loads(listed.stdout)["jobs"][0]) == {"ps-0": "running", "worker-0": "running"}
    gone = via(gang, tmp_path, "down", "via", "--via", address)
    assert gone.returncode == 0, gone.stderr
    gang.tfdeploy("down", "via")


def via(lab: LabUnderTest, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """ssh looks up its user's home in passwd, not in HOME: a passwd of the test's own, in a mount namespace."""
    (directory / ".ssh").mkdir(exist_ok=True, mode=0o700)
    key = next(
        line.partition("=")[2]
        for line in (lab.directory / "lab.ini").read_text().splitlines()
        if line.startswith("ansible_ssh_private_key_file=")
    )
    (directory / ".ssh" / "config").write_text(
        f'Host 198.18.*\n  IdentityFile "{key}"\n  IdentitiesOnly yes\n'
        f'  UserKnownHostsFile "{Path(key).with_name("known_hosts")}"\n'
    )
    (directory / "passwd").write_text(f"root:x:0:0:root:{directory}:/bin/sh\n")
    script = 'mount --bind "$1" /etc/passwd && shift && exec "$@"'
    command = (*machine.root_words(), "unshare", "--mount", "sh", "-c", script, "sh", str(directory / "passwd"))
    return subprocess.run(
        (*command, TFDEPLOY, *words),
        cwd=lab.directory,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **elsewhere(directory)},
    )


# --- the end of a job ------------------------------------------------------------------------------------


def ending(lab: LabUnderTest, name: str, command: str) -> str:
    tasks = {"ps": {"count": 1}, "worker": {"command": ["sh", "-c", command]}}
    return job_file(lab, name, image=ROOT, command=FOR_EVER, tasks=tasks)


def test_a_job_ends_with_its_first_worker_and_can_be_launched_again(gang: LabUnderTest) -> None:
    file = ending(gang, "ends", "sleep 1")
    done = gang.tfdeploy("up", "lab.ini", "-f", file)
    assert done.returncode == 0, done.stderr
    first = status(gang, "ends")
    assert first["state"] == "succeeded"
    assert states(first)["ps-0"] == "stopped"

    assert gang.tfdeploy("up", "lab.ini", "-f", file).returncode == 0
    second = status(gang, "ends")
    assert second["generation"] != first["generation"]

    ending(gang, "ends", "echo the last words; exit 3")
    failed = gang.tfdeploy("up", "lab.ini", "-f", file)
    assert failed.returncode == 1
    assert "exit code 3" in failed.stderr
    assert "the last words" in failed.stderr
    assert status(gang, "ends")["state"] == "failed"
    attached = gang.tfdeploy("attach", "ends")
    assert attached.returncode == 1
    assert "exit code 3" in attached.stderr
    down(gang, "ends")


def test_ctrl_c_hands_the_watch_over_and_the_job_is_finished(gang: LabUnderTest) -> None:
    file = ending(gang, "handed", "until [ -e /tmp/go ]; do sleep 0.1; done")
    run = gang.start("up", "lab.ini", "-f", file)
    watcher = eventually(lambda: "handed" in gang.tfdeploy("ls").stdout and status(gang)["watched_by"], "a watcher")
    os.kill(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "tfdeploy attach handed" in said
    eventually(lambda: status(gang)["watched_by"] not in (None, watcher), "another watcher")
    assert gang.tfdeploy("exec", "worker-0", "--", "touch", "/tmp/go").returncode == 0
    assert eventually(lambda: status(gang)["state"] != "running" and status(gang)["state"], "its end") == "succeeded"
    down(gang)


def test_ctrl_c_at_the_very_moment_of_the_launch_loses_no_watch(gang: LabUnderTest) -> None:
    run = gang.start("up", "lab.ini", "-f", ending(gang, "moment", "sleep 1000000"))
    assert run.stderr
    for line in run.stderr:
        if "launched" in line:
            break
    os.kill(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    eventually(lambda: status(gang, "moment")["supervised"], "a watcher")
    down(gang, "moment")


def test_ctrl_c_before_the_start_leaves_nothing(gang: LabUnderTest) -> None:
    hold(gang, 3, "somebody-else")
    run = gang.start(*up_words("broken-off"))
    eventually(
        lambda: tasks_there(gang)[:2] == [["tfdeploy-broken-off-worker-0"], ["tfdeploy-broken-off-worker-1"]], "created"
    )
    os.kill(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=90)
    assert run.returncode == 130, said
    gang.in_container(3, f"rm {HOME}/lock")
    assert not any(traces(gang))


# --- several at once -------------------------------------------------------------------------------------


def hold(lab: LabUnderTest, host: int, job: str, *, age: int = 0) -> None:
    line = lock.Holder(job, "g1", "eve@elsewhere (pid 1)", "2026-01-01T00:00:00Z").line()
    lab.in_container(
        host, f"printf '%s\\n' {shlex.quote(line)} > {HOME}/lock; touch -d '{age} seconds ago' {HOME}/lock"
    )


def at_once(lab: LabUnderTest, directory: Path, *orders: tuple[str, ...]) -> list[tuple[int, str]]:
    """Each by a controller of its own; their exit codes, and what they said."""
    runs = [
        lab.start(*words, env={"XDG_STATE_HOME": str(directory / f"controller-{number}")})
        for number, words in enumerate(orders)
    ]
    return [(run.returncode, said) for run, (_, said) in [(run, run.communicate(timeout=120)) for run in runs]]


def test_of_two_controllers_one_launches_the_job(gang: LabUnderTest, tmp_path: Path) -> None:
    ended = at_once(gang, tmp_path, *[up_words("twice", "--ps", "1")] * 2)
    assert sorted(code for code, _ in ended) in ([0, 4], [0, 0]), ended
    assert tasks_there(gang) == [["tfdeploy-twice-ps-0"], ["tfdeploy-twice-worker-0"], ["tfdeploy-twice-worker-1"]]
    assert set(states(status(gang, "twice", "-i", "lab.ini")).values()) == {"running"}
    down(gang, "twice", "-i", "lab.ini")


def test_two_jobs_share_hosts_only_where_there_are_slots(gang: LabUnderTest, tmp_path: Path) -> None:
    ended = at_once(gang, tmp_path / "one", up_words("left"), up_words("right"))
    assert sorted(code for code, _ in ended) == [0, 2], ended
    assert "no slot left" in next(said for code, said in ended if code == 2)
    assert [len(each) for each in tasks_there(gang)] == [1, 1, 1]
    down(gang, "--all", "-i", "lab.ini")

    double = inventory_with(gang, "double.ini", slots=2)
    ended = at_once(
        gang, tmp_path / "two", up_words("left", double, "--workers", "3"), up_words("right", double, "--workers", "3")
    )
    assert [code for code, _ in ended] == [0, 0], ended
    views = [status(gang, job, "-i", double) for job in ("left", "right")]
    places = [(task["host"], task["port"]) for view in views for task in view["tasks"]]
    assert len(set(places)) == len(places) == 6
    assert all(set(states(view).values()) == {"running"} for view in views)

    waiting = gang.start(*up_words("third", double, "--workers", "3", "--wait"))
    eventually(lambda: gang.in_container(1, f"ls {HOME}/queue 2>/dev/null || true"), "a place in line")
    assert waiting.poll() is None
    down(gang, "left", "-i", double)
    _, said = waiting.communicate(timeout=90)
    assert waiting.returncode == 0, said
    assert set(states(status(gang, "third")).values()) == {"running"}
    down(gang, "--all", "-i", "lab.ini", env=elsewhere(tmp_path))
    gang.tfdeploy("down", "third")


def test_a_lock_is_respected_while_its_holder_lives(gang: LabUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(gang, 2, "locked")
    refused = up(gang, "locked")
    assert refused.returncode == 4
    assert "eve@elsewhere" in refused.stderr
    assert "gang-2" in refused.stderr
    hold(gang, 2, "another")
    monkeypatch.setattr(gang_start, "SECONDS_IN_FRONT_OF_A_LOCK", 2)
    with work.entered(order(gang, "locked"), Silent()) as hosts, pytest.raises(LockedError, match=r"gang-2: .*eve@"):
        work.launched(hosts, Silent())
    shown = json.loads(gang.tfdeploy("lock", "status", "lab.ini", "-o", "json").stdout)
    assert [(row["host"], row["who"], row["alive"]) for row in shown["held"]] == [
        ("gang-2", "eve@elsewhere (pid 1)", True)
    ]
    assert gang.tfdeploy("lock", "release", "lab.ini").returncode == 0
    assert not any(traces(gang))

    hold(gang, 2, "another", age=120)
    assert up(gang, "locked").returncode == 0
    down(gang)


# --- down ------------------------------------------------------------------------------------------------


def test_down_gives_tasks_time_and_keeps_outputs_until_told(gang: LabUnderTest) -> None:
    trap = "trap 'echo $TF_CONFIG > /shared/$HOSTNAME; exit 0' TERM; while :; do sleep 0.1; done"
    file = job_file(gang, "told", image=ROOT, shared="/srv/shared", command=["sh", "-c", trap])
    assert gang.tfdeploy("up", "lab.ini", "-f", file, "--detach").returncode == 0
    assert gang.tfdeploy("exec", "worker-1", "--", "sh", "-c", "echo weights > /outputs/model").returncode == 0
    refused = down(gang, "told", code=1)
    assert "worker-1 on gang-2" in refused
    assert "--discard" in refused
    assert set(states(status(gang)).values()) == {"running"}
    gone = gang.tfdeploy("down", "told", "--discard")
    assert gone.returncode == 0, gone.stderr
    assert "/srv/shared/told" in gone.stderr
    assert len(gang.in_container(1, "ls /srv/shared/told").split()) == 3
    gang.in_container(1, "rm -r /srv/shared/told")


def test_what_a_task_saves_when_it_is_stopped_is_not_thrown_away(gang: LabUnderTest) -> None:
    """The last checkpoint is written on SIGTERM: only then are there outputs."""
    trap = "trap 'echo weights > /outputs/last; exit 0' TERM; while :; do sleep 0.1; done"
    assert up(gang, "last", command=("sh", "-c", trap)).returncode == 0
    said = gang.tfdeploy("down", "last")
    kept = gang.in_container(1, f"cat {HOME}/jobs/last/tasks/*/outputs/*/last 2>/dev/null || true")
    gang.tfdeploy("down", "last", "--discard")
    assert "--discard" in said.stderr
    assert kept == "weights"


def test_down_works_with_a_host_without_power_and_ends_when_it_is_back(gang: LabUnderTest) -> None:
    assert up(gang, "dark").returncode == 0
    gang("kill", "gang-3")
    try:
        said = down(gang, "dark", code=3)
        left = [tasks for tasks in (gang.in_container(host, "docker ps -aq") for host in (1, 2)) if tasks]
    finally:
        gang("start", "gang-3")
    assert "gang-3" in said
    assert left == []
    eventually(lambda: gang.in_container(3, "docker info >/dev/null 2>&1 && echo up || true"), "the engine")
    down(gang, "dark")


def test_down_needs_neither_inventory_nor_memory(gang: LabUnderTest, tmp_path: Path) -> None:
    two = inventory_with(gang, "gone.ini", slots=3, without="gang-2")
    for job in ("a", "b", "c"):
        assert up(gang, job, two, "--workers", "2").returncode == 0
    (gang.directory / two).unlink()
    down(gang, "a")
    down(gang, "b", "-i", "lab.ini", env=elsewhere(tmp_path))
    assert gang.tfdeploy("exec", "-j", "c", "worker-0", "--", "sh", "-c", ": > /outputs/x").returncode == 0
    again = inventory_with(gang, "gone.ini", slots=3, without="gang-2")
    assert up(gang, "d", again, "--workers", "2").returncode == 0
    # One that keeps outputs does not keep the others.
    refused = gang.tfdeploy("down", "--all", "--grace", "1", "-i", "lab.ini")
    assert refused.returncode == 1
    assert [job["job"] for job in json.loads(gang.tfdeploy("ls", "-i", "lab.ini", "-o", "json").stdout)["jobs"]] == [
        "c"
    ]
    down(gang, "--all", "--discard", "-i", "lab.ini")
    for job in "bcd":
        gang.tfdeploy("down", job)


def test_down_wins_over_a_watcher_that_gives_signs_of_life(gang: LabUnderTest) -> None:
    """Whoever watches writes into the job's directory while it is removed."""
    assert up(gang, "beaten").returncode == 0
    line = eventually(lambda: gang.in_container(1, f"cat {HOME}/jobs/beaten/watch 2>/dev/null || true"), "a watcher")
    beat = host_scripts.beat("beaten", HOME, lock.Holder.parse(line))
    machine.run(
        (*machine.docker_words(), "exec", "-i", "tfdeploy-lab-gang-1", "sh", "-c", "cat > /tmp/beat"),
        data=beat.encode(),
    )
    loop = "while [ ! -e /tmp/beaten ]; do sh /tmp/beat; done"
    for number in range(4):
        gang.in_container(1, f"systemd-run -q --unit=beat-{number} sh -c '{loop}'")
    try:
        done = gang.tfdeploy("down", "beaten")
    finally:
        gang.in_container(1, "touch /tmp/beaten; systemctl stop 'beat-*'; rm /tmp/beat /tmp/beaten")
    assert done.returncode == 0, done.stderr
    assert not any(traces(gang))


def test_down_removes_what_is_left_of_a_job_that_no_host_knows_whole(gang: LabUnderTest) -> None:
    """As after a `down` that was broken off: the record of the job is gone, its directory is not."""
    assert up(gang, "half").returncode == 0
    gang.on_all("docker ps -aq | xargs docker rm -f")
    gang.on_all(f"rm {HOME}/jobs/half/launch.json")
    done = gang.tfdeploy("down", "half")
    assert done.returncode == 0, done.stderr
    assert "half" not in gang.tfdeploy("ls").stdout
    assert not any(traces(gang))


# --- what tasks are given --------------------------------------------------------------------------------

AWKWARD = 'it\'s "quoted",\n$HOME `id` \\ two\tlines '


def test_values_arrive_as_they_are_and_secrets_are_seen_by_the_task_alone(gang: LabUnderTest) -> None:
    secret = "s3cret-'\"$(id)\n-of-two-lines"
    for variant, owner in (("root", "0"), ("uid", "1234"), ("named", "4321")):
        file = job_file(
            gang,
            "given",
            image=f"{TRAINER}:{variant}",
            env={"AWKWARD": AWKWARD, "PLAIN": "a $b 'c' \"d\" #e"},
            secrets=["TOKEN"],
            entrypoint=["sh", "-c", 'printf "<%s>\\n" "$@"; exec sleep 1000000', "sh"],
            command=[AWKWARD, "", "$(id)", "*"],
            tasks={"worker": {"count": 1}},
        )
        launched = gang.tfdeploy("up", "lab.ini", "-f", file, "--detach", env={"TOKEN": secret})
        assert launched.returncode == 0, launched.stderr
        words = [f"<{word}>" for word in (AWKWARD, "", "$(id)", "*")]
        shown = gang.in_container(1, "docker logs tfdeploy-given-worker-0")
        assert shown == "\n".join(words)

        def within(script: str) -> str:
            return gang.tfdeploy("exec", "worker-0", "--", "sh", "-c", script).stdout

        assert within('printf %s "$AWKWARD"') == AWKWARD
        assert within('printf %s "$PLAIN"') == "a $b 'c' \"d\" #e"
        assert within('cat "$TOKEN_FILE"') == secret
        assert within('stat -c "%a %u" "$TOKEN_FILE"').split() == ["400", owner]
        assert within("echo x > /outputs/x && stat -c %u /outputs/x").strip() == owner
        needle = "s3cret-"
        assert needle not in gang.in_container(1, "docker inspect tfdeploy-given-worker-0")
        assert needle not in gang.in_container(1, f"cat {HOME}/jobs/given/launch.json; ps -eo args")
        assert gang.in_container(1, f"grep -rl {needle} {HOME} /var/log /run/systemd || true") == (
            f"{HOME}/jobs/given/tasks/worker-0/secrets/TOKEN"
        )
        remembered = subprocess.run(("grep", "-rl", needle, os.environ["HOME"]), capture_output=True, text=True)
        assert remembered.stdout == ""
        down(gang, "given", "--discard")


def test_no_process_list_shows_a_secret_during_the_launch(gang: LabUnderTest) -> None:
    file = job_file(gang, "hidden", image=ROOT, secrets=["TOKEN"], command=FOR_EVER)
    listen = "while :; do cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; done | tr '\\0' '\\n'"
    spies = [
        subprocess.Popen(
            (
                *machine.docker_words(),
                "exec",
                f"tfdeploy-lab-gang-{host}",
                "sh",
                "-c",
                f"timeout 4 sh -c {shlex.quote(listen)}",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        for host in (1, 2)
    ]
    launched = gang.tfdeploy("up", "lab.ini", "-f", file, "--detach", env={"TOKEN": "s3cret-of-mine"})
    seen = [spy.communicate()[0] for spy in spies]
    assert launched.returncode == 0, launched.stderr
    assert all("docker" in each for each in seen)
    assert not any("s3cret-of-mine" in each for each in seen)
    down(gang)


# --- plain processes -------------------------------------------------------------------------------------


def test_plain_processes_have_the_same_verbs(gang: LabUnderTest) -> None:
    tasks = {"ps": {"count": 1}, "worker": {"memory": "64MiB"}}
    command = ["sh", "-c", "echo hello from $HOSTNAME; exec sleep 1000000"]
    file = job_file(gang, "plain", runtime="process", command=command, tasks=tasks)
    done = gang.tfdeploy("up", "lab.ini", "-f", file, "--detach")
    assert done.returncode == 0, done.stderr
    view = status(gang)
    assert set(states(view).values()) == {"running"}
    assert all(task["memory"] for task in view["tasks"])
    assert eventually(lambda: gang.tfdeploy("logs").stdout.count("hello from") == 3, "lines")
    found = gang.tfdeploy("exec", "worker-0", "--", "getent", "hosts", "ps-0.plain", "worker-1.plain")
    assert found.returncode == 0, found.stdout + found.stderr
    assert gang.in_container(2, "getent hosts ps-0.plain || echo unknown") == "unknown"
    assert gang.in_container(2, "systemctl show -p MemoryMax tfdeploy-plain-worker-0") == f"MemoryMax={64 << 20}"
    again = gang.tfdeploy("up", "lab.ini", "-f", file, "--detach")
    assert "runs already" in again.stderr

    gang.in_container(2, "pkill -9 -x sleep")
    assert eventually(lambda: status(gang)["state"] != "running" and status(gang)["reason"], "its end") == (
        "worker-0: 137: killed (SIGKILL)"
    )
    hungry = ["python3", "-c", "held = b'x' * (300 << 20); import time; time.sleep(1000)"]
    job_file(
        gang, "plain", runtime="process", command=FOR_EVER, tasks={"worker": {"memory": "64MiB", "command": hungry}}
    )
    failed = gang.tfdeploy("up", "lab.ini", "-f", file)
    assert failed.returncode == 1
    assert "out of memory" in failed.stderr
    down(gang)

    job_file(gang, "plain", runtime="process", command=["no-such-program"])
    failed = gang.tfdeploy("up", "lab.ini", "-f", file)
    assert failed.returncode == 1
    assert "127" in failed.stderr
    assert not any(traces(gang))


def test_a_local_job_needs_neither_root_nor_docker(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    # Where this virtual environment lies below root's home, another user needs leave to read it, and nothing more.
    reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reading)
    home = Path("/tmp/tfdeploy-test-nobody")
    home.mkdir(exist_ok=True)
    os.chown(home, 65534, 65534)
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    for program in Path("/usr/bin").iterdir():
        if program.name != "docker" and not (programs / program.name).exists():
            (programs / program.name).symlink_to(program)
    env = {"HOME": str(home), "PATH": str(programs), "LANG": "C.UTF-8"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*nobody, *words), cwd=home, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    try:
        done = run(TFDEPLOY, "up", "--local", "--name", "mine", "--ps", "1", "--workers", "2", "--", "sh", "-c",
                   'case $TF_CONFIG in *\'"type": "ps"\'*) exec sleep 1000;; esac; echo "I am $(id -u)"')  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "I am 65534" in done.stdout
        assert run(TFDEPLOY, "down", "mine").returncode == 0
        assert run("sh", "-c", "ps -u 65534 -o args= | grep -v -e grep -e ps -e sh -e defunct").stdout == ""
        assert not list(home.glob(".local/state/tfdeploy/local/jobs/*"))
    finally:
        subprocess.run(("rm", "-rf", str(home)), check=True)


# --- what goes wrong -------------------------------------------------------------------------------------


def order(lab: LabUnderTest, job: str, **keys: Any) -> work.Order:
    given = {"name": job, "image": ROOT, "command": FOR_EVER, **keys}
    sources = (str(lab.directory / "lab.ini"),)
    return work.Order(inventory.read(sources), spec.parse(json.dumps(given), "test"), Wishes(), sources=sources)


def test_a_host_that_dies_between_create_and_start_undoes_all(gang: LabUnderTest) -> None:
    def die() -> None:
        gang("kill", "gang-3")

    try:
        with work.entered(order(gang, "dies"), Silent()) as hosts, pytest.raises(UnreachableError, match="gang-3"):
            work.launched(hosts, Silent(), die)
        left = [gang.in_container(host, f"docker ps -aq; ls {HOME}") for host in (1, 2)]
    finally:
        gang("start", "gang-3")
    assert left == ["converged", "converged"]
    eventually(lambda: gang.in_container(3, "docker info >/dev/null 2>&1 && echo up || true"), "the engine")
    gang.tfdeploy("down", "dies", "-i", "lab.ini")
    gang.in_container(3, f"rm -f {HOME}/lock")


def test_a_port_that_is_taken_at_the_last_moment_is_given_up(gang: LabUnderTest) -> None:
    def take_it() -> None:
        launch = json.loads(gang.in_container(1, f"cat {HOME}/jobs/*/launch.json"))
        port = next(task["port"] for task in launch["plan"]["tasks"] if task["host"] == "gang-1")
        taken.append(port)
        gang.in_container(1, f"systemd-run -q --unit=theirs-{port} python3 -m http.server {port}")
        eventually(lambda: gang.in_container(1, f"ss -Hltn sport = :{port}"), "a listener")

    taken: list[int] = []
    try:
        with work.entered(order(gang, "ports"), Silent()) as hosts:
            launched = work.launched(hosts, Silent(), lambda: None if taken else take_it())
        assert launched.launch.plan.task("worker-0").port not in taken
        assert set(states(status(gang, "ports", "-i", "lab.ini")).values()) == {"running"}
        down(gang, "ports")

        taken.clear()
        with work.entered(order(gang, "ports"), Silent()) as hosts, pytest.raises(TfdeployError, match="3 times"):
            work.launched(hosts, Silent(), take_it)
        assert len(taken) == 3
        assert not any(traces(gang))
    finally:
        gang.in_container(1, "systemctl stop 'theirs-*'")


def test_what_cannot_be_started_is_said_and_undone(gang: LabUnderTest, tmp_path: Path) -> None:
    absent = up(gang, "absent", command=("/no/such/program",))
    assert absent.returncode == 1
    assert "127" in absent.stderr
    assert not any(traces(gang))
    foreign = up(gang, "foreign", "--image", f"{TRAINER}:arm64")
    assert foreign.returncode in (1, 2)
    assert "arm64" in foreign.stderr
    assert not any(traces(gang))

    gang.in_container(2, f"mkdir -p {HOME}/jobs; mount -t tmpfs -o size=4k tmpfs {HOME}/jobs")
    try:
        full = up(gang, "full")
    finally:
        gang.in_container(2, f"umount {HOME}/jobs; rmdir {HOME}/jobs")
    assert full.returncode == 1, full.stderr
    assert "gang-2" in full.stderr
    assert "disk full" in full.stderr
    assert not any(traces(gang))


def test_an_engine_that_is_stopped_is_started_by_provisioning(gang: LabUnderTest) -> None:
    gang.in_container(2, "systemctl stop docker docker.socket")
    try:
        refused = up(gang, "engine", "--no-provision")
        done = up(gang, "engine")
    finally:
        gang.in_container(2, "systemctl start docker")
    assert refused.returncode == 1
    assert "gang-2" in refused.stderr
    assert "tfdeploy provision" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert set(states(status(gang)).values()) == {"running"}
    down(gang)


def test_an_unknown_host_key_is_taken_only_with_leave(gang: LabUnderTest, tmp_path: Path) -> None:
    text = (gang.directory / "lab.ini").read_text()
    known = next(Path(part.split('"')[1]) for part in text.split("-o ") if "UserKnownHostsFile" in part and '"' in part)
    strange = gang.write("strange.ini", text.replace(str(known), str(tmp_path / "known")))
    refused = up(gang, "strange", strange)
    assert refused.returncode == 3
    assert "host key unknown" in refused.stderr
    taken = up(gang, "strange", strange, "--accept-new-host-keys")
    assert taken.returncode == 0, taken.stderr
    assert "seen for the first time" in taken.stderr
    assert len((tmp_path / "known").read_text().splitlines()) == 3
    down(gang)


def test_a_host_that_is_refused_for_its_key_is_left_alone(gang: LabUnderTest, tmp_path: Path) -> None:
    """A connection that stays open without a login counts against sshd's MaxStartups, and locks everybody out."""
    text = (gang.directory / "lab.ini").read_text()
    strange = gang.write("strange.ini", text.replace("known_hosts", "no_known_hosts"))
    host = inventory.read((str(gang.directory / strange),)).hosts[0]

    def connections() -> int:
        return int(gang.in_container(1, "ss -Htn state established sport = :22 | wc -l"))

    before = eventually(lambda: connections() == 0 and "none", "quiet")
    for _ in range(3):
        with pytest.raises(UnreachableError, match="host key unknown"):
            remote.enter(host)
    eventually(lambda: connections() == 0, f"{before}, as before, but {connections()} connections", seconds=15)

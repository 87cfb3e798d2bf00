"""`up`, `status`, `ls`, `down`, `logs`, `exec` and `lock` as a user meets them, as far as that goes without hosts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.conftest import Outcome
from tests.unit.launches import launch
from tfdeploy import jobs
from tfdeploy.cli.logs import _chosen, _moment
from tfdeploy.cli.status import show_time
from tfdeploy.errors import InputError
from tfdeploy.inventory import Connection, Host, Vault
from tfdeploy.plan import Wishes

Cli = Callable[..., Outcome]
ON_A_JOB = [["attach"], ["status"], ["down"], ["logs"], ["exec", "worker-0", "--", "true"]]
# No machine will ever answer there, and it says so at once.
NOWHERE = Host("nowhere", Connection("127.0.0.1", 1, ssh_common_args="-F none -o UserKnownHostsFile=none"))


def remembered(*names: str) -> None:
    for name in names:
        jobs.remember(name, [NOWHERE], ["inventory.ini"], Vault())


def named(words: list[str], job: str) -> list[str]:
    """The command with a job's name where it takes one."""
    return [words[0], "-j", job, *words[1:]] if words[0] in ("logs", "exec") else [words[0], job, *words[1:]]


# --- which job ---


@pytest.mark.parametrize("words", ON_A_JOB)
def test_no_job_known_ends_with_2_and_says_what_to_do(here: Path, cli: Cli, words: list[str]) -> None:
    outcome = cli(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        "error: no job was launched from here, or all are down."
        " Name it and say where it runs: -i INVENTORY or --via HOST.\n"
    )


@pytest.mark.parametrize("words", ON_A_JOB)
def test_two_jobs_known_must_be_told_apart(here: Path, cli: Cli, words: list[str]) -> None:
    remembered("a", "b")
    outcome = cli(*words)
    assert (outcome.code, outcome.err) == (2, "error: which job? There are a, b. Name one.\n")


@pytest.mark.parametrize("words", ON_A_JOB)
def test_a_job_that_nobody_knows_is_named(here: Path, cli: Cli, words: list[str]) -> None:
    remembered("a")
    outcome = cli(*named(words, "c"))
    assert outcome.code == 2
    assert outcome.err.startswith("error: c: no job c was launched from here.")
    assert "launched from here: a" in outcome.err


@pytest.mark.parametrize("words", ON_A_JOB)
def test_the_job_file_names_the_job(here: Path, cli: Cli, words: list[str]) -> None:
    """Its hosts are then entered, in vain."""
    remembered("a", "mnist")
    (here / "tfdeploy.yml").write_text("name: mnist\nimage: x\n")
    outcome = cli(*words)
    assert outcome.code == 3
    assert outcome.err.startswith("error: nowhere: ")


@pytest.mark.parametrize("words", ON_A_JOB)
def test_hosts_that_cannot_be_entered_end_with_3(here: Path, cli: Cli, words: list[str]) -> None:
    remembered("a")
    assert cli(*words).code == 3


def test_a_jobs_name_before_tasks_is_taken_for_the_job_by_logs(here: Path, cli: Cli) -> None:
    remembered("a", "b")
    assert cli("logs", "b", "worker-0").code == 3
    assert cli("logs", "worker-0").code == 2


def test_ls_of_nothing_is_no_error(here: Path, cli: Cli) -> None:
    outcome = cli("ls")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no jobs\n")
    assert cli("ls", "-o", "json").out == '{\n  "jobs": [],\n  "unreachable": {}\n}\n'


def test_ls_names_the_hosts_that_it_could_not_ask(here: Path, cli: Cli) -> None:
    remembered("a")
    outcome = cli("ls")
    assert outcome.code == 3
    assert "nowhere: " in outcome.err


def test_down_of_all_where_there_is_none_is_no_error(here: Path, cli: Cli) -> None:
    assert cli("down", "--all") == Outcome(0, "", "no jobs\n")


def test_a_job_is_not_forgotten_while_its_hosts_cannot_be_asked(here: Path, cli: Cli) -> None:
    remembered("a")
    assert cli("down", "a", "--discard").code == 3
    assert jobs.known_jobs() == ("a",)


# --- flags ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "-i", "inv.ini", "--via", "h"], "-i and --via are two ways to say where to look."),
        (["status", "-i", "nowhere.ini"], "nowhere.ini: no such inventory."),
        (["ls", "-i", "nowhere.ini"], "nowhere.ini: no such inventory."),
        (["status", "--via", "a b"], "--via a b: not a host: "),
        (["down", "--via", "h:99999"], "--via h:99999: not a host: "),
        (["down", "a", "--all"], "a: a job and --all. Give one of them."),
        (["down", "--grace", "soon"], "--grace: 'soon' is not a duration."),
        (["down", "--grace", "-1"], "--grace: '-1' is not a duration."),
        (["logs", "--since", "yesterday"], "--since: 'yesterday' is not a time."),
        (["exec", "worker-0"], "no command. Write it after --"),
        (["exec", "worker-0", "--"], "no command. Write it after --"),
        (["lock", "status"], "no inventory given."),
        (["lock", "release", "nowhere.ini"], "nowhere.ini: no such inventory."),
        (["up"], "no inventory given."),
        (["up", "nowhere.ini"], "nowhere.ini: no such inventory."),
        (["up", "inv.ini"], "no image to run. Give --image"),
        (["up", "inv.ini", "--image", "x", "--ps", "9"], "tasks.ps: 9 ps asked for, 2 fit"),
        (["up", "inv.ini", "--image", "a b"], "--image: image: 'a b' is not one plain word."),
        (["up", "inv.ini", "--name", "A"], "--name: name: 'A' cannot be a job's name."),
        (["up", "--local", "inv.ini"], "inv.ini: --local needs no inventory."),
        (["up", "--local"], "worker-0: nothing to run"),
        (["up", "--local", "--ps", "1"], "ps-0: nothing to run"),
        (["up", "inv.ini", "--", "--local"], "no image to run."),
    ],
)
def test_bad_input_ends_with_2_before_any_host_is_entered(here: Path, cli: Cli, words: list[str], message: str) -> None:
    (here / "inv.ini").write_text("h1\nh2\n")
    outcome = cli(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    "words",
    [
        ["status", "-o", "xml"],
        ["status", "a", "b"],
        ["ls", "a"],
        ["down", "--force"],
        ["logs", "-n", "-1"],
        ["logs", "-n", "many"],
        ["exec"],
        ["lock", "steal"],
        ["lock", "status", "-o", "yaml"],
        ["up", "inv.ini", "--ps", "-1"],
        ["up", "inv.ini", "--nope"],
    ],
)
def test_a_wrong_flag_ends_with_2(here: Path, cli: Cli, words: list[str]) -> None:
    (here / "inv.ini").write_text("h1\n")
    assert cli(*words).code == 2


def test_secrets_that_are_not_set_are_missed_before_any_host_is_entered(here: Path, cli: Cli) -> None:
    (here / "inv.ini").write_text("h1\n")
    (here / "tfdeploy.yml").write_text("image: x\nsecrets: [NOT_SET_ANYWHERE]\n")
    assert cli("up", "inv.ini").err.startswith("error: secrets: NOT_SET_ANYWHERE not set in the environment.")


@pytest.mark.parametrize("command", ["up", "attach", "status", "ls", "down", "logs", "exec", "lock"])
def test_help_needs_nothing(here: Path, cli: Cli, command: str) -> None:
    outcome = cli(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: tfdeploy {command} ")


# --- what is asked of logs, and how times are shown ---


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ((), ["ps-0", "worker-0", "worker-1"]),
        (("worker",), ["worker-0", "worker-1"]),
        (("worker-1", "ps"), ["worker-1", "ps-0"]),
        (("worker-0.demo", "worker"), ["worker-0", "worker-1"]),
    ],
)
def test_logs_are_of_tasks_or_roles(wanted: tuple[str, ...], chosen: list[str]) -> None:
    made = launch("a", "b", "c", wishes=Wishes(ps=1, workers=2))
    assert [task.id for task in _chosen(made, wanted)] == chosen


def test_logs_of_a_task_that_is_none_are_refused() -> None:
    with pytest.raises(InputError, match=r"worker-7: no such task\. Did you mean worker-0\?"):
        _chosen(launch("a"), ("worker-7",))


def test_since_is_a_moment() -> None:
    assert _moment("") == ""
    assert _moment("2026-11-18T15:00:00Z") == "2026-11-18T15:00:00Z"
    assert _moment("10m") < _moment("5m") < _moment("1s")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0s"), (59.9, "59s"), (60, "1m0s"), (3599, "59m59s"), (3661, "1h1m"), (90000, "1d1h")],
)
def test_times_are_shown_in_two_units(seconds: float | None, shown: str) -> None:
    assert show_time(seconds) == shown

"""What runs, from what hosts print: every state of a container and a process, and whatever else a host may say."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.launches import GENERATION, launch
from tfdeploy import truth
from tfdeploy.errors import TfdeployError
from tfdeploy.lock import WATCH_STALE_AFTER, Holder
from tfdeploy.outcome import Outcome
from tfdeploy.plan import Wishes
from tfdeploy.truth import HostView, State, TaskState, how_it_ended

laws = settings(max_examples=200, deadline=None)
ZERO = "0001-01-01T00:00:00Z"
STARTED, FINISHED = "2026-11-18T16:00:00.123456789Z", "2026-11-18T16:01:00.5Z"
WATCHER = Holder("demo", GENERATION, "me@here (pid 1)", "2026-11-18T16:00:00Z")
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def said(**sections: str) -> str:
    return "".join(f"\x1e{name}\n{body}\n" for name, body in sections.items())


def container(task: str = "worker-0", generation: str = GENERATION, restarts: object = 0, **state: Any) -> str:
    """As `docker inspect` shows it."""
    whole = {
        "Status": "running",
        "Running": True,
        "Paused": False,
        "Restarting": False,
        "OOMKilled": False,
        "Dead": False,
        "Pid": 4711,
        "ExitCode": 0,
        "Error": "",
        "StartedAt": STARTED,
        "FinishedAt": ZERO,
    }
    return json.dumps({"task": task, "generation": generation, "state": whole | state, "restarts": restarts})


def one(**state: Any) -> TaskState:
    view = truth.host_view(said(containers=container(**state)), GENERATION)
    return truth.job_view(launch(), {"a": view}).tasks[0]


# --- containers ---


@pytest.mark.parametrize(
    ("state", "expected", "code", "why"),
    [
        ({"Status": "created", "StartedAt": ZERO}, State.CREATED, None, None),
        ({"Status": "running"}, State.RUNNING, None, None),
        ({"Status": "paused", "Paused": True}, State.RUNNING, None, None),
        ({"Status": "restarting", "ExitCode": 1}, State.RESTARTING, None, None),
        ({"Status": "exited"}, State.SUCCEEDED, 0, "exit code 0"),
        ({"Status": "exited", "ExitCode": 1}, State.FAILED, 1, "exit code 1"),
        ({"Status": "exited", "ExitCode": 137}, State.FAILED, 137, "137: killed (SIGKILL)"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, State.FAILED, 137, "out of memory"),
        ({"Status": "exited", "ExitCode": 143}, State.FAILED, 143, "143: terminated (SIGTERM)"),
        ({"Status": "exited", "ExitCode": 139}, State.FAILED, 139, "139: segmentation fault (SIGSEGV)"),
        ({"Status": "dead", "ExitCode": 255}, State.FAILED, 255, "255: signal 127"),
        ({"Status": "dead"}, State.SUCCEEDED, 0, "exit code 0"),
        ({"Status": "removing"}, State.UNKNOWN, None, None),
        ({"Status": "exited", "ExitCode": None}, State.FAILED, None, "ended, and nobody knows how"),
    ],
)
def test_every_state_of_a_container(state: dict[str, Any], expected: State, code: int | None, why: str | None) -> None:
    seen = one(**state)
    assert (seen.state, seen.exit_code) == (expected, code)
    assert why in (None, seen.why)
    assert seen.state.over is (expected in (State.SUCCEEDED, State.FAILED))


def test_times_are_read_to_the_microsecond() -> None:
    seen = one(Status="exited", FinishedAt=FINISHED)
    assert seen.started == pytest.approx(1795017600.123456, abs=1e-6)
    assert seen.finished == 1795017660.5


def test_only_a_running_task_has_an_uptime() -> None:
    assert one().uptime(1795017610.123456) == pytest.approx(10)
    assert one().uptime(0) == 0
    assert one(Status="exited").uptime(1795017610) is None
    assert one(Status="created", StartedAt=ZERO).uptime(1795017610) is None


def test_restarts_are_counted() -> None:
    assert one(restarts=3).restarts == 3


def test_what_docker_says_of_a_start_that_failed_is_shown_without_what_a_terminal_obeys() -> None:
    seen = one(Status="exited", ExitCode=127, Error='exec: "nope"\x1b[31m: not found\n')
    assert seen.why == '127: command not found (exec: "nope"[31m: not found)'


def test_containers_of_another_launch_are_not_the_jobs() -> None:
    view = truth.host_view(said(containers=container(generation="g0")), GENERATION)
    assert view.states == {}


def test_the_hosts_own_record_says_which_launch_counts() -> None:
    view = truth.host_view(said(launch=launch().to_json(), containers=container(generation="g0")), "g0")
    assert view.states == {}


@pytest.mark.parametrize(("code", "expected"), [(0, State.STOPPED), (143, State.STOPPED)])
def test_what_was_stopped_on_purpose_has_not_failed(code: int, expected: State) -> None:
    lines = said(stopped="worker-0\nother-1", containers=container(Status="exited", ExitCode=code))
    assert truth.host_view(lines, GENERATION).states["worker-0"]["state"] is expected


def test_what_shall_stop_but_runs_still_runs() -> None:
    lines = said(stopped="worker-0", containers=container())
    assert truth.host_view(lines, GENERATION).states["worker-0"]["state"] is State.RUNNING


# --- processes ---


def process(**values: Any) -> str:
    whole = {"dir": "worker-0", "state": "running", "alive": True, "started": STARTED, "restarts": 0}
    return json.dumps(whole | values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, State.RUNNING),
        ({"state": "created"}, State.CREATED),
        ({"state": "restarting"}, State.RESTARTING),
        ({"state": "exited", "exit_code": 0}, State.SUCCEEDED),
        ({"state": "exited", "exit_code": 1}, State.FAILED),
        ({"state": "exited", "exit_code": None, "error": "its keeper is gone"}, State.FAILED),
        ({"state": "exited", "exit_code": 143, "stopped": True}, State.STOPPED),
    ],
)
def test_every_state_of_a_process(values: dict[str, Any], expected: State) -> None:
    assert truth.host_view(said(processes=process(**values))).states["worker-0"]["state"] is expected


# --- usage ---


def test_cores_are_the_difference_of_two_samples() -> None:
    lines = (
        said(containers=container()) + said(usage="100.0\nworker-0 1000000 5") + said(usage="100.5\nworker-0 2000000 7")
    )
    state = truth.host_view(lines, GENERATION).states["worker-0"]
    assert (state["cpu"], state["memory"]) == (2.0, 7)


def test_cores_of_a_process_are_the_difference_of_two_looks() -> None:
    lines = said(processes=process(cpu_seconds=1.0, memory=5)) + said(usage="10.0") + said(usage="10.5")
    lines += said(later=process(cpu_seconds=1.25, memory=9))
    state = truth.host_view(lines).states["worker-0"]
    assert (state["cpu"], state["memory"]) == (0.5, 9)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "9" * 400, '"x"', "null", "[]", "true"])
def test_numbers_that_are_none_break_nothing(number: str) -> None:
    odd = process(cpu_seconds="CPU", memory="CPU").replace('"CPU"', number)
    lines = said(processes=odd) + said(usage="10.0\nworker-0 x y") + said(usage="10.5\nworker-0 1 2") + said(later=odd)
    state = truth.host_view(lines).states["worker-0"]
    assert isinstance(state["memory"], int)
    assert state["cpu"] >= 0


# --- all hosts together ---


def view(*lines: str, **values: Any) -> HostView:
    return truth.host_view(said(containers="\n".join(lines), **values), GENERATION)


def test_a_host_that_says_nothing_of_a_task_has_lost_it_and_one_that_could_not_be_asked_leaves_it_unknown() -> None:
    made = launch("a", "b", "c")
    error = TfdeployError("unreachable", where="b")
    seen = truth.job_view(made, {"a": view(), "b": error, "c": view(broken="no engine")})
    assert [each.state for each in seen.tasks] == [State.LOST, State.UNKNOWN, State.UNKNOWN]
    assert seen.errors["b"] is error
    assert str(seen.errors["c"]) == "c: no engine."


def test_a_job_runs_once_a_task_does() -> None:
    made = launch("a", wishes=Wishes(ps=1, workers=1))
    created = [container(task, Status="created") for task in ("ps-0", "worker-0")]
    assert truth.job_view(made, {"a": view(*created)}).state == "launching"
    running = truth.job_view(made, {"a": view(created[0], container())})
    assert (running.state, running.of("worker-0").state) == ("running", State.RUNNING)


def test_the_first_outcome_counts() -> None:
    outcomes = [Outcome("stopped", "taken down", 20.0), Outcome("failed", "worker-0: exit code 1", 10.0)]
    views = {name: view(outcome=each.to_json()) for name, each in zip("ab", outcomes, strict=True)}
    seen = truth.job_view(launch("a", "b"), views)
    assert (seen.outcome, seen.state) == (outcomes[1], "failed")


@pytest.mark.parametrize(("age", "supervised"), [(0, True), (WATCH_STALE_AFTER, True), (WATCH_STALE_AFTER + 1, False)])
def test_whoever_gives_no_sign_of_life_does_not_watch(age: int, supervised: bool) -> None:
    seen = truth.job_view(launch(), {"a": view(watch=f"{age}\n{WATCHER.line()}")})
    assert seen.supervised is supervised
    assert (seen.watcher == WATCHER) is supervised


def test_the_last_launch_counts() -> None:
    from dataclasses import replace

    launches = [replace(launch(), at=at) for at in (1.0, 3.0, 2.0)]
    assert truth.newest(launches) is launches[1]


# --- how it ended ---


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (2, "exit code 2"),
        (125, "exit code 125"),
        (126, "126: the command cannot be executed"),
        (127, "127: command not found"),
        (130, "130: interrupted (SIGINT)"),
        (134, "134: aborted (SIGABRT)"),
        (137, "137: killed (SIGKILL)"),
        (138, "138: asks to be started again (SIGUSR1)"),
        (143, "143: terminated (SIGTERM)"),
        (150, "150: signal 22"),
        (None, "ended, and nobody knows how"),
    ],
)
def test_exit_codes_are_said_in_words(code: int | None, words: str) -> None:
    assert how_it_ended(code) == words


def test_an_error_is_said_beside_its_code() -> None:
    assert how_it_ended(125, error="no such user") == "exit code 125 (no such user)"
    assert how_it_ended(None, error="its keeper is gone") == "its keeper is gone"
    assert how_it_ended(137, oom=True, error="x") == "out of memory"


# --- whatever a host says ---


def shown(printed: str) -> None:
    """An error of ours, or a view of which all can be shown."""
    try:
        seen = truth.host_view(printed, GENERATION)
    except TfdeployError:
        return
    view = truth.job_view(launch(), {"a": seen})
    for each in view.tasks:
        assert each.why.isprintable()
        assert each.error.isprintable()
        each.uptime(view.now)
    assert isinstance(view.state, str)
    assert view.watcher is None or str(view.watcher).isprintable()
    assert view.outcome is None or view.outcome.reason.isprintable()


@laws
@given(st.text())
def test_any_text_is_a_view_or_an_error_of_ours(text: str) -> None:
    shown(text)


SECTIONS = ["launch", "watch", "outcome", "now", "stopped", "containers", "processes", "usage", "later", "broken"]


@laws
@given(st.lists(st.tuples(st.sampled_from(SECTIONS), st.text() | nonsense.map(json.dumps)), max_size=8))
def test_any_text_in_any_section_is_a_view_or_an_error_of_ours(sections: list[tuple[str, str]]) -> None:
    shown("".join(f"\x1e{name}\n{body}\n" for name, body in sections))


@laws
@given(st.dictionaries(st.sampled_from(["Status", "ExitCode", "OOMKilled", "Error", "StartedAt"]), nonsense), nonsense)
def test_any_container_is_a_view_or_an_error_of_ours(state: dict[str, Any], restarts: object) -> None:
    shown(said(containers=container(restarts=restarts, **state)))


KEYS = [
    "dir",
    "state",
    "exit_code",
    "oom",
    "started",
    "finished",
    "restarts",
    "error",
    "alive",
    "cpu_seconds",
    "memory",
]


@laws
@given(*[st.dictionaries(st.sampled_from(KEYS), nonsense)] * 2)
def test_any_process_is_a_view_or_an_error_of_ours(first: dict[str, Any], second: dict[str, Any]) -> None:
    usage = said(usage="1.0") + said(usage="2.0")
    shown(said(processes=process(**first)) + usage + said(later=process(**second)))


@laws
@given(st.dictionaries(st.sampled_from(["state", "reason", "at", "task", "host", "exit_code", "more"]), nonsense))
def test_any_outcome_is_one_or_an_error_of_ours(values: dict[str, Any]) -> None:
    whole = {"state": "failed", "reason": "r", "at": 1.0} | values
    shown(said(outcome=json.dumps(whole)))
    both = [Outcome("failed", "r", 1.0).to_json(), json.dumps(whole)]
    try:
        views = {name: truth.host_view(said(outcome=text)) for name, text in zip("ab", both, strict=True)}
    except TfdeployError:
        return
    assert truth.job_view(launch("a", "b"), views).outcome

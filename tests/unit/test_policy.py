"""What the states of tasks mean for their job: one table for every role and policy."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.launches import launch
from tfdeploy.errors import InputError
from tfdeploy.launch import Launch
from tfdeploy.outcome import Outcome
from tfdeploy.policy import decides, verdict
from tfdeploy.truth import State, TaskState

NOW = 1000.0
ROLES = {"ps": {"count": 1}, "worker": {"count": 2}, "evaluator": {}, "tensorboard": {}}
WITH_CHIEF = {**ROLES, "chief": {}}


def made(*, chief: bool, success: str | None = None) -> Launch:
    policies = {"success": success} if success else {}
    return launch("a", "b", "c", tasks=WITH_CHIEF if chief else ROLES, policies=policies)


def states(job: Launch, **said: State) -> list[TaskState]:
    """All run, but for those that are named: `worker_0=State.FAILED`."""
    named = {key.replace("_", "-"): state for key, state in said.items()}
    codes = {State.SUCCEEDED: 0, State.FAILED: 1}
    return [
        TaskState(task, state, codes.get(state), finished=900.0)
        for task in job.plan.tasks
        for state in (named.get(task.id, State.RUNNING),)
    ]


def judged(job: Launch, **said: State) -> str | None:
    outcome = verdict(job.plan, states(job, **said), NOW)
    return outcome.state if outcome else None


OK, BAD, STOPPED = State.SUCCEEDED, State.FAILED, State.STOPPED


@pytest.mark.parametrize(
    ("chief", "success", "who"),
    [
        (True, None, ["chief-0"]),
        (True, "chief", ["chief-0"]),
        (True, "worker-0", ["worker-0"]),
        (True, "all-workers", ["worker-0", "worker-1"]),
        (False, None, ["worker-0"]),
        (False, "worker-0", ["worker-0"]),
        (False, "all-workers", ["worker-0", "worker-1"]),
    ],
)
def test_who_decides(chief: bool, success: str | None, who: list[str]) -> None:
    assert [task.id for task in decides(made(chief=chief, success=success).plan)] == who


@pytest.mark.parametrize(
    ("chief", "success", "done", "expected"),
    [
        (True, None, "chief_0", "succeeded"),
        (True, None, "worker_0", None),
        (True, None, "worker_1", None),
        (True, "chief", "chief_0", "succeeded"),
        (True, "chief", "worker_0", None),
        (True, "worker-0", "worker_0", "succeeded"),
        (True, "worker-0", "chief_0", None),
        (True, "worker-0", "worker_1", None),
        (True, "all-workers", "chief_0", None),
        (True, "all-workers", "worker_0", None),
        (True, "all-workers", "worker_0 worker_1", "succeeded"),
        (False, None, "worker_0", "succeeded"),
        (False, None, "worker_1", None),
        (False, "worker-0", "worker_0", "succeeded"),
        (False, "all-workers", "worker_1", None),
        (False, "all-workers", "worker_0 worker_1", "succeeded"),
        *[(chief, None, task, None) for chief in (True, False) for task in ("ps_0", "evaluator_0", "tensorboard_0")],
    ],
)
def test_whose_exit_with_0_is_success(chief: bool, success: str | None, done: str, expected: str | None) -> None:
    assert judged(made(chief=chief, success=success), **dict.fromkeys(done.split(), OK)) == expected


@pytest.mark.parametrize("success", [None, "chief", "worker-0", "all-workers"])
@pytest.mark.parametrize("task", ["chief_0", "ps_0", "worker_0", "worker_1", "evaluator_0"])
def test_any_task_that_fails_fails_the_job(task: str, success: str | None) -> None:
    assert judged(made(chief=True, success=success), **{task: BAD}) == "failed"


def test_tensorboard_only_looks_on() -> None:
    assert judged(made(chief=True), tensorboard_0=BAD) is None


@pytest.mark.parametrize("success", ["chief", "worker-0", "all-workers"])
@pytest.mark.parametrize("task", ["chief_0", "ps_0", "worker_0", "worker_1", "evaluator_0", "tensorboard_0"])
def test_only_who_decides_stops_the_job_by_being_stopped(task: str, success: str) -> None:
    job = made(chief=True, success=success)
    expected = "stopped" if task.replace("_", "-") in [each.id for each in decides(job.plan)] else None
    assert judged(job, **{task: STOPPED}) == expected


@pytest.mark.parametrize("state", [each for each in State if not each.over])
@pytest.mark.parametrize("task", ["chief_0", "ps_0", "worker_0", "evaluator_0", "tensorboard_0"])
def test_while_nothing_is_over_the_job_goes_on(task: str, state: State) -> None:
    assert judged(made(chief=True), **{task: state}) is None


def test_success_is_looked_for_first() -> None:
    assert judged(made(chief=True), chief_0=OK, worker_1=BAD, ps_0=BAD) == "succeeded"


def test_a_failure_counts_more_than_a_stop() -> None:
    assert judged(made(chief=True), chief_0=STOPPED, ps_0=BAD) == "failed"


def test_one_of_all_workers_that_failed_fails_the_job_though_the_other_is_done() -> None:
    assert judged(made(chief=False, success="all-workers"), worker_0=OK, worker_1=BAD) == "failed"


def test_the_cause_is_the_task_that_failed_first() -> None:
    job = made(chief=True)
    seen = [
        replace(each, finished={"chief-0": 950.0, "ps-0": 940.0}[each.task.id], exit_code=7)
        if each.state is BAD
        else each
        for each in states(job, chief_0=BAD, ps_0=BAD)
    ]
    assert verdict(job.plan, seen, NOW) == Outcome("failed", "ps-0: exit code 7", NOW, "ps-0", "a", 7)


def test_a_failure_whose_time_nobody_knows_is_taken_for_the_last() -> None:
    job = made(chief=True)
    seen = [
        replace(each, finished=0.0 if each.task.id == "chief-0" else 940.0)
        for each in states(job, chief_0=BAD, ps_0=BAD)
    ]
    outcome = verdict(job.plan, seen, NOW)
    assert outcome
    assert outcome.task == "ps-0"


def test_a_job_in_which_nobody_decides_has_not_succeeded() -> None:
    job = launch("a", tasks={"worker": {"count": 1}, "ps": {"count": 1}})
    plan = replace(job.plan, tasks=job.plan.by_role["ps"])
    assert verdict(plan, [TaskState(plan.tasks[0], State.RUNNING)], NOW) is None


def test_success_names_who_decided() -> None:
    job = made(chief=False, success="all-workers")
    assert verdict(job.plan, states(job, worker_0=OK, worker_1=OK), NOW) == Outcome(
        "succeeded", "worker-0, worker-1 exited with 0", NOW
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(list(State)), min_size=6, max_size=6), st.sampled_from([None, "worker-0", "all-workers"])
)
def test_a_verdict_needs_a_task_that_is_over(given_states: list[State], success: str | None) -> None:
    job = made(chief=True, success=success)
    seen = [TaskState(task, state, 0) for task, state in zip(job.plan.tasks, given_states, strict=True)]
    outcome = verdict(job.plan, seen, NOW)
    if outcome:
        assert any(each.state == outcome.state for each in seen)
        assert Outcome.from_json(outcome.to_json()) == outcome
    else:
        assert State.FAILED not in [each.state for each in seen if each.task.role != "tensorboard"]


# --- the outcome as it is kept ---


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "null", '"x"', "{}", '{"state": "won", "reason": "", "at": 1}', '{"state": "failed", "reason": ""}']
    + [
        f'{{"state": "failed", "reason": "", "at": {at}}}'
        for at in ("NaN", "Infinity", "null", '"x"', "[]", "1" + "0" * 400)
    ]
    + [
        '{"state": "failed", "reason": "", "at": 1, "exit_code": "1"}',
        '{"state": "failed", "reason": 5, "at": 1}',
        '{"state": "failed", "reason": "\\u001b[31m", "at": 1}',
        '{"state": "failed", "reason": "", "at": 1, "task": ["a"]}',
        '{"state": "failed", "reason": "", "at": 1, "more": 1}',
        '{"state": ["failed"], "reason": "", "at": 1}',
        "[" * 100_000,
    ],
)
def test_an_outcome_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="its record of the job's end cannot be read"):
        Outcome.from_json(text)

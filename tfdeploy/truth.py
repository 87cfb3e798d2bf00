"""What runs, as the hosts say: states of tasks and jobs, rebuilt from what one script printed on each host. Pure."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tfdeploy.errors import TfdeployError
from tfdeploy.host_scripts import records
from tfdeploy.launch import Launch
from tfdeploy.lock import WATCH_STALE_AFTER, Holder
from tfdeploy.outcome import Outcome
from tfdeploy.task import Task


class State(StrEnum):
    """Of a task."""

    PLANNED = "planned"
    CREATED = "created"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def over(self) -> bool:
        return self in (State.SUCCEEDED, State.FAILED, State.STOPPED)


@dataclass(frozen=True, slots=True)
class TaskState:
    task: Task
    state: State
    exit_code: int | None = None
    oom: bool = False
    started: float = 0.0
    finished: float = 0.0
    restarts: int = 0
    error: str = ""
    cpu: float | None = None
    """Cores in use."""
    memory: int | None = None

    def uptime(self, now: float) -> float | None:
        return max(0.0, now - self.started) if self.started and self.state is State.RUNNING else None

    @property
    def why(self) -> str:
        """How it ended, in words."""
        return how_it_ended(self.exit_code, oom=self.oom, error=self.error)


@dataclass(frozen=True)
class HostView:
    """What one host said of a job."""

    launch: Launch | None = None
    watcher: Holder | None = None
    watcher_age: int = 0
    outcome: Outcome | None = None
    now: float = 0.0
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By task id: keys of TaskState."""
    broken: str = ""

    @property
    def supervised(self) -> bool:
        return self.watcher is not None and self.watcher_age <= WATCH_STALE_AFTER


@dataclass(frozen=True)
class JobView:
    launch: Launch
    tasks: tuple[TaskState, ...]
    outcome: Outcome | None = None
    watcher: Holder | None = None
    errors: Mapping[str, TfdeployError] = field(default_factory=dict)
    """Hosts that could not be asked."""
    now: float = 0.0

    @property
    def state(self) -> str:
        if self.outcome:
            return self.outcome.state
        states = {each.state for each in self.tasks}
        if states <= {State.CREATED, State.PLANNED}:
            return "launching"
        return "running"

    @property
    def supervised(self) -> bool:
        return self.watcher is not None

    def of(self, task_id: str) -> TaskState:
        return next(each for each in self.tasks if each.task.id == task_id)


def host_view(printed: str, generation: str = "") -> HostView:
    """One host's answer; containers of another launch are not the job's."""
    answers: dict[str, str] = {}
    samples: list[str] = []
    for word, body in records(printed):
        if word == "usage":
            samples.append(body)
        else:
            answers[word] = body
    launch = Launch.from_json(answers["launch"]) if answers.get("launch") else None
    generation = launch.generation if launch else generation
    watcher, age = _watcher(answers.get("watch", ""))
    states = _containers(answers.get("containers", ""), generation) | _processes(answers.get("processes", ""))
    for task_id in answers.get("stopped", "").split():
        if task_id in states and states[task_id]["state"] in (State.FAILED, State.SUCCEEDED):
            states[task_id]["state"] = State.STOPPED
    used = _usage(samples) | _process_usage(answers.get("processes", ""), answers.get("later", ""), samples)
    for task_id, (cpu, memory) in used.items():
        if task_id in states:
            states[task_id] |= {"cpu": cpu, "memory": memory}
    return HostView(
        launch=launch,
        watcher=watcher,
        watcher_age=age,
        outcome=Outcome.from_json(answers["outcome"]) if answers.get("outcome") else None,
        now=_float(answers.get("now", "")),
        states=states,
        broken=answers.get("broken", ""),
    )


def job_view(launch: Launch, views: Mapping[str, HostView | TfdeployError]) -> JobView:
    """All hosts' answers as one. A task whose host says nothing of it is unknown, not failed."""
    seen = {name: view for name, view in views.items() if isinstance(view, HostView)}
    watchers = [view.watcher for view in seen.values() if view.supervised]
    outcomes = [view.outcome for view in seen.values() if view.outcome]
    return JobView(
        launch=launch,
        tasks=tuple(_task_state(task, seen.get(task.host)) for task in launch.plan.tasks),
        outcome=min(outcomes, key=lambda each: each.at) if outcomes else None,
        watcher=watchers[0] if watchers else None,
        errors={name: view for name, view in views.items() if isinstance(view, TfdeployError)}
        | {name: TfdeployError(view.broken, where=name) for name, view in seen.items() if view.broken},
        now=max((view.now for view in seen.values()), default=0.0),
    )


def newest(launches: Iterable[Launch]) -> Launch:
    """Where hosts remember different launches of one job, the last one counts."""
    return max(launches, key=lambda each: each.at)


def how_it_ended(code: int | None, *, oom: bool = False, error: str = "") -> str:
    if oom:
        return "out of memory"
    if code is None:
        return error or "ended, and nobody knows how"
    if code == 127:
        return f"127: command not found{f' ({error})' if error else ''}"
    if code == 126:
        return f"126: the command cannot be executed{f' ({error})' if error else ''}"
    if code > 128:
        return f"{code}: {SIGNALS.get(code - 128, f'signal {code - 128}')}"
    return f"exit code {code}{f' ({error})' if error else ''}"


SIGNALS = {
    1: "hung up",
    2: "interrupted (SIGINT)",
    6: "aborted (SIGABRT)",
    9: "killed (SIGKILL)",
    10: "asks to be started again (SIGUSR1)",
    11: "segmentation fault (SIGSEGV)",
    15: "terminated (SIGTERM)",
}


def _task_state(task: Task, view: HostView | None) -> TaskState:
    if view is None:
        return TaskState(task, State.UNKNOWN)
    found = view.states.get(task.id)
    if found is None:
        return TaskState(task, State.UNKNOWN if view.broken else State.LOST)
    return replace(TaskState(task, State.UNKNOWN), **found)


def _watcher(body: str) -> tuple[Holder | None, int]:
    age, _, line = body.partition("\n")
    return (Holder.parse(line), int(_float(age))) if line.strip() else (None, 0)


def _containers(lines: str, generation: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for said in _json_lines(lines):
        state = said.get("state")
        if not isinstance(state, dict) or (generation and said.get("generation") != generation):
            continue
        code = state.get("ExitCode")
        found[str(said.get("task"))] = {
            "state": _docker_state(state),
            "exit_code": code if state.get("Status") in ("exited", "dead") and isinstance(code, int) else None,
            "oom": state.get("OOMKilled") is True,
            "started": _moment(state.get("StartedAt")),
            "finished": _moment(state.get("FinishedAt")),
            "restarts": said["restarts"] if isinstance(said.get("restarts"), int) else 0,
            "error": _plain(state.get("Error")),
        }
    return found


def _docker_state(state: Mapping[str, Any]) -> State:
    match state.get("Status"):
        case "created":
            return State.CREATED
        case "running" | "paused":
            return State.RUNNING
        case "restarting":
            return State.RESTARTING
        case "exited" | "dead":
            return State.SUCCEEDED if state.get("ExitCode") == 0 else State.FAILED
    return State.UNKNOWN


def _processes(lines: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for said in _json_lines(lines):
        code = said.get("exit_code")
        exited = State.SUCCEEDED if code == 0 else State.STOPPED if said.get("stopped") else State.FAILED
        known = {"running": State.RUNNING, "restarting": State.RESTARTING, "created": State.CREATED}
        found[str(said.get("dir"))] = {
            "state": known.get(str(said.get("state")), exited),
            "exit_code": code if isinstance(code, int) else None,
            "oom": said.get("oom") is True,
            "started": _moment(said.get("started")),
            "finished": _moment(said.get("finished")),
            "restarts": said["restarts"] if isinstance(said.get("restarts"), int) else 0,
            "error": _plain(said.get("error")),
        }
    return found


def _usage(samples: list[str]) -> dict[str, tuple[float, int]]:
    """Cores in use between two samples, and memory at the second."""
    if len(samples) != 2:
        return {}
    (before, first), (after, second) = (_sample(each) for each in samples)
    elapsed = after - before
    return {
        task: (max(0.0, (cpu - first[task][0]) / 1e6 / elapsed) if task in first and elapsed > 0 else 0.0, int(memory))
        for task, (cpu, memory) in second.items()
    }


def _process_usage(earlier: str, later: str, samples: list[str]) -> dict[str, tuple[float, int]]:
    if len(samples) != 2:
        return {}
    elapsed = _sample(samples[1])[0] - _sample(samples[0])[0]
    first, second = (
        {str(said["dir"]): said for said in _json_lines(lines) if said.get("alive") is True and "dir" in said}
        for lines in (earlier, later)
    )
    return {
        task: (
            max(0.0, (_number(second[task], "cpu_seconds") - _number(first[task], "cpu_seconds")) / elapsed),
            int(_number(second[task], "memory")),
        )
        for task in first.keys() & second.keys()
        if elapsed > 0
    }


def _number(said: Mapping[str, Any], key: str) -> float:
    return _float(str(said.get(key)))


def _sample(body: str) -> tuple[float, dict[str, tuple[float, float]]]:
    uptime, *lines = body.splitlines() or [""]
    rows = [line.split() for line in lines]
    return _float(uptime), {row[0]: (_float(row[1]), _float(row[2])) for row in rows if len(row) == 3}


def _json_lines(lines: str) -> Iterable[Mapping[str, Any]]:
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict):
                yield said


def _moment(text: object) -> float:
    """RFC 3339 with any number of decimals; Docker's zero time is none."""
    if not isinstance(text, str) or text.startswith("0001-"):
        return 0.0
    with contextlib.suppress(ValueError):
        whole, _, decimals = text.rstrip("Z").partition(".")
        moment = datetime.fromisoformat(whole[:19]).replace(tzinfo=UTC).timestamp()
        return moment + (float(f"0.{decimals[:6]}") if decimals[:6].isdigit() else 0.0)
    return 0.0


def _float(text: str) -> float:
    with contextlib.suppress(ValueError):
        number = float(text)
        if abs(number) < 1e18:
            return number
    return 0.0


def _plain(text: object) -> str:
    return "".join(character for character in str(text or "") if character.isprintable())

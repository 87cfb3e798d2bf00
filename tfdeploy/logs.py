"""What tasks print: read from every host, merged in the order of time, or followed as it comes."""

import heapq
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfdeploy import host_scripts, remote
from tfdeploy.errors import TfdeployError
from tfdeploy.launch import Launch
from tfdeploy.remote import Remote
from tfdeploy.task import Task

# What a terminal would obey: escape sequences, and control characters but tabs.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass(frozen=True, slots=True)
class Line:
    task: str
    time: str
    """RFC 3339, UTC, nine decimals, so that text order is the order of time."""
    text: str

    @classmethod
    def parse(cls, task: str, said: str, *, streams: bool = False) -> "Line":
        """`time text`, or where the streams are named, `time stdout text`."""
        time, _, text = said.partition(" ")
        if not time[:4].isdigit():
            return cls(task, "", said)
        return cls(task, normal_time(time), text.partition(" ")[2] if streams else text)

    @property
    def safe(self) -> str:
        """Without what a terminal would obey. A line that drew over itself shows what it was at last."""
        return _ESCAPES.sub("", self.text.rstrip("\r").rpartition("\r")[2])


def normal_time(text: str) -> str:
    """Engines leave out trailing zeros, which would break the order of texts."""
    whole, _, decimals = text.rstrip("Z").partition(".")
    return f"{whole}.{decimals:0<9}Z"


def merged(streams: Iterable[Sequence[Line]]) -> Iterable[Line]:
    """By time; within one task the order is kept even where its clock went back."""
    pairs = heapq.merge(*(_monotonic(stream) for stream in streams), key=lambda pair: pair[0])
    return (line for _, line in pairs)


def _monotonic(lines: Sequence[Line]) -> Iterable[tuple[str, Line]]:
    latest = ""
    for line in lines:
        latest = max(latest, line.time)
        yield latest, line


def read(
    launch: Launch,
    remotes: Mapping[str, Remote],
    tasks: Sequence[Task],
    *,
    tail: int | None = None,
    since: str = "",
) -> dict[str, list[Line] | TfdeployError]:
    """Everything so far, task by task."""
    streams = launch.plan.job.runtime == "process"

    def one(task: Task) -> list[Line]:
        host = remotes[task.host]
        script = host_scripts.logs(launch, host.home, task, follow=False, tail=tail, since=since)
        output = host.run(script)
        if output.code:
            raise TfdeployError(output.stdout.strip()[-200:] or "its log cannot be read", where=task.id)
        return [Line.parse(task.id, line, streams=streams) for line in output.stdout.split("\n")[:-1]]

    return remote.on_each({task.id: task for task in tasks if task.host in remotes}, one)


def tail(launch: Launch, remotes: Mapping[str, Remote], task: Task, count: int) -> list[Line]:
    answer = read(launch, remotes, (task,), tail=count).get(task.id)
    return answer if isinstance(answer, list) else []


def follow(
    launch: Launch,
    remotes: Mapping[str, Remote],
    tasks: Sequence[Task],
    on_line: Callable[[Line], None],
    over: threading.Event,
    *,
    tail: int | None = None,
    since: str = "",
) -> None:
    """Lines as they come, until every task has ended or `over` is set. A task that restarts is followed on."""
    mutex, streams = threading.Lock(), launch.plan.job.runtime == "process"

    def hand_on(line: Line) -> None:
        with mutex:
            on_line(line)

    def one(task: Task) -> None:
        host = remotes[task.host]
        script = host_scripts.logs(launch, host.home, task, follow=True, tail=tail, since=since)
        host.stream(script, lambda said: hand_on(Line.parse(task.id, said, streams=streams)), over)

    reachable = [task for task in tasks if task.host in remotes]
    if not reachable:
        return
    with ThreadPoolExecutor(len(reachable)) as pool:
        try:
            for ended in [pool.submit(one, task) for task in reachable]:
                error = ended.exception()
                if error and not isinstance(error, TfdeployError):
                    raise error
        finally:
            over.set()

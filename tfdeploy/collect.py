"""Gathering what a job leaves: logs, states, plan and outputs, whole or not at all, with a manifest of SHA-256 sums."""

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from tfdeploy import archive, host_scripts, remote
from tfdeploy.errors import CollectError, TfdeployError, all_of
from tfdeploy.launch import Launch
from tfdeploy.remote import Remote
from tfdeploy.sinks import Sink, open_sink
from tfdeploy.task import Task
from tfdeploy.truth import JobView
from tfdeploy.wording import last_line

DEFAULT_PLACE = "results"


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    size: int
    sha256: str
    host: str = ""
    task: str = ""


@dataclass
class Gathering:
    """One attempt; entries come from several hosts at once."""

    sink: Sink
    entries: list[Entry] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def file(self, path: str, chunks: Iterable[bytes], task: Task | None = None, *, executable: bool = False) -> Entry:
        digest, sizes = hashlib.sha256(), []

        def counted() -> Iterator[bytes]:
            for chunk in chunks:
                digest.update(chunk)
                sizes.append(len(chunk))
                yield chunk

        self.sink.file(path, counted(), executable=executable)
        whose = (task.host, task.id) if task else ("", "")
        entry = Entry(path, sum(sizes), digest.hexdigest(), *whose)
        with self.mutex:
            self.entries.append(entry)
        return entry


@dataclass(frozen=True)
class Collection:
    place: str
    files: int
    size: int


def collect(view: JobView, remotes: Mapping[str, Remote], to: str, *, states: str) -> Collection:
    """To TO/JOB/GENERATION. The hosts are told when the job is over, so that `down` knows that nothing is lost."""
    launch = view.launch
    missing = [host for host in launch.plan.hosts if host not in remotes]
    if missing:
        raise all_of(
            [
                CollectError("it could not be reached", "Try again with `tfdeploy collect`", where=host)
                for host in missing
            ]
        )
    sink = open_sink(to, launch.job, launch.generation)
    try:
        gathering = Gathering(sink)
        gathering.file("plan.json", [launch.to_json().encode()])
        gathering.file("states.json", [states.encode()])
        answers = remote.on_each(
            {task.id: task for task in launch.plan.tasks},
            lambda task: _task(launch, remotes[task.host], task, gathering),
        )
        errors = [answer for answer in answers.values() if isinstance(answer, TfdeployError)]
        if errors:
            raise CollectError(str(all_of(errors)))
        for path, target in gathering.links:
            sink.link(path, target)
        place = sink.publish(_manifest(launch, gathering))
    except BaseException:
        sink.abandon()
        raise
    if view.outcome:
        remote.on_each(remotes, lambda host: host.run(host_scripts.mark_collected(launch.job, host.home, place)))
    return Collection(place, len(gathering.entries), sum(entry.size for entry in gathering.entries))


def _task(launch: Launch, host: Remote, task: Task, gathering: Gathering) -> None:
    log = host_scripts.logs(launch, host.home, task, follow=False, tail=None, since="")
    host.fetch(log, lambda stream: gathering.file(f"logs/{task.id}.log", _chunks(stream), task))
    expected = _sums(host.run(host_scripts.sums(launch.job, host.home, task.id)).stdout)
    found: dict[str, str] = {}
    said = host.fetch(
        host_scripts.archive(launch.job, host.home, task.id),
        lambda stream: _unpack(stream, f"outputs/{task.id}", task, gathering, found),
    )
    if said.code:
        raise CollectError(f"its outputs could not be read: {last_line(said.stderr)}", where=f"{host.name}: {task.id}")
    wrong = [path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)]
    if wrong:
        raise CollectError(
            f"{wrong[0]!r:.200} is not what the host has", "Is something still writing there? Try again",
            where=f"{host.name}: {task.id}",
        )  # fmt: skip


def _unpack(stream: BinaryIO, prefix: str, task: Task, gathering: Gathering, found: dict[str, str]) -> None:
    for member in archive.members(stream):
        path = f"{prefix}/{member.path}"
        if member.kind == "directory":
            gathering.sink.directory(path)
        elif member.kind == "link":
            # At the very end, so that nothing is ever written through one.
            gathering.links.append((path, member.target))
        else:
            found[member.path] = gathering.file(path, member.chunks(), task, executable=member.executable).sha256


def _sums(printed: str) -> dict[str, str]:
    """sha256sum's lines with NUL between them, so that any name is itself."""
    lines = [line for line in printed.split("\0") if len(line) > 66]
    return {archive.safe_path(line[66:]): line[:64] for line in lines}


def _manifest(launch: Launch, gathering: Gathering) -> bytes:
    entries = sorted(gathering.entries, key=lambda entry: entry.path)
    files = [{name: getattr(entry, name) for name in ("path", "size", "sha256", "host", "task")} for entry in entries]
    about = {"job": launch.job, "generation": launch.generation, "files": files}
    return (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(archive.CHUNK):
        yield chunk

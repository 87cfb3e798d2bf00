"""`tfdeploy logs`: every task's log, merged."""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import search_options
from tfdeploy.errors import InputError, TfdeployError

if TYPE_CHECKING:
    from tfdeploy.jobs import Search
    from tfdeploy.launch import Launch
    from tfdeploy.logs import Line
    from tfdeploy.task import Task

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")


@click.command()
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("-j", "--job", metavar="JOB", help="Which job, where there are several.")
@search_options
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until the tasks have ended.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each task.")
@click.option("--since", default="", metavar="TIME", help="From this moment on: 10m, 2h, or 2026-11-18T15:00:00Z.")
@click.option("-t", "--timestamps", is_flag=True, help="Show the time of each line.")
@click.option("--raw", is_flag=True, help="Pass on escape sequences that tasks print.")
def logs(
    tasks: tuple[str, ...],
    job: str | None,
    search: "Search",
    follow: bool,
    tail: int | None,
    since: str,
    timestamps: bool,
    raw: bool,
) -> int:
    """What the tasks of a job print, merged in the order of time.

    TASK is as in worker-1, or a role for all of its tasks. A job's name is taken for one, too.

    \b
    Examples:
      tfdeploy logs
      tfdeploy logs -f worker-0 chief
      tfdeploy logs --since 10m -n 100 -j mnist
    """
    from tfdeploy import jobs
    from tfdeploy import logs as work

    job, wanted = _job_or_tasks(job, tasks)
    moment = _moment(since)
    with jobs.found(replace(search, job=job)) as found:
        chosen = _chosen(found.launch, wanted)
        put = printer(found.launch, timestamps=timestamps, raw=raw)
        for host, error in found.view.errors.items():
            show.problem(f"{error}" if error.where else f"{host}: {error}")
        if follow:
            over = threading.Event()
            try:
                work.follow(found.launch, found.entered, chosen, put, over, tail=tail, since=moment)
            finally:
                over.set()
        else:
            answers = work.read(found.launch, found.entered, chosen, tail=tail, since=moment)
            for line in work.merged(lines for lines in answers.values() if not isinstance(lines, TfdeployError)):
                put(line)
            for answer in answers.values():
                if isinstance(answer, TfdeployError):
                    show.problem(str(answer))
        return 3 if found.view.errors else 0


def printer(launch: "Launch", *, timestamps: bool = False, raw: bool = False) -> "Callable[[Line], None]":
    """One line to standard output, with its task in a colour of its own."""
    names = [task.id for task in launch.plan.tasks]
    width = max(map(len, names))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}

    def put(line: "Line") -> None:
        prefix = click.style(f"{line.task.ljust(width)} |", fg=colours[line.task])
        when = f" {line.time[:23]}Z" if timestamps else ""
        click.echo(f"{prefix}{when} {line.text if raw else line.safe}".rstrip())

    return put


def _job_or_tasks(job: str | None, words: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """`tfdeploy logs mnist` is what people type."""
    from tfdeploy import jobs

    if job is None and words and words[0] in jobs.known_jobs():
        return words[0], words[1:]
    return job, words


def _chosen(launch: "Launch", wanted: tuple[str, ...]) -> "tuple[Task, ...]":
    if not wanted:
        return launch.plan.tasks
    by_role = {role: tasks for role, tasks in launch.plan.by_role.items() if tasks}
    chosen = [task for word in wanted for task in by_role.get(word) or (launch.plan.task(word),)]  # type: ignore[call-overload]
    return tuple(dict.fromkeys(chosen))


def _moment(since: str) -> str:
    """As RFC 3339 in UTC; `10m` is ten minutes ago, by this machine's clock."""
    from tfdeploy.spec import Wrong, parse_duration

    if not since or re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d", since):
        return since
    try:
        ago = parse_duration(since)
    except Wrong:
        raise InputError(
            f"{since!r:.40} is not a time", "Write 10m, 2h or 2026-11-18T15:00:00Z", where="--since"
        ) from None
    return (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")

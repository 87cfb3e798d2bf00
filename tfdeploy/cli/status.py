"""`tfdeploy status`: one job and its tasks, as its hosts say."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import search_options

if TYPE_CHECKING:
    from tfdeploy.jobs import Search
    from tfdeploy.truth import JobView, TaskState


@click.command()
@click.argument("job", required=False)
@search_options
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(job: str | None, search: "Search", output: str) -> int:
    """A job and its tasks, as its hosts say.

    Nothing is remembered: any machine that can enter the hosts sees the same.
    JOB may be left out where there is only one, or where the job file here names it.

    \b
    Examples:
      tfdeploy status
      tfdeploy status mnist -i inventory.ini -o json
      tfdeploy status --via gpu-3
    """
    from tfdeploy import jobs

    with jobs.found(replace(search, job=job), usage=True) as found:
        view = found.view
    if output == "json":
        show.data(as_json(view))
    else:
        _show(view)
    for host, error in view.errors.items():
        show.problem(str(error) if error.where else f"{host}: {error}")
    return 3 if view.errors else 0


def as_json(view: "JobView") -> dict[str, Any]:
    return {
        "job": view.launch.job,
        "state": view.state,
        "supervised": view.supervised,
        "watched_by": view.watcher.who if view.watcher else None,
        "reason": view.outcome.reason if view.outcome else None,
        "generation": view.launch.generation,
        "launched_by": view.launch.by,
        "launched_at": view.launch.at,
        "image": view.launch.image,
        "tasks": [_task_json(each, view.now) for each in view.tasks],
        "unreachable": {host: str(error) for host, error in view.errors.items()},
    }


def _task_json(each: "TaskState", now: float) -> dict[str, Any]:
    return {
        "task": each.task.id,
        "host": each.task.host,
        "port": each.task.port,
        "gpus": list(each.task.gpus),
        "state": str(each.state),
        "uptime": each.uptime(now),
        "restarts": each.restarts,
        "exit_code": each.exit_code,
        "oom": each.oom,
        "error": each.error,
        "cpu": each.cpu,
        "memory": each.memory,
    }


def _show(view: "JobView") -> None:
    from tfdeploy.wording import show_size

    click.echo(headline(view))
    rows = [
        (
            each.task.id,
            each.task.host,
            str(each.state),
            show_time(each.uptime(view.now)),
            str(each.restarts),
            "-" if each.exit_code is None else str(each.exit_code),
            "-" if each.cpu is None else f"{each.cpu:.2f}",
            "-" if each.memory is None else show_size(each.memory),
            str(each.task.port),
        )
        for each in view.tasks
    ]
    show.table(("TASK", "HOST", "STATE", "UP", "RESTARTS", "EXIT", "CPU", "MEMORY", "PORT"), rows)
    for each in view.tasks:
        if each.state == "failed":
            show.problem(f"{each.task.id} on {each.task.host}: {each.why}")


def headline(view: "JobView") -> str:
    colour = {"succeeded": "green", "failed": "red", "running": "cyan"}.get(view.state, "yellow")
    reason = f" ({view.outcome.reason})" if view.outcome else ""
    watched = "" if view.outcome else ", unsupervised" if not view.watcher else f", watched by {view.watcher.who}"
    return f"{view.launch.job}: {click.style(view.state, fg=colour)}{reason}{watched}"


def show_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = int(seconds)
    for size, unit, below in ((86400, "d", "h"), (3600, "h", "m"), (60, "m", "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // {'h': 3600, 'm': 60, 's': 1}[below]}{below}"
    return f"{whole}s"

"""`tfdeploy exec`: a command within a task."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tfdeploy.cli.options import JobCommand, search_options
from tfdeploy.errors import InputError

if TYPE_CHECKING:
    from tfdeploy.jobs import Search


@click.command(cls=JobCommand)
@click.argument("task")
@click.option("-j", "--job", metavar="JOB", help="Which job, where there are several.")
@search_options
@click.option("-T", "--no-tty", is_flag=True, help="No terminal for the command, even where there is one here.")
def exec(task: str, job: str | None, search: "Search", no_tty: bool) -> int:
    """Run a command within a task.

    The exit code is the command's.

    \b
    Examples:
      tfdeploy exec worker-0 -- nvidia-smi
      tfdeploy exec chief-0 -- sh
    """
    from tfdeploy import host_scripts, jobs
    from tfdeploy.errors import TfdeployError

    command = click.get_current_context().meta.get("tfdeploy.command", ())
    if not command:
        raise InputError("no command", "Write it after --, as in: tfdeploy exec worker-0 -- ls /outputs")
    tty = not no_tty and sys.stdin.isatty() and sys.stdout.isatty()
    with jobs.found(replace(search, job=job)) as found:
        where = found.launch.plan.task(task)
        host = found.remotes[where.host]
        if isinstance(host, TfdeployError):
            raise host
        words = host_scripts.exec_words(found.launch, host.home, where, command, tty=tty)
        return host.interact(words, tty=tty)

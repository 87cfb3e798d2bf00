"""`tfdeploy ls`: all jobs."""

import time
from typing import TYPE_CHECKING

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import search_options

if TYPE_CHECKING:
    from tfdeploy.jobs import Search


@click.command()
@search_options
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def ls(search: "Search", output: str) -> int:
    """All jobs on these hosts, or launched from here.

    \b
    Examples:
      tfdeploy ls
      tfdeploy ls -i inventory.ini -o json
    """
    from tfdeploy import jobs
    from tfdeploy.cli.status import as_json, show_time

    views, errors = jobs.all_found(search)
    if output == "json":
        show.data({"jobs": [as_json(view) for view in views], "unreachable": {h: str(e) for h, e in errors.items()}})
    elif views:
        rows = [
            (
                view.launch.job,
                view.state if view.outcome or view.supervised else f"{view.state}, unsupervised",
                f"{sum(each.state == 'running' for each in view.tasks)}/{len(view.tasks)}",
                str(len(view.launch.plan.hosts)),
                show_time(time.time() - view.launch.at),
                view.launch.by,
            )
            for view in views
        ]
        show.table(("JOB", "STATE", "RUNNING", "HOSTS", "AGE", "BY"), rows)
    else:
        click.echo("no jobs", err=True)
    for host, error in errors.items():
        show.problem(str(error) if error.where else f"{host}: {error}")
    return 3 if errors else 0

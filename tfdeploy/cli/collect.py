"""`tfdeploy collect`: logs and outputs of a job, brought home."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfdeploy.cli.options import search_options

if TYPE_CHECKING:
    from tfdeploy.jobs import Search
    from tfdeploy.remote import Remote
    from tfdeploy.truth import JobView


@click.command()
@click.argument("job", required=False)
@search_options
@click.option("--to", metavar="DIR", help="Where to.  [default: where `up` was told, else results]")
def collect(job: str | None, search: "Search", to: str | None) -> None:
    """Bring logs and outputs of a job home.

    They are in DIR/JOB/GENERATION with a manifest of SHA-256 sums, whole or not at all; DIR/JOB/latest leads there.
    `up` does it when the job has ended. A job that still runs is collected as far as it is.

    \b
    Examples:
      tfdeploy collect
      tfdeploy collect mnist -i inventory.ini --to ~/runs
    """
    from tfdeploy import jobs
    from tfdeploy.collect import DEFAULT_PLACE

    with jobs.found(replace(search, job=job)) as found:
        known = jobs.recall(found.launch.job)
        place = to or (known.place if known else DEFAULT_PLACE)
        gather(found.view, found.entered, str(Path(place).expanduser().absolute()))


def gather(view: "JobView", remotes: "Mapping[str, Remote]", place: str) -> None:
    from tfdeploy import collect as work
    from tfdeploy.cli.status import as_json
    from tfdeploy.wording import counted, show_size

    states = json.dumps(as_json(view), indent=2) + "\n"
    done = work.collect(view, remotes, place, states=states)
    mark = click.style("✓", fg="green")
    click.echo(f"{mark} collected {counted(done.files, 'file')}, {show_size(done.size)}: {done.place}", err=True)

"""`tfdeploy lock`: who holds hosts and jobs."""

from typing import TYPE_CHECKING, Any

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import access_options
from tfdeploy.errors import TfdeployError

if TYPE_CHECKING:
    from tfdeploy.cli.options import Access


@click.group(no_args_is_help=True)
def lock() -> None:
    """Who holds hosts and jobs.

    A host is locked for the seconds of a launch; a job is held by whoever watches it. Both lapse by themselves when
    their holder gives no sign of life.
    """


@lock.command()
@access_options
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(access: "Access", output: str) -> int:
    """Who holds these hosts, and the jobs on them."""
    return _show(access, output, release=False)


@lock.command()
@access_options
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def release(access: "Access", output: str) -> int:
    """Take the locks from their holders; do it only when they are gone for good."""
    return _show(access, output, release=True)


def _show(access: "Access", output: str, *, release: bool) -> int:
    from tfdeploy import host_scripts, remote
    from tfdeploy.host_scripts import records

    script = host_scripts.lock_release if release else host_scripts.lock_status
    with remote.entered(access.inventory().hosts, access.credentials) as hosts:
        answers = remote.on_each(remote.answered(hosts), lambda host: records(host.run(script(host.home)).stdout))
    errors = [each for each in (*hosts.values(), *answers.values()) if isinstance(each, TfdeployError)]
    rows = [row for host, said in remote.answered(answers).items() for row in _rows(host, said)]
    if output == "json":
        show.data({"held": rows, "released": release, "unreachable": [str(error) for error in errors]})
    elif rows:
        columns = ("host", "what", "job", "who", "since", "age", "alive")
        show.table([each.upper() for each in columns], [[str(row[each]) for each in columns] for row in rows])
    else:
        click.echo("nothing is held", err=True)
    for error in errors:
        show.problem(str(error))
    return 3 if errors else 0


def _rows(host: str, said: list[tuple[str, str]]) -> list[dict[str, Any]]:
    from tfdeploy import lock as locks

    rows = []
    for what, body in said:
        age, _, line = body.partition("\n")
        if not line:
            continue
        holder = locks.Holder.parse(line)
        limit = locks.LOCK_STALE_AFTER if what == "lock" else locks.WATCH_STALE_AFTER
        seconds = int(age) if age.isdigit() else 0
        rows.append(
            {
                "host": host,
                "what": "host" if what == "lock" else "watch",
                "job": holder.job,
                "who": holder.who,
                "since": holder.since,
                "age": seconds,
                "alive": seconds <= limit,
            }
        )
    return rows

"""`tfdeploy down`: nothing of a job is left."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import search_options
from tfdeploy.errors import InputError, TfdeployError, UnreachableError
from tfdeploy.wording import counted

if TYPE_CHECKING:
    from tfdeploy.jobs import Search
    from tfdeploy.teardown import Removal


@click.command()
@click.argument("job", required=False)
@search_options
@click.option("--all", "every", is_flag=True, help="Every job on these hosts, or every one launched from here.")
@click.option("--discard", is_flag=True, help="Give up outputs that were not collected.")
@click.option("--grace", metavar="TIME", help="Between SIGTERM and the end.  [default: the job's]")
def down(job: str | None, search: "Search", every: bool, discard: bool, grace: str | None) -> int:
    """Take a job down; nothing of it is left but what is listed as kept.

    Hosts that cannot be reached are named (exit code 3): run it again when they are back.

    \b
    Examples:
      tfdeploy down
      tfdeploy down mnist -i inventory.ini
      tfdeploy down --all --discard --via gpu-1
    """
    from tfdeploy import jobs

    if every and job:
        raise InputError("a job and --all", "Give one of them", where=job)
    seconds = _seconds(grace)
    if not every:
        return _down(replace(search, job=job), discard, seconds)
    views, errors = jobs.all_found(search)
    names = [view.launch.job for view in views]
    for error in errors.values():
        show.problem(str(error))
    if not names:
        click.echo("no jobs", err=True)
    codes = [_down_or_say_why(replace(search, job=name), discard, seconds) for name in names]
    return max([3 if errors else 0, *codes])


def _down_or_say_why(search: "Search", discard: bool, grace: int | None) -> int:
    """One job that stays does not keep the others."""
    try:
        return _down(search, discard, grace)
    except TfdeployError as error:
        show.problem(str(error))
        return error.exit_code


def _down(search: "Search", discard: bool, grace: int | None) -> int:
    from tfdeploy import jobs, teardown

    with show.progress() as report:
        try:
            with jobs.found(search) as found:
                launch = found.launch
                if not discard:
                    teardown.check_outputs(launch.job, found.entered)
                report.doing(f"stopping {counted(len(launch.plan.tasks), 'task')} of {launch.job}")
                given = launch.plan.job.policies.grace if grace is None else grace
                removal = teardown.remove(launch.job, found.remotes, given, discard=discard)
                job, image, hosts = launch.job, launch.plan.job.image or "", len(found.remotes)
        except jobs.NotFound as unknown:
            # What a broken-off launch or an earlier `down` left may be there still, though nobody can say what it was.
            job, image = unknown.job, ""
            removal, hosts = _remains(search, job, discard, 0 if grace is None else grace)
            if not removal.found:
                jobs.forget(job)
                raise
        if removal.whole:
            jobs.forget(job)
        report.done(f"{job} is gone from {hosts - len(removal.errors)} of {counted(hosts, 'host')}")
    _show_kept(removal, image)
    return _show_errors(removal)


def _remains(search: "Search", job: str, discard: bool, grace: int) -> "tuple[Removal, int]":
    from tfdeploy import jobs, remote, teardown

    with remote.entered(jobs.hosts_of(search), search.credentials) as hosts:
        return teardown.remove(job, hosts, grace, discard=discard), len(hosts)


def _show_errors(removal: "Removal") -> int:
    for host, error in removal.errors.items():
        show.problem(str(error) if error.where else f"{host}: {error}")
    if not removal.errors:
        return 0
    click.echo("Run it again for the hosts that are left.", err=True)
    return 3 if any(isinstance(error, UnreachableError) for error in removal.errors.values()) else 1


def _show_kept(removal: "Removal", image: str) -> None:
    kept = dict.fromkeys(
        f"image {image}" if each.startswith("image sha256:") and image else each for each in removal.kept
    )
    if kept:
        click.echo(f"kept on the hosts: {', '.join(kept)}", err=True)


def _seconds(grace: str | None) -> int | None:
    from tfdeploy.spec import Wrong, parse_duration

    if grace is None or grace == "0":
        return None if grace is None else 0
    try:
        return parse_duration(grace)
    except Wrong as wrong:
        raise InputError(wrong.what, wrong.remedy, where="--grace") from None

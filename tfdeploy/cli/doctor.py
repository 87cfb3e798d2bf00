"""`tfdeploy doctor`: preflight without changes."""

from typing import TYPE_CHECKING

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import JobCommand, Request, access_options, job_options

if TYPE_CHECKING:
    from tfdeploy.doctor import Finding

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("-", "white")}


@click.command(cls=JobCommand)
@access_options
@job_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def doctor(request: Request, output: str) -> int:
    """What stands between these hosts and a job; nothing is changed.

    Every host is entered and looked at, and every connection that the job's plan needs is tried on its own ports.
    Exit code: 0 all is well, 1 something failed, 3 a host could not be entered.

    \b
    Examples:
      tfdeploy doctor inventory.ini --ps 1
      tfdeploy doctor inventory.ini -o json
    """
    from tfdeploy import doctor as work

    diagnosis = work.examine(request.inventory(), request.job(), request.wishes, request.access.credentials)
    if output == "json":
        show.data({"findings": work.as_rows(diagnosis.findings), "exit_code": diagnosis.exit_code})
    else:
        _show(diagnosis.findings)
    return diagnosis.exit_code


def _show(findings: tuple["Finding", ...]) -> None:
    """Detail is data and goes with its check; what to do stands below what is wrong."""
    width = max((len(finding.host) for finding in findings), default=0)
    for finding in findings:
        mark, colour = MARKS[finding.state]
        detail = f": {finding.detail}" if finding.detail else ""
        click.echo(f"{click.style(mark, fg=colour)} {finding.host.ljust(width)}  {finding.check}{detail}")
        if finding.remedy:
            click.echo(f"  {' ' * width}  {click.style('→ ' + finding.remedy, dim=True)}")
    counts = {state: sum(finding.state == state for finding in findings) for state in MARKS}
    click.echo(f"{len(findings)} checks: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}")

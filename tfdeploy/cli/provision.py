"""`tfdeploy provision`: bare machines become container hosts."""

from typing import TYPE_CHECKING, Any

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import Access, access_options

if TYPE_CHECKING:
    from tfdeploy.provision import Provisioning


@click.command()
@access_options
@click.option("--check", is_flag=True, help="Change nothing; say what would be changed.")
@click.option("--diff", is_flag=True, help="Show Ansible's output with the differences in files.")
@click.option("-t", "--tags", default="", metavar="TAGS", help="Only these parts: preflight, time, docker.")
@click.option(
    "-e", "--extra-vars", multiple=True, metavar="KEY=VALUE", help="Variables, JSON or @FILE, as with Ansible."
)
@click.option("-v", "--verbose", count=True, help="Show Ansible's output; -vv and -vvv for more of it.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def provision(
    access: Access, check: bool, diff: bool, tags: str, extra_vars: tuple[str, ...], verbose: int, output: str
) -> int:
    """Bare machines become container hosts.

    Hosts that are as wanted already are left alone; when all are, no playbook starts.

    \b
    Examples:
      tfdeploy provision inventory.ini
      tfdeploy provision inventory.ini --check --diff
      tfdeploy provision inventory.ini -l gpu -K -e docker_live_restore=false
    """
    from tfdeploy import provision as provisioning

    choices = provisioning.Choices(check, diff, tags, extra_vars, max(verbose - 1, 0))
    inventory = access.inventory(extra_vars)
    with show.hosts() as rows:
        done = provisioning.provision(
            access.sources,
            inventory,
            access.credentials,
            choices,
            access.vault,
            on_found=lambda found: rows.expect(found.reasons),
            on_progress=rows.progress,
            on_output=rows.output if verbose or diff else lambda text: None,
        )
    if output == "json":
        show.data(_as_json(done))
    else:
        _show(done, check=check)
    return _exit_code(done)


def _as_json(done: "Provisioning") -> dict[str, Any]:
    return {
        "hosts": [
            {
                "host": host,
                "state": done.state(host),
                "reasons": list(done.reasons.get(host, ())),
                "error": str(done.errors.get(host, "")),
            }
            for host in done.found
        ],
        "run_dir": str(done.convergence.artifacts) if done.convergence else None,
    }


def _show(done: "Provisioning", *, check: bool) -> None:
    for error in done.errors.values():
        show.problem(str(error))
    for outcome in done.outcomes:
        if outcome.state == "cancelled":
            at = f" at “{outcome.task}”" if outcome.task else " before it began"
            show.problem(f"{outcome.host}: interrupted{at}. Run it again: it goes on from there.")
    good = [outcome.host for outcome in done.outcomes if outcome.good]
    if good:
        click.echo(f"{'would be provisioned' if check else 'provisioned'}: {', '.join(good)}", err=True)
    if done.as_wanted:
        click.echo(f"as wanted already: {', '.join(done.as_wanted)}", err=True)
    if not done.convergence:
        click.echo("no playbook was started", err=True)
    elif not done.convergence.good:
        click.echo(f"Ansible's own account is in {done.convergence.artifacts}", err=True)


def _exit_code(done: "Provisioning") -> int:
    if done.convergence and done.convergence.cancelled:
        return 130
    if done.unreachable:
        return 3
    return 1 if done.failed else 0

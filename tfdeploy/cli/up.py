"""`tfdeploy up`: from machines to running tasks, and to the end of the job."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfdeploy.cli import attach, show
from tfdeploy.cli.options import JobCommand, Request, access_options, job_options
from tfdeploy.errors import InputError
from tfdeploy.wording import counted

if TYPE_CHECKING:
    from tfdeploy.provision import Provisioning
    from tfdeploy.up import Draft, Hosts, Launched, Order


class UpCommand(JobCommand):
    """With --local there is no inventory, so that none is missed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = args[: args.index("--")] if "--" in args else args
        if "--local" in ours:
            ctx.meta["tfdeploy.no_inventory"] = True
        return super().parse_args(ctx, args)


@click.command(cls=UpCommand)
@access_options
@job_options
@click.option("-d", "--detach", is_flag=True, help="Return when all tasks run; the watch goes on in the background.")
@click.option("--check", is_flag=True, help="Change nothing; say what would be done.")
@click.option("--replace", is_flag=True, help="Take down a job of this name first.")
@click.option("--discard", is_flag=True, help="Give up outputs of an earlier job that were not collected.")
@click.option("--wait", is_flag=True, help="Wait in line while the job does not fit.")
@click.option("--provision/--no-provision", default=True, help="Provision hosts that need it.  [default: provision]")
@click.option("--to", default="results", show_default=True, metavar="DIR", help="Where results are collected to.")
@click.option("--local", is_flag=True, help="On this machine, as plain processes: no inventory, SSH, root or Docker.")
@click.option("--logs/--no-logs", "logs", default=None, help="Show what tasks print.  [default: with --local]")
def up(
    request: Request,
    detach: bool,
    check: bool,
    replace: bool,
    discard: bool,
    wait: bool,
    provision: bool,
    to: str,
    local: bool,
    logs: bool | None,
) -> int:
    """Launch a job on these hosts, and watch it to its end.

    All tasks start, or none does. The same command again finds the job running and watches it.
    Ctrl-C before the launch undoes it; afterwards the job goes on, and so does the watch.

    \b
    Examples:
      tfdeploy up inventory.ini --ps 1 --image mnist-trainer:1
      tfdeploy up inventory.ini --ps 1 --detach -- --steps 500
      tfdeploy up --local --ps 1 --workers 2 -- python train.py
    """
    from tfdeploy import up as work

    place = str(Path(to).expanduser().absolute())
    order = _order(request, local, provision=provision, replace=replace, discard=discard, wait=wait, place=place)
    planned = work.check(order)
    for warning in planned.warnings:
        show.warning(warning)
    if check:
        return _show_check(order)
    done: list[Launched] = []
    try:
        with show.progress() as report:
            _launch(order, report, done.append)
        return _afterwards(order, done[0], detach=detach, logs=local if logs is None else logs)
    except KeyboardInterrupt:
        if not done:
            raise
        attach.leave(done[0].launch.job, order.credentials, order.vault)
        return 0


def _launch(order: "Order", report: show.PlainReport, on_launched: "Callable[[Launched], None]") -> None:
    from tfdeploy import up as work

    with work.entered(order, report) as hosts:
        for host in hosts.remotes.values():
            if host.new_key:
                show.warning(f"{host.name}: took its host key {host.new_key}, seen for the first time")
        report.done(f"entered {counted(len(hosts.remotes), 'host')}")
        reasons = work.needs(hosts)
        if reasons:
            for name, why in reasons.items():
                report.done(f"{name} must be provisioned: {', '.join(why)}")
            work.provisioned(hosts, reasons, _provision(order, report))
            report.done(f"provisioned {', '.join(reasons)}")
        started = time.monotonic()
        launched = work.launched(hosts, report, lambda: report.doing("all tasks are created: starting them"))
        on_launched(launched)
        launch = launched.launch
        if launched.attached:
            report.done(f"{launch.job} runs already, launched by {launch.by}")
        else:
            took = time.monotonic() - started
            report.done(f"launched {counted(len(launch.plan.tasks), 'task')} of {launch.job} in {took:.1f} s")


def _afterwards(order: "Order", launched: "Launched", *, detach: bool, logs: bool) -> int:
    job = launched.launch.job
    if not detach:
        return attach.watch(job, order.credentials, order.vault, logs=logs)
    if not launched.attached:
        attach.in_background(job, order.credentials, order.vault)
    attach.say_how_to_come_back(job)
    return 0


def _order(request: Request, local: bool, **wishes: Any) -> "Order":
    from tfdeploy import up as work

    if not local:
        access = request.access
        return work.Order(
            request.inventory(),
            request.job(),
            request.wishes,
            sources=access.sources,
            vault=access.vault,
            credentials=access.credentials,
            **wishes,
        )
    if request.access.sources:
        raise InputError("--local needs no inventory", "Leave one of them out", where=request.access.sources[0])
    job, asked = work.local_job(request.job(), request.wishes)
    return work.Order(work.local_inventory(), job, asked, local=True, **wishes)


def _provision(order: "Order", report: show.PlainReport) -> "Callable[[Any], Provisioning]":
    from tfdeploy import provision as provisioning

    def run(inventory: Any) -> "Provisioning":
        return provisioning.provision(
            order.sources,
            inventory,
            order.credentials,
            provisioning.Choices(),
            order.vault,
            on_progress=lambda step: report.doing(f"{step.host}: {step.task} … {step.state}"),
        )

    return run


def _show_check(order: "Order") -> int:
    from tfdeploy import up as work
    from tfdeploy.cli import plan as plan_view
    from tfdeploy.report import Silent

    with work.entered(order, Silent()) as hosts:
        reasons = work.needs(hosts)
        draft = work.drafted(hosts)
        plan_view.show_table(draft.launch.plan)
        click.echo()
        for line in _would(hosts, draft, reasons):
            click.echo(line)
    return 0


def _would(hosts: "Hosts", draft: "Draft", reasons: dict[str, tuple[str, ...]]) -> list[str]:
    lines = [f"would provision {name}: {', '.join(why)}" for name, why in reasons.items()]
    if draft.lacking:
        how = "send" if hosts.trainer else "have the hosts pull"
        lines.append(f"would {how} the image to {', '.join(draft.lacking)}")
    job = draft.launch.job
    if draft.existing is None:
        lines.append(f"would launch {job}")
    elif draft.existing.outcome:
        lines.append(f"would remove what is left of the {job} that {draft.existing.outcome.state}, and launch it again")
    elif draft.differences:
        lines += [f"{job} runs already; --replace would change:", *(f"  {line}" for line in draft.differences)]
    else:
        lines.append(f"{job} runs already, just so: nothing would be done")
    return lines

"""`tfdeploy plan`: shows the plan and touches no host."""

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import JobCommand, Request, inventory_options, job_options
from tfdeploy.errors import InputError

if TYPE_CHECKING:
    from tfdeploy.plan import Plan
    from tfdeploy.task import Task


@click.command(cls=JobCommand)
@inventory_options
@job_options
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.option("--task", "task_id", metavar="TASK", help="Print the TF_CONFIG of one task, as in worker-1.")
def plan(request: Request, output: str, task_id: str | None) -> None:
    """What would run where; nothing is touched."""
    from tfdeploy import plan as planner

    made = planner.plan(request.inventory(), request.job(), request.wishes)
    if task_id:
        click.echo(_tf_config_of(made, task_id))
    elif output == "json":
        sys.stdout.writelines(as_json(made))
    elif output == "yaml":
        click.echo(as_yaml(made), nl=False)
    else:
        show_table(made)
    for warning in made.warnings:
        show.warning(warning)


def _tf_config_of(plan: "Plan", task_id: str) -> str:
    from tfdeploy import tf_config

    text = tf_config.tf_config_text(plan, plan.task(task_id))
    if not text:
        raise InputError("TensorBoard has no TF_CONFIG", where=task_id)
    return text


def as_json(plan: "Plan") -> Iterator[str]:
    """One task per line, one at a time: each holds the whole cluster."""
    yield f'{{\n  "job": {json.dumps(_job(plan))},\n  "tasks": ['
    separator = "\n    "
    for task in plan.tasks:
        yield separator + json.dumps(_described(plan, task))
        separator = ",\n    "
    yield f'\n  ],\n  "spares": {json.dumps(plan.spares)}\n}}\n'


def as_yaml(plan: "Plan") -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    view = {
        "job": _job(plan),
        "tasks": [_described(plan, task) for task in plan.tasks],
        "spares": list(plan.spares),
    }
    return str(yaml.dump(view, Dumper=Dumper, sort_keys=False, allow_unicode=True))


def _job(plan: "Plan") -> dict[str, Any]:
    return plan.job.model_dump(mode="json", by_alias=True)


def _described(plan: "Plan", task: "Task") -> dict[str, Any]:
    from tfdeploy import tf_config

    command = tf_config.command(plan, task)
    return {
        "role": task.role,
        "index": task.index,
        "host": task.host,
        "address": task.address,
        "name": task.name,
        "port": task.port,
        "gpus": list(task.gpus),
        "tf_config": tf_config.tf_config(plan, task),
        "command": None if command is None else list(command),
    }


# --- the table -------------------------------------------------------------------------------------------

_COLUMNS = ("HOST", "ROLE", "INDEX", "PORT", "GPUS", "CPUS", "MEMORY")


def show_table(plan: "Plan") -> None:
    rows = [_row(plan, task) for task in plan.tasks]
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        _print_rich(rows)
    else:
        click.echo("\n".join(_plain([_COLUMNS, *rows])))
    click.echo()
    click.echo("\n".join(_totals(plan)))


def _row(plan: "Plan", task: "Task") -> tuple[str, ...]:
    from tfdeploy.wording import show_size

    need = plan.spec_of(task)
    return (
        task.host,
        task.role,
        str(task.index),
        str(task.port),
        ",".join(task.gpus) or "-",
        f"{need.cpus:g}" if need.cpus else "-",
        show_size(need.memory) if need.memory else "-",
    )


def _plain(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _print_rich(rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {
        "chief": "magenta",
        "ps": "cyan",
        "worker": "green",
        "evaluator": "yellow",
        "tensorboard": "blue",
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("INDEX", "PORT", "CPUS", "MEMORY") else "left")
    for row in rows:
        host, role, *others = map(Text, row)
        table.add_row(host, Text(role.plain, style=colours[role.plain]), *others)
    Console().print(table)


def _totals(plan: "Plan") -> Iterator[str]:
    from tfdeploy.wording import counted, show_size

    roles = ", ".join(counted(len(tasks), role) for role, tasks in plan.by_role.items() if tasks)
    needs = [plan.spec_of(task) for task in plan.tasks]
    totals = [f"{counted(len(plan.tasks), 'task')} on {counted(len(plan.hosts), 'host')}: {roles}"]
    if gpus := sum(len(task.gpus) for task in plan.tasks):
        totals.append(counted(gpus, "GPU"))
    if cpus := sum(need.cpus or 0 for need in needs):
        totals.append(f"{cpus:g} CPUs")
    if memory := sum(need.memory or 0 for need in needs):
        totals.append(show_size(memory))
    yield "; ".join(totals)
    if plan.spares:
        yield f"{counted(len(plan.spares), 'spare')}: {', '.join(plan.spares)}"

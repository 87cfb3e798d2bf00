"""Launches that nobody made, for tests of what becomes of them."""

from dataclasses import replace
from typing import Any

from tfdeploy.inventory import Connection, Host, Inventory
from tfdeploy.launch import Launch, Member
from tfdeploy.plan import Wishes, plan
from tfdeploy.spec import JobSpec

GENERATION = "g20261118T160000Z-0badcafe"


def launch(*hosts: str, wishes: Wishes | None = None, **keys: Any) -> Launch:
    """`launch("a", "b", wishes=Wishes(ps=1), env={…})`: planned for made-up hosts; keys are those of a job file.

    Several hosts take a task each, a single one takes four.
    """
    names = hosts or ("a",)
    made = tuple(
        Host(
            name, Connection(host=f"10.0.{number // 250}.{number % 250 + 1}"), gpus=4, slots=4 if len(names) == 1 else 1
        )
        for number, name in enumerate(names)
    )
    wanted = {"name": "demo", "image": "trainer:1", "tasks": {"worker": {"count": len(names)}}} | keys
    job = JobSpec.model_validate(wanted)
    return Launch(
        plan=plan(Inventory(made, {"all": names}), job, wishes),
        generation=GENERATION,
        by="somebody@somewhere (pid 1)",
        at=1_763_467_200.0,
        members=tuple(Member.of(host) for host in made),
        image="sha256:" + "ab" * 32,
    )


def on_port(made: Launch, port: int) -> Launch:
    """All its tasks there: a test's machine may have other things on the ports that are planned."""
    tasks = tuple(replace(task, port=port) for task in made.plan.tasks)
    return replace(made, plan=replace(made.plan, tasks=tasks))

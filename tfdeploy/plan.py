"""The plan: which task runs where, from inventory, job, wishes and facts. Pure; `placement` has the rules."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from tfdeploy import spec
from tfdeploy.errors import InputError
from tfdeploy.facts import Facts
from tfdeploy.inventory import Host, Inventory
from tfdeploy.placement import Placing, check_success, remarks
from tfdeploy.spec import JobSpec, TaskSpec
from tfdeploy.task import IN_CLUSTER, ROLES, Role, Task
from tfdeploy.wording import some

_FORMAT = 1


@dataclass(frozen=True)
class Plan:
    job: JobSpec
    tasks: tuple[Task, ...]
    spares: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @cached_property
    def by_role(self) -> Mapping[Role, tuple[Task, ...]]:
        return {role: tuple(task for task in self.tasks if task.role == role) for role in ROLES}

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Those with a task, each once."""
        return tuple(dict.fromkeys(task.host for task in self.tasks))

    @cached_property
    def cluster(self) -> Mapping[str, list[str]]:
        """The members that every task but an evaluator sees in TF_CONFIG, by TensorFlow's names."""
        return {
            self.job.chief_name if role == "chief" else role: [task.endpoint for task in self.by_role[role]]
            for role in IN_CLUSTER
            if self.by_role[role]
        }

    @cached_property
    def cluster_json(self) -> str:
        return json.dumps(self.cluster)

    @cached_property
    def ps_hosts(self) -> str:
        return ",".join(self.cluster.get("ps", ()))

    @cached_property
    def worker_hosts(self) -> str:
        return ",".join(self.cluster.get("worker", ()))

    def spec_of(self, task: Task) -> TaskSpec:
        return getattr(self.job.tasks, task.role) or TaskSpec()

    def task(self, task_id: str) -> Task:
        """`worker-1`, or its whole stable name."""
        for task in self.tasks:
            if task_id in (task.id, task.name):
                return task
        known = [task.id for task in self.tasks]
        near = get_close_matches(task_id, known, n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"There are {some(known)}"
        raise InputError("no such task", remedy, where=task_id)

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": _FORMAT,
                "job": spec.dump(self.job),
                "tasks": [asdict(task) for task in self.tasks],
                "spares": self.spares,
                "warnings": self.warnings,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        data = json.loads(text)
        if data.get("format") != _FORMAT:
            raise InputError(f"a plan of format {data.get('format')}", "Use the tfdeploy that made it")
        return cls(
            job=JobSpec.model_validate(data["job"]),
            tasks=tuple(Task(**task | {"gpus": tuple(task["gpus"])}) for task in data["tasks"]),
            spares=tuple(data["spares"]),
            warnings=tuple(data["warnings"]),
        )


@dataclass(frozen=True, slots=True)
class Wishes:
    """What flags say; None where a flag was not given. They win over the job file."""

    ps: int | None = None
    workers: int | None = None
    chief: bool | None = None
    evaluator: bool | None = None
    tensorboard: bool | None = None
    spares: int | None = None
    name: str | None = None
    image: str | None = None
    command: tuple[str, ...] | None = None
    num: int | None = None
    exclude: tuple[tuple[str, str], ...] = ()
    """Hosts, each with the place where it was said, for the error."""


def plan(
    inventory: Inventory,
    job: JobSpec,
    wishes: Wishes | None = None,
    facts: Mapping[str, Facts] | None = None,
) -> Plan:
    wishes = wishes or Wishes()
    job = apply(job, wishes)
    placing = Placing(inventory, job, select(inventory, wishes), facts or {})
    placing.place()
    tasks = tuple(task for role in ROLES for task in placing.tasks[role])
    check_success(job, placing.tasks)
    warnings = (*inventory.warnings, *placing.warnings, *remarks(job, tasks, placing.rooms))
    return Plan(job, tasks, placing.spares, tuple(dict.fromkeys(warnings)))


def apply(job: JobSpec, wishes: Wishes) -> JobSpec:
    """The job with what flags say."""
    changes: dict[str, Any] = {
        key: value for key in ("name", "image", "command", "spares") if (value := getattr(wishes, key)) is not None
    }
    counts = {
        role: int(count)
        for role, count in (
            ("ps", wishes.ps),
            ("worker", wishes.workers),
            ("chief", wishes.chief),
            ("evaluator", wishes.evaluator),
            ("tensorboard", wishes.tensorboard),
        )
        if count is not None
    }
    if counts:
        tasks = spec.dump(job).get("tasks", {})
        changes["tasks"] = tasks | {r: (tasks.get(r) or {}) | {"count": n} for r, n in counts.items()}
    return spec.override(job, changes, _FLAGS)


_FLAGS = {
    "name": "--name",
    "image": "--image",
    "command": "the command after --",
    "spares": "--spares",
    "tasks": "--ps, --workers, --chief, --evaluator or --tensorboard",
}


def select(inventory: Inventory, wishes: Wishes) -> tuple[Host, ...]:
    """The hosts that may be used: in inventory order, without the excluded ones, the first -N of them."""
    everyone = {*inventory.groups.get("all", ()), *(host.name for host in inventory.hosts)}
    for name, where in wishes.exclude:
        if name not in everyone:
            near = get_close_matches(name, everyone, n=1)
            remedy = f"Did you mean {near[0]}?" if near else "Take it out (patterns go with --limit '!pattern')"
            raise InputError(f"no host of the inventory is called {name!r:.80}", remedy, where=where)
    excluded = {name for name, _ in wishes.exclude}
    hosts = tuple(host for host in inventory.hosts if host.name not in excluded)
    if not hosts:
        raise InputError("every host is excluded", "Leave at least one", where="--exclude")
    if wishes.num is not None and wishes.num > len(hosts):
        raise InputError(f"{wishes.num} hosts asked for, {len(hosts)} there", "Ask for fewer", where="-N")
    return hosts[: wishes.num]

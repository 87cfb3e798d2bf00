"""What a task is told about its cluster: TF_CONFIG, legacy flags, rendered command, env and outputs. Pure.

Everything is derived from the Plan when it is asked for: ten thousand TF_CONFIGs with ten thousand members
each would not fit into memory.
"""

import json
from typing import Any

from tfdeploy import template
from tfdeploy.mounts import IN_CONTAINER, Paths
from tfdeploy.plan import Plan
from tfdeploy.task import IN_CLUSTER, Task

# A peer that comes back elsewhere is found within 3 s, not 30: gRPC resolves names again only so often.
_TF_ENVIRONMENT = {"TF_GRPC_DEFAULT_OPTIONS": "grpc.dns_min_time_between_resolutions_ms=1000"}
_PS_ENVIRONMENT = {"GRPC_FAIL_FAST": "use_caller"}


def tf_type(plan: Plan, task: Task) -> str:
    return plan.job.chief_name if task.role == "chief" else task.role


def tf_config(plan: Plan, task: Task) -> dict[str, Any] | None:
    """TF_CONFIG as a value; TensorBoard has none."""
    if task.role == "tensorboard":
        return None
    members = plan.cluster
    if task.role == "evaluator":
        members = {**members, "evaluator": [peer.endpoint for peer in plan.by_role["evaluator"]]}
    return {"cluster": members, **_rest(plan, task)}


def tf_config_text(plan: Plan, task: Task) -> str:
    """TF_CONFIG as its JSON text; empty for TensorBoard."""
    if task.role in IN_CLUSTER:
        return f'{{"cluster": {plan.cluster_json}, {json.dumps(_rest(plan, task))[1:]}'
    config = tf_config(plan, task)
    return json.dumps(config) if config else ""


def legacy_flags(plan: Plan, task: Task) -> tuple[str, ...]:
    return (
        f"--ps_hosts={plan.ps_hosts}",
        f"--worker_hosts={plan.worker_hosts}",
        f"--job_name={tf_type(plan, task)}",
        f"--task_index={task.index}",
    )


def command(plan: Plan, task: Task) -> tuple[str, ...] | None:
    """What replaces the image's CMD; None leaves it."""
    given = plan.spec_of(task).command
    if task.role == "tensorboard":
        return _rendered(plan, task, given or (), "command") if given else _tensorboard(plan, task)
    given = plan.job.command if given is None else given
    flags = legacy_flags(plan, task) if plan.job.legacy_flags else ()
    if given is None:
        return flags or None
    return _rendered(plan, task, given, "command") + flags


def entrypoint(plan: Plan, task: Task) -> tuple[str, ...] | None:
    """What replaces the image's ENTRYPOINT; None leaves it."""
    given = plan.spec_of(task).entrypoint
    if task.role == "tensorboard":
        return ("tensorboard",) if given is None else _rendered(plan, task, given, "entrypoint")
    given = plan.job.entrypoint if given is None else given
    return None if given is None else _rendered(plan, task, given, "entrypoint")


def environment(plan: Plan, task: Task, paths: Paths = IN_CONTAINER) -> dict[str, str]:
    """The whole environment that a task is given, TF_CONFIG included."""
    values = variables(plan, task)
    given = {**plan.job.env, **plan.spec_of(task).env}
    rendered = {key: template.render(text, values, where=f"{task.id}: env.{key}") for key, text in given.items()}
    ours = {"TFDEPLOY_JOB": plan.job.name, "TFDEPLOY_TASK": task.id, "TFDEPLOY_OUTPUTS": paths.outputs}
    ours |= {"TFDEPLOY_SHARED": paths.shared} if plan.job.shared else {}
    if task.role == "tensorboard":
        return ours | rendered
    ours |= _TF_ENVIRONMENT | (_PS_ENVIRONMENT if plan.by_role["ps"] else {})
    return _past_proxies(plan, ours | rendered) | {"TF_CONFIG": str(values["TF_CONFIG"])}


def _past_proxies(plan: Plan, given: dict[str, str]) -> dict[str, str]:
    """gRPC goes through a proxy where one is set: peers are left out of it."""
    if not any(key.lower().endswith("_proxy") for key in given):
        return given
    peers = ",".join(task.name for task in plan.tasks)
    return given | {key: ",".join(filter(None, (given.get(key), peers))) for key in ("no_proxy", "NO_PROXY")}


def outputs(plan: Plan, task: Task) -> tuple[tuple[str, str], ...]:
    """(directory in the task, where it goes) of each output."""
    values = variables(plan, task)
    return tuple(
        (output.from_, template.render_target(output.to, values, where=f"{task.id}: outputs"))
        for output in plan.job.outputs
    )


def variables(plan: Plan, task: Task) -> dict[str, str | int]:
    """What templates may name."""
    return {
        "type": tf_type(plan, task),
        "index": task.index,
        "host": task.host,
        "address": task.address,
        "port": task.port,
        "name": task.name,
        "job": plan.job.name,
        "ps_hosts": plan.ps_hosts,
        "worker_hosts": plan.worker_hosts,
        "TF_CONFIG": tf_config_text(plan, task),
    }


def _rest(plan: Plan, task: Task) -> dict[str, Any]:
    return {"task": {"type": tf_type(plan, task), "index": task.index}, "environment": "cloud"}


def _rendered(plan: Plan, task: Task, words: tuple[str, ...], key: str) -> tuple[str, ...]:
    if not any(map(template.is_template, words)):
        return words
    values = variables(plan, task)
    return tuple(
        template.render(word, values, where=f"{task.id}: {key}[{position}]") for position, word in enumerate(words)
    )


def _tensorboard(plan: Plan, task: Task) -> tuple[str, ...]:
    """Bound to loopback: people come through an SSH tunnel, and the port stays closed."""
    wish = plan.job.tasks.tensorboard
    logdir = wish.logdir if wish else "/shared"
    return (f"--logdir={logdir}", f"--port={task.port}", "--host=127.0.0.1")

"""A task as a plain process: what its keeper is told, and the lines of a host script that start it. Pure."""

import json
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tfdeploy import tf_config
from tfdeploy.errors import InputError
from tfdeploy.launch import Launch
from tfdeploy.mounts import Paths
from tfdeploy.task import Task

LOG_BYTES, LOG_FILES = 100 << 20, 5
_RESTARTS = {"never": "no", "exit-code": "no", "on-failure": "on-failure", "always": "always"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@cache
def keeper() -> str:
    """The program that keeps one task on a host, as containerd's shim keeps a container."""
    return Path(__file__).with_name("scripts").joinpath("keeper.py").read_text()


def create(launch: Launch, task: Task, *, own: str, user: str, inherited: Mapping[str, str] | None, cwd: str) -> str:
    """The script lines that write what the keeper reads. Where the job is local, tasks inherit our environment."""
    told = json.dumps(keeper_spec(launch, task, own=own, user=user, inherited=inherited, cwd=cwd))
    owner = f"give {shlex.quote(user)}\n" if user else ""
    return f"put \"$directory/spec.json\" <<'{launch.generation}'\n{told}\n{launch.generation}\n{owner}"


def keeper_spec(
    launch: Launch, task: Task, *, own: str, user: str, inherited: Mapping[str, str] | None, cwd: str
) -> dict[str, Any]:
    directory, job = f"{own}/tasks/{task.id}", launch.plan.job
    paths = Paths(outputs=f"{directory}/outputs/0", shared=f"{job.shared}/{job.name}")
    secrets = {f"{secret}_FILE": f"{directory}/secrets/{secret}" for secret in job.secrets}
    blind = {"CUDA_VISIBLE_DEVICES": ",".join(task.gpus)}
    base = dict(inherited) if inherited is not None else {"PATH": _PATH, "LANG": "C.UTF-8"}
    return {
        "argv": list(argv(launch, task)),
        "env": base | blind | tf_config.environment(launch.plan, task, paths) | secrets,
        "cwd": cwd or paths.outputs,
        "user": user,
        "hosts": f"{own}/hosts" if inherited is None else "",
        "grace": job.policies.grace,
        "restart": _RESTARTS[job.policies.restart],
        "max_restarts": job.policies.max_restarts,
        "log_bytes": LOG_BYTES,
        "log_files": LOG_FILES,
    }


def argv(launch: Launch, task: Task) -> tuple[str, ...]:
    words = (*(tf_config.entrypoint(launch.plan, task) or ()), *(tf_config.command(launch.plan, task) or ()))
    if not words:
        raise InputError(
            "nothing to run: a plain process has no image with a command in it",
            "Give the command after --, or as command: in the job file",
            where=task.id,
        )
    return words


def start(launch: Launch, task: Task) -> str:
    """The script line that starts it."""
    need = launch.plan.spec_of(task)
    limits = [
        *([f"--property=CPUQuota={need.cpus * 100:g}%"] if need.cpus else []),
        *([f"--property=MemoryMax={need.memory}", "--property=MemorySwapMax=0"] if need.memory else []),
    ]
    return shlex.join(["start_process", task.id, str(launch.plan.job.policies.grace), *limits])

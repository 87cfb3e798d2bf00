"""A task as a Docker container: the words of `docker create`, and the lines of a host script that use them. Pure."""

import shlex

from tfdeploy import tf_config
from tfdeploy.launch import Launch
from tfdeploy.mounts import output_directories, user_mounts
from tfdeploy.task import Task

LOG_BYTES, LOG_FILES = "100m", "5"
# What the engine's own restarts are for; the rest is the controller's to decide.
_RESTARTS = {"never": "no", "exit-code": "no", "on-failure": "on-failure", "always": "always"}
# docker's parser of an --env-file takes a line of so many bytes at most.
_LONGEST_LINE = 60_000


def name(launch: Launch, task: Task) -> str:
    return f"tfdeploy-{launch.job}-{task.id}"


def create(launch: Launch, task: Task, *, own: str, user: str = "", selinux: bool = False) -> str:
    """The script lines that make the container, given the directory of the job; `user` is the image's."""
    words = shlex.join(create_words(launch, task, own=own, selinux=selinux))
    values = environment(launch, task)
    in_file = {key: text for key, text in values.items() if _fits_in_a_line(key, text)}
    exported = "".join(f"{key}={shlex.quote(text)} " for key, text in values.items() if key not in in_file)
    lines = "".join(f"{key}={text}\n" for key, text in in_file.items())
    wanted = launch.plan.spec_of(task).user or user
    return (
        f"{exported}docker {words} >/dev/null 3<<'{launch.generation}'\n{lines}{launch.generation}\n"
        # In a line of its own: within `give`'s a failure would go unseen.
        f'owner=$(owner_of {name(launch, task)} {shlex.quote(wanted)})\ngive "$owner"\n'
    )


def create_words(launch: Launch, task: Task, *, own: str, selinux: bool = False) -> tuple[str, ...]:
    plan, need = launch.plan, launch.plan.spec_of(task)
    entrypoint = tf_config.entrypoint(plan, task)
    command = tf_config.command(plan, task)
    return (
        "create",
        f"--name={name(launch, task)}",
        *(f"--label={key}={value}" for key, value in labels(launch, task).items()),
        "--network=host",
        "--init",
        f"--restart={_restart(launch)}",
        f"--stop-timeout={plan.job.policies.grace}",
        "--log-driver=json-file",
        f"--log-opt=max-size={LOG_BYTES}",
        f"--log-opt=max-file={LOG_FILES}",
        *((f"--cpus={need.cpus:g}",) if need.cpus else ()),
        *((f"--memory={need.memory}", f"--memory-swap={need.memory}") if need.memory else ()),
        *((f"--shm-size={need.shm_size}",) if need.shm_size else ()),
        *((f'--gpus="device={",".join(task.gpus)}"',) if task.gpus else ()),
        *((f"--user={need.user}",) if need.user else ()),
        *(("--security-opt=label=disable",) if selinux else ()),
        *(f"--mount={each}" for each in _mounts(launch, task, own)),
        "--env-file=/dev/fd/3",
        *(f"--env={key}" for key, text in environment(launch, task).items() if not _fits_in_a_line(key, text)),
        *((f"--entrypoint={entrypoint[0] if entrypoint else ''}",) if entrypoint is not None else ()),
        launch.image or plan.job.image or "",
        *(entrypoint[1:] if entrypoint else ()),
        *(command or ()),
    )


def labels(launch: Launch, task: Task) -> dict[str, str]:
    return {
        "tfdeploy.job": launch.job,
        "tfdeploy.task": task.id,
        "tfdeploy.generation": launch.generation,
        "tfdeploy.port": str(task.port),
        "tfdeploy.gpus": ",".join(task.gpus),
    }


def environment(launch: Launch, task: Task) -> dict[str, str]:
    secrets = {f"{secret}_FILE": f"/run/secrets/{secret}" for secret in launch.plan.job.secrets}
    # On a host whose default runtime is NVIDIA's, a task without GPUs would see them all.
    blind = {} if task.gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return blind | tf_config.environment(launch.plan, task) | secrets


def _restart(launch: Launch) -> str:
    policy, budget = _RESTARTS[launch.plan.job.policies.restart], launch.plan.job.policies.max_restarts
    if policy != "on-failure":
        return policy
    return f"{policy}:{budget}" if budget else "no"  # Docker takes 0 for no limit


def _mounts(launch: Launch, task: Task, own: str) -> tuple[str, ...]:
    job, directory = launch.plan.job, f"{own}/tasks/{task.id}"
    outputs = {path: f"{directory}/outputs/{number}" for number, path in enumerate(output_directories(job))}
    return (
        _bind(f"{own}/hosts", "/etc/hosts", read_only=True),
        *((_bind(f"{directory}/secrets", "/run/secrets", read_only=True),) if job.secrets else ()),
        *((_bind(f"{job.shared}/{job.name}", "/shared"),) if job.shared else ()),
        *(_bind(source, path) for path, source in outputs.items()),
        *(_bind(each.source, each.target, read_only=each.read_only) for each in user_mounts(job)),
    )


def _bind(source: str, target: str, *, read_only: bool = False) -> str:
    """A line of comma-separated values: one with a comma or a quote in it is quoted as CSV."""
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    return ",".join(f'"{each.replace(chr(34), chr(34) * 2)}"' if set(each) & {",", '"'} else each for each in fields)


def _fits_in_a_line(key: str, text: str) -> bool:
    """An --env-file takes a value as it stands, but ends it at a line break."""
    return not set(text) & {"\n", "\r"} and len(key) + len(text.encode()) < _LONGEST_LINE

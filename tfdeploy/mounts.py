"""Directories that a task sees: outputs, the job's shared one, and the user's mounts. Pure."""

from dataclasses import dataclass

from tfdeploy.errors import InputError
from tfdeploy.spec import JobSpec, Mount, parse_mount

OUTPUTS = "/outputs"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a task finds its directories; the same in every container, the host's own in plain processes."""

    outputs: str
    shared: str


IN_CONTAINER = Paths(outputs=OUTPUTS, shared="/shared")


def output_directories(job: JobSpec) -> tuple[str, ...]:
    """Within a container; /outputs is always there."""
    return tuple(dict.fromkeys((OUTPUTS, *(output.from_ for output in job.outputs))))


def user_mounts(job: JobSpec) -> tuple[Mount, ...]:
    return tuple(parse_mount(text) for text in job.mounts)


def check(job: JobSpec) -> None:
    """What cannot be given to the tasks of this job is refused before any host is touched."""
    for where, text in (("shared", job.shared or ""), *(("mounts", text) for text in job.mounts)):
        if text.startswith("nfs://"):
            raise InputError(
                "tfdeploy does not mount NFS itself yet", "Mount it on the hosts, and give the path there", where=where
            )
    if job.outputs and any(output.to for output in job.outputs):
        raise InputError(
            "outputs go to the directory that --to names, not to places of their own yet",
            "Leave `to` out",
            where="outputs",
        )
    if job.package:
        raise InputError("packages are not unpacked yet", "Put the code into the image", where="package")
    if job.runtime == "process":
        moved = [each for each in user_mounts(job) if each.source != each.target]
        if moved:
            raise InputError(
                f"a plain process sees {moved[0].source} where it is, not at {moved[0].target}",
                "Name the same path twice, or use runtime: docker",
                where="mounts",
            )
        strange = [path for path in output_directories(job) if path != OUTPUTS]
        if strange:
            raise InputError(
                f"a plain process has no directory {strange[0]} of its own",
                "Have it write to $TFDEPLOY_OUTPUTS, and leave `from` out",
                where="outputs",
            )

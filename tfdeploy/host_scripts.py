"""What a host shall do for a job, as POSIX sh scripts: reserve, start, undo, look, stop, remove. Pure.

Each can be repeated: what is there already is left or made anew, what is gone already is fine.
"""

import ipaddress
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tfdeploy import containers, lock, mounts, processes
from tfdeploy.facts import Reservation
from tfdeploy.launch import Launch
from tfdeploy.lock import Holder
from tfdeploy.paths import HOST_HOME
from tfdeploy.task import Task

PYTHON = "python3"


@dataclass(frozen=True)
class Site:
    """What a launch must know of one host."""

    name: str
    home: str = HOST_HOME
    login: str = ""
    """The user as whom it is entered: plain processes run as this one."""
    others: tuple[tuple[str, str], ...] = ()
    """Jobs that were there when the plan was made, with their generations."""
    image_user: str = ""
    selinux: bool = False
    python: str = ""
    inherited: Mapping[str, str] | None = field(default=None, repr=False)
    """The environment that tasks start from where the job is local."""
    cwd: str = ""

    def own(self, job: str) -> str:
        return f"{self.home}/jobs/{job}"


def reserve(launch: Launch, site: Site, holder: Holder, secrets: Mapping[str, str]) -> str:
    """Under the host's lock: what was planned is looked at again, then all is made and nothing started."""
    tasks = tasks_on(launch, site.name)
    return _script(
        launch.job,
        site,
        "carefully",
        "step='taking the lock'",
        f"take_lock {lock.LOCK_STALE_AFTER}",
        f"check_others {shlex.quote(_lines(f'{job} {generation}' for job, generation in _in_glob_order(site.others)))}",
        f"check_ports {_ports(tasks)}",
        "step='keeping the plan'",
        "make_jobs",
        "alone",
        "begin_job",
        _put("$own/launch.json", launch.to_json(), launch),
        f"make_hosts <<'{launch.generation}'\n{_lines(map(_hosts_line, launch.plan.tasks))}\n{launch.generation}",
        *([_make_shared(launch, site)] if launch.plan.job.shared else []),
        *(_keeper(launch) if _is_process(launch) else []),
        *(_create(launch, site, task, secrets) for task in tasks),
        # Last, because from here on it counts as a job that holds something.
        _put("$own/reserved", _lines(reservation(launch, task).line() for task in tasks), launch),
        "record reserved",
        holder=holder,
    )


def start(launch: Launch, site: Site, holder: Holder) -> str:
    """The second half: all at once, then how they are, and the lock is given back."""
    tasks = tasks_on(launch, site.name)
    names = " ".join(containers.name(launch, task) for task in tasks)
    begin = (
        [line for task in tasks for line in (f"step={task.id}", processes.start(launch, task))]
        if _is_process(launch)
        else [f"step='{tasks[0].id if len(tasks) == 1 else ''}'", f"docker start {names} >/dev/null"]
    )
    return _script(
        launch.job,
        site,
        "carefully",
        "alone",
        f"check_ports {_ports(tasks)}",
        *begin,
        "step=",
        "look" if _is_process(launch) else f"look {names}",
        "release_lock",
        holder=holder,
    )


def undo(launch: Launch, site: Site, holder: Holder) -> str:
    """No trace of this launch; another launch of the same job is left alone."""
    return _script(launch.job, site, "undo", holder=holder)


def look(job: str, home: str, *, usage: bool = False) -> str:
    """Every task's state, who watches, how it ended; with `usage` CPU and memory too."""
    return _script(job, Site("", home), "read_job", "look", *(["usage"] if usage else []))


def job_names(home: str) -> str:
    """Jobs that the host knows, one per line."""
    return _script("", Site("", home), "list_jobs")


def stop(job: str, home: str, tasks: Iterable[str], grace: int) -> str:
    """SIGTERM, a time of grace, then the end; their containers stay."""
    return _script(job, Site("", home), f"stop_tasks {grace} {shlex.join(tasks)}", "look")


def finish(job: str, home: str, outcome: str) -> str:
    """Keeps how the job ended; from then on it holds no port, slot or GPU."""
    end = f'put "$own/outcome" <<\'END\'\n{outcome}\nEND\nrm -f "$own/watch"'
    return _script(job, Site("", home), f'[ ! -d "$own" ] || {{\n{end}\n}}')


def beat(job: str, home: str, holder: Holder) -> str:
    """A sign of life of whoever watches the job; says who else does, and whether the job is still there."""
    return _script(job, Site("", home), f"beat {lock.WATCH_STALE_AFTER}", holder=holder)


def release_watch(job: str, home: str, holder: Holder) -> str:
    """For somebody else to take over at once."""
    return _script(job, Site("", home), "release_watch", holder=holder)


def changes(launch: Launch, home: str) -> str:
    """A line whenever a task has started or ended, for as long as we are there."""
    if _is_process(launch):
        return _script(launch.job, Site("", home), "leash watch_processes")
    words = ["docker", "events", "--filter", f"label=tfdeploy.job={launch.job}"]
    words += ["--filter", "event=die", "--filter", "event=start", "--format", "{{.Action}}"]
    return _script(launch.job, Site("", home), f"leash {shlex.join(words)}")


def keep_lock(home: str, holder: Holder) -> str:
    return _script(holder.job, Site("", home), "keep_lock", holder=holder)


def survey(job: str, home: str) -> str:
    """Outputs that nobody has collected yet."""
    return _script(job, Site("", home), "survey")


def sums(job: str, home: str, task: str) -> str:
    """SHA-256 of every file among a task's outputs."""
    return _script(job, Site("", home), f"cd_outputs {task} && find . -type f -exec sha256sum -z {{}} + </dev/null")


def archive(job: str, home: str, task: str) -> str:
    """A tar of a task's outputs; hard links as files of their own."""
    return _script(job, Site("", home), f"cd_outputs {task} && tar --create --hard-dereference --file=- . </dev/null")


def mark_collected(job: str, home: str, place: str) -> str:
    return _script(job, Site("", home), f'[ ! -d "$own" ] || put "$own/collected" <<\'END\'\n{place}\nEND')


def remove(job: str, home: str, grace: int, outcome: str, *, discard: bool) -> str:
    """The outcome comes first: whoever watches shall not take this for a failure."""
    end = f"put \"$own/outcome\" <<'END'\n{outcome}\nEND"
    known = f'[ ! -d "$own" ] || [ -e "$own/outcome" ] || {{\n{end}\n}}'
    return _script(job, Site("", home), "carefully", known, f"remove_job {grace} {'discard' if discard else ''}")


def lock_status(home: str) -> str:
    return _script("", Site("", home), "lock_status")


def lock_release(home: str) -> str:
    return _script("", Site("", home), "lock_release")


def queue(home: str, job: str, ticket: str) -> str:
    """A place in line, or a sign of life of one that is there; and who else is in it."""
    return _script(job, Site("", home), f"stand_in_line {ticket} {lock.WATCH_STALE_AFTER}")


def leave_queue(home: str, job: str, ticket: str) -> str:
    return _script(job, Site("", home), f"leave_line {ticket}")


def logs(launch: Launch, home: str, task: Task, *, follow: bool, tail: int | None, since: str) -> str:
    """Lines as `timestamp text`, ended when we go."""
    wishes = [*(["--tail", str(tail)] if tail is not None else []), *(["--since", since] if since else [])]
    wishes += ["--follow"] if follow else []
    if _is_process(launch):
        command = f'"$python" "$own/keeper.py" logs "$own/tasks/{task.id}" {shlex.join(wishes)}'
    else:
        command = shlex.join(["docker", "logs", "--timestamps", *wishes, containers.name(launch, task)])
    # Only what would go on without us needs the leash.
    return _script(launch.job, Site("", home), f"{'leash ' if follow else ''}{command} </dev/null 2>&1")


def exec_words(launch: Launch, home: str, task: Task, command: Sequence[str], *, tty: bool) -> tuple[str, ...]:
    """A command within a running task."""
    if _is_process(launch):
        own = f"{home}/jobs/{launch.job}"
        return (PYTHON, f"{own}/keeper.py", "exec", f"{own}/tasks/{task.id}", "--", *command)
    return ("docker", "exec", "--interactive", *(("--tty",) if tty else ()), containers.name(launch, task), *command)


def tasks_on(launch: Launch, host: str) -> tuple[Task, ...]:
    return tuple(task for task in launch.plan.tasks if task.host == host)


def reservation(launch: Launch, task: Task) -> Reservation:
    need = launch.plan.spec_of(task)
    slot = task.role in ("ps", "worker") or (task.role == "chief" and not launch.plan.by_role["ps"])
    return Reservation(launch.job, task.id, task.port, int(slot), need.cpus or 0, need.memory or 0, task.gpus)


def records(printed: str) -> list[tuple[str, str]]:
    """What a script answered: (word, lines) of each record."""
    parts = (part.partition("\n") for part in printed.split("\x1e")[1:])
    return [(head.strip(), body.rstrip("\n")) for head, _, body in parts]


def _keeper(launch: Launch) -> list[str]:
    return ['echo "$python" >"$own/python"', _put("$own/keeper.py", processes.keeper().rstrip("\n"), launch)]


def _in_glob_order(others: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """As the shell lists their directories, each with a slash behind it."""
    return sorted(others, key=lambda each: f"{each[0]}/")


def _make_shared(launch: Launch, site: Site) -> str:
    """Tasks of several users could not write there otherwise."""
    image_user = site.login if _is_process(launch) else site.image_user
    users = {launch.plan.spec_of(task).user or image_user for task in launch.plan.tasks}
    return f"make_shared {shlex.quote(launch.plan.job.shared or '')} {'755' if len(users) == 1 else '777'}"


def _create(launch: Launch, site: Site, task: Task, secrets: Mapping[str, str]) -> str:
    count = len(mounts.output_directories(launch.plan.job))
    lines = [
        f"task_directory {task.id}",
        f"mkdir -p {' '.join(f'$directory/outputs/{number}' for number in range(count))}".replace(
            "$directory", '"$directory"'
        ),
        *(f"secret {key} {shlex.quote(value)}" for key, value in secrets.items()),
    ]
    own = site.own(launch.job)
    if _is_process(launch):
        user = launch.plan.spec_of(task).user or site.login
        lines.append(
            processes.create(launch, task, own=own, user=user, inherited=site.inherited, cwd=site.cwd).rstrip("\n")
        )
    else:
        lines.append(containers.create(launch, task, own=own, user=site.image_user, selinux=site.selinux).rstrip("\n"))
    return "\n".join(lines)


def _script(job: str, site: Site, *lines: str, holder: Holder | None = None) -> str:
    given = {
        "home": site.home,
        "job": job,
        "generation": holder.generation if holder else "",
        "holder": holder.line() if holder else "",
        "python": site.python,
    }
    values = "\n".join(f"{key}={shlex.quote(value)}" for key, value in given.items())
    return "\n".join((values, _library(), *lines)) + "\n"


@cache
def _library() -> str:
    return Path(__file__).with_name("scripts").joinpath("host.sh").read_text()


def _put(path: str, text: str, launch: Launch) -> str:
    return f"put \"{path}\" <<'{launch.generation}'\n{text}\n{launch.generation}"


def _ports(tasks: Iterable[Task]) -> str:
    return " ".join(f"{task.port}:{task.port:04X}" for task in tasks)


def _hosts_line(task: Task) -> str:
    return f"{task.address if _is_ip(task.address) else f'?{task.address}'} {task.name}"


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _is_process(launch: Launch) -> bool:
    return launch.plan.job.runtime == "process"


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts)

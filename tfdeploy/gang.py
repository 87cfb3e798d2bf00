"""The launch: every host reserves and creates, then every host starts; one failure undoes all."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfdeploy import host_scripts, lock, remote, truth
from tfdeploy.errors import LockedError, TfdeployError, all_of
from tfdeploy.host_scripts import Site, records
from tfdeploy.launch import Launch
from tfdeploy.lock import Holder
from tfdeploy.remote import Output, Remote
from tfdeploy.truth import HostView, State
from tfdeploy.wording import last_line

SECONDS_FOR_A_SCRIPT = 300
SECONDS_IN_FRONT_OF_A_LOCK = 30
COULD_NOT_START = (125, 126, 127)

# Docker's own words, in ours.
EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    (r"[Nn]o space left on device|Disk quota exceeded", "disk full", "Make room there, then try again"),
    (r"executable file not found|exec.*[Nn]o such file",
     "127: command not found", "Is it in the image, and is its path right?"),
    (r"bind source path does not exist",
     "a mount has no source there", "Make that directory on the host, or correct mounts:"),
    (r"[Cc]annot connect to the Docker daemon", "Docker does not run there", "`tfdeploy doctor` says more"),
    (r"could not select device driver|nvidia-container-cli",
     "its GPUs cannot be given to a container", "`tfdeploy doctor` says more"),
    (r"No such image|Unable to find image", "the image is gone from there", "Try again: it is sent again"),
)  # fmt: skip


class Moved(TfdeployError):
    """Between plan and launch a port was taken, or another job came: plan again."""


class _Held(TfdeployError):
    """Another controller is launching something there at this moment."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"locked by {holder}", "Wait for it, or `tfdeploy lock release` if it is gone for good")
        self.holder = holder


def launch(
    planned: Launch,
    sites: Mapping[str, Site],
    remotes: Mapping[str, Remote],
    secrets: Mapping[str, str],
    *,
    on_created: Callable[[], None] = lambda: None,
) -> dict[str, HostView]:
    """Starts all tasks or none. What each host says of its tasks right after the start."""
    holder = lock.me(planned.job, planned.generation)
    members = {name: remotes[name] for name in planned.plan.hosts}
    with _undone_if_it_fails(planned, sites, members, holder), _kept(members, sites, holder):
        _reserve(planned, sites, members, holder, secrets)
        on_created()
        started = _on_all(members, lambda host: _start(planned, sites[host.name], host, holder))
        _check_started(planned, sites, members, started)
    return started


def _reserve(
    planned: Launch,
    sites: Mapping[str, Site],
    members: Mapping[str, Remote],
    holder: Holder,
    secrets: Mapping[str, str],
) -> None:
    """All hosts at once. Where somebody is in the way, one after another in order, so that one of the two gets all."""

    def one(host: Remote) -> None:
        script = host_scripts.reserve(planned, sites[host.name], holder, secrets)
        _answer(host.run(script, seconds=SECONDS_FOR_A_SCRIPT), planned)

    answers = remote.on_each(members, one)
    held = [error for error in answers.values() if isinstance(error, _Held)]
    others = [error for error in answers.values() if isinstance(error, TfdeployError) and error not in held]
    if others:
        raise _gravest(others)
    if not held:
        return
    _undo(planned, sites, members, holder)
    for name in sorted(members):
        _in_front_of_the_lock(members[name], one, planned)


def _in_front_of_the_lock(host: Remote, one: Callable[[Remote], None], planned: Launch) -> None:
    deadline = time.monotonic() + SECONDS_IN_FRONT_OF_A_LOCK
    while True:
        try:
            return one(host)
        except _Held as held:
            held.where = host.name
            if held.holder.job == planned.job or time.monotonic() > deadline:
                raise LockedError(held.what, held.remedy, where=host.name) from None
            time.sleep(0.3)


def _start(planned: Launch, site: Site, host: Remote, holder: Holder) -> HostView:
    output = host.run(host_scripts.start(planned, site, holder), seconds=SECONDS_FOR_A_SCRIPT)
    _answer(output, planned)
    return truth.host_view(output.stdout, planned.generation)


def _check_started(
    planned: Launch, sites: Mapping[str, Site], members: Mapping[str, Remote], started: Mapping[str, HostView]
) -> None:
    """A command that does not exist is no training that failed: the launch did."""
    errors = []
    for each in truth.job_view(planned, started).tasks:
        if each.state is State.FAILED and each.exit_code in COULD_NOT_START:
            host = each.task.host
            script = host_scripts.logs(planned, sites[host].home, each.task, follow=False, tail=5, since="")
            said = last_line(members[host].run(script, seconds=SECONDS_FOR_A_SCRIPT).stdout.partition(" ")[2])
            words = f"{each.why}: {said}" if said else each.why
            errors.append(TfdeployError(words, "Is the command right?", where=f"{host}: {each.task.id}"))
    if errors:
        raise all_of(errors)


def _answer(output: Output, planned: Launch) -> None:
    """Raises what the script reported."""
    answers = dict(records(output.stdout))
    if "held" in answers:
        raise _Held(Holder.parse(answers["held"]))
    if "moved" in answers:
        raise Moved(answers["moved"])
    if "exists" in answers:
        raise LockedError(
            f"job {planned.job} was launched there by somebody else at this moment ({answers['exists']})",
            "`tfdeploy status` shows it",
        )
    if output.code:
        raise _failure(answers.get("failed", ""), output.stderr, planned)


def _failure(step: str, said: str, planned: Launch) -> TfdeployError:
    """Which task, and Docker's own words."""
    name = re.search(rf"tfdeploy-{re.escape(planned.job)}-([a-z]+-[0-9]+)", said)
    at = step or (name[1] if name else "")
    words = _words(said)
    for pattern, what, remedy in EXPLANATIONS:
        if re.search(pattern, said):
            return TfdeployError(f"{at}: {what}: {words}" if at else f"{what}: {words}", remedy)
    return TfdeployError(f"{at}: {words}" if at else words)


def _words(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("Error: failed to start")]
    text = last_line("\n".join(lines)) or "it did not say why"
    return text.removeprefix("Error response from daemon: ").removeprefix("docker: ")


def _on_all(members: Mapping[str, Remote], do: Callable[[Remote], Any]) -> dict[str, Any]:
    answers = remote.on_each(members, do)
    errors = [answer for answer in answers.values() if isinstance(answer, TfdeployError)]
    if errors:
        raise _gravest(errors)
    return answers


def _gravest(errors: list[TfdeployError]) -> TfdeployError:
    """Planning again helps only where nothing worse has happened."""
    worse = [error for error in errors if not isinstance(error, Moved)]
    return all_of(worse) if worse else errors[0]


@contextlib.contextmanager
def _undone_if_it_fails(
    planned: Launch, sites: Mapping[str, Site], members: Mapping[str, Remote], holder: Holder
) -> Iterator[None]:
    try:
        yield
    except BaseException as failure:
        left = _undo(planned, sites, members, holder)
        if left and isinstance(failure, TfdeployError):
            names = ", ".join(left)
            note = f"What was made on {names} could not be undone: `tfdeploy down {planned.job}` when it is back"
            failure.remedy = f"{failure.remedy}. {note}" if failure.remedy else note
        raise


def _undo(planned: Launch, sites: Mapping[str, Site], members: Mapping[str, Remote], holder: Holder) -> list[str]:
    """The hosts where it could not be done."""

    def one(host: Remote) -> Output:
        return host.run(host_scripts.undo(planned, sites[host.name], holder), seconds=SECONDS_FOR_A_SCRIPT)

    with _not_interrupted():
        answers = remote.on_each(members, one)
    return [name for name, answer in answers.items() if isinstance(answer, TfdeployError) or answer.code]


@contextlib.contextmanager
def _not_interrupted() -> Iterator[None]:
    """A second Ctrl-C does not leave half of it on the hosts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _kept(members: Mapping[str, Remote], sites: Mapping[str, Site], holder: Holder) -> Iterator[None]:
    """Signs of life, so that a slow launch does not lose its locks."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(lock.SECONDS_BETWEEN_BEATS):
            remote.on_each(members, lambda host: host.run(host_scripts.keep_lock(sites[host.name].home, holder)))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()

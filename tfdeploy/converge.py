"""Playbooks through ansible-runner. The only importer of ansible_runner."""

import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdeploy import paths
from tfdeploy.errors import TfdeployError

# ansible-runner looks at its cancel callback as often as pexpect times out.
SECONDS_TO_NOTICE_CANCEL = 1


@dataclass(frozen=True)
class Progress:
    """One step of one host, as it happens."""

    host: str
    task: str
    state: str  # started, ok, changed, skipped, failed, unreachable
    message: str = ""


@dataclass(frozen=True)
class HostOutcome:
    """Where a host stood when the playbook ended."""

    host: str
    state: str  # ok, changed, failed, unreachable, cancelled, untouched
    task: str = ""
    message: str = ""

    @property
    def good(self) -> bool:
        return self.state in ("ok", "changed")


@dataclass(frozen=True)
class Convergence:
    outcomes: tuple[HostOutcome, ...]
    artifacts: Path
    cancelled: bool = False

    @property
    def good(self) -> bool:
        return not self.cancelled and all(outcome.good for outcome in self.outcomes)


@dataclass(frozen=True)
class Request:
    """A playbook to run: a value, so that it can be shown before anything is touched."""

    playbook: Path
    inventory: Sequence[str]
    hosts: Sequence[str]
    extravars: Mapping[str, Any] = field(default_factory=dict)  # they show in the process list: no secrets
    tags: str = ""
    check: bool = False
    diff: bool = False
    verbosity: int = 0
    options: Sequence[str] = ()  # further words for ansible-playbook, such as -e and vault options


def converge(
    request: Request,
    run_dir: Path,
    *,
    become_password: str = "",
    login_password: str = "",
    vault_password: str = "",
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_output: Callable[[str], None] = lambda text: None,
) -> Convergence:
    """Run the playbook; everything ansible-runner writes is kept in `run_dir`, which is made anew."""
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True, mode=0o700)
    # As a file: without files for secrets, ansible-runner forgets the settings it is given.
    (run_dir / "env").mkdir()
    (run_dir / "env/settings").write_text(json.dumps({"pexpect_timeout": SECONDS_TO_NOTICE_CANCEL}))
    passwords = {
        "--become-password-file": become_password,
        "--connection-password-file": login_password,
        "--vault-password-file": vault_password,
    }
    with contextlib.ExitStack() as stack:
        pipes = [
            f"{option}={stack.enter_context(_password_pipe(run_dir / option.strip('-'), password))}"
            for option, password in passwords.items()
            if password
        ]
        return _run(request, run_dir, (*request.options, *pipes), on_progress, on_output)


def _run(
    request: Request,
    run_dir: Path,
    options: Sequence[str],
    on_progress: Callable[[Progress], None],
    on_output: Callable[[str], None],
) -> Convergence:
    import ansible_runner

    events: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
    cancelled = threading.Event()

    def enqueue(event: Mapping[str, Any]) -> bool:
        events.put(event)
        return True

    def play() -> None:
        try:
            ansible_runner.run(
                private_data_dir=str(run_dir),
                playbook=str(request.playbook),
                inventory=list(request.inventory),
                limit=",".join(request.hosts),
                extravars=dict(request.extravars),
                tags=request.tags or None,
                cmdline=shlex.join(
                    (*options, *(["--check"] if request.check else []), *(["--diff"] if request.diff else []))
                ),
                verbosity=request.verbosity or None,
                roles_path=str(paths.roles()),
                envvars=_environment(len(request.hosts)),
                suppress_env_files=True,
                event_handler=enqueue,
                cancel_callback=cancelled.is_set,
                quiet=True,
            )
        finally:
            events.put(None)

    pool = ThreadPoolExecutor(1, thread_name_prefix="ansible-runner")
    played = pool.submit(play)
    seen: list[Progress] = []
    while True:
        try:
            event = events.get()
            if event is None:
                break
            if text := event.get("stdout"):
                on_output(text)
            for progress in _progress(event):
                seen.append(progress)
                on_progress(progress)
        except KeyboardInterrupt:
            cancelled.set()
    pool.shutdown()
    if cancelled.is_set():
        _end_what_is_left(run_dir)
    played.result()
    outcomes = tuple(outcome(host, seen, cancelled=cancelled.is_set()) for host in request.hosts)
    if not seen and not cancelled.is_set():
        raise TfdeployError(f"ansible-playbook did nothing: {_last_words(run_dir)}", f"See {run_dir}")
    return Convergence(outcomes, run_dir, cancelled.is_set())


def _end_what_is_left(run_dir: Path) -> None:
    """Ansible's workers are sessions of their own and outlive it. All that it started knows the run directory."""
    mark = os.fsencode(run_dir)
    for environment in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environment.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and mark in environment.read_bytes():
                os.kill(pid, signal.SIGKILL)


def outcome(host: str, seen: Sequence[Progress], *, cancelled: bool) -> HostOutcome:
    """What the events say of one host: never trust a return code, which is 0 for a play that matched nobody."""
    own = [progress for progress in seen if progress.host == host]
    for progress in own:
        if progress.state in ("failed", "unreachable"):
            return HostOutcome(host, progress.state, progress.task, progress.message)
    if cancelled:
        return HostOutcome(host, "cancelled", own[-1].task if own else "")
    if not own:
        return HostOutcome(host, "untouched")
    changed = any(progress.state == "changed" for progress in own)
    return HostOutcome(host, "changed" if changed else "ok", own[-1].task)


def _progress(event: Mapping[str, Any]) -> Iterator[Progress]:
    data = event.get("event_data", {})
    result = data.get("res") or {}
    host, task = data.get("host", ""), data.get("task", "")
    match event.get("event"):
        case "runner_on_start":
            yield Progress(host, task, "started")
        case "runner_on_ok":
            yield Progress(host, task, "changed" if result.get("changed") else "ok")
        case "runner_on_skipped":
            yield Progress(host, task, "skipped")
        case "runner_on_failed" if not data.get("ignore_errors"):
            yield Progress(host, task, "failed", failure_message(result))
        case "runner_on_unreachable":
            yield Progress(host, task, "unreachable", failure_message(result))


def failure_message(result: Mapping[str, Any]) -> str:
    """The module's own words: its message, and what the command behind it wrote, where that adds something."""
    failed_items = [item for item in result.get("results", []) if item.get("failed")]
    if failed_items:
        return failure_message(failed_items[0])
    message = str(result.get("msg") or result.get("exception") or "no message").strip()
    for stream in ("stderr", "module_stderr", "stdout", "module_stdout"):
        lines = str(result.get(stream) or "").strip().splitlines()
        if lines and lines[-1].strip() not in message:
            return f"{message}: {lines[-1].strip()}"
    return message


def _environment(hosts: int) -> dict[str, str]:
    return {
        # ansible-playbook stands beside the Python that runs us, which need not be on the user's PATH.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        # Ansible refuses other locales, and messages are read in English.
        "LC_ALL": "C.UTF-8",
        # ansible-runner turns this off, and would then accept even a changed key.
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_FORKS": str(max(1, min(hosts, 32))),
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "ANSIBLE_NOCOWS": "True",
        "ANSIBLE_NOCOLOR": "True",
        "ANSIBLE_FORCE_COLOR": "False",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
    }


@contextlib.contextmanager
def _password_pipe(path: Path, password: str) -> Iterator[Path]:
    """A pipe that gives the password to its one reader, so that it never stands on a disk or a command line."""
    os.mkfifo(path, 0o600)
    threading.Thread(target=_write, args=(path, password), daemon=True).start()
    try:
        yield path
    finally:
        # Nobody may have read it: a reader of our own lets the writer go.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        path.unlink(missing_ok=True)


def _write(path: Path, password: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        path.write_text(password + "\n")


def _last_words(run_dir: Path) -> str:
    """Ansible's errors where it named some, else its last lines."""
    said = [path.read_text(errors="replace") for path in run_dir.glob("artifacts/*/stdout")]
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if "ERROR" in line), len(lines) - 3)
    return " ".join(lines[max(first, 0) :][:4]) or "no output"

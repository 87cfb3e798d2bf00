"""Keeps one task of a job on a host that has no Docker: starts it, logs what it says, restarts and stops it.

It runs alone on the hosts, with whatever Python they have from 3.6 on: standard library only, newer types in quotes.
All that it knows of a task lies in the task's directory: spec.json, which is given, state.json, log, log.1 and so on.
"""

import argparse
import contextlib
import ctypes
import datetime
import errno
import fcntl
import grp
import json
import os
import pwd
import re
import select
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple, NoReturn, TextIO

PIECE = 16 * 1024
BLOCK = 64 * 1024
STAMP = len("2026-11-18T15:30:27.123456789Z")

FIRST_DELAY, LONGEST_DELAY = 0.1, 60.0
SECONDS_UNTIL_SETTLED = 10
SECONDS_FOR_LEFTOVERS = 2
SECONDS_FOR_KILLED = 5
SECONDS_FOR_LAST_WORDS = 1
SECONDS_BEYOND_GRACE = 30
SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_BETWEEN_LOG_LOOKS = 0.2

NOT_FOUND, NOT_EXECUTABLE, NOT_STARTED = 127, 126, 125
EXEC_CODES = {
    errno.ENOENT: NOT_FOUND,
    errno.ENOTDIR: NOT_FOUND,
    errno.EACCES: NOT_EXECUTABLE,
    errno.EPERM: NOT_EXECUTABLE,
    errno.EISDIR: NOT_EXECUTABLE,
    errno.ENOEXEC: NOT_EXECUTABLE,
}
ASKS_TO_STOP = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
KEEPER_GONE = "unknown: its keeper is gone"

CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
PR_SET_CHILD_SUBREAPER = 36


class Failure(Exception):
    """What could not be done, in a line, with the exit code that says so."""

    def __init__(self, what: str, code: int = NOT_STARTED) -> None:
        super().__init__(what)
        self.code = code


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        complain(message)
        sys.exit(2)


def main(arguments: "list[str]") -> int:
    command: list[str] = []
    if arguments[:1] == ["exec"] and "--" in arguments:
        end = arguments.index("--")
        arguments, command = arguments[:end], arguments[end + 1 :]
    options = parser().parse_args(arguments)
    try:
        code = perform(options, command)
        sys.stdout.flush()
        return code
    except Failure as failure:
        complain(str(failure))
        return failure.code if options.verb in ("run", "start", "exec") else 1
    except BrokenPipeError:
        # Python would flush once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        complain(str(error))
        return NOT_STARTED if options.verb in ("run", "start", "exec") else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    whole = Parser(prog="keeper")
    verbs = whole.add_subparsers(dest="verb")
    verbs.required = True  # as an argument of add_subparsers it is not known to 3.6
    for name in ("run", "start", "exec", "logs"):
        verbs.add_parser(name).add_argument("directory")
    for name in ("stop", "look"):
        verbs.add_parser(name).add_argument("directories", nargs="+")
    logs_parser = verbs.choices["logs"]
    logs_parser.add_argument("--follow", action="store_true")
    logs_parser.add_argument("--tail", type=int)
    logs_parser.add_argument("--since", default="")
    return whole


def perform(options: argparse.Namespace, command: "list[str]") -> int:
    if options.verb == "stop":
        return stop([os.path.abspath(each) for each in options.directories])
    if options.verb == "look":
        return look([os.path.abspath(each) for each in options.directories])
    directory = os.path.abspath(options.directory)
    if options.verb == "run":
        return Keeper(directory).keep(lambda: None)
    if options.verb == "start":
        return start(directory)
    if options.verb == "exec":
        return execute(directory, command)
    return logs(directory, options.follow, options.tail, options.since)


# The task and its keeper


def start(directory: str) -> int:
    """Returns as soon as the task runs under a keeper that holds nothing of ours."""
    if has_keeper(directory):
        return 0
    heard, said = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.close(heard)
        detached(directory, said)
    os.close(said)
    with open(heard, encoding="utf-8") as verdict:
        answer = verdict.read()
    os.waitpid(middle, 0)
    if not answer:
        raise Failure("its keeper ended before the task ran")
    code, what = json.loads(answer)
    if code:
        raise Failure(what, code)
    return 0


def detached(directory: str, said: int) -> NoReturn:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        close_all_but(said)
        with open(said, "w", encoding="utf-8") as verdict:
            attempt(directory, verdict)
    finally:
        os._exit(0)


def attempt(directory: str, verdict: TextIO) -> None:
    try:
        Keeper(directory).keep(lambda: tell(verdict, 0, ""))
    except Failure as failure:
        tell(verdict, failure.code, str(failure))
    except Exception as error:
        tell(verdict, NOT_STARTED, str(error) or repr(error))


def tell(verdict: TextIO, code: int, what: str) -> None:
    """Once only, and to nobody if whoever started us has left."""
    if verdict.closed:
        return
    with contextlib.suppress(OSError):
        json.dump([code, what], verdict)
    with contextlib.suppress(OSError):
        verdict.close()


def has_keeper(directory: str) -> bool:
    try:
        state = read_state(directory)
    except Failure:
        return False
    return state is not None and state["state"] != "exited" and lives(state, "keeper")


class Keeper:
    """One task from its start to its end for good. One thread: signals, output and ended children all wake `pump`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.spec = read_spec(directory)
        self.lock = take(directory)
        self.log = Log(directory, self.spec["log_bytes"], self.spec["log_files"])
        self.selector = selectors.DefaultSelector()
        self.asked = False
        self.kill_at = 0.0
        self.oom_kills = 0
        own = process(os.getpid())
        self.state: dict[str, Any] = {
            "state": "running",
            "pid": 0,
            "pid_start": 0,
            "keeper": os.getpid(),
            "keeper_start": own.start if own else 0,
            "boot": boot(),
            "started": "",
            "finished": "",
            "exit_code": None,
            "oom": False,
            "restarts": 0,
            "stopped": False,
            "error": "",
        }
        self.wake = self.listen()

    def listen(self) -> int:
        """Grandchildren without a parent come to us, and every signal is a byte to be read by `pump`."""
        with contextlib.suppress(OSError):
            call("prctl", ctypes.c_ulong(PR_SET_CHILD_SUBREAPER), *map(ctypes.c_ulong, (1, 0, 0, 0)))
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        for number in (*ASKS_TO_STOP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self.selector.register(wake, selectors.EVENT_READ)
        return wake

    def keep(self, running: "Callable[[], None]") -> int:
        """Returns the task's exit code; calls `running` once it runs, and raises if it cannot be started."""
        try:
            self.launch()
            running()
            return self.keep_alive()
        except Failure as failure:
            self.state.update(exit_code=failure.code, error=str(failure), finished=now())
            raise
        except Exception as error:
            # A keeper that has to give up leaves no task without one.
            signal_all(self.leftovers(), signal.SIGKILL)
            self.state.update(exit_code=128 + signal.SIGKILL, error=reason(error), finished=now())
            raise
        finally:
            self.change(state="exited")
            # Python at its end gives them their default action again, and one more would change our exit code.
            for number in ASKS_TO_STOP:
                signal.signal(number, signal.SIG_IGN)

    def keep_alive(self) -> int:
        delay = FIRST_DELAY
        while True:
            began = time.monotonic()
            code = self.attend()
            if not self.again(code):
                return code
            if time.monotonic() - began > SECONDS_UNTIL_SETTLED:
                delay = FIRST_DELAY
            self.change(state="restarting")
            self.pause(delay)
            if self.asked:
                self.state["stopped"] = True
                return code
            delay = min(2 * delay, LONGEST_DELAY)
            self.state["restarts"] += 1
            self.launch()

    def launch(self) -> None:
        self.oom_kills = oom_kills()
        pid, streams = spawn(self.spec)
        for name, stream in streams.items():
            self.selector.register(stream, selectors.EVENT_READ, Lines(self.log, name))
        found = process(pid)
        self.change(
            state="running",
            pid=pid,
            pid_start=found.start if found else 0,
            started=now(),
            finished="",
            exit_code=None,
            oom=False,
        )

    def attend(self) -> int:
        """Waits for the task's end, brings it about where that is asked, and leaves nothing of the task behind."""
        code = self.reap()
        while code is None:
            self.pump(max(self.kill_at - time.monotonic(), SECONDS_BETWEEN_LOOKS) if self.kill_at else None)
            code = self.reap()
            if code is None and self.asked:
                self.press()
        oom = code == 128 + signal.SIGKILL and not self.asked and oom_kills() > self.oom_kills
        self.state.update(exit_code=code, finished=now(), stopped=self.asked, oom=oom)
        self.sweep()
        self.drain()
        return code

    def press(self) -> None:
        if not self.kill_at:
            self.kill_at = time.monotonic() + self.spec["grace"]
            signal_group(self.state["pid"], signal.SIGTERM)
        elif time.monotonic() >= self.kill_at:
            signal_group(self.state["pid"], signal.SIGKILL)

    def sweep(self) -> None:
        """Ends what is left of the task; in a stop, whoever is still saving has what remains of the grace."""
        deadline = max(time.monotonic() + SECONDS_FOR_LEFTOVERS, self.kill_at)
        # In a stop the group has been told; told twice, some give up what they are saving.
        told = self.state["pid"] if self.kill_at else 0
        signal_all([pid for pid in self.leftovers() if group_of(pid) != told], signal.SIGTERM)
        while time.monotonic() < deadline + SECONDS_FOR_KILLED:
            self.reap()
            left = self.leftovers()
            if not left:
                return
            if time.monotonic() >= deadline:
                signal_all(left, signal.SIGKILL)
            self.pump(SECONDS_BETWEEN_LOOKS)

    def leftovers(self) -> "list[int]":
        """The task's session, and those who left it: their parents are gone, or lead to us."""
        table = processes()
        found = set(members(self.state, table))
        family = {os.getpid()}
        size = 0
        while len(family) > size:
            size = len(family)
            family.update(pid for pid, each in table.items() if each.parent in family)
        found.update(pid for pid in family if not table[pid].ended)
        return sorted(found - {os.getpid()})

    def drain(self) -> None:
        """The last words of the task; somebody who got away from us may hold its pipes for ever."""
        deadline = time.monotonic() + SECONDS_FOR_LAST_WORDS
        while self.streams() and time.monotonic() < deadline:
            self.pump(SECONDS_BETWEEN_LOOKS)
        for key in self.streams():
            self.hang_up(key)

    def streams(self) -> "list[selectors.SelectorKey]":
        return [key for key in self.selector.get_map().values() if key.fd != self.wake]

    def hang_up(self, key: selectors.SelectorKey) -> None:
        self.selector.unregister(key.fd)
        os.close(key.fd)
        key.data.end()

    def pump(self, timeout: "float | None") -> None:
        """Takes in what the task says and what signals ask, as soon as there is something, or not at all."""
        for key, _ in self.selector.select(timeout):
            data = os.read(key.fd, BLOCK)
            if key.fd == self.wake:
                self.asked = self.asked or bool(ASKS_TO_STOP.intersection(data))
            elif data:
                key.data.feed(data)
            else:
                self.hang_up(key)

    def pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.asked and time.monotonic() < deadline:
            self.pump(max(deadline - time.monotonic(), 0))

    def reap(self) -> "int | None":
        """Buries whoever has ended; the task's exit code, if it is among them."""
        code = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.state["pid"]:
                    code = exit_code(status)
        return code

    def again(self, code: int) -> bool:
        if self.asked or self.state["restarts"] >= self.spec["max_restarts"]:
            return False
        return self.spec["restart"] == "always" or (self.spec["restart"] == "on-failure" and code != 0)

    def change(self, **changes: object) -> None:
        self.state.update(changes)
        try:
            write_state(self.directory, self.state)
        except OSError as error:
            # A full disk is no reason to leave the task alone.
            complain(f"state.json: {error}")


def take(directory: str) -> int:
    """Makes us its only keeper for as long as we live."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failure("the task has a keeper already") from None
    except OSError:
        pass  # NFS does not lock directories; the state is looked at as well
    state = None
    with contextlib.suppress(Failure):
        state = read_state(directory)
    if state is not None and state["state"] != "exited":
        if lives(state, "keeper"):
            raise Failure("the task has a keeper already")
        if members(state, processes()):
            raise Failure("the task still runs without its keeper: stop it first")
    return lock


def spawn(spec: "dict[str, Any]") -> "tuple[int, dict[bytes, int]]":
    """The pid of the task, and what to read its streams from, once the command itself runs."""
    streams, report = {b"stdout": os.pipe(), b"stderr": os.pipe()}, os.pipe()
    # A signal between fork and exec is meant for the keeper, whose handlers the child still has.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*ASKS_TO_STOP, signal.SIGCHLD))
    pid = os.fork()
    if pid == 0:
        be_task(spec, streams[b"stdout"][1], streams[b"stderr"][1], report[1])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for _, theirs in (*streams.values(), report):
        os.close(theirs)
    with open(report[0], encoding="utf-8") as file:
        failed = file.read()
    if not failed:
        return pid, {name: ours for name, (ours, _) in streams.items()}
    os.waitpid(pid, 0)
    for ours, _ in streams.values():
        os.close(ours)
    code, what = json.loads(failed)
    raise Failure(what, code)


def be_task(spec: "dict[str, Any]", stdout: int, stderr: int, report: int) -> NoReturn:
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        close_all_but(report)
        if spec["user"] and os.geteuid() == 0:
            # Else /dev/stdout, which opens the pipe anew, would be refused to the task's user.
            for number in (1, 2):
                os.fchown(number, identity(spec["user"])[0], -1)
        become(spec, spec["argv"])
    except Failure as failure:
        os.write(report, json.dumps([failure.code, str(failure)]).encode())
    except BaseException as error:
        os.write(report, json.dumps([NOT_STARTED, str(error) or repr(error)]).encode())
    finally:
        os._exit(NOT_STARTED)


def execute(directory: str, command: "list[str]") -> int:
    if not command:
        raise Failure("exec needs a command after --")
    become(read_spec(directory), command)


def become(spec: "dict[str, Any]", argv: "list[str]") -> NoReturn:
    """Turns this process into a command that sees what the task sees."""
    if os.geteuid() == 0:
        if spec["hosts"]:
            mount_hosts(spec["hosts"])
        if spec["user"]:
            be_user(spec["user"])
    try:
        os.chdir(encoded(spec["cwd"]))
    except OSError as error:
        raise Failure(f"working directory {spec['cwd']}: {error.strerror}") from None
    reset_signals()
    environment = {encoded(name): encoded(value) for name, value in spec["env"].items()}
    try:
        os.execvpe(encoded(argv[0]), [encoded(each) for each in argv], environment)
    except OSError as error:
        code = EXEC_CODES.get(error.errno or 0, NOT_STARTED)
        raise Failure(f"{argv[0]}: {error.strerror}", code) from None
    except ValueError as error:
        raise Failure(f"{argv[0]}: {error}") from None


def encoded(text: str) -> bytes:
    """UTF-8 even where 3.6 has the C locale, and thinks of it as ASCII."""
    return text.encode("utf-8", "surrogateescape")


def mount_hosts(path: str) -> None:
    try:
        call("unshare", CLONE_NEWNS)
        mount(None, b"/", MS_REC | MS_PRIVATE)
        mount(encoded(path), b"/etc/hosts", MS_BIND)
        mount(None, b"/etc/hosts", MS_REMOUNT | MS_BIND | MS_RDONLY)
    except OSError as error:
        raise Failure(f"{path} cannot be mounted over /etc/hosts: {error.strerror}") from None


def mount(source: "bytes | None", target: bytes, flags: int) -> None:
    call("mount", source, target, None, ctypes.c_ulong(flags), None)


def call(name: str, *arguments: object) -> None:
    """A function of the C library that Python lacks."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def be_user(user: str) -> None:
    uid, gid, groups = identity(user)
    try:
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
    except (OSError, OverflowError) as error:
        raise Failure(f"user {user}: {error}") from None


def identity(user: str) -> "tuple[int, int, list[int]]":
    """uid, gid and all groups; as in Docker, a user with a group named has no other groups."""
    name, _, group = user.partition(":")
    try:
        account = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        account = None
    if account is None and not name.isdigit():
        raise Failure(f"user {name} is unknown")
    uid = account.pw_uid if account else int(name)
    if group:
        return uid, group_id(group), [group_id(group)]
    if account is None:
        return uid, uid, [uid]
    return uid, account.pw_gid, os.getgrouplist(account.pw_name, account.pw_gid)


def group_id(group: str) -> int:
    if group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise Failure(f"group {group} is unknown") from None


def reset_signals() -> None:
    """Python ignores some, whoever started us may have ignored or blocked others: all of it would outlive exec."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def close_all_but(kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def oom_kills() -> int:
    """How often the kernel has killed in our cgroup for want of memory; 0 where it does not tell."""
    count = 0
    with contextlib.suppress(OSError):
        for path in memory_files():
            with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
                count += sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return count


def memory_files() -> "Iterator[str]":
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                yield f"/sys/fs/cgroup{path}/memory.events"
            elif "memory" in controllers.split(","):
                yield f"/sys/fs/cgroup/memory{path}/memory.oom_control"


# Stop and look


def stop(directories: "list[str]") -> int:
    with ThreadPoolExecutor(len(directories)) as pool:
        return max(pool.map(stop_or_complain, directories))


def stop_or_complain(directory: str) -> int:
    try:
        stop_one(directory)
    except (Failure, OSError) as error:
        complain(f"{os.path.basename(directory)}: {error}")
        return 1
    return 0


def stop_one(directory: str) -> None:
    state = read_state(directory)
    if state is None:
        return
    grace = read_spec(directory)["grace"]
    if lives(state, "keeper"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["keeper"], signal.SIGTERM)
        if not comes_true(lambda: not lives(state, "keeper"), grace + SECONDS_BEYOND_GRACE):
            raise Failure(f"its keeper {state['keeper']} does not end")
    last = read_state(directory)
    if last is not None and last["state"] != "exited":
        code = end_orphans(last, grace)
        error = KEEPER_GONE if code is None else ""
        last.update(state="exited", exit_code=code, finished=now(), stopped=code is not None, error=error)
        write_state(directory, last)


def end_orphans(state: "dict[str, Any]", grace: float) -> "int | None":
    """What the exit code of a task without a keeper must be, or None where it had ended before."""

    def left() -> "list[int]":
        return members(state, processes())

    if not left():
        return None
    signal_all(left(), signal.SIGTERM)
    if comes_true(lambda: not left(), grace):
        return 128 + signal.SIGTERM
    signal_all(left(), signal.SIGKILL)
    if not comes_true(lambda: not left(), SECONDS_FOR_KILLED):
        raise Failure(f"its processes do not end: {', '.join(map(str, left()))}")
    return 128 + signal.SIGKILL


def comes_true(what: "Callable[[], bool]", seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() >= deadline:
            return False
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return True


def signal_all(pids: "Iterable[int]", number: int) -> None:
    """Those that are still there, and that we may send signals to: a task can have become somebody else by sudo."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def group_of(pid: int) -> "int | None":
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def look(directories: "list[str]") -> int:
    # Read before the processes are: a task that starts in between would look gone.
    states = [(directory, state_or_error(directory)) for directory in directories]
    table = processes()
    for directory, state in states:
        print(json.dumps(sight(directory, state, table)))
    return 0


def state_or_error(directory: str) -> "dict[str, Any]":
    try:
        return read_state(directory) or {"state": "created"}
    except Failure as failure:
        return {"state": "created", "error": str(failure)}


def sight(directory: str, state: "dict[str, Any]", table: "dict[int, Process]") -> "dict[str, Any]":
    name = {"dir": os.path.basename(directory)}
    if is_gone(state, table.get):
        # It may have ended, with its last state written, since the state was read.
        state = state_or_error(directory)
        if is_gone(state, process):
            state.update(state="exited", exit_code=None, error=KEEPER_GONE)
    if state["state"] == "created":
        return {**state, **name}
    pids = [] if state["state"] == "exited" else members(state, table)
    return {
        **state,
        **name,
        "alive": bool(pids),
        "cpu_seconds": sum(table[pid].cpu for pid in pids),
        "memory": sum(table[pid].memory for pid in pids),
    }


def is_gone(state: "dict[str, Any]", find: "Callable[[int], Process | None]") -> bool:
    if state["state"] in ("created", "exited"):
        return False
    return not lives(state, "keeper", find) and not lives(state, "pid", find)


# Processes


class Process(NamedTuple):
    parent: int
    session: int
    start: int
    ended: bool
    cpu: float
    memory: int


def processes() -> "dict[int, Process]":
    found = ((int(name), process(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: each for pid, each in found if each is not None}


def process(pid: int) -> "Process | None":
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before it, in brackets, can hold anything.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(
        parent=int(fields[1]),
        session=int(fields[3]),
        start=int(fields[19]),
        ended=fields[0] in (b"Z", b"X"),
        cpu=sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
        memory=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
    )


def lives(state: "dict[str, Any]", who: str, find: "Callable[[int], Process | None]" = process) -> bool:
    """Whether the "keeper" or the "pid" of a state is still there, and its number not somebody else's by now."""
    found = find(state[who])
    return found is not None and not found.ended and found.start == state[who + "_start"] and of_this_boot(state)


def members(state: "dict[str, Any]", table: "dict[int, Process]") -> "list[int]":
    """The living ones of the task's session. The kernel reuses its number only when the last of them is gone."""
    leader = table.get(state["pid"])
    if not state["pid"] or not of_this_boot(state) or (leader is not None and leader.start != state["pid_start"]):
        return []
    return [
        pid
        for pid, each in table.items()
        if each.session == state["pid"] and each.start >= state["pid_start"] and not each.ended
    ]


def of_this_boot(state: "dict[str, Any]") -> bool:
    return bool(state.get("boot", boot()) == boot())


def boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


# The directory


def read_spec(directory: str) -> "dict[str, Any]":
    try:
        with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
            spec: dict[str, Any] = json.load(file)
            return spec
    except (OSError, ValueError) as error:
        raise Failure(f"{directory}/spec.json cannot be read: {reason(error)}") from None


def read_state(directory: str) -> "dict[str, Any] | None":
    path = os.path.join(directory, "state.json")
    try:
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Failure(f"{path} cannot be read: {reason(error)}") from None
    numbers = ("pid", "pid_start", "keeper", "keeper_start")
    if not isinstance(state, dict) or "state" not in state or any(type(state.get(each)) is not int for each in numbers):
        raise Failure(f"{path} is not what a keeper writes")
    return state


def reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def write_state(directory: str, state: "dict[str, Any]") -> None:
    path = os.path.join(directory, "state.json")
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def now() -> str:
    seconds, nanoseconds = divmod(int(time.time() * 1e9), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


def complain(what: str) -> None:
    print(f"keeper: {' '.join(what.split())}", file=sys.stderr)


# The log


class Log:
    """Whole lines, one write each; a line that cannot be written is lost, and the task goes on."""

    def __init__(self, directory: str, limit: int, count: int) -> None:
        self.directory, self.limit, self.count = directory, limit, count
        self.open()

    def open(self) -> None:
        self.fd = os.open(log_path(self.directory, 0), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.size = os.fstat(self.fd).st_size

    def write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            if self.size > self.limit:
                self.rotate()
            written = os.write(self.fd, line)
            if written == len(line):
                self.size += written
            else:
                os.ftruncate(self.fd, self.size)

    def rotate(self) -> None:
        for number in range(self.count - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(log_path(self.directory, number - 1), log_path(self.directory, number))
        if self.count <= 1:
            os.remove(log_path(self.directory, 0))
        before = self.fd
        self.open()
        os.close(before)


class Lines:
    """Cuts what one stream says into lines of the log."""

    def __init__(self, log: Log, name: bytes) -> None:
        self.log, self.name, self.rest = log, name, b""

    def feed(self, data: bytes) -> None:
        *whole, self.rest = (self.rest + data).split(b"\n")
        stamp = now().encode()
        for line in whole:
            self.say(stamp, line)
        while len(self.rest) > PIECE:
            self.say(stamp, self.rest[:PIECE])
            self.rest = self.rest[PIECE:]

    def end(self) -> None:
        if self.rest:
            self.say(now().encode(), self.rest)
        self.rest = b""

    def say(self, stamp: bytes, line: bytes) -> None:
        for begin in range(0, max(len(line), 1), PIECE):
            self.log.write(b"%s %s %s\n" % (stamp, self.name, line[begin : begin + PIECE]))


def log_path(directory: str, number: int) -> str:
    return os.path.join(directory, f"log.{number}" if number else "log")


def logs(directory: str, follow: bool, tail: "int | None", since: str) -> int:
    count = read_spec(directory)["log_files"]
    first = normalised(since) if since else b""
    files = open_logs(directory, count)
    if tail is not None:
        files = skip_to_tail(files, max(tail, 0))
    while True:
        # In this order: what has ended before we look writes no more, and what is rotated before we read, neither.
        ended = not follow or has_ended(directory)
        newer = newer_logs(directory, count, files) if follow else ()
        for file in (*files, *newer):
            show(file, first)
        if ended and not newer:
            return 0
        for file in (*files, *newer)[:-1]:
            file.close()
        files = (*files, *newer)[-1:]
        if not newer and is_left(SECONDS_BETWEEN_LOG_LOOKS):
            return 0


def show(file: BinaryIO, first: bytes) -> None:
    for line in whole_lines(file):
        if line[:STAMP] >= first:
            sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def whole_lines(file: BinaryIO) -> "Iterator[bytes]":
    while True:
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line


def is_left(seconds: float) -> bool:
    """Whether nobody reads what we print any more; takes that long to be sure that somebody does."""
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(seconds * 1000))


def has_ended(directory: str) -> bool:
    """Whether nothing more can come into the log."""
    state = read_state(directory)
    if state is None:
        return not os.path.isdir(directory)
    return state["state"] == "exited" or not lives(state, "keeper")


def open_logs(directory: str, count: int) -> "tuple[BinaryIO, ...]":
    """Oldest first. Looked for from the newest on: then a rotation can show one of them twice, but hide none."""
    found: dict[int, BinaryIO] = {}
    for number in range(max(count, 1)):
        file = open_if_there(log_path(directory, number))
        if file is not None and found.setdefault(inode(file), file) is not file:
            file.close()
    return tuple(reversed(tuple(found.values())))


def open_if_there(path: str) -> "BinaryIO | None":
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None


def newer_logs(directory: str, count: int, files: "tuple[BinaryIO, ...]") -> "tuple[BinaryIO, ...]":
    """Those that came after the newest that we have. Ours is open, so that no other file can get its inode."""
    found = open_logs(directory, count)
    known = [inode(file) for file in found]
    if not files or inode(files[-1]) not in known:
        return found
    at = known.index(inode(files[-1])) + 1
    for file in found[:at]:
        file.close()
    return found[at:]


def inode(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_ino


def skip_to_tail(files: "tuple[BinaryIO, ...]", wanted: int) -> "tuple[BinaryIO, ...]":
    """Those that hold the last `wanted` lines, the first of them open where these begin."""
    for number in range(len(files) - 1, -1, -1):
        wanted = seek_back(files[number], wanted)
        if not wanted:
            return files[number:]
    return files


def seek_back(file: BinaryIO, wanted: int) -> int:
    """Goes to where the last `wanted` lines begin, or to the beginning; returns how many lines are missing then."""
    position = file.seek(0, os.SEEK_END)
    ends = wanted + 1
    while position:
        size = min(BLOCK, position)
        position = file.seek(position - size)
        block = file.read(size)
        count = block.count(b"\n")
        if count >= ends:
            at = len(block)
            for _ in range(ends):
                at = block.rindex(b"\n", 0, at)
            file.seek(position + at + 1)
            return 0
        ends -= count
    file.seek(0)
    return ends - 1


def normalised(moment: str) -> bytes:
    """An RFC 3339 time as the log writes it."""
    match = re.match(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):?(\d\d))?$", moment)
    if not match:
        raise Failure(f"--since {moment}: not a time like 2026-11-18T15:30:27Z")
    day, clock, fraction, sign, hours, minutes = match.groups()
    try:
        when = datetime.datetime.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S")
    except ValueError as error:
        raise Failure(f"--since {moment}: {error}") from None
    if sign:
        offset = datetime.timedelta(hours=int(hours), minutes=int(minutes))
        when = when - offset if sign == "+" else when + offset
    return f"{when.strftime('%Y-%m-%dT%H:%M:%S')}.{(fraction or '')[:9]:0<9}Z".encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Entering hosts: one SSH connection each, and POSIX sh scripts run over it. The only importer of fabric and paramiko.

A script goes in on standard input, so that nothing of it shows in a process list. How a host is entered is asked of
OpenSSH itself (`ssh -G`): the inventory's words, the user's configuration, jump hosts and known_hosts count as they do
for `ssh` and for Ansible. Host keys are always checked.
"""

import contextlib
import logging
import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tfdeploy.errors import InputError, TfdeployError, UnreachableError
from tfdeploy.inventory import Connection, Host, Secret

if TYPE_CHECKING:
    import fabric

SECONDS_TO_CONNECT = 10
TRIES_AFTER_A_RESET = 4
AT_ONCE = 32

A = TypeVar("A")
T = TypeVar("T")


class Cause(StrEnum):
    """Why a host could not be entered."""

    REFUSED = "connection refused"
    TIMEOUT = "timed out"
    NO_ROUTE = "no route"
    NAME_UNKNOWN = "name unknown"
    KEY_UNKNOWN = "host key unknown"
    KEY_CHANGED = "host key changed"
    LOGIN = "login refused"
    SUDO_PASSWORD_MISSING = "sudo wants a password"
    SUDO_PASSWORD_WRONG = "sudo password wrong"
    NO_SUDO = "no sudo"
    DISK_FULL = "disk full"
    DROPPED = "connection lost"


REMEDIES: Mapping[Cause, str] = {
    Cause.REFUSED: "Is sshd running there, and is the port right (ansible_port)?",
    Cause.TIMEOUT: "Is the machine on, and is its address right (ansible_host)?",
    Cause.NO_ROUTE: "Is the machine on, and is its address right (ansible_host)?",
    Cause.NAME_UNKNOWN: "Give its address as ansible_host in the inventory",
    Cause.KEY_UNKNOWN: "Log in once with `ssh` and accept its key, or add it to known_hosts",
    Cause.KEY_CHANGED: "Make sure that it is the machine you mean, then `ssh-keygen -R` its name",
    Cause.LOGIN: "Give the right user and key in the inventory (ansible_user, ansible_ssh_private_key_file), or -k",
    Cause.SUDO_PASSWORD_MISSING: "Give it with -K, or as ansible_become_password in the inventory",
    Cause.SUDO_PASSWORD_WRONG: "Give the right one with -K, or as ansible_become_password in the inventory",
    Cause.NO_SUDO: "Let this user use sudo there, or log in as root",
    Cause.DISK_FULL: "Make room there, then try again",
    Cause.DROPPED: "Try again",
}


class HostUnreachable(UnreachableError):
    def __init__(self, host: str, cause: Cause, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else str(cause), REMEDIES[cause], where=host)
        self.cause = cause


@dataclass(frozen=True)
class Output:
    code: int
    stdout: str
    stderr: str


class Remote(Protocol):
    """An entered host."""

    def run(self, script: str, *, root: bool = True) -> Output: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Passwords:
    """What the user typed for -k and -K; the inventory's own passwords come first."""

    login: Secret | None = None
    become: Secret | None = None

    def for_host(self, connection: Connection) -> Connection:
        return replace(
            connection,
            password=connection.password or self.login,
            become_password=connection.become_password or self.become,
        )


@dataclass(frozen=True)
class Route:
    """How OpenSSH would go to a host."""

    hostname: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ()
    identities_only: bool = False
    jump: str = ""
    command: str = ""
    agent: bool = True


def enter(host: Host, passwords: Passwords | None = None) -> Remote:
    """A connection to the host, with its key checked; it stays open until it is closed."""
    connection = (passwords or Passwords()).for_host(host.connection)
    if connection.connection == "local":
        return _Local(host.name, connection)
    if connection.connection not in ("ssh", "paramiko", "paramiko_ssh", "smart"):
        raise InputError(
            f"ansible_connection={connection.connection} is not a way in that tfdeploy knows",
            "Use ssh or local",
            where=host.name,
        )
    if connection.become_method != "sudo" or connection.become_user != "root":
        raise InputError(
            f"becoming {connection.become_user} by {connection.become_method} is not supported",
            "Use sudo to root, or log in as root",
            where=host.name,
        )
    return _Ssh(host.name, connection, _connect(host.name, connection))


@contextlib.contextmanager
def entered(hosts: Iterable[Host], passwords: Passwords) -> Iterator[dict[str, Remote | TfdeployError]]:
    """All hosts at once, kept open until the end; a host that could not be entered has its error for an answer."""
    remotes = on_each({host.name: host for host in hosts}, lambda host: enter(host, passwords))
    try:
        yield remotes
    finally:
        for answer in remotes.values():
            if not isinstance(answer, TfdeployError):
                answer.close()


def on_each(given: Mapping[str, A], do: Callable[[A], T]) -> dict[str, T | TfdeployError]:
    """For all hosts at once. One that failed has its error for an answer, so that the rest is not lost."""

    def one(name: str, value: A) -> T | TfdeployError:
        try:
            return do(value)
        except TfdeployError as error:
            error.where = error.where or name
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(given, pool.map(one, given.keys(), given.values()), strict=True))


def answered(answers: Mapping[str, T | TfdeployError]) -> dict[str, T]:
    return {name: answer for name, answer in answers.items() if not isinstance(answer, TfdeployError)}


def ssh_words(connection: Connection) -> tuple[str, ...]:
    """What Ansible would say to OpenSSH, without a command."""
    return (
        *shlex.split(connection.ssh_common_args),
        *shlex.split(connection.ssh_extra_args),
        *(("-o", f"Port={connection.port}") if connection.port else ()),
        *(("-o", f"User={connection.user}") if connection.user else ()),
        *(("-o", f'IdentityFile="{connection.private_key_file}"') if connection.private_key_file else ()),
        connection.host,
    )


def route(asked: str) -> Route:
    """From what `ssh -G` printed."""
    values: dict[str, list[str]] = {}
    for line in asked.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value)

    def one(key: str, default: str = "") -> str:
        value = values.get(key, [default])[0]
        return "" if value == "none" else value

    return Route(
        hostname=one("hostname"),
        port=int(one("port", "22")),
        user=one("user"),
        keys=tuple(str(Path(key).expanduser()) for key in values.get("identityfile", ())),
        known_hosts=(*_paths(one("userknownhostsfile")), *_paths(one("globalknownhostsfile"))),
        identities_only=one("identitiesonly") == "yes",
        jump=one("proxyjump"),
        command=one("proxycommand"),
        agent=values.get("identityagent", [""])[0] != "none",
    )


def _paths(listed: str) -> list[str]:
    """OpenSSH prints several files with spaces between, and a name that has spaces just so."""
    whole = Path(listed).expanduser()
    names = [listed] if whole.exists() else listed.split()
    return [str(Path(name).expanduser()) for name in names]


def shell(*, root: bool, password: bool) -> str:
    """The command that reads a script on standard input. With a password, three lines go ahead of the script.

    sudo reads the password from the first, and if it is wrong, the empty second and third: never the script. Where no
    password is needed, the first is thrown away. The user's own shell, whatever it is, only sees one quoted word.
    """
    if not root:
        return "exec sh -s"
    skip = "IFS= read -r _; " if password else ""
    ask = "exec sudo -S -p '' sh -s" if password else "exec sudo -n sh -s"
    script = (
        f'if [ "$(id -u)" = 0 ]; then {skip}exec sh -s; '
        f"elif sudo -n true 2>/dev/null; then {skip}exec sudo -n sh -s; "
        f"else {ask}; fi"
    )
    return f"LC_ALL=C exec sh -c {shlex.quote(f'export LC_ALL=C; {script}')}"


def sudo_failure(said: str) -> Cause | None:
    """Why sudo did not let the script run, from its own words."""
    if "incorrect password" in said or "Sorry, try again" in said or "no password was provided" in said:
        return Cause.SUDO_PASSWORD_WRONG
    if "a password is required" in said or "a terminal is required" in said:
        return Cause.SUDO_PASSWORD_MISSING
    if "not in the sudoers" in said or "not allowed to" in said or "sudo: not found" in said or "may not run" in said:
        return Cause.NO_SUDO
    return None


@dataclass(frozen=True)
class _Input:
    """What goes in on standard input. A script that ran says so first; one that sudo refused does not."""

    script: str
    password: Secret | None

    MARK = "tfdeploy-begins"

    def encoded(self) -> bytes:
        lines = f"{self.password.value}\n\n\n" if self.password else ""
        return f"{lines}echo {self.MARK}\n{self.script}\n".encode()


def _output(host: str, code: int, stdout: bytes, stderr: bytes) -> Output:
    said, errors = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    begun, _, rest = said.partition(f"{_Input.MARK}\n")
    if not _ and (cause := sudo_failure(errors)):
        raise HostUnreachable(host, cause, last_line(errors))
    if not _:
        raise HostUnreachable(host, Cause.DROPPED, last_line(errors or begun))
    return Output(code, rest, errors)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@dataclass
class _Ssh:
    name: str
    connection: Connection
    client: "fabric.Connection" = field(repr=False)

    def run(self, script: str, *, root: bool = True) -> Output:
        import paramiko

        password = self.connection.become_password if root else None
        try:
            channel = self.client.transport.open_session()
            channel.exec_command(shell(root=root, password=password is not None))
            with contextlib.suppress(OSError):  # sudo may have gone before it read everything
                channel.sendall(_Input(script, password).encoded())
            channel.shutdown_write()
            stdout, stderr = _drain(channel)
            return _output(self.name, channel.recv_exit_status(), stdout, stderr)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(self.name, Cause.DROPPED, str(error)) from None

    def close(self) -> None:
        self.client.close()


def _drain(channel: Any) -> tuple[bytes, bytes]:
    """Both streams to their ends, side by side: a full one would stop the other."""
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(channel.makefile_stderr("rb").read()))
    reader.start()
    said = channel.makefile("rb").read()
    reader.join()
    return said, b"".join(errors)


@dataclass
class _Local:
    name: str
    connection: Connection

    def run(self, script: str, *, root: bool = True) -> Output:
        password = self.connection.become_password if root else None
        words = ("sh", "-c", shell(root=root, password=password is not None))
        done = subprocess.run(words, input=_Input(script, password).encoded(), capture_output=True)
        return _output(self.name, done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        pass


def _connect(name: str, connection: Connection) -> "fabric.Connection":
    import paramiko

    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    way = _ask_openssh(name, connection)
    for attempt in range(TRIES_AFTER_A_RESET):
        client = _client(name, way, connection)
        try:
            client.open()
            break
        except paramiko.BadHostKeyException as error:
            raise HostUnreachable(name, Cause.KEY_CHANGED, f"it is now {error.key.fingerprint}") from None
        except paramiko.AuthenticationException as error:
            raise HostUnreachable(name, Cause.LOGIN, f"as {way.user}: {error}") from None
        except (ConnectionResetError, EOFError, paramiko.SSHException) as error:
            # sshd turns away bursts of newcomers (MaxStartups): they come again, not all at once.
            cause = _cause(error)
            if cause is not Cause.DROPPED or attempt + 1 == TRIES_AFTER_A_RESET:
                raise HostUnreachable(name, cause, str(error)) from None
            time.sleep(0.2 * 2**attempt * (1 + os.urandom(1)[0] / 256))
        except OSError as error:
            raise HostUnreachable(name, _cause(error), f"{way.hostname}:{way.port}") from None
    with contextlib.suppress(AttributeError, OSError):  # a channel through a jump host is no socket
        client.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def _cause(error: BaseException) -> Cause:
    import paramiko

    match error:
        case paramiko.ssh_exception.NoValidConnectionsError():
            causes = {_cause(each) for each in error.errors.values()}
            return next(iter(causes))
        case paramiko.SSHException() if "not found in known_hosts" in str(error):
            return Cause.KEY_UNKNOWN
        case paramiko.SSHException() if "No authentication methods available" in str(error):
            return Cause.LOGIN
        case TimeoutError():
            return Cause.TIMEOUT
        case ConnectionRefusedError():
            return Cause.REFUSED
        case socket.gaierror():
            return Cause.NAME_UNKNOWN
        case OSError() if error.errno in (101, 113):
            return Cause.NO_ROUTE
    return Cause.DROPPED


def _client(name: str, way: Route, connection: Connection) -> "fabric.Connection":
    import fabric
    import paramiko

    client = fabric.Connection(
        way.hostname,
        user=way.user,
        port=way.port,
        config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
        gateway=way.command.replace("%h", way.hostname).replace("%p", str(way.port)) or _jump(name, way),
        connect_timeout=SECONDS_TO_CONNECT,
        connect_kwargs={
            "key_filename": [key for key in way.keys if Path(key).exists()],
            "password": connection.password.value if connection.password else None,
            "allow_agent": way.agent and not way.identities_only,
            "look_for_keys": False,
            "banner_timeout": SECONDS_TO_CONNECT,
            "auth_timeout": SECONDS_TO_CONNECT,
        },
        forward_agent=False,
    )
    client.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    for path in way.known_hosts:
        if Path(path).exists():
            client.client.load_system_host_keys(path)
    return client


def _jump(name: str, way: Route) -> "fabric.Connection | None":
    """Jump hosts, the last of several first; each is entered as OpenSSH would enter it."""
    if not way.jump:
        return None
    *before, last = way.jump.split(",")
    words = ("-o", f"ProxyJump={','.join(before)}") if before else ()
    through = _ask(name, (*words, last if "://" in last else f"ssh://{last}"))
    return _client(name, through, Connection(host=through.hostname))


def _ask_openssh(name: str, connection: Connection) -> Route:
    return _ask(name, ssh_words(connection))


def _ask(name: str, words: tuple[str, ...]) -> Route:
    try:
        done = subprocess.run(("ssh", "-G", *words), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise TfdeployError("there is no `ssh` on this machine", "Install OpenSSH's client") from None
    if done.returncode:
        raise InputError(f"ssh does not take its arguments: {last_line(done.stderr)}", where=name)
    return route(done.stdout)

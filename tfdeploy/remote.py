"""Entering hosts: one SSH connection each, and POSIX sh scripts run over it. The only importer of fabric and paramiko.

A script goes in on standard input, so that nothing of it shows in a process list. How a host is entered is asked of
OpenSSH itself (`ssh -G`): the inventory's words, the user's configuration, jump hosts and known_hosts count as they do
for `ssh` and for Ansible. Host keys are always checked.
"""

import contextlib
import errno
import getpass
import logging
import os
import re
import select
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from tfdeploy import paths
from tfdeploy.errors import InputError, TfdeployError, UnreachableError
from tfdeploy.inventory import Connection, Host, Secret
from tfdeploy.wording import last_line

if TYPE_CHECKING:
    import fabric

SECONDS_TO_CONNECT = 10
TRIES_AFTER_A_RESET = 4
AT_ONCE = 32
# A machine that fell silent is noticed after so long, whatever we wait for.
SECONDS_OF_SILENCE = 20
SECONDS_BETWEEN_SIGNS_OF_LIFE = 5

HERE = "here"
"""The connection of `up --local`: this machine, as this user."""

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
    Cause.KEY_UNKNOWN: "Log in once with `ssh` and accept its key, or take it now with --accept-new-host-keys",
    Cause.KEY_CHANGED: "Make sure that it is the machine you mean, then `ssh-keygen -R` its name",
    Cause.LOGIN: "Give the right user and key in the inventory (ansible_user, ansible_ssh_private_key_file), or -k",
    Cause.SUDO_PASSWORD_MISSING: "Give it with -K, or as ansible_become_password in the inventory",
    Cause.SUDO_PASSWORD_WRONG: "Give the right one with -K, or as ansible_become_password in the inventory",
    Cause.NO_SUDO: "Let this user use sudo there, or log in as root",
    Cause.DISK_FULL: "Make room there, then try again",
    Cause.DROPPED: "Try again",
}


# From sudo and sudo-rs; a wrong password is told of before "a password is required".
SUDO_SAYS: Mapping[Cause, tuple[str, ...]] = {
    Cause.SUDO_PASSWORD_WRONG: (
        "incorrect password",
        "incorrect authentication",
        "Sorry, try again",
        "no password was provided",
    ),
    Cause.SUDO_PASSWORD_MISSING: ("password is required", "terminal is required", "authentication is required"),
    Cause.NO_SUDO: (
        "not in the sudoers",
        "not allowed to",
        "may not run",
        "must have a tty",
        "no new privileges",
        "account validation failure",
        "sudo: not found",
    ),
}
# sudo asks three times, unless passwd_tries says more.
EMPTY_PASSWORDS = 9


class HostUnreachable(UnreachableError):
    def __init__(self, host: str, cause: Cause, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else str(cause), REMEDIES[cause], where=host)
        self.cause = cause


@dataclass(frozen=True)
class Output:
    code: int
    stdout: str
    stderr: str


class Runs(Protocol):
    """Whatever scripts can be run on."""

    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        """A script to its end, or given up after so many seconds."""

    def close(self) -> None: ...


class Remote(Runs, Protocol):
    """An entered host."""

    @property
    def name(self) -> str: ...

    @property
    def home(self) -> str:
        """Where it keeps its jobs."""

    @property
    def login(self) -> str:
        """The user as whom it is entered."""

    @property
    def new_key(self) -> str:
        """The fingerprint of a host key that was taken at first sight; mostly nothing."""

    def stream(self, script: str, on_line: Callable[[str], None], stop: threading.Event) -> Output:
        """A script whose lines are handed on as they come. It ends on its own, or soon after `stop` is set.

        Its standard input stays open for as long as we are there: `leash` in host.sh ends what would go on without us.
        """

    def feed(self, command: str, chunks: Iterable[bytes]) -> Output:
        """One command, as root, with data on its standard input."""

    def fetch(self, script: str, consume: Callable[[BinaryIO], object]) -> Output:
        """A script whose output is bytes, handed over as a stream."""

    def interact(self, words: Sequence[str], *, tty: bool) -> int:
        """One command, as root, on the user's own streams or terminal; its exit code."""


@dataclass(frozen=True)
class Credentials:
    """What the user gave to enter hosts: -k, -K, and leave to take unknown host keys at first sight.

    The inventory's own passwords come first.
    """

    login: Secret | None = None
    become: Secret | None = None
    accept_new_host_keys: bool = False

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


def enter(host: Host, credentials: Credentials | None = None) -> Remote:
    """A connection to the host, with its key checked; it stays open until it is closed."""
    connection = (credentials or Credentials()).for_host(host.connection)
    if connection.become_password and "\n" in connection.become_password.value:
        raise InputError("its sudo password has a line break in it", "Give it without", where=host.name)
    if connection.connection == HERE:
        return _Here(host.name, connection)
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
    return _connect(host.name, connection, accept_new=bool(credentials and credentials.accept_new_host_keys))


@contextlib.contextmanager
def entered(hosts: Iterable[Host], credentials: Credentials) -> Iterator[dict[str, Remote | TfdeployError]]:
    """All hosts at once, kept open until the end; a host that could not be entered has its error for an answer."""
    remotes = on_each({host.name: host for host in hosts}, lambda host: enter(host, credentials))
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
    """What Ansible would say to OpenSSH, without a command; in its order, because OpenSSH takes what it hears first."""
    return (
        *(("-o", f"Port={connection.port}") if connection.port else ()),
        *(("-o", f'IdentityFile="{connection.private_key_file}"') if connection.private_key_file else ()),
        *(("-o", f"User={connection.user}") if connection.user else ()),
        *_arguments(connection),
        connection.host,
    )


def _arguments(connection: Connection) -> list[str]:
    return [*shlex.split(connection.ssh_common_args), *shlex.split(connection.ssh_extra_args)]


def route(asked: str) -> Route:
    """From what `ssh -G` printed."""
    values: dict[str, list[str]] = {}
    for line in asked.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value)

    def one(key: str, default: str = "") -> str:
        value = values.get(key, [default])[0]
        return "" if value == "none" else value

    tokens = {"h": one("hostname"), "n": one("host"), "p": one("port", "22"), "r": one("user")}
    tokens |= {"d": str(Path.home()), "%": "%"}

    def expanded(text: str) -> str:
        """OpenSSH prints these just as they are written, and puts in the values when it connects."""
        return re.sub("%(.)", lambda token: tokens.get(token[1], token[0]), text)

    return Route(
        hostname=one("hostname"),
        port=int(one("port", "22")),
        user=one("user"),
        keys=tuple(str(Path(expanded(key)).expanduser()) for key in values.get("identityfile", ())),
        known_hosts=(*_paths(one("userknownhostsfile")), *_paths(one("globalknownhostsfile"))),
        identities_only=one("identitiesonly") == "yes",
        jump=one("proxyjump"),
        command=expanded(one("proxycommand")),
        agent=values.get("identityagent", [""])[0] != "none",
    )


def _paths(listed: str) -> list[str]:
    """OpenSSH prints several files with spaces between, and a name that has spaces just so: the longest there is."""
    words = listed.split(" ") if listed else []
    for end in range(len(words), 0, -1):
        name = Path(" ".join(words[:end])).expanduser()
        if end == 1 or name.exists():
            return [str(name), *_paths(" ".join(words[end:]))]
    return []


def shell(*, root: bool, password: bool, command: str = "sh -s") -> str:
    """The command that reads a script on standard input. With a password, some lines go ahead of the script.

    sudo reads the password from the first, and if it is wrong, the empty ones behind it: never the script. Where no
    password is needed, the first is thrown away. The user's own shell, whatever it is, only sees one quoted word.
    """
    if not root:
        return f"exec {command}"
    skip = "IFS= read -r _; " if password else ""
    ask = f"exec sudo -S -p '' {command}" if password else f"exec sudo -n {command}"
    script = (
        f'if [ "$(id -u)" = 0 ]; then {skip}exec {command}; '
        f"elif sudo -n true </dev/null 2>/dev/null; then {skip}exec sudo -n {command}; "
        f"else {ask}; fi"
    )
    return f"exec sh -c {shlex.quote(f'export LC_ALL=C; {script}')}"


def sudo_failure(said: str) -> Cause | None:
    """Why sudo did not let the script run, from its own words."""
    return next((cause for cause, words in SUDO_SAYS.items() if any(each in said for each in words)), None)


@dataclass(frozen=True)
class _Input:
    """What goes in on standard input. A script that ran says so first; one that sudo refused does not."""

    script: str
    password: Secret | None

    MARK = "tfdeploy-begins"

    def encoded(self) -> bytes:
        lines = f"{self.password.value}\n" + "\n" * EMPTY_PASSWORDS if self.password else ""
        # A secret from the environment may be any bytes.
        return f"{lines}echo {self.MARK}\n{self.script}\n".encode(errors="surrogateescape")


def _output(host: str, code: int, stdout: bytes, stderr: bytes) -> Output:
    said, errors = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    begun, mark, rest = said.partition(f"{_Input.MARK}\n")
    if not mark:
        raise HostUnreachable(host, sudo_failure(errors) or Cause.DROPPED, last_line(errors or begun))
    return Output(code, rest, errors)


@dataclass
class _Ssh:
    name: str
    connection: Connection
    client: "fabric.Connection" = field(repr=False)
    login: str = ""
    new_key: str = ""
    home: str = paths.HOST_HOME

    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        with self._begun(script, root=root) as channel, _limit(seconds, channel.close):
            channel.shutdown_write()
            stdout, stderr = _drain(channel)
            code = channel.recv_exit_status()
            if code < 0:
                raise HostUnreachable(self.name, Cause.DROPPED, "it did not say how the script ended")
            return _output(self.name, code, stdout, stderr)

    def stream(self, script: str, on_line: Callable[[str], None], stop: threading.Event) -> Output:
        with self._begun(script, root=True) as channel:
            errors, reader = _aside(channel)
            _hand_on(_channel_chunks(channel), on_line, stop)
            if stop.is_set():
                channel.close()
            reader.join()
            return Output(0 if stop.is_set() else channel.recv_exit_status(), "", b"".join(errors).decode())

    def feed(self, command: str, chunks: Iterable[bytes]) -> Output:
        password = self.connection.become_password
        with self._session(shell(root=True, password=password is not None, command=command)) as channel:
            said: list[bytes] = []
            reader = threading.Thread(target=lambda: said.append(channel.makefile("rb").read()))
            errors, error_reader = _aside(channel)
            reader.start()
            with contextlib.suppress(OSError):  # it may end before it has read everything
                for chunk in _after_password(password, chunks):
                    channel.sendall(chunk)
            channel.shutdown_write()
            reader.join()
            error_reader.join()
            return Output(channel.recv_exit_status(), b"".join(said).decode(), b"".join(errors).decode())

    def fetch(self, script: str, consume: Callable[[BinaryIO], object]) -> Output:
        with self._begun(script, root=True) as channel:
            channel.shutdown_write()
            errors, reader = _aside(channel)
            _consumed(self.name, channel.makefile("rb", 1 << 20), consume)
            reader.join()
            return Output(channel.recv_exit_status(), "", b"".join(errors).decode(errors="replace"))

    def interact(self, words: Sequence[str], *, tty: bool) -> int:
        from tfdeploy import terminal

        password = self.connection.become_password
        command = shlex.join(words)
        if not tty:
            with self._session(shell(root=True, password=password is not None, command=command)) as channel:
                if password:
                    channel.sendall(f"{password.value}\n".encode())
                return terminal.plain(channel)
        typed = f"sh -c {shlex.quote(f'stty echo; exec {command}')}"
        quiet = f"stty -echo; echo {terminal.READY.decode()}; " if password else ""
        with self._session(quiet + shell(root=True, password=password is not None, command=typed), tty=True) as channel:
            return terminal.on_a_tty(channel, password.value if password else None)

    @contextlib.contextmanager
    def _begun(self, script: str, *, root: bool) -> Iterator[Any]:
        """A session that has heard the script; its standard input is still open."""
        password = self.connection.become_password if root else None
        with self._session(shell(root=root, password=password is not None)) as channel:
            with contextlib.suppress(OSError):  # sudo may have gone before it read everything
                channel.sendall(_Input(script, password).encoded())
            yield channel

    @contextlib.contextmanager
    def _session(self, command: str, *, tty: bool = False) -> Iterator[Any]:
        import paramiko

        from tfdeploy import terminal

        try:
            channel = self.client.transport.open_session()
            if tty:
                channel.get_pty(os.environ.get("TERM", "xterm"), *terminal.size())
            channel.exec_command(command)
            yield channel
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(self.name, Cause.DROPPED, str(error)) from None

    def close(self) -> None:
        self.client.close()


def _after_password(password: Secret | None, chunks: Iterable[bytes]) -> Iterator[bytes]:
    if password:
        yield f"{password.value}\n".encode()
    yield from chunks


def _consumed(host: str, stream: Any, consume: Callable[[BinaryIO], object]) -> None:
    if stream.readline().rstrip(b"\n") != _Input.MARK.encode():
        raise HostUnreachable(host, Cause.DROPPED, "the script did not begin")
    consume(stream)
    while stream.read(1 << 20):  # what the reader did not want, such as an archive's padding
        pass


def _drain(channel: Any) -> tuple[bytes, bytes]:
    """Both streams to their ends, side by side: a full one would stop the other."""
    errors, reader = _aside(channel)
    said = channel.makefile("rb").read()
    reader.join()
    return said, b"".join(errors)


def _aside(channel: Any) -> tuple[list[bytes], threading.Thread]:
    """Standard error, read by a thread of its own."""
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(channel.makefile_stderr("rb").read()), daemon=True)
    reader.start()
    return errors, reader


@contextlib.contextmanager
def _limit(seconds: float | None, give_up: Callable[[], None]) -> Iterator[None]:
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _channel_chunks(channel: Any) -> Iterator[bytes | None]:
    """What comes, and None now and then while nothing does."""
    channel.settimeout(0.2)
    while True:
        try:
            chunk = channel.recv(65536)
        except TimeoutError:
            yield None
            continue
        if not chunk:
            return
        yield chunk


def _hand_on(chunks: Iterable[bytes | None], on_line: Callable[[str], None], stop: threading.Event) -> None:
    """Whole lines; the mark that a script begins with is not one of them."""
    rest, begun = b"", False
    for chunk in chunks:
        if stop.is_set():
            return
        *lines, rest = (rest + (chunk or b"")).split(b"\n")
        for line in lines:
            if begun:
                on_line(line.decode(errors="replace"))
            begun = begun or line == _Input.MARK.encode()
    if rest:
        on_line(rest.decode(errors="replace"))


@dataclass
class _Local:
    name: str
    connection: Connection
    login: str = field(default_factory=getpass.getuser)
    new_key: str = ""
    home: str = paths.HOST_HOME

    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        words, password = self._words(root=root)
        given = _Input(script, password).encoded()
        try:
            done = subprocess.run(words, input=given, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise HostUnreachable(self.name, Cause.TIMEOUT, f"a script did not end within {seconds:g} s") from None
        return _output(self.name, done.returncode, done.stdout, done.stderr)

    def stream(self, script: str, on_line: Callable[[str], None], stop: threading.Event) -> Output:
        words, password = self._words(root=True)
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            process.stdin.write(_Input(script, password).encoded())
            process.stdin.flush()
            _hand_on(_pipe_chunks(process.stdout.fileno()), on_line, stop)
            process.stdin.close()
            errors = process.stderr.read().decode(errors="replace")
        return Output(process.returncode, "", errors)

    def feed(self, command: str, chunks: Iterable[bytes]) -> Output:
        password = self.connection.become_password
        words = ("sh", "-c", shell(root=True, password=password is not None, command=command))
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdin
            assert process.stdout
            with contextlib.suppress(OSError):
                for chunk in _after_password(password, chunks):
                    process.stdin.write(chunk)
            process.stdin.close()
            said = process.stdout.read().decode(errors="replace")
        return Output(process.returncode, said, said)

    def fetch(self, script: str, consume: Callable[[BinaryIO], object]) -> Output:
        words, password = self._words(root=True)
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            assert process.stdin
            assert process.stdout
            process.stdin.write(_Input(script, password).encoded())
            process.stdin.close()
            _consumed(self.name, process.stdout, consume)
            code = process.wait()
            errors.seek(0)
            return Output(code, "", errors.read().decode(errors="replace"))

    def interact(self, words: Sequence[str], *, tty: bool) -> int:
        return subprocess.call(words if os.geteuid() == 0 else ("sudo", *words))

    def _words(self, *, root: bool) -> tuple[tuple[str, ...], Secret | None]:
        password = self.connection.become_password if root else None
        return ("sh", "-c", shell(root=root, password=password is not None)), password

    def close(self) -> None:
        pass


def _pipe_chunks(descriptor: int) -> Iterator[bytes | None]:
    while True:
        ready, _, _ = select.select([descriptor], [], [], 0.2)
        chunk = os.read(descriptor, 65536) if ready else None
        if chunk == b"":
            return
        yield chunk


@dataclass
class _Here(_Local):
    """This machine as this user: nothing is done as root, and jobs are kept with the user's own things."""

    home: str = field(default_factory=lambda: str(paths.state() / "local"))

    def interact(self, words: Sequence[str], *, tty: bool) -> int:
        return subprocess.call(words)

    def _words(self, *, root: bool) -> tuple[tuple[str, ...], Secret | None]:
        return super()._words(root=False)


def _connect(name: str, connection: Connection, *, accept_new: bool) -> _Ssh:
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    way = _ask_openssh(name, connection)
    taken: list[str] = []
    for attempt in range(TRIES_AFTER_A_RESET):
        client = _client(name, way, connection)
        if accept_new:
            client.client.set_missing_host_key_policy(_take_key(way, taken))
        try:
            _open(name, way, client)
            break
        except HostUnreachable as error:
            # A connection that was refused is there still: the host would have to wait for us to end.
            client.client.close()
            if error.cause is not Cause.DROPPED or attempt + 1 == TRIES_AFTER_A_RESET:
                raise
            # sshd turns away bursts of newcomers (MaxStartups): they come again, not all at once.
            time.sleep(0.2 * 2**attempt * (1 + os.urandom(1)[0] / 256))
    client.transport.set_keepalive(SECONDS_BETWEEN_SIGNS_OF_LIFE)
    with contextlib.suppress(AttributeError, OSError):  # a channel through a jump host is no socket
        client.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SECONDS_OF_SILENCE * 1000)
    return _Ssh(name, connection, client, login=way.user, new_key="".join(taken))


def _open(name: str, way: Route, client: "fabric.Connection") -> None:
    import paramiko

    try:
        client.open()
    except paramiko.BadHostKeyException as error:
        raise HostUnreachable(name, Cause.KEY_CHANGED, f"it is now {error.key.fingerprint}") from None
    except paramiko.AuthenticationException as error:
        raise HostUnreachable(name, Cause.LOGIN, f"as {way.user}: {error}") from None
    except (ConnectionResetError, EOFError, paramiko.SSHException) as error:
        raise HostUnreachable(name, _cause(error), str(error)) from None
    except OSError as error:
        raise HostUnreachable(name, _cause(error), f"{way.hostname}:{way.port}") from None


def _take_key(way: Route, taken: list[str]) -> Any:
    """Writes an unknown host key to the user's known_hosts, as OpenSSH does with StrictHostKeyChecking=accept-new."""
    import paramiko

    class Take(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            file = Path(way.known_hosts[0] if way.known_hosts else "~/.ssh/known_hosts").expanduser()
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            line = f"{hostname} {key.get_name()} {key.get_base64()}\n".encode()
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
            taken.append(key.fingerprint)

    return Take()


def _cause(error: BaseException) -> Cause:
    import paramiko

    match error:
        case paramiko.ssh_exception.NoValidConnectionsError():
            return min((_cause(each) for each in error.errors.values()), key=list(Cause).index)
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
        case OSError() if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN):
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
        gateway=_in_a_shell(way.command) if way.command else _jump(name, way, connection),
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
            try:
                client.client.load_system_host_keys(path)
            except (OSError, ValueError, paramiko.hostkeys.InvalidHostKey) as error:
                raise InputError(f"cannot be read: {error}", "Mend or remove that line", where=path) from None
    return client


def _in_a_shell(command: str) -> str:
    """OpenSSH gives a ProxyCommand to a shell; fabric and paramiko cut it into words, and expand their own tokens."""
    return f"sh -c {shlex.quote(f'exec {command}')}"


def _jump(name: str, way: Route, connection: Connection) -> "fabric.Connection | None":
    """Jump hosts, the last of several first; each is entered as OpenSSH would enter it: with the same file for -F."""
    if not way.jump:
        return None
    *before, last = way.jump.split(",")
    words = ("-o", f"ProxyJump={','.join(before)}") if before else ()
    config = _config_words(_arguments(connection))
    through = _ask(name, (*config, *words, last if "://" in last else f"ssh://{last}"))
    return _client(name, through, Connection(host=through.hostname, ssh_common_args=shlex.join(config)))


def _config_words(arguments: list[str]) -> list[str]:
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    files = [word[2:] or following for word, following in pairs if word.startswith("-F")]
    return ["-F", files[-1]] if files else []


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

"""How hosts are entered: OpenSSH is asked for real; sudo and id have stand-ins; no host is needed."""

import errno
import os
import shlex
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdeploy import remote, wording
from tfdeploy.errors import InputError, TfdeployError
from tfdeploy.inventory import Connection, Host, Secret
from tfdeploy.remote import Cause, Credentials, HostUnreachable, Output, Remote, Route

Asked = Callable[..., Route]


# --- the way to a host, as OpenSSH says it ---


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """`asked("Host a\\n  Port 5", host="a")`: what the real `ssh -G` makes of a configuration of the test's own."""

    def ask(config: str = "", **values: object) -> Route:
        file = tmp_path / "ssh config"
        file.write_text(config)
        values["ssh_common_args"] = f"-F {shlex.quote(str(file))} {values.get('ssh_common_args', '')}"
        words = remote.ssh_words(Connection(**{"host": "gpu1"} | values))  # type: ignore[arg-type]
        done = subprocess.run(
            ["ssh", "-G", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True
        )
        return remote.route(done.stdout)

    return ask


def test_a_host_block_says_name_port_and_user(asked: Asked) -> None:
    way = asked("Host gpu*\n  HostName 192.0.2.7\n  Port 2200\n  User ops\n")
    assert (way.hostname, way.port, way.user) == ("192.0.2.7", 2200, "ops")
    assert (way.jump, way.command, way.identities_only, way.agent) == ("", "", False, True)


def test_a_match_block_counts(asked: Asked) -> None:
    config = "Match host gpu1 user root\n  Port 2201\nMatch host gpu1 user ops\n  Port 2202\n"
    assert asked(config, user="ops").port == 2202


def test_the_inventory_wins_over_the_configuration(asked: Asked) -> None:
    way = asked("Host *\n  Port 1\n  User nobody\n", port=2222, user="ops")
    assert (way.port, way.user) == (2222, "ops")


def test_the_inventorys_own_words_win_over_its_ssh_arguments_as_with_ansible(asked: Asked) -> None:
    way = asked(port=2222, user="ops", ssh_common_args="-o Port=1 -o User=nobody", ssh_extra_args="-p 2")
    assert (way.port, way.user) == (2222, "ops")


def test_common_arguments_win_over_extra_ones(asked: Asked) -> None:
    assert asked(ssh_common_args="-o Port=23", ssh_extra_args="-o Port=24").port == 23


def test_a_jump_host_is_kept_as_it_is_written(asked: Asked) -> None:
    assert asked("Host gpu1\n  ProxyJump ops@bastion:2222,inner\n").jump == "ops@bastion:2222,inner"


def test_no_jump_is_no_jump(asked: Asked) -> None:
    assert asked("Host gpu1\n  ProxyJump none\nHost *\n  ProxyJump bastion\n").jump == ""


def test_a_proxy_command_has_its_tokens_put_in(asked: Asked) -> None:
    config = "Host gpu1\n  HostName inner\n  Port 2200\n  User ops\n  ProxyCommand nc -x %r@%h:%p %n 100%% %%h\n"
    assert asked(config).command == "nc -x ops@inner:2200 gpu1 100% %h"


def test_keys_have_their_tokens_and_tildes_put_in(asked: Asked) -> None:
    way = asked("Host *\n  IdentityFile ~/.ssh/%r@%h\n  IdentityFile %d/key\n  IdentitiesOnly yes\n", user="ops")
    assert way.keys == (str(Path("~/.ssh/ops@gpu1").expanduser()), str(Path.home() / "key"))
    assert way.identities_only


def test_a_key_of_the_inventory_may_have_spaces_and_comes_first(asked: Asked) -> None:
    assert asked("IdentityFile /other\n", private_key_file="/my keys/id").keys == ("/my keys/id", "/other")


def test_no_agent_is_asked_where_the_user_says_none(asked: Asked) -> None:
    assert not asked("IdentityAgent none\n").agent


def test_known_hosts_with_spaces_in_their_names_are_found(asked: Asked, tmp_path: Path) -> None:
    first, second, missing = tmp_path / "with space", tmp_path / "plain", tmp_path / "missing"
    first.touch()
    second.touch()
    for files in ((first,), (first, second), (missing, first, second), (second, missing, first)):
        listed = " ".join(f'"{file}"' for file in files)
        way = asked(f"UserKnownHostsFile {listed}\nGlobalKnownHostsFile none\n")
        assert way.known_hosts == tuple(map(str, files))


def test_no_known_hosts_at_all_is_none(asked: Asked) -> None:
    assert asked("UserKnownHostsFile none\nGlobalKnownHostsFile none\n").known_hosts == ()


def test_ssh_words_say_only_what_the_inventory_says() -> None:
    assert remote.ssh_words(Connection("gpu1")) == ("gpu1",)


def test_ssh_arguments_are_cut_into_words_as_a_shell_would() -> None:
    words = remote.ssh_words(Connection("gpu1", ssh_common_args="""-o 'UserKnownHostsFile="/a b/known"' -F '/c d'"""))
    assert words == ("-o", 'UserKnownHostsFile="/a b/known"', "-F", "/c d", "gpu1")


def test_words_that_ssh_does_not_take_are_an_input_error() -> None:
    with pytest.raises(InputError, match=r"gpu1: ssh does not take its arguments: .*nonsense"):
        remote.enter(Host("gpu1", Connection("gpu1", ssh_common_args="-F none -o Nonsense=1")))


def test_a_machine_without_ssh_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TfdeployError, match="Install OpenSSH's client"):
        remote.enter(Host("gpu1", Connection("gpu1")))


def test_a_jump_host_is_looked_up_in_the_same_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host bastion\n  HostName 192.0.2.1\n  User jumper\n  Port 2200\n  ProxyJump outer\n")
    connection = Connection("gpu1", ssh_common_args=f"-F {config}")
    gateway = remote._jump("gpu1", Route("gpu1", 22, "ops", jump="first,bastion"), connection)
    assert gateway is not None
    assert (gateway.host, gateway.user, gateway.port) == ("192.0.2.1", "jumper", 2200)
    assert gateway.gateway.host == "first"


def test_a_proxy_command_goes_through_a_shell_as_with_openssh() -> None:
    way = Route("gpu1", 22, "ops", command="nc gpu1 22 2>/dev/null")
    client = remote._client("gpu1", way, Connection("gpu1"))
    assert shlex.split(client.gateway) == ["sh", "-c", "exec nc gpu1 22 2>/dev/null"]


def test_known_hosts_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("gpu1 ssh-ed25519 AAAA=B\n")
    with pytest.raises(InputError, match=rf"{file}: cannot be read"):
        remote._client("gpu1", Route("gpu1", 22, "ops", known_hosts=(str(file),)), Connection("gpu1"))


def test_an_unknown_key_is_always_refused() -> None:
    import paramiko

    client = remote._client("gpu1", Route("gpu1", 22, "ops"), Connection("gpu1"))
    assert isinstance(client.client._policy, paramiko.RejectPolicy)


# --- why a host was not reached ---


def no_connections(*errors: OSError) -> OSError:
    from paramiko.ssh_exception import NoValidConnectionsError

    return NoValidConnectionsError({(f"192.0.2.{number}", 22): error for number, error in enumerate(errors)})


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionRefusedError(), Cause.REFUSED),
        (TimeoutError(), Cause.TIMEOUT),
        (socket.gaierror(-2, "Name or service not known"), Cause.NAME_UNKNOWN),
        (OSError(errno.EHOSTUNREACH, "No route to host"), Cause.NO_ROUTE),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), Cause.NO_ROUTE),
        (OSError(errno.EHOSTDOWN, "Host is down"), Cause.NO_ROUTE),
        (ConnectionResetError(), Cause.DROPPED),
        (EOFError(), Cause.DROPPED),
        (no_connections(ConnectionRefusedError()), Cause.REFUSED),
        (no_connections(OSError(errno.ENETUNREACH, "no IPv6"), ConnectionRefusedError()), Cause.REFUSED),
        (no_connections(ConnectionRefusedError(), OSError(errno.ENETUNREACH, "no IPv6")), Cause.REFUSED),
    ],
)
def test_errors_have_their_cause(error: BaseException, cause: Cause) -> None:
    assert remote._cause(error) is cause


def test_a_key_that_is_not_known_has_its_cause() -> None:
    import paramiko

    error = paramiko.SSHException("Server 'gpu1' not found in known_hosts")
    assert remote._cause(error) is Cause.KEY_UNKNOWN


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_remedy(cause: Cause) -> None:
    error = HostUnreachable("gpu1", cause, "detail")
    assert str(error).startswith(f"gpu1: {cause}: detail. ")
    assert error.remedy
    assert error.exit_code == 3


# --- sudo ---


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("sudo: a password is required\n", Cause.SUDO_PASSWORD_MISSING),
        (
            "sudo: a terminal is required to read the password; either use the -S option to read from standard input"
            " or configure an askpass helper\nsudo: a password is required\n",
            Cause.SUDO_PASSWORD_MISSING,
        ),
        ("sudo: interactive authentication is required\n", Cause.SUDO_PASSWORD_MISSING),
        (
            "Sorry, try again.\nsudo: no password was provided\nsudo: 1 incorrect password attempt\n",
            Cause.SUDO_PASSWORD_WRONG,
        ),
        ("sudo: 3 incorrect password attempts\n", Cause.SUDO_PASSWORD_WRONG),
        ("sudo: no password was provided\nsudo: a password is required\n", Cause.SUDO_PASSWORD_WRONG),
        ("sudo: Maximum 3 incorrect authentication attempts\n", Cause.SUDO_PASSWORD_WRONG),
        ("ops is not in the sudoers file.  This incident will be reported.\n", Cause.NO_SUDO),
        ("ops is not in the sudoers file.\nThis incident has been reported to the administrator.\n", Cause.NO_SUDO),
        ("Sorry, user ops is not allowed to execute '/usr/bin/sh -s' as root on gpu1.\n", Cause.NO_SUDO),
        ("Sorry, user ops may not run sudo on gpu1.\n", Cause.NO_SUDO),
        ("sudo: sorry, you must have a tty to run sudo\n", Cause.NO_SUDO),
        ("sudo: account validation failure, is your account locked?\n", Cause.NO_SUDO),
        ('sudo: The "no new privileges" flag is set, which prevents sudo from running as root.\n', Cause.NO_SUDO),
        ("sh: 1: exec: sudo: not found\n", Cause.NO_SUDO),
        ("sh: line 1: exec: sudo: not found\n", Cause.NO_SUDO),
        ("sudo: unable to resolve host gpu1: Name or service not known\n", None),
        ("", None),
    ],
)
def test_sudos_own_words_tell_the_cause(said: str, cause: Cause | None) -> None:
    assert remote.sudo_failure(said) is cause


SUDO = """#!/bin/sh
# Stands in for sudo. RULE says what the sudoers file would; what it reads as credentials is kept in HEARD.
case $1 in
-n)
    shift
    [ "$RULE" = nopasswd ] || { echo 'sudo: a password is required' >&2; exit 1; }
    [ "$1" = true ] && cat >/dev/null # as with log_input, where sudo itself reads for its command
    exec "$@" ;;
-S)
    shift 3
    for try in $TRIES; do
        IFS= read -r given || break
        printf '%s\\n' "$given" >>"$HEARD"
        [ "$given" = "$RIGHT" ] && exec "$@"
        echo 'Sorry, try again.' >&2
    done
    echo 'sudo: 3 incorrect password attempts' >&2
    exit 1 ;;
esac
echo "sudo: stand-in called with $*" >&2
exit 2
"""
ID = """#!/bin/sh
# Stands in for id.
echo "$WHO"
"""
SECRET = "pa ss'\"$HOME`"


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for sudo and id first in PATH; the file where sudo writes what it took for credentials."""
    for name, text in (("sudo", SUDO), ("id", ID)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name, value in {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HEARD": str(tmp_path / "heard"),
        "RIGHT": SECRET,
        "RULE": "password",
        "TRIES": "1 2 3",
        "WHO": "1000",
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "heard").touch()
    return tmp_path / "heard"


def here(password: str | None = None) -> Remote:
    secret = Secret(password) if password is not None else None
    return remote.enter(Host("here", Connection("here", connection="local", become_password=secret)))


def refused(host: Remote, script: str) -> HostUnreachable:
    with pytest.raises(HostUnreachable) as error:
        host.run(script)
    return error.value


@pytest.mark.parametrize("password", [None, SECRET, "wrong"])
def test_root_needs_no_sudo(heard: Path, monkeypatch: pytest.MonkeyPatch, password: str | None) -> None:
    monkeypatch.setenv("WHO", "0")
    assert here(password).run("echo ran; exit 3") == Output(3, "ran\n", "")
    assert heard.read_text() == ""


@pytest.mark.parametrize("password", [None, SECRET, "touch executed"])
def test_a_password_that_nobody_wants_is_thrown_away(
    heard: Path, monkeypatch: pytest.MonkeyPatch, password: str | None
) -> None:
    monkeypatch.setenv("RULE", "nopasswd")
    monkeypatch.chdir(heard.parent)
    assert here(password).run("echo ran") == Output(0, "ran\n", "")
    assert not Path("executed").exists()
    assert heard.read_text() == ""


def test_the_right_password_lets_the_script_run(heard: Path) -> None:
    assert here(SECRET).run("echo ran") == Output(0, "ran\n", "")
    assert heard.read_text() == f"{SECRET}\n"


@pytest.mark.parametrize("tries", ["1 2 3", "1 2 3 4 5 6 7 8"])
def test_with_a_wrong_password_sudo_never_hears_the_script(
    heard: Path, monkeypatch: pytest.MonkeyPatch, tries: str
) -> None:
    monkeypatch.setenv("TRIES", tries)
    monkeypatch.chdir(heard.parent)
    assert refused(here("wrong"), "touch executed").cause is Cause.SUDO_PASSWORD_WRONG
    assert heard.read_text().split() == ["wrong"]
    assert not Path("executed").exists()


def test_a_missing_password_is_said(heard: Path) -> None:
    error = refused(here(), "echo ran")
    assert error.cause is Cause.SUDO_PASSWORD_MISSING
    assert str(error).startswith("here: sudo wants a password: sudo: a password is required. Give it with -K")


def test_a_script_that_needs_no_root_never_meets_sudo(heard: Path) -> None:
    assert here("wrong").run("echo ran", root=False) == Output(0, "ran\n", "")
    assert heard.read_text() == ""


def test_a_script_arrives_as_it_is(heard: Path) -> None:
    value = 'it\'s "quoted", a $HOME, `id`, a \\ and\ntwo lines — ünïcödé'
    script = f"printf %s {shlex.quote(value)}; cat <<'END' >&2\n{value}\nEND"
    assert here(SECRET).run(script) == Output(0, value, f"{value}\n")
    assert here().run(script, root=False) == Output(0, value, f"{value}\n")


def test_what_a_login_prints_ahead_is_no_output_of_the_script() -> None:
    assert remote._output("h", 0, b"Welcome!\ntfdeploy-begins\nran\n", b"") == Output(0, "ran\n", "")


def test_a_connection_that_ended_before_the_script_began_is_lost() -> None:
    with pytest.raises(HostUnreachable, match="connection lost: This account is not available"):
        remote._output("h", 1, b"This account is not available.\n", b"")


def test_bytes_that_are_no_text_do_not_break_the_answer(heard: Path) -> None:
    assert here(SECRET).run(r"printf '\377'").stdout == "\ufffd"


def test_a_script_that_fails_is_an_answer_even_if_it_speaks_of_sudo(heard: Path) -> None:
    output = here(SECRET).run("echo 'sudo: a password is required' >&2; exit 1")
    assert (output.code, output.stderr) == (1, "sudo: a password is required\n")


@pytest.mark.parametrize(("root", "password"), [(True, True), (True, False), (False, False)])
def test_any_login_shell_can_read_the_command(root: bool, password: bool) -> None:
    """csh has no `NAME=value command`, and no shell may see a line break."""
    command = remote.shell(root=root, password=password)
    assert command.startswith("exec sh ")
    assert "\n" not in command


def test_the_last_line_has_nothing_that_a_terminal_would_obey() -> None:
    assert wording.last_line("a\n \x1b[31mred\x07 \n\n") == "[31mred"
    assert wording.last_line("") == ""


# --- who is entered, and with what ---


@pytest.mark.parametrize("connection", ["winrm", "docker", "community.general.lxd"])
def test_other_ways_in_are_refused_by_name(connection: str) -> None:
    with pytest.raises(InputError, match=rf"h: ansible_connection={connection} .* Use ssh or local"):
        remote.enter(Host("h", Connection("h", connection=connection)))


@pytest.mark.parametrize(("method", "user"), [("su", "root"), ("doas", "root"), ("sudo", "postgres")])
def test_other_ways_to_root_are_refused(method: str, user: str) -> None:
    with pytest.raises(InputError, match=f"h: becoming {user} by {method} is not supported"):
        remote.enter(Host("h", Connection("h", become_method=method, become_user=user)))


def test_a_password_with_a_line_break_is_refused_because_its_rest_would_be_a_command() -> None:
    with pytest.raises(InputError, match="line break") as error:
        here("secret\ntouch executed")
    assert "secret" not in str(error.value)


def test_the_inventorys_passwords_come_before_the_typed_ones() -> None:
    typed = Credentials(Secret("typed login"), Secret("typed become"))
    given = Connection("h", password=Secret("login"), become_password=Secret("become"))
    assert typed.for_host(given) == given
    assert typed.for_host(Connection("h")).password == Secret("typed login")
    assert typed.for_host(Connection("h")).become_password == Secret("typed become")
    assert Credentials().for_host(Connection("h")) == Connection("h")


def test_no_password_shows_in_a_repr() -> None:
    assert "typed" not in repr(Credentials(Secret("typed"), Secret("typed")))


def test_each_host_has_its_answer_or_its_error_in_order() -> None:
    def half(number: int) -> int:
        if number % 2:
            raise TfdeployError("odd")
        return number // 2

    answers = remote.on_each({f"h{number}": number for number in range(100)}, half)
    assert list(answers) == [f"h{number}" for number in range(100)]
    assert remote.answered(answers) == {f"h{number}": number // 2 for number in range(0, 100, 2)}
    assert str(answers["h7"]) == "h7: odd."


def test_an_error_that_says_where_keeps_its_place() -> None:
    def fail(_: None) -> None:
        raise TfdeployError("broken", where="elsewhere")

    assert str(remote.on_each({"h": None}, fail)["h"]) == "elsewhere: broken."


def test_nobody_to_ask_is_no_answer() -> None:
    assert remote.on_each({}, len) == {}


def test_entered_hosts_stand_beside_those_that_could_not_be_entered() -> None:
    hosts = [Host("here", Connection("h", connection="local")), Host("there", Connection("h", connection="winrm"))]
    with remote.entered(hosts, Credentials()) as entered:
        assert isinstance(entered["there"], InputError)
        assert list(remote.answered(entered)) == ["here"]

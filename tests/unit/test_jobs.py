"""Finding a job again: what is remembered, which job is meant, and where it may be; no host is entered."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.launches import launch
from tfdeploy import jobs, lock, paths
from tfdeploy.errors import CollectError, InputError, LockedError, NoRoom, TfdeployError, UnreachableError, all_of
from tfdeploy.inventory import Connection, Host, Secret, Vault
from tfdeploy.jobs import Known, Search
from tfdeploy.lock import Holder
from tfdeploy.remote import Output, Remote

PLAIN = Host("gpu1", Connection("10.0.0.1", 2200, "ops", "/keys/id", ssh_common_args="-F '/a b'", become=True))
SECRET = replace(PLAIN, connection=replace(PLAIN.connection, password=Secret("pw"), become_password=Secret("sudo pw")))


def remembered(*names: str) -> None:
    for name in names:
        jobs.remember(name, [PLAIN], ["inventory.ini"], Vault())


# --- memory ---


def test_what_is_remembered_is_recalled(here: Path) -> None:
    jobs.remember("demo", [PLAIN], ["inventory.ini", "x,y,"], Vault())
    assert jobs.recall("demo") == Known("demo", (f"{here}/inventory.ini", "x,y,"), (PLAIN,))


def test_no_password_is_remembered(here: Path) -> None:
    jobs.remember("demo", [SECRET], ["inventory.ini"], Vault(password=Secret("vault pw")))
    (file,) = (paths.state() / "jobs").iterdir()
    assert "pw" not in file.read_text()
    known = jobs.recall("demo")
    assert known
    assert (known.hosts, known.secrets, known.vault) == ((PLAIN,), True, Vault())


def test_nobody_else_may_look_into_the_memory(here: Path) -> None:
    remembered("demo")
    assert stat.S_IMODE((paths.state() / "jobs").stat().st_mode) == 0o700


def test_files_of_a_vault_are_found_from_any_directory(here: Path) -> None:
    vault = Vault(
        ids=("dev@pw.txt", "prod@prompt", "prompt", "a@b@c", "plain"), password_files=("a@b.txt", "/abs", "~/c")
    )
    jobs.remember("demo", [PLAIN], ["inventory.ini"], vault)
    known = jobs.recall("demo")
    assert known
    assert known.vault.ids == (f"dev@{here}/pw.txt", "prod@prompt", "prompt", f"a@{here}/b@c", f"{here}/plain")
    assert known.vault.password_files == (f"{here}/a@b.txt", "/abs", str(Path.home() / "c"))


def test_a_job_is_forgotten_once_and_again(here: Path) -> None:
    remembered("demo", "other")
    for _ in range(2):
        jobs.forget("demo")
        assert (jobs.recall("demo"), jobs.known_jobs()) == (None, ("other",))


def test_jobs_are_listed_by_name(here: Path) -> None:
    assert jobs.known_jobs() == ()
    remembered("b", "a")
    assert jobs.known_jobs() == ("a", "b")


def test_remembering_again_leaves_one_file(here: Path) -> None:
    remembered("demo", "demo")
    assert os.listdir(paths.state() / "jobs") == ["demo.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", '{"format": 2}', '{"format": 1, "job": "a"}', "\x00"])
def test_a_memory_that_cannot_be_read_is_none(here: Path, text: str) -> None:
    remembered("demo")
    (paths.state() / "jobs" / "demo.json").write_text(text)
    assert jobs.recall("demo") is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\0b", "x" * 5000, ""])
def test_a_name_that_no_job_has_is_not_recalled(here: Path, name: str) -> None:
    assert jobs.recall(name) is None


# --- which job is meant ---


def test_the_only_job_needs_no_name(here: Path) -> None:
    remembered("demo")
    assert jobs.hosts_of(Search()) == (PLAIN,)
    assert jobs.job_name(Search()) == "demo"


def test_the_job_file_names_one_of_several(here: Path) -> None:
    remembered("a", "mnist")
    (here / "tfdeploy.yml").write_text("name: mnist\nimage: x\n")
    assert jobs.job_name(Search()) == "mnist"


@pytest.mark.parametrize("text", ["name: never-launched\n", "name: [broken\n", "unknown: key\n"])
def test_a_job_file_that_helps_nothing_is_passed_over(here: Path, text: str) -> None:
    remembered("a", "b")
    (here / "tfdeploy.yml").write_text(text)
    with pytest.raises(InputError, match=r"which job\? There are a, b\. Name one\."):
        jobs.job_name(Search())


def test_no_job_at_all_is_said(here: Path) -> None:
    with pytest.raises(InputError, match=r"no job was launched from here, or all are down\. Name it and say where"):
        jobs.hosts_of(Search())


def test_a_job_that_nobody_knows_is_said_beside_those_that_are_known(here: Path) -> None:
    remembered("a", "b")
    with pytest.raises(InputError, match=r"c: no job c was launched from here\..*\(launched from here: a, b\)"):
        jobs.hosts_of(Search(job="c"))


def test_a_name_wins_over_everything_and_named_hosts_over_memory(here: Path) -> None:
    remembered("a", "b")
    assert jobs.job_name(Search(job="c")) == "c"
    assert jobs.job_name(Search(via="gpu1")) is None
    assert jobs.job_name(Search(sources=("x,",))) is None


# --- where it may be ---


def test_an_inventory_says_where_to_look(here: Path) -> None:
    (here / "inv.ini").write_text("a\nb\nc\n")
    assert [host.name for host in jobs.hosts_of(Search(sources=("inv.ini",), limit="!b"))] == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "host", "user", "port"),
    [
        ("gpu1", "gpu1", None, None),
        ("ops@gpu1", "gpu1", "ops", None),
        ("gpu1:2200", "gpu1", None, 2200),
        ("ops@gpu1.example:2200", "gpu1.example", "ops", 2200),
        ("ops@corp@gpu1", "gpu1", "ops@corp", None),
        ("10.0.0.1", "10.0.0.1", None, None),
        ("2001:db8::5", "2001:db8::5", None, None),
        ("root@fe80::1", "fe80::1", "root", None),
    ],
)
def test_via_is_a_host_as_ssh_takes_it(text: str, host: str, user: str | None, port: int | None) -> None:
    assert jobs.hosts_of(Search(via=text)) == (Host(host, Connection(host, port, user, become=True)),)


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "a;id",
        "$(id)",
        "-oProxyCommand=id",
        "a:0",
        "a:65536",
        "a:-5",
        "a:x",
        "a:22-23",
        "a:22,23",
        "ops@",
    ],
)
def test_a_via_that_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        jobs.hosts_of(Search(via=text))
    assert str(error.value).startswith(f"--via {text}: not a host: ")
    assert str(error.value).endswith("Write it as [user@]host[:port].")


def test_passwords_come_from_the_inventory_of_today_and_all_else_from_memory(here: Path) -> None:
    (here / "inv.ini").write_text(
        "gpu1 ansible_host=10.9.9.9 ansible_user=other ansible_password=new ansible_become_password='new sudo'\n"
    )
    gone = replace(SECRET, name="gone")
    jobs.remember("demo", [SECRET, gone], ["inv.ini"], Vault())
    first, second = jobs.hosts_of(Search())
    assert first.connection == replace(PLAIN.connection, password=Secret("new"), become_password=Secret("new sudo"))
    assert second == replace(PLAIN, name="gone")


@pytest.mark.parametrize("text", [None, "[broken\n"])
def test_an_inventory_that_is_gone_or_broken_does_no_harm(here: Path, text: str | None) -> None:
    (here / "inv.ini").write_text("gpu1\n")
    jobs.remember("demo", [SECRET], ["inv.ini"], Vault())
    if text is None:
        (here / "inv.ini").unlink()
    else:
        (here / "inv.ini").write_text(text)
    assert jobs.hosts_of(Search()) == (PLAIN,)


def test_an_inventory_without_passwords_is_not_even_read(here: Path) -> None:
    (here / "inv.ini").write_text("gpu1 ansible_user=changed\n")
    jobs.remember("demo", [PLAIN], ["inv.ini"], Vault())
    assert jobs.hosts_of(Search()) == (PLAIN,)


class Liar:
    """Stands in for a host that answers with what it likes."""

    name, home, login, new_key = "a", "/home", "", ""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        return Output(0, self.answer, "")


def test_a_host_that_tells_of_another_job_than_it_was_asked_for_is_not_believed() -> None:
    """Else `down` of its own job would take down somebody else's."""
    liar: Remote = Liar(f"\x1elaunch\n{launch(name='prod').to_json()}\n")  # type: ignore[assignment]
    answer = jobs.look({"a": liar}, "demo")["a"]
    assert str(answer) == "a: asked for job demo, it tells of prod. Is this host to be trusted?"
    assert not isinstance(jobs.look({"a": liar}, "prod")["a"], TfdeployError)


# --- who holds what ---


def test_a_holder_is_a_line() -> None:
    holder = lock.me("demo", "g1")
    assert Holder.parse(f"{holder.line()}\n") == holder
    assert holder.line().count("\t") == 3
    assert f"(pid {os.getpid()})" in holder.who


def test_a_holder_reads_as_a_sentence() -> None:
    assert str(Holder("demo", "g1", "me@here", "now")) == "me@here, for job demo, since now"
    assert str(Holder.parse("")) == "somebody, for job ?, since ?"


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_line_is_a_holder_that_can_be_shown(text: str) -> None:
    assert str(Holder.parse(text)).isprintable()


def test_a_user_without_a_name_is_known_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert lock.this_controller().startswith("uid-987654@")


def test_a_watch_is_beaten_often_enough_not_to_lapse() -> None:
    assert min(lock.WATCH_STALE_AFTER, lock.LOCK_STALE_AFTER) > lock.SECONDS_BETWEEN_BEATS * 2


# --- several errors as one ---


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((InputError, InputError), InputError),
        ((NoRoom, InputError), InputError),
        ((InputError, TfdeployError), TfdeployError),
        ((TfdeployError, CollectError), CollectError),
        ((InputError, UnreachableError, TfdeployError), UnreachableError),
        ((CollectError, UnreachableError), UnreachableError),
        ((UnreachableError, LockedError, InputError), LockedError),
    ],
)
def test_several_errors_end_the_command_as_the_gravest_would(
    kinds: tuple[type[TfdeployError], ...], expected: type[TfdeployError]
) -> None:
    errors = [kind("broken", "Mend it", where=f"h{number}") for number, kind in enumerate(kinds)]
    for listed in (errors, errors[::-1]):
        whole = all_of(listed)
        assert type(whole) is expected
        assert str(whole).split("\n") == [str(error) for error in listed]


def test_a_single_error_stays_what_it_is() -> None:
    error = NoRoom("full")
    assert all_of(iter([error])) is error


def test_what_is_remembered_is_json(here: Path) -> None:
    remembered("demo")
    assert json.loads((paths.state() / "jobs" / "demo.json").read_text())["format"] == 1

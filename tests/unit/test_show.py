"""How things look: plain lines for a log, live ones for a terminal, and host text that stays text."""

import io
import json
import re

import pytest
from rich.console import Console

from tfdeploy.cli import show
from tfdeploy.cli.show import LiveHosts, LiveReport, PlainHosts, PlainReport
from tfdeploy.converge import Progress

Captured = pytest.CaptureFixture[str]
HOSTILE = "[red]x[/red] [link=http://evil]y[/link] [/] :warning: gpu1:up:80 back\\"


def lines(capsys: Captured) -> list[str]:
    """What went to stderr, without the seconds; nothing goes to stdout."""
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(re.match(r" *\d+\.\ds  ", line) for line in shown.err.splitlines())
    return [line.partition("s  ")[2] for line in shown.err.splitlines()]


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "SECONDS_BETWEEN_PLAIN_LINES", 0.0)


# --- plain ---


def test_what_is_done_is_a_line(capsys: Captured) -> None:
    with PlainReport() as report:
        report.done("image built")
        report.done(HOSTILE)
    assert lines(capsys) == ["image built", HOSTILE]


def test_what_is_being_done_is_told_now_and_then(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "SECONDS_BETWEEN_PLAIN_LINES", 1e9)
    report = PlainReport()
    report.doing("first")
    monkeypatch.setattr(show, "SECONDS_BETWEEN_PLAIN_LINES", 0.0)
    report.doing("second")
    assert lines(capsys) == ["… second"]


def test_hosts_are_told_with_why_they_need_it(capsys: Captured) -> None:
    with PlainHosts() as rows:
        rows.expect({"a": ("no Python", "no zstd"), "b": ("not provisioned yet",)})
    assert lines(capsys) == ["a: no Python, no zstd", "b: not provisioned yet"]


@pytest.mark.parametrize("state", ["changed", "failed", "unreachable"])
def test_notable_steps_are_told_at_once(capsys: Captured, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    monkeypatch.setattr(show, "SECONDS_BETWEEN_PLAIN_LINES", 1e9)
    rows = PlainHosts()
    rows.progress(Progress("a", "Install Docker", "ok"))
    rows.progress(Progress("a", "Start Docker", state))
    assert lines(capsys) == [f"a: Start Docker … {state}"]


@pytest.mark.usefixtures("talkative")
def test_other_steps_are_told_now_and_then(capsys: Captured) -> None:
    PlainHosts().progress(Progress("a", HOSTILE, "started"))
    assert lines(capsys) == [f"a: {HOSTILE} … started"]


def test_ansibles_output_is_passed_on_as_it_is(capsys: Captured) -> None:
    PlainHosts().output(HOSTILE)
    assert capsys.readouterr().err == f"{HOSTILE}\n"


def test_problems_go_to_stderr(capsys: Captured) -> None:
    show.problem(f"a: {HOSTILE}")
    assert capsys.readouterr() == ("", f"✗ a: {HOSTILE}\n")


def test_data_is_json_on_stdout(capsys: Captured) -> None:
    show.data({"a": [HOSTILE, None]})
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"a": [HOSTILE, None]}
    assert shown.err == ""


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "HOST  TASK\n"),
        ([("a", "worker-0"), ("gpu-node-1", "")], "HOST        TASK\na           worker-0\ngpu-node-1\n"),
        ([("[b]a[/b]", ":up:")], "HOST      TASK\n[b]a[/b]  :up:\n"),
    ],
)
def test_tables_are_as_wide_as_they_must_be(capsys: Captured, rows: list[tuple[str, str]], text: str) -> None:
    show.table(("HOST", "TASK"), rows)
    assert capsys.readouterr().out == text


def test_a_row_with_a_missing_cell_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="argument"):
        show.table(("HOST", "TASK"), [("a",)])


def test_where_nobody_looks_it_is_plain() -> None:
    assert type(show.progress()) is PlainReport
    assert type(show.hosts()) is PlainHosts


def test_on_a_terminal_it_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert isinstance(show.progress(), LiveReport)
    assert isinstance(show.hosts(), LiveHosts)


# --- live ---


@pytest.fixture
def screen() -> Console:
    """A wide terminal of the test's own, without colours."""
    return Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)


def shown_on(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())


def test_a_live_report_shows_text_as_it_is(screen: Console) -> None:
    report = LiveReport()
    report.console, report.status = screen, screen.status("")
    with report:
        report.doing(HOSTILE)
        report.done(f"done {HOSTILE}")
    assert f"done {HOSTILE}" in shown_on(screen)


def test_what_a_live_report_is_doing_is_shown_as_it_is(screen: Console) -> None:
    report = LiveReport()
    report.status = screen.status("")
    report.doing(HOSTILE)
    screen.print(report.status.renderable)
    assert HOSTILE in shown_on(screen)


def test_live_rows_show_host_and_task_as_they_are(screen: Console) -> None:
    rows = LiveHosts()
    rows.expect({f"[b]{HOSTILE}": ("waiting for [i]it[/i]",)})
    screen.print(rows.table())
    rows.progress(Progress(f"[b]{HOSTILE}", HOSTILE, "started"))
    screen.print(rows.table())
    first, second = shown_on(screen).splitlines()
    assert f"[b]{HOSTILE}  waiting for [i]it[/i]" in first
    assert f"[b]{HOSTILE}  {HOSTILE}" in second


def test_live_lines_and_output_are_shown_as_they_are(screen: Console) -> None:
    rows = LiveHosts()
    rows.live.console = screen
    rows.line(HOSTILE)
    rows.output(HOSTILE)
    assert shown_on(screen).splitlines() == [HOSTILE, HOSTILE]


def test_a_host_that_failed_stays_failed(screen: Console) -> None:
    rows = LiveHosts()
    rows.progress(Progress("a", "Install", "failed"))
    rows.progress(Progress("a", "Rescue", "ok"))
    screen.print(rows.table())
    assert "✗" in shown_on(screen)
    assert rows.rows == {"a": ("failed", "Install")}

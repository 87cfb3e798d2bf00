"""How things look: progress on stderr, data on stdout, plain where nobody looks."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tfdeploy.converge import Progress

SECONDS_BETWEEN_PLAIN_LINES = 5.0


class PlainReport:
    """Lines with the seconds since the start. What is being done is told now and then, so that a log shows life."""

    def __init__(self) -> None:
        self.started = self.told = time.monotonic()

    def done(self, text: str) -> None:
        self._line(text)

    def doing(self, text: str) -> None:
        if time.monotonic() - self.told >= SECONDS_BETWEEN_PLAIN_LINES:
            self._line(f"… {text}")

    def _line(self, text: str) -> None:
        self.told = time.monotonic()
        click.echo(f"{self.told - self.started:6.1f}s  {text}", err=True)

    def __enter__(self) -> "PlainReport":
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class LiveReport(PlainReport):
    """The same lines, and one that moves below them."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console

        self.console = Console(stderr=True)
        self.status = self.console.status("", spinner="dots")

    def doing(self, text: str) -> None:
        from rich.text import Text

        self.status.update(Text(text, style="dim"))

    def _line(self, text: str) -> None:
        from rich.text import Text

        seconds = time.monotonic() - self.started
        self.console.print(Text.assemble(("✓", "green"), " ", (f"{seconds:5.1f}s", "dim"), "  ", text))

    def __enter__(self) -> "LiveReport":
        self.status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.status.stop()


def progress() -> PlainReport:
    return LiveReport() if sys.stderr.isatty() else PlainReport()


def data(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they must be; the same text on a terminal and in a file."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    header = "  ".join(title.ljust(width) for title, width in zip(columns, widths, strict=True)).rstrip()
    click.echo(click.style(header, bold=True))
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def warning(text: str) -> None:
    click.echo(f"{click.style('warning', fg='yellow')}: {text}", err=True)


def problem(text: str) -> None:
    click.echo(f"{click.style('✗', fg='red', bold=True)} {text}", err=True)


class PlainHosts:
    """One line per host and change of step, not more often than a reader wants."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.told: dict[str, float] = {}

    def expect(self, reasons: Mapping[str, Sequence[str]]) -> None:
        for host, why in reasons.items():
            self.line(f"{host}: {', '.join(why)}")

    def progress(self, step: "Progress") -> None:
        now = time.monotonic()
        notable = step.state in ("changed", "failed", "unreachable")
        if notable or now - self.told.get(step.host, self.started) >= SECONDS_BETWEEN_PLAIN_LINES:
            self.told[step.host] = now
            self.line(f"{step.host}: {step.task} … {step.state}")

    def line(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self.started:6.1f}s  {text}", err=True)

    def output(self, text: str) -> None:
        click.echo(text, err=True)

    def __enter__(self) -> "PlainHosts":
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class LiveHosts(PlainHosts):
    """One row per host that says what it is at."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self.spinner = Spinner("dots")
        self.rows: dict[str, tuple[str, str]] = {}
        self.live = Live(console=Console(stderr=True), get_renderable=self.table, refresh_per_second=8, transient=True)

    def expect(self, reasons: Mapping[str, Sequence[str]]) -> None:
        for host, why in reasons.items():
            self.rows[host] = ("waiting", ", ".join(why))

    def progress(self, step: "Progress") -> None:
        if self.rows.get(step.host, ("", ""))[0] not in ("failed", "unreachable"):
            self.rows[step.host] = (step.state, step.task)

    def table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for host, (state, task) in self.rows.items():
            bad = state in ("failed", "unreachable")
            mark = Text("✗", style="red") if bad else self.spinner
            table.add_row(mark, Text(host, style="bold"), Text(task, style="red" if bad else "dim"))
        return table

    def line(self, text: str) -> None:
        self.live.console.print(text, markup=False, emoji=False, highlight=False)

    def output(self, text: str) -> None:
        self.live.console.out(text, highlight=False)

    def __enter__(self) -> "LiveHosts":
        self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.live.stop()


def hosts() -> PlainHosts:
    return LiveHosts() if sys.stderr.isatty() else PlainHosts()

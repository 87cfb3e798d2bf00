"""How things look: progress on stderr, data on stdout, plain where nobody looks."""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

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
        self.status.update(f"[dim]{_escaped(text)}[/dim]")

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self.started
        self.console.print(f"[green]✓[/green] [dim]{seconds:5.1f}s[/dim]  {_escaped(text)}", highlight=False)

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


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)

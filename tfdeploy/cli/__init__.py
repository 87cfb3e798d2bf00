"""The `tfdeploy` command: the only package that prints or exits. Commands are imported when called."""

import importlib
import os
import signal
import sys
import threading
from typing import Any

import click

from tfdeploy import __version__
from tfdeploy.errors import TfdeployError

# name -> (module of tfdeploy.cli, one line of help); a module is not imported for `tfdeploy --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "A job file, an inventory and a small trainer to start from."),
    "plan": ("plan", "What would run where; nothing is touched."),
    "up": ("up", "Launch a job on these hosts, and watch it to its end."),
    "attach": ("attach", "Watch a job that runs, to its end."),
    "status": ("status", "A job and its tasks, as its hosts say."),
    "ls": ("ls", "All jobs on these hosts, or launched from here."),
    "logs": ("logs", "What the tasks of a job print, merged in the order of time."),
    "exec": ("exec", "Run a command within a task."),
    "collect": ("collect", "Bring logs and outputs of a job home."),
    "down": ("down", "Take a job down; nothing of it is left but what is listed as kept."),
    "lock": ("lock", "Who holds hosts and jobs."),
    "provision": ("provision", "Bare machines become container hosts."),
    "doctor": ("doctor", "What stands between these hosts and a job; nothing is changed."),
    "schema": ("schema", "The JSON Schema of the job file, for editors."),
    "lab": ("lab", "Machines on this machine, to try and test with."),
}


class LazyGroup(click.Group):
    """Lists its commands from the table and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"tfdeploy.cli.{module}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            ctx.fail(f"no such command: {args[0]}.{hint}")
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tfdeploy")
def cli() -> None:
    """From a list of machines to a finished distributed TensorFlow job, over SSH."""


def main(argv: list[str] | None = None) -> None:
    if threading.current_thread() is threading.main_thread():
        # What must be undone is undone then, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    colour = False if os.environ.get("NO_COLOR") else None
    try:
        result: Any = cli.main(args=argv, prog_name="tfdeploy", standalone_mode=False, color=colour)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os._exit(141)
    except TfdeployError as error:
        click.echo(f"{click.style('error', fg='red', bold=True)}: {error}", err=True, color=colour)
        sys.exit(error.exit_code)
    sys.exit(result if isinstance(result, int) else 0)

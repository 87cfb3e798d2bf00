"""`tfdeploy attach`: watches a job that runs, in front of the user or in the background."""

import contextlib
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from tfdeploy.cli import show
from tfdeploy.cli.options import search_options
from tfdeploy.errors import CollectError, TfdeployError

if TYPE_CHECKING:
    from tfdeploy.inventory import Vault
    from tfdeploy.jobs import Found, Search
    from tfdeploy.outcome import Outcome
    from tfdeploy.remote import Credentials
    from tfdeploy.truth import JobView
    from tfdeploy.watch import Watch

LINES_OF_THE_CAUSE = 20


@click.command()
@click.argument("job", required=False)
@search_options
@click.option("--logs/--no-logs", default=False, help="Show what tasks print.")
@click.option("--in-background", "background", is_flag=True, hidden=True)
def attach(job: str | None, search: "Search", logs: bool, background: bool) -> int:
    """Watch a job that runs, to its end.

    Ctrl-C leaves it running, watched in the background. Exit code: 0 it succeeded, 1 it did not.
    """
    from dataclasses import replace

    if background:
        credentials, vault = _handed_over()
        search = replace(search, credentials=credentials, vault=vault)
    return _watch(replace(search, job=job), logs=logs, background=background)


def watch(job: str, credentials: "Credentials", vault: "Vault", *, logs: bool) -> int:
    from tfdeploy.jobs import Search

    return _watch(Search(job=job, credentials=credentials, vault=vault), logs=logs)


def _watch(search: "Search", *, logs: bool, background: bool = False) -> int:
    from tfdeploy import jobs
    from tfdeploy.watch import Watch

    with jobs.found(search) as found:
        watching = Watch(found.launch, found.hosts, dict(found.remotes), search.credentials, _teller())
        try:
            with _logs(found) if logs else contextlib.nullcontext():
                outcome = watching.until_over()
        except (KeyboardInterrupt, SystemExit) as left:
            watching.hand_over()
            if background or isinstance(left, SystemExit):
                raise
            leave(found.launch.job, search.credentials, search.vault, watched=not watching.in_charge)
            return 0
        _show_outcome(found, outcome)
        collected = _collected(found, watching, outcome) if watching.in_charge else True
    if outcome.state != "succeeded":
        return 1
    return 0 if collected else CollectError.exit_code


def leave(job: str, credentials: "Credentials", vault: "Vault", *, watched: bool = False) -> None:
    """The job goes on without us, and so does the watch, unless somebody else has it."""
    if not watched:
        in_background(job, credentials, vault)
    click.echo(err=True)
    say_how_to_come_back(job)


def _collected(found: "Found", watching: "Watch", outcome: "Outcome") -> bool:
    """Training and collecting are two things: one may succeed without the other."""
    from dataclasses import replace

    from tfdeploy import jobs
    from tfdeploy.cli import collect

    known = jobs.recall(found.launch.job)
    if outcome.state == "stopped" or known is None:
        return True
    try:
        collect.gather(replace(watching.view, outcome=outcome), found.entered, known.place)
    except TfdeployError as error:
        show.problem(f"not collected: {error}")
        click.echo(f"The outputs are on the hosts still: tfdeploy collect {found.launch.job}", err=True)
        return False
    return True


def in_background(job: str, credentials: "Credentials", vault: "Vault") -> None:
    """Another process watches from now on; passwords go to it by a pipe, and what it says to a file."""
    from tfdeploy import paths

    directory = paths.state() / "jobs"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = [sys.executable, "-m", "tfdeploy", "attach", job, "--in-background"]
    with (directory / f"{job}.log").open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
    assert process.stdin
    known = {"login": credentials.login, "become": credentials.become, "vault": vault.password}
    process.stdin.write(json.dumps({key: secret.value for key, secret in known.items() if secret}).encode())
    process.stdin.close()


def say_how_to_come_back(job: str) -> None:
    click.echo(f"{job} goes on. Come back with: tfdeploy attach {job}", err=True)
    click.echo(f"Also: tfdeploy status {job}, tfdeploy logs -f {job}, tfdeploy down {job}", err=True)


def _handed_over() -> "tuple[Credentials, Vault]":
    from tfdeploy.inventory import Secret, Vault
    from tfdeploy.remote import Credentials

    given: dict[str, str] = json.loads(sys.stdin.read() or "{}")
    secrets = {key: Secret(value) for key, value in given.items()}
    return Credentials(secrets.get("login"), secrets.get("become")), Vault(password=secrets.get("vault"))


def _teller() -> Any:
    """Says what has changed since the last time."""
    before: dict[str, str] = {}

    def tell(view: "JobView") -> None:
        for each in view.tasks:
            if before.get(each.task.id) not in (None, each.state):
                why = f": {each.why}" if each.state == "failed" else ""
                click.echo(f"{each.task.id} on {each.task.host} {each.state}{why}", err=True)
            before[each.task.id] = each.state

    return tell


@contextlib.contextmanager
def _logs(found: "Found") -> Any:
    from tfdeploy import logs
    from tfdeploy.cli import logs as view

    over = threading.Event()
    thread = threading.Thread(
        target=logs.follow,
        args=(found.launch, found.entered, found.launch.plan.tasks, view.printer(found.launch), over),
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=3)


def _show_outcome(found: "Found", outcome: "Outcome") -> None:
    from tfdeploy import logs

    job = found.launch.job
    good = outcome.state == "succeeded"
    mark = click.style("✓", fg="green") if good else click.style("✗", fg="red", bold=True)
    click.echo(f"{mark} {job} {outcome.state}: {outcome.reason}", err=True)
    if outcome.task and outcome.state == "failed":
        task = found.launch.plan.task(outcome.task)
        lines = logs.tail(found.launch, found.entered, task, LINES_OF_THE_CAUSE)
        if lines:
            click.echo(f"The last lines of {task.id} on {task.host}:", err=True)
            for line in lines:
                click.echo(f"  {line.safe}", err=True)

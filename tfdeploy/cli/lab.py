"""`tfdeploy lab`: machines on this machine."""

import os
import sys
from pathlib import Path

import click

from tfdeploy.cli import show
from tfdeploy.errors import TfdeployError

name_option = click.option("--name", default="lab", show_default=True, metavar="L", help="The lab's name.")
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print it."
)


@click.group(no_args_is_help=True)
def lab() -> None:
    """Machines on this machine, to try and test with.

    Each has systemd, sshd, an address of its own and, at /srv/shared, a directory that all share.
    None has Docker: installing that is what `tfdeploy` is for.

    \b
    Examples:
      tfdeploy lab up --hosts 3
      ansible -i lab.ini all -m ping
      tfdeploy lab kill lab-2
      tfdeploy lab down
    """


@lab.command()
@click.option(
    "--hosts",
    default=3,
    show_default=True,
    metavar="N",
    help="How many; again with another N grows or shrinks.",
)
@name_option
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("lab.ini"),
    show_default=True,
    help="Where to write the inventory.",
)
@click.option("--debian", type=click.Choice(["12", "13"]), default="12", show_default=True, help="The hosts' release.")
@click.option("--subnet", default="", metavar="A.B.C.0/24", help="The hosts' addresses.  [default: a free range]")
@output_option
def up(hosts: int, name: str, inventory: Path, debian: str, subnet: str, output: str) -> None:
    """Make the machines, or bring them to what is wished.

    The first time, this machine gets a Docker engine and the host image is made from Debian's packages.
    """
    from tfdeploy.lab import verbs

    with show.progress() as report:
        made = verbs.up(
            name,
            hosts,
            report,
            inventory=inventory.absolute(),
            subnet=subnet,
            debian=debian,
            ask_password=_ask_sudo_password,
        )
        report.done(f"{len(made.hosts)} hosts are up; their inventory is {inventory}")
    _show(made.as_json(), output)


@lab.command()
def prepare() -> None:
    """Install and start what a lab needs on this machine, and make no lab."""
    from tfdeploy.lab import machine

    with show.progress() as report:
        machine.make_ready(report, _ask_sudo_password)


@lab.command()
@name_option
@output_option
def status(name: str, output: str) -> None:
    """The machines and how they are."""
    from tfdeploy.lab import verbs

    _show(verbs.status(name).as_json(), output)


@lab.command(context_settings={"ignore_unknown_options": True})
@name_option
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str, host: str, command: tuple[str, ...]) -> None:
    """Log in to HOST (its name or number), or run COMMAND there."""
    from tfdeploy.lab import verbs

    words = verbs.ssh_words(name, host, command)
    os.execvp(words[0], words)


@lab.command()
@name_option
def down(name: str) -> None:
    """Remove the lab: no container, network, volume or process of it is left."""
    from tfdeploy.lab import verbs

    with show.progress() as report:
        verbs.down(name, report)
        report.done(f"the lab {name!r} is gone; the host image is kept for the next one")


def _fault(verb: str, explanation: str) -> click.Command:
    @click.command(verb, help=explanation)
    @name_option
    @click.argument("host")
    def command(name: str, host: str) -> None:
        from tfdeploy.lab import verbs

        getattr(verbs, verb)(name, host)

    return command


for verb, explanation in {
    "kill": "Power loss on HOST.",
    "start": "Power on again, and wait for the boot.",
    "cut": "Partition: HOST runs on, but no packet reaches or leaves it.",
    "heal": "End the partition.",
}.items():
    lab.add_command(_fault(verb, explanation))


@lab.command()
@name_option
@click.argument("host")
@click.option("--rate", metavar="RATE", help="Such as 100mbit.")
@click.option("--off", is_flag=True, help="Full speed again.")
def slow(name: str, host: str, rate: str | None, off: bool) -> None:
    """Limit what goes into and out of HOST."""
    from tfdeploy.lab import verbs

    if bool(rate) == off:
        raise click.UsageError("give either --rate or --off")
    verbs.slow(name, host, rate)


def _show(status: dict[str, object], output: str) -> None:
    if output == "json":
        show.data(status)
        return
    hosts = status["hosts"]
    assert isinstance(hosts, tuple)
    columns = ("name", "address", "port", "state")
    show.table([column.upper() for column in columns], [[str(host[column]) for column in columns] for host in hosts])


def _ask_sudo_password() -> str:
    if not sys.stdin.isatty():
        raise TfdeployError(
            "a Docker engine must be installed, and sudo wants a password",
            "Run it in a terminal, or run `sudo -v` in this one first",
        )
    password: str = click.prompt("sudo password, to install Docker and the lab's tools", hide_input=True, err=True)
    return password

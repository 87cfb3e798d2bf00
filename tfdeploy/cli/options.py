"""The flags that commands share: those of an inventory, of credentials, and of a job."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfdeploy.errors import InputError

if TYPE_CHECKING:
    from tfdeploy.inventory import Inventory, Secret, Vault
    from tfdeploy.plan import Wishes
    from tfdeploy.remote import Credentials
    from tfdeploy.spec import JobSpec


@dataclass(frozen=True)
class Access:
    """Which hosts, and how they are entered."""

    sources: tuple[str, ...]
    limit: str | None
    vault: "Vault"
    credentials: "Credentials"

    def inventory(self, extra_vars: tuple[str, ...] = ()) -> "Inventory":
        from tfdeploy import inventory

        return inventory.read(self.sources, limit=self.limit, vault=self.vault, extra_vars=extra_vars)


@dataclass(frozen=True)
class Request:
    """What the user asked for, before anything is read."""

    access: Access
    file: Path | None
    wishes: "Wishes"

    def inventory(self) -> "Inventory":
        return self.access.inventory()

    def job(self) -> "JobSpec":
        from tfdeploy import spec

        if self.file is not None:
            return spec.load(self.file)
        if Path(spec.FILE_NAME).exists():
            return spec.load(Path(spec.FILE_NAME))
        return spec.JobSpec(name=spec.name_from(Path.cwd()))


class JobCommand(click.Command):
    """A command whose words after `--` are the trainer's, whatever stands before them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            ctx.meta["tfdeploy.command"] = tuple(args[split + 1 :])
            args = args[:split]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]


def inventory_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds INVENTORY and how to read it; the function gets them as one `access`."""
    return _gathered(function, _INVENTORY, "access", _access)


def access_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with the credentials for a command that enters hosts."""
    return _gathered(function, _INVENTORY + _PASSWORDS, "access", _access)


def search_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what finds a job that was launched: -i, --via, and how hosts are entered; gives one `search`.

    The command itself declares JOB, because some have other arguments before it.
    """
    return _gathered(function, _SEARCH + _INVENTORY[2:] + _PASSWORDS, "search", _search)


def _search(inventory: tuple[str, ...], via: str | None, **given: Any) -> Any:
    from tfdeploy import jobs

    if via and inventory:
        raise InputError("-i and --via are two ways to say where to look", "Give one of them")
    access = _access(None, inventory or ("localhost,",), **given)
    return jobs.Search(
        sources=inventory, limit=access.limit, vault=access.vault, via=via, credentials=access.credentials
    )


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of a job to those of an inventory; the function gets all as one `request`."""

    @functools.wraps(function)
    def with_request(*, access: Access, job: dict[str, Any], **rest: Any) -> Any:
        return function(request=Request(access, job["file"], _wishes(**job)), **rest)

    return _gathered(with_request, _JOB, "job", dict)


def _gathered(
    function: Callable[..., Any], options: tuple[Any, ...], name: str, build: Callable[..., Any]
) -> Callable[..., Any]:
    """Adds the options; the function gets what `build` makes of them as one argument."""
    declared: list[str] = []

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        built = build(**{each: given.pop(each) for each in declared})
        return function(**{name: built}, **given)

    for option in reversed(options):
        gathered = option(gathered)
        declared.append(vars(gathered)["__click_params__"][-1].name)
    return gathered


def _access(
    inventory_path: str | None,
    inventory: tuple[str, ...],
    limit: str | None,
    vault_id: tuple[str, ...],
    vault_password_file: tuple[str, ...],
    ask_vault_pass: bool,
    ask_pass: bool = False,
    ask_become_pass: bool = False,
    accept_new_host_keys: bool = False,
) -> Access:
    from tfdeploy.inventory import INVENTORY_KINDS, Vault
    from tfdeploy.remote import Credentials

    absent = inventory_path is None and not inventory
    if absent and not click.get_current_context().meta.get("tfdeploy.no_inventory"):
        exc = click.get_current_context().params.get("exc")
        taken = f" ({exc} was taken for the file of -E: write -E last)" if exc not in (None, "exc") else ""
        raise InputError(f"no inventory given{taken}", INVENTORY_KINDS)
    return Access(
        sources=(*((inventory_path,) if inventory_path else ()), *inventory),
        limit=limit,
        vault=Vault(vault_id, vault_password_file, _typed("Vault password") if ask_vault_pass else None),
        credentials=Credentials(
            login=_typed("SSH password") if ask_pass else None,
            become=_typed("sudo password") if ask_become_pass else None,
            accept_new_host_keys=accept_new_host_keys,
        ),
    )


def _typed(what: str) -> "Secret":
    from tfdeploy.inventory import Secret

    return Secret(click.prompt(what, hide_input=True, err=True))


def _wishes(file: Path | None, exclude: tuple[str, ...], exc: str | None, **wishes: Any) -> "Wishes":
    from tfdeploy.plan import Wishes

    return Wishes(
        **wishes,
        command=click.get_current_context().meta.get("tfdeploy.command"),
        exclude=(*_named(exclude), *(_listed(Path(exc)) if exc else ())),
    )


def _named(exclude: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    names = (name.strip() for given in exclude for name in given.split(","))
    return tuple((name, "--exclude") for name in names if name)


def _listed(file: Path) -> tuple[tuple[str, str], ...]:
    """One host per line; `#` starts a comment."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {why}", "Give -E a file with one host per line", where=str(file)) from error
    names = (line.partition("#")[0].strip() for line in lines)
    return tuple((name, f"{file}:{number}") for number, name in enumerate(names, start=1) if name)


_COUNT = click.IntRange(min=0)
_INVENTORY = (
    click.argument("inventory_path", metavar="INVENTORY", required=False),
    click.option("-i", "--inventory", multiple=True, metavar="PATH", help="Another inventory; may be repeated."),
    click.option("-l", "--limit", metavar="PATTERN", help="Only these hosts, as with Ansible."),
    click.option("--vault-id", multiple=True, metavar="ID", help="As with Ansible."),
    click.option("--vault-password-file", multiple=True, metavar="FILE", help="As with Ansible."),
    click.option("-J", "--ask-vault-pass", is_flag=True, help="As with Ansible."),
)
_PASSWORDS = (
    click.option("-k", "--ask-pass", is_flag=True, help="Ask for the SSH password."),
    click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for the sudo password."),
    click.option(
        "--accept-new-host-keys", is_flag=True, help="Take unknown host keys at first sight; never changed ones."
    ),
)
_SEARCH = (
    click.option("-i", "--inventory", multiple=True, metavar="INVENTORY", help="Look on these hosts, not in memory."),
    click.option("--via", metavar="HOST", help="Look on this one host, which knows the others."),
)
_JOB = (
    click.option("-f", "--file", type=click.Path(path_type=Path), help="Job file (default: tfdeploy.yml, if there)."),
    click.option("--name", help="Name of the job."),
    click.option("--image", help="Image of the trainer."),
    click.option("--ps", type=_COUNT, metavar="N", help="Parameter servers."),
    click.option("--workers", type=_COUNT, metavar="N", help="Workers (default: every host left over)."),
    click.option("--chief/--no-chief", default=None, help="A chief."),
    click.option("--evaluator/--no-evaluator", default=None, help="An evaluator beside the cluster."),
    click.option("--tensorboard/--no-tensorboard", default=None, help="TensorBoard."),
    click.option("--spares", type=_COUNT, metavar="N", help="Hosts kept free to replace a lost one."),
    click.option("-N", "--num", type=click.IntRange(min=1), metavar="N", help="Use the first N hosts only."),
    click.option("--exclude", multiple=True, metavar="HOST,...", help="Leave these hosts out."),
    click.option(
        "-E",
        "--exc",
        is_flag=False,
        flag_value="exc",
        metavar="[FILE]",
        help="Leave out the hosts in FILE, one per line (default: exc).",
    ),
)

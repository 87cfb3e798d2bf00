"""The flags of a job, shared by the commands that plan one."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfdeploy.errors import InputError

if TYPE_CHECKING:
    from tfdeploy.inventory import Inventory, Vault
    from tfdeploy.plan import Wishes
    from tfdeploy.spec import JobSpec


@dataclass(frozen=True)
class Request:
    """What the user asked for, before anything is read."""

    sources: tuple[str, ...]
    limit: str | None
    vault: "Vault"
    file: Path | None
    wishes: "Wishes"

    def inventory(self) -> "Inventory":
        from tfdeploy import inventory

        return inventory.read(self.sources, limit=self.limit, vault=self.vault)

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


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds INVENTORY and the flags of a job; the function gets them as one `request`."""

    @functools.wraps(function)
    def with_request(**given: Any) -> Any:
        words = click.get_current_context().meta.get("tfdeploy.command")
        request = _request(words, **{name: given.pop(name) for name in _NAMES})
        return function(request=request, **given)

    for option in reversed(_OPTIONS):
        with_request = option(with_request)
    return with_request


def _request(words: tuple[str, ...] | None, **given: Any) -> Request:
    from tfdeploy.inventory import INVENTORY_KINDS, Vault
    from tfdeploy.plan import Wishes

    positional, exc = given["inventory_path"], given["exc"]
    if positional is None and not given["inventory"]:
        taken = f" ({exc} was taken for the file of -E: write -E last)" if exc not in (None, "exc") else ""
        raise InputError(f"no inventory given{taken}", INVENTORY_KINDS)
    return Request(
        sources=(*((positional,) if positional else ()), *given["inventory"]),
        limit=given["limit"],
        vault=Vault(given["vault_id"], given["vault_password_file"], given["ask_vault_pass"]),
        file=given["file"],
        wishes=Wishes(
            **{name: given[name] for name in _WISHES},
            command=words,
            exclude=(*_named(given["exclude"]), *(_listed(Path(exc)) if exc else ())),
        ),
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
_OPTIONS = (
    click.argument("inventory_path", metavar="INVENTORY", required=False),
    click.option("-i", "--inventory", multiple=True, metavar="PATH", help="Another inventory; may be repeated."),
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
    click.option("-l", "--limit", metavar="PATTERN", help="Only these hosts, as with Ansible."),
    click.option("--vault-id", multiple=True, metavar="ID", help="As with Ansible."),
    click.option("--vault-password-file", multiple=True, metavar="FILE", help="As with Ansible."),
    click.option("-J", "--ask-vault-pass", is_flag=True, help="As with Ansible."),
)
_WISHES = ("ps", "workers", "chief", "evaluator", "tensorboard", "spares", "name", "image", "num")
_NAMES = (
    *_WISHES,
    "inventory_path",
    "inventory",
    "file",
    "exclude",
    "exc",
    "limit",
    "vault_id",
    "vault_password_file",
    "ask_vault_pass",
)

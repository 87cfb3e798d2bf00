"""`tfdeploy init`: a job file, an inventory and a small trainer to start from."""

from pathlib import Path

import click

from tfdeploy import paths
from tfdeploy.errors import InputError


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(directory: Path) -> None:
    """A job file, an inventory and a small trainer to start from.

    Written into DIRECTORY, by default the working directory; nothing is overwritten.
    """
    written = {directory / source.relative_to(STARTER): source for source in _files()}
    there = [str(target) for target in written if target.exists()]
    if there:
        raise InputError("already there", "Remove it, or name another directory", where=", ".join(there))
    for target, source in written.items():
        _copy(source, target)
        click.echo(f"wrote {target}", err=True)
    click.echo(f"Next: put your hosts into {directory / 'inventory.ini'}, then tfdeploy plan inventory.ini", err=True)


STARTER = paths.PACKAGE / "starter"


def _files() -> list[Path]:
    return sorted(path for path in STARTER.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(source.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from error

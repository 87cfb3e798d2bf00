"""`tfdeploy schema`: the job file's JSON Schema, for editors."""

import json

import click


@click.command()
def schema() -> None:
    """The JSON Schema of the job file, for editors."""
    from tfdeploy import spec

    click.echo(json.dumps(spec.json_schema(), indent=2))

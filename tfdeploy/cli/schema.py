"""`tfdeploy schema`: the job file's JSON Schema, for editors."""

import json

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of the job file."""
    from tfdeploy import spec

    click.echo(json.dumps(spec.json_schema(), indent=2))

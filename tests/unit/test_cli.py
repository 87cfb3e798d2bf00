import importlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.conftest import Run
from tfdeploy import __version__
from tfdeploy.cli import COMMANDS, cli


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_what_each_command_says_of_itself(name: str) -> None:
    module, help_line = COMMANDS[name]
    command = getattr(importlib.import_module(f"tfdeploy.cli.{module}"), name)
    assert command.get_short_help_str(limit=100) == help_line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_help_imports_nothing_heavy() -> None:
    program = """
import sys
from tfdeploy.cli import main
try:
    main(["--help"])
except SystemExit:
    heavy = {"rich", "ansible_runner", "paramiko", "pydantic", "yaml"}
    print(heavy & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"


def test_version(tfdeploy: Run) -> None:
    assert tfdeploy("--version").stdout.strip() == f"tfdeploy, version {__version__}"


def test_a_mistyped_command_is_guessed(tfdeploy: Run) -> None:
    done = tfdeploy("lap", "up")
    assert done.returncode == 2
    assert "Did you mean lab?" in done.stderr


def test_an_error_goes_to_stderr_with_its_exit_code(tfdeploy: Run) -> None:
    done = tfdeploy("lab", "up", "--hosts", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --hosts: 0 hosts cannot be made. Ask for 1 to 100.\n"

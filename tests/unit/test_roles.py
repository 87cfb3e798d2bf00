"""What every role of ours looks like."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT

ROLES = sorted(path for path in (PROJECT / "roles").iterdir())


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture(params=ROLES, ids=lambda role: role.name)
def role(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_defaults_and_argument_specs_have_the_same_keys_and_values(role: Path) -> None:
    defaults = load(role / "defaults/main.yml")
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert {name: option["default"] for name, option in options.items()} == defaults
    assert all(option["type"] and option["description"] for option in options.values())


def test_public_names_begin_with_the_roles_name(role: Path) -> None:
    assert all(name.startswith(f"{role.name}_") for name in load(role / "defaults/main.yml"))


def test_main_only_includes(role: Path) -> None:
    tasks = load(role / "tasks/main.yml")
    assert all(set(task) <= {"name", "ansible.builtin.include_tasks", "when", "tags"} for task in tasks)


def test_the_readme_names_every_default_in_its_order(role: Path) -> None:
    readme = (role / "README.md").read_text()
    places = [readme.find(f"`{name}`") for name in load(role / "defaults/main.yml")]
    assert -1 not in places
    assert places == sorted(places)

"""Every molecule scenario, as a test: create, converge, idempotence, verify, destroy on lab hosts."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROJECT

SCENARIOS = sorted(path.parent.name for path in Path(__file__).parent.glob("*/molecule.yml"))


@pytest.mark.lab
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    words = ["molecule", "-c", "molecule/base.yml", "test", "-s", scenario]
    done = subprocess.run(words, cwd=PROJECT / "tests", capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def test_every_role_has_a_scenario() -> None:
    roles = {path.name for path in (PROJECT / "roles").iterdir()}
    assert roles <= set(SCENARIOS)

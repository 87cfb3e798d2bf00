import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdeploy import converge, paths
from tfdeploy.converge import HostOutcome, Progress, Request
from tfdeploy.errors import TfdeployError

PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Everyone
      ansible.builtin.debug:
    - name: Some fail
      ansible.builtin.command: sh -c 'echo the reason >&2; exit 3'
      when: inventory_hostname == 'bad'
    - name: Ignored
      ansible.builtin.command: 'false'
      ignore_errors: true
    - name: Become is asked for
      ansible.builtin.set_fact:
        found: "{{ ansible_become_password | default('') }}"
"""


@pytest.fixture
def request_for(tmp_path: Path) -> Request:
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(PLAYBOOK)
    inventory = tmp_path / "inventory.ini"
    variables = f"ansible_connection=local\nansible_python_interpreter={sys.executable}\n"
    inventory.write_text(f"[all]\ngood\nbad\nelsewhere\n[all:vars]\n{variables}")
    return Request(playbook, [str(inventory)], ["good", "bad"])


def test_each_host_has_its_outcome_with_task_and_cause(request_for: Request, tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = converge.converge(request_for, tmp_path / "run", on_progress=seen.append)
    assert not result.good
    good, bad = result.outcomes
    assert (good.host, good.state) == ("good", "ok")
    assert (bad.host, bad.state, bad.task) == ("bad", "failed", "Some fail")
    assert bad.message.endswith("the reason")
    assert {progress.host for progress in seen} == {"good", "bad"}


def test_the_run_directory_is_private_and_keeps_no_password(request_for: Request, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    converge.converge(request_for, run_dir, become_password="s3cret-canary", login_password="s3cret-canary")
    assert run_dir.stat().st_mode & 0o777 == 0o700
    leaks = [path for path in run_dir.rglob("*") if path.is_file() and b"s3cret-canary" in path.read_bytes()]
    assert leaks == []
    assert not any(path.is_fifo() for path in run_dir.iterdir())


def test_ctrl_c_ends_a_long_step_and_says_where_the_host_stands(request_for: Request, tmp_path: Path) -> None:
    playbook = tmp_path / "long.yml"
    playbook.write_text("- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Long\n      command: sleep 600\n")

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    request = Request(playbook, request_for.inventory, ["good"])
    result = converge.converge(request, tmp_path / "run", on_progress=interrupt)
    assert result.cancelled
    assert result.outcomes == (HostOutcome("good", "cancelled", "Long"),)
    left = subprocess.run(["pgrep", "-f", str(playbook)], capture_output=True, text=True)
    assert left.stdout == ""


def test_a_playbook_that_matched_nobody_is_not_good(request_for: Request, tmp_path: Path) -> None:
    playbook = tmp_path / "nobody.yml"
    playbook.write_text("- hosts: absent\n  tasks: []\n")
    with pytest.raises(TfdeployError, match="did nothing"):
        converge.converge(Request(playbook, request_for.inventory, ["good"]), tmp_path / "run")


def test_a_broken_playbook_is_told_in_ansibles_words(request_for: Request, tmp_path: Path) -> None:
    playbook = tmp_path / "broken.yml"
    playbook.write_text("- hosts: [\n")
    with pytest.raises(TfdeployError, match=r"broken\.yml"):
        converge.converge(Request(playbook, request_for.inventory, ["good"]), tmp_path / "run")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"msg": "no package", "stderr": ""}, "no package"),
        ({"msg": "non-zero return code", "stderr": "a\nE: the reason\n"}, "non-zero return code: E: the reason"),
        ({"msg": "x failed: the reason", "stderr": "the reason"}, "x failed: the reason"),
        ({"results": [{"msg": "fine"}, {"failed": True, "msg": "the second item"}]}, "the second item"),
        ({}, "no message"),
    ],
)
def test_a_failure_is_told_in_the_modules_own_words(result: Mapping[str, Any], message: str) -> None:
    assert converge.failure_message(result) == message


@pytest.mark.parametrize(
    ("states", "cancelled", "state"),
    [
        (["started", "ok"], False, "ok"),
        (["ok", "changed", "ok"], False, "changed"),
        (["changed", "failed"], False, "failed"),
        (["changed", "failed"], True, "failed"),
        (["unreachable"], False, "unreachable"),
        (["ok", "started"], True, "cancelled"),
        ([], True, "cancelled"),
        ([], False, "untouched"),
    ],
)
def test_the_outcome_of_a_host_comes_from_its_events(states: list[str], cancelled: bool, state: str) -> None:
    seen = [Progress("h", "task", each) for each in states] + [Progress("other", "task", "failed")]
    assert converge.outcome("h", seen, cancelled=cancelled).state == state


def test_good_outcomes_are_those_that_reached_the_end() -> None:
    good = {state for state in ("ok", "changed", "failed", "unreachable", "cancelled") if HostOutcome("h", state).good}
    assert good == {"ok", "changed"}


def test_shipped_playbooks_and_roles_are_found_in_a_checkout() -> None:
    assert paths.playbook("controller.yml").is_file()
    assert (paths.roles() / "docker" / "tasks" / "main.yml").is_file()

"""`docker create`, word by word, and what a container is told."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.launches import launch
from tfdeploy import containers
from tfdeploy.launch import Launch
from tfdeploy.task import Task

GOLDEN = Path(__file__).parent.parent / "golden" / "create"
OWN = "/var/lib/tfdeploy/jobs/demo"
laws = settings(max_examples=100, deadline=None)

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "every_limit": {"tasks": {"worker": {
        "count": 1, "cpus": 2.5, "memory": "4GiB", "shm_size": "512m", "gpus": 2, "user": "1000:50",
    }}},
    "one_gpu": {"tasks": {"worker": {"count": 1, "gpus": 1}}},
    "user_by_name": {"tasks": {"worker": {"count": 1, "user": "trainer"}}},
    "odd_environment": {"env": {
        "QUOTES": "it's \"one\"", "LINES": "a\nb", "RETURN": "a\r", "DOLLARS": "$HOME $(id)", "EMPTY": "",
        "LONG": "x" * 70_000,
    }},
    "mounts": {
        "mounts": ["/data:/data:ro", "/a,b:/c,d", '/quote"d:/q"', "/with space:/x y:rw", "/it's:/$HOME"],
        "outputs": [{"to": "/out"}, {"from": "/models", "to": "/out2"}],
        "shared": "/mnt/jobs",
        "secrets": ["TOKEN", "KEY"],
    },
    "command": {"command": ["--steps", "5", "a b", "it's", "$HOME", "", "--privileged", "{{ index }}"]},
    "entrypoint_list": {"entrypoint": ["python", "-u", "train.py"], "command": ["--steps", "5"]},
    "entrypoint_alone": {"entrypoint": ["python", "-u", "train.py"]},
    "empty_entrypoint": {"entrypoint": [], "command": ["sh", "-c", "true"]},
    "empty_command": {"command": []},
    "legacy_flags": {"legacy_flags": True, "command": ["train.py"]},
    "restart_never": {"policies": {"restart": "never"}},
    "restart_on_failure": {"policies": {"restart": "on-failure", "max_restarts": 7}},
    "restart_on_failure_but_no_budget": {"policies": {"restart": "on-failure", "max_restarts": 0}},
    "restart_exit_code": {"policies": {"restart": "exit-code"}},
    "restart_always": {"policies": {"restart": "always"}},
    "grace": {"policies": {"grace": "2m"}},
    "tensorboard": {"tasks": {"worker": {"count": 1}, "tensorboard": {"logdir": "/shared/tb"}}, "shared": "/mnt/jobs"},
    "selinux": {},
}  # fmt: skip


def words_of(case: str) -> list[list[str]]:
    made = launch(**CASES[case])
    return [list(containers.create_words(made, task, own=OWN, selinux=case == "selinux")) for task in made.plan.tasks]


@pytest.mark.parametrize("case", CASES)
def test_the_words_are_the_golden_ones(case: str) -> None:
    """`UPDATE_GOLDEN=1 pytest` writes the expected files anew; read the difference before you commit it."""
    shown = json.dumps(words_of(case), indent=1, ensure_ascii=False) + "\n"
    expected = GOLDEN / f"{case}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(shown)
    assert shown == expected.read_text()


def test_every_golden_file_has_its_case() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(CASES)


def only(made: Launch) -> tuple[Launch, Task]:
    return made, made.plan.tasks[0]


def test_labels_say_all_that_finds_a_container_again() -> None:
    made, task = only(launch(tasks={"worker": {"count": 1, "gpus": 2}}))
    assert containers.labels(made, task) == {
        "tfdeploy.job": "demo",
        "tfdeploy.task": "worker-0",
        "tfdeploy.generation": made.generation,
        "tfdeploy.port": "2222",
        "tfdeploy.gpus": "0,1",
    }


def test_a_task_without_gpus_sees_none_even_where_nvidias_runtime_is_the_default() -> None:
    assert containers.environment(*only(launch()))["NVIDIA_VISIBLE_DEVICES"] == "void"
    with_gpu = launch(tasks={"worker": {"count": 1, "gpus": 1}})
    assert "NVIDIA_VISIBLE_DEVICES" not in containers.environment(*only(with_gpu))


def test_secrets_are_named_by_their_files() -> None:
    environment = containers.environment(*only(launch(secrets=["TOKEN"])))
    assert environment["TOKEN_FILE"] == "/run/secrets/TOKEN"
    assert "TOKEN" not in environment


@laws
@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0{"), max_size=40))
def test_any_value_of_the_environment_stays_out_of_the_words(value: str) -> None:
    made, task = only(launch(env={"A": f"needle{value}"}))
    words = containers.create_words(made, task, own=OWN)
    assert not [word for word in words if "needle" in word]
    assert ("--env=A" in words) is bool({"\n", "\r"} & set(value))


def fields(word: str) -> list[str]:
    (row,) = csv.reader([word])
    return row


@laws
@given(
    *[
        st.text(
            st.characters(min_codepoint=32, blacklist_characters=":\x7f", blacklist_categories=["Cs", "Zl", "Zp", "Cc"])
        )
    ]
    * 2
)
def test_any_path_of_a_mount_is_one_field_of_its_line(source: str, target: str) -> None:
    mount = f"/{source}:/{target}"
    if ".." in mount.replace(":", "/").split("/"):
        return
    made, task = only(launch(mounts=[mount]))
    word = [word for word in containers.create_words(made, task, own=OWN) if word.startswith("--mount=")][-1]
    assert fields(word.removeprefix("--mount=")) == ["type=bind", f"source=/{source}", f"target=/{target}"]


def test_the_image_is_named_by_its_id_where_that_is_known() -> None:
    made, task = only(launch())
    assert made.image in containers.create_words(made, task, own=OWN)
    assert containers.create_words(replace(made, image=""), task, own=OWN)[-1] == "trainer:1"

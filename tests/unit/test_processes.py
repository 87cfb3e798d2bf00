"""A task as a plain process: what its keeper is told; and which directories tasks may have."""

import json
import shlex
from typing import Any

import pytest

from tests.unit.launches import launch
from tfdeploy import mounts, processes
from tfdeploy.errors import InputError
from tfdeploy.mounts import OUTPUTS
from tfdeploy.spec import JobSpec, Mount

OWN = "/var/lib/tfdeploy/jobs/demo"


def told(inherited: dict[str, str] | None = None, cwd: str = "", **keys: Any) -> dict[str, Any]:
    made = launch(**{"runtime": "process", "command": ["train"]} | keys)
    return processes.keeper_spec(made, made.plan.tasks[0], own=OWN, user="ops", inherited=inherited, cwd=cwd)


def test_what_is_run_is_entrypoint_and_command() -> None:
    assert told(entrypoint=["python", "-u"], command=["a b", "{{ index }}"])["argv"] == ["python", "-u", "a b", "0"]


def test_nothing_to_run_is_refused_by_its_task() -> None:
    made = launch(runtime="process")
    with pytest.raises(InputError, match=r"worker-0: nothing to run: .* Give the command after --"):
        processes.argv(made, made.plan.tasks[0])


def test_it_finds_its_outputs_shared_directory_and_secrets_where_they_are_on_the_host() -> None:
    spec = told(shared="/mnt/jobs", secrets=["TOKEN"])
    assert spec["env"]["TFDEPLOY_OUTPUTS"] == spec["cwd"] == f"{OWN}/tasks/worker-0/outputs/0"
    assert spec["env"]["TFDEPLOY_SHARED"] == "/mnt/jobs/demo"
    assert spec["env"]["TOKEN_FILE"] == f"{OWN}/tasks/worker-0/secrets/TOKEN"
    assert spec["hosts"] == f"{OWN}/hosts"


def test_without_a_shared_directory_it_is_told_of_none() -> None:
    assert "TFDEPLOY_SHARED" not in told()["env"]


def test_a_local_task_inherits_our_environment_and_directory_but_the_jobs_values_win() -> None:
    spec = told(inherited={"PATH": "/mine", "A": "ours"}, cwd="/here", env={"A": "the job's"})
    assert (spec["env"]["PATH"], spec["env"]["A"], spec["cwd"], spec["hosts"]) == ("/mine", "the job's", "/here", "")


def test_without_that_it_starts_from_little() -> None:
    assert {"PATH", "LANG"} < set(told()["env"])
    assert "HOME" not in told()["env"]


@pytest.mark.parametrize(("gpus", "seen"), [(0, ""), (2, "0,1")])
def test_it_sees_its_own_gpus_only(gpus: int, seen: str) -> None:
    assert told(tasks={"worker": {"count": 1, "gpus": gpus}})["env"]["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize(
    ("restart", "expected"), [("never", "no"), ("exit-code", "no"), ("on-failure", "on-failure"), ("always", "always")]
)
def test_only_some_restarts_are_the_keepers(restart: str, expected: str) -> None:
    spec = told(policies={"restart": restart, "max_restarts": 7, "grace": "5s"})
    assert (spec["restart"], spec["max_restarts"], spec["grace"]) == (expected, 7, 5)


def test_the_script_writes_what_the_keeper_reads_in_one_line() -> None:
    made = launch(runtime="process", command=["a\nb", "it's"], env={"A": "x\ny"})
    script = processes.create(made, made.plan.tasks[0], own=OWN, user="ops", inherited=None, cwd="")
    first, line, last, owner = script.rstrip("\n").split("\n")
    assert (first, last, owner) == (
        f"put \"$directory/spec.json\" <<'{made.generation}'",
        made.generation,
        "give ops",
    )
    assert json.loads(line)["argv"] == ["a\nb", "it's"]


def test_nobody_gives_files_away_where_nobody_is_named() -> None:
    made = launch(runtime="process", command=["a"])
    script = processes.create(made, made.plan.tasks[0], own=OWN, user="", inherited={}, cwd="")
    assert "give" not in script.split("\n")[-2]


def test_limits_are_systemds() -> None:
    made = launch(runtime="process", command=["a"], tasks={"worker": {"count": 1, "cpus": 1.5, "memory": "1GiB"}})
    assert shlex.split(processes.start(made, made.plan.tasks[0])) == [
        "start_process",
        "worker-0",
        "30",
        "--property=CPUQuota=150%",
        "--property=MemoryMax=1073741824",
        "--property=MemorySwapMax=0",
    ]


def test_the_keeper_can_stand_in_a_here_document_of_any_launch() -> None:
    assert launch().generation not in processes.keeper()


# --- directories ---


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "demo", "image": "a"} | keys)


def test_outputs_are_always_there_and_each_once() -> None:
    assert mounts.output_directories(job()) == (OUTPUTS,)
    outputs = [{"to": "/a"}, {"from": "/models", "to": "/b"}, {"from": "/models", "to": "/c"}]
    assert mounts.output_directories(job(outputs=outputs)) == (OUTPUTS, "/models")


def test_the_users_mounts_are_read() -> None:
    assert mounts.user_mounts(job(mounts=["/a:/b:ro", "/c:/d"])) == (Mount("/a", "/b", True), Mount("/c", "/d", False))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shared": "nfs://fs1/export"}, "shared: tfdeploy does not mount NFS itself yet. Mount it on the hosts"),
        ({"mounts": ["/a:/b", "nfs://fs1/x:/c"]}, "mounts: tfdeploy does not mount NFS itself yet."),
        ({"package": "/code.tar.gz"}, "package: packages are not unpacked yet. Put the code into the image."),
        (
            {"runtime": "process", "mounts": ["/a:/a", "/data:/d:ro"]},
            "mounts: a plain process sees /data where it is, not at /d. Name the same path twice",
        ),
        (
            {"runtime": "process", "outputs": [{"from": "/models"}]},
            "outputs: a plain process has no directory /models of its own. Have it write to $TFDEPLOY_OUTPUTS",
        ),
    ],
)
def test_what_tasks_cannot_be_given_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        mounts.check(job(**keys))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "keys",
    [
        {"mounts": ["/a:/b"], "shared": "/mnt", "outputs": [{"from": "/m"}]},
        {"runtime": "process", "mounts": ["/a:/a:ro"], "outputs": [{}]},
    ],
)
def test_what_they_can_be_given_is_not(keys: dict[str, Any]) -> None:
    mounts.check(job(**keys))

"""The job file: what is read, what is refused, and how it is said."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from tfdeploy import spec
from tfdeploy.errors import InputError

WHOLE = """
name: mnist
image: mnist-trainer:1
command: [--steps, 500]
entrypoint: python -u "my train.py"
tasks:
  ps: {count: 1, cpus: 2, memory: 4GiB}
  worker: {gpus: 1, shm_size: 512m, env: {ROLE: w}, command: [--w], entrypoint: [w], user: "1000:1000"}
  chief: {count: 1}
  evaluator: {count: 1}
  tensorboard: {logdir: /shared/tb}
spares: 1
env: {BATCH: 64, ON: yes, RATE: 010, TIME: 12:30}
secrets: [STORE_TOKEN]
shared: nfs://fs1/export/jobs
package: hdfs://nn:8020/code/trainer.tar.gz
mounts: [/data/mnist:/data:ro, "nfs://fs1/export/mnist:/data2:ro"]
outputs: [{from: /outputs, to: "hdfs://nn:8020/user/me/{job}"}]
legacy_flags: false
policies: {success: chief, restart: exit-code, max_restarts: 3, host_lost: replace, no_spare: fail,
           deadline: 12h, clean: running}
"""


def parse(text: str) -> spec.JobSpec:
    return spec.parse(text, "tfdeploy.yml")


def refusal(text: str) -> str:
    with pytest.raises(InputError) as error:
        parse(text)
    assert error.value.exit_code == 2
    return str(error.value)


def test_every_key_of_the_design_is_read() -> None:
    job = parse(WHOLE)
    assert job.name == "mnist"
    assert job.command == ("--steps", "500")
    assert job.entrypoint == ("python", "-u", "my train.py")
    assert job.tasks.ps == spec.TaskSpec(count=1, cpus=2, memory=4 * 1024**3)
    worker = job.tasks.worker
    assert worker
    assert (worker.count, worker.gpus, worker.shm_size, worker.user) == (None, 1, 512 * 1024**2, "1000:1000")
    assert job.tasks.tensorboard
    assert job.tasks.tensorboard.logdir == "/shared/tb"
    assert job.outputs[0].from_ == "/outputs"
    assert job.policies.deadline == 12 * 3600
    assert spec.parse_mount(job.mounts[0]) == spec.Mount("/data/mnist", "/data", read_only=True)
    assert spec.parse_mount(job.mounts[1]).source == "nfs://fs1/export/mnist"


def test_values_of_env_are_the_text_that_was_written() -> None:
    assert parse(WHOLE).env == {"BATCH": "64", "ON": "yes", "RATE": "010", "TIME": "12:30"}


def test_a_job_survives_json() -> None:
    job = parse(WHOLE)
    assert spec.JobSpec.model_validate(json.loads(json.dumps(spec.dump(job)))) == job


def test_an_empty_file_is_a_job_with_defaults() -> None:
    assert parse("# nothing yet\n") == spec.JobSpec(name="job")


def test_a_job_is_frozen() -> None:
    with pytest.raises(ValidationError):
        parse(WHOLE).name = "other"


def test_a_role_that_is_only_named_is_wanted() -> None:
    assert parse("tasks:\n  chief:\n  worker:\n").tasks.chief == spec.SingleTaskSpec()


def test_master_is_another_word_for_chief() -> None:
    assert parse("tasks: {master: {cpus: 2}}").tasks.chief == spec.SingleTaskSpec(cpus=2)
    assert "tfdeploy.yml:1: tasks: chief and master are the same role" in refusal("tasks: {master: , chief: }")


def test_yaml_anchors_and_merges_work() -> None:
    job = parse("tasks:\n  ps: &small {cpus: 1, memory: 1g}\n  worker:\n    <<: *small\n    cpus: 4\n")
    assert job.tasks.worker == spec.TaskSpec(cpus=4, memory=1024**3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\ncomand: [a]\n", "tfdeploy.yml:2: unknown key comand. Did you mean command?"),
        (
            "name: a\nimage: b\nname: c\n",
            "tfdeploy.yml:3: name stands twice (first in line 1). Remove one of them.",
        ),
        ("tasks:\n\tps: {count: 1}\n", "tfdeploy.yml:2: a tab indents this line. Use spaces."),
        ("name: a\n\ttasks: {}\n", "tfdeploy.yml:2: a tab indents this line. Use spaces."),
        (
            "name: m\ntasks: [ps]\n",
            "tfdeploy.yml:2: tasks is a list where a map belongs. Write it as tasks: {…: …}.",
        ),
        ("tasks:\n  ps:\n    count: -1\n", "tfdeploy.yml:3: count is -1. Give 0 or more."),
        ("tasks:\n  ps: 2\n", "tfdeploy.yml:2: ps is text (2) where a map belongs. Write it as ps: {…: …}."),
        ("tasks:\n  worker: {gpu: 1}\n", "tfdeploy.yml:2: unknown key gpu. Did you mean gpus?"),
        ("tasks:\n  workers: {gpus: 1}\n", "tfdeploy.yml:2: unknown key workers. Did you mean worker?"),
        ("tasks:\n  chief: {count: 2}\n", "tfdeploy.yml:2: count is 2. Give at most 1."),
        ("tasks:\n  master: {count: 2}\n", "tfdeploy.yml:2: count is 2. Give at most 1."),
        ("tasks: {ps: {count: many}}", "tfdeploy.yml:1: count is many. Give a whole number."),
        ("tasks: {ps: {cpus: 0}}", "tfdeploy.yml:1: cpus is 0. Give more than 0."),
        ("tasks: {ps: {cpus: .nan}}", "tfdeploy.yml:1: cpus is .nan. Give a number."),
        (
            "tasks: {ps: {memory: lots}}",
            "tfdeploy.yml:1: memory: 'lots' is not a size. Write it as 4GiB or 512m.",
        ),
        (
            "policies: {deadline: soon}",
            "tfdeploy.yml:1: deadline: 'soon' is not a duration. Write it as 12h, 30m, 90s or 1h30m.",
        ),
        ("policies: {restart: on-fail}", "tfdeploy.yml:1: restart is 'on-fail'. Did you mean on-failure?"),
        ("legacy_flags: maybe", "tfdeploy.yml:1: legacy_flags is maybe. Give true or false."),
        ("spares: 1.5", "tfdeploy.yml:1: spares is 1.5. Give a whole number."),
        ("name: A_b", "tfdeploy.yml:1: name: 'A_b' cannot be a job's name."),
        ("env: [A=1]", "tfdeploy.yml:1: env is a list where a map belongs. Write it as env: {…: …}."),
        ("env:\n  A:\n", 'tfdeploy.yml:2: A has no value. Give one, or write A: "".'),
        ("env:\n  A: [1]\n", "tfdeploy.yml:2: A is a list where text belongs."),
        ("env:\n  TF_CONFIG: x\n", "tfdeploy.yml:2: TF_CONFIG is made by tfdeploy for each task. Remove it."),
        ("command: {a: b}", "tfdeploy.yml:1: command is a map where a list belongs."),
        (
            "command:\n - a\n - '{{ indx }}'\n",
            "tfdeploy.yml:3: command.1: '{{ indx }}': no variable is called indx",
        ),
        ("command:\n - '{{ index'\n", "tfdeploy.yml:2: command.0: '{{ index': the template is broken"),
        ("command: run '{{ index }}'", "tfdeploy.yml:1: command: templates need the form of a list."),
        ("command: {{ index }}", "tfdeploy.yml:1: a list or map stands where a key belongs."),
        ("command: say 'hi", 'tfdeploy.yml:1: command: "say \'hi": No closing quotation.'),
        (
            "outputs: [{to: '/o/{{ nope }}'}]",
            "tfdeploy.yml:1: to: '/o/{{ nope }}': no variable is called nope",
        ),
        (
            "mounts: [/a]",
            "tfdeploy.yml:1: mounts.0: '/a' is not a mount. Write it as /on/the/host:/in/the/task:ro.",
        ),
        ("mounts: [/a/../b:/c]", "tfdeploy.yml:1: mounts.0: '/a/../b' has a .. in it."),
        ("shared: jobs", "tfdeploy.yml:1: shared: 'jobs' is not an absolute path."),
        ("shared: nfs://fs1", "tfdeploy.yml:1: shared: 'nfs://fs1' names no server and path."),
        ("image: -rm", "tfdeploy.yml:1: image: '-rm' is not one plain word."),
        ("- name\n", "tfdeploy.yml:1: a job file is a map of keys."),
        ("just text", "tfdeploy.yml:1: a job file is a map of keys."),
        ("name: [x\n", "tfdeploy.yml:2: not YAML: expected ',' or ']'"),
        ("name: a\n---\nname: b\n", "tfdeploy.yml:3: a second document starts here."),
        ("env: &a {b: *a}\n", "tfdeploy.yml:1: its aliases never end."),
        ("name: a\n\0", "tfdeploy.yml:2: a NUL byte in it."),
    ],
)
def test_a_fault_is_said_with_file_line_and_remedy(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_all_faults_of_a_file_are_said_at_once() -> None:
    lines = refusal("nam: x\ntasks:\n  ps: {count: -1}\nspares: many\n").splitlines()
    assert [line.split(" ")[0] for line in sorted(lines)] == [
        "tfdeploy.yml:1:",
        "tfdeploy.yml:3:",
        "tfdeploy.yml:4:",
    ]


def test_aliases_that_explode_are_refused_quickly() -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "its aliases never end" in refusal("\n".join(["l0: &l0 [x]", *levels]))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * 1024**3),
        ("512m", 512 * 1024**2),
        ("1.5g", 3 * 2**29),
        ("2 TiB", 2**41),
        ("64kb", 65536),
        ("99", 99),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert spec.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("12h", 43200), ("90s", 90), ("1h30m", 5400), ("2d", 172800), ("45", 45)]
)
def test_durations(text: str, seconds: int) -> None:
    assert spec.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "0", "4XB", "1e3", "٣", "g", "1" * 400, True])
def test_what_is_no_size_and_no_duration(text: object) -> None:
    with pytest.raises(spec.Wrong):
        spec.parse_size(text)
    with pytest.raises(spec.Wrong):
        spec.parse_duration(text)


def test_a_job_without_a_name_is_called_like_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "My_Job (2)"
    directory.mkdir()
    (directory / "tfdeploy.yml").write_text("image: a\n")
    assert spec.load(directory / "tfdeploy.yml").name == "my-job-2"


def test_a_missing_job_file_names_init(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nope\.yml: cannot be read: No such file.*tfdeploy init"):
        spec.load(tmp_path / "nope.yml")


def test_a_job_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yml").write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(InputError, match="not UTF-8"):
        spec.load(tmp_path / "job.yml")


def test_without_an_image_the_error_names_init() -> None:
    with pytest.raises(InputError, match=r"no image to run.*tfdeploy init"):
        spec.require_image(parse("name: a"))
    spec.require_image(parse("image: a"))
    spec.require_image(parse("build: ./trainer"))


def test_the_schema_knows_every_key_and_refuses_others() -> None:
    schema = spec.json_schema()
    assert set(schema["properties"]) == {f.alias or name for name, f in spec.JobSpec.model_fields.items()}
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["TaskSpec"]["properties"]["memory"]["anyOf"][0]["type"] == ["string", "integer"]
    assert all("description" in schema["$defs"]["TaskSpec"]["properties"][key] for key in ("cpus", "gpus", "user"))


# --- the reference ---

REFERENCE = Path(__file__).parents[2] / "docs" / "job-file.md"


def test_the_reference_names_every_key() -> None:
    schema = spec.json_schema()
    keys = {*schema["properties"]}
    for model in schema["$defs"].values():
        keys |= {*model["properties"]}
    text = REFERENCE.read_text()
    assert [key for key in sorted(keys) if f"`{key}`" not in text and f"{{{key}:" not in text and key != "to"] == []


def test_the_examples_of_the_reference_are_jobs() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", REFERENCE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        parse(block)

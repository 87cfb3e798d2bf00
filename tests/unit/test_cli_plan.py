"""`tfdeploy plan`, `init` and `schema` as a user meets them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.unit.conftest import Outcome

Cli = Callable[..., Outcome]
GOLDEN = Path(__file__).parent.parent / "golden" / "plan"


@pytest.fixture
def three(here: Path) -> Path:
    (here / "inventory.ini").write_text("".join(f"h{n} ansible_host=10.0.0.{n}\n" for n in (1, 2, 3)))
    return here


# --- what is printed ---


@pytest.mark.parametrize("case", sorted(path.name for path in GOLDEN.iterdir()))
def test_the_plan_is_the_golden_one(case: str, here: Path, cli: Cli) -> None:
    """`UPDATE_GOLDEN=1 pytest` writes the expected files anew; read the difference before you commit it."""
    shutil.copytree(GOLDEN / case, here, dirs_exist_ok=True)
    outcome = cli("plan", "inventory.ini", "-o", "json", *(here / "args").read_text().split())
    assert outcome.code == 0, outcome.err
    expected = GOLDEN / case / "expected.json"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(outcome.out)
    assert outcome.out == expected.read_text()


def test_json_is_the_contract_of_the_design(three: Path, cli: Cli) -> None:
    shown = json.loads(cli("plan", "inventory.ini", "--ps", "1", "--spares", "1", "-o", "json").out)
    assert list(shown) == ["job", "tasks", "spares"]
    keys = ["role", "index", "host", "address", "name", "port", "gpus", "tf_config", "command"]
    assert all(list(task) == keys for task in shown["tasks"])
    assert shown["spares"] == ["h3"]
    assert shown["job"]["name"] == "demo"


def test_yaml_holds_the_same_without_anchors(three: Path, cli: Cli) -> None:
    words = ("plan", "inventory.ini", "--ps", "1", "--chief", "--tensorboard")
    as_yaml = cli(*words, "-o", "yaml").out
    assert yaml.safe_load(as_yaml) == json.loads(cli(*words, "-o", "json").out)
    assert "&id" not in as_yaml


def test_the_table_is_plain_where_there_is_no_terminal(three: Path, cli: Cli) -> None:
    (three / "tfdeploy.yml").write_text(
        "name: m\nimage: i\nshared: /s\ntasks: {ps: {count: 1, memory: 4GiB}, worker: {gpus: 1, cpus: 2.5}}\n"
    )
    outcome = cli("plan", "inventory.ini", "--spares", "1")
    assert outcome.out.splitlines() == [
        "HOST  ROLE    INDEX  PORT  GPUS  CPUS  MEMORY",
        "h1    ps      0      2222  -     -     4GiB",
        "h2    worker  0      2222  0     2.5   -",
        "",
        "2 tasks on 2 hosts: 1 ps, 1 worker; 1 GPU; 2.5 CPUs; 4GiB",
        "1 spare: h3",
    ]
    assert outcome.err == "warning: GPUs of h2 are not known and taken to be there: declare tfdeploy_gpus\n"


def test_a_terminal_gets_the_same_cells(three: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = click.unstyle(cli("plan", "inventory.ini", "--ps", "1").out).splitlines()
    assert lines[0].split() == ["HOST", "ROLE", "INDEX", "PORT", "GPUS", "CPUS", "MEMORY"]
    assert lines[1].split() == ["h1", "ps", "0", "2222", "-", "-", "-"]


def test_task_prints_one_tf_config_and_nothing_else_on_stdout(three: Path, cli: Cli) -> None:
    config = json.loads(cli("plan", "inventory.ini", "--ps", "1", "--task", "worker-1").out)
    assert config["task"] == {"type": "worker", "index": 1}
    assert list(config["cluster"]) == ["ps", "worker"]


def test_tensorboard_has_no_tf_config_to_print(three: Path, cli: Cli) -> None:
    outcome = cli("plan", "inventory.ini", "--tensorboard", "--task", "tensorboard-0")
    assert (outcome.code, outcome.out) == (2, "")


def test_warnings_of_ansible_stay_off_stdout(three: Path, cli: Cli) -> None:
    (three / "inventory.ini").write_text("a\n[b-c]\na\n")
    outcome = cli("plan", "inventory.ini", "-o", "json")
    assert json.loads(outcome.out)["tasks"][0]["host"] == "a"
    assert "group names" in outcome.err


# --- flags ---


def hosts_of(outcome: Outcome) -> list[str]:
    assert outcome.code == 0, outcome.err
    return [task["host"] for task in json.loads(outcome.out)["tasks"]]


def test_a_bare_exc_reads_the_file_exc_here(three: Path, cli: Cli) -> None:
    (three / "exc").write_text("# broken\nh2\n\n")
    assert hosts_of(cli("plan", "inventory.ini", "-o", "json", "-E")) == ["h1", "h3"]


def test_exc_takes_a_file(three: Path, cli: Cli) -> None:
    (three / "bad").write_text("h1\n")
    assert hosts_of(cli("plan", "inventory.ini", "-o", "json", "--exc", "bad")) == ["h2", "h3"]


def test_exclude_takes_a_list_and_may_be_repeated(three: Path, cli: Cli) -> None:
    assert hosts_of(cli("plan", "inventory.ini", "-o", "json", "--exclude", "h1, h2")) == ["h3"]
    assert hosts_of(cli("plan", "inventory.ini", "-o", "json", "--exclude", "h1", "--exclude", "h3")) == ["h2"]


def test_inventories_may_be_given_with_i_several_times(three: Path, cli: Cli) -> None:
    assert hosts_of(cli("plan", "-i", "inventory.ini", "-i", "x,y", "-o", "json")) == [
        "h1",
        "h2",
        "h3",
        "x",
        "y",
    ]


def test_limit_is_ansibles(three: Path, cli: Cli) -> None:
    assert hosts_of(cli("plan", "inventory.ini", "--limit", "all:!h2", "-o", "json")) == ["h1", "h3"]


def test_words_after_two_dashes_are_the_command(three: Path, cli: Cli) -> None:
    outcome = cli("plan", "-i", "inventory.ini", "-o", "json", "--", "--steps", "5", "--", "a b", "{{ index }}")
    assert json.loads(outcome.out)["tasks"][2]["command"] == ["--steps", "5", "--", "a b", "2"]


def test_the_job_file_may_be_elsewhere(three: Path, cli: Cli) -> None:
    (three / "other.yml").write_text("name: other\n")
    assert json.loads(cli("plan", "inventory.ini", "-f", "other.yml", "-o", "json").out)["job"]["name"] == "other"


# --- what is refused ---


@pytest.mark.parametrize(
    ("words", "job", "message"),
    [
        (["nowhere.ini"], "", "nowhere.ini: no such inventory."),
        ([], "", "no inventory given."),
        (
            ["-E", "inventory.ini"],
            "",
            "no inventory given (inventory.ini was taken for the file of -E: write -E last)",
        ),
        (["inventory.ini", "-E"], "", "exc: cannot be read: No such file or directory."),
        (["inventory.ini", "-f", "nope.yml"], "", "nope.yml: cannot be read: No such file or directory."),
        (
            ["inventory.ini"],
            "name: a\ncomand: [b]\n",
            "tfdeploy.yml:2: unknown key comand. Did you mean command?",
        ),
        (["inventory.ini"], "tasks: {ps: {count: -1}}\n", "tfdeploy.yml:1: count is -1. Give 0 or more."),
        (
            ["inventory.ini", "--exclude", "h9"],
            "",
            "--exclude: no host of the inventory is called 'h9'. Take it out",
        ),
        (["inventory.ini", "-N", "4"], "", "-N: 4 hosts asked for, 3 there."),
        (["inventory.ini", "--ps", "4"], "", "tasks.ps: 4 ps asked for, 3 fit; h1: no slot left of 1"),
        (["inventory.ini", "--limit", "x"], "", "--limit x: matches no host of the inventory."),
        (["inventory.ini", "--name", "A b"], "", "--name: name: 'A b' cannot be a job's name."),
        (
            ["inventory.ini", "--task", "ps-0"],
            "",
            "ps-0: no such task. There are worker-0, worker-1, worker-2.",
        ),
        (
            ["inventory.ini", "-o", "json", "--", "{{ x }}"],
            "",
            "the command after --: command.0: '{{ x }}': no variable",
        ),
    ],
)
def test_bad_input_ends_with_2_and_one_line(three: Path, cli: Cli, words: list[str], job: str, message: str) -> None:
    if job:
        (three / "tfdeploy.yml").write_text(job)
    outcome = cli("plan", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {message}")


@pytest.mark.parametrize("words", [["--ps", "-1"], ["--workers", "many"], ["-N", "0"], ["-o", "xml"], ["--nope"]])
def test_a_wrong_flag_ends_with_2(three: Path, cli: Cli, words: list[str]) -> None:
    assert cli("plan", "inventory.ini", *words).code == 2


def test_a_port_out_of_range_names_its_line(three: Path, cli: Cli) -> None:
    (three / "inventory.ini").write_text("a\nb tfdeploy_ports=70000\n")
    outcome = cli("plan", "inventory.ini")
    assert outcome.code == 2
    assert outcome.err.startswith("error: inventory.ini:2: b: tfdeploy_ports is '70000'")


# --- init and schema ---


def test_init_writes_a_job_that_plans(here: Path, cli: Cli) -> None:
    assert cli("init").code == 0
    written = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())
    assert written == ["inventory.ini", "tfdeploy.yml", "trainer/Dockerfile", "trainer/train.py"]
    shown = json.loads(cli("plan", "inventory.ini", "-o", "json").out)
    assert [task["name"] for task in shown["tasks"]] == [
        "chief-0.demo",
        "ps-0.demo",
        "worker-0.demo",
        "worker-1.demo",
    ]
    assert shown["job"]["build"] == "./trainer"


def test_init_makes_the_directory_that_it_is_given(here: Path, cli: Cli) -> None:
    assert cli("init", "new/job").code == 0
    assert (here / "new/job/trainer/train.py").is_file()


def test_init_never_overwrites(here: Path, cli: Cli) -> None:
    (here / "tfdeploy.yml").write_text("mine")
    outcome = cli("init")
    assert outcome.code == 2
    assert "tfdeploy.yml: already there" in outcome.err
    assert [path.name for path in here.iterdir()] == ["tfdeploy.yml"]
    assert (here / "tfdeploy.yml").read_text() == "mine"


def test_every_key_that_init_only_mentions_is_a_real_one(here: Path, cli: Cli) -> None:
    cli("init")
    text = (here / "tfdeploy.yml").read_text()
    keys = {line.lstrip("# ").split(":")[0] for line in text.splitlines() if line.startswith("# ") and ": " in line}
    schema = json.loads(cli("schema").out)
    assert keys & set(schema["properties"]) >= {
        "env",
        "secrets",
        "mounts",
        "outputs",
        "policies",
        "spares",
        "shared",
    }


def test_the_trainer_of_init_is_python(here: Path, cli: Cli) -> None:
    cli("init")
    compile((here / "trainer/train.py").read_text(), "train.py", "exec")


def test_schema_is_json_schema(cli: Cli) -> None:
    schema: Any = json.loads(cli("schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "command" in schema["properties"]

"""What a task is told: TF_CONFIG, flags, and rendered command, env and outputs."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tfdeploy import template, tf_config
from tfdeploy.errors import InputError
from tfdeploy.inventory import Connection, Host, Inventory
from tfdeploy.plan import Plan, Wishes, plan
from tfdeploy.spec import JobSpec

Hosts = Callable[..., Inventory]
Make = Callable[..., Plan]


@pytest.fixture
def make(hosts: Hosts) -> Make:
    """A plan on hosts a, b and c."""

    def planned(ps: int | None = 1, **keys: Any) -> Plan:
        return plan(hosts("a", "b", "c"), JobSpec.model_validate({"name": "mnist"} | keys), Wishes(ps=ps))

    return planned


def config(made: Plan, task_id: str) -> Any:
    """TF_CONFIG as a trainer parses it; text and value must agree."""
    task = made.task(task_id)
    parsed = json.loads(tf_config.tf_config_text(made, task))
    assert parsed == tf_config.tf_config(made, task)
    return parsed


def test_tf_config_has_stable_names_an_integer_index_and_the_environment(make: Make) -> None:
    assert config(make(), "worker-1") == {
        "cluster": {
            "ps": ["ps-0.mnist:2222"],
            "worker": ["worker-0.mnist:2222", "worker-1.mnist:2222"],
        },
        "task": {"type": "worker", "index": 1},
        "environment": "cloud",
    }


def test_without_ps_the_cluster_is_workers_only(make: Make) -> None:
    assert list(config(make(ps=None), "worker-0")["cluster"]) == ["worker"]


def test_an_evaluator_stands_only_in_its_own(make: Make) -> None:
    made = make(tasks={"evaluator": {}, "chief": {}})
    assert config(made, "evaluator-0")["cluster"]["evaluator"] == ["evaluator-0.mnist:2224"]
    assert config(made, "evaluator-0")["task"] == {"type": "evaluator", "index": 0}
    for other in ("chief-0", "ps-0", "worker-0"):
        assert "evaluator" not in config(made, other)["cluster"]


def test_master_is_spelled_as_the_job_says(make: Make) -> None:
    made = make(tasks={"master": {}}, chief_name="master")
    assert config(made, "chief-0")["task"] == {"type": "master", "index": 0}
    assert config(made, "worker-0")["cluster"]["master"] == ["chief-0.mnist:2223"]
    assert "chief" not in config(made, "worker-0")["cluster"]
    assert "chief" in make(tasks={"master": {}}).cluster


def test_tensorboard_is_nowhere_in_tf_config(make: Make) -> None:
    made = make(tasks={"tensorboard": {"logdir": "/shared/tb"}})
    board = made.task("tensorboard-0")
    assert tf_config.tf_config(made, board) is None
    assert tf_config.tf_config_text(made, board) == ""
    assert "TF_CONFIG" not in tf_config.environment(made, board)
    assert "tensorboard" not in config(made, "worker-0")["cluster"]


def test_tensorboard_has_a_command_of_its_own_on_loopback(make: Make) -> None:
    made = make(tasks={"tensorboard": {"logdir": "/shared/tb"}}, command=["--steps", "5"], entrypoint=["python"])
    board = made.task("tensorboard-0")
    assert tf_config.entrypoint(made, board) == ("tensorboard",)
    assert tf_config.command(made, board) == ("--logdir=/shared/tb", "--port=2223", "--host=127.0.0.1")


def test_legacy_flags_are_appended(make: Make) -> None:
    made = make(legacy_flags=True, command=["--steps", "5"])
    assert tf_config.command(made, made.task("worker-1")) == (
        "--steps",
        "5",
        "--ps_hosts=ps-0.mnist:2222",
        "--worker_hosts=worker-0.mnist:2222,worker-1.mnist:2222",
        "--job_name=worker",
        "--task_index=1",
    )


def test_no_command_leaves_the_images_own(make: Make) -> None:
    made = make()
    assert tf_config.command(made, made.tasks[0]) is None
    assert tf_config.entrypoint(made, made.tasks[0]) is None


def test_an_empty_command_is_a_command(make: Make) -> None:
    made = make(command=[])
    assert tf_config.command(made, made.tasks[0]) == ()


def test_a_role_wins_over_the_job(make: Make) -> None:
    made = make(
        command=["job"],
        entrypoint=["job"],
        env={"A": "job", "B": "job"},
        tasks={"ps": {"command": ["role"], "entrypoint": ["role"], "env": {"A": "role"}}},
    )
    ps, worker = made.task("ps-0"), made.task("worker-0")
    assert (tf_config.command(made, ps), tf_config.command(made, worker)) == (("role",), ("job",))
    assert (tf_config.entrypoint(made, ps), tf_config.entrypoint(made, worker)) == (("role",), ("job",))
    assert (tf_config.environment(made, ps)["A"], tf_config.environment(made, ps)["B"]) == ("role", "job")


def test_every_variable_is_filled_in(make: Make) -> None:
    made = make(command=[f"{name}={{{{ {name} }}}}" for name in template.VARIABLES])
    task = made.task("worker-0")
    assert tf_config.command(made, task) == (
        "type=worker",
        "index=0",
        "host=b",
        "address=10.0.0.2",
        "port=2222",
        "name=worker-0.mnist",
        "job=mnist",
        "ps_hosts=ps-0.mnist:2222",
        "worker_hosts=worker-0.mnist:2222,worker-1.mnist:2222",
        f"TF_CONFIG={tf_config.tf_config_text(made, task)}",
    )


def test_env_is_rendered_and_tf_config_is_in_it(make: Make) -> None:
    made = make(env={"ME": "{{ type }}-{{ index + 1 }}"})
    environment = tf_config.environment(made, made.task("worker-1"))
    assert environment["ME"] == "worker-2"
    assert json.loads(environment["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


def test_parameter_server_jobs_fail_fast_and_users_may_say_otherwise(make: Make) -> None:
    made = make()
    assert tf_config.environment(made, made.tasks[0])["GRPC_FAIL_FAST"] == "use_caller"
    alone = make(ps=None)
    assert "GRPC_FAIL_FAST" not in tf_config.environment(alone, alone.tasks[0])
    own = make(env={"GRPC_FAIL_FAST": "mine"})
    assert tf_config.environment(own, own.tasks[0])["GRPC_FAIL_FAST"] == "mine"


def test_names_are_resolved_again_every_second(make: Make) -> None:
    made = make()
    options = tf_config.environment(made, made.tasks[0])["TF_GRPC_DEFAULT_OPTIONS"]
    assert options == "grpc.dns_min_time_between_resolutions_ms=1000"


@pytest.mark.parametrize("to", ["hdfs://nn:8020/{job}/{type}-{index}", "hdfs://nn:8020/{{ job }}/{{ type }}-{index}"])
def test_outputs_take_both_forms_of_a_variable(make: Make, to: str) -> None:
    made = make(outputs=[{"to": to}])
    assert tf_config.outputs(made, made.task("ps-0")) == (("/outputs", "hdfs://nn:8020/mnist/ps-0"),)


def test_what_a_variable_holds_is_never_rendered_again() -> None:
    """Host names come from others; even one that slipped through would stay what it is."""
    evil = Inventory((Host("{{ job }}{job}", Connection(host="{{ 7 * 7 }}")),))
    keys = {"name": "mnist", "command": ["{{ host }}", "{{ address }}"], "outputs": [{"to": "/o/{host}"}]}
    made = plan(evil, JobSpec.model_validate(keys))
    assert tf_config.command(made, made.tasks[0]) == ("{{ job }}{job}", "{{ 7 * 7 }}")
    assert tf_config.outputs(made, made.tasks[0]) == (("/outputs", "/o/{{ job }}{job}"),)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ host.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{{ host.nope }}",
        "{{ index / 0 }}",
        "{{ 'x' + 1 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox_and_says_which_word_failed(make: Make, text: str) -> None:
    made = make(command=["fine", text])
    with pytest.raises(InputError, match=r"^ps-0: command\[1\]: .* cannot be rendered"):
        tf_config.command(made, made.tasks[0])


@pytest.mark.parametrize(
    "text", ["$(id)", "`id`", "${HOME}", "a\nb", "'\"", "{job}", "%s", "\\", "ünïcödé", "-" * 9999]
)
def test_words_that_are_no_template_stay_as_they_are(make: Make, text: str) -> None:
    made = make(command=[text], env={"A": text})
    assert tf_config.command(made, made.tasks[0]) == (text,)
    assert tf_config.environment(made, made.tasks[0])["A"] == text

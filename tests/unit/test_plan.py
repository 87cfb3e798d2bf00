"""Who runs where: the rules of placement, one by one, then laws that hold for every plan."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tfdeploy import spec, tf_config
from tfdeploy.errors import InputError
from tfdeploy.facts import Facts, Gpu
from tfdeploy.inventory import Connection, Host, Inventory
from tfdeploy.plan import Plan, Wishes, plan
from tfdeploy.spec import JobSpec
from tfdeploy.task import Task

Hosts = Callable[..., Inventory]
GIB = 1024**3


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "demo", "image": "trainer:1", "shared": "/mnt/jobs"} | keys)


def placed(made: Plan) -> dict[str, str]:
    return {task.id: task.host for task in made.tasks}


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        plan(*arguments, **options)
    return str(error.value)


# --- the road that most people take ---


def test_the_first_hosts_are_ps_and_the_rest_are_workers(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c"), job(), Wishes(ps=1))
    assert placed(made) == {"ps-0": "a", "worker-0": "b", "worker-1": "c"}
    assert made.warnings == ()


def test_without_ps_every_host_is_a_worker(hosts: Hosts) -> None:
    assert placed(plan(hosts("a", "b"), job())) == {"worker-0": "a", "worker-1": "b"}


def test_there_is_no_chief_unless_someone_asks(hosts: Hosts) -> None:
    assert not plan(hosts("a", "b"), job(), Wishes(ps=1)).by_role["chief"]


def test_chief_evaluator_and_tensorboard_share_the_first_ps_host(hosts: Hosts) -> None:
    made = plan(hosts("a", "b"), job(tasks={"evaluator": {}, "tensorboard": {}}), Wishes(ps=1, chief=True))
    assert placed(made) == {
        "chief-0": "a",
        "ps-0": "a",
        "worker-0": "b",
        "evaluator-0": "a",
        "tensorboard-0": "a",
    }
    assert sorted(task.port for task in made.tasks if task.host == "a") == [2222, 2223, 2224, 2225]


def test_without_ps_the_chief_has_a_host_of_its_own(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c"), job(tasks={"evaluator": {}}), Wishes(chief=True))
    assert placed(made) == {"chief-0": "a", "worker-0": "b", "worker-1": "c", "evaluator-0": "a"}


def test_workers_limits_them(hosts: Hosts) -> None:
    assert placed(plan(hosts("a", "b", "c", "d"), job(), Wishes(ps=1, workers=1))) == {
        "ps-0": "a",
        "worker-0": "b",
    }


def test_flags_win_over_the_job_file(hosts: Hosts) -> None:
    wanted = job(tasks={"ps": {"count": 2, "cpus": 3}, "chief": {}}, command=["a"])
    made = plan(hosts("a", "b", "c"), wanted, Wishes(ps=1, chief=False, name="other", command=("b",)))
    assert placed(made) == {"ps-0": "a", "worker-0": "b", "worker-1": "c"}
    assert made.tasks[0].name == "ps-0.other"
    assert made.job.command == ("b",)
    assert made.job.tasks.ps
    assert made.job.tasks.ps.cpus == 3


def test_a_wrong_flag_is_refused_by_its_name(hosts: Hosts) -> None:
    assert refusal(hosts("a"), job(), Wishes(name="No_Good")).startswith("--name: ")


# --- which hosts ---


def test_num_takes_the_first_hosts(hosts: Hosts) -> None:
    assert placed(plan(hosts("a", "b", "c"), job(), Wishes(num=2))) == {"worker-0": "a", "worker-1": "b"}


def test_more_hosts_than_there_are_is_refused(hosts: Hosts) -> None:
    assert refusal(hosts("a", "b"), job(), Wishes(num=3)) == "-N: 3 hosts asked for, 2 there. Ask for fewer."


def test_excluded_hosts_are_left_out(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c"), job(), Wishes(ps=1, exclude=(("a", "exc:1"),)))
    assert placed(made) == {"ps-0": "b", "worker-0": "c"}


def test_an_excluded_host_that_does_not_exist_is_named_with_its_place(hosts: Hosts) -> None:
    message = refusal(hosts("gpu1", "gpu2"), job(), Wishes(exclude=(("gpu3", "exc:7"),)))
    assert message.startswith("exc:7: no host of the inventory is called 'gpu3'. Did you mean gpu")


def test_a_host_outside_the_limit_may_still_be_excluded(hosts: Hosts) -> None:
    whole = hosts("a", "b")
    limited = replace(whole, hosts=whole.hosts[:1])
    assert placed(plan(limited, job(), Wishes(exclude=(("b", "--exclude"),)))) == {"worker-0": "a"}


def test_excluding_everyone_is_refused(hosts: Hosts) -> None:
    assert "every host is excluded" in refusal(hosts("a"), job(), Wishes(exclude=(("a", "--exclude"),)))


def test_spares_are_the_last_hosts(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c", "d"), job(), Wishes(ps=1, spares=2))
    assert placed(made) == {"ps-0": "a", "worker-0": "b"}
    assert made.spares == ("c", "d")


def test_a_spare_can_do_what_a_worker_needs(hosts: Hosts) -> None:
    two = hosts("a", "b", gpus=1)
    mixed = replace(two, hosts=(*two.hosts, replace(two.hosts[0], name="c", gpus=0)))
    made = plan(mixed, job(tasks={"worker": {"gpus": 1}}), Wishes(spares=1))
    assert (made.spares, placed(made)) == (("b",), {"worker-0": "a"})


def test_too_many_spares_are_refused(hosts: Hosts) -> None:
    assert refusal(hosts("a", "b"), job(), Wishes(ps=1, spares=2)).startswith("spares: 2 spares asked for, 1 host left")


# --- groups pin ---


def test_groups_named_like_roles_pin_both_ways(hosts: Hosts) -> None:
    groups = {"chief": ("d",), "ps": ("c",), "evaluator": ("d",)}
    made = plan(hosts("a", "b", "c", "d", groups=groups), job(tasks={"evaluator": {}}), Wishes(ps=1, chief=True))
    assert placed(made) == {
        "chief-0": "d",
        "ps-0": "c",
        "worker-0": "a",
        "worker-1": "b",
        "evaluator-0": "d",
    }


def test_a_ps_group_alone_asks_for_one_ps_on_each_of_its_hosts(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c", groups={"ps": ("b", "c")}), job())
    assert placed(made) == {"ps-0": "b", "ps-1": "c", "worker-0": "a"}


def test_a_worker_group_leaves_the_others_to_ps(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c", groups={"worker": ("a", "b")}), job(), Wishes(ps=1))
    assert placed(made) == {"ps-0": "c", "worker-0": "a", "worker-1": "b"}


def test_a_group_whose_role_nobody_asks_for_is_a_warning(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", groups={"chief": ("a",)}), job())
    assert placed(made) == {"worker-0": "a", "worker-1": "b"}
    assert any("group chief" in warning for warning in made.warnings)


def test_a_pinned_role_whose_hosts_are_left_out_is_refused(hosts: Hosts) -> None:
    message = refusal(hosts("a", "b", groups={"ps": ("b",)}), job(), Wishes(ps=1, num=1))
    assert message.startswith("group ps: it pins ps to b, left out by")


# --- several tasks on one host ---


def test_slots_let_one_host_carry_a_whole_job(hosts: Hosts) -> None:
    made = plan(hosts("a", slots=3), job(), Wishes(ps=1))
    assert placed(made) == {"ps-0": "a", "worker-0": "a", "worker-1": "a"}
    assert [task.port for task in made.tasks] == [2222, 2223, 2224]


def test_ps_spread_and_workers_fill_host_by_host_ps_hosts_last(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c", slots=2), job(), Wishes(ps=2))
    assert [task.host for task in made.by_role["ps"]] == ["a", "b"]
    assert [task.host for task in made.by_role["worker"]] == ["c", "c", "a", "b"]


def test_more_ps_than_slots_names_every_host(hosts: Hosts) -> None:
    message = refusal(hosts("a", "b"), job(), Wishes(ps=3))
    assert message.startswith("tasks.ps: 3 ps asked for, 2 fit; a: no slot left of 1 (tfdeploy_slots); b: no slot")


def test_ps_that_leave_no_host_for_a_worker_are_refused(hosts: Hosts) -> None:
    assert refusal(hosts("a"), job(), Wishes(ps=1)).startswith("tasks.worker: no host has room for worker-0; a: ")


def test_two_names_of_one_machine_share_its_ports() -> None:
    twins = Inventory(tuple(Host(name, Connection(host="10.0.0.1")) for name in ("a", "b")))
    made = plan(twins, job())
    assert [task.port for task in made.tasks] == [2222, 2223]
    assert any("same address 10.0.0.1" in warning for warning in made.warnings)


# --- GPUs, CPUs, memory, ports ---


def test_declared_gpus_are_given_by_index_and_never_twice(hosts: Hosts) -> None:
    made = plan(hosts("a", gpus=4, slots=2), job(tasks={"worker": {"gpus": 2}}))
    assert [task.gpus for task in made.tasks] == [("0", "1"), ("2", "3")]


def test_gpu_and_cpu_tasks_mix(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", gpus=("GPU-x",)), job(tasks={"worker": {"gpus": 1}}), Wishes(ps=1))
    assert [(task.id, task.gpus) for task in made.tasks] == [("ps-0", ()), ("worker-0", ("GPU-x",))]


def test_free_gpus_are_taken_by_uuid(hosts: Hosts) -> None:
    gpus = (Gpu("GPU-0", in_use=True), Gpu("GPU-1"), Gpu("MIG-2"))
    facts = {"a": Facts(cpus=8, memory=64 * GIB, gpus=gpus)}
    made = plan(hosts("a", slots=4), job(tasks={"worker": {"gpus": 1}}), facts=facts)
    assert [task.gpus for task in made.tasks] == [("GPU-1",), ("MIG-2",)]


@pytest.mark.parametrize(("declared", "taken"), [(1, ["GPU-1"]), (("0", "2"), ["GPU-2"]), (("GPU-2",), ["GPU-2"])])
def test_what_the_inventory_declares_limits_what_facts_show(hosts: Hosts, declared: Any, taken: list[str]) -> None:
    gpus = (Gpu("GPU-0", in_use=True), Gpu("GPU-1"), Gpu("GPU-2"))
    facts = {"a": Facts(cpus=8, memory=GIB, gpus=gpus)}
    made = plan(hosts("a", slots=9, gpus=declared), job(tasks={"worker": {"gpus": 1}}), facts=facts)
    assert [gpu for task in made.tasks for gpu in task.gpus] == taken


def test_a_declared_gpu_that_is_not_there_is_refused(hosts: Hosts) -> None:
    facts = {"a": Facts(cpus=1, memory=GIB, gpus=(Gpu("GPU-0"),))}
    message = refusal(hosts("a", gpus=("GPU-9",)), job(), facts=facts)
    assert message == "a: tfdeploy_gpus names GPU-9, the host has 1 GPU. Correct the inventory."


def test_gpus_that_nobody_declared_are_assumed_and_said(hosts: Hosts) -> None:
    made = plan(hosts("a", slots=2), job(tasks={"worker": {"gpus": 1}}))
    assert [task.gpus for task in made.tasks] == [("0",), ("1",)]
    assert any("GPUs of a are not known" in warning for warning in made.warnings)


def test_hosts_of_different_sizes_take_what_fits(hosts: Hosts) -> None:
    facts = {
        "small": Facts(cpus=2, memory=4 * GIB),
        "big": Facts(cpus=64, memory=256 * GIB, gpus=(Gpu("GPU-a"), Gpu("GPU-b"))),
    }
    wanted = job(tasks={"ps": {"count": 1, "memory": "2GiB"}, "worker": {"gpus": 1, "cpus": 8}})
    made = plan(hosts("small", "big", slots=4), wanted, facts=facts)
    assert placed(made) == {"ps-0": "small", "worker-0": "big", "worker-1": "big"}


def test_a_host_that_fits_no_worker_is_left_idle_with_a_warning(hosts: Hosts) -> None:
    two = hosts("a", "b", gpus=1)
    mixed = replace(two, hosts=(two.hosts[0], replace(two.hosts[1], gpus=0)))
    made = plan(mixed, job(tasks={"worker": {"gpus": 1}}))
    assert placed(made) == {"worker-0": "a"}
    assert "no worker fits on b (1 GPU needed, 0 free)" in made.warnings


@pytest.mark.parametrize(
    ("needs", "shortage"),
    [
        ({"gpus": 2}, "a: 2 GPUs needed, 1 free"),
        ({"cpus": 4.5}, "a: 4.5 CPUs needed, 4 left"),
        ({"memory": "9GiB"}, "a: 9GiB of memory needed, 8GiB left"),
    ],
)
def test_a_shortage_names_the_host_and_what_is_missing(hosts: Hosts, needs: Any, shortage: str) -> None:
    facts = {"a": Facts(cpus=4, memory=8 * GIB, gpus=(Gpu("GPU-0"),))}
    assert shortage in refusal(hosts("a"), job(tasks={"worker": {"count": 1, **needs}}), facts=facts)


def test_totals_of_a_host_are_not_exceeded_by_the_sum_of_its_tasks(hosts: Hosts) -> None:
    facts = {"a": Facts(cpus=4, memory=10 * GIB)}
    made = plan(hosts("a", slots=9), job(tasks={"worker": {"cpus": 1, "memory": "4g"}}), facts=facts)
    assert len(made.tasks) == 2


def test_ports_that_listen_or_are_held_are_skipped(hosts: Hosts) -> None:
    facts = {"a": Facts(cpus=1, memory=GIB, listening=frozenset({2222}), held=frozenset({2223}))}
    assert plan(hosts("a"), job(), facts=facts).tasks[0].port == 2224


def test_a_full_range_of_ports_is_said(hosts: Hosts) -> None:
    message = refusal(hosts("a", slots=9, ports=((3000, 3001),)), job(), Wishes(workers=3))
    assert "a: no port left in 3000-3001 (tfdeploy_ports)" in message


def test_the_port_of_sshd_is_never_given_away() -> None:
    host = Host("a", Connection(host="10.0.0.1", port=2222))
    assert plan(Inventory((host,)), job()).tasks[0].port == 2223


# --- addresses ---


def test_the_training_address_wins_then_facts_then_where_ssh_goes() -> None:
    facts = Facts(cpus=1, memory=GIB, addresses=("127.0.0.1", "10.9.0.1"))
    by_name = Host("a", Connection(host="a.example"))
    declared = replace(by_name, address="10.1.0.1")
    assert plan(Inventory((declared,)), job(), facts={"a": facts}).tasks[0].address == "10.1.0.1"
    assert plan(Inventory((by_name,)), job(), facts={"a": facts}).tasks[0].address == "10.9.0.1"
    assert plan(Inventory((by_name,)), job()).tasks[0].address == "a.example"


def test_loopback_between_hosts_is_refused_where_it_was_declared(hosts: Hosts) -> None:
    assert "a: tfdeploy_address 127.0.0.1 is the host itself" in refusal(hosts("a", "b", address="127.0.0.1"), job())


def test_loopback_on_a_single_host_is_fine(hosts: Hosts) -> None:
    assert plan(hosts("a", address="127.0.0.1"), job()).tasks[0].address == "127.0.0.1"


# --- warnings and refusals of the whole ---


def test_several_hosts_without_shared_are_a_warning(hosts: Hosts) -> None:
    bare = JobSpec(name="demo", image="x")
    assert any("no shared" in warning for warning in plan(hosts("a", "b"), bare).warnings)
    assert plan(hosts("a"), bare).warnings == ()


def test_a_missing_image_is_a_warning_that_names_init(hosts: Hosts) -> None:
    (warning,) = plan(hosts("a"), JobSpec(name="demo")).warnings
    assert "no image" in warning
    assert "tfdeploy init" in warning


def test_success_of_a_role_that_is_not_there_is_refused(hosts: Hosts) -> None:
    message = refusal(hosts("a"), job(policies={"success": "chief"}))
    assert message == "policies.success: success is chief, but the job has no chief. Change one."


def test_a_job_that_trains_nothing_is_refused(hosts: Hosts) -> None:
    assert "nothing trains" in refusal(hosts("a"), job(), Wishes(ps=1, workers=0))


def test_a_task_is_found_by_id_or_name(hosts: Hosts) -> None:
    made = plan(hosts("a", "b"), job())
    assert made.task("worker-1") is made.task("worker-1.demo")
    with pytest.raises(InputError, match=r"^workr-1: no such task. Did you mean worker-1\?"):
        made.task("workr-1")


# --- laws ---

gpu_declarations = st.one_of(st.none(), st.integers(0, 4), st.just(("0", "GPU-1")))
needs = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(0, 2),
        "cpus": st.sampled_from([0.5, 1, 3]),
        "memory": st.sampled_from([GIB, 3 * GIB]),
    },
)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    made = tuple(
        Host(
            f"h{number}",
            Connection(host=f"10.0.0.{draw(st.integers(1, 12))}"),
            gpus=draw(gpu_declarations),
            slots=draw(st.integers(1, 3)),
            ports=((2222, 2222 + draw(st.integers(0, 5))),),
        )
        for number in range(draw(st.integers(1, 8)))
    )
    names = [host.name for host in made]
    groups = draw(
        st.dictionaries(
            st.sampled_from(["chief", "ps", "worker", "evaluator", "tensorboard"]),
            st.lists(st.sampled_from(names), unique=True).map(tuple),
            max_size=2,
        )
    )
    return Inventory(made, groups)


@st.composite
def all_facts(draw: st.DrawFn, inventory: Inventory) -> dict[str, Facts]:
    known = [host.name for host in inventory.hosts if draw(st.booleans())]
    return {
        name: Facts(
            cpus=draw(st.sampled_from([1, 2, 8])),
            memory=draw(st.sampled_from([2 * GIB, 8 * GIB])),
            gpus=tuple(Gpu(f"GPU-{number}", in_use=draw(st.booleans())) for number in range(3)),
            listening=draw(st.frozensets(st.integers(2222, 2224))),
            held=draw(st.frozensets(st.integers(2222, 2224))),
        )
        for name in known
    }


@st.composite
def situations(draw: st.DrawFn) -> tuple[Inventory, JobSpec, Wishes, dict[str, Facts]]:
    inventory = draw(inventories())
    roles = draw(st.sets(st.sampled_from(["chief", "evaluator", "tensorboard"])))
    tasks = {role: draw(needs) for role in (*sorted(roles), "ps", "worker")}
    wishes = Wishes(
        ps=draw(st.one_of(st.none(), st.integers(0, 3))),
        workers=draw(st.one_of(st.none(), st.integers(0, 6))),
        spares=draw(st.integers(0, 1)),
    )
    return inventory, job(tasks=tasks), wishes, draw(all_facts(inventory))


def made_or_refused(situation: tuple[Inventory, JobSpec, Wishes, dict[str, Facts]]) -> Plan | None:
    try:
        made = plan(*situation)
    except InputError:
        event("refused")
        return None
    event("planned")
    return made


laws = settings(max_examples=120, deadline=None)


@laws
@given(situations())
def test_no_port_is_given_twice_or_was_taken(situation: Any) -> None:
    if made := made_or_refused(situation):
        inventory, facts = situation[0], situation[3]
        by_name = {host.name: host for host in inventory.hosts}
        assert max(Counter((task.address, task.port) for task in made.tasks).values()) == 1
        assert max(Counter((task.host, task.port) for task in made.tasks).values()) == 1
        for task in made.tasks:
            assert any(low <= task.port <= high for low, high in by_name[task.host].ports)
            if known := facts.get(task.host):
                assert task.port not in known.listening | known.held


@laws
@given(situations())
def test_indices_are_dense_from_zero(situation: Any) -> None:
    if made := made_or_refused(situation):
        for tasks in made.by_role.values():
            assert [task.index for task in tasks] == list(range(len(tasks)))


@laws
@given(situations())
def test_every_task_sees_the_same_cluster_an_evaluator_itself_too(situation: Any) -> None:
    if made := made_or_refused(situation):
        members = [task for task in made.tasks if task.role != "tensorboard"]
        for task in members:
            config = tf_config.tf_config(made, task)
            assert config
            seen = dict(config["cluster"])
            own = seen.pop("evaluator", None)
            assert seen == made.cluster
            assert (own is not None) == (task.role == "evaluator")
            assert (own or seen[task.role])[task.index] == task.endpoint


@laws
@given(situations())
def test_a_plan_survives_json(situation: Any) -> None:
    if made := made_or_refused(situation):
        again = Plan.from_json(made.to_json())
        assert again == made
        assert again.cluster == made.cluster


@laws
@given(situations())
def test_no_host_carries_more_than_it_has(situation: Any) -> None:
    if made := made_or_refused(situation):
        inventory, facts = situation[0], situation[3]
        for host in inventory.hosts:
            here = [task for task in made.tasks if task.host == host.name]
            _check_capacity(made, host, facts.get(host.name), here)
            assert host.name not in made.spares or not here


def _check_capacity(made: Plan, host: Host, facts: Facts | None, here: list[Task]) -> None:
    gpus = [gpu for task in here for gpu in task.gpus]
    assert len(set(gpus)) == len(gpus)
    assert sum(task.role in ("ps", "worker") for task in here) <= host.slots
    if isinstance(host.gpus, int):
        assert len(gpus) <= host.gpus
    if facts:
        assert sum(made.spec_of(task).cpus or 0 for task in here) <= facts.cpus
        assert sum(made.spec_of(task).memory or 0 for task in here) <= facts.memory
        assert set(gpus) <= {gpu.uuid for gpu in facts.gpus if not gpu.in_use}


@laws
@given(situations())
def test_the_same_input_gives_the_same_plan(situation: Any) -> None:
    assert made_or_refused(situation) == made_or_refused(situation)


def test_ten_thousand_tasks_share_one_cluster(hosts: Hosts) -> None:
    made = plan(hosts(*(f"h{n}" for n in range(5000)), slots=2), spec.JobSpec(name="big"), Wishes(ps=100))
    assert len(made.tasks) == 10_000
    first, last = (tf_config.tf_config(made, made.tasks[i]) for i in (0, -1))
    assert first
    assert last
    assert first["cluster"] is last["cluster"]

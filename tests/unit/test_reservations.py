"""What jobs hold on their hosts, and what that leaves for others; and what `up` refuses before it enters a host."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.launches import launch
from tfdeploy import facts, host_scripts, up
from tfdeploy.errors import InputError, NoRoom, TfdeployError
from tfdeploy.facts import Engine, Facts, Gpu, Image, JobTrace, Reservation
from tfdeploy.inventory import Inventory
from tfdeploy.plan import Plan, Wishes, plan
from tfdeploy.spec import JobSpec
from tfdeploy.up import Hosts, Order

Make = Callable[..., Inventory]
GIB = 1 << 30
words = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "demo", "image": "trainer:1", "shared": "/mnt/jobs"} | keys)


def told(**sections: str) -> Facts:
    return facts.parse("".join(f"\x1e{name}\n{body}\n" for name, body in sections.items()), before=0, after=0)


# --- as they are kept ---


@settings(max_examples=100, deadline=None)
@given(
    words,
    words,
    st.integers(1, 65535),
    st.integers(0, 1),
    st.integers(0, 1000).map(lambda n: n / 4),
    st.integers(0, 1 << 45),
    st.lists(words.filter(lambda text: text != "-"), max_size=4).map(tuple),
)
def test_a_reservation_is_a_line(
    name: str, task: str, port: int, slot: int, cpus: float, memory: int, gpus: tuple[str, ...]
) -> None:
    made = Reservation(name, task, port, slot, cpus, memory, gpus)
    assert Reservation.parse(name, made.line()) == made


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_line_is_a_reservation_or_none(text: str) -> None:
    found = Reservation.parse("demo", text)
    assert found is None or 0 < found.port < 65536


@pytest.mark.parametrize("line", ["", "worker-0", "worker-0 0 1 0 0 -", "worker-0 65536 1 0 0 -", "worker-0 x 1 0 0 -"])
def test_a_line_that_is_none_reserves_nothing(line: str) -> None:
    assert Reservation.parse("demo", line) is None


def test_jobs_stand_before_their_reservations() -> None:
    host = told(
        jobs="job a g1 running\nworker-0 2222 1 2 0 -\nps-0 2223 1 0 5 G1,G2\njob b g2 over\nworker-0 2224 1 0 0 -"
    )
    assert host.jobs == (JobTrace("a", "g1", False), JobTrace("b", "g2", True))
    assert host.reserved == (
        Reservation("a", "worker-0", 2222, 1, 2.0),
        Reservation("a", "ps-0", 2223, 1, 0.0, 5, ("G1", "G2")),
    )


def test_a_port_of_a_container_is_held_only_where_the_host_does_not_know_its_job() -> None:
    rows = "running\tx\tknown\t2222\nrunning\ty\tstranger\t2223\nexited\tz\tstranger\t99999"
    assert told(jobs="job known g1 over", containers=rows).held == {2223}


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_for_jobs_gives_facts(text: str) -> None:
    host = told(jobs=text)
    assert {each.job for each in host.reserved} <= {each.name for each in host.jobs}


@pytest.mark.parametrize(
    ("said", "image"),
    [
        ("sha256:abc 1000:50", Image("sha256:abc", "1000:50")),
        ("sha256:abc", Image("sha256:abc")),
        ("sha256:abc ", Image("sha256:abc")),
        ("", None),
        ("Error: No such image", None),
    ],
)
def test_the_image_is_known_with_its_user(said: str, image: Image | None) -> None:
    assert told(image=said).image == image


# --- what they leave ---


def having(*reserved: Reservation, **values: Any) -> Facts:
    return replace(Facts(cpus=8, memory=16 * GIB, addresses=("10.0.0.1",), reserved=reserved), **values)


def planned(hosts: Make, host: Facts, wishes: Wishes | None = None, slots: int = 2, **keys: Any) -> Plan:
    return plan(hosts("a", slots=slots), job(**{"tasks": {"worker": {"count": 1}}} | keys), wishes, {"a": host})


def worker(**needs: Any) -> dict[str, Any]:
    return {"worker": {"count": 1} | needs}


OTHER = Reservation("other", "worker-0", 2222, 1, 6, 12 * GIB, ("G0",))
OWN = replace(OTHER, job="demo")
GPUS = (Gpu("G0"), Gpu("G1"))


@pytest.mark.parametrize(
    ("tasks", "slots", "message"),
    [
        (worker(), 1, "no slot left of 1 (tfdeploy_slots); other runs there"),
        (worker(cpus=3), 2, "3 CPUs needed, 2 left"),
        (worker(memory="5GiB"), 2, "5GiB of memory needed, 4GiB left"),
        (worker(gpus=2), 2, "2 GPUs needed, 1 free"),
    ],
)
def test_what_another_job_holds_is_not_there(hosts: Make, tasks: dict[str, Any], slots: int, message: str) -> None:
    with pytest.raises(NoRoom) as error:
        planned(hosts, having(OTHER, gpus=GPUS), slots=slots, tasks=tasks)
    assert message in str(error.value)


@pytest.mark.parametrize("tasks", [worker(), worker(cpus=8), worker(memory="16GiB"), worker(gpus=2)])
def test_what_the_job_itself_holds_is_there_when_it_is_planned_anew(hosts: Make, tasks: dict[str, Any]) -> None:
    host = having(OWN, gpus=(Gpu("G0", in_use=True), Gpu("G1")), listening=frozenset({2222}))
    made = planned(hosts, host, slots=1, tasks=tasks)
    assert made.tasks[0].port == 2222


def test_a_gpu_that_the_job_itself_computes_on_is_given_to_it_again(hosts: Make) -> None:
    """Else the same `up` again would not find the job running, but no room."""
    host = having(OWN, gpus=(Gpu("G0", in_use=True), Gpu("G1", in_use=True)))
    assert planned(hosts, host, tasks=worker(gpus=1)).tasks[0].gpus == ("G0",)
    with pytest.raises(NoRoom):
        planned(hosts, host, tasks=worker(gpus=2))


def test_ports_of_other_jobs_are_passed_over_though_nobody_listens_yet(hosts: Make) -> None:
    assert planned(hosts, having(OTHER)).tasks[0].port == 2223


def test_gpus_of_other_jobs_are_passed_over_though_nobody_computes_yet(hosts: Make) -> None:
    assert planned(hosts, having(OTHER, gpus=GPUS), tasks=worker(gpus=1)).tasks[0].gpus == ("G1",)


@pytest.mark.parametrize("busy", [False, True])
def test_a_declared_number_of_gpus_counts_those_of_other_jobs(hosts: Make, busy: bool) -> None:
    host = having(OTHER, gpus=(Gpu("G0", in_use=busy), Gpu("G1"), Gpu("G2")))
    one = hosts("a", gpus=2, slots=2)
    assert plan(one, job(tasks=worker(gpus=1)), None, {"a": host}).tasks[0].gpus == ("G1",)
    with pytest.raises(NoRoom):
        plan(one, job(tasks=worker(gpus=2)), None, {"a": host})


def test_a_job_that_is_over_leaves_everything(hosts: Make) -> None:
    host = told(jobs="job other g1 over\nworker-0 2222 1 1 0 -", cpus="8", memory="MemTotal: 1000000 kB")
    assert planned(hosts, host, slots=1).tasks[0].port == 2222


def test_who_takes_a_slot_is_the_same_when_it_is_planned_and_when_it_is_kept() -> None:
    with_ps = launch("a", "b", wishes=Wishes(ps=1, workers=1, chief=True, evaluator=True, tensorboard=True))
    slots = {task.id: host_scripts.reservation(with_ps, task).slot for task in with_ps.plan.tasks}
    assert slots == {"chief-0": 0, "ps-0": 1, "worker-0": 1, "evaluator-0": 0, "tensorboard-0": 0}
    without = launch("a", "b", wishes=Wishes(workers=1, chief=True))
    assert [host_scripts.reservation(without, task).slot for task in without.plan.tasks] == [1, 1]


# --- what `up` refuses before it enters a host ---


def order(hosts: Make, wishes: Wishes | None = None, **keys: Any) -> Order:
    return Order(hosts("a", "b"), JobSpec.model_validate({"name": "demo"} | keys), wishes or Wishes())


def test_a_job_that_can_be_launched_is_planned(hosts: Make) -> None:
    assert [task.id for task in up.check(order(hosts, Wishes(ps=1), image="x")).tasks] == ["ps-0", "worker-0"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "no image to run. Give --image"),
        ({"image": "x", "shared": "nfs://fs1/a"}, "shared: tfdeploy does not mount NFS"),
        ({"image": "x", "package": "/a.tgz"}, "package: packages are not unpacked yet"),
        ({"image": "x", "secrets": ["NOT_SET_1", "NOT_SET_2"]}, "secrets: NOT_SET_1, NOT_SET_2 not set"),
        ({"runtime": "process"}, "worker-0: nothing to run"),
        ({"image": "x", "env": {"A": "{{ ''.__class__ }}"}}, "worker-0: env.A: "),
        ({"image": "x", "command": ["{{ ''.__class__ }}"]}, "worker-0: command[0]: "),
        ({"runtime": "process", "command": ["a"], "env": {"A": "{{ 1 // 0 }}"}}, "worker-0: env.A: "),
        ({"image": "x", "policies": {"success": "chief"}}, "policies.success: success is chief, but"),
        ({"image": "x", "tasks": {"worker": {"count": 3}}}, "tasks.worker: 3 workers asked for"),
    ],
)
def test_what_cannot_be_launched_is_refused(hosts: Make, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        up.check(order(hosts, **keys))
    assert str(error.value).startswith(message)


def test_a_process_needs_no_image(hosts: Make) -> None:
    assert up.check(order(hosts, runtime="process", command=["true"])).job.image is None


def test_flags_are_heard_before_anything_is_refused(hosts: Make) -> None:
    assert up.check(order(hosts, Wishes(image="x"))).job.image == "x"


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "1\n")
    monkeypatch.setenv("B", "")
    assert up.given_secrets(job(secrets=["A", "B"])) == {"A": "1\n", "B": ""}


def test_an_error_about_secrets_names_them_and_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "needle")
    with pytest.raises(InputError) as error:
        up.given_secrets(job(secrets=["A", "NOT_SET"]))
    assert str(error.value) == "secrets: NOT_SET not set in the environment. Export it before `up`."


# --- up --local ---


@pytest.mark.parametrize(
    ("tasks", "wishes", "workers"),
    [
        ({}, Wishes(), 1),
        ({}, Wishes(workers=3), 3),
        ({"worker": {"count": 2}}, Wishes(), 2),
        ({"worker": {"count": 2}}, Wishes(workers=0), 0),
        ({"worker": {"cpus": 1}}, Wishes(), 1),
    ],
)
def test_locally_one_worker_runs_unless_more_are_asked_for(tasks: dict[str, Any], wishes: Wishes, workers: int) -> None:
    made, asked = up.local_job(JobSpec.model_validate({"name": "demo", "tasks": tasks}), wishes)
    assert (made.runtime, asked.workers) == ("process", workers)


def test_locally_peers_are_called_by_their_address_and_have_ports_of_their_own() -> None:
    made, wishes = up.local_job(JobSpec.model_validate({"name": "demo", "command": ["true"]}), Wishes(ps=2, workers=3))
    planned = up.check(Order(up.local_inventory(), made, wishes, local=True))
    assert {task.name for task in planned.tasks} == {"127.0.0.1"}
    assert len({task.port for task in planned.tasks}) == 5


# --- what hosts need ---


def asked(hosts: Make, found: Mapping[str, Facts], **keys: Any) -> Hosts:
    return Hosts(order(hosts, **keys), {}, None, dict(found))


def test_plain_processes_need_python_and_nothing_else(hosts: Make) -> None:
    good, bare = Facts(1, 1, python="python3.11"), Facts(1, 1)
    assert up.needs(asked(hosts, {"a": good}, runtime="process", command=["x"])) == {}
    with pytest.raises(TfdeployError, match=r"b: no Python, which keeps its tasks\. `tfdeploy provision` installs it"):
        up.needs(asked(hosts, {"a": good, "b": bare}, runtime="process", command=["x"]))


def test_a_host_without_an_engine_must_be_provisioned(hosts: Make) -> None:
    assert list(up.needs(asked(hosts, {"a": Facts(1, 1)}, image="x"))) == ["a"]


def test_a_host_that_another_version_provisioned_well_is_left_alone(hosts: Make) -> None:
    good = Facts(1, 1, engine=Engine("28.0.0"), python="python3.11", time_service="chrony")
    old = replace(good, converged="another digest", tools=frozenset({"ip", "rsync", "zstd"}))
    assert up.needs(asked(hosts, {"a": old}, image="x")) == {}

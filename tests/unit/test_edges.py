"""Which hosts must reach which, and whether they do: tried for real, on this machine's loopback."""

import contextlib
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tfdeploy import edges
from tfdeploy.edges import Edge
from tfdeploy.inventory import Inventory
from tfdeploy.plan import Plan, Wishes, plan
from tfdeploy.remote import Cause, HostUnreachable, Output
from tfdeploy.spec import JobSpec
from tfdeploy.task import Task

Hosts = Callable[..., Inventory]
JOB = JobSpec(name="demo", image="trainer:1")


def pairs(made: Plan) -> set[tuple[str, str]]:
    return {(edge.source, edge.target.id) for edge in edges.edges(made)}


# --- which edges ---


def test_workers_reach_every_ps(hosts: Hosts) -> None:
    made = plan(hosts("a", "b", "c", "d"), JOB, Wishes(ps=2))
    assert pairs(made) == {("c", "ps-0"), ("c", "ps-1"), ("d", "ps-0"), ("d", "ps-1")}


def test_a_chief_reaches_all_and_workers_reach_it(hosts: Hosts) -> None:
    inventory = hosts("a", "b", "c", groups={"chief": ("a",), "ps": ("b",)})
    assert pairs(plan(inventory, JOB, Wishes(ps=1, chief=True))) == {
        ("a", "ps-0"),
        ("a", "worker-0"),
        ("c", "ps-0"),
        ("c", "chief-0"),
    }


def test_without_ps_workers_make_a_ring_and_all_reach_the_first(hosts: Hosts) -> None:
    assert pairs(plan(hosts("a", "b", "c", "d"), JOB)) == {
        ("a", "worker-1"),
        ("b", "worker-2"),
        ("c", "worker-3"),
        ("d", "worker-0"),
        ("b", "worker-0"),
        ("c", "worker-0"),
    }


def test_without_ps_a_chief_and_its_workers_reach_each_other(hosts: Hosts) -> None:
    assert pairs(plan(hosts("a", "b", "c"), JOB, Wishes(chief=True))) == {
        ("a", "worker-0"),
        ("a", "worker-1"),
        ("b", "chief-0"),
        ("c", "chief-0"),
        ("b", "worker-1"),
        ("c", "worker-0"),
    }


def test_two_workers_reach_each_other_once(hosts: Hosts) -> None:
    found = edges.edges(plan(hosts("a", "b"), JOB))
    assert [(edge.source, edge.target.id) for edge in found] == [("a", "worker-1"), ("b", "worker-0")]


@pytest.mark.parametrize("wishes", [Wishes(), Wishes(ps=1, workers=2, chief=True)])
def test_one_host_reaches_itself_without_being_tried(hosts: Hosts, wishes: Wishes) -> None:
    assert edges.edges(plan(hosts("a", slots=4), JOB, wishes)) == ()


def test_several_tasks_of_a_host_try_each_target_once(hosts: Hosts) -> None:
    found = edges.edges(plan(hosts("a", "b", slots=3), JOB, Wishes(ps=3, workers=3)))
    assert len(found) == len(set(found))
    assert {edge.source for edge in found} <= {"a", "b"}
    assert all(edge.source != edge.target.host for edge in found)


def test_evaluator_and_tensorboard_need_no_edge(hosts: Hosts) -> None:
    with_both = plan(hosts("a", "b"), JOB, Wishes(ps=1, evaluator=True, tensorboard=True))
    assert pairs(with_both) == pairs(plan(hosts("a", "b"), JOB, Wishes(ps=1)))


def test_an_edge_is_named_by_task_host_and_address() -> None:
    target = Task("ps", 0, "gpu1", "10.0.0.1", "ps-0.demo", 2222)
    assert Edge("gpu2", target).name == "reaches ps-0 (gpu1, 10.0.0.1:2222)"


# --- trying them ---


@dataclass
class Shell:
    """Stands in for an entered host: scripts run under this machine's sh."""

    noise: str = ""
    hung: list[str] = field(default_factory=list)

    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        assert not root
        try:
            done = subprocess.run(
                ["sh", "-s"],
                input=self.noise + script,
                capture_output=True,
                text=True,
                timeout=edges.SECONDS_TO_LISTEN / 2,
            )
        except subprocess.TimeoutExpired:
            self.hung.append(script)
            raise
        return Output(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        pass


class Lost(Shell):
    """Stands in for a host whose connection went away."""

    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        raise HostUnreachable("lost", Cause.DROPPED)


class WithoutPython(Shell):
    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        return Output(127, "", "sh: 1: python3: not found\n")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Much, because this machine may be busy; tests with a closed port say less."""

    def have(seconds: float) -> None:
        monkeypatch.setattr(edges, "SECONDS_TO_CONNECT", seconds)

    have(10)
    return have


@pytest.fixture
def ports() -> list[int]:
    """Ports that nobody has, in order."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        return sorted(server.getsockname()[1] for server in taken)


def edge(source: str, host: str, port: int, address: str = "127.0.0.1") -> Edge:
    return Edge(source, Task("worker", port, host, address, "worker.demo", port))


def test_open_edges_have_nothing_in_the_way(ports: list[int]) -> None:
    wanted = [edge("a", "b", ports[0]), edge("b", "a", ports[1]), edge("c", "a", ports[2]), edge("c", "b", ports[0])]
    remotes = {"a": Shell(), "b": Shell(), "c": Shell()}
    assert edges.attempt(wanted, remotes) == dict.fromkeys(wanted, "")
    assert not any(host.hung for host in remotes.values())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_a_training_address_may_be_ipv6(ports: list[int]) -> None:
    wanted = [edge("a", "b", ports[0], "::1")]
    assert edges.attempt(wanted, {"a": Shell(), "b": Shell()}) == {wanted[0]: ""}


def test_a_port_that_somebody_else_holds_is_told_and_the_others_are_tried(
    ports: list[int], patience: Callable[[float], None]
) -> None:
    patience(1)
    wanted = [edge("a", "b", ports[0]), edge("a", "b", ports[1])]
    remotes = {"a": Shell(), "b": Shell()}
    with socket.create_server(("127.0.0.1", ports[0])):
        found = edges.attempt(wanted, remotes)
    assert found == {wanted[0]: "its port cannot be had: Address already in use", wanted[1]: ""}
    assert not remotes["b"].hung


def test_where_nobody_listens_it_is_told(ports: list[int], patience: Callable[[float], None]) -> None:
    patience(0.3)
    wanted = [edge("a", "b", ports[0])]
    assert edges.attempt(wanted, {"a": Shell(), "b": Lost()}) == {wanted[0]: "Connection refused"}


def test_an_address_of_nobody_is_told() -> None:
    wanted = [edge("a", "b", 2222, "name.invalid")]
    (obstacle,) = edges.attempt(wanted, {"a": Shell(), "b": Shell()}).values()
    assert obstacle


def test_a_source_without_python_is_told_in_its_own_words(ports: list[int]) -> None:
    wanted = [edge("a", "b", ports[0])]
    found = edges.attempt(wanted, {"a": WithoutPython(), "b": WithoutPython()})
    assert found == {wanted[0]: "sh: 1: python3: not found"}


def test_a_source_that_got_lost_is_told() -> None:
    wanted = [edge("a", "b", 2222)]
    (obstacle,) = edges.attempt(wanted, {"a": Lost(), "b": Lost()}).values()
    assert "connection lost" in obstacle


def test_what_a_host_prints_besides_does_not_matter(ports: list[int]) -> None:
    noisy = Shell(noise="echo 'Welcome!'; echo '[1, 2]'; echo '[[], {}]'; echo '[[], 1, 2]'; echo '{}'; echo 7\n")
    wanted = [edge("a", "b", ports[0])]
    assert edges.attempt(wanted, {"a": noisy, "b": noisy}) == {wanted[0]: ""}


def test_hosts_that_were_not_entered_take_no_part() -> None:
    assert edges.attempt([edge("a", "b", 2222), edge("b", "a", 2222)], {"a": Lost()}) == {}


def test_nothing_to_try_is_nothing_found() -> None:
    assert edges.attempt([], {}) == {}


def test_somebody_elses_answer_is_not_ours(ports: list[int]) -> None:
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        script = edges.script(edges.CONNECT, [("127.0.0.1", ports[0], "word")], "token", 5)
        talking = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request")
        printed, _ = talking.communicate()
    assert printed == f'["127.0.0.1", {ports[0]}, "somebody else answers there"]\n'


@pytest.mark.parametrize("template", [edges.LISTEN, edges.CONNECT, edges.STOP])
def test_settings_arrive_as_they_are(template: str) -> None:
    value = 'a "quoted" \\ back\\nslash and $HOME'
    script = edges.script(template, value, "token", 1)
    settings = next(line for line in script.splitlines() if "json.loads" in line)
    expression = settings.partition(" = ")[2]
    found = subprocess.run(
        ["sh", "-s"],
        input=f"python3 - <<'END'\nimport json\nprint({expression}[0], end='')\nEND\n",
        capture_output=True,
        text=True,
    )
    assert found.stdout == value

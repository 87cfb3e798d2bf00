"""What is said of a host before anything is changed: a table of verdicts, and the stair where a host failed."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tfdeploy import doctor, edges, facts, remote
from tfdeploy.doctor import Diagnosis, Finding
from tfdeploy.edges import Edge
from tfdeploy.errors import InputError, TfdeployError
from tfdeploy.facts import Engine, Facts, Interface, System
from tfdeploy.inventory import Connection, Host, Inventory
from tfdeploy.plan import Plan, Wishes, plan
from tfdeploy.remote import Cause, Credentials, HostUnreachable
from tfdeploy.spec import JobSpec
from tfdeploy.task import Task

Hosts = Callable[..., Inventory]
JOB = JobSpec(name="demo", image="trainer:1")
NO_PLAN = InputError("nothing fits", "Ask for less")
GOOD = Facts(
    cpus=4,
    memory=8 << 30,
    addresses=("10.0.0.1",),
    system=System("debian", "12", name="Debian GNU/Linux 12 (bookworm)", kernel="6.1.0-40-amd64"),
    engine=Engine("28.5.1", live_restore=True),
    interfaces=(Interface("eth0", "10.0.0.1"), Interface("tailscale0", "100.64.0.1"), Interface("eth0", "fd00::1")),
    disk="/var/lib/docker",
    disk_free=50 << 30,
    python="3.11.2",
    time_service="chrony",
)
HOST = Host("a", Connection("10.0.0.1"))


def verdict(check: str, found: Facts, host: Host = HOST, planned: Plan | InputError | None = None) -> Finding:
    made = planned or plan(Inventory((host,), {"all": (host.name,)}), JOB, Wishes(), {host.name: found})
    (finding,) = [each for each in doctor.examined(host, found, made) if each.check == check]
    return finding


# --- the way in ---


@pytest.mark.parametrize(
    ("cause", "stair"),
    [
        (Cause.REFUSED, "ssh"),
        (Cause.TIMEOUT, "ssh"),
        (Cause.NO_ROUTE, "ssh"),
        (Cause.NAME_UNKNOWN, "ssh"),
        (Cause.DROPPED, "ssh"),
        (Cause.KEY_UNKNOWN, "host key"),
        (Cause.KEY_CHANGED, "host key"),
        (Cause.LOGIN, "login"),
        (Cause.SUDO_PASSWORD_MISSING, "sudo"),
        (Cause.SUDO_PASSWORD_WRONG, "sudo"),
        (Cause.NO_SUDO, "sudo"),
        (Cause.DISK_FULL, "facts"),
    ],
)
def test_a_host_fails_at_its_stair_and_those_before_it_passed(cause: Cause, stair: str) -> None:
    *before, last = doctor.entrance("a", HostUnreachable("a", cause, "why"))
    assert (last.check, last.state, last.detail) == (stair, "failed", f"{cause}: why")
    assert last.remedy == remote.REMEDIES[cause]
    stairs = ["ssh", "host key", "login", "sudo", "facts"]
    assert [(each.check, each.state) for each in before] == [(name, "ok") for name in stairs[: stairs.index(stair)]]


def test_every_cause_has_a_stair() -> None:
    assert {list(doctor.entrance("a", HostUnreachable("a", cause)))[-1].state for cause in Cause} == {"failed"}


def test_words_of_the_inventory_that_lead_nowhere_pass_no_stair() -> None:
    (finding,) = doctor.entrance("a", InputError("ansible_connection=winrm is not a way in", "Use ssh"))
    assert (finding.check, finding.state, finding.remedy) == ("ssh", "failed", "Use ssh")


def test_facts_that_cannot_be_read_fail_behind_the_stairs() -> None:
    findings = list(doctor.entrance("a", TfdeployError("its facts could not be read: the script broke off")))
    assert [each.state for each in findings] == ["ok", "ok", "ok", "ok", "failed"]
    assert findings[-1].check == "facts"


def test_a_host_that_was_not_entered_has_no_further_findings() -> None:
    findings = list(doctor.examined(HOST, HostUnreachable("a", Cause.REFUSED), NO_PLAN))
    assert [each.check for each in findings] == ["ssh"]


# --- verdicts ---


def test_of_a_good_host_everything_is_ok() -> None:
    made = plan(Inventory((HOST,), {"all": ("a",)}), JOB)
    findings = list(doctor.examined(HOST, GOOD, made))
    assert {each.state for each in findings} == {"ok"}
    assert {each.remedy for each in findings} == {""}
    assert [each.check for each in findings][:4] == ["ssh", "host key", "login", "sudo"]
    facts_of_it = {"system", "python", "disk", "memory", "clock", "docker", "firewall", "ports", "address"}
    assert {each.check for each in findings[4:]} == facts_of_it


@pytest.mark.parametrize(
    ("check", "found", "state", "detail"),
    [
        ("system", GOOD, "ok", "Debian GNU/Linux 12 (bookworm), kernel 6.1.0-40-amd64"),
        ("system", replace(GOOD, system=System("alpine", kernel="6.6")), "failed", "alpine, kernel 6.6"),
        ("system", replace(GOOD, system=System(kernel="6.6")), "failed", "unknown, kernel 6.6"),
        ("python", GOOD, "ok", "3.11.2"),
        ("python", replace(GOOD, python=""), "failed", "no python3"),
        ("disk", GOOD, "ok", "50GiB free on /var/lib/docker"),
        ("disk", replace(GOOD, disk_free=19 << 30), "warning", "19GiB free on /var/lib/docker"),
        ("disk", replace(GOOD, disk_free=4 << 30), "failed", "4GiB free on /var/lib/docker"),
        ("memory", GOOD, "ok", "8GiB"),
        ("memory", replace(GOOD, memory=512 << 20), "failed", "512MiB"),
        ("clock", GOOD, "ok", "chrony"),
        ("clock", replace(GOOD, time_service=""), "ok", "no time service"),
        ("clock", replace(GOOD, clock_offset=-90.04), "failed", "-90.0 s off, chrony"),
        ("docker", GOOD, "ok", "28.5.1"),
        ("docker", replace(GOOD, engine=Engine("28.5.1")), "ok", "28.5.1, no live-restore"),
        (
            "docker",
            replace(GOOD, engine=Engine("28.5.1", swarm=True)),
            "ok",
            "28.5.1, in a swarm, so live-restore stays off",
        ),
        (
            "docker",
            replace(GOOD, engine=Engine("28.5.1", live_restore=True, foreign=("db",))),
            "ok",
            "28.5.1, others run 1 container there: db",
        ),
        (
            "docker",
            replace(GOOD, engine=Engine("28.5.1", live_restore=True, foreign=("db", "web"))),
            "ok",
            "28.5.1, others run 2 containers there: db, web",
        ),
        ("docker", replace(GOOD, engine=Engine()), "failed", "no Docker engine answers"),
        ("docker", replace(GOOD, engine=Engine("28", kind="snap")), "failed", "Docker comes from a snap"),
        ("docker", replace(GOOD, engine=Engine(kind="podman")), "failed", "the docker command is podman"),
        ("docker", replace(GOOD, engine=Engine("28.5.1", rootless=True)), "failed", "Docker runs rootless"),
        ("firewall", GOOD, "ok", "none in the way"),
        ("firewall", replace(GOOD, firewall=("ufw", "firewalld")), "warning", "ufw, firewalld in force"),
    ],
)
def test_verdicts(check: str, found: Facts, state: str, detail: str) -> None:
    finding = verdict(check, found)
    assert (finding.state, finding.detail) == (state, detail)
    assert bool(finding.remedy) == (state != "ok")


@pytest.mark.parametrize(
    ("engine", "remedy"),
    [
        (Engine(kind="snap"), "snap remove docker"),
        (Engine(kind="podman"), "podman-docker"),
        (Engine("28.5.1", rootless=True), "system-wide"),
        (Engine(), "`tfdeploy provision`"),
    ],
)
def test_an_unfit_engine_has_its_own_remedy(engine: Engine, remedy: str) -> None:
    assert remedy in verdict("docker", replace(GOOD, engine=engine)).remedy


# --- ports and addresses ---


def test_the_ports_of_its_tasks_are_named() -> None:
    host = replace(HOST, slots=2)
    made = plan(Inventory((host,), {"all": ("a",)}), JOB, Wishes(workers=2))
    assert verdict("ports", GOOD, host, made).detail == "2222, 2223 free"


def test_a_host_without_tasks_needs_no_port(hosts: Hosts) -> None:
    inventory = hosts("a", "b")
    made = plan(inventory, JOB, Wishes(num=1))
    found = replace(GOOD, listening=frozenset({2222, 22}), held=frozenset({2222, 2223}))
    assert verdict("ports", found, inventory.hosts[1], made).detail == "98 free, none needed"


@pytest.mark.parametrize(
    ("ports", "taken", "state", "detail"),
    [
        (((1, 3),), {2}, "ok", "2 free"),
        (((1, 3), (2, 4)), {2}, "ok", "3 free"),
        (((1, 3),), {1, 2, 3, 4}, "failed", "no port is free"),
    ],
)
def test_without_a_plan_free_ports_are_counted(
    ports: tuple[tuple[int, int], ...], taken: set[int], state: str, detail: str
) -> None:
    finding = verdict("ports", replace(GOOD, listening=frozenset(taken)), replace(HOST, ports=ports), NO_PLAN)
    assert (finding.state, finding.detail) == (state, detail)


def two(address: str | None = None, entered: str = "10.0.0.1") -> tuple[Host, Plan]:
    host = Host("a", Connection(entered), address=address)
    other = Host("b", Connection("10.0.0.2"))
    return host, plan(Inventory((host, other), {"all": ("a", "b")}), JOB)


@pytest.mark.parametrize(
    "address", [None, "10.0.0.1", "100.64.0.1", "fd00::1", "fd00:0::1", "gpu1.example", "10gbe.example"]
)
def test_sane_training_addresses(address: str | None) -> None:
    host, made = two(address)
    finding = verdict("address", GOOD, host, made)
    assert (finding.state, finding.detail) == ("ok", address or "10.0.0.1")


@pytest.mark.parametrize("address", ["10.9.9.9", "fd00::9"])
def test_an_address_that_the_host_does_not_have_is_told_with_those_it_has(address: str) -> None:
    host, made = two(address)
    finding = verdict("address", GOOD, host, made)
    assert (finding.state, finding.detail) == ("failed", f"{address} is on no interface of it")
    assert finding.remedy == "It has 10.0.0.1"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_peers_do_not_reach_loopback(address: str) -> None:
    host, made = two(entered=address)
    finding = verdict("address", GOOD, host, made)
    assert (finding.state, finding.detail) == ("failed", f"{address} is loopback")


@pytest.mark.parametrize("address", [None, "127.0.0.1"])
def test_a_host_alone_may_use_loopback(address: str | None) -> None:
    host = Host("a", Connection("127.0.0.1"), address=address)
    made = plan(Inventory((host,), {"all": ("a",)}), JOB)
    assert verdict("address", GOOD, host, made).state == "ok"


def test_without_a_plan_addresses_are_skipped_and_it_is_said_why() -> None:
    finding = verdict("address", GOOD, planned=NO_PLAN)
    assert (finding.state, finding.detail) == ("skipped", "no plan: nothing fits. Ask for less.")


def test_a_host_without_tasks_needs_no_address(hosts: Hosts) -> None:
    inventory = hosts("a", "b")
    made = plan(inventory, JOB, Wishes(num=1))
    assert verdict("address", GOOD, inventory.hosts[1], made).detail == "no task"


# --- edges and the whole ---

EDGE = Edge("a", Task("ps", 0, "b", "10.0.0.2", "ps-0.demo", 2222))


def test_a_closed_edge_is_found_at_its_source_with_what_to_open() -> None:
    (finding,) = doctor.edge_findings("a", {EDGE: "timed out"})
    assert (finding.check, finding.state) == ("reaches ps-0 (b, 10.0.0.2:2222)", "failed")
    assert finding.detail == "timed out"
    assert finding.remedy.startswith("Open port 2222 on b for a")
    assert list(doctor.edge_findings("b", {EDGE: "timed out"})) == []


def test_an_open_edge_needs_nothing() -> None:
    (finding,) = doctor.edge_findings("a", {EDGE: ""})
    assert (finding.state, finding.detail, finding.remedy) == ("ok", "", "")


@pytest.mark.parametrize(
    ("states", "unreachable", "code"),
    [
        ((), (), 0),
        (("ok", "warning", "skipped"), (), 0),
        (("ok", "failed"), (), 1),
        (("failed",), ("a",), 3),
    ],
)
def test_exit_codes(states: tuple[doctor.State, ...], unreachable: tuple[str, ...], code: int) -> None:
    findings = tuple(Finding("a", "check", state) for state in states)
    assert Diagnosis(findings, unreachable).exit_code == code


def test_findings_as_rows_have_all_their_words() -> None:
    assert doctor.as_rows([Finding("a", "disk", "failed", "1B free on /", "Make room")]) == [
        {"host": "a", "check": "disk", "state": "failed", "detail": "1B free on /", "remedy": "Make room"}
    ]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Facts | TfdeployError]:
    """What the hosts answer, instead of being entered; every edge between them is open."""
    given: dict[str, Facts | TfdeployError] = {}
    monkeypatch.setattr(remote, "enter", lambda host, credentials: Entered())
    monkeypatch.setattr(facts, "of_all", lambda entered: given)
    monkeypatch.setattr(edges, "attempt", lambda wanted, remotes: dict.fromkeys(wanted, ""))
    return given


class Entered:
    """Stands in for an entered host."""

    def close(self) -> None:
        pass


def examine(inventory: Inventory, answers: Mapping[str, Facts | TfdeployError], wishes: Wishes) -> Diagnosis:
    assert list(answers) == [host.name for host in inventory.hosts]
    return doctor.examine(inventory, JOB, wishes, Credentials())


def test_the_plan_and_its_edges_are_for_the_hosts_that_answered(
    hosts: Hosts, answers: dict[str, Facts | TfdeployError]
) -> None:
    down = HostUnreachable("d", Cause.TIMEOUT)
    answers |= {"d": down, "a": GOOD, "c": HostUnreachable("c", Cause.LOGIN), "b": GOOD}
    diagnosis = examine(hosts("d", "a", "c", "b"), answers, Wishes(ps=1))
    assert diagnosis.unreachable == ("d", "c")
    assert diagnosis.exit_code == 3
    assert [each.host for each in diagnosis.findings if each.check.startswith("reaches ps-0 (a")] == ["b"]
    assert list(dict.fromkeys(each.host for each in diagnosis.findings)) == ["d", "a", "c", "b"]


def test_a_job_that_does_not_fit_still_has_its_hosts_looked_at(
    hosts: Hosts, answers: dict[str, Facts | TfdeployError]
) -> None:
    answers |= {"a": GOOD}
    diagnosis = examine(hosts("a"), answers, Wishes(ps=1, workers=5))
    assert diagnosis.unreachable == ()
    assert {each.check: each.state for each in diagnosis.findings}["address"] == "skipped"


def test_a_job_that_cannot_be_planned_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "of_all", lambda entered: {"a": GOOD})
    monkeypatch.setattr(remote, "enter", lambda host, credentials: NO_PLAN)
    diagnosis = doctor.examine(Inventory((HOST,), {"all": ("a",)}), JOB, Wishes(ps=5), Credentials())
    assert diagnosis.exit_code == 1
    assert (diagnosis.findings[-1].host, diagnosis.findings[-1].check) == ("job", "plan")

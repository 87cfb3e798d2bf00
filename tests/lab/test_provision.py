"""Bare machines become container hosts, whatever happens on the way. One lab, from bare to provisioned."""

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.conftest import LabUnderTest, three_hosts
from tfdeploy.lab import machine

pytestmark = pytest.mark.lab

THEIRS = (
    "tar -cC / bin/busybox | docker import - theirs && docker run -d --name theirs theirs /bin/busybox sleep 1000000"
)


@pytest.fixture(scope="module")
def bare(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    yield from three_hosts("bare", tmp_path_factory.mktemp("bare"))


def provision(lab: LabUnderTest, *words: str, inventory: str = "lab.ini") -> tuple[int, dict[str, Any]]:
    done = lab.tfdeploy("provision", inventory, "-o", "json", *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def states(result: dict[str, Any]) -> dict[str, str]:
    return {host["host"]: host["state"] for host in result["hosts"]}


def errors(result: dict[str, Any]) -> dict[str, str]:
    return {host["host"]: host["error"] for host in result["hosts"] if host["error"]}


def changed_inventory(lab: LabUnderTest, old: str, new: str) -> str:
    text = (lab.directory / "lab.ini").read_text()
    assert old in text
    (lab.directory / "changed.ini").write_text(text.replace(old, new))
    return "changed.ini"


def test_a_dry_run_changes_nothing(bare: LabUnderTest) -> None:
    before = {host: _files(bare, host) for host in (1, 2, 3)}
    code, result = provision(bare, "--check")
    assert (code, set(states(result).values())) == (0, {"changed"})
    assert {host: _files(bare, host) ^ before[host] for host in (1, 2, 3)} == {1: set(), 2: set(), 3: set()}
    assert "live-restore" in bare.tfdeploy("provision", "lab.ini", "--check", "--diff", "-l", "bare-1").stderr


def test_hosts_that_cannot_be_entered_are_each_named_with_why(bare: LabUnderTest) -> None:
    inventory = changed_inventory(
        bare, f"ansible_become_password={_become_password(bare)}", "ansible_become_password=wrong"
    )
    text = (bare.directory / inventory).read_text()
    address = bare.status()["hosts"][0]["address"]
    (bare.directory / inventory).write_text(
        text
        + f"\n[broken]\nrefused ansible_host={address} ansible_port=2299\n"
        + "named ansible_host=no-such-host.invalid\n"
        + f"stranger ansible_host={address} ansible_ssh_common_args='-o UserKnownHostsFile=/dev/null'\n"
        + f"locked ansible_host={address} ansible_user=nobody "
        + next(
            line.replace("common_args=", 'common_args="') + '"' for line in text.splitlines() if "common_args" in line
        )
        + "\n"
    )
    code, result = provision(bare, "-l", "bare-2,broken", inventory=inventory)
    assert code == 3
    said = errors(result)
    assert "sudo password wrong" in said["bare-2"]
    assert "-K" in said["bare-2"]
    assert "connection refused" in said["refused"]
    assert "name unknown" in said["named"]
    assert "host key unknown" in said["stranger"]
    assert "login refused" in said["locked"]
    assert result["run_dir"] is None


def test_a_changed_host_key_is_refused_and_the_others_are_done(bare: LabUnderTest) -> None:
    key = bare.in_container(3, "cat /etc/ssh/ssh_host_ed25519_key")
    bare.in_container(
        3, "rm /etc/ssh/ssh_host_ed25519_key*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
    )
    try:
        code, result = provision(bare, "--check", "-l", "bare-1,bare-3")
    finally:
        machine.run(
            ("docker", "exec", "-i", "tfdeploy-lab-bare-3", "sh", "-c", "cat > /etc/ssh/ssh_host_ed25519_key"),
            data=f"{key}\n".encode(),
        )
    assert code == 3
    assert "host key changed" in errors(result)["bare-3"]
    assert states(result)["bare-1"] == "changed"


def test_a_full_disk_is_named(bare: LabUnderTest) -> None:
    bare.in_container(1, "mount -t tmpfs -o size=1m tmpfs /var/lib")
    try:
        code, result = provision(bare, "-l", "bare-1")
    finally:
        bare.in_container(1, "umount /var/lib")
    assert code == 3
    assert "disk full" in errors(result)["bare-1"]


def test_a_run_that_is_killed_in_the_middle_of_apt_is_repaired_by_the_next(bare: LabUnderTest) -> None:
    run = bare.start("provision", "lab.ini", "-l", "bare-1")
    _wait_for(bare, 1, "pgrep -x dpkg")
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    # The power goes, too: what dpkg had unpacked stays half configured.
    bare("kill", "bare-1")
    bare("start", "bare-1")
    code, result = provision(bare, "-l", "bare-1")
    assert code == 0, result
    assert bare.on(1, "dpkg --audit; docker version --format '{{.Server.Os}}'") == "linux"


def test_an_interrupted_run_says_where_each_host_stands(bare: LabUnderTest) -> None:
    run = bare.start("provision", "lab.ini", "-l", "bare-3")
    _wait_for(bare, 3, "pgrep -x apt-get || pgrep -x dpkg")
    os.kill(run.pid, signal.SIGINT)
    _, said = run.communicate()
    assert run.returncode == 130
    assert "bare-3: interrupted at “" in said


def test_bare_hosts_are_ready_and_one_without_python_gets_it(bare: LabUnderTest) -> None:
    # The interrupted run's apt goes on by itself; a host is not torn out of it.
    _wait_for(bare, 3, "! pgrep -x apt-get && ! pgrep -x dpkg")
    bare.in_container(3, "dpkg --configure -a; apt-get -q -y -f install; apt-get -q -y purge 'python3*' 'libpython3*'")
    code, result = provision(bare)
    assert code == 0, result
    assert states(result) == {"bare-1": "as-wanted", "bare-2": "changed", "bare-3": "changed"}
    for host in (1, 2, 3):
        assert (
            bare.in_container(host, "python3 -c 'print(1)'; docker info --format '{{.LiveRestoreEnabled}}'")
            == "1\ntrue"
        )


def test_the_second_run_starts_no_playbook(bare: LabUnderTest) -> None:
    code, result = provision(bare)
    assert code == 0
    assert set(states(result).values()) == {"as-wanted"}
    assert result["run_dir"] is None
    assert "no playbook was started" in bare.tfdeploy("provision", "lab.ini").stderr


def test_a_foreign_container_runs_on_untouched(bare: LabUnderTest) -> None:
    bare.in_container(1, f"apt-get install -qq busybox-static >/dev/null && {THEIRS}")
    pid = "docker inspect --format '{{.State.Pid}} {{.State.StartedAt}}' theirs"
    before = bare.in_container(1, pid)
    code, result = provision(bare, "--tags", "docker")
    assert (code, set(states(result).values())) == (0, {"ok"})
    assert bare.in_container(1, pid) == before
    bare.in_container(1, "docker rm -f theirs; docker rmi theirs")


def test_an_engine_that_was_stopped_is_started_again(bare: LabUnderTest) -> None:
    bare.in_container(2, "systemctl stop docker docker.socket")
    code, result = provision(bare)
    assert code == 0
    assert states(result)["bare-2"] == "changed"
    assert bare.in_container(2, "systemctl is-active docker") == "active"


def test_a_tool_that_is_missing_beside_a_good_engine_is_installed(bare: LabUnderTest) -> None:
    bare.in_container(1, "apt-get -qq -y purge rsync")
    code, result = provision(bare)
    assert code == 0
    assert next(host["reasons"] for host in result["hosts"] if host["host"] == "bare-1") == ["no rsync"]
    assert bare.in_container(1, "command -v rsync") == "/usr/bin/rsync"


def doctor(lab: LabUnderTest, *words: str) -> tuple[int, dict[tuple[str, str], dict[str, str]]]:
    done = lab.tfdeploy("doctor", "lab.ini", "-o", "json", *words)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return done.returncode, {(each["host"], each["check"].split(" (")[0]): each for each in found["findings"]}


def test_doctor_finds_nothing_wrong_with_provisioned_hosts(bare: LabUnderTest) -> None:
    code, findings = doctor(bare, "--ps", "1", "--chief")
    assert (code, {each["state"] for each in findings.values()}) == (0, {"ok"})
    assert {check for host, check in findings if host == "bare-1"} >= {"reaches worker-0", "reaches worker-1"}
    assert {check for host, check in findings if host == "bare-3"} >= {"reaches ps-0", "reaches chief-0"}


def test_doctor_finds_a_closed_edge_and_leaves_no_listener(bare: LabUnderTest) -> None:
    bare.in_container(1, "iptables -I INPUT -p tcp --dport 2222 -j DROP")
    try:
        code, findings = doctor(bare, "--ps", "1")
    finally:
        bare.in_container(1, "iptables -D INPUT -p tcp --dport 2222 -j DROP")
    assert code == 1
    edge = findings["bare-2", "reaches ps-0"]
    assert (edge["state"], edge["detail"]) == ("failed", "timed out")
    assert "2222" in edge["remedy"]
    assert bare.in_container(1, "ss -Hltn sport = :2222") == ""


def test_doctor_tries_another_port_where_one_is_taken(bare: LabUnderTest) -> None:
    bare.in_container(1, "(python3 -m http.server 2222 >/dev/null 2>&1 & echo $! > /tmp/taken)")
    _wait_for(bare, 1, "ss -Hltn sport = :2222 | grep -q .")
    code, findings = doctor(bare, "--ps", "1")
    bare.in_container(1, "kill $(cat /tmp/taken)")
    assert code == 0
    assert findings["bare-1", "ports"]["detail"] == "2223 free"


def test_doctor_tells_a_host_without_power_from_one_without_an_engine(bare: LabUnderTest) -> None:
    bare("kill", "bare-3")
    bare.in_container(2, "systemctl stop docker docker.socket")
    try:
        code, findings = doctor(bare)
    finally:
        bare("start", "bare-3")
        bare.in_container(2, "systemctl start docker")
    assert code == 3
    assert findings["bare-3", "ssh"]["state"] == "failed"
    assert findings["bare-2", "docker"]["state"] == "failed"
    assert findings["bare-1", "docker"]["state"] == "ok"


def _become_password(lab: LabUnderTest) -> str:
    return (lab.directory / "lab.ini").read_text().partition("ansible_become_password=")[2].split()[0]


def _files(lab: LabUnderTest, host: int) -> set[str]:
    """Every file and its size, but those that any login or any look at packages touches."""
    passed_over = (
        "/proc/*",
        "/tmp/*",
        "*/.ansible/*",
        "/var/log/*",
        "/var/lib/sudo/*",
        "/var/lib/apt/*",
        "/var/cache/apt/*",
    )
    without = " ".join(f"-not -path '{path}'" for path in (*passed_over, "*/.sudo_as_admin_successful"))
    return set(lab.in_container(host, f"find / -xdev -type f {without} -printf '%p %s\\n'").splitlines())


def _wait_for(lab: LabUnderTest, host: int, command: str) -> None:
    words = ("docker", "exec", f"tfdeploy-lab-{lab.name}-{host}", "sh", "-c", command)
    for _ in range(2400):
        if machine.succeeds(words):
            return
        time.sleep(0.05)
    raise AssertionError(f"{command} did not come true")

"""The lab's promises, on real machines."""

import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from tests.conftest import TFDEPLOY
from tests.lab.conftest import LabUnderTest
from tfdeploy.lab import identity, image, layout, machine

pytestmark = pytest.mark.lab


def test_hosts_are_reached_with_the_written_inventory_alone(hosts: LabUnderTest) -> None:
    done = hosts.ansible("all", "-m", "ping", "--one-line")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == 3


def test_status_is_an_object_with_hosts(hosts: LabUnderTest) -> None:
    found = hosts.status()["hosts"]
    assert [host["name"] for host in found] == ["hosts-1", "hosts-2", "hosts-3"]
    assert all(set(host) == {"name", "address", "port", "state"} for host in found)
    assert {host["state"] for host in found} == {"running"}
    assert {host["port"] for host in found} == {22}


def test_every_host_runs_systemd_and_has_no_docker(hosts: LabUnderTest) -> None:
    for host in (1, 2, 3):
        assert hosts.on(host, "systemctl is-system-running; cat /proc/1/comm") == "running\nsystemd"
        assert hosts.on(host, "command -v docker dockerd || echo none") == "none"


def test_what_one_host_writes_to_the_shared_directory_the_others_read(hosts: LabUnderTest) -> None:
    hosts.on(1, f"echo hello > {layout.SHARED}/from-1")
    assert hosts.on(3, f"cat {layout.SHARED}/from-1") == "hello"


def test_one_user_becomes_root_by_password_only(hosts: LabUnderTest) -> None:
    assert hosts.on(2, "whoami; sudo -n true 2>/dev/null || echo refused") == "ops\nrefused"
    assert hosts.ansible("hosts-2", "-b", "-m", "command", "-a", "whoami").stdout.split()[-1] == "root"


def test_one_host_has_two_nics(hosts: LabUnderTest) -> None:
    assert len(hosts.on(3, "ip -br -4 address show scope global").splitlines()) == 2
    assert len(hosts.on(1, "ip -br -4 address show scope global").splitlines()) == 1


def test_a_host_reboots_and_is_the_same_machine(hosts: LabUnderTest) -> None:
    boot = hosts.on(3, "cat /proc/sys/kernel/random/boot_id; touch /kept")
    done = hosts.ansible("hosts-3", "-m", "reboot")
    assert done.returncode == 0, done.stdout
    assert hosts.on(3, "cat /proc/sys/kernel/random/boot_id; ls /kept").splitlines() != [boot, "/kept"]
    assert hosts.on(3, "ls /kept; ip -br -4 address show eth0").split()[0:2] == ["/kept", "eth0@if" + _link(hosts, 3)]


def test_power_loss_and_power_on(hosts: LabUnderTest) -> None:
    hosts("kill", "hosts-2")
    assert hosts.states() == {"hosts-1": "running", "hosts-2": "stopped", "hosts-3": "running"}
    hosts("start", "hosts-2")
    assert hosts.states()["hosts-2"] == "running"


def test_a_cut_host_runs_on_unreached_until_it_is_healed(hosts: LabUnderTest) -> None:
    uptime = "cut -d. -f1 /proc/uptime"
    hosts("cut", "hosts-1")
    assert hosts.states()["hosts-1"] == "cut"
    with pytest.raises(OSError, match=r"timed out|[Nn]o route"):
        socket.create_connection((hosts.status()["hosts"][0]["address"], 22), timeout=2)
    assert machine.docker("exec", "tfdeploy-lab-hosts-1", "sh", "-c", uptime)
    hosts("heal", "hosts-1")
    assert hosts.states()["hosts-1"] == "running"
    assert hosts.on(1, uptime)


def test_a_slow_host_is_limited_both_ways_until_told_otherwise(hosts: LabUnderTest) -> None:
    hosts("slow", "1", "--rate", "100mbit")
    assert "rate 100Mbit" in hosts.on(1, "tc qdisc show dev eth0")
    assert machine.run(("tc", "qdisc", "show")).count("rate 100Mbit") == 1
    hosts("slow", "1", "--off")
    assert "tbf" not in hosts.on(1, "tc qdisc show dev eth0") + machine.run(("tc", "qdisc", "show"))


def test_up_again_changes_nothing(hosts: LabUnderTest) -> None:
    before = hosts.containers()
    hosts("up", "--hosts", "3")
    assert hosts.containers() == before


def test_a_lab_grows_and_shrinks_and_keeps_the_rest(lab: LabUnderTest) -> None:
    lab("up", "--hosts", "1")
    one = lab.containers()
    lab("up", "--hosts", "3")
    three = lab.containers()
    assert len(three) == 3
    assert one.items() <= three.items()
    lab("up", "--hosts", "2")
    assert lab.containers().items() <= three.items()
    assert list(lab.states()) == ["test-1", "test-2"]
    assert lab.ansible("all", "-m", "ping").returncode == 0


@pytest.mark.parametrize("seconds", [0.3, 0.6, 0.9, 1.2, 1.6])
def test_what_a_killed_run_left_is_repaired(lab: LabUnderTest, seconds: float) -> None:
    words = [TFDEPLOY, "lab", "up", "--name", lab.name, "--hosts", "2"]
    run = subprocess.Popen(words, cwd=lab.directory, start_new_session=True, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    lab("up", "--hosts", "2")
    assert set(lab.states().values()) == {"running"}
    assert lab.ansible("all", "-m", "ping").returncode == 0


def test_a_host_that_was_created_and_never_started_is_made_anew(lab: LabUnderTest) -> None:
    lab("up", "--hosts", "1")
    machine.docker("rm", "--force", "tfdeploy-lab-test-1")
    machine.docker(
        "create", "--name=tfdeploy-lab-test-1", "--label=tfdeploy.lab=test", "--label=tfdeploy.lab.index=1",
        image.ensure("12", _NoReport()),
    )  # fmt: skip
    lab("up", "--hosts", "1")
    assert lab.states() == {"test-1": "running"}


def test_a_lab_whose_keys_are_lost_is_made_anew_and_can_be_removed(lab: LabUnderTest) -> None:
    lab("up", "--hosts", "1")
    shutil.rmtree(identity.labs() / "test")
    lab("up", "--hosts", "1")
    assert lab.ansible("all", "-m", "ping").returncode == 0
    shutil.rmtree(identity.labs() / "test")
    lab("down")
    assert lab.containers() == {}


def test_a_host_made_anew_is_reached_though_a_connection_was_kept_open(lab: LabUnderTest) -> None:
    lab("up", "--hosts", "1")
    assert lab.ansible("all", "-m", "ping").returncode == 0
    lab("down")
    lab("up", "--hosts", "1")
    assert lab.ansible("all", "-m", "ping").returncode == 0


def test_a_subnet_in_use_is_refused_and_nothing_is_left(lab: LabUnderTest, hosts: LabUnderTest) -> None:
    done = lab("up", "--subnet", hosts.status()["subnet"], check=False)
    assert done.returncode == 2
    assert "is in use" in done.stderr
    assert lab("status", check=False).returncode == 2


def test_somebody_elses_inventory_is_not_overwritten(lab: LabUnderTest, hosts: LabUnderTest) -> None:
    mine = lab.directory / "lab.ini"
    mine.write_text("[gpu]\nbig-machine\n")
    assert "is not a lab's" in lab("up", check=False).stderr
    assert mine.read_text() == "[gpu]\nbig-machine\n"
    done = lab("up", "--inventory", str(hosts.directory / "lab.ini"), check=False)
    assert "belongs to the lab 'hosts'" in done.stderr


def test_a_lab_is_changed_by_one_command_at_a_time(lab: LabUnderTest) -> None:
    with identity.locked("test"):
        done = lab("up", check=False)
    assert done.returncode == 4
    assert "another command" in done.stderr


def test_an_unknown_host_or_lab_is_named(hosts: LabUnderTest) -> None:
    assert "It has hosts-1, hosts-2, hosts-3." in hosts("kill", "hosts-9", check=False).stderr
    missing = LabUnderTest("absent", hosts.directory)("status", check=False)
    assert missing.returncode == 2
    assert "there is no lab 'absent' (there is: hosts)" in missing.stderr


class _NoReport:
    def done(self, text: str) -> None:
        raise AssertionError(f"nothing should be made: {text}")

    def doing(self, text: str) -> None:
        pass


def _link(lab: LabUnderTest, host: int) -> str:
    return lab.on(host, "cat /sys/class/net/eth0/iflink")

"""What a host has, from what the script printed there: recorded, broken and of this very machine."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import PROJECT
from tfdeploy import facts
from tfdeploy.errors import TfdeployError
from tfdeploy.facts import Engine, Facts, Gpu, Interface, System
from tfdeploy.remote import Output

SCRIPT = PROJECT / "tfdeploy" / "scripts" / "facts.sh"
RECORDED = {path.stem: path.read_text() for path in sorted((PROJECT / "tests" / "golden" / "facts").glob("*.txt"))}
NOW = 1763467200.0
laws = settings(max_examples=120, deadline=None)


def recorded(name: str) -> Facts:
    return facts.parse(RECORDED[name], before=NOW, after=NOW + 0.5)


def with_section(name: str, body: str) -> Facts:
    return facts.parse(f"\x1e{name}\n{body}\n", before=NOW, after=NOW)


# --- recorded hosts ---


def test_a_bare_debian_host() -> None:
    assert recorded("bare-debian-12") == Facts(
        cpus=4,
        memory=8145892 * 1024,
        listening=frozenset({22}),
        addresses=("192.168.7.21",),
        interfaces=(Interface("enp1s0", "192.168.7.21"),),
        system=System(
            id="debian",
            version="12",
            name="Debian GNU/Linux 12 (bookworm)",
            kernel="6.1.0-40-amd64",
            machine="x86_64",
            init="systemd",
        ),
        disk="/",
        disk_free=56437048 * 1024,
        tools=frozenset({"ip", "ss", "sudo"}),
        time_service="systemd-timesyncd",
    )


def test_a_gpu_that_somebody_computes_on_is_in_use() -> None:
    first, second = recorded("gpus").gpus
    assert first == Gpu("GPU-3a1f0c52-7a7e-11ee-b962-0242ac120002", "NVIDIA A100-SXM4-80GB", False, 80 << 30)
    assert second.in_use


def test_driver_toolkit_and_cards_are_read() -> None:
    host = recorded("gpus")
    assert (host.driver, host.toolkit, host.cards) == ("570.195.03", "1.18.0", 2)


def test_a_good_engine_has_no_fault() -> None:
    engine = recorded("gpus").engine
    assert engine == Engine(version="28.5.1", live_restore=True, root="/data/docker root")
    assert engine.fault == ""


def test_spaces_in_device_and_mount_point_are_kept() -> None:
    host = recorded("gpus")
    assert (host.disk, host.disk_free) == ("/data/docker root", 2938394290 * 1024)


def test_an_ubuntu_host_is_of_the_debian_family_by_its_kin() -> None:
    assert recorded("gpus").system.family == "Debian"


def test_the_digest_of_the_last_convergence_is_read() -> None:
    assert recorded("gpus").converged == "0123456789abcdef0123456789abcdef"


def test_an_engine_in_a_swarm_that_runs_rootless_is_known_as_such() -> None:
    engine = recorded("busy-engine").engine
    assert (engine.swarm, engine.rootless, engine.live_restore) == (True, True, False)


def test_only_running_containers_without_our_label_are_foreign() -> None:
    assert recorded("busy-engine").engine.foreign == ("grafana", "registry")


def test_ports_of_our_labels_are_held_whether_or_not_anything_listens() -> None:
    host = recorded("busy-engine")
    assert host.held == {2222, 2223}
    assert host.listening == {8080}


def test_the_address_that_leads_out_comes_first_and_ipv4_before_ipv6() -> None:
    assert recorded("busy-engine").addresses == ("172.31.9.5", "10.0.0.5", "2001:db8::5")


def test_bridges_of_engines_are_interfaces_but_no_addresses_for_peers() -> None:
    host = recorded("busy-engine")
    names = {interface.name for interface in host.interfaces}
    assert {"docker0", "br-1c2d3e4f5a6b", "tailscale0"} < names
    assert not {"172.17.0.1", "172.18.0.1", "100.64.0.5"} & set(host.addresses)


def test_every_firewall_is_named() -> None:
    assert recorded("busy-engine").firewall == ("ufw", "iptables default drop")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_clocks_agree_with_ours(name: str) -> None:
    assert recorded(name).clock_offset == 0


# --- single sections ---


@pytest.mark.parametrize(
    ("release", "family"),
    [
        ("ID=debian", "Debian"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'", "Debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "RedHat"),
        ("ID=fedora", "RedHat"),
        ("ID=alpine", ""),
        ("", ""),
    ],
)
def test_the_family_is_named_as_ansible_names_it(release: str, family: str) -> None:
    assert with_section("os", release).system.family == family


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
        " NVIDIA driver is installed and running.",
        "No devices were found",
        "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error",
    ],
)
def test_what_nvidia_smi_complains_of_is_neither_gpu_nor_driver(said: str) -> None:
    host = with_section("gpus", said)
    assert (host.gpus, host.driver) == ((), "")


def test_gpu_memory_that_is_not_told_is_none() -> None:
    (gpu,) = with_section("gpus", "GPU-1, NVIDIA GB10, [N/A], [N/A], 580.95.05").gpus
    assert gpu == Gpu("GPU-1", "NVIDIA GB10")


def test_an_engine_that_does_not_answer_is_told_in_its_own_words() -> None:
    said = '{"ServerErrors":["Cannot connect to the Docker daemon"],"ClientInfo":{}}'
    assert with_section("engine", said).engine.fault == "Cannot connect to the Docker daemon"


@pytest.mark.parametrize("said", ["", "null", "[]", '"text"', "{", "[" * 100_000, '{"Swarm": 3, "ServerErrors": {}}'])
def test_odd_words_of_an_engine_are_no_engine(said: str) -> None:
    assert with_section("engine", said).engine == Engine()


def test_a_label_that_is_no_port_holds_none() -> None:
    rows = ["running\ta\tjob\tmany", "running\tb\tjob\t", "running\tc\tjob\t-1", f"running\td\tjob\t{'9' * 5000}", "x"]
    assert with_section("containers", "\n".join(rows)).held == frozenset()


def test_without_a_way_out_addresses_stay_in_their_order() -> None:
    listed = "2: a    inet6 fd00::1/64 scope global\n3: b    inet 10.0.0.1/24 scope global\n3: b    inet 10.0.0.2/24 x"
    assert with_section("addresses", listed).addresses == ("10.0.0.1", "10.0.0.2", "fd00::1")


def test_what_a_terminal_would_obey_is_dropped() -> None:
    name = with_section("os", 'PRETTY_NAME="\x1b[2J\x1b]0;owned\x07Debian\x9b"').system.name
    assert name == "[2J]0;ownedDebian"


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        (Engine(), "no Docker engine answers"),
        (Engine(error="permission denied"), "permission denied"),
        (Engine("27.5.1", kind="snap"), "Docker comes from a snap"),
        (Engine(kind="podman"), "the docker command is podman"),
        (Engine("27.5.1", rootless=True), "Docker runs rootless"),
        (Engine("19.03.15"), "Docker 19.03.15 is older than 20.10"),
        (Engine("1.13.1"), "Docker 1.13.1 is older than 20.10"),
        (Engine("20"), "Docker 20 is older than 20.10"),
        (Engine("20.10.24+dfsg1"), ""),
        (Engine("29.0"), ""),
        (Engine(f"{'9' * 9}.0"), ""),
    ],
)
def test_what_makes_an_engine_unfit(engine: Engine, fault: str) -> None:
    assert engine.fault == fault


# --- clocks ---

SECONDS = st.floats(0, 60)


@laws
@given(st.floats(-1e6, 1e6), SECONDS, SECONDS, SECONDS)
def test_never_more_offset_is_claimed_than_there_is(offset: float, there: float, at_work: float, back: float) -> None:
    start = NOW + there + offset
    claimed = facts.clock_offset(start, start + at_work, NOW, NOW + there + at_work + back)
    assert abs(claimed) <= abs(offset) + 1e-3
    assert claimed * offset >= 0 or abs(claimed) < 1e-3


@laws
@given(SECONDS, SECONDS, SECONDS)
def test_a_clock_that_may_be_right_is_not_called_wrong(there: float, at_work: float, back: float) -> None:
    start = NOW + there
    assert abs(facts.clock_offset(start, start + at_work, NOW, NOW + there + at_work + back)) < 1e-3


@pytest.mark.parametrize(("start", "end", "offset"), [(110, 111, 8), (90, 91, -10), (99, 104, 0), (101, 102, 0)])
def test_the_least_offset_that_the_bounds_allow_is_told(start: float, end: float, offset: float) -> None:
    assert facts.clock_offset(start, end, before=100, after=103) == offset


def test_clocks_that_were_not_told_are_taken_for_right() -> None:
    assert facts.parse("", before=NOW, after=NOW + 1).clock_offset == 0


# --- broken output ---


@laws
@given(st.text())
def test_any_text_gives_facts(text: str) -> None:
    assert isinstance(facts.parse(text, before=NOW, after=NOW), Facts)


@laws
@given(st.sampled_from(["engine", "gpus", "memory", "disk", "addresses", "listening", "containers", "cpus"]), st.text())
def test_any_text_in_a_section_gives_facts(section: str, text: str) -> None:
    host = with_section(section, text)
    assert isinstance(host.engine.fault, str)


@laws
@given(st.sampled_from(sorted(RECORDED)), st.data())
def test_a_recording_with_bytes_cut_out_and_put_in_gives_facts(name: str, data: st.DataObject) -> None:
    whole = RECORDED[name].encode()
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    broken = whole[:first] + data.draw(st.binary(max_size=40)) + whole[last:]
    host = facts.parse(broken.decode(errors="replace"), before=NOW, after=NOW)
    assert isinstance(host, Facts)
    assert host.memory >= 0
    assert isinstance(host.engine.fault, str)


@dataclass(frozen=True)
class Told:
    """Stands in for an entered host."""

    output: Output

    def run(self, script: str, *, root: bool = True, seconds: float | None = None) -> Output:
        return self.output

    def close(self) -> None:
        pass


def test_a_script_that_broke_off_is_an_error_in_the_hosts_own_words() -> None:
    with pytest.raises(TfdeployError, match="its facts could not be read: sh: fork failed"):
        facts.ask(Told(Output(2, RECORDED["gpus"][:300], "sh: fork failed\n")))


def test_a_host_that_could_not_be_entered_keeps_its_error() -> None:
    error = TfdeployError("refused")
    answers = facts.of_all({"a": error, "b": Told(Output(0, RECORDED["gpus"], ""))})
    assert answers["a"] is error
    assert isinstance(answers["b"], Facts)


# --- the script ---


def test_the_script_is_plain_sh() -> None:
    subprocess.run(["sh", "-n", SCRIPT], check=True)


def run_script(path: str) -> Facts:
    done = subprocess.run(
        ["sh", "-s"], input=SCRIPT.read_text(), capture_output=True, text=True, env={"PATH": path}, check=True
    )
    assert "\x1eclock_end\n" in done.stdout
    return facts.parse(done.stdout, before=NOW, after=NOW)


def test_the_script_reads_this_very_machine() -> None:
    host = run_script(os.environ["PATH"])
    assert host.cpus >= 1
    assert host.memory > 0
    assert host.disk.startswith("/")
    assert host.disk_free > 0
    assert host.system.kernel == os.uname().release
    assert host.root == (os.getuid() == 0)


@pytest.mark.skipif(os.getuid() != 0, reason="whoever runs this is unprivileged already")
def test_the_script_needs_no_privilege() -> None:
    done = subprocess.run(
        ["sh", "-s"], input=SCRIPT.read_text(), capture_output=True, text=True, user=65534, group=65534, extra_groups=[]
    )
    host = facts.parse(done.stdout, before=NOW, after=NOW)
    assert done.stderr == ""
    assert not host.root
    assert host.cpus >= 1
    assert host.memory > 0


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """An empty directory for stand-ins of a host's commands."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def stand_in(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_snap_is_known_by_where_its_command_is(tmp_path: Path, commands: Path) -> None:
    stand_in(commands / "snap", 'echo "{}"')
    (tmp_path / "snap" / "bin").mkdir(parents=True)
    (tmp_path / "snap" / "bin" / "docker").symlink_to(commands / "snap")
    assert run_script(f"{tmp_path}/snap/bin:{os.environ['PATH']}").engine.kind == "snap"


def test_podmans_docker_command_is_known_by_its_text(commands: Path) -> None:
    stand_in(commands / "podman", 'echo "{}"')
    stand_in(commands / "docker", f'exec {commands}/podman "$@"')
    assert run_script(f"{commands}:{os.environ['PATH']}").engine.kind == "podman"


def test_a_docker_command_that_is_a_link_to_podman_is_known(commands: Path) -> None:
    stand_in(commands / "podman", 'echo "{}"')
    (commands / "docker").symlink_to(commands / "podman")
    assert run_script(f"{commands}:{os.environ['PATH']}").engine.kind == "podman"


def test_engine_and_containers_come_from_the_docker_command(commands: Path) -> None:
    info = '{"ServerVersion":"28.5.1","DockerRootDir":"/","LiveRestoreEnabled":true}'
    containers = "printf 'running\\tweb\\t\\t\\nrunning\\tx\\tmnist\\t2222\\n'"
    stand_in(commands / "docker", f"case $1 in info) echo '{info}' ;; ps) {containers} ;; esac")
    host = run_script(f"{commands}:{os.environ['PATH']}")
    assert host.engine == Engine("28.5.1", live_restore=True, root="/", foreign=("web",))
    assert host.held == {2222}
    assert host.disk == "/"


def test_gpus_come_from_nvidia_smi(commands: Path) -> None:
    listed = "echo 'GPU-1, T4, 15360, 0, 570.1'; echo 'GPU-2, T4, 15360, 9, 570.1'"
    stand_in(commands / "nvidia-smi", f"case $* in *compute-apps*) echo GPU-2 ;; *) {listed} ;; esac")
    host = run_script(f"{commands}:{os.environ['PATH']}")
    assert [(gpu.uuid, gpu.in_use) for gpu in host.gpus] == [("GPU-1", False), ("GPU-2", True)]
    assert host.driver == "570.1"

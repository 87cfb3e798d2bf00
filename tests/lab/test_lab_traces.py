"""What a lab leaves behind: nothing. No other lab is up meanwhile."""

from pathlib import Path

import pytest

from tests.lab.conftest import LabUnderTest
from tfdeploy.lab import identity, machine

pytestmark = pytest.mark.lab


def test_down_leaves_nothing_behind(lab: LabUnderTest) -> None:
    before = _state_of_this_machine()
    lab("up", "--hosts", "3")
    assert lab.ansible("all", "-m", "ping").returncode == 0
    assert _state_of_this_machine() != before
    lab("down")
    assert _state_of_this_machine() == before
    assert not (lab.directory / "lab.ini").exists()


def test_a_lab_larger_than_inotify_allows_boots_and_down_sets_the_limit_back(lab: LabUnderTest) -> None:
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    before = limit.read_text()
    machine.as_root("sysctl", "-q", "-w", "fs.inotify.max_user_instances=130")
    try:
        lab("up", "--hosts", "1")
        assert int(limit.read_text()) > 130
        lab("down")
        assert int(limit.read_text()) == 130
    finally:
        machine.as_root("sysctl", "-q", "-w", f"fs.inotify.max_user_instances={before.strip()}")


def test_a_full_disk_is_told_and_nothing_is_left(lab: LabUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _state_of_this_machine()
    disk = lab.directory / "disk"
    disk.mkdir()
    machine.as_root("mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk))
    try:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        done = lab("up", "--hosts", "1", check=False)
    finally:
        monkeypatch.undo()
        machine.as_root("umount", str(disk))
    assert done.returncode == 1
    assert "could not be made" in done.stderr
    assert "Traceback" not in done.stderr
    assert _state_of_this_machine() == before


def _state_of_this_machine() -> dict[str, object]:
    """All that a lab could leave behind. Numbers that only ever grow are left out."""
    processes = machine.run(("ps", "-eo", "stat=,args=")).splitlines()
    return {
        "containers": machine.docker("ps", "--all", "--quiet", "--no-trunc"),
        "networks": sorted(machine.docker("network", "ls", "--format={{.Name}}").split()),
        "volumes": sorted(machine.docker("volume", "ls", "--quiet").split()),
        "mounts": sorted(line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()),
        "links": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "routes": machine.run(("ip", "route")),
        "inotify": Path("/proc/sys/fs/inotify/max_user_instances").read_text(),
        "ssh": [line for line in processes if "ssh" in line and not line.startswith("Z")],
        "labs": identity.names(),
    }

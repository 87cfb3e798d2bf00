"""A host after `down` is the host before `up`: files, processes, containers, mounts, ports, rules."""

import json
import time

import pytest

from tests.lab.conftest import LabUnderTest
from tests.lab.gang.conftest import TRAINER

pytestmark = pytest.mark.lab

# What changes by itself, or with any login; and the stores of the engine, which keep the image.
PASSED_OVER = (
    "/proc",
    "/sys",
    "/dev",
    "/tmp",
    "/run/user",
    "/run/log",
    "/run/sudo",
    "/run/systemd/journal",
    "/run/systemd/sessions",
    "/run/systemd/users",
    "/run/systemd/transient",
    "/run/systemd/units",
    "/run/utmp",
    "/var/log",
    "/var/lib/apt",
    "/var/cache/apt",
    "/var/lib/sudo",
    "/var/lib/lastlog",
    "/var/lib/wtmpdb",
    "/var/lib/systemd",
    "/var/lib/containerd",
    "/var/lib/docker/buildkit",
    "/var/lib/docker/containerd",
    "/var/lib/docker/image",
    "/var/lib/docker/overlay2",
    "/var/lib/docker/fuse-overlayfs",
    "/var/lib/docker/vfs",
    "/var/lib/docker/tmp",
)
PRUNE = " -o ".join(f"-path {path}" for path in PASSED_OVER)
LOOKS = {
    "files": f"find / \\( {PRUNE} \\) -prune -o -type d -printf '%p %M %U:%G\\n' -o -printf '%p %M %U:%G %s\\n'",
    # Kernel threads, and what any login or look brings: ours among them.
    "processes": "ps -eo ppid=,args= | awk '$1 != 0 && $1 != 2 { $1 = \"\"; print }' | grep -v -e sshd -e 'ps -eo' "
    "-e 'awk ' -e 'grep ' -e '^ *\\[' -e '(sd-pam)' -e 'systemd --user' -e 'systemd-.*d$' -e ' sh -c '",
    "containers": "docker ps -aq",
    "networks": "docker network ls --format '{{.Name}} {{.Driver}} {{.ID}}'",
    "volumes": "docker volume ls -q",
    "mounts": "cut -d' ' -f1-3 /proc/mounts | grep -v /run/user",
    "listening": "ss -Hltun | awk '{ print $1, $5 }'",
    "rules": "(iptables-save; ip6tables-save; nft list ruleset) 2>/dev/null | sed -E 's/\\[[0-9:]+\\]//; "
    "s/packets [0-9]+ bytes [0-9]+//; /^#/d'",
    "units": "systemctl list-units --all --plain --no-legend 'tfdeploy*' | cut -d' ' -f1",
}


def seen(lab: LabUnderTest, host: int) -> dict[str, set[str]]:
    return {what: set(lab.in_container(host, f"{look} || true").splitlines()) for what, look in LOOKS.items()}


def changes(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, set[str]]:
    return {what: before[what] ^ after[what] for what in LOOKS if before[what] != after[what]}


@pytest.mark.parametrize("runtime", ["docker", "process"])
def test_a_job_leaves_no_trace(gang: LabUnderTest, runtime: str) -> None:
    keys = {"image": f"{TRAINER}:root"} if runtime == "docker" else {"runtime": "process"}
    text = json.dumps({"name": "traces", **keys, "secrets": ["TOKEN"], "command": ["sleep", "1000000"]})
    file = gang.write("traces.yml", text)
    if runtime == "docker":
        # An engine's first container, whoever's it is, has it make directories and a namespace of its own in /run.
        first = ("--name", "first", "--image", f"{TRAINER}:root", "--detach", "--", "sleep", "1000000")
        assert gang.tfdeploy("up", "lab.ini", *first).returncode == 0
        assert gang.tfdeploy("down", "first").returncode == 0
    before = [seen(gang, host) for host in (1, 2)]
    done = gang.tfdeploy("up", "lab.ini", "-f", file, "--ps", "1", "--chief", "--detach", env={"TOKEN": "x"})
    assert done.returncode == 0, done.stderr
    assert all(changes(then, seen(gang, host)) for host, then in zip((1, 2), before, strict=True))
    write = ("sh", "-c", "echo > ${TFDEPLOY_OUTPUTS:-/outputs}/x")
    assert gang.tfdeploy("exec", "-j", "traces", "worker-0", "--", *write).returncode == 0
    gone = gang.tfdeploy("down", "traces", "--discard")
    assert gone.returncode == 0, gone.stderr
    assert ("kept on the hosts" in gone.stderr) == (runtime == "docker")
    # The last sessions end a moment later.
    for _ in range(20):
        left = [changes(then, seen(gang, host)) for host, then in zip((1, 2), before, strict=True)]
        if left == [{}, {}]:
            return
        time.sleep(0.5)
    assert left == [{}, {}]

"""What `tfdeploy provision` costs: warm over one plain parallel ssh to the same hosts, cold over what apt itself takes.

bench/provision.py [--hosts N] --json     the last line is one JSON object
"""

import argparse
import configparser
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TFDEPLOY = str(Path(sys.executable).with_name("tfdeploy"))
ROUNDS = 7
PACKAGES = "docker.io iptables rsync zstd iproute2 python3-apt"
APT = f"apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends {PACKAGES}"


def seconds(directory: str, *words: str) -> float:
    started = time.perf_counter()
    subprocess.run(words, check=True, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def lab(directory: str, verb: str, *words: str) -> None:
    seconds(directory, TFDEPLOY, "lab", verb, "--name", "bench", *words)


def in_parallel(commands: Sequence[Sequence[str]]) -> float:
    started = time.perf_counter()
    running = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for words in commands]
    codes = [each.wait() for each in running]
    assert not any(codes), codes
    return time.perf_counter() - started


def plain_ssh(directory: str) -> list[list[str]]:
    """`ssh HOST true` for every host of the inventory, with its own options and no connection kept open."""
    inventory = configparser.ConfigParser(allow_no_value=True, delimiters=("=",), interpolation=None)
    inventory.optionxform = str  # type: ignore[assignment, method-assign]
    text = Path(directory, "lab.ini").read_text()
    inventory.read_string(text)
    options = shlex.split(inventory["lab:vars"]["ansible_ssh_common_args"])
    key = inventory["lab:vars"]["ansible_ssh_private_key_file"]
    hosts = [
        dict(word.split("=", 1) for word in line.split()[1:]) for line in text.splitlines() if "ansible_host=" in line
    ]
    return [
        ["ssh", *options, "-S", "none", "-i", key, f"{host['ansible_user']}@{host['ansible_host']}", "true"]
        for host in hosts
    ]


def cold(directory: str, hosts: int) -> tuple[float, float]:
    """The same packages on equal bare hosts: by apt alone, and by `tfdeploy provision`."""
    lab(directory, "up", "--hosts", str(hosts))
    names = [f"tfdeploy-lab-bench-{number}" for number in range(1, hosts + 1)]
    apt = in_parallel([["docker", "exec", name, "sh", "-c", APT] for name in names])
    lab(directory, "down")
    lab(directory, "up", "--hosts", str(hosts))
    return apt, seconds(directory, TFDEPLOY, "provision", "lab.ini")


def warm(directory: str) -> tuple[float, float]:
    """Best of several, taken in turns."""
    commands, ssh, again = plain_ssh(directory), [], []
    for _ in range(ROUNDS):
        ssh.append(in_parallel(commands))
        again.append(seconds(directory, TFDEPLOY, "provision", "lab.ini"))
    return min(ssh), min(again)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as directory:
        try:
            apt, provisioned = cold(directory, arguments.hosts)
            ssh, again = warm(directory)
        finally:
            lab(directory, "down")
    figures = {
        "hosts": arguments.hosts,
        "apt_s": round(apt, 2),
        "cold_s": round(provisioned, 2),
        "cold_over_apt": round(provisioned / apt, 2),
        "plain_ssh_s": round(ssh, 3),
        "warm_s": round(again, 3),
        "warm_over_ssh": round(again / ssh, 2),
    }
    if arguments.json:
        print(json.dumps(figures))
        return
    print(f"cold: {provisioned:.1f} s, apt alone {apt:.1f} s: {figures['cold_over_apt']}x; limit 1.5x")
    print(f"warm: {again:.2f} s, one plain parallel ssh {ssh:.2f} s: {figures['warm_over_ssh']}x; limit 2x")


if __name__ == "__main__":
    main()

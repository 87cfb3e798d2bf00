"""This machine: its commands, root by sudo, its networks and its Docker engine."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import IO, Any

from tfdeploy import converge, paths
from tfdeploy.errors import TfdeployError
from tfdeploy.report import Report
from tfdeploy.wording import last_line

TOOLS = ("mmdebstrap", "ssh", "ssh-keygen", "ip", "tc")
SBIN = ":/usr/local/sbin:/usr/sbin:/sbin"

# By their numbers in the kernel.
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip


def run(words: Sequence[str], *, data: bytes | None = None) -> str:
    """The command's standard output; its own words in the error where it fails."""
    done = subprocess.run(words, input=data, capture_output=True, env=_environment())
    if done.returncode:
        raise TfdeployError(f"`{words_shown(words)}` failed: {last_words(done.stderr or done.stdout)}")
    return done.stdout.decode(errors="replace")


def start(*words: str, stdin: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """A command with pipes, for streams that are larger than memory."""
    return subprocess.Popen(
        words,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    )


def has(tool: str) -> bool:
    return shutil.which(tool, path=_environment()["PATH"]) is not None


def succeeds(words: Sequence[str]) -> bool:
    try:
        return subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, env=_environment()).returncode == 0
    except OSError:
        return False


def output(words: Sequence[str]) -> str:
    """What the command wrote, whether it succeeded or not."""
    return (
        subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, env=_environment()).stdout.decode().strip()
    )


def docker(*words: str, data: bytes | None = None) -> str:
    return run((*docker_words(), *words), data=data)


def as_root(*words: str) -> str:
    return run((*root_words(), *words))


@cache
def docker_words() -> tuple[str, ...]:
    """`docker`, through sudo where only root may speak to the engine."""
    if os.access("/var/run/docker.sock", os.W_OK):
        return ("docker",)
    return (*root_words(), "docker")


def root_words() -> tuple[str, ...]:
    return () if os.geteuid() == 0 else ("sudo", "-n")


def engine_answers() -> bool:
    return has("docker") and succeeds((*docker_words(), "version", "--format={{.Server.Version}}"))


def ready() -> bool:
    return all(has(tool) for tool in TOOLS) and engine_answers()


def make_ready(report: Report, ask_password: Callable[[], str]) -> None:
    """The Docker engine and the lab's tools, by the same role that the hosts get. Nothing is run where all is there."""
    if ready():
        return
    password = _become_root(ask_password)
    report.done("this machine gets, as Debian packages: docker.io, mmdebstrap, openssh-client, iproute2")
    run_dir = paths.state() / "controller"
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    inventory = paths.state() / "controller.ini"
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "auto_silent"
    inventory.write_text(f"localhost ansible_connection=local ansible_python_interpreter={python}\n")
    result = converge.converge(
        converge.Request(paths.playbook("controller.yml"), [str(inventory)], ["localhost"]),
        run_dir,
        become_password=password,
        on_progress=lambda step: report.doing(step.task),
    )
    if result.cancelled:
        raise KeyboardInterrupt
    if not result.good:
        failed = result.outcomes[0]
        raise TfdeployError(
            f"this machine could not be made ready at “{failed.task}”: {failed.message}",
            f"Ansible's own account is in {run_dir}. With a Docker engine, mmdebstrap, ssh and iproute2 there already, "
            "nothing is installed",
        )
    docker_words.cache_clear()
    report.done("this machine is ready")


def _become_root(ask_password: Callable[[], str]) -> str:
    """The sudo password, or nothing where none is needed. It is tried before anything else is."""
    if not has("apt-get"):
        raise TfdeployError(
            "the lab needs a Docker engine, mmdebstrap, ssh and iproute2, and knows how to install them on Debian only",
            "Install and start them, then try again",
        )
    if os.geteuid() == 0 or succeeds(("sudo", "-n", "true")):
        return ""
    if not has("sudo"):
        raise TfdeployError(
            "no Docker engine answers here, and installing one needs root or sudo",
            "Run as root, or have an administrator install Docker, mmdebstrap and iproute2",
        )
    password = ask_password()
    done = subprocess.run(("sudo", "-S", "-v", "-p", ""), input=f"{password}\n".encode(), capture_output=True)
    if done.returncode:
        raise TfdeployError(f"sudo refused: {last_words(done.stderr)}", "Try again with the right password")
    return password


def networks_in_use() -> tuple[IPv4Network, ...]:
    """Every IPv4 network that is routed here or that the engine has given out."""
    routed = [route["dst"] for route in json.loads(run(("ip", "-j", "-4", "route", "show", "table", "all")))]
    ids = docker("network", "ls", "--quiet").split()
    given = [
        config["Subnet"]
        for network in inspect("network", ids)
        for config in network["IPAM"]["Config"] or []
        if "Subnet" in config
    ]
    return tuple(_ipv4(text for text in (*routed, *given) if text != "default"))


def _ipv4(texts: Iterable[str]) -> Iterable[IPv4Network]:
    for text in texts:
        with contextlib.suppress(ValueError):
            network = ip_network(text)
            if isinstance(network, IPv4Network):
                yield network


def uplink_mtu() -> int:
    """What goes out of this machine whole; bridges with a larger one lose packets on some networks."""
    for route in json.loads(run(("ip", "-j", "-4", "route", "show", "default"))):
        return int(Path(f"/sys/class/net/{route['dev']}/mtu").read_text())
    return 1500


def missing_capabilities() -> tuple[str, ...]:
    """Capabilities that this machine withholds even from root: asking the engine for them fails."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/1/status").read_text().splitlines() if ":\t" in line)
    bounding = int(status["CapBnd"], 16)
    return tuple(name for number, name in enumerate(CAPABILITIES) if not bounding >> number & 1)


def inspect(kind: str, names: Sequence[str]) -> list[Mapping[str, Any]]:
    if not names:
        return []
    found: list[Mapping[str, Any]] = json.loads(docker(kind, "inspect", *names))
    return found


def free_bytes() -> tuple[str, int]:
    """Where the engine keeps its data, and how much is free there."""
    root = docker("info", "--format={{.DockerRootDir}}").strip()
    known = next(path for path in (Path(root), *Path(root).parents) if os.access(path, os.X_OK))
    return root, shutil.disk_usage(known).free


def last_words(output: bytes) -> str:
    return last_line(output.decode(errors="replace")) or "it said nothing"


def words_shown(words: Sequence[str]) -> str:
    shown = " ".join(words)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"


def _environment() -> dict[str, str]:
    """A user's PATH often lacks the directories where ip, tc and mmdebstrap's helpers are."""
    return {**os.environ, "PATH": os.environ.get("PATH", os.defpath) + SBIN, "LC_ALL": "C.UTF-8"}

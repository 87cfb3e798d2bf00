"""What starting a job costs: one container on each host, by `tfdeploy up`, plain parallel ssh, Ansible and pyinfra.

bench/launch.py [--hosts N] [--cpu-hosts 1,4,16] --json     the last line is one JSON object

Every contender enters the hosts anew and starts the same: a 2 MB image that is there already, host network, a name, a
label, an init and a TF_CONFIG of its own. `plain`, `ansible_run` and `pyinfra_run` do a bare `docker run`; `ansible`
and `pyinfra` do what `up` does: look at engine, image and ports, keep a plan and a hosts file, create on all hosts
before any starts, and look whether all run.
`hosts_alone` is what no contender can be faster than: the hosts start their containers themselves, at an agreed moment.
Lab hosts share this machine's processors, so that it grows with their number.
pyinfra has a virtual environment of its own: it wants an older paramiko than the one tfdeploy is developed with.
"""

import argparse
import io
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from tfdeploy.lab import machine

BIN = Path(sys.executable).parent
TFDEPLOY = str(BIN / "tfdeploy")
PYINFRA = "pyinfra==3.10.0"
PYINFRA_VENV = Path(sys.prefix) / PYINFRA
LAB = "launch"
JOB = "bench"
IMAGE = "bench-busybox:1"
APPLETS = ("cat", "echo", "env", "ls", "mkdir", "rm", "sh", "sleep", "tar", "true")
COMMAND = ("sleep", "1000000")
HOW = ("--network=host", f"--name={JOB}-task", f"--label={JOB}={LAB}", "--init")
RUN = ("docker", "run", "--detach", *HOW)
CREATE = ("docker", "create", *HOW)
START = ("docker", "start", f"{JOB}-task")
LOOK = ("docker", "inspect", "--format={{.State.Running}}", f"{JOB}-task")
INSPECT_IMAGE = ("docker", "image", "inspect", IMAGE)
PORTS = ("ss", "-Hltn")
DIRECTORY = "/var/lib/bench-job"
ROUNDS = 5
CPU_ROUNDS = 3
CPU_HOSTS = (1, 4, 16)
# What removed containers leave to do on the hosts is not the next contender's work.
SECONDS_TO_SETTLE = 1
LIMITS = {"over_plain_ssh": "1.5 or less", "ansible_over_tfdeploy": "5 or more", "pyinfra_over_tfdeploy": "1.5 or more"}


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    user: str
    key: str
    options: tuple[str, ...]
    sudo_password: str

    @property
    def container(self) -> str:
        return f"tfdeploy-lab-{self.name}"

    def ssh(self, option: Sequence[str], *command: str) -> tuple[str, ...]:
        return ("ssh", *self.options, *option, "-i", self.key, f"{self.user}@{self.address}", *command)


@dataclass(frozen=True)
class Command:
    words: Sequence[str]
    stdin: str = ""


@dataclass(frozen=True)
class Run:
    """Seconds on the clock, and of this machine's processors: the commands' and those of what they waited for."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Contender:
    name: str
    launch: Callable[[], Run]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None


def main() -> None:
    arguments = parsed()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, stop)
    counts = arguments.cpu_hosts or [count for count in CPU_HOSTS if count <= arguments.hosts]
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        try:
            lab = prepared(directory, max(arguments.hosts, *counts))
            runs = in_turns(contenders(directory, lab[: arguments.hosts]), lab[: arguments.hosts])
            cpu = controller_cpu(directory, lab, counts)
        finally:
            quietly(directory, TFDEPLOY, "lab", "down", "--name", LAB)
            quietly(directory, *machine.docker_words(), "rmi", IMAGE)
    figures = summary(arguments.hosts, runs, cpu)
    print(json.dumps(figures) if arguments.json else readable(figures))


def parsed() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return sorted({int(word) for word in text.split(",")})

    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--cpu-hosts", type=numbers, help="with how many hosts to take the controller's CPU time")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def stop(*_: object) -> NoReturn:
    """So that the lab goes down on SIGTERM, too."""
    sys.exit(143)


# The contenders


def contenders(directory: Path, hosts: Sequence[Host]) -> list[Contender]:
    return [
        hosts_alone(hosts),
        plain(directory, hosts),
        tfdeploy(directory, hosts),
        *ansible(directory, hosts),
        *pyinfra(directory, hosts),
    ]


def hosts_alone(hosts: Sequence[Host]) -> Contender:
    """Nobody enters the hosts: each waits for the same moment and tells when its container was there."""

    def launch() -> Run:
        moment = time.time_ns() + (2 * 10**9 + len(hosts) * 10**9 // 4)
        left = f"left=$(({moment} - $(date +%s%N)))"
        wait = f"{left}; sleep $(printf %d.%09d $((left / {10**9})) $((left % {10**9})))"
        ended = on_hosts(hosts, *(f"set -e; {wait}; {launch} >&2; date +%s%N" for launch in launches(hosts)))
        return Run((max(map(int, ended)) - moment) / 10**9, 0)

    return Contender("hosts_alone", launch)


def plain(directory: Path, hosts: Sequence[Host]) -> Contender:
    """`ssh HOST docker run` for all hosts at once, with no connection kept open."""
    commands = []
    for host, launch in zip(hosts, launches(hosts), strict=True):
        sudo = "sudo -S -p '' " if host.sudo_password else ""
        commands.append(Command(host.ssh(("-S", "none"), sudo + launch), host.sudo_password))
    return Contender("plain", lambda: measured(directory, commands))


def tfdeploy(directory: Path, hosts: Sequence[Host]) -> Contender:
    # On a single host there is room for a worker only.
    shape = ("--num", str(len(hosts)), "--ps", "1" if len(hosts) > 1 else "0")
    words = (TFDEPLOY, "up", "lab.ini", "--detach", *shape, "--name", JOB, "--image", IMAGE, "--", *COMMAND)

    def down() -> None:
        quietly(directory, TFDEPLOY, "down", JOB, "--discard")

    return Contender("tfdeploy", lambda: measured(directory, [Command(words)]), before=down, after=down)


def ansible(directory: Path, hosts: Sequence[Host]) -> list[Contender]:
    """Its best: pipelining, no facts, a fork for each host, new connections."""
    config = {"environment": {"TF_CONFIG": "{{ configs[inventory_hostname] }}"}}
    run = [{"name": "Run", **config, "ansible.builtin.command": {"argv": [*RUN, "--env=TF_CONFIG", IMAGE, *COMMAND]}}]
    same = [
        {"name": "Image", "ansible.builtin.command": {"argv": list(INSPECT_IMAGE)}},
        {"name": "Ports", "ansible.builtin.command": {"argv": list(PORTS)}},
        {"name": "Directory", "ansible.builtin.file": {"path": DIRECTORY, "state": "directory", "mode": "0700"}},
        {
            "name": "Names",
            "ansible.builtin.copy": {"dest": f"{DIRECTORY}/hosts", "content": names(hosts), "mode": "0644"},
        },
        {
            "name": "Plan",
            "ansible.builtin.copy": {"dest": f"{DIRECTORY}/plan", "content": names(hosts), "mode": "0600"},
        },
        {
            "name": "Create",
            **config,
            "ansible.builtin.command": {"argv": [*CREATE, "--env=TF_CONFIG", IMAGE, *COMMAND]},
        },
        {"name": "Start", "ansible.builtin.command": {"argv": list(START)}},
        {
            "name": "Look",
            "ansible.builtin.command": {"argv": ["{% raw %}" + word + "{% endraw %}" for word in LOOK]},
            "register": "seen",
            "failed_when": "seen.stdout != 'true'",
        },
    ]
    settings = {"ANSIBLE_PIPELINING": "1", "ANSIBLE_HOST_KEY_CHECKING": "1"}

    def contender(name: str, tasks: Sequence[Mapping[str, Any]]) -> Contender:
        play = {
            "hosts": [host.name for host in hosts],
            "gather_facts": False,
            "become": "{{ ansible_user != 'root' }}",
            "vars": {"configs": dict(zip((host.name for host in hosts), tf_configs(hosts), strict=True))},
            "tasks": tasks,
        }
        (directory / f"{name}.yml").write_text(json.dumps([play]))
        words = (str(BIN / "ansible-playbook"), "-i", "lab.ini", "--forks", str(len(hosts)), f"{name}.yml")
        return Contender(name, lambda: measured(directory, [Command(words)], settings), before=close_connections)

    def close_connections() -> None:
        for host in hosts:
            quietly(directory, *host.ssh(("-O", "exit")))

    return [contender("ansible", same), contender("ansible_run", run)]


def pyinfra(directory: Path, hosts: Sequence[Host]) -> list[Contender]:
    inventory = [
        (
            host.name,
            {
                "ssh_hostname": host.address,
                "ssh_user": host.user,
                "ssh_key": host.key,
                "ssh_known_hosts_file": str(Path(host.key).with_name("known_hosts")),
                "ssh_strict_host_key_checking": "yes",
                "ssh_allow_agent": False,
                "ssh_look_for_keys": False,
                "launch": launch,
                "create": create,
                **({"_sudo": True, "_sudo_password": host.sudo_password} if host.sudo_password else {}),
            },
        )
        for host, launch, create in zip(hosts, launches(hosts), launches(hosts, CREATE), strict=True)
    ]
    (directory / "inventory.py").write_text(f"hosts = {inventory!r}\n")
    (directory / "names").write_text(names(hosts))
    begin = "from pyinfra import host\nfrom pyinfra.operations import files, server\n"
    look = f'test "$({shlex.join(LOOK)})" = true'
    (directory / "pyinfra_run.py").write_text(f"{begin}server.shell(commands=[host.data.launch])\n")
    (directory / "pyinfra.py").write_text(
        f"{begin}server.shell(commands={[shlex.join(INSPECT_IMAGE), shlex.join(PORTS)]!r})\n"
        f"files.directory(path={DIRECTORY!r}, mode='700')\n"
        f"files.put(src='names', dest={DIRECTORY + '/hosts'!r})\n"
        f"files.put(src='names', dest={DIRECTORY + '/plan'!r})\n"
        "server.shell(commands=[host.data.create])\n"
        f"server.shell(commands={[shlex.join(START), look]!r})\n"
    )
    program = str(PYINFRA_VENV / "bin" / "pyinfra")

    def contender(name: str) -> Contender:
        words = (program, "--yes", "--parallel", str(len(hosts)), "inventory.py", f"{name}.py")
        return Contender(name, lambda: measured(directory, [Command(words)]))

    return [contender("pyinfra"), contender("pyinfra_run")]


def names(hosts: Sequence[Host]) -> str:
    return "".join(f"{host.address} {host.name}\n" for host in hosts)


def launches(hosts: Sequence[Host], words: Sequence[str] = RUN) -> list[str]:
    return [shlex.join((*words, f"--env=TF_CONFIG={config}", IMAGE, *COMMAND)) for config in tf_configs(hosts)]


def tf_configs(hosts: Sequence[Host]) -> list[str]:
    """What tfdeploy would tell the tasks: one parameter server, and a worker on each other host."""
    first, *others = [f"{host.address}:2222" for host in hosts]
    cluster = {"ps": [first], "worker": others} if others else {"worker": [first]}
    tasks = [{"type": role, "index": index} for role, members in cluster.items() for index in range(len(members))]
    return [json.dumps({"cluster": cluster, "task": task, "environment": "cloud"}) for task in tasks]


# Measuring


def in_turns(contenders: Sequence[Contender], hosts: Sequence[Host]) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    for _ in range(ROUNDS):
        for contender in contenders:
            runs[contender.name].append(launched(contender, hosts))
    return runs


def controller_cpu(directory: Path, lab: Sequence[Host], counts: Sequence[int]) -> dict[int, float]:
    """Best CPU seconds of `tfdeploy up`, with so many hosts."""
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(CPU_ROUNDS):
        for count in counts:
            hosts = lab[:count]
            seconds[count].append(launched(tfdeploy(directory, hosts), hosts).cpu)
    return {count: min(each) for count, each in seconds.items()}


def launched(contender: Contender, hosts: Sequence[Host]) -> Run:
    contender.before()
    time.sleep(SECONDS_TO_SETTLE)
    run = contender.launch()
    check(contender.name, hosts)
    contender.after()
    clear(hosts)
    return run


def measured(directory: Path, commands: Sequence[Command], settings: Mapping[str, str] | None = None) -> Run:
    """All commands at once."""
    environment = {**os.environ, **(settings or {})}
    with (directory / "said").open("w+") as said:
        started = time.perf_counter()
        running = [
            subprocess.Popen(
                command.words,
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                text=True,
            )
            for command in commands
        ]
        for command, process in zip(commands, running, strict=True):
            if process.stdin:
                process.stdin.write(f"{command.stdin}\n")
                process.stdin.close()
        cpu = 0.0
        for process in running:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu += usage.ru_utime + usage.ru_stime
        wall = time.perf_counter() - started
        said.seek(0)
        for process, command in zip(running, commands, strict=True):
            assert process.returncode == 0, (
                f"{shlex.join(command.words)} ended with {process.returncode}: {said.read()}"
            )
    return Run(wall, cpu)


def check(contender: str, hosts: Sequence[Host]) -> None:
    """Each host runs one task, each task another one, and each has been told of the whole cluster."""
    environments = on_hosts(
        hosts, "docker ps -q | xargs -r docker inspect --format '{{range .Config.Env}}{{println .}}{{end}}'"
    )
    told = [
        [line.partition("=")[2] for line in said.splitlines() if line.startswith("TF_CONFIG=")] for said in environments
    ]
    assert all(len(each) == 1 for each in told), f"{contender}: {told}"
    configs = [json.loads(each[0]) for each in told]
    tasks = {(config["task"]["type"], config["task"]["index"]) for config in configs}
    members = {sum(map(len, config["cluster"].values())) for config in configs}
    assert len(tasks) == len(hosts), f"{contender}: {tasks}"
    assert members == {len(hosts)}, f"{contender}: {members}"


def clear(hosts: Sequence[Host]) -> None:
    on_hosts(hosts, f"docker ps -aq | xargs -r docker rm --force; rm -rf {DIRECTORY}")


def on_hosts(hosts: Sequence[Host], *scripts: str, data: bytes = b"") -> list[str]:
    """Past SSH, as root, on all hosts at once: one script for all, or one for each."""
    words = (*machine.docker_words(), "exec", "-i")
    running = [
        subprocess.Popen(
            (*words, host.container, "sh", "-c", script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for host, script in zip(hosts, scripts if len(scripts) > 1 else scripts * len(hosts), strict=True)
    ]
    said = [process.communicate(data)[0].decode() for process in running]
    assert not any(process.returncode for process in running), scripts[0]
    return said


def quietly(directory: Path, *words: str) -> None:
    """For what may have nothing to do."""
    subprocess.run(words, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# Preparing


def prepared(directory: Path, count: int) -> list[Host]:
    """Provisioned hosts with the image on them, and on this machine."""
    install_pyinfra()
    measured(directory, [Command((TFDEPLOY, "lab", "up", "--name", LAB, "--hosts", str(count)))])
    measured(directory, [Command((TFDEPLOY, "provision", "lab.ini"))])
    machine.docker("import", "--change=ENTRYPOINT []", "-", IMAGE, data=file_system(busybox(directory)))
    archive = subprocess.check_output((*machine.docker_words(), "save", IMAGE))
    hosts = lab_hosts(directory)
    on_hosts(hosts, "docker load", data=archive)
    clear(hosts)
    return hosts


def install_pyinfra() -> None:
    if (PYINFRA_VENV / "bin" / "pyinfra").exists():
        return
    venv.create(PYINFRA_VENV, clear=True, with_pip=True)
    pip = (str(PYINFRA_VENV / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check")
    subprocess.run((*pip, "install", PYINFRA), check=True, stdout=sys.stderr)


def lab_hosts(directory: Path) -> list[Host]:
    words = (str(BIN / "ansible-inventory"), "-i", "lab.ini", "--list")
    listed: dict[str, Any] = json.loads(subprocess.check_output(words, cwd=directory))
    variables = listed["_meta"]["hostvars"]
    return [
        Host(
            name,
            address=variables[name]["ansible_host"],
            user=variables[name]["ansible_user"],
            key=variables[name]["ansible_ssh_private_key_file"],
            options=tuple(shlex.split(variables[name]["ansible_ssh_common_args"])),
            sudo_password=variables[name].get("ansible_become_password", ""),
        )
        for name in listed["lab"]["hosts"]
    ]


def busybox(directory: Path) -> bytes:
    """Debian's static one, unpacked and not installed: it would take the place of the machine's own."""
    download = ("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "busybox-static")
    subprocess.run(download, check=True, cwd=directory, stdout=sys.stderr)
    package = next(directory.glob("busybox-static_*.deb"))
    subprocess.run(("dpkg-deb", "--extract", str(package), "busybox"), check=True, cwd=directory)
    return next((directory / "busybox").glob("**/bin/busybox")).read_bytes()


def file_system(program: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("bin/busybox")
        member.size, member.mode = len(program), 0o755
        tar.addfile(member, io.BytesIO(program))
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return archive.getvalue()


# Telling


def summary(hosts: int, runs: Mapping[str, Sequence[Run]], cpu: Mapping[int, float]) -> dict[str, Any]:
    best = {name: min(run.wall for run in each) for name, each in runs.items()}
    median = {name: statistics.median(run.wall for run in each) for name, each in runs.items()}
    further = {more: (cpu[more] - cpu[fewer]) / (more - fewer) for fewer, more in pairwise(sorted(cpu))}
    return {
        "hosts": hosts,
        **ratios(best),
        "of_medians": ratios(median),
        "best_s": rounded(best, 3),
        "median_s": rounded(median, 3),
        "cpu_ms": {name: round(min(run.cpu for run in each) * 1000) for name, each in runs.items()},
        "controller_cpu_ms": {str(count): round(seconds * 1000) for count, seconds in cpu.items()},
        "controller_cpu_ms_per_host": {str(count): round(seconds * 1000 / count, 1) for count, seconds in cpu.items()},
        "controller_cpu_ms_per_further_host": {str(more): round(s * 1000, 1) for more, s in further.items()},
    }


def ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    ours = seconds["tfdeploy"]
    return rounded(
        {
            "over_plain_ssh": ours / seconds["plain"],
            "ansible_over_tfdeploy": seconds["ansible"] / ours,
            "pyinfra_over_tfdeploy": seconds["pyinfra"] / ours,
            "ansible_run_over_tfdeploy": seconds["ansible_run"] / ours,
            "pyinfra_run_over_tfdeploy": seconds["pyinfra_run"] / ours,
        },
        2,
    )


def rounded(figures: Mapping[str, float], digits: int) -> dict[str, float]:
    return {name: round(figure, digits) for name, figure in figures.items()}


def readable(figures: Mapping[str, Any]) -> str:
    lines = [f"{figures['hosts']} hosts: seconds (best, median), CPU on this machine"]
    for name, best in figures["best_s"].items():
        lines.append(f"  {name:18} {best:6.2f} {figures['median_s'][name]:6.2f} {figures['cpu_ms'][name]:6} ms")
    lines += [f"{name}: {figures[name]}x; limit {limit}" for name, limit in LIMITS.items()]
    for count, total in figures["controller_cpu_ms"].items():
        further = figures["controller_cpu_ms_per_further_host"].get(count)
        lines.append(
            f"tfdeploy up, {count} hosts: {total} ms of CPU" + (f", {further} ms a further host" * bool(further))
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()

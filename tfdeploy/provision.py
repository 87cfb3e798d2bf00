"""Bare machines become container hosts: who needs it, the playbook for those, and what came of it."""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdeploy import converge, facts, paths, remote
from tfdeploy.converge import Convergence, HostOutcome, Progress
from tfdeploy.errors import TfdeployError
from tfdeploy.facts import Facts
from tfdeploy.inventory import Host, Inventory, Vault
from tfdeploy.remote import Cause, Credentials, HostUnreachable
from tfdeploy.wording import show_size

TOLERATED_CLOCK_OFFSET = 1.0
TOOLS = frozenset({"rsync", "zstd", "ip"})
LEAST_FREE = 64 << 20
RUNS_KEPT = 20
PROMPTS = ("prompt", "prompt_ask_vault_pass")

# The last words of package managers, sudo and ssh, in ours.
EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    (r"No space left on device|enough free space", "disk full", "Make room there, then try again"),
    (r"[Cc]ould not get lock|lock.*held by", "another package manager is at work", "Wait for it, then try again"),
    (r"Could not resolve hostname", "name unknown", "Give its address as ansible_host in the inventory"),
    (r"Failed to fetch|Temporary failure resolving|Could not resolve|Failed to download metadata",
     "its package sources cannot be reached", "Check its network, proxy and package sources"),
    (r"Incorrect sudo password|incorrect password", "sudo password wrong", "Give the right one with -K"),
    (r"Missing sudo password|password is required", "sudo wants a password", "Give it with -K"),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "host key changed", "Make sure that it is the machine you mean"),
    (r"Host key verification failed", "host key unknown", "Log in once with `ssh` and accept its key"),
    (r"interpreter.*(not found|No such file)|python.*: not found", "no Python", "Install python3 there"),
)  # fmt: skip


@dataclass(frozen=True)
class Provisioning:
    """What was found, what was done and what came of it, host by host."""

    found: Mapping[str, Facts | TfdeployError]
    reasons: Mapping[str, tuple[str, ...]]
    """Why each host that was converged needed it."""
    convergence: Convergence | None = None

    @property
    def unreachable(self) -> dict[str, TfdeployError]:
        before = {host: answer for host, answer in self.found.items() if isinstance(answer, TfdeployError)}
        meanwhile = [outcome for outcome in self.outcomes if outcome.state == "unreachable"]
        return before | {outcome.host: explained(outcome) for outcome in meanwhile}

    @property
    def failed(self) -> dict[str, TfdeployError]:
        bad = [outcome for outcome in self.outcomes if outcome.state in ("failed", "untouched")]
        return {outcome.host: explained(outcome) for outcome in bad}

    @property
    def errors(self) -> dict[str, TfdeployError]:
        return self.unreachable | self.failed

    def state(self, host: str) -> str:
        """unreachable, as-wanted, or how the convergence ended there."""
        ended = {outcome.host: outcome.state for outcome in self.outcomes}
        return "unreachable" if host in self.unreachable else ended.get(host, "as-wanted")

    @property
    def outcomes(self) -> tuple[HostOutcome, ...]:
        return self.convergence.outcomes if self.convergence else ()

    @property
    def as_wanted(self) -> tuple[str, ...]:
        return tuple(host for host in remote.answered(self.found) if host not in self.reasons)


@dataclass(frozen=True)
class Choices:
    """How Ansible users steer a playbook."""

    check: bool = False
    diff: bool = False
    tags: str = ""
    extra_vars: tuple[str, ...] = ()
    verbosity: int = 0

    @property
    def explicit(self) -> bool:
        """Asked for something in particular: then no host is skipped because it is as wanted."""
        return self.check or bool(self.tags)


def provision(
    sources: Sequence[str],
    inventory: Inventory,
    credentials: Credentials,
    choices: Choices,
    vault: Vault,
    *,
    on_found: Callable[[Provisioning], None] = lambda provisioning: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_output: Callable[[str], None] = lambda text: None,
) -> Provisioning:
    """Look at all hosts, converge those that need it, and say what became of each."""
    found = look(inventory.hosts, credentials)
    wanted = digest(choices.extra_vars)
    reasons = {
        host: needs(answer, wanted) or (("asked for",) if choices.explicit else ())
        for host, answer in found.items()
        if isinstance(answer, Facts)
    }
    todo = {host: why for host, why in reasons.items() if why}
    provisioning = Provisioning(found, todo)
    on_found(provisioning)
    if not todo:
        return provisioning
    request = converge.Request(
        paths.playbook("provision.yml"),
        [source if "," in source else _whole_path(source) for source in sources],
        tuple(todo),
        extravars={"tfdeploy_digest": wanted},
        tags=choices.tags,
        check=choices.check,
        diff=choices.diff,
        verbosity=choices.verbosity,
        options=ansible_words(choices.extra_vars, vault),
    )
    convergence = converge.converge(
        request,
        new_run("provision"),
        become_password=credentials.become.value if credentials.become else "",
        login_password=credentials.login.value if credentials.login else "",
        vault_password=vault.password.value if vault.password else "",
        on_progress=on_progress,
        on_output=on_output,
    )
    return Provisioning(found, todo, convergence)


def look(hosts: Sequence[Host], credentials: Credentials) -> dict[str, Facts | TfdeployError]:
    """Every host's facts, or why it cannot be worked on."""

    def one(host: Host) -> Facts:
        entered = remote.enter(host, credentials)
        try:
            return facts.ask(entered)
        finally:
            entered.close()

    answers = remote.on_each({host.name: host for host in hosts}, one)
    return {name: workable(name, answer) for name, answer in answers.items()}


def workable(name: str, answer: Facts | TfdeployError) -> Facts | TfdeployError:
    """Ansible cannot even put its modules on a full disk."""
    if isinstance(answer, Facts) and answer.disk_free < LEAST_FREE:
        return HostUnreachable(name, Cause.DISK_FULL, f"{show_size(answer.disk_free)} left on {answer.disk}")
    return answer


def needs(host: Facts, wanted: str) -> tuple[str, ...]:
    """Why a host is not as wanted; nothing where it is."""
    reasons = []
    if host.converged != wanted:
        reasons.append("provisioned by another version" if host.converged else "not provisioned yet")
    if host.engine.fault and host.converged:
        reasons.append(host.engine.fault)
    if not host.python:
        reasons.append("no Python")
    if missing := sorted(TOOLS - host.tools):
        reasons.append(f"no {', '.join(missing)}")
    if abs(host.clock_offset) > TOLERATED_CLOCK_OFFSET:
        reasons.append(f"clock off by {host.clock_offset:+.1f} s")
    return tuple(reasons)


def ansible_words(extra_vars: Sequence[str], vault: Vault) -> tuple[str, ...]:
    """For ansible-playbook, which runs in another directory: files are named by their whole paths."""
    absolute = [f"@{_whole_path(text[1:])}" if text.startswith("@") else text for text in extra_vars]
    return (
        *(word for text in absolute for word in ("--extra-vars", text)),
        *(f"--vault-id={_absolute_vault_id(each)}" for each in vault.ids),
        *(f"--vault-password-file={_whole_path(file)}" for file in vault.password_files),
    )


def _absolute_vault_id(vault_id: str) -> str:
    """`label@file`, `file` or `label@prompt`; a label ends at the first @."""
    label, at, source = vault_id.partition("@") if "@" in vault_id else ("", "", vault_id)
    return f"{label}{at}{source if source in PROMPTS else _whole_path(source)}"


def _whole_path(path: str) -> str:
    """Ansible knows ~ where a shell did not put in the home, as behind @ and =."""
    return os.path.abspath(os.path.expanduser(path))


def digest(extra_vars: Sequence[str]) -> str:
    """Of all that a convergence does: the playbook, the roles and the user's variables."""
    content = hashlib.sha256(json.dumps(list(extra_vars)).encode())
    given = [Path(_whole_path(text[1:])) for text in extra_vars if text.startswith("@")]
    files = [(path.name, path) for path in (*given, paths.playbook("provision.yml"))]
    roles = paths.roles()
    files += [(str(path.relative_to(roles)), path) for path in sorted(roles.rglob("*")) if path.is_file()]
    for name, path in files:
        content.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()[:32]


def explained(outcome: HostOutcome) -> TfdeployError:
    """A failed task in the module's own words, with the cause in ours where we know it."""
    at = f"at “{outcome.task}”: " if outcome.task else ""
    for pattern, what, remedy in EXPLANATIONS:
        if re.search(pattern, outcome.message):
            return TfdeployError(f"{what}, {at}{outcome.message}", remedy, where=outcome.host)
    if outcome.state == "untouched":
        return TfdeployError("the playbook did not get to it", where=outcome.host)
    return TfdeployError(f"{at}{outcome.message}", where=outcome.host)


def new_run(name: str) -> Path:
    """A run directory of its own; the oldest ones go."""
    runs = paths.state() / "runs"
    runs.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sorted(runs.iterdir())[: -(RUNS_KEPT - 1)]:
        shutil.rmtree(old, ignore_errors=True)
    return runs / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}-{os.getpid()}"

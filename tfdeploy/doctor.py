"""Preflight without changes: what stands between these hosts and a job. Pure, but for `examine`."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tfdeploy import edges, facts, plan, remote
from tfdeploy.edges import Edge
from tfdeploy.errors import InputError, TfdeployError
from tfdeploy.facts import Facts
from tfdeploy.inventory import Host, Inventory
from tfdeploy.plan import Plan, Wishes
from tfdeploy.provision import TOLERATED_CLOCK_OFFSET
from tfdeploy.remote import Cause, Credentials, HostUnreachable
from tfdeploy.room import is_loopback
from tfdeploy.spec import JobSpec
from tfdeploy.wording import counted, show_size, some

State = Literal["ok", "warning", "failed", "skipped"]

DISK_FOR_AN_IMAGE = 5 << 30
DISK_FOR_COMFORT = 20 << 30
MEMORY_FOR_A_TASK = 1 << 30

# A host that could not be entered failed at one of these; those before it passed.
STAIRS: tuple[tuple[str, frozenset[Cause]], ...] = (
    ("ssh", frozenset({Cause.REFUSED, Cause.TIMEOUT, Cause.NO_ROUTE, Cause.NAME_UNKNOWN, Cause.DROPPED})),
    ("host key", frozenset({Cause.KEY_UNKNOWN, Cause.KEY_CHANGED})),
    ("login", frozenset({Cause.LOGIN})),
    ("sudo", frozenset({Cause.SUDO_PASSWORD_MISSING, Cause.SUDO_PASSWORD_WRONG, Cause.NO_SUDO})),
)

ENGINE_REMEDIES = {
    "snap": "Remove it with `snap remove docker`, then `tfdeploy provision`",
    "podman": "Remove the package podman-docker, then `tfdeploy provision`",
}


@dataclass(frozen=True)
class Finding:
    host: str
    check: str
    state: State
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    findings: tuple[Finding, ...]
    unreachable: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        if self.unreachable:
            return 3
        return 1 if any(finding.state == "failed" for finding in self.findings) else 0


def examine(inventory: Inventory, job: JobSpec, wishes: Wishes, credentials: Credentials) -> Diagnosis:
    """Enter every host, read its facts, try every edge of the plan. Nothing is changed anywhere."""
    with remote.entered(inventory.hosts, credentials) as entered:
        answers = facts.of_all(entered)
        planned = _plan(inventory, job, wishes, remote.answered(answers))
        tried = edges.attempt(edges.edges(planned), remote.answered(entered)) if isinstance(planned, Plan) else {}
    findings = [
        finding
        for host in inventory.hosts
        for finding in (*examined(host, answers[host.name], planned), *edge_findings(host.name, tried))
    ]
    if isinstance(planned, InputError):
        findings.append(
            Finding("job", "plan", "failed", f"{planned.where}: {planned.what}".lstrip(": "), planned.remedy)
        )
    return Diagnosis(tuple(findings), tuple(name for name in answers if name not in remote.answered(answers)))


def _plan(inventory: Inventory, job: JobSpec, wishes: Wishes, known: Mapping[str, Facts]) -> Plan | InputError:
    """For the hosts that answered: what the others lack is said of them anyway."""
    answering = replace(inventory, hosts=tuple(host for host in inventory.hosts if host.name in known))
    if not answering.hosts:
        return InputError("no host could be entered", "See above")
    try:
        return plan.plan(answering, job, wishes, known)
    except InputError as error:
        return error


def examined(host: Host, answer: Facts | TfdeployError, planned: Plan | InputError) -> Iterator[Finding]:
    """All that is to say of one host from its facts."""
    if isinstance(answer, TfdeployError):
        yield from entrance(host.name, answer)
        return
    for stair, _ in STAIRS:
        yield Finding(host.name, stair, "ok")
    for check, state, detail, remedy in (
        ("system", *_system(answer)),
        ("python", *_python(answer)),
        ("disk", *_disk(answer)),
        ("memory", *_memory(answer)),
        ("clock", *_clock(answer)),
        ("docker", *_docker(answer)),
        ("firewall", *_firewall(answer)),
        ("ports", *_ports(host, answer, planned)),
        ("address", *_address(host, answer, planned)),
    ):
        yield Finding(host.name, check, state, detail, remedy)


def entrance(host: str, error: TfdeployError) -> Iterator[Finding]:
    """Up to the stair where it failed; what lies behind is unknown. Wrong words of the inventory lead to no stair."""
    cause = error.cause if isinstance(error, HostUnreachable) else None
    unknown = "ssh" if isinstance(error, InputError) else "facts"
    failed_at = next((name for name, causes in STAIRS if cause in causes), unknown)
    for name in (*(stair for stair, _ in STAIRS), "facts"):
        if name == failed_at:
            yield Finding(host, name, "failed", error.what, error.remedy)
            return
        yield Finding(host, name, "ok")


def edge_findings(host: str, tried: Mapping[Edge, str]) -> Iterator[Finding]:
    for edge, obstacle in tried.items():
        if edge.source == host:
            remedy = (
                f"Open port {edge.target.port} on {edge.target.host} for {host}, or name another training address"
                " (tfdeploy_address)"
            )
            yield Finding(host, edge.name, "failed" if obstacle else "ok", obstacle, remedy if obstacle else "")


Verdict = tuple[State, str, str]


def _system(host: Facts) -> Verdict:
    shown = f"{host.system.name or host.system.id or 'unknown'}, kernel {host.system.kernel}"
    if not host.system.family:
        return "failed", shown, "Use a Debian, Ubuntu or RedHat family system"
    return "ok", shown, ""


def _python(host: Facts) -> Verdict:
    if not host.python:
        return "failed", "no python3", "`tfdeploy provision` installs it"
    return "ok", host.python, ""


def _disk(host: Facts) -> Verdict:
    shown = f"{show_size(host.disk_free)} free on {host.disk}"
    if host.disk_free < DISK_FOR_AN_IMAGE:
        return "failed", shown, f"A trainer image wants {show_size(DISK_FOR_AN_IMAGE)}: make room"
    if host.disk_free < DISK_FOR_COMFORT:
        return "warning", shown, "Large images and outputs may not fit"
    return "ok", shown, ""


def _memory(host: Facts) -> Verdict:
    if host.memory < MEMORY_FOR_A_TASK:
        return "failed", show_size(host.memory), f"A TensorFlow task wants {show_size(MEMORY_FOR_A_TASK)}"
    return "ok", show_size(host.memory), ""


def _clock(host: Facts) -> Verdict:
    service = host.time_service or "no time service"
    if abs(host.clock_offset) > TOLERATED_CLOCK_OFFSET:
        return "failed", f"{host.clock_offset:+.1f} s off, {service}", "`tfdeploy provision` sets up chrony"
    return "ok", service, ""


def _docker(host: Facts) -> Verdict:
    engine = host.engine
    if engine.fault:
        remedy = "Use a system-wide engine" if engine.rootless else "`tfdeploy provision` installs or starts it"
        return "failed", engine.fault, ENGINE_REMEDIES.get(engine.kind, remedy)
    notes = [engine.version]
    if engine.swarm:
        notes.append("in a swarm, so live-restore stays off")
    elif not engine.live_restore:
        notes.append("no live-restore")
    if engine.foreign:
        notes.append(f"others run {counted(len(engine.foreign), 'container')} there: {some(engine.foreign)}")
    return "ok", ", ".join(notes), ""


def _firewall(host: Facts) -> Verdict:
    if not host.firewall:
        return "ok", "none in the way", ""
    return (
        "warning",
        f"{', '.join(host.firewall)} in force",
        "The training ports must be open between the job's hosts; the edges below tell",
    )


def _ports(host: Host, found: Facts, planned: Plan | InputError) -> Verdict:
    taken = found.listening | found.held
    free = len({port for first, last in host.ports for port in range(first, last + 1)} - taken)
    if isinstance(planned, InputError):
        return ("ok", f"{free} free", "") if free else ("failed", "no port is free", "Widen tfdeploy_ports")
    own = [str(task.port) for task in planned.tasks if task.host == host.name]
    return "ok", f"{some(own)} free" if own else f"{free} free, none needed", ""


def _address(host: Host, found: Facts, planned: Plan | InputError) -> Verdict:
    if isinstance(planned, InputError):
        return "skipped", f"no plan: {planned}", ""
    addresses = {task.address for task in planned.tasks if task.host == host.name}
    alone = len(planned.hosts) == 1
    for address in addresses:
        if is_loopback(address):
            if not alone:
                return "failed", f"{address} is loopback", "Give tfdeploy_address, or an ansible_host that peers reach"
        elif host.address and not _on_an_interface(host.address, found):
            return "failed", f"{host.address} is on no interface of it", f"It has {some(found.addresses)}"
    return "ok", some(sorted(addresses)) or "no task", ""


def _on_an_interface(named: str, found: Facts) -> bool:
    """A name is left to its resolver. The user may name an interface that we would not have chosen."""
    try:
        address = ipaddress.ip_address(named)
    except ValueError:
        return True
    known = {*found.addresses, *(interface.address for interface in found.interfaces)}
    return str(address) in known or named in known


def as_rows(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [
        {"host": each.host, "check": each.check, "state": each.state, "detail": each.detail, "remedy": each.remedy}
        for each in findings
    ]

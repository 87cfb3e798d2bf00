"""`up`: from an inventory and a job to running tasks. Each step is another module's; here is their order."""

import contextlib
import os
import secrets as randomness
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tfdeploy import (
    containers,
    gang,
    host_scripts,
    image,
    jobs,
    lock,
    mounts,
    plan,
    processes,
    provision,
    remote,
    spec,
    teardown,
    truth,
)
from tfdeploy import facts as facts_of_hosts
from tfdeploy.errors import InputError, LockedError, NoRoom, TfdeployError, UnreachableError, all_of
from tfdeploy.facts import Facts
from tfdeploy.host_scripts import Site, records
from tfdeploy.image import Trainer
from tfdeploy.inventory import Host, Inventory, Vault
from tfdeploy.launch import Launch, Member, differences
from tfdeploy.plan import Plan, Wishes
from tfdeploy.remote import Credentials, Remote
from tfdeploy.report import Report
from tfdeploy.spec import JobSpec
from tfdeploy.truth import HostView, JobView, State
from tfdeploy.wording import counted, some

T = TypeVar("T")

TRIES = 3
SECONDS_BETWEEN_TRIES_IN_LINE = 2.0


@dataclass(frozen=True)
class Order:
    """What `up` was asked for."""

    inventory: Inventory
    job: JobSpec
    wishes: Wishes
    sources: tuple[str, ...] = ()
    vault: Vault = field(default_factory=Vault)
    credentials: Credentials = field(default_factory=Credentials)
    local: bool = False
    provision: bool = True
    replace: bool = False
    discard: bool = False
    wait: bool = False
    place: str = ""
    """Where results are collected to."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        return plan.select(self.inventory, self.wishes)


@dataclass(frozen=True)
class Draft:
    """A launch that could be made, and what must be done for it."""

    launch: Launch
    lacking: tuple[str, ...]
    """Hosts without the image."""
    existing: JobView | None = None
    """The job of this name that is there already."""

    @property
    def differences(self) -> tuple[str, ...]:
        return differences(self.existing.launch, self.launch) if self.existing else ()


@dataclass(frozen=True)
class Launched:
    launch: Launch
    attached: bool
    """It ran already, and nothing was done."""


@dataclass
class Hosts:
    """The order's hosts, entered, and what they are like; asked again where something has changed."""

    order: Order
    remotes: dict[str, Remote]
    trainer: Trainer | None
    facts: dict[str, Facts] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """How the hosts are asked for the image: exactly the controller's, where it has one."""
        return self.trainer.id if self.trainer else self.order_job.image or ""

    @property
    def order_job(self) -> JobSpec:
        return plan.apply(self.order.job, self.order.wishes)

    def ask(self, names: Sequence[str] | None = None) -> None:
        asked = self.remotes if names is None else {name: self.remotes[name] for name in names}
        answers = facts_of_hosts.of_all(asked, self.image)
        self.facts |= _or_raise({name: provision.workable(name, answer) for name, answer in answers.items()})


def local_inventory() -> Inventory:
    """This machine as the only host, with room for any number of tasks."""
    return Inventory((jobs.LOCAL_HOST,), {"all": (jobs.LOCAL_HOST.name,)})


def local_job(job: JobSpec, wishes: Wishes) -> tuple[JobSpec, Wishes]:
    """Plain processes of this user; one worker unless more are asked for."""
    worker = job.tasks.worker
    many = wishes.workers if wishes.workers is not None else (worker.count if worker else None)
    return spec.override(job, {"runtime": "process"}, {}), replace(wishes, workers=1 if many is None else many)


def check(order: Order) -> Plan:
    """Everything that can be refused before a host is touched."""
    planned = _placed(order, {})
    job = planned.job
    spec.require_image(job)
    mounts.check(job)
    given_secrets(job)
    draft = _draft(order, planned, "")
    for tasks in planned.by_role.values():
        for task in tasks[:1]:  # one stands for its role: rendering all of a large job takes seconds
            containers.create_words(draft, task, own="")
            if job.runtime == "process":
                processes.argv(draft, task)
    return planned


def given_secrets(job: JobSpec) -> dict[str, str]:
    missing = [name for name in job.secrets if name not in os.environ]
    if missing:
        raise InputError(f"{some(missing)} not set in the environment", "Export it before `up`", where="secrets")
    return {name: os.environ[name] for name in job.secrets}


@contextlib.contextmanager
def entered(order: Order, report: Report) -> Iterator[Hosts]:
    """All hosts entered and asked. One that cannot be is named, with what to do; nothing was touched then."""
    job = plan.apply(order.job, order.wishes)
    trainer = image.on_controller(job, report) if job.runtime == "docker" else None
    with remote.entered(order.hosts, order.credentials) as answers:
        hosts = Hosts(order, _or_raise(answers, "Or leave it out with --exclude"), trainer)
        hosts.ask()
        yield hosts


def needs(hosts: Hosts) -> dict[str, tuple[str, ...]]:
    """Which hosts must be provisioned first, and why. One that another version provisioned well is left alone."""
    if hosts.order_job.runtime == "process":
        bare = [name for name, facts in hosts.facts.items() if not facts.python]
        if bare:
            raise TfdeployError(
                "no Python, which keeps its tasks", "`tfdeploy provision` installs it", where=some(bare)
            )
        return {}
    found = {name: provision.needs(facts, facts.converged or "wanted") for name, facts in hosts.facts.items()}
    return {name: why for name, why in found.items() if why}


def provisioned(
    hosts: Hosts, reasons: Mapping[str, tuple[str, ...]], run: Callable[[Inventory], "provision.Provisioning"]
) -> None:
    """Runs the playbook for the hosts that need it, and asks them again."""
    if not reasons:
        return
    if not hosts.order.provision:
        raise TfdeployError(
            f"not provisioned ({', '.join(next(iter(reasons.values())))})",
            "Leave out --no-provision, or run `tfdeploy provision` first",
            where=some(reasons),
        )
    inventory = hosts.order.inventory
    done = run(replace(inventory, hosts=tuple(host for host in inventory.hosts if host.name in reasons)))
    if done.convergence and done.convergence.cancelled:
        raise KeyboardInterrupt
    if done.unreachable:
        raise UnreachableError(str(all_of(done.errors.values())))
    if done.failed:
        raise all_of(done.errors.values())
    hosts.ask(tuple(reasons))
    unfit = {name: hosts.facts[name].engine.fault for name in reasons if hosts.facts[name].engine.fault}
    if unfit:
        raise all_of(TfdeployError(fault, "`tfdeploy doctor` says more", where=name) for name, fault in unfit.items())


def drafted(hosts: Hosts) -> Draft:
    """The plan for the hosts as they are, and how it differs from what runs under this name already."""
    order = hosts.order
    planned = _placed(order, hosts.facts)
    places = {name: hosts.facts[name] for name in (*planned.hosts, *planned.spares)}
    lacking: tuple[str, ...] = ()
    if planned.job.runtime == "docker":
        image.check_architecture(hosts.trainer, places)
        lacking = image.lacking(hosts.trainer, places)
    return Draft(_draft(order, planned, _image_id(hosts, planned)), lacking, _existing(hosts, planned))


def launched(hosts: Hosts, report: Report, on_created: Callable[[], None] = lambda: None) -> Launched:
    """The gang start, planned again where the hosts have changed meanwhile, but not for ever."""
    for attempt in range(TRIES):
        draft = _drafted_in_time(hosts, report)
        if draft.existing and _stays(draft, hosts):
            return Launched(draft.existing.launch, attached=True)
        if draft.existing:
            _make_way(draft.existing, hosts, report)
        if attempt == 0:
            report.done(f"planned {_summary(draft.launch.plan)}")
        _spread(hosts, draft, report)
        launch = replace(draft.launch, image=_image_id(hosts, draft.launch.plan))
        try:
            _gang(hosts, launch, on_created)
        except gang.Moved as moved:
            if attempt + 1 == TRIES:
                raise TfdeployError(
                    f"the hosts changed {TRIES} times while the job was launched, at last: {moved}", "Try again"
                ) from None
            hosts.ask()
            continue
        _remember(hosts.order, launch)
        return Launched(launch, attached=False)
    raise AssertionError("not reached")


def _gang(hosts: Hosts, launch: Launch, on_created: Callable[[], None]) -> dict[str, HostView]:
    sites = {name: _site(hosts, name, launch.job) for name in launch.plan.hosts}
    return gang.launch(launch, sites, hosts.remotes, given_secrets(launch.plan.job), on_created=on_created)


def _site(hosts: Hosts, name: str, job: str) -> Site:
    facts, local = hosts.facts[name], hosts.order.local
    return Site(
        name=name,
        home=hosts.remotes[name].home,
        login="" if local else hosts.remotes[name].login,
        others=tuple((each.name, each.generation) for each in facts.jobs if each.name != job),
        image_user=facts.image.user if facts.image else "",
        selinux=facts.selinux == "Enforcing",
        python=sys.executable if local else "",
        inherited=dict(os.environ) if local else None,
        cwd=os.getcwd() if local else "",
    )


def _placed(order: Order, facts: Mapping[str, Facts]) -> Plan:
    planned = plan.plan(order.inventory, order.job, order.wishes, facts)
    if not order.local:
        return planned
    # A process cannot be given names of its own without root: peers are called by their address.
    return replace(planned, tasks=tuple(replace(task, name=task.address) for task in planned.tasks))


def _draft(order: Order, planned: Plan, image_id: str) -> Launch:
    known = {host.name: host for host in order.inventory.hosts}
    moment = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))
    return Launch(
        plan=planned,
        generation=f"g{stamp}-{randomness.token_hex(4)}",
        by=lock.this_controller(),
        at=moment,
        members=tuple(Member.of(known[name]) for name in (*planned.hosts, *planned.spares)),
        image=image_id,
    )


def _image_id(hosts: Hosts, planned: Plan) -> str:
    if planned.job.runtime == "process":
        return ""
    if hosts.trainer:
        return hosts.trainer.id
    ids = {facts.image.id for name in planned.hosts if (facts := hosts.facts[name]).image}
    return ids.pop() if len(ids) == 1 else planned.job.image or ""


def _drafted_in_time(hosts: Hosts, report: Report) -> Draft:
    """With --wait a job that does not fit stands in line until it does; who came first goes first."""
    try:
        return drafted(hosts)
    except NoRoom:
        if not hosts.order.wait:
            raise
    return _in_line(hosts, report)


def _in_line(hosts: Hosts, report: Report) -> Draft:
    job = hosts.order_job.name
    ticket = f"{time.time():017.6f}-{job}"
    try:
        while True:
            turns = _or_raise(
                remote.on_each(hosts.remotes, lambda host: host.run(host_scripts.queue(host.home, job, ticket)).stdout)
            )
            lines = [dict(records(said)).get("queue", "").split() for said in turns.values()]
            before = sorted({each for line in lines for each in line if each < ticket})
            hosts.ask()
            why = f"behind {some(each.partition('-')[2] for each in before)}" if before else ""
            if not before:
                try:
                    return drafted(hosts)
                except NoRoom as shortage:
                    why = shortage.what
            report.doing(f"waiting in line: {why}")
            time.sleep(SECONDS_BETWEEN_TRIES_IN_LINE)
    finally:
        remote.on_each(hosts.remotes, lambda host: host.run(host_scripts.leave_queue(host.home, job, ticket)))


def _existing(hosts: Hosts, planned: Plan) -> JobView | None:
    job = planned.job.name
    having = {name for name, facts in hosts.facts.items() if any(trace.name == job for trace in facts.jobs)}
    if not having:
        return None
    views = jobs.look({name: hosts.remotes[name] for name in having}, job)
    launches = [view.launch for view in remote.answered(views).values() if view.launch]
    if not launches:
        return None
    launch = truth.newest(launches)
    rest = [name for name in launch.plan.hosts if name in hosts.remotes and name not in having]
    views |= jobs.look({name: hosts.remotes[name] for name in rest}, job)
    return truth.job_view(launch, views)


def _stays(draft: Draft, hosts: Hosts) -> bool:
    """Whether the job that is there is the one that is wanted. If it is another, only --replace makes way."""
    existing = draft.existing
    assert existing
    if existing.outcome or hosts.order.replace:
        return False
    if any(each.state is State.CREATED for each in existing.tasks):
        _refuse_if_being_launched(existing, hosts)
        return False
    if not draft.differences:
        return True
    changes = "\n".join(f"  {line}" for line in draft.differences)
    raise InputError(
        f"job {existing.launch.job} runs already, launched by {existing.launch.by}, and would change:\n{changes}\n"
        "Use --replace to take it down and launch this one, or --name for another job beside it"
    )


def _refuse_if_being_launched(existing: JobView, hosts: Hosts) -> None:
    """A launch that was broken off is cleared away; one that goes on at this moment is somebody's."""
    members = {name: hosts.remotes[name] for name in existing.launch.plan.hosts if name in hosts.remotes}
    asked = remote.on_each(members, lambda host: host.run(host_scripts.lock_status(host.home)).stdout)
    answers = remote.answered(asked)
    for name, said in answers.items():
        age, _, line = dict(records(said)).get("lock", "").partition("\n")
        holder = lock.Holder.parse(line)
        if line and int(age or 0) <= lock.LOCK_STALE_AFTER and holder.generation == existing.launch.generation:
            raise LockedError(f"locked by {holder}", "Wait for it", where=name)


def _make_way(existing: JobView, hosts: Hosts, report: Report) -> None:
    """What an earlier launch left is removed, unless its outputs would be lost."""
    job = existing.launch.job
    strangers = [each for each in existing.launch.plan.hosts if each not in hosts.remotes]
    if strangers:
        raise TfdeployError(
            f"job {job} also has tasks on {some(strangers)}, which this inventory does not name",
            f"`tfdeploy down {job}` first",
        )
    members = {name: hosts.remotes[name] for name in existing.launch.plan.hosts}
    discard = hosts.order.discard
    if not discard:
        teardown.check_outputs(job, members)
    report.doing(f"taking down the earlier {job}")
    grace = existing.launch.plan.job.policies.grace
    teardown.raise_if_incomplete(teardown.remove(job, members, grace, discard=discard))
    report.done(f"took down the earlier {job}")
    hosts.ask(tuple(members))


def _spread(hosts: Hosts, draft: Draft, report: Report) -> None:
    if not draft.lacking:
        return
    reference = draft.launch.plan.job.image or (hosts.trainer.reference if hosts.trainer else "")
    started = time.monotonic()
    arrived = image.spread(hosts.trainer, reference, {name: hosts.remotes[name] for name in draft.lacking}, report)
    for name, found in arrived.items():
        hosts.facts[name] = replace(hosts.facts[name], image=found)
    took = time.monotonic() - started
    report.done(f"image {reference} to {counted(len(draft.lacking), 'host')} in {took:.1f} s")


def _remember(order: Order, launch: Launch) -> None:
    wanted = set(launch.plan.hosts)
    hosts = [host for host in order.inventory.hosts if host.name in wanted]
    jobs.remember(launch.job, hosts, order.sources, order.vault, order.place)


def _summary(planned: Plan) -> str:
    roles = ", ".join(counted(len(tasks), role) for role, tasks in planned.by_role.items() if tasks)
    return f"{counted(len(planned.tasks), 'task')} on {counted(len(planned.hosts), 'host')}: {roles}"


def _or_raise(answers: Mapping[str, T | TfdeployError], advice: str = "") -> dict[str, T]:
    errors = [answer for answer in answers.values() if isinstance(answer, TfdeployError)]
    for error in errors:
        if advice and advice not in error.remedy:
            error.remedy = f"{error.remedy}{'' if error.remedy.endswith('?') else '.'} {advice}"
    if errors:
        raise all_of(errors)
    return remote.answered(answers)

"""Finding a job again: what this controller remembers of it, and what its hosts say, which alone is the truth."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdeploy import host_scripts, inventory, paths, remote, spec, truth
from tfdeploy.errors import InputError, TfdeployError, all_of
from tfdeploy.inventory import Connection, Host, Vault
from tfdeploy.launch import Launch
from tfdeploy.remote import HERE, Credentials, Remote
from tfdeploy.truth import HostView, JobView
from tfdeploy.wording import some

SECONDS_FOR_A_LOOK = 60
_FORMAT = 1


# --- what this controller remembers ----------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """A job that was launched from here. A cache: without it a job is found through its inventory or `--via`."""

    job: str
    sources: tuple[str, ...]
    """Inventories, by their whole paths; none where the job is local."""
    hosts: tuple[Host, ...]
    """Without passwords."""
    secrets: bool = False
    """Whether the inventory has passwords, so that it must be read again."""
    vault: Vault = field(default_factory=Vault)
    place: str = ""
    """Where results are collected to."""

    def to_json(self) -> str:
        hosts = [{"name": host.name, "connection": _plain(host.connection)} for host in self.hosts]
        vault = {"ids": self.vault.ids, "password_files": self.vault.password_files}
        rest = {"job": self.job, "sources": self.sources, "secrets": self.secrets, "place": self.place}
        return json.dumps({"format": _FORMAT, **rest, "vault": vault, "hosts": hosts})

    @classmethod
    def from_json(cls, text: str) -> "Known":
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}")
        return cls(
            job=data["job"],
            sources=tuple(data["sources"]),
            hosts=tuple(Host(each["name"], Connection(**each["connection"])) for each in data["hosts"]),
            secrets=data["secrets"],
            place=data["place"],
            vault=Vault(tuple(data["vault"]["ids"]), tuple(data["vault"]["password_files"])),
        )


def remember(job: str, hosts: Sequence[Host], sources: Sequence[str], vault: Vault, place: str = "") -> None:
    whole = tuple(source if "," in source else str(Path(source).expanduser().absolute()) for source in sources)
    secrets = any(_has_secret(host.connection) for host in hosts)
    known = Known(job, whole, tuple(hosts), secrets, _from_anywhere(vault), place)
    directory = _directory()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = directory / f".{job}.{os.getpid()}"
    temporary.write_text(known.to_json())
    temporary.replace(directory / f"{job}.json")


def _from_anywhere(vault: Vault) -> Vault:
    """Its files by their whole paths, because the watch goes on in another directory."""

    def whole(file: str) -> str:
        return file if file.startswith("prompt") else str(Path(file).expanduser().absolute())

    parted = (each.partition("@") for each in vault.ids)
    ids = tuple(f"{label}@{whole(file)}" if at else whole(label) for label, at, file in parted)
    return replace(vault, ids=ids, password_files=tuple(map(whole, vault.password_files)))


def forget(job: str) -> None:
    (_directory() / f"{job}.json").unlink(missing_ok=True)


def recall(job: str) -> Known | None:
    try:
        return Known.from_json((_directory() / f"{job}.json").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def known_jobs() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _directory().glob("*.json")))


def _directory() -> Path:
    return paths.state() / "jobs"


def _plain(connection: Connection) -> dict[str, Any]:
    return asdict(replace(connection, password=None, become_password=None))


def _has_secret(connection: Connection) -> bool:
    return connection.password is not None or connection.become_password is not None


# --- where to look ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """What the user said about which job, and where."""

    job: str | None = None
    sources: tuple[str, ...] = ()
    limit: str | None = None
    vault: Vault = field(default_factory=Vault)
    via: str | None = None
    credentials: Credentials = field(default_factory=Credentials)

    @property
    def by_hosts(self) -> bool:
        """Look on hosts that were named, not in what is remembered."""
        return bool(self.sources or self.via)


@dataclass(frozen=True)
class Found:
    """A job with its hosts entered."""

    view: JobView
    remotes: Mapping[str, Remote | TfdeployError]
    hosts: Mapping[str, Host]

    @property
    def launch(self) -> Launch:
        return self.view.launch

    @property
    def entered(self) -> dict[str, Remote]:
        return remote.answered(self.remotes)


class NotFound(InputError):
    def __init__(self, job: str) -> None:
        super().__init__(f"no host knows a job {job}" if job else "no job on these hosts", "`tfdeploy ls` lists jobs")
        self.job = job


@contextlib.contextmanager
def found(search: Search, *, usage: bool = False) -> Iterator[Found]:
    """The one job that is meant, rebuilt from its hosts."""
    hosts = hosts_of(search)
    with contextlib.ExitStack() as stack:
        remotes = stack.enter_context(remote.entered(hosts, search.credentials))
        name = search.job or _only_job(search, remotes)
        yield _rebuilt(stack, name, hosts, remotes, search.credentials, usage=usage)


def all_found(search: Search) -> tuple[list[JobView], dict[str, TfdeployError]]:
    """Every job that these hosts know, or that is remembered, and the hosts that could not be asked."""
    hosts = hosts_of(search) if search.by_hosts else _remembered_hosts(search)
    views: list[JobView] = []
    with contextlib.ExitStack() as stack:
        remotes = stack.enter_context(remote.entered(hosts, search.credentials))
        for name in sorted({job for jobs in _names(remotes).values() for job in jobs}):
            with contextlib.suppress(NotFound):
                views.append(_rebuilt(stack, name, hosts, remotes, search.credentials).view)
        return views, {host: answer for host, answer in remotes.items() if isinstance(answer, TfdeployError)}


def _rebuilt(
    stack: contextlib.ExitStack,
    job: str,
    hosts: Sequence[Host],
    remotes: Mapping[str, Remote | TfdeployError],
    credentials: Credentials,
    *,
    usage: bool = False,
) -> Found:
    """From what these hosts say, and those of the job's that they name."""
    views = look(remotes, job, usage=usage)
    launches = [view.launch for view in remote.answered(views).values() if view.launch]
    if not launches:
        errors = [answer for answer in views.values() if isinstance(answer, TfdeployError)]
        raise all_of(errors) if errors else NotFound(job)
    launch = truth.newest(launches)
    known = {host.name: host for host in hosts}
    wanted = set(launch.plan.hosts) - known.keys()
    strangers = {each.name: each.as_host() for each in launch.members if each.name in wanted}
    if strangers:
        more = stack.enter_context(remote.entered(strangers.values(), credentials))
        views |= look(more, job, usage=usage)
        remotes, known = {**remotes, **more}, known | strangers
    members = launch.plan.hosts
    view = truth.job_view(launch, {host: views[host] for host in members})
    return Found(view, {host: remotes[host] for host in members}, {host: known[host] for host in members})


def look(
    remotes: Mapping[str, Remote | TfdeployError], job: str, *, usage: bool = False
) -> dict[str, HostView | TfdeployError]:
    def one(host: Remote) -> HostView:
        script = host_scripts.look(job, host.home, usage=usage)
        view = truth.host_view(host.run(script, seconds=SECONDS_FOR_A_LOOK).stdout)
        if view.launch and view.launch.job != job:
            raise TfdeployError(f"asked for job {job}, it tells of {view.launch.job}", "Is this host to be trusted?")
        return view

    answers = remote.on_each(remote.answered(remotes), one)
    return {host: answer if isinstance(answer, TfdeployError) else answers[host] for host, answer in remotes.items()}


def hosts_of(search: Search) -> tuple[Host, ...]:
    """Where the job may be: the hosts that were named, else those that are remembered."""
    if search.via:
        return (_via(search.via),)
    if search.sources:
        return inventory.read(search.sources, limit=search.limit, vault=search.vault).hosts
    name = search.job or _unambiguous()
    known = recall(name)
    if known is None:
        raise InputError(
            f"no job {name} was launched from here",
            f"Say where it runs: -i INVENTORY or --via HOST{_launched_here()}",
            where=name,
        )
    return _up_to_date(known, search)


def job_name(search: Search) -> str | None:
    """The job that is meant where hosts were not named."""
    return search.job if search.job or search.by_hosts else _unambiguous()


def _unambiguous() -> str:
    """The job file's, else the only one that there is."""
    launched = known_jobs()
    with contextlib.suppress(InputError):
        here = spec.load(Path(spec.FILE_NAME)).name if Path(spec.FILE_NAME).exists() else ""
        if here in launched:
            return here
    if len(launched) == 1:
        return launched[0]
    if not launched:
        raise InputError(
            "no job was launched from here, or all are down",
            "Name it and say where it runs: -i INVENTORY or --via HOST",
        )
    raise InputError(f"which job? There are {some(launched)}", "Name one")


def _launched_here() -> str:
    launched = known_jobs()
    return f" (launched from here: {some(launched)})" if launched else ""


def _up_to_date(known: Known, search: Search) -> tuple[Host, ...]:
    """As remembered, so that an inventory that has changed does no harm; passwords come from the inventory of today."""
    if not known.secrets or not known.sources:
        return known.hosts
    try:
        read = inventory.read(known.sources, vault=_vault(known, search))
    except InputError:
        return known.hosts
    current = {host.name: host for host in read.hosts}
    return tuple(
        replace(host, connection=_with_secrets(host.connection, current[host.name].connection))
        if host.name in current
        else host
        for host in known.hosts
    )


def _vault(known: Known, search: Search) -> Vault:
    """As it was given for the launch, unless it is given anew."""
    named = search.vault if search.vault.ids or search.vault.password_files else known.vault
    return replace(named, password=search.vault.password)


def _with_secrets(connection: Connection, current: Connection) -> Connection:
    return replace(connection, password=current.password, become_password=current.become_password)


def _remembered_hosts(search: Search) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    for job in known_jobs():
        known = recall(job)
        if known:
            hosts |= {host.name: host for host in _up_to_date(known, search)}
    return tuple(hosts.values())


def _via(text: str) -> Host:
    """`[user@]host[:port]`, entered as `ssh` would."""
    user, _, rest = text.rpartition("@")
    host, _, port = rest.partition(":") if rest.count(":") == 1 else (rest, "", "")
    try:
        address = inventory.parse_address(host)
        number = _port(port) if port else None
    except ValueError as error:
        raise InputError(f"not a host: {error}", "Write it as [user@]host[:port]", where=f"--via {text}") from None
    return Host(address, Connection(host=address, port=number, user=user or None, become=True))


def _port(text: str) -> int:
    first, last = inventory.parse_ports(text)[0]
    if first != last or "," in text:
        raise ValueError("more than one port")
    return first


def _names(remotes: Mapping[str, Remote | TfdeployError]) -> dict[str, list[str]]:
    def one(host: Remote) -> list[str]:
        return host.run(host_scripts.job_names(host.home), seconds=SECONDS_FOR_A_LOOK).stdout.split()

    return remote.answered(remote.on_each(remote.answered(remotes), one))


def _only_job(search: Search, remotes: Mapping[str, Remote | TfdeployError]) -> str:
    if not search.by_hosts:
        return _unambiguous()
    names = sorted({job for jobs in _names(remotes).values() for job in jobs})
    if len(names) == 1:
        return names[0]
    if names:
        raise InputError(f"which job? There are {some(names)}", "Name one")
    errors = [answer for answer in remotes.values() if isinstance(answer, TfdeployError)]
    raise all_of(errors) if errors else NotFound("")


LOCAL_HOST = Host("localhost", Connection(host="localhost", connection=HERE), address="127.0.0.1", slots=100_000)

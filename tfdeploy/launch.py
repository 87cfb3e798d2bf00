"""A launched job as its hosts keep it: plan, generation, image, who launched it and how its hosts are entered. Pure."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfdeploy import spec
from tfdeploy.errors import InputError
from tfdeploy.inventory import Connection, Host, is_host_name, parse_address
from tfdeploy.plan import Plan
from tfdeploy.task import ROLES, Task

_FORMAT = 1
# A user's name may become a part of the user's own ProxyCommand, which a shell reads.
_USER = re.compile(r"\w[\w.@+\\-]*")
_GPU = re.compile(r"[\w./:-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """How a host of the job is entered. Neither passwords nor ssh's options: a host shall not tell us what to run."""

    name: str
    host: str
    port: int | None = None
    user: str | None = None

    @classmethod
    def of(cls, host: Host) -> "Member":
        return cls(host.name, host.connection.host, host.connection.port, host.connection.user)

    def as_host(self) -> Host:
        return Host(self.name, Connection(host=self.host, port=self.port, user=self.user, become=True))


@dataclass(frozen=True)
class Launch:
    plan: Plan
    generation: str
    """Another one for every launch; it tells a container of this launch from one of another."""
    by: str
    at: float
    members: tuple[Member, ...]
    image: str = ""
    """The image's id."""

    @property
    def job(self) -> str:
        return self.plan.job.name

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": _FORMAT,
                "plan": json.loads(self.plan.to_json()),
                "generation": self.generation,
                "by": self.by,
                "at": self.at,
                "members": [asdict(member) for member in self.members],
                "image": self.image,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Launch":
        """From a host: whatever it says is checked before anything is entered or shown."""
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise InputError(f"a job of format {data['format']!r:.20}", "Use the tfdeploy that launched it")
            members = tuple(_member(each) for each in data["members"])
            return cls(
                plan=_checked(Plan.from_json(json.dumps(data["plan"])), {each.name for each in members}),
                generation=_printable(data["generation"]),
                by=_printable(data["by"]),
                at=_finite(data["at"]),
                members=members,
                image=_printable(data["image"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            why = "".join(filter(str.isprintable, " ".join(f"{error!r:.200}".split())))
            raise InputError(f"its record of the job cannot be read: {why}") from None


def _member(data: Mapping[str, Any]) -> Member:
    name, host, port, user = data["name"], parse_address(data["host"]), data["port"], data["user"]
    if not isinstance(name, str) or not is_host_name(name):
        raise ValueError(f"{name!r:.60} is not a host's name")
    if port is not None and not (type(port) is int and 0 < port < 65536):
        raise ValueError(f"{port!r:.60} is not a port")
    if user is not None and not (isinstance(user, str) and _USER.fullmatch(user)):
        raise ValueError(f"{user!r:.60} is not a user")
    return Member(name, host, port, user)


def _checked(plan: Plan, members: set[str]) -> Plan:
    for task in plan.tasks:
        _check_task(task)
    strangers = {*plan.hosts, *plan.spares} - members
    if strangers:
        raise ValueError(f"{min(strangers)!r:.60} is not among its hosts")
    if len({task.id for task in plan.tasks}) < len(plan.tasks) or not plan.tasks:
        raise ValueError("no task, or one twice")
    return plan


def _check_task(task: Task) -> None:
    if task.role not in ROLES or type(task.index) is not int or task.index < 0:
        raise ValueError(f"{task.id!r:.60} is not a task")
    if type(task.port) is not int or not 0 < task.port < 65536:
        raise ValueError(f"{task.port!r:.60} is not a port")
    if not all(isinstance(gpu, str) and _GPU.fullmatch(gpu) for gpu in task.gpus):
        raise ValueError(f"{task.gpus!r:.60} are not GPUs")
    for text in (task.address, task.name):
        if not isinstance(text, str) or parse_address(text) != text:
            raise ValueError(f"{text!r:.60} is not an address")


def _printable(text: object) -> str:
    if not isinstance(text, str) or not text.isprintable():
        raise ValueError(f"{text!r:.60} is not plain text")
    return text


def _finite(value: object) -> float:
    number = float(value) if isinstance(value, int | float) else math.nan
    if not abs(number) < 1e15:
        raise ValueError(f"{value!r:.60} is not a time")
    return number


def differences(old: Launch, new: Launch) -> tuple[str, ...]:
    """What another launch would change, one line each; nothing where it is the same job."""
    return tuple(_differences(old, new))


def _differences(old: Launch, new: Launch) -> Iterator[str]:
    before, after = (_flat(spec.dump(each.plan.job)) for each in (old, new))
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield f"{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}"
    if old.image != new.image:
        yield f"image id: {old.image[:19] or '-'} -> {new.image[:19] or '-'}"
    places = [{task.id: task.host for task in each.plan.tasks} for each in (old, new)]
    for task in sorted(places[0].keys() | places[1].keys()):
        was, is_ = places[0].get(task, "-"), places[1].get(task, "-")
        if was != is_:
            yield f"{task}: {was} -> {is_}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, each in value.items():
        if isinstance(each, dict) and each:
            flat |= _flat(each, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = each
    return flat


def _shown(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)

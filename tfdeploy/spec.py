"""The job: what shall run, as the user wrote it. Frozen models, and the reader of the job file."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails

from tfdeploy import marked_yaml, template
from tfdeploy.errors import InputError

FILE_NAME = "tfdeploy.yml"


class Wrong(ValueError):
    """What is wrong with a value, and what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy


# --- values within a job ---------------------------------------------------------------------------------


def parse_size(value: object) -> int:
    """`4GiB`, `512m` or bytes; units are Docker's, powers of 1024 with or without the i."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(?:([kmgt])i?)?b?", str(value).strip(), re.IGNORECASE)
    size = int(float(match[1]) * 1024 ** " kmgt".index((match[2] or " ").lower())) if match else 0
    if isinstance(value, bool) or not size:
        raise Wrong(f"{value!r:.60} is not a size", "Write it as 4GiB or 512m")
    return size


def parse_duration(value: object) -> int:
    """`12h`, `1h30m`, `90s`, `2d` or seconds."""
    text = str(value).strip()
    match = re.fullmatch(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s?)?", text)
    days, hours, minutes, seconds = (int(part or 0) for part in (match.groups() if match else ("",) * 4))
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if isinstance(value, bool) or not total:
        raise Wrong(f"{value!r:.60} is not a duration", "Write it as 12h, 30m, 90s or 1h30m")
    return total


@dataclass(frozen=True, slots=True)
class Mount:
    """`source:target[:ro]`; the source is a path on the host or an nfs:// URL."""

    source: str
    target: str
    read_only: bool


def parse_mount(text: str) -> Mount:
    match = re.fullmatch(r"(nfs://[^/:]+(?::\d+)?/[^:]*|/[^:]*):(/[^:]*)(?::(ro|rw))?", text)
    if not match:
        raise Wrong(f"{text!r:.80} is not a mount", "Write it as /on/the/host:/in/the/task:ro")
    source, target, mode = match.groups()
    for path in (source, target):
        _no_control_characters(path)
        if ".." in path.split("/"):
            raise Wrong(f"{path!r:.80} has a .. in it", "Write the path without it")
    return Mount(source, target, mode == "ro")


def _check_mount(text: str) -> str:
    parse_mount(text)
    return text


def _no_control_characters(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise Wrong(f"{text!r:.80} has a control character in it", "Remove it")
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise Wrong(f"{text!r:.80} has a NUL in it", "Remove it")
    return text


def _text(text: str) -> str:
    _no_nul(text)
    try:
        template.check(text)
    except ValueError as error:
        raise Wrong(f"{text!r:.80}: {error}") from error
    return text


def _target(text: str) -> str:
    _text(template.long_form(_no_control_characters(text)))
    return text


def _job_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", name):
        raise Wrong(f"{name!r:.60} cannot be a job's name", "Use a-z, 0-9 and -, at most 40, as in mnist-2")
    return name


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise Wrong(f"{name!r:.60} cannot be a variable's name", "Use letters, digits and _, no digit first")
    if name == "TF_CONFIG":
        raise Wrong("TF_CONFIG is made by tfdeploy for each task", "Remove it")
    return name


def _word(text: str) -> str:
    if not re.fullmatch(r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*", text):
        raise Wrong(f"{text!r:.80} is not one plain word", "Write it without spaces, not starting with -")
    return text


def _path(text: str) -> str:
    _no_control_characters(text)
    if not text.startswith("/") or ".." in text.split("/"):
        raise Wrong(f"{text!r:.80} is not an absolute path", "Start it with / and leave out ..")
    return text


def _shared(text: str) -> str:
    if text.startswith("nfs://"):
        if not re.fullmatch(r"nfs://[^/\s]+/.*", _no_control_characters(text)):
            raise Wrong(f"{text!r:.80} names no server and path", "Write it as nfs://fs1/export/jobs")
        return text
    return _path(text)


def _words(value: object) -> object:
    """A list of arguments, or a line that is split as a shell would, as in compose."""
    if not isinstance(value, str):
        return value
    if template.is_template(value):
        raise Wrong("templates need the form of a list", "Write it as [--index, '{{ index }}']")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise Wrong(f"{value!r:.80}: {error}", "Close the quote, or write a list") from error


_SCALAR = {"type": ["string", "number", "boolean"]}
Text = Annotated[str, AfterValidator(_text), WithJsonSchema(_SCALAR)]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["4GiB", "512m"]}),
]
Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["12h", "90s"]}),
]
Words = Annotated[
    tuple[Text, ...],
    BeforeValidator(_words),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _SCALAR}, {"type": "string"}]}),
]
EnvName = Annotated[str, AfterValidator(_env_name)]
Env = Annotated[dict[EnvName, Text], WithJsonSchema({"type": "object", "additionalProperties": _SCALAR, "default": {}})]
MountText = Annotated[str, AfterValidator(_check_mount)]
AbsolutePath = Annotated[str, AfterValidator(_path)]
Word = Annotated[str, AfterValidator(_word)]
Count = Annotated[int, Field(ge=0, le=100_000)]
AtMostOne = Annotated[int, Field(ge=0, le=1)]


# --- the models ------------------------------------------------------------------------------------------


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        coerce_numbers_to_str=True,
        defer_build=True,
        use_attribute_docstrings=True,
    )


class TaskSpec(_Model):
    """What tasks of one role are and need."""

    count: Count | None = None
    """How many. worker: none given means every host left over."""
    cpus: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """CPUs that a task may use."""
    memory: Size | None = None
    """Memory that a task may use, as in 4GiB."""
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    """GPUs that a task gets for itself; without any it sees none."""
    shm_size: Size | None = None
    """Size of /dev/shm."""
    env: Env = {}
    """Wins over the job's env."""
    command: Words | None = None
    """Wins over the job's command."""
    entrypoint: Words | None = None
    """Wins over the job's entrypoint."""
    user: Word | None = None
    """User (or uid:gid) within the container."""


class SingleTaskSpec(TaskSpec):
    """A role that has one task or none."""

    count: AtMostOne | None = None
    """1 where the role is named, unless it says 0."""


class TensorboardSpec(SingleTaskSpec):
    """TensorBoard beside the job; it never stands in TF_CONFIG."""

    logdir: AbsolutePath = "/shared"
    """Where the summaries are, within the task."""


class Tasks(_Model):
    """The roles of a job. `master` is another word for chief."""

    chief: SingleTaskSpec | None = None
    ps: TaskSpec | None = None
    worker: TaskSpec | None = None
    evaluator: SingleTaskSpec | None = None
    tensorboard: TensorboardSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_roles_are_wanted(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        if "master" in data and "chief" in data:
            raise Wrong("chief and master are the same role", "Keep one; chief_name: master sets the spelling")
        return {"chief" if k == "master" else k: {} if v is None else v for k, v in data.items()}


class Policies(_Model):
    """When the job is over, and what happens when something fails."""

    success: Literal["chief", "worker-0", "all-workers"] | None = None
    """Whose exit with 0 is success; by default the chief's, or worker 0's where there is no chief."""
    restart: Literal["never", "on-failure", "exit-code", "always"] = "exit-code"
    """Which exits start a task again."""
    max_restarts: Count = 3
    """Budget of restarts, for the whole job."""
    host_lost: Literal["replace", "restart", "fail"] = "replace"
    """What a lost host means."""
    no_spare: Literal["fail", "wait", "continue"] = "fail"
    """What happens when there is no host to replace it with."""
    grace: Duration = 30
    """Time between SIGTERM and the end when a task is stopped."""
    deadline: Duration | None = None
    """The job is stopped after this time, as in 12h."""
    clean: Literal["running", "all", "none"] = "running"
    """Which containers are removed when the job is over."""


class Output(_Model):
    """A directory of each task that is collected at the end."""

    from_: AbsolutePath = Field(default="/outputs", alias="from")
    to: Annotated[str, AfterValidator(_target)] = ""
    """Where to; {job}, {type}, {index} and {host} are filled in."""


class JobSpec(_Model):
    """A distributed training job."""

    name: Annotated[str, AfterValidator(_job_name)] = "job"
    """By default the name of the job file's directory."""
    image: Word | None = None
    """The trainer's image: on the controller, or pullable by the hosts."""
    runtime: Literal["docker", "process"] = "docker"
    """Tasks are containers, or plain processes on the hosts."""
    build: Annotated[str, AfterValidator(_no_control_characters)] | None = None
    """A directory with a Dockerfile to build the image from."""
    command: Words | None = None
    """Replaces the image's CMD."""
    entrypoint: Words | None = None
    """Replaces the image's ENTRYPOINT."""
    tasks: Tasks = Field(default_factory=Tasks)
    spares: Count = 0
    """Hosts kept free to replace a lost one."""
    env: Env = {}
    """Environment of every task."""
    secrets: tuple[EnvName, ...] = ()
    """Names in the controller's environment; each becomes a file /run/secrets/NAME in the tasks."""
    shared: Annotated[str, AfterValidator(_shared)] | None = None
    """nfs://server/path, or a path that all hosts share; the job's part of it is /shared in every task."""
    package: Annotated[str, AfterValidator(_no_control_characters)] | None = None
    """An archive that is unpacked into the working directory before the command."""
    mounts: tuple[MountText, ...] = ()
    """source:target[:ro], the source a path on the hosts or nfs://server/path."""
    outputs: tuple[Output, ...] = ()
    """What is collected when the job is over."""
    legacy_flags: bool = False
    """Appends --ps_hosts --worker_hosts --job_name --task_index to the command."""
    chief_name: Literal["chief", "master"] = "chief"
    """How TF_CONFIG spells the chief; TF1 code may want master."""
    policies: Policies = Field(default_factory=Policies)


def dump(job: JobSpec) -> dict[str, Any]:
    """As plain JSON values, with what the user left out left out; `JobSpec.model_validate` reads it back."""
    return job.model_dump(mode="json", by_alias=True, exclude_unset=True)


def json_schema() -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobSpec.model_json_schema()}


# --- reading ---------------------------------------------------------------------------------------------


def load(path: Path) -> JobSpec:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", "Save it as UTF-8", where=str(path)) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {why}", "Name a job file, or run tfdeploy init", where=str(path)) from error
    return parse(text, str(path), default_name=name_from(path.resolve().parent))


def parse(text: str, source: str, *, default_name: str = "job") -> JobSpec:
    document = marked_yaml.parse(text, source)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise InputError("a job file is a map of keys", "Start it with name: and image:", where=f"{source}:1")
    try:
        return JobSpec.model_validate({"name": default_name} | data)
    except ValidationError as error:
        faults = [_Fault.of(detail, document) for detail in error.errors()]
        raise _all_of(faults) from error


def name_from(directory: Path) -> str:
    """A directory's name made fit to be a job's, as compose does."""
    name = re.sub(r"[^a-z0-9]+", "-", directory.name.lower()).strip("-")[:40].strip("-")
    return name or "job"


def override(job: JobSpec, changes: Mapping[str, Any], flags: Mapping[str, str]) -> JobSpec:
    """The job with some keys as flags gave them; `flags` names the flag of each key, for errors."""
    if not changes:
        return job
    try:
        return JobSpec.model_validate(dump(job) | dict(changes))
    except ValidationError as error:
        detail = error.errors()[0]
        fault = _Fault.of(detail, marked_yaml.Document("flags", None))
        where = flags.get(str(detail["loc"][0]), str(detail["loc"][0]))
        raise InputError(fault.what, fault.remedy, where=where) from error


def require_image(job: JobSpec) -> None:
    if job.runtime == "docker" and job.image is None and job.build is None:
        raise InputError(
            "no image to run",
            f"Give --image, or image: or build: in {FILE_NAME}; tfdeploy init writes one with a trainer",
        )


# --- what is wrong with it -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fault:
    where: str
    what: str
    remedy: str

    @classmethod
    def of(cls, error: ErrorDetails, document: marked_yaml.Document) -> "_Fault":
        loc = tuple(part for part in error["loc"] if part != "[key]")
        at_key = error["type"] in ("extra_forbidden", "missing") or "[key]" in error["loc"]
        what, remedy = _explained(error, loc)
        return cls(document.place(_as_written(loc, document), key=at_key), what, remedy)


def _all_of(faults: list[_Fault]) -> InputError:
    first, *others = (InputError(fault.what, fault.remedy, where=fault.where) for fault in faults)
    return InputError("\n".join(map(str, (first, *others)))) if others else first


def _as_written(loc: tuple[str | int, ...], document: marked_yaml.Document) -> tuple[str | int, ...]:
    master = tuple("master" if part == "chief" else part for part in loc[:2])
    return master + loc[2:] if master in document.key_lines else loc


def _explained(error: ErrorDetails, loc: tuple[str | int, ...]) -> tuple[str, str]:
    key = ".".join(str(part) for part in loc[-2:]) if loc and isinstance(loc[-1], int) else str((loc or ("",))[-1])
    given, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "value_error":
            fault = context["error"]
            named = f"{key}: {fault.what}" if "[key]" not in error["loc"] else fault.what
            return named, fault.remedy
        case "extra_forbidden":
            return f"unknown key {key}", _suggestion(key, _keys_at(loc[:-1]))
        case "missing":
            return f"{key} is missing", f"Add {key}:"
        case "literal_error":
            choices = re.findall(r"'([^']*)'", str(context["expected"]))
            return f"{key} is {given!r:.60}", _suggestion(str(given), choices)
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{key} is {_kind(given)} where a map belongs", f"Write it as {key}: {{…: …}}"
        case "tuple_type" | "list_type":
            return f"{key} is {_kind(given)} where a list belongs", f"Write it as {key}: [… , …]"
        case "string_type" if given is None:
            return f"{key} has no value", f'Give one, or write {key}: ""'
        case "string_type":
            return f"{key} is {_kind(given)} where text belongs", "Write one value, in quotes if need be"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{key} is {_shown(given)}", "Give a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return f"{key} is {_shown(given)}", "Give a number"
        case "bool_parsing" | "bool_type":
            return f"{key} is {_shown(given)}", "Give true or false"
        case "greater_than_equal" | "greater_than" | "less_than_equal":
            return f"{key} is {_shown(given)}", _bound(error["type"], context)
        case _:
            return f"{key}: {error['msg']}", ""


def _bound(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "less_than_equal":
        return f"Give at most {context['le']:g}"
    return f"Give {context['ge']:g} or more" if kind == "greater_than_equal" else f"Give more than {context['gt']:g}"


def _kind(value: object) -> str:
    match value:
        case None:
            return "empty"
        case list() | tuple():
            return "a list"
        case dict():
            return "a map"
        case _:
            return f"text ({value!s:.40})"


def _shown(value: object) -> str:
    return _kind(value) if isinstance(value, list | dict) or value is None else f"{value!s:.60}"


def _suggestion(given: str, known: Iterable[str]) -> str:
    choices = list(known)
    near = get_close_matches(given, choices, n=1)
    return f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(choices)}"


def _keys_at(loc: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = JobSpec
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_within(model.model_fields[part].annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_within(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(argument) for argument in getattr(annotation, "__args__", ()))
    return next((model for model in found if model), None)

"""The trainer's image: what the controller has of it, and bringing it to the hosts that lack it."""

import json
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdeploy import remote
from tfdeploy.errors import InputError, TfdeployError, all_of
from tfdeploy.facts import Facts, Image
from tfdeploy.remote import Remote
from tfdeploy.report import Report
from tfdeploy.spec import JobSpec
from tfdeploy.wording import counted, last_line, show_size

CHUNK = 1 << 20
# As the kernel names machines, and as images do.
ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}


@dataclass(frozen=True)
class Trainer:
    """An image on the controller."""

    reference: str
    id: str
    architecture: str
    user: str
    size: int


def on_controller(job: JobSpec, report: Report) -> Trainer | None:
    """The image that the job names or is built from; None where the controller has none: then the hosts pull it."""
    if job.build:
        return _built(job, report)
    return _inspected(job.image) if job.image else None


def _built(job: JobSpec, report: Report) -> Trainer:
    assert job.build
    directory = Path(job.build).expanduser()
    if not directory.is_dir():
        raise InputError(f"no such directory: {job.build}", "Name one with a Dockerfile", where="build")
    reference = job.image or f"tfdeploy-{job.name}:latest"
    report.doing(f"building {reference} from {job.build}")
    with tempfile.TemporaryDirectory() as place:
        words = ("docker", "build", "--quiet", f"--iidfile={place}/id", f"--tag={reference}", str(directory))
        done = _docker(words)
        if done.returncode:
            raise TfdeployError(f"the image could not be built: {last_line(done.stderr)}", where=job.build)
    built = _inspected(reference)
    assert built
    return built


def _inspected(reference: str) -> Trainer | None:
    try:
        done = _docker(("docker", "image", "inspect", reference))
    except FileNotFoundError:
        return None
    if done.returncode:
        return None
    found = json.loads(done.stdout)[0]
    return Trainer(
        reference, found["Id"], found.get("Architecture", ""), found["Config"].get("User", ""), found.get("Size", 0)
    )


def check_architecture(trainer: Trainer | None, hosts: Mapping[str, Facts]) -> None:
    """An image of another machine's kind would only fail when its first program starts."""
    if trainer is None:
        return
    wrong = [
        TfdeployError(
            f"{trainer.reference} is made for {trainer.architecture}, this host is {facts.system.machine}",
            "Build it for this kind of machine, or leave the host out with --exclude",
            where=name,
        )
        for name, facts in hosts.items()
        if trainer.architecture
        and ARCHITECTURES.get(facts.system.machine, trainer.architecture) != trainer.architecture
    ]
    if wrong:
        raise all_of(wrong)


def lacking(trainer: Trainer | None, hosts: Mapping[str, Facts]) -> tuple[str, ...]:
    """The hosts that do not have exactly this image; without one on the controller, those that have none."""
    wanted = trainer.id if trainer else ""
    return tuple(name for name, facts in hosts.items() if facts.image is None or (wanted and facts.image.id != wanted))


def spread(trainer: Trainer | None, reference: str, remotes: Mapping[str, Remote], report: Report) -> dict[str, Image]:
    """Brings it to these hosts, and looks whether it is really there."""
    if trainer:
        report.doing(f"sending {reference} ({show_size(trainer.size)}) to {counted(len(remotes), 'host')}")
    else:
        report.doing(f"{counted(len(remotes), 'host')} pull {reference}")

    def one(host: Remote) -> Image:
        if trainer:
            _send(trainer, host)
        else:
            _pull(reference, host)
        return _on_host(trainer.id if trainer else reference, host)

    answers = remote.on_each(remotes, one)
    errors = [answer for answer in answers.values() if isinstance(answer, TfdeployError)]
    if errors:
        raise all_of(errors)
    return remote.answered(answers)


def _send(trainer: Trainer, host: Remote) -> None:
    words = ("docker", "save", trainer.reference)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as saving:
        assert saving.stdout
        loaded = host.feed("docker load", _chunks(saving))
        saving.stdout.close()
        failed = saving.wait()
    if loaded.code:
        raise TfdeployError(f"the image could not be loaded: {last_line(loaded.stderr)}", _remedy(loaded.stderr))
    if failed:
        raise TfdeployError(f"docker save {trainer.reference} failed on this machine")


def _chunks(saving: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert saving.stdout
    while chunk := saving.stdout.read(CHUNK):
        yield chunk


def _pull(reference: str, host: Remote) -> None:
    pulled = host.run(f"docker pull --quiet {shlex.quote(reference)} </dev/null")
    if pulled.code:
        raise TfdeployError(
            f"it could not pull {reference}: {last_line(pulled.stderr)}",
            "Is the name right? An image on this machine is sent to the hosts, others must be in a registry",
        )


def _on_host(wanted: str, host: Remote) -> Image:
    script = f"docker image inspect --format '{{{{.Id}}}} {{{{.Config.User}}}}' {shlex.quote(wanted)} </dev/null"
    found = host.run(script)
    if found.code:
        raise TfdeployError(f"the image did not arrive: {last_line(found.stderr)}", "Try again")
    id_, _, user = found.stdout.strip().partition(" ")
    return Image(id_, user)


def _remedy(said: str) -> str:
    return "Make room there, then try again" if "no space left" in said else ""


def _docker(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)

"""Taking a job down: its tasks get SIGTERM and time, then nothing of it is left but what is listed as kept."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tfdeploy import host_scripts, lock, remote
from tfdeploy.errors import TfdeployError, all_of
from tfdeploy.host_scripts import records
from tfdeploy.outcome import Outcome
from tfdeploy.remote import Remote
from tfdeploy.wording import last_line, show_size, some


class Uncollected(TfdeployError):
    """Outputs would be lost."""


@dataclass(frozen=True)
class Removal:
    kept: tuple[str, ...]
    """What stays on the hosts on purpose."""
    errors: Mapping[str, TfdeployError]

    @property
    def whole(self) -> bool:
        return not self.errors


def check_outputs(job: str, remotes: Mapping[str, Remote]) -> None:
    """Refuses where outputs were not collected."""

    def one(host: Remote) -> list[str]:
        answers = records(host.run(host_scripts.survey(job, host.home)).stdout)
        return [_described(host.name, body) for word, body in answers if word == "outputs"]

    found = remote.answered(remote.on_each(remotes, one))
    left = [text for texts in found.values() for text in texts]
    if left:
        raise Uncollected(
            f"job {job} has outputs that were not collected: {some(left)}",
            "Copy them, or give them up with --discard",
        )


def remove(job: str, remotes: Mapping[str, Remote | TfdeployError], grace: int) -> Removal:
    """On every host that can be reached; it can be run again for the others."""

    outcome = Outcome("stopped", f"taken down by {lock.this_controller()}", time.time()).to_json()

    def one(host: Remote) -> list[str]:
        done = host.run(host_scripts.remove(job, host.home, grace, outcome), seconds=grace + 300)
        answers = dict(records(done.stdout))
        if "removed" not in answers:
            step = answers.get("failed", "")
            raise TfdeployError(f"{step}: {last_line(done.stderr)}" if step else last_line(done.stderr), "Run it again")
        return answers.get("kept", "").splitlines()

    answers = remote.on_each(remote.answered(remotes), one)
    kept = [line for lines in remote.answered(answers).values() for line in lines]
    unreachable = {host: answer for host, answer in remotes.items() if isinstance(answer, TfdeployError)}
    failed = {host: answer for host, answer in answers.items() if isinstance(answer, TfdeployError)}
    return Removal(tuple(dict.fromkeys(map(_kept, kept))), unreachable | failed)


def raise_if_incomplete(removal: Removal) -> None:
    if removal.errors:
        raise all_of(removal.errors.values())


def _described(host: str, body: str) -> str:
    task, size = (*body.split(), "", "")[:2]
    return f"{task} on {host} ({show_size(int(size) * 1024 if size.isdigit() else 0)})"


def _kept(line: str) -> str:
    kind, _, rest = line.partition(" ")
    return f"image {rest.split()[-1]}" if kind == "image" and rest else f"{kind} directory {rest}"

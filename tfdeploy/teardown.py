"""Taking a job down: its tasks get SIGTERM and time, then nothing of it is left but what is listed as kept."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfdeploy import host_scripts, lock, remote
from tfdeploy.errors import TfdeployError, all_of
from tfdeploy.host_scripts import records
from tfdeploy.outcome import Outcome
from tfdeploy.remote import Remote
from tfdeploy.wording import last_line, show_size, some

HOW_TO_GO_ON = "`tfdeploy collect` brings them home, --discard gives them up"


class Uncollected(TfdeployError):
    """Outputs would be lost."""


@dataclass(frozen=True)
class Removal:
    found: bool
    """Whether any host had something of it."""
    kept: tuple[str, ...]
    """What stays on the hosts on purpose."""
    errors: Mapping[str, TfdeployError]

    @property
    def whole(self) -> bool:
        return not self.errors


def check_outputs(job: str, remotes: Mapping[str, Remote]) -> None:
    """Refuses where outputs were not collected; nothing was touched then."""

    def one(host: Remote) -> list[str]:
        return _uncollected(host.name, records(host.run(host_scripts.survey(job, host.home)).stdout))

    found = remote.answered(remote.on_each(remotes, one))
    left = [text for texts in found.values() for text in texts]
    if left:
        raise Uncollected(f"job {job} has outputs that were not collected: {some(left)}", HOW_TO_GO_ON)


def remove(job: str, remotes: Mapping[str, Remote | TfdeployError], grace: int, *, discard: bool) -> Removal:
    """On every host that can be reached; it can be run again for the others."""
    outcome = Outcome("stopped", f"taken down by {lock.this_controller()}", time.time()).to_json()

    def one(host: Remote) -> list[tuple[str, str]]:
        script = host_scripts.remove(job, host.home, grace, outcome, discard=discard)
        done = host.run(script, seconds=grace + 300)
        answers = records(done.stdout)
        if left := _uncollected(host.name, answers):
            raise Uncollected(f"stopped, but {some(left)} saved something when it was told to end", HOW_TO_GO_ON)
        if "removed" not in dict(answers):
            step = dict(answers).get("failed", "")
            raise TfdeployError(f"{step}: {last_line(done.stderr)}" if step else last_line(done.stderr), "Run it again")
        return answers

    answers = remote.on_each(remote.answered(remotes), one)
    said = remote.answered(answers).values()
    kept = [line for each in said for line in dict(each).get("kept", "").splitlines()]
    unreachable = {host: answer for host, answer in remotes.items() if isinstance(answer, TfdeployError)}
    failed = {host: answer for host, answer in answers.items() if isinstance(answer, TfdeployError)}
    return Removal(
        found=bool(failed) or any("found" in dict(each) for each in said),
        kept=tuple(dict.fromkeys(map(_kept, kept))),
        errors=unreachable | failed,
    )


def _uncollected(host: str, answers: Iterable[tuple[str, str]]) -> list[str]:
    return [_described(host, body) for word, body in answers if word == "outputs"]


def raise_if_incomplete(removal: Removal) -> None:
    if removal.errors:
        raise all_of(removal.errors.values())


def _described(host: str, body: str) -> str:
    task, size = (*body.split(), "", "")[:2]
    return f"{task} on {host} ({show_size(int(size) * 1024 if size.isdigit() else 0)})"


def _kept(line: str) -> str:
    kind, _, rest = line.partition(" ")
    return f"image {rest.split()[-1]}" if kind == "image" and rest else f"{kind} directory {rest}"

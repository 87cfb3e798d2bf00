"""Every error that tfdeploy raises on purpose. Touches nothing.

TfdeployError            exit 1: something was tried and failed
├── InputError           exit 2: the user's words, files or flags are wrong; nothing was touched
│   └── NoRoom           the job does not fit on the hosts as they are now
├── UnreachableError     exit 3: a host could not be reached or entered
├── LockedError          exit 4: somebody else holds the job or the host
└── CollectError         exit 5: the job is over, its outputs are not where they belong

An error reads `where: what is wrong. what to do`; `where` is a file and line, a flag, a host or a task.
"""

from collections.abc import Iterable


class TfdeployError(Exception):
    exit_code = 1

    def __init__(self, what: str, remedy: str = "", *, where: str = "") -> None:
        super().__init__(what, remedy, where)
        self.what = what
        self.remedy = remedy
        self.where = where

    def __str__(self) -> str:
        sentences = [_sentence(part) for part in (self.what, self.remedy) if part]
        return f"{self.where}: {' '.join(sentences)}" if self.where else " ".join(sentences)


class InputError(TfdeployError):
    exit_code = 2


class NoRoom(InputError):
    pass


class UnreachableError(TfdeployError):
    exit_code = 3


class LockedError(TfdeployError):
    exit_code = 4


class CollectError(TfdeployError):
    exit_code = 5


def all_of(errors: Iterable[TfdeployError]) -> TfdeployError:
    """Several as one, a line each; it ends the command as the gravest would: locked, unreachable, failed, wrong."""
    listed = list(errors)
    if len(listed) == 1:
        return listed[0]
    wrong = InputError if all(isinstance(each, InputError) for each in listed) else TfdeployError
    ranks = (LockedError, UnreachableError, CollectError)
    kind = next((rank for rank in ranks if any(isinstance(each, rank) for each in listed)), wrong)
    return kind("\n".join(map(str, listed)))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!", ":")) or "\n" in text else f"{text}."

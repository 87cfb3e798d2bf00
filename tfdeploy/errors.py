"""Every error that tfdeploy raises on purpose. Touches nothing.

TfdeployError            exit 1: something was tried and failed
├── InputError           exit 2: the user's words, files or flags are wrong; nothing was touched
├── UnreachableError     exit 3: a host could not be reached or entered
├── LockedError          exit 4: somebody else holds the job or the host
└── CollectError         exit 5: the job is over, its outputs are not where they belong

An error reads `where: what is wrong. what to do`; `where` is a file and line, a flag, a host or a task.
"""


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


class UnreachableError(TfdeployError):
    exit_code = 3


class LockedError(TfdeployError):
    exit_code = 4


class CollectError(TfdeployError):
    exit_code = 5


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!", ":")) or "\n" in text else f"{text}."

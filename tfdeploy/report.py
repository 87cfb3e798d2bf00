"""How a long verb tells what it is doing. Verbs call it; the command line decides how it looks."""

from typing import Protocol


class Report(Protocol):
    def done(self, text: str) -> None:
        """A step that is behind us; stays on the screen."""

    def doing(self, text: str) -> None:
        """What happens at this moment; the next one may overwrite it."""


class Silent:
    def done(self, text: str) -> None:
        pass

    def doing(self, text: str) -> None:
        pass

"""How amounts, lists and other programs' words are said in messages and tables. Pure."""

from collections.abc import Iterable


def show_size(size: int) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g}{unit}"
    return f"{size}B"


def counted(count: int, thing: str) -> str:
    plural = thing if count == 1 or thing in ("ps", "tensorboard") else f"{thing}s"
    return f"{count} {plural}"


def some(things: Iterable[str], separator: str = ", ") -> str:
    listed = list(things)
    more = f"{separator}and {len(listed) - 5} more" if len(listed) > 5 else ""
    return separator.join(listed[:5]) + more


def last_line(text: str) -> str:
    """For the user's eyes: without what a terminal would obey."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(character for character in lines[-1] if character.isprintable()) if lines else ""

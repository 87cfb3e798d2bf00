"""YAML text to plain values with the line of each. Every scalar stays the text that was written. Pure.

YAML's own guesses (`no` is false, `010` is 8, `12:30` is 750) never happen here: a type is what the reader of
the value makes of its text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from tfdeploy.errors import InputError

Path = tuple[str | int, ...]

_MOST_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Document:
    """`data` is None, text, or lists and maps of these."""

    name: str
    data: Any
    value_lines: dict[Path, int] = field(default_factory=dict)
    key_lines: dict[Path, int] = field(default_factory=dict)

    def place(self, path: Path, *, key: bool = False) -> str:
        """`file:line` of a value or of its key, or of the nearest thing around it."""
        lines = self.key_lines if key else self.value_lines
        for end in range(len(path), -1, -1):
            if (line := lines.get(path[:end])) is not None:
                return f"{self.name}:{line}"
        return f"{self.name}:1"


def parse(text: str, name: str) -> Document:
    if "\0" in text:
        raise InputError("a NUL byte in it", "Save it as UTF-8 text", where=_at(name, text[: text.index("\0")]))
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        raise _explained(error, text, name) from error
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", "Save it as UTF-8 text", where=name) from error
    except RecursionError as error:
        raise InputError("nested too deeply", "Write it flatter", where=name) from error
    if len(nodes) > 1:
        second = nodes[1].start_mark.line + 1
        raise InputError("a second document starts here", "Keep one job in a file", where=f"{name}:{second}")
    document = Document(name, None)
    reading = _Reading(document)
    data = reading.value(nodes[0], ()) if nodes else None
    return Document(name, data, document.value_lines, document.key_lines)


class _Reading:
    """One pass over the nodes of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.count = 0
        self.open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.document.value_lines.setdefault(path, node.start_mark.line + 1)
        self.count += 1
        if self.count > _MOST_NODES or id(node) in self.open:
            raise self.wrong(node, "its aliases never end", "Write the values out")
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self.mapping(node, path)
        finally:
            self.open.remove(id(node))

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                for part in self.merge(value_node, path):
                    merged = part | merged
                continue
            key = self.key(key_node)
            if key in result:
                first = self.document.key_lines[*path, key]
                raise self.wrong(key_node, f"{key} stands twice (first in line {first})", "Remove one of them")
            self.document.key_lines[*path, key] = key_node.start_mark.line + 1
            # An alias merged in before may have stood at this path.
            self.document.value_lines.pop((*path, key), None)
            result[key] = self.value(value_node, (*path, key))
        return merged | result

    def merge(self, node: yaml.Node, path: Path) -> Iterator[dict[str, Any]]:
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(part, yaml.MappingNode):
                raise self.wrong(node, "<< merges something that is not a map", "Merge a map, as in <<: *name")
            yield self.value(part, path)

    def key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.wrong(node, "a list or map stands where a key belongs", "Quote {{ … }} and other braces")
        return str(node.value)

    def wrong(self, node: yaml.Node, what: str, remedy: str) -> InputError:
        return InputError(what, remedy, where=f"{self.document.name}:{node.start_mark.line + 1}")


def _explained(error: yaml.MarkedYAMLError, text: str, name: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    where = f"{name}:{line + 1}"
    lines = text.splitlines()
    written = lines[line] if line < len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return InputError("a tab indents this line", "Use spaces", where=where)
    if "'\\t'" in str(error.problem):
        return InputError("a tab stands where YAML wants spaces", "Use spaces", where=where)
    problem = error.problem or error.context or "it cannot be read"
    return InputError(f"not YAML: {problem}", "Check indentation, colons and quotes around here", where=where)


def _at(name: str, before: str) -> str:
    return f"{name}:{before.count(chr(10)) + 1}"

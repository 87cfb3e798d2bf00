"""Jinja2 for `command`, `env` and `outputs`: sandboxed, strict, one pass. Pure.

What a template renders to is a value: it is never rendered again.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from tfdeploy.errors import InputError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

VARIABLES = (
    "type",
    "index",
    "host",
    "address",
    "port",
    "name",
    "job",
    "ps_hosts",
    "worker_hosts",
    "TF_CONFIG",
)

_SHORT_FORM = re.compile(r"(?<!\{)\{(type|index|host|address|port|name|job)\}(?!\})")


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text or "{#" in text


def check(text: str) -> None:
    """ValueError where a template is broken or asks for a variable that no task has."""
    if not is_template(text):
        return
    from jinja2 import TemplateSyntaxError, meta

    try:
        unknown = sorted(meta.find_undeclared_variables(_environment().parse(text)) - _known())
    except TemplateSyntaxError as error:
        raise ValueError(f"the template is broken: {error.message}") from error
    if unknown:
        near = get_close_matches(unknown[0], VARIABLES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(VARIABLES)}"
        raise ValueError(f"no variable is called {unknown[0]}; {hint}")


def render(text: str, variables: Mapping[str, Any], *, where: str = "") -> str:
    if not is_template(text):
        return text
    from jinja2 import TemplateError

    try:
        return _environment().from_string(text).render(variables)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise InputError(f"{text!r:.80} cannot be rendered: {error}", where=where) from error


def render_target(text: str, variables: Mapping[str, Any], *, where: str = "") -> str:
    """As `render`, where `{job}` is short for `{{ job }}`: the form of `outputs: [{to: …}]`."""
    return render(long_form(text), variables, where=where)


def long_form(text: str) -> str:
    return _SHORT_FORM.sub(r"{{ \1 }}", text)


@cache
def _environment() -> "ImmutableSandboxedEnvironment":
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


def _known() -> set[str]:
    return {*VARIABLES, *_environment().globals}

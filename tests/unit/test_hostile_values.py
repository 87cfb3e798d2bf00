"""60 hostile values in five fields: carried through literally, or refused with the place named."""

import json
from pathlib import Path

import pytest

from tfdeploy import inventory, spec, tf_config
from tfdeploy.errors import InputError
from tfdeploy.inventory import Connection, Host, Inventory
from tfdeploy.plan import plan

HOSTILE = [
    # lines and control characters
    "a\nb", "a\r\nb", "\n", "a\tb", "\x1b[31mred", "a\x00b", "\x00", "a\x7f", "\x08", "a\u2028b",
    # quotes and escapes
    "'", '"', "''", "a'b", 'a"b', "`id`", "\\", "\\n", "a\\", "'; id; '",
    # shells
    "$(id)", "$(touch pwned)", "${HOME}", "$HOME", "a;id", "a&&id", "a|id", "a>b", "a<b", "*", "~", "!!",
    "#a", "a b",
    # templates
    "{{7*7}}", "{{ 7*7 }}", "{% raw %}", "{#a#}", "{job}", "%(job)s", "{{''.__class__}}", "${{ x }}",
    # paths
    "../a", "..", "/etc/passwd", "a/../b", "/../../etc", "./a", "//a",
    # options, YAML and JSON
    "-rf", "--privileged", "- a", "a: b", "{a: b}", "[a]", "&a", "*a", "!!python/object:os.system",
    # unicode and length
    "ünïcödé", "\u202eevil", "é" * 300, "a" * 10_000,
]  # fmt: skip


def quoted(value: str) -> str:
    """As YAML that means exactly this text."""
    return json.dumps(value)


def refused_in(place: str, error: InputError) -> None:
    assert error.exit_code == 2
    assert str(error).startswith(place), str(error)
    assert len(str(error)) < 500
    assert "\0" not in str(error)
    assert "\x1b" not in str(error)


def test_there_are_sixty_of_them() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 60


@pytest.mark.parametrize("value", HOSTILE)
def test_as_the_name_of_a_job(value: str) -> None:
    try:
        job = spec.parse(f"image: a\nname: {quoted(value)}\n", "job.yml")
    except InputError as error:
        refused_in("job.yml:2: name: ", error)
    else:
        assert job.name == value


@pytest.mark.parametrize("value", HOSTILE)
def test_as_the_name_of_a_host(value: str, here: Path) -> None:
    (here / "inv.yml").write_text(f"all: {{hosts: {{{quoted(value)}: {{}}}}}}\n")
    try:
        read = inventory.read([str(here / "inv.yml")])
    except InputError as error:
        refused_in("inv.yml", error)
        return
    (host,) = read.hosts
    assert (host.name, host.connection.host) == (value, value)
    made = plan(read, spec.JobSpec(name="demo", command=("{{ host }}",)))
    assert tf_config.command(made, made.tasks[0]) == (value,)
    assert list(here.iterdir()) == [here / "inv.yml"]


@pytest.mark.parametrize("value", HOSTILE)
def test_as_a_key_of_env(value: str) -> None:
    try:
        job = spec.parse(f"image: a\nenv:\n  ? {quoted(value)}\n  : x\n", "job.yml")
    except InputError as error:
        refused_in("job.yml:3: ", error)
    else:
        assert job.env == {value: "x"}


@pytest.mark.parametrize("form", ["{}:/data", "/{}:/data", "/data:/{}", "/data:/x:{}"])
@pytest.mark.parametrize("value", HOSTILE)
def test_as_a_part_of_a_mount(value: str, form: str) -> None:
    text = form.format(value)
    try:
        job = spec.parse(f"image: a\nmounts:\n - {quoted(text)}\n", "job.yml")
    except InputError as error:
        refused_in("job.yml:3: mounts.0: ", error)
        return
    assert job.mounts == (text,)
    mount = spec.parse_mount(text)
    assert text == f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
    assert all(path.startswith("/") and ".." not in path.split("/") for path in (mount.source, mount.target))


@pytest.mark.parametrize("value", HOSTILE)
def test_as_the_ports_of_a_host(value: str, here: Path) -> None:
    raw = quoted(value) if "{{" not in value and "{%" not in value and "{#" not in value else f"!unsafe {quoted(value)}"
    (here / "inv.yml").write_text(f"all:\n  hosts:\n    a:\n      tfdeploy_ports: {raw}\n")
    with pytest.raises(InputError) as error:
        inventory.read([str(here / "inv.yml")])
    refused_in("inv.yml:4: a: tfdeploy_ports is ", error.value)


@pytest.mark.parametrize("value", HOSTILE)
def test_in_a_value_that_is_ours_nothing_is_evaluated(value: str) -> None:
    """Past every check, as from a plan that another controller left on a host."""
    odd = Inventory((Host(value, Connection(host=value)),))
    made = plan(odd, spec.JobSpec(name="demo", command=("{{ host }}", "{{ address }}"), env={"H": "{{ host }}"}))
    assert tf_config.command(made, made.tasks[0]) == (value, value)
    assert tf_config.environment(made, made.tasks[0])["H"] == value
    assert type(made).from_json(made.to_json()).tasks[0].host == value

"""A launch as its hosts keep it: what is written is read back; what a hostile host wrote is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.launches import launch
from tfdeploy.errors import InputError, TfdeployError
from tfdeploy.inventory import Connection, Host, Secret
from tfdeploy.launch import Launch, Member, differences
from tfdeploy.plan import Wishes

laws = settings(max_examples=150, deadline=None)
EVERYTHING: dict[str, Any] = {
    "command": ["--steps", "5", "{{ index }}"],
    "entrypoint": [],
    "env": {"A": "it's\n$B", "B": "ünïcödé"},
    "secrets": ["TOKEN"],
    "mounts": ["/data:/data:ro"],
    "shared": "/mnt/jobs",
    "outputs": [{"to": "/out/{job}"}],
    "tasks": {"ps": {"count": 1, "memory": "4GiB"}, "worker": {"gpus": 1, "cpus": 1.5}, "chief": {}, "tensorboard": {}},
    "policies": {"restart": "on-failure", "deadline": "12h", "grace": "1m"},
}
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def changed(change: Callable[[Any], object]) -> str:
    """A launch's text after `change` has had its way with it."""
    data = json.loads(launch("a", "b", wishes=Wishes(ps=1, workers=1)).to_json())
    change(data)
    return json.dumps(data)


def test_what_is_written_is_read_back() -> None:
    made = launch("a", "b", "c", **EVERYTHING)
    assert Launch.from_json(made.to_json()) == made


def test_it_is_one_line() -> None:
    assert "\n" not in launch("a", "b", **EVERYTHING).to_json()


def test_neither_passwords_nor_ssh_options_are_kept() -> None:
    connection = Connection(
        "10.0.0.1", 22, "ops", "/key", Secret("needle"), "-o needle", "-o needle", become_password=Secret("needle")
    )
    member = Member.of(Host("a", connection))
    text = replace(launch("a"), members=(member,)).to_json()
    assert "needle" not in text
    assert member.as_host() == Host("a", Connection("10.0.0.1", 22, "ops", become=True))


@pytest.mark.parametrize(
    "name", ["$(id)", "a b", "a;id", "-oProxyCommand=id", "../a", "a\nb", "`id`", "", "a" * 300, 5]
)
@pytest.mark.parametrize("key", ["name", "host"])
def test_a_member_with_an_evil_name_is_refused(key: str, name: object) -> None:
    if (key, name) == ("host", 5):
        return
    with pytest.raises(InputError, match="its record of the job cannot be read"):
        Launch.from_json(changed(lambda data: data["members"][0].update({key: name})))


@pytest.mark.parametrize("port", [0, -1, 65536, 10**400, "22", "22 -oProxyCommand=id", 22.5, True, []])
def test_a_member_with_an_evil_port_is_refused(port: object) -> None:
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data["members"][0].update(port=port)))


@pytest.mark.parametrize(
    "user", ["-oProxyCommand=touch pwned", "-l", "$(id)", "a`id`", "a;id", "a b", "a\nb", "a'b", "a\x1b[0m", "", 5, []]
)
def test_a_member_with_an_evil_user_is_refused(user: object) -> None:
    """A user's name may become a part of the ProxyCommand that the user's own ssh configuration has."""
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data["members"][0].update(user=user)))


@pytest.mark.parametrize("user", ["root", "ops-2", "j.doe", "corp\\jdoe", "j@corp.example", "müller", None])
def test_a_member_with_an_ordinary_user_is_not(user: str | None) -> None:
    read = Launch.from_json(changed(lambda data: data["members"][0].update(user=user)))
    assert read.members[0].user == user


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("role", "boss"),
        ("role", "worker; id"),
        ("role", ["worker"]),
        ("index", "0; touch pwned"),
        ("index", -1),
        ("index", True),
        ("index", 1.5),
        ("host", "somewhere-else"),
        ("host", "$(id)"),
        ("address", "10.0.0.1 evil"),
        ("address", "$(id)"),
        ("address", 5),
        ("name", "worker-0.demo\nevil"),
        ("name", "`id`"),
        ("port", 0),
        ("port", 70000),
        ("port", "2222"),
        ("gpus", ["0,all"]),
        ("gpus", [0]),
        ("gpus", "$(id)"),
        ("strange", 1),
    ],
)
def test_a_task_with_an_evil_value_is_refused(key: str, value: object) -> None:
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data["plan"]["tasks"][0].update({key: value})))


@pytest.mark.parametrize("key", ["generation", "by", "image"])
@pytest.mark.parametrize("value", ["\x1b]0;evil\x07", "a\nb", "a\x9bb", 5, None])
def test_what_a_terminal_would_obey_is_refused(key: str, value: object) -> None:
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data.update({key: value})))


@pytest.mark.parametrize("at", [float("nan"), float("inf"), 10**400, "now", None, [], 1e300])
def test_a_time_that_is_none_is_refused(at: object) -> None:
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data.update(at=at)))


def test_a_job_with_an_evil_name_is_refused() -> None:
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data["plan"]["job"].update(name="../../etc")))


def test_the_same_task_twice_is_refused() -> None:
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data["plan"]["tasks"].append(data["plan"]["tasks"][0])))


def test_a_job_without_tasks_is_refused() -> None:
    with pytest.raises(InputError):
        Launch.from_json(changed(lambda data: data["plan"].update(tasks=[])))


@pytest.mark.parametrize("format_", [0, 2, "1", None])
def test_another_format_says_which_tfdeploy_to_use(format_: object) -> None:
    with pytest.raises(InputError, match="Use the tfdeploy that launched it"):
        Launch.from_json(changed(lambda data: data.update(format=format_)))


@laws
@given(st.text())
def test_any_text_is_a_launch_or_an_error_of_ours(text: str) -> None:
    with pytest.raises(TfdeployError):
        Launch.from_json(text)


@laws
@given(st.data())
def test_nonsense_in_any_place_is_a_launch_or_an_error_of_ours(data: st.DataObject) -> None:
    whole = json.loads(launch("a", "b", **EVERYTHING).to_json())
    place: Any = whole
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(nonsense)
        break
    message, read = "", None
    try:
        read = Launch.from_json(json.dumps(whole))
    except TfdeployError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 400
    if read:
        assert {task.host for task in read.plan.tasks} <= {member.name for member in read.members}


# --- what another launch would change ---


def test_the_same_job_again_changes_nothing() -> None:
    assert differences(launch("a", "b"), replace(launch("a", "b"), generation="g2", by="other", at=5)) == ()


def test_every_change_is_a_line() -> None:
    old = launch("a", "b", env={"A": "1"}, command=["x"])
    new = replace(launch("a", "b", "c", env={"A": "2", "B": "3"}, command=["x"]), image="sha256:" + "cd" * 32)
    assert differences(old, new) == (
        'env.A: "1" -> "2"',
        'env.B: - -> "3"',
        "tasks.worker.count: 2 -> 3",
        "image id: sha256:abababababab -> sha256:cdcdcdcdcdcd",
        "worker-2: - -> c",
    )


def test_a_task_that_would_move_is_a_line() -> None:
    assert differences(launch("a", "b"), launch("a", "c")) == ("worker-1: b -> c",)


def test_keys_within_keys_are_named_by_their_whole_path() -> None:
    lines = differences(launch(policies={"grace": "10s"}), launch(policies={"grace": "20s", "restart": "never"}))
    assert lines == ("policies.grace: 10 -> 20", 'policies.restart: - -> "never"')

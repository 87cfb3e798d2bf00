"""Who needs provisioning, what Ansible is told, and how what came of it is said."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tfdeploy import converge, paths, provision
from tfdeploy.converge import Convergence, HostOutcome
from tfdeploy.errors import TfdeployError
from tfdeploy.facts import Engine, Facts
from tfdeploy.inventory import Connection, Host, Inventory, Vault
from tfdeploy.provision import Choices, Provisioning
from tfdeploy.remote import Cause, Credentials, HostUnreachable

GOOD = Facts(
    cpus=4,
    memory=8 << 30,
    engine=Engine("28.5.1", live_restore=True),
    disk="/",
    disk_free=50 << 30,
    python="3.11.2",
    tools=frozenset({"rsync", "zstd", "ip", "ss"}),
    converged="wanted",
)

# --- who needs it ---


@pytest.mark.parametrize(
    ("host", "reasons"),
    [
        (GOOD, ()),
        (replace(GOOD, converged=""), ("not provisioned yet",)),
        (replace(GOOD, converged="before"), ("provisioned by another version",)),
        (replace(GOOD, engine=Engine("19.03.1")), ("Docker 19.03.1 is older than 20.10",)),
        (replace(GOOD, engine=Engine(), converged=""), ("not provisioned yet",)),
        (replace(GOOD, engine=Engine(error="daemon is down")), ("daemon is down",)),
        (replace(GOOD, python=""), ("no Python",)),
        (replace(GOOD, tools=frozenset({"ip"})), ("no rsync, zstd",)),
        (replace(GOOD, clock_offset=-2.04), ("clock off by -2.0 s",)),
        (replace(GOOD, clock_offset=1.5), ("clock off by +1.5 s",)),
        (replace(GOOD, clock_offset=1.0), ()),
        (replace(GOOD, converged="", python=""), ("not provisioned yet", "no Python")),
    ],
)
def test_why_a_host_is_not_as_wanted(host: Facts, reasons: tuple[str, ...]) -> None:
    assert provision.needs(host, "wanted") == reasons


@pytest.mark.parametrize(
    ("choices", "explicit"),
    [(Choices(), False), (Choices(diff=True), False), (Choices(check=True), True), (Choices(tags="docker"), True)],
)
def test_a_particular_wish_skips_no_host(choices: Choices, explicit: bool) -> None:
    assert choices.explicit is explicit


# --- the digest ---


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A playbook and a role of the test's own; the working directory is empty."""
    for name in ("playbooks/provision.yml", "roles/docker/tasks/main.yml", "roles/docker/templates/daemon.json.j2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(paths, "_shipped", lambda directory: tmp_path / directory)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


def test_a_digest_is_the_same_for_the_same_content(shipped: Path) -> None:
    Path("vars.yml").write_text("a: 1")
    words = ("b=2", "@vars.yml")
    assert provision.digest(words) == provision.digest(list(words))
    assert len(provision.digest(())) == 32


@pytest.mark.parametrize("name", ["playbooks/provision.yml", "roles/docker/templates/daemon.json.j2"])
def test_a_digest_changes_with_a_shipped_file(shipped: Path, name: str) -> None:
    before = provision.digest(())
    (shipped / name).write_text("changed")
    assert provision.digest(()) != before


@pytest.mark.parametrize("new", ["roles/docker/handlers/main.yml", "roles/later/tasks/main.yml"])
def test_a_digest_changes_when_a_role_file_moves(shipped: Path, new: str) -> None:
    before = provision.digest(())
    (shipped / new).parent.mkdir(parents=True)
    (shipped / "roles/docker/tasks/main.yml").rename(shipped / new)
    assert provision.digest(()) != before


@pytest.mark.parametrize("other", [(), ("a=2",), ("a=1", "b=1"), ('{"a": 1}',)])
def test_a_digest_changes_with_variables(shipped: Path, other: tuple[str, ...]) -> None:
    assert provision.digest(("a=1",)) != provision.digest(other)


def test_a_digest_changes_with_the_content_of_a_variables_file(shipped: Path) -> None:
    Path("vars.yml").write_text("a: 1")
    before = provision.digest(("@vars.yml",))
    Path("vars.yml").write_text("a: 2")
    assert provision.digest(("@vars.yml",)) != before


def test_a_variables_file_in_the_home_is_found(shipped: Path) -> None:
    (Path.home() / "vars.yml").write_text("a: 1")
    assert provision.digest(("@~/vars.yml",))


def test_the_shipped_roles_have_a_digest() -> None:
    assert provision.digest(()) == provision.digest(())


# --- what Ansible is told ---


def test_files_are_named_by_their_whole_paths(here: Path) -> None:
    words = provision.ansible_words(("a=1", "@vars.yml", "@/etc/vars.yml", '{"b": "@x"}'), Vault())
    assert words == (
        *("--extra-vars", "a=1"),
        *("--extra-vars", f"@{here}/vars.yml"),
        *("--extra-vars", "@/etc/vars.yml"),
        *("--extra-vars", '{"b": "@x"}'),
    )


def test_files_in_the_home_are_those_that_ansible_means(here: Path) -> None:
    words = provision.ansible_words(("@~/vars.yml",), Vault(("dev@~/pass",), ("~/pass",)))
    home = Path.home()
    assert words == (
        "--extra-vars",
        f"@{home}/vars.yml",
        f"--vault-id=dev@{home}/pass",
        f"--vault-password-file={home}/pass",
    )


@pytest.mark.parametrize(
    ("vault_id", "told"),
    [
        ("dev@pass", "dev@{here}/pass"),
        ("pass", "{here}/pass"),
        ("@pass", "@{here}/pass"),
        ("dev@/etc/pass", "dev@/etc/pass"),
        ("dev@p@ss", "dev@{here}/p@ss"),
        ("dev@prompt", "dev@prompt"),
        ("dev@prompts.txt", "dev@{here}/prompts.txt"),
        ("dev@prompt_ask_vault_pass", "dev@prompt_ask_vault_pass"),
    ],
)
def test_vault_ids_keep_their_label_and_name_their_file(here: Path, vault_id: str, told: str) -> None:
    assert provision.ansible_words((), Vault((vault_id,))) == (f"--vault-id={told.format(here=here)}",)


# --- what came of it ---


def outcome(message: str, state: str = "failed", task: str = "Install Docker") -> HostOutcome:
    return HostOutcome("gpu1", state, task, message)


@pytest.mark.parametrize(
    ("message", "what", "remedy"),
    [
        ("E: You don't have enough free space in /var/cache/apt/archives/.", "disk full", "Make room there"),
        ("dpkg: error: failed to write status: No space left on device", "disk full", "Make room there"),
        (
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)",
            "another package manager is at work",
            "Wait for it",
        ),
        (
            "E: Failed to fetch http://deb.example/debian/docker.io.deb  Could not connect to deb.example:80",
            "its package sources cannot be reached",
            "Check its network",
        ),
        ("Err:1 bookworm InRelease Temporary failure resolving 'deb.example'", "its package sources", "network"),
        ("Failed to download metadata for repo 'baseos': Cannot download repomd.xml", "its package sources", "network"),
        ("Incorrect sudo password", "sudo password wrong", "-K"),
        ("Missing sudo password", "sudo wants a password", "-K"),
        ("sudo: a password is required", "sudo wants a password", "-K"),
        (
            "Failed to connect to the host via ssh: @@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@ Host key"
            " verification failed.",
            "host key changed",
            "the machine you mean",
        ),
        ("Failed to connect to the host via ssh: Host key verification failed.", "host key unknown", "accept its key"),
        (
            "Failed to connect to the host via ssh: ssh: Could not resolve hostname gpu1: Name or service not known",
            "name unknown",
            "ansible_host",
        ),
        ("/bin/sh: 1: /usr/bin/python3: not found", "no Python", "Install python3"),
    ],
)
def test_known_causes_are_told_in_our_words_and_in_theirs(message: str, what: str, remedy: str) -> None:
    error = provision.explained(outcome(message))
    assert error.what.startswith(what)
    assert error.what.endswith(f"at “Install Docker”: {message}")
    assert remedy in error.remedy
    assert error.where == "gpu1"


def test_an_unknown_cause_is_told_in_the_modules_own_words() -> None:
    assert str(provision.explained(outcome("the reason"))) == "gpu1: at “Install Docker”: the reason."


def test_a_host_that_the_playbook_did_not_get_to_is_told_so() -> None:
    assert str(provision.explained(outcome("", "untouched", ""))) == "gpu1: the playbook did not get to it."


def ended(**states: str) -> Convergence:
    return Convergence(tuple(HostOutcome(host, state, "Task", "why") for host, state in states.items()), Path("run"))


def test_every_host_has_its_state() -> None:
    down = HostUnreachable("down", Cause.REFUSED)
    todo = dict.fromkeys(("done", "bad", "lost", "late", "stopped"), ("not provisioned yet",))
    found: dict[str, Facts | TfdeployError] = {"good": GOOD, "down": down, **dict.fromkeys(todo, GOOD)}
    convergence = ended(done="changed", bad="failed", lost="unreachable", late="untouched", stopped="cancelled")
    provisioning = Provisioning(found, todo, convergence)
    assert {host: provisioning.state(host) for host in found} == {
        "good": "as-wanted",
        "down": "unreachable",
        "done": "changed",
        "bad": "failed",
        "lost": "unreachable",
        "late": "untouched",
        "stopped": "cancelled",
    }
    assert provisioning.as_wanted == ("good",)
    assert set(provisioning.unreachable) == {"down", "lost"}
    assert set(provisioning.failed) == {"bad", "late"}
    assert provisioning.errors["down"] is down
    assert str(provisioning.errors["bad"]) == "bad: at “Task”: why."
    assert set(provisioning.errors) == {"down", "lost", "bad", "late"}


def test_where_nothing_was_to_do_nothing_went_wrong() -> None:
    provisioning = Provisioning({"good": GOOD}, {})
    assert (provisioning.outcomes, provisioning.errors, provisioning.as_wanted) == ((), {}, ("good",))


# --- the whole, with a playbook that is only told of ---

Told = list[tuple[converge.Request, str]]
Provision = Callable[..., Provisioning]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What converge was told, instead of being run."""
    requests: Told = []

    def record(request: converge.Request, run_dir: Path, **options: object) -> Convergence:
        requests.append((request, str(options["become_password"])))
        return ended(**dict.fromkeys(request.hosts, "changed"))

    monkeypatch.setattr(converge, "converge", record)
    return requests


def provisioned(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Facts | TfdeployError], sources: Sequence[str], choices: Choices
) -> Provisioning:
    monkeypatch.setattr(provision, "look", lambda hosts, credentials: found)
    inventory = Inventory(tuple(Host(name, Connection(name)) for name in found))
    return provision.provision(sources, inventory, Credentials(), choices, Vault())


def test_only_hosts_that_need_it_are_converged(monkeypatch: pytest.MonkeyPatch, told: Told, here: Path) -> None:
    good = replace(GOOD, converged=provision.digest(()))
    found: dict[str, Facts | TfdeployError] = {"a": good, "b": GOOD, "c": HostUnreachable("c", Cause.TIMEOUT)}
    done = provisioned(monkeypatch, found, ["lab.ini", "x,", "~/inventory"], Choices())
    ((request, _),) = told
    assert list(request.hosts) == ["b"]
    assert list(request.inventory) == [f"{here}/lab.ini", "x,", f"{Path.home()}/inventory"]
    assert done.as_wanted == ("a",)
    assert done.state("b") == "changed"


def test_when_all_are_as_wanted_no_playbook_starts(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    good = replace(GOOD, converged=provision.digest(()))
    assert provisioned(monkeypatch, {"a": good}, ["x,"], Choices()).convergence is None
    assert told == []


def test_a_dry_run_takes_all_that_answered(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    good = replace(GOOD, converged=provision.digest(()))
    done = provisioned(monkeypatch, {"a": good}, ["x,"], Choices(check=True))
    ((request, _),) = told
    assert request.check
    assert done.reasons == {"a": ("asked for",)}


def test_a_full_disk_cannot_be_worked_on() -> None:
    full = replace(GOOD, disk_free=1 << 20, disk="/var")
    assert str(provision.workable("a", full)).startswith("a: disk full: 1MiB left on /var.")
    assert provision.workable("b", GOOD) is GOOD


# --- run directories ---


def test_the_last_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = paths.state() / "runs"
    for number in range(30):
        (runs / f"20250101T0000{number:02}Z-provision-1").mkdir(parents=True)
    new = provision.new_run("provision")
    assert new.parent == runs
    new.mkdir()
    kept = sorted(path.name for path in runs.iterdir())
    assert len(kept) == provision.RUNS_KEPT
    assert kept[0] == "20250101T000011Z-provision-1"
    assert kept[-1] == new.name


def test_the_first_run_makes_a_private_place() -> None:
    assert not provision.new_run("provision").exists()
    assert (paths.state() / "runs").stat().st_mode & 0o777 == 0o700

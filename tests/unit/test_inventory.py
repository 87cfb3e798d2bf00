"""Inventories as Ansible users write them, and what becomes of them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdeploy import inventory
from tfdeploy.errors import InputError
from tfdeploy.inventory import Host, Inventory, Secret, Vault

Read = Callable[..., Inventory]


@pytest.fixture
def read(here: Path) -> Read:
    """Writes files (name -> text) into the working directory and reads the first as an inventory."""

    def write_and_read(files: dict[str, str], **options: object) -> Inventory:
        for name, text in files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_text(text)
        return inventory.read([next(iter(files)).split("/")[0]], **options)  # type: ignore[arg-type]

    return write_and_read


def names(read_inventory: Inventory) -> list[str]:
    return [host.name for host in read_inventory.hosts]


def only(read_inventory: Inventory) -> Host:
    (host,) = read_inventory.hosts
    return host


def test_hosts_keep_the_order_of_the_file(read: Read) -> None:
    assert names(read({"inv.ini": "zeta\nalpha\nh[08:11]\n"})) == [
        "zeta",
        "alpha",
        "h08",
        "h09",
        "h10",
        "h11",
    ]


def test_a_yaml_inventory_with_groups_of_groups_is_read(read: Read) -> None:
    text = "all: {children: {cluster: {children: {ps: {hosts: {a: }}, worker: {hosts: {b: , c: }}}}}}"
    result = read({"inv.yml": text})
    assert names(result) == ["a", "b", "c"]
    assert result.groups["cluster"] == ("a", "b", "c")
    assert result.hosts[1].groups == ("cluster", "worker")


def test_a_directory_brings_its_group_vars_and_host_vars(read: Read) -> None:
    result = read(
        {
            "inv/hosts": "a\nb\n",
            "inv/group_vars/all.yml": "ansible_user: ops\nansible_port: 2200\n",
            "inv/host_vars/b.yml": "ansible_user: admin\n",
        }
    )
    assert [(h.connection.user, h.connection.port) for h in result.hosts] == [("ops", 2200), ("admin", 2200)]


def test_an_executable_inventory_is_run(read: Read, here: Path) -> None:
    script = here / "inv.sh"
    script.write_text(
        "#!/bin/sh\ncat <<END\n"
        '{"ps": {"hosts": ["a"], "vars": {"ansible_user": "u"}}, "_meta": {"hostvars": {}}}\nEND\n'
    )
    script.chmod(0o755)
    assert only(inventory.read(["inv.sh"])).connection.user == "u"


def test_several_sources_are_one_inventory(here: Path) -> None:
    (here / "one").write_text("a\n")
    (here / "two").write_text("b\n")
    assert names(inventory.read(["one", "two", "c,d"])) == ["a", "b", "c", "d"]


def test_limit_takes_ansible_patterns_and_keeps_the_whole_groups(read: Read) -> None:
    result = read({"inv.ini": "a\n[ps]\nb\nc\n"}, limit="ps:!c")
    assert names(result) == ["b"]
    assert result.groups["ps"] == ("b", "c")


def test_a_limit_that_matches_nothing_is_refused(read: Read) -> None:
    with pytest.raises(InputError, match=r"--limit nope: matches no host.*Its hosts are a, b"):
        read({"inv.ini": "a\nb\n"}, limit="nope")


def test_connection_variables_are_kept_for_ssh(read: Read) -> None:
    line = (
        "a ansible_host=10.0.0.9 ansible_port=2200 ansible_user=ops ansible_ssh_private_key_file=~/k"
        " ansible_ssh_common_args='-o ProxyJump=bastion' ansible_ssh_extra_args=-4 ansible_become=yes"
        " ansible_become_method=su ansible_become_user=tf ansible_python_interpreter=/usr/bin/python3.12\n"
    )
    connection = only(read({"inv.ini": line})).connection
    assert (connection.host, connection.port, connection.user) == ("10.0.0.9", 2200, "ops")
    assert connection.private_key_file == str(Path("~/k").expanduser())
    assert connection.ssh_common_args == "-o ProxyJump=bastion"
    assert connection.ssh_extra_args == "-4"
    assert (connection.become, connection.become_method, connection.become_user) == (True, "su", "tf")
    assert connection.python == "/usr/bin/python3.12"


def test_without_variables_the_name_is_the_address_and_the_rest_is_open(read: Read) -> None:
    connection = only(read({"inv.ini": "gpu1\n"})).connection
    assert connection == inventory.Connection(host="gpu1")


def test_passwords_are_held_but_never_shown(read: Read) -> None:
    result = read({"inv.ini": "a ansible_password=hunter2 ansible_become_password=swordfish\n"})
    connection = only(result).connection
    assert connection.password == Secret("hunter2")
    assert connection.become_password == Secret("swordfish")
    shown = f"{result!r} {connection.password} {connection.password!r}"
    assert "hunter2" not in shown
    assert "swordfish" not in shown


def test_templates_and_lookups_work_as_in_ansible(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_USER", "from-env")
    result = read(
        {
            "inv/hosts": "bastion ansible_host=192.0.2.1\na\n",
            "inv/group_vars/all.yml": (
                "ansible_user: \"{{ lookup('env', 'TEST_USER') }}\"\n"
                "ansible_password: \"{{ lookup('env', 'NOT_SET_HERE') | default(omit, true) }}\"\n"
                "ansible_ssh_common_args: \"-J {{ hostvars['bastion'].ansible_host }}\"\n"
            ),
        }
    )
    connection = result.hosts[1].connection
    assert (connection.user, connection.password) == ("from-env", None)
    assert connection.ssh_common_args == "-J 192.0.2.1"


def test_an_undefined_variable_names_host_variable_and_line(read: Read) -> None:
    with pytest.raises(InputError, match=r"^inv/group_vars/all\.yml:2: a: ansible_user: 'nobody' is undefined"):
        read({"inv/hosts": "a\n", "inv/group_vars/all.yml": 'x: 1\nansible_user: "{{ nobody }}"\n'})


def test_ansible_cfg_variables_of_the_environment_count(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_REMOTE_USER", "everyone")
    assert only(read({"inv.ini": "a\n"})).connection.user == "everyone"


def encrypted(text: str, password: str) -> str:
    from ansible.parsing.vault import VaultLib, VaultSecret

    vault = VaultLib([("default", VaultSecret(password.encode()))])
    return str(vault.encrypt(text).decode())


def test_vault_encrypted_variables_open_with_a_password_file(read: Read, here: Path) -> None:
    (here / "pass").write_text("open sesame\n")
    result = read(
        {
            "inv/hosts": "a\n",
            "inv/group_vars/all.yml": encrypted("ansible_password: s3cret\n", "open sesame"),
        },
        vault=Vault(password_files=("pass",)),
    )
    assert only(result).connection.password == Secret("s3cret")


def test_an_inline_vault_value_opens_with_a_vault_id(read: Read, here: Path) -> None:
    (here / "pass").write_text("one\n")
    value = encrypted("s3cret", "one").replace("\n", "\n  ")
    result = read(
        {"inv/hosts": "a\n", "inv/group_vars/all.yml": f"ansible_password: !vault |\n  {value}\n"},
        vault=Vault(ids=("default@pass",)),
    )
    assert only(result).connection.password == Secret("s3cret")


@pytest.mark.parametrize("vault", [Vault(), Vault(password_files=("wrong",))])
def test_a_locked_vault_says_which_flag_opens_it(read: Read, here: Path, vault: Vault) -> None:
    (here / "wrong").write_text("guess\n")
    files = {"inv/hosts": "a\n", "inv/group_vars/all.yml": encrypted("ansible_password: x\n", "right")}
    with pytest.raises(InputError, match="--vault-password-file"):
        read(files, vault=vault)


def test_a_locked_inline_value_names_its_line_and_the_flag(read: Read) -> None:
    value = encrypted("s3cret", "one").replace("\n", "\n  ")
    files = {"inv/hosts": "a\n", "inv/group_vars/all.yml": f"x: 1\nansible_password: !vault |\n  {value}\n"}
    with pytest.raises(InputError, match=r"^inv/group_vars/all\.yml:2: a: ansible_password: .*--vault-password-file"):
        read(files)


def plan_in_an_ascii_locale(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from tfdeploy.cli import main; main(['plan', 'a,', *sys.argv[1:]])"
    environment = {"LC_ALL": "C", "PATH": os.environ["PATH"], "HOME": str(here)}
    return subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)


def test_an_ascii_locale_is_no_obstacle(here: Path) -> None:
    assert plan_in_an_ascii_locale(here).returncode == 0


def test_a_locale_in_which_ansible_opens_no_vault_is_said_with_its_remedy(here: Path) -> None:
    (here / "pass").write_text("x")
    outcome = plan_in_an_ascii_locale(here, "--vault-password-file", str(here / "pass"))
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: Ansible requires the locale encoding to be UTF-8")
    assert outcome.stderr.endswith("Set LC_ALL=C.UTF-8.\n")


def test_a_missing_vault_password_file_is_refused(read: Read) -> None:
    with pytest.raises(InputError, match="nowhere"):
        read({"inv.ini": "a\n"}, vault=Vault(password_files=("nowhere",)))


def test_our_variables_are_parsed(read: Read) -> None:
    host = only(
        read(
            {"inv.ini": "a tfdeploy_address=10.1.0.1 tfdeploy_gpus=2 tfdeploy_slots=3 tfdeploy_ports=3000-3009,4000\n"}
        )
    )
    assert (host.address, host.gpus, host.slots) == ("10.1.0.1", 2, 3)
    assert host.ports == ((3000, 3009), (4000, 4000))


@pytest.mark.parametrize(
    ("written", "gpus"),
    [
        ("0", 0),
        ("4", 4),
        ("0,2", ("0", "2")),
        ("[1, 3]", ("1", "3")),
        ("GPU-8f2e,MIG-1a", ("GPU-8f2e", "MIG-1a")),
        ("all", None),
    ],
)
def test_gpus_are_a_count_or_a_list(read: Read, written: str, gpus: object) -> None:
    assert only(read({"inv.ini": f"a tfdeploy_gpus='{written}'\n"})).gpus == gpus


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("tfdeploy_ports", "70000", "not within 1-65535"),
        ("tfdeploy_ports", "3000-2000", "lower end first"),
        ("tfdeploy_ports", "ssh", "not a port"),
        ("tfdeploy_slots", "0", "less than 1"),
        ("tfdeploy_slots", "many", "not a whole number"),
        ("tfdeploy_gpus", "-1", "less than 0"),
        ("tfdeploy_gpus", "0,0", "twice"),
        ("tfdeploy_address", "a b", "neither an IP address nor a host name"),
        ("ansible_port", "70000", "within 1-65535"),
        ("ansible_become", "perhaps", "neither yes nor no"),
        ("ansible_host", "-oProxyCommand=x", "plain name"),
    ],
)
def test_a_wrong_value_names_file_line_host_and_variable(read: Read, variable: str, value: str, complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        read({"inv.ini": f"# a comment\na {variable}='{value}'\n"})
    assert str(refusal.value).startswith(f"inv.ini:2: a: {variable} is ")
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("inv.ini", 'a\nb x="1\n', r"^inv\.ini:2: .*No closing quotation"),
        ("inv.ini", "a\n[all:vars]\nfoo\n", r"^inv\.ini:3: Expected key=value"),
        ("inv.yml", "all:\n  hosts:\n\ta:\n", r"^inv\.yml:3: .*[Tt]ab"),
        ("inv.yml", "all: {hosts: [a]}\n", r"^inv\.yml: .*requires a dictionary"),
        ("inv.ini", "# nothing\n", r"^inv\.ini: no host in it"),
    ],
)
def test_an_inventory_that_ansible_cannot_read_is_refused_with_its_place(
    read: Read, name: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=message):
        read({name: text})
    assert capsys.readouterr() == ("", "")


def test_a_missing_inventory_is_refused(here: Path) -> None:
    with pytest.raises(InputError, match=r"^nowhere\.ini: no such inventory"):
        inventory.read(["nowhere.ini"])


def test_no_inventory_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="no inventory given"):
        inventory.read([])


def test_broken_group_vars_name_their_file(read: Read) -> None:
    with pytest.raises(InputError, match=r"^inv/group_vars/all\.yml:2: "):
        read({"inv/hosts": "a\n", "inv/group_vars/all.yml": 'a: 1\nb: "x" y\n'})


def test_a_stray_file_in_a_directory_is_a_warning_not_the_end(read: Read) -> None:
    result = read({"inv/hosts": "a\n", "inv/notes": 'some "text\n'})
    assert names(result) == ["a"]
    assert any("notes" in warning for warning in result.warnings)


def test_warnings_of_ansible_become_data_every_time(read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        result = read({"inv.ini": "a\n[b-c]\na\n"})
        assert any("group names" in warning for warning in result.warnings)
    assert capsys.readouterr() == ("", "")

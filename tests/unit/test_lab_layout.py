import io
import tarfile
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdeploy.errors import InputError
from tfdeploy.lab import image, layout
from tfdeploy.lab.layout import Changes, Lab, SeenHost

LAB = Lab("lab", IPv4Network("198.18.4.0/24"))
STATES = st.sampled_from(["running", "exited", "created", "paused"])
SEEN = st.builds(SeenHost, st.integers(1, 12), STATES, st.sampled_from(["now", "before"]))


@pytest.mark.parametrize(
    "name", ["", "Lab", "1lab", "a b", "a/b", "lab-", "-lab", "a" * 21, "$(id)", "lab\n", "lab\0", "läb", ".."]
)
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        layout.check_name(name)


@pytest.mark.parametrize("name", ["a", "lab", "m-docker-debian13", "a" * 20])
def test_plain_names_are_taken(name: str) -> None:
    assert layout.check_name(name) == name


@pytest.mark.parametrize("count", [-1, 0, 101])
def test_impossible_numbers_of_hosts_are_refused(count: int) -> None:
    with pytest.raises(InputError, match="1 to 100"):
        layout.check_count(count)


@pytest.mark.parametrize(("rate", "bits"), [("100mbit", 100_000_000), ("1gbit", 10**9), ("64kbit", 64_000)])
def test_rates_are_read(rate: str, bits: int) -> None:
    assert layout.check_rate(rate) == bits


@pytest.mark.parametrize("rate", ["", "0mbit", "fast", "100", "-1mbit", "1.5mbit", "100mbit; id"])
def test_odd_rates_are_refused(rate: str) -> None:
    with pytest.raises(InputError, match="--rate"):
        layout.check_rate(rate)


@pytest.mark.parametrize("subnet", ["x", "198.18.0.0/16", "198.18.0.1/24", "fd00::/64"])
def test_odd_subnets_are_refused(subnet: str) -> None:
    with pytest.raises(InputError, match="--subnet"):
        layout.check_subnet(subnet, [])


def test_a_subnet_in_use_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"198\.18\.0\.0/15 is routed"):
        layout.check_subnet("198.18.7.0/24", [IPv4Network("198.18.0.0/15")])


@given(st.sets(st.integers(0, 511), max_size=40))
def test_a_chosen_subnet_overlaps_nothing(numbers: set[int]) -> None:
    subnets = list(layout.RANGES.subnets(new_prefix=24))
    taken = [subnets[number] for number in numbers]
    assert not any(layout.free_subnet(taken).overlaps(other) for other in taken)


def test_no_subnet_left_is_said() -> None:
    with pytest.raises(InputError, match="--subnet"):
        layout.free_subnet([layout.RANGES])


def test_addresses_are_distinct_and_inside_the_lab() -> None:
    hosts = LAB.hosts(layout.MOST_HOSTS)
    addresses = {host.address for host in hosts} | {host.second_address for host in hosts if host.second_address}
    assert len(addresses) == layout.MOST_HOSTS + 1
    assert all(IPv4Network(address).subnet_of(LAB.subnet) for address in addresses)


def test_one_host_asks_for_a_sudo_password_and_one_has_two_nics() -> None:
    assert [host.user for host in LAB.hosts(4)] == ["root", "ops", "root", "root"]
    assert [host.second_address for host in LAB.hosts(4)] == [None, None, "198.18.4.141", None]


@given(st.lists(SEEN, unique_by=lambda host: host.index), st.integers(1, 12))
def test_changes_lead_to_the_wished_hosts(seen: list[SeenHost], count: int) -> None:
    todo = layout.changes(seen, count, "now")
    kept = {host.index for host in seen} - set(todo.remove)
    assert kept.isdisjoint(todo.create)
    assert kept | set(todo.create) == set(range(1, count + 1))
    assert set(todo.start) <= kept


def test_good_hosts_are_left_alone() -> None:
    assert layout.changes([SeenHost(1, "running", "now")], 1, "now") == Changes((), (), ())


def test_a_host_that_was_never_started_is_made_anew() -> None:
    assert layout.changes([SeenHost(1, "created", "now")], 1, "now") == Changes((1,), (1,), ())


def test_a_host_made_from_another_image_is_made_anew() -> None:
    assert layout.changes([SeenHost(1, "running", "before")], 1, "now") == Changes((1,), (1,), ())


def test_a_host_without_power_is_started() -> None:
    assert layout.changes([SeenHost(1, "exited", "now")], 1, "now") == Changes((), (), (1,))


def test_capabilities_that_the_machine_lacks_are_dropped_from_all() -> None:
    words = layout.create_words(LAB.host(1), "image", "x", ["SYS_RESOURCE"])
    assert words.index("--cap-add=ALL") < words.index("--cap-drop=SYS_RESOURCE")
    assert words[-1] == "image"


def test_the_identity_of_a_sudo_host_holds_its_key_owner_and_password() -> None:
    archive = layout.identity_archive(LAB.host(2), "private", "public", "authorized", "secret")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        owners = {member.name: (member.uid, oct(member.mode)) for member in tar.getmembers()}
        password = tar.extractfile("lab/password")
        assert password is not None
        assert password.read() == b"ops:secret\n"
    assert owners["home/ops/.ssh/authorized_keys"] == (1000, "0o600")
    assert owners["etc/ssh/ssh_host_ed25519_key"] == (0, "0o600")


def test_root_hosts_get_no_password() -> None:
    archive = layout.identity_archive(LAB.host(1), "private", "public", "authorized", "secret")
    assert b"secret" not in archive


def test_the_inventory_needs_no_flags() -> None:
    text = layout.inventory(LAB, LAB.hosts(2), Path("/keys with space"), "/run/lab:", "pass")
    assert "lab-1 ansible_host=198.18.4.11 ansible_user=root\n" in text
    assert "lab-2 ansible_host=198.18.4.12 ansible_user=ops ansible_become_password=pass\n" in text
    assert """-o 'UserKnownHostsFile="/keys with space/known_hosts"' """ in text


def test_the_machines_own_mirror_serves_the_lab_in_its_release() -> None:
    targets = "\n".join(
        (
            "http://mirror/debian/ bookworm main Debian",
            "http://mirror/debian/ bookworm-updates main Debian",
            "http://mirror/debian/ bookworm contrib Debian",
            "http://mirror/security/ bookworm-security main Debian",
            "http://else/ stable main Somebody",
            "",
        )
    )
    assert image.sources_for("trixie", targets) == (
        "deb http://mirror/debian/ trixie main",
        "deb http://mirror/debian/ trixie-updates main",
        "deb http://mirror/security/ trixie-security main",
    )


def test_the_image_is_named_after_its_recipe() -> None:
    words = image.bootstrap_words("bookworm", (), ())
    assert image.tag("bookworm", words) == image.tag("bookworm", words)
    assert image.tag("bookworm", words) != image.tag("bookworm", image.bootstrap_words("bookworm", ("deb x",), ()))

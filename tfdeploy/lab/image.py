"""The file system that lab hosts start from: Debian with systemd and sshd, made without any image registry.

It has no Docker in it: installing that is the product's work. The engine keeps the image, so that it is made once.
"""

import hashlib
import shlex
from pathlib import Path

from tfdeploy.errors import TfdeployError
from tfdeploy.lab import layout, machine
from tfdeploy.report import Report

REPOSITORY = "tfdeploy-lab-host"
RELEASES = {"12": "bookworm", "13": "trixie"}
INIT = Path(__file__).with_name("init.sh")
PACKAGES = (
    "ca-certificates", "dbus", "iproute2", "kmod", "openssh-server", "python3", "python3-apt", "sudo", "systemd",
    "systemd-sysv",
)  # fmt: skip
HOOKS = (
    'chmod 755 "$1/lab/init"',
    f'chroot "$1" useradd --uid 1000 --create-home --shell /bin/bash --groups sudo {layout.SUDO_USER}',
    'rm -f "$1"/etc/ssh/ssh_host_* && : > "$1/etc/machine-id"',
)


def ensure(debian: str, report: Report) -> str:
    """The image's name; it is made where the engine does not have it."""
    release = RELEASES[debian]
    words = bootstrap_words(release, _apt_sources(release), _apt_proxies())
    image = tag(release, words)
    if machine.docker("image", "ls", "--quiet", image).strip():
        return image
    report.done(f"making the lab's host image: Debian {debian} from Debian's packages, about 260 MB, once")
    _make(image, words, report)
    _remove_older(image, release)
    return image


def tag(release: str, words: tuple[str, ...]) -> str:
    """Named after what it is made of, so that a changed recipe is a new image; where our files lie does not count."""
    recipe = "\0".join((*words, INIT.read_text())).replace(str(INIT), "")
    return f"{REPOSITORY}:{release}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def bootstrap_words(release: str, sources: tuple[str, ...], proxies: tuple[str, ...]) -> tuple[str, ...]:
    """mmdebstrap, writing a tar of the file system to its standard output."""
    return (
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        *(f"--aptopt={proxy}" for proxy in proxies),
        '--customize-hook=mkdir "$1/lab"',
        f"--customize-hook=upload {shlex.quote(str(INIT))} /lab/init",
        *(f"--customize-hook={hook}" for hook in HOOKS),
        release,
        "-",
        *sources,
    )


def sources_for(release: str, targets: str) -> tuple[str, ...]:
    """This machine's own Debian sources, for another release: a site's mirror serves the lab too.

    `targets` has a line `uri suite component origin` for each; without any, mmdebstrap's defaults hold.
    """
    lines: dict[str, None] = {}
    for target in targets.splitlines():
        uri, suite, component, origin = (target.split() + [""] * 4)[:4]
        codename, dash, kind = suite.partition("-")
        if origin == "Debian" and component == "main" and codename in RELEASES.values():
            lines[f"deb {uri} {release}{dash}{kind} main"] = None
    return tuple(lines)


def _apt_sources(release: str) -> tuple[str, ...]:
    template = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    words = ("apt-get", "indextargets", f"--format={template}", "Created-By: Packages")
    return sources_for(release, machine.run(words)) if machine.has("apt-get") else ()


def _apt_proxies() -> tuple[str, ...]:
    words = ("apt-config", "dump", '--format=%F "%v";%n', "Acquire::http::Proxy", "Acquire::https::Proxy")
    dumped = machine.run(words).splitlines() if machine.has("apt-config") else []
    return tuple(line for line in dumped if not line.endswith('"";'))


def _make(image: str, words: tuple[str, ...], report: Report) -> None:
    """Imported under another name first: an image that carries the right name is whole."""
    unfinished = f"{image}-unfinished"
    bootstrap = machine.start(*machine.root_words(), *words)
    load = machine.start(
        *machine.docker_words(),
        "import",
        '--change=CMD ["/lab/init"]',
        "-",
        unfinished,
        stdin=bootstrap.stdout,
    )
    assert bootstrap.stdout
    assert bootstrap.stderr
    bootstrap.stdout.close()
    said: list[str] = []
    for line in bootstrap.stderr:
        said.append(line.decode(errors="replace").strip())
        report.doing(f"host image: {said[-1].removeprefix('I: ')}")
    _, load_said = load.communicate()
    if bootstrap.wait() or load.returncode:
        machine.succeeds((*machine.docker_words(), "rmi", unfinished))
        errors = [text for text in said if text.startswith("E: ")] if bootstrap.returncode else []
        cause = errors[0] if errors else machine.last_words(load_said)
        raise TfdeployError(f"the lab's host image could not be made: {cause}", "Nothing of it was kept")
    machine.docker("tag", unfinished, image)
    machine.docker("rmi", unfinished)


def _remove_older(image: str, release: str) -> None:
    """Images of earlier recipes; the engine keeps those that a lab still stands on."""
    listed = machine.docker("image", "ls", "--format={{.Repository}}:{{.Tag}}", REPOSITORY).split()
    for other in listed:
        if other.startswith(f"{REPOSITORY}:{release}-") and other != image:
            machine.succeeds((*machine.docker_words(), "rmi", other))

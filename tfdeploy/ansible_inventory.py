"""Has Ansible read inventories. The only importer of ansible; what Ansible would print becomes data."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible._internal._datatag._tags import Origin
from ansible.errors import AnsibleError, AnsibleValueOmittedError
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultSecret, VaultSecretsContext
from ansible.plugins.loader import become_loader, connection_loader, init_plugin_loader
from ansible.template import Templar
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from tfdeploy import inventory as values
from tfdeploy import paths
from tfdeploy.errors import InputError

# Read by Ansible's executor, not by a plugin that would name them.
_EXECUTOR_VARIABLES = (
    "ansible_connection",
    "ansible_become",
    "ansible_become_method",
    "ansible_python_interpreter",
)
_OUR_VARIABLES = ("tfdeploy_address", "tfdeploy_gpus", "tfdeploy_slots", "tfdeploy_ports")


@dataclass(frozen=True)
class _Heard:
    """What Ansible said while it read."""

    warnings: list[str] = field(default_factory=list)
    failures: list[AnsibleError] = field(default_factory=list)


def read(
    sources: tuple[str, ...], limit: str | None, vault: values.Vault, extra_vars: tuple[str, ...]
) -> values.Inventory:
    with _listening() as heard:
        try:
            return _read(sources, limit, vault, extra_vars, heard)
        except AnsibleError as error:
            raise InputError(*_explanation(error), where=_place(error, ", ".join(sources))) from error


def _read(
    sources: tuple[str, ...], limit: str | None, vault: values.Vault, extra_vars: tuple[str, ...], heard: _Heard
) -> values.Inventory:
    if not AnsibleCollectionConfig.collection_finder:
        init_plugin_loader()
    loader = DataLoader()
    # Relative lookups and play-adjacent variables are searched where our playbooks are, as in a real run.
    loader.set_basedir(str(paths.playbook("provision.yml").parent))
    _unlock(loader, vault)
    # Where Ansible's own commands leave -e for the variable manager, which keeps what it read for the whole process.
    context.CLIARGS = ImmutableDict(extra_vars=extra_vars)
    load_extra_vars.extra_vars = None
    parsed = InventoryManager(loader=loader, sources=[_absolute(source) for source in sources])
    _refuse_unparsable(sources, heard, parsed)
    variables = VariableManager(loader=loader, inventory=parsed)
    HostVars(inventory=parsed, variable_manager=variables, loader=loader)  # makes hostvars[…] work in templates
    chosen = _limited(parsed, limit, ", ".join(sources))
    return values.Inventory(
        hosts=tuple(_host(host, variables, loader) for host in chosen),
        groups={str(name): tuple(map(str, hosts)) for name, hosts in parsed.get_groups_dict().items()},
        warnings=tuple(dict.fromkeys(heard.warnings)),
    )


def _absolute(source: str) -> str:
    """Ansible caches variables by path for the whole process, whatever the working directory is by then."""
    return source if "," in source else os.path.abspath(os.path.expanduser(source))


def _unlock(loader: Any, vault: values.Vault) -> None:
    secrets = _vault_secrets(loader, vault)
    # Ansible decrypts with the secrets of the whole process, and lets them be set only once.
    if current := VaultSecretsContext.current(optional=True):
        current.secrets = secrets
    else:
        VaultSecretsContext.initialize(VaultSecretsContext(secrets))


def _vault_secrets(loader: Any, vault: values.Vault) -> list[Any]:
    ids = [*constants.DEFAULT_VAULT_IDENTITY_LIST, *vault.ids]
    secrets = []
    if ids or vault.password_files or constants.DEFAULT_VAULT_PASSWORD_FILE:
        from ansible.cli import CLI  # a fifth of all that Ansible loads, for vaults alone

        secrets = CLI.setup_vault_secrets(
            loader,
            vault_ids=ids,
            vault_password_files=list(vault.password_files),
            auto_prompt=False,
            initialize_context=False,
        )
    if vault.password:
        secrets.append((constants.DEFAULT_VAULT_IDENTITY, VaultSecret(vault.password.value.encode())))
    return list(secrets)


def _limited(parsed: Any, limit: str | None, sources: str) -> list[Any]:
    everything = parsed.get_hosts("all")
    if not everything:
        raise InputError("no host in it", "Add a line with a host's name", where=sources)
    if not limit:
        return list(everything)
    parsed.subset(limit)
    chosen = list(parsed.get_hosts("all"))
    if not chosen:
        raise InputError("matches no host of the inventory", _some(everything), where=f"--limit {limit}")
    return chosen


def _some(hosts: list[Any]) -> str:
    names = [str(host) for host in hosts[:5]]
    return f"Its hosts are {', '.join(names)}{' and others' if len(hosts) > 5 else ''}"


# --- one host --------------------------------------------------------------------------------------------


def _host(host: Any, variables: Any, loader: Any) -> values.Host:
    name = str(host.name)
    given = variables.get_vars(host=host, include_hostvars=True)
    if not values.is_host_name(name):
        raise InputError(
            f"{name!r:.80} cannot be a host's name",
            "Use letters, digits and . _ - : (at most 253), and give the rest as ansible_host",
            where=_source(given),
        )
    get = _templated(name, given, loader)
    return values.Host(
        name=name,
        connection=_connection(name, get, given),
        groups=tuple(str(group) for group in given.get("group_names", ())),
        address=get("tfdeploy_address", values.parse_address, None),
        gpus=get("tfdeploy_gpus", values.parse_gpus, None),
        slots=get("tfdeploy_slots", values.parse_slots, 1),
        ports=get("tfdeploy_ports", values.parse_ports, values.DEFAULT_PORTS),
    )


def _templated(name: str, given: Mapping[str, Any], loader: Any) -> Callable[..., Any]:
    """A getter of one host's variables: templated and decrypted as Ansible does, then parsed."""
    templar = Templar(loader=loader, variables=given)

    def get(variable: str, parse: Callable[[Any], Any], default: Any) -> Any:
        if given.get(variable) is None:
            return default
        try:
            return parse(templar.template(given[variable]))
        except AnsibleValueOmittedError:
            return default
        except ValueError as error:
            shown = repr(str(given[variable]))[:80]
            raise InputError(
                f"{name}: {variable} is {shown}: {error}",
                _REMEDIES.get(variable, ""),
                where=_origin(given[variable]) or _source(given),
            ) from error
        except AnsibleError as error:
            what, remedy = _explanation(error)
            place = _origin(given[variable]) or _source(given)
            raise InputError(f"{name}: {variable}: {what}", remedy, where=place) from error

    return get


_REMEDIES = {
    "tfdeploy_address": "Give the address of the NIC that the training shall use",
    "tfdeploy_gpus": "Give a count (2), or a list of indices or UUIDs",
    "tfdeploy_slots": "Give the number of tasks that may run there at a time, 1 or more",
    "tfdeploy_ports": "Write it as 2222-2321",
}


def _connection(name: str, get: Callable[..., Any], given: Mapping[str, Any]) -> values.Connection:
    transport = get("ansible_connection", str, str(constants.DEFAULT_TRANSPORT))
    method = get("ansible_become_method", str, str(constants.DEFAULT_BECOME_METHOD))
    ssh = _plugin_options("connection", "ssh", get, _CONNECTION_OPTIONS)
    become = _plugin_options("become", method, get, _BECOME_OPTIONS)
    host = _word(ssh["host"]) or name
    for variable, word in (("ansible_host", host), ("ansible_user", ssh["remote_user"])):
        if word and (str(word).startswith("-") or not str(word).isprintable() or " " in str(word)):
            raise InputError(
                f"{name}: {variable} is {str(word)!r:.80}",
                "Give a plain name or address",
                where=_origin(given.get(variable)) or _source(given),
            )
    return values.Connection(
        host=host,
        port=_port(name, ssh["port"], given),
        user=_word(ssh["remote_user"]),
        private_key_file=_path(ssh["private_key_file"]),
        password=_secret(ssh["password"]),
        ssh_common_args=_word(ssh["ssh_common_args"]) or "",
        ssh_extra_args=_word(ssh["ssh_extra_args"]) or "",
        become=get("ansible_become", _truth, bool(constants.DEFAULT_BECOME)),
        become_method=method,
        become_user=_word(become.get("become_user")) or "root",
        become_password=_secret(become.get("become_pass")),
        connection="ssh" if transport == "smart" else transport,
        python=get("ansible_python_interpreter", str, "auto"),
    )


_CONNECTION_OPTIONS = (
    "host",
    "port",
    "remote_user",
    "private_key_file",
    "password",
    "ssh_common_args",
    "ssh_extra_args",
)
_BECOME_OPTIONS = ("become_user", "become_pass")


def _plugin_options(kind: str, plugin: str, get: Callable[..., Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    """A plugin's options by Ansible's own precedence of variables, environment and ansible.cfg."""
    loader = connection_loader if kind == "connection" else become_loader
    if not constants.config.has_configuration_definition(kind, plugin):
        loader.get(plugin, class_only=True)
    definitions = constants.config.get_configuration_definitions(kind, plugin)
    options = [option for option in wanted if option in definitions]
    names = [entry["name"] for option in options for entry in definitions[option].get("vars") or ()]
    variables = {name: value for name in names if (value := get(name, _as_is, None)) is not None}
    return {
        option: constants.config.get_config_value(option, plugin_type=kind, plugin_name=plugin, variables=variables)
        for option in options
    }


def _as_is(value: Any) -> Any:
    return value


def _truth(value: Any) -> bool:
    try:
        return bool(boolean(value))
    except TypeError as error:
        raise ValueError("neither yes nor no") from error


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def _path(value: Any) -> str | None:
    return os.path.expanduser(str(value)) if value else None


def _secret(value: Any) -> values.Secret | None:
    return None if value is None else values.Secret(str(value))


def _port(name: str, value: Any, given: Mapping[str, Any]) -> int | None:
    if value is None or 1 <= int(value) <= 65535:
        return None if value is None else int(value)
    raise InputError(
        f"{name}: ansible_port is {value}",
        "Give a port within 1-65535",
        where=_origin(given.get("ansible_port")) or _source(given),
    )


# --- what Ansible says -----------------------------------------------------------------------------------


@contextmanager
def _listening() -> Iterator[_Heard]:
    """Ansible's own output, kept as data: a warning of Ansible's on stdout would break `-o json`."""
    heard = _Heard()
    display = Display()

    def warned(msg: str, *_: object, **__: object) -> None:
        heard.warnings.append(" ".join(msg.split()))

    def shown(msg: str, *_: object, stderr: bool = False, **__: object) -> None:
        if stderr:
            warned(msg)

    def failed(msg: str | None, exception: BaseException, **_: object) -> None:
        if isinstance(exception, AnsibleError):
            heard.failures.append(exception)

    # warning() as well: within a process Ansible displays each only once, and a second inventory has its own.
    replaced = {"display": shown, "warning": warned, "error_as_warning": failed}
    for name, replacement in replaced.items():
        setattr(display, name, replacement)
    try:
        yield heard
    finally:
        for name in replaced:
            delattr(display, name)


def _refuse_unparsable(sources: tuple[str, ...], heard: _Heard, parsed: Any) -> None:
    """Ansible goes on without a source that it cannot read; we do so only for files within a directory."""
    for source in sources:
        path = _absolute(source)
        of_source = [error for error in heard.failures if path in str(getattr(error, "obj", ""))]
        if of_source and not (os.path.isdir(path) and parsed.hosts):
            error = _most_telling(of_source, source)
            raise InputError(*_explanation(error), where=_place(error, source))


def _most_telling(failures: list[AnsibleError], source: str) -> AnsibleError:
    """Every plugin that tried has its own complaint; the one of the format that the name promises counts."""
    with_line = [error for error in failures if getattr(error.obj, "line_num", None)]
    if with_line:
        return with_line[0]
    if source.endswith((".yml", ".yaml", ".json")):
        return next((error for error in failures if "'yaml'" in str(error.obj)), failures[-1])
    return next((error for error in failures if "'script'" in str(error.obj)), failures[-1])


def _explanation(error: AnsibleError) -> tuple[str, str]:
    what = str(error.message).removeprefix("Failed to parse inventory: ").strip()
    remedy = "Try ansible-inventory --list on it" if "ault" not in what else "Give --vault-password-file or --vault-id"
    first_line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in what.split("\n")[0])
    return first_line.rstrip("."), remedy


def _place(error: AnsibleError, source: str) -> str:
    cause: BaseException | None = error
    while cause:
        obj = getattr(cause, "obj", None)
        origin = obj if isinstance(obj, Origin) else Origin.get_tag(obj)
        if origin and origin.path and origin.line_num:
            return f"{_short(origin.path)}:{origin.line_num}"
        cause = cause.__cause__ or cause.__context__
    line = _line_quoted_in(str(error.message), source)
    return f"{_short(source)}:{line}" if line else _short(source)


def _line_quoted_in(message: str, source: str) -> int | None:
    """Ansible's INI parser quotes the line that it cannot read, but drops its number."""
    if not os.path.isfile(source):
        return None
    lines = Path(source).read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and (f"'{text}'" in message or message.endswith(f": {text}")):
            return number
    return None


def _origin(value: Any) -> str:
    origin = Origin.get_tag(value)
    if not origin or not origin.path:
        return ""
    return f"{_short(origin.path)}:{origin.line_num}" if origin.line_num else _short(origin.path)


def _source(given: Mapping[str, Any]) -> str:
    return _short(str(given.get("inventory_file") or "inventory"))


def _short(path: str) -> str:
    """As the user would write it: relative where the file is below the working directory."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative

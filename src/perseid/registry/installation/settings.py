"""The effective settings of an installation, and their sources.

Sources, later ones stronger: defaults, the file `perseid.toml` in the directory of the installation, environment
variables. An empty variable is ignored. Unknown and invalid settings are refused at startup, so that a typo does not go
unnoticed.

A database URL can contain a password, and passphrases are secret. Neither `show` nor `repr` nor any error reveals them.
"""

import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, get_args

import msgspec
from msgspec.structs import FieldInfo, fields, replace

from perseid.names.errors import quote_text
from perseid.names.suggest import did_you_mean, nearest
from perseid.records.record import ref_from_text
from perseid.registry.access.authorization import Settings
from perseid.registry.policy.text import format_toml

from .sections import AllSettings, Rule, Section

FILE_NAME: Final = "perseid.toml"
"""The settings file; a directory with it is an installation."""

DEFAULT: Final = "default"
"""Source of a value that is not set."""

VARIABLE_PREFIX: Final = "PERSEID_"
"""Start of all environment variables."""

OTHER_VARIABLES: Final = frozenset({"PERSEID_CLIENT_ROOT", "PERSEID_DIR", "PERSEID_REMOTE"})
"""Variables of the command line and the client that are not settings."""

_WIDTH = 100  # of the comments in the file
_SECTION = re.compile(r"\s*\[\s*([\w-]+)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([\w-]+)\s*=")
_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_HEAD = """\
# The settings of this installation. Each description is followed by the setting with its default;
# to change it, remove the # and edit the value. Show the effective settings with: perseid config
# Environment variables override this file: PERSEID_NATIVE_PORT is port in [native].
"""

_BARE_HANDLE = "write a bare handle with index 0"
_LIMITS = "see the section `limits`"

CONFIG_DCT: Final[Mapping[str, tuple[str, str]]] = {
    "storage_type": ("ledger.database", "a ledger has another format; import the records"),
    "sql_settings": ("ledger.database", "a ledger has another format; import the records"),
    "this_server_id": ("site.position", "a position instead of an id"),
    "allow_list_hdls": ("server.listing_allowed", ""),
    "hdl_udp_config.num_threads": ("server.workers", "processes instead of threads"),
    "hdl_udp_config.bind_address": ("native.host", ""),
    "hdl_tcp_config.bind_address": ("native.host", ""),
    "hdl_udp_config.bind_port": ("native.port", ""),
    "hdl_tcp_config.bind_port": ("native.port", ""),
    "hdl_http_config.bind_address": ("http.host", ""),
    "hdl_http_config.bind_port": ("http.port", ""),
    "server_admins": ("administrators.server", _BARE_HANDLE),
    "home_only_admins": ("administrators.home_only", _BARE_HANDLE),
    "status_handle_admins": ("administrators.status", _BARE_HANDLE),
    "backup_admins": ("administrators.backup", _BARE_HANDLE),
    "replication_admins": ("administrators.replication", _BARE_HANDLE),
    "server_admin_full_access": ("administrators.full_access", ""),
    "allow_na_admins": ("administrators.prefix_administrators", ""),
    "require_sessions": ("sessions.required", ""),
    "max_auth_time": ("sessions.challenge_life", "in milliseconds there, with a default of 20,000"),
    "max_session_time": ("sessions.life", "in seconds there too, although its manual says milliseconds"),
    "encryption_alg": ("sessions.cipher", "AES, DESEDE or DES there"),
    "template_delimiter": ("templates.delimiter", ""),
    "hdl_tcp_config.log_accesses": ("log.access", ""),
    "hdl_http_config.log_accesses": ("log.access", ""),
    "hdl_udp_config.log_accesses": ("log.access_udp", ""),
    "server_type": ("", "there is only one server type"),
    "interfaces": ("", "use `native.host`, `native.port`, `http.host` and `http.port`"),
    "hdl_tcp_config.num_threads": ("", _LIMITS),
    "hdl_http_config.num_threads": ("", _LIMITS),
    "max_handlers": ("", _LIMITS),
    "backlog": ("", _LIMITS),
    "max_idle_time": ("", _LIMITS),
    "log_save_config": ("", "the log goes to standard error; the system stores it"),
    "case_sensitive": ("", "use the policy key `case` of each namespace"),
    "anonymous_admin_full_access": ("", "it would give everybody full access"),
    "allow_recursion": ("", "the server resolves no handles of other servers for clients"),
    "perform_recursion_for_legacy_prefix_referral": ("", "the server resolves no handles of other servers for clients"),
    "auto_homed_prefixes": ("", "use `perseid namespace add`"),
    "enable_homed_prefix_na_lookup_optimization": ("", "always on"),
    "namespace": ("", "use the HS_NAMESPACE value of the prefix handle"),
    "template_ns_override": ("", "always on: no other server is contacted"),
    "db_directory": ("", "all files are in the directory of the installation"),
    "enable_txn_queue": ("", "always on: the ledger is the queue"),
    "txnlog_num_days_to_keep": ("", "the ledger is permanent"),
    "enable_status_handle": ("", "always on; `administrators.status` controls access"),
    **dict.fromkeys(
        (
            "do_replication",
            "replication_interval",
            "replication_timeout",
            "replication_start_time",
            "replication_authentication",
            "replication_sites_handle",
            "replication_site_handle_value",
            "replication_pull_other_transactions",
            "replication_keep_other_transactions",
            "replication_accept_prefixes",
        ),
        ("", "this server is never a mirror"),
    ),
}
"""Keys of a deployed server's `config.dct`: the setting here, if any, and the difference, replacement or reason."""


class InvalidConfig(ValueError):
    """Invalid settings. The message says where, what is wrong and what is expected."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(where, message)
        self.where = where
        """The file, with the line if known, or the variable."""
        self.message = message

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class Setting:
    """The definition of a setting, from its field."""

    def __init__(self, name: str, field: FieldInfo) -> None:
        self.name, self.type = name, field.type
        self.section, _, self.key = name.rpartition(".")
        self.variable = variable_name(name)
        self.default = _plain(field.default)
        """As in the file."""
        kind, *notes = get_args(field.type)
        self.about = next(note for note in notes if isinstance(note, str))
        self.rule = next((note for note in notes if isinstance(note, Rule)), None)
        limits = next((note for note in notes if isinstance(note, msgspec.Meta)), None)
        self.unit: str = "" if limits is None else (limits.extra or {}).get("unit", "")
        if self.rule is not None:
            self.expects = self.rule.expects
        elif limits is not None:
            self.expects = f"a whole number from {limits.ge:,} to {limits.le:,}"
        else:
            *others, last = map(format_toml, (True, False) if kind is bool else get_args(kind))
            self.expects = f"{', '.join(others)} or {last}"

    def read(self, plain: object, where: str) -> Any:
        """Validate a value; raise `InvalidConfig` without secrets."""
        bad, problem = plain, ""
        try:
            value = msgspec.convert(plain, self.type)
            if self.rule is None:
                return value
            if isinstance(value, str):
                return self.rule.check(value)
            return tuple(self.rule.check(bad := item) for item in value)
        except msgspec.ValidationError:
            if isinstance(plain, list) and isinstance(self.default, list):
                bad = next(item for item in plain if not isinstance(item, str))
        except ValueError as error:
            problem = str(error)
        hidden = self.rule is not None and self.rule.mask is not None
        found = f"; it contains {_describe(bad)}" if bad is not plain else f", not {_describe(bad, hidden=hidden)}"
        shown = "" if hidden and isinstance(bad, str) else found
        raise InvalidConfig(where, problem or f"Expected {self.expects}{shown}")

    def parse_variable(self, text: str) -> object:
        """Convert an environment variable to a value as in the file, if it looks like one."""
        if isinstance(self.default, list):
            if not text.lstrip().startswith("["):
                return [item for part in text.split(",") if (item := part.strip())]
            try:
                return tomllib.loads(f"list = {text}")["list"]
            except (ValueError, RecursionError):
                return text
        if isinstance(self.default, bool):
            return _BOOLEANS.get(text.strip().lower(), text)
        # Longer numbers are invalid for every setting, and Python refuses to parse thousands of digits.
        is_number = isinstance(self.default, int) and re.fullmatch("-?[0-9]{1,18}", text.strip())
        return int(text) if is_number else text

    def show(self, value: Any) -> object:
        """Return a value as in the file, without secrets."""
        return _plain(value) if self.rule is None or self.rule.mask is None else self.rule.mask(value)


def variable_name(name: str) -> str:
    """Return the environment variable that overrides a setting."""
    return VARIABLE_PREFIX + name.replace(".", "_").upper()


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _describe(plain: object, *, hidden: bool = False) -> str:
    """Describe a value in terms of TOML."""
    if isinstance(plain, str):
        return quote_text(plain)
    if isinstance(plain, bool) and hidden:
        return "true or false"
    if isinstance(plain, int | float):
        return "a number" if hidden else quote_text(str(plain).lower())[1:-1]
    return "a list" if isinstance(plain, list) else "a table" if isinstance(plain, dict) else "a date or time"


def _definitions() -> Iterator[Setting]:
    for field in fields(AllSettings):
        if isinstance(field.default, Section):
            yield from (Setting(f"{field.name}.{each.name}", each) for each in fields(field.default))
        else:
            yield Setting(field.name, field)


SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _definitions()}
"""All settings by name, in the order of the file."""

EARLIER_NAMES: Final[Mapping[str, str]] = {"server.resolvers": "server.workers"}
"""Settings that had another name."""

_SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS.values() if setting.section))


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """A setting as `perseid config` shows it."""

    name: str
    value: object
    """As in the file, without secrets."""
    source: str
    """`default`, `perseid.toml:12`, or the name of a variable."""
    unit: str
    about: str


class Config(AllSettings, frozen=True):
    """The effective settings."""

    sources: Mapping[str, str] = MappingProxyType({})
    """Source of each setting."""
    remarks: tuple[str, ...] = ()
    """Warnings: variables without effect."""

    @classmethod
    def load(cls, directory: Path, environ: Mapping[str, str]) -> Self:
        """Load the settings of an installation; without a file, defaults and variables apply."""
        path = directory / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        except FileNotFoundError:
            text = ""
        except UnicodeDecodeError as error:
            raise InvalidConfig(str(path), f"byte {error.start + 1} is not valid UTF-8") from None
        return cls.parse(text, environ, str(path))

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str], path: str = FILE_NAME) -> Self:
        """Parse settings from a text and variables."""
        values: dict[str, dict[str, Any]] = {section: {} for section in ("", *_SECTIONS)}
        sources = dict.fromkeys(SETTINGS, DEFAULT)
        for setting, plain, line in _entries(text, path):
            sources[setting.name] = FILE_NAME + line
            values[setting.section][setting.key] = setting.read(plain, f"{path}{line}: {setting.name}")
        for setting in SETTINGS.values():
            if given := environ.get(setting.variable):
                sources[setting.name] = setting.variable
                plain = setting.parse_variable(given)
                values[setting.section][setting.key] = setting.read(plain, setting.variable)
        defaults = AllSettings()
        sections = {name: replace(getattr(defaults, name), **values[name]) for name in _SECTIONS}
        return cls(**values[""], **sections, sources=MappingProxyType(sources), remarks=tuple(_remarks(environ)))

    @property
    def identity_root(self) -> str:
        """The root of identities on other servers, as in `identities.root`; empty if they are not accepted."""
        return self.identities.root or ("global" if self.root == "global" else "")

    @property
    def administration(self) -> Settings:
        """The administrators, in the form that authorization uses."""
        section = self.administrators
        return Settings(
            server_admins=tuple(map(ref_from_text, section.server)),
            home_only_admins=tuple(map(ref_from_text, section.home_only)),
            status_admins=tuple(map(ref_from_text, section.status)),
            backup_admins=tuple(map(ref_from_text, section.backup)),
            replication_admins=tuple(map(ref_from_text, section.replication)),
            server_admin_full_access=section.full_access,
            allow_na_admins=section.prefix_administrators,
        )

    def show(self) -> list[EffectiveSetting]:
        """Return all settings with value and source, in the order of the file, without secrets."""
        return [
            EffectiveSetting(
                name, setting.show(attrgetter(name)(self)), self.sources[name], setting.unit, setting.about
            )
            for name, setting in SETTINGS.items()
        ]

    @property
    def has_secret_in_file(self) -> bool:
        """Whether the file contains a password or passphrase, so that others must not read it."""
        return any(
            shown.source.startswith(FILE_NAME) and shown.value != _plain(attrgetter(shown.name)(self))
            for shown in self.show()
        )

    def __repr__(self) -> str:
        changed = [f"{shown.name}={shown.value!r}" for shown in self.show() if shown.source != DEFAULT]
        return f"<Config {', '.join(changed) or DEFAULT}>"


def decode_settings(data: bytes) -> str:
    """Decode the text of settings; some editors write a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidConfig(FILE_NAME, f"byte {error.start + 1} is not valid UTF-8") from None


def config_template(settings: Mapping[str, object] | None = None) -> str:
    """Return the text of a new `perseid.toml`: all settings with descriptions, the given ones set, the others
    commented.

    Values are as in the file: `{"root": "global", "administrators.server": ["300:0.NA/12345"]}`.
    """
    given = settings or {}
    for name, plain in given.items():
        if name not in SETTINGS:
            raise InvalidConfig(FILE_NAME, _unknown_setting(name))
        SETTINGS[name].read(plain, name)
    parts = [_HEAD]
    section = ""
    for name, setting in SETTINGS.items():
        if setting.section != section:
            section = setting.section
            parts.append(f"[{section}]\n")
        unit = f" Unit: {setting.unit}." if setting.unit else ""
        about = textwrap.fill(setting.about + unit, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        mark = "" if name in given else "#"
        parts.append(f"{about}\n{mark}{setting.key} = {format_toml(given.get(name, setting.default))}\n")
    return "\n".join(parts)


def _entries(text: str, path: str) -> Iterator[tuple[Setting, object, str]]:
    """Yield the settings in a text with their lines; refuse unknown names."""
    try:
        plain = tomllib.loads(text)
    except RecursionError:
        raise InvalidConfig(path, "lists are nested too deeply") from None
    except ValueError as error:
        raise InvalidConfig(path, _repeated_section(text) or f"invalid TOML: {error}") from None
    lines = dict(_lines(text))
    for key, item in plain.items():
        if key in _SECTIONS and not isinstance(item, dict):
            raise InvalidConfig(path, f"{key} is a section: write [{key}] and put its settings below it")
        if key not in _SECTIONS and key not in SETTINGS and isinstance(item, dict):
            raise InvalidConfig(path, f"unknown section [{_printable(key)}]; {_hint(key, _SECTIONS)}")
        named = {f"{key}.{inner}": each for inner, each in item.items()} if key in _SECTIONS else {key: item}
        for written, each in named.items():
            line, name = lines.get(written, ""), EARLIER_NAMES.get(written, written)
            if name not in SETTINGS:
                raise InvalidConfig(path + line, _unknown_setting(name))
            yield SETTINGS[name], each, line


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the line numbers of settings, as far as possible without parsing TOML."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (heading := _SECTION.fullmatch(line)) is not None:
            section = f"{heading[1]}."
        elif (entry := _ENTRY.match(line)) is not None:
            yield section + entry[1], f":{number}"


def _repeated_section(text: str) -> str | None:
    """Return the error for a section that occurs twice, if there is one."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (heading := _SECTION.fullmatch(line)) is not None:
            first = found.setdefault(heading[1], number)
            if first != number:
                name = _printable(heading[1])
                return f"section [{name}] occurs twice, in lines {first} and {number}; write all its settings in one"
    return None


def _unknown_setting(name: str) -> str:
    """Return the error for an unknown setting, with a suggestion."""
    key = name.rpartition(".")[2]
    problem = f"unknown setting {_printable(name)}"
    if key in CONFIG_DCT:
        new, remark = CONFIG_DCT[key]
        return f"{problem}; use {new}" if new else f"{problem}: {remark}"
    for other in SETTINGS.values():
        if other.key == key:
            place = f"in section [{other.section}]" if other.section else "before the first section"
            return f"{problem}; {did_you_mean(f'{other.name}, {place}')}"
    return f"{problem}; {_hint(name, SETTINGS)}"


def _hint(name: str, known: Iterable[str], prefix: str = "") -> str:
    meant = nearest(name, known)
    return did_you_mean(meant and prefix + meant, "list all settings with: perseid config")


def _printable(name: str) -> str:
    return quote_text(name)[1:-1]


def _remarks(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about variables that look like settings; Kubernetes sets such too, so they are no error."""
    known = [setting.variable.removeprefix(VARIABLE_PREFIX) for setting in SETTINGS.values()]
    for variable in sorted(environ):
        name = variable.removeprefix(VARIABLE_PREFIX)
        if name != variable and name not in known and variable not in OTHER_VARIABLES:
            hint = _hint(name, known, VARIABLE_PREFIX)  # compared without the common prefix
            yield f"environment variable {_printable(variable)} has no effect; {hint}"

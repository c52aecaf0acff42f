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
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from perseid.names.errors import quote_text
from perseid.names.suggest import did_you_mean, nearest
from perseid.records.value import ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.policy.text import format_toml
from perseid.wire.sessions import Cipher

from .setting_http import Listen
from .setting_keys import (
    SETTINGS,
    UNSUPPORTED_KEYS,
    VARIABLE_PREFIX,
    LogFormat,
    Root,
    field_name,
    section_name,
    variable_name,
)
from .setting_types import InvalidSetting

FILE_NAME: Final = "perseid.toml"
"""The settings file; a directory with it is an installation."""

DEFAULT: Final = "default"
"""Source of a value that is not set."""

OTHER_VARIABLES: Final = frozenset({"PERSEID_DIR"})
"""Variables of the command line that are not settings."""

_WIDTH = 100  # of the comments in the file
_SECTIONS = tuple(dict.fromkeys(section for name in SETTINGS if (section := section_name(name))))
_SECTION = re.compile(r"\s*\[\s*([\w-]+)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([\w-]+)\s*=")
_HEAD = """\
# The settings of this installation. Each description is followed by the setting with its default;
# to change it, remove the # and edit the value. Show the effective settings with: perseid config
# Environment variables override this file: PERSEID_NATIVE_PORT is port in [native].
"""


class InvalidConfig(ValueError):
    """Invalid settings. The message says where, what is wrong and what is expected."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(where, message)
        self.where = where
        """The file, with the line if known, or the variable."""
        self.message = message

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """The effective settings."""

    # Described in `setting_keys.SETTINGS`.
    root: Root
    default_profile: str
    ledger_database: str
    site_position: int
    keys_passphrase_file: str
    keys_passphrase: str
    server_listing_allowed: bool
    server_resolvers: int
    native_host: str
    native_port: int
    http_enabled: bool
    http_host: str
    http_port: int
    http_listen: Listen
    http_certificate_file: str
    http_key_file: str
    http_client_certificates: bool
    http_public_url: str
    http_trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    http_resolver_forms: tuple[str, ...]
    http_redirect_status: int
    http_schemes: tuple[str, ...]
    http_no_values_status: int
    http_weak_digests: bool
    http_api_requests: int
    http_api_requests_anonymous: int
    administrators_server: tuple[ValueRef, ...]
    administrators_home_only: tuple[ValueRef, ...]
    administrators_status: tuple[ValueRef, ...]
    administrators_backup: tuple[ValueRef, ...]
    administrators_replication: tuple[ValueRef, ...]
    administrators_full_access: bool
    administrators_prefix_administrators: bool
    sessions_required: bool
    sessions_challenge_life: int
    sessions_life: int
    sessions_cipher: Cipher
    templates_delimiter: str
    log_format: LogFormat
    log_level: int
    log_access: bool
    log_access_udp: bool
    metrics_enabled: bool
    metrics_host: str
    metrics_port: int
    limits_exempt_networks: tuple[IPv4Network | IPv6Network, ...]
    limits_udp_octets: int
    limits_udp_burst: int
    limits_udp_handovers: int
    limits_udp_handovers_in_all: int
    limits_udp_challenges: int
    limits_udp_challenge_octets: int
    limits_tcp_challenges: int
    limits_tcp_challenge_octets: int
    limits_tcp_unfinished_octets: int
    limits_sessions: int
    limits_unproved_sessions: int
    limits_connections: int
    limits_connections_per_address: int
    limits_http_at_once: int
    limits_message_time: int
    limits_idle_time: int
    limits_take_time: int
    limits_failed_proofs: int
    limits_read_share: int
    limits_write_share: int
    limits_sign_share: int
    limits_verify_share: int
    limits_agree_share: int
    limits_handshake_share: int
    limits_udp_share: int
    limits_source_share: int
    limits_proved_source_share: int
    limits_reserved_share: int
    limits_read_queue: int
    limits_write_queue: int
    limits_arithmetic_queue: int
    sources: Mapping[str, str] = field(compare=False)
    """Source of each setting."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
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
        values: dict[str, Any] = {name: setting.kind.read(setting.default) for name, setting in SETTINGS.items()}
        sources = dict.fromkeys(SETTINGS, DEFAULT)
        lines = dict(_lines(text))
        for name, plain in _entries(text, path, lines):
            line = f":{lines[name]}" if name in lines else ""
            sources[name] = FILE_NAME + line
            values[name] = _read(name, plain, f"{path}{line}: {name}")
        for name in SETTINGS:
            variable = variable_name(name)
            if environ.get(variable):
                sources[name] = variable
                values[name] = _read(name, _from_variable(name, environ[variable]), variable)
        return cls(
            **{field_name(name): value for name, value in values.items()},
            sources=MappingProxyType(sources),
            remarks=tuple(_remarks(environ)),
        )

    @property
    def administration(self) -> Settings:
        """The administrators, in the form that authorization uses."""
        return Settings(
            server_admins=self.administrators_server,
            home_only_admins=self.administrators_home_only,
            status_admins=self.administrators_status,
            backup_admins=self.administrators_backup,
            replication_admins=self.administrators_replication,
            server_admin_full_access=self.administrators_full_access,
            allow_na_admins=self.administrators_prefix_administrators,
        )

    def show(self) -> list[EffectiveSetting]:
        """Return all settings with value and source, in the order of the file, without secrets."""
        return [
            EffectiveSetting(
                name, setting.shown(getattr(self, field_name(name))), self.sources[name], setting.unit, setting.about
            )
            for name, setting in SETTINGS.items()
        ]

    @property
    def has_secret_in_file(self) -> bool:
        """Whether the file contains a password or passphrase, so that others must not read it."""
        return any(
            shown.source.startswith(FILE_NAME)
            and shown.value != SETTINGS[shown.name].kind.plain(getattr(self, field_name(shown.name)))
            for shown in self.show()
        )

    def __repr__(self) -> str:
        changed = [f"{shown.name}={shown.value!r}" for shown in self.show() if shown.source != DEFAULT]
        return f"<Config {', '.join(changed) or DEFAULT}>"


def config_template(settings: Mapping[str, object] | None = None) -> str:
    """Return the text of a new `perseid.toml`: all settings with descriptions, the given ones set, the others
    commented.

    Values are plain objects: `{"root": "global", "administrators.server": ["300:0.NA/12345"]}`.
    """
    given = dict(settings or {})
    for name, plain in given.items():
        if name not in SETTINGS:
            raise InvalidConfig(FILE_NAME, _unknown_setting(name))
        _read(name, plain, name)
    parts = [_HEAD]
    section = ""
    for name, setting in SETTINGS.items():
        if section_name(name) != section:
            section = section_name(name)
            parts.append(f"[{section}]\n")
        unit = f" Unit: {setting.unit}." if setting.unit else ""
        about = textwrap.fill(setting.about + unit, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        mark = "" if name in given else "#"
        plain = given.get(name, setting.default)
        parts.append(f"{about}\n{mark}{name.removeprefix(section).removeprefix('.')} = {format_toml(plain)}\n")
    return "\n".join(parts)


def _entries(text: str, path: str, lines: Mapping[str, int]) -> Iterator[tuple[str, object]]:
    """Yield the settings in a text; unknown names are refused."""
    try:
        plain = tomllib.loads(text)
    except RecursionError:
        raise InvalidConfig(path, "lists are nested too deeply") from None
    except ValueError as error:
        raise InvalidConfig(path, f"invalid TOML: {error}") from None
    for key, item in plain.items():
        if key in _SECTIONS and not isinstance(item, dict):
            raise InvalidConfig(path, f"{key} is a section: write [{key}] and put its settings below it")
        if key not in _SECTIONS and key not in SETTINGS and isinstance(item, dict):
            raise InvalidConfig(path, f"unknown section [{_printable(key)}]; {_hint(key, _SECTIONS)}")
        named = [(f"{key}.{inner}", each) for inner, each in item.items()] if key in _SECTIONS else [(key, item)]
        for name, each in named:
            if name not in SETTINGS:
                line = f":{lines[name]}" if name in lines else ""
                raise InvalidConfig(f"{path}{line}", _unknown_setting(name))
            yield name, each


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield the line numbers of settings, as far as possible without parsing TOML."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (heading := _SECTION.fullmatch(line)) is not None:
            section = f"{heading[1]}."
        elif (entry := _ENTRY.match(line)) is not None:
            yield section + entry[1], number


def _read(name: str, plain: object, where: str) -> object:
    try:
        return SETTINGS[name].kind.read(plain)
    except InvalidSetting as problem:
        raise InvalidConfig(where, str(problem)) from None


def _from_variable(name: str, text: str) -> object:
    """Convert a variable to a plain object; lists can be written as in the file."""
    if text.lstrip().startswith("[") and isinstance(SETTINGS[name].default, list):
        try:
            return tomllib.loads(f"list = {text}")["list"]
        except (ValueError, RecursionError):
            return text
    return SETTINGS[name].kind.from_variable(text)


def _unknown_setting(name: str) -> str:
    """Return the error for an unknown setting, with a suggestion."""
    key = name.rpartition(".")[2]
    problem = f"unknown setting {_printable(name)}"
    deployed = {old: new for new, setting in SETTINGS.items() for old in setting.deployed}
    if key in deployed:
        return f"{problem}; use {deployed[key]}"
    if key in UNSUPPORTED_KEYS:
        return f"{problem}: {UNSUPPORTED_KEYS[key]}"
    for other in SETTINGS:
        if other.rpartition(".")[2] == key:
            place = f"in section [{section_name(other)}]" if section_name(other) else "before the first section"
            return f"{problem}; {did_you_mean(f'{other}, {place}')}"
    return f"{problem}; {_hint(name, SETTINGS)}"


_ALL_SETTINGS = "list all settings with: perseid config"


def _hint(name: str, known: Iterable[str]) -> str:
    return did_you_mean(nearest(name, known), _ALL_SETTINGS)


def _printable(name: str) -> str:
    return quote_text(name)[1:-1]


def _remarks(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about variables that look like settings; Kubernetes sets such too, so they are no error."""
    known = [variable_name(name).removeprefix(VARIABLE_PREFIX) for name in SETTINGS]
    for variable in sorted(environ):
        name = variable.removeprefix(VARIABLE_PREFIX)
        if name != variable and name not in known and variable not in OTHER_VARIABLES:
            meant = nearest(name, known)  # compared without the common prefix
            hint = did_you_mean(meant and VARIABLE_PREFIX + meant, _ALL_SETTINGS)
            yield f"environment variable {_printable(variable)} has no effect; {hint}"

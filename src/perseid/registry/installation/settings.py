"""The effective settings of an installation, and where each came from.

Three sources, the later ones stronger: the defaults, the file `perseid.toml` in the directory of the installation, and
variables of the environment. An empty variable sets nothing. What cannot be right is refused before anything starts: a
setting in the wrong place or with a slip in its name would be no setting, and nobody would notice.

A URL of a database may hold a password, and a passphrase is one. Nothing here shows them: neither `show` nor `repr`,
nor any refusal.
"""

import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from perseid.names.errors import quote_text
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
from .setting_kinds import InvalidSetting

FILE_NAME: Final = "perseid.toml"
"""The file with the settings; a directory that holds it is an installation."""

DEFAULT: Final = "default"
"""Where a value came from that nobody has set."""

OTHER_VARIABLES: Final = frozenset({"PERSEID_DIR"})
"""Variables that are known and no settings: the command line's own."""

_WIDTH = 100  # of the comments in the file
_SECTIONS = tuple(dict.fromkeys(section for name in SETTINGS if (section := section_name(name))))
_SECTION = re.compile(r"\s*\[\s*([\w-]+)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([\w-]+)\s*=")
_HEAD = """\
# The settings of this installation. Below each explanation stands the setting with its default; to set
# it, take the # away and write the value. What is in force, and why, shows: perseid config
# A variable of the environment is stronger than this file: PERSEID_NATIVE_PORT is port in [native].
"""


class InvalidConfig(ValueError):
    """Settings that cannot be used. The message says where, what is wrong and what is expected."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(where, message)
        self.where = where
        """The file, with the line if it can be told, or the variable."""
        self.message = message

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """A setting as `perseid config` shows it."""

    name: str
    value: object
    """As it would stand in the file, without passwords."""
    source: str
    """`default`, `perseid.toml:12`, or the name of a variable."""
    unit: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """The effective settings."""

    # What each is for, and what it may be, says `config_keys.SETTINGS`.
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
    """Where the value of each setting came from."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """What is no error and yet not as meant, most likely: variables that set nothing."""

    @classmethod
    def load(cls, directory: Path, environ: Mapping[str, str]) -> Self:
        """The settings of the installation in a directory; without a file there are defaults and variables."""
        path = directory / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors write a mark before the first line
        except FileNotFoundError:
            text = ""
        except UnicodeDecodeError as error:
            raise InvalidConfig(str(path), f"octet {error.start + 1} is not UTF-8, in which TOML is written") from None
        return cls.parse(text, environ, str(path))

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str], path: str = FILE_NAME) -> Self:
        """The settings that a text and variables give."""
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
        """What the settings say about administrators, as authorisation takes it."""
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
        """Every setting with its value and its source, in the order of the file; without passwords."""
        return [
            EffectiveSetting(
                name, setting.shown(getattr(self, field_name(name))), self.sources[name], setting.unit, setting.about
            )
            for name, setting in SETTINGS.items()
        ]

    @property
    def has_secret_in_file(self) -> bool:
        """Whether the file holds a password or passphrase, so that others must not read it."""
        return any(
            shown.source.startswith(FILE_NAME)
            and shown.value != SETTINGS[shown.name].kind.plain(getattr(self, field_name(shown.name)))
            for shown in self.show()
        )

    def __repr__(self) -> str:
        """What was set, without passwords."""
        given = [f"{shown.name}={shown.value!r}" for shown in self.show() if shown.source != DEFAULT]
        return f"<Config {', '.join(given) or DEFAULT}>"


def config_template(settings: Mapping[str, object] | None = None) -> str:
    """The text of a new `perseid.toml`: every setting with its explanation, those given set, the others as comments.

    What is given stands there as in TOML: `{"root": "global", "administrators.server": ["300:0.NA/12345"]}`.
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
        unit = f" In {setting.unit}." if setting.unit else ""
        about = textwrap.fill(setting.about + unit, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        mark = "" if name in given else "#"
        plain = given.get(name, setting.default)
        parts.append(f"{about}\n{mark}{name.removeprefix(section).removeprefix('.')} = {format_toml(plain)}\n")
    return "\n".join(parts)


def _entries(text: str, path: str, lines: Mapping[str, int]) -> Iterator[tuple[str, object]]:
    """The settings that stand in a text; names that are none are refused."""
    try:
        plain = tomllib.loads(text)
    except RecursionError:
        raise InvalidConfig(path, "lists stand in lists, very deep; no setting needs that") from None
    except ValueError as error:
        raise InvalidConfig(path, f"this is not TOML: {error}") from None
    for key, item in plain.items():
        if key in _SECTIONS and not isinstance(item, dict):
            raise InvalidConfig(path, f"{key} is a section: write [{key}], and its settings below")
        if key not in _SECTIONS and key not in SETTINGS and isinstance(item, dict):
            raise InvalidConfig(path, f"there is no section [{_printable(key)}]; {_hint(key, _SECTIONS)}")
        named = [(f"{key}.{inner}", each) for inner, each in item.items()] if key in _SECTIONS else [(key, item)]
        for name, each in named:
            if name not in SETTINGS:
                line = f":{lines[name]}" if name in lines else ""
                raise InvalidConfig(f"{path}{line}", _unknown_setting(name))
            yield name, each


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """The lines on which settings stand, as far as that can be told without reading all of TOML."""
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
    """The plain object that a variable stands for; lists may be written as in the file."""
    if text.lstrip().startswith("[") and isinstance(SETTINGS[name].default, list):
        try:
            return tomllib.loads(f"list = {text}")["list"]
        except (ValueError, RecursionError):
            return text
    return SETTINGS[name].kind.from_variable(text)


def _unknown_setting(name: str) -> str:
    """That there is no such setting, and which one was meant."""
    key = name.rpartition(".")[2]
    missing = f"there is no setting {_printable(name)}"
    deployed = {old: new for new, setting in SETTINGS.items() for old in setting.deployed}
    if key in deployed:
        return f"{missing}; here it is {deployed[key]}"
    if key in UNSUPPORTED_KEYS:
        return f"{missing}: {UNSUPPORTED_KEYS[key]}"
    for other in SETTINGS:
        if other.rpartition(".")[2] == key:
            place = f"under [{section_name(other)}]" if section_name(other) else "before the first section"
            return f"{missing}; did you mean {other}, which stands {place}?"
    return f"{missing}; {_hint(name, SETTINGS)}"


def _hint(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "perseid config shows all there are"


def _printable(name: str) -> str:
    return quote_text(name)[1:-1]


def _remarks(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like settings and are none. Others set them too (Kubernetes, say), so they are no error."""
    known = [variable_name(name).removeprefix(VARIABLE_PREFIX) for name in SETTINGS]
    for variable in sorted(environ):
        name = variable.removeprefix(VARIABLE_PREFIX)
        if name != variable and name not in known and variable not in OTHER_VARIABLES:
            near = get_close_matches(name, known, 1)  # what all have in common would make all alike
            hint = f"did you mean {VARIABLE_PREFIX}{near[0]}?" if near else "perseid config shows all that do"
            yield f"the variable {_printable(variable)} sets nothing; {hint}"

"""The settings of an installation: what each takes, its default and what it is for, said once for reader and manual.

A setting is named by its section and key in `perseid.toml`, `native.port`; the variable of the environment is called
the same in capitals, `PERSEID_NATIVE_PORT`. Defaults stand here as they would stand in the file.
"""

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Final

from perseid.registry.policy.policy import FREE, PROFILES
from perseid.registry.policy.text import format_toml
from perseid.wire.sessions import MAX_TIMEOUT, Cipher

from .setting_http import HTTP
from .setting_kinds import Address, Choice, Database, Delimiter, FileName, Flag, Identities, Number, Secret, Setting
from .setting_limits import LIMIT_SETTINGS

VARIABLE_PREFIX: Final = "PERSEID_"
"""What the names of all variables begin with."""

MAX_SERVERS: Final = 1_000
"""The most servers of a site: a bound that a slip of the keyboard is noticed by, far beyond what anybody runs."""

MAX_RESOLVERS: Final = 1_024
"""The most resolver processes: more than any machine has cores for."""

MIN_SESSION: Final = 60
"""The shortest life of a session in seconds, as in deployed servers: clients set one up for several requests."""

MAX_CHALLENGE: Final = 3_600
"""The longest life of a challenge in seconds. Each is kept in memory with its request; who answers is a program."""


class Root(Enum):
    """Where prefixes come from."""

    SELF = "self"
    """This installation is its own root: it serves the prefix handles of its namespaces."""
    GLOBAL = "global"
    """The prefixes are those of the global Handle System, which serves their prefix handles."""


class LogFormat(Enum):
    """How the program writes its log."""

    TEXT = "text"
    JSON = "json"


_PROFILE = Choice({name: name for name in PROFILES})
_ROOT = Choice({root.value: root for root in Root})
_FORMAT = Choice({form.value: form for form in LogFormat})
_LEVEL = Choice({name: logging.getLevelNamesMapping()[name.upper()] for name in ("debug", "info", "warning", "error")})
_CIPHER = Choice({"aes": Cipher.AES, "3des": Cipher.TDES, "des": Cipher.DES})
_PORT = Number(0, 65_535)
_IN_SERVER_CONFIG = "bare handles are written with index 0"

SETTINGS: Final[Mapping[str, Setting]] = {
    "root": Setting(
        _ROOT,
        "self",
        "Where prefixes come from: self (this installation is its own root and serves their prefix handles) or global "
        "(the global Handle System serves them; copies here count for authorisation only).",
    ),
    "default_profile": Setting(_PROFILE, FREE, "The policy of a prefix that is homed without one."),
    "ledger.database": Setting(
        Database(),
        "",
        "Where the ledger is kept: empty for the file ledger.db in this directory, or the URL of a PostgreSQL database "
        "that several nodes share.",
        deployed=("storage_type", "sql_settings"),
        remark="a ledger is no such store; records are taken over, not opened in place",
        secret=True,
    ),
    "site.position": Setting(
        Number(1, MAX_SERVERS),
        1,
        "Which of the site's servers this is, counted from 1 in the order of the site information.",
        deployed=("this_server_id",),
        remark="an id there, a position here",
    ),
    "keys.passphrase_file": Setting(
        FileName(),
        "",
        "The file whose one line is the passphrase of the server's private key, if that has one; a relative name is "
        "looked for in this directory.",
    ),
    "keys.passphrase": Setting(
        Secret(),
        "",
        "The passphrase itself, meant to be set as a variable of the environment; it goes before the file.",
        secret=True,
    ),
    "server.listing_allowed": Setting(
        Flag(),
        True,
        "Whether the names of a prefix may be listed over the network, by those who have the permission.",
        deployed=("allow_list_hdls",),
    ),
    "server.resolvers": Setting(
        Number(0, MAX_RESOLVERS),
        0,
        "How many processes answer over UDP; 0 is one for each core.",
        deployed=("hdl_udp_config.num_threads",),
        remark="processes, not threads",
    ),
    "native.host": Setting(
        Address(),
        "127.0.0.1",
        "The address at which the native protocol is served, over UDP and TCP; 0.0.0.0 or :: is every one.",
        deployed=("hdl_udp_config.bind_address", "hdl_tcp_config.bind_address"),
    ),
    "native.port": Setting(
        _PORT,
        2641,
        "The port of the native protocol, the same for UDP and TCP; 0 is any that is free.",
        deployed=("hdl_udp_config.bind_port", "hdl_tcp_config.bind_port"),
    ),
    **HTTP,
    "administrators.server": Setting(
        Identities(),
        [],
        "Server administrators: they may do what no record gives a permission for. Each is a key, or a group of keys.",
        deployed=("server_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.home_only": Setting(
        Identities(),
        [],
        "Who may home and unhome prefixes, besides server administrators.",
        deployed=("home_only_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.status": Setting(
        Identities(),
        [],
        "Who may read the status of the server, besides server administrators.",
        deployed=("status_handle_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.backup": Setting(
        Identities(),
        [],
        "Who may have the server make a checkpoint, besides server administrators.",
        deployed=("backup_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.replication": Setting(
        Identities(),
        [],
        "Who may copy everything, private values included: the keys of mirrors.",
        deployed=("replication_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.full_access": Setting(
        Flag(),
        False,
        "Whether server administrators have all permissions on every handle, whatever its record says.",
        deployed=("server_admin_full_access",),
    ),
    "administrators.prefix_administrators": Setting(
        Flag(),
        True,
        "Whether the administrators of a prefix handle may create and list its names; otherwise server administrators "
        "do.",
        deployed=("allow_na_admins",),
    ),
    "sessions.required": Setting(
        Flag(), False, "Whether who identifies themselves must do so in a session.", deployed=("require_sessions",)
    ),
    "sessions.challenge_life": Setting(
        Number(1, MAX_CHALLENGE),
        60,
        "How long a client has to answer a challenge.",
        unit="seconds",
        deployed=("max_auth_time",),
        remark="milliseconds there, and 20,000 of them where it was missing",
    ),
    "sessions.life": Setting(
        Number(MIN_SESSION, MAX_TIMEOUT),
        MAX_TIMEOUT,
        "How long a session lasts that nobody uses, where the client names no time.",
        unit="seconds",
        deployed=("max_session_time",),
        remark="seconds there as well, although its manual says milliseconds",
    ),
    "sessions.cipher": Setting(
        _CIPHER,
        "aes",
        "How sessions are encrypted. Only aes is still safe; the others are for clients that know nothing else.",
        deployed=("encryption_alg",),
        remark="AES, DESEDE and DES there",
    ),
    "templates.delimiter": Setting(
        Delimiter(),
        "",
        "What separates a base name from its extension where no namespace says so; empty for nothing.",
        deployed=("template_delimiter",),
    ),
    "log.format": Setting(
        _FORMAT, "text", "How the log is written: text for people, json (one object a line) for programs."
    ),
    "log.level": Setting(
        _LEVEL, "info", "From which importance on the server's own messages are logged. Requests are logged beside it."
    ),
    "log.access": Setting(
        Flag(),
        True,
        "Whether requests over TCP and HTTP are logged: who, what, the answer's code, microseconds.",
        deployed=("hdl_tcp_config.log_accesses", "hdl_http_config.log_accesses"),
    ),
    "log.access_udp": Setting(
        Flag(),
        False,
        "Whether resolution over UDP is logged too, which takes time from every answer.",
        deployed=("hdl_udp_config.log_accesses",),
    ),
    "metrics.enabled": Setting(Flag(), True, "Whether metrics for Prometheus are served, and /ready and /live."),
    "metrics.host": Setting(
        Address(),
        "127.0.0.1",
        "The address at which metrics are served. Whoever reaches it can read them: they hold numbers and no names.",
    ),
    "metrics.port": Setting(_PORT, 8641, "The port of the metrics; 0 is any that is free."),
    **{
        f"limits.{key}": Setting(limit.kind, limit.default, limit.about, limit.unit)
        for key, limit in LIMIT_SETTINGS.items()
    },
}
"""Every setting by its name, in the order of the file: those without a section first, as TOML wants it."""

_ALWAYS = "it is always so"
_LISTENING = "`native.host`, `native.port`, `http.host` and `http.port` say it"
_NO_CONNECTIONS = "the server opens no connections"
_NO_MIRROR = "this server follows no other one"
_OWN_LIMITS = "the server limits connections and work by itself"

UNSUPPORTED_KEYS: Final[Mapping[str, str]] = {
    "server_type": "there is only one kind",
    "interfaces": _LISTENING,
    "hdl_tcp_config.num_threads": _OWN_LIMITS,
    "hdl_http_config.num_threads": _OWN_LIMITS,
    "max_handlers": _OWN_LIMITS,
    "backlog": _OWN_LIMITS,
    "max_idle_time": _OWN_LIMITS,
    "log_save_config": "the log goes to standard error, and the system keeps it",
    "case_sensitive": "the policy of each namespace says it, with the key `case`",
    "anonymous_admin_full_access": "it would let everybody change everything",
    "allow_recursion": _NO_CONNECTIONS,
    "perform_recursion_for_legacy_prefix_referral": _NO_CONNECTIONS,
    "auto_homed_prefixes": "`perseid namespace add` homes a prefix, by an entry of the ledger",
    "enable_homed_prefix_na_lookup_optimization": _ALWAYS,
    "namespace": "the HS_NAMESPACE value of a prefix handle says it",
    "template_ns_override": f"{_ALWAYS}: no other server is asked",
    "db_directory": "everything is in the directory of the installation",
    "enable_txn_queue": f"{_ALWAYS}: the ledger is the queue",
    "txnlog_num_days_to_keep": "the ledger is kept for ever",
    "enable_status_handle": f"{_ALWAYS}; `administrators.status` says who reads it",
    "do_replication": _NO_MIRROR,
    "replication_interval": _NO_MIRROR,
    "replication_timeout": _NO_MIRROR,
    "replication_start_time": _NO_MIRROR,
    "replication_authentication": _NO_MIRROR,
    "replication_sites_handle": _NO_MIRROR,
    "replication_site_handle_value": _NO_MIRROR,
    "replication_pull_other_transactions": _NO_MIRROR,
    "replication_keep_other_transactions": _NO_MIRROR,
    "replication_accept_prefixes": _NO_MIRROR,
}
"""Keys of a `config.dct` that are no settings here, and what there is instead."""


def section_name(name: str) -> str:
    """The section of the file in which a setting stands; empty for none."""
    return name.rpartition(".")[0]


def variable_name(name: str) -> str:
    """The variable of the environment that overrides a setting."""
    return VARIABLE_PREFIX + field_name(name).upper()


def field_name(name: str) -> str:
    """The attribute of `Config` with a setting's value."""
    return name.replace(".", "_")


def settings_table() -> str:
    """The manual's table: one row for each setting."""
    rows = ["| setting | variable | takes | default | unit | what it is for |", "|---|---|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        cells = (
            f"`{name}`",
            f"`{variable_name(name)}`",
            setting.kind.expects,
            f"`{format_toml(setting.default)}`",
            setting.unit or "–",
            setting.about,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def config_dct_table() -> str:
    """The manual's other table: what the keys of a deployed server's `config.dct` are called here."""
    rows = ["| in `config.dct` | here | difference |", "|---|---|---|"]
    for name, setting in SETTINGS.items():
        rows += [f"| `{old}` | `{name}` | {setting.remark or '–'} |" for old in setting.deployed]
    rows += [f"| `{old}` | – | {instead} |" for old, instead in UNSUPPORTED_KEYS.items()]
    return "\n".join(rows) + "\n"

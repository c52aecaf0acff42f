"""All settings of an installation, with type, default and description.

A setting is named by section and key in `perseid.toml`, such as `native.port`; its environment variable is
`PERSEID_NATIVE_PORT`. Defaults are plain objects, as in the file.
"""

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Final

from perseid.registry.policy.policy import FREE, PROFILES
from perseid.registry.policy.text import format_toml
from perseid.wire.sessions import MAX_TIMEOUT, Cipher

from .setting_http import HTTP
from .setting_limits import LIMIT_SETTINGS
from .setting_types import Address, Choice, Database, Delimiter, FileName, Flag, Identities, Number, Secret, Setting

VARIABLE_PREFIX: Final = "PERSEID_"
"""Start of all environment variables."""

MAX_SERVERS: Final = 1_000
"""Maximum number of servers of a site, to catch typing errors."""

MAX_RESOLVERS: Final = 1_024
"""Maximum number of resolver processes: more than any machine has cores."""

MIN_SESSION: Final = 60
"""Shortest session lifetime in seconds, as in deployed servers: clients set one up for several requests."""

MAX_CHALLENGE: Final = 3_600
"""Longest challenge lifetime in seconds. Each is kept in memory with its request; programs answer at once."""


class Root(Enum):
    """Where prefixes come from."""

    SELF = "self"
    """This installation is its own root: it serves the prefix handles of its namespaces."""
    GLOBAL = "global"
    """The global Handle System serves the prefix handles."""


class LogFormat(Enum):
    """Formats of the log."""

    TEXT = "text"
    JSON = "json"


_PROFILE = Choice({name: name for name in PROFILES})
_ROOT = Choice({root.value: root for root in Root})
_FORMAT = Choice({form.value: form for form in LogFormat})
_LEVEL = Choice({name: logging.getLevelNamesMapping()[name.upper()] for name in ("debug", "info", "warning", "error")})
_CIPHER = Choice({"aes": Cipher.AES, "3des": Cipher.TDES, "des": Cipher.DES})
_PORT = Number(0, 65_535)
_IN_SERVER_CONFIG = "write a bare handle with index 0"

SETTINGS: Final[Mapping[str, Setting]] = {
    "root": Setting(
        _ROOT,
        "self",
        "Where prefixes come from: self (this installation is its own root and serves their prefix handles) or global "
        "(the global Handle System serves them; copies here are used for authorization only).",
    ),
    "default_profile": Setting(_PROFILE, FREE, "Policy profile of a prefix that is homed without a policy."),
    "ledger.database": Setting(
        Database(),
        "",
        "Database of the ledger: empty for the file ledger.db in this directory, or the URL of a PostgreSQL database "
        "that several nodes share.",
        deployed=("storage_type", "sql_settings"),
        remark="a ledger has another format; import the records",
        secret=True,
    ),
    "site.position": Setting(
        Number(1, MAX_SERVERS),
        1,
        "Position of this server in the site information, counted from 1.",
        deployed=("this_server_id",),
        remark="a position instead of an id",
    ),
    "keys.passphrase_file": Setting(
        FileName(),
        "",
        "File with the passphrase of the server's private key, on one line; a relative name refers to this directory.",
    ),
    "keys.passphrase": Setting(
        Secret(),
        "",
        "Passphrase of the server's private key, for use as an environment variable; it overrides the file.",
        secret=True,
    ),
    "server.listing_allowed": Setting(
        Flag(),
        True,
        "Whether users with the permission can list the handles of a prefix over the network.",
        deployed=("allow_list_hdls",),
    ),
    "server.resolvers": Setting(
        Number(0, MAX_RESOLVERS),
        0,
        "Number of resolver processes for UDP; 0 for one per core.",
        deployed=("hdl_udp_config.num_threads",),
        remark="processes instead of threads",
    ),
    "native.host": Setting(
        Address(),
        "127.0.0.1",
        "Address to listen on for the native protocol, UDP and TCP; 0.0.0.0 or :: for all addresses.",
        deployed=("hdl_udp_config.bind_address", "hdl_tcp_config.bind_address"),
    ),
    "native.port": Setting(
        _PORT,
        2641,
        "Port of the native protocol, for UDP and TCP; 0 for any free port.",
        deployed=("hdl_udp_config.bind_port", "hdl_tcp_config.bind_port"),
    ),
    **HTTP,
    "administrators.server": Setting(
        Identities(),
        [],
        "Server administrators, each a key or a group of keys. They can do what no record grants permission for.",
        deployed=("server_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.home_only": Setting(
        Identities(),
        [],
        "Identities that can home and unhome prefixes, in addition to server administrators.",
        deployed=("home_only_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.status": Setting(
        Identities(),
        [],
        "Identities that can read the server status, in addition to server administrators.",
        deployed=("status_handle_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.backup": Setting(
        Identities(),
        [],
        "Identities that can request a checkpoint, in addition to server administrators.",
        deployed=("backup_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.replication": Setting(
        Identities(),
        [],
        "Identities that can replicate everything, including private values: the keys of mirrors.",
        deployed=("replication_admins",),
        remark=_IN_SERVER_CONFIG,
    ),
    "administrators.full_access": Setting(
        Flag(),
        False,
        "Whether server administrators have all permissions on every handle.",
        deployed=("server_admin_full_access",),
    ),
    "administrators.prefix_administrators": Setting(
        Flag(),
        True,
        "Whether administrators of a prefix handle can create and list its handles; otherwise only server "
        "administrators can.",
        deployed=("allow_na_admins",),
    ),
    "sessions.required": Setting(
        Flag(), False, "Whether authenticated requests require a session.", deployed=("require_sessions",)
    ),
    "sessions.challenge_life": Setting(
        Number(1, MAX_CHALLENGE),
        60,
        "Time limit for a client to answer a challenge.",
        unit="seconds",
        deployed=("max_auth_time",),
        remark="in milliseconds there, with a default of 20,000",
    ),
    "sessions.life": Setting(
        Number(MIN_SESSION, MAX_TIMEOUT),
        MAX_TIMEOUT,
        "Time after which an unused session ends, unless the client requests another.",
        unit="seconds",
        deployed=("max_session_time",),
        remark="in seconds there too, although its manual says milliseconds",
    ),
    "sessions.cipher": Setting(
        _CIPHER,
        "aes",
        "Encryption of sessions. Only aes is secure; the others are for clients that support nothing else.",
        deployed=("encryption_alg",),
        remark="AES, DESEDE or DES there",
    ),
    "templates.delimiter": Setting(
        Delimiter(),
        "",
        "Separator of a base handle and its extension for namespaces without their own; empty for none.",
        deployed=("template_delimiter",),
    ),
    "log.format": Setting(_FORMAT, "text", "Log format: text for people, json (one object per line) for programs."),
    "log.level": Setting(_LEVEL, "info", "Lowest level of messages to log. Request logging is separate."),
    "log.access": Setting(
        Flag(),
        True,
        "Whether to log requests over TCP and HTTP: client, request, response code, microseconds.",
        deployed=("hdl_tcp_config.log_accesses", "hdl_http_config.log_accesses"),
    ),
    "log.access_udp": Setting(
        Flag(),
        False,
        "Whether to log resolution over UDP too, which slows down every response.",
        deployed=("hdl_udp_config.log_accesses",),
    ),
    "metrics.enabled": Setting(
        Flag(), True, "Whether to serve Prometheus metrics and the health checks /ready and /live."
    ),
    "metrics.host": Setting(
        Address(),
        "127.0.0.1",
        "Address to listen on for metrics. They need no authentication and contain numbers, not handles.",
    ),
    "metrics.port": Setting(_PORT, 8641, "Port of the metrics; 0 for any free port."),
    **{f"limits.{key}": setting for key, setting in LIMIT_SETTINGS.items()},
}
"""All settings by name, in the order of the file: those without a section first, as TOML requires."""

_ALWAYS = "always on"
_LISTENING = "use `native.host`, `native.port`, `http.host` and `http.port`"
_NO_CONNECTIONS = "the server opens no outgoing connections"
_NO_MIRROR = "this server is never a mirror"
_OWN_LIMITS = "see the section `limits`"

UNSUPPORTED_KEYS: Final[Mapping[str, str]] = {
    "server_type": "there is only one server type",
    "interfaces": _LISTENING,
    "hdl_tcp_config.num_threads": _OWN_LIMITS,
    "hdl_http_config.num_threads": _OWN_LIMITS,
    "max_handlers": _OWN_LIMITS,
    "backlog": _OWN_LIMITS,
    "max_idle_time": _OWN_LIMITS,
    "log_save_config": "the log goes to standard error; the system stores it",
    "case_sensitive": "use the policy key `case` of each namespace",
    "anonymous_admin_full_access": "it would give everybody full access",
    "allow_recursion": _NO_CONNECTIONS,
    "perform_recursion_for_legacy_prefix_referral": _NO_CONNECTIONS,
    "auto_homed_prefixes": "use `perseid namespace add`",
    "enable_homed_prefix_na_lookup_optimization": _ALWAYS,
    "namespace": "use the HS_NAMESPACE value of the prefix handle",
    "template_ns_override": f"{_ALWAYS}: no other server is contacted",
    "db_directory": "all files are in the directory of the installation",
    "enable_txn_queue": f"{_ALWAYS}: the ledger is the queue",
    "txnlog_num_days_to_keep": "the ledger is permanent",
    "enable_status_handle": f"{_ALWAYS}; `administrators.status` controls access",
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
"""Keys of a `config.dct` without a setting here, and the replacement or reason."""


def section_name(name: str) -> str:
    """Return the section of a setting; empty for none."""
    return name.rpartition(".")[0]


def variable_name(name: str) -> str:
    """Return the environment variable that overrides a setting."""
    return VARIABLE_PREFIX + field_name(name).upper()


def field_name(name: str) -> str:
    """Return the attribute of `Config` for a setting."""
    return name.replace(".", "_")


def settings_table() -> str:
    """Return the documentation table of settings."""
    rows = ["| setting | variable | value | default | unit | description |", "|---|---|---|---|---|---|"]
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
    """Return the documentation table of a deployed server's `config.dct` keys."""
    rows = ["| in `config.dct` | here | difference or replacement |", "|---|---|---|"]
    for name, setting in SETTINGS.items():
        rows += [f"| `{old}` | `{name}` | {setting.remark or '–'} |" for old in setting.deployed]
    rows += [f"| `{old}` | – | {instead} |" for old, instead in UNSUPPORTED_KEYS.items()]
    return "\n".join(rows) + "\n"

"""Settings: strict validation, sources, and no passwords in any output."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.record import ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.installation.sections import mask_password
from perseid.registry.installation.settings import (
    CONFIG_DCT,
    FILE_NAME,
    SETTINGS,
    Config,
    InvalidConfig,
    config_template,
    variable_name,
)
from perseid.registry.policy.policy import PROFILES
from perseid.registry.policy.text import format_toml
from perseid.wire.server import ServerSettings
from perseid.wire.sessions import Cipher

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "reference" / "configuration.md"
SECRET = "correct-horse"
DEPLOYED_KEYS = [
    *("server_type", "interfaces", "log_save_config"),
    *("hdl_udp_config.bind_address", "hdl_tcp_config.bind_address", "hdl_http_config.bind_address"),
    *("hdl_udp_config.bind_port", "hdl_tcp_config.bind_port", "hdl_http_config.bind_port"),
    *("hdl_udp_config.num_threads", "hdl_tcp_config.num_threads", "hdl_http_config.num_threads"),
    *("hdl_udp_config.log_accesses", "hdl_tcp_config.log_accesses", "hdl_http_config.log_accesses"),
    *("max_handlers", "backlog", "max_idle_time"),
    *(
        "this_server_id",
        "case_sensitive",
        "server_admins",
        "home_only_admins",
        "replication_admins",
        "backup_admins",
        "status_handle_admins",
    ),
    *(
        "server_admin_full_access",
        "anonymous_admin_full_access",
        "allow_na_admins",
        "allow_list_hdls",
        "allow_recursion",
    ),
    *(
        "perform_recursion_for_legacy_prefix_referral",
        "auto_homed_prefixes",
        "enable_homed_prefix_na_lookup_optimization",
    ),
    *(
        "max_auth_time",
        "max_session_time",
        "require_sessions",
        "encryption_alg",
        "template_delimiter",
        "namespace",
        "template_ns_override",
    ),
    *("storage_type", "sql_settings", "db_directory", "enable_txn_queue", "txnlog_num_days_to_keep", "do_replication"),
    *("replication_interval", "replication_timeout", "replication_start_time", "replication_authentication"),
    *("replication_sites_handle", "replication_site_handle_value", "replication_pull_other_transactions"),
    *("replication_keep_other_transactions", "replication_accept_prefixes", "enable_status_handle"),
]
"""Every key of a server's config.dct that the native protocol's reference names (18.3)."""

# For each setting something else than its default, as it stands in the file and as a variable has it.
OTHERS: Mapping[str, tuple[object, str, object]] = {
    "root": ("global", "global", "global"),
    "default_profile": ("pilin", "pilin", "pilin"),
    "ledger.database": ("postgresql://a@b/c", "postgresql://a@b/c", "postgresql://a@b/c"),
    "site.position": (3, " 3 ", 3),
    "keys.passphrase_file": ("passphrase", "passphrase", "passphrase"),
    "keys.passphrase": (SECRET, SECRET, SECRET),
    "server.listing_allowed": (False, "no", False),
    "server.workers": (4, "4", 4),
    "native.host": ("::", "::", "::"),
    "native.port": (0, "0", 0),
    "native.compiled": (False, "no", False),
    "http.enabled": (False, "no", False),
    "http.host": ("localhost", "localhost", "localhost"),
    "http.port": (80, "80", 80),
    "http.listen": ("https", "https", "https"),
    "http.certificate_file": ("web.pem", "web.pem", "web.pem"),
    "http.key_file": ("web.key", "web.key", "web.key"),
    "http.client_certificates": (False, "no", False),
    "http.public_url": ("https://hdl.example.org", "https://hdl.example.org/", "https://hdl.example.org"),
    "http.trusted_proxies": (
        ["10.0.0.0/8", "::1"],
        "10.0.0.0/8, ::1,",
        ("10.0.0.0/8", "::1/128"),
    ),
    "http.resolver_forms": (["id", "bare"], "id,bare", ("id", "bare")),
    "http.redirect_status": (303, " 303", 303),
    "http.schemes": (["https", "urn"], "https, urn", ("https", "urn")),
    "http.no_values_status": (404, "404", 404),
    "http.weak_digests": (False, "off", False),
    "http.import_size": (512, "512", 512),
    "http.import_spool": (2_048, "2048", 2_048),
    "http.api_requests": (1_200, "1200", 1_200),
    "http.api_requests_anonymous": (60, "60", 60),
    "service.name": ("Example ids", "Example ids", "Example ids"),
    "service.description": ("For everybody.", "For everybody.", "For everybody."),
    "service.logo_file": ("logo.svg", "logo.svg", "logo.svg"),
    "service.contact": ("ids@example.org", "ids@example.org", "ids@example.org"),
    "service.terms_url": ("https://example.org/terms", "https://example.org/terms", "https://example.org/terms"),
    "service.footer": ("© Example", "© Example", "© Example"),
    "service.title_types": (["10320/title", "DESC"], "10320/title, DESC", ("10320/title", "DESC")),
    "service.accent_color": ("#7a1fa2", "#7A1FA2", "#7a1fa2"),
    "administrators.server": (["300:0.NA/1"], "300:0.NA/1", ("300:0.NA/1",)),
    "administrators.home_only": (["0:1/a"], "0:1/a", ("0:1/a",)),
    "administrators.status": (["1:1/b"], "1:1/b", ("1:1/b",)),
    "administrators.backup": (["2:1/c"], "2:1/c", ("2:1/c",)),
    "administrators.replication": (["3:1/d, e"], '["3:1/d, e"]', ("3:1/d, e",)),
    "administrators.full_access": (True, "YES", True),
    "administrators.prefix_administrators": (False, "0", False),
    "identities.root": ("root.json", "root.json", "root.json"),
    "identities.networks": (["10.0.0.0/8"], "10.0.0.0/8", ("10.0.0.0/8",)),
    "sessions.required": (True, "on", True),
    "sessions.challenge_life": (20, "20", 20),
    "sessions.life": (60, "60", 60),
    "sessions.cipher": ("3des", "3des", "3des"),
    "templates.delimiter": ("@", "@", "@"),
    "log.format": ("json", "json", "json"),
    "log.level": ("debug", "debug", "debug"),
    "log.access": (False, "false", False),
    "log.access_udp": (True, "true", True),
    "metrics.enabled": (False, "no", False),
    "metrics.host": ("::1", "::1", "::1"),
    "metrics.port": (0, "0", 0),
    "statistics.enabled": (False, "off", False),
    "limits.exempt_networks": (["10.0.0.0/8"], "10.0.0.0/8", ("10.0.0.0/8",)),
    **{
        name: (limit.default - 1, f"{limit.default - 1}", limit.default - 1)
        for name, limit in SETTINGS.items()
        if limit.section == "limits" and isinstance(limit.default, int)
    },
}


def refused(text: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(InvalidConfig) as caught:
        Config.parse(text, environ or {})
    return str(caught.value)


def get(config: Config, name: str) -> Any:
    return attrgetter(name)(config)


def values(config: Config) -> dict[str, Any]:
    return {name: get(config, name) for name in SETTINGS}


# What there is


def test_every_setting_has_a_valid_default_and_a_description() -> None:
    config = Config()
    for name, setting in SETTINGS.items():
        assert setting.read(setting.default, name) == get(config, name)
        assert setting.about.endswith(".")
    assert not hasattr(config, "__dict__")
    assert len(SETTINGS) == 92


def test_profiles_are_those_of_policies() -> None:
    assert SETTINGS["default_profile"].expects == '"pilin", "cordra", "free" or "exact"'
    assert list(PROFILES) == ["pilin", "cordra", "free", "exact"]


def test_variable_names_are_unique() -> None:
    assert len({variable_name(name) for name in SETTINGS}) == len(SETTINGS)
    assert variable_name("native.port") == "PERSEID_NATIVE_PORT"


def test_defaults_match_packages_that_use_them() -> None:
    config = Config.parse("", {})
    assert config.administration == Settings()
    settings = {field.name: field.default for field in fields(ServerSettings)}
    assert config.sessions.challenge_life == settings["challenge_life"]
    assert config.sessions.life == settings["session_life"]
    assert (config.sessions.cipher, settings["cipher"]) == ("aes", Cipher.AES)
    assert (config.native.port, config.http.port) == (2641, 8000)
    assert config.native.host == config.http.host == "127.0.0.1"
    assert config.sources == dict.fromkeys(SETTINGS, "default")


def test_administrators_are_passed_to_authorization() -> None:
    text = "[administrators]\n" + "\n".join(
        f"{name.partition('.')[2]} = {format_toml(other)}"
        for name, (other, _, _) in OTHERS.items()
        if name.startswith("administrators.")
    )
    assert Config.parse(text, {}).administration == Settings(
        server_admins=(ValueRef(300, "0.NA/1"),),
        home_only_admins=(ValueRef(0, "1/a"),),
        status_admins=(ValueRef(1, "1/b"),),
        backup_admins=(ValueRef(2, "1/c"),),
        replication_admins=(ValueRef(3, "1/d, e"),),
        server_admin_full_access=True,
        allow_na_admins=False,
    )


# The file


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_in_file_is_used_with_its_line(name: str) -> None:
    other, _, value = OTHERS[name]
    section, key = SETTINGS[name].section, SETTINGS[name].key
    text = f"# a comment\n{f'[{section}]' if section else ''}\n{key} = {format_toml(other)}\n"
    config = Config.parse(text, {})
    assert get(config, name) == value
    assert config.sources[name] == f"{FILE_NAME}:3"
    assert {source for other, source in config.sources.items() if other != name} == {"default"}


@pytest.mark.parametrize("text", ["native.port = 7", "native = { port = 7 }", "['native']\nport = 7"])
def test_unknown_line_names_the_file(text: str) -> None:
    config = Config.parse(text, {})
    assert config.native.port == 7
    assert config.sources["native.port"] == FILE_NAME


def test_template_documents_everything_and_sets_nothing() -> None:
    text = config_template()
    assert Config.parse(text, {}).sources == dict.fromkeys(SETTINGS, "default")
    uncommented = re.sub(r"^#(?! )", "", text, flags=re.MULTILINE)
    config = Config.parse(uncommented, {})
    assert values(config) == values(Config.parse("", {}))
    assert "default" not in config.sources.values()
    assert max(map(len, text.splitlines())) <= 105


def test_template_sets_given_values() -> None:
    given = {name: other for name, (other, _, _) in OTHERS.items()}
    config = Config.parse(config_template(given), {})
    assert values(config) == {name: value for name, (_, _, value) in OTHERS.items()}
    assert tomllib.loads(config_template({"root": "global"})).pop("root") == "global"


def test_template_refuses_invalid_settings() -> None:
    with pytest.raises(InvalidConfig, match=r"unknown setting native\.prot; did you mean native\.port"):
        config_template({"native.prot": 1})
    with pytest.raises(InvalidConfig, match=r"native\.port: Expected a whole number"):
        config_template({"native.port": "1"})


def test_settings_are_read_from_directory(tmp_path: Path) -> None:
    assert Config.load(tmp_path, {}) == Config.parse("", {})
    (tmp_path / FILE_NAME).write_bytes(b"\xef\xbb\xbf[native]\r\nport = 1\r\n")
    config = Config.load(tmp_path, {})
    assert (config.native.port, config.sources["native.port"]) == (1, "perseid.toml:2")
    (tmp_path / FILE_NAME).write_text("[native]\nport = -1")
    with pytest.raises(InvalidConfig) as caught:
        Config.load(tmp_path, {})
    assert str(caught.value).startswith(
        f"{tmp_path / FILE_NAME}:2: native.port: Expected a whole number from 0 to 65,535"
    )
    (tmp_path / FILE_NAME).write_bytes(b"root = '\xff'")
    with pytest.raises(InvalidConfig, match="byte 9 is not valid UTF-8"):
        Config.load(tmp_path, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[native]\nprot = 1", "perseid.toml:2: unknown setting native.prot; did you mean native.port?"),
        (
            "port = 1",
            "perseid.toml:1: unknown setting port; did you mean native.port, in section [native]?",
        ),
        ('[log]\nroot = "self"', "did you mean root, before the first section?"),
        ("[natve]\nport = 1", "perseid.toml: unknown section [natve]; did you mean native?"),
        ("[quux]", "unknown section [quux]; list all settings with: perseid config"),
        ("quux = 1", "unknown setting quux; list all settings with: perseid config"),
        ("native = 1", "native is a section: write [native]"),
        ("[[native]]\nport = 1", "native is a section: write [native]"),
        ("[server]\nserver_admins = []", "unknown setting server.server_admins; use administrators.server"),
        ("case_sensitive = true", "unknown setting case_sensitive: use the policy key `case`"),
        ('"a\\u001Bb" = 1', "unknown setting a\\x1bb"),
        ("[native]\nport = 1\nport = 2", "perseid.toml: invalid TOML: Cannot overwrite a value"),
        (
            "[native]\nport = 1\n[http]\n[native]\nport = 2",
            "perseid.toml: section [native] occurs twice, in lines 1 and 4; write all its settings in one",
        ),
        ("x = " + "[" * 5_000, "lists are nested too deeply"),
    ],
)
def test_unknown_setting_is_refused_with_suggestion(text: str, message: str) -> None:
    assert message in refused(text)


@pytest.mark.parametrize(
    ("setting", "plain", "message"),
    [
        ("native.port", "'x'", "Expected a whole number from 0 to 65,535, not 'x'"),
        ("native.port", "65536", "Expected a whole number from 0 to 65,535, not 65536"),
        ("native.port", "true", ", not true"),
        ("native.port", "inf", ", not inf"),
        ("native.port", "2026-11-03", ", not a date or time"),
        ("native.port", "{ a = 1 }", ", not a table"),
        ("native.host", "1", "Expected an IP address or a host name, not 1"),
        ("native.host", "'127.0.0.256'", ", not '127.0.0.256'"),
        ("native.host", "'-a'", ", not '-a'"),
        ("native.host", "''", ", not ''"),
        (
            "http.trusted_proxies",
            "'::1'",
            "Expected a list of addresses and networks such as 192.0.2.0/24, not '::1'",
        ),
        ("http.trusted_proxies", "[1]", "; it contains 1"),
        ("http.trusted_proxies", "['10.0.0.1/8']", "Invalid network '10.0.0.1/8': 10.0.0.1/8 has host bits set"),
        ("http.listen", "'tls'", 'Expected "both", "http" or "https", not \'tls\''),
        ("http.public_url", "1", "Expected a URL such as https://hdl.example.org, or an empty text, not 1"),
        ("http.public_url", "'hdl.example.org'", ", not 'hdl.example.org'"),
        ("http.public_url", "'ftp://hdl.example.org'", ", not 'ftp://hdl.example.org'"),
        ("http.public_url", "'https://a@b'", ", not 'https://a@b'"),
        ("http.public_url", "'https://a/?b'", ", not 'https://a/?b'"),
        ("http.public_url", "'https://a:70000'", ", not 'https://a:70000'"),
        ("http.public_url", "'https://[a'", ", not 'https://[a'"),
        ("http.public_url", "'https://:80'", ", not 'https://:80'"),
        (
            "http.resolver_forms",
            "['a/b']",
            'Expected a list of "bare" and of segments such as "hdl"; it contains \'a/b\'',
        ),
        ("http.resolver_forms", "['api']", "Segment 'api' is reserved for the server; choose another one"),
        ("http.resolver_forms", "[1]", "; it contains 1"),
        ("http.redirect_status", "200", "Expected 301, 302, 303, 307 or 308, not 200"),
        ("http.redirect_status", "true", "Expected 301, 302, 303, 307 or 308, not true"),
        ("http.no_values_status", "'404'", "Expected 200 or 404, not '404'"),
        (
            "http.schemes",
            "['HTTP']",
            "Expected a list of schemes such as \"https\", in lowercase; it contains 'HTTP'",
        ),
        (
            "http.schemes",
            "['javascript']",
            "Scheme 'javascript' is not allowed",
        ),
        ("administrators.server", "'1:1/a'", "Expected a list of \"INDEX:HANDLE\", not '1:1/a'"),
        ("administrators.server", "[['1:1/a']]", "; it contains a list"),
        ("administrators.server", "['0.NA/1']", "Invalid administrator '0.NA/1'"),
        ("administrators.server", "['1:x']", "Invalid administrator '1:x'"),
        ("administrators.server", "['-1:1/a']", "the index must not be negative; 0 means any key"),
        ("administrators.full_access", "1", "Expected true or false, not 1"),
        ("sessions.life", "59", "a whole number from 60 to 86,400"),
        ("sessions.cipher", "'AES'", 'Expected "aes", "3des" or "des", not \'AES\''),
        ("root", "'other'", 'Expected "self" or "global", not \'other\''),
        ("default_profile", "'pillin'", 'Expected "pilin", "cordra", "free" or "exact"'),
        ("templates.delimiter", "1", "printable characters, not 1"),
        ("templates.delimiter", '"\\t"', "printable characters"),
        (
            "ledger.database",
            "1",
            "Expected a URL such as postgresql://user@host/database, or an empty text, not a number",
        ),
    ],
)
def test_invalid_value_is_reported_with_expectation(setting: str, plain: str, message: str) -> None:
    section, _, key = setting.rpartition(".")
    text = f"[{section}]\n{key} = {plain}" if section else f"{key} = {plain}"
    said = refused(text)
    assert message in said
    assert said.startswith(f"{FILE_NAME}:{2 if section else 1}: {setting}: ")


# The environment


@pytest.mark.parametrize("name", SETTINGS)
def test_variable_overrides_file(name: str) -> None:
    other, written, value = OTHERS[name]
    config = Config.parse(config_template({name: SETTINGS[name].default}), {variable_name(name): written})
    assert get(config, name) == value
    assert config.sources[name] == variable_name(name)
    assert SETTINGS[name].default != other
    shown = list(value) if isinstance(value, tuple) else value
    assert shown == (["10.0.0.0/8", "::1/128"] if name == "http.trusted_proxies" else other)


def test_empty_variable_is_ignored() -> None:
    config = Config.parse("[native]\nport = 7", dict.fromkeys(map(variable_name, SETTINGS), ""))
    assert config == Config.parse("[native]\nport = 7", {})
    assert config.sources["native.port"] == "perseid.toml:2"


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("PERSEID_NATIVE_PORT", "tcp://10.0.0.1:2641", "Expected a whole number from 0 to 65,535, not 'tcp://"),
        ("PERSEID_NATIVE_PORT", "9" * 5_000, "Expected a whole number from 0 to 65,535, not '999"),
        ("PERSEID_LOG_ACCESS", "maybe", "Expected true or false, not 'maybe'"),
        ("PERSEID_ADMINISTRATORS_SERVER", "[1", ", not '[1'"),
        ("PERSEID_ADMINISTRATORS_SERVER", "1:1/a;2:1/b c", ""),
        ("PERSEID_ROOT", "[self]", ", not '[self]'"),
    ],
)
def test_error_names_the_variable(variable: str, text: str, message: str) -> None:
    if message:
        said = refused("", {variable: text})
        assert said.startswith(f"{variable}: ")
        assert message in said
    else:
        assert Config.parse("", {variable: text}).administrators.server == ("1:1/a;2:1/b c",)


def test_variables_without_effect_are_reported() -> None:
    environ = {"PERSEID_NATVE_PORT": "1", "PERSEID_DIR": "x", "PERSEID_": "x", "HOME": "x", "PERSEID_SERVICE_HOST": "x"}
    environ |= {"PERSEID_REMOTE": "x", "PERSEID_CLIENT_ROOT": "x"}
    config = Config.parse("", environ)
    assert values(config) == values(Config.parse("", {}))
    assert config.remarks[0] == "environment variable PERSEID_ has no effect; list all settings with: perseid config"
    assert (
        config.remarks[1] == "environment variable PERSEID_NATVE_PORT has no effect; did you mean PERSEID_NATIVE_PORT?"
    )
    assert len(config.remarks) == 3


# Showing


def test_settings_are_shown_as_in_file() -> None:
    given = {name: other for name, (other, _, _) in OTHERS.items()} | {"http.trusted_proxies": ["10.0.0.0/8"]}
    rows = Config.parse(config_template(given), {"PERSEID_LOG_FORMAT": "text"}).show()
    assert [row.name for row in rows] == list(SETTINGS)
    assert {row.name: row.value for row in rows} == given | {"log.format": "text", "keys.passphrase": "***"}
    by_name = {row.name: row for row in rows}
    assert by_name["log.format"].source == "PERSEID_LOG_FORMAT"
    assert by_name["sessions.life"].unit == "seconds"
    plain = msgspec.json.decode(msgspec.json.encode(rows))
    assert plain[0] == {
        "name": "root",
        "value": "global",
        "source": by_name["root"].source,
        "unit": "",
        "about": SETTINGS["root"].about,
    }


def test_config_is_frozen() -> None:
    config = Config.parse("", {})
    with pytest.raises(AttributeError):
        config.native.port = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        config.root = "global"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.sources["root"] = "x"  # type: ignore[index]


def test_repr_has_changed_settings() -> None:
    assert repr(Config.parse("", {})) == "<Config default>"
    assert repr(Config.parse("[native]\nport = 1", {})) == "<Config native.port=1>"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@db/names",
        f"postgresql+psycopg://:{SECRET}@db/names",
        f"postgres://me:{SECRET}@",
        f"postgresql://me:/{SECRET}?@db/names",
        f"postgresql://db/names?password={SECRET}",
        f"postgresql://db/names?user=me&PASSWORD={SECRET}&sslmode=require",
        f"postgresql://db/names?sslpassword={SECRET}",
    ],
)
def test_password_is_never_shown(url: str) -> None:
    config = Config.parse(config_template({"ledger.database": url}), {})
    assert config.ledger.database == url
    assert SECRET not in f"{config!r} {config.ledger!r} {config.show()}"
    assert "***" in mask_password(url)
    assert mask_password(url).startswith(url.partition("://")[0])
    for wrong in (url.replace("postgres", "mysql", 1), url + " ", url + "\x1b"):
        assert SECRET not in refused(f"[ledger]\ndatabase = {format_toml(wrong)}")
        assert SECRET not in refused("", {"PERSEID_LEDGER_DATABASE": wrong})


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:a@{SECRET}:x@db:5432/names",  # the driver would look up this host
        f"postgresql://me@db/names?sslmode=require&pass%77ord={SECRET}",
    ],
)
def test_url_that_would_show_its_password_is_refused(url: str) -> None:
    problem = refused(f"[ledger]\ndatabase = {format_toml(url)}")
    assert "%" in problem
    assert SECRET not in problem


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=12))
def test_only_the_password_is_masked(noise: str) -> None:
    assert f"{noise}geheim" not in mask_password(f"postgresql://me:{noise}geheim@db/names")
    assert mask_password("postgresql://me@db:5432/names?host=/run") == "postgresql://me@db:5432/names?host=/run"
    assert mask_password("postgresql://[::1]:5432/names") == "postgresql://[::1]:5432/names"
    assert mask_password("") == ""


def test_passphrase_is_never_shown() -> None:
    text = f'[keys]\npassphrase = "{SECRET}"'
    for config in (Config.parse(text, {}), Config.parse("", {"PERSEID_KEYS_PASSPHRASE": SECRET})):
        assert config.keys.passphrase == SECRET
        assert SECRET not in f"{config!r} {config.keys!r} {config.show()}"
    assert "passphrase=''" not in repr(Config.parse("", {}))
    assert SECRET not in refused("", {"PERSEID_KEYS_PASSPHRASE": f"{SECRET}\n{SECRET}"})
    assert SECRET not in refused(f'[keys]\npassphrase = ["{SECRET}"]')
    assert refused("[keys]\npassphrase = 4711").endswith("Expected a single line of text, not a number")
    assert refused("[keys]\npassphrase = true").endswith("Expected a single line of text, not true or false")


def test_file_with_secret_is_detected() -> None:
    assert Config.parse(f'[keys]\npassphrase = "{SECRET}"', {}).has_secret_in_file
    assert Config.parse(f'[ledger]\ndatabase = "postgresql://a:{SECRET}@b/c"', {}).has_secret_in_file
    assert not Config.parse('[ledger]\ndatabase = "postgresql://a@b/c"\n[keys]\npassphrase = ""', {}).has_secret_in_file
    assert not Config.parse("", {"PERSEID_KEYS_PASSPHRASE": SECRET}).has_secret_in_file


# The manual


def settings_table() -> str:
    rows = ["| setting | variable | value | default | unit | description |", "|---|---|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        default, unit = f"`{format_toml(setting.default)}`", setting.unit or "–"
        rows.append(f"| `{name}` | `{setting.variable}` | {setting.expects} | {default} | {unit} | {setting.about} |")
    return "\n".join(rows) + "\n"


def config_dct_table() -> str:
    rows = ["| in `config.dct` | here | difference or replacement |", "|---|---|---|"]
    for old, (new, remark) in CONFIG_DCT.items():
        rows.append(f"| `{old}` | {f'`{new}`' if new else '–'} | {remark or '–'} |")
    return "\n".join(rows) + "\n"


def test_manual_has_settings_table() -> None:
    assert f"\n{settings_table()}\n" in MANUAL.read_text()


def test_manual_has_config_dct_table() -> None:
    assert f"\n{config_dct_table()}\n" in MANUAL.read_text()
    assert sorted(CONFIG_DCT) == sorted(DEPLOYED_KEYS)
    assert {new for new, _ in CONFIG_DCT.values()} <= {"", *SETTINGS}


@pytest.mark.parametrize("old", DEPLOYED_KEYS)
def test_deployed_name_is_refused_with_new_name(old: str) -> None:
    key = old.rpartition(".")[2]
    said = refused(f"{key} = 1")
    new, remark = CONFIG_DCT[old]
    if key == old:
        assert said.endswith(f"; use {new}" if new else remark)


def write_published() -> None:
    """Update the tables of the manual: python -m tests.registry.installation.test_settings"""
    text = MANUAL.read_text()
    for start, new in (("\n| setting |", settings_table()), ("\n| in `config.dct` |", config_dct_table())):
        before, _, rest = text.partition(start)
        text = f"{before}\n{new}\n{rest.partition(chr(10) * 2)[2]}"
    MANUAL.write_text(text)


if __name__ == "__main__":
    write_published()

"""From `perseid.toml` and the files of a site to the server: every setting takes effect."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perseid.records.partition import HashOption, find_server_index
from perseid.records.record import Value
from perseid.records.site import MIRROR, Transport
from perseid.registry.installation.settings import Config
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.native.resolution import ResolutionSettings
from perseid.server.native.server import NativeServer, NativeSettings
from perseid.server.processes.site_settings import ServerIdentity, load_identity
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.requests import HandleRequest, Resolve, ValuesRequest
from perseid.wire.sessions import Cipher
from tests.registry.installation.server_files import furnish, site
from tests.server.native.native_servers import (
    ADMIN,
    DSA,
    PREFIX,
    RSA,
    SEC,
    SITE,
    STD,
    Visitor,
    make_server,
    recorded_registry,
)
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY

PORTS = {Transport.UDP: 22641, Transport.TCP: 22641}


def server_identity(directory: Path, text: str = "") -> ServerIdentity:
    return load_identity(directory, Config.parse(text, {}))


# What follows from site and settings


def test_parts_get_their_settings(tmp_path: Path) -> None:
    directory = furnish(tmp_path / "a", RSA_KEY, replace(site(SERVER_KEY, RSA_KEY, DSA_KEY), serial=9))
    sessions = "required = true\nchallenge_life = 7\nlife = 90\ncipher = '3des'"
    found = server_identity(directory, f"default_profile = 'exact'\n[site]\nposition = 2\n[sessions]\n{sessions}")
    server = found.server_settings()
    assert (server.key, server.site_serial, server.is_primary) == (RSA_KEY, 9, True)
    assert (server.challenge_life, server.session_life, server.cipher) == (7, 90, Cipher.TDES)
    assert found.native_settings(PORTS) == NativeSettings(1, True, PORTS)
    assert found.resolution_settings() == ResolutionSettings(
        serial=9, servers=3, position=1, hash_option=HashOption.ALL, default_scheme="free", default_sensitive=True
    )


def test_mirror_with_partition_by_prefix(tmp_path: Path) -> None:
    information = replace(SITE, primary=MIRROR, hash_option=HashOption.PREFIX)
    found = server_identity(furnish(tmp_path / "a", SERVER_KEY, information))
    assert not found.server_settings().is_primary
    assert (found.resolution_settings().is_primary, found.resolution_settings().hash_option) == (False, 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_default_profile_applies_without_a_policy(tmp_path: Path, profile: str) -> None:
    made = server_identity(furnish(tmp_path / "a"), f"default_profile = '{profile}'").resolution_settings()
    assert (made.default_scheme, made.default_sensitive) == (PROFILES[profile].scheme, profile == "exact")


def test_resolvers_know_whether_a_delimiter_is_set(tmp_path: Path) -> None:
    directory = furnish(tmp_path / "a")
    assert not server_identity(directory, "").resolution_settings().templates
    assert server_identity(directory, "[templates]\ndelimiter = '@'").resolution_settings().templates


def test_repr_shows_no_secret(tmp_path: Path) -> None:
    found = server_identity(furnish(tmp_path / "a"), "[keys]\npassphrase = 'correct horse'")
    assert isinstance(found.key, type(SERVER_KEY))
    shown = repr(found)
    assert "correct horse" not in shown
    assert str(SERVER_KEY.d) not in shown  # type: ignore[attr-defined]


# As a text


def test_parsing_loads_neither_keys_nor_settings() -> None:
    script = "import sys, perseid.server.native.resolution; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("perseid.registry", "perseid.records.private_keys"))]


# What a server does by its settings


@contextmanager
def native_server(directory: Path, text: str) -> Iterator[Visitor]:
    """A client of the recorded records, with a server created from the settings."""
    found = server_identity(furnish(directory, SERVER_KEY, SITE), text)
    config = found.config
    with recorded_registry() as registry:
        rules = Rules(config.administration, PROFILES[config.default_profile], config.server.listing_allowed)
        made = NativeServer(
            Registry(registry.ledger, rules),
            make_server(found.server_settings()),
            found.site,
            settings=found.native_settings(PORTS),
            checkpoint=lambda: True,
        )
        yield Visitor(made)


HOME = (OpCode.HOME_NA, HandleRequest(b"0.NA/20.500.1"))
STATUS = (OpCode.RESOLUTION, Resolve(b"0.SITE/status"))
BACKUP = (OpCode.BACKUP_SERVER, HandleRequest(b""))
LIST = (OpCode.LIST_HANDLES, HandleRequest(ADMIN.encode()))
CREATE = (
    OpCode.CREATE_HANDLE,
    ValuesRequest(f"{PREFIX}/new".encode(), (Value.text(1, "URL", "https://example.org/"),)),
)
DELETE = (OpCode.DELETE_HANDLE, HandleRequest(f"{PREFIX}/vec-üñí-日本".encode()))
"""A record without administrators: nobody may delete it, but who has full access."""


@pytest.mark.parametrize(
    ("setting", "request_", "without", "with_"),
    [
        ("[administrators]\nserver = ['301:{}']", HOME, "INVALID_ADMIN", "SUCCESS"),
        ("[administrators]\nhome_only = ['301:{}']", HOME, "INVALID_ADMIN", "SUCCESS"),
        ("[administrators]\nhome_only = ['301:{}']", STATUS, "INVALID_ADMIN", "INVALID_ADMIN"),
        ("[administrators]\nstatus = ['301:{}']", STATUS, "INVALID_ADMIN", "SUCCESS"),
        ("[administrators]\nstatus = ['301:{}']", BACKUP, "INVALID_ADMIN", "INVALID_ADMIN"),
        ("[administrators]\nbackup = ['301:{}']", BACKUP, "INVALID_ADMIN", "SUCCESS"),
        ("[administrators]\nserver = ['301:{}']", DELETE, "INVALID_ADMIN", "INVALID_ADMIN"),
        ("[administrators]\nserver = ['301:{}']\nfull_access = true", DELETE, "INVALID_ADMIN", "SUCCESS"),
        ("[administrators]\nprefix_administrators = false", CREATE, "SUCCESS", "INVALID_ADMIN"),
        ("[server]\nlisting_allowed = false", LIST, "SUCCESS", "OPERATION_NOT_SUPPORTED"),
        ("[sessions]\nrequired = true", CREATE, "SUCCESS", "INVALID_CREDENTIAL"),
    ],
)
def test_setting_takes_effect(tmp_path: Path, setting: str, request_: Any, without: str, with_: str) -> None:
    for text, expected in (("", without), (setting.format(ADMIN), with_)):
        with native_server(tmp_path / "a", text) as visitor:
            answers = visitor.all_as(SEC, visitor.request(*request_, flags=DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY))
            assert answers[0].code is ResponseCode[expected], (text, answers[0])


def test_session_satisfies_required_sessions(tmp_path: Path) -> None:
    with native_server(tmp_path / "a", "[sessions]\nrequired = true") as visitor:
        session = visitor.begin_session()
        assert visitor.ask_as(SEC, visitor.request(*CREATE, session=session), session).code is ResponseCode.SUCCESS


@pytest.mark.parametrize(("life", "expected"), [(30, "SUCCESS"), (10, "SESSION_TIMEOUT")])
def test_challenge_lifetime_is_configurable(tmp_path: Path, life: int, expected: str) -> None:
    with native_server(tmp_path / "a", f"[sessions]\nchallenge_life = {life}") as visitor:
        request = visitor.request(*CREATE)
        challenge = visitor.ask(request)
        visitor.now += 20
        code = visitor.ask(visitor.answer(challenge, request, RSA), about=request).code
        assert code is ResponseCode[expected]


@pytest.mark.parametrize(("life", "expected"), [(90, "SUCCESS"), (60, "SESSION_TIMEOUT")])
def test_session_lifetime_is_configurable(tmp_path: Path, life: int, expected: str) -> None:
    with native_server(tmp_path / "a", f"[sessions]\nlife = {life}") as visitor:
        wish = visitor.client.begin_session(None, visitor.now, peer_version=visitor.version, timeout=0)
        session = visitor.client.finish_session(wish, visitor.ask(wish.request))
        visitor.now += 75
        request = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()), session=session)
        assert visitor.ask(request, session).code is ResponseCode[expected]


@pytest.mark.parametrize("cipher", ["aes", "3des", "des"])
def test_session_cipher_is_configurable(tmp_path: Path, cipher: str) -> None:
    with native_server(tmp_path / "a", f"[sessions]\ncipher = '{cipher}'") as visitor:
        session = visitor.begin_session()
        kinds = {"aes": Cipher.AES, "3des": Cipher.TDES, "des": Cipher.DES}
        assert session.cipher is kinds[cipher]
        assert visitor.ask_as(DSA, visitor.request(*CREATE, session=session), session).code is ResponseCode.SUCCESS


def test_server_responds_for_its_share_of_the_names(tmp_path: Path) -> None:
    name = STD.encode()
    mine = find_server_index(name, HashOption.ALL, 2)
    for position in (0, 1):
        keys = (SERVER_KEY, RSA_KEY) if position == 0 else (RSA_KEY, SERVER_KEY)
        directory = furnish(tmp_path / str(position), SERVER_KEY, site(*keys))
        found = server_identity(directory, f"[site]\nposition = {position + 1}")
        with recorded_registry() as registry:
            made = NativeServer(
                registry, make_server(found.server_settings()), found.site, settings=found.native_settings(PORTS)
            )
            visitor = Visitor(made)
            code = visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(name))).code
        assert code is (ResponseCode.SUCCESS if position == mine else ResponseCode.SERVER_NOT_RESP)

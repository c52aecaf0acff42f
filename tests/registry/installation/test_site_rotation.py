"""Creation of site information and keys, and key rotation with interruptions."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.private_keys import needs_passphrase
from perseid.records.site import Purpose, Site, Transport
from perseid.registry.installation import files, installation
from perseid.registry.installation import site as site_module
from perseid.registry.installation.installation import write_server_files
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import (
    SiteError,
    build_site,
    dump_site_json,
    load_server_identity,
    rotate,
    with_key,
)
from tests.record_strategies import sites
from tests.registry.installation.server_files import PASSPHRASE, furnish, put, put_key, put_site, settings, site
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY

DEFAULTS = settings()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the recorded key and site; new keys are recorded ones too."""
    monkeypatch.setattr(site_module, "generate_key", lambda: RSA_KEY)
    return furnish(tmp_path / "here")


def forms(directory: Path) -> list[Site]:
    return [Site.from_file((directory / name).read_bytes()) for name in ("siteinfo.bin", "siteinfo.json")]


def list_files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def is_interrupted(directory: Path, config: Config) -> bool:
    """Whether the next key is in use but not yet renamed."""
    return load_server_identity(directory, config).key_path.name == "privkey.bin.next"


WHOLE = ["keys/privkey.bin", "keys/pubkey.bin", "siteinfo.bin", "siteinfo.json"]


# New ones


def test_new_server_files(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    public = write_server_files(tmp_path, DEFAULTS)
    found = load_server_identity(tmp_path, DEFAULTS)
    assert found.key.public == public
    assert (public.KTY, public.bits) == ("RSA", 2048)
    assert (tmp_path / "keys" / "pubkey.bin").read_bytes() == public.to_bytes()
    assert list_files(tmp_path) == ["keys/https.pem", *WHOLE]
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in list_files(tmp_path)} == {0o600}
    first, second = forms(tmp_path)
    assert first == second == found.site
    assert (first.serial, first.is_primary, first.protocol_version, first.attributes) == (1, True, (2, 11), ())
    (server,) = first.servers
    assert (server.server_id, str(server.ip), server.key) == (1, "127.0.0.1", public)
    both = Purpose.ADMIN | Purpose.QUERY
    assert [(one.transport, one.purpose, one.port) for one in server.interfaces] == [
        (Transport.TCP, both, 2641),
        (Transport.UDP, Purpose.QUERY, 2641),
        (Transport.HTTP, both, 8000),
    ]


def test_new_key_is_protected_with_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "generate_key", lambda: RSA_KEY)
    (tmp_path / "keys").mkdir()
    write_server_files(tmp_path, DEFAULTS, PASSPHRASE.encode())
    assert needs_passphrase((tmp_path / "keys" / "privkey.bin").read_bytes())
    assert load_server_identity(tmp_path, settings(KEYS_PASSPHRASE=PASSPHRASE)).key == RSA_KEY


@pytest.mark.parametrize(
    ("host", "address", "domain"),
    [
        ("192.0.2.7", "192.0.2.7", None),
        ("2001:db8::7", "2001:db8::7", None),
        ("0.0.0.0", "127.0.0.1", None),
        ("::", "127.0.0.1", None),
        ("names.example.org", "0.0.0.0", "names.example.org"),
    ],
)
def test_site_address(host: str, address: str, domain: str | None) -> None:
    made = build_site(settings(NATIVE_HOST=host, NATIVE_PORT=2642, HTTP_ENABLED=False), SERVER_KEY.public)
    (server,) = made.servers
    assert (str(server.ip), made.attribute("domain")) == (address, domain)
    assert [one.port for one in server.interfaces] == [2642, 2642]


def test_any_free_port_is_published_as_default_port() -> None:
    (server,) = build_site(settings(NATIVE_PORT=0, HTTP_PORT=0), SERVER_KEY.public).servers
    assert [one.port for one in server.interfaces] == [2641, 2641, 8000]


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"HTTP_PORT": 80}, [(Transport.HTTP, 80)]),
        ({"HTTP_LISTEN": "http"}, [(Transport.HTTP, 8000)]),
        ({"HTTP_LISTEN": "https"}, [(Transport.HTTPS, 8000)]),
        ({"HTTP_ENABLED": "no"}, []),
        ({"HTTP_HOST": "0.0.0.0"}, [(Transport.HTTP, 8000)]),
        ({"HTTP_HOST": "192.0.2.7"}, []),
        ({"NATIVE_HOST": "192.0.2.7"}, []),
        ({"NATIVE_HOST": "names.example.org", "HTTP_HOST": "names.example.org"}, [(Transport.HTTP, 8000)]),
    ],
)
def test_http_interface_of_site(variables: dict[str, object], found: list[tuple[Transport, int]]) -> None:
    """A server has one address, so HTTP at another one is omitted."""
    (server,) = build_site(settings(**variables), SERVER_KEY.public).servers
    assert [(one.transport, one.port) for one in server.interfaces[2:]] == found


@given(sites)
def test_site_json_round_trips(information: Site) -> None:
    assert Site.from_text(dump_site_json(information).decode()).to_bytes() == information.to_bytes()


@given(st.lists(st.sampled_from([SERVER_KEY, DSA_KEY]), min_size=1, max_size=4), st.data())
def test_only_key_and_serial_change(keys: list[Any], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(keys) - 1))
    before = site(*keys, serial=4)
    after = with_key(before, position, RSA_KEY.public)
    expected = [RSA_KEY if number == position else key for number, key in enumerate(keys)]
    assert after == site(*expected, serial=5)


# Exchanging a key


def test_key_is_rotated(here: Path) -> None:
    rotated = rotate(here, DEFAULTS)
    assert (rotated.key, rotated.finished) == (RSA_KEY.public, False)
    assert rotated.site_paths == (here / "siteinfo.bin", here / "siteinfo.json")
    assert forms(here) == [site(RSA_KEY, serial=2)] * 2 == [rotated.site] * 2
    found = load_server_identity(here, DEFAULTS)
    assert (found.key, found.key_path.name, found.remarks) == (RSA_KEY, "privkey.bin", ())
    assert list_files(here) == WHOLE
    assert {(here / name).stat().st_mode & 0o777 for name in WHOLE} == {0o600}
    assert (here / "keys" / "pubkey.bin").read_bytes() == RSA_KEY.public.to_bytes()
    assert not is_interrupted(here, DEFAULTS)


def test_rotation_keeps_protection(here: Path) -> None:
    put_key(here / "keys" / "privkey.bin", SERVER_KEY, PASSPHRASE)
    with pytest.raises(SiteError, match="is protected by a passphrase, but none is set"):
        rotate(here, DEFAULTS)
    assert list_files(here) == [name for name in WHOLE if "pub" not in name]
    config = settings(KEYS_PASSPHRASE=PASSPHRASE)
    rotate(here, config)
    assert needs_passphrase((here / "keys" / "privkey.bin").read_bytes())
    assert load_server_identity(here, config).key == RSA_KEY


def test_site_files_are_updated_in_place(here: Path) -> None:
    put_site(here / "keys" / "siteinfo.json", site(DSA_KEY, SERVER_KEY, serial=8))
    config = settings(SITE_POSITION=2)
    rotated = rotate(here, config)
    assert rotated.site_paths == (here / "keys" / "siteinfo.bin", here / "keys" / "siteinfo.json")
    assert forms(here / "keys") == [site(DSA_KEY, RSA_KEY, serial=9)] * 2
    assert forms(here) == [site(SERVER_KEY)] * 2
    with pytest.raises(SiteError, match=r"site\.position is 3 .* has 2 servers"):
        rotate(here, settings(SITE_POSITION=3))


@pytest.mark.parametrize("lost", [["keys/privkey.bin"], ["siteinfo.bin", "siteinfo.json"], WHOLE])
def test_missing_files_are_created(here: Path, lost: list[str]) -> None:
    for name in lost:
        (here / name).unlink(missing_ok=True)
    rotate(here, DEFAULTS)
    assert load_server_identity(here, DEFAULTS).key == RSA_KEY
    assert forms(here)[0].serial == (2 if lost == ["keys/privkey.bin"] else 1)
    assert list_files(here) == WHOLE


def test_key_not_matching_site_is_replaced(here: Path) -> None:
    put_key(here / "keys" / "privkey.bin", DSA_KEY)
    rotate(here, DEFAULTS)
    assert load_server_identity(here, DEFAULTS).site == site(RSA_KEY, serial=2)


class _Plug(BaseException):
    """The simulated interruption."""


def _steps(directory: Path, monkeypatch: pytest.MonkeyPatch, until: int) -> bool:
    """Rotate the key, interrupted before the nth write, rename or removal."""
    count = 0

    def counted(action: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count > until:
                raise _Plug
            return action(*arguments, **options)

        return step

    with monkeypatch.context() as context:
        for where, name in ((Path, "replace"), (Path, "unlink"), (files, "open_new"), (os, "fsync")):
            context.setattr(where, name, counted(getattr(where, name)))
        try:
            rotate(directory, DEFAULTS)
        except _Plug:
            return False
    return True


@pytest.mark.usefixtures("here")
def test_interrupted_rotation_can_always_be_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until, seen = 0, set()
    while True:
        directory = furnish(tmp_path / str(until))
        if _steps(directory, monkeypatch, until):
            break
        found = load_server_identity(directory, DEFAULTS)
        assert (found.key, found.site.serial) in ((SERVER_KEY, 1), (RSA_KEY, 2))
        waits = is_interrupted(directory, DEFAULTS)
        seen.add((found.site.serial, waits))
        again = rotate(directory, DEFAULTS)
        assert again.finished == waits
        # Whoever was interrupted at the very end has the new key already, and gets another one.
        serial = 3 if found.site.serial == 2 and not waits else 2
        assert forms(directory) == [site(RSA_KEY, serial=serial)] * 2
        assert load_server_identity(directory, DEFAULTS).remarks == ()
        assert list_files(directory) == WHOLE
        until += 1
    assert until > 10
    assert seen == {(1, False), (2, True), (2, False)}
    assert list_files(tmp_path / str(until)) == WHOLE


def test_incomplete_next_key_is_ignored(here: Path) -> None:
    put(here / "keys" / "privkey.bin.next", b"half-wr")
    assert not is_interrupted(here, DEFAULTS)
    rotate(here, DEFAULTS)
    assert forms(here) == [site(RSA_KEY, serial=2)] * 2
    assert list_files(here) == WHOLE


def test_concurrent_rotations_are_serialized(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [RSA_KEY, DSA_KEY]
    monkeypatch.setattr(site_module, "generate_key", keys.pop)
    config: Config = DEFAULTS
    threads = [threading.Thread(target=rotate, args=(here, config)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load_server_identity(here, config).site.serial == 3
    assert list_files(here) == WHOLE

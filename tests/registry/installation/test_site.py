"""Server identity: which files are used, inconsistencies, and errors."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.private_keys import PrivateKey, ProtectionScheme
from perseid.registry.installation.files import InstallationError
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import (
    MissingFile,
    SiteError,
    is_later,
    load_server_identity,
    next_serial,
)
from tests.registry.installation.server_files import PASSPHRASE, SITE, furnish, put, put_key, put_site, settings, site
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY
from tests.wire.recorded import key_file

DEFAULTS = settings()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with the recorded key and site."""
    return furnish(tmp_path / "here")


def refused(directory: Path, config: Config = DEFAULTS) -> str:
    with pytest.raises(InstallationError) as caught:
        load_server_identity(directory, config)
    said = str(caught.value)
    assert PASSPHRASE not in said
    return said


# What counts


def test_matching_key_and_site_are_loaded(here: Path) -> None:
    found = load_server_identity(here, DEFAULTS)
    assert (found.site, found.position, found.key) == (SITE, 0, SERVER_KEY)
    assert (found.site_path, found.key_path) == (here / "siteinfo.bin", here / "keys" / "privkey.bin")
    assert found.remarks == ()


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
@pytest.mark.parametrize("folder", [".", "keys"])
def test_deployed_files_are_read(tmp_path: Path, name: str, folder: str) -> None:
    put(tmp_path / "keys" / "privkey.bin", key_file("privkey.bin"))
    put(tmp_path / folder / name, key_file(name))
    found = load_server_identity(tmp_path, DEFAULTS)
    assert (found.site.to_bytes(), found.key) == (key_file("siteinfo.bin"), SERVER_KEY)
    assert found.site_path == tmp_path / folder / name


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
def test_site_format_is_detected_by_content(tmp_path: Path, name: str) -> None:
    put_key(tmp_path / "keys" / "privkey.bin", SERVER_KEY)
    other = {"siteinfo.bin": "siteinfo.json", "siteinfo.json": "siteinfo.bin"}[name]
    put(tmp_path / name, key_file(other))
    assert load_server_identity(tmp_path, DEFAULTS).site == SITE


@pytest.mark.parametrize("key", [SERVER_KEY, RSA_KEY, DSA_KEY], ids=["server", "rsa", "dsa"])
def test_every_key_type_is_read(tmp_path: Path, key: PrivateKey) -> None:
    assert load_server_identity(furnish(tmp_path / "a", key), DEFAULTS).key == key


def test_files_in_keys_folder_take_precedence(here: Path) -> None:
    put_key(here / "keys" / "privkey.bin", RSA_KEY)
    brought = put_site(here / "keys" / "siteinfo.json", site(RSA_KEY, serial=7))
    found = load_server_identity(here, DEFAULTS)
    assert (found.site.serial, found.key, found.site_path) == (7, RSA_KEY, brought)
    (remark,) = found.remarks
    assert remark == f"{brought} is used; 'siteinfo.bin' and 'siteinfo.json' in {here} differ and are ignored"
    for name in ("siteinfo.bin", "siteinfo.json"):
        put_site(here / name, site(RSA_KEY, serial=7))
    assert load_server_identity(here, DEFAULTS).remarks == ()
    put(here / "siteinfo.json", b"nonsense")
    assert load_server_identity(here, DEFAULTS).remarks != ()


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
@pytest.mark.parametrize("serial", [1, 5])
def test_site_file_matching_key_is_used(here: Path, name: str, serial: int) -> None:
    for each in ("siteinfo.bin", "siteinfo.json"):
        put_site(here / each, site(SERVER_KEY, serial=serial))
    put_key(here / "keys" / "privkey.bin", DSA_KEY)
    put_site(here / name, site(DSA_KEY))
    found = load_server_identity(here, DEFAULTS)
    assert found.site_path.name == name
    (remark,) = found.remarks
    assert f"(serial number {serial}) differs from {here / name} (serial number 1), which is used" in remark


@pytest.mark.parametrize(("newer", "older"), [("siteinfo.bin", "siteinfo.json"), ("siteinfo.json", "siteinfo.bin")])
@pytest.mark.parametrize(("serial", "later"), [(1, 2), (0x7FFF, -0x8000), (-2, 0)])
def test_later_serial_number_is_used(here: Path, newer: str, older: str, serial: int, later: int) -> None:
    put_site(here / older, site(SERVER_KEY, serial=serial))
    put_site(here / newer, site(SERVER_KEY, serial=later))
    assert load_server_identity(here, DEFAULTS).site_path.name == newer


def test_ambiguous_site_files_are_refused(here: Path) -> None:
    put_site(here / "siteinfo.json", replace(SITE, attributes=()))
    said = refused(here)
    assert said.startswith(f"{here / 'siteinfo.bin'} and {here / 'siteinfo.json'} differ but have the same serial")
    assert "remove the wrong one, or raise the serial number of the right one" in said


@given(st.integers(-0x8000, 0x7FFF))
def test_serial_numbers_wrap_around(serial: int) -> None:
    after = next_serial(serial)
    assert -0x8000 <= after <= 0x7FFF
    assert after != -1  # which says that there is none
    assert is_later(after, serial)
    assert not is_later(serial, after)
    assert not is_later(serial, serial)


# Several servers


def test_position_selects_server(tmp_path: Path) -> None:
    directory = furnish(tmp_path / "a", RSA_KEY, site(SERVER_KEY, RSA_KEY, DSA_KEY))
    found = load_server_identity(directory, settings(SITE_POSITION=2))
    assert (found.position, found.key) == (1, RSA_KEY)
    said = refused(directory, settings(SITE_POSITION=3))
    assert f"privkey.bin does not match server 3 in {directory / 'siteinfo.bin'}" in said
    assert "the setting site.position" in said
    said = refused(directory, settings(SITE_POSITION=4))
    assert f"site.position is 4 (PERSEID_SITE_POSITION), but {directory / 'siteinfo.bin'} has 3 servers" in said
    assert "has one server;" in refused(furnish(tmp_path / "b"), settings(SITE_POSITION=2))


# Passphrases


@pytest.mark.parametrize(
    "scheme", [ProtectionScheme.AES, ProtectionScheme.TDES, ProtectionScheme.DES_CBC, ProtectionScheme.DES_ECB]
)
def test_protected_key_is_opened_by_variable_or_file(here: Path, tmp_path: Path, scheme: ProtectionScheme) -> None:
    path = put_key(here / "keys" / "privkey.bin", SERVER_KEY, PASSPHRASE, scheme)
    assert load_server_identity(here, settings(KEYS_PASSPHRASE=PASSPHRASE)).key == SERVER_KEY
    for end in (b"", b"\n", b"\r\n"):
        word = put(tmp_path / "word", PASSPHRASE.encode() + end)
        assert load_server_identity(here, settings(KEYS_PASSPHRASE_FILE=word)).key == SERVER_KEY
    put(here / "word", PASSPHRASE.encode())
    assert load_server_identity(here, settings(KEYS_PASSPHRASE_FILE="word")).key == SERVER_KEY
    assert (
        load_server_identity(here, settings(KEYS_PASSPHRASE_FILE="absent", KEYS_PASSPHRASE=PASSPHRASE)).key
        == SERVER_KEY
    )
    said = refused(here)
    assert said.startswith(f"{path} is protected by a passphrase, but none is set; ")
    assert "or set the environment variable PERSEID_KEYS_PASSPHRASE" in said


def test_wrong_passphrase_is_reported_without_repeating_it(here: Path) -> None:
    path = put_key(here / "keys" / "privkey.bin", SERVER_KEY, "another one")
    said = refused(here, settings(KEYS_PASSPHRASE=PASSPHRASE))
    assert said.startswith(f"The passphrase of PERSEID_KEYS_PASSPHRASE is wrong for {path}, or the file is damaged; ")
    word = put(here / "word", PASSPHRASE.encode())
    assert f"The passphrase of {word} is wrong for" in refused(here, settings(KEYS_PASSPHRASE_FILE="word"))


@pytest.mark.parametrize("data", [b"", b"\n", PASSPHRASE.encode() + b"\n\n", b"a\n" + PASSPHRASE.encode()])
def test_passphrase_file_has_one_line(here: Path, data: bytes) -> None:
    put_key(here / "keys" / "privkey.bin", SERVER_KEY, PASSPHRASE)
    put(here / "word", data)
    assert "word must contain one line, the passphrase" in refused(here, settings(KEYS_PASSPHRASE_FILE="word"))


def test_unreadable_passphrase_file_is_refused(here: Path) -> None:
    put_key(here / "keys" / "privkey.bin", SERVER_KEY, PASSPHRASE)
    said = refused(here, settings(KEYS_PASSPHRASE_FILE="absent"))
    assert "absent: No such file or directory; correct the setting keys.passphrase_file" in said
    put(here / "word", bytes(5_000))
    assert "is too large: at most 4,096 bytes" in refused(here, settings(KEYS_PASSPHRASE_FILE="word"))


def test_unneeded_passphrase_is_not_read(here: Path) -> None:
    assert load_server_identity(here, settings(KEYS_PASSPHRASE_FILE="absent")).key == SERVER_KEY


# What cannot be used


def test_missing_files_are_named_with_command(here: Path) -> None:
    (here / "keys" / "privkey.bin").unlink()
    assert refused(here).endswith("put your key there, or create a new one with: perseid key rotate server")
    for name in ("siteinfo.bin", "siteinfo.json"):
        (here / name).unlink()
    with pytest.raises(MissingFile, match=r"No site information in .* with: perseid key rotate server$"):
        load_server_identity(here, DEFAULTS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a private key: "),
        (b"\0\0\0\1nonsense", "is not a private key: "),
        (b"\0\0\0\x09", "is not a private key: at byte 0: unknown key file scheme 9"),
        (key_file("pubkey.bin"), "it may be a public key file"),
        (bytes(70_000), "is too large: at most 65,536 bytes"),
    ],
)
def test_invalid_key_is_refused(here: Path, data: bytes, message: str) -> None:
    path = put(here / "keys" / "privkey.bin", data)
    said = refused(here)
    assert said.startswith(str(path))
    assert message in said


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"\0\1\2", b'{"servers": 1}', b"nonsense"])
def test_invalid_site_information_is_refused(here: Path, name: str, data: bytes) -> None:
    put(here / name, data)
    assert refused(here).startswith(f"{here / name} is not valid site information: ")


def test_site_without_servers_is_refused(here: Path) -> None:
    for name in ("siteinfo.bin", "siteinfo.json"):
        put_site(here / name, replace(SITE, servers=()))
    assert "site.position is 1 (default), but " in refused(here)


def test_files_accessible_to_others_are_refused(here: Path) -> None:
    (here / "keys" / "privkey.bin").chmod(0o640)
    assert "other users can read" in refused(here)
    (here / "keys" / "privkey.bin").chmod(0o600)
    (here / "siteinfo.json").chmod(0o644)
    load_server_identity(here, DEFAULTS)
    (here / "siteinfo.json").chmod(0o622)
    assert "other users can write to" in refused(here)


def test_unreadable_files_are_reported(here: Path) -> None:
    (here / "siteinfo.bin").unlink()
    (here / "siteinfo.bin").mkdir(0o700)
    assert "siteinfo.bin: Is a directory; restore it" in refused(here)


def test_next_key_is_used_if_site_names_it(here: Path) -> None:
    following_key = put_key(here / "keys" / "privkey.bin.next", RSA_KEY)
    assert load_server_identity(here, DEFAULTS).key == SERVER_KEY
    put_site(here / "siteinfo.bin", site(RSA_KEY, serial=2))
    found = load_server_identity(here, DEFAULTS)
    assert (found.key, found.key_path) == (RSA_KEY, following_key)
    put(following_key, b"half-wr")
    assert load_server_identity(here, DEFAULTS).key == SERVER_KEY
    (here / "keys" / "privkey.bin").unlink()
    with pytest.raises(SiteError, match=r"privkey\.bin\.next is not a private key"):
        load_server_identity(here, DEFAULTS)


def test_fingerprint_is_hash_of_key_bytes() -> None:
    assert SERVER_KEY.public.fingerprint.startswith("RSA 2048 SHA256:")
    assert DSA_KEY.public.fingerprint.startswith("DSA ")
    assert len({key.public.fingerprint for key in (SERVER_KEY, RSA_KEY, DSA_KEY)}) == 3

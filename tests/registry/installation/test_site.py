"""Who a server is: which files count, what does not fit together, and what each refusal says."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.key_files import ProtectionScheme
from perseid.records.private_keys import PrivateKey
from perseid.registry.installation.files import InstallationError
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import MissingFile, SiteError, fingerprint, is_later, load_server_identity
from perseid.registry.installation.site_setup import next_serial
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


def test_key_and_site_that_belong_together(here: Path) -> None:
    found = load_server_identity(here, DEFAULTS)
    assert (found.site, found.position, found.key) == (SITE, 0, SERVER_KEY)
    assert (found.site_path, found.key_path) == (here / "siteinfo.bin", here / "keys" / "privkey.bin")
    assert found.remarks == ()


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
@pytest.mark.parametrize("folder", [".", "keys"])
def test_deployed_files_are_taken_as_they_are(tmp_path: Path, name: str, folder: str) -> None:
    put(tmp_path / "keys" / "privkey.bin", key_file("privkey.bin"))
    put(tmp_path / folder / name, key_file(name))
    found = load_server_identity(tmp_path, DEFAULTS)
    assert (found.site.to_bytes(), found.key) == (key_file("siteinfo.bin"), SERVER_KEY)
    assert found.site_path == tmp_path / folder / name


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
def test_a_form_is_known_by_its_contents(tmp_path: Path, name: str) -> None:
    put_key(tmp_path / "keys" / "privkey.bin", SERVER_KEY)
    other = {"siteinfo.bin": "siteinfo.json", "siteinfo.json": "siteinfo.bin"}[name]
    put(tmp_path / name, key_file(other))
    assert load_server_identity(tmp_path, DEFAULTS).site == SITE


@pytest.mark.parametrize("key", [SERVER_KEY, RSA_KEY, DSA_KEY], ids=["server", "rsa", "dsa"])
def test_every_kind_of_key(tmp_path: Path, key: PrivateKey) -> None:
    assert load_server_identity(furnish(tmp_path / "a", key), DEFAULTS).key == key


def test_what_an_operator_brings_goes_before_what_was_made(here: Path) -> None:
    put_key(here / "keys" / "privkey.bin", RSA_KEY)
    brought = put_site(here / "keys" / "siteinfo.json", site(RSA_KEY, serial=7))
    found = load_server_identity(here, DEFAULTS)
    assert (found.site.serial, found.key, found.site_path) == (7, RSA_KEY, brought)
    (remark,) = found.remarks
    assert remark == f"{brought} counts, and what 'siteinfo.bin' and 'siteinfo.json' in {here} say does not"
    for name in ("siteinfo.bin", "siteinfo.json"):
        put_site(here / name, site(RSA_KEY, serial=7))
    assert load_server_identity(here, DEFAULTS).remarks == ()
    put(here / "siteinfo.json", b"nonsense")
    assert load_server_identity(here, DEFAULTS).remarks != ()


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
@pytest.mark.parametrize("serial", [1, 5])
def test_the_form_that_belongs_to_the_key_counts(here: Path, name: str, serial: int) -> None:
    for each in ("siteinfo.bin", "siteinfo.json"):
        put_site(here / each, site(SERVER_KEY, serial=serial))
    put_key(here / "keys" / "privkey.bin", DSA_KEY)
    put_site(here / name, site(DSA_KEY))
    found = load_server_identity(here, DEFAULTS)
    assert found.site_path.name == name
    (remark,) = found.remarks
    assert f"(serial number {serial}) differs from {here / name} (serial number 1), which counts" in remark


@pytest.mark.parametrize(("newer", "older"), [("siteinfo.bin", "siteinfo.json"), ("siteinfo.json", "siteinfo.bin")])
@pytest.mark.parametrize(("serial", "later"), [(1, 2), (0x7FFF, -0x8000), (-2, 0)])
def test_the_later_serial_number_counts(here: Path, newer: str, older: str, serial: int, later: int) -> None:
    put_site(here / older, site(SERVER_KEY, serial=serial))
    put_site(here / newer, site(SERVER_KEY, serial=later))
    assert load_server_identity(here, DEFAULTS).site_path.name == newer


def test_two_forms_that_differ_for_no_visible_reason_are_refused(here: Path) -> None:
    put_site(here / "siteinfo.json", replace(SITE, attributes=()))
    said = refused(here)
    assert said.startswith(f"{here / 'siteinfo.bin'} and {here / 'siteinfo.json'} differ, and have the same serial")
    assert "remove the one that is wrong, or raise the serial number of the one that is right" in said


@given(st.integers(-0x8000, 0x7FFF))
def test_serial_numbers_go_round(serial: int) -> None:
    after = next_serial(serial)
    assert -0x8000 <= after <= 0x7FFF
    assert after != -1  # which says that there is none
    assert is_later(after, serial)
    assert not is_later(serial, after)
    assert not is_later(serial, serial)


# Several servers


def test_the_position_says_which_server_this_is(tmp_path: Path) -> None:
    directory = furnish(tmp_path / "a", RSA_KEY, site(SERVER_KEY, RSA_KEY, DSA_KEY))
    found = load_server_identity(directory, settings(SITE_POSITION=2))
    assert (found.position, found.key) == (1, RSA_KEY)
    said = refused(directory, settings(SITE_POSITION=3))
    assert f"privkey.bin is not that of server 3 in {directory / 'siteinfo.bin'}" in said
    assert "the setting site.position" in said
    said = refused(directory, settings(SITE_POSITION=4))
    assert f"{directory / 'siteinfo.bin'} has 3 servers, and site.position is 4 (PERSEID_SITE_POSITION)" in said
    assert "has one server, and" in refused(furnish(tmp_path / "b"), settings(SITE_POSITION=2))


# Passphrases


@pytest.mark.parametrize(
    "scheme", [ProtectionScheme.AES, ProtectionScheme.TDES, ProtectionScheme.DES_CBC, ProtectionScheme.DES_ECB]
)
def test_a_protected_key_is_opened_by_a_variable_or_a_file(
    here: Path, tmp_path: Path, scheme: ProtectionScheme
) -> None:
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
    assert said.startswith(f"{path} is protected by a passphrase, and none is set: ")
    assert "keys.passphrase_file, or set the variable PERSEID_KEYS_PASSPHRASE" in said


def test_a_wrong_passphrase_is_told_and_not_repeated(here: Path) -> None:
    path = put_key(here / "keys" / "privkey.bin", SERVER_KEY, "another one")
    said = refused(here, settings(KEYS_PASSPHRASE=PASSPHRASE))
    assert said.startswith(f"the passphrase of PERSEID_KEYS_PASSPHRASE does not open {path}, or the file is damaged; ")
    word = put(here / "word", PASSPHRASE.encode())
    assert f"the passphrase of {word} does not open" in refused(here, settings(KEYS_PASSPHRASE_FILE="word"))


@pytest.mark.parametrize("octets", [b"", b"\n", PASSPHRASE.encode() + b"\n\n", b"a\n" + PASSPHRASE.encode()])
def test_a_file_with_a_passphrase_has_one_line(here: Path, octets: bytes) -> None:
    put_key(here / "keys" / "privkey.bin", SERVER_KEY, PASSPHRASE)
    put(here / "word", octets)
    assert "word should have one line, the passphrase" in refused(here, settings(KEYS_PASSPHRASE_FILE="word"))


def test_a_file_with_a_passphrase_that_is_none(here: Path) -> None:
    put_key(here / "keys" / "privkey.bin", SERVER_KEY, PASSPHRASE)
    said = refused(here, settings(KEYS_PASSPHRASE_FILE="absent"))
    assert "absent cannot be read: No such file or directory; correct the setting keys.passphrase_file" in said
    put(here / "word", bytes(5_000))
    assert "has more than 4,096 octets, and is something else" in refused(here, settings(KEYS_PASSPHRASE_FILE="word"))


def test_a_passphrase_that_nobody_needs_is_not_looked_for(here: Path) -> None:
    assert load_server_identity(here, settings(KEYS_PASSPHRASE_FILE="absent")).key == SERVER_KEY


# What cannot be used


def test_what_is_missing_is_named_with_the_command_that_makes_it(here: Path) -> None:
    (here / "keys" / "privkey.bin").unlink()
    assert refused(here).endswith("privkey.bin, or make a new one with: perseid key rotate server")
    for name in ("siteinfo.bin", "siteinfo.json"):
        (here / name).unlink()
    with pytest.raises(MissingFile, match=r"there is no site information in .* with: perseid key rotate server$"):
        load_server_identity(here, DEFAULTS)


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (b"", "is no private key: "),
        (b"\0\0\0\1nonsense", "is no private key: "),
        (b"\0\0\0\x09", "is no private key: at octet 0: key files of scheme 9 are not known"),
        (key_file("pubkey.bin"), "it may be that of a public one"),
        (bytes(70_000), "has more than 65,536 octets"),
    ],
)
def test_what_is_no_key(here: Path, octets: bytes, message: str) -> None:
    path = put(here / "keys" / "privkey.bin", octets)
    said = refused(here)
    assert said.startswith(str(path))
    assert message in said


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
@pytest.mark.parametrize("octets", [b"", b"{", b"\0\1\2", b'{"servers": 1}', b"nonsense"])
def test_what_is_no_site_information(here: Path, name: str, octets: bytes) -> None:
    put(here / name, octets)
    assert refused(here).startswith(f"{here / name} is no site information: ")


def test_site_information_without_servers(here: Path) -> None:
    for name in ("siteinfo.bin", "siteinfo.json"):
        put_site(here / name, replace(SITE, servers=()))
    assert "has 0 servers, and site.position is 1 (default)" in refused(here)


def test_what_others_may_read_or_write_is_not_used(here: Path) -> None:
    (here / "keys" / "privkey.bin").chmod(0o640)
    assert "others may read" in refused(here)
    (here / "keys" / "privkey.bin").chmod(0o600)
    (here / "siteinfo.json").chmod(0o644)
    load_server_identity(here, DEFAULTS)
    (here / "siteinfo.json").chmod(0o622)
    assert "others may write to" in refused(here)


def test_what_cannot_be_read(here: Path) -> None:
    (here / "siteinfo.bin").unlink()
    (here / "siteinfo.bin").mkdir(0o700)
    assert "siteinfo.bin cannot be read: Is a directory; put it back" in refused(here)


def test_a_key_that_waits_counts_if_the_site_names_it(here: Path) -> None:
    following_key = put_key(here / "keys" / "privkey.bin.next", RSA_KEY)
    assert load_server_identity(here, DEFAULTS).key == SERVER_KEY
    put_site(here / "siteinfo.bin", site(RSA_KEY, serial=2))
    found = load_server_identity(here, DEFAULTS)
    assert (found.key, found.key_path) == (RSA_KEY, following_key)
    put(following_key, b"half-wr")
    assert load_server_identity(here, DEFAULTS).key == SERVER_KEY
    (here / "keys" / "privkey.bin").unlink()
    with pytest.raises(SiteError, match=r"privkey\.bin\.next is no private key"):
        load_server_identity(here, DEFAULTS)


def test_a_fingerprint_is_that_of_the_octets() -> None:
    assert fingerprint(SERVER_KEY.public).startswith("RSA 2048 SHA256:")
    assert fingerprint(DSA_KEY.public).startswith("DSA ")
    assert len({fingerprint(key.public) for key in (SERVER_KEY, RSA_KEY, DSA_KEY)}) == 3

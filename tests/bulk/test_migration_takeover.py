"""Taking over the site information and key of a Handle server, its settings, and the checklist of the cut-over."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk.migration.server_directory import DctValue, parse_dct, read_server_directory
from perseid.records.errors import InvalidData
from perseid.records.private_keys import write_key_file
from perseid.registry.installation.installation import load_settings
from perseid.registry.installation.site import load_server_identity
from tests.cli.installation import Site, refused, site
from tests.vector_files import FOLDER
from tests.wire.key_material import RSA_KEY, SERVER_KEY

CONFIG = r"""{
"hdl_tcp_config" = { "bind_address" = "0.0.0.0" "bind_port" = "2641" }
"server_config" = {
  this_server_id = 1; "case_sensitive" = "yes",
  "server_admins" = ( "300:0.NA/20.500.99999" "0.NA/20.500.99999" )
  "replication_admins" = ( "301:0.NA/20.500.99999" )
  "server_admin_full_access" = "yes"
  "storage_type" = "sql"
  "sql_settings" = { "sql_url" = "jdbc:mysql://db.example.org:3306/handles?x=y"
    "sql_login" = "h" "sql_passwd" = "p\"\\" }
}
}
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "svr_1"
    folder.mkdir()
    (folder / "config.dct").write_text(CONFIG)
    for name in ("siteinfo.bin", "privkey.bin"):
        shutil.copy(FOLDER / "keys" / name, folder / name)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Site:
    return site(tmp_path)


def test_the_identity_of_a_server_is_taken_over(old: Path, target: Site) -> None:
    before = (target.directory / "keys" / "privkey.bin").read_bytes()
    refused(target(f"migrate keys {old}"), "--yes", code=1)
    taken = target.ok(f"migrate keys {old} --yes --json").json
    assert (taken["position"], taken["profile"]) == (1, "exact")
    assert taken["database"] == "mysql://db.example.org:3306/handles"
    assert 'server = ["300:0.NA/20.500.99999", "0:0.NA/20.500.99999"]' in taken["settings"]
    assert "full_access = true" in taken["settings"]
    identity = load_server_identity(target.directory, load_settings(target.directory))
    assert identity.key.public == SERVER_KEY.public
    assert identity.site.to_bytes() == (FOLDER / "keys" / "siteinfo.bin").read_bytes()
    assert (target.directory / "keys" / "privkey.bin.before").read_bytes() == before
    assert (target.directory / "siteinfo.json.before").exists()
    assert "serial" in target.ok(f"migrate keys {old} --yes").out
    done = target("check", environ={f"PERSEID_{name}_PORT": "0" for name in ("NATIVE", "HTTP", "METRICS")})
    assert done.code == 0, done


def test_a_key_that_does_not_match_the_site_is_refused(old: Path, target: Site, tmp_path: Path) -> None:
    shutil.copy(FOLDER / "keys" / "rsapriv.bin", old / "privkey.bin")
    refused(target(f"migrate keys {old} --yes"), "not that of server 1", code=1)
    (old / "privkey.bin").write_bytes(write_key_file(SERVER_KEY, b"open sesame", bytes))
    refused(target(f"migrate keys {old} --yes"), "--passphrase-file", code=1)
    passphrase = tmp_path / "passphrase"
    passphrase.touch(0o600)
    passphrase.write_text("open sesame\n")
    target.ok(f"migrate keys {old} --yes --passphrase-file {passphrase}")
    passphrase.write_text("wrong")
    refused(target(f"migrate keys {old} --yes --passphrase-file {passphrase}"), "passphrase is wrong", code=1)
    (old / "siteinfo.bin").unlink()
    refused(target(f"migrate keys {old} --yes"), "No site information", code=1)


def test_the_checklist_has_the_commands_of_the_installation(target: Site) -> None:
    target.ok("namespace add 20.500.777 --profile free")
    text = target.ok("migrate checklist old.example.org:2641").out
    assert "Before the cut-over:" in text
    assert f"perseid migrate compare old.example.org:2641 -d {target.directory}" in text
    assert "20.500.777" in text
    assert "To fall back:" in text
    options = "--prefix 20.500.777 --as 300:0.NA/20.500.777 --key-file 'my key.bin' --mirror"
    text = target.ok(f"migrate checklist old.example.org:2641 {options}").out
    assert f"perseid migrate compare old.example.org:2641 {options} -d {target.directory}" in text
    refused(target("migrate checklist old.example.org:2641 --as nonsense"), code=2)
    steps = [json.loads(line) for line in target.lines("migrate checklist --json")]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert {step["phase"] for step in steps} == {"prepare", "cut_over", "fall_back"}


def test_settings_of_deployed_servers_are_read() -> None:
    parsed = parse_dct(CONFIG)
    server = parsed["server_config"]
    assert isinstance(server, dict)
    assert server["this_server_id"] == "1"
    assert server["sql_settings"] == {
        "sql_url": "jdbc:mysql://db.example.org:3306/handles?x=y",
        "sql_login": "h",
        "sql_passwd": 'p"\\',
    }
    assert parse_dct('{"a" = "1" "a" = "2\\n"}') == {"a": "2\n"}


def _write(value: DctValue) -> str:
    match value:
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case dict():
            return "{" + "\n".join(f"{_write(key)} = {_write(item)}" for key, item in value.items()) + "}"
    return "(" + " ".join(map(_write, value)) + ")"


VALUES: st.SearchStrategy[DctValue] = st.recursive(
    st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_settings_have_a_round_trip(settings: dict[str, DctValue]) -> None:
    assert parse_dct(_write(settings)) == settings


@given(st.text(alphabet='{}()="\\ a\n', max_size=40))
def test_any_text_is_settings_or_an_error(text: str) -> None:
    with suppress(InvalidData):
        parse_dct(text)


@pytest.mark.parametrize("text", ["", "{", "()", '{"a"}', '{"a" = }', "{} x", "{" + "x={" * 30, '{"a" = "'])
def test_invalid_settings_are_rejected(text: str) -> None:
    with pytest.raises(InvalidData):
        parse_dct(text)


def test_a_directory_without_settings_has_defaults(old: Path) -> None:
    (old / "config.dct").unlink()
    found = read_server_directory(old)
    assert (found.position, found.profile, found.administrators, found.database) == (0, "free", (), "")
    assert found.key.public != RSA_KEY.public

"""`backup --full`, `restore` of full backups, and the restore drill `backup verify`."""

import io
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from perseid.ledger.backup import encryption
from perseid.ledger.backup.archive import InvalidBackup
from perseid.ledger.backup.encryption import EncryptedWriter
from perseid.registry.installation import full_backup
from perseid.registry.installation.full_backup import FILE_SETTINGS, MAX_FILES, open_backup, write_full_backup
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.settings import SETTINGS
from tests.cli.installation import Site, refused, site

PASSPHRASE = "a long passphrase"
SERVER_FILES = [
    "keys/https.pem",
    "keys/privkey.bin",
    "keys/pubkey.bin",
    "perseid.toml",
    "siteinfo.bin",
    "siteinfo.json",
]


@pytest.fixture(autouse=True)
def _cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "SCRYPT_COST", 2)


@pytest.fixture
def options(tmp_path: Path) -> str:
    """The option with the passphrase."""
    path = tmp_path / "passphrase"
    path.write_text(f"{PASSPHRASE}\n")
    path.chmod(0o600)
    return f"--passphrase-file {path}"


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    (installation.directory / "perseid.toml").write_text('[service]\nname = "Names of Example"\n')
    return installation


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_full_backup_and_increment_restore_settings_keys_and_records(here: Site, options: str, tmp_path: Path) -> None:
    document = here.ok(f"backup {tmp_path}/1 --full {options} --json").json
    assert (document["full"], document["since"]) == (True, 0)
    here.ok("create 12345/x --url https://example.org/a")
    done = here.ok(f"backup {tmp_path}/2 --full --since {document['until']} {options}")
    assert "contents  ledger, settings and keys, encrypted" in done.out.splitlines()
    assert done.out.splitlines()[-1].endswith(f"--since {document['until'] + 1} --full {options}")
    plain = here.ok(f"backup {tmp_path}/plain")
    assert "contents  ledger only, not encrypted, without settings and keys" in plain.out.splitlines()
    assert (tmp_path / "2").stat().st_mode & 0o777 == 0o600
    for part in (b"Names of Example", b"https://example.org", b"HS_ADMIN"):
        assert part not in (tmp_path / "1").read_bytes() + (tmp_path / "2").read_bytes()

    restored = Site(tmp_path / "again")
    document = restored.ok(f"restore {tmp_path}/1 {tmp_path}/2 {options} --json").json
    assert document["files"] == ["keys/checkpoint.key", *SERVER_FILES]
    for name in SERVER_FILES:
        assert (restored.directory / name).read_bytes() == (here.directory / name).read_bytes(), name
        assert (restored.directory / name).stat().st_mode & 0o777 == 0o600, name
    old_key = (here.directory / "keys/checkpoint.key").read_bytes()
    assert (restored.directory / "keys/checkpoint.key.before").read_bytes() == old_key
    assert (restored.directory / "keys/checkpoint.key").read_bytes() != old_key
    assert "https://example.org/a" in restored.ok("resolve 12345/x").out
    assert restored.ok("check --quick").code == 0
    assert restored.ok("verify --all").code == 0


def test_settings_of_the_command_replace_those_of_the_backup(here: Site, options: str, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/1 --full {options}")
    (tmp_path / "other.toml").write_text('[service]\nname = "Other"\n')
    restored = Site(tmp_path / "again")
    done = restored.ok(f"restore {tmp_path}/1 {options} --settings {tmp_path}/other.toml")
    assert "new key" in done.out
    assert done.err == ""
    assert (restored.directory / "perseid.toml").read_text() == '[service]\nname = "Other"\n'
    (tmp_path / "other.toml").write_bytes(b"\xff")
    refused(Site(tmp_path / "third")(f"restore {tmp_path}/1 {options} --settings {tmp_path}/other.toml"), code=1)


def test_files_in_the_directory_are_backed_up_and_others_named(here: Site, options: str, tmp_path: Path) -> None:
    (tmp_path / "outside.pem").write_text("certificate")
    (here.directory / "files").mkdir()
    (here.directory / "files/logo.svg").write_text("<svg/>")
    (here.directory / "keys/privkey.bin.77.new").write_text("left by a killed process")
    with (here.directory / "perseid.toml").open("a") as file:
        file.write(f'logo_file = "files/logo.svg"\n[http]\ncertificate_file = "{tmp_path}/outside.pem"\n')
    done = here.ok(f"backup {tmp_path}/1 --full {options}")
    outside = f"{tmp_path}/outside.pem (http.certificate_file)"
    assert done.err == f"Not in the backup, because it is outside the directory: {outside}\n"
    restored = Site(tmp_path / "again")
    restored.ok(f"restore {tmp_path}/1 {options}")
    assert (restored.directory / "files/logo.svg").read_text() == "<svg/>"
    assert not (restored.directory / "keys/privkey.bin.77.new").exists()
    assert here(f"backup {tmp_path}/2 --json").err == ""


@pytest.mark.parametrize(("mode", "accepted"), [(0o400, True), (0o440, True), (0o444, False), (0o460, False)])
def test_credential_with_an_access_list_is_accepted(here: Site, tmp_path: Path, mode: int, accepted: bool) -> None:
    """The access list of a credential for one user looks like access of the group."""
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    (tmp_path / "passphrase").chmod(mode)
    command = f"backup {tmp_path}/1 --full --passphrase-file {tmp_path}/passphrase"
    done = here(command, environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert (done.code == 0) is accepted, done
    assert (here(command.replace("/1", "/2")).code == 0) is (mode == 0o400)


def test_every_setting_that_names_a_file_is_known() -> None:
    named = {name for name, setting in SETTINGS.items() if setting.rule and "file name" in setting.rule.expects}
    assert named == set(FILE_SETTINGS)


def test_too_large_files_are_refused(here: Site, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILES > 10_000_000
    monkeypatch.setattr(full_backup, "MAX_FILES", 1_000)
    refused(here(f"backup {tmp_path}/1 --full {options}"), "is too large", code=1)
    assert not (tmp_path / "1").exists()


def test_backup_to_standard_output_is_encrypted(here: Site, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr("perseid.cli.backup.sys", SimpleNamespace(stdout=output))
    here.ok(f"backup - --full {options}")
    output.buffer.seek(0)
    _, files = open_backup(output.buffer, "name", PASSPHRASE.encode())
    assert files["perseid.toml"] == (here.directory / "perseid.toml").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("backup FOLDER/1 --full", 2, "Use --full and --passphrase-file FILE together"),
        ("backup FOLDER/1 OPTIONS", 2, "Use --full and --passphrase-file FILE together"),
        ("backup FOLDER/1 FOLDER/2", 2, "use one FILE, or verify FILE"),
        ("backup verify FOLDER/full --since 1", 2, "not for verify"),
        ("backup verify FOLDER/full --full OPTIONS", 2, "not for verify"),
        ("backup FOLDER/1 --full --passphrase-file FOLDER/short", 1, "has 5 bytes; use at least 12"),
        ("backup FOLDER/1 --full --passphrase-file FOLDER/open", 1, "chmod"),
        ("backup verify FOLDER/full", 1, "full: encrypted; use --passphrase-file FILE"),
        ("backup verify FOLDER/full --passphrase-file FOLDER/wrong", 1, "; use the passphrase that"),
        ("backup verify FOLDER/cut OPTIONS", 1, "cut: modified or incomplete, in chunk 1; use another copy"),
        ("backup verify FOLDER/changed OPTIONS", 1, "changed: modified or incomplete, in chunk 1"),
        ("restore FOLDER/full -d FOLDER/new", 1, "full: encrypted; use --passphrase-file FILE"),
        ("restore FOLDER/full --passphrase-file FOLDER/wrong -d FOLDER/new", 1, "; use the passphrase that"),
        ("restore FOLDER/cut OPTIONS -d FOLDER/new", 1, "cut: modified or incomplete, in chunk 1; use another copy"),
    ],
)
def test_wrong_options_and_damaged_files_are_refused(
    here: Site, options: str, tmp_path: Path, words: str, code: int, message: str
) -> None:
    here.ok(f"backup {tmp_path}/full --full {options}")
    data = (tmp_path / "full").read_bytes()
    (tmp_path / "cut").write_bytes(data[:-1])
    (tmp_path / "changed").write_bytes(data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
    for name, text in {"short": "short", "open": PASSPHRASE, "wrong": "another passphrase"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644 if name == "open" else 0o600)
    before = sorted(tmp_path.iterdir())
    done = here(words.replace("FOLDER", str(tmp_path)).replace("OPTIONS", options))
    assert (done.code, done.out) == (code, ""), done
    assert message in done.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", ["../x", "/etc/x", "keys/../../x", "a//b", "", ".", "a\0b"])
def test_paths_that_lead_out_of_the_directory_are_refused(path: str) -> None:
    stream = io.BytesIO()
    writer = EncryptedWriter(stream, full_backup.FIRST_LINE, PASSPHRASE.encode())
    writer.write(msgspec.json.encode({"files": {"perseid.toml": "", path: ""}}) + b"\n")
    writer.end()
    stream.seek(0)
    with pytest.raises(InvalidBackup, match="is not a file of an installation"):
        open_backup(stream, "name", PASSPHRASE.encode())


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b'{"files":{"x":1}}\n', b'{"files":{"keys/x":""}}\n', b"\xff\n"])
def test_invalid_files_are_refused(line: bytes) -> None:
    with pytest.raises(InvalidBackup, match="nothing was restored"):
        full_backup.parse_files(line, "name")


# The restore drill


def test_drill_restores_verifies_and_compares(here: Site, options: str, tmp_path: Path, scratch: Path) -> None:
    until = here.ok(f"backup {tmp_path}/1 --full {options} --json").json["until"]
    assert here.lines(f"backup verify {tmp_path}/1 {options}")[::2] == [
        f"restored  {until} entries, 7 files: valid",
        f"compared  with {here.directory}: the same entries",
    ]
    here.ok("create 12345/x --url https://example.org/a")
    with (here.directory / "perseid.toml").open("a") as file:
        file.write("# changed\n")
    assert here.lines(f"backup verify {tmp_path}/1 {options}")[-2:] == [
        f"compared  with {here.directory}: the same entries; 1 later entry is not in the backup",
        "changed   perseid.toml",
    ]
    here.ok(f"backup {tmp_path}/2 --since {until}")
    document = here.ok(f"backup verify {tmp_path}/1 {tmp_path}/2 {options} --json").json
    assert (document["entries"], document["files"]) == (until + 1, [])
    assert document["compared"] == {"directory": str(here.directory), "later_entries": 0, "changed_files": []}
    assert list(scratch.iterdir()) == []


def test_drill_works_without_the_installation(here: Site, options: str, tmp_path: Path, scratch: Path) -> None:
    here.ok(f"backup {tmp_path}/1 --full {options}")
    nowhere = Site(tmp_path / "nowhere")
    assert nowhere.lines(f"backup verify {tmp_path}/1 {options}")[-1].startswith("compared  with nothing: no install")
    assert nowhere.ok(f"backup verify {tmp_path}/1 {options} --json").json["compared"] is None
    refused(here(f"backup verify {tmp_path}/1 {options} -d {tmp_path}/nowhere"), "No installation in", code=1)
    assert list(scratch.iterdir()) == []


def test_drill_refuses_the_backup_of_another_ledger(here: Site, options: str, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/1 --full {options}")
    restored = Site(tmp_path / "again")
    restored.ok(f"restore {tmp_path}/1 {options}")
    refused(restored(f"backup verify {tmp_path}/1 {options}"), "The backup is of the ledger", "-d DIR", code=1)


def test_drill_reports_an_installation_that_lost_entries(here: Site, options: str, tmp_path: Path) -> None:
    earlier = (here.directory / "ledger.db").read_bytes()
    here.ok("create 12345/x --url https://example.org/a")
    here.ok(f"backup {tmp_path}/1 --full {options}")
    (here.directory / "ledger.db").write_bytes(earlier)
    refused(here(f"backup verify {tmp_path}/1 {options}"), "The backup is valid, but", "verify --all", code=1)


def test_drill_does_not_use_the_database_of_the_settings(here: Site, tmp_path: Path, options: str) -> None:
    with (
        Installation.open(here.directory, writable=False) as installation,
        (tmp_path / "1").open("wb") as stream,
    ):
        with (here.directory / "perseid.toml").open("a") as file:
            file.write('[ledger]\ndatabase = "postgresql://127.0.0.1:1/none"\n')
        write_full_backup(installation, stream, PASSPHRASE.encode())
    elsewhere = Site(tmp_path / "again")
    elsewhere.ok(f"backup verify {tmp_path}/1 {options}")
    refused(elsewhere(f"restore {tmp_path}/1 {options}"), "127.0.0.1:1/none", code=1)
    assert not elsewhere.directory.exists()

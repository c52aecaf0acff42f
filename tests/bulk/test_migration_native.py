"""Migration from a running server over the native protocol: list, resolve as administrator, follow; and from files."""

import io
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.bulk.exchange import ExchangeWriter
from perseid.bulk.migration import source as source_module
from perseid.client.native import NativeClient
from perseid.ledger.log.entry import Entry, State
from perseid.records.record import Permission, Value
from perseid.registry.installation.installation import Installation
from perseid.registry.jobs import migration
from perseid.registry.jobs.migration import MAX_SOURCE_LENGTH, is_migrated, make_note
from tests.bulk.handle_databases import PREFIX as ODD_PREFIX
from tests.bulk.handle_databases import RECORDS
from tests.bulk.test_exchange import _dump, _encode, _jdb
from tests.cli.installation import Site, refused, site
from tests.cli.program import ENVIRON, PERSEID
from tests.server.live_servers import WHO, eventually, live_installation
from tests.server.native.native_servers import BY_ADMINS, HIDDEN, PREFIX
from tests.server.running import Serving, serving

URL = Value.text(1, "URL", "https://example.org/")
NOTE = Value(50, "NOTE", b"for administrators", permissions=HIDDEN)


@pytest.fixture(scope="module")
def old() -> Iterator[tuple[Serving, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        installation = live_installation(Path(folder))
        with serving(installation) as running:
            yield running, installation


@pytest.fixture
def target(tmp_path: Path) -> Site:
    return site(tmp_path)


def entries(directory: Path, prefix: str) -> dict[str, Entry]:
    with (
        Installation.open(directory, writable=False, environ={}) as installation,
        installation.log.open_reader() as log,
    ):
        return {entry.handle: entry for entry in log.all_names(f"{prefix}/") if entry.state is not State.ABSENT}


def options(old: Serving, folder: Path) -> list[str]:
    identity, secret = WHO["secret"]
    path = folder / "secret"
    path.touch(0o600)
    path.write_bytes(secret if isinstance(secret, bytes) else str(secret).encode())
    host, port = old.native
    return [f"{host}:{port}", "--as", str(identity), "--secret-file", str(path), "--prefix", PREFIX]


def test_records_of_a_running_server_are_copied_and_followed(
    old: tuple[Serving, Path], target: Site, tmp_path: Path
) -> None:
    server, directory = old
    source = options(server, tmp_path)
    done = target("migrate", *source, "--json")
    *issues, summary = map(json.loads, done.out.splitlines())
    theirs, ours = entries(directory, PREFIX), entries(target.directory, PREFIX)
    unreadable = {issue["handle"] for issue in issues}
    assert summary["created"] == len(ours) >= 3
    assert {name: entry.contents() for name, entry in ours.items()} == {
        name: entry.contents() for name, entry in theirs.items() if name in ours
    }
    assert theirs.keys() - ours.keys() == unreadable | {
        name for name, entry in theirs.items() if entry.state is not State.NORMAL
    }
    assert all(map(is_migrated, ours.values()))
    # Follow what changes.
    environ = ENVIRON | {"PERSEID_DIR": str(target.directory)}
    following = subprocess.Popen(
        [PERSEID, "migrate", *source, "--follow", "--interval", "1", "--json"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    identity, secret = WHO["secret"]
    with NativeClient(*server.native, identity=identity, key=secret) as client:
        client.create(f"{PREFIX}/followed", [URL, NOTE, BY_ADMINS])
        eventually(lambda: f"{PREFIX}/followed" in entries(target.directory, PREFIX), "the new record is copied")
        client.delete(f"{PREFIX}/followed")
        eventually(lambda: f"{PREFIX}/followed" not in entries(target.directory, PREFIX), "the record is deleted")
    os.kill(following.pid, signal.SIGTERM)
    out, _ = following.communicate(timeout=30)
    assert following.returncode in (0, 4 if unreadable else 0)
    assert json.loads(out.splitlines()[-1])["source"].startswith("hdl://")
    compared = target("migrate compare", *source, "--json")
    assert json.loads(compared.out.splitlines()[-1])["missing"] == 0


def test_lists_go_to_a_file_that_does_not_fill_the_disk(
    old: tuple[Serving, Path], target: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = options(old[0], tmp_path)
    free = os.statvfs(target.directory)
    monkeypatch.setattr(source_module, "MIN_FREE_BYTES", free.f_blocks * free.f_frsize + 1)
    refused(target("migrate", *source), "does not fit on the disk", code=1)
    assert entries(target.directory, PREFIX) == {}


def test_a_file_with_too_many_prefixes_is_refused(
    target: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MAX_PREFIXES", 3)
    path = tmp_path / "many.json"
    for count in (3, 4):
        prefixes = [f"0.NA/20.500.{number}" for number in range(count)]
        path.write_text(json.dumps({"homedPrefixes": prefixes, "handleRecords": {}}))
        done = target(f"migrate {path}")
        assert ("hosts more than 3 prefixes" in done.err) is (count > 3), done
    path.write_text(json.dumps({"homedPrefixes": ["0.NA/" + "9" * 400], "handleRecords": {}}))
    monkeypatch.setattr(source_module, "MAX_PREFIX_CHARACTERS", 300)
    refused(target(f"migrate {path}"), "extreme length", code=1)


def test_the_server_must_have_the_expected_key(old: tuple[Serving, Path], target: Site, tmp_path: Path) -> None:
    key = Path(__file__).parents[1] / "vectors" / "keys" / "rsapub.bin"
    refused(target("migrate", *options(old[0], tmp_path), "--server-key", str(key)), "expected key", code=1)
    refused(target("migrate 127.0.0.1:1 --as 300:0.NA/1 --secret-file", str(tmp_path / "secret")), code=5)


def _write(folder: Path, kind: str) -> Path:
    """The records as a file of another server."""
    if kind == "exchange":
        path = folder / "export.json"
        data = io.BytesIO()
        writer = ExchangeWriter(data, [f"0.NA/{ODD_PREFIX}"])
        for handle, values in RECORDS.items():
            writer.write(handle, values)
        writer.close()
        path.write_bytes(data.getvalue())
        return path
    pairs = [(handle.encode(), _encode(values)) for handle, values in RECORDS.items()]
    prefixes = [(f"0.NA/{ODD_PREFIX}".encode(), b"")]
    if kind == "dump":
        (folder / "nas-1.dump").write_bytes(_dump(*prefixes))
        path = folder / "handles-1.dump"
        path.write_bytes(_dump(*pairs))
        return path
    (folder / "nas.jdb").write_bytes(_jdb(prefixes, 7))
    (folder / "handles.jdb").write_bytes(_jdb(pairs, 7))
    return folder


@pytest.mark.parametrize("kind", ["exchange", "dump", "jdb"])
def test_files_of_a_server_are_copied_byte_for_byte(kind: str, target: Site, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    path = _write(folder, kind)
    done = target.ok(f"migrate {path} --json").json
    assert (done["created"], done["prefixes"]) == (len(RECORDS), [f"0.NA/{ODD_PREFIX}"])
    ours = entries(target.directory, ODD_PREFIX) | entries(target.directory, "0.NA")
    for handle, values in RECORDS.items():
        assert ours[handle].contents() == [value.to_bytes() for value in values], handle
    assert target.ok(f"migrate compare {path} --json").json["records"] == len(RECORDS)
    target.ok(f"set {ODD_PREFIX}/PLAIN URL=https://example.org/planted")
    assert "planted" in target(f"migrate compare {path}").out


def test_a_copy_beside_a_running_server_can_be_undone(target: Site, tmp_path: Path) -> None:
    path = _write(tmp_path, "exchange")
    with serving(target.directory):
        job = target.ok(f"migrate {path} --json").json["job"]
        assert target.ok(f"jobs show {job} --json").json["done"] == len(RECORDS) - 1  # without the prefix handle
        target.ok(f"undo {job} --yes")
    left = entries(target.directory, ODD_PREFIX)
    assert {entry.state for entry in left.values()} == {State.TOMBSTONE}
    assert target.ok(f"migrate {path} --overwrite --json").json["updated"] == len(RECORDS) - 1
    assert target.ok(f"migrate compare {path} --json").json["different"] == 0


ANVL = b""":: ark:/99999/fk4one
_target: https://example.org/one
_status: public
_updated: 1500000000
erc.what: The first

:: ark:/99999/fk4two
_target: https://example.org/two
_status: unavailable | withdrawn by author
"""
ARKLET = b"ark,naan,shoulder,assigned_name,url\n99999/fk4one,99999,/fk4,one,https://example.org/one\n"


ARKS = b"ark,url,title\nark:/99999/fk4one,https://example.org/one,One\n"


@pytest.mark.parametrize("content", [ANVL, ARKLET, ARKS], ids=["ezid", "arklet", "arklet without its parts"])
def test_exports_of_ark_services_become_handles(content: bytes, target: Site, tmp_path: Path) -> None:
    path = tmp_path / ("export.anvl" if content is ANVL else "export.csv")
    path.write_bytes(content)
    count = 2 if content is ANVL else 1
    assert target.ok(f"migrate {path} --prefix 20.500.777 --json").json["created"] == count
    shown = target.ok("resolve 20.500.777/fk4one").out
    assert "https://example.org/one" in shown
    assert "ark:/99999/fk4one" in shown
    assert target.ok(f"migrate {path} --prefix 20.500.777 --json").json["unchanged"] == count
    assert target.ok(f"migrate compare {path} --prefix 20.500.777 --json").json["records"] == count


def test_columns_that_have_no_meaning_are_for_an_import(target: Site, tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_bytes(b"ark,url,shelf\n99999/fk4one,https://example.org/one,7b\n")
    refused(target(f"migrate {path} --prefix 20.500.777"), "'shelf'", "--map COLUMN=TYPE", code=1)


def test_records_that_cannot_be_read_are_reported_whatever_prefix_is_copied(target: Site, tmp_path: Path) -> None:
    path = tmp_path / "export.anvl"
    path.write_bytes(ANVL + b"\n:: ark:/99999/fk4three\n_target: https://example.org/three\nlocal.shelf: 7b\n")
    for command in ("migrate", "migrate compare"):
        done = target(f"{command} {path} --prefix 20.500.777")
        assert (done.code, "local.shelf: The field is unknown. (7b)" in done.shown) == (4, True), command


def test_an_unavailable_identifier_is_imported_with_its_reason(target: Site, tmp_path: Path) -> None:
    path = tmp_path / "export.anvl"
    path.write_bytes(ANVL)
    target.ok("namespace add 20.500.777 --profile free")
    target.ok(f"import {path} --prefix 20.500.777 --yes")
    assert "withdrawn by author" in target("resolve 20.500.777/fk4two").out


def test_a_batch_file_is_copied_and_other_operations_are_reported(target: Site, tmp_path: Path) -> None:
    path = tmp_path / "old.batch"
    path.write_text("CREATE 20.500.777/x\n1 URL 86400 1110 UTF8 https://example.org/\n\nDELETE 20.500.777/y\n")
    done = target(f"migrate {path} --prefix 20.500.777 --json")
    issue, summary = map(json.loads, done.out.splitlines())
    assert (done.code, issue["handle"], summary["created"]) == (4, "20.500.777/y", 1)
    with Installation.open(target.directory, writable=False) as installation, installation.log.open_reader() as reader:
        entry = reader.all_names("20.500.777/x").__next__()
    assert entry.record() == (Value(1, "URL", b"https://example.org/", permissions=Permission(0x0E)),)
    refused(target(f"migrate {tmp_path / 'nothing.json'}"), "Use HOST:PORT", code=1)


def test_prefixes_that_are_not_hosted_here_are_named(target: Site, tmp_path: Path) -> None:
    path = tmp_path / "old.batch"
    created = "".join([f"CREATE {name}\n1 URL 86400 1110 UTF8 https://example.org/\n\n" for name in ("77/x", "78/x")])
    path.write_text(f"HOME 192.0.2.1:2641:TCP\n0.NA/77\n\n{created}")
    for option in ("--dry-run", ""):
        done = target.ok(f"migrate {path} {option}")
        assert "not hosted here  78\n" in done.out
        assert "perseid namespace add 78 --profile free\n" in done.err
    done = target(f"migrate compare {path} --json")
    assert (done.code, done.json["missing"], done.json["prefixes_not_hosted"]) == (4, 0, ["78"])
    summary = target.ok(f"migrate {path} --prefix 78 --json").json
    assert (summary["prefixes"], summary["prefixes_not_hosted"]) == (["0.NA/78"], [])
    target.ok(f"migrate compare {path}")
    target.ok("resolve 78/X")


@pytest.mark.parametrize("size", [1, 500], ids=["several steps", "one step"])
def test_of_names_that_are_one_handle_here_always_the_same_is_kept(
    target: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(migration, "STEP_SIZE", size)
    path = tmp_path / "case.json"
    value = '{"values": [{"index": 1, "type": "URL", "data": "https://%s.example/"}]}'
    records = ", ".join([f'"20.500.777/{name}": {value % name}' for name in ("xY", "xy", "b", "XY")])
    path.write_text(f'{{"homedPrefixes": ["0.NA/20.500.777"], "handleRecords": {{{records}}}}}')
    for created, unchanged in ((2, 0), (0, 2), (0, 2)):
        *rejected, counts = [json.loads(line) for line in target(f"migrate {path} --json").out.splitlines()]
        assert [each["handle"] for each in rejected] == ["20.500.777/XY", "20.500.777/xy"], "the first one is kept"
        assert all("same handle here as 20.500.777/x" in each["reason"].lower() for each in rejected)
        assert [counts[name] for name in ("created", "unchanged", "updated", "rejected")] == [created, unchanged, 0, 2]
        assert "https://xY.example/" in target.ok("resolve 20.500.777/XY").out


def test_only_what_its_own_source_has_deleted_is_deleted_here(target: Site, tmp_path: Path) -> None:
    def write(name: str, *records: str) -> Path:
        path = tmp_path / name
        path.write_text(f'{{"homedPrefixes": ["0.NA/20.500.777"], "handleRecords": {{{", ".join(records)}}}}}')
        return path

    def record(name: str, index: int | str = 1) -> str:
        value = f'{{"index": {index}, "type": "URL", "data": "https://example.org/"}}'
        return f'"20.500.777/{name}": {{"values": [{value}]}}'

    one = write("one.json", record("a"), record("b"))
    two = write("two.json", record("c"), record("d"))
    assert target.ok(f"migrate {one} --json").json["created"] == 2
    done = target.ok(f"migrate {two} --json").json
    assert (done["created"], done["deleted"]) == (2, 0), "those of the other file stay"
    (tmp_path / "server").mkdir()
    done = target.ok(f"migrate {write('server/two.json', record('e'))} --json").json
    assert (done["source"], done["created"], done["deleted"]) == ("two.json", 1, 0), "it is a different file"
    assert done["kept"] == {str(one): 2, str(two): 2}, "the path of a file is its identity"
    # A record that cannot be read any more may be any of those that are missing.
    write("two.json", record("d", '"x"'))
    done = json.loads(target(f"migrate {two} --json").out.splitlines()[-1])
    assert (done["rejected"], done["deleted"]) == (1, 0)
    write("two.json", record("d"))
    assert target.ok(f"migrate {two} --json").json["deleted"] == 1
    write("two.json")
    refused(target(f"migrate {two}"), "has none of the records that were migrated", "--delete-many", code=1)
    assert [*entries(target.directory, "20.500.777")] == [f"20.500.777/{name}" for name in "abde"]
    # A file with another name can replace one, which has to be said.
    three = write("three.json", record("a"))
    done = target(f"migrate {three} --dry-run")
    assert "Kept 3 records from another source that three.json lacks" in done.err
    assert f"add: --continue {one} --continue {two}" in done.err
    assert target.ok(f"migrate {three} --continue {os.path.relpath(one)} --json").json["deleted"] == 1
    assert [*entries(target.directory, "20.500.777")] == [f"20.500.777/{name}" for name in "ade"]
    names = ["x" * MAX_SOURCE_LENGTH + end for end in ("", "a", "b")] + ["\udcff", "\udcfe", "\x1b"]
    assert len({make_note(source) for source in names}) == 6, "what is not shown counts, too"
    assert all(make_note(source).isprintable() for source in names)

"""`export`: records in every format, in files that are complete or do not exist."""

import io
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perseid.bulk import export
from perseid.bulk.formats import ReadOptions
from perseid.bulk.rows import open_rows
from perseid.registry.queries import export as exports
from perseid.schema.imports import ImportRow
from tests.cli.installation import Site, refused, site

ROUNDS = 3
"""How often an export is killed."""


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345", "--profile", "free")
    installation.ok("create 12345/a --url https://www.example.org/a --value 'DESC==1+1' --value EMAIL!private=x@y.z")
    installation.ok(
        "create 12345/B --value 10320/loc=@-", stdin=b'<locations><location href="https://b.example/"/></locations>'
    )
    installation.ok("reserve 12345/c")
    installation.ok("create 12345/d --url https://www.example.org/d")
    installation.ok("tombstone 12345/d --reason 'Withdrawn, \"really\"'")
    return installation


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_records_are_exported_in_the_order_of_their_handles(here: Site, tmp_path: Path) -> None:
    done = here.ok("export 12345")
    records = lines(done.out)
    assert [(each["handle"], each["state"]) for each in records] == [
        *(("12345/a", "published"), ("12345/B", "published"), ("12345/c", "reserved"), ("12345/d", "tombstone"))
    ]
    resolved = here.ok("resolve 12345/a --private --json").json
    assert records[0]["values"] == resolved["values"]
    file = tmp_path / "all.jsonl"
    summary = here.ok(f"export 12345 -o {file} --json").json
    assert file.read_text() == done.out
    assert summary == {"format": "jsonl", "records": 4, "bytes": len(done.out.encode()), "as_of": 9, "file": str(file)}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert here.lines(f"export 12345 -o {file}") == [
        f"file         {file}",
        "records      4",
        f"size         {len(done.out.encode()):,} bytes",
        "as of entry  9",
    ]
    assert [each["handle"] for each in lines(here.ok("export --host www.example.org").out)] == ["12345/a"]
    assert lines(here.ok("export --type EMAIL").out) == records[:1]
    assert "0.NA/12345" in [each["handle"] for each in lines(here.ok("export").out)]


def test_private_values_need_the_permission(here: Site) -> None:
    done = here("export 12345 --as 300:0.NA/99999")
    assert done.code == 4
    assert "perseid find --prefix 12345 --owner" in done.err
    assert here.ok("export --as 300:0.NA/99999").out == ""


def test_table_is_neutralized_and_read_back(here: Site) -> None:
    table = here.ok("export 12345 --format csv").out.replace("\r\n", "\n")
    assert table.startswith("handle,state,index,type,data,format,permissions,ttl,timestamp,references\n")
    assert "12345/a,published,2,DESC,'=1+1,string,1110," in table
    assert "12345/c,reserved,,,,,,,," not in table  # a reserved handle has an administrator
    raw = here.ok("export 12345 --format csv --raw").out
    assert "12345/a,published,2,DESC,=1+1,string,1110," in raw
    for text, is_raw in ((table, False), (raw, True)):
        rows = list(open_rows(io.BytesIO(text.encode()), "back.csv", ReadOptions(raw=is_raw)))
        assert all(isinstance(row, ImportRow) for row in rows)
        assert [(row.handle, row.state) for row in rows if isinstance(row, ImportRow)] == [
            *(("12345/a", "published"), ("12345/B", "published"), ("12345/c", "reserved"), ("12345/d", "tombstone"))
        ]


def test_batch_file_has_public_records_and_says_what_it_lacks(here: Site) -> None:
    done = here.ok("export 12345 --format batch")
    rows = list(open_rows(io.BytesIO(done.out.encode()), "back.batch"))
    assert [row.handle for row in rows if isinstance(row, ImportRow)] == ["12345/a", "12345/B", "12345/d"]
    assert "1 URL 86400 1110 UTF8 https://www.example.org/a\n" in done.out
    assert done.err.startswith("A batch file cannot express 1 record or value: unpublished records,")
    assert here.ok("export 12345 --format jsonl").err.startswith("Exported 4 records (")


def test_history_and_earlier_times_are_exported(here: Site) -> None:
    before = here.ok("export 12345").out
    then = here.ok("set 12345/a URL=https://new.example/ --json").json["seq"] - 1
    here.ok("delete 12345/a")
    assert here.ok(f"export 12345 --at {then}").out == before
    versions = lines(here.ok("export 12345 --history").out)
    assert [each["action"] for each in versions if each["handle"] == "12345/a"] == ["delete", "update", "create"]
    assert versions[0]["state"] == "deleted"
    refused(here("export 12345 --history --format csv"), "The format csv has no history", code=2)
    assert here("export 12345 --at 9999").code == 2


def test_options_that_make_no_sense_are_refused(here: Site, tmp_path: Path) -> None:
    assert here("export 12345 --json").code == 2
    for options in ("--raw", "--raw --format batch"):
        refused(here(f"export 12345 {options}"), "has no cells that could be raw", code=2)
    assert here("export 99999").code == 3
    assert here("export", "12345/x").code == 2
    assert here(f"export 12345 -o {tmp_path}/missing/file").code == 1


def test_failed_export_leaves_the_old_file(here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out" / "records.jsonl"
    assert f"perseid: {file}: No such file" in here(f"export 12345 -o {file}").err
    file.parent.mkdir()
    file.write_text("old")
    monkeypatch.setattr(exports, "MAX_RECORDS", 1)
    wanted = exports.read_slice
    calls: list[int] = []

    def fail(*arguments: object) -> object:
        calls.append(1)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return wanted(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("perseid.bulk.export.read_slice", fail)
    assert here(f"export 12345 -o {file}").code == 1
    assert len(calls) == 3
    assert [path.name for path in file.parent.iterdir()] == ["records.jsonl"]
    assert file.read_text() == "old"


def test_killed_export_leaves_no_half_file(here: Site, tmp_path: Path) -> None:
    """The export waits on a pipe that a test holds, so that it is killed in the middle."""
    for number in range(ROUNDS):
        file = tmp_path / f"{number}.jsonl"
        script = (
            "import perseid.bulk.export as e, perseid.registry.queries.export as q, time, sys\n"
            "q.MAX_RECORDS = 1\n"
            "real, calls = e.read_slice, []\n"
            "def slow(*a):\n"
            "    calls.append(1)\n"
            f"    if len(calls) > {number % 4}: print('now', flush=True); time.sleep(60)\n"
            "    return real(*a)\n"
            "e.read_slice = slow\n"
            f"sys.argv = ['perseid', 'export', '12345', '-o', {str(file)!r}, '-d', {str(here.directory)!r}]\n"
            "from perseid.cli import main\n"
            "main()\n"
        )
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ})
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        process.stdout.close()
        assert not file.exists()
        left = list(tmp_path.glob(".*.part"))
        assert len(left) == (number > 0), "the first one was killed before it wrote anything"
        for path in left:
            os.utime(path, (0, 0))
        here.ok(f"export 12345 -o {file}")
        assert len(file.read_text().splitlines()) == 4
        assert list(tmp_path.glob(".*.part")) == [], "the next export removes what is left"


def test_export_leaves_files_that_are_being_written(here: Site, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    with export.open_atomically(file) as other:
        (partial,) = tmp_path.glob(".records.jsonl.*.part")
        os.utime(partial, (0, 0))
        here.ok(f"export 12345 -o {file}")
        other.write(b"later")
    assert file.read_bytes() == b"later"
    (tmp_path / ".records.jsonl.new.part").touch()
    here.ok(f"export 12345 -o {file}")
    assert sorted(path.name for path in tmp_path.glob("*records*")) == [".records.jsonl.new.part", "records.jsonl"]

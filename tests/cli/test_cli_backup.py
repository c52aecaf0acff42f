"""`backup`, `restore`, `rebuild`, `check`, `key`: maintain an installation through data loss and crashes."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perseid.compiled import ABSENT
from perseid.ledger.errors import ClockError
from perseid.ledger.log.clock import CheckedClock
from perseid.ledger.views.answers import Answers
from perseid.registry.installation.installation import NEXT_CHECKPOINT_KEY
from perseid.registry.installation.restoration import find_max_ahead
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from tests import postgres
from tests.cli.installation import Site, call, refused, site
from tests.cli.program import ENVIRON, PERSEID, run

KEY_FILES = ["checkpoint.key", "https.pem", "privkey.bin", "pubkey.bin"]
COUNTER_POLICY = b'profile = "own"\nscheme = "pattern:TR-dddd"\ncase = "insensitive"\n'


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    installation.ok("create 12345/x --url https://example.org/a")
    return installation


@pytest.fixture
def with_counter(here: Site) -> Site:
    """An installation with a namespace that mints from a counter, and three identifiers of it."""
    here.ok("namespace add 12346 --policy -", stdin=COUNTER_POLICY)
    here.ok("mint 12346 --count 3")
    return here


@pytest.fixture
def restored(with_counter: Site, tmp_path: Path) -> Site:
    """The installation `with_counter`, restored from a backup."""
    with_counter.ok(f"backup {tmp_path}/full")
    installation = Site(tmp_path / "again")
    installation.ok(f"restore {tmp_path}/full")
    return installation


def count_entries(of: Site) -> int:
    return len(of.lines("log"))


def _keys(of: Site, purpose: str = "checkpoint") -> list[dict[str, Any]]:
    """The listed keys for a purpose."""
    documents = [json.loads(line) for line in of.lines("key list --json")]
    return [document for document in documents if document["purpose"] == purpose]


# Backup


def test_backup_prints_file_entries_and_size(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "full"
    done = here.ok(f"backup {path}")
    assert done.err == ""
    assert done.out.splitlines() == [
        f"file      {path}",
        "contents  ledger only, not encrypted, without settings and keys",
        f"entries   1 to {count_entries(here)}",
        f"size      {path.stat().st_size:,} bytes",
        f"next      perseid backup FILE --since {count_entries(here)}",
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    document = here.ok(f"backup {tmp_path}/more --since 3 --json").json
    assert set(document) == {"file", "since", "until", "full", "origin", "size", "created_at"}
    assert (document["since"], document["until"]) == (3, count_entries(here))
    assert "entries   none" in here.lines(f"backup {tmp_path}/none --since {count_entries(here)}")


def test_backup_does_not_overwrite_a_file(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "full"
    path.write_text("precious")
    done = run("backup", str(path), "-d", str(here.directory))
    assert (done.code, done.out) == (1, "")
    assert done.err == f"perseid: {path} already exists; choose another file name\n"
    assert path.read_text() == "precious"


def test_missing_folder_is_named_without_the_temporary_file(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "full"
    done = run("backup", str(path), "-d", str(here.directory))
    assert (done.code, done.out) == (1, "")
    assert str(path) in done.err
    assert "partial" not in done.err


def test_invalid_backup_requests_are_refused(here: Site, tmp_path: Path) -> None:
    refused(here(f"backup {tmp_path}/b --since 999"), "Entry 999 does not exist", code=1)
    assert run("backup", str(tmp_path / "none" / "b"), "-d", str(here.directory)).code == 1
    assert here(f"backup {tmp_path}/b --since -1").code == 2
    assert here("backup").code == 2
    assert not (tmp_path / "b").exists()


def test_backup_to_standard_output_can_be_restored(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "piped"
    with path.open("wb") as file:
        done = subprocess.run(
            [PERSEID, "backup", "-", "-d", here.directory], stdout=file, stderr=subprocess.PIPE, env=ENVIRON, check=True
        )
    assert done.stderr == b""
    assert call("restore", str(path), "-d", str(tmp_path / "again")).code == 0


def test_backup_is_not_printed_to_a_terminal(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.cli.backup.sys", _Terminal())
    refused(here("backup -"), "not printed to a terminal", code=1)


class _Terminal:
    """A `sys` module whose standard output is a terminal."""

    @property
    def stdout(self) -> Any:
        return self

    def isatty(self) -> bool:
        return True


# Restore


def test_restored_installation_has_the_same_history_and_a_new_origin(here: Site, tmp_path: Path) -> None:
    old = _keys(here)[0]["key"]
    here.ok(f"backup {tmp_path}/full")
    here.ok("set 12345/x URL=https://example.org/b")
    here.ok(f"backup {tmp_path}/more --since {count_entries(here) - 1}")
    restored = Site(tmp_path / "again")
    done = restored.ok(f"restore {tmp_path}/full {tmp_path}/more --json")
    document = done.json
    assert set(document) == {"directory", "entries", "seq", "origin", "key", "continues", "closed", "files"}
    assert (document["entries"], document["seq"]) == (count_entries(here), count_entries(here) + 1)
    assert document["continues"] == {"origin": old.partition("+")[0], "size": count_entries(here), "key": old}
    assert document["origin"].startswith(f"{old.partition('+')[0]}/restored-")
    assert document["key"].startswith(f"{document['origin']}+")
    assert _keys(restored)[-1]["key"] == document["key"]
    assert restored.lines("history 12345/x") == here.lines("history 12345/x")
    assert restored.lines("verify --all")[0] == f"valid  {count_entries(here) + 1} entries, and the views"
    assert (restored.directory / "keys" / "checkpoint.key").stat().st_mode & 0o777 == 0o600
    assert restored.directory.stat().st_mode & 0o777 == 0o700
    restored.ok("create 12345/y --url https://example.org/y")
    last = restored.ok("log --json --since 0").out.splitlines()[document["seq"] - 1]
    assert json.loads(last)["action"] == "branch"


def test_restore_prints_a_summary(restored: Site, tmp_path: Path) -> None:
    path = tmp_path / "third"
    done = call("restore", str(tmp_path / "full"), "-d", str(path))
    lines = done.out.splitlines()
    assert [line.split("  ")[0] for line in lines[:5]] == ["restored", "directory", "settings", "new origin", "new key"]
    assert lines[2].endswith("perseid.toml (defaults; copy yours over it)")
    assert lines[5:] == ["minting under 12346 is closed until: perseid restore --reopen 12346 --last HANDLE"]
    assert "The server has a new key." in done.err
    assert restored.lines("key list")[-1].endswith(")")


def test_restore_uses_the_settings_file(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    restored = Site(tmp_path / "again")
    restored.ok(f"restore {tmp_path}/full --settings {here.directory}/perseid.toml")
    assert (restored.directory / "perseid.toml").read_bytes() == (here.directory / "perseid.toml").read_bytes()
    bad = tmp_path / "bad.toml"
    bad.write_text("nonsense = 1\n")
    refused(call("restore", str(tmp_path / "full"), "--settings", str(bad), "-d", str(tmp_path / "c")), code=1)
    assert not (tmp_path / "c").exists()


def test_failed_restore_leaves_no_files(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    here.ok(f"backup {tmp_path}/increment --since 3")
    content = bytearray((tmp_path / "full").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    (tmp_path / "short").write_bytes((tmp_path / "full").read_bytes()[:-40])
    (tmp_path / "foreign").write_text("something else\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    for name, words in (
        ("damaged", "damaged"),
        ("short", "incomplete"),
        ("foreign", "not a ledger backup"),
        ("increment", "name the backups with entries 1 to 3 before it"),
    ):
        refused(call("restore", str(tmp_path / name), "-d", str(tmp_path / "again")), words, code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert run("restore", str(tmp_path / "none"), "-d", str(tmp_path / "again")).code == 1


def test_restore_into_a_directory_in_use_is_refused(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    refused(here(f"restore {tmp_path}/full"), "already contains an installation", code=1)
    full = tmp_path / "things"
    full.mkdir()
    (full / "thing").touch()
    refused(call("restore", str(tmp_path / "full"), "-d", str(full)), "is not empty", code=1)
    (full / "thing").unlink()
    assert call("restore", str(tmp_path / "full"), "-d", str(full)).code == 0


def test_killed_restore_leaves_no_installation(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    restored = tmp_path / "again"
    killed = _run_and_kill(PLACED, "restore", str(tmp_path / "full"), "-d", str(restored))
    assert killed == -signal.SIGKILL
    assert not restored.exists()
    assert call("restore", str(tmp_path / "full"), "-d", str(restored)).code == 0


def test_ledger_is_restored_into_a_database(with_counter: Site, tmp_path: Path) -> None:
    with_counter.ok(f"backup {tmp_path}/full")
    database = postgres._shared().database().replace("postgresql+psycopg", "postgresql")
    environ = {"PERSEID_LEDGER_DATABASE": database}
    restored = Site(tmp_path / "again")
    done = restored(f"restore {tmp_path}/full", environ=environ)
    assert done.code == 0, done
    assert not (restored.directory / "ledger.db").exists()
    assert restored("check", environ=environ).code == 1  # the counter is closed
    assert restored("restore --reopen 12346 --last 12346/TR-0002", environ=environ).code == 0
    assert restored("check", environ=environ).code == 0
    assert restored("mint 12346", environ=environ).out == "12346/TR-0003\n"
    done = Site(tmp_path / "third")(f"restore {tmp_path}/full", environ=environ)
    refused(done, "perseid: postgresql://", "already contains a ledger", code=1)
    assert not (tmp_path / "third").exists()


# Counters after a restore


def test_minting_from_a_counter_stays_closed_until_it_is_reopened(restored: Site) -> None:
    done = restored("mint 12346")
    refused(done, "Minting under 12346 is suspended", "perseid restore --reopen 12346 --last HANDLE", code=1)
    explained = restored("explain mint 12346")
    assert (explained.code, explained.out.splitlines()[1]) == (1, done.err.splitlines()[1])
    assert explained.out.startswith("refused: Minting under 12346 is suspended")
    assert restored.lines("mint 12345")
    assert restored.lines("restore --reopen 12346 --last 12346/tr-0417") == ["minting continues after  12346/TR-0417"]
    assert restored.lines("mint 12346") == ["12346/TR-0418"]
    refused(restored("restore --reopen 12346 --last 12346/TR-0500"), "is not suspended", code=1)


def test_counter_is_reopened_with_a_number(restored: Site) -> None:
    done = restored("restore --reopen 12346 --last 1")
    assert done.code == 2
    assert "up to 12346/TR-0002" in done.err
    document = restored.ok("restore --reopen 12346 --last 2 --json").json
    assert document == {"prefix": "12346", "last": 2, "last_handle": "12346/TR-0002"}
    assert restored.lines("mint 12346") == ["12346/TR-0003"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--reopen 12346", 2),
        ("--last 5", 2),
        ("file --reopen 12346 --last 5", 2),
        ("", 2),
        ("--reopen 12346 --last many", 2),
        ("--reopen 12346 --last 12345/TR-0005", 2),
        ("--reopen 12346 --last 12346/bogus", 2),
        ("--reopen 12345 --last 5", 1),
        ("--reopen 99999 --last 5", 1),
        ("--reopen 0.NA --last 5", 2),
    ],
)
def test_invalid_reopen_options_are_refused(restored: Site, options: str, code: int) -> None:
    done = restored(f"restore {options}")
    assert (done.code, done.out) == (code, ""), done


def test_largest_max_ahead_of_all_policies_is_found(here: Site, tmp_path: Path) -> None:
    here.ok("namespace add 12346 --policy -", stdin=b'profile = "pilin"\nauthority = false\nmax_ahead = 7200000\n')
    here.ok("namespace policy 12346 --file -", stdin=b'profile = "pilin"\nauthority = false\nmax_ahead = 1000\n')
    here.ok("create 12345/0.SITE/POLICY/1 --value DESC=0.SITE/POLICY/")
    here.ok(f"backup {tmp_path}/full")
    assert find_max_ahead([tmp_path / "full"]) == 7_200_000


# Rebuild


def test_rebuild_creates_the_views_again(here: Site) -> None:
    entries = f"{count_entries(here):,} entries"
    assert here.lines("rebuild") == [f"records  {entries}", f"search   {entries}", f"answers  {entries}"]
    for view in ("answers", "records", "search"):
        assert here.ok(f"rebuild {view} --json").json == {"view": view, "entries": count_entries(here)}
    assert here("rebuild entries").code == 2
    here.ok("verify --all")


@pytest.mark.parametrize("view", ["records", "search"])
def test_rebuild_repairs_a_damaged_view(here: Site, view: str) -> None:
    _sql(here, f"DELETE FROM {view}")
    assert here("verify --all").code == 1
    (finding,) = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert "perseid rebuild" in finding["advice"]
    here.ok("rebuild")
    here.ok("verify --all")
    here.ok("check")


def test_rebuild_reports_full_storage(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "rebuild", lambda *_: False)
    refused(here("rebuild answers"), "storage is full", code=1)


# Check


def _findings(of: Site, code: int = 0, options: str = "") -> list[dict[str, str]]:
    done = of(f"check --json {options}")
    assert done.code == code, done
    assert done.json["ok"] is (code == 0)
    found: list[dict[str, str]] = done.json["findings"]
    assert all(set(finding) == {"about", "level", "message", "advice"} for finding in found)
    return found


def _sql(of: Site, statement: str, *parameters: object) -> None:
    with sqlite3.connect(of.directory / "ledger.db") as connection:
        connection.execute(statement, parameters)
    connection.close()


def test_check_of_a_healthy_installation(here: Site) -> None:
    done = here.ok("check")
    assert done.err == ""
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        *(["ok", about] for about in ("directory", "settings", "server", "http", "ports", "ports", "ports")),
        *(["ok", about] for about in ("compiled", "clock", "keys", "ledger", "answers", "policy")),
    ]
    assert f"{count_entries(here)} entries are valid" in done.out
    quick = here.ok("check --quick").out
    assert "not verified" in quick
    assert "their records and URLs were not checked (--quick)" in quick


def test_check_says_how_public_resolution_runs(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolution(**environ: str) -> str:
        done = here("check --quick", environ=environ)
        return " ".join(re.findall(r"^(?:ok|note) +compiled .*(?:\n  .*)*", done.out, re.MULTILINE)[0].split())

    networks = ",".join(f"10.0.{number}.0/24" for number in range(256))
    assert "runs compiled (LMDB 0.9." in resolution(PERSEID_LIMITS_EXEMPT_NETWORKS=networks)
    many = resolution(PERSEID_LIMITS_EXEMPT_NETWORKS=f"{networks},192.0.2.1")
    assert many.startswith(
        "note compiled public resolution over UDP and TCP runs in Python (limits.exempt_networks has 257 "
    )
    assert "combine networks in limits.exempt_networks; to do without it, set native.compiled to false" in many
    off = "ok compiled public resolution over UDP and TCP runs in Python (native.compiled is false)"
    assert resolution(PERSEID_NATIVE_COMPILED="false") == off
    library = "liblmdb.so.0: cannot open shared object file: No such file or directory"
    fixes = {ABSENT: "make wheel COMPILED=1", library: "install the Debian package liblmdb0"}
    for problem, fix in fixes.items():
        for module in ("perseid.compiled", "perseid.cli.check"):
            monkeypatch.setattr(f"{module}.PROBLEM", problem)
        missing = resolution()
        expected = f"note compiled public resolution over UDP and TCP runs in Python (compiled module: {problem})"
        assert missing.startswith(expected)
        assert fix in missing
    assert resolution(PERSEID_NATIVE_COMPILED="false") == off
    monkeypatch.undo()
    monkeypatch.setattr("perseid.cli.check.has_several_servers", lambda _: True)
    expected = "ok compiled public resolution over UDP and TCP runs in Python (the site has several servers)"
    assert resolution() == expected


def test_check_without_an_installation_is_refused(tmp_path: Path) -> None:
    refused(call("check", "-d", str(tmp_path)), "No installation in", code=1)


def _wrong_mode(of: Site) -> None:
    of.directory.chmod(0o777)


def _readable(of: Site) -> None:
    of.directory.chmod(0o755)
    (of.directory / "ledger.db").chmod(0o644)


def _open_key(of: Site) -> None:
    (of.directory / "keys" / "checkpoint.key").chmod(0o644)


def _no_key(of: Site) -> None:
    (of.directory / "keys" / "checkpoint.key").unlink()


def _other_key(of: Site) -> None:
    of.ok("key rotate checkpoint")
    path = of.directory / "keys" / "checkpoint.key"
    path.write_text(f"{'00' * 32} {path.read_text().split()[1]}\n")


def _never_used_key(of: Site) -> None:
    path = of.directory / "keys" / "checkpoint.key"
    path.write_text(f"{'00' * 32} {path.read_text().split()[1]}\n")


def _bad_settings(of: Site) -> None:
    (of.directory / "perseid.toml").write_text("nonsense = 1\n")


def _no_ledger(of: Site) -> None:
    (of.directory / "ledger.db").unlink()


def _changed_entry(of: Site) -> None:
    _sql(of, "UPDATE entries SET at = at + 1 WHERE seq = 2")


@pytest.mark.parametrize(
    ("damage", "about", "words"),
    [
        (_wrong_mode, "directory", "chmod 0700"),
        (_readable, "directory", "chmod -R go="),
        (_open_key, "directory", "chmod -R go="),
        (_no_key, "keys", "restore the key from your copy"),
        (_other_key, "keys", "restore the key from your copy"),
        (_never_used_key, "keys", "restore the key from your copy"),
        (_bad_settings, "settings", "nonsense"),
        (_no_ledger, "ledger", "restore a backup"),
        (_changed_entry, "ledger", "restore the last good backup"),
    ],
)
def test_check_reports_damage_and_how_to_fix_it(
    here: Site, damage: Callable[[Site], None], about: str, words: str
) -> None:
    here.ok("check")
    damage(here)
    errors = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert errors[0]["about"] == about
    assert words in errors[0]["message"] + errors[0]["advice"]


def test_check_prints_errors_with_advice(here: Site) -> None:
    _changed_entry(here)
    done = here("check")
    assert done.code == 1
    *_, wrong, advice, note = done.out.splitlines()
    assert wrong == "error  ledger     entry 2 does not match its leaf hash"
    assert advice == "                  restore the last good backup: perseid restore"
    assert note.startswith("note   views      not checked")


def test_check_reports_a_wrong_clock(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ClockError("the clock is 99 s behind the last entry of the ledger")

    monkeypatch.setattr(CheckedClock, "date", refuse)
    (finding,) = [finding for finding in _findings(here, code=1, options="--quick") if finding["level"] == "error"]
    assert finding["about"] == "clock"
    assert "set the clock" in finding["advice"]


def test_check_notes_an_unknown_variable(here: Site) -> None:
    done = here("check --json", environ={"PERSEID_NATIVE_PROT": "1"})
    assert done.code == 0
    (note,) = [finding for finding in done.json["findings"] if finding["level"] == "note"]
    assert "PERSEID_NATIVE_PORT" in note["message"]


def test_check_reports_differences_in_answers(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "differences", lambda *_: "handles 12345/X")
    (finding,) = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert "perseid rebuild answers" in finding["advice"]
    monkeypatch.setattr(Answers, "catch_up", lambda *_: False)
    (finding,) = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert "free disk space" in finding["advice"]


def test_check_notes_a_restored_ledger(restored: Site) -> None:
    found = _findings(restored, code=1)
    (note,) = [finding for finding in found if finding["level"] == "note"]
    assert "restored from a backup: continues ledger-" in note["message"]
    (wrong,) = [finding for finding in found if finding["level"] == "error"]
    assert wrong["about"] == "minting"
    assert "(in the backup: 12346/TR-0002), then: perseid restore --reopen 12346 --last HANDLE" in wrong["advice"]
    restored.ok("restore --reopen 12346 --last 12346/TR-0002")
    _findings(restored)


def test_check_counts_urls_that_lead_nowhere(here: Site) -> None:
    here.ok("create 12345/u1 --value URL=javascript:alert(1) --value URL=notaurl")
    here.ok("create 12345/u2 --value URL=notaurl")
    (note,) = [finding for finding in _findings(here) if finding["level"] == "note"]
    assert note["about"] == "urls"
    start = "12345: 3 URL values are not URLs to redirect to; the first is value 1 of 12345/u1, which has the"
    assert note["message"].startswith(start)
    assert note["message"].endswith("; others: 12345/u2")


def test_check_notes_records_that_violate_the_current_policy(here: Site) -> None:
    violating = sorted(here.lines("mint 12345 --count 11 --value DESC=y"))
    (reserved,) = here.lines("reserve 12345")
    here.ok("namespace policy 12345 --file -", stdin=b'profile = "free"\nrequired_types = ["URL"]\n')
    (note,) = [finding for finding in _findings(here) if finding["level"] == "note"]
    assert note["message"].startswith(f"12345: 11 records violate the current policy; the first is {violating[0]}: ")
    assert note["message"].endswith(f"; others: {', '.join(violating[1:10])}, …")
    assert reserved not in note["message"]
    assert all(finding["level"] == "ok" for finding in _findings(here, options="--quick"))


def test_check_reports_an_unusable_policy(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Policy) -> None:
        raise InvalidPolicy("scheme", "it is not installed here")

    monkeypatch.setattr(Policy, "suffix_scheme", refuse)
    wrong = [finding for finding in _findings(here, code=1, options="--quick") if finding["level"] == "error"]
    assert "perseid namespace policy 12345 --file FILE" in wrong[0]["advice"]


# Keys


def test_key_list_shows_the_checkpoint_key(here: Site) -> None:
    _, line = here.lines("key list")
    assert re.fullmatch(r"checkpoint  ledger-\w+\+[0-9a-f]{8}\+\S+  active, since the beginning", line)
    (document,) = _keys(here)
    assert set(document) == {"purpose", "key", "active", "since", "since_time", "until"}
    assert (document["purpose"], document["active"], document["since"]) == ("checkpoint", True, None)


def test_rotation_replaces_the_checkpoint_key(here: Site) -> None:
    (first,) = [document["key"] for document in _keys(here)]
    second = here.ok("key rotate checkpoint --json").json["key"]
    old, new = _keys(here)
    assert (old["key"], old["active"], old["until"]) == (first, False, new["since"])
    assert (new["key"], new["active"], new["until"]) == (second, True, None)
    assert new["since"] == count_entries(here)
    path = here.directory / "keys" / "checkpoint.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == KEY_FILES
    (line,) = here.lines("key rotate checkpoint")
    assert line.startswith("active key  ")
    here.ok("check")
    here.ok("prove 12345/x")
    assert here("key rotate everything").code == 2


KILL = """
import os, signal, sys
from importlib import import_module
module, _, name = sys.argv[1].rpartition(".")
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(import_module(module), name, die)
sys.argv = ["perseid", *sys.argv[2:]]
from perseid.cli import main
main()
"""


def _run_and_kill(function: str, *arguments: str) -> int:
    """Run a command that is killed when it calls a function."""
    return subprocess.run(
        [sys.executable, "-c", KILL, function, *arguments], env=ENVIRON, capture_output=True, check=False, timeout=60
    ).returncode


PLACED = "perseid.registry.installation.restoration.place"
HALF_WRITTEN = "perseid.cli.keys.write_file"
WRITTEN = "perseid.cli.keys.get_identity"  # called just before the entry is committed
COMMITTED = "perseid.cli.keys._activate_next"


def _kill_rotation(of: Site, function: str) -> None:
    assert _run_and_kill(function, "key", "rotate", "checkpoint", "-d", str(of.directory)) == -signal.SIGKILL
    if function == HALF_WRITTEN:
        path = of.directory / "keys" / NEXT_CHECKPOINT_KEY
        path.write_text("00112233")
        path.chmod(0o600)


@pytest.mark.parametrize("function", [HALF_WRITTEN, WRITTEN, COMMITTED])
def test_killed_rotation_leaves_a_working_key(here: Site, function: str, tmp_path: Path) -> None:
    (trusted,) = [document["key"] for document in _keys(here)]
    _kill_rotation(here, function)
    rotated = len(_keys(here))
    assert rotated == (2 if function == COMMITTED else 1)
    found = _findings(here, code=1 if function == COMMITTED else 0)
    (finding,) = [finding for finding in found if finding["about"] == "keys" and finding["advice"]]
    finish = "finish it with: perseid key rotate checkpoint"
    assert finding["advice"] == (finish if function == COMMITTED else "the next rotation removes it")
    here.ok("set 12345/x URL=https://example.org/b")
    path = tmp_path / "proof.json"
    here.ok(f"prove 12345/x -o {path}")
    assert call("verify", str(path), "--key", trusted).code == 0
    here.ok("key rotate checkpoint")
    here.ok("check")
    assert sorted(each.name for each in (here.directory / "keys").iterdir()) == KEY_FILES
    here.ok("verify --all")


def test_interrupted_rotation_is_finished_by_the_same_command(here: Site) -> None:
    _kill_rotation(here, COMMITTED)
    committed_key = _keys(here)[-1]["key"]
    assert here.ok("key rotate checkpoint --json").json["key"] == committed_key
    assert len(_keys(here)) == 2
    here.ok("check")


def test_key_of_another_ledger_is_not_rotated(here: Site) -> None:
    _never_used_key(here)
    done = here("key rotate checkpoint")
    assert (done.code, done.out) == (1, "")
    assert len(here.lines("log")) == count_entries(here)


def test_other_users_cannot_rotate_keys_or_rebuild(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    other_user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other_user)
    for command in ("key rotate checkpoint", "key rotate server", "rebuild"):
        refused(here(command), "run it as the owner", code=1)

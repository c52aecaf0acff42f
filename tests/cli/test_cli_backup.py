"""`backup`, `restore`, `rebuild`, `check`, `key`: keeping an installation for decades, through losses and crashes."""

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

from perseid.cli._restore import find_max_ahead
from perseid.ledger.errors import ClockError
from perseid.ledger.log.clock import CheckedClock
from perseid.ledger.views.answers import Answers
from perseid.registry.installation.installation import NEXT_CHECKPOINT_KEY
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from tests import postgres
from tests.cli.installation import Site, call, refused, site
from tests.cli.program import ENVIRON, PERSEID, run

KEY_FILES = ["checkpoint.key", "https.pem", "privkey.bin", "pubkey.bin"]
COUNTED = b'profile = "own"\nscheme = "pattern:TR-dddd"\ncase = "insensitive"\n'


@pytest.fixture
def here(tmp_path: Path) -> Site:
    made = site(tmp_path, "--prefix", "12345")
    made.ok("create 12345/x --url https://example.org/a")
    return made


@pytest.fixture
def counted(here: Site) -> Site:
    """With a namespace whose names are counted, and three of them."""
    here.ok("namespace add 12346 --policy -", given=COUNTED)
    here.ok("mint 12346 --count 3")
    return here


@pytest.fixture
def again(counted: Site, tmp_path: Path) -> Site:
    """The same, restored."""
    counted.ok(f"backup {tmp_path}/full")
    made = Site(tmp_path / "again")
    made.ok(f"restore {tmp_path}/full")
    return made


def size(of: Site) -> int:
    return len(of.lines("log"))


def _keys(of: Site, purpose: str = "checkpoint") -> list[dict[str, Any]]:
    """The keys that are listed for a purpose."""
    documents = [json.loads(line) for line in of.lines("key list --json")]
    return [document for document in documents if document["purpose"] == purpose]


# Backup


def test_a_backup_and_what_it_tells(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "full"
    done = here.ok(f"backup {path}")
    assert done.err == ""
    assert done.out.splitlines() == [
        f"file     {path}",
        f"entries  1 to {size(here)}",
        f"size     {path.stat().st_size:,} bytes",
        f"next     perseid backup FILE --since {size(here)}",
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    document = here.ok(f"backup {tmp_path}/more --since 3 --json").json
    assert set(document) == {"file", "since", "until", "origin", "size", "created_at"}
    assert (document["since"], document["until"]) == (3, size(here))
    assert "entries  none" in here.lines(f"backup {tmp_path}/none --since {size(here)}")


def test_a_backup_does_not_take_the_place_of_another(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "full"
    path.write_text("precious")
    done = run("backup", str(path), "-d", str(here.directory))
    assert (done.code, done.out) == (1, "")
    assert done.err == f"perseid: {path} already exists; choose another file name\n"
    assert path.read_text() == "precious"


def test_what_cannot_be_backed_up(here: Site, tmp_path: Path) -> None:
    refused(here(f"backup {tmp_path}/b --since 999"), "entry 999 does not exist", code=1)
    assert run("backup", str(tmp_path / "none" / "b"), "-d", str(here.directory)).code == 1
    assert here(f"backup {tmp_path}/b --since -1").code == 2
    assert here("backup").code == 2
    assert not (tmp_path / "b").exists()


def test_a_backup_through_a_pipe(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "piped"
    with path.open("wb") as file:
        done = subprocess.run(
            [PERSEID, "backup", "-", "-d", here.directory], stdout=file, stderr=subprocess.PIPE, env=ENVIRON, check=True
        )
    assert done.stderr == b""
    assert call("restore", str(path), "-d", str(tmp_path / "again")).code == 0


def test_secrets_are_not_shown_on_a_terminal(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.cli.backup.sys", _Terminal())
    refused(here("backup -"), "not printed to a terminal", code=1)


class _Terminal:
    """A system whose standard output is a terminal."""

    @property
    def stdout(self) -> Any:
        return self

    def isatty(self) -> bool:
        return True


# Restore


def test_a_restored_installation_is_the_same_under_a_new_name(here: Site, tmp_path: Path) -> None:
    old = _keys(here)[0]["key"]
    here.ok(f"backup {tmp_path}/full")
    here.ok("set 12345/x URL=https://example.org/b")
    here.ok(f"backup {tmp_path}/more --since {size(here) - 1}")
    again = Site(tmp_path / "again")
    done = again.ok(f"restore {tmp_path}/full {tmp_path}/more --json")
    document = done.json
    assert set(document) == {"directory", "entries", "seq", "origin", "key", "continues", "closed"}
    assert (document["entries"], document["seq"]) == (size(here), size(here) + 1)
    assert document["continues"] == {"origin": old.partition("+")[0], "size": size(here), "key": old}
    assert document["origin"].startswith(f"{old.partition('+')[0]}/restored-")
    assert document["key"].startswith(f"{document['origin']}+")
    assert _keys(again)[-1]["key"] == document["key"]
    assert again.lines("history 12345/x") == here.lines("history 12345/x")
    assert again.lines("verify --all")[0] == f"valid  {size(here) + 1} entries, and the views"
    assert (again.directory / "keys" / "checkpoint.key").stat().st_mode & 0o777 == 0o600
    assert again.directory.stat().st_mode & 0o777 == 0o700
    again.ok("create 12345/y --url https://example.org/y")
    last = again.ok("log --json --since 0").out.splitlines()[document["seq"] - 1]
    assert json.loads(last)["action"] == "branch"


def test_what_a_restore_tells_people(again: Site, tmp_path: Path) -> None:
    path = tmp_path / "third"
    done = call("restore", str(tmp_path / "full"), "-d", str(path))
    lines = done.out.splitlines()
    assert [line.split("  ")[0] for line in lines[:5]] == ["restored", "directory", "settings", "new origin", "new key"]
    assert lines[2].endswith("perseid.toml (defaults; copy yours over it)")
    assert lines[5:] == ["minting under 12346 is closed until: perseid restore --reopen 12346 --last HANDLE"]
    assert "The server has a new key." in done.err
    assert again.lines("key list")[-1].endswith(")")


def test_settings_of_the_lost_installation_are_used(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    again = Site(tmp_path / "again")
    again.ok(f"restore {tmp_path}/full --settings {here.directory}/perseid.toml")
    assert (again.directory / "perseid.toml").read_bytes() == (here.directory / "perseid.toml").read_bytes()
    bad = tmp_path / "bad.toml"
    bad.write_text("nonsense = 1\n")
    refused(call("restore", str(tmp_path / "full"), "--settings", str(bad), "-d", str(tmp_path / "c")), code=1)
    assert not (tmp_path / "c").exists()


def test_what_cannot_be_restored_leaves_nothing(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    here.ok(f"backup {tmp_path}/increment --since 3")
    octets = bytearray((tmp_path / "full").read_bytes())
    octets[len(octets) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(octets)
    (tmp_path / "short").write_bytes((tmp_path / "full").read_bytes()[:-40])
    (tmp_path / "foreign").write_text("something else\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    for name, words in (
        ("damaged", "damaged"),
        ("short", "incomplete"),
        ("foreign", "not a ledger backup"),
        ("increment", "a full backup"),
    ):
        refused(call("restore", str(tmp_path / name), "-d", str(tmp_path / "again")), words, code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert run("restore", str(tmp_path / "none"), "-d", str(tmp_path / "again")).code == 1


def test_a_directory_that_is_used_is_not_restored_into(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    refused(here(f"restore {tmp_path}/full"), "already contains an installation", code=1)
    full = tmp_path / "things"
    full.mkdir()
    (full / "thing").touch()
    refused(call("restore", str(tmp_path / "full"), "-d", str(full)), "is not empty", code=1)
    (full / "thing").unlink()
    assert call("restore", str(tmp_path / "full"), "-d", str(full)).code == 0


def test_a_restore_that_is_killed_leaves_no_installation(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    again = tmp_path / "again"
    killed = _killed("perseid.cli._restore.place", "restore", str(tmp_path / "full"), "-d", str(again))
    assert killed == -signal.SIGKILL
    assert not again.exists()
    assert call("restore", str(tmp_path / "full"), "-d", str(again)).code == 0


def test_a_ledger_moves_into_a_database(counted: Site, tmp_path: Path) -> None:
    counted.ok(f"backup {tmp_path}/full")
    database = postgres._shared().database().replace("postgresql+psycopg", "postgresql")
    environ = {"PERSEID_LEDGER_DATABASE": database}
    again = Site(tmp_path / "again")
    done = again(f"restore {tmp_path}/full", environ=environ)
    assert done.code == 0, done
    assert not (again.directory / "ledger.db").exists()
    assert again("check", environ=environ).code == 1  # the counter waits
    assert again("restore --reopen 12346 --last 12346/TR-0002", environ=environ).code == 0
    assert again("check", environ=environ).code == 0
    assert again("mint 12346", environ=environ).out == "12346/TR-0003\n"
    done = Site(tmp_path / "third")(f"restore {tmp_path}/full", environ=environ)
    refused(done, "perseid: postgresql://", "already contains a ledger", code=1)
    assert not (tmp_path / "third").exists()


# Counters after a restore


def test_counted_names_wait_until_somebody_says_which_was_the_last(again: Site) -> None:
    done = again("mint 12346")
    refused(done, "the backup ends at 2", "perseid restore --reopen 12346 --last HANDLE", code=1)
    assert again.lines("mint 12345")
    assert again.lines("restore --reopen 12346 --last 12346/tr-0417") == ["minting continues after  12346/TR-0417"]
    assert again.lines("mint 12346") == ["12346/TR-0418"]
    refused(again("restore --reopen 12346 --last 12346/TR-0500"), "is not closed", code=1)


def test_the_last_one_as_a_number(again: Site) -> None:
    refused(again("restore --reopen 12346 --last 1"), "the backup ends at 2", code=1)
    document = again.ok("restore --reopen 12346 --last 2 --json").json
    assert document == {"prefix": "12346", "last": 2, "last_handle": "12346/TR-0002"}
    assert again.lines("mint 12346") == ["12346/TR-0003"]


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
        ("--reopen 0.NA --last 5", 4),
    ],
)
def test_what_does_not_say_where_to_go_on(again: Site, options: str, code: int) -> None:
    done = again(f"restore {options}")
    assert (done.code, done.out) == (code, ""), done


def test_names_go_on_ahead_of_all_that_a_policy_allowed(here: Site, tmp_path: Path) -> None:
    here.ok("namespace add 12346 --policy -", given=b'profile = "pilin"\nauthority = false\nmax_ahead = 7200000\n')
    here.ok("namespace policy 12346 --file -", given=b'profile = "pilin"\nauthority = false\nmax_ahead = 1000\n')
    here.ok("create 12345/0.SITE/POLICY/1 --value DESC=0.SITE/POLICY/")
    here.ok(f"backup {tmp_path}/full")
    assert find_max_ahead([tmp_path / "full"]) == 7_200_000


# Rebuild


def test_views_are_made_anew(here: Site) -> None:
    entries = f"{size(here):,} entries"
    assert here.lines("rebuild") == [f"records  {entries}", f"search   {entries}", f"answers  {entries}"]
    for view in ("answers", "records", "search"):
        assert here.ok(f"rebuild {view} --json").json == {"view": view, "entries": size(here)}
    assert here("rebuild entries").code == 2
    here.ok("verify --all")


@pytest.mark.parametrize("view", ["records", "targets"])
def test_a_view_that_was_damaged_is_mended(here: Site, view: str) -> None:
    _sql(here, f"DELETE FROM {view}")
    assert here("verify --all").code == 1
    (finding,) = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert "perseid rebuild" in finding["advice"]
    here.ok("rebuild")
    here.ok("verify --all")
    here.ok("check")


def test_answers_that_find_no_room_are_told(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_healthy_installation(here: Site) -> None:
    done = here.ok("check")
    assert done.err == ""
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        *(["ok", about] for about in ("directory", "settings", "server", "http", "ports", "ports", "ports")),
        *(["ok", about] for about in ("clock", "keys", "ledger", "answers", "policy")),
    ]
    assert f"{size(here)} entries are valid" in done.out
    assert "not verified" in here.ok("check --quick").out


def test_where_there_is_none(tmp_path: Path) -> None:
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
def test_what_is_wrong_is_found_and_what_to_do_about_it(
    here: Site, damage: Callable[[Site], None], about: str, words: str
) -> None:
    here.ok("check")
    damage(here)
    wrong = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert wrong[0]["about"] == about
    assert words in wrong[0]["message"] + wrong[0]["advice"]


def test_what_is_wrong_is_told_to_people(here: Site) -> None:
    _changed_entry(here)
    done = here("check")
    assert done.code == 1
    *_, wrong, advice, note = done.out.splitlines()
    assert wrong == "error  ledger     entry 2 does not match its leaf hash"
    assert advice == "                  restore the last good backup: perseid restore"
    assert note.startswith("note   views      not checked")


def test_a_wrong_clock(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ClockError("the clock is 99 s behind the last entry of the ledger")

    monkeypatch.setattr(CheckedClock, "date", refuse)
    (finding,) = [finding for finding in _findings(here, code=1, options="--quick") if finding["level"] == "error"]
    assert finding["about"] == "clock"
    assert "set the clock" in finding["advice"]


def test_a_variable_that_sets_nothing_is_a_note(here: Site) -> None:
    done = here("check --json", environ={"PERSEID_NATIVE_PROT": "1"})
    assert done.code == 0
    (note,) = [finding for finding in done.json["findings"] if finding["level"] == "note"]
    assert "PERSEID_NATIVE_PORT" in note["message"]


def test_answers_that_differ(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "differences", lambda *_: "handles 12345/X")
    (finding,) = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert "perseid rebuild answers" in finding["advice"]
    monkeypatch.setattr(Answers, "catch_up", lambda *_: False)
    (finding,) = [finding for finding in _findings(here, code=1) if finding["level"] == "error"]
    assert "free disk space" in finding["advice"]


def test_a_restored_ledger_says_so(again: Site) -> None:
    found = _findings(again, code=1)
    (note,) = [finding for finding in found if finding["level"] == "note"]
    assert "restored from a backup: continues ledger-" in note["message"]
    (wrong,) = [finding for finding in found if finding["level"] == "error"]
    assert wrong["about"] == "minting"
    assert "(in the backup: 12346/TR-0002), then: perseid restore --reopen 12346 --last HANDLE" in wrong["advice"]
    again.ok("restore --reopen 12346 --last 12346/TR-0002")
    _findings(again)


def test_what_a_policy_would_no_longer_allow_is_a_note(here: Site) -> None:
    here.ok("create 12345/y --value DESC=y")
    (reserved,) = here.lines("reserve 12345")
    here.ok("namespace policy 12345 --file -", given=b'profile = "free"\nrequired_types = ["URL"]\n')
    (note,) = [finding for finding in _findings(here) if finding["level"] == "note"]
    assert note["message"].startswith("1 records of 12345 violate the current policy; the first is 12345/y: ")
    assert reserved not in note["message"]
    assert all(finding["level"] == "ok" for finding in _findings(here, options="--quick"))


def test_a_policy_that_cannot_be_used(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Policy) -> None:
        raise InvalidPolicy("scheme", "it is not installed here")

    monkeypatch.setattr(Policy, "suffix_scheme", refuse)
    wrong = [finding for finding in _findings(here, code=1, options="--quick") if finding["level"] == "error"]
    assert "perseid namespace policy 12345 --file FILE" in wrong[0]["advice"]


# Keys


def test_the_keys_of_a_ledger(here: Site) -> None:
    _, line = here.lines("key list")
    assert re.fullmatch(r"checkpoint  ledger-\w+\+[0-9a-f]{8}\+\S+  active, since the beginning", line)
    (document,) = _keys(here)
    assert set(document) == {"purpose", "key", "active", "since", "since_time", "until"}
    assert (document["purpose"], document["active"], document["since"]) == ("checkpoint", True, None)


def test_a_key_takes_the_place_of_another(here: Site) -> None:
    (first,) = [document["key"] for document in _keys(here)]
    second = here.ok("key rotate checkpoint --json").json["key"]
    old, new = _keys(here)
    assert (old["key"], old["active"], old["until"]) == (first, False, new["since"])
    assert (new["key"], new["active"], new["until"]) == (second, True, None)
    assert new["since"] == size(here)
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


def _killed(where: str, *arguments: str) -> int:
    """Run a command that is killed when it comes to a function."""
    return subprocess.run(
        [sys.executable, "-c", KILL, where, *arguments], env=ENVIRON, capture_output=True, check=False, timeout=60
    ).returncode


HALF_WRITTEN = "perseid.cli.keys.write_file"
WRITTEN = "perseid.cli.keys.get_identity"  # called just before the entry is committed
COMMITTED = "perseid.cli.keys._activate_next"


def _rotation_killed_at(of: Site, where: str) -> None:
    assert _killed(where, "key", "rotate", "checkpoint", "-d", str(of.directory)) == -signal.SIGKILL
    if where == HALF_WRITTEN:
        path = of.directory / "keys" / NEXT_CHECKPOINT_KEY
        path.write_text("00112233")
        path.chmod(0o600)


@pytest.mark.parametrize("where", [HALF_WRITTEN, WRITTEN, COMMITTED])
def test_a_rotation_that_is_killed_leaves_a_key_that_works(here: Site, where: str, tmp_path: Path) -> None:
    (trusted,) = [document["key"] for document in _keys(here)]
    _rotation_killed_at(here, where)
    rotated = len(_keys(here))
    assert rotated == (2 if where == COMMITTED else 1)
    found = _findings(here, code=1 if where == COMMITTED else 0)
    (finding,) = [finding for finding in found if finding["about"] == "keys" and finding["advice"]]
    finish = "finish it with: perseid key rotate checkpoint"
    assert finding["advice"] == (finish if where == COMMITTED else "the next rotation removes it")
    here.ok("set 12345/x URL=https://example.org/b")
    path = tmp_path / "proof.json"
    here.ok(f"prove 12345/x -o {path}")
    assert call("verify", str(path), "--key", trusted).code == 0
    here.ok("key rotate checkpoint")
    here.ok("check")
    assert sorted(each.name for each in (here.directory / "keys").iterdir()) == KEY_FILES
    here.ok("verify --all")


def test_the_same_command_again_finishes_a_rotation(here: Site) -> None:
    _rotation_killed_at(here, COMMITTED)
    named = _keys(here)[-1]["key"]
    assert here.ok("key rotate checkpoint --json").json["key"] == named
    assert len(_keys(here)) == 2
    here.ok("check")


def test_a_key_that_is_not_the_ledgers_does_not_hand_over(here: Site) -> None:
    _never_used_key(here)
    done = here("key rotate checkpoint")
    assert (done.code, done.out) == (1, "")
    assert len(here.lines("log")) == size(here)


def test_somebody_else_does_not_rotate(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody_else = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody_else)
    for command in ("key rotate checkpoint", "key rotate server", "rebuild"):
        refused(here(command), "run it as the owner", code=1)

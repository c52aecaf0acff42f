"""`history`, `log`, `prove`, `verify`: show earlier versions, and prove them without a server."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from perseid.cli import _output
from perseid.cli.verify import ACTIONS, STATES, short_time
from perseid.ledger.log import signing
from perseid.ledger.log.entry import Action, State
from perseid.ledger.views.answers import Answers
from perseid.records.encoding import iso_time
from tests.cli.installation import Site, call, refused, site
from tests.cli.program import ENVIRON, PERSEID, finish, run

OTHER_USER = "--as 300:98765/stranger"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
EXACT_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof waits for a tenth of a second, not for a second, until the next checkpoint is signed."""
    monkeypatch.setattr(signing, "INTERVAL", signing.INTERVAL // 10)


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    installation.ok(
        "create 12345/x --url https://example.org/a --value EMAIL!private=a@example.org", "--note", "a beginning"
    )
    installation.ok("set 12345/x URL=https://example.org/b")
    return installation


@pytest.fixture
def key(here: Site) -> str:
    return str(json.loads(here.lines("key list --json")[-1])["key"])


def proof(here: Site, folder: Path, options: str = "") -> Path:
    path = folder / "proof.json"
    here.ok(f"prove 12345/x -o {path} {options}")
    return path


def test_action_and_state_names_match_the_ledger() -> None:
    assert {number: Action(number).name.lower() for number in ACTIONS} == ACTIONS
    assert len(ACTIONS) == len(Action)
    assert {number: State(number).label for number in STATES} == STATES
    assert len(STATES) == len(State)


def test_times_have_microseconds_in_json_and_seconds_in_text() -> None:
    assert iso_time(1_800_000_000_000_001) == "2027-01-15T08:00:00.000001Z"
    assert short_time(1_800_000_000_999_999) == "2027-01-15T08:00:00Z"


# History


def test_history_shows_changes_newest_first(here: Site) -> None:
    here.ok("remove 12345/x 2")
    here.ok("unpublish 12345/x", "--note", "embargo")
    done = here.ok("history 12345/X")
    assert done.err == ""
    normalized = re.sub(TIME, "TIME", re.sub(r"local:\S+", "local:me", done.out))
    last = int(done.out.split()[0])
    assert normalized.splitlines() == [
        f"{last}  TIME  unpublish  by local:me (cli): embargo",
        f"{last - 1}  TIME  update  by local:me (cli)",
        "    - 2  EMAIL!private  a@example.org",
        f"{last - 2}  TIME  update  by local:me (cli)",
        "    - 1  URL  https://example.org/a",
        "    + 1  URL  https://example.org/b",
        f"{last - 3}  TIME  create  by local:me (cli): a beginning",
        "    + 1  URL  https://example.org/a",
        "    + 2  EMAIL!private  a@example.org",
        "    + 100  HS_ADMIN  200:0.NA/12345",
    ]


def test_history_as_json_is_one_document(here: Site) -> None:
    document = here.ok("history 12345/x --json").json
    assert set(document) == {"handle", "versions", "complete", "next"}
    assert (document["handle"], document["complete"]) == ("12345/x", True)
    newest, oldest = document["versions"]
    assert set(oldest) == {"seq", "at", "action", "state", "values", "changed", "interface", "actor", "note"}
    assert (oldest["action"], oldest["state"]) == ("create", "published")
    assert [value["type"] for value in oldest["values"]] == ["URL", "EMAIL", "HS_ADMIN"]
    assert re.fullmatch(EXACT_TIME, newest["at"])
    assert here.ok("history 12345/x --json --limit 1").json["versions"] == [newest]


def test_other_users_see_only_public_history(here: Site) -> None:
    shown = here.ok(f"history 12345/x {OTHER_USER}").out
    assert "https://example.org/a" in shown
    assert "EMAIL" not in shown
    assert "local:" not in shown
    assert "a beginning" not in shown


def test_hidden_versions_are_reported(here: Site) -> None:
    here.ok("namespace add 12346 --policy -", stdin=b'profile = "free"\nshow_past = false\n')
    here.ok("create 12346/x --url https://example.org/a")
    here.ok("set 12346/x URL=https://example.org/b")
    done = here.ok(f"history 12346/x {OTHER_USER}")
    assert "    = 1  URL  https://example.org/b" in done.out.splitlines()
    assert "example.org/a" not in done.out
    assert "Earlier versions are hidden" in done.err
    assert here.ok(f"history 12346/x --json {OTHER_USER}").json["complete"] is False


def test_long_history_is_complete(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.cli.history.MAX_PAGE", 2)
    for number in range(5):
        here.ok(f"set 12345/x URL=https://example.org/{number}")
    assert len(here.ok("history 12345/x --json").json["versions"]) == 7
    page = here.ok("history 12345/x --json --limit 5").json
    assert (len(page["versions"]), page["next"]) == (5, str(page["versions"][-1]["seq"]))
    rest = here.ok(f"history 12345/x --json --limit 2 --after {page['next']}").json
    assert (len(rest["versions"]), rest["next"]) == (2, None)
    assert f"--after {page['next']}" in here.ok("history 12345/x --limit 5").err
    assert sum(bool(re.search(TIME, line)) for line in here.lines("history 12345/x --limit 3")) == 3


def test_control_characters_are_escaped(here: Site) -> None:
    here.ok("create 12345/y --value", "DESC=\x1b[2Jgone\u202e", "--note", "a\x1b[31mb")
    shown = here.ok("history 12345/y").out
    assert "\\x1b[2Jgone\\u202e" in shown
    assert "a\\x1b[31mb" in here.ok("log").out


def test_history_of_missing_or_invalid_handles_is_refused(here: Site) -> None:
    refused(here("history 12345/none"), "Handle 12345/none does not exist", code=3)
    refused(here("history 99999/x"), code=3)
    assert here("history nonsense").code == 2
    assert here("history 12345/x --limit 0").code == 2


# The log


def test_log_is_in_order(here: Site) -> None:
    lines = here.lines("log")
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert re.fullmatch(
        rf" +{len(lines) - 1}  {TIME}  create     12345/x  by local:\S+ \(cli\): a beginning", lines[-2]
    )


def test_log_since_an_entry_or_a_time(here: Site) -> None:
    documents = [json.loads(line) for line in here.lines("log --json")]
    assert set(documents[-1]) == {"seq", "at", "action", "handle", "state", "interface", "actor"}
    assert documents[-2]["note"] == "a beginning"
    size = len(documents)
    assert [json.loads(line) for line in here.lines(f"log --json --since {size - 1}")] == documents[-1:]
    assert here.lines(f"log --json --since {documents[-2]['at']}") == here.lines(f"log --json --since {size - 1}")
    assert here.lines(f"log --since {size}") == []


def test_long_log_is_complete(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = here.lines("log")
    monkeypatch.setattr("perseid.cli.history.MAX_PAGE", 2)
    assert here.lines("log") == expected


def test_log_is_filtered(here: Site) -> None:
    here.ok("namespace add 12346 --policy -", stdin=b'profile = "free"')
    here.ok("create 12346/y --url https://example.org/y --as 300:0.NA/12345")
    whole = [json.loads(line) for line in here.lines("log --json")]

    def found(options: str) -> list[int]:
        return [json.loads(line)["seq"] for line in here.lines(f"log --json {options}")]

    size, local = len(whole), next(each["actor"] for each in whole if each["handle"] == "12345/x")
    assert found("--actor 0.NA/12345") == found("--actor 300:0.NA/12345") == [size]
    assert found(f"--actor {local}") == list(range(1, size))
    assert found("--action update --prefix 12345") == [each["seq"] for each in whole if each["action"] == "update"]
    assert found("--prefix 12346 --newest") == [size]
    assert found("--newest --since 2 --until 4") == [4, 3]
    assert found(f"--until {whole[-1]['at'][:10]}") == list(range(1, size + 1))
    assert found(f"--since {size} --actor 0.NA/12345") == []
    stopped = here.ok("log --limit 2 --newest --json")
    assert f"--after {size - 1}" in stopped.err
    assert found(f"--limit 1 --newest --after {size - 1}") == [size - 2]
    refused(here("log --actor ann"), "Invalid actor ann", "300:12345/ann", code=2)
    refused(here("log --after x"), "--after", code=2)
    assert here("log --action eat").code == 2
    for option in ("--newest", "--until 1", "--limit 1"):
        refused(here(f"log --follow {option}"), "--follow", code=2)


def test_log_of_a_job_is_filtered(here: Site) -> None:
    here.ok("create 12345/y --url https://example.org/y")
    job = here.ok("rewrite --host example.org --to https://new.example/* --yes --json").json["job"]
    lines = here.lines(f"log --job {job}")
    assert [line.split()[3] for line in lines] == ["12345/x", "12345/y"]
    assert here.lines(f"log --job {job} --newest") == lines[::-1]
    assert here.lines("log --job last --until 3") == here.lines(f"log --job {job} --action create") == []
    refused(here("log --job nonsense"), "Job nonsense not found", code=3)


def test_other_users_see_log_entries_of_namespaces_that_they_can_list(here: Site) -> None:
    assert here.lines(f"log {OTHER_USER}") == []
    here.ok("namespace add 12346 --policy -", stdin=b'profile = "free"\nwho_may_list = "public"\n')
    here.ok("create 12346/x --url https://example.org/a")
    (line,) = here.lines(f"log {OTHER_USER}")
    assert line.endswith("create     12346/x")


def test_invalid_times_are_refused(here: Site) -> None:
    refused(here("log --since 99999"), "Entry 99999 does not exist", code=2)
    refused(here("log --since 2999-01-01"), "in the future", code=2)
    refused(here("log --since yesterday"), "Invalid time", code=2)


def test_log_follows_new_entries_until_it_is_stopped(here: Site) -> None:
    size = len(here.lines("log"))
    # A shell that runs the tests in the background makes them ignore SIGINT, and child processes inherit that.
    command = ["env", "--default-signal=INT", str(PERSEID), "log", "--follow", "--json"]
    command += ["--since", str(size - 1), "-d", str(here.directory)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRON, text=True) as follower,
        ExitStack() as stack,
    ):
        stack.callback(follower.kill)
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert json.loads(follower.stdout.readline())["seq"] == size
        for number in (1, 2):
            assert run("create", f"12345/new-{number}", "-d", str(here.directory)).code == 0
            found = json.loads(follower.stdout.readline())
            assert (found["seq"], found["handle"]) == (size + number, f"12345/new-{number}")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 0
        assert follower.stdout.read() == ""
        assert follower.stderr.read() == ""


def test_following_ends_if_the_pipe_is_closed(here: Site) -> None:
    """As in `perseid log --follow | head -1`."""
    command = [str(PERSEID), "log", "--follow", "-d", str(here.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRON, text=True) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.stdout.close()
        deadline = time.monotonic() + 20
        while follower.poll() is None and time.monotonic() < deadline:
            assert run("mint", "12345", "-d", str(here.directory)).code == 0
        assert follower.poll() == 1


# Proofs


def test_proof_is_written_and_valid(here: Site, tmp_path: Path, key: str) -> None:
    path = tmp_path / "x.proof.json"
    done = here.ok(f"prove 12345/x -o {path}")
    assert done.out.splitlines()[-1] == f"verify with  perseid verify {path} --key '{key}'"
    assert set(json.loads(path.read_text())) >= {"format", "handle", "seq", "entry", "values", "checkpoint", "keys"}
    assert path.stat().st_mode & 0o044 == 0o044 & ~_umask()
    shown = here.ok(f"verify {path}").out
    assert "valid for  12345/x\n" in shown
    assert "value 1    URL  https://example.org/b\n" in shown
    assert "not shown  1 more value\n" in shown
    assert f"key        {key}\n" in shown


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_proof_on_standard_output(here: Site, key: str) -> None:
    text = here.ok("prove 12345/x").out
    assert text.count("\n") > 5
    assert json.loads(text)["handle"] == "12345/x"
    line = here.ok("prove 12345/x --json").out
    assert line.count("\n") == 1
    for each in (text, line):
        found = call("verify", "-", "--key", key, "--json", stdin=each.encode()).json
        assert (found["handle"], found["action"], found["undisclosed"]) == ("12345/x", "update", 1)


def test_proof_of_an_earlier_version_with_all_values(here: Site, tmp_path: Path) -> None:
    oldest = here.ok("history 12345/x --json").json["versions"][1]
    path = tmp_path / "old.json"
    document = here.ok(f"prove 12345/x --at {oldest['seq']} --everything --json -o {path}").json
    assert set(document) == {"handle", "seq", "file", "key"}
    found = here.ok(f"verify {path} --json").json
    assert found["seq"] == oldest["seq"]
    assert found["values"] == oldest["values"]
    assert (found["undisclosed"], found["note"]) == (0, "a beginning")
    assert (found["interface"], found["actor"]) == (oldest["interface"], oldest["actor"])
    assert found["checkpoint"]["size"] >= found["seq"]
    shown = here.ok(f"verify {path}").out
    assert "note       a beginning" in shown
    assert f"actor      {oldest['actor']} (cli)" in shown


def test_checkpoint_is_signed_for_new_entries(here: Site, tmp_path: Path) -> None:
    for number in range(3):
        here.ok(f"create 12345/new-{number}")
        here.ok(f"prove 12345/new-{number} -o {tmp_path}/{number}.json")
        here.ok(f"verify {tmp_path}/{number}.json --handle 12345/new-{number}")


def test_proof_does_not_overwrite_a_file(here: Site, tmp_path: Path) -> None:
    path = proof(here, tmp_path)
    before = path.read_bytes()
    done = here(f"prove 12345/x -o {path}")
    assert (done.code, done.out) == (2, "")
    assert path.read_bytes() == before


def test_proof_of_missing_or_unpublished_handles_is_refused(here: Site) -> None:
    refused(here("prove 12345/none"), code=3)
    here.ok("unpublish 12345/x")
    refused(here("prove 12345/x"), code=3)
    here.ok("prove 12345/x --everything")
    refused(here("prove 12345/x --at 99999"), "does not exist", code=2)


def test_earlier_key_verifies_proofs_after_a_rotation(here: Site, tmp_path: Path, key: str) -> None:
    before = proof(here, tmp_path)
    here.ok("key rotate checkpoint")
    here.ok("key rotate checkpoint")
    after = tmp_path / "after.json"
    current_key = here.ok(f"prove 12345/x --json -o {after}").json["key"]
    assert call("verify", str(after), "--key", current_key).code == 0
    for path in (before, after):
        assert call("verify", str(path), "--key", key).code == 0
        here.ok(f"verify {path}")
    here.ok("set 12345/x URL=https://example.org/c")
    later = tmp_path / "later.json"
    newest = here.ok(f"prove 12345/x --json -o {later}").json["key"]
    assert newest == json.loads(here.lines("key list --json")[-1])["key"]
    for trusted in (key, newest):
        assert call("verify", str(later), "--key", trusted).code == 0
    done = call("verify", str(before), "--key", newest)
    assert (done.code, done.out) == (1, "")


# Verifying offline


def test_proof_is_verified_without_an_installation(here: Site, tmp_path: Path, key: str) -> None:
    path = proof(here, tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    moved = here.directory.rename(tmp_path / "away")
    (tmp_path / "key.txt").write_text(f"{key}\n")
    for key_argument in (key, str(tmp_path / "key.txt")):
        done = subprocess.run(
            [PERSEID, "verify", path, "--key", key_argument],
            cwd=empty,
            env=ENVIRON,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "valid for  12345/x" in done.stdout
        assert done.stderr == ""
    assert list(empty.iterdir()) == []
    moved.rename(here.directory)


OFFLINE = """
import sys
import typer
from perseid.cli._commands import register_command
from perseid.cli import _output
from perseid.cli.verify import verify
app = typer.Typer()
register_command(app, "verify")(verify)
app(sys.argv[1:], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


def test_verify_loads_no_database_modules(here: Site, tmp_path: Path, key: str) -> None:
    path = proof(here, tmp_path)
    done = finish([sys.executable, "-c", OFFLINE, str(path), "--key", key])
    assert done.code == 0
    assert "valid for  12345/x" in done.out
    loaded = done.err.splitlines()[-1].split()
    assert "perseid.proof.document" in loaded
    heavy = ("sqlalchemy", "alembic", "lmdb", "psycopg")
    assert [name for name in loaded if name.partition(".")[0] in heavy] == []
    assert [name for name in loaded if name.startswith(("perseid.ledger", "perseid.registry", "perseid.wire"))] == []


def test_verify_without_a_key_is_wrong_usage(here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = proof(here, tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    done = call("verify", str(path))
    assert (done.code, done.out) == (2, "")
    assert "the key that you trust" in re.sub(r"\s+", " ", done.err)


def test_forged_proof_is_refused(here: Site, tmp_path: Path, key: str) -> None:
    document = json.loads(proof(here, tmp_path).read_text())
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps({**document, "handle": "12345/y"}))
    for text in (forged.read_text(), "{}", "no JSON", "", json.dumps({**document, "values": document["values"] * 2})):
        forged.write_text(text)
        done = call("verify", str(forged), "--key", key)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("perseid: The proof is not valid: ")


def test_proof_of_another_handle_or_ledger_is_refused(here: Site, tmp_path: Path, key: str) -> None:
    path = proof(here, tmp_path)
    assert call("verify", str(path), "--key", key, "--handle", "12345/X").code == 0
    done = call("verify", str(path), "--key", key, "--handle", "12345/y")
    assert (done.code, done.out) == (1, "")
    assert "not for '12345/y'" in done.err
    (tmp_path / "other").mkdir()
    other = site(tmp_path / "other", "--demo")
    done = other(f"verify {path}")
    assert (done.code, done.out) == (1, "")
    assert "is not a successor of" in done.err


@pytest.mark.parametrize("invalid_key", ["nonsense", "a+b+c", "none.txt"])
def test_invalid_key_is_wrong_usage(invalid_key: str, tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    path.write_text("{}")
    assert call("verify", str(path), "--key", invalid_key).code == 2


def test_verify_requires_a_file_or_all(here: Site) -> None:
    assert here("verify").code == 2
    assert here("verify proof.json --all").code == 2
    done = run(
        "verify", "none.json", "--key", "ledger.example.org+4c5f31b6+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4"
    )
    assert (done.code, done.out) == (1, "")
    assert done.err == "perseid: none.json: No such file or directory\n"


def test_proof_of_a_restored_ledger(here: Site, tmp_path: Path, key: str) -> None:
    here.ok(f"backup {tmp_path}/b")
    restored = Site(tmp_path / "again")
    restored.ok(f"restore {tmp_path}/b")
    path = proof(restored, tmp_path)
    assert "continues  ledger" in restored.ok(f"verify {path}").out
    assert restored.ok(f"verify {path} --json").json["continues"] == key.partition("+")[0]
    done = call("verify", str(path), "--key", key)
    assert done.code == 1
    assert "that ledger was restored and continues as" in done.err


# The whole ledger


def test_whole_ledger_is_valid(here: Site) -> None:
    size = len(here.lines("log"))
    first, second = here.lines("verify --all")
    assert first == f"valid  {size} entries, and the views"
    document = here.ok("verify --all --json").json
    assert document == {"entries": size, "root": second.removeprefix("root   "), "redacted": 0, "redacted_values": []}


def test_verify_lists_redacted_values(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seq = here.ok("history 12345/x --json").json["versions"][1]["seq"]
    here.ok(f"redact 12345/x 1 --seq {seq} --reason law --yes")
    assert here.lines("verify --all")[2:] == [f"redacted  entry {seq}, 12345/x: value 1 of 3"]
    assert here.ok("verify --all --json").json["redacted"] == 1
    monkeypatch.setattr("perseid.cli.history.MAX_SHOWN", 0)
    assert here.lines("verify --all")[2:] == ["redacted  1 more; --json lists them"]


def test_verify_reports_the_first_difference_in_the_ledger(here: Site) -> None:
    seq = here.ok("history 12345/x --json").json["versions"][1]["seq"]
    with sqlite3.connect(here.directory / "ledger.db") as connection:
        (body,) = connection.execute("SELECT body FROM entries WHERE seq = ?", (seq,)).fetchone()
        changed = body.replace(b"https://example.org/a", b"https://example.org/z")
        connection.execute("UPDATE entries SET body = ? WHERE seq = ?", (changed, seq))
    connection.close()
    done = here("verify --all")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"perseid: Entry {seq} does not match its leaf hash")


def test_verify_reports_the_first_difference_in_the_answers(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "differences", lambda *_: "handles 12345/X")
    done = here("verify --all")
    assert (done.code, done.out) == (1, "")
    assert "the view answers differs at handles 12345/X" in done.err
    assert "perseid rebuild answers" in done.err


# Width


@pytest.mark.usefixtures("terminal")
def test_rows_fit_the_terminal_and_never_cut_handles(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = {"COLUMNS": "60"}
    name, words = f"12345/{'x' * 80}", "a note of many words " * 6
    here.ok(f"create {name} --url https://example.org/", "--value", f"DESC={words}")
    for command in ("log", f"history {name}", "check --quick"):
        lines = here(command, environ=narrow).out.splitlines()
        long = [line for line in lines if len(line) > 60]
        assert all(len(line.split()) == 1 for line in long), command
        assert any(line.startswith("      ") for line in lines), command
    assert name in here("log", environ=narrow).out
    monkeypatch.setattr(_output, "is_terminal", lambda _: False)
    lines = here("log", environ=narrow).out.splitlines()
    assert any(len(line.split()) > 2 and name in line for line in lines), "in a pipe, a row is a line"

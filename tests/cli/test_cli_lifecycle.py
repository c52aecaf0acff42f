"""`publish`, `unpublish`, `tombstone`, `transfer`, `redact`: the life cycle of identifiers."""

import sqlite3
from pathlib import Path

import pytest

from perseid.ledger.ledger import Ledger
from tests.cli.installation import Site, refused, site

OTHER_USER = "--as 300:98765/stranger"


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    installation.ok("create 12345/x --url https://example.org/a --value EMAIL=a@example.org")
    return installation


def state(here: Site, name: str = "12345/x") -> str:
    return str(here.ok(f"history {name} --limit 1 --json").json["versions"][0]["state"])


def last(here: Site, name: str = "12345/x") -> int:
    return int(here.ok(f"history {name} --limit 1 --json").json["versions"][0]["seq"])


def owner(here: Site, name: str) -> str:
    admins = [value for value in here.ok(f"resolve {name} --json").json["values"] if value["type"] == "HS_ADMIN"]
    (value,) = [value["data"]["value"] for value in admins]
    return f"{value['index']}:{value['handle']}"


# Publishing


def test_unpublish_and_publish(here: Site) -> None:
    done = here.ok("unpublish hdl:12345/X", "--note", "embargo")
    assert (done.out, done.err) == ("12345/x\n", "")
    assert state(here) == "unpublished"
    assert here(f"resolve 12345/x {OTHER_USER}").code == 3
    assert here(f"history 12345/x {OTHER_USER}").code == 3
    assert here.ok("publish 12345/x --json").json == {"handle": "12345/x", "seq": last(here)}
    assert here.ok(f"resolve 12345/x {OTHER_USER}").out
    assert here.ok("history 12345/x --json").json["versions"][1]["note"] == "embargo"


@pytest.mark.parametrize("option", ["", "--keep-history"])
def test_history_before_unpublishing_stays_public_only_with_keep_history(here: Site, option: str) -> None:
    here.ok("set 12345/x", "7:DESC=as it was")
    public_entry = last(here)
    here.ok(f"unpublish 12345/x {option}")
    here.ok("set 12345/x", "7:DESC=as it is")
    here.ok("publish 12345/x")
    shown = here.ok(f"resolve 12345/x --at {public_entry} {OTHER_USER}").out
    assert ("as it was" in shown) == bool(option)


@pytest.mark.parametrize("option", ["", "--keep-history"])
def test_history_of_a_private_value_stays_public_only_with_keep_history(here: Site, option: str) -> None:
    here.ok("set 12345/x", "7:DESC=as it was")
    public_entry = last(here)
    here.ok(f"set 12345/x '7:DESC!private=as it is' {option}")
    shown = here.ok(f"resolve 12345/x --at {public_entry} {OTHER_USER}").out
    assert ("as it was" in shown) == bool(option)


def test_tombstone_is_not_published_but_deleted_and_reused(here: Site) -> None:
    here.ok("tombstone 12345/x --reason gone")
    published = here.ok("publish 12345/x")
    fix = "To restore the record: perseid tombstone 12345/x --undo"
    assert published.err == f"Warning: Handle 12345/x is a tombstone, and stays one: nothing changed. {fix}\n"
    here.ok("delete 12345/x")
    refused(here("create 12345/x --url https://example.org/2"), "was deleted", "--reuse-deleted")
    here.ok("create 12345/x --url https://example.org/2 --reuse-deleted")
    assert here.lines("resolve 12345/x")[0].endswith("https://example.org/2")


def test_repeated_publish_or_unpublish_changes_nothing(here: Site) -> None:
    before = last(here)
    assert here.ok("publish 12345/x --json").json["seq"] == before
    here.ok("unpublish 12345/x")
    assert here.ok("unpublish 12345/x --json").json["seq"] == before + 1


def test_reserved_handle_cannot_be_published(here: Site) -> None:
    (name,) = here.lines("reserve 12345")
    refused(here(f"publish {name}"), "does not resolve yet", "Create its record first")


# Tombstones


def test_tombstone_shows_reason_and_replacement(here: Site) -> None:
    here.ok("create 12345/new --url https://example.org/new")
    done = here.ok("tombstone 12345/x --replaced-by 12345/new --reason", "withdrawn by its publisher")
    assert (done.out, done.err) == ("12345/x\n", "")
    shown = here.ok(f"resolve 12345/x {OTHER_USER}").out
    assert "withdrawn by its publisher" in shown
    assert "12345/new" in shown
    assert "https://example.org/a" not in shown
    assert state(here) == "tombstone"
    here.ok("tombstone 12345/new --reason gone")
    here.ok("create 12345/y --url https://example.org/y")
    done = here.ok("tombstone 12345/y --replaced-by 12345/new --reason gone")
    assert "The replacement 12345/new is a tombstone itself" in done.err
    here.ok("tombstone 12345/x --reason withdrawn --replaced-by", "")
    assert "12345/new" not in here.ok("resolve 12345/x").out


def test_tombstone_requires_a_reason_and_an_existing_replacement(here: Site) -> None:
    assert here("tombstone 12345/x").code == 2
    refused(here("tombstone 12345/x --reason ' '"), "requires a reason", code=2)
    refused(
        here("tombstone 12345/x --reason gone --replaced-by 12345/none"), "12345/none does not exist or is not public"
    )
    refused(here("tombstone 12345/x --reason gone --replaced-by https://library.org/"), "Use a handle, as in", code=2)
    assert state(here) == "published"


def test_tombstone_is_removed_with_undo(here: Site) -> None:
    here.ok("tombstone 12345/x --reason gone")
    refused(here("set 12345/x URL=https://example.org/b"), "perseid tombstone 12345/x --undo")
    refused(here("unpublish 12345/x"), "perseid tombstone 12345/x --undo")
    assert here.ok("explain tombstone 12345/x --undo").out.startswith("allowed: ")
    done = here.ok("tombstone 12345/x --undo --note", "found again")
    assert (done.out, state(here)) == ("12345/x\n", "published")
    assert "https://example.org/a" in here.ok(f"resolve 12345/x {OTHER_USER}").out
    refused(here("tombstone 12345/x --undo"), "is not a tombstone")
    assert here("explain tombstone 12345/x --undo").code == 4


@pytest.mark.parametrize("more", ["--reason gone", "--replaced-by 12345/y"])
def test_tombstone_undo_takes_no_reason_and_no_replacement(here: Site, more: str) -> None:
    assert here(f"tombstone 12345/x --undo {more}").code == 2


@pytest.mark.parametrize("command", ["publish", "unpublish", "tombstone --reason gone", "transfer --to 300:98765/a"])
def test_exit_codes_distinguish_not_found_and_refused(here: Site, command: str) -> None:
    verb, *options = command.split()
    refused(here(f"{verb} 12345/none {' '.join(options)}"), "Handle 12345/none does not exist", code=3)
    refused(here(f"{verb} 99999/x {' '.join(options)}"), "This server does not host prefix 99999", code=3)
    refused(here(f"{verb} 12345/x {' '.join(options)} {OTHER_USER}"), code=4)
    assert here(f"{verb} nonsense {' '.join(options)}").code == (3 if verb == "transfer" else 2)
    assert here(f"{verb} hdl:12345/x?a=b {' '.join(options)}").code == 2


# Transfers


def test_one_handle_is_transferred(here: Site) -> None:
    done = here.ok("transfer 12345/x --to 300:98765/ann")
    assert (done.out, done.err) == ("12345/x\n", "")
    assert owner(here, "12345/x") == "300:98765/ann"
    assert here("unpublish 12345/x --as 200:0.NA/12345").code == 4
    here.ok("unpublish 12345/x --as 300:98765/ann")


@pytest.mark.parametrize(
    ("pattern", "transferred", "unchanged"),
    [
        ("12345", ["12345/x", "12345/maps-1", "12345/maps-2", "0.NA/12345"], []),
        ("12345/", ["12345/x", "12345/maps-1", "0.NA/12345"], []),
        ("12345/*", ["12345/x", "12345/maps-1", "0.NA/12345"], []),
        ("12345/…", ["12345/x", "12345/maps-1", "0.NA/12345"], []),
        ("12345/maps-*", ["12345/maps-1", "12345/maps-2"], ["12345/x"]),
        ("12345/maps-...", ["12345/maps-1", "12345/maps-2"], ["12345/x"]),
    ],
)
def test_all_handles_that_match_a_pattern_are_transferred(
    here: Site, pattern: str, transferred: list[str], unchanged: list[str]
) -> None:
    for name in ("12345/maps-1", "12345/maps-2"):
        here.ok(f"create {name} --url https://example.org/")
    done = here.ok(f"transfer {pattern} --to 300:98765/ann --yes --json")
    document = done.json
    assert (document["kind"], document["state"]) == ("transfer", "done")
    assert document["done"] >= len(transferred)
    assert [owner(here, name) for name in transferred] == ["300:98765/ann"] * len(transferred)
    assert [owner(here, name) for name in unchanged] == ["200:0.NA/12345"] * len(unchanged)
    logged = [line for line in here.lines("log") if f"transfer {document['job']}" in line]
    assert len(logged) == document["done"]


def test_escaped_star_is_a_literal_character(here: Site) -> None:
    here.ok("create 12345/a* --url https://example.org/")
    here.ok("create 12345/ab --url https://example.org/")
    assert here.ok("transfer hdl:12345/a%2A --to 300:98765/ann").out == "12345/a*\n"
    assert owner(here, "12345/ab") == "200:0.NA/12345"


@pytest.mark.usefixtures("terminal")
def test_transfer_of_many_handles_asks_for_confirmation(here: Site) -> None:
    done = here("transfer 12345 --to 300:98765/ann", stdin=b"no\n")
    assert (done.code, done.out) == (1, "")
    assert "All handles under 12345 will be transferred to 300:98765/ann. Continue?" in done.err
    assert "Nothing was changed" in done.err
    assert owner(here, "12345/x") == "200:0.NA/12345"
    assert here("transfer 12345 --to 300:98765/ann").code == 1
    done = here.ok("transfer 12345 --to 300:98765/ann", stdin=b"y\n")
    assert done.out.startswith("job ")
    assert here.ok("transfer 12345 --to 300:98765/ann --yes --json").json["done"] == 0


def test_interrupted_transfer_is_resumed_and_undone(here: Site) -> None:
    """The first handle without permission stops the transfer; an identity with permission resumes it."""
    here.ok("create 12345/y --url https://example.org/")
    here.ok("transfer 12345/y --to 300:98765/ann")
    done = here("transfer 12345 --to 300:98765/bob --yes --as 200:0.NA/12345")
    assert (done.code, done.out) == (4, "")
    assert "cannot transfer 12345/y" in done.err
    name = here.ok("jobs show last --json").json["job"]
    assert f"Job {name} stopped after 0 changes. Fix the cause and resume it: perseid jobs resume {name}, " in done.err
    problem = here.ok("jobs show last --json").json["problem"]
    assert problem["detail"] == "The user who ran the job could not complete it", "it ran as another identity"
    assert owner(here, "12345/x") == "200:0.NA/12345"
    resumed = here.ok(f"jobs resume {name} --json").json
    assert (resumed["job"], resumed["done"] >= 3) == (name, True)
    for each in ("12345/x", "12345/y", "0.NA/12345"):
        assert owner(here, each) == "300:98765/bob"
    here.ok(f"undo {name} --yes")
    assert [owner(here, each) for each in ("12345/x", "12345/y")] == ["200:0.NA/12345", "300:98765/ann"]


def test_invalid_owner_is_refused(here: Site) -> None:
    refused(here("transfer 12345/x --to 300:12345/none"), "is not a valid owner")
    assert here("transfer 12345/x --to nonsense").code == 2
    assert here("transfer 12345/x").code == 2
    assert here("transfer 12345/x --to 300:98765/a --derived").code == 2


# Redaction


@pytest.fixture
def earlier_entry(here: Site) -> int:
    """The entry at which the record had the old email address."""
    seq = last(here)
    here.ok("set 12345/x EMAIL=help@example.org")
    return seq


def test_value_of_an_earlier_version_is_permanently_redacted(here: Site, earlier_entry: int) -> None:
    done = here.ok(f"redact 12345/x 2 --seq {earlier_entry} --reason law --yes")
    assert (done.out, done.err) == ("12345/x\n", "")
    assert "a@example.org" not in here.ok("history 12345/x").out
    newest, _, oldest = here.ok("history 12345/x --json").json["versions"]
    assert (newest["action"], newest["note"]) == ("redact", f"value 2 of entry {earlier_entry}: law")
    assert oldest["redacted"] == 1
    for path in here.directory.rglob("*"):
        assert not path.is_file() or b"a@example.org" not in path.read_bytes(), path
    assert here.lines("verify --all")[2:] == [f"redacted  entry {earlier_entry}, 12345/x: value 2 of 3"]


@pytest.mark.usefixtures("terminal")
def test_redact_warns_and_asks_for_confirmation(here: Site, earlier_entry: int) -> None:
    command = f"redact 12345/x 2 --seq {earlier_entry} --reason law"
    for reply in (b"", b"n\n", b"\n"):
        done = here(command, stdin=reply)
        assert (done.code, done.out) == (1, "")
        assert f"Value 2 of 12345/x at entry {earlier_entry} (EMAIL) will be permanently erased" in done.err
        assert "This cannot be undone." in done.err
        assert "Nothing was changed" in done.err
    assert "a@example.org" in here.ok("history 12345/x").out
    document = here.ok(f"{command} --json", stdin=b"yes\n").json
    assert document == {"handle": "12345/x", "seq": last(here), "erased_everywhere": True}


@pytest.mark.parametrize("yes", ["", "--yes"])
def test_invalid_redactions_are_refused_before_the_confirmation(here: Site, earlier_entry: int, yes: str) -> None:
    for command, code, words in (
        (f"redact 12345/x 1 --seq {earlier_entry} --reason law", 3, "still in the current record of 12345/x"),
        (f"redact 12345/x 9 --seq {earlier_entry} --reason law", 3, "has no value 9"),
        ("redact 12345/x 2 --seq 1 --reason law", 3, "had no values at entry"),
        ("redact 12345/none 2 --seq 1 --reason law", 3, "does not exist"),
        (f"redact 12345/x 2 --seq {earlier_entry} --reason ' '", 2, "requires a reason"),
        (f"redact 12345/x 2 --seq {earlier_entry} --reason law {OTHER_USER}", 4, "redact values"),
    ):
        done = here(f"{command} {yes}")
        refused(done, words, code=code)
        assert "cannot be undone" not in done.err
    assert here(f"redact 12345/x 2 --seq {earlier_entry}").code == 2
    assert here("redact 12345/x 2 --reason law").code == 2


def test_redact_reports_remaining_copies_while_a_reader_is_active(here: Site, earlier_entry: int) -> None:
    reader = sqlite3.connect(here.directory / "ledger.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    done = here(f"redact 12345/x 2 --seq {earlier_entry} --reason law --yes --wait 1")
    assert (done.code, done.out) == (1, "12345/x\n")
    assert done.err.startswith("perseid: After 1 s the value is erased from the ledger, but not from all other files")
    reader.close()
    here.ok("rebuild answers")
    assert not any(b"a@example.org" in path.read_bytes() for path in here.directory.rglob("*") if path.is_file())


def test_redact_waits_as_long_as_requested(here: Site, earlier_entry: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def wait(_: Ledger, timeout: float) -> bool:
        waited.append(timeout)
        return False

    monkeypatch.setattr(Ledger, "wait_until_erased", wait)
    assert here(f"redact 12345/x 2 --seq {earlier_entry} --reason law --yes --wait 3 --json").code == 1
    assert waited == [1, 1, 1, 0]

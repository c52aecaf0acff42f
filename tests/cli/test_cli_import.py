"""`perseid import`: the records of a file, all of them or none, as one job."""

import csv
import io
import json
import re
import secrets
import shlex
from pathlib import Path

import pytest

from perseid.cli import _row_problems, imports
from perseid.records.private_keys import protect, read_private_key
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation
from perseid.registry.jobs import import_job, runner
from tests.bulk.test_sheets import with_second_sheet
from tests.cli.installation import Site, examples, site
from tests.cli.program import Done

PREFIX = "12345"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    return site(tmp_path, "--prefix", PREFIX, "--profile", "free")


def write(name: str, *rows: tuple[str, ...]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    Path(name).write_text(text.getvalue(), encoding="utf-8")
    return name


def read(name: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(Path(name).read_text(encoding="utf-8-sig")))]


def values_of(here: Site, handle: str) -> list[str]:
    document = json.loads(here.ok(f"resolve {handle} --json").out)
    return [each["data"]["value"] for each in document["values"] if each["type"] != "HS_ADMIN"]


def count_handles(here: Site) -> int:
    return len(here.lines(f"list {PREFIX}"))


def test_one_percent_of_bad_rows_change_nothing_and_are_skipped_on_request(here: Site) -> None:
    """5,000 rows with 50 bad ones; `make crash` has 100,000."""
    bad = {number: number * 100 for number in range(50)}
    kinds = ("no url", "ftp:", "//example.org", "javascript:alert(1)", "http//example.org")
    rows = [(f"{PREFIX}/{number}", f"https://example.org/{number}") for number in range(5_000)]
    for number, at in bad.items():
        rows[at] = (rows[at][0], kinds[number % 5]) if number % 2 else (f"{PREFIX}/{at}\u200b", rows[at][1])
    write("t.csv", ("handle", "URL"), *rows)
    before = count_handles(here)
    done = here("import t.csv --yes")
    assert done.code == 4
    lines = done.out.splitlines()
    assert sum(line.startswith("5 rows, URL: ") for line in lines) == 5, "one for each invalid URL"
    numbers = ", ".join([re.split("lines? ", line)[1].split(", handle")[0].rstrip(")") for line in lines])
    assert sorted(map(int, numbers.split(", "))) == [at + 2 for at in bad.values()]
    assert "50 of 5,000 rows are invalid; nothing was changed" in done.err
    assert count_handles(here) == before
    done = here("import t.csv --yes --skip-invalid --report problems.csv")
    assert done.code == 0, done
    assert count_handles(here) == before + 4_950
    problems = read("problems.csv")
    assert len(problems) == 50
    assert (problems[1]["problem_column"], problems[1]["problem_value"]) == ("URL", "ftp:")
    assert all(row["problem_rule"] and row["problem_message"] for row in problems)


def test_report_can_be_corrected_and_imported(here: Site) -> None:
    write(
        "t.csv",
        ("handle", "Link", "TITLE"),
        (f"{PREFIX}/a", "example.org", "=1+1"),
        (f"{PREFIX}/b", "https://b.example/", "B"),
    )
    assert here("import t.csv --map Link=URL --yes --report problems.csv").code == 4
    text = Path("problems.csv").read_text(encoding="utf-8").replace(",example.org,", ",https://a.example/,", 1)
    Path("corrected.csv").write_text(text, encoding="utf-8")
    here.ok("import corrected.csv --map Link=URL --yes")
    assert values_of(here, f"{PREFIX}/a") == ["https://a.example/", "=1+1"]


def test_files_for_the_user_have_the_delimiter_of_the_table(here: Site) -> None:
    Path("t.csv").write_text("URL;TITLE\nhttps://a.example/;A, or B\nb.example;B\n", encoding="cp1252")
    done = here.ok(f"import t.csv --mint --prefix {PREFIX} --skip-invalid --report problems.csv --yes")
    same = "import that file with the same --prefix, --mint"
    assert f"1 of 2 rows is invalid. Correct it in problems.csv and {same}" in done.err
    minted = Path("t.minted.csv").read_text(encoding="utf-8-sig").splitlines()
    assert (minted[0], minted[1].startswith("https://a.example/;A, or B;12345/")) == ("URL;TITLE;handle", True)
    problems = Path("problems.csv").read_text(encoding="utf-8-sig").splitlines()
    assert problems[0].startswith("URL;TITLE;problem_line;")
    assert problems[1].startswith("b.example;B;3;URL;")


def test_invalid_rows_of_a_minted_file_are_kept(here: Site) -> None:
    """The file cannot be minted again to ask for them."""
    write("t.csv", ("TITLE", "URL"), ("A", "https://a.example/"), ("B", "b.example"))
    minting = f"import t.csv --mint --prefix {PREFIX} --skip-invalid --yes"
    assert "1 of 2 rows is invalid. Correct it in t.invalid.csv and import" in here.ok(minting).err
    assert [row["TITLE"] for row in read("t.invalid.csv")] == ["B"]
    assert "remove" not in here(minting).err, "the file with the handles stays"
    refused = here(f"{minting} --mint-again -o more.csv")
    assert (refused.code, "t.invalid.csv exists" in refused.err) == (1, True), refused


def test_advice_for_a_tombstone_works(here: Site) -> None:
    write("t.csv", ("handle", "URL"), (f"{PREFIX}/a", "https://a.example/"))
    here.ok("import t.csv --yes")
    here.ok("undo last --yes")
    for command in ("import t.csv --yes", f"create {PREFIX}/a --url https://a.example/"):
        failed = here(command)
        assert f"Handle {PREFIX}/a already exists, as a tombstone" in failed.shown
        assert f"To restore the record: perseid tombstone {PREFIX}/a --undo" in failed.shown
        assert "--on-existing" not in failed.shown
        assert "--overwrite" not in failed.shown
    here.ok(f"tombstone {PREFIX}/a --undo")
    assert values_of(here, f"{PREFIX}/a") == ["https://a.example/"]


def test_column_of_handles_is_named(here: Site) -> None:
    write("t.csv", ("Kennung", "URL", "Titel", "Standort"), (f"{PREFIX}/a", "https://a.example/", "A", "7b"))
    refused = here("import t.csv --yes").err
    assert "--map Kennung=handle" in refused
    assert "'Titel' is probably TITLE." in refused
    assert "probably state" not in refused
    joined = here("import t.csv --dry-run --map Kennung=handle --map Titel=TITLE,Standort=-").err
    assert "Repeat --map for each column, as in --map Titel=TITLE --map COLUMN=TYPE" in joined
    swapped = here.ok("import t.csv --dry-run --map Kennung=handle --map Titel=TITEL --map Standort=-").err
    assert swapped.count("has the type 'TITEL', which clients may not know. Use TITLE, ") == 1
    here.ok("import t.csv --map Kennung=handle --map Titel=TITLE --map Standort=- --yes")
    assert values_of(here, f"{PREFIX}/a") == ["https://a.example/", "A"]


def test_cells_are_literal(here: Site) -> None:
    write("t.csv", ("handle", "DESC", "TITLE"), (f"{PREFIX}/a", "@/etc/hostname", "base64:aGk="))
    here.ok("import t.csv --yes")
    assert values_of(here, f"{PREFIX}/a") == ["@/etc/hostname", "base64:aGk="]


def test_unknown_columns_are_refused_by_name(here: Site) -> None:
    write("t.csv", ("handle", "URL", "Ttile", "Place/Date"), (f"{PREFIX}/a", "https://a.example/", "A", "7"))
    done = here("import t.csv --yes")
    assert (done.code, done.out) == (2, "")
    assert "'Ttile', 'Place/Date'" in done.err
    assert "as in --map Ttile=TITLE:" in done.err
    here.ok("import t.csv --yes --map Ttile=TITLE --map Place/Date=-")
    assert values_of(here, f"{PREFIX}/a") == ["https://a.example/", "A"]


def test_dry_run_shows_the_difference_of_existing_records(here: Site) -> None:
    here.ok(f"create {PREFIX}/a --url https://old.example/")
    write("t.csv", ("handle", "URL"), (f"{PREFIX}/a", "https://new.example/"), (f"{PREFIX}/b", "https://b.example/"))
    failed = here("import t.csv --yes")
    assert failed.code == 4
    assert "already exists" in failed.out
    assert "--on-existing" in failed.out
    lines = here.lines("import t.csv --on-existing update --dry-run")
    assert lines[-3:] == [
        f"{PREFIX}/a",
        "    - 1  URL  https://old.example/",
        "    + 1  URL  https://new.example/",
    ]
    assert "updated  1" in lines
    assert values_of(here, f"{PREFIX}/a") == ["https://old.example/"]
    first, change = [json.loads(line) for line in here.lines("import t.csv --on-existing update --dry-run --json")]
    assert (first["outcomes"], first["state"], change["handle"]) == (
        {"created": 1, "updated": 1},
        "ready",
        f"{PREFIX}/a",
    )
    assert "job" in here.ok("import t.csv --on-existing skip --yes").out
    jobs = here.lines("jobs list")
    skipped = here.ok("import t.csv --on-existing skip")
    assert (skipped.out, here.lines("jobs list")) == ("rows     2\nskipped  2\n", jobs), "no question and no job"
    assert "Nothing changes: the records are as the file says, or are skipped. No job was created" in skipped.err
    document = here.ok("import t.csv --on-existing skip --json").json
    assert (document["job"], document["outcomes"]) == (None, {"skipped": 2})
    assert values_of(here, f"{PREFIX}/a") == ["https://old.example/"]
    ended = json.loads(here.ok("import t.csv --on-existing update --yes --json").out)
    assert (ended["kind"], ended["state"], ended["done"]) == ("import", "done", 1)
    assert (ended["checked"], ended["valid"], ended["invalid"], ended["handles"]) == (2, 2, 0, None)
    assert ended["outcomes"] == {"updated": 1, "unchanged": 1}
    assert values_of(here, f"{PREFIX}/a") == ["https://new.example/"]
    here.ok("undo last --yes")
    assert values_of(here, f"{PREFIX}/a") == ["https://old.example/"]
    assert not [*(here.directory / "spool").iterdir()], "nothing is left in the spool"


def test_file_without_rows_changes_nothing(here: Site) -> None:
    write("t.csv", ("handle", "URL"))
    done = here.ok("import t.csv --yes")
    assert (done.out, done.err.splitlines()[-1]) == ("", "The file has no rows")
    assert here.ok("import t.csv --yes --json").json["checked"] == 0
    assert not [*(here.directory / "spool").iterdir()]


def test_import_warns_about_sheets_that_are_not_read(here: Site) -> None:
    Path("t.xlsx").write_bytes(with_second_sheet())
    warning = "Warning: Only the sheet 'table' is read, not 'Books'. To read another one: --sheet NAME\n"
    assert warning in here.ok("import t.xlsx --map Nr=- --dry-run").err
    assert warning not in here.ok("import t.xlsx --map Nr=- --sheet Books --dry-run").err


def test_options_without_an_effect_are_refused(here: Site) -> None:
    write("t.csv", ("handle", "URL"), (f"{PREFIX}/a", "https://a.example/"))
    for option, words in (
        ("-o out.csv", "requires --mint or --handles-of\n"),
        ("--mint-again", "requires --mint\n"),
        (f"--mint --prefix {PREFIX} --preserve-dates", "cannot be used with --mint"),
    ):
        done = here(f"import t.csv --yes {option}")
        assert (done.code, words in done.err) == (2, True), option
    assert count_handles(here) == 0


def test_blanks_at_the_end_of_a_url_are_shown(here: Site) -> None:
    write("t.csv", ("handle", "URL"), (f"{PREFIX}/a", "https://a.example/ "))
    assert "'https://a.example/ ' contains a blank" in here("import t.csv --yes").out


def test_confirmation_is_required(here: Site) -> None:
    write("t.csv", ("handle", "URL"), (f"{PREFIX}/a", "https://a.example/"))
    done = here("import t.csv")
    assert done.code == 1
    assert "1 created" in done.err
    assert "--yes" in done.err
    assert not [*(here.directory / "spool").iterdir()]


def test_minted_handles_are_written_back_and_never_minted_twice(here: Site) -> None:
    write("t.csv", ("TITLE", "URL"), ("A", "https://a.example/"), ("B", "https://b.example/"))
    done = here.ok(f"import t.csv --mint --prefix {PREFIX} --yes")
    assert "t.minted.csv" in done.out
    assert here.lines("jobs list")[0].endswith("import t.csv"), "like other imports, by its file"
    minted = read("t.minted.csv")
    assert [(row["TITLE"], row["URL"]) for row in minted] == [("A", "https://a.example/"), ("B", "https://b.example/")]
    assert values_of(here, minted[1]["handle"]) == ["B", "https://b.example/"]
    job = here.lines("jobs list")[0].split()[0]
    here.ok(f"import t.csv --mint --mint-again --prefix {PREFIX} --dry-run")  # although t.minted.csv exists
    again = here(f"import t.csv --mint --prefix {PREFIX} --yes -o again.csv")
    assert again.code == 4
    assert job in again.err
    assert "--mint-again" in again.err
    here.ok("import t.csv --handles-of last -o again.csv")
    assert read("again.csv") == minted
    write("other.csv", ("TITLE",), ("A",))
    assert here(f"import other.csv --handles-of {job}").code == 1
    here.ok(f"import t.csv --mint --mint-again --prefix {PREFIX} --yes -o more.csv")
    assert {row["handle"] for row in read("more.csv")}.isdisjoint({row["handle"] for row in minted})
    text = Path("t.csv").read_bytes().replace(b"A,", b"C,")
    here.ok(f"import - --mint --prefix {PREFIX} --yes -o stdin.csv", stdin=text)
    assert read("stdin.csv")[0]["TITLE"] == "C"


def test_file_is_minted_once_whoever_imports_it(here: Site) -> None:
    """Jobs of others are not visible, but their identifiers are as permanent."""
    write("t.csv", ("TITLE",), ("A",), ("B",))
    for name in ("ann", "bob"):
        here.ok(f"user add {PREFIX} {name}")
        here.ok(f"grant {PREFIX}/{name} editor --on {PREFIX}")
    minting = f"import t.csv --mint --prefix {PREFIX} --yes"
    here.ok(f"{minting} --as 300:{PREFIX}/ann")
    job, count = here.lines("jobs list")[0].split()[0], count_handles(here)
    refused = here(f"{minting} --as 300:{PREFIX}/bob -o bob.csv")
    assert (refused.code, count_handles(here), Path("bob.csv").exists()) == (4, count, False)
    assert "a job that you cannot see" in refused.err
    assert "--mint-again" in refused.err
    assert job not in refused.shown
    here.ok(f"{minting} --as 300:{PREFIX}/bob --mint-again -o bob.csv")
    assert count_handles(here) == count + 2


def test_interrupted_import_is_resumed_at_its_row(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 2)
    write("t.csv", ("handle", "URL"), *[(f"{PREFIX}/{number}", f"https://example.org/{number}") for number in range(9)])

    class Killed(BaseException):
        pass

    advance = runner.JobRun.advance
    steps = iter(range(3))

    def stop(self: runner.JobRun) -> bool:
        if next(steps, None) is None:
            raise Killed
        return advance(self)

    with monkeypatch.context() as patched:
        patched.setattr(runner.JobRun, "advance", stop)
        with pytest.raises(Killed):
            here("import t.csv --yes")
    assert "unfinished 6 of 9" in here.lines("jobs list")[0]
    job = here.lines("jobs list")[0].split()[0]
    again = here("import t.csv --yes")
    assert (again.code, again.out, "6 of 9 rows" in again.err, f"jobs resume {job}" in again.err) == (4, "", True, True)
    assert "skipped  6" in here.ok("import t.csv --on-existing skip --dry-run").out
    here.ok("jobs resume last")
    assert count_handles(here) == 9
    with Installation.open(here.directory) as installation:
        found = runner.find_job(installation.registry(), LocalIdentity("test"), runner.LAST)
        lines = [line for line, _ in import_job.minted_rows(installation.registry(), found)]
    assert lines == [*range(2, 11)]
    assert "done 9" in here.lines("jobs list")[0]


def test_canceled_import_says_so(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 2)
    write("t.csv", ("handle", "URL"), *[(f"{PREFIX}/{number}", f"https://example.org/{number}") for number in range(9)])
    advance = runner.JobRun.advance

    def cancel(self: runner.JobRun) -> bool:
        if self.done == 4:
            runner.cancel(self.registry, self.job.id, self.identity)
        return advance(self)

    with monkeypatch.context() as patched:
        patched.setattr(runner.JobRun, "advance", cancel)
        done = here("import t.csv --yes")
    job = here.lines("jobs list")[0].split()[0]
    advice = f"To do the rest: perseid jobs resume {job}. To undo what is done: perseid undo {job}"
    assert done.code == 1
    assert done.err.splitlines()[-2:] == [f"perseid: Job {job} was canceled after 4 of 9 changes", advice]
    here.ok(f"jobs resume {job}")
    assert count_handles(here) == 9


def test_terminal_shows_the_first_problems(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write("t.csv", ("handle", "URL"), *[(f"{PREFIX}/{number}", f"nowhere{number}") for number in range(60)])
    assert len(here("import t.csv --yes").out.splitlines()) == 60
    monkeypatch.setattr(imports, "is_terminal", lambda _: True)
    done = here("import t.csv --yes")
    assert len(done.out.splitlines()) == 50
    assert "\n… and 10 more\n" in done.err


def test_same_problem_is_shown_once_with_its_lines(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is imported twice has a problem in every row; its report has them all."""
    rows = [(f"{PREFIX}/{number:03}", f"https://example.org/{number}") for number in range(40)]
    write("t.csv", ("handle", "URL"), *rows)
    job = here.ok("import t.csv --yes --json").json["job"]
    rows[20] = rows[20][0], "nowhere"
    write("t2.csv", ("handle", "URL"), *rows[:30], (f"{PREFIX}/new", "https://example.org/"), *rows[30:])
    again = here("import t2.csv --yes --report problems.csv")
    assert (again.out, len(read("problems.csv"))) == ("", 40)
    assert "imported this file" not in again.err, "it was another file"
    exists = "rows, handle: Handle … already exists. Remove the row, or use --on-existing skip or --on-existing update."
    assert here("import t2.csv --yes").out == f"40 {exists} (lines 2-31, 33-42)\n"
    twice = here("import t.csv --yes")
    assert twice.out == f"40 {exists} (lines 2-41)\n"
    assert f"\nJob {job} imported this file already; to update its records: --on-existing update.\n" in twice.err
    assert len(here("import t.csv --yes --json").out.splitlines()) == 40
    monkeypatch.setattr(imports, "is_terminal", lambda _: True)
    monkeypatch.setattr(imports, "MAX_RANGES_SHOWN", 1)
    assert here("import t2.csv --yes").out == f"40 {exists} (lines 2-31 …)\n"
    assert here("import t.csv --yes --on-existing update").code == 0


def test_new_records_without_a_url_are_remarked(here: Site) -> None:
    rows = [("a", "https://example.org/", ""), ("b", "", ""), ("c", "", "reserved")]
    write("t.csv", ("handle", "URL", "state"), *[(f"{PREFIX}/{name}", *more) for name, *more in rows])
    fix = "Add the URLs to these rows, unless they should have none"
    assert f"Warning: Rows without a URL: 1; see line 3. {fix}\n" in here("import t.csv --dry-run").err
    (warning,) = here.ok("import t.csv --yes --json").json["warnings"]
    assert (warning["code"], warning["parameters"]) == ("rows_without_url", {"count": 1, "lines": [3]})
    write("u.csv", ("handle", "URL"), *[(f"{PREFIX}/u{number}", "") for number in range(12)])
    remark = "Rows without a URL: 12; see line 2, 3, 4, 5, 6, 7, 8, 9, 10, 11. "
    assert remark in here.ok("import u.csv --yes").err
    write("v.csv", ("handle", "TITLE"), (f"{PREFIX}/v", "no column with URLs"))
    assert "no URL" not in here.ok("import v.csv --yes").err
    write("w.csv", ("handle", "URL", "TITLE"), (f"{PREFIX}/a", "", "keeps its URL"))
    assert "no URL" not in here.ok("import w.csv --on-existing update --yes").err


def test_value_of_a_problem_precedes_its_message(here: Site) -> None:
    write("t.csv", ("handle", "URL"), ("12346/karte-020", "https://example.org/"))
    assert here("import t.csv --yes").out == (
        "line 2, handle (12346/karte-020): This server does not host prefix 12346. "
        "Ask the service that hosts it, or host it here: perseid namespace add 12346.\n"
    )


def test_undone_import_is_brought_back_by_one_command(here: Site) -> None:
    write("t.csv", ("handle", "URL"), *[(f"{PREFIX}/{number}", "https://example.org/") for number in range(12)])
    here.ok("import t.csv --yes")
    undo = here.ok("undo last --yes --json").json["job"]
    advice = ""
    for option in ("", " --on-existing update"):
        again = here(f"import t.csv --yes{option}")
        assert "perseid tombstone" not in again.shown
        assert len(again.out.splitlines()) == 1
        assert "12 rows, " in again.out
        assert ": Handle … " in again.out
        assert again.out.endswith(" (lines 2-13)\n")
        (advice,) = [line for line in again.err.splitlines() if "perseid undo" in line]
        assert advice == f"These records were undone by job {undo}. To bring all back: perseid undo {undo}."
    here.ok(advice.rpartition("perseid ")[2].rstrip("."), "--yes")
    assert values_of(here, f"{PREFIX}/3") == ["https://example.org/"]


def test_problems_in_memory_are_bounded(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write("t.csv", ("handle", "URL"), *[(f"{PREFIX}/{number}", f"nowhere{number % 2}") for number in range(6)])
    monkeypatch.setattr(_row_problems, "MAX_RANGES", 4)
    lines = here("import t.csv --yes").out.splitlines()
    starts = [re.sub(": .* \\(lines", "", line).rstrip(")") for line in lines[:2]]
    assert starts == ["2 rows, URL 2, 4", "2 rows, URL 3, 5"]
    assert [line.split(":")[0] for line in lines[2:]] == ["line 6, URL", "line 7, URL"]


def test_dates_are_kept_for_server_administrators_only(here: Site) -> None:
    record = {
        "handle": f"{PREFIX}/old",
        "values": [
            {
                "index": 1,
                "type": "URL",
                "data": {"format": "string", "value": "https://old.example/"},
                "timestamp": "2001-02-03T04:05:06Z",
            }
        ],
    }
    Path("t.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    done = here(f"import t.jsonl --preserve-dates --yes --as 300:{PREFIX}/ann")
    assert done.code == 4
    here.ok("import t.jsonl --preserve-dates --yes")
    document = json.loads(here.ok(f"resolve {PREFIX}/old --json").out)
    assert document["values"][0]["timestamp"] == "2001-02-03T04:05:06Z"
    write(
        "t.csv",
        ("handle", "URL", "Created"),
        *[(f"{PREFIX}/{name}", "https://a.example/", "2001-02-03") for name in "ab"],
    )
    done = here.ok("import t.csv --dry-run")
    fix = "Server administrators can keep them with --preserve-dates"
    assert done.err == f"Warning: Ignored, because dates and owners are not preserved: 'Created'. {fix}\n"
    done = here.ok("import t.csv --preserve-dates --dry-run")
    ignored = "Creation dates are ignored, because the policy of the namespace has authority = false"
    fix = "To keep them, set authority = true, and default_creator unless each record has a creator"
    fix = f"{fix}: perseid namespace policy {PREFIX} --edit"
    assert done.err == f"Warning: Line 2: {ignored}. {fix}\n"


def test_dates_are_read_as_tables_have_them(here: Site) -> None:
    here.ok("namespace add 102.100.272 --profile pilin")
    names = [f"102.100.272/{suffix}" for suffix in ("BCDFGHJKH", "CDFGHJKLH", "DFGHJKLMH")]
    dates = ("2003-02-01", "2003-02-01 12:30:00", "2003-02-01T12:30:00+01:00")
    rows = [(name, "https://a.example/", date) for name, date in zip(names, dates, strict=True)]
    write("t.csv", ("handle", "URL", "created"), *rows, ("102.100.272/FGHJKLMNH", "https://a.example/", "1.2.2003"))
    done = here("import t.csv --preserve-dates --skip-invalid --yes")
    (problem,) = [line for line in done.out.splitlines() if line.startswith("line ")]
    fix = "Write a date as in 2003-02-01, or date, time and zone as in 2003-02-01T12:00:00Z."
    assert problem == f"line 5, created: 1.2.2003 is not a date. {fix}"
    write("t.csv", ("handle", "URL", "created"), (f"{PREFIX}/a", "https://a.example/", "2021-13-40"))
    done = here("import t.csv --preserve-dates --yes")
    assert (done.code, "line 2, created: 2021-13-40 is not a date" in done.out) == (4, True), "also without authority"
    found = ["".join(value for value in values_of(here, name) if value.startswith("2003")) for name in names]
    assert found == ["2003-02-01T00:00:00Z", "2003-02-01T12:30:00Z", "2003-02-01T11:30:00Z"]


@pytest.mark.parametrize("date", ["1.2.2003", "2999-01-01"])
def test_invalid_date_is_found_in_its_column(here: Site, date: str) -> None:
    write("t.csv", ("handle", "URL", "Modified"), (f"{PREFIX}/a", "https://a.example/", date))
    done = here("import t.csv --preserve-dates --yes")
    assert (done.code, done.out.partition(":")[0]) == (4, "line 2, Modified")


def test_handles_without_a_prefix_get_the_one_that_is_named(here: Site) -> None:
    write("t.csv", ("handle", "URL"), ("book-1", "https://example.org/"))
    done = here("import t.csv --yes")
    assert (done.code, done.out) == (
        4,
        "line 2, handle (book-1): The handle has no prefix. Write PREFIX/SUFFIX, or use --prefix PREFIX.\n",
    )
    here.ok(f"import t.csv --prefix {PREFIX} --yes")
    assert values_of(here, f"{PREFIX}/book-1") == ["https://example.org/"]


def test_records_on_one_line_of_the_exchange_format_are_imported(here: Site) -> None:
    """Other writers do not break lines; a job is resumed by the number of a row."""
    records = {f"{PREFIX}/{name}": {"values": [{"index": 1, "type": "URL", "data": "https://e.org/"}]} for name in "ab"}
    Path("old.json").write_text(json.dumps({"homedPrefixes": ["0.NA/77777", "0.NA/88888"], "handleRecords": records}))
    assert "created  2" in here.ok("import old.json --yes").out
    assert "skipped    2" in here.ok("import old.json --on-existing skip --dry-run").out
    assert values_of(here, f"{PREFIX}/b") == ["https://e.org/"]


ALL_OPERATIONS = f"""SESSIONSETUP
USESESSION:1
PASSPHRASE:hush

CREATE {PREFIX}/x
100 HS_ADMIN 86400 1110 ADMIN 300:111111111111:0.NA/{PREFIX}
1 URL 86400 1110 UTF8 https://example.org/1
3 EMAIL 86400 1100 UTF8 a@example.org
4 HS_VLIST 60 1110 LIST 300:{PREFIX}/a;301:{PREFIX}/b
5 DESC 86400 1110 FILE text.txt

ADD {PREFIX}/x
2 TITLE 86400 1110 UTF8 A map

MODIFY {PREFIX}/x
1 URL 3600 1110 UTF8 https://example.org/2

REMOVE 3,4:{PREFIX}/x

DELETE {PREFIX}/old

HOME 127.0.0.1:2641:TCP
0.NA/67890

UNHOME 127.0.0.1:2641:TCP
0.NA/67891
"""


def test_all_operations_of_a_batch_file_are_executed(here: Site) -> None:
    here.ok(f"create {PREFIX}/old --url https://old.example/")
    here.ok("namespace add 67891")
    Path("text.txt").write_text("from a file", encoding="utf-8")
    Path("all.batch").write_text(ALL_OPERATIONS, encoding="utf-8")
    done = here.ok("import all.batch --yes")
    assert "SESSIONSETUP has no effect" in done.err
    assert "hush" not in done.shown
    values = json.loads(here.ok(f"resolve {PREFIX}/x --json").out)["values"]
    assert {each["index"]: each["data"]["value"] for each in values if each["type"] != "HS_ADMIN"} == {
        1: "https://example.org/2",
        2: "A map",
        5: "from a file",
    }
    assert next(each["ttl"] for each in values if each["index"] == 1) == 3600
    assert here(f"resolve {PREFIX}/old").code == 3
    here.ok("create 67890/a --url https://a.example/")
    assert "does not host prefix" in here("create 67891/a --url https://a.example/").err


def test_batch_file_acts_as_its_identity_if_the_secret_verifies(here: Site) -> None:
    secret, ann = "correct horse battery", f"{PREFIX}/ann"
    here.ok("key generate ann.key")
    key = read_private_key(Path("ann.key").read_bytes()).to_bytes()
    Path("protected.key").write_bytes(protect(key, b"top secret", secrets.token_bytes))
    here.ok(f"create {ann} --value 300:HS_PUBKEY=@ann.key.pub --value 301:HS_SECKEY!private={shlex.quote(secret)}")
    here.ok(f"create {PREFIX}/mine --url https://a.example/ --value HS_ADMIN=301:{ann} --value HS_ADMIN=300:{ann}")
    here.ok(f"create {PREFIX}/other --url https://a.example/")

    def run(authenticate: str, name: str, options: str = "", more: str = "") -> Done:
        change = f"MODIFY {PREFIX}/{name}\n1 URL 86400 1110 UTF8 https://b.example/{len(options)}\n"
        text = f"{authenticate}\n{change}\n{more}"
        Path("t.batch").write_text(text, encoding="utf-8")
        done = here(f"import t.batch --yes {options}")
        assert not [text for text in ("horse", "top secret", "no secret", "battery") if text in done.shown], done
        return done

    by_secret = f"AUTHENTICATE SECKEY:301:{ann}\n{secret}\n"
    by_key = f"AUTHENTICATE pubkey:300:{ann}\nann.key\n"
    done = run(by_secret, "mine")
    assert (done.code, f"acting as 301:{ann}" in done.err) == (0, True), done
    assert f"301:{ann}" in here.ok(f"history {PREFIX}/mine").out
    done = run(by_secret, "other", "--report left.batch")
    assert (done.code, f"import that file with --as 301:{ann}\n" in done.err) == (4, True), done
    for options, reason in (("", "the secret or key is not that of"), (f"--as 301:{ann}", "1 of 1 row is invalid")):
        done = here(f"import left.batch --yes {options}")
        assert (done.code, reason in done.err) == (4, True), "it has the permissions of the identity only"
    assert run(by_key, "mine", "--note a").code == 0
    assert run(by_key.replace("ann.key", "protected.key|top secret"), "mine", "--note ab").code == 0
    for wrong in (
        by_secret.replace("horse", "cow"),
        by_secret.replace("301:", "300:"),
        by_key.replace("ann.key", "protected.key|no secret"),
        by_key.replace("300:", "301:"),
        by_key.replace("ann.key", "nobody.key"),
        by_secret.replace("ann", "nobody"),
    ):
        assert run(wrong, "mine", "--note abc").code in (2, 4), wrong
    for several in (f"{by_secret}\n{by_key}", f"DELETE {PREFIX}/other\n\n{by_secret}"):
        done = run(several, "mine", "--note abcd")
        assert (done.code, "Split the file" in done.err) == (2, True), done
    assert run(by_secret, "mine", "--note abcde", by_secret).code == 0, "the same identity again"
    done = run(by_secret, "other", f"--as 300:0.NA/{PREFIX} --note abcdef")
    assert (done.code, "no effect with --as" in done.err) == (0, True), done
    session = "SESSIONSETUP\nUSESESSION:1\nPASSPHRASE: top secret\n"
    assert run(session, "other", "--note g").code == 0
    for secret in (by_secret, session):
        done = run(secret, "other", "--server http://127.0.0.1:1")
        assert (done.code, "--secret-file" in done.err) == (2, True), done


def test_examples_of_the_help_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = site(tmp_path, "--demo")
    monkeypatch.chdir(tmp_path)
    here.ok("namespace add 12345 --profile free")
    first, *others = examples("import")
    Path("maps.csv").write_text(here.ok(first).out, encoding="utf-8")
    write("new.csv", ("URL",), ("https://example.org/new",))
    for example in others:
        done = here.ok(shlex.join(shlex.split(example)))
        assert done.out or done.err

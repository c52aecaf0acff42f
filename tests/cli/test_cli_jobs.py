"""`perseid rewrite`, `undo` and `jobs`: changes to many records."""

import json
from pathlib import Path
from typing import Any

import pytest

from perseid.cli._target import LocalTarget
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation
from perseid.registry.jobs import runner
from perseid.registry.jobs.undo import UndoPreview
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.cli.installation import Site, refused, site

MOVE = ("rewrite", "--url", "http://old.example/*", "--to", "https://new.example/*")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 5)
    installation = site(tmp_path, "--prefix", "12345", "--profile", "free")
    table = "URL\n" + "".join(f"http://old.example/{number}\n" for number in range(12))
    installation.ok("mint 12345/n- --from -", stdin=table.encode())
    return installation


def move(here: Site, *more: str, stdin: bytes = b"") -> list[str]:
    return here.ok(" ".join(MOVE[:1]), *MOVE[1:], *more, stdin=stdin).out.splitlines()


def count_by_host(here: Site, host: str) -> int:
    return len(here.lines(f"find --host {host}"))


def test_dry_run_shows_every_change_and_changes_nothing(here: Site) -> None:
    lines = move(here, "--dry-run")
    assert lines[1:3] == ["    - 1  URL  http://old.example/0", "    + 1  URL  https://new.example/0"]
    assert lines[-2:] == ["records  12", "changed  0"]
    documents = [json.loads(line) for line in move(here, "--dry-run", "--json")]
    assert len(documents) == 12
    assert documents[3]["changes"][0]["type"] == "URL"
    assert count_by_host(here, "old.example") == 12


def test_rewrite_selects_like_find(here: Site) -> None:
    here.ok("create 12345/s --value 1:URL=https://old.example/s --value 2:URL.OTHER=https://old.example/t")
    here.ok("create 12345/sub --url https://sub.old.example/")
    to = "--to https://new.example/*"
    for options, count in (
        ("--host old.example", 13),
        ("--url *://old.example/*", 13),
        ("--url *://old.example/s*", 1),
        ("--host old.example --type URL.OTHER", 1),
        ("--host old.example --prefix 12345 --owner 0.NA/12345", 13),
        ("--host old.example --owner 12345/ann", 0),
        ("--host old.example --path /s", 1),
        ("--host old.example --value https://old.example/t", 1),
        (f"--host old.example --changed-since {len(here.lines('log')) - 2}", 1),
        ("--host old.example --changed-since 2020-01-01 --path /none", 0),
    ):
        assert here.lines(f"rewrite {options} {to} --dry-run")[-2] == f"records  {count}", options
    here.ok(f"rewrite --host old.example --type URL.OTHER {to} --yes")
    assert here.lines("resolve 12345/s")[:2] == [
        "  1  URL        https://old.example/s",
        "  2  URL.OTHER  https://new.example/t",
    ]
    assert here.ok("jobs show --json").json["parameters"] == {
        "url": "*://old.example/*",
        "to": "https://new.example/*",
        "prefix": None,
        "type": "URL.OTHER",
    }
    here.ok(f"rewrite --host old.example {to} --yes")
    assert (count_by_host(here, "new.example"), count_by_host(here, "old.example")) == (13, 1)
    refused(here(f"rewrite --host a {to}", "--value", "\udcff"), "not valid UTF-8", code=2)
    refused(here(f"rewrite {to}"), "requires either a URL or a host", "--url GLOB or --host HOST", code=2)
    refused(here(f"rewrite --host a --url http://a/* {to}"), "requires either a URL or a host", code=2)
    refused(here(f"rewrite --host a/b {to}"), "is not a host name", code=2)


@pytest.mark.usefixtures("terminal")
def test_rewrite_shows_some_changes_and_asks_for_confirmation(here: Site) -> None:
    done = here("rewrite", *MOVE[1:], stdin=b"n\n")
    assert done.code == 1
    assert (
        "… and 2 more; --dry-run shows all\nThe URLs of 12 records will change. Continue? [y/N] perseid: Nothing was"
        in done.err
    )
    assert count_by_host(here, "old.example") == 12
    *_, job, records, changed = move(here, stdin=b"yes\n")
    assert (records, changed) == ("records  12", "changed  12")
    assert count_by_host(here, "new.example") == 12
    assert here.lines("jobs list")[0].startswith(job.split()[1])
    for option in ("--dry-run", "--yes"):
        again = here.ok("rewrite", *MOVE[1:], option)
        assert again.out == "records  0\nchanged  0\n"
        assert again.err.startswith(
            "No URL that you can see matches http://old.example/*, or none that can be rewritten"
        )
        assert "perseid find" in again.err
    assert here.ok("rewrite", *MOVE[1:], "--yes", "--json").json == {"records": 0, "changed": 0}
    assert here.ok("rewrite", *MOVE[1:], "--dry-run", "--json").out == "", "one line for each record"


def test_json_is_the_job_and_an_undo_can_be_undone(here: Site) -> None:
    (last,) = [json.loads(line) for line in move(here, "--yes", "--json", "--note", "moved")]
    assert here.ok(f"jobs show {last['job']} --json").json == last
    assert (last["state"], last["done"], last["total"], last["note"]) == ("done", 12, 12, "moved")
    undone = here.ok(f"undo {last['job']} --yes --json").json
    assert (undone["kind"], undone["parameters"]["job"]) == ("undo", last["job"])
    assert (undone["done"], undone["total"]) == (12, 12)
    assert count_by_host(here, "old.example") == 12
    assert here.ok(f"jobs show {last['job']} --json").json["undone_by"] == undone["job"]
    refused(here(f"undo {last['job']} --yes"), "was undone by")
    here.ok("undo last --yes")
    assert count_by_host(here, "new.example") == 12
    redone = here.ok(f"jobs show {last['job']} --json").json
    assert (redone["state"], redone["undone_by"]) == ("done", None), "the undo was undone"
    kinds = [json.loads(line)["kind"] for line in here.lines("jobs list --json")]
    assert kinds == ["undo", "undo", "rewrite", "mint"]
    assert "state    done 12" in here.ok("jobs show").out


def test_rewrite_to_a_scheme_that_nobody_is_redirected_to_warns_before_it_asks(here: Site) -> None:
    order = ("rewrite", "--url", "http://old.example/3", "--to", "javascript://new.example/3", "--dry-run")
    done = here.ok(*order)
    start = "Warning: Value 1 of type URL, 'javascript://new.example/3', has the scheme javascript, which is none of "
    assert done.err.startswith(start)
    (change,) = json.loads(here.ok(*order, "--json").out)["changes"]
    (warning,) = change["warnings"]
    assert done.err == f"Warning: {warning['message']}. {warning['advice']}\n"
    assert move(here, "--dry-run", "--json")[0].count("warnings") == 0


def test_undo_with_later_changes_is_refused_and_lists_them(here: Site) -> None:
    job = json.loads(move(here, "--yes", "--json")[-1])["job"]
    name = here.lines("find --url https://new.example/3")[0]
    seq = here.ok(f"set {name} DESC=changed --json").json["seq"]
    for done in here(f"undo {job} --yes"), here(f"undo {job}"):
        refused(done, "1 record has conflicting changes", f"{name}: changed later, in entry {seq}")
        assert "set these records back to what the job wrote. To see the changes: perseid history " in done.err
    listed = here(f"undo {job} --yes --json")
    assert (listed.code, json.loads(listed.out)) == (
        4,
        {"handle": name, "seq": seq, "reason": f"changed later, in entry {seq}", "changed_later": True},
    )
    assert count_by_host(here, "new.example") == 12


def test_changes_to_and_from_an_empty_value_are_shown_as_both(here: Site) -> None:
    here.ok("mint 12345/e- --url https://one.example/")
    (name,) = here.lines("find --url https://one.example/")
    here.ok(f"set {name} DESC=")
    here.ok("import - --on-existing update --yes", stdin=f"handle,DESC,EMAIL\n{name},new,added\n".encode())
    assert here.lines("undo last --dry-run")[-3:] == ["    - 2  DESC  new", "    + 2  DESC  ", "    - 3  EMAIL  added"]
    desc, email = here.ok("undo last --dry-run --json").json["sample"][0]["changes"]
    assert (desc["new"]["value"], email["new"]) == ("", None)


def test_undo_with_conflicts_is_not_requested_without_yes(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks for conflicts again: if they were gone, it would undo the job unasked."""
    job = json.loads(move(here, "--yes", "--json")[-1])["job"]
    name = here.lines("find --url https://new.example/3")[0]
    here.ok(f"set {name} DESC=changed")
    requested: list[str] = []
    monkeypatch.setattr(LocalTarget, "undo", lambda _target, job, **_fields: requested.append(job))
    refused(here(f"undo {job}"), "1 record has conflicting changes", "set these records back to what the job wrote")
    assert requested == []


def test_undo_with_a_problem_in_a_later_step_does_nothing(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step could be done: the first one of its records is not that of the problem."""
    job = json.loads(move(here, "--yes", "--json")[-1])["job"]
    show = UndoPreview._show_change

    def refuse_last(self: UndoPreview, context: Context, change: Any) -> None:
        show(self, context, change)
        if self.total == 9:
            self.refused = Refused(ResponseCode.INSUFFICIENT_PERMISSIONS, "Not the tenth", AdviceKind.UNDO_JOB(job="x"))

    monkeypatch.setattr(UndoPreview, "_show_change", refuse_last)
    for option in ("", "--yes"):
        refused(here(f"undo {job} {option}"), "perseid: Not the tenth", "perseid undo x")
    assert count_by_host(here, "new.example") == 12


def test_dry_run_of_an_undo_shows_extent_and_conflicts(here: Site) -> None:
    job = json.loads(move(here, "--yes", "--json")[-1])["job"]
    done = here.ok("undo last --dry-run")
    assert done.err == "… and 2 more\n"
    lines = done.out.splitlines()
    last = here.lines("find --url https://new.example/9")[0]
    assert lines[4:7] == [last, "    - 1  URL  https://new.example/9", "    + 1  URL  http://old.example/9"]
    assert len(lines) == 4 + 10 * 3
    assert lines[:4] == [
        f"job      {job}",
        "action   rewrite http://old.example/* to https://new.example/*",
        "result   12 records will be restored: undo of rewrite http://old.example/* to https://new.example/*",
        "records  12",
    ]
    name = here.lines("find --url https://new.example/3")[0]
    seq = here.ok(f"set {name} DESC=changed --json").json["seq"]
    assert here.lines(f"jobs undo {job} --dry-run")[2:] == [
        "result     the undo is refused: 1 conflict",
        "records    12",
        "conflicts  1",
        f"    {name}: changed later, in entry {seq}",
    ]
    plan = here.ok(f"undo {job} --dry-run --json").json
    assert (plan["total"], plan["possible"], plan["conflict_count"]) == (12, False, 1)
    assert count_by_host(here, "new.example") == 12


def test_undo_last_is_refused_if_the_last_change_is_not_a_job(here: Site) -> None:
    """The job before a single change is not the last change."""
    job = here.ok("jobs show --json").json["job"]
    (name,) = here.lines("mint 12345/o- --url http://old.example/x")
    for option in ("--yes", "--dry-run"):
        done = here(f"undo last {option}")
        refused(done, "Your last change is not a job: entry ", f"create {name}\n", f": perseid undo {job}\n")
        assert "To take back a single change: perseid history HANDLE shows the earlier values, perseid set" in done.err
    done = here(f"undo {name} --yes")
    refused(done, f"{name} is a handle, and only jobs can be undone; ", f": perseid history {name}\n", code=3)
    assert here.ok(f"undo {job} --yes --json").json["done"] == 12
    here.ok("undo last --yes")
    here.ok(f"set {name} DESC=x --as 300:0.NA/12345")
    here.ok("undo last --dry-run")  # the later change is that of another user


@pytest.mark.usefixtures("terminal")
def test_undo_of_an_undo_says_that_it_does_the_job_again(here: Site) -> None:
    """The same command twice undoes the undo: the prompt and the result say so."""
    mint = "mint 12345/n-"
    for again in (
        f"12 new records become tombstones: undo of {mint}",
        f"12 records: undoes an undo, so {mint} is done again",
        f"12 records: undoes a redo, so {mint} is undone again",
    ):
        assert f"result   {again}" in here.lines("undo last --dry-run")
        done = here.ok("undo last", stdin=b"yes\n")
        assert f"{again}. Continue? [y/N]" in done.err
        assert f"result   {again.replace('become', 'became')}" in done.out.splitlines()
    here.ok("create 12345/new --url http://old.example/new")
    move(here, "--yes")
    assert here.ok("undo last --dry-run --json").json["tombstones"] == 0
    assert (
        "result   1 record was restored: undo of rewrite http://old.example/* to https://new.example/*"
        in here.lines("undo last --yes")
    )


def test_undo_of_a_reserve_leaves_the_identifiers_reserved(here: Site) -> None:
    here.ok("mint 12345/r- --count 2 --reserve")
    result = "2 identifiers stay reserved: undo of reserve 12345/r-"
    assert f"result   {result}" in here.lines("undo last --dry-run")
    done = here.ok("undo last --yes")
    assert f"result   {result}" in done.out.splitlines()
    listed = [json.loads(line) for line in here.lines("list 12345 --json")]
    assert [each["state"] for each in listed if each["handle"].startswith("12345/r-")] == ["reserved"] * 2


def test_undo_of_a_mint_leaves_tombstones(here: Site) -> None:
    (name,) = here.lines("find --url http://old.example/11")
    lines = here.lines("undo last --dry-run")
    at = lines.index(f"{name}: published → tombstone")
    assert "    - 1  URL  http://old.example/11" in lines[at : at + 4]
    assert "created by a change that was undone" in lines[at + 1] + lines[at + 2]
    assert here.ok("undo last --dry-run --json").json["tombstones"] == 12
    assert here.ok("undo last --yes --json").json["done"] == 12
    states = {json.loads(line)["state"] for line in here.lines("list 12345 --json")}
    assert states == {"tombstone"}


def test_job_that_reserves_is_called_so(here: Site) -> None:
    here.ok("reserve 12345 --count 2")
    assert "reserve 12345" in here.lines("jobs list")[0]
    assert here.ok("jobs show last --json").json["kind"] == "reserve"


def test_minting_one_identifier_or_a_refused_mint_creates_no_job(here: Site) -> None:
    before = here.lines("jobs list")
    here.ok("mint 12345/o- --url http://old.example/x")
    assert here("mint 12345/o- --count 3 --as 300:99/x").code == 4
    assert here.lines("jobs list") == before


def test_interrupted_job_prints_the_command_that_resumes_it(here: Site) -> None:
    url = {
        "index": 1,
        "type": "URL",
        "data": {"format": "string", "value": "http://old.example/z"},
        "permissions": "1010",
    }
    document = json.dumps({"handle": "12345/odd", "values": [url]})
    here.ok("create 12345/odd --from -", stdin=document.encode())
    done = here("rewrite", *MOVE[1:], "--yes")
    assert done.code == 4
    job = here.lines("jobs list")[0].split()[0]
    resume, undo = f"perseid jobs resume {job}", f"perseid undo {job}"
    after = f"Job {job} stopped after 10 of 13 changes"
    advice = f"{after}. Fix the cause and resume it: {resume}, or undo its changes: {undo}"
    lines = done.err.splitlines()
    assert advice in lines
    problem = here.ok("jobs show last --json").json["problem"]
    assert problem["type"].endswith("#job-failed")
    assert f"perseid: {problem['detail']}" in lines
    assert f"problem  {problem['detail']}" in here.lines("jobs show last")
    assert here.ok("jobs show last --json").json["parameters"].keys() == {"url", "to", "prefix"}
    assert "unfinished 10 of 13  rewrite http://old.example/* to https://new.example/*" in here.lines("jobs list")[0]
    found = json.loads(here(f"jobs resume {job} --json").err)
    assert found["exit_code"] == 4
    assert found["detail"].endswith(advice)
    stopped = here.ok(f"jobs cancel {job}")
    assert stopped.out.splitlines()[1:] == ["state    canceled", "changed  10"]
    assert stopped.err == f"To do the rest: perseid jobs resume {job}. To undo what is done: perseid undo {job}\n"
    assert "canceled 10 of 13  rewrite" in here.lines("jobs list")[0]
    refused(here(f"jobs cancel {job}"), "already canceled", f"perseid jobs resume {job}")
    assert "Fix the cause and resume it" in here(f"jobs resume {job}").err
    assert "unfinished 10 of 13  rewrite" in here.lines("jobs list")[0]
    assert here.ok(f"jobs cancel {job} --json").json["state"] == "canceled"
    here.ok(f"undo {job} --yes")
    assert "  undone  rewrite" in here.lines("jobs list")[1]
    for command in ("resume", "cancel"):
        refused(here(f"jobs {command} {job}"), f"{job} was undone by")
    refused(here("jobs cancel last"), "is already complete")
    assert count_by_host(here, "old.example") == 13
    assert here("rewrite", *MOVE[1:], "--yes").code == 4
    job = here.lines("jobs list")[0].split()[0]
    here.ok("remove 12345/odd 1")
    resumed = here.ok(f"jobs resume {job} --json").json
    assert (resumed["job"], resumed["total"], resumed["done"]) == (job, 13, 12)
    with Installation.open(here.directory, environ={}) as installation:
        order: dict[str, object] = {"url": "http://none.example/*", "to": "http://x.example/*", "prefix": None}
        uncounted = runner.start_job(installation.registry(), "rewrite", order, LocalIdentity("ann"), "http").id
    assert here.lines(f"jobs resume {uncounted}") == [f"job      {uncounted}", "changed  0"]
    assert count_by_host(here, "new.example") == 12


def test_unknown_or_forbidden_jobs_are_refused(here: Site) -> None:
    refused(here("undo nothing --yes"), "Job nothing not found", code=3)
    refused(here("jobs resume last"), "is already complete")
    refused(here("jobs cancel last"), "is already complete", "perseid undo")
    refused(here("jobs show last --as 300:99/x"), "There are no jobs yet", code=3)
    refused(
        here("rewrite --url http://old.example/* --to https://new.example/ --yes"),
        "Invalid replacement URL https://new.example/",
        code=2,
    )
    assert here("rewrite --url http://old.example/*").code == 2
    assert here("jobs frobnicate").code == 2

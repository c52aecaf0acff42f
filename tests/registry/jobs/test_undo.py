"""Undo: ownership, what is reported about hidden records, and redactions in between."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.ledger.store import jobs
from perseid.names.handle import Handle
from perseid.records.record import PRIVATE_PERMISSIONS, Permission, Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.lifecycle import Redact, Unpublish
from perseid.registry.commands.records import Create, Modify
from perseid.registry.commands.transfer import Transfer
from perseid.registry.identity import Identity
from perseid.registry.jobs import rewrite, runner, undo
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.runner import resume
from perseid.registry.jobs.undo import Conflict, UndoConflict
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.schema.records import Data
from tests.registry.access.token_identities import ANN, RULES, SERVER, furnish, movable, scope, shown
from tests.registry.jobs.runs import run_steps
from tests.registry.registries import OPERATOR, admin, handle, key_holder, registry_in_memory

ORDER = Rewrite("http://old.example/*", "https://new.example/*")
SCOPES = scope("find", "update")
CAROL = key_holder(300, "20.500/carol")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 3)
    with registry_in_memory(rules=RULES) as registry:
        furnish(registry)
        movable(registry, 7)
        yield registry


def run_rewrite(registry: Registry, identity: Identity) -> str:
    """Run a rewrite; return the id of its job."""
    job = rewrite.start(registry, ORDER, identity, "cli", "", 7)
    list(run_steps(registry, job, identity))
    return job.id


def size(registry: Registry) -> int:
    with registry.snapshot() as snapshot:
        return snapshot.reader.size


def url(registry: Registry, name: Handle) -> str:
    with registry.snapshot() as snapshot:
        return snapshot.stored(name).values[0].data.decode()


# Ownership


def test_undo_of_another_user_cannot_be_resumed(here: Registry) -> None:
    """They could not follow its progress; nothing is done before that is known."""
    job = run_rewrite(here, ANN)
    undo_job = undo.start(here, job, OPERATOR, "cli")
    next(run_steps(here, undo_job, OPERATOR))
    before = size(here)
    for ask in (lambda: undo.start(here, job, ANN, "cli"), lambda: resume(here, undo_job.id, ANN)):
        with pytest.raises(
            Refused, match=rf"is being undone by job {undo_job.id}, which another user started|not found"
        ):
            ask()
    assert size(here) == before
    assert undo.start(here, job, SERVER, "cli").id == undo_job.id, "server administrators see it"
    list(run_steps(here, undo_job, SERVER))
    assert url(here, handle("12345/0")) == "http://old.example/0"


def test_token_issuer_resumes_its_undo_but_token_cannot_resume_issuers(here: Registry) -> None:
    token = shown(here, ANN, SCOPES)
    job = run_rewrite(here, token)
    by_token = undo.start(here, job, token, "http")
    assert undo.start(here, job, ANN, "cli").id == undo.start(here, job, token, "http").id == by_token.id
    list(run_steps(here, by_token, ANN))
    again = run_rewrite(here, token)
    by_ann = undo.start(here, again, ANN, "cli")
    with pytest.raises(Refused, match=f"is being undone by job {by_ann.id}"):
        undo.start(here, again, token, "http")


def test_concurrent_undo_of_another_user_is_refused(here: Registry) -> None:
    job = run_rewrite(here, ANN)
    preview = undo.UndoPreview(here, job, ANN)
    while preview.advance():
        pass
    undo_job = undo.start(here, job, OPERATOR, "cli")
    with pytest.raises(Refused, match=f"is being undone by job {undo_job.id}"):
        preview.start("cli")


def test_last_is_never_the_job_of_another_user(here: Registry) -> None:
    """Not even for a server administrator, who sees all jobs."""
    job, before = run_rewrite(here, ANN), size(here)
    for identity in (OPERATOR, SERVER, shown(here, ANN, SCOPES)):
        with pytest.raises(Refused, match="You have not started a job") as refused:
            undo.UndoPreview(here, "last", identity)
        assert refused.value.advice == AdviceKind.LIST_JOBS()
    assert size(here) == before + 1, "the token"
    assert undo.UndoPreview(here, job, OPERATOR).original.id == job


def test_change_with_a_token_is_the_last_change_of_its_issuer(here: Registry) -> None:
    token, other = shown(here, ANN, SCOPES), shown(here, ANN, SCOPES)
    job = run_rewrite(here, other)
    assert undo.UndoPreview(here, "last", ANN).original.id == job
    seq = here.do(Modify(handle("12345/1"), (Value.text(1, "URL", "https://other.example/"),)), token, "http").seq
    with pytest.raises(Refused, match=f"Your last change is not a job: entry {seq}, ") as refused:
        undo.UndoPreview(here, "last", ANN)
    assert refused.value.advice == AdviceKind.UNDO_EARLIER_JOB(job=job)
    assert undo.UndoPreview(here, "last", other).original.id == job, "a token sees what was done with it only"


# What is shown before


def preview(registry: Registry, job: str, identity: Identity) -> undo.UndoPreview:
    """Return the complete preview of an undo."""
    found = undo.UndoPreview(registry, job, identity)
    while found.advance():
        pass
    return found


def test_preview_shows_what_changes_back(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MAX_UNDONE_SHOWN", 5)
    found = preview(here, run_rewrite(here, ANN), ANN)
    assert (found.total, len(found.sample), found.reserved) == (7, 5, 0)
    first = found.sample[0]
    number = first.handle.rpartition("/")[2]
    (change,) = first.changes
    data = [Data("string", f"{url}/{number}") for url in ("https://new.example", "http://old.example")]
    assert [change.old, change.new] == data
    assert (first.state, first.new_state) == ("published", "published")


def test_preview_shows_no_values_without_access_to_private_ones(here: Registry) -> None:
    """An earlier version has values that the public no longer sees: they require `read`."""
    token = shown(here, ANN, SCOPES)
    job = run_rewrite(here, token)
    assert (preview(here, job, token).total, preview(here, job, token).sample) == (7, [])
    assert len(preview(here, job, ANN).sample) == 7


def test_preview_shows_no_values_that_nobody_can_read(here: Registry) -> None:
    name = handle("12345/sealed")
    kept = (Value.text(1, "URL", "https://one.example/"), admin(100, str(ANN)))
    values = [Value(2, "NOTE", text, permissions=Permission.ADMIN_WRITE) for text in (b"first", b"second")]
    shown = Value(3, "NOTE", b"open", permissions=PRIVATE_PERMISSIONS)
    here.do(Create(name, (*kept, values[0], replace(values[0], index=4), replace(shown, index=5))), ANN, "cli")
    job = runner.start_job(here, "test", {}, ANN, "cli")
    changed = (*kept, values[1], shown, replace(shown, index=4), replace(values[0], index=5))
    here.do(Create(name, changed, overwrite=True), ANN, "cli", job_id=job.id)
    here.ledger.change(jobs.EndJob(job.id))
    found = preview(here, job.id, ANN)
    assert found.refused is None
    (record,) = found.sample
    assert [(change.index, change.old and change.old.value) for change in record.changes] == [(3, "open")]


@pytest.mark.parametrize("first", ["own", "other"])
def test_preview_says_what_the_caller_cannot_undo(here: Registry, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """A record that a job created for others, whose administrators it did not name, also after the first step."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 1)
    job = runner.start_job(here, "test", {}, ANN, "cli")
    url = Value.text(1, "URL", "https://one.example/")
    administrators = {"own": "300:0.NA/12345", "other": "300:0.NA/0.NA"}
    created = {name: Create(handle(f"12345/{name}"), (url, admin(100, by))) for name, by in administrators.items()}
    for name in sorted(created, key=lambda name: name != first):
        here.do(created[name], ANN, "cli", job_id=job.id)
    here.ledger.change(jobs.EndJob(job.id))
    found = preview(here, job.id, ANN)
    assert found.refused is not None
    assert "cannot create a tombstone for 12345/other: requires permission DELETE_HANDLE" in found.refused.reason
    assert (found.total, found.conflict_count, found.tombstones) == (2, 0, 2)
    with pytest.raises(Refused, match="cannot create a tombstone for 12345/other"):
        found.start("cli")


# Conflict details


def test_conflict_details_are_withheld_without_access(here: Registry) -> None:
    """A former administrator learns neither how often it changed nor in which entry."""
    job = run_rewrite(here, ANN)
    transferred, own = handle("12345/1"), handle("12345/2")
    here.do(Transfer(transferred, ValueRef(300, "0.NA/0.NA")), ANN, "cli")
    here.do(Unpublish(transferred), SERVER, "cli")
    for number in range(2):
        here.do(Modify(transferred, (Value.text(1, "URL", f"https://secret.example/{number}"),)), SERVER, "cli")
    last = here.do(Modify(own, (Value.text(1, "URL", "https://other.example/"),)), ANN, "cli").seq
    with pytest.raises(UndoConflict, match="2 records have conflicting changes") as caught:
        undo.start(here, job, ANN, "cli")
    why = f"changed later, in entry {last}"
    assert sorted(caught.value.conflicts, key=lambda each: each.handle) == [
        Conflict(str(transferred), None, "details withheld: you cannot read its history"),
        Conflict(str(own), last, why, changed_later=True),
    ]
    listed = f"12345/2: {why}; 12345/1: details withheld: you cannot read its history"
    assert caught.value.reason.endswith(f"2 records have conflicting changes: {listed}")
    with pytest.raises(UndoConflict, match=r"12345/1: changed later, in entry \d+ \(the last of 4 changes\)"):
        undo.start(here, job, SERVER, "cli")


def test_details_of_conflicts_during_undo_are_withheld_without_access(here: Registry) -> None:
    job = run_rewrite(here, ANN)
    undo_job = undo.start(here, job, ANN, "cli")
    running = run_steps(here, undo_job, ANN)
    next(running)
    here.do(Transfer(handle("12345/0"), ValueRef(300, "0.NA/0.NA")), ANN, "cli")
    with pytest.raises(UndoConflict) as caught:
        list(running)
    assert caught.value.conflicts == [Conflict("12345/0", None, "details withheld: you cannot read its history")]
    assert caught.value.advice is None


def test_record_that_was_set_back_is_no_conflict(here: Registry) -> None:
    """Its timestamps differ; what the job wrote is there again, so nothing is lost."""
    name, other = handle("12345/1"), handle("12345/2")
    before = url(here, name)
    job = run_rewrite(here, ANN)
    written = {each: Value.text(1, "URL", url(here, each)) for each in (name, other)}
    for each in written:
        here.do(Modify(each, (Value.text(1, "URL", "https://third.example/"),)), ANN, "cli")
    here.do(Modify(name, (written[name],)), ANN, "cli")
    with pytest.raises(UndoConflict, match="1 record has conflicting changes: 12345/2: ") as caught:
        undo.start(here, job, ANN, "cli")
    assert caught.value.advice == AdviceKind.SET_BACK(handle="12345/2")
    here.do(Modify(other, (written[other],)), ANN, "cli")
    list(run_steps(here, undo.start(here, job, ANN, "cli"), ANN))
    assert url(here, name) == before


def test_change_between_two_entries_of_a_job_is_a_conflict(here: Registry) -> None:
    """An undo would lose it, although the record is as the job wrote it."""
    name, job = handle("12345/0"), runner.start_job(here, "test", {}, ANN, "cli")
    for text, job_id in (
        ("https://one.example/", job.id),
        ("https://two.example/", ""),
        ("https://1.example/", job.id),
    ):
        here.do(Modify(name, (Value.text(1, "URL", text),)), ANN, "cli", job_id=job_id)
    here.ledger.change(jobs.EndJob(job.id))
    with pytest.raises(UndoConflict, match="1 record has conflicting changes"):
        undo.start(here, job.id, ANN, "cli")


# Redactions


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_record_changed_twice_is_undone_completely(here: Registry, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Also if earlier data was redacted in between, which left the record unchanged."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", chunk)
    name = handle("12345/0")
    redacted = here.do(Modify(name, (Value.text(1, "URL", "http://old.example/erased"),)), ANN, "cli").seq
    here.do(Modify(name, (Value.text(1, "URL", "http://old.example/0"),)), ANN, "cli")
    job = runner.start_job(here, "test", {}, ANN, "cli")

    def step(of: Handle, text: str) -> None:
        here.do(Modify(of, (Value.text(1, "URL", text),)), ANN, "cli", job_id=job.id)

    step(name, "https://one.example/")
    here.do(Redact(name, 1, redacted, "personal"), OPERATOR, "cli")
    step(handle("12345/1"), "https://one.example/")
    step(name, "https://two.example/")
    here.ledger.change(jobs.EndJob(job.id))
    undo_job = undo.start(here, job.id, ANN, "cli")
    assert undo_job.total == 2
    list(run_steps(here, undo_job, ANN))
    assert url(here, name) == "http://old.example/0"
    assert runner.find_job(here, ANN, undo_job.id).done == 2

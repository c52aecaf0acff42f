"""Jobs: preview, steps, resume, undo, and what undo refuses."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perseid.ledger.backup.archive import save_backup
from perseid.ledger.backup.restore import restore
from perseid.ledger.errors import JobEnded, LedgerError, TooBusy
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Append, Appended, Failed, Outcome, Request
from perseid.ledger.merkle import Signer
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobSteps, find, load_steps, newest_first
from perseid.ledger.store.store import Store
from perseid.ledger.verify import verify
from perseid.names.handle import CaseRule, Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.binary import MAX_BYTES
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.minting import Mint, mint
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Home
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.jobs import rewrite, runner, transfer, undo
from perseid.registry.jobs.rewrite import PlannedRewrite, Rewrite
from perseid.registry.jobs.runner import JobRun, resume
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.jobs.undo import UndoConflict
from perseid.registry.queries.listing import list_handles
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.ledger.crash import run_module
from tests.ledger.ledgers import Machine
from tests.registry.commands.records_in_every_state import (
    ANN,
    LISTER,
    SERVER,
    STRANGER,
    hidden,
    policy,
    put,
    rules,
    value,
)
from tests.registry.jobs.runs import changes, run_steps, run_transfer
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, registry_in_memory

ORDER = Rewrite("http://old.example/*", "https://new.example/x/*")
BOTH = admin(100, "300:12345/ann"), admin(101, "300:12345/lister")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 4)
    with registry_in_memory(rules=rules()) as created:
        listing = Value(100, "HS_ADMIN", Admin(ValueRef(300, "12345/lister"), AdminPermission.LIST_HANDLES).to_bytes())
        add_namespace(created, "12345", "free", listing)
        yield created


def fill(registry: Registry, count: int = 10) -> list[str]:
    names = [f"12345/{number:02}" for number in range(count)]
    for name in names:
        put(registry, *BOTH, value(1, f"http://old.example/{name}"), value(2, "a thing", type_="DESC"), name=name)
    return names


def run_rewrite(registry: Registry, order: Rewrite = ORDER, identity: Identity = OPERATOR, note: str = "") -> Job:
    total = sum(bool(each.changes) for each in rewrite.preview(registry, order, identity))
    job = rewrite.start(registry, order, identity, "cli", note, total)
    assert all(step.total == total for step in run_steps(registry, job, identity))
    return runner.find_job(registry, identity, job.id)


def run_undo(registry: Registry, job: Job, identity: Identity = OPERATOR) -> Job:
    started = undo.start(registry, job.id, identity, "cli")
    list(run_steps(registry, started, identity))
    return runner.find_job(registry, identity, started.id)


def stored(registry: Registry, name: str) -> tuple[State, list[tuple[str, str]]]:
    with registry.snapshot() as snapshot:
        found = snapshot.stored(Handle.parse(name))
    return found.state, [(each.type, each.data.decode("latin-1")) for each in found.values if each.type != "HS_ADMIN"]


def targets(registry: Registry, *names: str) -> list[str]:
    return [next(data for type_, data in stored(registry, name)[1] if type_.startswith("URL")) for name in names]


# Rewriting


def test_rewrite_to_a_value_that_could_not_be_read_back_is_refused(here: Registry) -> None:
    url = "http://old.example/".ljust(MAX_BYTES - 29, "x")
    put(here, *BOTH, value(1, url))
    with pytest.raises(Refused, match="Value 1 would have 1,048,579 bytes"):
        run_rewrite(here)
    assert targets(here, "12345/x") == [url]


def test_rewrite_is_previewed_and_done_as_one_job(here: Registry) -> None:
    names = fill(here)
    put(here, *BOTH, value(1, "http://other.example/"), name="12345/other")
    planned = list(rewrite.preview(here, ORDER, OPERATOR))
    assert [each.handle for each in planned] == names
    assert [(old.data, new.data) for old, new in planned[3].changes] == [
        (b"http://old.example/12345/03", b"https://new.example/x/12345/03")
    ]
    assert targets(here, names[0]) == ["http://old.example/12345/00"], "a preview changes nothing"
    job = run_rewrite(here, note="the host has moved")
    assert (job.kind, job.done, job.total) == ("rewrite", 10, 10)
    assert job.ended_at >= job.started_at
    assert targets(here, *names, "12345/other") == [
        *[f"https://new.example/x/{name}" for name in names],
        "http://other.example/",
    ]
    with here.ledger.open_reader() as reader:
        entries = list(reader.log(job.since))
    assert {each.why for each in entries} == {f"rewrite {job.id}: the host has moved"}
    assert [each.seq in load_steps(here.ledger.log, job.id) for each in entries] == [True] * 10
    assert list(rewrite.preview(here, ORDER, OPERATOR)) == []
    verify(here.ledger.log)


@pytest.mark.parametrize(("count", "steps"), [(3, 1), (10, 3)])
def test_next_step_is_decided_during_a_commit_and_new_records_are_found(
    here: Registry, monkeypatch: pytest.MonkeyPatch, count: int, steps: int
) -> None:
    names = fill(here, count)
    append, decide = here.ledger.append, runner.Step.decide
    decided: list[int] = []
    ahead: list[int] = []

    def spied_append(*requests: Request, **options: Any) -> list[Outcome]:
        meanwhile = options.pop("meanwhile", None)
        if meanwhile is not None:
            before = len(decided)
            meanwhile()
            ahead.append(len(decided) - before)
            if len(ahead) == steps:
                put(here, *BOTH, value(1, "http://old.example/late"), name="12345/late")
        outcomes: list[Outcome] = append(*requests, **options)
        return outcomes

    def spied_decide(step: runner.Step[Any], context: Context) -> Plan[tuple[JobSteps, int]]:
        decided.append(len(step.items))
        return decide(step, context)

    monkeypatch.setattr(here.ledger, "append", spied_append)
    monkeypatch.setattr(runner.Step, "decide", spied_decide)
    assert run_rewrite(here).done == count + 1
    assert ahead == [*[1] * (steps - 1), 0, 0]
    assert targets(here, *names, "12345/late")[-1] == "https://new.example/x/late"


def test_rewrite_changes_only_targets(here: Registry) -> None:
    places = '<locations>\n <location href="http://old.example/a?x=1&amp;y" weight="1" /><!-- x --><location href=\'https://o/\'/></locations>'
    put(
        here,
        *BOTH,
        Value.text(1, "10320/loc", places),
        Value(2, "URL.x", b" HTTP://Old.Example:80/%41 ", ttl=7),
        name="12345/a",
    )
    run_rewrite(here)
    moved = places.replace("http://old.example/a", "https://new.example/x/a")
    assert stored(here, "12345/a")[1] == [("10320/loc", moved), ("URL.x", "https://new.example/x/%41")]
    with here.snapshot() as snapshot:
        assert snapshot.stored(Handle.parse("12345/a")).values[1].ttl == 7


def test_xml_that_cannot_be_rewritten_safely_is_left_and_reported(here: Registry) -> None:
    odd = '<l><location id="href=&quot;" href="http://old&#46;example/a"/><!-- href="http://old.example/b" --></l>'
    put(here, *BOTH, Value.text(1, "10320/loc", odd), name="12345/a")
    (planned,) = rewrite.preview(here, ORDER, OPERATOR)
    assert (planned.changes, [each.index for each in planned.left]) == ((), [1])
    assert run_rewrite(here).done == 0
    assert stored(here, "12345/a")[1] == [("10320/loc", odd)]


def test_only_locations_are_rewritten_in_xml(here: Registry) -> None:
    places = """<l><!-- href="http://old.example/1" --><?x href="http://old.example/2" ?>
        <note href="http://old.example/3"/><x><y href='http://old.example/4'/></x><![CDATA[ href="http://old.example/5"]]>
        <location title='a > href="b"' href="http://old.example/6"/></l>"""
    put(here, *BOTH, Value.text(1, "10320/loc", places), name="12345/a")
    run_rewrite(here)
    moved = places.replace("http://old.example/6", "https://new.example/x/6")
    assert stored(here, "12345/a")[1] == [("10320/loc", moved)]
    deeper = places.replace("<y ", "<location ")
    put(here, *BOTH, Value.text(1, "10320/loc", deeper), name="12345/a")
    (planned,) = rewrite.preview(here, ORDER, OPERATOR)
    assert ([each.index for each in planned.left], run_rewrite(here).done) == ([1], 0), "one looks like a location"


def test_only_locations_that_match_every_criterion_are_rewritten(here: Registry) -> None:
    document = '<locations><location href="http://old.example/a"/><location href="http://old.example/b"/></locations>'
    put(here, *BOTH, Value.text(1, "10320/loc", document), name="12345/xml")
    with here.snapshot() as snapshot:
        since = snapshot.reader.size - 1
    job = run_rewrite(here, Rewrite("http://old.example/*", "https://new.example/*", path="/a", changed_since=since))
    assert runner.load_parameters(job).keys() == {"url", "to", "prefix", "path", "changed_since"}
    moved = document.replace("http://old.example/a", "https://new.example/a")
    assert stored(here, "12345/xml")[1] == [("10320/loc", moved)]


def test_single_url_is_rewritten(here: Registry) -> None:
    names = fill(here, 3)
    assert run_rewrite(here, Rewrite("http://old.example/12345/01", "https://new.example")).done == 1
    assert targets(here, *names)[1] == "https://new.example"


def test_rewrite_into_own_range_happens_once(here: Registry) -> None:
    names = fill(here)
    order = Rewrite("http://old.example/*", "http://old.example/deeper/*")
    job = rewrite.start(here, order, OPERATOR, "cli", "", 10)
    running = run_steps(here, job, OPERATOR)
    next(running)
    put(here, *BOTH, value(1, "http://old.example/deeper/12345/00"), value(3, "changed"), name="12345/00")
    run = resume(here, job.id, OPERATOR)
    assert [step.done for step in changes(run)][-1] == 10
    assert run.job.id == job.id
    assert targets(here, *names) == [f"http://old.example/deeper/{name}" for name in names]
    put(here, *BOTH, value(1, "http://old.example/deeper/deeper/deeper/x"), name="12345/deep")
    assert run_rewrite(here, Rewrite("http://old.example/deeper/*", "http://old.example/*")).done == 11
    assert targets(here, "12345/deep", names[3]) == [
        "http://old.example/deeper/deeper/x",
        "http://old.example/12345/03",
    ]


def test_concurrent_resumes_rewrite_each_record_once(here: Registry) -> None:
    names = fill(here)
    order = Rewrite("http://old.example/*", "http://old.example/deeper/*")
    job = rewrite.start(here, order, OPERATOR, "cli", "", 10)
    running_jobs = [changes(resume(here, job.id, OPERATOR)) for _ in range(2)]
    while running_jobs:
        running_jobs = [each for each in running_jobs if next(each, None) is not None]
    assert targets(here, *names) == [f"http://old.example/deeper/{name}" for name in names]
    assert runner.find_job(here, OPERATOR, job.id).done == 10


@pytest.mark.parametrize("kind", ["rewrite", "transfer", "undo"])
@pytest.mark.parametrize("method", ["execution", "snapshot"])
def test_run_continues_after_an_error(here: Registry, monkeypatch: pytest.MonkeyPatch, kind: str, method: str) -> None:
    """Whether a step or the selection of its records failed; nothing is left out or done twice."""
    names = fill(here)
    if kind == "rewrite":
        job = rewrite.start(here, ORDER, OPERATOR, "cli", "", 10)
    elif kind == "transfer":
        job = transfer.start(here, TransferAll("12345/0", ValueRef(100, "0.NA/12345")), OPERATOR, "cli")
    else:
        job = undo.start(here, run_rewrite(here).id, OPERATOR, "cli")
    run = JobRun(here, job, OPERATOR)
    original, calls, failures = getattr(here, method), 0, 0

    def fail_sometimes(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls in (1, 4):
            raise TooBusy("x")
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(here, method, fail_sometimes)
        left = True
        while left:
            try:
                left = run.advance()
            except TooBusy:
                failures += 1
    assert failures or (kind, method) == ("undo", "snapshot"), "an undo knows its entries"
    assert (run.done, runner.find_job(here, OPERATOR, job.id).done) == (10, 10)
    assert runner.find_job(here, OPERATOR, job.id).ended_at
    with here.snapshot() as snapshot:
        entries = [seq for first, count in load_steps(here.ledger.log, job.id) for seq in range(first, first + count)]
        assert sorted(snapshot.reader.entry(seq).handle for seq in entries) == sorted(names)


def test_steps_have_fewer_large_records(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can write during a step."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 100)
    monkeypatch.setattr(runner, "CHUNK_BYTES", 10_000)
    names = [f"12345/{number:02}" for number in range(12)]
    for number, name in enumerate(names):
        large = value(2, "x" * (4_000 if number < 8 else 30_000), type_="DESC")
        put(here, *BOTH, value(1, f"http://old.example/{name}"), large, name=name)
    moved = run_rewrite(here)
    undone = run_undo(here, moved)
    assert targets(here, *names) == [f"http://old.example/{name}" for name in names]
    given = run_transfer(here, TransferAll("12345/0", ValueRef(100, "0.NA/12345")), OPERATOR)
    for job in (moved, given, undone):
        counts = sorted(count for _, count in load_steps(here.ledger.log, job.id))
        assert (counts[-1], sum(counts)) == (3, 10 if job.kind == "transfer" else 12), job


def test_rewritten_record_is_not_rewritten_again_after_case_rule_change(here: Registry) -> None:
    names = [f"12345/n{number}" for number in range(6)]
    for name in names:
        put(here, *BOTH, value(1, f"http://old.example/{name}"), name=name)
    order = Rewrite("http://old.example/*", "http://old.example/deeper/*")
    job = rewrite.start(here, order, OPERATOR, "cli", "", 6)
    next(run_steps(here, job, OPERATOR))
    here.do(SetPolicy("12345", policy(case=CaseRule.SENSITIVE), change_case=True), OPERATOR, "cli")
    list(changes(resume(here, job.id, OPERATOR)))
    assert targets(here, *names) == [f"http://old.example/deeper/{name}" for name in names]


def test_preview_matches_result(here: Registry) -> None:
    """Neither rewrites unreadable values, nor records of prefixes that are no longer hosted."""
    unreadable = value(2, "http://old.example/2", Permission(0x04))
    put(here, *BOTH, value(1, "http://old.example/1"), unreadable, name="12345/a")
    add_namespace(here, "999", "free")
    put(here, *BOTH, value(1, "http://old.example/3"), name="999/b")
    here.do(Home("0.NA/999", unhome=True), OPERATOR, "cli")
    planned = list(rewrite.preview(here, ORDER, OPERATOR))
    assert [(each.handle, [old.index for old, _ in each.changes]) for each in planned] == [("12345/a", [1])]
    assert run_rewrite(here).done == 1
    assert stored(here, "12345/a")[1] == [("URL", "https://new.example/x/1"), ("URL", "http://old.example/2")]


@pytest.mark.parametrize(
    ("url", "to"),
    [
        ("http://old.example/\udcff*", "https://new.example/*"),
        ("http://old.example/*", "https://new.example/\udcff*"),
        ("http://old.example/*", "https://new.example/"),
        ("http://old.example/", "https://new.example/*"),
        ("http://old.example/*", "https://new.example*"),
        ("http://old.example/*", "https://new*/*"),
        ("http://old.example/*", "new.example/*"),
        ("http://old.example*", "https://new.example/*"),
        ("*://*.old.example/*", "https://new.example/*"),
        ("ht*://old.example/*", "https://new.example/*"),
        ("*://old.example/", "https://new.example/"),
        ("http://old.example/*/x", "https://new.example/*"),
        ("urn:isbn:*", "https://new.example/*"),
        ("", "https://new.example/*"),
        ("http://old.example/*", ""),
    ],
)
def test_invalid_url_patterns_are_refused(here: Registry, url: str, to: str) -> None:
    with pytest.raises(Refused) as refused:
        rewrite.start(here, Rewrite(url, to), OPERATOR, "cli", "", 0)
    assert refused.value.advice in (AdviceKind.URL_PATTERN_EXAMPLE(), AdviceKind.URL_REPLACEMENT_EXAMPLE())
    assert list(newest_first(here.ledger.log)) == []


def test_other_types_and_tombstones_are_left_alone(here: Registry) -> None:
    put(here, *BOTH, value(1, "http://old.example/1", type_="DESC"), name="12345/a")
    put(here, *BOTH, value(1, "http://old.example/1"), name="12345/b", state=State.TOMBSTONE)
    assert run_rewrite(here).done == 0
    assert ORDER.to_url_rewrite().apply(value(1, "x", type_="DESC")) is None


# Rights


def test_only_visible_and_changeable_records_are_rewritten(here: Registry) -> None:
    fill(here, 3)
    put(here, *BOTH, hidden(1, "http://old.example/secret"), name="12345/hidden")
    assert list(rewrite.preview(here, ORDER, STRANGER)) == [], "rewriting requires permission to list or to read"
    assert len(list(rewrite.preview(here, ORDER, ANN))) == 4
    put(here, admin(100, "300:12345/ann"), hidden(1, "http://old.example/secret2"), name="12345/not-his")
    assert run_rewrite(here, identity=LISTER).done == 4
    assert targets(here, "12345/not-his", "12345/hidden") == [
        "http://old.example/secret2",
        "https://new.example/x/secret",
    ]


def test_rewrite_ends_at_first_record_without_permission_and_resumes(here: Registry) -> None:
    names = fill(here, 6)
    put(here, admin(100, "300:12345/ann"), value(1, "http://old.example/12345/05"), name=names[5])
    job = rewrite.start(here, ORDER, LISTER, "cli", "", 6)
    with pytest.raises(Refused, match="MODIFY_VALUE"):
        list(run_steps(here, job, LISTER))
    stopped = runner.find_job(here, LISTER, runner.LAST)
    assert (stopped.done, stopped.total, stopped.ended_at) == (4, 6, 0)
    assert [each.id for each in runner.list_jobs(here, STRANGER)] == []
    for name in (job.id, "nothing"):
        with pytest.raises(Refused, match=f"Job {name} not found"):
            resume(here, name, STRANGER)
    assert [step.done for step in changes(resume(here, job.id, OPERATOR))] == [6]
    with pytest.raises(Refused, match="is already complete"):
        resume(here, job.id, OPERATOR)


def test_read_only_value_is_not_rewritten(here: Registry) -> None:
    put(here, *BOTH, value(1, "http://old.example/1", Permission(0x0A)), name="12345/a")
    with pytest.raises(Refused, match="read-only"):
        run_rewrite(here)


def test_anonymous_cannot_start_jobs(here: Registry) -> None:
    with pytest.raises(Refused, match="Authentication required"):
        rewrite.start(here, ORDER, NOBODY, "cli", "", 1)


# Undoing


def test_undo_restores_records_with_new_entries(here: Registry) -> None:
    names = fill(here)
    before = [stored(here, name) for name in names]
    job = run_rewrite(here)
    undone = run_undo(here, job)
    assert (undone.kind, undone.undoes, undone.done, undone.total) == ("undo", job.id, 10, 10)
    assert [stored(here, name) for name in names] == before
    with here.ledger.open_reader() as reader:
        assert reader.size == undone.since + 10 == job.since + 20
    with pytest.raises(Refused, match=f"{job.id} was undone by job {undone.id}"):
        run_undo(here, job)
    again = run_undo(here, undone)
    assert targets(here, names[4]) == ["https://new.example/x/12345/04"]
    assert runner.UndoIndex.of(here, undone.id).effective_undo(undone.id) == again.id
    verify(here.ledger.log)


def test_later_changes_prevent_undo(here: Registry) -> None:
    names = fill(here, 30)
    job = run_rewrite(here)
    for name in names[:25]:
        put(here, *BOTH, value(1, "https://third.example/"), name=name)
    last = put(here, *BOTH, value(1, "https://fourth.example/"), name=names[7])
    size = here.ledger.log
    with size.open_reader() as reader:
        entries = reader.size
    with pytest.raises(UndoConflict, match="25 records have conflicting changes") as caught:
        run_undo(here, job)
    assert sorted(each.handle for each in caught.value.conflicts) == names[:25]
    why = f"12345/07: changed later, in entry {last} (the last of 2 changes)"
    assert why in {f"{each.handle}: {each.why}" for each in caught.value.conflicts}
    assert "; and 5 more" in caught.value.reason
    with size.open_reader() as reader:
        assert reader.size == entries, "nothing is undone"


def test_conflicts_are_counted_and_limited(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither many records nor many changes of one are all kept in memory."""
    monkeypatch.setattr(undo, "MAX_LATER_CHANGES", 3)
    names = fill(here, 6)
    job = run_rewrite(here)
    for number, name in enumerate(names):
        for _ in range(number):
            put(here, *BOTH, value(1, "https://third.example/"), name=name)
    preview = undo.UndoPreview(here, job.id, OPERATOR, max_conflicts=2)
    while preview.advance():
        pass
    assert (preview.total, preview.conflict_count, len(preview.conflicts)) == (6, 5, 2)
    assert [each.why.partition(" (the last of ")[2] for each in preview.conflicts] == ["3 or more changes)"] * 2
    with pytest.raises(UndoConflict, match="5 records have conflicting changes") as caught:
        preview.start("cli")
    assert "; and 3 more" in caught.value.reason
    assert len(undoing_later(here, job)) == 5


def test_change_during_undo_ends_it(here: Registry) -> None:
    names = fill(here)
    job = run_rewrite(here)
    started = undo.start(here, job.id, OPERATOR, "cli")
    running = run_steps(here, started, OPERATOR)
    next(running)
    put(here, *BOTH, value(1, "https://third.example/"), name=names[0])
    put(here, *BOTH, value(1, "https://third.example/"), name=names[9])
    with pytest.raises(UndoConflict, match="12345/00"):
        list(running)
    with pytest.raises(UndoConflict) as caught:
        resume(here, started.id, OPERATOR)
    assert [each.handle for each in caught.value.conflicts] == [names[0]], "undone records can be changed"
    put(here, *BOTH, *old_values(here, job, names[0]), name=names[0])
    with pytest.raises(Refused, match="an undo cannot be canceled"):
        runner.cancel(here, started.id, OPERATOR)
    assert runner.find_job(here, OPERATOR, started.id).ended_at == 0
    assert undoing_later(here, job) == [names[0]]


def old_values(registry: Registry, job: Job, name: str) -> tuple[Value, ...]:
    with registry.snapshot() as snapshot:
        entry = snapshot.reader.as_of(snapshot.stored(Handle.parse(name)).key, job.since)
    assert entry is not None
    return tuple([each for each in entry.record() if each.type != "HS_ADMIN"])


def undoing_later(registry: Registry, job: Job) -> list[str]:
    with pytest.raises(UndoConflict) as caught:
        undo.start(registry, job.id, OPERATOR, "cli")
    return [each.handle for each in caught.value.conflicts]


def test_concurrent_undos_are_one_job(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    names = fill(here, 20)
    before = [stored(here, name) for name in names]
    job = run_rewrite(here)
    started: list[Job] = []

    def begin_between(*arguments: object) -> Job:
        monkeypatch.setattr(runner, "start_job", begin)
        started.append(undo.start(here, job.id, OPERATOR, "cli"))
        return begin(*arguments, total=20, undoes=job.id)  # type: ignore[arg-type]

    begin = runner.start_job
    monkeypatch.setattr(runner, "start_job", lambda *arguments, **_: begin_between(*arguments))
    started.append(undo.start(here, job.id, OPERATOR, "cli"))
    assert started[0].id == started[1].id
    running_jobs = [run_steps(here, each, OPERATOR) for each in started]
    while running_jobs:
        running_jobs = [each for each in running_jobs if next(each, None) is not None]
    assert [stored(here, name) for name in names] == before
    assert runner.find_job(here, OPERATOR, started[0].id).done == 20


def test_job_being_undone_cannot_be_resumed(here: Registry) -> None:
    names = fill(here)
    before = [stored(here, name) for name in names]
    job = rewrite.start(here, ORDER, OPERATOR, "cli", "", 10)
    running = run_steps(here, job, OPERATOR)
    next(running)
    undone = run_undo(here, job)
    with pytest.raises(LedgerError, match=f"{job.id} was completed, canceled or undone"):
        next(running)
    with pytest.raises(Refused, match=f"{job.id} was undone by job {undone.id}"):
        resume(here, job.id, OPERATOR)
    assert (runner.find_job(here, OPERATOR, job.id).ended_at > 0, undone.done) == (True, 4)
    assert [stored(here, name) for name in names] == before


def test_canceled_job_is_not_reopened_beside_its_undo(here: Registry) -> None:
    """Whether the undo started or ended, or the job was resumed and canceled again, after this one had checked it."""
    names = fill(here)
    before = [stored(here, name) for name in names]
    job = rewrite.start(here, ORDER, OPERATOR, "cli", "", 10)
    next(run_steps(here, job, OPERATOR))
    runner.cancel(here, job.id, OPERATOR)
    known = runner.get_unfinished_job(here, job.id, OPERATOR)
    undoing = undo.start(here, job.id, OPERATOR, "cli")
    with pytest.raises(Refused, match=f"{job.id} is being undone by job {undoing.id}"):
        runner.reopen(here, known)
    list(run_steps(here, undoing, OPERATOR))
    with pytest.raises(Refused, match=f"{job.id} was undone by job {undoing.id}"):
        runner.reopen(here, known)
    assert [stored(here, name) for name in names] == before
    run_undo(here, undoing)
    assert runner.reopen(here, known) == runner.reopen(here, known) == runner.find_job(here, OPERATOR, job.id)
    runner.cancel(here, job.id, OPERATOR)
    with pytest.raises(Refused, match=f"{job.id} was just resumed by another request"):
        runner.reopen(here, replace(known, ended_at=known.ended_at - 1))


def test_undone_undo_has_no_effect(here: Registry) -> None:
    names = fill(here, 6)
    before = [stored(here, name) for name in names]
    job = run_rewrite(here)
    moved = [stored(here, name) for name in names]
    first = run_undo(here, job)
    again = run_undo(here, first)
    assert [runner.UndoIndex.of(here, each.id).effective_undo(each.id) for each in (job, first)] == [None, again.id]
    second = run_undo(here, job)
    assert (second.id != first.id, second.done, [stored(here, name) for name in names]) == (True, 6, before)
    assert runner.UndoIndex.of(here, job.id).effective_undo(job.id) == second.id
    run_undo(here, second)
    assert [stored(here, name) for name in names] == moved
    put(here, *BOTH, value(1, "https://third.example/"), name=names[0])
    assert undoing_later(here, job) == [names[0]]


def test_undo_being_undone_must_finish_first(here: Registry) -> None:
    fill(here, 6)
    job = run_rewrite(here)
    first = undo.start(here, job.id, OPERATOR, "cli")
    next(run_steps(here, first, OPERATOR))
    again = undo.start(here, first.id, OPERATOR, "cli")
    for step in (lambda: run_undo(here, job), lambda: resume(here, first.id, OPERATOR)):
        with pytest.raises(Refused, match=f"{first.id} is being undone by job {again.id}"):
            step()
    list(run_steps(here, again, OPERATOR))
    assert run_undo(here, job).done == 6


def test_redacted_data_prevents_undo(here: Registry) -> None:
    names = fill(here, 3)
    put(here, *BOTH, value(1, "http://old.example/gone"), value(2, "x", type_="DESC"), name=names[2])
    put(here, *BOTH, value(1, "http://old.example/there"), value(2, "x", type_="DESC"), name=names[2])
    job = run_rewrite(here)
    here.do(Redact(Handle.parse(names[1]), 1, job.since, "personal"), OPERATOR, "cli")
    here.do(Redact(Handle.parse(names[2]), 1, job.since - 1, "personal, but of before"), OPERATOR, "cli")
    with pytest.raises(UndoConflict, match=r"12345/01: data of entry \d+ was permanently redacted") as caught:
        run_undo(here, job)
    assert [each.handle for each in caught.value.conflicts] == [names[1]]


def test_undo_requires_permissions_of_inverse_changes(here: Registry) -> None:
    names = fill(here, 3)
    job = run_rewrite(here, identity=LISTER)
    weak = admin(101, "300:12345/lister", AdminPermission.ADD_VALUE | AdminPermission.READ_VALUE)
    assert run_undo(here, job, LISTER).done == 3
    again = run_rewrite(here, identity=OPERATOR)
    with pytest.raises(Refused, match="not found"):
        run_undo(here, again, LISTER)
    put(here, BOTH[0], weak, value(1, "http://old.example/z"), name="12345/zz")
    owned = rewrite.start(here, Rewrite("http://old.example/*", "http://even.older/*"), LISTER, "cli", "", 1)
    with pytest.raises(Refused, match="MODIFY_VALUE"):
        list(run_steps(here, owned, LISTER))
    assert targets(here, *names)[0].startswith("https://new.example/")


def test_refused_undo_does_not_end_job(here: Registry) -> None:
    """A server administrator sees every job, but has no permission on its records without full access."""
    names = fill(here)
    job = rewrite.start(here, ORDER, LISTER, "cli", "", 10)
    running = run_steps(here, job, LISTER)
    next(running)
    with pytest.raises(Refused) as caught:
        undo.start(here, job.id, SERVER, "cli")
    assert caught.value.code is ResponseCode.INVALID_ADMIN
    assert len(list(runner.list_jobs(here, OPERATOR))) == 1
    list(running)
    assert runner.find_job(here, LISTER, job.id).done == 10
    assert all(lead.startswith("https://new.example/") for lead in targets(here, *names))


def test_undo_of_mint_creates_tombstones_and_keeps_reservations(here: Registry) -> None:
    for reserve in (False, True):
        order = Mint("12345/n-", 5, values=(value(1, "https://e.org/"), *BOTH), reserve=reserve)
        order = order if not reserve else Mint("12345/r-", 5, reserve=True, owner=ValueRef(100, "0.NA/12345"))
        job = runner.start_job(here, "mint", {"prefix": "12345"}, OPERATOR, "cli", total=5)
        created = [name for each in mint(here, order, OPERATOR, "cli", job_id=job.id) for name in each.handles]
        runner.complete_or_discard(here, job)
        undone = run_undo(here, runner.find_job(here, OPERATOR, job.id))
        assert undone.done == (0 if reserve else 5)
        wanted = State.RESERVED if reserve else State.TOMBSTONE
        assert [stored(here, str(name))[0] for name in created] == [wanted] * 5
        if not reserve:
            values = str(stored(here, str(created[0]))[1])
            assert "created by a change that was undone" in values
            assert job.id not in values, "jobs are for administrators, and tombstones are public"
            assert run_undo(here, undone).done == 5
            assert stored(here, str(created[0])) == (State.NORMAL, [("URL", "https://e.org/")])
    with here.snapshot() as snapshot:
        assert len(list_handles(snapshot, OPERATOR, "12345").items) == 10


def test_transfer_can_be_undone(here: Registry) -> None:
    names = fill(here, 5)
    job = run_transfer(here, TransferAll("12345/0", ValueRef(100, "0.NA/12345")), OPERATOR, "sold")
    assert (job.kind, job.done, job.note, job.ended_at > 0) == ("transfer", 5, "sold", True)
    assert run_undo(here, job).done == 5
    with here.snapshot() as snapshot:
        assert [each.index for each in snapshot.stored(Handle.parse(names[0])).values] == [1, 2, 100, 101]
    broken = runner.start_job(here, "transfer", {"where": "12345", "to": "300:"}, OPERATOR, "cli")
    with pytest.raises(Refused, match=f"The parameters of job {broken.id} are unreadable"):
        list(changes(resume(here, broken.id, OPERATOR)))
    other = runner.start_job(here, "mint", {}, OPERATOR, "cli")
    with pytest.raises(Refused, match="cannot be resumed"):
        resume(here, other.id, OPERATOR)


def test_undo_restores_unpublished_and_deleted_records(here: Registry) -> None:
    fill(here, 3)
    job = runner.start_job(here, "test", {}, OPERATOR, "cli")
    with here.snapshot() as snapshot:
        drafts = [snapshot.stored(Handle.parse(f"12345/0{number}")) for number in range(3)]
    states = (State.UNPUBLISHED, State.ABSENT, State.TOMBSTONE)
    before = [stored(here, f"12345/0{number}") for number in range(3)]
    for one, state in zip(drafts, states, strict=True):
        values = one.values if state is State.UNPUBLISHED else () if state is State.ABSENT else BOTH
        draft = Draft(Action.UPDATE, state, str(one.handle), "cli", "local:a", values=tuple(values))
        here.ledger.append(Append(draft, job=job.id))
    assert run_undo(here, job).done == 3
    assert [stored(here, f"12345/0{number}") for number in range(3)] == before


# In the ledger


def test_job_steps_contain_its_entries() -> None:
    steps = JobSteps([(7, 2), (3, 1)])
    assert [seq for seq in range(12) if seq in steps] == [3, 7, 8]
    assert list(steps.newest_first()) == [8, 7, 3]
    assert (len(steps), len(steps.with_step(20, 3)), steps.with_step(5, 0)) == (3, 6, steps)


def test_ended_job_accepts_no_steps(registry: Registry) -> None:
    log = registry.ledger.log
    job = runner.start_job(registry, "test", {}, OPERATOR, "cli")

    def append(name: str) -> object:
        draft = Draft(Action.CREATE, State.NORMAL, "12345/x", "cli", "local:a")
        return registry.ledger.append(Append(draft, job=name))[0]

    assert isinstance(append(job.id), Appended)
    registry.ledger.change(jobs.EndJob(job.id))
    with log.open_reader() as reader:
        size = reader.size
    for name in (job.id, "unknown"):
        outcome = append(name)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, JobEnded)
    with log.open_reader() as reader:
        assert (reader.size, reader.steps(job.id), reader.steps(job.id, size)) == (size, [(size, 1)], [])


def test_job_without_changes_is_discarded(here: Registry) -> None:
    job = runner.start_job(here, "mint", {}, OPERATOR, "cli")
    runner.complete_or_discard(here, job)
    assert find(here.ledger.log, job.id) is None


def test_jobs_are_listed_in_pages(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.ledger.store.jobs.PAGE", 2)
    created = {runner.start_job(here, "test", {"n": number}, OPERATOR, "cli").id for number in range(5)}
    assert [each.id for each in runner.list_jobs(here, OPERATOR)] == sorted(created, reverse=True), (
        "all started at the same time"
    )


def test_backup_contains_jobs(here: Registry, tmp_path: Path) -> None:
    names = fill(here, 6)
    job = run_rewrite(here)
    save_backup(here.ledger.log, tmp_path / "backup")
    store = Store.sqlite(tmp_path / "restored.db")
    store.upgrade()
    log = Log(store, Machine().clock(), random.Random(2).randbytes)
    restore([tmp_path / "backup"], log, lambda origin: Signer.generate(origin, bytes(32)), ("cli", "local:a"))
    assert find(log, job.id) == job
    assert list(load_steps(log, job.id).newest_first()) == list(load_steps(here.ledger.log, job.id).newest_first())
    store.close()
    assert isinstance(
        next(iter(rewrite.preview(here, Rewrite("https://new.example/*", "http://a.b/*"), OPERATOR))), PlannedRewrite
    )
    assert names


def test_both_databases_store_jobs(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 3)
    add_namespace(registry, "12345", "free")
    names = fill(registry, 7)
    job = run_rewrite(registry)
    undone = run_undo(registry, job)
    assert (job.done, undone.done, targets(registry, names[6])) == (7, 7, ["http://old.example/12345/06"])
    assert [each.id for each in runner.list_jobs(registry, OPERATOR)] == sorted([job.id, undone.id], reverse=True)
    runner.complete_or_discard(registry, runner.start_job(registry, "test", {}, OPERATOR, "cli"))
    assert len(list(runner.list_jobs(registry, OPERATOR))) == 2
    verify(registry.ledger.log)


def test_killed_rewrite_can_always_be_resumed() -> None:
    """The next run does the rest, each record once; undo works the same way."""
    done = run_module("tests.registry.jobs.job_crash", "--records", 2_000, "--kills", 2, "--chunk", 160)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2,000 records restored despite 2 kills" in done.stdout

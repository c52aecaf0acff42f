"""Imports: every row is checked before the first change, and applied once, whatever happens in between."""

import errno
import os
import random
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perseid.ledger.errors import TooBusy
from perseid.ledger.log.entry import State
from perseid.ledger.log.requests import Outcome, Request, StateChange
from perseid.ledger.store.jobs import Job, JobSteps, load_steps
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.records.record import PRIVATE_PERMISSIONS, Permission, Value
from perseid.registry.access.authorization import Settings
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Create, CreateRecord, Delete, Modify, PartialValue
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity, TokenIdentity
from perseid.registry.jobs import import_check, import_decisions, import_job, runner, undo
from perseid.registry.jobs.import_check import ImportCheck, KeyTable
from perseid.registry.jobs.import_decisions import Basis, is_unchanged
from perseid.registry.jobs.import_job import minted_rows
from perseid.registry.jobs.import_rows import RowPlan, decide_row
from perseid.registry.jobs.runner import JobRun
from perseid.registry.jobs.spool import EXPIRES, ImportBusy, Spool, SpooledImport
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.results import Refused, StateConflict
from perseid.registry.snapshot import MIN_PREFETCHED
from perseid.schema.imports import ImportRow, ImportState, OnExisting, RowOperation, RowOptions, RowProblem
from perseid.schema.jobs import JobState, PlannedRecord
from perseid.schema.namespaces import Scope
from perseid.schema.records import Data, ValueInput, WarningInfo
from tests.ledger.crash import run_module
from tests.registry.jobs.runs import run_pieces
from tests.registry.registries import (
    OPERATOR,
    add_namespace,
    admin,
    authenticated,
    handle,
    key_holder,
    registry_in_memory,
)

ANN = key_holder(300, "0.NA/12345")
EVE = key_holder(300, "0.NA/77")


@pytest.fixture
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry_in_memory() as made:
        made.spool = tmp_path_factory.mktemp("installation") / "spool"
        add_namespace(made, "12345", "free", admin(100, str(ANN)))
        yield made


def row(line: int, name: str, url: str = "https://example.org/", **fields: object) -> ImportRow:
    operation = fields.pop("operation", RowOperation.CREATE)
    values = (ValueInput("URL", url),) if url else ()
    fields = {"values": values, "columns": ("Link",) * len(values)} | fields
    return ImportRow(line, operation, name, **fields)  # type: ignore[arg-type]


def check(
    made: Registry,
    rows: Iterable[ImportRow | RowProblem],
    by: Identity = OPERATOR,
    options: RowOptions = RowOptions(),  # noqa: B008 - immutable
    **fields: object,
) -> SpooledImport:
    assert made.spool is not None
    spooled = Spool(made.spool).create(str(by), "file.csv", options=options, sha256="ab" * 32, **fields)
    checks = ImportCheck(made, spooled, iter(rows), by, "cli")
    while checks.advance():
        pass
    checks.finish()
    return spooled


def problems(spooled: SpooledImport) -> list[RowProblem]:
    return [msgspec.json.decode(line, type=RowProblem) for line in spooled.problems.read_bytes().splitlines()]


def run(made: Registry, spooled: SpooledImport, by: Identity = OPERATOR, note: str = "") -> Job:
    job = import_job.start(made, spooled, by, "cli", note)
    for _ in run_pieces(made, job, by):
        pass
    return runner.find_job(made, by, job.id)


def get_url(made: Registry, name: str) -> str | None:
    with made.snapshot() as snapshot:
        stored = snapshot.stored(Handle.parse_lenient(name))
    return next((value.data.decode() for value in stored.values if value.type == "URL"), None)


def get_state(made: Registry, name: str) -> State:
    with made.snapshot() as snapshot:
        return snapshot.stored(Handle.parse_lenient(name)).state


def test_all_rows_are_applied_in_steps_and_undone_together(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 3)
    spooled = check(
        registry, [row(number + 2, f"12345/{number}", f"https://a.example/{number}") for number in range(8)]
    )
    assert (spooled.record.state, spooled.record.valid, spooled.record.outcomes) == (
        ImportState.READY,
        8,
        {"created": 8},
    )
    assert get_url(registry, "12345/0") is None, "a check changes nothing"
    job = run(registry, spooled, note="from the catalog")
    assert (job.done, job.total, job.ended_at > 0) == (8, 8, True)
    assert get_url(registry, "12345/7") == "https://a.example/7"
    with registry.snapshot() as snapshot:
        entry = snapshot.stored(handle("12345/7")).entry
    assert entry is not None
    assert entry.why == f"import {job.id}, line 9: from the catalog"
    assert not spooled.path.exists(), "the spool is empty afterwards"
    undone = undo.start(registry, job.id, OPERATOR, "cli")
    for _ in run_pieces(registry, undone, OPERATOR):
        pass
    assert {get_state(registry, f"12345/{number}") for number in range(8)} == {State.TOMBSTONE}


@pytest.mark.parametrize("operation", [RowOperation.CREATE, RowOperation.MINT])
@pytest.mark.parametrize("order", [("TITLE", "URL", "DESC"), ("URL", "TITLE", "DESC"), ("DESC", "TITLE", "URL")])
def test_value_that_the_policy_refuses_is_found_in_any_order(
    registry: Registry, operation: RowOperation, order: tuple[str, ...]
) -> None:
    """The refusal names the index, which depends on the values before it."""
    add_namespace(registry, "2000.01", "cordra")
    name = "2000.01" if operation is RowOperation.MINT else f"2000.01/{'0' * 32}"
    texts = {"TITLE": "Chart 4", "URL": "example.org/chart/4", "DESC": "A chart"}
    values = tuple([ValueInput(type_, texts[type_]) for type_ in order])
    spooled = check(registry, [row(2, name, operation=operation, values=values, columns=order)])
    assert [(each.column, each.value) for each in problems(spooled)] == [("URL", "example.org/chart/4")]


def test_operations_that_do_not_fit_the_record_have_a_fix(registry: Registry) -> None:
    registry.do(Create(handle("12345/x"), (Value.text(1, "URL", "https://example.org/"),)), OPERATOR, "cli")
    again = (ValueInput("URL", "https://example.org/", 1),)
    admin = (ValueInput("HS_ADMIN", Data("admin", {"handle": "0.NA/1", "index": 200, "permissions": "2"})),)
    rows = [
        row(2, "12345/absent", operation=RowOperation.DELETE, values=()),
        row(3, "12345/x", operation=RowOperation.REMOVE, values=(), indexes=(5,)),
        row(4, "12345/x", operation=RowOperation.ADD, values=again),
        row(5, "12345/y", values=admin, columns=()),
    ]
    found = problems(check(registry, rows))
    assert [each.line for each in found if each.fix] == [2, 3, 4, 5]
    assert "To replace the value, use MODIFY" in found[2].fix
    assert found[3].value == '{"handle":"0.NA/1","index":200,"permissions":"2"}'


def test_every_invalid_row_is_reported_with_its_cell(registry: Registry) -> None:
    registry.do(Create(handle("12345/taken"), (Value.text(1, "URL", "https://example.org/"),)), OPERATOR, "cli")
    rows: list[ImportRow | RowProblem] = [
        row(2, "12345/good"),
        row(3, "12345/taken"),
        row(4, "12345/bad-url", "not a url"),
        row(5, "99999/elsewhere"),
        row(6, "no-slash"),
        row(7, "12345/good"),
        RowProblem(8, "Date", "yesterday", "invalid-date", "No date.", "Use ISO 8601."),
        row(9, "12345/state", state="gone"),
        row(10, "12345/admin", "", values=(ValueInput("URL", "https://example.org/"), ValueInput("HS_ADMIN", "x"))),
        row(
            11,
            "12345/ttl",
            "",
            values=(ValueInput("URL", "https://example.org/", ttl=-5), ValueInput("EMAIL", "a@b.c")),
        ),
    ]
    spooled = check(registry, rows)
    assert (spooled.record.state, spooled.record.valid, spooled.record.invalid) == (ImportState.INVALID, 1, 9)
    found = [(each.line, each.column, each.value) for each in problems(spooled)]
    assert found == [
        (3, "handle", "12345/taken"),
        (4, "Link", "not a url"),
        (5, "handle", "99999/elsewhere"),
        (6, "handle", "no-slash"),
        (7, "handle", "12345/good"),
        (8, "Date", "yesterday"),
        (9, "state", "gone"),
        (10, "HS_ADMIN", "x"),
        (11, "URL", "https://example.org/"),
    ]
    assert all(each.message.endswith(".") and each.rule for each in problems(spooled))
    assert "lines 2 and 7" in problems(spooled)[4].message
    with pytest.raises(StateConflict):
        import_job.start(registry, spooled, OPERATOR, "cli")
    assert get_url(registry, "12345/good") is None
    skipping = check(registry, rows, skip_invalid=True)
    assert run(registry, skipping).done == 1
    assert get_url(registry, "12345/good") == "https://example.org/"


def test_existing_records_are_skipped_or_updated(registry: Registry) -> None:
    values = (Value.text(1, "URL", "https://old.example/"), Value.text(2, "TITLE", "Map"))
    for name in ("a", "b"):
        registry.do(Create(handle(f"12345/{name}"), values), OPERATOR, "cli")
    rows = [row(2, "12345/a", "https://new.example/"), row(3, "12345/b", "https://old.example/"), row(4, "12345/c")]
    skipped = check(registry, rows, options=RowOptions(OnExisting.SKIP))
    assert skipped.record.outcomes == {"skipped": 2, "created": 1}
    updated = check(registry, rows, options=RowOptions(OnExisting.UPDATE))
    assert updated.record.outcomes == {"updated": 1, "unchanged": 1, "created": 1}
    (change,) = [msgspec.json.decode(line, type=PlannedRecord) for line in updated.changes.read_bytes().splitlines()]
    data = Data("string", "https://old.example/"), Data("string", "https://new.example/")
    assert (change.handle, change.changes[0].old, change.changes[0].new) == ("12345/a", *data)
    job = run(registry, updated)
    assert job.done == 2
    with registry.snapshot() as snapshot:
        texts = [value.data.decode() for value in snapshot.stored(handle("12345/a")).values[:2]]
    assert texts == ["https://new.example/", "Map"], "values that the row does not name stay"


def test_changes_show_private_values_only_to_those_who_can_read_them(registry: Registry) -> None:
    """The permission to modify a value is not the one to read what it was."""
    may_modify = AdminPermission.MODIFY_VALUE | AdminPermission.ADD_VALUE
    for name, permissions in (("private", PRIVATE_PERMISSIONS), ("sealed", Permission.ADMIN_WRITE)):
        url = Value(1, "URL", b"https://old.example/", permissions=permissions)
        desc = Value.text(2, "DESC", "old")
        values = (url, desc, admin(100, str(ANN)), admin(101, str(EVE), may_modify))
        registry.do(Create(handle(f"12345/{name}"), values), OPERATOR, "cli")
    inputs = (ValueInput("URL", "https://new.example/"), ValueInput("DESC", "new"))
    rows = [row(2, "12345/private", values=inputs), row(3, "12345/sealed", values=inputs)]
    for by, shown in ((EVE, [[2], [2]]), (ANN, [[1, 2], [2]])):
        spooled = check(registry, rows, by, options=RowOptions(OnExisting.UPDATE))
        records = [msgspec.json.decode(line, type=PlannedRecord) for line in spooled.changes.read_bytes().splitlines()]
        assert [[change.index for change in record.changes] for record in records] == shown


@pytest.mark.parametrize("on_existing", [OnExisting.UPDATE, OnExisting.SKIP])
def test_second_row_of_a_handle_is_a_problem_whatever_the_first_changes(
    registry: Registry, on_existing: OnExisting
) -> None:
    for name in ("a", "b"):
        registry.do(Create(handle(f"12345/{name}"), (Value.text(1, "URL", "https://old.example/"),)), OPERATOR, "cli")
    rows = [row(2, "12345/a", "https://old.example/"), row(3, "12345/b", "https://new.example/"), row(4, "12345/c")]
    again = [row(line, f"12345/{name}", "https://x.example/") for line, name in ((5, "A"), (6, "b"), (7, "c"))]
    found = problems(check(registry, [*rows, *again], options=RowOptions(on_existing)))
    assert [each.message for each in found] == [
        "Handle 12345/A is in the file twice, in lines 2 and 5: 12345/a is the same handle.",
        "Handle 12345/b is in the file twice, in lines 3 and 6.",
        "Handle 12345/c is in the file twice, in lines 4 and 7.",
    ]


def test_reserved_row_to_mint_loses_no_value(registry: Registry) -> None:
    rows = [
        row(line, "12345", url, operation=RowOperation.MINT, state="reserved")
        for line, url in ((2, ""), (3, "https://a.example/"))
    ]
    spooled = check(registry, rows)
    (found,) = problems(spooled)
    assert (found.line, found.message) == (3, "A reserved handle cannot have values.")
    assert spooled.record.outcomes == {"minted": 1}


def test_operation_after_a_deletion_is_not_a_duplicate(registry: Registry) -> None:
    registry.do(Create(handle("12345/a"), ()), OPERATOR, "cli")
    delete = row(1, "12345/a", "", operation=RowOperation.DELETE)
    (found,) = problems(check(registry, [delete, row(2, "12345/a")]))
    assert found.message.startswith("Handle 12345/a was deleted, and a deleted handle is not reused")


def test_texts_are_literal(registry: Registry) -> None:
    values = (ValueInput("NOTE", "@/etc/passwd"), ValueInput("NOTE", "base64:aGk="), ValueInput("NOTE", "=1+1"))
    assert run(registry, check(registry, [row(2, "12345/x", values=values, columns=())])).done == 1
    with registry.snapshot() as snapshot:
        texts = [value.data.decode() for value in snapshot.stored(handle("12345/x")).values[:3]]
    assert texts == ["@/etc/passwd", "base64:aGk=", "=1+1"]


def test_undo_of_an_import_hosts_prefixes_as_before(registry: Registry) -> None:
    def change(*rows: ImportRow) -> Job:
        return run(registry, check(registry, rows))

    def undo_(job: Job) -> Job:
        preview = undo.UndoPreview(registry, job.id, OPERATOR)
        while preview.advance():
            pass
        assert preview.conflicts == []
        undone = preview.start("cli")
        for _ in run_pieces(registry, undone, OPERATOR):
            pass
        return undone

    def hosting(prefix: str) -> tuple[bool, bool]:
        with registry.snapshot() as snapshot:
            return snapshot.is_homed(f"0.NA/{prefix}"), snapshot.policy_entry(prefix) is not None

    hosted = change(row(1, "0.NA/555", "", operation=RowOperation.HOME))
    assert hosting("555") == (True, True)
    undone = undo_(hosted)
    assert hosting("555") == (False, False)
    undo_(undone)
    assert hosting("555") == (True, True)
    ended = change(row(1, "0.NA/555", "", operation=RowOperation.UNHOME))
    assert hosting("555") == (False, True)
    undo_(ended)
    assert hosting("555") == (True, True)
    # A prefix with handles stays: their tombstones resolve.
    undo_(change(row(1, "0.NA/556", "", operation=RowOperation.HOME), row(2, "556/x")))
    assert hosting("556") == (True, True)
    assert get_state(registry, "556/x") is State.TOMBSTONE
    # What cannot be undone is a conflict before anything starts.
    created = change(row(1, "556/y"))
    change(row(1, "0.NA/556", "", operation=RowOperation.UNHOME))
    preview = undo.UndoPreview(registry, created.id, OPERATOR)
    while preview.advance():
        pass
    assert [conflict.handle for conflict in preview.conflicts] == ["556/y"]


def test_row_can_depend_on_earlier_rows(registry: Registry) -> None:
    """A batch file may create a prefix, a handle in it, and change that again."""
    rows = [
        row(1, "0.NA/555", "", operation=RowOperation.HOME),
        row(2, "555/x", "https://a.example/"),
        row(3, "555/x", "", operation=RowOperation.ADD, values=(ValueInput("EMAIL", "a@b.example", index=2),)),
        row(4, "555/x", "", operation=RowOperation.MODIFY, values=(ValueInput("URL", "https://b.example/", index=1),)),
        row(5, "555/x", "", operation=RowOperation.REMOVE, indexes=(2,)),
        row(6, "555/y"),
        row(7, "555/y", "", operation=RowOperation.DELETE),
        row(8, "0.NA/555", "", operation=RowOperation.UNHOME),
    ]
    spooled = check(registry, rows)
    assert problems(spooled) == []
    assert run(registry, spooled).ended_at
    assert get_url(registry, "555/x") == "https://b.example/"
    assert (get_state(registry, "555/x"), get_state(registry, "555/y")) == (State.NORMAL, State.ABSENT)
    invalid = check(
        registry, [rows[0], row(2, "555/z"), row(9, "555/z", "", operation=RowOperation.REMOVE, indexes=(7,))]
    )
    assert [each.line for each in problems(invalid)] == [9]


def test_row_that_was_left_for_the_next_snapshot_is_checked_there(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = list[int]()

    def decide(context: Context, row: ImportRow, options: RowOptions) -> RowPlan:
        decided.append(row.line)
        if decided == [2, 3]:
            raise runner.DeferToNextChunk
        return decide_row(context, row, options)

    monkeypatch.setattr(import_check, "decide_row", decide)
    spooled = check(registry, [row(line, f"12345/{line}") for line in (2, 3, 4)])
    assert (decided, spooled.record.valid) == ([2, 3, 3, 4], 3)


def test_states_are_kept(registry: Registry) -> None:
    gone = (ValueInput("TOMBSTONE_REASON", "lost"),)
    with registry.snapshot() as snapshot:
        gone = (ValueInput(snapshot.policy("12345").tombstone_reason_type, "lost"),)
    rows = [
        row(2, "12345/public", state="published"),
        row(3, "12345/hidden", state="unpublished"),
        row(4, "12345/later", "", state="reserved"),
        row(5, "12345/gone", values=gone, columns=(), state="tombstone"),
    ]
    spooled = check(registry, rows, ANN)
    assert problems(spooled) == []
    run(registry, spooled, ANN)
    names = ("public", "hidden", "later", "gone")
    expected = (State.NORMAL, State.UNPUBLISHED, State.RESERVED, State.TOMBSTONE)
    assert tuple(get_state(registry, f"12345/{name}") for name in names) == expected


def test_reason_of_a_tombstone_gets_the_type_of_the_policy(registry: Registry) -> None:
    """Exports of other services and namespaces have the default type (S8)."""
    add_namespace(registry, "88", replace(PROFILES["free"], tombstone_reason_type="21.T1/gone"))
    default = (ValueInput(PROFILES["free"].tombstone_reason_type, "lost"),)
    own = (ValueInput("21.T1/gone", "sold"), *default)
    names = {"88/default": default, "88/own": own}
    rows = [
        row(line, name, values=values, columns=(), state="tombstone")
        for line, (name, values) in enumerate(names.items(), 2)
    ]
    run(registry, check(registry, rows))
    with registry.snapshot() as snapshot:
        stored = [snapshot.stored(handle(name)).values for name in names]
    assert [value.data for record in stored for value in record if value.type == "21.T1/gone"] == [b"lost", b"sold"]
    (found,) = problems(check(registry, [row(2, "88/without", state="tombstone")]))
    assert found.fix == "Add the reason as a value of type 21.T1/gone: a column of that name, or a member of values."


def test_permissions_are_those_of_single_changes(registry: Registry) -> None:
    spooled = check(registry, [row(2, "12345/x")], EVE)
    assert [each.line for each in problems(spooled)] == [2]
    assert check(registry, [row(2, "12345/x")], ANN).record.state is ImportState.READY
    with_dates = check(registry, [row(2, "12345/x")], ANN, RowOptions(preserve_dates=True))
    assert with_dates.record.state is ImportState.INVALID, "only server administrators keep dates"


def test_reserved_row_does_not_reveal_hidden_handles(registry: Registry) -> None:
    """Who may create elsewhere gets the same refusal for hidden, free and foreign handles, also with `skip`."""
    registry.do(Create(handle("12345/hidden"), (), published=False), OPERATOR, "cli")
    add_namespace(registry, "77", "free", admin(100, str(EVE)))
    names = ("77/mine", "12345/hidden", "12345/free", "99999/elsewhere")
    rows = [row(line, name, "", state="reserved") for line, name in enumerate(names, 2)]
    skip = RowOptions(OnExisting.SKIP)
    found = problems(check(registry, rows, EVE, skip))
    assert [each.line for each in found] == [3, 4, 5]
    assert found[0].message.replace("hidden", "free") == found[1].message
    assert check(registry, rows[1:3], ANN, skip).record.outcomes == {"skipped": 1, "created": 1}


def test_row_that_somebody_else_has_taken_stops_the_job_resumably(registry: Registry) -> None:
    spooled = check(registry, [row(number + 2, f"12345/{number}") for number in range(5)])
    taken = registry.do(Create(handle("12345/3"), ()), OPERATOR, "cli")
    job = import_job.start(registry, spooled, OPERATOR, "cli")
    execution = JobRun(registry, job, OPERATOR)
    with pytest.raises(Refused, match=r"^Line 5: Handle 12345/3 already exists") as caught:
        deque(iter(execution.advance, False))
    assert caught.value.advice == AdviceKind.IMPORT_WITH_ON_EXISTING(), "the job keeps its rows and options"
    assert execution.done == 3, "the rows before it are durable"
    undos = runner.UndoIndex.of(registry, job.id)
    assert undos.state(runner.find_job(registry, OPERATOR, job.id)) is JobState.UNFINISHED
    assert taken.seq
    with registry.snapshot() as snapshot:
        assert snapshot.stored(handle("12345/4")).entry is None


def refuse_to_decide(*_: object) -> None:
    raise AssertionError("decided again")


def test_new_records_are_decided_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job uses the decisions of the check, with its own time, and its entries are those of single changes."""
    values = (ValueInput("URL", "https://a.example/"), ValueInput("TITLE", "Ä", 7, permissions="1100"))
    rows = [row(2, "12345/X", values=values, columns=()), row(3, "12345/y", values=values, state="unpublished")]
    monkeypatch.setattr(Registry, "now", lambda _: 1_800_000_000)
    spooled = check(registry, rows, ANN)
    monkeypatch.setattr(Registry, "now", lambda _: 1_800_000_999)
    with monkeypatch.context() as patch:
        patch.setattr(import_job, "decide_row", refuse_to_decide)
        run(registry, spooled, ANN)
    partial = (PartialValue("URL", b"https://a.example/"), PartialValue("TITLE", "Ä".encode(), 7, PRIVATE_PERMISSIONS))
    for name, published in (("X", True), ("y", False)):
        registry.do(CreateRecord(handle(f"12345/{name}2"), partial, published=published), ANN, "cli")
        with registry.snapshot() as snapshot:
            one, other = [snapshot.stored(handle(f"12345/{name}{suffix}")) for suffix in ("", "2")]
        assert one.values == other.values
        assert {value.timestamp for value in one.values} == {1_800_000_999}
        assert (one.state, str(one.handle)) == (other.state, f"12345/{name}")


def test_large_records_take_several_steps(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK_BYTES", 2_000)
    spooled = check(
        registry, [row(number, f"12345/{number}", f"https://a.example/{'a' * 900}") for number in range(1, 10)]
    )
    monkeypatch.setattr(import_job, "decide_row", refuse_to_decide)
    job = run(registry, spooled)
    assert [count for _, count in load_steps(registry.ledger.log, job.id)] == [3, 3, 3]


@pytest.mark.parametrize("change", ["policy", "permission", "identity", "program", "record", "no record"])
def test_decisions_of_the_check_are_not_used_after_a_change(
    registry: Registry, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spooled = check(registry, [row(2, "12345/x", "ftp://a.example/")], ANN)
    rows = spooled.rows.read_bytes()
    decided = msgspec.json.decode(rows)["decision"][-1][0].encode()
    other = b64encode(b64decode(decided).replace(b"ftp://a.", b"ftp://b."))
    spooled.rows.write_bytes(rows.replace(decided, other))  # what is used shows
    by, problem = ANN, ""
    if change == "policy":
        policy = replace(PROFILES["free"], url_schemes=("https",), profile="own")
        registry.do(SetPolicy("12345", policy), OPERATOR, "cli")
        problem = "has the scheme ftp"
    elif change == "permission":
        registry.do(Modify(handle("0.NA/12345"), (admin(100, str(EVE)),)), OPERATOR, "cli")
        problem = "ADD_HANDLE"
    elif change == "identity":
        by, problem = EVE, "ADD_HANDLE"
    elif change == "program":
        monkeypatch.setattr(import_decisions, "RULES_VERSION", import_decisions.RULES_VERSION + 1)
    else:
        key = {"record": "00", "no record": "not hexadecimal"}[change]
        spooled.update(basis={**spooled.record.basis, key: "00"})
    job = import_job.start(registry, spooled, by, "cli")
    if problem:
        with pytest.raises(Refused, match=problem):
            [*run_pieces(registry, job, by)]
    else:
        [*run_pieces(registry, job, by)]
    assert get_url(registry, "12345/x") == (None if problem else "ftp://a.example/")


@pytest.mark.parametrize("line", [4, 6])
def test_decisions_by_earlier_settings_are_not_used(
    registry: Registry, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are loaded again during the check, and after it: the caller is no longer a server administrator."""
    monkeypatch.setattr(import_check, "ROWS_PER_SLICE", 2)
    add_namespace(registry, "77", "free", admin(100, str(EVE)))
    rules = registry.rules
    settings = Settings(server_admins=(EVE.reference,), server_admin_full_access=True)
    registry.rules = replace(rules, administration=settings)

    def read_rows() -> Iterator[ImportRow]:
        for number, name in enumerate(("12345/a", "12345/b", "77/a", "77/b"), 2):
            if number == line:
                registry.rules = rules
            yield row(number, name)

    spooled = check(registry, read_rows(), EVE)
    assert spooled.record.valid == 4, "each row was allowed when it was decided"
    registry.rules = rules
    job = import_job.start(registry, spooled, EVE, "cli")
    with pytest.raises(Refused, match="ADD_HANDLE"):
        [*run_pieces(registry, job, EVE)]
    assert get_url(registry, "12345/a") is None


class InOrder(frozenset[Scope]):
    """Scopes in the order of one process: sets of enums have another one in each."""

    order: tuple[Scope, ...]

    def __iter__(self) -> Iterator[Scope]:
        return iter(self.order)

    def __repr__(self) -> str:
        return f"frozenset({{{', '.join(map(repr, self))}}})"


def with_scopes(*scopes: Scope) -> TokenIdentity:
    ordered = InOrder(scopes)
    ordered.order = scopes
    return TokenIdentity(ANN, "k7qpx2ma", ScopeSet(ordered))


def test_decisions_for_a_token_are_used_by_another_process(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of the package on disk do not matter: a later version may have been installed meanwhile."""
    monkeypatch.setattr(metadata, "distribution", refuse_to_decide)
    one, other = with_scopes(Scope.CREATE, Scope.UPDATE), with_scopes(Scope.UPDATE, Scope.CREATE)
    with registry.snapshot() as snapshot:
        basis = Basis(one, "cli")
        basis.add_rules(snapshot.rules)
        assert is_unchanged(basis.describe(), registry.context(snapshot, other, "cli"))
        more = with_scopes(Scope.CREATE, Scope.UPDATE, Scope.DELETE)
        assert not is_unchanged(basis.describe(), registry.context(snapshot, more, "cli"))


def test_step_of_a_token_without_any_permission_is_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deny by default: that the check has decided other rows is no permission."""
    secret = Secret.new(os.urandom)
    registry.do(CreateToken(secret, ScopeSet.of(["create"], None)), OPERATOR, "cli")
    by = authenticated(registry, secret.text())
    spooled = check(registry, [row(2, "12345/x")], by)
    assert spooled.record.basis
    spooled.rows.write_bytes(b"%s\n" % msgspec.json.encode(row(2, "12345/x")))  # without its decision

    def decide_without_requirement(context: Context, of: ImportRow, options: RowOptions) -> RowPlan:
        return decide_row(replace(context, reasons=[]), of, options)

    monkeypatch.setattr(import_job, "decide_row", decide_without_requirement)
    job = import_job.start(registry, spooled, by, "cli")
    with pytest.raises(Refused, match="Tokens cannot do this"):
        [*run_pieces(registry, job, by)]


def test_records_with_a_date_of_creation_get_that_of_the_job(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.do(
        SetPolicy("12345", replace(PROFILES["free"], authority=True, default_creator="0.NA/12345", profile="own")),
        OPERATOR,
        "cli",
    )
    name, values = "12345/x", (ValueInput("URL", "https://a.example/"),)
    monkeypatch.setattr(Registry, "now", lambda _: 1_800_000_000)
    spooled = check(registry, [row(2, name, values=values, columns=())])
    assert problems(spooled) == []
    monkeypatch.setattr(Registry, "now", lambda _: 1_900_000_000)
    run(registry, spooled)
    with registry.snapshot() as snapshot:
        texts = [value.data.decode("utf-8", "replace") for value in snapshot.stored(handle(name)).values]
    assert any("2030-03" in text for text in texts)


def mint_row(line: int, url: str = "https://example.org/") -> ImportRow:
    return row(line, "12345", url, operation=RowOperation.MINT)


def test_minted_handles_are_found_by_line_and_minted_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 4)
    rows = [mint_row(number + 2, f"https://a.example/{number}") for number in range(10)]
    job = run(registry, check(registry, rows))
    found = dict(minted_rows(registry, job))
    assert [*found] == [*range(2, 12)]
    assert [get_url(registry, name) for name in found.values()] == [
        f"https://a.example/{number}" for number in range(10)
    ]
    with pytest.raises(StateConflict, match=job.id):
        import_job.start(registry, check(registry, rows), OPERATOR, "cli")
    assert run(registry, check(registry, rows, mint_again=True)).done == 10
    invalid = check(registry, [mint_row(2), mint_row(3, "nowhere")])
    assert [(each.line, each.column) for each in problems(invalid)] == [(3, "Link")]


def test_file_of_another_user_is_minted_once(registry: Registry) -> None:
    """A job that the caller cannot see is not described, and one under another prefix does not count."""
    rows = [mint_row(2), mint_row(3)]
    reading = {"prefix": "12345", "mint": True}
    waiting = check(registry, rows, ANN, reading=reading)
    job = run(registry, check(registry, rows, reading=reading))
    with pytest.raises(StateConflict) as refused:
        import_job.start(registry, waiting, ANN, "cli")
    assert refused.value.reason == "Handles were minted for this file before, by a job that you cannot see"
    assert refused.value.advice == AdviceKind.CONFIRM_MINT()
    for prefix in ("12345", "12345/maps-"):
        with pytest.raises(StateConflict, match="cannot see"):
            import_job.check_not_minted(registry, ANN, "ab" * 32, prefix)
    import_job.check_not_minted(registry, ANN, "cd" * 32, "12345")
    import_job.check_not_minted(registry, ANN, "ab" * 32, "77")
    with pytest.raises(StateConflict, match=job.id):
        import_job.check_not_minted(registry, OPERATOR, "ab" * 32, "77")
    for _ in run_pieces(registry, undo.start(registry, job.id, OPERATOR, "cli"), OPERATOR):
        pass
    assert run(registry, waiting, ANN).done == 2


def test_one_import_is_started_once(registry: Registry) -> None:
    """Two requests find the import before either has started it."""
    first = check(registry, [row(2, "12345/x")])
    assert registry.spool is not None
    second = Spool(registry.spool).find(first.record.id)
    assert second is not None
    with first.claim(), pytest.raises(ImportBusy, match="another request"):
        import_job.start(registry, second, OPERATOR, "cli")
    job = import_job.start(registry, first, OPERATOR, "cli")
    with pytest.raises(StateConflict, match=f"started before, as job {job.id}") as refused:
        import_job.start(registry, second, OPERATOR, "cli")
    assert refused.value.advice == AdviceKind.LIST_JOBS(), "not to import the file again: the response may be lost"
    first.discard()
    with pytest.raises(StateConflict, match="deleted"):
        import_job.start(registry, second, OPERATOR, "cli")
    assert [job.kind for job in runner.list_jobs(registry, OPERATOR)] == ["import"]


def test_concurrent_imports_of_one_file_mint_it_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [check(registry, [mint_row(2), mint_row(3)]) for _ in range(4)]
    both_look, look = threading.Barrier(2), import_job.check_not_minted

    def look_slowly(made: Registry, by: Identity, sha256: str, prefix: str) -> None:
        look(made, by, sha256, prefix)
        with suppress(threading.BrokenBarrierError):
            both_look.wait(0.2)  # only one thread gets here at a time

    def start(spooled: SpooledImport) -> str | None:
        with suppress(StateConflict):
            return import_job.start(registry, spooled, OPERATOR, "cli").id
        return None

    monkeypatch.setattr(import_job, "check_not_minted", look_slowly)
    with ThreadPoolExecutor(2) as threads:
        (job,) = filter(None, threads.map(start, files[:2]))
    assert start(files[2]) is None, "although nothing is minted yet"
    runner.cancel(registry, job, OPERATOR)
    assert run(registry, files[3]).done == 2


@pytest.mark.parametrize("mint", [False, True])
def test_concurrent_runs_never_repeat_a_row(registry: Registry, monkeypatch: pytest.MonkeyPatch, mint: bool) -> None:
    """Two processes that run a job, each with what it knew before the other one continued."""
    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 3)
    rows = [mint_row(number) if mint else row(number, f"12345/{number}") for number in range(2, 40)]
    job = import_job.start(registry, check(registry, rows), OPERATOR, "cli")
    runs = [JobRun(registry, job, OPERATOR) for _ in range(3)]
    chance = random.Random(1)
    for _ in count():
        if not chance.choice(runs).advance():
            break
    assert [line for line, _ in minted_rows(registry, job)] == [*range(2, 40)]


@pytest.fixture
def commits(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens while steps of three rows are committed."""
    events: list[str] = []
    append, decide = registry.ledger.append, import_job.ImportStep.decide

    def spied_append(*requests: Request, **options: Any) -> list[Outcome]:
        if isinstance(requests[0], StateChange):
            return append(*requests)
        events.append("commit")
        options.pop("meanwhile", lambda: None)()  # before the commit, which can be faster
        outcomes = append(*requests, **options)
        events.append("committed")
        return outcomes

    def spied_decide(step: import_job.ImportStep, context: Context) -> Plan[tuple[JobSteps, int]]:
        events.append(f"decide {step.items[0].line}")
        return decide(step, context)

    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 3)
    monkeypatch.setattr(registry.ledger, "append", spied_append)
    monkeypatch.setattr(import_job.ImportStep, "decide", spied_decide)
    return events


def test_next_step_is_decided_while_one_is_committed(registry: Registry, commits: list[str]) -> None:
    rows = [row(number, f"12345/{number}") for number in range(2, 11)]
    spooled = check(registry, rows)
    job = import_job.start(registry, spooled, OPERATOR, "cli")
    commits.clear()
    done = [(piece.done, piece.processed) for piece in run_pieces(registry, job, OPERATOR)]
    assert done == [(3, 3), (6, 6), (9, 9)], "what was done is known, and durable"
    first, second = ["decide 2", "commit", "decide 5", "committed"], ["commit", "decide 8", "committed"]
    assert commits[:9] == [*first, *second, "commit", "committed"]
    assert [line for line, _ in minted_rows(registry, job)] == [*range(2, 11)]


def test_step_that_depends_on_the_one_before_it_is_decided_after_it(registry: Registry, commits: list[str]) -> None:
    added = (ValueInput("EMAIL", "a@example.org"),)
    rows = [row(number, f"12345/{number}") for number in range(2, 5)]
    rows += [row(number, f"12345/{number - 3}", values=added, operation=RowOperation.ADD) for number in range(5, 8)]
    job = run(registry, check(registry, rows))
    assert [line for line, _ in minted_rows(registry, job)] == [*range(2, 8)]
    assert commits.count("decide 5") == 2
    with registry.snapshot() as snapshot:
        types = [value.type for value in snapshot.stored(handle("12345/4")).values]
    assert "EMAIL" in types


@pytest.mark.usefixtures("commits")
def test_step_that_was_decided_too_early_is_decided_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes a handle of the next step after that was decided; or the commit of this one fails."""
    rows = [row(number, f"12345/{number}") for number in range(2, 11)]
    job = import_job.start(registry, check(registry, rows), OPERATOR, "cli")
    running, spied = JobRun(registry, job, OPERATOR), registry.ledger.append
    fails = [True]

    def fail_once(*requests: Request, **options: Any) -> list[Outcome]:
        options.get("meanwhile", lambda: None)()
        if fails.pop():
            raise TooBusy("the writer is not running")
        return spied(*requests)

    with monkeypatch.context() as patch:
        patch.setattr(registry.ledger, "append", fail_once)
        with pytest.raises(TooBusy):
            deque(iter(running.advance, False))
    assert running.done == 0
    running.advance()
    assert running.done == 3
    registry.do(Create(handle("12345/6"), ()), OPERATOR, "cli")
    with pytest.raises(Refused, match=r"^Line 6: Handle 12345/6 already exists"):
        deque(iter(running.advance, False))
    assert [line for line, _ in minted_rows(registry, job)] == [*range(2, 6)]


def test_refused_row_to_mint_is_named_by_its_line(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy has changed since the check, and the row is not in the first step."""
    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 4)
    policies = [replace(PROFILES["free"], url_schemes=each, profile="own") for each in (("https", "ftp"), ("https",))]
    registry.do(SetPolicy("12345", policies[0]), OPERATOR, "cli")
    spooled = check(registry, [mint_row(line, f"{'ftp' if line == 9 else 'https'}://a.org/") for line in range(2, 12)])
    registry.do(SetPolicy("12345", policies[1]), OPERATOR, "cli")
    job = import_job.start(registry, spooled, OPERATOR, "cli")
    with pytest.raises(Refused, match=r"^Line 9: value 1 of type 'URL', 'ftp://a\.org/', has the scheme ftp"):
        deque(iter(JobRun(registry, job, OPERATOR).advance, False))
    assert [line for line, _ in minted_rows(registry, job)] == [*range(2, 6)]


def test_changes_after_an_import_conflict_with_its_undo(registry: Registry) -> None:
    job = run(registry, check(registry, [row(2, "12345/x"), row(3, "12345/y")]))
    registry.do(Modify(handle("12345/x"), (Value.text(1, "URL", "https://c.example/"),)), OPERATOR, "cli")
    with pytest.raises(undo.UndoConflict):
        undo.start(registry, job.id, OPERATOR, "cli")
    assert get_state(registry, "12345/y") is State.NORMAL


def test_many_rows_have_the_same_problems_as_few(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice with many rows looks its handles up in one query, which finds every spelling and state."""
    for name, published in (("12345/Known", True), ("12345/hidden", False), ("12345/deleted", True)):
        registry.do(Create(handle(name), (), published=published), OPERATOR, "cli")
    registry.do(Delete(handle("12345/deleted")), OPERATOR, "cli")
    names = [f"12345/{number}" for number in range(2 * MIN_PREFETCHED)]
    names[20], names[120], names[150], names[160] = "12345/KNOWN", "12345/Hidden", "12345/DELETED", names[30].upper()
    names[170], names[180] = "12345/é", "99999/x"
    rows = [row(number, name) for number, name in enumerate(names, 2)]
    found = problems(check(registry, rows))
    assert [problem.line for problem in found] == [22, 122, 152, 162, 182]
    monkeypatch.setattr(import_check, "ROWS_PER_SLICE", MIN_PREFETCHED - 1)
    assert problems(check(registry, rows)) == found


def test_handles_that_were_free_at_the_check_stop_a_large_step(registry: Registry) -> None:
    job = import_job.start(
        registry,
        check(registry, [row(number, f"12345/{number}") for number in range(2, 2 + 2 * MIN_PREFETCHED)]),
        OPERATOR,
        "cli",
    )
    registry.do(Create(handle("12345/150"), ()), OPERATOR, "cli")
    with pytest.raises(Refused, match=r"Line 150: .* already exists"):
        [*run_pieces(registry, job, OPERATOR)]
    assert runner.find_job(registry, OPERATOR, job.id).done == 148


@pytest.mark.parametrize("mint", [False, True])
def test_canceled_imports_keep_only_what_resuming_needs_for_a_day(registry: Registry, mint: bool) -> None:
    rows = [mint_row(2) if mint else row(2, "12345/x")]
    spooled = check(registry, rows)
    spooled.create(spooled.source).close()
    job = import_job.start(registry, spooled, OPERATOR, "cli")
    runner.cancel(registry, job.id, OPERATOR)
    assert (spooled.source.exists(), spooled.changes.exists(), spooled.rows.exists()) == (mint, False, True)
    files = Spool(spooled.path.parent)
    for path in (*spooled.path.iterdir(), spooled.path):
        os.utime(path, (0, time.time() - 2 * EXPIRES))
    if mint:
        resumed = runner.resume(registry, job.id, OPERATOR)
        while resumed.advance():
            pass
        assert resumed.done == 1
    else:
        files.remove_expired()
        assert not spooled.path.exists()


def test_resumed_imports_do_not_expire_like_canceled_ones(registry: Registry) -> None:
    spooled = check(registry, [row(2, "12345/x")])
    job = import_job.start(registry, spooled, OPERATOR, "cli")
    runner.cancel(registry, job.id, OPERATOR)
    resumed = runner.resume(registry, job.id, OPERATOR)
    import_job.load_work(registry, resumed.job)
    for path in (*spooled.path.iterdir(), spooled.path):
        os.utime(path, (0, time.time() - 2 * EXPIRES))
    Spool(spooled.path.parent).remove_expired()
    assert spooled.rows.exists()


def test_imports_of_before_whose_warnings_are_texts_are_found(registry: Registry) -> None:
    """Otherwise their jobs could not be resumed, and their files expired after a day."""
    spooled = check(registry, [row(2, "12345/x")])
    spooled.update(warnings=("ü",))
    found = Spool(spooled.path.parent).find(spooled.record.id)
    assert found is not None
    assert found.record.warnings == (WarningInfo("", "ü"),)


@pytest.mark.parametrize("in_memory", [import_check._FIRST_SLOTS, import_check._MAX_SLOTS_IN_MEMORY])
def test_key_table_finds_what_was_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int) -> None:
    monkeypatch.setattr(import_check, "_MAX_SLOTS_IN_MEMORY", in_memory)
    with closing(KeyTable(tmp_path)) as table:
        for number in range(6_000):
            assert table.put(b"%d" % number, number) is None
        assert [table.get(b"%d" % number) for number in range(6_000)] == [*range(6_000)]
        assert table.get(b"none") is None
        assert table.put(b"7", 8) == 7
        is_in_file = str(tmp_path) in Path("/proc/self/maps").read_text()
        assert is_in_file == (in_memory == import_check._FIRST_SLOTS)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert not [*tmp_path.iterdir()]


def test_full_disk_is_an_error_of_the_key_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file that cannot get space would end the process."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(import_check, "_MAX_SLOTS_IN_MEMORY", import_check._FIRST_SLOTS)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with closing(KeyTable(tmp_path)) as table:
        with pytest.raises(OSError, match="No space"):
            deque(table.put(b"%d" % number, number) for number in range(6_000))
        assert table.get(b"5000") == 5_000


def test_killed_commands_never_double_a_row() -> None:
    done = run_module("tests.registry.jobs.import_crash", "--rows", 3_000, "--bad-rows-of", 0, "--rounds", 1)
    assert done.returncode == 0, done.stdout + done.stderr


def test_killed_exports_leave_no_incomplete_file() -> None:
    done = run_module("tests.registry.jobs.export_crash", "--records", 1_000, "--rounds", 2)
    assert done.returncode == 0, done.stdout + done.stderr

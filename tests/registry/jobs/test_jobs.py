"""Changes of many records as one: previewed, carried out in steps, gone on with, undone; and what undoing refuses."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.ledger.backup.archive import save_backup
from perseid.ledger.backup.restore import restore
from perseid.ledger.errors import JobEnded, LedgerError
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Append, Appended, Failed
from perseid.ledger.merkle import Signer
from perseid.ledger.store.jobs import Job, JobSteps, find, load_steps, newest_first
from perseid.ledger.store.store import Store
from perseid.ledger.verify import verify
from perseid.names.handle import CaseRule, Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.value import Permission, Value, ValueRef
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.minting import Mint, MintInputs, mint
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Home
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner
from perseid.registry.jobs import rewrite as rewriting
from perseid.registry.jobs import undo as undoing
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import PlannedRewrite, Rewrite, UrlRewrite
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.jobs.undo import UndoConflict
from perseid.registry.queries.listing import list_handles
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.ledger.crash import Place
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
from tests.registry.jobs import job_crash
from tests.registry.jobs.transfers import hand_over
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, registry_in_memory

ORDER = Rewrite("http://old.example/*", "https://new.example/x/*")
BOTH = admin(100, "300:12345/ann"), admin(101, "300:12345/lister")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 4)
    with registry_in_memory(rules=rules()) as made:
        listing = Value(100, "HS_ADMIN", Admin(ValueRef(300, "12345/lister"), AdminPermission.LIST_HANDLES).to_bytes())
        add_namespace(made, "12345", "free", listing)
        yield made


def fill(registry: Registry, count: int = 10) -> list[str]:
    names = [f"12345/{number:02}" for number in range(count)]
    for name in names:
        put(registry, *BOTH, value(1, f"http://old.example/{name}"), value(2, "a thing", type_="DESC"), name=name)
    return names


def rewrite(registry: Registry, order: Rewrite = ORDER, identity: Identity = OPERATOR, note: str = "") -> Job:
    total = sum(bool(each.changes) for each in rewriting.preview(registry, order, identity))
    operation = rewriting.start(registry, order, identity, "cli", note, total)
    assert all(step.total == total for step in rewriting.run(registry, operation, identity))
    return runner.find_job(registry, identity, operation.id)


def undo(registry: Registry, operation: Job, identity: Identity = OPERATOR) -> Job:
    begun = undoing.start(registry, operation.id, identity, "cli")
    list(undoing.run(registry, begun, identity))
    return runner.find_job(registry, identity, begun.id)


def stored(registry: Registry, name: str) -> tuple[State, list[tuple[str, str]]]:
    with registry.snapshot() as snapshot:
        found = snapshot.stored(Handle.parse(name))
    return found.state, [(each.type, each.data.decode("latin-1")) for each in found.values if each.type != "HS_ADMIN"]


def leads(registry: Registry, *names: str) -> list[str]:
    return [next(data for type_, data in stored(registry, name)[1] if type_.startswith("URL")) for name in names]


# Moving


def test_a_rewrite_is_previewed_and_done_as_one_operation(here: Registry) -> None:
    names = fill(here)
    put(here, *BOTH, value(1, "http://other.example/"), name="12345/other")
    planned = list(rewriting.preview(here, ORDER, OPERATOR))
    assert [each.handle for each in planned] == names
    assert [(old.data, new.data) for old, new in planned[3].changes] == [
        (b"http://old.example/12345/03", b"https://new.example/x/12345/03")
    ]
    assert leads(here, names[0]) == ["http://old.example/12345/00"], "a preview changes nothing"
    operation = rewrite(here, note="the host has moved")
    assert (operation.kind, operation.done, operation.total) == ("rewrite", 10, 10)
    assert operation.ended >= operation.begun
    assert leads(here, *names, "12345/other") == [
        *[f"https://new.example/x/{name}" for name in names],
        "http://other.example/",
    ]
    with here.ledger.reading() as reading:
        entries = list(reading.log(operation.since))
    assert {each.why for each in entries} == {f"rewrite {operation.id}: the host has moved"}
    assert [each.seq in load_steps(here.ledger.log, operation.id) for each in entries] == [True] * 10
    assert list(rewriting.preview(here, ORDER, OPERATOR)) == []
    verify(here.ledger.log)


def test_what_is_moved_keeps_everything_but_where_it_leads(here: Registry) -> None:
    places = '<locations>\n <location href="http://old.example/a?x=1&amp;y" weight="1" /><!-- x --><location href=\'https://o/\'/></locations>'
    put(
        here,
        *BOTH,
        Value.text(1, "10320/loc", places),
        Value(2, "URL.x", b" HTTP://Old.Example:80/%41 ", ttl=7),
        name="12345/a",
    )
    rewrite(here)
    moved = places.replace("http://old.example/a", "https://new.example/x/a")
    assert stored(here, "12345/a")[1] == [("10320/loc", moved), ("URL.x", "https://new.example/x/%41")]
    with here.snapshot() as snapshot:
        assert snapshot.stored(Handle.parse("12345/a")).values[1].ttl == 7


def test_xml_that_cannot_be_moved_without_touching_more_is_left_and_told(here: Registry) -> None:
    odd = '<l><location id="href=&quot;" href="http://old&#46;example/a"/><!-- href="http://old.example/b" --></l>'
    put(here, *BOTH, Value.text(1, "10320/loc", odd), name="12345/a")
    (planned,) = rewriting.preview(here, ORDER, OPERATOR)
    assert (planned.changes, [each.index for each in planned.left]) == ((), [1])
    assert rewrite(here).done == 0
    assert stored(here, "12345/a")[1] == [("10320/loc", odd)]


def test_in_xml_only_places_are_moved(here: Registry) -> None:
    places = """<l><!-- href="http://old.example/1" --><?x href="http://old.example/2" ?>
        <note href="http://old.example/3"/><x><y href='http://old.example/4'/></x><![CDATA[ href="http://old.example/5"]]>
        <location title='a > href="b"' href="http://old.example/6"/></l>"""
    put(here, *BOTH, Value.text(1, "10320/loc", places), name="12345/a")
    rewrite(here)
    moved = places.replace("http://old.example/6", "https://new.example/x/6")
    assert stored(here, "12345/a")[1] == [("10320/loc", moved)]
    deeper = places.replace("<y ", "<location ")
    put(here, *BOTH, Value.text(1, "10320/loc", deeper), name="12345/a")
    (planned,) = rewriting.preview(here, ORDER, OPERATOR)
    assert ([each.index for each in planned.left], rewrite(here).done) == ([1], 0), "one is no place, and looks like it"


def test_one_url_is_moved_to_another(here: Registry) -> None:
    names = fill(here, 3)
    assert rewrite(here, Rewrite("http://old.example/12345/01", "https://new.example")).done == 1
    assert leads(here, *names)[1] == "https://new.example"


def test_what_is_moved_into_its_own_range_is_moved_once(here: Registry) -> None:
    names = fill(here)
    order = Rewrite("http://old.example/*", "http://old.example/deeper/*")
    operation = rewriting.start(here, order, OPERATOR, "cli", "", 10)
    running = rewriting.run(here, operation, OPERATOR)
    next(running)
    put(here, *BOTH, value(1, "http://old.example/deeper/12345/00"), value(3, "changed"), name="12345/00")
    resumed, steps = resume(here, operation.id, OPERATOR)
    assert [step.done for step in steps][-1] == 10
    assert resumed.id == operation.id
    assert leads(here, *names) == [f"http://old.example/deeper/{name}" for name in names]
    put(here, *BOTH, value(1, "http://old.example/deeper/deeper/deeper/x"), name="12345/deep")
    assert rewrite(here, Rewrite("http://old.example/deeper/*", "http://old.example/*")).done == 11
    assert leads(here, "12345/deep", names[3]) == ["http://old.example/deeper/deeper/x", "http://old.example/12345/03"]


def test_two_who_go_on_at_the_same_time_move_each_name_once(here: Registry) -> None:
    names = fill(here)
    order = Rewrite("http://old.example/*", "http://old.example/deeper/*")
    operation = rewriting.start(here, order, OPERATOR, "cli", "", 10)
    at_work = [resume(here, operation.id, OPERATOR)[1] for _ in range(2)]
    while at_work:
        at_work = [each for each in at_work if next(each, None) is not None]
    assert leads(here, *names) == [f"http://old.example/deeper/{name}" for name in names]
    assert runner.find_job(here, OPERATOR, operation.id).done == 10


def test_a_step_has_fewer_records_where_they_are_large(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others cannot write meanwhile."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 100)
    monkeypatch.setattr(runner, "CHUNK_BYTES", 10_000)
    names = [f"12345/{number:02}" for number in range(12)]
    for number, name in enumerate(names):
        large = value(2, "x" * (4_000 if number < 8 else 30_000), type_="DESC")
        put(here, *BOTH, value(1, f"http://old.example/{name}"), large, name=name)
    moved = rewrite(here)
    undone = undo(here, moved)
    assert leads(here, *names) == [f"http://old.example/{name}" for name in names]
    given = hand_over(here, TransferAll("12345/0", ValueRef(100, "0.NA/12345")), OPERATOR)
    for unit in (moved, given, undone):
        counts = sorted(count for _, count in load_steps(here.ledger.log, unit.id))
        assert (counts[-1], sum(counts)) == (3, 10 if unit.kind == "transfer" else 12), unit


def test_what_was_moved_before_the_case_rule_changed_is_not_moved_again(here: Registry) -> None:
    names = [f"12345/n{number}" for number in range(6)]
    for name in names:
        put(here, *BOTH, value(1, f"http://old.example/{name}"), name=name)
    order = Rewrite("http://old.example/*", "http://old.example/deeper/*")
    operation = rewriting.start(here, order, OPERATOR, "cli", "", 6)
    next(rewriting.run(here, operation, OPERATOR))
    here.do(SetPolicy("12345", policy(case=CaseRule.SENSITIVE), change_case=True), OPERATOR, "cli")
    list(resume(here, operation.id, OPERATOR)[1])
    assert leads(here, *names) == [f"http://old.example/deeper/{name}" for name in names]


def test_what_is_previewed_is_what_is_done(here: Registry) -> None:
    """Neither moves a value that nobody may read, nor names that this server does not answer for any more."""
    unreadable = value(2, "http://old.example/2", Permission(0x04))
    put(here, *BOTH, value(1, "http://old.example/1"), unreadable, name="12345/a")
    add_namespace(here, "999", "free")
    put(here, *BOTH, value(1, "http://old.example/3"), name="999/b")
    here.do(Home("0.NA/999", unhome=True), OPERATOR, "cli")
    planned = list(rewriting.preview(here, ORDER, OPERATOR))
    assert [(each.handle, [old.index for old, _ in each.changes]) for each in planned] == [("12345/a", [1])]
    assert rewrite(here).done == 1
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
        ("*://old.example/*", "https://new.example/*"),
        ("http://old.example/*/x", "https://new.example/*"),
        ("urn:isbn:*", "https://new.example/*"),
        ("", "https://new.example/*"),
        ("http://old.example/*", ""),
    ],
)
def test_what_does_not_say_from_where_to_where_is_refused(here: Registry, url: str, to: str) -> None:
    with pytest.raises(Refused) as refused:
        rewriting.start(here, Rewrite(url, to), OPERATOR, "cli", "", 0)
    assert "example" in refused.value.advice
    assert list(newest_first(here.ledger.log)) == []


def test_values_of_other_types_and_tombstones_are_left_alone(here: Registry) -> None:
    put(here, *BOTH, value(1, "http://old.example/1", type_="DESC"), name="12345/a")
    put(here, *BOTH, value(1, "http://old.example/1"), name="12345/b", state=State.TOMBSTONE)
    assert rewrite(here).done == 0
    assert UrlRewrite.parse(ORDER.url, ORDER.to).moved(value(1, "x", type_="DESC")) is None


# Rights


def test_only_what_somebody_may_see_and_change_is_moved(here: Registry) -> None:
    fill(here, 3)
    put(here, *BOTH, hidden(1, "http://old.example/secret"), name="12345/hidden")
    assert list(rewriting.preview(here, ORDER, ANN)) == [], "who may not list names cannot move them together"
    put(here, admin(100, "300:12345/ann"), hidden(1, "http://old.example/secret2"), name="12345/not-his")
    assert rewrite(here, identity=LISTER).done == 4
    assert leads(here, "12345/not-his", "12345/hidden") == [
        "http://old.example/secret2",
        "https://new.example/x/secret",
    ]


def test_the_first_record_that_may_not_be_changed_ends_it_and_it_can_be_gone_on_with(here: Registry) -> None:
    names = fill(here, 6)
    put(here, admin(100, "300:12345/ann"), value(1, "http://old.example/12345/05"), name=names[5])
    operation = rewriting.start(here, ORDER, LISTER, "cli", "", 6)
    with pytest.raises(Refused, match="MODIFY_VALUE"):
        list(rewriting.run(here, operation, LISTER))
    stopped = runner.find_job(here, LISTER, runner.LAST)
    assert (stopped.done, stopped.total, stopped.ended) == (4, 6, 0)
    assert [each.id for each in runner.list_jobs(here, STRANGER)] == []
    for name in (operation.id, "nothing"):
        with pytest.raises(Refused, match=f"there is no operation {name}"):
            resume(here, name, STRANGER)
    assert [step.done for step in resume(here, operation.id, OPERATOR)[1]] == [6]
    with pytest.raises(Refused, match="is left to do"):
        resume(here, operation.id, OPERATOR)


def test_a_value_that_may_only_be_read_is_not_moved(here: Registry) -> None:
    put(here, *BOTH, value(1, "http://old.example/1", Permission(0x0A)), name="12345/a")
    with pytest.raises(Refused, match="read-only"):
        rewrite(here)


def test_nobody_in_particular_changes_many_records(here: Registry) -> None:
    with pytest.raises(Refused, match="has to be known"):
        rewriting.start(here, ORDER, NOBODY, "cli", "", 1)


# Undoing


def test_an_undo_makes_everything_what_it_was_by_new_entries(here: Registry) -> None:
    names = fill(here)
    before = [stored(here, name) for name in names]
    operation = rewrite(here)
    undone = undo(here, operation)
    assert (undone.kind, undone.undoes, undone.done, undone.total) == ("undo", operation.id, 10, 10)
    assert [stored(here, name) for name in names] == before
    with here.ledger.reading() as reading:
        assert reading.size == undone.since + 10 == operation.since + 20
    with pytest.raises(Refused, match=f"{operation.id} was undone by {undone.id}"):
        undo(here, operation)
    again = undo(here, undone)
    assert leads(here, names[4]) == ["https://new.example/x/12345/04"]
    assert runner.UndoIndex.of(here, undone.id).effective_undo(undone.id) == again.id
    verify(here.ledger.log)


def test_what_others_changed_later_is_not_lost(here: Registry) -> None:
    names = fill(here, 30)
    operation = rewrite(here)
    for name in names[:25]:
        put(here, *BOTH, value(1, "https://third.example/"), name=name)
    last = put(here, *BOTH, value(1, "https://fourth.example/"), name=names[7])
    size = here.ledger.log
    with size.reading() as reading:
        entries = reading.size
    with pytest.raises(UndoConflict, match="25 of its records stand in the way") as caught:
        undo(here, operation)
    assert sorted(each.handle for each in caught.value.conflicts) == names[:25]
    why = f"12345/07: changed later, in entry {last}, the last of 2"
    assert why in {f"{each.handle}: {each.why}" for each in caught.value.conflicts}
    assert "and 5 more" in caught.value.advice
    with size.reading() as reading:
        assert reading.size == entries, "nothing is undone then"


def test_what_stands_in_the_way_is_counted_and_some_of_it_kept(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither many records nor many changes of one are held all at once."""
    monkeypatch.setattr(undoing, "MAX_LATER_CHANGES", 3)
    names = fill(here, 6)
    operation = rewrite(here)
    for number, name in enumerate(names):
        for _ in range(number):
            put(here, *BOTH, value(1, "https://third.example/"), name=name)
    look = undoing.UndoPreview(here, operation.id, OPERATOR, most=2)
    while look.advance():
        pass
    assert (look.total, look.conflict_count, len(look.conflicts)) == (6, 5, 2)
    assert [each.why.partition(", the last of ")[2] for each in look.conflicts] == ["3 or more", "3 or more"]
    with pytest.raises(UndoConflict, match="5 of its records stand in the way") as caught:
        look.begin("cli")
    assert "; and 3 more" in caught.value.advice
    assert len(undoing_later(here, operation)) == 5


def test_a_change_that_comes_while_it_is_undone_ends_it(here: Registry) -> None:
    names = fill(here)
    operation = rewrite(here)
    begun = undoing.start(here, operation.id, OPERATOR, "cli")
    running = undoing.run(here, begun, OPERATOR)
    next(running)
    put(here, *BOTH, value(1, "https://third.example/"), name=names[0])
    put(here, *BOTH, value(1, "https://third.example/"), name=names[9])
    with pytest.raises(UndoConflict, match="12345/00"):
        list(running)
    with pytest.raises(UndoConflict) as caught:
        resume(here, begun.id, OPERATOR)
    assert [each.handle for each in caught.value.conflicts] == [names[0]], "what is undone already can be changed"
    put(here, *BOTH, *old_values(here, operation, names[0]), name=names[0])
    assert runner.find_job(here, OPERATOR, begun.id).ended == 0
    assert undoing_later(here, operation) == [names[0]]


def old_values(registry: Registry, operation: Job, name: str) -> tuple[Value, ...]:
    with registry.snapshot() as snapshot:
        entry = snapshot.reading.as_of(snapshot.stored(Handle.parse(name)).key, operation.since)
    assert entry is not None
    return tuple([each for each in entry.record() if each.type != "HS_ADMIN"])


def undoing_later(registry: Registry, operation: Job) -> list[str]:
    with pytest.raises(UndoConflict) as caught:
        undoing.start(registry, operation.id, OPERATOR, "cli")
    return [each.handle for each in caught.value.conflicts]


def test_two_who_undo_at_the_same_time_do_one_undo(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    names = fill(here, 20)
    before = [stored(here, name) for name in names]
    operation = rewrite(here)
    begun: list[Job] = []

    def begin_between(*arguments: object) -> Job:
        monkeypatch.setattr(runner, "start_job", begin)
        begun.append(undoing.start(here, operation.id, OPERATOR, "cli"))
        return begin(*arguments, total=20, undoes=operation.id)  # type: ignore[arg-type]

    begin = runner.start_job
    monkeypatch.setattr(runner, "start_job", lambda *arguments, **_: begin_between(*arguments))
    begun.append(undoing.start(here, operation.id, OPERATOR, "cli"))
    assert begun[0].id == begun[1].id
    at_work = [undoing.run(here, each, OPERATOR) for each in begun]
    while at_work:
        at_work = [each for each in at_work if next(each, None) is not None]
    assert [stored(here, name) for name in names] == before
    assert runner.find_job(here, OPERATOR, begun[0].id).done == 20


def test_what_is_being_undone_is_not_gone_on_with(here: Registry) -> None:
    names = fill(here)
    before = [stored(here, name) for name in names]
    operation = rewriting.start(here, ORDER, OPERATOR, "cli", "", 10)
    running = rewriting.run(here, operation, OPERATOR)
    next(running)
    undone = undo(here, operation)
    with pytest.raises(LedgerError, match=f"{operation.id} has ended, or is being undone"):
        next(running)
    with pytest.raises(Refused, match=f"{operation.id} was undone by {undone.id}"):
        resume(here, operation.id, OPERATOR)
    assert (runner.find_job(here, OPERATOR, operation.id).ended > 0, undone.done) == (True, 4)
    assert [stored(here, name) for name in names] == before


def test_an_undo_that_was_undone_counts_no_more(here: Registry) -> None:
    names = fill(here, 6)
    before = [stored(here, name) for name in names]
    operation = rewrite(here)
    moved = [stored(here, name) for name in names]
    first = undo(here, operation)
    again = undo(here, first)
    assert [runner.UndoIndex.of(here, each.id).effective_undo(each.id) for each in (operation, first)] == [None, again.id]
    second = undo(here, operation)
    assert (second.id != first.id, second.done, [stored(here, name) for name in names]) == (True, 6, before)
    assert runner.UndoIndex.of(here, operation.id).effective_undo(operation.id) == second.id
    undo(here, second)
    assert [stored(here, name) for name in names] == moved
    put(here, *BOTH, value(1, "https://third.example/"), name=names[0])
    assert undoing_later(here, operation) == [names[0]]


def test_an_undo_that_is_being_undone_ends_before_anything_else(here: Registry) -> None:
    fill(here, 6)
    operation = rewrite(here)
    first = undoing.start(here, operation.id, OPERATOR, "cli")
    next(undoing.run(here, first, OPERATOR))
    again = undoing.start(here, first.id, OPERATOR, "cli")
    for step in (lambda: undo(here, operation), lambda: resume(here, first.id, OPERATOR)):
        with pytest.raises(Refused, match=f"{first.id} is being undone by {again.id}"):
            step()
    list(undoing.run(here, again, OPERATOR))
    assert undo(here, operation).done == 6


def test_data_that_was_erased_does_not_come_back(here: Registry) -> None:
    names = fill(here, 3)
    put(here, *BOTH, value(1, "http://old.example/gone"), value(2, "x", type_="DESC"), name=names[2])
    put(here, *BOTH, value(1, "http://old.example/there"), value(2, "x", type_="DESC"), name=names[2])
    operation = rewrite(here)
    here.do(Redact(Handle.parse(names[1]), 1, operation.since, "personal"), OPERATOR, "cli")
    here.do(Redact(Handle.parse(names[2]), 1, operation.since - 1, "personal, but of before"), OPERATOR, "cli")
    with pytest.raises(UndoConflict, match=r"12345/01: what it held at entry \d+ was erased for good") as caught:
        undo(here, operation)
    assert [each.handle for each in caught.value.conflicts] == [names[1]]


def test_undoing_takes_the_rights_of_the_inverse_changes(here: Registry) -> None:
    names = fill(here, 3)
    operation = rewrite(here, identity=LISTER)
    weak = admin(101, "300:12345/lister", AdminPermission.ADD_VALUE | AdminPermission.READ_VALUE)
    assert undo(here, operation, LISTER).done == 3
    again = rewrite(here, identity=OPERATOR)
    with pytest.raises(Refused, match="no operation"):
        undo(here, again, LISTER)
    put(here, BOTH[0], weak, value(1, "http://old.example/z"), name="12345/zz")
    owned = rewriting.start(here, Rewrite("http://old.example/*", "http://even.older/*"), LISTER, "cli", "", 1)
    with pytest.raises(Refused, match="MODIFY_VALUE"):
        list(rewriting.run(here, owned, LISTER))
    assert leads(here, *names)[0].startswith("https://new.example/")


def test_who_may_not_undo_a_unit_does_not_end_it(here: Registry) -> None:
    """A server administrator sees every unit, and has no right on its records without full access."""
    names = fill(here)
    operation = rewriting.start(here, ORDER, LISTER, "cli", "", 10)
    running = rewriting.run(here, operation, LISTER)
    next(running)
    with pytest.raises(Refused) as caught:
        undoing.start(here, operation.id, SERVER, "cli")
    assert caught.value.code is ResponseCode.INVALID_ADMIN
    assert len(list(runner.list_jobs(here, OPERATOR))) == 1
    list(running)
    assert runner.find_job(here, LISTER, operation.id).done == 10
    assert all(lead.startswith("https://new.example/") for lead in leads(here, *names))


def test_a_minted_name_becomes_a_tombstone_and_a_reserved_one_stays(here: Registry) -> None:
    for reserve in (False, True):
        order = Mint(MintInputs.of(here), "12345/n-", 5, values=(value(1, "https://e.org/"), *BOTH), reserve=reserve)
        order = (
            order
            if not reserve
            else Mint(MintInputs.of(here), "12345/r-", 5, reserve=True, owner=ValueRef(100, "0.NA/12345"))
        )
        unit = runner.start_job(here, "mint", {"prefix": "12345"}, OPERATOR, "cli", total=5)
        made = [name for each in mint(here, order, OPERATOR, "cli", job_id=unit.id) for name in each.handles]
        runner.complete_or_discard(here, unit)
        undone = undo(here, runner.find_job(here, OPERATOR, unit.id))
        assert undone.done == (0 if reserve else 5)
        wanted = State.RESERVED if reserve else State.TOMBSTONE
        assert [stored(here, str(name))[0] for name in made] == [wanted] * 5
        if not reserve:
            assert f"made by {unit.id}, which was undone" in str(stored(here, str(made[0]))[1])
            assert undo(here, undone).done == 5
            assert stored(here, str(made[0])) == (State.NORMAL, [("URL", "https://e.org/")])
    with here.snapshot() as snapshot:
        assert len(list_handles(snapshot, OPERATOR, "12345").items) == 10


def test_a_transfer_is_an_operation_and_can_be_undone(here: Registry) -> None:
    names = fill(here, 5)
    unit = hand_over(here, TransferAll("12345/0", ValueRef(100, "0.NA/12345")), OPERATOR, "sold")
    assert (unit.kind, unit.done, unit.note, unit.ended > 0) == ("transfer", 5, "sold", True)
    assert undo(here, unit).done == 5
    with here.snapshot() as snapshot:
        assert [each.index for each in snapshot.stored(Handle.parse(names[0])).values] == [1, 2, 100, 101]
    broken = runner.start_job(here, "transfer", {"where": "12345", "to": "300:"}, OPERATOR, "cli")
    with pytest.raises(Refused, match=f"what {broken.id} is about cannot be read"):
        list(resume(here, broken.id, OPERATOR)[1])
    other = runner.start_job(here, "mint", {}, OPERATOR, "cli")
    with pytest.raises(Refused, match="by doing it again"):
        resume(here, other.id, OPERATOR)


def test_names_that_were_unpublished_or_deleted_come_back_as_they_were(here: Registry) -> None:
    fill(here, 3)
    unit = runner.start_job(here, "test", {}, OPERATOR, "cli")
    with here.snapshot() as snapshot:
        drafts = [snapshot.stored(Handle.parse(f"12345/0{number}")) for number in range(3)]
    states = (State.UNPUBLISHED, State.ABSENT, State.TOMBSTONE)
    before = [stored(here, f"12345/0{number}") for number in range(3)]
    for one, state in zip(drafts, states, strict=True):
        values = one.values if state is State.UNPUBLISHED else () if state is State.ABSENT else BOTH
        draft = Draft(Action.UPDATE, state, str(one.handle), "cli", "local:a", values=tuple(values))
        here.ledger.append(Append(draft, operation=unit.id))
    assert undo(here, unit).done == 3
    assert [stored(here, f"12345/0{number}") for number in range(3)] == before


# In the ledger


def test_which_entries_belong_to_an_operation() -> None:
    steps = JobSteps([(7, 2), (3, 1)])
    assert [seq for seq in range(12) if seq in steps] == [3, 7, 8]
    assert list(steps.newest_first()) == [8, 7, 3]
    assert (len(steps), len(steps.with_step(20, 3)), steps.with_step(5, 0)) == (3, 6, steps)


def test_an_operation_that_has_ended_takes_no_more_steps(registry: Registry) -> None:
    log = registry.ledger.log
    unit = runner.start_job(registry, "test", {}, OPERATOR, "cli")

    def append(name: str) -> object:
        draft = Draft(Action.CREATE, State.NORMAL, "12345/x", "cli", "local:a")
        return registry.ledger.append(Append(draft, operation=name))[0]

    assert isinstance(append(unit.id), Appended)
    runner.complete_job(registry, unit)
    with log.reading() as reading:
        size = reading.size
    for name in (unit.id, "unknown"):
        outcome = append(name)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, JobEnded)
    with log.reading() as reading:
        assert (reading.size, reading.steps(unit.id), reading.steps(unit.id, size)) == (size, [(size, 1)], [])


def test_an_operation_of_which_nothing_was_done_is_forgotten(here: Registry) -> None:
    unit = runner.start_job(here, "mint", {}, OPERATOR, "cli")
    runner.complete_or_discard(here, unit)
    assert find(here.ledger.log, unit.id) is None


def test_operations_are_listed_page_by_page(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.ledger.store.jobs.PAGE", 2)
    made = {runner.start_job(here, "test", {"n": number}, OPERATOR, "cli").id for number in range(5)}
    assert [each.id for each in runner.list_jobs(here, OPERATOR)] == sorted(made, reverse=True), "all began at one moment"


def test_operations_are_part_of_every_backup(here: Registry, tmp_path: Path) -> None:
    names = fill(here, 6)
    operation = rewrite(here)
    save_backup(here.ledger.log, tmp_path / "backup")
    store = Store.sqlite(tmp_path / "restored.db")
    store.upgrade()
    log = Log(store, Machine().clock(), random.Random(2).randbytes)
    restore([tmp_path / "backup"], log, lambda origin: Signer.generate(origin, bytes(32)), ("cli", "local:a"))
    assert find(log, operation.id) == operation
    assert list(load_steps(log, operation.id).newest_first()) == list(
        load_steps(here.ledger.log, operation.id).newest_first()
    )
    store.close()
    assert isinstance(
        next(iter(rewriting.preview(here, Rewrite("https://new.example/*", "http://a.b/*"), OPERATOR))), PlannedRewrite
    )
    assert names


def test_both_back_ends_keep_operations(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 3)
    add_namespace(registry, "12345", "free")
    names = fill(registry, 7)
    operation = rewrite(registry)
    undone = undo(registry, operation)
    assert (operation.done, undone.done, leads(registry, names[6])) == (7, 7, ["http://old.example/12345/06"])
    assert [each.id for each in runner.list_jobs(registry, OPERATOR)] == sorted([operation.id, undone.id], reverse=True)
    runner.complete_or_discard(registry, runner.start_job(registry, "test", {}, OPERATOR, "cli"))
    assert len(list(runner.list_jobs(registry, OPERATOR))) == 2
    verify(registry.ledger.log)


def test_whoever_moves_many_names_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    """What is left is done by the next, each name once; and all of it is undone likewise."""
    seed = random.SystemRandom().randrange(1 << 32)
    job_crash.run(Place(str(tmp_path / "ledger.db"), tmp_path), 2_000, kills=2, chunk=160, seed=seed)

"""Undoing: whose undo it is, what is told of records that somebody may not see, and what redactions lie between."""

from collections.abc import Iterator

import pytest

from perseid.names.handle import Handle
from perseid.records.value import Value, ValueRef
from perseid.registry.commands.lifecycle import Redact, Unpublish
from perseid.registry.commands.records import Modify
from perseid.registry.commands.transfer import Transfer
from perseid.registry.identity import Identity
from perseid.registry.jobs import rewrite, runner
from perseid.registry.jobs import undo as undoing
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.undo import Conflict, UndoConflict
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from tests.registry.access.token_identities import ANN, RULES, SERVER, furnish, movable, scope, shown
from tests.registry.registries import OPERATOR, handle, key_holder, registry_in_memory

ORDER = Rewrite("http://old.example/*", "https://new.example/*")
WORDS = scope("find", "update")
CAROL = key_holder(300, "20.500/carol")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 3)
    with registry_in_memory(rules=RULES) as made:
        furnish(made)
        movable(made, 7)
        yield made


def moved(registry: Registry, identity: Identity) -> str:
    """A rewrite that was carried out."""
    unit = rewrite.start(registry, ORDER, identity, "cli", "", 7)
    list(rewrite.run(registry, unit, identity))
    return unit.id


def size(registry: Registry) -> int:
    with registry.snapshot() as snapshot:
        return snapshot.reading.size


def url(registry: Registry, name: Handle) -> str:
    with registry.snapshot() as snapshot:
        return snapshot.stored(name).values[0].data.decode()


# Whose


def test_who_may_not_see_an_undo_does_not_go_on_with_it(here: Registry) -> None:
    """They could not be told what becomes of it; and nothing is done before that is known."""
    unit = moved(here, ANN)
    undo = undoing.start(here, unit, OPERATOR, "cli")
    next(undoing.run(here, undo, OPERATOR))
    before = size(here)
    for ask in (lambda: undoing.start(here, unit, ANN, "cli"), lambda: resume(here, undo.id, ANN)):
        with pytest.raises(Refused, match=rf"is being undone by {undo.id}, which somebody else began|no operation"):
            ask()
    assert size(here) == before
    assert undoing.start(here, unit, SERVER, "cli").id == undo.id, "who runs the server sees it"
    list(undoing.run(here, undo, SERVER))
    assert url(here, handle("12345/0")) == "http://old.example/0"


def test_who_made_the_token_goes_on_with_its_undo_and_not_the_other_way_round(here: Registry) -> None:
    token = shown(here, ANN, WORDS)
    unit = moved(here, token)
    by_token = undoing.start(here, unit, token, "http")
    assert undoing.start(here, unit, ANN, "cli").id == undoing.start(here, unit, token, "http").id == by_token.id
    list(undoing.run(here, by_token, ANN))
    again = moved(here, token)
    by_ann = undoing.start(here, again, ANN, "cli")
    with pytest.raises(Refused, match=f"is being undone by {by_ann.id}"):
        undoing.start(here, again, token, "http")


def test_who_comes_at_the_same_time_as_somebody_else_is_told_so(here: Registry) -> None:
    unit = moved(here, ANN)
    look = undoing.UndoPreview(here, unit, ANN)
    while look.advance():
        pass
    undo = undoing.start(here, unit, OPERATOR, "cli")
    with pytest.raises(Refused, match=f"is being undone by {undo.id}"):
        look.begin("cli")


# What is told


def test_of_a_record_that_somebody_may_not_see_it_is_told_only_that_it_stands_in_the_way(here: Registry) -> None:
    """Who was its administrator is none any more: neither how often it was changed, nor in which entry, is theirs."""
    unit = moved(here, ANN)
    sold, kept = handle("12345/1"), handle("12345/2")
    here.do(Transfer(sold, ValueRef(300, "0.NA/0.NA")), ANN, "cli")
    here.do(Unpublish(sold), SERVER, "cli")
    for number in range(2):
        here.do(Modify(sold, (Value.text(1, "URL", f"https://secret.example/{number}"),)), SERVER, "cli")
    last = here.do(Modify(kept, (Value.text(1, "URL", "https://other.example/"),)), ANN, "cli").seq
    with pytest.raises(UndoConflict, match="2 of its records stand in the way") as caught:
        undoing.start(here, unit, ANN, "cli")
    why = f"changed later, in entry {last}"
    assert sorted(caught.value.conflicts, key=lambda each: each.handle) == [
        Conflict(str(sold), None, "you may not see why"),
        Conflict(str(kept), last, why),
    ]
    assert caught.value.advice == f"12345/2: {why}; 12345/1: you may not see why"
    with pytest.raises(UndoConflict, match=r"12345/1: changed later, in entry \d+, the last of 4"):
        undoing.start(here, unit, SERVER, "cli")


def test_the_same_counts_for_what_comes_into_the_way_meanwhile(here: Registry) -> None:
    unit = moved(here, ANN)
    undo = undoing.start(here, unit, ANN, "cli")
    running = undoing.run(here, undo, ANN)
    next(running)
    here.do(Transfer(handle("12345/0"), ValueRef(300, "0.NA/0.NA")), ANN, "cli")
    with pytest.raises(UndoConflict) as caught:
        list(running)
    assert caught.value.conflicts == [Conflict("12345/0", None, "you may not see why")]


# Redactions


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_a_record_that_was_changed_twice_is_undone_as_a_whole(
    here: Registry, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Also where data of before was erased in between: that has left the record as it was."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", chunk)
    name = handle("12345/0")
    erased = here.do(Modify(name, (Value.text(1, "URL", "http://old.example/erased"),)), ANN, "cli").seq
    here.do(Modify(name, (Value.text(1, "URL", "http://old.example/0"),)), ANN, "cli")
    unit = runner.start_job(here, "test", {}, ANN, "cli")

    def step(of: Handle, text: str) -> None:
        here.do(Modify(of, (Value.text(1, "URL", text),)), ANN, "cli", job_id=unit.id)

    step(name, "https://one.example/")
    here.do(Redact(name, 1, erased, "personal"), OPERATOR, "cli")
    step(handle("12345/1"), "https://one.example/")
    step(name, "https://two.example/")
    runner.complete_job(here, unit)
    undo = undoing.start(here, unit.id, ANN, "cli")
    assert undo.total == 2
    list(undoing.run(here, undo, ANN))
    assert url(here, name) == "http://old.example/0"
    assert runner.find_job(here, ANN, undo.id).done == 2

"""Who sees which changes of many records: their own, and those that were begun with tokens of theirs."""

from collections.abc import Iterator

import pytest

from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job
from perseid.records.value import ValueRef
from perseid.registry.commands.records import Add, Remove
from perseid.registry.identity import Identity, KeyIdentity, Proof
from perseid.registry.jobs import runner
from perseid.registry.jobs import rewrite
from perseid.registry.jobs import undo as undoing
from perseid.registry.jobs.runner import UndoIndex
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from tests.registry.access.token_identities import ANN, BEA, RULES, SERVER, furnish, movable, scope, shown
from tests.registry.registries import OPERATOR, admin, handle, key_holder, registry_in_memory

ORDER = Rewrite("http://old.example/*", "https://new.example/*")
WORDS = scope("find", "update")
STRANGER = key_holder(300, "12345/stranger")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 2)
    with registry_in_memory(rules=RULES) as made:
        furnish(made)
        movable(made, 6)
        yield made


def begun(registry: Registry, identity: Identity, steps: int = 1) -> Job:
    """A unit of which so many steps were taken."""
    unit = rewrite.start(registry, ORDER, identity, "http", "", 6)
    running = rewrite.run(registry, unit, identity)
    for _ in range(steps):
        next(running)
    return unit


def seen(registry: Registry, identity: Identity) -> list[str]:
    """The units that somebody sees, in every way in which they can."""
    listed = [each.id for each in runner.list_jobs(registry, identity)]
    paged: list[str] = []
    before: tuple[int, str] | None = None
    while True:
        page = runner.jobs_page(registry, identity, before, 1)
        paged += [each.id for each in page.items]
        before = page.last
        if before is None:
            break
    assert paged == listed
    for unit in jobs.newest_first(registry.ledger.log):
        if unit.id in listed:
            assert runner.find_job(registry, identity, unit.id) == unit
        else:
            with pytest.raises(Refused, match=f"there is no operation {unit.id}"):
                runner.find_job(registry, identity, unit.id)
    if listed:
        assert runner.find_job(registry, identity, runner.LAST).id == listed[0]
    else:
        with pytest.raises(Refused, match="no operation yet"):
            runner.find_job(registry, identity, runner.LAST)
    return sorted(listed)


def test_who_made_a_token_sees_what_was_begun_with_it(here: Registry) -> None:
    one, other = shown(here, ANN, WORDS), shown(here, ANN, WORDS)
    units_of = {identity: begun(here, identity).id for identity in (one, other, ANN)}
    assert seen(here, ANN) == sorted(units_of.values())
    assert seen(here, one) == [units_of[one]]
    assert seen(here, other) == [units_of[other]]
    assert seen(here, BEA) == seen(here, STRANGER) == seen(here, shown(here, BEA)) == []
    assert seen(here, OPERATOR) == seen(here, SERVER) == sorted(units_of.values())


def test_who_made_a_token_goes_on_with_its_units_and_undoes_them(here: Registry) -> None:
    token = shown(here, ANN, WORDS)
    unit = begun(here, token)
    resumed, steps = resume(here, unit.id, ANN)
    assert [step.done for step in steps][-1] == 6
    undo = undoing.start(here, resumed.id, ANN, "cli")
    list(undoing.run(here, undo, ANN))
    assert runner.find_job(here, ANN, undo.id).done == 6
    assert seen(here, token) == [unit.id], "what is done without the token is not its own"
    with pytest.raises(Refused, match="no operation"):
        undoing.start(here, undo.id, token, "http")


def test_tokens_of_any_key_belong_to_those_who_are_known_by_any_key(here: Registry) -> None:
    """As with the tokens themselves: who names no index made them as one who names none."""
    here.do(Add(handle("0.NA/12345"), (admin(102, "0:0.NA/12345"),)), OPERATOR, "cli")
    nameless = KeyIdentity(ValueRef(0, "0.NA/12345"), Proof.SECRET_KEY, verified_index=300)
    token = shown(here, nameless, scope("find"))
    assert str(token.issuer) == "0:0.NA/12345"
    unit = runner.start_job(here, "test", {}, token, "http")
    assert seen(here, nameless) == [unit.id]
    assert seen(here, ANN) == []
    own = runner.start_job(here, "test", {}, nameless, "http")
    assert own.actor == "300:0.NA/12345"
    assert seen(here, ANN) == [own.id]


def test_whose_a_unit_is_does_not_depend_on_how_a_handle_is_spelt(here: Registry) -> None:
    """Of the system's names all letters are alike, elsewhere those of the prefix."""
    spelt = key_holder(300, "0.na/12345")
    token = shown(here, ANN, WORDS)
    of_ann = [begun(here, ANN, 0), runner.start_job(here, "test", {}, token, "http")]
    of_ann.append(runner.start_job(here, "test", {}, spelt, "http"))
    assert [each.actor for each in of_ann] == ["300:0.NA/12345", str(token), "300:0.na/12345"]
    assert seen(here, ANN) == seen(here, spelt) == sorted(each.id for each in of_ann)
    assert seen(here, token) == [of_ann[1].id]
    assert all(runner.is_own_job(unit, identity) for unit in of_ann for identity in (ANN, spelt))
    assert runner.acts_for(spelt, ANN)
    assert runner.acts_for(spelt, token)
    assert not runner.acts_for(token, ANN)
    assert not runner.acts_for(BEA, ANN)
    other = runner.start_job(here, "test", {}, key_holder(300, "a.b/Ann"), "http")
    assert seen(here, key_holder(300, "A.b/Ann")) == [other.id]
    assert seen(here, key_holder(300, "a.b/ann")) == seen(here, key_holder(301, "a.b/Ann")) == []


def test_units_of_old_backups_are_those_of_who_began_them(here: Registry) -> None:
    """They say no more than that."""
    old = Job("old", "test", "{}", "", "http", str(ANN), "")
    jobs.start(here.ledger.log, old)
    assert seen(here, ANN) == ["old"]
    assert seen(here, key_holder(300, "0.na/12345")) == seen(here, BEA) == []


def test_units_of_a_token_stay_its_makers_when_it_is_gone(here: Registry) -> None:
    unit = begun(here, shown(here, BEA, scope("find")), 0)
    assert seen(here, BEA) == [unit.id]
    here.do(Remove(handle("0.NA/12345"), (101,)), OPERATOR, "cli")
    assert seen(here, BEA) == [unit.id], "it says nothing about rights"


def test_only_those_undos_are_read_that_matter(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    unit, other = begun(here, ANN, 3), begun(here, ANN, 0)
    undo = undoing.start(here, unit.id, ANN, "cli")
    read: list[list[str]] = []
    undos_of = jobs.find_undos

    def noted(log: object, names: tuple[str, ...]) -> object:
        found = undos_of(log, names)  # type: ignore[arg-type]
        read.append([each.id for each in found])
        return found

    monkeypatch.setattr(runner, "find_undos", noted)
    monkeypatch.delattr(jobs, "list_undos")
    list(undoing.run(here, undo, ANN))
    list(resume(here, other.id, ANN)[1])
    assert UndoIndex.of(here, unit.id).effective_undo(unit.id) == undo.id
    assert UndoIndex.of(here, other.id).effective_undo(other.id) is None
    assert UndoIndex.of(here).effective_undo(unit.id) is None, "nothing was asked about"
    assert read == [[undo.id], [], [undo.id], []]


@pytest.mark.parametrize("name", ["", "\0", "x\0", "x" * 100_000, "\udcff", "é", "%", "'"])
def test_what_is_no_name_of_a_unit_is_no_unit(registry: Registry, name: str) -> None:
    """In both back ends: one of them cannot even be asked about some of it."""
    with pytest.raises(Refused, match="there is no operation"):
        runner.find_job(registry, OPERATOR, name)


def test_a_note_that_cannot_be_kept_is_refused(here: Registry) -> None:
    with pytest.raises(Refused, match="surrogate"):
        runner.start_job(here, "test", {}, OPERATOR, "cli", "\udcff")
    assert list(runner.list_jobs(here, OPERATOR)) == []

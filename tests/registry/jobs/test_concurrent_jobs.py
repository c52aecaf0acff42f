"""Many records together are not denied what each alone is allowed, however much it takes to find out who may."""

from collections.abc import Iterator

import pytest

from perseid.records.admin import ValueList
from perseid.records.value import Permission, Value, ValueRef
from perseid.registry.access import authorization
from perseid.registry.commands.records import Create, Modify
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Context
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner, transfer
from perseid.registry.jobs import rewrite as rewriting
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.transfer import PlannedTransfer, TransferAll
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from tests.registry.jobs.test_jobs import rewrite, undo
from tests.registry.jobs.transfers import hand_over
from tests.registry.registries import OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

MOST = 20
ALICE, BOB = key_holder(300, "10.9/alice"), key_holder(300, "10.9/bob")
TO_BOB = ValueRef(300, "10.9/bob")
ORDER = Rewrite("http://old.example/*", "https://new.example/*", "10.1")
SIZES = {"a": 9, "b": 12, "c": 3, "d": 17, "e": 19}
"""How many references have to be followed to find that Alice administers a record."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(authorization, "MAX_GROUP_LOOKUPS", MOST)
    monkeypatch.setattr(runner, "MAX_CHUNK_LOOKUPS", MOST // 2)
    with registry_in_memory() as made:
        add_namespace(made, "10.1", "free", admin(100, "300:10.9/alice"))
        add_namespace(made, "10.2", "free")
        for name, size in SIZES.items():
            made.do(Create(handle(f"10.1/{name}"), (*led(name), costly(made, name, size))), OPERATOR, "cli")
        yield made


def led(name: str) -> tuple[Value, Value]:
    """Two values that lead to the same place, one of which only administrators may read."""
    private = Permission.ADMIN_READ | Permission.ADMIN_WRITE
    place = f"http://old.example/{name}"
    return Value.text(1, "URL", place), Value(2, "URL", place.encode(), permissions=private)


def costly(registry: Registry, name: str, size: int) -> Value:
    """An administrator who is found in a group, in which one has to follow so many references."""
    dead = [ValueRef(200, f"10.2/none{number}") for number in range(size - 2)]
    for group, members in ((name, (*dead, ValueRef(200, f"10.2/{name}-in"))), (f"{name}-in", (ALICE.reference,))):
        value = Value(200, "HS_VLIST", ValueList(members).to_bytes())
        registry.do(Create(handle(f"10.2/{group}"), (value,)), OPERATOR, "cli")
    return admin(100, f"200:10.2/{name}")


def places(registry: Registry) -> dict[str, list[str]]:
    with registry.snapshot() as snapshot:
        stored = [snapshot.stored(handle(f"10.1/{name}")) for name in SIZES]
    return {str(each.handle): [value.data.decode() for value in each.values if value.type == "URL"] for each in stored}


def test_each_alone_is_allowed(registry: Registry) -> None:
    """The same is not searched for twice."""
    for name in SIZES:
        assert registry.explain(Modify(handle(f"10.1/{name}"), (led(name)[0],)), ALICE, "cli").allowed, name
        assert registry.explain(Transfer(handle(f"10.1/{name}"), TO_BOB), ALICE, "cli").allowed, name


def test_a_rewrite_comes_to_its_end_and_leaves_no_private_value(registry: Registry) -> None:
    before = places(registry)
    moved = rewrite(registry, ORDER, ALICE)
    assert (moved.done, moved.total) == (5, 5)
    assert places(registry) == {f"10.1/{name}": [f"https://new.example/{name}"] * 2 for name in SIZES}
    assert undo(registry, moved, ALICE).done == 5
    assert places(registry) == before


def test_what_only_private_values_say_is_found(registry: Registry) -> None:
    for name in SIZES:
        secret = Value(2, "URL", b"http://hidden.example/", permissions=led(name)[1].permissions)
        registry.do(Modify(handle(f"10.1/{name}"), (secret,)), OPERATOR, "cli")
    order = Rewrite("http://hidden.example/*", "https://new.example/*", "10.1")
    assert [each.handle for each in rewriting.preview(registry, order, ALICE)] == [f"10.1/{name}" for name in SIZES]
    assert rewrite(registry, order, ALICE).done == 5


def test_a_transfer_comes_to_its_end(registry: Registry) -> None:
    planned = preview(registry, TransferAll("10.1", TO_BOB), ALICE)
    assert [each.handle for each in planned] == [*[f"10.1/{name}" for name in SIZES], "0.NA/10.1"]
    assert [(each.refused, len(each.administrators)) for each in planned] == [(None, 1)] * 6
    assert hand_over(registry, TransferAll("10.1", TO_BOB), ALICE).done == 6


def preview(registry: Registry, what: TransferAll, identity: Identity) -> list[PlannedTransfer]:
    found: list[PlannedTransfer] = []
    after: tuple[int, bytes] | None = None
    while True:
        with registry.snapshot() as snapshot:
            page = transfer.preview_page(Context(snapshot, identity, "cli", registry.now()), what, after)
        found += page.items
        after = page.following
        if after is None:
            return found


def test_what_has_to_be_seen_first_takes_nothing_from_a_record(registry: Registry) -> None:
    """To begin, and for each derived prefix, it takes the right to see the names; that too may be costly to find."""
    below = [f"10.1.{number}" for number in range(4)]
    for number, prefix in enumerate(below):
        add_namespace(registry, prefix, "free", costly(registry, f"p{number}", 19))
        registry.do(Create(handle(f"{prefix}/x"), (costly(registry, f"x{number}", 18),)), OPERATOR, "cli")
    order = TransferAll("10.1", TO_BOB, derived=True)
    assert len([each for each in preview(registry, order, ALICE) if each.refused is None]) == 6 + 2 * len(below)
    unit = transfer.start(registry, order, ALICE, "cli")
    running = transfer.run(registry, unit, ALICE)
    next(running)
    list(resume(registry, unit.id, ALICE)[1])
    assert runner.find_job(registry, ALICE, unit.id).done == 6 + 2 * len(below)


@pytest.mark.parametrize("costs", [False, True])
def test_what_takes_more_than_a_request_may_search_is_denied_as_anywhere(registry: Registry, costs: bool) -> None:
    """And so is what somebody has no right to; what comes before it is done."""
    last = handle("10.1/z")
    too_much = costly(registry, "z", MOST + 1) if costs else admin(100, "300:10.9/carol")
    registry.do(Create(last, (*led("z"), too_much)), OPERATOR, "cli")
    unit = rewriting.start(registry, ORDER, ALICE, "cli", "", 6)
    with pytest.raises(Refused, match=r"may not modify values of 10\.1/z"):
        list(rewriting.run(registry, unit, ALICE))
    assert runner.find_job(registry, ALICE, unit.id).done == 5
    with pytest.raises(Refused, match=r"may not modify values of 10\.1/z"):
        list(resume(registry, unit.id, ALICE)[1])
    with pytest.raises(Refused, match=r"may not transfer 10\.1/z"):
        hand_over(registry, TransferAll("10.1", TO_BOB), ALICE)
    assert str(preview(registry, TransferAll("10.1/z", TO_BOB), ALICE)[0].refused).startswith("300:10.9/alice may not")


def test_a_commit_searches_no_more_than_it_may_but_for_its_first_record(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    authorise = authorization.authorize

    def counted(*asked: object) -> object:
        before = asked[-1].lookups  # type: ignore[attr-defined]
        decision = authorise(*asked)  # type: ignore[arg-type]
        spent[-1] += asked[-1].lookups - before  # type: ignore[attr-defined]
        return decision

    monkeypatch.setattr("perseid.registry.context.authorize", counted)
    unit = rewriting.start(registry, ORDER, ALICE, "cli", "", 5)
    running = rewriting.run_steps(registry, unit, ALICE)
    while True:
        spent.append(0)
        if next(running, None) is None:
            break
    assert max(spent) <= 3 * MOST, spent

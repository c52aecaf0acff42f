"""Records in one chunk are not denied what each alone is allowed, however expensive authorization is."""

from collections.abc import Iterator

import pytest

from perseid.records.admin import ValueList
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.access import authorization
from perseid.registry.commands.records import Create, Modify
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Context
from perseid.registry.identity import Identity
from perseid.registry.jobs import rewrite, runner, transfer
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.runner import resume
from perseid.registry.jobs.transfer import PlannedTransfer, TransferAll
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from tests.registry.jobs.runs import changes, run_pieces, run_steps, run_transfer
from tests.registry.jobs.test_jobs import run_rewrite, run_undo
from tests.registry.registries import OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

MAX_LOOKUPS = 20
ALICE, BOB = key_holder(300, "10.9/alice"), key_holder(300, "10.9/bob")
TO_BOB = ValueRef(300, "10.9/bob")
ORDER = Rewrite("http://old.example/*", "https://new.example/*", "10.1")
SIZES = {"a": 9, "b": 12, "c": 3, "d": 17, "e": 19}
"""References to follow until Alice is found to administer a record."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(authorization, "MAX_GROUP_LOOKUPS", MAX_LOOKUPS)
    monkeypatch.setattr(runner, "MAX_CHUNK_LOOKUPS", MAX_LOOKUPS // 2)
    with registry_in_memory() as registry:
        add_namespace(registry, "10.1", "free", admin(100, "300:10.9/alice"))
        add_namespace(registry, "10.2", "free")
        for name, size in SIZES.items():
            registry.do(Create(handle(f"10.1/{name}"), (*urls(name), costly(registry, name, size))), OPERATOR, "cli")
        yield registry


def urls(name: str) -> tuple[Value, Value]:
    """Return two values with the same target, one of them private."""
    private = Permission.ADMIN_READ | Permission.ADMIN_WRITE
    target = f"http://old.example/{name}"
    return Value.text(1, "URL", target), Value(2, "URL", target.encode(), permissions=private)


def costly(registry: Registry, name: str, size: int) -> Value:
    """Return an administrator in a group that takes this many references to resolve."""
    dead = [ValueRef(200, f"10.2/none{number}") for number in range(size - 2)]
    for group, members in ((name, (*dead, ValueRef(200, f"10.2/{name}-in"))), (f"{name}-in", (ALICE.reference,))):
        value = Value(200, "HS_VLIST", ValueList(members).to_bytes())
        registry.do(Create(handle(f"10.2/{group}"), (value,)), OPERATOR, "cli")
    return admin(100, f"200:10.2/{name}")


def targets(registry: Registry) -> dict[str, list[str]]:
    with registry.snapshot() as snapshot:
        stored = [snapshot.stored(handle(f"10.1/{name}")) for name in SIZES]
    return {str(each.handle): [value.data.decode() for value in each.values if value.type == "URL"] for each in stored}


def test_each_record_alone_is_allowed(registry: Registry) -> None:
    """Nothing is looked up twice."""
    for name in SIZES:
        assert registry.explain(Modify(handle(f"10.1/{name}"), (urls(name)[0],)), ALICE, "cli").allowed, name
        assert registry.explain(Transfer(handle(f"10.1/{name}"), TO_BOB), ALICE, "cli").allowed, name


def test_rewrite_completes_and_includes_private_values(registry: Registry) -> None:
    before = targets(registry)
    moved = run_rewrite(registry, ORDER, ALICE)
    assert (moved.done, moved.total) == (5, 5)
    assert targets(registry) == {f"10.1/{name}": [f"https://new.example/{name}"] * 2 for name in SIZES}
    assert run_undo(registry, moved, ALICE).done == 5
    assert targets(registry) == before


def test_private_matches_are_found(registry: Registry) -> None:
    for name in SIZES:
        secret = Value(2, "URL", b"http://hidden.example/", permissions=urls(name)[1].permissions)
        registry.do(Modify(handle(f"10.1/{name}"), (secret,)), OPERATOR, "cli")
    order = Rewrite("http://hidden.example/*", "https://new.example/*", "10.1")
    assert [each.handle for each in rewrite.preview(registry, order, ALICE)] == [f"10.1/{name}" for name in SIZES]
    assert run_rewrite(registry, order, ALICE).done == 5


def test_transfer_completes(registry: Registry) -> None:
    planned = preview(registry, TransferAll("10.1", TO_BOB), ALICE)
    assert [each.handle for each in planned] == [*[f"10.1/{name}" for name in SIZES], "0.NA/10.1"]
    assert [(each.refused, len(each.administrators)) for each in planned] == [(None, 1)] * 6
    assert run_transfer(registry, TransferAll("10.1", TO_BOB), ALICE).done == 6


def preview(registry: Registry, what: TransferAll, identity: Identity) -> list[PlannedTransfer]:
    planned: list[PlannedTransfer] = []
    after: tuple[int, bytes] | None = None
    while True:
        with registry.snapshot() as snapshot:
            page = transfer.preview_page(Context(snapshot, identity, "cli", registry.now()), what, after)
        planned += page.items
        after = page.following
        if after is None:
            return planned


def test_initial_checks_do_not_use_budget_of_records(registry: Registry) -> None:
    """Starting requires the list permission for each derived prefix, which can be expensive too."""
    derived = [f"10.1.{number}" for number in range(4)]
    for number, prefix in enumerate(derived):
        add_namespace(registry, prefix, "free", costly(registry, f"p{number}", 19))
        registry.do(Create(handle(f"{prefix}/x"), (costly(registry, f"x{number}", 18),)), OPERATOR, "cli")
    order = TransferAll("10.1", TO_BOB, derived=True)
    assert len([each for each in preview(registry, order, ALICE) if each.refused is None]) == 6 + 2 * len(derived)
    job = transfer.start(registry, order, ALICE, "cli")
    running = run_steps(registry, job, ALICE)
    next(running)
    list(changes(resume(registry, job.id, ALICE)))
    assert runner.find_job(registry, ALICE, job.id).done == 6 + 2 * len(derived)


@pytest.mark.parametrize("costs", [False, True])
def test_record_beyond_lookup_limit_is_denied(registry: Registry, costs: bool) -> None:
    """So is a record without permission; the records before it are done."""
    last = handle("10.1/z")
    too_much = costly(registry, "z", MAX_LOOKUPS + 1) if costs else admin(100, "300:10.9/carol")
    registry.do(Create(last, (*urls("z"), too_much)), OPERATOR, "cli")
    job = rewrite.start(registry, ORDER, ALICE, "cli", "", 6)
    with pytest.raises(Refused, match=r"cannot modify values of 10\.1/z"):
        list(run_steps(registry, job, ALICE))
    assert runner.find_job(registry, ALICE, job.id).done == 5
    with pytest.raises(Refused, match=r"cannot modify values of 10\.1/z"):
        list(changes(resume(registry, job.id, ALICE)))
    with pytest.raises(Refused, match=r"cannot transfer 10\.1/z"):
        run_transfer(registry, TransferAll("10.1", TO_BOB), ALICE)
    assert str(preview(registry, TransferAll("10.1/z", TO_BOB), ALICE)[0].refused).startswith("300:10.9/alice cannot")


def test_commit_stays_within_lookup_limit_except_first_record(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    authorize = authorization.authorize

    def counted(*arguments: object) -> object:
        before = arguments[-1].lookups  # type: ignore[attr-defined]
        decision = authorize(*arguments)  # type: ignore[arg-type]
        spent[-1] += arguments[-1].lookups - before  # type: ignore[attr-defined]
        return decision

    monkeypatch.setattr("perseid.registry.context.authorize", counted)
    job = rewrite.start(registry, ORDER, ALICE, "cli", "", 5)
    running = run_pieces(registry, job, ALICE)
    while True:
        spent.append(0)
        if next(running, None) is None:
            break
    assert max(spent) <= 3 * MAX_LOOKUPS, spent

"""Transfer jobs: whole prefixes and ranges of handles, resumed, and refused."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.record import PRIVATE_PERMISSIONS, Value, ValueRef
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.namespaces import AddNamespace, RemoveNamespace, SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Remove
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Context
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner, transfer
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.runner import resume
from perseid.registry.jobs.transfer import PlannedTransfer, TransferAll, parse_range
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.registry.access.token_identities import key, scope, shown
from tests.registry.jobs.runs import Progress, changes, run_pieces, run_transfer
from tests.registry.jobs.test_jobs import run_rewrite, run_undo
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

ALICE, BOB, CAROL = [key_holder(300, f"10.9/{name}") for name in ("alice", "bob", "carol")]
TO_BOB, TO_CAROL = ValueRef(300, "10.9/bob"), ValueRef(300, "10.9/carol")
NAME = handle("10.1/thing")
URL = Value.text(1, "URL", "https://example.org/")
ADMIN = admin(100, "300:10.9/alice")
GROUP = admin(101, "200:0.NA/10.1")
PREFIX_HANDLE = handle("0.NA/10.1")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        add_namespace(made, "10.1", "free", ADMIN)
        made.do(Create(NAME, (URL, ADMIN, GROUP)), OPERATOR, "cli")
        yield made


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 10)


def admins(registry: Registry, name: Handle | str) -> list[str]:
    """Return the administrators of a record as text, which is short for all permissions."""
    with registry.snapshot() as snapshot:
        values = snapshot.stored(handle(name) if isinstance(name, str) else name).values
    return [Admin.from_bytes(value.data).to_text() for value in values if value.type == "HS_ADMIN"]


def fill(registry: Registry) -> list[Handle]:
    """Create records in several states under a prefix and a derived one; return their handles."""
    add_namespace(registry, "10.1.5", "exact", ADMIN)
    names = [handle(f"10.1/{number:02}") for number in range(25)] + [handle("10.1.5/a"), handle("10.1.5/A")]
    for name in names:
        registry.do(Create(name, (URL, ADMIN)), OPERATOR, "cli")
    registry.do(Unpublish(names[3]), OPERATOR, "cli")
    registry.do(Tombstone(names[4], "gone"), OPERATOR, "cli")
    registry.do(Reserve((handle("10.1/reserved"),), ValueRef(300, "10.9/alice")), OPERATOR, "cli")
    registry.do(Create(handle("10.1/deleted"), (ADMIN,)), OPERATOR, "cli")
    registry.do(Delete(handle("10.1/deleted")), OPERATOR, "cli")
    add_namespace(registry, "10.12", "free", ADMIN)
    registry.do(Create(handle("10.12/other"), (ADMIN,)), OPERATOR, "cli")
    return [*names, handle("10.1/reserved")]


def start(
    registry: Registry, identity: Identity = ALICE, where: str = "10.1", to: ValueRef = TO_BOB
) -> Iterator[Progress]:
    """Start a transfer that has done nothing yet."""
    job = transfer.start(registry, TransferAll(where, to), identity, "cli")
    return run_pieces(registry, job, identity)


def run_until_prefix_transferred(registry: Registry, identity: Identity = ALICE) -> Iterator[Progress]:
    """Run a transfer until the prefix handle belongs to the new owner."""
    pieces = start(registry, identity)
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    return pieces


# Completion


@pytest.mark.usefixtures("small_steps")
def test_s9_whole_prefix_is_transferred_as_one_job(registry: Registry) -> None:
    """In steps whose entries all name the job (S11); the prefix handle is included."""
    names = [*fill(registry), NAME]
    with registry.snapshot() as snapshot:
        before = snapshot.reader.size
    job = transfer.start(registry, TransferAll("10.1", TO_BOB), ALICE, "cli", "merger of two institutes")
    pieces = list(run_pieces(registry, job, ALICE))
    own = [name for name in names if name.prefix == "10.1"]
    assert pieces[0] == Progress(job.id, 10, 0, 10)
    assert pieces[-1] == Progress(job.id, len(own) + 1, 0, 2 * len(own) + 1)
    assert runner.find_job(registry, ALICE, job.id).ended_at
    for name in (*own, PREFIX_HANDLE):
        assert admins(registry, name) == ["300:10.9/bob"], name
    for name in (handle("10.1.5/a"), handle("0.NA/10.1.5"), handle("10.12/other"), handle("0.NA/10.12")):
        assert admins(registry, name) == ["300:10.9/alice"], name
    with registry.snapshot() as snapshot:
        entries = list(snapshot.reader.log(before))
        assert snapshot.stored(own[3]).state is State.UNPUBLISHED
    assert len(entries) == len(own) + 1
    assert {entry.why for entry in entries} == {f"transfer {job.id}: merger of two institutes"}
    assert {entry.origin for entry in entries} == {("cli", "300:10.9/alice")}
    assert entries[-1].handle == "0.NA/10.1", "the permission to resume is transferred last"


def test_s9_derived_prefixes_are_included_on_request(registry: Registry) -> None:
    names = fill(registry)
    job = run_transfer(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR)
    for name in (*names, NAME, PREFIX_HANDLE, handle("0.NA/10.1.5")):
        assert admins(registry, name) == ["300:10.9/bob"], name
    assert job.done == len(names) + 3
    assert admins(registry, "10.12/other") == ["300:10.9/alice"]
    with registry.snapshot() as snapshot:
        last = snapshot.reader.entry(snapshot.reader.size)
    assert last.handle == "0.NA/10.1", "after the derived prefixes"


def test_s9_handles_with_common_start_are_transferred(registry: Registry) -> None:
    fill(registry)
    assert run_transfer(registry, TransferAll("10.1/1", TO_BOB), OPERATOR).done == 10
    assert admins(registry, "10.1/19") == ["300:10.9/bob"]
    assert admins(registry, "10.1/20") == admins(registry, PREFIX_HANDLE) == ["300:10.9/alice"]
    assert run_transfer(registry, TransferAll("10.1.5/a", TO_BOB), OPERATOR).done == 1, (
        "the namespace is case-sensitive"
    )
    assert admins(registry, "10.1.5/A") == ["300:10.9/alice"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12345", "12345"),
        ("12345/", "12345"),
        ("12345/*", "12345"),
        ("12345/…", "12345"),
        ("12345/maps-*", "12345/maps-"),
        ("12345/maps-...", "12345/maps-"),
        ("12345/a**", "12345/a*"),
        ("12345/a/*", "12345/a/"),
        ("12345/x", None),
        ("hdl:12345", None),
    ],
)
def test_parse_range(text: str, expected: str | None) -> None:
    assert parse_range(text) == expected


# Resuming


@pytest.mark.usefixtures("small_steps")
def test_s9_interrupted_transfer_is_resumed(registry: Registry) -> None:
    fill(registry)
    pieces = start(registry)
    assert next(pieces).done == 10
    pieces.close()  # type: ignore[attr-defined]
    run = resume(registry, runner.LAST, ALICE, "http")
    job = run.job
    assert [step.done for step in changes(run)] == [20, 27, 28]
    assert (job.kind, runner.find_job(registry, ALICE, job.id).done) == ("transfer", 28)
    with registry.snapshot() as snapshot:
        assert snapshot.reader.entry(snapshot.reader.size).origin == ("http", "300:10.9/alice"), (
            "the interface of the caller who resumes"
        )
    with pytest.raises(Refused, match="is already complete"):
        resume(registry, job.id, ALICE)


@pytest.mark.usefixtures("small_steps")
def test_concurrent_resumes_transfer_each_record_once(registry: Registry) -> None:
    fill(registry)
    next(start(registry))
    running = [changes(resume(registry, runner.LAST, OPERATOR)) for _ in range(2)]
    while running:
        running = [each for each in running if next(each, None) is not None]
    assert runner.find_job(registry, OPERATOR, runner.LAST).done == 28


@pytest.mark.usefixtures("small_steps")
def test_s9_records_created_meanwhile_are_transferred(registry: Registry) -> None:
    fill(registry)
    late = handle("10.1/00000")
    pieces = start(registry)
    next(pieces)
    registry.do(Create(late, (URL, ADMIN)), ALICE, "cli")
    list(pieces)
    assert admins(registry, late) == ["300:10.9/bob"]


@pytest.mark.usefixtures("small_steps")
def test_transfer_completes_after_prefix_handle_is_transferred(registry: Registry) -> None:
    """The permission to list its handles is lost with it; the rest is what was there before."""
    fill(registry)
    pieces = start(registry)
    next(pieces)
    late = handle("10.1/00000")
    registry.do(Create(late, (URL, ADMIN)), ALICE, "cli")
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="LIST_HANDLES"):
        transfer.start(registry, TransferAll("10.1", TO_BOB), ALICE, "cli")
    run = resume(registry, runner.LAST, ALICE)
    job = run.job
    list(changes(run))
    assert runner.find_job(registry, ALICE, job.id).ended_at
    assert admins(registry, late) == ["300:10.9/bob"]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("resumed", [False, True])
def test_records_created_after_prefix_transfer_are_left_alone(registry: Registry, resumed: bool) -> None:
    """The old owner neither changes them nor learns of them."""
    fill(registry)
    pieces = run_until_prefix_transferred(registry)
    hidden = handle("10.1/00-secret")
    registry.do(Create(hidden, (URL, admin(100, "300:10.9/carol")), published=False), BOB, "cli")
    registry.do(Delete(handle("10.1/05")), BOB, "cli")
    registry.do(Create(handle("10.1/05"), (URL, admin(100, "300:10.9/carol")), reuse_deleted=True), BOB, "cli")
    list(changes(resume(registry, runner.LAST, ALICE)) if resumed else pieces)
    assert admins(registry, hidden) == admins(registry, "10.1/05") == ["300:10.9/carol"]
    assert runner.find_job(registry, ALICE, runner.LAST).ended_at


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("identity", [ALICE, OPERATOR])
def test_prefixes_derived_by_new_owner_are_left_alone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, identity: Identity, resumed: bool
) -> None:
    """From each prefix as soon as it is theirs; the old owner completes the job and learns nothing of them."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 1)
    derived, deeper = handle("0.NA/10.1.5"), handle("0.NA/10.1.5.1")
    for name in (derived, deeper):
        add_namespace(registry, name.suffix, "free", ADMIN)
        registry.do(Create(handle(f"{name.suffix}/a"), (URL, ADMIN)), OPERATOR, "cli")
    add_namespace(registry, "10.1.8", "free", admin(100, "300:10.9/bob"))
    registry.do(RemoveNamespace("10.1.8"), OPERATOR, "cli")
    job = transfer.start(registry, TransferAll("10.1", TO_BOB, derived=True), identity, "cli")
    pieces = run_pieces(registry, job, identity)

    def derive(prefix: str) -> None:
        carols = admin(100, "300:10.9/carol")
        registry.do(AddNamespace(prefix, PROFILES["free"], (carols,)), BOB, "cli")
        registry.do(Create(handle(f"{prefix}/x"), (URL, carols), published=False), CAROL, "cli")

    while admins(registry, derived) != ["300:10.9/bob"]:
        next(pieces)
    derive("10.1.5.2")
    late = handle("10.1.5.1/late")
    registry.do(Create(late, (URL, ADMIN)), ALICE, "cli")
    if resumed:
        pieces = run_pieces(registry, job, identity)
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    derive("10.1.9")
    derive("10.1.5.1.7")
    registry.do(AddNamespace("10.1.8", PROFILES["free"]), BOB, "cli")  # again: it was removed
    list(changes(resume(registry, job.id, identity)) if resumed else pieces)
    assert runner.find_job(registry, identity, job.id).ended_at
    for name in (NAME, derived, deeper, PREFIX_HANDLE, handle("10.1.5/a"), handle("10.1.5.1/a"), late):
        assert admins(registry, name) == ["300:10.9/bob"], name
    for prefix in ("10.1.5.2", "10.1.9", "10.1.5.1.7"):
        for name in (handle(f"0.NA/{prefix}"), handle(f"{prefix}/x")):
            assert admins(registry, name) == ["300:10.9/carol"], name


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("identity", [ALICE, OPERATOR])
def test_changes_by_new_owner_are_left_alone(registry: Registry, identity: Identity) -> None:
    fill(registry)
    pieces = start(registry, identity)
    next(pieces)
    registry.do(Transfer(handle("10.1/05"), TO_CAROL), BOB, "cli")
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    registry.do(Add(PREFIX_HANDLE, (admin(101, "300:10.9/carol"),)), BOB, "cli")
    list(changes(resume(registry, runner.LAST, identity)))
    assert admins(registry, "10.1/05") == ["300:10.9/carol"]
    assert admins(registry, PREFIX_HANDLE) == ["300:10.9/bob", "300:10.9/carol"]


def test_undo_restores_all_owners(registry: Registry) -> None:
    names = fill(registry)
    job = run_transfer(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR)
    assert run_undo(registry, job).done == job.done
    for name in (*names, PREFIX_HANDLE, handle("0.NA/10.1.5")):
        assert admins(registry, name) == ["300:10.9/alice"], name
    assert admins(registry, NAME) == ["300:10.9/alice", "200:0.NA/10.1"]


def test_a2_undo_restores_an_owner_who_was_private_before_the_policy(registry: Registry) -> None:
    hidden = replace(ADMIN, permissions=PRIVATE_PERMISSIONS)
    registry.do(Create(NAME, (URL, hidden), overwrite=True), OPERATOR, "cli")
    policy = replace(PROFILES["free"], authority=True, default_creator="10.9/creator")
    registry.do(SetPolicy("10.1", policy), OPERATOR, "cli")
    job = run_transfer(registry, TransferAll("10.1", TO_BOB), OPERATOR)
    assert admins(registry, NAME) == ["300:10.9/bob"]
    assert run_undo(registry, job).done == job.done
    with registry.snapshot() as snapshot:
        restored = [value.with_timestamp(0) for value in snapshot.stored(NAME).values]
    assert hidden in restored
    kept = {policy.creation_date_type, policy.creator_type}
    assert {value.type for value in restored} == {"URL", "HS_ADMIN", *kept}, "the policy requires them since"


# Permissions


@pytest.mark.usefixtures("small_steps")
def test_s9_transfer_ends_at_first_record_without_permission(registry: Registry) -> None:
    fill(registry)
    registry.do(Transfer(handle("10.1/15"), TO_CAROL), OPERATOR, "cli")
    pieces = start(registry)
    assert next(pieces).done == 10
    with pytest.raises(Refused, match=r"cannot transfer 10\.1/15: requires permission MODIFY_ADMIN"):
        list(pieces)
    assert admins(registry, "10.1/10") == ["300:10.9/alice"], "commits are atomic"
    assert admins(registry, PREFIX_HANDLE) == ["300:10.9/alice"]


@pytest.mark.parametrize(
    ("order", "identity", "code", "message"),
    [
        (TransferAll("10.8", TO_BOB), OPERATOR, ResponseCode.SERVER_NOT_RESP, "This server does not host prefix 10.8"),
        (TransferAll("0.NA", TO_BOB), OPERATOR, ResponseCode.INVALID_HANDLE, "is reserved for the system"),
        (TransferAll("", TO_BOB), OPERATOR, ResponseCode.INVALID_HANDLE, "prefix"),
        (TransferAll("10.1/a", TO_BOB, derived=True), OPERATOR, ResponseCode.INVALID_HANDLE, "is not a prefix"),
        (TransferAll("10.1/\udcff", TO_BOB), OPERATOR, ResponseCode.INVALID_VALUE, "surrogate"),
        (TransferAll("10.1", ValueRef(1, "10.1/x")), OPERATOR, ResponseCode.INVALID_VALUE, "is not a valid owner"),
        (TransferAll("10.1", TO_BOB), NOBODY, ResponseCode.AUTHENTICATION_NEEDED, "Authentication required"),
        (TransferAll("10.1", TO_BOB), BOB, ResponseCode.INVALID_ADMIN, "LIST_HANDLES"),
        (TransferAll("10.1/a", TO_BOB), BOB, ResponseCode.INVALID_ADMIN, "LIST_HANDLES"),
    ],
)
def test_s9_invalid_transfer_is_not_started(
    registry: Registry, order: TransferAll, identity: Identity, code: ResponseCode, message: str
) -> None:
    for ask in (lambda: transfer.start(registry, order, identity, "cli"), lambda: preview(registry, order, identity)):
        with pytest.raises(Refused) as caught:
            ask()
        assert caught.value.code is code
        assert message in str(caught.value)
    assert list(runner.list_jobs(registry, OPERATOR)) == []


def test_transfer_requires_permission_on_prefix_handle(registry: Registry) -> None:
    """Otherwise it would fail only after everything else is done."""
    fill(registry)
    weak = admin(100, "300:10.9/alice", ALL_PERMISSIONS & ~AdminPermission.MODIFY_ADMIN)
    registry.do(Add(PREFIX_HANDLE, (weak,), overwrite=True), OPERATOR, "cli")
    with pytest.raises(Refused, match=r"cannot transfer 0\.NA/10\.1: requires permission MODIFY_ADMIN"):
        transfer.start(registry, TransferAll("10.1", TO_BOB), ALICE, "cli")
    assert run_transfer(registry, TransferAll("10.1/0", TO_BOB), ALICE).done == 10
    registry.do(Add(PREFIX_HANDLE, (ADMIN,), overwrite=True), OPERATOR, "cli")
    registry.do(Add(handle("0.NA/10.1.5"), (weak,), overwrite=True), OPERATOR, "cli")
    with pytest.raises(Refused, match=r"cannot transfer 0\.NA/10\.1\.5"):
        transfer.start(registry, TransferAll("10.1", TO_BOB, derived=True), ALICE, "cli")


def test_s9_open_listing_does_not_allow_transfer(registry: Registry) -> None:
    """Refusals name records, and open listings omit reserved and unpublished ones."""
    add_namespace(registry, "10.3", replace(PROFILES["free"], who_may_list=Audience.PUBLIC))
    registry.do(Create(handle("10.3/secret"), (ADMIN,), published=False), OPERATOR, "cli")
    for where in ("10.3/", "10.3/s"):
        with pytest.raises(Refused, match=r"cannot list the handles of 10\.3") as caught:
            transfer.start(registry, TransferAll(where, TO_BOB), BOB, "cli")
        assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("small_steps")
def test_transfer_stops_when_list_permission_is_lost(registry: Registry) -> None:
    """Also where a hidden record would be the next to be refused."""
    fill(registry)
    registry.do(Create(handle("10.1/11-secret"), (admin(100, "300:10.9/carol"),), published=False), OPERATOR, "cli")
    pieces = start(registry)
    next(pieces)
    registry.do(Remove(PREFIX_HANDLE, (100,)), OPERATOR, "cli")
    with pytest.raises(Refused, match="LIST_HANDLES") as caught:
        list(pieces)
    assert "secret" not in str(caught.value)
    with pytest.raises(Refused, match="LIST_HANDLES"):
        list(changes(resume(registry, runner.LAST, ALICE)))


def test_group_members_change_more_records_than_lookup_limit(registry: Registry) -> None:
    """Lookups for authorization are limited per request; a commit of many records ends before the limit."""
    keys = [Value(200 + number, "HS_VLIST", ValueList(members).to_bytes()) for number, members in enumerate(_nested())]
    registry.do(Add(PREFIX_HANDLE, (*keys, admin(102, "200:0.NA/10.1"))), OPERATOR, "cli")
    for number in range(240):
        registry.do(Create(handle(f"10.1/{number}"), (URL, admin(100, "200:0.NA/10.1"))), OPERATOR, "cli")
    moved = run_rewrite(registry, Rewrite("https://example.org/*", "https://new.example/*", "10.1"), CAROL)
    assert moved.done == 241
    assert run_undo(registry, moved, CAROL).done == 241
    assert run_transfer(registry, TransferAll("10.1/", TO_BOB), CAROL).done == 242


def _nested() -> Iterator[tuple[ValueRef, ...]]:
    """Yield nested groups, the last of which has a member."""
    yield from ((ValueRef(201 + number, "0.NA/10.1"),) for number in range(7))
    yield (TO_CAROL,)


# Previews


def preview(registry: Registry, order: TransferAll, identity: Identity, limit: int = 0) -> list[PlannedTransfer]:
    planned: list[PlannedTransfer] = []
    after: tuple[int, bytes] | None = None
    while True:
        with registry.snapshot() as snapshot:
            page = transfer.preview_page(Context(snapshot, identity, "cli", registry.now()), order, after, limit)
        assert len(page.items) <= (limit or runner.CHUNK_SIZE)
        planned += page.items
        after = page.following
        if after is None:
            return planned


@pytest.mark.parametrize("limit", [1, 3, 0])
@pytest.mark.usefixtures("small_steps")
def test_preview_of_transfer(registry: Registry, limit: int) -> None:
    names = fill(registry)
    registry.do(Transfer(names[0], TO_BOB), OPERATOR, "cli")
    registry.do(Transfer(names[1], TO_CAROL), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        size = snapshot.reader.size
    planned = preview(registry, TransferAll("10.1", TO_BOB, derived=True), ALICE, limit)
    expected = [*names[1:25], names[-1], NAME, *names[25:27], handle("0.NA/10.1.5"), PREFIX_HANDLE]
    assert sorted(each.handle for each in planned) == sorted(map(str, expected))
    by_name = {each.handle: each for each in planned}
    assert by_name["10.1/thing"] == PlannedTransfer("10.1/thing", ("300:10.9/alice", "200:0.NA/10.1"), None)
    assert "cannot transfer 10.1/01" in str(by_name["10.1/01"].refused)
    assert [each.handle for each in planned if each.refused is not None] == ["10.1/01"]
    with registry.snapshot() as snapshot:
        assert snapshot.reader.size == size, "nothing changed"
    done = run_transfer(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR).done
    assert done == len(planned)
    assert preview(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR, limit) == []


def test_preview_reports_policy_refusals(registry: Registry) -> None:
    registry.do(Add(NAME, (Value.text(4, "EMAIL", "a@example.org"),)), ALICE, "cli")
    registry.do(SetPolicy("10.1", replace(PROFILES["free"], forbidden_types=("EMAIL",))), OPERATOR, "cli")
    (planned, _) = preview(registry, TransferAll("10.1", TO_BOB), ALICE)
    assert "forbidden_types" in str(planned.refused)


def test_preview_hides_private_administrators(registry: Registry) -> None:
    private = replace(ADMIN, permissions=ADMIN.permissions & ~2)
    registry.do(Create(handle("10.1/p"), (URL, private)), OPERATOR, "cli")
    lists = Admin(ValueRef(300, "10.9/carol"), AdminPermission.LIST_HANDLES | AdminPermission.MODIFY_ADMIN)
    registry.do(Add(PREFIX_HANDLE, (Value(102, "HS_ADMIN", lists.to_bytes()),)), OPERATOR, "cli")
    for identity, visible in ((ALICE, ("300:10.9/alice",)), (CAROL, ())):
        (planned,) = preview(registry, TransferAll("10.1/p", TO_BOB), identity)
        assert planned.administrators == visible
        assert (planned.refused is None) == (identity is ALICE)


def test_preview_limits_administrators(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_ADMINISTRATORS_SHOWN", 2)
    many = [admin(100 + number, f"300:10.9/{number}") for number in range(5)]
    registry.do(Create(handle("10.1/many"), (URL, *many)), OPERATOR, "cli")
    (planned,) = preview(registry, TransferAll("10.1/many", TO_BOB), OPERATOR)
    assert planned.administrators == ("300:10.9/0", "300:10.9/1")


def test_token_preview_requires_transfer_scopes(registry: Registry) -> None:
    registry.do(Add(PREFIX_HANDLE, (key(300),)), OPERATOR, "cli")
    finds = shown(registry, OPERATOR, scope("find", "read", where=["10.1"]))
    with pytest.raises(Refused, match="transfer"):
        preview(registry, TransferAll("10.1/", TO_BOB), finds)
    hands = shown(registry, OPERATOR, scope("transfer", "namespaces", where=["10.1"]))
    assert len(preview(registry, TransferAll("10.1/", TO_BOB), hands)) == 2

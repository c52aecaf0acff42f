"""Handing over everything under a prefix, or all names that begin alike: as one unit, gone on with, and refused."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.value import Value, ValueRef
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Remove
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Context
from perseid.registry.identity import Identity
from perseid.registry.jobs import runner, transfer
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.transfer import PlannedTransfer, TransferAll, TransferProgress, parse_range
from perseid.registry.policy.keys import Audience
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.registry.access.token_identities import key, scope, shown
from tests.registry.jobs.test_jobs import rewrite, undo
from tests.registry.jobs.transfers import hand_over
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
    """The administrators of a record in their text form, which is short where they have all permissions."""
    with registry.snapshot() as snapshot:
        values = snapshot.stored(handle(name) if isinstance(name, str) else name).values
    return [Admin.from_bytes(value.data).to_text() for value in values if value.type == "HS_ADMIN"]


def filled(registry: Registry) -> list[Handle]:
    """Names under a prefix and under one derived from it, in several states; with their prefix handles."""
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


def begun(
    registry: Registry, identity: Identity = ALICE, where: str = "10.1", to: ValueRef = TO_BOB
) -> Iterator[TransferProgress]:
    """A transfer that has begun, and nothing of it is done yet."""
    unit = transfer.start(registry, TransferAll(where, to), identity, "cli")
    pieces = transfer.run_steps(registry, unit, identity)
    assert next(pieces) == TransferProgress(unit.id, 0, 0, 0)
    return pieces


def handed_over(registry: Registry, identity: Identity = ALICE) -> Iterator[TransferProgress]:
    """A transfer that has come so far that the prefix handle is the new owner's."""
    pieces = begun(registry, identity)
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    return pieces


# All of it


@pytest.mark.usefixtures("small_steps")
def test_s9_everything_under_a_prefix_is_transferred_as_one_operation(registry: Registry) -> None:
    """In steps of so many records, whose entries all name the operation (S11); the prefix handle goes too."""
    names = [*filled(registry), NAME]
    with registry.snapshot() as snapshot:
        before = snapshot.reading.size
    unit = transfer.start(registry, TransferAll("10.1", TO_BOB), ALICE, "cli", "merger of two institutes")
    pieces = list(transfer.run_steps(registry, unit, ALICE))
    own = [name for name in names if name.prefix == "10.1"]
    assert pieces[:2] == [TransferProgress(unit.id, 0, 0, 0), TransferProgress(unit.id, 10, 0, 10)]
    assert pieces[-1] == TransferProgress(unit.id, len(own) + 1, 0, 2 * len(own) + 1)
    assert runner.find_job(registry, ALICE, unit.id).ended
    for name in (*own, PREFIX_HANDLE):
        assert admins(registry, name) == ["300:10.9/bob"], name
    for name in (handle("10.1.5/a"), handle("0.NA/10.1.5"), handle("10.12/other"), handle("0.NA/10.12")):
        assert admins(registry, name) == ["300:10.9/alice"], name
    with registry.snapshot() as snapshot:
        entries = list(snapshot.reading.log(before))
        assert snapshot.stored(own[3]).state is State.UNPUBLISHED
    assert len(entries) == len(own) + 1
    assert {entry.why for entry in entries} == {f"transfer {unit.id}: merger of two institutes"}
    assert {entry.identity for entry in entries} == {("cli", "300:10.9/alice")}
    assert entries[-1].handle == "0.NA/10.1", "the right to go on is given away last"


def test_s9_derived_prefixes_go_along_if_that_is_asked(registry: Registry) -> None:
    names = filled(registry)
    unit = hand_over(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR)
    for name in (*names, NAME, PREFIX_HANDLE, handle("0.NA/10.1.5")):
        assert admins(registry, name) == ["300:10.9/bob"], name
    assert unit.done == len(names) + 3
    assert admins(registry, "10.12/other") == ["300:10.9/alice"]
    with registry.snapshot() as snapshot:
        last = snapshot.reading.entry(snapshot.reading.size)
    assert last.handle == "0.NA/10.1", "after those of derived prefixes"


def test_s9_a_set_of_names_that_begin_alike_is_transferred(registry: Registry) -> None:
    filled(registry)
    assert hand_over(registry, TransferAll("10.1/1", TO_BOB), OPERATOR).done == 10
    assert admins(registry, "10.1/19") == ["300:10.9/bob"]
    assert admins(registry, "10.1/20") == admins(registry, PREFIX_HANDLE) == ["300:10.9/alice"]
    assert hand_over(registry, TransferAll("10.1.5/a", TO_BOB), OPERATOR).done == 1, "letters are told apart there"
    assert admins(registry, "10.1.5/A") == ["300:10.9/alice"]


@pytest.mark.parametrize(
    ("text", "meant"),
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
def test_what_people_mean(text: str, meant: str | None) -> None:
    assert parse_range(text) == meant


# Going on


@pytest.mark.usefixtures("small_steps")
def test_s9_what_was_interrupted_is_gone_on_with(registry: Registry) -> None:
    filled(registry)
    pieces = begun(registry)
    assert next(pieces).done == 10
    pieces.close()  # type: ignore[attr-defined]
    unit, steps = resume(registry, runner.LAST, ALICE, "http")
    assert [step.done for step in steps] == [20, 27, 28]
    assert (unit.kind, runner.find_job(registry, ALICE, unit.id).done) == ("transfer", 28)
    with registry.snapshot() as snapshot:
        assert snapshot.reading.entry(snapshot.reading.size).identity == ("http", "300:10.9/alice"), (
            "the door of who goes on"
        )
    with pytest.raises(Refused, match="is left to do"):
        resume(registry, unit.id, ALICE)


@pytest.mark.usefixtures("small_steps")
def test_two_who_go_on_at_the_same_time_hand_over_each_name_once(registry: Registry) -> None:
    filled(registry)
    next(begun(registry))
    at_work = [resume(registry, runner.LAST, OPERATOR)[1] for _ in range(2)]
    while at_work:
        at_work = [each for each in at_work if next(each, None) is not None]
    assert runner.find_job(registry, OPERATOR, runner.LAST).done == 28


@pytest.mark.usefixtures("small_steps")
def test_s9_names_made_meanwhile_are_transferred_too(registry: Registry) -> None:
    filled(registry)
    late = handle("10.1/00000")
    pieces = begun(registry)
    next(pieces)
    registry.do(Create(late, (URL, ADMIN)), ALICE, "cli")
    list(pieces)
    assert admins(registry, late) == ["300:10.9/bob"]


@pytest.mark.usefixtures("small_steps")
def test_who_has_given_the_prefix_away_comes_to_the_end(registry: Registry) -> None:
    """The right to see its names is gone with it; what is left is what was there before."""
    filled(registry)
    pieces = begun(registry)
    next(pieces)
    late = handle("10.1/00000")
    registry.do(Create(late, (URL, ADMIN)), ALICE, "cli")
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="LIST_HANDLES"):
        transfer.start(registry, TransferAll("10.1", TO_BOB), ALICE, "cli")
    unit, steps = resume(registry, runner.LAST, ALICE)
    list(steps)
    assert runner.find_job(registry, ALICE, unit.id).ended
    assert admins(registry, late) == ["300:10.9/bob"]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("resumed", [False, True])
def test_what_is_made_after_the_prefix_was_handed_over_is_the_new_owners(registry: Registry, resumed: bool) -> None:
    """Whoever hands over neither changes it, nor learns of it."""
    filled(registry)
    pieces = handed_over(registry)
    hidden = handle("10.1/00-secret")
    registry.do(Create(hidden, (URL, admin(100, "300:10.9/carol")), published=False), BOB, "cli")
    registry.do(Delete(handle("10.1/05")), BOB, "cli")
    registry.do(Create(handle("10.1/05"), (URL, admin(100, "300:10.9/carol")), again=True), BOB, "cli")
    list(resume(registry, runner.LAST, ALICE)[1] if resumed else pieces)
    assert admins(registry, hidden) == admins(registry, "10.1/05") == ["300:10.9/carol"]
    assert runner.find_job(registry, ALICE, runner.LAST).ended


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("identity", [ALICE, OPERATOR])
def test_what_the_new_owner_derives_meanwhile_is_theirs(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, identity: Identity, resumed: bool
) -> None:
    """From each prefix, as soon as that is theirs; whoever hands over comes to the end, and learns nothing of it."""
    monkeypatch.setattr(runner, "CHUNK_SIZE", 1)
    below, deeper = handle("0.NA/10.1.5"), handle("0.NA/10.1.5.1")
    for name in (below, deeper):
        add_namespace(registry, name.suffix, "free", ADMIN)
        registry.do(Create(handle(f"{name.suffix}/a"), (URL, ADMIN)), OPERATOR, "cli")
    unit = transfer.start(registry, TransferAll("10.1", TO_BOB, derived=True), identity, "cli")
    pieces = transfer.run_steps(registry, unit, identity)

    def derive(prefix: str) -> None:
        carols = admin(100, "300:10.9/carol")
        registry.do(AddNamespace(prefix, PROFILES["free"], (carols,)), BOB, "cli")
        registry.do(Create(handle(f"{prefix}/x"), (URL, carols), published=False), CAROL, "cli")

    while admins(registry, below) != ["300:10.9/bob"]:
        next(pieces)
    derive("10.1.5.2")
    late = handle("10.1.5.1/late")
    registry.do(Create(late, (URL, ADMIN)), ALICE, "cli")
    if resumed:
        pieces = transfer.run_steps(registry, unit, identity)
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    derive("10.1.9")
    derive("10.1.5.1.7")
    list(resume(registry, unit.id, identity)[1] if resumed else pieces)
    assert runner.find_job(registry, identity, unit.id).ended
    for name in (NAME, below, deeper, PREFIX_HANDLE, handle("10.1.5/a"), handle("10.1.5.1/a"), late):
        assert admins(registry, name) == ["300:10.9/bob"], name
    for prefix in ("10.1.5.2", "10.1.9", "10.1.5.1.7"):
        for name in (handle(f"0.NA/{prefix}"), handle(f"{prefix}/x")):
            assert admins(registry, name) == ["300:10.9/carol"], name


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("identity", [ALICE, OPERATOR])
def test_what_the_new_owner_makes_of_a_record_is_left_alone(registry: Registry, identity: Identity) -> None:
    filled(registry)
    pieces = begun(registry, identity)
    next(pieces)
    registry.do(Transfer(handle("10.1/05"), TO_CAROL), BOB, "cli")
    while admins(registry, PREFIX_HANDLE) != ["300:10.9/bob"]:
        next(pieces)
    registry.do(Add(PREFIX_HANDLE, (admin(101, "300:10.9/carol"),)), BOB, "cli")
    list(resume(registry, runner.LAST, identity)[1])
    assert admins(registry, "10.1/05") == ["300:10.9/carol"]
    assert admins(registry, PREFIX_HANDLE) == ["300:10.9/bob", "300:10.9/carol"]


def test_an_undo_gives_everything_back(registry: Registry) -> None:
    names = filled(registry)
    unit = hand_over(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR)
    assert undo(registry, unit).done == unit.done
    for name in (*names, PREFIX_HANDLE, handle("0.NA/10.1.5")):
        assert admins(registry, name) == ["300:10.9/alice"], name
    assert admins(registry, NAME) == ["300:10.9/alice", "200:0.NA/10.1"]


# Rights


@pytest.mark.usefixtures("small_steps")
def test_s9_the_first_record_that_is_not_theirs_to_give_ends_it(registry: Registry) -> None:
    filled(registry)
    registry.do(Transfer(handle("10.1/15"), TO_CAROL), OPERATOR, "cli")
    pieces = begun(registry)
    assert next(pieces).done == 10
    with pytest.raises(Refused, match=r"may not transfer 10\.1/15: it takes MODIFY_ADMIN"):
        list(pieces)
    assert admins(registry, "10.1/10") == ["300:10.9/alice"], "a commit is done as a whole or not at all"
    assert admins(registry, PREFIX_HANDLE) == ["300:10.9/alice"]


@pytest.mark.parametrize(
    ("what", "identity", "code", "words"),
    [
        (TransferAll("10.8", TO_BOB), OPERATOR, ResponseCode.SERVER_NOT_RESP, "live here"),
        (TransferAll("0.NA", TO_BOB), OPERATOR, ResponseCode.INVALID_HANDLE, "belongs to the system"),
        (TransferAll("", TO_BOB), OPERATOR, ResponseCode.INVALID_HANDLE, "prefix"),
        (TransferAll("10.1/a", TO_BOB, derived=True), OPERATOR, ResponseCode.INVALID_HANDLE, "is no prefix"),
        (TransferAll("10.1/\udcff", TO_BOB), OPERATOR, ResponseCode.INVALID_VALUE, "surrogate"),
        (TransferAll("10.1", ValueRef(1, "10.1/x")), OPERATOR, ResponseCode.INVALID_VALUE, "cannot own anything"),
        (TransferAll("10.1", TO_BOB), NOBODY, ResponseCode.AUTHENTICATION_NEEDED, "has to be known"),
        (TransferAll("10.1", TO_BOB), BOB, ResponseCode.INVALID_ADMIN, "LIST_HANDLES"),
        (TransferAll("10.1/a", TO_BOB), BOB, ResponseCode.INVALID_ADMIN, "LIST_HANDLES"),
    ],
)
def test_s9_what_cannot_be_transferred_is_not_begun(
    registry: Registry, what: TransferAll, identity: Identity, code: ResponseCode, words: str
) -> None:
    for ask in (lambda: transfer.start(registry, what, identity, "cli"), lambda: preview(registry, what, identity)):
        with pytest.raises(Refused) as caught:
            ask()
        assert caught.value.code is code
        assert words in str(caught.value)
    assert list(runner.list_jobs(registry, OPERATOR)) == []


def test_who_may_not_hand_over_the_prefix_handle_does_not_begin(registry: Registry) -> None:
    """They would find out when everything else is done."""
    filled(registry)
    weak = admin(100, "300:10.9/alice", ALL_PERMISSIONS & ~AdminPermission.MODIFY_ADMIN)
    registry.do(Add(PREFIX_HANDLE, (weak,), overwrite=True), OPERATOR, "cli")
    with pytest.raises(Refused, match=r"may not transfer 0\.NA/10\.1: it takes MODIFY_ADMIN"):
        transfer.start(registry, TransferAll("10.1", TO_BOB), ALICE, "cli")
    assert hand_over(registry, TransferAll("10.1/0", TO_BOB), ALICE).done == 10
    registry.do(Add(PREFIX_HANDLE, (ADMIN,), overwrite=True), OPERATOR, "cli")
    registry.do(Add(handle("0.NA/10.1.5"), (weak,), overwrite=True), OPERATOR, "cli")
    with pytest.raises(Refused, match=r"may not transfer 0\.NA/10\.1\.5"):
        transfer.start(registry, TransferAll("10.1", TO_BOB, derived=True), ALICE, "cli")


def test_s9_an_open_list_is_not_the_right_to_go_through_all_names(registry: Registry) -> None:
    """Refusals name records, and reserved and unpublished ones are on no open list."""
    add_namespace(registry, "10.3", replace(PROFILES["free"], who_may_list=Audience.PUBLIC))
    registry.do(Create(handle("10.3/secret"), (ADMIN,), published=False), OPERATOR, "cli")
    for where in ("10.3/", "10.3/s"):
        with pytest.raises(Refused, match=r"may not list the handles of 10\.3") as caught:
            transfer.start(registry, TransferAll(where, TO_BOB), BOB, "cli")
        assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("small_steps")
def test_whoever_may_not_see_the_names_any_more_goes_no_further(registry: Registry) -> None:
    """Also where a hidden record would be the next that is refused."""
    filled(registry)
    registry.do(Create(handle("10.1/11-secret"), (admin(100, "300:10.9/carol"),), published=False), OPERATOR, "cli")
    pieces = begun(registry)
    next(pieces)
    registry.do(Remove(PREFIX_HANDLE, (100,)), OPERATOR, "cli")
    with pytest.raises(Refused, match="LIST_HANDLES") as caught:
        list(pieces)
    assert "secret" not in str(caught.value)
    with pytest.raises(Refused, match="LIST_HANDLES"):
        list(resume(registry, runner.LAST, ALICE)[1])


def test_members_of_groups_change_more_records_than_a_request_may_look_up(registry: Registry) -> None:
    """What is looked up for rights has a limit for each request; a commit of many ends before it comes to that."""
    keys = [Value(200 + number, "HS_VLIST", ValueList(members).to_bytes()) for number, members in enumerate(_nested())]
    registry.do(Add(PREFIX_HANDLE, (*keys, admin(102, "200:0.NA/10.1"))), OPERATOR, "cli")
    for number in range(240):
        registry.do(Create(handle(f"10.1/{number}"), (URL, admin(100, "200:0.NA/10.1"))), OPERATOR, "cli")
    moved = rewrite(registry, Rewrite("https://example.org/*", "https://new.example/*", "10.1"), CAROL)
    assert moved.done == 241
    assert undo(registry, moved, CAROL).done == 241
    assert hand_over(registry, TransferAll("10.1/", TO_BOB), CAROL).done == 242


def _nested() -> Iterator[tuple[ValueRef, ...]]:
    """Groups in groups, the last of which has a member."""
    yield from ((ValueRef(201 + number, "0.NA/10.1"),) for number in range(7))
    yield (TO_CAROL,)


# Seen beforehand


def preview(registry: Registry, what: TransferAll, identity: Identity, limit: int = 0) -> list[PlannedTransfer]:
    found: list[PlannedTransfer] = []
    after: tuple[int, bytes] | None = None
    while True:
        with registry.snapshot() as snapshot:
            page = transfer.preview_page(Context(snapshot, identity, "cli", registry.now()), what, after, limit)
        assert len(page.items) <= (limit or runner.CHUNK_SIZE)
        found += page.items
        after = page.following
        if after is None:
            return found


@pytest.mark.parametrize("limit", [1, 3, 0])
@pytest.mark.usefixtures("small_steps")
def test_what_would_be_handed_over(registry: Registry, limit: int) -> None:
    names = filled(registry)
    registry.do(Transfer(names[0], TO_BOB), OPERATOR, "cli")
    registry.do(Transfer(names[1], TO_CAROL), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        size = snapshot.reading.size
    found = preview(registry, TransferAll("10.1", TO_BOB, derived=True), ALICE, limit)
    expected = [*names[1:25], names[-1], NAME, *names[25:27], handle("0.NA/10.1.5"), PREFIX_HANDLE]
    assert sorted(each.handle for each in found) == sorted(map(str, expected))
    by_name = {each.handle: each for each in found}
    assert by_name["10.1/thing"] == PlannedTransfer("10.1/thing", ("300:10.9/alice", "200:0.NA/10.1"), None)
    assert "may not transfer 10.1/01" in str(by_name["10.1/01"].refused)
    assert [each.handle for each in found if each.refused is not None] == ["10.1/01"]
    with registry.snapshot() as snapshot:
        assert snapshot.reading.size == size, "nothing is done"
    done = hand_over(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR).done
    assert done == len(found)
    assert preview(registry, TransferAll("10.1", TO_BOB, derived=True), OPERATOR, limit) == []


def test_a_preview_says_what_a_policy_forbids(registry: Registry) -> None:
    registry.do(Add(NAME, (Value.text(4, "EMAIL", "a@example.org"),)), ALICE, "cli")
    registry.do(SetPolicy("10.1", replace(PROFILES["free"], forbidden_types=("EMAIL",))), OPERATOR, "cli")
    (found, _) = preview(registry, TransferAll("10.1", TO_BOB), ALICE)
    assert "forbidden_types" in str(found.refused)


def test_a_preview_shows_administrators_only_to_those_who_may_read_them(registry: Registry) -> None:
    private = replace(ADMIN, permissions=ADMIN.permissions & ~2)
    registry.do(Create(handle("10.1/p"), (URL, private)), OPERATOR, "cli")
    lists = Admin(ValueRef(300, "10.9/carol"), AdminPermission.LIST_HANDLES | AdminPermission.MODIFY_ADMIN)
    registry.do(Add(PREFIX_HANDLE, (Value(102, "HS_ADMIN", lists.to_bytes()),)), OPERATOR, "cli")
    for identity, told in ((ALICE, ("300:10.9/alice",)), (CAROL, ())):
        (found,) = preview(registry, TransferAll("10.1/p", TO_BOB), identity)
        assert found.administrators == told
        assert (found.refused is None) == (identity is ALICE)


def test_the_administrators_of_a_record_have_an_end(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_ADMINISTRATORS_SHOWN", 2)
    many = [admin(100 + number, f"300:10.9/{number}") for number in range(5)]
    registry.do(Create(handle("10.1/many"), (URL, *many)), OPERATOR, "cli")
    (found,) = preview(registry, TransferAll("10.1/many", TO_BOB), OPERATOR)
    assert found.administrators == ("300:10.9/0", "300:10.9/1")


def test_a_token_sees_a_preview_with_the_words_of_the_transfer(registry: Registry) -> None:
    registry.do(Add(PREFIX_HANDLE, (key(300),)), OPERATOR, "cli")
    finds = shown(registry, OPERATOR, scope("find", "read", where=["10.1"]))
    with pytest.raises(Refused, match="transfer"):
        preview(registry, TransferAll("10.1/", TO_BOB), finds)
    hands = shown(registry, OPERATOR, scope("transfer", "namespaces", where=["10.1"]))
    assert len(preview(registry, TransferAll("10.1/", TO_BOB), hands)) == 2

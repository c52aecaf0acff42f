"""History of one record: times, versions, and what is visible to whom."""

import pytest

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import Action, State
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Home
from perseid.registry.context import Context
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries import history
from perseid.registry.queries.history import (
    MIN_TIMESTAMP,
    History,
    Version,
    as_of,
    get_history,
    keep_history_note,
    resolve_at,
    seq_at_time,
)
from perseid.registry.queries.paging import MAX_PAGE, page_size
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Deleted, NotYetCreated, Refused, Resolution
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import NOW, Machine
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    LISTER,
    SERVER,
    STRANGER,
    X,
    delete,
    hidden,
    policy,
    publish,
    put,
    reserve,
    rules,
    site,
    unpublish,
    value,
)
from tests.registry.registries import NOBODY, OPERATOR, add_namespace

PUBLIC: tuple[Identity, ...] = (NOBODY, STRANGER, LISTER)
ADMINISTRATORS: tuple[Identity, ...] = (ANN, SERVER, OPERATOR)


def told(
    registry: Registry, identity: Identity = NOBODY, name: Handle = X, before: int | None = None, limit: int = 100
) -> History:
    with registry.snapshot() as snapshot:
        return get_history(snapshot, identity, name, before, limit)


def datas(registry: Registry, identity: Identity = NOBODY) -> list[list[str]]:
    """Return the data of the values of each visible version, newest first."""
    return [
        [each.data.decode() for each in version.values if each.index != 100]
        for version in told(registry, identity).versions
    ]


def then(registry: Registry, seq: int, identity: Identity = NOBODY, *, public_only: bool = True) -> Resolution:
    with registry.snapshot() as snapshot:
        return as_of(snapshot, identity, Query(X, public_only=public_only), seq).resolved


def refused(registry: Registry, identity: Identity = NOBODY, seq: int | None = None) -> tuple[ResponseCode, str]:
    with pytest.raises(Refused) as caught:
        _ = told(registry, identity) if seq is None else then(registry, seq, identity)
    return caught.value.code, caught.value.reason


NOT_FOUND = (ResponseCode.HANDLE_NOT_FOUND, "Handle 12345/x does not exist")


# Moments


def at(registry: Registry, when: str | int, now: int = NOW + 10 * SECOND) -> int:
    with registry.snapshot() as snapshot:
        return seq_at_time(snapshot.reader, when, now)


def test_time_selects_last_entry_not_after_it(registry: Registry, machine: Machine) -> None:
    add_namespace(registry, "12345")
    machine.run(SECOND)
    first, second = put(registry, value(1)), put(registry, value(2))
    machine.run(2 * SECOND)
    third = put(registry, value(3))
    assert at(registry, NOW - 1) == 0
    assert at(registry, NOW) == first - 1
    assert at(registry, NOW + SECOND - 1) == first - 1
    assert at(registry, NOW + SECOND) == second
    assert at(registry, NOW + 3 * SECOND - 1) == second
    assert at(registry, NOW + 3 * SECOND) == at(registry, NOW + 9 * SECOND) == third


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("2027-11-03T00:00:00Z", 0),
        ("2027-11-03T00:00:00.000001Z", 1),
        (" 2027-11-03 ", 0),
        ("2027-11-03T00:00:01", 1_000_000),
        ("2027-11-03T02:00:00+02:00", 0),
        (str(NOW), 0),
    ],
)
def test_time_is_iso_8601_or_microseconds(here: Registry, machine: Machine, text: str, after: int) -> None:
    last = put(here, value(1))
    machine.run(1)
    next_ = put(here, value(2))
    machine.run(SECOND - 1)
    latest = put(here, value(3))
    assert at(here, text) == {0: last, 1: next_, SECOND: latest}[after]


def test_entry_number_is_accepted_as_time(here: Registry) -> None:
    seq = put(here, value(1))
    assert [at(here, seq), at(here, str(seq)), at(here, 0)] == [seq, seq, 0]
    for number in (seq + 1, -1, MIN_TIMESTAMP - 1):
        with pytest.raises(Refused, match=f"Entry {number} does not exist; the last entry is {seq}"):
            at(here, number)


def test_future_is_refused(here: Registry) -> None:
    put(here, value(1))
    assert at(here, NOW, NOW)
    for when in (NOW + 1, str(NOW + 1), "2027-11-03T00:00:00.000001Z", "9999-12-31T23:59:59Z"):
        with pytest.raises(Refused, match="in the future") as caught:
            at(here, when, NOW)
        assert caught.value.code is ResponseCode.INVALID_VALUE


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2027-13-01", "1" * 20, "٣", "-", "2027-11-03T00:00:00Z\udc80", "1e3"]
)
def test_invalid_time_is_refused(here: Registry, text: str) -> None:
    with pytest.raises(Refused, match="Invalid time"):
        at(here, text)


# Versions


def test_history_is_newest_first(registry: Registry, machine: Machine) -> None:
    """S11: on both databases, every change with its date, action and differences."""
    add_namespace(registry, "12345")
    first = put(registry, value(1, "a"), value(2, "b"))
    machine.run(SECOND)
    second = put(registry, value(1, "a"), value(2, "c"), value(3, "d"))
    third = put(registry, value(1, "a"), action=Action.TOMBSTONE, state=State.TOMBSTONE)
    fourth = delete(registry)
    found = told(registry)
    assert (found.handle, found.before, found.complete) == (X, None, True)
    newest, tombstone, update, create = found.versions
    assert [each.seq for each in found.versions] == [fourth, third, second, first]
    assert [each.action.name for each in found.versions] == ["DELETE", "TOMBSTONE", "UPDATE", "CREATE"]
    assert [each.state.name for each in found.versions] == ["ABSENT", "TOMBSTONE", "NORMAL", "NORMAL"]
    assert (create.at, update.at) == (NOW, NOW + SECOND)
    assert create.values == (value(1, "a"), value(2, "b"))
    assert changed(create) == ([1, 2], [], [])
    assert changed(update) == ([3], [], [2])
    assert changed(tombstone) == ([], [2, 3], [])
    assert changed(newest) == ([], [1], [])


def changed(version: Version) -> tuple[list[int], list[int], list[int]]:
    assert version.changed is not None
    differences = version.changed
    modified = [old.index for old, _ in differences.modified]
    return [each.index for each in differences.added], [each.index for each in differences.removed], modified


@pytest.mark.parametrize("identity", [NOBODY, ANN, SERVER], ids=str)
def test_differences_cross_page_boundaries(here: Registry, identity: Identity) -> None:
    seqs = [put(here, ADMIN, value(n)) for n in range(1, 8)]
    whole = told(here, identity).versions
    pages, before = [], None
    while True:
        page = told(here, identity, before=before, limit=3)
        pages.append(page.versions)
        before = page.before
        if before is None:
            break
    assert [len(page) for page in pages] == [3, 3, 1]
    assert tuple(version for page in pages for version in page) == whole
    assert [version.seq for version in whole] == seqs[::-1]


def test_page_size_is_limited(here: Registry) -> None:
    put(here, value(1))
    with pytest.raises(Refused, match="Invalid limit 0"):
        told(here, limit=0)
    assert len(told(here, limit=MAX_PAGE * 10).versions) == 1
    assert [page_size(MAX_PAGE - 1), page_size(MAX_PAGE + 1)] == [MAX_PAGE - 1, MAX_PAGE]


@pytest.mark.parametrize("identity", PUBLIC, ids=str)
def test_handle_without_history_is_not_found(here: Registry, identity: Identity) -> None:
    assert refused(here, identity) == NOT_FOUND
    with pytest.raises(Refused, match="does not exist"):
        told(here, OPERATOR, before=5)


def test_handle_of_another_server_is_refused(here: Registry) -> None:
    with pytest.raises(Refused) as caught:
        told(here, OPERATOR, Handle.parse("777/x"))
    assert caught.value.code is ResponseCode.SERVER_NOT_RESP
    put(here, value(1))
    here.do(Home("0.NA/12345", unhome=True), OPERATOR, "cli")
    assert refused(here)[0] is ResponseCode.SERVER_NOT_RESP


def test_history_follows_case_rule_of_namespace(here: Registry) -> None:
    seq = put(here, value(1))
    assert told(here, name=Handle.parse("12345/X")).versions[0].seq == seq
    add_namespace(here, "54321", "exact")
    with pytest.raises(Refused, match="54321/X does not exist"):
        told(here, name=Handle.parse("54321/X"))


# Who did it, and why


def actors(registry: Registry, identity: Identity) -> tuple[str | None, str | None, str | None]:
    version = told(registry, identity).versions[0]
    return version.interface, version.actor, version.note


@pytest.mark.parametrize("identity", PUBLIC, ids=str)
def test_public_sees_no_actors_and_notes(here: Registry, identity: Identity) -> None:
    """A7: the actor is audit data, not public under this policy."""
    put(here, ADMIN, value(1), note="a ticket number")
    assert actors(here, identity) == (None, None, None)


@pytest.mark.parametrize("identity", [ANN, SERVER, OPERATOR], ids=str)
def test_administrators_see_actors_and_notes(here: Registry, identity: Identity) -> None:
    """S11: every action is logged with its actor."""
    put(here, ADMIN, value(1), note="a ticket number", actor="301:12345/bob")
    assert actors(here, identity) == ("cli", "301:12345/bob", "a ticket number")


def test_policy_shows_actors_but_never_notes() -> None:
    with site(show_actors=True) as here:
        put(here, ADMIN, value(1), note="a ticket number")
        assert actors(here, NOBODY) == ("cli", "300:12345/ann", None)


# Private values


def test_private_values_require_read_permission(here: Registry) -> None:
    unreadable = Value(3, "URL", b"never", permissions=Permission.ADMIN_WRITE)
    put(here, ADMIN, value(1, "open"), hidden(2, "secret"), unreadable)
    put(here, ADMIN, value(1, "open"))
    assert datas(here, ANN) == datas(here, OPERATOR) == [["open"], ["open", "secret"]]
    for identity in (*PUBLIC, SERVER):
        assert datas(here, identity) == [["open"], ["open"]]


def test_server_administrators_with_full_access_read_private_values() -> None:
    with site(rules=rules(full_access=True)) as here:
        put(here, ADMIN, hidden(2, "secret"))
        assert datas(here, SERVER) == [["secret"]]


def test_present_permissions_apply(here: Registry) -> None:
    """A former administrator sees no more of the time when they were one."""
    first = put(here, ADMIN, value(1, "open"), hidden(2, "secret"), note="why")
    other = Value(100, "HS_ADMIN", Admin(ValueRef.parse("300:12345/bob")).to_bytes())
    put(here, other, value(1, "open"), hidden(2, "secret"))
    assert datas(here, ANN) == [["open"], ["open"]]
    assert actors(here, ANN) == (None, None, None)
    with pytest.raises(Refused) as caught:
        then(here, first, ANN, public_only=False)
    assert caught.value.code is ResponseCode.INVALID_ADMIN
    few = Value(100, "HS_ADMIN", Admin(ValueRef.parse("300:12345/ann"), AdminPermission.ADD_VALUE).to_bytes())
    put(here, few, hidden(2, "secret"))
    assert all("secret" not in data for data in datas(here, ANN))


def test_values_hidden_since_are_hidden_in_history(registry: Registry) -> None:
    """On both databases; `test_history_filter` has the single rules."""
    add_namespace(registry, "12345")
    first = put(registry, ADMIN, value(1, "open"), value(2, "a"))
    second = put(registry, ADMIN, value(1, "open"), hidden(2, "a"))
    put(registry, ADMIN, value(1, "open"))
    for identity in (NOBODY, SERVER):
        assert datas(registry, identity) == [["open"]] * 3
    assert datas(registry, ANN) == [["open"], ["open", "a"], ["open", "a"]]
    assert [each.data for each in then(registry, first).values if each.index != 100] == [b"open"]
    assert then(registry, second, ANN, public_only=False).values == (value(1, "open"), hidden(2, "a"), ADMIN)


def test_hiding_a_value_can_keep_its_history(here: Registry) -> None:
    put(here, value(1, "a"))
    put(here, hidden(1, "a"), note=keep_history_note("moved"))
    assert datas(here) == [[], ["a"]]


def test_differences_do_not_reveal_hidden_values(here: Registry) -> None:
    put(here, value(1, "a"), value(2, "b"), value(3, "c"))
    put(here, value(1, "a"), hidden(2, "b"), value(3, "d"))
    newer, older = told(here).versions
    assert (changed(newer), changed(older)) == (([], [], [3]), ([1, 3], [], []))


# Names that are not public


def test_reserved_and_unpublished_phases_are_invisible(here: Registry) -> None:
    reserved = reserve(here, ADMIN)
    unpublished = put(here, ADMIN, value(1, "draft"), state=State.UNPUBLISHED)
    first = publish(here, ADMIN, value(1, "a"))
    gap = unpublish(here, ADMIN, value(1, "a"))
    again = publish(here, ADMIN, value(1, "a"), value(2, "b"))
    for identity in PUBLIC:
        newer, older = told(here, identity).versions
        assert (newer.seq, newer.action, changed(newer)) == (again, Action.UPDATE, ([2], [], []))
        assert (older.seq, older.action, changed(older)) == (first, Action.CREATE, ([1, 100], [], []))
        for seq in (reserved, unpublished, gap):
            assert refused(here, identity, seq) == NOT_FOUND
    for identity in ADMINISTRATORS:
        assert [each.seq for each in told(here, identity).versions] == [again, gap, first, unpublished, reserved]
    assert datas(here, SERVER) == [["a", "b"], [], ["a"], [], []]
    assert datas(here, ANN)[3] == ["draft"]


@pytest.mark.parametrize("before", [None, 5, 1000])
def test_unpublished_or_reserved_handle_has_no_public_history(here: Registry, before: int | None) -> None:
    first = put(here, ADMIN, value(1, "a"))
    second = unpublish(here, ADMIN, value(1, "a"))
    for identity in PUBLIC:
        with pytest.raises(Refused) as caught:
            told(here, identity, before=before)
        assert (caught.value.code, caught.value.reason) == NOT_FOUND
        assert refused(here, identity, first) == refused(here, identity, second) == NOT_FOUND
    assert len(told(here, ANN).versions) == len(told(here, SERVER).versions) == 2
    delete(here)
    assert refused(here) == NOT_FOUND
    reserve(here, ADMIN)
    assert refused(here) == NOT_FOUND


def test_deletion_of_hidden_record_is_invisible(here: Registry) -> None:
    first = put(here, value(1, "a"))
    unpublish(here, value(1, "a"))
    delete(here)
    last = put(here, value(1, "b"))
    assert [each.seq for each in told(here).versions] == [last, first]


def test_deleted_handle_shows_that_it_existed(here: Registry) -> None:
    first = put(here, value(1, "a"))
    second = delete(here)
    assert [each.seq for each in told(here).versions] == [second, first]
    assert then(here, first).values == (value(1, "a"),)
    assert refused(here, NOBODY, second) == NOT_FOUND


def absent(registry: Registry, identity: Identity = NOBODY, seq: int | None = None) -> tuple[int, int] | None:
    """When and after which entry the handle was deleted, if the refusal says so."""
    with registry.snapshot() as snapshot, pytest.raises(Refused) as caught:
        resolve_at(Context(snapshot, identity, "test", 0), Query(X), seq)
    assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND
    if isinstance(caught.value, Deleted):
        return caught.value.at, caught.value.last
    assert (caught.value.code, caught.value.reason) == NOT_FOUND
    return None


def test_deletion_is_visible_like_the_history(here: Registry, machine: Machine) -> None:
    first = put(here, value(1, "a"))
    machine.run(SECOND)
    deleted = delete(here)
    shown = (told(here).versions[0].at, first)
    here.do(Redact(X, 1, first, "a court said so"), OPERATOR, "cli")
    machine.run(SECOND)
    for identity in (*PUBLIC, *ADMINISTRATORS):
        assert [absent(here, identity, seq) for seq in (None, deleted)] == [shown, shown]
        with here.snapshot() as snapshot, pytest.raises(NotYetCreated, match=f"its first version is entry {first} of"):
            resolve_at(Context(snapshot, identity, "test", 0), Query(X), first - 1)
    put(here, value(1, "b"))
    assert absent(here, NOBODY, deleted) == shown
    unpublish(here, value(1, "b"))
    hidden_deletion = delete(here)
    assert [absent(here, NOBODY, seq) for seq in (None, hidden_deletion, deleted, first - 1)] == [None] * 4
    assert absent(here, OPERATOR) == (told(here, OPERATOR).versions[0].at, hidden_deletion - 1)


def test_policy_can_hide_history() -> None:
    with site(show_past=False) as here:
        first = put(here, ADMIN, value(1, "a"))
        second = publish(here, ADMIN, value(1, "b"))
        for identity in PUBLIC:
            found = told(here, identity)
            assert [(each.seq, each.changed, each.action) for each in found.versions] == [(second, None, Action.UPDATE)]
            assert not found.complete
            assert told(here, identity, before=second).versions == ()
            code, reason = refused(here, identity, first)
            assert code is ResponseCode.INSUFFICIENT_PERMISSIONS
            assert reason == "Earlier versions of 12345/x are visible to its administrators only"
            assert refused(here, identity, first - 1) == (code, reason)
            assert then(here, second, identity).values == (value(1, "b"), ADMIN)
        assert len(told(here, ANN).versions) == len(told(here, SERVER).versions) == 2
        delete(here)
        for identity in PUBLIC:
            assert refused(here, identity) == refused(here, identity, first) == NOT_FOUND
            assert absent(here, identity) is None
        assert len(told(here, SERVER).versions) == 3


def test_present_policy_decides_whether_history_is_shown(here: Registry) -> None:
    first = put(here, value(1, "a"))
    put(here, value(1, "b"))
    here.do(SetPolicy("12345", policy(show_past=False)), OPERATOR, "cli")
    assert refused(here, NOBODY, first)[0] is ResponseCode.INSUFFICIENT_PERMISSIONS
    here.do(SetPolicy("12345", PROFILES["free"]), OPERATOR, "cli")
    assert then(here, first).values == (value(1, "a"),)


# What was erased, what is too far back, what is the installation's own


def test_redacted_values_are_counted(registry: Registry) -> None:
    add_namespace(registry, "12345")
    first = put(registry, value(1), value(2, "personal"))
    put(registry, value(1))
    registry.do(Redact(X, 2, first, "a court said so"), OPERATOR, "cli")
    found = told(registry).versions
    assert [(each.action.name, each.redacted) for each in found] == [("REDACT", 0), ("UPDATE", 0), ("CREATE", 1)]
    assert [each.note for each in found] == [None] * 3
    assert datas(registry) == [["v1"]] * 3


def test_public_history_ends_at_scan_limit(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_VERSIONS_SCANNED", 7)
    first = put(here, ADMIN, value(1, "a"))
    for data in "bc":
        put(here, ADMIN, value(1, data))
    found = told(here)
    assert ([len(each.values) for each in found.versions], found.complete) == ([2, 2], False)
    assert found.versions[-1].changed is None
    code, reason = refused(here, NOBODY, first)
    assert code is ResponseCode.INSUFFICIENT_PERMISSIONS
    assert "12345/x has too many later versions" in reason
    assert datas(here, ANN) == [["c"], ["b"], ["a"]]
    assert datas(here, SERVER) == [["c"], ["b"], []]
    assert not told(here, SERVER).complete
    delete(here)
    monkeypatch.setattr(history, "MAX_VERSIONS_SCANNED", 0)
    assert refused(here) == refused(here, NOBODY, first) == NOT_FOUND


def test_installation_history_requires_server_administrator(here: Registry) -> None:
    name = Handle.parse("0.SITE/POLICY/12345")
    for identity in (*PUBLIC, ANN):
        with pytest.raises(Refused, match="is reserved for the installation"):
            told(here, identity, name)
    here.do(SetPolicy("12345", policy(purpose="maps")), OPERATOR, "cli")
    for identity in (SERVER, OPERATOR):
        versions = told(here, identity, name).versions
        assert [each.action.name for each in versions] == ["UPDATE", "CREATE"]
        assert b"maps" in versions[0].values[0].data


# As of


def test_as_of_returns_values_of_that_time(registry: Registry) -> None:
    """Resolving at a time is the third way to a fixed version; the result names the entry."""
    add_namespace(registry, "12345")
    first = put(registry, value(1, "a"), value(2, "m", type_="EMAIL"))
    between = put(registry, value(1), name="12345/y")
    second = put(registry, value(1, "b"))
    with registry.snapshot() as snapshot:
        found = as_of(snapshot, NOBODY, Query(X), between)
        assert (found.seq, found.resolved.seq, found.resolved.state) == (between, first, State.NORMAL)
        assert found.resolved.values == (value(1, "a"), value(2, "m", type_="EMAIL"))
        assert as_of(snapshot, NOBODY, Query(X, types=["EMAIL"]), first).resolved.values[0].data == b"m"
        assert as_of(snapshot, NOBODY, Query(X), second).resolved.values == (value(1, "b"),)
        with pytest.raises(Refused, match="has no matching values") as caught:
            as_of(snapshot, NOBODY, Query(X, types=["EMAIL"]), second)
        assert caught.value.code is ResponseCode.VALUES_NOT_FOUND
    assert refused(registry, NOBODY, first - 1) == NOT_FOUND


def test_as_of_requires_authentication_for_private_values(here: Registry) -> None:
    first = put(here, ADMIN, value(1, "a"), hidden(2, "secret"))
    put(here, ADMIN, value(1, "a"))
    assert [each.index for each in then(here, first).values] == [1, 100]
    assert [each.index for each in then(here, first, ANN, public_only=False).values] == [1, 2, 100]
    assert [each.index for each in then(here, first, ANN).values] == [1, 100]
    with pytest.raises(Refused) as caught:
        then(here, first, NOBODY, public_only=False)
    assert caught.value.code is ResponseCode.AUTHENTICATION_NEEDED


def test_as_of_hides_values_without_public_only(here: Registry) -> None:
    first = put(here, value(1, "a"), value(2, "b"))
    put(here, value(1, "a"), hidden(2, "b"))
    assert [each.index for each in then(here, first, NOBODY, public_only=False).values] == [1]


def test_as_of_shows_unpublished_records_to_administrators(here: Registry) -> None:
    seq = unpublish(here, ADMIN, value(1, "draft"))
    assert then(here, seq, ANN, public_only=False).state is State.UNPUBLISHED
    assert refused(here, ANN, seq) == NOT_FOUND

"""Listings: the log, changes, and handles under a prefix, in pages."""

from dataclasses import replace

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.names.handle import CaseRule, Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Create, Home
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import listing, log
from perseid.registry.queries.listing import (
    ChangedRecord,
    ListedHandle,
    LogEntry,
    list_changes,
    list_handles,
    list_homed,
)
from perseid.registry.queries.log import list_log, list_recent
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import POLICY_TYPE
from perseid.schema.common import HandleState
from perseid.wire.codes import ResponseCode
from tests.registry.administration import group
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    LISTER,
    PREFIX_ADMIN,
    SERVER,
    STRANGER,
    delete,
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

OUTSIDERS: tuple[Identity, ...] = (NOBODY, STRANGER, ANN)
"""ANN administers records of the namespace, which is no right to see its names together."""
INSIDERS: tuple[Identity, ...] = (LISTER, SERVER, OPERATOR)


def opened(registry: Registry, identity: Audience, **options: bool) -> None:
    registry.do(SetPolicy("12345", policy(who_may_list=identity, **options)), OPERATOR, "cli")


def logged(registry: Registry, identity: Identity, after: int = 0) -> list[LogEntry]:
    """Return the whole log that a caller sees, page by page."""
    found: list[LogEntry] = []
    with registry.snapshot() as snapshot:
        while True:
            page = list_log(snapshot, identity, after, limit=3)
            found += page.items
            assert page.last > after or not page.more
            after = page.last
            if not page.more:
                return found


def logged_backward(registry: Registry, identity: Identity, limit: int = 3) -> list[LogEntry]:
    """Return the whole log that a caller sees, newest first, page by page."""
    found: list[LogEntry] = []
    before: int | None = None
    with registry.snapshot() as snapshot:
        while True:
            page = list_recent(snapshot, identity, before, limit)
            found += page.items
            assert before is None or page.last < before
            before = page.last
            if not page.more:
                return found


def told(registry: Registry, identity: Identity) -> list[tuple[str, str]]:
    """Return the visible entries about handles under 12345."""
    found = [(each.action.name, each.handle.partition("/")[2]) for each in logged(registry, identity)]
    return [(action, name) for action, name in found if len(name) == 1]


def listed(registry: Registry, identity: Identity, name: str = "12345", *, deleted: bool = False) -> list[ListedHandle]:
    found: list[ListedHandle] = []
    after = 0
    with registry.snapshot() as snapshot:
        while True:
            page = list_handles(snapshot, identity, name, after, 2, deleted=deleted)
            found += page.items
            after = page.last
            if not page.more:
                return found


def names(registry: Registry, identity: Identity, name: str = "12345", *, deleted: bool = False) -> list[str]:
    return [each.handle for each in listed(registry, identity, name, deleted=deleted)]


def altered(registry: Registry, identity: Identity, earlier: int, later: int) -> list[ChangedRecord]:
    found: list[ChangedRecord] = []
    after = None
    with registry.snapshot() as snapshot:
        while True:
            page = list_changes(snapshot, identity, earlier, later, after, 2)
            found += page.items
            after = page.last
            if not page.more:
                return found


def refused(registry: Registry, identity: Identity, name: str = "12345", after: int = 0) -> ResponseCode:
    with registry.snapshot() as snapshot, pytest.raises(Refused) as caught:
        list_handles(snapshot, identity, name, after)
    return caught.value.code


def all_kinds(registry: Registry) -> None:
    """Create records in every state, one of them unpublished for a while."""
    put(registry, ADMIN, value(1), name="12345/a")
    put(registry, ADMIN, value(2), name="12345/a")
    reserve(registry, ADMIN, name="12345/b")
    put(registry, ADMIN, value(1), name="12345/c")
    unpublish(registry, ADMIN, value(1), name="12345/c")
    put(registry, ADMIN, value(1), name="12345/d")
    delete(registry, "12345/d")
    reserve(registry, ADMIN, name="12345/e")
    put(registry, ADMIN, value(1), name="12345/e", action=Action.CREATE)
    put(registry, ADMIN, value(1), name="12345/f", state=State.UNPUBLISHED)
    publish(registry, ADMIN, value(1), name="12345/f")
    unpublish(registry, ADMIN, value(1), name="12345/f")
    publish(registry, ADMIN, value(1), name="12345/f")
    put(registry, ADMIN, name="12345/g", action=Action.TOMBSTONE, state=State.TOMBSTONE)
    put(registry, ADMIN, value(1), name="12345/h", state=State.UNPUBLISHED)
    delete(registry, "12345/h")


ALL = [
    ("CREATE", "a"), ("UPDATE", "a"), ("RESERVE", "b"), ("CREATE", "c"), ("UNPUBLISH", "c"), ("CREATE", "d"),
    ("DELETE", "d"), ("RESERVE", "e"), ("CREATE", "e"), ("CREATE", "f"), ("PUBLISH", "f"), ("UNPUBLISH", "f"),
    ("PUBLISH", "f"), ("TOMBSTONE", "g"), ("CREATE", "h"), ("DELETE", "h"),
]  # fmt: skip
PUBLIC = [
    ("CREATE", "a"), ("UPDATE", "a"), ("CREATE", "d"), ("DELETE", "d"), ("CREATE", "e"), ("CREATE", "f"),
    ("UPDATE", "f"), ("TOMBSTONE", "g"),
]  # fmt: skip


# The log


def test_log_requires_list_handles(registry: Registry) -> None:
    """S11: every action with its actor, on both databases."""
    add_namespace(registry, "12345", "free", PREFIX_ADMIN)
    all_kinds(registry)
    for identity in INSIDERS:
        assert told(registry, identity) == ALL
    for identity in OUTSIDERS:
        assert logged(registry, identity) == []


def test_policy_opens_log_to_public_entries(here: Registry) -> None:
    all_kinds(here)
    opened(here, Audience.AUTHENTICATED)
    assert told(here, NOBODY) == []
    assert told(here, STRANGER) == told(here, ANN) == PUBLIC
    opened(here, Audience.PUBLIC)
    assert told(here, NOBODY) == told(here, STRANGER) == PUBLIC
    assert told(here, LISTER) == ALL


def test_log_shows_latest_entries_only_if_history_is_hidden(here: Registry) -> None:
    all_kinds(here)
    put(here, name="12345/k", state=State.UNPUBLISHED)
    publish(here, name="12345/k")
    opened(here, Audience.PUBLIC, show_past=False)
    today = [("UPDATE", "a"), ("CREATE", "e"), ("UPDATE", "f"), ("TOMBSTONE", "g"), ("UPDATE", "k")]
    assert told(here, NOBODY) == today
    assert told(here, LISTER)[: len(ALL)] == ALL


def test_policy_can_restrict_listing_to_server_administrators(here: Registry) -> None:
    all_kinds(here)
    opened(here, Audience.SERVER)
    assert told(here, LISTER) == []
    assert told(here, SERVER) == ALL
    assert refused(here, LISTER) is ResponseCode.INVALID_ADMIN
    assert len(names(here, SERVER)) == 6


def test_entries_of_other_prefixes_are_omitted(here: Registry) -> None:
    add_namespace(here, "777")
    put(here, value(1), name="777/z")
    put(here, value(1), name="12345/a")
    assert {each.handle.partition("/")[0] for each in logged(here, LISTER)} == {"12345"}
    assert {each.handle.partition("/")[0] for each in logged(here, SERVER)} == {"0.SITE", "0.NA", "12345", "777"}


def test_installation_entries_stay_hidden_under_default_policy() -> None:
    with site(rules=replace(rules(), default_policy=policy(who_may_list=Audience.PUBLIC))) as here:
        here.do(Home("0.NA/777"), OPERATOR, "cli")
        put(here, value(1), name="777/z")
        assert [each.handle for each in logged(here, NOBODY)] == ["777/z"]


def test_unreadable_policy_opens_nothing_and_affects_nothing_else(here: Registry) -> None:
    put(here, value(1), name="12345/a")
    put(here, Value(1, POLICY_TYPE, b"who_may_list = "), name="0.SITE/POLICY/777")
    seq = put(here, value(1), name="777/z")
    assert told(here, LISTER) == [("CREATE", "a")]
    with here.snapshot() as snapshot:
        assert [each.handle for each in list_changes(snapshot, SERVER, seq - 1, seq).items] == ["777/z"]


def test_actors_and_notes_require_access(
    here: Registry,
) -> None:
    put(here, ADMIN, name="12345/a", note="why")

    def last(identity: Identity) -> tuple[str | None, str | None]:
        found = next(each for each in logged(here, identity) if each.handle == "12345/a")
        return found.actor, found.note

    assert last(LISTER) == ("300:12345/ann", None)
    assert last(SERVER) == ("300:12345/ann", "why")
    opened(here, Audience.PUBLIC)
    assert last(NOBODY) == (None, None)
    opened(here, Audience.PUBLIC, show_actors=True)
    assert last(NOBODY) == ("300:12345/ann", None)


def test_log_page_limits_scanned_entries(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    add_namespace(here, "777")
    for n in range(7):
        put(here, value(1), name=f"777/{n}")
    seq = put(here, value(1), name="12345/a")
    monkeypatch.setattr(log, "MAX_SCANNED", 3)
    with here.snapshot() as snapshot:
        page = list_log(snapshot, LISTER, seq - 7)
        assert (page.items, page.last, page.more) == ((), seq - 4, True)
        assert list_log(snapshot, LISTER, seq).more is False
        assert list_log(snapshot, LISTER, seq + 100).items == ()
    assert told(here, LISTER) == [("CREATE", "a")]


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("audience", list(Audience))
def test_newest_first_shows_the_same_entries(here: Registry, audience: Audience, limit: int) -> None:
    opened(here, audience)
    all_kinds(here)
    for identity in (*OUTSIDERS, *INSIDERS):
        assert logged_backward(here, identity, limit) == logged(here, identity)[::-1]
    assert logged_backward(here, SERVER)


def test_newest_page_limits_scanned_entries(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    first = put(here, value(1), name="12345/a")
    add_namespace(here, "777")
    last = max(put(here, value(1), name=f"777/{n}") for n in range(7))
    monkeypatch.setattr(log, "MAX_SCANNED", 3)
    with here.snapshot() as snapshot:
        page = list_recent(snapshot, LISTER)
        assert (page.items, page.last, page.more) == ((), last - 2, True)
        assert list_recent(snapshot, LISTER, 1).more is False
    assert logged_backward(here, LISTER)[0].seq == first


def test_newest_page_limits_prefixes(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_PREFIXES", 2)
    seqs = [put(here, value(1), name=f"{prefix}/a") for prefix in ("12345", "778", "12345", "777")]
    with here.snapshot() as snapshot:
        page = list_recent(snapshot, LISTER)
        assert ([each.seq for each in page.items], page.last, page.more) == ([seqs[2]], seqs[2], True)
    assert [each.seq for each in logged_backward(here, LISTER)][:2] == [seqs[2], seqs[0]]


def test_log_page_limits_prefixes(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_PREFIXES", 2)
    seqs = [put(here, value(1), name=f"{prefix}/a") for prefix in ("777", "12345", "778", "12345")]
    with here.snapshot() as snapshot:
        page = list_log(snapshot, LISTER, seqs[0] - 1)
        assert ([each.seq for each in page.items], page.last, page.more) == ([seqs[1]], seqs[1], True)
        found = list_changes(snapshot, LISTER, seqs[0] - 1, seqs[3])
        assert ([each.after for each in found.items], found.last, found.more) == ([seqs[3]], seqs[1], True)
    assert [each.seq for each in logged(here, LISTER, seqs[0] - 1)] == [seqs[1], seqs[3]]


# What changed


def test_changes_report_each_record_once(registry: Registry) -> None:
    """On both databases."""
    add_namespace(registry, "12345", "free", PREFIX_ADMIN)
    first = put(registry, ADMIN, name="12345/a")
    put(registry, ADMIN, name="12345/same")
    put(registry, ADMIN, value(1), name="12345/a")
    third = put(registry, ADMIN, name="12345/b")
    fourth = put(registry, ADMIN, value(2), name="12345/a")
    fifth = delete(registry, "12345/b")
    put(registry, ADMIN, name="12345/later")
    for identity in INSIDERS:
        found = [(each.handle, each.before, each.after) for each in altered(registry, identity, first + 1, fifth)]
        assert found == [("12345/a", first, fourth), ("12345/b", 0, fifth)]
        assert [each.state_after.name for each in altered(registry, identity, first + 1, fifth)] == ["NORMAL", "ABSENT"]
        assert [each.after for each in altered(registry, identity, third - 1, third)] == [third]
        assert altered(registry, identity, fifth, first) == []
    for identity in OUTSIDERS:
        assert altered(registry, identity, 0, fifth) == []


def test_changes_show_public_records_only(here: Registry) -> None:
    with here.snapshot() as snapshot:
        start = snapshot.reader.size
    all_kinds(here)
    opened(here, Audience.PUBLIC)
    with here.snapshot() as snapshot:
        end = snapshot.reader.size
    assert [each.handle for each in altered(here, NOBODY, start, end)] == [f"12345/{name}" for name in "aefg"]
    assert [each.handle for each in altered(here, LISTER, start, end)] == [f"12345/{name}" for name in "abcdefgh"]
    # From a moment at which it was public, and hidden, and before it was deleted:
    found = {each.handle[-1]: each for each in altered(here, NOBODY, start + 6, end)}
    assert (found["d"].state_before, found["d"].state_after) == (State.NORMAL, State.ABSENT)
    assert found["e"].state_before is State.ABSENT
    assert "c" not in found
    while_reserved = altered(here, NOBODY, start + 8, end)[0]
    assert (while_reserved.handle, while_reserved.before, while_reserved.state_before) == ("12345/e", 0, State.ABSENT)
    assert altered(here, LISTER, start + 8, end)[0].before == start + 8
    opened(here, Audience.PUBLIC, show_past=False)
    hidden = {each.handle[-1]: each.before for each in altered(here, NOBODY, start + 1, end)}
    assert hidden == {"a": 0, "e": 0, "f": 0, "g": 0}


# The names under a prefix


def test_handles_are_listed_in_order_and_pages(registry: Registry) -> None:
    """Without a limit on the total; on both databases."""
    add_namespace(registry, "12345", "free", PREFIX_ADMIN)
    add_namespace(registry, "12345.1")
    for name in ("12345/b", "12345/A", "12345/c", "12345/a/b", "12345.1/x", "1234/x", "123456/x"):
        put(registry, value(1), name=name)
    for identity in INSIDERS:
        for asked in ("12345", "0.NA/12345", "0.na/12345"):
            assert names(registry, identity, asked) == ["12345/A", "12345/a/b", "12345/b", "12345/c"]
    assert listed(registry, LISTER)[0].state is State.NORMAL


def test_case_sensitive_handles_are_listed_separately(here: Registry) -> None:
    add_namespace(here, "777", "exact")
    for name in ("777/b", "777/B", "777/a"):
        here.do(Create(Handle.parse(name), (value(1),)), OPERATOR, "cli")
    assert names(here, OPERATOR, "777") == ["777/B", "777/a", "777/b"]


def test_administrators_list_all_states_and_others_public_ones(here: Registry) -> None:
    all_kinds(here)
    for identity in INSIDERS:
        assert names(here, identity) == [f"12345/{name}" for name in "abcefg"]
        assert names(here, identity, deleted=True) == [f"12345/{name}" for name in "abcdefgh"]
    opened(here, Audience.PUBLIC)
    for deleted in (False, True):
        assert names(here, NOBODY, deleted=deleted) == [f"12345/{name}" for name in "aefg"]


def test_listing_requires_permission_unless_policy_opens_it(here: Registry) -> None:
    put(here, ADMIN, name="12345/a")
    assert refused(here, NOBODY) is ResponseCode.AUTHENTICATION_NEEDED
    assert refused(here, STRANGER) is refused(here, ANN) is ResponseCode.INVALID_ADMIN
    opened(here, Audience.AUTHENTICATED)
    assert refused(here, NOBODY) is ResponseCode.AUTHENTICATION_NEEDED
    assert names(here, STRANGER) == ["12345/a"]
    opened(here, Audience.PUBLIC)
    assert names(here, NOBODY) == ["12345/a"]


def test_unhomed_prefix_is_not_listed(here: Registry) -> None:
    """§16.7: before any authentication."""
    assert refused(here, NOBODY, "777") is refused(here, OPERATOR, "0.SITE") is ResponseCode.SERVER_NOT_RESP
    put(here, name="0.SITE/HOMED/778", action=Action.HOME)  # a bare prefix, as older tables have them
    assert names(here, OPERATOR, "778") == []


def test_log_omits_prefixes_no_longer_homed(here: Registry) -> None:
    """They do not resolve and have no visible history."""
    opened(here, Audience.PUBLIC)
    put(here, value(1), name="12345/a")
    begun = here.resolve(Query(Handle.parse("12345/a")), NOBODY).seq - 1
    for identity in (NOBODY, LISTER):
        assert told(here, identity) == [("CREATE", "a")]
        assert [each.handle for each in altered(here, identity, begun, begun + 1)] == ["12345/a"]
    here.do(Home("0.NA/12345", unhome=True), OPERATOR, "cli")
    for identity in (NOBODY, LISTER):
        assert told(here, identity) == []
        assert altered(here, identity, begun, begun + 1) == []
    assert told(here, SERVER) == [("CREATE", "a")], "who runs the server sees the whole ledger"


def test_log_omits_copies_of_prefix_handles(here: Registry) -> None:
    """Under an external root they are copies and never served."""
    put(here, PREFIX_ADMIN, name="0.NA/0.NA")

    def prefixes() -> set[str]:
        return {each.handle for each in logged(here, LISTER) if each.handle.startswith("0.NA/")}

    assert "0.NA/12345" in prefixes()
    here.do(Home("0.NA/0.NA", unhome=True), OPERATOR, "cli")
    assert prefixes() == set()
    here.do(Home("0.NA/0.NA/12345"), OPERATOR, "cli")
    add_namespace(here, "12345.1")
    assert prefixes() == {"0.NA/12345.1"}, "those of derived prefixes are served here"


@pytest.mark.parametrize("name", ["", "/", "12345/a", "0.NA/", "0.NA/12345/a", "a" * 3000, "\ud800", "0.NA/0.NA/a/b"])
def test_invalid_prefix_is_not_listed(here: Registry, name: str) -> None:
    assert refused(here, OPERATOR, name) is ResponseCode.INVALID_HANDLE


def test_listing_can_be_disabled() -> None:
    with site(rules=rules(listing_allowed=False), who_may_list=Audience.PUBLIC) as here:
        put(here, value(1), name="12345/a")
        for identity in (NOBODY, LISTER):
            assert refused(here, identity) is refused(here, identity, "777") is ResponseCode.OPERATION_NOT_SUPPORTED
        for asker in (NOBODY, LISTER):
            for ask in (lambda: logged(here, asker), lambda: altered(here, asker, 0, 1)):  # noqa: B023 - called at once
                with pytest.raises(Refused) as caught:
                    ask()
                assert caught.value.code is ResponseCode.OPERATION_NOT_SUPPORTED
        assert told(here, SERVER) == [("CREATE", "a")]


def test_handles_of_derived_prefixes_are_listed(here: Registry) -> None:
    for prefix in ("12345.2", "12345.1", "12345.1.5", "123456"):
        add_namespace(here, prefix)
    assert names(here, LISTER, "0.NA/0.NA/12345") == ["0.NA/12345.1", "0.NA/12345.1.5", "0.NA/12345.2"]
    assert refused(here, STRANGER, "0.NA/0.NA/12345") is ResponseCode.INVALID_ADMIN
    assert refused(here, LISTER, "0.NA/0.NA") is ResponseCode.INVALID_ADMIN
    assert "0.NA/123456" in names(here, SERVER, "0.NA/0.NA")
    here.do(Home("0.NA/0.NA", unhome=True), OPERATOR, "cli")
    assert refused(here, LISTER, "0.NA/0.NA/12345") is ResponseCode.SERVER_NOT_RESP


def test_handle_page_limits_scan_and_hides_private_handles(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(here, Audience.PUBLIC)
    seqs = [reserve(here, name=f"12345/r{n}") for n in range(9)]
    put(here, value(1), name="12345/z")
    monkeypatch.setattr(listing, "MAX_SCANNED", 3)
    monkeypatch.setattr(listing, "_MIN_BATCH", 2)
    with here.snapshot() as snapshot:
        page = list_handles(snapshot, NOBODY, "12345", limit=1)
        assert (page.items, page.last, page.more) == ((), seqs[3], True)
    assert names(here, NOBODY) == ["12345/z"]


def test_s1_owners_see_their_hidden_handles_in_an_open_list(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(here, Audience.PUBLIC)
    all_kinds(here)
    assert {"12345/b", "12345/c"}.isdisjoint(names(here, NOBODY) + names(here, STRANGER))
    assert names(here, ANN) == names(here, LISTER)
    with here.snapshot() as snapshot:
        by_number = listing.list_by_offset(snapshot, ANN, "12345", 0)
        assert list_handles(snapshot, ANN, "12345", owned=False).items == by_number
        assert by_number is not None
        assert listing.count_handles(snapshot, ANN, "12345") == len(by_number) < len(names(here, ANN))
    monkeypatch.setattr(listing, "MAX_PAGE_LOOKUPS", 0)  # the page ends before a check is denied for lack of lookups
    assert names(here, ANN) == names(here, LISTER)


@pytest.mark.parametrize(
    ("state", "expected"),
    [("published", "aef"), ("unpublished", "c"), ("reserved", "b"), ("tombstone", "g")],
)
def test_handles_are_listed_by_state(here: Registry, state: str, expected: str) -> None:
    all_kinds(here)
    with here.snapshot() as snapshot:
        page = list_handles(snapshot, LISTER, "12345", state=HandleState(state))
        assert [each.handle for each in page.items if len(each.handle) == 7] == [f"12345/{name}" for name in expected]
        assert {each.state.label for each in page.items} == {state}


def test_handles_are_listed_by_the_start_of_their_suffix(here: Registry) -> None:
    opened(here, Audience.PUBLIC)
    for name in ("maps", "maps-1", "maps-2", "Maps-3", "map", "zoo"):
        put(here, value(1), name=f"12345/{name}")
    reserve(here, name="12345/maps-4")

    def found(identity: Identity, start: str, after: int = 0, limit: int = 100) -> list[str]:
        with here.snapshot() as snapshot:
            page = list_handles(snapshot, identity, "12345", after, limit, starts_with=start)
            rest = found(identity, start, page.last, limit) if page.more else []
        return [each.handle.partition("/")[2] for each in page.items] + rest

    assert found(LISTER, "maps-") == ["maps-1", "maps-2", "Maps-3", "maps-4"]
    assert found(LISTER, "maps-", limit=1) == ["maps-1", "maps-2", "Maps-3", "maps-4"]
    assert found(NOBODY, "MAPS-") == ["maps-1", "maps-2", "Maps-3"]
    assert found(LISTER, "x") == []
    here.do(SetPolicy("12345", policy(case=CaseRule.SENSITIVE), change_case=True), OPERATOR, "cli")
    assert found(LISTER, "maps-") == ["maps-1", "maps-2", "maps-4"]
    assert found(LISTER, "M") == ["Maps-3"]


def test_full_page_is_the_last_if_nothing_visible_follows(here: Registry) -> None:
    opened(here, Audience.PUBLIC)
    put(here, value(1), name="12345/a")
    reserve(here, name="12345/b")
    with here.snapshot() as snapshot:
        assert not list_handles(snapshot, NOBODY, "12345", limit=1).more
        assert list_handles(snapshot, LISTER, "12345", limit=1).more


def test_handle_page_ends_when_full(here: Registry) -> None:
    seqs = [put(here, value(1), name=f"12345/{n}") for n in range(4)]
    with here.snapshot() as snapshot:
        page = list_handles(snapshot, LISTER, "12345", 0, 3)
        assert ([each.seq for each in page.items], page.last, page.more) == (seqs[:3], seqs[2], True)
        rest = list_handles(snapshot, LISTER, "12345", page.last, 3)
        assert ([each.seq for each in rest.items], rest.more) == (seqs[3:], False)


def test_page_starts_after_handle_of_prefix(here: Registry) -> None:
    put(here, value(1), name="12345/a")
    assert refused(here, LISTER, after=1) is ResponseCode.INVALID_VALUE
    assert refused(here, LISTER, after=10_000) is ResponseCode.INVALID_VALUE


def test_page_starts_after_handle_that_changed_since(here: Registry) -> None:
    first = put(here, value(1), name="12345/a")
    put(here, value(1), name="12345/b")
    put(here, value(2), name="12345/a")
    with here.snapshot() as snapshot:
        assert [each.handle for each in list_handles(snapshot, LISTER, "12345", first).items] == ["12345/b"]


def test_prefix_administrators_can_be_excluded_from_listing() -> None:
    plain = rules()
    strict = replace(plain, administration=replace(plain.administration, allow_na_admins=False))
    with site(rules=strict) as here:
        assert refused(here, LISTER) is ResponseCode.INVALID_ADMIN
        assert names(here, SERVER) == []


def test_group_can_have_list_permission(here: Registry) -> None:
    permission = Admin(ValueRef.parse("200:12345/team"), AdminPermission.LIST_HANDLES)
    put(here, Value(100, "HS_ADMIN", permission.to_bytes()), name="0.NA/12345")
    put(here, group("300:99999/stranger"), name="12345/team")
    assert names(here, STRANGER) == ["12345/team"]


# The homed prefixes


def test_homed_prefixes_require_server_administrator(here: Registry) -> None:
    with here.snapshot() as snapshot:
        assert list_homed(snapshot, SERVER) == list_homed(snapshot, OPERATOR) == ("0.NA/0.NA", "0.NA/12345")
        for identity, code in ((NOBODY, ResponseCode.AUTHENTICATION_NEEDED), (LISTER, ResponseCode.INVALID_ADMIN)):
            with pytest.raises(Refused) as caught:
                list_homed(snapshot, identity)
            assert caught.value.code is code


def test_unknown_states_are_not_public(here: Registry) -> None:
    opened(here, Audience.PUBLIC)
    here.ledger.append(Append(Draft(Action.CREATE, State(9), "12345/a", "cli", "local:alice")))
    assert not names(here, NOBODY)
    assert not told(here, NOBODY)
    assert names(here, LISTER) == ["12345/a"]

"""Authority metadata: what the server adds, keeps and refuses, and what is public."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import CaseRule, Handle
from perseid.names.uri import Reference, Resolver, to_host, to_http, to_path
from perseid.records.admin import Admin
from perseid.records.encoding import from_iso, to_iso
from perseid.records.record import MAX_VALUES, Permission, Record, Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.composition import set_timestamps
from perseid.registry.policy.authority import (
    FIRST_INDEX,
    AuthorityMetadata,
    Change,
    CompletedRecord,
    FoundParty,
    Party,
    PartyStatus,
    build_metadata,
    complete_record,
    type_definitions,
)
from perseid.registry.policy.policy import DEFAULT_OWNER_TYPE, PROFILES, Policy, Refusal, Subject
from tests import record_strategies
from tests.strategies import handles, imported_handles

NOW: Final = 1_794_700_800
HANDLE: Final = Handle.parse("102.100.272/2RDV0T0QH")
PARTY: Final = Handle.parse("102.100.272/0N8J991QH")
OTHER: Final = Handle.parse("102.100.272/8RBZF0DQH")
ELSEWHERE: Final = Handle.parse("102.100.pilin2/XYZZY")
BARE: Final = PROFILES["pilin"]
POLICY: Final = replace(BARE, default_creator=str(PARTY))
OWNED: Final = replace(POLICY, owner_type=DEFAULT_OWNER_TYPE)
DATE_TYPE: Final = "102.100.TYPE/CREATION_DATE"
CREATOR_TYPE: Final = "102.100.TYPE/CREATOR"
URL: Final = Value.text(1, "URL", "https://example.org/")


def known(handle: Handle) -> FoundParty:
    """102.100.272 is homed here, with two public records."""
    if handle.prefix != "102.100.272":
        return FoundParty(PartyStatus.FOREIGN, handle)
    registered = Handle(handle.prefix, handle.suffix.upper())
    return FoundParty(PartyStatus.HERE_PUBLIC if registered in (PARTY, OTHER) else PartyStatus.HERE_MISSING, registered)


def date(text: str = "2007-06-22T02:53:46Z", index: int = FIRST_INDEX) -> Value:
    return Value.text(index, DATE_TYPE, text)


def creator(text: str = str(PARTY), index: int = FIRST_INDEX + 1) -> Value:
    return Value.text(index, CREATOR_TYPE, text)


def owner(text: str, index: int = 5) -> Value:
    return Value.text(index, DEFAULT_OWNER_TYPE, text)


def admin(handle: str, index: int = 100) -> Value:
    return Value(index, "HS_ADMIN", Admin(ValueRef(300, handle)).to_bytes())


def private(value: Value) -> Value:
    return replace(value, permissions=Permission.ADMIN_READ | Permission.ADMIN_WRITE)


def outcome(
    wanted: Iterable[Value],
    before: Iterable[Value] | None = None,
    policy: Policy = POLICY,
    *,
    now: int = NOW,
    whole: bool = True,
    is_import: bool = False,
    handle: Handle = HANDLE,
    find_party: Callable[[Handle], FoundParty] = known,
) -> CompletedRecord | list[Refusal]:
    change = Change(
        handle=handle,
        before=None if before is None else tuple(before),
        requested=tuple(wanted),
        now=now,
        whole=whole,
        is_import=is_import,
    )
    return complete_record(policy, change, find_party)


def completed(
    wanted: Iterable[Value],
    before: Iterable[Value] | None = None,
    policy: Policy = POLICY,
    *,
    now: int = NOW,
    whole: bool = True,
    is_import: bool = False,
    handle: Handle = HANDLE,
) -> CompletedRecord:
    found = outcome(wanted, before, policy, now=now, whole=whole, is_import=is_import, handle=handle)
    assert isinstance(found, CompletedRecord), [str(refusal) for refusal in found]
    return found


def refused(
    wanted: Iterable[Value],
    before: Iterable[Value] | None = None,
    policy: Policy = POLICY,
    *,
    whole: bool = True,
    is_import: bool = False,
) -> Refusal:
    found = outcome(wanted, before, policy, whole=whole, is_import=is_import)
    assert isinstance(found, list), found
    (refusal,) = found
    check_wording(policy, refusal)
    return refusal


def check_wording(policy: Policy, refusal: Refusal) -> None:
    """A refusal names the policy's line, has a clause without a full stop, and advice."""
    assert refusal.subject is Subject.VALUES
    assert refusal.line == policy.line(refusal.key)
    assert refusal.message
    assert not refusal.message.endswith(".")
    assert str(refusal.advice)


def texts(values: Iterable[Value]) -> dict[int, tuple[str, str]]:
    return {value.index: (value.type, value.data.decode("utf-8", "replace")) for value in values}


def shown(values: Iterable[Value], policy: Policy = POLICY, changed: int | None = None) -> AuthorityMetadata:
    found = build_metadata(
        policy, Record(HANDLE, tuple(values)), changed, lambda handle: known(handle).status is PartyStatus.HERE_PUBLIC
    )
    assert found is not None
    return found


# The seed document's example


def seed_record() -> tuple[Value, ...]:
    """The example of seed 002, as imported from another server."""
    created, updated = from_iso("2007-06-22T02:53:46Z"), from_iso("2007-08-10T04:23:11Z")
    return (
        URL.with_timestamp(updated),
        date(index=2).with_timestamp(created),
        creator(index=3).with_timestamp(created),
        admin(str(ELSEWHERE)).with_timestamp(created),
    )


def test_a1_a3_a5_pilin_example_is_imported_unchanged() -> None:
    imported = seed_record()
    done = completed(imported, policy=BARE, is_import=True)
    stored = set_timestamps(None, done.values, NOW, is_import=True)
    assert stored == imported
    assert done.unverified == (ELSEWHERE,)
    assert texts(stored)[2] == ("102.100.TYPE/CREATION_DATE", "2007-06-22T02:53:46Z")
    assert texts(stored)[3] == ("102.100.TYPE/CREATOR", "102.100.272/0N8J991QH")


def test_a1_a3_a4_a5_pilin_example_has_the_expected_metadata() -> None:
    found = shown(
        set_timestamps(None, completed(seed_record(), policy=BARE, is_import=True).values, NOW, is_import=True)
    )
    assert found == AuthorityMetadata(
        created=from_iso("2007-06-22T02:53:46Z"),
        updated=from_iso("2007-08-10T04:23:11Z"),
        creator=Party(PARTY, True),
        owners=(Party(ELSEWHERE, False),),
    )
    assert found.to_json() == {
        "created": "2007-06-22T02:53:46Z",
        "updated": "2007-08-10T04:23:11Z",
        "creator": {"uri": "hdl:102.100.272/0N8J991QH", "verified": True},
        "owners": [{"uri": "hdl:102.100.pilin2/XYZZY", "verified": False}],
    }
    assert json.loads(json.dumps(found.to_json())) == found.to_json()


def test_a3_imported_example_is_updated_by_a_change_here() -> None:
    before = set_timestamps(None, completed(seed_record(), policy=BARE, is_import=True).values, NOW, is_import=True)
    new = Value.text(1, "URL", "https://example.org/2")
    after = set_timestamps(before, completed([new, before[3]], before, BARE, now=NOW + 9).values, NOW + 9)
    assert (shown(after).created, shown(after).updated) == (from_iso("2007-06-22T02:53:46Z"), NOW + 9)
    assert texts(after)[2] == texts(before)[2]


# Creation


def test_a1_a8_server_adds_date_and_creator() -> None:
    done = completed([URL])
    assert texts(done.values) == {
        1: ("URL", "https://example.org/"),
        9001: (DATE_TYPE, to_iso(NOW)),
        9002: (CREATOR_TYPE, "102.100.272/0N8J991QH"),
    }
    assert all(value.is_public for value in done.values)
    assert done.unverified == ()
    assert set_timestamps(None, done.values, NOW)[1].timestamp == NOW


def test_a7_nothing_else_is_recorded() -> None:
    done = completed([URL, admin("0.NA/102.100.272")])
    assert {value.type for value in done.values} - {"URL", "HS_ADMIN"} == {DATE_TYPE, CREATOR_TYPE}
    found = shown(set_timestamps(None, done.values, NOW))
    assert found.to_json().keys() == {"created", "updated", "creator", "owners"}
    assert found.owners == ()


def test_a3_registering_a_reserved_handle_is_its_creation() -> None:
    """A3: the date is that of the first association, whether the handle is new or was reserved."""
    assert completed([URL], before=()).values == completed([URL], before=None).values


def test_a5_types_and_ttl_come_from_the_policy() -> None:
    policy = replace(POLICY, creation_date_type="MADE", creator_type="MAKER", default_ttl=7)
    made, maker = completed([URL], policy=policy).values[1:]
    assert (made.type, maker.type) == ("MADE", "MAKER")
    assert (made.ttl, maker.ttl) == (7, 7)
    assert completed([Value.text(4, "maker", str(OTHER))], policy=policy).values[0].data == b"102.100.272/8RBZF0DQH"


def test_a8_record_without_a_creator_is_refused() -> None:
    refusal = refused([URL], policy=BARE)
    assert str(refusal) == (
        "the record has no creator, and the namespace has no default creator; the policy of this namespace says: "
        'default_creator = "". Add a value of type 102.100.TYPE/CREATOR with the creator\'s handle, or set '
        "default_creator in the policy"
    )


@pytest.mark.parametrize(
    "form",
    [
        "102.100.272/8RBZF0DQH",
        "hdl:102.100.272/8RBZF0DQH",
        "HDL:102.100.272/8RBZF0DQH",
        "hdl://102.100.272/8RBZF0DQH",
        "http://resolver.net.au/hdl/102.100.272/8RBZF0DQH",
        "https://hdl.handle.net/102.100.272/8RBZF0DQH",
    ],
)
def test_a5_creator_is_accepted_in_every_form_and_stored_bare(form: str) -> None:
    done = completed([creator(form, 3)])
    assert texts(done.values)[3] == (CREATOR_TYPE, "102.100.272/8RBZF0DQH")
    found = shown(done.values).creator
    assert found is not None
    assert found.to_json()["uri"] == "hdl:102.100.272/8RBZF0DQH"


@given(handles(), st.sampled_from(["bare", "path", "host", "http"]))
def test_a4_a5_accepted_creator_is_read_back_unchanged(handle: Handle, form: str) -> None:
    resolver = Resolver.parse("https://example.org/hdl")
    reference = Reference(handle)
    http = to_http(reference, resolver)
    text = {"bare": str(handle), "path": to_path(reference), "host": to_host(reference), "http": http}[form]
    change = Change(handle=HANDLE, before=None, requested=(creator(text),), now=NOW, whole=True)
    done = complete_record(POLICY, change, lambda named: FoundParty(PartyStatus.FOREIGN, named), (resolver,))
    if isinstance(done, list):
        assert {refusal.key for refusal in done} == {"creator_type"}  # `hdl:1/x` is a legal name and would be misread
        return
    (stored,) = [value for value in done.values if value.type == CREATOR_TYPE]
    found = shown(done.values).creator
    assert found is not None
    assert stored.data == found.handle.to_bytes()
    assert str(found.handle) == str(handle) or form == "bare"
    assert completed(done.values, done.values).values == done.values


def test_a4_record_can_name_itself_as_creator() -> None:
    """A4: also in lowercase where case is ignored, and as the policy's default."""
    for name in ("102.100.272/2RDV0T0QH", "hdl:102.100.272/2rdv0t0qh"):
        assert completed([creator(name)], policy=BARE).unverified == ()
    policy = replace(BARE, default_creator=str(HANDLE))
    assert texts(completed([URL], policy=policy).values)[9002] == (CREATOR_TYPE, str(HANDLE))


def test_a4_case_sensitive_spelling_is_another_handle() -> None:
    policy = Policy(authority=True, case=CaseRule.SENSITIVE)
    found = outcome([creator("102.100.272/2rdv0t0qh")], policy=policy)
    assert isinstance(found, list)
    assert found[0].key == "creator_type"


def test_a4_missing_local_creator_is_refused() -> None:
    refusal = refused([creator("102.100.272/D7J1G0DQH", 3)])
    assert (refusal.key, refusal.line) == ("creator_type", 'creator_type = "102.100.TYPE/CREATOR"')
    assert refusal.message == ("value 3, the creator, '102.100.272/D7J1G0DQH', does not exist or is not public")
    missing = replace(BARE, default_creator="102.100.272/D7J1G0DQH")
    assert refused([URL], policy=missing).key == "default_creator"


def test_a4_foreign_creator_is_accepted_and_reported_as_unverified() -> None:
    done = completed([creator("hdl:102.100.pilin2/XYZZY")])
    assert done.unverified == (ELSEWHERE,)
    assert shown(done.values).creator == Party(ELSEWHERE, False)
    assert b"unverified" not in b"".join(value.data for value in done.values)
    assert completed([URL], policy=replace(BARE, default_creator=str(ELSEWHERE))).unverified == (ELSEWHERE,)
    old = Handle.parse_lenient(f"{ELSEWHERE}\u200b")  # stored when such handles were legal
    assert completed([URL], policy=replace(BARE, default_creator=str(old))).unverified == (old,)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"nobody", "is not a handle"),
        (b"", "the name is empty"),
        (b"\xff/x", "not valid UTF-8"),
        (b"http://example.org/1/x", "known resolver"),
        (b"hdl:1/x?page=2", "query or fragment"),
        (b"hdl:hdl%3A1/x", "is ambiguous"),
        (b"1/x\x00", "U+0000"),
        (b"x" * 100_000, "is not a handle"),
    ],
)
def test_a4_invalid_creator_is_refused(data: bytes, reason: str) -> None:
    refusal = refused([Value(3, CREATOR_TYPE, data)])
    assert refusal.message.startswith("value 3 is not a valid creator: ")
    assert reason in refusal.message
    assert len(refusal.message) < 400


def test_a3_client_cannot_set_the_date() -> None:
    refusal = refused([URL, date(index=7)])
    assert refusal.key == "creation_date_type"
    assert refusal.message == "value 7 is a date of creation, which only the server sets"
    assert refused([date("yesterday")]).message.endswith("which only the server sets")
    assert texts(completed([date(to_iso(NOW), 7)]).values)[7] == (DATE_TYPE, to_iso(NOW))


def test_a2_authority_metadata_must_be_public() -> None:
    """A2: a private value is refused, and never made public silently."""
    refusal = refused([private(creator(index=3))])
    assert (refusal.key, refusal.message) == ("authority", "value 3, the creator, is not public")
    before = completed([URL]).values
    hidden = [private(value) if value.type == DATE_TYPE else value for value in before]
    assert "date of creation, is not public" in refused(hidden, before).message
    assert refused([URL], hidden).key == "authority"
    assert completed(before, hidden).values == before


def test_second_date_or_creator_is_refused() -> None:
    two = refused([creator(index=1), creator(index=2)])
    assert two.message == "values 1, 2 are all of the type of the creator"
    before = completed([URL]).values
    assert refused([*before, creator(index=7)], before, whole=False).key == "creator_type"
    assert refused([*before, date(to_iso(NOW), 7)], before, whole=False).key == "creation_date_type"


def test_all_refusals_are_reported_together() -> None:
    found = outcome([date("x"), creator("y"), owner("z")], policy=OWNED)
    assert isinstance(found, list)
    assert [refusal.key for refusal in found] == ["creation_date_type", "creator_type", "owner_type"]
    for refusal in found:
        check_wording(OWNED, refusal)


def test_record_with_too_many_values_is_refused() -> None:
    many = [Value.text(index, "URL", "x") for index in range(1, MAX_VALUES)]
    assert len(completed(many[1:]).values) == MAX_VALUES
    refusal = refused(many)
    assert refusal.message == "the record would have 2,049 values; the limit is 2,048"


# Later changes


def test_a8_replacing_the_record_keeps_what_the_request_omits() -> None:
    before = set_timestamps(None, completed([URL]).values, NOW)
    new = Value.text(2, "EMAIL", "a@example.org")
    after = set_timestamps(before, completed([new], before, BARE, now=NOW + 5).values, NOW + 5)
    assert after == (new.with_timestamp(NOW + 5), *before[1:])


def test_a8_sending_back_what_was_read_changes_nothing() -> None:
    before = set_timestamps(None, completed([URL, admin(str(ELSEWHERE))]).values, NOW)
    sent = [value.with_timestamp(5) for value in before]
    for whole in (True, False):
        done = completed(sent, before, now=NOW + 5, whole=whole)
        assert set_timestamps(before, done.values, NOW + 5) == before
        assert done.unverified == ()


def test_a8_creator_can_be_repeated_in_another_form() -> None:
    before = completed([URL]).values
    for form in ("hdl:102.100.272/0n8j991qh", "http://resolver.net.au/hdl/102.100.272/0N8J991QH"):
        assert completed([URL, creator(form)], before).values == before
    same = date(to_iso(NOW).replace("Z", ".75+00:00"))
    assert completed([URL, same], before).values == before


def test_a8_changing_or_removing_them_is_refused() -> None:
    url, made, maker = before = completed([URL]).values
    advice = AdviceKind.KEEP_UNCHANGED()
    for whole in (True, False):
        changed = refused([url, date(index=9001), maker], before, whole=whole)
        assert (changed.message, changed.advice) == ("value 9001, the date of creation, cannot be changed", advice)
        changed = refused([url, made, creator(str(OTHER))], before, whole=whole)
        assert (changed.message, changed.advice) == ("value 9002, the creator, cannot be changed", advice)
    removed = refused([url, made], before, whole=False)
    assert removed.message == "value 9002, the creator, cannot be removed"
    removed = refused([url, replace(made, type="URL"), maker], before, whole=False)
    assert removed.message == "value 9001, the date of creation, cannot be removed"
    assert refused([url, creator("no handle")], before).key == "creator_type"


def test_a3_a8_import_cannot_change_date_and_creator() -> None:
    before = completed([URL]).values
    assert refused([URL, date()], before, is_import=True).key == "creation_date_type"
    assert refused([URL, creator(str(OTHER))], before, is_import=True).key == "creator_type"
    assert completed([URL], before, is_import=True).values == before


def test_other_properties_of_the_values_can_change() -> None:
    url, made, maker = before = completed([URL]).values
    shorter = replace(made, ttl=60)
    assert completed([url, shorter, maker], before, whole=False).values == (url, shorter, maker)
    elsewhere = replace(maker, index=3)
    assert completed([url, made, elsewhere], before).values == (url, elsewhere, made)


def test_a8_values_move_if_a_client_uses_their_indexes() -> None:
    before = completed([URL]).values
    own = [Value.text(index, "URL", "x") for index in (9001, 9003)]
    after = completed(own, before).values
    assert [(value.index, value.type) for value in after] == [
        (9001, "URL"),
        (9002, CREATOR_TYPE),
        (9003, "URL"),
        (9004, DATE_TYPE),
    ]
    assert shown(after).created == NOW
    both = completed([creator(index=9001)], before).values
    assert [(value.index, value.type) for value in both] == [(9001, DATE_TYPE), (9002, CREATOR_TYPE)]


def test_a4_deleted_creator_does_not_block_changes() -> None:
    before = completed([URL, admin(str(OTHER))]).values
    missing = FoundParty(PartyStatus.HERE_MISSING, OTHER)
    done = outcome([URL, admin(str(OTHER), 101)], before, BARE, find_party=lambda _: missing)
    assert isinstance(done, CompletedRecord)


# Imports, and records that are older than the policy


def test_a3_import_normalizes_its_dates() -> None:
    done = completed([date("2007-06-22T12:53:46.9+10:00"), creator()], is_import=True)
    assert texts(done.values)[9001] == (DATE_TYPE, "2007-06-22T02:53:46Z")


@pytest.mark.parametrize(
    "text",
    [
        *("", "2007", "2007-06-22", "2007-06-22T02:53:46", "2007-06-22T02:53Z", "2007-06-31T02:53:46Z"),
        *("0001-01-01T00:00:00+10:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "٢٠٠٧-06-22T02:53:46Z"),
        *("20070622T025346Z", "2007-06-22 02:53:46Z", "2007-06-22T02:53:46Z ", "2007-06-22T02:53:46+99:00"),
    ],
)
def test_a3_import_with_an_invalid_date_is_refused(text: str) -> None:
    refusal = refused([date(text, 3)], is_import=True)
    assert (refusal.key, refusal.message) == ("creation_date_type", "value 3 is not a valid date of creation")
    assert refusal.advice == AdviceKind.WRITE_DATE(example=to_iso(NOW))


def test_a3_import_with_a_future_date_is_refused() -> None:
    assert "in the future" in refused([date(to_iso(NOW + 1))], is_import=True).message


def test_a3_import_without_a_date_uses_the_oldest_timestamp() -> None:
    old = URL.with_timestamp(from_iso("2009-01-02T03:04:05Z"))
    newer = Value.text(2, "DESC", "x").with_timestamp(from_iso("2010-01-02T03:04:05Z"))
    done = completed([newer, old, Value.text(3, "DESC", "y")], is_import=True)
    assert texts(done.values)[9001] == (DATE_TYPE, "2009-01-02T03:04:05Z")
    assert texts(completed([URL], is_import=True).values)[9001] == (DATE_TYPE, to_iso(NOW))
    assert texts(completed([old]).values)[9001] == (DATE_TYPE, to_iso(NOW))  # a client's timestamps say nothing


def test_a1_record_older_than_the_policy_gets_both_at_its_next_change() -> None:
    old = URL.with_timestamp(from_iso("2009-01-02T03:04:05Z"))
    new = Value.text(2, "DESC", "x")
    done = completed([old, new], [old], whole=False)
    assert texts(done.values)[9001] == (DATE_TYPE, "2009-01-02T03:04:05Z")
    assert texts(done.values)[9002] == (CREATOR_TYPE, str(PARTY))
    assert texts(completed([old, creator(str(OTHER), 4)], [old]).values)[4] == (CREATOR_TYPE, str(OTHER))
    assert texts(completed([old, date(index=4)], [old], is_import=True).values)[4] == (DATE_TYPE, date().data.decode())
    assert refused([old, new], [old], BARE, whole=False).key == "default_creator"


def test_surplus_values_of_an_older_record_are_removed() -> None:
    before = [date("long ago", 1), date(index=2), date(to_iso(NOW), 3), creator("me", 4), creator(f"hdl:{OTHER}", 5)]
    for whole in (True, False):
        after = completed([URL.with_timestamp(0), *before][1:], before, whole=whole).values
        assert texts(after) == {2: (DATE_TYPE, "2007-06-22T02:53:46Z"), 5: (CREATOR_TYPE, str(OTHER))}
    assert texts(completed([], [creator("me", 4), URL]).values)[9002] == (CREATOR_TYPE, str(PARTY))


def test_a4_import_keeps_a_creator_that_is_not_legal_here() -> None:
    odd = creator("10.1/a\u202eb")
    assert completed([odd], is_import=True).values[-1].data == odd.data
    assert refused([odd]).key == "creator_type"


# Owners


def test_a5_owners_are_administrators_except_creator_and_prefix_handles() -> None:
    values = [
        admin("0.NA/102.100.272", 100),
        admin("0.na/other", 101),
        admin("102.100.272/0n8j991qh", 102),
        admin(str(OTHER), 103),
        replace(admin(str(ELSEWHERE), 104), type="hs_admin.x"),
        admin("102.100.272/8rbzf0dqh", 105),
        private(admin("0.NA/102.100.272", 106)),
        Value(107, "HS_ADMIN", b"broken"),
        admin("nohandle", 108),
    ]
    found = shown(completed(values).values)
    assert found.owners == (Party(OTHER, True), Party(ELSEWHERE, False))


def test_a4_missing_local_owner_is_refused() -> None:
    refusal = refused([admin("102.100.272/D7J1G0DQH")])
    assert refusal.key == "authority"
    assert refusal.message.startswith("the owner in an HS_ADMIN value, '102.100.272/D7J1G0DQH', does not exist")
    assert completed([admin(str(HANDLE))]).unverified == ()
    assert completed([admin(str(ELSEWHERE)), admin("10.1/x", 101)]).unverified == (ELSEWHERE, Handle("10.1", "x"))


def test_a5_policy_can_separate_owners_from_administrators() -> None:
    done = completed([admin("102.100.272/D7J1G0DQH"), owner(f"hdl:{OTHER}", 5), owner(str(ELSEWHERE), 6)], policy=OWNED)
    assert texts(value for value in done.values if value.type == DEFAULT_OWNER_TYPE)[5][1] == str(OTHER)
    assert done.unverified == (ELSEWHERE,)
    assert shown(done.values, OWNED).owners == (Party(OTHER, True), Party(ELSEWHERE, False))
    assert shown(done.values, POLICY).owners == (Party(Handle.parse("102.100.272/D7J1G0DQH"), False),)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (owner("x"), "value 5 is not a valid owner: 'x' is not a handle"),
        (owner(f"hdl:{PARTY}"), "value 5 names the creator as owner"),
        (private(owner(str(OTHER))), "value 5, an owner, is not public"),
        (
            owner("102.100.272/D7J1G0DQH"),
            "value 5, the owner, '102.100.272/D7J1G0DQH', does not exist or is not public",
        ),
    ],
)
def test_a4_owner_value_must_be_public_and_not_the_creator(value: Value, message: str) -> None:
    refusal = refused([value], policy=OWNED)
    assert (refusal.key, refusal.line) == ("owner_type", 'owner_type = "102.100.TYPE/OWNER"')
    assert refusal.message.startswith(message)
    assert completed([value, URL], [value], OWNED).values[1] == value  # as it was, it hinders no change


def test_owners_can_be_added_and_removed() -> None:
    before = completed([owner(str(OTHER))], policy=OWNED).values
    assert shown(completed([], before, OWNED).values, OWNED).owners == ()
    moved = completed([owner("hdl:102.100.pilin2/XYZZY")], before, OWNED)
    assert shown(moved.values, OWNED).owners == (Party(ELSEWHERE, False),)


# Public metadata


def test_a3_last_update_is_the_newest_timestamp_or_a_later_entry() -> None:
    """A3: an entry that only removed a value leaves no timestamp, and still changes the date."""
    values = set_timestamps(None, completed([URL]).values, NOW)
    assert shown(values).updated == NOW
    assert shown(values, changed=NOW - 1).updated == NOW
    assert shown(values[1:], changed=NOW + 9).updated == NOW + 9
    assert shown([], changed=None).updated is None


def test_a2_dates_and_creator_are_public_values_and_owners_are_always_public() -> None:
    values = [private(date()), private(creator()), private(admin(str(OTHER))), private(URL.with_timestamp(NOW))]
    assert shown(values) == AuthorityMetadata(None, None, None, (Party(OTHER, True),))


def test_a2_owner_cannot_be_hidden() -> None:
    hidden = private(admin(str(OTHER)))
    refusal = refused([hidden])
    assert (refusal.key, refusal.message) == ("authority", "value 100, an owner, is not public")
    assert refusal.advice == AdviceKind.MAKE_PUBLIC()
    assert refused([hidden], [admin(str(OTHER))]).message == refusal.message
    assert shown(completed([hidden, URL], [hidden]).values).owners == (Party(OTHER, True),), "stored before the rule"
    for visible in (private(admin(str(PARTY))), private(admin("0.NA/102.100.272"))):
        completed([visible, URL])  # the creator and the namespace are not owners
    completed([hidden, admin("102.100.272/8rbzf0dqh", 101)])  # the owner is public in another value
    completed([hidden], policy=OWNED)  # administrators are not owners there


@pytest.mark.parametrize("text", ["102.100.272/8rbzf0dqh", "hdl:102.100.272/8RBZf0dqh"])
def test_a5_creator_and_owner_are_stored_as_registered(text: str) -> None:
    assert texts(completed([creator(text, 3)]).values)[3] == (CREATOR_TYPE, str(OTHER))
    assert texts(completed([owner(text, 5)], policy=OWNED).values)[5] == (DEFAULT_OWNER_TYPE, str(OTHER))
    policy = replace(BARE, default_creator=text.removeprefix("hdl:"))
    assert texts(completed([URL], policy=policy).values)[9002] == (CREATOR_TYPE, str(OTHER))
    itself = completed([creator(str(HANDLE).lower(), 3)], policy=BARE)
    assert texts(itself.values)[3] == (CREATOR_TYPE, str(HANDLE))


def test_invalid_values_are_ignored() -> None:
    values = [
        date("soon", 1),
        date(index=2),
        creator("me", 3),
        Value(4, CREATOR_TYPE, b"\xff"),
        replace(URL, index=5, timestamp=-3),
    ]
    found = shown(values)
    assert (found.created, found.updated, found.creator) == (from_iso("2007-06-22T02:53:46Z"), None, None)
    assert found.to_json()["creator"] is None


def test_a7_no_authority_metadata_without_the_policy() -> None:
    record = Record(HANDLE, seed_record())
    assert build_metadata(PROFILES["free"], record, NOW, lambda _: True) is None


def test_a6_every_type_of_the_server_has_a_definition() -> None:
    for policy in (*PROFILES.values(), OWNED):
        defined = type_definitions(policy)
        assert tuple(found.type for found in defined) == policy.types_used
        assert len({found.text for found in defined}) == len(defined)
        assert all(found.description.endswith(".") and found.syntax.endswith(".") for found in defined)


def test_a6_definition_belongs_to_the_handle_of_its_type() -> None:
    first, second, third = type_definitions(OWNED)[:3]
    assert (first.handle, first.name) == (Handle.parse("102.100.TYPE/CREATION_DATE"), "CREATION_DATE")
    assert (second.handle, third.handle) == (Handle.parse(CREATOR_TYPE), Handle.parse(DEFAULT_OWNER_TYPE))
    assert first.text == (
        "CREATION_DATE: When the identifier was first associated with the thing it identifies. "
        "Syntax: A moment in ISO 8601, in UTC, to the second: YYYY-MM-DDThh:mm:ssZ."
    )
    plain = type_definitions(PROFILES["free"])[0]
    assert (plain.handle, plain.name) == (None, "TOMBSTONE.REASON")


# Timestamps


def test_only_new_and_changed_values_get_a_new_timestamp() -> None:
    before = (URL.with_timestamp(5), Value.text(2, "DESC", "x").with_timestamp(6))
    wanted = (URL.with_timestamp(77), Value.text(2, "DESC", "y").with_timestamp(78), Value.text(3, "DESC", "x"))
    assert [value.timestamp for value in set_timestamps(before, wanted, NOW)] == [5, NOW, NOW]
    assert [value.timestamp for value in set_timestamps(before, wanted, NOW, is_import=True)] == [77, 78, NOW]
    assert [value.timestamp for value in set_timestamps(None, wanted, NOW)] == [NOW] * 3
    assert set_timestamps(before, before[::-1], NOW) == before[::-1]


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "URL.x"},
        {"ttl": 5},
        {"permissions": Permission.PUBLIC_READ},
        {"references": (ValueRef(1, "1/x"),)},
        {"index": 2},
    ],
)
def test_every_part_of_a_value_is_compared(changed: dict[str, object]) -> None:
    (after,) = set_timestamps([URL.with_timestamp(5)], [replace(URL, **changed)], NOW)  # type: ignore[arg-type]
    assert after.timestamp == NOW


@given(record_strategies.records(), record_strategies.records())
def test_set_timestamps_changes_nothing_else(before: Record, wanted: Record) -> None:
    after = set_timestamps(before.values, wanted.values, NOW)
    assert [value.with_timestamp(0) for value in after] == [value.with_timestamp(0) for value in wanted.values]
    assert set_timestamps(after, wanted.values, NOW + 1) == after


# Properties

_INDEXES = st.integers(1, 5) | st.integers(FIRST_INDEX, FIRST_INDEX + 5)
_OWN_TYPES = st.sampled_from(["URL", "HS_ADMIN", CREATOR_TYPE + ".x", ""])
_ANY_TYPES = _OWN_TYPES | st.sampled_from([DATE_TYPE, CREATOR_TYPE, CREATOR_TYPE.lower(), DEFAULT_OWNER_TYPE])
_DATA = st.binary(max_size=4) | st.sampled_from(
    [
        *(
            b"2007-06-22T02:53:46Z",
            to_iso(NOW).encode(),
            b"hdl:102.100.272/0n8j991qh",
            b"102.100.272/8RBZF0DQH",
            b"1/x",
        ),
        *(admin(str(name)).data for name in (PARTY, OTHER, ELSEWHERE, "102.100.272/D7J1G0DQH")),
    ]
)


def some_values(types: st.SearchStrategy[str]) -> st.SearchStrategy[list[Value]]:
    permissions = st.sampled_from([Permission(0x0E), Permission(0x0E), Permission(0x0C)])
    timestamps = st.sampled_from([0, 1, NOW - 5, NOW + 5])
    value = st.builds(Value, _INDEXES, types, _DATA, permissions=permissions, timestamp=timestamps)
    return st.lists(value, max_size=6, unique_by=lambda value: value.index)


@given(some_values(_OWN_TYPES), st.lists(some_values(_OWN_TYPES), max_size=5))
def test_a3_a8_replacing_a_record_keeps_date_and_creator(first: list[Value], replacements: list[list[Value]]) -> None:
    now = NOW
    values = set_timestamps(None, completed(first, is_import=False, policy=OWNED).values, now)
    for wanted in replacements:
        now += 60
        values = set_timestamps(values, completed(wanted, values, OWNED, now=now).values, now)
        own = [value.with_timestamp(0) for value in wanted]
        assert [value for value in values if value.with_timestamp(0) in own] == sorted(
            [value for value in values if value.type not in (DATE_TYPE, CREATOR_TYPE)], key=lambda value: value.index
        )
        assert len(values) == len(wanted) + 2
    found = shown(values, OWNED)
    assert (found.created, found.creator) == (NOW, Party(PARTY, True))


@given(
    st.none() | some_values(_ANY_TYPES),
    some_values(_ANY_TYPES),
    st.sampled_from([POLICY, BARE, OWNED]),
    st.booleans(),
    st.booleans(),
)
def test_a8_record_has_one_of_each_or_is_refused(
    before: list[Value] | None, wanted: list[Value], policy: Policy, whole: bool, is_import: bool
) -> None:
    done = outcome(wanted, before, policy, whole=whole, is_import=is_import)
    if isinstance(done, list):
        assert done
        for refusal in done:
            check_wording(policy, refusal)
        return
    indexes = [value.index for value in done.values]
    assert indexes == sorted(set(indexes))
    for type_ in (DATE_TYPE, CREATOR_TYPE):
        assert sum(value.type.upper() == type_.upper() for value in done.values) == 1
    found = shown(done.values, policy)
    assert found.created is not None
    assert found.created <= NOW or before is not None
    assert found.creator is not None
    assert outcome(done.values, done.values, policy, whole=whole) == CompletedRecord(done.values)
    if before is not None:
        former = shown(before, policy)
        assert former.created in (None, found.created)
        assert former.creator in (None, found.creator)


@given(record_strategies.records(), st.none() | record_strategies.records(), st.booleans(), st.booleans())
def test_policy_without_authority_changes_no_values(
    wanted: Record, before: Record | None, whole: bool, is_import: bool
) -> None:
    values = None if before is None else before.values
    found = outcome(wanted.values, values, PROFILES["free"], whole=whole, is_import=is_import)
    assert found == CompletedRecord(wanted.values)


@given(record_strategies.records(), imported_handles(), st.none() | st.integers(), st.sampled_from([POLICY, OWNED]))
def test_metadata_of_any_record_can_be_built(
    record: Record, party: Handle, changed: int | None, policy: Policy
) -> None:
    values = (*record.values, *[creator(str(party), -index) for index in (0x4000_0000, 0x4000_0001)])
    one_each = {value.index: value for value in values}
    found = build_metadata(policy, Record(record.handle, tuple(one_each.values())), changed, lambda _: False)
    assert found is not None
    assert json.loads(json.dumps(found.to_json())) == found.to_json()

"""Groups of administrators: loops, limits, missing and invalid groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.admin import AdminPermission, ValueList
from perseid.records.record import Value, ValueRef
from perseid.registry.access import authorization, permissions
from perseid.registry.access.authorization import (
    MAX_GROUP_LEVELS,
    MAX_GROUP_LOOKUPS,
    MAX_GROUP_MEMBERS,
    Decision,
    Settings,
    authorize,
)
from perseid.wire.codes import OpCode, ResponseCode
from tests.registry.administration import PREFIX_HANDLE, TARGET, Records, admin, group, holder, ref, secret, url

ALICE = holder("300:k/alice")
DELETE = permissions.delete(TARGET)


def decide(records: Records, identity: str = "300:k/alice", settings: Settings | None = None) -> Decision:
    return authorize(holder(identity), DELETE, records, settings or Settings())


def chain(levels: int, last: str = "300:k/alice") -> dict[str, list[Value]]:
    """Groups g/1, g/2 … each nested in the one before."""
    links = {f"g/{level}": [group(f"200:g/{level + 1}")] for level in range(1, levels)}
    return {**links, f"g/{levels}": [group(last)]}


def test_ten_levels_are_followed() -> None:
    records = Records({str(TARGET): [admin("200:g/1")], **chain(MAX_GROUP_LEVELS)})
    decision = decide(records)
    assert decision.allowed
    assert "HS_ADMIN value 100 of 12345/x grants DELETE_HANDLE through the group 200:g/10" in decision.reason
    assert decision.read == (str(TARGET), *[f"g/{level}" for level in range(1, 11)])


def test_eleventh_level_is_not_followed() -> None:
    records = Records({str(TARGET): [admin("200:g/1")], **chain(MAX_GROUP_LEVELS + 1)})
    decision = decide(records)
    assert not decision.allowed
    assert decision.code is ResponseCode.INVALID_ADMIN
    assert "the search ended early: groups are followed up to 10 levels" in decision.reason
    assert "g/11" not in records.asked


def test_shortest_path_to_a_group_is_used() -> None:
    groups = chain(MAX_GROUP_LEVELS + 1)
    groups["g/1"] = [group("200:g/2", "200:g/9")]
    assert decide(Records({str(TARGET): [admin("200:g/1")], **groups})).allowed


def test_groups_in_the_configuration_have_the_same_limit() -> None:
    for levels, allowed in ((MAX_GROUP_LEVELS, True), (MAX_GROUP_LEVELS + 1, False)):
        settings = Settings(backup_admins=(ref("200:g/1"),))
        decision = authorize(
            ALICE, permissions.server_operation(OpCode.BACKUP_SERVER), Records(chain(levels)), settings
        )
        assert decision.allowed is allowed
        assert ("the setting administrators.backup lists the caller through the group" in decision.reason) is allowed


def wide(count: int) -> dict[str, list[Value]]:
    """A record with many groups as administrators; the last one has the member."""
    groups = {f"g/{number}": [group("300:k/bob")] for number in range(1, count)}
    admins = [admin(f"200:g/{number}", index=number) for number in range(1, count + 1)]
    return {str(TARGET): admins, **groups, f"g/{count}": [group("300:k/alice")]}


def test_a_thousand_references_are_followed() -> None:
    records = Records(wide(MAX_GROUP_LOOKUPS))
    assert decide(records).allowed
    assert len(records.asked) == 1 + MAX_GROUP_LOOKUPS


def test_more_than_a_thousand_references_are_not_followed() -> None:
    records = Records(wide(MAX_GROUP_LOOKUPS + 1))
    decision = decide(records)
    assert not decision.allowed
    assert "the search ended early: a request can follow at most 1,000 references" in decision.reason
    assert len(records.asked) == 1 + MAX_GROUP_LOOKUPS
    assert len(decision.reason) < 1_000, "a reason is for people"


def test_thousand_broken_references_do_not_end_the_search_early() -> None:
    records = Records({str(TARGET): [admin("200:g/1")], "g/1": [group(*[f"300:k/{n}" for n in range(999)])]})
    decision = decide(records)
    assert not decision.allowed
    assert "ended early" not in decision.reason
    assert len(records.asked) == 1 + MAX_GROUP_LOOKUPS


def test_limit_applies_to_the_whole_request() -> None:
    """Three alternatives to replace a record share one search; nothing is looked up twice."""
    both = AdminPermission.ADD_ADMIN | AdminPermission.DELETE_HANDLE
    first = {f"g/{n}": [group("300:k/bob")] for n in range(600)}
    second = {f"h/{n}": [group("300:k/bob")] for n in range(600)}
    target = [admin(f"200:{name}", both, index) for index, name in enumerate(first, 1)]
    prefix = [admin(f"200:{name}", index=index) for index, name in enumerate([*second, "h/last"], 1)]
    target.append(admin("300:k/alice", AdminPermission.DELETE_HANDLE, 9_999))
    records = Records({str(TARGET): target, PREFIX_HANDLE: prefix, **first, **second, "h/last": [group("300:k/alice")]})
    decision = authorize(ALICE, permissions.overwrite(TARGET, [url(1)], []), records, Settings())
    assert not decision.allowed
    assert "1,000 references" in decision.reason
    assert len(records.asked) == 2 + MAX_GROUP_LOOKUPS


def test_number_of_members_is_limited() -> None:
    half = MAX_GROUP_MEMBERS // 2
    crowd = Value(200, "HS_VLIST", ValueList(tuple([ValueRef(0, f"k/{n}") for n in range(half)])).to_bytes())
    admins = {str(TARGET): [admin(f"200:g/{n}", index=n) for n in (1, 2, 3)], "g/1": [crowd], "g/2": [crowd]}
    assert decide(Records({**admins, "g/1": [group("300:k/bob")], "g/3": [group("300:k/alice")]})).allowed

    decision = decide(Records({**admins, "g/3": [group("300:k/alice")]}))
    assert not decision.allowed
    assert "the search ended early: a request can read at most 100,000 members of groups" in decision.reason


def test_member_of_a_large_group_is_found() -> None:
    records = Records({str(TARGET): [admin("200:g/1")], "g/1": [group(*[f"300:k/{n}" for n in range(5_000)])]})
    assert decide(records, "300:k/4999").allowed
    assert len(records.asked) == 2


def test_many_groups_do_not_lock_out_server_administrators() -> None:
    records = Records({**wide(2_000), "s/1": [group("300:k/root")]})
    settings = Settings((ref("200:s/1"),), server_admin_full_access=True)
    decision = decide(records, "300:k/root", settings)
    assert decision.allowed
    assert "the setting administrators.server" in decision.reason
    assert records.asked == [str(TARGET), "s/1"]


def test_direct_match_reads_no_group() -> None:
    records = Records({str(TARGET): [*wide(5)[str(TARGET)], admin("300:k/alice", index=9_999)]})
    settings = Settings((ref("200:s/1"),), server_admin_full_access=True)
    assert decide(records, settings=settings).allowed
    assert records.asked == [str(TARGET)]


def test_loops_are_harmless() -> None:
    loop = {"g/1": [group("200:g/2", "200:g/1", "200:12345/x")], "g/2": [group("200:G/1", "0:g/2", "200:g/2")]}
    records = Records({str(TARGET): [admin("200:g/1")], **loop})
    decision = decide(records)
    assert not decision.allowed
    assert "ended early" not in decision.reason
    assert records.asked == [str(TARGET), "g/1", "g/2", str(TARGET)], "each group once, and the record once as a record"


def test_index_zero_is_not_a_group() -> None:
    records = Records({str(TARGET): [admin("0:g/1"), admin("200:g/2", index=101)], "g/2": [group("0:k/bob")]})
    assert not decide(records).allowed
    assert records.asked == [str(TARGET), "g/2"]


def test_missing_group_does_not_match_and_is_not_named() -> None:
    decision = decide(Records({str(TARGET): [admin("200:secret/group")]}))
    assert not decision.allowed
    assert "HS_ADMIN value 100 of 12345/x refers to a record that is not stored here" in decision.reason
    assert "secret/group" not in decision.reason
    assert decision.read == (str(TARGET), "secret/group")


@pytest.mark.parametrize("handle", ["", "noslash", "/x", "x/", "a/" + "b" * 3_000])
def test_invalid_handle_is_not_looked_up(handle: str) -> None:
    data = ValueList((ValueRef(200, handle), ValueRef(300, "k/alice"))).to_bytes()
    records = Records({str(TARGET): [admin("200:g/1")], "g/1": [Value(200, "HS_VLIST", data)]})
    assert decide(records).allowed
    assert not decide(records, "300:k/bob").allowed
    assert set(records.asked) == {str(TARGET), "g/1", "k/alice"}


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0\1", b"x" * 9])
def test_invalid_group_does_not_match(tail: bytes) -> None:
    whole = group("300:k/alice").data
    for data in (whole + tail, whole[:-1], b"", tail):
        records = Records({str(TARGET): [admin("200:g/1")], "g/1": [Value(200, "HS_VLIST", data)]})
        decision = decide(records)
        assert not decision.allowed
        assert "refers to a group whose data is invalid" in decision.reason


def test_private_groups_are_used() -> None:
    private = Value(200, "HS_VLIST", group("300:k/alice").data, permissions=secret().permissions)
    assert decide(Records({str(TARGET): [admin("200:g/1")], "g/1": [private]})).allowed


@given(st.binary(max_size=60))
def test_any_data_is_checked_without_failure(data: bytes) -> None:
    values = [Value(1, "HS_ADMIN", data), Value(2, "HS_VLIST", data), admin("2:12345/x", index=3)]
    assert not decide(Records({str(TARGET): values}), "300:nobody/here").allowed


GROUPS = [f"g/{n}" for n in range(8)]
KEYS = [f"k/{n}" for n in range(4)]
ENTRIES = st.sampled_from([f"200:{name}" for name in GROUPS] + [f"300:{name}" for name in KEYS])
GRAPHS = st.fixed_dictionaries({name: st.lists(ENTRIES, max_size=5) for name in GROUPS})
Graph = dict[str, list[str]]


def allowed(graph: Graph, key: str) -> bool:
    records = Records({str(TARGET): [admin("200:g/0")], **{name: [group(*graph[name])] for name in graph}})
    answer = decide(records, f"300:{key}").allowed
    assert len(records.asked) == len(set(records.asked)) <= 1 + len(GROUPS) + len(KEYS)
    return answer


def reachable(graph: Graph) -> set[str]:
    """Every entry that is reachable from the first group, computed naively."""
    found = {"200:g/0"}
    while True:
        more = {entry for name in found if name[4:] in graph for entry in graph[name[4:]]} | found
        if more == found:
            return found
        found = more


@given(GRAPHS)
def test_every_reachable_identity_is_a_member(graph: Graph) -> None:
    reached = reachable(graph)
    assert [allowed(graph, key) for key in KEYS] == [f"300:{key}" in reached for key in KEYS]


@given(GRAPHS, st.sampled_from(GROUPS), ENTRIES, st.integers(0, 5))
def test_new_member_takes_no_permission_from_others(graph: Graph, name: str, entry: str, position: int) -> None:
    more = {**graph, name: [*graph[name][:position], entry, *graph[name][position:]]}
    for key in KEYS:
        assert not allowed(graph, key) or allowed(more, key)


@given(GRAPHS, st.integers(0, 4), st.integers(0, 8), st.integers(0, 20))
def test_limits_only_remove_permissions(graph: Graph, levels: int, lookups: int, members: int) -> None:
    before = {key for key in KEYS if allowed(graph, key)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authorization, "MAX_GROUP_LEVELS", levels)
        patch.setattr(authorization, "MAX_GROUP_LOOKUPS", lookups)
        patch.setattr(authorization, "MAX_GROUP_MEMBERS", members)
        records = Records({str(TARGET): [admin("200:g/0")], **{name: [group(*graph[name])] for name in graph}})
        assert {key for key in KEYS if decide(records, f"300:{key}").allowed} <= before
        for key in KEYS:
            records.asked.clear()
            decide(records, f"300:{key}")
            assert len(records.asked) <= 1 + lookups

"""Change of the case rule of a namespace (H5): refused with the colliding handles, or one audited commit."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.names.handle import CaseRule
from perseid.records.record import Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.lifecycle import Publish, Redact, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.namespaces import Namespace, SetPolicy
from perseid.registry.commands.records import Create, Delete, Modify, Remove
from perseid.registry.identity import Identity
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.policy import case_rules
from perseid.registry.policy.policy import PROFILES, Audience, Policy
from perseid.registry.queries.history import as_of, get_history
from perseid.registry.queries.listing import list_changes, list_handles
from perseid.registry.queries.log import list_log
from perseid.registry.queries.memento import Memento, find_deleted
from perseid.registry.queries.prove import ensure_checkpoint, prove
from perseid.registry.queries.resolve import Query, get_authority_metadata
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import LedgerNeeded, PublicSnapshot
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import SIGNER, Machine, verified
from tests.registry.jobs.runs import run_transfer
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

OPEN = replace(PROFILES["free"], who_may_list=Audience.PUBLIC)
EXACT = replace(OPEN, case=CaseRule.SENSITIVE)
FOLDED = replace(OPEN, case=CaseRule.INSENSITIVE)
ADMIN = admin(100, "300:0.NA/0.NA")


def url(data: str = "https://example.org/", index: int = 1) -> Value:
    return Value.text(index, "URL", data)


@pytest.fixture
def exact(machine: Machine) -> Iterator[Registry]:
    """A case-sensitive namespace."""
    with registry_in_memory(machine) as made:
        add_namespace(made, "10.1", EXACT)
        yield made


@pytest.fixture
def folded(machine: Machine) -> Iterator[Registry]:
    """A case-insensitive namespace."""
    with registry_in_memory(machine) as made:
        add_namespace(made, "10.1", FOLDED)
        yield made


def change(registry: Registry, policy: Policy, note: str = "") -> Namespace:
    return registry.do(SetPolicy("10.1", policy, change_case=True), OPERATOR, "cli", note)


def create(registry: Registry, *names: str, **more: bool) -> None:
    for name in names:
        registry.do(Create(handle(f"10.1/{name}"), (url(name), ADMIN), **more), OPERATOR, "cli")


def seen(registry: Registry, name: str, at: int | None = None, prefix: str = "10.1") -> str | None:
    """The data of the first public value of a handle."""
    try:
        return registry.resolve(Query(handle(f"{prefix}/{name}")), NOBODY, at).values[0].data.decode()
    except Refused as refused:
        return None if refused.code is ResponseCode.HANDLE_NOT_FOUND else str(refused)


def answered(registry: Registry, name: str, prefix: str = "10.1") -> bytes | None:
    """The registered spelling of a handle, for resolvers."""
    item = registry.ledger.find(f"{prefix}/{name}".encode())
    return None if item is None else item.spelling


def listed(registry: Registry, identity: Identity = OPERATOR, *, deleted: bool = False) -> list[str]:
    with registry.snapshot() as snapshot:
        return [
            each.handle.partition("/")[2] for each in list_handles(snapshot, identity, "10.1", deleted=deleted).items
        ]


def size(registry: Registry) -> int:
    with registry.ledger.open_reader() as reader:
        return reader.size


def refusal(registry: Registry, policy: Policy, *, change_case: bool = True) -> Refused:
    before = size(registry)
    with pytest.raises(Refused) as caught:
        registry.do(SetPolicy("10.1", policy, change_case=change_case), OPERATOR, "cli")
    assert size(registry) == before
    return caught.value


def test_h5_change_of_the_case_rule_must_be_confirmed(exact: Registry) -> None:
    refused = refusal(exact, FOLDED, change_case=False)
    assert 'case = "insensitive" would change the case rule' in refused.reason
    assert refused.advice == AdviceKind.CHANGE_CASE()


def test_h5_colliding_handles_are_listed(exact: Registry) -> None:
    create(exact, "a", "A", "b", "Report", "REPORT", "report")
    exact.do(Delete(handle("10.1/A")), OPERATOR, "cli")
    refused = refusal(exact, FOLDED)
    assert refused.code is ResponseCode.INVALID_VALUE
    assert refused.reason == (
        "Handles under 10.1 would collide: 10.1/A (deleted) and 10.1/a; 10.1/REPORT and 10.1/Report and 10.1/report"
    )
    assert refused.advice == AdviceKind.KEEP_CASE()
    assert seen(exact, "report") == "report"


def test_h5_only_the_first_collisions_are_listed(exact: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    create(exact, *"aAbBcC")
    monkeypatch.setattr(case_rules, "MAX_CONFLICTS", 1)
    assert refusal(exact, FOLDED).reason.endswith("10.1/A and 10.1/a; and 2 more")
    monkeypatch.setattr(case_rules, "MAX_NAMES", 5)
    assert "more than 5 handles" in refusal(exact, FOLDED).reason


def test_h5_namespace_becomes_case_insensitive_in_one_audited_commit(exact: Registry) -> None:
    create(exact, "abc", "ABD", "7")
    before = size(exact)
    made = change(exact, FOLDED, "as agreed")
    assert (made.seq, made.policy) == (before + 1, FOLDED)
    assert size(exact) == before + 1 + 2 + 1 + 1, "only where the key becomes another one there are two entries"
    for spelling in ("abc", "ABC", "aBc"):
        assert (seen(exact, spelling), answered(exact, spelling)) == ("abc", b"10.1/abc")
    assert seen(exact, "abd") == "ABD"
    assert listed(exact) == ["7", "abc", "ABD"]
    with pytest.raises(Refused, match="already exists"):
        create(exact, "Abc")
    with exact.snapshot() as snapshot:
        told = list_log(snapshot, OPERATOR, before)
    assert {each.actor for each in told.items} == {"local:alice"}
    assert [each.note for each in told.items] == ["as agreed", *["case rule: as agreed"] * 4]
    exact.ledger.answers.catch_up(exact.ledger.open_reader)
    assert exact.ledger.answers.differences(exact.ledger.open_reader) is None
    assert verified(exact.ledger.log) == size(exact)


def test_h5_namespace_becomes_case_sensitive_and_keeps_the_spelling(folded: Registry) -> None:
    create(folded, "Abc", "7")
    change(folded, EXACT)
    assert (seen(folded, "Abc"), answered(folded, "Abc")) == ("Abc", b"10.1/Abc")
    for spelling in ("abc", "ABC"):
        assert (seen(folded, spelling), answered(folded, spelling)) == (None, None)
    create(folded, "abc")
    assert listed(folded) == ["7", "Abc", "abc"]
    assert (seen(folded, "Abc"), seen(folded, "abc")) == ("Abc", "abc")
    with pytest.raises(Refused, match="was deleted"):
        create(folded, "ABC")
    create(folded, "ABC", reuse_deleted=True)
    assert (seen(folded, "ABC"), seen(folded, "Abc")) == ("ABC", "Abc")


def test_empty_namespace_changes_only_its_policy(folded: Registry) -> None:
    before = size(folded)
    change(folded, EXACT)
    assert size(folded) == before + 1
    add_namespace(folded, "2000.1", "cordra")
    name = handle(f"2000.1/{'0' * 32}")
    folded.do(Create(name, (url(),)), OPERATOR, "cli")
    before = size(folded)
    insensitive = replace(PROFILES["cordra"], case=CaseRule.INSENSITIVE)
    folded.do(SetPolicy("2000.1", insensitive, change_case=True), OPERATOR, "cli")
    assert size(folded) == before + 1
    assert folded.resolve(Query(name), NOBODY).values


def test_namespace_cannot_become_cordra_by_a_change_of_case(exact: Registry) -> None:
    create(exact, "abc")
    assert "has records" in refusal(exact, PROFILES["cordra"]).reason


def test_states_administrators_and_deleted_handles_are_moved(exact: Registry) -> None:
    create(exact, "hidden", "gone", "dead")
    exact.do(Unpublish(handle("10.1/hidden")), OPERATOR, "cli")
    exact.do(Tombstone(handle("10.1/dead"), "burnt"), OPERATOR, "cli")
    exact.do(Delete(handle("10.1/gone")), OPERATOR, "cli")
    exact.do(Reserve((handle("10.1/later"),), ValueRef(300, "10.9/x")), OPERATOR, "cli")
    change(exact, FOLDED)
    assert seen(exact, "HIDDEN") is None
    with exact.snapshot() as snapshot:
        states = {
            name: snapshot.stored(handle(f"10.1/{name.upper()}")).state for name in ("hidden", "gone", "dead", "later")
        }
    assert states == {
        "hidden": State.UNPUBLISHED,
        "gone": State.ABSENT,
        "dead": State.TOMBSTONE,
        "later": State.RESERVED,
    }
    with pytest.raises(Refused, match="was deleted"):
        create(exact, "GONE")
    assert listed(exact, NOBODY) == ["dead"]
    assert listed(exact) == ["dead", "hidden", "later"]
    assert listed(exact, deleted=True) == ["dead", "gone", "hidden", "later"]
    exact.do(Revive(handle("10.1/DEAD")), OPERATOR, "cli")
    assert seen(exact, "Dead") == "dead"
    exact.do(Publish(handle("10.1/Hidden")), OPERATOR, "cli")
    assert seen(exact, "Hidden") == "hidden"


def versions(registry: Registry, name: str, identity: Identity = NOBODY) -> list[tuple[str, list[str]]]:
    with registry.snapshot() as snapshot:
        found = get_history(snapshot, identity, handle(f"10.1/{name}"))
    assert found.complete
    return [
        (each.action.name, [value.data.decode() for value in each.values if value.type == "URL"])
        for each in found.versions
    ]


def test_handle_has_one_history_across_all_changes(exact: Registry) -> None:
    create(exact, "abc")
    exact.do(Modify(handle("10.1/abc"), (url("second"),)), OPERATOR, "cli")
    moments = [size(exact)]
    change(exact, FOLDED)
    exact.do(Modify(handle("10.1/ABC"), (url("third"),)), OPERATOR, "cli")
    moments.append(size(exact))
    change(exact, EXACT)
    exact.do(Modify(handle("10.1/abc"), (url("fourth"),)), OPERATOR, "cli")
    moments.append(size(exact))
    change(exact, FOLDED)
    expected = [
        ("UPDATE", ["fourth"]),
        ("UPDATE", ["fourth"]),
        ("UPDATE", ["third"]),
        ("UPDATE", ["third"]),
        ("UPDATE", ["second"]),
        ("UPDATE", ["second"]),
        ("CREATE", ["abc"]),
    ]
    for identity in (NOBODY, OPERATOR):
        assert versions(exact, "Abc", identity) == expected
        assert [seen(exact, "Abc", at) for at in moments] == ["second", "third", "fourth"]
    with exact.snapshot() as snapshot:
        page = get_history(snapshot, OPERATOR, handle("10.1/abc"), before=moments[1] + 1, limit=2)
    assert [each.values[0].data for each in page.versions] == [b"third", b"second"]


def test_hidden_versions_stay_hidden_after_the_change(exact: Registry) -> None:
    create(exact, "abc")
    then = size(exact)
    exact.do(Modify(handle("10.1/abc"), (replace(url("secret"), permissions=ADMIN.permissions & ~2),)), OPERATOR, "cli")
    change(exact, FOLDED)
    assert [data for _, data in versions(exact, "ABC")] == [[], [], []]
    with exact.snapshot() as snapshot:
        values = as_of(snapshot, NOBODY, Query(handle("10.1/Abc")), then).resolved.values
    assert [value.index for value in values] == [100]


def last_versions(registry: Registry, *names: str) -> list[Memento | None]:
    """The last versions of deleted handles; the view tells the same, unless it leaves that to the ledger."""
    with registry.snapshot() as snapshot:
        found = [find_deleted(snapshot, handle(f"10.1/{name}")) for name in names]
    with registry.ledger.answers.snapshot() as view:
        for name, expected in zip(names, found, strict=True):
            with suppress(LedgerNeeded):
                assert find_deleted(PublicSnapshot(view, registry.rules), handle(f"10.1/{name}")) == expected, name
    return [None if each is None else each.last for each in found]


@pytest.mark.parametrize(("first", "second"), [(EXACT, FOLDED), (FOLDED, EXACT)], ids=["exact", "folded"])
def test_hidden_and_deleted_handle_stays_hidden_after_two_changes(
    folded: Registry, first: Policy, second: Policy
) -> None:
    change(folded, first)
    folded.ledger.answers.rebuild(folded.ledger.open_reader)
    create(folded, "Bc")
    change(folded, second)
    folded.do(Unpublish(handle("10.1/Bc")), OPERATOR, "cli")
    folded.do(Delete(handle("10.1/Bc")), OPERATOR, "cli")
    change(folded, first)
    assert last_versions(folded, "Bc", "bc", "BC") == [None, None, None]
    assert folded.ledger.answers.differences(folded.ledger.open_reader) is None


def test_handles_that_became_distinct_do_not_share_a_history(folded: Registry) -> None:
    create(folded, "Abc")
    then = size(folded)
    change(folded, EXACT)
    create(folded, "ABC", reuse_deleted=True)
    assert [data for _, data in versions(folded, "ABC")] == [["ABC"]]
    assert [data for _, data in versions(folded, "Abc")] == [["Abc"], ["Abc"]]
    assert (seen(folded, "Abc", then), seen(folded, "ABC", then), seen(folded, "abc", then)) == ("Abc", None, None)


def test_public_log_shows_handles_and_not_keys(exact: Registry) -> None:
    create(exact, "abc", "hidden")
    before = size(exact)
    change(exact, FOLDED)
    with exact.snapshot() as snapshot:
        told = [(each.action, each.handle) for each in list_log(snapshot, NOBODY, before).items]
        assert told == [(Action.UPDATE, "10.1/abc"), (Action.UPDATE, "10.1/hidden")]
        altered = list_changes(snapshot, NOBODY, before, size(exact)).items
    assert [(each.handle, each.state_before, each.state_after) for each in altered] == [
        ("10.1/abc", State.NORMAL, State.NORMAL),
        ("10.1/hidden", State.NORMAL, State.NORMAL),
    ]
    exact.do(Unpublish(handle("10.1/Hidden")), OPERATOR, "cli")
    with exact.snapshot() as snapshot:
        assert "10.1/hidden" not in {each.handle for each in list_log(snapshot, NOBODY).items}


def test_value_is_redacted_under_every_key_of_the_handle(exact: Registry) -> None:
    name = handle("10.1/abc")
    exact.do(Create(name, (url("personal"), url("kept", 2), ADMIN)), OPERATOR, "cli")
    seq = size(exact)
    change(exact, FOLDED)
    with pytest.raises(Refused, match="is still in the record"):
        exact.do(Redact(name, 2, seq, "no"), OPERATOR, "cli")
    exact.do(Remove(name, (1,)), OPERATOR, "cli")
    exact.do(Redact(handle("10.1/ABC"), 1, seq, "at the person's request"), OPERATOR, "cli")
    with exact.ledger.open_reader() as reader:
        stored = [content for entry in reader.log(0) for content in entry.contents()]
    assert not [content for content in stored if b"personal" in content]
    assert [content for content in stored if b"kept" in content]
    assert verified(exact.ledger.log) == size(exact)


def test_value_is_redacted_under_all_keys_or_none(exact: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a partial redaction the same command could not find the rest."""
    name = handle("10.1/abc")
    seq = exact.do(Create(name, (url("personal"), ADMIN)), OPERATOR, "cli").seq
    change(exact, FOLDED)
    exact.do(Modify(name, (url("new"),)), OPERATOR, "cli")
    change(exact, EXACT)
    change(exact, FOLDED)
    append = exact.ledger.append
    asked: list[object] = []

    def broken_off(*requests: object) -> object:
        asked.extend(requests)
        if len(asked) > 1:
            raise OSError("broken off")
        return append(*requests)  # type: ignore[arg-type]

    monkeypatch.setattr(exact.ledger, "append", broken_off)
    before = size(exact)
    done = exact.do(Redact(name, 1, seq, "by order of a court"), OPERATOR, "cli")
    with exact.ledger.open_reader() as reader:
        bodies = [entry.body() for entry in reader.log(0)]
        added = list(reader.log(before))
    assert not [body for body in bodies if b"personal" in body]
    assert done.seq == before + 1
    assert [(each.action, each.key) for each in added] == [(Action.REDACT, b"10.1/abc"), (Action.REDACT, b"10.1/ABC")]
    assert [each.state for each in added] == [State.ABSENT, State.NORMAL]
    assert verified(exact.ledger.log) == size(exact)
    assert seen(exact, "Abc") == "new"
    with pytest.raises(Refused, match="already redacted"):
        exact.do(Redact(name, 1, seq, "again"), OPERATOR, "cli")


def test_each_redaction_is_noted_with_the_entry_of_its_key(exact: Registry) -> None:
    name = handle("10.1/abc")
    first = exact.do(Create(name, (url("personal"), ADMIN)), OPERATOR, "cli").seq
    change(exact, FOLDED)
    copy = size(exact)
    exact.do(Remove(name, (1,)), OPERATOR, "cli")
    done = exact.do(Redact(name, 1, first, "by order of a court"), OPERATOR, "cli").seq
    with exact.ledger.log.store.reading_cursor() as cursor:
        cursor.execute("SELECT seq, by FROM redactions ORDER BY seq")
        assert [tuple(row) for row in cursor.fetchall()] == [(first, done), (copy, done + 1)]


def test_entry_before_the_change_can_be_proved(exact: Registry) -> None:
    create(exact, "abc")
    seq = size(exact)
    change(exact, FOLDED)
    ensure_checkpoint(exact.ledger.log, SIGNER, size(exact), lambda _: None)
    with exact.snapshot() as snapshot:
        assert prove(snapshot, NOBODY, handle("10.1/ABC"), seq).seq == seq
        assert prove(snapshot, NOBODY, handle("10.1/ABC")).seq == size(exact)


def test_a3_change_of_the_case_rule_does_not_update_records(exact: Registry, machine: Machine) -> None:
    policy = replace(EXACT, authority=True, default_creator="10.9/maker")
    exact.do(SetPolicy("10.1", policy), OPERATOR, "cli")
    create(exact, "abc")
    machine.run(60_000_000)
    with exact.snapshot() as snapshot:
        before = get_authority_metadata(snapshot, snapshot.stored(handle("10.1/abc")))
    change(exact, replace(policy, case=CaseRule.INSENSITIVE))
    with exact.snapshot() as snapshot:
        assert get_authority_metadata(snapshot, snapshot.stored(handle("10.1/ABC"))) == before
    assert before is not None


def test_each_handle_is_transferred_once(exact: Registry) -> None:
    create(exact, "abc", "abd")
    change(exact, FOLDED)
    done = run_transfer(exact, TransferAll("10.1", ValueRef(300, "99/owner")), OPERATOR).done
    assert done == 3, "two names and the prefix handle"


def test_secret_under_the_old_key_is_redacted(exact: Registry) -> None:
    secret = Value(300, "HS_SECKEY", b"open sesame", permissions=ADMIN.permissions & ~2)
    exact.do(Create(handle("10.1/abc"), (secret,)), OPERATOR, "cli")
    change(exact, FOLDED)
    with exact.ledger.open_reader() as reader:
        holding = [entry.seq for entry in reader.log(0) if any(b"sesame" in content for content in entry.contents())]
        assert holding == [reader.size]


def test_concurrent_changes_are_not_lost(exact: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    create(exact, "abc", "x")
    append = exact.ledger.append
    between = [
        Draft(Action.UPDATE, State.NORMAL, "10.1/abc", "test", "local:test", "", (url("moved"),), exact=True),
        Draft(Action.CREATE, State.NORMAL, "10.1/new", "test", "local:test", "", (url("new"),), exact=True),
    ]

    def racing(*requests: object) -> object:
        if between:
            append(*[Append(between.pop()) for _ in range(2)])
        return append(*requests)  # type: ignore[arg-type]

    monkeypatch.setattr(exact.ledger, "append", racing)
    change(exact, FOLDED)
    assert (seen(exact, "ABC"), seen(exact, "NEW"), seen(exact, "X")) == ("moved", "new", "x")


def test_decision_by_the_old_rule_is_repeated(exact: Registry) -> None:
    create(exact, "abc")
    with exact.snapshot() as snapshot:
        assert snapshot.policy("10.1") == EXACT
        remembered = dict(snapshot.seen)
    change(exact, FOLDED)
    exact.entry_cache.note(remembered, (), size(exact), erased=False)
    with pytest.raises(Refused, match="already exists"):
        create(exact, "ABC")


def test_only_policy_administrators_can_change_the_rule(exact: Registry) -> None:
    with pytest.raises(Refused) as caught:
        exact.do(SetPolicy("10.1", FOLDED, change_case=True), key_holder(300, "10.9/x"), "native")
    assert caught.value.code is ResponseCode.INVALID_ADMIN


@pytest.fixture(scope="module")
def shared() -> Iterator[Registry]:
    with registry_in_memory() as made:
        yield made


_prefixes = count(20)


@given(st.lists(st.text("aAbB1", min_size=1, max_size=3), min_size=1, max_size=6, unique=True), st.booleans())
def test_all_handles_are_found_after_the_change_or_nothing_changes(
    shared: Registry, names: list[str], begins: bool
) -> None:
    prefix = f"10.{next(_prefixes)}"
    if begins:  # then no two of them differ in case only
        names = list({name.upper(): name for name in names}.values())
    add_namespace(shared, prefix, FOLDED if begins else EXACT)
    for name in names:
        shared.do(Create(handle(f"{prefix}/{name}"), (url(name),)), OPERATOR, "cli")
    collide = len({name.upper() for name in names}) < len(names)
    request = SetPolicy(prefix, EXACT if begins else FOLDED, change_case=True)
    if collide:
        with pytest.raises(Refused, match="would collide"):
            shared.do(request, OPERATOR, "cli")
    else:
        shared.do(request, OPERATOR, "cli")
    letters_count = begins or collide
    for name in names:
        assert seen(shared, name, prefix=prefix) == name
        assert answered(shared, name, prefix) == f"{prefix}/{name}".encode()
        other = name.swapcase()
        expected = (other if other in names else None) if letters_count else name
        assert seen(shared, other, prefix=prefix) == expected
    with shared.snapshot() as snapshot:
        listed_ = [each.handle for each in list_handles(snapshot, OPERATOR, prefix, deleted=True).items]
    assert sorted(listed_) == sorted(f"{prefix}/{name}" for name in names)

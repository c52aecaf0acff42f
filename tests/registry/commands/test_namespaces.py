"""Namespaces: what is created with one, and that writes to the prefix handle keep its policy."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.ledger.log.requests import Append
from perseid.records.record import PRIVATE_PERMISSIONS, Value, ValueRef
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.minting import Generate, Mint, Reserve
from perseid.registry.commands.namespaces import RemoveNamespace, SetPolicy, homed_prefixes, namespaces
from perseid.registry.commands.records import Create, Delete, Home
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.queries.namespaces import RETIRED, ChangePolicy, get_policy
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused, StateConflict
from perseid.registry.snapshot import POLICY_TYPE
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

URL = Value.text(1, "URL", "https://example.org/")


def test_h8_prefix_has_its_own_handle() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10.1", "pilin", admin(100, "300:0.NA/10.1"), Value.text(1, "DESC", "our theses"))
        found = registry.resolve(Query(handle("0.NA/10.1")), NOBODY)
        assert [value.type for value in found.values] == ["DESC", "HS_ADMIN"]


def test_replacing_the_prefix_handle_keeps_the_policy() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10.1", "pilin", admin(100, "300:0.NA/10.1"))
        registry.do(
            Create(handle("0.NA/10.1"), (Value.text(1, "DESC", "all new"),), overwrite=True), OPERATOR, "native"
        )
        with registry.snapshot() as snapshot:
            assert snapshot.policy("10.1") == PROFILES["pilin"]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        yield made


# Removed and retired namespaces


def test_retired_namespace_registers_no_new_handles(registry: Registry) -> None:
    """Handles that exist are changed as before, also reserved ones, which were registered earlier."""
    add_namespace(registry, "10.1", "free", Value(300, "HS_SECKEY", b"x", permissions=PRIVATE_PERMISSIONS))
    owner = ValueRef(300, "0.NA/10.1")
    for name in ("10.1/a", "10.1/gone"):
        registry.do(Create(handle(name), (URL,)), OPERATOR, "cli")
    registry.do(Delete(handle("10.1/gone")), OPERATOR, "cli")
    registry.do(Reserve((handle("10.1/kept"),), owner), OPERATOR, "cli")
    registry.do(ChangePolicy("10.1", RETIRED), OPERATOR, "cli")
    new = (
        Create(handle("10.1/new"), (URL,)),
        Create(handle("10.1/gone"), (URL,), reuse_deleted=True),
        Mint("10.1", values=(URL,)),
        Mint("10.1", reserve=True, owner=owner),
        Generate("10.1"),
        Reserve((handle("10.1/chosen"),), owner),
    )
    for interface in ("cli", "native", "import"):
        for command in new:
            with pytest.raises(Refused, match=r"Namespace 10\.1 is retired") as refused:
                registry.do(command, OPERATOR, interface)
            assert refused.value.advice == AdviceKind.REOPEN_NAMESPACE(prefix="10.1")
            assert refused.value.rule == "retired = true"
    for command in new:  # the permission comes first: a caller without it cannot tell free handles from hidden ones
        with pytest.raises(Refused, match="Authentication required"):
            registry.do(command, NOBODY, "http")
    registry.do(Create(handle("10.1/kept"), (URL,)), OPERATOR, "cli")
    registry.do(Create(handle("10.1/a"), (URL,), overwrite=True), OPERATOR, "cli")
    assert is_found(registry, "10.1/a")
    registry.do(ChangePolicy("10.1", 'profile = "free"\n'), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        assert snapshot.policy("10.1").retired, "another profile does not reopen it"
    registry.do(ChangePolicy("10.1", "retired = false\n"), OPERATOR, "cli")
    registry.do(new[0], OPERATOR, "cli")


def test_only_a_namespace_without_handles_is_removed(registry: Registry) -> None:
    add_namespace(registry, "10.1", "exact")
    with pytest.raises(Refused, match="cannot stop hosting a prefix"):
        registry.do(RemoveNamespace("10.1"), key_holder(300, "10.1/ann"), "http")
    registry.do(RemoveNamespace("10.1"), OPERATOR, "cli")
    with registry.snapshot() as snapshot:
        assert not snapshot.is_responsible(handle("10.1/a"))
        assert "10.1" not in list(namespaces(snapshot.reader))
        assert snapshot.stored(handle("0.NA/10.1")).exists, "its keys may be those of administrators"
        with pytest.raises(Refused, match="not found"):
            get_policy(snapshot, "10.1")
    with pytest.raises(StateConflict, match="already removed"):
        registry.do(RemoveNamespace("10.1"), OPERATOR, "cli")
    with pytest.raises(Refused, match="does not host"):
        registry.do(Create(handle("10.1/a"), (URL,)), OPERATOR, "cli")
    add_namespace(registry, "10.1", "free")  # with another case rule
    registry.do(Create(handle("10.1/a"), (URL,)), OPERATOR, "cli")
    registry.do(Delete(handle("10.1/A")), OPERATOR, "cli")
    with pytest.raises(
        StateConflict, match=r"Handles were registered under 10\.1, and they are never reused"
    ) as refused:
        registry.do(RemoveNamespace("10.1"), OPERATOR, "cli")
    assert refused.value.advice == AdviceKind.RETIRE_NAMESPACE(prefix="10.1")


def last_policy(registry: Registry) -> tuple[Action, State, str | None]:
    with registry.snapshot() as snapshot:
        entry = snapshot.entry(record_key(policy_name("10.1")))
    assert entry is not None
    return entry.action, entry.state, entry.why


def test_prefix_that_is_homed_after_its_removal_gets_a_policy(registry: Registry) -> None:
    """Stored, so that a later default does not change it."""
    add_namespace(registry, "10.1", "exact")
    registry.do(RemoveNamespace("10.1"), OPERATOR, "cli")
    assert last_policy(registry) == (Action.DELETE, State.ABSENT, "")
    registry.do(Home("0.NA/10.1"), OPERATOR, "cli")
    assert last_policy(registry) == (Action.CREATE, State.NORMAL, "by default")
    with registry.snapshot() as snapshot:
        assert "10.1" in list(namespaces(snapshot.reader))
        assert snapshot.policy("10.1") == snapshot.rules.default_policy


def test_setting_a_policy_where_none_is_left_creates_it(registry: Registry) -> None:
    add_namespace(registry, "10.1", "exact")
    registry.ledger.append(Append(Draft(Action.DELETE, State.ABSENT, policy_name("10.1"), "test", "local:test")))
    set_policy(registry, PROFILES["free"])
    assert last_policy(registry)[:2] == (Action.CREATE, State.NORMAL)
    set_policy(registry, replace(PROFILES["free"], purpose="theses"))
    assert last_policy(registry)[:2] == (Action.UPDATE, State.NORMAL)


# A policy that cannot be read is replaced


def make_unreadable(registry: Registry, *, action: Action = Action.UPDATE) -> None:
    value = Value(1, POLICY_TYPE, b"a_key_of_a_newer_version = 1\n")
    draft = Draft(action, State.NORMAL, policy_name("10.1"), "test", "local:test", values=(value,))
    registry.ledger.append(Append(draft))
    with registry.snapshot() as snapshot, pytest.raises(Refused, match="stored policy is invalid"):
        snapshot.policy("10.1")


def set_policy(registry: Registry, policy: Policy, *, change_case: bool = False) -> None:
    registry.do(SetPolicy("10.1", policy, change_case=change_case), OPERATOR, "cli")


def is_found(registry: Registry, name: str) -> bool:
    try:
        return bool(registry.resolve(Query(handle(name)), NOBODY).values)
    except Refused:
        return False


@pytest.mark.parametrize(("before", "after"), [("exact", "free"), ("free", "exact")])
def test_h5_replacing_an_unreadable_policy_does_not_change_the_case_rule(
    registry: Registry, before: str, after: str
) -> None:
    add_namespace(registry, "10.1", before)
    registry.do(Create(handle("10.1/aBc"), (URL,)), OPERATOR, "cli")
    make_unreadable(registry)
    with pytest.raises(Refused) as caught:
        set_policy(registry, PROFILES[after])
    assert caught.value.advice == AdviceKind.CHANGE_CASE()
    set_policy(registry, replace(PROFILES[before], default_ttl=77))
    assert is_found(registry, "10.1/aBc")
    assert is_found(registry, "10.1/ABC") is (before == "free")


@pytest.mark.parametrize(("before", "after"), [("exact", "free"), ("free", "exact")])
def test_h5_confirmed_change_moves_the_records(registry: Registry, before: str, after: str) -> None:
    add_namespace(registry, "10.1", before)
    registry.do(Create(handle("10.1/aBc"), (URL,)), OPERATOR, "cli")
    make_unreadable(registry)
    set_policy(registry, PROFILES[after], change_case=True)
    assert is_found(registry, "10.1/aBc")
    assert is_found(registry, "10.1/ABC") is (after == "free")
    with pytest.raises(Refused, match="already exists"):
        registry.do(Create(handle("10.1/aBc"), (URL,)), OPERATOR, "cli")


def test_h5_case_rule_is_detected_from_the_records(registry: Registry) -> None:
    """A newer version created the namespace, or changed its case rule with all records."""
    registry.do(Home("0.NA/10.1"), OPERATOR, "cli")
    make_unreadable(registry, action=Action.CREATE)
    draft = Draft(Action.CREATE, State.NORMAL, "10.1/aBc", "test", "local:test", values=(URL,), exact=True)
    registry.ledger.append(Append(draft))
    with pytest.raises(Refused, match="would not be found any more"):
        set_policy(registry, PROFILES["free"])
    set_policy(registry, PROFILES["exact"])
    assert is_found(registry, "10.1/aBc")


def test_h5_deleted_handles_are_considered(registry: Registry) -> None:
    add_namespace(registry, "10.1", "exact")
    registry.do(Create(handle("10.1/aBc"), (URL,)), OPERATOR, "cli")
    registry.do(Delete(handle("10.1/aBc")), OPERATOR, "cli")
    make_unreadable(registry)
    with pytest.raises(Refused, match="case"):
        set_policy(registry, PROFILES["free"])
    set_policy(registry, PROFILES["exact"])
    with pytest.raises(Refused, match="was deleted"):
        registry.do(Create(handle("10.1/aBc"), (URL,)), OPERATOR, "cli")


def test_unreadable_policy_of_an_empty_namespace_can_be_replaced(registry: Registry) -> None:
    add_namespace(registry, "10.1", "exact")
    make_unreadable(registry)
    set_policy(registry, PROFILES["cordra"])
    with registry.snapshot() as snapshot:
        assert snapshot.policy("10.1") == PROFILES["cordra"]


def test_namespaces_and_homed_prefixes_are_listed_in_order() -> None:
    with registry_in_memory() as registry:
        for prefix in ("10.2", "10.1", "abc"):
            add_namespace(registry, prefix)
        with registry.ledger.open_reader() as reader:
            assert list(namespaces(reader)) == ["10.1", "10.2", "ABC"]
            assert list(homed_prefixes(reader)) == ["0.NA/0.NA", "0.NA/10.1", "0.NA/10.2", "0.NA/ABC"]

"""Attempts to bypass permissions, each refused."""

from dataclasses import replace

import pytest

from perseid.ledger.errors import TooBusy
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Outcome, Request
from perseid.names.handle import Handle
from perseid.records.admin import AdminPermission
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.access.authorization import MAX_GROUP_LOOKUPS, Settings
from perseid.registry.access.permissions import list_handles
from perseid.registry.commands.create_namespace import CopyPrefixHandle
from perseid.registry.commands.lifecycle import Publish
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Home, Modify, Remove
from perseid.registry.context import Context
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import MAX_ANCESTORS, Rules
from perseid.wire.codes import ResponseCode
from tests.registry.registries import (
    NOBODY,
    OPERATOR,
    add_namespace,
    admin,
    decide,
    handle,
    key_holder,
    registry_in_memory,
)

FREE = PROFILES["free"]
URL = Value.text(1, "URL", "https://example.org/")


def refused(registry: Registry, operation: object, identity: object) -> ResponseCode:
    with pytest.raises(Refused) as caught:
        registry.do(operation, identity, "native")  # type: ignore[arg-type]
    return caught.value.code


def exists(registry: Registry, name: str) -> bool:
    with registry.snapshot() as snapshot:
        return snapshot.stored(Handle.parse_lenient(name)).exists


def test_types_of_a_derived_prefix_create_no_handles_elsewhere() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10", "free", admin(100, "1:99/na", AdminPermission.ADD_NA))
        add_namespace(registry, "20")
        registry.do(Create(handle("20/GONE"), (URL,)), OPERATOR, "cli")
        registry.do(Delete(handle("20/GONE")), OPERATOR, "cli")
        types = ("20/INTRUDER", "20/GONE", "0.NA/777", "0.NA/0.NA")
        named = zip(("work_type", "expression_type", "object_type", "metadata_type"), types, strict=True)
        made = registry.do(AddNamespace("10.1", replace(FREE, **dict(named))), key_holder(1, "99/na"), "native")  # type: ignore[arg-type]
        assert set(types) <= set(made.types_elsewhere)
        assert not any(exists(registry, name) for name in types)


def test_parent_cannot_take_over_a_derived_prefix() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10", "free", admin(100, "1:99/na", AdminPermission.ADD_NA))
        registry.do(Home("0.NA/10.5"), OPERATOR, "cli")
        registry.do(Create(handle("0.NA/10.5"), (admin(100, "1:98/own"),)), OPERATOR, "cli")
        policy = replace(FREE, who_may_mint=Audience.AUTHENTICATED)
        assert refused(registry, AddNamespace("10.5", policy), key_holder(1, "99/na")) is ResponseCode.INVALID_ADMIN
        registry.do(AddNamespace("10.5", policy), key_holder(1, "98/own"), "native")


def test_home_only_administrator_cannot_create_prefix_handles() -> None:
    rules = Rules(Settings(home_only_admins=(ValueRef(1, "88/homer"),)))
    with registry_in_memory(rules=rules) as registry:
        copy = CopyPrefixHandle("66", (admin(100, "1:88/homer"),))
        assert refused(registry, copy, key_holder(1, "88/homer")) is ResponseCode.INVALID_ADMIN
        assert refused(registry, copy, OPERATOR) is ResponseCode.HANDLE_ALREADY_EXISTS, "it is served here"


def test_default_policy_is_stored_when_a_prefix_is_homed() -> None:
    with registry_in_memory() as registry:
        registry.do(Home("0.NA/40"), OPERATOR, "cli")
        registry.do(Create(handle("40/abc"), (URL,)), OPERATOR, "cli")
        registry.rules = replace(registry.rules, default_policy=PROFILES["exact"])
        assert registry.resolve(Query(handle("40/ABC")), NOBODY).values
        assert refused(registry, Create(handle("40/ABC"), ()), OPERATOR) is ResponseCode.HANDLE_ALREADY_EXISTS


def test_handle_created_during_a_case_rule_change_is_not_lost() -> None:
    with registry_in_memory() as registry:
        registry.do(Home("0.NA/41"), OPERATOR, "cli")
        request = decide(registry, AddNamespace("41", PROFILES["exact"]))
        registry.do(Create(handle("41/abc"), (URL,)), OPERATOR, "cli")
        (outcome,) = registry.ledger.append(request)
        assert "has records" in str(getattr(outcome, "error", ""))
        assert registry.resolve(Query(handle("41/ABC")), NOBODY).values


def test_namespace_with_records_cannot_become_cordra() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "2000.01")
        name = Handle.parse_lenient("2000.01/EEF4DF17361A42E2B975E554663B70C3?part=1")
        registry.do(Create(name, (URL,)), OPERATOR, "cli")
        cordra = replace(PROFILES["cordra"], case=FREE.case)
        assert refused(registry, SetPolicy("2000.01", cordra), OPERATOR) is ResponseCode.INVALID_VALUE
        assert registry.resolve(Query(name), NOBODY).values


def test_deleted_handle_needs_create_permission() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10", replace(FREE, who_may_mint=Audience.AUTHENTICATED), admin(100, "1:9/adm"))
        registry.do(Create(handle("10/a"), (URL,)), OPERATOR, "cli")
        registry.do(Delete(handle("10/a")), OPERATOR, "cli")
        again = Create(handle("10/a"), (URL,), reuse_deleted=True)
        assert refused(registry, again, key_holder(1, "77/x")) is ResponseCode.INVALID_ADMIN
        registry.do(again, key_holder(1, "9/adm"), "native")


def test_preconditions_of_the_interface_are_checked_at_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10", "free", admin(100, "300:10/me"))
        registry.do(Create(handle("10/me"), (Value(300, "HS_SECKEY", b"secret"),)), OPERATOR, "cli")
        with registry.snapshot() as snapshot:
            key = snapshot.stored(handle("10/me"))
        registry.do(Remove(handle("10/me"), (300,)), OPERATOR, "cli")
        asked: list[Request] = []
        really = registry.ledger.append

        def append(*requests: Request) -> list[Outcome]:
            asked.extend(requests)
            return really(*requests)

        monkeypatch.setattr(registry.ledger, "append", append)
        with pytest.raises(TooBusy, match="Authenticate again"):
            registry.do(
                Create(handle("10/x"), ()), key_holder(300, "10/me"), "native", preconditions={key.key: key.seq}
            )
        assert len(asked) <= 1, "trying again with the same proof does not help"
        with registry.snapshot() as snapshot:
            assert not snapshot.stored(handle("10/x")).exists


def test_caller_with_a_removed_key_learns_nothing() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10", "free", admin(100, "300:10/me"))
        registry.do(Create(handle("10/me"), (Value(300, "HS_SECKEY", b"secret"),)), OPERATOR, "cli")
        registry.do(Create(handle("10/a"), (URL, admin(100, "300:10/me"))), OPERATOR, "cli")
        with registry.snapshot() as snapshot:
            key = snapshot.stored(handle("10/me"))
        registry.do(Remove(handle("10/me"), (300,)), OPERATOR, "cli")
        for operation in (Publish(handle("10/a")), Publish(handle("10/none"))):
            with pytest.raises(TooBusy, match="Authenticate again"):
                registry.do(operation, key_holder(300, "10/me"), "native", preconditions={key.key: key.seq})


def test_preconditions_do_not_hide_a_removed_permission() -> None:
    """The decision depends on a cached entry, the interface has read a later one of the same record."""
    with registry_in_memory() as registry:
        add_namespace(registry, "10", "free", admin(100, "300:0.NA/10"), Value(300, "HS_SECKEY", b"secret"))
        me = key_holder(300, "0.NA/10")
        registry.do(Create(handle("10/a"), (URL,)), me, "native")
        gone = (admin(100, "300:77/other"), Value(300, "HS_SECKEY", b"secret"))
        registry.ledger.append(Append(Draft(Action.UPDATE, State.NORMAL, "0.NA/10", "test", "local:x", values=gone)))
        with registry.snapshot() as snapshot:
            key = snapshot.stored(Handle("0.NA", "10"))
        with pytest.raises(Refused) as caught:
            registry.do(Create(handle("10/b"), (URL,)), me, "native", preconditions={key.key: key.seq})
        assert caught.value.code is ResponseCode.INVALID_ADMIN


def test_group_under_an_unhomed_prefix_grants_nothing() -> None:
    with registry_in_memory() as registry:
        for prefix in ("10", "60"):
            add_namespace(registry, prefix)
        members = Value(200, "HS_VLIST", bytes.fromhex("00000001") + b"\0\0\0\x04" + b"77/x" + b"\0\0\0\x01")
        registry.do(Create(handle("60/group"), (members,)), OPERATOR, "cli")
        registry.do(Create(handle("10/c"), (URL, admin(100, "200:60/group"))), OPERATOR, "cli")
        change = Modify(handle("10/c"), (replace(URL, data=b"x"),))
        registry.do(change, key_holder(1, "77/x"), "native")
        registry.do(Home("0.NA/60", unhome=True), OPERATOR, "cli")
        other = Modify(handle("10/c"), (replace(URL, data=b"y"),))
        assert refused(registry, other, key_holder(1, "77/x")) is ResponseCode.INVALID_ADMIN


def test_search_limit_applies_to_the_whole_request() -> None:
    with registry_in_memory() as registry:
        groups = [Value(200 + number, "HS_VLIST", bytes(4)) for number in range(1_500)]
        add_namespace(registry, "10", "free", *(admin(10_000 + n, f"{200 + n}:0.NA/10") for n in range(400)))
        registry.do(Add(handle("0.NA/10"), tuple(groups)), OPERATOR, "cli")
        with registry.snapshot() as snapshot:
            context = Context(snapshot, key_holder(1, "77/x"), "native", 0)
            assert not any(context.is_allowed(list_handles("10")) for _ in range(5))
            assert snapshot.usage.lookups == MAX_GROUP_LOOKUPS


def test_ancestors_of_a_long_prefix_are_limited() -> None:
    with registry_in_memory() as registry:
        asked: list[str] = []
        with registry.snapshot() as snapshot:
            snapshot.is_homed = lambda name: bool(asked.append(name))  # type: ignore[method-assign,func-returns-value]
            assert not snapshot.is_responsible(Handle("0.NA", ".".join("a" * 1_000)))
        assert len(asked) <= MAX_ANCESTORS + 2


def test_removed_private_value_stays_hidden_in_the_history() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10", "free", admin(100, "1:9/adm"))
        mail = Value.text(2, "EMAIL", "alice@example.org")
        first = registry.do(Create(handle("10/a"), (URL, mail)), OPERATOR, "cli").seq
        registry.do(Modify(handle("10/a"), (replace(mail, permissions=Permission(0x0C)),)), OPERATOR, "cli")
        registry.do(Remove(handle("10/a"), (2,)), OPERATOR, "cli")
        assert [v.index for v in registry.resolve(Query(handle("10/a")), NOBODY, at=first).values] == [1]


def test_invalid_note_is_refused() -> None:
    with registry_in_memory() as registry, pytest.raises(Refused, match="surrogate"):
        registry.do(Home("0.NA/10"), OPERATOR, "cli", "\ud800")


def test_imported_handles_keep_their_spelling() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10")
        odd = Handle.parse_lenient("10/bad\u202ename")
        assert refused(registry, Create(odd, (URL,)), OPERATOR) is ResponseCode.INVALID_HANDLE
        registry.do(Create(odd, (URL,)), OPERATOR, "import")
        assert registry.resolve(Query(odd), NOBODY).values


def test_tombstone_keeps_its_reason() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10")
        values = (Value.text(1, FREE.tombstone_reason_type, "burnt"), Value.text(2, "DESC", "x"), admin(100, "1:9/a"))
        registry.ledger.append(
            Append(Draft(Action.TOMBSTONE, State.TOMBSTONE, "10/t", "cli", "local:alice", values=values))
        )
        assert refused(registry, Remove(handle("10/t"), (1,)), OPERATOR) is ResponseCode.INVALID_VALUE


@pytest.mark.parametrize("name", ["0.NA/.7", "0.NA/..", "0.NA/7."])
def test_prefix_with_empty_segments_is_not_found(name: str) -> None:
    with registry_in_memory() as registry, pytest.raises(Refused) as caught:
        registry.resolve(Query(Handle.parse_lenient(name)), NOBODY)
    assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND

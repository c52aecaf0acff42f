"""Transfer of records, derived prefixes, and links between records."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.ledger.log.entry import Action, State
from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission
from perseid.records.record import PRIVATE_PERMISSIONS, Value, ValueRef
from perseid.registry.commands.lifecycle import Publish, Tombstone, Unpublish
from perseid.registry.commands.minting import Mint, Reserve
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Add, Create, Modify
from perseid.registry.commands.transfer import LinkMetadata, LinkVersion, Transfer
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import StoredRecord
from perseid.wire.codes import ResponseCode
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

ALICE, BOB = key_holder(300, "10.9/alice"), key_holder(300, "10.9/bob")
TO_BOB = ValueRef(300, "10.9/bob")
NAME = handle("10.1/thing")
URL = Value.text(1, "URL", "https://example.org/")
ADMIN = admin(100, "300:10.9/alice")
GROUP = admin(101, "200:0.NA/10.1")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        add_namespace(made, "10.1", "free", ADMIN)
        made.do(Create(NAME, (URL, ADMIN, GROUP)), OPERATOR, "cli")
        yield made


def stored(registry: Registry, name: Handle = NAME) -> StoredRecord:
    with registry.snapshot() as snapshot:
        return snapshot.stored(name)


def admins(registry: Registry, name: Handle = NAME) -> list[str]:
    """The administrators of a record in their text form."""
    return [
        Admin.from_bytes(value.data).to_text() for value in stored(registry, name).values if value.type == "HS_ADMIN"
    ]


def refusal(registry: Registry, operation: object, identity: Identity = ALICE) -> Refused:
    with pytest.raises(Refused) as caught:
        registry.do(operation, identity, "cli")  # type: ignore[arg-type]
    return caught.value


def texts(registry: Registry, name: Handle, type_: str) -> list[str]:
    return [value.data.decode() for value in stored(registry, name).values if value.type == type_]


# One record


def test_s9_transfer_replaces_all_administrators(registry: Registry) -> None:
    registry.do(Transfer(NAME, TO_BOB), ALICE, "cli")
    found = stored(registry)
    assert [(value.index, value.type) for value in found.values] == [(1, "URL"), (100, "HS_ADMIN")]
    assert Admin.from_bytes(found.values[1].data) == Admin(TO_BOB, ALL_PERMISSIONS)
    change = Modify(NAME, (replace(URL, data=b"https://example.org/new"),))
    assert refusal(registry, change).code is ResponseCode.INVALID_ADMIN
    registry.do(change, BOB, "cli")
    with registry.snapshot() as snapshot:
        assert snapshot.reader.entry(found.seq).action is Action.UPDATE


def test_s9_transfer_to_the_same_owner_writes_nothing(registry: Registry) -> None:
    registry.do(Transfer(NAME, TO_BOB), ALICE, "cli")
    seq = stored(registry).seq
    assert registry.do(Transfer(NAME, TO_BOB), BOB, "cli").seq == seq
    assert registry.do(Transfer(NAME, TO_BOB), ALICE, "cli").seq == seq, "nothing changes, so nobody needs a right"


@pytest.mark.parametrize("missing", [AdminPermission.MODIFY_ADMIN, AdminPermission.REMOVE_ADMIN])
def test_s9_transfer_requires_all_permissions(registry: Registry, missing: AdminPermission) -> None:
    name = handle("10.1/less")
    registry.do(Create(name, (admin(100, "300:10.9/alice", ALL_PERMISSIONS & ~missing), GROUP)), OPERATOR, "cli")
    refused = refusal(registry, Transfer(name, TO_BOB))
    assert refused.code is ResponseCode.INVALID_ADMIN
    assert "cannot transfer 10.1/less: requires permissions MODIFY_ADMIN + REMOVE_ADMIN" in str(refused)
    assert refusal(registry, Transfer(name, TO_BOB), NOBODY).code is ResponseCode.AUTHENTICATION_NEEDED
    both = AdminPermission.MODIFY_ADMIN | AdminPermission.REMOVE_ADMIN
    registry.do(Create(name, (admin(100, "300:10.9/alice", both), GROUP), overwrite=True), OPERATOR, "cli")
    assert registry.do(Transfer(name, TO_BOB), ALICE, "cli").seq


def test_s9_server_administrator_can_transfer_a_record_without_administrators(registry: Registry) -> None:
    name = handle("10.1/orphan")
    registry.do(Create(name, (replace(URL, index=100),)), OPERATOR, "cli")
    assert "ADD_ADMIN" in str(refusal(registry, Transfer(name, TO_BOB)))
    registry.do(Transfer(name, TO_BOB), OPERATOR, "cli")
    assert [(value.index, value.type) for value in stored(registry, name).values] == [(100, "URL"), (101, "HS_ADMIN")]


def test_a2_new_owner_is_public_under_the_authority_policy(registry: Registry) -> None:
    policy = replace(PROFILES["free"], authority=True, default_creator="10.1/thing")
    hidden = Value(100, "HS_ADMIN", GROUP.data, permissions=PRIVATE_PERMISSIONS)
    registry.do(SetPolicy("10.1", policy), OPERATOR, "cli")
    registry.do(Create(handle("10.1/hidden"), (hidden,)), OPERATOR, "cli")
    registry.do(Transfer(handle("10.1/hidden"), TO_BOB), OPERATOR, "cli")
    assert next(value for value in stored(registry, handle("10.1/hidden")).values if value.index == 100).is_public


@pytest.mark.parametrize(
    ("name", "to", "code", "words"),
    [
        ("10.1/none", TO_BOB, ResponseCode.HANDLE_NOT_FOUND, "does not exist"),
        ("10.8/none", TO_BOB, ResponseCode.SERVER_NOT_RESP, "This server does not host prefix 10.8"),
        ("10.1/thing", ValueRef(300, "10.1/none"), ResponseCode.INVALID_VALUE, "handle 10.1/none does not exist"),
        ("10.1/thing", ValueRef(9, "0.NA/10.1"), ResponseCode.INVALID_VALUE, "has no value with index 9"),
        ("10.1/thing", ValueRef(9, "nobody"), ResponseCode.INVALID_VALUE, "9:nobody is not a valid owner"),
    ],
)
def test_s9_invalid_owner_is_refused(
    registry: Registry, name: str, to: ValueRef, code: ResponseCode, words: str
) -> None:
    refused = refusal(registry, Transfer(handle(name), to), OPERATOR)
    assert refused.code is code
    assert words in str(refused)


@pytest.mark.parametrize("state", [State.UNPUBLISHED, State.RESERVED])
def test_s9_owner_check_does_not_reveal_hidden_handles(registry: Registry, state: State) -> None:
    """Otherwise the owner of one handle could probe for others."""
    hidden, free, bob = handle("10.1/hidden"), handle("10.1/free"), key_holder(300, "10.9/bob")
    if state is State.RESERVED:
        registry.do(Reserve((hidden,), ValueRef(300, "10.9/alice")), OPERATOR, "cli")
    else:
        values = (URL, Value(100, "HS_ADMIN", Admin(ValueRef(300, "0.NA/10.1")).to_bytes()))
        registry.do(Create(hidden, values, published=False), OPERATOR, "cli")
    mine = handle("10.1/mine")
    registry.do(Create(mine, (Value(100, "HS_ADMIN", Admin(TO_BOB).to_bytes()),)), OPERATOR, "cli")
    for index in (1, 9, 100):
        told = refusal(registry, Transfer(mine, ValueRef(index, str(hidden))), bob)
        never = refusal(registry, Transfer(mine, ValueRef(index, str(free))), bob)
        assert str(told) == str(never).replace(str(free), str(hidden))
    registry.do(Transfer(mine, ValueRef(100, str(hidden))), OPERATOR, "cli")


def test_s9_transfer_keeps_the_state(registry: Registry) -> None:
    """Hidden ones by users who can see them; a reserved handle gets no date of creation (A3)."""
    policy = replace(PROFILES["pilin"], required_types=("URL",), default_creator="10.77/party")
    add_namespace(registry, "10.2", policy)
    made = registry.do(Mint("10.2", 3, values=(URL, ADMIN)), OPERATOR, "cli").handles
    reserved = Mint("10.2", reserve=True, owner=ValueRef(300, "10.9/alice"))
    names = {
        State.NORMAL: made[0],
        State.UNPUBLISHED: made[1],
        State.TOMBSTONE: made[2],
        State.RESERVED: registry.do(reserved, OPERATOR, "cli").handles[0],
    }
    registry.do(Unpublish(made[1]), ALICE, "cli")
    registry.do(Tombstone(made[2], "gone"), ALICE, "cli")
    for state, name in names.items():
        count = len(stored(registry, name).values)
        hidden = state in (State.UNPUBLISHED, State.RESERVED)
        code = ResponseCode.HANDLE_NOT_FOUND if hidden else ResponseCode.INVALID_ADMIN
        assert refusal(registry, Transfer(name, TO_BOB), BOB).code is code
        registry.do(Transfer(name, TO_BOB), ALICE, "cli")
        assert stored(registry, name).state is state
        assert len(stored(registry, name).values) == count
        assert admins(registry, name) == ["300:10.9/bob"]


def test_a8_transfer_keeps_the_creator(registry: Registry) -> None:
    """A5: an owner value names the new owner, unless that is the creator."""
    policy = replace(PROFILES["pilin"], owner_type="102.100.TYPE/OWNER", default_creator="10.77/party")
    add_namespace(registry, "10.2", policy)
    name = registry.do(Mint("10.2", values=(ADMIN,)), OPERATOR, "cli").handles[0]
    snapshot = [texts(registry, name, type_) for type_ in (policy.creation_date_type, policy.creator_type)]
    for to, owners in (
        (TO_BOB, ["10.9/bob"]),
        (ValueRef(300, "10.9/carol"), ["10.9/carol"]),
        (ValueRef(300, "10.77/party"), []),
        (TO_BOB, ["10.9/bob"]),
    ):
        registry.do(Transfer(name, to), OPERATOR, "cli")
        assert texts(registry, name, policy.owner_type) == owners
        assert admins(registry, name) == [str(to)]
    assert [texts(registry, name, type_) for type_ in (policy.creation_date_type, policy.creator_type)] == snapshot


def test_a4_local_owner_must_be_public(registry: Registry) -> None:
    add_namespace(registry, "10.2", replace(PROFILES["pilin"], default_creator="10.77/party"))
    name = registry.do(Mint("10.2", values=(ADMIN,)), OPERATOR, "cli").handles[0]
    owner = handle("10.1/owner")
    registry.do(Create(owner, (replace(URL, index=300),)), OPERATOR, "cli")
    registry.do(Unpublish(owner), OPERATOR, "cli")
    refused = refusal(registry, Transfer(name, ValueRef(300, str(owner))), OPERATOR)
    assert refused.code is ResponseCode.INVALID_VALUE
    assert "does not exist or is not public" in str(refused)
    registry.do(Publish(owner), OPERATOR, "cli")
    registry.do(Transfer(name, ValueRef(300, str(owner))), ALICE, "cli")


def test_current_policy_applies_to_a_transfer(registry: Registry) -> None:
    registry.do(Add(NAME, (Value.text(4, "EMAIL", "a@example.org"),)), ALICE, "cli")
    registry.do(SetPolicy("10.1", replace(PROFILES["free"], forbidden_types=("EMAIL",))), OPERATOR, "cli")
    refused = refusal(registry, Transfer(NAME, TO_BOB))
    assert refused.code is ResponseCode.INVALID_VALUE
    assert 'forbidden_types = ["EMAIL"]' in str(refused)


# Derived prefixes


def test_h6_derived_prefix_requires_add_na_on_its_parent(registry: Registry) -> None:
    """This permission alone is enough; all others together are not."""
    for permissions, allowed in (
        (AdminPermission.ADD_NA, True),
        (ALL_PERMISSIONS & ~AdminPermission.ADD_NA, False),
        (AdminPermission.ADD_HANDLE, False),
    ):
        parent = f"10.{20 + allowed + 2 * (permissions is AdminPermission.ADD_HANDLE)}"
        add_namespace(registry, parent, "free", admin(100, "300:10.9/alice", permissions))
        making = AddNamespace(f"{parent}.1", PROFILES["free"], (admin(100, "300:10.9/bob"),))
        explained = registry.explain(making, ALICE, "cli")
        assert explained.allowed is allowed
        if allowed:
            registry.do(making, ALICE, "cli")
            assert admins(registry, handle(f"0.NA/{parent}.1")) == ["300:10.9/bob"]
            deeper = AddNamespace(f"{parent}.1.7", PROFILES["free"])
            assert registry.explain(deeper, BOB, "cli").allowed, "a derived prefix is one in its own right"
            assert not registry.explain(deeper, ALICE, "cli").allowed, "the parent counts, not its parent"
        else:
            assert explained.code is ResponseCode.INVALID_ADMIN
            assert f"permission ADD_NA on 0.NA/{parent}" in explained.reason
    assert not registry.explain(AddNamespace("10.30", PROFILES["free"]), ALICE, "cli").allowed


def test_h6_administrator_of_a_derived_prefix_has_no_permission_above(registry: Registry) -> None:
    add_namespace(registry, "10.1.5", "free", admin(100, "300:10.9/bob"))
    assert registry.explain(Mint("10.1.5"), BOB, "cli").allowed
    assert not registry.explain(Mint("10.1"), BOB, "cli").allowed
    assert not registry.explain(Mint("10.1.5"), ALICE, "cli").allowed


# Links


@pytest.fixture
def other(registry: Registry) -> Handle:
    add_namespace(registry, "10.2", replace(PROFILES["exact"], work_type="X.WORK", object_type="X.OBJECT"))
    name = handle("10.2/v1")
    registry.do(Create(name, (URL, ADMIN)), OPERATOR, "cli")
    return name


def test_s3_work_and_version_are_linked(registry: Registry, other: Handle) -> None:
    """By the types in the policy of each record, in one commit; repeating it changes nothing."""
    second = handle("10.1/v2")
    registry.do(Create(second, (URL, ADMIN)), OPERATOR, "cli")
    linked = registry.do(LinkVersion(NAME, other), ALICE, "cli")
    assert linked.handles == (NAME, other)
    assert stored(registry, other).seq == linked.seq + 1 == stored(registry).seq + 1
    registry.do(LinkVersion(handle("10.1/THING"), second), ALICE, "cli")
    assert texts(registry, NAME, "LINK.EXPRESSION") == ["10.2/v1", "10.1/v2"]
    assert texts(registry, other, "X.WORK") == ["10.1/thing"]
    assert texts(registry, second, "LINK.WORK") == ["10.1/thing"]
    assert registry.do(LinkVersion(NAME, second), ALICE, "cli").seq == 0


def test_s12_object_and_metadata_record_are_linked(registry: Registry, other: Handle) -> None:
    registry.do(LinkMetadata(NAME, other), ALICE, "cli")
    assert texts(registry, NAME, "LINK.METADATA") == ["10.2/v1"]
    assert texts(registry, other, "X.OBJECT") == ["10.1/thing"]
    third = handle("10.1/third")
    registry.do(Create(third, (ADMIN,)), OPERATOR, "cli")
    refused = refusal(registry, LinkMetadata(NAME, third))
    assert refused.code is ResponseCode.INVALID_VALUE
    assert "is already linked to another handle" in str(refused)
    assert 'metadata_type = "LINK.METADATA"' in str(refused)
    assert refusal(registry, LinkVersion(NAME, NAME)).reason == "Handle 10.1/thing cannot be linked with itself"


def test_link_requires_permission_on_both_records(registry: Registry, other: Handle) -> None:
    registry.do(Transfer(other, TO_BOB), ALICE, "cli")
    assert "cannot link 10.2/v1: requires permission ADD_VALUE" in str(refusal(registry, LinkVersion(NAME, other)))
    reserved, gone = handle("10.1/reserved"), handle("10.1/gone")
    registry.do(Reserve((reserved,), ValueRef(300, "10.9/alice")), OPERATOR, "cli")
    registry.do(Create(gone, (ADMIN,)), OPERATOR, "cli")
    registry.do(Tombstone(gone, "gone"), ALICE, "cli")
    assert "does not resolve yet" in str(refusal(registry, LinkVersion(NAME, reserved)))
    assert "is a tombstone" in str(refusal(registry, LinkVersion(gone, NAME)))
    assert refusal(registry, LinkVersion(NAME, handle("10.77/x"))).code is ResponseCode.SERVER_NOT_RESP
    assert refusal(registry, LinkVersion(NAME, handle("10.1/none"))).code is ResponseCode.HANDLE_NOT_FOUND

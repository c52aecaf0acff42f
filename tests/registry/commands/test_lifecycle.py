"""The life of a record: publish, unpublish, tombstone, revive, redact."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, AdminPermission
from perseid.records.encoding import to_iso
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.lifecycle import FIRST_INDEX, Publish, Redact, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Mint, Reserve
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Add, Create, Delete, Modify, Remove
from perseid.registry.context import Command
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import ChangeResult, Refused, Resolution
from perseid.registry.snapshot import Rules, StoredRecord
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import Machine
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

ALICE = key_holder(300, "10.9/alice")
STRANGER = key_holder(300, "10.9/stranger")
SERVER = key_holder(300, "0.NA/0.NA")
NAME = handle("10.1/thing")
URL = Value.text(1, "URL", "https://example.org/thing")
PRIVATE = replace(Value.text(2, "NOTE", "for us only"), permissions=Permission(0x0C))
ADMIN = admin(100, "300:10.9/alice")


@pytest.fixture
def registry(machine: Machine) -> Iterator[Registry]:
    with registry_in_memory(machine) as made:
        add_namespace(made, "10.1")
        made.do(Create(NAME, (URL, PRIVATE, ADMIN)), OPERATOR, "cli")
        yield made


def do(registry: Registry, operation: Command[ChangeResult], identity: Identity = ALICE) -> int:
    return registry.do(operation, identity, "cli").seq


def refusal(registry: Registry, operation: Command[ChangeResult], identity: Identity = ALICE) -> Refused:
    with pytest.raises(Refused) as caught:
        registry.do(operation, identity, "cli")
    return caught.value


def stored(registry: Registry, name: Handle = NAME) -> StoredRecord:
    with registry.snapshot() as snapshot:
        return snapshot.stored(name)


def resolved(
    registry: Registry, name: Handle = NAME, identity: Identity = NOBODY, *, public: bool = True
) -> Resolution:
    return registry.resolve(Query(name, public_only=public), identity)


def is_found(registry: Registry, name: Handle = NAME) -> bool:
    try:
        return bool(resolved(registry, name).values)
    except Refused as refused:
        return refused.code is not ResponseCode.HANDLE_NOT_FOUND


def says(found: StoredRecord, type_: str) -> list[str]:
    return [value.data.decode() for value in found.values if value.type == type_]


def action(registry: Registry, seq: int) -> Action:
    with registry.snapshot() as snapshot:
        return snapshot.reader.entry(seq).action


def permitted(registry: Registry, permissions: AdminPermission) -> Handle:
    """A record whose administrator has only these permissions."""
    name = handle("10.1/other")
    registry.do(Create(name, (URL, admin(100, "300:10.9/alice", permissions)), overwrite=True), OPERATOR, "cli")
    return name


# Publishing


def test_s2_unpublished_record_exists_only_for_administrators(registry: Registry) -> None:
    values = stored(registry).values
    seq = do(registry, Unpublish(NAME))
    assert (stored(registry).state, action(registry, seq)) == (State.UNPUBLISHED, Action.UNPUBLISH)
    assert not is_found(registry)
    assert resolved(registry, identity=ALICE, public=False).values == values
    assert refusal(registry, Create(NAME, ()), ALICE).code is ResponseCode.HANDLE_ALREADY_EXISTS
    assert refusal(registry, Create(NAME, ()), STRANGER).code is ResponseCode.INVALID_ADMIN, "as if it were free"
    seq = do(registry, Publish(NAME))
    assert (stored(registry).state, action(registry, seq)) == (State.NORMAL, Action.PUBLISH)
    assert resolved(registry).values == (values[0], values[2])
    assert stored(registry).values == values


def test_s2_unpublished_record_can_be_updated(registry: Registry) -> None:
    do(registry, Unpublish(NAME))
    registry.do(Modify(NAME, (replace(URL, data=b"https://example.org/new"),)), ALICE, "cli")
    assert not is_found(registry)
    do(registry, Publish(NAME))
    assert says(stored(registry), "URL") == ["https://example.org/new"]


@pytest.mark.parametrize("operation", [Publish(NAME), Unpublish(NAME)])
def test_s2_repeating_it_changes_nothing(registry: Registry, operation: Publish | Unpublish) -> None:
    first = do(registry, operation)
    assert do(registry, operation) == first == stored(registry).seq


def test_h8_prefix_handle_cannot_be_unpublished(registry: Registry) -> None:
    """Clients use it to find the service of the prefix."""
    prefix, new = handle("0.NA/10.1"), handle("0.NA/10.2")
    operations: list[Command[ChangeResult]] = [Unpublish(prefix), Create(new, (ADMIN,), published=False)]
    for operation in operations:
        refused = refusal(registry, operation, OPERATOR)
        assert (refused.code, refused.rule) == (ResponseCode.INVALID_HANDLE, "H8")
        assert "must stay public" in refused.reason
        assert refusal(registry, operation, STRANGER).code is ResponseCode.INVALID_ADMIN
    assert is_found(registry, prefix)
    assert not stored(registry, new).exists
    mint = Mint("0.NA", published=False)
    for making in (Reserve((new,)), mint, replace(mint, reserve=True)):
        with pytest.raises(Refused) as caught:
            registry.do(making, OPERATOR, "cli")
        assert (caught.value.code, caught.value.rule) == (ResponseCode.INVALID_HANDLE, "H8")
    assert do(registry, Create(new, (ADMIN,)), OPERATOR)


@pytest.mark.parametrize("kind", [Publish, Unpublish])
def test_s2_publishing_requires_modify_value(registry: Registry, kind: type[Publish | Unpublish]) -> None:
    assert do(registry, kind(permitted(registry, AdminPermission.MODIFY_VALUE)))
    name = permitted(registry, ALL_PERMISSIONS & ~AdminPermission.MODIFY_VALUE)
    registry.do(Unpublish(name) if kind is Publish else Publish(name), OPERATOR, "cli")
    refused = refusal(registry, kind(name))
    assert refused.code is ResponseCode.INVALID_ADMIN
    assert "10.1/other: requires permission MODIFY_VALUE on 10.1/other" in str(refused)
    assert refusal(registry, kind(NAME), NOBODY).code is ResponseCode.AUTHENTICATION_NEEDED
    blind = permitted(registry, ALL_PERMISSIONS & ~AdminPermission.MODIFY_VALUE & ~AdminPermission.READ_VALUE)
    registry.do(Unpublish(blind), OPERATOR, "cli")
    assert refusal(registry, kind(blind)).code is ResponseCode.HANDLE_NOT_FOUND, "who may not read does not see it"


def test_missing_record_cannot_be_published_or_ended(registry: Registry) -> None:
    for name, code in (
        (handle("10.1/none"), ResponseCode.HANDLE_NOT_FOUND),
        (handle("10.8/none"), ResponseCode.SERVER_NOT_RESP),
        (handle("0.SITE/POLICY/10.1"), ResponseCode.SERVER_NOT_RESP),
    ):
        for operation in (Publish(name), Unpublish(name), Tombstone(name, "gone"), Revive(name)):
            assert refusal(registry, operation, OPERATOR).code is code


def test_s1_reserved_handle_must_be_created_first(registry: Registry) -> None:
    name = handle("10.1/reserved")
    registry.do(Reserve((name,), ValueRef(300, "10.9/alice")), OPERATOR, "cli")
    before = stored(registry, name)
    changes = (Add(name, (URL,)), Modify(name, (replace(before.values[0], type="DESC"),)))
    for operation in (Publish(name), Tombstone(name, "gone"), *changes):
        refused = refusal(registry, operation)
        assert (refused.code, refused.rule) == (ResponseCode.INVALID_VALUE, "S1")
        assert "is reserved and does not resolve yet. Create its record first" in str(refused)
        assert refusal(registry, operation, STRANGER).code is ResponseCode.HANDLE_NOT_FOUND
    assert do(registry, Unpublish(name)) == stored(registry, name).seq, "it is not public as it is"


# Tombstones


def test_s8_tombstone_has_reason_date_and_replacement(registry: Registry, machine: Machine) -> None:
    """As ordinary public values, which every interface returns; the rest is in the history."""
    instead = handle("10.1/instead")
    registry.do(Create(instead, (URL,)), OPERATOR, "cli")
    before = stored(registry).values
    machine.run(7 * SECOND)
    seq = do(registry, Tombstone(NAME, "  The server burnt down. ", instead))
    assert (stored(registry).state, action(registry, seq)) == (State.TOMBSTONE, Action.TOMBSTONE)
    found = resolved(registry)
    assert found.state is State.TOMBSTONE
    assert [(value.index, value.type, value.data.decode()) for value in found.values if value.type != "HS_ADMIN"] == [
        (FIRST_INDEX, "TOMBSTONE.REASON", "The server burnt down."),
        (FIRST_INDEX + 1, "TOMBSTONE.DATE", to_iso(machine.wall // SECOND)),
        (FIRST_INDEX + 2, "TOMBSTONE.REPLACEMENT", "10.1/instead"),
    ]
    assert found.values[0] == before[2], "HS_ADMIN stays, with its date"
    assert registry.resolve(Query(NAME), NOBODY, at=seq - 1).values == (before[0], before[2]), "the URL is history"
    item = registry.ledger.find(str(NAME).encode())
    assert item is not None
    assert item.state is State.TOMBSTONE


def test_s8_tombstone_cannot_be_reused(registry: Registry) -> None:
    do(registry, Tombstone(NAME, "gone"))
    assert refusal(registry, Create(NAME, (URL,)), OPERATOR).code is ResponseCode.HANDLE_ALREADY_EXISTS
    with pytest.raises(Refused, match="already exists"):
        registry.do(Reserve((NAME,), ValueRef(300, "10.9/alice")), OPERATOR, "cli")
    refused = refusal(registry, Unpublish(NAME))
    assert (refused.code, refused.rule) == (ResponseCode.INVALID_VALUE, "S8")
    assert do(registry, Publish(NAME)) == stored(registry).seq, "it is public as it is"


def test_s8_tombstone_can_be_updated(registry: Registry, machine: Machine) -> None:
    """The date of the first tombstone stays, and so does a replacement until another is named."""
    registry.do(Create(handle("10.1/a"), (URL,)), OPERATOR, "cli")
    do(registry, Tombstone(NAME, "Gone.", handle("10.1/A")))
    date = says(stored(registry), "TOMBSTONE.DATE")
    machine.run(86_400 * SECOND)
    seq = do(registry, Tombstone(NAME, "Gone, and why."))
    found = stored(registry)
    assert says(found, "TOMBSTONE.REASON") == ["Gone, and why."]
    assert says(found, "TOMBSTONE.DATE") == date
    assert says(found, "TOMBSTONE.REPLACEMENT") == ["10.1/a"], "as registered"
    assert do(registry, Tombstone(NAME, "Gone, and why.")) == seq, "nothing changed"
    do(registry, Tombstone(NAME, "Gone, and why.", handle("10.77/elsewhere")))
    assert says(stored(registry), "TOMBSTONE.REPLACEMENT") == ["10.77/elsewhere"], "foreign names cannot be checked"
    do(registry, Tombstone(NAME, "Gone, and why.", ""))
    assert says(stored(registry), "TOMBSTONE.REPLACEMENT") == [], "removed"


def test_s8_replacement_that_is_a_tombstone_gets_a_warning(registry: Registry) -> None:
    registry.do(Create(handle("10.1/a"), (URL,)), OPERATOR, "cli")
    registry.do(Tombstone(handle("10.1/a"), "Gone too."), OPERATOR, "cli")
    made = registry.do(Tombstone(NAME, "Gone.", handle("10.1/a")), OPERATOR, "cli")
    (warning,) = made.warnings
    assert str(warning) == "The replacement 10.1/a is a tombstone itself. Name another handle, or none"
    assert (warning.code, warning.rule, warning.parameters) == (
        "replacement_tombstone",
        "S8",
        {"replacement": "10.1/a"},
    )


def test_s8_unchanged_replacement_is_not_checked_again(registry: Registry) -> None:
    """The reason can be corrected although the replacement has gone since."""
    registry.do(Create(handle("10.1/a"), (URL,)), OPERATOR, "cli")
    do(registry, Tombstone(NAME, "Gone.", handle("10.1/a")))
    registry.do(Unpublish(handle("10.1/a")), OPERATOR, "cli")
    do(registry, Tombstone(NAME, "Gone, and why.", handle("10.1/a")))
    assert says(stored(registry), "TOMBSTONE.REPLACEMENT") == ["10.1/a"]


@pytest.mark.parametrize(
    ("reason", "replacement", "words"),
    [
        (" \n", None, "A tombstone requires a reason"),
        ("\ud800", None, "no UTF-8 form"),
        ("gone", Handle("10.1", "none"), "The replacement 10.1/none does not exist or is not public"),
        ("gone", Handle("10.1", "THING"), "10.1/thing cannot replace itself"),
        ("gone", Handle("10.1", "a\tb"), "is not a valid replacement"),
    ],
)
def test_s8_invalid_tombstone_is_refused(
    registry: Registry, reason: str, replacement: Handle | None, words: str
) -> None:
    refused = refusal(registry, Tombstone(NAME, reason, replacement))
    assert refused.code is ResponseCode.INVALID_VALUE
    assert words in str(refused)
    assert stored(registry).state is State.NORMAL


def test_s8_unpublished_replacement_is_refused(registry: Registry) -> None:
    hidden = handle("10.1/hidden")
    registry.do(Create(hidden, (URL,)), OPERATOR, "cli")
    registry.do(Unpublish(hidden), OPERATOR, "cli")
    assert "does not exist or is not public" in str(refusal(registry, Tombstone(NAME, "gone", hidden)))


def test_s8_tombstone_requires_delete_handle(registry: Registry) -> None:
    name = permitted(registry, ALL_PERMISSIONS & ~AdminPermission.DELETE_HANDLE)
    refused = refusal(registry, Tombstone(name, "gone"))
    assert refused.code is ResponseCode.INVALID_ADMIN
    assert "requires permission DELETE_HANDLE" in str(refused)
    assert do(registry, Tombstone(permitted(registry, AdminPermission.DELETE_HANDLE), "gone"))
    assert refusal(registry, Tombstone(NAME, "gone"), NOBODY).code is ResponseCode.AUTHENTICATION_NEEDED
    assert refusal(registry, Tombstone(NAME, "gone"), STRANGER).code is ResponseCode.INVALID_ADMIN


def test_prefix_handle_cannot_become_a_tombstone(registry: Registry) -> None:
    """It names the service and the administrators of the prefix."""
    refused = refusal(registry, Tombstone(handle("0.NA/10.1"), "gone"), OPERATOR)
    assert (refused.code, refused.rule) == (ResponseCode.INVALID_HANDLE, "H8")


def test_s8_tombstone_is_allowed_if_deletion_is_not(registry: Registry) -> None:
    """A8: it keeps authority metadata, and required types do not apply."""
    party = handle("10.2/0N8J991QH")
    policy = replace(
        PROFILES["pilin"],
        required_types=("URL",),
        owner_type="102.100.TYPE/OWNER",
        default_creator=str(party),
        default_ttl=99,
    )
    add_namespace(registry, "10.2", policy)
    own = Value.text(3, policy.creator_type, str(party))
    registry.do(Create(party, (URL, own, ADMIN)), OPERATOR, "cli")
    owner = Value.text(4, policy.owner_type, "10.77/owner")
    order = Mint("10.2", values=(URL, ADMIN, owner))
    name = registry.do(order, OPERATOR, "cli").handles[0]
    before = stored(registry, name)
    refused = refusal(registry, Delete(name))
    assert refused.advice == AdviceKind.TOMBSTONE_INSTEAD(handle=name)
    do(registry, Tombstone(name, "withdrawn", party))
    found = stored(registry, name)
    for type_ in (policy.creation_date_type, policy.creator_type, policy.owner_type):
        assert says(found, type_) == says(before, type_) != []
    assert says(found, "URL") == []
    assert says(found, policy.tombstone_reason_type) == ["withdrawn"]
    assert {value.ttl for value in found.values if value.index >= FIRST_INDEX} == {99}
    do(registry, Revive(name))
    assert {value.with_timestamp(0) for value in stored(registry, name).values} == {
        value.with_timestamp(0) for value in before.values
    }


def test_tombstone_can_be_undone(registry: Registry) -> None:
    before = stored(registry)
    do(registry, Tombstone(NAME, "gone"))
    do(registry, Tombstone(NAME, "gone indeed"))
    registry.do(Modify(NAME, (admin(100, "300:10.9/stranger"),)), ALICE, "cli")
    assert refusal(registry, Revive(NAME), ALICE).code is ResponseCode.INVALID_ADMIN
    seq = do(registry, Revive(NAME), STRANGER)
    found = stored(registry)
    assert (found.state, action(registry, seq)) == (State.NORMAL, Action.UPDATE)
    assert [value.data for value in found.values[:2]] == [value.data for value in before.values[:2]]
    assert found.values[2].data == admin(100, "300:10.9/stranger").data, "administrators are those of now"
    refused = refusal(registry, Revive(NAME), STRANGER)
    assert (refused.code, refused.reason) == (ResponseCode.INVALID_VALUE, "Handle 10.1/thing is not a tombstone")


def test_revived_record_keeps_its_state_and_free_indexes(registry: Registry) -> None:
    do(registry, Unpublish(NAME))
    do(registry, Tombstone(NAME, "gone"))
    assert is_found(registry)
    registry.do(Remove(NAME, (100,)), ALICE, "cli")
    registry.do(Add(NAME, (admin(1, "300:10.9/alice"),)), OPERATOR, "cli")
    registry.do(Revive(NAME), OPERATOR, "cli")
    assert not is_found(registry)
    assert [(value.index, value.type) for value in stored(registry).values] == [
        (1, "URL"),
        (2, "NOTE"),
        (3, "HS_ADMIN"),
    ]


@pytest.mark.parametrize("missing", [AdminPermission.DELETE_HANDLE, AdminPermission.ADD_VALUE])
def test_undoing_a_tombstone_requires_both_permissions(registry: Registry, missing: AdminPermission) -> None:
    name = permitted(registry, ALL_PERMISSIONS & ~missing)
    do(registry, Tombstone(name, "gone"), OPERATOR)
    assert "DELETE_HANDLE + ADD_VALUE" in str(refusal(registry, Revive(name)))


def test_imported_tombstone_cannot_be_undone(registry: Registry) -> None:
    deleted = handle("10.1/deleted")
    registry.do(Create(deleted, (URL,)), OPERATOR, "cli")
    registry.do(Delete(deleted), OPERATOR, "cli")
    for name in (deleted, handle("10.1/new")):
        registry.ledger.append(Append(Draft(Action.TOMBSTONE, State.TOMBSTONE, str(name), "import", "local:alice")))
        refused = refusal(registry, Revive(name), OPERATOR)
        assert refused.code is ResponseCode.VALUES_NOT_FOUND
        assert "has no version before the tombstone" in str(refused)


def test_s8_current_policy_applies_to_a_tombstone(registry: Registry) -> None:
    """A record older than the policy gets its authority metadata, or is refused."""
    policy = replace(PROFILES["free"], authority=True)
    registry.do(SetPolicy("10.1", policy), OPERATOR, "cli")
    refused = refusal(registry, Tombstone(NAME, "gone"))
    assert refused.code is ResponseCode.INVALID_VALUE
    assert "has no creator" in str(refused)
    registry.do(SetPolicy("10.1", replace(policy, default_creator="10.77/party")), OPERATOR, "cli")
    do(registry, Tombstone(NAME, "gone"))
    assert says(stored(registry), policy.creator_type) == ["10.77/party"]


# Erasing


def test_redaction_is_permanent_and_recorded(registry: Registry) -> None:
    """S11: actor and reason are in the log."""
    name = str(NAME).encode()
    seq = stored(registry).seq
    registry.do(Remove(NAME, (1,)), ALICE, "cli")
    by = registry.do(Redact(NAME, 1, seq, "by order of a court"), OPERATOR, "cli").seq
    with registry.snapshot() as snapshot:
        assert [value.type for value in snapshot.reader.entry(seq).record()] == ["NOTE", "HS_ADMIN"]
        entry = snapshot.reader.entry(by)
        assert (entry.action, entry.state, entry.why) == (
            Action.REDACT,
            State.NORMAL,
            f"value 1 of entry {seq}: by order of a court",
        )
        assert entry.origin == ("cli", "local:alice")
    assert registry.ledger.wait_until_erased(10)
    assert registry.ledger.find(name) is not None


def test_deleted_record_can_be_redacted(registry: Registry) -> None:
    seq = stored(registry).seq
    registry.do(Delete(NAME), ALICE, "cli")
    registry.do(Redact(NAME, 2, seq, "personal data"), SERVER, "native")
    assert stored(registry).state is State.ABSENT


@pytest.mark.parametrize(("identity", "code"), [(ALICE, ResponseCode.INVALID_ADMIN), (NOBODY, None)])
def test_only_server_administrators_can_redact(
    registry: Registry, identity: Identity, code: ResponseCode | None
) -> None:
    """All permissions on the record are not enough: it destroys evidence."""
    refused = refusal(registry, Redact(NAME, 1, 1, "mine"), identity)
    assert refused.code is (code or ResponseCode.AUTHENTICATION_NEEDED)
    if code is not None:
        assert "cannot redact values of 10.1/thing: requires an entry in the setting administrators.server" in str(
            refused
        )


def test_redaction_needs_neither_full_access_nor_record_permissions() -> None:
    rules = Rules(Settings(server_admins=(ValueRef(300, "0.NA/0.NA"),), server_admin_full_access=False))
    with registry_in_memory(rules=rules) as registry:
        add_namespace(registry, "10.1")
        registry.do(Create(NAME, (URL, ADMIN)), OPERATOR, "cli")
        seq = stored(registry).seq
        registry.do(Remove(NAME, (1,)), ALICE, "cli")
        assert registry.do(Redact(NAME, 1, seq, "reason"), SERVER, "cli").seq > seq


def test_impossible_redaction_is_refused(registry: Registry) -> None:
    seq = stored(registry).seq
    for operation, code, words in (
        (Redact(NAME, 1, seq, "reason"), ResponseCode.VALUES_NOT_FOUND, "is still in the current record"),
        (Redact(NAME, 7, seq, "reason"), ResponseCode.VALUES_NOT_FOUND, "has no value 7"),
        (Redact(NAME, 1, 1, "reason"), ResponseCode.VALUES_NOT_FOUND, "had no values at entry"),
        (Redact(NAME, 1, seq, ""), ResponseCode.INVALID_VALUE, "A redaction requires a reason"),
        (Redact(handle("10.1/none"), 1, seq, "reason"), ResponseCode.HANDLE_NOT_FOUND, "does not exist"),
        (
            Redact(handle("0.SITE/POLICY/10.1"), 1, seq, "r"),
            ResponseCode.SERVER_NOT_RESP,
            "is reserved for the installation",
        ),
    ):
        refused = refusal(registry, operation, OPERATOR)
        assert refused.code is code
        assert words in str(refused)

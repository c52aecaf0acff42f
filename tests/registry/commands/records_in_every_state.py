"""Helpers for history tests: a namespace, and entries in every state, appended directly."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import Append, Appended
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.record import Permission, Value, ValueRef, ascending
from perseid.registry.access.authorization import Settings
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.ledger.ledgers import Machine
from tests.registry.registries import add_namespace, registry_in_memory

X = Handle.parse("12345/x")
PUBLIC, PRIVATE = Permission(0x0E), Permission(0x0C)


def identity(reference: str) -> KeyIdentity:
    key = ValueRef.parse(reference)
    return KeyIdentity(key, Proof.PUBLIC_KEY, verified_index=key.index)


ANN = identity("300:12345/ann")
"""Administers the record."""
LISTER = identity("300:12345/lister")
"""Has LIST_HANDLES on the prefix handle, and nothing else."""
SERVER = identity("300:0.NA/0.NA")
"""Server administrator without permissions on records."""
STRANGER = identity("300:99999/stranger")
PREFIX_ADMIN = Value(
    100, "HS_ADMIN", Admin(ValueRef.parse("300:12345/lister"), AdminPermission.LIST_HANDLES).to_bytes()
)
ADMIN = Value(100, "HS_ADMIN", Admin(ValueRef.parse("300:12345/ann")).to_bytes())


def value(index: int, data: str = "", permissions: Permission = PUBLIC, type_: str = "URL") -> Value:
    return Value(index, type_, data.encode() or b"v%d" % index, permissions=permissions)


def hidden(index: int, data: str = "", type_: str = "URL") -> Value:
    return value(index, data, PRIVATE, type_)


def policy(**options: Any) -> Policy:
    return Policy(**PROFILES["free"].values() | options)


@contextmanager
def site(machine: Machine | None = None, rules: Rules | None = None, **options: Any) -> Iterator[Registry]:
    """A registry with the namespace 12345, with the given policy options."""
    with registry_in_memory(machine, rules) as made:
        add_namespace(made, "12345", policy(**options), PREFIX_ADMIN)
        yield made


def rules(*, listing_allowed: bool = True, full_access: bool = False) -> Rules:
    settings = Settings(server_admins=(ValueRef(300, "0.NA/0.NA"),), server_admin_full_access=full_access)
    return Rules(settings, listing_allowed=listing_allowed)


def put(
    registry: Registry,
    *values: Value,
    name: str = "12345/x",
    action: Action | None = None,
    state: State = State.NORMAL,
    note: str = "",
    actor: str = "300:12345/ann",
) -> int:
    """Append an entry and return its number."""
    with registry.snapshot() as snapshot:
        before = snapshot.entry(record_key(name))
    made = action or (Action.CREATE if before is None else Action.UPDATE)
    outcome = registry.ledger.append(Append(Draft(made, state, name, "cli", actor, note, ascending(values))))[0]
    assert isinstance(outcome, Appended)
    return outcome.seq


def delete(registry: Registry, name: str = "12345/x") -> int:
    return put(registry, name=name, action=Action.DELETE, state=State.ABSENT)


def unpublish(registry: Registry, *values: Value, name: str = "12345/x", note: str = "") -> int:
    return put(registry, *values, name=name, action=Action.UNPUBLISH, state=State.UNPUBLISHED, note=note)


def publish(registry: Registry, *values: Value, name: str = "12345/x") -> int:
    return put(registry, *values, name=name, action=Action.PUBLISH)


def reserve(registry: Registry, *values: Value, name: str = "12345/x") -> int:
    return put(registry, *values, name=name, action=Action.RESERVE, state=State.RESERVED)

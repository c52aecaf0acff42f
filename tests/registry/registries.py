"""Helpers: a registry over a ledger in memory or on a real back end, and identities."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Append, Execute
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission
from perseid.records.record import Value, ValueRef
from perseid.registry.access.authorization import Settings
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import authenticate
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Home
from perseid.registry.context import Command
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, Proof, TokenIdentity
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.registry import Execution, Registry
from perseid.registry.snapshot import Rules
from tests.ledger.ledgers import SIGNER, Machine, sqlite_with_tables

OPERATOR = LocalIdentity("alice")
NOBODY = Anonymous()


def key_holder(index: int, handle: str) -> KeyIdentity:
    return KeyIdentity(ValueRef(index, handle), Proof.SECRET_KEY, verified_index=index)


def admin(index: int, reference: str, permissions: AdminPermission = ALL_PERMISSIONS) -> Value:
    return Value(index, "HS_ADMIN", Admin(ValueRef.parse(reference), permissions).to_bytes())


def handle(text: str) -> Handle:
    return Handle.parse(text)


@contextmanager
def registry_on(
    store: Store, folder: Path, machine: Machine | None = None, rules: Rules | None = None
) -> Iterator[Registry]:
    """A registry over an empty, upgraded store; it is its own root."""
    log = Log(store, (machine or Machine()).clock(), random.Random(1).randbytes)
    log.create(SIGNER)
    with Ledger(log, Answers(folder / "answers")) as ledger:
        made = Registry(ledger, rules or Rules(Settings(server_admins=(ValueRef(300, "0.NA/0.NA"),))))
        made.do(Home("0.NA/0.NA"), OPERATOR, "cli")
        yield made


@contextmanager
def registry_in_memory(machine: Machine | None = None, rules: Rules | None = None) -> Iterator[Registry]:
    """A registry that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        store = sqlite_with_tables(Path(folder) / "ledger.db")
        with registry_on(store, Path(folder), machine, rules) as made:
            yield made


def add_namespace(registry: Registry, prefix: str, profile: str | Policy = "free", *values: Value) -> None:
    """Create a namespace whose prefix handle has the given values."""
    policy = PROFILES[profile] if isinstance(profile, str) else profile
    registry.do(AddNamespace(prefix, policy, values), OPERATOR, "cli")


def decide(registry: Registry, command: Command[object], identity: Identity = OPERATOR) -> Append | Execute:
    """The request of a command to the ledger, which is not sent."""
    request = Execution(registry, command, identity, "cli", "", {}, "", None).decide()
    assert request is not None
    return request


def authenticated(registry: Registry, text: str) -> TokenIdentity:
    """The identity of a caller with a token; raises `Refused`."""
    with registry.snapshot() as snapshot:
        return authenticate(snapshot, Secret.parse(text), registry.now())

"""Fixtures for tokens: a namespace with two administrators whose keys are stored here, and their tokens."""

import secrets
from collections.abc import Iterable

from perseid.records.admin import AdminPermission
from perseid.records.record import Permission, Value
from perseid.registry.access.authorization import Settings
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken
from perseid.registry.commands.records import Create
from perseid.registry.identity import Identity, TokenIdentity
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.schema.namespaces import Scope
from tests.registry.administration import ref
from tests.registry.registries import OPERATOR, add_namespace, admin, authenticated, handle, key_holder

ANN = key_holder(300, "0.NA/12345")
"""Administers the namespace and its records."""
BEA = key_holder(301, "0.NA/12345")
"""Can change the administrators of the namespace, and nothing else."""
SERVER = key_holder(300, "0.NA/0.NA")
"""Local user on the server."""

RULES = Rules(Settings(server_admins=(ref("300:0.NA/0.NA"),), server_admin_full_access=True))


def key(index: int, data: str = "a secret") -> Value:
    return Value(index, "HS_SECKEY", data.encode(), permissions=Permission(0x0C))


def furnish(registry: Registry) -> None:
    """Two namespaces, and the keys of their administrators."""
    prefix_values = (
        admin(100, "300:0.NA/12345"),
        admin(101, "301:0.NA/12345", AdminPermission.MODIFY_ADMIN),
        key(300),
        key(301),
    )
    add_namespace(registry, "12345", "free", *prefix_values)
    add_namespace(registry, "20.500", "free", admin(100, "300:0.NA/12345"))
    registry.do(Create(handle("0.NA/0.NA"), (key(300, "root"),)), OPERATOR, "cli")


def movable(registry: Registry, count: int) -> None:
    """Handles owned by Ann with an old URL."""
    for number in range(count):
        values = (Value.text(1, "URL", f"http://old.example/{number}"), admin(100, "300:0.NA/12345"))
        registry.do(Create(handle(f"12345/{number}"), values), OPERATOR, "cli")


def scope(*scopes: str | Scope, where: Iterable[str] | None = ("12345",)) -> ScopeSet:
    return ScopeSet.of(scopes or tuple(Scope), where)


def make(
    registry: Registry, identity: Identity, limits: ScopeSet | None = None, *, label: str = "", days: float = 90
) -> Secret:
    """A token issued by an identity."""
    secret = Secret.new(secrets.token_bytes)
    registry.do(CreateToken(secret, limits or scope("read"), label, int(days * 86_400)), identity, "cli")
    return secret


def shown(registry: Registry, identity: Identity, limits: ScopeSet | None = None) -> TokenIdentity:
    """The identity of a new token."""
    return authenticated(registry, make(registry, identity, limits).text())

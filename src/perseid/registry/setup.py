"""The first steps of an installation: its root, its first administrator, a namespace, the creator of its identifiers.

The first administrator is laid out as deployed tools do it, on the prefix handle that it administers:

    100  HS_ADMIN   200:0.NA/12345   whoever is in the group has all permissions
    200  HS_VLIST   300:0.NA/12345   the group: one key, and room for more
    300  HS_SECKEY                   the key, readable by administrators

New records of the namespace name the group, so who administers them is changed in one place.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.admin import Admin, ValueList
from perseid.records.types import HS_ADMIN, HS_SECKEY, HS_VLIST
from perseid.records.value import Permission, Value, ValueRef
from perseid.registry.commands.create_namespace import MakeNamespace
from perseid.registry.commands.minting import PATIENCE, Maker, patiently
from perseid.registry.commands.namespaces import AddNamespace, Namespace
from perseid.registry.commands.records import Create, Home
from perseid.registry.policy.policy import PREFIX_MARK, Policy

from .identity import Identity
from .registry import Registry

ADMIN_INDEX: Final = 100
GROUP_INDEX: Final = 200
KEY_INDEX: Final = 300

SECRET_OCTETS: Final = 32
"""Of randomness in a secret: as many as no one will ever guess."""

GROUP: Final = f"{GROUP_INDEX}:{PREFIX_OF_PREFIXES}/{PREFIX_MARK}"
"""The administrators of new records, as a policy names them: the group on the prefix handle."""

_HIDDEN: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE


def new_secret() -> str:
    """A secret that can be typed and pasted: a text, because the clients that are in use ask for one."""
    return secrets.token_urlsafe(SECRET_OCTETS)


def key_of(prefix: str) -> ValueRef:
    """How the first administrator identifies themselves."""
    return ValueRef(KEY_INDEX, f"{PREFIX_OF_PREFIXES}/{prefix}")


def administered_by(prefix: str, members: Sequence[ValueRef], secret: str | None = None) -> tuple[Value, ...]:
    """The values of a prefix handle whose administrators are these, and with a secret the key of the first one."""
    group = ValueRef(GROUP_INDEX, f"{PREFIX_OF_PREFIXES}/{prefix}")
    values = [Value(ADMIN_INDEX, HS_ADMIN, Admin(group).to_bytes())]
    values.append(Value(GROUP_INDEX, HS_VLIST, ValueList(tuple(members)).to_bytes()))
    if secret is not None:
        values.append(Value(KEY_INDEX, HS_SECKEY, secret.encode(), permissions=_HIDDEN))
    return tuple(values)


def make_root(registry: Registry, who: Identity, door: str, secret: str | None = None) -> None:
    """Make an installation its own root: it serves the prefix handles of its namespaces.

    With a secret the root has the first administrator; otherwise a namespace has it.
    """
    registry.do(Home(f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}"), who, door)
    if secret is not None:
        values = administered_by(PREFIX_OF_PREFIXES, (key_of(PREFIX_OF_PREFIXES),), secret)
        registry.do(Create(Handle(PREFIX_OF_PREFIXES, PREFIX_OF_PREFIXES), values), who, door)


def add_namespace(
    registry: Registry, namespace: AddNamespace, who: Identity, door: str, note: str = "", patience: float = PATIENCE
) -> Namespace:
    """Make a namespace with all that it needs, in one commit: see `founding`.

    Where the creator's name has to wait for the clock this waits, up to so many seconds; then it raises `MustWait`.
    """
    maker = Maker.of(registry)
    return patiently(lambda since: registry.do(MakeNamespace(maker, namespace, since), who, door, note), None, patience)


def with_group(policy: Policy) -> Policy:
    """A policy whose new records are administered by the group on the prefix handle, unless it says by whom."""
    return policy if policy.default_administrators else replace(policy, default_administrators=(GROUP,))

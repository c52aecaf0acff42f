"""The first steps of an installation: its root, its first administrator, a namespace, the creator of its identifiers.

The first administrator is laid out as deployed tools do it, on the prefix handle that it administers:

    100  HS_ADMIN   200:0.NA/12345   whoever is in the group has all permissions
    200  HS_VLIST   300:0.NA/12345   the group: one key, and room for more
    300  HS_SECKEY                   the key, readable by administrators

New records of the namespace name the group, so who administers them is changed in one place.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perseid.ledger.entry import Action
from perseid.names import Handle
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records import Admin, ValueList
from perseid.records.types import HS_ADMIN, HS_SECKEY, HS_VLIST
from perseid.records.value import Permission, Value, ValueRef
from perseid.wire.codes import ResponseCode

from .compose import compose
from .context import Context, Plan
from .demands import Demand, Membership, Role, shown
from .identity import Identity
from .minting import Maker, Mint, mint
from .namespaces import AddNamespace, Namespace, SetPolicy, checked_prefix
from .operations import Create, Home
from .policy import PREFIX_MARK, Policy
from .registry import Registry
from .results import Changed, Refused
from .scopes import Reach, Word

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


@dataclass(frozen=True, slots=True)
class KeepPrefixHandle:
    """Keep a copy of a prefix handle that another service serves: it counts for authorisation and is never served."""

    prefix: str
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[Changed]:
        """Server administrators; nothing happens if there is a copy already."""
        checked_prefix(self.prefix)
        action, servers = f"keep a copy of {self.prefix}", Membership((Role.SERVER,))
        context.demand(Demand(action, ((servers,),), reach=Reach.under(self.prefix, Word.NAMESPACES)))
        handle = Handle(PREFIX_OF_PREFIXES, self.prefix)
        if context.facts.is_responsible(handle):
            reason = f"{shown(handle)} is served here, so there is no copy of it to keep"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "make the namespace")
        held = context.facts.held(handle)
        if held.entry is not None:
            return Plan(lambda _: Changed(held.handle, held.seq), reason=context.reasons[-1])
        draft = context.draft(held, Action.CREATE, compose(context, held, self.values, creates=True))
        return Plan(lambda seq: Changed(held.handle, seq), (draft,), reason=context.reasons[-1])


def add_namespace(
    registry: Registry, namespace: AddNamespace, who: Identity, door: str, *, is_root: bool = True
) -> Namespace:
    """Make a namespace, with a copy of its prefix handle where another service serves that.

    Where the policy asks for a creator and names none, one is minted: a record that names itself (A4).
    """
    if not is_root:
        registry.do(KeepPrefixHandle(namespace.prefix, namespace.values), who, door)
    made = registry.do(namespace, who, door)
    if not made.policy.authority or made.policy.default_creator:
        return made
    creator = mint_creator(registry, made, who, door)
    named = registry.do(SetPolicy(made.prefix, replace(made.policy, default_creator=str(creator))), who, door)
    return replace(named, types_elsewhere=made.types_elsewhere)


def mint_creator(registry: Registry, namespace: Namespace, who: Identity, door: str) -> Handle:
    """Make the record that stands for the creator of a namespace's identifiers, and names itself as its creator."""
    return next(mint(registry, creator_order(registry, namespace), who, door)).handles[0]


def creator_order(registry: Registry, namespace: Namespace, since: int | None = None) -> Mint:
    """The order for the record that stands for the creator; `since` is as in `Mint`."""
    text = f"The creator of identifiers under {namespace.prefix}"

    def values(handle: Handle, _: int) -> Sequence[Value]:
        return (Value.text(1, "DESC", text), Value.text(2, namespace.policy.creator_type, str(handle)))

    return Mint(Maker.of(registry), namespace.prefix, values=values, since=since)


def with_group(policy: Policy) -> Policy:
    """A policy whose new records are administered by the group on the prefix handle, unless it says by whom."""
    return policy if policy.default_administrators else replace(policy, default_administrators=(GROUP,))

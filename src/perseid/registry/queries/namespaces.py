"""Namespaces as interfaces show them: policies and changes to them, types, and new handles.

The suffixes of a namespace follow its scheme, such as PILIN (P1–P7). Three ways to get a new handle differ in what is
stored:

    mint       a record: the handle resolves at once
    reserve    a record that only names the owner: the handle does not resolve yet (S1)
    generate   a durable lease and no record: this service never issues the handle again (P6)

All three are commands of `commands.minting` and require the same permission (S13): the policy's `who_may_mint`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import msgspec

from perseid.ledger.log.entry import State
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.records.admin import Admin
from perseid.records.data_types import interpret_as
from perseid.records.encoding import JsonObject
from perseid.records.record import Value, ValueRef
from perseid.records.types import DEFINITION
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.composition import mint_requirement
from perseid.registry.commands.minting import Generate, Mint
from perseid.registry.commands.namespaces import (
    Namespace,
    SetPolicy,
    homed_prefixes,
    namespaces,
    require_policy_change,
)
from perseid.registry.context import Context, Deferrable, Plan, Stage, defer, not_found
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.policy.authority import find_built_in_definition
from perseid.registry.policy.policy import CUSTOM_PROFILE, KEYS, Policy
from perseid.registry.policy.text import parse
from perseid.registry.policy.types import RegisteredType, get_registered_type
from perseid.registry.results import Refused
from perseid.registry.snapshot import SITE_PREFIX, Snapshot
from perseid.wire.codes import ResponseCode

from .find import Search, find
from .listing import list_handles, list_homed, listing_requirement

SUMMARY: Final = (
    "profile",
    "purpose",
    "scheme",
    "case",
    "who_may_mint",
    "who_may_list",
    "retired",
    "authority",
    "deletion",
)
"""The policy keys that say most about a namespace."""

_OWN_KEYS: Final = ("purpose", "retired", "default_creator", "default_administrators")
"""Keys that no profile sets: they survive a change of profile."""


RETIRED: Final = "retired = true\n"
"""The change of the policy that retires a namespace."""


def get_policy(snapshot: Snapshot, prefix: str) -> Policy:
    """Return the policy of a namespace that exists here; raises `Refused`."""
    has_own = snapshot.policy_entry(prefix) is not None
    if not has_own and (not prefix or "/" in prefix or not snapshot.hosts_prefix(prefix)):
        reason = f"Namespace {display_name(prefix)} not found"
        raise Refused(ResponseCode.SERVER_NOT_RESP, reason, AdviceKind.LIST_NAMESPACES())
    return snapshot.policy(prefix)


def list_prefixes(snapshot: Snapshot, identity: Identity) -> list[str]:
    """Return all hosted prefixes, sorted. Raises `Refused`."""
    homed = [name.removeprefix(f"{PREFIX_OF_PREFIXES}/") for name in list_homed(snapshot, identity)]
    found = {fold(prefix): prefix for prefix in homed if "/" not in prefix and fold(prefix) != PREFIX_OF_PREFIXES}
    found |= {fold(prefix): prefix for prefix in namespaces(snapshot.reader)}
    return [found[key] for key in sorted(found)]


MAX_CHECKED: Final = 1_000
"""Namespaces that are checked for one list of a caller's own: some 50 µs each."""


def list_own_prefixes(context: Context, after: str = "") -> tuple[list[str], str | None]:
    """Return prefixes under which the caller can create or list handles as an administrator, sorted.

    The list begins after the folded prefix `after`; at most `MAX_CHECKED` are checked, and the last of these is
    returned too if there are more.
    """
    snapshot = context.snapshot
    homed = [name.removeprefix(f"{PREFIX_OF_PREFIXES}/") for name in homed_prefixes(snapshot.reader)]
    found = {fold(prefix): prefix for prefix in homed if "/" not in prefix and fold(prefix) != PREFIX_OF_PREFIXES}
    found |= {fold(prefix): prefix for prefix in namespaces(snapshot.reader)}
    candidates = [key for key in sorted(found) if key > after and key != SITE_PREFIX]
    checked = candidates[:MAX_CHECKED]
    own = [found[key] for key in checked if _can_work_in(context, found[key])]
    return own, checked[-1] if len(candidates) > len(checked) else None


def _can_work_in(context: Context, prefix: str) -> bool:
    if isinstance(context.identity, Anonymous):
        return False
    try:
        requirement = mint_requirement(context.snapshot.policy(prefix), prefix)
    except Refused:
        return False  # the policy of the namespace is invalid
    return context.is_allowed(requirement) or context.is_allowed(listing_requirement(prefix))


def get_type(snapshot: Snapshot, handle: Handle) -> RegisteredType:
    """Return the type that a public record defines, or the copy of one that another service hosts. Raises `Refused`."""
    copy = find_built_in_definition(handle)
    if copy is not None and not snapshot.is_responsible(handle):
        return RegisteredType(copy.handle or handle, 0, copy.text, copy.definition, is_copy=True)
    stored = snapshot.stored(handle)
    if not stored.is_public:
        raise not_found(stored)
    registered = get_registered_type(stored)
    if registered is None:
        reason = f"{display_name(handle)} is not a type: its record has no value of type PERSEID_TYPE or DESC"
        raise Refused(ResponseCode.VALUES_NOT_FOUND, reason)
    return registered


def list_types(
    snapshot: Snapshot, identity: Identity, prefix: str, after: str | None, limit: int
) -> tuple[list[RegisteredType], str | None]:
    """Return a page of the types of a prefix, or of all, and its cursor. Raises `Refused`."""
    bare = fold(prefix).removeprefix(f"{PREFIX_OF_PREFIXES}/")
    if prefix:
        list_handles(snapshot, identity, prefix, limit=1)  # requires permission to list
    # There are fewer types than handles, so search by type, not by prefix.
    page = find(snapshot, identity, Search(type=f"{DEFINITION}."), after, limit)
    handles = [Handle.parse_lenient(item.handle) for item in page.items if item.state is State.NORMAL]
    found = [get_registered_type(snapshot.stored(each)) for each in handles if not bare or fold(each.prefix) == bare]
    types = [each for each in found if each is not None and (each.definition is not None or each.problem)]
    return types, page.following


def find_administrators(snapshot: Snapshot, prefix: str, *, public_only: bool = False) -> list[ValueRef]:
    """Return the administrators that a prefix handle names, or only the public ones."""
    if public_only and not snapshot.stored(Handle(PREFIX_OF_PREFIXES, prefix)).is_public:
        return []
    values = snapshot.values(f"{PREFIX_OF_PREFIXES}/{prefix}") or ()
    admins = [interpret_as(value, Admin) for value in values if value.is_public or not public_only]
    return [admin.administrator for admin in admins if admin is not None]


def summarize(snapshot: Snapshot, prefix: str) -> JsonObject:
    """Return a short description of a namespace, with its public administrators."""
    rules = snapshot.policy(prefix)
    plain = {key: value for key, value in dump_policy(rules).items() if key in SUMMARY}
    administrators = [str(reference) for reference in find_administrators(snapshot, prefix, public_only=True)]
    return {"prefix": prefix, **plain, "creator": rules.default_creator or None, "administrators": administrators}


def dump_policy(rules: Policy) -> JsonObject:
    """Return all policy keys as plain values."""
    plain: JsonObject = msgspec.to_builtins(rules)
    return plain


def apply_policy_text(before: Policy, text: str) -> Policy:
    """Apply a text to a policy: single rules, or a profile with changes. Raises `InvalidPolicy`."""
    rules = parse(text, KEYS)
    if "profile" not in rules:
        return Policy.from_toml(text, {CUSTOM_PROFILE: before}, before)
    own: dict[str, Any] = {key: getattr(before, key) for key in _OWN_KEYS if key not in rules}
    return replace(Policy.from_toml(text, before=before), **own)


def changed_keys(before: Policy, after: Policy) -> list[str]:
    """Return the keys in which two policies differ."""
    return [key for key in KEYS if getattr(before, key) != getattr(after, key)]


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """The result of changing a policy."""

    made: Namespace
    changed: tuple[str, ...]
    """The changed keys."""


@dataclass(frozen=True, slots=True)
class ChangePolicy(Deferrable):
    """Change the policy of a namespace by a text: see `apply_policy_text`."""

    prefix: str
    text: str
    change_case: bool = False

    def decide(self, context: Context) -> Plan[PolicyChange]:
        """Like `SetPolicy`, applied to the policy at commit. Raises `InvalidPolicy` too.

        The text is parsed only for users who can change the policy.
        """
        if context.stage is not Stage.COMMIT:
            return defer(self)
        before = get_policy(context.snapshot, self.prefix)
        require_policy_change(context, self.prefix)
        after = apply_policy_text(before, self.text)
        plan = SetPolicy(self.prefix, after, self.change_case).decide(context)
        changed = tuple(changed_keys(before, after))
        return plan.map(lambda namespace: PolicyChange(namespace, changed))


class MintMode(Enum):
    """How new handles are made."""

    MINT = "mint"
    RESERVE = "reserve"
    GENERATE = "generate"


def build_command(  # noqa: PLR0913 - the attributes of all commands
    mode: MintMode,
    where: str,
    count: int = 1,
    *,
    values: Iterable[Value] = (),
    each: tuple[tuple[Value, ...], ...] = (),
    metadata: tuple[Value, ...] | None = None,
    published: bool = True,
    owner: ValueRef | None = None,
    since: int | None = None,
) -> Generate:
    """Return the command for `minting.mint`, or for `Registry.do` up to `MAX_NAMES`.

    The other parameters are attributes of the command. Values require `mint`, and an owner requires a record. Raises
    `Refused`.
    """
    values = tuple(values)
    if values and mode is not MintMode.MINT:
        reason = "A reserved or generated handle has no values"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.MINT_INSTEAD(), "S1")
    if mode is MintMode.GENERATE:
        if owner is not None:
            reason = "A generated handle has no record, so it has no owner"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.RESERVE_INSTEAD(), "S1")
        return Generate(where, count, since=since)
    return Mint(
        where,
        count,
        since=since,
        values=values,
        each=each,
        metadata=metadata,
        reserve=mode is MintMode.RESERVE,
        published=published,
        owner=owner,
    )

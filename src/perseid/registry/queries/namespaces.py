"""Namespaces as doors show them: which there are, what each is in a few words, and what a text makes of its policy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from perseid.ledger.log.record_keys import policy_name, record_key
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import JsonObject
from perseid.records.types import HS_ADMIN, has_type
from perseid.records.value import ValueRef
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.namespaces import Namespace, SetPolicy, namespaces, require_policy_change
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.policy.keys import KEYS
from perseid.registry.policy.policy import CUSTOM_PROFILE, Policy
from perseid.registry.policy.text import parse
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .listing import list_homed

SUMMARY: Final = ("profile", "purpose", "scheme", "case", "who_may_mint", "who_may_list", "authority", "deletion")
"""The rules that say most about a namespace."""

_OWN_KEYS: Final = ("purpose", "default_creator", "default_administrators")
"""What a namespace has that no profile has: changing to another profile leaves it."""


def get_policy(snapshot: Snapshot, prefix: str) -> Policy:
    """The policy of a namespace that is here; raises `Refused`."""
    has_own = snapshot.entry(record_key(policy_name(prefix))) is not None
    if not has_own and (not prefix or "/" in prefix or not snapshot.is_responsible(Handle(prefix, "…"))):
        reason = f"there is no namespace {display_name(prefix)} here"
        raise Refused(ResponseCode.SERVER_NOT_RESP, reason, "perseid namespace list shows those there are")
    return snapshot.policy(prefix)


def list_prefixes(snapshot: Snapshot, identity: Identity) -> Iterator[str]:
    """The prefixes with a policy of their own, then those that are homed without one. Raises `Refused`."""
    homed = list_homed(snapshot, identity)
    seen = set()
    for prefix in namespaces(snapshot.reading):
        seen.add(fold(prefix))
        yield prefix
    for name in homed:
        prefix = name.removeprefix(f"{PREFIX_OF_PREFIXES}/")
        if "/" not in prefix and fold(prefix) not in seen | {PREFIX_OF_PREFIXES}:
            yield prefix


def find_administrators(snapshot: Snapshot, prefix: str, *, public_only: bool = False) -> list[ValueRef]:
    """Whom a prefix handle names as administrators; or those only that everybody may read there."""
    found = []
    if public_only and not snapshot.stored(Handle(PREFIX_OF_PREFIXES, prefix)).is_public:
        return []
    for value in snapshot.values(f"{PREFIX_OF_PREFIXES}/{prefix}") or ():
        if has_type(value.type, HS_ADMIN) and (value.is_public or not public_only):
            try:
                found.append(Admin.from_bytes(value.data).administrator)
            except InvalidData:
                continue
    return found


def summarize(snapshot: Snapshot, prefix: str, *, public_only: bool = False) -> JsonObject:
    """What a namespace is, in a few words; its administrators as in `administrators_of`."""
    rules = snapshot.policy(prefix)
    plain = {key: KEYS[key].kind.plain(getattr(rules, key)) for key in SUMMARY}
    administrators = [str(reference) for reference in find_administrators(snapshot, prefix, public_only=public_only)]
    return {"prefix": prefix, **plain, "creator": rules.default_creator or None, "administrators": administrators}


def dump_policy(rules: Policy) -> JsonObject:
    """All the rules of a policy, as plain values by their keys."""
    return {key: each.kind.plain(getattr(rules, key)) for key, each in KEYS.items()}


def apply_policy_text(before: Policy, text: str) -> Policy:
    """What a policy becomes by a text: the rules that it has, or a profile with them. Raises `InvalidPolicy`."""
    given = parse(text, KEYS)
    if "profile" not in given:
        return Policy.from_toml(text, {CUSTOM_PROFILE: before})
    kept: dict[str, Any] = {key: getattr(before, key) for key in _OWN_KEYS if key not in given}
    return replace(Policy.from_toml(text), **kept)


def changed_keys(before: Policy, after: Policy) -> list[str]:
    """The keys that two policies differ in."""
    return [key for key in KEYS if getattr(before, key) != getattr(after, key)]


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What a text has made of the policy of a namespace."""

    made: Namespace
    changed: tuple[str, ...]
    """The keys that are others now."""


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """Change the rules of a namespace that a text has: see `changed_by`."""

    prefix: str
    text: str
    change_case: bool = False

    def decide(self, context: Context) -> Plan[PolicyChange]:
        """As for `SetPolicy`, on the policy that counts at that moment. Raises `InvalidPolicy` too.

        The text is read for those who may change the policy, and for nobody else.
        """
        before = get_policy(context.snapshot, self.prefix)
        require_policy_change(context, self.prefix)
        after = apply_policy_text(before, self.text)
        plan = SetPolicy(self.prefix, after, self.change_case).decide(context)
        changed = tuple(changed_keys(before, after))
        return Plan(
            lambda seq: PolicyChange(plan.answer(seq), changed), plan.drafts, plan.make, plan.reason, plan.redactions
        )

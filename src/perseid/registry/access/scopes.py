"""Scopes of bearer tokens: what a token can do, and in which namespaces.

A token acts as its issuer; its scope only restricts. Every requirement names its scopes and its namespace
(`Requirement.required_scope`), and a token meets it only if it has all of these scopes there. No token meets a
requirement without scopes: so it is with new commands, and with creating tokens.

    read        private values, unpublished handles, and the history as administrators see it
    find        the handles of a namespace: list, find, log
    mint        mint, reserve and generate handles
    create      create a record under a chosen or a reserved handle
    update      add, change and remove values; link; rewrite
    publish     publish and unpublish
    tombstone   replace a record by a tombstone, and undo that
    delete      delete records
    transfer    change who administers: transfer, and all changes of administrators, groups and keys in records
    namespaces  create namespaces, set their policies, home prefixes, change prefix handles
    admin       what requires a server administrator: read the whole ledger, redact, status, backups

`update` and `transfer` are separate because somebody who finds a token with `transfer` could give themselves
permissions that outlive it. The administrators of a new record are part of creating it. A job needs the scopes of its
single changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.prefixes import check_prefix_syntax, is_derived
from perseid.records.record import Value
from perseid.records.types import HS_ADMIN, HS_PUBKEY, HS_SECKEY, HS_VLIST, has_type
from perseid.schema.namespaces import MAX_NAMESPACES, SCOPES, Scope

DERIVED_SUFFIX: Final = ".*"
"""After a prefix in a scope: all prefixes derived from it, without itself."""

_ACCESS_TYPES: Final = (HS_ADMIN, HS_VLIST, HS_PUBKEY, HS_SECKEY)


READ_SCOPES: Final = frozenset((Scope.READ, Scope.FIND))
"""The scopes that change nothing. A token can read public data without them."""


class InvalidScope(ValueError):
    """An invalid scope; the message says how to fix it."""


@dataclass(frozen=True, slots=True)
class RequiredScope:
    """The scopes that a requirement needs, and the namespace."""

    scopes: frozenset[Scope] = frozenset()
    """All of them are needed. If empty, no token is allowed."""
    prefix: str = ""
    """The namespace; empty for the server as a whole."""

    @classmethod
    def of(cls, handle: Handle, *scopes: Scope) -> Self:
        """For a record. A prefix handle belongs to its namespace, and changing it needs the scope `namespaces`."""
        if not handle.is_prefix_handle:
            return cls(frozenset(scopes), handle.prefix)
        kept = [scope for scope in scopes if scope in (Scope.READ, Scope.TRANSFER, Scope.ADMIN)]
        return cls(frozenset(kept if Scope.READ in kept else (*kept, Scope.NAMESPACES)), handle.suffix)

    @classmethod
    def for_namespace(cls, prefix: str, *scopes: Scope) -> Self:
        """For a namespace as a whole."""
        return cls(frozenset(scopes), prefix)

    @classmethod
    def for_server(cls, *scopes: Scope) -> Self:
        """For the server as a whole, which needs a scope for all namespaces."""
        return cls(frozenset(scopes))

    @property
    def is_read_only(self) -> bool:
        """Whether the scopes change nothing."""
        return bool(self.scopes) and self.scopes <= READ_SCOPES


NO_TOKEN: Final = RequiredScope()
"""For what no token can do."""


@dataclass(frozen=True, slots=True)
class ScopeSet:
    """Scopes and namespaces of a token. Use `ScopeSet.of`, which validates both."""

    scopes: frozenset[Scope]
    namespaces: tuple[str, ...] | None = field(default=None)
    """Folded prefixes, in order; `12345.*` means those derived from 12345. None for all namespaces."""

    @classmethod
    def of(cls, scopes: Iterable[str | Scope], namespaces: Iterable[str] | None) -> Self:
        """Parse scopes and prefixes; raises `InvalidScope`."""
        parsed = frozenset(map(_parse_scope, scopes))
        if not parsed:
            raise InvalidScope(f"A token needs at least one scope: {', '.join(SCOPES)}")
        if namespaces is None:
            return cls(parsed)
        allowed = tuple(sorted({_check_prefix(prefix) for prefix in namespaces}))
        if not allowed:
            raise InvalidScope("A token needs at least one namespace. Name one, or choose all namespaces")
        if len(allowed) > MAX_NAMESPACES:
            raise InvalidScope(f"A token can have at most {MAX_NAMESPACES} namespaces; this one has {len(allowed):,}")
        if Scope.ADMIN in parsed:
            raise InvalidScope("The scope admin applies to the whole server. Remove it, or choose all namespaces")
        return cls(parsed, allowed)

    def includes_namespace(self, prefix: str) -> bool:
        """Whether a namespace is included; the empty prefix means the server as a whole."""
        if self.namespaces is None:
            return True
        prefix = fold(prefix)
        for allowed in self.namespaces:
            above = allowed.removesuffix(DERIVED_SUFFIX)
            if prefix == allowed or (above != allowed and is_derived(prefix, above)):
                return True
        return False

    def describe_missing(self, required_scope: RequiredScope) -> str:
        """What is missing for a requirement, for people; empty if nothing is."""
        if not required_scope.scopes:
            return "tokens cannot do this"
        if missing := [scope.value for scope in Scope if scope in required_scope.scopes - self.scopes]:
            return f"its scopes do not include {', '.join(missing)}"
        if not self.includes_namespace(required_scope.prefix):
            return f"it is limited to {', '.join(self.namespaces or ())}"
        return ""

    @property
    def namespaces_text(self) -> str:
        """The namespaces, for people."""
        return "all namespaces" if self.namespaces is None else ", ".join(self.namespaces)

    @property
    def scope_names(self) -> list[str]:
        """The scopes, in the order of `Scope`."""
        return [scope.value for scope in Scope if scope in self.scopes]


def controls_access(value: Value) -> bool:
    """Whether a value controls permissions: administrators, groups and keys."""
    return any(has_type(value.type, type_) for type_ in _ACCESS_TYPES)


def scopes_for(values: Iterable[Value]) -> tuple[Scope, ...]:
    """The scopes that changing these values needs; at least one."""
    scopes = {Scope.TRANSFER if controls_access(value) else Scope.UPDATE for value in values}
    return tuple(scopes) or (Scope.UPDATE,)


def _parse_scope(text: str | Scope) -> Scope:
    if isinstance(text, Scope):
        return text
    try:
        return Scope(text)
    except ValueError:
        raise InvalidScope(f"{text[:40]!r} is not a scope. Scopes: {', '.join(SCOPES)}") from None


def _check_prefix(prefix: str) -> str:
    """Return a folded prefix of a scope; raises `InvalidScope`."""
    try:
        check_prefix_syntax(prefix.removesuffix(DERIVED_SUFFIX))
    except InvalidName as problem:
        raise InvalidScope(
            f"{problem}. Write a prefix, or a prefix with {DERIVED_SUFFIX} for those derived from it"
        ) from problem
    return fold(prefix)

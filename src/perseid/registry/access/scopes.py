"""What a bearer token is good for: which words, in which namespaces.

A token acts as whoever made it, and a scope takes from that; it never adds. Every demand of an operation says what it
reaches (`Demand.reach`): the words that it takes, and where. A token meets a demand only if its scope has all of these
words, in that place. A demand that says nothing is met by no token: so it is with what is new, and with making tokens.

    read        private values, names that are not published, and the history as administrators see it
    find        the names of a namespace: list, find, log
    mint        make, reserve and generate names
    create      make a record under a chosen name, or under a reserved one
    update      add, change and remove values; link; rewrite
    publish     publish and unpublish
    tombstone   put a tombstone on a record, and take it away
    delete      delete records
    transfer    change who administers: hand over, and all changes of administrators, groups and keys in records
    namespaces  make namespaces, set their policies, home prefixes, change prefix handles
    admin       what takes a server administrator: see the whole ledger, erase, ask for status and backups

Changing values and changing who administers are two words, because with the second one somebody who has found a token
could make themselves a right that outlives it. Administrators that a new record is made with are part of making it.
A change of many records takes the words of its single changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.types import HS_ADMIN, HS_PUBKEY, HS_SECKEY, HS_VLIST, has_type
from perseid.records.value import Value

MAX_NAMESPACES: Final = 100
"""Namespaces that one scope names. Who needs more means all of them, or should have several tokens."""

DERIVED_SUFFIX: Final = ".*"
"""Behind a prefix in a scope: all prefixes that are derived from it, and not itself."""

_ACCESS_TYPES: Final = (HS_ADMIN, HS_VLIST, HS_PUBKEY, HS_SECKEY)


class Scope(Enum):
    """What a token may be good for."""

    READ = "read"
    FIND = "find"
    MINT = "mint"
    CREATE = "create"
    UPDATE = "update"
    PUBLISH = "publish"
    TOMBSTONE = "tombstone"
    DELETE = "delete"
    TRANSFER = "transfer"
    NAMESPACES = "namespaces"
    ADMIN = "admin"


READ_SCOPES: Final = frozenset((Scope.READ, Scope.FIND))
"""The words that change nothing. What everybody may see, a token may see without them."""


class InvalidScope(ValueError):
    """A scope that no token can have; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RequiredScope:
    """What somebody would do with a right: the words that it takes, and where."""

    scopes: frozenset[Scope] = frozenset()
    """All of them are needed. None at all: no token can do it."""
    prefix: str = ""
    """The namespace; empty for the server as a whole."""

    @classmethod
    def of(cls, handle: Handle, *scopes: Scope) -> Self:
        """For a record. Prefix handles belong to their namespaces, and only their word reaches them."""
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
        """For the server as a whole: it takes a scope without limits."""
        return cls(frozenset(scopes))

    @property
    def is_read_only(self) -> bool:
        """Whether nothing is changed."""
        return bool(self.scopes) and self.scopes <= READ_SCOPES


NO_TOKEN: Final = RequiredScope()
"""For what no token can do."""


@dataclass(frozen=True, slots=True)
class ScopeSet:
    """Words and namespaces. Made by `Scope.of`, which checks both."""

    scopes: frozenset[Scope]
    namespaces: tuple[str, ...] | None = field(default=None)
    """Prefixes with folded letters, in order; `12345.*` means those derived from 12345. None for all there are."""

    @classmethod
    def of(cls, scopes: Iterable[str | Scope], namespaces: Iterable[str] | None) -> Self:
        """A scope of words and prefixes as people write them; raises `InvalidScope`."""
        found = frozenset(map(_parse_scope, scopes))
        if not found:
            raise InvalidScope(f"a token that may do nothing is of no use; name some of: {', '.join(SCOPES)}")
        if namespaces is None:
            return cls(found)
        places = tuple(sorted({_check_prefix(prefix) for prefix in namespaces}))
        if not places:
            raise InvalidScope("a token that is good nowhere is of no use; name a namespace, or all of them")
        if len(places) > MAX_NAMESPACES:
            raise InvalidScope(f"{len(places):,} namespaces are too many for one token; {MAX_NAMESPACES} are the most")
        if Scope.ADMIN in found:
            raise InvalidScope("admin is about the server as a whole: leave it out, or name no namespaces")
        return cls(found, places)

    def includes_namespace(self, prefix: str) -> bool:
        """Whether a namespace is one of those, or the server as a whole (empty) if there is no limit."""
        if self.namespaces is None:
            return True
        place = fold(prefix)
        for allowed in self.namespaces:
            above = allowed.removesuffix(DERIVED_SUFFIX)
            if place == allowed or (above != allowed and prefixes.is_derived(place, above)):
                return True
        return False

    def describe_missing(self, required_scope: RequiredScope) -> str:
        """What is missing for something, for people; empty if nothing is."""
        if not required_scope.scopes:
            return "no token can do that"
        if missing := [scope.value for scope in Scope if scope in required_scope.scopes - self.scopes]:
            return f"its scope does not have the word {' nor the scope '.join(missing)}"
        if not self.includes_namespace(required_scope.prefix):
            return f"its scope is limited to {', '.join(self.namespaces or ())}"
        return ""

    @property
    def places(self) -> str:
        """The namespaces, for people."""
        return "all namespaces" if self.namespaces is None else ", ".join(self.namespaces)

    @property
    def may(self) -> list[str]:
        """The words, in their order."""
        return [scope.value for scope in Scope if scope in self.scopes]


SCOPES: Final = tuple([scope.value for scope in Scope])
"""All words, as people write them."""


def controls_access(value: Value) -> bool:
    """Whether a value says who may do what: administrators, groups and keys."""
    return any(has_type(value.type, type_) for type_ in _ACCESS_TYPES)


def scopes_for(values: Iterable[Value]) -> tuple[Scope, ...]:
    """The words that changing these values takes; one at least."""
    found = {Scope.TRANSFER if controls_access(value) else Scope.UPDATE for value in values}
    return tuple(found) or (Scope.UPDATE,)


def _parse_scope(text: str | Scope) -> Scope:
    if isinstance(text, Scope):
        return text
    try:
        return Scope(text)
    except ValueError:
        raise InvalidScope(f"{text[:40]!r} is no word of a scope; they are: {', '.join(SCOPES)}") from None


def _check_prefix(prefix: str) -> str:
    """A prefix of a scope, with folded letters."""
    try:
        prefixes.check_prefix(prefix.removesuffix(DERIVED_SUFFIX))
    except InvalidName as problem:
        raise InvalidScope(
            f"{problem}; write a prefix, or a prefix and {DERIVED_SUFFIX} for those derived from it"
        ) from problem
    return fold(prefix)

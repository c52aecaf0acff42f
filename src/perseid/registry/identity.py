"""Identities of callers: anonymous, the holder of a key, a local system user, or a bearer token.

A key is written `INDEX:HANDLE`, and so is its holder. Records name administrators in the same form. The two are
compared by rules of the deployed system that are stricter than those for handles:

- In the handle only the prefix folds (ASCII letters), or everything if it begins with `0.`: `12345/ADMIN` and
  `12345/admin` are two administrators even where they are one record.
- A reference with index 0 means every key of that handle.
- An identity with index 0 ("any of my keys") matches only such a reference. Within a session it also matches a
  reference to the key that verified it; outside, permissions are checked before the key is known.
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import ClassVar, TypeAlias

from perseid.names.handle import fold
from perseid.records.record import ValueRef
from perseid.registry.access.permissions import ScopeSet

_MAX_CACHED_HANDLES = 1_024  # of administrators
_SYSTEM_PREFIX = "0."  # handles of the system itself: 0.NA/…, 0.SITE/…


class Proof(Enum):
    """How the holder of a key was authenticated. Permissions do not depend on it; a policy may."""

    PUBLIC_KEY = "public key"
    """A challenge signed with the private key of an HS_PUBKEY value."""
    SECRET_KEY = "secret key"  # noqa: S105 - a word, not a secret
    """A challenge answered with the secret of an HS_SECKEY value."""
    FILE_PERMISSION = "file permission"
    """A local user who chose to act as that identity, and to be limited to it."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """A bearer token issued by the holder of the key."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """A caller that has not authenticated."""

    session: bool = False
    """Whether the request belongs to a session that is not authenticated."""

    def __str__(self) -> str:
        return "anonymous"


@dataclass(frozen=True, slots=True)
class KeyIdentity:
    """The holder of a key in a handle.

    The protocol checks permissions before it verifies the key, so a caller without rights gets "no administrator" and
    not "wrong signature". A decision is valid only after the challenge has been answered.
    """

    reference: ValueRef
    """The key, as the caller names it; index 0 (or below) means any key of that handle."""
    proof: Proof
    session: bool = False
    """Whether the request belongs to a session."""
    verified_index: int | None = None
    """The index of the key that verified; None before verification."""

    def __post_init__(self) -> None:
        verified = self.verified_index
        if verified is not None and (verified < 1 or (self.reference.index > 0 and verified != self.reference.index)):
            raise ValueError(f"the key at index {verified} does not verify {self.reference}")

    @property
    def index(self) -> int:
        """The index that a reference to this identity must have; 0 if none matches."""
        if self.reference.index > 0:
            return self.reference.index
        return (self.verified_index or 0) if self.session else 0

    def matches(self, reference: ValueRef) -> bool:
        """Whether a reference of an administrator or of a group means this identity."""
        # The index first: it is cheap, and rules out most members of a large group.
        if reference.index not in (0, self.index):
            return False
        return bool(reference.handle) and handle_key(reference.handle) == handle_key(self.reference.handle)

    def __str__(self) -> str:
        """With the index of the key that verified, if known, so that logs name the key that was used."""
        index = self.verified_index if self.verified_index is not None else max(self.reference.index, 0)
        return f"{index}:{self.reference.handle}"


@dataclass(frozen=True, slots=True)
class LocalIdentity:
    """A system user with write access to the installation's files, and so a server administrator."""

    user: str
    session: ClassVar[bool] = False
    """Always false: a local user does not use the network."""

    def __post_init__(self) -> None:
        if not self.user or not self.user.isprintable():
            raise ValueError("a local identity needs a printable user name")

    def __str__(self) -> str:
        return f"local:{self.user}"


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """A caller with a bearer token, who acts as its issuer within its scope.

    `authorize` checks both: a token has no permission that its issuer lacks now, and none outside its scope.
    """

    issuer: KeyIdentity | LocalIdentity
    token: str
    """The token's public id."""
    scope: ScopeSet
    session: ClassVar[bool] = False
    """Always false: a token is sent with every request."""

    def __str__(self) -> str:
        return f"token:{self.token} by {self.issuer}"


Identity: TypeAlias = Anonymous | KeyIdentity | LocalIdentity | TokenIdentity
"""The caller. The text form is stored in the ledger as the actor: `300:0.NA/12345`, `local:alice`, `anonymous`,
`token:k7qpx2ma by 300:0.NA/12345`."""


def effective_identity(identity: Identity) -> Anonymous | KeyIdentity | LocalIdentity:
    """The identity whose permissions apply: for a token, its issuer."""
    return identity.issuer if isinstance(identity, TokenIdentity) else identity


def quota_key(identity: Identity) -> str:
    """The key that quotas are counted under: that of the issuer for a token, with the handle folded.

    So a hundred tokens get no more than one, and neither does a handle in another case. Identities that differ only in
    case share one quota.
    """
    issuer = effective_identity(identity)
    return fold(str(issuer)) if isinstance(issuer, KeyIdentity) else str(issuer)


@lru_cache(_MAX_CACHED_HANDLES)
def handle_key(handle: str) -> str:
    """The key that all spellings of an administrator's handle share."""
    if handle.startswith(_SYSTEM_PREFIX):
        return fold(handle)
    prefix, slash, suffix = handle.partition("/")
    return f"{fold(prefix)}{slash}{suffix}"

"""Who asks: nobody in particular, the holder of a key, an operator of this machine, or somebody with a token of theirs.

A key is named `INDEX:HANDLE`, and so is whoever holds it. Records name administrators in the same form, and the two
are compared by rules of the deployed system that are stricter than those for names:

- In the handle only the prefix folds (ASCII letters), or everything if it begins with `0.`: `12345/ADMIN` and
  `12345/admin` are two administrators even where they are one record.
- A reference with index 0 means every key of that handle.
- An identity with index 0 ("any key of mine") is meant only by such a reference. Within a session it is also meant by a
  reference to the key that verified it; outside, rights are looked up before the key is known.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from perseid.names.characters import fold
from perseid.records.value import ValueRef
from perseid.registry.access.scopes import ScopeSet

_SYSTEM_PREFIX = "0."  # names of the system itself: 0.NA/…, 0.SITE/…


class Proof(Enum):
    """How the holder of a key is known to be who they say. Rights do not depend on it; a policy may."""

    PUBLIC_KEY = "public key"
    """A challenge signed with the private key of an HS_PUBKEY value."""
    SECRET_KEY = "secret key"  # noqa: S105 - a word, not a secret
    """A challenge answered with the secret of an HS_SECKEY value."""
    FILE_PERMISSION = "file permission"
    """An operator of this machine who chose to act as, and be limited to, that identity."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """A bearer token that the holder of the key has made."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Nobody in particular: no challenge was answered."""

    session: bool = False
    """Whether the request came within a session that has not been authenticated."""

    def __str__(self) -> str:
        return "anonymous"


@dataclass(frozen=True, slots=True)
class KeyIdentity:
    """Whoever holds a key that a record names.

    The protocol looks rights up before it verifies the key, so that a stranger is told "no administrator" and not
    "wrong signature". What is allowed to a key holder counts once the challenge has been answered, not before.
    """

    reference: ValueRef
    """The key, as the requester names it; an index of 0 (or below) is any key of that handle."""
    proof: Proof
    session: bool = False
    """Whether the request came within a session."""
    verified_index: int | None = None
    """The index of the key that verified; None while nothing has been verified."""

    def __post_init__(self) -> None:
        verified = self.verified_index
        if verified is not None and (verified < 1 or (self.reference.index > 0 and verified != self.reference.index)):
            raise ValueError(f"the key at index {verified} proves nothing about {self.reference}")

    @property
    def index(self) -> int:
        """The index that references to this identity have to name; 0 if none can."""
        if self.reference.index > 0:
            return self.reference.index
        return (self.verified_index or 0) if self.session else 0

    def matches(self, reference: ValueRef) -> bool:
        """Whether an administrator's reference, or an entry of a group, means this identity."""
        # The index first: in a large group it tells most entries apart for next to nothing.
        if reference.index not in (0, self.index):
            return False
        return bool(reference.handle) and handle_key(reference.handle) == handle_key(self.reference.handle)

    def __str__(self) -> str:
        """With the index of the key that verified, if it is known: a log should name the key that was used."""
        index = self.verified_index if self.verified_index is not None else max(self.reference.index, 0)
        return f"{index}:{self.reference.handle}"


@dataclass(frozen=True, slots=True)
class LocalIdentity:
    """A system user who may write the installation's files, and so is a server administrator."""

    user: str
    """The name of the system user."""
    session: ClassVar[bool] = False
    """Never: an operator does not come over the network."""

    def __post_init__(self) -> None:
        if not self.user or not self.user.isprintable():
            raise ValueError("an operator has a user name that can be printed")

    def __str__(self) -> str:
        return f"local:{self.user}"


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Whoever shows a bearer token: they act as the one who made it, within its scope.

    `authorise` asks both, so a token has no right that its maker lacks now, nor one that its scope does not name.
    """

    issuer: KeyIdentity | LocalIdentity
    token: str
    """The token's public id."""
    scope: ScopeSet
    session: ClassVar[bool] = False
    """Never: a token is shown with every request."""

    def __str__(self) -> str:
        return f"token:{self.token} by {self.issuer}"


Identity: TypeAlias = Anonymous | KeyIdentity | LocalIdentity | TokenIdentity
"""Who asks. The text form is what the ledger keeps as the actor: `300:0.NA/12345`, `local:alice`, `anonymous`,
`token:k7qpx2ma by 300:0.NA/12345`."""


def effective_identity(identity: Identity) -> Anonymous | KeyIdentity | LocalIdentity:
    """Whose rights count: who made the token, where one is shown."""
    return identity.issuer if isinstance(identity, TokenIdentity) else identity


def quota_key(identity: Identity) -> str:
    """Under which it is counted how much somebody has asked for: a token counts for its maker, however they are spelt.

    So a hundred tokens give no more room than one, nor does a handle that is written now in small letters and now in
    capitals. Who differs from somebody else in nothing but such letters shares what there is with them.
    """
    issuer = effective_identity(identity)
    return fold(str(issuer)) if isinstance(issuer, KeyIdentity) else str(issuer)


def handle_key(handle: str) -> str:
    """The text under which all spellings of an administrator's handle meet."""
    if handle.startswith(_SYSTEM_PREFIX):
        return fold(handle)
    prefix, slash, suffix = handle.partition("/")
    return f"{fold(prefix)}{slash}{suffix}"

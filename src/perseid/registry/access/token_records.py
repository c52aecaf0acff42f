"""Text and stored record of bearer tokens, and whether a token is active.

    perseid_ k7qpx2ma 3vK…(43)…9Qd 0aBcD1
    prefix   id       secret       checksum

The prefix lets people and secret scanners recognize a token. The id is public: logs and lists name a token by it. The
secret is 32 random bytes in base 62, so that a double click selects all of it. The checksum detects typos without a
lookup; it proves nothing.

The server stores only the SHA-256 of the secret. A slow hash is not needed: 32 random bytes cannot be guessed.

A token is a record of the installation, `0.SITE/TOKENS/<ID>`: its issuer, scope and expiry, and the SHA-256 of its
secret in a value that nobody can read. So creating and revoking are entries of the ledger, with actor and time; every
process and node knows them at once; and the commit of a decision checks the token's record like everything else it has
read. Only the last day of use has its own table (`perseid.ledger.store.idempotency`).

A token is active as long as

- it is not revoked: the record exists;
- it has not expired;
- the key of its issuer exists and is the same: replacing a compromised key ends the tokens that were issued with it.
"""

import hashlib
import hmac
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self

import msgspec

from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.record_keys import record_key, token_name
from perseid.names.handle import Handle
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.types import HS_PUBKEY, HS_SECKEY, has_type
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context
from perseid.registry.identity import KeyIdentity, LocalIdentity, Proof, TokenIdentity
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .permissions import InvalidScope, ScopeSet, display_name

PREFIX: Final = "perseid_"
"""Start of the text of every token."""

ID_LENGTH: Final = 8
"""Characters of an id: 40 bits, so that two of a million tokens hardly ever share one. A second one is refused."""

SECRET_BYTES: Final = 32
"""Bytes of randomness: impossible to guess."""

PATTERN: Final = rf"{PREFIX}[a-z2-7]{{{ID_LENGTH}}}[0-9A-Za-z]{{49}}"
"""Regular expression of a token, for secret scanners."""

_ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"  # one case, because ids are in handles too; no 0 and 1
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_SECRET_LENGTH: Final = 43  # 62⁴³ > 2²⁵⁶
_SUM_LENGTH: Final = 6  # 62⁶ > 2³²
_TOKEN_RE: Final = re.compile(PATTERN)
_LENGTH: Final = len(PREFIX) + ID_LENGTH + _SECRET_LENGTH + _SUM_LENGTH


class InactiveToken(Refused):
    """A token that was revoked, has expired or is not valid for another reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(ResponseCode.AUTHENTICATION_FAILED, reason, AdviceKind.CREATE_TOKEN())


class InvalidToken(ValueError):
    """A text that is not a token. The message never contains any of it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A token with its secret. Its `repr` shows only the id."""

    id: str
    raw: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not is_id(self.id) or len(self.raw) != SECRET_BYTES:
            raise ValueError("a token has an id of 8 characters and a secret of 32 bytes")

    @classmethod
    def new(cls, random: Callable[[int], bytes]) -> Self:
        """Generate a token."""
        number = int.from_bytes(random(5), "big")
        name = "".join([_ID_ALPHABET[number >> 5 * position & 31] for position in range(ID_LENGTH)])
        return cls(name, random(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a token; raises `InvalidToken`."""
        if not text.startswith(PREFIX):
            raise InvalidToken(f"Invalid token: it does not begin with {PREFIX}")
        if len(text) != _LENGTH:
            problem = "too long" if len(text) > _LENGTH else "too short"
            raise InvalidToken(f"Invalid token: it is {problem}; a token has {_LENGTH} characters")
        if _TOKEN_RE.fullmatch(text) is None:
            raise InvalidToken("Invalid token: it contains an invalid character")
        body, checksum = text[:-_SUM_LENGTH], text[-_SUM_LENGTH:]
        if not hmac.compare_digest(_checksum(body), checksum):
            raise InvalidToken("Invalid token: the checksum does not match. Check for typos")
        number = 0
        for digit in body[len(PREFIX) + ID_LENGTH :]:
            number = number * len(_DIGITS) + _VALUES[digit]
        if number >> 8 * SECRET_BYTES:
            raise InvalidToken("Invalid token: the secret is out of range")
        return cls(body[len(PREFIX) : len(PREFIX) + ID_LENGTH], number.to_bytes(SECRET_BYTES, "big"))

    def text(self) -> str:
        """The text, to show once."""
        body = f"{PREFIX}{self.id}{_encode_base62(int.from_bytes(self.raw, 'big'), _SECRET_LENGTH)}"
        return body + _checksum(body)

    def digest(self) -> bytes:
        """What the server stores."""
        return hashlib.sha256(self.raw).digest()

    def matches(self, digest: bytes) -> bool:
        """Whether the stored digest belongs to this token, compared in constant time."""
        return hmac.compare_digest(self.digest(), digest)


def is_id(text: str) -> bool:
    """Whether a text has the form of a token id."""
    return len(text) == ID_LENGTH and all(character in _ID_ALPHABET for character in text)


def _encode_base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def _checksum(body: str) -> str:
    return _encode_base62(zlib.crc32(body.encode("ascii")), _SUM_LENGTH)


TOKEN_TYPE: Final = "PERSEID_TOKEN"  # noqa: S105 - a type
"""The type of the value that describes a token."""

HASH_TYPE: Final = "PERSEID_TOKEN_HASH"
"""The type of the value with the SHA-256 of its secret."""

_LOCAL: Final = "local:"
_MAX_CACHED_TOKENS: Final = 256  # those with which programs send many requests
_ADMIN_ONLY: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
_NOT_READABLE: Final = Permission(0)


class _StoredToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON in the record; `maker` is the issuer, `may` the scopes."""

    label: str
    maker: str
    key: str
    may: list[str]
    namespaces: list[str] | None
    created: int
    expires: int


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret."""

    id: str
    label: str
    """What it is for, as its issuer describes it."""
    issuer: str
    """The identity it acts as: `300:0.NA/12345` or `local:alice`."""
    key: bytes
    """The commitment, in the ledger, to the key of the issuer; empty if there is no single key."""
    scope: ScopeSet
    created: int
    """Seconds since 1970."""
    expires: int
    """Seconds since 1970; from then on it is not active."""

    def identity(self) -> TokenIdentity:
        """The identity of a caller with this token."""
        if self.issuer.startswith(_LOCAL):
            return TokenIdentity(LocalIdentity(self.issuer.removeprefix(_LOCAL)), self.id, self.scope)
        return TokenIdentity(KeyIdentity(ValueRef.parse(self.issuer), Proof.TOKEN), self.id, self.scope)

    def values(self, digest: bytes, now: int) -> tuple[Value, ...]:
        """The values of the record."""
        namespaces = None if self.scope.namespaces is None else list(self.scope.namespaces)
        stored = _StoredToken(
            self.label, self.issuer, self.key.hex(), self.scope.scope_names, namespaces, self.created, self.expires
        )
        about = Value(1, TOKEN_TYPE, msgspec.json.encode(stored), timestamp=now, permissions=_ADMIN_ONLY)
        return about, Value(2, HASH_TYPE, digest, timestamp=now, permissions=_NOT_READABLE)

    @classmethod
    def from_entry(cls, entry: Entry) -> Self | None:
        """The token that an entry created; None if it created none."""
        for value in entry.record():
            if value.type == TOKEN_TYPE:
                return cls._parse(entry.handle.rpartition("/")[2].lower(), value.data)
        return None

    @classmethod
    @lru_cache(_MAX_CACHED_TOKENS)
    def _parse(cls, name: str, data: bytes) -> Self | None:
        try:
            stored = msgspec.json.decode(data, type=_StoredToken)
            scope = ScopeSet.of(stored.may, stored.namespaces)
            key = bytes.fromhex(stored.key)
        except (msgspec.MsgspecError, InvalidScope, ValueError):
            return None  # for example from a newer version: it grants nothing
        return cls(name, stored.label, stored.maker, key, scope, stored.created, stored.expires)


def stored_digest(entry: Entry) -> bytes:
    """The SHA-256 of the secret of the token that an entry created."""
    return next((value.data for value in entry.record() if value.type == HASH_TYPE), b"")


def find_token_entry(snapshot: Snapshot, token: str) -> Entry | None:
    """The latest entry of a token, noted as a precondition; None if there never was such a token."""
    return snapshot.entry(record_key(token_name(token)))


def require_active_token(snapshot: Snapshot, token: str, now: int) -> tuple[Token, Entry]:
    """An active token and its entry. Raises `Refused`."""
    entry = find_token_entry(snapshot, token)
    if entry is None:
        raise InactiveToken("This token does not exist here")
    active = Token.from_entry(entry) if entry.state is State.NORMAL else None
    if active is None:
        raise InactiveToken(f"Token {token} was revoked")
    if now >= active.expires:
        raise InactiveToken(f"Token {token} has expired")
    if not issuer_key_matches(snapshot, active):
        raise InactiveToken(
            f"Token {token} is no longer valid: the key of its issuer {display_name(active.issuer)} changed"
        )
    return active, entry


def check_token_identity(context: Context) -> None:
    """Refuse a token that is not active now, or has changed; other identities pass."""
    identity = context.identity
    if isinstance(identity, TokenIdentity):
        token, _ = require_active_token(context.snapshot, identity.token, context.now)
        if token.identity() != identity:
            raise InactiveToken(f"Token {identity.token} has changed")


def key_commitment(snapshot: Snapshot, reference: ValueRef) -> bytes | None:
    """The commitment to the key that a reference names; empty if it names a group or no particular value.

    None if there is no such value here. It is the salted commitment of the ledger, which reveals nothing about the key
    and changes whenever the value changes.
    """
    if snapshot.group(reference.handle) is None:
        return None
    entry = snapshot.stored(Handle.parse_lenient(reference.handle)).entry
    if entry is None:
        return None
    if reference.index == 0:
        return b""
    for slot, value in zip([slot for slot in entry.values if not slot.is_redacted], entry.record(), strict=True):
        if value.index == reference.index:
            is_key = any(has_type(value.type, type_) for type_ in (HS_PUBKEY, HS_SECKEY))
            return slot.commitment if is_key else b""
    return None


def issuer_key_matches(snapshot: Snapshot, token: Token) -> bool:
    """Whether the issuer of a token still has the key with which it was issued."""
    if token.issuer.startswith(_LOCAL):
        return True
    return key_commitment(snapshot, ValueRef.parse(token.issuer)) == token.key

"""The text of a bearer token: what its holder keeps, and shows with every request.

    perseid_ k7qpx2ma 3vK…(43)…9Qd 0aBcD1
    prefix   id       secret       checksum

The prefix lets people, and programs that look for secrets where none should be, see what it is. The id is public: logs
and lists name a token by it. The secret is 32 random octets in base 62, of which a double click selects all. The
checksum tells a slip of the hand from a token that is not known, without asking anybody; it proves nothing.

Of the secret, a server keeps the SHA-256 and nothing else. That cannot be turned round: there is nothing to guess in 32
random octets, so no slow function is needed either.

Bearer tokens as the ledger has them, and whether one still counts.

Everything about a token is in a record of the installation's own, `0.SITE/TOKENS/<ID>`: who made it, its scope, when it
ends, and the SHA-256 of its secret in a value that nobody may read. So making and revoking are entries of the ledger
like any other, with who did it and when; every process and node knows of them at once; and a decision rests on the
token's record as it rests on all else it has read, which the commit checks. Between the decision and the commit nobody
can be late. Only the last day of use has a table of its own (`perseid.ledger.store.token_uses`).

A token counts as long as

- it is not revoked: the record is there;
- its time is not over;
- the key that made it is there, and the same: whoever replaces a key that has become known ends what was made with it.
"""

import hashlib
import hmac
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.record_keys import record_key, token_name
from perseid.names.handle import Handle
from perseid.records.types import HS_PUBKEY, HS_SECKEY, has_type
from perseid.records.value import Permission, Value, ValueRef
from perseid.registry.context import Context
from perseid.registry.identity import KeyIdentity, LocalIdentity, Proof, TokenIdentity
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .permissions import display_name
from .scopes import InvalidScope, ScopeSet

PREFIX: Final = "perseid_"
"""With what the text of every token begins."""

ID_LENGTH: Final = 8
"""Characters of an id: 40 bits, so that two of a million tokens hardly ever share one. A second one is refused."""

SECRET_BYTES: Final = 32
"""Octets of randomness: what nobody guesses, ever."""

PATTERN: Final = rf"{PREFIX}[a-z2-7]{{{ID_LENGTH}}}[0-9A-Za-z]{{49}}"
"""What a token looks like, as a regular expression for those who look for secrets."""

_ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"  # one case, for ids are names of records too; no 0 and 1
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_SECRET_LENGTH: Final = 43  # 62⁴³ > 2²⁵⁶
_SUM_LENGTH: Final = 6  # 62⁶ > 2³²
_TOKEN_RE: Final = re.compile(PATTERN)
_LENGTH: Final = len(PREFIX) + ID_LENGTH + _SECRET_LENGTH + _SUM_LENGTH


class InvalidToken(ValueError):
    """A text that is no token. The message never holds any of it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A token as its holder has it. Whoever prints it by mistake prints the id only."""

    id: str
    raw: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not is_id(self.id) or len(self.raw) != SECRET_BYTES:
            raise ValueError("a token has an id of eight characters and 32 octets of secret")

    @classmethod
    def new(cls, random: Callable[[int], bytes]) -> Self:
        """A token that nobody has."""
        numbers = int.from_bytes(random(5), "big")
        name = "".join([_ID_ALPHABET[numbers >> 5 * place & 31] for place in range(ID_LENGTH)])
        return cls(name, random(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a token; raises `InvalidToken`."""
        if not text.startswith(PREFIX):
            raise InvalidToken(f"a token begins with {PREFIX}")
        if len(text) != _LENGTH:
            much = "more" if len(text) > _LENGTH else "less"
            raise InvalidToken(f"a token has {_LENGTH} characters, and this text has {much}: was it cut or doubled?")
        if _TOKEN_RE.fullmatch(text) is None:
            raise InvalidToken("the text has a character that no token has")
        body, checksum = text[:-_SUM_LENGTH], text[-_SUM_LENGTH:]
        if not hmac.compare_digest(_checksum(body), checksum):
            raise InvalidToken("the token is mistyped: its last characters do not fit the others")
        number = 0
        for digit in body[len(PREFIX) + ID_LENGTH :]:
            number = number * len(_DIGITS) + _VALUES[digit]
        if number >> 8 * SECRET_BYTES:
            raise InvalidToken("the text is no token: its secret is too large")
        return cls(body[len(PREFIX) : len(PREFIX) + ID_LENGTH], number.to_bytes(SECRET_BYTES, "big"))

    def text(self) -> str:
        """The text, to be shown once."""
        body = f"{PREFIX}{self.id}{_encode_base62(int.from_bytes(self.raw, 'big'), _SECRET_LENGTH)}"
        return body + _checksum(body)

    def digest(self) -> bytes:
        """What a server keeps."""
        return hashlib.sha256(self.raw).digest()

    def matches(self, digest: bytes) -> bool:
        """Whether this is the token of which a server has kept that; takes as long for every wrong one."""
        return hmac.compare_digest(self.digest(), digest)


def is_id(text: str) -> bool:
    """Whether a text has the form of a token's id."""
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
"""The type of the value that says what a token is good for."""

HASH_TYPE: Final = "PERSEID_TOKEN_HASH"
"""The type of the value that holds the SHA-256 of its secret."""

_LOCAL: Final = "local:"
_ADMIN_ONLY: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
_NOT_READABLE: Final = Permission(0)
_TOKEN_INACTIVE: Final = "the token does not count any more"  # noqa: S105 - not a secret


class _StoredToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON in the record."""

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
    """What it is for, in the words of its maker."""
    maker: str
    """Whom it acts as: `300:0.NA/12345` or `local:alice`."""
    key: bytes
    """The commitment, in the ledger, to the key with which the maker is known; empty if they are known otherwise."""
    scope: ScopeSet
    created: int
    """In seconds since 1970."""
    expires: int
    """The same: from then on it does not count."""

    def identity(self) -> TokenIdentity:
        """Who somebody with this token is."""
        if self.maker.startswith(_LOCAL):
            return TokenIdentity(LocalIdentity(self.maker.removeprefix(_LOCAL)), self.id, self.scope)
        return TokenIdentity(KeyIdentity(ValueRef.parse(self.maker), Proof.TOKEN), self.id, self.scope)

    def values(self, digest: bytes, now: int) -> tuple[Value, ...]:
        """What the record holds."""
        places = None if self.scope.namespaces is None else list(self.scope.namespaces)
        written = _StoredToken(
            self.label, self.maker, self.key.hex(), self.scope.may, places, self.created, self.expires
        )
        about = Value(1, TOKEN_TYPE, msgspec.json.encode(written), timestamp=now, permissions=_ADMIN_ONLY)
        return about, Value(2, HASH_TYPE, digest, timestamp=now, permissions=_NOT_READABLE)

    @classmethod
    def from_entry(cls, entry: Entry) -> Self | None:
        """The token that an entry made; None if it made none."""
        for value in entry.record():
            if value.type == TOKEN_TYPE:
                return cls._read(entry.handle.rpartition("/")[2].lower(), value.data)
        return None

    @classmethod
    def _read(cls, name: str, data: bytes) -> Self | None:
        try:
            found = msgspec.json.decode(data, type=_StoredToken)
            scope = ScopeSet.of(found.may, found.namespaces)
            key = bytes.fromhex(found.key)
        except (msgspec.MsgspecError, InvalidScope, ValueError):
            return None  # of a newer version, say: it gives no right
        return cls(name, found.label, found.maker, key, scope, found.created, found.expires)


def stored_digest(entry: Entry) -> bytes:
    """The SHA-256 of the secret of the token that an entry made."""
    return next((value.data for value in entry.record() if value.type == HASH_TYPE), b"")


def find_token_entry(snapshot: Snapshot, token: str) -> Entry | None:
    """The latest entry about a token, on which the decision rests from now on; None if there never was such a token."""
    return snapshot.entry(record_key(token_name(token)))


def require_active_token(snapshot: Snapshot, token: str, now: int) -> tuple[Token, Entry]:
    """A token that counts, and its record. Raises `Refused`."""
    entry = find_token_entry(snapshot, token)
    if entry is None:
        raise _token_inactive("there is no such token here")
    found = Token.from_entry(entry) if entry.state is State.NORMAL else None
    if found is None:
        raise _token_inactive(f"the token {token} was revoked")
    if now >= found.expires:
        raise _token_inactive(f"the time of the token {token} is over")
    if not issuer_key_matches(snapshot, found):
        raise _token_inactive(
            f"the key {display_name(found.maker)}, with which the token {token} was made, is gone or another one now"
        )
    return found, entry


def check_token_identity(context: Context) -> None:
    """Refuse whoever shows a token that does not count now, or is not what it was; others are not concerned."""
    identity = context.identity
    if isinstance(identity, TokenIdentity):
        token, _ = require_active_token(context.snapshot, identity.token, context.now)
        if token.identity() != identity:
            raise _token_inactive(f"the token {identity.token} is another one now")


def key_commitment(snapshot: Snapshot, reference: ValueRef) -> bytes | None:
    """What a token keeps of the key that a reference names; empty if it names a group or no particular value.

    None if there is no such value here. The mark is the salted commitment of the ledger, which tells nothing of the
    key, and is another one whenever the value changes.
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
    """Whether whoever made a token can still be the one who did."""
    if token.maker.startswith(_LOCAL):
        return True
    return key_commitment(snapshot, ValueRef.parse(token.maker)) == token.key


def _token_inactive(reason: str) -> Refused:
    advice = f"{_TOKEN_INACTIVE}: use another one, or have one made"
    return Refused(ResponseCode.AUTHENTICATION_FAILED, reason, advice)

"""JSON Web Signatures (RFC 7515) as values hold them: the container, without what is claimed in it.

Compact form is `HEADER.PAYLOAD.SIGNATURE`, each part in base64url without padding. The JSON form begins with `{` and
holds one signature or several. Two algorithms are in use: `RS256` (RSA, PKCS#1 v1.5, SHA-256) and `DS256` (DSA,
SHA-256, DER), which no standard lists. The algorithm must be named where the signature covers it, and it must be
the key's own: nothing in a token chooses how strictly it is checked.

HS_SIGNATURE and HS_CERT: signed claims about a record's values, and about who holds which key.

Both are tokens (`jws`) whose payload claims `iss`, `sub`, `iat`, `nbf`, `exp` and possibly `chain`, the way to the
trust root. HS_SIGNATURE adds `digests` of values, each taken "over its binary encoding from offset 8 (index and
timestamp excluded)"; HS_CERT adds `publicKey` and `perms`. Ordinary resolution does not depend on either.

Whether the chain leads to a root that is trusted is for whoever fetches it; here one link is checked, with the key
and the time given.
"""

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from .encoding import from_base64, to_base64
from .errors import InvalidData
from .json_parsing import (
    JsonObject,
    parse_json,
    require_int,
    require_list,
    require_member,
    require_object,
    require_text,
    write_json,
)
from .private_keys import PrivateKey
from .public_keys import PublicKey
from .text_types import Text
from .value import Value, ValueRef

MAX_JWS_LENGTH: Final = 262_144
"""The longest token, in characters: it has to fit a message. A signature over 2,048 values takes 220,000."""

MAX_JWS_SIGNATURES: Final = 8
"""The most signatures on one token. Deployed tools make one; each costs a verification."""

ALGORITHMS: Final = {"RSA": "RS256", "DSA": "DS256"}
"""The algorithm that a key of each kind signs with."""

_HASH = "SHA-256"
_PART = re.compile(r"[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class JwsSignature:
    """One signature on a token."""

    protected: str
    """The header that it covers, still in base64url."""
    algorithm: str
    """What the header names."""
    signature: bytes
    """The signature itself."""


@dataclass(frozen=True, slots=True)
class Jws(Text):
    """A token. The text is kept as it is; the rest is read from it."""

    payload: bytes = field(init=False, repr=False, compare=False)
    """What is signed."""
    signatures: tuple[JwsSignature, ...] = field(init=False, repr=False, compare=False)
    """By whom, one or more."""
    _encoded: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        if len(self.text) > MAX_JWS_LENGTH:
            raise InvalidData(f"{len(self.text):,} characters are too many; {MAX_JWS_LENGTH:,} are the most")
        text = self.text.strip()
        encoded, signatures = _from_json(text) if text.startswith("{") else _from_compact(text)
        object.__setattr__(self, "_encoded", encoded)
        object.__setattr__(self, "payload", _decode(encoded, "the payload"))
        object.__setattr__(self, "signatures", signatures)

    def is_signed_by(self, key: PublicKey) -> bool:
        """Whether the owner of a key has signed it."""
        algorithm = ALGORITHMS.get(key.KTY)
        return any(
            signature.algorithm == algorithm
            and key.verify(_HASH, signature.signature, f"{signature.protected}.{self._encoded}".encode("ascii"))
            for signature in self.signatures
        )

    def claims(self) -> JsonObject:
        """The payload as a JSON object."""
        return require_object(parse_json(self.payload), "the payload of the token")


def sign_compact(claims: JsonObject, key: PrivateKey) -> str:
    """A token in compact form."""
    header: JsonObject = {"alg": ALGORITHMS[key.KTY]}
    signed = f"{_encode(write_json(header).encode())}.{_encode(write_json(claims).encode())}"
    return f"{signed}.{_encode(key.sign(_HASH, signed.encode('ascii')))}"


def _from_compact(text: str) -> tuple[str, tuple[JwsSignature, ...]]:
    parts = text.split(".")
    if len(parts) != 3:
        raise InvalidData("a token has three parts with a dot between them")
    header, payload, signature = parts
    return payload, (_parse_signature(header, signature),)


def _from_json(text: str) -> tuple[str, tuple[JwsSignature, ...]]:
    members = require_object(parse_json(text), "the token")
    payload = require_text(require_member(members, "payload", "the token"), "the payload")
    items = require_list(members["signatures"], "the signatures") if "signatures" in members else [members]
    if not 1 <= len(items) <= MAX_JWS_SIGNATURES:
        raise InvalidData(f"a token has 1 to {MAX_JWS_SIGNATURES} signatures, not {len(items)}")
    signatures = []
    for item in items:
        one = require_object(item, "a signature")
        header = require_text(require_member(one, "protected", "a signature"), "the header")
        signatures.append(
            _parse_signature(header, require_text(require_member(one, "signature", "a signature"), "the signature"))
        )
    return payload, tuple(signatures)


def _parse_signature(protected: str, signature: str) -> JwsSignature:
    header = require_object(parse_json(_decode(protected, "the header")), "the header of the token")
    if "crit" in header:
        raise InvalidData("the token demands extensions that are not known (crit)")
    algorithm = require_text(require_member(header, "alg", "the header of the token"), "the algorithm")
    return JwsSignature(protected, algorithm, _decode(signature, "the signature"))


def _decode(part: str, label: str) -> bytes:
    if not _PART.fullmatch(part):
        raise InvalidData(f"{label} of the token is not base64url")
    return from_base64(part, f"{label} of the token")


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


MAX_CHAIN: Final = 50
"""The most links to a trust root, as deployed."""

DIGEST_ALGORITHM: Final = "SHA-256"
"""The hash of a value's digest, as it is written."""

_HASH_SPELLINGS = ("SHA-256", "SHA256")
_TIME_RANGE = (-(1 << 53), 1 << 53)  # whole numbers that every JSON reader understands


class TokenStatus(Enum):
    """What is to be said about a token, a key and a time."""

    GOOD = "good"
    WRONG_KEY = "not signed with this key"
    NOT_YET_VALID = "not valid yet"
    EXPIRED = "not valid any more"


@dataclass(frozen=True, slots=True)
class Claims:
    """What every token claims."""

    issuer: ValueRef
    """Whose key signed it."""
    subject: ValueRef
    """What it is about: a record, or the holder of a key."""
    issued_at: int | None = None
    """When it was made; all times in seconds since 1970."""
    not_before: int | None = None
    """From when it is valid."""
    expires: int | None = None
    """Until when it is valid. Without this it never is."""
    chain: tuple[ValueRef, ...] = ()
    """Certificates that lead from the issuer to the trust root."""

    @classmethod
    def from_json(cls, claims: JsonObject) -> Self:
        """Take the claims of a payload."""
        chain = require_list(claims.get("chain", []), "the chain")
        if len(chain) > MAX_CHAIN:
            raise InvalidData(f"a chain has at most {MAX_CHAIN} links, not {len(chain)}")
        return cls(
            _parse_ref(require_member(claims, "iss", "the token"), "the issuer"),
            _parse_ref(require_member(claims, "sub", "the token"), "the subject"),
            _parse_time(claims, "iat"),
            _parse_time(claims, "nbf"),
            _parse_time(claims, "exp"),
            tuple([_parse_ref(link, "a link of the chain") for link in chain]),
        )

    def to_json(self) -> JsonObject:
        """The claims for a payload."""
        times = {"iat": self.issued_at, "nbf": self.not_before, "exp": self.expires}
        obj: JsonObject = {"iss": _format_ref(self.issuer), "sub": _format_ref(self.subject)}
        obj |= {name: time for name, time in times.items() if time is not None}
        if self.chain:
            obj["chain"] = [_format_ref(link) for link in self.chain]
        return obj


@dataclass(frozen=True, slots=True)
class _SignedClaims(Jws):
    """What both types share."""

    claimed: Claims = field(init=False, compare=False)
    """By whom, about what, for how long."""

    def __post_init__(self) -> None:
        Jws.__post_init__(self)
        object.__setattr__(self, "claimed", Claims.from_json(self.claims()))

    def verdict(self, key: PublicKey, now: int) -> TokenStatus:
        """Whether this key signed it and it is valid now."""
        if not self.is_signed_by(key):
            return TokenStatus.WRONG_KEY
        if self.claimed.not_before is not None and now < self.claimed.not_before:
            return TokenStatus.NOT_YET_VALID
        if self.claimed.expires is None or now >= self.claimed.expires:
            return TokenStatus.EXPIRED
        return TokenStatus.GOOD


@dataclass(frozen=True, slots=True)
class ValueDigest:
    """The digest of one value."""

    index: int
    """Which value."""
    digest: bytes
    """SHA-256, as far as is known."""

    @classmethod
    def of(cls, value: Value) -> Self:
        """The digest of a value as it stands."""
        return cls(value.index, hashlib.sha256(value.signed_part()).digest())


@dataclass(frozen=True, slots=True)
class Comparison:
    """How values agree with a signature, each group as indexes in ascending order."""

    verified: tuple[int, ...]
    """Signed and unchanged."""
    changed: tuple[int, ...]
    """Signed, but different now."""
    missing: tuple[int, ...]
    """Signed, but not among the values."""
    unsigned: tuple[int, ...]
    """Not signed at all, the signature itself among them."""


@dataclass(frozen=True, slots=True)
class RecordSignature(_SignedClaims):
    """HS_SIGNATURE: these values of that handle are as the issuer wants them."""

    digest_algorithm: str = field(init=False, repr=False, compare=False)
    """The hash of the digests; only SHA-256 is known."""
    digests: tuple[ValueDigest, ...] = field(init=False, repr=False, compare=False)
    """What the values were."""

    def __post_init__(self) -> None:
        _SignedClaims.__post_init__(self)
        claims = self.claims()
        digests = require_object(require_member(claims, "digests", "the token"), "the digests")
        items = require_list(require_member(digests, "digests", "the digests"), "the list of digests")
        object.__setattr__(
            self, "digest_algorithm", require_text(require_member(digests, "alg", "the digests"), "the hash")
        )
        object.__setattr__(self, "digests", tuple([_parse_digest(item) for item in items]))

    @classmethod
    def sign(cls, claims: Claims, values: Iterable[Value], key: PrivateKey) -> Self:
        """Sign values of the handle that the claims name as subject."""
        digests = [ValueDigest.of(value) for value in values]
        items = [{"index": digest.index, "digest": to_base64(digest.digest)} for digest in digests]
        added: JsonObject = {"digests": {"alg": DIGEST_ALGORITHM, "digests": items}}
        return cls(sign_compact(claims.to_json() | added, key))

    def compare(self, values: Iterable[Value]) -> Comparison:
        """Which values are as they were signed. Says nothing about who signed: ask `verdict` first."""
        found = {value.index: value for value in values}
        signed: dict[int, set[bytes]] = {}
        for digest in self.digests:
            signed.setdefault(digest.index, set()).add(digest.digest)
        known = self.digest_algorithm.upper() in _HASH_SPELLINGS
        good = {
            index
            for index, digests in signed.items()
            if known and index in found and digests == {ValueDigest.of(found[index]).digest}
        }
        return Comparison(
            verified=tuple(sorted(good)),
            changed=tuple(sorted((signed.keys() & found.keys()) - good)),
            missing=tuple(sorted(signed.keys() - found.keys())),
            unsigned=tuple(sorted(found.keys() - signed.keys())),
        )


@dataclass(frozen=True, slots=True)
class CertPermission:
    """What the holder of a certified key may sign."""

    kind: str
    """`everything`, `thisHandle`, `derivedPrefixes` or `handlesUnderThisPrefix`."""
    handle: str | None = None
    """The handle it is about."""


@dataclass(frozen=True, slots=True)
class Certificate(_SignedClaims):
    """HS_CERT: that identity holds this key, and may sign so much with it."""

    public_key: PublicKey = field(init=False, repr=False, compare=False)
    """The key of the subject."""
    permissions: tuple[CertPermission, ...] = field(init=False, compare=False)
    """What it may sign."""

    def __post_init__(self) -> None:
        _SignedClaims.__post_init__(self)
        claims = self.claims()
        permissions = require_list(claims.get("perms", []), "the permissions")
        object.__setattr__(self, "public_key", PublicKey.from_json(require_member(claims, "publicKey", "the token")))
        object.__setattr__(self, "permissions", tuple([_parse_permission(item) for item in permissions]))

    @classmethod
    def sign(
        cls, claims: Claims, public_key: PublicKey, permissions: Iterable[CertPermission], key: PrivateKey
    ) -> Self:
        """Certify the key of the subject that the claims name."""
        items = [({} if one.handle is None else {"handle": one.handle}) | {"perm": one.kind} for one in permissions]
        added: JsonObject = {"publicKey": public_key.to_json(), "perms": items}
        return cls(sign_compact(claims.to_json() | added, key))


def _parse_digest(obj: object) -> ValueDigest:
    members = require_object(obj, "a digest")
    index = require_int(require_member(members, "index", "a digest"), "the index of a digest")
    return ValueDigest(
        index, from_base64(require_text(require_member(members, "digest", "a digest"), "a digest"), "a digest")
    )


def _parse_permission(obj: object) -> CertPermission:
    members = require_object(obj, "a permission")
    handle = members.get("handle")
    return CertPermission(
        require_text(require_member(members, "perm", "a permission"), "a permission"),
        None if handle is None else require_text(handle, "the handle of a permission"),
    )


def _parse_ref(obj: object, label: str) -> ValueRef:
    return ValueRef.parse(require_text(obj, label))


def _format_ref(ref: ValueRef) -> str:
    """`300:0.NA/12345`, or the handle alone if that means the same."""
    if ref.index == 0:
        try:
            if ValueRef.parse(ref.handle) == ref:
                return ref.handle
        except InvalidData:
            pass
    return str(ref)


def _parse_time(claims: JsonObject, name: str) -> int | None:
    obj = claims.get(name)
    return None if obj is None else require_int(obj, f'"{name}"', *_TIME_RANGE)

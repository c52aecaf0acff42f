"""Signed claims in values: HS_SIGNATURE (digests of values) and HS_CERT (certified keys), as JSON Web Signatures.

A JWS (RFC 7515) is `HEADER.PAYLOAD.SIGNATURE`, each part in base64url without padding, or JSON with one or more
signatures. The algorithms are `RS256` (RSA, PKCS#1 v1.5, SHA-256) and `DS256` (DSA, SHA-256, DER), which is not
standardized. The algorithm must be in the protected header and match the key, so that a token cannot choose how it is
verified.

Claims are `iss`, `sub`, `iat`, `nbf`, `exp` and optionally `chain`, the certificates up to the trust root. HS_SIGNATURE
adds `digests` of the binary form of values from offset 8 (without index and timestamp); HS_CERT adds `publicKey` and
`perms`. Ordinary resolution depends on neither.

Only one link is verified here, with a given key and time; the caller fetches the chain and decides about the root.
"""

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from .encoding import (
    JsonObject,
    from_base64,
    parse_json,
    require_int,
    require_list,
    require_member,
    require_object,
    require_text,
    to_base64,
    write_json,
)
from .errors import InvalidData
from .keys import PublicKey
from .private_keys import PrivateKey
from .record import Value, ValueRef
from .types import Text

MAX_JWS_LENGTH: Final = 262_144
"""Maximum length of a token in characters: it has to fit in a message. A signature over 2,048 values takes 220,000."""

MAX_JWS_SIGNATURES: Final = 8
"""Maximum number of signatures of a token. Deployed tools create one; each costs a verification."""

ALGORITHMS: Final = {"RSA": "RS256", "DSA": "DS256"}
"""Signature algorithm of each key type."""

_HASH = "SHA-256"
_PART = re.compile(r"[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class JwsSignature:
    """One signature of a token."""

    protected: str
    """The protected header, in base64url."""
    algorithm: str
    """The algorithm in the header."""
    signature: bytes


@dataclass(frozen=True, slots=True)
class Jws(Text):
    """A token, parsed from its text."""

    payload: bytes = field(init=False, repr=False, compare=False)
    signatures: tuple[JwsSignature, ...] = field(init=False, repr=False, compare=False)
    """At least one."""
    _encoded: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Text.__post_init__(self)
        if len(self.text) > MAX_JWS_LENGTH:
            raise InvalidData(f"the token has {len(self.text):,} characters; the maximum is {MAX_JWS_LENGTH:,}")
        text = self.text.strip()
        encoded, signatures = _from_json(text) if text.startswith("{") else _from_compact(text)
        object.__setattr__(self, "_encoded", encoded)
        object.__setattr__(self, "payload", _decode(encoded, "the payload"))
        object.__setattr__(self, "signatures", signatures)

    def is_signed_by(self, key: PublicKey) -> bool:
        """Whether one of the signatures was made with the key."""
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
    """Create a token in compact form."""
    header: JsonObject = {"alg": ALGORITHMS[key.KTY]}
    signed = f"{_encode(write_json(header).encode())}.{_encode(write_json(claims).encode())}"
    return f"{signed}.{_encode(key.sign(_HASH, signed.encode('ascii')))}"


def _from_compact(text: str) -> tuple[str, tuple[JwsSignature, ...]]:
    parts = text.split(".")
    if len(parts) != 3:
        raise InvalidData("the token must be three parts separated by dots")
    header, payload, signature = parts
    return payload, (_parse_signature(header, signature),)


def _from_json(text: str) -> tuple[str, tuple[JwsSignature, ...]]:
    members = require_object(parse_json(text), "the token")
    payload = require_text(require_member(members, "payload", "the token"), "the payload")
    items = require_list(members["signatures"], "the signatures") if "signatures" in members else [members]
    if not 1 <= len(items) <= MAX_JWS_SIGNATURES:
        raise InvalidData(f"the token has {len(items)} signatures; it must have 1 to {MAX_JWS_SIGNATURES}")
    signatures = []
    for item in items:
        fields = require_object(item, "a signature")
        header = require_text(require_member(fields, "protected", "a signature"), "the header")
        signatures.append(
            _parse_signature(header, require_text(require_member(fields, "signature", "a signature"), "the signature"))
        )
    return payload, tuple(signatures)


def _parse_signature(protected: str, signature: str) -> JwsSignature:
    header = require_object(parse_json(_decode(protected, "the header")), "the header of the token")
    if "crit" in header:
        raise InvalidData("the token requires unknown extensions (crit)")
    algorithm = require_text(require_member(header, "alg", "the header of the token"), "the algorithm")
    return JwsSignature(protected, algorithm, _decode(signature, "the signature"))


def _decode(part: str, label: str) -> bytes:
    if not _PART.fullmatch(part):
        raise InvalidData(f"{label} of the token is not base64url")
    return from_base64(part, f"{label} of the token")


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


MAX_CHAIN: Final = 50
"""Maximum number of links to a trust root, as deployed."""

DIGEST_ALGORITHM: Final = "SHA-256"
"""Hash algorithm of new digests."""

_HASH_SPELLINGS = ("SHA-256", "SHA256")
_TIME_RANGE = (-(1 << 53), 1 << 53)  # integers that every JSON reader supports


class TokenStatus(Enum):
    """Result of verifying a token."""

    GOOD = "good"
    WRONG_KEY = "not signed with this key"
    NOT_YET_VALID = "not valid yet"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Claims:
    """The common claims of tokens. Times are in seconds since 1970."""

    issuer: ValueRef
    """The key that signed it."""
    subject: ValueRef
    """A record, or the holder of a key."""
    issued_at: int | None = None
    not_before: int | None = None
    expires: int | None = None
    """A token without expiry is never valid."""
    chain: tuple[ValueRef, ...] = ()
    """Certificates from the issuer to the trust root."""

    @classmethod
    def from_json(cls, claims: JsonObject) -> Self:
        """Parse the claims of a payload."""
        chain = require_list(claims.get("chain", []), "the chain")
        if len(chain) > MAX_CHAIN:
            raise InvalidData(f"the chain has {len(chain)} links; the maximum is {MAX_CHAIN}")
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
    """Base class of HS_SIGNATURE and HS_CERT."""

    claimed: Claims = field(init=False, compare=False)

    def __post_init__(self) -> None:
        Jws.__post_init__(self)
        object.__setattr__(self, "claimed", Claims.from_json(self.claims()))

    def verdict(self, key: PublicKey, now: int) -> TokenStatus:
        """Check the signature with a key, and the validity period."""
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
    """Index of the value."""
    digest: bytes
    """Usually SHA-256."""

    @classmethod
    def of(cls, value: Value) -> Self:
        """Compute the digest of a value."""
        return cls(value.index, hashlib.sha256(value.signed_part()).digest())


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of values with a signature, as indexes in ascending order."""

    verified: tuple[int, ...]
    """Signed and unchanged."""
    changed: tuple[int, ...]
    """Signed, but changed since."""
    missing: tuple[int, ...]
    """Signed, but not among the values."""
    unsigned: tuple[int, ...]
    """Not signed; includes the signature itself."""


@dataclass(frozen=True, slots=True)
class RecordSignature(_SignedClaims):
    """HS_SIGNATURE: signed digests of the values of a handle."""

    digest_algorithm: str = field(init=False, repr=False, compare=False)
    """Hash algorithm of the digests; only SHA-256 is supported."""
    digests: tuple[ValueDigest, ...] = field(init=False, repr=False, compare=False)

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
        """Sign values of the subject's handle."""
        digests = [ValueDigest.of(value) for value in values]
        items = [{"index": digest.index, "digest": to_base64(digest.digest)} for digest in digests]
        added: JsonObject = {"digests": {"alg": DIGEST_ALGORITHM, "digests": items}}
        return cls(sign_compact(claims.to_json() | added, key))

    def compare(self, values: Iterable[Value]) -> Comparison:
        """Compare values with the signed digests. Check the signer with `verdict` first."""
        current = {value.index: value for value in values}
        signed: dict[int, set[bytes]] = {}
        for digest in self.digests:
            signed.setdefault(digest.index, set()).add(digest.digest)
        known = self.digest_algorithm.upper() in _HASH_SPELLINGS
        good = {
            index
            for index, digests in signed.items()
            if known and index in current and digests == {ValueDigest.of(current[index]).digest}
        }
        return Comparison(
            verified=tuple(sorted(good)),
            changed=tuple(sorted((signed.keys() & current.keys()) - good)),
            missing=tuple(sorted(signed.keys() - current.keys())),
            unsigned=tuple(sorted(current.keys() - signed.keys())),
        )


@dataclass(frozen=True, slots=True)
class CertPermission:
    """A permission of a certified key."""

    kind: str
    """`everything`, `thisHandle`, `derivedPrefixes` or `handlesUnderThisPrefix`."""
    handle: str | None = None
    """The handle that it applies to."""


@dataclass(frozen=True, slots=True)
class Certificate(_SignedClaims):
    """HS_CERT: certifies the key of an identity and its permissions."""

    public_key: PublicKey = field(init=False, repr=False, compare=False)
    """The key of the subject."""
    permissions: tuple[CertPermission, ...] = field(init=False, compare=False)

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
        """Certify the key of the subject."""
        items = [({} if each.handle is None else {"handle": each.handle}) | {"perm": each.kind} for each in permissions]
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
    """Format `300:0.NA/12345`, or only the handle if that is equivalent."""
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

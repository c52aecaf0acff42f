"""HS_SIGNATURE and HS_CERT: signed claims about a record's values, and about who holds which key.

Both are tokens (`jws`) whose payload claims `iss`, `sub`, `iat`, `nbf`, `exp` and possibly `chain`, the way to the
trust root. HS_SIGNATURE adds `digests` of values, each taken "over its binary encoding from offset 8 (index and
timestamp excluded)"; HS_CERT adds `publicKey` and `perms`. Ordinary resolution does not depend on either.

Whether the chain leads to a root that is trusted is for whoever fetches it; here one link is checked, with the key
and the time given.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from .encoding import from_base64, to_base64
from .errors import InvalidData
from .json_parsing import JsonObject, a_list, a_number, a_text, an_object, member
from .jws import Jws, sign_compact
from .private_keys import PrivateKey
from .public_keys import PublicKey
from .value import Value, ValueRef

MAX_CHAIN: Final = 50
"""The most links to a trust root, as deployed."""

DIGEST_ALGORITHM: Final = "SHA-256"
"""The hash of a value's digest, as it is written."""

_SPELLINGS = ("SHA-256", "SHA256")
_TIME_RANGE = (-(1 << 53), 1 << 53)  # whole numbers that every JSON reader understands


class Verdict(Enum):
    """What is to be said about a token, a key and a time."""

    GOOD = "good"
    WRONG_KEY = "not signed with this key"
    TOO_EARLY = "not valid yet"
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
        chain = a_list(claims.get("chain", []), "the chain")
        if len(chain) > MAX_CHAIN:
            raise InvalidData(f"a chain has at most {MAX_CHAIN} links, not {len(chain)}")
        return cls(
            _ref(member(claims, "iss", "the token"), "the issuer"),
            _ref(member(claims, "sub", "the token"), "the subject"),
            _time(claims, "iat"),
            _time(claims, "nbf"),
            _time(claims, "exp"),
            tuple([_ref(link, "a link of the chain") for link in chain]),
        )

    def to_json(self) -> JsonObject:
        """The claims for a payload."""
        times = {"iat": self.issued_at, "nbf": self.not_before, "exp": self.expires}
        plain: JsonObject = {"iss": _ref_text(self.issuer), "sub": _ref_text(self.subject)}
        plain |= {name: time for name, time in times.items() if time is not None}
        if self.chain:
            plain["chain"] = [_ref_text(link) for link in self.chain]
        return plain


@dataclass(frozen=True, slots=True)
class _Token(Jws):
    """What both types share."""

    claimed: Claims = field(init=False, compare=False)
    """By whom, about what, for how long."""

    def __post_init__(self) -> None:
        Jws.__post_init__(self)
        object.__setattr__(self, "claimed", Claims.from_json(self.claims()))

    def verdict(self, key: PublicKey, now: int) -> Verdict:
        """Whether this key signed it and it is valid now."""
        if not self.is_signed_by(key):
            return Verdict.WRONG_KEY
        if self.claimed.not_before is not None and now < self.claimed.not_before:
            return Verdict.TOO_EARLY
        if self.claimed.expires is None or now >= self.claimed.expires:
            return Verdict.EXPIRED
        return Verdict.GOOD


@dataclass(frozen=True, slots=True)
class ValueDigest:
    """The digest of one value."""

    index: int
    """Which value."""
    octets: bytes
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
class RecordSignature(_Token):
    """HS_SIGNATURE: these values of that handle are as the issuer wants them."""

    digest_algorithm: str = field(init=False, repr=False, compare=False)
    """The hash of the digests; only SHA-256 is known."""
    digests: tuple[ValueDigest, ...] = field(init=False, repr=False, compare=False)
    """What the values were."""

    def __post_init__(self) -> None:
        _Token.__post_init__(self)
        claims = self.claims()
        digests = an_object(member(claims, "digests", "the token"), "the digests")
        items = a_list(member(digests, "digests", "the digests"), "the list of digests")
        object.__setattr__(self, "digest_algorithm", a_text(member(digests, "alg", "the digests"), "the hash"))
        object.__setattr__(self, "digests", tuple([_digest(item) for item in items]))

    @classmethod
    def sign(cls, claims: Claims, values: Iterable[Value], key: PrivateKey) -> Self:
        """Sign values of the handle that the claims name as subject."""
        digests = [ValueDigest.of(value) for value in values]
        items = [{"index": digest.index, "digest": to_base64(digest.octets)} for digest in digests]
        added: JsonObject = {"digests": {"alg": DIGEST_ALGORITHM, "digests": items}}
        return cls(sign_compact(claims.to_json() | added, key))

    def compare(self, values: Iterable[Value]) -> Comparison:
        """Which values are as they were signed. Says nothing about who signed: ask `verdict` first."""
        found = {value.index: value for value in values}
        signed: dict[int, set[bytes]] = {}
        for digest in self.digests:
            signed.setdefault(digest.index, set()).add(digest.octets)
        known = self.digest_algorithm.upper() in _SPELLINGS
        good = {
            index
            for index, octets in signed.items()
            if known and index in found and octets == {ValueDigest.of(found[index]).octets}
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
class Certificate(_Token):
    """HS_CERT: that identity holds this key, and may sign so much with it."""

    public_key: PublicKey = field(init=False, repr=False, compare=False)
    """The key of the subject."""
    permissions: tuple[CertPermission, ...] = field(init=False, compare=False)
    """What it may sign."""

    def __post_init__(self) -> None:
        _Token.__post_init__(self)
        claims = self.claims()
        permissions = a_list(claims.get("perms", []), "the permissions")
        object.__setattr__(self, "public_key", PublicKey.from_json(member(claims, "publicKey", "the token")))
        object.__setattr__(self, "permissions", tuple([_permission(item) for item in permissions]))

    @classmethod
    def sign(
        cls, claims: Claims, public_key: PublicKey, permissions: Iterable[CertPermission], key: PrivateKey
    ) -> Self:
        """Certify the key of the subject that the claims name."""
        items = [({} if one.handle is None else {"handle": one.handle}) | {"perm": one.kind} for one in permissions]
        added: JsonObject = {"publicKey": public_key.to_json(), "perms": items}
        return cls(sign_compact(claims.to_json() | added, key))


def _digest(plain: object) -> ValueDigest:
    members = an_object(plain, "a digest")
    index = a_number(member(members, "index", "a digest"), "the index of a digest")
    return ValueDigest(index, from_base64(a_text(member(members, "digest", "a digest"), "a digest"), "a digest"))


def _permission(plain: object) -> CertPermission:
    members = an_object(plain, "a permission")
    handle = members.get("handle")
    return CertPermission(
        a_text(member(members, "perm", "a permission"), "a permission"),
        None if handle is None else a_text(handle, "the handle of a permission"),
    )


def _ref(plain: object, what: str) -> ValueRef:
    return ValueRef.parse(a_text(plain, what))


def _ref_text(ref: ValueRef) -> str:
    """`300:0.NA/12345`, or the handle alone if that means the same."""
    if ref.index == 0:
        try:
            if ValueRef.parse(ref.handle) == ref:
                return ref.handle
        except InvalidData:
            pass
    return str(ref)


def _time(claims: JsonObject, name: str) -> int | None:
    plain = claims.get(name)
    return None if plain is None else a_number(plain, f'"{name}"', *_TIME_RANGE)

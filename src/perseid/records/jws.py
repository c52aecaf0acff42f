"""JSON Web Signatures (RFC 7515) as values hold them: the container, without what is claimed in it.

Compact form is `HEADER.PAYLOAD.SIGNATURE`, each part in base64url without padding. The JSON form begins with `{` and
holds one signature or several. Two algorithms are in use: `RS256` (RSA, PKCS#1 v1.5, SHA-256) and `DS256` (DSA,
SHA-256, DER), which no standard lists. The algorithm must be named where the signature covers it, and it must be
the key's own: nothing in a token chooses how strictly it is checked.
"""

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Final

from .encoding import from_base64
from .errors import InvalidData
from .json_parsing import JsonObject, a_list, a_text, an_object, member, parse_json, write_json
from .private_keys import PrivateKey
from .public_keys import PublicKey
from .text_types import Text

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
    octets: bytes
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
            and key.verify(_HASH, signature.octets, f"{signature.protected}.{self._encoded}".encode("ascii"))
            for signature in self.signatures
        )

    def claims(self) -> JsonObject:
        """The payload as a JSON object."""
        return an_object(parse_json(self.payload), "the payload of the token")


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
    return payload, (_signature(header, signature),)


def _from_json(text: str) -> tuple[str, tuple[JwsSignature, ...]]:
    members = an_object(parse_json(text), "the token")
    payload = a_text(member(members, "payload", "the token"), "the payload")
    items = a_list(members["signatures"], "the signatures") if "signatures" in members else [members]
    if not 1 <= len(items) <= MAX_JWS_SIGNATURES:
        raise InvalidData(f"a token has 1 to {MAX_JWS_SIGNATURES} signatures, not {len(items)}")
    signatures = []
    for item in items:
        one = an_object(item, "a signature")
        header = a_text(member(one, "protected", "a signature"), "the header")
        signatures.append(_signature(header, a_text(member(one, "signature", "a signature"), "the signature")))
    return payload, tuple(signatures)


def _signature(protected: str, signature: str) -> JwsSignature:
    header = an_object(parse_json(_decode(protected, "the header")), "the header of the token")
    if "crit" in header:
        raise InvalidData("the token demands extensions that are not known (crit)")
    algorithm = a_text(member(header, "alg", "the header of the token"), "the algorithm")
    return JwsSignature(protected, algorithm, _decode(signature, "the signature"))


def _decode(part: str, what: str) -> bytes:
    if not _PART.fullmatch(part):
        raise InvalidData(f"{what} of the token is not base64url")
    return from_base64(part, f"{what} of the token")


def _encode(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode("ascii")

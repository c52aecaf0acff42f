"""The `Handle` scheme of the Authorization header (HTTP API, 7.4): its fields, and the claim that they make.

    Handle sessionId="…", id="300%3A12345/user", type="HS_PUBKEY", cnonce="…", alg="SHA256", signature="…"

A field is a name, which has no case, and a token or a quoted string. In the header the id is percent-encoded; in JSON,
where the same fields may stand, it is not. What is proved with is in `handle_proofs`; here is only what is written.

A field that comes twice makes the header unreadable: whoever reads the first and whoever reads the last would take it
for two different claims.

Whether a key made the signature that a claim of the `Handle` scheme comes with (HTTP API, 7.4).

Signed are the server's nonce and the client's, one behind the other:

    HS_PUBKEY                          RSA (PKCS#1 v1.5) or DSA (DER), with the hash that `alg` names
    HS_SECKEY, MD5, SHA1, SHA-256      hash(secret nonce cnonce secret)
    HS_SECKEY, HMAC-SHA1, HMAC-SHA256  HMAC(secret, nonce cnonce)
    HS_SECKEY, PBKDF2-HMAC-SHA1        HMAC-SHA1(PBKDF2(secret, salt, iterations, length), nonce cnonce)

Deployed software hands PBKDF2 every octet of the secret as a character, and that is encoded in UTF-8 (see `pbkdf2`), so
octets from 0x80 on are encoded twice. Whoever writes a client after a description derives from the octets as they are.
Both are taken: neither can be made without the secret.

Where there is no key the work is done with one that nobody has, so that the time it takes does not tell who exists.
"""

import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from perseid.records.ciphers import MAX_DERIVED_BITS, MIN_DERIVED_BITS, derive_key, latin1_to_utf8
from perseid.records.encoding import from_base64
from perseid.records.errors import InvalidData
from perseid.records.private_keys import PrivateKey
from perseid.records.public_keys import PublicKey
from perseid.records.types import HS_PUBKEY, HS_SECKEY
from perseid.records.value import Value, ValueRef
from perseid.registry.identity import Proof
from perseid.wire.hashes import HASHES, Algorithm, mac

MAX_NONCE: Final = 1_024
"""Octets of a nonce or salt: deployed clients send 16, and what is longer says no more."""

MIN_CLIENT_NONCE: Final = 8
"""Octets of a client's nonce, where it proves something. Deployed servers take none at all, and with that the same
answer to the same challenge each time."""

MAX_SIGNATURE: Final = 2_048
"""Octets of a signature: those of the longest RSA keys here have 1,024."""

MAX_ITERATIONS: Final = 1_000_000
"""Of PBKDF2, ten times what the native protocol allows: HTTP clients follow what is advised for passwords today. With a
derived key of 160 bits that costs 0.4 s, which the budget of whoever asks for it bears."""

MAX_DIGITS: Final = 9
"""Of a number; none has more."""

CLAIM_FIELDS: Final = frozenset(("id", "type", "alg", "signature"))
"""Fields by which somebody says who they are; any of them makes it a claim."""

_REQUIRED_FIELDS: Final = ("id", "type", "cnonce", "alg", "signature")
_VERSION: Final = "0"
_BLOCK_BITS: Final = 160  # of PBKDF2 with SHA-1: each costs all iterations

_KINDS: Final = {HS_PUBKEY: Proof.PUBLIC_KEY, HS_SECKEY: Proof.SECRET_KEY}
_WEAK: Final = frozenset((Algorithm.MD5, Algorithm.SHA1))
_ALGORITHMS: Final = {
    "MD5": Algorithm.MD5,
    "SHA": Algorithm.SHA1,
    "SHA1": Algorithm.SHA1,
    "SHA2": Algorithm.SHA256,
    "SHA256": Algorithm.SHA256,
    "HMACSHA1": Algorithm.HMAC_SHA1,
    "HMACSHA256": Algorithm.HMAC_SHA256,
    "PBKDF2HMACSHA1": Algorithm.PBKDF2_HMAC_SHA1,
    "PBKDF2WITHHMACSHA1": Algorithm.PBKDF2_HMAC_SHA1,
}
"""By their names in capitals, without punctuation."""

_PUNCTUATION = re.compile("[^A-Z0-9]")
_MAX_NAME = 32

# A value that is not quoted may hold what base64 and percent-encoding have, though a token of HTTP may not.
_PARAMETER = re.compile(
    r"""
    (?P<name> [!#$%&'*+\-.^_`|~0-9A-Za-z]+ )
    [ \t]*=[ \t]*
    (?: " (?P<quoted> (?: [^"\\] | \\. )* ) " | (?P<token> [^\s,"\\]+ ) )
    """,
    re.VERBOSE | re.DOTALL,
)
_GAP = re.compile(r"[ \t]*(?:,[ \t]*)*")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TO_ESCAPE = re.compile(r'["\\]')
_ID_SAFE = ":/"


class InvalidFields(Exception):
    """Fields that make no claim; the message says what is wrong, and holds nothing secret."""


@dataclass(frozen=True, slots=True)
class Claim:
    """That somebody is who they say, and what is to prove it."""

    written: str
    """Who they say to be, as they wrote it; that is told back to them."""
    reference: ValueRef
    """The key that they name; index 0 if it is to be found."""
    kind: Proof
    algorithm: Algorithm
    cnonce: bytes
    signature: bytes = field(repr=False)
    salt: bytes = b""
    iterations: int = 0
    bits: int = 0
    """Parameters of PBKDF2."""

    @property
    def rounds(self) -> int:
        """What one try of PBKDF2 costs: iterations, for each block of the derived key; 0 for everything else."""
        return self.iterations * -(-self.bits // _BLOCK_BITS)


def parse_fields(text: str) -> dict[str, str] | None:
    """The fields behind the name of the scheme, their names in small letters; None if they cannot be read."""
    fields: dict[str, str] = {}
    at = _skip_gap(text, 0)
    while at < len(text):
        found = _PARAMETER.match(text, at)
        if found is None:
            return None
        name = found["name"].lower()
        if name in fields:
            return None
        quoted = found["quoted"]
        fields[name] = found["token"] if quoted is None else _ESCAPED.sub(r"\1", quoted)
        at = _skip_gap(text, found.end())
        if at < len(text) and "," not in text[found.end() : at]:
            return None
    return fields


def format_fields(fields: Mapping[str, str]) -> str:
    """Fields as they stand in a header, all quoted; they must hold nothing but what a header may hold."""
    return ", ".join(f'{name}="{_TO_ESCAPE.sub(_escape, value)}"' for name, value in fields.items())


def _escape(found: "re.Match[str]") -> str:
    return f"\\{found.group()}"


def _skip_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def encode_error(text: str) -> str:
    """A sentence as the field `error` has it: ASCII, all else percent-encoded, and the percent sign with it."""
    return quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


def id_from_header(text: str) -> str:
    """The id as it is meant; raises `NotUnderstood` if it is not UTF-8."""
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode("utf-8")
    except UnicodeError:
        raise InvalidFields("the id is not UTF-8, percent-encoded") from None


def id_to_header(text: str) -> str:
    """An id as it stands in the header."""
    return quote(text, safe=_ID_SAFE)


def check_version(fields: Mapping[str, str]) -> None:
    """Refuse another version than the one that there is."""
    if fields.get("version", _VERSION) != _VERSION:
        raise InvalidFields("the version of the Handle scheme is not known; this server has version 0")


def is_claim(fields: Mapping[str, str]) -> bool:
    """Whether somebody says who they are."""
    return not CLAIM_FIELDS.isdisjoint(fields)


def client_nonce(fields: Mapping[str, str]) -> bytes | None:
    """The nonce by which a client asks the server to prove itself; None if it does not ask for that."""
    text = fields.get("cnonce")
    return None if text is None or is_claim(fields) else decode_base64(text, "cnonce")


def parse_claim(fields: Mapping[str, str], *, weak_digests: bool) -> Claim:
    """The claim that fields make, the id as it is meant; raises `NotUnderstood`."""
    missing = [name for name in _REQUIRED_FIELDS if name not in fields]
    if missing:
        raise InvalidFields(f"fields are missing: {', '.join(missing)}")
    kind = _KINDS.get(fields["type"].upper())
    if kind is None:
        raise InvalidFields("the type is neither HS_PUBKEY nor HS_SECKEY")
    algorithm = parse_algorithm(fields["alg"], kind, weak_digests=weak_digests)
    cnonce = decode_base64(fields["cnonce"], "cnonce")
    if len(cnonce) < MIN_CLIENT_NONCE:
        raise InvalidFields(f"the cnonce has fewer than {MIN_CLIENT_NONCE} octets; 16 that nobody can guess are usual")
    try:
        reference = ValueRef.parse(fields["id"])
    except InvalidData:
        raise InvalidFields("the id is not of the form INDEX:HANDLE") from None
    signature = decode_base64(fields["signature"], "signature", MAX_SIGNATURE)
    return Claim(fields["id"], reference, kind, algorithm, cnonce, signature, *parse_derivation(fields, algorithm))


def parse_algorithm(text: str, kind: Proof, *, weak_digests: bool) -> Algorithm:
    """What the name of an algorithm means, for a kind of key; raises `NotUnderstood`."""
    algorithm = _ALGORITHMS.get(_PUNCTUATION.sub("", text.upper())) if len(text) <= _MAX_NAME else None
    if algorithm is None or (kind is Proof.PUBLIC_KEY and algorithm not in HASHES):
        known = "SHA-256, SHA-1 or MD5" if kind is Proof.PUBLIC_KEY else "SHA-256, HMAC-SHA256 or PBKDF2-HMAC-SHA1"
        raise InvalidFields(f"the alg is not known for such a key; take {known}")
    if algorithm in _WEAK and not weak_digests:
        raise InvalidFields(f"this server does not take {algorithm.spelling}; take SHA-256 or an HMAC")
    return algorithm


def parse_derivation(fields: Mapping[str, str], algorithm: Algorithm) -> tuple[bytes, int, int]:
    """Salt, iterations and length in bits for PBKDF2, of which an algorithm without them has none."""
    if algorithm is not Algorithm.PBKDF2_HMAC_SHA1:
        return b"", 0, 0
    missing = [name for name in ("salt", "iterations", "length") if name not in fields]
    if missing:
        raise InvalidFields(f"fields are missing for PBKDF2: {', '.join(missing)}")
    iterations, bits = _parse_number(fields["iterations"], "iterations"), _parse_number(fields["length"], "length")
    if not MIN_DERIVED_BITS <= bits <= MAX_DERIVED_BITS or bits % 8:
        raise InvalidFields(
            f"the length should be {MIN_DERIVED_BITS} to {MAX_DERIVED_BITS} bits, in whole octets; 160 is usual"
        )
    if not 1 <= iterations * -(-bits // _BLOCK_BITS) <= MAX_ITERATIONS:
        reason = f"the iterations, for each {_BLOCK_BITS} bits of the length, are not between 1 and {MAX_ITERATIONS:,}"
        raise InvalidFields(reason)
    return decode_base64(fields["salt"], "salt"), iterations, bits


def decode_base64(text: str, what: str, limit: int = MAX_NONCE) -> bytes:
    """Octets that are written in base64."""
    try:
        found = from_base64(text, what)
    except InvalidData:
        raise InvalidFields(f"the {what} is not base64") from None
    if len(found) > limit:
        raise InvalidFields(f"the {what} has more than {limit:,} octets")
    return found


def _parse_number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS:
        raise InvalidFields(f"the {what} should be a number of at most {MAX_DIGITS} digits")
    return int(text)


SERVER_ALGORITHM: Final = Algorithm.SHA256
"""With which the server proves itself, as deployed ones do."""

MIN_TRIES: Final = 2
"""How often PBKDF2 is tried at least, whatever it costs: for one secret, both ways."""

ROUND_SECONDS: Final = 4e-7
"""What one iteration of PBKDF2 takes."""

DUMMY_KEY: Final = Value(1, HS_SECKEY, bytes(range(32)))
"""A key for the time that a check takes; what is checked with it counts for nothing."""


_BASE_COST: Final = 0.0005  # seconds for what is done besides


def matching_signature_key(claim: Claim, nonce: bytes, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that made the signature; None if it is none of them. Takes long."""
    signed = nonce + claim.cnonce
    if claim.kind is Proof.PUBLIC_KEY:
        return next((key for key in keys if _verify_signature(key, claim, signed)), None)
    candidates = [key for key in keys if key.data]  # an empty secret everybody knows
    return next(
        (key for key, made in _check_keys(claim, signed, candidates or [DUMMY_KEY]) if made and candidates), None
    )


def verification_cost(claim: Claim) -> float | None:
    """What it costs to check a claim, in seconds of a processor, if that is a matter of the claim: derivations."""
    return MIN_TRIES * claim.rounds * ROUND_SECONDS + _BASE_COST if claim.rounds else None


def sign(key: PrivateKey, nonce: bytes, cnonce: bytes) -> bytes:
    """By what the server proves that it is itself. Takes long."""
    return key.sign(SERVER_ALGORITHM.spelling, nonce + cnonce)


def _verify_signature(value: Value, claim: Claim, signed: bytes) -> bool:
    try:
        key = PublicKey.from_bytes(value.data)
    except InvalidData:
        return False
    return key.verify(claim.algorithm.spelling, claim.signature, signed)


def _check_keys(claim: Claim, signed: bytes, keys: Sequence[Value]) -> Iterator[tuple[Value, bool]]:
    """For each key whether the signature was made with it; with PBKDF2 for as many as may be tried."""
    if claim.algorithm is not Algorithm.PBKDF2_HMAC_SHA1:
        for key in keys:
            yield key, hmac.compare_digest(mac(claim.algorithm, key.data, signed), claim.signature)
        return
    tries = max(MIN_TRIES, MAX_ITERATIONS // max(1, claim.rounds))
    for key in keys:
        for secret in dict.fromkeys((latin1_to_utf8(key.data), key.data)):
            if tries == 0:
                return
            tries -= 1
            derived = derive_key(secret, claim.salt, claim.iterations, claim.bits, limit=MAX_ITERATIONS)
            yield key, hmac.compare_digest(mac(Algorithm.HMAC_SHA1, derived, signed), claim.signature)

"""The `Handle` scheme of the Authorization header (HTTP API, 7.4): its fields, claims and signatures.

    Handle sessionId="…", id="300%3A12345/user", type="HS_PUBKEY", cnonce="…", alg="SHA256", signature="…"

A field is a case-insensitive name, and a token or a quoted string. In the header the id is percent-encoded; in JSON,
which may contain the same fields, it is not. A repeated field makes the header invalid: parsers that use the first and
those that use the last would read different claims.

The signature covers the server's nonce followed by the client's:

    HS_PUBKEY                          RSA (PKCS#1 v1.5) or DSA (DER), with the hash named by `alg`
    HS_SECKEY, MD5, SHA1, SHA-256      hash(secret nonce cnonce secret)
    HS_SECKEY, HMAC-SHA1, HMAC-SHA256  HMAC(secret, nonce cnonce)
    HS_SECKEY, PBKDF2-HMAC-SHA1        HMAC-SHA1(PBKDF2(secret, salt, iterations, length), nonce cnonce)

Deployed software passes every byte of the secret to PBKDF2 as a character encoded in UTF-8 (see `latin1_to_utf8`), so
bytes from 0x80 on are encoded twice. Clients written from a description use the bytes as they are. Both are accepted:
neither is possible without the secret.

If there is no key, the work is done with a dummy, so that timing does not reveal which identities exist.
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
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_PUBKEY, HS_SECKEY
from perseid.registry.identity import Proof
from perseid.server.native.authentication import DUMMY_SECRET, count_secrets, find_proving_public_key
from perseid.wire.credentials import HASHES, Algorithm, mac

MAX_NONCE: Final = 1_024
"""Bytes of a nonce or salt: deployed clients send 16, and longer ones add nothing."""

MIN_CLIENT_NONCE: Final = 8
"""Bytes of a client's nonce in a claim. Deployed servers also accept none, and with it the same response to the same
challenge each time."""

MAX_SIGNATURE: Final = 2_048
"""Bytes of a signature: those of the longest supported RSA keys have 1,024."""

MAX_ITERATIONS: Final = 1_000_000
"""Iterations of PBKDF2, ten times the limit of the native protocol: HTTP clients follow current advice for passwords.
With a derived key of 160 bits that costs 0.4 s, charged to the budget of the caller."""

MAX_DIGITS: Final = 9
"""Digits of a number."""

CLAIM_FIELDS: Final = frozenset(("id", "type", "alg", "signature"))
"""Fields that claim an identity; any of them makes it a claim."""

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
"""By name, in uppercase and without punctuation."""

_PUNCTUATION = re.compile("[^A-Z0-9]")
_MAX_NAME = 32

# An unquoted value may contain the characters of base64 and percent-encoding, though an HTTP token may not.
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


class InvalidFields(Exception):
    """Invalid fields; the message says what is wrong and contains no secret."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed identity and its proof."""

    written: str
    """The identity as the client wrote it, which is returned to the client."""
    reference: ValueRef
    """The key; index 0 if it must be searched."""
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
        """The cost of one PBKDF2 attempt: iterations for each block of the derived key; 0 without PBKDF2."""
        return self.iterations * -(-self.bits // _BLOCK_BITS)


def parse_fields(text: str) -> dict[str, str] | None:
    """Parse the fields after the scheme, names in lowercase; None if they are invalid."""
    fields: dict[str, str] = {}
    at = _skip_gap(text, 0)
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None:
            return None
        name = match["name"].lower()
        if name in fields:
            return None
        quoted = match["quoted"]
        fields[name] = match["token"] if quoted is None else _ESCAPED.sub(r"\1", quoted)
        at = _skip_gap(text, match.end())
        if at < len(text) and "," not in text[match.end() : at]:
            return None
    return fields


def format_fields(fields: Mapping[str, str]) -> str:
    """Format fields for a header, all quoted; the values must be valid header text."""
    return ", ".join(f'{name}="{_TO_ESCAPE.sub(_escape, value)}"' for name, value in fields.items())


def _escape(match: "re.Match[str]") -> str:
    return f"\\{match.group()}"


def _skip_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def encode_error(text: str) -> str:
    """Encode a sentence for the field `error`: ASCII, all else and the percent sign percent-encoded."""
    return quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


def id_from_header(text: str) -> str:
    """Decode the id in a header; raises `InvalidFields`."""
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode("utf-8")
    except UnicodeError:
        raise InvalidFields("the id is not percent-encoded UTF-8") from None


def check_version(fields: Mapping[str, str]) -> None:
    """Refuse an unknown version."""
    if fields.get("version", _VERSION) != _VERSION:
        raise InvalidFields("the version of the Handle scheme is not supported; use version 0")


def is_claim(fields: Mapping[str, str]) -> bool:
    """Whether fields claim an identity."""
    return not CLAIM_FIELDS.isdisjoint(fields)


def client_nonce(fields: Mapping[str, str]) -> bytes | None:
    """The nonce with which a client requests the server's proof of identity; None if it does not."""
    text = fields.get("cnonce")
    return None if text is None or is_claim(fields) else decode_base64(text, "cnonce")


def parse_claim(fields: Mapping[str, str], *, weak_digests: bool) -> Claim:
    """Parse the claim in decoded fields; raises `InvalidFields`."""
    missing = [name for name in _REQUIRED_FIELDS if name not in fields]
    if missing:
        raise InvalidFields(f"fields are missing: {', '.join(missing)}")
    kind = _KINDS.get(fields["type"].upper())
    if kind is None:
        raise InvalidFields("the type must be HS_PUBKEY or HS_SECKEY")
    algorithm = parse_algorithm(fields["alg"], kind, weak_digests=weak_digests)
    cnonce = decode_base64(fields["cnonce"], "cnonce")
    if len(cnonce) < MIN_CLIENT_NONCE:
        raise InvalidFields(f"the cnonce has fewer than {MIN_CLIENT_NONCE} bytes; send 16 random bytes")
    try:
        reference = ValueRef.parse(fields["id"])
    except InvalidData:
        raise InvalidFields("the id is not of the form INDEX:HANDLE") from None
    signature = decode_base64(fields["signature"], "signature", MAX_SIGNATURE)
    return Claim(fields["id"], reference, kind, algorithm, cnonce, signature, *parse_derivation(fields, algorithm))


def parse_algorithm(text: str, kind: Proof, *, weak_digests: bool) -> Algorithm:
    """Parse an algorithm for a kind of key; raises `InvalidFields`."""
    algorithm = _ALGORITHMS.get(_PUNCTUATION.sub("", text.upper())) if len(text) <= _MAX_NAME else None
    if algorithm is None or (kind is Proof.PUBLIC_KEY and algorithm not in HASHES):
        known = "SHA-256, SHA-1 or MD5" if kind is Proof.PUBLIC_KEY else "SHA-256, HMAC-SHA256 or PBKDF2-HMAC-SHA1"
        raise InvalidFields(f"the alg is not supported for this type of key; use {known}")
    if algorithm in _WEAK and not weak_digests:
        raise InvalidFields(f"this server does not accept {algorithm.spelling}; use SHA-256 or an HMAC")
    return algorithm


def parse_derivation(fields: Mapping[str, str], algorithm: Algorithm) -> tuple[bytes, int, int]:
    """Parse salt, iterations and length in bits for PBKDF2; all empty for other algorithms."""
    if algorithm is not Algorithm.PBKDF2_HMAC_SHA1:
        return b"", 0, 0
    missing = [name for name in ("salt", "iterations", "length") if name not in fields]
    if missing:
        raise InvalidFields(f"fields are missing for PBKDF2: {', '.join(missing)}")
    iterations, bits = _parse_number(fields["iterations"], "iterations"), _parse_number(fields["length"], "length")
    if not MIN_DERIVED_BITS <= bits <= MAX_DERIVED_BITS or bits % 8:
        raise InvalidFields(
            f"the length must be {MIN_DERIVED_BITS} to {MAX_DERIVED_BITS} bits, a multiple of 8; 160 is usual"
        )
    if not 1 <= iterations * -(-bits // _BLOCK_BITS) <= MAX_ITERATIONS:
        reason = f"the iterations, times each {_BLOCK_BITS} bits of the length, must be 1 to {MAX_ITERATIONS:,}"
        raise InvalidFields(reason)
    return decode_base64(fields["salt"], "salt"), iterations, bits


def decode_base64(text: str, what: str, limit: int = MAX_NONCE) -> bytes:
    """Decode a base64 field; raises `InvalidFields`."""
    try:
        data = from_base64(text, what)
    except InvalidData:
        raise InvalidFields(f"the {what} is not base64") from None
    if len(data) > limit:
        raise InvalidFields(f"the {what} has more than {limit:,} bytes")
    return data


def _parse_number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS:
        raise InvalidFields(f"the {what} must be a number of at most {MAX_DIGITS} digits")
    return int(text)


SERVER_ALGORITHM: Final = Algorithm.SHA256
"""The algorithm of the server's own proof, as in deployed servers."""

MIN_TRIES: Final = 2
"""Minimum number of PBKDF2 attempts, whatever they cost: both encodings of one secret. A wrong proof always takes as
many as are possible, so that its time reveals nothing about the secrets."""

ROUND_SECONDS: Final = 4e-7
"""Seconds of one PBKDF2 iteration."""

DUMMY_KEY: Final = Value(1, HS_SECKEY, DUMMY_SECRET)
"""A key that keeps the time of a check constant; its result is ignored."""


_BASE_COST: Final = 0.0005  # seconds for everything else


def matching_signature_key(claim: Claim, nonce: bytes, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that made the signature; None if none did. Slow."""
    signed = nonce + claim.cnonce
    if claim.kind is Proof.PUBLIC_KEY:
        return find_proving_public_key(keys, lambda key: key.verify(claim.algorithm.spelling, claim.signature, signed))
    candidates = [key for key in keys if key.data]  # an empty secret proves nothing
    return next(
        (key for key, matches in _check_keys(claim, signed, candidates or [DUMMY_KEY]) if matches and candidates), None
    )


def verification_cost(claim: Claim) -> float | None:
    """Processor seconds for the PBKDF2 derivations of a claim; None without PBKDF2."""
    return _count_tries(claim) * claim.rounds * ROUND_SECONDS + _BASE_COST if claim.rounds else None


def _count_tries(claim: Claim) -> int:
    """PBKDF2 attempts for a claim: both encodings of each secret, but not more than the limit of iterations allows."""
    allowed = max(MIN_TRIES, MAX_ITERATIONS // max(1, claim.rounds))
    return min(allowed, MIN_TRIES * count_secrets(claim.reference.index))


def sign(key: PrivateKey, nonce: bytes, cnonce: bytes) -> bytes:
    """Create the server's proof of identity. Slow."""
    return key.sign(SERVER_ALGORITHM.spelling, nonce + cnonce)


def _check_keys(claim: Claim, signed: bytes, keys: Sequence[Value]) -> Iterator[tuple[Value, bool]]:
    """Check each key; with PBKDF2 always the same number, see `_count_tries`."""
    if claim.algorithm is not Algorithm.PBKDF2_HMAC_SHA1:
        for key in keys:
            yield key, hmac.compare_digest(mac(claim.algorithm, key.data, signed), claim.signature)
        return
    tries = _count_tries(claim)
    secrets = [(key, data) for key in keys for data in dict.fromkeys((latin1_to_utf8(key.data), key.data))][:tries]
    padding = [(DUMMY_KEY, DUMMY_SECRET)] * (tries - len(secrets))
    for key, secret in (*secrets, *padding):
        derived = derive_key(secret, claim.salt, claim.iterations, claim.bits, limit=MAX_ITERATIONS)
        is_equal = hmac.compare_digest(mac(Algorithm.HMAC_SHA1, derived, signed), claim.signature)
        yield key, is_equal and key is not DUMMY_KEY

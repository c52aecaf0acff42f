"""Whether a key made the signature that a claim of the `Handle` scheme comes with (HTTP API, 7.4).

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
from collections.abc import Iterator, Sequence
from typing import Final

from perseid.records.ciphers import derive, widened
from perseid.records.errors import InvalidData
from perseid.records.private_keys import PrivateKey
from perseid.records.public_keys import PublicKey
from perseid.records.types import HS_SECKEY
from perseid.records.value import Value
from perseid.registry.identity import Proof
from perseid.server.http.auth.handle_scheme import MAX_ITERATIONS, Claim
from perseid.wire.credentials import Algorithm, mac

SERVER_ALGORITHM: Final = Algorithm.SHA256
"""With which the server proves itself, as deployed ones do."""

MIN_TRIES: Final = 2
"""How often PBKDF2 is tried at least, whatever it costs: for one secret, both ways."""

ROUND_SECONDS: Final = 4e-7
"""What one iteration of PBKDF2 takes."""

NOBODYS: Final = Value(1, HS_SECKEY, bytes(range(32)))
"""A key for the time that a check takes; what is checked with it counts for nothing."""


_LEAST: Final = 0.0005  # seconds for what is done besides


def proving(claim: Claim, nonce: bytes, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that made the signature; None if it is none of them. Takes long."""
    signed = nonce + claim.cnonce
    if claim.kind is Proof.PUBLIC_KEY:
        return next((key for key in keys if _has_signed(key, claim, signed)), None)
    candidates = [key for key in keys if key.data]  # an empty secret everybody knows
    return next((key for key, made in _made(claim, signed, candidates or [NOBODYS]) if made and candidates), None)


def price_of(claim: Claim) -> float | None:
    """What it costs to check a claim, in seconds of a processor, if that is a matter of the claim: derivations."""
    return MIN_TRIES * claim.rounds * ROUND_SECONDS + _LEAST if claim.rounds else None


def sign(key: PrivateKey, nonce: bytes, cnonce: bytes) -> bytes:
    """By what the server proves that it is itself. Takes long."""
    return key.sign(SERVER_ALGORITHM.spelling, nonce + cnonce)


def _has_signed(value: Value, claim: Claim, signed: bytes) -> bool:
    try:
        key = PublicKey.from_bytes(value.data)
    except InvalidData:
        return False
    return key.verify(claim.algorithm.spelling, claim.signature, signed)


def _made(claim: Claim, signed: bytes, keys: Sequence[Value]) -> Iterator[tuple[Value, bool]]:
    """For each key whether the signature was made with it; with PBKDF2 for as many as may be tried."""
    if claim.algorithm is not Algorithm.PBKDF2_HMAC_SHA1:
        for key in keys:
            yield key, hmac.compare_digest(mac(claim.algorithm, key.data, signed), claim.signature)
        return
    tries = max(MIN_TRIES, MAX_ITERATIONS // max(1, claim.rounds))
    for key in keys:
        for secret in dict.fromkeys((widened(key.data), key.data)):
            if tries == 0:
                return
            tries -= 1
            derived = derive(secret, claim.salt, claim.iterations, claim.bits, most=MAX_ITERATIONS)
            yield key, hmac.compare_digest(mac(Algorithm.HMAC_SHA1, derived, signed), claim.signature)

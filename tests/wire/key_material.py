"""Keys for tests: those of the recorded exchanges, and others that are created quickly."""

import json
from functools import cache
from math import gcd, prod
from typing import Any, Final

from hypothesis import strategies as st

from perseid.records.errors import InvalidData
from perseid.records.keys import MAX_KEY_BITS, MIN_KEY_BITS, DhPublicKey, DsaPublicKey, PublicKey, RsaPublicKey
from perseid.records.private_keys import (
    DsaPrivateKey,
    PrivateKey,
    RsaPrivateKey,
    RsaPrivateKeyWithoutPrimes,
    read_key_file,
)
from tests.wire.recorded import FOLDER, key_file

KEY_FILES: Final = {"privkey.bin": "pubkey.bin", "rsapriv.bin": "rsapub.bin", "dsapriv.bin": "dsapub.bin"}
"""The recorded private keys and their public keys."""


def codec_vectors(file: str) -> list[Any]:
    """The vectors of one of the codec-* files."""
    vectors = json.loads((FOLDER / file).read_text(encoding="utf-8"))
    assert isinstance(vectors, list)
    return vectors


def private_key(file: str) -> PrivateKey:
    """A recorded private key, which has no passphrase."""
    return read_key_file(key_file(file), None)


SERVER_KEY: Final = private_key("privkey.bin")
RSA_KEY: Final = private_key("rsapriv.bin")
DSA_KEY: Final = private_key("dsapriv.bin")
SECRET: Final = key_file("secret.txt")


def dsa_key() -> DsaPrivateKey:
    """The recorded DSA key, with its own type."""
    assert isinstance(DSA_KEY, DsaPrivateKey)
    return DSA_KEY


_SMALL_PRIMES: Final = prod(
    number for number in range(3, 2000, 2) if all(number % part for part in range(3, 45, 2) if part < number)
)


@cache
def next_prime(start: int, e: int) -> int:
    """The next probable prime for a key with exponent e. Not secure."""
    start |= 1
    while (
        gcd(start, _SMALL_PRIMES) != 1
        or gcd(start - 1, e) != 1
        or pow(2, start - 1, start) != 1
        or pow(3, start - 1, start) != 1
    ):
        start += 2
    return start


@cache
def rsa_key(bits: int = 1024, seed: int = 0, e: int = 65_537) -> RsaPrivateKey:
    """An RSA key of a length, always the same for a seed."""
    half = bits // 2
    p, q = next_prime((3 << half - 2) + (seed << 64), e), next_prime((7 << bits - half - 3) + (seed << 64), e)
    return RsaPrivateKey.from_primes(p, q, e, pow(e, -1, (p - 1) * (q - 1)))


def _dsa(x: int) -> DsaPrivateKey:
    group = dsa_key()
    return DsaPrivateKey(x % (group.q - 2) + 2, group.p, group.q, group.g)


odd_numbers = st.integers(MIN_KEY_BITS, 2048) | st.just(MAX_KEY_BITS)
moduli = odd_numbers.flatmap(lambda bits: st.integers(1 << bits - 1, (1 << bits) - 1)).map(lambda number: number | 1)

rsa_public_keys = st.builds(RsaPublicKey, st.integers(1, (1 << 32) - 1).map(lambda half: 2 * half + 1), moduli)
dsa_public_keys = st.builds(
    DsaPublicKey,
    st.integers(1 << 159, (1 << 256) - 1),
    moduli,
    st.integers(2, 1 << 500),
    st.integers(2, 1 << 500),
)
dh_public_keys = st.integers(512, 4096).flatmap(
    lambda bits: st.builds(
        DhPublicKey,
        st.integers(2, (1 << bits - 1) - 2),
        st.integers(1 << bits - 1, (1 << bits) - 1).map(lambda number: number | 1),
        st.integers(2, 1 << 500),
    )
)
public_keys: st.SearchStrategy[PublicKey] = st.one_of(rsa_public_keys, dsa_public_keys, dh_public_keys)

RSA_KEYS: Final = (rsa_key(), rsa_key(1040, 1, 17), rsa_key(1536, 2))
PLAIN_RSA_KEYS: Final = tuple(RsaPrivateKeyWithoutPrimes(key.n, key.d) for key in RSA_KEYS)

dsa_private_keys = st.integers(0, 1 << 160).map(_dsa)
private_keys: st.SearchStrategy[PrivateKey] = st.sampled_from(RSA_KEYS + PLAIN_RSA_KEYS) | dsa_private_keys


def refused(make: Any, *arguments: Any) -> str:
    """Return the error message; fail if there is no error."""
    try:
        result = make(*arguments)
    except InvalidData as error:
        return str(error)
    raise AssertionError(f"{result!r} should not exist")

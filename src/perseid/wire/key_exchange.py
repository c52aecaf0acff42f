"""Key exchange for sessions (native protocol §15.3, §15.4, §21.6).

Diffie–Hellman: the client chooses a group and sends y, p, g; the server creates a key pair in the same group and
returns its own y, p, g. Both then have the secret Z, as long as the modulus, with leading zeros:

    AES    drop leading zero bytes of Z (while more than 32 bytes remain), take the first 32
    DES    the first 8 bytes of Z, parity bits set to odd
    3DES   the first 24 bytes of Z, parity adjusted

Nothing is hashed. The RSA modes encrypt the key itself: "i32 cipher id, key", or the key alone before 2.2.

There are two implementations. The `cryptography` library takes constant time, but tests unknown moduli for primality:
70 ms per exchange for the 1024 bits of deployed clients, 7 s for 4096 bits chosen by an untrusted peer. So it is used
for the groups that it knows, as long as it has Diffie–Hellman (deprecated in version 50), and pow() for the others, in
2 to 20 ms. The timing of pow() reveals little, because every exponent is used once.
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from perseid.records.binary import Reader, Writer
from perseid.records.errors import InvalidData
from perseid.records.private_keys import RsaPrivateKey
from perseid.records.public_keys import DhPublicKey, RsaPublicKey, check_dh_group

from .codes import Version
from .sessions import Cipher

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        from cryptography.hazmat.primitives.asymmetric.dh import (
            DHParameterNumbers,
            DHPrivateNumbers,
            DHPublicNumbers,
        )
    LIBRARY_HAS_DH = True
except ImportError:  # pragma: no cover - a later version of the library
    LIBRARY_HAS_DH = False

DEFAULT_GROUP: Final = (
    int(
        "ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e3404dd"
        "ef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7ed"
        "ee386bfb5a899fa5ae9f24117c4b1fe649286651ece65381ffffffffffffffff",
        16,
    ),
    2,
)
"""Modulus and generator of deployed clients: Oakley group 2, 1024 bits."""

EXPONENT_LENGTH: Final = 32
"""Size of a private exponent in bytes: 256 bits give 128 bits of security."""

_NAMED_GROUPS: Final = frozenset(
    (
        "64fcc83ec403930bf18393dbc883ccaa1fbb08ac876f77f7aa99748ca945019b",  # RFC 3526, 1536 bits
        "d66436f79bbd6b2e38c0ffbd079be904d2641415e2e67140e09448be9a60890e",  # 2048
        "48cf8b092fbce4359d9871abf74f98e25b6163379eaa15cd9087e800c6d1c55c",  # 3072
        "4ee95187682bcb230ad26a95205f6920e84708f6251b3894329b09ec23919e33",  # 4096
        "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",  # RFC 7919, 2048 bits
        "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",  # 3072
        "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",  # 4096
    )
)
"""SHA-256 of the moduli that the library knows to be prime; their generator is 2."""

_ATTEMPTS = 8  # to draw an exponent; one suffices in every real group
_AES_KEY_LENGTH = 32
_DES_KEY_LENGTHS = {Cipher.DES: 8, Cipher.TDES: 24}
_RSA_MODE_KEY_LENGTHS = {Cipher.DES: 8, Cipher.TDES: 24, Cipher.AES: 16}


@dataclass(frozen=True, slots=True)
class DhKeyPair:
    """A key pair for one exchange."""

    public: DhPublicKey
    """y, p and g."""
    exponent: int = field(repr=False)
    """The secret."""


def generate_key_pair(group: tuple[int, int], random: Callable[[int], bytes]) -> DhKeyPair:
    """Generate a key pair in a group (modulus, generator), which is checked first."""
    p, g = group
    check_dh_group(p, g)
    for _ in range(_ATTEMPTS):
        exponent = int.from_bytes(random(EXPONENT_LENGTH), "big") | 1 << (8 * EXPONENT_LENGTH - 1)
        if 1 < (y := pow(g, exponent, p)) < p - 1:
            return DhKeyPair(DhPublicKey(y, p, g), exponent)
    raise InvalidData("the Diffie-Hellman generator has too small an order")


def shared_secret(pair: DhKeyPair, peer: DhPublicKey) -> bytes:
    """Compute the shared secret, as long as the modulus."""
    mine = pair.public
    if (peer.p, peer.g) != (mine.p, mine.g):
        raise InvalidData("the peer's Diffie-Hellman key is in another group")
    power = exchange_with_library if LIBRARY_HAS_DH and _is_named_group(mine) else exchange_with_pow
    return power(pair, peer)


def exchange_with_library(pair: DhKeyPair, peer: DhPublicKey) -> bytes:
    """Compute the shared secret with the `cryptography` library."""
    mine = pair.public
    group = DHParameterNumbers(mine.p, mine.g)
    try:
        private = DHPrivateNumbers(pair.exponent, DHPublicNumbers(mine.y, group)).private_key()
        return private.exchange(DHPublicNumbers(peer.y, group).public_key())
    except ValueError:
        raise InvalidData(_EXCHANGE_FAILED) from None


def exchange_with_pow(pair: DhKeyPair, peer: DhPublicKey) -> bytes:
    """Compute the shared secret with pow()."""
    p = peer.p
    secret = pow(peer.y, pair.exponent, p)
    if not 1 < secret < p - 1:
        raise InvalidData(_EXCHANGE_FAILED)
    return secret.to_bytes((p.bit_length() + 7) // 8, "big")


def derive_session_key(cipher: Cipher, shared: bytes) -> bytes:
    """Derive the session key: MACs use all of it, the cipher its first bytes."""
    if cipher == Cipher.AES:
        while len(shared) > _AES_KEY_LENGTH and shared[0] == 0:
            shared = shared[1:]
        key = shared[:_AES_KEY_LENGTH]
    elif cipher in _DES_KEY_LENGTHS:
        key = bytes(_set_odd_parity(byte) for byte in shared[: _DES_KEY_LENGTHS[cipher]])
    else:
        raise InvalidData(f"unknown session cipher {cipher.value}")
    if len(key) < _DES_KEY_LENGTHS.get(cipher, _AES_KEY_LENGTH):
        raise InvalidData("the shared secret is too short for a session key")
    return key


def encrypt_session_key(public: RsaPublicKey, cipher: Cipher, key: bytes, version: Version) -> bytes:
    """Encrypt a session key with an RSA key (PKCS#1 v1.5), with the number of the cipher from 2.2 on."""
    plain = Writer().i32(cipher).raw(key).getvalue() if version.at_least(2) else key
    return public.encrypt(plain)


def decrypt_session_key(private: RsaPrivateKey, data: bytes, version: Version) -> tuple[Cipher, bytes]:
    """Decrypt the cipher and key of a session.

    Recorded clients omit the number of the cipher even in mode 2; the lengths distinguish the two forms.
    """
    plain = private.decrypt(data)
    if version.at_least(2) and len(plain) != _RSA_MODE_KEY_LENGTHS[Cipher.AES]:
        reader = Reader(plain)
        cipher, key = Cipher(reader.i32()), reader.rest()
    else:
        cipher, key = Cipher.AES if version.at_least(2) else Cipher.DES, plain
    if len(key) != _RSA_MODE_KEY_LENGTHS.get(cipher):
        raise InvalidData(_EXCHANGE_FAILED)
    return cipher, key


def _set_odd_parity(byte: int) -> int:
    return byte & 0xFE | (1 - (byte >> 1).bit_count() % 2)


def _is_named_group(key: DhPublicKey) -> bool:
    data = key.p.to_bytes((key.p.bit_length() + 7) // 8, "big")
    return key.g == 2 and hashlib.sha256(data).hexdigest() in _NAMED_GROUPS


_EXCHANGE_FAILED = "the key exchange failed"

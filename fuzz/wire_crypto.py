"""Fuzz targets for keys, signatures, MACs, challenge responses and ciphertexts.

Any bytes give an object, False, or `InvalidData`; what was accepted comes out as it went in. Each target takes its
parameters from the front of the data where it needs some.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey, DsaPublicKey, PublicKey, RsaPublicKey, SecretKey
from perseid.records.partition import find_server_index
from perseid.records.private_keys import PrivateKey, read_key_file
from perseid.wire.challenges import check_key_answer, check_secret_answer
from perseid.wire.codes import OpCode, Version
from perseid.wire.credentials import find_algorithm, verify_mac, verify_signature
from perseid.wire.message import ENVELOPE_LENGTH, Credential, Envelope, Header, Message
from perseid.wire.sessions import Cipher, decrypt, derive_session_key, generate_key_pair, shared_secret

_NOW = 1_794_724_100
_SECRET = b"opensesame-secret-2641"
_NONCE, _DIGEST = bytes(16), bytes(32)
_RSA = RsaPublicKey(65_537, (1 << 1024) - 105)
_DSA = DsaPublicKey((1 << 160) - 47, (1 << 1024) - 105, 2, 3)
_MAC_KEY = bytes(range(32))


class Broken(Exception):
    """Something invalid was accepted, or a round trip changed a value."""


def fuzz_public_key(data: bytes) -> None:
    """The binary form of a public key."""
    with suppress(InvalidData):
        key = PublicKey.from_bytes(data)
        if PublicKey.from_bytes(key.to_bytes()) != key or PublicKey.from_text(key.to_text()) != key:
            raise Broken("a public key changed on its way")
        if key.verify("SHA1", data, data):
            raise Broken("a public key verified nonsense")


def fuzz_public_key_text(data: bytes) -> None:
    """The JSON form of a public key."""
    with suppress(InvalidData):
        key = PublicKey.from_text(data.decode("utf-8", "replace"))
        if PublicKey.from_json(key.to_json()) != key:
            raise Broken("a public key changed on its way")


def fuzz_private_key(data: bytes) -> None:
    """The plain form and the JSON form of a private key."""
    with suppress(InvalidData):
        key = PrivateKey.from_bytes(data)
        if PrivateKey.from_bytes(key.to_bytes()) != key:
            raise Broken("a private key changed on its way")
    with suppress(InvalidData):
        PrivateKey.from_text(data.decode("utf-8", "replace"))


def fuzz_foreign_key(data: bytes) -> None:
    """Key formats of other software."""
    with suppress(InvalidData):
        PublicKey.from_x509(data)
    with suppress(InvalidData):
        PrivateKey.from_pkcs8(data)


def fuzz_key_file(data: bytes) -> None:
    """A private key file; the passphrase is not ASCII, so that both encodings are tried."""
    for passphrase in (None, b"pass", b"p\xe4ss"):
        with suppress(InvalidData):
            read_key_file(data, passphrase)


def fuzz_secret_key(data: bytes) -> None:
    """A secret key."""
    key = SecretKey.from_bytes(data)
    if SecretKey.from_json(key.to_json()) != key or key.to_bytes() != data:
        raise Broken("a secret changed on its way")


def fuzz_secret_answer(data: bytes) -> None:
    """A challenge response with a secret; the first byte is the minor version."""
    version = Version(2, data[0] if data else 11)
    if check_secret_answer(_SECRET, _NONCE, _DIGEST, data[1:], version):
        raise Broken("an answer was right by accident")


def fuzz_key_answer(data: bytes) -> None:
    """A challenge response with a key."""
    for key in (_RSA, _DSA):
        if check_key_answer(key, _NONCE, _DIGEST, data):
            raise Broken("an answer was right by accident")


def fuzz_credential(data: bytes) -> None:
    """An envelope, then a credential, under a message."""
    with suppress(InvalidData):
        envelope = Envelope.from_bytes(data)
        message = Message.build(envelope, Header(OpCode.RESOLUTION), b"body")
        credential = Credential.from_bytes(data[ENVELOPE_LENGTH:])
        find_algorithm(credential.algorithm)
        signed = message.with_credential(credential)
        if verify_mac(signed, _MAC_KEY) or verify_signature(signed, _RSA) or verify_signature(signed, _DSA):
            raise Broken("a credential was right by accident")


def fuzz_ciphertext(data: bytes) -> None:
    """An encrypted message, under every cipher and both modes."""
    for cipher in (Cipher.DES, Cipher.TDES, Cipher.AES):
        for version in (Version(2, 3), Version(2, 11)):
            with suppress(InvalidData):
                Message.from_bytes(Envelope(version), decrypt(cipher, _MAC_KEY, data, version), _NOW)


def fuzz_exchange(data: bytes) -> None:
    """A peer's Diffie–Hellman key."""
    with suppress(InvalidData):
        theirs = DhPublicKey.from_bytes(data)
        mine = generate_key_pair((theirs.p, theirs.g), lambda count: bytes(range(count)))
        shared = shared_secret(mine, theirs)
        if len(shared) != (theirs.p.bit_length() + 7) // 8:
            raise Broken("the shared secret is not as long as the modulus")
        for cipher in (Cipher.DES, Cipher.TDES, Cipher.AES):
            derive_session_key(cipher, shared)


def fuzz_partition(data: bytes) -> None:
    """A handle and the servers of a site."""
    if not 0 <= find_server_index(data[1:], data[0] if data else 2, 7) < 7:
        raise Broken("a handle has no server")


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "public_key": fuzz_public_key,
    "public_key_text": fuzz_public_key_text,
    "private_key": fuzz_private_key,
    "foreign_key": fuzz_foreign_key,
    "key_file": fuzz_key_file,
    "secret_key": fuzz_secret_key,
    "secret_answer": fuzz_secret_answer,
    "key_answer": fuzz_key_answer,
    "credential": fuzz_credential,
    "ciphertext": fuzz_ciphertext,
    "exchange": fuzz_exchange,
    "partition": fuzz_partition,
}

_CHECKS = list(TARGETS.values())


def fuzz(data: bytes) -> None:
    """Run one target with one input."""
    if data:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])


def _seeds() -> Iterator[bytes]:
    """Every key, file and credential of the recorded vectors, for each target."""
    vectors = Path(__file__).resolve().parent.parent / "tests" / "vectors"
    data = [path.read_bytes() for path in sorted((vectors / "keys").glob("*.bin"))]
    for name in ("codec-keys.json", "codec-macs.json"):
        for vector in json.loads((vectors / name).read_bytes()):
            fields = ("encoded_hex", "file_hex", "pkcs8_hex", "credential", "ciphertext", "mac")
            data += [bytes.fromhex(vector[field]) for field in fields if field in vector]
    for number in range(len(TARGETS)):
        yield from (bytes((number,)) + one for one in data)


SEEDS: Final = list(_seeds())

WORDS: Final = [
    *(b"RSA_PUB_KEY", b"DSA_PUB_KEY", b"DH_PUB_KEY", b"DSA_PRIV_KEY", b"RSA_PRIVCRT_KEY", b"RSA_PRIV_KEY"),
    *(b"HS_SIGNED", b"HS_MAC", b"SHA-256", b"SHA1", b"HMAC-SHA256", b"\x22", b"\xff\xff\xff\xff", b"\x00\x00\x27\x10"),
]

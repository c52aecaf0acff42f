"""Client certificates as clients create them: self-signed, without expiry."""

import datetime as dt
from collections.abc import Sequence
from functools import cache
from math import gcd
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_der_private_key
from cryptography.x509.oid import NameOID

from perseid.records.private_keys import PrivateKey
from tests.wire.key_material import RSA_KEY, rsa_key

UID, CN, ORG, UNIT = NameOID.USER_ID, NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME

_FIRST: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_LAST: Final = dt.datetime(2001, 1, 1, tzinfo=dt.UTC)  # nobody looks

LibraryKey = rsa.RSAPrivateKey | dsa.DSAPrivateKey | ec.EllipticCurvePrivateKey


def certificate(*names: tuple[x509.ObjectIdentifier, str], key: PrivateKey | LibraryKey = RSA_KEY) -> bytes:
    """A certificate for a key, with these names in its subject; in DER."""
    library = library_key(key) if isinstance(key, PrivateKey) else key
    subject = x509.Name([x509.NameAttribute(oid, text) for oid, text in names])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(library.public_key())
        .serial_number(1)
        .not_valid_before(_FIRST)
        .not_valid_after(_LAST)
    )
    return builder.sign(library, hashes.SHA256()).public_bytes(Encoding.DER)


def library_key(key: PrivateKey) -> rsa.RSAPrivateKey | dsa.DSAPrivateKey:
    """A key of the `cryptography` library."""
    loaded = load_der_private_key(key.to_pkcs8(), None)
    assert isinstance(loaded, rsa.RSAPrivateKey | dsa.DSAPrivateKey)
    return loaded


@cache
def elliptic_key() -> ec.EllipticCurvePrivateKey:
    """A key of a kind that no record can have."""
    return ec.generate_private_key(ec.SECP256R1())


@cache
def wide_exponent() -> rsa.RSAPrivateKey:
    """An RSA key whose public exponent is longer than a record can have."""
    e, key = (1 << 35) + 1, rsa_key()
    while gcd(e, (key.p - 1) * (key.q - 1)) != 1:
        e += 2
    d = pow(e, -1, (key.p - 1) * (key.q - 1))
    public = rsa.RSAPublicNumbers(e, key.n)
    numbers = rsa.RSAPrivateNumbers(key.p, key.q, d, d % (key.p - 1), d % (key.q - 1), key.qi, public)
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


def named(text: str, key: PrivateKey | LibraryKey = RSA_KEY, oids: Sequence[x509.ObjectIdentifier] = (UID,)) -> bytes:
    """A certificate whose subject is one name."""
    return certificate(*[(oid, text) for oid in oids], key=key)

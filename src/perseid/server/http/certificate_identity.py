"""Whose a client's TLS certificate is (HTTP API, 7.5): the name in it, and the key that the record of that name has.

The name is the subject's first UID, else its first CN, else its first O, in the form `INDEX:HANDLE`, or a handle, of
which any key counts. TLS has shown that the client holds the private key. What is looked at here is whether the public
one is in the record: at that index as HS_PUBKEY, or as the key of a server in HS_SITE, or of an HS_CERT token that is
about that handle and valid. Who issued the certificate, until when, and what it chains to says nothing about a key
that the record has, and is not looked at; most are self-signed.

Deployed servers end the handshake of whoever comes with another certificate, and leave everybody guessing. Here each is
taken, and the answer says what was wrong with it. What a client is told is about its own certificate; whether there is
such a record, or such a value in it, is for the log of the server alone.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID, PublicKeyAlgorithmOID

from perseid.records.errors import InvalidData
from perseid.records.public_keys import PublicKey
from perseid.records.signatures import Certificate as Token
from perseid.records.site import Site
from perseid.records.types import HS_CERT, HS_PUBKEY, SITE_TYPES
from perseid.records.value import Value, ValueRef
from perseid.registry.access.permissions import shown
from perseid.registry.identity import handle_key

MAX_CERTIFICATE: Final = 16_384
"""Octets of a certificate that is looked at; one with an RSA key of 8,192 bits has 2,400."""

_NO_KEY: Final = "the key of the certificate is not one that a record can have: RSA or DSA"
_ALGORITHMS: Final = (PublicKeyAlgorithmOID.RSAES_PKCS1_v1_5, PublicKeyAlgorithmOID.DSA)
_NAMES: Final = (NameOID.USER_ID, NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)


class NoIdentity(Exception):
    """A certificate that names nobody, or whose key is of no use here; the message says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a certificate says to be, and the key of it."""

    written: str
    """The name, as it stands in the certificate."""
    reference: ValueRef
    """The key that it means; index 0 if it is to be found."""
    key: PublicKey


def subject_of(octets: bytes) -> Subject:
    """Who a certificate (DER) says to be; raises `NoIdentity`."""
    if len(octets) > MAX_CERTIFICATE:
        raise NoIdentity(f"the certificate has more than {MAX_CERTIFICATE:,} octets")
    try:
        certificate = _read(octets)
        written = _name_in(certificate.subject)
        key = _key_in(certificate)
    except NoIdentity:
        raise
    except Exception:  # noqa: BLE001 - the library reads each part when it is asked for, and has many objections
        raise NoIdentity("the certificate cannot be read") from None
    if written is None:
        raise NoIdentity("the subject of the certificate has no UID, CN or O that could be INDEX:HANDLE")
    try:
        return Subject(written, ValueRef.parse(written), key)
    except InvalidData:
        raise NoIdentity(f"{shown(written)}, the subject of the certificate, is not INDEX:HANDLE") from None


def _read(octets: bytes) -> x509.Certificate:
    with warnings.catch_warnings():
        # Some tools number all certificates 0. That is against the standard, and no stranger fills our log with it.
        warnings.filterwarnings("ignore", "Parsed a serial number", CryptographyDeprecationWarning)
        return x509.load_der_x509_certificate(octets)


def _name_in(subject: x509.Name) -> str | None:
    for oid in _NAMES:
        for attribute in subject.get_attributes_for_oid(oid):
            return attribute.value if isinstance(attribute.value, str) else None
    return None


def _key_in(certificate: x509.Certificate) -> PublicKey:
    try:
        # Before the key is read: the library would test a stranger's Diffie–Hellman modulus for being prime.
        if certificate.public_key_algorithm_oid not in _ALGORITHMS:
            raise NoIdentity(_NO_KEY)
        info = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return PublicKey.from_x509(info)
    except (InvalidData, UnsupportedAlgorithm):
        raise NoIdentity(_NO_KEY) from None


def proving(subject: Subject, values: Sequence[Value], now: float) -> Value | None:
    """The first value of the record that has the key of a certificate; None if there is none."""
    wanted = subject.reference.index
    suitable = sorted((value for value in values if value.index > 0 and wanted in (0, value.index)), key=_rank)
    for value in suitable:
        if any(key == subject.key for key in _keys_in(value, subject.reference.handle, now)):
            return value
    return None


def why_not(subject: Subject, values: Sequence[Value] | None) -> str:
    """Why a certificate was not accepted, for the log."""
    who = shown(str(subject.reference))
    if values is None:
        return f"there is no record of {shown(subject.reference.handle)} here"
    wanted = subject.reference.index
    types = sorted({value.type for value in values if wanted in (0, value.index)} & _COUNTING)
    if not types:
        return f"the record has no value with a public key for {who}"
    return f"the key of {who} ({', '.join(types)}) is another one than the certificate's"


_COUNTING: Final = SITE_TYPES | {HS_PUBKEY, HS_CERT}


def _rank(value: Value) -> tuple[bool, int]:
    """Keys by ascending index, before what only holds one."""
    return value.type != HS_PUBKEY, value.index


def _keys_in(value: Value, handle: str, now: float) -> Iterator[PublicKey]:
    """The keys that a value has."""
    try:
        if value.type == HS_PUBKEY:
            yield PublicKey.from_bytes(value.data)
        elif value.type in SITE_TYPES:
            for server in Site.from_bytes(value.data).servers:
                if (key := server.key) is not None:
                    yield key
        elif value.type == HS_CERT:
            token = Token.from_bytes(value.data)
            if _is_about(token, handle, now):
                yield token.public_key
    except InvalidData:
        return


def _is_about(token: Token, handle: str, now: float) -> bool:
    """Whether a token is about a handle, and says that it is valid."""
    claimed = token.claimed
    begun = claimed.not_before is None or claimed.not_before <= now
    ends = claimed.expires is not None and now < claimed.expires
    return begun and ends and handle_key(claimed.subject.handle) == handle_key(handle)

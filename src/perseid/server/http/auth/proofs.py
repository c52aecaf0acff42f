"""The `Basic` scheme of the Authorization header (HTTP API, 7.2): a key, `INDEX:HANDLE`, and its secret.

    Basic base64( 300%3A12345/user : secret )

The name ends at the first colon, so the colon between index and handle has to be percent-encoded, and so has every
other one in the name, and every percent sign. The secret is the octets that follow, colons included.

Better than deployed servers on purpose: octets in the name that are not percent-encoded are UTF-8; and where the colon
behind the index was not encoded, `300:12345/user:secret`, which is the most common mistake, the name that was meant is
taken. A name of digits alone is no handle, so nobody else can be meant.

Whose a client's TLS certificate is (HTTP API, 7.5): the name in it, and the key that the record of that name has.

The name is the subject's first UID, else its first CN, else its first O, in the form `INDEX:HANDLE`, or a handle, of
which any key counts. TLS has shown that the client holds the private key. What is looked at here is whether the public
one is in the record: at that index as HS_PUBKEY, or as the key of a server in HS_SITE, or of an HS_CERT token that is
about that handle and valid. Who issued the certificate, until when, and what it chains to says nothing about a key
that the record has, and is not looked at; most are self-signed.

Deployed servers end the handshake of whoever comes with another certificate, and leave everybody guessing. Here each is
taken, and the answer says what was wrong with it. What a client is told is about its own certificate; whether there is
such a record, or such a value in it, is for the log of the server alone.

Proving an identity over HTTP: a secret, a signature or a certificate against the keys of the record that it names.

Each way ends in the same: `Shown`, with the key that proved it and its mark, or `Unproved`, with a reason. Whoever
names a record that is not here, a value that is no key, or gives a wrong answer is told the same, and it takes as long;
of what is public, that a prefix is not served here, they are told.

An identity without an index has that of the key which proved it, for secrets too: deployed servers leave it without
one, and then it may do nothing.

The `Bearer` scheme of the Authorization header (RFC 6750): a token that somebody who holds a key has made.

    Bearer perseid_k7qpx2ma…

A token is recognised by its id, which is no secret, and by the hash of the rest, compared in constant time. Whether it
counts is looked up again in the very state in which an operation is decided (`Registry.do`), as a `Guard` does for
keys: who revokes a token ends it at once. A browser never sends one by itself.

A token that is not known counts as a failed proof of whoever shows it. Nobody can be locked out of their own token by
others who show wrong ones with its id, which is in logs: it is by all of its text that guesses are told apart, and a
right one is never wrong.
"""

import base64
import hashlib
import hmac
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID, PublicKeyAlgorithmOID

from perseid.names.handle import Handle
from perseid.records.encoding import from_base64
from perseid.records.errors import InvalidData
from perseid.records.public_keys import PublicKey
from perseid.records.signatures import Certificate as Token
from perseid.records.site import Site
from perseid.records.types import HS_CERT, HS_PUBKEY, SITE_TYPES
from perseid.records.value import Value, ValueRef
from perseid.registry.access.permissions import shown
from perseid.registry.access.token_records import PREFIX, InvalidToken, Secret
from perseid.registry.identity import Proof, Tokened, handle_key
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts
from perseid.server.http import context
from perseid.server.http.context import Asking, Verdict
from perseid.server.native.authentication import Proved, candidates, mark_of
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

from . import handle_scheme
from .handle_scheme import NOBODYS, Claim

FORM: Final = "the user name is INDEX:HANDLE, the colon written as %3A: 300%3A12345/user"
"""What a user name looks like."""

_COLON = b":"


class NotUnderstood(Exception):
    """A header that names nobody; the message says what is wrong, and holds nothing of what it held."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a secret."""

    written: str
    """The name, percent signs decoded."""
    reference: ValueRef
    """The key that it means; index 0 if it is to be found."""
    secret: bytes = field(repr=False)
    guessed: bool = False
    """Whether the colon behind the index was not encoded, so that where the handle ends had to be guessed."""

    @property
    def remark(self) -> str:
        """How the name was read, for a refusal: it is the name that most often is wrong."""
        if not self.guessed:
            return f"the name was read as {shown(str(self.reference))}"
        cut = "the handle ends at its first colon unless that is written as %3A"
        return f"the name was read as {shown(str(self.reference))}; {cut}"


def parse(text: str) -> Credentials:
    """What stands behind the name of the scheme; raises `NotUnderstood`."""
    try:
        octets = from_base64(text, "the header")
    except InvalidData:
        raise NotUnderstood(f"the Basic credentials are not base64; {FORM}") from None
    name, colon, secret = octets.partition(_COLON)
    if not colon:
        raise NotUnderstood(f"the Basic credentials have no colon before the secret; {FORM}")
    guessed = name.isdigit()
    if guessed:
        handle, colon, secret = secret.partition(_COLON)
        if not colon:
            raise NotUnderstood(f"the Basic credentials name an index and no handle; {FORM}")
        name = name + _COLON + handle
    try:
        written = unquote_to_bytes(name).decode("utf-8")
        return Credentials(written, ValueRef.parse(written), secret, guessed)
    except UnicodeDecodeError:
        raise NotUnderstood(f"the user name is not UTF-8; {FORM}") from None
    except InvalidData:
        raise NotUnderstood(f"the user name is not the name of a key; {FORM}") from None


def write(name: str, secret: bytes) -> str:
    """A name and a secret as they stand behind the name of the scheme."""
    return base64.b64encode(quote(name, safe="/").encode("ascii") + _COLON + secret).decode("ascii")


def matching_secret(credentials: Credentials, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that is the secret; None if it is none of them.

    All are looked at, and one that nobody has if there are none: time does not tell who exists.
    """
    given = _hash(credentials.secret)
    candidates = [key for key in keys if key.data]  # an empty secret everybody knows
    equal = [key for key in candidates or [NOBODYS] if hmac.compare_digest(_hash(key.data), given)]
    return equal[0] if candidates and equal else None


def _hash(secret: bytes) -> bytes:
    """Of one length, so that the comparison does not tell how long a secret is."""
    return hashlib.sha256(secret).digest()


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


def matching_certificate_key(subject: Subject, values: Sequence[Value], now: float) -> Value | None:
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


NOT_VERIFIED: Final = "the identity was not verified"
"""Whatever the reason is, unless it can be seen in the request itself."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """Somebody who has shown who they are."""

    proved: Proved
    written: str
    """Who, as they wrote it."""


@dataclass(frozen=True, slots=True)
class Unproved:
    """Why somebody who says who they are is not believed. The answer is 401."""

    reason: str
    code: ResponseCode = ResponseCode.AUTHENTICATION_FAILED
    told: bool = True
    """Whether the challenge says so too; deployed servers are silent there about what they could not even read."""


async def by_secret(asking: Asking, text: str) -> Shown | Unproved:
    """Take Basic credentials: what stands behind the name of the scheme."""
    try:
        credentials = parse(text)
    except NotUnderstood as problem:
        return Unproved(str(problem))
    return await _by_credentials(asking, credentials)


async def _by_credentials(asking: Asking, credentials: Credentials) -> Shown | Unproved:
    reference, registry = credentials.reference, asking.place.registry
    target = context.of_own(reference.handle)

    def look() -> tuple[Value | None, bool]:
        keys = _keys(registry, reference, Proof.SECRET_KEY)
        return matching_secret(credentials, keys.values), keys.elsewhere

    # Comparing takes no time, so that it needs no work of its own; but whose secret it is about the budgets must know.
    key, elsewhere = await asking.do(Kind.READ, look, secret_of=target)
    asking.place.judge(Verdict(key is not None, target), asking.request.client)
    if key is None:
        return _refusal(reference, credentials.remark, elsewhere=elsewhere)
    return _shown(reference, Proof.SECRET_KEY, key, credentials.written)


async def by_claim(asking: Asking, claim: Claim, nonce: bytes) -> Shown | Unproved:
    """Take a claim of the Handle scheme that was made about a nonce of ours."""
    reference, kind, registry = claim.reference, claim.kind, asking.place.registry
    target = context.of_own(reference.handle) if kind is Proof.SECRET_KEY else None
    keys = await asking.do(Kind.READ, lambda: _keys(registry, reference, kind), secret_of=target)
    check, price = (
        partial(handle_scheme.matching_signature_key, claim, nonce, keys.values),
        handle_scheme.price_of(claim),
    )
    key = await asking.do(Kind.VERIFY, check, secret_of=target, price=price)
    asking.place.judge(Verdict(key is not None, target), asking.request.client)
    if key is None:
        return _refusal(reference, f"the id was read as {shown(str(reference))}", elsewhere=keys.elsewhere)
    return _shown(reference, kind, key, claim.written)


async def by_certificate(asking: Asking, octets: bytes) -> Shown | Unproved:
    """Take the certificate that the client came with over TLS.

    That one is not accepted does not count as a guess: nobody tries keys out that way, and somebody's browser may
    offer a certificate that is meant for others.
    """
    now, registry = asking.place.time(), asking.place.registry

    def look() -> tuple[Subject, Value | None, bool, str]:
        subject = subject_of(octets)
        with registry.facts() as facts:
            values = facts.group(subject.reference.handle)
            key = matching_certificate_key(subject, values or (), now)
            if key is not None:
                return subject, key, False, ""
            elsewhere = _is_elsewhere(facts, subject.reference.handle)
            return subject, None, elsewhere, why_not(subject, values)

    try:
        subject, key, elsewhere, why = await asking.do(Kind.READ, look)
    except NoIdentity as problem:
        _tell_operator(asking, now, str(problem))
        return Unproved(f"the certificate was not accepted: {problem}")
    if key is None:
        _tell_operator(asking, now, why)
        remark = f"the key of the certificate is not held here as that of {shown(str(subject.reference))}"
        return _refusal(subject.reference, remark, elsewhere=elsewhere)
    asking.place.judge(Verdict(right=True), asking.request.client)
    return _shown(subject.reference, Proof.PUBLIC_KEY, key, subject.written)


def _tell_operator(asking: Asking, now: float, why: str) -> None:
    host = asking.request.client.host
    asking.place.certificates.info(_logger, now, f"a certificate from {host} was not accepted: {why}")


@dataclass(frozen=True, slots=True)
class _Keys:
    """What can prove an identity."""

    values: tuple[Value, ...]
    """None, if there is no record of it here."""
    elsewhere: bool
    """Whether the record would be another server's."""


def _keys(registry: Registry, reference: ValueRef, kind: Proof) -> _Keys:
    with registry.facts() as facts:
        values = candidates(facts.group(reference.handle) or (), kind, reference.index)
        return _Keys(values, _is_elsewhere(facts, reference.handle))


def _is_elsewhere(facts: Facts, handle: str) -> bool:
    """Whether the prefix of a handle is another server's."""
    name = Handle.for_lookup(handle)
    return name is not None and not name.is_prefix_handle and not facts.is_responsible(name)


def _refusal(reference: ValueRef, remark: str, *, elsewhere: bool) -> Unproved:
    """Why somebody is not believed. It depends on nothing that is not public."""
    if elsewhere:
        remark = f"the prefix of {shown(reference.handle)} is not served here, and this server asks no other one"
    return Unproved(f"{NOT_VERIFIED}: {remark}")


def _shown(reference: ValueRef, kind: Proof, key: Value, written: str) -> Shown:
    proved = Proved(reference.handle.encode("utf-8"), key.index, key.index, kind, mark_of(key))
    return Shown(proved, written)


UNKNOWN: Final = (
    "the scheme of the Authorization header is not known here, or holds no token; tokens begin with perseid_"
)
"""What is said of a text that looks like no token of ours."""

INVALID: Final = 'Bearer realm="handle", error="invalid_token"'
"""How a challenge says that a token does not count (RFC 6750, 3.1)."""

_TARGET: Final = b"token "  # no handle begins so: a prefix has no blank in it


def is_token(text: str) -> bool:
    """Whether somebody wanted to show a token of ours."""
    return text.startswith(PREFIX)


async def by_token(asking: Asking, text: str) -> Tokened | Unproved:
    """Who shows a token: what stands behind the name of the scheme. Raises `Busy`."""
    if not is_token(text):
        return Unproved(UNKNOWN, told=False)
    try:
        Secret.parse(text)
    except InvalidToken as problem:
        return Unproved(f"the token was not accepted: {problem}", told=False)
    place = asking.place
    target = _TARGET + hashlib.sha256(text.encode("utf-8", "replace")).digest()
    tokens = place.api.tokens(place.registry)
    try:
        shown = await asking.do(Kind.READ, lambda: tokens.authenticate(text), secret_of=target)
    except Refused as refused:
        place.judge(Verdict(right=False, secret_of=target), asking.request.client)
        return Unproved(f"the token was not accepted: {refused}", told=False)
    place.judge(Verdict(right=True, secret_of=target), asking.request.client)
    return shown

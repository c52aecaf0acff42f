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
from perseid.registry.access.permissions import display_name
from perseid.registry.access.token_records import PREFIX, InvalidToken, Secret
from perseid.registry.identity import Proof, TokenIdentity, handle_key
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.server.http import context
from perseid.server.http.context import ProofResult, RequestContext
from perseid.server.native.authentication import ProvenIdentity as Proved
from perseid.server.native.authentication import candidate_keys, key_fingerprint
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

from . import handle_scheme
from .handle_scheme import DUMMY_KEY, Claim

USER_NAME_FORMAT: Final = "the user name is INDEX:HANDLE, the colon written as %3A: 300%3A12345/user"
"""What a user name looks like."""

_COLON = b":"


class InvalidCredentials(Exception):
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
            return f"the name was read as {display_name(str(self.reference))}"
        cut = "the handle ends at its first colon unless that is written as %3A"
        return f"the name was read as {display_name(str(self.reference))}; {cut}"


def parse_credentials(text: str) -> Credentials:
    """What stands behind the name of the scheme; raises `NotUnderstood`."""
    try:
        raw = from_base64(text, "the header")
    except InvalidData:
        raise InvalidCredentials(f"the Basic credentials are not base64; {USER_NAME_FORMAT}") from None
    name, colon, secret = raw.partition(_COLON)
    if not colon:
        raise InvalidCredentials(f"the Basic credentials have no colon before the secret; {USER_NAME_FORMAT}")
    guessed = name.isdigit()
    if guessed:
        handle, colon, secret = secret.partition(_COLON)
        if not colon:
            raise InvalidCredentials(f"the Basic credentials name an index and no handle; {USER_NAME_FORMAT}")
        name = name + _COLON + handle
    try:
        written = unquote_to_bytes(name).decode("utf-8")
        return Credentials(written, ValueRef.parse(written), secret, guessed)
    except UnicodeDecodeError:
        raise InvalidCredentials(f"the user name is not UTF-8; {USER_NAME_FORMAT}") from None
    except InvalidData:
        raise InvalidCredentials(f"the user name is not the name of a key; {USER_NAME_FORMAT}") from None


def format_credentials(name: str, secret: bytes) -> str:
    """A name and a secret as they stand behind the name of the scheme."""
    return base64.b64encode(quote(name, safe="/").encode("ascii") + _COLON + secret).decode("ascii")


def matching_secret(credentials: Credentials, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that is the secret; None if it is none of them.

    All are looked at, and one that nobody has if there are none: time does not tell who exists.
    """
    given = _hash(credentials.secret)
    candidate_keys = [key for key in keys if key.data]  # an empty secret everybody knows
    equal = [key for key in candidate_keys or [DUMMY_KEY] if hmac.compare_digest(_hash(key.data), given)]
    return equal[0] if candidate_keys and equal else None


def _hash(secret: bytes) -> bytes:
    """Of one length, so that the comparison does not tell how long a secret is."""
    return hashlib.sha256(secret).digest()


MAX_CERTIFICATE: Final = 16_384
"""Octets of a certificate that is looked at; one with an RSA key of 8,192 bits has 2,400."""

_NO_KEY: Final = "the key of the certificate is not one that a record can have: RSA or DSA"
_ALGORITHMS: Final = (PublicKeyAlgorithmOID.RSAES_PKCS1_v1_5, PublicKeyAlgorithmOID.DSA)
_NAMES: Final = (NameOID.USER_ID, NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)


class InvalidCertificate(Exception):
    """A certificate that names nobody, or whose key is of no use here; the message says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a certificate says to be, and the key of it."""

    written: str
    """The name, as it stands in the certificate."""
    reference: ValueRef
    """The key that it means; index 0 if it is to be found."""
    key: PublicKey


def parse_subject(raw: bytes) -> Subject:
    """Who a certificate (DER) says to be; raises `NoIdentity`."""
    if len(raw) > MAX_CERTIFICATE:
        raise InvalidCertificate(f"the certificate has more than {MAX_CERTIFICATE:,} octets")
    try:
        certificate = _load_certificate(raw)
        written = _subject_name(certificate.subject)
        key = _certificate_key(certificate)
    except InvalidCertificate:
        raise
    except Exception:  # noqa: BLE001 - the library reads each part when it is asked for, and has many objections
        raise InvalidCertificate("the certificate cannot be read") from None
    if written is None:
        raise InvalidCertificate("the subject of the certificate has no UID, CN or O that could be INDEX:HANDLE")
    try:
        return Subject(written, ValueRef.parse(written), key)
    except InvalidData:
        raise InvalidCertificate(
            f"{display_name(written)}, the subject of the certificate, is not INDEX:HANDLE"
        ) from None


def _load_certificate(raw: bytes) -> x509.Certificate:
    with warnings.catch_warnings():
        # Some tools number all certificates 0. That is against the standard, and no stranger fills our log with it.
        warnings.filterwarnings("ignore", "Parsed a serial number", CryptographyDeprecationWarning)
        return x509.load_der_x509_certificate(raw)


def _subject_name(subject: x509.Name) -> str | None:
    for oid in _NAMES:
        for attribute in subject.get_attributes_for_oid(oid):
            return attribute.value if isinstance(attribute.value, str) else None
    return None


def _certificate_key(certificate: x509.Certificate) -> PublicKey:
    try:
        # Before the key is read: the library would test a stranger's Diffie–Hellman modulus for being prime.
        if certificate.public_key_algorithm_oid not in _ALGORITHMS:
            raise InvalidCertificate(_NO_KEY)
        info = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return PublicKey.from_x509(info)
    except (InvalidData, UnsupportedAlgorithm):
        raise InvalidCertificate(_NO_KEY) from None


def matching_certificate_key(subject: Subject, values: Sequence[Value], now: float) -> Value | None:
    """The first value of the record that has the key of a certificate; None if there is none."""
    wanted = subject.reference.index
    suitable = sorted((value for value in values if value.index > 0 and wanted in (0, value.index)), key=_sort_key)
    for value in suitable:
        if any(key == subject.key for key in _public_keys(value, subject.reference.handle, now)):
            return value
    return None


def explain_mismatch(subject: Subject, values: Sequence[Value] | None) -> str:
    """Why a certificate was not accepted, for the log."""
    identity = display_name(str(subject.reference))
    if values is None:
        return f"there is no record of {display_name(subject.reference.handle)} here"
    wanted = subject.reference.index
    types = sorted({value.type for value in values if wanted in (0, value.index)} & _KEY_TYPES)
    if not types:
        return f"the record has no value with a public key for {identity}"
    return f"the key of {identity} ({', '.join(types)}) is another one than the certificate's"


_KEY_TYPES: Final = SITE_TYPES | {HS_PUBKEY, HS_CERT}


def _sort_key(value: Value) -> tuple[bool, int]:
    """Keys by ascending index, before what only holds one."""
    return value.type != HS_PUBKEY, value.index


def _public_keys(value: Value, handle: str, now: float) -> Iterator[PublicKey]:
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
            if _is_valid_for(token, handle, now):
                yield token.public_key
    except InvalidData:
        return


def _is_valid_for(token: Token, handle: str, now: float) -> bool:
    """Whether a token is about a handle, and says that it is valid."""
    claimed = token.claimed
    begun = claimed.not_before is None or claimed.not_before <= now
    ends = claimed.expires is not None and now < claimed.expires
    return begun and ends and handle_key(claimed.subject.handle) == handle_key(handle)


NOT_VERIFIED: Final = "the identity was not verified"
"""Whatever the reason is, unless it can be seen in the request itself."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProvenIdentity:
    """Somebody who has shown who they are."""

    proved: Proved
    written: str
    """Who, as they wrote it."""


@dataclass(frozen=True, slots=True)
class AuthFailure:
    """Why somebody who says who they are is not believed. The answer is 401."""

    reason: str
    code: ResponseCode = ResponseCode.AUTHENTICATION_FAILED
    in_challenge: bool = True
    """Whether the challenge says so too; deployed servers are silent there about what they could not even read."""


async def authenticate_basic(request_context: RequestContext, text: str) -> ProvenIdentity | AuthFailure:
    """Take Basic credentials: what stands behind the name of the scheme."""
    try:
        credentials = parse_credentials(text)
    except InvalidCredentials as problem:
        return AuthFailure(str(problem))
    return await _authenticate_credentials(request_context, credentials)


async def _authenticate_credentials(
    request_context: RequestContext, credentials: Credentials
) -> ProvenIdentity | AuthFailure:
    reference, registry = credentials.reference, request_context.place.registry
    target = context.own_secret_id(reference.handle)

    def load_keys() -> tuple[Value | None, bool]:
        keys = _find_keys(registry, reference, Proof.SECRET_KEY)
        return matching_secret(credentials, keys.values), keys.elsewhere

    # Comparing takes no time, so that it needs no work of its own; but whose secret it is about the budgets must know.
    key, elsewhere = await request_context.do(WorkKind.READ, load_keys, secret_of=target)
    request_context.place.record_proof(ProofResult(key is not None, target), request_context.request.client)
    if key is None:
        return _auth_failure(reference, credentials.remark, elsewhere=elsewhere)
    return _proven_identity(reference, Proof.SECRET_KEY, key, credentials.written)


async def authenticate_claim(
    request_context: RequestContext, claim: Claim, nonce: bytes
) -> ProvenIdentity | AuthFailure:
    """Take a claim of the Handle scheme that was made about a nonce of ours."""
    reference, kind, registry = claim.reference, claim.kind, request_context.place.registry
    target = context.own_secret_id(reference.handle) if kind is Proof.SECRET_KEY else None
    keys = await request_context.do(WorkKind.READ, lambda: _find_keys(registry, reference, kind), secret_of=target)
    check, price = (
        partial(handle_scheme.matching_signature_key, claim, nonce, keys.values),
        handle_scheme.verification_cost(claim),
    )
    key = await request_context.do(WorkKind.VERIFY, check, secret_of=target, price=price)
    request_context.place.record_proof(ProofResult(key is not None, target), request_context.request.client)
    if key is None:
        return _auth_failure(reference, f"the id was read as {display_name(str(reference))}", elsewhere=keys.elsewhere)
    return _proven_identity(reference, kind, key, claim.written)


async def authenticate_certificate(request_context: RequestContext, raw: bytes) -> ProvenIdentity | AuthFailure:
    """Take the certificate that the client came with over TLS.

    That one is not accepted does not count as a guess: nobody tries keys out that way, and somebody's browser may
    offer a certificate that is meant for others.
    """
    now, registry = request_context.place.time(), request_context.place.registry

    def load_keys() -> tuple[Subject, Value | None, bool, str]:
        subject = parse_subject(raw)
        with registry.snapshot() as snapshot:
            values = snapshot.group(subject.reference.handle)
            key = matching_certificate_key(subject, values or (), now)
            if key is not None:
                return subject, key, False, ""
            elsewhere = _is_hosted_elsewhere(snapshot, subject.reference.handle)
            return subject, None, elsewhere, explain_mismatch(subject, values)

    try:
        subject, key, elsewhere, why = await request_context.do(WorkKind.READ, load_keys)
    except InvalidCertificate as problem:
        _log_rejection(request_context, now, str(problem))
        return AuthFailure(f"the certificate was not accepted: {problem}")
    if key is None:
        _log_rejection(request_context, now, why)
        remark = f"the key of the certificate is not held here as that of {display_name(str(subject.reference))}"
        return _auth_failure(subject.reference, remark, elsewhere=elsewhere)
    request_context.place.record_proof(ProofResult(succeeded=True), request_context.request.client)
    return _proven_identity(subject.reference, Proof.PUBLIC_KEY, key, subject.written)


def _log_rejection(request_context: RequestContext, now: float, why: str) -> None:
    host = request_context.request.client.host
    request_context.place.certificate_log.info(_logger, now, f"a certificate from {host} was not accepted: {why}")


@dataclass(frozen=True, slots=True)
class _Keys:
    """What can prove an identity."""

    values: tuple[Value, ...]
    """None, if there is no record of it here."""
    elsewhere: bool
    """Whether the record would be another server's."""


def _find_keys(registry: Registry, reference: ValueRef, kind: Proof) -> _Keys:
    with registry.snapshot() as snapshot:
        values = candidate_keys(snapshot.group(reference.handle) or (), kind, reference.index)
        return _Keys(values, _is_hosted_elsewhere(snapshot, reference.handle))


def _is_hosted_elsewhere(snapshot: Snapshot, handle: str) -> bool:
    """Whether the prefix of a handle is another server's."""
    name = Handle.for_lookup(handle)
    return name is not None and not name.is_prefix_handle and not snapshot.is_responsible(name)


def _auth_failure(reference: ValueRef, remark: str, *, elsewhere: bool) -> AuthFailure:
    """Why somebody is not believed. It depends on nothing that is not public."""
    if elsewhere:
        remark = f"the prefix of {display_name(reference.handle)} is not served here, and this server asks no other one"
    return AuthFailure(f"{NOT_VERIFIED}: {remark}")


def _proven_identity(reference: ValueRef, kind: Proof, key: Value, written: str) -> ProvenIdentity:
    proved = Proved(reference.handle.encode("utf-8"), key.index, key.index, kind, key_fingerprint(key))
    return ProvenIdentity(proved, written)


UNKNOWN_TOKEN: Final = (
    "the scheme of the Authorization header is not known here, or holds no token; tokens begin with perseid_"  # noqa: S105 - not a secret
)
"""What is said of a text that looks like no token of ours."""

INVALID_TOKEN_CHALLENGE: Final = 'Bearer realm="handle", error="invalid_token"'  # noqa: S105 - not a secret
"""How a challenge says that a token does not count (RFC 6750, 3.1)."""

_TOKEN_ID_PREFIX: Final = b"token "  # no handle begins so: a prefix has no blank in it


def is_token(text: str) -> bool:
    """Whether somebody wanted to show a token of ours."""
    return text.startswith(PREFIX)


async def authenticate_token(request_context: RequestContext, text: str) -> TokenIdentity | AuthFailure:
    """Who shows a token: what stands behind the name of the scheme. Raises `Busy`."""
    if not is_token(text):
        return AuthFailure(UNKNOWN_TOKEN, in_challenge=False)
    try:
        Secret.parse(text)
    except InvalidToken as problem:
        return AuthFailure(f"the token was not accepted: {problem}", in_challenge=False)
    place = request_context.place
    target = _TOKEN_ID_PREFIX + hashlib.sha256(text.encode("utf-8", "replace")).digest()
    tokens = place.api.tokens(place.registry)
    try:
        display_name = await request_context.do(WorkKind.READ, lambda: tokens.authenticate(text), secret_of=target)
    except Refused as refused:
        place.record_proof(ProofResult(succeeded=False, secret_of=target), request_context.request.client)
        return AuthFailure(f"the token was not accepted: {refused}", in_challenge=False)
    place.record_proof(ProofResult(succeeded=True, secret_of=target), request_context.request.client)
    return display_name

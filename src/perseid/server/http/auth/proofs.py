"""Proofs of identity over HTTP: a secret, a signature, a certificate or a token.

Every method returns a `ProvenIdentity`, with the key and its fingerprint, or an `AuthFailure` with a reason. An unknown
record, a value that is not a key and a wrong proof give the same reason in the same time; only public facts, such as a
prefix that is not hosted here, are reported. An identity without an index gets that of the proving key, for secrets
too: in deployed servers it has none, and no permissions.

`Basic` (HTTP API, 7.2): a key, `INDEX:HANDLE`, and its secret.

    Basic base64( 300%3A12345/user : secret )

The name ends at the first colon, so every colon and percent sign in it must be percent-encoded. The secret is all bytes
after it, including colons. Beyond deployed servers, unencoded bytes in the name are UTF-8, and the most common mistake,
an unencoded colon after the index, `300:12345/user:secret`, is accepted. A name of only digits is not a handle, so this
is unambiguous.

TLS client certificates (HTTP API, 7.5): the name is the subject's first UID, else its first CN, else its first O, as
`INDEX:HANDLE`, or a handle, for which any key is accepted. TLS has verified the private key; here the public key must
be in the record: at that index as HS_PUBKEY, or as a server key in HS_SITE, or in a valid HS_CERT token for that
handle. Issuer, expiry and chain are ignored: they say nothing about a key in the record, and most certificates are
self-signed. Deployed servers abort the handshake for other certificates. Here all are accepted, and the response says
what is wrong; whether a record or a value exists is only logged.

`Bearer` (RFC 6750): a token issued by the holder of a key.

    Bearer perseid_k7qpx2ma…

A token is found by its id, which is not secret, and checked by the hash of the rest, in constant time. Its validity is
checked again in the snapshot in which a command is decided (`Registry.do`), as a `Guard` does for keys: a revocation
takes effect at once. A browser never sends a token automatically. An unknown token counts as a failed proof. Guesses
are counted by the full text, so nobody can lock out a token by sending its id, which is in logs, with a wrong secret.
"""

import hashlib
import hmac
import logging
import warnings
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID, PublicKeyAlgorithmOID

from perseid.records.encoding import from_base64
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.record import Value, ValueRef
from perseid.records.signatures import Certificate as Token
from perseid.records.site import Site
from perseid.records.types import HS_CERT, HS_PUBKEY, SITE_TYPES
from perseid.registry.access.permissions import display_name
from perseid.registry.access.token_records import PREFIX, InvalidToken, Secret
from perseid.registry.access.tokens import authenticate
from perseid.registry.advice import Advice, AdviceKind
from perseid.registry.identity import Proof, TokenIdentity, handle_key
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.server.http.context import ProofResult, RequestContext
from perseid.server.native.authentication import (
    MAX_KEYS,
    candidate_keys,
    hosted_elsewhere_reason,
    is_hosted_elsewhere,
    key_fingerprint,
)
from perseid.server.native.authentication import ProvenIdentity as Proved
from perseid.server.native.work import WorkKind, own_secret_id
from perseid.wire.codes import ResponseCode

from . import external, handle_scheme
from .handle_scheme import DUMMY_KEY, Claim

USER_NAME_FORMAT: Final = "the user name must be INDEX:HANDLE with the colon as %3A, such as 300%3A12345/user"
"""The format of a user name, for error messages."""

_COLON = b":"


class InvalidCredentials(Exception):
    """Invalid Basic credentials; the message says what is wrong and contains nothing of them."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and a secret."""

    written: str
    """The user name, percent-decoded."""
    reference: ValueRef
    """The key; index 0 if it must be searched."""
    secret: bytes = field(repr=False)
    guessed: bool = False
    """Whether the colon after the index was not encoded and several follow: the end of the handle is a guess."""

    @property
    def remark(self) -> str:
        """How the name was read, for error messages: the name is the most common mistake."""
        if not self.guessed:
            return f"the user name was read as {display_name(str(self.reference))}"
        cut = "the handle ends at its first colon unless that is written as %3A"
        return f"the user name was read as {display_name(str(self.reference))}; {cut}"


def parse_credentials(text: str) -> Credentials:
    """Parse the text after the scheme; raises `InvalidCredentials`."""
    try:
        raw = from_base64(text, "the header")
    except InvalidData:
        raise InvalidCredentials(f"the Basic credentials are not base64; {USER_NAME_FORMAT}") from None
    name, colon, secret = raw.partition(_COLON)
    if not colon:
        raise InvalidCredentials(f"the Basic credentials have no colon before the secret; {USER_NAME_FORMAT}")
    guessed = False
    if name.isdigit():
        handle, colon, secret = secret.partition(_COLON)
        if not colon:
            raise InvalidCredentials(f"the Basic credentials have an index but no handle; {USER_NAME_FORMAT}")
        name = name + _COLON + handle
        guessed = _COLON in secret
    try:
        written = unquote_to_bytes(name).decode("utf-8")
        return Credentials(written, ValueRef.parse(written), secret, guessed)
    except UnicodeDecodeError:
        raise InvalidCredentials(f"the user name is not UTF-8; {USER_NAME_FORMAT}") from None
    except InvalidData:
        raise InvalidCredentials(f"the user name is not a key; {USER_NAME_FORMAT}") from None


def matching_secret(credentials: Credentials, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that equals the secret; None if none does.

    All are compared, or a dummy if there are none, so that timing does not reveal which identities exist.
    """
    expected = _hash(credentials.secret)
    candidates = [key for key in keys if key.data]  # an empty secret proves nothing
    equal = [key for key in candidates or [DUMMY_KEY] if hmac.compare_digest(_hash(key.data), expected)]
    return equal[0] if candidates and equal else None


def _hash(secret: bytes) -> bytes:
    """Hash to a fixed length, so that the comparison does not reveal the length of a secret."""
    return hashlib.sha256(secret).digest()


MAX_CERTIFICATE: Final = 16_384
"""Bytes of a certificate that is parsed; one with an RSA key of 8,192 bits has 2,400."""

MAX_CACHED_CERTIFICATES: Final = 256
"""Certificates that a process remembers, parsed: a client sends many requests over one connection. 4 MB at most."""

_NO_KEY: Final = "the key of the certificate must be RSA or DSA"
_ALGORITHMS: Final = (PublicKeyAlgorithmOID.RSAES_PKCS1_v1_5, PublicKeyAlgorithmOID.DSA)
_NAMES: Final = (NameOID.USER_ID, NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)


class InvalidCertificate(Exception):
    """A certificate without a usable name or key; the message says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The name and key of a certificate."""

    written: str
    """The name as written in the certificate."""
    reference: ValueRef
    """The key; index 0 if it must be searched."""
    key: PublicKey


@lru_cache(MAX_CACHED_CERTIFICATES)
def parse_subject(raw: bytes) -> Subject:
    """Parse a certificate (DER); raises `InvalidCertificate`."""
    if len(raw) > MAX_CERTIFICATE:
        raise InvalidCertificate(f"the certificate has more than {MAX_CERTIFICATE:,} bytes")
    try:
        certificate = _load_certificate(raw)
        written = _subject_name(certificate.subject)
        key = _certificate_key(certificate)
    except InvalidCertificate:
        raise
    except Exception:  # noqa: BLE001 - the library parses parts on access, and raises many types
        raise InvalidCertificate("the certificate is invalid") from None
    if written is None:
        raise InvalidCertificate("the subject of the certificate has no UID, CN or O with INDEX:HANDLE")
    try:
        return Subject(written, ValueRef.parse(written), key)
    except InvalidData:
        raise InvalidCertificate(
            f"the subject of the certificate, {display_name(written)}, is not INDEX:HANDLE"
        ) from None


def _load_certificate(raw: bytes) -> x509.Certificate:
    with warnings.catch_warnings():
        # Some tools number all certificates 0, against the standard; untrusted clients must not fill the log with it.
        warnings.filterwarnings("ignore", "Parsed a serial number", CryptographyDeprecationWarning)
        return x509.load_der_x509_certificate(raw)


def _subject_name(subject: x509.Name) -> str | None:
    for oid in _NAMES:
        for attribute in subject.get_attributes_for_oid(oid):
            return attribute.value if isinstance(attribute.value, str) else None
    return None


def _certificate_key(certificate: x509.Certificate) -> PublicKey:
    try:
        # Checked before the key is parsed: the library would test an untrusted Diffie–Hellman modulus for primality.
        if certificate.public_key_algorithm_oid not in _ALGORITHMS:
            raise InvalidCertificate(_NO_KEY)
        info = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return PublicKey.from_x509(info)
    except (InvalidData, UnsupportedAlgorithm):
        raise InvalidCertificate(_NO_KEY) from None


def matching_certificate_key(subject: Subject, values: Sequence[Value], now: float) -> Value | None:
    """The first value of the record with the key of a certificate; None if none of the first few has it."""
    index = subject.reference.index
    keys = [value for value in values if value.type in _KEY_TYPES and value.index > 0 and index in (0, value.index)]
    for value in sorted(keys, key=_sort_key)[:MAX_KEYS]:
        if any(key == subject.key for key in _public_keys(value, subject.reference.handle, now)):
            return value
    return None


def explain_mismatch(subject: Subject, values: Sequence[Value] | None) -> str:
    """Why a certificate was not accepted, for the log."""
    identity = display_name(str(subject.reference))
    if values is None:
        return f"there is no record of {display_name(subject.reference.handle)} here"
    index = subject.reference.index
    types = sorted({value.type for value in values if index in (0, value.index)} & _KEY_TYPES)
    if not types:
        return f"the record has no value with a public key for {identity}"
    return f"the key of {identity} ({', '.join(types)}) is not the certificate's"


_KEY_TYPES: Final = SITE_TYPES | {HS_PUBKEY, HS_CERT}


def _sort_key(value: Value) -> tuple[bool, int]:
    """Sort keys by index, before values that only contain one."""
    return value.type != HS_PUBKEY, value.index


def _public_keys(value: Value, handle: str, now: float) -> Iterator[PublicKey]:
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
    """Whether a token is about a handle and currently valid."""
    claimed = token.claimed
    started = claimed.not_before is None or claimed.not_before <= now
    unexpired = claimed.expires is not None and now < claimed.expires
    return started and unexpired and handle_key(claimed.subject.handle) == handle_key(handle)


NOT_VERIFIED: Final = "authentication failed"
"""The reason, unless the request itself shows a better one."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProvenIdentity:
    """A proven identity."""

    proved: Proved
    written: str
    """The identity as the client wrote it."""


@dataclass(frozen=True, slots=True)
class AuthFailure:
    """Why authentication failed. The response is 401."""

    reason: str
    code: ResponseCode = ResponseCode.AUTHENTICATION_FAILED
    advice: Advice | None = None
    in_challenge: bool = True
    """Whether the challenge repeats the reason; deployed servers do not for headers they cannot parse."""


async def authenticate_basic(
    request_context: RequestContext, text: str, *, changes: bool = False
) -> ProvenIdentity | AuthFailure:
    """Check Basic credentials: the text after the scheme. `changes` is as in `authenticate`."""
    try:
        credentials = parse_credentials(text)
    except InvalidCredentials as problem:
        return AuthFailure(str(problem))
    reference = credentials.reference
    target = own_secret_id(reference.handle)

    def load_keys(snapshot: Snapshot) -> tuple[Value | None, bool, bool]:
        keys = _find_keys(snapshot, reference, Proof.SECRET_KEY)
        return matching_secret(credentials, keys.values), keys.elsewhere, keys.external

    # The comparison is fast, so it is part of the read; the budgets must know whose secret is guessed.
    key, elsewhere, is_external = await request_context.read_short(
        load_keys, secret_of=target, accept_recent=(lambda found: found[0] is not None) if changes else None
    )
    if key is None and is_external and request_context.server.external is not None:
        return await _authenticate_externally(
            reference, external.prove_secret(request_context, reference, credentials.secret), credentials.written
        )
    _record(request_context, ProofResult(key is not None, target), cached=changes)
    if key is None:
        return _auth_failure(reference, credentials.remark, elsewhere=elsewhere)
    return _proven_identity(reference, Proof.SECRET_KEY, key, credentials.written)


async def authenticate_claim(
    request_context: RequestContext, claim: Claim, nonce: bytes
) -> ProvenIdentity | AuthFailure:
    """Verify a claim of the Handle scheme for one of our nonces."""
    reference, kind = claim.reference, claim.kind
    target = own_secret_id(reference.handle) if kind is Proof.SECRET_KEY else None
    keys = await request_context.read_short(lambda snapshot: _find_keys(snapshot, reference, kind))
    if keys.external and request_context.server.external is not None:
        return await _authenticate_externally(
            reference, external.prove_claim(request_context, claim, nonce), claim.written
        )
    check, price = (
        partial(handle_scheme.matching_signature_key, claim, nonce, keys.values),
        handle_scheme.verification_cost(claim),
    )
    key = await request_context.do(WorkKind.VERIFY, check, secret_of=target, price=price)
    request_context.record_proof(ProofResult(key is not None, target))
    if key is None:
        return _auth_failure(reference, f"the id was read as {display_name(str(reference))}", elsewhere=keys.elsewhere)
    return _proven_identity(reference, kind, key, claim.written)


async def authenticate_certificate(request_context: RequestContext, raw: bytes) -> ProvenIdentity | AuthFailure:
    """Check the TLS client certificate.

    A rejected certificate does not count as a guess: nobody guesses keys that way, and a browser may offer one that is
    meant for another server.
    """
    now = request_context.server.time()

    def load_keys(snapshot: Snapshot) -> tuple[Subject, Value | None, bool, bool, str]:
        subject = parse_subject(raw)
        handle = subject.reference.handle
        values = snapshot.group(handle)
        key = matching_certificate_key(subject, values or (), now)
        if key is not None:
            return subject, key, False, False, ""
        elsewhere, is_external = is_hosted_elsewhere(snapshot, handle), external.is_external(snapshot, handle)
        return subject, None, elsewhere, is_external, explain_mismatch(subject, values)

    try:
        subject, key, elsewhere, is_external, reason = await request_context.read_short(load_keys)
    except InvalidCertificate as problem:
        _log_rejection(request_context, now, str(problem))
        return AuthFailure(f"the certificate was not accepted: {problem}")
    if key is None and is_external and request_context.server.external is not None:
        reference = subject.reference
        proof = external.prove_certificate(request_context, reference, subject.key)
        return await _authenticate_externally(reference, proof, subject.written)
    if key is None:
        _log_rejection(request_context, now, reason)
        remark = f"the key of the certificate is not a key of {display_name(str(subject.reference))} here"
        return _auth_failure(subject.reference, remark, elsewhere=elsewhere)
    request_context.record_proof(ProofResult(succeeded=True))
    return _proven_identity(subject.reference, Proof.PUBLIC_KEY, key, subject.written)


def _record(request_context: RequestContext, result: ProofResult, *, cached: bool) -> None:
    """Record the outcome of a proof; if a key or token from the cache was enough, the decision confirms it first."""
    if cached and result.succeeded:
        request_context.expect_proof(result)
    else:
        request_context.record_proof(result)


def _log_rejection(request_context: RequestContext, now: float, reason: str) -> None:
    host = request_context.request.client.host
    request_context.server.certificate_log.info(_logger, now, f"certificate from {host} not accepted: {reason}")


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that can prove an identity."""

    values: tuple[Value, ...]
    """Empty if there is no record here."""
    elsewhere: bool
    """Whether another server hosts the record."""
    external: bool
    """Whether another server may have the keys: also those of a prefix handle that is not stored here."""


def _find_keys(snapshot: Snapshot, reference: ValueRef, kind: Proof) -> _Keys:
    values = candidate_keys(snapshot.group(reference.handle) or (), kind, reference.index)
    handle = reference.handle
    return _Keys(values, is_hosted_elsewhere(snapshot, handle), not values and external.is_external(snapshot, handle))


async def _authenticate_externally(
    reference: ValueRef, proof: Awaitable[Proved | None], written: str
) -> ProvenIdentity | AuthFailure:
    """Return the result of a proof that another server verified. Raises `Busy`."""
    try:
        proved = await proof
    except Refused as refused:
        return AuthFailure(f"{NOT_VERIFIED}: {refused.reason}", refused.code)
    if proved is None:
        return AuthFailure(f"{NOT_VERIFIED}: {external.failure_reason(reference)}", advice=AdviceKind.CHECK_KEY())
    return ProvenIdentity(proved, written)


def _auth_failure(reference: ValueRef, remark: str, *, elsewhere: bool) -> AuthFailure:
    """Create the failure; it depends on public facts only."""
    if elsewhere:
        reason = f"{NOT_VERIFIED}: {hosted_elsewhere_reason(reference.handle)}"
        return AuthFailure(reason, advice=AdviceKind.USE_KEY_STORED_HERE())
    return AuthFailure(f"{NOT_VERIFIED}: {remark}", advice=AdviceKind.CHECK_KEY())


def _proven_identity(reference: ValueRef, kind: Proof, key: Value, written: str) -> ProvenIdentity:
    proved = Proved(reference.handle.encode("utf-8"), key.index, key.index, kind, key_fingerprint(key))
    return ProvenIdentity(proved, written)


UNKNOWN_TOKEN: Final = "the Authorization header has no Perseid token; tokens start with perseid_"  # noqa: S105 - not a secret
"""The reason for a text that is not one of our tokens."""

INVALID_TOKEN_CHALLENGE: Final = 'Bearer realm="handle", error="invalid_token"'  # noqa: S105 - not a secret
"""The challenge after an invalid token (RFC 6750, 3.1)."""

_TOKEN_ID_PREFIX: Final = b"token "  # no handle starts like this: a prefix has no space


def is_token(text: str) -> bool:
    """Whether a text is meant as one of our tokens."""
    return text.startswith(PREFIX)


async def authenticate_token(
    request_context: RequestContext, text: str, *, changes: bool = False
) -> TokenIdentity | AuthFailure:
    """Authenticate the token after the scheme; `changes` is as in `authenticate`. Raises `Busy`."""
    if not is_token(text):
        return AuthFailure(UNKNOWN_TOKEN, advice=AdviceKind.SEND_WHOLE_TOKEN(), in_challenge=False)
    try:
        secret = Secret.parse(text)
    except InvalidToken as problem:
        reason = f"the token was not accepted: {problem}"
        return AuthFailure(reason, advice=AdviceKind.SEND_WHOLE_TOKEN(), in_challenge=False)
    server = request_context.server
    target = _TOKEN_ID_PREFIX + hashlib.sha256(text.encode("utf-8", "replace")).digest()
    tokens = server.api.tokens(server.registry)

    def load_token(snapshot: Snapshot) -> TokenIdentity | Refused:
        try:
            return authenticate(snapshot, secret, server.registry.now())
        except Refused as refused:  # a result; work that fails is not an attempt
            return refused

    result = await request_context.read_short(
        load_token,
        secret_of=target,
        accept_recent=(lambda one: isinstance(one, TokenIdentity)) if changes else None,
    )
    _record(request_context, ProofResult(not isinstance(result, Refused), target), cached=changes)
    if isinstance(result, Refused):
        reason = f"the token was not accepted: {result.reason}"
        return AuthFailure(reason, advice=result.advice, in_challenge=False)
    if not tokens.is_noted(result.token):
        tokens.note(result.token)
    return result

"""Identities on other servers over HTTP, by the rules of the native protocol (`native.external`).

A secret is never sent: the server that has it verifies the response to a challenge (VERIFY_CHALLENGE). For Basic this
server makes challenge and response by itself; a signature of the `Handle` scheme is such a response already. Public
keys, also those of certificates, are read in certified responses.

The identity is known before the command, so the rule about who is asked about differs from the native protocol: other
servers are asked about identities that a public record, a group or a setting here names as an administrator. What is
missing gets the same reason as a wrong proof. A proof with Basic or a certificate is sent with each request, so it is
remembered for as long as it would be valid in a session.
"""

import hashlib
import secrets
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from perseid.records.binary import Writer
from perseid.records.keys import PublicKey
from perseid.records.record import Value, ValueRef
from perseid.registry.access.permissions import display_name
from perseid.registry.identity import Proof
from perseid.registry.queries.access import is_named
from perseid.registry.snapshot import Snapshot
from perseid.server.http.context import ProofResult, RequestContext
from perseid.server.native.authentication import (
    EXTERNAL_LIFE,
    ProvenIdentity,
    find_proving_public_key,
    is_hosted_elsewhere,
    is_unknown_prefix_handle,
    prove_identity,
)
from perseid.server.native.work import WorkKind, own_secret_id
from perseid.wire.challenges import NONCE_LENGTH, SALT_LENGTH, answer_with_secret
from perseid.wire.codes import CURRENT_VERSION
from perseid.wire.credentials import Algorithm
from perseid.wire.requests import VerifyChallenge
from perseid.wire.sessions import Identity

from .handle_scheme import Claim, matching_signature_key

if TYPE_CHECKING:
    from perseid.server.native.external import ExternalIdentities

_DIGEST_LENGTH: Final = 20  # of the request in a challenge; here it is random


def is_external(snapshot: Snapshot, handle: str) -> bool:
    """Whether another server may have the keys of a handle."""
    return is_hosted_elsewhere(snapshot, handle) or is_unknown_prefix_handle(snapshot, handle)


def failure_reason(reference: ValueRef) -> str:
    """Why an identity on another server was not accepted; the same for a wrong proof and for one nobody names here."""
    identity = display_name(str(reference))
    return f"the key is not that of {identity} on its own server, or no record here names it as an administrator"


async def prove_secret(request_context: RequestContext, reference: ValueRef, secret: bytes) -> ProvenIdentity | None:
    """Verify a secret, after an attempt at it was admitted; its outcome is recorded. Raises `Busy` and `Refused`."""

    async def verify() -> ProvenIdentity | None:
        external = await _find_external(request_context, reference)
        if external is None or not secret:
            return None
        evidence = _hash_evidence(reference, b"secret", secret)
        known = external.find_proof(evidence, request_context.server.time())
        if known is not None:
            return known
        nonce, digest = secrets.token_bytes(NONCE_LENGTH), secrets.token_bytes(_DIGEST_LENGTH)
        salt = secrets.token_bytes(SALT_LENGTH)
        make_answer = partial(answer_with_secret, secret, nonce, digest, CURRENT_VERSION, CURRENT_VERSION, salt)
        answer = await request_context.do(WorkKind.VERIFY, make_answer)
        proved = await _verify_answer(request_context, external, reference, nonce, digest, answer)
        if proved is not None:
            external.keep_proof(evidence, proved, request_context.server.time())
        return proved

    return await _record_attempt(request_context, reference, verify())


async def prove_claim(request_context: RequestContext, claim: Claim, nonce: bytes) -> ProvenIdentity | None:
    """Verify a claim of the Handle scheme for one of our nonces; its outcome is recorded. Raises `Busy`, `Refused`."""
    reference = claim.reference

    async def verify() -> ProvenIdentity | None:
        external = await _find_external(request_context, reference)
        if external is None:
            return None
        return await _verify_answer(request_context, external, reference, nonce, claim.cnonce, _to_answer(claim))

    if claim.kind is Proof.SECRET_KEY:
        # Raises after many wrong guesses.
        await request_context.do(WorkKind.VERIFY, lambda: None, secret_of=own_secret_id(reference.handle))
        return await _record_attempt(request_context, reference, verify())
    external = await _find_external(request_context, reference)
    keys = () if external is None else await _find_keys(request_context, external, reference)
    key = await request_context.do(WorkKind.VERIFY, partial(matching_signature_key, claim, nonce, keys))
    request_context.record_proof(ProofResult(key is not None))
    return None if key is None else _prove_key(request_context, reference, key)


async def prove_certificate(
    request_context: RequestContext, reference: ValueRef, public_key: PublicKey
) -> ProvenIdentity | None:
    """Compare the key of a certificate with those in the record of an identity; the outcome is recorded. Raises `Busy`.

    Unlike a comparison with a record here, a wrong one costs other servers something.
    """
    external = await _find_external(request_context, reference)
    if external is None:
        return None
    evidence = _hash_evidence(reference, b"certificate", public_key.to_bytes())
    known = external.find_proof(evidence, request_context.server.time())
    if known is None:
        keys = await _find_keys(request_context, external, reference)
        key = find_proving_public_key(keys, lambda key: key == public_key)
        if key is None:
            request_context.record_proof(ProofResult(succeeded=False))
            return None
        known = _prove_key(request_context, reference, key)
        external.keep_proof(evidence, known, request_context.server.time())
    request_context.record_proof(ProofResult(succeeded=True))
    return known


async def _find_external(request_context: RequestContext, reference: ValueRef) -> "ExternalIdentities | None":
    """Return what asks other servers about an identity; None if they must not be asked."""
    external, registry = request_context.server.external, request_context.server.registry
    if external is None:
        return None

    def read() -> bool:
        with registry.snapshot() as snapshot:
            return is_named(snapshot, reference.handle)

    return external if await request_context.do(WorkKind.READ, read) else None


async def _find_keys(
    request_context: RequestContext, external: "ExternalIdentities", reference: ValueRef
) -> tuple[Value, ...]:
    """Ask for the public keys of an identity, unless the caller has failed too often. Raises `Busy`."""
    await request_context.do(WorkKind.VERIFY, lambda: None)
    return await external.find_keys(reference)


async def _verify_answer(
    request_context: RequestContext,
    external: "ExternalIdentities",
    reference: ValueRef,
    nonce: bytes,
    digest: bytes,
    answer: bytes,
) -> ProvenIdentity | None:
    handle, index = reference.handle.encode("utf-8"), reference.index
    if not await external.verify_secret(VerifyChallenge(handle, index, nonce, digest, answer)):
        return None
    until = int(request_context.server.time()) + EXTERNAL_LIFE
    return ProvenIdentity(handle, index, index, Proof.SECRET_KEY, external_until=until)


async def _record_attempt(
    request_context: RequestContext, reference: ValueRef, attempt: Awaitable[ProvenIdentity | None]
) -> ProvenIdentity | None:
    """Record the outcome of an attempt at a secret; without one it costs nothing."""
    succeeded = None
    try:
        proved = await attempt
        succeeded = proved is not None
        return proved
    finally:
        request_context.record_proof(ProofResult(succeeded, own_secret_id(reference.handle)))


def _prove_key(request_context: RequestContext, reference: ValueRef, key: Value) -> ProvenIdentity:
    proved = prove_identity(Identity(reference.handle.encode("utf-8"), key.index), Proof.PUBLIC_KEY, key)
    return replace(proved, external_until=int(request_context.server.time()) + EXTERNAL_LIFE)


def _to_answer(claim: Claim) -> bytes:
    """Return the signature of a secret as the response to a challenge of the native protocol (13.5)."""
    if claim.algorithm is not Algorithm.PBKDF2_HMAC_SHA1:
        return bytes((claim.algorithm,)) + claim.signature
    writer = Writer().bytes_(claim.salt).i32(claim.iterations).i32(claim.bits).bytes_(claim.signature)
    return bytes((claim.algorithm,)) + writer.getvalue()


def _hash_evidence(reference: ValueRef, kind: bytes, data: bytes) -> bytes:
    """Hash what proved an identity; the process adds a key (`ExternalIdentities.find_proof`)."""
    parts = (str(reference).encode("utf-8", "surrogatepass"), kind, data)
    return b"".join([hashlib.sha256(part).digest() for part in parts])

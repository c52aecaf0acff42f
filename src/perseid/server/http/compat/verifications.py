"""`/api/verifications/{index}:{handle}` (HTTP API, 6.9): verification of a signature made with a secret key.

Another server requests it when a user whose record is here authenticates there; it corresponds to VERIFY_CHALLENGE of
the native protocol. Request and response are not secret, so plain HTTP is enough. To limit guessing, the budgets know
whose secret is checked, before the work and after it. Failures count for the calling address and for the handle,
together with those of the native protocol.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from perseid.records.errors import InvalidData
from perseid.records.types import HS_SECKEY
from perseid.records.value import Value, ValueRef
from perseid.registry.identity import Proof
from perseid.registry.results import Refused
from perseid.server.http import bodies
from perseid.server.http.auth import handle_scheme
from perseid.server.http.auth.handle_scheme import Claim, InvalidFields
from perseid.server.http.context import ProofResult, RequestContext
from perseid.server.http.messages import Response
from perseid.server.http.responses import JsonFormat
from perseid.server.http.targets import BadRequest, Name, Parameters
from perseid.server.native.operations import NativeContext, find_secrets
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode
from perseid.wire.requests import VerifyChallenge

from .call import Call, full_name

_REQUIRED_FIELDS: Final = ("nonce", "cnonce", "alg", "signature")
_FIELDS: Final = (*_REQUIRED_FIELDS, "salt", "iterations", "length")
_WITH_INDEX: Final = re.compile(r"[0-9]+:")


@dataclass(frozen=True, slots=True)
class _Verification:
    """A parsed request."""

    claim: Claim
    nonce: bytes

    @property
    def handle(self) -> str:
        return self.claim.reference.handle


async def handle_request(call: Call, name: Name) -> Response:
    """Verify a signature. Raises what `Call` converts to a response."""
    request, parameters = call.request, call.parameters
    if request.method == "POST":
        parameters = parameters.plus(bodies.parse_parameters(request))
        call = replace(call, parameters=parameters, form=JsonFormat.of(parameters))
    verification = _parse_verification(
        name.text, parameters, weak_digests=call.request_context.server.settings.weak_digests
    )
    try:
        is_valid = await _is_valid(call.request_context, verification)
    except Refused as problem:
        return call.error_response(problem, verification.handle)
    plain = {"responseCode": int(ResponseCode.SUCCESS), "isValid": is_valid, "handle": verification.handle}
    return call.respond(plain, name=verification.handle)


async def _is_valid(request_context: RequestContext, verification: _Verification) -> bool:
    server, reference = request_context.server, verification.claim.reference
    target = full_name(reference.handle).encode("utf-8", "replace")
    native = NativeContext(server.registry, server.site, server.position, tuple)
    challenge = VerifyChallenge(target, reference.index, b"", b"", b"")

    def load_keys() -> list[Value]:
        return [Value(1, HS_SECKEY, secret) for secret in find_secrets(native, challenge, refer=False)]

    keys = await request_context.do(WorkKind.READ, load_keys, secret_of=target)
    check = partial(handle_scheme.matching_signature_key, verification.claim, verification.nonce, keys)
    price = handle_scheme.verification_cost(verification.claim)
    is_valid = await request_context.do(WorkKind.VERIFY, check, secret_of=target, price=price) is not None
    server.record_proof(ProofResult(is_valid, target, own=False), request_context.request.client)
    return is_valid


def _parse_verification(name: str, parameters: Parameters, *, weak_digests: bool) -> _Verification:
    """Parse the parameters; raises `BadRequest`."""
    reference = _parse_reference(name, parameters)
    fields = {name: value for name in _FIELDS if (value := parameters.first(name)) is not None}
    if missing := [name for name in _REQUIRED_FIELDS if name not in fields]:
        raise BadRequest(f"parameters are missing: {', '.join(missing)}")
    try:
        algorithm = handle_scheme.parse_algorithm(fields["alg"], Proof.SECRET_KEY, weak_digests=weak_digests)
        nonce, cnonce = (handle_scheme.decode_base64(fields[name], name) for name in ("nonce", "cnonce"))
        signature = handle_scheme.decode_base64(fields["signature"], "signature")
        derivation = handle_scheme.parse_derivation(fields, algorithm)
    except InvalidFields as problem:
        raise BadRequest(str(problem)) from None
    claim = Claim(str(reference), reference, Proof.SECRET_KEY, algorithm, cnonce, signature, *derivation)
    return _Verification(claim, nonce)


def _parse_reference(text: str, parameters: Parameters) -> ValueRef:
    """The key, from the path, or from the path and one index."""
    indexes = parameters.numbers("index")
    if len(indexes) > 1 or (indexes and _WITH_INDEX.match(text)):
        raise BadRequest("send the index either in the path or as one parameter")
    try:
        reference = ValueRef.parse(text)
    except InvalidData as problem:
        raise BadRequest(f"the path is not INDEX:HANDLE: {problem}") from None
    return ValueRef(max(indexes[0], 0), reference.handle) if indexes else reference

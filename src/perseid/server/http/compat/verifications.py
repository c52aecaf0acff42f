"""`/api/verifications/{index}:{handle}` (HTTP API, 6.9): whether somebody who has a secret here made a signature.

Another server asks that, to which somebody has come whose record is here; VERIFY_CHALLENGE is the same over the native
protocol. What is asked and told is no secret, so plain HTTP does. But a stranger may ask as well, to guess: so whoever
has the work done is told whose secret it is about, before any of it and when it is known what came of it. Wrong answers
count for the address that asked and for the handle, together with those over the native protocol.
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
from perseid.server.http.auth import handle_scheme as handle_proofs
from perseid.server.http.auth.handle_scheme import Claim, InvalidFields
from perseid.server.http.context import ProofResult, RequestContext
from perseid.server.http.messages import Response
from perseid.server.http.responses import JsonFormat
from perseid.server.http.targets import BadRequest, Name, Parameters
from perseid.server.native.operations import NativeContext as NativePlace
from perseid.server.native.operations import find_secrets
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode
from perseid.wire.requests import VerifyChallenge

from .call import Call, full_name

_REQUIRED_FIELDS: Final = ("nonce", "cnonce", "alg", "signature")
_FIELDS: Final = (*_REQUIRED_FIELDS, "salt", "iterations", "length")
_WITH_INDEX: Final = re.compile(r"[0-9]+:")


@dataclass(frozen=True, slots=True)
class _Verification:
    """What is asked."""

    claim: Claim
    nonce: bytes

    @property
    def handle(self) -> str:
        return self.claim.reference.handle


async def handle_request(call: Call, name: Name) -> Response:
    """Answer whether a signature is right. Raises what the call answers."""
    request, parameters = call.request, call.parameters
    if request.method == "POST":
        parameters = parameters.plus(bodies.parse_parameters(request))
        call = replace(call, parameters=parameters, form=JsonFormat.of(parameters))
    question = _parse_verification(name.text, parameters, weak_digests=call.request_context.place.settings.weak_digests)
    try:
        is_valid = await _is_valid(call.request_context, question)
    except Refused as problem:
        return call.error_response(problem, question.handle)
    plain = {"responseCode": int(ResponseCode.SUCCESS), "isValid": is_valid, "handle": question.handle}
    return call.respond(plain, name=question.handle)


async def _is_valid(request_context: RequestContext, question: _Verification) -> bool:
    place, reference = request_context.place, question.claim.reference
    whose = full_name(reference.handle).encode("utf-8", "replace")
    native = NativePlace(place.registry, place.site, place.position, tuple)
    asked = VerifyChallenge(whose, reference.index, b"", b"", b"")

    def load_keys() -> list[Value]:
        return [Value(1, HS_SECKEY, secret) for secret in find_secrets(native, asked, refer=False)]

    keys = await request_context.do(WorkKind.READ, load_keys, secret_of=whose)
    check = partial(handle_proofs.matching_signature_key, question.claim, question.nonce, keys)
    price = handle_proofs.verification_cost(question.claim)
    is_valid = await request_context.do(WorkKind.VERIFY, check, secret_of=whose, price=price) is not None
    place.record_proof(ProofResult(is_valid, whose, own=False), request_context.request.client)
    return is_valid


def _parse_verification(name: str, parameters: Parameters, *, weak_digests: bool) -> _Verification:
    """What is asked; raises `Malformed`."""
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
    """The key that is meant, by the path or by the path and one index."""
    indexes = parameters.numbers("index")
    if len(indexes) > 1 or (indexes and _WITH_INDEX.match(text)):
        raise BadRequest("the index stands in the path or in one parameter, not in both")
    try:
        reference = ValueRef.parse(text)
    except InvalidData as problem:
        raise BadRequest(f"the path does not name a key: {problem}") from None
    return ValueRef(max(indexes[0], 0), reference.handle) if indexes else reference

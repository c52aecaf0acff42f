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
from perseid.server.http.auth.handle_scheme import Claim, NotUnderstood
from perseid.server.http.context import Asking, Verdict
from perseid.server.http.messages import Response
from perseid.server.http.responses import Form
from perseid.server.http.targets import Malformed, Name, Parameters
from perseid.server.native.operations import Place as NativePlace
from perseid.server.native.operations import secrets_for
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode
from perseid.wire.requests import VerifyChallenge

from .call import Call, full_name

_NEEDED: Final = ("nonce", "cnonce", "alg", "signature")
_FIELDS: Final = (*_NEEDED, "salt", "iterations", "length")
_WITH_INDEX: Final = re.compile(r"[0-9]+:")


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked."""

    claim: Claim
    nonce: bytes

    @property
    def handle(self) -> str:
        return self.claim.reference.handle


async def answer(call: Call, name: Name) -> Response:
    """Answer whether a signature is right. Raises what the call answers."""
    request, parameters = call.request, call.parameters
    if request.method == "POST":
        parameters = parameters.plus(bodies.parameters(request))
        call = replace(call, parameters=parameters, form=Form.of(parameters))
    question = _question(name.text, parameters, weak_digests=call.asking.place.settings.weak_digests)
    try:
        is_valid = await _is_valid(call.asking, question)
    except Refused as problem:
        return call.refused(problem, question.handle)
    plain = {"responseCode": int(ResponseCode.SUCCESS), "isValid": is_valid, "handle": question.handle}
    return call.answer(plain, name=question.handle)


async def _is_valid(asking: Asking, question: _Question) -> bool:
    place, reference = asking.place, question.claim.reference
    whose = full_name(reference.handle).encode("utf-8", "replace")
    native = NativePlace(place.registry, place.site, place.position, tuple)
    asked = VerifyChallenge(whose, reference.index, b"", b"", b"")

    def look() -> list[Value]:
        return [Value(1, HS_SECKEY, secret) for secret in secrets_for(native, asked, refer=False)]

    keys = await asking.do(Kind.READ, look, secret_of=whose)
    check = partial(handle_proofs.matching_signature_key, question.claim, question.nonce, keys)
    price = handle_proofs.price_of(question.claim)
    is_valid = await asking.do(Kind.VERIFY, check, secret_of=whose, price=price) is not None
    place.judge(Verdict(is_valid, whose, own=False), asking.request.client)
    return is_valid


def _question(name: str, parameters: Parameters, *, weak_digests: bool) -> _Question:
    """What is asked; raises `Malformed`."""
    reference = _reference(name, parameters)
    fields = {name: value for name in _FIELDS if (value := parameters.first(name)) is not None}
    if missing := [name for name in _NEEDED if name not in fields]:
        raise Malformed(f"parameters are missing: {', '.join(missing)}")
    try:
        algorithm = handle_scheme.algorithm_of(fields["alg"], Proof.SECRET_KEY, weak_digests=weak_digests)
        nonce, cnonce = (handle_scheme.octets(fields[name], name) for name in ("nonce", "cnonce"))
        signature = handle_scheme.octets(fields["signature"], "signature")
        derivation = handle_scheme.derivation_of(fields, algorithm)
    except NotUnderstood as problem:
        raise Malformed(str(problem)) from None
    claim = Claim(str(reference), reference, Proof.SECRET_KEY, algorithm, cnonce, signature, *derivation)
    return _Question(claim, nonce)


def _reference(text: str, parameters: Parameters) -> ValueRef:
    """The key that is meant, by the path or by the path and one index."""
    indexes = parameters.numbers("index")
    if len(indexes) > 1 or (indexes and _WITH_INDEX.match(text)):
        raise Malformed("the index stands in the path or in one parameter, not in both")
    try:
        reference = ValueRef.parse(text)
    except InvalidData as problem:
        raise Malformed(f"the path does not name a key: {problem}") from None
    return ValueRef(max(indexes[0], 0), reference.handle) if indexes else reference

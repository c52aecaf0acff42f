"""Proving an identity over HTTP: a secret, a signature or a certificate against the keys of the record that it names.

Each way ends in the same: `Shown`, with the key that proved it and its mark, or `Unproved`, with a reason. Whoever
names a record that is not here, a value that is no key, or gives a wrong answer is told the same, and it takes as long;
of what is public, that a prefix is not served here, they are told.

An identity without an index has that of the key which proved it, for secrets too: deployed servers leave it without
one, and then it may do nothing.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

from perseid.names.handle import Handle
from perseid.records.value import Value, ValueRef
from perseid.registry.access.permissions import shown
from perseid.registry.identity import Proof
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Facts
from perseid.server.http import basic, certificate_identity, handle_proofs, judging
from perseid.server.http.basic import Credentials
from perseid.server.http.certificate_identity import NoIdentity, Subject
from perseid.server.http.context import Asking
from perseid.server.http.judging import Verdict
from perseid.server.native.authentication import Proved, candidates, mark_of
from perseid.server.native_steps import Kind
from perseid.wire.codes import ResponseCode

from .handle_scheme import Claim

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
        credentials = basic.parse(text)
    except basic.NotUnderstood as problem:
        return Unproved(str(problem))
    return await _by_credentials(asking, credentials)


async def _by_credentials(asking: Asking, credentials: Credentials) -> Shown | Unproved:
    reference, registry = credentials.reference, asking.place.registry
    target = judging.of_own(reference.handle)

    def look() -> tuple[Value | None, bool]:
        keys = _keys(registry, reference, Proof.SECRET_KEY)
        return basic.proving(credentials, keys.values), keys.elsewhere

    # Comparing takes no time, so that it needs no work of its own; but whose secret it is about the budgets must know.
    key, elsewhere = await asking.do(Kind.READ, look, secret_of=target)
    asking.place.judge(Verdict(key is not None, target), asking.request.client)
    if key is None:
        return _refusal(reference, credentials.remark, elsewhere=elsewhere)
    return _shown(reference, Proof.SECRET_KEY, key, credentials.written)


async def by_claim(asking: Asking, claim: Claim, nonce: bytes) -> Shown | Unproved:
    """Take a claim of the Handle scheme that was made about a nonce of ours."""
    reference, kind, registry = claim.reference, claim.kind, asking.place.registry
    target = judging.of_own(reference.handle) if kind is Proof.SECRET_KEY else None
    keys = await asking.do(Kind.READ, lambda: _keys(registry, reference, kind), secret_of=target)
    check, price = partial(handle_proofs.proving, claim, nonce, keys.values), handle_proofs.price_of(claim)
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
        subject = certificate_identity.subject_of(octets)
        with registry.facts() as facts:
            values = facts.group(subject.reference.handle)
            key = certificate_identity.proving(subject, values or (), now)
            if key is not None:
                return subject, key, False, ""
            elsewhere = _is_elsewhere(facts, subject.reference.handle)
            return subject, None, elsewhere, certificate_identity.why_not(subject, values)

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

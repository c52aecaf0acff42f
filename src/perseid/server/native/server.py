"""Native protocol server without sockets: bytes in, registry commands, bytes out, for every operation (6.1).

It has no threads and no clock. `handle` responds to one message. All work goes through a function of the process (see
`native.work`), which runs it where it belongs and refuses excess work with `Busy`. The state of the protocol changes
only between two such calls.

    message ──► protocol ──┬──► answered by the protocol itself: early failures, ended sessions …
                           ├──► request: executed as anonymous; if the registry requires an identity, as the
                           │    identity of the session, else challenged
                           └──► challenge response: verified, then executed as that identity

Improvements over deployed servers: a challenge response cannot be used twice; a change sent twice over UDP is made
once; a session, and a challenge response, is valid only while the key that proved it is unchanged.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

from perseid.ledger.errors import OutcomeUnknown, TooBusy
from perseid.names.errors import quote_text
from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.records.site import Purpose, Site, Transport
from perseid.registry.identity import Anonymous, KeyIdentity, Proof
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.state.state import SharedState
from perseid.wire.challenges import check_secret_answer
from perseid.wire.codes import OpCode, OpFlag, RemoteProtocolError, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope
from perseid.wire.requests import SessionSetup, VerifyChallenge
from perseid.wire.responses import HANDLES_PER_MESSAGE, Failure, HandleList, ResponseBody, VerificationResult
from perseid.wire.server import ChallengeProof, Reply, Request, Server

from .authentication import (
    EXTERNAL_LIFE,
    PROOF_KINDS,
    Guard,
    HostedElsewhere,
    KeyChanged,
    ProvenIdentity,
    are_rsa_keys,
    authentication_failed,
    caller_identity,
    choose_proving_key,
    find_proving_secret,
    is_unknown_prefix_handle,
    key_identity,
    parse_public_keys,
    prove_identity,
)
from .decisions import (
    Busy,
    RegistryRequest,
    RequestResult,
    dry_run,
    error_response,
    execute_change,
    execute_request,
    find_claim_refusal,
    find_claimed_keys,
    find_recent_keys,
    internal_error,
)
from .operations import CHANGING_OPCODES, NativeContext, find_secrets, status_values, translate
from .udp import MAX_SETUPS, Key, ReplyCache, content_key, frame_key
from .work import (
    NativeResponse,
    RunWork,
    SecretGuess,
    Work,
    WorkKind,
    own_secret_id,
    read_codes,
    run_here,
    verified_secret_id,
)

if TYPE_CHECKING:
    from .external import ExternalIdentities

REFERENCE_BYTES: Final = 6
"""Bytes of the reference of an unexpected error: enough to find it, short enough to read out."""

MAX_INLINE_BYTES: Final = 16_384
"""Bytes of a message that the event loop handles itself: some hundred values, a few milliseconds at most."""

_LIST_OPCODES: Final = frozenset((OpCode.LIST_HANDLES, OpCode.LIST_HOMED_NAS))
_ADMIN_OPCODES: Final = (
    CHANGING_OPCODES | _LIST_OPCODES | {OpCode.GET_NEXT_TXN_ID, OpCode.RETRIEVE_TXN_LOG, OpCode.DUMP_HANDLES}
)
_HTTP_TRANSPORTS: Final = frozenset((Transport.HTTP, Transport.HTTPS))

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Settings of the native server."""

    position: int = 0
    """Position among the site's servers, from 0."""
    sessions_required: bool = False
    """Whether authentication requires a session."""
    ports: Mapping[Transport, int] = field(default_factory=dict)
    """Listening ports, to be compared with the interfaces in the site record (2.5)."""


@dataclass(slots=True)
class Call:
    """One message that is being handled."""

    envelope: Envelope
    source: str
    now: float
    transport: Transport
    request: Request | None = None
    """The request, once it is parsed."""
    identity: str = ""
    proved: ProvenIdentity | None = None
    guess: SecretGuess | None = None
    """What the response reveals about a secret."""
    failed_proof: bool = False
    """Whether it was a wrong challenge response."""
    is_final: bool = False
    """Whether the response is final: something was done, or may have been, or a counter was used up."""
    last: Reply | None = None
    """The last reply sent."""
    content: Key | None = None
    """Key of other attempts in the same session, if this is a change over UDP."""
    names: tuple[bytes, ...] = ()
    """The names of a list that are not sent yet."""
    next_page: RegistryRequest | None = None
    """The request for the names after them."""
    earlier: Callable[[], Awaitable[object]] | None = None
    """Waits for the earlier messages of a connection, if this one was started before they were finished."""


class NativeServer:
    """A server of the native protocol without sockets, for one event loop."""

    def __init__(  # noqa: PLR0913 - all its parts
        self,
        registry: Registry,
        server: Server,
        site: Site,
        *,
        settings: NativeSettings | None = None,
        status: Callable[[], tuple[Value, ...]] | None = None,
        checkpoint: Callable[[], bool] | None = None,
        run: RunWork = run_here,
        state: SharedState | None = None,
        external: "ExternalIdentities | None" = None,
    ) -> None:
        """`run` does the work for a client address; `state` is that of all processes, else it is private.

        `external` asks other servers about identities, if that is allowed.
        """
        self.registry = registry
        self.server = server
        self._settings = settings or NativeSettings()
        self._native = NativeContext(registry, site, self._settings.position, status or self.status, checkpoint)
        self._purposes = site.purposes(self._settings.position, self._settings.ports)
        self.resolution_enabled = {each: self._accepts(each, OpCode.RESOLUTION) for each in Transport}
        """Whether resolution may use the fast path; some sites exclude it from a transport (2.5)."""
        self._run = run
        self.external = external
        self._reads_are_short = not registry.ledger.log.store.is_remote
        self._random = registry.ledger.log.random
        state = state or SharedState.private()
        self.changes = ReplyCache(state)
        self.setups = ReplyCache(state, "udp_setups", MAX_SETUPS, is_repeatable=True)

    def status(self) -> tuple[Value, ...]:
        """Return the values of `0.SITE/status`, for administrators."""
        return status_values(self.registry, sessions=len(self.server.sessions), challenges=len(self.server.challenges))

    # One message

    async def handle(
        self, frame: Frame, source: str, now: float, transport: Transport
    ) -> AsyncGenerator[NativeResponse, None]:
        """Yield the responses to a message from a source: the address without the port, which clients may change.

        Only a list has more than one.
        """
        call = Call(frame.envelope, source, now, transport)
        response = await self.respond(call, frame)
        while response.more:
            yield response
            response = await self.continue_list(call)
        yield response

    async def respond(self, call: Call, frame: Frame) -> NativeResponse:
        """Return the response to the message of a call; if it has `more`, `continue_list` returns the next."""
        try:
            return await self._receive(call, frame)
        except Exception as error:  # noqa: BLE001 - no error may end the server
            return await self._respond_error(call, error)

    async def continue_list(self, call: Call) -> NativeResponse:
        """Return the next response of a list."""
        return await self._guard(call, self._continue_list(call))

    async def _guard(self, call: Call, response: Awaitable[NativeResponse]) -> NativeResponse:
        """Await a response; there is always one."""
        try:
            return await response
        except Exception as error:  # noqa: BLE001 - no error may end the server
            return await self._respond_error(call, error)

    async def _receive(self, call: Call, frame: Frame) -> NativeResponse:
        transport, now = call.transport, call.now
        frame_id = frame_key(call.source, frame) if transport == Transport.UDP else None
        if frame_id is not None:
            for table in (self.changes, self.setups):
                if (previous := table.find(frame_id, now)) is not None:
                    return _repeated_response(previous)
        received = self.server.receive(
            frame, now, http=transport in _HTTP_TRANSPORTS, private_transport=transport == Transport.HTTPS
        )
        if isinstance(received, Reply):
            return await self._send(call, received)
        if isinstance(received, ChallengeProof):
            call.request = received.request
            keys = _keys(frame_id)
            if received.request.session is not None:
                # Another attempt of the request may still arrive, and would find the session authenticated.
                keys += (content_key(call.source, received.request.message),)
            authenticate = partial(self._authenticate, call, received)
            return await self._run_once(call, self.changes, keys, authenticate, _keys(frame_id))
        call.request = received
        return await self._handle_request(call, received, frame_id)

    async def _handle_request(self, call: Call, request: Request, frame_id: Key | None) -> NativeResponse:
        """Handle a request, unless the interface does not accept it or it is a retry."""
        opcode = request.opcode
        if not self._accepts(call.transport, opcode):
            text = f"This interface does not accept operation {opcode.value}"
            code = ResponseCode.PROTOCOL_ERROR
            early = self.server.early_failure(code, text, call.now, opcode=opcode, answered=call.envelope)
            return await self._send(call, early)
        if frame_id is None:
            return await self._respond_to(call, request)
        respond = partial(self._respond_to, call, request)
        if isinstance(request.body, SessionSetup):
            return await self._run_once(call, self.setups, (frame_id,), respond)
        if opcode not in CHANGING_OPCODES:
            return await self._respond_to(call, request)
        keys = _keys(frame_id)
        if request.session is not None:
            content = content_key(call.source, request.message)
            if (previous := self.changes.find(content, call.now)) is not None:
                return await self._repeat(call, request, previous)
            keys += (content,)
            call.content = content
        return await self._run_once(call, self.changes, keys, respond)

    async def _repeat(self, call: Call, request: Request, previous: Reply | OutcomeUnknown) -> NativeResponse:
        """Repeat the response to another attempt in a session. Its counter is used up, or it could be replayed later.

        A counter that is used up already, because the network duplicated this attempt, is no reason to refuse: nothing
        is executed, and a refusal might be all that arrives.
        """
        assert request.session is not None  # noqa: S101 - attempts are counted in sessions only
        try:
            request.session.check(request.message, allow_replay=True)
        except RemoteProtocolError as error:
            return await self._respond(call, error.code, Failure.of(error.message))
        if isinstance(previous, OutcomeUnknown):
            return await self._respond_error(call, previous)
        return _repeated_response(previous)

    async def _run_once(
        self,
        call: Call,
        table: ReplyCache,
        keys: tuple[Key, ...],
        respond: Callable[[], Awaitable[NativeResponse]],
        unless: tuple[Key, ...] | None = None,
    ) -> NativeResponse:
        """Respond, and remember the response if something was done; repeat one under the keys `unless`, else `keys`."""
        if not keys:
            return await self._guard(call, respond())
        try:
            previous = table.begin(keys, call.now, keys if unless is None else unless)
        except OutcomeUnknown as unknown:
            if call.request is not None and call.request.opcode not in CHANGING_OPCODES:
                raise TooBusy("the process that read the record was killed; retry") from unknown
            if call.content is None or call.request is None:
                raise
            return await self._repeat(call, call.request, unknown)
        if previous is not None:  # another process was faster
            if call.content is not None and call.request is not None:
                return await self._repeat(call, call.request, previous)
            return _repeated_response(previous)
        try:
            return await self._guard(call, respond())
        finally:
            table.end(keys, call.last if call.is_final else None, call.now)

    def _accepts(self, transport: Transport, opcode: OpCode) -> bool:
        """Whether the interface is for such requests; one that the site record does not list is for all (2.5)."""
        purposes = self._purposes.get(transport)
        if purposes is None:
            return True
        if opcode in _ADMIN_OPCODES:
            return Purpose.ADMIN in purposes
        return opcode != OpCode.RESOLUTION or Purpose.QUERY in purposes

    # Requests

    async def _respond_to(self, call: Call, request: Request) -> NativeResponse:
        if isinstance(request.body, SessionSetup):
            return await self._start_session(call, request)
        if isinstance(request.body, VerifyChallenge):
            return await self._verify(call, request, request.body)
        if request.opcode in _LIST_OPCODES and call.transport == Transport.UDP:
            raise Refused(ResponseCode.PROTOCOL_ERROR, "lists are not available over UDP; use TCP")
        registry_request = translate(request, self._native)
        session = request.session
        if session is None or session.proved is None or not registry_request.needs_identity:
            try:
                result = await self._execute(call, registry_request, None)
            except Refused as refused:
                previous = None if call.content is None else self.changes.find_concurrent(call.content, call.now)
                if previous is not None:
                    # Another attempt was executed in the meantime, or is running: its challenge was answered.
                    return _repeated_response(previous)
                if refused.code != ResponseCode.AUTHENTICATION_NEEDED:
                    raise
            else:
                return await self._send_result(call, result)
        self._check_session_required(request)
        identity = self.server.identify(request, call.now, udp=call.transport == Transport.UDP)
        if isinstance(identity, Reply):
            return await self._send(call, identity)
        return await self._execute_authenticated(call, registry_request, identity)

    async def _start_session(self, call: Call, request: Request) -> NativeResponse:
        try:
            agreement = await self._work(call, WorkKind.AGREE, partial(self.server.agree, request))
        except InvalidData as problem:
            reply = self.server.refuse_session(request, problem, call.now)
        else:
            reply = self.server.begin_session(request, agreement, call.now)
            call.is_final = True
        return await self._send(call, reply)

    async def _verify(self, call: Call, request: Request, body: VerifyChallenge) -> NativeResponse:
        """Tell another server whether a response matches a secret stored here (13.5).

        The sender may be guessing: so the process gets the handle of the secret before the work, and the result after
        it.
        """
        refer, secret_of = OpFlag.DO_NOT_REFER not in request.flags, verified_secret_id(body.handle)
        # Not yet an attempt: handles of other servers are refused, and must not fill the table of guesses.
        secrets = await self._read(call, lambda: find_secrets(self._native, body, refer=refer))
        check = partial(
            check_secret_answer,
            nonce=body.nonce,
            digest=body.digest,
            answer=body.answer,
            version=request.message.version,
        )
        key = await self._work(
            call, WorkKind.VERIFY, partial(find_proving_secret, secrets, check, body.index), secret_of
        )
        call.guess = SecretGuess(secret_of, key is not None)
        return await self._respond(call, ResponseCode.SUCCESS, VerificationResult(int(key is not None)))

    # Authentication

    async def _authenticate(self, call: Call, proof: ChallengeProof) -> NativeResponse:
        """Handle a challenge response. It is verified first, whatever the claim, so that its time reveals nothing."""
        request = proof.request
        kind = PROOF_KINDS.get(proof.auth_type)
        if kind is None:
            reason = f"{quote_text(proof.auth_type)} is not a supported authentication type"
            raise Refused(ResponseCode.INVALID_CREDENTIAL, reason)
        self._check_session_required(request)
        identity: KeyIdentity = key_identity(proof.identity, kind, session=request.session is not None)
        registry_request = translate(request, self._native)
        claim = self.registry, registry_request, identity
        secret_of = _secret_id(identity)
        proved = await self._prove(call, proof, registry_request, identity)
        call.guess = None if secret_of is None else SecretGuess(secret_of, right=proved is not None)
        call.failed_proof = proved is None
        if proved is None:
            refused = await self._read(call, partial(find_claim_refusal, *claim))
            raise refused or authentication_failed(identity)
        accepted = self.server.accept(proof, proved, call.now)
        if isinstance(accepted, Reply):
            return await self._send(call, accepted)
        call.request = accepted
        try:
            return await self._execute_authenticated(call, registry_request, proved)
        except KeyChanged:  # the decision is on current keys, and the proof was not by one of them
            _set_wrong(call, secret_of)
            raise

    async def _prove(
        self, call: Call, proof: ChallengeProof, registry_request: RegistryRequest, identity: KeyIdentity
    ) -> ProvenIdentity | None:
        """Verify a challenge response with a key that is stored here, or with the server that has it."""
        claim = self.registry, registry_request, identity
        # The decision checks the key again, so one from the cache is enough; a wrong proof costs one read in any case.
        keys = find_recent_keys(self.registry, identity)
        secret_of = _secret_id(identity)
        key = await self._find_proving_key(call, proof, keys, identity, secret_of) if keys else None
        if key is None:
            if keys:  # now, because the read may be refused
                _set_wrong(call, secret_of)
            try:
                current = await self._read(call, partial(find_claimed_keys, *claim))
            except HostedElsewhere:  # and it would have the permission
                if self.external is None:
                    raise
                return await self._prove_externally(call, proof, identity, self.external)
            if not current and self.external is not None and await self._is_unknown_prefix(call, identity):
                if (refused := await self._read(call, partial(find_claim_refusal, *claim))) is not None:
                    raise refused
                return await self._prove_externally(call, proof, identity, self.external)
            if not keys or current != keys:
                attempt = None if keys else secret_of  # one message is one attempt
                key = await self._find_proving_key(call, proof, current, identity, attempt)
        return None if key is None else prove_identity(proof.identity, identity.proof, key)

    async def _find_proving_key(
        self,
        call: Call,
        proof: ChallengeProof,
        keys: tuple[Value, ...],
        identity: KeyIdentity,
        secret_of: bytes | None = None,
    ) -> Value | None:
        """Return the key that proves an identity; `secret_of` makes it an attempt at a secret."""
        if identity.proof is Proof.SECRET_KEY:
            verify = partial(find_proving_secret, keys, proof.check_secret, proof.identity.index)
            return await self._work(call, WorkKind.VERIFY, verify, secret_of)
        parsed = parse_public_keys(keys)
        verify = partial(choose_proving_key, parsed, proof.check_key)
        return await self._work(call, WorkKind.VERIFY, verify, secret_of, is_short=are_rsa_keys(parsed))

    async def _is_unknown_prefix(self, call: Call, identity: KeyIdentity) -> bool:
        """Whether an identity is a prefix handle that is not stored here: the root may have it."""

        def read() -> bool:
            with self.registry.snapshot() as snapshot:
                return is_unknown_prefix_handle(snapshot, identity.reference.handle)

        return await self._read(call, read)

    async def _prove_externally(
        self, call: Call, proof: ChallengeProof, identity: KeyIdentity, external: "ExternalIdentities"
    ) -> ProvenIdentity | None:
        """Verify with a public key from another server; a secret is verified by the server that stores it."""
        claimed, until = proof.identity, int(call.now) + EXTERNAL_LIFE
        if identity.proof is Proof.SECRET_KEY:
            secret_of = own_secret_id(identity.reference.handle)
            await self._work(call, WorkKind.VERIFY, lambda: None, secret_of)  # raises after many wrong guesses
            call.guess = SecretGuess(secret_of, right=None)  # unless there is an answer
            nonce, digest = proof.pending.nonce, proof.pending.digest.digest
            challenge = VerifyChallenge(claimed.handle, claimed.index, nonce, digest, proof.answer)
            if not await external.verify_secret(challenge):
                return None
            return ProvenIdentity(claimed.handle, claimed.index, claimed.index, identity.proof, external_until=until)
        key = await self._find_proving_key(call, proof, await external.find_keys(identity.reference), identity)
        return None if key is None else replace(prove_identity(claimed, identity.proof, key), external_until=until)

    def _check_session_required(self, request: Request) -> None:
        if self._settings.sessions_required and request.session is None:
            reason = "this server accepts authentication within a session only; start a session first"
            raise Refused(ResponseCode.INVALID_CREDENTIAL, reason)

    async def _execute_authenticated(
        self, call: Call, registry_request: RegistryRequest, identity: object
    ) -> NativeResponse:
        """Execute a request for an authenticated identity."""
        if not isinstance(identity, ProvenIdentity):
            raise TypeError("the identity of the session was not proved by this server")
        call.proved = identity
        try:
            try:
                result = await self._execute(call, registry_request, identity)
            except Refused:
                if call.earlier is None:
                    raise
                await call.earlier()  # it may depend on what they change
                result = await self._execute(call, registry_request, identity)
        except KeyChanged:
            call.identity = ""
            # The session is no longer valid; this response is the last one in it.
            if call.request is not None and call.request.session is not None:
                self.server.sessions.end(call.request.session)
            raise
        return await self._send_result(call, result)

    async def _execute(
        self, call: Call, registry_request: RegistryRequest, proved: ProvenIdentity | None
    ) -> RequestResult:
        """Execute a request, authenticated or anonymous."""
        request = call.request
        session = request is not None and request.session is not None
        identity = caller_identity(proved, session=session)
        call.identity = "" if isinstance(identity, Anonymous) else str(identity)
        guard = None if proved is None else Guard(proved, session)
        kind = WorkKind.WRITE if registry_request.changes else WorkKind.READ
        # Authentication has used up a challenge or a counter: the same message would not work twice.
        call.is_final = call.is_final or proved is not None
        if proved is None and registry_request.changes:
            # Nearly all anonymous changes need authentication. A dry run finds that out at the price of a read, so that
            # the write budget is left for callers who are allowed to write.
            await self._read(call, partial(dry_run, self.registry, registry_request, identity))
        arguments = self.registry, registry_request, identity, guard
        in_loop = self._is_short(call) and registry_request.on_success is None
        is_short = in_loop and not (registry_request.changes or registry_request.is_long)
        change = partial(execute_change, *arguments) if in_loop and registry_request.changes else None
        work = Work(kind, partial(execute_request, *arguments), is_short=is_short, coroutine=change)
        result = cast("RequestResult", await self._run(work, call.source, call.transport))
        call.is_final = call.is_final or registry_request.changes
        return result

    async def _read(self, call: Call, function: Callable[[], T]) -> T:
        """Read a few records, in the event loop if that is short; raises `Busy`."""
        return await self._work(call, WorkKind.READ, function, is_short=self._is_short(call))

    def _is_short(self, call: Call) -> bool:
        """Whether the event loop may handle a request: the database is on this machine, and the message is short."""
        length = 0 if call.request is None else len(call.request.message.raw)
        return self._reads_are_short and length <= MAX_INLINE_BYTES

    async def _work(
        self,
        call: Call,
        kind: WorkKind,
        function: Callable[[], T],
        secret_of: bytes | None = None,
        *,
        is_short: bool = False,
    ) -> T:
        """Have work done by the process; raises `Busy`."""
        work = Work(kind, function, secret_of, is_short=is_short)
        return cast("T", await self._run(work, call.source, call.transport))

    # Responses

    async def _send_result(self, call: Call, result: RequestResult) -> NativeResponse:
        """Respond with the result of a request; with the first names if it is a list."""
        if result.names is None:
            return await self._respond(call, ResponseCode.SUCCESS, result.body, overwritten=result.overwritten)
        call.names, call.next_page = result.names, result.next_page
        return await self._continue_list(call)

    async def _continue_list(self, call: Call) -> NativeResponse:
        """Respond with the next names of a list."""
        while call.next_page is not None and len(call.names) <= HANDLES_PER_MESSAGE:
            result = await self._execute(call, call.next_page, call.proved)
            call.names, call.next_page = call.names + (result.names or ()), result.next_page
        names, call.names = call.names[:HANDLES_PER_MESSAGE], call.names[HANDLES_PER_MESSAGE:]
        return await self._respond(call, ResponseCode.SUCCESS, HandleList(names), more=bool(call.names))

    async def _respond(
        self, call: Call, code: ResponseCode, body: ResponseBody, *, more: bool = False, overwritten: bool = False
    ) -> NativeResponse:
        request = call.request
        assert request is not None  # noqa: S101 - set before any response
        reply = self.server.respond(request, code, body, call.now, more=more, overwritten=overwritten)
        return await self._send(call, reply, code, more=more)

    async def _send(
        self, call: Call, reply: Reply, code: ResponseCode | None = None, *, more: bool = False
    ) -> NativeResponse:
        """Return the response with a reply, signed if required."""
        request = call.request
        if not reply.is_signed:
            reply = await self._sign(call, reply)
        if request is not None:
            self.server.record_reply(request, reply, more=more)
        opcode = OpCode.RESERVED if request is None else request.opcode
        if reply.frames and code is None:
            sent_opcode, code = read_codes(reply.frames[0])
            opcode = opcode or sent_opcode
        call.last = reply
        name = b"" if request is None else getattr(request.body, "handle", b"")
        keeps = request is not None and OpFlag.KEEP_CONNECTION in request.flags
        return NativeResponse(reply, opcode, code, call.identity, name, more, keeps, call.guess, call.failed_proof)

    async def _sign(self, call: Call, reply: Reply) -> Reply:
        """Sign a reply; unsigned if that fails, as deployed servers do (5.5)."""
        try:
            return await self._work(call, WorkKind.SIGN, partial(self.server.sign, reply))
        except Busy:  # counted by the metrics
            return reply
        except Exception as error:  # noqa: BLE001 - the request was executed, and this is its response
            _logger.warning("sending a response unsigned: %s", type(error).__qualname__)
            return reply

    async def _respond_error(self, call: Call, error: Exception) -> NativeResponse:
        """Respond to an error. If even that fails, respond with something that does not depend on the request."""
        request = call.request
        try:
            if request is not None:
                code, body = error_response(error, request, self._reference)
                return await self._respond(call, code, body)
        except Exception as second_error:  # noqa: BLE001 - no error may end the server
            error = second_error
        if isinstance(error, Busy):
            code, text = ResponseCode.SERVER_TOO_BUSY, error.text
        else:
            code, text = ResponseCode.ERROR, internal_error(error, self._reference())
        early = self.server.early_failure(code, text, call.now, answered=call.envelope)
        return await self._send(call, early)

    def _reference(self) -> str:
        return self._random(REFERENCE_BYTES).hex()


def _secret_id(identity: KeyIdentity) -> bytes | None:
    """The secret that a proof is an attempt at."""
    return own_secret_id(identity.reference.handle) if identity.proof is Proof.SECRET_KEY else None


def _set_wrong(call: Call, secret_of: bytes | None) -> None:
    """Note that a challenge response was wrong."""
    call.guess = None if secret_of is None else SecretGuess(secret_of, right=False)
    call.failed_proof = True


def _keys(frame_id: Key | None) -> tuple[Key, ...]:
    return () if frame_id is None else (frame_id,)


def _repeated_response(reply: Reply) -> NativeResponse:
    opcode, code = read_codes(reply.frames[0]) if reply.frames else (OpCode.RESERVED, None)
    return NativeResponse(reply, opcode, code)

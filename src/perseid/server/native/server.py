"""The native door: octets in, calls of the registry, octets out, for every operation of the protocol (6.1).

It has no sockets, no threads and no clock. `steps` is the door itself, for one message: a generator of answers to send
and of work to be done elsewhere (see `native_steps`); `receive` is the same for a caller who just wants the answers.

    message ──► protocol ──┬──► what the protocol answers by itself: early failures, sessions that end …
                           ├──► a request: carried out for nobody in particular; if the registry wants to know who
                           │    asks, for whom the session has proved, or else challenged
                           └──► an answer to a challenge: may they, if they are who they say? are they? then it is done

Better than deployed servers on purpose: an answered challenge cannot be used again; a change that comes twice over UDP
is made once; a session, and an answer to a challenge, counts only while the key that proved it is what it was.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from perseid.names.errors import quoted
from perseid.records.errors import InvalidData
from perseid.records.site import Purpose, Site, Transport
from perseid.records.value import Value
from perseid.registry.identity import Anonymous, KeyHolder
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.native.retries import MAX_SETUPS, Key, Repeats, key_of_content, key_of_frame
from perseid.wire.challenges import check_secret_answer
from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.errors import RemoteProtocolError
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope
from perseid.wire.requests import SessionSetup, VerifyChallenge
from perseid.wire.responses import NAMES_PER_LIST, Failure, Names, ResponseBody, Verified
from perseid.wire.server import Proof, Reply, Request

from .authentication import KINDS, Guard, KeyGone, Proved, asker, claimed, holder, not_proved, proved_by, proving
from .decisions import Asked, Busy, Done, answer_to, internal_error, perform, try_out, weigh
from .operations import CHANGING, Place, secrets_for, status_values, translate
from .steps import Doing, Guess, Kind, NativeServer, Served, Steps, Unsigned, Work, code_of, drive, work

REFERENCE_OCTETS: Final = 6
"""Of the number under which an unexpected error is logged: enough to be found, short enough to be read out."""

_LISTS: Final = frozenset((OpCode.LIST_HANDLES, OpCode.LIST_HOMED_NAS))
_NEEDS_ADMIN: Final = CHANGING | _LISTS | {OpCode.GET_NEXT_TXN_ID, OpCode.RETRIEVE_TXN_LOG, OpCode.DUMP_HANDLES}
_OVER_HTTP: Final = frozenset((Transport.HTTP, Transport.HTTPS))

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """How a door behaves."""

    position: int = 0
    """Which of the site's servers this is, counted from 0."""
    sessions_required: bool = False
    """Whether who identifies themselves must do so in a session."""
    ports: Mapping[Transport, int] = field(default_factory=dict)
    """Where the door listens, to be compared with what the site record promises for each interface (2.5)."""


@dataclass(slots=True)
class _Call:
    """One message that is being answered."""

    envelope: Envelope
    """How it came."""
    source: Hashable
    now: float
    transport: Transport
    request: Request | None = None
    """What is answered, once it is understood."""
    who: str = ""
    proved: Proved | None = None
    guess: Guess | None = None
    """What the answer says about a secret."""
    settled: bool = False
    """Whether the answer is the last word: something was done, or may have been, or a counter was used up."""
    last: Reply | None = None
    """What was sent last."""
    content: Key | None = None
    """By what another attempt in the same session is recognised, if it is a change over UDP."""


class NativeDoor:
    """A server of the native protocol without its sockets. One thread at a time makes its steps; see `native_steps`."""

    def __init__(
        self,
        registry: Registry,
        server: NativeServer,
        site: Site,
        *,
        settings: DoorSettings | None = None,
        status: Callable[[], tuple[Value, ...]] | None = None,
        checkpoint: Callable[[], bool] | None = None,
        do: Callable[[Work], object] = lambda step: step.call(),
    ) -> None:
        self.registry = registry
        self.server = server
        self._settings = settings or DoorSettings()
        self._place = Place(registry, site, self._settings.position, status or self.status, checkpoint)
        self._purposes = _purposes(site, self._settings)
        self.resolves_over = {each: self._serves(each, OpCode.RESOLUTION) for each in Transport}
        """Whether resolution may be answered without asking the door; some sites keep it out of a transport (2.5)."""
        self._do = do
        self._random = registry.ledger.log.random
        self._lock = Lock()
        self.changes = Repeats()
        self.setups = Repeats(MAX_SETUPS)

    def receive(self, frame: Frame, source: Hashable, now: float, *, transport: Transport) -> Iterator[Served]:
        """The answers to a message, as they are asked for. For any number of threads; work is done as `do` says."""
        return drive(self.steps(frame, source, now, transport=transport), self._do, self._lock)

    def tidy(self, now: float) -> None:
        """Forget what has timed out; about once a minute."""
        with self._lock:
            self.server.sessions.purge(now)
            self.server.challenges.purge(now)
            self.changes.purge(now)
            self.setups.purge(now)

    def status(self) -> tuple[Value, ...]:
        """What this server says about itself to its administrators, as `0.SITE/status`."""
        return status_values(self.registry, sessions=len(self.server.sessions), challenges=len(self.server.challenges))

    def take_over(self, old: "NativeDoor") -> None:
        """Go on where another door ends, whose settings have changed: with its sessions, challenges and answers."""
        self.server.take_over(old.server)
        self.changes, self.setups = old.changes, old.setups

    # One message

    def steps(self, frame: Frame, source: Hashable, now: float, *, transport: Transport) -> Steps:
        """Answer a message that came from a source: the address, without the port, which clients may change."""
        call = _Call(frame.envelope, source, now, transport)
        whole = key_of_frame(source, frame) if transport == Transport.UDP else None
        if whole is not None:
            for table in (self.changes, self.setups):
                if (known := table.find(whole, now)) is not None:
                    yield _served_again(known)
                    return
        try:
            received = self.server.receive(
                frame, now, http=transport in _OVER_HTTP, private_transport=transport == Transport.HTTPS
            )
            if isinstance(received, Reply):
                yield from self._send(call, received)
            elif isinstance(received, Proof):
                call.request = received.request
                keys = _keys(whole)
                if received.request.session is not None:
                    # Another attempt of the request itself may still be on its way, and would find the session proved.
                    keys += (key_of_content(source, received.request.message),)
                yield from self._once(call, self.changes, keys, self._prove(call, received))
            else:
                call.request = received
                yield from self._take(call, received, whole)
        except Exception as error:  # noqa: BLE001 - whatever happens, there is an answer
            yield from self._fail(call, error)

    def _take(self, call: _Call, request: Request, whole: Key | None) -> Steps:
        """Answer a request, unless the interface is not for it, or it is another attempt of one that was answered."""
        opcode = request.opcode
        if not self._serves(call.transport, opcode):
            text = f"This interface is not for operation {opcode.value}"
            code = ResponseCode.PROTOCOL_ERROR
            early = self.server.early_failure(code, text, call.now, opcode=opcode, answered=call.envelope)
            yield from self._send(call, early)
            return
        if whole is None:
            yield from self._answer(call, request)
        elif isinstance(request.body, SessionSetup):
            yield from self._once(call, self.setups, (whole,), self._answer(call, request))
        elif opcode not in CHANGING:
            yield from self._answer(call, request)
        else:
            keys = _keys(whole)
            if request.session is not None:
                content = key_of_content(call.source, request.message)
                if (known := self.changes.find(content, call.now)) is not None:
                    yield from self._repeat(call, request, known)
                    return
                keys += (content,)
                call.content = content
            yield from self._once(call, self.changes, keys, self._answer(call, request))

    def _repeat(self, call: _Call, request: Request, known: Reply) -> Steps:
        """Answer another attempt in a session. Its counter is used up like any other, or it could be replayed later.

        That it may be used up already, because the network has made a copy of this attempt, is no reason to refuse it:
        nothing is done but to say again what was said, and a refusal might be all that comes through.
        """
        assert request.session is not None  # noqa: S101 - only sessions count attempts
        try:
            request.session.check(request.message, replay_allowed=True)
        except RemoteProtocolError as error:
            yield from self._respond(call, error.code, Failure.of(error.message))
        else:
            yield _served_again(known)

    def _once(self, call: _Call, table: Repeats, keys: tuple[Key, ...], steps: Steps) -> Steps:
        """Make the steps, and remember what came of them if something was done."""
        table.begin(keys)
        try:
            try:
                yield from steps
            except Exception as error:  # noqa: BLE001 - the answer to it is remembered too
                yield from self._fail(call, error)
        finally:
            table.end(keys, call.last if call.settled else None, call.now)

    def _serves(self, transport: Transport, opcode: OpCode) -> bool:
        """Whether the interface is for such a request; one that the site record does not name is for all (2.5)."""
        purposes = self._purposes.get(transport)
        if purposes is None:
            return True
        if opcode in _NEEDS_ADMIN:
            return Purpose.ADMIN in purposes
        return opcode != OpCode.RESOLUTION or Purpose.QUERY in purposes

    # Requests

    def _answer(self, call: _Call, request: Request) -> Steps:
        if isinstance(request.body, SessionSetup):
            yield from self._begin_session(call, request)
            return
        if isinstance(request.body, VerifyChallenge):
            yield from self._verify(call, request, request.body)
            return
        if request.opcode in _LISTS and call.transport == Transport.UDP:
            raise Refused(ResponseCode.PROTOCOL_ERROR, "lists are not given over UDP", "ask over TCP")
        asked = translate(request, self._place)
        session = request.session
        if session is None or session.proved is None or not asked.personal:
            try:
                done = yield from self._perform(call, asked, None)
            except Refused as refused:
                known = None if call.content is None else self.changes.found_by_others(call.content, call.now)
                if known is not None:
                    # Meanwhile another attempt was carried out, or is being: its challenge was answered.
                    yield _served_again(known)
                    return
                if refused.code != ResponseCode.AUTHENTICATION_NEEDED:
                    raise
            else:
                yield from self._tell(call, done)
                return
        self._check_session_wish(request)
        found = self.server.identify(request, call.now, udp=call.transport == Transport.UDP)
        if isinstance(found, Reply):
            yield from self._send(call, found)
        else:
            yield from self._carry_out(call, asked, found)

    def _begin_session(self, call: _Call, request: Request) -> Steps:
        try:
            agreed = yield from work(Kind.AGREE, self.server.agreement(request))
        except InvalidData as problem:
            reply = self.server.refuse_session(request, problem, call.now)
        else:
            reply = self.server.begin_session(request, agreed, call.now)
            call.settled = True
        yield from self._send(call, reply)

    def _verify(self, call: _Call, request: Request, body: VerifyChallenge) -> Steps:
        """Say to another server whether somebody who has a secret here gave an answer (13.5).

        Or to a stranger whether a guess is right: so whoever has the work done is told whose secret it is about, before
        any of it and when it is known what came of it.
        """
        refer, whose = OpFlag.DO_NOT_REFER not in request.flags, body.handle
        secrets = yield from work(Kind.READ, lambda: secrets_for(self._place, body, refer=refer), secret_of=whose)
        version = request.message.version

        def verify() -> bool:
            return any(check_secret_answer(secret, body.nonce, body.digest, body.answer, version) for secret in secrets)

        valid = bool(secrets) and (yield from work(Kind.VERIFY, verify, secret_of=whose))
        call.guess = Guess(whose, valid)
        yield from self._respond(call, ResponseCode.SUCCESS, Verified(int(valid)))

    # Who asks

    def _prove(self, call: _Call, proof: Proof) -> Steps:
        """Take an answer to a challenge: first what they may, then who they are (14)."""
        request = proof.request
        kind = KINDS.get(proof.auth_type)
        if kind is None:
            reason = f"{quoted(proof.auth_type)} is no way to prove an identity"
            raise Refused(ResponseCode.INVALID_CREDENTIAL, reason)
        self._check_session_wish(request)
        who: KeyHolder = holder(proof.identity, kind, session=request.session is not None)
        asked = translate(request, self._place)
        weighed = yield from work(Kind.READ, lambda: weigh(self.registry, asked, who))
        key = None
        if weighed.keys:
            key = yield from work(Kind.VERIFY, lambda: proving(proof, kind, weighed.keys))
        if key is None:
            raise weighed.refused or not_proved(who)
        proved = proved_by(proof.identity, kind, key)
        accepted = self.server.accept(claimed(proof, proved), key.index, call.now)
        if isinstance(accepted, Reply):
            yield from self._send(call, accepted)
            return
        call.request = accepted
        yield from self._carry_out(call, asked, proved)

    def _check_session_wish(self, request: Request) -> None:
        if self._settings.sessions_required and request.session is None:
            reason = "this server wants to know who asks, and accepts that within a session only"
            raise Refused(ResponseCode.INVALID_CREDENTIAL, reason, "begin a session first")

    def _carry_out(self, call: _Call, asked: Asked, identity: object) -> Steps:
        """Carry a request out for somebody who has proved who they are."""
        if not isinstance(identity, Proved):
            raise TypeError("a session was proved by somebody else than this door")
        call.proved = identity
        try:
            done = yield from self._perform(call, asked, identity)
        except KeyGone:
            # The session is no longer anybody's. What is answered now is the last that is said in it.
            if call.request is not None and call.request.session is not None:
                self.server.sessions.end(call.request.session)
            raise
        yield from self._tell(call, done)

    def _perform(self, call: _Call, asked: Asked, proved: Proved | None) -> Doing[Done]:
        """Have it done, for somebody or for nobody in particular."""
        request = call.request
        session = request is not None and request.session is not None
        who = asker(proved, session=session)
        call.who = "" if isinstance(who, Anonymous) else str(who)
        guard = None if proved is None else Guard(proved, session)
        kind = Kind.WRITE if asked.changes else Kind.READ
        # Whoever has proved who they are has used up a challenge or a counter: the same message would not do twice.
        call.settled = call.settled or proved is not None
        if proved is None and asked.changes:
            # Anybody may ask for a change, and nearly all who are unknown are asked who they are. So that is found out
            # at the price of reading: what writers may take is for those who may write.
            yield from work(Kind.READ, lambda: try_out(self.registry, asked, who))
        done = yield from work(kind, lambda: perform(self.registry, asked, who, guard))
        call.settled = call.settled or asked.changes
        return done

    # Answers

    def _tell(self, call: _Call, done: Done) -> Steps:
        """Say what a request came to: in one message, or a list in several."""
        if done.names is None:
            yield from self._respond(call, ResponseCode.SUCCESS, done.body, overwritten=done.overwritten)
            return
        names, following = done.names, done.following
        while following is not None or len(names) > NAMES_PER_LIST:
            if len(names) > NAMES_PER_LIST:
                part, names = names[:NAMES_PER_LIST], names[NAMES_PER_LIST:]
                yield from self._respond(call, ResponseCode.SUCCESS, Names(part), more=True)
                continue
            assert following is not None  # noqa: S101 - or there would be no more names
            done = yield from self._perform(call, following, call.proved)
            names, following = names + (done.names or ()), done.following
        yield from self._respond(call, ResponseCode.SUCCESS, Names(names))

    def _respond(
        self, call: _Call, code: ResponseCode, body: ResponseBody, *, more: bool = False, overwritten: bool = False
    ) -> Steps:
        request = call.request
        assert request is not None  # noqa: S101 - who answers knows what
        reply = self.server.respond(request, code, body, call.now, more=more, overwritten=overwritten)
        yield from self._send(call, reply, code, more=more)

    def _send(self, call: _Call, reply: Reply, code: ResponseCode | None = None, *, more: bool = False) -> Steps:
        """Send what the protocol says, signed if it has to be."""
        request = call.request
        if any(isinstance(frame, Unsigned) for frame in reply.frames):
            frames = []
            for frame in reply.frames:
                signed = yield from self._signed(frame)
                frames.append(signed)
            reply = Reply(tuple(frames))
            if request is not None:
                self.server.remember(request, reply, more=more)
        opcode = OpCode.RESERVED if request is None else request.opcode
        if reply.frames and code is None:
            shown, code = code_of(reply.frames[0])
            opcode = opcode or shown
        call.last = reply
        name = b"" if request is None else getattr(request.body, "handle", b"")
        keeps = request is not None and OpFlag.KEEP_CONNECTION in request.flags
        yield Served(reply, opcode, code, call.who, name, more, keeps, call.guess)

    def _signed(self, frame: Frame) -> Doing[Frame]:
        """A frame with its signature; without it if that cannot be made, as deployed servers do (5.5)."""
        if not isinstance(frame, Unsigned):
            return frame
        try:
            message = yield from work(Kind.SIGN, self.server.signing(frame.message))
            return self.server.signed(frame, message)
        except Busy:  # the metrics say how often
            return Frame(frame.envelope, frame.payload)
        except Exception as error:  # noqa: BLE001 - what was done is done, and this is its answer
            _logger.warning("an answer goes out unsigned: %s", type(error).__qualname__)
            return Frame(frame.envelope, frame.payload)

    def _fail(self, call: _Call, error: Exception) -> Steps:
        """Answer an error. Where even that fails, there is a last word, which knows nothing of the request."""
        request = call.request
        try:
            if request is not None:
                code, body = answer_to(error, request, self._reference)
                yield from self._respond(call, code, body)
                return
        except Exception as worse:  # noqa: BLE001 - nothing may bring the door down
            error = worse
        text = internal_error(error, self._reference())
        early = self.server.early_failure(ResponseCode.ERROR, text, call.now, answered=call.envelope)
        yield from self._send(call, early)

    def _reference(self) -> str:
        return self._random(REFERENCE_OCTETS).hex()


def _keys(whole: Key | None) -> tuple[Key, ...]:
    return () if whole is None else (whole,)


def _served_again(reply: Reply) -> Served:
    opcode, code = code_of(reply.frames[0]) if reply.frames else (OpCode.RESERVED, None)
    return Served(reply, opcode, code)


def _purposes(site: Site, settings: DoorSettings) -> dict[Transport, Purpose]:
    """What the interfaces serve, as far as the site record names them."""
    found: dict[Transport, Purpose] = {}
    interfaces = site.servers[settings.position].interfaces if settings.position < len(site.servers) else ()
    for interface in interfaces:
        if settings.ports.get(interface.transport) == interface.port:
            found[interface.transport] = found.get(interface.transport, Purpose(0)) | interface.purpose
    if Transport.HTTP in found and settings.ports.get(Transport.HTTPS) == settings.ports.get(Transport.HTTP):
        found.setdefault(Transport.HTTPS, found[Transport.HTTP])  # one port for both: what the one allows, so the other
    return found

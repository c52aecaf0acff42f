"""Errors of the native server: the client gets a plain text, the operator a log line, and no secret is revealed.

The server continues to run.
"""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from perseid.ledger.errors import (
    ClockError,
    Contention,
    CorruptData,
    LedgerError,
    OutcomeUnknown,
    ReadOnlyStore,
    StorageFull,
    StoreUnavailable,
    TooBusy,
)
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.registry.commands.minting import RetryLater
from perseid.registry.commands.records import Create, Modify
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.native import decisions
from perseid.server.native.decisions import MAX_TEXT, Busy, known_failure, make_failure
from perseid.server.native.server import MAX_INLINE_BYTES, NativeServer
from perseid.server.native.work import NativeResponse, RunWork, Work, WorkKind
from perseid.server.observe.limited_log import BURST_LINES, RateLimitedLogger
from perseid.server.state.state import StateFull
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.message import Message
from perseid.wire.requests import ExchangeMode, HandleRequest, Resolve, SessionSetup, ValuesRequest
from perseid.wire.responses import HANDLES_PER_MESSAGE, HandleList, decode_response
from perseid.wire.server import Reply
from perseid.wire.sessions import Session
from tests.registry.registries import OPERATOR
from tests.server.native.native_servers import (
    ADMIN,
    BY_ADMINS,
    NEW,
    PREFIX,
    SEC,
    SITE,
    STD,
    URL,
    Clock,
    Visitor,
    make_server,
    recorded_registry,
    run_with,
    text_of,
)
from tests.wire.key_material import RSA_KEY, SECRET

PLANTED = "a planted secret"


def failing(kind: WorkKind, error: Exception) -> RunWork:
    """Do all work except that of one kind."""

    def do(step: Work) -> object:
        if step.kind is kind:
            raise error
        return step.call()

    return run_with(do)


def create(visitor: Visitor, session: Session | None = None, name: bytes = NEW) -> Message:
    return visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(name, (URL,)), session=session)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (TooBusy(PLANTED), ResponseCode.SERVER_TOO_BUSY, "too busy"),
        (Contention(PLANTED), ResponseCode.SERVER_TOO_BUSY, "too busy"),
        (StoreUnavailable(PLANTED), ResponseCode.SERVER_TOO_BUSY, "cannot reach its database"),
        (StateFull(PLANTED), ResponseCode.SERVER_TOO_BUSY, "too busy"),
        (Busy(PLANTED), ResponseCode.SERVER_TOO_BUSY, "too busy"),
        (StorageFull(PLANTED), ResponseCode.SERVER_BACKUP, "disk of the server is full"),
        (ClockError(PLANTED), ResponseCode.SERVER_BACKUP, "clock"),
        (ReadOnlyStore(PLANTED), ResponseCode.SERVER_BACKUP, "read-only"),
        (OutcomeUnknown(PLANTED), ResponseCode.ERROR, "unknown"),
        (CorruptData(PLANTED), ResponseCode.ERROR, "Internal Error (reference "),
        (LedgerError(PLANTED), ResponseCode.ERROR, "Internal Error (reference "),
        (ValueError(PLANTED), ResponseCode.ERROR, "Internal Error (reference "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_internal_error_gets_a_text_without_its_message(
    registry: Registry, caplog: pytest.LogCaptureFixture, error: Exception, code: ResponseCode, words: str
) -> None:
    caplog.set_level(logging.DEBUG)
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=failing(WorkKind.WRITE, error)))
    answer = visitor.ask_as(SEC, create(visitor))
    assert answer.code is code
    text = text_of(answer)
    assert words in text
    assert PLANTED not in text + caplog.text
    if "reference" in text:
        reference = text.partition("reference ")[2].rstrip(")")
        assert f"reference {reference}: {type(error).__name__} in " in caplog.text


@pytest.mark.parametrize("kind", [WorkKind.READ, WorkKind.VERIFY, WorkKind.WRITE], ids=str)
def test_error_during_authentication_gets_a_response(registry: Registry, kind: WorkKind) -> None:
    good = Visitor(NativeServer(registry, server := make_server(), SITE))
    request = create(good)
    answer = good.answer(good.ask(request), request, SEC)
    bad = Visitor(NativeServer(registry, server, SITE, run=failing(kind, RuntimeError(PLANTED))))
    refused = bad.ask(answer, about=request)
    assert refused.code is ResponseCode.ERROR
    assert text_of(refused).startswith("Internal Error")
    if kind is not WorkKind.WRITE:
        # Nothing was decided: the challenge still waits.
        assert good.ask(answer, about=request).code is ResponseCode.SUCCESS


def test_only_a_refused_change_says_that_nothing_was_changed(registry: Registry) -> None:
    full = StorageFull(PLANTED)
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=failing(WorkKind.READ, full)))
    read = text_of(visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()))))
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=failing(WorkKind.WRITE, full)))
    changed = text_of(visitor.ask_as(SEC, create(visitor)))
    assert "disk of the server is full" in read
    assert ("nothing was changed" in read, "nothing was changed" in changed) == (False, True)


def test_protocol_error_gets_a_response(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(PLANTED)

    public = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()))
    for method, request in (("receive", public), ("respond", public), ("identify", create(visitor))):
        with monkeypatch.context() as patch:
            patch.setattr(visitor.native_server.server, method, fail)
            (frame,) = visitor.carry(visitor.client.pack(request, None))
            assert frame.envelope.request_id == request.envelope.request_id
            assert visitor.served[-1].code is ResponseCode.ERROR
            assert PLANTED.encode() not in frame.payload
    assert PLANTED not in caplog.text
    assert visitor.ask(public).code is ResponseCode.SUCCESS


def test_too_long_response_is_refused(registry: Registry, visitor: Visitor) -> None:
    large = tuple(Value(index, "DATA", bytes(90_000)) for index in (1, 2, 3))
    registry.do(Create(Handle.parse(NEW.decode()), large), OPERATOR, "cli")
    answer = visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(NEW)))
    assert answer.code is ResponseCode.ERROR
    assert text_of(answer) == "the response is too long for a message; request fewer values"
    assert visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(NEW, (1, 2)))).code is ResponseCode.SUCCESS


def test_response_too_long_with_signature_is_refused_with_a_signed_refusal(
    registry: Registry, visitor: Visitor
) -> None:
    registry.do(Create(Handle.parse(NEW.decode()), (Value(1, "DATA", bytes(262_000)),)), OPERATOR, "cli")
    flags = DEFAULT_FLAGS | OpFlag.CERTIFY
    answer = visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(NEW), flags=flags))
    assert answer.code is ResponseCode.ERROR
    assert answer.is_certified


def test_long_text_is_truncated_between_characters() -> None:
    for length in range(MAX_TEXT - 5, MAX_TEXT + 5):
        text = make_failure("x" * (length % 4) + "日" * 200).sentence
        assert len(text.encode()) <= MAX_TEXT
        assert text.endswith("…")
    assert make_failure("x" * MAX_TEXT).sentence == "x" * MAX_TEXT


@pytest.mark.parametrize("error", [Busy(), RuntimeError(PLANTED)], ids=str)
def test_response_is_sent_unsigned_if_it_cannot_be_signed(
    registry: Registry, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """As deployed: the request was executed, and the client may check."""
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=failing(WorkKind.SIGN, error)))
    request = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()), flags=DEFAULT_FLAGS | OpFlag.CERTIFY)
    (frame,) = visitor.carry(visitor.client.pack(request, None))
    message = Message.from_bytes(frame.envelope, frame.payload, int(visitor.now))
    assert message.header.response_code is ResponseCode.SUCCESS
    assert message.credential is None
    is_logged = type(error).__name__ in caplog.text
    assert is_logged is not isinstance(error, Busy), "how often there is too much to sign is for the metrics"
    assert PLANTED not in caplog.text


def test_excess_session_setups_are_refused(registry: Registry) -> None:
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=failing(WorkKind.AGREE, Busy())))
    wish = visitor.client.begin_session(SEC, visitor.now, peer_version=visitor.version)
    assert visitor.ask(wish.request).code is ResponseCode.SERVER_TOO_BUSY
    assert len(visitor.native_server.server.sessions) == 0


@pytest.mark.parametrize(
    "setup",
    [
        SessionSetup(ExchangeMode.DIFFIE_HELLMAN, 60, public_key=b"not a key"),
        SessionSetup(ExchangeMode.DIFFIE_HELLMAN, 60, public_key=RSA_KEY.public.to_bytes()),
        SessionSetup(ExchangeMode.CLIENT_KEY, 60, public_key=b"not a key"),
        SessionSetup(ExchangeMode.SERVER_KEY, 60),
    ],
    ids=["nothing", "another", "client", "server"],
)
def test_session_setup_without_a_key_is_refused(visitor: Visitor, setup: SessionSetup) -> None:
    answer = visitor.ask(visitor.request(OpCode.SESSION_SETUP, setup))
    assert answer.code is ResponseCode.SESSION_FAILED
    assert answer.is_certified


def test_invalid_key_exchange_in_an_encrypted_session_gets_an_encrypted_response(visitor: Visitor) -> None:
    session = visitor.begin_session()
    flags = DEFAULT_FLAGS | OpFlag.ENCRYPT | OpFlag.CERTIFY
    setup = SessionSetup(ExchangeMode.SERVER_KEY, 60)
    request = visitor.request(OpCode.SESSION_SETUP, setup, flags=flags, session=session)
    (frame,) = visitor.carry(visitor.client.pack(request, session))
    assert frame.envelope.encrypted
    message = Message.from_bytes(frame.envelope, session.open(frame.payload), int(visitor.now))
    assert message.header.response_code is ResponseCode.SESSION_FAILED
    assert message.credential is not None
    assert message.credential.type == "HS_SIGNED"


def test_minting_waits_for_the_clock(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("perseid.server.native.decisions.time.sleep", slept.append)
    real, waits = Registry.do, [0.3, 0.3]
    sinces: list[int | None] = []

    def do(self: Registry, command: object, *rest: object) -> object:
        inner = command.command.command  # type: ignore[attr-defined]
        if not inner.__class__.__name__.startswith("Mint"):
            return real(self, command, *rest)  # type: ignore[arg-type]
        if rest[0].__class__.__name__ == "KeyIdentity":
            sinces.append(inner.since)
            if waits:
                raise RetryLater(waits.pop(), 77, "the clock has to catch up", "strict_clock")
        return real(self, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Registry, "do", do)
    flags = DEFAULT_FLAGS | OpFlag.MINT_SUFFIX
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)), flags=flags)
    assert visitor.ask_as(SEC, request).code is ResponseCode.SUCCESS
    assert (slept, sinces) == ([0.3, 0.3], [None, 77, 77])
    waits.append(2.0)
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)), flags=flags)
    assert visitor.ask_as(SEC, request).code is ResponseCode.SERVER_TOO_BUSY


# Lists


def make_names(registry: Registry, count: int) -> list[bytes]:
    """Create additional names."""
    names = [f"{PREFIX}/n{number:04}" for number in range(count)]
    drafts = [Draft(Action.CREATE, State.NORMAL, name, "cli", "local:alice") for name in names]
    registry.ledger.append(*[Append(draft) for draft in drafts])
    return sorted([name.encode() for name in names] + [STD.encode(), *_OTHERS])


_OTHERS = (f"{PREFIX}/vec-big".encode(), f"{PREFIX}/vec-üñí-日本".encode())


@pytest.mark.parametrize("count", [0, 46, 47, 48, 97, 98, 497, 498, 600, 1_050])
@pytest.mark.parametrize("in_session", [False, True], ids=["alone", "session"])
def test_list_has_messages_of_fifty(registry: Registry, visitor: Visitor, count: int, in_session: bool) -> None:
    names = make_names(registry, count)
    session = visitor.begin_session() if in_session else None
    flags = DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST | OpFlag.CERTIFY
    request = visitor.request(OpCode.LIST_HANDLES, HandleRequest(PREFIX.lower().encode()), flags=flags, session=session)
    answers = visitor.all_as(SEC, request, session)
    parts = [answer.body.handles for answer in answers if isinstance(answer.body, HandleList)]
    assert [name for part in parts for name in part] == names
    assert [len(part) for part in parts[:-1]] == [HANDLES_PER_MESSAGE] * (len(parts) - 1)
    assert 0 < len(parts[-1]) <= HANDLES_PER_MESSAGE
    assert [answer.more_follows for answer in answers] == [True] * (len(parts) - 1) + [False]
    assert all(answer.is_certified and answer.digest is not None for answer in answers)


def test_an_empty_list_is_one_message(registry: Registry, visitor: Visitor) -> None:
    registry.do(Create(Handle.parse("0.NA/20.9"), (BY_ADMINS,)), OPERATOR, "cli")
    visitor.ask_as(SEC, visitor.request(OpCode.HOME_NA, HandleRequest(b"0.NA/20.9")))
    answer = visitor.ask_as(SEC, visitor.request(OpCode.LIST_HANDLES, HandleRequest(b"0.NA/20.9")))
    assert answer.body == HandleList(())


def test_derived_prefixes_are_listed(registry: Registry, visitor: Visitor) -> None:
    answer = visitor.ask_as(SEC, visitor.request(OpCode.LIST_HANDLES, HandleRequest(f"0.NA/0.NA/{PREFIX}".encode())))
    assert answer.body == HandleList(())
    registry.do(Create(Handle.parse(f"{ADMIN}.1"), (BY_ADMINS,)), OPERATOR, "cli")
    answer = visitor.ask_as(SEC, visitor.request(OpCode.LIST_HANDLES, HandleRequest(f"0.NA/0.NA/{PREFIX}".encode())))
    assert answer.body == HandleList((f"{ADMIN}.1".encode(),))


def test_key_change_during_a_list_is_reported(registry: Registry) -> None:
    make_names(registry, 600)
    reads: list[Work] = []

    def do(step: Work) -> object:
        if step.kind is WorkKind.READ:
            reads.append(step)
            if len(reads) == 4:  # anonymous, weighed, first part, second part
                registry.do(Modify(Handle.parse(ADMIN), (Value(301, "HS_SECKEY", b"another"),)), OPERATOR, "cli")
        return step.call()

    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=run_with(do)))
    answers = visitor.all_as(SEC, visitor.request(OpCode.LIST_HANDLES, HandleRequest(ADMIN.encode())))
    assert [answer.code for answer in answers[:-1]] == [ResponseCode.SUCCESS] * 9
    assert answers[-1].code is ResponseCode.AUTHENTICATION_FAILED
    assert [answer.more_follows for answer in answers] == [True] * 9 + [False]


# The event loop


def test_requests_are_handled_concurrently_and_work_may_run_in_threads(registry: Registry) -> None:
    here = threading.get_ident()
    elsewhere: set[int] = set()

    async def many() -> list[ResponseCode]:
        with ThreadPoolExecutor(4) as pool:

            async def run(work: Work, _source: str, _transport: Transport) -> object:
                def call() -> object:
                    elsewhere.add(threading.get_ident())
                    return work.call()

                return await asyncio.get_running_loop().run_in_executor(pool, call)

            native_server = NativeServer(registry, make_server(), SITE, run=run)
            return await asyncio.gather(*[one(native_server, number) for number in range(10)])

    async def one(native_server: NativeServer, number: int) -> ResponseCode:
        visitor = Visitor(native_server, seed=100 + number)

        async def ask(message: Message) -> NativeResponse:
            frame = visitor.client.pack(message, None)
            (served,) = [one async for one in native_server.handle(frame, "loop", visitor.now, Transport.TCP)]
            return served

        request = create(visitor, name=f"{PREFIX}/loop{number}".encode())
        (frame,) = (await ask(request)).reply.frames
        challenge = visitor.client.read(frame, request, visitor.now)
        served = await ask(visitor.answer(challenge, request, SEC))
        assert served.code is not None
        return served.code

    assert asyncio.run(many()) == [ResponseCode.SUCCESS] * 10
    assert here not in elsewhere


@pytest.mark.parametrize("is_long", [False, True])
def test_long_messages_leave_the_event_loop(registry: Registry, is_long: bool) -> None:
    in_loop: list[bool] = []

    async def run(work: Work, _source: str, _transport: Transport) -> object:
        if work.kind in (WorkKind.READ, WorkKind.WRITE):
            in_loop.append(work.is_short or work.coroutine is not None)
        return work.call()

    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=run))
    value = Value.text(1, "URL", "https://example.org/" + "x" * is_long * MAX_INLINE_BYTES)
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (value,)))
    challenge = visitor.ask(request)
    assert challenge.code is ResponseCode.AUTHENTICATION_NEEDED
    visitor.ask(visitor.answer(challenge, request, SEC), about=request)
    assert in_loop == [not is_long] * 3  # the dry run, the keys and the change


def test_changes_wait_for_the_ledger_in_the_event_loop(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minting that has to wait for the clock waits there too."""
    in_loop: list[WorkKind] = []
    waits = [RetryLater(0.001, since, "", "") for since in (6, 5)]
    execute = registry.execute

    async def execute_after_waiting(command: Any, *arguments: Any) -> object:
        if waits:
            raise waits.pop()
        return await execute(command, *arguments)

    monkeypatch.setattr(registry, "execute", execute_after_waiting)

    async def run(work: Work, _source: str, _transport: Transport) -> object:
        if work.coroutine is None:
            return work.call()
        in_loop.append(work.kind)
        return await work.coroutine()

    async def test() -> None:
        native_server = NativeServer(registry, make_server(), SITE, run=run)
        visitor = Visitor(native_server)

        async def ask(message: Message, about: Message | None = None) -> VerifiedResponse:
            frame = visitor.client.pack(message, None)
            (served,) = [one async for one in native_server.handle(frame, "loop", visitor.now, Transport.TCP)]
            return visitor.client.read(served.reply.frames[0], message, visitor.now, about=about)

        request = create(visitor)
        challenge = await ask(request)
        assert challenge.code is ResponseCode.AUTHENTICATION_NEEDED
        assert (await ask(visitor.answer(challenge, request, SEC), request)).code is ResponseCode.SUCCESS

    asyncio.run(test())
    assert in_loop == [WorkKind.WRITE]
    assert not waits


def test_excess_work_is_refused(registry: Registry) -> None:
    visitor = Visitor(NativeServer(registry, make_server(), SITE, run=failing(WorkKind.READ, Busy())))
    assert visitor.ask(create(visitor)).code is ResponseCode.SERVER_TOO_BUSY


# Logs


def test_no_secret_is_in_any_log(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the secret nor anything derived from it, over a whole session."""
    caplog.set_level(logging.DEBUG)
    visitor = Visitor(NativeServer(registry, make_server(), SITE))
    session = visitor.begin_session()
    secret = Value(300, "HS_SECKEY", PLANTED.encode())
    name = f"{PREFIX}/user".encode()
    body = ValuesRequest(name, (replace(secret, permissions=BY_ADMINS.permissions), BY_ADMINS))
    visitor.ask_as(SEC, visitor.request(OpCode.CREATE_HANDLE, body, session=session), session)
    request = create(visitor)
    visitor.ask(visitor.answer(visitor.ask(request), request, SEC, b"a guess"), about=request)
    logged = caplog.text + "".join(str(served.name) + served.identity for served in visitor.served)
    assert SECRET.decode() not in logged
    assert PLANTED not in logged
    assert session.key.hex() not in logged


def test_response_has_fields_for_the_log(registry: Registry, visitor: Visitor) -> None:
    visitor.ask_as(SEC, create(visitor))
    challenged, done = visitor.served
    assert (challenged.opcode, challenged.code, challenged.identity) == (
        OpCode.CREATE_HANDLE,
        ResponseCode.AUTHENTICATION_NEEDED,
        "",
    )
    assert (done.opcode, done.code, done.identity, done.name) == (
        OpCode.CREATE_HANDLE,
        ResponseCode.SUCCESS,
        f"301:{ADMIN}",
        NEW,
    )
    assert isinstance(done.reply, Reply)
    (frame,) = done.reply.frames
    digest, _ = decode_response(Message.from_bytes(frame.envelope, frame.payload, 0), 0)
    assert digest is None
    with registry.snapshot() as snapshot:
        entry = snapshot.stored(Handle.parse(NEW.decode())).entry
    assert entry is not None
    assert entry.origin == ("native", f"301:{ADMIN}")


def test_wrong_clock_stops_changes_but_not_resolution() -> None:
    machine = Clock()
    machine.show(1_794_724_100)
    with recorded_registry(machine) as registry:
        visitor = Visitor(NativeServer(registry, make_server(), SITE))
        machine.wall -= 3_600 * 1_000_000
        answer = visitor.ask_as(SEC, create(visitor))
        assert answer.code is ResponseCode.SERVER_BACKUP
        assert text_of(answer) == "The clock of the server is wrong; nothing was changed"
        assert visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()))).code is ResponseCode.SUCCESS
        assert isinstance(registry.rules, Rules)


def test_a_database_that_is_away_does_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(decisions, "_failure_logs", {kind: RateLimitedLogger() for kind in decisions._failure_logs})
    monkeypatch.setattr("perseid.server.native.decisions.time.monotonic", lambda: now)
    for _ in range(BURST_LINES + 10):
        assert known_failure(StoreUnavailable("the database connection was lost; retry")) is not None
    assert [record.getMessage() for record in caplog.records] == ["request failed: StoreUnavailable"] * BURST_LINES
    known_failure(ReadOnlyStore("a replica"))
    assert caplog.records[-1].getMessage() == "request failed: ReadOnlyStore", "failures of another kind are logged"
    now = 1.0
    known_failure(StoreUnavailable("the database connection was lost; retry"))
    assert caplog.records[-1].getMessage() == "request failed: StoreUnavailable (10 similar messages omitted)"
    assert caplog.records[-1].levelno == logging.WARNING

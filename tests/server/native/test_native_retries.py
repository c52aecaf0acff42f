"""Requests repeated over UDP are executed once, and get the same response twice."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.record import Permission
from perseid.records.site import Transport
from perseid.registry.commands.records import Create
from perseid.registry.registry import Registry
from perseid.server.native import udp
from perseid.server.native.server import NativeServer
from perseid.server.native.udp import MAX_REPLY_BYTES, RETENTION_SECONDS, Key, ReplyCache, frame_key
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope, Message
from perseid.wire.requests import HandleRequest, Resolve, ValuesRequest
from perseid.wire.responses import Failure
from perseid.wire.server import Reply
from perseid.wire.sessions import Session
from tests.registry.registries import OPERATOR
from tests.server.native.native_servers import (
    ADMIN,
    NEW,
    PREFIX,
    SEC,
    SITE,
    STD,
    URL,
    StartedRequest,
    Visitor,
    make_server,
)
from tests.server.shared_state import make_state


@pytest.fixture
def visitor(registry: Registry) -> Visitor:
    return Visitor(NativeServer(registry, make_server(), SITE), Transport.UDP)


def entries(registry: Registry) -> int:
    with registry.ledger.open_reader() as reader:
        return reader.size


def proved_session(visitor: Visitor) -> Session:
    session = visitor.begin_session()
    body = ValuesRequest(f"{PREFIX}/first".encode(), (URL,))
    assert (
        visitor.ask_as(SEC, visitor.request(OpCode.CREATE_HANDLE, body, session=session), session).code
        is ResponseCode.SUCCESS
    )
    return session


def create(visitor: Visitor, session: Session | None = None) -> Message:
    return visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)), session=session)


def test_same_bytes_in_a_session_are_executed_once(registry: Registry, visitor: Visitor) -> None:
    session = proved_session(visitor)
    frame = visitor.client.pack(create(visitor, session), session)
    first = visitor.carry(frame)
    size = entries(registry)
    for pause in (0.0, 1.5, RETENTION_SECONDS - 2.0):
        visitor.now += pause
        assert visitor.carry(frame) == first
    assert visitor.served[-1].code is ResponseCode.SUCCESS
    assert entries(registry) == size


def test_after_a_minute_the_counter_refuses_a_replay(registry: Registry, visitor: Visitor) -> None:
    session = proved_session(visitor)
    request = create(visitor, session)
    visitor.ask(request, session)
    size = entries(registry)
    visitor.now += RETENTION_SECONDS + 1
    assert visitor.ask(request, session).code is ResponseCode.SESSION_MESSAGE_REJECTED
    assert entries(registry) == size


def test_another_attempt_with_another_counter_is_the_same_request(registry: Registry, visitor: Visitor) -> None:
    """Deployed clients count each attempt; executed again, the second would fail because the handle exists."""
    session = proved_session(visitor)
    request = create(visitor, session)
    first = visitor.ask(request, session)
    size = entries(registry)
    repeated = visitor.client.repeat(request, session)
    assert repeated.credential != request.credential
    assert visitor.ask(repeated, session).message.to_bytes() == first.message.to_bytes()
    assert entries(registry) == size
    # Its counter was used up: who kept it cannot use it when the first is forgotten.
    visitor.now += RETENTION_SECONDS + 1
    assert visitor.ask(repeated, session).code is ResponseCode.SESSION_MESSAGE_REJECTED


def test_another_attempt_with_a_wrong_mac_is_refused(visitor: Visitor) -> None:
    session = proved_session(visitor)
    request = create(visitor, session)
    visitor.ask(request, session)
    repeated = visitor.client.repeat(request, session)
    assert repeated.credential is not None
    forged = replace(repeated, credential=replace(repeated.credential, signature=bytes(32)))
    assert visitor.ask(forged, session).code is ResponseCode.INVALID_SESSION_KEY


@pytest.mark.parametrize("flags", [DEFAULT_FLAGS, DEFAULT_FLAGS | OpFlag.ENCRYPT], ids=["plain", "encrypted"])
def test_encrypted_request_is_executed_once(registry: Registry, visitor: Visitor, flags: OpFlag) -> None:
    session = proved_session(visitor)
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)), flags=flags, session=session)
    assert visitor.ask(request, session).code is ResponseCode.SUCCESS
    size = entries(registry)
    repeated = visitor.client.repeat(request, session)
    assert visitor.ask(repeated, session).code is ResponseCode.SUCCESS
    assert entries(registry) == size


def test_authenticated_refusal_is_remembered(visitor: Visitor) -> None:
    session = proved_session(visitor)
    request = visitor.request(OpCode.CREATE_HANDLE, ValuesRequest(STD.encode(), (URL,)), session=session)
    answers = [visitor.ask(request, session) for _ in range(2)]
    assert [answer.code for answer in answers] == [ResponseCode.HANDLE_ALREADY_EXISTS] * 2


def test_anonymous_change_is_made_once(registry: Registry, visitor: Visitor) -> None:
    wall = f"{PREFIX}/wall"
    registry.do(Create(Handle.parse(wall), (replace(URL, permissions=Permission(0x0F)),)), OPERATOR, "cli")
    request = visitor.request(OpCode.MODIFY_VALUE, ValuesRequest(wall.encode(), (URL,)))
    assert visitor.ask(request).code is ResponseCode.SUCCESS
    size = entries(registry)
    # Now the value is no longer everybody's, and another attempt would be challenged.
    assert visitor.ask(request).code is ResponseCode.SUCCESS
    assert entries(registry) == size
    fresh = visitor.request(OpCode.MODIFY_VALUE, ValuesRequest(wall.encode(), (URL,)))
    assert visitor.ask(fresh).code is ResponseCode.AUTHENTICATION_NEEDED


def test_same_bytes_from_another_address_or_over_tcp_are_another_request(visitor: Visitor) -> None:
    session = proved_session(visitor)
    request = create(visitor, session)
    visitor.ask(request, session)
    elsewhere = Visitor(visitor.native_server, Transport.UDP, source="192.0.2.2")
    assert elsewhere.ask(request, session).code is ResponseCode.SESSION_MESSAGE_REJECTED
    over_tcp = Visitor(visitor.native_server, Transport.TCP)
    assert over_tcp.ask(request, session).code is ResponseCode.SESSION_MESSAGE_REJECTED


def test_repetition_gets_no_response_while_the_request_runs(registry: Registry, visitor: Visitor) -> None:
    session = proved_session(visitor)
    request = create(visitor, session)
    frame = visitor.client.pack(request, session)
    first = StartedRequest(visitor, frame)
    assert visitor.carry(frame) == []
    again = visitor.client.pack(visitor.client.repeat(request, session), session)
    assert visitor.carry(again) == []
    served = first.finish()
    assert visitor.carry(frame) == list(served.reply.frames)
    assert entries(registry) > 0


def test_aborted_request_may_be_repeated(registry: Registry, visitor: Visitor) -> None:
    """No response was sent, and nothing was executed."""
    frame = visitor.client.pack(create(visitor), None)
    StartedRequest(visitor, frame).abort()
    assert len(visitor.native_server.changes) == 0
    (answer,) = visitor.carry(frame)
    assert visitor.served[-1].code is ResponseCode.AUTHENTICATION_NEEDED
    assert answer.envelope.session_id > 0
    assert entries(registry) > 0


def test_challenge_response_is_executed_once(registry: Registry, visitor: Visitor) -> None:
    request = create(visitor)
    challenge = visitor.ask(request)
    answer = visitor.answer(challenge, request, SEC)
    first = visitor.ask(answer, about=request)
    size = entries(registry)
    assert visitor.ask(answer, about=request).message.to_bytes() == first.message.to_bytes()
    assert entries(registry) == size


def test_session_setup_is_executed_once(visitor: Visitor) -> None:
    wish = visitor.client.begin_session(SEC, visitor.now, peer_version=visitor.version)
    frame = visitor.client.pack(wish.request, None)
    assert visitor.carry(frame) == visitor.carry(frame)
    assert len(visitor.native_server.server.sessions) == 1
    over_tcp = Visitor(visitor.native_server, Transport.TCP)
    over_tcp.carry(frame)
    assert len(visitor.native_server.server.sessions) == 2


def test_challenges_and_reads_are_not_remembered(visitor: Visitor) -> None:
    """Anybody could fill the table with them."""
    for _ in range(3):
        visitor.ask(create(visitor))
        visitor.ask(visitor.request(OpCode.RESOLUTION, Resolve(STD.encode())))
        visitor.ask(visitor.request(OpCode.DELETE_HANDLE, HandleRequest(b"20.500.77777/x")))
    assert len(visitor.native_server.changes) == 0
    assert len(visitor.native_server.setups) == 0


def test_lists_require_tcp(visitor: Visitor) -> None:
    for opcode in (OpCode.LIST_HANDLES, OpCode.LIST_HOMED_NAS):
        answer = visitor.ask(visitor.request(opcode, HandleRequest(ADMIN.encode())))
        assert answer.code is ResponseCode.PROTOCOL_ERROR


@pytest.mark.parametrize("same_bytes", [True, False])
def test_attempts_in_two_processes_at_once_are_executed_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, same_bytes: bool
) -> None:
    state = make_state()
    server = make_server()
    one, two = (Visitor(NativeServer(registry, server, SITE, state=state), Transport.UDP) for _ in range(2))
    two.client = one.client
    session = proved_session(one)
    body, flags = ValuesRequest(f"{PREFIX}/".encode(), (URL,)), DEFAULT_FLAGS | OpFlag.MINT_SUFFIX
    request = one.request(OpCode.CREATE_HANDLE, body, flags=flags, session=session)
    other = request if same_bytes else one.client.repeat(request, session)
    size, cache = entries(registry), one.native_server.changes
    begin, replies = cache.begin, []

    def begin_later(keys: tuple[Key, ...], now: float, unless: tuple[Key, ...]) -> Reply | None:
        replies.append(two.ask(other, session).message.to_bytes())
        return begin(keys, now, unless)

    monkeypatch.setattr(cache, "begin", begin_later)
    replies.append(one.ask(request, session).message.to_bytes())
    assert replies[0] == replies[1]
    assert entries(registry) == size + 1


def test_challenge_response_over_tcp_does_not_use_the_replies(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = Visitor(NativeServer(registry, make_server(), SITE))

    def fail(*_: object) -> None:
        raise AssertionError("written")

    monkeypatch.setattr(visitor.native_server.changes, "begin", fail)
    assert visitor.ask_as(SEC, create(visitor)).code is ResponseCode.SUCCESS


# The table


def frame_of(number: int, size: int = 10) -> Frame:
    return Frame(Envelope(request_id=number, length=size), bytes(size))


def key(number: int) -> Key:
    return frame_key("a", frame_of(number))


def remember(table: ReplyCache, number: int, now: float, size: int = 10) -> None:
    table.begin((key(number),), now)
    table.end((key(number),), Reply((frame_of(number, size),)), now)


def test_oldest_replies_are_evicted() -> None:
    table = ReplyCache(make_state(), limit=3)
    for number in range(5):
        remember(table, number, float(number))
    assert [table.find(key(number), 5.0) is not None for number in range(5)] == [False, False, True, True, True]


def test_total_bytes_of_replies_are_bounded() -> None:
    table = ReplyCache(make_state(), size=40_960)
    for number in range(100):
        remember(table, number, float(number), 1_000)
    assert 10 < len(table) < 40
    assert table.find(key(99), 99.0) is not None


def test_long_reply_is_not_remembered() -> None:
    table = ReplyCache(make_state())
    remember(table, 1, 0.0, MAX_REPLY_BYTES)
    assert len(table) == 0


def test_reply_has_two_keys_in_all_processes() -> None:
    state = make_state()
    table, other = ReplyCache(state), ReplyCache(state)
    keys, reply = (key(1), key(2)), Reply((frame_of(1), frame_of(2, 0)))
    table.begin(keys, 0.0)
    assert [other.find(each, 1.0) for each in keys] == [Reply(())] * 2
    assert [table.find_concurrent(each, 1.0) for each in keys] == [None] * 2
    other.begin(keys[:1], 1.0)
    assert [table.find_concurrent(each, 1.0) for each in keys] == [Reply(()), None]
    other.end(keys[:1], None, 2.0)
    table.end(keys, reply, 2.0)
    assert [other.find(each, 2.0 + RETENTION_SECONDS - 1) for each in keys] == [reply] * 2
    assert [other.find(each, 2.0 + RETENTION_SECONDS) for each in keys] == [None] * 2


@pytest.fixture
def killed() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return ended.pid


def test_session_setup_of_a_killed_process_is_executed_again(monkeypatch: pytest.MonkeyPatch, killed: int) -> None:
    table = ReplyCache(make_state(), is_repeatable=True)
    with monkeypatch.context() as other:
        other.setattr(os, "getpid", lambda: killed)
        table.begin((key(1),), 0.0)
    assert table.find(key(1), 1.0) is None
    assert table.begin((key(1),), 1.0, (key(1),)) is None
    table.end((key(1),), Reply((frame_of(1),)), 1.0)
    assert table.find(key(1), 1.0) == Reply((frame_of(1),))


@pytest.mark.parametrize("in_session", [True, False])
def test_change_of_a_killed_process_is_not_executed_again(
    registry: Registry, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, *, in_session: bool
) -> None:
    """It may have been made. Executed again, a deletion would fail because the handle does not exist."""
    session = proved_session(visitor) if in_session else None
    request = create(visitor, session)
    size = entries(registry)
    attempt = StartedRequest(visitor, visitor.client.pack(request, session))
    with monkeypatch.context() as other:
        other.setattr(udp, "is_running", lambda _: False)
        again = request if session is None else visitor.client.repeat(request, session)
        answer = visitor.ask(again, session)
        assert answer.code is ResponseCode.ERROR
        assert isinstance(answer.body, Failure)
        assert "unknown whether the change was made" in str(answer.body)
        assert entries(registry) == size
        if session is not None:  # its counter was used up, and its MAC is checked
            assert again.credential is not None
            forged = replace(again, credential=replace(again.credential, signature=bytes(32)))
            assert visitor.ask(forged, session).code is ResponseCode.INVALID_SESSION_KEY
            visitor.now += RETENTION_SECONDS + 1
            assert visitor.ask(again, session).code is ResponseCode.SESSION_MESSAGE_REJECTED
    attempt.abort()


def test_read_of_a_killed_process_can_be_retried(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was changed, so nothing is unknown."""
    flags = DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY
    request = visitor.request(OpCode.RESOLUTION, Resolve(STD.encode()), flags=flags)
    proof = visitor.answer(visitor.ask(request), request, SEC)
    attempt = StartedRequest(visitor, visitor.client.pack(proof, None))
    with monkeypatch.context() as other:
        other.setattr(udp, "is_running", lambda _: False)
        assert visitor.ask(proof, about=request).code is ResponseCode.SERVER_TOO_BUSY
    attempt.abort()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.booleans())))
def test_cache_invariants(events: list[tuple[int, int, bool]]) -> None:
    table = ReplyCache(make_state(), limit=4)
    now, seen = 0.0, dict[int, float]()
    for number, pause, done in events:
        now += pause
        known = table.find(key(number), now)
        if known is not None:
            assert now - seen[number] < RETENTION_SECONDS
            assert known == Reply((frame_of(number),))
            continue
        table.begin((key(number),), now)
        assert table.find(key(number), now) == Reply(())
        table.end((key(number),), Reply((frame_of(number),)) if done else None, now)
        seen[number] = now
        assert len(table) <= 4


def test_concurrent_attempt_is_not_executed_after_another_authenticates(registry: Registry, visitor: Visitor) -> None:
    session = visitor.begin_session()
    request = create(visitor, session)
    (challenge,) = visitor.all(request, session)
    assert challenge.code is ResponseCode.AUTHENTICATION_NEEDED
    # Another attempt of the request came meanwhile, and it is being found out whether anybody may do it.
    late = visitor.client.pack(visitor.client.repeat(request, session), session)
    looking = StartedRequest(visitor, late)
    answered = visitor.ask(visitor.answer(challenge, request, SEC), session, about=request)
    assert answered.code is ResponseCode.SUCCESS
    size = entries(registry)
    assert looking.finish().code is ResponseCode.SUCCESS, "it gets what the other attempt got"
    assert entries(registry) == size

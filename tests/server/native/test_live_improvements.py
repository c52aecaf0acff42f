"""Improvements over deployed servers, tested with a running server; see docs/reference/protocol.md.

A challenge cannot be used twice; a change sent twice over UDP is made once; challenges and sessions are bound to their
request and key. Kept connections are in `test_live_transport`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perseid.records.admin import Admin
from perseid.records.record import DEFAULT_PERMISSIONS, Permission, Value, ValueRef
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.fragments import split
from perseid.wire.message import ENVELOPE_LENGTH, Envelope, Message
from perseid.wire.requests import HandleRequest, RemoveValues, Resolve, ValuesRequest
from perseid.wire.responses import ResolutionResult
from perseid.wire.sessions import Session
from tests.server.live_servers import WALL, client_of, entries, indexes, live_installation, over_udp
from tests.server.native.native_client import NativeClient, Serving, Via, serving
from tests.server.native.native_servers import ADMIN, BY_ADMINS, HIDDEN, PREFIX, STD, text_of
from tests.server.other_clocks import OtherClock

BOTH = pytest.mark.parametrize("via", [Via.UDP, Via.TCP], ids=lambda via: via.value)
READ_ALL = DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY
URL = Value.text(1, "URL", "https://example.org/new")
ADDED = Value.text(9, "NOTE", "added")
PORTS = 6
"""From so many ports a request is repeated: the kernel spreads them over the workers by a hash that nobody knows."""


@dataclass(frozen=True)
class Live:
    """A server, its installation and its clock."""

    server: Serving
    directory: Path
    clock: OtherClock

    def client(self, via: Via = Via.TCP, identity: str | None = None) -> NativeClient:
        return client_of(self.server, via, identity, clock=self.clock.now)

    @property
    def entries(self) -> int:
        return entries(self.directory)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live-improvements")
    clock = OtherClock.make(folder / "clock")
    directory = live_installation(folder)
    with serving(directory, **clock.environment) as server:
        yield Live(server, directory, clock)


@pytest.fixture
def minute(live: Live) -> Iterator[Live]:
    """The same server; a test may advance its clock by a minute, the maximum step of the ledger."""
    yield live
    live.clock.show(live.clock.now() - 61)


def make(live: Live, name: str) -> None:
    """Create a record that administrators may change."""
    with live.client(Via.TCP, "rsa") as client:
        assert client.create(name, (URL, BY_ADMINS)).code is ResponseCode.SUCCESS


def answered(
    client: NativeClient, opcode: OpCode, body: ValuesRequest | HandleRequest | RemoveValues
) -> tuple[Message, Message]:
    """A request, and its challenge response, which is not sent."""
    request = client.request(opcode, body)
    return request, client.answer(client.ask(request), request)


def raw_response(client: NativeClient, message: Message, session: Session | None = None) -> bytes:
    """The raw response to a message."""
    (frame,) = client.exchange(message, session)
    return frame.envelope.to_bytes() + frame.payload


def code_of(raw: bytes) -> ResponseCode:
    return ResponseCode(int.from_bytes(raw[ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8], "big"))


def from_several_ports(live: Live, client: NativeClient, message: Message, session: Session | None) -> list[bytes]:
    """The responses to the same bytes from several ports, in turn."""
    frame = client.client.pack(message, session)
    packets = split(frame.envelope, frame.payload, request=True)
    return [b"".join(over_udp(live.server.native, packets)) for _ in range(PORTS)]


# Challenges


@BOTH
def test_challenge_response_cannot_be_replayed(live: Live, via: Via) -> None:
    name = f"{PREFIX}/replayed-{via.value}"
    make(live, name)
    with live.client(via, "secret") as client:
        _, answer = answered(client, OpCode.ADD_VALUE, ValuesRequest(name.encode(), (ADDED,)))
        first = raw_response(client, answer)
        assert code_of(first) is ResponseCode.SUCCESS
        assert client.remove(name, 9).code is ResponseCode.SUCCESS
        before = live.entries
        # The same bytes get the same response, and nothing is done: deployed servers would add the value again.
        assert raw_response(client, answer) == first
        # Under another number of the request it is another message, and its challenge is gone.
        other = replace(answer, envelope=replace(answer.envelope, request_id=answer.envelope.request_id ^ 1))
        assert code_of(raw_response(client, other)) is ResponseCode.AUTHEN_TIMEOUT
        assert live.entries == before
        assert indexes(client.resolve(name)) == [1, 100]


@BOTH
def test_wrong_response_leaves_the_challenge_valid(live: Live, via: Via) -> None:
    """Its number can be guessed: a wrong response must not use it up."""
    name = f"{PREFIX}/guessed-{via.value}"
    make(live, name)
    with live.client(via, "secret") as owner, live.client(via) as stranger:
        request = owner.request(OpCode.DELETE_HANDLE, HandleRequest(name.encode()))
        challenge = owner.ask(request)
        stranger.act_as(f"301:{ADMIN}", b"a guess")
        wrong = stranger.ask(stranger.answer(challenge, request), about=request)
        assert wrong.code is ResponseCode.AUTHENTICATION_FAILED
        assert owner.ask(owner.answer(challenge, request), about=request).code is ResponseCode.SUCCESS


def test_a_challenge_may_be_answered_over_another_transport(live: Live) -> None:
    for one, other in ((Via.UDP, Via.TCP), (Via.TCP, Via.UDP)):
        name = f"{PREFIX}/from-{one.value}-to-{other.value}"
        make(live, name)
        with live.client(one, "dsa") as client:
            request, answer = answered(client, OpCode.DELETE_HANDLE, HandleRequest(name.encode()))
            client.via = other
            assert client.ask(answer, about=request).code is ResponseCode.SUCCESS


@BOTH
def test_challenge_is_bound_to_its_request(live: Live, via: Via) -> None:
    names = [f"{PREFIX}/{which}-{via.value}" for which in ("meant", "not-meant")]
    for name in names:
        make(live, name)
    before = live.entries
    with live.client(via, "rsa") as client:
        meant, other = (client.request(OpCode.DELETE_HANDLE, HandleRequest(name.encode())) for name in names)
        answer = client.answer(client.ask(meant), meant)
        challenge = client.ask(other)
        moved = replace(answer, envelope=replace(answer.envelope, session_id=challenge.message.envelope.session_id))
        assert client.ask(moved, about=other).code is ResponseCode.AUTHENTICATION_FAILED
        assert live.entries == before
        # In its place it is as good as ever.
        assert client.ask(answer, about=meant).code is ResponseCode.SUCCESS


def test_challenge_expires(minute: Live) -> None:
    live = minute
    name = f"{PREFIX}/too-late"
    make(live, name)
    with live.client(Via.TCP, "rsa") as client:
        _, answer = answered(client, OpCode.DELETE_HANDLE, HandleRequest(name.encode()))
        live.clock.show(live.clock.now() + 61)
        assert code_of(raw_response(client, answer)) in (ResponseCode.AUTHEN_TIMEOUT, ResponseCode.SESSION_TIMEOUT)
        assert indexes(client.resolve(name)) == [1, 100]


# Changes that come twice over UDP


@pytest.mark.parametrize("size", [1, 1_500], ids=["one packet", "several packets"])
def test_repeated_change_is_made_once_and_gets_the_first_response(minute: Live, size: int) -> None:
    live = minute
    with live.client(Via.UDP) as client:
        # Everybody may write this value, so nobody is challenged and nothing but the request tells attempts apart.
        writable = replace(URL, permissions=DEFAULT_PERMISSIONS | Permission.PUBLIC_WRITE)
        one, other = (
            client.request(OpCode.MODIFY_VALUE, ValuesRequest(WALL.encode(), (replace(writable, data=data),)))
            for data in (b"1" * size, b"2" * size)
        )
        before = live.entries
        found = from_several_ports(live, client, one, None)
        assert set(map(code_of, found)) == {ResponseCode.SUCCESS}
        assert len(set(found)) == 1, "by whichever worker they came"
        assert live.entries == before + 1
        assert code_of(raw_response(client, other)) is ResponseCode.SUCCESS
        # A packet that was late: executed again, it would take back what was changed since.
        assert raw_response(client, one) == found[0]
        assert data_of(client, WALL) == b"2" * size
        assert live.entries == before + 2
        live.clock.show(live.clock.now() + 61)
        assert code_of(raw_response(client, one)) is ResponseCode.SUCCESS
        assert data_of(client, WALL) == b"1" * size, "after a minute it is a request like any other"
        assert live.entries == before + 3


def data_of(client: NativeClient, name: str) -> bytes:
    """The data of a record's first value."""
    found = client.resolve(name).body
    assert isinstance(found, ResolutionResult)
    return found.values[0].data


def test_repeated_challenge_response_is_executed_once(live: Live) -> None:
    name = f"{PREFIX}/answered-again"
    with live.client(Via.UDP, "secret") as client:
        _, answer = answered(client, OpCode.CREATE_HANDLE, ValuesRequest(name.encode(), (URL,)))
        before = live.entries
        found = from_several_ports(live, client, answer, None)
        # Executed again it would be told that the name exists.
        assert set(map(code_of, found)) == {ResponseCode.SUCCESS}
        assert len(set(found)) == 1
        assert live.entries == before + 1


@pytest.mark.parametrize("flags", [DEFAULT_FLAGS, DEFAULT_FLAGS | OpFlag.ENCRYPT], ids=["clear", "encrypted"])
def test_another_attempt_in_a_session_is_the_same_request(live: Live, flags: OpFlag) -> None:
    """Deployed clients count each attempt, so its MAC differs."""
    name = f"{PREFIX}/attempts-{flags:x}"
    with live.client(Via.UDP, "dsa") as client:
        session = client.begin_session()
        assert client.create(f"{name}-first", (URL,)).code is ResponseCode.SUCCESS  # proves who it is
        request = client.request(
            OpCode.CREATE_HANDLE, ValuesRequest(name.encode(), (URL,)), flags=flags, session=session
        )
        before = live.entries
        first = client.ask(request, session)
        assert first.code is ResponseCode.SUCCESS
        again = client.client.repeat(request, session)
        assert again.credential != request.credential
        assert client.ask(again, session).code is ResponseCode.SUCCESS
        assert live.entries == before + 1
        assert len(set(from_several_ports(live, client, request, session))) == 1
        assert live.entries == before + 1
        client.end_session()


def test_repeated_session_setup_gets_the_same_session(live: Live) -> None:
    with live.client(Via.UDP, "secret") as client:
        wish = client.client.begin_session(client.identity, client.clock(), peer_version=client.version)
        frames = []
        for _ in range(3):
            (frame,) = client.exchange(wish.request)
            frames.append(frame)
        assert len(set(frames)) == 1
        client.session = client.client.finish_session(wish, client.ask(wish.request))
        assert client.create(f"{PREFIX}/wished-for", (URL,)).code is ResponseCode.SUCCESS
        client.end_session()


# Sessions


@BOTH
def test_session_request_is_valid_once_and_for_its_session(live: Live, via: Via) -> None:
    name = f"{PREFIX}/counted-{via.value}"
    with live.client(via, "rsa") as client, live.client(via, "rsa") as other:
        session, foreign = client.begin_session(), other.begin_session()
        assert client.create(name, (URL, BY_ADMINS)).code is ResponseCode.SUCCESS
        request = client.request(OpCode.ADD_VALUE, ValuesRequest(name.encode(), (ADDED,)), session=session)
        assert request.credential is not None
        before = live.entries
        # The MAC of another session, a wrong one, none.
        in_foreign = replace(request, envelope=replace(request.envelope, session_id=foreign.id))
        assert code_of(raw_response(client, in_foreign)) is ResponseCode.INVALID_SESSION_KEY
        forged = replace(request, credential=replace(request.credential, signature=bytes(32)))
        assert code_of(raw_response(client, forged)) is ResponseCode.INVALID_SESSION_KEY
        bare = replace(request, credential=None)
        bare = replace(bare, envelope=bare.envelope.with_length(len(bare.payload())))
        assert code_of(raw_response(client, bare)) is ResponseCode.INVALID_CREDENTIAL
        assert live.entries == before
        assert client.ask(request, session).code is ResponseCode.SUCCESS
        assert client.remove(name, 9).code is ResponseCode.SUCCESS
        before = live.entries
        if via is Via.TCP:
            # Over UDP it is taken for another attempt, and gets the first answer; see above.
            assert code_of(raw_response(client, request)) is ResponseCode.SESSION_MESSAGE_REJECTED
        else:
            assert code_of(raw_response(client, request)) is ResponseCode.SUCCESS
        assert live.entries == before
        client.end_session()
        other.end_session()


def test_ended_session_is_refused(live: Live) -> None:
    name = f"{PREFIX}/ended"
    with live.client(Via.TCP, "secret") as client:
        session = client.begin_session()
        assert client.create(name, (URL, BY_ADMINS)).code is ResponseCode.SUCCESS
        client.end_session()
        request = client.request(OpCode.DELETE_HANDLE, HandleRequest(name.encode()), session=session)
        assert code_of(raw_response(client, request)) is not ResponseCode.SUCCESS
        assert indexes(client.resolve(name)) == [1, 100]


def test_other_identity_in_a_session_is_valid_for_one_request(live: Live) -> None:
    with live.client(Via.TCP, "secret") as client:
        session = client.begin_session()
        client.act_as(f"300:{ADMIN}", b"not used")
        request = client.request(OpCode.RESOLUTION, Resolve(STD.encode()), flags=READ_ALL, session=session)
        challenge = client.ask(request, session)
        with live.client(Via.TCP, "rsa") as other:
            answer = other.answer(challenge, request)
        assert client.ask(answer, session, about=request).code is ResponseCode.SUCCESS, "once, for what was asked"
        again = client.request(OpCode.RESOLUTION, Resolve(STD.encode()), flags=READ_ALL, session=session)
        assert client.ask(again, session).code is ResponseCode.AUTHENTICATION_NEEDED


def test_session_ends_when_its_key_changes(live: Live) -> None:
    keeper = f"{PREFIX}/keeper"
    key = Value(300, "HS_SECKEY", b"the first secret", permissions=HIDDEN)
    with live.client(Via.TCP, "rsa") as client, live.client(Via.TCP) as owner:
        assert client.create(keeper, (key, BY_ADMINS)).code is ResponseCode.SUCCESS
        admin = Value(101, "HS_ADMIN", Admin(ValueRef(300, keeper)).to_bytes())
        name = f"{PREFIX}/kept-by-the-keeper"
        assert client.create(name, (URL, admin)).code is ResponseCode.SUCCESS
        owner.act_as(f"300:{keeper}", b"the first secret")
        owner.begin_session()
        assert owner.add(name, ADDED).code is ResponseCode.SUCCESS
        assert client.modify(keeper, replace(key, data=b"the second secret")).code is ResponseCode.SUCCESS
        refused = owner.remove(name, 9)
        assert refused.code is ResponseCode.SESSION_TIMEOUT
        assert "was changed" in text_of(refused)
        assert indexes(client.resolve(name)) == [1, 9, 101]


def test_ids_of_challenges_are_not_those_of_sessions(live: Live) -> None:
    """They share a field of the envelope, so they must not be confused."""
    with live.client(Via.TCP, "rsa") as client:
        session = client.begin_session()
        request = client.request(OpCode.DELETE_HANDLE, HandleRequest(STD.encode()))
        challenge = Envelope.from_bytes(raw_response(client, request)).session_id
        assert challenge not in (0, session.id)
        stray = replace(request, envelope=replace(request.envelope, session_id=challenge))
        assert code_of(raw_response(client, stray)) is ResponseCode.AUTHENTICATION_NEEDED, "it is no session"
        client.end_session()

"""Server state between messages: sessions, counters and pending challenges, all limited."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.errors import InvalidData
from perseid.wire.challenges import (
    MAX_CHALLENGES,
    MAX_PENDING_BYTES,
    MAX_REPLY,
    NONCE_LENGTH,
    ChallengeLimits,
    ChallengeTable,
    PendingChallenge,
)
from perseid.wire.codes import (
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    MAX_TIMEOUT,
    LocalProtocolError,
    OpCode,
    OpFlag,
    ResponseCode,
    Version,
)
from perseid.wire.message import MAX_CREDENTIAL, MAX_MESSAGE, Credential, Envelope, Header, Message, RequestDigest
from perseid.wire.sessions import (
    COUNTER_WINDOW_SIZE,
    MAX_SESSIONS,
    MAX_UNAUTHENTICATED,
    Cipher,
    CounterWindow,
    Session,
    SessionTable,
)
from tests.wire.strategies import EXAMPLES
from tests.wire.talk import NOW, SEC, Conversation, Host, frame_of, read_code, set_last_id


def session(number: int, timeout: int = 100) -> Session:
    return Session(number, bytes(32), Cipher.AES, CURRENT_VERSION, timeout=timeout)


def pending(number: int, since: float = 0.0, size: int = 100) -> PendingChallenge:
    message = Message(Envelope(), Header(OpCode.DELETE_HANDLE), bytes(size - 4))  # and the credential's length
    return PendingChallenge(number, message, bytes(NONCE_LENGTH), RequestDigest.of(message.raw, CURRENT_VERSION), since)


# Sessions


def test_least_recently_used_session_is_evicted() -> None:
    table = SessionTable(limit=3)
    for number in (1, 2, 3):
        table.add(session(number), 0.0)
    assert table.use(1, 1.0) is not None
    table.add(session(4), 2.0)
    assert len(table) == 3
    assert table.use(2, 2.0) is None
    assert all(table.use(number, 2.0) for number in (1, 3, 4))


def test_table_stores_ten_thousand_sessions() -> None:
    table = SessionTable()
    for number in range(1, MAX_SESSIONS + 2):
        table.add(one := session(number), 0.0)
        table.confirm(one)
    assert len(table) == MAX_SESSIONS == 10_000
    assert table.use(1, 0.0) is None
    assert table.use(2, 0.0) is not None


def test_flood_of_new_sessions_does_not_evict_active_ones() -> None:
    table = SessionTable()
    table.add(used := session(1), 0.0)
    table.confirm(used)
    for number in range(2, MAX_UNAUTHENTICATED + 3):
        table.add(session(number), 0.0)
    assert len(table) == 1 + MAX_UNAUTHENTICATED == 1_001
    assert table.use(2, 0.0) is None, "the oldest of the new ones went"
    assert table.use(3, 0.0) is not None
    assert table.use(1, 0.0) is used


@pytest.mark.parametrize(("idle", "is_alive"), [(100.0, True), (100.1, False)])
def test_idle_session_expires(idle: float, is_alive: bool) -> None:
    table = SessionTable()
    table.add(session(1), 10.0)
    assert (table.use(1, 10.0 + idle) is not None) is is_alive
    assert len(table) == is_alive


def test_session_can_be_ended_twice() -> None:
    table, one = SessionTable(), session(1)
    table.add(one, 0.0)
    table.end(one)
    table.end(one)
    assert table.use(1, 0.0) is None


def test_server_respects_the_session_limit() -> None:
    conversation = Conversation()
    conversation.host.server.sessions = SessionTable(limit=2)
    first, second, third = (conversation.begin_session() for _ in range(3))
    assert conversation.ask(conversation.resolve(session=first), first).code is ResponseCode.SESSION_TIMEOUT
    for other in (second, third):
        assert conversation.ask(conversation.resolve(session=other), other).code is ResponseCode.SUCCESS


def test_session_lifetime_is_at_most_one_day() -> None:
    assert MAX_TIMEOUT == 86_400


def test_sealed_message_length_is_limited() -> None:
    one = session(1)
    room = MAX_MESSAGE - 24 - 4
    for size, fits in [(room - 17, True), (room - 16, False)]:
        message = Message.build(Envelope(session_id=1), Header(OpCode.RESOLUTION), bytes(size))
        if fits:
            envelope, payload = one.seal(message, random.Random(0).randbytes)
            assert envelope.length == len(payload) == MAX_MESSAGE
            assert one.open(payload) == message.payload()
        else:
            with pytest.raises(LocalProtocolError, match="262,160 bytes"):
                one.seal(message, random.Random(0).randbytes)


# Counters


def test_counter_is_accepted_once_and_zero_always() -> None:
    window = CounterWindow()
    for counter in (0, 0, 5, 3, 4):
        assert window.is_fresh(counter)
        window.record(counter)
    for counter in (3, 4, 5):
        assert not window.is_fresh(counter)
    assert window.is_fresh(1)


def test_last_two_hundred_counters_are_remembered() -> None:
    assert COUNTER_WINDOW_SIZE == 200
    window = CounterWindow()
    for counter in range(2, COUNTER_WINDOW_SIZE + 2):
        window.record(counter)
    assert not window.is_fresh(1), "older than all that are remembered"
    window.record(300)
    assert not window.is_fresh(2)
    assert window.is_fresh(250)
    assert len(window._seen) == COUNTER_WINDOW_SIZE


@EXAMPLES
@given(st.lists(st.integers(1, 500), max_size=400))
def test_no_counter_is_accepted_twice_and_memory_is_limited(counters: list[int]) -> None:
    window, accepted = CounterWindow(), []
    for counter in counters:
        if window.is_fresh(counter):
            window.record(counter)
            accepted.append(counter)
        assert len(window._seen) <= COUNTER_WINDOW_SIZE
    assert len(accepted) == len(set(accepted))


@EXAMPLES
@given(st.integers(1, 150), st.randoms(use_true_random=False))
def test_counters_out_of_order_by_less_than_two_hundred_are_all_accepted(count: int, order: random.Random) -> None:
    counters = list(range(1, count + 1))
    order.shuffle(counters)
    window = CounterWindow()
    for counter in counters:
        assert window.is_fresh(counter)
        window.record(counter)


# Challenges


def test_oldest_challenge_is_evicted() -> None:
    table = ChallengeTable(60.0, ChallengeLimits(2))
    for number in (1, 2, 3):
        table.add(pending(number))
    assert len(table) == 2
    assert table.find(1, 0.0) is None
    assert table.find(2, 0.0) is not None


def test_challenge_is_stored_once_and_found_until_it_expires() -> None:
    table = ChallengeTable(60.0)
    first, second = pending(7), pending(7)
    table.add(first, udp=True)
    assert table.find(7, 0.0) is first
    table.add(second)
    assert table.find(7, 0.0) is second
    assert len(table) == 1
    table.settle(second, (b"reply",))
    assert second.reply == (b"reply",)
    assert table.find(8, 0.0) is None
    assert table.find(7, 61.0) is None
    assert len(table) == 0


def test_challenge_is_taken_once() -> None:
    table, one = ChallengeTable(60.0), pending(1)
    table.add(one)
    assert table.take(one, (1, b"answer"))
    assert not table.take(one, (2, b"another"))
    assert one.used_by == (1, b"answer")


def test_total_size_of_pending_requests_is_limited() -> None:
    table = ChallengeTable(60.0, ChallengeLimits(size=1000))
    for number in range(1, 11):
        table.add(pending(number))
    assert len(table) == 10
    table.add(pending(11, size=250))
    assert len(table) == 10
    assert table.find(11, 0.0) is None, "the largest goes, so that small ones survive a flood of large ones"
    assert table.find(1, 0.0) is not None


def test_untrusted_credential_is_counted_and_limited_in_size() -> None:
    message = Message.build(Envelope(), Header(OpCode.DELETE_HANDLE), b"")
    for length, fits in [(MAX_CREDENTIAL - 37, True), (MAX_CREDENTIAL - 36, False)]:
        signed = message.with_credential(Credential("HS_SIGNED", b"", bytes(length)))
        assert (len(signed.payload()) == len(message.payload()) + MAX_CREDENTIAL) is fits
        if fits:
            read = Message.from_bytes(signed.envelope, signed.payload(), 0)
            stored = PendingChallenge(1, read, b"", RequestDigest.of(b"", CURRENT_VERSION), 0.0)
            assert stored.size > MAX_CREDENTIAL
        else:
            with pytest.raises(InvalidData):
                Message.from_bytes(signed.envelope, signed.payload(), 0)


def test_table_stores_ten_thousand_challenges_and_64_mebibytes() -> None:
    assert (MAX_CHALLENGES, MAX_PENDING_BYTES) == (10_000, 64 << 20)
    table = ChallengeTable(60.0)
    for number in range(1, MAX_CHALLENGES + 2):
        table.add(pending(number, size=10))
    assert len(table) == MAX_CHALLENGES
    large = ChallengeTable(60.0)
    shared = pending(1, size=MAX_MESSAGE)
    for number in range(1, 258):
        large.add(PendingChallenge(number, shared.request, shared.nonce, shared.digest, 0.0))
    assert len(large) == 256


def test_new_challenge_with_the_same_id_replaces_the_old_one() -> None:
    table = ChallengeTable(60.0, ChallengeLimits(size=1000))
    first, second = pending(1, size=900), pending(1, size=950)
    table.add(first)
    table.add(second)
    assert table.find(1, 0.0) is second
    table.settle(first, (bytes(500),))
    assert first.reply == (), "what is gone is not settled"
    assert len(table) == 1


def test_stored_replies_count_toward_the_size_limit() -> None:
    table = ChallengeTable(60.0, ChallengeLimits(size=1000))
    first, second = pending(1, size=400), pending(2, size=400)
    table.add(first)
    table.add(second)
    table.settle(second, (bytes(150),))
    assert len(table) == 2
    assert second.size == 550
    table.settle(second, (bytes(300),))
    assert table.find(2, 0.0) is None
    assert len(table) == 1


def test_long_reply_is_not_stored() -> None:
    table = ChallengeTable(60.0)
    table.add(one := pending(1))
    table.settle(one, (bytes(MAX_REPLY),))
    assert len(one.reply) == 1
    table.add(two := pending(2))
    table.settle(two, (bytes(MAX_REPLY), b"x"))
    assert two.reply == ()


@pytest.mark.parametrize(("age", "is_alive"), [(60.0, True), (60.1, False), (-60.0, True), (-60.1, False)])
def test_challenge_expires_even_if_the_clock_moves(age: float, is_alive: bool) -> None:
    table = ChallengeTable(60.0)
    table.add(pending(1, since=100.0))
    assert (table.find(1, 100.0 + age) is not None) is is_alive
    assert len(table) == is_alive


def test_server_respects_the_challenge_limit() -> None:
    conversation = Conversation(Host())
    conversation.host.server.challenges = ChallengeTable(60.0, ChallengeLimits(2))
    requests = [conversation.create(b"1/%d" % number) for number in range(3)]
    challenges = [conversation.ask(request) for request in requests]
    codes = []
    for challenge, request in zip(challenges, requests, strict=True):
        answer = conversation.client.answer_challenge(challenge, request, SEC, b"wrong", NOW)
        codes.append(read_code(conversation.host.receive(frame_of(answer), NOW)))
    failed = ResponseCode.AUTHENTICATION_FAILED
    assert codes == [ResponseCode.SESSION_TIMEOUT, failed, failed]


def test_session_and_challenge_ids_share_a_sequence_that_wraps() -> None:
    conversation = Conversation()
    server = conversation.host.server
    one = conversation.begin_session()
    challenge = conversation.ask(conversation.create())
    assert (one.id, challenge.message.envelope.session_id) == (1, 2)
    set_last_id(server, 0x7FFF_FFFF)
    assert conversation.begin_session().id == 3, "1 and 2 are in use"
    server.sessions.end(one)
    set_last_id(server, 0x7FFF_FFFF)
    assert conversation.begin_session().id == 1


def test_counters_are_not_used_before_2_5() -> None:
    old = Session(1, bytes(8), Cipher.DES, Version(2, 4))
    message = Message.build(
        Envelope(Version(2, 4), session_id=1), Header(OpCode.DELETE_HANDLE, flags=DEFAULT_FLAGS), b""
    )
    protected = old.protect(message)
    for _ in range(3):
        old.check(protected)
    assert OpFlag.CERTIFY not in protected.header.flags

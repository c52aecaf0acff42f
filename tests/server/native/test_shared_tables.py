"""Sessions and challenges in the shared state: any process serves any client, and nothing is accepted twice."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.registry.identity import Proof
from perseid.registry.registry import Registry
from perseid.server.native.authentication import ProvenIdentity
from perseid.server.native.decisions import Busy
from perseid.server.native.server import NativeServer
from perseid.server.native.shared_tables import (
    ID_BLOCK,
    LONG_DIVISOR,
    LONG_REQUEST,
    UNPROVED_SECONDS,
    USE_INTERVAL,
    SharedChallenges,
    SharedSessions,
)
from perseid.server.state.state import MAX_EVICTIONS, Entry, SharedState, StateFull, Transaction
from perseid.wire.challenges import MAX_REPLY, NONCE_LENGTH, ChallengeLimits, PendingChallenge
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, MAX_TIMEOUT, OpCode, OpFlag, ResponseCode, default_flags
from perseid.wire.message import RequestDigest
from perseid.wire.requests import HandleRequest, ValuesRequest
from perseid.wire.server import Server, ServerSettings
from perseid.wire.sessions import COUNTER_WINDOW_SIZE, MAX_ID, Cipher, CounterWindow, Identity, Session
from tests.server.native.native_servers import (
    ADMIN,
    NEW,
    NOW,
    RSA,
    SEC,
    SITE,
    URL,
    Visitor,
    recorded_registry,
    text_of,
)
from tests.wire.key_material import SERVER_KEY

LIFE = 60.0
PLAIN = OpFlag(0)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SharedState]:
    opened = SharedState(tmp_path, 64 << 20)
    yield opened
    opened.close()


def sessions_of(state: SharedState, limit: int = 100, unproved: int = 10) -> SharedSessions:
    return SharedSessions(state, limit, unproved, lambda: NOW)


def challenges_of(
    state: SharedState, limits: ChallengeLimits | None = None, udp_limits: ChallengeLimits | None = None
) -> SharedChallenges:
    whole = ChallengeLimits()
    return SharedChallenges(state, LIFE, limits or whole, udp_limits or whole, lambda: NOW)


def worker(state: SharedState, registry: Registry, transport: Transport = Transport.TCP, seed: int = 1) -> Visitor:
    """A client of a process: all processes have their own objects and the same shared state."""
    settings = ServerSettings(SERVER_KEY, challenge_life=LIFE)
    server = Server(settings, random.Random(seed).randbytes, sessions_of(state), challenges_of(state))
    return Visitor(NativeServer(registry, server, SITE), transport, seed=seed)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with recorded_registry() as registry:
        yield registry


@pytest.fixture
def workers(state: SharedState, registry: Registry) -> tuple[Visitor, Visitor]:
    one, two = worker(state, registry), worker(state, registry)
    two.client = one.client
    return one, two


# Conversations


def create(visitor: Visitor, name: bytes, session: Session | None = None, flags: OpFlag = PLAIN) -> ResponseCode:
    body = ValuesRequest(name, (URL,))
    flags |= default_flags(OpCode.CREATE_HANDLE)
    request = visitor.request(OpCode.CREATE_HANDLE, body, flags=flags, session=session)
    return visitor.ask_as(SEC, request, session).code


@pytest.mark.parametrize("flags", [PLAIN, OpFlag.CERTIFY, OpFlag.ENCRYPT | OpFlag.CERTIFY], ids=str)
def test_session_continues_in_another_process(workers: tuple[Visitor, Visitor], flags: OpFlag) -> None:
    one, two = workers
    session = one.begin_session()
    assert create(one, NEW, session, flags) is ResponseCode.SUCCESS
    for number in range(6):
        visitor = workers[number % 2]
        count = len(visitor.served)
        assert create(visitor, NEW + b"%d" % number, session, flags) is ResponseCode.SUCCESS
        assert len(visitor.served) == count + 1, "there is no challenge"
    request = two.client.request(OpCode.SESSION_TERMINATE, HandleRequest(), NOW, session=session)
    assert two.ask(request, session).code is ResponseCode.SUCCESS
    assert len(one.native_server.server.sessions) == 0


def test_counter_is_accepted_once_by_all_processes(workers: tuple[Visitor, Visitor]) -> None:
    one, two = workers
    session = one.begin_session()
    assert create(one, NEW, session) is ResponseCode.SUCCESS
    request = one.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW + b"2", (URL,)), session=session)
    assert one.ask(request, session).code is ResponseCode.SUCCESS
    for visitor in (two, one):
        assert visitor.ask(request, session).code is ResponseCode.SESSION_MESSAGE_REJECTED


def test_challenge_is_answered_to_another_process_and_used_once(workers: tuple[Visitor, Visitor]) -> None:
    one, two = workers
    request = one.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW, (URL,)))
    answer = one.answer(one.ask(request), request, RSA)
    first = two.ask(answer, about=request)
    assert first.code is ResponseCode.SUCCESS
    assert one.ask(answer, about=request).message == first.message, "the same reply, and nothing is executed"


def test_session_ends_everywhere_when_its_key_changes(workers: tuple[Visitor, Visitor]) -> None:
    one, two = workers
    session = one.begin_session()
    assert create(one, NEW, session) is ResponseCode.SUCCESS
    secret = Value(301, "HS_SECKEY", b"another")
    body = ValuesRequest(ADMIN.encode(), (secret,))
    assert two.ask(two.request(OpCode.MODIFY_VALUE, body, session=session), session).code is ResponseCode.SUCCESS
    request = one.request(OpCode.CREATE_HANDLE, ValuesRequest(NEW + b"2", (URL,)), session=session)
    refused = one.ask(request, session)
    assert (refused.code, "was changed" in text_of(refused)) == (ResponseCode.SESSION_TIMEOUT, True)
    assert len(two.native_server.server.sessions) == 0


def test_full_state_is_a_busy_server(state: SharedState, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = worker(state, registry)

    def fail(*_: object) -> None:
        raise StateFull

    monkeypatch.setattr(state, "write", fail)
    wish = visitor.client.begin_session(SEC, visitor.now, peer_version=visitor.version)
    assert visitor.ask(wish.request).code is ResponseCode.SERVER_TOO_BUSY
    assert create(visitor, NEW) is ResponseCode.SERVER_TOO_BUSY


@pytest.mark.parametrize("allowed", range(7))
@pytest.mark.parametrize("has_session", [False, True])
def test_change_is_reported_as_made_if_the_state_is_full_after_it(
    state: SharedState, registry: Registry, monkeypatch: pytest.MonkeyPatch, has_session: bool, allowed: int
) -> None:
    visitor = worker(state, registry)
    session = visitor.begin_session() if has_session else None
    if has_session:
        assert create(visitor, NEW, session) is ResponseCode.SUCCESS
    write, left = state.write, allowed

    def fail_later(change: Callable[[Transaction], object], size: int = 0) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise StateFull
        return write(change, size)

    monkeypatch.setattr(state, "write", fail_later)
    name = NEW + b"2"
    code = create(visitor, name, session, OpFlag.CERTIFY)
    is_stored = registry.ledger.find(name) is not None
    assert code is (ResponseCode.SUCCESS if is_stored else ResponseCode.SERVER_TOO_BUSY)
    assert is_stored or allowed < 4


# Sessions


def session_at(number: int, timeout: int = 3_600) -> Session:
    identity = Identity(ADMIN.encode(), 300)
    return Session(number, bytes(32), Cipher.AES, CURRENT_VERSION, identity, timeout)


def add(
    sessions: SharedSessions, number: int, *, proved: bool = False, now: float = NOW, timeout: int = 3_600
) -> Session:
    sessions.add(session_at(number, timeout), now)
    found = sessions.use(number, now)
    assert found is not None
    if proved:
        found.proved = ProvenIdentity(ADMIN.encode(), 300, 300, Proof.SECRET_KEY, bytes(32))
        sessions.confirm(found)
    return found


def test_session_is_found_as_it_was_stored(state: SharedState) -> None:
    sessions = sessions_of(state)
    sessions.add(replace(session_at(7), identity=None, cipher=Cipher.DES), NOW)
    found = sessions.use(7, NOW)
    assert found is not None
    assert (found.id, found.key, found.cipher, found.version, found.identity, found.proved, found.timeout) == (
        (7, bytes(32), Cipher.DES, CURRENT_VERSION, None, None, 3_600)
    )
    proved = add(sessions, 8, proved=True)
    again = sessions.use(8, NOW)
    assert again is not None
    assert (again.identity, again.proved) == (Identity(ADMIN.encode(), 300), proved.proved)
    assert isinstance(again.proved, ProvenIdentity)
    assert "0000" not in repr(again), "no key is shown"


def test_unauthenticated_sessions_evict_only_each_other(state: SharedState) -> None:
    sessions = sessions_of(state, limit=3, unproved=2)
    for number in (1, 2, 3):
        add(sessions, number, proved=True, now=NOW + number)
    for number in range(10, 20):
        add(sessions, number, now=NOW + number)
    assert [number for number in range(1, 20) if sessions.use(number, NOW + 20)] == [1, 2, 3, 18, 19]
    add(sessions, 4, proved=True, now=NOW + 30)
    assert [number for number in range(1, 10) if sessions.use(number, NOW + 30)] == [2, 3, 4]


def test_least_recently_used_session_is_evicted_whatever_its_timeout(state: SharedState) -> None:
    sessions = sessions_of(state, limit=2)
    for number, timeout in ((1, MAX_TIMEOUT), (2, 600), (3, 600)):
        add(sessions, number, proved=True, now=NOW + number, timeout=timeout)
    assert [number for number in (1, 2, 3) if sessions.use(number, NOW + 4)] == [2, 3]
    assert sessions.use(3, NOW + 700) is None


def test_unauthenticated_session_ends_after_a_minute_without_use(state: SharedState) -> None:
    sessions = sessions_of(state)
    add(sessions, 1, timeout=MAX_TIMEOUT)
    assert sessions.use(1, NOW + UNPROVED_SECONDS) is not None
    found = sessions.use(1, NOW + 2 * UNPROVED_SECONDS)
    assert found is not None
    found.proved = ProvenIdentity(ADMIN.encode(), 300, 300, Proof.SECRET_KEY, bytes(32))
    add(sessions, 2, timeout=MAX_TIMEOUT)
    sessions.confirm(found)
    assert [number for number in (1, 2) if sessions.use(number, NOW + 1_000)] == [1]


def test_new_limits_apply_to_what_is_stored(state: SharedState) -> None:
    for number in range(1, 6):
        add(sessions_of(state), number, now=NOW + number)
    fewer = sessions_of(state, unproved=2)
    add(fewer, 6, now=NOW + 6)
    assert [number for number in range(1, 7) if fewer.use(number, NOW + 6)] == [5, 6]


def test_session_stays_if_there_is_no_room_for_a_change(state: SharedState) -> None:
    count = MAX_EVICTIONS * 4
    for number in range(1, count + 1):
        add(sessions_of(state), number, proved=True, now=NOW + number)
    add(sessions_of(state), count + 1, now=NOW + count + 1)
    fewer, now = sessions_of(state, limit=1), NOW + count + USE_INTERVAL
    assert fewer.use(count, now) is not None, "this use is not stored"
    assert fewer.use(count, now) is not None
    unproved = fewer.use(count + 1, now)
    assert unproved is not None
    unproved.proved = ProvenIdentity(ADMIN.encode(), 300, 300, Proof.SECRET_KEY, bytes(32))
    with pytest.raises(Busy):
        fewer.confirm(unproved)
    found = fewer.use(count + 1, now)
    assert found is not None
    assert found.proved is None


def test_challenge_is_not_taken_without_room(state: SharedState) -> None:
    table = challenges_of(state)
    for number in range(1, MAX_EVICTIONS * 4):
        table.add(pending(number))
    fewer = challenges_of(state, ChallengeLimits(2, 1 << 20))
    found = fewer.find(MAX_EVICTIONS * 4 - 1, NOW)
    assert found is not None
    with pytest.raises(Busy):
        fewer.take(found, (5, b"answer"))
    again = fewer.find(found.id, NOW)
    assert again is not None
    assert again.used_by is None


def test_use_is_written_once_a_minute_and_keeps_a_session_alive(
    state: SharedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = sessions_of(state)
    add(sessions, 1, proved=True)
    writes = 0
    write = SharedState.write

    def counted(*arguments: object) -> object:
        nonlocal writes
        writes += 1
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SharedState, "write", counted)
    for second in range(2 * USE_INTERVAL + 1):
        assert sessions.use(1, NOW + second) is not None
    assert writes == 2
    last = NOW + 2 * USE_INTERVAL
    assert sessions.use(1, last + 3_600) is not None
    assert sessions.use(1, last + 2 * 3_600 + USE_INTERVAL - 1) is not None
    assert sessions.use(1, last + 4 * 3_600) is None
    assert sessions.use(2, NOW) is None


def test_ids_are_unique_over_processes(state: SharedState) -> None:
    one, two = sessions_of(state), sessions_of(state)
    ids = [sessions.next_id() for _ in range(5) for sessions in (one, two)]
    assert len(set(ids)) == 10
    assert all(0 < number <= MAX_ID for number in ids)


def test_ids_wrap_and_skip_those_of_sessions(state: SharedState) -> None:
    taken = ID_BLOCK + 3
    sessions_of(state).add(session_at(taken), NOW)
    add(sessions_of(state), 3 * ID_BLOCK, proved=True)
    last = (MAX_ID - ID_BLOCK // 2).to_bytes(4, "big")
    table = state.table("native_ids", version=1, max_entries=1, max_bytes=1 << 17)
    assert table.put(b"last", Entry(last, 1e12))
    sessions = sessions_of(state)
    ids = [sessions.next_id() for _ in range(2 * ID_BLOCK)]
    assert ids == [*range(1, ID_BLOCK + 1), *range(3 * ID_BLOCK + 1, 4 * ID_BLOCK + 1)]


def test_ids_are_taken_in_blocks(state: SharedState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most need no change of the shared state."""
    sessions, writes = sessions_of(state), list[object]()
    write = SharedState.write

    def counted(*arguments: object) -> object:
        writes.append(arguments)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SharedState, "write", counted)
    ids = [sessions.next_id() for _ in range(2 * ID_BLOCK)]
    assert len(writes) == 2
    assert all(new == old % MAX_ID + 1 for old, new in pairwise(ids))


def test_received_counters_are_remembered_like_in_one_process(state: SharedState) -> None:
    sessions, window = sessions_of(state), CounterWindow()
    session = add(sessions, 1, proved=True)
    chance = random.Random(3)
    for step in range(1_500):
        counter = max(1, step // 2 + chance.randint(-COUNTER_WINDOW_SIZE, COUNTER_WINDOW_SIZE))
        expected = window.is_fresh(counter)
        assert session.is_fresh(counter) is expected
        assert session.take_counter(counter) is expected
        window.record(counter)


def test_sent_counters_of_processes_are_consecutive(state: SharedState) -> None:
    sessions = sessions_of(state)
    add(sessions, 1, proved=True)
    sent = []
    for number in range(1, 20):
        session = sessions.use(1, NOW)
        assert session is not None
        if number % 2:
            assert session.take_counter(number)
        sent += [session.next_counter() for _ in range(number % 3)]
    assert sent == list(range(1, 20)), "as recorded servers count"


def test_ended_session_accepts_no_counter(state: SharedState) -> None:
    sessions = sessions_of(state)
    session = add(sessions, 1, proved=True)
    sessions.end(session)
    sessions.end(session)
    assert not session.is_fresh(1)
    assert not session.take_counter(1)
    sessions.confirm(session)
    assert sessions.use(1, NOW) is None
    assert session.next_counter() == 1, "the last response in it has one"


# Challenges


def pending(number: int, size: int = 0, since: float = NOW) -> PendingChallenge:
    client = Client(lambda count: number.to_bytes(count, "big"))
    request = client.request(OpCode.DELETE_HANDLE, HandleRequest(b"1/" + b"x" * size), NOW)
    nonce = number.to_bytes(NONCE_LENGTH, "big")
    return PendingChallenge(number, request, nonce, RequestDigest.of(request.raw, CURRENT_VERSION), since)


def test_challenge_is_found_as_it_was_stored(state: SharedState) -> None:
    table, one = challenges_of(state), pending(1)
    table.add(one)
    found = table.find(1, NOW)
    assert found is not None
    assert (found.request, found.nonce, found.digest, found.since) == (one.request, one.nonce, one.digest, NOW)
    assert (found.used_by, found.reply) == (None, ())
    assert (1 in table, 2 in table, len(table)) == (True, False, 1)
    for age, is_alive in ((LIFE, False), (LIFE - 1, True), (-LIFE, True), (-LIFE - 1, False)):
        assert (table.find(1, NOW + age) is not None) is is_alive


def test_challenge_is_taken_once_by_all_processes(state: SharedState) -> None:
    one, two = challenges_of(state), challenges_of(state)
    one.add(pending(1))
    here, there = one.find(1, NOW), two.find(1, NOW)
    assert here is not None
    assert there is not None
    assert one.take(here, (5, b"answer"))
    one.settle(here, (b"reply",))
    assert not two.take(there, (6, b"other"))
    assert (there.used_by, there.reply) == ((5, b"answer"), (b"reply",))
    one.settle(here, (bytes(MAX_REPLY + 1),))
    found = two.find(1, NOW)
    assert found is not None
    assert found.reply == (b"reply",), "too long ones are not stored"
    two.add(replace(pending(1), nonce=bytes(NONCE_LENGTH)), udp=True)
    assert not one.take(here, (7, b"late")), "another challenge has its id now"
    assert len(one) == 1


@pytest.mark.parametrize(("size", "udp"), [(0, True), (LONG_REQUEST, False), (LONG_REQUEST, True)])
def test_floods_do_not_evict_short_challenges_over_tcp(state: SharedState, size: int, udp: bool) -> None:
    limits = ChallengeLimits(LONG_DIVISOR, 1 << 20)
    table = challenges_of(state, limits, limits)
    short = LONG_DIVISOR - 1
    for number in range(short):
        table.add(pending(number + 1))
    for number in range(100, 130):
        table.add(pending(number, size, NOW + number), udp=udp)
    left = 1 if size else short
    assert [number for number in range(130) if number in table] == [*range(1, short + 1), *range(130 - left, 130)]


def test_challenge_without_room_is_refused(state: SharedState) -> None:
    table = challenges_of(state, ChallengeLimits(5, 8_192))
    with pytest.raises(Busy):
        table.add(pending(1, 8_000))

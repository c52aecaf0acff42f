"""A server under load while its processes are killed, and packets that arrive late."""

import os
import random
from collections.abc import Iterator

import pytest

from perseid.records.record import Value
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.requests import ValuesRequest
from perseid.wire.responses import ResolutionResult
from perseid.wire.sessions import Session
from tests.server import crash, load
from tests.server.faults.sources import datagrams, frame_bytes
from tests.server.installations import ADMINISTRATOR, PREFIX, SECRET, copy_to
from tests.server.native.native_client import NativeClient, Serving, Via, serving

LOAD_SECONDS = float(os.environ.get("LOAD_SECONDS", "4"))
CRASH_ROUNDS = 4  # a worker, the writer, both, and the supervisor
PATIENCE = 30.0


def test_no_change_is_lost_while_processes_are_killed() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"repeat with: python -m tests.server.load --seconds {LOAD_SECONDS:.0f} --seed {seed}")
    load.run(LOAD_SECONDS, seed)


def test_nothing_is_lost_whatever_is_killed() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"repeat with: python -m tests.server.crash --rounds {CRASH_ROUNDS} --seed {seed}")
    crash.run(CRASH_ROUNDS, seed)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(copy_to(tmp_path_factory.mktemp("late"))) as running:
        yield running


def url_of(server: Serving, name: str) -> bytes:
    with NativeClient(server.native) as anybody:
        found = anybody.resolve(name, types=("URL",)).body
    assert isinstance(found, ResolutionResult)
    return found.values[0].data


def session_over_udp(server: Serving, name: str) -> tuple[NativeClient, Session]:
    """A client with a handle, and an unauthenticated session."""
    client = NativeClient(server.native, Via.UDP, timeout=PATIENCE)
    client.act_as(ADMINISTRATOR, SECRET)
    assert client.create(name, (Value.text(1, "URL", "first"),)).code is ResponseCode.SUCCESS
    return client, client.begin_session()


def sent_late(server: Serving, client: NativeClient, *attempts: bytes) -> None:
    """Send copies of earlier messages, and wait until the server has read them."""
    with datagrams("127.0.0.1", server.native) as sending:
        for raw in attempts:
            sending.send(raw)
    # What is asked now is read after them, if the same worker reads it: some port will do.
    for _ in range(8):
        client.site()


def test_late_attempt_after_a_challenge_is_not_executed_again(server: Serving) -> None:
    """The attempt has its own counter, and when it arrives the session is authenticated."""
    name = f"{PREFIX}/late-attempt"
    client, session = session_over_udp(server, name)
    body = ValuesRequest(name.encode(), (Value.text(1, "URL", "second"),))
    request = client.request(OpCode.MODIFY_VALUE, body, session=session)
    late = frame_bytes(client.client.pack(client.client.repeat(request, session), session))
    challenge = client.ask(request, session)
    assert challenge.code is ResponseCode.AUTHENTICATION_NEEDED
    assert client.ask(client.answer(challenge, request), session, about=request).code is ResponseCode.SUCCESS
    assert client.modify(name, Value.text(1, "URL", "third")).code is ResponseCode.SUCCESS
    sent_late(server, client, late)
    assert url_of(server, name) == b"third"


def test_copy_of_another_attempt_gets_the_same_response(server: Serving) -> None:
    """Its counter was used up by the attempt itself: a refusal might be all that the client receives."""
    name = f"{PREFIX}/copied-attempt"
    client, session = session_over_udp(server, name)
    assert client.modify(name, Value.text(1, "URL", "proved")).code is ResponseCode.SUCCESS
    request = client.request(
        OpCode.MODIFY_VALUE, ValuesRequest(name.encode(), (Value.text(1, "URL", "second"),)), session=session
    )
    again = client.client.repeat(request, session)
    answers = [client.ask(attempt, session).code for attempt in (request, again, again, request)]
    assert answers == [ResponseCode.SUCCESS] * 4
    assert client.modify(name, Value.text(1, "URL", "third")).code is ResponseCode.SUCCESS
    sent_late(server, client, *(frame_bytes(client.client.pack(one, session)) for one in (again, request)))
    assert url_of(server, name) == b"third"

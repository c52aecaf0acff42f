"""Responses reflected to a running server get no response, so that servers cannot be made to answer each other forever.

With forged addresses an attacker sends a server's responses to another server, or to itself. Here a socket does that.
"""

from collections.abc import Iterator

import pytest

from perseid.records.record import Value
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.fragments import packet_count, split
from perseid.wire.message import ENVELOPE_LENGTH, Envelope, Message
from perseid.wire.requests import HandleRequest, Resolve, ValuesRequest
from perseid.wire.sessions import Session
from tests.server.faults.sources import metrics
from tests.server.live_servers import (
    MANY,
    REFERRING,
    answers_before_a_signed_one,
    client_of,
    live_installation,
    over_udp,
)
from tests.server.native.native_client import NativeClient, Serving, Via, serving
from tests.server.native.native_servers import PREFIX, STD
from tests.wire.recorded import load

BIG = f"{PREFIX}/vec-big"
URL = Value.text(1, "URL", "https://example.org/")
MANY_INDEXES = tuple(range(1, 300))
"""So many that a request for them takes three packets."""

MALFORMED = [
    vector
    for vector in load("malformed.json")
    if vector.transport == "udp" and "response-as-request" not in str(vector)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(live_installation(tmp_path_factory.mktemp("reflected"))) as running:
        yield running


def packets_of(client: NativeClient, request: Message, session: Session | None = None) -> list[bytes]:
    frame = client.client.pack(request, session)
    return split(frame.envelope, frame.payload, request=True)


def requests(client: NativeClient) -> dict[str, list[bytes]]:
    """Requests that each get a different response."""

    def resolve(name: str, flags: OpFlag = DEFAULT_FLAGS, indexes: tuple[int, ...] = ()) -> list[bytes]:
        return packets_of(client, client.request(OpCode.RESOLUTION, Resolve(name.encode(), indexes), flags=flags))

    unknown = packets_of(client, client.request(OpCode.SESSION_TERMINATE, HandleRequest()))[0]
    number = (0x7000_0000).to_bytes(4, "big")
    encrypted = bytes([unknown[2] | 0x40])
    return {
        "found": resolve(STD),
        "found, in several packets": resolve(BIG),
        "found, signed": resolve(STD, DEFAULT_FLAGS | OpFlag.CERTIFY),
        "found, asked in several packets": resolve(STD, indexes=MANY_INDEXES),
        "found, asked and answered in several packets": resolve(BIG, indexes=MANY_INDEXES),
        "not found": resolve(f"{PREFIX}/absent"),
        "not here": resolve("12345.6/7"),
        "referred": resolve(f"0.NA/{REFERRING}.1"),
        "challenged": packets_of(
            client, client.request(OpCode.CREATE_HANDLE, ValuesRequest(f"{PREFIX}/new".encode(), (URL,)))
        ),
        "refused": packets_of(client, client.request(OpCode.LIST_HANDLES, HandleRequest(f"0.NA/{MANY}".encode()))),
        "site information": packets_of(client, client.request(OpCode.GET_SITE_INFO, HandleRequest())),
        "a session": packets_of(client, client.client.begin_session(None, client.clock()).request),
        "no such session": [unknown[:4] + number + unknown[8:]],
        "no such session to decrypt with": [unknown[:2] + encrypted + unknown[3:4] + number + unknown[8:]],
        **{str(vector): list(vector.request) for vector in MALFORMED},
    }


def test_reflected_responses_get_no_response(server: Serving) -> None:
    with client_of(server, Via.UDP) as client:
        answers = {kind: over_udp(server.native, packets) for kind, packets in requests(client).items()}
    codes = {
        int.from_bytes(packets[0][ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8], "big") for packets in answers.values()
    }
    assert codes >= {
        ResponseCode.SUCCESS,
        ResponseCode.ERROR,
        ResponseCode.PROTOCOL_ERROR,
        ResponseCode.HANDLE_NOT_FOUND,
        ResponseCode.SERVER_NOT_RESP,
        ResponseCode.PREFIX_REFERRAL,
        ResponseCode.AUTHENTICATION_NEEDED,
        ResponseCode.SESSION_TIMEOUT,
        ResponseCode.SESSION_FAILED,
    }
    assert len(answers["found, in several packets"]) == 3
    assert len(answers["found, asked and answered in several packets"]) == 3
    assert Envelope.from_bytes(answers["found, asked and answered in several packets"][0]).truncated
    for kind, packets in answers.items():
        assert answers_before_a_signed_one(server.native, packets) == [], kind


def test_reflected_responses_are_dropped(server: Serving) -> None:
    with client_of(server, Via.UDP) as client:
        kinds = requests(client)
        answers = [
            packet
            for kind, packets in kinds.items()
            for packet in over_udp(server.native, packets)
            if kind != "found, asked and answered in several packets"
        ]
    name = 'perseid_udp_dropped_total{reason="response"}'
    before = metrics(server).get(name, 0)
    assert answers_before_a_signed_one(server.native, answers) == []
    assert metrics(server)[name] == before + len(answers)


def test_encrypted_response_gets_one_refusal(server: Serving) -> None:
    with client_of(server, Via.UDP, "secret") as client:
        session = client.begin_session()
        flags = DEFAULT_FLAGS | OpFlag.ENCRYPT
        for name, count in ((STD, 1), (BIG, 3)):
            request = client.request(OpCode.RESOLUTION, Resolve(name.encode()), flags=flags, session=session)
            answer = over_udp(server.native, packets_of(client, request, session))
            assert Envelope.from_bytes(answer[0]).encrypted
            assert packet_count(Envelope.from_bytes(answer[0]).length) == len(answer) == count
            (refusal,) = answers_before_a_signed_one(server.native, answer)
            assert (
                int.from_bytes(refusal[ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8], "big") == ResponseCode.SESSION_FAILED
            )
            assert not Envelope.from_bytes(refusal).encrypted
            assert answers_before_a_signed_one(server.native, [refusal]) == []
        client.end_session()


def test_no_message_causes_a_loop(server: Serving) -> None:
    """Every response is sent back, and so on: it ends at once."""
    with client_of(server, Via.UDP) as client:
        kinds = requests(client)
    for kind, packets in kinds.items():
        under_way = over_udp(server.native, packets)
        turns = 0
        while under_way:
            turns += 1
            assert turns <= 2, f"{kind} goes on and on"
            under_way = answers_before_a_signed_one(server.native, under_way)


def test_response_over_tcp_is_refused_like_deployed_servers(server: Serving) -> None:
    with client_of(server) as client:
        asked = client.request(OpCode.RESOLUTION, Resolve(STD.encode()))
        (answer,) = client.exchange(asked)
        reflected = Message.from_bytes(answer.envelope, answer.payload, int(client.clock()))
        (refusal,) = client.exchange(reflected)
    assert int.from_bytes(refusal.payload[4:8], "big") == ResponseCode.ERROR

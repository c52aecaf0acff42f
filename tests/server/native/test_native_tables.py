"""Challenges issued over UDP are stored separately: a flood of them never evicts one issued over TCP."""

import pytest

from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.registry.installation.settings import Config
from perseid.server.native.authentication import Challenges, TableLimits, UnfinishedMessages
from perseid.server.native.server import NativeServer
from perseid.server.native.steps import ProtocolServer
from perseid.wire.challenges import PendingChallenge
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, OpCode, ResponseCode
from perseid.wire.message import RequestDigest
from perseid.wire.requests import HandleRequest, ValuesRequest
from perseid.wire.server import ServerSettings
from tests.server.native.native_servers import NOW, PREFIX, SITE, Visitor, make_server, recorded_registry
from tests.wire.key_material import SERVER_KEY

LIFE = 60.0


def pending(number: int, size: int = 0) -> PendingChallenge:
    client = Client(lambda count: number.to_bytes(count, "big"))
    request = client.request(OpCode.DELETE_HANDLE, HandleRequest(b"1/" + b"x" * size), NOW)
    return PendingChallenge(number, request, bytes(16), RequestDigest.of(request.raw, CURRENT_VERSION), NOW)


def issue(table: Challenges, challenge: PendingChallenge, *, udp: bool) -> None:
    table.issuing_over_udp = udp
    table.add(challenge)


def test_udp_flood_evicts_only_udp_challenges() -> None:
    table = Challenges(LIFE, TableLimits(challenges=5, udp_challenges=3))
    for number in range(1, 6):
        issue(table, pending(number), udp=False)
    for number in range(100, 200):
        issue(table, pending(number), udp=True)
    assert [number for number in range(1, 200) if number in table] == [1, 2, 3, 4, 5, 197, 198, 199]
    assert len(table) == 8
    assert len(table.over_udp) == 3


def test_udp_challenges_have_their_own_byte_limit() -> None:
    table = Challenges(LIFE, TableLimits(udp_challenge_bytes=5_000))
    issue(table, pending(1, 9_000), udp=False)
    for number in range(2, 20):
        issue(table, pending(number, 1_000), udp=True)
    assert 1 in table
    assert len(table.over_udp) == 4


def test_challenge_is_in_one_table_and_found_in_either() -> None:
    table = Challenges(LIFE, TableLimits())
    first, second = pending(7), pending(7)
    issue(table, first, udp=True)
    assert table.find(7, NOW) is first
    issue(table, second, udp=False)
    assert table.find(7, NOW) is second
    assert (len(table), len(table.over_udp)) == (1, 0)
    issue(table, first, udp=True)
    assert (len(table), len(table.over_udp)) == (1, 1)
    table.settle(first, (b"reply",))
    assert first.reply == (b"reply",)
    assert table.find(8, NOW) is None
    table.purge(NOW + LIFE + 1)
    assert len(table) == 0


@pytest.mark.parametrize("transport", [Transport.UDP, Transport.TCP])
def test_server_stores_challenges_by_transport(transport: Transport) -> None:
    with recorded_registry() as registry:
        native_server = NativeServer(registry, make_server(), SITE)
        visitor = Visitor(native_server, transport)
        body = ValuesRequest(f"{PREFIX}/new".encode(), (Value(1, "URL", b"https://example.org/"),))
        answer = visitor.ask(visitor.request(OpCode.CREATE_HANDLE, body))
        assert answer.code == ResponseCode.AUTHENTICATION_NEEDED
        assert len(native_server.server.challenges) == 1
        assert len(native_server.server.challenges.over_udp) == (transport == Transport.UDP)


def test_limits_come_from_the_settings() -> None:
    text = "[limits]\nudp_challenges = 10\nudp_challenge_octets = 70000\nsessions = 11\nunproved_sessions = 12\n"
    sizes = TableLimits.of(Config.parse(text, {}))
    assert sizes == TableLimits(10_000, 64 << 20, 10, 70_000, 11, 12)
    assert TableLimits.of(Config.parse("", {})) == TableLimits()
    server = ProtocolServer(ServerSettings(SERVER_KEY), bytes, sizes)
    assert len(server.sessions) == len(server.challenges) == 0


def test_settings_cannot_exceed_the_udp_maximum() -> None:
    for text in ("udp_challenges = 1001", "udp_challenge_octets = 16777217"):
        with pytest.raises(ValueError, match="whole number"):
            Config.parse(f"[limits]\n{text}\n", {})


def test_largest_unfinished_messages_are_evicted() -> None:
    table: UnfinishedMessages[str] = UnfinishedMessages(100)
    assert table.note("a", 60) == []
    assert table.note("b", 30) == []
    assert table.note("c", 10) == []
    assert table.note("b", 31) == ["a"]
    assert table.total == 41
    assert table.note("a", 0) == [], "it has gone already"
    assert table.note("c", 0) == []
    assert table.note("b", 101) == ["b"]
    assert table.total == 0


def test_lower_limit_applies_to_the_next_byte() -> None:
    table: UnfinishedMessages[int] = UnfinishedMessages(1_000)
    for number in range(10):
        assert table.note(number, 10 + number) == []
    table.limit = 50
    assert table.note(0, 1) == [9, 8, 7, 6, 5, 4]
    assert table.total == 1 + 11 + 12 + 13

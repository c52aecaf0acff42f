"""Limits of the state between messages: sessions, challenges by transport, and unfinished messages."""

import pytest

from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.registry.installation.settings import Config
from perseid.server.native.authentication import TableLimits, UnfinishedMessages
from perseid.server.native.server import NativeServer
from perseid.wire.challenges import ChallengeLimits, ChallengeTable, PendingChallenge
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.requests import ValuesRequest
from perseid.wire.server import Server, ServerSettings
from tests.server.native.native_servers import PREFIX, SITE, Visitor, recorded_registry
from tests.wire.key_material import SERVER_KEY


class Challenges(ChallengeTable):
    """Remembers which challenges were issued over UDP."""

    def __init__(self, life: float) -> None:
        super().__init__(life)
        self.udp: list[bool] = []

    def add(self, pending: PendingChallenge, *, udp: bool = False) -> None:
        self.udp.append(udp)
        super().add(pending, udp=udp)


@pytest.mark.parametrize("transport", [Transport.UDP, Transport.TCP])
def test_server_stores_challenges_by_transport(transport: Transport) -> None:
    with recorded_registry() as registry:
        challenges = Challenges(60.0)
        server = Server(ServerSettings(SERVER_KEY), bytes, challenges=challenges)
        visitor = Visitor(NativeServer(registry, server, SITE), transport)
        body = ValuesRequest(f"{PREFIX}/new".encode(), (Value(1, "URL", b"https://example.org/"),))
        answer = visitor.ask(visitor.request(OpCode.CREATE_HANDLE, body))
        assert answer.code == ResponseCode.AUTHENTICATION_NEEDED
        assert challenges.udp == [transport == Transport.UDP]


def test_limits_come_from_the_settings() -> None:
    text = "[limits]\nudp_challenges = 10\nudp_challenge_octets = 70000\nsessions = 11\nunproved_sessions = 12\n"
    sizes = TableLimits.of(Config.parse(text, {}))
    assert sizes == TableLimits(ChallengeLimits(10_000, 64 << 20), ChallengeLimits(10, 70_000), 11, 12)
    assert TableLimits.of(Config.parse("", {})) == TableLimits()


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

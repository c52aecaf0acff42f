"""Compatibility with the deployed server: every recorded exchange, replayed with a running `perseid serve`.

The recorded request, in the recorded state, at the recorded second, gets the recorded response: envelopes, header, body
and credential are compared field by field. `DIFFERENCES` lists what may differ, in which exchanges, and why.
`live_vectors` compares, and checks that signatures and MACs that differ are valid.
"""

import re
from collections.abc import Callable

import pytest

from perseid.records.keys import DhPublicKey
from tests.server.native.live_vectors import replay_all
from tests.server.native.recorded_answers import ABSENT, IN_WHAT_IS_SAID, LENGTHS, Difference, Found, Value
from tests.wire.recorded import WIRE_FILES, Vector, exchanges

VECTOR_FILES = WIRE_FILES
EXCHANGES = exchanges(*VECTOR_FILES)
NAMES = [str(vector) for vector in EXCHANGES]

CHALLENGES = (
    r"(admin-\w+|auth-errors|lists|mint|multipacket|prefixes):.*#1|resolve:resolve\.restricted-challenge\.(udp|tcp)"
)
CHALLENGES_IN_SESSIONS = r"session:session-(dh|client-rsa|handle-rsa)-\w+\.(udp|tcp)#2"
DIFFIE_HELLMAN = r"session:session-dh-\w+\.(udp|tcp)#1"
BY_RSA = r"session:session-(client|handle|server)-rsa-\w+\.(udp|tcp)#1"
MACED = r"session:session-(dh|client-rsa|handle-rsa)-auth\.(udp|tcp)#[2-5]"
MIRRORS = r"replication:retrieve-txn-log\.tcp"


def a_number(ours: Value, theirs: Value) -> bool:
    return isinstance(ours, int) and isinstance(theirs, int) and 0 < ours < 1 << 31


def as_long(ours: Value, theirs: Value) -> bool:
    return len(str(ours)) == len(str(theirs))


def same_group(ours: Value, theirs: Value) -> bool:
    """The number has as many bytes as it needs; the rest is the group, which the client chose."""
    if isinstance(ours, int) and isinstance(theirs, int):
        return abs(ours - theirs) < 8
    mine, recorded = bytes.fromhex(str(ours)), bytes.fromhex(str(theirs))
    keys = [DhPublicKey.from_bytes(raw[4:]) for raw in (mine, recorded)]
    return mine[:4] == recorded[:4] and (keys[0].p, keys[0].g) == (keys[1].p, keys[1].g)


def says(text: Value) -> Callable[[Value, Value], bool]:
    return lambda ours, _: ours == text


DIFFERENCES = (
    *IN_WHAT_IS_SAID,
    Difference(
        r"malformed:malformed\.response-as-request\.udp",
        r"messages",
        "over UDP what has a response code gets nothing: forged, it would have servers answer each other for ever",
        says(0),
    ),
    Difference(CHALLENGES, r"env\.sessionId", "every server counts its challenges itself", a_number),
    Difference(f"{CHALLENGES}|{CHALLENGES_IN_SESSIONS}", r"nonce", "it is drawn at random", as_long),
    Difference(DIFFIE_HELLMAN, r"(packet\[1\]\.)?env\.sessionId", "every server counts its sessions itself", a_number),
    Difference(DIFFIE_HELLMAN, rf"data(\.length)?|{LENGTHS}", "the server's half is drawn at random", same_group),
    Difference(DIFFIE_HELLMAN, r"credential\.signature", "it covers the number and the half", as_long),
    Difference(MACED, r"credential\.signature", "each session has a key and a number of its own", as_long),
    Difference(
        BY_RSA,
        r"hdr\.responseCode",
        "the recorded server was repaired to exchange keys by RSA; as deployed it fails, and ours refuses it (15.3)",
        says("501 SESSION_FAILED"),
    ),
    Difference(
        BY_RSA,
        rf"(packet\[1\]\.)?env\..*|keyExchangeMode|data(\.length)?|body\.PADDING.*|errorMessage(\.length)?|{LENGTHS}"
        r"|credential\.signature",
        "a refusal has no session, a sentence instead of a key, and needs one packet",
    ),
    Difference(
        rf"{MIRRORS}#1",
        r"hdr\.responseCode",
        "there are no mirrors yet, which ours says at once and to everybody",
        says("5 OPERATION_NOT_SUPPORTED"),
    ),
    Difference(
        rf"{MIRRORS}#1",
        rf"env\.sessionId|hdr\.opFlags|nonce.*|requestDigest.*|errorMessage(\.length)?|{LENGTHS}|credential\.signature",
        "a refusal has a sentence instead of a challenge, and no digest that was not asked for",
    ),
    Difference(
        rf"{MIRRORS}#2",
        r"hdr\.responseCode",
        "there was no challenge, so its answer belongs to nothing",
        says("500 SESSION_TIMEOUT"),
    ),
    Difference(
        rf"{MIRRORS}#2",
        rf"env\.sessionId|hdr\.opCode|keepAliveFlag|errorMessage(\.length)?|{LENGTHS}|credential\.signature",
        "such a refusal echoes the number and the operation that came",
    ),
)
"""All differences that are allowed. A test fails if one of them is no longer needed."""


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Found]]:
    """All exchanges, replayed once."""
    return replay_all(tmp_path_factory.mktemp("live-vectors"))


@pytest.mark.parametrize("vector", EXCHANGES, ids=str)
def test_recorded_request_gets_the_recorded_response(replayed: dict[str, list[Found]], vector: Vector) -> None:
    name = str(vector)
    unexplained = [found for found in replayed[name] if not any(one.covers(name, found) for one in DIFFERENCES)]
    assert not unexplained


def test_every_recorded_exchange_was_replayed(replayed: dict[str, list[Found]]) -> None:
    assert len(NAMES) == 340
    assert sorted(replayed) == sorted(NAMES)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: re.sub(r"[^a-z]+", "-", one.reason)[:40])
def test_every_allowed_difference_occurs(replayed: dict[str, list[Found]], difference: Difference) -> None:
    concerned = [name for name in NAMES if difference.concerns(name)]
    assert concerned
    unneeded = [name for name in concerned if not any(difference.covers(name, found) for found in replayed[name])]
    assert not unneeded, f"the answers are as recorded; take them out of the table: {unneeded}"


def test_unknown_difference_is_found() -> None:
    other = Found("hdr.responseCode", "2 ERROR", "1 SUCCESS")
    missing = Found("valueCount", ABSENT, 1)
    for name in NAMES:
        assert not any(one.covers(name, found) for one in DIFFERENCES for found in (other, missing))

"""Every recorded exchange against a native server: the recorded request gets the recorded response.

The server uses the recorded random values (nonces, initialization vectors, the public half of Diffie-Hellman) and
counts ids from the recorded ones, so that recorded challenge responses and whole sessions work. Everything else is
real: sessions, keys from records, permissions, the ledger. Responses are compared field by field in the words of the
recorded descriptions; `DIFFERENCES` lists which field may differ, in which exchange, and why.

A conversation depends on the earlier history of its handle. So earlier conversations about the same handle over the
same transport are replayed first, in a registry of its own.
"""

from collections import deque
from collections.abc import Iterator

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.records.site import Transport
from perseid.server.native.server import NativeServer
from perseid.wire import server as server_module
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.message import MESSAGE_LIFETIME, Message
from perseid.wire.requests import REQUEST_DECODERS, ExchangeMode
from perseid.wire.responses import Challenge, HandleList, SessionSetupResult, decode_response
from perseid.wire.server import Reply, Server, ServerSettings
from tests.server.native.native_servers import PREFIX, RECORDS, SITE, Clock, receive, recorded_registry
from tests.server.native.recorded_answers import IN_WHAT_IS_SAID, Difference, Found, compare
from tests.wire.key_material import SERVER_KEY
from tests.wire.opened import open_message
from tests.wire.recorded import NOW, Vector, conversations, frames_of
from tests.wire.recorded_sessions import RecordedHalf, session_of, setup_of
from tests.wire.talk import set_last_id

VECTOR_FILES = (
    "admin-dsa.json",
    "admin-rsa.json",
    "admin-sec.json",
    "auth-errors.json",
    "certified.json",
    "lists.json",
    "mint.json",
    "multipacket.json",
    "prefixes.json",
    "resolve.json",
    "session.json",
    "siteinfo.json",
    "verify.json",
    "versions.json",
)
CONVERSATIONS = conversations(*VECTOR_FILES)
TRANSPORTS = {"udp": Transport.UDP, "tcp": Transport.TCP}
SOURCE = "127.0.0.1"


DIFFERENCES = (
    *IN_WHAT_IS_SAID,
    Difference(
        r"session:session-(client|handle|server)-rsa-.*",
        r"setup",
        "the recorded server was repaired to exchange keys by RSA; as deployed it fails, and ours refuses it (15.3)",
    ),
)
"""All differences that are allowed; a test fails if one of them is not used."""


class Replay:
    """A server that replays recorded conversations."""

    def __init__(self, native_server: NativeServer, machine: Clock, randomness: "deque[bytes]") -> None:
        self.native_server = native_server
        self.machine = machine
        self.randomness = randomness

    def hold(self, name: str) -> list[Found]:
        """Hold a conversation; the fields that differ from the recorded ones."""
        return [difference for vector in CONVERSATIONS[name] for difference in self.exchange(vector)]

    def exchange(self, vector: Vector) -> Iterator[Found]:
        recorded = [self.prepare(vector, frame) for frame in frames_of(vector.response, vector.transport)]
        now = recorded[0].header.expires - MESSAGE_LIFETIME
        self.machine.show(now)
        (frame,) = frames_of(vector.request, vector.transport)
        setup = setup_of(frame)
        refused = setup is not None and setup.mode != ExchangeMode.DIFFIE_HELLMAN
        if refused:
            self.randomness.clear()
        served = receive(self.native_server, frame, SOURCE, now, TRANSPORTS[vector.transport])
        reply = Reply(tuple(frame for one in served for frame in one.reply.frames))
        assert not self.randomness, "the recorded server drew as much"
        messages = [open_message(vector, one.envelope, one.payload) for one in reply.frames]
        if refused and setup is not None:
            (message,) = messages
            assert message.header.response_code is ResponseCode.SESSION_FAILED
            if "session_key" in vector.keys:
                self.native_server.server.sessions.add(session_of(vector, setup), now)
            yield Found("setup", "refused", "agreed")
            return
        assert len(messages) == len(recorded)
        for ours, theirs in zip(messages, recorded, strict=True):
            yield from compare(ours, theirs)

    def prepare(self, vector: Vector, frame: Frame) -> Message:
        """Take a recorded answer apart, and let the server draw and count what the recorded one did."""
        message = open_message(vector, frame.envelope, frame.payload)
        _, body = decode_response(message, NOW)
        if isinstance(body, Challenge):
            self.randomness.append(body.nonce)
        if frame.envelope.encrypted:
            self.randomness.append(frame.payload[:16])
        if isinstance(body, Challenge | SessionSetupResult):
            # Ids of challenges and sessions are counted up; within a session the session's is used.
            set_last_id(self.native_server.server, message.envelope.session_id - 1)
        return message


def handle_of(name: str) -> bytes:
    """The handle of a conversation."""
    vector = CONVERSATIONS[name][0]
    (frame,) = frames_of(vector.request, vector.transport)
    message = Message.from_bytes(frame.envelope, frame.payload, NOW)
    return bytes(
        getattr(REQUEST_DECODERS[message.header.opcode](message.body_reader(), message.version, NOW), "handle", b"")
    )


def scene_of(name: str) -> list[str]:
    """The earlier conversations about the same handle over the same transport, and this one."""
    file, _, group = name.partition(":")
    words = set(group.split(".")) & set(TRANSPORTS)
    same = [other for other in CONVERSATIONS if other.startswith(f"{file}:") and words <= set(other.split("."))]
    if file.startswith("admin-") or file == "prefixes":
        same = [other for other in same if handle_of(other) == handle_of(name)]
        return same[: same.index(name) + 1]
    return [name]


def create_listed_names(native_server: NativeServer, name: str) -> None:
    """Create the names of a recorded list that are missing in the recorded state."""
    known = {handle.upper() for handle in RECORDS}
    requests = []
    for vector in CONVERSATIONS[name]:
        for frame in frames_of(vector.response, vector.transport):
            _, body = decode_response(Message.from_bytes(frame.envelope, frame.payload, NOW), NOW)
            for raw in body.handles if isinstance(body, HandleList) else ():
                if raw.decode().upper() not in known and raw.startswith(PREFIX.encode()):
                    draft = Draft(Action.CREATE, State.NORMAL, raw.decode(), "import", "local:alice")
                    requests.append(Append(draft))
    native_server.registry.ledger.append(*requests)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_vector_gets_the_recorded_response(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("session:session-dh"):
        half = RecordedHalf.of(CONVERSATIONS[name][0])
        monkeypatch.setattr(server_module, "generate_key_pair", half.make_key_pair)
        monkeypatch.setattr(server_module, "shared_secret", half.shared_secret)
    machine = Clock()
    machine.show(NOW)
    randomness: deque[bytes] = deque()
    with recorded_registry(machine) as registry:
        server = Server(ServerSettings(SERVER_KEY), lambda _count: randomness.popleft())
        native_server = NativeServer(registry, server, SITE)
        if name.startswith("lists:list-handles"):
            create_listed_names(native_server, name)
        run = Replay(native_server, machine, randomness)
        *before, last = scene_of(name)
        for other in before:
            run.hold(other)
        found = run.hold(last)
    unexplained = [field for field in found if not any(one.covers(name, field) for one in DIFFERENCES)]
    assert unexplained == []
    # Every difference that is allowed here is one that there is.
    for difference in DIFFERENCES:
        if difference.concerns(name):
            assert any(difference.covers(name, field) for field in found)


def test_every_allowed_difference_matches_a_vector() -> None:
    for difference in DIFFERENCES:
        assert any(difference.concerns(name) for name in CONVERSATIONS), difference

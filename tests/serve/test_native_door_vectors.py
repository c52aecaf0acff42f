"""Every recorded exchange at our door: the recorded request, in the recorded state, gets the recorded answer.

The server draws what the recorded one drew (nonces, initialisation vectors, the public half of Diffie-Hellman) and
counts ids from where it counted, so that the recorded answers to challenges, and whole sessions, go on as they did.
Everything else is ours: sessions, keys looked up in records, rights, the ledger. Answers are compared field by field in
the words of the recorded descriptions; where one may differ, `DIFFERENCES` says which field, in which exchange, why.

A conversation rests on what its handle went through before. So those that came before it in the file, about the same
handle over the same transport, are held first, in a registry of its own.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from perseid.ledger import Append
from perseid.ledger.entry import Action, Draft, State
from perseid.records.pubkey import DhPublicKey
from perseid.records.server import Transport
from perseid.serve import native_protocol
from perseid.serve.native import NativeDoor
from perseid.serve.native_protocol import NativeServer
from perseid.wire.cipher import Cipher
from perseid.wire.codes import CURRENT, OpCode, ResponseCode
from perseid.wire.exchange import DhKeyPair
from perseid.wire.framing import Frame
from perseid.wire.header import LIFETIME
from perseid.wire.message import Message
from perseid.wire.requests import REQUESTS, ExchangeMode, SessionSetup
from perseid.wire.responses import Challenge, Names, SessionReady, read_response
from perseid.wire.server import Reply, ServerSettings
from perseid.wire.sessions import Identity, Session
from tests.serve.native_doors import PREFIX, RECORDS, SITE, Clock, recorded_registry
from tests.wire.describe import describe_envelope, describe_message
from tests.wire.key_material import SERVER_KEY
from tests.wire.opened import open_message
from tests.wire.recorded import NOW, Vector, conversations, frames_of

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


Value: TypeAlias = int | str


@dataclass(frozen=True)
class Found:
    """A field in which an answer differs from the recorded one."""

    name: str
    ours: Value
    theirs: Value


@dataclass(frozen=True)
class Difference:
    """Fields in which our answer may differ from the recorded one, and why."""

    conversations: str
    fields: str
    reason: str
    alike: Callable[[Value, Value], bool] = lambda _ours, _theirs: True
    """What has to be the same all the same."""

    def covers(self, conversation: str, found: Found) -> bool:
        fits = re.fullmatch(self.conversations, conversation) and re.fullmatch(self.fields, found.name)
        return bool(fits) and self.alike(found.ours, found.theirs)


def folded(ours: Value, theirs: Value) -> bool:
    return str(ours).upper() == str(theirs).upper()


def minted(ours: Value, theirs: Value) -> bool:
    form = re.compile(r"20\.500\.99999/vec-m-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    return form.fullmatch(str(ours)) is not None is not form.fullmatch(str(theirs))


_TEXT = r"errorMessage(\.length)?|hdr\.bodyLength|env\.messageLength"

DIFFERENCES = (
    Difference(
        r"admin-.*:create-existing\..*",
        _TEXT,
        "deployed servers say nothing with 101; ours says what exists and what to do",
    ),
    Difference(
        r"admin-.*:(modify|remove)-value-missing\..*",
        _TEXT,
        "deployed servers say nothing with 200; for a change ours says which index is missing",
    ),
    Difference(
        r"admin-.*:delete-missing\..*",
        _TEXT,
        "deployed servers say nothing with 100; for a change ours says that there is no record",
    ),
    Difference(
        r"auth-errors:wrong-secret\..*",
        _TEXT,
        "deployed servers say nothing with 403; ours says that the answer was made with no key that is held here",
    ),
    Difference(
        r"auth-errors:invalid-admin\..*",
        _TEXT,
        "deployed servers say nothing with 400; ours says who lacks which permission",
    ),
    Difference(
        r"lists:list-handles\.tcp",
        r"handle\[\d+\]",
        "deployed servers list names in capitals; ours lists them as they are registered",
        folded,
    ),
    Difference(r"mint:mint\.tcp", r"handle", "the suffix is drawn at random; its form is compared", minted),
    Difference(
        r"session:session-(client|handle|server)-rsa-.*",
        r"setup",
        "the recorded server was repaired to exchange keys by RSA; as deployed it fails, and ours refuses it (15.3)",
    ),
)
"""All differences that are allowed; a test fails if one of them is not used."""


class Replay:
    """A door that lives through recorded conversations."""

    def __init__(self, door: NativeDoor, machine: Clock, randomness: "deque[bytes]") -> None:
        self.door = door
        self.machine = machine
        self.randomness = randomness

    def hold(self, name: str) -> list[Found]:
        """Hold a conversation; the fields that differ from the recorded ones."""
        return [difference for vector in CONVERSATIONS[name] for difference in self.exchange(vector)]

    def exchange(self, vector: Vector) -> Iterator[Found]:
        recorded = [self.prepare(vector, frame) for frame in frames_of(vector.response, vector.transport)]
        now = recorded[0].header.expires - LIFETIME
        self.machine.show(now)
        (frame,) = frames_of(vector.request, vector.transport)
        setup = setup_of(frame)
        refused = setup is not None and setup.mode != ExchangeMode.DIFFIE_HELLMAN
        if refused:
            self.randomness.clear()
        served = self.door.receive(frame, SOURCE, now, transport=TRANSPORTS[vector.transport])
        reply = Reply(tuple(frame for one in served for frame in one.reply.frames))
        assert not self.randomness, "the recorded server drew as much"
        messages = [open_message(vector, one.envelope, one.payload) for one in reply.frames]
        if refused and setup is not None:
            (message,) = messages
            assert message.header.response_code is ResponseCode.SESSION_FAILED
            if "session_key" in vector.keys:
                self.door.server.sessions.add(session_of(vector, setup), now)
            yield Found("setup", "refused", "agreed")
            return
        assert len(messages) == len(recorded)
        for ours, theirs in zip(messages, recorded, strict=True):
            yield from compare(ours, theirs)

    def prepare(self, vector: Vector, frame: Frame) -> Message:
        """Take a recorded answer apart, and let the server draw and count what the recorded one did."""
        message = open_message(vector, frame.envelope, frame.payload)
        _, body = read_response(message, NOW)
        if isinstance(body, Challenge):
            self.randomness.append(body.nonce)
        if frame.envelope.encrypted:
            self.randomness.append(frame.payload[:16])
        if isinstance(body, Challenge | SessionReady):
            # Ids of challenges and sessions are counted up; within a session the session's is used.
            self.door.server._last_id = message.envelope.session_id - 1
        return message


def setup_of(frame: Frame) -> SessionSetup | None:
    """The wish for a session that a frame holds, if it does."""
    if frame.envelope.encrypted:
        return None
    message = Message.from_bytes(frame.envelope, frame.payload, NOW)
    if message.header.opcode != OpCode.SESSION_SETUP:
        return None
    return SessionSetup.read(message.body_reader(), message.version, NOW)


def session_of(vector: Vector, setup: SessionSetup) -> Session:
    """The session that was agreed on by a key exchange that ours refuses; what follows does not depend on it."""
    key, cipher = bytes.fromhex(vector.keys["session_key"]), Cipher(int(vector.keys["encryption_alg"]))
    identity = Identity(setup.handle, setup.index)
    return Session(int(vector.keys["session_id"]), key, cipher, CURRENT, identity, setup.timeout)


def compare(ours: Message, theirs: Message) -> Iterator[Found]:
    """The fields in which two messages differ. There must be the same fields in the same order."""
    described = []
    for message in (ours, theirs):
        description = describe_envelope(message.envelope, 0)
        describe_message(description, message)
        described.append(description.fields)
    for mine, recorded in zip(*described, strict=True):
        assert mine.name == recorded.name
        if mine.value != recorded.value:
            yield Found(mine.name, mine.value, recorded.value)


def handle_of(name: str) -> bytes:
    """What a conversation is about."""
    vector = CONVERSATIONS[name][0]
    (frame,) = frames_of(vector.request, vector.transport)
    message = Message.from_bytes(frame.envelope, frame.payload, NOW)
    return bytes(getattr(REQUESTS[message.header.opcode](message.body_reader(), message.version, NOW), "handle", b""))


def scene_of(name: str) -> list[str]:
    """The conversations that came before about the same handle, over the same transport; and this one."""
    file, _, group = name.partition(":")
    words = set(group.split(".")) & set(TRANSPORTS)
    same = [other for other in CONVERSATIONS if other.startswith(f"{file}:") and words <= set(other.split("."))]
    if file.startswith("admin-") or file == "prefixes":
        same = [other for other in same if handle_of(other) == handle_of(name)]
        return same[: same.index(name) + 1]
    return [name]


def name_all(door: NativeDoor, name: str) -> None:
    """Make the names that a recorded list holds and the recorded state has not."""
    known = {handle.upper() for handle in RECORDS}
    requests = []
    for vector in CONVERSATIONS[name]:
        for frame in frames_of(vector.response, vector.transport):
            _, body = read_response(Message.from_bytes(frame.envelope, frame.payload, NOW), NOW)
            for octets in body.handles if isinstance(body, Names) else ():
                if octets.decode().upper() not in known and octets.startswith(PREFIX.encode()):
                    draft = Draft(Action.CREATE, State.NORMAL, octets.decode(), "import", "local:alice")
                    requests.append(Append(draft))
    door.registry.ledger.append(*requests)


def exchange_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server have the public half that was recorded; its private one is known to nobody, so is computed
    what the client computes."""
    first = CONVERSATIONS[name][0]
    (frame,) = frames_of(first.response, first.transport)
    _, ready = read_response(Message.from_bytes(frame.envelope, frame.payload, NOW), NOW)
    assert isinstance(ready, SessionReady)
    public = DhPublicKey.from_bytes(ready.data[4:])
    exponent, modulus = int(first.keys["dh_client_x"], 16), int(first.keys["dh_p"], 16)
    secret = pow(public.y, exponent, modulus).to_bytes(128, "big")
    monkeypatch.setattr(native_protocol, "make_key_pair", lambda _group, _random: DhKeyPair(public, 0))
    monkeypatch.setattr(native_protocol, "shared_secret", lambda _pair, _theirs: secret)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_vector_gets_the_recorded_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("session:session-dh"):
        exchange_keys(name, monkeypatch)
    machine = Clock()
    machine.show(NOW)
    randomness: deque[bytes] = deque()
    with recorded_registry(machine) as registry:
        server = NativeServer(ServerSettings(SERVER_KEY), lambda _count: randomness.popleft())
        door = NativeDoor(registry, server, SITE)
        if name.startswith("lists:list-handles"):
            name_all(door, name)
        run = Replay(door, machine, randomness)
        *before, last = scene_of(name)
        for other in before:
            run.hold(other)
        found = run.hold(last)
    unexplained = [field for field in found if not any(one.covers(name, field) for one in DIFFERENCES)]
    assert unexplained == []
    # Every difference that is allowed here is one that there is.
    for difference in DIFFERENCES:
        if re.fullmatch(difference.conversations, name):
            assert any(difference.covers(name, field) for field in found)


def test_every_allowed_difference_is_about_a_vector() -> None:
    for difference in DIFFERENCES:
        assert any(re.fullmatch(difference.conversations, name) for name in CONVERSATIONS), difference

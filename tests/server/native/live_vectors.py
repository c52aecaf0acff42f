"""Replay of the recorded exchanges over the network with a running server in the recorded state.

The server is a separate process: it has its own nonces, ids and key halves. Recorded requests that do not depend on
them are sent unchanged. Otherwise only the dependent parts are recomputed: challenge responses, MACs and ciphertext
under the session key, ids of sessions and challenges. The server's clock shows the second of the recording, so that
times and signatures are as recorded.
"""

import secrets
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Append
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey
from perseid.registry.installation.installation import ANSWERS_NAME, CHECKPOINT_KEY, KEYS_NAME, LEDGER_NAME, create
from perseid.registry.installation.site import SERVER_KEY as SERVER_KEY_FILE
from perseid.registry.installation.site import SITE_BINARY
from perseid.wire.challenges import answer_with_key, answer_with_secret
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, OpCode
from perseid.wire.credentials import add_mac, verify_mac, verify_signature
from perseid.wire.fragments import split
from perseid.wire.framing import Frame
from perseid.wire.message import ENVELOPE_LENGTH, MESSAGE_LIFETIME, Envelope, Message, RequestDigest
from perseid.wire.requests import ChallengeResponse, ExchangeMode, SessionSetup, encode_request
from perseid.wire.responses import Challenge, HandleList, SessionSetupResult, decode_response
from perseid.wire.sessions import Cipher, Identity, Session, derive_session_key, shared_secret
from tests.ledger.ledgers import SIGNER
from tests.server.live_servers import PATIENCE, answers_before_a_signed_one, over_udp
from tests.server.native.native_servers import MADE, PREFIX, PROOFS, RECORDS, SERVER_ADMINS, Clock, recorded_folder
from tests.server.native.recorded_answers import Found, compare, compare_packets
from tests.server.other_clocks import OtherClock
from tests.server.running import Address, serving
from tests.wire.key_material import SERVER_KEY
from tests.wire.opened import open_message
from tests.wire.recorded import NOW, WIRE_FILES, Vector, frames_of, key_file, load
from tests.wire.recorded_sessions import client_half, setup_of

HALVES: Final = ("udp", "tcp")
"""The exchanges were recorded twice, once with clients that prefer UDP and once with others, in a state that was made
good in between. So each half has a server of its own."""

WRONG_SECRETS: Final = {"wrong-secret": b"wrong", "invalid-admin": b"x"}
"""What was answered with in the conversations that fail."""

UNANSWERED: Final = frozenset(("malformed:malformed.response-as-request.udp",))
"""Exchanges in which ours says nothing; that it does not is seen without waiting."""

_SALT_AT = slice(5, 21)  # in an answer with a secret: the code, the length, then the salt


def half_of(vector: Vector) -> str:
    """The half of the recording that an exchange belongs to."""
    (half,) = set(vector.group.split(".")) & set(HALVES)
    return half


def moment_of(vector: Vector) -> int | None:
    """When an exchange was recorded: twelve hours before the response expires. None without a response."""
    frames = frames_of(vector.response, vector.transport)
    if not frames:
        return None
    return open_message(vector, frames[0].envelope, frames[0].payload).header.expires - MESSAGE_LIFETIME


def in_order(half: str) -> list[tuple[int, Vector]]:
    """The exchanges of a half with their times, in recorded order."""
    found = []
    for file in WIRE_FILES:
        moment = NOW
        for vector in load(file):
            moment = moment_of(vector) or moment
            if half_of(vector) == half:
                found.append((moment, vector))
    return sorted(found, key=lambda pair: pair[0])


# The state


def names_asked(half: str) -> set[str]:
    """The names in the exchanges of a half, in uppercase."""
    return {
        str(one.value).upper()
        for _, vector in in_order(half)
        for described in vector.described_request
        for one in described.fields
        if one.name == "handle"
    }


def names_listed() -> Iterator[str]:
    """The names of the recorded list."""
    for vector in load("lists.json"):
        for frame in frames_of(vector.response, vector.transport):
            _, body = decode_response(Message.from_bytes(frame.envelope, frame.payload, NOW), NOW)
            for raw in body.handles if isinstance(body, HandleList) else ():
                if raw.startswith(f"{PREFIX}/".encode()):
                    yield raw.decode()


def write_key(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    path.chmod(0o600)


def make_installation(folder: Path, half: str) -> Path:
    """An installation in the recorded state, with the recorded site information and server key."""
    directory = folder / "installation"
    create(directory, settings={"administrators.server": [str(one) for one in SERVER_ADMINS]}, environ={})
    for name in (SERVER_KEY_FILE, SITE_BINARY):
        write_key(directory / KEYS_NAME / name, key_file(name))
    write_key(directory / KEYS_NAME / CHECKPOINT_KEY, SIGNER.to_bytes())
    shutil.copytree(recorded_folder(), directory, dirs_exist_ok=True)
    known = names_asked(half) | {name.upper() for name in RECORDS}
    drafts = [
        Append(Draft(Action.CREATE, State.NORMAL, name, "import", "local:tests"))
        for name in names_listed()
        if name.upper() not in known
    ]
    machine = Clock()
    machine.show(MADE)
    log = Log(Store.sqlite(directory / LEDGER_NAME), machine.clock(), secrets.token_bytes)
    with Ledger(log, Answers(directory / ANSWERS_NAME)) as ledger:
        ledger.append(*drafts)
    return directory


# Over the network


def over_tcp(address: Address, raw: bytes) -> bytes:
    """Send bytes and return everything until the server closes the connection."""
    with socket.create_connection(address, PATIENCE) as stream:
        stream.sendall(raw)
        if len(raw) < ENVELOPE_LENGTH:
            stream.shutdown(socket.SHUT_WR)  # or the server would wait for the rest
        return b"".join(iter(lambda: stream.recv(65_536), b""))


class Conversation:
    """One conversation with a running server."""

    def __init__(self, address: Address, clock: OtherClock) -> None:
        self._address = address
        self._clock = clock
        self._ids: dict[int, int] = {}
        self._session: Session | None = None
        self._challenge: Challenge | None = None
        self._request = b""

    def hold(self, moment: int, vector: Vector) -> list[Found]:
        """Hold one exchange; the fields in which our answer differs from the recorded one."""
        self._clock.stop_at(moment)
        if vector.file == "malformed.json":
            pieces: list[bytes] = list(vector.request)
        else:
            frame = self._request_for(vector)
            raw = frame.envelope.to_bytes() + frame.payload
            pieces = [raw] if vector.transport == "tcp" else split(frame.envelope, frame.payload, request=True)
        if vector.transport == "tcp":
            answer: tuple[bytes, ...] = (over_tcp(self._address, b"".join(pieces)),)
        elif str(vector) in UNANSWERED:
            answer = tuple(answers_before_a_signed_one(self._address, pieces))
        else:
            answer = tuple(over_udp(self._address, pieces))
        frames = frames_of(answer, vector.transport)
        recorded = frames_of(vector.response, vector.transport)
        found = [] if len(frames) == len(recorded) else [Found("messages", len(frames), len(recorded))]
        if vector.transport == "udp":
            found += compare_packets(answer, vector.response)
        for mine, other in zip(frames, recorded, strict=False):
            found += self._compare(vector, mine, other)
        return found

    # What is sent

    def _request_for(self, vector: Vector) -> Frame:
        """The recorded request, with what depends on the other server computed anew."""
        (frame,) = frames_of(vector.request, vector.transport)
        recorded = open_message(vector, frame.envelope, frame.payload)
        opcode = recorded.header.opcode
        envelope = replace(self._mapped(recorded.envelope), encrypted=False)
        message = replace(recorded, envelope=envelope, credential=None)
        if opcode == OpCode.RESPONSE_TO_CHALLENGE and self._challenge is not None:
            message = Message.build(envelope, recorded.header, self._answer(vector, recorded))
        elif opcode != OpCode.RESPONSE_TO_CHALLENGE:
            self._request = recorded.raw
        if recorded.credential is not None:
            assert self._session is not None
            assert recorded.credential.type == "HS_MAC"
            message = add_mac(message, self._session.key, recorded.credential.counter)
        if frame.envelope.encrypted:
            assert self._session is not None
            return Frame(*self._session.seal(message, secrets.token_bytes))
        return Frame(message.envelope.with_length(len(message.payload())), message.payload())

    def _answer(self, vector: Vector, recorded: Message) -> bytes:
        """The answer to the challenge that was given now, by whom it was recorded and with the recorded salt."""
        given, challenge = ChallengeResponse.read(recorded.body_reader(), recorded.version, NOW), self._challenge
        assert challenge is not None
        digest = RequestDigest.of(self._request, CURRENT_VERSION).digest
        wrong = WRONG_SECRETS.get(vector.group.partition(".")[0])
        proof = wrong or PROOFS[Identity(given.handle, given.index)]
        if isinstance(proof, bytes):
            salt = given.answer[_SALT_AT]
            answer = answer_with_secret(proof, challenge.nonce, digest, CURRENT_VERSION, CURRENT_VERSION, salt)
        else:
            answer = answer_with_key(proof, challenge.nonce, digest, CURRENT_VERSION)
        return encode_request(replace(given, answer=answer), recorded.version)

    # What comes back

    def _compare(self, vector: Vector, frame: Frame, recorded: Frame) -> list[Found]:
        payload = frame.payload
        if frame.envelope.encrypted:
            assert self._session is not None
            payload = self._session.open(payload)
        ours = Message.from_bytes(frame.envelope, payload, NOW)
        theirs = open_message(vector, recorded.envelope, recorded.payload)
        theirs = replace(theirs, envelope=self._mapped(theirs.envelope))
        self._check_credential(ours)
        # Of what is encrypted the length follows from the rest; it is compared as that of the clear text.
        ours, theirs = (
            replace(message, envelope=message.envelope.with_length(len(message.payload())))
            for message in (ours, theirs)
        )
        found = list(compare(ours, theirs))
        self._learn(vector, ours, recorded)
        return found

    def _check_credential(self, message: Message) -> None:
        """A signature or MAC that differs from the recorded one has to be right all the same."""
        credential = message.credential
        if credential is None:
            return
        if credential.type == "HS_MAC":
            assert self._session is not None
            assert verify_mac(message, self._session.key)
        else:
            assert verify_signature(message, SERVER_KEY.public)

    def _learn(self, vector: Vector, ours: Message, recorded: Frame) -> None:
        """Keep what the server has drawn: what follows depends on it."""
        try:
            _, body = decode_response(ours, NOW)
        except InvalidData:
            return
        if isinstance(body, Challenge):
            self._challenge = body
            self._ids[recorded.envelope.session_id] = ours.envelope.session_id
        (frame,) = (
            frames_of(vector.request, vector.transport) if ours.header.opcode == OpCode.SESSION_SETUP else (None,)
        )
        setup = None if frame is None else setup_of(frame)
        if setup is None or "session_id" not in vector.keys:
            return
        if isinstance(body, SessionSetupResult) and setup.mode == ExchangeMode.DIFFIE_HELLMAN:
            self._session = agreed(vector, setup, body, ours.envelope.session_id)
        else:
            self._session = self._another_session(setup)
        self._ids[int(vector.keys["session_id"])] = self._session.id

    def _another_session(self, setup: SessionSetup) -> Session:
        """A session that is agreed on by Diffie-Hellman, where ours refuses the recorded way.

        What was recorded in the session does not depend on how it began.
        """
        client = Client(secrets.token_bytes)
        now = self._clock.now()
        identity = Identity(setup.handle, setup.index)
        wish = client.begin_session(identity, now, peer_version=CURRENT_VERSION, timeout=setup.timeout)
        (frame,) = frames_of((over_tcp(self._address, wish.request.to_bytes()),), "tcp")
        answer = client.read(frame, wish.request, now, server_key=SERVER_KEY.public)
        return client.finish_session(wish, answer)

    def _mapped(self, envelope: Envelope) -> Envelope:
        """A recorded envelope with the number that the session or challenge has here, once it is known."""
        return replace(envelope, session_id=self._ids.get(envelope.session_id, envelope.session_id))


def agreed(vector: Vector, setup: SessionSetup, ready: SessionSetupResult, session_id: int) -> Session:
    """The session of the recorded client's half and the server's current response."""
    cipher, public = Cipher(int.from_bytes(ready.data[:4], "big")), DhPublicKey.from_bytes(ready.data[4:])
    key = derive_session_key(cipher, shared_secret(client_half(vector), public))
    return Session(session_id, key, cipher, CURRENT_VERSION, Identity(setup.handle, setup.index), setup.timeout)


# Everything


def replay_all(folder: Path) -> dict[str, list[Found]]:
    """Replay every recorded exchange with running servers; return the differences of each."""
    held = {}
    for half in HALVES:
        place = folder / half
        place.mkdir()
        clock = OtherClock.make(place / "clock")
        clock.stop_at(MADE)
        with serving(make_installation(place, half), **clock.environment) as server:
            conversations: dict[tuple[str, str], Conversation] = {}
            for moment, vector in in_order(half):
                key = vector.file, vector.group
                conversation = conversations.setdefault(key, Conversation(server.native, clock))
                held[str(vector)] = conversation.hold(moment, vector)
    return held

"""The wire: any bytes give a message or a protocol error, and what was accepted is written the same again.

The first byte of the input says which target gets the rest; the seeds are the recorded exchanges. Where a signature, a
MAC or encryption would keep arbitrary bytes out, some targets put it on themselves, so that what lies behind is
reached too.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from perseid.records.binary import Reader
from perseid.records.errors import InvalidData
from perseid.records.private_keys import read_key_file
from perseid.wire import message as envelope_module
from perseid.wire import message as header_module
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import (
    CURRENT_VERSION,
    DEFAULT_FLAGS,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
)
from perseid.wire.fragments import MAX_SOURCE_BYTES, MAX_TOTAL_BYTES, Reassembler
from perseid.wire.framing import Frame, FrameReader, HttpResponseReader, unwrap_http_body
from perseid.wire.message import MAX_MESSAGE, Credential, Envelope, Header, Message
from perseid.wire.replication import (
    ChangeDate,
    DumpedPrefix,
    DumpedRecord,
    DumpEnd,
    OtherStates,
    PlainPayload,
    ServerState,
    StreamEnd,
    StreamStatus,
    StreamWriter,
    Transaction,
    TransactionAction,
    TransactionHead,
    read_buffer,
    read_dump,
    read_transactions,
    write_dump,
    write_transactions,
)
from perseid.wire.requests import (
    REQUEST_DECODERS,
    HandleRequest,
    Resolve,
    SessionSetup,
    VerifyChallenge,
    encode_request,
)
from perseid.wire.responses import Challenge, Failure, SessionSetupResult, decode_response, encode_response
from perseid.wire.server import ChallengeProof, Reply, Request, Server, ServerSettings
from perseid.wire.sessions import Cipher, Identity, Session, SessionTable

VECTORS: Final = Path(__file__).resolve().parent.parent / "tests" / "vectors"
NOW: Final = 1_794_724_100
SERVER_KEY: Final = read_key_file((VECTORS / "keys" / "privkey.bin").read_bytes(), None)
SESSION_KEY: Final = bytes(range(32))
SECRET: Final = b"secret"
OPCODES: Final = list(REQUEST_DECODERS)
CODES: Final = list(ResponseCode)


def fuzz(data: bytes) -> None:
    """Run one target with one input."""
    if data:
        _TARGETS[data[0] % len(_TARGETS)](data[1:])


def _require(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def fuzz_message(data: bytes) -> None:
    """An envelope and its payload."""
    with suppress(InvalidData):
        envelope = Envelope.from_bytes(data)
        if data[2] & 0x03 and not data[2] & 0x1C:
            _require(envelope.to_bytes() == data[: envelope_module.ENVELOPE_LENGTH], "an envelope has one form")
        payload = data[envelope_module.ENVELOPE_LENGTH :]
        message = Message.from_bytes(envelope, payload, NOW)
        _require(payload.startswith(message.raw), "header and body are kept as they came")
        written = message.payload()
        _require(payload.startswith(written) or message.raw == payload, "a message has one form")
        decode_response(message, NOW)


def fuzz_credential(data: bytes) -> None:
    """A credential."""
    with suppress(InvalidData):
        _require(Credential.from_bytes(data).to_bytes() == data, "a credential has one form")


def fuzz_request(data: bytes) -> None:
    """The body of a request: opcode, version, bytes."""
    if len(data) < 2:
        return
    opcode, version = OPCODES[data[0] % len(OPCODES)], Version(2, data[1] % 12)
    raw = data[2:]
    reader = Reader(raw)
    with suppress(InvalidData):
        body = REQUEST_DECODERS[opcode](reader, version, NOW)
        written = encode_request(body, version)
        used = raw[: reader.offset]
        if opcode == OpCode.SESSION_SETUP:
            used += b"\0\0"
        if not isinstance(body, VerifyChallenge):  # which has two forms of digest
            _require(written == used, "a request's body has one form")
        _require(REQUEST_DECODERS[opcode](Reader(written), version, NOW) == body, "what was written is read")


def fuzz_response(data: bytes) -> None:
    """The body of a response: opcode, code, flags, bytes."""
    if len(data) < 3:
        return
    opcode = OPCODES[data[0] % len(OPCODES)]
    code = ResponseCode.SUCCESS if data[1] & 1 else CODES[data[1] // 2 % len(CODES)]
    flags = OpFlag.REQUEST_DIGEST if data[2] & 1 else OpFlag(0)
    raw = data[3:]
    message = Message.build(Envelope(), Header(opcode, code, flags), raw)
    with suppress(InvalidData):
        digest, body = decode_response(message, NOW)
        written = encode_response(body, digest if flags else None)
        if isinstance(body, SessionSetupResult):
            written = written[:-2]
        old_digest = flags and raw[:1] == b"\0"
        _require(raw.startswith(written) or old_digest, "a response's body has one form")


def _frames(data: bytes) -> Iterator[Frame]:
    reader = FrameReader()
    reader.feed(data)
    return reader.frames()


def fuzz_frames(data: bytes) -> None:
    """A stream in pieces; their size is the first byte."""
    size = max(1, data[0]) if data else 1
    reader, fed = FrameReader(), 0
    with suppress(RemoteProtocolError):
        for start in range(1, len(data), size):
            piece = data[start : start + size]
            fed += len(piece)
            reader.feed(piece)
            for frame in reader.frames():
                _require(len(frame.payload) == frame.envelope.length, "a frame is as long as it says")
        _require(reader.buffered <= fed, "nothing is kept that did not come")


def fuzz_packets(data: bytes) -> None:
    """Packets of several sources: each a byte for the source, two for the length, and bytes."""
    reassembler, now, position = Reassembler(), 0.0, 0
    while position + 3 <= len(data):
        source, length = data[position] % 4, int.from_bytes(data[position + 1 : position + 3], "big") % 600
        packet = data[position + 3 : position + 3 + length]
        position += 3 + length
        now += len(packet) / 256
        with suppress(InvalidData):
            whole = reassembler.receive(source, packet, now)
            _require(whole is None or len(whole[1]) == whole[0].length, "a message is as long as it says")
        _require(reassembler.size <= min(MAX_TOTAL_BYTES, 4 * MAX_SOURCE_BYTES), "there is an end to what is kept")
    reassembler.expire(now + 6.0)
    _require(len(reassembler) == reassembler.size == 0, "everything unfinished is forgotten")


def fuzz_http(data: bytes) -> None:
    """An HTTP response, in pieces; their size is the first byte."""
    size = max(1, data[0]) if data else 1
    reader = HttpResponseReader()
    with suppress(RemoteProtocolError):
        for start in range(1, len(data), size):
            reader.feed(data[start : start + size])
        reader.feed(b"")
    with suppress(RemoteProtocolError):
        list(_frames(unwrap_http_body(data)))


class _Endpoint:
    """A server with an active session and a pending challenge, and its client."""

    def __init__(self, *, proved: bool) -> None:
        chance = random.Random(1)  # noqa: S311 - the same in every run
        sessions = SessionTable()
        self.server = Server(ServerSettings(SERVER_KEY), chance.randbytes, sessions)
        self.client = Client(chance.randbytes)
        identity = Identity(b"0.NA/1", 301)
        served = Session(1, SESSION_KEY, Cipher.AES, CURRENT_VERSION, identity, proved=identity if proved else None)
        self.session = Session(1, SESSION_KEY, Cipher.AES, CURRENT_VERSION, identity)
        sessions.add(served, NOW)
        self.request = self.client.request(OpCode.DELETE_HANDLE, HandleRequest(b"1/2"), NOW, flags=_CERTIFIED)
        sessions.last_id = 1  # the challenge has the next number
        received = self.server.receive(Frame(self.request.envelope, self.request.payload()), NOW)
        challenged = self.server.identify(received, NOW) if isinstance(received, Request) else None
        _require(isinstance(challenged, Reply), "the request is challenged")

    def receive(self, frame: Frame) -> None:
        received = self.server.receive(frame, NOW)
        if isinstance(received, ChallengeProof):
            received.check_key(SERVER_KEY.public)
            good = received.check_secret(SECRET)
            received = self.server.accept(received, received.identity, NOW) if good else received.request
        if isinstance(received, Request) and isinstance(received.body, SessionSetup):
            received = self._start_session(received)
        if isinstance(received, Request):
            found = self.server.identify(received, NOW)
            received = found if isinstance(found, Reply) else self._respond(received)
        for answer in self.server.sign(received).frames:
            _require(answer.envelope.length == len(answer.payload) <= MAX_MESSAGE, "an answer is as long as it says")

    def _start_session(self, request: Request) -> Reply:
        try:
            return self.server.begin_session(request, self.server.agree(request), NOW)
        except InvalidData as problem:
            return self.server.refuse_session(request, problem, NOW)

    def _respond(self, request: Request) -> Reply:
        return self.server.respond(request, ResponseCode.HANDLE_NOT_FOUND, Failure(), NOW)


def fuzz_server(data: bytes) -> None:
    """Arbitrary frames of a client: plain, with a MAC, or encrypted."""
    if not data:
        return
    endpoint = _Endpoint(proved=bool(data[0] & 4))
    with suppress(RemoteProtocolError):
        for frame in _frames(data[1:]):
            for variant in _variants(frame, endpoint.session, data[0] % 4):
                endpoint.receive(variant)


def fuzz_client(data: bytes) -> None:
    """Arbitrary frames of a server: plain, with a MAC, or encrypted, with or without a session."""
    if not data:
        return
    endpoint = _Endpoint(proved=False)
    session = endpoint.session if data[0] & 4 else None
    flags = _CERTIFIED if data[0] & 8 else DEFAULT_FLAGS
    request = endpoint.client.request(OpCode.RESOLUTION, Resolve(b"1/2"), NOW, flags=flags, session=session)
    with suppress(RemoteProtocolError):
        for frame in _frames(data[1:]):
            for variant in _variants(frame, endpoint.session, data[0] % 4):
                addressed = variant if data[0] & 16 else _addressed(variant, request)
                with suppress(RemoteProtocolError):
                    _use(endpoint, request, addressed, session)


def _use(endpoint: _Endpoint, request: Message, frame: Frame, session: Session | None) -> None:
    client, key = endpoint.client, SERVER_KEY.public
    answer = client.read(frame, request, NOW, server_key=key, session=session)
    _require(isinstance(answer, VerifiedResponse), "an answer comes out")
    if isinstance(answer.body, Challenge) and answer.digest is not None:
        client.answer_challenge(answer, request, Identity(b"0.NA/1", 301), b"secret", NOW)
    wish = client.begin_session(None, NOW)
    client.finish_session(wish, answer)


def _addressed(frame: Frame, request: Message) -> Frame:
    """The frame as the response to the request, so that it is not rejected at once."""
    data = bytearray(frame.envelope.to_bytes())
    data[8:12] = request.envelope.request_id.to_bytes(4, "big")
    return Frame(Envelope.from_bytes(bytes(data)), frame.payload)


def _variants(frame: Frame, session: Session, how: int) -> Iterator[Frame]:
    if how == 0 or len(frame.payload) < header_module.HEADER_LENGTH:
        yield frame
        return
    try:
        message = Message.from_bytes(frame.envelope, frame.payload, NOW)
    except InvalidData:
        yield frame
        return
    inside = Message(Envelope(session_id=1, request_id=frame.envelope.request_id), message.header, message.raw)
    protected = session.protect(inside)
    yield Frame(protected.envelope, protected.payload())
    if how > 1:
        yield Frame(*session.seal(protected if how == 3 else message, random.Random(2).randbytes))  # noqa: S311


_CERTIFIED = DEFAULT_FLAGS | OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST


def fuzz_replication(data: bytes) -> None:
    """A stream of replication; the first byte says which."""
    payload = PlainPayload(read_buffer(data[1:]))
    written = bytearray()
    with suppress(RemoteProtocolError):
        if data[:1] < b"\x80":
            format_, items = read_dump(payload)
            write_dump(StreamWriter(written.extend), format_, items)
        else:
            head, changes = read_transactions(payload)
            write_transactions(StreamWriter(written.extend), head, changes)
        _require(data[1:].startswith(bytes(written)), "a stream has one form")


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "message": fuzz_message,
    "credential": fuzz_credential,
    "request": fuzz_request,
    "response": fuzz_response,
    "frames": fuzz_frames,
    "packets": fuzz_packets,
    "http": fuzz_http,
    "server": fuzz_server,
    "client": fuzz_client,
    "replication": fuzz_replication,
}
_TARGETS = list(TARGETS.values())


def _recorded() -> Iterator[bytes]:
    """Recorded messages with envelopes: the first two of every operation and result."""
    seen: dict[bytes, int] = {}
    for path in sorted(path for path in VECTORS.glob("*.json") if not path.name.startswith(("codec-", "http"))):
        for vector in json.loads(path.read_text(encoding="utf-8")):
            for side in ("request_hex", "response_hex"):
                pieces = vector[side] if isinstance(vector[side], list) else [vector[side]]
                data = b"".join(bytes.fromhex(piece) for piece in pieces[:1])
                encrypted = data[2:3] == b"\x42"
                what = data[2:3] if encrypted else data[:3] + data[20:28]
                seen[what] = seen.get(what, 0) + 1
                if seen[what] <= 2:
                    yield data


def _seeds(target: str, data: bytes) -> Iterator[bytes]:
    """A recorded message in the input format of a target."""
    payload = data[envelope_module.ENVELOPE_LENGTH :]
    body = payload[header_module.HEADER_LENGTH :]
    opcode = OpCode(int.from_bytes(payload[:4], "big"))
    match target:
        case "message":
            yield data
        case "credential":
            yield body[-300:]
            yield body[-77:]
        case "request" if opcode in OPCODES:
            yield bytes((OPCODES.index(opcode), 11)) + body
        case "response" if opcode in OPCODES:
            yield bytes((OPCODES.index(opcode), 1, payload[9] >> 7)) + body
        case "frames":
            yield b"\7" + data
        case "packets":
            packet = data[:512]
            yield b"\1" + len(packet).to_bytes(2, "big") + packet
        case "http":
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-hdl-message\r\n"
            yield b"\x20" + head + b"Content-Length: %d\r\n\r\n" % len(data) + data
            yield b"\x20" + head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n"
        case "server" | "client":
            for how in range(0, 32, 5):
                yield bytes((how,)) + data


def _streams(data: bytes) -> Iterator[bytes]:
    """Streams of replication with a recorded message as a value."""
    state, end = ServerState(1, 2), StreamEnd(9)
    dump = (OtherStates("{}"), state, ChangeDate(b"1/x", 3, 1), DumpedRecord(b"1/x", (data,)), DumpedPrefix(b"0.NA/1"))
    change = Transaction(7, b"1/x", TransactionAction.UPDATE, 8, (data,))
    written = bytearray(b"\0")
    write_dump(StreamWriter(written.extend), 2, (*dump, DumpEnd()))
    yield bytes(written)
    written = bytearray(b"\xff")
    write_transactions(StreamWriter(written.extend), TransactionHead(1, StreamStatus.TRANSACTIONS), (change, end))
    yield bytes(written)


SEEDS: Final = [
    bytes((index,)) + seed
    for data in _recorded()
    for index, target in enumerate(TARGETS)
    for seed in (_streams(data) if target == "replication" else _seeds(target, data))
]

WORDS: Final = [
    *(b"HS_SIGNED", b"HS_MAC", b"HS_PUBKEY", b"HS_SECKEY", b"SHA-256", b"SHA1", b"HMAC-SHA256", b"DH_PUB_KEY"),
    *(opcode.to_bytes(4, "big") for opcode in OPCODES),
    *(code.to_bytes(4, "big") for code in CODES),
    *(b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\4\0\0", b"\0\4\0\1", b"\0\0\x01\xec", b"\x02\x0b\x02\x0b"),
]

"""Cost of the wire protocol: resolutions, long responses, signatures, MACs, secrets and encryption."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from perseid.records.private_keys import read_key_file
from perseid.records.record import Value
from perseid.wire.challenges import answer_with_secret, check_secret_answer
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.credentials import add_mac, sign, verify_mac, verify_signature
from perseid.wire.fragments import Reassembler
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.requests import HandleRequest, Resolve
from perseid.wire.responses import HANDLES_PER_MESSAGE, HandleList, ResolutionResult
from perseid.wire.server import Reply, Request, Server, ServerSettings
from perseid.wire.sessions import Cipher, decrypt, encrypt

NOW = 1_794_724_100
KEYS = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "keys"
SERVER_KEY = read_key_file((KEYS / "privkey.bin").read_bytes(), None)
DSA_KEY = read_key_file((KEYS / "dsapriv.bin").read_bytes(), None)
RANDOM = random.Random(1).randbytes
SESSION_KEY = bytes(range(32))
NONCE, DIGEST, SALT, SECRET = bytes(16), bytes(32), bytes(16), b"opensesame"

VALUES = (
    Value.text(1, "URL", "https://example.org/a/typical/address"),
    Value.text(4, "EMAIL", "someone@example.org"),
    Value(100, "HS_ADMIN", bytes.fromhex("0fff0000000a302e4e412f31323334350000012c")),
)
NAMES = tuple(b"20.500.99999/a-name-of-usual-length-%04d" % number for number in range(HANDLES_PER_MESSAGE))

CLIENT = Client(RANDOM)
SERVER = Server(ServerSettings(SERVER_KEY), RANDOM)


def _request(flags: OpFlag = DEFAULT_FLAGS) -> bytes:
    body = Resolve(b"20.500.99999/a-name-of-usual-length")
    return CLIENT.request(OpCode.RESOLUTION, body, NOW, flags=flags, peer_version=CURRENT_VERSION).to_bytes()


def _frames(raw: bytes) -> list[Frame]:
    reader = FrameReader()
    reader.feed(raw)
    return list(reader.frames())


def resolve(raw: bytes) -> bytes:
    """Handle one resolution, without the lookup of the record: bytes in, bytes out."""
    (frame,) = _frames(raw)
    return _answer(frame).to_stream()


def resolve_packet(packet: bytes) -> list[bytes]:
    """The same over UDP."""
    whole = Reassembler().receive("client", packet, NOW)
    if whole is None:
        raise TypeError("a whole request was fed")
    return _answer(Frame(*whole)).to_packets()


def _answer(frame: Frame) -> Reply:
    received = SERVER.receive(frame, NOW)
    if not isinstance(received, Request) or not isinstance(received.body, Resolve):
        raise TypeError("not a resolution request")
    return SERVER.respond(received, ResponseCode.SUCCESS, ResolutionResult(received.body.handle, VALUES), NOW)


def list_names() -> Reply:
    """One message of a list."""
    return SERVER.respond(_LISTED, ResponseCode.SUCCESS, HandleList(NAMES), NOW, more=True)


def _listed() -> Request:
    message = CLIENT.request(
        OpCode.LIST_HANDLES, HandleRequest(b"0.NA/20.500.99999"), NOW, peer_version=CURRENT_VERSION
    )
    (frame,) = _frames(message.to_bytes())
    received = SERVER.receive(frame, NOW)
    if not isinstance(received, Request):
        raise TypeError("a list request was fed")
    return received


_LISTED = _listed()


def benches() -> dict[str, Callable[[], object]]:
    """Return the functions to measure."""
    plain, certified = _request(), _request(DEFAULT_FLAGS | OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST)
    (answer,) = _frames(resolve(plain))
    message = CLIENT.request(
        OpCode.DELETE_HANDLE, HandleRequest(b"20.500.99999/name"), NOW, peer_version=CURRENT_VERSION
    )
    signed, dsa_signed, maced = sign(message, SERVER_KEY), sign(message, DSA_KEY), add_mac(message, SESSION_KEY, 1)
    secret_answer = answer_with_secret(SECRET, NONCE, DIGEST, CURRENT_VERSION, CURRENT_VERSION, SALT)
    sealed = encrypt(Cipher.AES, SESSION_KEY, answer.payload, CURRENT_VERSION, RANDOM)
    return {
        "resolution, bytes to bytes": partial(resolve, plain),
        "resolution, bytes to bytes, signed": partial(resolve, certified),
        "resolution, packet to packet": partial(resolve_packet, plain),
        "list, 50 names": list_names,
        "sign, RSA 2048": partial(sign, message, SERVER_KEY),
        "verify, RSA 2048": partial(verify_signature, signed, SERVER_KEY.public),
        "sign, DSA 1024": partial(sign, message, DSA_KEY),
        "verify, DSA 1024": partial(verify_signature, dsa_signed, DSA_KEY.public),
        "MAC": partial(add_mac, message, SESSION_KEY, 1),
        "verify MAC": partial(verify_mac, maced, SESSION_KEY),
        "secret-key answer, PBKDF2": partial(
            answer_with_secret, SECRET, NONCE, DIGEST, CURRENT_VERSION, CURRENT_VERSION, SALT
        ),
        "check secret-key response, PBKDF2": partial(
            check_secret_answer, SECRET, NONCE, DIGEST, secret_answer, CURRENT_VERSION
        ),
        "encrypt, AES, an answer": partial(encrypt, Cipher.AES, SESSION_KEY, answer.payload, CURRENT_VERSION, RANDOM),
        "decrypt, AES, an answer": partial(decrypt, Cipher.AES, SESSION_KEY, sealed, CURRENT_VERSION),
    }

"""Recorded conversations, decrypted with the session keys."""

from collections.abc import Iterator
from dataclasses import dataclass

from perseid.wire.message import Envelope, Message
from perseid.wire.sessions import Cipher, decrypt
from tests.wire.recorded import NOW, Vector, frames_of


@dataclass(frozen=True, slots=True)
class DecryptedExchange:
    """One exchange of a conversation: the request and its responses."""

    vector: Vector
    request: Message
    responses: tuple[Message, ...]

    @property
    def response(self) -> Message:
        """The first response."""
        return self.responses[0]


def session_key(vector: Vector) -> tuple[Cipher, bytes] | None:
    """The recorded session key of an exchange."""
    if "session_key" not in vector.keys:
        return None
    return Cipher(int(vector.keys["encryption_alg"])), bytes.fromhex(vector.keys["session_key"])


def open_message(vector: Vector, envelope: Envelope, payload: bytes) -> Message:
    """Decrypt and parse a message of an exchange."""
    if envelope.encrypted:
        key = session_key(vector)
        assert key is not None, "the exchange is encrypted, and no key was recorded"
        payload = decrypt(*key, payload, envelope.version)
    return Message.from_bytes(envelope, payload, NOW)


def decrypted_exchanges(vectors: list[Vector]) -> Iterator[DecryptedExchange]:
    """The exchanges of a conversation, in order, without those that have no answer."""
    for vector in vectors:
        requests = frames_of(vector.request, vector.transport)
        responses = frames_of(vector.response, vector.transport)
        if requests and responses:
            messages = tuple(open_message(vector, frame.envelope, frame.payload) for frame in responses)
            yield DecryptedExchange(vector, open_message(vector, requests[0].envelope, requests[0].payload), messages)

"""Keys and parameters of the recorded sessions, for servers that replay them."""

from dataclasses import dataclass

from perseid.records.keys import DhPublicKey
from perseid.wire.codes import CURRENT_VERSION, OpCode
from perseid.wire.framing import Frame
from perseid.wire.message import Message
from perseid.wire.requests import SessionSetup
from perseid.wire.responses import SessionSetupResult, decode_response
from perseid.wire.sessions import Cipher, DhKeyPair, Identity, Session
from tests.wire.recorded import NOW, Vector, frames_of


def setup_of(frame: Frame) -> SessionSetup | None:
    """The session setup request in a frame; None if there is none."""
    if frame.envelope.encrypted:
        return None
    message = Message.from_bytes(frame.envelope, frame.payload, NOW)
    if message.header.opcode != OpCode.SESSION_SETUP:
        return None
    return SessionSetup.read(message.body_reader(), message.version, NOW)


def session_of(vector: Vector, setup: SessionSetup) -> Session:
    """The recorded session, even if our server refuses its key exchange."""
    key, cipher = bytes.fromhex(vector.keys["session_key"]), Cipher(int(vector.keys["encryption_alg"]))
    identity = Identity(setup.handle, setup.index)
    return Session(int(vector.keys["session_id"]), key, cipher, CURRENT_VERSION, identity, setup.timeout)


def client_half(vector: Vector) -> DhKeyPair:
    """The client's key pair of a recorded Diffie-Hellman exchange."""
    modulus, generator = int(vector.keys["dh_p"], 16), int(vector.keys["dh_g"])
    exponent = int(vector.keys["dh_client_x"], 16)
    return DhKeyPair(DhPublicKey(pow(generator, exponent, modulus), modulus, generator), exponent)


@dataclass(frozen=True)
class RecordedHalf:
    """The server's half of a recorded Diffie-Hellman exchange.

    Its private exponent is unknown, so the shared secret is computed with the client's exponent.
    """

    public: DhPublicKey
    client: DhKeyPair

    @classmethod
    def of(cls, vector: Vector) -> "RecordedHalf":
        (frame,) = frames_of(vector.response, vector.transport)
        _, ready = decode_response(Message.from_bytes(frame.envelope, frame.payload, NOW), NOW)
        assert isinstance(ready, SessionSetupResult)
        return cls(DhPublicKey.from_bytes(ready.data[4:]), client_half(vector))

    def make_key_pair(self, *_: object) -> DhKeyPair:
        """Replace the random key pair."""
        return DhKeyPair(self.public, 0)

    def shared_secret(self, pair: DhKeyPair, theirs: DhPublicKey) -> bytes:
        assert pair.public == self.public
        assert theirs == self.client.public
        modulus = self.public.p
        return pow(self.public.y, self.client.exponent, modulus).to_bytes((modulus.bit_length() + 7) // 8, "big")

"""Recorded sessions: keys, MACs and ciphertexts of every message are recomputed."""

from dataclasses import replace

import pytest

from perseid.records.keys import DhPublicKey, RsaPublicKey
from perseid.records.private_keys import RsaPrivateKey
from perseid.wire.codes import OpCode
from perseid.wire.credentials import add_mac, verify_mac
from perseid.wire.message import Message, RequestDigest
from perseid.wire.requests import ExchangeKey, ExchangeMode, SessionSetup
from perseid.wire.responses import Challenge, SessionSetupResult, decode_response
from perseid.wire.sessions import (
    DEFAULT_GROUP,
    Cipher,
    DhKeyPair,
    decrypt,
    derive_session_key,
    encrypt,
    exchange_with_library,
    shared_secret,
)
from tests.wire.key_material import SERVER_KEY
from tests.wire.opened import DecryptedExchange, decrypted_exchanges, open_message, session_key
from tests.wire.recorded import NOW, MessageDescription, Vector, conversations, exchanges, frames_of

VECTOR_FILES = ("session.json",)
SESSIONS = conversations(*VECTOR_FILES)
EXCHANGES = exchanges(*VECTOR_FILES)


def private_key(vector: Vector, name: str) -> RsaPrivateKey:
    return RsaPrivateKey.from_pkcs8(bytes.fromhex(vector.keys[name]))


# Key exchange


@pytest.mark.parametrize("name", SESSIONS)
def test_session_vector_keys_match(name: str) -> None:
    steps = list(decrypted_exchanges(SESSIONS[name]))
    first = steps[0]
    setup = SessionSetup.read(first.request.body_reader(), first.request.version, NOW)
    digest, ready = decode_response(first.response, NOW)
    assert digest == RequestDigest.of(first.request.raw, first.response.version)
    assert isinstance(ready, SessionSetupResult)
    assert ready.mode == setup.mode
    match setup.mode:
        case ExchangeMode.DIFFIE_HELLMAN:
            check_diffie_hellman(first, setup, ready)
        case ExchangeMode.CLIENT_KEY:
            assert RsaPublicKey.from_bytes(setup.public_key).to_bytes() == setup.public_key
            assert private_key(first.vector, "client_rsa_priv_pkcs8").public.to_bytes() == setup.public_key
        case ExchangeMode.HANDLE_KEY:
            assert setup.key_handle
        case ExchangeMode.SERVER_KEY:
            check_server_key(steps, ready)
        case mode:
            pytest.fail(f"nothing exercises {mode}")


def check_diffie_hellman(step: DecryptedExchange, setup: SessionSetup, ready: SessionSetupResult) -> None:
    keys = step.vector.keys
    assert (int(keys["dh_p"], 16), int(keys["dh_g"], 16)) == DEFAULT_GROUP
    exponent = int(keys["dh_client_x"], 16)
    mine, theirs = DhPublicKey.from_bytes(setup.public_key), DhPublicKey.from_bytes(ready.data[4:])
    assert mine.to_bytes() == setup.public_key
    assert theirs.to_bytes() == ready.data[4:]
    assert (mine.p, mine.g) == (theirs.p, theirs.g) == DEFAULT_GROUP
    assert mine.y == pow(mine.g, exponent, mine.p)
    cipher, shared = Cipher(ready.data[3]), shared_secret(DhKeyPair(mine, exponent), theirs)
    assert exchange_with_library(DhKeyPair(mine, exponent), theirs) == shared
    assert (cipher, derive_session_key(cipher, shared)) == session_key(step.vector)


def check_server_key(steps: list[DecryptedExchange], ready: SessionSetupResult) -> None:
    key = private_key(steps[0].vector, "server_priv_pkcs8")
    assert key == SERVER_KEY
    assert key.public.to_bytes() == ready.data
    for step in steps[1:]:
        assert step.request.header.opcode == OpCode.SESSION_EXCHANGEKEY
        body = ExchangeKey.read(step.request.body_reader(), step.request.version, NOW)
        assert len(body.encrypted_key) * 8 == key.public.bits


# Messages


@pytest.mark.parametrize("vector", EXCHANGES, ids=str)
def test_session_vector_messages_match(vector: Vector) -> None:
    for pieces, described in (
        (vector.request, vector.described_request),
        (vector.response, vector.described_response),
    ):
        for frame, description in zip(frames_of(pieces, vector.transport), described, strict=True):
            if frame.envelope.encrypted:
                check_encryption(vector, frame.envelope.version.minor, frame.payload, description)
            check_mac(vector, open_message(vector, frame.envelope, frame.payload))


def check_encryption(vector: Vector, minor: int, payload: bytes, description: MessageDescription) -> None:
    assert minor == 11
    key = session_key(vector)
    assert key is not None
    version = frames_of(vector.request, vector.transport)[0].envelope.version
    plain = decrypt(*key, payload, version)
    assert plain == description.decrypted
    assert encrypt(*key, plain, version, lambda count: payload[:count]) == payload


def check_mac(vector: Vector, message: Message) -> None:
    credential = message.credential
    if credential is None or credential.type != "HS_MAC":
        return
    key = session_key(vector)
    assert key is not None
    assert message.envelope.session_id == int(vector.keys["session_id"])
    assert verify_mac(message, key[1])
    # For an encrypted message the envelope's length is that of the ciphertext.
    again = add_mac(replace(message, credential=None), key[1], credential.counter)
    assert (again.raw, again.credential) == (message.raw, message.credential)


def test_session_vector_counters_increase() -> None:
    for vectors in SESSIONS.values():
        sent: list[int] = []
        received: list[int] = []
        for step in decrypted_exchanges(vectors):
            for message, counters in ((step.request, sent), *((answer, received) for answer in step.responses)):
                if message.credential is not None and message.credential.type == "HS_MAC":
                    counters.append(message.credential.counter)
        assert sent == list(range(1, len(sent) + 1))
        assert received == list(range(1, len(received) + 1))


def test_session_vector_digests_match() -> None:
    """Including encrypted messages and challenged requests."""
    for vectors in SESSIONS.values():
        challenged: Message | None = None
        for step in decrypted_exchanges(vectors):
            digest, body = decode_response(step.response, NOW)
            about = step.request
            if about.header.opcode == OpCode.RESPONSE_TO_CHALLENGE:
                assert challenged is not None
                about = challenged
            if digest is not None:
                assert digest.matches(about.raw)
            if isinstance(body, Challenge):
                challenged = step.request


def test_session_vectors_have_many_macs_and_ciphertexts() -> None:
    encrypted = [vector for vector in EXCHANGES if frames_of(vector.request, vector.transport)[0].envelope.encrypted]
    assert len(encrypted) > 20
    assert {vector.group for vector in encrypted} == {
        vector.group for vector in EXCHANGES if "-enc." in vector.name
    } - {
        "session-server-rsa-enc.udp",
        "session-server-rsa-enc.tcp",
    }

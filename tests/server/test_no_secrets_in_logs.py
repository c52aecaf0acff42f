"""Planted secrets over a whole session, and texts that would break out of their line: what the logs contain.

A server with full logging, in both formats, is used in every way that involves a secret. No secret may appear in the
log, on the metrics page, on a command line, or in an error response.
"""

import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from perseid.records.private_keys import read_key_file, write_key_file
from perseid.records.record import Permission, Value
from perseid.server.observe.logs import decode_text, escape_text
from perseid.wire.codes import OpCode, OpFlag, RemoteProtocolError, ResponseCode, default_flags
from perseid.wire.framing import Frame
from perseid.wire.message import Message
from perseid.wire.requests import ChallengeResponse, HandleRequest, ValuesRequest, VerifyChallenge
from perseid.wire.responses import Challenge, ResolutionResult
from perseid.wire.sessions import Session
from tests.server.faults.machine import PROC, eventually, named
from tests.server.faults.sources import SourceClient, connected, datagrams, frame_bytes, metrics_page, read_frames
from tests.server.installations import ADMINISTRATOR, NAMES, PREFIX, SECRET, copy_to
from tests.server.native.native_client import Frames, Serving, Via, serving
from tests.server.running import DEFAULTS, serve_command

PASSPHRASE = "the-passphrase-of-the-server-key"
OTHER_SECRET = b"another-secret-in-a-new-record"
BINARY_SECRET = bytes(range(0xC0, 0xE0))
PRIVATE_TEXT = b"what only administrators may read"
SEEN_BY_ADMINISTRATORS = Permission.ADMIN_READ | Permission.ADMIN_WRITE

LOUD = {
    "PERSEID_LOG_LEVEL": "debug",
    "PERSEID_LOG_ACCESS": "true",
    "PERSEID_LOG_ACCESS_UDP": "true",
    "PERSEID_KEYS_PASSPHRASE": PASSPHRASE,
}
FORMATS = pytest.mark.parametrize("form", ["text", "json"])


def protected(directory: Path) -> Path:
    """An installation whose server key has a passphrase."""
    path = directory / "keys" / "privkey.bin"
    key = read_key_file(path.read_bytes(), None)
    path.write_bytes(write_key_file(key, PASSPHRASE.encode(), os.urandom))
    return directory


class Spy(SourceClient):
    """A client that records all secrets it sends, and all responses that are not a success."""

    def __init__(self, server: Serving, via: Via) -> None:
        super().__init__(server.native, "127.0.0.1", via)
        self.secrets: list[bytes] = []
        self.refusals: list[bytes] = []

    def exchange(self, request: Message, session: Session | None = None) -> Frames:
        if request.credential is not None:
            self.secrets.append(request.credential.signature)
        if session is not None:
            self.secrets.append(session.key)
        with closing(super().exchange(request, session)) as frames:
            for frame in frames:
                self.log_request(frame)
                yield frame

    def answer(self, challenge: object, request: Message) -> Message:
        answered = super().answer(challenge, request)  # type: ignore[arg-type]
        self.secrets.append(ChallengeResponse.read(answered.body_reader(), answered.version, 0).answer[-20:])
        return answered

    def log_request(self, frame: Frame) -> None:
        if frame.payload[4:8] != ResponseCode.SUCCESS.to_bytes(4, "big"):
            self.refusals.append(frame.payload)


def use(server: Serving, via: Via) -> tuple[list[bytes], list[bytes]]:
    """A whole session with every possible error; return the secrets sent, and the refusals."""
    name = f"{PREFIX}/planted-{via.value}"
    values = (
        Value.text(1, "URL", "https://example.org/"),
        Value(2, "HS_SECKEY", OTHER_SECRET, permissions=SEEN_BY_ADMINISTRATORS),
        Value(3, "HS_SECKEY", BINARY_SECRET, permissions=SEEN_BY_ADMINISTRATORS),
        Value(4, "NOTE", PRIVATE_TEXT, permissions=SEEN_BY_ADMINISTRATORS),
    )
    everything = default_flags(OpCode.RESOLUTION) & ~OpFlag.PUBLIC_ONLY
    with Spy(server, via) as client:
        client.act_as(ADMINISTRATOR, "a-wrong-secret-that-somebody-typed")
        assert client.create(name, values[:1]).code is ResponseCode.AUTHENTICATION_FAILED
        client.act_as(ADMINISTRATOR, SECRET)
        assert client.create(name, values).code is ResponseCode.SUCCESS, "with a challenge"
        assert client.create(name, values).code is ResponseCode.HANDLE_ALREADY_EXISTS
        session = client.begin_session()
        seen = client.resolve(name, flags=everything | OpFlag.ENCRYPT)
        assert isinstance(seen.body, ResolutionResult)
        assert {PRIVATE_TEXT, OTHER_SECRET} <= {value.data for value in seen.body.values}
        assert client.modify(name, values[3]).code is ResponseCode.SUCCESS, "encrypted, for its value is private"
        assert client.add(name, values[2]).code is ResponseCode.VALUE_ALREADY_EXISTS

        # A MAC that does not verify, a counter that was used, ciphertext that was altered.
        request = client.request(OpCode.MODIFY_VALUE, ValuesRequest(name.encode(), values[:1]), session=session)
        forged = replace(session, key=os.urandom(len(session.key)))
        assert client.ask(forged.protect(request)).code is ResponseCode.INVALID_SESSION_KEY
        sealed = frame_bytes(
            client.client.pack(client.request(OpCode.ADD_VALUE, ValuesRequest(name.encode(), values)), session)
        )
        _send(client, sealed[:60] + bytes([sealed[60] ^ 1]) + sealed[61:])
        # A proof for another server, and a proof of a kind that nobody knows, with a secret where it should not be.
        challenge = VerifyChallenge(b"0.NA/12345", 300, bytes(16), bytes(32), b"\x22" + OTHER_SECRET)
        client.session = None
        client.do(OpCode.VERIFY_CHALLENGE, challenge)
        request = client.request(OpCode.DELETE_HANDLE, HandleRequest(name.encode()))
        first = client.ask(request)
        assert isinstance(first.body, Challenge)
        raw = frame_bytes(client.client.pack(client.answer(first, request), None))
        _send(client, raw.replace(b"HS_SECKEY", b"HS_\nSECK"))
        # A message that ends in the middle of a secret.
        cut = client.packed(OpCode.CREATE_HANDLE, ValuesRequest(name.encode(), values[1:]))
        _send(client, cut[:16] + (len(cut) - 60).to_bytes(4, "big") + cut[20:-40])
        client.session = session
        assert client.delete(name).code is ResponseCode.SUCCESS
        client.end_session()
        return client.secrets, client.refusals


def _send(client: Spy, raw: bytes) -> None:
    """Send invalid data, and record the response."""
    if client.via is Via.UDP:
        with datagrams(client.host, client.address) as sending:
            sending.send(raw[:512])
            sending.settimeout(10.0)
            packet = sending.recv(600)
            client.refusals.append(packet)
    else:
        with connected(client.host, client.address) as connection:
            connection.sendall(raw)
            connection.shutdown(1)
            client.refusals += [frame.payload for frame in read_frames(connection, 1)]


def forms(secret: bytes) -> Iterator[bytes]:
    """Common encodings of data."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield secret.hex(" ").encode()
    yield repr(secret)[2:-1].encode()
    yield escape_text(decode_text(secret), 10_000).encode()
    yield json.dumps(secret.decode("latin-1"))[1:-1].encode()
    for before in range(3):  # base64 of something that has the secret in it: at one of three places
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(before) + secret)[4:].rstrip(b"=")[:-1]


def assert_hidden(secrets: list[bytes], places: dict[str, bytes]) -> None:
    for secret in secrets:
        assert len(secret) >= 16, "shorter ones would be found by chance"
        for form in forms(secret):
            for place, raw in places.items():
                assert form not in raw, f"{form!r} is in {place}"


def test_search_finds_encoded_secrets() -> None:
    for secret in (OTHER_SECRET, BINARY_SECRET):
        told = [b"key=" + secret, secret.hex().encode(), base64.b64encode(b"MAC" + secret), repr([secret]).encode()]
        told += [base64.b64encode(b"a" + secret + b"behind"), escape_text(decode_text(b"x " + secret)).encode()]
        for raw in told:
            with pytest.raises(AssertionError, match="is in a line"):
                assert_hidden([secret], {"a line": raw})


# What is asked for by somebody who would like to write into the log.
NASTY = [
    b"a\n2026-01-01T00:00:00.000Z INFO worker-0 access transport=tcp code=SUCCESS",
    b"a\r\nb\tc",
    b"\x1b[2J\x1b]0;title\x07",
    b"nul\0and del\x7f",
    "bidi \u202egnp.exe\u2066 \u200f".encode(),
    "lines \u2028 and \u0085 and \u000b".encode(),
    b"no utf-8 \xff\xfe \xc3\x28",
    b'quotes " and \\ and \',"code":"SUCCESS"}',
    b"<b>&amp;%s %(name)s {0}",
    b"\xf0\x9f\x98\x80 \xed\xa0\x80",
    b"",
    b"x" * 400,
]


def send_hostile_names(server: Serving) -> int:
    """Resolve names that would break out of a line, over TCP and UDP; return the number of requests of each."""
    handles = [f"{PREFIX}/".encode() + name for name in NASTY] + [b"0.na/" + name for name in NASTY]
    for via in (Via.TCP, Via.UDP):
        with SourceClient(server.native, "127.0.0.1", via) as client:
            for handle in handles:
                with suppress(RemoteProtocolError):  # what is no name is perhaps no request either
                    assert client.resolve(handle).code is not ResponseCode.SUCCESS
    return len(handles)


FIELD = re.compile(r'([a-z]+)=("(?:[^"\\]|\\.)*"|[^ "]+)')
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [a-z]+(-\d+)? .+")


def fields_of(line: str, form: str) -> dict[str, str]:
    """The fields of a line, after a check that it is one complete line."""
    assert line.isprintable(), line
    if form == "json":
        found: dict[str, str] = json.loads(line)
        assert {"time", "level", "process", "message"} <= found.keys()
        return found
    assert LINE.fullmatch(line), line
    return dict(FIELD.findall(line))


@FORMATS
def test_no_secret_is_logged_and_no_line_is_forged(tmp_path: Path, form: str) -> None:
    directory = protected(copy_to(tmp_path))
    key = read_key_file((directory / "keys" / "privkey.bin").read_bytes(), PASSPHRASE.encode())
    plain = key.to_bytes()[-256:]  # the private part stands at the end
    secrets = [PASSPHRASE.encode(), SECRET.encode(), OTHER_SECRET, BINARY_SECRET, PRIVATE_TEXT]
    secrets += [plain[at : at + 32] for at in range(0, len(plain) - 31, 32)]
    with serving(directory, PERSEID_LOG_FORMAT=form, **LOUD) as server:
        refusals: list[bytes] = []
        for via in Via:
            sent, refused = use(server, via)
            secrets += sent
            refusals += refused
        assert len(refusals) > 10
        asked = send_hostile_names(server)
        os.kill(server.pid, signal.SIGHUP)
        eventually(lambda: "were reloaded" in server.errors, "a line about the settings")

        def accesses() -> list[dict[str, str]]:
            lines = [fields_of(line, form) for line in server.errors.splitlines()]
            return [fields for fields in lines if fields.get("operation") == "RESOLUTION"]

        def over(transport: str) -> int:
            return len([fields for fields in accesses() if fields["transport"] == transport])

        with SourceClient(server.native, "127.0.0.1") as client:
            for number in range(NAMES):
                assert client.resolve(f"{PREFIX}/n{number}").code is ResponseCode.SUCCESS
        # Two sessions over TCP and one over UDP have resolved a name, with a challenge and an answer to it each. Every
        # message has one line, not more.
        wanted = (asked + NAMES + 4, asked + 2)
        eventually(lambda: over("tcp") >= wanted[0] and over("udp") >= wanted[1], "a line for each request")
        assert (over("tcp"), over("udp")) == wanted
        assert not [fields for fields in accesses() if fields["code"] == "SUCCESS" and "2026-01-01" in str(fields)]

        places = {"an error answer": b"\n".join(refusals), "the metrics": metrics_page(server).encode()}
        places["the log"] = (server.folder / "stderr").read_bytes() + (server.folder / "stdout").read_bytes()
        for name, pid in named(server).items():
            places[f"the command line of {name}"] = (PROC / str(pid) / "cmdline").read_bytes()
        assert_hidden(secrets, places)


@FORMATS
def test_wrong_passphrase_is_refused_and_not_logged(tmp_path: Path, form: str) -> None:
    directory = protected(copy_to(tmp_path))
    wrong = "not-the-passphrase-of-the-server"
    given = {"PERSEID_KEYS_PASSPHRASE": wrong, "PERSEID_LOG_FORMAT": form}
    environment = os.environ | LOUD | DEFAULTS | given
    done = subprocess.run(serve_command(directory), capture_output=True, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert b"passphrase" in done.stderr
    assert b"Traceback" not in done.stderr
    assert_hidden([wrong.encode(), PASSPHRASE.encode()], {"what is printed": done.stdout + done.stderr})

"""A flood of expensive requests, in its own process.

    python -m tests.server.faults.flood KIND HOST PORT

Over TCP each connection sends again as soon as it gets a response, several requests at a time; over UDP requests are
sent without waiting for responses. They come from several addresses, so that the limit of one address is not the
limit of all. It lasts until standard input ends; then the number of requests and the response codes are printed as
JSON.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from enum import Enum
from typing import Final

from perseid.records.binary import Writer
from perseid.records.ciphers import MAX_ITERATIONS
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, OpCode, OpFlag, ResponseCode, default_flags
from perseid.wire.credentials import Algorithm
from perseid.wire.message import Message
from perseid.wire.requests import ChallengeResponse, RequestBody, Resolve, ValuesRequest, VerifyChallenge
from tests.server.faults.sources import PATIENCE, connected, datagrams, frame_bytes, read_frames
from tests.server.installations import ADMINISTRATOR, PREFIX
from tests.server.native.native_client import NO_FLAGS
from tests.server.running import Address

CONNECTIONS: Final = 40
ADDRESSES: Final = 8
AT_A_TIME: Final = 2
"""Pending requests on each connection: together more than any queue holds."""

UDP_BATCH: Final = 50
UDP_PAUSE: Final = 0.025
"""Two thousand a second: several times what the server can do of the expensive work."""

INDEX, HANDLE = ADMINISTRATOR.split(":")
WRONG: Final = (
    bytes((Algorithm.PBKDF2_HMAC_SHA1,))
    + Writer().bytes_(bytes(16)).i32(MAX_ITERATIONS).i32(160).bytes_(bytes(20)).getvalue()
)
"""A challenge response that costs nothing to create, and as much as possible to reject."""


class Kind(Enum):
    """Kinds of requests."""

    SIGNED = "signed answers"
    VERIFY = "verified challenges"
    SESSIONS = "sessions"
    SECRETS = "secret keys"


class Flood:
    """The flood from one address."""

    def __init__(self, kind: Kind, server: Address, counts: Counter[str]) -> None:
        self._kind = kind
        self._server = server
        self._counts = counts
        self._client = Client(secrets.token_bytes)
        self._setup = self._client.begin_session(None, time.time(), peer_version=CURRENT_VERSION).request.payload()

    def over_tcp(self, host: str) -> None:
        while True:
            # Refusals and closed connections are fine: another connection follows.
            with suppress(OSError), connected(host, self._server) as connection:
                while True:
                    self.ask(connection)

    def ask(self, connection: socket.socket) -> None:
        """Send requests over a connection, and count the responses."""
        challenges: list[int] = [0] * AT_A_TIME
        if self._kind is Kind.SECRETS:
            connection.sendall(b"".join(self._request(OpCode.CREATE_HANDLE, _NEW) for _ in challenges))
            challenges = [frame.envelope.session_id for frame in read_frames(connection, AT_A_TIME)]
        connection.sendall(b"".join(self._expensive(number) for number in challenges))
        answers = read_frames(connection, len(challenges))
        self._counts["over TCP"] += len(answers)
        for frame in answers:
            self._counts[ResponseCode(int.from_bytes(frame.payload[4:8], "big")).name] += 1
        if len(answers) < AT_A_TIME:
            raise ConnectionError

    def over_udp(self, host: str) -> None:
        with datagrams(host, self._server) as sending:
            sending.setblocking(False)
            waiting: list[int] = []
            while True:
                for _ in range(UDP_BATCH):
                    with suppress(OSError):
                        if self._kind is Kind.SECRETS and not waiting:
                            sending.send(self._request(OpCode.CREATE_HANDLE, _NEW))
                        else:
                            sending.send(self._expensive(waiting.pop() if waiting else 0))
                        self._counts["over UDP"] += 1
                with suppress(OSError):
                    while packet := sending.recv(600):
                        if int.from_bytes(packet[24:28], "big") == ResponseCode.AUTHENTICATION_NEEDED:
                            waiting.append(int.from_bytes(packet[4:8], "big"))
                time.sleep(UDP_PAUSE)

    def _expensive(self, challenge: int) -> bytes:
        match self._kind:
            case Kind.SIGNED:
                return self._request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/n1".encode()), OpFlag.CERTIFY)
            case Kind.VERIFY:
                body = VerifyChallenge(HANDLE.encode(), int(INDEX), bytes(16), bytes(32), WRONG)
                return self._request(OpCode.VERIFY_CHALLENGE, body)
            case Kind.SESSIONS:  # the same client half each time; the server creates a new one
                return self._request(OpCode.SESSION_SETUP, _RawBody(self._setup[24:-4]))
            case Kind.SECRETS:
                answer = ChallengeResponse("HS_SECKEY", HANDLE.encode(), int(INDEX), WRONG)
                raw = self._request(OpCode.RESPONSE_TO_CHALLENGE, answer)
                return raw[:4] + challenge.to_bytes(4, "big") + raw[8:]

    def _request(self, opcode: OpCode, body: RequestBody, more: OpFlag = NO_FLAGS) -> bytes:
        flags = default_flags(opcode) | OpFlag.KEEP_CONNECTION | more
        message: Message = self._client.request(opcode, body, time.time(), flags=flags, peer_version=CURRENT_VERSION)
        return frame_bytes(self._client.pack(message, None))


class _RawBody:
    """An encoded body."""

    def __init__(self, raw: bytes) -> None:
        self._octets = raw

    def write(self, writer: Writer, _version: object) -> None:
        writer.raw(self._octets)


_NEW = ValuesRequest(f"{PREFIX}/never".encode(), ())


def main(kind: str, host: str, port: str) -> None:
    counts: Counter[str] = Counter()
    flood = Flood(Kind(kind), (host, int(port)), counts)
    for number in range(CONNECTIONS):
        source = f"127.30.{number % ADDRESSES}.1"
        threading.Thread(target=flood.over_tcp, args=(source,), daemon=True).start()
    threading.Thread(target=flood.over_udp, args=("127.30.100.1",), daemon=True).start()
    print("started", flush=True)
    sys.stdin.read()
    until = time.monotonic() + PATIENCE
    while not counts["over TCP"] and time.monotonic() < until:
        time.sleep(0.05)
    print(json.dumps(counts), flush=True)
    os._exit(0)  # without closing connections


if __name__ == "__main__":
    main(*sys.argv[1:])

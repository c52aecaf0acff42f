"""An HTTP client that sends raw bytes and parses responses strictly.

Requests can be anything. Responses are parsed by `h11`, which shares no code with the server and is strict: headers
and lengths are checked, and excess bytes are detected.
"""

import json
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self

import h11

from tests.server.http.listeners import client_context
from tests.server.running import Address, Serving

PATIENCE: Final = 30.0
"""Seconds after which what should have come has not."""

RECEIVED: Final = 65_536

NO_LIMITS: Final = {"PERSEID_HTTP_API_REQUESTS": "0", "PERSEID_HTTP_API_REQUESTS_ANONYMOUS": "0"}
"""For tests that ask more often than anybody would."""

NOSNIFF: Final = "x-content-type-options"
POLICY: Final = "content-security-policy"
REFERRER: Final = "referrer-policy"


@dataclass(frozen=True, slots=True)
class Answer:
    """A well-formed response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    body: bytes
    version: str = "1.1"
    early: tuple[int, ...] = ()
    """Statuses that came before: 100."""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def header(self, name: str) -> str | None:
        """A header that must not repeat."""
        found = self.all(name)
        assert len(found) <= 1, f"{name} is there {len(found)} times: {found}"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Raw:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._left = b""
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, octets: bytes) -> None:
        self.socket.sendall(octets)

    def read(self, method: str = "GET") -> Answer:
        """The next response; `method` is that of its request, which decides whether it has a body."""
        reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 16)
        reader.send(h11.Request(method="HEAD" if method == "HEAD" else "GET", target="/", headers=[("Host", "x")]))
        reader.send(h11.EndOfMessage())
        if self._left:
            reader.receive_data(self._left)
        head: h11.Response | None = None
        early: list[int] = []
        body = bytearray()
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                octets = b"" if self._ended else self.socket.recv(RECEIVED)
                self._ended |= not octets
                assert octets or head is not None, f"no answer, but the end of the connection, after {self._left!r}"
                reader.receive_data(octets)
            elif isinstance(event, h11.InformationalResponse):
                early.append(event.status_code)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                assert isinstance(event, h11.EndOfMessage), event
                assert head is not None
                assert not event.headers, "trailers, which nobody has asked for"
                break
        self._left = reader.trailing_data[0]
        headers = tuple([(name.decode(), value.decode("latin-1")) for name, value in head.headers])
        return Answer(head.status_code, headers, bytes(body), head.http_version.decode(), tuple(early))

    def ask(self, octets: bytes, method: str = "GET") -> Answer:
        """Send a request and read its response."""
        self.send(octets)
        return self.read(method)

    def get(self, target: str | bytes, *headers: str, method: str = "GET") -> Answer:
        """GET a target as written."""
        return self.ask(request(method, target, headers), method)

    def end(self) -> bytes:
        """What arrives until the server closes the connection."""
        octets = bytearray(self._left)
        try:
            while not self._ended and (part := self.socket.recv(RECEIVED)):
                octets += part
        except (ConnectionResetError, ssl.SSLError):  # it is an end as well, for who goes on sending
            pass
        self._ended, self._left = True, b""
        return bytes(octets)


@cache
def context() -> ssl.SSLContext:
    """A client context that does not verify the server."""
    return client_context()


@contextmanager
def connected(address: Address, *, secure: bool = False, source: str | None = None) -> Iterator[Raw]:
    """A connection to a server, optionally from a given address of this machine."""
    place = None if source is None else (source, 0)
    with socket.create_connection(address, PATIENCE, source_address=place) as plain:
        if not secure:
            yield Raw(plain)
        else:
            with context().wrap_socket(plain) as wrapped:
                yield Raw(wrapped)


def request(
    method: str,
    target: str | bytes,
    headers: Iterable[str] | Mapping[str, str] = (),
    body: bytes | None = None,
    version: str = "1.1",
) -> bytes:
    """A request as bytes; with a body it has a Content-Length."""
    path = target.encode("latin-1") if isinstance(target, str) else target
    lines = [f"{name}: {value}" for name, value in headers.items()] if isinstance(headers, Mapping) else list(headers)
    if not any(line.lower().startswith("host:") for line in lines):
        lines.insert(0, "Host: localhost")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return b"%b %b HTTP/%b\r\n%b%b" % (method.encode(), path, version.encode(), head, body or b"")


def is_api(path: bytes) -> bool:
    """Whether everything at a path is JSON."""
    return path == b"/api" or path.startswith(b"/api/")


def see_sound(answer: Answer, path: bytes, *never: bytes) -> None:
    """Check that a response has what every response has, and nothing unwanted, such as any of `never`."""
    assert answer.status < 500 or answer.status in (501, 503, 505), (answer.status, answer.body)
    assert answer.header(NOSNIFF) == "nosniff", answer
    if not 300 <= answer.status < 400:
        policy = answer.header(POLICY)
        assert policy is not None, answer
        assert policy.startswith("default-src 'none';"), policy
        assert "unsafe" not in policy, policy
        assert "frame-ancestors 'none'" in policy, policy
        assert answer.header(REFERRER) is not None, answer
    assert answer.header("server") is None, "which program it is concerns nobody"
    assert answer.header("set-cookie") is None, answer
    assert not [name for name, _ in answer.headers if "injected" in name], answer
    kind = (answer.header("content-type") or "").partition(";")[0]
    if is_api(path) and answer.body and kind != "application/javascript":
        assert kind in ("application/json", "application/problem+json") or answer.status == 200, answer
        if kind.endswith("json"):
            assert isinstance(answer.json, dict | list), answer.body
    said = answer.body + "\n".join([f"{name}: {value}" for name, value in answer.headers]).encode()
    for octets in never:
        assert octets not in said, f"{octets!r} in {said!r}"


def places_of(server: Serving) -> dict[str, Address]:
    """The addresses of a server that listens on all addresses."""
    port = server.http[1]
    return {"IPv4": ("127.0.0.1", port), "IPv6": ("::1", port)}

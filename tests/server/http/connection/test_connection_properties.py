"""Any valid request is received as sent, however split; any other input only ends the connection."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.server.http.clients import Peer
from perseid.server.http.connection.requests import ChunkedBody, HeaderFields, ProtocolError, SizedBody
from tests.server.http.connection.test_connection_refusals import CASES
from tests.server.http.connections import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as made:
        yield made


PEER: Final = Peer("127.0.0.1")
TOKEN: Final = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
VISIBLE: Final = bytes((*range(0x21, 0x7F), *range(0x80, 0x100)))
TELLING: Final = ("host", "content", "transfer", "expect", "connection", "forwarded", "via", "x-real-ip", "upgrade")


@dataclass(frozen=True)
class Sent:
    """A request, and how it is encoded."""

    method: str
    target: bytes
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[int] | None
    """How long the chunks of the body are; None for a body of known length, or for none."""

    def octets(self) -> bytes:
        lines = [f"{name}:{value}".encode("latin-1") for name, value in self.headers]
        octets = b"\r\n".join((self.method.encode() + b" " + self.target + b" HTTP/1.1", *lines, b"", b""))
        return octets + (self.body if self.chunks is None else in_chunks(self.body, self.chunks))

    def seen(self) -> tuple[str, bytes, list[tuple[str, str]], bytes]:
        """What should be received."""
        headers = [(name.lower(), value.strip(" \t")) for name, value in self.headers]
        return self.method, self.target, headers, self.body


def in_chunks(body: bytes, lengths: Sequence[int]) -> bytes:
    parts = []
    for length in lengths:
        if part := body[:length]:
            parts.append(b"%X;x=%d\r\n%b\r\n" % (len(part), length, part))
            body = body[length:]
    if body:
        parts.append(b"%04x\r\n%b\r\n" % (len(body), body))
    return b"".join(parts) + b"0\r\nTrailer: x\r\n\r\n"


names = st.text(TOKEN, min_size=1, max_size=12).filter(
    lambda name: (
        not name.lower().replace("_", "-").startswith((*TELLING, "proxy-", "x-forwarded", "auth", "cook", "orig"))
    )
)
blanks = st.text(" \t", max_size=2)
values = st.builds(
    lambda before, text, after: before + text + after,
    blanks,
    st.text([chr(octet) for octet in (9, *range(0x20, 0x7F), *range(0x80, 0x100))], max_size=20),
    blanks,
)
lengths = st.lists(st.integers(1, 40), max_size=8)


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    method = draw(st.sampled_from(("GET", "HEAD", "PUT", "POST", "DELETE")) | st.text(TOKEN, min_size=1, max_size=10))
    if method == "CONNECT":
        method = "GET"
    target = b"/t/" + bytes(draw(st.lists(st.sampled_from(VISIBLE.replace(b"#", b"")), max_size=30)))
    headers = [("Host", draw(blanks) + draw(st.sampled_from(("x", "example.org:80", "[::1]", ""))))]
    headers += draw(st.lists(st.tuples(names, values), max_size=6))
    body = draw(st.binary(max_size=200))
    chunks = None
    if draw(st.booleans()):
        body = b""
    elif draw(st.booleans()):
        headers.append(("content-LENGTH", f"{len(body):05}"))
    else:
        chunks = draw(lengths)
        headers.append(("Transfer-Encoding", " chunked "))
    return Sent(method, target, draw(st.permutations(headers)), body, chunks)


def split(octets: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Split data at some offsets; into single bytes if there are none."""
    if not cuts:
        return [bytes((octet,)) for octet in octets]
    places = sorted({cut % (len(octets) + 1) for cut in cuts} | {0, len(octets)})
    return [octets[start:end] for start, end in pairwise(places)]


cuts = st.lists(st.integers(0, 5_000), max_size=12)


@given(st.lists(requests(), min_size=1, max_size=4), cuts)
def test_valid_requests_are_received_exactly(server: Running, sent: list[Sent], places: list[int]) -> None:
    server.service.requests.clear()
    octets = b"".join(one.octets() for one in sent)
    with server.connect() as caller:
        caller.feed(split(octets, places))
        for one in sent:
            assert caller.answer("HEAD" if one.method == "HEAD" else "GET").status == 200
    found = [(one.method, one.target, one.headers, one.body) for one in server.service.requests]
    assert found == [one.seen() for one in sent]


FRAGMENTS: Final = [
    b"GET ",
    b"POST /x",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"Host: x\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: x\r\n",
    b"\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
]
anything = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=20), max_size=12).map(b"".join)


@given(anything, cuts)
def test_any_input_gets_responses_and_an_end(server: Running, octets: bytes, places: list[int]) -> None:
    with server.connect() as caller:
        caller.feed(split(octets, places))
        caller.sock.shutdown(socket.SHUT_WR)
        came = b""
        while part := caller.receive():  # that it ends at all is what is looked at
            came += part
    assert came.startswith(b"HTTP/1.1 ") or not came
    server.until(lambda: not server.manager.open)
    assert server.do(lambda: server.manager.unfinished.total) == 0
    assert not server.errors


@given(st.sampled_from(sorted(CASES)), cuts)
def test_refusal_does_not_depend_on_splitting(server: Running, name: str, places: list[int]) -> None:
    status, octets = CASES[name]
    if len(octets) > 10_000:
        places = places or [1]
    with server.connect() as caller:
        caller.feed(split(octets, places))
        assert caller.answer().status == status


# Bodies


@given(st.binary(max_size=300), lengths, cuts, st.binary(max_size=10))
def test_chunked_body_consumes_only_its_bytes(body: bytes, chunks: list[int], places: list[int], rest: bytes) -> None:
    octets = in_chunks(body, chunks)
    reader, left = ChunkedBody(), b""
    for part in split(octets + rest, places):
        end = 0 if reader.whole else reader.take(part, 0)
        left += part[end:]
    assert reader.whole
    assert bytes(reader.data) == body
    assert left == rest


@given(st.binary(max_size=300), cuts, st.binary(max_size=10), st.integers(0, 3))
def test_sized_body_consumes_only_its_bytes(body: bytes, places: list[int], rest: bytes, offset: int) -> None:
    reader, left = SizedBody(len(body)), b""
    for part in split(body + rest, places):
        end = reader.take(bytes(offset) + part, offset) - offset
        left += part[end:]
    assert reader.whole or not body
    assert bytes(reader.data) == body
    assert left == rest


def by_h11(octets: bytes) -> bytes | None:
    """The body that h11 reads from chunks; None if it refuses them or waits for more."""
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + octets)
    body = b""
    try:
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Data):
                body += event.data
    except h11.RemoteProtocolError:
        return None
    return body


@given(
    st.lists(
        st.sampled_from(
            [b"3", b"0", b"1;a", b"\r\n", b"\n", b"abc", b"x", b"0\r\n\r\n", b"3\r\nabc\r\n", b"A: b\r\n", b" "]
        )
        | st.binary(max_size=3),
        max_size=8,
    ).map(b"".join),
    cuts,
)
@example(b"3\r\nabc\r\n0\r\n\r\n", [5])
def test_accepted_chunks_mean_the_same_to_h11(octets: bytes, places: list[int]) -> None:
    reader = ChunkedBody()
    try:
        for part in split(octets, places):
            if not reader.whole:
                reader.take(part, 0)
    except ProtocolError:
        return
    if reader.whole:
        assert bytes(reader.data) == by_h11(octets)


@given(st.lists(st.tuples(names, values), max_size=4))
def test_insignificant_headers_have_no_effect(headers: list[tuple[str, str]]) -> None:
    lines = [f"{name}:{value}".encode("latin-1") for name, value in headers]
    said = HeaderFields(b"\r\n".join((b"", b"Host:x", *lines, b"", b"")), "1.1", PEER)
    assert said.headers[1:] == [(name.lower(), value.strip(" \t")) for name, value in headers]
    assert (said.length, said.expects, said.keep, said.client) == (0, False, True, PEER.alone)

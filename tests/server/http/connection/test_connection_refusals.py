"""Invalid and ambiguous requests are refused, and what follows them is not read as a request."""

import re
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from perseid.server.http.connection.connection import MAX_LINGER_BYTES
from perseid.server.http.connection.requests import MAX_CHUNK_LINE, MAX_FRAMING_BYTES, MAX_HEADERS, HeaderFields
from perseid.server.http.messages import MAX_BODY, MAX_HEAD
from tests.server.http.connections import Closed, Running, running


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Running:
    shared.service.requests.clear()
    shared.service.refusals.clear()
    return shared


def with_line(line: bytes) -> bytes:
    return line + b"\r\nHost: x\r\n\r\n"


def with_headers(*lines: bytes, method: bytes = b"POST") -> bytes:
    return b"\r\n".join((method + b" /a/b?c HTTP/1.1", b"Host: x", *lines, b"", b""))


def chunked(octets: bytes) -> bytes:
    return with_headers(b"Transfer-Encoding: chunked") + octets


def padded(size: int) -> bytes:
    """A valid request with a head of this many bytes."""
    octets = with_headers(b"X: ")
    return octets.replace(b"X: ", b"X: " + b"x" * (size - len(octets)))


SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

LINES: Final = {
    "no version": (505, b"GET /x"),
    "version 0.9": (505, b"GET /x HTTP/0.9"),
    "version 1.2": (505, b"GET /x HTTP/1.2"),
    "version 2.0": (505, b"GET /x HTTP/2.0"),
    "preface of HTTP/2": (505, b"PRI * HTTP/2.0"),
    "long version": (400, b"GET /x HTTP/1.10"),
    "short version": (400, b"GET /x HTTP/1"),
    "version in lower case": (400, b"GET /x http/1.1"),
    "RTSP": (400, b"GET /x RTSP/1.0"),
    "two blanks before the target": (400, b"GET  /x HTTP/1.1"),
    "two blanks behind the target": (400, b"GET /x  HTTP/1.1"),
    "blank at the beginning": (400, b" GET /x HTTP/1.1"),
    "blank at the end": (400, b"GET /x HTTP/1.1 "),
    "blank in the target": (400, b"GET /x y HTTP/1.1"),
    "tab": (400, b"GET\t/x HTTP/1.1"),
    "tab in the target": (400, b"GET /\tx HTTP/1.1"),
    "NUL in the target": (400, b"GET /\0 HTTP/1.1"),
    "DEL in the target": (400, b"GET /\x7f HTTP/1.1"),
    "CR in the target": (400, b"GET /\rx HTTP/1.1"),
    "CR before CR LF": (400, b"GET /x HTTP/1.1\r"),
    "LF at the beginning": (400, b"\nGET /x HTTP/1.1"),
    "CR at the beginning": (400, b"\rGET /x HTTP/1.1"),
    "two empty lines at the beginning": (400, b"\r\n\r\nGET /x HTTP/1.1"),
    "no target": (400, b"GET HTTP/1.1"),
    "target without slash": (400, b"GET x HTTP/1.1"),
    "fragment alone": (400, b"GET #x HTTP/1.1"),
    "asterisk": (400, b"GET * HTTP/1.1"),
    "other scheme": (400, b"GET ftp://x/y HTTP/1.1"),
    "user in a URL": (400, b"GET http://u:p@x/y HTTP/1.1"),
    "URL without authority": (400, b"GET http:///y HTTP/1.1"),
    "method that is no token": (400, b"GE(T /x HTTP/1.1"),
    "method beyond ASCII": (400, b"G\xc9T /x HTTP/1.1"),
    "CONNECT": (501, b"CONNECT x:443 HTTP/1.1"),
    "CONNECT to a path": (501, b"CONNECT /x HTTP/1.1"),
    "rubbish": (400, b"\x80\x02\x01"),
    "words": (400, b"hello, is anybody there"),
}

HEADERS: Final = {
    "length and coding": (400, [b"Content-Length: 4", b"Transfer-Encoding: chunked"]),
    "coding and length": (400, [b"Transfer-Encoding: chunked", b"Content-Length: 4"]),
    "other coding and length": (400, [b"Transfer-Encoding: gzip", b"Content-Length: 4"]),
    "two lengths": (400, [b"Content-Length: 4", b"Content-Length: 5"]),
    "two equal lengths": (400, [b"Content-Length: 4", b"content-length: 4"]),
    "list of lengths": (400, [b"Content-Length: 4, 4"]),
    "length with sign": (400, [b"Content-Length: +4"]),
    "negative length": (400, [b"Content-Length: -4"]),
    "hexadecimal length": (400, [b"Content-Length: 0x4"]),
    "length with underscore": (400, [b"Content-Length: 1_0"]),
    "no length": (400, [b"Content-Length:"]),
    "endless length": (400, [b"Content-Length: " + b"9" * 30]),
    "length of too many zeros": (400, [b"Content-Length: " + b"0" * 5_000 + b"4"]),
    "length too large": (413, [b"Content-Length: %d" % (MAX_BODY + 1)]),
    "gzip": (501, [b"Transfer-Encoding: gzip"]),
    "gzip and chunked": (501, [b"Transfer-Encoding: gzip, chunked"]),
    "empty and chunked": (501, [b"Transfer-Encoding: , chunked"]),
    "identity": (501, [b"Transfer-Encoding: identity"]),
    "chunked with parameter": (501, [b"Transfer-Encoding: chunked;a=b"]),
    "like chunked": (501, [b"Transfer-Encoding: xchunked"]),
    "quoted": (501, [b'Transfer-Encoding: "chunked"']),
    "chunked and gzip": (400, [b"Transfer-Encoding: chunked, gzip"]),
    "chunked twice": (400, [b"Transfer-Encoding: chunked, chunked"]),
    "two codings": (400, [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"]),
    "two codings, one other": (400, [b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"]),
    "coding behind a control": (400, [b"Transfer-Encoding: \x0bchunked"]),
    "no coding": (400, [b"Transfer-Encoding:"]),
    "blank before the colon": (400, [b"Content-Length : 4"]),
    "tab before the colon": (400, [b"Transfer-Encoding\t: chunked"]),
    "folded": (400, [b"X: a", b" b"]),
    "folded with tab": (400, [b"X: a", b"\tb"]),
    "folded length": (400, [b"Content-Length:", b" 4"]),
    "blank before the name": (400, [b" X: a"]),
    "bare LF": (400, [b"X: a\nContent-Length: 4"]),
    "bare CR": (400, [b"X: a\rContent-Length: 4"]),
    "CR CR LF": (400, [b"X: a\r"]),
    "NUL": (400, [b"X: a\0b"]),
    "control": (400, [b"X: a\x01b"]),
    "DEL": (400, [b"X: a\x7fb"]),
    "no colon": (400, [b"X"]),
    "no name": (400, [b": x"]),
    "name with NUL": (400, [b"X\0: x"]),
    "name with blank": (400, [b"X Y: x"]),
    "name beyond ASCII": (400, [b"X\xe9: x"]),
    "name in brackets": (400, [b"(X): x"]),
    "name in quotes": (400, [b'"X": x']),
    "underscore for framing": (400, [b"Content_Length: 4"]),
    "underscore for coding": (400, [b"Transfer_Encoding: chunked"]),
    "underscore for forwarding": (400, [b"X_Forwarded-For: 127.0.0.1"]),
    "second Host": (400, [b"Host: x"]),
    "two expectations": (400, [b"Expect: 100-continue", b"Expect: 100-continue"]),
    "other expectation": (417, [b"Expect: 200-ok"]),
    "packed": (415, [b"Content-Encoding: gzip", b"Content-Length: 4"]),
    "packed twice": (415, [b"Content-Encoding: identity, gzip", b"Content-Length: 4"]),
    "packed in chunks": (415, [b"Content-Encoding: deflate", b"Transfer-Encoding: chunked"]),
    "too many": (431, [b"X: y"] * MAX_HEADERS),
    "too large": (431, [b"X: " + b"y" * MAX_HEAD]),
    "too large in all": (431, [b"X: " + b"y" * 1_000] * 9),
}

CHUNKS: Final = {
    "no size": b"\r\n",
    "blank before the size": b" 4\r\nbody\r\n",
    "blank behind the size": b"4 \r\nbody\r\n",
    "hexadecimal mark": b"0x4\r\nbody\r\n",
    "sign": b"+4\r\nbody\r\n",
    "negative": b"-4\r\nbody\r\n",
    "underscore": b"1_0\r\nbody\r\n",
    "no hexadecimal digit": b"g\r\n",
    "overlong": b"0" * 16 + b"4\r\nbody\r\n",
    "bare LF behind the size": b"4\nbody\r\n0\r\n\r\n",
    "CR CR LF": b"4\r\r\nbody\r\n",
    "bare LF behind the chunk": b"4\r\nbody\n0\r\n\r\n",
    "more than the size": b"4\r\nbodyx\r\n0\r\n\r\n",
    "less than the size": b"5\r\nbody\r\n0\r\n\r\n",
    "nothing behind the chunk": b"4\r\nbody0\r\n\r\n",
    "control in an extension": b"4;a\x01\r\nbody\r\n",
    "bare LF in an extension": b"4;a\nb\r\nbody\r\n0\r\n\r\n",
    "large extension": b"4;" + b"a" * MAX_CHUNK_LINE + b"\r\nbody\r\n",
    "endless extension": b"4;" + b"a" * 100_000,
    "many extensions": b"".join(b"1;%b\r\nx\r\n" % (b"a" * 200) for _ in range(MAX_FRAMING_BYTES // 200)),
    "many chunks": b"1\r\nx\r\n" * (MAX_FRAMING_BYTES // 5 + 1),
    "folded trailer": b"0\r\nX: y\r\n z\r\n\r\n",
    "trailer without colon": b"0\r\nX\r\n\r\n",
    "blank before the colon of a trailer": b"0\r\nX : y\r\n\r\n",
    "bare LF in a trailer": b"0\r\nX: y\n\r\n\r\n",
    "length in a trailer": b"0\r\nContent-Length: 4\r\n\r\n",
    "coding in a trailer": b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "credentials in a trailer": b"0\r\nAuthorization: x\r\n\r\n",
    "forwarding in a trailer": b"0\r\nX_Forwarded_For: 127.0.0.1\r\n\r\n",
    "many trailers": b"0\r\n" + b"X: y\r\n" * (MAX_FRAMING_BYTES // 6 + 1),
}

CASES: Final = {
    **{f"line, {name}": (status, with_line(line)) for name, (status, line) in LINES.items()},
    **{f"headers, {name}": (status, with_headers(*lines)) for name, (status, lines) in HEADERS.items()},
    **{f"chunks, {name}": (400, chunked(octets)) for name, octets in CHUNKS.items()},
    "chunks, too large at once": (413, chunked(b"%x\r\n" % (MAX_BODY + 1))),
    "chunks, largest size there is": (413, chunked(b"F" * 16 + b"\r\n")),
    "line, bare LF": (400, b"GET /x HTTP/1.1\nHost: x\r\n\r\n"),
    "head, bare LF everywhere": (400, b"GET /x HTTP/1.1\nHost: x\n\n"),
    "head, bare LF at the end": (400, b"GET /x HTTP/1.1\r\nHost: x\r\n\n"),
    "head, no Host": (400, b"GET /x HTTP/1.1\r\nAccept: */*\r\n\r\n"),
    "head, nothing": (400, b"GET /x HTTP/1.1\r\n\r\n"),
    "head, Host with a path": (400, b"GET /x HTTP/1.1\r\nHost: x/y\r\n\r\n"),
    "head, Host with a user": (400, b"GET /x HTTP/1.1\r\nHost: u@x\r\n\r\n"),
    "head, two in one Host": (400, b"GET /x HTTP/1.1\r\nHost: x, y\r\n\r\n"),
    "head, two Hosts in HTTP/1.0": (400, b"GET /x HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n"),
    "head, chunked in HTTP/1.0": (400, b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "head, one octet too large": (431, padded(MAX_HEAD + 1)),
    "line without end": (431, b"GET /" + b"x" * MAX_HEAD),
    "old line": (505, b"GET /x\r\n"),
    "line of rubbish": (400, b"\x80\x02\x01\r\n"),
}


@pytest.mark.parametrize("by", [0, 1, 7], ids=["whole", "by octets", "by sevens"])
@pytest.mark.parametrize("name", CASES)
def test_invalid_requests_are_refused_however_split(server: Running, name: str, by: int) -> None:
    status, octets = CASES[name]
    if len(octets) > 1_000:  # by single octets it would take minutes
        by *= 1 + len(octets) // 100
    with server.connect() as caller:
        caller.send(octets + SMUGGLED, by=by)
        answer = caller.answer()
        assert (answer.status, answer.closes) == (status, True), answer.body
        assert len(answer.body) > 10
        assert answer.body.isascii()
        assert caller.is_closed()
    assert not server.service.requests


@pytest.mark.parametrize("name", CASES)
def test_invalid_requests_after_a_valid_one(server: Running, name: str) -> None:
    status, octets = CASES[name]
    with server.connect() as caller:
        caller.send(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
        assert caller.answer().status == 200
        caller.send(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n" + octets + SMUGGLED)
        assert caller.answer().status == 200
        answer = caller.answer()
        expected = 400 if octets.startswith(b"\r\n\r\n") else status
        assert (answer.status, answer.closes) == (expected, True)
        assert caller.is_closed()
    assert {request.path for request in server.service.requests} == {b"/now"}


def test_refusal_knows_the_path(server: Running) -> None:
    paths = {}
    for octets in (
        with_headers(b"X"),
        with_headers(b"Content-Length: 9999999"),
        chunked(b"x\r\n"),
        b"GET http://x/a/b?c HTTP/1.1\r\n\r\n",
        b"GET /a/b?c\r\n",
        b"GET /a/b?c HTTP/3.0\r\n",
        b"GET /a/b?c HTTP/1.1\r\nX: " + b"x" * MAX_HEAD,
        b"GET /a/b?c HTTP/1.1\r\nX: x\n",
    ):
        server.ask(octets)
        paths[octets] = server.service.refusals[-1][2]
    assert set(paths.values()) == {b"/a/b"}, paths


def test_unexpected_error_while_parsing_is_answered(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: HeaderFields) -> int:
        raise ValueError("unforeseen")

    monkeypatch.setattr(HeaderFields, "_find_length", fail)
    answer = server.ask(with_headers(b"Content-Length: 4"))
    assert (answer.status, answer.closes) == (500, True)
    assert server.service.refusals[-1][2] == b"/a/b"
    assert "ValueError in fail" in caplog.text
    assert not server.errors


def test_refusal_of_head_has_no_body(server: Running) -> None:
    with server.connect() as caller:
        caller.send(with_headers(b"Content-Encoding: gzip", method=b"HEAD"))
        answer = caller.answer("HEAD")
        assert (answer.status, answer.body) == (415, b"")
        assert caller.is_closed()


@pytest.mark.parametrize("lines", [[], [b"X: y"] * (MAX_HEADERS - 1)])
def test_largest_head_is_accepted(server: Running, lines: list[bytes]) -> None:
    octets = with_headers(*lines) if lines else padded(MAX_HEAD)
    for by in (0, 1_000):
        answer = server.ask(octets, by=by)
        assert (answer.status, answer.body) == (200, b"POST /a/b?c ")


def test_largest_body_is_accepted(server: Running) -> None:
    answer = server.ask(with_headers(b"Content-Length: %d" % MAX_BODY) + bytes(MAX_BODY))
    assert len(answer.body) == len(b"POST /a/b?c ") + MAX_BODY
    answer = server.ask(chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (MAX_BODY, bytes(MAX_BODY))))
    assert len(answer.body) == len(b"POST /a/b?c ") + MAX_BODY


def test_growing_body_is_refused_at_limit(server: Running) -> None:
    part = b"10000\r\n%b\r\n" % bytes(1 << 16)
    assert server.ask(chunked(part * 17)).status == 413


@pytest.mark.parametrize("name", ["many extensions", "many chunks", "many trailers"])
def test_chunk_framing_is_limited(server: Running, name: str) -> None:
    answer = server.ask(chunked(CHUNKS[name]))
    assert answer.body == b"the framing of the chunked body has more than 65536 bytes"


def test_unsuspicious_headers_with_underscores_are_accepted(server: Running) -> None:
    server.ask(with_headers(b"X_Trace_Id: 1", b"x-ok: a_b"))
    assert server.service.requests[0].headers[1:] == [("x_trace_id", "1"), ("x-ok", "a_b")]


def test_client_that_keeps_sending_can_read_refusal(server: Running) -> None:
    """After an immediate close the connection would be reset, and the refusal lost."""
    with server.connect() as caller:
        caller.send(with_headers(b"Content-Length: 2000000"))
        for _ in range(20):
            caller.send(bytes(100_000))
        assert caller.answer().status == 413
        assert caller.is_closed()


def test_client_that_keeps_sending_is_cut(server: Running) -> None:
    with server.connect() as caller:
        caller.send(b"X\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            caller.sock.sendall(bytes(100 * MAX_LINGER_BYTES))
    server.until(lambda: not server.manager.open)


def test_client_that_stays_after_refusal_is_cut(server: Running) -> None:
    with server.connect() as caller:
        caller.send(b"X\r\n")
        assert caller.answer().status == 400
        server.pass_time(1.0)
        assert server.do(lambda: len(server.manager.open)) == 1
        server.pass_time(1.5)
        server.until(lambda: not server.manager.open)


def test_client_that_leaves_after_refusal_is_removed(server: Running) -> None:
    with server.connect() as caller:
        caller.send(b"X\r\n")
        assert caller.answer().status == 400
        caller.sock.shutdown(socket.SHUT_WR)
        server.until(lambda: not server.manager.open)


def test_refusal_repeats_nothing_of_the_request(server: Running) -> None:
    """Pages that show a refusal escape it, and there is nothing in it to escape."""
    for status, octets in CASES.values():
        try:
            answer = server.ask(octets.replace(b"x", b"<script>"))
        except Closed:
            continue
        assert re.fullmatch(rb"[\w\s.,;:/()'`-]+", answer.body) or answer.status == 200, (status, answer.body)

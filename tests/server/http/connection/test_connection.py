"""One HTTP connection: requests arrive in any number of parts, and each gets its response, in order."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.utils import parsedate_to_datetime
from typing import Any

import httptools
import pytest

from perseid.server.http.clients import Peer
from perseid.server.http.connection import requests
from perseid.server.http.connection.connection import MAX_REQUESTS_PER_TURN, Connection
from perseid.server.http.connection.requests import HeadParser, ProtocolError
from perseid.server.http.connection.responses import WRITE_SIZE
from perseid.server.http.messages import MAX_HEAD
from perseid.server.limits.udp import NetworkSet
from tests.server.http.connections import LARGE, Running, running


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Running:
    shared.service.requests.clear()
    shared.service.refusals.clear()
    return shared


def get(target: bytes, *headers: bytes, method: bytes = b"GET", version: bytes = b"1.1", body: bytes = b"") -> bytes:
    lines = (b"Host: example.org", *headers) if version == b"1.1" else headers
    return b"\r\n".join((b"%b %b HTTP/%b" % (method, target, version), *lines, b"", body))


MAX_READ = 1 << 18
"""Octets that uvloop reads at once."""

BY = pytest.mark.parametrize("by", [0, 1], ids=["whole", "by octets"])


@BY
def test_request_is_handled_and_connection_stays_open(server: Running, by: int) -> None:
    with server.connect() as caller:
        for number in range(3):
            caller.send(get(b"/%d/x?y=z" % number, b"Accept:  */* ", b"X-Odd: \xe9"), by=by)
            answer = caller.answer()
            assert (answer.status, answer.body) == (200, b"GET /%d/x?y=z " % number)
            assert not answer.closes
            assert parsedate_to_datetime(answer.headers["date"]).tzinfo is not None
    request = server.service.requests[-1]
    assert request.headers == [("host", "example.org"), ("accept", "*/*"), ("x-odd", "é")]
    assert (request.method, request.target, request.body, request.version) == ("GET", b"/2/x?y=z", b"", "1.1")
    assert request.client.host == "127.0.0.1"
    assert request.client.local
    assert not request.client.secure


@BY
def test_fast_response_is_sent_unchanged(server: Running, by: int) -> None:
    with server.connect() as caller:
        for _ in range(3):
            caller.send(get(b"/now"), by=by)
            answer = caller.answer()
            assert (answer.body, answer.octets) == (b"now\n", b"HTTP/1.1 200 OK\r\nContent-Length: 4")


def test_requests_with_same_headers_share_fields(server: Running) -> None:
    with server.connect() as caller:
        for target in (b"/a", b"/now", b"/now?x", b"/c"):
            caller.send(get(target, b"Accept: a/b"))
            caller.answer()
        caller.send(get(b"/d", b"Accept: c/d"))
        caller.answer()
    fields = [request.fields for request in server.service.requests]  # type: ignore[attr-defined]
    assert fields[0] is fields[1] is fields[2] is fields[3]
    assert fields[4] is not fields[0]
    assert server.service.requests[2].target == b"/now?x"
    assert server.service.requests[4].header("accept") == "c/d"


def test_headers_with_other_framing_are_parsed_again(server: Running) -> None:
    with server.connect() as caller:
        caller.send(get(b"/a"))
        caller.answer()
        caller.send(get(b"/a", method=b"POST") + get(b"/now", b"Content-Length: 4", body=b"body") + get(b"/now"))
        assert [caller.answer().body for _ in range(3)] == [b"POST /a ", b"GET /now body", b"now\n"]
        caller.send(get(b"/now", version=b"1.0"))
        assert caller.answer().closes


def test_repeated_headers_with_body(server: Running) -> None:
    with server.connect() as caller:
        for _ in range(3):
            caller.feed([get(b"/now", b"Content-Length: 4"), b"body"])
            assert caller.answer().body == b"GET /now body"


def test_headers_of_http_1_1_are_checked_again_for_1_0(server: Running) -> None:
    with server.connect() as caller:
        for version, closes in ((b"1.1", False), (b"1.0", True)):
            caller.feed([b"GET /now HTTP/" + version + b"\r\nHost: localhost\r\n\r\n"])
            assert caller.answer().closes == closes


def test_headers_of_http_1_0_are_checked_again_for_1_1(server: Running) -> None:
    with server.connect() as caller:
        caller.feed([get(b"/now", b"Connection: keep-alive", version=b"1.0")])
        assert caller.answer().status == 200
        caller.feed([b"GET /now HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"])
        assert caller.answer().status == 400


def test_head_without_end_is_refused() -> None:
    reader = HeadParser(Peer("127.0.0.1"))
    for head in (get(b"/")[:-1], get(b"/")[:-2]):
        with pytest.raises(ProtocolError, match=r"^the headers of the request are incomplete$"):
            reader.read(head)
    assert reader.read(get(b"/")).target == b"/"


def test_head_that_arrives_in_parts_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def count(name: str, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(argument: object) -> Any:
            parsed.append(name)
            return parse(argument)

        return counted

    monkeypatch.setattr(requests, "_parse_request_line", count("line", requests._parse_request_line))
    monkeypatch.setattr(httptools, "HttpRequestParser", count("headers", httptools.HttpRequestParser))
    reader = HeadParser(Peer("127.0.0.1"))
    for path in (b"/a", b"/b"):
        head = get(path, b"Content-Length: 4")
        for end in range(len(head)):
            reader.check_partial(head[:end])
        assert reader.read(head).target == path
    assert parsed == ["line", "headers", "line"]  # the second has the same headers
    assert [reader.read(get(b"/c", b"Content-Length: 5")).fields.length, *parsed[3:]] == [5, "line", "headers"]


def test_large_head_is_refused_with_repeated_headers(server: Running) -> None:
    with server.connect() as caller:
        most = MAX_HEAD - len(get(b"/", b"Accept: a/b"))
        for length, status in ((0, 200), (most, 200), (most + 1, 431)):
            caller.send(get(b"/" + b"x" * length, b"Accept: a/b"))
            assert caller.answer().status == status


def test_changing_headers_does_not_affect_other_requests(server: Running) -> None:
    with server.connect() as caller:
        for _ in range(3):
            caller.send(get(b"/x"))
            caller.answer()
            server.service.requests[-1].headers.append(("authorization", "x"))
    assert [len(request.headers) for request in server.service.requests] == [2, 2, 2]


@BY
def test_body_with_length(server: Running, by: int) -> None:
    octets = get(b"/x", b"Content-Length: 10", method=b"PUT", body=b"0123\r\n\r\n89")
    with server.connect() as caller:
        for _ in range(2):
            caller.send(octets, by=by)
            assert caller.answer().body == b"PUT /x 0123\r\n\r\n89"


@BY
def test_chunked_body(server: Running, by: int) -> None:
    body = b'4\r\nbody\r\n00A;a=b;c="d"\r\n0123456789\r\n0;x\r\nTrailer: y\r\n\r\n'
    octets = get(b"/x", b"Transfer-Encoding: Chunked", method=b"POST", body=body)
    with server.connect() as caller:
        for _ in range(2):
            caller.send(octets, by=by)
            assert caller.answer().body == b"POST /x body0123456789"


def test_empty_chunked_body_has_no_fast_response(server: Running) -> None:
    octets = get(b"/now", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")
    assert server.ask(octets).body == b"GET /now "


def test_large_body_in_one_and_many_parts(server: Running) -> None:
    body = bytes(range(256)) * 4_096
    octets = get(b"/x", b"Content-Length: %d" % len(body), method=b"PUT", body=body)
    with server.connect() as caller:
        for by in (0, 50_000):
            caller.send(octets, by=by)
            assert caller.answer().body == b"PUT /x " + body


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    count = 3 * MAX_REQUESTS_PER_TURN
    octets = b"".join(
        get(b"/%d" % (200 + number % 2), b"Content-Length: 1", body=b"x") if number % 3 else get(b"/now")
        for number in range(count)
    )
    with server.connect() as caller:
        caller.send(octets)
        for number in range(count):
            answer = caller.answer()
            assert answer.status == (200 + number % 2 if number % 3 else 200)
            assert answer.body == (b"four" if number % 3 else b"now\n")


def test_input_waits_while_a_request_is_handled(server: Running) -> None:
    server.do(server.service.go.clear)
    with server.connect() as caller:
        caller.send(get(b"/wait"))
        server.until(lambda: len(server.service.requests) == 1)
        for number in range(100):
            caller.send(get(b"/p%d" % number, b"X: " + b"x" * 4_000))
        server.until(lambda: any(one._paused for one in server.manager.open))
        assert server.do(lambda: max(len(one._buffer) for one in server.manager.open)) <= MAX_READ
        assert len(server.service.requests) == 1
        server.do(server.service.go.set)
        assert caller.answer().body == b"GET /wait "
        assert [caller.answer().body for _ in range(100)] == [b"GET /p%d " % number for number in range(100)]


def test_input_waits_for_its_turn(server: Running) -> None:
    with server.connect() as caller:
        caller.feed([get(b"/now") * (3 * MAX_REQUESTS_PER_TURN), get(b"/x") + get(b"/y")], ended=True)
        assert [caller.answer().body for _ in range(3 * MAX_REQUESTS_PER_TURN)] == [
            b"now\n"
        ] * 3 * MAX_REQUESTS_PER_TURN
        assert [caller.answer().body for _ in range(2)] == [b"GET /x ", b"GET /y "]
        assert caller.is_closed()


def test_reading_is_paused_between_turns(server: Running) -> None:
    with server.connect() as caller:
        caller.feed([get(b"/now") * (MAX_REQUESTS_PER_TURN + 1)], then=lambda connection: connection._paused)
        assert [caller.answer().body for _ in range(MAX_REQUESTS_PER_TURN + 1)] == [b"now\n"] * (
            MAX_REQUESTS_PER_TURN + 1
        )
        caller.send(get(b"/x"))
        assert caller.answer().body == b"GET /x "


def test_many_pipelined_requests_yield_to_others(server: Running) -> None:
    with server.connect() as caller, server.connect() as other:
        caller.send(get(b"/now") * 3_000)
        other.send(get(b"/now"))
        assert other.answer().body == b"now\n"
        assert [caller.answer().body for _ in range(3_000)] == [b"now\n"] * 3_000


def test_connections_with_many_pipelined_requests_share_an_iteration(server: Running) -> None:
    """So another client waits for one request of each, and not for 32."""

    async def count_answered() -> list[int]:
        for connection in server.manager.open:
            connection.data_received(get(b"/now") * 64)
        counts = []
        for _ in range(8):
            before = len(server.service.requests)
            await asyncio.sleep(0)
            counts.append(len(server.service.requests) - before)
        return counts

    with ExitStack() as stack:
        callers = [stack.enter_context(server.connect()) for _ in range(40)]
        server.until(lambda: len(server.manager.open) == 40)
        counts = server.wait_for(count_answered())
        assert max(counts) <= 40
        assert min(counts) > 0
        callers[0].sock.close()
        for caller in callers[1:]:
            assert [caller.answer().body for _ in range(64)] == [b"now\n"] * 64
        server.until(lambda: server.manager.waiting == 0)


def test_connection_that_ends_waits_for_no_turn(server: Running) -> None:
    with server.connect() as caller:

        def is_waiting(connection: Connection) -> bool:
            waiting = server.manager.waiting
            connection.cut()
            return waiting == 1

        caller.feed([get(b"/now") * (2 * MAX_REQUESTS_PER_TURN)], then=is_waiting)
        server.until(lambda: not server.manager.open)
        assert server.manager.waiting == 0


# End of a connection


@BY
@pytest.mark.parametrize(
    ("version", "connection", "closes"),
    [
        (b"1.1", None, False),
        (b"1.1", b"close", True),
        (b"1.1", b"Keep-Alive, CLOSE", True),
        (b"1.1", b"keep-alive", False),
        (b"1.0", None, True),
        (b"1.0", b"keep-alive", False),
        (b"1.0", b"foo , Keep-Alive", False),
        (b"1.0", b"close", True),
    ],
)
@pytest.mark.parametrize("target", [b"/now", b"/x"])
def test_client_controls_keep_alive(
    server: Running, by: int, version: bytes, connection: bytes | None, closes: bool, target: bytes
) -> None:
    headers = () if connection is None else (b"Connection: " + connection,)
    with server.connect() as caller:
        for _ in range(1 if closes else 3):
            caller.send(get(target, *headers, version=version), by=by)
            answer = caller.answer()
            assert answer.status == 200
            assert answer.closes is closes
            if version == b"1.0" and not closes:
                assert answer.headers["connection"] == "keep-alive"
        if closes:
            assert caller.is_closed()


def test_proxy_connection_is_ignored(server: Running) -> None:
    with server.connect() as caller:
        for _ in range(3):
            caller.send(get(b"/now", b"Proxy-Connection: close"))
            assert not caller.answer().closes


def test_input_after_last_request_is_ignored(server: Running) -> None:
    with server.connect() as caller:
        caller.send(get(b"/x", b"Connection: close") + get(b"/y"))
        assert caller.answer().body == b"GET /x "
        assert caller.is_closed()
    assert len(server.service.requests) == 1


def test_service_can_close_connection(server: Running) -> None:
    with server.connect() as caller:
        caller.send(get(b"/close"))
        assert caller.answer().closes
        assert caller.is_closed()


def test_half_closed_client_gets_all_responses(server: Running) -> None:
    server.do(server.service.go.clear)
    with server.connect() as caller:
        caller.send(get(b"/wait") + get(b"/now") * (2 * MAX_REQUESTS_PER_TURN) + get(b"/x"))
        caller.sock.shutdown(socket.SHUT_WR)
        server.until(lambda: len(server.service.requests) == 1)
        server.do(server.service.go.set)
        bodies = [caller.answer().body for _ in range(2 + 2 * MAX_REQUESTS_PER_TURN)]
        assert bodies == [b"GET /wait ", *[b"now\n"] * (2 * MAX_REQUESTS_PER_TURN), b"GET /x "]
        assert caller.is_closed()


@pytest.mark.parametrize(
    "beginning", [b"G", b"GET /x HTTP/1.1\r\nHost: x\r\n", get(b"/x", b"Content-Length: 5", body=b"four")]
)
def test_incomplete_request_gets_error(server: Running, beginning: bytes) -> None:
    with server.connect() as caller:
        caller.send(get(b"/now") + beginning)
        caller.sock.shutdown(socket.SHUT_WR)
        assert caller.answer().status == 200
        answer = caller.answer()
        assert (answer.status, answer.closes) == (400, True)
        assert b"ended" in answer.body
        assert caller.is_closed()


def test_connection_ends_between_requests(server: Running) -> None:
    with server.connect() as caller:
        caller.send(get(b"/now"))
        caller.answer()
        caller.sock.shutdown(socket.SHUT_WR)
        assert caller.is_closed()


def test_work_continues_after_client_disconnects(server: Running) -> None:
    server.do(server.service.go.clear)
    with server.connect() as caller:
        caller.send(get(b"/wait"))
        server.until(lambda: len(server.service.requests) == 1)
        task = server.do(lambda: next(iter(one for one in server.manager.open if one._task))._task)
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.until(lambda: not any(one._task is task for one in server.manager.open))
    assert task is not None
    assert not task.done()
    server.do(server.service.go.set)
    server.until(task.done)
    assert task.exception() is None


# Responses


@pytest.mark.parametrize("target", [b"/now", b"/x", b"/stream", b"/204", b"/304", b"/404", b"/large"])
def test_head_has_headers_of_get_and_no_body(server: Running, target: bytes) -> None:
    with server.connect() as caller:
        caller.send(get(target))
        got = caller.answer()
        for _ in range(2):
            caller.send(get(target, method=b"HEAD"))
            answer = caller.answer("HEAD")
            assert answer.body == b""
            if target == b"/x":  # the body says the method
                assert answer.headers.pop("content-length") == "8"
                got.headers.pop("content-length", None)
            answer.headers.pop("date", None)
            got.headers.pop("date", None)
            assert (answer.status, answer.headers) == (got.status, got.headers)


@pytest.mark.parametrize("status", [204, 304])
def test_some_responses_have_no_body_and_no_length(server: Running, status: int) -> None:
    with server.connect() as caller:
        for _ in range(2):
            caller.send(get(b"/%d" % status))
            answer = caller.answer()
            assert (answer.status, answer.body) == (status, b"")
            assert "content-length" not in answer.headers
            assert "transfer-encoding" not in answer.headers


def test_streamed_response(server: Running) -> None:
    before = server.service.streams_closed
    with server.connect() as caller:
        for _ in range(2):
            caller.send(get(b"/stream"))
            answer = caller.answer()
            assert answer.body == b"one two three"
            assert answer.headers["transfer-encoding"] == "chunked"
            assert "content-length" not in answer.headers
        caller.send(get(b"/stream", b"Connection: keep-alive", version=b"1.0"))
        answer = caller.answer()
        assert answer.body == b"one two three"
        assert answer.closes
        assert "transfer-encoding" not in answer.headers
        assert caller.is_closed()
    server.until(lambda: server.service.streams_closed == before + 3)


def test_broken_stream_does_not_look_complete(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as caller:
        caller.send(get(b"/torn"))
        octets = b""
        while part := caller.receive():
            octets += part
        assert octets.endswith(b"4\r\none \r\n")
    assert "RuntimeError in torn" in caplog.text
    assert "a secret" not in caplog.text


def test_stream_is_closed_when_client_disconnects(server: Running) -> None:
    before = server.service.streams_closed
    with server.connect() as caller:
        caller.send(get(b"/endless"))
        caller.receive()
    server.until(lambda: server.service.streams_closed == before + 1)


def test_large_response_is_complete(server: Running) -> None:
    with server.connect() as caller:
        for _ in range(2):
            caller.send(get(b"/large"))
            assert caller.answer().body == bytes(LARGE)
    assert WRITE_SIZE < LARGE


@pytest.mark.parametrize("target", [b"/broken", b"/broken-at-once", b"/bad-header", b"/100", b"/700"])
def test_internal_error_is_reported_by_number(server: Running, target: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as caller:
        caller.send(get(target) + get(b"/x"))
        answer = caller.answer()
        assert (answer.status, answer.closes) == (500, True)
        assert b"reference" in answer.body
        assert caller.is_closed()
    number = answer.body.decode().rpartition(" ")[2].rstrip(")")
    assert number in caplog.text
    assert "a secret" not in caplog.text + answer.body.decode()


def test_failing_error_response_is_a_bare_status(server: Running) -> None:
    answer = server.ask(b"GET /broken-refusal\r\n")
    assert (answer.status, answer.body) == (505, b"")


def test_services_cannot_set_connection_headers(server: Running) -> None:
    answer = server.ask(get(b"/contradicting"))
    assert answer.body == b"x"
    assert answer.headers.keys() == {"content-length", "date"}
    assert answer.headers["date"] != "never"


# Targets


@BY
@pytest.mark.parametrize(
    ("sent", "target"),
    [
        (b"/", b"/"),
        (b"//x//../y/", b"//x//../y/"),
        (b"/a%2Fb%", b"/a%2Fb%"),
        (b"/a\"<>[]|\\^{}`'b", b"/a\"<>[]|\\^{}`'b"),
        ("/ä?ü=€".encode(), "/ä?ü=€".encode()),
        (b"/\xff\x80", b"/\xff\x80"),
        (b"/a?b?c", b"/a?b?c"),
        (b"/a#b?c", b"/a"),
        (b"/a?b#c#d", b"/a?b"),
        (b"http://example.org/a?b", b"/a?b"),
        (b"HTTPS://example.org:443/", b"/"),
        (b"http://[::1]:80?q", b"/?q"),
        (b"http://example.org", b"/"),
        (b"http://example.org#f", b"/"),
        (b"http://example.org//a", b"//a"),
    ],
)
def test_target_is_kept_as_received(server: Running, by: int, sent: bytes, target: bytes) -> None:
    with server.connect() as caller:
        for _ in range(2):
            caller.send(get(sent), by=by)
            assert caller.answer().body == b"GET %b " % target


def test_options_asterisk(server: Running) -> None:
    assert server.ask(get(b"*", method=b"OPTIONS")).body == b"OPTIONS * "


@pytest.mark.parametrize("method", [b"get", b"PATCH", b"FOO", b"M-SEARCH", b"TRACE", b"PRI", b"a!#$%&'*+-.^_`|~9"])
def test_service_gets_any_method(server: Running, method: bytes) -> None:
    with server.connect() as caller:
        for _ in range(2):
            caller.send(get(b"/x", method=method))
            assert caller.answer().body == method + b" /x "


# Expect and upgrade


def test_expect_100_continue(server: Running) -> None:
    octets = get(b"/x", b"Expect: 100-Continue", b"Content-Length: 4", method=b"PUT")
    with server.connect() as caller:
        caller.send(octets)
        assert caller.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send(b"body")
        assert caller.answer().body == b"PUT /x body"
        caller.send(octets + b"body")  # it did not wait
        assert caller.receive().startswith(b"HTTP/1.1 200 OK\r\n")
        caller.send(get(b"/now", b"Expect: 100-continue"))  # there is none
        assert caller.answer().body == b"now\n"
        caller.send(get(b"/x", b"Expect: 100-continue", b"Content-Length: 4", method=b"PUT", version=b"1.0", body=b"b"))
        caller.send(b"ody")
        assert caller.answer().body == b"PUT /x body"


def test_expect_with_large_body_is_refused(server: Running) -> None:
    octets = get(b"/x", b"Expect: 100-continue", b"Content-Length: 9999999", method=b"PUT")
    assert server.ask(octets).status == 413


@pytest.mark.parametrize(
    "headers",
    [
        (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: x"),
        (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"),
        (b"Upgrade: h2c",),
    ],
)
def test_upgrade_is_ignored(server: Running, headers: tuple[bytes, ...]) -> None:
    with server.connect() as caller:
        for _ in range(2):
            caller.send(get(b"/x", *headers))
            assert caller.answer().body == b"GET /x "
            caller.send(get(b"/x", *headers, b"Content-Length: 4", method=b"POST", body=b"body"))
            assert caller.answer().body == b"POST /x body"
            body = b"4\r\nbody\r\n0\r\n\r\n"
            caller.send(get(b"/x", *headers, b"Transfer-Encoding: chunked", method=b"POST", body=body))
            assert caller.answer().body == b"POST /x body"


def test_one_empty_line_before_request_is_skipped(server: Running) -> None:
    with server.connect() as caller:
        for _ in range(3):
            caller.send(b"\r\n" + get(b"/x", b"Content-Length: 1", method=b"POST", body=b"a\r\n") + get(b"/now"))
            assert [caller.answer().body for _ in range(2)] == [b"POST /x a", b"now\n"]
        caller.send(b"\r", by=1)
        caller.send(b"\n", by=1)
        caller.send(get(b"/now"))
        assert caller.answer().body == b"now\n"
        caller.send(b"\r\n")
        caller.send(get(b"/now"))
        assert caller.answer().body == b"now\n"
        caller.send(b"\r\n\r\n" + get(b"/now"))
        assert caller.answer().status == 400


# Clients


def test_trusted_proxy_is_evaluated_per_request() -> None:
    peer = Peer("127.0.0.1", trusted_networks=NetworkSet(["127.0.0.0/8"]))
    with running(peer) as server, server.connect() as caller:
        for host in (b"192.0.2.1", b"192.0.2.1", b"192.0.2.2"):
            caller.send(get(b"/x", b"X-Forwarded-For: " + host, b"X-Forwarded-Proto: https"))
            caller.answer()
        caller.send(get(b"/x"))
        caller.answer()
        clients = [request.client for request in server.service.requests]
    assert [client.host for client in clients] == ["192.0.2.1", "192.0.2.1", "192.0.2.2", "127.0.0.1"]
    assert [client.secure for client in clients] == [True, True, True, False]
    assert [client.local for client in clients] == [False, False, False, False]


def test_certificate_and_tls_are_those_of_the_peer() -> None:
    with running(Peer("192.0.2.1", secure=True, certificate=b"DER")) as tls, tls.connect() as caller:
        caller.send(get(b"/x", b"X-Forwarded-For: 192.0.2.9", b"X-Forwarded-Proto: http"))
        caller.answer()
        client = tls.service.requests[0].client
    assert (client.host, client.secure, client.certificate) == ("192.0.2.1", True, b"DER")
    assert not client.local
    assert not client.trusted


def test_end_of_connection_is_reported() -> None:
    with running() as server:
        callers = [server.connect() for _ in range(3)]
        for caller in callers:
            caller.send(get(b"/now"))
            caller.answer()
        assert server.do(lambda: len(server.manager.open)) == 3
        for caller in callers:
            caller.sock.close()
        server.until(lambda: server.ended == 3)
        assert server.do(lambda: len(server.manager.open)) == 0

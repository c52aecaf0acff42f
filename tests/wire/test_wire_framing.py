"""Messages in a TCP stream and in HTTP."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.wire.codes import OpCode, RemoteProtocolError, ResponseCode
from perseid.wire.framing import (
    MEDIA_TYPE,
    Frame,
    FrameReader,
    HttpResponseReader,
    http_request,
    is_native,
    unwrap_http_body,
)
from perseid.wire.message import MAX_MESSAGE, Envelope, Header, Message
from tests.wire.recorded import fed, frames_of, load, native_headers
from tests.wire.strategies import EXAMPLES


def frame(payload: bytes, request_id: int = 1) -> Frame:
    return Frame(Envelope(request_id=request_id, length=len(payload)), payload)


def bytes_of(*frames: Frame) -> bytes:
    return b"".join(one.envelope.to_bytes() + one.payload for one in frames)


def http_answer(body: bytes, *headers: tuple[str, str], status: int = 200) -> bytes:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    while connection.next_event() is not h11.NEED_DATA and connection.their_state is not h11.DONE:
        pass
    pieces = [connection.send(h11.Response(status_code=status, headers=list(headers)))]
    if body:
        pieces.append(connection.send(h11.Data(data=body)))
    pieces.append(connection.send(h11.EndOfMessage()))
    return b"".join(piece or b"" for piece in pieces)


CHUNKED = (("Content-Type", MEDIA_TYPE), ("Transfer-Encoding", "chunked"))


def closed_answer(body: bytes, status: int) -> bytes:
    """An answer that ends with the connection, as deployed clients require for streams."""
    return f"HTTP/1.1 {status} -\r\nContent-Type: {MEDIA_TYPE}\r\nConnection: close\r\n\r\n".encode() + body


# TCP


@EXAMPLES
@given(st.lists(st.binary(max_size=60), max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_messages_are_read_from_pieces_of_any_size(payloads: list[bytes], sizes: list[int]) -> None:
    frames = [frame(payload, number) for number, payload in enumerate(payloads)]
    stream, reader, found = bytes_of(*frames), FrameReader(), []
    while stream:
        size = sizes[len(stream) % len(sizes)]
        found += fed(reader, stream[:size])
        stream = stream[size:]
    assert found == frames
    assert reader.is_idle


def test_stream_that_ends_inside_a_message_is_not_idle() -> None:
    reader = FrameReader()
    assert reader.is_idle
    stream = bytes_of(frame(b"message"))
    for byte in stream[:-1]:
        assert fed(reader, bytes((byte,))) == []
        assert not reader.is_idle
    assert fed(reader, stream[-1:]) == [frame(b"message")]
    assert reader.is_idle


@pytest.mark.parametrize("rest", [b"stream", b"TLS\0" + bytes(37), b"\x16\x03\x01" + b"\xff" * 60])
def test_bytes_after_the_last_message_are_kept(rest: bytes) -> None:
    reader = FrameReader()
    reader.feed(bytes_of(frame(b"message")) + rest)
    assert next(reader.frames()) == frame(b"message")
    assert reader.buffered == len(rest)
    assert not reader.is_idle


def test_message_of_262144_bytes_is_read() -> None:
    longest = frame(bytes(MAX_MESSAGE))
    assert fed(FrameReader(), bytes_of(longest)) == [longest]


@pytest.mark.parametrize("length", [MAX_MESSAGE + 1, -1, -(1 << 31), (1 << 31) - 1])
def test_invalid_length_ends_the_conversation_before_anything_is_stored(length: int) -> None:
    reader = FrameReader()
    with pytest.raises(RemoteProtocolError, match=f"the message has {length:,} bytes") as caught:
        fed(reader, Envelope(length=length).to_bytes())
    assert caught.value.code is ResponseCode.ERROR


def test_messages_before_an_invalid_one_are_returned() -> None:
    reader = FrameReader()
    reader.feed(bytes_of(frame(b"good")) + Envelope(length=-1).to_bytes())
    frames = reader.frames()
    assert next(frames) == frame(b"good")
    with pytest.raises(RemoteProtocolError):
        next(frames)


@EXAMPLES
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_stream_yields_messages_or_a_protocol_error(pieces: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for piece in pieces:
            for one in fed(reader, piece):
                assert len(one.payload) == one.envelope.length
    except RemoteProtocolError:
        return
    assert len(reader._buffer) <= sum(map(len, pieces))


# HTTP


def test_http_request_matches_the_specification() -> None:
    data = http_request(b"message", b"10.1/a b/\xc3\xa9", "example.org:8000")
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /10.1%2Fa%20b%2F%C3%A9 HTTP/1.1",
        b"Host: example.org:8000",
        b"Accept: application/x-hdl-message",
        b"User-Agent: perseid",
        b"Content-Type: application/x-hdl-message",
        b"Content-Length: 7",
    ]
    assert body == b"message"


@pytest.mark.parametrize(
    ("handle", "path", "target"),
    [(b"/", "", "/%2F"), (b"1/2", "/hs", "/hs/1%2F2"), (b"1/2", "/hs/", "/hs/1%2F2"), (b"\xff", "", "/%FF")],
)
def test_handle_is_one_path_segment_after_the_site_path(handle: bytes, path: str, target: str) -> None:
    assert http_request(b"", handle, "x", path).startswith(f"POST {target} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(
    ("accept", "content_type", "native"),
    [
        ("application/x-hdl-message", "application/x-hdl-message", True),
        ("text/html, Application/X-HDL-Message;q=1", "APPLICATION/x-hdl-message; charset=x", True),
        ("application/x-hdl-message", "application/json", False),
        ("*/*", "application/x-hdl-message", False),
        ("", "", False),
    ],
)
def test_native_request_has_both_headers(accept: str, content_type: str, native: bool) -> None:
    assert is_native(accept, content_type) is native


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("", "/1%2Fx"),
        ("/hdl", "/hdl/1%2Fx"),
        ("hdl/", "/hdl/1%2Fx"),
        ("/x y", "/x%20y/1%2Fx"),
        ("/a\r\nB: c", "/a%0D%0AB%3A%20c/1%2Fx"),
        ("/é", "/%C3%A9/1%2Fx"),
        ("http://evil", "/http%3A//evil/1%2Fx"),
    ],
)
def test_site_path_of_an_untrusted_peer_cannot_escape(path: str, target: str) -> None:
    assert http_request(b"", b"1/x", "h.org", path).startswith(f"POST {target} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize("host", ["a\r\nB: c", "é.org", "a b\0"])
def test_invalid_site_domain_of_an_untrusted_peer_is_refused(host: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^the site's domain or path is not valid in an HTTP request$"):
        http_request(b"", b"1/x", host)


@pytest.mark.parametrize("stray", [b"", b"\r", b"\n"])
def test_one_stray_line_ending_before_the_message_is_skipped(stray: bytes) -> None:
    stream = bytes_of(frame(b"message"))
    assert fed(FrameReader(), unwrap_http_body(stray + stream)) == [frame(b"message")]


def test_second_stray_line_ending_is_not_skipped() -> None:
    assert unwrap_http_body(b"\r\n\x02") == b"\n\x02"


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("form", ["length", "chunked", "closed"])
def test_http_answer_is_read_in_every_form_piece_size_and_status(form: str, status: int, size: int) -> None:
    frames = [frame(b"first"), frame(b"second")]
    body = bytes_of(*frames)
    reader, found = HttpResponseReader(), []
    if form == "closed":
        answer = closed_answer(body, status)
    else:
        headers = native_headers(len(body)) if form == "length" else CHUNKED
        answer = http_answer(body, *headers, status=status)
    for start in range(0, len(answer), size):
        assert not reader.is_finished
        found += reader.feed(answer[start : start + size])
    assert found == frames
    assert reader.is_finished is (form != "closed")
    assert reader.feed(b"") == []
    assert reader.is_finished


def test_interim_response_is_skipped() -> None:
    body = bytes_of(frame(b"message"))
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" + http_answer(body, *native_headers(len(body)))
    assert HttpResponseReader().feed(answer) == [frame(b"message")]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        bytes_of(frame(b"message")),
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
    ],
    ids=["other", "length", "chunk", "bare", "endless"],
)
def test_invalid_http_is_refused(answer: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the response is not valid HTTP"):
        HttpResponseReader().feed(answer)


def test_truncated_answer_is_refused() -> None:
    reader = HttpResponseReader()
    answer = http_answer(bytes_of(frame(b"message")), *native_headers(27))
    assert reader.feed(answer[:-3]) == []
    with pytest.raises(RemoteProtocolError, match="the response is not valid HTTP"):
        reader.feed(b"")


def test_invalid_message_in_an_answer_is_refused() -> None:
    body = Envelope(length=-1).to_bytes()
    with pytest.raises(RemoteProtocolError, match="the message has -1 bytes"):
        HttpResponseReader().feed(http_answer(body, *native_headers(len(body))))


@EXAMPLES
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=4), st.binary(max_size=60))
def test_any_answer_yields_messages_or_a_protocol_error(pieces: list[bytes], body: bytes) -> None:
    for begin in (b"", b"HTTP/1.1 200 OK\r\n\r\n", http_answer(body, *CHUNKED)):
        reader = HttpResponseReader()
        try:
            for piece in (begin, *pieces):
                if piece:
                    reader.feed(piece)
            reader.feed(b"")
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("name", ["resolve.all.tcp", "resolve.by-type.tcp"])
def test_recorded_vector_passes_through_http_both_ways(name: str) -> None:
    vector = next(vector for vector in load("resolve.json") if vector.name == name)
    (request,), (response,) = vector.request, vector.response
    server = h11.Connection(h11.SERVER)
    server.receive_data(http_request(request, b"20.500.99999/vec-std", "localhost"))
    head = server.next_event()
    assert isinstance(head, h11.Request)
    headers = {key.decode(): value.decode() for key, value in head.headers}
    assert is_native(headers["accept"], headers["content-type"])
    data = server.next_event()
    assert isinstance(data, h11.Data)
    assert fed(FrameReader(), unwrap_http_body(bytes(data.data))) == frames_of(vector.request, "tcp")
    answer = http_answer(response, *native_headers(len(response)))
    assert HttpResponseReader().feed(answer) == frames_of(vector.response, "tcp")


def test_frame_repr_hides_its_payload() -> None:
    message = Message.build(Envelope(), Header(OpCode.CREATE_HANDLE), b"passphrase")
    assert "passphrase" not in repr(Frame(message.envelope, message.payload()))

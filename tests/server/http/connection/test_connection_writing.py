"""Encoding of responses: added headers, and refused statuses and headers."""

from collections.abc import AsyncIterator

import pytest

from perseid.server.http.connection.responses import (
    CONNECTION_HEADERS,
    encode_chunk,
    encode_head,
    format_date,
    has_body,
)
from perseid.server.http.messages import Response

SECOND = 784_111_777.9
"""The example of RFC 9110, 5.6.7."""


async def stream() -> AsyncIterator[bytes]:
    yield b"x"


def head(response: Response, version: str = "1.1", *, keep: bool = True) -> list[str]:
    octets = encode_head(response, version=version, keep=keep, seconds=SECOND)
    assert octets.endswith(b"\r\n\r\n")
    return octets.decode("latin-1").split("\r\n")[:-2]


DATE = "Date: Sun, 06 Nov 1994 08:49:37 GMT"


def test_date_and_length_are_added() -> None:
    response = Response(200, (("Content-Type", "text/plain"), ("X-Name", "ä")), b"four")
    assert head(response) == [
        "HTTP/1.1 200 OK",
        "Content-Type: text/plain",
        "X-Name: ä",
        DATE,
        "Content-Length: 4",
    ]


def test_empty_body_has_a_length() -> None:
    assert head(Response(302, (("Location", "/x"),)))[-1] == "Content-Length: 0"


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("made", [b"", b"four", None])
def test_responses_without_body_have_no_length(status: int, made: bytes | None) -> None:
    response = Response(status, body=made) if made is not None else Response(status, stream=stream())
    assert head(response)[1:] == [DATE]
    assert not has_body(status, "GET")


def test_streams_are_chunked_for_http_1_1() -> None:
    assert head(Response(200, stream=stream()))[1:] == [DATE, "Transfer-Encoding: chunked"]
    assert head(Response(200, stream=stream()), "1.0", keep=False)[1:] == [DATE, "Connection: close"]


def test_connection_header() -> None:
    assert head(Response(200), keep=False)[-1] == "Connection: close"
    assert head(Response(200), "1.0")[-1] == "Connection: keep-alive"
    assert head(Response(200), "1.0", keep=False)[-1] == "Connection: close"
    assert len(head(Response(200))) == 3


@pytest.mark.parametrize("name", sorted(CONNECTION_HEADERS))
def test_connection_headers_of_responses_are_ignored(name: str) -> None:
    assert head(Response(200, ((name.title(), "x"),), b"four"))[1:] == [DATE, "Content-Length: 4"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "ä", "a\0"])
def test_invalid_header_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid header"):
        head(Response(200, ((name, "x"),)))


@pytest.mark.parametrize("status", [0, 99, 100, 199, 600, 1000])
def test_invalid_statuses_are_refused(status: int) -> None:
    with pytest.raises(ValueError, match="is not a valid status"):
        head(Response(status))


def test_unknown_status_has_empty_phrase() -> None:
    assert head(Response(299))[0] == "HTTP/1.1 299 "


def test_date_is_cached_per_second() -> None:
    assert format_date(0) == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert format_date(0) is format_date(0)
    assert format_date(2**32) == "Sun, 07 Feb 2106 06:28:16 GMT"


def test_chunk_has_its_size() -> None:
    assert encode_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_head_has_no_body() -> None:
    assert not has_body(200, "HEAD")
    assert has_body(200, "GET")

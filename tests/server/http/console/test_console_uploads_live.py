"""A file in a form of the console, on a running server: of any size within the quota, and only with a valid token."""

import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest

from tests.server.http.raw import NO_LIMITS
from tests.server.http.v1.test_v1_uploads_live import MEBIBYTE, memory, table
from tests.server.installations import ADMINISTRATOR, SECRET, copy_to
from tests.server.running import Serving, serving

LARGE: Final = 20 * MEBIBYTE
PATH: Final = "/console/imports"
BOUNDARY: Final = "boundary"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("uploads"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    with serving(directory, **NO_LIMITS, PERSEID_HTTP_IMPORT_SIZE="25", PERSEID_HTTP_IMPORT_SPOOL="60") as running:
        yield running


class Browser:
    """A user who has signed in."""

    def __init__(self, server: Serving) -> None:
        self.server, self.cookie = server, ""
        form = urlencode({"method": "secret", "identity": ADMINISTRATOR, "secret": SECRET})
        status, headers, _ = self.ask("POST", "/console/sign-in", form.encode(), "application/x-www-form-urlencoded")
        assert status == 303
        self.cookie = headers["Set-Cookie"].partition(";")[0]
        found = re.search('name="csrf" value="([^"]+)"', self.ask("GET", PATH)[2])
        assert found is not None
        self.token = found[1]

    def ask(self, method: str, path: str, body: bytes = b"", type_: str = "") -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection(*self.server.http, timeout=60)
        connection.request(method, path, body or None, {"Cookie": self.cookie, "Content-Type": type_})
        response = connection.getresponse()
        found = response.status, dict(response.headers), response.read().decode()
        connection.close()
        return found

    def upload(self, data: bytes, token: str) -> tuple[int, dict[str, str], str]:
        return self.ask("POST", PATH, body_of(data, token), f"multipart/form-data; boundary={BOUNDARY}")

    def start_upload(self, *headers: str) -> socket.socket:
        """Send the head of an upload."""
        caller = socket.create_connection(self.server.http, 60)
        kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
        lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Cookie: {self.cookie}", kind, *headers]
        caller.sendall("\r\n".join([*lines, "", ""]).encode())
        return caller


def body_of(data: bytes, token: str) -> bytes:
    start = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n{token}\r\n--{BOUNDARY}\r\n'
    start += 'Content-Disposition: form-data; name="file"; filename="t.csv"\r\n\r\n'
    end = f'\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name="map"\r\n\r\nShelf=URL\r\n--{BOUNDARY}--\r\n'
    return start.encode() + data + end.encode()


@pytest.fixture
def browser(server: Serving) -> Browser:
    return Browser(server)


def files(directory: Path) -> list[Path]:
    return [*directory.glob("spool/*")]


def test_large_file_is_imported_in_bounded_memory(browser: Browser, directory: Path) -> None:
    browser.ask("GET", browser.upload(b"handle,Shelf\n", browser.token)[1]["Location"])  # so that everything is loaded
    before, stored = memory(browser.server), files(directory)
    status, headers, _ = browser.upload(table(LARGE), browser.token)
    assert status == 303
    (made,) = {*files(directory)} - {*stored}
    assert headers["Location"] == f"{PATH}/{made.name}"
    assert (made / "source").read_bytes() == table(LARGE)
    assert '"Shelf":"URL"' in (made / "import.json").read_text()  # a field that comes after the file
    assert memory(browser.server) - before < LARGE * 3 // 4


def test_file_without_a_valid_token_is_not_read(browser: Browser, directory: Path) -> None:
    stored = files(directory)
    body = body_of(table(LARGE), "x" * 64)
    with browser.start_upload(f"Content-Length: {len(body)}") as caller:
        caller.sendall(body[:400])  # the token, and the start of the file
        answer = caller.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"was not issued to you" in answer
    assert files(directory) == stored


def test_file_before_the_token_is_refused(browser: Browser, directory: Path) -> None:
    stored = files(directory)
    whole = body_of(b"handle,URL\n", browser.token).decode()
    _, first, file, *rest = whole.split(f"--{BOUNDARY}")
    assert "csrf" in first
    body = f"--{BOUNDARY}".join(["", file, first, *rest]).encode()
    status, _, page = browser.ask("POST", PATH, body, f"multipart/form-data; boundary={BOUNDARY}")
    assert (status, "was not issued to you" in page) == (403, True)
    assert files(directory) == stored


def test_file_without_a_session_is_not_read(browser: Browser, directory: Path) -> None:
    stored = files(directory)
    browser.cookie = ""
    with browser.start_upload(f"Content-Length: {LARGE}") as caller:
        answer = caller.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 303 ")
    assert b"\r\nLocation: /console/sign-in" in answer
    assert files(directory) == stored


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Content-Length: {30 * MEBIBYTE}", 413),
        ("Transfer-Encoding: chunked", 411),
    ],
)
def test_file_that_is_too_large_is_refused_before_it_is_sent(browser: Browser, header: str, status: int) -> None:
    with browser.start_upload(header) as caller:
        assert caller.recv(1 << 16).startswith(f"HTTP/1.1 {status} ".encode())


def test_file_that_ends_too_early_is_deleted(browser: Browser, directory: Path) -> None:
    stored = files(directory)
    body = body_of(table(3 * MEBIBYTE), browser.token)
    with browser.start_upload(f"Content-Length: {len(body)}") as caller:
        caller.sendall(body[:-1000])
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
    assert files(directory) == stored


def test_fields_are_limited_like_other_forms(browser: Browser, directory: Path) -> None:
    stored = files(directory)
    fields = [f'Content-Disposition: form-data; name="map"\r\n\r\n{"x" * (MEBIBYTE * 3 // 4)}\r\n'] * 2
    body = f"--{BOUNDARY}\r\n".join(["", *fields]) + f"--{BOUNDARY}--\r\n"
    status, _, page = browser.ask("POST", PATH, body.encode(), f"multipart/form-data; boundary={BOUNDARY}")
    assert (status, "The fields of the form have more than 1 MiB" in page) == (413, True)
    assert files(directory) == stored


def test_client_does_not_choose_the_encoding_of_fields(browser: Browser) -> None:
    body = body_of("handle,Größe\n12345/a,ü\n".encode(), browser.token).replace(b"Shelf", "Größe".encode())
    type_ = f"multipart/form-data; boundary={BOUNDARY}; charset=punycode"
    status, headers, _ = browser.ask("POST", PATH, body, type_)
    assert status == 303
    assert "<dd><bdi>URL</bdi></dd>" in browser.ask("GET", headers["Location"])[2]  # as the field `map` says

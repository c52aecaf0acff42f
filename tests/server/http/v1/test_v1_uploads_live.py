"""Uploads to a running server: one request of any size within the quota, in bounded memory, deleted if interrupted."""

import asyncio
import hashlib
import http.client
import json
import re
import socket
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest

import perseid
from perseid.client.api import Client
from perseid.client.errors import ClientError, Refused
from perseid.schema.imports import ImportQuery, ImportState
from tests.server.http.contexts import basic
from tests.server.http.raw import NO_LIMITS
from tests.server.installations import ADMINISTRATOR, SECRET, copy_to
from tests.server.processes.test_processes import children, eventually
from tests.server.running import Serving, serving

MEBIBYTE: Final = 1 << 20
LARGE: Final = 50 * MEBIBYTE
LARGEST: Final = 60 * MEBIBYTE
LINE: Final = b"12345/x,7\n"
START: Final = b"handle,Shelf\n"  # a column that is not known, so the check ends at once
TARGET: Final = "/api/v1/imports?name=t.csv"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("uploads"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    with serving(directory, **NO_LIMITS, PERSEID_HTTP_IMPORT_SIZE="60", PERSEID_HTTP_IMPORT_SPOOL="100") as running:
        yield running


@pytest.fixture(autouse=True)
def spool(directory: Path, server: Serving) -> Iterator[Path]:
    """The spool, which is empty before and after a test."""
    yield directory / "spool"
    with connect(server) as client:
        for path in directory.glob("spool/*"):
            client.discard_import(path.name)
    assert not [*directory.glob("spool/*")]


def connect(server: Serving, **options: Any) -> Client:
    return perseid.connect(f"http://127.0.0.1:{server.http[1]}", identity=ADMINISTRATOR, secret=SECRET, **options)


def table(size: int) -> bytes:
    return (START + LINE * (size // len(LINE)))[:size]


def send(server: Serving, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(*server.http, timeout=60)
    connection.request("POST", TARGET, body, {**basic(), **headers}, encode_chunked="Transfer-Encoding" in headers)
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def open_upload(server: Serving, *headers: str) -> socket.socket:
    """Start a request."""
    caller = socket.create_connection(server.http, 60)
    lines = [f"POST {TARGET} HTTP/1.1", "Host: x", *headers, *[f"{name}: {value}" for name, value in basic().items()]]
    caller.sendall("\r\n".join([*lines, "", ""]).encode())
    return caller


def memory(server: Serving) -> int:
    """The sum of the peaks of all processes of a server, in bytes."""
    pids = [server.pid, *children(server, "")]
    found = [re.search(r"VmHWM:\s+([0-9]+)", Path(f"/proc/{pid}/status").read_text()) for pid in pids]
    return sum(int(each[1]) << 10 for each in found if each)


def test_large_file_arrives_in_one_request_and_in_bounded_memory(server: Serving, spool: Path) -> None:
    data = table(LARGE)
    send(server, table(100))  # so that everything is loaded
    before = memory(server)
    status, found = send(server, data)
    assert (status, found["size"], found["sha256"]) == (202, LARGE, hashlib.sha256(data).hexdigest())
    source = spool / found["id"] / "source"
    assert (source.stat().st_size, source.stat().st_mode & 0o077) == (LARGE, 0)
    assert memory(server) - before < LARGE // 4


def test_both_clients_stream_a_file(server: Serving) -> None:
    with connect(server) as client:
        found = client.check_import(BytesIO(table(LARGE)), ImportQuery(name="t.csv"))
        assert (found.state, found.size) == (ImportState.INVALID, LARGE)

    async def use() -> None:
        url = f"http://127.0.0.1:{server.http[1]}"
        async with perseid.connect_async(url, identity=ADMINISTRATOR, secret=SECRET) as client:
            found = await client.check_import(BytesIO(table(5 * MEBIBYTE)), ImportQuery(name="t.csv"))
            assert (found.state, found.size) == (ImportState.INVALID, 5 * MEBIBYTE)
            with pytest.raises(Refused, match="larger than 60 MiB"):
                await client.check_import(BytesIO(table(LARGEST + 1)), ImportQuery(name="t.csv"))

    asyncio.run(use())


def test_chunked_file_arrives(server: Serving) -> None:
    data = table(5 * MEBIBYTE)
    parts = (data[at : at + 70_000] for at in range(0, len(data), 70_000))
    status, found = send(server, parts, **{"Transfer-Encoding": "chunked"})
    assert (status, found["sha256"]) == (202, hashlib.sha256(data).hexdigest())


def test_file_beyond_the_limit_is_refused_before_it_is_sent(server: Serving, spool: Path) -> None:
    with connect(server) as client, pytest.raises(Refused, match="larger than 60 MiB"):
        client.check_import(BytesIO(table(LARGEST + 1)), ImportQuery(name="t.csv"))
    with open_upload(server, f"Content-Length: {LARGEST + 1}", "Expect: 100-continue") as caller:
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    assert not [*spool.glob("*")]


def test_chunked_file_beyond_the_limit_is_refused_and_deleted(server: Serving, spool: Path) -> None:
    with open_upload(server, "Transfer-Encoding: chunked") as caller:
        part = b"100000\r\n%b\r\n" % bytes(MEBIBYTE)
        for _ in range(61):
            caller.sendall(part)
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    eventually(lambda: not [*spool.glob("*")], "the file is deleted")


def test_quota_of_all_files_holds_for_one_that_is_streamed(server: Serving) -> None:
    assert send(server, table(LARGE))[0] == 202
    with connect(server, retries=0) as client, pytest.raises(ClientError) as caught:
        client.check_import(BytesIO(table(LARGE)), ImportQuery(name="t.csv"))
    assert caught.value.problem_type == "storage-full"


@pytest.mark.parametrize("length", ["Content-Length: 3000000", "Transfer-Encoding: chunked"])
def test_file_of_a_client_that_disconnects_is_deleted(server: Serving, spool: Path, length: str) -> None:
    with open_upload(server, length) as caller:
        caller.sendall(b"300000\r\n" + bytes(2 * MEBIBYTE))
        eventually(lambda: any(path.stat().st_size for path in spool.glob("*/source")), "a part has arrived")
    eventually(lambda: not [*spool.glob("*")], "the file is deleted")


def test_file_that_has_not_arrived_is_not_checked_again(server: Serving, spool: Path) -> None:
    with connect(server) as client, open_upload(server, f"Content-Length: {LARGE}") as caller:
        caller.sendall(table(2 * MEBIBYTE))
        eventually(lambda: any(path.stat().st_size for path in spool.glob("*/source")), "a part has arrived")
        (uploading,) = client.pending_imports().imports
        with pytest.raises(Refused, match="has not arrived completely") as refused:
            client.recheck_import(uploading.id, ImportQuery(map=("Shelf=URL",)))
        assert refused.value.problem_type == "state-conflict"
        assert client.show_import(uploading.id).state is ImportState.UPLOADING
    eventually(lambda: not [*spool.glob("*")], "the file is deleted")


def test_file_that_is_shorter_than_its_length_is_refused_and_deleted(server: Serving, spool: Path) -> None:
    with open_upload(server, "Content-Length: 3000000") as caller:
        caller.sendall(bytes(2_999_999))
        caller.shutdown(socket.SHUT_WR)
        answer = caller.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"The body of the request was incomplete" in answer
    assert not [*spool.glob("*")]


def test_file_of_a_slow_client_is_refused_and_deleted(server: Serving, spool: Path) -> None:
    with open_upload(server, "Content-Length: 3000000") as caller:
        caller.sendall(b"x")
        answer = caller.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert not [*spool.glob("*")]

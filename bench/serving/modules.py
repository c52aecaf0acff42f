"""Modules that a request passes through: `python -m bench.serving.modules [--list]`.

Every request is handled twice in this process, without sockets; counted are the modules of `perseid` that run during
the second one, in the thread that handles it. What the commit does is not counted: that is another process.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import perseid
from perseid.server.http.clients import Peer
from perseid.server.http.connection.connection import Connection
from perseid.server.http.connection.listener import ConnectionManager
from perseid.server.http.resolver.fast_path import FastPath
from perseid.server.http.service import MonitoredService, ServiceMonitor
from perseid.server.native.resolution import ResolutionSettings
from perseid.server.native.server import NativeServer
from perseid.server.observe.metrics import WorkerCounters
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.requests import ValuesRequest
from tests.server.http.contexts import Harness, basic, harness
from tests.server.installations import PREFIX
from tests.server.native import native_servers

_PACKAGE = perseid.__name__ + "."


@contextmanager
def passed() -> Iterator[set[str]]:
    """Collect the modules whose functions are called."""
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            modules.add(frame.f_globals.get("__name__", ""))

    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(None)
        modules -= {name for name in modules if not name.startswith(_PACKAGE)}


class _Wire(asyncio.Transport):
    """A transport that collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.arrived = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        self.arrived.set()

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def of_http(server: Harness, requests: list[bytes]) -> set[str]:
    """The modules that the last of some requests on a connection passes through."""
    settings = server.context.settings
    fast = FastPath(server.registry.ledger.answers, ResolutionSettings(), settings, time.time)
    monitor = ServiceMonitor(server.service, WorkerCounters(), fast)
    wire, manager = _Wire(), ConnectionManager(now=time.monotonic)
    service = MonitoredService(monitor, "192.0.2.1", secure=True)
    connection = Connection(service, manager, Peer("192.0.2.1", secure=True))
    connection.connection_made(wire)
    found: set[str] = set()
    for request in requests:
        wire.written = b""
        wire.arrived.clear()
        with passed() as modules:
            connection.data_received(request)
            await wire.arrived.wait()
        if wire.written[9:10] not in b"23":
            raise RuntimeError(wire.written.decode())
        found = modules
    return found


def _get(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()


def _put(name: str) -> bytes:
    body = json.dumps([{"index": 1, "type": "URL", "data": "https://example.org/"}])
    headers = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(body)), **basic()}
    lines = [f"PUT /api/handles/{name} HTTP/1.1", *[f"{key}: {value}" for key, value in headers.items()], "", body]
    return "\r\n".join(lines).encode()


def of_create() -> set[str]:
    """The modules that a create over TCP in an authenticated session passes through."""
    found: set[str] = set()
    receive: Callable[..., Any] = native_servers.receive

    def watched(*arguments: Any) -> Any:
        nonlocal found
        with passed() as found:
            return receive(*arguments)

    with native_servers.recorded_registry() as registry, patch.object(native_servers, "receive", watched):
        visitor = native_servers.Visitor(NativeServer(registry, native_servers.make_server(), native_servers.SITE))
        session = visitor.begin_session(native_servers.SEC)
        for number in range(2):
            name = f"{native_servers.PREFIX}/made-{number}".encode()
            body = ValuesRequest(name, (native_servers.URL, native_servers.BY_ADMINS))
            request = visitor.request(OpCode.CREATE_HANDLE, body, session=session)
            answer = visitor.ask_as(native_servers.SEC, request, session)
            if answer.code is not ResponseCode.SUCCESS:
                raise RuntimeError(native_servers.text_of(answer))
    return found


def main() -> None:
    """Print how many modules each request passes through."""
    parser = argparse.ArgumentParser(description="Print how many modules of perseid a request passes through.")
    parser.add_argument("--list", action="store_true", help="print their names too")
    options = parser.parse_args()
    name, api = f"{PREFIX}/n1", f"/api/handles/{PREFIX}/n1"
    identified = [f"{key}: {value}" for key, value in basic().items()]
    with harness() as server:
        found = {
            "GET /api/handles": asyncio.run(of_http(server, [_get(api)] * 2)),
            "GET /api/handles, authenticated": asyncio.run(of_http(server, [_get(api, *identified)] * 2)),
            "GET of the resolver": asyncio.run(of_http(server, [_get(f"/{name}")] * 2)),
            "GET of a record page": asyncio.run(of_http(server, [_get(f"/{name}?noredirect")] * 2)),
            "PUT": asyncio.run(of_http(server, [_put(f"{PREFIX}/made{number}") for number in range(2)])),
        }
    found["TCP create in a session"] = of_create()
    for what, modules in found.items():
        print(f"{what:<36}{len(modules):4}")
        for module in sorted(modules) if options.list else ():
            print(f"    {module.removeprefix(_PACKAGE)}")


if __name__ == "__main__":
    main()

"""Transports of the clients that send requests to a server in the same process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from perseid.client.api_async import AsyncResponseStream
from perseid.client.api_exchange import HttpRequest, Upload
from perseid.client.api_http import ResponseStream
from tests.server.http.contexts import Harness

URL: Final = "https://hdl.example.org"


def path_of(request: HttpRequest) -> str:
    """The path of a request."""
    return request.url.removeprefix(URL).partition("?")[0]


class InProcess:
    """Sends requests to a server in this process, and keeps them."""

    def __init__(self, server: Harness) -> None:
        self.server = server
        self.sent: list[HttpRequest] = []

    def ask(self, request: HttpRequest) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and body of a response."""
        self.sent.append(request)
        target = request.url.removeprefix(URL)
        body = b"".join(request.body) if isinstance(request.body, Upload) else request.body
        answer = self.server.ask(request.method, target, body, headers=request.headers)
        return answer.status, {name.lower(): value for name, value in answer.headers}, answer.body

    @contextmanager
    def open(self, request: HttpRequest, _timeout: float) -> Iterator[ResponseStream]:
        status, headers, body = self.ask(request)
        yield ResponseStream(status, headers, iter([body]))

    def close(self) -> None:
        """Nothing is open."""


class AsyncInProcess:
    """The same for `AsyncClient`."""

    def __init__(self, server: Harness) -> None:
        self.blocking = InProcess(server)

    @asynccontextmanager
    async def open(self, request: HttpRequest, _timeout: float) -> AsyncIterator[AsyncResponseStream]:
        status, headers, body = await asyncio.to_thread(self.blocking.ask, request)

        async def pieces() -> AsyncIterator[bytes]:
            yield body

        yield AsyncResponseStream(status, headers, pieces())

    async def close(self) -> None:
        """Nothing is open."""

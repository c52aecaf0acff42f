"""A transport of the client that sends requests to a server in the same process."""

import asyncio
from typing import Any, Final

import httpx

from tests.server.http.contexts import Harness

URL: Final = "https://hdl.example.org"


class InProcess(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Sends requests to a server in this process, and keeps them."""

    def __init__(self, server: Harness) -> None:
        self.server = server
        self.sent: list[httpx.Request] = []

    def _parts(self, request: httpx.Request) -> tuple[str, bytes, bytes, dict[str, Any]]:
        self.sent.append(request)
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        return request.method, request.url.raw_path, request.content, {"headers": headers}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        method, target, body, how = self._parts(request)
        answer = self.server.ask(method, target, body, **how)
        return httpx.Response(answer.status, headers=list(answer.headers), content=answer.body)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await asyncio.to_thread(self.handle_request, request)

"""ASGI applications behind our HTTP front: a request becomes a scope, and the messages of the application a response.

The front has parsed the request; nothing is parsed again. Unlike the path of other ASGI servers, `scope["path"]` is
still percent-encoded: a handle is one segment, `12345%2Fx`, and its parameter is decoded once, by the application.
"""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any, Final

from starlette.types import ASGIApp, Message

from .messages import Request, Response

_VERSIONS: Final = {"version": "3.0", "spec_version": "2.4"}  # from 2.4 on, `send` reports a lost connection


async def call_app(app: ASGIApp, request: Request, state: MutableMapping[str, Any]) -> Response:
    """Return the response of an application; raises what the application raises. `state` is that of the scope."""
    path, _, query = request.target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": _VERSIONS,
        "http_version": request.version,
        "method": request.method,
        "scheme": "https" if request.client.secure else "http",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers],
        "client": (request.client.host, 0),
        "server": None,
        "state": state,
    }
    exchange = _Exchange(request.body)
    exchange.task = asyncio.get_running_loop().create_task(exchange.run(app, scope))
    try:
        response = await exchange.response
    except asyncio.CancelledError:
        exchange.task.cancel()
        raise
    if request.method == "HEAD" and response.stream is not None:
        await exchange.aclose()
    return response


class _Exchange(AsyncIterator[bytes]):
    """A request and its response. It iterates over the parts of a streamed body, each sent when it is taken."""

    task: "asyncio.Task[None]"

    def __init__(self, body: bytes) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._body: bytes | None = body
        self._start: Message = {}
        self._parts: asyncio.Queue[bytes | None] | None = None  # of a stream; None is its end

    async def run(self, app: ASGIApp, scope: MutableMapping[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
            if not self.response.done():
                raise RuntimeError("the application sent no response")
        except Exception as error:
            if self.response.done():
                raise  # in the middle of a stream
            self.response.set_exception(error)
        finally:
            if self._parts is not None:
                self._parts.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is None:  # the task is cancelled when the client has gone
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not self.response.done():
            headers = tuple(
                [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._start["headers"]]
            )
            if not more:
                self.response.set_result(Response(self._start["status"], headers, body))
                return
            self._parts = asyncio.Queue()
            self.response.set_result(Response(self._start["status"], headers, stream=self))
        if self._parts is not None:
            self._parts.put_nowait(body)
            await self._parts.join()

    async def __anext__(self) -> bytes:
        if self._parts is None:
            raise StopAsyncIteration
        part = await self._parts.get()
        self._parts.task_done()
        if part is not None:
            return part
        await self.task  # raises what the application has raised
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the application: the client has gone, or wants no body."""
        self._parts = None
        self.task.cancel()
        await asyncio.wait((self.task,))

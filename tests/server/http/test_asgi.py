"""ASGI applications behind our front: scopes, responses, streams, errors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from perseid.server.http.asgi import call_app
from perseid.server.http.messages import Client, Request, Response

REQUEST = Request(
    "POST", b"/a%2Fb/%ff?x=%41", [("x-one", "1"), ("x-one", "\xe9")], b"body", Client("192.0.2.1", secure=True)
)


def call(app: Any, request: Request = REQUEST) -> Response:
    return asyncio.run(call_app(app, request, {}))


def test_application_gets_the_request_as_received() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = StarletteRequest(scope, receive)
        seen.update(scope, body=await request.body(), ones=request.headers.getlist("X-One"))
        await PlainTextResponse("yes", 201, {"X-Two": "2"})(scope, receive, send)

    response = call(app)
    assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/a%2Fb/%ff", b"/a%2Fb/%ff", b"x=%41")
    assert (seen["method"], seen["scheme"], seen["http_version"]) == ("POST", "https", "1.1")
    assert (seen["client"], seen["body"], seen["ones"]) == (("192.0.2.1", 0), b"body", ["1", "\xe9"])
    assert (response.status, response.body, list(response.values("x-two"))) == (201, b"yes", ["2"])


def test_error_of_the_application_is_raised() -> None:
    async def app(_: Scope, __: Receive, ___: Send) -> None:
        raise ValueError("no")

    async def silent(_: Scope, __: Receive, ___: Send) -> None:
        pass

    with pytest.raises(ValueError, match="no"):
        call(app)
    with pytest.raises(RuntimeError, match="no response"):
        call(silent)


class Numbers:
    """A stream of numbers that notes how far it came, and can fail."""

    def __init__(self, fail_at: int = 10) -> None:
        self.fail_at, self.sent, self.ended = fail_at, 0, False

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            while self.sent < 3:
                if self.sent == self.fail_at:
                    raise ValueError("no")
                self.sent += 1
                yield b"%d" % self.sent
        finally:
            self.ended = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(self.parts())(scope, receive, send)


def test_stream_is_sent_as_it_is_taken() -> None:
    numbers = Numbers()

    async def take() -> list[tuple[bytes, int]]:
        stream = (await call_app(numbers, REQUEST, {})).stream
        assert stream is not None
        return [(part, numbers.sent) async for part in stream]

    # The application makes the next part while this one is sent, and no more.
    assert [(part, sent) for part, sent in asyncio.run(take()) if part] == [(b"1", 1), (b"2", 2), (b"3", 3)]
    assert numbers.ended


def test_failed_stream_does_not_look_complete() -> None:
    async def take() -> list[bytes]:
        stream = (await call_app(Numbers(fail_at=1), REQUEST, {})).stream
        assert stream is not None
        return [part async for part in stream]

    with pytest.raises(ValueError, match="no"):
        asyncio.run(take())


@pytest.mark.parametrize("taken", [0, 1])
def test_closed_stream_ends_the_application(taken: int) -> None:
    numbers = Numbers()

    async def close() -> None:
        stream: Any = (await call_app(numbers, REQUEST, {})).stream
        for _ in range(taken):
            await anext(stream)
        await stream.aclose()
        assert stream.task.cancelled()

    asyncio.run(close())
    assert numbers.sent < 3


def test_cancelled_request_ends_the_application() -> None:
    started, ended = asyncio.Event(), []

    async def app(_: Scope, receive: Receive, __: Send) -> None:
        try:
            await receive()
            started.set()
            await receive()  # until the client has gone
        finally:
            ended.append(True)

    async def cancel() -> None:
        task = asyncio.create_task(call_app(app, REQUEST, {}))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(cancel())
    assert ended == [True]

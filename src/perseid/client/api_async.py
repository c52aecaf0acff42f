"""The HTTP API as a Python client for asynchronous programs; see `api`."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from http.client import BadStatusLine
from typing import BinaryIO, Final, Protocol, Self, TypeVar, Unpack, cast

import httpx
import msgspec

from perseid.schema.imports import ImportQuery, ImportResponse, ImportState
from perseid.schema.jobs import JobResponse

from . import api_imports
from .api import (
    MAX_POLL_SECONDS,
    POLL_SECONDS,
    SILENT_SECONDS,
    AsyncOperations,
    Body,
    ConnectOptions,
    Event,
    Options,
    check_event_stream,
    event_request,
    has_ended,
    make_options,
)
from .api_exchange import (
    ApiRequest,
    EventParser,
    Exclusive,
    Failure,
    HttpRequest,
    HttpResponse,
    NoResponse,
    Steps,
    Upload,
    exchange,
)
from .api_http import Connections, Proxy, describe_failure
from .api_imports import Source
from .errors import ClientError, Unreachable

R = TypeVar("R")
Page = TypeVar("Page", bound=msgspec.Struct)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class AsyncResponseStream:
    """A response whose body is still to be read; the names of headers are in lowercase."""

    status: int
    headers: dict[str, str]
    pieces: AsyncIterator[bytes]


class AsyncTransport(Protocol):
    """How requests are sent."""

    def open(self, request: HttpRequest, timeout: float) -> AbstractAsyncContextManager[AsyncResponseStream]:
        """Send a request, and wait some seconds for each part of its response; raises `NoResponse`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class HttpxTransport:
    """The connections to one server, without settings of the environment: they could redirect secrets."""

    def __init__(self, options: Options, context: ssl.SSLContext | None) -> None:
        self._http = httpx.AsyncClient(verify=context or False, proxy=options.proxy, trust_env=False)
        proxy = None if options.proxy is None else Proxy.parse(options.proxy)
        self._uploads = Connections(options.origin, context, proxy)

    async def close(self) -> None:
        """Close the connections."""
        self._uploads.close()
        await self._http.aclose()

    @asynccontextmanager
    async def open(self, request: HttpRequest, timeout: float) -> AsyncIterator[AsyncResponseStream]:  # noqa: ASYNC109
        """Send a request over a kept connection, or a new one."""
        if isinstance(request.body, Upload):
            yield await asyncio.to_thread(self._upload, request, timeout)
            return
        try:
            async with self._http.stream(
                request.method, request.url, headers=request.headers, content=request.body, timeout=timeout
            ) as response:
                yield AsyncResponseStream(response.status_code, dict(response.headers), response.aiter_bytes())
        except _NEVER_SENT as error:
            raise NoResponse(describe_failure(error, timeout, sent=False)) from error
        except httpx.TimeoutException as error:
            raise NoResponse(describe_failure(TimeoutError(), timeout)) from error
        except httpx.HTTPError as error:
            is_other_protocol = isinstance(error, httpx.RemoteProtocolError) and str(error).startswith("illegal")
            raise NoResponse(describe_failure(BadStatusLine("") if is_other_protocol else error, timeout)) from error

    def _upload(self, request: HttpRequest, timeout: float) -> AsyncResponseStream:
        """Send a file in a thread: reading it blocks, and httpx does not read an answer that comes before its end."""
        with self._uploads.open(request, timeout) as response:
            body = Body()
            for piece in response.pieces:
                body.add(piece)
            return AsyncResponseStream(response.status, response.headers, _iterate(bytes(body.data)))


async def _iterate(data: bytes) -> AsyncIterator[bytes]:
    yield data


_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""Failures before the server could get the request."""


def connect_async(url: str, **options: Unpack[ConnectOptions]) -> "AsyncClient":
    """Return an asynchronous client of the server at a URL, like `connect`."""
    return AsyncClient(make_options(url, options))


class AsyncClient(AsyncOperations):
    """The client for asynchronous programs, with the same operations; use it in an `async with` statement."""

    def __init__(self, options: Options, transport: AsyncTransport | None = None) -> None:
        """`transport` replaces the network in tests."""
        self.options = options
        self._transport = transport
        self._opening = asyncio.Lock()
        self._alone = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def send(self, request: ApiRequest[R]) -> R:
        """Send a request of an operation and return its result; raises `ClientError`."""
        return await self._run(exchange(request, self.options.origin, self.options.credentials, self.options.retries))

    async def _run(self, steps: Steps[R]) -> R:
        result: object = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return cast(R, done.value)
            if isinstance(step, HttpRequest):
                result = await self._transfer(step)
            elif isinstance(step, Exclusive):
                async with self._alone:
                    result = await self._run(step.steps)
            else:
                await asyncio.sleep(step.seconds)
                result = None

    async def watch(self, job: str = "last") -> AsyncIterator[JobResponse]:
        """Yield a job on every change, until it has ended or the server no longer runs it."""
        current = await self.job(job)
        yield current
        pause = POLL_SECONDS
        while not has_ended(current):
            try:
                async with aclosing(self._events(current.job)) as events:
                    async for event in events:
                        current, pause = event.job, POLL_SECONDS
                        yield current
                        if event.is_last:
                            return
            except Unreachable:  # the connection ended, or the server streams no more events now
                pass
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_POLL_SECONDS)
            current = await self.job(current.job)
            yield current

    async def wait(self, job: str = "last", progress: Callable[[JobResponse], None] | None = None) -> JobResponse:
        """Wait until a job has ended and return it; `progress` is called on every change."""
        current: JobResponse | None = None
        async for current in self.watch(job):
            if progress is not None:
                progress(current)
        assert current is not None  # noqa: S101 - `watch` yields the job at once
        return current

    async def check_import(
        self, file: BinaryIO, query: ImportQuery, progress: Callable[[int], None] | None = None
    ) -> ImportResponse:
        """Upload a file and wait until it is checked; `progress` is called with the rows checked so far."""
        found = await self.create_import(file, query)
        try:
            while found.state is ImportState.CHECKING:
                if progress is not None:
                    progress(found.checked)
                await asyncio.sleep(api_imports.POLL_SECONDS)
                found = await self.show_import(found.id)
        except BaseException:  # as `api_imports.check`
            with suppress(ClientError):
                await self.discard_import(found.id)
            raise
        return found

    async def import_file(
        self,
        source: Source,
        query: ImportQuery | None = None,
        *,
        note: str = "",
        progress: Callable[[JobResponse], None] | None = None,
    ) -> JobResponse:
        """Import a file: upload and check it, and wait for the job. Raises `Refused` if rows are invalid."""
        with api_imports.open_source(source, query) as (file, options):
            checked = await self.check_import(file, options)
        api_imports.require_valid(checked)
        started = await self.apply_import(checked.id, note=note, sha256=checked.sha256, check=checked.check)
        return await self.wait(started.job, progress)

    async def write_import_report(self, import_id: str, to: BinaryIO) -> None:
        """Write the invalid rows with their problems, in the form of the file, to be corrected and imported."""
        offset = 0
        while part := await self.read_import_report(import_id, offset):
            offset += to.write(part)

    async def write_minted(self, job: str, to: BinaryIO) -> None:
        """Write the imported file again, with the handles that a job has minted for its rows."""
        import_id, offset = api_imports.get_import_id(await self.job(job)), 0
        while part := await self.read_minted_handles(import_id, offset):
            offset += to.write(part)

    async def _open(self) -> AsyncTransport:
        async with self._opening:  # the first requests may come together
            if self._transport is None:
                context = await asyncio.to_thread(self.options.make_context)  # it may fetch a certificate
                self._transport = HttpxTransport(self.options, context)
            return self._transport

    async def _transfer(self, request: HttpRequest) -> HttpResponse | Failure:
        transport = await self._open()
        try:
            async with transport.open(request, self.options.timeout) as response:
                body = Body()
                async for piece in response.pieces:
                    body.add(piece)
                return HttpResponse(response.status, response.headers, bytes(body.data))
        except NoResponse as failed:
            return failed.failure

    async def _events(self, job: str) -> AsyncGenerator[Event, None]:
        transport, parser = await self._open(), EventParser()
        try:
            async with transport.open(event_request(job, self.options), SILENT_SECONDS) as response:
                check_event_stream(self.options.origin, response.status)
                async for piece in response.pieces:
                    for name, data in parser.feed(piece):
                        yield Event.of(name, data)
        except NoResponse as failed:
            raise Unreachable(str(failed)) from failed

"""The HTTP API as a Python client, blocking (`Client`) and asynchronous (`AsyncClient`).

    with perseid.connect("https://id.example.org", token=token) as client:
        minted = client.mint("12345", {"URL": "https://example.org/1"})
        for found in client.find(host="example.org"):
            print(found.handle)

Both clients have the operations of `Operations`. Results are structures of `perseid.schema`; lists are
iterators over all pages. The clients differ only in how they send requests and wait: the rules are in `api_exchange`.
"""

import asyncio
import hashlib
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, Unpack, cast
from urllib.parse import quote

import httpx
import msgspec

from perseid import __version__
from perseid.records.private_keys import PrivateKey
from perseid.schema.jobs import JobResponse

from .api_access import AccessOperations
from .api_exchange import (
    DEFAULT_RETRIES,
    ApiRequest,
    Credentials,
    EventParser,
    Failure,
    HttpRequest,
    HttpResponse,
    KeyCredentials,
    Origin,
    SecretCredentials,
    TokenCredentials,
    Wait,
    build_request,
    check_privacy,
    exchange,
)
from .api_operations import QueryOperations, RecordOperations
from .api_services import JOB_PATH, JobOperations, NamespaceOperations
from .errors import ProtocolError, UnexpectedKey, Unreachable
from .options import check_options, parse_identity, read_key

R = TypeVar("R")
Page = TypeVar("Page", bound=msgspec.Struct)
Item = TypeVar("Item")

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds to wait for a connection, and for each part of a response: more than any answer of an idle server takes."""

MAX_RESPONSE: Final = 1 << 26
"""Bytes of a response: a page has some MiB, and only a single item of extreme size is larger."""

POLL_SECONDS: Final = 1.0
"""Seconds between two requests for a job whose events cannot be streamed."""

SILENT_SECONDS: Final = 60.0
"""Seconds without any event: the server sends a comment after fifteen."""

_HEADERS: Final = {"User-Agent": f"perseid/{__version__}"}


@dataclass(frozen=True, slots=True)
class Options:
    """How a client connects."""

    origin: Origin
    credentials: Credentials = field(default_factory=Credentials)
    ca_file: Path | None = None
    """Certificates that are trusted instead of the system's."""
    fingerprint: str = ""
    """The SHA-256 hash of the server's certificate, in hexadecimal, instead of a chain of trust."""
    certificate: Path | None = None
    """A client certificate, with its private key, in PEM."""
    proxy: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    retries: int = DEFAULT_RETRIES

    def for_httpx(self) -> dict[str, Any]:
        """The arguments of the clients of httpx, without settings of the environment: they could redirect secrets."""
        verify = self._make_context() if self.origin.is_https else False
        return {
            "verify": verify,
            "proxy": self.proxy,
            "timeout": self.timeout,
            "headers": _HEADERS,
            "trust_env": False,
        }

    def _make_context(self) -> ssl.SSLContext:
        """Trust the system's certificates, those of a file, or exactly one. Blocks if that one must be fetched."""
        if self.fingerprint:
            context = ssl.create_default_context(cadata=fetch_certificate(self.origin, self.fingerprint, self.timeout))
            context.check_hostname = False  # the certificate itself is known
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        else:
            context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate)
        return context


def fetch_certificate(origin: Origin, fingerprint: str, timeout: float = DEFAULT_TIMEOUT) -> str:
    """Fetch the certificate of a server in PEM, and compare its fingerprint."""
    try:
        text = ssl.get_server_certificate((origin.host, origin.port), timeout=timeout)
    except OSError as error:
        raise Unreachable(f"{origin.url} cannot be reached: {error}") from error
    found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()
    if found != normalize_fingerprint(fingerprint):
        raise UnexpectedKey(
            f"The certificate of {origin.url} has the fingerprint {found}, not the expected one",
            advice="Ask the operator of the server for the fingerprint of its new certificate",
        )
    return text


def normalize_fingerprint(text: str) -> str:
    """Read the SHA-256 hash of a certificate, with or without colons; raises ValueError."""
    digits = text.replace(":", "").replace(" ", "").lower().removeprefix("sha256")
    if len(digits) != hashlib.sha256().digest_size * 2 or not set(digits) <= set("0123456789abcdef"):
        raise ValueError("A fingerprint has the 64 hexadecimal digits of the SHA-256 hash of the certificate")
    return digits


class ConnectOptions(TypedDict, total=False):
    """The options of `connect`, all of them optional."""

    token: str
    """A token, which `perseid token create` or `Client.create_token` creates."""
    identity: str
    """Who acts, as `INDEX:HANDLE`; together with `secret` or `key`."""
    secret: str | bytes
    """The secret of the identity."""
    key: PrivateKey | Path | str
    """The private key of the identity, or its file; it signs a challenge and is never sent.

    A protected file is read with `perseid.records.private_keys.read_private_key(data, passphrase)`.
    """
    certificate: Path | str
    """A file with a client certificate and its private key, in PEM."""
    ca_file: Path | str
    """A file with the certificates to trust, in PEM, instead of those of the system."""
    fingerprint: str
    """The SHA-256 hash of the server's certificate, instead of a chain of trust: for self-signed ones."""
    proxy: str
    """The URL of an HTTP proxy. Environment variables are ignored: they could redirect secrets."""
    timeout: float
    """Seconds to wait for a connection, and for each part of a response."""
    retries: int
    """Further attempts of a request that failed, where repeating it is safe."""


def make_options(url: str, given: ConnectOptions) -> Options:
    """Check the options of `connect`; raises ValueError or TypeError."""
    check_options(given, ConnectOptions)
    origin = Origin.parse(url)
    if len(given.keys() & {"token", "secret", "key", "certificate"}) > 1:
        raise ValueError("Use only one of token, secret, key and certificate")
    if ("identity" in given) != bool(given.keys() & {"secret", "key"}):
        raise ValueError("Use identity together with secret or key")
    credentials = Credentials()
    if "token" in given:
        if not given["token"].isascii() or not given["token"].isprintable() or " " in given["token"]:
            raise ValueError("The token has spaces, line ends or other characters that no token has. Remove them")
        credentials = TokenCredentials(given["token"])
    elif "secret" in given:
        secret = given["secret"]
        credentials = SecretCredentials(
            str(parse_identity(given["identity"])), secret.encode() if isinstance(secret, str) else secret
        )
    elif "key" in given:
        credentials = KeyCredentials(str(parse_identity(given["identity"])), read_key(given["key"]))
    ca_file, certificate, proxy = given.get("ca_file"), given.get("certificate"), given.get("proxy")
    has_credentials = certificate is not None or type(credentials) is not Credentials
    check_privacy(origin, has_credentials=has_credentials, proxy=proxy)
    fingerprint = normalize_fingerprint(given["fingerprint"]) if "fingerprint" in given else ""
    if fingerprint and (proxy is not None or ca_file is not None):
        raise ValueError("fingerprint cannot be combined with proxy or ca_file. Use ca_file alone")
    return Options(
        origin,
        credentials,
        None if ca_file is None else Path(ca_file),
        fingerprint,
        None if certificate is None else Path(certificate),
        proxy,
        given.get("timeout", DEFAULT_TIMEOUT),
        given.get("retries", DEFAULT_RETRIES),
    )


def connect(url: str, **options: Unpack[ConnectOptions]) -> "Client":
    """Return a client of the server at a URL. Nothing is sent yet. Raises ValueError for invalid options."""
    return Client(make_options(url, options))


def connect_async(url: str, **options: Unpack[ConnectOptions]) -> "AsyncClient":
    """Return an asynchronous client of the server at a URL, like `connect`."""
    return AsyncClient(make_options(url, options))


# Clients


class Operations(RecordOperations, QueryOperations, JobOperations, NamespaceOperations, AccessOperations):
    """All operations of the HTTP API."""


class Pages(Generic[Page, Item]):
    """A list of the server: iterate over its items, or over its pages. Each page is requested when it is needed."""

    def __init__(self, client: "Client", request: ApiRequest[Page], items: str) -> None:
        self._client, self._request, self._items = client, request, items

    def __iter__(self) -> Iterator[Item]:
        for page in self.pages():
            yield from getattr(page, self._items)

    def pages(self) -> Iterator[Page]:
        """Iterate over the pages, which say more than their items."""
        request: ApiRequest[Page] | None = self._request
        while request is not None:
            page = self._client.send(request)
            yield page
            request = request.next_page(page)


class AsyncPages(Generic[Page, Item]):
    """The same for `AsyncClient`."""

    def __init__(self, client: "AsyncClient", request: ApiRequest[Page], items: str) -> None:
        self._client, self._request, self._items = client, request, items

    async def __aiter__(self) -> AsyncIterator[Item]:
        async for page in self.pages():
            for item in getattr(page, self._items):
                yield item

    async def pages(self) -> AsyncIterator[Page]:
        """Iterate over the pages, which say more than their items."""
        request: ApiRequest[Page] | None = self._request
        while request is not None:
            page = await self._client.send(request)
            yield page
            request = request.next_page(page)


class Client(Operations):
    """A client of one server. It can be used by several threads; close it, or use it in a `with` statement."""

    def __init__(self, options: Options, transport: httpx.BaseTransport | None = None) -> None:
        """`transport` replaces the network in tests."""
        self.options = options
        self._transport = transport
        self._http: httpx.Client | None = None
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def send(self, request: ApiRequest[R]) -> R:
        """Send a request of an operation and return its result; raises `ClientError`."""
        steps = exchange(request, self.options.origin, self.options.credentials, self.options.retries)
        result: HttpResponse | Failure | None = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return cast(R, done.value)
            if isinstance(step, Wait):
                time.sleep(step.seconds)
                result = None
            else:
                result = self._transfer(step)

    def iterate(self, request: ApiRequest[Page], items: str) -> Pages[Page, Any]:
        """Return the pages of a list, which has its items in a field."""
        return Pages(self, request, items)

    def watch(self, job: str = "last") -> Iterator[JobResponse]:
        """Yield a job on every change, until it has ended or the server no longer runs it."""
        current = self.job(job)
        yield current
        while not has_ended(current):
            try:
                for event in self._events(current.job):
                    current = event.job
                    yield current
                    if event.is_last:
                        return
            except Unreachable:  # the connection ended, or the server streams no more events now
                time.sleep(POLL_SECONDS)
            current = self.job(current.job)
            yield current

    def wait(self, job: str = "last", progress: Callable[[JobResponse], None] | None = None) -> JobResponse:
        """Wait until a job has ended and return it; `progress` is called on every change."""
        current: JobResponse | None = None
        for current in self.watch(job):
            if progress is not None:
                progress(current)
        assert current is not None  # noqa: S101 - `watch` yields the job at once
        return current

    def _open(self) -> httpx.Client:
        with self._opening:  # several threads may come together
            if self._http is None:
                self._http = httpx.Client(**self.options.for_httpx(), transport=self._transport)
            return self._http

    def _transfer(self, request: HttpRequest) -> HttpResponse | Failure:
        http = self._open()
        try:
            with http.stream(request.method, request.url, headers=request.headers, content=request.body) as response:
                body = _Body()
                for piece in response.iter_bytes():
                    body.add(piece)
                return _to_response(response, body)
        except httpx.HTTPError as error:
            return to_failure(error)

    def _events(self, job: str) -> Iterator["Event"]:
        request = event_request(job, self.options)
        parser = EventParser()
        try:
            with self._open().stream("GET", request.url, headers=request.headers, timeout=SILENT_SECONDS) as response:
                check_event_stream(self.options.origin, response.status_code)
                for piece in response.iter_bytes():
                    for name, data in parser.feed(piece):
                        yield Event.of(name, data)
        except httpx.HTTPError as error:
            raise Unreachable(str(error)) from error


class AsyncClient(Operations):
    """The client for asynchronous programs, with the same operations; use it in an `async with` statement."""

    def __init__(self, options: Options, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` replaces the network in tests."""
        self.options = options
        self._transport = transport
        self._http: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def send(self, request: ApiRequest[R]) -> R:
        """Send a request of an operation and return its result; raises `ClientError`."""
        steps = exchange(request, self.options.origin, self.options.credentials, self.options.retries)
        result: HttpResponse | Failure | None = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return cast(R, done.value)
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
                result = None
            else:
                result = await self._transfer(step)

    def iterate(self, request: ApiRequest[Page], items: str) -> AsyncPages[Page, Any]:
        """Return the pages of a list, which has its items in a field."""
        return AsyncPages(self, request, items)

    async def watch(self, job: str = "last") -> AsyncIterator[JobResponse]:
        """Yield a job on every change, until it has ended or the server no longer runs it."""
        current = await self.job(job)
        yield current
        while not has_ended(current):
            try:
                async for event in self._events(current.job):
                    current = event.job
                    yield current
                    if event.is_last:
                        return
            except Unreachable:  # the connection ended, or the server streams no more events now
                await asyncio.sleep(POLL_SECONDS)
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

    async def _open(self) -> httpx.AsyncClient:
        async with self._opening:  # the first requests may come together
            if self._http is None:
                options = await asyncio.to_thread(self.options.for_httpx)  # reads files, and may fetch a certificate
                self._http = httpx.AsyncClient(**options, transport=self._transport)
            return self._http

    async def _transfer(self, request: HttpRequest) -> HttpResponse | Failure:
        http = await self._open()
        try:
            async with http.stream(
                request.method, request.url, headers=request.headers, content=request.body
            ) as response:
                body = _Body()
                async for piece in response.aiter_bytes():
                    body.add(piece)
                return _to_response(response, body)
        except httpx.HTTPError as error:
            return to_failure(error)

    async def _events(self, job: str) -> AsyncIterator["Event"]:
        http, request = await self._open(), event_request(job, self.options)
        parser = EventParser()
        try:
            async with http.stream("GET", request.url, headers=request.headers, timeout=SILENT_SECONDS) as response:
                check_event_stream(self.options.origin, response.status_code)
                async for piece in response.aiter_bytes():
                    for name, data in parser.feed(piece):
                        yield Event.of(name, data)
        except httpx.HTTPError as error:
            raise Unreachable(str(error)) from error


# What both share


@dataclass(slots=True)
class _Body:
    """The body of a response, within its limit."""

    data: bytearray = field(default_factory=bytearray)

    def add(self, piece: bytes) -> None:
        self.data += piece
        if len(self.data) > MAX_RESPONSE:
            raise ProtocolError(f"The response has more than {MAX_RESPONSE >> 20} MiB")


def _to_response(response: httpx.Response, body: _Body) -> HttpResponse:
    return HttpResponse(response.status_code, dict(response.headers), bytes(body.data))


def to_failure(error: httpx.HTTPError) -> Failure:
    """Describe why there is no response."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = "Use ca_file with the certificate of the server, or fingerprint"
            reason = f"its certificate is not trusted ({cause.verify_message})"
            return Failure(reason, sent=False, advice=advice, final=True)
        cause = cause.__cause__ or cause.__context__
    never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError)
    return Failure(str(error) or type(error).__name__, sent=not never_sent)


@dataclass(frozen=True, slots=True)
class Event:
    """The progress of a job, as the server reports it."""

    job: JobResponse
    is_last: bool

    @classmethod
    def of(cls, name: str, data: bytes) -> Self:
        """Decode an event."""
        try:
            return cls(msgspec.json.decode(data, type=JobResponse), name == "end")
        except ValueError as error:
            raise ProtocolError(f"The server sent an invalid event: {error}") from error


def event_request(job: str, options: Options) -> HttpRequest:
    """The request for the events of a job."""
    events = ApiRequest("GET", f"{JOB_PATH.format(job=quote(job, safe=''))}/events", bytes)
    return build_request(events, options.origin, options.credentials)


def check_event_stream(origin: Origin, status: int) -> None:
    """Raise `Unreachable` if a response is not a stream: requests for the job itself tell the reason."""
    if status != 200:
        raise Unreachable(f"{origin.url} streams no events: status {status}")


def has_ended(job: JobResponse) -> bool:
    """Whether a job is complete, canceled or failed."""
    return job.ended_at is not None or job.problem is not None

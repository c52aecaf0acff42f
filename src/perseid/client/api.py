"""The HTTP API as a Python client, blocking (`Client`) or asynchronous (`AsyncClient`).

    with perseid.connect("https://id.example.org", token=token) as client:
        minted = client.mint("12345", {"URL": "https://example.org/1"})
        for found in client.find(host="example.org"):
            print(found.handle)

Both clients have the operations of `Operations`. Results are structures of `perseid.schema`; lists are
iterators over all pages. The clients differ only in how they send requests and wait: the rules are in `api_exchange`.
`api_async` has the asynchronous one, so that others need not load asyncio and httpx.
"""

import hashlib
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, Self, TypedDict, TypeVar, Unpack, cast

import msgspec

from perseid.schema.imports import ImportQuery, ImportResponse
from perseid.schema.jobs import JobResponse

from . import api_imports
from .api_access import AccessOperations
from .api_exchange import (
    DEFAULT_RETRIES,
    ApiRequest,
    Credentials,
    EventParser,
    Exclusive,
    Failure,
    HttpRequest,
    HttpResponse,
    KeyCredentials,
    NoResponse,
    Origin,
    SecretCredentials,
    Steps,
    TokenCredentials,
    build_request,
    check_privacy,
    exchange,
    unreachable,
)
from .api_http import (
    Connections,
    Proxy,
    Transport,
    describe_failure,
    load_authorities,
    load_certificate,
    read_certificate,
)
from .api_imports import ImportOperations, Source
from .api_operations import QueryOperations, RecordOperations, encode_parameter
from .api_services import JOB_PATH, JobOperations, NamespaceOperations
from .errors import ProtocolError, UnexpectedKey, Unreachable
from .options import check_options, parse_identity, read_key

if TYPE_CHECKING:
    from perseid.records.private_keys import PrivateKey

R = TypeVar("R")
Page = TypeVar("Page", bound=msgspec.Struct)
Item = TypeVar("Item")

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds to wait for a connection, and for each part of a response: more than any answer of an idle server takes."""

MAX_RESPONSE: Final = 1 << 26
"""Bytes of a response: a page has some MiB, and only a single item of extreme size is larger."""

POLL_SECONDS: Final = 1.0
"""Seconds between two requests for a job whose events cannot be streamed; each further pause is twice as long."""

MAX_POLL_SECONDS: Final = 8.0
"""The longest pause, in seconds, while no event arrives."""

SILENT_SECONDS: Final = 60.0
"""Seconds without any event: the server sends a comment after fifteen."""


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
    proxy: str | None = field(default=None, repr=False)
    """The URL of an HTTP proxy, perhaps with a password."""
    timeout: float = DEFAULT_TIMEOUT
    retries: int = DEFAULT_RETRIES

    def make_context(self) -> ssl.SSLContext | None:
        """Trust the system's certificates, those of a file, or exactly one. Blocks if that one must be fetched."""
        if not self.origin.is_https:
            return None
        if self.fingerprint:
            context = ssl.create_default_context(cadata=fetch_certificate(self.origin, self.fingerprint, self.timeout))
            context.check_hostname = False  # the certificate itself is known
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        else:
            context = load_authorities(self.ca_file)
        if self.certificate is not None:
            load_certificate(context, self.certificate)
        return context


def fetch_certificate(origin: Origin, fingerprint: str, timeout: float = DEFAULT_TIMEOUT) -> str:
    """Fetch the certificate of a server in PEM, and compare its fingerprint."""
    try:
        data = read_certificate(origin.host, origin.port, timeout)
    except OSError as error:
        raise unreachable(origin, describe_failure(error, timeout, sent=False)) from error
    found = hashlib.sha256(data).hexdigest()
    if found != normalize_fingerprint(fingerprint):
        raise UnexpectedKey(
            f"The certificate of {origin.url} has the fingerprint {found}, not the expected one",
            advice="Ask the operator of the server for the fingerprint of its new certificate",
        )
    return ssl.DER_cert_to_PEM_cert(data)


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
    key: "PrivateKey | Path | str"
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
    """Check the options of `connect`, and that its files can be used; raises ValueError or TypeError."""
    check_options(given, ConnectOptions)
    origin = Origin.parse(url)
    credentials = _make_credentials(given)
    ca_file, certificate, proxy = given.get("ca_file"), given.get("certificate"), given.get("proxy")
    has_credentials = certificate is not None or type(credentials) is not Credentials
    check_privacy(origin, has_credentials=has_credentials, proxy=proxy)
    fingerprint = normalize_fingerprint(given["fingerprint"]) if "fingerprint" in given else ""
    if fingerprint and (proxy is not None or ca_file is not None):
        raise ValueError("fingerprint cannot be combined with proxy or ca_file. Use ca_file alone")
    if proxy is not None:
        Proxy.parse(proxy)
    if ca_file is not None:
        load_authorities(Path(ca_file))
    if certificate is not None:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), Path(certificate))
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


def _make_credentials(given: ConnectOptions) -> Credentials:
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
    return credentials


def connect(url: str, **options: Unpack[ConnectOptions]) -> "Client":
    """Return a client of the server at a URL. Nothing is sent yet. Raises ValueError for invalid options."""
    return Client(make_options(url, options))


# Clients


class Operations(
    RecordOperations, QueryOperations, ImportOperations, JobOperations, NamespaceOperations, AccessOperations
):
    """All operations of the HTTP API."""


class AsyncOperations(Operations, ABC):
    """The same for asynchronous programs; a subclass sends the requests."""

    @abstractmethod
    async def send(self, request: ApiRequest[R]) -> R:
        """Send a request of an operation and return its result; raises `ClientError`."""

    def iterate(self, request: ApiRequest[Page], items: str) -> "AsyncPages[Page, Any]":
        """Return the pages of a list, which has its items in a field."""
        return AsyncPages(self, request, items)


class AsyncPages(Generic[Page, Item]):
    """A list of the server, for `AsyncOperations`; see `Pages`."""

    def __init__(self, client: AsyncOperations, request: ApiRequest[Page], items: str) -> None:
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

    async def page(self, cursor: str = "") -> Page:
        """Return one page: the first, or the one at a cursor."""
        request = self._request
        if cursor:
            query: Any = request.query
            request = replace(request, query=msgspec.structs.replace(query, cursor=cursor))
        return await self._client.send(request)


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


class Client(Operations):
    """A client of one server. It can be used by several threads; close it, or use it in a `with` statement."""

    def __init__(self, options: Options, transport: Transport | None = None) -> None:
        """`transport` replaces the network in tests."""
        self.options = options
        self._transport = transport
        self._opening = threading.Lock()
        self._alone = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._opening:
            transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def send(self, request: ApiRequest[R]) -> R:
        """Send a request of an operation and return its result; raises `ClientError`."""
        return self._run(exchange(request, self.options.origin, self.options.credentials, self.options.retries))

    def _run(self, steps: Steps[R]) -> R:
        result: object = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return cast(R, done.value)
            if isinstance(step, HttpRequest):
                result = self._transfer(step)
            elif isinstance(step, Exclusive):
                with self._alone:
                    result = self._run(step.steps)
            else:
                time.sleep(step.seconds)
                result = None

    def iterate(self, request: ApiRequest[Page], items: str) -> Pages[Page, Any]:
        """Return the pages of a list, which has its items in a field."""
        return Pages(self, request, items)

    def watch(self, job: str = "last") -> Iterator[JobResponse]:
        """Yield a job on every change, until it has ended or the server no longer runs it."""
        current = self.job(job)
        yield current
        pause = POLL_SECONDS
        while not has_ended(current):
            try:
                with closing(self._events(current.job)) as events:
                    for event in events:
                        current, pause = event.job, POLL_SECONDS
                        yield current
                        if event.is_last:
                            return
            except Unreachable:  # the connection ended, or the server streams no more events now
                pass
            time.sleep(pause)
            pause = min(pause * 2, MAX_POLL_SECONDS)
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

    def check_import(
        self, file: BinaryIO, query: ImportQuery, progress: Callable[[int], None] | None = None
    ) -> ImportResponse:
        """Upload a file and wait until it is checked; `progress` is called with the rows checked so far."""
        return api_imports.check(self, file, query, progress)

    def import_file(
        self,
        source: Source,
        query: ImportQuery | None = None,
        *,
        note: str = "",
        progress: Callable[[JobResponse], None] | None = None,
    ) -> JobResponse:
        """Import a file: upload and check it, and wait for the job. Raises `Refused` if rows are invalid."""
        with api_imports.open_source(source, query) as (file, options):
            checked = self.check_import(file, options)
        api_imports.require_valid(checked)
        started = self.apply_import(checked.id, note=note, sha256=checked.sha256, check=checked.check)
        return self.wait(started.job, progress)

    def write_import_report(self, import_id: str, to: BinaryIO) -> None:
        """Write the invalid rows with their problems, in the form of the file, to be corrected and imported."""
        offset = 0
        while part := self.read_import_report(import_id, offset):
            offset += to.write(part)

    def write_minted(self, job: str, to: BinaryIO) -> None:
        """Write the imported file again, with the handles that a job has minted for its rows."""
        import_id, offset = api_imports.get_import_id(self.job(job)), 0
        while part := self.read_minted_handles(import_id, offset):
            offset += to.write(part)

    def _open(self) -> Transport:
        with self._opening:  # several threads may come together
            if self._transport is None:
                proxy = None if self.options.proxy is None else Proxy.parse(self.options.proxy)
                self._transport = Connections(self.options.origin, self.options.make_context(), proxy)
            return self._transport

    def _transfer(self, request: HttpRequest) -> HttpResponse | Failure:
        try:
            with self._open().open(request, self.options.timeout) as response:
                body = Body()
                for piece in response.pieces:
                    body.add(piece)
                return HttpResponse(response.status, response.headers, bytes(body.data))
        except NoResponse as failed:
            return failed.failure

    def _events(self, job: str) -> Generator["Event", None, None]:
        parser = EventParser()
        try:
            with self._open().open(event_request(job, self.options), SILENT_SECONDS) as response:
                check_event_stream(self.options.origin, response.status)
                for piece in response.pieces:
                    for name, data in parser.feed(piece):
                        yield Event.of(name, data)
        except NoResponse as failed:
            raise Unreachable(str(failed)) from failed


# What both share


@dataclass(slots=True)
class Body:
    """The body of a response, within its limit."""

    data: bytearray = field(default_factory=bytearray)

    def add(self, piece: bytes) -> None:
        """Add a piece; raises ProtocolError if there are too many."""
        self.data += piece
        if len(self.data) > MAX_RESPONSE:
            raise ProtocolError(f"The response has more than {MAX_RESPONSE >> 20} MiB")


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
    events = ApiRequest("GET", f"{JOB_PATH.format(job=encode_parameter(job))}/events", bytes)
    return build_request(events, options.origin, options.credentials.headers() or {})


def check_event_stream(origin: Origin, status: int) -> None:
    """Raise `Unreachable` if a response is not a stream: requests for the job itself tell the reason."""
    if status != 200:
        raise Unreachable(f"{origin.url} streams no events: status {status}")


def has_ended(job: JobResponse) -> bool:
    """Whether a job is complete, canceled or failed."""
    return job.ended_at is not None or job.problem is not None

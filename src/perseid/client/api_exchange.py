"""Requests to the HTTP API without sockets: credentials, retries, and what an answer means.

`exchange` is a generator: it yields an `HttpRequest` to send, and receives an `HttpResponse` or a `Failure`; or it
yields a `Wait` or an `Exclusive`. A driver (`api`, `api_async`) does the input and output.

A request is sent again only if that is safe: the server says that nothing was changed (429, 503), the request was never
sent, or repeating it has no further effect (reading, replacing, and creating with an idempotency key). A change that
may have been made, and whose response did not arrive, is an `UnknownOutcome`.
"""

import base64
import ipaddress
import random
import re
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from perseid import __version__
from perseid.records.encoding import from_base64, to_base64
from perseid.schema.common import AlreadyDone
from perseid.schema.exports import AS_OF_HEADER, OMITTED_HEADER, RECORDS_HEADER, ExportPart
from perseid.schema.imports import ProblemPage
from perseid.schema.problems import Problem

from .errors import (
    ClientError,
    NotFound,
    ProtocolError,
    Refused,
    UnknownOutcome,
    Unreachable,
    UntrustedCertificate,
)

if TYPE_CHECKING:
    from perseid.records.private_keys import PrivateKey

R = TypeVar("R")

USER_AGENT: Final = f"perseid/{__version__}"
API_PATH: Final = "/api/v1"
SESSIONS_PATH: Final = "/api/sessions"
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
PROBLEM_JSON: Final = "application/problem+json"

DEFAULT_RETRIES: Final = 3
"""Further attempts: together with the waits, they outlast the restart of a server process."""

FIRST_WAIT: Final = 0.25
"""Seconds before the second attempt; each further wait is twice as long, and up to a quarter of it is random, so that
many clients do not come back together."""

MAX_WAIT: Final = 8.0
"""The longest wait, in seconds, that the client chooses."""

MAX_RETRY_AFTER: Final = 60
"""The longest wait, in seconds, that a server can ask for; for longer ones the error is raised at once."""

MAX_EVENT: Final = 1 << 20
"""Bytes of an event: a job with its problem has some KiB."""

_SESSION_ID: Final = re.compile(r"[!#-\[\]-~]{1,200}")
"""What the header of a request can contain between quotation marks."""

_NEXT: Final = re.compile(r'<([^>]*)>; rel="next"')
_TOO_MANY_REQUESTS: Final = 429
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_UNAVAILABLE: Final = 503
_GATEWAY_ERRORS: Final = frozenset((502, 504))
"""A proxy got no valid answer: whether the server has done what was asked is unknown."""


UPLOAD_SIZE: Final = 1 << 16
"""Bytes of a file that are read and sent at a time."""


class InsecureConnection(ValueError):
    """Credentials would be sent where others can read them."""


# Requests and responses


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that is sent while it is read; it iterates over its parts, from the beginning each time."""

    file: BinaryIO
    size: int

    @classmethod
    def of(cls, file: BinaryIO) -> "Upload":
        """Find the size of a file that can be read again."""
        return cls(file, file.seek(0, 2))

    def __iter__(self) -> Iterator[bytes]:
        self.file.seek(0)
        remaining = self.size
        while remaining:
            part = self.file.read(min(UPLOAD_SIZE, remaining))
            if not part:
                raise NoResponse(Failure("the file has become shorter while it was sent", final=True))
            remaining -= len(part)
            yield part


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to send."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | Upload = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response; the names of headers are in lowercase."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """The media type without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no response."""

    reason: str
    sent: bool = True
    """Whether the server may have got the request."""
    advice: str = ""
    final: bool = False
    """Whether another attempt fails as well: a certificate that is not trusted."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds to wait before the next request."""

    seconds: float


class NoResponse(Exception):
    """What a transport raises instead of returning a response."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Steps that only one request of a client does at a time; the next one finds what the first has done."""

    steps: "Steps[Any]"


Steps: TypeAlias = Generator[HttpRequest | Wait | Exclusive, Any, R]
"""Requests and waits, and a result."""


class Repeat(Enum):
    """Whether a request can be sent again although the server may have got it."""

    NEVER = "never"
    ALWAYS = "always"
    """It reads, or its repetition changes nothing more."""
    WITH_KEY = "with_key"
    """Its idempotency key prevents a second change."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[R]):
    """One request of an operation."""

    method: str
    path: str
    """The path under the API, with encoded parameters."""
    response: type[R]
    """The type of the result; bytes for other media types than JSON."""
    query: msgspec.Struct | None = None
    body: msgspec.Struct | Upload | None = None
    """The body; a file is sent as it is."""
    repeat: Repeat = Repeat.NEVER
    if_version: int | None = None
    """The latest entry of the record that the change is based on."""

    def next_page(self, page: Any) -> "ApiRequest[R] | None":
        """The request of the page after one; None after the last."""
        query: Any = self.query
        if page.next is None or query is None:
            return None
        if page.next == query.cursor:  # a proxy may ignore the cursor
            raise ProtocolError(f"The server sent the same page of {API_PATH}{self.path} again")
        return replace(self, query=msgspec.structs.replace(query, cursor=page.next))


def encode_query(query: msgspec.Struct | None) -> str:
    """Encode the parameters that differ from their defaults."""
    if query is None:
        return ""
    pairs: list[tuple[str, str]] = []
    given = msgspec.to_builtins(query)
    for each in msgspec.structs.fields(query):
        value = given[each.encode_name]
        if value is None or getattr(query, each.name) == each.default:
            continue
        items: Iterable[object] = value if isinstance(value, list | tuple) else (value,)
        pairs += [(each.encode_name, str(item).lower() if isinstance(item, bool) else str(item)) for item in items]
    return urlencode(pairs, quote_via=quote)


# Where the server is


@dataclass(frozen=True, slots=True)
class Origin:
    """The address of a server, without a trailing slash: `https://id.example.org`."""

    url: str
    host: str
    port: int
    is_https: bool

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Parse a URL; raises ValueError."""
        if "@" in url:
            raise ValueError("A URL must not contain credentials. Use token, or identity and secret")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a server. Use https://HOST")
        if parts.query or parts.fragment:
            raise ValueError(f"{url} has a query or fragment. Use https://HOST")
        is_https = parts.scheme == "https"
        path = quote(parts.path, safe="/%").rstrip("/").removesuffix(API_PATH)
        base = f"{parts.scheme}://{parts.netloc}{path}"
        return cls(base, parts.hostname, parts.port or (443 if is_https else 80), is_https)

    @property
    def is_loopback(self) -> bool:
        """Whether this machine itself is meant."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost" or self.host.endswith(".localhost")


# Credentials


Headers: TypeAlias = Mapping[str, str]


@dataclass(slots=True)
class Credentials:
    """Who acts: anonymous, or with a client certificate, which the connection proves."""

    def headers(self) -> Headers | None:
        """The headers of a request; None if `sign_in` must make them."""
        return {}

    def sign_in(self, _origin: Origin) -> Steps[Headers | HttpResponse | Failure]:
        """Make the headers, or return what went wrong."""
        yield from ()
        return {}

    def renew(self, _refused: Headers) -> bool:
        """Forget headers that the server no longer accepts; return whether another attempt can succeed."""
        return False


@dataclass(slots=True)
class TokenCredentials(Credentials):
    """A token of a program."""

    token: str = field(repr=False)

    def headers(self) -> Headers:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(slots=True)
class SecretCredentials(Credentials):
    """An identity and its secret, in each request (Basic)."""

    identity: str
    secret: bytes = field(repr=False)

    def headers(self) -> Headers:
        pair = quote(self.identity, safe="/").encode() + b":" + self.secret
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


@dataclass(slots=True)
class KeyCredentials(Credentials):
    """An identity and its private key, which signs the nonce of a session; the key is never sent."""

    identity: str
    key: "PrivateKey" = field(repr=False)
    _session: Headers | None = field(default=None, repr=False)

    def headers(self) -> Headers | None:
        return self._session

    def sign_in(self, origin: Origin) -> Steps[Headers | HttpResponse | Failure]:
        """Start a session and sign its nonce, unless another request has done so."""
        if self._session is not None:
            return self._session
        response: HttpResponse | Failure = yield HttpRequest("POST", f"{origin.url}{SESSIONS_PATH}")
        if isinstance(response, Failure):
            return replace(response, sent=False)  # what follows was not sent
        if response.status in _GATEWAY_ERRORS:
            return Failure(f"a proxy answers with status {response.status}", sent=False)
        if response.status >= 300:
            return response
        try:
            session = msgspec.json.decode(response.body, type=_Session)
            nonce = from_base64(session.nonce, "nonce")
            if not _SESSION_ID.fullmatch(session.session_id):
                raise ValueError("the id of the session")
        except ValueError as error:
            raise ProtocolError(f"{origin.url} did not start a session") from error
        cnonce = secrets.token_bytes(16)
        # The server accepts the same claim again without verifying it, and a restarted one after verifying it.
        fields = {
            "sessionId": session.session_id,
            "id": quote(self.identity, safe="/"),
            "type": "HS_PUBKEY",
            "cnonce": to_base64(cnonce),
            "alg": "SHA-256",
            "signature": to_base64(self.key.sign("SHA-256", nonce + cnonce)),
        }
        claim = ", ".join([f'{name}="{value}"' for name, value in fields.items()])
        made = self._session = {"Authorization": f"Handle {claim}"}
        return made

    def renew(self, refused: Headers) -> bool:
        if self._session is refused:  # otherwise another request has signed in meanwhile
            self._session = None
        return True


class _Session(msgspec.Struct, rename="camel"):
    """A session as the server returns it."""

    session_id: str
    nonce: str


def check_privacy(origin: Origin, *, has_credentials: bool, proxy: str | None) -> None:
    """Refuse credentials over plain HTTP, except to this machine itself."""
    if has_credentials and not origin.is_https and (proxy is not None or not origin.is_loopback):
        raise InsecureConnection(f"Credentials are not sent over plain HTTP. Use https://{origin.host}")


# The exchange


def exchange(
    request: ApiRequest[R], origin: Origin, credentials: Credentials, retries: int = DEFAULT_RETRIES
) -> Steps[R]:
    """Send a request, again where that helps and is safe, and return its result; raises `ClientError`."""
    key = secrets.token_hex(16) if request.repeat is Repeat.WITH_KEY else ""
    attempt, renewed, is_uncertain = 0, False, False
    while True:
        headers: Headers | HttpResponse | Failure | None = credentials.headers()
        if headers is None:
            headers = yield Exclusive(credentials.sign_in(origin))
        if isinstance(headers, HttpResponse | Failure):
            response = headers
        else:
            response = yield build_request(request, origin, headers or {}, key)
            if isinstance(response, HttpResponse) and response.status < 300:
                return read_result(request, origin, response)
            if isinstance(response, HttpResponse) and response.status == _UNAUTHORIZED and not renewed:
                renewed = True
                if credentials.renew(headers or {}):
                    continue
        is_uncertain = is_uncertain or may_have_arrived(response)
        seconds = wait_before_retry(request, response, attempt)
        if seconds is None or attempt >= retries:
            raise make_error(request, origin, response, is_uncertain=is_uncertain)
        attempt += 1
        yield Wait(seconds)


def build_request(request: ApiRequest[Any], origin: Origin, credentials: Headers, key: str = "") -> HttpRequest:
    """Build one attempt of a request."""
    query = encode_query(request.query)
    url = f"{origin.url}{API_PATH}{request.path}{'?' if query else ''}{query}"
    headers = {"User-Agent": USER_AGENT, "Accept": f"{JSON}, */*;q=0.5", **credentials}
    body: bytes | Upload = b""
    if isinstance(request.body, Upload):
        body = request.body
        headers |= {"Content-Type": BYTES, "Content-Length": str(body.size)}
    elif request.body is not None:
        body = msgspec.json.encode(request.body)
        headers["Content-Type"] = JSON
    if key:
        headers["Idempotency-Key"] = key
    if request.if_version is not None:
        headers["If-Match"] = f'"v{request.if_version}"'
    return HttpRequest(request.method, url, headers, body)


def may_have_arrived(response: HttpResponse | Failure) -> bool:
    """Whether the server may have done what was asked, although it did not say so."""
    return response.sent if isinstance(response, Failure) else response.status in _GATEWAY_ERRORS


def is_temporary(response: HttpResponse) -> bool:
    """Whether the server did not answer a request now: it is busy, or still does the first attempt of it."""
    return response.status in (_TOO_MANY_REQUESTS, _UNAVAILABLE) or (
        response.status == _CONFLICT and "retry-after" in response.headers
    )


def wait_before_retry(request: ApiRequest[Any], response: HttpResponse | Failure, attempt: int) -> float | None:
    """Seconds to wait before another attempt; None if there must be none."""
    own = min(FIRST_WAIT * 2**attempt, MAX_WAIT)
    own += own * random.random() / 4  # noqa: S311 - not a secret
    if isinstance(response, Failure):
        can_repeat = not response.sent or request.repeat is not Repeat.NEVER
        return own if can_repeat and not response.final else None
    if is_temporary(response):
        asked = response.headers.get("retry-after", "")
        seconds = float(asked) if asked.isascii() and asked.isdecimal() else 0.0
        return None if seconds > MAX_RETRY_AFTER else max(own, seconds)
    return own if response.status in _GATEWAY_ERRORS and request.repeat is not Repeat.NEVER else None


def read_result(request: ApiRequest[R], origin: Origin, response: HttpResponse) -> R:
    """Decode the result of a successful response."""
    if request.response is bytes:
        return response.body  # type: ignore[return-value]
    if request.response is ExportPart:
        return _read_part(origin, response)  # type: ignore[return-value]
    try:
        if response.media_type != JSON:
            raise ValueError(f"media type {response.media_type or 'missing'}")
        result = msgspec.json.decode(response.body, type=request.response)
    except ValueError as error:
        if "idempotency-replayed" in response.headers and (seq := _read_entry(response)) is not None:
            raise ProtocolError(
                f"The change was made (entry {seq}), but the server no longer has its response"
            ) from error
        advice = "Check the URL, and whether the server has a newer version than this client"
        if request.repeat is not Repeat.ALWAYS:
            advice = f"The change may have been made: look before you repeat it. {advice}"
        raise ProtocolError(
            f"{origin.url} did not answer {request.method} {API_PATH}{request.path} as a Perseid server does: {error}",
            advice=advice,
        ) from error
    if isinstance(result, ProblemPage):
        from .advice import phrase_rows  # noqa: PLC0415 - only errors need it

        return phrase_rows(result)  # type: ignore[return-value]
    if warnings := getattr(result, "warnings", ()):
        from .advice import phrase_warnings  # noqa: PLC0415 - few results have any

        return msgspec.structs.replace(result, warnings=phrase_warnings(warnings))  # type: ignore[type-var]
    return result


def _read_entry(response: HttpResponse) -> int | None:
    """The entry of a change whose response the server no longer has; None if it does not tell."""
    try:
        return msgspec.json.decode(response.body, type=AlreadyDone).seq
    except ValueError:
        return None


def _read_part(origin: Origin, response: HttpResponse) -> ExportPart:
    """Read a part of an export; its headers say the rest."""
    names = (RECORDS_HEADER, AS_OF_HEADER, OMITTED_HEADER)
    counts = [response.headers.get(name.lower(), "") for name in names]
    if not all(count.isascii() and count.isdecimal() for count in counts):
        raise ProtocolError(f"{origin.url} did not answer GET {API_PATH}/exports as a Perseid server does")
    match = _NEXT.search(response.headers.get("link", ""))
    cursor = None if match is None else dict(parse_qsl(urlsplit(match[1]).query)).get("cursor")
    return ExportPart((response.body,), int(counts[0]), int(counts[1]), int(counts[2]), cursor)


def make_error(
    request: ApiRequest[Any], origin: Origin, response: HttpResponse | Failure, *, is_uncertain: bool
) -> ClientError:
    """Convert the last response to an error; `is_uncertain`: an attempt may have been successful."""
    is_open = isinstance(response, Failure) or may_have_arrived(response) or is_temporary(response)
    error = read_error(origin, response) if isinstance(response, HttpResponse) else unreachable(origin, response)
    if is_open and is_uncertain and request.repeat is not Repeat.ALWAYS:
        return UnknownOutcome(
            f"The change was sent, but its response did not arrive: {error.detail}",
            advice="It may have been made: look before you repeat it",
        )
    return error


def read_error(origin: Origin, response: HttpResponse) -> ClientError:
    """Convert an unsuccessful response to an error."""
    location = response.headers.get("location", "")
    if 300 <= response.status < 400:
        return ProtocolError(
            f"{origin.url} redirects to {location or 'another address'}, which is not followed",
            advice="Connect to the URL of the server itself",
        )
    try:
        problem = msgspec.json.decode(response.body, type=Problem) if response.media_type == PROBLEM_JSON else None
    except ValueError:
        problem = None
    if problem is None:
        if response.status in (*_GATEWAY_ERRORS, _UNAVAILABLE):
            return Unreachable(f"{origin.url} is not available: a proxy answers with status {response.status}")
        return ProtocolError(
            f"{origin.url} answered with status {response.status}, but not as a Perseid server does",
            advice="Check the URL of the server",
        )
    return to_error(problem)


def to_error(problem: Problem) -> ClientError:
    """Convert the problem of a server to an error."""
    from .advice import render_advice  # noqa: PLC0415 - only errors need it

    kind = {_NOT_FOUND: NotFound}.get(problem.status, Refused if problem.status < 500 else ClientError)
    return kind(
        problem.detail,
        advice=render_advice(problem),
        code=problem.code,
        rule=problem.rule,
        problem_type=problem.type.rpartition("#")[2],
        problem=problem,
    )


def unreachable(origin: Origin, failure: Failure) -> Unreachable:
    """Convert a failure to an error."""
    kind = UntrustedCertificate if failure.final else Unreachable
    return kind(f"{origin.url} cannot be reached: {failure.reason}", advice=failure.advice)


# Server-sent events


@dataclass(slots=True)
class EventParser:
    """Parses server-sent events, in pieces of any size."""

    _rest: bytes = b""

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the name and data of each event that is complete."""
        *complete, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise ProtocolError(f"The server sent an event of more than {MAX_EVENT >> 20} MiB")
        events = []
        for block in complete:
            fields = dict([line.partition(b":")[::2] for line in block.split(b"\n") if not line.startswith(b":")])
            if b"data" in fields:
                name = fields.get(b"event", b"message").strip().decode("utf-8", "replace")
                events.append((name, fields[b"data"].strip()))
        return events

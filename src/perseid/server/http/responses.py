"""JSON responses and errors, as deployed servers write them (http-api reference, 3.5 and 4).

JSON is one object, compact unless `pretty` is set. Characters beyond ASCII are sent as UTF-8, except U+2028 and
U+2029, which end lines in older JavaScript. With `callback` (JSONP) the object is the argument of a call; the function
name is sanitized.

An error has a status (http-api reference, 4.1), a Handle System response code and a message. An unexpected error
gets a number, under which the log has its type and origin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import msgspec

from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.advice import NO_TEXTS, AdviceTexts, render
from perseid.registry.commands.conditions import ConditionFailed
from perseid.registry.commands.minting import RetryLater
from perseid.registry.queries.paging import values_size
from perseid.registry.results import ReferralError, Refused
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.decisions import Busy, internal_error, known_failure
from perseid.wire.codes import ResponseCode

from .context import RequestContext
from .messages import BadRequest, HeaderList, Parameters, Request, Response, is_api

JSON: Final = "application/json;charset=utf-8"
JAVASCRIPT: Final = "application/javascript;charset=utf-8"

INDENT: Final = 2

MAX_INLINE_BYTES: Final = 16_384
"""Size of values, as `values_size` counts it, up to which they are encoded in the event loop: a few milliseconds."""

_LINE_ENDS: Final = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))
_NAME_SYMBOLS: Final = "_$"
_DIGITS: Final = "0123456789"


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The JSON format that a client requests."""

    pretty: bool = False
    callback: str | None = None
    """The JSONP function; None for plain JSON."""

    @classmethod
    def of(cls, parameters: Parameters) -> "JsonFormat":
        """Read the format from the parameters of a request."""
        return cls(parameters.flag("pretty"), parameters.first("callback"))

    @property
    def content_type(self) -> tuple[str, str]:
        """The `Content-Type` header."""
        return "Content-Type", JSON if self.callback is None else JAVASCRIPT

    def wrap(self) -> tuple[bytes, bytes]:
        """What precedes and follows the JSON."""
        return (b"", b"") if self.callback is None else (sanitize_callback(self.callback).encode() + b"(", b");")

    def encode(self, plain: object) -> bytes:
        """Encode a plain object."""
        before, after = self.wrap()
        return before + encode_json(plain, pretty=self.pretty) + after


DEFAULT_FORMAT: Final = JsonFormat()


def encode_json(plain: object, *, pretty: bool = False) -> bytes:
    """Encode a plain object as JSON in UTF-8."""
    data = msgspec.json.encode(plain)
    if pretty:
        data = msgspec.json.format(data, indent=INDENT)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character, escaped)  # both can occur only in strings
    return data


def is_small(values: Sequence[Value]) -> bool:
    """Whether values are small enough to be encoded in the event loop."""
    return values_size(values) <= MAX_INLINE_BYTES


def sanitize_callback(text: str) -> str:
    """Replace everything with `_` that is not allowed in a function name.

    Beyond ASCII deployed servers allow everything, even spaces and line ends; here only letters and digits.
    """
    name = "".join([each if each.isalnum() or each in _NAME_SYMBOLS else "_" for each in text])
    return "_" + name[1:] if name[:1] in _DIGITS and name else name


def json_response(
    plain: JsonObject,
    form: JsonFormat = DEFAULT_FORMAT,
    status: int = 200,
    headers: HeaderList = (),
    *,
    name: str = "",
    identity: str = "",
) -> Response:
    """Create a JSON response; its code is the `responseCode` of the object."""
    code = plain.get("responseCode", 0)
    return Response(
        status,
        (*headers, form.content_type),
        form.encode(plain),
        code=code if isinstance(code, int) else 0,
        name=name,
        identity=identity,
    )


def error_body(code: ResponseCode, message: str, handle: str | None) -> JsonObject:
    """Create the body of an error."""
    plain: JsonObject = {"responseCode": int(code)}
    if message:
        plain["message"] = message
    if handle is not None:
        plain["handle"] = handle
    return plain


BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
METHOD_NOT_ALLOWED: Final = 405
PRECONDITION_FAILED: Final = 412
CONTENT_TOO_LARGE: Final = 413
UNSUPPORTED_MEDIA_TYPE: Final = 415
SERVER_ERROR: Final = 500
NOT_IMPLEMENTED: Final = 501
SERVICE_UNAVAILABLE: Final = 503

RETRY_SECONDS: Final = 1
"""Seconds after which an overloaded server can be retried: queues are short."""

NO_STORE: Final = ("Cache-Control", "no-store")

_STATUSES: Final = {
    ResponseCode.SUCCESS: 200,
    ResponseCode.SERVER_TOO_BUSY: SERVICE_UNAVAILABLE,
    ResponseCode.PROTOCOL_ERROR: BAD_REQUEST,
    ResponseCode.OPERATION_NOT_SUPPORTED: NOT_IMPLEMENTED,
    ResponseCode.SERVER_BACKUP: SERVICE_UNAVAILABLE,
    ResponseCode.HANDLE_NOT_FOUND: NOT_FOUND,
    ResponseCode.HANDLE_ALREADY_EXISTS: 409,
    ResponseCode.INVALID_HANDLE: BAD_REQUEST,
    ResponseCode.VALUES_NOT_FOUND: BAD_REQUEST,
    ResponseCode.VALUE_ALREADY_EXISTS: 409,
    ResponseCode.INVALID_VALUE: BAD_REQUEST,
    ResponseCode.SERVER_NOT_RESP: BAD_REQUEST,
    ResponseCode.SERVICE_REFERRAL: 300,
    ResponseCode.PREFIX_REFERRAL: 300,
    ResponseCode.INVALID_ADMIN: FORBIDDEN,
    ResponseCode.INSUFFICIENT_PERMISSIONS: FORBIDDEN,
    ResponseCode.AUTHENTICATION_NEEDED: UNAUTHORIZED,
    ResponseCode.AUTHENTICATION_FAILED: FORBIDDEN,
    ResponseCode.INVALID_CREDENTIAL: FORBIDDEN,
}
"""All other codes are 500."""

_CODES_BY_STATUS: Final = {
    UNAUTHORIZED: ResponseCode.AUTHENTICATION_NEEDED,
    FORBIDDEN: ResponseCode.AUTHENTICATION_FAILED,
    SERVICE_UNAVAILABLE: ResponseCode.SERVER_TOO_BUSY,
    NOT_IMPLEMENTED: ResponseCode.PROTOCOL_ERROR,
    505: ResponseCode.PROTOCOL_ERROR,
}

HTTPS_REQUIRED: Final = (
    "credentials are accepted only over HTTPS or from the server's own machine; repeat the request with https"
)
"""The reason given when authentication is required on a connection that is not private."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to be returned."""

    status: int
    code: ResponseCode
    message: str
    headers: HeaderList = ()
    echo_name: bool = True
    """Whether the response contains the handle; not if the request itself is invalid."""
    referral: ReferralError | None = None
    reference: str = ""
    """The number of an unexpected error in the log."""


def status_of(code: ResponseCode) -> int:
    """The HTTP status for a response code."""
    return _STATUSES.get(code, SERVER_ERROR)


def code_of(status: int) -> ResponseCode:
    """The default response code for an HTTP status."""
    return _CODES_BY_STATUS.get(status, ResponseCode.ERROR if status >= SERVER_ERROR else ResponseCode.PROTOCOL_ERROR)


def to_failure(problem: Exception, request_context: RequestContext, texts: AdviceTexts = NO_TEXTS) -> Failure:
    """Convert an exception to an error, with the interface's texts of advice; an unexpected exception is logged."""
    match problem:
        case BadRequest():
            return Failure(problem.status, problem.code, problem.message, echo_name=problem.echo_name)
        case ReferralError():
            return Failure(status_of(problem.code), problem.code, "", referral=problem)
        case KeyChanged():
            return Failure(UNAUTHORIZED, ResponseCode.AUTHENTICATION_FAILED, str(problem))
        case RetryLater():
            return Failure(
                SERVICE_UNAVAILABLE, problem.code, _describe(problem, texts), (_retry_after(problem.seconds),)
            )
        case ConditionFailed():
            return Failure(PRECONDITION_FAILED, problem.code, _describe(problem, texts))
        case Refused():
            return _failure_from_refusal(problem, request_context, texts)
        case Busy():
            message = "the server is too busy; retry shortly"
            return Failure(SERVICE_UNAVAILABLE, ResponseCode.SERVER_TOO_BUSY, message, (_retry_after(RETRY_SECONDS),))
    if (known := known_failure(problem)) is not None:
        code, message = known
        status = status_of(code)
        return Failure(status, code, message, (_retry_after(RETRY_SECONDS),) if status == SERVICE_UNAVAILABLE else ())
    reference = request_context.server.random(4).hex()
    return Failure(SERVER_ERROR, ResponseCode.ERROR, internal_error(problem, reference), reference=reference)


def failure_response(request_context: RequestContext, problem: Exception) -> Response:
    """Create the response for an exception that no handler has converted."""
    failure = to_failure(problem, request_context)
    return plain(request_context.request, failure.status, failure.message, failure.code, failure.headers)


def plain(
    request: Request, status: int, message: str, code: ResponseCode | None = None, headers: HeaderList = ()
) -> Response:
    """Create an error response: JSON below `/api`, plain text elsewhere."""
    code = code_of(status) if code is None else code
    if is_api(request.path):
        plain = error_body(code, message, None)
        return json_response(plain, status=status, headers=(*headers, NO_STORE))
    text = ("Content-Type", "text/plain;charset=utf-8")
    body = f"{message}\n".encode("utf-8", "replace")
    return Response(status, (*headers, text, NO_STORE), body, code=int(code))


def _failure_from_refusal(refused: Refused, request_context: RequestContext, texts: AdviceTexts) -> Failure:
    code = refused.code
    if code == ResponseCode.AUTHENTICATION_NEEDED and not request_context.request.client.private:
        return Failure(FORBIDDEN, code, f"{refused.reason}; {HTTPS_REQUIRED}")
    headers = (_retry_after(RETRY_SECONDS),) if code == ResponseCode.SERVER_TOO_BUSY else ()
    return Failure(status_of(code), code, _describe(refused, texts), headers)


def _describe(refused: Refused, texts: AdviceTexts) -> str:
    return ". ".join(filter(None, (refused.reason, render(refused.advice, texts))))


def _retry_after(seconds: float) -> tuple[str, str]:
    return "Retry-After", str(max(1, ceil(seconds)))

"""Answers in JSON, as deployed servers write them (http-api reference, 3.5 and 4).

One object, compact unless `pretty` was asked for. Characters beyond ASCII go out as UTF-8, but for U+2028 and U+2029,
which end lines in older JavaScript. With `callback` the same is the argument of a call, for scripts of other pages that
can do no better. In the name of the function nothing is left that could be anything but a name.

What a client is told when something does not go as it wished: a status, a code of the Handle System, a sentence.

Statuses are those of deployed servers (http-api reference, 4.1). What goes wrong inside is the operator's business: the
client gets a number, under which the log has the kind of error and where it came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import msgspec

from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.commands.conditions import ConditionFailed
from perseid.registry.commands.minting import RetryLater
from perseid.registry.queries.paging import values_size
from perseid.registry.results import ReferralError, Refused
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.decisions import Busy, internal_error, known_failure
from perseid.wire.codes import ResponseCode

from .context import RequestContext
from .messages import HeaderList, Request, Response
from .targets import BadRequest, Parameters, is_api

JSON: Final = "application/json;charset=utf-8"
JAVASCRIPT: Final = "application/javascript;charset=utf-8"

INDENT: Final = 2

MAX_INLINE_BYTES: Final = 16_384
"""Octets of values, as `page_room` counts them, that are written as JSON in the event loop, where others wait
meanwhile: some milliseconds, whatever they are."""

_LINE_ENDS: Final = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))
_NAME_SYMBOLS: Final = "_$"
_DIGITS: Final = "0123456789"


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """How somebody wants JSON."""

    pretty: bool = False
    callback: str | None = None
    """The function that a script has for it; None for JSON itself."""

    @classmethod
    def of(cls, parameters: Parameters) -> "JsonFormat":
        """The form that the parameters of a request ask for."""
        return cls(parameters.flag("pretty"), parameters.first("callback"))

    @property
    def content_type(self) -> tuple[str, str]:
        """The header that says what comes."""
        return "Content-Type", JSON if self.callback is None else JAVASCRIPT

    def wrap(self) -> tuple[bytes, bytes]:
        """What stands before and behind the JSON."""
        return (b"", b"") if self.callback is None else (sanitize_callback(self.callback).encode() + b"(", b");")

    def encode(self, plain: object) -> bytes:
        """The octets of a plain object."""
        before, behind = self.wrap()
        return before + encode_json(plain, pretty=self.pretty) + behind


DEFAULT_FORMAT: Final = JsonFormat()


def encode_json(plain: object, *, pretty: bool = False) -> bytes:
    """A plain object as JSON in UTF-8."""
    data = msgspec.json.encode(plain)
    if pretty:
        data = msgspec.json.format(data, indent=INDENT)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character, escaped)  # neither stands anywhere but in a string
    return data


def is_small(values: Sequence[Value]) -> bool:
    """Whether values are written so soon that nobody needs to have it done elsewhere."""
    return values_size(values) <= MAX_INLINE_BYTES


def sanitize_callback(text: str) -> str:
    """A name that a script may call, with `_` for whatever cannot stand in one.

    Beyond ASCII deployed servers let everything stand, blanks and ends of lines too; here it is letters and digits.
    """
    name = "".join([sign if sign.isalnum() or sign in _NAME_SYMBOLS else "_" for sign in text])
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
    """An answer; its code is the one that the object has."""
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
    """What is said where something was not done."""
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
"""After how many seconds a client may come again that was too much: queues are that short."""

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
"""All others are 500."""

_CODES_BY_STATUS: Final = {
    UNAUTHORIZED: ResponseCode.AUTHENTICATION_NEEDED,
    FORBIDDEN: ResponseCode.AUTHENTICATION_FAILED,
    SERVICE_UNAVAILABLE: ResponseCode.SERVER_TOO_BUSY,
    NOT_IMPLEMENTED: ResponseCode.PROTOCOL_ERROR,
    505: ResponseCode.PROTOCOL_ERROR,
}

HTTPS_REQUIRED: Final = (
    "credentials count over TLS (https) or from this machine itself only; over plain HTTP nobody is known"
)
"""What is said to whoever would have to be known and comes where others can read along."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What somebody is told."""

    status: int
    code: ResponseCode
    message: str
    headers: HeaderList = ()
    echo_name: bool = True
    """Whether the name is told that it was about; not where the request itself could not be understood."""
    referral: ReferralError | None = None


def status_of(code: ResponseCode) -> int:
    """The status of an answer with a code."""
    return _STATUSES.get(code, SERVER_ERROR)


def code_of(status: int) -> ResponseCode:
    """The code that goes with a status where nothing else is known."""
    return _CODES_BY_STATUS.get(status, ResponseCode.ERROR if status >= SERVER_ERROR else ResponseCode.PROTOCOL_ERROR)


def to_failure(problem: Exception, request_context: RequestContext) -> Failure:
    """What a problem is to the client; one that nobody expected is logged."""
    match problem:
        case BadRequest():
            return Failure(problem.status, problem.code, problem.message, problem.headers, problem.echo_name)
        case ReferralError():
            return Failure(status_of(problem.code), problem.code, "", referral=problem)
        case KeyChanged():
            return Failure(UNAUTHORIZED, ResponseCode.AUTHENTICATION_FAILED, str(problem))
        case RetryLater():
            return Failure(SERVICE_UNAVAILABLE, problem.code, str(problem), (_retry_after(problem.seconds),))
        case ConditionFailed():
            return Failure(PRECONDITION_FAILED, problem.code, str(problem))
        case Refused():
            return _failure_from_refusal(problem, request_context)
        case Busy():
            message = "the server is too busy; try again shortly"
            return Failure(SERVICE_UNAVAILABLE, ResponseCode.SERVER_TOO_BUSY, message, (_retry_after(RETRY_SECONDS),))
    if (known := known_failure(problem)) is not None:
        code, message = known
        status = status_of(code)
        return Failure(status, code, message, (_retry_after(RETRY_SECONDS),) if status == SERVICE_UNAVAILABLE else ())
    message = internal_error(problem, request_context.place.random(4).hex())
    return Failure(SERVER_ERROR, ResponseCode.ERROR, message)


def failure_response(request_context: RequestContext, problem: Exception) -> Response:
    """The answer where no part of the service has given one."""
    failure = to_failure(problem, request_context)
    return plain(request_context.request, failure.status, failure.message, failure.code, failure.headers)


def plain(
    request: Request, status: int, message: str, code: ResponseCode | None = None, headers: HeaderList = ()
) -> Response:
    """An answer of one sentence: in JSON below `/api`, as text elsewhere."""
    code = code_of(status) if code is None else code
    if is_api(request.path):
        plain = error_body(code, message, None)
        return json_response(plain, status=status, headers=(*headers, NO_STORE))
    text = ("Content-Type", "text/plain;charset=utf-8")
    body = f"{message}\n".encode("utf-8", "replace")
    return Response(status, (*headers, text, NO_STORE), body, code=int(code))


def _failure_from_refusal(refused: Refused, request_context: RequestContext) -> Failure:
    code = refused.code
    if code == ResponseCode.AUTHENTICATION_NEEDED and not request_context.request.client.private:
        return Failure(FORBIDDEN, code, f"{refused.reason}; {HTTPS_REQUIRED}")
    headers = (_retry_after(RETRY_SECONDS),) if code == ResponseCode.SERVER_TOO_BUSY else ()
    return Failure(status_of(code), code, str(refused), headers)


def _retry_after(seconds: float) -> tuple[str, str]:
    return "Retry-After", str(max(1, ceil(seconds)))

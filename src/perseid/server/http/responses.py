"""JSON of requests and responses, and errors, as in deployed servers (http-api reference, 3.3, 3.5 and 4).

A response is one JSON object, compact unless `pretty` is set. Characters beyond ASCII are sent as UTF-8, except U+2028
and U+2029, which end lines in older JavaScript. With `callback` (JSONP) the object is the argument of a call; the
function name is sanitized.

An error has a status (4.1), a Handle System response code and a message. An unexpected error gets a number, under which
the log has its type and origin.

The body of a request contains values to store, or the parameters of a POST that acts as a GET. JSON is parsed as
leniently as clients need (3.3): indexes and TTLs may be text, fractions of indexes are cut off, data may be a bare
string, unknown properties are ignored, a charset is honored. Ambiguous input is refused: trailing commas, text after
the end, unexpected null. So are comments, single quotes and unquoted names, which the deployed parser accepts and no
known client sends. Messages about a body name the value, by position and index, and the property.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Final

import msgspec

from perseid.names.errors import capitalize, quote_text
from perseid.records.encoding import JsonObject, json_type_name, parse_json
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json
from perseid.records.record import MAX_VALUES, Value
from perseid.registry.access.token_records import InactiveToken
from perseid.registry.advice import NO_TEXTS, AdviceTexts, render
from perseid.registry.commands.composition import ConditionFailed
from perseid.registry.commands.minting import RetryLater
from perseid.registry.queries.paging import values_size
from perseid.registry.results import ReferralError, Refused, find_refusal
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.decisions import Busy, TooManyGuesses, internal_error, known_failure
from perseid.wire.codes import ResponseCode

from .context import RequestContext
from .messages import MAX_PARAMETERS, SAFE_METHODS, BadRequest, HeaderList, Parameters, Request, Response, is_api

JSON: Final = "application/json;charset=utf-8"
JAVASCRIPT: Final = "application/javascript;charset=utf-8"

INDENT: Final = 2

MAX_INLINE_BYTES: Final = 16_384
"""Bytes of values, as `values_size` counts them, and of request bodies up to which the event loop encodes or parses
them itself: a few milliseconds at most."""

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
        return self.finish(encode_json(plain))

    def finish(self, data: bytes) -> bytes:
        """Format compact JSON."""
        before, after = self.wrap()
        return before + (msgspec.json.format(data, indent=INDENT) if self.pretty else data) + after


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
        plain["message"] = capitalize(message)
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
MISDIRECTED: Final = 421
TOO_MANY_REQUESTS: Final = 429
SERVICE_UNAVAILABLE: Final = 503

RETRY_SECONDS: Final = 1
"""Seconds after which an overloaded server can be retried: queues are short."""

OPERATOR_SECONDS: Final = 60
"""Seconds after which a problem can be retried that waits for the operator of the server, such as a full disk."""

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

HTTPS_REQUIRED: Final = "credentials are accepted only over HTTPS or from the server's own machine"


def https_required(request: Request) -> str:
    """The reason, and the fix, if authentication is required on a connection that is not private.

    A client that used https learns what its proxy lacks: it cannot see the connection from the proxy to this server.
    """
    protocol = request.header("x-forwarded-proto")
    if request.client.trusted:
        sent = "no X-Forwarded-Proto" if protocol is None else f"X-Forwarded-Proto: {quote_text(protocol)}"
        return f"{HTTPS_REQUIRED}; the proxy sent {sent}, and must send https"
    if protocol is not None:
        return f"{HTTPS_REQUIRED}; X-Forwarded-Proto was ignored, because its sender is not in http.trusted_proxies"
    return f"{HTTPS_REQUIRED}; repeat the request with https"


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
    problem = find_refusal(problem, reads=request_context.request.method in SAFE_METHODS) or problem
    match problem:
        case BadRequest():
            return Failure(problem.status, problem.code, problem.message, echo_name=problem.echo_name)
        case ReferralError():
            return Failure(status_of(problem.code), problem.code, "", referral=problem)
        case KeyChanged() | InactiveToken():
            return Failure(UNAUTHORIZED, ResponseCode.AUTHENTICATION_FAILED, str(problem))
        case RetryLater():
            return Failure(
                SERVICE_UNAVAILABLE, problem.code, _describe(problem, texts), (_retry_after(problem.seconds),)
            )
        case ConditionFailed():
            return Failure(PRECONDITION_FAILED, problem.code, _describe(problem, texts))
        case Refused():
            return _failure_from_refusal(problem, request_context, texts)
        case TooManyGuesses():
            retry = _retry_after(problem.seconds)
            return Failure(TOO_MANY_REQUESTS, ResponseCode.SERVER_TOO_BUSY, problem.text, (retry,))
        case Busy():
            code = ResponseCode.SERVER_TOO_BUSY
            return Failure(SERVICE_UNAVAILABLE, code, problem.text, _retry_headers(code))
    if (known := known_failure(problem)) is not None:
        code, message = known
        return Failure(status_of(code), code, message, _retry_headers(code))
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
    body = f"{capitalize(message)}\n".encode("utf-8", "replace")
    return Response(status, (*headers, text, NO_STORE), body, code=int(code))


def _failure_from_refusal(refused: Refused, request_context: RequestContext, texts: AdviceTexts) -> Failure:
    code = refused.code
    if code == ResponseCode.AUTHENTICATION_NEEDED and not request_context.request.client.private:
        return Failure(FORBIDDEN, code, f"{refused.reason}; {https_required(request_context.request)}")
    return Failure(status_of(code), code, _describe(refused, texts), _retry_headers(code))


def _describe(refused: Refused, texts: AdviceTexts) -> str:
    return ". ".join(filter(None, (refused.reason, render(refused.advice, texts))))


def _retry_headers(code: ResponseCode) -> HeaderList:
    """The header of a response that asks for a retry."""
    if status_of(code) != SERVICE_UNAVAILABLE:
        return ()
    return (_retry_after(RETRY_SECONDS if code == ResponseCode.SERVER_TOO_BUSY else OPERATOR_SECONDS),)


def _retry_after(seconds: float) -> tuple[str, str]:
    return "Retry-After", str(max(1, ceil(seconds)))


SECONDS_PER_BYTE: Final = 1.1e-7
"""Upper bound of the parsing time of a record per byte; long lists of small items are slowest."""

MAX_PARAMETER_BYTES: Final = 65_536
"""Bytes of a body with parameters: room for thousands of them, parsed in a few milliseconds in the event loop."""

JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"

CHARSETS: Final = MappingProxyType(
    {
        "utf-8": "utf-8",
        "utf8": "utf-8",
        "us-ascii": "ascii",
        "ascii": "ascii",
        "iso-8859-1": "latin-1",
        "latin1": "latin-1",
        "windows-1252": "cp1252",
        "utf-16": "utf-16",
        "utf-16le": "utf-16-le",
        "utf-16be": "utf-16-be",
    }
)
"""Supported charsets and their Python codecs. Python knows other codecs, some of which are not charsets."""

_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*(?:"([^"\\]*)"|([^\s;"]+))""", re.IGNORECASE)
_BOM: Final = "\ufeff"
_ONE_VALUE: Final = frozenset(("index", "type", "data"))


@dataclass(frozen=True, slots=True)
class Submission:
    """Values that a client wants to store."""

    values: tuple[Value, ...]
    handle: str | None = None
    """The handle named in the body; None if there is none."""


def media_type(request: Request) -> str:
    """The media type of a body, in lowercase and without parameters; empty if there is none."""
    return (request.header("content-type") or "").partition(";")[0].strip().lower()


def parse_json_body(request: Request) -> object:
    """Parse a JSON body; raises `BadRequest`."""
    try:
        return parse_json(_decode_text(request))
    except InvalidData as problem:
        raise BadRequest(f"the body cannot be parsed: {problem}") from problem


def parse_submission(request: Request) -> Submission:
    """Parse the values in a body; raises `BadRequest`."""
    if media_type(request) != JSON_TYPE:
        actual = quote_text(media_type(request)) if media_type(request) else "missing"
        raise BadRequest(f"the Content-Type must be {JSON_TYPE}; it is {actual}", UNSUPPORTED_MEDIA_TYPE)
    plain = parse_json_body(request)
    if isinstance(plain, list):
        return Submission(_values(plain))
    if not isinstance(plain, dict):
        raise BadRequest(
            f'the body must be {{"values": […]}}, an array of values or one value, not {json_type_name(plain)}'
        )
    if "values" not in plain and plain.keys() >= _ONE_VALUE:
        return Submission((_value(plain, 0),))
    if not isinstance(plain.get("values"), list):
        actual = json_type_name(plain["values"]) if "values" in plain else "missing"
        raise BadRequest(f'"values" must be an array of values; it is {actual}')
    handle = plain.get("handle")
    if handle is not None and not isinstance(handle, str):
        raise BadRequest(f'"handle" must be a string, not {json_type_name(handle)}')
    return Submission(_values(plain["values"]), handle)


def parse_parameters(request: Request) -> Iterable[tuple[str, str]]:
    """Parse the parameters in the body of a POST that acts as a GET; raises `BadRequest`."""
    if not request.body:
        return ()
    if (type_ := media_type(request)) == JSON_TYPE:
        check_size(request)
        return _parameters_from_object(parse_json_body(request))
    return parse_form(request) if type_ == FORM_TYPE else ()


def parse_form(request: Request) -> tuple[tuple[str, str], ...]:
    """Parse the parameters in a form body; raises `BadRequest`."""
    check_size(request)
    return Parameters.parse(request.body).pairs


def check_size(request: Request) -> None:
    """Refuse a body with parameters that is too large."""
    if len(request.body) > MAX_PARAMETER_BYTES:
        problem = f"a body with parameters can have {MAX_PARAMETER_BYTES:,} bytes; it has {len(request.body):,}"
        raise BadRequest(problem, CONTENT_TOO_LARGE)


def _parameters_from_object(plain: object) -> list[tuple[str, str]]:
    if not isinstance(plain, dict):
        raise BadRequest(f"the body must be a JSON object of parameters, not {json_type_name(plain)}")
    pairs = [(name, _scalar(name, item)) for name, value in plain.items() for item in _items(value)]
    if len(pairs) > MAX_PARAMETERS:
        raise BadRequest(f"too many parameters; the maximum is {MAX_PARAMETERS:,}")
    return pairs


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _scalar(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    raise BadRequest(
        f"the parameter {quote_text(name)} must be a string, a number, true or false, not {json_type_name(value)}"
    )


def _decode_text(request: Request) -> str | bytes:
    """Decode a body by its charset."""
    match = _CHARSET.search(request.header("content-type") or "")
    if match is None:
        return request.body.removeprefix(_BOM.encode())
    charset = (match[1] if match[2] is None else match[2]).lower()
    encoding = CHARSETS.get(charset)
    if encoding is None:
        message = f"the charset {quote_text(charset)} is not supported; send UTF-8"
        raise BadRequest(message, UNSUPPORTED_MEDIA_TYPE)
    try:
        return request.body.decode(encoding).removeprefix(_BOM)
    except UnicodeDecodeError as problem:
        raise BadRequest(f"byte {problem.start + 1} of the body is not valid {charset.upper()}") from None


def _values(items: list[object]) -> tuple[Value, ...]:
    if len(items) > MAX_VALUES:
        raise BadRequest(f"too many values: {len(items):,}; a record can have at most {MAX_VALUES:,}")
    return tuple([_value(item, position) for position, item in enumerate(items)])


def _value(plain: object, position: int) -> Value:
    try:
        return value_from_json(plain)
    except InvalidData as problem:
        raise BadRequest(f"{_describe_value(plain, position)}: {problem}") from problem


def _describe_value(plain: object, position: int) -> str:
    index = plain.get("index") if isinstance(plain, Mapping) else None
    has_index = isinstance(index, int | str) and not isinstance(index, bool)
    number = f"value {position + 1}"
    return f"{number} (index {str(index)[:20]})" if has_index and str(index).isprintable() else number


def parse_json_object(request: Request) -> JsonObject:
    """Parse a body that must be a JSON object; an empty body is an empty object. Raises `BadRequest`."""
    if not request.body:
        return {}
    check_size(request)
    plain = parse_json_body(request)
    if not isinstance(plain, dict):
        raise BadRequest(f"the body must be a JSON object, not {json_type_name(plain)}")
    return plain

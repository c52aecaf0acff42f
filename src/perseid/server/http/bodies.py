"""Request bodies: values to store, or parameters of a POST that acts as a GET.

JSON is parsed as leniently as clients need (http-api reference, 3.3): indexes and TTLs may be text, fractions of
indexes are cut off, data may be a bare string, unknown properties are ignored, a charset is honored. Ambiguous input is
refused: trailing commas, text after the end, unexpected null. So are comments, single quotes and unquoted names,
which the deployed parser accepts and no known client sends.

Error messages name the value, by position and index, and the property.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from perseid.names.errors import quote_text
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json
from perseid.records.json_parsing import JsonObject, json_type_name, parse_json
from perseid.records.value import MAX_VALUES, Value

from .messages import MAX_PARAMETERS, BadRequest, Parameters, Request
from .responses import CONTENT_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE

MAX_INLINE_BYTES: Final = 16_384
"""Bytes of a record that is parsed in the event loop: a few milliseconds at most."""

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

"""What stands in the body of a request: values to store, or parameters of a POST that is a GET.

JSON is read as leniently as clients need it (http-api reference, 3.3): indexes and TTLs may be text, fractions of
indexes are cut off, data may be a bare string, unknown properties are passed over, a charset is obeyed. What has
another meaning to every reader is refused: a comma too many, text behind the end, null where something should stand.
So are comments, single quotes and names without quotes, which the deployed reader takes and no known client sends.

Whoever sends something wrong is told which value it is in, by its place and its index, and which property.
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
from perseid.records.value import MAX_VALUES, TtlType, Value

from .messages import Request
from .responses import CONTENT_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE
from .targets import MAX_PARAMETERS, BadRequest, Parameters

MAX_INLINE_BYTES: Final = 16_384
"""Octets of a record that is read in the event loop, where others wait meanwhile: some milliseconds, whatever it is."""

SECONDS_PER_BYTE: Final = 1.1e-7
"""What it takes to read an octet of a record, of those for which it takes longest: lists of many small things."""

MAX_PARAMETER_BYTES: Final = 65_536
"""Octets of a body with parameters: room for some thousand of them, and read in some milliseconds by the event loop."""

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
"""The character sets that are known, and what they are called here. The interpreter knows others, and among them some
that are no character sets at all."""

_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*(?:"([^"\\]*)"|([^\s;"]+))""", re.IGNORECASE)
_BOM: Final = "\ufeff"
_ONE_VALUE: Final = frozenset(("index", "type", "data"))
_MAX_TTL_DISTANCE: Final = 1 << 31  # instants have 32 bits on the wire, and are read as the one nearest to now


@dataclass(frozen=True, slots=True)
class Submission:
    """What somebody wants stored."""

    values: tuple[Value, ...]
    handle: str | None = None
    """The name that it says it is for; None if it says none."""


def media_type(request: Request) -> str:
    """What a body says it is, in small letters and without parameters; empty if it says nothing."""
    return (request.header("content-type") or "").partition(";")[0].strip().lower()


def parse_json_body(request: Request) -> object:
    """The plain object that a body stands for; raises `Malformed`."""
    try:
        return parse_json(_decode_text(request))
    except InvalidData as problem:
        raise BadRequest(f"the body cannot be read: {problem}") from problem


def parse_submission(request: Request, now: int) -> Submission:
    """The values in a body, at a time in seconds since 1970; raises `Malformed`."""
    if media_type(request) != JSON_TYPE:
        given = quote_text(media_type(request)) if media_type(request) else "no media type"
        raise BadRequest(f"the body should be {JSON_TYPE}, and has {given}", UNSUPPORTED_MEDIA_TYPE)
    plain = parse_json_body(request)
    if isinstance(plain, list):
        return Submission(_values(plain, now))
    if not isinstance(plain, dict):
        raise BadRequest(
            f'the body should be {{"values": […]}}, an array of values or one value, not {json_type_name(plain)}'
        )
    if "values" not in plain and plain.keys() >= _ONE_VALUE:
        return Submission((_value(plain, 0, now),))
    if not isinstance(plain.get("values"), list):
        problem = f"is {json_type_name(plain['values'])}" if "values" in plain else "is missing"
        raise BadRequest(f'"values" should be an array of values, and {problem}')
    handle = plain.get("handle")
    if handle is not None and not isinstance(handle, str):
        raise BadRequest(f'"handle" should be a string, not {json_type_name(handle)}')
    return Submission(_values(plain["values"], now), handle)


def parse_parameters(request: Request) -> Iterable[tuple[str, str]]:
    """The parameters in the body of a POST that is a GET; bodies of other media types have none. Raises `Malformed`."""
    if not request.body:
        return ()
    if (type_ := media_type(request)) == JSON_TYPE:
        check_size(request)
        return _parameters_from_object(parse_json_body(request))
    return parse_form(request) if type_ == FORM_TYPE else ()


def parse_form(request: Request) -> tuple[tuple[str, str], ...]:
    """The parameters in a body that is a form; raises `Malformed`."""
    check_size(request)
    return Parameters.parse(request.body).pairs


def check_size(request: Request) -> None:
    """Refuse a body of parameters that is too large."""
    if len(request.body) > MAX_PARAMETER_BYTES:
        problem = f"a body with parameters may have {MAX_PARAMETER_BYTES:,} octets, and has {len(request.body):,}"
        raise BadRequest(problem, CONTENT_TOO_LARGE)


def _parameters_from_object(plain: object) -> list[tuple[str, str]]:
    if not isinstance(plain, dict):
        raise BadRequest(f"the body should be a JSON object of parameters, not {json_type_name(plain)}")
    found = [(name, _scalar(name, item)) for name, value in plain.items() for item in _items(value)]
    if len(found) > MAX_PARAMETERS:
        raise BadRequest(f"a request may have {MAX_PARAMETERS:,} parameters, and no more")
    return found


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _scalar(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    raise BadRequest(
        f"the parameter {quote_text(name)} should be a string, a number, true or false, not {json_type_name(value)}"
    )


def _decode_text(request: Request) -> str | bytes:
    """The text of a body, by its charset."""
    found = _CHARSET.search(request.header("content-type") or "")
    if found is None:
        return request.body.removeprefix(_BOM.encode())
    named = (found[1] if found[2] is None else found[2]).lower()
    encoding = CHARSETS.get(named)
    if encoding is None:
        message = f"the charset {quote_text(named)} is not known here; send UTF-8"
        raise BadRequest(message, UNSUPPORTED_MEDIA_TYPE)
    try:
        return request.body.decode(encoding).removeprefix(_BOM)
    except UnicodeDecodeError as problem:
        raise BadRequest(f"octet {problem.start + 1} of the body is not {named.upper()}") from None


def _values(items: list[object], now: int) -> tuple[Value, ...]:
    if len(items) > MAX_VALUES:
        raise BadRequest(f"{len(items):,} values are too many for a record: no client reads more than {MAX_VALUES:,}")
    return tuple([_value(item, place, now) for place, item in enumerate(items)])


def _value(plain: object, place: int, now: int) -> Value:
    try:
        value = value_from_json(plain)
        _check_ttl(value, now)
    except InvalidData as problem:
        raise BadRequest(f"{_describe_value(plain, place)}: {problem}") from problem
    return value


def _check_ttl(value: Value, now: int) -> None:
    """Refuse what another server, or a client, would take for something else."""
    if value.ttl_type == TtlType.RELATIVE and value.ttl < 0:
        raise InvalidData("the TTL should not be negative")
    if value.ttl_type == TtlType.ABSOLUTE and not -_MAX_TTL_DISTANCE <= value.ttl - now < _MAX_TTL_DISTANCE:
        raise InvalidData("the time until which the value may be kept should be less than 68 years from now")


def _describe_value(plain: object, place: int) -> str:
    """Which value of a body is meant, for people."""
    index = plain.get("index") if isinstance(plain, Mapping) else None
    has_index = isinstance(index, int | str) and not isinstance(index, bool)
    number = f"value {place + 1}"
    return f"{number} (index {str(index)[:20]})" if has_index and str(index).isprintable() else number


def parse_json_object(request: Request) -> JsonObject:
    """A body that has to be a JSON object of parameters; an empty one has nothing in it. Raises `Malformed`."""
    if not request.body:
        return {}
    check_size(request)
    plain = parse_json_body(request)
    if not isinstance(plain, dict):
        raise BadRequest(f"the body should be a JSON object, not {json_type_name(plain)}")
    return plain

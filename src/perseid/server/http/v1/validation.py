r"""Parsing and validation of requests: path segments, query parameters and JSON bodies, as the types of a route.

Everything invalid is refused with its location: the name of a parameter, or the path of a field in the body,
`$.values[0].index`. Query parameters are text, so numbers and booleans are parsed from text; a boolean without value is
true, and a list parameter is repeated. Invalid UTF-8 and invalid escapes in the query are refused (H4, U7).

JSON parsers disagree about a field that occurs twice in an object, so it is refused. So is half of a surrogate pair,
`"\ud800"`, which JSON can express and UTF-8 cannot.

The messages of the decoder are rewritten for people: the field, what is wrong with it, and the description of the field
as advice. They contain untrusted text of any length, which is quoted and truncated, and never interpreted.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from perseid.names.errors import MAX_QUOTED_LENGTH, InvalidName, quote_text
from perseid.records.encoding import locate_json_error
from perseid.registry.access.permissions import display_name
from perseid.registry.context import name_too_long
from perseid.server.http.messages import MAX_PARAMETERS, BadRequest, Request, parse_name, percent_decode
from perseid.server.http.responses import JSON_TYPE, NOT_FOUND, UNSUPPORTED_MEDIA_TYPE, media_type

from .routing import FileBody

MAX_PATH: Final = 400
"""Characters of a field path; longer ones are truncated. Bodies can be nested deeply."""

_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

FieldPath = Sequence[str | int]
"""Field names and list positions."""


class _DuplicateMember(dict[str, Any]):
    """An object in which a field occurs twice."""

    __slots__ = ("name",)

    def __init__(self, plain: dict[str, Any], name: str) -> None:
        super().__init__(plain)
        self.name = name


def find_duplicate_member(body: bytes) -> tuple[str, str] | None:
    """Find a field that occurs twice in valid JSON: its path and name, or None.

    This takes about as long as parsing the JSON in Python: a millisecond for the values of a thousand handles, and at
    worst a quarter of a second and 30 MB, for a body of 1 MiB of tiny objects with a duplicate near the end.
    """
    has_duplicate = False

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_duplicate
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        has_duplicate = True
        return _DuplicateMember(plain, _first_duplicate([name for name, _ in pairs]))

    # Numbers stay text: parsing long ones would cost more than everything else.
    plain = json.loads(body.decode(), object_pairs_hook=build, parse_int=str, parse_float=str)
    if not has_duplicate:
        return None
    for steps, each in _walk(plain):
        if isinstance(each, _DuplicateMember):
            return _format_path([*steps, each.name]), each.name
    return None


def find_lone_surrogate(body: bytes) -> str | None:
    """Find a string with half of a surrogate pair, in possibly invalid JSON: its path, or None."""
    if _SURROGATE_ESCAPE.search(body) is None:
        return None
    try:
        plain = json.loads(body.decode(), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    for steps, each in _walk(plain):
        if isinstance(each, str) and _SURROGATE.search(each):
            return _format_path(steps)
        if isinstance(each, dict) and any(map(_SURROGATE.search, each)):
            return _format_path(steps)
    return None


def _first_duplicate(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no duplicate")


def _walk(plain: Any) -> Iterator[tuple[FieldPath, Any]]:
    """Yield every item with its path, containers before their items. The path is valid until the next step.

    There may be a million items, so nothing is collected.
    """
    steps: list[str | int] = []
    yield steps, plain
    inside = [_items(plain)]
    while inside:
        following = next(inside[-1], None)
        if following is None:
            inside.pop()
            if inside:
                steps.pop()
            continue
        step, each = following
        steps.append(step)
        yield steps, each
        if isinstance(each, dict | list):
            inside.append(_items(each))
        else:
            steps.pop()


def _items(plain: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(plain, dict):
        return iter(plain.items())
    return enumerate(plain) if isinstance(plain, list) else iter(())


def _format_path(steps: FieldPath) -> str:
    """Format a path such as `$.values[0].index`, truncated."""
    path = "$"
    for step in steps:
        if len(path) >= MAX_PATH:
            break
        path += f"[{step}]" if isinstance(step, int) else f".{display_name(step)}"
    return path


MAX_WHERE: Final = 400
"""Characters of a path in a message of the decoder; known fields have shorter ones."""

_PATH_SEPARATOR: Final = " - at `"
_JSON_PATH: Final = re.compile(r"\$(?:\.\w+|\[(?:[0-9]+|\.\.\.)\])*", re.ASCII)
_MISSING: Final = re.compile(r"(?s)Object missing required field `(.*)`")
_UNKNOWN: Final = re.compile(r"(?s)Object contains unknown field `(.*)`")
_NOT_ALLOWED: Final = re.compile(r"(?s)Invalid (enum )?value (.*)")
_EXPECTED: Final = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?")
_BOUND: Final = re.compile(r"Expected `([^`]*)` (of length )?([<>]=?) ([0-9.-]+)")
_PATTERN: Final = re.compile(r"(?s)Expected `str` matching regex (.*)")
_STEP: Final = re.compile(r"\.(\w+)|\[[^\[\]]*\]")
_ESCAPED: Final = re.compile(r"(?:\\(?:x..|u.{4}|U.{8}|.)|[^\\])" + f"{{0,{MAX_QUOTED_LENGTH}}}")
_PLURAL: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)

_TYPE_NAMES: Final = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_BOUNDS: Final = {">=": "at least {}", "<=": "at most {}", ">": "more than {}", "<": "less than {}"}


@dataclass(frozen=True, slots=True)
class ValidationProblem:
    """An invalid part of a request."""

    problem: str
    """What is wrong, as the end of a sentence."""
    where: str
    """The path in the body: `$.values[0].index`."""
    advice: str


@dataclass(frozen=True, slots=True)
class _Member:
    """A field of a type."""

    type: inspect.Type
    about: str = ""
    """The description of the field."""


def describe_error(problem: msgspec.ValidationError, type_: Any, body: bytes = b"") -> ValidationProblem:
    """Explain a message of the decoder; `body` allows more precise advice."""
    message, where = _split_message(str(problem))
    member = _find_member(type_, where)
    if missing := _MISSING.fullmatch(message):
        where = f"{where}.{missing[1]}"
        return ValidationProblem(
            "is required", where, _member_advice(_find_member(type_, where)) or _allowed_values(None, type_, where)
        )
    if unknown := _UNKNOWN.fullmatch(message):
        return ValidationProblem(
            "is unknown", f"{where}.{display_name(unknown[1])}", _known_members(member, body if where == "$" else b"")
        )
    if wrong := _NOT_ALLOWED.fullmatch(message):
        word = _truncate_escaped(wrong[2]) if wrong[1] else _quote_value(wrong[2])
        return ValidationProblem(f"has the invalid value {word}", where, _allowed_values(member, type_, where))
    return ValidationProblem(_format_problem(message), where, _member_advice(member))


def _split_message(message: str) -> tuple[str, str]:
    """Split a message of the decoder and the path at its end; the message may contain untrusted text."""
    rest, _, path = message.rpartition(_PATH_SEPARATOR)
    where = path.removesuffix("`")
    if rest and len(where) <= MAX_WHERE and where != path and _JSON_PATH.fullmatch(where):
        return rest, where
    return message, "$"


def _format_problem(message: str) -> str:
    if found := _BOUND.fullmatch(message):
        kind, is_length, relation, number = found.groups()
        limit = f"{int(number):,}" if number.isdecimal() else number
        unit = f" {'character' if kind == 'str' else 'item'}{'' if number == '1' else 's'}" if is_length else ""
        return f"must {'have' if is_length else 'be'} {_BOUNDS[relation].format(limit + unit)}"
    if found := _PATTERN.fullmatch(message):
        return f"must match the pattern {found[1]}"
    if found := _EXPECTED.fullmatch(message):
        problem = f"must be {_type_names(found[1])}"
        return f"{problem}, not {_type_names(found[2])}" if found[2] else problem
    return f"is invalid: {message[:1].lower()}{message[1:]}"


def _type_names(message: str) -> str:
    return " or ".join([_TYPE_NAMES.get(kind, kind) for kind in message.split(" | ")])


def _quote_value(message: str) -> str:
    """Quote a value that the decoder has put in quotes without escaping, or a number."""
    if len(message) > 1 and message[0] == message[-1] and message[0] in "'\"":
        return quote_text(message[1:-1])
    return message[:MAX_QUOTED_LENGTH]


def _truncate_escaped(message: str) -> str:
    """Truncate a value that the decoder has escaped as `quote_text` does, between two characters."""
    if len(message) <= MAX_QUOTED_LENGTH or message[0] not in "'\"":
        return message[:MAX_QUOTED_LENGTH]
    inner = message[1:-1]
    match = _ESCAPED.match(inner)
    head = "" if match is None else match[0]
    return message if head == inner else f"{message[0]}{head}…{message[0]}"


# Descriptions of fields


def _member_advice(member: _Member | None) -> str:
    if member is None:
        return ""
    choices = _choices(member.type)
    allowed = f"Use one of {', '.join(choices)}" if choices else ""
    return ". ".join(filter(None, [allowed, f"Expected: {member.about.removesuffix('.')}" if member.about else ""]))


def _known_members(member: _Member | None, body: bytes) -> str:
    """List the fields of an object; in a union, those of the kind that the body declares."""
    structures = [] if member is None else _structures(member.type)
    if body and len(structures) > 1:
        tag = _decode_tag(body, str(structures[0].tag_field))
        structures = [each for each in structures if each.tag == tag] or structures
    names = [name for each in structures for name in (each.tag_field, *[field.encode_name for field in each.fields])]
    return f"Use one of {', '.join(dict.fromkeys(filter(None, names)))}" if any(names) else "Remove it"


def _decode_tag(body: bytes, name: str) -> str | None:
    """Decode the tag of an object and skip its other fields."""
    try:
        tagged = msgspec.json.decode(body, type=_tag_type(name))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the rest of the body may be anything
    return str(getattr(tagged, name))


@cache
def _tag_type(name: str) -> type[msgspec.Struct]:
    return msgspec.defstruct("Tagged", [(name, str)])


def _allowed_values(member: _Member | None, type_: Any, where: str) -> str:
    choices = () if member is None else _choices(member.type)
    if not choices:  # the tag of a union
        parent, _, name = where.rpartition(".")
        whole = _find_member(type_, parent)
        structures = [] if whole is None else _structures(whole.type)
        choices = tuple([str(each.tag) for each in structures if each.tag_field == name])
    return f"Use one of {', '.join(choices)}" if choices else ""


def _choices(type_: inspect.Type) -> Sequence[str]:
    for each in _alternatives(type_):
        if isinstance(each, inspect.EnumType):
            return [str(item.value) for item in each.cls]
        if isinstance(each, inspect.LiteralType):
            return [str(value) for value in each.values]
    return ()


def _find_member(type_: Any, where: str) -> _Member | None:
    """Find the field of a path; None if the type does not describe it."""
    member: _Member | None = _Member(_type_info(type_))
    for name in _STEP.findall(where.removeprefix("$")):
        if member is None:
            return None
        member = _child_member(member, name)
    return member


def _child_member(member: _Member, name: str) -> _Member | None:
    if name:
        child = next((type_ for key, type_ in _members(member.type) if key == name), None)
        return None if child is None else _Member(child, _description(child))
    for each in _alternatives(member.type):
        if isinstance(each, _PLURAL):
            return _Member(each.item_type, _description(each.item_type) or member.about)
        if isinstance(each, inspect.DictType):
            return _Member(each.value_type, _description(each.value_type) or member.about)
    return None


def _members(type_: inspect.Type) -> Iterator[tuple[str, inspect.Type]]:
    for structure in _structures(type_):
        for field in structure.fields:
            yield field.encode_name, field.type


def _structures(type_: inspect.Type) -> list[inspect.StructType]:
    return [each for each in _alternatives(type_) if isinstance(each, inspect.StructType)]


def _alternatives(type_: inspect.Type) -> Iterator[inspect.Type]:
    """The alternatives of a type, without metadata."""
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        for each in type_.types:
            yield from _alternatives(each)
    else:
        yield type_


def _description(type_: inspect.Type) -> str:
    """The outermost description of a type."""
    while isinstance(type_, inspect.Metadata):
        if text := (type_.extra_json_schema or {}).get("description"):
            return str(text)
        type_ = type_.type
    return ""


@cache
def _type_info(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)


# Requests

_INVALID_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class InvalidParameter(BadRequest):
    """An invalid part of a request."""

    def __init__(self, message: str, where: str = "", advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.where = where
        """The parameter, or the path in the body."""


class InvalidNameParameter(InvalidName):
    """An invalid handle in a request."""

    where: str = ""
    """The parameter, or the path in the body."""

    @classmethod
    def at(cls, problem: InvalidName, where: str) -> "InvalidNameParameter":
        """Add the location to an error."""
        error = cls(problem.rule, problem.message, position=problem.position, character=problem.character)
        error.where = where
        return error


@contextmanager
def locate_name_error(where: str, text: str = "", *, new: bool = True) -> Iterator[None]:
    """Add the location in the request to errors about a handle.

    Unless it is `new`, a handle that is too long does not exist (H9) and raises `Refused`.
    """
    try:
        yield
    except InvalidName as problem:
        if problem.rule == "H9" and not new:
            raise name_too_long(text) from problem
        raise InvalidNameParameter.at(problem, where) from problem


def decode_segment(data: bytes) -> str:
    """Decode a segment of the path; raises `BadRequest`. An encoded slash is part of it."""
    name = parse_name(data)
    if not name.is_text:
        raise BadRequest("The path is not valid UTF-8", NOT_FOUND)
    return name.text


def decode_query(request: Request, type_: type[msgspec.Struct]) -> msgspec.Struct:
    """Parse the query as the type of a route; raises `InvalidParameter`."""
    fields = _fields(type_)
    values: dict[str, Any] = {}
    for name, value in _split_query(request.query):
        field = fields.get(name)
        if field is None:
            advice = f"Use one of {', '.join(fields)}" if fields else "Remove it: this path has no parameters"
            raise InvalidParameter(f"Unknown parameter {quote_text(name)}", display_name(name), advice)
        if isinstance(field, _PLURAL):
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidParameter(f"Parameter {name} is given twice", name, "Give it once")
        else:
            values[name] = "true" if value == "" and isinstance(field, inspect.BoolType) else value
    try:
        return msgspec.convert(values, type_, strict=False)
    except msgspec.ValidationError as problem:
        result = describe_error(problem, type_)
        name = result.where.removeprefix("$.").partition("[")[0]
        raise InvalidParameter(f"Parameter {name} {result.problem}", name, result.advice) from None


def _split_query(query: bytes) -> Iterator[tuple[str, str]]:
    """Yield parameters and values. A plus sign is a space, and only `&` separates; raises `InvalidParameter`."""
    parts = query.split(b"&", MAX_PARAMETERS)
    if len(parts) > MAX_PARAMETERS:
        raise InvalidParameter(f"A request can have at most {MAX_PARAMETERS:,} parameters")
    for part in filter(None, parts):
        raw_name, _, value = part.replace(b"+", b" ").partition(b"=")
        name = _decode_text(raw_name, "The name of a parameter", "")
        yield name, _decode_text(value, f"Parameter {quote_text(name)}", display_name(name))


def _decode_text(data: bytes, what: str, where: str) -> str:
    """Decode a name or value of the query; raises `InvalidParameter`."""
    if match := _INVALID_ESCAPE.search(data):
        escape = quote_text(data[match.start() : match.start() + 3].decode("latin-1"))
        raise InvalidParameter(
            f"{what} contains the invalid escape {escape}", where, "Write a literal percent sign as %25"
        )
    try:
        return percent_decode(data).decode("utf-8")
    except UnicodeDecodeError as problem:
        byte = problem.object[problem.start]
        message = f"{what} is not valid UTF-8: byte {problem.start + 1} is 0x{byte:02X}"
        raise InvalidParameter(message, where, "Encode it in UTF-8, then escape each byte as %XX") from None


def _refuse_form(request: Request) -> None:
    """Refuse a form with a file (`curl -F`), which would be read as the file."""
    if media_type(request) == "multipart/form-data":
        advice = "Send the content of the file as the body, with Content-Type: application/octet-stream"
        raise BadRequest("The body is a form, not a file", UNSUPPORTED_MEDIA_TYPE, advice=advice)


def decode_body(request: Request, type_: Any) -> Any:
    """Parse the body as the type of a route; raises `BadRequest`. Slow for large bodies (`find_duplicate_member`)."""
    if type_ is None:
        if request.body:
            raise BadRequest("This path does not accept a body", advice="Leave the body empty")
        return None
    if type_ == FileBody:
        _refuse_form(request)
        return request.read_parts()
    if not request.body and is_optional(type_):
        return type_()
    if media_type(request) != JSON_TYPE:
        actual = quote_text(media_type(request)) if media_type(request) else "missing"
        message = f"Content-Type must be {JSON_TYPE}; it is {actual}"
        raise BadRequest(message, UNSUPPORTED_MEDIA_TYPE, advice=f"Send Content-Type: {JSON_TYPE}")
    try:
        body = msgspec.json.decode(request.body, type=type_)
        _check_duplicates(request.body)
    except msgspec.ValidationError as problem:
        with suppress(ValueError, RecursionError):  # the rest of the body may be anything
            _check_duplicates(request.body)
        raise _to_invalid_parameter(describe_error(problem, type_, request.body)) from None
    except msgspec.DecodeError:
        raise _invalid_json(request.body) from None
    except UnicodeDecodeError:
        raise InvalidParameter("The body is not valid UTF-8", "$", "Encode it in UTF-8") from None
    except RecursionError:
        raise InvalidParameter("The body is nested too deeply", "$", "See /docs") from None
    return body


def _check_duplicates(body: bytes) -> None:
    duplicate = find_duplicate_member(body)
    if duplicate is not None:
        where, name = duplicate
        message = f"Field {quote_text(name)} occurs twice in an object of the body"
        raise InvalidParameter(message, where, "Give it once")


def _to_invalid_parameter(problem: ValidationProblem) -> InvalidParameter:
    field = "the body" if problem.where == "$" else problem.where
    return InvalidParameter(f"Invalid body: {field} {problem.problem}", problem.where, problem.advice or "See /docs")


def _invalid_json(body: bytes) -> InvalidParameter:
    path = find_lone_surrogate(body)
    if path is not None:
        message = "A string in the body has half of a surrogate pair, which is not a character"
        return InvalidParameter(message, path, "Write the character itself, or both halves of its escape")
    advice = "Send one JSON document in UTF-8"
    return InvalidParameter(f"The body is not valid JSON{locate_json_error(body)}", "$", advice)


@cache
def is_optional(type_: Any) -> bool:
    """Return whether a body of a type may be empty: all its fields have defaults."""
    info = inspect.type_info(type_)
    return isinstance(info, inspect.StructType) and not any(field.required for field in info.fields)


@cache
def _fields(type_: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """The type of each parameter, without metadata."""
    info = inspect.type_info(type_)
    assert isinstance(info, inspect.StructType)  # noqa: S101 - for mypy
    return {field.encode_name: _unwrap(field.type) for field in info.fields}


def _unwrap(type_: inspect.Type) -> inspect.Type:
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        others = [_unwrap(each) for each in type_.types if not isinstance(each, inspect.NoneType)]
        return others[0] if len(others) == 1 else type_
    return type_

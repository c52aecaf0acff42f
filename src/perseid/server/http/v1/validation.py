r"""Members and texts of JSON that the decoder passes over, or says nothing useful about.

Of a member that stands twice in an object one reader takes the first, another the last. What was meant nobody knows, so
it is refused. So is half of a surrogate pair, `"\ud800"`, which JSON can write and UTF-8 cannot.

What does not fit in a request, in words for people: what is allowed there, where it stands, and what to do about it.

The decoder says what it expected in terms of its own types. Here that becomes a sentence, with the place down to the
member that is missing or unknown; and what the description of the API says about that member becomes the advice.

What it says holds names and words of strangers, as they wrote them and at any length: they are shown and cut, and
nothing is made of them.

What a request says, as the types of its route: parameters of the path and the query, and the body.

Whatever does not fit is refused, with the place where it stands: the name of a parameter, or the path of a member in
the JSON of the body, `$.values[0].index`. Parameters are text, so numbers, and true and false, are taken from text; a
parameter without a value that says yes or no says yes. One that takes several values is repeated.

Nothing is guessed: what is no UTF-8 or no escape in the query is refused (H4, U7), and so is what stands twice in an
object of the body.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from perseid.names.errors import MAX_QUOTED_LENGTH, InvalidName, quote_text
from perseid.registry.access.permissions import display_name
from perseid.registry.context import name_too_long
from perseid.server.http.bodies import JSON_TYPE, media_type
from perseid.server.http.messages import Request
from perseid.server.http.responses import NOT_FOUND, UNSUPPORTED_MEDIA_TYPE
from perseid.server.http.targets import MAX_PARAMETERS, BadRequest, parse_name, percent_decode

from .routing import BASE, Route

MAX_PATH: Final = 400
"""Characters of a path, after which it ends: bodies may be nested deeply."""

_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


PathSteps = Sequence[str | int]
"""A place: the names of members, and the numbers of items, on the way to it."""


class _DuplicateMember(dict[str, Any]):
    """An object in which a member stands twice."""

    __slots__ = ("name",)

    def __init__(self, plain: dict[str, Any], name: str) -> None:
        super().__init__(plain)
        self.name = name
        """The member."""


def find_duplicate_member(body: bytes) -> tuple[str, str] | None:
    """Path and name of a member that stands twice in JSON that has been read before; None if there is none.

    It takes about as long as reading the JSON in Python: a millisecond for the values of a thousand names. A body of
    1 MiB of nothing but tiny objects takes a quarter of a second and 30 MB, if one of the last is such a one.
    """
    has_duplicate = False

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_duplicate
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        has_duplicate = True
        return _DuplicateMember(plain, _first_duplicate([name for name, _ in pairs]))

    # What numbers say does not matter here, and reading long ones would cost more than the rest.
    plain = json.loads(body.decode(), object_pairs_hook=made, parse_int=str, parse_float=str)
    if not has_duplicate:
        return None
    for steps, each in _walk(plain):
        if isinstance(each, _DuplicateMember):
            return _format_path([*steps, each.name]), each.name
    return None


def find_lone_surrogate(body: bytes) -> str | None:
    """The path of a text with half of a surrogate pair, in what may be JSON; None if there is none."""
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
    """The first name that was there before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name is there twice")


def _walk(plain: Any) -> Iterator[tuple[PathSteps, Any]]:
    """Everything in a plain object and the way to it, which counts until the next; what holds others comes before them.

    There may be a million of them, so nothing is kept of those that have been passed.
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


def _format_path(steps: PathSteps) -> str:
    """A way as people read it, as far as there is room for it."""
    path = "$"
    for step in steps:
        if len(path) >= MAX_PATH:
            break
        path += f"[{step}]" if isinstance(step, int) else f".{display_name(step)}"
    return path


MAX_WHERE: Final = 400
"""Characters of a path. Those of members that are described here are shorter; another one is of a stranger's making."""

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
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_BOUNDS: Final = {">=": "{} at least", "<=": "{} at most", ">": "more than {}", "<": "less than {}"}


@dataclass(frozen=True, slots=True)
class ValidationProblem:
    """What does not fit."""

    problem: str
    """What is wrong with what stands there, as the end of a sentence."""
    where: str
    """The path in the JSON: `$.values[0].index`."""
    advice: str


@dataclass(frozen=True, slots=True)
class _Member:
    """A place in a type."""

    type: inspect.Type
    about: str = ""
    """What the description says of it."""


def describe_error(problem: msgspec.ValidationError, type_: Any, body: bytes = b"") -> ValidationProblem:
    """What the decoder's objection to something of a type means; with the `body` that it is in, more can be said."""
    said, where = _split_message(str(problem))
    member = _find_member(type_, where)
    if missing := _MISSING.fullmatch(said):
        where = f"{where}.{missing[1]}"
        return ValidationProblem(
            "is missing", where, _member_advice(_find_member(type_, where)) or _allowed_values(None, type_, where)
        )
    if unknown := _UNKNOWN.fullmatch(said):
        return ValidationProblem(
            "is not known", f"{where}.{display_name(unknown[1])}", _known_members(member, body if where == "$" else b"")
        )
    if wrong := _NOT_ALLOWED.fullmatch(said):
        word = _truncate_escaped(wrong[2]) if wrong[1] else _quote_value(wrong[2])
        return ValidationProblem(f"is {word}, which is not allowed there", where, _allowed_values(member, type_, where))
    return ValidationProblem(_format_problem(said), where, _member_advice(member))


def _split_message(said: str) -> tuple[str, str]:
    """What the decoder says, and the path at its end; a stranger's words before that may hold anything."""
    rest, _, path = said.rpartition(_PATH_SEPARATOR)
    where = path.removesuffix("`")
    if rest and len(where) <= MAX_WHERE and where != path and _JSON_PATH.fullmatch(where):
        return rest, where
    return said, "$"


def _format_problem(said: str) -> str:
    """What something should be, and what it is."""
    if found := _BOUND.fullmatch(said):
        kind, is_length, relation, number = found.groups()
        many = f"{int(number):,}" if number.isdecimal() else number
        unit = "" if not is_length else " characters" if kind == "str" else " items"
        return f"should {'have' if is_length else 'be'} {_BOUNDS[relation].format(many + unit)}"
    if found := _PATTERN.fullmatch(said):
        return f"should match the pattern {found[1]}"
    if found := _EXPECTED.fullmatch(said):
        wanted = f"should be {_type_names(found[1])}"
        return f"{wanted}, and is {_type_names(found[2])}" if found[2] else wanted
    return f"does not fit: {said[:1].lower()}{said[1:]}"


def _type_names(said: str) -> str:
    """Types of JSON, as people call them."""
    return " or ".join([_TYPE_NAMES.get(kind, kind) for kind in said.split(" | ")])


def _quote_value(said: str) -> str:
    """What somebody wrote: a text that the decoder has put in quotes as it is, or a number."""
    if len(said) > 1 and said[0] == said[-1] and said[0] in "'\"":
        return quote_text(said[1:-1])
    return said[:MAX_QUOTED_LENGTH]


def _truncate_escaped(said: str) -> str:
    """The same where the decoder has escaped the text as `quoted` does, and cuts nothing: cut between characters."""
    if len(said) <= MAX_QUOTED_LENGTH or said[0] not in "'\"":
        return said[:MAX_QUOTED_LENGTH]
    inner = said[1:-1]
    found = _ESCAPED.match(inner)
    kept = "" if found is None else found[0]
    return said if kept == inner else f"{said[0]}{kept}…{said[0]}"


# What the description says


def _member_advice(member: _Member | None) -> str:
    if member is None:
        return ""
    choices = _choices(member.type)
    allowed = f"write one of {', '.join(choices)}" if choices else ""
    return "; ".join(filter(None, [allowed, f"what belongs there: {member.about}" if member.about else ""]))


def _known_members(member: _Member | None, body: bytes) -> str:
    """Which members an object has; of several sorts of objects, that of the sort which the body says that it is."""
    structures = [] if member is None else _structures(member.type)
    if body and len(structures) > 1:
        tag = _decode_tag(body, str(structures[0].tag_field))
        structures = [each for each in structures if each.tag == tag] or structures
    names = [name for each in structures for name in (each.tag_field, *[field.encode_name for field in each.fields])]
    return f"there are {', '.join(dict.fromkeys(filter(None, names)))}" if any(names) else "there are none here"


def _decode_tag(body: bytes, name: str) -> str | None:
    """What an object says that it is, by one of its members; the others are passed over."""
    try:
        found = msgspec.json.decode(body, type=_tag_structure(name))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # what stands behind that place may be anything
    return str(getattr(found, name))


@cache
def _tag_structure(name: str) -> type[msgspec.Struct]:
    return msgspec.defstruct("Tagged", [(name, str)])


def _allowed_values(member: _Member | None, type_: Any, where: str) -> str:
    """What may stand in a place that takes some words only."""
    choices = () if member is None else _choices(member.type)
    if not choices:  # the member by which structures are told apart
        parent, _, name = where.rpartition(".")
        whole = _find_member(type_, parent)
        structures = [] if whole is None else _structures(whole.type)
        choices = tuple([str(each.tag) for each in structures if each.tag_field == name])
    return f"write one of {', '.join(choices)}" if choices else ""


def _choices(type_: inspect.Type) -> Sequence[str]:
    for each in _alternatives(type_):
        if isinstance(each, inspect.EnumType):
            return [str(item.value) for item in each.cls]
        if isinstance(each, inspect.LiteralType):
            return [str(value) for value in each.values]
    return ()


def _find_member(type_: Any, where: str) -> _Member | None:
    """The member that a path leads to; None where the type says nothing about it."""
    found: _Member | None = _Member(_type_info(type_))
    for name in _STEP.findall(where.removeprefix("$")):
        if found is None:
            return None
        found = _child_member(found, name)
    return found


def _child_member(member: _Member, name: str) -> _Member | None:
    if name:
        said = next((type_ for key, type_ in _members(member.type) if key == name), None)
        return None if said is None else _Member(said, _description(said))
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
    """What a type may be, without what is said about it."""
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        for each in type_.types:
            yield from _alternatives(each)
    else:
        yield type_


def _description(type_: inspect.Type) -> str:
    """What is said about a type, the outermost first."""
    while isinstance(type_, inspect.Metadata):
        if said := (type_.extra_json_schema or {}).get("description"):
            return str(said)
        type_ = type_.type
    return ""


@cache
def _type_info(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)


_INVALID_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class InvalidParameter(BadRequest):
    """A part of a request that does not fit."""

    def __init__(self, message: str, where: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.where = where
        """The parameter, or the path in the body."""
        self.advice = advice
        """What to do about it."""


class InvalidNameParameter(InvalidName):
    """A name in a request that is none, or none that may be registered."""

    where: str = ""
    """The parameter, or the path in the body, where it stands."""

    @classmethod
    def at(cls, problem: InvalidName, where: str) -> "InvalidNameParameter":
        """A problem with a name, with its place."""
        made = cls(problem.rule, problem.message, position=problem.position, character=problem.character)
        made.where = where
        return made


@contextmanager
def locate_name_error(where: str, text: str = "", *, new: bool = True) -> Iterator[None]:
    """Say of a problem with a name where in the request the name stands.

    Unless it is a `new` one, a name that is too long is one that does not exist (H9), and raises `Refused`.
    """
    try:
        yield
    except InvalidName as problem:
        if problem.rule == "H9" and not new:
            raise name_too_long(text) from problem
        raise InvalidNameParameter.at(problem, where) from problem


def split_path(path: bytes) -> tuple[str, ...]:
    """The steps of a path below `BASE`, decoded; raises `Malformed`. A slash that is encoded is part of a step."""
    rest = path[len(BASE) :]
    return () if rest in (b"", b"/") else tuple([_decode_segment(step) for step in rest.split(b"/")[1:]])


def _decode_segment(data: bytes) -> str:
    name = parse_name(data)
    if not name.is_text:
        raise BadRequest("a step of the path is not UTF-8, and names have no other encoding", NOT_FOUND)
    return name.text


def decode_query(request: Request, type_: type[msgspec.Struct]) -> msgspec.Struct:
    """The parameters of the query, as the structure of a route; raises `Unfitting`."""
    fields = _fields(type_)
    given: dict[str, Any] = {}
    for name, value in _split_query(request.query):
        field = fields.get(name)
        if field is None:
            known = f"there are {', '.join(fields)}" if fields else "there are none here"
            raise InvalidParameter(
                f"the parameter {quote_text(name)} is not known; {known}", display_name(name), "leave it out"
            )
        if isinstance(field, _PLURAL):
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidParameter(f"the parameter {name} is there twice, and means one thing", name, "give it once")
        else:
            given[name] = "true" if value == "" and isinstance(field, inspect.BoolType) else value
    try:
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as problem:
        found = describe_error(problem, type_)
        name = found.where.removeprefix("$.").partition("[")[0]
        raise InvalidParameter(f"the parameter {name} {found.problem}", name, found.advice) from None


def _split_query(query: bytes) -> Iterator[tuple[str, str]]:
    """Parameters and their values. A plus sign is a space, and only `&` separates; raises `Unfitting`."""
    parts = query.split(b"&", MAX_PARAMETERS)
    if len(parts) > MAX_PARAMETERS:
        raise InvalidParameter(f"a request may have {MAX_PARAMETERS:,} parameters, and no more")
    for part in filter(None, parts):
        written, _, value = part.replace(b"+", b" ").partition(b"=")
        name = _decode_text(written, "the name of a parameter", "")
        yield name, _decode_text(value, f"the parameter {quote_text(name)}", display_name(name))


def _decode_text(data: bytes, what: str, where: str) -> str:
    """What a part of the query says; raises `Unfitting`, for what is no text has no meaning here."""
    if found := _INVALID_ESCAPE.search(data):
        written = quote_text(data[found.start() : found.start() + 3].decode("latin-1"))
        advice = "write a percent sign that is meant itself as %25"
        raise InvalidParameter(f"{what} holds {written}, which is no escape", where, advice)
    try:
        return percent_decode(data).decode("utf-8")
    except UnicodeDecodeError as problem:
        byte = problem.object[problem.start]
        message = f"{what} is not UTF-8, and there is no other encoding: octet {problem.start + 1} is 0x{byte:02X}"
        raise InvalidParameter(message, where, "encode it in UTF-8, then escape each octet as %XX") from None


def decode_body(request: Request, type_: Any) -> Any:
    """The body, as the type of a route; raises `Malformed`. Of a long one it takes long: see `given_twice`."""
    if type_ is None:
        if request.body:
            raise BadRequest("nothing is expected in the body here; leave it empty")
        return None
    if not request.body and is_optional(type_):
        return type_()
    if media_type(request) != JSON_TYPE:
        given = quote_text(media_type(request)) if media_type(request) else "no media type"
        raise BadRequest(f"the body should be {JSON_TYPE}, and has {given}", UNSUPPORTED_MEDIA_TYPE)
    try:
        found = msgspec.json.decode(request.body, type=type_)
        _check_duplicates(request.body)
    except msgspec.ValidationError as problem:
        with suppress(ValueError, RecursionError):  # what stands behind that place may be anything
            _check_duplicates(request.body)
        raise _to_invalid_parameter(describe_error(problem, type_, request.body)) from None
    except msgspec.DecodeError as problem:
        raise _invalid_json(request.body, problem) from None
    except UnicodeDecodeError:
        raise InvalidParameter(
            "the body is not UTF-8, and JSON has no other encoding", "$", "encode it in UTF-8"
        ) from None
    except RecursionError:
        raise InvalidParameter("the body is nested too deeply", "$", "what belongs there stands in /docs") from None
    return found


def _check_duplicates(body: bytes) -> None:
    """Refuse a body in which a member stands twice in an object; raises `Unfitting`."""
    twice = find_duplicate_member(body)
    if twice is not None:
        where, name = twice
        message = f"the member {quote_text(name)} stands twice in an object of the body, and means one thing"
        raise InvalidParameter(message, where, "give it once: readers of JSON differ in which of the two they take")


def _to_invalid_parameter(found: ValidationProblem) -> InvalidParameter:
    what = "the body" if found.where == "$" else found.where
    advice = found.advice or "what belongs there stands in /docs"
    return InvalidParameter(f"the body does not fit: {what} {found.problem}", found.where, advice)


def _invalid_json(body: bytes, problem: msgspec.DecodeError) -> InvalidParameter:
    half = find_lone_surrogate(body)
    if half is not None:
        message = "a text in the body holds half of a surrogate pair, which is no character and has no UTF-8 form"
        return InvalidParameter(message, half, "write the character itself, or both halves of its escape")
    advice = "send one JSON document in UTF-8, and nothing behind it"
    return InvalidParameter(f"the body is no JSON: {str(problem)[:200]}", "$", advice)


@cache
def is_optional(type_: Any) -> bool:
    """Whether a body of a type may be empty: nothing has to be said in it."""
    found = inspect.type_info(type_)
    return isinstance(found, inspect.StructType) and not any(field.required for field in found.fields)


def path_parameters(route: Route, given: tuple[str, ...]) -> Mapping[str, str]:
    """The parameters of a path by their names."""
    names = [step.strip("{}") for step in route.segments if step.startswith("{")]
    return dict(zip(names, given, strict=True))


@cache
def _fields(type_: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """The type of each parameter, without what is said about it."""
    found = inspect.type_info(type_)
    assert isinstance(found, inspect.StructType)  # noqa: S101 - the type says so
    return {field.encode_name: _unwrap(field.type) for field in found.fields}


def _unwrap(type_: inspect.Type) -> inspect.Type:
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        others = [_unwrap(each) for each in type_.types if not isinstance(each, inspect.NoneType)]
        return others[0] if len(others) == 1 else type_
    return type_

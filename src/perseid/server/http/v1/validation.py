"""What a request says, as the types of its route: parameters of the path and the query, and the body.

Whatever does not fit is refused, with the place where it stands: the name of a parameter, or the path of a member in
the JSON of the body, `$.values[0].index`. Parameters are text, so numbers, and true and false, are taken from text; a
parameter without a value that says yes or no says yes. One that takes several values is repeated.

Nothing is guessed: what is no UTF-8 or no escape in the query is refused (H4, U7), and so is what stands twice in an
object of the body.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from perseid.names.errors import InvalidName, quoted
from perseid.registry.access.permissions import shown
from perseid.registry.context import over_long
from perseid.server.http.bodies import JSON_TYPE, media_type
from perseid.server.http.messages import Request
from perseid.server.http.responses import NOT_FOUND, UNSUPPORTED_MEDIA_TYPE
from perseid.server.http.targets import MAX_PARAMETERS, Malformed, name_of, percent_decoded

from .members import given_twice, half_character
from .misfits import Misfit, misfit
from .routing import BASE, Route

_NO_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_PLURAL: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


class Unfitting(Malformed):
    """A part of a request that does not fit."""

    def __init__(self, message: str, where: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.where = where
        """The parameter, or the path in the body."""
        self.advice = advice
        """What to do about it."""


class Misnamed(InvalidName):
    """A name in a request that is none, or none that may be registered."""

    where: str = ""
    """The parameter, or the path in the body, where it stands."""

    @classmethod
    def at(cls, problem: InvalidName, where: str) -> "Misnamed":
        """A problem with a name, with its place."""
        made = cls(problem.rule, problem.message, position=problem.position, character=problem.character)
        made.where = where
        return made


@contextmanager
def naming(where: str, text: str = "", *, new: bool = True) -> Iterator[None]:
    """Say of a problem with a name where in the request the name stands.

    Unless it is a `new` one, a name that is too long is one that does not exist (H9), and raises `Refused`.
    """
    try:
        yield
    except InvalidName as problem:
        if problem.rule == "H9" and not new:
            raise over_long(text) from problem
        raise Misnamed.at(problem, where) from problem


def steps_of(path: bytes) -> tuple[str, ...]:
    """The steps of a path below `BASE`, decoded; raises `Malformed`. A slash that is encoded is part of a step."""
    rest = path[len(BASE) :]
    return () if rest in (b"", b"/") else tuple([_step(step) for step in rest.split(b"/")[1:]])


def _step(octets: bytes) -> str:
    name = name_of(octets)
    if not name.is_text:
        raise Malformed("a step of the path is not UTF-8, and names have no other encoding", NOT_FOUND)
    return name.text


def query_of(request: Request, type_: type[msgspec.Struct]) -> msgspec.Struct:
    """The parameters of the query, as the structure of a route; raises `Unfitting`."""
    fields = _fields(type_)
    given: dict[str, Any] = {}
    for name, value in _pairs(request.query):
        field = fields.get(name)
        if field is None:
            known = f"there are {', '.join(fields)}" if fields else "there are none here"
            raise Unfitting(f"the parameter {quoted(name)} is not known; {known}", shown(name), "leave it out")
        if isinstance(field, _PLURAL):
            given.setdefault(name, []).append(value)
        elif name in given:
            raise Unfitting(f"the parameter {name} is there twice, and means one thing", name, "give it once")
        else:
            given[name] = "true" if value == "" and isinstance(field, inspect.BoolType) else value
    try:
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as problem:
        found = misfit(problem, type_)
        name = found.where.removeprefix("$.").partition("[")[0]
        raise Unfitting(f"the parameter {name} {found.problem}", name, found.advice) from None


def _pairs(query: bytes) -> Iterator[tuple[str, str]]:
    """Parameters and their values. A plus sign is a space, and only `&` separates; raises `Unfitting`."""
    parts = query.split(b"&", MAX_PARAMETERS)
    if len(parts) > MAX_PARAMETERS:
        raise Unfitting(f"a request may have {MAX_PARAMETERS:,} parameters, and no more")
    for part in filter(None, parts):
        written, _, value = part.replace(b"+", b" ").partition(b"=")
        name = _decoded(written, "the name of a parameter", "")
        yield name, _decoded(value, f"the parameter {quoted(name)}", shown(name))


def _decoded(octets: bytes, what: str, where: str) -> str:
    """What a part of the query says; raises `Unfitting`, for what is no text has no meaning here."""
    if found := _NO_ESCAPE.search(octets):
        written = quoted(octets[found.start() : found.start() + 3].decode("latin-1"))
        advice = "write a percent sign that is meant itself as %25"
        raise Unfitting(f"{what} holds {written}, which is no escape", where, advice)
    try:
        return percent_decoded(octets).decode("utf-8")
    except UnicodeDecodeError as problem:
        octet = problem.object[problem.start]
        message = f"{what} is not UTF-8, and there is no other encoding: octet {problem.start + 1} is 0x{octet:02X}"
        raise Unfitting(message, where, "encode it in UTF-8, then escape each octet as %XX") from None


def body_of(request: Request, type_: Any) -> Any:
    """The body, as the type of a route; raises `Malformed`. Of a long one it takes long: see `given_twice`."""
    if type_ is None:
        if request.body:
            raise Malformed("nothing is expected in the body here; leave it empty")
        return None
    if not request.body and may_be_left_out(type_):
        return type_()
    if media_type(request) != JSON_TYPE:
        given = quoted(media_type(request)) if media_type(request) else "no media type"
        raise Malformed(f"the body should be {JSON_TYPE}, and has {given}", UNSUPPORTED_MEDIA_TYPE)
    try:
        found = msgspec.json.decode(request.body, type=type_)
        _check_once(request.body)
    except msgspec.ValidationError as problem:
        with suppress(ValueError, RecursionError):  # what stands behind that place may be anything
            _check_once(request.body)
        raise _unfitting(misfit(problem, type_, request.body)) from None
    except msgspec.DecodeError as problem:
        raise _no_json(request.body, problem) from None
    except UnicodeDecodeError:
        raise Unfitting("the body is not UTF-8, and JSON has no other encoding", "$", "encode it in UTF-8") from None
    except RecursionError:
        raise Unfitting("the body is nested too deeply", "$", "what belongs there stands in /docs") from None
    return found


def _check_once(body: bytes) -> None:
    """Refuse a body in which a member stands twice in an object; raises `Unfitting`."""
    twice = given_twice(body)
    if twice is not None:
        where, name = twice
        message = f"the member {quoted(name)} stands twice in an object of the body, and means one thing"
        raise Unfitting(message, where, "give it once: readers of JSON differ in which of the two they take")


def _unfitting(found: Misfit) -> Unfitting:
    what = "the body" if found.where == "$" else found.where
    advice = found.advice or "what belongs there stands in /docs"
    return Unfitting(f"the body does not fit: {what} {found.problem}", found.where, advice)


def _no_json(body: bytes, problem: msgspec.DecodeError) -> Unfitting:
    half = half_character(body)
    if half is not None:
        message = "a text in the body holds half of a surrogate pair, which is no character and has no UTF-8 form"
        return Unfitting(message, half, "write the character itself, or both halves of its escape")
    advice = "send one JSON document in UTF-8, and nothing behind it"
    return Unfitting(f"the body is no JSON: {str(problem)[:200]}", "$", advice)


@cache
def may_be_left_out(type_: Any) -> bool:
    """Whether a body of a type may be empty: nothing has to be said in it."""
    found = inspect.type_info(type_)
    return isinstance(found, inspect.StructType) and not any(field.required for field in found.fields)


def parameters_of(route: Route, given: tuple[str, ...]) -> Mapping[str, str]:
    """The parameters of a path by their names."""
    names = [step.strip("{}") for step in route.segments if step.startswith("{")]
    return dict(zip(names, given, strict=True))


@cache
def _fields(type_: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """The type of each parameter, without what is said about it."""
    found = inspect.type_info(type_)
    assert isinstance(found, inspect.StructType)  # noqa: S101 - the type says so
    return {field.encode_name: _bare(field.type) for field in found.fields}


def _bare(type_: inspect.Type) -> inspect.Type:
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        others = [_bare(each) for each in type_.types if not isinstance(each, inspect.NoneType)]
        return others[0] if len(others) == 1 else type_
    return type_

"""What a request says, as the types of its route: parameters of the path and the query, and the body.

Whatever does not fit is refused, with the place where it stands: the name of a parameter, or the path of a member in
the JSON of the body, `$.values[0].index`. Parameters are text, so numbers, and true and false, are taken from text; a
parameter without a value that says yes or no says yes. One that takes several values is repeated.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from perseid.names.errors import quoted
from perseid.serve.http.bodies import JSON_TYPE, media_type
from perseid.serve.http.failures import NOT_FOUND, UNSUPPORTED_MEDIA_TYPE
from perseid.serve.http.messages import Request
from perseid.serve.http.targets import Malformed, Parameters, name_of

from .routing import BASE, Route

_WHERE: Final = re.compile(r"(?s)(.*?) - at `(\$[^`]*)`")
_PLURAL: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


class Unfitting(Malformed):
    """A part of a request that does not fit."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where
        """The parameter, or the path in the body."""


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
    for name, value in Parameters.parse(request.query).pairs:
        field = fields.get(name)
        if field is None:
            known = f"there are {', '.join(fields)}" if fields else "there are none here"
            raise Unfitting(f"the parameter {quoted(name)} is not known; {known}", name[:80])
        if isinstance(field, _PLURAL):
            given.setdefault(name, []).append(value)
        elif name in given:
            raise Unfitting(f"the parameter {name} is there twice, and means one thing", name)
        else:
            given[name] = "true" if value == "" and isinstance(field, inspect.BoolType) else value
    try:
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as problem:
        message, where = _told(problem)
        name = where.removeprefix("$.").partition("[")[0]
        text = f"the parameter {name} does not fit: {message}" if name.isidentifier() else message
        raise Unfitting(text, name if name.isidentifier() else "") from None


def body_of(request: Request, type_: Any) -> Any:
    """The body, as the type of a route; raises `Malformed`."""
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
        return msgspec.json.decode(request.body, type=type_)
    except msgspec.ValidationError as problem:
        message, where = _told(problem)
        raise Unfitting(f"the body does not fit: {message}", where) from None
    except msgspec.DecodeError as problem:
        raise Unfitting(f"the body is no JSON: {problem}") from None
    except UnicodeDecodeError:
        raise Unfitting("the body is not UTF-8, and JSON has no other encoding") from None
    except RecursionError:
        raise Unfitting("the body is nested too deeply") from None


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


def _told(problem: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong, and where in the JSON."""
    found = _WHERE.fullmatch(str(problem))
    message, where = (found[1], found[2]) if found else (str(problem), "$")
    return message[:1].lower() + message[1:], where

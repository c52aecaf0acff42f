"""The headers of requests that count, and those that answers have, as the description says it.

A test compares them with what is really sent. Headers that any server has, whatever it serves, are not described.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from .calls import KEY_HEADER, REPLAYED
from .job_events import MEDIA_TYPE as EVENTS
from .routing import Route
from .state import WINDOW
from .structures import Paging

_REFERENCE: Final = "#/components/headers/{name}"


def _text(description: str, *examples: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    return {"description": description, "schema": {**schema, "examples": list(examples)} if examples else schema}


ANSWERS: Final[Mapping[str, dict[str, Any]]] = {
    "RateLimit-Policy": _text(
        f"How many requests you may make in {WINDOW} seconds. It and `RateLimit` are absent where there is no limit, "
        "and where a request could not be read at all.",
        '"requests";q=600;w=60',
    ),
    "RateLimit": _text(
        "How many are left (`r`), and in how many seconds there are more (`t`).", '"requests";r=597;t=1'
    ),
    "Cache-Control": _text("Who may keep the answer, and for how long.", "no-cache", "no-store"),
    "Vary": _text("The headers of the request on which the answer depends.", "Authorization"),
    "ETag": _text("What names this answer, for `If-None-Match`; of a record its state, for `If-Match` too.", '"e17"'),
    "Location": _text(
        "Where that is to be had which was made; absent where it is several things.", "/api/v1/handles/12345%2Fx"
    ),
    "Link": _text('The address of the next page, with `rel="next"`; absent on the last one.'),
    REPLAYED[0]: _text("`true` where the answer is the one that was given before, and nothing was done now.", "true"),
    "Retry-After": _text("After how many seconds it is worth asking again.", "1"),
    "WWW-Authenticate": _text(
        "With 401, the ways to say who you are. With any status, in a session in which the server was asked to prove "
        "itself: its signature.",
        'Bearer realm="handle"',
    ),
}
"""What the headers of answers say, by their names."""

_ALWAYS: Final = ("RateLimit-Policy", "RateLimit", "Cache-Control", "WWW-Authenticate")
_MAKING: Final = (201, 202)

_BY_STATUS: Final[Mapping[int, tuple[str, ...]]] = {
    409: ("Retry-After",),  # of a request with the same key that goes on at the moment
    429: ("Retry-After",),
    503: ("Retry-After",),
}


def is_endless(route: Route) -> bool:
    """Whether the answer has no end of its own, and so no tag."""
    return EVENTS in route.media_types


def of_answer(route: Route) -> dict[str, Any]:
    """The headers of an answer where all went well."""
    names = list(_ALWAYS)
    if route.method == "GET":
        names += ["Vary"] if is_endless(route) else ["Vary", "ETag"]
    if route.status in _MAKING:
        names.append("Location")
    if issubclass(route.query, Paging):
        names.append("Link")
    if route.creates:
        names.append(REPLAYED[0])
    return _references(names)


def of_same(route: Route) -> dict[str, Any]:
    """The headers of the answer that what somebody has is still good."""
    return _references([*_ALWAYS, "Vary", "ETag", *(("Link",) if issubclass(route.query, Paging) else ())])


def of_problem(status: int) -> dict[str, Any]:
    """The headers of an answer that something was not done."""
    return _references([*_ALWAYS, *_BY_STATUS.get(status, ())])


def _references(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": _REFERENCE.format(name=name)} for name in names}


def parameters(route: Route) -> Iterable[dict[str, Any]]:
    """The headers of a request that count for a route, besides those by which somebody says who they are."""
    if route.creates:
        name = "-".join(word.capitalize() for word in KEY_HEADER.split("-"))
        about = (
            "A key that you make up, such as a UUID: who repeats the request with it, within 24 hours, gets the same "
            "answer, and nothing is done twice."
        )
        yield _parameter(name, about, minLength=1, maxLength=255)
    if route.conditional:
        about = "The `ETag` of the record as you read it: if it has changed since, nothing is done (412). `*` is any."
        yield _parameter("If-Match", about)
        about = "The `ETag` of a state in which nothing shall be done (412). `*` is any."
        yield _parameter("If-None-Match", about)
    if route.method == "GET" and not is_endless(route):
        about = "The `ETag` of an answer that you have: if it is still good, the answer is 304 and empty."
        yield _parameter("If-None-Match", about)


def _parameter(name: str, about: str, **limits: int) -> dict[str, Any]:
    schema = {"type": "string", **limits}
    return {"name": name, "in": "header", "required": False, "description": about, "schema": schema}

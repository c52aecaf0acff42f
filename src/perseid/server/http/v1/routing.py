"""Routes of the HTTP API: method, path, types, handler.

A route declares everything about itself, so the OpenAPI document cannot differ from what is served. Query, body and
response are `msgspec` types whose docstrings are their descriptions.

A handle is one path segment, so its slash is written `%2F`:

    /api/v1/handles/12345%2Fx/history
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from perseid.server.http.messages import HeaderList

if TYPE_CHECKING:
    from .api_call import ApiCall

BASE: Final = "/api/v1"
"""The path of this version of the API."""

NO_TOKEN: Final = "none"  # noqa: S105 - not a secret
"""The scope of routes that tokens cannot use."""

OWN_TOKEN: Final = "itself"  # noqa: S105 - not a secret
"""The scope of routes that every token can use, on itself only."""

Handler = Callable[["ApiCall"], Awaitable["Reply"]]
HandlerT = TypeVar("HandlerT", bound=Handler)


class EmptyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query without parameters."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a handler."""

    body: object = None
    """An object to encode as JSON, or bytes to send unchanged."""
    status: int = 200
    headers: HeaderList = ()
    media_type: str = "application/json"
    name: str = ""
    """The handle concerned, for the log."""
    next: str | None = None
    """The cursor of the next page, for the `Link` header. See `ApiCall.cursor`."""
    stream: AsyncIterator[bytes] | None = None
    """A streamed body, instead of `body`."""
    tag: str = ""
    """The ETag of an encoded `body`: see `ApiCall.respond`."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    """The path under `BASE`, with parameters in braces: `/handles/{handle}/history`."""
    operation: str
    """The operationId, in camel case."""
    summary: str
    """A short summary; the docstring of the handler has more."""
    tag: str
    """The section of the OpenAPI document."""
    handler: Handler
    response: Any = None
    """The type of the response body; None if there is none."""
    query: type[msgspec.Struct] = EmptyQuery
    """The type of the query parameters."""
    body: Any = None
    """The type of the request body; None if there is none."""
    status: int = 200
    """The status of a successful response."""
    media_types: tuple[str, ...] = ("application/json",)
    """The media types of the response."""
    scope: str = ""
    """The scope that a token needs, `NO_TOKEN` or `OWN_TOKEN`; empty for public routes."""
    creates: bool = False
    """Whether the route supports `Idempotency-Key`."""
    conditional: bool = False
    """Whether the route supports `If-Match` and `If-None-Match`."""
    problems: tuple[int, ...] = (400,)
    """Problem statuses besides `openapi.COMMON_STATUSES`."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the path parameters."""

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments of the path; none for `BASE` itself."""
        return tuple(filter(None, self.path.split("/")))


@dataclass(slots=True)
class Routes:
    """A section of the API, to which handlers are added."""

    tag: str
    about: str
    """A description of the section."""
    routes: list[Route] = field(default_factory=list)

    def add(self, method: str, path: str, operation: str, summary: str, **more: Any) -> Callable[[HandlerT], HandlerT]:
        """Register the handler of a method and path."""

        def register(handler: HandlerT) -> HandlerT:
            self.routes.append(Route(method, path, operation, summary, self.tag, handler, **more))
            return handler

        return register


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The routes of a path."""

    routes: Mapping[str, Route]
    """By method."""
    parameters: tuple[str, ...]
    """The path parameters, in order."""


class Router:
    """All routes by path. A literal segment is matched before a parameter."""

    def __init__(self, sections: Iterable[Routes]) -> None:
        self.sections = tuple(sections)
        self.routes = tuple([route for section in self.sections for route in section.routes])
        self._root = _Node()
        operations: set[str] = set()
        for route in self.routes:
            node = self._root
            for segment in route.segments:
                node = node.child(segment)
            if route.method in node.routes or route.operation in operations:
                raise ValueError(f"{route.method} {route.path} ({route.operation}) is defined twice")
            node.routes[route.method] = route
            operations.add(route.operation)

    def find(self, segments: tuple[str, ...]) -> RouteMatch | None:
        """Find the routes of decoded path segments; None if there are none."""
        return next(self._root.find(segments, ()), None)


@dataclass(slots=True)
class _Node:
    """A node of the tree of path segments."""

    routes: dict[str, Route] = field(default_factory=dict)
    children: "dict[str, _Node]" = field(default_factory=dict)
    parameter: "_Node | None" = None

    def child(self, segment: str) -> "_Node":
        if not is_parameter(segment):
            return self.children.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = _Node()
        return self.parameter

    def find(self, segments: tuple[str, ...], matched: tuple[str, ...]) -> Iterator[RouteMatch]:
        if not segments:
            if self.routes:
                yield RouteMatch(self.routes, matched)
            return
        first, rest = segments[0], segments[1:]
        if first in self.children:
            yield from self.children[first].find(rest, matched)
        if first and self.parameter is not None:
            yield from self.parameter.find(rest, (*matched, first))


def is_parameter(segment: str) -> bool:
    """Return whether a segment is a parameter."""
    return segment.startswith("{")

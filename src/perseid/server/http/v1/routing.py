"""What a part of the API is: a method, a path, what it takes and gives, and the function that answers.

A route says everything about itself, so that what is served and what is described cannot differ. Everything that goes
over the network has a type: the parameters of the query, the body and the answer are `msgspec` structures whose
docstrings are their descriptions.

In a path a name is one segment, so the slash of a handle is written `%2F` there:

    /api/v1/handles/12345%2Fx/history
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from perseid.server.http.messages import HeaderList

if TYPE_CHECKING:
    from .calls import ApiCall

BASE: Final = "/api/v1"
"""Below it is everything of this version."""

NO_TOKEN: Final = "none"  # noqa: S105 - a word
"""The scope of what no token can do, whatever its words."""

OWN_TOKEN: Final = "itself"  # noqa: S105 - not a secret
"""The scope of what every token can do, whatever its words: with itself, and nothing else."""

Handler = Callable[["ApiCall"], Awaitable["Reply"]]
HandlerT = TypeVar("HandlerT", bound=Handler)


class EmptyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a route answers."""

    body: object = None
    """A structure, which is written as JSON; or octets, which go out as they are."""
    status: int = 200
    headers: HeaderList = ()
    media_type: str = "application/json"
    name: str = ""
    """The handle that it was about, for the log."""
    next: str | None = None
    """The cursor of the next page, if there is one: the answer then links to it. See `ApiCall.cursor`."""
    stream: AsyncIterator[bytes] | None = None
    """A body that is made while it is sent, in place of `body`."""
    tag: str = ""
    """What follows from the octets of `body`, where that was made with them: see `ApiCall.tell`."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    """Below `BASE`, with the names of its parameters in braces: `/handles/{handle}/history`."""
    operation: str
    """Its name in the description, in camel case."""
    summary: str
    """What it does, in a few words; more is in the docstring of the function that answers."""
    tag: str
    """The chapter of the description that it stands in."""
    handler: Handler
    response: Any = None
    """The type of the body of an answer; None if there is none."""
    query: type[msgspec.Struct] = EmptyQuery
    """The parameters of the query."""
    body: Any = None
    """The type of the body of a request; None if there is none."""
    status: int = 200
    """Of an answer where all went well."""
    media_types: tuple[str, ...] = ("application/json",)
    """Of the answer, where it is not JSON alone."""
    scope: str = ""
    """The word that a token needs, `NO_TOKEN` or `ITSELF`; empty where nobody needs to be known."""
    creates: bool = False
    """Whether an `Idempotency-Key` keeps it from being done twice."""
    conditional: bool = False
    """Whether it is done only in the state of a record that `If-Match` or `If-None-Match` names."""
    problems: tuple[int, ...] = (400,)
    """Statuses with which it may refuse, besides those that everything may."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What each parameter of the path is, by its name."""

    @property
    def segments(self) -> tuple[str, ...]:
        """The steps of the path; none for `/`, which is `BASE` itself."""
        return tuple(filter(None, self.path.split("/")))


@dataclass(slots=True)
class Routes:
    """A part of the API, to which functions add themselves."""

    tag: str
    about: str
    """What the chapter is about, for the description."""
    found: list[Route] = field(default_factory=list)

    def add(self, method: str, path: str, operation: str, summary: str, **more: Any) -> Callable[[HandlerT], HandlerT]:
        """Have a function answer a method of a path."""

        def register(handler: HandlerT) -> HandlerT:
            self.found.append(Route(method, path, operation, summary, self.tag, handler, **more))
            return handler

        return register


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """What there is at a path."""

    routes: Mapping[str, Route]
    """By method."""
    parameters: tuple[str, ...]
    """What stands in the path where a route has parameters, in that order."""


class Router:
    """All routes, by path. A step that is spelt out goes before a parameter."""

    def __init__(self, parts: Iterable[Routes]) -> None:
        self.parts = tuple(parts)
        self.routes = tuple([route for section in self.parts for route in section.found])
        self._root = _Node()
        operations: set[str] = set()
        for route in self.routes:
            node = self._root
            for step in route.segments:
                node = node.child(step)
            if route.method in node.routes or route.operation in operations:
                raise ValueError(f"{route.method} {route.path} ({route.operation}) is there twice")
            node.routes[route.method] = route
            operations.add(route.operation)

    def find(self, steps: tuple[str, ...]) -> RouteMatch | None:
        """What there is at a path, whose steps are decoded; None if nothing is."""
        return next(self._root.find(steps, ()), None)


@dataclass(slots=True)
class _Node:
    """Where a path has come to after some steps."""

    routes: dict[str, Route] = field(default_factory=dict)
    steps: "dict[str, _Node]" = field(default_factory=dict)
    parameter: "_Node | None" = None

    def child(self, step: str) -> "_Node":
        """Where a step leads to, which is made if it is not there."""
        if not is_parameter(step):
            return self.steps.setdefault(step, _Node())
        if self.parameter is None:
            self.parameter = _Node()
        return self.parameter

    def find(self, steps: tuple[str, ...], matched: tuple[str, ...]) -> Iterator[RouteMatch]:
        if not steps:
            if self.routes:
                yield RouteMatch(self.routes, matched)
            return
        first, rest = steps[0], steps[1:]
        if first in self.steps:
            yield from self.steps[first].find(rest, matched)
        if first and self.parameter is not None:
            yield from self.parameter.find(rest, (*matched, first))


def is_parameter(step: str) -> bool:
    """Whether a step of a path stands for something."""
    return step.startswith("{")

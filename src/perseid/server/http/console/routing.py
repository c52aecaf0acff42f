"""Routes of the console: a handler for each method and path.

    PAGES = Pages("records")

    @PAGES.get("/records/{handle}")
    async def show_record(console: ConsoleRequest) -> Response: ...

Paths are relative to `/console`. A parameter is one segment, still encoded when it is matched (`12345%2Fx`), and
decoded once; links are built with `link`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, urlencode

from starlette.routing import compile_path

from perseid.server.http.messages import Response, percent_decode

if TYPE_CHECKING:
    from .requests import ConsoleRequest

BASE: Final = "/console"

STREAMED: Final = frozenset({("POST", f"{BASE}/imports".encode())})
"""Methods and paths of forms with a file, which are read while they arrive."""

Handler = Callable[["ConsoleRequest"], Awaitable[Response]]


class Route(NamedTuple):
    """A page, or what happens to one of its forms."""

    method: str
    path: str
    handler: Handler
    section: str
    """The entry of the navigation that it belongs to."""
    public: bool
    """Whether it needs no session."""


class Match(NamedTuple):
    """A route and its parameters, decoded."""

    route: Route
    names: Mapping[str, str]


@dataclass(slots=True)
class Pages:
    """The pages of one section, to which handlers are added."""

    section: str
    routes: list[Route] = field(default_factory=list)

    def get(self, path: str, *, public: bool = False) -> Callable[[Handler], Handler]:
        """Register the handler of a page."""
        return self._register("GET", path, public)

    def post(self, path: str, *, public: bool = False) -> Callable[[Handler], Handler]:
        """Register the handler of a form. Its token was checked before, unless the form is public."""
        return self._register("POST", path, public)

    def _register(self, method: str, path: str, public: bool) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.routes.append(Route(method, path, handler, self.section, public))
            return handler

        return register


class Router:
    """Finds the route of a path. Those with the same first segment are tried in turn."""

    def __init__(self, sections: Iterable[Pages]) -> None:
        self._routes: dict[str, list[tuple[re.Pattern[str], Route]]] = {}
        for section in sections:
            for route in section.routes:
                pattern, _, _ = compile_path(route.path)
                self._routes.setdefault(_first_segment(route.path), []).append((pattern, route))

    def find(self, method: str, path: str) -> Match | None:
        """Return the route of a path relative to `BASE`, still encoded; None if there is none."""
        for pattern, route in self._routes.get(_first_segment(path), ()):
            if route.method == method and (match := pattern.match(path)) is not None:
                return Match(route, {name: _decode(text) for name, text in match.groupdict().items()})
        return None

    def methods(self, path: str) -> list[str]:
        """The methods of a path; none if there is no such page."""
        return [method for method in ("GET", "POST") if self.find(method, path) is not None]


def link(*segments: object, **query: object) -> str:
    """The path of a page; segments are encoded, and parameters that are empty or None are left out.

    A parameter whose value is a tuple repeats.
    """
    path = "".join([f"/{quote(str(segment), safe='')}" for segment in segments])
    values = [(name, value if isinstance(value, tuple) else (value,)) for name, value in query.items()]
    pairs = [(name, str(each)) for name, several in values for each in several if each not in (None, "", False)]
    return f"{BASE}{path}{'?' if pairs else ''}{urlencode(pairs)}"


def _first_segment(path: str) -> str:
    return path.split("/", 2)[1] if path else ""


def _decode(segment: str) -> str:
    return percent_decode(segment.encode("latin-1")).decode("utf-8", "replace")

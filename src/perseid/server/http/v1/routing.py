"""Routes of the HTTP API: method, path, types, handler.

A route declares everything about itself, so the OpenAPI document cannot differ from what is served. Query, body and
response are `msgspec` types whose docstrings are their descriptions.

A handle is one path segment, so its slash is written `%2F`:

    /api/v1/handles/12345%2Fx/history
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from starlette.responses import Response

from perseid.registry.responses import phrase_warnings
from perseid.schema.common import HANDLE_PARAMETER
from perseid.server.http.messages import HeaderList
from perseid.server.http.negotiation import compute_etag

BASE: Final = "/api/v1"
"""The path of this version of the API."""

NO_TOKEN: Final = "none"  # noqa: S105 - not a secret
"""The scope of routes that tokens cannot use."""

OWN_TOKEN: Final = "itself"  # noqa: S105 - not a secret
"""The scope of routes that every token can use, on itself only."""

PARAMETERS: Final = {
    "handle": HANDLE_PARAMETER,
    "id": "The id of the import.",
    "job": "The id of the job, as in `listJobs`, or `last`.",
    "prefix": "The prefix of the namespace, as in `12345`.",
    "rule": "The id of the rule, as in problems: `H3`.",
    "suffix": "The nine characters of the suffix.",
    "token": "The id of the token: the eight characters after `perseid_`. Never send the token itself here.",
}
"""Descriptions of the path parameters."""

Handler = Callable[..., Awaitable[Response]]
"""A handler gets an `ApiCall`, the query parameters as `query`, and the body by another name, each if it has them."""

FileBody: TypeAlias = AsyncIterator[bytes]
"""The type of a body that is a file of any size; its path must not have parameters."""

HandlerT = TypeVar("HandlerT", bound=Handler)
B = TypeVar("B")


class EmptyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query without parameters."""


class Reply(Response, Generic[B]):
    """A response: an object as JSON, or bytes, which can be of another media type."""

    def __init__(
        self,
        content: B | bytes | None = None,
        status_code: int = 200,
        headers: HeaderList = (),
        media_type: str = "application/json",
        *,
        name: str = "",
        tag: str = "",
    ) -> None:
        """Encode the content and compute its tag, in the thread that has read it."""
        if warnings := getattr(content, "warnings", ()):
            from .problems import render_advice  # noqa: PLC0415 - it imports this module

            warnings = phrase_warnings(warnings, render_advice)
            content = msgspec.structs.replace(content, warnings=warnings)  # type: ignore[type-var]
        self.status_code, self.media_type, self.background = status_code, media_type, None
        self.body = content if isinstance(content, bytes) else b"" if content is None else msgspec.json.encode(content)
        self.fields: HeaderList = ()
        """The headers, except the media type."""
        self.raw_headers = [] if content is None else [(b"Content-Type", media_type.encode())]
        self.add_headers(*headers)
        self.name = name
        """The handle concerned, for the log."""
        self.tag = tag or compute_etag(media_type, self.body)
        """The ETag of a read: that of the bytes unless it is given."""

    def add_headers(self, *more: tuple[str, str]) -> None:
        """Add headers; names can repeat."""
        self.fields += more
        self.raw_headers += [(name.encode(), value.encode("latin-1")) for name, value in more]


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
    body_name: str = ""
    """The parameter of the handler that gets the body."""
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
    parameters: Mapping[str, str] = field(default_factory=lambda: PARAMETERS)
    """Descriptions of the path parameters."""

    @property
    def is_streamed(self) -> bool:
        """Whether the handler processes the body while it arrives."""
        return bool(self.body == FileBody)


@dataclass(slots=True)
class Routes:
    """A section of the API, to which handlers are added."""

    tag: str
    about: str
    """A description of the section."""
    routes: list[Route] = field(default_factory=list)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of its routes that do not say otherwise."""

    def add(self, method: str, path: str, summary: str, **more: Any) -> Callable[[HandlerT], HandlerT]:
        """Register the handler of a method and path.

        Its name becomes the operationId, and its annotations declare the types of query, body and response.
        """

        def register(handler: HandlerT) -> HandlerT:
            first, *others = handler.__name__.split("_")
            types = get_type_hints(handler)
            response = next(iter(get_args(types.pop("return"))), bytes)
            _, *parameters = types.items()
            types = dict(parameters)
            query = types.pop("query", EmptyQuery)
            body_name, body = next(iter(types.items()), ("", None))
            route = Route(
                method,
                path,
                "".join([first, *map(str.capitalize, others)]),
                summary,
                self.tag,
                handler,
                None if response is bytes else response,
                query,
                body,
                body_name,
                **{**self.defaults, **more},
            )
            self.routes.append(route)
            return handler

        return register

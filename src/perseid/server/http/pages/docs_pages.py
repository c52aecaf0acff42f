"""HTML documentation of the HTTP API, without scripts and external resources.

    /docs                  introduction and sections
    /docs/{section}        the routes of a section
    /docs/schemas          types of requests and responses
    /docs/problems         problem types, and the rules that problems name

The pages are generated from the OpenAPI document (`v1.openapi`), with the examples of `docs_examples`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from perseid.schema.names import rules
from perseid.schema.problems import PROBLEM_TYPES, problem_types_by_status
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Response
from perseid.server.http.negotiation import PAGE_AGE
from perseid.server.http.v1 import openapi
from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import BASE, Route

from .branding import site_name
from .pages import render_page

DOCS: Final = "docs"
"""The first path segment of the pages."""

OPENAPI: Final = "openapi.json"
"""The path of the OpenAPI document."""

MAX_CACHED_PAGES: Final = 64
"""Cached pages: all of them, twice, because settings can change. The longest takes some hundredths of a second."""

_CACHE_HEADERS: Final = (("Cache-Control", f"public, max-age={PAGE_AGE}"),)
_MARKUP: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_COMMON_PROBLEMS: Final = frozenset(("no-such-path", "https-required"))
"""Problems of every route, listed once."""

_SERVER_PLACEHOLDER: Final = "{this-server}"
"""Placeholder for the server URL in cached pages, if none is configured."""


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text with one style."""

    text: str
    kind: str = ""
    """`code`, `strong` or empty."""


Prose = list[list[Run]]
"""Paragraphs."""


@dataclass(frozen=True, slots=True)
class TypeReference:
    """A type in words, and a link to its schema."""

    text: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter, or a field of a schema."""

    name: str
    shapes: list[TypeReference]
    required: bool
    about: Prose
    limits: str = ""


@dataclass(frozen=True, slots=True)
class Structure:
    """A schema or an enumeration."""

    name: str
    about: Prose
    members: list[Member]
    words: list[str]


def render(path: str, settings: HttpSettings, server: str) -> Response | None:
    """Render a page; None if there is none.

    `server` is the URL of the request, used if no public URL is configured. It must be safe to embed.
    """
    try:
        response = _render(path, settings)
    except _PageNotFound:
        return None
    if settings.public_url or not path.startswith(DOCS):
        return response
    # The URL comes from the request, so a shared cache must not store the page.
    headers = tuple([each for each in response.headers if each not in _CACHE_HEADERS])
    own = ("Cache-Control", f"private, max-age={PAGE_AGE}")
    return replace(
        response, headers=(own, *headers), body=response.body.replace(_SERVER_PLACEHOLDER.encode(), server.encode())
    )


class _PageNotFound(Exception):
    """The page does not exist. An exception, so that `lru_cache` does not store it."""


@lru_cache(maxsize=MAX_CACHED_PAGES)
def _render(path: str, settings: HttpSettings) -> Response:
    if path == OPENAPI:
        body = msgspec.json.encode(openapi.document(get_api(), settings))
        return Response(200, (*_CACHE_HEADERS, ("Content-Type", "application/json")), body)
    first, _, rest = path.partition("/")
    if first != DOCS:
        raise _PageNotFound
    if rest == "":
        return _index_page(settings)
    if rest == "problems":
        return _problems_page(settings)
    if rest == "schemas":
        return _schemas_page(settings)
    section = next((section for section in get_api().sections if slugify(section.tag) == rest), None)
    if section is None:
        raise _PageNotFound
    return _section_page(section.tag, section.about, section.routes, settings)


def _server_url(settings: HttpSettings) -> str:
    return settings.public_url or _SERVER_PLACEHOLDER


def slugify(tag: str) -> str:
    """Convert a section title to a path segment."""
    return re.sub("[^a-z0-9]+", "-", tag.lower()).strip("-")


def _index_page(settings: HttpSettings) -> Response:
    everywhere = [
        (problem_type.status, problem_type.title, problem_type.slug)
        for status in openapi.COMMON_STATUSES
        for problem_type in problem_types_by_status(status)
    ]
    sections = [
        {
            "tag": section.tag,
            "slug": slugify(section.tag),
            "about": parse_prose(section.about),
            "routes": [
                (route.method, f"{BASE}{route.path}", route.summary, route.operation) for route in section.routes
            ],
        }
        for section in get_api().sections
    ]
    return render_page(
        "docs.html",
        settings,
        headers=_CACHE_HEADERS,
        title=f"The API – {site_name(settings)}",
        about=parse_prose(openapi.DESCRIPTION),
        base=f"{_server_url(settings)}{BASE}",
        sections=sections,
        everywhere=everywhere,
    )


def _section_page(tag: str, about: str, routes: Iterable[Route], settings: HttpSettings) -> Response:
    document = openapi.document(get_api(), settings)
    shown = [_route_variables(route, document, settings) for route in routes]
    title = f"{tag} – {site_name(settings)}"
    return render_page(
        "docs_section.html",
        settings,
        headers=_CACHE_HEADERS,
        title=title,
        tag=tag,
        about=parse_prose(about),
        routes=shown,
    )


def _route_variables(route: Route, document: Mapping[str, Any], settings: HttpSettings) -> dict[str, Any]:
    from . import docs_examples  # noqa: PLC0415 - loads the client

    spec = document["paths"][route.path][route.method.lower()]
    example = docs_examples.make_example(route, spec, document["components"]["schemas"])
    success = spec["responses"][str(route.status)]
    own = [int(status) for status in spec["responses"] if int(status) not in openapi.COMMON_STATUSES]
    refusals = [
        (problem_type.status, problem_type.title, problem_type.slug)
        for status in sorted({*own, *route.problems})
        for problem_type in problem_types_by_status(status)
        if problem_type.slug not in _COMMON_PROBLEMS
    ]
    body = spec.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return {
        "method": route.method,
        "path": f"{BASE}{route.path}",
        "operation": route.operation,
        "summary": route.summary,
        "about": parse_prose(spec["description"]),
        "parameters": [_parameter(each) for each in spec["parameters"] if not _is_common_parameter(each, route)],
        "body": [] if body is None else type_references(body),
        "status": route.status,
        "answers": [
            shape for each in success.get("content", {}).values() for shape in type_references(each.get("schema", {}))
        ],
        "media_types": list(success.get("content", {})),
        "refusals": refusals,
        "curl": docs_examples.curl_command(example, _server_url(settings)),
        "python": docs_examples.python_program(example, _server_url(settings)),
    }


def _is_common_parameter(spec: Mapping[str, Any], route: Route) -> bool:
    """Return whether every cacheable response has the parameter."""
    return route.method == "GET" and spec["name"] == "If-None-Match"


def _parameter(spec: Mapping[str, Any]) -> Member:
    schema = spec["schema"]
    member = _member(spec["name"], schema, spec["description"], required=spec["required"])
    return replace(member, limits=", ".join(filter(None, (f"in the {spec['in']}", member.limits))))


def _schemas_page(settings: HttpSettings) -> Response:
    schemas = openapi.document(get_api(), settings)["components"]["schemas"]
    shown = [_structure(name, spec) for name, spec in schemas.items()]
    title = f"Schemas – {site_name(settings)}"
    return render_page("docs_schemas.html", settings, headers=_CACHE_HEADERS, title=title, schemas=shown)


def _structure(name: str, spec: Mapping[str, Any]) -> Structure:
    needed = spec.get("required", ())
    members = [
        _member(member, schema, schema.get("description", ""), required=member in needed)
        for member, schema in spec.get("properties", {}).items()
    ]
    words = [str(word) for word in spec.get("enum", ())]
    return Structure(name, parse_prose(spec.get("description", "")), members, words)


def _problems_page(settings: HttpSettings) -> Response:
    types = [
        (problem_type.slug, problem_type.status, problem_type.title, parse_prose(problem_type.about))
        for problem_type in PROBLEM_TYPES.values()
    ]
    known = [(key, spec["title"], spec["text"]) for key, spec in rules().items()]
    title = f"Problems – {site_name(settings)}"
    return render_page("docs_problems.html", settings, headers=_CACHE_HEADERS, title=title, types=types, rules=known)


def _member(name: str, schema: Mapping[str, Any], about: str, *, required: bool) -> Member:
    return Member(name, type_references(schema), required, parse_prose(about), _limits(schema))


def type_references(schema: Mapping[str, Any]) -> list[TypeReference]:
    """Describe the types of a schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [TypeReference(name, f"/docs/schemas#{name}")]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return list(dict.fromkeys([shape for each in schema[choice] for shape in type_references(each)]))
    if "enum" in schema:
        return [TypeReference(f'"{word}"') for word in schema["enum"]]
    if "const" in schema:
        return [TypeReference(f'"{schema["const"]}"')]
    type_ = schema.get("type")
    if type_ == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]  # a tuple has a schema for each item
        found = dict.fromkeys([shape for each in items for shape in type_references(each)])
        return [TypeReference(f"array of {shape.text}", shape.href) for shape in found]
    return [TypeReference(str(type_) if type_ else "anything")]


def _limits(schema: Mapping[str, Any]) -> str:
    words = {
        "minimum": "at least {}",
        "maximum": "at most {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
        "minItems": "at least {} items",
        "maxItems": "at most {} items",
    }
    inside = [schema, *[each for each in schema.get("anyOf", ()) if isinstance(each, Mapping)]]
    found = [
        "not empty" if key in ("minLength", "minItems") and each[key] == 1 else words[key].format(f"{each[key]:,}")
        for each in inside
        for key in words
        if key in each
    ]
    default = schema.get("default")
    if default not in (None, "", [], (), {}):
        found.append(f"{str(default).lower() if isinstance(default, bool) else default} by default")
    return ", ".join(found)


def parse_prose(text: str) -> Prose:
    """Split a text into paragraphs and parse its Markdown."""
    return [_parse_runs(" ".join(part.split())) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def _parse_runs(text: str) -> list[Run]:
    found: list[Run] = []
    at = 0
    for each in _MARKUP.finditer(text):
        if each.start() > at:
            found.append(Run(text[at : each.start()]))
        found.append(Run(each[1], "code") if each[1] is not None else Run(each[2], "strong"))
        at = each.end()
    return [*found, Run(text[at:])] if at < len(text) else found

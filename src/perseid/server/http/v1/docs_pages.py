"""Commands that ask for the parts of the API, as its pages show them: complete, so that they can be copied and run.

They are made of the description. What a body holds are the examples that its members name, or else the plainest thing
that fits.

The description of our own API as pages for people, without script and without anything from elsewhere.

    /docs                  how to use it, and its chapters
    /docs/{chapter}        the routes of a chapter: what they take, give and refuse
    /docs/structures       what goes over the network
    /docs/problems         what each type of problem means, and each rule that a problem may name

They are made of the description for programs (`openapi`), so the two say the same.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

import msgspec

from perseid.registry.results import rules
from perseid.server.http.caching import PAGE_AGE
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Response
from perseid.server.http.pages.pages import render_page, site_name

from . import openapi
from .application import get_router
from .problems import PROBLEM_TYPES, problem_types_by_status
from .routing import BASE, NO_TOKEN, Route

_PATH_EXAMPLES: Final = {"handle": "12345%2Fx", "prefix": "12345", "suffix": "D7J1G0DQH", "rule": "H3"}
"""What stands in a path for its parameters; others stand for themselves, in capitals."""

_USUAL_MEMBERS: Final = frozenset(("values", "prefix", "namespaces"))
"""Members that may be left out, and hardly ever are."""

_MEMBER_EXAMPLES: Final = {"data": "https://example.org/", "of": "12345/map", "description": "The scale of a map"}
"""What members hold that have no example, or one that does not go with the others."""

_QUERY_EXAMPLES: Final = {"/find": ("url",)}
"""Parameters of the query that may be left out, and one of them has to be there."""

_TYPE_EXAMPLES: Final[Mapping[str, object]] = {"string": "…", "integer": 1, "number": 1, "boolean": True, "object": {}}

Schemas = Mapping[str, Any]
"""The structures of the description, by their names."""


def curl_command(route: Route, spec: Mapping[str, Any], schemas: Schemas, server: str) -> str:
    """A command that asks a server for a route, of which the description says `said`."""
    parts = ["curl"]
    if route.method != "GET":
        parts[0] += f" -X {route.method}"
    if route.scope == NO_TOKEN:
        parts[0] += " -u '300%3A0.NA/12345'"
    elif route.scope:
        parts[0] += ' -H "Authorization: Bearer $TOKEN"'
    if route.body is not None:
        body = json.dumps(example_body(spec, schemas), ensure_ascii=False)
        parts += ['-H "Content-Type: application/json"', f"-d {shlex.quote(body)}"]
    parts.append(shlex.quote(f"{server}{BASE}{_target(route, spec, schemas)}"))
    return " \\\n  ".join(parts) if route.body is not None else " ".join(parts)


def example_body(spec: Mapping[str, Any], schemas: Schemas) -> object:
    """A body that a route takes."""
    return _example(spec["requestBody"]["content"]["application/json"]["schema"], schemas)


def _target(route: Route, spec: Mapping[str, Any], schemas: Schemas) -> str:
    path, query = route.path, []
    for each in spec["parameters"]:
        name = each["name"]
        if each["in"] == "path":
            path = path.replace(f"{{{name}}}", _PATH_EXAMPLES.get(name, name.upper()))
        elif each["in"] == "query" and (each["required"] or name in _QUERY_EXAMPLES.get(route.path, ())):
            example = _example(each["schema"], schemas)
            values = example if isinstance(example, list) else [example]  # one that takes several is repeated
            query += [f"{name}={quote(str(value), safe=':/')}" for value in values]
    return f"{path}?{'&'.join(query)}" if query else path


def _example(schema: Mapping[str, Any], schemas: Schemas) -> object:
    """Something that a schema describes."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for choice in ("examples", "enum"):
        if choice in schema:
            return schema[choice][0]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _example(schema[choice][0], schemas)
    if schema.get("type") == "array":
        return [_example(schema.get("items", {}), schemas)]
    members = schema.get("properties")
    if members is None:
        return _TYPE_EXAMPLES[schema["type"]]
    included = {*schema.get("required", ()), *_USUAL_MEMBERS} & set(members)
    included = included or {name for name in members if "examples" in members[name]}
    return {
        name: _MEMBER_EXAMPLES.get(name) or _example(members[name], schemas) for name in members if name in included
    }


DOCS: Final = "docs"
"""The first step of these pages."""

OPENAPI: Final = "openapi.json"
"""The path of the description for programs."""

MAX_CACHED_PAGES: Final = 64
"""Pages that are kept once they are made: all there are, twice, as settings may change. They follow from nothing else,
and the longest takes some hundredths of a second to make."""

_CACHE_HEADERS: Final = (("Cache-Control", f"public, max-age={PAGE_AGE}"),)
_MARKUP: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_COMMON_PROBLEMS: Final = frozenset(("no-such-path", "not-private"))
"""Problems that every route has alike, so that pages say it once."""

_SERVER_PLACEHOLDER: Final = "{this-server}"
"""What stands in a page that is kept for the address of the server, where none is declared."""


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of a sentence."""

    text: str
    kind: str = ""
    """`code`, `strong`, or nothing in particular."""


Prose = list[list[Run]]
"""Paragraphs."""


@dataclass(frozen=True, slots=True)
class TypeReference:
    """What something looks like, in a few words, and where that is explained."""

    text: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter, or a member of a structure."""

    name: str
    shapes: list[TypeReference]
    required: bool
    about: Prose
    limits: str = ""


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure, or a choice among words."""

    name: str
    about: Prose
    members: list[Member]
    words: list[str]


def render(path: str, settings: HttpSettings, server: str) -> Response | None:
    """A page; None if there is none of that path. `server` is the address at which it was asked for, and is safe.

    Commands on the page name the address that is declared, or else that one.
    """
    try:
        made = _render(path, settings)
    except _PageNotFound:
        return None
    if settings.public_url or not path.startswith(DOCS):
        return made
    # The request says so itself, and what it says is for nobody else: a cache on the way may not tell it to others.
    headers = tuple([each for each in made.headers if each not in _CACHE_HEADERS])
    own = ("Cache-Control", f"private, max-age={PAGE_AGE}")
    return replace(made, headers=(own, *headers), body=made.body.replace(_SERVER_PLACEHOLDER.encode(), server.encode()))


class _PageNotFound(Exception):
    """There is no such page. It is raised, as what is returned would be kept, in the place of a page that exists."""


@lru_cache(maxsize=MAX_CACHED_PAGES)
def _render(path: str, settings: HttpSettings) -> Response:
    if path == OPENAPI:
        body = msgspec.json.encode(openapi.document(get_router(), settings))
        return Response(200, (*_CACHE_HEADERS, ("Content-Type", "application/json")), body)
    first, _, rest = path.partition("/")
    if first != DOCS:
        raise _PageNotFound
    if rest == "":
        return _index_page(settings)
    if rest == "problems":
        return _problems_page(settings)
    if rest == "structures":
        return _structures_page(settings)
    part = next((part for part in get_router().parts if slugify(part.tag) == rest), None)
    if part is None:
        raise _PageNotFound
    return _section_page(part.tag, part.about, part.found, settings)


def _server_url(settings: HttpSettings) -> str:
    return settings.public_url or _SERVER_PLACEHOLDER


def slugify(tag: str) -> str:
    """The step of the path under which a chapter is."""
    return re.sub("[^a-z0-9]+", "-", tag.lower()).strip("-")


def _index_page(settings: HttpSettings) -> Response:
    everywhere = [
        (problem_type.status, problem_type.title, problem_type.slug)
        for status in openapi.COMMON_STATUSES
        for problem_type in problem_types_by_status(status)
    ]
    chapters = [
        {
            "tag": part.tag,
            "slug": slugify(part.tag),
            "about": parse_prose(part.about),
            "routes": [(route.method, f"{BASE}{route.path}", route.summary, route.operation) for route in part.found],
        }
        for part in get_router().parts
    ]
    return render_page(
        "docs.html",
        settings,
        headers=_CACHE_HEADERS,
        title=f"The API – {site_name(settings)}",
        about=parse_prose(openapi.DESCRIPTION),
        base=f"{_server_url(settings)}{BASE}",
        chapters=chapters,
        everywhere=everywhere,
    )


def _section_page(tag: str, about: str, routes: Iterable[Route], settings: HttpSettings) -> Response:
    document = openapi.document(get_router(), settings)
    shown = [_route_variables(route, document, settings) for route in routes]
    title = f"{tag} – {site_name(settings)}"
    return render_page(
        "docs_chapter.html",
        settings,
        headers=_CACHE_HEADERS,
        title=title,
        tag=tag,
        about=parse_prose(about),
        routes=shown,
    )


def _route_variables(route: Route, document: Mapping[str, Any], settings: HttpSettings) -> dict[str, Any]:
    spec = document["paths"][route.path][route.method.lower()]
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
        "example": curl_command(route, spec, document["components"]["schemas"], _server_url(settings)),
    }


def _is_common_parameter(spec: Mapping[str, Any], route: Route) -> bool:
    """Whether a parameter is one that every answer heeds which can be kept."""
    return route.method == "GET" and spec["name"] == "If-None-Match"


def _parameter(spec: Mapping[str, Any]) -> Member:
    schema = spec["schema"]
    where = {"path": "path", "query": "query", "header": "header"}[spec["in"]]
    made = _member(spec["name"], schema, spec["description"], required=spec["required"])
    limits = ", ".join(filter(None, (f"in the {where}", made.limits)))
    return Member(made.name, made.shapes, made.required, made.about, limits)


def _structures_page(settings: HttpSettings) -> Response:
    found = openapi.document(get_router(), settings)["components"]["schemas"]
    shown = [_structure(name, spec) for name, spec in found.items()]
    title = f"Structures – {site_name(settings)}"
    return render_page("docs_structures.html", settings, headers=_CACHE_HEADERS, title=title, structures=shown)


def _structure(name: str, spec: Mapping[str, Any]) -> Structure:
    needed = spec.get("required", ())
    members = [
        _member(member, schema, schema.get("description", ""), required=member in needed)
        for member, schema in spec.get("properties", {}).items()
    ]
    words = [str(word) for word in spec.get("enum", ())]
    return Structure(name, parse_prose(spec.get("description", "")), members, words)


def _problems_page(settings: HttpSettings) -> Response:
    sorts = [
        (problem_type.slug, problem_type.status, problem_type.title, parse_prose(problem_type.about))
        for problem_type in PROBLEM_TYPES.values()
    ]
    known = [(key, spec["title"], spec["text"]) for key, spec in rules().items()]
    title = f"Problems – {site_name(settings)}"
    return render_page("docs_problems.html", settings, headers=_CACHE_HEADERS, title=title, sorts=sorts, rules=known)


def _member(name: str, schema: Mapping[str, Any], about: str, *, required: bool) -> Member:
    return Member(name, type_references(schema), required, parse_prose(about), _limits(schema))


def type_references(schema: Mapping[str, Any]) -> list[TypeReference]:
    """What a schema says, in a few words each."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [TypeReference(name, f"/docs/structures#{name}")]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return list(dict.fromkeys([shape for each in schema[choice] for shape in type_references(each)]))
    if "enum" in schema:
        return [TypeReference(f'"{word}"') for word in schema["enum"]]
    if "const" in schema:
        return [TypeReference(f'"{schema["const"]}"')]
    type_ = schema.get("type")
    if type_ == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]  # a pair says what each of its places holds
        found = dict.fromkeys([shape for each in items for shape in type_references(each)])
        return [TypeReference(f"array of {shape.text}", shape.href) for shape in found]
    return [TypeReference(str(type_) if type_ else "anything")]


def _limits(schema: Mapping[str, Any]) -> str:
    """What else is asked of it."""
    words = {
        "minimum": "at least {}",
        "maximum": "at most {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
        "minItems": "at least {} of them",
        "maxItems": "at most {} of them",
    }
    inside = [schema, *[each for each in schema.get("anyOf", ()) if isinstance(each, Mapping)]]
    found = [
        "not empty" if key == "minLength" and each[key] == 1 else words[key].format(f"{each[key]:,}")
        for each in inside
        for key in words
        if key in each
    ]
    default = schema.get("default")
    if default not in (None, "", [], (), {}):
        found.append(f"{str(default).lower() if isinstance(default, bool) else default} if it is left out")
    return ", ".join(found)


def parse_prose(text: str) -> Prose:
    """The paragraphs of a text, with what stands in backticks and between asterisks told apart."""
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

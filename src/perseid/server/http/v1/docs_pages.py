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
from perseid.server.http.pages.pages import page, site_of

from . import openapi
from .application import table
from .problems import SORTS, sorts_by_status
from .routing import BASE, NO_TOKEN, Route

_STEPS: Final = {"handle": "12345%2Fx", "prefix": "12345", "suffix": "D7J1G0DQH", "rule": "H3"}
"""What stands in a path for its parameters; others stand for themselves, in capitals."""

_LIKELY: Final = frozenset(("values", "prefix", "namespaces"))
"""Members that may be left out, and hardly ever are."""

_MEMBERS: Final = {"data": "https://example.org/", "of": "12345/map", "description": "The scale of a map"}
"""What members hold that have no example, or one that does not go with the others."""

_ASKED: Final = {"/find": ("url",)}
"""Parameters of the query that may be left out, and one of them has to be there."""

_PLAIN: Final[Mapping[str, object]] = {"string": "…", "integer": 1, "number": 1, "boolean": True, "object": {}}

Schemas = Mapping[str, Any]
"""The structures of the description, by their names."""


def command(route: Route, said: Mapping[str, Any], schemas: Schemas, server: str) -> str:
    """A command that asks a server for a route, of which the description says `said`."""
    parts = ["curl"]
    if route.method != "GET":
        parts[0] += f" -X {route.method}"
    if route.scope == NO_TOKEN:
        parts[0] += " -u '300%3A0.NA/12345'"
    elif route.scope:
        parts[0] += ' -H "Authorization: Bearer $TOKEN"'
    if route.body is not None:
        body = json.dumps(body_of(said, schemas), ensure_ascii=False)
        parts += ['-H "Content-Type: application/json"', f"-d {shlex.quote(body)}"]
    parts.append(shlex.quote(f"{server}{BASE}{_target(route, said, schemas)}"))
    return " \\\n  ".join(parts) if route.body is not None else " ".join(parts)


def body_of(said: Mapping[str, Any], schemas: Schemas) -> object:
    """A body that a route takes."""
    return _example(said["requestBody"]["content"]["application/json"]["schema"], schemas)


def _target(route: Route, said: Mapping[str, Any], schemas: Schemas) -> str:
    path, query = route.path, []
    for each in said["parameters"]:
        name = each["name"]
        if each["in"] == "path":
            path = path.replace(f"{{{name}}}", _STEPS.get(name, name.upper()))
        elif each["in"] == "query" and (each["required"] or name in _ASKED.get(route.path, ())):
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
        return _PLAIN[schema["type"]]
    wanted = {*schema.get("required", ()), *_LIKELY} & set(members)
    wanted = wanted or {name for name in members if "examples" in members[name]}
    return {name: _MEMBERS.get(name) or _example(members[name], schemas) for name in members if name in wanted}


DOCS: Final = "docs"
"""The first step of these pages."""

OPENAPI: Final = "openapi.json"
"""The path of the description for programs."""

MAX_KEPT: Final = 64
"""Pages that are kept once they are made: all there are, twice, as settings may change. They follow from nothing else,
and the longest takes some hundredths of a second to make."""

_AGE: Final = (("Cache-Control", f"public, max-age={PAGE_AGE}"),)
_CODE: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_UNREMARKABLE: Final = frozenset(("no-such-path", "not-private"))
"""Problems that every route has alike, so that pages say it once."""

_HERE: Final = "{this-server}"
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
class Shape:
    """What something looks like, in a few words, and where that is explained."""

    text: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter, or a member of a structure."""

    name: str
    shapes: list[Shape]
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


def answer(path: str, settings: HttpSettings, server: str) -> Response | None:
    """A page; None if there is none of that path. `server` is the address at which it was asked for, and is safe.

    Commands on the page name the address that is declared, or else that one.
    """
    try:
        made = _kept(path, settings)
    except _NoPage:
        return None
    if settings.public_url or not path.startswith(DOCS):
        return made
    # The request says so itself, and what it says is for nobody else: a cache on the way may not tell it to others.
    headers = tuple([each for each in made.headers if each not in _AGE])
    own = ("Cache-Control", f"private, max-age={PAGE_AGE}")
    return replace(made, headers=(own, *headers), body=made.body.replace(_HERE.encode(), server.encode()))


class _NoPage(Exception):
    """There is no such page. It is raised, as what is returned would be kept, in the place of a page that exists."""


@lru_cache(maxsize=MAX_KEPT)
def _kept(path: str, settings: HttpSettings) -> Response:
    if path == OPENAPI:
        body = msgspec.json.encode(openapi.document(table(), settings))
        return Response(200, (*_AGE, ("Content-Type", "application/json")), body)
    first, _, rest = path.partition("/")
    if first != DOCS:
        raise _NoPage
    if rest == "":
        return _front(settings)
    if rest == "problems":
        return _problems(settings)
    if rest == "structures":
        return _structures(settings)
    part = next((part for part in table().parts if slug_of(part.tag) == rest), None)
    if part is None:
        raise _NoPage
    return _chapter(part.tag, part.about, part.found, settings)


def _server(settings: HttpSettings) -> str:
    return settings.public_url or _HERE


def slug_of(tag: str) -> str:
    """The step of the path under which a chapter is."""
    return re.sub("[^a-z0-9]+", "-", tag.lower()).strip("-")


def _front(settings: HttpSettings) -> Response:
    everywhere = [
        (sort.status, sort.title, sort.slug) for status in openapi.EVERYWHERE for sort in sorts_by_status(status)
    ]
    chapters = [
        {
            "tag": part.tag,
            "slug": slug_of(part.tag),
            "about": prose(part.about),
            "routes": [(route.method, f"{BASE}{route.path}", route.summary, route.operation) for route in part.found],
        }
        for part in table().parts
    ]
    return page(
        "docs.html",
        settings,
        headers=_AGE,
        title=f"The API – {site_of(settings)}",
        about=prose(openapi.ABOUT),
        base=f"{_server(settings)}{BASE}",
        chapters=chapters,
        everywhere=everywhere,
    )


def _chapter(tag: str, about: str, routes: Iterable[Route], settings: HttpSettings) -> Response:
    document = openapi.document(table(), settings)
    shown = [_route(route, document, settings) for route in routes]
    title = f"{tag} – {site_of(settings)}"
    return page("docs_chapter.html", settings, headers=_AGE, title=title, tag=tag, about=prose(about), routes=shown)


def _route(route: Route, document: Mapping[str, Any], settings: HttpSettings) -> dict[str, Any]:
    said = document["paths"][route.path][route.method.lower()]
    well = said["responses"][str(route.status)]
    own = [int(status) for status in said["responses"] if int(status) not in openapi.EVERYWHERE]
    refusals = [
        (sort.status, sort.title, sort.slug)
        for status in sorted({*own, *route.problems})
        for sort in sorts_by_status(status)
        if sort.slug not in _UNREMARKABLE
    ]
    body = said.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return {
        "method": route.method,
        "path": f"{BASE}{route.path}",
        "operation": route.operation,
        "summary": route.summary,
        "about": prose(said["description"]),
        "parameters": [_parameter(each) for each in said["parameters"] if not _is_of_all(each, route)],
        "body": [] if body is None else shapes_of(body),
        "status": route.status,
        "answers": [shape for each in well.get("content", {}).values() for shape in shapes_of(each.get("schema", {}))],
        "media_types": list(well.get("content", {})),
        "refusals": refusals,
        "example": command(route, said, document["components"]["schemas"], _server(settings)),
    }


def _is_of_all(said: Mapping[str, Any], route: Route) -> bool:
    """Whether a parameter is one that every answer heeds which can be kept."""
    return route.method == "GET" and said["name"] == "If-None-Match"


def _parameter(said: Mapping[str, Any]) -> Member:
    schema = said["schema"]
    where = {"path": "path", "query": "query", "header": "header"}[said["in"]]
    made = _member(said["name"], schema, said["description"], required=said["required"])
    limits = ", ".join(filter(None, (f"in the {where}", made.limits)))
    return Member(made.name, made.shapes, made.required, made.about, limits)


def _structures(settings: HttpSettings) -> Response:
    found = openapi.document(table(), settings)["components"]["schemas"]
    shown = [_structure(name, said) for name, said in found.items()]
    title = f"Structures – {site_of(settings)}"
    return page("docs_structures.html", settings, headers=_AGE, title=title, structures=shown)


def _structure(name: str, said: Mapping[str, Any]) -> Structure:
    needed = said.get("required", ())
    members = [
        _member(member, schema, schema.get("description", ""), required=member in needed)
        for member, schema in said.get("properties", {}).items()
    ]
    words = [str(word) for word in said.get("enum", ())]
    return Structure(name, prose(said.get("description", "")), members, words)


def _problems(settings: HttpSettings) -> Response:
    sorts = [(sort.slug, sort.status, sort.title, prose(sort.about)) for sort in SORTS.values()]
    known = [(key, said["title"], said["text"]) for key, said in rules().items()]
    title = f"Problems – {site_of(settings)}"
    return page("docs_problems.html", settings, headers=_AGE, title=title, sorts=sorts, rules=known)


def _member(name: str, schema: Mapping[str, Any], about: str, *, required: bool) -> Member:
    return Member(name, shapes_of(schema), required, prose(about), _limits(schema))


def shapes_of(schema: Mapping[str, Any]) -> list[Shape]:
    """What a schema says, in a few words each."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [Shape(name, f"/docs/structures#{name}")]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return list(dict.fromkeys([shape for each in schema[choice] for shape in shapes_of(each)]))
    if "enum" in schema:
        return [Shape(f'"{word}"') for word in schema["enum"]]
    if "const" in schema:
        return [Shape(f'"{schema["const"]}"')]
    type_ = schema.get("type")
    if type_ == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]  # a pair says what each of its places holds
        found = dict.fromkeys([shape for each in items for shape in shapes_of(each)])
        return [Shape(f"array of {shape.text}", shape.href) for shape in found]
    return [Shape(str(type_) if type_ else "anything")]


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


def prose(text: str) -> Prose:
    """The paragraphs of a text, with what stands in backticks and between asterisks told apart."""
    return [_runs(" ".join(part.split())) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def _runs(text: str) -> list[Run]:
    found: list[Run] = []
    at = 0
    for each in _CODE.finditer(text):
        if each.start() > at:
            found.append(Run(text[at : each.start()]))
        found.append(Run(each[1], "code") if each[1] is not None else Run(each[2], "strong"))
        at = each.end()
    return [*found, Run(text[at:])] if at < len(text) else found

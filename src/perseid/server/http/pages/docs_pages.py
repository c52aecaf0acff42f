"""HTML documentation of the HTTP API.

    /docs                  introduction, and all operations
    /docs/{section}        the operations of a section, and the schemas that only they use
    /docs/schemas          all schemas: those of several sections, and links to the others
    /docs/problems         problem types, and the rules that problems name

The pages are generated from the OpenAPI document (`v1.openapi`), with the examples of `docs_examples`. Scripts add
buttons that copy examples, and forms that send requests (`static/docs.js`, `static/try-it.js`).
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perseid.schema.names import rules
from perseid.schema.problems import PROBLEM_TYPES, problem_types_by_status
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Response
from perseid.server.http.negotiation import PAGE_AGE
from perseid.server.http.v1 import openapi
from perseid.server.http.v1.api_call import CURSOR_PARAMETER
from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import BASE, Route, Routes

from . import texts
from .branding import site_name
from .pages import render_page
from .texts import _

if TYPE_CHECKING:
    from .docs_examples import Example

DOCS: Final = "docs"
"""The first path segment of the pages."""

SCHEMAS: Final = "schemas"
PROBLEMS: Final = "problems"
"""The pages that are not of one section."""

OPENAPI: Final = "openapi.json"
"""The path of the OpenAPI document."""

MAX_CACHED_PAGES: Final = 64
"""Cached pages: all of them, twice, because settings can change. The longest takes some hundredths of a second."""

_CACHE_HEADERS: Final = (("Cache-Control", f"public, max-age={PAGE_AGE}"),)
_MARKUP: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_SCRIPTS: Final = ("/static/docs.js", "/static/try-it.js")
_FIRST_EXAMPLE: Final = "getRecord"
_COMMON_PROBLEMS: Final = frozenset(("no-such-path", "https-required", "unknown-columns"))
"""Problems of every route, listed once, or of the command line only."""

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
    if rest == PROBLEMS:
        return _problems_page(settings)
    if rest == SCHEMAS:
        return _schemas_page(settings)
    section = next((section for section in get_api().sections if slugify(section.tag) == rest), None)
    if section is None:
        raise _PageNotFound
    return _section_page(section, settings)


texts.on_change(_render.cache_clear)


def _server_url(settings: HttpSettings) -> str:
    return settings.public_url or _SERVER_PLACEHOLDER


def slugify(tag: str) -> str:
    """Convert a section title to a path segment."""
    return re.sub("[^a-z0-9]+", "-", tag.lower()).strip("-")


@dataclass(frozen=True, slots=True)
class Group:
    """Sections in the navigation."""

    title: str
    sections: list[Routes]


def get_groups() -> list[Group]:
    """The sections as the navigation shows them; those of no group are in the last one."""
    groups: list[tuple[str, tuple[str, ...]]] = [
        (_("Identifiers"), ("Minting", "Records", "Lifecycle", "Links", "Citations")),
        (_("Search and history"), ("Search", "History", "Proofs")),
        (_("Many records"), ("Imports", "Exports", "Jobs", "Transfers")),
        (_("Administration"), ("Namespaces", "Types", "Access", "Tokens")),
        (_("Tools"), ("Explain", "Names", "Overview")),
    ]
    sections = {section.tag: section for section in get_api().sections}
    found = [Group(title, [sections.pop(tag) for tag in tags]) for title, tags in groups]
    found[-1].sections.extend(sections.values())
    return found


def _render_docs(template: str, settings: HttpSettings, current: str, title: str, **shown: Any) -> Response:
    return render_page(
        template,
        settings,
        headers=_CACHE_HEADERS,
        scripts=_SCRIPTS,
        title=f"{title} – {site_name(settings)}",
        current=current,
        groups=get_groups(),
        slugify=slugify,
        base=BASE,
        **shown,
    )


def _index_page(settings: HttpSettings) -> Response:
    from . import docs_examples  # noqa: PLC0415 - loads the client

    document = openapi.document(get_api(), settings)
    route = next(route for route in get_api().routes if route.operation == _FIRST_EXAMPLE)
    example = docs_examples.make_example(route, _get_spec(route, document), document["components"]["schemas"])
    everywhere = [
        (problem_type.status, problem_type.title, problem_type.slug)
        for status in openapi.COMMON_STATUSES
        for problem_type in problem_types_by_status(status)
    ]
    return _render_docs(
        "docs.html",
        settings,
        "",
        _("API"),
        about=parse_prose(openapi.DESCRIPTION),
        server=_server_url(settings),
        everywhere=everywhere,
        curl=docs_examples.curl_command(example, _server_url(settings)),
        python=docs_examples.python_program(example, _server_url(settings)),
    )


def _get_spec(route: Route, document: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = document["paths"][route.path][route.method.lower()]
    return spec


def _section_page(section: Routes, settings: HttpSettings) -> Response:
    document = openapi.document(get_api(), settings)
    slug = slugify(section.tag)
    schemas = document["components"]["schemas"]
    return _render_docs(
        "docs_section.html",
        settings,
        slug,
        section.tag,
        tag=section.tag,
        about=parse_prose(section.about),
        routes=[_route_variables(route, document, settings) for route in section.routes],
        schemas=[_structure(name, schemas[name]) for name, home in _schema_homes().items() if home == slug],
    )


def _route_variables(route: Route, document: Mapping[str, Any], settings: HttpSettings) -> dict[str, Any]:
    from . import docs_examples  # noqa: PLC0415 - loads the client

    spec = _get_spec(route, document)
    example = docs_examples.make_example(route, spec, document["components"]["schemas"])
    success = spec["responses"][str(route.status)]
    own = [int(status) for status in spec["responses"] if int(status) not in openapi.COMMON_STATUSES]
    refusals = [
        (problem_type.status, problem_type.title, problem_type.slug)
        for status in sorted({*own, *route.problems})
        for problem_type in problem_types_by_status(status)
        if _can_return(route, problem_type.slug)
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
        "form": _form(example, spec),
        "curl": docs_examples.curl_command(example, _server_url(settings)),
        "python": docs_examples.python_program(example, _server_url(settings)),
    }


def _can_return(route: Route, slug: str) -> bool:
    """Whether to list a problem type at a route that can return its status."""
    match slug:
        case "idempotency-key-reused" | "in-progress":
            return route.creates
        case "invalid-cursor":
            return CURSOR_PARAMETER in route.query.__struct_fields__
        case "undo-conflict":
            return route.path.endswith("/undo")
    return slug not in _COMMON_PROBLEMS


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter in the form that sends a request."""

    name: str
    place: str
    """`path` or `query`."""
    value: str
    required: bool
    repeats: bool
    """Whether it can have several values, which spaces separate."""
    choices: list[str]
    """All possible values; empty if there are too many."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The form that sends a request."""

    fields: list[Field]
    body: str
    """The body as JSON; empty if there is none."""
    uploads: bool
    """Whether the body is a file."""
    needs_identity: bool


def _form(example: "Example", spec: Mapping[str, Any]) -> RequestForm:
    given = {name: value for name, value in example.names.items() if isinstance(value, str)} | dict(example.query)
    fields = []
    for each in spec["parameters"]:
        if each["in"] in ("path", "query"):
            value, schema = given.get(each["name"], ""), each["schema"]
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            repeats = schema.get("type") == "array"
            fields.append(Field(each["name"], each["in"], text, each["required"], repeats, _get_choices(schema)))
    body = "" if example.body is None else json.dumps(example.body, indent=2, ensure_ascii=False)
    return RequestForm(fields, body, example.route.is_streamed, bool(example.credentials))


def _get_choices(schema: Mapping[str, Any]) -> list[str]:
    """The values of an enumeration or a boolean."""
    if schema.get("type") == "boolean":
        return ["true", "false"]
    inside = [schema, *schema.get("anyOf", ())]
    return [str(value) for each in inside for value in each.get("enum", ()) if value is not None]


def _is_common_parameter(spec: Mapping[str, Any], route: Route) -> bool:
    """Return whether every cacheable response has the parameter."""
    return route.method == "GET" and spec["name"] == "If-None-Match"


def _parameter(spec: Mapping[str, Any]) -> Member:
    schema = spec["schema"]
    member = _member(spec["name"], schema, spec["description"], required=spec["required"])
    return replace(member, limits=", ".join(filter(None, (_get_place(spec["in"]), member.limits))))


def _get_place(place: str) -> str:
    return {"path": _("in the path"), "query": _("in the query"), "header": _("in the header")}[place]


def _schemas_page(settings: HttpSettings) -> Response:
    schemas = openapi.document(get_api(), settings)["components"]["schemas"]
    homes = _schema_homes()
    shown = [_structure(name, spec) for name, spec in schemas.items() if homes[name] == SCHEMAS]
    others = [TypeReference(name, _schema_link(name)) for name in schemas if homes[name] != SCHEMAS]
    return _render_docs("docs_schemas.html", settings, SCHEMAS, _("Schemas"), schemas=shown, others=others)


@cache
def _schema_homes() -> Mapping[str, str]:
    """The page of each schema: that of the only section that uses it, or the page of all."""
    document = openapi.document(get_api(), HttpSettings())
    schemas, users = document["components"]["schemas"], defaultdict[str, set[str]](set)
    for section in get_api().sections:
        waiting: list[object] = [_get_spec(route, document) for route in section.routes]
        while waiting:
            for name in _find_references(waiting.pop()):
                if name in schemas and section.tag not in users[name]:
                    users[name].add(section.tag)
                    waiting.append(schemas[name])
    return {name: slugify(*users[name]) if len(users[name]) == 1 else SCHEMAS for name in schemas}


def _find_references(spec: object) -> Iterator[str]:
    """The names of the schemas in a part of the document."""
    if isinstance(spec, Mapping):
        if isinstance(reference := spec.get("$ref"), str):
            yield reference.rpartition("/")[2]
        for each in spec.values():
            yield from _find_references(each)
    elif isinstance(spec, list | tuple):
        for each in spec:
            yield from _find_references(each)


def _schema_link(name: str) -> str:
    return f"/{DOCS}/{_schema_homes()[name]}#{name}"


def _structure(name: str, spec: Mapping[str, Any]) -> Structure:
    needed = spec.get("required", ())
    members = [
        _member(member, schema, schema.get("description", ""), required=member in needed)
        for member, schema in spec.get("properties", {}).items()
    ]
    words = [str(word) for word in spec.get("enum", ())]
    return Structure(name, parse_prose(spec.get("description", "")), members, words)


def _problems_page(settings: HttpSettings) -> Response:
    statuses = [
        (
            status,
            HTTPStatus(status).phrase,
            [(each.slug, each.title, parse_prose(each.about)) for each in problem_types_by_status(status)],
        )
        for status in sorted({each.status for each in PROBLEM_TYPES.values()})
    ]
    known = [(key, spec["title"], spec["text"]) for key, spec in rules().items()]
    return _render_docs("docs_problems.html", settings, PROBLEMS, _("Errors"), statuses=statuses, rules=known)


def _member(name: str, schema: Mapping[str, Any], about: str, *, required: bool) -> Member:
    return Member(name, type_references(schema), required, parse_prose(about), _limits(schema))


def type_references(schema: Mapping[str, Any]) -> list[TypeReference]:
    """Describe the types of a schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [TypeReference(name, _schema_link(name))]
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
        return [TypeReference(_("array of {type}").format(type=shape.text), shape.href) for shape in found]
    return [TypeReference(str(type_) if type_ else _("anything"))]


def _limits(schema: Mapping[str, Any]) -> str:
    words = {
        "minimum": _("at least {number}"),
        "maximum": _("at most {number}"),
        "minLength": _("at least {number} characters"),
        "maxLength": _("at most {number} characters"),
        "minItems": _("at least {number} items"),
        "maxItems": _("at most {number} items"),
    }
    inside = [schema, *[each for each in schema.get("anyOf", ()) if isinstance(each, Mapping)]]
    found = [
        _("not empty") if key in ("minLength", "minItems") and each[key] == 1 else text.format(number=f"{each[key]:,}")
        for each in inside
        for key, text in words.items()
        if key in each
    ]
    default = schema.get("default")
    if default not in (None, "", [], (), {}):
        value = str(default).lower() if isinstance(default, bool) else default
        found.append(_("{value} by default").format(value=value))
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

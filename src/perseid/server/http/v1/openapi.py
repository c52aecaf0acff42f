"""The headers of requests that count, and those that answers have, as the description says it.

A test compares them with what is really sent. Headers that any server has, whatever it serves, are not described.

The description of our own API, in OpenAPI 3.1, made of its routes and of the types that they name.

What is served and what is described are the same functions and structures, so they cannot differ: parameters and
bodies are taken as the types say (`taking`), and every path is looked up in the same table.
"""

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from perseid.registry.access.scopes import SCOPES
from perseid.server.http.context import HttpSettings

from .calls import KEY_HEADER, REPLAYED_HEADER
from .job_events import MEDIA_TYPE as EVENTS
from .problems import MEDIA_TYPE, Problem, problem_types_by_status
from .routing import BASE, NO_TOKEN, OWN_TOKEN, Route, Router, is_parameter
from .state import WINDOW
from .structures import AlreadyDone, Paging
from .validation import is_optional

_HEADER_REFERENCE: Final = "#/components/headers/{name}"


def _text_header(description: str, *examples: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    return {"description": description, "schema": {**schema, "examples": list(examples)} if examples else schema}


RESPONSE_HEADERS: Final[Mapping[str, dict[str, Any]]] = {
    "RateLimit-Policy": _text_header(
        f"How many requests you may make in {WINDOW} seconds. It and `RateLimit` are absent where there is no limit, "
        "and where a request could not be read at all.",
        '"requests";q=600;w=60',
    ),
    "RateLimit": _text_header(
        "How many are left (`r`), and in how many seconds there are more (`t`).", '"requests";r=597;t=1'
    ),
    "Cache-Control": _text_header("Who may keep the answer, and for how long.", "no-cache", "no-store"),
    "Vary": _text_header("The headers of the request on which the answer depends.", "Authorization"),
    "ETag": _text_header(
        "What names this answer, for `If-None-Match`; of a record its state, for `If-Match` too.", '"e17"'
    ),
    "Location": _text_header(
        "Where that is to be had which was made; absent where it is several things.", "/api/v1/handles/12345%2Fx"
    ),
    "Link": _text_header('The address of the next page, with `rel="next"`; absent on the last one.'),
    REPLAYED_HEADER[0]: _text_header(
        "`true` where the answer is the one that was given before, and nothing was done now.", "true"
    ),
    "Retry-After": _text_header("After how many seconds it is worth asking again.", "1"),
    "WWW-Authenticate": _text_header(
        "With 401, the ways to say who you are. With any status, in a session in which the server was asked to prove "
        "itself: its signature.",
        'Bearer realm="handle"',
    ),
}
"""What the headers of answers say, by their names."""

_ALWAYS: Final = ("RateLimit-Policy", "RateLimit", "Cache-Control", "WWW-Authenticate")
_CREATED_STATUSES: Final = (201, 202)

_BY_STATUS: Final[Mapping[int, tuple[str, ...]]] = {
    409: ("Retry-After",),  # of a request with the same key that goes on at the moment
    429: ("Retry-After",),
    503: ("Retry-After",),
}


def is_stream(route: Route) -> bool:
    """Whether the answer has no end of its own, and so no tag."""
    return EVENTS in route.media_types


def response_headers(route: Route) -> dict[str, Any]:
    """The headers of an answer where all went well."""
    names = list(_ALWAYS)
    if route.method == "GET":
        names += ["Vary"] if is_stream(route) else ["Vary", "ETag"]
    if route.status in _CREATED_STATUSES:
        names.append("Location")
    if issubclass(route.query, Paging):
        names.append("Link")
    if route.creates:
        names.append(REPLAYED_HEADER[0])
    return _references(names)


def not_modified_headers(route: Route) -> dict[str, Any]:
    """The headers of the answer that what somebody has is still good."""
    return _references([*_ALWAYS, "Vary", "ETag", *(("Link",) if issubclass(route.query, Paging) else ())])


def problem_headers(status: int) -> dict[str, Any]:
    """The headers of an answer that something was not done."""
    return _references([*_ALWAYS, *_BY_STATUS.get(status, ())])


def _references(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": _HEADER_REFERENCE.format(name=name)} for name in names}


def header_parameters(route: Route) -> Iterable[dict[str, Any]]:
    """The headers of a request that count for a route, besides those by which somebody says who they are."""
    if route.creates:
        name = "-".join(word.capitalize() for word in KEY_HEADER.split("-"))
        about = (
            "A key that you make up, such as a UUID: who repeats the request with it, within 24 hours, gets the same "
            "answer, and nothing is done twice."
        )
        yield _header_parameter(name, about, minLength=1, maxLength=255)
    if route.conditional:
        about = "The `ETag` of the record as you read it: if it has changed since, nothing is done (412). `*` is any."
        yield _header_parameter("If-Match", about)
        about = "The `ETag` of a state in which nothing shall be done (412). `*` is any."
        yield _header_parameter("If-None-Match", about)
    if route.method == "GET" and not is_stream(route):
        about = "The `ETag` of an answer that you have: if it is still good, the answer is 304 and empty."
        yield _header_parameter("If-None-Match", about)


def _header_parameter(name: str, about: str, **limits: int) -> dict[str, Any]:
    schema = {"type": "string", **limits}
    return {"name": name, "in": "header", "required": False, "description": about, "schema": schema}


VERSION: Final = "3.1.0"
"""Of OpenAPI."""

COMMON_STATUSES: Final = (400, 401, 403, 404, 429, 431, 500, 503)
"""Statuses with which any route may refuse. Also where everybody may ask: whoever says who they are has to prove it,
and not everywhere, and a server may have only some of the names."""

DESCRIPTION: Final = """\
Everything that the command `perseid` does with names, for programs.

**In a path a handle is one step**: its slash is written `%2F`, as in `/api/v1/handles/12345%2Fx`.

**Who you are**: a token (`Authorization: Bearer perseid_…`), Basic or Handle credentials, or a TLS client certificate.
Credentials count over TLS or from the machine itself only. What everybody may know needs none.

**Problems** have one shape (RFC 9457, `application/problem+json`): `type` for programs, `detail` and `advice` for
people, `rule` for the rule that stood in the way. The pages under `/docs/problems` explain each.

**Long lists** come in pages: `next` of a page is the `cursor` of the one behind it, whose address is in `Link` too.

**Requests that are carried out once**: calls that make something take an `Idempotency-Key`, which you make up. Who
repeats a request with its key gets the same answer, for 24 hours; another request with the same key is refused (422).

**Limits**: `RateLimit` and `RateLimit-Policy` say how many requests you have left in this minute. Requests for what is
not there count as well.

**Answers are JSON**, and pictures where a path says so: each path has one form, and `Accept` changes nothing. The
resolver heeds it, and gives records in other forms.

**Names that are not there**: problems have `suggestions` then, names that are there and may have been meant.
"""

_JSON: Final = "application/json"
_SCHEMA_REFERENCE: Final = "#/components/schemas/{name}"
_SECURITY: Final[tuple[dict[str, list[str]], ...]] = ({"token": []}, {"basic": []}, {"handle": []}, {"certificate": []})

_SCHEMES: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "perseid_…",
        "description": "A token that somebody with a key has made, for some words of scope and some namespaces: "
        f"{', '.join(SCOPES)}.",
    },
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "A secret key: the name is `INDEX:HANDLE` with the colon written as `%3A` (`300%3A0.NA/12345`), "
        "the password the secret.",
    },
    "handle": {
        "type": "http",
        "scheme": "Handle",
        "description": "The scheme of deployed Handle servers: a session of `/api/sessions`, in which a challenge was "
        "answered with a secret or private key.",
    },
    "certificate": {
        "type": "mutualTLS",
        "description": "A TLS client certificate, which may be self-signed, of a key that a record holds as HS_PUBKEY.",
    },
}


def document(router: Router, settings: HttpSettings) -> dict[str, Any]:
    """The description, as a plain object."""
    made = dict(_document(router))
    made["servers"] = [{"url": f"{settings.public_url}{BASE}", "description": "This server"}]
    return made


@cache
def _document(router: Router) -> Mapping[str, Any]:
    schemas = components(router)
    return {
        "openapi": VERSION,
        "info": {
            "title": "Perseid",
            "summary": "Persistent identifiers: names that stay, for things that may move.",
            "version": BASE.rpartition("/")[2],
            "description": DESCRIPTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [],
        "tags": [{"name": part.tag, "description": part.about} for part in router.parts],
        "paths": _paths(router),
        "components": {
            "schemas": schemas,
            "securitySchemes": _SCHEMES,
            "responses": {response_name(status): _problem(status) for status in _statuses(router)},
            "headers": dict(RESPONSE_HEADERS),
        },
    }


def components(router: Router) -> dict[str, Any]:
    """The structures that go over the network, by their names."""
    types = [each for route in router.routes for each in (route.response, route.body) if each is not None]
    _, found = msgspec.json.schema_components((*types, Problem, AlreadyDone), ref_template=_SCHEMA_REFERENCE)
    return {name: _describe_tag(schema) for name, schema in sorted(found.items())}


def _describe_tag(schema: dict[str, Any]) -> dict[str, Any]:
    """A structure, with what its tag says: no member of the type, it tells the structures of a union apart."""
    members = schema.get("properties", {})
    for name, said in members.items():
        if said.keys() == {"enum"} and len(said["enum"]) == 1:
            (tag,) = said["enum"]
            about = f"Which of the structures this is: always `{tag}` here."
            tagged = {"description": about, "examples": [tag], "type": "string", "enum": [tag]}
            return {**schema, "properties": {**members, name: tagged}}
    return schema


def _statuses(router: Router) -> list[int]:
    return sorted(
        {*COMMON_STATUSES, 409, 413, 415, 422, *[status for route in router.routes for status in route.problems]}
    )


def _paths(router: Router) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for route in router.routes:
        found.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return found


def _operation(route: Route) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "description": description(route),
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *query_parameters(route), *header_parameters(route)],
        "responses": _responses(route),
        "security": _security(route),
    }
    if route.scope:
        made["x-scope"] = route.scope
    if route.body is not None:
        content = {_JSON: {"schema": get_schema(route.body)}}
        made["requestBody"] = {"required": not is_optional(route.body), "content": content}
    return made


def _security(route: Route) -> list[dict[str, list[str]]]:
    """How somebody says who they are. `{}`, nobody in particular, is one way where everybody may know something."""
    if route.scope == NO_TOKEN:
        return [way for way in _SECURITY if "token" not in way]
    if route.scope == OWN_TOKEN:
        return list(_SECURITY)
    # who reads may leave it out also where a token needs a word: what everybody may know is told
    return list(_SECURITY) if route.scope and route.method != "GET" else [{}, *_SECURITY]


def description(route: Route) -> str:
    """What a route does: the docstring of its function, and what a token needs for it."""
    said = inspect.cleandoc(route.handler.__doc__ or "")
    if not route.scope:
        return said
    known = {
        NO_TOKEN: "No token can do this, whatever its scope: identify yourself with a key.",
        OWN_TOKEN: "A token needs no word in its scope for this, and reaches itself only.",
    }
    return f"{said}\n\n{known.get(route.scope, f'A token needs the word `{route.scope}` in its scope.')}"


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for step in route.segments:
        if is_parameter(step):
            name = step.strip("{}")
            schema: dict[str, Any] = {"type": "string", "minLength": 1}
            if name == "handle":
                schema["examples"] = ["12345/x"]
            yield {
                "name": name,
                "in": "path",
                "required": True,
                "description": route.parameters.get(name, ""),
                "schema": schema,
            }


def query_parameters(route: Route) -> Iterable[dict[str, Any]]:
    """The parameters of the query of a route."""
    schema, parts = msgspec.json.schema_components((route.query,), ref_template=_SCHEMA_REFERENCE)
    found = parts[schema[0]["$ref"].rpartition("/")[2]]
    for name, said in found.get("properties", {}).items():
        rest = {key: value for key, value in said.items() if key not in ("description", "title")}
        yield {
            "name": name,
            "in": "query",
            "required": name in found.get("required", ()),
            "description": said.get("description", ""),
            "schema": _inline_references(rest, parts),
        }


def _inline_references(schema: Any, parts: Mapping[str, Any]) -> Any:
    """A schema with those that it refers to in their place: what parameters are is said where they are."""
    if isinstance(schema, list):
        return [_inline_references(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        said = dict(parts[schema["$ref"].rpartition("/")[2]])
        return {**said, **{key: value for key, value in schema.items() if key != "$ref"}}
    return {key: _inline_references(value, parts) for key, value in schema.items()}


def _responses(route: Route) -> dict[str, Any]:
    schema = None if route.response is None else get_schema(route.response)
    if schema is not None and route.creates:
        schema = {"anyOf": [schema, get_schema(AlreadyDone)]}
    content: dict[str, Any] = {}
    for media_type in route.media_types if schema is None or route.media_types != (_JSON,) else (_JSON,):
        content[media_type] = {"schema": schema} if schema is not None and media_type == _JSON else {}
    success: dict[str, Any] = {"description": route.summary, "headers": response_headers(route)}
    if schema is not None or route.media_types != (_JSON,):
        success["content"] = content
    found: dict[str, Any] = {str(route.status): success}
    if route.method == "GET" and not is_stream(route):
        found["304"] = {"description": "What you have is still good.", "headers": not_modified_headers(route)}
    body = (413, 415) if route.body is not None else ()
    keyed = (409, 422) if route.creates else ()
    for status in sorted({*COMMON_STATUSES, *route.problems, *body, *keyed}):
        found[str(status)] = {"$ref": f"#/components/responses/{response_name(status)}"}
    return found


def _problem(status: int) -> dict[str, Any]:
    sorts = problem_types_by_status(status)
    said = "\n".join(f"- `{problem_type.slug}`: {problem_type.title}. {problem_type.about}" for problem_type in sorts)
    return {
        "description": said or HTTPStatus(status).phrase,
        "headers": problem_headers(status),
        "content": {MEDIA_TYPE: {"schema": get_schema(Problem)}},
    }


def response_name(status: int) -> str:
    """What the answer with a status is called among the components."""
    return f"Problem{status}"


def get_schema(type_: Any) -> dict[str, Any]:
    """The schema of a type, which refers to those of the components."""
    (schema,), _ = msgspec.json.schema_components((type_,), ref_template=_SCHEMA_REFERENCE)
    return schema

"""The OpenAPI 3.1 document of the HTTP API, generated from its routes and their types.

Routing, validation and this document use the same table and the same types, so they cannot differ. A test compares the
described headers with those that are sent. Headers that every server sends are not described.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from perseid.schema.common import AlreadyDone
from perseid.schema.exports import AS_OF_HEADER, OMITTED_HEADER, RECORDS_HEADER, ExportQuery
from perseid.schema.namespaces import SCOPES
from perseid.schema.problems import Problem, problem_types_by_status
from perseid.server.http.context import HttpSettings

from .api_call import CURSOR_PARAMETER, KEY_HEADER, REPLAYED_HEADER
from .application import Api
from .job_events import MEDIA_TYPE as EVENTS
from .problems import MEDIA_TYPE
from .routing import BASE, NO_TOKEN, OWN_TOKEN, FileBody, Route
from .state import WINDOW
from .validation import is_optional

_HEADER_REFERENCE: Final = "#/components/headers/{name}"


def _text_header(description: str, *examples: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    return {"description": description, "schema": {**schema, "examples": list(examples)} if examples else schema}


RESPONSE_HEADERS: Final[Mapping[str, dict[str, Any]]] = {
    "RateLimit-Policy": _text_header(
        f"The rate limit: requests (`q`) per window of {WINDOW} seconds (`w`). Absent, like "
        "`RateLimit`, if there is no limit or the request could not be parsed.",
        '"requests";q=600;w=60',
    ),
    "RateLimit": _text_header(
        "Remaining requests (`r`), and seconds until there are more (`t`).", '"requests";r=597;t=1'
    ),
    "Cache-Control": _text_header("Who can cache the response, and for how long.", "no-cache", "no-store"),
    "Vary": _text_header("The request headers that the response depends on.", "Authorization"),
    "ETag": _text_header(
        "The version of the response, for `If-None-Match`; for a record its state, for `If-Match` too.", '"e17"'
    ),
    "Location": _text_header(
        "The URL of the created resource; absent if there are several.", "/api/v1/handles/12345%2Fx"
    ),
    "Link": _text_header('The URL of the next page, with `rel="next"`; absent on the last page.'),
    REPLAYED_HEADER[0]: _text_header(
        "`true` if this is the stored response of an earlier request and nothing was changed now.", "true"
    ),
    AS_OF_HEADER: _text_header("The ledger entry as of which records are exported.", "1234"),
    RECORDS_HEADER: _text_header("The number of records, or versions, in this part of an export.", "1000"),
    OMITTED_HEADER: _text_header("The number of records and values that the format cannot express.", "0"),
    "Retry-After": _text_header("Seconds to wait before a retry.", "1"),
    "WWW-Authenticate": _text_header(
        "With 401, the authentication methods. With any status, the signature of the server, in a "
        "session that asked for it.",
        'Bearer realm="handle"',
    ),
}
"""Descriptions of the response headers."""

_ALWAYS: Final = ("RateLimit-Policy", "RateLimit", "Cache-Control", "WWW-Authenticate")
_CREATED_STATUSES: Final = (201, 202)

_BY_STATUS: Final[Mapping[int, tuple[str, ...]]] = {
    409: ("Retry-After",),  # a request with the same key is in progress
    429: ("Retry-After",),
    503: ("Retry-After",),
}


def is_stream(route: Route) -> bool:
    """Return whether the response is a stream, which has no ETag."""
    return EVENTS in route.media_types


def response_headers(route: Route) -> dict[str, Any]:
    """The headers of a successful response."""
    names = list(_ALWAYS)
    if route.method == "GET":
        names += ["Vary"] if is_stream(route) else ["Vary", "ETag"]
    if route.status in _CREATED_STATUSES:
        names.append("Location")
    names += _page_headers(route)
    if route.creates:
        names.append(REPLAYED_HEADER[0])
    return _references(names)


def not_modified_headers(route: Route) -> dict[str, Any]:
    """The headers of a 304 response."""
    return _references([*_ALWAYS, "Vary", "ETag", *_page_headers(route)])


def _page_headers(route: Route) -> tuple[str, ...]:
    """The headers of a page of a list, or of a part of an export."""
    link = ("Link",) if CURSOR_PARAMETER in route.query.__struct_fields__ else ()
    return (*link, AS_OF_HEADER, RECORDS_HEADER, OMITTED_HEADER) if issubclass(route.query, ExportQuery) else link


def problem_headers(status: int) -> dict[str, Any]:
    """The headers of a problem response."""
    return _references([*_ALWAYS, *_BY_STATUS.get(status, ())])


def _references(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": _HEADER_REFERENCE.format(name=name)} for name in names}


def header_parameters(route: Route) -> Iterable[dict[str, Any]]:
    """The request headers of a route, except authentication."""
    if route.creates:
        name = "-".join(word.capitalize() for word in KEY_HEADER.split("-"))
        about = (
            "A unique key of your choice, such as a UUID. A repeated request with the same key within 24 "
            "hours gets the same response, and nothing is done twice."
        )
        yield _header_parameter(name, about, minLength=1, maxLength=255)
    if route.conditional:
        about = (
            "The `ETag` of the record as you read it. If the record has changed, the request fails with "
            "412. `*` matches any."
        )
        yield _header_parameter("If-Match", about)
        about = "The `ETag` of a state in which the request fails with 412. `*` matches any."
        yield _header_parameter("If-None-Match", about)
    if route.method == "GET" and not is_stream(route):
        about = "The `ETag` of a cached response. If it is still valid, the response is 304 without body."
        yield _header_parameter("If-None-Match", about)


def _header_parameter(name: str, about: str, **limits: int) -> dict[str, Any]:
    schema = {"type": "string", **limits}
    return {"name": name, "in": "header", "required": False, "description": about, "schema": schema}


VERSION: Final = "3.1.0"
"""The version of OpenAPI."""

COMMON_STATUSES: Final = (400, 401, 403, 404, 429, 431, 500, 503)
"""Problem statuses of every route. 401 and 403 apply to public routes too: wrong credentials are refused, and a server
may host only some handles."""

DESCRIPTION: Final = """\
Everything that the command `perseid` does with identifiers, for programs.

**Handles in paths**: a handle is one path segment. Write its slash as `%2F`, as in `/api/v1/handles/12345%2Fx`.

**Authentication**: a token (`Authorization: Bearer perseid_…`), Basic or Handle credentials, or a TLS client
certificate. Credentials are accepted only over TLS or from the same machine. Public data needs none.

**Problems** have one form (RFC 9457, `application/problem+json`): `type` for programs, `detail` and `advice` for
people, `rule` for the broken rule. `/docs/problems` explains each type.

**Lists** have pages: send `next` of a page as `cursor` to get the following one. `Link` has its URL too.

**Idempotency**: requests that create something accept an `Idempotency-Key` of your choice. A repeated request with the
same key gets the same response, for 24 hours; a different request with the same key is refused (422).

**Rate limit**: `RateLimit` and `RateLimit-Policy` show how many requests remain in this minute. Requests for missing
paths count too.

**Responses are JSON**, or images where a path says so. Each path has one format; `Accept` has no effect. The resolver
supports content negotiation.

**Missing handles**: the problem has `suggestions`, existing handles that may have been meant.
"""

_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_SCHEMA_REFERENCE: Final = "#/components/schemas/{name}"
_SECURITY: Final[tuple[dict[str, list[str]], ...]] = ({"token": []}, {"basic": []}, {"handle": []}, {"certificate": []})

_SCHEMES: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "perseid_…",
        "description": f"A token, limited to scopes and namespaces. Scopes: {', '.join(SCOPES)}.",
    },
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "A secret key. The user name is `INDEX:HANDLE` with the colon written as `%3A` "
        "(`300%3A0.NA/12345`), the password is the secret.",
    },
    "handle": {
        "type": "http",
        "scheme": "Handle",
        "description": "The authentication scheme of Handle.Net servers: a session of `/api/sessions`, "
        "authenticated by a challenge and a secret or private key.",
    },
    "certificate": {
        "type": "mutualTLS",
        "description": "A TLS client certificate, possibly self-signed, for a key that a record has as HS_PUBKEY.",
    },
}


def document(api: Api, settings: HttpSettings) -> dict[str, Any]:
    """Return the OpenAPI document as a plain object."""
    result = dict(_document(api))
    result["servers"] = [{"url": f"{settings.public_url}{BASE}", "description": "This server"}]
    return result


@cache
def _document(api: Api) -> Mapping[str, Any]:
    schemas = components(api)
    return {
        "openapi": VERSION,
        "info": {
            "title": "Perseid",
            "summary": "Persistent identifiers for things that may move.",
            "version": BASE.rpartition("/")[2],
            "description": DESCRIPTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [],
        "tags": [{"name": part.tag, "description": part.about} for part in api.sections],
        "paths": _paths(api),
        "components": {
            "schemas": schemas,
            "securitySchemes": _SCHEMES,
            "responses": {response_name(status): _problem(status) for status in _statuses(api)},
            "headers": dict(RESPONSE_HEADERS),
        },
    }


def components(api: Api) -> dict[str, Any]:
    """Return the schemas by name."""
    types = [each for route in api.routes for each in (route.response, route.body) if each not in (None, FileBody)]
    _, schemas = msgspec.json.schema_components((*types, Problem, AlreadyDone), ref_template=_SCHEMA_REFERENCE)
    return {name: _describe_tag(schema) for name, schema in sorted(schemas.items())}


def _describe_tag(schema: dict[str, Any]) -> dict[str, Any]:
    """Describe the tag field of a schema; it tells the members of a union apart."""
    members = schema.get("properties", {})
    for name, member in members.items():
        if member.keys() == {"enum"} and len(member["enum"]) == 1:
            (tag,) = member["enum"]
            about = f"The kind of object: always `{tag}` here."
            tagged = {"description": about, "examples": [tag], "type": "string", "enum": [tag]}
            return {**schema, "properties": {**members, name: tagged}}
    return schema


def _statuses(api: Api) -> list[int]:
    return sorted(
        {*COMMON_STATUSES, 409, 413, 415, 421, 422, *[status for route in api.routes for status in route.problems]}
    )


def _paths(api: Api) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in api.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "description": description(route),
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *query_parameters(route), *header_parameters(route)],
        "responses": _responses(route),
        "security": _security(route),
    }
    if route.scope:
        operation["x-scope"] = route.scope
    if route.body is not None:
        if route.is_streamed:
            operation["requestBody"] = {"required": False, "content": {_BYTES: {}}}
        else:
            content = {_JSON: {"schema": get_schema(route.body)}}
            operation["requestBody"] = {"required": not is_optional(route.body), "content": content}
    return operation


def _security(route: Route) -> list[dict[str, list[str]]]:
    """The authentication methods of a route. `{}` means anonymous access."""
    if route.scope == NO_TOKEN:
        return [way for way in _SECURITY if "token" not in way]
    if route.scope == OWN_TOKEN:
        return list(_SECURITY)
    # reads work anonymously even if a token needs a scope: they return public data
    return list(_SECURITY) if route.scope and route.method != "GET" else [{}, *_SECURITY]


def description(route: Route) -> str:
    """Return the docstring of the handler, and the scope that a token needs."""
    text = inspect.cleandoc(route.handler.__doc__ or "")
    if not route.scope:
        return text
    special = {
        NO_TOKEN: "Tokens cannot do this. Authenticate with a key.",
        OWN_TOKEN: "A token needs no scope for this and can access only itself.",
    }
    return f"{text}\n\n{special.get(route.scope, f'A token needs the scope `{route.scope}`.')}"


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", route.path):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name == "handle":
            schema["examples"] = ["12345/x"]
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": route.parameters[name],
            "schema": schema,
        }


def query_parameters(route: Route) -> Iterable[dict[str, Any]]:
    """Describe the query parameters of a route."""
    schema, parts = msgspec.json.schema_components((route.query,), ref_template=_SCHEMA_REFERENCE)
    query = parts[schema[0]["$ref"].rpartition("/")[2]]
    for name, member in query.get("properties", {}).items():
        rest = {key: value for key, value in member.items() if key not in ("description", "title")}
        yield {
            "name": name,
            "in": "query",
            "required": name in query.get("required", ()),
            "description": member.get("description", ""),
            "schema": _inline_references(rest, parts),
        }


def _inline_references(schema: Any, parts: Mapping[str, Any]) -> Any:
    """Replace references by the schemas themselves."""
    if isinstance(schema, list):
        return [_inline_references(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = dict(parts[schema["$ref"].rpartition("/")[2]])
        return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
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
    responses: dict[str, Any] = {str(route.status): success}
    if route.method == "GET" and not is_stream(route):
        responses["304"] = {"description": "Not modified.", "headers": not_modified_headers(route)}
    body = (413, 415) if route.body is not None else ()
    keyed = (409, 422) if route.creates else (409,) if route.method != "GET" and 422 in route.problems else ()
    divided = (421,) if "{handle}" in route.path or route.creates else ()
    for status in sorted({*COMMON_STATUSES, *route.problems, *body, *divided, *keyed}):
        responses[str(status)] = {"$ref": f"#/components/responses/{response_name(status)}"}
    return responses


def _problem(status: int) -> dict[str, Any]:
    types = problem_types_by_status(status)
    text = "\n".join(f"- `{problem_type.slug}`: {problem_type.title}. {problem_type.about}" for problem_type in types)
    return {
        "description": text or HTTPStatus(status).phrase,
        "headers": problem_headers(status),
        "content": {MEDIA_TYPE: {"schema": get_schema(Problem)}},
    }


def response_name(status: int) -> str:
    """Return the name of a problem response among the components."""
    return f"Problem{status}"


def get_schema(type_: Any) -> dict[str, Any]:
    """Return the schema of a type, with references to the components."""
    (schema,), _ = msgspec.json.schema_components((type_,), ref_template=_SCHEMA_REFERENCE)
    return schema

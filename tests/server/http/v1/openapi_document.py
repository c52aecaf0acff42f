"""The OpenAPI document in tests: every response is checked against it."""

import json
import re
from functools import cache
from typing import Any, Final

from jsonschema import Draft202012Validator

from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Response
from perseid.server.http.v1 import openapi
from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import Route

OF_ANY_SERVER: Final = frozenset(
    (
        "access-control-allow-origin",
        "access-control-expose-headers",
        "content-security-policy",
        "content-type",  # which the description has as the type of the content
        "referrer-policy",
        "x-accel-buffering",  # for proxies on the way
        "x-content-type-options",
    )
)
"""Headers that every server sends; not documented."""

NEEDED: Final = {401: "www-authenticate", 429: "retry-after", 503: "retry-after"}
"""Headers that responses with these statuses need."""


@cache
def document() -> Any:
    """The description, as others read it."""
    return json.loads(json.dumps(openapi.document(get_api(), HttpSettings())))


@cache
def said_of(path: str, method: str, status: int) -> Any:
    """Return the documented response of a route."""
    said = document()["paths"][path][method]["responses"]
    assert str(status) in said, f"{method} {path} does not say that it answers {status}"
    response = said[str(status)]
    if "$ref" in response:
        response = document()["components"]["responses"][response["$ref"].rpartition("/")[2]]
    return response


@cache
def validator(path: str, method: str, status: int, media_type: str) -> Draft202012Validator | None:
    """Return the schema of a response; None if it is not JSON."""
    content = said_of(path, method, status).get("content", {})
    assert media_type in content, f"{method} {path} does not say that it answers {status} as {media_type!r}"
    if not media_type.endswith("json"):
        return None
    return Draft202012Validator({**content[media_type]["schema"], "components": document()["components"]})


def find_route(method: str, path: str) -> Route | None:
    """Return the route of a method and a path below `BASE`."""
    method = "GET" if method == "HEAD" else method
    patterns = [(route, re.sub(r"{\w+}", "[^/]+", route.path)) for route in get_api().routes]
    return next((route for route, each in patterns if route.method == method and re.fullmatch(each, path)), None)


def check(method: str, target: str, response: Response) -> None:
    """Check an answer to a request below `BASE`; those of paths and methods that are nowhere are no route's."""
    route = find_route(method, target.partition("?")[0] or "/")
    if route is None:
        return
    said = said_of(route.path, route.method.lower(), response.status)
    sent = {name.lower() for name, _ in response.headers}
    described = {name.lower() for name in said["headers"]}
    assert sent <= described | OF_ANY_SERVER, f"{method} {route.path} does not say that it sends {sent - described}"
    assert NEEDED.get(response.status, "cache-control") in sent, response
    media_type = next(response.values("content-type"), "").partition(";")[0]
    if not response.body and not media_type:
        assert "content" not in said
        return
    made = validator(route.path, route.method.lower(), response.status, media_type)
    if made is not None:
        made.validate(json.loads(response.body))

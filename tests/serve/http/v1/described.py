"""Whether an answer is one that the description of the API has: its status, its type, its JSON."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from perseid.serve.http.messages import Response
from perseid.serve.http.settings import HttpSettings
from perseid.serve.http.targets import Malformed
from perseid.serve.http.v1 import openapi
from perseid.serve.http.v1.answering import table
from perseid.serve.http.v1.routing import BASE
from perseid.serve.http.v1.taking import steps_of


@cache
def document() -> Any:
    """The description, as others read it."""
    return json.loads(json.dumps(openapi.document(table(), HttpSettings())))


@cache
def validator(path: str, method: str, status: int, media_type: str) -> Draft202012Validator | None:
    """What an answer of a route has to keep; None if it is not JSON."""
    said = document()["paths"][path][method]["responses"]
    assert str(status) in said, f"{method} {path} does not say that it answers {status}"
    response = said[str(status)]
    if "$ref" in response:
        response = document()["components"]["responses"][response["$ref"].rpartition("/")[2]]
    content = response.get("content", {})
    assert media_type in content, f"{method} {path} does not say that it answers {status} as {media_type!r}"
    if not media_type.endswith("json"):
        return None
    return Draft202012Validator({**content[media_type]["schema"], "components": document()["components"]})


def check(method: str, target: str, response: Response) -> None:
    """Check an answer to a request below `BASE`; those of paths and methods that are nowhere are no route's."""
    try:
        found = table().find(steps_of(f"{BASE}{target.partition('?')[0]}".encode()))
    except Malformed:
        return
    route = None if found is None else found.routes.get("GET" if method == "HEAD" else method)
    if route is None:
        return
    media_type = next(response.values("content-type"), "").partition(";")[0]
    if not response.body and not media_type:
        said = document()["paths"][route.path][route.method.lower()]["responses"]
        assert str(response.status) in said, f"{method} {route.path} does not say that it answers {response.status}"
        assert "content" not in said[str(response.status)]
        return
    made = validator(route.path, route.method.lower(), response.status, media_type)
    if made is not None:
        made.validate(json.loads(response.body))

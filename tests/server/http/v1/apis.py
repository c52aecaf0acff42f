"""Requests to the HTTP API in tests, and checks of its JSON responses and problems."""

import json
from typing import Any

from perseid.schema.problems import PROBLEM_TYPES
from perseid.server.http.messages import Response
from perseid.server.http.v1.problems import MEDIA_TYPE
from tests.server.http.contexts import PUBLIC_URL, Harness, header_of
from tests.server.http.v1 import openapi_document

JSON = "application/json"


def got(response: Response, status: int = 200) -> Any:
    """Return the JSON of a successful response."""
    assert response.status == status, response
    assert header_of(response, "Content-Type") == JSON
    return json.loads(response.body)


def problem(response: Response, slug: str) -> dict[str, Any]:
    """Return the problem of a response, and check its type and form."""
    assert header_of(response, "Content-Type") == MEDIA_TYPE, response
    assert header_of(response, "Cache-Control") == "no-store"
    found: dict[str, Any] = json.loads(response.body)
    assert found["type"] == f"{PUBLIC_URL}/docs/problems#{slug}", found
    assert found["title"] == PROBLEM_TYPES[slug].title
    assert found["status"] == response.status
    assert found["detail"]
    return found


def send(server: Harness, method: str, path: str, plain: object = None, **how: Any) -> Response:
    """Send a JSON request under `/api/v1`; the response must conform to the OpenAPI document."""
    body = ""
    if plain is not None:
        how["headers"] = {"Content-Type": JSON, **how.get("headers", {})}
        body = json.dumps(plain)
    answer = server.ask(method, f"/api/v1{path}", body, **how)
    openapi_document.check(method, path, answer)
    return answer

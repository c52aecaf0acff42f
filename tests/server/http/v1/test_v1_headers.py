"""Documented and sent headers.

`openapi_document.check` also checks the headers of every response in all these tests.
"""

from dataclasses import replace
from typing import Any

import pytest

from perseid.server.http.messages import Client
from perseid.server.http.v1 import openapi
from perseid.server.http.v1.application import get_api
from perseid.server.native.decisions import Busy
from perseid.server.native.work import Work
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1 import openapi_document
from tests.server.http.v1.apis import problem, send
from tests.server.http.v1.callers import URL, at, keyed

ROUTES = {route.operation: route for route in get_api().routes}


def names(operation: str, status: int) -> set[str]:
    """The headers that an answer is said to have."""
    route = ROUTES[operation]
    return set(openapi_document.said_of(route.path, route.method.lower(), status)["headers"])


def counting(operation: str) -> dict[str, Any]:
    """Return the documented request headers and their descriptions."""
    route = ROUTES[operation]
    said = openapi_document.document()["paths"][route.path][route.method.lower()]["parameters"]
    return {each["name"]: each["description"] for each in said if each["in"] == "header"}


def test_sent_headers_are_documented(server: Harness) -> None:
    made = send(server, "POST", "/handles", {"handle": "12345/new", "values": [URL]}, headers=keyed("one"))
    assert header_of(made, "Location") == "/api/v1/handles/12345%2Fnew"
    assert "Location" in names("createRecord", 201)
    again = send(server, "POST", "/handles", {"handle": "12345/new", "values": [URL]}, headers=keyed("one"))
    assert header_of(again, "Idempotency-Replayed") == "true"
    read = send(server, "GET", at("12345/new"))
    assert {"ETag", "Vary", "Cache-Control", "RateLimit", "RateLimit-Policy"} <= {name for name, _ in read.headers}
    same = send(server, "GET", at("12345/new"), headers={"If-None-Match": header_of(read, "ETag") or ""})
    assert (same.status, header_of(same, "ETag")) == (304, header_of(read, "ETag"))
    assert names("getRecord", 304) >= {"ETag", "Vary", "Cache-Control", "RateLimit"}
    unknown = send(server, "DELETE", at("12345/new"))
    assert problem(unknown, "authentication-required")
    assert "WWW-Authenticate" in names("deleteRecord", unknown.status)


def test_retry_after_is_documented(server: Harness) -> None:
    async def busy(work: Work, client: Client) -> object:  # noqa: ARG001 - for nobody
        raise Busy

    server.service.server = replace(server.context, do=busy)
    assert header_of(send(server, "GET", at("12345/n0", "/history")), "Retry-After") == "1"
    for status in (409, 429, 503):
        assert "Retry-After" in names("createRecord", status)
    assert "Retry-After" not in names("createRecord", 404)


def test_undocumented_header_is_detected(shared: Harness) -> None:
    answer = send(shared, "GET", at("12345/n0")).with_headers(("Warning", "199 - x"))
    with pytest.raises(AssertionError, match="does not say that it sends"):
        openapi_document.check("GET", at("12345/n0"), answer)


def test_documented_headers_are_used() -> None:
    said = [openapi.response_headers(route) for route in ROUTES.values()]
    said += [openapi.problem_headers(status) for status in (401, 409, 429)]
    assert {name for each in said for name in each} == set(openapi.RESPONSE_HEADERS)


def test_request_headers_are_documented_per_route(server: Harness) -> None:
    for operation, route in ROUTES.items():
        named = counting(operation)
        assert ("If-Match" in named) == route.conditional, operation
        is_read = route.method == "GET" and not openapi.is_stream(route)
        assert ("If-None-Match" in named) == (route.conditional or is_read), operation
        assert ("Idempotency-Key" in named) == route.creates, operation
    assert "412" in counting("deleteRecord")["If-None-Match"]
    refused = send(server, "DELETE", at("12345/n0"), headers={**basic(), "If-None-Match": "*"})
    problem(refused, "precondition-failed")


@pytest.mark.parametrize(
    ("method", "path", "slug"),
    [
        ("GET", "/nothing", "no-such-path"),
        ("GET", "/handles/12345/x/y", "no-such-path"),
        ("GET", "/handles/%FF", "no-such-path"),
        ("PUT", "/handles", "method-not-allowed"),
    ],
)
def test_missing_paths_count_toward_the_rate_limit(server: Harness, method: str, path: str, slug: str) -> None:
    server.configure(api_requests_anonymous=2, api_requests=2)
    known = {"headers": basic()}
    for left in (1, 0):
        answer = send(server, method, path)
        problem(answer, slug)
        assert header_of(answer, "RateLimit-Policy") == '"requests";q=2;w=60'
        assert f"r={left};" in (header_of(answer, "RateLimit") or "")
    for other in (send(server, method, path), send(server, "GET", at("12345/n0"))):
        problem(other, "too-many-requests")
        assert header_of(other, "Retry-After") == "30"
    for _ in range(2):
        problem(send(server, method, path, **known), slug)  # who is known is counted by themselves
    problem(send(server, method, path, **known), "too-many-requests")

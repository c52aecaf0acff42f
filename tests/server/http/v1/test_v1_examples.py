"""The example commands in the documentation pages."""

import html
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator

from perseid.server.http.clients import FALLBACK_URL
from perseid.server.http.messages import Response
from perseid.server.http.negotiation import PAGE_AGE
from perseid.server.http.pages import docs_pages
from perseid.server.http.pages.docs_examples import curl_command, make_example
from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import BASE, Route
from tests.server.http.contexts import PUBLIC_URL, Harness, basic, harness, header_of
from tests.server.http.v1 import openapi_document
from tests.server.http.v1.apis import send

ROUTES: Final = get_api().routes
NOT_UNDERSTOOD: Final = (
    "invalid-request",
    "no-such-path",
    "method-not-allowed",
    "unsupported-media-type",
    "invalid-name",
)
HERE: Final = "hdl.example.net:8080"


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with harness() as made:
        made.configure(api_requests=0)
        yield made


def said(route: Route) -> Any:
    return openapi_document.document()["paths"][route.path][route.method.lower()]


def schemas() -> Any:
    return openapi_document.document()["components"]["schemas"]


def options(words: list[str], name: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == name]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_example_command_is_valid(server: Harness, route: Route) -> None:
    words = shlex.split(curl_command(make_example(route, said(route), schemas()), PUBLIC_URL))
    address = urlsplit(words[-1])
    assert f"{address.scheme}://{address.netloc}" == PUBLIC_URL
    assert options(words, "-X") == ([] if route.method == "GET" else [route.method])
    bodies = [json.loads(text) for text in options(words, "-d")]
    assert len(bodies) == (route.body is not None and not route.is_streamed)
    assert len(options(words, "--data-binary")) == route.is_streamed
    for body in bodies:
        schema = said(route)["requestBody"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": {"schemas": schemas()}}).validate(body)
    path = f"{address.path.removeprefix(BASE)}?{address.query}"
    answer = send(server, route.method, path, *bodies, headers=basic())
    assert sort_of(answer) not in NOT_UNDERSTOOD, answer.body


def sort_of(answer: Response) -> str:
    return str(json.loads(answer.body)["type"]).rpartition("#")[2] if answer.status >= 400 else ""


def commands(server: Harness, **how: Any) -> list[str]:
    """All commands of all pages."""
    pages = [server.get(f"/docs/{docs_pages.slugify(part.tag)}", **how) for part in get_api().sections]
    shown = re.compile("<pre[^>]*><code>(curl.*?)</code></pre>", re.DOTALL)
    found = [each for page in pages for each in shown.findall(page.body.decode())]
    return [html.unescape(each) for each in found]


def test_pages_use_the_configured_public_url(server: Harness) -> None:
    found = commands(server, headers={"Host": HERE})
    assert len(found) == len(ROUTES)
    assert all(shlex.split(each)[-1].startswith(f"{PUBLIC_URL}/api/v1/") for each in found)
    assert header_of(server.get("/docs", headers={"Host": HERE}), "Cache-Control") == f"public, max-age={PAGE_AGE}"


@pytest.mark.parametrize(
    ("headers", "secure", "begins"),
    [
        ({"Host": HERE}, True, f"https://{HERE}"),
        ({"Host": HERE}, False, f"http://{HERE}"),
        ({"Host": "[::1]:8000"}, False, "http://[::1]:8000"),
        ({}, True, FALLBACK_URL),
        ({"Host": "x'; rm -rf ~ #"}, True, FALLBACK_URL),
        ({"Host": "<script>alert(1)</script>"}, True, FALLBACK_URL),
        ({"Host": "$(id).example.org"}, True, FALLBACK_URL),
        ({"Host": "example.org/elsewhere"}, True, FALLBACK_URL),
        ({"Host": "somebody@example.org"}, True, FALLBACK_URL),
    ],
)
def test_pages_use_the_requested_host_without_public_url(headers: dict[str, str], secure: bool, begins: str) -> None:
    with harness() as server:
        server.configure(public_url="")
        found = commands(server, headers=headers, secure=secure)
        assert len(found) == len(ROUTES)
        assert all(shlex.split(each)[-1].startswith(f"{begins}/api/v1/") for each in found)
        front = server.get("/docs", headers=headers, secure=secure)
        assert f"<code>{begins}/api/v1</code>" in front.body.decode()
        assert header_of(front, "Cache-Control") == f"private, max-age={PAGE_AGE}"
        assert b"this-server" not in front.body
        for path in ("/docs/problems", "/docs/schemas", "/openapi.json"):
            assert server.get(path, headers=headers).status == 200

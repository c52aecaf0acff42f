"""The guides of the HTTP API use every route."""

import urllib.request
from typing import Any
from urllib.parse import urlsplit

import pytest

from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import BASE
from tests.server.http.v1.openapi_document import find_route
from tests.test_documentation import GUIDES_OF_THE_API, execute


def test_guides_use_every_route(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: set[str] = set()
    ask = urllib.request.urlopen

    def asked(request: urllib.request.Request, *more: Any, **how: Any) -> Any:
        path = urlsplit(request.full_url).path
        answer = ask(request, *more, **how)  # an example is one only if it succeeds
        route = find_route(request.get_method(), path.removeprefix(BASE) or "/")
        if path.startswith(BASE) and route is not None:
            shown.add(route.operation)
        return answer

    monkeypatch.setattr(urllib.request, "urlopen", asked)
    for document in GUIDES_OF_THE_API:
        execute(document)
    assert {route.operation for route in get_api().routes} - shown == set()

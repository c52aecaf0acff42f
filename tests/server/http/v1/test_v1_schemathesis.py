"""Generated requests: every response of a running server conforms to the OpenAPI document.

Schemathesis generates the requests and checks the responses. Alone it hardly ever names existing handles, so half of
the requests are made likely to succeed. `EXAMPLES=1000` runs a longer search.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from perseid.names import pilin
from perseid.server.http.v1.routing import BASE
from tests.server.http.contexts import basic
from tests.server.installations import ADMINISTRATOR, NAMES, PREFIX, copy_to
from tests.server.running import serving

DEFAULT_EXAMPLES: Final = 3
EXAMPLES: Final = int(os.environ.get("EXAMPLES", DEFAULT_EXAMPLES))
"""Requests of each route, as many good ones as bad ones: some hundreds in all."""

LIMITS: Final = {
    "PERSEID_LIMITS_READ_SHARE": "6400",
    "PERSEID_LIMITS_WRITE_SHARE": "6400",
    "PERSEID_LIMITS_VERIFY_SHARE": "6400",
    "PERSEID_LIMITS_SOURCE_SHARE": "100",
    "PERSEID_LIMITS_PROVED_SOURCE_SHARE": "100",
    "PERSEID_HTTP_API_REQUESTS": "0",
    "PERSEID_HTTP_API_REQUESTS_ANONYMOUS": "0",
}
"""No rate limit: other responses are tested here."""

CONFIG: Final = {
    "checks": {
        # 501 and 503 say that the server does not do this, or not now: no error of its own
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", 501, 503]},
        # also what is too large, and what is refused before anybody looks at the parameter that is wrong
        "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 409, 412, 413, 415, 422, 431, 501, 503]},
    }
}
CHECKS: Final[list[CheckFunction]] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

REACHED: Final = {"administrator": 40, "nobody": 24}
"""Routes that must succeed at least once, so that the run is meaningful."""

Operation = APIOperation[Any, Any, Any, Any]
Asked = Case[Any]
Likely = Mapping[str, st.SearchStrategy[Any]]
"""Values of parameters and fields, by name, for requests that should succeed."""

AVAILABLE: Final = st.integers(0, NAMES - 1).map(lambda number: f"{PREFIX}/n{number}")
NEW: Final = st.integers(0, 1_000_000).map(lambda number: f"{PREFIX}/new{number}")
SUFFIX: Final = pilin.encode(pilin.MIN_MILLISECONDS)
VALUE: Final = {"index": 1, "type": "URL", "data": {"format": "string", "value": "https://example.org/other"}}


def likely(operation: str, token: str) -> Likely:
    return {
        "id": st.just("0" * 16),
        "job": st.just(operation),
        "token": st.just(token),
        "handle": NEW,
        "handles": st.lists(NEW, max_size=2),
        **dict.fromkeys(("of", "work", "version", "resource", "metadata", "replaced_by"), AVAILABLE),
        "prefix": st.just(PREFIX),
        "text": AVAILABLE.map("hdl:{}".format),
        "rule": st.just("H3"),
        "suffix": st.just(SUFFIX),
        "url": st.just("https://example.org/1*"),
        "values": st.just([VALUE]),
        "scopes": st.just(["read"]),
        "namespaces": st.just([PREFIX]),
        "administrators": st.just([ADMINISTRATOR]),
        "note": st.just("of the tests"),
    }


@st.composite
def cases(draw: st.DrawFn, operation: Operation, mode: GenerationMode, words: Likely) -> Asked:
    case = draw(operation.as_strategy(mode))
    if draw(st.booleans()):
        return case
    for name in case.path_parameters:
        case.path_parameters[name] = quote(draw(AVAILABLE if name == "handle" else words[name]), safe="")
    if mode is GenerationMode.NEGATIVE:
        return case
    case.headers.clear()  # random entity tags, which fit nothing
    required = {parameter.name for parameter in operation.query if parameter.is_required}
    for name in list(case.query):
        if name in words and name in required:
            case.query[name] = draw(words[name])
        elif name not in required:
            del case.query[name]
    if isinstance(case.body, dict):
        for name, value in case.body.items():
            if name in words and isinstance(value, str | list):
                found = draw(words[name])
                case.body[name] = found if isinstance(found, type(value)) else value
    return case


def may_be_called(case: Asked) -> bool:
    """Not where the administrator's own key would go, with which everything else is asked."""
    return case.method == "GET" or not str(case.path_parameters.get("handle", "")).upper().startswith("0.NA/")


def modes_of(operation: Operation, identity: str) -> Iterable[GenerationMode]:
    """Any text will do in a path or a header: a request is bad only by its query or its body.

    Most bad requests of nobody are refused before anybody looks at what is bad, so only `make fuzz` makes them.
    """
    yield GenerationMode.POSITIVE
    if (operation.body or operation.query) and (identity != "nobody" or EXAMPLES > DEFAULT_EXAMPLES):
        yield GenerationMode.NEGATIVE


def checks_of(operation: Operation) -> list[CheckFunction]:
    """Bad requests have to be refused, except where the query has a switch: `?deleted=` says yes."""
    switches = [each for each in operation.query if each.definition["schema"].get("type") == "boolean"]
    return CHECKS if switches else [*CHECKS, negative_data_rejection]


def ask_all_sorts_of_things(
    operation: Operation, mode: GenerationMode, words: Likely, session: requests.Session, base: str
) -> bool:
    """Make requests of a route, and have every answer judged; whether one of them was carried out."""
    statuses = set()
    checks = checks_of(operation)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # the server has changed since, so that a smaller request would say something else
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=cases(operation, mode, words).filter(may_be_called))
    def ask(case: Asked) -> None:
        response = case.call(base_url=base, session=session)
        case.validate_response(response, checks=checks)
        statuses.add(response.status_code)

    ask()
    return any(status < 300 for status in statuses)


def prepared(base: str) -> Likely:
    """Create a job and a token to ask about."""
    order = {"url": "https://example.org/0", "to": "https://example.org/zero", "note": "of the tests"}
    made = requests.post(f"{base}/rewrites", json=order, headers=basic(), timeout=60)
    token = requests.post(
        f"{base}/tokens", json={"scopes": ["read"], "namespaces": [PREFIX]}, headers=basic(), timeout=60
    )
    return likely(made.json()["job"], token.json()["id"])


@pytest.mark.parametrize("identity", REACHED)
def test_every_route_responds_as_documented(tmp_path: Path, identity: str) -> None:
    with serving(copy_to(tmp_path), **LIMITS) as server, requests.Session() as session:
        root = "http://{}:{}".format(*server.http)
        base = f"{root}{BASE}"
        words = prepared(base)
        schema = schemathesis.openapi.from_url(f"{root}/openapi.json", config=schemathesis.Config.from_dict(CONFIG))
        session.trust_env = False
        if identity == "administrator":
            session.headers.update(basic())
        reached = set()
        for result in schema.get_all_operations():
            assert isinstance(result, Ok), result
            operation = result.ok()
            if operation.path.endswith("/events"):
                continue  # its answers last as long as what they tell of
            for mode in modes_of(operation, identity):
                if ask_all_sorts_of_things(operation, mode, words, session, base):
                    reached.add(operation.label)
        assert len(reached) >= REACHED[identity], sorted(reached)
        still = requests.get(f"{base}/namespaces", headers=basic(), timeout=60)
        assert still.status_code == 200, "the administrator is one to the end"

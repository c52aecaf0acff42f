"""Advice and problem types of refusals."""

from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.patterns import MAX_PATTERN_LENGTH
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.installation.setup import with_group_administrators
from perseid.registry.policy.policy import PROFILES, Deletion
from perseid.server.http.v1.problems import ADVICE_TEXTS, render_advice
from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import URL, at, change, create
from tests.server.http.v1.openapi_document import document
from tests.server.installations import OPERATOR

AUTHENTICATE = ADVICE_TEXTS[AdviceKind.AUTHENTICATE]


@given(st.text(max_size=100))
def test_handle_in_advice_is_a_path_segment(name: str) -> None:
    step = quote(name, safe="", errors="replace")
    assert render_advice(AdviceKind.RESTORE(handle=name)).endswith(f": POST /api/v1/handles/{step}/revive")
    assert render_advice(AdviceKind.SEE_TYPE(type=name)).endswith(f": GET /api/v1/types/{step}")


@pytest.mark.parametrize("text", ["--change-case", "perseid mint", "{handle}", "{0}", "%s"])
def test_handle_in_advice_is_not_interpreted(shared: Harness, text: str) -> None:
    name = f"12345/x{text}"
    uri = "hdl:" + name.replace("%", "%25")
    found = problem(send(shared, "GET", at(uri)), "prefix-not-hosted")
    assert found["advice"].endswith(f": {name}")


# Advice


def test_anonymous_caller_is_advised_to_use_a_token(shared: Harness) -> None:
    for method, path, plain in (
        ("POST", "/handles", {"handle": "12345/new", "values": [URL]}),
        ("DELETE", at("12345/n0"), None),
        ("POST", at("12345/n0", "/publish"), {}),
    ):
        found = problem(send(shared, method, path, plain), "authentication-required")
        assert found["advice"] == AUTHENTICATE
    explained = got(send(shared, "POST", "/explain", {"command": "delete", "handle": "12345/n0"}))
    assert explained["advice"] == AUTHENTICATE


def test_advised_request_removes_a_tombstone(server: Harness) -> None:
    create(server, "12345/a b/c")
    change(server, "POST", at("12345/a b/c", "/tombstone"), {"reason": "gone"})
    found = problem(send(server, "POST", at("12345/a b/c", "/unpublish"), {}, headers=basic()), "state-conflict")
    path = found["advice"].rpartition("POST /api/v1")[2]
    assert path == at("12345/a b/c", "/revive")
    change(server, "POST", path)


def test_advice_links_to_the_type_documentation(shared: Harness) -> None:
    values = [{"type": "PERSEID_TYPE", "data": '{"name": "n", "description": "d", "pattern": "("}'}]
    new = {"handle": "12345/TYPE", "values": values}
    found = problem(send(shared, "POST", "/handles", new, headers=basic()), "invalid-value")
    page = found["advice"].split()[1]
    assert page == "/docs/types"
    assert shared.get(page).status == 200


def test_forbidden_deletion_advises_a_tombstone(server: Harness) -> None:
    policy = replace(with_group_administrators(PROFILES["free"]), deletion=Deletion.TOMBSTONE)
    server.registry.do(SetPolicy("12345", policy), OPERATOR, "cli")
    found = problem(send(server, "DELETE", at("12345/n0"), headers=basic()), "invalid-value")
    assert found["advice"] == f"Create a tombstone instead: POST /api/v1{at('12345/n0', '/tombstone')}"


# Questions without an answer


@pytest.mark.parametrize(
    "path",
    [
        "/ledger/consistency?old=5&new=3",
        "/ledger/consistency?old=99999999",
        at("12345/n0", "/proof?at=2999-12-31"),
        at("12345/n0", "/citation?at=99999999"),
        at("12345/n0", "?at=soon"),
        "/find",
        "/find?changed_since=never",
    ],
)
def test_unanswerable_query_is_an_invalid_query(shared: Harness, path: str) -> None:
    found = problem(send(shared, "GET", path), "invalid-query")
    assert (found["status"], found["code"]) == (422, 202)
    assert "stored" not in found["title"]
    assert found["advice"]


@pytest.mark.parametrize("query", ["old=99999999", "old=1&new=99999999", "old=99999999&new=1"])
def test_size_beyond_the_ledger_is_refused(shared: Harness, query: str) -> None:
    """A checkpoint beyond the ledger proves that the ledger was restored or replaced."""
    found = problem(send(shared, "GET", f"/ledger/consistency?{query}"), "invalid-query")
    assert "beyond the latest signed checkpoint" in found["detail"]
    assert "99999999" in found["detail"]
    assert "restored to an earlier state" in found["advice"]
    assert "smaller" in problem(send(shared, "GET", "/ledger/consistency?old=5&new=3"), "invalid-query")["advice"]


# Limits


def test_documented_limits_are_enforced(shared: Harness) -> None:
    said = document()["components"]["schemas"]["NewType"]["properties"]["pattern"]
    assert any(each.get("maxLength") == MAX_PATTERN_LENGTH for each in said["anyOf"])
    new = {"handle": "12345/LONG", "description": "x", "pattern": "a" * (MAX_PATTERN_LENGTH + 1)}
    found = problem(send(shared, "POST", "/types", new, headers=basic()), "invalid-request")
    assert (found["where"], "at most 1,000 characters" in found["detail"]) == ("$.pattern", True)
    owner = "hdl:12345/" + "x" * 4_096
    found = problem(send(shared, "GET", f"/find?owner={owner}"), "invalid-request")
    assert (found["where"], "at most 4,096 characters" in found["detail"]) == ("owner", True)
    rewrite = {"to": "https://new.example/*", "host": "old.example", "owner": owner}
    found = problem(send(shared, "POST", "/rewrites", rewrite, headers=basic()), "invalid-request")
    assert (found["where"], "at most 4,096 characters" in found["detail"]) == ("$.owner", True)


@pytest.mark.parametrize(
    ("data", "where", "says"),
    [
        ({"format": "string", "value": 5}, "$.values[0].data.value", "not an integer"),
        ({"format": "string", "value": True}, "$.values[0].data.value", "not true or false"),
        ({"format": "string", "value": None}, "$.values[0].data.value", "not null"),
        ({"format": "string", "value": {"a": 1}}, "$.values[0].data.value", "must be a string, not an object"),
        ({"format": "hex", "value": ["a"]}, "$.values[0].data.value", "must be a string, not an array"),
        ({"format": "String", "value": {}}, "$.values[0].data.value", "must be a string"),
        ({"format": "base64", "value": "!"}, "$.values[0]", "base64"),
        ({"format": "loud", "value": "x"}, "$.values[0]", "loud"),
    ],
)
def test_data_of_the_wrong_type_is_refused(shared: Harness, data: object, where: str, says: str) -> None:
    new = {"handle": "12345/data", "values": [{"type": "URL", "data": data}]}
    found = problem(send(shared, "POST", "/handles", new, headers=basic()), "invalid-request")
    assert (found["status"], found["where"]) == (400, where)
    assert says in found["detail"]
    assert found["advice"]

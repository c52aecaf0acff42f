"""Explanations of whether a change is allowed."""

import json
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.records import Create
from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import got, problem, send
from tests.server.installations import OPERATOR

URL = {"type": "URL", "data": "https://example.org/"}

ALLOWED = [
    {"command": "create", "handle": "12345/new", "values": [URL]},
    {"command": "create", "handle": "12345/n0", "values": [URL], "overwrite": True},
    {"command": "set", "handle": "12345/n0", "values": [URL]},
    {"command": "add", "handle": "12345/n0", "values": [{**URL, "index": 7, "ttl": 60}]},
    {"command": "remove", "handle": "12345/n0", "indexes": [2]},
    {"command": "delete", "handle": "12345/n0"},
    {"command": "mint", "prefix": "12345/x-", "values": [URL]},
    {"command": "publish", "handle": "12345/n0"},
    {"command": "unpublish", "handle": "12345/n0"},
    {"command": "tombstone", "handle": "12345/n0"},
    {"command": "transfer", "handle": "12345/n0", "to": "200:0.NA/12345"},
]


@pytest.mark.parametrize("wanted", ALLOWED, ids=json.dumps)
def test_explain_depends_on_the_caller(shared: Harness, wanted: dict[str, object]) -> None:
    size = shared.registry.ledger.open_reader
    with size() as reader:
        before = reader.size
    mine = got(send(shared, "POST", "/explain", wanted, headers=basic()))
    assert mine["allowed"], mine
    assert mine["code"] is None
    others = got(send(shared, "POST", "/explain", wanted))
    assert not others["allowed"]
    assert others["code"] == 402
    assert others["reason"]
    assert others["advice"]
    with size() as reader:
        assert reader.size == before


@pytest.mark.parametrize(
    ("wanted", "code", "rule"),
    [
        ({"command": "create", "handle": "12345/n0", "values": [URL]}, 101, "H7"),
        ({"command": "set", "handle": "12345/nothing", "values": [URL]}, 100, None),
        ({"command": "tombstone", "handle": "12345/n0", "undo": True}, 202, "S8"),
        ({"command": "create", "handle": "54321/x", "values": [URL]}, 301, None),
    ],
)
def test_explain_gives_the_reason(shared: Harness, wanted: dict[str, object], code: int, rule: str | None) -> None:
    found = got(send(shared, "POST", "/explain", wanted, headers=basic()))
    assert (found["allowed"], found["code"], found["rule"]) == (False, code, rule), found


@pytest.mark.parametrize("handle", ["12345/n0", "12345/private", "12345/free", "54321/x"])
def test_explanation_matches_the_refusal(shared: Harness, handle: str) -> None:
    """Anonymous callers must authenticate and do not learn whether the handle is free."""
    asked = {"command": "create", "handle": handle, "values": [URL]}
    explained = got(send(shared, "POST", "/explain", asked))
    for path, more in (("/handles", {"values": [URL]}), ("/types", {"description": "x"})):
        plain = {"handle": handle, **more}
        refused = problem(send(shared, "POST", path, plain), "authentication-required")
        assert (refused["detail"], refused["advice"]) == (explained["reason"], explained["advice"])
        assert refused["code"] == explained["code"] == 402


def test_explain_refuses_invalid_handles_and_owners(shared: Harness) -> None:
    new = {"command": "create", "handle": "12345/ x", "values": [URL]}
    assert problem(send(shared, "POST", "/explain", new), "invalid-name")["rule"] == "H3"
    assert (
        problem(send(shared, "POST", "/explain", {"command": "delete", "handle": "x"}), "invalid-name")["rule"] == "H1"
    )
    found = problem(
        send(shared, "POST", "/explain", {"command": "transfer", "handle": "12345/n0", "to": "somebody"}),
        "invalid-request",
    )
    assert found["where"] == "$.to"


def test_h3_record_whose_handle_is_not_legal_any_more_can_be_replaced(server: Harness) -> None:
    old, free = "12345/old\u200b", "12345/new\u200b"
    server.registry.do(
        Create(Handle.parse_lenient(old), (Value.text(1, "URL", "https://a.example/"),)), OPERATOR, "import"
    )
    wanted = {"command": "create", "handle": old, "values": [URL], "overwrite": True}
    assert got(send(server, "POST", "/explain", wanted, headers=basic()))["allowed"]
    refused = got(send(server, "POST", "/explain", wanted | {"handle": free}, headers=basic()))
    assert (refused["allowed"], refused["rule"]) == (False, "H3")
    assert problem(send(server, "POST", "/explain", wanted | {"overwrite": False}, headers=basic()), "invalid-name")
    got(send(server, "PUT", f"/handles/{quote(old, safe='')}", {"values": [URL]}, headers=basic()))

"""Advice and problem types of refusals."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perseid.registry
from perseid.names.errors import quote_text
from perseid.records.patterns import MAX_PATTERN_LENGTH
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.installation.setup import with_group_administrators
from perseid.registry.policy.policy import PROFILES, Deletion
from perseid.server.http.v1.problems import AUTHENTICATE, to_http_advice
from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import URL, at, change, create
from tests.server.http.v1.openapi_document import document
from tests.server.installations import OPERATOR

COMMAND = re.compile("perseid [a-z]|--[a-z]|docs/reference|challenge, or")

NOT_ASKED_HERE = {"installation"}
"""Packages whose advice is for the operator, at the command line."""


def texts(tree: ast.Module) -> Iterator[str]:
    """Return the strings of a module except docstrings; inserted values become a quoted handle."""
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    passed |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join([str(part.value) if isinstance(part, ast.Constant) else "'12345/x'" for part in node.values])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.value


def advised() -> list[str]:
    """Return the advice of the registry that names a command; job ids are not handles."""
    modules = [
        path for path in Path(perseid.registry.__path__[0]).rglob("*.py") if path.parent.name not in NOT_ASKED_HERE
    ]
    found = [text for path in modules for text in texts(ast.parse(path.read_text(encoding="utf-8")))]
    return [re.sub("(resume|undo) '12345/x'", r"\1 last", text) for text in found if COMMAND.search(text)]


def test_every_advised_command_has_a_request() -> None:
    found = advised()
    assert len(found) > 10
    assert [text for text in found if COMMAND.search(to_http_advice(text))] == []


def test_every_advised_request_exists() -> None:
    paths = document()["paths"]
    for text in advised():
        for method, path in re.findall("(GET|POST|PUT) /api/v1(/[^ ,.;)]*)", to_http_advice(text)):
            shape = path.replace(quote("12345/x", safe=""), "{handle}").replace("/last", "/{job}")
            assert method.lower() in paths.get(shape, {}), (method, path)


@given(st.text(min_size=1, max_size=100))
def test_handle_in_a_command_becomes_a_path_segment(name: str) -> None:
    step = quote(name, safe="", errors="replace") if len(name) <= 80 else "{handle}"
    found = to_http_advice(f"To restore the record: perseid tombstone {quote_text(name)} --undo")
    assert found == f"To restore the record: POST /api/v1/handles/{step}/revive"
    assert to_http_advice(f"See the definition of the type: perseid type show {quote_text(name)}.") == (
        f"See the definition of the type: GET /api/v1/types/{step}."
    )


COMMANDS = (
    "--change-case",
    "perseid mint",
    "perseid jobs",
    "perseid namespace add 5",
    "perseid tombstone '\\U99999999' --undo",
    "perseid tombstone 'x' --undo",
    "perseid type list",
    "docs/reference/types.md",
    "answer a challenge, or use a session",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_inside_handles_are_not_translated(shared: Harness, command: str) -> None:
    name = f"12345/x{command}"
    found = problem(send(shared, "GET", at(f"hdl:{name}")), "prefix-not-hosted")
    assert found["advice"].endswith(f": {name}")
    for around in ("name {} alone", "Register {}.", "To restore the {}: perseid tombstone x --undo"):
        assert to_http_advice(around.format(name)) == around.format(name)
    assert to_http_advice(f"perseid namespace add {command}") == f"POST /api/v1/namespaces, with the prefix {command}"


# Advice


def test_anonymous_caller_is_advised_to_use_a_token(shared: Harness) -> None:
    for method, path, plain in (
        ("POST", "/handles", {"handle": "12345/new", "values": [URL]}),
        ("DELETE", at("12345/n0"), None),
        ("POST", at("12345/n0", "/publish"), {}),
    ):
        found = problem(send(shared, method, path, plain), "authentication-required")
        assert found["advice"] == AUTHENTICATE
    explained = got(send(shared, "POST", "/explain", {"operation": "delete", "handle": "12345/n0"}))
    assert explained["advice"] == AUTHENTICATE


def test_advised_request_removes_a_tombstone(server: Harness) -> None:
    create(server, "12345/a b/c")
    change(server, "POST", at("12345/a b/c", "/tombstone"), {"reason": "gone"})
    found = problem(send(server, "POST", at("12345/a b/c", "/unpublish"), {}, headers=basic()), "invalid-value")
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
    assert found["advice"] == f"Create a tombstone instead: POST /api/v1{at('12345/n0', '/tombstone')}."


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

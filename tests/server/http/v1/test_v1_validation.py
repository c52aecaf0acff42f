"""Validation of queries, bodies and handles."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.http.v1.api_call import LARGE_BODY
from perseid.server.http.v1.validation import MAX_PATH, find_duplicate_member, find_lone_surrogate
from perseid.server.native.work import WorkKind
from tests.cli.installation import call as cli
from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import JSON, got, problem, send
from tests.server.http.v1.callers import URL, at

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def post(server: Harness, path: str, body: str, **headers: str) -> Any:
    """Send a raw body as Ann."""
    return server.ask("POST", f"/api/v1{path}", body, headers={**basic(), "Content-Type": JSON, **headers})


# The query


@pytest.mark.parametrize(
    ("query", "where", "says"),
    [
        ("text=hdl:1/%ff&to=path", "text", "byte 7 is 0xFF"),
        ("text=hdl:1/%C3&to=path", "text", "not valid UTF-8"),
        ("text=%ed%a0%80/x&to=path", "text", "not valid UTF-8"),
        ("text=%zz&to=path", "text", "the invalid escape '%zz'"),
        ("text=1/%&to=path", "text", "the invalid escape '%'"),
        ("text=1/x&to=%f", "to", "the invalid escape '%f'"),
        ("%ff=1&text=1/x&to=path", "", "The name of a parameter is not valid UTF-8"),
        ("te%xt=1", "", "the invalid escape"),
    ],
)
def test_h4_u7_malformed_queries_are_refused(shared: Harness, query: str, where: str, says: str) -> None:
    found = problem(send(shared, "GET", f"/names/convert?{query}"), "invalid-request")
    assert (found["status"], found.get("where", "")) == (400, where)
    assert says in found["detail"]
    assert found["advice"]


def test_u7_double_escapes_are_part_of_the_handle(shared: Harness) -> None:
    assert got(send(shared, "GET", "/names/convert?text=1/%25ff&to=handle"))["name"] == "1/%ff"
    found = problem(send(shared, "GET", "/names/convert?text=hdl:1/%25ff&to=handle"), "invalid-name")
    assert (found["where"], found["rule"]) == ("text", "U5")


@given(st.text(min_size=1, max_size=20), st.booleans())
def test_query_text_round_trip(shared: Harness, text: str, plus: bool) -> None:
    shared.configure(api_requests_anonymous=0)
    try:
        written = quote(text, safe="")
    except UnicodeEncodeError:
        return
    written = written.replace("%20", "+") if plus else written
    found = problem(send(shared, "GET", f"/names/convert?text=1/x&to={written}-"), "invalid-request")
    assert found["where"] == "to"
    assert found["detail"] == f"Parameter to has the invalid value {f'{text}-'!r}"
    assert found["advice"] == "Use one of handle, host, path, http"


@pytest.mark.parametrize(
    ("path", "where", "detail", "advice"),
    [
        ("/ledger/consistency", "old", "Parameter old is required", "the second line of its checkpoint"),
        ("/ledger/consistency?old=x", "old", "must be an integer, not a string", "The older size"),
        ("/ledger/consistency?old=-1", "old", "must be at least 0", "The older size"),
        ("/suffixes/check?suffix=x&scheme=XX", "scheme", "has the invalid value 'XX'", "pilin, pilin-check"),
        ("/suffixes/cordra?version=7", "version", "has the invalid value 7", "Use one of 1, 4"),
        ("/names/parse?text=", "text", "must have at least 1 character", "A handle in any form"),
        ("/names/parse?text=1/x&resolvr=x", "resolvr", "Unknown parameter 'resolvr'", "Use one of text, resolver"),
        (f"/names/parse?text=1/x{'&resolver=https://a' * 11}", "resolver", "must have at most 10 items", "resolvers"),
    ],
)
def test_invalid_parameters_are_explained(shared: Harness, path: str, where: str, detail: str, advice: str) -> None:
    found = problem(send(shared, "GET", path), "invalid-request")
    assert found["where"] == where
    assert detail in found["detail"]
    assert advice in found["advice"]


# Bodies


@pytest.mark.parametrize(
    ("wanted", "where", "detail", "advice"),
    [
        ({}, "$.command", "$.command is required", "Use one of create, set, add"),
        ({"command": "dance"}, "$.command", "has the invalid value 'dance'", "Use one of create, set, add"),
        ({"command": "delete"}, "$.handle", "$.handle is required", "Expected: A handle"),
        ({"command": "delete", "handle": 5}, "$.handle", "must be a string, not an integer", "Expected: A handle"),
        ({"command": "delete", "handle": ""}, "$.handle", "must have at least 1 character", "Expected: A handle"),
        ({"command": "delete", "handle": "1/2", "x": 1}, "$.x", "$.x is unknown", "Use one of command, handle"),
        (
            {"command": "add", "handle": "1/2", "values": [URL, {**URL, "index": 0}]},
            "$.values[1].index",
            "must be at least 1",
            "The index",
        ),
        (
            {"command": "add", "handle": "1/2", "values": [{"type": "URL"}]},
            "$.values[0].data",
            "is required",
            "The data",
        ),
        (
            {"command": "add", "handle": "1/2", "values": [{**URL, "permissions": "2"}]},
            "$.values[0].permissions",
            "must match the pattern '^[01]{4}",
            "The permissions",
        ),
        (
            {"command": "add", "handle": "1/2", "values": {"a": 1}},
            "$.values",
            "must be a list, not an object",
            "Values of a record",
        ),
        ([], "$", "the body must be an object, not a list", "/docs"),
    ],
)
def test_invalid_bodies_are_explained(shared: Harness, wanted: object, where: str, detail: str, advice: str) -> None:
    found = problem(send(shared, "POST", "/explain", wanted), "invalid-request")
    assert found["where"] == where
    assert detail in found["detail"]
    assert advice in found["advice"]
    assert found["advice"]


def test_long_texts_are_truncated(shared: Harness) -> None:
    for wanted in ({"command": "x" * 5_000}, {"command": "delete", "handle": "1/2", "y" * 5_000: 1}):
        assert len(send(shared, "POST", "/explain", wanted).body) < 1_000


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/mint", '{"prefix":"777","prefix":"12345"}', "$.prefix"),
        ("/mint", r'{"prefix":"777","pref\u0069x":"12345"}', "$.prefix"),
        ("/handles", '{"handle":"12345/tw","values":[{"type":"URL","data":"x","type":"DESC"}]}', "$.values[0].type"),
        ("/types", '{"handle":"12345/TW","description":"d","schema":{"a":[{},{"b":1,"b":1}]}}', "$.schema.a[1].b"),
        ("/explain", '{"command":"delete","command":"create","handle":"12345/x"}', "$.command"),
        ("/mint", json.dumps({"prefix": "12345", "note": "x" * 1_900})[:-1] + ',"note":""}', "$.note"),
    ],
)
def test_duplicate_field_is_refused(shared: Harness, path: str, body: str, where: str) -> None:
    found = problem(post(shared, path, body), "invalid-request")
    assert (found["status"], found["where"]) == (400, where)
    assert f"{where.rpartition('.')[2]!r} occurs twice" in found["detail"]
    assert "once" in found["advice"]


def test_large_body_is_parsed_in_a_pool(server: Harness) -> None:
    """The search for duplicates is slow in a body of 1 MiB."""
    for count, kinds in ((1, []), (500, [WorkKind.READ])):
        body = json.dumps({"command": "create", "handle": "12345/x", "values": [URL] * count})
        assert (len(body) > LARGE_BODY) is bool(kinds)
        server.kinds.clear()
        twice = f'{body[:-1]},"handle":"12345/y"}}'
        answer = server.ask("POST", "/api/v1/explain", twice, headers={"Content-Type": JSON})
        assert problem(answer, "invalid-request")["where"] == "$.handle"
        assert server.kinds == kinds


@given(PLAIN)
def test_json_without_duplicates_has_none(plain: object) -> None:
    assert find_duplicate_member(json.dumps(plain).encode()) is None


@given(PLAIN, st.text(max_size=5))
def test_duplicate_is_found_anywhere(plain: object, name: str) -> None:
    member = json.dumps(name)
    inner = f"{{{member}:1,{member}:{json.dumps(plain)}}}"
    for whole in (inner, f'[{json.dumps(plain)},{{"a":{inner}}}]'):
        found = find_duplicate_member(whole.encode())
        assert found is not None
        assert found[1] == name


def test_path_length_is_limited() -> None:
    deep = f'{{"{"n" * 500}":' * 300 + '{"x":1,"x":2}' + "}" * 300
    found = find_duplicate_member(deep.encode())
    assert found is not None
    assert len(found[0]) < MAX_PATH + 200
    assert found[1] == "x"


@pytest.mark.parametrize("number", ["9" * 5_000, "1e999", "-" + "9" * 5_000, "1.5"])
def test_numbers_do_not_affect_duplicates(number: str) -> None:
    assert find_duplicate_member(f'{{"a":{number}}}'.encode()) is None


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (r'{"handle":"12345/TS","description":"\ud800"}', "$.description"),
        (r'{"handle":"12345/TS","description":"x\udc00y"}', "$.description"),
        (r'{"handle":"12345/TS","description":"d","schema":{"a":["\ud83d"]}}', "$.schema.a[0]"),
        (r'{"handle":"12345/TS","description":"d","schema":{"\ud83d":1}}', "$.schema"),
    ],
)
def test_h4_lone_surrogate_is_refused(shared: Harness, text: str, where: str) -> None:
    found = problem(post(shared, "/types", text), "invalid-request")
    assert (found["status"], found["where"]) == (400, where)
    assert "half of a surrogate pair" in found["detail"]
    assert found["advice"]


@pytest.mark.parametrize(
    "body", ['{"prefix":', r'{"prefix":"\ud83d\ude00"', '{"prefix":"1"} x', '{"prefix":NaN}', r'{"\ud800']
)
def test_invalid_json_is_reported(shared: Harness, body: str) -> None:
    found = problem(post(shared, "/mint", body), "invalid-request")
    assert found["detail"].startswith("The body is not valid JSON")
    assert not re.search("malformed|truncated|byte|expected", found["detail"]), "the words of a parser"
    assert (found["where"], bool(found["advice"])) == ("$", True)


@given(st.binary(max_size=40))
def test_lone_surrogate_search_accepts_any_bytes(octets: bytes) -> None:
    find_lone_surrogate(rb'{"\ud800' + octets)


# Names


def test_h3_invalid_handle_is_located(shared: Harness) -> None:
    names = {"handles": ["12345/ok1", "12345/ok2", "12345/b\u202e"]}
    found = problem(send(shared, "POST", "/reserve", names, headers=basic()), "invalid-name")
    assert (found["where"], found["rule"]) == ("$.handles[2]", "H3")
    assert found["detail"].startswith("At character 8: U+202E")
    assert found["advice"] == "To read the rule: GET /api/v1/names/rules/H3"
    assert got(send(shared, "GET", found["advice"].rpartition("/api/v1")[2]))["rule"] == "H3"


@pytest.mark.parametrize(
    ("method", "path", "plain", "where"),
    [
        ("GET", at("12345"), None, "handle"),
        ("POST", "/handles", {"handle": "12345"}, "$.handle"),
        ("POST", "/aliases", {"handle": "12345", "of": "12345/n0"}, "$.handle"),
        ("POST", "/aliases", {"handle": "12345/q", "of": "12345"}, "$.of"),
        ("POST", "/links/versions", {"work": "12345/n0", "version": "12345"}, "$.version"),
        ("POST", "/links/metadata", {"resource": "12345", "metadata": "12345/n0"}, "$.resource"),
        ("POST", at("12345/n0", "/tombstone"), {"reason": "x", "replaced_by": "12345"}, "$.replaced_by"),
        ("POST", "/types", {"handle": "12345", "description": "x"}, "$.handle"),
        ("GET", "/names/forms?text=12345", None, "text"),
    ],
)
def test_invalid_handles_are_located(shared: Harness, method: str, path: str, plain: object, where: str) -> None:
    found = problem(send(shared, method, path, plain, headers=basic()), "invalid-name")
    assert (found["where"], found["rule"]) == (where, "H1")
    assert found["detail"].startswith("At character 6: ")


def test_p7_invalid_character_of_a_suffix_is_named(shared: Harness) -> None:
    found = problem(send(shared, "GET", "/suffixes/pilin/D7J1GODQH"), "invalid-name")
    assert (found["where"], found["rule"]) == ("suffix", "P7")
    said = cli("suffix", "pilin", "--decode", "D7J1GODQH").err
    assert found["detail"].lower() in said.lower()
    assert found["detail"].startswith("At character 6: ")
    assert "did you mean the digit 0?" in found["detail"]


LONG = f"12345/{'x' * 2_043}"


@pytest.mark.parametrize("more", ["", "/citation", "/qr", "/proof", "/aliases", "/history", "/values"])
def test_h9_too_long_handle_is_not_found(shared: Harness, more: str) -> None:
    method = "DELETE" if more == "/values" else "GET"
    path = at(LONG, f"{more}?index=1" if more == "/values" else more)
    found = problem(send(shared, method, path, headers=basic()), "not-found")
    assert (found["status"], found["rule"], found["code"]) == (404, "H9", 100)
    assert "2,048 bytes" in found["detail"]
    assert problem(send(shared, "GET", f"/types/{quote(LONG, safe='')}"), "not-found")["rule"] == "H9"


def test_h9_too_long_handle_is_not_created(shared: Harness) -> None:
    found = problem(send(shared, "POST", "/handles", {"handle": LONG}, headers=basic()), "invalid-name")
    assert (found["where"], found["rule"]) == ("$.handle", "H9")
    problem(send(shared, "GET", at(LONG[:-1])), "not-found")

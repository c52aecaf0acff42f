"""Hostile request bodies: large, deep, or with misleading names."""

import json
import tracemalloc
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.errors import MAX_QUOTED_LENGTH, quote_text
from perseid.registry.access.permissions import display_name
from perseid.server.http.v1.validation import MAX_WHERE, find_duplicate_member, find_lone_surrogate
from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import JSON, problem, send
from tests.server.http.v1.callers import URL

LONG_STEP = "n" * 79


def refused(server: Harness, path: str, plain: object) -> dict[str, Any]:
    """Return the problem of an invalid body."""
    return problem(send(server, "POST", path, plain, headers=basic()), "invalid-request")


# Words that are not allowed


@pytest.mark.parametrize(
    "word",
    [
        "',__import__('os').getcwd(),'",
        "'," + "-" * 7_000 + "1,'",
        "'," + "(" * 190 + "1" + ")" * 190 + ",'",
        "'," + "[],'" * 2_000,
        "' * 10 ** 9 + '",
        "it's",
        'a"b',
        "a\\nb",
        "a\nb\u202ec\x00",
        "\\",
        "'",
        '"',
    ],
)
def test_invalid_enum_value_is_quoted(shared: Harness, word: str) -> None:
    found = refused(shared, "/explain", {"command": word})
    assert found["detail"] == f"Invalid body: $.command has the invalid value {quote_text(word)}"
    assert found["advice"].startswith("Use one of create, ")


@given(st.text(min_size=1, max_size=120))
def test_any_invalid_value_is_quoted(shared: Harness, word: str) -> None:
    try:
        word.encode()
    except UnicodeEncodeError:
        return
    shared.configure(api_requests=0)
    named = f"{word}-"
    found = refused(shared, "/explain", {"command": named})
    assert f"has the invalid value {quote_text(named)}" in found["detail"]
    other = refused(shared, "/namespaces", {"prefix": "96", "case": named})
    assert (f"has the invalid value {quote_text(named)}" in other["detail"]) or len(named) > MAX_QUOTED_LENGTH - 2


def test_long_value_is_truncated_between_characters(shared: Harness) -> None:
    detail = refused(shared, "/namespaces", {"prefix": "96", "case": "\u202e" * 5_000})["detail"]
    assert "\\u202e" * MAX_QUOTED_LENGTH + "…'" in detail
    assert "\\u202e" * (MAX_QUOTED_LENGTH + 1) not in detail


# Names of members


def test_field_name_like_a_decoder_message_is_a_field(shared: Harness) -> None:
    """A path made up by a client is not followed: this one would take hours."""
    for name in (f"x` - at `${'[' * 300_000}", f"x` - at `${'.a' * 300_000}", "x` - at `$.prefix`"):
        found = refused(shared, "/mint", {"prefix": "12345", name: 1})
        assert found["where"] == f"$.{display_name(name)}"
        assert len(found["detail"]) < MAX_WHERE


@pytest.mark.parametrize("name", ["a\u202eb", "a\nb", "\x1b[2J", "n" * 5_000])
def test_untrusted_field_names_are_escaped(shared: Harness, name: str) -> None:
    member = json.dumps(name)
    twice = f'{{"prefix":"12345",{member}:1,{member}:2}}'
    for found in (
        refused(shared, "/mint", {"prefix": "12345", name: 1}),
        problem(shared.post("/api/v1/mint", twice, headers={"Content-Type": JSON}), "invalid-request"),
        problem(shared.get(f"/api/v1/names/parse?{quote(name)}=1"), "invalid-request"),
        problem(shared.get(f"/api/v1/names/parse?{quote(name)}=%zz"), "invalid-request"),
    ):
        assert found["where"].endswith(quote_text(name))
        for said in (found["where"], found["detail"]):
            assert said.isprintable()
            assert len(said) < MAX_WHERE


def test_advice_lists_fields_of_the_matching_type(shared: Harness) -> None:
    found = refused(shared, "/explain", {"command": "delete", "handle": "12345/n0", "x": 1})
    assert (found["where"], found["advice"]) == ("$.x", "Use one of command, handle")
    found = refused(shared, "/explain", {"command": "remove", "handle": "12345/n0", "values": []})
    assert found["advice"] == "Use one of command, handle, indexes"


# Members that stand twice, in bodies of very many things


def inside(text: str) -> bytes:
    """Something at the end of a long way."""
    return (f'{{"{LONG_STEP}":' * 4 + text + "}" * 4).encode()


@pytest.mark.parametrize("item", ["0", "{}", "[]", '""'])
def test_search_for_duplicates_uses_little_memory(item: str) -> None:
    """The way to each thing would take a hundred times the room of the thing."""
    many = ",".join([item] * 20_000)
    bodies = (
        (find_duplicate_member, inside(f'[{many},{{"x":1,"x":2}}]')),
        (find_lone_surrogate, inside(f'[{many},"\\ud800"]')),
    )
    for look, body in bodies:
        tracemalloc.start()
        try:
            found = look(body)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert f".{LONG_STEP}" * 4 + "[20000]" in str(found)
        assert most < 5_000_000


def test_first_outermost_duplicate_is_reported() -> None:
    inner = '{"x":1,"x":1}'
    assert find_duplicate_member(f'{{"a":[1,{{"b":{inner}}},{inner}]}}'.encode()) == ("$.a[1].b.x", "x")
    assert find_duplicate_member(f'{{"a":{inner},"b":{inner},"a":1}}'.encode()) == ("$.a", "a")
    assert find_duplicate_member(f"[[],[[]],{{}},{inner}]".encode()) == ("$[3].x", "x")
    assert find_lone_surrogate(b'["x",{"a":["y"]},[],"\\ud800"]') == "$[3]"


@pytest.mark.parametrize("depth", [100, 900, 1_000, 1_100, 5_000, 100_000])
def test_deep_nesting_is_accepted_or_refused(shared: Harness, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    for body in (
        f'{{"prefix":"12345","x":{deep}}}',
        f'{{"handle":"12345/D","description":"d","schema":{deep}}}',
        f'{{"handle":"12345/D","description":"\\ud800","schema":{deep}}}',
    ):
        path = "/mint" if "prefix" in body else "/types"
        answer = shared.ask("POST", f"/api/v1{path}", body, headers={"Content-Type": JSON})
        assert answer.status in (400, 401, 422), answer


def test_unknown_fields_of_values_are_located(shared: Harness) -> None:
    found = refused(shared, "/explain", {"command": "add", "handle": "1/2", "values": [{**URL, "\u202e": 1}]})
    assert found["where"] == f"$.values[0].{quote_text(chr(0x202E))}"

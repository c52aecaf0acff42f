"""Conventions of the API: methods, response formats, CORS and errors."""

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.errors import ClockError, OutcomeUnknown, ReadOnlyStore, StorageFull, StoreUnavailable, TooBusy
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.minting import RetryLater
from perseid.registry.commands.records import Create
from perseid.registry.registry import Registry
from perseid.registry.results import CounterClosed
from perseid.server.http.messages import Request
from perseid.server.http.responses import encode_json, sanitize_callback
from perseid.server.native.decisions import Busy
from tests.server.http.contexts import Harness, basic, header_of, in_session, json_of
from tests.server.installations import ADMINISTRATOR, OPERATOR, PREFIX

N0 = f"/api/handles/{PREFIX}/n0"
KNOWN = ("GET", "HEAD", "POST", "PUT", "DELETE", "TRACE")

METHODS = {
    N0: "GET, HEAD, POST, PUT, DELETE, OPTIONS",
    "/api/handles": "GET, HEAD, POST, PUT, DELETE, OPTIONS",
    "/api/prefixes": "GET, HEAD, POST, DELETE, OPTIONS",
    "/api/prefixes/": "GET, HEAD, POST, DELETE, OPTIONS",
    "/api/prefixes/1": "POST, DELETE, OPTIONS",
    "/api/site": "GET, HEAD, OPTIONS",
    "/api/verifications/300:12345/x": "GET, HEAD, POST, OPTIONS",
    "/api/sessions": "POST, OPTIONS",
    "/api/sessions/this": "GET, HEAD, POST, PUT, DELETE, OPTIONS",
    "/api": "GET, HEAD, OPTIONS",
    "/api/nope": "OPTIONS",
    "/api//handles/12345/n0": "OPTIONS",
    f"/{PREFIX}/n0": "GET, HEAD, POST, OPTIONS",
    "/": "GET, HEAD, POST, OPTIONS",
    "/healthz": "GET, HEAD, OPTIONS",
    "/hrls/ping": "GET, HEAD, OPTIONS",
}


# Methods


def allowed(text: str | None) -> set[str]:
    return set((text or "").split(", "))


@pytest.mark.parametrize("target", METHODS)
def test_options_lists_methods(shared: Harness, target: str) -> None:
    answer = shared.ask("OPTIONS", target)
    assert (answer.status, answer.body) == (200, b"")
    assert allowed(header_of(answer, "Allow")) == allowed(METHODS[target])


@pytest.mark.parametrize("target", METHODS)
def test_unsupported_method_is_405_with_allow(shared: Harness, target: str) -> None:
    for method in set(KNOWN) - allowed(METHODS[target]):
        answer = shared.ask(method, target)
        told = "GET" if method == "HEAD" else method
        if METHODS[target] == "OPTIONS":
            assert answer.status == 404
            assert json_of(answer)["message"] == f"Unknown HTTP API endpoint {told} {target}"
            continue
        assert answer.status == 405, method
        assert allowed(header_of(answer, "Allow")) == allowed(METHODS[target])
        if target.startswith("/api"):
            assert json_of(answer) == {
                "responseCode": 4,
                "message": f"Unknown HTTP API endpoint {told} {target}",
            }


@pytest.mark.parametrize("method", ["PATCH", "get", "BREW", "CONNECT", "PROPFIND", "GET\x00", "X" * 500])
@pytest.mark.parametrize("target", METHODS)
def test_unknown_method_is_501(shared: Harness, method: str, target: str) -> None:
    answer = shared.ask(method, target)
    assert answer.status == 501
    if target.startswith("/api"):
        assert json_of(answer)["responseCode"] == 4
        assert json_of(answer)["message"].startswith("Unknown method ")
        assert len(answer.body) < 200


@pytest.mark.parametrize(
    "target", ["/api/nope", "/api/resolve/12345/n0", "/api/12345/n0", "/api/", "/api//", "/api/handlesx"]
)
def test_unknown_path_is_404(shared: Harness, target: str) -> None:
    answer = shared.get(target)
    plain = {"responseCode": 4, "message": f"Unknown HTTP API endpoint GET {target}"}
    if target == "/api/":
        assert answer.status == 200
    else:
        assert (answer.status, json_of(answer)) == (404, plain)


# Response formats


def test_json_is_compact_or_pretty(shared: Harness) -> None:
    assert shared.get(f"{N0}?index=1").body.startswith(
        b'{"responseCode":1,"handle":"12345/n0","values":[{"index":1,"type":'
    )
    for flag in ("pretty", "pretty=true", "pretty=YES"):
        assert shared.get(f"{N0}?index=1&{flag}").body.startswith(b'{\n  "responseCode": 1,\n  "handle": "12345/n0",\n')
    assert shared.get(f"{N0}?index=1&pretty=1").body.startswith(b'{"')


def test_characters_are_not_escaped(server: Harness) -> None:
    text = "<>&'= ü日本 \u2028 \u2029 \u0001 \x7f \"\\"
    server.registry.do(Create(Handle.parse(f"{PREFIX}/x"), (Value.text(1, "X", "dummy"),)), OPERATOR, "cli")
    server.put(f"/api/handles/{PREFIX}/x?index=1", [{"index": 1, "type": text, "data": "x"}], headers=basic())
    body = server.get(f"/api/handles/{PREFIX}/x?index=1").body
    assert json.loads(body)["values"][0]["type"] == text
    assert "<>&'= ü日本 \\u2028 \\u2029".encode() in body


@given(st.recursive(st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.text(), st.lists, max_leaves=5))
def test_json_is_one_line_of_script(plain: Any) -> None:
    octets = encode_json({"x": plain})
    assert json.loads(octets) == {"x": plain}
    assert not set(octets.decode()) & set("\n\r\u2028\u2029")
    assert json.loads(encode_json({"x": plain}, pretty=True)) == {"x": plain}


def test_jsonp_wraps_response(shared: Harness) -> None:
    for target in (N0, f"{N0}x", "/api/site", "/api/nope", "/api/prefixes/1"):
        plain, called = shared.get(target), shared.get(f"{target}?callback=a.b")
        assert called.status == plain.status
        assert called.body == b"a_b(" + plain.body.replace(b"?callback=a.b", b"") + b");"
        assert header_of(called, "Content-Type") == "application/javascript;charset=utf-8"
        assert header_of(called, "X-Content-Type-Options") == "nosniff"
    assert shared.get(f"{N0}?callback=").body.startswith(b"({")


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("f", "f"),
        ("1a.b$", "_a_b$"),
        ("$_9", "$_9"),
        ("alert(1);//", "alert_1____"),
        ("a\r\nSet-Cookie: x", "a__Set_Cookie__x"),
        ("ünï", "ünï"),
        ("a\u2028b\u2029c\u00a0d\ufeffe", "a_b_c_d_e"),
        ("</script>", "__script_"),
    ],
)
def test_callback_is_sanitized(given_name: str, name: str) -> None:
    assert sanitize_callback(given_name) == name


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_sanitized_callback_has_no_special_characters(text: str) -> None:
    name = sanitize_callback(text)
    assert len(name) == len(text)
    assert all(character.isalnum() or character in "_$" for character in name)
    assert not name[:1].isdecimal() or not name[:1].isascii()


def test_jsonp_ignores_ambient_credentials(server: Harness) -> None:
    """Any page can make a browser fetch it with a remembered password."""
    hidden = f"/api/handles/{PREFIX}/private?callback=steal"
    for answer in (server.get(hidden, headers=basic()), server.get(hidden)):
        assert b"for administrators" not in answer.body
    assert b"for administrators" in server.get(hidden, headers=in_session(server)).body
    assert server.get(f"/api/handles?prefix={PREFIX}&callback=steal", headers=basic()).status == 401


# CORS


def test_cors_allows_reads_from_any_origin(shared: Harness) -> None:
    for target in (N0, "/api/site", "/", f"/{PREFIX}/n0", "/api/nope", "/healthz"):
        for origin in ({}, {"Origin": "https://a.example"}, {"Origin": "null"}):
            answer = shared.get(target, headers=origin)
            assert header_of(answer, "Access-Control-Allow-Origin") == "*"
            assert not list(answer.values("Access-Control-Allow-Credentials"))


def test_cors_exposes_api_headers(shared: Harness) -> None:
    origin = {"Origin": "https://a.example"}
    assert header_of(shared.get(N0, headers=origin), "Access-Control-Expose-Headers") == "ETag,Link,Content-Length"
    refused = shared.put(N0, [], headers=origin)
    assert header_of(refused, "Access-Control-Expose-Headers") == "WWW-Authenticate,Content-Length"
    assert header_of(shared.get(N0), "Access-Control-Expose-Headers") is None
    assert header_of(shared.get("/", headers=origin), "Access-Control-Expose-Headers") is None


@pytest.mark.parametrize("target", [N0, "/", f"/{PREFIX}/n0", "/api/nope"])
def test_preflight(shared: Harness, target: str) -> None:
    headers = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "authorization, Content-Type,if-match",
    }
    answer = shared.ask("OPTIONS", target, headers=headers)
    assert (answer.status, answer.body) == (200, b"")
    assert header_of(answer, "Access-Control-Allow-Origin") == "*"
    assert header_of(answer, "Access-Control-Allow-Methods") == "GET,POST,HEAD,PUT,DELETE"
    assert "Authorization" in (header_of(answer, "Access-Control-Allow-Headers") or "")
    assert header_of(answer, "Access-Control-Max-Age") == "86400"
    for changed in ({"Access-Control-Request-Method": "PATCH"}, {"Access-Control-Request-Headers": "x-other"}):
        answer = shared.ask("OPTIONS", target, headers=headers | changed)
        assert answer.status == 200
        assert not [name for name, _ in answer.headers if name.startswith("Access-Control")]


def test_options_without_origin_is_not_a_preflight(shared: Harness) -> None:
    answer = shared.ask("OPTIONS", N0, headers={"Access-Control-Request-Method": "PUT"})
    assert header_of(answer, "Allow")


# Errors


def failing(server: Harness, problem: Exception) -> None:
    """Whatever needs the ledger fails; records of today come from the answers view."""

    async def fail(_work: object, _client: object) -> object:
        raise problem

    object.__setattr__(server.context, "do", fail)


def test_busy_server_sends_retry_after(server: Harness) -> None:
    for problem, seconds in (
        (Busy(), "1"),
        (TooBusy("x"), "1"),
        (StoreUnavailable("x"), "1"),
        (RetryLater(2.5, None, "wait", ""), "3"),
    ):
        failing(server, problem)
        for answer in (server.get(f"{N0}?at=1"), server.put(N0, []), server.get("/api/prefixes")):
            assert (answer.status, json_of(answer)["responseCode"]) == (503, 3)
            assert header_of(answer, "Retry-After") == seconds


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (ReadOnlyStore("x"), 503, 7),
        (StorageFull("x"), 503, 7),
        (ClockError("x"), 503, 7),
        (CounterClosed(PREFIX), 503, 7),
        (OutcomeUnknown("x"), 500, 2),
    ],
)
def test_ledger_errors_are_reported(server: Harness, problem: Exception, status: int, code: int) -> None:
    failing(server, problem)
    answer = server.put(N0, [])
    assert header_of(answer, "Retry-After") == ("60" if status == 503 else None)
    assert (answer.status, json_of(answer)["responseCode"], json_of(answer)["handle"]) == (status, code, f"{PREFIX}/n0")


def test_unexpected_error_is_reported_by_number(server: Harness, caplog: pytest.LogCaptureFixture) -> None:
    failing(server, RuntimeError("the secret is swordfish"))
    for target in (f"{N0}?at=1", "/api/prefixes", f"/{PREFIX}/n0?at=1", "/hrls/handles/?URL=x"):
        with caplog.at_level(logging.ERROR):
            answer = server.get(target)
        assert answer.status == 500
        assert b"swordfish" not in answer.body
        assert "swordfish" not in caplog.text
        reference = caplog.records[-1].getMessage().partition("reference ")[2].partition(":")[0]
        assert len(reference) == 8
        assert reference.encode() in answer.body


def test_every_exception_becomes_a_response(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(Registry, "do", broken)
    for target in (N0, "/api/prefixes"):
        answer = server.get(target, headers=basic())
        assert (answer.status, json_of(answer)["responseCode"]) == (500, 2)
    object.__setattr__(server.context, "sessions", None)
    answer = server.put(N0, [])
    assert (answer.status, json_of(answer)["responseCode"]) == (500, 2)
    assert header_of(answer, "X-Content-Type-Options") == "nosniff"


def test_invalid_requests_get_a_response(shared: Harness) -> None:
    for status, code in ((400, 4), (408, 4), (413, 4), (431, 4), (501, 4), (503, 3), (505, 4), (500, 2)):
        below = shared.service.reject(status, "a problem", b"/api/handles/x")
        assert (below.status, json_of(below)) == (status, {"responseCode": code, "message": "A problem"})
        for path in (b"", b"/", b"/x"):
            other = shared.service.reject(status, "a problem", path)
            assert (other.status, other.body) == (status, b"A problem\n")
            assert header_of(other, "Content-Type") == "text/plain;charset=utf-8"
            assert header_of(other, "X-Content-Type-Options") == "nosniff"


def test_too_many_parameters_are_refused(shared: Harness) -> None:
    answer = asyncio.run(shared.service.handle(Request("GET", N0.encode() + b"?" + b"a&" * 20_000)))
    assert (answer.status, json_of(answer)["responseCode"]) == (400, 4)


def test_referral_to_another_service(server: Harness) -> None:
    delegate = Value(5, "HS_SERV.PREFIX", b"0.NA/other")
    owner = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())
    server.registry.do(Create(Handle.parse("0.NA/777"), (delegate, owner)), OPERATOR, "cli")
    answer = server.get("/api/handles/0.NA/777.8")
    plain = json_of(answer)
    assert (answer.status, plain["responseCode"], plain["handle"]) == (300, 303, "0.NA/777.8")
    assert [(value["index"], value["type"]) for value in plain["values"]] == [(5, "HS_SERV.PREFIX")]
    answer = server.get("/api/handles/0.NA/777.8?doNotRefer")
    assert (answer.status, json_of(answer)["responseCode"]) == (404, 100)

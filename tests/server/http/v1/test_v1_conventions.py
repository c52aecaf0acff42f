"""Conventions of all routes: paths, methods, caching, bodies, problems, authentication, rate limit, idempotency."""

import gzip
import hashlib
import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from perseid.ledger.errors import ClockError, StorageFull
from perseid.records.record import ValueRef
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.results import CounterClosed
from perseid.schema.problems import PROBLEM_TYPES
from perseid.server.http.messages import Request
from perseid.server.http.v1 import application
from perseid.server.native.decisions import Busy
from tests.server.http.contexts import STRANGER, Harness, basic, header_of, in_session
from tests.server.http.v1.apis import JSON, got, problem, send
from tests.server.http.v1.callers import with_token
from tests.server.installations import ADMINISTRATOR

TYPE = {"handle": "12345/SCALE", "description": "A map's scale", "pattern": "1:[1-9][0-9]*"}


# Paths and methods


@pytest.mark.parametrize("path", ["", "/"])
def test_base_path_links_to_the_documentation(shared: Harness, path: str) -> None:
    found = got(send(shared, "GET", path))
    for each in ("description", "pages", "problems", "resolver"):
        own = found[each].removeprefix("https://hdl.example.org")
        assert shared.get(own).status == 200


@pytest.mark.parametrize(
    "path", ["/nothing", "/names", "/names/parse/x", "//names/rules", "/names//rules", "/NAMES/rules"]
)
def test_unknown_path_is_a_problem(shared: Harness, path: str) -> None:
    found = problem(send(shared, "GET", path), "no-such-path")
    assert found["status"] == 404
    assert "/openapi.json" in found["advice"]


@pytest.mark.parametrize(("path", "meant"), [("/search?q=x", "find"), ("/handle/x", "handles"), ("/token", "tokens")])
def test_path_of_other_services_gets_advice(shared: Harness, path: str, meant: str) -> None:
    found = problem(send(shared, "GET", path), "no-such-path")
    assert found["advice"].startswith(f"Did you mean /api/v1/{meant}? ")


def test_unencoded_slash_gets_advice(shared: Harness) -> None:
    found = problem(send(shared, "GET", "/handles/12345/n0/citation"), "no-such-path")
    assert "%2F" in found["advice"]


@pytest.mark.parametrize("path", ["/handles/%zz/citation", "/handles/12345%2F%00/citation"])
def test_invalid_escapes_are_refused(shared: Harness, path: str) -> None:
    assert problem(send(shared, "GET", path), "invalid-request")["status"] == 400


def test_path_with_invalid_utf_8_is_not_found(shared: Harness) -> None:
    assert problem(send(shared, "GET", "/handles/12345%2F%ff/citation"), "no-such-path")["status"] == 404


def test_unsupported_method_is_refused(shared: Harness) -> None:
    answer = send(shared, "DELETE", "/types")
    found = problem(answer, "method-not-allowed")
    assert (answer.status, header_of(answer, "Allow")) == (405, "GET, HEAD, POST, OPTIONS")
    assert found["advice"] == "Use GET, HEAD, POST"


def test_unknown_method_is_refused(shared: Harness) -> None:
    answer = send(shared, "BREW", "/types")
    assert problem(answer, "method-not-allowed")["status"] == 405
    assert header_of(answer, "Allow") == "GET, HEAD, POST, OPTIONS"


def test_options_lists_the_methods(shared: Harness) -> None:
    answer = send(shared, "OPTIONS", "/explain")
    assert (answer.status, header_of(answer, "Allow"), answer.body) == (204, "POST, OPTIONS", b"")


def test_head_is_get_without_a_body(shared: Harness) -> None:
    head, get = send(shared, "HEAD", "/names/rules"), send(shared, "GET", "/names/rules")
    kept = [(name, value) for name, value in get.headers if not name.startswith("RateLimit")]
    assert [(name, value) for name, value in head.headers if not name.startswith("RateLimit")] == kept


def test_unchanged_response_is_not_modified(shared: Harness) -> None:
    first = send(shared, "GET", "/handles/12345%2Fn0/citation")
    tag = header_of(first, "ETag") or ""
    again = send(shared, "GET", "/handles/12345%2Fn0/citation", headers={"If-None-Match": tag})
    assert (again.status, again.body, header_of(again, "ETag")) == (304, b"", tag)


def test_cache_control_of_responses(shared: Harness) -> None:
    assert header_of(send(shared, "GET", "/names/rules"), "Cache-Control") == "public, max-age=86400"
    assert header_of(send(shared, "GET", "/handles/12345%2Fn0/citation"), "Cache-Control") == "no-cache"
    mine = send(shared, "GET", "/handles/12345%2Fn0/citation", headers=basic())
    assert header_of(mine, "Cache-Control") == "private, no-cache"
    assert header_of(mine, "Vary") == "Authorization"
    assert header_of(
        send(shared, "POST", "/explain", {"command": "delete", "handle": "12345/n0"}), "Cache-Control"
    ) == ("no-store")


# What a request says


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=", "limit"),
        ("limit=1&limit=2", "limit"),
        ("Limit=1", "Limit"),
        ("=", ""),
        ("%00=1", "'\\x00'"),
    ],
)
def test_invalid_parameters_are_refused(shared: Harness, query: str, where: str) -> None:
    found = problem(send(shared, "GET", f"/types?{query}", headers=basic()), "invalid-request")
    assert found.get("where", "") == where
    if where == "Limit":
        assert "limit, cursor, prefix" in found["advice"]


def test_missing_parameter_is_refused(shared: Harness) -> None:
    found = problem(send(shared, "GET", "/names/parse"), "invalid-request")
    assert found["where"] == "text"
    assert found["detail"] == "Parameter text is required"
    assert "in any form" in found["advice"]


ADMIN = {"type": "HS_ADMIN", "data": {"format": "admin", "value": {}}}


@pytest.mark.parametrize(
    ("plain", "where"),
    [
        ({"command": "delete"}, "$.handle"),
        ({"command": "dance", "handle": "12345/x"}, "$.command"),
        ({"command": "delete", "handle": "12345/x", "why": "x"}, "$.why"),
        ({"command": "add", "handle": "12345/x", "values": [{"type": "URL", "data": 1}]}, "$.values[0].data"),
        (
            {"command": "add", "handle": "12345/x", "values": [{"type": "URL", "data": "x", "index": 0}]},
            "$.values[0].index",
        ),
        ({"command": "add", "handle": "12345/x", "values": [ADMIN]}, "$.values[0]"),
        ([], "$"),
        ("delete", "$"),
    ],
)
def test_invalid_bodies_are_refused_with_their_location(shared: Harness, plain: object, where: str) -> None:
    found = problem(send(shared, "POST", "/explain", plain), "invalid-request")
    assert (found["status"], found["where"]) == (400, where)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"command": "delete", "handle": "12345/x"}}',
        b"\xff",
        b'{"command": "delete", "handle": "12345/\xff"}',
        b'{"command": "delete", "handle": "\\ud800/x"}',
        b"[" * 100_000,
        b'{"command": "add", "handle": "12345/x", "values": [{"type": "X", "data": {"format": "admin", "value": '
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}}]}",
    ],
)
def test_invalid_json_is_refused(shared: Harness, body: bytes) -> None:
    answer = shared.ask("POST", "/api/v1/explain", body, headers={"Content-Type": JSON})
    assert problem(answer, "invalid-request")["status"] == 400


@pytest.mark.parametrize("type_", ["", "text/json", "application/x-www-form-urlencoded", "application/json-patch+json"])
def test_other_media_types_are_refused(shared: Harness, type_: str) -> None:
    headers = {"Content-Type": type_} if type_ else {}
    answer = shared.ask("POST", "/api/v1/explain", b"{}", headers=headers)
    refused = problem(answer, "unsupported-media-type")
    assert (refused["status"], refused["advice"]) == (415, "Send Content-Type: application/json")


def test_compressed_body_is_refused(shared: Harness) -> None:
    headers = {"Content-Type": JSON, "Content-Encoding": "gzip"}
    answer = shared.ask("POST", "/api/v1/explain", gzip.compress(b"{}"), headers=headers)
    refused = problem(answer, "unsupported-media-type")
    assert (refused["status"], refused["advice"]) == (415, "Send the body without Content-Encoding")


def test_unexpected_body_is_refused(shared: Harness) -> None:
    assert problem(shared.ask("GET", "/api/v1/types", b"{}", headers={"Content-Type": JSON}), "invalid-request")


def test_unparsable_request_is_a_problem(shared: Harness) -> None:
    for status, slug in (
        (431, "head-too-large"),
        (413, "body-too-large"),
        (400, "invalid-request"),
        (505, "not-supported"),
    ):
        answer = shared.service.reject(status, "it cannot be", b"/api/v1/types")
        assert problem(answer, slug)["status"] == answer.status == status


# What goes wrong inside


def test_internal_error_has_a_reference(server: Harness, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: object) -> object:
        raise KeyError("a secret")

    object.__setattr__(server.context, "do", broken)
    found = problem(send(server, "GET", "/handles/12345%2Fn0/citation"), "internal-error")
    assert found["status"] == 500
    assert found["instance"] in caplog.text
    assert "a secret" not in caplog.text + json.dumps(found)


@pytest.mark.parametrize(
    ("error", "slug", "seconds"),
    [
        (Busy(), "busy", "1"),
        (StorageFull("a secret"), "storage-full", "60"),
        (ClockError("a secret"), "wrong-clock", "60"),
        (CounterClosed("12345"), "counter-closed", "60"),
    ],
)
def test_unavailable_server_sends_retry_after(server: Harness, error: Exception, slug: str, seconds: str) -> None:
    async def fail(*_: object) -> object:
        raise error

    object.__setattr__(server.context, "do", fail)
    answer = send(server, "GET", "/handles/12345%2Fn0/citation")
    found = problem(answer, slug)
    assert (answer.status, found["status"], header_of(answer, "Retry-After")) == (503, 503, seconds)
    assert "a secret" not in json.dumps(found)
    assert slug == "busy" or found["advice"].startswith("Ask a server administrator to ")


def test_only_a_refused_change_says_that_nothing_was_changed(server: Harness) -> None:
    async def fail(*_: object) -> object:
        raise StorageFull("a secret")

    object.__setattr__(server.context, "do", fail)
    read = problem(send(server, "GET", "/handles/12345%2Fn0/citation"), "storage-full")
    assert read["detail"] == "The disk of the server is full"
    changed = problem(send(server, "DELETE", "/handles/12345%2Fn0", headers=basic()), "storage-full")
    assert changed["detail"] == "The disk of the server is full; nothing was changed"


# Who asks


def test_authentication_required_offers_all_methods(shared: Harness) -> None:
    answer = send(shared, "POST", "/types", TYPE)
    found = problem(answer, "authentication-required")
    assert (answer.status, found["code"]) == (401, 402)
    schemes = [value.split()[0] for value in answer.values("WWW-Authenticate")]
    assert schemes == ["Bearer", "Basic", "Handle"]


def test_wrong_credentials_are_refused_on_public_routes(shared: Harness) -> None:
    answer = send(shared, "GET", "/names/rules", headers=basic(secret="wrong"))
    assert problem(answer, "authentication-failed")["status"] == 401


def test_credentials_over_plain_http_are_refused(shared: Harness) -> None:
    answer = send(shared, "POST", "/types", TYPE, headers=basic(), secure=False)
    found = problem(answer, "https-required")
    assert answer.status == 403
    assert "HTTPS" in found["advice"]
    assert not list(answer.values("WWW-Authenticate"))
    # Otherwise a search would find nothing that only the caller can list.
    answer = send(shared, "GET", "/find?prefix=12345", headers=basic(), secure=False)
    assert problem(answer, "https-required")["detail"] == "The credentials were not read"


def test_missing_permission_is_refused(shared: Harness) -> None:
    other = {**TYPE, "handle": "54321/x"}
    found = problem(send(shared, "POST", "/types", other, headers=basic()), "prefix-not-hosted")
    assert (found["status"], found["code"]) == (404, 301)


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)
def test_cross_site_credentials_change_nothing(shared: Harness, headers: dict[str, str]) -> None:
    answer = send(shared, "POST", "/types", TYPE, headers={**basic(), **headers})
    assert problem(answer, "permission-denied")["status"] == 403
    claimed = send(shared, "POST", "/types", TYPE, headers={**basic(), **headers, "Idempotency-Key": "a"})
    assert problem(claimed, "permission-denied")["status"] == 403
    space = {"prefix": "99"}
    several = send(shared, "POST", "/namespaces", space, headers={**basic(), **headers, "Idempotency-Key": "a"})
    assert problem(several, "permission-denied")["status"] == 403


def test_replaced_key_ends_the_session(server: Harness) -> None:
    session = in_session(server)
    assert send(server, "GET", "/handles/12345%2Fn0/citation", headers=session).status == 200
    key = {"index": 300, "type": "HS_SECKEY", "data": "another", "permissions": "1100"}
    changed = server.put("/api/handles/0.NA/12345?index=300&overwrite=true", [key], headers=basic())
    assert changed.status == 200, changed
    answer = send(server, "GET", "/handles/12345%2Fn0/citation", headers=session)
    assert problem(answer, "authentication-failed")["status"] == 401


# How often


def test_responses_have_rate_limit_headers(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    server.configure(api_requests_anonymous=3)
    monkeypatch.setattr(application, "monotonic", lambda: 1_000.0)
    times = count(server.context.time(), 3_600.0)  # the wall clock does not count
    server.service.server = replace(server.context, time=lambda: next(times))
    left = []
    for _ in range(3):
        answer = send(server, "GET", "/names/rules")
        assert header_of(answer, "RateLimit-Policy") == '"requests";q=3;w=60'
        left.append(header_of(answer, "RateLimit"))
    assert [text.split(";")[1] for text in left if text] == ["r=2", "r=1", "r=0"]
    answer = send(server, "GET", "/names/rules")
    assert problem(answer, "too-many-requests")["status"] == 429
    assert header_of(answer, "Retry-After") == "20"
    assert header_of(answer, "RateLimit") == '"requests";r=0;t=20'


def test_rate_limit_is_per_identity_and_network(server: Harness) -> None:
    server.configure(api_requests_anonymous=1, api_requests=1)
    assert send(server, "GET", "/names/rules").status == 200
    assert send(server, "GET", "/names/rules").status == 429
    assert send(server, "GET", "/names/rules", host="192.0.2.77").status == 200
    assert send(server, "GET", "/names/rules", host="2001:db8::1").status == 200
    assert send(server, "GET", "/names/rules", host="2001:db8::2").status == 429  # of the same network
    assert send(server, "GET", "/names/rules", headers=basic()).status == 200
    assert send(server, "GET", "/names/rules", headers=basic(), host="192.0.2.78").status == 429


def test_tokens_share_the_rate_limit_of_their_issuer(server: Harness) -> None:
    server.configure(api_requests=4)
    tokens = [with_token(server, "read") for _ in range(3)]
    spelt = basic(ADMINISTRATOR.lower())
    for headers in (basic(), tokens[0], tokens[1], spelt):
        assert send(server, "GET", "/names/rules", headers=headers).status == 200
    for headers in (basic(), *tokens, spelt):
        assert send(server, "GET", "/names/rules", headers=headers).status == 429


def test_zero_means_no_rate_limit(server: Harness) -> None:
    server.configure(api_requests_anonymous=0)
    answer = send(server, "GET", "/names/rules")
    assert header_of(answer, "RateLimit") is None
    assert answer.status == 200


# Once


def keyed(key: str, **more: str) -> dict[str, str]:
    return {**basic(), "Idempotency-Key": key, **more}


def test_idempotent_request_is_executed_once(server: Harness) -> None:
    first = send(server, "POST", "/types", TYPE, headers=keyed("k1"))
    made = got(first, 201)
    again = send(server, "POST", "/types", TYPE, headers=keyed('"k1"'))
    assert got(again, 201) == made
    assert header_of(first, "Idempotency-Replayed") is None
    assert header_of(again, "Idempotency-Replayed") == "true"
    assert problem(send(server, "POST", "/types", TYPE, headers=keyed("k2")), "already-exists")["status"] == 409


def test_idempotent_and_conditional_changes_need_no_thread(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    new = {"handle": "12345/keyed", "values": [{"type": "URL", "data": "https://example.org/"}]}
    with monkeypatch.context() as patch:
        patch.setattr(server.registry, "do", lambda *_, **__: pytest.fail("it waits in a thread"))
        made = send(server, "POST", "/handles", new, headers=keyed("k1"))
        got(made, 201)
        again = send(server, "POST", "/handles", new, headers=keyed("k1"))
        assert (again.body, header_of(again, "Idempotency-Replayed")) == (made.body, "true")
        tag = {"If-Match": header_of(made, "ETag") or ""}
        path, values = "/handles/12345%2Fkeyed", {"values": new["values"]}
        got(send(server, "PUT", path, values, headers={**basic(), **tag}))


def test_reused_key_is_refused(server: Harness) -> None:
    got(send(server, "POST", "/types", TYPE, headers=keyed("k1")), 201)
    other = {**TYPE, "handle": "12345/SHEET"}
    assert (
        problem(send(server, "POST", "/types", other, headers=keyed("k1")), "idempotency-key-reused")["status"] == 422
    )


def test_refused_request_releases_its_key(server: Harness) -> None:
    wrong = {**TYPE, "pattern": "("}
    assert problem(send(server, "POST", "/types", wrong, headers=keyed("k1")), "invalid-value")["status"] == 422
    got(send(server, "POST", "/types", TYPE, headers=keyed("k1")), 201)


def test_request_in_progress_is_not_repeated(server: Harness) -> None:
    index, _, handle = ADMINISTRATOR.partition(":")
    identity = KeyIdentity(ValueRef(int(index), handle), Proof.SECRET_KEY)
    with server.context.api.keys(server.registry).claim(identity, b"k1", hashlib.sha256().digest()):
        for path, plain in (("/types", TYPE), ("/namespaces", {"prefix": "99"})):
            answer = send(server, "POST", path, plain, headers=keyed("k1"))
            assert problem(answer, "in-progress")["status"] == 409
            assert header_of(answer, "Retry-After") == "1"


def test_namespace_is_created_once(server: Harness) -> None:
    space = {"prefix": "99", "profile": "pilin", "purpose": "Maps"}
    made = got(send(server, "POST", "/namespaces", space, headers=keyed("k1")), 201)
    assert made["creator"].startswith("99/")
    again = send(server, "POST", "/namespaces", space, headers=keyed("k1"))
    assert got(again, 201) == made
    assert header_of(again, "Idempotency-Replayed") == "true"
    other = send(server, "POST", "/namespaces", {"prefix": "98"}, headers=keyed("k1"))
    assert problem(other, "idempotency-key-reused")["status"] == 422


@pytest.mark.parametrize(
    ("key", "slug"), [("", "invalid-request"), ('""', "invalid-request"), ("x" * 256, "invalid-value")]
)
def test_invalid_idempotency_keys_are_refused(server: Harness, key: str, slug: str) -> None:
    problem(send(server, "POST", "/types", TYPE, headers=keyed(key)), slug)


def test_two_idempotency_keys_are_refused(server: Harness) -> None:
    headers: dict[str, Any] = {**basic(), "Idempotency-Key": ["a", "b"]}
    found = problem(send(server, "POST", "/types", TYPE, headers=headers), "invalid-request")
    assert found["where"] == "Idempotency-Key"


def test_idempotency_key_belongs_to_an_identity(server: Harness) -> None:
    answer = send(server, "POST", "/types", TYPE, headers={"Idempotency-Key": "k"})
    assert problem(answer, "authentication-required")["status"] == 401


def test_cors_allows_the_idempotency_key(shared: Harness) -> None:
    asked = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    answer = send(shared, "OPTIONS", "/types", headers=asked)
    assert "Idempotency-Key" in (header_of(answer, "Access-Control-Allow-Headers") or "")


def test_every_problem_type_is_documented(shared: Harness) -> None:
    page = shared.get("/docs/problems").body.decode()
    for slug, sort in PROBLEM_TYPES.items():
        assert f'id="{slug}"' in page
        assert sort.about
        assert 400 <= sort.status < 600


def test_log_names_authenticated_callers_only(shared: Harness) -> None:
    assert send(shared, "GET", "/names/rules").identity == ""
    answer = send(shared, "GET", "/handles/12345%2Fn0/citation", headers=basic())
    assert (answer.identity, answer.name) == (ADMINISTRATOR, "12345/n0")
    assert Request("GET", b"/").client.host != STRANGER

"""Citations and QR codes."""

import json
from dataclasses import replace
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Unpublish
from perseid.registry.commands.records import Create
from perseid.registry.queries.citation import FORMATTERS
from perseid.schema.queries import MAX_RESOLVER
from perseid.server.http.messages import Client
from perseid.server.http.v1.routes.queries import DRAW_SECONDS, DRAW_SECONDS_PER_BYTE, MAX_URL_SIZE
from perseid.server.native.work import Work
from tests.cli.codes import decoded, png_rows
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.installations import OPERATOR


@pytest.mark.parametrize("style", FORMATTERS)
def test_every_style(shared: Harness, style: str) -> None:
    found = got(send(shared, "GET", f"/handles/12345%2Fn0/citation?style={style}"))
    assert found["style"] == style
    assert found["hdl"] == "hdl:12345/n0"
    assert found["http"] == "https://hdl.example.org/12345/n0"
    assert found["title"] == "the thing with the number 0"
    assert "12345/n0" in found["citation"]


def test_citation_with_version_and_resolver(shared: Harness) -> None:
    now = got(send(shared, "GET", "/handles/12345%2Fn0/citation?resolver=https://hdl.handle.net"))
    assert now["http"] == "https://hdl.handle.net/12345/n0"
    assert "version" not in now
    fixed = got(send(shared, "GET", "/handles/12345%2Fn0/citation?at=20"))
    assert fixed["version"]["seq"] <= 20
    assert f"as of entry {fixed['version']['seq']}" in fixed["citation"]


def test_citation_without_public_url_has_the_hdl_form(server: Harness) -> None:
    server.configure(public_url="")
    found = got(send(server, "GET", "/handles/12345%2Fn0/citation"))
    assert "http" not in found
    assert found["citation"].endswith("hdl:12345/n0")
    assert decoded_png(send(server, "GET", "/handles/12345%2Fn0/qr?format=png").body) == "hdl:12345/n0"
    refused = server.get("/api/v1/handles/12345%2Fn0/citation?style=http")
    assert (refused.status, json.loads(refused.body)["rule"]) == (422, "U4")
    assert "?resolver=" in json.loads(refused.body)["advice"]


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ("style=mla", "invalid-request"),
        ("resolver=nowhere", "invalid-request"),
        ("at=tomorrow", "invalid-query"),
        ("at=999999999", "invalid-query"),
        ("at=1", "not-found"),
    ],
)
def test_invalid_citation_parameters_are_refused(shared: Harness, query: str, slug: str) -> None:
    problem(send(shared, "GET", f"/handles/12345%2Fn0/citation?{query}"), slug)


def test_missing_handles_are_not_found(shared: Harness) -> None:
    assert problem(send(shared, "GET", "/handles/12345%2Fnothing/citation"), "not-found")["code"] == 100
    found = problem(send(shared, "GET", "/handles/54321%2Fx/citation"), "prefix-not-hosted")
    assert "the service that hosts it" in found["advice"]
    assert problem(send(shared, "GET", "/handles/12345/citation"), "invalid-name")["rule"] == "H1"


def decoded_png(octets: bytes) -> str:
    return decoded(png_rows(octets))


def test_qr_code_encodes_the_url(shared: Harness) -> None:
    answer = send(shared, "GET", "/handles/12345%2Fn0/qr?format=png&scale=4")
    assert header_of(answer, "Content-Type") == "image/png"
    assert decoded_png(answer.body) == "https://hdl.example.org/12345/n0"
    own = quote("http://example.org/hdl", safe="")
    assert decoded_png(send(shared, "GET", f"/handles/12345%2Fn0/qr?format=png&resolver={own}").body) == (
        "http://example.org/hdl/12345/n0"
    )


def test_svg_has_no_active_content(shared: Harness) -> None:
    answer = send(shared, "GET", "/handles/12345%2Fn0/qr")
    assert header_of(answer, "Content-Type") == "image/svg+xml"
    assert b"<svg" in answer.body
    assert b"<script" not in answer.body
    assert "default-src 'none'" in (header_of(answer, "Content-Security-Policy") or "")


@pytest.mark.parametrize("scale", ["0", "21", "x"])
def test_qr_code_size_follows_the_scale(shared: Harness, scale: str) -> None:
    assert problem(send(shared, "GET", f"/handles/12345%2Fn0/qr?scale={scale}"), "invalid-request")["where"] == "scale"


def test_no_qr_code_for_a_missing_handle(shared: Harness) -> None:
    problem(send(shared, "GET", "/handles/12345%2Fnothing/qr"), "not-found")


def test_unpublished_handle_has_a_qr_code_for_administrators_only(server: Harness) -> None:
    server.registry.do(Unpublish(Handle.parse("12345/n1")), OPERATOR, "cli")
    for path in ("citation", "qr"):
        problem(send(server, "GET", f"/handles/12345%2Fn1/{path}"), "not-found")
    problem(send(server, "GET", "/handles/12345%2Fn1/citation", headers=basic()), "not-found")
    assert send(server, "GET", "/handles/12345%2Fn1/qr", headers=basic()).status == 200


def test_too_long_url_for_a_qr_code_is_refused(server: Harness) -> None:
    name = "12345/" + "é" * 1_000
    server.registry.do(Create(Handle.parse(name), (Value.text(1, "URL", "https://example.org/"),)), OPERATOR, "cli")
    found = problem(send(server, "GET", f"/handles/{quote(name, safe='')}/qr"), "invalid-query")
    assert "at most 400" in found["detail"]
    assert found["advice"] == "Use a shorter resolver URL"


def test_qr_codes_are_small_and_charged(server: Harness) -> None:
    """The largest code takes a tenth of a second, in which everybody waits."""
    prices: list[float | None] = []
    do = server.context.do

    async def paying(work: Work, client: Client) -> object:
        prices.append(work.price)
        return await do(work, client)

    server.service.server = replace(server.context, do=paying)
    name = "12345/" + "x" * (MAX_URL_SIZE - len("https://hdl.example.org/12345/"))
    for each in (name, f"{name}x"):
        record = Create(Handle.parse(each), (Value.text(1, "URL", "https://example.org/"),))
        server.registry.do(record, OPERATOR, "cli")
    assert send(server, "GET", "/handles/12345%2Fn0/qr").status == 200
    small = prices[-1] or 0
    largest = send(server, "GET", f"/handles/{quote(name, safe='')}/qr?format=png&scale=20")
    assert decoded_png(largest.body).endswith(name)
    assert prices[-1] == pytest.approx(DRAW_SECONDS + MAX_URL_SIZE * DRAW_SECONDS_PER_BYTE)
    assert DRAW_SECONDS < small < DRAW_SECONDS + MAX_URL_SIZE * DRAW_SECONDS_PER_BYTE
    problem(send(server, "GET", f"/handles/{quote(name, safe='')}x/qr"), "invalid-query")
    assert prices[-1] is None  # nothing but the name was looked up
    long = "https://example.org/" + "x" * MAX_RESOLVER
    for path in ("qr", "citation"):
        assert problem(send(server, "GET", f"/handles/12345%2Fn0/{path}?resolver={long}"), "invalid-request")[
            "where"
        ] == ("resolver")

"""Native messages in HTTP requests, health checks, and HTTP settings."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.errors import ClockError, LedgerError, ReadOnlyMode, StorageFull, StoreUnavailable
from perseid.registry.installation.settings import Config
from perseid.server.http.compat import api
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Request
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, OpCode, ResponseCode
from perseid.wire.framing import MEDIA_TYPE
from perseid.wire.message import ENVELOPE_LENGTH, MAX_MESSAGE, Envelope
from perseid.wire.requests import Resolve
from tests.server.http.contexts import Harness, header_of
from tests.server.installations import PREFIX

BOTH = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
REQUEST = (
    Client(bytes)
    .request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/n1".encode()), 1_794_724_100, peer_version=CURRENT_VERSION)
    .to_bytes()
)
"""A resolution in its envelope."""


def code_in(body: bytes) -> ResponseCode:
    """The response code in the first message of a response."""
    return ResponseCode(int.from_bytes(body[ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8], "big"))


def code_of(server: Harness, octets: bytes) -> ResponseCode:
    answer = server.post("/", octets, headers=BOTH)
    assert answer.status == 200
    assert header_of(answer, "Content-Type") == MEDIA_TYPE
    assert header_of(answer, "Cache-Control") == "no-store"
    assert Envelope.from_bytes(answer.body[:ENVELOPE_LENGTH]).length == len(answer.body) - ENVELOPE_LENGTH
    return code_in(answer.body)


# Native messages


def test_message_gets_message(shared: Harness) -> None:
    for path in ("/", "/%2F", f"/{PREFIX}/n1", "/anything/..//at%20all"):
        answer = shared.post(path, REQUEST, headers=BOTH)
        assert code_in(answer.body) is ResponseCode.SUCCESS
        assert b"https://example.org/1" in answer.body
    assert shared.post("/api/handles", REQUEST, headers=BOTH).status != 200


def test_response_has_a_length(shared: Harness) -> None:
    """Deployed clients do not support chunked encoding."""
    request = Request("POST", b"/", [(name.lower(), value) for name, value in BOTH.items()], REQUEST)
    response = asyncio.run(shared.service.handle(request))
    assert (header_of(response, "Content-Type"), response.stream) == (MEDIA_TYPE, None)


@pytest.mark.parametrize(
    ("accept", "kind", "native"),
    [
        (MEDIA_TYPE, MEDIA_TYPE, True),
        (f"text/html, {MEDIA_TYPE.upper()};q=0.5", f"{MEDIA_TYPE}; charset=x", True),
        ("*/*", MEDIA_TYPE, False),
        (MEDIA_TYPE, "text/plain", False),
    ],
)
def test_both_headers_are_required(shared: Harness, accept: str, kind: str, native: bool) -> None:
    answer = shared.post("/", REQUEST, headers={"Accept": accept, "Content-Type": kind})
    assert (header_of(answer, "Content-Type") == MEDIA_TYPE) is native


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (REQUEST, ResponseCode.SUCCESS),
        (b"\r" + REQUEST, ResponseCode.SUCCESS),
        (b"\n" + REQUEST, ResponseCode.SUCCESS),
        (b"\r\n" + REQUEST, ResponseCode.PROTOCOL_ERROR),
        (REQUEST + bytes(1_000), ResponseCode.SUCCESS),
        (REQUEST[:-1], ResponseCode.PROTOCOL_ERROR),
        (REQUEST[:ENVELOPE_LENGTH], ResponseCode.PROTOCOL_ERROR),
        (REQUEST[: ENVELOPE_LENGTH - 1], ResponseCode.PROTOCOL_ERROR),
        (b"", ResponseCode.PROTOCOL_ERROR),
        (b"\r", ResponseCode.PROTOCOL_ERROR),
    ],
)
def test_bytes_around_message(shared: Harness, octets: bytes, code: ResponseCode) -> None:
    assert code_of(shared, octets) is code


@pytest.mark.parametrize("length", [0, 23, MAX_MESSAGE + 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
def test_invalid_length(shared: Harness, length: int) -> None:
    octets = REQUEST[:16] + length.to_bytes(4, "big") + REQUEST[ENVELOPE_LENGTH:]
    assert code_of(shared, octets) is ResponseCode.PROTOCOL_ERROR


@given(st.binary(max_size=300) | st.binary(max_size=60).map(lambda octets: REQUEST[:ENVELOPE_LENGTH] + octets))
def test_any_body_gets_a_response(shared: Harness, octets: bytes) -> None:
    assert code_of(shared, octets) is not ResponseCode.RESERVED


def test_response_size_is_limited(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_RESPONSE_BYTES", 100)
    answer = server.post("/", REQUEST, headers=BOTH)
    assert code_in(answer.body) is ResponseCode.ERROR
    assert answer.body.endswith(b"ask over TCP" + bytes(4))


def test_messages_are_refused_without_native_protocol(server: Harness) -> None:
    server.service.server = replace(server.context, native=None)
    assert server.post("/", REQUEST, headers=BOTH).status == 404


# Liveness and readiness


def test_not_ready_server_gives_reason(server: Harness) -> None:
    assert (server.get("/readyz").status, server.get("/readyz").body) == (200, b"ready\n")
    server.service.server = replace(server.context, ready=lambda: "stopping")
    answer = server.get("/readyz")
    assert (answer.status, answer.body) == (503, b"not ready: stopping\n")
    assert header_of(answer, "Retry-After") == "5"
    assert header_of(answer, "Cache-Control") == "no-store"
    answer = server.get("/readyz", headers={"Accept": "application/json"})
    assert (answer.status, json.loads(answer.body)) == (
        503,
        {"ready": False, "accepts_changes": False, "reason": "stopping"},
    )
    assert server.get("/healthz").status == 200


@pytest.mark.parametrize(
    ("problem", "slug"),
    [
        (StorageFull("/secret"), "storage-full"),
        (ClockError("/secret"), "wrong-clock"),
        (ReadOnlyMode("the reason"), "read-only"),
        (StoreUnavailable("/secret"), "database-unavailable"),
    ],
)
def test_server_that_refuses_changes_is_ready_and_says_so(server: Harness, problem: LedgerError, slug: str) -> None:
    as_json = {"Accept": "application/json"}
    assert json.loads(server.get("/readyz", headers=as_json).body) == {"ready": True, "accepts_changes": True}
    server.context.registry.ledger.__dict__["_write_problem"] = problem
    answer = server.get("/readyz", headers=as_json)
    assert (answer.status, json.loads(answer.body)) == (
        200,
        {"ready": True, "accepts_changes": False, "reason": slug},
    )
    assert server.get("/readyz").body == f"ready, changes are refused: {slug}\n".encode()


# Settings


def test_default_settings() -> None:
    assert HttpSettings.of(Config.parse("", {})) == HttpSettings()


def test_settings_of_http() -> None:
    text = """
    [http]
    public_url = "https://hdl.example.org/"
    resolver_forms = ["id"]
    redirect_status = 307
    schemes = ["https"]
    no_values_status = 404
    weak_digests = false
    """
    found = HttpSettings.of(Config.parse(text, {}))
    assert found == HttpSettings(
        public_url="https://hdl.example.org",
        bare=False,
        segments=("id", "hdl"),
        redirect_status=307,
        schemes=frozenset({"https"}),
        no_values_status=404,
        weak_digests=False,
    )

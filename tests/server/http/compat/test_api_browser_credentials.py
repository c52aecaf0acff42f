"""Ambient credentials of browsers do not authorize cross-site changes.

In the recorded state used here, key 300 of the prefix is an RSA key and 301 a secret.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.http.client_certificates import UID, certificate
from tests.server.http.contexts import PUBLIC_URL, Harness, basic, in_session, json_of, recorded_harness
from tests.server.native.native_servers import ADMIN, PREFIX
from tests.wire.key_material import SECRET

TARGET = f"/api/handles/{PREFIX}/new"
OWNER = {"format": "admin", "value": {"handle": ADMIN, "index": 200, "permissions": "*"}}
BODY = json.dumps(
    [{"index": 1, "type": "URL", "data": "https://example.org/"}, {"index": 100, "type": "HS_ADMIN", "data": OWNER}]
)
JSON = {"Content-Type": "application/json"}
PASSWORD: dict[str, Any] = {"headers": basic(f"301:{ADMIN}", SECRET)}
CERTIFICATE: dict[str, Any] = {"headers": {}, "certificate": certificate((UID, f"300:{ADMIN}"))}
AMBIENT = pytest.mark.parametrize("identity", [PASSWORD, CERTIFICATE], ids=["password", "certificate"])

FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": f"http://{PUBLIC_URL.partition('//')[2]}"},
    {"Origin": f"{PUBLIC_URL}.evil.example"},
    {"Origin": "https://evil.example", "Host": "hdl.example.org"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "Cross-Site", "Origin": PUBLIC_URL},
    {"Sec-Fetch-Site": "same-site"},
]
OWN: list[dict[str, str]] = [
    {},
    {"Origin": PUBLIC_URL},
    {"Origin": PUBLIC_URL.upper()},
    {"Origin": "https://other.example:8000", "Host": "other.example:8000"},
    {"Sec-Fetch-Site": "same-origin", "Origin": PUBLIC_URL},
    {"Sec-Fetch-Site": "none"},
]


@pytest.fixture
def recorded() -> Iterator[Harness]:
    with recorded_harness() as made:
        yield made


def ask(
    server: Harness, identity: dict[str, Any], method: str, target: str, headers: dict[str, str], body: str = ""
) -> Any:
    return server.ask(method, target, body, **(identity | {"headers": identity["headers"] | headers}))


def refused(answer: Any) -> bool:
    return answer.status == 403 and json_of(answer)["responseCode"] == 402 and "browser" in json_of(answer)["message"]


@AMBIENT
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_cross_site_request_changes_nothing(
    recorded: Harness, identity: dict[str, Any], headers: dict[str, str]
) -> None:
    answer = ask(recorded, identity, "PUT", TARGET, JSON | headers, BODY)
    assert refused(answer)
    assert json_of(answer)["handle"] == f"{PREFIX}/new"
    assert not list(answer.values("WWW-Authenticate")), "no box for a password is opened"
    assert refused(ask(recorded, identity, "DELETE", f"/api/handles/{PREFIX}/vec-std", headers))
    assert refused(ask(recorded, identity, "DELETE", f"/api/handles/{PREFIX}/vec-std?index=1", headers))
    assert refused(ask(recorded, identity, "POST", "/api/prefixes/777", headers))
    assert refused(ask(recorded, identity, "POST", "/api/prefixes/777", JSON | headers, "{}"))
    assert refused(ask(recorded, identity, "DELETE", f"/api/prefixes/{PREFIX}", headers))
    assert recorded.get(TARGET).status == 404
    assert recorded.get(f"/api/handles/{PREFIX}/vec-std").status == 200


@AMBIENT
@pytest.mark.parametrize("headers", OWN, ids=str)
def test_programs_and_own_pages_can_change(
    recorded: Harness, identity: dict[str, Any], headers: dict[str, str]
) -> None:
    assert ask(recorded, identity, "PUT", TARGET, JSON | headers, BODY).status == 201
    assert ask(recorded, identity, "DELETE", TARGET, headers).status == 200
    assert ask(recorded, identity, "POST", "/api/prefixes/777", JSON | headers, "{}").status == 200


@AMBIENT
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": ""},
        {"Origin": PUBLIC_URL},
        {"Sec-Fetch-Site": "same-origin"},
    ],
    ids=str,
)
def test_forms_change_nothing(recorded: Harness, identity: dict[str, Any], headers: dict[str, str]) -> None:
    assert refused(ask(recorded, identity, "POST", "/api/prefixes/777", headers))
    assert refused(ask(recorded, identity, "POST", "/api/prefixes/777", headers, "prefix=777"))
    assert "0.NA/777" not in json_of(ask(recorded, identity, "GET", "/api/prefixes", {}))["prefixes"]


@AMBIENT
def test_program_can_home_prefix_without_body(recorded: Harness, identity: dict[str, Any]) -> None:
    assert ask(recorded, identity, "POST", "/api/prefixes/777", {}).status == 200


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_session_header_is_accepted_cross_site(recorded: Harness, headers: dict[str, str]) -> None:
    """The caller writes the session into the request."""
    session: dict[str, Any] = {"headers": in_session(recorded, f"301:{ADMIN}", SECRET.decode())}
    assert ask(recorded, session, "PUT", TARGET, JSON | headers, BODY).status == 201
    assert ask(recorded, session, "DELETE", TARGET, headers).status == 200


@AMBIENT
def test_reads_are_allowed_cross_site(recorded: Harness, identity: dict[str, Any]) -> None:
    for headers in FOREIGN:
        assert ask(recorded, identity, "GET", f"/api/handles/{PREFIX}/vec-std", headers).status == 200
        assert ask(recorded, identity, "POST", f"/api/handles/{PREFIX}/vec-std", headers).status == 200

"""Prefixes, site record and description over the API."""

import json

import pytest

from perseid import __version__
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.records import Create
from tests.server.http.contexts import Harness, basic, header_of, json_of
from tests.server.installations import OPERATOR, PREFIX, PRIVATE
from tests.server.native.native_servers import SITE

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def homed(server: Harness) -> list[str]:
    found: list[str] = json_of(server.get("/api/prefixes", headers=basic()))["prefixes"]
    return found


def test_prefixes_are_listed(server: Harness) -> None:
    server.post("/api/prefixes/111", headers=basic())
    for target in ("/api/prefixes", "/api/prefixes/"):
        answer = json_of(server.get(target, headers=basic()))
        assert answer == {"responseCode": 1, "totalCount": "3", "prefixes": ["0.NA/0.NA", "0.NA/111", f"0.NA/{PREFIX}"]}
    page = json_of(server.get("/api/prefixes?page=1&pageSize=2", headers=basic()))
    assert page == {"responseCode": 1, "totalCount": "3", "page": 1, "pageSize": 2, "prefixes": [f"0.NA/{PREFIX}"]}
    assert server.get("/api/prefixes?page=x", headers=basic()).status == 400


def test_prefix_is_homed_and_unhomed(server: Harness) -> None:
    for name in ("111", "0.NA/222", "0.na/333"):
        for _ in range(2):
            answer = server.post(f"/api/prefixes/{name}", headers=basic())
            assert (answer.status, json_of(answer)) == (200, {"responseCode": 1, "handle": name})
    assert set(homed(server)) >= {"0.NA/111", "0.NA/222", "0.NA/333"}
    for name in ("0.NA/111", "222"):
        for _ in range(2):
            answer = server.delete(f"/api/prefixes/{name}", headers=basic())
            assert (answer.status, json_of(answer)) == (200, {"responseCode": 1, "handle": name})
    assert not set(homed(server)) & {"0.NA/111", "0.NA/222"}


def test_query_and_body_take_precedence_over_path(server: Harness) -> None:
    answers = (
        server.post("/api/prefixes/999?prefix=111", headers=basic()),
        server.post("/api/prefixes", '{"prefix": "222"}', headers=basic() | JSON),
        server.post("/api/prefixes/999", '{"prefix": "333"}', headers=basic() | JSON),
        server.post("/api/prefixes?prefix=444", headers=basic()),
    )
    assert [json_of(answer)["handle"] for answer in answers] == ["111", "222", "333", "444"]
    assert json_of(server.delete("/api/prefixes/999?prefix=111", headers=basic()))["handle"] == "111"
    assert "0.NA/999" not in homed(server)


@pytest.mark.parametrize("target", ["/api/prefixes", "/api/prefixes/", "/api/prefixes/999?prefix="])
def test_missing_prefix_is_refused(server: Harness, target: str) -> None:
    for answer in (server.post(target, headers=basic()), server.delete(target, headers=basic())):
        assert (answer.status, json_of(answer)["responseCode"]) == (400, 4)
        assert "handle" not in json_of(answer)


@pytest.mark.parametrize("name", ["111/x", "0.NA/", "0.SITE", "x%20", "%20x", "a..b", "a%0Ab", "%FF/x"])
def test_invalid_prefix_is_refused(server: Harness, name: str) -> None:
    answer = server.post(f"/api/prefixes/{name}", headers=basic())
    assert (answer.status, json_of(answer)["responseCode"]) == (400, 102)
    assert "message" in json_of(answer)


def test_permission_to_home(server: Harness) -> None:
    name = Handle.parse(f"{PREFIX}/somebody")
    server.registry.do(Create(name, (Value(300, "HS_SECKEY", b"s", permissions=PRIVATE),)), OPERATOR, "cli")
    somebody = basic(f"300:{name}", "s")
    for headers, status, code in (({}, 401, 402), (somebody, 403, 400)):
        answer = server.get("/api/prefixes", headers=headers)
        assert (answer.status, json_of(answer)["responseCode"]) == (status, code)
        assert "handle" not in json_of(answer)
        for change in (server.post, server.delete):
            answer = change("/api/prefixes/111", headers=headers)
            assert (answer.status, json_of(answer)["responseCode"], json_of(answer)["handle"]) == (status, code, "111")
    assert "administrators.server" in json_of(server.get("/api/prefixes", headers=somebody))["message"]


def test_single_prefix_cannot_be_read(shared: Harness) -> None:
    for answer in (shared.get(f"/api/prefixes/{PREFIX}"), shared.head(f"/api/prefixes/{PREFIX}")):
        assert answer.status == 405
        assert header_of(answer, "Allow") == "POST, DELETE, OPTIONS"


# Site and description


def test_the_site_record(shared: Harness) -> None:
    for target in ("/api/site", "/api/site/"):
        answer = shared.get(target)
        assert json_of(answer) == {"responseCode": 1, "site": json.loads(json.dumps(SITE.to_json()))}
        known = shared.get(target, headers={"If-None-Match": header_of(answer, "ETag") or ""})
        assert (known.status, known.body) == (304, b"")
        assert header_of(shared.get(target, headers=basic()), "Cache-Control") == "no-store"
    answer = shared.get("/api/site/x")
    assert (answer.status, json_of(answer)["responseCode"]) == (404, 4)


def test_description(shared: Harness) -> None:
    plain = json_of(shared.get("/api"))
    assert (plain["name"], plain["version"]) == ("Perseid", __version__)
    for name, link in plain["links"].items():
        target = link.format(prefix=PREFIX, handle=f"{PREFIX}/n0", index=300, pattern="*")
        assert shared.get(target, headers=basic()).status not in (404, 501), name

"""PUT and DELETE of records over the API: results, and the order of refusals."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.json_form import value_to_json
from perseid.records.record import Permission, TtlType, Value
from perseid.records.site import PrimaryMask
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.setup import add_namespace
from perseid.registry.policy.policy import PROFILES
from perseid.server.http.messages import encode_path
from perseid.server.native.work import WorkKind
from tests.record_strategies import values
from tests.server.http.contexts import Harness, basic, header_of, json_of
from tests.server.installations import ADMINISTRATOR, OPERATOR, PREFIX, PRIVATE, SECRET
from tests.strategies import handles

NEW = f"/api/handles/{PREFIX}/new"
N0 = f"/api/handles/{PREFIX}/n0"
URL = {"index": 1, "type": "URL", "data": "https://example.org/new"}
ADMIN = {
    "index": 100,
    "type": "HS_ADMIN",
    "data": {"format": "admin", "value": {"handle": f"0.NA/{PREFIX}", "index": "300", "permissions": "111111111111"}},
}
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def put(server: Harness, target: str, *plain: object, **how: Any) -> tuple[int, dict[str, Any]]:
    answer = server.put(target, list(plain), **({"headers": basic()} | how))
    return answer.status, json_of(answer)


def delete(server: Harness, target: str, **how: Any) -> tuple[int, dict[str, Any]]:
    answer = server.delete(target, **({"headers": basic()} | how))
    return answer.status, json_of(answer)


def data_of(server: Harness, target: str) -> dict[int, Any]:
    return {value["index"]: value["data"]["value"] for value in json_of(server.get(target, headers=basic()))["values"]}


def code(found: tuple[int, dict[str, Any]]) -> tuple[int, int, str | None]:
    return found[0], found[1]["responseCode"], found[1].get("handle")


def with_somebody(server: Harness) -> dict[str, str]:
    """A user who is authenticated and administers nothing."""
    name = Handle.parse(f"{PREFIX}/somebody")
    server.registry.do(Create(name, (Value(300, "HS_SECKEY", b"s", permissions=PRIVATE),)), OPERATOR, "cli")
    return basic(f"300:{name}", "s")


# Whole records


def test_record_is_created_and_replaced(server: Harness) -> None:
    answer = server.put(NEW, {"values": [URL, ADMIN]}, headers=basic())
    assert (answer.status, json_of(answer)) == (201, {"responseCode": 1, "handle": f"{PREFIX}/new"})
    assert header_of(answer, "Location") == NEW
    assert header_of(answer, "Cache-Control") == "no-store"
    answer = server.put(NEW, [URL | {"data": "changed"}, ADMIN], headers=basic())
    advice = "Use an absolute URL, such as https://example.org/1"
    warnings = [f"Value 1 of type URL, 'changed', is not an absolute URL. {advice}"]
    expected = {"responseCode": 1, "handle": f"{PREFIX}/new", "warnings": warnings}
    assert (answer.status, json_of(answer)) == (200, expected)
    assert header_of(answer, "Location") is None
    assert data_of(server, NEW)[1] == "changed"


def test_invisible_characters_and_blanks_in_types_are_warned_about(server: Harness) -> None:
    """The same texts as at the command line."""
    answer = server.put(f"/api/handles/{PREFIX}/a%E2%80%8Bb", [URL | {"type": "U RL"}, ADMIN], headers=basic())
    handle, type_ = json_of(answer)["warnings"]
    assert handle.startswith(
        f"'{PREFIX}/a\\u200bb' contains U+200B, an invisible, format or private-use character. If "
    )
    assert type_.startswith("Value 1 has the type 'U RL', which contains a space (U+0020): clients that ask for ")


def test_entry_has_interface_and_actor(server: Harness) -> None:
    put(server, NEW, URL)
    with server.registry.snapshot() as snapshot:
        entry = snapshot.stored(Handle.parse(f"{PREFIX}/new")).entry
    assert entry is not None
    assert entry.origin == ("http", ADMINISTRATOR)


def test_existing_record_is_kept_without_overwrite(server: Harness) -> None:
    for query in ("overwrite=false", "overwrite", "overwrite=", "overwrite=no", "overwrite=1"):
        assert code(put(server, f"{N0}?{query}", URL)) == (409, 101, f"{PREFIX}/n0")
        assert code(put(server, f"{N0}?{query}", URL, headers={})) == (409, 101, f"{PREFIX}/n0"), "told to everybody"
    assert code(put(server, f"{N0}?overwrite=YES", URL, ADMIN))[0] == 200
    assert code(put(server, f"{NEW}?overwrite=false", URL))[0] == 201


def test_putting_back_a_record_changes_nothing(server: Harness) -> None:
    before = server.get(N0, headers=basic())
    assert server.put(N0, before.body, headers=basic()).status == 200
    assert server.get(N0, headers=basic()) == before


@given(st.lists(values(), max_size=4, unique_by=lambda value: value.index), handles())
def test_put_and_get_round_trip(shared: Harness, stored: list[Value], handle: Handle) -> None:
    kept = [
        replace(
            value,
            index=value.index & 0xFFFF | 1,
            type="X",
            ttl=abs(value.ttl) & 0xFFFF,
            ttl_type=TtlType.RELATIVE,
            permissions=value.permissions | Permission.ADMIN_READ,
        )
        for value in stored
    ]
    kept = list({value.index: value for value in kept}.values())
    name = f"{PREFIX}/put-{handle.suffix}"
    if len(name.encode()) > 2_000:
        return
    target = f"/api/handles/{encode_path(name)}"
    owner = json.loads(json.dumps(ADMIN)) | {"index": 0x1_0002}
    answer = shared.put(target, [*[value_to_json(value) for value in kept], owner], headers=basic())
    assert answer.status in (200, 201), answer.body
    found = json_of(shared.get(target, headers=basic()))
    assert found["handle"] == name
    expected = [value_to_json(replace(value, timestamp=0)) for value in sorted(kept, key=lambda value: value.index)]
    assert [{key: item[key] for key in item if key != "timestamp"} for item in found["values"][:-1]] == expected


def test_timestamps_change_only_with_values(server: Harness) -> None:
    put(server, NEW, URL | {"timestamp": "2001-01-01T00:00:00Z"}, ADMIN)
    first = json_of(server.get(NEW))["values"][0]
    assert first["timestamp"] > "2020"
    put(server, NEW, URL, ADMIN, {"index": 2, "type": "X", "data": "x"})
    assert json_of(server.get(NEW))["values"][0] == first


def test_deleted_handle_can_be_created_again(server: Harness) -> None:
    assert code(put(server, NEW, URL, ADMIN))[0] == 201
    assert code(delete(server, NEW)) == (200, 1, f"{PREFIX}/new")
    assert server.get(NEW).status == 404
    assert code(put(server, f"{NEW}?overwrite=false", URL, ADMIN))[0] == 201
    assert code(delete(server, NEW))[0] == 200
    assert code(put(server, NEW, URL, ADMIN))[0] == 201


def test_record_may_be_empty(server: Harness) -> None:
    assert code(put(server, NEW))[0] == 201
    server.registry.do(Create(Handle.parse(f"{PREFIX}/bare"), (), overwrite=True), OPERATOR, "cli")
    assert server.get(NEW).status == 200


def test_record_keeps_an_administrator(server: Harness) -> None:
    put(server, NEW, URL, ADMIN)
    bodies: tuple[object, ...] = ([], [URL], {"values": []})
    for body in bodies:
        answer = server.put(NEW, body, headers=basic())
        plain = json_of(answer)
        assert (answer.status, plain["responseCode"], plain["handle"]) == (400, 202, f"{PREFIX}/new")
        assert "administrator" in plain["message"]
    assert server.put(NEW, {"values": None}, headers=basic()).status == 400
    assert data_of(server, NEW).keys() == {1, 100}


@pytest.mark.parametrize(
    "body", [{"handle": f"{PREFIX}/NEW", "values": [URL]}, {"handle": f"{PREFIX}/new", "values": [URL]}]
)
def test_handle_in_body_matches_path(server: Harness, body: object) -> None:
    assert server.put(NEW, body, headers=basic()).status == 201


@pytest.mark.parametrize("other", [f"{PREFIX}/other", "", PREFIX, "99999/new", f"{PREFIX}/new/", "x" * 3_000])
def test_different_handle_in_body_is_refused(server: Harness, other: str) -> None:
    for target in (NEW, f"/api/handles/{PREFIX}/s-?mintNewSuffix=true", "/api/handles/99999/new"):
        answer = server.put(target, {"handle": other, "values": []}, headers=basic())
        if (other, target) == ("99999/new", "/api/handles/99999/new"):
            continue
        assert (answer.status, json_of(answer)["responseCode"]) == (400, 4)
        assert "handle" not in json_of(answer)
        assert json_of(answer)["message"].startswith("Mismatched handle")


def test_handle_in_body_follows_case_rule(server: Harness) -> None:
    add_namespace(server.registry, AddNamespace("555", PROFILES["exact"]), LocalIdentity("tests"), "cli")
    target = "/api/handles/555/Name"
    wrong, right = {"handle": "555/name", "values": []}, {"handle": "555/Name", "values": []}
    assert json_of(server.put(target, wrong, headers=basic()))["responseCode"] == 4
    assert json_of(server.put(target, right, headers=basic()))["responseCode"] == 400, "not their prefix"


# Values


def test_values_are_added_and_replaced(server: Harness) -> None:
    put(server, NEW, URL, ADMIN)
    seven = {"index": 7, "type": "EMAIL", "data": "seven@example.org"}
    assert code(put(server, f"{NEW}?index=various", seven)) == (201, 1, f"{PREFIX}/new")
    assert code(put(server, f"{NEW}?index=7", seven | {"data": "7"})) == (200, 1, f"{PREFIX}/new")
    assert code(put(server, f"{NEW}?index=8&index=7&index=8", seven, seven | {"index": 8}))[0] == 200
    assert code(put(server, f"{NEW}?index=various&index=x", seven | {"index": 9}))[0] == 201
    assert data_of(server, NEW).keys() == {1, 7, 8, 9, 100}


def test_indexes_of_query_and_body_must_match(server: Harness) -> None:
    put(server, NEW, URL, ADMIN)
    for query in ("index=1&index=2", "index=2", "index=-1"):
        answer = server.put(f"{NEW}?{query}", [URL], headers=basic())
        assert (answer.status, json_of(answer)["responseCode"]) == (400, 4)
        assert "Mismatched indexes" in json_of(answer)["message"]
        assert "handle" not in json_of(answer)
    for query in ("index=1&index=various", "index=x", "index="):
        assert code(put(server, f"{NEW}?{query}", URL)) == (400, 4, None)


def test_existing_values_are_kept_without_overwrite(server: Harness) -> None:
    put(server, NEW, URL, ADMIN)
    found = put(server, f"{NEW}?index=1&index=5&overwrite=false", URL, URL | {"index": 5})
    assert code(found) == (409, 201, f"{PREFIX}/new")
    assert found[1]["message"] == "Index conflict for 1"
    assert data_of(server, NEW).keys() == {1, 100}


def test_values_can_be_added_only_to_existing_record(server: Harness) -> None:
    assert code(put(server, f"{NEW}?index=1", URL)) == (404, 100, f"{PREFIX}/new")
    assert code(put(server, f"{N0}?index=various")) == (400, 202, f"{PREFIX}/n0")
    assert code(put(server, f"/api/handles/{PREFIX}/?index=1", URL)) == (404, 100, f"{PREFIX}/")


def test_values_are_removed_all_or_none(server: Harness) -> None:
    put(server, NEW, URL, ADMIN, URL | {"index": 2})
    assert code(delete(server, f"{NEW}?index=1&index=77")) == (400, 200, f"{PREFIX}/new")
    assert data_of(server, NEW).keys() == {1, 2, 100}
    assert code(delete(server, f"{NEW}?index=1&index=1")) == (200, 1, f"{PREFIX}/new")
    assert data_of(server, NEW).keys() == {2, 100}
    assert code(delete(server, f"{NEW}?index=various")) == (400, 4, None)
    assert code(delete(server, f"{NEW}?index=2&index=100"))[0] == 200
    assert json_of(server.get(NEW))["responseCode"] == 200


# Order of refusals


def test_order_of_refusals_of_put(server: Harness) -> None:
    somebody = with_somebody(server)
    foreign = "/api/handles/99999/x"
    twice = [URL, URL]
    steps: list[tuple[str, list[Any], dict[str, str], tuple[int, int]]] = [
        # body and parameters, then the prefix, then indexes
        (f"{foreign}?index=x", twice, {}, (400, 4)),
        (foreign, twice, {}, (400, 301)),
        (f"{N0}?overwrite=false", twice, {}, (409, 201)),
        (f"{N0}?overwrite=false", [URL | {"index": 0}], {}, (400, 202)),
        # the whole record: existence, identity, right
        (f"{N0}?overwrite=false", [URL], {}, (409, 101)),
        (N0, [URL], {}, (401, 402)),
        (N0, [URL], somebody, (403, 400)),
        (NEW, [URL], {}, (401, 402)),
        (NEW, [URL], somebody, (403, 400)),
        # values: identity, existence, clash, right
        (f"{N0}?index=1&overwrite=false", [URL], {}, (401, 402)),
        (f"{NEW}?index=1", [URL], {}, (401, 402)),
        (f"{NEW}?index=1", [URL], somebody, (404, 100)),
        (f"{N0}?index=1&overwrite=false", [URL], somebody, (409, 201)),
        (f"{N0}?index=1", [URL], somebody, (403, 400)),
    ]
    for target, body, headers, expected in steps:
        assert code(put(server, target, *body, headers=headers))[:2] == expected, (target, body, headers)
        if expected == (401, 402):
            assert code(put(server, target, *body, headers=basic(), secure=False))[:2] == (403, 402)
        elif headers != somebody:
            assert code(put(server, target, *body, headers=headers, secure=False))[:2] == expected


def test_order_of_refusals_of_delete(server: Harness) -> None:
    somebody = with_somebody(server)
    for target in (N0, NEW, f"{N0}?index=77", f"{NEW}?index=1", "/api/handles/99999/x", "/api/handles/99999/x?index=1"):
        assert code(delete(server, target, headers={}))[:2] == (401, 402), target
    for target in (
        NEW,
        f"{NEW}?index=1",
        "/api/handles/99999/x",
        "/api/handles/99999/x?index=1",
        f"/api/handles/{PREFIX}/",
    ):
        assert code(delete(server, target, headers=somebody))[:2] == (404, 100), target
    assert code(delete(server, f"{N0}?index=77", headers=somebody))[:2] == (400, 200)
    assert code(delete(server, N0, headers=somebody)) == (403, 400, f"{PREFIX}/n0")
    assert "DELETE_HANDLE" in delete(server, N0, headers=somebody)[1]["message"]


def test_anonymous_change_costs_only_a_read(server: Harness) -> None:
    put(server, NEW, URL, headers={})
    delete(server, N0, headers={})
    assert set(server.kinds) == {WorkKind.READ}


def test_request_without_handle_is_refused(server: Harness) -> None:
    for headers in (basic(), {}):
        for target in ("/api/handles", "/api/handles/", "/api/handles/?mintNewSuffix=true"):
            assert put(server, target, URL, headers=headers) == (
                400,
                {"responseCode": 102, "message": "Empty handle invalid"},
            )
        assert code(delete(server, "/api/handles/", headers=headers)) == (400, 102, None)


@pytest.mark.parametrize(
    "name", [f"{PREFIX}/%FF", f"{PREFIX}/", f"{PREFIX}/%C2%80", f"{PREFIX}/%20x", f"{PREFIX}/" + "x" * 2_100]
)
def test_invalid_handles_are_refused(server: Harness, name: str) -> None:
    status, plain = put(server, f"/api/handles/{name}", URL)
    assert (status, plain["responseCode"]) == (400, 102)
    assert plain["handle"].startswith(f"{PREFIX}/")
    assert plain["message"]


def test_handles_of_the_installation_cannot_be_changed(server: Harness) -> None:
    assert code(put(server, "/api/handles/0.SITE/x", URL))[:2] == (400, 301)
    assert code(delete(server, "/api/handles/0.SITE/x"))[:2] == (404, 100)


def test_non_primary_site_refuses_changes(server: Harness) -> None:
    server.service.server = replace(server.context, site=replace(server.context.site, primary=PrimaryMask(0)))
    assert code(put(server, NEW, URL)) == (400, 301, f"{PREFIX}/new")
    assert server.get(N0).status == 200


def test_other_media_types_are_refused(server: Harness) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = server.ask("PUT", NEW, json.dumps([URL]), headers={**basic(), "Content-Type": content_type})
        assert (answer.status, json_of(answer)["responseCode"]) == (415, 4)
    assert server.ask("PUT", NEW, json.dumps([URL]), headers=basic()).status == 415
    packed = {**basic(), "Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert server.ask("PUT", NEW, b"\x1f\x8b", headers=packed).status == 415
    assert server.get(NEW).status == 404


def test_derived_prefix_is_created_by_parent(server: Harness) -> None:
    """A name without a slash is a prefix, whose record is the prefix handle."""
    found = put(server, f"/api/handles/{PREFIX}.7", URL, ADMIN)
    assert code(found)[1:] == (found[1]["responseCode"], f"{PREFIX}.7")
    assert found[0] in (201, 403)


# Minting


def test_handle_is_minted(server: Harness) -> None:
    for query in ("mintNewSuffix=true", "mintNewSuffix", "mintNewSuffix=YES&overwrite=false"):
        answer = server.put(f"/api/handles/{PREFIX}/abc-?{query}", [URL], headers=basic())
        name = json_of(answer)["handle"]
        assert answer.status == 201
        assert re.fullmatch(f"{PREFIX}/abc-{UUID}", name)
        assert header_of(answer, "Location") == f"/api/handles/{name}"
        assert data_of(server, f"/api/handles/{name}")[1] == URL["data"]
    answer = server.put(
        f"/api/handles/{PREFIX}/?mintNewSuffix=true", {"handle": f"{PREFIX}/", "values": []}, headers=basic()
    )
    assert re.fullmatch(f"{PREFIX}/{UUID}", json_of(answer)["handle"])


def test_refusals_of_minting(server: Harness) -> None:
    stub = f"/api/handles/{PREFIX}/abc-?mintNewSuffix=true"
    assert code(put(server, stub, URL, headers={})) == (401, 402, f"{PREFIX}/abc-")
    assert code(put(server, stub, URL, headers=with_somebody(server))) == (403, 400, f"{PREFIX}/abc-")
    assert code(put(server, "/api/handles/99999/?mintNewSuffix=true", URL)) == (400, 301, "99999/")
    assert code(put(server, f"{stub}&index=1", URL)) == (400, 4, None)
    assert code(put(server, f"/api/handles/{PREFIX}?mintNewSuffix=true", URL)) == (400, 102, PREFIX)
    assert code(put(server, f"/api/handles/{PREFIX}/%FF?mintNewSuffix=true", URL))[:2] == (400, 102)
    assert code(put(server, "/api/handles/12345/x?mintNewSuffix=false", URL)) == (201, 1, "12345/x")


# Secrets


def test_refusals_contain_no_secrets(server: Harness) -> None:
    """Whatever is wrong with a request that contains a secret, the response does not contain it."""
    secret = {"index": 300, "type": "HS_SECKEY", "data": SECRET * 3}
    for body in ([secret, {"index": 1}], [secret | {"permissions": [SECRET]}], [secret | {"data": {"x": SECRET}}]):
        answer = server.put(NEW, body, headers=basic())
        assert answer.status == 400
        assert SECRET.encode() not in answer.body

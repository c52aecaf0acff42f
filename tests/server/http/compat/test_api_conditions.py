"""Conditional changes: nobody overwrites a version they have not seen."""

import pytest

from perseid.names.handle import Handle
from perseid.registry.commands.composition import Condition, Conditional, ConditionFailed
from perseid.registry.commands.records import Create, Delete
from perseid.registry.snapshot import StoredRecord
from tests.server.http.contexts import Harness, basic, header_of, json_of
from tests.server.installations import OPERATOR, PREFIX

NEW = f"/api/handles/{PREFIX}/new"
N0 = f"/api/handles/{PREFIX}/n0"
ADMIN = {
    "index": 100,
    "type": "HS_ADMIN",
    "data": {"format": "admin", "value": {"handle": f"0.NA/{PREFIX}", "index": 300, "permissions": "*"}},
}


def url(text: str) -> dict[str, object]:
    return {"index": 1, "type": "URL", "data": text}


def tag_of(server: Harness, target: str = N0, **how: object) -> str:
    tag = header_of(server.get(target, **how), "ETag")
    assert tag is not None
    return tag


def put(server: Harness, target: str, text: str, **conditions: str) -> int:
    headers = {**basic(), **{name.replace("_", "-"): value for name, value in conditions.items()}}
    return server.put(target, [url(text), ADMIN], headers=headers).status


def test_matching_tag_allows_replacement(server: Harness) -> None:
    for headers in ({}, basic()):
        tag = tag_of(server, headers=headers)
        assert put(server, N0, f"after {tag}", If_Match=tag) == 200
    assert put(server, N0, "whatever", If_Match="*") == 200


def test_stale_tag_prevents_replacement(server: Harness) -> None:
    old = tag_of(server), tag_of(server, headers=basic())
    assert put(server, N0, "changed") == 200
    for tag in old:
        answer = server.put(N0, [url("lost"), ADMIN], headers={**basic(), "If-Match": f'"x", {tag}'})
        plain = json_of(answer)
        assert (answer.status, plain["responseCode"], plain["handle"]) == (412, 2, f"{PREFIX}/n0")
        assert "changed since" in plain["message"]
        assert server.delete(N0, headers={**basic(), "If-Match": tag}).status == 412
        assert server.delete(f"{N0}?index=1", headers={**basic(), "If-Match": tag}).status == 412
        answer = server.put(f"{N0}?index=1", [url("lost")], headers={**basic(), "If-Match": tag})
        assert answer.status == 412
    assert json_of(server.get(N0))["values"][0]["data"]["value"] == "changed"
    assert server.delete(N0, headers={**basic(), "If-Match": tag_of(server)}).status == 200


def test_if_none_match_creates_only_new_handle(server: Harness) -> None:
    assert put(server, NEW, "first", If_None_Match="*") == 201
    answer = server.put(NEW, [url("second"), ADMIN], headers={**basic(), "If-None-Match": "*"})
    assert (answer.status, json_of(answer)["responseCode"]) == (412, 101)
    assert put(server, f"{NEW}2", "x", If_Match="*") == 412
    assert put(server, f"{NEW}2", "x", If_Match='"x"') == 412
    assert put(server, f"{NEW}2", "x", If_None_Match='"x"') == 201
    assert put(server, NEW, "third", If_None_Match=tag_of(server, NEW)) == 412
    assert put(server, NEW, "third", If_None_Match='"x"') == 200


def test_precondition_reveals_nothing_without_permission(server: Harness) -> None:
    for target in (N0, NEW):
        answer = server.put(target, [url("x")], headers={"If-Match": '"x"'})
        assert (answer.status, json_of(answer)["responseCode"]) == (401, 402)


@pytest.mark.parametrize("text", ["abc", '"abc', '"a" "b"', "*, *", '"a",b', "W/", "'a'"])
def test_invalid_condition_is_refused(server: Harness, text: str) -> None:
    for name in ("If-Match", "If-None-Match"):
        answer = server.put(NEW, [url("x")], headers={**basic(), name: text})
        assert (answer.status, json_of(answer)["responseCode"]) == (400, 4)
    assert server.get(NEW).status == 404


def test_precondition_holds_at_commit(server: Harness) -> None:
    """It is checked in the registry, so a change in between leads to a new decision."""
    name = Handle.parse(f"{PREFIX}/n0")
    registry = server.registry
    tag = tag_of(server).strip('"')
    inside: list[int] = []

    class ComingBetween(Condition):
        def check(self, stored: StoredRecord) -> None:
            if not inside:
                inside.append(1)
                registry.do(Create(name, (), overwrite=True), OPERATOR, "cli")
            super().check(stored)

    with pytest.raises(ConditionFailed):
        registry.do(Conditional(Delete(name), name, ComingBetween(any_of=(tag,))), OPERATOR, "cli")
    assert server.get(N0).status == 200, "it was emptied, and not deleted"


def test_server_status_has_no_tag(server: Harness) -> None:
    """The state never repeats."""
    target = "/api/handles/0.SITE/status"
    answer = server.get(target, headers=basic())
    assert (answer.status, header_of(answer, "ETag")) == (200, None)
    assert server.get(target, headers={**basic(), "If-None-Match": "*"}).status == 200


def test_tag_of_version_differs_from_current(server: Harness) -> None:
    """Both have one URL if the time is in a header, and the response with a version has more members."""
    time = {"Accept-Datetime": "Thu, 01 Jan 2037 00:00:00 GMT"}
    now, then = server.get(N0), server.get(N0, headers=time)
    assert now.body != then.body
    for shown, how in ((now, time), (then, {})):
        tag = header_of(shown, "ETag") or ""
        assert server.get(N0, headers={**how, "If-None-Match": tag}).status == 200
    for shown, how in ((now, {}), (then, time)):
        tag = header_of(shown, "ETag") or ""
        assert server.get(N0, headers={**how, "If-None-Match": tag}).status == 304

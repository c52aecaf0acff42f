"""Listing the handles of a prefix: by page, all at once, and after a cursor."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from perseid.names.handle import Handle
from perseid.records.partition import find_server_index
from perseid.records.record import Value
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Create
from perseid.registry.installation.setup import with_group_administrators
from perseid.registry.partition import Partition
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries import listing, paging
from perseid.server.http.compat import listing as api_listing
from perseid.server.http.connection.responses import encode_head
from perseid.server.http.messages import Client, Request
from tests.registry.installation.server_files import site
from tests.server.http.contexts import STRANGER, Harness, basic, harness, in_session, json_of
from tests.server.installations import OPERATOR, PREFIX
from tests.wire.key_material import SERVER_KEY

ALL = sorted(
    [f"{PREFIX}/n{number}" for number in range(50)] + [f"{PREFIX}/{name}" for name in ("long", "longer", "private")]
)
LIST = f"/api/handles?prefix={PREFIX}"


def listed(server: Harness, target: str, **how: Any) -> dict[str, Any]:
    answer = server.get(target, **({"headers": basic()} | how))
    assert answer.status == 200, answer.body
    plain: dict[str, Any] = json_of(answer)
    return plain


def test_page_by_number(shared: Harness) -> None:
    assert listed(shared, f"{LIST}&page=0&pageSize=3") == {
        "responseCode": 1,
        "prefix": PREFIX,
        "totalCount": "53",
        "page": 0,
        "pageSize": 3,
        "handles": ALL[:3],
    }
    assert listed(shared, f"{LIST}&page=2&pageSize=20")["handles"] == ALL[40:]
    assert listed(shared, f"{LIST}&page=9&pageSize=20")["handles"] == []
    assert listed(shared, f"{LIST}&page=2147483647&pageSize=2147483647")["handles"] == []


def test_all_pages_together_are_complete(shared: Harness) -> None:
    pages = [listed(shared, f"{LIST}&page={page}&pageSize=7")["handles"] for page in range(8)]
    assert [name for page in pages for name in page] == ALL


def test_empty_page_has_total_count(shared: Harness) -> None:
    found = listed(shared, f"{LIST}&page=0&pageSize=0")
    assert (found["totalCount"], found["handles"], found["pageSize"]) == ("53", [], 0)


@pytest.mark.parametrize("query", ["", "&page=1", "&pageSize=0", "&page=-1&pageSize=5", "&page=0&pageSize=-1"])
def test_everything_is_listed_without_page_and_size(shared: Harness, query: str) -> None:
    found = listed(shared, LIST + query)
    assert found == {"responseCode": 1, "prefix": PREFIX, "totalCount": "53", "handles": ALL}


@pytest.mark.parametrize("query", ["&page=x", "&pageSize=", "&page=0&pageSize=1.5", "&after=x", "&after=", "&after=-1"])
def test_invalid_number_is_refused(shared: Harness, query: str) -> None:
    answer = shared.get(LIST + query, headers=basic())
    assert (answer.status, json_of(answer)["responseCode"]) == (400, 4)


def test_prefix_is_repeated_as_written(shared: Harness) -> None:
    for written in (PREFIX, f"0.NA/{PREFIX}", f"0.na/{PREFIX}"):
        found = listed(shared, f"/api/handles/?prefix={written}&page=0&pageSize=1")
        assert (found["prefix"], found["handles"]) == (written, ALL[:1])


def test_handles_are_listed_as_written_in_key_order(server: Harness) -> None:
    for name in ("B", "a", "Ä", "_"):
        server.registry.do(Create(Handle.parse(f"{PREFIX}/{name}"), (Value.text(1, "X", "x"),)), OPERATOR, "cli")
    found = listed(server, LIST)["handles"]
    assert [name for name in found if len(name) == len(PREFIX) + 2] == [
        f"{PREFIX}/{name}" for name in ("a", "B", "_", "Ä")
    ]


def test_hidden_handles_are_listed_for_administrators_only(server: Harness) -> None:
    server.delete(f"/api/handles/{PREFIX}/n0", headers=basic())
    hidden = Create(Handle.parse(f"{PREFIX}/hidden"), (), published=False)
    server.registry.do(hidden, OPERATOR, "cli")
    found = listed(server, LIST)
    assert f"{PREFIX}/n0" not in found["handles"]
    assert f"{PREFIX}/hidden" in found["handles"]
    assert found["totalCount"] == str(len(found["handles"])) == "53"


def test_permission_to_list(shared: Harness) -> None:
    answer = shared.get(LIST)
    assert (answer.status, json_of(answer)["responseCode"], json_of(answer)["handle"]) == (401, 402, PREFIX)
    assert "prefix" not in json_of(answer)
    assert shared.get(LIST, headers=basic(), secure=False).status == 403
    for prefix in ("99999", f"{PREFIX}/", f"{PREFIX}/n"):
        answer = shared.get(f"/api/handles?prefix={prefix}")
        assert (answer.status, json_of(answer)["responseCode"], json_of(answer)["handle"]) == (400, 301, prefix)


def test_listing_can_be_disabled() -> None:
    with harness(listing_allowed=False) as server:
        answer = server.get(LIST, headers=basic())
        assert (answer.status, json_of(answer)["responseCode"]) == (501, 5)


def test_listing_after_a_cursor(shared: Harness) -> None:
    names: list[str] = []
    after, pages = "0", 0
    while after:
        found = listed(shared, f"{LIST}&after={after}&pageSize=20")
        names += found["handles"]
        after, pages = found.get("next", ""), pages + 1
    assert names == ALL
    assert pages == 3
    answer = shared.get(f"{LIST}&after=999999999", headers=basic())
    assert (answer.status, json_of(answer)["responseCode"]) == (400, 202)


def test_new_handles_do_not_shift_the_cursor(server: Harness) -> None:
    first = listed(server, f"{LIST}&after=0&pageSize=10")
    for name in ("aaa", "zzz"):
        server.registry.do(Create(Handle.parse(f"{PREFIX}/{name}"), ()), OPERATOR, "cli")
    rest = listed(server, f"{LIST}&after={first['next']}&pageSize=1000")
    assert first["handles"] + rest["handles"] == [*ALL, f"{PREFIX}/zzz"]


def test_post_and_head_can_list(shared: Harness) -> None:
    json_type = {**basic(), "Content-Type": "application/json"}
    body = json.dumps({"prefix": PREFIX, "page": 0, "pageSize": 2})
    assert json_of(shared.post("/api/handles", body, headers=json_type))["handles"] == ALL[:2]
    assert shared.head(LIST, headers=basic()).status == 200


def test_prefix_parameter_is_ignored_with_handle_in_path(shared: Harness) -> None:
    assert json_of(shared.get(f"/api/handles/{PREFIX}/n0?prefix={PREFIX}"))["responseCode"] == 1


# Streaming


@pytest.mark.parametrize("query", ["", "&pretty", "&callback=f", "&pretty&callback=f"])
@pytest.mark.parametrize("numbers", ["", "&page=0&pageSize=40", "&page=1&pageSize=15", "&page=0&pageSize=53"])
def test_streamed_list_equals_whole_list(
    shared: Harness, monkeypatch: pytest.MonkeyPatch, query: str, numbers: str
) -> None:
    headers = in_session(shared)
    whole = shared.get(LIST + numbers + query, headers=headers)
    assert whole.status == 200
    monkeypatch.setattr(api_listing, "MAX_PAGE", 10)
    kinds = len(shared.kinds)
    pieces = shared.get(LIST + numbers + query, headers=headers)
    assert pieces == whole
    assert len(shared.kinds) - kinds >= 2, "it was read a part at a time"
    assert shared.head(LIST + numbers + query, headers=headers).status == 200


def test_head_of_streamed_list(shared: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not claim an empty body."""
    monkeypatch.setattr(api_listing, "MAX_PAGE", 10)
    headers = [(name.lower(), value) for name, value in in_session(shared).items()]

    def head(method: str) -> bytes:
        request = Request(method, LIST.encode(), headers, client=Client(STRANGER, secure=True))
        return encode_head(asyncio.run(shared.service.handle(request)), version="1.1", keep=True, seconds=0)

    assert b"Content-Length" not in head("HEAD")
    assert head("HEAD") == head("GET")


def test_hidden_handles_are_skipped(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """For public listings, also across many hidden handles in a row."""
    policy = replace(with_group_administrators(PROFILES["free"]), who_may_list=Audience.PUBLIC)
    server.registry.do(SetPolicy(PREFIX, policy), OPERATOR, "cli")
    for number in range(120):
        name = Handle.parse(f"{PREFIX}/n0-{number:03}")
        server.registry.do(Create(name, (), published=False), OPERATOR, "cli")
    monkeypatch.setattr(api_listing, "MAX_PAGE", 10)
    monkeypatch.setattr(listing, "MAX_SCANNED", 50)
    assert listed(server, LIST, headers={}) == {"responseCode": 1, "prefix": PREFIX, "totalCount": "53", "handles": ALL}
    assert listed(server, LIST)["totalCount"] == "173"


def test_copies_of_a_divided_site_are_skipped_in_steps(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The total is left out until it is known."""
    policy = replace(with_group_administrators(PROFILES["free"]), who_may_list=Audience.PUBLIC)
    server.registry.do(SetPolicy(PREFIX, policy), OPERATOR, "cli")
    whole = replace(site(SERVER_KEY), servers=site(SERVER_KEY).servers * 2)
    monkeypatch.setattr(server.registry, "rules", replace(server.registry.rules, partition=Partition(whole, 0)))
    monkeypatch.setattr(api_listing, "MAX_PAGE", 10)
    monkeypatch.setattr(listing, "MAX_SCANNED", 20)
    own = [name for name in ALL if find_server_index(name.encode(), 2, 2) == 0]
    pages = [listed(server, f"{LIST}&page={page}&pageSize=7", headers={}) for page in range(5)]
    assert [page.get("totalCount") for page in pages] == [None, None, *[str(len(own))] * 3]
    assert [name for page in pages for name in page["handles"]] == own
    expected = {"responseCode": 1, "prefix": PREFIX, "totalCount": str(len(own)), "handles": own}
    assert listed(server, LIST, headers={}) == expected
    assert listed(server, f"{LIST}&page=99&pageSize=7", headers={})["handles"] == []


def test_permission_is_checked_for_each_page(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_listing, "MAX_PAGE", 10)
    assert paging.MAX_PAGE == 1_000
    do = server.context.do
    count = 0

    async def losing(work: Any, client: Any) -> object:
        nonlocal count
        count += 1
        if count == 4:
            put = Create(Handle.parse(f"0.NA/{PREFIX}"), (), overwrite=True)
            server.registry.do(put, OPERATOR, "cli")
        return await do(work, client)

    object.__setattr__(server.service.server, "do", losing)
    with pytest.raises(Exception, match="was changed"):
        server.get(LIST, headers=basic())

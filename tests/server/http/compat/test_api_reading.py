"""Reading records over the API: which values, for whom, in which order, and caching."""

import json
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.records import Create, Modify
from perseid.registry.partition import Partition
from perseid.server.http.context import WorkRunner
from perseid.server.http.messages import Client, encode_path
from perseid.server.native.work import Work, WorkKind
from tests.server.http.contexts import Harness, basic, harness, header_of, in_session, json_of
from tests.server.installations import ADMINISTRATOR, OPERATOR, PREFIX, PRIVATE, SECRET

N0 = f"/api/handles/{PREFIX}/n0"
HIDDEN = f"/api/handles/{PREFIX}/private"
OWNED = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def make(server: Harness, name: str, *values: Value) -> None:
    server.registry.do(Create(Handle.parse(name), values, overwrite=True), OPERATOR, "cli")


def indexes(server: Harness, target: str, **how: object) -> list[int]:
    return [value["index"] for value in json_of(server.get(target, **how))["values"]]


# Selection


def test_values_are_sorted_by_index(server: Harness) -> None:
    make(server, f"{PREFIX}/order", Value.text(7, "A", "x"), Value.text(3, "B", "y"), Value.text(5, "A", "z"))
    assert indexes(server, f"/api/handles/{PREFIX}/order")[:3] == [3, 5, 7]
    assert indexes(server, f"/api/handles/{PREFIX}/order?type=a") == [5, 7]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("index=2", [2]),
        ("index=3&index=1", [1, 3]),
        ("type=url", [1]),
        ("type=URL&type=EMAIL", [1, 3]),
        ("index=2&type=email", [2, 3]),
        ("index=0&index=-5&index=3", [3]),
        ("type=&index=1", [1]),
        ("type=URL.", [1]),
        ("unknown=x&INDEX=9", [1, 2, 3, 100]),
    ],
)
def test_index_and_type_select_together(shared: Harness, query: str, found: list[int]) -> None:
    assert indexes(shared, f"{N0}?{query}") == found


@pytest.mark.parametrize("query", ["index=99", "type=NONE", "type=", "index=0", "type=UR"])
def test_missing_values_are_an_empty_list(shared: Harness, query: str) -> None:
    answer = shared.get(f"{N0}?{query}")
    assert answer.status == 200
    assert json.loads(answer.body) == {"responseCode": 200, "values": [], "handle": f"{PREFIX}/n0"}


def test_handle_is_repeated_as_written(shared: Harness) -> None:
    for written in (f"{PREFIX}/N0", f"{PREFIX}%2Fn0", f"%31{PREFIX[1:]}/n0"):
        answer = json_of(shared.get(f"/api/handles/{written}"))
        assert answer["responseCode"] == 1
        assert answer["handle"] == written.replace("%2F", "/").replace("%31", "1")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_handle_is_repeated(shared: Harness, text: str) -> None:
    name = f"{PREFIX}/{text}"
    answer = shared.get(f"/api/handles/{encode_path(name)}")
    assert json_of(answer)["handle"] == name
    assert answer.status in (200, 404)


@pytest.mark.parametrize(
    "suffix", ["a b", "a/b", "//", "a/", "..", "%2F", "a?b#c", "日本", "a;b=c&d+e", "100%", "<&>\"'"]
)
def test_handles_with_special_characters_are_found(server: Harness, suffix: str) -> None:
    name = f"{PREFIX}/{suffix}"
    make(server, name, Value.text(1, "URL", "https://example.org/"))
    answer = json_of(server.get(f"/api/handles/{encode_path(name)}"))
    assert (answer["responseCode"], answer["handle"]) == (1, name)


def test_slashes_distinguish_handles(shared: Harness) -> None:
    for name in (f"{PREFIX}/n0/", f"{PREFIX}//n0", f"{PREFIX}/./n0", f"{PREFIX}/x/../n0"):
        answer = shared.get(f"/api/handles/{name}")
        assert (answer.status, json_of(answer)) == (404, {"responseCode": 100, "handle": name})


def test_name_without_slash_is_a_prefix(shared: Harness) -> None:
    answer = json_of(shared.get(f"/api/handles/{PREFIX}?type=HS_ADMIN"))
    assert (answer["responseCode"], answer["handle"]) == (1, PREFIX)
    assert json_of(shared.get("/api/handles/99999")) == {"responseCode": 100, "handle": "99999"}


def test_empty_suffix_is_not_found(shared: Harness) -> None:
    answer = shared.get(f"/api/handles/{PREFIX}/")
    assert (answer.status, json_of(answer)) == (404, {"responseCode": 100, "handle": f"{PREFIX}/"})


def test_invalid_utf_8_is_not_found(shared: Harness) -> None:
    answer = shared.get(f"/api/handles/{PREFIX}/%FF")
    assert (answer.status, json_of(answer)["handle"]) == (404, f"{PREFIX}/\ufffd")


def test_handle_of_a_prefix_that_starts_with_a_dot_is_not_found_at_every_interface(shared: Harness) -> None:
    for name in ("0.NA/.7", "0.NA/.", "0.NA/..7"):
        answer = shared.get(f"/api/handles/{name}")
        assert (answer.status, json_of(answer)) == (404, {"responseCode": 100, "handle": name})
        problem = shared.get(f"/api/v1/handles/{name.replace('/', '%2F')}")
        assert (problem.status, json.loads(problem.body)["detail"]) == (404, f"Handle {name} does not exist")
        assert shared.get(f"/{name}").status == 404


ELSEWHERE = "This server does not host prefix 99999. Check the prefix, or use the service that hosts it"


def test_prefix_of_another_service_is_not_hosted(shared: Harness) -> None:
    for name, prefix in (("99999/x", "99999"), (f"/{PREFIX}/n0", '""')):
        answer = shared.get(f"/api/handles/{name}")
        plain = json_of(answer)
        assert (answer.status, plain["responseCode"], plain["handle"]) == (400, 301, name)
        assert plain["message"].startswith(f"This server does not host prefix {prefix}. ")


URL_FORMS = ("https://hdl.handle.net/", "http://doi.org/", "https://hdl.example.org/", "https://hdl.example.org/hdl/")


@pytest.mark.parametrize("before", ["hdl:", "HDL:", "doi:", "urn:hdl:", "info:hdl/", *URL_FORMS])
def test_uri_instead_of_handle_is_reported(shared: Harness, before: str) -> None:
    for name in (f"{PREFIX}/n0", "99999/x"):
        answer = shared.get(f"/api/handles/{before}{name}")
        assert (answer.status, json_of(answer)["responseCode"]) == (400, 301)
        assert f". Write the handle alone: {name}" in json_of(answer)["message"]
        body = {"handle": f"{before}{name}", "values": []}
        answers = [
            shared.get(f"/api/v1/handles/{quote(before + name, safe='')}"),
            shared.post("/api/v1/handles", json.dumps(body), headers={"Content-Type": "application/json", **basic()}),
        ]
        assert {json.loads(each.body).get("advice") for each in answers} == {f"Write the handle alone: {name}"}


@pytest.mark.parametrize("tail", ["?part=1", "#top", ""])
def test_advice_about_a_uri_reads_its_escapes_and_query(shared: Harness, tail: str) -> None:
    uri = f"hdl:{PREFIX}/Report%2D7{tail}"
    answer = shared.post(
        "/api/v1/handles",
        json.dumps({"handle": uri, "values": []}),
        headers={"Content-Type": "application/json", **basic()},
    )
    read = shared.get(f"/api/v1/handles/{quote(uri, safe='')}")
    assert {json.loads(each.body)["advice"] for each in (answer, read)} == {
        f"Write the handle alone: {PREFIX}/Report-7"
    }


def test_hosted_prefixes_are_shown_only_with_permission_to_list(server: Harness) -> None:
    """A caller who cannot list the prefixes does not get them as advice."""
    somebody = Value(300, "HS_SECKEY", b"theirs", permissions=PRIVATE)
    server.registry.do(Create(Handle.parse(f"{PREFIX}/somebody"), (somebody,)), OPERATOR, "cli")
    unprivileged: list[dict[str, str]] = [{}, basic(f"300:{PREFIX}/somebody", "theirs")]
    for number in range(8):
        answer = server.post(f"/api/prefixes/777{number}", headers=basic())
        assert answer.status == 200
    for path in ("/api/handles/99999/x", "/api/v1/handles/99999%2Fx", "/99999/x"):
        told = [server.get(path, headers={"Accept": "application/json", **identity}) for identity in unprivileged]
        for each in (*told, server.get(path)):
            assert each.status in (400, 404)
            assert b"hosted here:" not in each.body
            assert b"777" not in each.body
    assert json_of(server.get("/api/handles/99999/x"))["message"] == ELSEWHERE
    administrator = json_of(server.get("/api/handles/99999/x", headers=basic()))["message"]
    assert administrator.endswith(f"hosted here: {PREFIX}, 7770, 7771, 7772, 7773, …")
    own = json.loads(server.get("/api/v1/handles/99999%2Fx", headers=basic()).body)
    assert own["advice"].endswith("7773, …")


@pytest.mark.parametrize("query", ["index=abc", "index=", "index=2147483648", "index=various", "index=1&index=x"])
def test_invalid_index_is_refused(shared: Harness, query: str) -> None:
    answer = shared.get(f"{N0}?{query}")
    plain = json_of(answer)
    assert (answer.status, plain["responseCode"]) == (400, 4)
    assert "handle" not in plain
    assert "index" in plain["message"]


def test_empty_handle_is_refused(shared: Harness) -> None:
    for target in ("/api/handles", "/api/handles/"):
        answer = shared.get(target)
        assert (answer.status, json_of(answer)) == (400, {"responseCode": 102, "message": "Empty handle invalid"})


def test_tombstone_can_be_read(server: Harness) -> None:
    server.registry.do(Tombstone(Handle.parse(f"{PREFIX}/n1"), "it was lost"), OPERATOR, "cli")
    answer = json_of(server.get(f"/api/handles/{PREFIX}/n1"))
    assert answer["responseCode"] == 1
    assert "it was lost" in [value["data"]["value"] for value in answer["values"]]


# POST as GET


def test_post_has_parameters_in_body(shared: Harness) -> None:
    by_form = shared.post(f"{N0}?index=1", "index=3", headers=FORM)
    by_json = shared.post(f"{N0}?index=1", '{"index": "3"}', headers={"Content-Type": "application/json"})
    for answer in (by_form, by_json):
        assert [value["index"] for value in json_of(answer)["values"]] == [1, 3]
        assert header_of(answer, "Cache-Control") == "no-store"
        assert header_of(answer, "ETag") is None


def test_response_format_may_be_in_body(shared: Harness) -> None:
    answer = shared.post(f"{N0}?index=1", "callback=f&pretty", headers=FORM)
    assert answer.body.startswith(b"f({\n  ")


@pytest.mark.parametrize("body", ["[]", '{"index": null}', '{"index": {}}', "{"])
def test_invalid_body_is_refused(shared: Harness, body: str) -> None:
    answer = shared.post(N0, body, headers={"Content-Type": "application/json"})
    assert (answer.status, json_of(answer)["responseCode"]) == (400, 4)
    assert "handle" not in json_of(answer)


def test_other_bodies_are_ignored(shared: Harness) -> None:
    assert shared.post(N0, "{", headers={"Content-Type": "text/plain"}).status == 200
    assert shared.ask("GET", N0, "{", headers={"Content-Type": "application/json"}).status == 200


def test_post_does_not_create(shared: Harness) -> None:
    for body, status, code in (("", 404, 100), ('[{"type": "URL", "parsed_data": "https://example.org/"}]', 400, 4)):
        answer = shared.post(f"/api/handles/{PREFIX}/none", body, headers={"Content-Type": "application/json"})
        assert (answer.status, json_of(answer)["responseCode"]) == (status, code)
        assert "use PUT" in json_of(answer)["message"]
    assert shared.get(f"/api/handles/{PREFIX}/none").status == 404


# Permissions


def test_anonymous_callers_see_public_values(shared: Harness) -> None:
    assert 9 not in indexes(shared, HIDDEN)
    assert json_of(shared.get(f"{HIDDEN}?index=9"))["responseCode"] == 200
    assert 9 not in indexes(shared, f"{HIDDEN}?publicOnly=true", headers=basic())


def test_administrator_sees_all_values(shared: Harness) -> None:
    assert 9 in indexes(shared, HIDDEN, headers=basic())
    assert indexes(shared, f"{HIDDEN}?index=9", headers=basic()) == [9]


def test_private_values_require_authentication(shared: Harness) -> None:
    answer = shared.get(f"{HIDDEN}?publicOnly=false")
    assert (answer.status, json_of(answer)["responseCode"], json_of(answer)["handle"]) == (
        401,
        402,
        f"{PREFIX}/private",
    )
    assert len(list(answer.values("WWW-Authenticate"))) == 2
    assert shared.get(f"{N0}?publicOnly=false").status == 200


def test_plain_http_gets_no_challenge_but_a_reason(shared: Harness) -> None:
    answer = shared.get(f"{HIDDEN}?publicOnly=false", secure=False, headers=basic())
    assert (answer.status, json_of(answer)["responseCode"]) == (403, 402)
    assert not list(answer.values("WWW-Authenticate"))
    assert "HTTPS" in json_of(answer)["message"]
    assert 9 not in indexes(shared, HIDDEN, secure=False, headers=basic())
    assert 9 in indexes(shared, HIDDEN, secure=False, local=True, headers=basic())


def test_refused_read_has_advice(server: Harness) -> None:
    make(
        server,
        f"{PREFIX}/user",
        Value(300, "HS_SECKEY", b"secret", permissions=PRIVATE),
        Value.text(1, "DESC", "somebody"),
    )
    answer = server.get(HIDDEN, headers=basic(f"300:{PREFIX}/user", "secret"))
    plain = json_of(answer)
    assert (answer.status, plain["responseCode"]) == (403, 400)
    assert f"300:{PREFIX}/user cannot" in plain["message"]
    assert "READ_VALUE" in plain["message"]
    assert "publicOnly=true" in plain["message"]
    assert server.get(N0, headers=basic(f"300:{PREFIX}/user", "secret")).status == 200


def test_value_without_read_permission_is_not_returned(server: Harness) -> None:
    make(server, f"{PREFIX}/nobody", Value(1, "X", b"x", permissions=Permission.ADMIN_WRITE), Value.text(2, "Y", "y"))
    answer = server.get(f"/api/handles/{PREFIX}/nobody", headers=basic())
    assert (answer.status, json_of(answer)["responseCode"]) == (403, 401)


def test_failed_authentication_is_refused_even_public_values(shared: Harness) -> None:
    for target, handle in ((N0, f"{PREFIX}/n0"), ("/api/site", None), ("/api/nope", None), ("/api", None)):
        answer = shared.get(target, headers=basic(ADMINISTRATOR, SECRET + "x"))
        plain = json_of(answer)
        assert (answer.status, plain["responseCode"], plain.get("handle")) == (401, 403, handle)
        assert header_of(answer, "Cache-Control") == "no-store"


def test_server_status_is_for_administrators(shared: Harness) -> None:
    target = "/api/handles/0.SITE/status"
    assert json_of(shared.get(target)) == {"responseCode": 200, "values": [], "handle": "0.SITE/status"}
    assert shared.get(f"{target}?publicOnly=false").status == 401
    found = json_of(shared.get(target, headers=basic()))
    assert {value["type"] for value in found["values"]} >= {"READY", "ENTRIES"}
    assert json_of(shared.get(f"{target}?type=NONE", headers=basic()))["responseCode"] == 200


def test_records_of_the_installation_cannot_be_read(shared: Harness) -> None:
    for name in ("0.SITE/homed", f"0.site/policy/{PREFIX}"):
        answer = shared.get(f"/api/handles/{name}", headers=basic())
        assert (answer.status, json_of(answer)["responseCode"]) == (400, 301)


# Caching


def test_public_values_are_cached_by_ttl(server: Harness) -> None:
    now = int(server.context.time())
    name = f"{PREFIX}/ttl"
    make(
        server,
        name,
        Value(1, "A", b"x", 60),
        Value(2, "B", b"y", 600),
        Value(3, "C", b"z", now + 300, TtlType.ABSOLUTE),
        Value(4, "D", b"z", 400_000),
        Value(5, "E", b"z", now + 400_000, TtlType.ABSOLUTE),
        Value(6, "F", b"z", 1, TtlType.ABSOLUTE),
    )
    server.hold_time()
    lifetime = now + 300 - int(server.context.time())
    target = f"/api/handles/{name}"
    kept = {
        "?index=1&index=2": "public, max-age=60",
        "?index=2": "public, max-age=600",
        "?index=2&index=3": f"public, max-age={lifetime}",
        "?index=4": "public, max-age=172800",
        "?index=5": "public, max-age=172800",
        "": "public, max-age=0",
        "?index=2&auth": "no-cache",
        "?index=2&auth=true": "no-cache",
        "?index=99": "no-cache",
    }
    for query, said in kept.items():
        answer = server.get(target + query)
        assert header_of(answer, "Cache-Control") == said, query
        assert header_of(answer, "Vary") == "Authorization, Accept-Datetime"
    assert header_of(server.get(target, headers=basic()), "Cache-Control") == "no-store"
    assert header_of(server.get(f"{target}x"), "Cache-Control") == "no-store"


def test_response_with_session_is_not_cached(shared: Harness) -> None:
    answer = shared.get(N0, headers={"Authorization": 'Handle cnonce="AAAAAAAAAAAAAAAAAAAAAA=="'})
    assert answer.status == 200
    assert "sessionId" in (header_of(answer, "WWW-Authenticate") or "")
    assert header_of(answer, "Cache-Control") == "no-store"


def test_matching_tag_gets_304(shared: Harness) -> None:
    tag = header_of(shared.get(N0), "ETag")
    assert tag
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        answer = shared.get(N0, headers={"If-None-Match": known})
        assert (answer.status, answer.body) == (304, b"")
        assert header_of(answer, "ETag") == tag
        assert header_of(answer, "Cache-Control") == "public, max-age=86400"
    assert shared.head(N0, headers={"If-None-Match": tag}).status == 304
    for other in ('"x"', tag.replace('"', ""), ""):
        assert shared.get(N0, headers={"If-None-Match": other}).status == 200


def test_tag_changes_with_record(server: Harness) -> None:
    name = f"{PREFIX}/tagged"
    make(server, name, Value.text(1, "A", "x"), Value(2, "B", b"y", permissions=PRIVATE), OWNED)
    target = f"/api/handles/{name}"
    public, private = header_of(server.get(target), "ETag"), header_of(server.get(target, headers=basic()), "ETag")
    assert public != private
    make(server, name, Value.text(1, "A", "x"), Value(2, "B", b"z", permissions=PRIVATE), OWNED)
    assert header_of(server.get(target), "ETag") == public, "nothing is told of what is private"
    assert header_of(server.get(target, headers=basic()), "ETag") != private
    make(server, name, Value.text(1, "A", "changed"))
    assert header_of(server.get(target), "ETag") != public


def test_head_equals_get_without_body(shared: Harness) -> None:
    for target in (N0, f"{N0}?pretty", f"{N0}x", "/api/site", "/api"):
        assert shared.head(target) == shared.get(target)


def test_wrong_server_of_site_is_reported() -> None:
    with harness() as server:
        (one,) = server.context.site.servers
        shared_site = replace(server.context.site, servers=(one, replace(one, server_id=2)))
        rules = server.registry.rules
        answers = set()
        for position in (0, 1):
            server.registry.rules = replace(rules, partition=Partition(shared_site, position))
            answers.add(server.get(N0).status)
        assert answers == {200, 400}


# Templates


def test_template_creates_values_without_record(server: Harness) -> None:
    template = (
        '<namespace><template delimiter="@"><if test="equals" expression="none"><notfound/></if><else>'
        '<foreach><if value="type" expression="URL"><value data="${data}#${extension}"/></if></foreach>'
        "</else></template></namespace>"
    )
    added = server.put(
        f"/api/handles/{PREFIX}?index=50",
        [{"index": 50, "type": "HS_NAMESPACE", "data": template}],
        headers=basic(),
    )
    assert added.status == 201, added.body
    made = server.get(f"{N0}@Part")
    plain = json_of(made)
    assert plain["handle"] == f"{PREFIX}/n0@Part"
    assert [value["data"]["value"] for value in plain["values"]] == ["https://example.org/0#Part"]
    assert header_of(made, "ETag") not in (None, header_of(server.get(f"{N0}@Other"), "ETag"))
    assert indexes(server, f"{N0}@Part", headers=basic()) == [1]
    assert json_of(server.get(f"{N0}@Part?type=EMAIL"))["responseCode"] == 200
    assert server.get(f"{N0}x@Part").status == 200
    assert server.get(f"{N0}@none").status == 404
    for answer in (server.delete(f"{N0}@Part", headers=basic()), server.put(f"{N0}@Part?index=1", [], headers=basic())):
        assert answer.status in (400, 404)
    put = server.put(f"{N0}@Part", [{"index": 1, "type": "URL", "data": "stored"}], headers=basic())
    assert put.status == 201
    assert json_of(server.get(f"{N0}@Part"))["values"][0]["data"]["value"] == "stored"


# Changed keys


def test_key_changed_meanwhile_is_refused(server: Harness) -> None:
    """The record with the key may change between authentication and execution."""
    for headers in (basic(), in_session(server)):
        do = server.context.do
        count = 0

        async def changing(work: Work, client: Client, do: WorkRunner = do) -> object:
            nonlocal count
            count += 1
            if work.kind is WorkKind.READ and count == (2 if "Basic" in str(headers) else 1):  # noqa: B023
                name = Handle.parse(f"0.NA/{PREFIX}")
                new = Value(300, "HS_SECKEY", b"another", permissions=PRIVATE)
                server.registry.do(Modify(name, (new,)), OPERATOR, "cli")
            return await do(work, client)

        object.__setattr__(server.service.server, "do", changing)
        answer = server.get(HIDDEN, headers=headers)
        object.__setattr__(server.service.server, "do", do)
        plain = json_of(answer)
        assert (answer.status, plain["responseCode"], plain["handle"]) == (401, 403, f"{PREFIX}/private")
        assert list(answer.values("WWW-Authenticate"))
        old = Value(300, "HS_SECKEY", SECRET.encode(), permissions=PRIVATE)
        server.registry.do(Modify(Handle.parse(f"0.NA/{PREFIX}"), (old,)), OPERATOR, "cli")


def test_server_without_prefixes_lists_none() -> None:
    with harness() as server:
        assert server.delete(f"/api/prefixes/{PREFIX}", headers=basic()).status == 200
        message = json_of(server.get(N0))["message"]
        assert message == ELSEWHERE.replace("99999", PREFIX)

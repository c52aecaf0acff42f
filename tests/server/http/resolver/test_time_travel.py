"""Time travel over HTTP: `at`, `Accept-Datetime` and TimeMaps, at the resolver, on pages and in the API.

Requirements of RFC 7089 for each response are in `test_memento_http`.
"""

from dataclasses import replace
from email.utils import formatdate
from typing import Final
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.registry.commands.lifecycle import Revive, Tombstone, Unpublish
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Delete, Modify
from perseid.registry.policy.policy import PROFILES
from perseid.registry.policy.resolution import MAX_CACHE_LIFETIME
from tests.registry.queries.link_parser import read_links
from tests.server.http.contexts import basic, header_of, json_of
from tests.server.http.resolver.resolver_records import location_of, page_of, text
from tests.server.http.resolver.time_travel_records import (
    HOME,
    JSON,
    START,
    Machine,
    Moved,
    iso,
    links_of,
)
from tests.server.native.native_servers import ADMIN, BY_ADMINS, HIDDEN, PREFIX
from tests.wire.key_material import SECRET

SOMEBODY: Final = basic(f"301:{ADMIN}", SECRET)


# At a time


def test_handle_redirects_to_earlier_target(machine: Machine, moved: Moved) -> None:
    then = machine.get(f"/{moved.name}?at={moved.seqs[0]}")
    assert (then.status, location_of(then)) == (302, "https://one.example/")
    assert location_of(machine.get(f"/{moved.name}")) == "https://two.example/"
    for at in (moved.seqs[0], iso(moved.times[0]), iso(moved.times[1] - 1), str(moved.times[0] * 1_000_000)):
        assert location_of(machine.get(f"/{moved.name}?at={at}")) == "https://one.example/", at
    zone = iso(moved.times[0]).replace("Z", "+00:00")
    assert location_of(machine.get(f"/{moved.name}?at={zone}")) == "https://one.example/"
    assert json_of(machine.get(f"/api/handles/{moved.name}?at={zone}"))["version"]["seq"] == moved.seqs[0], (
        "a plus sign"
    )


def test_state_after_entry_is_cacheable(machine: Machine, moved: Moved) -> None:
    fixed = machine.get(f"/{moved.name}?at={moved.seqs[0]}")
    assert header_of(fixed, "Cache-Control") == f"public, max-age={MAX_CACHE_LIFETIME}, immutable"
    assert header_of(fixed, "Vary") == "Accept", "whatever time a header names"
    by_time = machine.get(f"/{moved.name}?at={iso(moved.times[0])}")
    assert header_of(by_time, "Cache-Control") == "public, max-age=60"
    assert header_of(machine.get(f"/{moved.name}?at={moved.seqs[0]}&auth"), "Cache-Control") == "no-cache"
    api = machine.get(f"/api/handles/{moved.name}?at={moved.seqs[0]}")
    assert header_of(api, "Cache-Control") == f"public, max-age={MAX_CACHE_LIFETIME}, immutable"


def test_memento_headers(machine: Machine, moved: Moved) -> None:
    for target in (
        f"/{moved.name}?at={{}}",
        f"/{moved.name}?noredirect&at={{}}",
        f"/{moved.name}?action=json-ld&at={{}}",
    ):
        answer = machine.get(target.format(moved.seqs[0]))
        assert header_of(answer, "Memento-Datetime") == formatdate(moved.times[0], usegmt=True)
        links = links_of(answer)
        assert [link.target for link in links["original"]] == [f"{HOME}/{moved.name}"]
        assert [link.target for link in links["timegate"]] == [f"{HOME}/{moved.name}"]
        assert [link.target for link in links["timemap"]] == [f"{HOME}/timemap/link/{moved.name}"]
        assert [link.target for link in links["first"]] == [f"{HOME}/{moved.name}?at={moved.seqs[0]}"]
        (following,) = links["next"]
        assert following.target == f"{HOME}/{moved.name}?at={moved.seqs[1]}"
        assert following.one("datetime") == formatdate(moved.times[1], usegmt=True)
        assert "prev" not in links
    assert header_of(machine.get(f"/{moved.name}"), "Memento-Datetime") is None


def test_page_of_version_links_other_versions(machine: Machine, moved: Moved) -> None:
    page = page_of(machine.get(f"/{moved.name}?noredirect&at={moved.seqs[0]}"))
    assert f"This is the version of {iso(moved.times[0])}" in page.text
    assert "https://one.example/" in page.text
    assert f"/{moved.name}?noredirect&at={moved.seqs[1]}" in page.links
    assert f"/{moved.name}?action=redirect&at={moved.seqs[0]}" in page.links
    assert f"/{moved.name}?noredirect" in page.links
    for link in [link for link in page.links if "at=" in link]:
        assert machine.get(link).status in (200, 302), link
    assert "This is the version" not in page_of(machine.get(f"/{moved.name}?noredirect")).text


def test_json_of_version(machine: Machine, moved: Moved) -> None:
    for answer in (
        machine.get(f"/api/handles/{moved.name}?at={moved.seqs[0]}"),
        machine.get(f"/{moved.name}?at={moved.seqs[0]}", headers=JSON),
        machine.get(f"/{moved.name}?action=api&at={moved.seqs[0]}"),
    ):
        plain = json_of(answer)
        assert plain["responseCode"] == 1
        assert plain["values"][0]["data"]["value"] == "https://one.example/"
        assert plain["version"] == {"seq": moved.seqs[0], "time": iso(moved.times[0])}
        assert header_of(answer, "Memento-Datetime") == formatdate(moved.times[0], usegmt=True)
    assert "version" not in json_of(machine.get(f"/api/handles/{moved.name}")), "as clients know it"
    some = json_of(machine.get(f"/api/handles/{moved.name}?at={moved.seqs[0]}&type=TITLE"))
    assert [value["type"] for value in some["values"]] == ["TITLE"]
    none = json_of(machine.get(f"/api/handles/{moved.name}?at={moved.seqs[0]}&type=NONE"))
    assert (none["responseCode"], none["values"]) == (200, [])


def test_version_has_tag_in_api(machine: Machine, moved: Moved) -> None:
    target = f"/api/handles/{moved.name}?at={moved.seqs[0]}"
    tag = header_of(machine.get(target), "ETag")
    assert tag
    assert machine.get(target, headers={"If-None-Match": tag}).status == 304
    assert machine.get(f"/api/handles/{moved.name}?at={moved.seqs[1]}", headers={"If-None-Match": tag}).status == 200
    page = f"/{moved.name}?noredirect&at={moved.seqs[0]}"
    same = machine.get(page, headers={"If-None-Match": header_of(machine.get(page), "ETag") or ""})
    assert same.status == 304
    assert header_of(same, "Memento-Datetime") == formatdate(moved.times[0], usegmt=True)


@pytest.mark.parametrize(
    "at", ["2190-01-01", "99999999", str(10**17), "x", "", "-1", "1e3", "٣", "2026-13-01", "9" * 40, "T 10:00"]
)
def test_future_and_invalid_times_are_refused(machine: Machine, moved: Moved, at: str) -> None:
    target = f"/{moved.name}?at={at}".encode()
    for answer in (machine.server.get(target), machine.server.get(b"/api/handles" + target)):
        assert answer.status == 400
        assert b"entry" in answer.body or b"future" in answer.body


def test_not_found_before_creation(machine: Machine, moved: Moved) -> None:
    before = moved.seqs[0] - 1
    first = {"seq": moved.seqs[0], "time": iso(moved.times[0])}
    for at in (before, 0, 1, iso(START)):
        answer = machine.get(f"/{moved.name}?at={at}")
        page = page_of(answer)
        assert answer.status == 404
        assert f"Its first version is from {iso(moved.times[0])}." in page.text
        assert f"/{moved.name}?at={moved.seqs[0]}&noredirect" in page.links
        assert [link.target for link in links_of(answer)["first"]] == [f"{HOME}/{moved.name}?at={moved.seqs[0]}"]
        assert header_of(answer, "Memento-Datetime") is None
        assert json_of(machine.get(f"/{moved.name}?at={at}", headers=JSON))["first"] == first
        api = machine.get(f"/api/handles/{moved.name}?at={at}")
        assert (api.status, json_of(api)["first"]) == (404, first)
    absent = machine.get(f"/{PREFIX}/never?at={before}")
    assert (absent.status, links_of(absent)) == (404, {})
    assert json_of(machine.get(f"/api/handles/{PREFIX}/never?at={before}")) == {
        "responseCode": 100,
        "handle": f"{PREFIX}/never",
    }


def test_no_links_without_public_url(machine: Machine, moved: Moved) -> None:
    context = machine.server.context
    try:
        machine.server.configure(public_url="")
        then = machine.get(f"/{moved.name}?at={moved.seqs[0]}")
        assert header_of(then, "Memento-Datetime") is not None
        assert links_of(then) == links_of(machine.get(f"/{moved.name}")) == {}
        assert location_of(machine.get(f"/{moved.name}", START)) == f"/{moved.name}?at={moved.seqs[0]}"
        assert machine.get(f"/timemap/link/{moved.name}").status == 404
        assert machine.get(f"/api/handles/{moved.name}?at={moved.seqs[0]}").status == 200
        page_of(machine.get(f"/{moved.name}?noredirect&at={moved.seqs[0]}"))
    finally:
        machine.server.service.server = context


# Other parts of earlier states


def test_tombstone_redirects_at_earlier_time(machine: Machine) -> None:
    name = f"{PREFIX}/gone"
    alive = machine.put(name, text(1, "URL", "https://alive.example/"))
    gone = machine.do(Tombstone(Handle.parse(name), "It was withdrawn."))
    assert location_of(machine.get(f"/{name}?at={alive}")) == "https://alive.example/"
    for target in (f"/{name}", f"/{name}?at={gone}"):
        answer = machine.get(target)
        assert answer.status == 410
        assert "It was withdrawn." in page_of(answer).text
    assert "This is the version of" in page_of(machine.get(f"/{name}?at={gone}")).text
    assert machine.get(f"/{name}?at={gone}", headers=JSON).status == 410
    machine.do(Revive(Handle.parse(name)))
    assert location_of(machine.get(f"/{name}")) == "https://alive.example/"
    assert "It was withdrawn." in page_of(machine.get(f"/{name}?at={gone}")).text, "and not what it is today"


def test_deleted_handle_has_history(machine: Machine) -> None:
    name = f"{PREFIX}/deleted"
    alive = machine.put(name, text(1, "URL", "https://alive.example/"))
    ended = machine.do(Delete(Handle.parse(name)))
    assert machine.get(f"/{name}").status == 404
    assert location_of(machine.get(f"/{name}?at={alive}")) == "https://alive.example/"
    answer = machine.get(f"/{name}?at={ended}")
    assert answer.status == 404
    assert "was deleted at that time" in page_of(answer).text
    assert f"/{name}?at={alive}&noredirect" in page_of(answer).links
    assert json_of(machine.get(f"/api/handles/{name}?at={ended}"))["previous"]["seq"] == alive
    assert location_of(machine.get(f"/{name}", machine.now)) == f"{HOME}/{name}?at={alive}", "the last that there was"


def test_values_hidden_later_stay_hidden(machine: Machine) -> None:
    name, handle = f"{PREFIX}/hidden-since", Handle.parse(f"{PREFIX}/hidden-since")
    secret = text(2, "DESC", "a secret of today")
    shown = machine.put(name, text(1, "URL", "https://seen.example/"), secret)
    machine.do(Modify(handle, (replace(secret, permissions=HIDDEN),)))
    targets = (
        f"/{name}?noredirect&at={shown}",
        f"/api/handles/{name}?at={shown}",
        f"/{name}?action=json-ld&at={shown}",
    )
    for target in targets:
        answer = machine.get(target)
        assert answer.status == 200
        assert b"a secret of today" not in answer.body
        assert b"https://seen.example/" in answer.body
    mine = machine.get(f"/api/handles/{name}?at={shown}", headers=SOMEBODY)
    assert b"a secret of today" in mine.body, "its administrators see it"
    assert header_of(mine, "Cache-Control") == "no-store"
    for credentials in (SOMEBODY, {}):
        assert b"a secret of today" not in machine.get(f"/{name}?noredirect&at={shown}", headers=credentials).body


def test_unpublished_handle_has_no_history(machine: Machine) -> None:
    name = f"{PREFIX}/unpublished"
    shown = machine.put(name, text(1, "URL", "https://seen.example/"))
    machine.do(Unpublish(Handle.parse(name)))
    for answer in (
        machine.get(f"/{name}?at={shown}"),
        machine.get(f"/{name}", machine.now),
        machine.get(f"/timemap/link/{name}"),
        machine.get(f"/timemap/json/{name}"),
        machine.get(f"/api/handles/{name}?at={shown}"),
        machine.get(f"/api/handles/{name}", machine.now),
    ):
        assert answer.status == 404
        assert links_of(answer) == {}
        assert b"first" not in answer.body
        assert b"previous" not in answer.body


def test_namespace_may_hide_history(machine: Machine) -> None:
    policy = replace(PROFILES["free"], show_past=False)
    machine.do(AddNamespace("77", policy, (BY_ADMINS,)))
    shown = machine.put("77/x", text(1, "URL", "https://one.example/"))
    last = machine.put("77/x", text(1, "URL", "https://two.example/"))
    refused = machine.get(f"/77/x?at={shown}")
    assert refused.status == 403
    assert "administrators only" in page_of(refused).text
    assert machine.get(f"/api/handles/77/x?at={shown}").status == 403
    assert location_of(machine.get(f"/77/x?at={last}")) == "https://two.example/"
    mementos = json_of(machine.get("/timemap/json/77/x"))["mementos"]["list"]
    assert [each["seq"] for each in mementos] == [last]


def test_aliases_are_followed_as_of_time(machine: Machine, moved: Moved) -> None:
    name = f"{PREFIX}/alias"
    pointing = machine.put(name, text(1, "HS_ALIAS", moved.name))
    machine.put(name, text(1, "URL", "https://other.example/"))
    answer = machine.get(f"/{name}?at={pointing}&type=HS_ALIAS&type=URL")
    assert (answer.status, location_of(answer)) == (301, f"{HOME}/{moved.name}?at={pointing}&type=HS_ALIAS&type=URL")
    assert location_of(machine.get(f"/{name}")) == "https://other.example/"


def test_namespace_locations_are_as_of_time(machine: Machine) -> None:
    machine.do(
        AddNamespace("78", PROFILES["free"], (BY_ADMINS, text(1, "HS_NAMESPACE", f"<n><locs>{PREFIX}/l</locs></n>")))
    )
    place = '<l><location href="https://{}.example/" weight="5"/></l>'
    machine.put(f"{PREFIX}/l", text(1, "10320/loc", place.format("old")))
    then = machine.put("78/x", text(1, "10320/loc", "<l/>"))
    machine.put(f"{PREFIX}/l", text(1, "10320/loc", place.format("new")))
    assert location_of(machine.get("/78/x")) == "https://new.example/"
    assert location_of(machine.get(f"/78/x?at={then}")) == "https://old.example/"


def test_template_handle_has_history_without_versions(machine: Machine) -> None:
    value = '<value index="1" type="URL" data="https://{}.example/${{extension}}"/>'
    template = f'<n><template delimiter="@">{value}</template></n>'
    machine.do(AddNamespace("79", PROFILES["free"], (BY_ADMINS, text(1, "HS_NAMESPACE", template.format("old")))))
    machine.put("79/base", text(1, "DESC", "x"))
    begun = machine.now
    then = machine.put("79/other", text(1, "DESC", "y"))
    machine.put("0.NA/79", text(1, "HS_NAMESPACE", template.format("new")))
    assert location_of(machine.get("/79/base@e")) == "https://new.example/e"
    old = machine.get(f"/79/base@e?at={then}")
    assert location_of(old) == "https://old.example/e"
    assert location_of(machine.get("/79/base@e", begun)) == f"{HOME}/79/base@e?at={then - 1}"
    assert machine.get("/79/base@e?at=1").status == 404
    assert (
        json_of(machine.get("/api/handles/79/base@e", begun))["values"][0]["data"]["value"] == "https://old.example/e"
    )
    assert machine.get("/timemap/link/79/base@e").status == 404


# Accept-Datetime


def test_handle_is_its_own_timegate(machine: Machine, moved: Moved) -> None:
    cases = (
        (moved.times[0] - 1_000_000, 0),
        (moved.times[0], 0),
        (moved.times[1] - 1, 0),
        (moved.times[1], 1),
        (moved.times[1] + 1_000_000_000, 1),
    )
    for seconds, expected in cases:
        answer = machine.get(f"/{moved.name}", seconds)
        assert (answer.status, location_of(answer)) == (302, f"{HOME}/{moved.name}?at={moved.seqs[expected]}")
        assert header_of(answer, "Vary") == "Accept, Accept-Datetime"
        assert header_of(answer, "Cache-Control") == "no-cache"
        assert header_of(answer, "Memento-Datetime") is None, "that is not the memento yet"
        links = links_of(answer)
        assert [link.target for link in links["original"]] == [f"{HOME}/{moved.name}"]
        assert {"timemap", "timegate", "first", "last", "memento"} <= set(links)
    followed = machine.get(f"/{moved.name}?at={moved.seqs[0]}", moved.times[1])
    assert location_of(followed) == "https://one.example/", "a memento is what it is, whatever time is asked for"


def test_timegate_keeps_query(machine: Machine, moved: Moved) -> None:
    answer = machine.get(f"/hdl/{moved.name}?noredirect&type=URL;x=%C3%BC", START)
    assert location_of(answer) == f"{HOME}/hdl/{moved.name}?noredirect&type=URL;x=%C3%BC&at={moved.seqs[0]}"
    posted = machine.server.post(f"/{moved.name}", headers={"Accept-Datetime": formatdate(START, usegmt=True)})
    assert location_of(posted) == "https://two.example/", "only what is read is negotiated"


def test_current_responses_vary_by_time(machine: Machine, moved: Moved) -> None:
    for target in (f"/{moved.name}", f"/{moved.name}?noredirect", f"/{PREFIX}/absent", f"/{moved.name}?action=bibtex"):
        assert "Accept-Datetime" in (header_of(machine.get(target), "Vary") or ""), target
    assert header_of(machine.get(f"/api/handles/{moved.name}"), "Vary") == "Authorization, Accept-Datetime"
    links = links_of(machine.get(f"/{moved.name}"))
    assert [link.target for link in links["timegate"]] == [f"{HOME}/{moved.name}"]
    assert [link.target for link in links["timemap"]] == [f"{HOME}/timemap/link/{moved.name}"]


def test_api_returns_version_without_redirect(machine: Machine, moved: Moved) -> None:
    answer = machine.get(f"/api/handles/{moved.name}", moved.times[0])
    assert json_of(answer)["values"][0]["data"]["value"] == "https://one.example/"
    assert header_of(answer, "Content-Location") == f"{HOME}/api/handles/{moved.name}?at={moved.seqs[0]}"
    assert header_of(answer, "Memento-Datetime") == formatdate(moved.times[0], usegmt=True)
    assert header_of(answer, "Vary") == "Authorization, Accept-Datetime"
    assert header_of(answer, "Cache-Control") == "no-cache"
    links = links_of(answer)
    assert [link.target for link in links["next"]] == [f"{HOME}/api/handles/{moved.name}?at={moved.seqs[1]}"]
    assert "timemap" not in links, "which lists other addresses"
    put = machine.server.put(
        f"/api/handles/{moved.name}?overwrite=true", {"values": []}, headers={"Accept-Datetime": "nonsense"}
    )
    assert put.status == 401, "a change has no time"


@pytest.mark.parametrize(
    "time", ["", "yesterday", "2026-11-15", "Sun, 31 Feb 2027 10:00:00 GMT", "Sun, 15 Nov 2026 10:00"]
)
def test_invalid_time_is_refused(machine: Machine, moved: Moved, time: str) -> None:
    for target in (f"/{moved.name}", f"/api/handles/{moved.name}", f"/{PREFIX}/absent"):
        answer = machine.get(target, headers={"Accept-Datetime": time})
        assert answer.status == 400
        assert b"Accept-Datetime" in answer.body


def test_unknown_handle_has_no_timegate(machine: Machine) -> None:
    for name in (f"{PREFIX}/never", "999/x", f"{PREFIX}/a%0Ab"):
        answer = machine.get(f"/{name}", START)
        assert answer.status in (400, 404)
        assert header_of(answer, "Location") is None


# TimeMaps


def test_timemaps_list_the_versions(machine: Machine, moved: Moved) -> None:
    answer = machine.get(f"/timemap/link/{moved.name}")
    assert header_of(answer, "Content-Type") == "application/link-format"
    assert header_of(answer, "ETag") is not None
    links = read_links(answer.body.decode())
    mementos = [link for link in links if "memento" in link.relations]
    assert [link.target for link in mementos] == [f"{HOME}/{moved.name}?at={seq}" for seq in moved.seqs]
    assert [link.target for link in links if link.relations == ["original"]] == [f"{HOME}/{moved.name}"]
    plain = json_of(machine.get(f"/timemap/json/{moved.name}"))
    assert plain["original_uri"] == plain["timegate_uri"] == f"{HOME}/{moved.name}"
    assert [each["seq"] for each in plain["mementos"]["list"]] == list(moved.seqs)
    for uri in (plain["timemap_uri"]["link_format"], *[each["uri"] for each in plain["mementos"]["list"]]):
        assert machine.get(uri.removeprefix(HOME)).status in (200, 302)


def test_long_timemaps_have_pages(machine: Machine) -> None:
    name = f"{PREFIX}/long life"
    seqs = [machine.put(name, text(1, "DESC", f"version {number}")) for number in range(120)]
    found: list[int] = []
    address: str | None = f"/timemap/json/{PREFIX}/long%20life"
    while address is not None:
        plain = json_of(machine.get(address))
        found = [each["seq"] for each in plain["mementos"]["list"]] + found
        older = [each["uri"] for each in plain.get("timemap_index", ()) if "until" in each]
        address = older[0].removeprefix(HOME) if older else None
    assert found == seqs


@pytest.mark.parametrize("before", ["x", "-1", "", "1e3", "9" * 30, "0"])
def test_invalid_page_is_refused(machine: Machine, moved: Moved, before: str) -> None:
    assert machine.get(f"/timemap/link/{moved.name}?before={before}").status == 400


@pytest.mark.parametrize("path", ["/timemap", "/timemap/", "/timemap/link", "/timemap/link/", "/timemap/xml/1/2"])
def test_other_paths_are_not_timemaps(machine: Machine, path: str) -> None:
    assert machine.get(path).status == 404


def test_invalid_and_inactive_handles_have_no_timemap(machine: Machine) -> None:
    inactive = text(1, "HS_NAMESPACE", "<n><status>inactive</status></n>")
    machine.do(AddNamespace("76", PROFILES["free"], (BY_ADMINS,)))
    seq = machine.put("76/x", text(1, "URL", "https://x.example/"))
    assert machine.get("/timemap/link/76/x").status == 200
    machine.put("76/gone", text(1, "URL", "https://gone.example/"))
    machine.do(Delete(Handle.parse("76/gone")))
    machine.put("0.NA/76", inactive)
    names = ("/76/x", "/76/gone", "/76/never", "/76/gone?at=2", f"/76/x?at={seq}", "/76/x?at=2", f"/76/gone?at={seq}")
    for target in ("/timemap/link/76/x", *names):
        answer = machine.get(target)
        assert answer.status == 404
        assert "no longer in use" in page_of(answer).text
        assert list(answer.values("Link")) == [], "links lead to nothing else"
    assert "no longer in use" in page_of(machine.get("/76/gone", machine.now)).text
    for name in (f"{PREFIX}/a%0Ab", "999/x", f"{PREFIX}/never", f"{PREFIX}/%FF"):
        assert machine.get(f"/timemap/json/{name}").status in (400, 404)


def test_metadata_is_as_of_time(machine: Machine) -> None:
    policy = replace(PROFILES["pilin"], default_creator=f"{PREFIX}/moved")
    machine.do(AddNamespace("102.100.272", policy, (BY_ADMINS,)))
    first = machine.put("102.100.272/2RDV0T0QH", text(1, "URL", "https://one.example/"))
    begun = iso(machine.now)
    machine.put("102.100.272/2RDV0T0QH", text(1, "URL", "https://two.example/"))
    then = page_of(machine.get(f"/102.100.272/2RDV0T0QH?noredirect&at={first}")).text
    now = page_of(machine.get("/102.100.272/2RDV0T0QH?noredirect")).text
    assert f"Last update{begun}" in then
    assert f"Last update{begun}" not in now
    assert f"Creatorhdl:{PREFIX}/moved" in then


def test_handles_with_special_characters_have_history(machine: Machine) -> None:
    name = f"{PREFIX}/a/../b?c#d%20 ü/"
    seq = machine.put(name, text(1, "URL", "https://odd.example/"))
    (link,) = links_of(machine.get(f"/{PREFIX}/a%2F..%2Fb%3Fc%23d%2520%20%C3%BC%2F"))["timemap"]
    listed = read_links(machine.get(link.target.removeprefix(HOME)).body.decode())
    (memento,) = [each.target for each in listed if "memento" in each.relations]
    assert memento.endswith(f"?at={seq}")
    assert location_of(machine.get(memento.removeprefix(HOME))) == "https://odd.example/"


def test_prefix_named_like_a_page_is_reached_under_segment(machine: Machine) -> None:
    for prefix in ("timemap", "generate"):
        machine.do(AddNamespace(prefix, PROFILES["free"], (BY_ADMINS,)))
        seq = machine.put(f"{prefix}/x", text(1, "URL", f"https://{prefix}.example/"))
        assert location_of(machine.get(f"/hdl/{prefix}/x")) == f"https://{prefix}.example/"
        answer = machine.get(f"/hdl/{prefix}/x", START)
        assert location_of(answer) == f"{HOME}/hdl/{prefix}/x?at={seq}"
    assert location_of(machine.get("/generate/x")) == "https://generate.example/", "only that very path is the page's"


# Properties


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.one_of(st.integers(0, 10**20).map(str), st.text(max_size=30), st.datetimes().map(str)))
def test_any_time_gets_a_response(machine: Machine, moved: Moved, at: str) -> None:
    for target in (f"/{moved.name}", f"/api/handles/{moved.name}"):
        answer = machine.server.get(f"{target}?at={quote(at)}")
        assert answer.status in (200, 302, 400, 404)
        assert (header_of(answer, "Memento-Datetime") is not None) == (answer.status in (200, 302))

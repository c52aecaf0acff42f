"""Requirements of RFC 7089 for each response: `Vary`, `Memento-Datetime` and links, section by section."""

from dataclasses import replace
from email.utils import formatdate

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Delete, Modify
from perseid.registry.policy.policy import PROFILES
from perseid.server.http.messages import Response
from perseid.server.http.resolver.paths import MAX_LINK_BYTES, MAX_SIGNPOSTED_NAME
from tests.registry.queries.link_parser import ReadLink, read_links
from tests.server.http.contexts import header_of, json_of
from tests.server.http.resolver.resolver_records import location_of, page_of, text
from tests.server.http.resolver.time_travel_records import HOME, JSON, START, Machine, Moved, links_of
from tests.server.native.native_servers import BY_ADMINS, HIDDEN, PREFIX


def is_time_gate(answer: Response, original: str) -> None:
    """Check a response that depends on the time, and says so (2.1.2, 2.2.1, 2.2.2)."""
    assert "accept-datetime" in (header_of(answer, "Vary") or "").lower()
    _is_linked(answer, original)


def is_memento(answer: Response, original: str, seconds: int) -> None:
    """Check a response about a fixed time (4.1.1, 4.5.6)."""
    assert header_of(answer, "Memento-Datetime") == formatdate(seconds, usegmt=True)
    assert "accept-datetime" not in (header_of(answer, "Vary") or "").lower()
    _is_linked(answer, original)


def _is_linked(answer: Response, original: str) -> None:
    links = links_of(answer)
    assert [link.target for link in links["original"]] == [original], "exactly one"
    assert [link.target for link in links["timegate"]] == [original]
    for link in links.get("timemap", ()):
        assert link.one("type") == "application/link-format"
    for link in links.get("memento", ()):
        assert link.one("datetime"), "of each the time is told (2.2.4)"


# TimeGates


@pytest.mark.parametrize(
    "query", ["", "?noredirect", "?action=showurls", "?action=explain", "?action=json-ld", "?type=NONE"]
)
def test_every_response_about_a_handle_varies_by_time(machine: Machine, moved: Moved, query: str) -> None:
    for headers in ({}, JSON):
        answer = machine.get(f"/{moved.name}{query}", headers=headers)
        is_time_gate(answer, f"{HOME}/{moved.name}")
        assert header_of(answer, "Memento-Datetime") is None
    led = machine.get(f"/{moved.name}{query}", moved.times[0])
    is_time_gate(led, f"{HOME}/{moved.name}")
    assert header_of(led, "Memento-Datetime") is None, "that is not the memento yet (4.1.1)"
    is_memento(machine.get((location_of(led) or "").removeprefix(HOME)), f"{HOME}/{moved.name}", moved.times[0])


@pytest.mark.parametrize("query", ["", "?type=NONE", "?publicOnly=true"])
def test_api_record_is_its_own_timegate(machine: Machine, moved: Moved, query: str) -> None:
    target = f"/api/handles/{moved.name}{query}"
    original = f"{HOME}/api/handles/{moved.name}"
    is_time_gate(machine.get(target), original)
    negotiated = machine.get(target, moved.times[0])
    is_time_gate(negotiated, original)
    assert header_of(negotiated, "Memento-Datetime") == formatdate(moved.times[0], usegmt=True), "pattern 1.2"
    assert header_of(negotiated, "Content-Location") == f"{original}?at={moved.seqs[0]}"
    then = f"{target}{'&' if query else '?'}at={moved.seqs[0]}"
    is_memento(machine.get(then), original, moved.times[0])
    assert "timemap" not in links_of(machine.get(target)), "which lists other addresses"
    assert links_of(machine.server.post(target)) == {}, "only what is read is negotiated"


def test_head_has_the_same_headers(machine: Machine, moved: Moved) -> None:
    time = {"Accept-Datetime": formatdate(START, usegmt=True)}
    for target in (f"/{moved.name}", f"/{moved.name}?at={moved.seqs[0]}", f"/api/handles/{moved.name}"):
        for headers in ({}, time):
            answer = machine.server.get(target, headers=headers)
            assert machine.server.head(target, headers=headers).headers == answer.headers, target
    for target in (f"/timemap/link/{moved.name}", f"/timemap/json/{moved.name}"):
        assert machine.server.head(target).headers == machine.server.get(target).headers


@pytest.mark.parametrize("time", ["nonsense", "Sun, 31 Feb 2027 10:00:00 GMT", ""])
def test_invalid_time_is_refused_by_timegate(machine: Machine, moved: Moved, time: str) -> None:
    """Section 4.5.3: 400 with the headers and links of a TimeGate; the handle need not exist."""
    for name in (moved.name, f"{PREFIX}/never"):
        for path in ("", "/api/handles"):
            answer = machine.get(f"{path}/{name}", headers={"Accept-Datetime": time})
            assert answer.status == 400
            is_time_gate(answer, f"{HOME}{path}/{name}")
            assert "memento" not in links_of(answer)


def test_two_times_are_refused(machine: Machine, moved: Moved) -> None:
    times = [formatdate(seconds, usegmt=True) for seconds in moved.times]
    for target in (f"/{moved.name}", f"/api/handles/{moved.name}"):
        assert machine.server.get(target, headers={"Accept-Datetime": times}).status == 400
        assert machine.server.get(target, headers={"Accept-Datetime": times[:1]}).status in (200, 302)


def test_wrong_weekday_is_ignored(machine: Machine, moved: Moved) -> None:
    right = formatdate(moved.times[0], usegmt=True)
    for day in ("Mon", "Tue", "Wed"):
        answer = machine.get(f"/{moved.name}", headers={"Accept-Datetime": f"{day}{right[3:]}"})
        assert location_of(answer) == f"{HOME}/{moved.name}?at={moved.seqs[0]}"


# Aliases


def test_alias_is_a_resource_of_its_own(machine: Machine) -> None:
    """Section 4.5.4: a memento of a redirect is the same redirect, with the headers of a memento."""
    target = Moved.made(machine, f"{PREFIX}/meant")
    name = f"{PREFIX}/other-name"
    seq = machine.put(name, text(1, "HS_ALIAS", target.name))
    made = machine.now
    now = machine.get(f"/{name}")
    assert (now.status, location_of(now)) == (301, f"{HOME}/{target.name}")
    is_time_gate(now, f"{HOME}/{name}")
    then = machine.get(f"/{name}?at={seq}")
    assert (then.status, location_of(then)) == (301, f"{HOME}/{target.name}?at={seq}")
    is_memento(then, f"{HOME}/{name}", made)
    listed = read_links(machine.get(f"/timemap/link/{name}").body.decode())
    assert [link.target for link in listed if "memento" in link.relations] == [f"{HOME}/{name}?at={seq}"]


def test_alias_redirects_to_target_at_that_time(machine: Machine) -> None:
    """The version of an alias may be much older than the requested time."""
    name, meant = f"{PREFIX}/old-alias", f"{PREFIX}/younger"
    seq = machine.put(name, text(1, "HS_ALIAS", meant))
    for place in ("one", "two", "three"):
        machine.put(meant, text(1, "URL", f"https://{place}.example/"))
        led = machine.get(f"/{name}", machine.now)
        on = machine.get((location_of(led) or "").removeprefix(HOME))
        assert location_of(machine.get((location_of(on) or "").removeprefix(HOME))) == f"https://{place}.example/"
    assert location_of(machine.get(f"/{name}", START)) == f"{HOME}/{name}?at={seq}", "before the first, the first"
    unfollowed = machine.get(f"/{name}?ignore_aliases", machine.now)
    assert location_of(unfollowed) == f"{HOME}/{name}?ignore_aliases&at={seq}"
    ended = machine.do(Delete(Handle.parse(name)))
    assert location_of(machine.get(f"/{name}", machine.now)) == f"{HOME}/{name}?at={seq}"
    assert machine.get(f"/{name}?at={ended}").status == 404


def test_redirect_does_not_reveal_private_alias(machine: Machine, moved: Moved) -> None:
    shown, alias = text(1, "URL", "https://seen.example/"), text(2, "HS_ALIAS", moved.name)
    name, hidden_since = f"{PREFIX}/quiet", f"{PREFIX}/quiet-since"
    seq = machine.put(name, shown, replace(alias, permissions=HIDDEN))
    machine.put(hidden_since, shown, alias)
    latest = machine.do(Modify(Handle.parse(hidden_since), (replace(alias, permissions=HIDDEN),)))
    machine.put(f"{PREFIX}/meanwhile", text(1, "DESC", "x"))
    assert location_of(machine.get(f"/{name}", machine.now)) == f"{HOME}/{name}?at={seq}"
    assert location_of(machine.get(f"/{hidden_since}", machine.now)) == f"{HOME}/{hidden_since}?at={latest}"


# Versions without visible values


@pytest.mark.parametrize(
    "value",
    [
        replace(text(1, "DESC", "private"), permissions=HIDDEN),
        text(1, "HS_ALIAS", f"{PREFIX}/empty-HS_ALIAS"),
        text(1, "HS_ALIAS", f"{PREFIX}/never"),
        text(1, "HS_ALIAS", "999/elsewhere"),
    ],
    ids=["nothing public", "a circle", "an alias of nothing", "an alias of something elsewhere"],
)
def test_version_without_visible_values_is_a_memento(machine: Machine, value: Value) -> None:
    """Section 4.5.5: every URL of a TimeMap has its `Memento-Datetime`, whatever its status."""
    name = f"{PREFIX}/empty-{value.type}"
    seq = machine.put(name, value, interface="import")  # only an import can have an alias of itself
    (listed,) = [
        link
        for link in read_links(machine.get(f"/timemap/link/{name}").body.decode())
        if link.target == f"{HOME}/{name}?at={seq}"
    ]
    for headers in ({}, JSON):
        then = machine.get(f"/{name}?at={seq}", headers=headers)
        is_memento(then, f"{HOME}/{name}", machine.now)
        assert header_of(then, "Memento-Datetime") == listed.one("datetime")
        now = machine.get(f"/{name}", headers=headers)
        assert now.status == then.status, "as it is now"
        is_time_gate(now, f"{HOME}/{name}")


def test_tombstone_has_memento_headers(machine: Machine) -> None:
    name = f"{PREFIX}/withdrawn"
    machine.put(name, text(1, "URL", "https://alive.example/"))
    seq = machine.do(Tombstone(Handle.parse(name), "It was withdrawn."))
    then = machine.get(f"/{name}?at={seq}")
    assert then.status == 410
    is_memento(then, f"{HOME}/{name}", machine.now)
    is_time_gate(machine.get(f"/{name}"), f"{HOME}/{name}")


def test_deleted_handle_links_its_history(machine: Machine) -> None:
    """Section 4.5.2: a server that knows of it links the TimeGate, although the resource is gone."""
    name = f"{PREFIX}/was-here"
    seq = machine.put(name, text(1, "URL", "https://alive.example/"))
    made = machine.now
    machine.do(Delete(Handle.parse(name)))
    answer = machine.get(f"/{name}")
    assert answer.status == 404
    is_time_gate(answer, f"{HOME}/{name}")
    assert [link.target for link in links_of(answer)["last"]] == [f"{HOME}/{name}?at={seq}"]
    page = page_of(answer)
    assert "The handle was deleted." in page.text
    assert f"/{name}?at={seq}&noredirect" in page.links
    plain = json_of(machine.get(f"/{name}", headers=JSON))
    assert plain["previous"] == {"seq": seq, "time": plain["previous"]["time"]}
    api = machine.get(f"/api/handles/{name}")
    assert json_of(api) == {"responseCode": 100, "handle": name}, "as clients know it"
    assert [link.target for link in links_of(api)["timegate"]] == [f"{HOME}/api/handles/{name}"]
    assert [link.target for link in links_of(machine.get(f"/api/handles/{name}?suggest"))["timegate"]]
    after = machine.get(f"/{name}?at={seq + 1}")
    assert (after.status, header_of(after, "Memento-Datetime")) == (404, None), "it is in no list, so it is no memento"
    is_memento(machine.get(f"/{name}?at={seq}"), f"{HOME}/{name}", made)


def test_hidden_handles_have_no_links(machine: Machine) -> None:
    name = f"{PREFIX}/hidden-now"
    machine.put(name, text(1, "URL", "https://seen.example/"))
    machine.do(Unpublish(Handle.parse(name)))
    policy = replace(PROFILES["free"], show_past=False)
    machine.do(AddNamespace("70", policy, (BY_ADMINS,)))
    machine.put("70/deleted", text(1, "URL", "https://seen.example/"))
    machine.do(Delete(Handle.parse("70/deleted")))
    for unknown in (name, "70/deleted"):
        prefix = unknown.partition("/")[0]
        for path in ("", "/api/handles"):
            answer, never = machine.get(f"{path}/{unknown}"), machine.get(f"{path}/{prefix}/never-was")
            assert answer.status == never.status == 404
            assert answer.headers == never.headers or links_of(answer) == links_of(never) == {}


# Templates


def test_template_handle_has_times_but_no_timemap(machine: Machine) -> None:
    value = '<value index="1" type="URL" data="https://{}.example/${{extension}}"/>'
    template = f'<n><template delimiter="@">{value}</template></n>'
    machine.do(AddNamespace("71", PROFILES["free"], (BY_ADMINS, text(1, "HS_NAMESPACE", template.format("old")))))
    machine.put("71/base", text(1, "DESC", "x"))
    begun, unrelated = machine.now, machine.put(f"{PREFIX}/unrelated", text(1, "DESC", "y"))
    machine.put("0.NA/71", text(1, "HS_NAMESPACE", template.format("new")))
    for target in ("/71/base@e", "/71/base@e?noredirect"):
        now = machine.get(target)
        is_time_gate(now, f"{HOME}/71/base@e")
        assert "timemap" not in links_of(now), "it has no versions of its own"
        led = machine.get(target, begun)
        is_time_gate(led, f"{HOME}/71/base@e")
        is_memento(machine.get((location_of(led) or "").removeprefix(HOME)), f"{HOME}/71/base@e", begun)
    is_memento(machine.get(f"/71/base@e?at={unrelated}"), f"{HOME}/71/base@e", begun)
    is_memento(machine.get("/71/base@e?at=" + str(unrelated + 1)), f"{HOME}/71/base@e", machine.now)
    api = machine.get("/api/handles/71/base@e", begun)
    is_time_gate(api, f"{HOME}/api/handles/71/base@e")
    assert header_of(api, "Memento-Datetime") == formatdate(begun, usegmt=True)
    assert (header_of(api, "Content-Location") or "").startswith(f"{HOME}/api/handles/71/base@e?at=")
    is_memento(machine.get(f"/api/handles/71/base@e?at={unrelated}"), f"{HOME}/api/handles/71/base@e", begun)


def test_timegate_does_not_redirect_to_inactive_namespace(machine: Machine) -> None:
    machine.do(AddNamespace("72", PROFILES["free"], (BY_ADMINS,)))
    machine.put("72/x", text(1, "URL", "https://x.example/"))
    machine.put("0.NA/72", text(1, "HS_NAMESPACE", "<n><status>inactive</status></n>"))
    answer = machine.get("/72/x", machine.now)
    assert answer.status == 404
    assert "no longer in use" in page_of(answer).text


# Long names


@pytest.mark.parametrize("length", [MAX_SIGNPOSTED_NAME, 1_500, 2_030])
def test_links_of_long_names(machine: Machine, length: int) -> None:
    name = f"{PREFIX}/{'x' * (length - len(PREFIX) - 1)}"
    seq = machine.put(name, text(1, "URL", "https://long.example/"))
    assert len(f"{HOME}/{name}") < MAX_LINK_BYTES or length > 2_000
    for answer in (machine.get(f"/{name}"), machine.get(f"/{name}?at={seq}"), machine.get(f"/{name}", START)):
        links = links_of(answer)
        if length > 2_000:
            assert links == {}, "not even the first of them fits"
        else:
            assert [link.target for link in links["original"]] == [f"{HOME}/{name}"]


# TimeMaps and own pages


def _header_links(answer: Response) -> list[ReadLink]:
    return [link for value in answer.values("Link") for link in read_links(value)]


def test_timemap_headers_name_the_original(machine: Machine, moved: Moved) -> None:
    """Section 5.1.2: a link from the original resource to the TimeMap."""
    for form, type_ in (("link", "application/link-format"), ("json", "application/json")):
        for query in ("", f"?before={moved.seqs[1]}"):
            address = f"{HOME}/timemap/{form}/{moved.name}{query}"
            answer = machine.get(address.removeprefix(HOME))
            (link,) = _header_links(answer)
            assert (link.target, link.relations, link.one("anchor")) == (address, ["timemap"], f"{HOME}/{moved.name}")
            assert link.one("type") == type_


def test_timemap_ignores_accept_datetime(machine: Machine, moved: Moved) -> None:
    for name in (moved.name, f"{PREFIX}/never", "999/x"):
        answers = [machine.get(f"/timemap/link/{name}", seconds) for seconds in (None, START)]
        assert answers[0].body == answers[1].body
        assert "accept-datetime" not in (header_of(answers[0], "Vary") or "").lower()


@pytest.mark.parametrize(
    "path", ["/", "/help.html", "/static/perseid.css", "/favicon.ico", "/resolver.json", "/ledger"]
)
def test_own_pages_are_not_negotiated(machine: Machine, path: str) -> None:
    """Section 4.5.8: and they say so."""
    answer = machine.get(path, START)
    assert answer.status == 200
    (link,) = _header_links(answer)
    assert (link.target, link.relations) == ("http://mementoweb.org/terms/donotnegotiate", ["type"])
    assert "accept-datetime" not in (header_of(answer, "Vary") or "").lower()

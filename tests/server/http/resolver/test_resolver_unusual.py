"""Unusual cases of the web resolver: referrals, sites with several servers, invalid data."""

import gc
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import policy_name
from perseid.ledger.log.requests import Append
from perseid.names.handle import Handle
from perseid.names.uri import MAX_ENCODED_LENGTH
from perseid.records.admin import Admin
from perseid.records.data_types import Definition
from perseid.records.partition import find_server_index
from perseid.records.record import Value, ValueRef
from perseid.records.site import Attribute
from perseid.records.types import HS_ADMIN
from perseid.registry.commands.records import Delete, PartialValue, SetValues
from perseid.registry.partition import Partition
from perseid.registry.policy.types import definition_values
from perseid.registry.snapshot import POLICY_TYPE
from perseid.server.http.messages import Response
from perseid.server.http.pages.record_page import record_page
from perseid.server.http.resolver import resolver as resolver_module
from perseid.server.http.resolver.lookup import MAX_LINK_CHECKS, LookupResult
from tests.server.http.contexts import Harness, basic, header_of, json_of
from tests.server.http.resolver.resolver_records import (
    add_namespace,
    create,
    location_of,
    locations,
    page_of,
    resolver,
    text,
)
from tests.server.installations import OPERATOR

JSON = {"Accept": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with resolver() as made:
        yield made


def break_policy(server: Harness, prefix: str) -> None:
    """Store an invalid policy in the ledger."""
    value = Value(1, POLICY_TYPE, b"nonsense")
    draft = Draft(Action.UPDATE, State.NORMAL, policy_name(prefix), "test", "local:test", values=(value,))
    server.registry.ledger.append(Append(draft))


def test_derived_prefix_of_another_service(server: Harness) -> None:
    add_namespace(server, "60", "free", text(1, "HS_SERV.PREFIX", "0.SERV/60"))
    answer = server.get("/60.1")
    assert (answer.status, page_of(answer).title) == (300, "Resolution Error")
    assert "Another service" in page_of(answer).text
    assert json_of(server.get("/60.1", headers=JSON))["responseCode"] == 303


def test_handle_of_another_server_of_the_site(server: Harness) -> None:
    site, rules = server.context.site, server.registry.rules
    plain = replace(site.servers[0], interfaces=())
    mine = find_server_index(b"12345/url", site.hash_option, 2)
    create(server, "12345/to-other", text(1, "HS_ALIAS", "12345/url"))
    try:
        two = replace(site, servers=(plain, plain))
        server.registry.rules = replace(rules, partition=Partition(two, mine))
        assert location_of(server.get("/12345/url")) == "https://example.org/a"
        server.registry.rules = replace(rules, partition=Partition(two, 1 - mine))
        answer = server.get("/12345/url")
        assert (answer.status, page_of(answer).title) == (421, "Resolution Error")
        assert f"12345/url belongs to server {mine + 1} of this site" in page_of(answer).text
        assert json_of(server.get("/12345/url", headers=JSON))["responseCode"] == 301
        # Whether it exists is not known here, so nothing else is suggested.
        assert "is hosted here" not in page_of(answer).text
        problem = server.get("/api/v1/handles/12345%2Furl")
        assert (problem.status, {"suggestions", "prefix"} & json.loads(problem.body).keys()) == (421, set())
        wrong = json_of(server.get("/api/handles/12345/url?suggest"))
        assert (wrong["responseCode"], {"suggestions", "prefix"} & wrong.keys()) == (301, set())
        known = replace(two, attributes=(Attribute(f"url.{mine}", b"https://other.example/"),))
        server.registry.rules = replace(rules, partition=Partition(known, 1 - mine))
        answer = server.get("/12345/url?noredirect&type=URL")
        assert (answer.status, location_of(answer)) == (307, "https://other.example/12345/url?noredirect&type=URL")
        other = find_server_index(b"12345/to-other", site.hash_option, 2)
        expected = "12345/url" if other != mine else "12345/to-other"
        assert location_of(server.get("/12345/to-other")) == f"https://other.example/{expected}"
    finally:
        server.registry.rules = rules


def test_invalid_policy_reveals_nothing(server: Harness) -> None:
    add_namespace(server, "61")
    create(server, "61/x", text(1, "URL", "https://example.org/"))
    create(server, "61/list", locations('<location href="https://example.org/"/>'))
    create(server, "12345/including", locations("", 'include="61/list"'), text(2, "URL", "https://own.example/"))
    create(server, "12345/typed-there", text(1, "61/x", "no link"))
    break_policy(server, "61")
    for path in ("/61/x", "/61/x?part=1", "/61/absent"):
        answer = server.get(path)
        assert answer.status == 500
        assert page_of(answer).title in ("Resolution Error", "System Error")
        assert json_of(server.get(path, headers=JSON))["responseCode"] == 2
    assert location_of(server.get("/12345/including")) == "https://own.example/"
    assert "/61/x" not in page_of(server.get("/12345/typed-there")).links


def test_invalid_alias_is_ignored(server: Harness) -> None:
    create(server, "12345/bad-alias", Value(1, "HS_ALIAS", b"\xff"), text(2, "URL", "https://own.example/"))
    create(server, "12345/blank-alias", text(1, "HS_ALIAS", " "), text(2, "URL", "https://own.example/"))
    create(server, "12345/second-alias", Value(1, "HS_ALIAS", b"\xff"), text(2, "HS_ALIAS", "12345/url"))
    for name in ("bad-alias", "blank-alias"):
        assert location_of(server.get(f"/12345/{name}")) == "https://own.example/"
    assert server.get("/12345/second-alias").status == 301


def test_alias_may_be_a_prefix_or_invalid(server: Harness) -> None:
    create(server, "12345/to-prefix", text(1, "HS_ALIAS", "12345"))
    assert location_of(server.get("/12345/to-prefix")) == "https://hdl.example.org/12345"
    create(server, "12345/to-nothing", text(1, "HS_ALIAS", "12345/"))
    assert server.get("/12345/to-nothing").status == 404


def test_h5_citations_and_changes_have_the_registered_spelling(server: Harness) -> None:
    upper = "3000.01/0123456789ABCDEF0123456789ABCDEF"
    lower, url = upper.lower(), f"https://hdl.example.org/{upper}"
    values = [{"index": 1, "type": "URL", "data": "https://c.example/"}]
    for status in (201, 200):
        answer = server.put(f"/api/handles/{lower}", values, headers=basic())
        assert (answer.status, json_of(answer)["handle"]) == (status, upper)
        assert header_of(answer, "Location") == (f"/api/handles/{upper}" if status == 201 else None)
    assert json_of(server.get(f"/api/handles/{lower}"))["handle"] == lower, "resolution repeats the requested handle"
    for query in ("", "?part=2"):
        words = page_of(server.get(f"/{lower}?noredirect{query.replace('?', '&')}")).words
        lines = "".join(words[words.index("Cite") :]).split("\n")
        assert f"URI Copyhdl:{upper}{query}" in lines
        assert f"Link Copy{url}{query}" in lines
    links = ", ".join(server.get(f"/{lower}?noredirect").values("Link"))
    assert f'<{url}>; rel="cite-as"' in links
    assert lower not in links
    assert json.loads(server.get(f"/{lower}?action=csl-json").body)["URL"] == url
    create(server, "12345/to-lower", text(1, "HS_ALIAS", lower))
    assert location_of(server.get("/12345/to-lower")) == url
    body = json.dumps({"handle": lower.replace("0123", "1123"), "values": values})
    made = server.ask("POST", "/api/v1/handles", body, headers={"Content-Type": "application/json", **basic()})
    name = upper.replace("0123", "1123")
    assert (json.loads(made.body)["handle"], header_of(made, "Location")) == (
        name,
        f"/api/v1/handles/{quote(name, safe='')}",
    )


def test_a6_type_of_another_service_has_a_copy_of_its_definition(server: Harness) -> None:
    add_namespace(server, "71", "pilin")
    create(server, "71/BCDFGHJKH", text(1, "102.100.TYPE/CREATOR", "71/BCDFGHJKH"))
    path = "/102.100.TYPE/CREATOR"
    assert path in page_of(server.get("/71/BCDFGHJKH?noredirect")).links
    for name in (path, path.lower()):
        answer = server.get(name)
        assert answer.status == 200
        assert "This is a copy of the definition. Another service hosts 102.100.TYPE." in page_of(answer).text
        assert "The party that created the identifier." in page_of(answer).text
    found = json.loads(server.get(f"/api/v1/types/{quote(path[1:], safe='')}").body)
    assert (found["handle"], found["copy"], found["example"]) == (path[1:], True, "102.100.272/0N8J991QH")
    address = f"/api/v1/handles/{quote(path[1:], safe='')}"
    copy = json.loads(server.get(address).body)
    assert (copy["handle"], copy["copy"], copy["seq"], "changed" in copy) == (path[1:], True, 0, False)
    assert [value["type"] for value in copy["values"]] == ["DESC", "PERSEID_TYPE"]
    assert json.loads(server.get(f"{address}?type=URL").body)["status"] == 404
    # Where a response means that this server hosts the handle, it is not served. It has no history either.
    assert json_of(server.get(f"/api/handles{path}"))["responseCode"] == 301
    assert json_of(server.get(path, headers=JSON))["responseCode"] == 301
    problem = json.loads(server.get(f"{address}?at=1").body)
    assert problem["advice"] == f"See the copy of the definition: GET /api/v1/types/{quote(path[1:], safe='')}"
    assert server.get("/102.100.TYPE/OTHER").status == 400


def test_a6_page_of_a_type_explains_its_values(server: Harness) -> None:
    attack = "<script>alert(1)</script>"
    scale = Definition.make("Scale", f"The scale of a map. {attack}", pattern="1:[0-9]+", example="1:25000")
    create(server, "12345/SCALE", *definition_values(scale))
    create(server, "12345/map", text(1, "12345/SCALE", "1:50000"))
    assert "/12345/SCALE" in page_of(server.get("/12345/map?noredirect")).links
    answer = server.get("/12345/scale")
    page = page_of(answer)
    assert (answer.status, page.title) == (200, "Scale – type of values")
    for part in ("12345/SCALE", f"The scale of a map. {attack}", "1:[0-9]+", "1:25000"):
        assert part in page.text
    assert "copy of the definition" not in page.text
    assert {"/12345/SCALE?noredirect", "/12345/SCALE?action=history", "/api/v1/types/12345%2FSCALE"} <= {*page.links}
    assert server.get("/api/v1/types/12345%2FSCALE").status == 200
    record = page_of(server.get("/12345/SCALE?noredirect"))
    assert "PERSEID_TYPE" in record.text
    assert json_of(server.get("/12345/SCALE", headers=JSON))["handle"] == "12345/SCALE"
    shape = Definition.make("Shape", "Any shape.", schema={"type": "object"})
    create(server, "12345/SHAPE", *definition_values(shape))
    assert '"type": "object"' in page_of(server.get("/12345/SHAPE")).text
    create(server, "12345/ANY", *definition_values(Definition.make("Any", "Whatever.")))
    assert "any text" in page_of(server.get("/12345/ANY")).text


def test_invalid_namespace_is_ignored(server: Harness) -> None:
    key = "0.NA/62"
    add_namespace(server, "62", "free", text(2, "EMAIL", "prefix@example.org"))
    values = (Value(1, "HS_NAMESPACE", b"<n"), text(2, "EMAIL", "prefix@example.org"))
    draft = Draft(Action.UPDATE, State.NORMAL, key, "test", "local:test", values=values)
    server.registry.ledger.append(Append(draft))
    assert "mailto:prefix@example.org" in page_of(server.get("/62/absent")).links


def test_link_checks_of_a_page_are_limited(server: Harness) -> None:
    many = [text(index, f"12345/n{index % 50}.{index}", "x") for index in range(1, MAX_LINK_CHECKS + 50)]
    known = text(1_000, "12345/n0", "known, and too far down to be looked for")
    administrator = Value(1_001, HS_ADMIN, Admin(ValueRef(300, "12345/n1")).to_bytes())
    create(server, "12345/many-types", *many, known, administrator)
    create(server, "12345/few-types", administrator)
    page = page_of(server.get("/12345/many-types"))
    assert not {"/12345/n0", "/12345/n1"} & set(page.links)
    assert "too far down" in page.text
    assert "/12345/n1" in page_of(server.get("/12345/few-types?noredirect")).links, "no other page lacks the link"


def test_long_texts_are_not_cached_as_names(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[object] = []
    monkeypatch.setattr(server.context.shared_parts, "add", lambda key, *_: added.append(key))
    longest = "12345/" + "x" * (MAX_ENCODED_LENGTH - 6)
    create(server, "12345/long-names", text(1, "HS_ALIAS", longest), text(2, "HS_ALIAS", f"{longest}x"))
    assert server.get("/12345/long-names?noredirect&ignore_aliases").status == 200
    assert ("page", longest) in added
    assert ("page", f"{longest}x") not in added


def test_page_that_is_requested_again_is_kept(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def write(found: LookupResult, *more: Any) -> Response:
        written.append(found.name)
        return record_page(found, *more)

    monkeypatch.setattr(resolver_module, "record_page", write)
    create(server, "12345/kept", text(1, "URL", "https://kept.example/1", 60), text(2, "HS_ALIAS", "12345/kept-other"))
    path, now = "/12345/kept?noredirect&ignore_aliases", 1_800_000_000.0
    monkeypatch.setattr(server.service, "server", replace(server.context, time=lambda: now))
    first, second, third = [server.get(path) for _ in range(3)]
    assert len(written) == 2, "the second page is kept"
    assert first == second == third
    tag = header_of(third, "ETag") or ""
    assert server.get(path, headers={"If-None-Match": tag}).status == 304
    assert server.head(path).headers == third.headers
    now += 100
    later = server.get(path)
    assert header_of(later, "Expires") != header_of(third, "Expires"), "of the time of the request"
    assert (later.body, header_of(later, "Cache-Control")) == (third.body, "public, max-age=60")
    assert json_of(server.get(path, headers=JSON))["handle"] == "12345/kept"
    for other in (f"{path}&type=URL", f"{path}&auth", f"{path}&at=1000"):
        assert server.get(other).headers != later.headers or server.get(other).body != later.body, other
    assert header_of(server.get(f"{path}&auth"), "Cache-Control") == "no-cache"
    server.configure(public_url="https://other.example")
    assert "https://other.example/12345/kept" in server.get(path).body.decode(), "other settings"
    create(server, "12345/kept-other", text(1, "URL", "https://kept.example/2"))
    assert "/12345/kept-other" in page_of(server.get(path)).links, "another record, which the page links"


def test_kept_page_changes_with_its_record(server: Harness) -> None:
    create(server, "12345/changing", text(1, "URL", "https://before.example/"))
    for _ in range(3):
        assert "before.example" in page_of(server.get("/12345/changing?noredirect")).text
    server.registry.do(
        SetValues(Handle.parse("12345/changing"), (PartialValue("URL", b"https://after.example/", 1),)), OPERATOR, "cli"
    )
    assert "after.example" in page_of(server.get("/12345/changing?noredirect")).text
    server.registry.do(Delete(Handle.parse("12345/changing")), OPERATOR, "cli")
    assert server.get("/12345/changing?noredirect").status == 404


def test_kept_page_is_small_also_if_its_record_is_large(server: Harness) -> None:
    paths = [f"/12345/large-{number}?noredirect" for number in range(4)]
    for number in range(len(paths)):
        create(server, f"12345/large-{number}", Value(1, "BYTES", bytes(500_000)))
    tracemalloc.start()
    try:
        for path in paths * 2:
            assert server.get(path).status == 200
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert server.get(paths[0]).status == 200


def test_invalid_links_are_ignored(server: Harness) -> None:
    create(server, "12345/bad-links", text(1, "URL", "https://a.example/"), text(2, "10320/links", "<l><location"))
    answer = server.get("/12345/bad-links")
    assert location_of(answer) == "https://a.example/"
    assert "original timegate" in (header_of(answer, "Link") or ""), "that of the server itself"
    nowhere = '<l><location rel="item"/></l>'
    create(server, "12345/no-links", text(1, "URL", "https://a.example/"), text(2, "10320/links", nowhere))
    assert "original timegate" in (header_of(server.get("/12345/no-links"), "Link") or "")


def test_static_directory_is_not_a_page(server: Harness) -> None:
    assert page_of(server.get("/static/")).title == "Not found"

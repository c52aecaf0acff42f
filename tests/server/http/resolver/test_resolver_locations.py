"""Locations (10320/loc): the choice, their headers, and all of them as XML."""

from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from perseid.records.record import Value
from perseid.server.http.messages import Response
from perseid.server.http.resolver.redirect import MAX_HEADER_BYTES, MAX_HEADERS
from tests.server.http.contexts import Harness, header_of, json_of
from tests.server.http.resolver.resolver_records import (
    add_namespace,
    create,
    location_of,
    locations,
    page_of,
    resolver,
    text,
)

CHROME: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

PLACES: Final = (
    '<location id="0" href="https://uk.example/" country="gb" weight="0"/>'
    '<location id="1" href="https://www1.example/" weight="1"/>'
)
CONNEG: Final = (
    '<location id="0" href="https://page.example/" weight="1"/>'
    '<location id="1" href="https://data.example/" weight="0" http_role="conneg"/>'
    '<location id="2" href="https://turtle.example/" weight="0" http_role="conneg" media-type="text/turtle"/>'
    '<location id="3" href="https://meta.example/" weight="0" role="metadata"/>'
    '<location id="4" href="https://de.example/" weight="0" language="de"/>'
)


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with resolver() as made:
        add_namespace(made, "88")
        create(made, "88/places", locations(PLACES), text(2, "URL", "https://url.example/"))
        create(made, "88/conneg", locations(CONNEG, 'chooseby="locatt,weighted"'))
        status = (
            '<location id="0" href="https://a.example/" http_sc="308"/><location id="1" href="https://b.example/"/>'
        )
        create(made, "88/status", locations(status, 'http_sc="303"'))
        create(made, "88/nonsense", locations('<location href="https://a.example/" http_sc="200"/>'))
        create(made, "88/empty", locations(""), text(2, "URL", "https://url.example/"))
        create(made, "88/broken", text(1, "10320/loc", "<locations><location"), text(2, "URL", "https://url.example/"))
        create(made, "88/lost", text(1, "10320/loc", "<locations><location"))
        create(made, "88/include", locations("", 'include="88/places" no_legacy="yes"'))
        network = (
            '<location href="https://in.example/" addresses="192.0.2.0/24"/><location href="https://out.example/"/>'
        )
        create(made, "88/network", locations(network))
        odd = (
            '<location href="https://a.example/&quot;&lt;&gt;" xmlns="http://www.w3.org/1999/xhtml" onclick="x()" '
            'x="&#10;&lt;"/><location href="javascript:alert(1)"/>'
        )
        create(made, "88/odd", locations(odd))
        create(made, "88/json", locations('<location href="https://j.example/" media-type="application/json"/>'))
        yield made


def chosen(server: Harness, name: str, query: str = "", **how: object) -> str:
    return location_of(server.get(f"/88/{name}?{query}", **how))


# Choice


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "https://www1.example/"),
        ("locatt=id:0", "https://uk.example/"),
        ("locatt=id:0&locatt=id:1", "https://uk.example/"),
        ("locatt=id:9", "https://www1.example/"),
        ("locatt=country:us", "https://www1.example/"),
        ("locatt=country", "https://uk.example/"),
        ("country=gb", "https://www1.example/"),  # from whom nobody trusts
        ("type=URL", "https://url.example/"),
    ],
)
def test_worked_example(server: Harness, query: str, expected: str) -> None:
    assert chosen(server, "places", query) == expected


def test_trusted_peer_reports_location_of_client(server: Harness) -> None:
    assert chosen(server, "places", "country=GB", trusted=True) == "https://uk.example/"
    assert chosen(server, "places", "country=us", trusted=True) == "https://www1.example/"
    assert chosen(server, "network", host="192.0.2.7") == "https://in.example/"
    assert chosen(server, "network", "locatt=x", host="192.0.2.7") == "https://in.example/"
    away = server.get("/88/network?ip=192.0.2.7", host="198.51.100.1")
    assert header_of(away, "Cache-Control") == "private, max-age=86400"
    assert chosen(server, "network", "ip=192.0.2.7", host="198.51.100.1", trusted=True) == "https://in.example/"
    assert chosen(server, "network", "ip=nonsense", host="192.0.2.7", trusted=True) == "https://in.example/"


def test_weights_use_random_source(server: Harness) -> None:
    create(
        server, "88/drawn", locations('<l/><location href="https://a.example/"/><location href="https://b.example/"/>')
    )
    assert {chosen(server, "drawn") for _ in range(40)} == {"https://a.example/", "https://b.example/"}


@pytest.mark.parametrize(
    ("headers", "query", "expected"),
    [
        ({}, "", "https://page.example/"),
        ({"User-Agent": "Mozilla/5.0"}, "", "https://page.example/"),
        ({"Accept": CHROME}, "", "https://page.example/"),
        ({"Accept": "text/turtle"}, "", "https://turtle.example/"),
        ({"Accept": "TEXT/TURTLE;q=0.5, application/rdf+xml;q=0.1"}, "", "https://turtle.example/"),
        ({"Accept": "text/turtle"}, "action=metadata", "https://meta.example/"),
        ({}, "action=metadata", "https://meta.example/"),
        ({"Accept-Language": "en;q=0.5, de"}, "", "https://de.example/"),
        ({"Accept-Language": "de-DE"}, "", "https://page.example/"),
        ({"Accept": "text/turtle"}, "locatt=id:0", "https://page.example/"),
    ],
)
def test_headers_choose_among_locations(server: Harness, headers: dict[str, str], query: str, expected: str) -> None:
    found = {chosen(server, "conneg", query, headers=headers) for _ in range(5)}
    assert found == {expected}


def test_conneg_location_is_used_for_other_types(server: Harness) -> None:
    headers = {"Accept": "application/rdf+xml, application/ld+json"}
    found = {chosen(server, "conneg", headers=headers) for _ in range(40)}
    assert found == {"https://data.example/", "https://turtle.example/"}


def test_location_for_programs_precedes_record(server: Harness) -> None:
    json = {"Accept": "application/json"}
    assert chosen(server, "json", headers=json) == "https://j.example/"
    assert chosen(server, "conneg", headers=json) in ("https://data.example/", "https://turtle.example/")
    assert server.get("/88/places", headers=json).status == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "Accept, Accept-Datetime, Accept-Language, User-Agent"),
        ({"Accept": "*/*"}, "Accept, Accept-Datetime, Accept-Language, User-Agent"),
        ({"Accept": CHROME}, "Accept, Accept-Datetime, Accept-Language"),
    ],
)
def test_vary_lists_what_the_choice_depends_on(server: Harness, headers: dict[str, str], expected: str) -> None:
    assert header_of(server.get("/88/conneg", headers=headers), "Vary") == expected
    assert header_of(server.get("/88/places", headers=headers), "Vary") == "Accept, Accept-Datetime"


# The status


@pytest.mark.parametrize(
    ("name", "query", "version", "status"),
    [
        ("status", "locatt=id:0", "1.1", 308),
        ("status", "locatt=id:1", "1.1", 303),
        ("status", "locatt=id:0", "1.0", 302),
        ("nonsense", "", "1.1", 302),
    ],
)
def test_record_chooses_status(server: Harness, name: str, query: str, version: str, status: int) -> None:
    assert server.get(f"/88/{name}?{query}", version=version).status == status


# Unusual records


@pytest.mark.parametrize("name", ["empty", "broken"])
def test_invalid_list_leaves_urls(server: Harness, name: str) -> None:
    assert chosen(server, name) == "https://url.example/"


def test_invalid_list_without_url_shows_record(server: Harness) -> None:
    assert page_of(server.get("/88/lost")).title.startswith("88/lost")


def test_lists_include_others(server: Harness) -> None:
    assert chosen(server, "include") == "https://www1.example/"


def test_namespace_adds_locations(server: Harness) -> None:
    create(server, "88/common", locations('<location href_template="https://ns.example/{hdl:path}" weight="5"/>'))
    add_namespace(server, "89", "free", text(1, "HS_NAMESPACE", "<n><locs>88/common</locs></n>"))
    create(server, "89/a b", text(1, "URL.x", "https://url.example/"), text(2, "10320/loc", "<l/>"))
    assert location_of(server.get("/89/a%20b")) == "https://ns.example/89/a%20b"
    create(server, "89/own", text(1, "10320/loc", '<l no_nslocs="1"/>'), text(2, "URL", "https://url.example/"))
    assert location_of(server.get("/89/own")) == "https://url.example/"
    add_namespace(server, "89.1")
    create(server, "89.1/url", text(1, "URL", "https://url.example/"))
    assert b"https://ns.example/89.1/url" in server.get("/89.1/url?action=showurls").body, "of the prefix above"


# Headers


def links(answer: Response) -> list[str]:
    """The links of a response that come from the record: the last one comes from the server."""
    *own, last = answer.values("Link")
    assert 'rel="original timegate"' in last
    return own


def test_locations_with_a_relation_become_links(server: Harness) -> None:
    places = (
        '<location id="0" href="https://a.example/ü" weight="1" rel="describedby" media-type="text/turtle" '
        'title="T ü" hreflang="de"/>'
        '<location id="1" href_template="https://b.example/{hdl}" weight="0" rel="canonical" anchor-id="0" '
        'title="a &quot;b&quot; \\"/>'
        '<location id="2" href="https://c.example/" weight="0" rel="item" title="x" titlelang="en"/>'
        '<location id="3" href="javascript:alert(1)" weight="0" rel="item"/>'
        '<location id="4" href="https://d.example/" weight="0" rel="ü"/>'
        '<location id="5" href="https://e.example/" weight="0" rel="stylesheet"/>'
        '<location id="6" href="https://f.example/" weight="0" rel="Preload Item http://rel.example/x timegate"/>'
    )
    create(server, "88/links", locations(places), text(2, "URL", "https://url.example/"))
    answer = server.get("/88/links")
    assert links(answer) == [
        '<https://a.example/%C3%BC>; rel="describedby"; type="text/turtle"; hreflang="de"; title*=UTF-8\'\'T%20%C3%BC',
        '<https://b.example/88%2Flinks>; anchor="https://a.example/%C3%BC"; rel="canonical"; title="a \\"b\\" \\\\"',
        "<https://c.example/>; rel=\"item\"; title*=UTF-8'en'x",
        '<https://f.example/>; rel="Item http://rel.example/x"',
    ]


def test_links_type(server: Harness) -> None:
    more = (
        '<l><location href="https://l.example/" rel="license"/><location href_template="https://l/{hdl}" rel="up"/></l>'
    )
    create(server, "88/license", text(1, "URL", "https://a.example/"), text(2, "10320/links", more))
    answer = server.get("/88/license")
    assert location_of(answer) == "https://a.example/"
    assert links(answer) == ['<https://l.example/>; rel="license"', '<https://l/88%2Flicense>; rel="up"']


TWO_LINKS = (
    '<https://a.example/>; rel="item https://rel.example/x"; title="a, b; \\"c\\""; type=text/plain , '
    "<https://c.example/>;anchor=https://d.example/;rel=up;title*=UTF-8'en'x"
)
NOT_FOR_RECORDS = (
    "",
    "; rel=",
    '; rel=""',
    "; rel=stylesheet",
    "; rel=item; rel=stylesheet",
    "; rel=item; rel=up",
    '; rel="item stylesheet"',
    '; rel="STYLESHEET"',
    "; rel=preload; as=script",
    "; rel=item; as=script",
    "; rel=item; rev=stylesheet",
    "; rel=item; anchor=javascript:x",
    "; rel=item, <https://c.example/>; rel=preconnect",
    "; rel=item <https://c.example/>; rel=preconnect",
    '; rel="item", ; rel=stylesheet',
    '; rel="item',
    "; rel=cite-as",
    "; rel=timegate",
    "; rel=original",
    "; rel=linkset",
    "; rel=memento",
    "; rel=next",
    "; rel=dns-prefetch",
    "; rel=modulepreload",
    "; rel=icon",
    "; rel=manifest",
)
"""What a line of a record would have browsers do, or would say in the server's name."""


def test_record_may_set_only_allowed_headers(server: Harness) -> None:
    lines = (
        "link: <https://a.example/{hdl}>; rel=Related",
        f"Link: {TWO_LINKS}",
        "Sunset: Sat, 31 Dec 2050 23:59:59 GMT",
        "Set-Cookie: a=b",
        "Location: https://evil.example/",
        "Content-Security-Policy: default-src *",
        "X-Accel-Redirect: /secret",
        "X-Extra: yes",
        "Memento-Datetime: Sat, 31 Dec 2050 23:59:59 GMT",
        "Link: <javascript:alert(1)>; rel=item",
        "Link: <https://b.example/>; rel=item, <javascript:alert(1)>; rel=item",
        "Link: nothing in brackets",
        *[f"Link: <https://b.example/>{parameters}" for parameters in NOT_FOR_RECORDS],
        "Sunset: \x00",
        "Deprecation: \u00e9",
        ": x",
        "X-Robots-Tag noindex",
        '<link rel="stylesheet" href="https://evil.example/">',
    )
    create(server, "88/headers", text(1, "URL", "https://a.example/"), text(2, "10320/HEADERS", "\r\n".join(lines)))
    answer = server.get("/88/headers")
    assert links(answer) == [
        "<https://a.example/88%2Fheaders>; rel=Related",
        TWO_LINKS,
    ]
    assert header_of(answer, "Sunset") == "Sat, 31 Dec 2050 23:59:59 GMT"
    assert location_of(answer) == "https://a.example/"
    for name in ("Set-Cookie", "X-Accel-Redirect", "X-Extra", "Content-Security-Policy", "Deprecation", "X-Robots-Tag"):
        assert header_of(answer, name) is None
    assert header_of(answer, "Memento-Datetime") is None
    assert b"stylesheet" not in answer.body


def test_headers_are_limited(server: Harness) -> None:
    many = "\n".join("Link: <https://a.example/>; rel=item" for _ in range(1_000))
    create(server, "88/many", text(1, "URL", "https://a.example/"), text(2, "10320/headers", many))
    assert len(links(server.get("/88/many"))) == MAX_HEADERS
    long = "\n".join(f"Link: <https://a.example/{'x' * 900}>; rel=item" for _ in range(10))
    create(server, "88/long", text(1, "URL", "https://a.example/"), text(2, "10320/headers", long))
    assert 0 < sum(map(len, links(server.get("/88/long")))) <= MAX_HEADER_BYTES


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [("", 2), ('suppressNsHeaders="yes"', 1), ('suppressNsHeadersIfLocalHeaders="yes"', 1)],
)
def test_namespace_links_can_be_suppressed(server: Harness, attribute: str, expected: int) -> None:
    prefix = f"90.{expected}{len(attribute)}"
    create(server, f"88/of{prefix}", locations('<location href="https://ns.example/" rel="item" weight="0"/>'))
    add_namespace(server, prefix, "free", text(1, "HS_NAMESPACE", f"<n><locs>88/of{prefix}</locs></n>"))
    create(server, f"{prefix}/x", locations('<location href="https://own.example/" rel="item"/>', attribute))
    assert len(links(server.get(f"/{prefix}/x"))) == expected


# XML and explanation


def test_locations_as_xml(server: Harness) -> None:
    answer = server.get("/88/places?action=showurls")
    assert header_of(answer, "Content-Type") == "text/xml;charset=utf-8"
    root = ET.fromstring(answer.body)
    assert (root.tag, root.attrib) == ("locations", {})
    assert [element.attrib for element in root] == [
        {"id": "0", "href": "https://uk.example/", "country": "gb", "weight": "0"},
        {"id": "1", "href": "https://www1.example/", "weight": "1"},
        {"mode": "legacy", "weight": "0.0", "href": "https://url.example/"},
    ]
    assert answer.body.count(b"\n") == 5


def test_xml_lists_urls_of_the_type_used(server: Harness) -> None:
    root = ET.fromstring(server.get("/12345/multi?action=showurls").body)
    assert [(each.get("href"), each.get("weight")) for each in root] == [
        ("https://example.org/two", "1.0"),
        ("https://example.org/three", "0.0"),
    ]
    root = ET.fromstring(server.get("/12345/subtypes?action=showurls").body)
    assert [each.get("href") for each in root] == ["https://a.example/", "https://b.example/"]
    assert list(ET.fromstring(server.get("/12345/nothing?action=showurls").body)) == []


def test_untrusted_xml_is_only_data(server: Harness) -> None:
    answer = server.get("/88/odd?action=showurls")
    elements = list(ET.fromstring(answer.body))
    assert {element.tag for element in elements} == {"location"}  # in no namespace that a browser knows
    assert elements[0].get("href") == 'https://a.example/"<>'
    assert elements[0].get("x") == "\n<"
    assert elements[1].get("href") == "javascript:alert(1)"
    assert "default-src 'none'" in (header_of(answer, "Content-Security-Policy") or "")
    create(server, "88/controls", Value(1, "URL", b"https://a.example/\x00\x1b\xff"))
    root = ET.fromstring(server.get("/88/controls?action=showurls").body)
    assert [each.get("href") for each in root] == ["https://a.example/\ufffd\ufffd\ufffd"]


def test_xml_has_template_and_result(server: Harness) -> None:
    create(server, "88/template", locations('<location href_template="https://t.example/{hdl:path}"/>'))
    (element,) = ET.fromstring(server.get("/88/template?action=showurls").body)
    assert element.attrib == {
        "href": "https://t.example/88/template",
        "href_template": "https://t.example/{hdl:path}",
    }


def test_explanation_as_json(server: Harness) -> None:
    headers = {"Accept": "application/json"}
    plain = json_of(server.get("/88/status?action=explain&locatt=id:0", headers=headers))
    assert plain["location"] == "https://a.example/"
    assert (plain["status"], plain["statusFrom"], plain["chosenBy"]) == (308, "location", "locatt")
    assert plain["preferences"][0] == "id:0"
    assert [place["chosen"] for place in plain["locations"]] == [True, False]
    plain = json_of(server.get("/88/odd?action=explain", headers=headers))
    assert plain["locations"][1]["problem"] is not None
    assert json_of(server.get("/88/broken?action=explain", headers=headers))["invalidLists"] == [1]
    plain = json_of(server.get("/12345/nothing?action=explain", headers=headers))
    assert (plain["location"], plain["locations"]) == (None, [])
    assert json_of(server.get("/12345/alias?action=explain", headers=headers))["aliases"] == ["12345/alias"]


def test_explanation_as_text(server: Harness) -> None:
    answer = server.get("/88/odd?action=explain")
    assert header_of(answer, "Content-Type") == "text/plain;charset=utf-8"
    assert header_of(answer, "Cache-Control") == "no-store"
    lines = answer.body.decode().splitlines()
    assert lines[0] == "handle: 88/odd"
    assert "location: https://a.example/%22%3C%3E" in lines
    assert all(line.isprintable() for line in lines)

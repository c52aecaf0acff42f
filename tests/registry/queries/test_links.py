"""Typed links: every serialization parses back, and invalid links are rejected."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.uri import Resolver, to_http
from perseid.registry.queries.links import (
    MAX_ADDRESS,
    MAX_HEADER_BYTES,
    MAX_HEADER_LINKS,
    MAX_TEXT,
    Link,
    format_header,
    format_headers,
    format_link_format,
    normalize_url,
    to_linkset,
    to_linkset_json,
)
from tests.registry.queries.link_parser import ReadLink, read_links
from tests.strategies import references, texts

CONTEXT = "https://id.example.org/12345/a"
RESOLVER = Resolver.parse("https://id.example.org/hdl")

printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)
addresses = references().map(lambda reference: to_http(reference, RESOLVER)).filter(lambda text: len(text) < 8_000)
relations = st.lists(
    st.sampled_from(["item", "cite-as", "describedby", "latest-version", "https://example.org/rel#a", "urn:x:y"]),
    min_size=1,
    max_size=3,
    unique=True,
).map(" ".join)
titles = st.text(max_size=40).filter(str.isprintable) | printable


@st.composite
def links(draw: st.DrawFn) -> Link:
    title = draw(st.none() | titles)
    return Link(
        draw(addresses),
        draw(relations),
        draw(st.none() | addresses),
        draw(st.sampled_from([None, "text/html", "application/ld+json", "application/vnd.x.y+z"])),
        draw(st.none() | printable),
        tuple(draw(st.lists(st.sampled_from(["en", "pt-BR", "de"]), max_size=2))),
        title,
        None if title is None else draw(st.sampled_from([None, "en", "zh-Hant"])),
        tuple(draw(st.dictionaries(st.sampled_from(["datetime", "from", "until", "profile"]), printable)).items()),
    )


def agrees(read: ReadLink, link: Link, anchor: str | None) -> None:
    assert read.target == link.target
    assert read.relations == list(link.relations)
    assert read.one("anchor") == anchor
    assert read.one("type") == link.type
    assert read.one("media") == link.media
    assert read.all("hreflang") == list(link.hreflang)
    assert read.title == (None if link.title is None else (link.title, link.language or ""))
    for name, text in link.others:
        assert read.one(name) == text
    known = {"rel", "anchor", "type", "media", "hreflang", "title", "title*", *[name for name, _ in link.others]}
    assert {name for name, _ in read.parameters} <= known


@given(links())
def test_rfc_8288_header_has_all_link_attributes(link: Link) -> None:
    value = format_header(link)
    assert value.isascii()
    assert value.isprintable()
    (read,) = read_links(value)
    agrees(read, link, link.anchor)


def test_rfc_8288_only_languages_are_unquoted() -> None:
    link = Link(CONTEXT, "item", type="text/html", hreflang=("en", "pt-BR"), title="x")
    assert format_header(link) == f'<{CONTEXT}>; rel="item"; type="text/html"; hreflang=en; hreflang=pt-BR; title="x"'


@given(st.lists(links(), max_size=5))
def test_rfc_9264_linkset_links_have_anchors(given_links: list[Link]) -> None:
    read = read_links(to_linkset(given_links, CONTEXT))
    assert len(read) == len(given_links)
    for each, link in zip(read, given_links, strict=True):
        agrees(each, link, link.anchor or CONTEXT)


@given(st.lists(links(), max_size=5))
def test_rfc_6690_link_format_has_no_blanks(given_links: list[Link]) -> None:
    read = read_links(format_link_format(given_links))
    assert len(read) == len(given_links)
    for each, link in zip(read, given_links, strict=True):
        agrees(each, link, link.anchor)
    assert "> ;" not in format_link_format([Link(CONTEXT, "item", others=(("datetime", "x"),))])
    assert format_link_format([Link(CONTEXT, "item")]) == f'<{CONTEXT}>;rel="item"\n'


def plain(link: Link) -> dict[str, Any]:
    """Return a target by section 4.2.4: lists for repeatable and extension attributes."""
    wanted: dict[str, Any] = {"href": link.target, "type": link.type, "media": link.media}
    wanted["hreflang"] = list(link.hreflang) or None
    if link.language is not None:
        wanted["title*"] = [{"value": link.title, "language": link.language}]
    elif link.title is not None and not link.title.isascii():
        wanted["title*"] = [{"value": link.title}]
    else:
        wanted["title"] = link.title
    return {name: value for name, value in wanted.items() if value is not None} | {
        name: [text] for name, text in link.others
    }


@given(st.lists(links(), max_size=5))
def test_rfc_9264_json_structure(given_links: list[Link]) -> None:
    """Section 4.2: contexts with anchors, relations as members, targets as lists of objects; attributes by kind."""
    document = json.loads(to_linkset_json(given_links, CONTEXT))
    assert list(document) == ["linkset"]
    found: list[tuple[str, str, dict[str, Any]]] = []
    for context in document["linkset"]:
        anchor = context.pop("anchor")
        assert isinstance(anchor, str)
        for relation, targets in context.items():
            assert targets, "a relation without targets is left out"
            found += [(anchor, relation, target) for target in targets]
    assert len(document["linkset"]) == len({link.anchor or CONTEXT for link in given_links})
    expected = [(link.anchor or CONTEXT, relation, link) for link in given_links for relation in link.relations]
    assert len(found) == len(expected)
    for anchor, relation, link in expected:
        assert (anchor, relation, plain(link)) in found


@pytest.mark.parametrize(
    "broken",
    [
        {"target": "/12345/a"},
        {"target": "https://example.org/a b"},
        {"target": "https://example.org/>; rel=stylesheet"},
        {"target": "https://example.org/\r\nSet-Cookie: a=b"},
        {"target": "https://example.org/%zz"},
        {"target": "https://exämple.org/"},
        {"target": "https://example.org/" + "a" * 9_000},
        {"target": ""},
        {"anchor": "12345/a"},
        {"anchor": 'https://example.org/"'},
        {"relation": ""},
        {"relation": "Item"},
        {"relation": "item  type"},
        {"relation": 'item"'},
        {"relation": "anchor"},
        {"relation": "it\tem"},
        {"type": "html"},
        {"type": "text/html; charset=utf-8"},
        {"media": "screen\n"},
        {"hreflang": ("english language",)},
        {"title": "a\nb"},
        {"title": "a" * (MAX_TEXT + 1)},
        {"language": "en"},
        {"title": "a", "language": "e'n"},
        {"others": (("rel", "stylesheet"),)},
        {"others": (("Datetime", "x"),)},
        {"others": (("a b", "x"),)},
        {"others": (("datetime", "x"), ("datetime", "y"))},
        {"others": (("datetime", "ü"),)},
        {"others": (("datetime", "a\r\nb"),)},
    ],
)
def test_invalid_links_are_rejected(broken: dict[str, Any]) -> None:
    Link(CONTEXT, "item")
    with pytest.raises(ValueError, match=r"link|relation"):
        Link(**{"target": CONTEXT, "relation": "item", **broken})


def test_headers_are_limited_in_number_and_bytes() -> None:
    many = [Link(f"https://example.org/{number}", "item") for number in range(MAX_HEADER_LINKS + 50)]
    found = format_headers(many)
    assert found == tuple([format_header(link) for link in many[:MAX_HEADER_LINKS]])
    long = [Link(f"https://example.org/{number}/{'a' * 900}", "item") for number in range(20)]
    short = Link("https://example.org/", "license")
    values = format_headers([*long, short])
    assert sum(len(f"Link: {value}\r\n") for value in values) <= MAX_HEADER_BYTES
    assert format_header(short) in values, "one that is too long takes the room from no other"
    assert len(values) == 5
    assert format_headers(many, max_links=2, max_bytes=1 << 20) == found[:2]


# Addresses of strangers


@pytest.mark.parametrize(
    ("written", "linked"),
    [
        ("https://example.org", "https://example.org/"),
        (" http://example.org/a b ", "http://example.org/a%20b"),
        ("https://example.org/a%20b?c=d#e", "https://example.org/a%20b?c=d#e"),
        ("https://example.org/100%", "https://example.org/100%25"),
        ("https://example.org/<script>", "https://example.org/%3Cscript%3E"),
        ('https://example.org/">', "https://example.org/%22%3E"),
        ("https://example.org/ä", "https://example.org/%C3%A4"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://example.org:8443/x", "https://example.org:8443/x"),
        ("https://[2001:db8::1]/x", "https://[2001:db8::1]/x"),
        ("https://example.org?a=b", "https://example.org?a=b"),
        ("HTTP://Example.org/A", "http://Example.org/A"),
    ],
)
def test_web_address_is_normalized(written: str, linked: str) -> None:
    assert normalize_url(written) == linked
    Link(linked, "item")


@pytest.mark.parametrize(
    "written",
    [
        "",
        "example.org",
        "javascript:alert(1)",
        "data:text/html,x",
        "ftp://example.org/",
        "mailto:a@example.org",
        "hdl:12345/a",
        "//example.org/",
        "https:///x",
        "https://",
        "https://user@example.org/",
        "https://user:word@example.org/",
        "https://example.org\\@evil.example/",
        "https://exa mple.org/",
        "https://example.org/a\nb",
        "https://example.org/\x00",
        "https://example.org:port/",
        "https://\u2100.example/",
        "http\u017f://example.org/",
        "HTTPS://example.org/" + "a" * MAX_ADDRESS,
        "https://example.org/" + "ä" * (MAX_ADDRESS // 2),
    ],
)
def test_other_addresses_are_not_linked(written: str) -> None:
    assert normalize_url(written) is None


@given(texts() | texts().map(lambda text: f"https://{text}") | texts().map(lambda text: f"https://example.org/{text}"))
def test_normalized_address_can_be_linked(text: str) -> None:
    address = normalize_url(text)
    if address is None:
        return
    assert address.startswith(("http://", "https://"))
    assert Link(address, "item").target == address
    assert normalize_url(address) == address


@given(st.from_regex(r"https?://[a-zA-Z0-9._-]{1,9}(:[0-9]{0,6})?[/?#]([!-~]|%[0-9a-fA-F]{2}){0,20}", fullmatch=True))
def test_usual_address_is_normalized_like_any_other(text: str) -> None:
    assert normalize_url(text) == normalize_url(f" {text}"), "with a space around it takes the long way"

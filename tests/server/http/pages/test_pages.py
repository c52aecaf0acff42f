"""The pages: their content, elements and headers."""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.names.uri import MAX_ENCODED_LENGTH
from perseid.records.admin import ValueList
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.installation.setup import create_demonstration
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Response
from perseid.server.http.pages.links import MAX_SHOWN, break_url, mark_times, to_sentence, to_visible
from perseid.server.http.pages.pages import POLICY, SCRIPT_POLICY, STATIC
from perseid.server.http.pages.values import MAX_HEX_BYTES, MAX_LOCATIONS, MAX_PAGE
from tests.server.http.contexts import Harness, header_of, json_of
from tests.server.http.pseudo_locale import find_unmarked, marked
from tests.server.http.resolver.resolver_records import ADMIN, Page, create, page_of, resolver, text
from tests.server.installations import OPERATOR

PAGES: Final = (
    "/",
    "/help.html",
    "/12345/url?noredirect",
    "/12345/url?action=history",
    "/12345/url?noredirect&at=200000000000000",  # in 1976
    "/12345/url?at=1",
    "/12345/ulr",
    "/12345/nothing",
    "/12345/gone",
    "/12345/absent/",
    "/ledger",
    "/namespaces/12345",
    "/namespaces/102.100.272",
    "/namespaces/999",
    "/12345/hidden",
    "/12345/loop",
    "/999/x",
    "/12345/%zz",
    "/static/nothing",
    "/102.100.272/2RDV0T0QH",
)
ELEMENTS: Final = frozenset(
    (
        *("html", "head", "meta", "title", "link", "body", "header", "nav", "main", "footer", "section", "div", "p"),
        *("h1", "h2", "small", "span", "bdi", "code", "time", "br", "wbr", "a", "img", "ul", "li", "dl", "dt", "dd"),
        *(
            "fieldset",
            "legend",
            "strong",
            "datalist",
            "option",
            "form",
            "input",
            "label",
            "button",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        ),
        *("aside", "details", "summary", "template", "ol", "ins", "del", "pre"),
        "script",  # files of this server, and data that nobody runs: see below
    )
)
"""All that the templates are made of."""


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with resolver() as made:
        create_demonstration(made.registry, OPERATOR, "cli")
        yield made


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_valid_safe_and_accessible(server: Harness, path: str) -> None:
    answer = server.get(path)
    page = page_of(answer)
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    scripts = [each.get("src") for tag, each in page.elements if tag == "script" and each["type"] == "module"]
    assert header_of(answer, "Content-Security-Policy") == (SCRIPT_POLICY if scripts else POLICY)
    assert all(script and script.startswith("/static/") for script in scripts)
    assert header_of(answer, "X-Content-Type-Options") == "nosniff"
    assert header_of(answer, "Referrer-Policy") is not None
    assert answer.body.startswith(b"<!DOCTYPE html>\n")
    assert page.title.strip()
    assert [tag for tag, _ in page.elements].count("h1") == 1
    assert dict(page.elements)["html"] == {"lang": "en"}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    labels = {attributes.get("for") for tag, attributes in page.elements if tag == "label"}
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert tag != "script" or attributes["type"] in ("module", "application/ld+json")
        if tag == "input" and attributes["type"] == "text":
            assert attributes["id"] in labels
        if tag == "img":
            assert "alt" in attributes
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids


@pytest.mark.parametrize("path", PAGES)
def test_no_dead_links(server: Harness, path: str) -> None:
    """Check every internal link, as a link checker would."""
    page = page_of(server.get(path))
    own = [link for link in page.links if link.startswith("/")]
    own += [each["href"] or "" for tag, each in page.elements if tag == "link"]
    assert own
    for link in own:
        status = server.get(link).status
        assert (
            status in (200, 302, 303) or (status, path) == (404, "/12345/absent/") or link.startswith("/hdl/static")
        ), link


def test_texts_of_all_pages_are_in_the_catalog(server: Harness) -> None:
    """Data is in no language, and what the registry says is in English."""
    data = {"hdl.example.org", "https://example.org/a", "BibTeX", "CSL-JSON", "static/nothing", ": It was <wrong>."}
    said = re.compile(r"Prefix 12345 is hosted .*|'%zz' in the .*")
    named = re.compile(r"(.* – )?([0-9.]+/\w+)( –)?")
    with marked():
        for path in (*PAGES, "/12345/url/", "/12345/gane"):
            texts = find_unmarked(server.get(path).body.decode(), data)
            assert [text for text in texts if not (said.fullmatch(text) or named.fullmatch(text))] == [], path


def test_external_links_are_permitted(server: Harness) -> None:
    away = [link for path in PAGES for link in page_of(server.get(path)).links if not link.startswith(("/", "#"))]
    assert away
    assert all(link.startswith(("https://", "mailto:")) for link in away)


def test_front_page_lists_declared_forms(server: Harness) -> None:
    front = page_of(server.get("/"))
    assert "https://hdl.example.org/{handle}" in front.text
    assert "https://hdl.example.org/hdl/{handle}" in front.text
    (form,) = [attributes for tag, attributes in front.elements if tag == "form"]
    assert form == {"action": "/", "method": "post", "class": "lookup"}
    assert [attributes.get("name") for tag, attributes in front.elements if tag == "input"] == [
        "page",
        "hdl",
        "noredirect",
    ]
    assert page_of(server.get("/hdl/")).text == front.text
    assert "/console/new" in front.links, "users who need a new identifier look here"
    assert "/console/new" in page_of(server.get("/help.html")).links


def test_earlier_address_of_the_form_leads_to_the_console(server: Harness) -> None:
    for answer in (server.get("/generate"), server.post("/generate")):
        assert (answer.status, header_of(answer, "Location")) == (301, "/console/new")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" the prefix is not hosted here ", "The prefix is not hosted here."),
        ("perseid namespace list shows them", "perseid namespace list shows them."),
        ("abc/x does not exist", "abc/x does not exist."),
        ('scheme = "cordra" is fixed', 'scheme = "cordra" is fixed.'),
        ("do you retry?", "Do you retry?"),
        ("", ""),
    ],
)
def test_sentence_keeps_the_spelling_of_names_and_commands(text: str, sentence: str) -> None:
    assert to_sentence(text) == sentence


def test_declaration_as_json(server: Harness) -> None:
    plain = json_of(server.get("/resolver.json"))
    assert plain["scheme"] == "https"
    assert plain["authority"] == "hdl.example.org"
    assert plain["forms"] == [
        {"template": "https://hdl.example.org/{handle}", "segment": None},
        {"template": "https://hdl.example.org/hdl/{handle}", "segment": "hdl"},
    ]
    assert {"api", "docs", "robots.txt"} <= set(plain["ownPaths"])
    assert len(set(plain["ownPaths"])) == len(plain["ownPaths"])
    assert "urlappend" in plain["parameters"]


@pytest.mark.parametrize(
    ("settings", "forms"),
    [
        (HttpSettings(), ["/{handle}", "/hdl/{handle}"]),
        (HttpSettings(bare=False, segments=("id",)), ["/id/{handle}", "/hdl/{handle}"]),
        (
            HttpSettings("http://x.example:8000"),
            ["http://x.example:8000/{handle}", "http://x.example:8000/hdl/{handle}"],
        ),
        (
            HttpSettings("https://x.example/under"),
            ["https://x.example/under/{handle}", "https://x.example/under/hdl/{handle}"],
        ),
    ],
)
def test_forms_follow_settings(server: Harness, settings: HttpSettings, forms: list[str]) -> None:
    context = server.context
    server.configure(public_url=settings.public_url, bare=settings.bare, segments=settings.segments)
    plain = json_of(server.get("/resolver.json"))
    front = page_of(server.get("/"))
    shown = server.get("/hdl/12345/url?noredirect")
    server.service.server = context
    assert [form["template"] for form in plain["forms"]] == forms
    assert {form in front.text for form in forms} == {settings.public_url != ""}, "links have a host"
    assert shown.status == 200


def test_robots_and_files(server: Harness) -> None:
    robots = server.get("/robots.txt")
    rules, _, sitemap = robots.body.partition(b"Sitemap: ")
    assert rules == b"User-agent: *\nDisallow: /console\nDisallow: /suggest\nCrawl-delay: 1\nRequest-rate: 1/1\n"
    assert sitemap == b"https://hdl.example.org/sitemap.xml\n"
    assert header_of(robots, "Content-Type") == "text/plain;charset=utf-8"
    assert server.get("/favicon.ico").body.startswith(b"\0\0\1\0")
    for name, type_ in STATIC.items():
        answer = server.get(f"/static/{name}")
        assert (answer.status, header_of(answer, "Content-Type")) == (200, type_)
        assert answer.body == files("perseid.server.http.pages").joinpath("static", name).read_bytes()
    for path in (
        "/static/",
        "/static/../pages.py",
        "/static/%2e%2e/pages.py",
        "/static/perseid.css/",
        "/static/base.html",
    ):
        assert server.get(path).status == 404


def test_stylesheet_loads_nothing(server: Harness) -> None:
    css = server.get("/static/perseid.css").body.decode()
    assert "url(" not in css
    assert "@import" not in css
    used = {
        name
        for path in PAGES
        for _, each in page_of(server.get(path)).elements
        for name in (each.get("class") or "").split()
    }
    assert used - {"choice", "verify"} <= set(re.findall(r"\.([a-z]+)", css))


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(server: Harness, scheme: int) -> None:
    """WCAG's contrast for text, 4.5 to 1, in both color schemes."""
    css = server.get("/static/perseid.css").body.decode()
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))
    pairs = [(ink, paper) for ink in ("ink", "quiet", "link", "seen") for paper in ("paper", "panel")]
    fills = [("ink", "notice"), ("ink", "accent-soft"), ("link", "accent-soft"), ("on-accent", "accent")]
    signals = [("ok", "ok-soft"), ("bad", "bad-soft"), ("ok", "paper"), ("bad", "paper"), ("paper", "bad")]
    for ink, paper in (*pairs, *fills, *signals):
        high, low = sorted((_luminance(colours[ink]), _luminance(colours[paper])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_plots_have_enough_contrast(server: Harness, scheme: int) -> None:
    """WCAG's contrast for graphics, 3 to 1."""
    css = server.get("/static/perseid.css").body.decode()
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))
    for series in ("accent", "plot-2", "plot-3", "plot-4"):
        high, low = sorted((_luminance(colours[series]), _luminance(colours["paper"])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3, series


# The record page


def rows(page: Page) -> str:
    return page.text.partition("Data")[2]


def test_record_page_shows_all_values_in_words(server: Harness) -> None:
    group = ValueList((ValueRef(300, "0.NA/12345"), ValueRef(301, "999/x"))).to_bytes()
    create(
        server,
        "12345/page",
        text(1, "URL", "https://example.org/ü?a=b&c"),
        text(2, "EMAIL", "someone@example.org"),
        text(3, "URL.us", "https://us.example/"),
        text(4, "12345/n0", "typed by a handle"),
        text(5, "999/x", "typed by a foreign handle"),
        Value(6, "DATA", bytes(range(256)) * 3),
        Value(7, "HS_VLIST", group),
        text(8, "DESC", "two\nlines"),
        text(9, "NOTE", "hdl:12345/%75rl"),
        Value(10, "HS_SECKEY", b"oh dear", permissions=Permission.PUBLIC_READ),
        ADMIN,
    )
    page = page_of(server.get("/12345/page?noredirect"))
    assert page.text.partition("Handle Values for:")[2].startswith(" 12345/page")
    times = [attributes["datetime"] for tag, attributes in page.elements if tag == "time"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(time)) for time in times)
    assert len(times) == 11
    assert set(times) <= set(page.words), "one form of dates, in ISO 8601"
    for link in (
        "https://example.org/%C3%BC?a=b&c",
        "mailto:someone@example.org",
        "https://us.example/",
        "/12345/n0",
        "/12345/url",
        "/0.NA/12345",
        "/12345/page?action=redirect",
        "/api/handles/12345%2Fpage",
    ):
        assert link in page.links, link
    assert "/999/x" not in page.links  # which nobody could follow here
    assert "Who can change this record" in page.text
    assert "key 300 of 0.NA/12345: all permissions" in page.text
    assert "300:0.NA/12345" in page.text
    assert "301:999/x" in page.text
    assert "000102030405060708090A0B" in page.text
    assert f"768 bytes; the first {MAX_HEX_BYTES} are shown" in page.text
    assert "oh dear" not in page.text
    assert "hdl:12345/page" in page.text
    assert "https://hdl.example.org/12345/page" in page.text


def test_locations_are_links_with_their_conditions(server: Harness) -> None:
    places = (
        '<location id="0" href="https://uk.example/?a=1&amp;b=2" country="gb" weight="0"/>'
        '<location href="javascript:alert(1)"/><location href_template="https://{hdl}.example/" weight="1"/>'
    )
    create(
        server,
        "12345/places",
        text(1, "10320/loc", f'<locations chooseby="country,weighted">{places}</locations>'),
        text(2, "10320/loc", "<locations><location"),
        text(3, "10320/loc", "<locations><location/></locations>"),
        text(4, "10320/loc", f"<locations>{' ' * MAX_LOCATIONS}{places}</locations>"),
    )
    page = page_of(server.get("/12345/places?noredirect"))
    assert "https://uk.example/?a=1&b=2 (country: gb, weight: 0)" in page.text
    assert "https://{hdl}.example/ (weight: 1)chooseby: country,weighted" in page.text
    assert page.links.count("https://uk.example/?a=1&b=2") == 1
    assert not any(link.startswith("javascript") for link in page.links)
    for whole in (
        "10320/loc<locations><location2",
        "<locations><location/></locations>",
        '<location href="javascript:alert(1)"/>',
    ):
        assert whole in page.text, "what is no list of URLs, or too long, is shown as it is"


def test_page_has_the_title_of_the_record(server: Harness) -> None:
    create(server, "12345/titled", text(1, "TITLE", "Maps & <plans>"))
    page = page_of(server.get("/12345/titled"))
    assert page.title == "Maps & <plans> – 12345/titled – handle record"
    assert "Maps & <plans> 12345/titled" in page.text, "the title first"
    assert page.text.partition("Handle Values for:")[2].startswith(" 12345/titled ")


def test_handles_in_data_are_links_where_the_type_says_so(server: Harness) -> None:
    types = ("HS_ALIAS", "LINK.WORK", "link.metadata", "NOTE", "URL")
    create(server, "12345/linking", *[text(index, type_, "12345/url") for index, type_ in enumerate(types, 1)])
    create(server, "12345/elsewhere", text(1, "LINK.WORK", "999/x"), text(2, "LINK.OBJECT", "not a handle"))
    page = page_of(server.get("/12345/linking?noredirect&ignore_aliases"))
    assert page.links.count("/12345/url") == 3
    assert "/999/x" not in page_of(server.get("/12345/elsewhere")).links
    assert "/102.100.272/0N8J991QH" in rows_links(server.get("/102.100.272/2RDV0T0QH"))


def rows_links(response: Response) -> list[str]:
    page = Page()
    page.feed(response.body.decode().partition("<tbody>")[2].partition("</tbody>")[0])
    return page.links


def test_types_wrap_between_words_only(server: Harness) -> None:
    body = server.get("/102.100.272/2RDV0T0QH").body.decode()
    assert "<bdi>102.<wbr>100.<wbr>TYPE/<wbr>CREATION_<wbr>DATE</bdi>" in body


def test_urls_break_after_slashes() -> None:
    assert break_url("https://a.example/b//c?<") == "https://<wbr>a.example/<wbr>b//<wbr>c?&lt;"


def test_page_shows_authority_metadata(server: Harness) -> None:
    page = page_of(server.get("/102.100.272/2RDV0T0QH"))
    for line in (
        "Created2007-06-22T02:53:46Z",
        "Last update2007-08-10T04:23:11Z",
        "Creatorhdl:102.100.272/0N8J991QH",
        "Ownerhdl:102.100.pilin2/XYZZY (not verified: it has no public record here)",
    ):
        assert line in page.text.replace(" Last", "Last").replace(" Creator", "Creator").replace(" Owner", "Owner")
    assert "/102.100.272/0N8J991QH" in page.links
    assert "/102.100.TYPE/CREATION_DATE" in page.links
    times = [attributes["datetime"] for tag, attributes in page.elements if tag == "time"]
    assert times[-2:] == ["2007-06-22T02:53:46Z", "2007-08-10T04:23:11Z"]


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<2007-06-22T02:53:46Z>", '&lt;<time datetime="2007-06-22T02:53:46Z">2007-06-22T02:53:46Z</time>&gt;'),
        ("2007-13-22T02:53:46Z & 2007-06-22", "2007-13-22T02:53:46Z &amp; 2007-06-22"),
    ],
)
def test_times_are_marked_in_escaped_text(text: str, html: str) -> None:
    assert mark_times(text) == html


def test_page_size_is_limited(server: Harness) -> None:
    long = [Value(index, "DATA", b"x" * 20_000) for index in range(1, 200)]
    create(server, "12345/bound", *long)
    answer = server.get("/12345/bound?noredirect")
    assert len(answer.body) < 2 * MAX_PAGE
    assert f"20,000 characters; the first {MAX_SHOWN:,} are shown" in page_of(answer).text


def test_long_uris_of_handles_are_not_parsed(server: Harness) -> None:
    query = "q" * (MAX_ENCODED_LENGTH - len("12345/n0?"))
    create(
        server, "12345/uris", text(1, "DESC", "hdl:" + "%2F" * 3_000 + "/x"), text(2, "DESC", "hdl:12345/n0?" + query)
    )
    assert "/12345/n0" in page_of(server.get("/12345/uris?noredirect")).links
    create(server, "12345/too-long", text(1, "DESC", f"hdl:12345/n0?{query}q"))
    page = page_of(server.get("/12345/too-long?noredirect"))
    assert "/12345/n0" not in page.links
    assert "hdl:12345/n0" in page.text


def test_only_usable_actions_are_offered(server: Harness) -> None:
    assert "/12345/nothing?action=redirect" not in page_of(server.get("/12345/nothing")).links
    assert "/12345/script?action=redirect" not in page_of(server.get("/12345/script")).links
    assert "javascript:alert(1)" in page_of(server.get("/12345/script")).text


# Invisible characters


@given(st.text())
def test_everything_on_a_page_is_visible(shown: str) -> None:
    found = to_visible(shown)
    assert all(each.isprintable() or each == "\n" for each in found)
    assert found == shown or not shown.isprintable() or len(shown) > MAX_SHOWN


@pytest.mark.parametrize(
    ("text_", "expected"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("a\r\nb\tc", "a␍\nb␉c"),
        ("\x00\x1b\x7f", "␀␛␡"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("\x85\u2028\U000e0001", "⟨U+0085⟩⟨U+2028⟩⟨U+E0001⟩"),
        ("x" * 5_000, "x" * MAX_SHOWN + "…"),
    ],
)
def test_invisible_characters_are_written_out(text_: str, expected: str) -> None:
    assert to_visible(text_) == expected


def test_templates_are_packaged() -> None:
    folder = files("perseid.server.http.pages").joinpath("templates")
    names = {each.name for each in folder.iterdir()}
    assert {"base.html", "front.html", "record.html", "tombstone.html", "problem.html"} <= names
    for name in names:
        source = folder.joinpath(name).read_text()
        assert "|safe" not in source.replace(" ", "")
        data, module = '<script type="application/ld+json">', '<script type="module" src="{{ script }}"></script>'
        assert "<script" not in source.replace(data, "").replace(module, "")


def test_names_in_links_are_encoded(server: Harness) -> None:
    name = str(Handle.parse("12345/slash/../?#% ü/"))
    page = page_of(server.get("/12345/slash%2F..%2F%3F%23%25%20%C3%BC%2F?noredirect"))
    assert name in page.text
    assert "/12345/slash%2F..%2F%3F%23%25%20%C3%BC%2F?action=redirect" in page.links


# What other sites show with a link to a page


@pytest.mark.parametrize("title", ["", "Maps <of> a/b"])
def test_links_to_records_have_a_plain_title(server: Harness, title: str) -> None:
    """On the page itself long names can break after slashes; attributes contain no elements."""
    name = f"12345/shared/{len(title)}"
    create(server, name, text(1, "URL", "https://example.org/a/b"), *([text(2, "TITLE", title)] if title else []))
    page = page_of(server.get(f"/{name}?noredirect"))
    found = {each.get("property"): each.get("content") for tag, each in page.elements if tag == "meta"}
    assert found["og:title"] == (title or name)
    assert found["og:url"] == f"https://hdl.example.org/12345/shared%2F{len(title)}"
    assert name in page.text
    assert "wbr" in [tag for tag, _ in page.elements]

"""Records and requests that attack readers of pages: none of their text becomes an element, a header or a link.

Every attack is put wherever untrusted text can be: data of every type with its own parser, types, names, parameters,
request headers, reasons of tombstones, contacts of namespaces, attributes of locations. The page is parsed: its
elements must be those of the same page with harmless text, and links must have permitted schemes.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.admin import Admin, ValueList
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.lifecycle import Tombstone
from perseid.server.http.messages import Response, is_header_text
from perseid.server.http.negotiation import RECORD_FORMS
from perseid.server.http.pages.links import to_visible
from perseid.server.http.pages.pages import POLICY, SCRIPT_POLICY
from tests.server.http.contexts import Harness, header_of, json_of
from tests.server.http.resolver.resolver_records import (
    Page,
    add_namespace,
    create,
    page_of,
    resolver,
    text,
    without_suggestions,
)
from tests.server.installations import OPERATOR

ATTACKS: Final = (
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</bdi></td><img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "' onmouseover='alert(1)",
    '" autofocus onfocus="alert(1)',
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    "<?xml version='1.0'?>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "{{ 7 * 7 }}{% raw %}${7*7}#{7*7}",
    "javascript:alert(1)",
    "JaVa\tScRiPt:alert(1)",
    "java\nscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:msgbox(1)",
    "https://example.org/\r\nSet-Cookie: a=b\r\n\r\n<script>alert(1)</script>",
    "https://example.org/\r\nLocation: https://evil.example/",
    "https://good.example\\@evil.example/",
    "//evil.example/",
    "\\\\evil.example\\",
    "https://example.org/\u202egnp.exe",
    "\u2028alert(1)\u2029",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
    "<\x00script>alert(1)</script>",
    "\x1b]0;evil\x07",
    "\ufeff<script>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=0;url=//evil.example/>",
    "mailto:a@example.org?bcc=b@evil.example",
    "hdl:12345/x?<script>",
    "a@example.org\r\nBcc: b@evil.example",
    "a@example.org?subject=<script>",
)
HARMLESS: Final = "harmless"
TYPES: Final = (
    "URL",
    "URL.x",
    "0.TYPE/URL",
    "EMAIL",
    "DESC",
    "HS_SERV",
    "HS_NAMESPACE",
    "HS_SITE",
    "HS_PUBKEY",
    "HS_SIGNATURE",
    "HS_CERT",
    "10320/loc",
    "10320/links",
    "10320/headers",
    "102.100.TYPE/CREATOR",
    "NOTE",
)
"""Types whose data is read, each in its own way; the others are below."""


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with resolver() as made:
        yield made


def values(attack: str) -> list[Value]:
    """Values of every type with an attack in them."""
    made = [text(index, type_, attack) for index, type_ in enumerate(TYPES, 1)]
    made.append(Value(50, "HS_ADMIN", Admin(ValueRef(300, attack)).to_bytes()))
    made.append(Value(51, "HS_VLIST", ValueList((ValueRef(300, attack), ValueRef(1, "12345/n0"))).to_bytes()))
    made.append(text(52, attack, "the type is an attack"))
    made.append(text(53, f"12345/{attack}", "and so is this"))
    made.append(Value(54, "DATA", attack.encode() + b"\x00\xff"))
    return made


def check_headers(answer: Response) -> None:
    """Check what every response must have."""
    assert all(is_header_text(value) for _, value in answer.headers)
    assert header_of(answer, "Set-Cookie") is None
    for location in answer.values("Location"):
        assert location.startswith(("http://", "https://", "ftp://", "mailto:", "/"))
        assert not location.startswith(("//", "/\\"))


def check_page(answer: Response) -> Page:
    check_headers(answer)
    page = page_of(answer)
    modules = [each for tag, each in page.elements if tag == "script" and each.get("type") == "module"]
    assert all(each in OWN_SCRIPTS for each in modules)
    assert header_of(answer, "Content-Security-Policy") == (SCRIPT_POLICY if modules else POLICY)
    assert all("<" not in text and json.loads(text) for text in page.data)
    for tag, attributes in page.elements:
        assert tag not in ("style", "base", "iframe", "object", "embed", "svg")
        is_data = attributes == {"type": "application/ld+json"}
        assert tag != "script" or is_data or attributes in modules, "data, which nobody runs"
        for name in ("href", "src", "action", "formaction"):
            target = attributes.get(name)
            if target is not None:
                assert target.startswith(("http://", "https://", "ftp://", "mailto:", "/", "#")), target
                assert not target.startswith(("//", "/\\"))
                assert target.isascii()
                assert target.isprintable()
    return page


OWN_SCRIPTS: Final = [{"type": "module", "src": f"/static/{name}.js"} for name in ("pages", "search", "verify")]
QUERIES: Final = ("", "?action=showurls", "?action=explain", "?redirectionHeaders", "?urlappend=/x", "?action=metadata")
REDIRECTING: Final = {"URL", "10320/loc", "10320/links", "10320/headers"}
"""Types that decide how a request is redirected. Records with one of them are requested in every way, and so is one
record with all the others."""


@pytest.mark.parametrize("number", range(len(ATTACKS)))
def test_values_become_only_text(server: Harness, number: int) -> None:
    made = [value for value in values(ATTACKS[number]) if value.type != "HS_NAMESPACE"]  # below is one that can be read
    for index, value in enumerate(made):
        name = f"12345/attack-{number}-{index}"
        create(server, name, value)
        shown = check_page(server.get(f"/{name}?noredirect"))
        assert besides_links(shown) == harmless_shape(server, value.type), value
        if value.type in REDIRECTING:
            check_every_form(server, name)
    create(server, f"12345/attack-{number}", *(value for value in made if value.type not in REDIRECTING))
    check_every_form(server, f"12345/attack-{number}")


def check_every_form(server: Harness, name: str) -> None:
    for query in QUERIES:
        check_any(server.get(f"/{name}{query}"))
    check_any(server.get(f"/{name}?action=explain", headers={"Accept": "application/json"}))
    for form in RECORD_FORMS:
        check_any(server.get(f"/{name}", headers={"Accept": form}))


def check_any(answer: Response) -> None:
    """Check that a response of any kind is what its type says."""
    check_headers(answer)
    type_ = header_of(answer, "Content-Type") or ""
    if type_.startswith("text/html") and header_of(answer, "Location") is None:
        check_page(answer)
    elif type_.startswith("text/html"):
        redirect_page = page_of(answer)
        assert redirect_page.shape == [("html", ()), ("head", ()), ("title", ()), ("body", ()), ("a", ("href",))]
        assert redirect_page.links == [header_of(answer, "Location")]
    elif type_.startswith("text/xml"):
        root = ET.fromstring(answer.body)
        assert {element.tag for element in root} <= {"location"}
        assert all(len(element) == 0 for element in root)
    elif type_.startswith(("application/json", "application/ld+json")) or type_.endswith("+json"):
        json.loads(answer.body)
    elif type_.startswith(("application/linkset", "application/x-bibtex", "text/x-bibliography")):
        assert "\x1b" not in answer.body.decode()
        assert header_of(answer, "X-Content-Type-Options") == "nosniff"
    elif answer.body:
        assert type_ == "text/plain;charset=utf-8"
        assert header_of(answer, "X-Content-Type-Options") == "nosniff"


_shapes: dict[str, list[tuple[str, tuple[str, ...]]]] = {}


def harmless_shape(server: Harness, type_: str) -> list[tuple[str, tuple[str, ...]]]:
    """The elements of a page with one harmless value, without links."""
    known = type_ if type_ in TYPES or type_.startswith("HS_") or type_ == "DATA" else "NOTE"
    if known not in _shapes:
        value = next(value for value in values(HARMLESS) if value.type == known)
        name = f"12345/harmless-{quote(known, safe='')}"
        create(server, name, value)
        _shapes[known] = besides_links(page_of(server.get(f"/{quote(name)}?noredirect")))
    return _shapes[known]


def besides_links(page: Page) -> list[tuple[str, tuple[str, ...]]]:
    """The elements of a page without links, notes and breaks, which depend on the value, never on an attack."""
    return [shape for shape in page.shape if shape[0] not in ("a", "li", "div", "wbr")]


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_become_only_text(server: Harness, attack: str) -> None:
    encoded = quote(f"12345/{attack}", safe="")
    if "\x00" in attack:
        assert server.get(f"/{encoded}").status == 400
        return
    check_page(server.get(f"/{encoded}"))
    with without_suggestions(server):
        expected = check_page(server.get("/12345/not-there")).shape
        absent = check_page(server.get(f"/{encoded}"))
    assert [shape for shape in absent.shape if shape[0] not in ("a", "li", "ul")] == [
        shape for shape in expected if shape[0] not in ("a", "li", "ul")
    ]
    assert json_of(server.get(f"/{encoded}", headers={"Accept": "application/json"}))["handle"].startswith("12345/")
    for path in (f"/{quote(attack, safe='')}/x", f"/static/{quote(attack, safe='')}", f"/hdl/{quote(attack, safe='')}"):
        check_any(server.get(path))
    try:
        Handle.parse(f"12345/{attack}")
    except InvalidName:
        return
    create(server, f"12345/{attack}", text(1, "DESC", "has a strange name"))
    shown = check_page(server.get(f"/hdl/{encoded}"))
    assert to_visible(f"12345/{attack}") in shown.text
    create(server, f"12345/to-{quote(attack, safe='')}", text(1, "HS_ALIAS", f"12345/{attack}"))
    answer = server.get(f"/12345/to-{quote(quote(attack, safe=''), safe='')}")
    check_headers(answer)
    assert answer.status == 301


@pytest.mark.parametrize("attack", ATTACKS)
def test_parameters_become_only_text(server: Harness, attack: str) -> None:
    encoded = quote(attack, safe="")
    names = ("type", "index", "urlappend", "locatt", "action", "country", "ip", "callback", "hdl", "at", encoded)
    for parameter in names:
        for path in ("/12345/url", "/12345/alias", "/12345/nothing", "/12345/absent", "/12345/gone", "/"):
            check_any(server.get(f"{path}?{parameter}={encoded}&{encoded}"))
    posted = server.post(
        "/", f"hdl={encoded}&page={encoded}", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    check_any(posted)


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.isprintable() and attack.isascii()])
def test_request_headers_have_no_effect_on_pages(server: Harness, attack: str) -> None:
    names = (
        "Accept",
        "Accept-Language",
        "User-Agent",
        "Host",
        "X-Forwarded-Host",
        "If-None-Match",
        "Referer",
        "Origin",
        "Accept-Datetime",
    )
    for path in ("/12345/url", "/12345/alias", "/12345/nothing", "/12345/absent"):
        answer = server.get(path, headers=dict.fromkeys(names, attack))
        check_any(answer)
        assert "evil" not in (header_of(answer, "Location") or "")


@pytest.mark.parametrize("number", range(len(ATTACKS)))
def test_tombstones_and_namespaces_become_only_text(server: Harness, number: int) -> None:
    attack = ATTACKS[number]
    name = Handle.parse(f"12345/tomb-{number}")
    create(server, str(name), text(1, "DESC", "x"))
    server.registry.do(Tombstone(name, attack), OPERATOR, "cli")
    check_page(server.get(f"/{name}"))
    clean = "".join(each for each in attack if each.isprintable())
    space = f"<n><contact>{escape(clean)}</contact><status>inactive</status><statusmsg>{escape(clean)}</statusmsg></n>"
    add_namespace(server, f"70.{number}", "free", text(1, "HS_NAMESPACE", space))
    create(server, f"70.{number}/x", text(1, "URL", "https://example.org/"))
    for path in (f"/70.{number}/x", f"/70.{number}/absent", f"/0.NA/70.{number}?noredirect"):
        check_page(server.get(path))


@pytest.mark.parametrize("number", range(len(ATTACKS)))
def test_location_attributes_become_only_text(server: Harness, number: int) -> None:
    clean = "".join(each for each in ATTACKS[number] if each.isprintable() or each in "\r\n\t")
    quoted = quoteattr(clean)
    names = (
        "id",
        "rel",
        "title",
        "hreflang",
        "media-type",
        "media",
        "target-type",
        "titlelang",
        "country",
        "role",
        "http_sc",
    )
    attributes = " ".join(f"{name}={quoted}" for name in names)
    inner = (
        f"<location href={quoted} {attributes}/>"
        f"<location href_template={quoted} {attributes} anchor-id={quoted}/>"
        f'<location href="https://example.org/" {attributes} anchor-id={quoted}/>'
    )
    list_ = f"<l http_sc={quoted} chooseby={quoted}>{inner}</l>"
    create(server, f"12345/place-{number}", text(1, "10320/loc", list_), text(2, "10320/links", list_))
    for query in ("", "?noredirect", "?action=showurls", "?action=explain", "?redirectionHeaders", "?action=metadata"):
        answer = server.get(f"/12345/place-{number}{query}")
        check_any(answer)
        for link in answer.values("Link"):
            assert link.startswith(("<http://", "<https://", "<ftp://", "<mailto:"))
            assert link.isascii()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=60), type_=st.sampled_from(TYPES), as_text=st.text(max_size=40))
def test_any_record_can_be_shown(server: Harness, data: bytes, type_: str, as_text: str) -> None:
    if type_ == "HS_NAMESPACE":
        return
    name = f"12345/any-{hashlib.sha256(repr((data, type_, as_text)).encode()).hexdigest()}"
    if server.get(f"/api/handles/{name}").status == 404:
        create(server, name, Value(1, type_, data), text(2, type_, as_text))
    for query in ("?noredirect", "", "?action=showurls", "?action=explain"):
        check_any(server.get(f"/{name}{query}"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(target=st.binary(max_size=80))
def test_any_request_gets_a_response(server: Harness, target: bytes) -> None:
    answer = server.get(b"/" + target.replace(b"#", b""))
    assert answer.status < 500
    if not target.startswith((b"api", b"healthz", b"readyz", b"hrls")):
        check_any(answer)

"""Name, logo, colors and texts of the service on its pages."""

import re
from collections.abc import Iterator
from gettext import NullTranslations
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.registry.installation.logo import MAX_LOGO, Logo, LogoError, load_logo
from perseid.registry.installation.sections import ServiceSection
from perseid.registry.installation.settings import Config
from perseid.server.http.context import HttpSettings
from perseid.server.http.pages import texts
from perseid.server.http.pages.branding import (
    CONTRAST,
    DARK_PAPER,
    LIGHT_PAPER,
    contrast,
    make_stylesheet,
)
from perseid.server.http.pages.links import TextLink
from perseid.server.http.pages.pages import POLICY, SCRIPT_POLICY, make_environment, render_page
from tests.server.http.contexts import Harness, header_of
from tests.server.http.resolver.resolver_records import page_of, resolver

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
ATTACK = '<script>alert(1)</script>"'


@pytest.fixture
def server() -> Iterator[Harness]:
    with resolver() as made:
        yield made


def test_every_page_shows_who_runs_the_service(server: Harness) -> None:
    service = ServiceSection(
        name="Example <identifiers>",
        description="For readers & writers.",
        contact="ids@example.org",
        terms_url="https://example.org/terms",
        footer="© Example",
        accent_color="#7a1fa2",
    )
    server.configure(service=service, logo=Logo(SVG, "image/svg+xml"))
    for path in ("/", "/help.html", "/12345/url?noredirect", "/12345/absent"):
        page = page_of(server.get(path))
        assert "Example <identifiers>" in page.text
        assert "© Example" in page.text
        assert {"mailto:ids@example.org", "https://example.org/terms", "/console"} <= set(page.links)
        images = [each["src"] for tag, each in page.elements if tag == "img"]
        assert images[0] == "/static/logo"
        styles = [each["href"] for tag, each in page.elements if tag == "link" and each["rel"] == "stylesheet"]
        assert styles == ["/static/perseid.css", "/static/service.css"]
    logo = server.get("/static/logo")
    assert (logo.body, header_of(logo, "Content-Type")) == (SVG, "image/svg+xml")
    assert header_of(logo, "Content-Security-Policy") == "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    assert "--accent: #" in server.get("/static/service.css").body.decode()


def test_service_without_settings_has_the_name_of_its_host(server: Harness) -> None:
    page = page_of(server.get("/"))
    assert "hdl.example.org" in page.text
    assert server.get("/static/logo").status == 404
    assert server.get("/static/service.css").status == 404


def test_settings_of_the_service_are_escaped(server: Harness) -> None:
    server.configure(service=ServiceSection(ATTACK, ATTACK, "", ATTACK, "", ATTACK))
    body = server.get("/").body.decode()
    assert "<script>" not in body
    assert ATTACK.replace('"', "") in page_of(server.get("/")).text


@given(st.integers(0, 0xFF_FF_FF))
def test_every_accent_color_is_readable(number: int) -> None:
    css = make_stylesheet(f"#{number:06x}")
    light, dark = re.findall(r"--link: (#[0-9a-f]{6})", css)[:2]
    above = re.findall(r"--on-accent: (#[0-9a-f]{6})", css)
    for color, paper in ((light, LIGHT_PAPER), (dark, DARK_PAPER), (light, above[0]), (dark, above[1])):
        assert contrast(color, paper) >= CONTRAST
    assert contrast("#000000", "#ffffff") == 21


def test_papers_are_those_of_the_stylesheet(server: Harness) -> None:
    css = server.get("/static/perseid.css").body.decode()
    assert re.findall("--panel: (#[0-9a-f]{6});", css) == [LIGHT_PAPER, DARK_PAPER]


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff....", "image/jpeg"),
        (b"RIFF....WEBPVP8 ", "image/webp"),
        (SVG, "image/svg+xml"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>' + SVG, "image/svg+xml"),
    ],
)
def test_logo_is_recognized_by_its_content(tmp_path: Path, data: bytes, media_type: str) -> None:
    (tmp_path / "logo").write_bytes(data)
    config = Config.parse('[service]\nlogo_file = "logo"', {})
    assert load_logo(tmp_path, config) == Logo(data, media_type)
    assert load_logo(tmp_path, Config()) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GIF89a", "logo is not an SVG, PNG, JPEG or WebP image; correct service.logo_file"),
        (b"<html><svg></html>", "is not an SVG"),
        (b"\x89PNG\r\n\x1a\n" + bytes(MAX_LOGO), "is too large: at most 32,768 bytes; correct service.logo_file"),
        (None, "Cannot read"),
    ],
)
def test_unusable_logo_is_refused(tmp_path: Path, data: bytes | None, problem: str) -> None:
    if data is not None:
        (tmp_path / "logo").write_bytes(data)
    with pytest.raises(LogoError, match=problem):
        load_logo(tmp_path, Config.parse('[service]\nlogo_file = "logo"', {}))


# Texts


class Marked(NullTranslations):
    def gettext(self, message: str) -> str:
        return f"«{message}»"

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return f"«{msgid1 if n == 1 else msgid2}»"


@pytest.fixture
def marked() -> Iterator[None]:
    texts.use(Marked(), "x-marked")
    yield
    texts.use(NullTranslations(), "en")


@pytest.mark.usefixtures("marked")
def test_pages_are_in_the_language_of_the_catalog(server: Harness) -> None:
    page = page_of(server.get("/"))
    assert dict(page.elements)["html"] == {"lang": "x-marked"}
    assert "«Skip to content»" in page.text


@pytest.mark.usefixtures("marked")
def test_texts_with_variables_are_translated_and_escaped() -> None:
    counted = "{% trans n=n %}one{% pluralize n %}{{ n }} of <b>{% endtrans %}"
    source = "{% trans %}a <b>{% endtrans %}|{% trans x=x %}to {{ x }}{% endtrans %}|{{ _('<c>') }}|" + counted
    template = make_environment().from_string(source)
    assert template.render(x="<y>", n=2) == "«a <b>»|«to &lt;y&gt;»|«&lt;c&gt;»|«2 of <b>»"
    assert template.render(x="", n=1).endswith("|«one»")
    assert texts.ngettext("one", "many", 3) == "«many»"


def test_catalog_of_texts_is_packaged() -> None:
    assert files("perseid.server.http.pages").joinpath("locale", "perseid.pot").is_file()


def test_only_pages_with_scripts_can_run_some() -> None:
    shown: dict[str, Any] = {"title": "t", "name": "n", "target": TextLink("x", "https://example.org/")}
    plain = render_page("leaving.html", HttpSettings(), **shown)
    assert header_of(plain, "Content-Security-Policy") == POLICY
    assert "script" not in POLICY
    page = render_page("leaving.html", HttpSettings(), scripts=("/static/x.js",), **shown)
    assert header_of(page, "Content-Security-Policy") == SCRIPT_POLICY
    assert "script-src 'self'; connect-src 'self'" in SCRIPT_POLICY
    assert b'<script type="module" src="/static/x.js"></script>' in page.body

"""The texts of the API pages are in the catalog; what the OpenAPI document says stays as it is."""

import re
from collections.abc import Iterator
from gettext import NullTranslations
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest
from jinja2 import Environment, nodes

from messages import SOURCES, find_messages
from perseid.server.http.pages import texts
from perseid.server.http.v1.application import get_api
from tests.server.http.contexts import harness
from tests.server.http.v1 import openapi_document

TEMPLATES: Final = sorted((SOURCES / "pages" / "templates").glob("docs*.html"))
NAMES: Final = {"OpenAPI", "OpenAPI 3.1", "(application/json)", "make wheel && pip install dist/perseid-*.whl"}
"""Words that are the same in every language."""


class _Pseudo(NullTranslations):
    """A language that shows what was translated."""

    def gettext(self, message: str) -> str:
        return f"⟦{message}⟧"


class _Words(HTMLParser):
    """The texts of a page or template, without code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value.strip() for name, value in attrs if name == "aria-label" and value]

    def handle_data(self, data: str) -> None:
        if re.search("[^\\W\\d_]{2}", data):
            self.found.append(data.strip())


@pytest.fixture
def pseudo() -> Iterator[None]:
    texts.use(_Pseudo(), "en-XA")
    yield
    texts.use(NullTranslations(), "en")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_template_has_no_text_of_its_own(path: Path) -> None:
    parsed = Environment(extensions=["jinja2.ext.i18n"], autoescape=True).parse(path.read_text(encoding="utf-8"))
    own = "".join(each.data for each in parsed.find_all(nodes.TemplateData))
    assert set(_Words(own).found) <= NAMES


@pytest.mark.usefixtures("pseudo")
def test_pages_show_the_texts_of_the_catalog() -> None:
    """A page that was rendered in another language is rendered again."""
    own = {
        message[0]
        for message, places in find_messages().items()
        if any(place.startswith("pages/templates/docs") or place == "pages/docs_pages.py" for place in places)
    }
    of_the_api = {"or", *[section.tag for section in get_api().sections]}
    of_the_api |= set(openapi_document.document()["components"]["schemas"])
    with harness() as server:
        for path in ("/docs", "/docs/records", "/docs/schemas", "/docs/problems"):
            page = server.get(path).body.decode()
            assert "⟦Contents⟧" in page
            assert not (set(_Words(page).found) & own) - of_the_api, path


def test_pages_are_in_english_again() -> None:
    with harness() as server:
        assert "⟦" not in server.get("/docs").body.decode()

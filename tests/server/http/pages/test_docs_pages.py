"""The structure of the API pages: navigation, operations, schemas, forms and sizes."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Final

import pytest

from perseid.schema.problems import PROBLEM_TYPES
from perseid.server.http.pages import docs_pages
from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import BASE
from tests.server.http.contexts import harness
from tests.server.http.v1 import openapi_document

SECTIONS: Final = [docs_pages.slugify(section.tag) for section in get_api().sections]
PAGES: Final = ["/docs", "/docs/schemas", "/docs/problems", *[f"/docs/{slug}" for slug in SECTIONS]]
MAX_BYTES: Final = 100_000
"""Bytes of a page with its files."""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    with harness() as server:
        return {path: server.get(path).body.decode() for path in PAGES}


class Outline(HTMLParser):
    """What a page consists of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.navigation: list[str] = []
        """Links of the navigation, without anchors."""
        self.current: list[str] = []
        self.operations: list[str] = []
        self.forms: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """Parameters of the forms, by method and path."""
        self.files: set[str] = set()
        self._is_navigation = False
        self._form: set[tuple[str, str]] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "details" and found.get("class") == "menu":
            self._is_navigation = True
        if tag == "a" and self._is_navigation and not found["href"].startswith("#"):
            self.navigation.append(found["href"])
            self.current += [found["href"]] if "aria-current" in found else []
        if tag == "section" and found.get("class") == "operation":
            self.operations.append(found["aria-labelledby"])
        if tag == "form":
            self._form = self.forms.setdefault((found["data-method"], found["data-path"]), set())
        if tag in ("input", "select") and "data-in" in found:
            self._form.add((found["data-in"], found["name"]))
        if tag in ("script", "img", "link"):
            self.files.add(found.get("src") or found["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self._is_navigation = False


def test_each_operation_appears_once(pages: dict[str, str]) -> None:
    shown = Counter(name for page in pages.values() for name in Outline(page).operations)
    assert shown == Counter(route.operation for route in get_api().routes)
    for section in get_api().sections:
        slug = docs_pages.slugify(section.tag)
        assert Outline(pages[f"/docs/{slug}"]).operations == [route.operation for route in section.routes]
        for route in section.routes:
            assert pages["/docs"].count(f'href="/docs/{slug}#{route.operation}"') == 1


@pytest.mark.parametrize("path", PAGES)
def test_navigation_has_every_page_and_ends_with_the_errors(pages: dict[str, str], path: str) -> None:
    found = Outline(pages[path])
    assert Counter(found.navigation) == Counter([*PAGES, "/openapi.json"])
    assert found.navigation[0] == "/docs"
    assert found.navigation[-1] == "/docs/problems"
    assert found.current == [path]


def test_each_schema_is_described_once(pages: dict[str, str]) -> None:
    names = set(openapi_document.document()["components"]["schemas"])
    headings = Counter(
        name for page in pages.values() for name in re.findall(r'<h[23] id="(\w+)">\1</h[23]>', page) if name in names
    )
    assert headings == Counter(names)
    assert all(f'id="{name}"' in pages["/docs/schemas"] for name in names), "old links still work"


def test_forms_have_the_parameters_of_the_operations(pages: dict[str, str]) -> None:
    forms = {key: fields for page in pages.values() for key, fields in Outline(page).forms.items()}
    paths = openapi_document.document()["paths"]
    expected = {
        (route.method, BASE + route.path): {
            (each["in"], each["name"])
            for each in paths[route.path][route.method.lower()]["parameters"]
            if each["in"] != "header"
        }
        for route in get_api().routes
    }
    assert forms == expected


def test_errors_are_described_by_status(pages: dict[str, str]) -> None:
    page = pages["/docs/problems"]
    for slug, problem_type in PROBLEM_TYPES.items():
        place = page.index(f'<h3 id="{slug}">')
        statuses = re.findall(r'id="status-([0-9]+)"', page[:place])
        assert int(statuses[-1]) == problem_type.status, slug


@pytest.mark.parametrize("path", PAGES)
def test_page_and_its_files_are_small(path: str) -> None:
    with harness() as server:
        page = server.get(path).body
        size = len(page) + sum(len(server.get(file).body) for file in Outline(page.decode()).files)
    assert size < MAX_BYTES


def test_example_bodies_of_forms_are_json(pages: dict[str, str]) -> None:
    bodies = [
        body for page in pages.values() for body in re.findall(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    ]
    assert len(bodies) == len([route for route in get_api().routes if route.body is not None and not route.is_streamed])
    for body in bodies:
        assert isinstance(json.loads(body.replace("&#34;", '"')), dict)


def test_every_section_is_in_one_group() -> None:
    tags = [section.tag for group in docs_pages.get_groups() for section in group.sections]
    assert sorted(tags) == sorted(section.tag for section in get_api().sections)

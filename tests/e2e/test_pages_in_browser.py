"""The page that creates identifiers and the not-found page in a real browser, at a running server."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Create
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.e2e.browsers import visit
from tests.e2e.demonstration import target
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET, copy_to
from tests.server.running import Serving, serving

PILIN: Final = "102.100.272"
CREDENTIALS: Final = {"username": ADMINISTRATOR.replace(":", "%3A"), "password": SECRET}


@dataclass(frozen=True)
class Site:
    """A server, and the targets of its handles."""

    server: Serving
    things: str

    @property
    def home(self) -> str:
        host, port = self.server.http
        return f"http://{host}:{port}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = copy_to(tmp_path_factory.mktemp("browser"))
    with target() as things:
        _fill(directory, things.url)
        with serving(directory, PERSEID_HTTP_PUBLIC_URL="http://id.example.org") as server:
            yield Site(server, things.url)


def _fill(directory: Path, things: str) -> None:
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        admin = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())
        policy = replace(PROFILES["pilin"], default_creator="12345/n0")
        registry.do(AddNamespace(PILIN, policy, (admin,)), OPERATOR, "cli")
        listed = replace(PROFILES["free"], who_may_list=Audience.PUBLIC)
        registry.do(SetPolicy("12345", listed), OPERATOR, "cli")
        values = (
            Value.text(1, "URL", f"{things}/report"),
            Value.text(2, "TITLE", "A </script><script>alert(1)</script> title"),
        )
        registry.do(Create(Handle.parse("12345/report-2021"), values), OPERATOR, "cli")
        for url in (f"{things}/one", f"{things}/two"):
            moved = (Value.text(1, "URL", url), admin)
            registry.do(Create(Handle.parse("12345/moved"), moved, overwrite=True), OPERATOR, "cli")


def arrived(page: Page, url: str) -> None:
    """Check that the browser shows the target."""
    page.get_by_role("heading", name="Arrived").wait_for()
    assert page.url == url


# Not found


@pytest.mark.parametrize("scripts", [True, False], ids=["with-scripts", "without-scripts"])
@pytest.mark.parametrize("path", ["/12345/reprot-2021", "/12345%252Freport-2021", "/12345/report-2021)."])
def test_mistyped_handle_leads_to_suggestion(browser: Browser, site: Site, path: str, scripts: bool) -> None:
    with visit(browser, java_script_enabled=scripts) as window:
        page = window.page
        assert window.open(site.home + path).status == 404
        meant = page.get_by_role("region", name="Did you mean …?")
        assert meant.get_by_role("link").all_inner_texts() == ["12345/report-2021"]
        meant.get_by_role("link").click()
        arrived(page, f"{site.things}/report")


def test_unknown_handle_can_be_looked_up_again(browser: Browser, site: Site) -> None:
    with visit(browser) as window:
        page = window.page
        assert window.open(f"{site.home}/12345/zzzzzzzzzz").status == 404
        assert "but this handle does not exist" in page.get_by_role("main").inner_text()
        assert page.get_by_role("region", name="Did you mean").count() == 0
        page.get_by_label("Handle", exact=True).fill("hdl:12345/report-2021")
        page.get_by_role("button", name="Resolve").click()
        arrived(page, f"{site.things}/report")
        assert not [text for text in window.complaints if "404" not in text]


# Records


def test_embedded_data_is_not_a_script(browser: Browser, site: Site) -> None:
    with visit(browser) as window:
        window.page.on("dialog", lambda _: pytest.fail("a script of a record ran"))
        window.open(f"{site.home}/12345/report-2021?noredirect")
        text = window.page.locator('script[type="application/ld+json"]').text_content()
        assert json.loads(text or "")["name"] == "A </script><script>alert(1)</script> title"
        assert window.page.locator("script:not([type=module])").count() == 1
        assert window.violations() == []
        assert window.complaints == []


def test_page_of_version_links_current_version(browser: Browser, site: Site) -> None:
    with visit(browser) as window:
        page = window.page
        old = window.open(f"{site.home}/12345/moved?noredirect")
        assert f"{site.things}/two" in page.get_by_role("main").inner_text()
        (number,) = re.findall(r"12345/moved\?at=([0-9]+)>; rel=\"first memento", _time_map(site))
        window.open(f"{site.home}/12345/moved?noredirect&at={number}")
        assert "This is the version of" in page.get_by_role("main").inner_text()
        assert f"{site.things}/one" in page.get_by_role("main").inner_text()
        page.get_by_role("link", name="Next version").click()
        assert f"{site.things}/two" in page.get_by_role("main").inner_text()
        page.get_by_role("link", name="Current version").click()
        assert page.url == old.url
        window.open(f"{site.home}/12345/moved?at={number}")
        arrived(page, f"{site.things}/one")
        assert window.complaints == []


def _time_map(site: Site) -> str:
    host, port = site.server.http
    connection = HTTPConnection(host, port)
    with closing(connection):
        connection.request("GET", "/timemap/link/12345/moved")
        return connection.getresponse().read().decode().replace(";", "; ")

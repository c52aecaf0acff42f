"""The page that creates identifiers and the not-found page in a real browser, at a running server."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

from perseid.names import pilin
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.e2e.browsers import Visit, visit
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


# The generator


def signed_in(window: Visit, home: str) -> None:
    window.open(f"{home}/generate")
    window.page.get_by_role("button", name="Sign in").click()
    window.page.get_by_label("Prefix").wait_for()


@pytest.mark.parametrize("scripts", [True, False], ids=["with-scripts", "without-scripts"])
def test_handles_are_created_and_explained(browser: Browser, site: Site, scripts: bool) -> None:
    with visit(browser, http_credentials=CREDENTIALS, java_script_enabled=scripts) as window:
        page = window.page
        signed_in(window, site.home)
        assert ADMINISTRATOR in page.get_by_role("main").inner_text()
        page.get_by_label("Prefix").fill(PILIN)
        page.get_by_role("radio", name="generate").check()
        page.get_by_label("Number of identifiers").fill("3")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("heading", name="Suffix of the first identifier").wait_for()
        names = page.locator(".names .name").all_inner_texts()
        assert len(set(names)) == 3
        suffix = names[0].removeprefix(f"{PILIN}/")
        assert page.locator("td.character").all_inner_texts() == list(suffix)
        assert len(suffix) == 9
        assert pilin.format_time(pilin.decode(suffix)) in page.get_by_role("main").inner_text()
        page.reload()
        assert page.locator(".names .name").all_inner_texts() == names, "loading it again makes nothing"
        page.get_by_role("link", name="Create more").click()
        page.get_by_label("Prefix").wait_for()
        assert not window.complaints


def test_minted_handle_redirects_to_url(browser: Browser, site: Site) -> None:
    with visit(browser, http_credentials=CREDENTIALS) as window:
        page = window.page
        signed_in(window, site.home)
        page.get_by_label("Prefix").fill(PILIN)
        page.get_by_role("radio", name="mint").check()
        page.get_by_label("Target URL").fill(f"{site.things}/minted")
        page.get_by_role("button", name="Create").click()
        page.locator(".names a").click()
        arrived(page, f"{site.things}/minted")


def test_refused_form_stays_filled_in(browser: Browser, site: Site) -> None:
    with visit(browser, http_credentials=CREDENTIALS) as window:
        page = window.page
        signed_in(window, site.home)
        page.get_by_label("Prefix").fill("999")
        page.get_by_role("radio", name="reserve").check()
        page.get_by_label("Number of identifiers").fill("2")
        page.get_by_role("button", name="Create").click()
        alert = page.get_by_role("alert")
        alert.wait_for()
        assert "Check the prefix" in alert.inner_text()
        assert page.get_by_label("Prefix").input_value() == "999"
        assert page.get_by_role("radio", name="reserve").is_checked()
        page.get_by_label("Prefix").fill("12345")
        page.get_by_role("button", name="Create").click()
        page.locator(".names .name").first.wait_for()
        assert page.locator(".names .name").count() == 2


@pytest.fixture
def elsewhere(site: Site) -> Iterator[str]:
    """A page of another site that submits the form for its visitors."""
    fields = {"prefix": "12345", "mode": "reserve", "count": "1", "token": "x" * 75}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    body = f'<form method="post" action="{site.home}/generate">{inputs}<button>Win a prize</button></form>'.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_cross_site_page_creates_nothing(browser: Browser, site: Site, elsewhere: str) -> None:
    with visit(browser, http_credentials=CREDENTIALS) as window:
        page = window.page
        signed_in(window, site.home)
        window.open(elsewhere)
        page.get_by_role("button", name="Win a prize").click()
        page.get_by_role("alert").wait_for()
        assert "another site" in page.get_by_role("alert").inner_text()
        assert page.locator(".names").count() == 0


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

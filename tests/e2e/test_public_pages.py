"""Public pages in a real browser: proofs, suggestions, times, copies, versions, and all of it without scripts."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.e2e.page_watch import PATIENCE, PHONE, Visitor
from tests.server.installations import OPERATOR, copy_to
from tests.server.running import Serving, serving

PREFIX: Final = "20.500.7"
NAME: Final = f"{PREFIX}/report-2019"
PATHS: Final = (
    "/",
    f"/{NAME}?noredirect",
    f"/{NAME}?action=history",
    f"/namespaces/{PREFIX}",
    "/namespaces/12345",
    "/ledger",
    f"/{PREFIX}/reprot-2019",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = copy_to(tmp_path_factory.mktemp("public"))
    _fill(directory)
    with serving(directory, PERSEID_SERVICE_NAME="Example identifiers", PERSEID_SERVICE_ACCENT_COLOR="#ffe600") as made:
        yield made


def _fill(directory: Path) -> None:
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        policy = replace(PROFILES["free"], who_may_list=Audience.PUBLIC, purpose="Reports of <b>everybody</b>.")
        registry.do(AddNamespace(PREFIX, policy, ()), OPERATOR, "cli")
        for url in ("https://example.org/old", "https://example.org/new"):
            values = (Value.text(1, "URL", url), Value.text(2, "TITLE", "Erosion & <i>coasts</i>"))
            registry.do(Create(Handle.parse(NAME), values, overwrite=True), OPERATOR, "cli")
        registry.do(Create(Handle.parse(f"{PREFIX}/other"), (Value.text(1, "DESC", "Other"),)), OPERATOR, "cli")


@pytest.fixture
def visitor(browser: Browser, server: Serving) -> Iterator[Visitor]:
    made = Visitor(browser, home(server), timezone_id="Asia/Tokyo", locale="en-US")
    yield made
    made.close()


def home(server: Serving) -> str:
    return f"http://127.0.0.1:{server.http[1]}"


def verify(page: Page) -> str:
    """Press the button and return what the page says."""
    page.get_by_role("button", name="Verify in this browser").click()
    expect(page.locator(".verify [role=status]")).not_to_have_text(re.compile("Checking|^$"), timeout=PATIENCE)
    return page.inner_text(".verify [role=status]")


@pytest.mark.parametrize(("scheme", "viewport"), [("light", None), ("dark", PHONE)], ids=["desk-light", "phone-dark"])
def test_pages_have_no_faults(browser: Browser, server: Serving, scheme: str, viewport: dict[str, int] | None) -> None:
    """With an accent color that nobody could read."""
    visitor = Visitor(browser, home(server), color_scheme=scheme, **({"viewport": viewport} if viewport else {}))
    for path in PATHS:
        visitor.go(path)
        assert visitor.faults() == [], path
    visitor.close()


def test_record_is_verified_in_the_browser(visitor: Visitor) -> None:
    visitor.go(f"/{NAME}?noredirect")
    said = verify(visitor.page)
    assert "The proof is correct: entry" in said
    assert "recorded these 2 values" in said
    assert "signed the checkpoint" in said
    assert "only proves that the server is consistent" in said
    assert visitor.faults() == []


def tampered(proof: dict[str, Any], how: str) -> dict[str, Any]:
    if how == "value":
        proof["values"][0]["salt"] = proof["values"][1]["salt"]
    elif how == "path":
        proof["entry"]["path"] = proof["entry"]["path"][:-1]
    elif how == "handle":
        proof["handle"] = f"{PREFIX}/other"
    elif how == "signature":
        text, mark, line = proof["checkpoint"].rpartition(" ")
        proof["checkpoint"] = text + mark + line[:20] + ("A" if line[20] != "A" else "B") + line[21:]
    return proof


@pytest.mark.parametrize("how", ["value", "path", "handle", "signature"])
def test_wrong_proof_is_detected(visitor: Visitor, how: str) -> None:
    def change(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=json.dumps(tampered(answer.json(), how)))

    visitor.page.route("**/proof", change)
    visitor.go(f"/{NAME}?noredirect")
    assert "The proof is wrong" in verify(visitor.page)


def test_proof_of_another_version_is_detected(visitor: Visitor) -> None:
    """It has values with the same indexes."""
    visitor.go(f"/{NAME}?noredirect")
    seq = int(visitor.page.get_attribute(".verify", "data-seq") or 0)
    visitor.page.route(
        "**/proof", lambda route: route.fulfill(response=route.fetch(url=f"{route.request.url}?at={seq}"))
    )
    assert "The proof is correct" in verify(visitor.page)
    seq -= 1
    assert "has changed since this page was loaded" in verify(visitor.page)


def test_missing_proof_is_reported(visitor: Visitor) -> None:
    visitor.page.route("**/proof", lambda route: route.fulfill(status=503, body="{}"))
    visitor.go(f"/{NAME}?noredirect")
    assert "There is no proof now" in verify(visitor.page)
    visitor.said.clear()


def test_times_are_in_the_zone_of_the_reader(visitor: Visitor) -> None:
    visitor.go(f"/{NAME}?noredirect")
    time = visitor.page.locator("time").first
    iso = time.get_attribute("datetime")
    shown = visitor.page.evaluate(
        "iso => new Intl.DateTimeFormat(undefined, {dateStyle: 'medium', timeStyle: 'short'}).format(new Date(iso))",
        iso,
    )
    assert (time.inner_text(), time.get_attribute("title")) == (shown, iso)


def test_handles_are_suggested_while_typing(visitor: Visitor) -> None:
    visitor.go("/")
    field = visitor.page.get_by_label("Handle", exact=True)
    field.press_sequentially(f"hdl:{PREFIX}/r")
    visitor.page.get_by_role("option").first.wait_for()
    assert visitor.page.get_by_role("option").all_inner_texts() == [NAME]
    assert visitor.faults() == []
    field.press("ArrowDown")
    assert field.get_attribute("aria-activedescendant") == "hdl-0"
    field.press("Enter")
    assert field.input_value() == NAME
    assert visitor.page.get_by_role("option").count() == 0
    visitor.page.get_by_label("Show the record").check()
    field.press("Enter")
    visitor.page.get_by_role("heading", name="Erosion & <i>coasts</i>").wait_for()


def test_citation_is_copied(browser: Browser, server: Serving) -> None:
    visitor = Visitor(browser, home(server), permissions=["clipboard-read", "clipboard-write"])
    visitor.go(f"/{NAME}?noredirect")
    visitor.page.locator("[data-copy=citation]").click()
    visitor.page.get_by_role("button", name="Copied").wait_for()
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    assert copied == visitor.page.inner_text("#citation")
    visitor.close()


def test_qr_code_is_shown_on_request(visitor: Visitor) -> None:
    visitor.go(f"/{NAME}?noredirect")
    assert not any("action=qr" in url for url in visitor.asked)
    visitor.page.get_by_text("QR code", exact=True).click()
    expect(visitor.page.locator(".qr")).to_have_js_property("complete", True, timeout=PATIENCE)
    assert visitor.faults() == []


def test_everything_else_works_without_scripts(browser: Browser, server: Serving) -> None:
    visitor = Visitor(browser, home(server), java_script_enabled=False)
    page = visitor.page
    visitor.go("/")
    page.get_by_role("link", name=PREFIX).click()
    assert "Everybody can list all identifiers." in visitor.text()
    page.get_by_role("link", name=NAME).first.click()
    assert not page.get_by_role("button", name="Verify in this browser").is_visible()
    assert "perseid verify FILE --key KEY" in visitor.text()
    page.get_by_role("link", name="Versions and differences").click()
    assert page.locator("del").all_inner_texts()[0].endswith("https://example.org/old")
    page.get_by_role("link", name="Show this version").last.click()
    assert "This is the version of" in visitor.text()
    assert "https://example.org/old" in visitor.text()
    page.get_by_role("link", name="Current version").click()
    assert "https://example.org/new" in visitor.text()
    visitor.close()

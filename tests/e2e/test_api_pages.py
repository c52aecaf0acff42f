"""The API pages in a real browser: navigation, examples that can be copied, and requests from the page."""

import json
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser

from perseid.server.http.pages import docs_pages
from perseid.server.http.v1.application import get_api
from tests.e2e.demonstration import PREFIX, Demonstration
from tests.e2e.page_watch import PHONE, Visitor

SECTIONS: Final = [f"/docs/{docs_pages.slugify(section.tag)}" for section in get_api().sections]
SAMPLES: Final = ["/docs", "/docs/schemas", "/docs/problems", "/docs/records"]
"""A page of each template, for what is slow: axe, and a second screen."""


@pytest.mark.parametrize(("place", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_every_page_is_faultless(browser: Browser, demo: Demonstration, place: str, scheme: str) -> None:
    phone = {"viewport": PHONE, "is_mobile": True, "has_touch": True}
    visitor = Visitor(browser, demo.url, color_scheme=scheme, **(phone if place == "phone" else {}))
    for path in SAMPLES[-1:] if place == "phone" else {*SAMPLES, *SECTIONS}:
        assert visitor.go(path).status == 200
        visitor.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        visitor.page.locator(".session:empty").first.wait_for(state="detached")
        assert (visitor.faults() if path in SAMPLES else visitor.plain_faults()) == [], path
    visitor.close()


def test_navigation_is_always_there_on_wide_screens(visitor: Visitor) -> None:
    visitor.go("/docs/records")
    navigation = visitor.page.get_by_role("navigation", name="API reference")
    assert not navigation.locator("summary").is_visible()
    assert navigation.locator("[aria-current=page]").inner_text() == "Records"
    navigation.get_by_role("link", name="Set values").click()
    assert visitor.page.url.endswith("#setValues")
    assert visitor.page.locator("#setValues").is_visible()
    assert navigation.get_by_role("link", name="Records").is_visible(), "it stays while the page scrolls"
    box = navigation.bounding_box()
    assert box is not None
    assert box["y"] >= 0
    navigation.get_by_role("link", name="Tokens").click()
    assert visitor.page.inner_text("h1") == "Tokens"


def test_navigation_is_a_menu_on_phones(browser: Browser, demo: Demonstration) -> None:
    for scripts in (True, False):
        visitor = Visitor(browser, demo.url, viewport=PHONE, java_script_enabled=scripts)
        visitor.go("/docs/records")
        link = visitor.page.get_by_role("link", name="Tokens")
        assert not link.is_visible()
        visitor.page.locator(".menu > summary").focus()
        visitor.page.keyboard.press("Enter")
        link.click()
        assert visitor.page.inner_text("h1") == "Tokens"
        visitor.close()


def test_example_is_copied(browser: Browser, demo: Demonstration) -> None:
    visitor = Visitor(browser, demo.url, permissions=["clipboard-read", "clipboard-write"])
    visitor.go("/docs/records")
    example = visitor.page.locator("section[aria-labelledby=getRecord] .example").first
    example.get_by_role("button", name="Copy").click()
    example.get_by_role("button", name="Copied").wait_for()
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    assert copied == f'curl "{demo.url}/api/v1/handles/12345%2Fx"'
    assert visitor.faults() == []
    visitor.close()


def test_read_is_tried_without_signing_in(visitor: Visitor) -> None:
    visitor.go("/docs/records")
    form = visitor.page.locator("section[aria-labelledby=getRecord] details.try")
    form.locator("summary").click()
    form.get_by_text("You are not signed in").wait_for()
    assert form.get_by_role("link", name="Sign in").get_attribute("href") == "/console"
    form.get_by_label("handle").fill(f"{PREFIX}/leads")
    form.get_by_label("type").fill("URL DESC")
    form.get_by_label("follow").select_option("true")
    form.get_by_role("button", name="Send request").click()
    form.locator(".badge.ok").wait_for()
    found = json.loads(form.locator(".result pre").inner_text())
    assert [value["type"] for value in found["values"]] == ["URL", "DESC"]
    assert visitor.asked[-1].endswith(f"/handles/{PREFIX}%2Fleads?type=URL&type=DESC&follow=true")
    form.get_by_label("handle").fill(f"{PREFIX}/absent")
    visitor.page.keyboard.press("Enter")
    form.locator(".badge.bad").wait_for()
    assert json.loads(form.locator(".result pre").inner_text())["title"] == "Not found"
    assert visitor.faults() == []


def test_change_needs_a_session(visitor: Visitor) -> None:
    visitor.go("/docs/minting")
    form = visitor.page.locator("section[aria-labelledby=mint] details.try")
    form.locator("summary").click()
    form.get_by_text("Sign in to send this request").wait_for()
    assert form.get_by_role("link", name="Sign in").is_visible()
    assert not form.get_by_role("button", name="Send request").is_visible()
    assert visitor.faults() == []


def test_session_of_the_console_is_used(visitor: Visitor, demo: Demonstration) -> None:
    visitor.go("/console")
    card = visitor.page.locator("section[aria-labelledby=with-secret]")
    card.get_by_label("Identity").fill(demo.administrator)
    card.get_by_label("Secret").fill(demo.secret)
    card.get_by_role("button", name="Sign in").click()
    visitor.page.get_by_role("navigation", name="Console").wait_for()
    visitor.go("/docs/minting")
    form = visitor.page.locator("section[aria-labelledby=mint] details.try")
    form.locator("summary").click()
    form.get_by_text(f"Signed in as {demo.administrator}").wait_for()
    form.get_by_label("Body").fill("{")
    form.get_by_role("button", name="Send request").click()
    assert form.locator(".result").is_hidden(), "what is not JSON is not sent"
    form.get_by_label("Body").fill('{"prefix": "102.100.272"}')
    form.get_by_role("button", name="Send request").click()
    form.locator(".badge.ok").wait_for()
    (handle,) = json.loads(form.locator(".result pre").inner_text())["handles"]
    assert visitor.go(f"/{handle}?noredirect").status == 200
    visitor.go("/docs/minting")
    form.locator("summary").click()
    form.get_by_text("Signed in as").wait_for()
    visitor.context.clear_cookies()  # as after signing out in another window
    form.get_by_role("button", name="Send request").click()
    form.locator(".badge.bad").wait_for()
    assert json.loads(form.locator(".result pre").inner_text())["title"] == "Authentication required"
    assert visitor.faults() == []


def test_pages_work_without_scripts_and_can_be_printed(browser: Browser, demo: Demonstration, tmp_path: Path) -> None:
    visitor = Visitor(browser, demo.url, java_script_enabled=False)
    visitor.go("/docs/records")
    assert not visitor.page.locator("details.try").first.is_visible(), "a form that cannot work is not shown"
    assert not visitor.page.get_by_role("button", name="Copy").first.is_visible()
    assert visitor.page.locator(".example").first.is_visible()
    visitor.page.emulate_media(media="print")
    visitor.page.pdf(path=tmp_path / "records.pdf")
    assert not visitor.page.get_by_role("navigation", name="API reference").is_visible()
    assert visitor.page.locator(".example").first.is_visible()
    visitor.close()

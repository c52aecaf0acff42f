"""Pages and redirects in a real browser: targets, texts, and complaints of the browser.

Only a browser notices policy violations, running scripts, external requests and text that is cut off on a narrow
phone.
"""

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from tests.e2e.demonstration import ATTACKS, LONG_NAME, ODD_NAME, PREFIX, Demonstration
from tests.e2e.page_watch import PHONE, Visitor

PAGES = {
    "/": 200,
    "/help.html": 200,
    "/docs": 200,
    "/docs/records": 200,
    "/docs/schemas": 200,
    "/docs/problems": 200,
    f"/{PREFIX}/leads?noredirect": 200,
    f"/{PREFIX}/attacks?noredirect": 200,
    f"/{PREFIX}/script": 200,
    f"/{quote(ODD_NAME)}?noredirect": 200,
    f"/{LONG_NAME}?noredirect": 200,
    f"/{PREFIX}/gone": 410,
    f"/{PREFIX}/absent": 404,
    f"/{PREFIX}/absent/": 404,
    f"/{PREFIX}/{quote(''.join(ATTACKS), safe='')}": 404,
    f"/{quote(ATTACKS[0], safe='')}/{quote(ATTACKS[1], safe='')}": 400,
    "/999/elsewhere": 400,
    f"/{PREFIX}/leads?type=NONE": 200,
    f"/{PREFIX}/%00": 400,
    "/static/absent": 404,
    "/102.100.272/D7J1G0DQH": 200,
    "/102.100.272/2RDV0T0QH": 200,
    "/2000.01/EEF4DF17361A42E2B975E554663B70C3": 200,
    "/0.NA/102.100.272": 200,
}
BAD_PAGE = """<html><head><title></title></head><body><h3 id=a>x</h3><p id=a style="color:#999;background:#aaa">pale</p>
<input name=n><img src="data:," ><a href="#nowhere"></a><div class=wide style="width:5000px">wide</div>
<table><tr><td onclick="x()">t</td></tr></table><script>console.error("complaint")</script></body></html>"""


@pytest.mark.parametrize("way", ["plain", "secure"])
def test_handle_leads_to_target(browser: Browser, demo: Demonstration, way: str) -> None:
    visitor = Visitor(browser, demo.url if way == "plain" else demo.secure_url)
    for path, place in (
        (f"/{PREFIX}/leads", "/thing?a=b"),
        (f"/hdl/{PREFIX}/leads", "/thing?a=b"),
        (f"/hdl:{PREFIX}/leads", "/thing?a=b"),
        (f"/{PREFIX}%2Fleads", "/thing?a=b"),
        (f"/{PREFIX}/alias", "/thing?a=b"),
        (f"/{PREFIX}/chosen", "/people"),
        (f"/{quote(ODD_NAME)}", "/odd"),
        (f"/{quote(ODD_NAME, safe='')}", "/odd"),
        (f"/{PREFIX}/leads?urlappend=%23part", "/thing?a=b#part"),
    ):
        answer = visitor.go(path)
        assert answer.status == 200
        assert visitor.page.url == demo.target.url + place, path
        assert visitor.page.inner_text("h1") == "Arrived"
        came, headers = demo.target.came[-1]
        assert came == place.partition("#")[0]
        assert "referer" not in headers, "whoever typed an address comes from nowhere"
    assert visitor.said == []
    visitor.close()


def test_referrer_is_the_linking_page(visitor: Visitor, demo: Demonstration) -> None:
    """The referrer is the page with the link, not the resolver."""
    visitor.page.goto(f"{demo.target.url}/links")
    visitor.page.evaluate(
        """address => { const link = document.createElement("a"); link.href = address; link.textContent = "go";
                        document.body.append(link) }""",
        f"{demo.url}/{PREFIX}/leads",
    )
    visitor.page.click("text=go")
    visitor.page.wait_for_url(f"{demo.target.url}/thing?a=b")
    assert demo.target.came[-1][1].get("referer", "").startswith(demo.target.url)


def test_front_page_form_leads_to_target(visitor: Visitor, demo: Demonstration) -> None:
    for typed, place in (
        (f"{PREFIX}/leads", "/thing?a=b"),
        (f"  hdl:{PREFIX}/leads ", "/thing?a=b"),
        (f"https://hdl.handle.net/{PREFIX}/leads", "/thing?a=b"),
        (f"{demo.url}/hdl/{PREFIX}/leads", "/thing?a=b"),
        (ODD_NAME, "/odd"),
    ):
        visitor.go("/")
        visitor.page.get_by_label("Handle", exact=True).fill(typed)
        visitor.page.get_by_role("button", name="Resolve").click()
        visitor.page.wait_for_url(demo.target.url + place)
        assert visitor.page.inner_text("h1") == "Arrived", typed
    assert visitor.said == []
    visitor.go("/")
    visitor.page.get_by_label("Handle", exact=True).fill(f"{PREFIX}/leads")
    visitor.page.get_by_label("Show the record").check()
    visitor.page.get_by_role("button", name="Resolve").click()
    visitor.page.wait_for_selector("table")
    assert f"{PREFIX}/leads" in visitor.page.inner_text("#name")
    assert visitor.said == []


def test_form_works_with_keyboard(visitor: Visitor) -> None:
    visitor.go("/")
    assert visitor.focused() == "INPUT hdl", "one can type at once"
    assert [*visitor.tabbed("INPUT noredirect", 3)] == ["BUTTON Resolve", "INPUT noredirect"]
    visitor.page.keyboard.press("Space")
    assert visitor.page.is_checked("[name=noredirect]")
    visitor.page.keyboard.press("Shift+Tab")
    visitor.page.keyboard.press("Shift+Tab")
    visitor.page.keyboard.type(f"{PREFIX}/leads")
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_selector("table")
    assert f"{PREFIX}/leads" in visitor.page.inner_text("#name")
    visitor.go(f"/{PREFIX}/absent")
    reached = [*visitor.tabbed("INPUT hdl")]
    assert reached[0] == "A Skip to content"
    assert reached[-1] == "INPUT hdl"
    visitor.go(f"/{PREFIX}/absent")
    visitor.page.keyboard.press("Tab")
    visitor.page.keyboard.press("Enter")
    assert visitor.page.url.endswith("#main")
    outline = visitor.page.evaluate("getComputedStyle(document.querySelector('#hdl')).outlineStyle")
    assert outline is not None
    assert visitor.said == []


def test_record_is_shown_as_text_only(visitor: Visitor, demo: Demonstration) -> None:
    assert visitor.go(f"/{PREFIX}/attacks?noredirect").status == 200
    cells = "\n".join(visitor.page.locator("td.data").all_inner_texts())
    for attack in ATTACKS[:-2]:
        assert attack in cells
    assert "⟨U+202E⟩evil" in cells, "what would turn the direction of writing is shown"
    assert visitor.page.title() != "owned"
    links = visitor.page.evaluate("[...document.links].map(each => each.href)")
    assert [link for link in links if not link.startswith((demo.url, "mailto:"))] == []
    assert visitor.faults() == []
    visitor.go(f"/{PREFIX}/leads?noredirect")
    assert visitor.page.locator("tbody tr").count() == 4
    visitor.page.get_by_role("link", name=f"{demo.target.url}/thing?a=b").click()
    visitor.page.wait_for_url(f"{demo.target.url}/thing?a=b")
    assert f"{PREFIX}/leads" not in demo.target.came[-1][1].get("referer", ""), "which name it was is not told"


def test_dangerous_url_is_shown_and_not_followed(visitor: Visitor) -> None:
    assert visitor.go(f"/{PREFIX}/script").status == 200
    assert visitor.page.title() != "owned"
    assert "javascript:document.title" in visitor.text()
    assert visitor.faults() == []


def test_tombstone_page_names_replacement(visitor: Visitor, demo: Demonstration) -> None:
    assert visitor.go(f"/{PREFIX}/gone").status == 410
    said = visitor.text()
    assert "It was <b>withdrawn</b>.\nNobody knows why." in said
    assert visitor.faults() == []
    visitor.page.get_by_role("link", name=f"{PREFIX}/leads").click()
    visitor.page.wait_for_url(f"{demo.target.url}/thing?a=b")


def test_not_found_page(visitor: Visitor, demo: Demonstration) -> None:
    assert visitor.go(f"/{PREFIX}/absent").status == 404
    assert "The handle you requested" in visitor.text()
    assert "cannot be found" in visitor.text()
    assert visitor.faults() == []
    visitor.page.get_by_label("Handle", exact=True).fill(f"{PREFIX}/leads")
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_url(f"{demo.target.url}/thing?a=b")
    assert visitor.go(f"/{PREFIX}/leads/").status == 404
    visitor.page.get_by_role("link", name=f"{PREFIX}/leads", exact=False).first.click()
    visitor.page.wait_for_url(f"{demo.target.url}/thing?a=b")


def test_faulty_page_is_detected(visitor: Visitor) -> None:
    visitor.page.set_content(BAD_PAGE)
    found = "\n".join(visitor.faults())
    for fault in (
        *("the console says error: complaint", "the id a is there twice", "html-has-lang", "document-title"),
        *("not one heading of the first level", "landmark-one-main", "in its old mode", "label: input"),
        *("image-alt", "is not shown", "link-name", "#nowhere is not there", "a table has no headings"),
        *("there is a script", "TD has onclick", "wider than the page: DIV.wide", "color-contrast: p"),
    ):
        assert fault in found, fault
    visitor.said.clear()
    visitor.go("/")
    assert visitor.faults() == []
    # What the policy of our pages forbids, and the browser reports.
    visitor.page.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "document.title = 'owned'";
                   document.head.append(script); document.body.setAttribute("style", "color: red");
                   fetch("http://127.0.0.1:9/").catch(() => null) }"""
    )
    visitor.page.wait_for_function("window.violations.length >= 3")
    found = "\n".join(visitor.faults())
    for directive in ("script-src-elem", "style-src-attr", "connect-src"):
        assert f"the policy is broken: {directive}" in found
    assert visitor.page.title() != "owned"


@pytest.mark.parametrize(("place", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_every_page_in_every_viewport(
    browser: Browser, demo: Demonstration, tmp_path: Path, scheme: str, place: str
) -> None:
    """No complaints, nothing cut off, everything readable. Faults leave a screenshot in the directory.

    Axe, which is slow, sees every page once, and a third twice.
    """
    phone = {"viewport": PHONE, "is_mobile": True, "has_touch": True}
    visitor = Visitor(browser, demo.url, color_scheme=scheme, **(phone if place == "phone" else {}))
    for number, (path, status) in enumerate(PAGES.items()):
        assert visitor.go(path).status == status, path
        if found := visitor.faults() if place == "desk" or number % 3 == 0 else visitor.plain_faults():
            visitor.page.screenshot(path=tmp_path / f"{number}.png", full_page=True)
        assert found == [], path
    visitor.close()


def test_pages_work_without_script_and_can_be_printed(browser: Browser, demo: Demonstration, tmp_path: Path) -> None:
    visitor = Visitor(browser, demo.url, java_script_enabled=False)
    visitor.go("/")
    visitor.page.fill("#hdl", f"{PREFIX}/leads")
    visitor.page.press("#hdl", "Enter")
    visitor.page.wait_for_url(f"{demo.target.url}/thing?a=b")
    visitor.go(f"/{PREFIX}/leads?noredirect")
    visitor.page.emulate_media(media="print")
    visitor.page.pdf(path=tmp_path / "record.pdf")
    assert not visitor.page.is_visible("footer")
    assert visitor.page.is_visible("table")
    visitor.close()

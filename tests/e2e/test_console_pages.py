"""Every page of the console in a real browser: axe, console messages, policy, other origins, and narrow screens."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.e2e.console_site import ConsoleSite, console_site, tour
from tests.e2e.page_watch import PHONE, Visitor


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleSite]:
    with console_site(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.mark.parametrize(("place", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_every_page_is_faultless(browser: Browser, site: ConsoleSite, tmp_path: Path, place: str, scheme: str) -> None:
    """Faults leave a screenshot in the directory. Axe, which is slow, sees every page once, and a third twice."""
    phone = {"viewport": PHONE, "is_mobile": True, "has_touch": True}
    options = {"color_scheme": scheme, **(phone if place == "phone" else {})}
    found: dict[str, list[str]] = {}

    def look(name: str, visitor: Visitor, *, whole: bool = True) -> None:
        visitor.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        if faults := visitor.faults() if whole else visitor.plain_faults():
            found[name] = faults
            visitor.page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        visitor.said.clear()
        visitor.asked.clear()

    anonymous = Visitor(browser, site.url, **options)
    anonymous.go("/console/sign-in")
    look("sign-in", anonymous)
    anonymous.close()
    visitor = site.visit(browser, **options)
    for number, name in enumerate(tour(site, visitor, place)):
        look(name, visitor, whole=place == "desk" or number % 3 == 0)
    visitor.close()
    assert found == {}

"""A browser user who checks pages: console messages, policy violations, external requests, and accessibility."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Final
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response

PATIENCE: Final = 30_000
"""Milliseconds after which something that should happen has not."""

PHONE: Final = {"width": 320, "height": 640}
"""The narrowest phone that anybody has; pages that fit there fit everywhere."""
DESK: Final = {"width": 1280, "height": 800}

_NOTE_VIOLATIONS: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
    event => window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""

_FAULTS: Final = """async () => {
    const faults = [];
    const ids = [...document.querySelectorAll("[id]")].map(each => each.id);
    for (const id of ids) if (ids.filter(other => other === id).length > 1) faults.push(`the id ${id} is there twice`);
    if (document.querySelectorAll("h1").length !== 1) faults.push("there is not one heading of the first level");
    if (document.compatMode !== "CSS1Compat") faults.push("the browser is in its old mode: no doctype?");
    for (const image of document.images) {
        if (!image.checkVisibility()) continue;
        // A test that waits for an element of the page may look before its images are loaded.
        if (!image.complete) await new Promise(go => ["load", "error"].map(each => image.addEventListener(each, go)));
        if (!image.naturalWidth) faults.push(`${image.src} is not shown`);
    }
    for (const link of document.querySelectorAll("a[href]")) {
        const place = link.getAttribute("href");
        if (place.startsWith("#") && !document.getElementById(place.slice(1))) faults.push(`${place} is not there`);
    }
    for (const [name, attribute] of [["for", "label[for]"], ["aria-describedby", "[aria-describedby]"],
                                     ["aria-labelledby", "[aria-labelledby]"]])
        for (const each of document.querySelectorAll(attribute))
            for (const id of each.getAttribute(name).split(/\\s+/))
                if (!document.getElementById(id)) faults.push(`${name} says ${id}, which is not there`);
    for (const table of document.querySelectorAll("table"))
        if (!table.querySelector("th[scope]")) faults.push("a table has no headings");
    // What a page says about itself to programs is in an element of that name, and is no script. Others are files.
    const scripts = [...document.scripts].filter(each => each.type !== "application/ld+json");
    if (scripts.some(each => each.type !== "module" || each.text || new URL(each.src).origin !== location.origin))
        faults.push("there is a script in the page, or of somebody else");
    if (document.querySelector("iframe, object, embed, style, [style], base"))
        faults.push("there is a frame, or a style of its own");
    for (const each of document.querySelectorAll("*"))
        for (const attribute of each.attributes)
            if (attribute.name.startsWith("on")) faults.push(`${each.tagName} has ${attribute.name}`);
    return faults;
}"""

_OVERFLOW: Final = """() => {
    const wide = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= wide) return [];
    return [...document.querySelectorAll("body *")]
        .filter(each => each.getBoundingClientRect().right > wide + 1)
        .map(each => `${each.tagName}.${each.className}: ${Math.round(each.getBoundingClientRect().right)} of ${wide}`);
}"""

MAX_BYTES: Final = 100_000
"""Of a page with its stylesheets, scripts and images, before they are compressed."""

_SIZE: Final = """() => {
    const parts = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .filter(each => each.initiatorType !== "fetch");
    return parts.reduce((sum, each) => sum + each.decodedBodySize, 0);
}"""

_AXE: Final = """async () => {
    const found = await axe.run(document, {resultTypes: ["violations"]});
    return found.violations.flatMap(({id, nodes}) => nodes.map(({target, failureSummary}) =>
        `${id}: ${target.join(" ")}: ${failureSummary.replace(/\\s+/g, " ")}`));
}"""


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


_UNUSED: Final = WeakKeyDictionary[Browser, dict[str, list[BrowserContext]]]()
"""Contexts of earlier visitors by options, without cookies, pages and cache: a new one takes longer than most pages."""


class Visitor:
    """A user who looks at pages of one server."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        options = {"viewport": DESK} | options
        self._unused = _UNUSED.setdefault(browser, {}).setdefault(repr(sorted(options.items())), [])
        self.context = self._unused.pop() if self._unused else _new_context(browser, options)
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        """What the console says, besides that a page has a status of its own."""
        self.asked: list[str] = []
        """Every address that the browser has asked for."""
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def close(self) -> None:
        pages = self.context.pages or [self.context.new_page()]
        self.context.new_cdp_session(pages[0]).send("Network.clearBrowserCache")
        for page in pages:
            page.close()
        self.context.clear_cookies()
        self._unused.append(self.context)

    def go(self, path: str) -> Response:
        """Go to a path of the server, and follow redirects."""
        answer = self.page.goto(self.url + path)
        assert answer is not None, f"{path} led nowhere"
        return answer

    def faults(self) -> list[str]:
        """What is wrong with the page: console messages, external requests, accessibility."""
        return [*self.plain_faults(), *self.barriers()]

    def plain_faults(self) -> list[str]:
        """What is wrong with the page, without what axe finds."""
        strangers = [url for url in self.asked if not url.startswith((self.url, "data:"))]
        return [
            *[f"the policy is broken: {each}" for each in self.page.evaluate("window.violations")],
            *[f"the console says {each}" for each in self.said],
            *[f"somebody else is asked for {each}" for each in strangers],
            *self.page.evaluate(_FAULTS),
            *[f"{size:,} bytes" for size in [self.page.evaluate(_SIZE)] if size > MAX_BYTES],
            *[f"wider than the page: {each}" for each in self.page.evaluate(_OVERFLOW)],
        ]

    def barriers(self) -> list[str]:
        """What axe finds: names and roles, headings, landmarks, contrast. It comes from the test, not from the page."""
        self.page.evaluate(_axe())
        found: list[str] = self.page.evaluate(_AXE)
        return found

    def text(self) -> str:
        """The visible text of the page."""
        return self.page.inner_text("body")

    def focused(self) -> str:
        """The focused element, by id or text."""
        found: str = self.page.evaluate(
            "(() => { const each = document.activeElement;"
            " return `${each.tagName} ${each.id || each.name || each.textContent.trim()}` })()"
        )
        return found

    def tabbed(self, until: str, most: int = 20) -> Iterable[str]:
        """Go through the page with the Tab key; return the focused elements in order."""
        reached: list[str] = []
        while len(reached) < most and (not reached or reached[-1] != until):
            self.page.keyboard.press("Tab")
            reached.append(self.focused())
        return reached

    def _heard(self, message: ConsoleMessage) -> None:
        # A browser says of every page with an error status that it could not be loaded, and shows it all the same.
        if message.type in ("error", "warning") and "the server responded with a status of" not in message.text:
            self.said.append(f"{message.type}: {message.text}")


def _new_context(browser: Browser, options: dict[str, Any]) -> BrowserContext:
    context = browser.new_context(ignore_https_errors=True, **options)
    context.set_default_timeout(PATIENCE)
    context.add_init_script(_NOTE_VIOLATIONS)
    return context

"""A real browser for tests: Debian's headless Chromium, driven by Playwright.

Without Chromium these tests fail and say what to install.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, sync_playwright

CHROMIUM: Final = ("chromium", "chromium-browser")
PATIENCE: Final = 30_000
"""Milliseconds that a page may take: more than on a loaded machine, less than for ever."""

_OPTIONS: Final = (
    "--no-sandbox",  # which the superuser of a container cannot have
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
_WATCH: Final = """
window.violations = [];
document.addEventListener('securitypolicyviolation', event => window.violations.push(event.violatedDirective));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, while the block runs."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        pytest.fail("Chromium is not installed; on Debian: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A browser window and its complaints."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def open(self, url: str) -> Response:
        """Go to a URL."""
        answer = self.page.goto(url)
        assert answer is not None
        return answer

    def violations(self) -> list[str]:
        """What the policy of the page has blocked; scripts must be enabled."""
        return list(self.page.evaluate("window.violations"))


@contextmanager
def visit(browser: Browser, **settings: Any) -> Iterator[Visit]:
    """A new window with its own state."""
    context: BrowserContext = browser.new_context(**settings)
    context.set_default_timeout(PATIENCE)
    if settings.get("java_script_enabled", True):
        context.add_init_script(_WATCH)
    try:
        found = Visit(context.new_page())

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                found.complaints.append(message.text)

        found.page.on("console", note)
        yield found
    finally:
        context.close()

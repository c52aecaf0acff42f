"""A running server with a console, its user in a browser, and a tour through all pages.

The tour is the one list of the pages of the console: tests look at each of them, and `tools/screenshots.py` takes
pictures of some.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from playwright.sync_api import Browser, Page

from perseid.ledger.statistics import DAY, StatisticsStore
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Create
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.e2e.page_watch import Visitor
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET, copy_to
from tests.server.running import Serving, serving

PREFIX: Final = "12345"
PILIN: Final = "102.100.272"
LONG_LINE: Final = "201:0.NA/{prefix}:modify_value,remove_value,add_value,read_value"
"""Of a policy: longer than the screen of a phone, without a space."""
RECORD: Final = f"{PREFIX}/report-2021"
"""A record with a title, a target, a contact, and values of long names."""
ACTIONS: Final = ("publish", "unpublish", "tombstone", "restore", "transfer", "delete")
FILE: Final = "handle,URL\n{prefix}/row-{n}-1,https://one.example/\n{prefix}/row-{n}-2,https://two.example/\n"
BAD_ROW: Final = "nonsense,https://three.example/\n"

_ADMIN: Final = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())


@dataclass(frozen=True)
class ConsoleSite:
    """A server."""

    server: Serving
    directory: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http[1]}"

    def add(self, handle: str, *values: Value) -> None:
        """Create or replace a record, as an operator on the same machine does."""
        with Installation.open(self.directory, environ={}) as installation:
            registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
            registry.do(Create(Handle.parse(handle), (*values, _ADMIN), overwrite=True), OPERATOR, "cli")

    def visit(self, browser: Browser, **options: object) -> Visitor:
        """A visitor who has signed in with a secret."""
        visitor = Visitor(browser, self.url, **options)
        visitor.go("/console/sign-in")
        sign_in(visitor.page)
        return visitor


@contextmanager
def console_site(folder: Path, **environment: str) -> Iterator[ConsoleSite]:
    """Serve an installation with a few records; settings as they stand in the environment."""
    directory = copy_to(folder)
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        policy = replace(
            PROFILES["pilin"],
            default_creator=f"{PREFIX}/n0",
            default_administrators=(*PROFILES["pilin"].default_administrators, LONG_LINE),
            purpose="Reports of the library",
        )
        registry.do(AddNamespace(PILIN, policy, (_ADMIN,)), OPERATOR, "cli")
        public = replace(PROFILES["free"], who_may_list=Audience.PUBLIC, purpose="Maps of the library")
        registry.do(SetPolicy(PREFIX, public), OPERATOR, "cli")
        _add_statistics(directory, registry)
    with serving(directory, **environment) as server:
        site = ConsoleSite(server, directory)
        site.add(
            RECORD,
            Value.text(1, "URL", "https://repository.example.org/reports/2021"),
            Value.text(2, "TITLE", "Annual report of the library, 2021"),
            Value.text(3, "EMAIL", "reports@library.example.org"),
            Value.text(4, "10320/loc", '<locations><location href="https://repository.example.org/"/></locations>'),
        )
        yield site


def _add_statistics(directory: Path, registry: Registry) -> None:
    """Count requests and new identifiers of the last weeks, as if they had been made then."""
    store, today = StatisticsStore(directory), registry.now()
    with registry.snapshot() as snapshot:
        while store.count_changes(snapshot.reader, today):
            pass
    for prefix in (PREFIX, PILIN):
        for days in range(1, 31):
            busy = 5 if (today // DAY - days + 4) % 7 in (0, 6) else 20  # fewer at weekends
            kinds = {"native": busy, "redirects": 9 * busy + days, "pages": 2 * busy, "bot_pages": busy + days}
            other = {"not_found": busy // 3, "under_1ms": 10 * busy, "under_10ms": busy, "created": busy // 20}
            counts = {(prefix, kind): count for kind, count in (kinds | other | {"published": busy // 20}).items()}
            store.add(today - days * DAY, counts, {(prefix, f"{prefix}/reprot-2021"): 2} if days < 4 else {})
        store.add(today, {(prefix, "withdrawn"): 45})  # most of those that were created now


def sign_in(page: Page, identity: str = ADMINISTRATOR, secret: str = SECRET) -> None:
    """Fill in and send the form of a secret."""
    card = page.locator("section[aria-labelledby=with-secret]")
    card.get_by_label("Identity").fill(identity)
    card.get_by_label("Secret").fill(secret)
    card.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation", name="Console").wait_for()


def record_path(handle: str, *segments: str) -> str:
    """The path of a record in the console."""
    return "/".join([f"/console/records/{quote(handle, safe='')}", *segments])


def wait_for_job(page: Page) -> None:
    """Wait until the job of the page has ended; its script loads the page again."""
    page.locator(".content .badge.ok").first.wait_for()


def tour(site: ConsoleSite, visitor: Visitor, name: str) -> Iterator[str]:
    """Visit every page of the console, and yield a name for each while it is shown.

    `name` is a part of the handles that are created, so that a server can be toured more than once.
    """
    own = f"{PREFIX}/tour-{name}"
    site.add(own, Value.text(1, "URL", f"https://{name}.example/1"), Value.text(2, "TITLE", "A title"))
    for shown, path in {
        "overview": "/console",
        "identifiers": "/console/records",
        "identifiers-of-namespace": f"/console/records?prefix={PREFIX}",
        "identifiers-found": "/console/records?by=host&q=repository.example.org",
        "record": record_path(RECORD),
        "record-missing": record_path(f"{PREFIX}/absent"),
        "edit": record_path(RECORD, "edit"),
        "history": record_path(own, "history"),
        **{f"action-{action}": record_path(own, action) for action in ACTIONS},
        "new": "/console/new",
        "imports": "/console/imports",
        "rewrite": "/console/rewrite",
        "namespaces": "/console/namespaces",
        "namespace": f"/console/namespaces/{PILIN}",
        "types": "/console/types",
        "access": f"/console/access?on={PREFIX}",
        "tokens": "/console/tokens",
        "log": "/console/log",
        "transfer": "/console/transfer",
        "statistics": f"/console/statistics?namespace={PREFIX}",
        "unknown-page": "/console/nothing",
    }.items():
        visitor.go(path)
        yield shown
    yield from _tour_record_forms(site, visitor, name, own)
    yield from _tour_jobs(visitor, name)
    yield from _tour_access_forms(visitor, name)


def _press(visitor: Visitor, text: str) -> None:
    visitor.page.locator(".content").get_by_role("button", name=text, exact=True).first.click()


def _tour_record_forms(site: ConsoleSite, visitor: Visitor, name: str, own: str) -> Iterator[str]:
    page = visitor.page
    visitor.go(record_path(own, "edit"))
    page.get_by_label("Data").first.fill(f"https://{name}.example/2")
    _press(visitor, "Show the difference")
    page.get_by_role("button", name="Save").wait_for()
    yield "preview"
    site.add(own, Value.text(1, "URL", f"https://{name}.example/1"), Value.text(2, "TITLE", "Their title"))
    _press(visitor, "Save")
    page.get_by_role("heading", name="Their change").wait_for()
    yield "conflict"
    visitor.go(f"/console/new?prefix={PILIN}")
    page.get_by_label("Data").first.fill("nonsense")
    _press(visitor, "Check")
    page.locator("[data-result] .notice").wait_for()
    yield "new-refused"
    page.get_by_label("Data").first.fill(f"https://{name}.example/3")
    page.get_by_label("How many").fill("3")
    _press(visitor, "Create")
    page.get_by_label("One per line, to copy").wait_for()
    yield "minted"


def _tour_jobs(visitor: Visitor, name: str) -> Iterator[str]:
    page = visitor.page
    for shown, bad in (("import-with-problems", BAD_ROW), ("import", "")):
        visitor.go("/console/imports")
        content = FILE.format(prefix=PREFIX, n=name) + bad
        page.set_input_files("#file", {"name": "rows.csv", "mimeType": "text/csv", "buffer": content.encode()})
        _press(visitor, "Upload and check")
        page.wait_for_url("**/imports/*")
        while page.get_by_text("is being checked").count():
            page.reload()
        page.get_by_role("heading", name="Rows", exact=True).wait_for()
        yield shown
    _press(visitor, "Import")
    wait_for_job(page)
    page.goto(page.url.partition("?")[0])
    yield "job"
    page.get_by_role("link", name="Undo").click()
    yield "undo"
    visitor.go(f"/console/rewrite?host={name}.example&to=https%3A%2F%2Fnew-{name}.example%2F*")
    page.get_by_role("heading", name="Planned changes").wait_for()
    yield "rewrite-plan"
    visitor.go("/console/jobs")
    yield "jobs"


def _tour_access_forms(visitor: Visitor, name: str) -> Iterator[str]:
    page = visitor.page
    visitor.go(f"/console/namespaces/{PILIN}")
    page.locator("details.rules", has=page.locator("select[name='rule.nfc']")).locator("summary").click()
    flag = page.locator("select[name='rule.nfc']")
    flag.select_option(index=1 if flag.evaluate("each => each.selectedIndex") == 0 else 0)
    _press(visitor, "Show what would change")
    page.get_by_role("heading", name="Change the policy").wait_for()
    yield "policy-preview"
    visitor.go(f"/console/access?on={PREFIX}")
    page.get_by_text("New user").click()
    page.get_by_label("Name").fill(f"ann-{name}")
    _press(visitor, "Add the user")
    page.get_by_text("The secret is shown only now").wait_for()
    yield "user-key"
    visitor.go("/console/tokens")
    page.locator("input[name=scope][value=read]").check()
    _press(visitor, "Create the token")
    page.get_by_text("The new token, shown only now").wait_for()
    yield "token"

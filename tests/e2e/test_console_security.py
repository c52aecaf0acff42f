"""Attacks on users of the console and on readers of public pages, in a real browser."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page

from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from tests.e2e.console_site import PREFIX, RECORD, ConsoleSite, console_site, record_path, sign_in
from tests.e2e.page_watch import Visitor
from tests.server.installations import ADMINISTRATOR

ATTACK: Final = """"'><script>document.title='owned'</script><img src=x onerror="document.title='owned'"><!--"""
TYPES: Final = (
    *("URL", "EMAIL", "DESC", "TITLE", "URN", "INET_HOST", "10320/loc", "HS_ALIAS", "HS_SERV"),
    *("HS_SITE", "HS_PUBKEY", "HS_VLIST", "HS_SIGNATURE", "HS_CERT", "0.TYPE/URL", "DATACITE", "dc:title"),
)
"""Types that pages show in their own way, and others."""
EVIL_NAME: Final = f"{PREFIX}/{ATTACK}"
EVIL_TYPE: Final = f"{PREFIX}/type{ATTACK}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleSite]:
    with console_site(tmp_path_factory.mktemp("console")) as made:
        texts = [Value.text(index, type_, ATTACK) for index, type_ in enumerate((*TYPES, EVIL_TYPE), 1)]
        made.add(EVIL_NAME, *texts)
        scripts = [
            Value.text(index, type_, "javascript:document.title='owned'") for index, type_ in enumerate(TYPES, 1)
        ]
        made.add(f"{PREFIX}/scripts", *scripts)
        made.add(f"{PREFIX}/admins", Value(1, "HS_ADMIN", Admin(ValueRef(1, EVIL_NAME)).to_bytes()))
        yield made


@pytest.fixture(scope="module")
def _member(browser: Browser, site: ConsoleSite) -> Iterator[Visitor]:
    made = site.visit(browser)
    yield made
    made.close()


@pytest.fixture
def member(_member: Visitor, site: ConsoleSite) -> Visitor:
    """The user of most tests, signed in: no attack changes that, and another window takes longer than a test."""
    if not is_signed_in(_member.page, site):
        _member.go("/console/sign-in")
        sign_in(_member.page)
    _member.said.clear()
    return _member


def harmed(visitor: Visitor) -> list[str]:
    """What an attack has done to the page: elements of its own, a script that ran, or one that the policy stopped."""
    page = visitor.page
    page.wait_for_load_state("load")
    found = [f"the policy was needed: {each}" for each in page.evaluate("window.violations")]
    found += [f"the console says {each}" for each in visitor.said]
    if page.title() == "owned":
        found.append("a script ran")
    injected = "img[src='x'], [onerror], script:not([src]):not([type='application/ld+json']), a[href^='javascript:' i]"
    found += page.eval_on_selector_all(injected, "all => all.map(each => each.outerHTML)")
    return found


def test_attack_is_noticed(browser: Browser, site: ConsoleSite) -> None:
    visitor = Visitor(browser, site.url)
    visitor.page.set_content(f"<p title='{ATTACK}</p>")
    assert harmed(visitor)
    visitor.close()


@pytest.mark.parametrize(
    "handle", [EVIL_NAME, f"{PREFIX}/scripts", f"{PREFIX}/admins"], ids=["texts", "scripts", "admins"]
)
def test_values_and_names_run_no_script_in_the_console(member: Visitor, handle: str) -> None:
    page = member.page
    for segments in ((), ("edit",), ("history",), ("tombstone",), ("transfer",), ("delete",)):
        assert member.go(record_path(handle, *segments)).status == 200, segments
        assert harmed(member) == [], segments
    member.go(record_path(handle, "edit"))
    page.get_by_label("Note").fill(ATTACK)
    page.get_by_label("Type").last.fill("DESC")
    page.get_by_label("Data").last.fill(ATTACK)
    page.locator("[data-result] > *").first.wait_for()
    assert harmed(member) == [], "the check while typing"
    page.get_by_role("button", name="Show the difference").click()
    page.get_by_role("button", name="Edit again").wait_for()
    assert harmed(member) == []


ADDRESSES: Final = (
    "/console/records?q={attack}",
    f"/console/records?prefix={PREFIX}",
    "/console/records?by=value&q={attack}",
    "/console/records?prefix={attack}&state={attack}",
    "/console/records/{attack}",
    f"/console/records/{PREFIX}%2F{{attack}}-absent",
    "/console/records?cursor={attack}&prefix=12345",
    "/console/new?prefix={attack}&suffix={attack}&count={attack}&note={attack}",
    "/console/rewrite?host={attack}&to={attack}",
    "/console/rewrite?url={attack}&to={attack}&prefix={attack}",
    "/console/jobs/{attack}",
    "/console/imports/{attack}",
    "/console/namespaces/{attack}",
    "/console/types?prefix={attack}",
    "/console/access?on={attack}",
    "/console/log?since={attack}&prefix={attack}&actor={attack}&action={attack}",
    "/console/{attack}",
    "/console?done={attack}",
    "/console/sign-in?next={attack}&done={attack}&identity={attack}",
)


def test_addresses_run_no_script_in_the_console(member: Visitor) -> None:
    for path in ADDRESSES:
        member.go(path.format(attack=quote(ATTACK, safe="")))
        assert harmed(member) == [], path


def test_names_of_other_things_run_no_script(member: Visitor) -> None:
    """A label, a note, a file, a column, a user, a type, and the input of refused forms."""
    page = member.page

    def send(button: str, **fields: str) -> None:
        for name, text in fields.items():
            page.locator(f".content [name='{name}']:not([type=hidden])").first.fill(text)
        with page.expect_navigation():
            page.locator(".content").get_by_role("button", name=button, exact=True).first.click()
        assert harmed(member) == [], button

    member.go("/console/tokens")
    page.locator("input[name=scope][value=read]").check()
    send("Create the token", label=ATTACK)
    member.go("/console/types")
    page.get_by_text("New type").click()
    send("Register the type", handle=f"{PREFIX}/evil-type", name=ATTACK, description=ATTACK, example=ATTACK)
    member.go("/console/types")
    assert harmed(member) == []
    member.go(f"/console/access?on={PREFIX}")
    page.get_by_text("New user").click()
    send("Add the user", name=ATTACK)
    member.go(f"/console/access?on={PREFIX}")
    send("Give access", identity=f"300:{EVIL_NAME}")
    member.go("/console/namespaces")
    page.get_by_text("New namespace").click()
    send("Create the namespace", prefix=ATTACK, purpose=ATTACK, creator=ATTACK)
    member.go("/console/imports")
    content = f"handle,{quote(ATTACK)},URL\n{EVIL_NAME.replace(',', '')},x,{ATTACK}\n".encode()
    page.set_input_files("#file", {"name": ATTACK.replace("/", ""), "mimeType": "text/csv", "buffer": content})
    send("Upload and check")
    member.go(record_path(RECORD, "tombstone"))
    send("Create the tombstone", reason=ATTACK, note=ATTACK)
    for path in (record_path(RECORD), record_path(RECORD, "history"), "/console/log", "/console"):
        member.go(path)
        assert harmed(member) == [], path
    member.go(f"/{RECORD}")
    assert harmed(member) == []
    member.go(record_path(RECORD, "restore"))
    send("Restore")


def test_values_and_names_run_no_script_on_public_pages(browser: Browser, site: ConsoleSite) -> None:
    visitor = Visitor(browser, site.url)
    attack = quote(ATTACK, safe="")
    for path in (
        *(f"/{quote(EVIL_NAME, safe='')}?noredirect", f"/{PREFIX}/scripts?noredirect", f"/{PREFIX}/admins?noredirect"),
        *(f"/{PREFIX}/scripts", f"/{PREFIX}/{attack}-absent", f"/{attack}", f"/?hdl={attack}", f"/docs/{attack}"),
        *(f"/{PREFIX}/n1?noredirect&at={attack}", f"/{PREFIX}/n1?type={attack}", f"/?{attack}={attack}"),
    ):
        visitor.go(path)
        assert harmed(visitor) == [], path
    visitor.close()


# Other sites


@contextmanager
def other_site(body: str, host: str) -> Iterator[str]:
    """A page at another origin. At `127.0.0.1` it is the same site, whose requests have the cookies."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = f"<!DOCTYPE html><title>Other</title><link rel=icon href='data:,'>{body}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def is_signed_in(page: Page, site: ConsoleSite) -> bool:
    page.goto(f"{site.url}/console")
    return page.get_by_role("navigation", name="Console").count() == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same-site", "cross-site"])
@pytest.mark.parametrize("action", ["delete", "sign-out", "sign-in"])
def test_form_of_another_origin_changes_nothing(site: ConsoleSite, member: Visitor, host: str, action: str) -> None:
    """Even with a token that the user got: the origin is enough to refuse it."""
    page = member.page
    member.go(record_path(RECORD, "delete"))
    token = page.locator("[name=csrf]").first.input_value()
    path = record_path(RECORD, "delete") if action == "delete" else f"/console/{action}"
    fields = f"<input name=csrf value='{token}'><input name=everywhere value=yes><input name=method value=secret>"
    form = f"<form method=post action='{site.url}{path}'>{fields}<button>Win a prize</button></form>"
    with other_site(form, host) as url:
        page.goto(url)
        with page.expect_navigation() as gone:
            page.get_by_role("button", name="Win a prize").click()
        assert gone.value is not None
        # The cookie is not sent across sites, so such a form ends at the sign-in page, which leads to the overview.
        assert gone.value.status == 403 or page.url.partition("?")[0] in (
            f"{site.url}/console",
            f"{site.url}/console/sign-in",
        )
    assert is_signed_in(page, site)
    assert member.go(record_path(RECORD)).status == 200
    assert "Annual report" in member.text()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same-site", "cross-site"])
def test_script_of_another_origin_reads_nothing(site: ConsoleSite, member: Visitor, host: str) -> None:
    page = member.page
    member.go("/console/tokens")
    token = page.locator("[name=csrf]").first.input_value()
    with other_site("<h1>Other</h1>", host) as url:
        page.goto(url)
        for path, headers in (("/console/tokens", {}), ("/api/v1/tokens", {"X-CSRF-Token": token})):
            got = page.evaluate(
                """([url, headers]) => fetch(url, {credentials: "include", headers})
                    .then(answer => answer.text()).then(text => text.includes(headers ? "token" : "x") ? text : "other")
                    .catch(() => "refused")""",
                [site.url + path, headers],
            )
            assert got == "refused" or "authentication-required" in got, path


def test_pages_cannot_be_framed(site: ConsoleSite, member: Visitor) -> None:
    for path in ("/console", "/console/sign-in", "/console/tokens", "/", f"/{RECORD}?noredirect"):
        member.said.clear()
        with other_site(f"<h1>Other</h1><iframe src='{site.url}{path}'></iframe>", "127.0.0.1") as url:
            member.page.goto(url)
            member.page.wait_for_load_state("load")
            (frame,) = member.page.frames[1:]
            assert frame.locator("main").count() == 0, path
            assert any("frame-ancestors" in text for text in member.said), path


# The session


def test_cookie_that_was_set_before_is_worth_nothing(browser: Browser, site: ConsoleSite) -> None:
    thief = site.visit(browser)
    (cookie,) = thief.context.cookies()
    value = cookie["value"]
    thief.page.get_by_role("button", name="Sign out", exact=True).click()
    thief.page.get_by_text("You have signed out.").wait_for()
    victim = Visitor(browser, site.url)
    victim.context.add_cookies([{"name": cookie["name"], "value": value, "url": site.url}])
    victim.go("/console/sign-in")
    sign_in(victim.page)
    (own,) = victim.context.cookies()
    assert own["value"] != value
    thief.context.add_cookies([{"name": cookie["name"], "value": value, "url": site.url}])
    assert not is_signed_in(thief.page, site)
    victim.close()
    thief.close()


def test_script_cannot_read_the_cookie(browser: Browser, site: ConsoleSite) -> None:
    visitor = site.visit(browser)
    (cookie,) = visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    assert visitor.page.evaluate("document.cookie") == ""
    assert ADMINISTRATOR in visitor.text()
    visitor.close()
    secure = Visitor(browser, site.url.replace("http:", "https:"))
    secure.go("/console/sign-in")
    sign_in(secure.page)
    (cookie,) = secure.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Lax", True)
    assert cookie["name"].startswith("__Host-")
    secure.close()


def test_back_button_after_sign_out_shows_nothing(browser: Browser, site: ConsoleSite) -> None:
    visitor = site.visit(browser)
    visitor.go("/console/tokens")
    visitor.page.get_by_role("button", name="Sign out", exact=True).click()
    visitor.page.get_by_text("You have signed out.").wait_for()
    visitor.page.go_back()
    visitor.page.get_by_role("heading", name="Sign in").wait_for()
    assert ADMINISTRATOR not in visitor.text()
    visitor.close()

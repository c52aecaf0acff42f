"""What the console does with scripts: sign-in with a key file, checks while typing, and progress of a job."""

import csv
import json
import re
import shlex
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote_plus

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from playwright.sync_api import Browser, Page, Request
from typer.testing import CliRunner

from perseid.cli import app
from perseid.records.private_keys import PrivateKey, write_key_file
from perseid.records.record import Value
from tests.e2e.console_site import PILIN, PREFIX, RECORD, ConsoleSite, console_site, record_path
from tests.e2e.page_watch import Visitor

SIGNER: Final = f"300:{PREFIX}/signer"
PASSPHRASE: Final = "a passphrase of the tests"
ROWS: Final = 8_000
"""Of an import that takes longer than its page needs to be shown."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleSite]:
    with console_site(tmp_path_factory.mktemp("console")) as made:
        public = PrivateKey.from_library(KEY).public.to_bytes()
        made.add(f"{PREFIX}/signer", Value(300, "HS_PUBKEY", public))
        yield made


# Sign-in with a key file

KEY: Final = rsa.generate_private_key(65_537, 2_048)


def _pem(form: PrivateFormat, protection: KeySerializationEncryption | None = None) -> bytes:
    return KEY.private_bytes(Encoding.PEM, form, protection or NoEncryption())


def _jwk() -> bytes:
    numbers = KEY.private_numbers()
    public = numbers.public_numbers
    fields = {
        "n": public.n,
        "e": public.e,
        "d": numbers.d,
        "p": numbers.p,
        "q": numbers.q,
        "dp": numbers.dmp1,
        "dq": numbers.dmq1,
        "qi": numbers.iqmp,
    }
    texts = {name: urlsafe_b64encode(_bytes(number)).rstrip(b"=").decode() for name, number in fields.items()}
    return json.dumps({"kty": "RSA", **texts}).encode()


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _handle_file(passphrase: bytes | None = None) -> bytes:
    return write_key_file(PrivateKey.from_library(KEY), passphrase, lambda size: bytes(range(size)))


KEY_FILES: Final = {
    "pkcs8.pem": (_pem(PrivateFormat.PKCS8), ""),
    "pkcs1.pem": (_pem(PrivateFormat.TraditionalOpenSSL), ""),
    "key.jwk": (_jwk(), ""),
    "privkey.bin": (_handle_file(), ""),
    "protected.bin": (_handle_file(PASSPHRASE.encode()), PASSPHRASE),
}
DSA_FILE: Final = dsa.generate_private_key(1_024).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
ENCRYPTED_FILE: Final = _pem(PrivateFormat.PKCS8, BestAvailableEncryption(PASSPHRASE.encode()))


@dataclass
class Sent:
    """Everything that a browser has sent."""

    bodies: list[bytes]
    posted: list[str] = field(default_factory=list)
    """The addresses to which something was sent, not those of files that the page loads."""

    def contains_key(self) -> bool:
        """Whether a secret number of the key is in a request, in any of its usual forms."""
        numbers = KEY.private_numbers()
        sent = b"\n".join(self.bodies)
        texts = [sent, unquote_plus(sent.decode("latin-1")).encode("latin-1", "replace")]
        for number in (numbers.d, numbers.p, numbers.q, numbers.dmp1, numbers.dmq1):
            data = _bytes(number)
            for offset in range(3):  # base64 of a part depends on where it begins
                part = b64encode(data[offset : offset + 48])[:60]
                forms = [data, part, part.replace(b"+", b"-").replace(b"/", b"_"), data.hex().encode(), b"%d" % number]
                if any(form in text for form in forms for text in texts):
                    return True
        return any(PASSPHRASE.encode() in text for text in texts)


def choose(page: Page, name: str, content: bytes, passphrase: str = "", identity: str = SIGNER) -> Sent:
    """Fill in and send the form of a key file."""
    sent = Sent([])

    def record(request: Request) -> None:
        sent.bodies += [request.url.encode(), *[f"{key}: {text}".encode() for key, text in request.headers.items()]]
        sent.bodies.append(request.post_data_buffer or b"")
        if request.method != "GET":
            sent.posted.append(request.url)

    page.on("request", record)
    card = page.get_by_role("region", name="With a key file")
    card.get_by_label("Identity").fill(identity)
    card.get_by_label("Key file").set_input_files({"name": name, "mimeType": "", "buffer": content})
    card.get_by_label("Passphrase").fill(passphrase)
    card.get_by_role("button", name="Sign in").click()
    return sent


def test_key_in_a_request_is_noticed() -> None:
    numbers = KEY.private_numbers()
    assert Sent([b"x" + KEY_FILES["pkcs8.pem"][0].replace(b"\n", b"")]).contains_key()
    assert Sent([KEY_FILES["key.jwk"][0]]).contains_key()
    assert Sent([KEY_FILES["privkey.bin"][0]]).contains_key()
    assert Sent([b"secret=" + PASSPHRASE.replace(" ", "+").encode()]).contains_key()
    assert not Sent([_bytes(numbers.public_numbers.n)]).contains_key()


@pytest.mark.parametrize("name", KEY_FILES)
def test_key_signs_in_and_never_leaves_the_browser(browser: Browser, site: ConsoleSite, name: str) -> None:
    visitor = Visitor(browser, site.url)
    visitor.go("/console/jobs")
    content, passphrase = KEY_FILES[name]
    sent = choose(visitor.page, name, content, passphrase)
    visitor.page.locator("nav .full").get_by_text(SIGNER).wait_for()
    assert visitor.page.inner_text("h1") == "Jobs", "the user gets the page they wanted"
    assert any(b"signature=" in body for body in sent.bodies), "the requests were recorded"
    assert sent.posted == [f"{site.url}/api/sessions", f"{site.url}/console/sign-in"]
    assert not sent.contains_key()
    assert visitor.said == []
    visitor.close()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dsa.pem", DSA_FILE, "This browser can use RSA keys only."),
        ("encrypted.pem", ENCRYPTED_FILE, "This browser cannot decrypt this file."),
    ],
)
def test_other_keys_get_the_command(
    browser: Browser, site: ConsoleSite, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    visitor = Visitor(browser, site.url)
    visitor.go("/console/sign-in")
    sent = choose(visitor.page, name, content)
    alert = visitor.page.get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text().startswith(message)
    command = alert.inner_text().partition(": ")[2]
    assert command.startswith(f"perseid token create --server {site.url} --as {SIGNER} --key-file {name} ")
    words = shlex.split(command)[1:]
    words[words.index(name)] = str(tmp_path / "missing")  # the key file; so everything before it is accepted
    refused = CliRunner().invoke(app, words)
    assert "missing: No such file" in str(refused.exception), refused.output
    assert sent.posted == [], "no session is begun and no form is sent"
    assert not sent.contains_key()
    assert visitor.faults() == []
    visitor.close()


@pytest.mark.parametrize(
    ("content", "passphrase", "message"),
    [
        (b"hello", "", "This file is not a private key in a known form"),
        (_handle_file(PASSPHRASE.encode()), "", "Enter the passphrase of the key file."),
        (_handle_file(PASSPHRASE.encode()), "wrong", "Enter the passphrase of the key file."),
    ],
)
def test_unusable_file_is_explained(
    browser: Browser, site: ConsoleSite, content: bytes, passphrase: str, message: str
) -> None:
    visitor = Visitor(browser, site.url)
    visitor.go("/console/sign-in")
    choose(visitor.page, "key", content, passphrase)
    visitor.page.get_by_role("alert").wait_for()
    assert message in visitor.page.get_by_role("alert").inner_text()
    assert visitor.said == []
    visitor.close()


def test_key_of_another_identity_is_refused(browser: Browser, site: ConsoleSite) -> None:
    visitor = Visitor(browser, site.url)
    visitor.go("/console/sign-in")
    choose(visitor.page, "key.pem", KEY_FILES["pkcs8.pem"][0], identity=f"300:0.NA/{PREFIX}")
    visitor.page.get_by_role("alert").wait_for()
    assert visitor.page.get_by_role("navigation", name="Console").count() == 0
    visitor.close()


def test_sign_in_with_the_keyboard(browser: Browser, site: ConsoleSite) -> None:
    visitor = Visitor(browser, site.url)
    visitor.go("/console/sign-in")
    assert visitor.focused() == "INPUT identity", "one can type at once"
    assert [*visitor.tabbed("INPUT keyfile")] == [
        *("INPUT secret", "BUTTON Sign in"),
        *("INPUT token", "BUTTON Sign in"),
        *("INPUT key-identity", "INPUT keyfile"),
    ]
    visitor.go("/console/records")
    visitor.close()


# Checks while typing


def test_values_are_checked_while_typing(browser: Browser, site: ConsoleSite) -> None:
    visitor = site.visit(browser)
    page = visitor.page
    visitor.go(record_path(RECORD, "edit"))
    result = page.locator("[data-result]")
    assert result.get_attribute("aria-live") == "polite", "a screen reader says it"
    assert result.inner_text() == ""
    page.get_by_label("Type").nth(1).fill("HS_ADMIN")
    result.locator(".bad").wait_for()
    page.get_by_label("Type").nth(1).fill("TITLE")
    result.get_by_text("This change would be made.").wait_for()
    assert visitor.faults() == []
    visitor.go(record_path(RECORD))
    assert "Annual report" in visitor.text(), "nothing was saved"
    visitor.close()


def test_new_record_is_checked_once_a_namespace_is_chosen(browser: Browser, site: ConsoleSite) -> None:
    visitor = site.visit(browser)
    page = visitor.page
    visitor.go("/console/new")
    checks: list[str] = []
    page.on("request", lambda request: checks.append(request.url) if request.method == "POST" else None)
    page.locator("[name='data.1']").fill("example.org/1")
    page.evaluate("new Promise(done => setTimeout(done, 450))")  # after the timer of the check
    assert checks == []
    page.get_by_label("Namespace").select_option(PREFIX)
    page.locator("[data-result]").get_by_text("Use https://example.org/1 instead.").wait_for()
    assert len(checks) == 1
    assert visitor.faults() == []
    visitor.close()


def test_row_is_added(browser: Browser, site: ConsoleSite) -> None:
    visitor = site.visit(browser)
    page = visitor.page
    visitor.go(record_path(RECORD, "edit"))
    before = page.locator("[data-row]").count()
    page.get_by_role("button", name="Add a value").click()
    assert page.locator("[data-row]").count() == before + 1
    assert visitor.focused().startswith("INPUT type-"), "one can type at once"
    page.keyboard.type("NOTE")
    page.keyboard.press("Tab")
    page.keyboard.type("Added with a script")
    assert visitor.faults() == []
    page.get_by_role("button", name="Show the difference").click()
    assert page.locator("ins").all_inner_texts() == ["Added with a script"]
    visitor.close()


# Progress


def test_progress_of_a_job_is_shown_without_a_reload(browser: Browser, site: ConsoleSite) -> None:
    visitor = site.visit(browser)
    page = visitor.page
    rows = "".join([f"{PREFIX}/live-{number},https://live.example/{number}\n" for number in range(ROWS)])
    visitor.go("/console/imports")
    page.set_input_files(
        "#file", {"name": "live.csv", "mimeType": "text/csv", "buffer": f"handle,URL\n{rows}".encode()}
    )
    page.get_by_role("button", name="Upload and check").click()
    page.wait_for_url("**/imports/*")
    while page.get_by_text("is being checked").count():
        page.reload()
    page.get_by_role("button", name="Import", exact=True).click()
    page.wait_for_url("**/jobs/*")
    page.locator(".content .badge.ok").wait_for()  # nobody reloads the page but its script
    assert f"{ROWS:,} / {ROWS:,}" in " ".join(visitor.text().split())
    assert [url for url in visitor.asked if url.endswith("/events")], "it was told while it ran"
    assert re.search(r"/jobs/[^/]+$", page.url.partition("?")[0])
    assert visitor.faults() == []
    visitor.close()


def test_statistics_are_plots_a_table_and_a_file(browser: Browser, site: ConsoleSite) -> None:
    visitor = site.visit(browser)
    page = visitor.page
    page.get_by_role("link", name="Statistics").click()
    page.get_by_label("Namespace").fill(PREFIX)
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(f"**namespace={PREFIX}**")
    for name in ("Resolutions", "Not found", "Changes", "Duration of requests", "Growth"):
        assert page.get_by_role("img", name=name).is_visible(), name
    assert page.get_by_role("link", name=f"{PREFIX}/reprot-2021").is_visible()
    page.get_by_text("Numbers", exact=True).first.click()
    shown = page.get_by_role("table", name="Numbers").locator("tbody tr").nth(1).locator("td").all_inner_texts()
    with page.expect_download() as started:
        page.get_by_role("link", name="Download as CSV").click()
    rows = list(csv.DictReader(started.value.path().read_text().splitlines()))
    assert shown[1].replace(",", "") == rows[-2]["resolutions"]
    visitor.close()


def test_minted_identifiers_are_listed(browser: Browser, site: ConsoleSite) -> None:
    for scripts in (True, False):
        visitor = Visitor(browser, site.url, java_script_enabled=scripts)
        visitor.go("/console/new")
        page = visitor.page
        card = page.locator("section[aria-labelledby=with-secret]")
        card.get_by_label("Identity").fill(f"300:0.NA/{PREFIX}")
        card.get_by_label("Secret").fill("a-secret-of-the-tests")
        card.get_by_role("button", name="Sign in").click()
        page.get_by_label("Namespace").select_option(PILIN)
        page.get_by_label("Data").first.fill("https://minted.example/")
        page.get_by_label("How many").fill("40")
        page.get_by_role("button", name="Create", exact=True).click()
        lines = page.get_by_label("One per line, to copy").input_value().splitlines()
        pairs = dict([line.split("\t") for line in lines])
        assert len(pairs) == 40
        assert set(pairs.values()) == {"https://minted.example/"}
        assert visitor.said == []
        visitor.close()

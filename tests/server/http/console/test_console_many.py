"""Many identifiers in the console: minted with a URL each, and transferred with a preview."""

import csv
import io
import re
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.namespaces import ChangePolicy
from perseid.registry.queries.resolve import Query
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, header_of
from tests.server.http.resolver.resolver_records import create
from tests.server.installations import OPERATOR

URLS = [f"https://many.example/{number}?a=1&b=<{number}>" for number in range(40)]


def values_of(server: Harness, handle: str) -> list[tuple[str, str]]:
    found = server.registry.resolve(Query(Handle.parse(handle)), OPERATOR)
    return [(value.type, value.data.decode("utf-8", "replace")) for value in found.values if value.type != "HS_ADMIN"]


def mint(user: ConsoleUser, urls: str, **fields: str) -> None:
    user.get("/console/new?prefix=12345")
    user.submit("/new", suffix="m-", urls=urls, **fields)


def minted(user: ConsoleUser) -> list[list[str]]:
    return [line.split("\t") for line in user.form("/minted.csv").fields["lines"].splitlines()]


def test_each_url_gets_an_identifier(user: ConsoleUser, server: Harness) -> None:
    mint(user, "\r\n".join(["", *URLS, " "]), **{"type.2": "TITLE", "data.2": "Of all"})
    assert "40 identifiers were created." in user.text
    assert [url for _, url in minted(user)] == URLS
    for handle, url in minted(user):
        assert values_of(server, handle) == [("TITLE", "Of all"), ("URL", url)]
    assert b"<1>" not in user.page.body


def test_result_is_downloaded_as_csv(user: ConsoleUser) -> None:
    mint(user, "\n".join(URLS))
    pairs = minted(user)
    user.submit("/minted.csv")
    assert header_of(user.page, "Content-Type") == "text/csv;charset=utf-8"
    assert (header_of(user.page, "Content-Disposition") or "").startswith("attachment")
    assert list(csv.reader(io.StringIO(user.page.body.decode()))) == [["handle", "URL"], *pairs]


def test_one_invalid_url_creates_nothing(user: ConsoleUser, server: Harness) -> None:
    with server.registry.snapshot() as snapshot:
        before = snapshot.reader.size
    mint(user, "https://many.example/1\n" + "x" * 2_000_000)
    assert user.page.status >= 400
    assert user.alert
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.size == before


def test_refusal_names_the_record_with_an_invalid_url(user: ConsoleUser, server: Harness) -> None:
    server.registry.do(ChangePolicy("12345", 'url_schemes = ["https"]'), OPERATOR, "cli")
    urls = ["https://many.example/1", "https://many.example/2", "https://many.example/3 4"]
    mint(user, "\n".join(urls))
    expected = "Record 3: value 1 of type 'URL', 'https://many.example/3 4', contains a blank or a control character."
    assert expected in user.alert
    user.post("/console/check", user.form("/new").fields)
    assert expected in user.text, "also while typing"
    mint(user, urls[2])
    assert "Value 1 of type" in user.alert, "of one record its number says nothing"


def test_more_urls_than_one_request_creates_are_refused(user: ConsoleUser) -> None:
    mint(user, "https://many.example/\n" * 1_001)
    assert "must be 1 to 1,000" in user.alert
    assert user.form("/new").fields["urls"].count("many.example") == 1_001


def test_urls_are_checked_while_typing(user: ConsoleUser) -> None:
    user.get("/console/new?prefix=12345")
    user.post("/console/check", user.form("/new").fields | {"urls": "\n".join(URLS)})
    assert "This change would be made." in user.text
    user.get("/console/new")
    user.submit("/new", urls="\n".join(URLS), check="yes")
    assert "This change would be made." in user.text, "also without JavaScript"
    assert b'formaction="/console/new#result"' in user.page.body, "the browser shows the answer"
    user.submit("/new", urls="\n".join([*URLS, "many.example/9"]), check="yes")
    assert "'many.example/9', is not an absolute URL" in user.text, "what is created with a warning"


def test_same_target_for_all_is_in_the_result(user: ConsoleUser) -> None:
    user.get("/console/new?prefix=12345")
    user.submit("/new", suffix="m-", count="2", **{"data.1": "https://same.example/"})
    assert [url for _, url in minted(user)] == ["https://same.example/"] * 2


@pytest.mark.parametrize("path", ["new", "records", "rewrite"])
def test_namespace_is_chosen_in_any_case(user: ConsoleUser, server: Harness, path: str) -> None:
    server.registry.do(AddNamespace("maps.Lib", PROFILES["free"], ()), OPERATOR, "cli")
    for prefix in ("maps.lib", "MAPS.LIB"):
        user.get(f"/console/{path}?prefix={prefix}")
        assert '<option value="MAPS.LIB" selected>MAPS.LIB</option>' in user.page.body.decode()
    user.get(f"/console/{path}?prefix=unknown")
    assert '<option value="unknown" selected>unknown</option>' in user.page.body.decode(), "no other is chosen instead"


def test_no_namespace_is_chosen_for_the_user(user: ConsoleUser, server: Harness) -> None:
    """An identifier stays in the namespace in which it was minted."""
    server.registry.do(AddNamespace("22222", PROFILES["free"], ()), OPERATOR, "cli")
    user.get("/console/new")
    assert user.form("/new").fields["prefix"] == ""
    for check in ("", "yes"):
        user.submit("/new", check=check, **{"data.1": "https://one.example/"})
        assert "No namespace was chosen. Choose a namespace." in user.text
    user.submit("/new", mode="create", suffix="12345/whole", **{"data.1": "https://one.example/"})
    assert values_of(server, "12345/whole") == [("URL", "https://one.example/")]


# Transfer

TRANSFER = f"/console/transfer?where={quote('12345/t-*')}&to={quote('300:12345/new-owner')}"


@pytest.fixture
def records(server: Harness) -> None:
    create(server, "12345/new-owner", Value(300, "HS_SECKEY", b"secret-of-the-owner"))
    for number in range(3):
        create(server, f"12345/t-{number}", Value.text(1, "URL", "https://old.example/"))


@pytest.mark.usefixtures("records")
def test_records_are_transferred_after_a_preview(user: ConsoleUser) -> None:
    user.get(TRANSFER)
    assert len(re.findall(r"12345/t-\d", user.text)) == 3
    user.submit("/transfer", note="The project ended")
    assert "The job is done." in user.text
    user.get(TRANSFER)
    assert "The new owner has all of them already." in user.text


@pytest.mark.usefixtures("records")
def test_transfer_of_records_of_others_is_refused(server: Harness) -> None:
    create(server, "12345/guest", Value(300, "HS_SECKEY", b"secret-of-a-guest"))
    guest = ConsoleUser(server).sign_in("300:12345/guest", "secret-of-a-guest")
    guest.get(TRANSFER)
    assert "Permission denied" in guest.alert
    guest.get("/console/new")
    fields = guest.form("/new").fields | {"where": "12345/t-*", "to": "300:12345/guest"}
    guest.post("/console/transfer", fields)
    assert "Permission denied" in guest.alert


def test_invalid_transfer_is_refused_and_escaped(user: ConsoleUser) -> None:
    user.get(f"/console/transfer?where=12345&to={quote('<script>alert(1)</script>')}")
    assert user.alert
    assert b"<script>alert" not in user.page.body

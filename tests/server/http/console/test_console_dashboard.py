"""The overview of the console: namespaces, latest jobs and latest changes of the user."""

from collections.abc import Iterator

import pytest

from perseid.records.record import Value
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, harness
from tests.server.http.resolver.resolver_records import create


@pytest.fixture
def server() -> Iterator[Harness]:
    with harness() as made:
        for number in range(12):
            create(made, f"12345/latest-{number}", Value.text(1, "URL", f"https://old.example/{number}"))
        yield made


def test_overview_shows_namespaces_and_the_latest_changes_first(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    user.get("/console")
    shown = [number for number in range(12) if f"12345/latest-{number} " in user.text]
    assert shown == list(range(2, 12)), "the latest ten"
    assert user.text.index("12345/latest-11 ") < user.text.index("12345/latest-10 ")
    assert b'href="/console/namespaces/12345"' in user.page.body
    assert b'href="/console/new?prefix=12345"' in user.page.body


def test_overview_shows_the_latest_jobs(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    user.get("/console/rewrite?url=https%3A%2F%2Fold.example%2F*&to=https%3A%2F%2Fnew.example%2F*")
    user.submit("/rewrite")
    user.get("/console")
    assert "Latest jobs" in user.text
    assert "12 / 12" in user.text


def test_user_without_permissions_sees_nothing_of_others(server: Harness) -> None:
    create(server, "12345/guest", Value(300, "HS_SECKEY", b"secret-of-a-guest"))
    guest = ConsoleUser(server).sign_in("300:12345/guest", "secret-of-a-guest")
    guest.get("/console")
    assert "in no namespace yet" in guest.text
    assert "Latest changes" not in guest.text
    assert "12345/latest" not in guest.text


def test_overview_is_escaped(server: Harness) -> None:
    create(server, "12345/<b>x", Value.text(1, "URL", "https://old.example/"))
    user = ConsoleUser(server).sign_in()
    user.get("/console")
    assert b"12345/&lt;b&gt;x" in user.page.body
    assert b"<b>x" not in user.page.body

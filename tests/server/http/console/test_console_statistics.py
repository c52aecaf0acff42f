"""Statistics in the console: plots, numbers, CSV and wanted identifiers, as far as the user can see them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.ledger.statistics import StatisticsStore
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, harness, header_of

PLOTS = ("Resolutions", "Not found", "Changes", "Duration of requests", "Growth")
HOSTILE = "12345/<script>alert(1)</script>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Harness]:
    with harness() as made:
        store = made.registry.statistics = StatisticsStore(tmp_path)
        counts = {("12345", "native"): 1_234, ("12345", "bot_pages"): 2, ("12345", "not_found"): 7}
        store.add(int(time.time()), counts, {("12345", HOSTILE): 4, ("12345", "12345/n1"): 9})
        yield made


def test_plots_and_numbers_are_shown(user: ConsoleUser) -> None:
    user.get("/console/statistics?namespace=12345")
    assert user.page.status == 200
    html = user.page.body.decode()
    assert [html.count(f'<title id="{name}-title">') for name in ("resolutions", "not-found", "growth")] == [1, 1, 1]
    assert all(f"<h2>{title}</h2>" in html for title in PLOTS)
    assert html.count("<svg") == html.count('role="img"') == len(PLOTS)
    assert "1,234 (Native protocol)" in html
    assert len(html) < 100_000


def test_wanted_identifiers_that_exist_are_not_shown_and_text_is_escaped(user: ConsoleUser) -> None:
    html = user.get("/console/statistics?namespace=12345").body.decode()
    assert "&lt;script&gt;alert(1)" in html
    assert "<script>alert" not in html
    assert "12345/n1<" not in html


@pytest.mark.parametrize("by", ["day", "hour", "namespace", "nonsense"])
def test_every_period_is_shown_and_can_be_downloaded(user: ConsoleUser, by: str) -> None:
    html = user.get(f"/console/statistics?by={by}").body.decode()
    assert user.page.status == 200
    assert ("<svg" in html) == (by != "namespace")
    assert "1,234" in html
    answer = user.get(f"/console/statistics/csv?by={by}&namespace=12345")
    assert header_of(answer, "Content-Type") == "text/csv; charset=utf-8"
    assert header_of(answer, "Content-Disposition") == 'attachment; filename="statistics.csv"'
    assert b"1234" in answer.body


def test_invalid_dates_are_explained_in_the_form(user: ConsoleUser) -> None:
    user.get("/console/statistics?since=yesterday&namespace=12345")
    assert user.page.status == 422
    assert "Invalid time yesterday" in user.text
    assert "Use a date or time such as 2026-11-15" in user.text
    assert 'name="since" value="yesterday"' in user.page.body.decode()


def test_without_a_session_there_is_the_sign_in_page(server: Harness) -> None:
    for path in ("/console/statistics", "/console/statistics/csv"):
        answer = server.get(path)
        assert answer.status == 303
        assert "/console/sign-in" in str(header_of(answer, "Location"))

"""Counting of requests: what is counted as what, bots, and bounds."""

import pytest

from perseid.ledger.statistics import COLUMNS, MAX_WANTED_BYTES
from perseid.server.observe import tally as tally_module
from perseid.server.observe.tally import RequestTally, is_bot, response_kind
from perseid.wire.codes import ResponseCode


@pytest.fixture
def tally() -> RequestTally:
    return RequestTally()


@pytest.mark.parametrize(
    "agent",
    [
        "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
        "Mozilla/5.0 (compatible; Baiduspider/2.0)",
        "Mozilla/5.0 (compatible; archive.org_bot)",
        "W3C-checklink/5.0",
        "LinkChecker/10.2",
        "facebookexternalhit/1.1",
        "Pingdom.com_bot_version_1.4",
    ],
)
def test_bots_are_told_apart(agent: str) -> None:
    assert is_bot(agent)


@pytest.mark.parametrize(
    "agent", ["", "Mozilla/5.0 (X11; Linux x86_64) Firefox/130.0", "curl/8.9", "python-requests/2.32", "Botany/1"]
)
def test_people_and_libraries_are_not_bots(agent: str) -> None:
    assert not is_bot(agent)


def test_a_bot_is_found_in_bounded_text_only() -> None:
    assert not is_bot("x" * 600 + "Googlebot")


@pytest.mark.parametrize(
    ("status", "content_type", "path", "kind"),
    [
        (302, "text/html;charset=utf-8", b"/1/x", "redirects"),
        (303, "", b"/1/x", "redirects"),
        (200, "text/html;charset=utf-8", b"/1/x", "pages"),
        (410, "text/html;charset=utf-8", b"/1/x", "pages"),
        (200, "application/json", b"/api/handles/1/x", "json"),
        (200, "application/ld+json", b"/1/x", "json"),
        (304, "", b"/1/x", "pages"),
        (304, "", b"/api/handles/1/x", "json"),
    ],
)
def test_kinds_of_responses(status: int, content_type: str, path: bytes, kind: str) -> None:
    assert response_kind(status, content_type, path) == kind


def test_everything_is_counted_once_with_its_duration(tally: RequestTally) -> None:
    tally.count_native(b"abc")
    tally.count_http(b"ABC/x", ord("3"), False)
    tally.count_http(b"abc/y", ord("2"), True)
    tally.count_served(b"abc/x", ResponseCode.SUCCESS, 500, resolution=True)
    tally.count_served(b"abc/x", ResponseCode.SUCCESS, 5_000, resolution=False)
    tally.count_served(b"abc/x", ResponseCode.SERVER_NOT_RESP, 5, resolution=True)
    tally.count_response(b"abc/x", ResponseCode.SUCCESS, 50_000, "GET", "pages", "Firefox")
    tally.count_response(b"abc/x", ResponseCode.SUCCESS, 500_000, "HEAD", "pages", "Googlebot")
    tally.count_response(b"abc/x", ResponseCode.SUCCESS, 5_000_000, "PUT", "json", "curl")
    tally.count_response(b"", 0, 5, "GET", "pages", "Firefox")
    sums = tally.sums()
    assert sums == {
        ("ABC", "native"): 2,
        ("ABC", "redirects"): 1,
        ("ABC", "bot_json"): 1,
        ("ABC", "pages"): 1,
        ("ABC", "bot_pages"): 1,
        ("ABC", "under_1ms"): 4,
        ("ABC", "under_10ms"): 1,
        ("ABC", "under_100ms"): 1,
        ("ABC", "under_1s"): 1,
        ("ABC", "slower"): 1,
    }
    assert {column for _, column in sums} <= set(COLUMNS)


def test_missing_handles_are_counted_by_name_but_not_for_bots(tally: RequestTally) -> None:
    tally.count_missing(b"1/x")
    tally.count_missing(b"1/x", bot=True)
    tally.count_served(b"1/x", ResponseCode.HANDLE_NOT_FOUND, 5, resolution=True)
    tally.count_response(b"1/y", ResponseCode.HANDLE_NOT_FOUND, 5, "GET", "pages", "")
    tally.count_response(b"1/z", ResponseCode.HANDLE_NOT_FOUND, 5, "DELETE", "json", "")
    tally.count_unknown(b"1", b"1/" + b"x" * MAX_WANTED_BYTES)
    tally.count_unknown(b"1", b"1/y")
    assert tally.missing == {b"1/x": 2, b"1/y": 2}
    assert (tally.sums()["1", "not_found"], tally.sums()["1", "bot_not_found"]) == (5, 1)


def test_memory_is_bounded_whatever_clients_send(tally: RequestTally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "MAX_COUNTED", 4)
    monkeypatch.setattr(tally_module, "MAX_MISSING", 4)
    for number in range(50):
        name = b"%d/x" % number
        tally.count_native(b"%d" % number)
        tally.count_http(name, ord("3"), False)
        tally.count_response(name, ResponseCode.SUCCESS, 5, "GET", "pages", "")
        tally.count_missing(name)
        tally.count_unknown(b"%d" % number, name)
    assert len(tally.unknown) <= 5
    assert len(tally.native) <= 5
    assert len(tally.http) <= 5
    assert len(tally.others) <= 10
    assert len(tally.missing) == 4
    sums = tally.sums()
    for column, counted in (("native", 50), ("redirects", 50), ("pages", 50), ("not_found", 100)):
        assert sum(count for (_, each), count in sums.items() if each == column) == counted
    assert sums["", "native"] == 46


def test_taking_starts_again(tally: RequestTally) -> None:
    tally.count_native(b"1")
    taken = tally.take()
    tally.count_native(b"1")
    assert (taken.sums()["1", "native"], tally.sums()["1", "native"]) == (1, 1)

"""`perseid statistics`: the table, its total and its width, and wanted identifiers."""

import time
from pathlib import Path

from perseid.ledger.statistics import DAY, StatisticsStore
from tests.cli.installation import site


def test_table_begins_with_the_first_requests_has_a_total_and_fits_a_terminal(tmp_path: Path) -> None:
    here = site(tmp_path, "--prefix", "12345")
    store, now = StatisticsStore(here.directory), int(time.time())
    assert len(here.lines("statistics 12345")) == 2, "nothing was counted yet: the last day"
    store.add(now - 2 * DAY, {("12345", "native"): 1_200, ("12345", "redirects"): 3, ("12345", "not_found"): 2})
    store.add(now, {("12345", "pages"): 40, ("12345", "bot_pages"): 5, (".ENV", "not_found"): 7})
    heading, first, empty, last, total = here.lines("statistics 12345")
    assert heading == "day         resolutions  native  http  bots  not_found  changes  identifiers"
    assert [line.split()[1:] for line in (first, empty, last, total)] == [
        ["1,203", "1,200", "3", "0", "2", "0", "0"],
        ["0", "0", "0", "0", "0", "0", "0"],
        ["40", "0", "40", "5", "0", "0", "0"],
        ["1,243", "1,200", "43", "5", "2", "0", "0"],
    ]
    assert total.startswith("total ")
    by_namespace = here.lines("statistics --by namespace")
    assert [line[:10].strip() for line in by_namespace] == ["namespace", "not hosted", "12345", "total"]
    assert by_namespace[1].split()[2:] == ["0", "0", "0", "0", "7", "0", "0"]
    hours = here.lines("statistics 12345 --by hour")
    assert all(len(line) <= 80 for line in (heading, first, total, *by_namespace, *hours))
    assert len(here.ok("statistics 12345 --json").json["rows"]) == 31


def test_wanted_identifiers_have_headings(tmp_path: Path) -> None:
    here = site(tmp_path, "--prefix", "12345")
    assert here.ok("statistics 12345 --wanted").out == ""
    StatisticsStore(here.directory).add(1_794_744_000, {}, {("12345", "12345/mpa"): 1_234})
    assert here.lines("statistics 12345 --wanted") == [
        "requests  last        handle",
        "   1,234  2026-11-15  12345/mpa",
    ]

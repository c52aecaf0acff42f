"""`find`: search handles by the content of their records."""

import json
from pathlib import Path

import pytest

from perseid.cli import queries
from tests.cli.installation import Site, refused, site


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345", "--profile", "free")
    for number in range(3):
        installation.ok(f"create 12345/{number} --url https://www.example.org/{number}")
    installation.ok("create 12345/mail --value EMAIL!private=ann@example.org --value 'DESC=two words'")
    return installation


def test_s4_handles_are_found_by_target(here: Site) -> None:
    expected = ["12345/0", "12345/1", "12345/2"]
    assert here.lines("find --host example.org") == here.lines("find --url https://www.example.org/*") == expected
    assert here.lines("find --url HTTPS://www.example.org:443/1") == here.lines("find --path /1") == ["12345/1"]
    assert here.lines("find --url http://www.example.org/1") == here.lines("find --host ample.org") == []
    done = here.ok("find --url *org/2")
    assert (done.out, done.err) == ("12345/2\n", "No index supports this search: scanning all targets.\n")


def test_s5_handles_are_found_by_value_owner_and_time_of_change(here: Site) -> None:
    assert here.lines("find --type EMAIL") == here.lines("find --value ann@example.org") == ["12345/mail"]
    assert here.lines("find --value", "two words") == ["12345/mail"]
    last = here.ok("set 12345/1 DESC=changed --json").json["seq"]
    assert here.lines(f"find --changed-since {last - 1}") == ["12345/1"]
    owned = here.lines("find --prefix 12345 --type URL --owner hdl:0.NA/12345")
    assert sorted(owned) == ["12345/0", "12345/1", "12345/2"]


def test_handles_are_found_by_words_of_their_titles(here: Site) -> None:
    here.ok("create 12345/map --url https://www.example.org/9 --value 'TITLE=A Map of Åre'")
    assert here.lines("find --words", "ARE map") == here.lines("find --words ma --prefix 12345") == ["12345/map"]
    assert here.lines("find --words", "two words") == ["12345/mail"], "a description serves as title"
    assert here.lines("find --words map --host none.example") == here.lines("find --words example") == []
    (exported,) = here.lines("export --words map")
    assert json.loads(exported)["handle"] == "12345/map"
    here.ok("rewrite --host www.example.org --words map --to https://new.example/* --yes")
    assert here.lines("find --host new.example") == ["12345/map"]
    refused(here("find --words !"), "has no word of at least 2 letters or digits", code=2)


def test_json_has_one_line_per_handle_with_the_matching_values(here: Site) -> None:
    (line,) = here.lines("find --url https://www.example.org/1 --json")
    found = json.loads(line)
    assert (found["handle"], found["state"]) == ("12345/1", "published")
    assert [each["data"]["value"] for each in found["values"]] == ["https://www.example.org/1"]
    assert found["changed"].endswith("Z")


def test_limited_search_can_be_continued(here: Site) -> None:
    done = here.ok("find --host example.org --limit 2")
    assert done.out.splitlines() == ["12345/0", "12345/1"]
    cursor = done.err.removeprefix("There may be more results. To continue: --after ").strip()
    assert here.lines(f"find --host example.org --limit 2 --after {cursor}") == ["12345/2"]


def test_full_scan_stops_at_the_time_limit(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.registry.queries.paging.MAX_PAGE", 1)
    ticks = iter(range(0, 1_000, 7))
    monkeypatch.setattr(queries, "monotonic", lambda: float(next(ticks)))
    done = here("find --url *example* --seconds 10")
    assert (done.code, done.out) == (1, "12345/0\n12345/1\n")
    assert "perseid: The search stopped after 10 s and is not complete\nTo continue: --after " in done.err


def test_search_finds_only_what_the_identity_can_see(here: Site) -> None:
    assert here.lines("find --host example.org --as 300:99/x") == []
    refused(here("find --prefix 12345 --as 300:99/x"), "LIST_HANDLES")
    here.ok("namespace policy 12345 --file -", stdin=b'profile = "free"\nwho_may_list = "public"\n')
    assert here.lines("find --host example.org --as 300:99/x") == ["12345/0", "12345/1", "12345/2"]
    assert here.lines("find --type EMAIL --as 300:99/x") == []


def test_missing_or_invalid_conditions_are_refused(here: Site) -> None:
    assert here("find").code == 2
    refused(here("find --host a/b"), "is not a host name or IP address", code=2)
    refused(here("find --host example.org --after x"), "Cursor x is not valid for this search", code=2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("find --host a --seconds 0", "Invalid value for '--seconds': '0' is less than 1"),
        ("find --host a --seconds x", "Invalid value for '--seconds': 'x' is not a whole number"),
        ("cite 12345/x --style zz", "Invalid value for '--style': 'zz' is not one of 'text', 'hdl', "),
    ],
)
def test_invalid_number_or_choice_is_reported_in_our_words(here: Site, words: str, text: str) -> None:
    refused(here(words), text, code=2)

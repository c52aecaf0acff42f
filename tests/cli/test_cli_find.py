"""`find`: names by what their records hold."""

import json
from pathlib import Path

import pytest

from perseid.cli import find
from tests.cli.installation import Site, refused, site


@pytest.fixture
def here(tmp_path: Path) -> Site:
    made = site(tmp_path, "--prefix", "12345", "--profile", "free")
    for number in range(3):
        made.ok(f"create 12345/{number} --url https://www.example.org/{number}")
    made.ok("create 12345/mail --value EMAIL!private=ann@example.org --value 'DESC=two words'")
    return made


def test_s4_names_are_found_by_where_they_lead(here: Site) -> None:
    everything = ["12345/0", "12345/1", "12345/2"]
    assert here.lines("find --host example.org") == here.lines("find --url https://www.example.org/*") == everything
    assert here.lines("find --url HTTPS://www.example.org:443/1") == here.lines("find --path /1") == ["12345/1"]
    assert here.lines("find --url http://www.example.org/1") == here.lines("find --host ample.org") == []
    done = here.ok("find --url *org/2")
    assert (done.out, done.err) == ("12345/2\n", "No index supports this search: scanning all targets.\n")


def test_s5_names_are_found_by_what_they_hold_whose_they_are_and_when_they_changed(here: Site) -> None:
    assert here.lines("find --type EMAIL") == here.lines("find --value ann@example.org") == ["12345/mail"]
    assert here.lines("find --value", "two words") == ["12345/mail"]
    last = here.ok("set 12345/1 DESC=changed --json").json["seq"]
    assert here.lines(f"find --changed-since {last - 1}") == ["12345/1"]
    owned = here.lines("find --prefix 12345 --type URL --owner hdl:0.NA/12345")
    assert sorted(owned) == ["12345/0", "12345/1", "12345/2"]


def test_json_has_a_line_for_each_name_with_what_was_found(here: Site) -> None:
    (line,) = here.lines("find --url https://www.example.org/1 --json")
    found = json.loads(line)
    assert (found["handle"], found["state"]) == ("12345/1", "normal")
    assert [each["data"]["value"] for each in found["values"]] == ["https://www.example.org/1"]
    assert found["changed"].endswith("Z")


def test_a_search_can_be_ended_and_gone_on_with(here: Site) -> None:
    done = here.ok("find --host example.org --limit 2")
    assert done.out.splitlines() == ["12345/0", "12345/1"]
    cursor = done.err.removeprefix("There may be more results. To continue: --after ").strip()
    assert here.lines(f"find --host example.org --limit 2 --after {cursor}") == ["12345/2"]


def test_looking_through_everything_ends_when_the_time_is_over(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "MAX_PAGE", 1)
    ticks = iter(range(0, 1_000, 7))
    monkeypatch.setattr(find, "monotonic", lambda: float(next(ticks)))
    done = here("find --url *example* --seconds 10")
    assert (done.code, done.out) == (1, "12345/0\n12345/1\n")
    assert "perseid: the search stopped after 10 s and is not complete\nTo continue: --after " in done.err


def test_what_may_not_be_seen_is_not_found(here: Site) -> None:
    assert here.lines("find --host example.org --as 300:99/x") == []
    refused(here("find --prefix 12345 --as 300:99/x"), "LIST_HANDLES")
    here.ok("namespace policy 12345 --file -", given=b'profile = "free"\nwho_may_list = "public"\n')
    assert here.lines("find --host example.org --as 300:99/x") == ["12345/0", "12345/1", "12345/2"]
    assert here.lines("find --type EMAIL --as 300:99/x") == []


def test_nothing_to_look_for_is_wrong_usage(here: Site) -> None:
    assert here("find").code == 2
    refused(here("find --host a/b"), "is not a host name or IP address")
    refused(here("find --host example.org --after x"), "Cursor x is not valid for this search")

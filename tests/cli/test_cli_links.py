"""`link`: link two handles to each other."""

from pathlib import Path

import pytest

from tests.cli.installation import Site, refused, site


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    for name in ("work", "v1", "v2", "about"):
        installation.ok(f"create 12345/{name} --url https://example.org/{name}")
    return installation


def links(here: Site, name: str) -> list[str]:
    return [line.split("  ", 1)[1] for line in here.lines(f"resolve 12345/{name} --type LINK.")]


def test_s3_a_work_has_many_versions_and_a_version_one_work(here: Site) -> None:
    assert here.lines("link version 12345/Work hdl:12345/v1 --note first") == ["12345/work", "12345/v1"]
    here.ok("link version 12345/work 12345/v2")
    assert links(here, "work") == ["LINK.EXPRESSION  12345/v1", "LINK.EXPRESSION  12345/v2"]
    assert links(here, "v1") == ["LINK.WORK  12345/work"]
    assert here.ok("history 12345/v1 --json").json["versions"][0]["note"] == "first"
    assert here.ok("link version 12345/work 12345/v1 --json").json == {
        "handles": ["12345/work", "12345/v1"],
        "seq": 0,
    }
    refused(here("link version 12345/v2 12345/v1"), "is already linked to another handle")


def test_s12_object_and_metadata_link_to_each_other(here: Site) -> None:
    found = here.ok("link metadata 12345/v1 12345/about --json").json
    assert found["handles"] == ["12345/v1", "12345/about"]
    assert found["seq"] > 0
    assert (links(here, "v1"), links(here, "about")) == (["LINK.METADATA  12345/about"], ["LINK.OBJECT  12345/v1"])


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("version 12345/work 12345/work", 2, "cannot be linked with itself"),
        ("version 12345/work 12345/none", 3, "Handle 12345/none does not exist"),
        ("metadata 12345/v1 12345/about --as 300:9/x", 4, "cannot link"),
    ],
)
def test_invalid_links_are_refused(here: Site, command: str, code: int, words: str) -> None:
    refused(here(f"link {command}"), words, code=code)

"""`resolve` of handles without a record whose values come from a template."""

import re
from pathlib import Path

import pytest

from tests.cli.installation import Site, refused, site

TEMPLATE = '<n><template delimiter="@"><foreach><value data="${data}#${extension}"/></foreach></template></n>'
FIXED = '<n><template delimiter="@"><value type="URL" data="https://example.org/${extension}"/></template></n>'


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    for name, text in (("first", TEMPLATE), ("second", FIXED)):
        (tmp_path / name).write_text(text)
    installation.ok("create 12345/a --url https://example.org/a")
    installation.ok(f"add 0.NA/12345 50:HS_NAMESPACE=@{tmp_path / 'first'}")
    return installation


def test_values_from_a_template_are_shown_with_their_source(here: Site, tmp_path: Path) -> None:
    done = here.ok("resolve 12345/A@Page --type URL")
    assert done.out == "1  URL  https://example.org/a#Page\n"
    assert (
        done.err == "The handle has no record of its own: a template created these values from the record of 12345/a.\n"
    )
    found = here.ok("resolve 12345/a@x --type URL --json").json
    assert (found["handle"], found["template_base"]) == ("12345/a@x", "12345/a")
    assert "template_base" not in here.ok("resolve 12345/a --json").json
    refused(here("resolve 12345/a-x"), "Handle 12345/a-x does not exist", code=3)
    then = here.ok("history 0.NA/12345 --json").json["versions"][0]["seq"]
    here.ok(f"set 0.NA/12345 50:HS_NAMESPACE=@{tmp_path / 'second'}")
    done = here.ok("resolve 12345/none@x")
    assert (done.out, done.err) == (
        "1  URL  https://example.org/x\n",
        "The handle has no record of its own: a template created these values.\n",
    )
    found = here.ok("resolve 12345/none@x --json").json
    assert (found["by_template"], "template_base" in found) == (True, False)
    done = here.ok(f"resolve 12345/a@x --type URL --at {then}")
    assert done.out == "1  URL  https://example.org/a#x\n"
    assert f"As of entry {then}; its latest source is from entry {then} (" in done.err


def test_alias_of_a_handle_from_a_template_is_followed(here: Site) -> None:
    here.ok("create 12345/alias --value HS_ALIAS=12345/a@Page")
    assert here.ok("resolve 12345/alias --follow --type URL").out == "1  URL  https://example.org/a#Page\n"


def test_setting_is_the_default_delimiter(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345")
    installation.ok("create 12345/a --url https://example.org/a")
    refused(installation("resolve 12345/a::x"), "does not exist", code=3)
    settings = installation.directory / "perseid.toml"
    settings.write_text(re.sub('(?m)^#? ?delimiter = ""$', 'delimiter = "::"', settings.read_text()))
    assert installation.ok("resolve 12345/a::x --type URL").out == "1  URL  https://example.org/a\n"

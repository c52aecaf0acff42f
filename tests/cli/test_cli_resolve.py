"""`resolve`: aliases and authority metadata."""

import json
import re
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from perseid.cli import _local
from perseid.names.handle import Handle
from perseid.registry.installation.public_view import open_public_view
from perseid.registry.snapshot import LedgerNeeded, PublicSnapshot
from tests.cli.installation import Site, call, refused, site


@pytest.fixture
def demo(tmp_path: Path) -> Site:
    return site(tmp_path, "--demo")


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    installation.ok("create 12345/x --url https://example.org/a")
    installation.ok("create 12345/other --value HS_ALIAS=12345/X")
    return installation


READ_COMMANDS = (
    "resolve 102.100.272/8RBZF0DQH",
    "resolve 102.100.272/8rbzf0dqh --json",
    "resolve 102.100.272/8RBZF0DQH --type DESC --index 100 --json",
    "resolve 102.100.272/8RBZF0DQH --type NONE",
    "resolve 102.100.272/8RBZF0DQX",
    "resolve 102.100.TYPE/OWNER --json",
    "resolve 0.NA/102.100.272 --json",
    "resolve 0.SITE/POLICY/102.100.272",
    "resolve 102.100.272/BCDFGHJKH",
    "resolve 102.100.272/BCDFGHJKH --follow --json",
    "resolve 99999/x 102.100.272/X4NDP2JQH --json",
    "resolve 2000.01/EEF4DF17361A42E2B975E554663B70C3?a=b#c --json",
)
"""Reads of every kind, with and without a result."""


def test_public_records_are_the_same_with_and_without_the_answers_view(
    demo: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.ok("create 102.100.272/BCDFGHJKH --value HS_ALIAS=102.100.272/8RBZF0DQH")
    demo.ok("rebuild answers")
    from_view = [demo(words) for words in READ_COMMANDS]
    with open_public_view(demo.directory):
        pass  # it was used: this raises nothing
    monkeypatch.setattr(_local, "open_public_view", _no_view)
    assert [demo(words) for words in READ_COMMANDS] == from_view
    assert {done.code for done in from_view} == {0, 3}


def _no_view(_: Path) -> AbstractContextManager[PublicSnapshot]:
    raise LedgerNeeded


@pytest.mark.parametrize("options", [(), ("--prefix", "12345"), ("--demo",)])
def test_answers_view_is_used_before_a_server_has_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    here = Site(tmp_path / "new")
    assert call("init", str(here.directory), *options).code == 0
    if options != ("--prefix", "12345"):
        here.ok("namespace add 12345")
    here.ok("create 12345/x --url https://example.org/a")
    with open_public_view(here.directory) as view:
        assert view.stored(Handle.parse("12345/x")).is_public


def test_answers_view_without_the_last_entry_is_not_used(here: Site) -> None:
    here.ok("rebuild answers")
    answers, old = here.directory / "answers", here.directory.parent / "old"
    shutil.copytree(answers, old)
    here.ok("set 12345/x URL=https://example.org/b")
    shutil.rmtree(answers)
    shutil.copytree(old, answers)
    with pytest.raises(LedgerNeeded), open_public_view(here.directory):
        pytest.fail("the view is behind")
    assert here.ok("resolve 12345/x --type URL").out == "1  URL  https://example.org/b\n"


def test_alias_is_shown_or_followed(here: Site) -> None:
    assert "HS_ALIAS" in here.ok("resolve 12345/other").out
    done = here.ok("resolve 12345/Other --follow --type URL")
    assert done.out == "1  URL  https://example.org/a\n"
    assert done.err == "12345/other is an alias of 12345/x.\n"
    found = here.ok("resolve 12345/other --follow --json").json
    assert (found["handle"], found["aliases"]) == ("12345/x", ["12345/other"])
    assert "aliases" not in here.ok("resolve 12345/x --follow --json").json


def test_u4_u7_every_command_reads_urls_of_this_server_and_of_named_resolvers(here: Site) -> None:
    environ = {"PERSEID_HTTP_PUBLIC_URL": "https://id.example.org"}
    for url in ("https://id.example.org/12345/x", "http://id.example.org/hdl/12345%2Fx"):
        for command in ("resolve", "history", "cite --style hdl", "explain delete"):
            assert here(f"{command} {url}", environ=environ).code == 0, (command, url)
        refused(here(f"resolve {url}"), "not the address of a known resolver", "--resolver", code=2)
    assert here("find --owner https://id.example.org/0.NA/12345", environ=environ).code == 0
    other = "https://other.example/hdl"
    for command in ("resolve", "history", "cite --style hdl", "add", "explain add", "verify", "tombstone"):
        assert "--resolver" in here(f"{command} --help").out, command
        assert "--strict" in here(f"{command} --help").out, command
    assert here.ok(f"add {other}/12345/x DESC=text --resolver {other} --resolver https://another.example").code == 0
    assert here.ok("resolve hdl:12345/x --strict").out
    refused(here("resolve 12345/x --strict"), "must begin with", "rule U7", code=2)


def test_a5_creator_is_read_from_a_url_of_this_server(demo: Site) -> None:
    creator = "102.100.TYPE/CREATOR=https://id.example.org/102.100.272/0n8j991qh"
    command = f"mint 102.100.272 --url https://example.org/a --value {creator}"
    refused(demo(command), "not the address of a known resolver")
    done = demo(command, environ={"PERSEID_HTTP_PUBLIC_URL": "https://id.example.org"})
    assert done.code == 0, done
    assert "hdl:102.100.272/0N8J991QH" in demo.ok(f"resolve --authority {done.out.strip()}").out


def test_c5_query_and_fragment_of_a_cordra_identifier_are_shown(demo: Site) -> None:
    name = "2000.01/eef4df17361a42e2b975e554663b70c3?part=2#top"
    for text in (name, f"hdl:{name}"):
        found = demo.ok("resolve --json", text).json
        assert (found["handle"], found["query"], found["fragment"]) == (
            "2000.01/EEF4DF17361A42E2B975E554663B70C3",
            "part=2",
            "top",
        )
        shown = demo.ok("resolve", text).err
        assert "part=2" in shown
        assert "top" in shown
        assert demo.ok("cite --style hdl", text).out == f"hdl:{name.replace(name[8:40], name[8:40].upper())}\n"
        assert demo("set", text, "DESC=changed").code != 0


def test_alias_is_followed_at_an_earlier_time(here: Site) -> None:
    then = here.ok("history 12345/other --json").json["versions"][0]["seq"]
    here.ok("create 12345/y --url https://example.org/y")
    here.ok("set 12345/other HS_ALIAS=12345/y")
    assert "example.org/y" in here.ok("resolve 12345/other --follow").out
    assert "example.org/a" in here.ok(f"resolve 12345/other --follow --at {then}").out


def test_s1_s2_administrators_learn_that_a_handle_is_not_public(here: Site) -> None:
    here.ok("reserve 12345/r --owner 300:98765/ann")
    here.ok("unpublish 12345/x")
    here.ok("set 12345/other HS_ADMIN=300:98765/ann --as 300:0.NA/12345")
    owner, other = "--as 300:98765/ann", "--as 300:98765/bob"
    today = "Handle 12345/r is reserved: only its administrators can see it\n"
    earlier = "Handle 12345/r is reserved now: only its administrators can see it and its earlier versions\n"
    for command, text in (("resolve 12345/r", today), ("resolve 12345/r --at 9", earlier), ("cite 12345/r", today)):
        hint = "To see it: perseid resolve 12345/r --private"
        refused(here(f"{command} {owner}"), text, hint, code=3)
        assert here(f"{command} {other}").err == "perseid: Handle 12345/r does not exist\n"
    refused(here("resolve 12345/x"), "Handle 12345/x is unpublished", "--private", code=3)
    assert here.lines(f"resolve 12345/r --private {owner}") == ["100  HS_ADMIN  300:98765/ann"]
    assert here.lines(f"find --owner 98765/ann --prefix 12345 {owner}") == ["12345/r", "12345/other"]
    assert here.lines(f"find --owner 98765/ann {other}") == []
    for closed in ("list 12345", "find --prefix 12345"):
        refused(here(f"{closed} {owner}"), "LIST_HANDLES", "perseid find --prefix 12345 --owner HANDLE")


def test_several_handles_are_resolved(here: Site) -> None:
    done = here("resolve 12345/other hdl:12345/none 12345/x --type URL --type HS_ALIAS")
    assert done.code == 3
    assert done.out.splitlines() == ["12345/other", "1  HS_ALIAS  12345/X", "12345/x", "1  URL  https://example.org/a"]
    assert done.err == "perseid: Handle 12345/none does not exist\n"
    lines = b"12345/x\n\nnonsense\r\nhdl:12345/other\n"
    done = here("resolve - 12345/X --json", stdin=lines)
    assert done.code == 2
    assert [json.loads(line)["handle"] for line in done.out.splitlines()] == ["12345/x", "12345/other", "12345/x"]
    assert json.loads(done.err)["where"] == "line 3"
    assert here("resolve -", stdin=b"12345/x\n99/x\nnonsense\n").code == 3


def test_broken_alias_is_reported(here: Site) -> None:
    here.ok("create 12345/lost --value HS_ALIAS=12345/none")
    here.ok("create 12345/away --value HS_ALIAS=99/x")
    here.ok("create 12345/circle --value HS_ALIAS=12345/round")
    here.ok("create 12345/round --value HS_ALIAS=12345/circle")
    refused(here("resolve 12345/lost --follow"), "of 12345/none, which does not exist", code=3)
    refused(here("resolve 12345/away --follow"), "Ask the service that hosts 99", code=3)
    refused(here("resolve 12345/circle --follow"), "leads back to itself", code=3)
    refused(here("resolve 12345/none --follow"), "Handle 12345/none does not exist", code=3)


def test_s2_alias_of_itself_is_refused(here: Site) -> None:
    refused(here("create 12345/self --value HS_ALIAS=12345/Self"), "12345/self cannot be an alias of itself")
    refused(here("set 12345/other HS_ALIAS=12345/other"), "cannot be an alias of itself")
    refused(here("add 12345/other HS_ALIAS=12345/OTHER"), "cannot be an alias of itself")


def test_handle_of_a_prefix_that_starts_with_a_dot_is_not_found(here: Site) -> None:
    refused(here("resolve 0.NA/.7"), "Handle 0.NA/.7 does not exist", code=3)


def test_h9_too_long_handle_is_not_found(here: Site) -> None:
    for command in ("resolve", "history", "prove", "cite", "delete"):
        refused(here(f"{command} 12345/{'x' * 2_043}"), "at most 2,048 bytes", code=3)
    done = here(f"create 12345/{'x' * 2_043}")
    assert (done.code, "perseid name rules H9" in done.err) == (2, True)


def test_a1_authority_metadata_is_shown(demo: Site) -> None:
    assert demo.lines("resolve 102.100.272/2RDV0T0QH --authority") == [
        "created  2007-06-22T02:53:46Z",
        "updated  2007-08-10T04:23:11Z",
        "creator  hdl:102.100.272/0N8J991QH",
        "owner    hdl:102.100.pilin2/XYZZY  (not verified: it has no public record here)",
    ]
    assert demo.ok("resolve 102.100.272/2RDV0T0QH --authority --json").json == {
        "handle": "102.100.272/2RDV0T0QH",
        "required": True,
        "created": "2007-06-22T02:53:46Z",
        "updated": "2007-08-10T04:23:11Z",
        "creator": {"uri": "hdl:102.100.272/0N8J991QH", "verified": True},
        "owners": [{"uri": "hdl:102.100.pilin2/XYZZY", "verified": False}],
    }


def test_a3_removal_is_an_update(demo: Site) -> None:
    demo.ok("remove 102.100.272/0N8J991QH 2")
    updated = demo.lines("resolve 102.100.272/0N8J991QH --authority")[1]
    assert re.fullmatch(r"updated  20[0-9-]+T[0-9:]+Z", updated)
    assert updated > "updated  2026"


def test_no_authority_metadata_if_the_policy_does_not_require_it(here: Site) -> None:
    done = here.ok("resolve 12345/x --authority")
    assert (done.out, "does not require authority metadata" in done.err) == ("", True)
    assert here.ok("resolve 12345/x --authority --json").json["required"] is False
    assert here("resolve 12345/x --authority --at 1").code == 2


def test_json_escapes_what_a_terminal_obeys(here: Site) -> None:
    text = "a\u202eb\u2028c"
    here.ok("create 12345/odd --value", f"DESC={text}")
    done = here.ok("resolve 12345/odd --type DESC --json")
    assert "a\\u202eb\\u2028c" in done.out
    assert done.json["values"][0]["data"]["value"] == text

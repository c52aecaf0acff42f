"""`perseid explain`: the result and exit code of a command that is not executed."""

from pathlib import Path

import pytest

from tests.cli.installation import Site, refused, site

WORK = "102.100.272/8RBZF0DQH"


@pytest.fixture
def demo(tmp_path: Path) -> Site:
    return site(tmp_path, "--demo")


@pytest.mark.parametrize(
    "command",
    [
        "create 102.100.272/BCDFGHJKH --url https://example.org/",
        f"set {WORK} URL=https://example.org/",
        f"add {WORK} URL=https://example.org/",
        f"remove {WORK} 2",
        "delete 102.100.TYPE/CREATOR",
        "mint 102.100.272",
        f"publish {WORK}",
        f"unpublish {WORK}",
        f"tombstone {WORK}",
        f"transfer {WORK} --to 300:0.NA/0.NA",
    ],
)
def test_allowed_command_is_explained_without_changes(demo: Site, command: str) -> None:
    before = demo.ok("list 102.100.272 --json").out
    done = demo.ok(f"explain {command}")
    assert done.out.startswith("allowed: ")
    assert done.err == ""
    found = demo.ok(f"explain {command} --json").json
    assert found["allowed"] is True
    assert (found["advice"], found["rule"], found["code"]) == (None, None, None)
    assert demo.ok("list 102.100.272 --json").out == before


def test_changes_are_not_allowed_while_the_service_is_read_only(demo: Site) -> None:
    demo.ok("read-only on --reason 'Moving to another disk'")
    for command in ("mint 102.100.272", f"set {WORK} URL=https://example.org/"):
        real, explained = demo(command), demo(f"explain {command}")
        reason, *advice = explained.out.removeprefix("refused: ").splitlines()
        first, *others = real.err.splitlines()
        assert (explained.code, reason, advice) == (real.code, f"{first[9:]}; nothing was changed", others)
        assert "Moving to another disk" in reason
        found = demo(f"explain {command} --json").json
        assert (found["allowed"], found["reason"]) == (False, reason)
    refused(demo(f"delete {WORK}"), 'deletion = "tombstone"')
    demo.ok("read-only off")
    demo.ok("explain mint 102.100.272")


def test_warnings_of_the_change_are_explained(tmp_path: Path) -> None:
    free = site(tmp_path, "--prefix", "12345", "--profile", "free")
    change = "create 12345/a --url example.org/1"
    done = free.ok(f"explain {change}")
    assert done.err.startswith("Warning: Value 1 of type URL, 'example.org/1', is not an absolute URL")
    (warning,) = free.ok(f"explain {change} --json").json["warnings"]
    assert f"Warning: {warning['message']}. {warning['advice']}\n" == free.ok(change).err


@pytest.mark.parametrize(
    ("command", "code", "response", "words"),
    [
        ("create 102.100.272/foo --url https://example.org/", 4, 102, "PILIN alphabet"),
        (f"create {WORK} --url https://example.org/", 4, 101, "already exists"),
        (f"delete {WORK}", 4, 202, 'deletion = "tombstone"'),
        ("delete 102.100.272/BCDFGHJKH", 3, 100, "does not exist"),
        (f"remove {WORK} 77", 3, 200, "index 77"),
        ("mint 102.100.272 --as 300:99999/x", 4, 400, "who_may_mint"),
        (f"set {WORK} DESC=mine --as 300:99999/x", 4, 400, "MODIFY_VALUE"),
        ("mint 1..2", 2, 102, "prefix"),
    ],
)
def test_refused_command_is_explained_with_its_reason_and_exit_code(
    demo: Site, command: str, code: int, response: int, words: str
) -> None:
    done = demo(f"explain {command}")
    assert done.code == code
    assert done.err == ""
    assert done.out.startswith("refused: ")
    assert words in done.out
    found = demo(f"explain {command} --json")
    assert found.code == code
    assert found.json["allowed"] is False
    assert found.json["code"] == response
    if not command.startswith("mint"):
        assert demo(command).code == code

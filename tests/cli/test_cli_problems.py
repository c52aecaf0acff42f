"""Errors with `--json`: one problem on standard error, with the exit code."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from perseid.cli._errors import report_error
from perseid.ledger.errors import ClockError, CorruptView, LedgerError, ReadOnlyStore, StorageFull, TooBusy
from perseid.records.errors import InvalidData
from perseid.registry.results import CounterClosed
from tests.cli.installation import Site, call, site
from tests.cli.program import Done

WORK = "102.100.272/8RBZF0DQH"


@pytest.fixture
def demo(tmp_path: Path) -> Site:
    return site(tmp_path, "--demo")


def problem(done: Done, slug: str) -> Any:
    """Return the problem on standard error, if it has this type."""
    (line,) = done.err.splitlines()
    found = json.loads(line)
    assert (found["type"], found["exit_code"]) == (f"/docs/problems#{slug}", done.code), found
    return found


@pytest.mark.parametrize(
    ("command", "code", "slug", "response"),
    [
        ("create 102.100.272/foo --url https://example.org/", 4, "invalid-name", 102),
        (f"create {WORK} --url https://example.org/", 4, "already-exists", 101),
        (f"delete {WORK}", 4, "invalid-value", 202),
        ("delete 102.100.272/BCDFGHJKH", 3, "not-found", 100),
        ("mint 99999", 3, "prefix-not-hosted", 301),
        (f"set {WORK} DESC=mine --as 300:99999/x", 4, "permission-denied", 400),
        (f"resolve {WORK} --at 2999-12-31", 2, "invalid-query", 202),
        ("jobs resume none", 3, "not-found", 100),
    ],
)
def test_refusal_is_a_problem(demo: Site, command: str, code: int, slug: str, response: int) -> None:
    text, done = demo(command), demo(f"{command} --json")
    assert (text.code, done.code, done.out) == (code, code, "")
    found = problem(done, slug)
    assert found["code"] == response
    first, *more = text.err.splitlines()
    assert first == f"perseid: {found['detail']}"
    assert more == ([found["advice"]] if "advice" in found else [])


@pytest.mark.parametrize("command", ["resolve", "cite"])
def test_missing_handle_is_answered_with_similar_ones(demo: Site, command: str) -> None:
    swapped = "102.100.272/8RBZFD0QH"
    done = demo(f"{command} {swapped}")
    assert done.code == 3
    assert done.err.splitlines()[1] == f"Did you mean {WORK}? Two characters are swapped"
    found = problem(demo(f"{command} {swapped} --json"), "not-found")
    assert found["suggestions"] == [{"handle": WORK, "why": "two characters are swapped"}]
    assert (found["prefix"]["prefix"], found["prefix"]["status"]) == ("102.100.272", "hosted")


def test_advice_names_commands(demo: Site) -> None:
    found = problem(demo(f"delete {WORK} --json"), "invalid-value")
    assert found["advice"] == f"Create a tombstone instead: perseid tombstone {WORK} --reason TEXT"
    assert found["rule"] == 'deletion = "tombstone"'


def test_invalid_handle_is_a_problem_with_its_rule() -> None:
    found = problem(call("name", "parse", "x", "--json"), "invalid-name")
    assert (found["rule"], found["advice"]) == ("H1", "To read the rule: perseid name rules H1")
    found = problem(call("name", "parse", "https://id.example.org/10.1000/1", "--json"), "invalid-name")
    assert "--resolver" in found["advice"]


def test_each_invalid_line_is_a_problem() -> None:
    done = call("name", "parse", "-", "--json", stdin=b"x\n10.1000/1\ny\n")
    assert (done.code, len(done.out.splitlines())) == (2, 1)
    assert [json.loads(line)["where"] for line in done.err.splitlines()] == ["line 1", "line 3"]


@pytest.mark.parametrize("command", ["mint", "mint 12345 --count many", "mint 12345 --zzz", "nothing"])
def test_wrong_usage_is_a_problem(command: str) -> None:
    done = call(*command.split(), "--json")
    assert (done.code, done.out) == (2, "")
    found = problem(done, "invalid-request")
    assert found["detail"]
    assert found["advice"] in ("See: perseid mint --help", "See: perseid --help")


WRONG_ARGUMENTS = (
    "backup",
    "check --nothing",
    "cite nonsense",
    "config extra",
    f"create {WORK} --value nonsense",
    "create nonsense --url https://example.org/",
    "delete 102.100.272",
    "explain create nonsense",
    "find",
    "find --host a/b",
    "find --owner x",
    "find --prefix a/b",
    f"history {WORK} --limit 0",
    "init --prefix a/b",
    "jobs frobnicate",
    "key rotate everything",
    f"link version {WORK} {WORK}",
    "list a/b",
    "log --since yesterday",
    "mint 12345.",
    "mint 102.100.272 --count many",
    "name parse nonsense",
    "namespace add a/b",
    "namespace derive 2000.01 a/b",
    f"prove {WORK} --at 99999",
    f"qr {WORK} -o code.gif",
    "rebuild everything",
    f"redact {WORK} 1 --seq 1",
    f"remove {WORK} x",
    "reserve 12345.",
    f"resolve {WORK} --at yesterday",
    "restore",
    "rewrite --url x --to y",
    f"set {WORK} nonsense",
    "serve --native-port many",
    "suffix pilin --at yesterday",
    "token create --scope everything --all-namespaces",
    f"tombstone {WORK}",
    f"transfer {WORK} --to me",
    "type add nonsense --definition x",
    "undo",
    "upgrade extra",
    "verify",
)
"""At least one for each command that takes arguments."""


def test_wrong_arguments_have_one_exit_code_and_style(demo: Site) -> None:
    for command in WRONG_ARGUMENTS:
        text, done = demo(command), demo(f"{command} --json")
        assert (text.code, text.out, done.code, done.out) == (2, "", 2, ""), (command, text, done)
        found = json.loads(done.err)
        assert found["exit_code"] == 2, command
        assert text.err.startswith(f"perseid: {found['detail']}"), command
        assert not found["detail"][0].islower(), command


def test_interrupted_command_is_a_problem(demo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        error = KeyboardInterrupt()
        error.add_note("Nothing was minted")
        raise error

    monkeypatch.setattr("perseid.registry.registry.Registry.do", interrupt)
    found = problem(demo("mint 102.100.272 --json"), "command-failed")
    assert (found["detail"], found["exit_code"]) == ("Interrupted. Nothing was minted", 130)
    assert demo("mint 102.100.272").err == "perseid: Interrupted\nNothing was minted\n"


def test_missing_installation_is_a_problem(tmp_path: Path) -> None:
    done = call("list", "12345", "-d", str(tmp_path), "--json")
    assert "perseid init" in problem(done, "command-failed")["detail"]


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (TooBusy("busy"), "busy"),
        (ReadOnlyStore("read-only"), "read-only"),
        (StorageFull("full"), "storage-full"),
        (ClockError("wrong"), "wrong-clock"),
        (CounterClosed("102.100.272"), "counter-closed"),
        (CorruptView("a view is corrupt", "records"), "command-failed"),
        (LedgerError("failed"), "command-failed"),
        (InvalidData("invalid"), "invalid-value"),
        (OSError(28, "No space left on device"), "command-failed"),
    ],
)
def test_failure_is_a_problem(demo: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, slug: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("perseid.registry.registry.Registry.do", fail)
    error.add_note("Nothing was minted")
    found = problem(demo("mint 102.100.272 --json"), slug)
    assert found["detail"].endswith(". Nothing was minted")
    assert found["exit_code"] == 1


def test_full_disk_names_the_file_and_the_fix(demo: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("perseid.cli.backup._write", fail)
    done = demo(f"backup {tmp_path / 'full'}")
    assert done.code == 1
    assert (
        done.err == f"perseid: {tmp_path / 'full'}: No space left on device\nFree disk space, then repeat the command\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == [demo.directory.name], "nothing is left behind"


def test_success_and_help_are_unchanged(demo: Site) -> None:
    assert demo.ok(f"resolve {WORK} --json").err == ""
    assert demo.ok("mint --json --help").out


def test_incomplete_command_is_a_problem(demo: Site, tmp_path: Path) -> None:
    found = problem(demo("transfer 102.100.272 --to 200:0.NA/102.100.272 --json", stdin=b"yes\n"), "command-failed")
    assert found["detail"].endswith("to 200:0.NA/102.100.272. Confirmation required, but there is no terminal")
    assert (found["advice"], found["exit_code"]) == ("To confirm: --yes", 1)
    proof = tmp_path / "proof"
    demo.ok(f"prove {WORK} -o {proof}")
    key = json.loads(demo.lines("key list --json")[-1])["key"]
    proof.write_bytes(proof.read_bytes().replace(b"8RBZF0DQH", b"8RBZF0DQ0"))
    failed = problem(call("verify", str(proof), "--key", key, "--json"), "command-failed")
    assert failed["detail"].startswith("The proof is not valid: ")


def test_bytes_that_are_not_utf8_are_escaped(demo: Site, tmp_path: Path) -> None:
    found = problem(demo("backup", f"{tmp_path}/none\udcff/x", "--json"), "command-failed")
    assert "none\\udcff/" in found["detail"]
    wrong = problem(demo("resolve", WORK, "--x\udcff", "--json"), "invalid-request")
    assert "--x\\udcff" in wrong["detail"]


def test_empty_time_is_not_now(demo: Site) -> None:
    for command in ("resolve", "cite"):
        found = problem(demo(command, WORK, "--at", "", "--json"), "invalid-query")
        assert found["detail"].startswith("Invalid time")


def test_h4_argument_that_is_not_utf8_is_refused(demo: Site) -> None:
    for command, argument in (
        ("namespace show 1\udcff", "PREFIX"),
        ("list 1\udcff", "PREFIX"),
        ("resolve 1\udcff", "HANDLE..."),
        ("create 1\udcff", "HANDLE"),
        (f"add {WORK} 1\udcff=x", "[INDEX:]TYPE=DATA..."),
        (f"create {WORK} --url 1\udcff", "URL"),
        (f"tombstone {WORK} --reason 1\udcff", "TEXT"),
    ):
        found = problem(demo(*command.split(), "--json"), "invalid-name")
        assert found["detail"] == f"At character 2: byte 0xFF of {argument} is not valid UTF-8"
        assert found["rule"] == "H4"


def test_missing_package_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")
    assert report_error(missing) == 1
    assert "pip install 'perseid[server]'" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):  # a bug
        report_error(ModuleNotFoundError("No module named 'perseid.x'", name="perseid.x"))

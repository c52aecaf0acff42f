"""The help of every command that uses an installation is complete and readable, and its examples work."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from perseid.cli import app
from perseid.cli._commands import LazyCommand
from tests.cli.installation import Site, call, examples, site


def walk(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Every command with its words, and whether it is a group."""
    if isinstance(command, TyperGroup):
        if path:
            yield path, True
        for name, child in command.commands.items():
            if not isinstance(child, LazyCommand):
                yield from walk(child, (*path, name))
            elif child.module != "names":  # see test_cli_usage.py
                yield from walk(child.load(), (*path, name))
    else:
        yield path, False


COMMANDS = list(walk(typer.main.get_command(app)))
OFFLINE = {("bench",), ("key", "generate"), ("login",), ("logout",)}  # and the name commands; they need no installation
LEAVES = [path for path, is_group in COMMANDS if not is_group]


def words(path: tuple[str, ...]) -> str:
    return " ".join(path)


@pytest.mark.parametrize("path", LEAVES, ids=words)
def test_help_has_usage_an_example_and_json(path: tuple[str, ...]) -> None:
    done = call(*path, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: perseid {words(path)} " in done.out
    assert "--json" in done.out
    assert ("--directory" in done.out) is (path not in OFFLINE)
    shown = re.split(r"^Examples?:", done.out, flags=re.MULTILINE)[1]
    assert re.search(rf"^  perseid {words(path)}\b", shown, re.MULTILINE)


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=words)
def test_help_has_no_type_names_and_a_standard_usage_line(path: tuple[str, ...]) -> None:
    shown = call(*path, "--help").out
    assert "<bool>" not in shown
    assert "{" not in re.sub(r"\{prefix\}", "", shown)
    assert re.search(r"^Usage: perseid [a-z -]+ \[OPTIONS\]", shown, re.MULTILINE)
    assert not re.search(r"\.\.\.[\]}]*\.\.\.", shown), "dots once for an argument that repeats"
    assert not re.search(r"\[\[[^\]]*\][.…]*\]", shown), "brackets once for an optional argument"


# `serve` replaces this process (tests/server/processes runs its examples); `jobs resume` and `jobs cancel` need an
# interrupted job; `edit` needs an editor and a terminal; `login` and `logout` need a server (test_cli_remote.py), and
# `migrate` another Handle server (tests/bulk); `import` needs files (test_cli_import.py); `node` needs a PostgreSQL
# database (test_cli_nodes.py), and `site` other installations (test_cli_sites.py); `bench` takes long
# (test_cli_bench.py).
NOT_RUN = [("login",), ("logout",), ("serve",), ("jobs", "resume"), ("jobs", "cancel"), ("edit",)]
NOT_RUN += [("import",), ("migrate", "copy"), ("migrate", "compare"), ("migrate", "keys")]
NOT_RUN += [("node", "export"), ("node", "join"), ("site", "add"), ("site", "join"), ("site", "misplaced"), ("bench",)]


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in NOT_RUN], ids=words)
def test_examples_in_help_work(path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the examples in order, next to an installation with demonstration data."""
    site(tmp_path, "--demo")
    monkeypatch.chdir(tmp_path)
    found = examples(*path)
    assert found
    for example in found:
        done = call(*shlex.split(example))
        assert done.code == 0, (example, done)
        assert done.out, example
        if "--json" in shlex.split(example):
            assert [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.parametrize("path", [path for path, is_group in COMMANDS if is_group], ids=words)
def test_group_without_command_is_wrong_usage_and_shows_its_help(path: tuple[str, ...]) -> None:
    done = call(*path)
    assert done.code == 2
    assert done.err.lstrip().startswith(f"Usage: perseid {words(path)}".rstrip())
    assert done.err.count("\n") > 5, "it is not one long line"


def test_installation_is_selected_by_option_variable_or_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation: Site = site(tmp_path, "--demo")
    monkeypatch.chdir(tmp_path)
    expected = installation.ok("namespace list").out
    assert call("namespace", "list").out == expected
    assert call("namespace", "list", "-d", str(installation.directory)).out == expected
    assert (
        call("namespace", "list", "--directory", str(installation.directory), environ={"PERSEID_DIR": "/bogus"}).out
        == expected
    )


@pytest.mark.parametrize("command", ["list 12345", "resolve 12345/x", "config", "upgrade", "namespace list"])
def test_missing_installation_is_reported_with_the_command_to_create_it(command: str, tmp_path: Path) -> None:
    done = call(*command.split(), "-d", str(tmp_path / "none"))
    assert (done.code, done.out) == (1, "")
    other = "name another directory with -d DIR or PERSEID_DIR"
    create = f"create one with: perseid init {tmp_path}/none"
    assert done.err == f"perseid: No installation in {tmp_path}/none; {other}, or {create}\n"

"""Commands load only the modules that they need, and the table of lazy commands is correct."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from perseid.cli import app
from perseid.cli._command_table import LAZY_COMMANDS, SYNONYMS
from perseid.cli._commands import LazyCommand
from tests.cli.installation import call, site
from tests.cli.program import ENVIRON, run

HEAVY = (
    "sqlalchemy",
    "alembic",
    "lmdb",
    "perseid.ledger",
    "perseid.registry",
    "perseid.records",
    "cryptography",
    "asyncio",
    "pydantic",
    "rich",
)

SCRIPT = """
import sys
from perseid.cli import main
sys.argv = ["perseid", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def loaded_by(words: str) -> list[str]:
    """The modules that a command loads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words.split()],
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stderr.splitlines()[-1].split()


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--help",
        "name parse 10.1/a",
        "name parse nonsense",
        "name rules",
        "suffix pilin",
        "suffix cordra --json",
        "name --help",
        "bogus",
    ],
)
def test_commands_without_an_installation_load_no_heavy_modules(words: str) -> None:
    loaded = loaded_by(words)
    assert "perseid.cli" in loaded
    assert [name for name in loaded if name.split(".")[0] in HEAVY or ".".join(name.split(".")[:2]) in HEAVY] == []


def test_serve_loads_no_ledger() -> None:
    loaded = loaded_by("serve --help")
    assert "perseid.cli.serve" in loaded
    assert {"sqlalchemy", "lmdb"}.isdisjoint(loaded)
    light = {"perseid.ledger.errors", "perseid.ledger.store", "perseid.ledger.store.directory"}
    assert {name for name in loaded if name.startswith("perseid.ledger.")} <= light


def test_sqlite_ledger_loads_no_postgresql_modules(tmp_path: Path) -> None:
    loaded = loaded_by(f"list 102.100.272 -d {site(tmp_path, '--demo').directory}")
    assert "sqlalchemy.dialects.sqlite" in loaded
    assert {"sqlalchemy.dialects.postgresql", "psycopg"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    ("name", "module"),
    [(name, module) for commands in LAZY_COMMANDS.values() for name, (module, _) in commands.items()],
)
def test_lazy_command_exists_in_its_module(name: str, module: str) -> None:
    commands = import_module(f"perseid.cli.{module}").commands
    assert callable(commands[name]) or isinstance(commands[name], typer.Typer)
    expected = {other for table in LAZY_COMMANDS.values() for other, (source, _) in table.items() if source == module}
    assert set(commands) == expected


def test_every_summary_is_one_sentence() -> None:
    group = typer.main.get_command(app)
    summaries = [command for command in group.commands.values() if isinstance(command, LazyCommand)]  # type: ignore[attr-defined]
    assert len(summaries) == sum(map(len, LAZY_COMMANDS.values()))
    for summary in summaries:
        assert summary.help is not None
        assert summary.help.endswith(".")
        assert len(summary.help) < 80


def test_help_shows_the_commands_under_headings() -> None:
    shown = call("--help").out
    positions = [shown.index(f"\n{panel}:\n") for panel in LAZY_COMMANDS]
    assert positions == sorted(positions)
    for commands in LAZY_COMMANDS.values():
        for name, (_, text) in commands.items():
            assert f"\n  {name} " in shown
            assert text.split(":")[0][:30] in shown


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("resolv 10.1/a", "Did you mean perseid resolve?"),
        ("creat 10.1/a", "Did you mean perseid create?"),
        ("search", "Did you mean perseid find?"),
        ("get 10.1/a", "Did you mean perseid resolve?"),
        ("rm 10.1/a", "Did you mean perseid delete or perseid remove or perseid revoke?"),
        ("permissions 10.1/a", "Did you mean perseid access?"),
        ("load table.csv", "Did you mean perseid import?"),
        ("namespace ls", "Did you mean perseid namespace list?"),
        ("token new", "Did you mean perseid token create?"),
        ("mint 12345 --cnt 3", "Did you mean --count or --note?"),
    ],
)
def test_wrong_word_is_answered_with_what_was_meant(words: str, line: str) -> None:
    done = call(*words.split())
    first, *rest = done.err.splitlines()
    assert (done.code, done.out, rest[0]) == (2, "", line)
    assert first.startswith("perseid: No such ")
    assert rest[1].startswith("Usage: perseid ")
    assert rest[2].startswith("See: perseid ")


def test_synonyms_lead_to_commands() -> None:
    """Each suggestion exists, at the top or in a group; a word that is a command is never corrected."""
    names = {name for commands in LAZY_COMMANDS.values() for name in commands}
    for word, suggestions in SYNONYMS.items():
        assert all(each.split()[0] in names | {"show", "add", "policy", "revoke", "cancel"} for each in suggestions), (
            word
        )


@pytest.mark.parametrize("words", ["", "mint", "namespace add"])
def test_help_is_a_command(words: str) -> None:
    assert call("help", *words.split()).out == call(*words.split(), "--help").out != ""
    assert call("help", "nothing").code == 2


def test_options_of_a_lazy_command_are_completed() -> None:
    environ = {"_PERSEID_COMPLETE": "complete_bash", "COMP_WORDS": "perseid resolve --pri", "COMP_CWORD": "2"}
    assert run(environ=environ).out.split() == ["--private"]


def test_error_of_a_file_keeps_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    errors = import_module("perseid.cli._errors")
    assert errors.report_error(FileNotFoundError(2, "No such file or directory", "missing.pem")) == 1
    print("later", flush=True)
    assert capfd.readouterr() == ("later\n", "perseid: missing.pem: No such file or directory\n")


def test_unexpected_exception_is_not_reported_as_an_error() -> None:
    errors = import_module("perseid.cli._errors")
    with pytest.raises(ZeroDivisionError):
        errors.report_error(ZeroDivisionError())

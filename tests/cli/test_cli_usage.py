"""Rules for every command: help with examples, completion, exit codes, and output streams."""

import re
import shlex
from collections.abc import Iterator
from importlib import metadata

import pytest
import typer
from typer.core import TyperGroup

from perseid.cli import app
from perseid.cli._command_table import LAZY_COMMANDS
from perseid.cli._commands import LazyCommand
from tests.cli.program import finish, run


def walk(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Every command with its words, and whether it is a group.

    Other commands need an installation: see test_cli_help.py.
    """
    if isinstance(command, LazyCommand):
        if command.module == "names":
            yield from walk(command.load(), path)
    elif isinstance(command, TyperGroup):
        yield path, True
        for name, child in command.commands.items():
            yield from walk(child, (*path, name))
    else:
        yield path, False


COMMANDS = list(walk(typer.main.get_command(app)))
LEAVES = [path for path, is_group in COMMANDS if not is_group]
GROUPS = [path for path, is_group in COMMANDS if is_group]


def words(path: tuple[str, ...]) -> str:
    return " ".join(path) or "perseid"


def test_walk_finds_the_commands() -> None:
    assert set(LEAVES) >= {
        ("name", "parse"),
        ("name", "convert"),
        ("name", "rules"),
        ("suffix", "pilin"),
        ("suffix", "cordra"),
    }
    assert GROUPS[0] == ()


def test_version() -> None:
    done = run("--version")
    assert (done.code, done.out, done.err) == (0, f"perseid {metadata.version('perseid')}\n", "")


@pytest.mark.parametrize("path", LEAVES, ids=words)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_of_a_command_has_usage_an_example_and_json(path: tuple[str, ...], option: str) -> None:
    done = run(*path, option)
    assert (done.code, done.err) == (0, "")
    assert f"Usage: perseid {' '.join(path)} " in done.out
    assert "--json" in done.out
    assert re.search(rf"^Examples?:\s+perseid {' '.join(path)}\b", done.out, re.MULTILINE)


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=words)
def test_help_has_no_type_names_and_a_standard_usage_line(path: tuple[str, ...]) -> None:
    shown = run(*path, "--help").out
    assert "<bool>" not in shown
    assert "{" not in shown
    (usage,) = re.findall(r"^Usage: perseid (.+?) *$", shown, re.MULTILINE)
    assert usage.removeprefix(" ".join(path)).strip() in {
        "[OPTIONS]",
        "[OPTIONS] TEXT",
        "[OPTIONS] [RULE]",
        "[OPTIONS] COMMAND [ARGS]...",
    }


@pytest.mark.parametrize("path", LEAVES, ids=words)
def test_examples_in_help_work(path: tuple[str, ...]) -> None:
    shown = run(*path, "--help", environ={"COLUMNS": "300"}).out
    examples = re.findall(r"^  perseid (.+)$", shown.partition("Example")[2], re.MULTILINE)
    assert examples
    for example in examples:
        done = run(*shlex.split(example))
        assert (done.code, done.err) == (0, ""), example
        assert done.out


@pytest.mark.parametrize("path", GROUPS, ids=words)
def test_help_of_a_group_lists_its_commands(path: tuple[str, ...]) -> None:
    done = run(*path, "--help")
    assert (done.code, done.err) == (0, "")
    for child in (other[-1] for other, _ in COMMANDS if other and other[:-1] == path):
        assert re.search(rf"^  {child} ", done.out, re.MULTILINE)


def test_help_of_the_program_mentions_json_and_examples() -> None:
    shown = run("--help").out
    assert "--json" in shown
    assert "perseid COMMAND --help" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("name", "bogus"),
        ("--bogus",),
        ("name", "parse"),
        ("name", "parse", "10.1/a", "10.1/b"),
        ("name", "parse", "10.1/a", "--bogus"),
        ("name", "parse", "10.1/a", "--resolver", "example.org"),
        ("name", "parse", "10.1/a", "--resolver", "http://example.org/a/b"),
        ("name", "convert", "10.1/a"),
        ("name", "convert", "10.1/a", "--to", "urn"),
        ("suffix", "pilin", "D7J1G0DQH"),
    ],
    ids=" ".join,
)
def test_wrong_usage_has_its_own_exit_code_and_prints_no_data(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Usage: perseid" in done.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("name", "parse", "10.1/a"), 0),
        (("name", "parse", "10.1"), 2),
        (("suffix", "pilin", "--decode", "O7J1G0DQH"), 2),
        (("name", "parse"), 2),
        (("name", "rules", "Z9"), 3),
    ],
)
def test_data_goes_to_standard_output_and_everything_else_to_standard_error(
    arguments: tuple[str, ...], code: int
) -> None:
    for option in ((), ("--json",)):
        done = run(*arguments, *option)
        assert done.code == code
        assert (done.out == "") == (code != 0)
        assert (done.err == "") == (code == 0)


def test_bash_completion_works() -> None:
    script = """
        eval "$(perseid --show-completion)"
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _perseid_completion perseid
            echo "${COMPREPLY[@]}"
        }
        complete -p perseid
        complete_words perseid ""
        complete_words perseid name ""
        complete_words perseid name c
        complete_words perseid name convert 10.1/a --to h
        complete_words perseid suffix cordra --js
    """
    done = finish(["bash", "--norc", "-c", script])
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "complete -o default -F _perseid_completion perseid",
        " ".join(name for commands in LAZY_COMMANDS.values() for name in commands),
        "parse convert rules",
        "convert",
        "handle host http",
        "--json",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_exists_for_other_shells(shell: str) -> None:
    done = finish(
        ["perseid", "--show-completion", shell], environ={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )
    assert (done.code, done.err) == (0, "")
    assert f"_PERSEID_COMPLETE=complete_{shell}" in done.out


def test_words_that_no_argument_takes_are_advised() -> None:
    for arguments, advice in (
        ("create 12345/a b --url x", "Usage: perseid create [OPTIONS] HANDLE"),
        ("create 12345/a TITLE=Foo", "Did you mean --value TITLE=Foo?"),
        ("create 12345/a TITLE=Foo Bar 2:EMAIL=a@b.c", "Did you mean --value 'TITLE=Foo Bar' --value 2:EMAIL=a@b.c?"),
        ("create 12345/a URL http://a/?b=c", "Did you mean --url 'http://a/?b=c'?"),
        ("set 12345/a URL http://a/?b=c", "Did you mean URL='http://a/?b=c'?"),
        ("set 12345/a URL library.org", "Did you mean URL=library.org?"),
        ("mint 12345 3", "Did you mean --count 3?"),
        ("log 12345/a", "Did you mean perseid history 12345/a?"),
        ("find url library.org", "Did you mean --host library.org?"),
        ("find url http://a/b", "Did you mean --url http://a/b?"),
        ("mint 12345 map", "Usage: perseid mint [OPTIONS] PREFIX"),
        ("remove 12345/a TITEL", "The index is the first column of: perseid resolve 12345/a"),
        ("init --profile pillin x", "Did you mean pilin?"),
        ("init --profile zzz x", "Usage: perseid init [OPTIONS] [DIR]"),
        ("find old coast", "Did you mean perseid find --words 'old coast'?"),
    ):
        done = run(*arguments.split())
        assert done.code == 2
        assert done.err.splitlines()[1] == advice
    assert run("config", "a").err.splitlines()[1] == "Usage: perseid config [OPTIONS]"

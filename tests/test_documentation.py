"""What the documents show is what happens: their commands and their Python are executed, their rules compared.

A ```console block holds commands (lines that begin with "$ ") and what they print, both streams, as on a terminal. A
line "..." stands for any number of lines. Commands run in an empty folder. The ```python blocks of a document are one
session from top to bottom: those with prompts are doctests, the others are executed.

Commands of the README, and whatever needs a shell, are given to a shell. Elsewhere a command that is nothing but
`perseid` runs in this process, with the same outcome: to start a program takes most of the time of hundreds of them.
"""

import doctest
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perseid.cli.names import RULES_WITHOUT_ERRORS
from perseid.names.errors import load_rules
from tests.cli import program
from tests.cli.installation import call

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES_OF_THE_API = [ROOT / "docs" / "guides" / name for name in ("http-api.md", "http-api-history.md")]
"""Their Python is executed where it is looked at what they ask a server for: tests/server/http/v1/test_v1_guides.py."""
EXECUTED = {"console", "python"}
ALLOWED = EXECUTED | {"abnf", "sh", "text", "toml"}
ENVIRON = {**program.ENVIRON, "COLUMNS": "80"}
INTO_A_FILE = " > made 2>&1"
"""How documents put aside what they are not about."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it begins, what its fence says, what it holds."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path, text: str | None = None) -> Iterator[Block]:
    """The fenced blocks of a document."""
    opened: int | None = None
    language, held = "", []
    for number, line in enumerate((document.read_text() if text is None else text).splitlines(), 1):
        fence = re.match(r"\s*(```+|~~~+)(.*)", line)
        if fence is None:
            held.append(line)
        elif opened is None:
            opened, language, held = number, fence[2].strip(), []
        else:
            yield Block(document, opened, language, "".join(f"{each}\n" for each in held))
            opened = None
    assert opened is None, f"{document}:{opened}: the block is not closed"


ALL = [block for document in DOCUMENTS for block in blocks(document)]
CONSOLE = [block for block in ALL if block.language == "console"]
PYTHON = {block.document: [other for other in ALL if other.document == block.document and other.language == "python"]
          for block in ALL if block.language == "python"}  # fmt: skip


def session(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it is said to print."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert first == "", f"{block}: begins with output"
    assert parts, f"{block}: no command"
    commands = (part.partition("\n") for part in parts)
    return [(command, output) for command, _, output in commands]


def agrees(printed: str, expected: str) -> bool:
    """Whether the output is what the document says, "..." lines standing for any lines."""
    pattern = "".join(
        "(?:.*\n)*" if line == "...\n" else re.escape(line) for line in expected.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, printed) is not None


def arguments_of(command: str) -> list[str] | None:
    """The arguments of a command that is nothing but `perseid`; None for what only a shell understands."""
    quoted = r"""'[^']*'|"[^"$`\\]*\""""
    usual = r"[\w\s./:@%=,+-]"
    if not re.fullmatch(f"perseid (?:{usual}|{quoted})*", command):
        return None
    return shlex.split(command)[1:]


def in_this_process(command: str) -> str | None:
    """What a command prints; None if it needs a shell."""
    arguments = arguments_of(command.removesuffix(INTO_A_FILE))
    if arguments is None:
        return None
    shown = call(*arguments, environ={"COLUMNS": ENVIRON["COLUMNS"]}).shown
    if not command.endswith(INTO_A_FILE):
        return shown
    Path("made").write_text(shown)
    return ""


def by_a_shell(command: str) -> str:
    """What a shell prints that is given a command, in the current folder."""
    return subprocess.run(
        ["sh", "-c", command],
        env=ENVIRON,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        timeout=30,
    ).stdout


@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_a_command_prints_what_the_document_says(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, expected in session(block):
        printed = None if block.document == README else in_this_process(command)
        if printed is None:
            printed = by_a_shell(command)
        assert agrees(printed, expected), f"{block}: $ {command}\n{printed}"


@pytest.mark.parametrize(
    "document", [each for each in PYTHON if each not in GUIDES_OF_THE_API], ids=lambda each: str(each.relative_to(ROOT))
)
def test_python_does_what_the_document_says(document: Path) -> None:
    execute(document)


def execute(document: Path) -> None:
    """Execute the Python of a document, and see that it does what is said there."""
    names: dict[str, object] = {"__name__": "__main__"}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    for block in PYTHON[document]:
        if ">>> " in block.text:
            test = parser.get_doctest(block.text, names, str(block), str(document), block.line)
            report: list[str] = []
            outcome = runner.run(test, out=report.append, clear_globs=False)
            assert outcome.attempted > 0
            assert outcome.failed == 0, "".join(report)
            names = test.globs
        else:
            exec(compile(block.text, str(block), "exec"), names)


def test_the_readme_shows_commands_and_python() -> None:
    for language in EXECUTED:
        assert any(block.document.name == "README.md" and block.language == language for block in ALL), language


@pytest.mark.parametrize("block", ALL, ids=str)
def test_every_fence_is_known(block: Block) -> None:
    """A block that is meant to be executed must not escape by a slip in its fence."""
    assert block.language in ALLOWED


def test_a_prompt_outside_a_block_would_go_unseen_and_is_refused() -> None:
    for document in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"^\s*(\$ |>>> )", prose, re.MULTILINE), document


def test_only_what_needs_no_shell_is_done_without_one() -> None:
    assert arguments_of("perseid find --url 'https://a.example/*' \"a b\" c") == [
        *("find", "--url", "https://a.example/*", "a b", "c")
    ]
    for command in (
        "ls",
        "perseid list | wc",
        "perseid list > a",
        "perseid a*",
        'perseid "$x"',
        "perseid `x`",
        "perseid ~",
    ):
        assert arguments_of(command) is None, command


def test_the_checks_notice_what_they_are_for() -> None:
    document = ROOT / "README.md"
    (block,) = blocks(document, "```console\n$ a\nb\n$ c\n```\n")
    assert session(block) == [("a", "b\n"), ("c", "")]
    (unknown,) = blocks(document, "text\n\n```shell\nls\n```\n")
    assert (unknown.language, unknown.line) == ("shell", 3)
    assert unknown.language not in ALLOWED
    with pytest.raises(AssertionError, match="not closed"):
        list(blocks(document, "```console\n$ a\n"))
    assert agrees("a\nb\nc\n", "a\n...\nc\n")
    assert agrees("a.c\n", "a.c\n")
    assert not agrees("abc\n", "a.c\n")
    assert not agrees("a\nb\n", "a\n")
    assert not agrees("a", "a\n")


@pytest.fixture(scope="module")
def reference() -> str:
    return (ROOT / "docs" / "reference" / "names.md").read_text()


def test_the_reference_explains_the_rules_that_the_program_names(reference: str) -> None:
    explained = re.findall(r"^\| ([A-Z]\d+) \| ([^|]+) \| [^|]+ \|$", reference, re.MULTILINE)
    assert explained == [(rule, about["title"]) for rule, about in load_rules().items()]


def test_the_reference_explains_the_rules_that_no_error_names(reference: str) -> None:
    explained = re.findall(r"^\| ([A-Z]\d+) \| [^|]+ \|$", reference, re.MULTILINE)
    assert explained == list(RULES_WITHOUT_ERRORS)


def test_the_reference_names_no_rule_that_the_program_does_not_know(reference: str) -> None:
    outside_blocks = re.sub(r"^```.*?^```$", "", reference, flags=re.MULTILINE | re.DOTALL)
    without_code = re.sub(r"`[^`\n]*`", "", outside_blocks)
    assert set(re.findall(r"\b[HPCU]\d\b", without_code)) == {*load_rules(), *RULES_WITHOUT_ERRORS}

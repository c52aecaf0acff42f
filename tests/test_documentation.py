"""The commands and the Python of the documents are executed and compared with the output that they show.

A ```console block contains commands (lines that begin with "$ ") and their output, both streams. A line "..." matches
any number of lines. Each block runs in an empty folder; the blocks of the README run one after the other in one folder,
as a reader types them. The ```python blocks of a document are one session: those with prompts are doctests.

Commands of the README, and those that need a shell, run in a shell. Other commands run in this process, because
starting hundreds of programs would take most of the time.
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
"""Their Python needs a server; tests/server/http/v1/test_v1_guides.py executes it."""
EXECUTED = {"console", "python"}
ALLOWED = EXECUTED | {"abnf", "sh", "text", "toml"}
ENVIRON = {**program.ENVIRON, "COLUMNS": "80"}
INTO_A_FILE = " > made 2>&1"
"""How documents hide output that does not matter."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path, text: str | None = None) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    opened: int | None = None
    language, lines = "", []
    for number, line in enumerate((document.read_text() if text is None else text).splitlines(), 1):
        fence = re.match(r"\s*(```+|~~~+)(.*)", line)
        if fence is None:
            lines.append(line)
        elif opened is None:
            opened, language, lines = number, fence[2].strip(), []
        else:
            yield Block(document, opened, language, "".join(f"{each}\n" for each in lines))
            opened = None
    assert opened is None, f"{document}:{opened}: the block is not closed"


ALL = [block for document in DOCUMENTS for block in blocks(document)]
CONSOLE = [block for block in ALL if block.language == "console"]
SESSIONS = [
    [block for block in CONSOLE if block.document == README],
    *([block] for block in CONSOLE if block.document != README),
]
"""Console blocks that run one after the other in one folder."""
PYTHON = {block.document: [other for other in ALL if other.document == block.document and other.language == "python"]
          for block in ALL if block.language == "python"}  # fmt: skip


def session(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a console block with their documented output."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert first == "", f"{block}: begins with output"
    assert parts, f"{block}: no command"
    commands = (part.partition("\n") for part in parts)
    return [(command, output) for command, _, output in commands]


def agrees(printed: str, expected: str) -> bool:
    """Whether the output matches; a line "..." matches any lines."""
    pattern = "".join(
        "(?:.*\n)*" if line == "...\n" else re.escape(line) for line in expected.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, printed) is not None


def arguments_of(command: str) -> list[str] | None:
    """Return the arguments of a plain `perseid` command; None if it needs a shell."""
    quoted = r"""'[^']*'|"[^"$`\\]*\""""
    usual = r"[\w\s./:@%=,+-]"
    if not re.fullmatch(f"perseid (?:{usual}|{quoted})*", command):
        return None
    return shlex.split(command)[1:]


def in_this_process(command: str) -> str | None:
    """Run a command and return its output; None if it needs a shell."""
    arguments = arguments_of(command.removesuffix(INTO_A_FILE))
    if arguments is None:
        return None
    shown = call(*arguments, environ={"COLUMNS": ENVIRON["COLUMNS"]}).shown
    if not command.endswith(INTO_A_FILE):
        return shown
    Path("made").write_text(shown)
    return ""


def by_a_shell(command: str) -> str:
    """Run a command in a shell, in the current folder, and return its output."""
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


@pytest.mark.parametrize("blocks_of_session", SESSIONS, ids=lambda each: str(each[0]))
def test_command_prints_the_documented_output(
    blocks_of_session: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks_of_session:
        for command, expected in session(block):
            printed = None if block.document == README else in_this_process(command)
            if printed is None:
                printed = by_a_shell(command)
            assert agrees(printed, expected), f"{block}: $ {command}\n{printed}"


@pytest.mark.parametrize(
    "document", [each for each in PYTHON if each not in GUIDES_OF_THE_API], ids=lambda each: str(each.relative_to(ROOT))
)
def test_python_prints_the_documented_output(document: Path) -> None:
    execute(document)


def execute(document: Path) -> None:
    """Execute the Python of a document and compare its output."""
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


def test_readme_shows_commands_and_python() -> None:
    for language in EXECUTED:
        assert any(block.document.name == "README.md" and block.language == language for block in ALL), language


@pytest.mark.parametrize("block", ALL, ids=str)
def test_every_fence_has_a_known_language(block: Block) -> None:
    """A typo in a fence must not keep a block from being executed."""
    assert block.language in ALLOWED


def test_prompt_outside_a_block_is_refused() -> None:
    for document in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"^\s*(\$ |>>> )", prose, re.MULTILINE), document


def test_commands_that_need_a_shell_run_in_one() -> None:
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


def test_the_checks_find_differences() -> None:
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


def test_reference_explains_the_rules_of_errors(reference: str) -> None:
    explained = re.findall(r"^\| ([A-Z]\d+) \| ([^|]+) \| [^|]+ \|$", reference, re.MULTILINE)
    assert explained == [(rule, about["title"]) for rule, about in load_rules().items()]


def test_reference_explains_the_rules_without_errors(reference: str) -> None:
    explained = re.findall(r"^\| ([A-Z]\d+) \| [^|]+ \|$", reference, re.MULTILINE)
    assert explained == list(RULES_WITHOUT_ERRORS)


def test_reference_names_only_known_rules(reference: str) -> None:
    outside_blocks = re.sub(r"^```.*?^```$", "", reference, flags=re.MULTILINE | re.DOTALL)
    without_code = re.sub(r"`[^`\n]*`", "", outside_blocks)
    assert set(re.findall(r"\b[HPCU]\d\b", without_code)) == {*load_rules(), *RULES_WITHOUT_ERRORS}

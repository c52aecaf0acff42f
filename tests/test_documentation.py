"""The commands and the Python of the documents are executed and compared with the output that they show.

A ```console block contains commands (lines that begin with "$ ") and their output, both streams. A line "..." matches
any number of lines. The blocks of a document are typed from top to bottom into one shell, which starts in an empty
folder. The ```python blocks of a document are one session too: those with prompts are doctests.

Plain `perseid` commands run in this process, in the folder of that shell, because starting hundreds of programs would
take most of the time.
"""

import contextlib
import doctest
import re
import shlex
import subprocess
import tempfile
import threading
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
GUIDE_OF_SERVERS = ROOT / "docs" / "guides" / "administer-a-remote-server.md"
"""Its commands need a server; tests/interfaces/test_native_output.py executes them."""
GUIDE_OF_NODES = ROOT / "docs" / "guides" / "run-several-nodes.md"
"""Its commands need a PostgreSQL database and two servers; tests/server/test_nodes.py executes them."""
EXECUTED = {"console", "python"}
ALLOWED = EXECUTED | {"abnf", "sh", "text", "toml"}
ENVIRON = {**program.ENVIRON, "COLUMNS": "80"}
NOT_EXECUTED = {
    ("README.md", "make serve"): "serves at fixed ports until it is stopped",
    ("README.md", ". .venv/bin/activate"): "the tests run in an environment, with an installation of their own",
    ("backup.md", 'perseid backup - | age -r "$RECIPIENT" > "ledger-$(date +%F).age"'): "needs age and its keys",
    ("backup.md", "perseid restore --reopen 12345 --last 12345/TR-0417"): "see tests/cli/test_cli_backup.py",
    (
        "history-and-proofs.md",
        "perseid log --since 2026-11-15T00:00:00Z --follow --json | while read -r entry; do …; done",
    ): "runs until it is stopped",
    (
        "migrate-from-a-handle-server.md",
        "perseid migrate copy old.example.org:2641 --mirror --as 300:0.NA/12345 --key-file replpriv.bin --follow",
    ): "needs another server, and runs until it is stopped; see tests/bulk",
    ("migrate-from-a-handle-server.md", "perseid migrate keys svr_1"): "needs the files of another server",
    ("first-steps.md", "perseid serve"): "serves at fixed ports until it is stopped",
    ("use-from-python.md", "make wheel"): "installs dependencies; see tests/repository/test_wheel.py",
    ("statistics.md", "perseid statistics"): "the session below it runs the same commands",
    ("serving.md", "perseid init perseid-data"): "serves at fixed ports until it is stopped",
    ("serving.md", "curl --cacert perseid-data/keys/https.pem https://localhost:8000/healthz"): "needs that server",
    ("serving.md", "systemctl reload perseid"): "needs systemd",
    ("install-on-debian.md", "apt-get install python3-venv"): "changes the machine; see tests/repository/test_wheel.py",
    (
        "install-on-debian.md",
        "apt-get install gcc libc6-dev python3-dev liblmdb-dev",
    ): "changes the machine; see tests/repository/test_wheel.py",
    (
        "install-on-debian.md",
        "install -m 0644 systemd/perseid.sysusers /usr/lib/sysusers.d/perseid.conf",
    ): "changes the machine; see tests/repository/test_container.py",
    ("install-on-debian.md", "install -d /etc/perseid"): "changes the machine; see tests/repository/test_container.py",
    ("install-on-debian.md", "systemctl stop perseid"): "needs systemd; see tests/repository/test_container.py",
    ("install-on-debian.md", "systemctl stop 'perseid.*'"): "needs systemd; see tests/repository/test_container.py",
    ("run-in-a-container.md", "make wheel"): "needs a container engine; see tests/repository/test_container.py",
    (
        "run-in-a-container.md",
        "podman volume create perseid",
    ): "needs a container engine; see tests/repository/test_container.py",
    (
        "run-in-a-container.md",
        "podman run --detach --name perseid --restart always \\",
    ): "needs a container engine; see tests/repository/test_container.py",
    (
        "run-in-a-container.md",
        "podman exec perseid perseid backup - > perseid.backup",
    ): "needs a container engine; see tests/repository/test_container.py",
    (
        "time-travel.md",
        "curl -i -H 'Accept-Datetime: Sun, 15 Nov 2026 10:00:00 GMT' https://hdl.example.org/12345/x",
    ): "needs a public server",
    (
        "tokens.md",
        "perseid token create --scope mint --namespace 102.100.272 -o /run/catalog/token",
    ): "a folder of the catalog, and a public server",
}
"""Commands of the README and the guides that no test executes: the first line of their block, and the reason."""
ERROR = re.compile("^perseid: ", re.MULTILINE)
"""An error, which a line "..." must not hide."""
TIMEOUT = 120
"""Seconds that a command may take."""


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
CONSOLE = [
    block for block in ALL if block.language == "console" and block.document not in (GUIDE_OF_SERVERS, GUIDE_OF_NODES)
]
SESSIONS = {block.document: [other for other in CONSOLE if other.document == block.document] for block in CONSOLE}
"""The console blocks of each document, which one shell executes in order."""
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


_ARGUMENTS = r"""(?:[\w\s./:@%=,+-]|'[^']*'|"[^"$`\\]*")*"""
_PLAIN = re.compile(
    rf"""perseid (?P<arguments>{_ARGUMENTS}?)
    (?P<quiet>\ 2>/dev/null)?
    (?:\ >\ ?(?P<file>[\w./-]+)(?P<both>\ 2>&1)?)?
    (?:\ (?P<then>&&|\|)\ (?P<rest>[^|&]+))?""",
    re.VERBOSE,
)
"""A `perseid` command without variables and patterns, its output in a file or a pipe, and a command after it."""


class Shell:
    """A shell in a folder."""

    _END = "\x1eend of the output\x1e"

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.environ = {"COLUMNS": ENVIRON["COLUMNS"]}
        self._process = subprocess.Popen(
            ["sh"],
            cwd=folder,
            env=ENVIRON,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT)

    def run(self, command: str) -> str:
        """Run a command and return what it prints."""
        plain = _PLAIN.fullmatch(command)
        return self._type(command) if plain is None else self._run_plain(plain)

    def _run_plain(self, plain: re.Match[str]) -> str:
        """Run a plain `perseid` command in this process, and what follows it in the shell."""
        with contextlib.chdir(self.folder):
            done = call(*shlex.split(plain["arguments"]), environ=self.environ)
        error = "" if plain["quiet"] else done.err
        if plain["then"] == "|":
            return error + self._type(plain["rest"], done.out)
        printed = done.shown if error else done.out
        if plain["file"]:
            with contextlib.chdir(self.folder):
                Path(plain["file"]).write_text(done.shown if plain["both"] else done.out)
            printed = "" if plain["both"] else error
        return printed + (self._type(plain["rest"]) if plain["then"] and done.code == 0 else "")

    def _type(self, command: str, given: str = "") -> str:
        """Let the shell run a command with an input; its folder and PERSEID_DIR are noted afterwards."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(given)
            file.flush()
            typed = f"eval {shlex.quote(command)} < {file.name}"
            self._process.stdin.write(f'{typed}\nprintf \'{self._END}%s\\n\' "$PWD" "${{PERSEID_DIR-}}"\n')
            self._process.stdin.flush()
            timer = threading.Timer(TIMEOUT, self._process.kill)
            timer.start()
            printed = ""
            for line in self._process.stdout:
                text, end, self.folder = line.rstrip("\n").partition(self._END)
                printed += text if end else line
                if end:
                    break
            timer.cancel()
            assert self._process.poll() is None, f"$ {command}\n{printed}: the shell has ended"
            self.environ["PERSEID_DIR"] = self._process.stdout.readline().removeprefix(self._END).rstrip("\n")
        return printed


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("document", SESSIONS, ids=lambda each: str(each.relative_to(ROOT)))
def test_commands_print_the_documented_output(document: Path, shell: Shell, tmp_path: Path) -> None:
    if document == README:  # uses the installation that `make serve` creates
        assert call("init", f"{tmp_path}/demo-data", "--demo").code == 0
        shell.run('export PERSEID_DIR="$PWD/demo-data"')
    for block in SESSIONS[document]:
        for command, expected in session(block):
            printed = shell.run(command)
            assert agrees(printed, expected), f"{block}: $ {command}\n{printed}"
            hidden = ERROR.search(printed) and not ERROR.search(expected)
            assert not hidden, f"{block}: $ {command}\n{printed}"


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


def test_commands_that_are_not_executed_have_a_reason() -> None:
    shown = [block for block in ALL if block.language == "sh" and block.document.parent.name != "reference"]
    assert {(block.document.name, block.text.partition("\n")[0]) for block in shown} == NOT_EXECUTED.keys()


def test_prompt_outside_a_block_is_refused() -> None:
    for document in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"^\s*(\$ |>>> )", prose, re.MULTILINE), document


def test_one_shell_runs_all_commands(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("x='a b'; mkdir inner; cd inner") == ""
    assert shell.run('printf %s "$x"; exec 3>&1') == "a b"
    assert shell.run("perseid suffix pilin --decode D7J1G0DQH > out") == ""
    assert (tmp_path / "inner" / "out").read_text() == "2007-09-17T07:14:50.919Z\n"
    assert shell.run("perseid suffix pilin --decode D7J1G0DQH | cut -c 1-4") == "2007\n"
    assert shell.run("perseid suffix pilin --decode D7J1G0DQH > out && wc -l < out") == "1\n"
    assert shell.run("perseid suffix pilin --decode A 2>/dev/null > out && echo not reached") == ""
    assert shell.run("export PERSEID_DIR=other") == ""
    assert "other" in shell.run("perseid namespace list")


def test_commands_that_need_a_shell_run_in_one() -> None:
    plain = _PLAIN.fullmatch("perseid find --url 'https://a.example/*' \"a b\" c")
    assert plain is not None
    assert shlex.split(plain["arguments"]) == ["find", "--url", "https://a.example/*", "a b", "c"]
    for command in (
        "ls",
        "perseid a; echo $?",
        "perseid list | wc | wc",
        "perseid list >> a",
        "perseid a*",
        'perseid "$x"',
        "perseid `x`",
        "perseid ~",
    ):
        assert _PLAIN.fullmatch(command) is None, command


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

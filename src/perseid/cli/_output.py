"""Input and output of commands: data on standard output, everything else on standard error.

A progress bar is shown on standard error, and only on a terminal, so that files and pipes hold data alone. A command
that prints its data on the same terminal shows none: the data is the progress.
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from perseid.names.errors import InvalidName
from perseid.names.uri import BYTE_ORDER_MARK

if TYPE_CHECKING:
    from perseid.schema.records import WarningInfo

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
"""The option of every command that prints data."""


_DISPLAY_CONTROLS: Final = re.compile("[\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
"""Characters that JSON need not escape, but terminals obey: C1 controls, line separators and changes of direction."""


_TERMINAL_CONTROLS: Final = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
"""All characters that terminals obey, except tabs and line ends."""


def open_streams() -> None:
    """Open the null device as each standard stream that is closed.

    Otherwise the next file or socket would get its number: also one of a server, which commands replace or fork.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def use_utf8() -> None:
    """Use UTF-8 on all standard streams, whatever the locale: handles have no other encoding (H4).

    Malformed input becomes lone surrogates, which no handle contains, so that each line is checked on its own.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def print_json(document: object) -> None:
    """Print one JSON document on one line."""
    typer.echo(to_json(document))


def to_json(document: object) -> str:
    """Encode a document on one line, with escapes for what would change the display of a terminal."""
    import msgspec  # noqa: PLC0415 - help does not need it

    if warnings := getattr(document, "warnings", ()):
        document = msgspec.structs.replace(document, warnings=phrase_warnings(warnings))  # type: ignore[type-var]
    text = msgspec.json.encode(document).decode()
    return _DISPLAY_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def phrase_warnings(warnings: "Sequence[WarningInfo]") -> "tuple[WarningInfo, ...]":
    """Return warnings with their advice in the words of the command line."""
    return import_module("._advice", __package__).phrase_warnings(warnings) if warnings else ()


def print_text(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print a text. Characters that a terminal would obey are escaped: a record or a server may contain any."""
    typer.echo(_escape(text), nl=nl, err=err)


def print_row(text: str, indent: int) -> None:
    """Print a row of a list; on a terminal, break it between words to fit. Words, such as handles, are never cut."""
    if is_terminal(sys.stdout) and len(text) > (width := shutil.get_terminal_size().columns):
        import textwrap  # noqa: PLC0415 - long rows on a terminal only

        wrap = textwrap.TextWrapper(
            width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
        text = wrap.fill(text)
    print_text(text)


def _escape(text: str) -> str:
    lines = text.replace("\r\n", "\n")
    return _TERMINAL_CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), lines)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print labeled values, one a line, without those that are None."""
    shown = {label: value for label, value in fields.items() if value is not None}
    width = max(map(len, shown), default=0)
    for label, value in shown.items():
        print_text(f"{label:<{width}}  {value}")


class CommandFailed(Exception):
    """A command could not do, or not complete, what it was asked to do. The arguments are the reason and advice."""

    problem_type = "command-failed"
    is_usage = False
    """Whether the input has to be corrected."""
    is_refusal = False
    """Whether a rule does not allow it."""

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidTable(CommandFailed):
    """A table has to be corrected."""

    problem_type = "invalid-value"
    is_usage = True


class UnknownColumns(InvalidTable):
    """A table has columns that are not known types."""

    problem_type = "unknown-columns"


class NotFound(Exception):
    """What the user named does not exist."""


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


@contextmanager
def new_secret_file(path: Path | None, option: str, *, json: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Create a file with mode 0600 before the secret exists, and yield how to write it; remove it on failure."""
    if path is None:
        yield None
        return
    if json:
        raise typer.BadParameter("use it without --json, which prints the secret", param_hint=option)
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w")
    except FileExistsError:
        raise typer.BadParameter(f"{path} already exists; use another file name", param_hint=option) from None
    except OSError as problem:
        raise typer.BadParameter(f"cannot create {path}: {problem.strerror}", param_hint=option) from problem
    try:
        with file:
            yield lambda secret: print(secret, file=file, flush=True)
    except BaseException:
        path.unlink()
        raise


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Return a number and what is counted: `1 record`, `2,000 records`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def print_message(text: str) -> None:
    """Print a message that is not data, on standard error."""
    print_text(text, err=True)


ProgressCallback: TypeAlias = Callable[[int], None]
"""Is called with the number of items done so far."""

MIN_TOTAL: Final = 1_000
"""Smaller work is done before anyone could read a bar."""


@contextmanager
def progress(
    what: str, total: int | None = None, unit: str = "entries", *, prints: bool = False
) -> Iterator[ProgressCallback]:
    """Show a progress bar while the block runs; without a `total`, a count and the elapsed time.

    Set `prints` if the block prints data: then no bar is shown where both streams are one terminal.
    """
    visible = is_terminal(sys.stderr) and not (prints and is_terminal(sys.stdout))
    if not visible or (total is not None and total < MIN_TOTAL):
        yield _ignore_progress
        return
    bar = _bar(unit, is_measured=total is not None)
    with bar:
        task = bar.add_task(what, total=total)

        def update(done: int) -> None:
            bar.update(task, completed=done)

        yield update


def _bar(unit: str, *, is_measured: bool) -> Any:
    """Make a bar that disappears when it is done."""
    from rich import progress as bars  # noqa: PLC0415 - takes about 40 ms, needed only on a terminal
    from rich.console import Console  # noqa: PLC0415

    class Rate(bars.ProgressColumn):
        """Items a second."""

        def render(self, task: Any) -> str:
            return "" if task.speed is None else f"{task.speed:,.0f} {unit}/s"

    measured = (bars.BarColumn(), bars.MofNCompleteColumn(), Rate(), bars.TimeRemainingColumn())
    counted = (bars.SpinnerColumn(), bars.TextColumn("{task.completed:,}"), Rate(), bars.TimeElapsedColumn())
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        *(measured if is_measured else counted),
        console=Console(stderr=True),
        transient=True,
        # Otherwise rich would move the data from standard output to standard error.
        redirect_stdout=False,
        redirect_stderr=False,
    )


def is_terminal(stream: Any) -> bool:
    """Whether somebody can read or type on a standard stream; it may be closed."""
    return stream is not None and stream.isatty()


def require_terminal(what: str, advice: str) -> None:
    """Fail where nobody can type: what waits for a user would wait forever."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise CommandFailed(f"{what} requires a terminal", advice)


def confirm(statement: str) -> None:
    """Say what will happen, ask on standard error, and fail unless the answer is yes."""
    if not is_terminal(sys.stdin):
        raise CommandFailed(f"{statement}. Confirmation required, but there is no terminal", "To confirm: --yes")
    print_text(f"{statement}. Continue? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was changed")


def _ignore_progress(_done: int) -> None:
    pass


T = TypeVar("T")

STANDARD_INPUT: Final = "-"

MAX_LINE = 65_536
"""Characters of the longest line read from standard input: any URI of a 2,048-byte handle is much shorter."""


def for_each(
    texts: Sequence[str],
    read: Callable[[str], T],
    show: Callable[[T], None],
    *,
    json: bool,
    errors: tuple[type[Exception], ...] = (InvalidName,),
) -> None:
    """Read and show each text, and for `-` every line of standard input.

    An error of a single text is raised. Otherwise it is reported, and the others are tried: the exit code is that of
    "not found" if something was not found, else that of the first error.
    """
    if len(texts) == 1 and texts[0] != STANDARD_INPUT:
        show(read(texts[0]))
        return
    codes: list[int] = []
    for where, text in _expand_input(texts):
        try:
            result = read(_check_line(text))
        except errors as problem:
            codes.append(import_module("._errors", __package__).report_error(problem, json=json, where=where))
        else:
            show(result)
    if codes:
        not_found = import_module("._errors", __package__).NOT_FOUND
        raise typer.Exit(not_found if not_found in codes else codes[0])


def _expand_input(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each text, with its line if it is from standard input; without empty lines."""
    for text in texts:
        if text == STANDARD_INPUT:
            yield from ((f"line {number}", line) for number, line in enumerate(_read_lines(), 1) if line.strip())
        else:
            yield "", text


def _read_lines() -> Iterator[str]:
    """Yield the lines of standard input, and of a line longer than MAX_LINE its beginning."""
    stdin = sys.stdin or io.StringIO()  # it may be closed
    mark = BYTE_ORDER_MARK  # some editors write it before the first line
    while line := stdin.readline(MAX_LINE + 1):
        rest = line
        while len(rest) > MAX_LINE and not rest.endswith("\n"):
            rest = stdin.readline(MAX_LINE + 1)
        yield line.removesuffix("\n").removesuffix("\r").removeprefix(mark)
        mark = ""


def _check_line(line: str) -> str:
    if len(line) > MAX_LINE:
        message = f"the line has more than {MAX_LINE:,} characters"
        raise InvalidName("H9", message, position=MAX_LINE, character=line[MAX_LINE])
    check_utf8(line)
    return line


def check_utf8(text: str, argument: str | None = None) -> None:
    """Reject bytes that are not UTF-8 (H4): Python reads each as a surrogate, U+DC00 and the byte."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = text[error.start]
        where = f" of {argument}" if argument else ""
        message = f"byte 0x{ord(character) & 0xFF:02X}{where} is not valid UTF-8"
        raise InvalidName("H4", message, position=error.start, character=character) from None

"""How commands print: data on standard output, everything else on standard error.

How far long work has come: a bar with rate and time left, for people who watch.

It stands on standard error and only where that is a terminal; everybody else gets nothing, so that files and pipes hold
data alone. Where a command prints its data on the same terminal meanwhile, the data is the progress.
"""

import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
import typer

from perseid.names.errors import InvalidName, NameProblem
from perseid.names.uri import BYTE_ORDER_MARK

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
"""The option that every command which prints data has."""


def use_utf8() -> None:
    """Use UTF-8 on all standard streams, whatever the locale says: names have no other encoding (H4).

    Malformed input gets through as lone surrogates, which are no part of any name, so that each line is judged alone.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def print_json(document: object) -> None:
    """Print one JSON document on one line."""
    typer.echo(msgspec.json.encode(document).decode())


def print_fields(fields: Mapping[str, object]) -> None:
    """Print what is known, one fact a line; what is not there is left out."""
    shown = {label: value for label, value in fields.items() if value is not None}
    width = max(map(len, shown), default=0)
    for label, value in shown.items():
        typer.echo(f"{label:<{width}}  {value}")


def print_message(text: str) -> None:
    """Say something helpful that is not data."""
    typer.echo(text, err=True)


def print_name_error(problem: NameProblem, where: str = "") -> None:
    """Say what is wrong with a name and where to read more."""
    print_message(f"perseid: {where}{problem}")
    if problem.rule == "U4":
        print_message("A resolver of your own is named with --resolver, e.g. --resolver http://example.org/hdl")
    print_message(f"The rule in full: perseid name rules {problem.rule}")


ProgressCallback: TypeAlias = Callable[[int], None]
"""Is told how many are done by now."""

MIN_TOTAL: Final = 1_000
"""Fewer than these are done before anybody could read a bar."""


@contextmanager
def progress(
    what: str, total: int | None = None, unit: str = "entries", *, prints: bool = False
) -> Iterator[ProgressCallback]:
    """Show how far something has come while the block runs; without a `total`, how many are done and for how long.

    `prints` says that the block prints data, so that there is no room for a bar where both streams are one terminal.
    """
    watched = _is_terminal(sys.stderr) and not (prints and _is_terminal(sys.stdout))
    if not watched or (total is not None and total < MIN_TOTAL):
        yield _ignore_progress
        return
    bar = _bar(unit, is_measured=total is not None)
    with bar:
        task = bar.add_task(what, total=total)

        def update(done: int) -> None:
            bar.update(task, completed=done)

        yield update


def _bar(unit: str, *, is_measured: bool) -> Any:
    """A bar that leaves nothing behind; what is left in the end is what the command says itself."""
    from rich import progress as bars  # noqa: PLC0415 - some forty milliseconds, which only those pay who watch
    from rich.console import Console  # noqa: PLC0415

    class Rate(bars.ProgressColumn):
        """How many a second."""

        def render(self, task: Any) -> str:
            return "" if task.speed is None else f"{task.speed:,.0f} {unit}/s"

    measured = (bars.BarColumn(), bars.MofNCompleteColumn(), Rate(), bars.TimeRemainingColumn())
    counted = (bars.SpinnerColumn(), bars.TextColumn("{task.completed:,}"), Rate(), bars.TimeElapsedColumn())
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        *(measured if is_measured else counted),
        console=Console(stderr=True),
        transient=True,
        # Or else what is printed to standard output would go where the bar is.
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def _ignore_progress(_done: int) -> None:
    """Nobody watches."""


T = TypeVar("T")

MAX_LINE = 65_536
"""The longest line read from standard input: far above any URI of a 2,048-octet handle, far below trouble."""


def for_each(text: str, read: Callable[[str], T], show: Callable[[T], None]) -> None:
    """Read and show one text, or with `-` every line of standard input; of bad lines each is reported."""
    if text != "-":
        show(read(text))
        return
    failed = False
    for number, line in enumerate(_read_lines(), 1):
        if not line.strip():
            continue
        try:
            found = read(_check_line(line))
        except InvalidName as problem:
            print_name_error(problem, f"line {number}: ")
            failed = True
        else:
            show(found)
    if failed:
        raise typer.Exit(1)


def _read_lines() -> Iterator[str]:
    """The lines of standard input; of one longer than MAX_LINE the beginning, so that the next keeps its number."""
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
        message = f"the line has more than {MAX_LINE:,} characters, more than any name needs"
        raise InvalidName("H9", message, position=MAX_LINE, character=line[MAX_LINE])
    return line

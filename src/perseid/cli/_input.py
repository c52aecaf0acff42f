"""How commands read: what was given as an argument, or with `-` every line of standard input."""

import io
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import typer

from perseid.names.errors import InvalidName
from perseid.names.uri import BYTE_ORDER_MARK

from ._output import complain

T = TypeVar("T")

MAX_LINE = 65_536
"""The longest line read from standard input: far above any URI of a 2,048-octet handle, far below trouble."""


def for_each(text: str, read: Callable[[str], T], show: Callable[[T], None]) -> None:
    """Read and show one text, or with `-` every line of standard input; of bad lines each is reported."""
    if text != "-":
        show(read(text))
        return
    failed = False
    for number, line in enumerate(_lines(), 1):
        if not line.strip():
            continue
        try:
            found = read(_whole(line))
        except InvalidName as problem:
            complain(problem, f"line {number}: ")
            failed = True
        else:
            show(found)
    if failed:
        raise typer.Exit(1)


def _lines() -> Iterator[str]:
    """The lines of standard input; of one longer than MAX_LINE the beginning, so that the next keeps its number."""
    stdin = sys.stdin or io.StringIO()  # it may be closed
    mark = BYTE_ORDER_MARK  # some editors write it before the first line
    while line := stdin.readline(MAX_LINE + 1):
        rest = line
        while len(rest) > MAX_LINE and not rest.endswith("\n"):
            rest = stdin.readline(MAX_LINE + 1)
        yield line.removesuffix("\n").removesuffix("\r").removeprefix(mark)
        mark = ""


def _whole(line: str) -> str:
    if len(line) > MAX_LINE:
        message = f"the line has more than {MAX_LINE:,} characters, more than any name needs"
        raise InvalidName("H9", message, position=MAX_LINE, character=line[MAX_LINE])
    return line

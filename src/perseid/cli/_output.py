"""How commands print: data on standard output, everything else on standard error."""

import io
import sys
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
import typer

from perseid.names.errors import NameProblem

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
"""The option that every command which prints data has."""


def speak_utf8() -> None:
    """Use UTF-8 on all standard streams, whatever the locale says: names have no other encoding (H4).

    Malformed input gets through as lone surrogates, which are no part of any name, so that each line is judged alone.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def print_json(document: object) -> None:
    """Print one JSON document on one line."""
    typer.echo(msgspec.json.encode(document).decode())


def print_facts(facts: Mapping[str, object]) -> None:
    """Print what is known, one fact a line; what is not there is left out."""
    shown = {label: value for label, value in facts.items() if value is not None}
    width = max(map(len, shown), default=0)
    for label, value in shown.items():
        typer.echo(f"{label:<{width}}  {value}")


def hint(text: str) -> None:
    """Say something helpful that is not data."""
    typer.echo(text, err=True)


def complain(problem: NameProblem, where: str = "") -> None:
    """Say what is wrong with a name and where to read more."""
    hint(f"perseid: {where}{problem}")
    if problem.rule == "U4":
        hint("A resolver of your own is named with --resolver, e.g. --resolver http://example.org/hdl")
    hint(f"The rule in full: perseid name rules {problem.rule}")

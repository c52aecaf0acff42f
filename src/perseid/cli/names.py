"""`perseid name`: take names apart, convert their forms, explain the rules. No installation is needed."""

import io
import sys
import tomllib
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib.resources import files
from typing import Annotated, TypeAlias

import typer

from perseid.names import (
    KNOWN_RESOLVERS,
    InvalidName,
    Reference,
    Resolver,
    parse_human,
    recognise,
    to_host,
    to_http,
    to_path,
)
from perseid.names.errors import quoted

from ._output import AsJson, complain, hint, print_facts, print_json

app = typer.Typer(help="Take names apart and convert their forms.", no_args_is_help=True)

MAX_LINE = 65_536
"""The longest line read from standard input: far above any URI of a 2,048-octet handle, far below trouble."""


def _resolver(text: str) -> Resolver:
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise typer.BadParameter(problem.message) from problem


Text: TypeAlias = Annotated[
    str, typer.Argument(help="A handle, `hdl:` URI or resolver URL; `-` reads one a line from standard input.")
]
Resolvers: TypeAlias = Annotated[
    list[Resolver] | None,
    typer.Option(
        "--resolver",
        metavar="URL",
        parser=_resolver,
        help="Also understand URLs of this resolver, e.g. `http://example.org/hdl`; may be repeated.",
    ),
]


class Form(StrEnum):
    """What a name can be converted to."""

    HANDLE = "handle"
    HOST = "host"
    PATH = "path"
    HTTP = "http"


@app.command(
    epilog="Examples:\n\n    perseid name parse hdl:102.100.272/D7J1G0DQH\n\n"
    "    perseid name parse https://hdl.handle.net/10.1000/a%2Fb --json"
)
def parse(text: Text, json: AsJson = False, resolver: Resolvers = None) -> None:
    """Show the parts of a name in any form: handle, prefix, suffix, query, fragment, and the scheme it looks like.

    A bare handle is taken literally. The scheme is advice by shape; only the name's namespace knows for sure.
    """

    def show(reference: Reference) -> None:
        facts = _facts(reference)
        if json:
            print_json(facts)
        else:
            print_facts(_flat(facts))

    _for_each(text, [*(resolver or ()), *KNOWN_RESOLVERS], show)


@app.command(
    epilog="Examples:\n\n    perseid name convert 10.1000/a/b --to path\n\n"
    "    perseid name convert hdl:10.1000/1 --to http --resolver http://example.org/hdl"
)
def convert(
    text: Text,
    to: Annotated[Form, typer.Option("--to", help="The form wanted.")],
    resolver: Annotated[
        Resolver | None,
        typer.Option(
            metavar="URL", parser=_resolver, help=f"The resolver for `--to http`; default {KNOWN_RESOLVERS[0]}."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Convert a name to another form. The spelling is kept; query and fragment come along where the form has room."""
    make: dict[Form, Callable[[Reference], str]] = {
        Form.HANDLE: lambda reference: str(reference.handle),
        Form.HOST: to_host,
        Form.PATH: to_path,
        Form.HTTP: lambda reference: to_http(reference, resolver or KNOWN_RESOLVERS[0]),
    }

    def show(reference: Reference) -> None:
        converted = make[to](reference)
        if json:
            print_json({"form": to.value, "name": converted} | _tail(reference))
            return
        typer.echo(converted)
        if to is Form.HANDLE and reference.tail:
            hint(f"Not part of the handle, hence left out: {reference.tail}")

    _for_each(text, [*([resolver] if resolver else ()), *KNOWN_RESOLVERS], show)


@app.command(epilog="Example:\n\n    perseid name rules H3")
def rules(
    rule: Annotated[str | None, typer.Argument(help="The id of one rule, as error messages name it.")] = None,
    json: AsJson = False,
) -> None:
    """Explain the rules for names that error messages refer to."""
    texts = tomllib.loads(files("perseid.names").joinpath("rules.toml").read_text(encoding="utf-8"))
    chosen = texts if rule is None else {key: value for key, value in texts.items() if key == rule.upper()}
    if not chosen:
        hint(f"perseid: there is no rule {quoted(rule or '')}; there are {', '.join(texts)}")
        raise typer.Exit(3)
    if json:
        print_json([{"rule": key, **value} for key, value in chosen.items()])
        return
    for key, value in chosen.items():
        typer.echo(f"{key}  {value['title']}\n    {value['text']}")


def _facts(reference: Reference) -> dict[str, object]:
    given = reference.handle
    scheme = recognise(given)
    handle = given if scheme is None else scheme.normalise(given)
    return {
        "handle": str(handle),
        "given": str(given),
        "prefix": handle.prefix,
        "suffix": handle.suffix,
        **_tail(reference),
        "scheme": None if scheme is None else scheme.name,
        "details": {} if scheme is None else dict(scheme.describe(given)),
    }


def _flat(facts: dict[str, object]) -> dict[str, object]:
    """The same with each detail under a label of its own."""
    details = facts.pop("details")
    if isinstance(details, dict):
        facts |= {f"{facts['scheme']} {label}": value for label, value in details.items()}
    return facts


def _tail(reference: Reference) -> dict[str, str | None]:
    return {"query": reference.query, "fragment": reference.fragment}


def _for_each(text: str, resolvers: list[Resolver], show: Callable[[Reference], None]) -> None:
    """Read one name, or with `-` every line of standard input; a bad line is reported and the others go on."""
    if text != "-":
        show(parse_human(text, resolvers))
        return
    failed = False
    for number, line in enumerate(_lines(), 1):
        if not line.strip():
            continue
        try:
            reference = parse_human(_whole(line), resolvers)
        except InvalidName as problem:
            complain(problem, f"line {number}: ")
            failed = True
        else:
            show(reference)
    if failed:
        raise typer.Exit(1)


def _lines() -> Iterator[str]:
    """The lines of standard input; of one longer than MAX_LINE the beginning, so that the next keeps its number."""
    stdin = sys.stdin or io.StringIO()  # it may be closed
    while line := stdin.readline(MAX_LINE + 1):
        rest = line
        while len(rest) > MAX_LINE and not rest.endswith("\n"):
            rest = stdin.readline(MAX_LINE + 1)
        yield line.removesuffix("\n")


def _whole(line: str) -> str:
    if len(line) > MAX_LINE:
        raise InvalidName("H9", f"the line has more than {MAX_LINE:,} characters, more than any name needs")
    return line

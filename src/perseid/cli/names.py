"""`perseid name`: take names apart, convert their forms, explain the rules. No installation is needed."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, TypeAlias

import typer

from perseid.cli._output import for_each
from perseid.names.errors import InvalidName, quote_text
from perseid.names.errors import load_rules as all_rules
from perseid.names.schemes import recognize
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, parse_user_input, to_host, to_http, to_path

from ._loading import Command, Group
from ._output import AsJson, print_fields, print_json, print_message

app = typer.Typer(cls=Group, help="Take names apart and convert their forms.", no_args_is_help=True)

RULES_WITHOUT_ERRORS = ("H7", "H8", "P2", "P5", "C4", "C5", "C6", "U1", "U2", "U3", "U6", "U8")
"""Rules that no error names: what they ask for is done, not demanded, or comes with rooms that are not built yet."""


def _parse_resolver(text: str) -> Resolver:
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise typer.BadParameter(problem.message) from problem


Text: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TEXT", help="A handle, `hdl:` URI or resolver URL; `-` reads one a line from standard input."
    ),
]
Resolvers: TypeAlias = Annotated[
    list[Resolver] | None,
    typer.Option(
        "--resolver",
        metavar="URL",
        parser=_parse_resolver,
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
    cls=Command,
    epilog="Examples:\n\n    perseid name parse hdl:102.100.272/D7J1G0DQH\n\n"
    "    perseid name parse https://hdl.handle.net/10.1000/a%2Fb --json",
)
def parse(text: Text, json: AsJson = False, resolver: Resolvers = None) -> None:
    """Show the parts of a name in any form: handle, prefix, suffix, query, fragment, and the scheme it looks like.

    A bare handle is taken literally. The scheme is advice by shape; only the name's namespace knows for sure.
    """

    def show(reference: Reference) -> None:
        fields = _describe(reference)
        if json:
            print_json(fields)
        else:
            print_fields(_flatten(fields))

    for_each(text, partial(parse_user_input, resolvers=[*(resolver or ()), *KNOWN_RESOLVERS]), show)


@app.command(
    cls=Command,
    epilog="Examples:\n\n    perseid name convert 10.1000/a/b --to path\n\n"
    "    perseid name convert hdl:10.1000/1 --to http --resolver http://example.org/hdl",
)
def convert(
    text: Text,
    to: Annotated[Form, typer.Option("--to", help="The form wanted.")],
    resolver: Annotated[
        Resolver | None,
        typer.Option(
            metavar="URL", parser=_parse_resolver, help=f"The resolver for `--to http`; default {KNOWN_RESOLVERS[0]}."
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
            print_json({"form": to.value, "name": converted} | _query_and_fragment(reference))
            return
        typer.echo(converted)
        if to is Form.HANDLE and reference.tail:
            print_message(f"Not part of the handle, hence left out: {reference.tail}")

    for_each(text, partial(parse_user_input, resolvers=[*([resolver] if resolver else ()), *KNOWN_RESOLVERS]), show)


@app.command(cls=Command, epilog="Example:\n\n    perseid name rules H3")
def rules(
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", help="The id of one rule, as error messages name it.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Explain the rules for names that error messages refer to."""
    texts = all_rules()
    chosen = texts if rule is None else {key: value for key, value in texts.items() if key == rule.upper()}
    if rule is not None and rule.upper() in RULES_WITHOUT_ERRORS:
        print_message(f"perseid: no error names rule {rule.upper()}; what it says stands in docs/reference/names.md")
        raise typer.Exit(3)
    if not chosen:
        print_message(f"perseid: there is no rule {quote_text(rule or '')}; there are {', '.join(texts)}")
        raise typer.Exit(3)
    if json:
        print_json([{"rule": key, **value} for key, value in chosen.items()])
        return
    for key, value in chosen.items():
        typer.echo(f"{key}  {value['title']}\n    {value['text']}")


def _describe(reference: Reference) -> dict[str, object]:
    given = reference.handle
    scheme = recognize(given)
    handle = given if scheme is None else scheme.normalize(given)
    return {
        "handle": str(handle),
        "given": str(given),
        "prefix": handle.prefix,
        "suffix": handle.suffix,
        **_query_and_fragment(reference),
        "scheme": None if scheme is None else scheme.name,
        "details": {} if scheme is None else dict(scheme.describe(given)),
    }


def _flatten(fields: dict[str, object]) -> dict[str, object]:
    """The same with each detail under a label of its own."""
    details = fields.pop("details")
    if isinstance(details, dict):
        fields |= {f"{fields['scheme']} {label}": value for label, value in details.items()}
    return fields


def _query_and_fragment(reference: Reference) -> dict[str, str | None]:
    return {"query": reference.query, "fragment": reference.fragment}

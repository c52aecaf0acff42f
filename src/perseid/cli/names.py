"""`perseid name`: parse and convert handles, and explain the rules. No installation is needed."""

from functools import partial
from typing import Annotated, TypeAlias

import msgspec
import typer

from perseid.names.errors import InvalidName, quote_text
from perseid.names.errors import load_rules as all_rules
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, parse_user_input
from perseid.schema.names import Form, Rule, Rules, convert_name, parse_name

from ._commands import Command, Group
from ._output import AsJson, NotFound, for_each, print_fields, print_json, print_message

app = typer.Typer(cls=Group, help="Parse and convert handles, and explain the rules.", no_args_is_help=True)

RULES_WITHOUT_ERRORS = ("H7", "H8", "P2", "P5", "C4", "C5", "C6", "U1", "U2", "U3", "U6", "U8")
"""Rules that no error names: the program always follows them, or they belong to packages that do not exist yet."""


def _parse_resolver(text: str) -> Resolver:
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise typer.BadParameter(problem.message) from problem


Text: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TEXT", help="A handle, `hdl:` URI or resolver URL; - reads one a line from standard input."
    ),
]
Resolvers: TypeAlias = Annotated[
    list[Resolver] | None,
    typer.Option(
        "--resolver",
        metavar="URL",
        parser=_parse_resolver,
        help="Also accept URLs of this resolver, as in `http://example.org/hdl`; repeatable.",
    ),
]


@app.command(
    cls=Command,
    epilog="Examples:\n\n    perseid name parse hdl:102.100.272/D7J1G0DQH\n\n"
    "    perseid name parse https://hdl.handle.net/10.1000/a%2Fb --json",
)
def parse(text: Text, json: AsJson = False, resolver: Resolvers = None) -> None:
    """Show the parts of a handle in any form: handle, prefix, suffix, query, fragment and probable scheme.

    A bare handle is read literally. The scheme is a guess from the form; only the namespace knows it.
    """

    def show(reference: Reference) -> None:
        parsed = parse_name(reference)
        if json:
            print_json(parsed)
        else:
            fields = msgspec.structs.asdict(parsed)
            details = fields.pop("details")
            print_fields(fields | {f"{parsed.scheme} {label}": value for label, value in details.items()})

    for_each(text, partial(parse_user_input, resolvers=[*(resolver or ()), *KNOWN_RESOLVERS]), show, json=json)


@app.command(
    cls=Command,
    epilog="Examples:\n\n    perseid name convert 10.1000/a/b --to path\n\n"
    "    perseid name convert hdl:10.1000/1 --to http --resolver http://example.org/hdl",
)
def convert(
    text: Text,
    to: Annotated[Form, typer.Option("--to", help="The target form.")],
    resolver: Annotated[
        Resolver | None,
        typer.Option(
            metavar="URL", parser=_parse_resolver, help=f"The resolver for `--to http`. Default: {KNOWN_RESOLVERS[0]}."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Convert a handle to another form. The spelling is kept, and query and fragment where the form allows them."""

    def show(reference: Reference) -> None:
        converted = convert_name(reference, to, resolver)
        if json:
            print_json(converted)
            return
        typer.echo(converted.name)
        if to is Form.HANDLE and reference.tail:
            print_message(f"Left out, because it is not part of the handle: {reference.tail}")

    resolvers = [*([resolver] if resolver else ()), *KNOWN_RESOLVERS]
    for_each(text, partial(parse_user_input, resolvers=resolvers), show, json=json)


@app.command(cls=Command, epilog="Example:\n\n    perseid name rules H3")
def rules(
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", help="The id of a rule, as error messages show it.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Explain the rules for handles that error messages refer to."""
    texts = all_rules()
    chosen = texts if rule is None else {key: value for key, value in texts.items() if key == rule.upper()}
    if rule is not None and rule.upper() in RULES_WITHOUT_ERRORS:
        raise NotFound(f"no error refers to rule {rule.upper()}; see docs/reference/names.md")
    if not chosen:
        raise NotFound(f"rule {quote_text(rule or '')} does not exist; the rules are {', '.join(texts)}")
    if json:
        found = [Rule(key, **value) for key, value in chosen.items()]
        print_json(Rules(found) if rule is None else found[0])
        return
    for key, value in chosen.items():
        typer.echo(f"{key}  {value['title']}\n    {value['text']}")

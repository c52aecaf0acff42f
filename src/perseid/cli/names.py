"""`perseid name` and `perseid suffix`: the syntax of handles and suffixes, without an installation."""

import secrets
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec
import typer

from perseid.names import pilin
from perseid.names.errors import quote_text
from perseid.names.schemes import MemoryLease, Source
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, parse_uri, parse_user_input
from perseid.schema.names import (
    ConversionScheme,
    Form,
    PilinSuffix,
    Rule,
    Rules,
    convert_name,
    generate_cordra,
    parse_name,
    pilin_at,
    to_pilin,
)
from perseid.schema.names import rules as all_rules

from ._commands import Command, Group
from ._common_options import ResolversOption, StrictOption, find_own_resolvers, parse_resolver
from ._output import AsJson, NotFound, for_each, print_fields, print_json, print_message, print_text

name_app = typer.Typer(cls=Group, help="Parse and convert handles, and explain the rules.", no_args_is_help=True)

RULES_WITHOUT_ERRORS = ("H7", "H8", "P2", "P5", "C4", "C5", "C6", "U1", "U2", "U3", "U6", "U8")
"""Rules that no error names: the program always follows them, or they belong to packages that do not exist yet."""


Text: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TEXT", help="A handle, `hdl:` URI or resolver URL; - reads one a line from standard input."
    ),
]


@name_app.command(
    cls=Command,
    epilog="Examples:\n\n    perseid name parse hdl:102.100.272/D7J1G0DQH\n\n"
    "    perseid name parse https://hdl.handle.net/10.1000/a%2Fb --json",
)
def parse(text: Text, json: AsJson = False, resolver: ResolversOption = None, strict: StrictOption = False) -> None:
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

    for_each([text], _reader(resolver or (), strict=strict), show, json=json)


@name_app.command(
    cls=Command,
    epilog="Examples:\n\n    perseid name convert 10.1000/a/b --to path\n\n"
    "    perseid name convert hdl:10.1000/1 --to http --resolver http://example.org/hdl\n\n"
    "    perseid name convert 2000.01/EEF4DF17361A42E2B975E554663B70C3?part=2 --scheme cordra --to path",
)
def convert(
    text: Text,
    to: Annotated[Form, typer.Option("--to", help="The target form.")],
    resolver: Annotated[
        Resolver | None,
        typer.Option(
            metavar="URL", parser=parse_resolver, help=f"The resolver for `--to http`. Default: {KNOWN_RESOLVERS[0]}."
        ),
    ] = None,
    scheme: Annotated[
        ConversionScheme | None,
        typer.Option("--scheme", metavar="cordra", help="CORDRA: query and fragment are part of the name."),
    ] = None,
    json: AsJson = False,
    strict: StrictOption = False,
) -> None:
    """Convert a handle to another form. The spelling is kept, and query and fragment where the form allows them.

    In a CORDRA identifier, query and fragment are part of the handle, and the path is written in uppercase.
    """

    def show(reference: Reference) -> None:
        converted = convert_name(reference, to, resolver, scheme)
        if json:
            print_json(converted)
            return
        print_text(converted.name)
        if to is Form.HANDLE and reference.tail and scheme is None:
            print_message(f"Left out, because it is not part of the handle: {reference.tail}")

    for_each([text], _reader([resolver] if resolver else (), strict=strict), show, json=json)


def _reader(resolvers: Iterable[Resolver], *, strict: bool) -> Callable[[str], Reference]:
    parse = parse_uri if strict else parse_user_input
    return lambda text: parse(text, [*resolvers, *find_own_resolvers(text), *KNOWN_RESOLVERS])


@name_app.command(cls=Command, epilog="Example:\n\n    perseid name rules H3")
def rules(
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", help="The id of a rule, as error messages show it.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Explain the rules for handles that error messages refer to."""
    texts = all_rules()
    chosen = texts if rule is None else {key: value for key, value in texts.items() if key == rule.upper()}
    if not chosen and rule is not None and rule.upper() in RULES_WITHOUT_ERRORS:
        raise NotFound(f"No error refers to rule {rule.upper()}; see docs/reference/names.md")
    if not chosen:
        raise NotFound(f"Rule {quote_text(rule or '')} does not exist; the rules are {', '.join(texts)}")
    if json:
        found = [Rule(key, **value) for key, value in chosen.items()]
        print_json(Rules(found) if rule is None else found[0])
        return
    for key, value in chosen.items():
        print_text(f"{key}  {value['title']}\n    {value['text']}")


suffix_app = typer.Typer(cls=Group, help="Generate and decode suffixes; nothing is registered.", no_args_is_help=True)


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as problem:
        message = f"{quote_text(text)} is not an ISO 8601 time, such as 2007-09-17T07:14:50.919Z"
        raise typer.BadParameter(message) from problem


@suffix_app.command(
    "pilin",
    cls=Command,
    epilog="Examples:\n\n    perseid suffix pilin --at 2007-09-17T07:14:50.919Z\n\n"
    "    perseid suffix pilin --decode D7J1G0DQH --json",
)
def pilin_suffix(
    at: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME", parser=_parse_time, help="The time to encode; UTC unless it has a zone. Default: now."
        ),
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(
            metavar="SUFFIX",
            help="Show the time of a suffix; - reads one a line from standard input.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Generate the PILIN suffix of a time, or decode one.

    Two calls in the same millisecond give the same suffix; only `perseid mint` never repeats one.
    """
    if at is not None and decode is not None:
        raise typer.BadParameter("use either --at or --decode, not both")

    def show(pilin_suffix: PilinSuffix) -> None:
        if json:
            print_json(pilin_suffix)
        else:
            print_text(pilin_suffix.suffix if decode is None else pilin_suffix.time)

    if decode is not None:
        for_each([decode], lambda text: to_pilin(pilin.decode(text)), show, json=json)
    else:
        show(to_pilin(pilin.from_unix_ns(time.time_ns())) if at is None else pilin_at(at))


@suffix_app.command("cordra", cls=Command, epilog="Example:\n\n    perseid suffix cordra --version 1")
def cordra_suffix(
    version: Annotated[
        int, typer.Option(metavar="1|4", help="The UUID version: 4 is random, 1 is time-based with a random node.")
    ] = 4,
    json: AsJson = False,
) -> None:
    """Generate a CORDRA path: a new UUID in 32 uppercase hexadecimal digits."""
    if version not in {1, 4}:
        raise typer.BadParameter("use 1 or 4: CORDRA paths are UUIDs of these versions", param_hint="--version")
    source = Source(clock=time.time_ns, random=secrets.token_bytes, lease=MemoryLease(), sleep=time.sleep)
    generated = generate_cordra(1 if version == 1 else 4, source)
    if json:
        print_json(generated)
    else:
        print_text(generated.suffix)


commands: dict[str, Callable[..., None] | typer.Typer] = {"name": name_app, "suffix": suffix_app}

"""`perseid suffix`: generate and decode suffixes. No installation is needed, and nothing is registered."""

import secrets
import time
from datetime import datetime
from typing import Annotated

import typer

from perseid.names import pilin
from perseid.names.errors import quote_text
from perseid.names.schemes import MemoryLease, Source
from perseid.schema.names import PilinSuffix, generate_cordra, pilin_at, to_pilin

from ._commands import Command, Group
from ._output import AsJson, for_each, print_json

app = typer.Typer(cls=Group, help="Generate and decode suffixes; nothing is registered.", no_args_is_help=True)


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as problem:
        message = f"{quote_text(text)} is not an ISO 8601 time, such as 2007-09-17T07:14:50.919Z"
        raise typer.BadParameter(message) from problem


@app.command(
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
            typer.echo(pilin_suffix.suffix if decode is None else pilin_suffix.time)

    if decode is not None:
        for_each(decode, lambda text: to_pilin(pilin.decode(text)), show, json=json)
    else:
        show(to_pilin(pilin.from_unix_ns(time.time_ns())) if at is None else pilin_at(at))


@app.command("cordra", cls=Command, epilog="Example:\n\n    perseid suffix cordra --version 1")
def cordra_suffix(
    version: Annotated[
        int, typer.Option(metavar="1|4", help="The UUID version: 4 is random, 1 is time-based with a random node.")
    ] = 4,
    json: AsJson = False,
) -> None:
    """Generate a CORDRA path: a new UUID in 32 uppercase hexadecimal digits."""
    if version not in {1, 4}:
        raise typer.BadParameter("use 1 or 4: CORDRA paths are UUIDs of these versions")
    source = Source(clock=time.time_ns, random=secrets.token_bytes, lease=MemoryLease(), sleep=time.sleep)
    generated = generate_cordra(1 if version == 1 else 4, source)
    if json:
        print_json(generated)
    else:
        typer.echo(generated.suffix)

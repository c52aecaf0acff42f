"""`perseid suffix`: make and decode suffixes by hand. No installation is needed, so nothing is registered."""

import secrets
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from perseid.cli._output import for_each
from perseid.names import pilin
from perseid.names.allocator import MemoryLease
from perseid.names.cordra import CordraScheme
from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.names.suffix_scheme import Source

from ._loading import Command, Group
from ._output import AsJson, print_json

app = typer.Typer(cls=Group, help="Make and decode suffixes; nothing is registered.", no_args_is_help=True)

# Schemes look at whole handles; for a suffix alone any prefix serves.
_ANY_PREFIX = "0"


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as problem:
        message = f"{quote_text(text)} is not a time in ISO 8601, such as 2007-09-17T07:14:50.919Z"
        raise typer.BadParameter(message) from problem
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _to_milliseconds(moment: datetime) -> int:
    milliseconds = pilin.from_time(moment)
    if not pilin.MIN_MILLISECONDS <= milliseconds < pilin.END_MILLISECONDS:
        first, last = pilin.format_time(pilin.MIN_MILLISECONDS), pilin.format_time(pilin.END_MILLISECONDS - 1)
        given = moment.isoformat().replace("+00:00", "Z")
        raise InvalidName("P3", f"there is no PILIN suffix for {given}: they begin at {first} and end at {last}")
    return milliseconds


def _make_source() -> Source:
    return Source(clock=time.time_ns, random=secrets.token_bytes, lease=MemoryLease(), sleep=time.sleep)


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
            metavar="TIME", parser=_parse_time, help="The moment to encode, in UTC unless it says; default now."
        ),
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(
            metavar="SUFFIX",
            help="Show the moment that a suffix stands for; `-` reads one a line from standard input.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Make the PILIN suffix of a moment, or decode one.

    Two calls in the same millisecond give the same suffix: only an installation mints names that are never repeated.
    """
    if at is not None and decode is not None:
        raise typer.BadParameter("give either --at or --decode, not both")

    def show(milliseconds: int) -> None:
        suffix, moment = pilin.encode(milliseconds), pilin.format_time(milliseconds)
        if json:
            print_json({"suffix": suffix, "milliseconds": milliseconds, "time": moment})
        else:
            typer.echo(suffix if decode is None else moment)

    if decode is not None:
        for_each(decode, pilin.decode, show)
    else:
        show(pilin.from_unix_ns(time.time_ns()) if at is None else _to_milliseconds(at))


@app.command("cordra", cls=Command, epilog="Example:\n\n    perseid suffix cordra --version 1")
def cordra_suffix(
    version: Annotated[
        int, typer.Option(metavar="1|4", help="The kind of UUID: 4 is random, 1 the time with a random node.")
    ] = 4,
    json: AsJson = False,
) -> None:
    """Make a CORDRA path: a new UUID in 32 capital hexadecimal digits."""
    if version not in {1, 4}:
        raise typer.BadParameter("CORDRA paths are UUIDs of version 1 or 4")
    scheme = CordraScheme(1 if version == 1 else 4)
    (suffix,) = scheme.mint(_make_source())
    if json:
        print_json({"suffix": suffix, "version": version, "uuid": scheme.describe(Handle(_ANY_PREFIX, suffix))["uuid"]})
    else:
        typer.echo(suffix)

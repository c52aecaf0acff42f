"""The command `perseid`: thin commands over the rooms that do the work.

Exit codes are part of the interface: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 server not reached.
"""

import os
import sys
from typing import Annotated

import typer

from perseid import __version__
from perseid.names import NameProblem

from . import names, suffixes
from ._help import Group
from ._output import complain, hint, speak_utf8

app = typer.Typer(
    name="perseid",
    cls=Group,
    help="Persistent identifiers: mint names, keep their records, prove their history, resolve them.",
    epilog="Every command that prints data takes --json. `perseid COMMAND --help` has examples.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(names.app, name="name")
app.add_typer(suffixes.app, name="suffix")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perseid {__version__}")
        raise typer.Exit


@app.callback()
def _perseid(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; problems with names and with files become one line on standard error and exit code 1."""
    speak_utf8()
    try:
        app()
    except NameProblem as problem:
        complain(problem)
        sys.exit(1)
    except OSError as error:  # the disk is full, say
        hint(f"perseid: {error.strerror or error}")
        # What is still in the buffer cannot be written either, and would be tried again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)

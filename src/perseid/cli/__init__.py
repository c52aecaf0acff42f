"""The program `perseid`: thin commands over the registry.

Exit codes are part of the interface: 0 success, 1 failure, 2 usage, 3 not found, 4 refused, 5 server unreachable.
Ctrl-C is 130, as in shells.

Loading the ledger takes time, and some commands do not need it. So a command is a line in `_command_table` (module and
one line of help), and its module is imported when the command is used. The module has a table

    commands: dict[str, Callable[..., None] | typer.Typer] = {"mint": mint, "reserve": reserve}

of functions with typer's annotations, or of a `typer.Typer` (with `cls=Group`) for a command with subcommands, whose
functions are registered by `@register_command(app, NAME)`. The docstring of a function is its help. The lines after
`For example:` are its examples, one command a line, indented:

    def mint(prefix: Prefix, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
        \"\"\"Mint new identifiers and create a record for each.

        For example:
            perseid mint 102.100.272 --url https://example.org/1
            perseid mint 102.100.272 --count 3 --reserve
        \"\"\"

Tests run the examples in order in a directory made by `perseid init --demo`; they must succeed.

Errors are raised, not printed: `main` prints all of them and sets the exit code.
"""

import gc
import sys
from importlib import import_module
from typing import Annotated

import typer

from perseid import __version__

from ._commands import LazyGroup
from ._output import open_streams, use_utf8

_GARBAGE = 10_000
"""New objects after which Python looks for cycles of garbage. The default of 700 is for small programs; a large import
creates hardly any garbage, but many objects."""

app = typer.Typer(
    name="perseid",
    cls=LazyGroup,
    help="Persistent identifiers: mint them, keep their records, prove their history, resolve them.",
    epilog="All commands take --json. `perseid help COMMAND` or `perseid COMMAND --help` shows examples.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"perseid {__version__}")
        raise typer.Exit


@app.callback()
def _perseid(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; print an error on standard error, with advice or as JSON, and exit with its code."""
    open_streams()
    use_utf8()
    gc.set_threshold(_GARBAGE)
    try:
        app()
    except Exception as error:  # noqa: BLE001 - report_error raises bugs again
        sys.exit(import_module("._errors", __package__).report_error(error, json="--json" in sys.argv))

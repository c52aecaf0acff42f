"""The command `perseid`: thin commands over the rooms that do the work.

Exit codes are part of the interface: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 server not reached.

Most commands need a ledger, which takes a while to load, and some need nothing. So a command is a line in
`_loading.TABLE`, with its module and one line of help, and the module is imported when the command is used. It has

    commands: dict[str, Callable[..., None] | typer.Typer] = {"mint": mint, "reserve": reserve}

which maps each name of the table to a function with typer's annotations, or to a `typer.Typer` (with `cls=Group`) for a
command that has commands of its own. The docstring of a function is its help; what stands in it behind a line
`For example:` are its examples, one command a line, indented:

    def mint(prefix: Prefix, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
        \"\"\"Make new names, and a record for each.

        For example:
            perseid mint 102.100.272 --url https://example.org/1
            perseid mint 102.100.272 --count 3 --reserve
        \"\"\"

Functions of a group in a `Typer` are registered by `@command(app)` of `_loading`, which reads the same docstring.
Tests run the examples one after the other, in a folder made by `perseid init --demo`; they must succeed.

Refusals and failures are raised, never printed: `main` has the words and the exit codes for all of them.
"""

import sys
from importlib import import_module
from typing import Annotated

import typer

from perseid import __version__

from . import names, suffixes
from ._loading import LazyGroup
from ._output import use_utf8

app = typer.Typer(
    name="perseid",
    cls=LazyGroup,
    help="Persistent identifiers: mint names, keep their records, prove their history, resolve them.",
    epilog="Every command that prints data takes --json. `perseid COMMAND --help` has examples.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(names.app, name="name", rich_help_panel="Names (no installation needed)")
app.add_typer(suffixes.app, name="suffix", rich_help_panel="Names (no installation needed)")


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
    """Run the command line; a refusal or failure is one line on standard error, help after it, and an exit code."""
    use_utf8()
    try:
        app()
    except Exception as error:  # noqa: BLE001 - what is no failure but a mistake in the program is raised again there
        sys.exit(import_module("._failures", __package__).report_error(error))

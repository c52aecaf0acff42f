"""`perseid node`: other nodes that serve the same installation from one database; `perseid read-only`."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.client.remotes import InvalidRemote, read_secret
from perseid.ledger.backup.archive import create_file
from perseid.registry.installation.installation import Installation, load_settings
from perseid.registry.installation.nodes import export_node
from perseid.registry.installation.nodes import join as join_node

from ._arguments import Directory, printable, resolve_directory
from ._commands import Group, register_command
from ._output import AsJson, CommandFailed, check_utf8, print_fields, print_json, print_message

app = typer.Typer(
    cls=Group,
    help="Add nodes: machines that serve the same installation from one PostgreSQL database.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

MAX_REASON: Final = 200
"""Characters of the reason for the read-only mode: a sentence, which is part of errors."""


class Switch(StrEnum):
    """Whether the read-only mode is on."""

    ON = "on"
    OFF = "off"


_PassphraseFile = Annotated[
    Path,
    typer.Option("--passphrase-file", metavar="FILE", help="A file with the passphrase that encrypts the node file."),
]


@register_command(app, "export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    *,
    passphrase_file: _PassphraseFile,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Write settings, site information and keys of this node to an encrypted file, for another node.

    **The file contains the private keys of the server.** The password of the database is not in it.

    For example:
        perseid node export node.perseid --passphrase-file passphrase
    """
    target = resolve_directory(directory).resolve()
    config = load_settings(target)
    passphrase = _read_passphrase(passphrase_file)
    with create_file(file) as stream:
        left_out = export_node(target, config, stream, passphrase)
    if json:
        print_json({"file": str(file), "password_left_out": left_out})
        return
    print_fields({"node file": printable(str(file))})
    if left_out:
        print_message("The password of the database is not in it. On the other machine, put it into PostgreSQL's")
        print_message("password file (~/.pgpass), or set PERSEID_LEDGER_DATABASE to the whole URL.")


@register_command(app, "join")
def join(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `perseid node export`.")],
    *,
    passphrase_file: _PassphraseFile,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Create a node of the same service in a new directory, from the file of another node.

    The database must be reachable. Then run `perseid serve`; delete the file.

    For example:
        perseid node join node.perseid --passphrase-file passphrase -d second
    """
    target = resolve_directory(directory).resolve()
    passphrase = _read_passphrase(passphrase_file)
    with file.open("rb") as stream:
        join_node(target, stream, file.name, passphrase)
    if json:
        print_json({"directory": str(target)})
        return
    print_fields({"node": printable(str(target))})
    print_message(printable(f"Delete {file}, which has the keys. To start this node: perseid serve -d {target}"))


def _read_passphrase(file: Path) -> bytes:
    try:
        return read_secret(file).encode()
    except InvalidRemote as problem:
        raise CommandFailed(str(problem)) from problem


def read_only(
    switch: Annotated[Switch | None, typer.Argument(metavar="[on|off]", help="Without it, show the state.")] = None,
    *,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="The reason that clients see.")] = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Refuse all changes during maintenance, or accept them again. Resolution continues.

    It takes effect at once, for all nodes of the database, and stays until you end it, also if servers are restarted.
    Running jobs wait for a minute, then stop; resume them afterwards: `perseid jobs list`. Clients see the reason.

    For example:
        perseid read-only on --reason "until 14:00 UTC"
        perseid read-only off
    """
    if reason is not None and switch is not Switch.ON:
        raise typer.BadParameter("--reason belongs to: perseid read-only on")
    target = resolve_directory(directory)
    if switch is not None:
        load_settings(target)  # only the owner may write
    text = (reason or "").strip()
    check_utf8(text, "--reason")
    if len(text) > MAX_REASON or not text.isprintable():
        raise typer.BadParameter(f"use at most {MAX_REASON} printable characters in --reason")
    with Installation.open(target, writable=False) as installation:
        if switch is None:
            state = installation.log.read_only()
        else:
            state = text if switch is Switch.ON else None
            installation.log.set_read_only(state)
    if json:
        print_json({"read_only": state is not None, "reason": state})
    elif state is None:
        typer.echo("Changes are accepted.")
    else:
        cause = f" Reason: {printable(state)}" if state else ""
        typer.echo(f"All changes are refused.{cause}")
        print_message("To accept changes again: perseid read-only off")


commands: dict[str, Callable[..., None] | typer.Typer] = {"node": app, "read-only": read_only}

"""An installation, opened for one command, and the identity that the command acts as.

On a directory the command line acts as server administrator, by right of the file permissions, and is recorded as
`local:<user>`. `--as INDEX:HANDLE` acts as that identity and is limited to its permissions. Namespace policies bind
both. Most commands are a few lines:

    def delete(handle: HandleArgument, directory: Directory = None, ...) -> None:
        with open_installation(directory, acting_as) as session:
            print_changed(session.do(Delete(parse_handle(handle))), json)
"""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

import typer

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, parse_user_input
from perseid.records.errors import InvalidData
from perseid.records.record import ValueRef, ref_from_text
from perseid.registry.context import Command, name_too_long
from perseid.registry.identity import Identity, KeyIdentity, LocalIdentity, Proof
from perseid.registry.installation.installation import Installation
from perseid.registry.queries.history import keep_history_note
from perseid.registry.registry import Registry
from perseid.registry.responses import to_changed
from perseid.registry.results import ChangeResult

from ._commands import Directory, resolve_directory
from ._output import print_json

__all__ = ["Directory", "resolve_directory"]

INTERFACE: Final = "cli"
"""The interface that the ledger records."""

ActingAs: TypeAlias = Annotated[
    str | None,
    typer.Option("--as", metavar="INDEX:HANDLE", help="Act as this identity, with its permissions instead of yours."),
]
"""The option of commands that require a permission."""

Note: TypeAlias = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="The reason; stored with the change, visible to administrators.")
]
"""The option of commands that change records."""

KeepHistory: TypeAlias = Annotated[
    bool, typer.Option("--keep-history", help="Keep earlier versions public; by default they are hidden as well.")
]
"""The option of commands that hide public values."""

HandleArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="HANDLE", help="A handle, `hdl:` URI or resolver URL.")
]
"""The argument of commands about one identifier; `parse_handle` and `parse_reference` read it."""

Prefix: TypeAlias = Annotated[str, typer.Argument(metavar="PREFIX", help="The prefix of the namespace.")]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenInstallation:
    """An open installation, and the identity that works on it."""

    installation: Installation
    registry: Registry
    identity: Identity

    def do(self, command: Command[T], note: str = "", *, keep_history: bool = False) -> T:
        """Execute a command; its change is durable when this returns."""
        return self.registry.do(command, self.identity, INTERFACE, keep_history_note(note) if keep_history else note)


@contextmanager
def open_installation(directory: Path | None, acting_as: str | None = None) -> Iterator[OpenInstallation]:
    """Open the installation of a command."""
    identity = get_identity(acting_as)
    with Installation.open(resolve_directory(directory)) as installation:
        yield OpenInstallation(installation, installation.registry(), identity)


def get_identity(acting_as: str | None) -> Identity:
    """Return the identity of the system user, or the one of `--as`."""
    if acting_as is None:
        return LocalIdentity(_user_name())
    return KeyIdentity(parse_value_ref(acting_as, "--as"), Proof.FILE_PERMISSION)


def parse_value_ref(text: str, option: str) -> ValueRef:
    """Parse `INDEX:HANDLE` from an option."""
    try:
        ref = ref_from_text(text)
        Handle.parse(ref.handle)
    except (InvalidData, InvalidName) as problem:
        raise typer.BadParameter(f"{problem}; use INDEX:HANDLE, as in 300:0.NA/12345", param_hint=option) from problem
    return ref


def parse_handle(text: str, *, new: bool = False) -> Handle:
    """Parse the handle of a change; refuse a URI with query or fragment, which are for resolution only.

    A `new` handle must follow the rules of this server. One that exists may come from another server.
    """
    reference = parse_user_input(text) if new else parse_reference(text)
    if reference.tail:
        message = f"{reference.tail} is a query or fragment, which only resolution accepts; use {reference.handle}"
        raise typer.BadParameter(message, param_hint="HANDLE")
    return reference.handle


def parse_reference(text: str) -> Reference:
    """Parse a handle to resolve, also one that cannot be registered here; one that is too long is not found (H9)."""
    try:
        return parse_user_input(text, for_lookup=True)
    except InvalidName as problem:
        if problem.rule == "H9":
            raise name_too_long(text) from problem
        raise


def print_changed(changed: ChangeResult, json: bool) -> None:
    """Print the handle of a change that is durable."""
    if json:
        print_json(to_changed(changed))
    else:
        typer.echo(str(changed.handle))


def _user_name() -> str:
    """Return the name of the system user, not of a variable: the ledger stores it permanently."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"

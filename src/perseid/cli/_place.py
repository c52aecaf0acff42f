"""Where commands work and as whom: an installation's directory, opened for one command.

On a directory the command line is server administrator by right of the file permissions, recorded as `local:<user>`;
`--as INDEX:HANDLE` acts as, and is limited to, that identity. The namespace's policy binds both.

How commands are declared stands in the package's docstring. Most are a few lines over what is here:

    def delete(handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
        with opened(directory, acting_as) as place:
            show_changed(place.do(Delete(named(handle))), json)
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
from perseid.records.value import ValueRef, ref_from_text
from perseid.registry.context import Command, name_too_long
from perseid.registry.identity import Identity, KeyIdentity, LocalIdentity, Proof
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.history import keep_history_note
from perseid.registry.registry import Registry
from perseid.registry.results import ChangeResult
from perseid.registry.snapshot import Rules

from ._directory import Directory, directory_of
from ._output import print_json

__all__ = ["Directory", "directory_of"]

INTERFACE: Final = "cli"
"""What the ledger records as the way in."""

ActingAs: TypeAlias = Annotated[
    str | None,
    typer.Option("--as", metavar="INDEX:HANDLE", help="Act as this identity, with its rights instead of yours."),
]
"""The option of commands that need a right."""

Note: TypeAlias = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why; kept with the change, for administrators to read.")
]
"""The option of commands that change something."""

KeepHistory: TypeAlias = Annotated[
    bool, typer.Option("--keep-past", help="Hide nothing of the past; otherwise that is hidden as well.")
]
"""The option of commands that take something from the public; without it its past is hidden as well."""

Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="HANDLE", help="The name: a handle, `hdl:` URI or resolver URL.")
]
"""The argument of commands about one name; `named` and `asked_for` read it."""

Prefix: TypeAlias = Annotated[str, typer.Argument(metavar="PREFIX", help="The prefix of the namespace.")]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenInstallation:
    """An opened installation, and who works on it."""

    installation: Installation
    registry: Registry
    identity: Identity

    def do(self, command: Command[T], note: str = "", *, keep_past: bool = False) -> T:
        """Carry out an operation; when this returns, it is durable."""
        return self.registry.do(command, self.identity, INTERFACE, keep_history_note(note) if keep_past else note)


@contextmanager
def open_installation(directory: Path | None, acting_as: str | None = None) -> Iterator[OpenInstallation]:
    """Open the installation that a command is meant for."""
    identity = get_identity(acting_as)
    with Installation.open(directory_of(directory)) as installation:
        yield OpenInstallation(installation, open_registry(installation), identity)


def open_registry(installation: Installation) -> Registry:
    """The registry over an installation that is open, with the rules of its settings."""
    config = installation.config
    default = PROFILES[config.default_profile]
    rules = Rules(installation.administration, default, config.server_listing_allowed, config.templates_delimiter)
    return Registry(installation.ledger, rules)


def get_identity(acting_as: str | None) -> Identity:
    """Who works: the system user, or whom they act as."""
    if acting_as is None:
        return LocalIdentity(_user_name())
    return KeyIdentity(parse_value_ref(acting_as, "--as"), Proof.FILE_PERMISSION)


def parse_value_ref(text: str, option: str) -> ValueRef:
    """Take `INDEX:HANDLE` from an option."""
    try:
        found = ref_from_text(text)
        Handle.parse(found.handle)
    except (InvalidData, InvalidName) as problem:
        raise typer.BadParameter(f"{problem}; write INDEX:HANDLE, as in 300:0.NA/12345", param_hint=option) from problem
    return found


def parse_handle(text: str, *, new: bool = False) -> Handle:
    """The name that a change is about. Query and fragment belong to look-ups, so a URI with one is refused.

    A `new` one has to be legal here. What exists may have come from another server, and be none that is made here.
    """
    found = parse_user_input(text) if new else parse_reference(text)
    if found.tail:
        message = f"{found.tail} is a query or fragment, which belongs to a look-up; name {found.handle} alone"
        raise typer.BadParameter(message, param_hint="HANDLE")
    return found.handle


def parse_reference(text: str) -> Reference:
    """The name that is looked up; also one that could not be registered here. An over-long one is not found (H9)."""
    try:
        return parse_user_input(text, for_lookup=True)
    except InvalidName as problem:
        if problem.rule == "H9":
            raise name_too_long(text) from problem
        raise


def print_changed(changed: ChangeResult, json: bool) -> None:
    """Print the name of a record that was changed; it is durable by then."""
    if json:
        print_json({"handle": str(changed.handle), "seq": changed.seq})
    else:
        typer.echo(str(changed.handle))


def _user_name() -> str:
    """The system user as the system knows it, whatever variables say: it stands in the ledger for ever."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid-{number}"

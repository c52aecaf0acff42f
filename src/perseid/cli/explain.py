"""`perseid explain`: would this be allowed, and why or why not; nothing is done.

The exit code is the one that the command itself would have had: 0 if it is allowed, 3 or 4 if not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from perseid.registry.commands.lifecycle import Publish, Unpublish
from perseid.registry.commands.minting import Maker, Mint
from perseid.registry.commands.records import Delete, Remove, placed
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Operation
from perseid.registry.registry import Registry
from perseid.registry.results import Explained

from ._failures import NOT_FOUND, REFUSED, is_not_found
from ._loading import Group, command
from ._output import AsJson, print_json
from ._place import DOOR, ActingAs, Directory, Name, Prefix, named, opened, reference
from ._values import FromOption, UrlOption, ValueArguments, ValueOption, parse_all
from .lifecycle import Undo, end_or_undo
from .records import Again, Indexes, Overwrite, addition, creation, setting

app = typer.Typer(
    cls=Group,
    help="Say whether something would be allowed, and why not. Nothing is done; the exit code is that of the command.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@command(app, "create")
def explain_create(  # noqa: PLR0913 - options
    handle: Name,
    *,
    url: UrlOption = None,
    value: ValueOption = None,
    record: FromOption = None,
    overwrite: Overwrite = False,
    again: Again = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether a record could be made.

    For example:
        perseid explain create 102.100.272/BCDFGHJKH --url https://example.org/1
    """
    operation = creation(handle, url, value, record, overwrite, again)
    _explain(lambda _: operation, directory, acting_as, json)


@command(app, "set")
def explain_set(
    handle: Name,
    value: ValueArguments = None,
    record: FromOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether values could be put in the place of others.

    For example:
        perseid explain set 102.100.272/8RBZF0DQH URL=https://example.org/policy --json
    """
    operation = setting(handle, value, record)
    _explain(lambda _: operation, directory, acting_as, json)


@command(app, "add")
def explain_add(
    handle: Name,
    value: ValueArguments = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether values could be added.

    For example:
        perseid explain add 102.100.272/8RBZF0DQH EMAIL=policy@pilin.net.au
    """
    operation = addition(handle, value)
    _explain(lambda _: operation, directory, acting_as, json)


@command(app, "remove")
def explain_remove(
    handle: Name,
    index: Indexes,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether values could be removed.

    For example:
        perseid explain remove 102.100.272/0N8J991QH 2
    """
    _explain(lambda _: Remove(named(handle), tuple(index)), directory, acting_as, json)


@command(app, "delete")
def explain_delete(handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Say whether a record could be deleted.

    For example:
        perseid explain delete 102.100.TYPE/LINK.WORK
    """
    _explain(lambda _: Delete(named(handle)), directory, acting_as, json)


@command(app, "mint")
def explain_mint(
    prefix: Prefix,
    url: UrlOption = None,
    value: ValueOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether new names could be made.

    For example:
        perseid explain mint 102.100.272 --url https://example.org/1
    """
    values = placed(parse_all(value, url))
    _explain(lambda registry: Mint(Maker.of(registry), prefix, values=values), directory, acting_as, json)


@command(app, "publish")
def explain_publish(
    handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Say whether a name could be published.

    For example:
        perseid explain publish 102.100.272/8RBZF0DQH
    """
    _explain(lambda _: Publish(named(handle)), directory, acting_as, json)


@command(app, "unpublish")
def explain_unpublish(
    handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Say whether a name could be hidden.

    For example:
        perseid explain unpublish 102.100.272/8RBZF0DQH
    """
    _explain(lambda _: Unpublish(named(handle)), directory, acting_as, json)


@command(app, "tombstone")
def explain_tombstone(
    handle: Name,
    undo: Undo = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether a tombstone could be put, or taken away.

    For example:
        perseid explain tombstone 102.100.272/D7J1G0DQH
    """
    operation = end_or_undo(handle, None if undo else "gone", None, undo=undo)
    _explain(lambda _: operation, directory, acting_as, json)


@command(app, "transfer")
def explain_transfer(
    handle: Name,
    to: Annotated[str, typer.Option("--to", metavar="INDEX:HANDLE", help="The new owner.")],
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether a name could be given to another owner.

    For example:
        perseid explain transfer 102.100.272/D7J1G0DQH --to 200:0.NA/102.100.272
    """
    _explain(lambda _: Transfer(named(handle), reference(to, "--to")), directory, acting_as, json)


commands: dict[str, Callable[..., None] | typer.Typer] = {"explain": app}


def _explain(
    operation: Callable[[Registry], Operation[object]], directory: Path | None, acting_as: str | None, json: bool
) -> None:
    with opened(directory, acting_as) as place:
        found = place.registry.explain(operation(place.registry), place.who, DOOR)
    if json:
        print_json(_plain(found))
    else:
        typer.echo(f"{'allowed' if found.allowed else 'refused'}: {found.reason}")
        if found.advice:
            typer.echo(f"{found.advice[:1].upper()}{found.advice[1:]}")
    if not found.allowed:
        raise typer.Exit(NOT_FOUND if is_not_found(found.code) else REFUSED)


def _plain(found: Explained) -> dict[str, object]:
    return {
        "allowed": found.allowed,
        "reason": found.reason,
        "advice": found.advice or None,
        "rule": found.rule or None,
        "responseCode": None if found.code is None else int(found.code),
    }

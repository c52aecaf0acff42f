"""`perseid explain`: would this be allowed, and why or why not; nothing is done.

The exit code is the one that the command itself would have had: 0 if it is allowed, 3 or 4 if not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from perseid.registry.commands.lifecycle import Publish, Unpublish
from perseid.registry.commands.minting import Mint, MintInputs
from perseid.registry.commands.records import Delete, Remove, assign_indexes
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Command
from perseid.registry.registry import Registry
from perseid.registry.results import Explanation

from ._failures import NOT_FOUND, REFUSED, is_not_found
from ._loading import Group, register_command
from ._output import AsJson, print_json
from ._place import INTERFACE, ActingAs, Directory, Name, Prefix, open_installation, parse_handle, parse_value_ref
from ._values import FromOption, UrlOption, ValueArguments, ValueOption, parse_values
from .lifecycle import Undo, tombstone_command
from .records import Indexes, Overwrite, ReuseDeleted, add_command, create_command, set_command

app = typer.Typer(
    cls=Group,
    help="Say whether something would be allowed, and why not. Nothing is done; the exit code is that of the command.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(app, "create")
def explain_create(  # noqa: PLR0913 - options
    handle: Name,
    *,
    url: UrlOption = None,
    value: ValueOption = None,
    record: FromOption = None,
    overwrite: Overwrite = False,
    again: ReuseDeleted = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say whether a record could be made.

    For example:
        perseid explain create 102.100.272/BCDFGHJKH --url https://example.org/1
    """
    command = create_command(handle, url, value, record, overwrite, again)
    _explain(lambda _: command, directory, acting_as, json)


@register_command(app, "set")
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
    command = set_command(handle, value, record)
    _explain(lambda _: command, directory, acting_as, json)


@register_command(app, "add")
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
    command = add_command(handle, value)
    _explain(lambda _: command, directory, acting_as, json)


@register_command(app, "remove")
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
    _explain(lambda _: Remove(parse_handle(handle), tuple(index)), directory, acting_as, json)


@register_command(app, "delete")
def explain_delete(handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Say whether a record could be deleted.

    For example:
        perseid explain delete 102.100.TYPE/LINK.WORK
    """
    _explain(lambda _: Delete(parse_handle(handle)), directory, acting_as, json)


@register_command(app, "mint")
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
    values = assign_indexes(parse_values(value, url))
    _explain(lambda registry: Mint(MintInputs.of(registry), prefix, values=values), directory, acting_as, json)


@register_command(app, "publish")
def explain_publish(
    handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Say whether a name could be published.

    For example:
        perseid explain publish 102.100.272/8RBZF0DQH
    """
    _explain(lambda _: Publish(parse_handle(handle)), directory, acting_as, json)


@register_command(app, "unpublish")
def explain_unpublish(
    handle: Name, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Say whether a name could be hidden.

    For example:
        perseid explain unpublish 102.100.272/8RBZF0DQH
    """
    _explain(lambda _: Unpublish(parse_handle(handle)), directory, acting_as, json)


@register_command(app, "tombstone")
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
    command = tombstone_command(handle, None if undo else "gone", None, undo=undo)
    _explain(lambda _: command, directory, acting_as, json)


@register_command(app, "transfer")
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
    _explain(lambda _: Transfer(parse_handle(handle), parse_value_ref(to, "--to")), directory, acting_as, json)


commands: dict[str, Callable[..., None] | typer.Typer] = {"explain": app}


def _explain(
    command: Callable[[Registry], Command[object]], directory: Path | None, acting_as: str | None, json: bool
) -> None:
    with open_installation(directory, acting_as) as session:
        found = session.registry.explain(command(session.registry), session.identity, INTERFACE)
    if json:
        print_json(_to_json(found))
    else:
        typer.echo(f"{'allowed' if found.allowed else 'refused'}: {found.reason}")
        if found.advice:
            typer.echo(f"{found.advice[:1].upper()}{found.advice[1:]}")
    if not found.allowed:
        raise typer.Exit(NOT_FOUND if is_not_found(found.code) else REFUSED)


def _to_json(found: Explanation) -> dict[str, object]:
    return {
        "allowed": found.allowed,
        "reason": found.reason,
        "advice": found.advice or None,
        "rule": found.rule or None,
        "responseCode": None if found.code is None else int(found.code),
    }

"""`perseid explain`: whether a command would be allowed, and why.

The exit code is that of the command: 0 if it is allowed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perseid.registry.commands.lifecycle import Publish, Unpublish
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Delete, Remove, ReplaceRecord, assign_indexes
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Command
from perseid.registry.responses import to_explanation
from perseid.schema.records import (
    ExplainRequest,
    ToAdd,
    ToCreate,
    ToDelete,
    ToMint,
    ToPublish,
    ToRemove,
    ToReplace,
    ToSet,
    ToTombstone,
    ToTransfer,
    ToUnpublish,
)

from ._advice import render_advice, render_problem
from ._arguments import (
    INTERFACE,
    ActingAs,
    Directory,
    FromOption,
    HandleArgument,
    Prefix,
    UrlOption,
    ValueArguments,
    ValueOption,
    open_installation,
    parse_handle,
    parse_value_ref,
    parse_values,
    print_warnings,
    printable,
)
from ._commands import Group, register_command
from ._common_options import REMOTE
from ._errors import exit_code_of_number, exit_code_of_refusal
from ._output import AsJson, print_json, print_text
from .lifecycle import Undo, tombstone_command
from .records import Indexes, Overwrite, ReuseDeleted, add_command, create_command, set_command, to_inputs

app = typer.Typer(
    cls=Group,
    help="Explain whether a command would be allowed. Nothing is changed; the exit code is that of the command.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(app, "create")
def explain_create(  # noqa: PLR0913 - options
    handle: HandleArgument,
    *,
    url: UrlOption = None,
    value: ValueOption = None,
    record: FromOption = None,
    overwrite: Overwrite = False,
    reuse_deleted: ReuseDeleted = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Explain whether a record could be created.

    For example:
        perseid explain create 102.100.272/BCDFGHJKH --url https://example.org/1
    """
    command = create_command(handle, url, value, record, overwrite, reuse_deleted)
    values = tuple(to_inputs((*command.complete, *command.values)))
    request = ToCreate(str(command.handle), values, overwrite, reuse_deleted)
    _explain(command, request, directory, acting_as, json)


@register_command(app, "set")
def explain_set(
    handle: HandleArgument,
    value: ValueArguments = None,
    record: FromOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Explain whether values could be set.

    For example:
        perseid explain set 102.100.272/8RBZF0DQH URL=https://example.org/policy --json
    """
    command = set_command(handle, value, record)
    name = str(command.handle)
    if isinstance(command, ReplaceRecord):
        _explain(command, ToReplace(name, tuple(to_inputs(command.complete))), directory, acting_as, json)
    else:
        _explain(command, ToSet(name, tuple(to_inputs(command.values))), directory, acting_as, json)


@register_command(app, "add")
def explain_add(
    handle: HandleArgument,
    value: ValueArguments = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Explain whether values could be added.

    For example:
        perseid explain add 102.100.272/8RBZF0DQH EMAIL=policy@pilin.net.au
    """
    command = add_command(handle, value)
    request = ToAdd(str(command.handle), tuple(to_inputs(command.values)))
    _explain(command, request, directory, acting_as, json)


@register_command(app, "remove")
def explain_remove(
    handle: HandleArgument,
    index: Indexes,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Explain whether values could be removed.

    For example:
        perseid explain remove 102.100.272/0N8J991QH 2
    """
    name = parse_handle(handle)
    _explain(Remove(name, tuple(index)), ToRemove(str(name), index), directory, acting_as, json)


@register_command(app, "delete")
def explain_delete(
    handle: HandleArgument, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Explain whether a record could be deleted.

    For example:
        perseid explain delete 102.100.TYPE/LINK.WORK
    """
    name = parse_handle(handle)
    _explain(Delete(name), ToDelete(str(name)), directory, acting_as, json)


@register_command(app, "mint")
def explain_mint(
    prefix: Prefix,
    url: UrlOption = None,
    value: ValueOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Explain whether identifiers could be minted.

    For example:
        perseid explain mint 102.100.272 --url https://example.org/1
    """
    values = parse_values(value, url)
    request = ToMint(prefix, tuple(to_inputs(values)))
    _explain(Mint(prefix, values=assign_indexes(values)), request, directory, acting_as, json)


@register_command(app, "publish")
def explain_publish(
    handle: HandleArgument, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Explain whether an identifier could be published.

    For example:
        perseid explain publish 102.100.272/8RBZF0DQH
    """
    name = parse_handle(handle)
    _explain(Publish(name), ToPublish(str(name)), directory, acting_as, json)


@register_command(app, "unpublish")
def explain_unpublish(
    handle: HandleArgument, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Explain whether an identifier could be unpublished.

    For example:
        perseid explain unpublish 102.100.272/8RBZF0DQH
    """
    name = parse_handle(handle)
    _explain(Unpublish(name), ToUnpublish(str(name)), directory, acting_as, json)


@register_command(app, "tombstone")
def explain_tombstone(
    handle: HandleArgument,
    undo: Undo = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Explain whether a tombstone could be set or removed.

    For example:
        perseid explain tombstone 102.100.272/D7J1G0DQH
    """
    command = tombstone_command(handle, None if undo else "gone", None, undo=undo)
    _explain(command, ToTombstone(str(command.handle), undo), directory, acting_as, json)


@register_command(app, "transfer")
def explain_transfer(
    handle: HandleArgument,
    to: Annotated[str, typer.Option("--to", metavar="INDEX:HANDLE", help="The new owner.")],
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Explain whether an identifier could be transferred.

    For example:
        perseid explain transfer 102.100.272/D7J1G0DQH --to 200:0.NA/102.100.272
    """
    name, owner = parse_handle(handle), parse_value_ref(to, "--to")
    _explain(Transfer(name, owner), ToTransfer(str(name), str(owner)), directory, acting_as, json)


commands: dict[str, Callable[..., None] | typer.Typer] = {"explain": app}


def _explain(
    command: Command[object], request: ExplainRequest, directory: Path | None, acting_as: str | None, json: bool
) -> None:
    """Explain a command of an installation, or the same request to a server."""
    connect = REMOTE.get()
    if connect is not None:
        with connect() as client:
            sent = client.explain(request)
        explanation = msgspec.structs.replace(sent, advice=render_problem(sent) or None)
        exit_code = exit_code_of_number(sent.code)
    else:
        with open_installation(directory, acting_as) as session:
            found = session.registry.explain(command, session.identity, INTERFACE)
        explanation = to_explanation(found, render_advice(found.advice))
        exit_code = 0 if found.refused is None else exit_code_of_refusal(found.refused)
    if json:
        print_json(explanation)
    else:
        print_text(f"{'allowed' if explanation.allowed else 'refused'}: {printable(explanation.reason)}")
        if explanation.advice:
            print_text(printable(explanation.advice))
        print_warnings(explanation.warnings)
    if not explanation.allowed:
        raise typer.Exit(exit_code)

"""`perseid link`: link two identifiers to each other in one change."""

from collections.abc import Callable
from typing import Annotated

import typer

from perseid.registry.commands.transfer import LinkMetadata, LinkResult, LinkVersion
from perseid.registry.responses import to_linked

from ._commands import Group, register_command
from ._installation import ActingAs, Directory, Note, open_installation, parse_handle
from ._output import AsJson, print_json

app = typer.Typer(
    cls=Group,
    help="Link two identifiers to each other, by values of the types that the policy names.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(app, "version")
def version(
    work: Annotated[str, typer.Argument(metavar="WORK", help="The identifier of the work: its latest version.")],
    expression: Annotated[str, typer.Argument(metavar="VERSION", help="The identifier of one fixed version.")],
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Link a work with one fixed version of it.

    The identifier of a work always resolves to the latest version; each version that is cited has its own identifier.
    A work can have many versions, a version has one work. To unlink them, remove the values.

    For example:
        perseid link version 102.100.272/Y35XYS0QH 102.100.272/2RDV0T0QH
    """
    with open_installation(directory, acting_as) as session:
        _print_linked(session.do(LinkVersion(parse_handle(work), parse_handle(expression)), note), json)


@register_command(app, "metadata")
def metadata(
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="The identifier of the resource.")],
    description: Annotated[str, typer.Argument(metavar="METADATA", help="The identifier of its metadata record.")],
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Link a resource with its metadata record, which has its own identifier.

    Each can have one link of this kind. `perseid mint --with-metadata` mints and links both.

    For example:
        perseid link metadata 102.100.272/Y35XYS0QH 102.100.272/8RBZF0DQH
    """
    with open_installation(directory, acting_as) as session:
        _print_linked(session.do(LinkMetadata(parse_handle(resource), parse_handle(description)), note), json)


def _print_linked(linked: LinkResult, json: bool) -> None:
    if json:
        print_json(to_linked(linked))
    else:
        typer.echo("\n".join(map(str, linked.handles)))


commands: dict[str, Callable[..., None] | typer.Typer] = {"link": app}

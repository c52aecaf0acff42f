"""`perseid link`: let two names lead to each other, in one change."""

from collections.abc import Callable
from typing import Annotated

import typer

from perseid.registry.commands.transfer import LinkMetadata, LinkResult, LinkVersion

from ._loading import Group, register_command
from ._output import AsJson, print_json
from ._place import ActingAs, Directory, Note, open_installation, parse_handle

app = typer.Typer(
    cls=Group,
    help="Let two names lead to each other, by values of the types that the policy names.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(app, "version")
def version(
    work: Annotated[str, typer.Argument(metavar="WORK", help="The name that leads to the latest version.")],
    expression: Annotated[str, typer.Argument(metavar="VERSION", help="The name of one fixed version.")],
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Link a work with one fixed version of it.

    A work has one name, which always means the latest version, and each version that should stay citable has another.
    A work may have many versions, a version is of one work. A link is taken away by removing its values.

    For example:
        perseid link version 102.100.272/Y35XYS0QH 102.100.272/2RDV0T0QH
    """
    with open_installation(directory, acting_as) as session:
        _print_linked(session.do(LinkVersion(parse_handle(work), parse_handle(expression)), note), json)


@register_command(app, "metadata")
def metadata(
    thing: Annotated[str, typer.Argument(metavar="THING", help="The name of the thing.")],
    about: Annotated[str, typer.Argument(metavar="METADATA", help="The name of the record that describes it.")],
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Link a thing with the metadata record that describes it: two things, so they have two names.

    Each has one of the other. `perseid mint --with-metadata` makes both names, linked.

    For example:
        perseid link metadata 102.100.272/Y35XYS0QH 102.100.272/8RBZF0DQH
    """
    with open_installation(directory, acting_as) as session:
        _print_linked(session.do(LinkMetadata(parse_handle(thing), parse_handle(about)), note), json)


def _print_linked(linked: LinkResult, json: bool) -> None:
    """Print both names; it is durable by then. What was linked already has no entry."""
    names = [str(handle) for handle in linked.handles]
    if json:
        print_json({"handles": names, "seq": linked.seq or None})
    else:
        typer.echo("\n".join(names))


commands: dict[str, Callable[..., None] | typer.Typer] = {"link": app}

"""`perseid site`: a site of several servers, each with its share of the handles."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perseid.records.partition import HashOption
from perseid.records.site import Site
from perseid.registry.installation.installation import load_settings
from perseid.registry.installation.partition import add_server, find_misplaced, join_site
from perseid.registry.partition import Partition

from ._arguments import Directory, open_installation, printable, resolve_directory
from ._commands import Group, register_command
from ._output import AsJson, CommandFailed, pluralize, print_fields, print_json, print_message, print_text

app = typer.Typer(
    cls=Group,
    help="Divide the handles of a site among several servers, each with a ledger of its own.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


class Part(StrEnum):
    """The part of a handle that selects the server."""

    ALL = "all"
    PREFIX = "prefix"
    SUFFIX = "suffix"


@register_command(app, "add")
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The siteinfo.json of the installation to add.")],
    *,
    hash_: Annotated[
        Part | None,
        typer.Option("--hash", help="The part of a handle that selects the server; only with the second server."),
    ] = None,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The public URL of the added server.")] = "",
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Add the server of another installation to the site of this one.

    Then take the new description over at every other server: perseid site join. The responsible server of most handles
    changes, so records that exist must be moved; see perseid site misplaced. For a server that is in the site already,
    `--url` changes its URL: give the file with which it was added, or its own at that server.

    For example:
        perseid site add second/siteinfo.json
    """
    target = resolve_directory(directory).resolve()
    option = None if hash_ is None else HashOption[hash_.name]
    config = load_settings(target)
    site, paths = add_server(target, config, file, option, url)
    _print_site(site, config.site.position - 1, json=json, paths=paths)
    if not json:
        print_message(f"At each other server: perseid site join {printable(str(paths[-1]))}. Then restart all of them.")


@register_command(app, "join")
def join(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The siteinfo.json of the first server.")],
    *,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Take over the description of a site to which this server was added.

    For example:
        perseid site join first/siteinfo.json
    """
    target = resolve_directory(directory).resolve()
    site, position = join_site(target, load_settings(target), file)
    _print_site(site, position, json=json)
    if not json:
        print_message("Restart the server, if it runs.")


@register_command(app, "misplaced")
def misplaced(*, directory: Directory = None, json: AsJson = False) -> None:
    """List the handles with a record here that belong to another server of the site, and that server.

    For example:
        perseid site misplaced
    """
    with open_installation(directory) as session:
        partition = session.registry.rules.partition
        if partition is None:
            raise CommandFailed("The site has one server, which has all handles", "Add a server: perseid site add FILE")
        count = 0
        with session.registry.snapshot() as snapshot:
            for count, (handle, position) in enumerate(find_misplaced(snapshot.reader, partition), 1):  # noqa: B007
                if json:
                    print_json({"handle": handle, "server": position + 1, "address": partition.address(position)})
                else:
                    print_text(f"{printable(handle)}  {partition.address(position)}")
    if not json:
        print_message(f"{pluralize(count, 'handle')} of other servers")


def _print_site(site: Site, position: int, *, json: bool, paths: tuple[Path, ...] = ()) -> None:
    partition = Partition(site, position)
    servers = [partition.address(number) for number in range(len(site.servers))]
    hashed = site.hash_option.name.lower()
    if json:
        document = {"servers": servers, "position": position + 1, "hash": hashed, "serial": site.serial}
        print_json(document | ({"files": [str(path) for path in paths]} if paths else {}))
        return
    here = dict.fromkeys((position,), " (this server)")
    print_fields({f"server {number + 1}": address + here.get(number, "") for number, address in enumerate(servers)})
    print_fields({"hash": hashed, "serial number": site.serial})


commands = {"site": app}

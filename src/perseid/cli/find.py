"""`perseid find`: search for identifiers by their values, owners and changes."""

from collections.abc import Callable
from time import monotonic
from typing import Annotated, Final

import typer

from perseid.registry.queries.find import Search, SearchPage, find
from perseid.registry.queries.history import seq_at_time
from perseid.registry.queries.paging import MAX_PAGE
from perseid.registry.responses import to_found

from ._installation import ActingAs, Directory, OpenInstallation, open_installation, parse_reference
from ._output import AsJson, print_json, print_message
from ._values import printable

DEFAULT_SECONDS: Final = 60
"""Time limit of a search without an index; enough for some ten million URLs."""


def search(  # noqa: PLR0913 - options
    *,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="GLOB", help="The target; `*` matches any characters."),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="The host of the target, or a parent domain of it.")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--path", metavar="PATH", help="The beginning of the target's path, on any host.")
    ] = None,
    type_: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="The type of a value; `URL.` includes subtypes.")
    ] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="TEXT", help="The exact data of a value.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="PREFIX", help="The prefix of the handle.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", metavar="HANDLE", help="The owner or creator.")] = None,
    changed_since: Annotated[
        str | None, typer.Option("--changed-since", metavar="TIME|SEQ", help="Changed after this time or entry.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most N results.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Continue an earlier search from its cursor.")
    ] = None,
    seconds: Annotated[
        int, typer.Option("--seconds", metavar="N", min=1, help="Time limit of a search without an index.")
    ] = DEFAULT_SECONDS,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Find identifiers whose records match all conditions, one a line. By default there is no limit.

    Searches use an index. Only a URL that begins with `*`, or has one in its host, may need a scan of all targets;
    a message says so. With `--as`, results are limited to namespaces that the identity can list and to private values
    that it can read.

    For example:
        perseid find --owner 102.100.pilin2/XYZZY
        perseid find --type EMAIL --json
        perseid find --prefix 102.100.272 --changed-since 2026-01-01 --limit 2
    """
    if all(each is None for each in (url, host, path, type_, value, prefix, owner, changed_since)):
        raise typer.BadParameter("use at least one condition, as in --host example.org")
    with open_installation(directory, acting_as) as session:
        query = Search(
            url=url,
            host=host,
            path=path,
            type=type_,
            value=None if value is None else value.encode("utf-8", "surrogateescape"),
            owner=None if owner is None else str(parse_reference(owner).handle),
            prefix=prefix,
            since=None if changed_since is None else _parse_moment(session, changed_since),
        )
        _print_results(session, query, after, limit, seconds, json)


def _parse_moment(session: OpenInstallation, text: str) -> int:
    with session.registry.snapshot() as snapshot:
        return seq_at_time(snapshot.reader, text, session.registry.ledger.log.clock.now())


def _print_results(
    session: OpenInstallation, query: Search, after: str | None, limit: int | None, seconds: int, json: bool
) -> None:
    """Print the results page by page."""
    remaining, deadline, warned = limit, monotonic() + seconds, False
    while True:
        page = _find_page(session, query, after, MAX_PAGE if remaining is None else min(remaining, MAX_PAGE))
        if page.scans and not warned:
            print_message("No index supports this search: scanning all targets.")
            warned = True
        for result in page.items:
            if json:
                print_json(to_found(result))
            else:
                typer.echo(printable(result.handle))
        remaining = None if remaining is None else remaining - len(page.items)
        after = page.following
        if after is None:
            return
        if remaining == 0:
            print_message(f"There may be more results. To continue: --after {after}")
            return
        if page.scans and monotonic() > deadline:
            print_message(f"perseid: the search stopped after {seconds:,} s and is not complete")
            print_message(f"To continue: --after {after}. To search longer: --seconds N.")
            raise typer.Exit(1)


def _find_page(session: OpenInstallation, query: Search, after: str | None, limit: int) -> SearchPage:
    with session.registry.snapshot() as snapshot:
        return find(snapshot, session.identity, query, after, limit)


commands: dict[str, Callable[..., None] | typer.Typer] = {"find": search}

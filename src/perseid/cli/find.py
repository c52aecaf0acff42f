"""`perseid find`: which names lead there, hold this, belong to somebody, or have changed."""

from collections.abc import Callable
from time import monotonic
from typing import Annotated, Final

import typer

from perseid.records.json_form import value_to_json
from perseid.records.json_parsing import JsonObject
from perseid.registry.queries.find import Search, SearchPage, SearchResult, find
from perseid.registry.queries.history import MAX_PAGE, moment

from ._output import AsJson, print_json, print_message
from ._place import ActingAs, Directory, OpenInstallation, open_installation, parse_reference
from ._values import printable
from .verify import iso_time

DEFAULT_SECONDS: Final = 60
"""How long is looked through everything, where there is no index: some ten million URLs."""


def search_names(  # noqa: PLR0913 - options
    *,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="GLOB", help="They lead to this URL; `*` stands for any characters."),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="They lead to this host or one of its subdomains.")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--path", metavar="PATH", help="They lead to a path that begins so, on any host.")
    ] = None,
    type_: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="They have a value of this type; `URL.`: or a subtype.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="TEXT", help="They have a value that is exactly this.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="PREFIX", help="They are names of this namespace.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="HANDLE", help="They belong to this party: owner or creator.")
    ] = None,
    changed_since: Annotated[
        str | None, typer.Option("--changed-since", metavar="TIME|SEQ", help="They have changed since.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only so many names.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="PLACE", help="Go on where the same search ended before.")
    ] = None,
    seconds: Annotated[
        int, typer.Option("--seconds", metavar="N", min=1, help="How long to look where there is no index.")
    ] = DEFAULT_SECONDS,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Find names by what their records hold, one a line; there is no limit. What you ask for has to hold together.

    Indexes answer at once. Only for a URL that begins with `*`, or has one in its host, everything may have to be
    looked through, and you are told so. With `--as`, what that identity may see: names of namespaces that it may
    list, and private values that it may read.

    For example:
        perseid find --owner 102.100.pilin2/XYZZY
        perseid find --type EMAIL --json
        perseid find --prefix 102.100.272 --changed-since 2026-01-01 --limit 2
    """
    if all(each is None for each in (url, host, path, type_, value, prefix, owner, changed_since)):
        raise typer.BadParameter("say what to look for, as in --host example.org")
    with open_installation(directory, acting_as) as session:
        search = Search(
            url=url,
            host=host,
            path=path,
            type=type_,
            value=None if value is None else value.encode("utf-8", "surrogateescape"),
            owner=None if owner is None else str(parse_reference(owner).handle),
            prefix=prefix,
            since=None if changed_since is None else _parse_moment(session, changed_since),
        )
        _print_results(session, search, after, limit, seconds, json)


def _parse_moment(session: OpenInstallation, when: str) -> int:
    with session.registry.snapshot() as snapshot:
        return moment(snapshot.reading, when, session.registry.ledger.log.clock.now())


def _print_results(
    session: OpenInstallation, search: Search, after: str | None, limit: int | None, seconds: int, json: bool
) -> None:
    """Print what is found, page by page."""
    left, deadline, told = limit, monotonic() + seconds, False
    while True:
        page = _find_page(session, search, after, MAX_PAGE if left is None else min(left, MAX_PAGE))
        if page.scans and not told:
            print_message("No index answers that: everything is looked through.")
            told = True
        for found in page.items:
            if json:
                print_json(_to_json(found))
            else:
                typer.echo(printable(found.handle))
        left = None if left is None else left - len(page.items)
        after = page.following
        if after is None:
            return
        if left == 0:
            print_message(f"There may be more: --after {after}")
            return
        if page.scans and monotonic() > deadline:
            print_message(f"perseid: after {seconds:,} s not everything was looked through")
            print_message(f"Go on with --after {after}, or allow more --seconds.")
            raise typer.Exit(1)


def _find_page(session: OpenInstallation, search: Search, after: str | None, limit: int) -> SearchPage:
    with session.registry.snapshot() as snapshot:
        return find(snapshot, session.identity, search, after, limit)


def _to_json(found: SearchResult) -> JsonObject:
    return {
        "handle": found.handle,
        "state": found.state.name.lower(),
        "seq": found.seq,
        "changed": iso_time(found.at),
        "values": [value_to_json(value) for value in found.values],
    }


commands: dict[str, Callable[..., None] | typer.Typer] = {"find": search_names}

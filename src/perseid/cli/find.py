"""`perseid find`: which names lead there, hold this, belong to somebody, or have changed."""

from collections.abc import Callable
from time import monotonic
from typing import Annotated, Final

import typer

from perseid.records.json_form import value_to_json
from perseid.records.json_parsing import JsonObject
from perseid.registry.queries.find import Found, FoundPage, Search, find
from perseid.registry.queries.history import MAX_PAGE, moment

from ._output import AsJson, hint, print_json
from ._place import ActingAs, Directory, Place, asked_for, opened
from ._values import printable
from .verify import iso_time

SECONDS: Final = 60
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
    ] = SECONDS,
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
    with opened(directory, acting_as) as place:
        search = Search(
            url=url,
            host=host,
            path=path,
            type=type_,
            value=None if value is None else value.encode("utf-8", "surrogateescape"),
            owner=None if owner is None else str(asked_for(owner).handle),
            prefix=prefix,
            since=None if changed_since is None else _moment(place, changed_since),
        )
        _show(place, search, after, limit, seconds, json)


def _moment(place: Place, when: str) -> int:
    with place.registry.facts() as facts:
        return moment(facts.reading, when, place.registry.ledger.log.clock.now())


def _show(place: Place, search: Search, after: str | None, limit: int | None, seconds: int, json: bool) -> None:
    """Print what is found, page by page."""
    left, deadline, told = limit, monotonic() + seconds, False
    while True:
        page = _page(place, search, after, MAX_PAGE if left is None else min(left, MAX_PAGE))
        if page.scans and not told:
            hint("No index answers that: everything is looked through.")
            told = True
        for found in page.items:
            if json:
                print_json(_document(found))
            else:
                typer.echo(printable(found.handle))
        left = None if left is None else left - len(page.items)
        after = page.following
        if after is None:
            return
        if left == 0:
            hint(f"There may be more: --after {after}")
            return
        if page.scans and monotonic() > deadline:
            hint(f"perseid: after {seconds:,} s not everything was looked through")
            hint(f"Go on with --after {after}, or allow more --seconds.")
            raise typer.Exit(1)


def _page(place: Place, search: Search, after: str | None, limit: int) -> FoundPage:
    with place.registry.facts() as facts:
        return find(facts, place.who, search, after, limit)


def _document(found: Found) -> JsonObject:
    return {
        "handle": found.handle,
        "state": found.state.name.lower(),
        "seq": found.seq,
        "changed": iso_time(found.at),
        "values": [value_to_json(value) for value in found.values],
    }


commands: dict[str, Callable[..., None] | typer.Typer] = {"find": search_names}

"""`perseid resolve`, `find`, `cite` and `qr`: read, search and cite identifiers."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, parse_uri
from perseid.schema.common import HandleState
from perseid.schema.queries import MAX_SCALE, FindQuery, FoundHandlePage, ImageFormat, Selectors, Style

from ._arguments import (
    ActingAs,
    After,
    Directory,
    HandleArgument,
    Limit,
    OpenInstallation,
    format_data,
    load_values,
    open_installation,
    parse_reference,
    print_more,
    printable,
)
from ._common_options import NATIVE, REMOTE, parse_resolver
from ._output import STANDARD_INPUT, AsJson, CommandFailed, for_each, print_json, print_message, print_text

if TYPE_CHECKING:  # loading them takes longer than showing help
    from perseid.client import Client
    from perseid.registry.queries.find import Search
    from perseid.schema.namespaces import Authority
    from perseid.schema.queries import CitationResponse
    from perseid.schema.records import Record

    from ._local import LocalReader
    from ._native import NativeTarget

_STATE_DESCRIPTIONS: Final = {
    "tombstone": "a tombstone: the resource is gone",
    "unpublished": "unpublished: only administrators can see it",
    "reserved": "reserved: it has no record yet",
}


def resolve(  # noqa: PLR0913 - options
    handles: Annotated[
        list[str],
        typer.Argument(metavar="HANDLE...", help="Handles, `hdl:` URIs or resolver URLs; - reads them from lines."),
    ],
    *,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only values of this type; `TYPE.` includes subtypes."),
    ] = None,
    index: Annotated[list[int] | None, typer.Option("--index", metavar="INDEX", help="Only this value.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME|SEQ", help="The record at a time, or at an entry of the ledger.")
    ] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Include private values, and unpublished and reserved handles, if you can."),
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Follow aliases.")] = False,
    authority: Annotated[
        bool, typer.Option("--authority", help="Show the authority metadata: dates, creator and owners.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show the records of handles: one value on each line, with index, type and data.

    With several handles, each record follows its handle; with `--json` each is one line. All are tried; the exit code
    is 3 if one is not found. `-` reads handles from standard input, one a line.

    `--at` shows the record at an earlier time. The number of an entry always gives the same result, so use it in
    citations. `--type` and `--index` are repeatable and select all matching values.

    For example:
        perseid resolve 102.100.272/8RBZF0DQH
        perseid resolve 102.100.272/2RDV0T0QH --authority
        perseid resolve 102.100.272/8RBZF0DQH 102.100.272/X4NDP2JQH --json
        perseid resolve http://resolver.net.au/hdl/102.100.272/8RBZF0DQH --type DESC --index 100
        perseid resolve hdl:2000.01/EEF4DF17361A42E2B975E554663B70C3 --at 30 --json
    """
    if authority and at is not None:
        raise typer.BadParameter("cannot be used with --at", param_hint="--authority")
    is_single = len(handles) == 1 and handles[0] != STANDARD_INPUT

    import msgspec  # noqa: PLC0415 - see above

    from perseid.client.errors import ClientError  # noqa: PLC0415

    def read(text: str) -> "tuple[Record, Authority | None]":
        reference = parse_reference(text)
        record = reader.resolve(
            str(reference.handle), types=type_ or (), indexes=index or (), at=at, private=private, follow=follow
        )
        metadata = read_authority(record.handle) if authority else None
        own_query = reference.query if record.query is None else record.query
        fragment = reference.fragment if record.fragment is None else record.fragment
        return msgspec.structs.replace(record, query=own_query, fragment=fragment), metadata

    def show(result: "tuple[Record, Authority | None]") -> None:
        record, metadata = result
        if json:
            print_json(metadata or record)
            return
        if not is_single:
            print_text(printable(record.handle))
        if metadata is not None:
            _print_authority(metadata)
        else:
            _print_values(record)
        _print_hints(record)

    with ExitStack() as stack:
        reader: Client | LocalReader | NativeTarget
        errors: tuple[type[Exception], ...] = (InvalidName, ClientError)
        connect, connect_native = REMOTE.get(), NATIVE.get()
        if connect_native is not None:
            if authority:
                raise import_module("._native", __package__).refuse_native("--authority")
            reader = stack.enter_context(connect_native())
        elif connect is not None:
            reader = stack.enter_context(connect())
            read_authority = reader.authority
        else:
            from perseid.registry.results import Refused  # noqa: PLC0415 - see above

            from . import _local  # noqa: PLC0415

            errors = (*errors, Refused)
            reader = stack.enter_context(_local.LocalReader(directory, acting_as))
            read_authority = partial(reader.authority, private=private)
        for_each(handles, read, show, json=json, errors=errors)


def _print_authority(metadata: "Authority") -> None:
    from perseid.registry.policy.authority import NOT_VERIFIED  # noqa: PLC0415 - see above

    if not metadata.required:
        print_message("The policy of the namespace does not require authority metadata.")
        return
    for label, time in (("created", metadata.created), ("updated", metadata.updated)):
        print_text(f"{label}  {time or 'unknown'}")
    for label, party in (("creator", metadata.creator), *[("owner", owner) for owner in metadata.owners]):
        text = "unknown" if party is None else printable(party.uri)
        remark = "" if party is None or party.verified else f"  ({NOT_VERIFIED})"
        print_text(f"{label:<7}  {text}{remark}")


def _print_hints(record: "Record") -> None:
    if record.copy:
        print_message("This is a copy: another service hosts the type.")
    if record.aliases:
        print_message(f"{printable(record.aliases[0])} is an alias of {printable(record.handle)}.")
    if record.state in _STATE_DESCRIPTIONS:
        print_message(f"The handle is {_STATE_DESCRIPTIONS[record.state]}.")
    for part, text in (("query", record.query), ("fragment", record.fragment)):
        if text is not None:
            print_message(f"The {part} belongs to the name, not to the record: {printable(text)}")
    if record.by_template:
        source = "" if record.template_base is None else f" from the record of {printable(record.template_base)}"
        print_message(f"The handle has no record of its own: a template created these values{source}.")
    if record.as_of is not None:
        source = "its latest source" if record.by_template else "the record"
        print_message(f"As of entry {record.as_of}; {source} is from entry {record.seq} ({record.changed}).")


def _print_values(record: "Record") -> None:
    values = load_values(record.values)
    width = max((len(str(value.index)) for value in values), default=0)
    types = [printable(value.type) + ("" if value.is_public else "!private") for value in values]
    for value, type_ in zip(values, types, strict=True):
        print_text(f"{value.index:>{width}}  {type_:<{max(map(len, types))}}  {format_data(value)}")


DEFAULT_SECONDS: Final = 60
"""Time limit of a search without an index; enough for some ten million URLs."""


UrlCondition: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="GLOB",
        help="The target; `*` matches any characters. To rewrite, only as the scheme and at the end.",
    ),
]
HostCondition: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="HOST",
        help="The host of the target, or a parent domain of it. `rewrite` leaves subdomains unchanged.",
    ),
]
PathCondition: TypeAlias = Annotated[
    str | None, typer.Option("--path", metavar="PATH", help="The beginning of the target's path, on any host.")
]
ValueCondition: TypeAlias = Annotated[
    str | None, typer.Option("--value", metavar="TEXT", help="The exact data of a value.")
]
ChangedSince: TypeAlias = Annotated[
    str | None, typer.Option("--changed-since", metavar="TIME|SEQ", help="Changed after this time or entry.")
]
WordsCondition: TypeAlias = Annotated[
    str | None,
    typer.Option("--words", metavar="TEXT", help="Words of the title, or their beginnings, whatever their case."),
]
PrefixCondition: TypeAlias = Annotated[
    str | None, typer.Option("--prefix", metavar="PREFIX", help="The prefix of the handle.")
]
TypeCondition: TypeAlias = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="The type of a value; `URL.` includes subtypes.")
]
OwnerCondition: TypeAlias = Annotated[
    str | None, typer.Option("--owner", metavar="HANDLE", help="The owner or creator.")
]


def search(  # noqa: PLR0913 - options
    *,
    url: UrlCondition = None,
    host: HostCondition = None,
    path: PathCondition = None,
    type_: TypeCondition = None,
    value: ValueCondition = None,
    words: WordsCondition = None,
    prefix: PrefixCondition = None,
    owner: OwnerCondition = None,
    changed_since: ChangedSince = None,
    state: Annotated[
        HandleState | None,
        typer.Option("--state", metavar="|".join(HandleState), help="The state of the handle, with another condition."),
    ] = None,
    limit: Limit = None,
    after: After = None,
    seconds: Annotated[
        int, typer.Option("--seconds", metavar="N", min=1, help="Time limit of a search without an index.")
    ] = DEFAULT_SECONDS,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Find identifiers whose records match all conditions, one a line. By default there is no limit.

    Searches use an index. Only a URL that begins with `*`, or has one in its host, may need a scan of all targets;
    a message says so. With `--as`, results are limited to namespaces that the identity can list, and to records and
    private values that it can read.

    For example:
        perseid mint 102.100.272 --url https://example.org/maps/1
        perseid find --host example.org
        perseid find --url "https://example.org/maps/*" --json
        perseid find --owner 102.100.pilin2/XYZZY
        perseid find --type EMAIL --json
        perseid find --words "authority meta"
        perseid find --prefix 102.100.272 --changed-since 2026-01-01 --limit 2
        perseid find --host example.org --state published
    """
    selectors = Selectors(url, host, path, type_, value, prefix, owner, changed_since=changed_since, words=words)
    if selectors == Selectors():
        raise typer.BadParameter("use at least one condition, as in --host example.org")
    connect = REMOTE.get()
    if connect is not None:
        with connect() as client:
            _print_results(partial(_find_remotely, client, selectors, state), after, limit, seconds, json)
        return
    with open_installation(directory, acting_as) as session:
        search = replace(select(session, selectors), state=state)
        _print_results(partial(_find_locally, session, search), after, limit, seconds, json)


def select(session: OpenInstallation, selectors: Selectors) -> "Search":
    """Return the search for the selectors of a command."""
    from perseid.registry.queries.find import build_search  # noqa: PLC0415 - see above

    with session.registry.snapshot() as snapshot:
        now = session.registry.ledger.log.clock.now()
        return build_search(snapshot.reader, selectors, lambda text: str(parse_reference(text).handle), now)


def _print_results(
    read_page: Callable[[str | None, int], FoundHandlePage],
    after: str | None,
    limit: int | None,
    seconds: int,
    json: bool,
) -> None:
    """Print the results page by page."""
    from perseid.registry.queries.paging import MAX_PAGE  # noqa: PLC0415 - see above

    remaining, deadline, warned = limit, monotonic() + seconds, False
    while True:
        page = read_page(after, MAX_PAGE if remaining is None else min(remaining, MAX_PAGE))
        if page.scans and not warned:
            print_message("No index supports this search: scanning all targets.")
            warned = True
        for result in page.results:
            if json:
                print_json(result)
            else:
                print_text(printable(result.handle))
        remaining = None if remaining is None else remaining - len(page.results)
        after = page.next
        if after is None:
            return
        if remaining == 0:
            print_more(after)
            return
        if page.scans and monotonic() > deadline:
            reason = f"The search stopped after {seconds:,} s and is not complete"
            raise CommandFailed(reason, f"To continue: --after {after}. To search longer: --seconds N.")


def _find_locally(session: OpenInstallation, query: "Search", after: str | None, limit: int) -> FoundHandlePage:
    from perseid.registry.queries.find import find  # noqa: PLC0415 - see above
    from perseid.registry.responses import to_found  # noqa: PLC0415

    with session.registry.snapshot() as snapshot:
        page = find(snapshot, session.identity, query, after, limit)
    return FoundHandlePage([to_found(each) for each in page.items], page.scans, next=page.following)


def _find_remotely(
    client: "Client", selectors: Selectors, state: HandleState | None, after: str | None, limit: int
) -> FoundHandlePage:
    import msgspec  # noqa: PLC0415 - see above

    fields = msgspec.structs.asdict(selectors)
    if selectors.owner is not None:
        fields["owner"] = str(parse_reference(selectors.owner).handle)
    request = type(client).find.request(client)
    return client.send(replace(request, query=FindQuery(**fields, state=state, limit=limit, cursor=after or "")))


STANDARD_OUTPUT = "-"


ResolverOption: TypeAlias = Annotated[
    Resolver | None,
    typer.Option(
        "--resolver",
        metavar="URL",
        parser=parse_resolver,
        help="The resolver of the HTTP form, as in `http://example.org/hdl`. Default: `http.public_url`.",
    ),
]


def cite(
    handle: HandleArgument,
    *,
    style: Annotated[
        Style,
        typer.Option(
            "--style",
            metavar="|".join(Style),
            help="The style of the citation; `hdl` and `http` are the link alone.",
        ),
    ] = Style.TEXT,
    resolver: ResolverOption = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME|SEQ", help="Cite the version at a time, or at an entry of the ledger."),
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Cite an identifier: its `hdl:` URI and, if a resolver is known, its URL, with the metadata of its record.

    The resolver is this installation if `http.public_url` is set, or the one of `--resolver`.

    Title, creators, date, publisher and description come from public values of the types TITLE, AUTHOR or CREATOR, DATE
    or ISSUED, PUBLISHER and DESC, alone, after `DC.`, or as the suffix of a registered type. Missing parts are left
    out. CSL-JSON is an array, as Zotero and pandoc import it.

    With `--at` the citation names the entry of the version, which `perseid resolve --at` shows.

    For example:
        perseid cite 102.100.272/X4NDP2JQH
        perseid cite 102.100.272/X4NDP2JQH --style bibtex
        perseid cite 102.100.272/X4NDP2JQH --style csl-json --at 30 --resolver http://resolver.net.au/hdl
        perseid cite hdl:102.100.272/2RDV0T0QH --json
    """
    from perseid.registry.queries.citation import get_citation  # noqa: PLC0415 - see above
    from perseid.registry.responses import to_citation  # noqa: PLC0415

    from ._local import LocalReader  # noqa: PLC0415

    reference = parse_reference(handle)
    connect = REMOTE.get()
    if connect is not None:
        with connect() as client:
            _print_citation(_cite_remotely(client, reference, style, resolver, at), json)
        return
    with LocalReader(directory, acting_as) as reader:
        resolver = resolver or reader.find_resolver()
        citation = reader.read(
            handle,
            lambda context, clock: get_citation(context, reference, resolver, at, clock),
            is_public=at is None,
        )
    _print_citation(to_citation(citation, style), json)


def _print_citation(cited: "CitationResponse", json: bool) -> None:
    if json:
        print_json(cited)
    else:
        print_text(cited.citation)


def _cite_remotely(
    client: "Client", reference: Reference, style: Style, resolver: Resolver | None, at: str | None = None
) -> "CitationResponse":
    if reference.tail:
        message = f"{reference.tail} is a query or fragment, which a server does not cite; use {reference.handle}"
        raise typer.BadParameter(message, param_hint="HANDLE")
    return client.cite(str(reference.handle), style=style, resolver=str(resolver or ""), at=at)


def qr(  # noqa: PLR0913 - options
    handle: HandleArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="FILE.svg or FILE.png. Default: SVG on standard output."),
    ] = None,
    format_: Annotated[
        ImageFormat | None,
        typer.Option("--format", metavar="svg|png", help="The format. Default: from the name of the file."),
    ] = None,
    scale: Annotated[
        int, typer.Option("--scale", metavar="N", help="Pixels (or SVG units) a module.", min=1, max=MAX_SCALE)
    ] = 8,
    resolver: ResolverOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Draw the QR code of an identifier: its URL at a resolver, or its `hdl:` URI without one.

    The resolver is this installation if `http.public_url` is set, or the one of `--resolver`. The identifier must
    exist, be reserved, or resolve by a template. With `-o`, the URL in the code is printed.

    For example:
        perseid qr 102.100.272/X4NDP2JQH -o code.svg
        perseid qr 102.100.272/X4NDP2JQH -o code.png --resolver http://resolver.net.au/hdl --json
        perseid qr 102.100.272/X4NDP2JQH
    """
    from perseid.registry.queries.citation import QrImage, find_printable_name, to_uri  # noqa: PLC0415 - see above

    reference = parse_reference(handle)
    image_format = _choose_format(output, format_)
    to_file = output is not None and str(output) != STANDARD_OUTPUT
    if json and not to_file:
        raise typer.BadParameter("requires a file: use -o FILE", param_hint="--json")
    connect = REMOTE.get()
    if connect is not None:
        with connect() as client:
            target, resolver = _find_printable_remotely(client, reference, resolver)
    else:
        from ._local import LocalReader  # noqa: PLC0415 - see above

        with LocalReader(directory, acting_as) as reader:
            target = reader.read(handle, lambda context, _: find_printable_name(context, reference), is_public=True)
            resolver = resolver or reader.find_resolver()
    code = QrImage.of(to_uri(target, resolver))
    image = code.png(scale) if image_format is ImageFormat.PNG else code.svg(scale)
    if output is None or not to_file:
        typer.echo(image, nl=False)
        return
    output.write_bytes(image)
    if json:
        about = {"url": code.text, "file": str(output), "format": image_format.value, "code": code.designator}
        print_json({"handle": str(target.handle), **about})
    else:
        print_text(code.text)


def _find_printable_remotely(
    client: "Client", reference: Reference, resolver: Resolver | None
) -> tuple[Reference, Resolver | None]:
    """The handle as registered, and the resolver in its code: the one of the option, or the server's own."""
    from perseid.client.errors import NotFound  # noqa: PLC0415 - see above

    if resolver is None:
        # The server cites its prefix handles even if the handle itself is only reserved.
        prefix_handle = f"0.NA/{reference.handle.prefix}"
        cited = client.cite(prefix_handle, style=Style.HDL)
        resolver = Resolver.parse(cited.http.removesuffix(f"/{prefix_handle}")) if cited.http else None
    try:
        uri = _cite_remotely(client, reference, Style.HDL, resolver).hdl
    except NotFound:  # it may be reserved
        return Reference(Handle.parse_lenient(client.resolve(str(reference.handle), private=True).handle)), resolver
    return parse_uri(uri, for_lookup=True), resolver


def _choose_format(output: Path | None, requested: ImageFormat | None) -> ImageFormat:
    if requested is not None:
        return requested
    if output is None or str(output) == STANDARD_OUTPUT:
        return ImageFormat.SVG
    extension = output.suffix.lower().removeprefix(".")
    if extension not in [each.value for each in ImageFormat]:
        raise typer.BadParameter("use a file name ending in .svg or .png, or --format svg|png", param_hint="-o")
    return ImageFormat(extension)


commands: dict[str, Callable[..., None] | typer.Typer] = {"resolve": resolve, "find": search, "cite": cite, "qr": qr}

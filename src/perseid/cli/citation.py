"""`perseid cite` and `perseid qr`: citations and QR codes of identifiers."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from perseid.names.errors import InvalidName
from perseid.names.uri import KNOWN_RESOLVERS, Resolver, to_http
from perseid.registry.context import Context
from perseid.registry.queries.citation import FORMATTERS, MAX_SCALE, QrImage, find_printable_name, get_citation
from perseid.registry.responses import to_citation
from perseid.schema.queries import ImageFormat, Style

from ._installation import INTERFACE, ActingAs, Directory, HandleArgument, open_installation, parse_reference
from ._output import AsJson, print_json

STANDARD_OUTPUT = "-"


def _parse_resolver(text: str) -> Resolver:
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise typer.BadParameter(problem.message) from problem


ResolverOption: TypeAlias = Annotated[
    Resolver | None,
    typer.Option(
        "--resolver",
        metavar="URL",
        parser=_parse_resolver,
        help=f"The resolver of the HTTP form, as in `http://example.org/hdl`. Default: {KNOWN_RESOLVERS[0]}.",
    ),
]


def cite(
    handle: HandleArgument,
    *,
    style: Annotated[
        Style, typer.Option("--style", metavar="|".join(FORMATTERS), help="The style of the citation.")
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
    """Cite an identifier: its `hdl:` URI and resolver URL, with the metadata of its record.

    Title, creators, date, publisher and description come from public values of the types TITLE, AUTHOR or CREATOR, DATE
    or ISSUED, PUBLISHER and DESC, alone, after `DC.`, or as the suffix of a registered type. Missing parts are left
    out. With `--at` the citation names the entry of the version, which `perseid resolve --at` shows.

    For example:
        perseid cite 102.100.272/X4NDP2JQH
        perseid cite 102.100.272/X4NDP2JQH --style bibtex
        perseid cite 102.100.272/X4NDP2JQH --style csl-json --at 30 --resolver http://resolver.net.au/hdl
        perseid cite hdl:102.100.272/2RDV0T0QH --json
    """
    reference = parse_reference(handle)
    with open_installation(directory, acting_as) as session:
        registry = session.registry
        with registry.snapshot() as snapshot:
            context = Context(snapshot, session.identity, INTERFACE, registry.now())
            citation = get_citation(
                context, reference, resolver or KNOWN_RESOLVERS[0], at, registry.ledger.log.clock.now()
            )
    cited = to_citation(citation, style)
    if json:
        print_json(cited)
    else:
        typer.echo(cited.citation)


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
    """Draw the QR code of an identifier: its URL at a resolver.

    The identifier must exist, be reserved, or resolve by a template. With `-o`, the URL in the code is printed.

    For example:
        perseid qr 102.100.272/X4NDP2JQH -o code.svg
        perseid qr 102.100.272/X4NDP2JQH -o code.png --resolver http://resolver.net.au/hdl --json
        perseid qr 102.100.272/X4NDP2JQH
    """
    reference = parse_reference(handle)
    image_format = _choose_format(output, format_)
    to_file = output is not None and str(output) != STANDARD_OUTPUT
    if json and not to_file:
        raise typer.BadParameter("requires a file: use -o FILE", param_hint="--json")
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        target = find_printable_name(Context(snapshot, session.identity, INTERFACE, session.registry.now()), reference)
    code = QrImage.of(to_http(target, resolver or KNOWN_RESOLVERS[0]))
    image = code.png(scale) if image_format is ImageFormat.PNG else code.svg(scale)
    if output is None or not to_file:
        typer.echo(image, nl=False)
        return
    output.write_bytes(image)
    if json:
        about = {"url": code.text, "file": str(output), "format": image_format.value, "code": code.designator}
        print_json({"handle": str(target.handle), **about})
    else:
        typer.echo(code.text)


def _choose_format(output: Path | None, requested: ImageFormat | None) -> ImageFormat:
    if requested is not None:
        return requested
    if output is None or str(output) == STANDARD_OUTPUT:
        return ImageFormat.SVG
    extension = output.suffix.lower().removeprefix(".")
    if extension not in [each.value for each in ImageFormat]:
        raise typer.BadParameter("use a file name ending in .svg or .png, or --format svg|png", param_hint="-o")
    return ImageFormat(extension)


commands: dict[str, Callable[..., None] | typer.Typer] = {"cite": cite, "qr": qr}

"""`perseid cite` and `perseid qr`: an identifier as others write it down, and as telephones read it."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from perseid.names.errors import InvalidName
from perseid.names.uri import KNOWN_RESOLVERS, Resolver, to_http
from perseid.registry.context import Context
from perseid.registry.queries.citation import FORMATTERS, Style, find_printable_name, get_citation, to_json
from perseid.registry.queries.qr import MAX_SCALE, ImageFormat, QrImage

from ._output import AsJson, print_json
from ._place import INTERFACE, ActingAs, Directory, Name, open_installation, parse_reference

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
        help=f"The resolver of the HTTP form, e.g. `http://example.org/hdl`; default {KNOWN_RESOLVERS[0]}.",
    ),
]


def cite(
    handle: Name,
    *,
    style: Annotated[
        Style, typer.Option("--style", metavar="|".join(FORMATTERS), help="How the citation is written.")
    ] = Style.TEXT,
    resolver: ResolverOption = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME|SEQ", help="Cite the version of a time, or of an entry, by its number."),
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Cite an identifier: as `hdl:` URI and at a resolver, with what its record says about the thing.

    Title, creators, date, publisher and description come from public values of the types TITLE, AUTHOR or CREATOR, DATE
    or ISSUED, PUBLISHER and DESC, alone, behind `DC.`, or as suffix of a registered type. What the record does not say
    is left out. With `--at` the citation names the entry that made the version, and `perseid resolve --at` shows it.

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
    text = FORMATTERS[style.value](citation)
    if json:
        print_json({**to_json(citation), "style": style.value, "citation": text})
    else:
        typer.echo(text)


def qr(  # noqa: PLR0913 - options
    handle: Name,
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to: FILE.svg or FILE.png. Default -, as SVG."),
    ] = None,
    format_: Annotated[
        ImageFormat | None, typer.Option("--format", metavar="svg|png", help="What to draw, if the file does not say.")
    ] = None,
    scale: Annotated[
        int, typer.Option("--scale", metavar="N", help="Pixels, or units, to a module.", min=1, max=MAX_SCALE)
    ] = 8,
    resolver: ResolverOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Draw the QR code of an identifier, to be printed on a thing: its address at a resolver.

    The name must exist, or resolve by a template; one that is reserved will do, since that is what names are reserved
    for. With a file the address is printed that the code says.

    For example:
        perseid qr 102.100.272/X4NDP2JQH -o code.svg
        perseid qr 102.100.272/X4NDP2JQH -o code.png --resolver http://resolver.net.au/hdl --json
        perseid qr 102.100.272/X4NDP2JQH
    """
    reference = parse_reference(handle)
    drawing = _choose_format(output, format_)
    to_file = output is not None and str(output) != STANDARD_OUTPUT
    if json and not to_file:
        raise typer.BadParameter("it tells about a file; name one with -o", param_hint="--json")
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        name = find_printable_name(Context(snapshot, session.identity, INTERFACE, session.registry.now()), reference)
    code = QrImage.of(to_http(name, resolver or KNOWN_RESOLVERS[0]))
    drawn = code.png(scale) if drawing is ImageFormat.PNG else code.svg(scale)
    if output is None or not to_file:
        typer.echo(drawn, nl=False)
        return
    output.write_bytes(drawn)
    if json:
        about = {"url": code.text, "file": str(output), "format": drawing.value, "code": code.designator}
        print_json({"handle": str(name.handle), **about})
    else:
        typer.echo(code.text)


def _choose_format(output: Path | None, given: ImageFormat | None) -> ImageFormat:
    """What is drawn: what was asked for, or what the name of the file says."""
    ending = "" if output is None else output.suffix.lower().removeprefix(".")
    if given is not None:
        return given
    if output is None or str(output) == STANDARD_OUTPUT:
        return ImageFormat.SVG
    if ending not in [each.value for each in ImageFormat]:
        raise typer.BadParameter("name a file that ends in .svg or .png, or say --format", param_hint="-o")
    return ImageFormat(ending)


commands: dict[str, Callable[..., None] | typer.Typer] = {"cite": cite, "qr": qr}

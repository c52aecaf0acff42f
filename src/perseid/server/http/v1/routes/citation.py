"""Citations and QR codes: an identifier as others write it down, and as telephones read it."""

from typing import Annotated, Final

import msgspec

from perseid.names.errors import InvalidName
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, to_http
from perseid.registry.queries.citation import FORMS, Style, as_json, cited, printable_name
from perseid.registry.queries.qr import Drawing, Qr
from perseid.server.http.resolver.paths import resolvers_of
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.problems import Wrong
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import HANDLE_STEP, About, Given, Seq, Told
from perseid.server.http.v1.validation import Unfitting
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

CHAPTER: Final = Routes("Citing", "An identifier as others write it down, and as telephones read it.")

MAX_SCALE: Final = 20
"""Pixels to a module at most: the largest code then has 1,700 to a side. Who prints larger ones takes SVG."""

MAX_RESOLVER: Final = 300
"""Characters of the address of a resolver: the longest host has 253, and few have a path behind it."""

MAX_DRAWN: Final = 400
"""Octets of an address whose code is drawn for others: 77 modules to a side, more than are easily read off a thing.
The largest that there are take a tenth of a second each, in which everybody waits; the command line draws them."""

DRAWING: Final = 0.002
DRAWING_AN_OCTET: Final = 0.000_05
"""Seconds of a processor that it takes to draw a code, and for each octet of its address: most of them to find out
which of eight patterns makes it easiest to read."""

_PLACE: Final = {"handle": HANDLE_STEP}

ResolverText = Annotated[
    str,
    About(
        "The resolver of the HTTP form; this server's own, or the global one, if it is left out.",
        max_length=MAX_RESOLVER,
        examples=["https://hdl.handle.net"],
    ),
]


class CitationQuery(Given, frozen=True):
    """How a name is to be cited."""

    style: Annotated[Style, About("How the citation is written.")] = Style.TEXT
    resolver: ResolverText = ""
    at: Annotated[
        str, About("Cite the version of a time, or of an entry, by its number.", max_length=100, examples=["30"])
    ] = ""


class QrQuery(Given, frozen=True):
    """How a code is to be drawn."""

    format: Annotated[Drawing, About("What to draw.")] = Drawing.SVG
    scale: Annotated[int, About("Pixels, or units, to a module.", ge=1, le=MAX_SCALE)] = 8
    resolver: ResolverText = ""


class Version(Told, frozen=True):
    """The version of a record that is cited."""

    seq: Seq
    at: Annotated[str, About("When the record became so, in ISO 8601.", examples=["2026-11-15T10:00:00Z"])]


class Cited(Told, frozen=True):
    """A citation, and what it is made of. What the record does not say is left out."""

    citation: Annotated[str, About("The citation.")]
    style: Annotated[Style, About("How it is written.")]
    hdl: Annotated[str, About("The identifier as `hdl:` URI.", examples=["hdl:12345/x"])]
    http: Annotated[str, About("The identifier at the resolver.", examples=["https://hdl.handle.net/12345/x"])]
    title: Annotated[str, About("What the thing is called.")] = ""
    creators: Annotated[tuple[str, ...], About("Who made the thing.")] = ()
    date: Annotated[str, About("When the thing was made, as the record has it.")] = ""
    publisher: Annotated[str, About("Who published the thing.")] = ""
    description: Annotated[str, About("What the thing is.")] = ""
    created: Annotated[str, About("When the identifier was first associated with the thing.")] = ""
    creator: Annotated[str, About("Who created the identifier, as `hdl:` URI.")] = ""
    gone: Annotated[str, About("That the thing is gone, and why.")] = ""
    version: Annotated[Version | None, About("The version that is cited, if one was asked for.")] = None


@CHAPTER.add(
    "GET",
    "/handles/{handle}/citation",
    "citeHandle",
    "Cite a name",
    answer=Cited,
    query=CitationQuery,
    problems=(404, 422),
    parameters=_PLACE,
)
async def cite(call: ApiCall) -> Reply:
    """An identifier as `hdl:` URI and at a resolver, with what its record says about the thing.

    Title, creators, date, publisher and description come from public values of the types TITLE, AUTHOR or CREATOR, DATE
    or ISSUED, PUBLISHER and DESC, alone, behind `DC.`, or as suffix of a registered type. With `at` the citation names
    the entry that made the version, and asking for that entry gives the same for ever.
    """
    asked, handle = call.asked(CitationQuery), call.handle()
    resolver, log = _resolver(call, asked.resolver), call.registry.ledger.log
    found = await call.read(
        lambda context: cited(context, Reference(handle), resolver, asked.at or None, log.clock.now()), handle
    )
    said = {"citation": FORMS[asked.style.value](found), "style": asked.style.value, **as_json(found)}
    return Reply(msgspec.convert(said, Cited), name=str(handle))


@CHAPTER.add(
    "GET",
    "/handles/{handle}/qr",
    "drawQr",
    "The QR code of a name",
    query=QrQuery,
    media_types=("image/svg+xml", "image/png"),
    problems=(404, 422),
    parameters=_PLACE,
)
async def draw(call: ApiCall) -> Reply:
    """The QR code of an identifier, to be printed on a thing: its address at a resolver.

    The name must exist, or resolve by a template; one that is reserved will do, since that is what names are reserved
    for. An address of more than 400 octets is not drawn here: its code would be too fine to be read off a thing.
    """
    asked, handle = call.asked(QrQuery), call.handle()
    resolver = _resolver(call, asked.resolver)
    name = await call.read(lambda context: printable_name(context, Reference(handle)), handle)
    address = to_http(name, resolver)
    size = len(address.encode())
    if size > MAX_DRAWN:
        detail = f"{size:,} octets are too many for a QR code that is read off a thing: {MAX_DRAWN:,} are the most"
        advice = "name a shorter resolver, or have the command line draw it: perseid qr"
        raise Wrong("unanswerable", detail, advice, code=int(ResponseCode.INVALID_VALUE))

    def drawn() -> bytes:
        code = Qr.of(address)
        return code.png(asked.scale) if asked.format is Drawing.PNG else code.svg(asked.scale)

    media_type = "image/png" if asked.format is Drawing.PNG else "image/svg+xml"
    price = DRAWING + DRAWING_AN_OCTET * size
    octets = await call.asking.do(Kind.READ, drawn, price=price)
    return Reply(octets, media_type=media_type, name=str(name.handle))


def _resolver(call: ApiCall, text: str) -> Resolver:
    """The resolver that was named, or our own, or the one that everybody knows."""
    if not text:
        return next(iter(resolvers_of(call.settings)), KNOWN_RESOLVERS[0])
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise Unfitting(problem.message, "resolver") from problem

"""Citations and QR codes: an identifier as others write it down, and as telephones read it."""

from typing import Annotated, Final

import msgspec

from perseid.names.errors import InvalidName
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, to_http
from perseid.registry.queries.citation import FORMATTERS, Style, find_printable_name, get_citation, to_json
from perseid.registry.queries.qr import ImageFormat, QrImage
from perseid.server.http.resolver.paths import get_resolvers
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.structures import HANDLE_PARAMETER, Doc, RequestBody, ResponseBody, Seq
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

SECTION: Final = Routes("Citing", "An identifier as others write it down, and as telephones read it.")

MAX_SCALE: Final = 20
"""Pixels to a module at most: the largest code then has 1,700 to a side. Who prints larger ones takes SVG."""

MAX_RESOLVER: Final = 300
"""Characters of the address of a resolver: the longest host has 253, and few have a path behind it."""

MAX_URL_SIZE: Final = 400
"""Octets of an address whose code is drawn for others: 77 modules to a side, more than are easily read off a thing.
The largest that there are take a tenth of a second each, in which everybody waits; the command line draws them."""

DRAW_SECONDS: Final = 0.002
DRAW_SECONDS_PER_BYTE: Final = 0.000_05
"""Seconds of a processor that it takes to draw a code, and for each octet of its address: most of them to find out
which of eight patterns makes it easiest to read."""

_PARAMETERS: Final = {"handle": HANDLE_PARAMETER}

ResolverText = Annotated[
    str,
    Doc(
        "The resolver of the HTTP form; this server's own, or the global one, if it is left out.",
        max_length=MAX_RESOLVER,
        examples=["https://hdl.handle.net"],
    ),
]


class CitationQuery(RequestBody, frozen=True):
    """How a name is to be cited."""

    style: Annotated[Style, Doc("How the citation is written.")] = Style.TEXT
    resolver: ResolverText = ""
    at: Annotated[
        str, Doc("Cite the version of a time, or of an entry, by its number.", max_length=100, examples=["30"])
    ] = ""


class QrQuery(RequestBody, frozen=True):
    """How a code is to be drawn."""

    format: Annotated[ImageFormat, Doc("What to draw.")] = ImageFormat.SVG
    scale: Annotated[int, Doc("Pixels, or units, to a module.", ge=1, le=MAX_SCALE)] = 8
    resolver: ResolverText = ""


class CitedVersion(ResponseBody, frozen=True):
    """The version of a record that is cited."""

    seq: Seq
    at: Annotated[str, Doc("When the record became so, in ISO 8601.", examples=["2026-11-15T10:00:00Z"])]


class CitationResponse(ResponseBody, frozen=True):
    """A citation, and what it is made of. What the record does not say is left out."""

    citation: Annotated[str, Doc("The citation.")]
    style: Annotated[Style, Doc("How it is written.")]
    hdl: Annotated[str, Doc("The identifier as `hdl:` URI.", examples=["hdl:12345/x"])]
    http: Annotated[str, Doc("The identifier at the resolver.", examples=["https://hdl.handle.net/12345/x"])]
    title: Annotated[str, Doc("What the thing is called.")] = ""
    creators: Annotated[tuple[str, ...], Doc("Who made the thing.")] = ()
    date: Annotated[str, Doc("When the thing was made, as the record has it.")] = ""
    publisher: Annotated[str, Doc("Who published the thing.")] = ""
    description: Annotated[str, Doc("What the thing is.")] = ""
    created: Annotated[str, Doc("When the identifier was first associated with the thing.")] = ""
    creator: Annotated[str, Doc("Who created the identifier, as `hdl:` URI.")] = ""
    gone: Annotated[str, Doc("That the thing is gone, and why.")] = ""
    version: Annotated[CitedVersion | None, Doc("The version that is cited, if one was asked for.")] = None


@SECTION.add(
    "GET",
    "/handles/{handle}/citation",
    "citeHandle",
    "Cite a name",
    response=CitationResponse,
    query=CitationQuery,
    problems=(404, 422),
    parameters=_PARAMETERS,
)
async def cite(call: ApiCall) -> Reply:
    """An identifier as `hdl:` URI and at a resolver, with what its record says about the thing.

    Title, creators, date, publisher and description come from public values of the types TITLE, AUTHOR or CREATOR, DATE
    or ISSUED, PUBLISHER and DESC, alone, behind `DC.`, or as suffix of a registered type. With `at` the citation names
    the entry that made the version, and asking for that entry gives the same for ever.
    """
    asked, handle = call.asked(CitationQuery), call.handle()
    resolver, log = _parse_resolver(call, asked.resolver), call.registry.ledger.log
    found = await call.read(
        lambda context: get_citation(context, Reference(handle), resolver, asked.at or None, log.clock.now()), handle
    )
    said = {"citation": FORMATTERS[asked.style.value](found), "style": asked.style.value, **to_json(found)}
    return Reply(msgspec.convert(said, CitationResponse), name=str(handle))


@SECTION.add(
    "GET",
    "/handles/{handle}/qr",
    "drawQr",
    "The QR code of a name",
    query=QrQuery,
    media_types=("image/svg+xml", "image/png"),
    problems=(404, 422),
    parameters=_PARAMETERS,
)
async def draw(call: ApiCall) -> Reply:
    """The QR code of an identifier, to be printed on a thing: its address at a resolver.

    The name must exist, or resolve by a template; one that is reserved will do, since that is what names are reserved
    for. An address of more than 400 octets is not drawn here: its code would be too fine to be read off a thing.
    """
    asked, handle = call.asked(QrQuery), call.handle()
    resolver = _parse_resolver(call, asked.resolver)
    name = await call.read(lambda context: find_printable_name(context, Reference(handle)), handle)
    address = to_http(name, resolver)
    size = len(address.encode())
    if size > MAX_URL_SIZE:
        detail = f"{size:,} octets are too many for a QR code that is read off a thing: {MAX_URL_SIZE:,} are the most"
        advice = "name a shorter resolver, or have the command line draw it: perseid qr"
        raise ApiError("unanswerable", detail, advice, code=int(ResponseCode.INVALID_VALUE))

    def draw_image() -> bytes:
        code = QrImage.of(address)
        return code.png(asked.scale) if asked.format is ImageFormat.PNG else code.svg(asked.scale)

    media_type = "image/png" if asked.format is ImageFormat.PNG else "image/svg+xml"
    price = DRAW_SECONDS + DRAW_SECONDS_PER_BYTE * size
    image = await call.request_context.do(WorkKind.READ, draw_image, price=price)
    return Reply(image, media_type=media_type, name=str(name.handle))


def _parse_resolver(call: ApiCall, text: str) -> Resolver:
    """The resolver that was named, or our own, or the one that everybody knows."""
    if not text:
        return next(iter(get_resolvers(call.settings)), KNOWN_RESOLVERS[0])
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise InvalidParameter(problem.message, "resolver") from problem

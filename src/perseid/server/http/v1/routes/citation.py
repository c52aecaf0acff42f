"""Citations and QR codes."""

from typing import Annotated, Final

import msgspec

from perseid.names.errors import InvalidName
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, to_http
from perseid.registry.queries.citation import FORMATTERS, Style, find_printable_name, get_citation, to_json
from perseid.registry.queries.qr import ImageFormat, QrImage
from perseid.server.http.resolver.paths import get_resolvers
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.schemas import HANDLE_PARAMETER, Doc, RequestBody, ResponseBody, Seq
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

SECTION: Final = Routes("Citations", "Citations and QR codes of identifiers.")

MAX_SCALE: Final = 20
"""Most pixels per module: the largest code then has 1,700 per side. For larger prints use SVG."""

MAX_RESOLVER: Final = 300
"""Characters of a resolver URL: the longest host name has 253."""

MAX_URL_SIZE: Final = 400
"""Bytes of a URL in a QR code: 77 modules per side, near the limit of what scans easily. The largest codes take a tenth
of a second each, which blocks others; the command line draws them."""

DRAW_SECONDS: Final = 0.002
DRAW_SECONDS_PER_BYTE: Final = 0.000_05
"""CPU seconds to draw a code, plus those for each byte of the URL: most of them to choose the best of eight masks."""

_PARAMETERS: Final = {"handle": HANDLE_PARAMETER}

ResolverText = Annotated[
    str,
    Doc(
        "The resolver in the HTTP form; by default this server's public URL, or else the global resolver.",
        max_length=MAX_RESOLVER,
        examples=["https://hdl.handle.net"],
    ),
]


class CitationQuery(RequestBody, frozen=True):
    """How to cite a handle."""

    style: Annotated[Style, Doc("The citation style.")] = Style.TEXT
    resolver: ResolverText = ""
    at: Annotated[str, Doc("Cite the version at a time or ledger entry.", max_length=100, examples=["30"])] = ""


class QrQuery(RequestBody, frozen=True):
    """How to draw a QR code."""

    format: Annotated[ImageFormat, Doc("The image format.")] = ImageFormat.SVG
    scale: Annotated[int, Doc("Pixels or units per module.", ge=1, le=MAX_SCALE)] = 8
    resolver: ResolverText = ""


class CitedVersion(ResponseBody, frozen=True):
    """The cited version of a record."""

    seq: Seq
    at: Annotated[str, Doc("Time of the version, in ISO 8601.", examples=["2026-11-15T10:00:00Z"])]


class CitationResponse(ResponseBody, frozen=True):
    """A citation and its parts. Missing information is omitted."""

    citation: Annotated[str, Doc("The citation.")]
    style: Annotated[Style, Doc("The citation style.")]
    hdl: Annotated[str, Doc("The identifier as a `hdl:` URI.", examples=["hdl:12345/x"])]
    http: Annotated[str, Doc("The identifier as a URL of the resolver.", examples=["https://hdl.handle.net/12345/x"])]
    title: Annotated[str, Doc("Title of the object.")] = ""
    creators: Annotated[tuple[str, ...], Doc("Creators of the object.")] = ()
    date: Annotated[str, Doc("Date of the object, as stored in the record.")] = ""
    publisher: Annotated[str, Doc("Publisher of the object.")] = ""
    description: Annotated[str, Doc("Description of the object.")] = ""
    created: Annotated[str, Doc("When the identifier was first associated with the object.")] = ""
    creator: Annotated[str, Doc("Who created the identifier, as a `hdl:` URI.")] = ""
    gone: Annotated[str, Doc("Why the object is gone, if the handle has a tombstone.")] = ""
    version: Annotated[CitedVersion | None, Doc("The cited version, if `at` was given.")] = None


@SECTION.add(
    "GET",
    "/handles/{handle}/citation",
    "citeHandle",
    "Cite a handle",
    response=CitationResponse,
    query=CitationQuery,
    problems=(404, 422),
    parameters=_PARAMETERS,
)
async def cite(call: ApiCall) -> Reply:
    """Cite an identifier, with the bibliographic data in its record.

    Title, creators, date, publisher and description come from public values of the types TITLE, AUTHOR or CREATOR, DATE
    or ISSUED, PUBLISHER and DESC, alone, with the prefix `DC.`, or as the suffix of a registered type. With `at` the
    citation names the ledger entry of the version, which never changes.
    """
    query, handle = call.query_as(CitationQuery), call.handle()
    resolver, log = _parse_resolver(call, query.resolver), call.registry.ledger.log
    citation = await call.read(
        lambda context: get_citation(context, Reference(handle), resolver, query.at or None, log.clock.now()), handle
    )
    fields = {"citation": FORMATTERS[query.style.value](citation), "style": query.style.value, **to_json(citation)}
    return Reply(msgspec.convert(fields, CitationResponse), name=str(handle))


@SECTION.add(
    "GET",
    "/handles/{handle}/qr",
    "drawQr",
    "Get the QR code of a handle",
    query=QrQuery,
    media_types=("image/svg+xml", "image/png"),
    problems=(404, 422),
    parameters=_PARAMETERS,
)
async def draw(call: ApiCall) -> Reply:
    """Draw the QR code of an identifier: its URL at a resolver.

    The handle must exist, be reserved, or resolve by a template. A URL of more than 400 bytes is refused: the code
    would be too fine to scan.
    """
    query, handle = call.query_as(QrQuery), call.handle()
    resolver = _parse_resolver(call, query.resolver)
    name = await call.read(lambda context: find_printable_name(context, Reference(handle)), handle)
    address = to_http(name, resolver)
    size = len(address.encode())
    if size > MAX_URL_SIZE:
        detail = f"The URL has {size:,} bytes; a QR code here can have at most {MAX_URL_SIZE:,}"
        advice = "Use a shorter resolver URL, or draw it at the command line: perseid qr"
        raise ApiError("invalid-query", detail, advice, code=int(ResponseCode.INVALID_VALUE))

    def draw_image() -> bytes:
        code = QrImage.of(address)
        return code.png(query.scale) if query.format is ImageFormat.PNG else code.svg(query.scale)

    media_type = "image/png" if query.format is ImageFormat.PNG else "image/svg+xml"
    price = DRAW_SECONDS + DRAW_SECONDS_PER_BYTE * size
    image = await call.request_context.do(WorkKind.READ, draw_image, price=price)
    return Reply(image, media_type=media_type, name=str(name.handle))


def _parse_resolver(call: ApiCall, text: str) -> Resolver:
    if not text:
        return next(iter(get_resolvers(call.settings)), KNOWN_RESOLVERS[0])
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise InvalidParameter(problem.message, "resolver") from problem

"""Citations and QR codes."""

from typing import Final

from perseid.names.errors import InvalidName
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, to_http
from perseid.registry.queries.citation import QrImage, find_printable_name, get_citation
from perseid.registry.responses import to_citation
from perseid.schema.common import HANDLE_PARAMETER
from perseid.schema.queries import CitationQuery, CitationResponse, ImageFormat, QrQuery
from perseid.server.http.resolver.paths import get_resolvers
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

SECTION: Final = Routes("Citations", "Citations and QR codes of identifiers.")


MAX_URL_SIZE: Final = 400
"""Bytes of a URL in a QR code: 77 modules per side, near the limit of what scans easily. The largest codes take a tenth
of a second each, which blocks others; the command line draws them."""

DRAW_SECONDS: Final = 0.002
DRAW_SECONDS_PER_BYTE: Final = 0.000_05
"""CPU seconds to draw a code, plus those for each byte of the URL: most of them to choose the best of eight masks."""

_PARAMETERS: Final = {"handle": HANDLE_PARAMETER}


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
    return Reply(to_citation(citation, query.style), name=str(handle))


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
        advice = "Use a shorter resolver URL"
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

"""What this server says about itself over the API: its site record, and where everything is."""

import hashlib
from typing import Final

from perseid import __version__
from perseid.records.json_parsing import JsonObject
from perseid.server.http.compat.call import Call
from perseid.server.http.compat.reading import NO_CACHE, NOT_MODIFIED, VARIES
from perseid.wire.codes import ResponseCode

from . import entity_tags
from .json_answers import encoded
from .messages import Response
from .responses import NO_STORE

LINKS: Final[JsonObject] = {
    "handles": "/api/handles/{handle}",
    "listing": "/api/handles?prefix={prefix}",
    "prefixes": "/api/prefixes",
    "site": "/api/site",
    "sessions": "/api/sessions",
    "verifications": "/api/verifications/{index}:{handle}",
    "search": "/hrls/handles/?URL={pattern}",
    "health": "/healthz",
    "readiness": "/readyz",
}
"""Where everything is."""


async def site(call: Call) -> Response:
    """The site record."""
    return _public(call, {"site": call.asking.place.site.to_json()})


async def description(call: Call) -> Response:
    """What this is, and where everything else is."""
    return _public(call, {"name": "Perseid", "version": __version__, "links": LINKS})


def _public(call: Call, plain: JsonObject) -> Response:
    """An answer that is the same for everybody."""
    plain = {"responseCode": int(ResponseCode.SUCCESS)} | plain
    if not call.is_public:
        return call.answer(plain, headers=(NO_STORE,))
    tag = hashlib.sha256(encoded(plain)).hexdigest()[:32]
    headers = (("Cache-Control", NO_CACHE), VARIES, entity_tags.header(tag))
    if entity_tags.is_known(call.request, tag):
        return Response(NOT_MODIFIED, headers, code=int(ResponseCode.SUCCESS))
    return call.answer(plain, headers=headers)

"""Answers that are long: what takes milliseconds of one is done in a pool, and the event loop serves others meanwhile.

What is read in a pool is written out there as well (`api_call.Call.told`). What is left for answers that are octets
already is the tag, which follows from all of them.
"""

from typing import Final

from perseid.server.native.steps import WorkKind

from . import caching
from .context import RequestContext
from .messages import Response

LONG_BODY_BYTES: Final = 65_536
"""Octets of a body from which on its tag is not made in the event loop: that takes some tenths of a millisecond."""


async def with_etag(request_context: RequestContext, response: Response, tag: str = "") -> Response:
    """The answer with a tag, or the word that the client's is still good: see `caching.tagged`."""
    if tag or len(response.body) <= LONG_BODY_BYTES or not caching.needs_etag(response):
        return caching.with_etag(request_context.request, response, tag)
    return await request_context.do(WorkKind.READ, lambda: caching.with_etag(request_context.request, response))

"""Entity tags of long responses, computed in a pool so that the event loop is free for others."""

from typing import Final

from perseid.server.native.steps import WorkKind

from . import caching
from .context import RequestContext
from .messages import Response

LONG_BODY_BYTES: Final = 65_536
"""Bytes of a body above which its tag is not computed in the event loop; that takes tenths of a millisecond."""


async def with_etag(request_context: RequestContext, response: Response, tag: str = "") -> Response:
    """Add a tag to a response, or return 304; see `caching.with_etag`."""
    if tag or len(response.body) <= LONG_BODY_BYTES or not caching.needs_etag(response):
        return caching.with_etag(request_context.request, response, tag)
    return await request_context.do(WorkKind.READ, lambda: caching.with_etag(request_context.request, response))

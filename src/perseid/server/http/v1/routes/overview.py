"""The entry point of the API."""

from typing import Final

from perseid import __version__
from perseid.schema.common import Overview
from perseid.server.http.caching import PAGE_AGE
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.routing import BASE, Reply, Routes

SECTION: Final = Routes("Overview", "Links to the documentation.")


@SECTION.add("GET", "/", "overview", "Get an overview", response=Overview)
async def overview(call: ApiCall) -> Reply:
    """Return links to the documentation of this API."""

    def url(path: str) -> str:
        return absolute_url(path, call.settings)

    result = Overview(
        f"perseid {__version__}",
        url(BASE),
        url("/openapi.json"),
        url("/docs"),
        url("/docs/problems"),
        url("/resolver.json"),
    )
    return Reply(result, headers=(("Cache-Control", f"public, max-age={PAGE_AGE}"),))

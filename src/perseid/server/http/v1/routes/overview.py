"""The entry point of the API."""

from typing import Annotated, Final

from perseid import __version__
from perseid.server.http.caching import PAGE_AGE
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.schemas import Doc, ResponseBody

SECTION: Final = Routes("Overview", "Links to the documentation.")


class Overview(ResponseBody, frozen=True):
    """Links to the documentation."""

    server: Annotated[str, Doc("Program and version.", examples=["perseid 1.0"])]
    base: Annotated[str, Doc("URL of this version of the API.")]
    description: Annotated[str, Doc("URL of the OpenAPI 3.1 document.")]
    pages: Annotated[str, Doc("URL of the documentation pages.")]
    problems: Annotated[str, Doc("URL of the problem types.")]
    resolver: Annotated[str, Doc("URL of the description of the resolver.")]


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

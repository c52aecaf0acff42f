"""Where everything about the API is described."""

from typing import Annotated, Final

from perseid import __version__
from perseid.server.http.caching import PAGE_AGE
from perseid.server.http.resolver.paths import absolute_url
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.structures import Doc, ResponseBody

SECTION: Final = Routes("Overview", "Where everything is described.")


class Overview(ResponseBody, frozen=True):
    """Where everything is described."""

    server: Annotated[str, Doc("The program and its version.", examples=["perseid 1.0"])]
    base: Annotated[str, Doc("The address below which this version of the API is.")]
    description: Annotated[str, Doc("The description of everything, in OpenAPI 3.1, for programs.")]
    pages: Annotated[str, Doc("The same, for people.")]
    problems: Annotated[str, Doc("What each type of problem means.")]
    resolver: Annotated[str, Doc("In which forms links to names are resolved here.")]


@SECTION.add("GET", "/", "overview", "Where everything is described", response=Overview)
async def overview(call: ApiCall) -> Reply:
    """Addresses of the description of this API, for programs and for people."""

    def at(path: str) -> str:
        return absolute_url(path, call.settings)

    result = Overview(
        f"perseid {__version__}",
        at(BASE),
        at("/openapi.json"),
        at("/docs"),
        at("/docs/problems"),
        at("/resolver.json"),
    )
    return Reply(result, headers=(("Cache-Control", f"public, max-age={PAGE_AGE}"),))

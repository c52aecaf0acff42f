"""Where everything about the API is described."""

from typing import Annotated, Final

from perseid import __version__
from perseid.server.http.caching import PAGE_AGE
from perseid.server.http.resolver.paths import address_of
from perseid.server.http.v1.calls import ApiCall
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.structures import About, Told

CHAPTER: Final = Routes("Overview", "Where everything is described.")


class Overview(Told, frozen=True):
    """Where everything is described."""

    server: Annotated[str, About("The program and its version.", examples=["perseid 1.0"])]
    base: Annotated[str, About("The address below which this version of the API is.")]
    description: Annotated[str, About("The description of everything, in OpenAPI 3.1, for programs.")]
    pages: Annotated[str, About("The same, for people.")]
    problems: Annotated[str, About("What each type of problem means.")]
    resolver: Annotated[str, About("In which forms links to names are resolved here.")]


@CHAPTER.add("GET", "/", "overview", "Where everything is described", answer=Overview)
async def overview(call: ApiCall) -> Reply:
    """Addresses of the description of this API, for programs and for people."""

    def at(path: str) -> str:
        return address_of(path, call.settings)

    told = Overview(
        f"perseid {__version__}",
        at(BASE),
        at("/openapi.json"),
        at("/docs"),
        at("/docs/problems"),
        at("/resolver.json"),
    )
    return Reply(told, headers=(("Cache-Control", f"public, max-age={PAGE_AGE}"),))

"""Did you mean …? What is said about a name that is not there, as far as there is a budget for it."""

from typing import Final

from perseid.names.uri import KNOWN_RESOLVERS
from perseid.registry.queries.suggest import Suggestions, suggestions
from perseid.server.http.resolver.paths import resolvers_of
from perseid.server.limits.budgets import EXEMPT, source_of
from perseid.server.native_failures import Busy
from perseid.server.native_steps import Kind
from perseid.wire.codes import ResponseCode

from .context import Asking

ABOUT: Final = frozenset((ResponseCode.HANDLE_NOT_FOUND, ResponseCode.INVALID_HANDLE, ResponseCode.SERVER_NOT_RESP))
"""What may be a matter of spelling."""


async def suggested(asking: Asking, text: str) -> Suggestions | None:
    """What may have been meant by a text that is no name here; None if nobody looks for that at the moment.

    Whoever is on this machine, and asks for themselves, has no share of their own that could be used up.
    """
    place, client = asking.place, asking.request.client
    if not place.suggesting.take(EXEMPT if client.local else source_of(client.host), place.time()):
        return None
    resolvers = (*KNOWN_RESOLVERS, *resolvers_of(place.settings))
    try:
        return await asking.do(Kind.READ, lambda: suggestions(place.registry, text, resolvers))
    except Busy:
        return None  # that the name is not there can be said without it

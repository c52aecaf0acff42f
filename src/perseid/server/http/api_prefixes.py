"""The prefixes that this server is responsible for, over the API (http-api reference, 6.7): list, home, unhome."""

from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.json_parsing import JsonObject
from perseid.registry.commands.records import Home
from perseid.registry.queries.listing import list_homed
from perseid.registry.results import Refused
from perseid.server.http.compat.call import Call
from perseid.wire.codes import ResponseCode

from . import bodies
from .messages import Response
from .methods import READING
from .targets import Malformed, Name

_MARKER = f"{PREFIX_OF_PREFIXES}/"


async def answer(call: Call, name: Name) -> Response:
    """List, home or unhome; a prefix that is named in the query or the body goes before the one in the path."""
    if call.request.method in READING:
        return await call.refusing(None, _list(call))
    parameters = call.parameters
    if call.request.method == "POST":
        parameters = parameters.plus(bodies.parameters(call.request))
    given = parameters.first("prefix")
    if not (prefix := name.text if given is None else given):
        raise Malformed('no prefix is named: write it in the path, or as {"prefix": "…"} in the body')
    return await call.refusing(prefix, _home(call, prefix, unhome=call.request.method == "DELETE"))


async def _list(call: Call) -> Response:
    page, size = call.parameters.number("page"), call.parameters.number("pageSize")
    prefixes = sorted(await call.read(lambda context: list_homed(context.facts, context.who)))
    plain: JsonObject = {"responseCode": int(ResponseCode.SUCCESS), "totalCount": str(len(prefixes))}
    if page is not None and size is not None and page >= 0 and size >= 0:
        plain |= {"page": page, "pageSize": size}
        prefixes = prefixes[page * size :][:size]
    return call.answer(plain | {"prefixes": prefixes})


async def _home(call: Call, prefix: str, *, unhome: bool) -> Response:
    if "/" in prefix and not fold(prefix).startswith(_MARKER):
        advice = f"a prefix is written as 12345, or as {_MARKER}12345"
        raise Refused(ResponseCode.INVALID_HANDLE, "Handle is not a prefix handle", advice)
    await call.change(lambda _: Home(prefix, unhome))
    return call.answer({"responseCode": int(ResponseCode.SUCCESS), "handle": prefix}, name=prefix)

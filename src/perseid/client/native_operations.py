"""Operations of the native protocol as values: the request, and how its response is read.

`NativeClient` and `AsyncNativeClient` perform them, one by one or many side by side.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.records.site import Site
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import OpCode, OpFlag
from perseid.wire.requests import HandleRequest, RemoveValues, RequestBody, Resolve, ValuesRequest
from perseid.wire.responses import CreationResult, HandleList, ResolutionResult, SiteInfo

from .errors import ProtocolError

_PREFIX_OF_PREFIXES: Final = "0.NA/"
_NO_FLAGS: Final = OpFlag(0)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Operation(Generic[T_co]):
    """One request and how its response is read."""

    opcode: OpCode
    body: RequestBody
    read: Callable[[list[VerifiedResponse]], T_co] = field(repr=False)
    flags: OpFlag = _NO_FLAGS
    """Flags besides the usual ones."""
    without: OpFlag = _NO_FLAGS
    """Usual flags to clear."""
    changes: bool = True
    """Whether repeating it could change something twice."""
    on_part: Callable[[VerifiedResponse], None] | None = field(default=None, repr=False)
    """Gets each message of a successful response, of which only the last one is then kept: it can be of any length."""


def create(handle: str, values: Iterable[Value], *, overwrite: bool = False, mint: bool = False) -> Operation[str]:
    """Create a handle, and return its name; with `mint` the server completes the name."""
    flags = (OpFlag.OVERWRITE if overwrite else _NO_FLAGS) | (OpFlag.MINT_SUFFIX if mint else _NO_FLAGS)

    def read(responses: list[VerifiedResponse]) -> str:
        body = body_of(responses[0], CreationResult)
        return handle if body.handle is None else body.handle.decode("utf-8", "replace")

    return Operation(OpCode.CREATE_HANDLE, ValuesRequest(handle.encode(), tuple(values)), read, flags)


def add(handle: str, values: Iterable[Value], *, overwrite: bool = False) -> Operation[None]:
    """Add values to a record; with `overwrite` they replace those with the same index."""
    flags = OpFlag.OVERWRITE if overwrite else _NO_FLAGS
    return Operation(OpCode.ADD_VALUE, ValuesRequest(handle.encode(), tuple(values)), _nothing, flags)


def modify(handle: str, values: Iterable[Value]) -> Operation[None]:
    """Replace the values that have these indexes."""
    return Operation(OpCode.MODIFY_VALUE, ValuesRequest(handle.encode(), tuple(values)), _nothing)


def remove(handle: str, indexes: Iterable[int]) -> Operation[None]:
    """Remove values from a record."""
    return Operation(OpCode.REMOVE_VALUE, RemoveValues(handle.encode(), tuple(indexes)), _nothing)


def delete(handle: str) -> Operation[None]:
    """Delete a record."""
    return Operation(OpCode.DELETE_HANDLE, HandleRequest(handle.encode()), _nothing)


def resolve(
    handle: str, *, types: Sequence[str] = (), indexes: Sequence[int] = (), private: bool = False
) -> Operation[tuple[Value, ...]]:
    """Return the values of a handle; with `private` those too that only administrators can read."""
    return Operation(
        OpCode.RESOLUTION,
        Resolve(handle.encode(), tuple(indexes), tuple(types)),
        lambda responses: body_of(responses[0], ResolutionResult).values,
        without=OpFlag.PUBLIC_ONLY if private else _NO_FLAGS,
        changes=False,
    )


def list_handles(prefix: str) -> Operation[list[str]]:
    """List the handles under a prefix."""
    return Operation(OpCode.LIST_HANDLES, _prefix_request(prefix), _read_names, changes=False)


def visit_handles(prefix: str, visit: Callable[[str], None]) -> Operation[None]:
    """List the handles under a prefix, and call `visit` with each as it arrives."""
    return _visit_names(OpCode.LIST_HANDLES, _prefix_request(prefix), visit)


def _visit_names(opcode: OpCode, request: HandleRequest, visit: Callable[[str], None]) -> Operation[None]:
    def on_part(response: VerifiedResponse) -> None:
        for name in _read_names([response]):
            visit(name)

    def read(responses: list[VerifiedResponse]) -> None:
        _read_names(responses)  # the last message may be a failure

    return Operation(opcode, request, read, changes=False, on_part=on_part)


def list_prefixes() -> Operation[list[str]]:
    """List the prefixes that the server hosts, as prefix handles."""
    return Operation(OpCode.LIST_HOMED_NAS, HandleRequest(), _read_names, changes=False)


def visit_prefixes(visit: Callable[[str], None]) -> Operation[None]:
    """List the prefixes that the server hosts, and call `visit` with each as it arrives."""
    return _visit_names(OpCode.LIST_HOMED_NAS, HandleRequest(), visit)


def home(prefix: str) -> Operation[None]:
    """Have the server host a prefix. Repeating it changes nothing."""
    return Operation(OpCode.HOME_NA, _prefix_request(prefix), _nothing)


def unhome(prefix: str) -> Operation[None]:
    """Have the server no longer host a prefix; its handles stay stored."""
    return Operation(OpCode.UNHOME_NA, _prefix_request(prefix), _nothing)


def site_information() -> Operation[Site]:
    """Return what the server says about its site."""
    return Operation(
        OpCode.GET_SITE_INFO,
        HandleRequest(),
        lambda responses: read_site(body_of(responses[0], SiteInfo)),
        changes=False,
    )


def end_session() -> Operation[None]:
    """End the session."""
    return Operation(
        OpCode.SESSION_TERMINATE, HandleRequest(), _nothing, without=OpFlag.CERTIFY | OpFlag.KEEP_CONNECTION
    )


def _nothing(_: list[VerifiedResponse]) -> None:
    return None


def _prefix_request(prefix: str) -> HandleRequest:
    return HandleRequest((prefix if "/" in prefix else _PREFIX_OF_PREFIXES + prefix).encode())


def _read_names(responses: list[VerifiedResponse]) -> list[str]:
    return [name.decode("utf-8", "replace") for each in responses for name in body_of(each, HandleList).handles]


def read_site(body: SiteInfo) -> Site:
    """Decode site information."""
    try:
        site = Site.from_bytes(body.site)
    except InvalidData as error:
        raise ProtocolError(f"The site information of the server is invalid: {error}") from error
    if not site.servers:
        raise ProtocolError("The site information of the server has no servers")
    return site


def body_of(response: VerifiedResponse, kind: type[T]) -> T:
    """Return the body of a successful response."""
    if not isinstance(response.body, kind):
        raise ProtocolError("The response has an unknown form", code=int(response.code))
    return response.body

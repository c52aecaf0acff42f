"""Translation of native protocol operations to registry commands, and of their results to responses.

Rules are decided by the registry. Here is what belongs to the protocol alone: invalid names, spellings of prefix
requests, which server of a site is responsible, whether a client understands referrals, and lists in several messages.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.records.partition import find_server_index
from perseid.records.record import Permission, Value, select
from perseid.records.site import Site
from perseid.registry.access import permissions
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Add, Create, Delete, Home, Modify, Remove
from perseid.registry.context import Command, Context
from perseid.registry.identity import Anonymous, Proof
from perseid.registry.queries.listing import list_handles, list_homed
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.registry import Registry
from perseid.registry.results import NOT_A_PREFIX_HANDLE, ChangeResult, MintResult, Refused
from perseid.registry.snapshot import SITE_PREFIX
from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.requests import HandleRequest, RemoveValues, Resolve, ValuesRequest, VerifyChallenge
from perseid.wire.responses import CreationResult, Empty, ResolutionResult, SiteInfo
from perseid.wire.server import Request

from .authentication import candidate_keys
from .decisions import (
    INTERFACE,
    NOT_PRIMARY,
    MappedCommand,
    ReadCommand,
    RegistryRequest,
    RequestResult,
    UnstorableName,
    parse_lenient,
)
from .resolution import WRONG_SERVER

LIST_PAGE_SIZE: Final = 500
"""Names read at once for a list: ten messages, so that permission is checked once for them."""

STATUS_SUFFIX: Final = "STATUS"
"""The suffix under `0.SITE` of the server status, in any case."""

_REFERRALS_SINCE: Final = 10  # minor version from which clients follow referrals of changes
_SLASH: Final = b"/"
_PREFIX_HANDLES: Final = f"{PREFIX_OF_PREFIXES}/".encode()

_WRITE_OPCODES: Final = frozenset(
    (
        OpCode.CREATE_HANDLE,
        OpCode.DELETE_HANDLE,
        OpCode.ADD_VALUE,
        OpCode.REMOVE_VALUE,
        OpCode.MODIFY_VALUE,
        OpCode.HOME_NA,
        OpCode.UNHOME_NA,
    )
)
CHANGING_OPCODES: Final = _WRITE_OPCODES | {OpCode.BACKUP_SERVER}
"""Operations with effects, which must not be executed twice for one request."""


@dataclass(frozen=True, slots=True)
class NativeContext:
    """What an operation needs besides the registry: the site and the position of this server in it."""

    registry: Registry
    site: Site
    position: int
    status: Callable[[], tuple[Value, ...]]
    """Returns the values of `0.SITE/status`."""
    checkpoint: Callable[[], bool] | None = None
    """Creates a checkpoint and returns whether it succeeded; None if this process has no key for it."""


def translate(request: Request, native: NativeContext) -> RegistryRequest:
    """Translate a request; raise `Refused` for what the protocol alone decides."""
    opcode, body = request.opcode, request.body
    if opcode in _WRITE_OPCODES and not native.site.is_primary:
        raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
    registry_request: RegistryRequest | None = None
    match body:
        case Resolve():
            registry_request = _translate_resolution(request, body, native)
        case ValuesRequest():
            registry_request = _translate_values(request, body, native)
        case RemoveValues():
            registry_request = _request_on_handle(
                body.handle, native, lambda handle: MappedCommand(Remove(handle, body.indexes), _to_result)
            )
        case HandleRequest():
            registry_request = _translate_name(opcode, body.handle, native)
    if registry_request is None:
        reason = f"operation {opcode.value} is not supported"
        raise Refused(ResponseCode.OPERATION_NOT_SUPPORTED, reason)
    if opcode == OpCode.RESOLUTION:
        return registry_request
    old = not request.message.envelope.suggested.at_least(_REFERRALS_SINCE)
    allow_referrals = not (old or OpFlag.DO_NOT_REFER in request.flags)
    changes = opcode in CHANGING_OPCODES
    if registry_request.changes == changes and registry_request.allow_referrals == allow_referrals:
        return registry_request
    return replace(registry_request, changes=changes, allow_referrals=allow_referrals)


def find_secrets(native: NativeContext, body: VerifyChallenge, *, refer: bool) -> tuple[Value, ...]:
    """Return the secrets that may match a response to another server's challenge. Raises `Refused`."""
    check_partition(body.handle, native)
    handle = parse_lenient(body.handle)
    with native.registry.snapshot() as snapshot:
        if isinstance(handle, UnstorableName):
            handle.check_responsible(snapshot)
            return ()
        anonymous = Context(snapshot, Anonymous(), INTERFACE, native.registry.now())
        stored = anonymous.get_hosted(handle, refer=refer)
        return candidate_keys(stored.values, Proof.SECRET_KEY, max(body.index, 0))


def status_values(registry: Registry, **counts: int) -> tuple[Value, ...]:
    """Return the status of the server: whether it is ready, and counts."""
    with registry.ledger.open_reader() as reader:
        counts = {"entries": reader.size} | counts
    lines = [("DESC", "a Perseid server"), ("READY", "yes" if registry.ledger.ready else "no")]
    lines += [(name.upper(), str(count)) for name, count in counts.items()]
    now = registry.now()
    return tuple(
        [
            Value(index, type_, text.encode(), permissions=Permission.ADMIN_READ, timestamp=now)
            for index, (type_, text) in enumerate(lines, 1)
        ]
    )


def check_partition(name: bytes, native: NativeContext) -> None:
    """Refuse a name that belongs to another server of this site, a prefix handle too, as deployed.

    The registry has the same rule for all interfaces, except that each server has all prefix handles.
    """
    site = native.site
    if len(site.servers) > 1 and find_server_index(name, site.hash_option, len(site.servers)) != native.position:
        raise Refused(ResponseCode.SERVER_NOT_RESP, WRONG_SERVER)


# Requests


def _translate_resolution(request: Request, body: Resolve, native: NativeContext) -> RegistryRequest:
    public_only = OpFlag.PUBLIC_ONLY in request.flags
    name = body.handle if _SLASH in body.handle else _PREFIX_HANDLES + body.handle
    if fold(name.decode("utf-8", "replace")) == f"{SITE_PREFIX}/{STATUS_SUFFIX}":
        return _request(
            ReadCommand(lambda context: _status(context, body, native, public_only)), needs_identity=not public_only
        )
    check_partition(name, native)
    handle = parse_lenient(name)
    if isinstance(handle, UnstorableName):
        return _request(handle, needs_identity=False)
    refer = OpFlag.DO_NOT_REFER not in request.flags
    query = Query(handle, body.types, body.indexes, public_only, refer)
    read = ReadCommand(lambda context: RequestResult(ResolutionResult(body.handle, resolve(query, context).values)))
    return _request(read, needs_identity=not public_only)


def _status(context: Context, body: Resolve, native: NativeContext, public_only: bool) -> RequestResult:
    """The server status, for administrators (12.2)."""
    if public_only:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "the server status is not public")
    context.require(permissions.status())
    values = select(native.status(), body.indexes, body.types)
    if not values:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "the server status has no such values")
    return RequestResult(ResolutionResult(body.handle, values))


def _translate_values(request: Request, body: ValuesRequest, native: NativeContext) -> RegistryRequest:
    overwrite = OpFlag.OVERWRITE in request.flags
    match request.opcode:
        case OpCode.CREATE_HANDLE if OpFlag.MINT_SUFFIX in request.flags:
            return _translate_mint(body)
        case OpCode.CREATE_HANDLE:
            code = ResponseCode.INVALID_HANDLE
            return _request_on_handle(
                body.handle,
                native,
                lambda handle: MappedCommand(
                    Create(handle, body.values, overwrite),
                    lambda changed: RequestResult(CreationResult(body.handle), changed.overwritten),
                ),
                code,
            )
        case OpCode.ADD_VALUE:
            return _request_on_handle(
                body.handle, native, lambda handle: MappedCommand(Add(handle, body.values, overwrite), _to_result)
            )
    return _request_on_handle(
        body.handle, native, lambda handle: MappedCommand(Modify(handle, body.values), _to_result)
    )


def _translate_mint(body: ValuesRequest) -> RegistryRequest:
    """CREATE with MN: the server completes the name (16.2)."""
    try:
        prefix = body.handle.decode("utf-8")
    except UnicodeDecodeError:
        return _request(UnstorableName(body.handle, "the handle is not valid UTF-8", ResponseCode.INVALID_HANDLE))

    def to_created(result: MintResult) -> RequestResult:
        return RequestResult(CreationResult(result.handles[0].to_bytes()))

    return RegistryRequest(lambda since: MappedCommand(Mint(prefix, since=since, values=body.values), to_created))


def _translate_name(opcode: OpCode, name: bytes, native: NativeContext) -> RegistryRequest | None:
    match opcode:
        case OpCode.GET_SITE_INFO:
            site = native.site.to_bytes()
            return _request(ReadCommand(lambda _: RequestResult(SiteInfo(site))), needs_identity=False)
        case OpCode.DELETE_HANDLE:
            return _request_on_handle(name, native, lambda handle: MappedCommand(Delete(handle), _to_result))
        case OpCode.LIST_HANDLES:
            return _translate_list(_decode_prefix(name), 0)
        case OpCode.LIST_HOMED_NAS:
            return RegistryRequest(lambda _: ReadCommand(_list_homed), is_long=True)
        case OpCode.HOME_NA | OpCode.UNHOME_NA:
            home = Home(_decode_prefix(name), unhome=opcode == OpCode.UNHOME_NA)
            return _request(MappedCommand(home, lambda _: RequestResult(Empty())))
        case OpCode.BACKUP_SERVER:
            return RegistryRequest(lambda _: ReadCommand(_check_backup), on_success=lambda: _create_checkpoint(native))
    return None


def _translate_list(name: str, after: int) -> RegistryRequest:
    def read(context: Context) -> RequestResult:
        page = list_handles(context.snapshot, context.identity, name, after, LIST_PAGE_SIZE)
        names = tuple([item.handle.encode("utf-8") for item in page.items])
        return RequestResult(Empty(), names=names, next_page=_translate_list(name, page.last) if page.more else None)

    return RegistryRequest(lambda _: ReadCommand(read), is_long=True)


def _list_homed(context: Context) -> RequestResult:
    return RequestResult(
        Empty(), names=tuple([name.encode("utf-8") for name in list_homed(context.snapshot, context.identity)])
    )


def _check_backup(context: Context) -> RequestResult:
    context.require(permissions.server_operation(OpCode.BACKUP_SERVER))
    return RequestResult(Empty())


def _create_checkpoint(native: NativeContext) -> None:
    if native.checkpoint is None:
        raise Refused(ResponseCode.ERROR, "this server has no key to sign a checkpoint")
    if not native.checkpoint():
        raise Refused(ResponseCode.ERROR, "cannot sign a checkpoint; see the log of the server")


def _request_on_handle(
    name: bytes,
    native: NativeContext,
    make: Callable[[Handle], Command[RequestResult]],
    code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND,
) -> RegistryRequest:
    """A request about a handle; `code` is for a name that no record can have."""
    check_partition(name, native)
    handle = parse_lenient(name, code)
    return _request(handle if isinstance(handle, UnstorableName) else make(handle), changes=True)


def _request(command: Command[RequestResult], *, needs_identity: bool = True, changes: bool = False) -> RegistryRequest:
    return RegistryRequest(lambda _: command, changes, needs_identity)


def _to_result(changed: ChangeResult) -> RequestResult:
    return RequestResult(Empty(), changed.overwritten)


def _decode_prefix(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(ResponseCode.INVALID_HANDLE, NOT_A_PREFIX_HANDLE) from None

"""What the operations of the native protocol are to the registry, and what its results are to a client.

No rule is decided here. What belongs to the protocol alone is: names that are no names, how a request for a prefix may
be spelt, which server of a site is asked, whether a client understands referrals, lists in pieces.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.record import select
from perseid.records.site import Site
from perseid.records.value import Permission, Value
from perseid.registry.access import permissions
from perseid.registry.access.permissions import shown
from perseid.registry.commands.minting import Maker, Mint
from perseid.registry.commands.records import Add, Create, Delete, Home, Modify, Remove
from perseid.registry.context import Context, Operation
from perseid.registry.identity import Anonymous, Proof
from perseid.registry.queries.listing import list_handles, list_homed
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.registry import Registry
from perseid.registry.results import Changed, Minted, Refused
from perseid.registry.snapshot import SITE_PREFIX
from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.partition import server_for
from perseid.wire.requests import Name, RemoveValues, Resolve, Values, VerifyChallenge
from perseid.wire.responses import Created, Empty, Resolved, SiteInfo
from perseid.wire.server import Request

from .authentication import candidates
from .decisions import DOOR, NOT_PRIMARY, WRONG_SERVER, Asked, Done, Read, Told, Unkeepable, keepable

NAMES_AT_A_TIME: Final = 500
"""Names read at once for a list: ten messages, so that the right to list is decided once for them."""

STATUS: Final = "STATUS"
"""The suffix, under `0.SITE`, of what a server says about itself; letters of any case."""

_REFERRALS_SINCE: Final = 10  # the minor version from which clients follow referrals of changes
_SLASH: Final = b"/"
_PREFIX_HANDLES: Final = f"{PREFIX_OF_PREFIXES}/".encode()

_CHANGES: Final = frozenset(
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
CHANGING: Final = _CHANGES | {OpCode.BACKUP_SERVER}
"""Operations that do something, and must not be done twice for one request."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a door knows beside the registry: the site, which of its servers this is, and what it can do itself."""

    registry: Registry
    site: Site
    position: int
    status: Callable[[], tuple[Value, ...]]
    """The values of `0.SITE/status`."""
    checkpoint: Callable[[], bool] | None = None
    """Makes a checkpoint, and says whether there is one then; None if this process has no key for it."""


class Share(Protocol):
    """Which server of which site somebody is."""

    @property
    def site(self) -> Site: ...

    @property
    def position(self) -> int: ...


def translate(request: Request, place: Place) -> Asked:
    """What a request asks for; raises `Refused` for what no registry has to decide."""
    opcode, body = request.opcode, request.body
    if opcode in _CHANGES and not place.site.is_primary:
        raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
    asked: Asked | None = None
    match body:
        case Resolve():
            asked = _resolution(request, body, place)
        case Values():
            asked = _values(request, body, place)
        case RemoveValues():
            asked = _on_handle(body.handle, place, lambda handle: Told(Remove(handle, body.indexes), _changed))
        case Name():
            asked = _named(opcode, body.handle, place)
    if asked is None:
        reason = f"the operation {opcode.value} is not supported here"
        raise Refused(ResponseCode.OPERATION_NOT_SUPPORTED, reason)
    if opcode == OpCode.RESOLUTION:
        return asked
    old = not request.message.envelope.suggested.at_least(_REFERRALS_SINCE)
    refers = not (old or OpFlag.DO_NOT_REFER in request.flags)
    return replace(asked, changes=opcode in CHANGING, refers=refers)


def secrets_for(place: Place, body: VerifyChallenge, *, refer: bool) -> tuple[bytes, ...]:
    """The secrets that an answer to another server's challenge may have been made with. Raises `Refused`."""
    check_share(body.handle, place)
    handle = keepable(body.handle)
    with place.registry.facts() as facts:
        if isinstance(handle, Unkeepable):
            handle.check_responsible(facts)
            return ()
        nobody = Context(facts, Anonymous(), DOOR, place.registry.now())
        held = nobody.own(handle, refer=refer)
        return tuple([value.data for value in candidates(held.values, Proof.SECRET_KEY, max(body.index, 0))])


def status_values(registry: Registry, **counts: int) -> tuple[Value, ...]:
    """What a server can say about itself: whether all is well, how much there is, and what it counts."""
    with registry.ledger.reading() as reading:
        counts = {"entries": reading.size} | counts
    lines = [("DESC", "a Perseid server"), ("READY", "yes" if registry.ledger.ready else "no")]
    lines += [(name.upper(), str(count)) for name, count in counts.items()]
    now = registry.now()
    return tuple(
        [
            Value(index, type_, text.encode(), permissions=Permission.ADMIN_READ, timestamp=now)
            for index, (type_, text) in enumerate(lines, 1)
        ]
    )


def check_share(name: bytes, place: "Share") -> None:
    """Refuse a name that is another server's of this site."""
    site = place.site
    if len(site.servers) > 1 and server_for(name, site.hash_option, len(site.servers)) != place.position:
        raise Refused(ResponseCode.SERVER_NOT_RESP, WRONG_SERVER)


# Requests


def _resolution(request: Request, body: Resolve, place: Place) -> Asked:
    public_only = OpFlag.PUBLIC_ONLY in request.flags
    name = body.handle if _SLASH in body.handle else _PREFIX_HANDLES + body.handle
    if fold(name.decode("utf-8", "replace")) == f"{SITE_PREFIX}/{STATUS}":
        return _asked(Read(lambda context: _status(context, body, place, public_only)), personal=not public_only)
    check_share(name, place)
    handle = keepable(name)
    if isinstance(handle, Unkeepable):
        return _asked(handle, personal=False)
    refer = OpFlag.DO_NOT_REFER not in request.flags
    query = Query(handle, body.types, body.indexes, public_only, refer)
    read = Read(lambda context: Done(Resolved(body.handle, resolve(query, context).values)))
    return _asked(read, personal=not public_only)


def _status(context: Context, body: Resolve, place: Place, public_only: bool) -> Done:
    """What the server says about itself, to administrators (12.2)."""
    if public_only:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "what this server says about itself is not public")
    context.demand(permissions.status())
    values = select(place.status(), body.indexes, body.types)
    if not values:
        raise Refused(ResponseCode.VALUES_NOT_FOUND, "the status has no such values")
    return Done(Resolved(body.handle, values))


def _values(request: Request, body: Values, place: Place) -> Asked:
    overwrite = OpFlag.OVERWRITE in request.flags
    match request.opcode:
        case OpCode.CREATE_HANDLE if OpFlag.MINT_SUFFIX in request.flags:
            return _minting(body, place)
        case OpCode.CREATE_HANDLE:
            code = ResponseCode.INVALID_HANDLE
            return _on_handle(
                body.handle,
                place,
                lambda handle: Told(
                    Create(handle, body.values, overwrite),
                    lambda changed: Done(Created(body.handle), changed.overwritten),
                ),
                code,
            )
        case OpCode.ADD_VALUE:
            return _on_handle(body.handle, place, lambda handle: Told(Add(handle, body.values, overwrite), _changed))
    return _on_handle(body.handle, place, lambda handle: Told(Modify(handle, body.values), _changed))


def _minting(body: Values, place: Place) -> Asked:
    """CREATE with MN: the server completes the name that was begun (16.2)."""
    try:
        where = body.handle.decode("utf-8")
    except UnicodeDecodeError:
        return _asked(Unkeepable(body.handle, "the name is not UTF-8", ResponseCode.INVALID_HANDLE))
    maker = Maker.of(place.registry)

    def minted(result: Minted) -> Done:
        return Done(Created(result.handles[0].to_octets()))

    return Asked(lambda since: Told(Mint(maker, where, since=since, values=body.values), minted))


def _named(opcode: OpCode, name: bytes, place: Place) -> Asked | None:
    match opcode:
        case OpCode.GET_SITE_INFO:
            site = place.site.to_bytes()
            return _asked(Read(lambda _: Done(SiteInfo(site))), personal=False)
        case OpCode.DELETE_HANDLE:
            return _on_handle(name, place, lambda handle: Told(Delete(handle), _changed))
        case OpCode.LIST_HANDLES:
            return _list(_text(name), 0)
        case OpCode.LIST_HOMED_NAS:
            return _asked(Read(_homed))
        case OpCode.HOME_NA | OpCode.UNHOME_NA:
            home = Home(_text(name), unhome=opcode == OpCode.UNHOME_NA)
            return _asked(Told(home, lambda _: Done(Empty())))
        case OpCode.BACKUP_SERVER:
            return Asked(lambda _: Read(_backup), afterwards=lambda: _make_checkpoint(place))
    return None


def _list(name: str, after: int) -> Asked:
    def read(context: Context) -> Done:
        page = list_handles(context.facts, context.who, name, after, NAMES_AT_A_TIME)
        names = tuple([item.handle.encode("utf-8") for item in page.items])
        return Done(Empty(), names=names, following=_list(name, page.last) if page.more else None)

    return _asked(Read(read))


def _homed(context: Context) -> Done:
    return Done(Empty(), names=tuple([name.encode("utf-8") for name in list_homed(context.facts, context.who)]))


def _backup(context: Context) -> Done:
    context.demand(permissions.serve(OpCode.BACKUP_SERVER))
    return Done(Empty())


def _make_checkpoint(place: Place) -> None:
    if place.checkpoint is None:
        raise Refused(ResponseCode.ERROR, "this server has no key to make a checkpoint with")
    if not place.checkpoint():
        raise Refused(ResponseCode.ERROR, "no checkpoint could be signed", "look into the log of the server")


def _on_handle(
    name: bytes,
    place: Place,
    make: Callable[[Handle], Operation[Done]],
    code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND,
) -> Asked:
    """An operation on a name; with the code for one that no record can have."""
    check_share(name, place)
    handle = keepable(name, code)
    return _asked(handle if isinstance(handle, Unkeepable) else make(handle))


def _asked(operation: Operation[Done], *, personal: bool = True) -> Asked:
    return Asked(lambda _: operation, personal=personal)


def _changed(changed: Changed) -> Done:
    return Done(Empty(), changed.overwritten)


def _text(name: bytes) -> str:
    """A name that has to be a prefix's; raises `Refused`."""
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        advice = f"{shown(name.decode('utf-8', 'replace'))} is not UTF-8"
        raise Refused(ResponseCode.INVALID_HANDLE, "Handle is not a prefix handle", advice) from None

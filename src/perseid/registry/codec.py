"""The encoding in which processes of one installation exchange requests to the ledger, commands and their outcomes.

It is MessagePack with a version (msgspec): every message is decoded as the type that is expected, and has a maximum
size. Both sides run the same version of the program, because the supervisor starts them; another version is refused.

Results of commands that carry an idempotency key are stored in this form too (`encode_result`), so their names and
fields stay as they are, or `decode_result` upgrades older ones.
"""

from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from perseid.ledger.errors import (
    ClockError,
    Contention,
    CorruptData,
    JobEnded,
    LeaseClosed,
    LedgerError,
    OutcomeUnknown,
    OutdatedProgram,
    PreconditionFailed,
    ReadOnlyMode,
    ReadOnlyStore,
    StorageFull,
    StoreUnavailable,
    TooBusy,
)
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import (
    Append,
    Appended,
    Changed,
    Execute,
    Executed,
    Failed,
    IdempotencyRecord,
    IdempotentRequest,
    Lease,
    Leased,
    Outcome,
    Remember,
    Remembered,
    RepeatedRequest,
    Request,
    StateChange,
)
from perseid.ledger.store.idempotency import RecordUse
from perseid.ledger.store.jobs import ChangeJob, EndJob, Job, StartJob
from perseid.ledger.views.search_keys import index_keys
from perseid.names.handle import Handle
from perseid.records.record import Value, ValueRef
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import InactiveToken, Token
from perseid.registry.access.tokens import CreateToken, RevokeToken
from perseid.registry.commands.access import AccessChange, Grant, Revoke
from perseid.registry.commands.composition import Condition, Conditional, ConditionFailed
from perseid.registry.commands.create_namespace import CopyPrefixHandle, CreateNamespace
from perseid.registry.commands.lifecycle import Publish, Redact, Revive, Tombstone, Unpublish
from perseid.registry.commands.minting import Generate, Mint, Reserve, RetryLater
from perseid.registry.commands.namespaces import AddNamespace, Namespace, RemoveNamespace, SetPolicy
from perseid.registry.commands.records import (
    Add,
    AddValues,
    Create,
    CreateRecord,
    Delete,
    Home,
    Modify,
    Remove,
    ReplaceRecord,
    SetValues,
)
from perseid.registry.commands.transfer import LinkMetadata, LinkResult, LinkVersion, Transfer
from perseid.registry.commands.users import AddUser, DisableUser, ResetUser, UserResult
from perseid.registry.jobs.import_job import MintedRows, MintRows
from perseid.registry.jobs.undo import UndoConflict
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.namespaces import ChangePolicy, PolicyChange
from perseid.schema.records import upgrade_warnings
from perseid.wire.codes import ResponseCode

from .advice import Advice, AdviceKind
from .context import Deferrable
from .identity import Anonymous, Identity, KeyIdentity, LocalIdentity, Proof, TokenIdentity
from .registry import DeferredCommand, Registry, encode_stored_result
from .results import (
    ChangeResult,
    CounterClosed,
    InvalidQuery,
    InvalidRequest,
    InvalidTimestamp,
    MintResult,
    NotPublic,
    OtherServer,
    OutOfSpace,
    PrefixNotHosted,
    ReadOnly,
    ReferralError,
    Refused,
    StateConflict,
    WrongClock,
)

VERSION: Final = 5
"""Changes with every change of a message."""

MAX_MESSAGE: Final = 64 << 20
"""Bytes of the longest message: twice what one commit takes (`writer.MAX_GROUP_BYTES`)."""

MAX_CONDITIONS: Final = 4
"""Conditions of one command: an interface adds at most one."""

RESULT_MARK: Final = b"\xc1\x01"
"""The start of a stored result. Neither MessagePack nor JSON begins like this, so it is never taken for a response."""

_MAX_INTEGER: Final = 1 << 63  # MessagePack has no longer ones

T = TypeVar("T")

_COMMANDS: Final[dict[str, type[Deferrable]]] = {
    kind.__name__: kind
    for kind in (
        *(Add, AddNamespace, AddValues, ChangePolicy, CopyPrefixHandle, Create, CreateNamespace, CreateRecord),
        *(CreateToken, Delete, Generate, Home, LinkMetadata, LinkVersion, Mint, Modify, Publish, Redact, Remove),
        *(RemoveNamespace, ReplaceRecord, Reserve, Revive, RevokeToken, SetPolicy, SetValues, Tombstone, Transfer),
        *(Unpublish, AddUser, DisableUser, Grant, MintRows, ResetUser, Revoke),
    )
}
_STATE_CHANGES: Final[dict[str, type[StateChange]]] = {
    kind.__name__: kind for kind in (ChangeJob, EndJob, RecordUse, StartJob)
}
_RESULTS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        *(AccessChange, ChangeResult, LinkResult, MintedRows, MintResult, Namespace, PolicyChange, Token, UserResult),
        int,
    )
}
_REFUSALS: Final[dict[str, type[Refused]]] = {
    kind.__name__: kind
    for kind in (
        *(ConditionFailed, CounterClosed, InactiveToken, InvalidQuery, InvalidRequest, InvalidTimestamp, NotPublic),
        *(OtherServer, OutOfSpace, PrefixNotHosted, ReadOnly, ReferralError, Refused, RetryLater, StateConflict),
        *(UndoConflict, WrongClock),
    )
}
_LEDGER_ERRORS: Final[dict[str, type[LedgerError]]] = {
    kind.__name__: kind
    for kind in (
        *(ClockError, Contention, CorruptData, JobEnded, LedgerError, OutcomeUnknown, OutdatedProgram),
        *(ReadOnlyMode, ReadOnlyStore, StorageFull, StoreUnavailable, TooBusy),
    )
}


class InvalidMessage(Exception):
    """A message is not one of this version."""


class OtherVersion(InvalidMessage):
    """A message is of another version."""


# Messages


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a message."""


_Tagged: TypeAlias = tuple[str, msgspec.Raw]
"""The name of a type, and the value."""


class _Draft(_Message, frozen=True):
    action: int
    state: int
    handle: str
    interface: str
    actor: str
    note: str
    exact: bool
    contents: list[bytes]
    search_keys: list[bytes] | None = None


class _Once(_Message, frozen=True):
    caller: bytes
    key: bytes
    digest: bytes
    status: int
    body: bytes | None


class _Append(_Message, frozen=True, tag="append"):
    draft: _Draft
    more: list[_Draft]
    preconditions: dict[bytes, int]
    redactions: dict[int, frozenset[bytes]]
    job: str
    expected_leaves: dict[bytes, bytes]
    once: _Once | None


class _Lease(_Message, frozen=True, tag="lease"):
    scope: bytes
    count: int
    now: int


class _Remember(_Message, frozen=True, tag="remember"):
    once: _Once


class _StateChange(_Message, frozen=True, tag="change"):
    change: _Tagged


class _Identity(_Message, frozen=True):
    kind: str
    session: bool = False
    reference: ValueRef | None = None
    proof: Proof | None = None
    verified_index: int | None = None
    user: str = ""
    token: str = ""
    scope: ScopeSet | None = None


class _Execute(_Message, frozen=True, tag="execute"):
    command: _Tagged
    conditions: list[tuple[Handle, Condition]]
    identity: _Identity
    interface: str
    note: str
    preconditions: dict[bytes, int]
    job: str
    expected_leaves: dict[bytes, bytes]
    once: _Once | None


class _Appended(_Message, frozen=True, tag="appended"):
    seq: int
    at: int


class _Leased(_Message, frozen=True, tag="leased"):
    first: int
    count: int


class _Remembered(_Message, frozen=True, tag="remembered"):
    pass


class _Changed(_Message, frozen=True, tag="changed"):
    result: Job | bool | None


class _Executed(_Message, frozen=True, tag="executed"):
    result: _Tagged
    seq: int
    changed: tuple[bytes, ...]
    erased: bool


class _PreconditionFailed(_Message, frozen=True, tag="precondition_failed"):
    key: bytes
    expected: int
    actual: int


class _LeaseClosed(_Message, frozen=True, tag="lease_closed"):
    scope: bytes
    last: int


class _Repeated(_Message, frozen=True, tag="repeated"):
    record: IdempotencyRecord


class _Refused(_Message, frozen=True, tag="refused"):
    kind: str
    code: int
    reason: str
    rule: str
    advice: str | None
    parameters: list[tuple[str, int | str | tuple[str, ...]]]
    seconds: float = 0.0
    since: int | None = None
    number: int = 0
    values: tuple[Value, ...] = ()


class _InvalidPolicy(_Message, frozen=True, tag="invalid_policy"):
    key: str | None
    message: str


class _Failed(_Message, frozen=True, tag="failed"):
    kind: str
    message: str
    raised: bool
    """Whether the whole commit failed."""


_Request: TypeAlias = _Append | _Lease | _Execute | _Remember | _StateChange
_Outcome: TypeAlias = (
    _Appended
    | _Leased
    | _Executed
    | _Remembered
    | _Changed
    | _PreconditionFailed
    | _LeaseClosed
    | _Repeated
    | _Refused
    | _InvalidPolicy
    | _Failed
)

_encoder: Final = msgspec.msgpack.Encoder()
_request_decoder: Final = msgspec.msgpack.Decoder(tuple[int, _Request])
_outcome_decoder: Final = msgspec.msgpack.Decoder(tuple[int, _Outcome])


# Requests


def encode_request(request: Request) -> bytes:
    """Encode a request. Raises `InvalidMessage` if it is too long or does not consist of data."""
    match request:
        case Append():
            message: _Request = _Append(
                _encode_draft(request.draft, with_keys=bool(request.more)),
                [_encode_draft(draft, with_keys=True) for draft in request.more],
                dict(request.preconditions),
                dict(request.redactions),
                request.job,
                dict(request.expected_leaves),
                None if request.once is None else _encode_once(request.once),
            )
        case Lease():
            message = _Lease(request.scope, request.count, request.now)
        case Remember():
            message = _Remember(_encode_once(request.once))
        case StateChange():
            message = _StateChange(_tag(request))
        case Execute(command=DeferredCommand() as deferred):
            command: object = deferred.command
            conditions: list[tuple[Handle, Condition]] = []
            while isinstance(command, Conditional):
                conditions.append((command.handle, command.condition))
                command = command.command
            message = _Execute(
                _tag(command),
                conditions,
                _encode_identity(deferred.identity),
                deferred.interface,
                deferred.note,
                dict(request.preconditions),
                request.job,
                dict(request.expected_leaves),
                None if request.once is None else _encode_once(request.once),
            )
        case _:
            raise InvalidMessage("a request that is decided by code cannot be sent")
    return _encode((VERSION, message))


def decode_request(data: bytes, registry: Registry) -> Request:
    """Decode a request, to be decided by a registry. Raises `InvalidMessage`."""
    message = _decode(_request_decoder, data)
    try:
        match message:
            case _Append():
                drafts = [_decode_draft(draft) for draft in (message.draft, *message.more)]
                return Append(
                    drafts[0],
                    message.preconditions,
                    message.redactions,
                    message.job,
                    message.expected_leaves,
                    None if message.once is None else _decode_once(message.once),
                    tuple(drafts[1:]),
                )
            case _Lease():
                return Lease(message.scope, message.count, message.now)
            case _Remember():
                return Remember(_decode_once(message.once))
            case _StateChange():
                return _untag(_STATE_CHANGES, message.change)
            case _Execute():
                command: Any = _untag(_COMMANDS, message.command)
                if len(message.conditions) > MAX_CONDITIONS:
                    raise InvalidMessage("too many conditions")
                for handle, condition in reversed(message.conditions):
                    command = Conditional(command, handle, condition)
                identity = _decode_identity(message.identity)
                deferred = DeferredCommand(command, identity, message.interface, message.note)
                return Execute(
                    lambda reader: registry.decide_deferred(deferred, reader),
                    deferred,
                    message.preconditions,
                    message.job,
                    message.expected_leaves,
                    None if message.once is None else _decode_once(message.once),
                    None if message.once is None else encode_stored_result,
                )
    except (ValueError, msgspec.MsgspecError) as problem:
        raise InvalidMessage(str(problem)) from problem


def _encode_draft(draft: Draft, *, with_keys: bool) -> _Draft:
    """Encode a draft; of many, the writer gets the search keys, too, because all others wait for its commit."""
    contents = draft.contents()
    return _Draft(
        int(draft.action),
        int(draft.state),
        draft.handle,
        draft.interface,
        draft.actor,
        draft.note,
        draft.exact,
        contents,
        [*index_keys(contents)] if with_keys else None,
    )


def _decode_draft(message: _Draft) -> Draft:
    kind = Action(message.action), State(message.state), message.exact
    texts = message.handle, message.interface, message.actor, message.note
    return Draft.of_contents(kind, *texts, message.contents, message.search_keys)


def _encode_once(once: IdempotentRequest) -> _Once:
    return _Once(once.caller, once.key, once.digest, once.status, once.body)


def _decode_once(once: _Once) -> IdempotentRequest:
    return IdempotentRequest(once.caller, once.key, once.digest, once.status, once.body)


def _encode_identity(identity: Identity) -> _Identity:
    match identity:
        case Anonymous():
            return _Identity("anonymous", identity.session)
        case LocalIdentity():
            return _Identity("local", user=identity.user)
        case TokenIdentity():
            issuer = _encode_identity(identity.issuer)
            return msgspec.structs.replace(issuer, token=identity.token, scope=identity.scope)
        case _:
            return _Identity("key", identity.session, identity.reference, identity.proof, identity.verified_index)


def _decode_identity(message: _Identity) -> Identity:
    if message.kind == "anonymous":
        return Anonymous(message.session)
    identity: KeyIdentity | LocalIdentity
    if message.kind == "local":
        identity = LocalIdentity(message.user)
    elif message.reference is None or message.proof is None:
        raise InvalidMessage("an identity has no key")
    else:
        identity = KeyIdentity(message.reference, message.proof, message.session, message.verified_index)
    return identity if message.scope is None else TokenIdentity(identity, message.token, message.scope)


def encode_identity(identity: Identity) -> bytes:
    """Encode an identity, for a process that acts for it later."""
    return _encoder.encode(_encode_identity(identity))


def decode_identity(data: bytes) -> Identity:
    """Decode an identity. Raises `InvalidMessage`."""
    try:
        return _decode_identity(msgspec.msgpack.decode(data, type=_Identity))
    except (ValueError, msgspec.MsgspecError) as problem:
        raise InvalidMessage(str(problem)) from problem


# Outcomes


def encode_outcome(outcome: Outcome | Exception) -> bytes:
    """Encode an outcome, or the error of a whole commit. One that cannot be encoded fails alone, as unknown."""
    try:
        return _encode((VERSION, _outcome_message(outcome)))
    except (InvalidMessage, ValueError, TypeError, OverflowError) as problem:
        message = f"the outcome cannot be sent ({type(problem).__name__}) and is unknown"
        return _encode((VERSION, _Failed("OutcomeUnknown", f"{message}; check whether the change was made", False)))


def _outcome_message(outcome: Outcome | Exception) -> _Outcome:
    match outcome:
        case Appended():
            message: _Outcome = _Appended(outcome.seq, outcome.at)
        case Leased():
            message = _Leased(outcome.first, outcome.count)
        case Executed():
            message = _Executed(_tag(outcome.result), outcome.seq, outcome.changed, outcome.erased)
        case Remembered():
            message = _Remembered()
        case Changed():
            message = _Changed(cast("Job | bool | None", outcome.result))
        case PreconditionFailed():
            message = _PreconditionFailed(outcome.key, outcome.expected, outcome.actual)
        case LeaseClosed():
            message = _LeaseClosed(outcome.scope, outcome.last)
        case RepeatedRequest():
            message = _Repeated(outcome.record)
        case Failed():
            message = _encode_error(outcome.error, raised=False)
        case _:
            message = _encode_error(outcome, raised=True)
    return message


def decode_outcome(data: bytes) -> Outcome:
    """Decode an outcome; raises the error of the commit, or `InvalidMessage`."""
    message = _decode(_outcome_decoder, data)
    match message:
        case _Appended():
            return Appended(message.seq, message.at)
        case _Leased():
            return Leased(message.first, message.count)
        case _Executed():
            return Executed(_untag(_RESULTS, message.result), message.seq, message.changed, message.erased)
        case _Remembered():
            return Remembered()
        case _Changed():
            return Changed(message.result)
        case _PreconditionFailed():
            return PreconditionFailed(message.key, message.expected, message.actual)
        case _LeaseClosed():
            return LeaseClosed(message.scope, message.last)
        case _Repeated():
            return RepeatedRequest(message.record)
        case _:
            return _decode_error(message)


def _encode_error(error: Exception, *, raised: bool) -> _Outcome:
    match error:
        case Refused():
            advice = error.advice
            return _Refused(
                type(error).__name__ if type(error).__name__ in _REFUSALS else "Refused",
                int(error.code),
                _replace_surrogates(error.reason),
                error.rule,
                None if advice is None else advice.kind.name,
                [] if advice is None else [(name, _encode_parameter(value)) for name, value in advice.parameters],
                getattr(error, "seconds", 0.0),
                getattr(error, "since", None),
                getattr(error, "number", 0),
                getattr(error, "values", ()),
            )
        case InvalidPolicy():
            return _InvalidPolicy(error.key, _replace_surrogates(error.message))
        case LedgerError():
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _LEDGER_ERRORS)
            return _Failed(kind, _replace_surrogates(str(error)), raised)
        case _:
            return _Failed("LedgerError", _replace_surrogates(f"{type(error).__name__}: {error}"), raised)


def _decode_error(message: _Refused | _InvalidPolicy | _Failed) -> Failed:
    match message:
        case _Refused():
            return Failed(_decode_refusal(message))
        case _InvalidPolicy():
            return Failed(InvalidPolicy(message.key, message.message))
        case _Failed():
            error = _make(_LEDGER_ERRORS.get(message.kind, LedgerError), message.message)
            if message.raised:
                raise error
            return Failed(error)


def _encode_parameter(value: object) -> int | str | tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(_replace_surrogates(str(each)) for each in value)
    return value if isinstance(value, int) and abs(value) < _MAX_INTEGER else _replace_surrogates(str(value))


def _replace_surrogates(text: str) -> str:
    """Replace what has no UTF-8 form, such as the bytes of an invalid argument."""
    return text.encode(errors="replace").decode()


def _decode_refusal(message: _Refused) -> Refused:
    kind = _REFUSALS.get(message.kind)
    if kind is None or (message.advice is not None and message.advice not in AdviceKind.__members__):
        raise InvalidMessage(f"unknown refusal {message.kind} or advice {message.advice}")
    refused = _make(kind, message.reason)
    advice = None if message.advice is None else Advice(AdviceKind[message.advice], tuple(message.parameters))
    Refused.__init__(refused, ResponseCode(message.code), message.reason, advice, message.rule)
    match refused:
        case RetryLater():
            refused.seconds, refused.since = message.seconds, message.since
        case InvalidTimestamp():
            refused.number = message.number
        case ReferralError():
            refused.values = message.values
        case UndoConflict():
            refused.conflicts = []  # the reason lists them
    return refused


_E = TypeVar("_E", bound=Exception)


def _make(kind: type[_E], message: str) -> _E:
    """Create an exception with a message, whatever its constructor takes."""
    error = kind.__new__(kind)
    error.args = (message,)
    return error


# Results


def encode_result(result: object) -> bytes:
    """Encode the result of a command, to be stored with its idempotency key."""
    return RESULT_MARK + _encode(_tag(result))


def decode_result(data: bytes | None) -> object | None:
    """Decode a stored result; None if it is not one."""
    if data is None or not data.startswith(RESULT_MARK):
        return None
    name, stored = msgspec.msgpack.decode(data[len(RESULT_MARK) :], type=_Tagged)
    upgraded = _encoder.encode(upgrade_warnings(msgspec.msgpack.decode(stored)))
    result: object = _untag(_RESULTS, (name, msgspec.Raw(upgraded)))
    return result


# Helpers


def _tag(value: object) -> _Tagged:
    return type(value).__name__, msgspec.Raw(_encoder.encode(value))


def _untag(kinds: dict[str, type[T]], message: _Tagged) -> T:
    name, data = message
    if name not in kinds:
        raise InvalidMessage(f"unknown type {name}")
    try:
        return msgspec.msgpack.decode(data, type=kinds[name])
    except (ValueError, msgspec.MsgspecError) as problem:
        raise InvalidMessage(str(problem)) from problem


def _encode(value: object) -> bytes:
    data = _encoder.encode(value)
    if len(data) > MAX_MESSAGE:
        raise InvalidMessage(f"a message of {len(data):,} bytes is too long; the limit is {MAX_MESSAGE:,}")
    return data


def _decode(decoder: "msgspec.msgpack.Decoder[tuple[int, T]]", data: bytes) -> T:
    if len(data) > MAX_MESSAGE:
        raise InvalidMessage(f"a message of {len(data):,} bytes is too long; the limit is {MAX_MESSAGE:,}")
    try:
        version, message = decoder.decode(data)
    except (ValueError, msgspec.MsgspecError) as problem:
        raise InvalidMessage(str(problem)) from problem
    if version != VERSION:
        raise OtherVersion(f"version {version} is not version {VERSION}")
    return message

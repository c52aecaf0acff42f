"""Messages between the processes of a server: any bytes are a message or refused, and a message is encoded again.

The first byte of the input says whether the rest is a request or an outcome.
"""

from types import SimpleNamespace
from typing import Any, Final, cast

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Appended, Execute, Executed, Failed, Lease
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.advice import AdviceKind
from perseid.registry.codec import InvalidMessage, decode_outcome, decode_request, encode_outcome, encode_request
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.records import Create
from perseid.registry.identity import LocalIdentity
from perseid.registry.registry import DeferredCommand, Registry
from perseid.registry.results import ChangeResult, Refused
from perseid.wire.codes import ResponseCode

_REGISTRY = cast("Registry", SimpleNamespace())  # nothing is decided


def fuzz(data: bytes) -> None:
    """Decode a message and, if that succeeds, encode it and decode it again."""
    if not data:
        return
    try:
        if data[0] & 1:
            request = decode_request(data[1:], _REGISTRY)
            again: Any = decode_request(encode_request(request), _REGISTRY)
            if not isinstance(request, Execute):
                assert again == request, "another request"
            else:
                assert again.command == request.command, "another command"
        else:
            encode_outcome(decode_outcome(data[1:]))
    except (InvalidMessage, LedgerError):
        pass


_URL = Value.text(1, "URL", "https://example.org/")
_HANDLE = Handle("12345", "x")
_DRAFT = Draft(Action.CREATE, State.NORMAL, "12345/x", "http", "local:alice", values=(_URL,))


def _deferred(command: Any) -> Execute:
    return Execute(lambda _: cast("Any", None), DeferredCommand(command, LocalIdentity("alice"), "http", "note"))


SEEDS: Final = [
    *[
        b"\1" + encode_request(request)
        for request in (
            Append(_DRAFT, {b"12345/X": 0}, {3: frozenset({bytes(32)})}, "job"),
            Lease(b"scope", 1, 0),
            _deferred(Create(_HANDLE, (_URL,))),
            _deferred(Mint("12345", 2, values=(_URL,))),
        )
    ],
    *[
        b"\0" + encode_outcome(outcome)
        for outcome in (
            Appended(7, 1),
            Executed(ChangeResult(_HANDLE, 7), 7, (b"12345/X",)),
            Failed(Refused(ResponseCode.INVALID_VALUE, "why", AdviceKind.RETRY_AFTER(seconds=3))),
        )
    ],
]

WORDS: Final = [b"Create", b"Mint", b"append", b"execute", b"executed", b"refused", b"\xc4\x01", b"\xc0", b"\x92\x01"]

"""What a client is told when something does not go as it wished: a code of the protocol and a sentence.

Deployed servers have fixed sentences for some refusals (native protocol, 7.6, 12.1, 16), and these are sent as they
are. For the others the reason is told, and what to do about it. What goes wrong inside is nobody's business but the
operator's: the client gets a number, under which the log has the kind of error and where it came from. Not its
message, which may hold anything, a statement with its parameters for example.
"""

import logging
import traceback
from collections.abc import Callable
from typing import Final

from perseid.ledger.errors import (
    Contention,
    LeaseClosed,
    LedgerError,
    OutcomeUnknown,
    ReadOnly,
    StorageFull,
    TooBusy,
    WrongClock,
)
from perseid.registry.results import Referred, Refused
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.errors import LocalProtocolError
from perseid.wire.responses import Failure, Referral, ResponseBody
from perseid.wire.server import Request

MAX_TEXT: Final = 400
"""Octets of the longest sentence: with all that stands before it, it fits into one packet. A refusal, which anybody can
provoke from a forged address, is then no longer than the request of a longer name."""

WRONG_PREFIX: Final = "That prefix doesn't live here"
WRONG_SERVER: Final = "Request was hashed incorrectly"
NOT_PRIMARY: Final = "Not a primary server"
"""What deployed servers say with RC_SERVER_NOT_RESP."""

INTERNAL_ERROR: Final = "Internal Error"
"""What deployed servers say when something went wrong inside."""

_FIXED: Final = (
    WRONG_PREFIX,
    WRONG_SERVER,
    NOT_PRIMARY,
    "Value indexes must be positive",
    "Value list was empty",
    "Value is read-only",
    "Handle is not a prefix handle",
)
_BY_LOWER: Final = {text.lower(): text for text in _FIXED}
_BEGINNING: Final = "Index conflict for "  # and the index

_SILENT: Final = frozenset((ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND))
"""What is said without a sentence when a name is resolved: a resolver process says so too, and must say the same."""

_REFERRALS_SINCE: Final = 5  # the minor version; before it, the number of a referral meant something else

_INSIDE: Final[dict[type[Exception], tuple[ResponseCode, str]]] = {
    TooBusy: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, try again shortly"),
    Contention: (ResponseCode.SERVER_TOO_BUSY, "the server is too busy; nothing was changed, try again shortly"),
    StorageFull: (ResponseCode.ERROR, "the server has no room to store changes; nothing was changed"),
    WrongClock: (ResponseCode.ERROR, "the server's clock cannot be right, so nothing was changed"),
    ReadOnly: (ResponseCode.SERVER_BACKUP, "the server takes no changes at present; nothing was changed"),
    LeaseClosed: (ResponseCode.ERROR, "the server makes no names here until an operator has looked at it"),
    OutcomeUnknown: (ResponseCode.ERROR, "whether the change was made is not known; look before you try again"),
    LocalProtocolError: (ResponseCode.ERROR, "the answer is too long for a message; ask for fewer values"),
}

_logger = logging.getLogger(__name__)


class Busy(Exception):
    """Whoever does the work has too much of it; nothing was begun."""


def answer_to(error: Exception, request: Request, reference: Callable[[], str]) -> tuple[ResponseCode, ResponseBody]:
    """What a request gets that ended in an error; one that nobody expected is logged under a reference."""
    if isinstance(error, Referred):
        if request.message.envelope.suggested.at_least(_REFERRALS_SINCE):
            return ResponseCode.PREFIX_REFERRAL, Referral(values=error.values)
        return ResponseCode.SERVER_NOT_RESP, failure(error.reason)
    if isinstance(error, Refused):
        return error.code, Failure() if _is_silent(error, request) else failure(text_of(error))
    if isinstance(error, Busy):
        return ResponseCode.SERVER_TOO_BUSY, failure("the server is too busy; try again shortly")
    if (known := known_failure(error)) is not None:
        return known[0], failure(known[1])
    return ResponseCode.ERROR, failure(internal_error(error, reference()))


def known_failure(error: Exception) -> tuple[ResponseCode, str] | None:
    """The code and sentence for what can go wrong inside, the ledger's part of it being logged; None for all else."""
    for kind, told in _INSIDE.items():
        if isinstance(error, kind):
            if isinstance(error, LedgerError):
                _logger.warning("a request failed: %s", kind.__name__)
            return told
    return None


def internal_error(error: Exception, reference: str) -> str:
    """Log an error that nobody expected, and say what the client is told: where to find it, and nothing else."""
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))
    _logger.error("%s, reference %s: %s in %s", INTERNAL_ERROR, reference, type(error).__qualname__, where)
    return f"{INTERNAL_ERROR} (reference {reference})"


def text_of(refused: Refused) -> str:
    """The sentence for a refusal: what deployed servers say where that is fixed, or else reason and advice."""
    reason = refused.reason
    fixed = _BY_LOWER.get(reason.lower())
    if fixed is not None or reason.startswith(_BEGINNING):
        return fixed or reason
    return str(refused)


def failure(text: str) -> Failure:
    """A failure with a sentence, cut if it is long."""
    octets = text.encode("utf-8", "replace")
    if len(octets) > MAX_TEXT:
        octets = octets[: MAX_TEXT - 3].decode("utf-8", "ignore").encode() + "…".encode()
    return Failure(octets)


def _is_silent(refused: Refused, request: Request) -> bool:
    return request.opcode == OpCode.RESOLUTION and refused.code in _SILENT

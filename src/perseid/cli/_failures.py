"""What refusals and failures are to whoever typed a command: one line that says what, help after it, an exit code.

It is loaded when one arrives, so that commands which need nothing stay quick. By then whatever raised it is loaded, so
that a class is looked up where it must be, and no room is loaded to ask whether it might have been that one.
"""

import os
import sys
from typing import Final

from perseid.names.errors import NameProblem

from ._output import print_message, print_name_error

FAILED: Final = 1
NOT_FOUND: Final = 3
REFUSED: Final = 4

_NOT_FOUND_CODES: Final = frozenset({"HANDLE_NOT_FOUND", "VALUES_NOT_FOUND", "SERVER_NOT_RESP"})
"""The refusals that mean "not found" rather than "you may not"."""

_FAILED_CODES: Final = frozenset({"ERROR", "SERVER_TOO_BUSY"})
"""Those that mean that it might have worked."""

_FAILURE_CLASSES: Final = (
    ("perseid.records.errors", "RecordProblem"),
    ("perseid.ledger.errors", "LedgerError"),
    ("perseid.registry.installation.settings", "InvalidConfig"),
    ("perseid.registry.policy.text", "InvalidPolicy"),
)


def report_error(error: Exception) -> int:
    """Say what went wrong, and answer the exit code; a mistake in the program is raised again."""
    if isinstance(error, NameProblem):
        print_name_error(error)
        return FAILED
    if _is_instance(error, "perseid.registry.results", "Refused"):
        return _report_refusal(error)
    if any(_is_instance(error, *where) for where in _FAILURE_CLASSES):
        print_message(f"perseid: {error}")
        return FAILED
    if isinstance(error, OSError):  # the disk is full, say
        _report_os_error(error)
        return FAILED
    raise error


def is_not_found(code: object) -> bool:
    """Whether a refusal means that there is no such thing."""
    return getattr(code, "name", None) in _NOT_FOUND_CODES


def _is_instance(error: Exception, module: str, name: str) -> bool:
    """Whether an error is of a class; if nobody has loaded its module, it is not."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(error, found)


def _report_refusal(error: Exception) -> int:
    reason, advice = getattr(error, "reason", ""), getattr(error, "advice", "")
    print_message(f"perseid: {reason}")
    if advice:
        print_message(f"{advice[:1].upper()}{advice[1:]}")
    code = getattr(error, "code", None)
    if getattr(code, "name", None) in _FAILED_CODES:
        return FAILED
    return NOT_FOUND if is_not_found(code) else REFUSED


def _report_os_error(error: OSError) -> None:
    where = f"{error.filename}: " if error.filename else ""
    print_message(f"perseid: {where}{error.strerror or error}")
    # What is still in the buffer cannot be written either, and would be tried again at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

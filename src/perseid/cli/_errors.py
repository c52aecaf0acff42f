"""Errors on the command line: one line with the reason, advice after it, and an exit code.

It is loaded only when an error occurs, so that commands that need little start fast. The module that raised the error
is loaded by then, so classes are looked up in `sys.modules` and nothing is imported to test for them.
"""

import os
import sys
from importlib import import_module
from typing import Final

from perseid.names.errors import NameProblem

from ._output import print_message, print_name_error

FAILED: Final = 1
NOT_FOUND: Final = 3
REFUSED: Final = 4

_NOT_FOUND_CODES: Final = frozenset({"HANDLE_NOT_FOUND", "VALUES_NOT_FOUND", "SERVER_NOT_RESP"})
"""Refusals that mean "not found" rather than "permission denied"."""

_FAILED_CODES: Final = frozenset({"ERROR", "SERVER_TOO_BUSY"})
"""Refusals that may succeed when retried."""

_FAILURE_CLASSES: Final = (
    ("perseid.records.errors", "RecordProblem"),
    ("perseid.ledger.errors", "LedgerError"),
    ("perseid.registry.installation.settings", "InvalidConfig"),
    ("perseid.registry.policy.text", "InvalidPolicy"),
)


def report_error(error: Exception) -> int:
    """Print an error and its notes, and return the exit code; raise it again if it is a bug."""
    code = _report(error)
    for note in getattr(error, "__notes__", ()):
        print_message(note)
    return code


def _report(error: Exception) -> int:
    if isinstance(error, NameProblem):
        print_name_error(error)
        return FAILED
    if _is_instance(error, "perseid.registry.results", "Refused"):
        return _report_refusal(error)
    if any(_is_instance(error, *name) for name in _FAILURE_CLASSES):
        print_message(f"perseid: {error}")
        return FAILED
    if isinstance(error, OSError):  # for example a full disk
        _report_os_error(error)
        return FAILED
    raise error


def is_not_found(code: object) -> bool:
    """Whether a response code means "not found"."""
    return getattr(code, "name", None) in _NOT_FOUND_CODES


def _is_instance(error: Exception, module: str, name: str) -> bool:
    class_ = getattr(sys.modules.get(module), name, None)
    return isinstance(class_, type) and isinstance(error, class_)


def _report_refusal(error: Exception) -> int:
    print_message(f"perseid: {getattr(error, 'reason', '')}")
    if advice := import_module("._advice", __package__).render_advice(getattr(error, "advice", None)):
        print_message(advice)
    code = getattr(error, "code", None)
    if getattr(code, "name", None) in _FAILED_CODES:
        return FAILED
    return NOT_FOUND if is_not_found(code) else REFUSED


def _report_os_error(error: OSError) -> None:
    path = f"{error.filename}: " if error.filename else ""
    print_message(f"perseid: {path}{error.strerror or error}")
    try:
        sys.stdout.flush()
    except OSError:  # standard output itself failed; Python would write what is still buffered again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

"""Errors on the command line: one line with the reason, advice after it, and an exit code; with `--json` a problem.

It is loaded only when an error occurs, so that commands that need little start fast. The module that raised the error
is loaded by then, so classes are looked up in `sys.modules` and nothing is imported to test for them.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any, Final

from perseid.names.errors import NameProblem

from ._output import CommandFailed, NotFound, print_message, to_json

FAILED: Final = 1
NOT_FOUND: Final = 3
REFUSED: Final = 4

_NOT_FOUND_CODES: Final = frozenset({"HANDLE_NOT_FOUND", "VALUES_NOT_FOUND", "SERVER_NOT_RESP"})
"""Refusals that mean "not found" rather than "permission denied"."""

_FAILED_CODES: Final = frozenset({"ERROR", "SERVER_TOO_BUSY"})
"""Refusals that may succeed when retried."""

_FAILURES: Final = (
    ("perseid.records.errors", "RecordProblem", "invalid-value"),
    ("perseid.registry.policy.text", "InvalidPolicy", "invalid-value"),
    ("perseid.registry.installation.settings", "InvalidConfig", "command-failed"),
    ("perseid.ledger.errors", "Contention", "busy"),
    ("perseid.ledger.errors", "TooBusy", "busy"),
    ("perseid.ledger.errors", "ReadOnlyStore", "read-only"),
    ("perseid.ledger.errors", "LedgerError", "command-failed"),
)
"""Classes of errors, the more exact first, and their problem types."""


@dataclass(frozen=True, slots=True)
class _Report:
    """What is reported about an error."""

    slug: str
    """The problem type."""
    detail: str
    advice: tuple[str, ...] = ()
    """One or more lines."""
    rule: str = ""
    code: int | None = None
    """The response code; None for that of the problem type."""
    exit_code: int = FAILED


def report_error(error: Exception, *, json: bool = False, where: str = "") -> int:
    """Print an error and its notes, and return the exit code; raise it again if it is a bug.

    `where` is the invalid part of the input.
    """
    report = _describe(error)
    notes = getattr(error, "__notes__", ())
    if json:
        _print_problem(report, notes, where)
    else:
        rule = f" (rule {report.rule})" if isinstance(error, NameProblem) else ""
        print_message(f"perseid: {f'{where}: ' if where else ''}{report.detail}{rule}")
        for line in (*report.advice, *notes):
            print_message(line)
    if isinstance(error, OSError):
        _drop_unwritable_output()
    return report.exit_code


def report_usage_error(error: Any) -> int:
    """Print an error in the arguments of a command as a problem, and return the exit code."""
    advice = () if error.ctx is None else (f"See: {error.ctx.command_path} --help",)
    _print_problem(_Report("invalid-request", error.format_message(), advice, exit_code=error.exit_code))
    return int(error.exit_code)


def is_not_found(code: object) -> bool:
    """Whether a response code means "not found"."""
    return getattr(code, "name", None) in _NOT_FOUND_CODES


def _describe(error: Exception) -> _Report:
    if isinstance(error, NameProblem):
        advice: tuple[str, ...] = (f"To read the rule: perseid name rules {error.rule}",)
        if error.rule == "U4":
            advice = ("To accept your own resolver, use --resolver, as in --resolver http://example.org/hdl", *advice)
        return _Report("invalid-name", error.detail, advice, error.rule)
    if _is_instance(error, "perseid.registry.results", "Refused"):
        return _describe_refusal(error)
    if isinstance(error, NotFound):
        return _Report("not-found", str(error), code=0, exit_code=NOT_FOUND)
    if isinstance(error, CommandFailed):
        return _Report("command-failed", str(error), error.args[1:])
    for module, name, slug in _FAILURES:
        if _is_instance(error, module, name):
            return _Report(slug, str(error))
    if isinstance(error, OSError):  # for example a full disk
        path = f"{error.filename}: " if error.filename else ""
        return _Report("command-failed", f"{path}{error.strerror or error}")
    raise error


def _describe_refusal(refused: Any) -> _Report:
    from perseid.schema.problems import slug_of_code  # noqa: PLC0415 - see the module

    from ._advice import render_advice  # noqa: PLC0415

    advice, code = render_advice(refused.advice), refused.code
    exit_code = NOT_FOUND if is_not_found(code) else FAILED if code.name in _FAILED_CODES else REFUSED
    slug = refused.problem_type or slug_of_code(code)
    return _Report(slug, refused.reason, (advice,) if advice else (), refused.rule, int(code), exit_code)


def _print_problem(report: _Report, notes: tuple[str, ...] = (), where: str = "") -> None:
    """Print a problem on one line."""
    from perseid.schema.problems import PROBLEM_TYPES, CommandProblem, make_problem  # noqa: PLC0415 - see the module

    code = next(iter(PROBLEM_TYPES[report.slug].codes), 0) if report.code is None else report.code
    detail, advice = (_replace_surrogates(". ".join(part)) for part in ((report.detail, *notes), report.advice))
    problem = make_problem(report.slug, detail, advice=advice, rule=report.rule, code=code, where=where)
    fields = {name: getattr(problem, name) for name in problem.__struct_fields__}
    print_message(to_json(CommandProblem(**fields, exit_code=report.exit_code)))


def _replace_surrogates(text: str) -> str:
    """Escape bytes that are not UTF-8: JSON cannot contain them."""
    return text.encode(errors="backslashreplace").decode()


def _is_instance(error: Exception, module: str, name: str) -> bool:
    class_ = getattr(sys.modules.get(module), name, None)
    return isinstance(class_, type) and isinstance(error, class_)


def _drop_unwritable_output() -> None:
    try:
        sys.stdout.flush()
    except OSError:  # standard output itself failed; Python would write what is still buffered again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

"""Errors on the command line: one line with the reason, advice after it, and an exit code; with `--json` a problem.

It is loaded only when an error occurs, so that commands that need little start fast. The module that raised the error
is loaded by then, so classes are looked up in `sys.modules` and nothing is imported to test for them.
"""

import errno
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from shlex import quote
from typing import Any, Final

from perseid.names.errors import InvalidName, NameProblem, capitalize

from ._output import CommandFailed, Interrupted, NotFound, print_message, to_json

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
INTERRUPTED: Final = 130
"""As shells report a program that Ctrl-C ended: 128 and the number of the signal."""

_NOT_FOUND_CODES: Final = frozenset({"HANDLE_NOT_FOUND", "VALUES_NOT_FOUND", "SERVER_NOT_RESP"})
"""Refusals that mean "not found" rather than "permission denied"."""

_FAILED_CODES: Final = frozenset({"ERROR", "SERVER_BACKUP", "SERVER_TOO_BUSY"})
"""Refusals that may succeed when retried, now or after the operator has fixed something."""

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


_CLIENT_EXIT_CODES: Final = {"NotFound": NOT_FOUND, "Refused": REFUSED, "Unreachable": UNREACHABLE}
"""The exit codes of the errors of `perseid.client.errors`, by class."""

_CLIENT_ADVICE: Final = {
    "UntrustedCertificate": "Trust its authority with --ca-file FILE, or the certificate itself: perseid login SERVER",
    "UnexpectedKey": "Ask its operator. If the server has a new one, accept it with: perseid login SERVER",
}
"""Advice about some of these errors in the words of the command line, by class."""

_NATIVE_ADVICE: Final = {
    "HANDLE_ALREADY_EXISTS": "Choose another handle. To replace the record, add --overwrite to perseid create",
    "INVALID_ADMIN": "Ask an administrator for the permission, or authenticate as an identity that has it",
    "INSUFFICIENT_PERMISSIONS": "Ask an administrator for the permission, or authenticate as an identity that has it",
    "AUTHENTICATION_FAILED": "Check the identity, as INDEX:HANDLE, and its key or secret",
}
"""Advice about refusals in the native protocol, which sends none, by response code."""

_USAGE_TYPES: Final = frozenset({"invalid-cursor", "invalid-query", "invalid-request"})
"""Problem types of servers that mean wrong usage."""

_RULE_ADVICE: Final = {
    "U4": (
        "Use a handle, as in 12345/x, not the address of a web page",
        "To accept your own resolver, use --resolver, as in --resolver http://example.org/hdl",
    ),
    "U7": ("Write it as a URI, as in hdl:12345/x, or omit --strict",),
}
"""Rules with an option about them."""


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
    refused: Any = None
    """The refusal, if it is one."""
    problem: Any = None
    """The problem that another server has sent."""

    @property
    def text(self) -> str:
        """The detail as a sentence."""
        return capitalize(self.detail)


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
        meant = [
            f"Did you mean {each.handle}? {each.why[0].upper()}{each.why[1:]}"
            for each in getattr(report.problem or getattr(report.refused, "suggestions", None), "suggestions", ())
        ]
        _print_lines(f"{f'{where}: ' if where else ''}{report.text}{rule}", (*meant, *report.advice, *notes))
    if isinstance(error, OSError):
        _drop_unwritable_output()
    return report.exit_code


def report_usage_error(error: Any, *, json: bool = False) -> int:
    """Print an error in the arguments of a command, like every other error, and return the exit code."""
    context, options = error.ctx, getattr(error, "possibilities", None)
    if context is not None and error.message == context.get_help() and not json:  # a group without a command
        sys.stderr.write(f"{error.message}\n")
        return USAGE
    has_own_text = options or getattr(error, "param", None) is None  # it was raised here, not by the library
    hint = f"{error.param_hint}: " if getattr(error, "param_hint", None) else ""
    text = f"{hint}{error.message}" if has_own_text else error.format_message()
    detail = capitalize(" ".join(text.split()).rstrip("."))
    advice = (f"Did you mean {' or '.join(options)}?",) if options else _advise_arguments(context, error.message)
    advice = advice or _advise_value(error)
    see = () if context is None else (f"See: {context.command_path} --help",)
    if json:
        _print_problem(_Report("invalid-request", detail, (*advice, *see), exit_code=USAGE))
    else:
        usage = () if context is None else (" ".join(context.get_usage().split()),)
        _print_lines(detail, (*advice, *usage, *see))
    return USAGE


_EXTRA_ARGUMENTS: Final = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)


_VALUE_START: Final = re.compile(r"(?:[0-9]+:)?[^\s=/:?][^\s=:?]*=")
"""The beginning of a value, as in TITLE=Foo; not of a URL with a query."""

_VALUE_SPLIT: Final = re.compile(rf" (?={_VALUE_START.pattern})")


def _advise_arguments(context: Any, message: str) -> tuple[str, ...]:
    """What to do about arguments that a command does not have: the options that take them, or another command."""
    match = _EXTRA_ARGUMENTS.match(message)
    if match is None or context is None:
        return ()
    path = context.command_path
    options = {name: str(param.metavar) for param in context.command.params for name in param.opts}
    first, _, rest = match[1].partition(" ")
    if "TYPE=DATA" in options.get("--value", "") and _VALUE_START.match(first):
        values = _VALUE_SPLIT.split(match[1])
        return (f"Did you mean {' '.join(f'--value {quote(each)}' for each in values)}?",)
    if rest and f"--{first.lower()}" in options:
        option = (
            "--host" if first.lower() == "url" and "--host" in options and "/" not in rest else f"--{first.lower()}"
        )
        return (f"Did you mean {option} {quote(rest)}?",)
    if "--words" in options:
        return (f"Did you mean {path} --words {quote(match[1])}?",)
    if "--count" in options and match[1].isdecimal():
        return (f"Did you mean --count {match[1]}?",)
    if path == "perseid log" and "/" in first:
        return (f"Did you mean perseid history {quote(first)}?",)
    return ()


_NOT_ONE_OF: Final = re.compile(r"'(.*)' is not one of ('.*')", re.DOTALL)


def _advise_value(error: Any) -> tuple[str, ...]:
    """What to do about an invalid value: a similar one, or where the indexes of a record are."""
    param, match = getattr(error, "param", None), _NOT_ONE_OF.match(error.message)
    if match is not None:
        close = get_close_matches(match[1], match[2].strip("'").split("', '"), 1)
        return (f"Did you mean {close[0]}?",) if close else ()
    if param is None or param.metavar != "INDEX...":
        return ()
    handle = error.ctx.params.get("handle") or "HANDLE"
    return (f"The index is the first column of: perseid resolve {quote(handle)}",)


def exit_code_of(code: Any) -> int:
    """The exit code for a response code of the protocol."""
    return NOT_FOUND if code.name in _NOT_FOUND_CODES else FAILED if code.name in _FAILED_CODES else REFUSED


def exit_code_of_number(code: int | None) -> int:
    """The exit code for the number of a response code, perhaps one that only a newer server knows."""
    from perseid.schema.problems import slug_of_code  # noqa: PLC0415 - see the module
    from perseid.wire.codes import ResponseCode  # noqa: PLC0415

    if code is None or code not in list(ResponseCode):
        return REFUSED
    return USAGE if slug_of_code(code) in _USAGE_TYPES else exit_code_of(ResponseCode(code))


def exit_code_of_refusal(refused: Any) -> int:
    """The exit code for a refusal."""
    is_usage = _is_instance(refused, "perseid.registry.results", "InvalidRequest")
    return USAGE if is_usage else exit_code_of(refused.code)


def _describe(error: Exception) -> _Report:
    if isinstance(error, NameProblem):
        advice = (*_RULE_ADVICE.get(error.rule, ()), f"To read the rule: perseid name rules {error.rule}")
        exit_code = USAGE if isinstance(error, InvalidName) else FAILED
        return _Report("invalid-name", error.detail, advice, error.rule, exit_code=exit_code)
    if _is_instance(error, "perseid.registry.results", "Refused"):
        return _describe_refusal(error)
    if _is_instance(error, "perseid.client.errors", "ClientError"):
        return _describe_client_error(error)
    if isinstance(error, NotFound):
        return _Report("not-found", str(error), code=0, exit_code=NOT_FOUND)
    if isinstance(error, CommandFailed):
        exit_code = USAGE if error.is_usage else REFUSED if error.is_refusal else FAILED
        return _Report(error.problem_type, str(error), error.args[1:], exit_code=exit_code)
    if _is_instance(error, "perseid.bulk.formats", "InvalidFile"):
        invalid: Any = error
        fix = _phrase_row(invalid.problem)
        return _Report(invalid.problem_type, str(error), (fix,) if fix else (), exit_code=USAGE)
    if isinstance(error, Interrupted):
        return _Report("command-failed", str(error), exit_code=INTERRUPTED)
    for module, name, slug in _FAILURES:
        if _is_instance(error, module, name):
            return _describe_failure(error, slug)
    return _describe_environment(error)


def _describe_environment(error: Exception) -> _Report:
    """Describe an error of the machine; raise any other again."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "perseid").startswith("perseid"):
        advice = ("Install the packages for installations: pip install 'perseid[server]'",)
        return _Report("command-failed", f"This command needs {error.name}, which is not installed", advice)
    if isinstance(error, OSError):  # for example a full disk
        path = f"{error.filename}: " if error.filename else ""
        fix = ("Free disk space, then repeat the command",) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ()
        return _Report("command-failed", f"{path}{error.strerror or error}", fix)
    raise error


def _describe_client_error(error: Any) -> _Report:
    """Describe an error of a request to another server: as here, if the server has sent a problem."""
    from perseid.schema.problems import PROBLEM_TYPES, slug_of_code  # noqa: PLC0415 - see the module
    from perseid.wire.codes import ResponseCode  # noqa: PLC0415

    exit_code = next(
        (_CLIENT_EXIT_CODES[each.__name__] for each in type(error).__mro__ if each.__name__ in _CLIENT_EXIT_CODES),
        FAILED,
    )
    advice, slug = _CLIENT_ADVICE.get(type(error).__name__, error.advice), error.problem_type
    if slug not in PROBLEM_TYPES:  # of a newer server
        slug = slug_of_code(error.code) if error.code else error.default_type
    if error.problem is not None:
        from ._advice import render_problem  # noqa: PLC0415 - see the module

        advice = render_problem(error.problem)
    elif error.code and not advice:
        advice = next((text for code, text in _NATIVE_ADVICE.items() if ResponseCode[code] == error.code), "")
    if slug in _USAGE_TYPES:
        exit_code = USAGE
    elif error.problem is not None and error.code:
        exit_code = exit_code_of_number(error.code)
    return _Report(
        slug,
        error.detail,
        (advice,) if advice else (),
        error.rule,
        error.code,
        exit_code,
        problem=error.problem,
    )


def _describe_failure(error: Exception, slug: str) -> _Report:
    """Describe an error that is not a refusal, or is one at the other interfaces; its own text has more details."""
    if not _is_instance(error, "perseid.ledger.errors", "LedgerError"):
        return _Report(slug, str(error))
    from perseid.registry.results import find_refusal  # noqa: PLC0415 - see the module

    refused = find_refusal(error)
    return _Report(slug, str(error)) if refused is None else replace(_describe_refusal(refused), detail=str(error))


def _phrase_row(problem: Any) -> str:
    """Return the fix of a problem of a file, in the terms of the command line."""
    from perseid.registry.advice import phrase_row  # noqa: PLC0415 - only errors need it

    from ._advice import render_advice  # noqa: PLC0415

    return phrase_row(problem, render_advice).fix


def _describe_refusal(refused: Any) -> _Report:
    from perseid.schema.problems import slug_of_code  # noqa: PLC0415 - see the module

    from ._advice import render_advice  # noqa: PLC0415

    advice, code = render_advice(refused.advice), refused.code
    exit_code = exit_code_of_refusal(refused)
    slug = refused.problem_type or slug_of_code(code)
    lines = (advice,) if advice else ()
    return _Report(slug, refused.reason, lines, refused.rule, int(code), exit_code, refused)


def _print_problem(report: _Report, notes: tuple[str, ...] = (), where: str = "") -> None:
    """Print a problem on one line."""
    import msgspec  # noqa: PLC0415 - see the module

    from perseid.schema.problems import PROBLEM_TYPES, CommandProblem, make_problem  # noqa: PLC0415

    code = next(iter(PROBLEM_TYPES[report.slug].codes), 0) if report.code is None else report.code
    detail, advice = map(_join_sentences, ((report.text, *notes), report.advice))
    problem = make_problem(report.slug, detail, advice=advice, rule=report.rule, code=code, where=where)
    fields = {name: getattr(problem, name) for name in problem.__struct_fields__}
    result = CommandProblem(**fields, exit_code=report.exit_code)
    if report.problem is not None:
        sent = ("advice_kind", "advice_parameters", "suggestions", "prefix", "deleted", "instance")
        result = msgspec.structs.replace(result, **{name: getattr(report.problem, name) for name in sent})
    if report.refused is not None:
        from perseid.registry.responses import (  # noqa: PLC0415 - see the module
            with_advice_kind,
            with_deletion,
            with_suggestions,
        )

        result = with_advice_kind(with_deletion(result, report.refused), report.refused.advice)
        if report.refused.suggestions is not None:
            result = with_suggestions(result, report.refused.suggestions)
    print_message(to_json(result))


def _print_lines(detail: str, lines: Iterable[str]) -> None:
    print_message(f"perseid: {detail}")
    for line in lines:
        print_message(line)


def _join_sentences(parts: Iterable[str]) -> str:
    """Join sentences, and escape bytes that are not UTF-8: JSON cannot contain them."""
    return ". ".join(parts).replace("?. ", "? ").encode(errors="backslashreplace").decode()


def _is_instance(error: Exception, module: str, name: str) -> bool:
    class_ = getattr(sys.modules.get(module), name, None)
    return isinstance(class_, type) and isinstance(error, class_)


def _drop_unwritable_output() -> None:
    try:
        sys.stdout.flush()
    except OSError:  # standard output itself failed; Python would write what is still buffered again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

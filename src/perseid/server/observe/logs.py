"""The log: one line for each thing worth telling, on standard error, as text for people or JSON for programs.

    2026-03-01T12:00:00.123Z WARNING control the answers view cannot follow seq=17
    {"time":"2026-03-01T12:00:00.123Z","level":"warning","process":"control","logger":"perseid.…","message":"…","seq":17}

Modules log with the standard library, `logging.getLogger(__name__)`, and give fields with `extra=fields(seq=17)`. Every
process of the server calls `configure` once, before anything else can go wrong.

- Nothing breaks out of its line (`log_text`), whoever wrote it: message, fields, exceptions.
- An exception is logged by its kind and the places it came through, without its words: those may hold anything, a
  statement with its parameters for example, and no secret may stand in a log. Only errors of the operating system are
  quoted, for their words are its own. Who knows that the words of an error are harmless puts them into the message.
- The loggers of libraries stay at WARNING, whatever level is asked for: some of them write data at lower ones.
- A record that cannot be written is replaced by one that says so. Logging never raises and never waits.

Where standard error is the journal of systemd, each line has its priority in front (`<4>`), which the journal takes
off, and text has no time, for the journal has one.
"""

import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from time import gmtime, strftime, time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from perseid.server.log_output import MAX_LINE, Output
from perseid.server.log_text import MAX_TEXT, escaped, field, json_text, text_of

if TYPE_CHECKING:
    # Some processes need neither, and do not load them.
    from asyncio import AbstractEventLoop

    from perseid.registry.installation.setting_keys import LogFormat

MAX_MESSAGE: Final = 2_048
"""Octets of the longest message."""

MAX_EXCEPTION: Final = 768
"""Octets of the longest account of an exception: some dozen places."""

MAX_PLACES: Final = 16
"""How many places of an exception are told, the innermost first; the way there is the same for many."""

MAX_CAUSES: Final = 4
"""How many exceptions behind an exception are told."""

JSON: Final = "json"

STDERR: Final = 2

_STANDARD = frozenset(("time", "level", "process", "logger", "message", "exception", "cut"))
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG_PRIORITY = 7
_INTEGERS = range(-(1 << 63), 1 << 64)  # what readers of JSON take for whole numbers
_CUT_FIELDS = 24  # octets left for saying that there were more fields

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Style:
    """How lines look."""

    process: str
    """Which process of the server writes them."""
    json: bool = False
    journal: bool = False
    """Whether the journal reads them, which keeps the time itself and wants to know priorities."""

    def begin(self, level: int, at: str) -> str:
        """How a line begins: all that stands before what is particular to it."""
        front = f"<{_priority(level)}>" if self.journal else ""
        name = logging.getLevelName(level)
        if self.json:
            process = json_text(self.process)
            return f'{front}{{"time":"{at}","level":{json_text(name.lower())},"process":{process}'
        return f"{front}{'' if self.journal else f'{at} '}{name} {escaped(self.process)}"


@dataclass(frozen=True, slots=True)
class Log:
    """Where a process logs, and how; what `configure` made."""

    style: Style
    output: Output


class LineFormatter(logging.Formatter):
    """A record as one line, its end included."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._looks = style

    def format(self, record: logging.LogRecord) -> str:
        begin = self._looks.begin(record.levelno, stamp(record.created))
        message, fields_of = _message(record), _fields(record)
        error = record.exc_info[1] if record.exc_info else None
        exception = "" if error is None else account_of(error)
        if self._looks.json:
            parts = [begin, f'"logger":{json_text(record.name)}', f'"message":{json_text(message, MAX_MESSAGE)}']
            if exception:
                parts.append(f'"exception":{json_text(exception, MAX_EXCEPTION)}')
            more = [f"{json_text(name)}:{_json_value(value)}" for name, value in fields_of.items()]
            return ",".join(_within(parts, more, '"cut":true')) + "}\n"
        parts = [begin, escaped(message, MAX_MESSAGE)]
        if exception:
            parts.append(f"exception={field(exception, MAX_EXCEPTION)}")
        more = [f"{field(name)}={field(_shown(value))}" for name, value in fields_of.items()]
        return " ".join(_within(parts, more, "cut=true")) + "\n"


class LineHandler(logging.Handler):
    """Writes records as lines; one that cannot be written is replaced by one that says so."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.setFormatter(LineFormatter(log.style))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - whatever it is, logging must not be what fails
            line = notice(self._log.style, logging.ERROR, f"a line of the log could not be written: {record.name}")
        self._log.output.write((line,))

    def close(self) -> None:
        """Write what waits; the library does it at the end of the process."""
        super().close()
        self._log.output.close()


def configure(process: str, form: "LogFormat | str", *, level: int = logging.INFO, descriptor: int = STDERR) -> Log:
    """Have this process log in one of the two forms; called again, it replaces what it did before.

    Exceptions that nobody catches, in any thread, and warnings of Python become lines of the log too.
    """
    style = Style(
        process, getattr(form, "value", form) == JSON, _is_journal(descriptor, os.environ.get("JOURNAL_STREAM", ""))
    )
    lost = "lines of the log were lost, because their reader did not keep up"
    log = Log(style, Output(descriptor, lambda lines: notice(style, logging.WARNING, f"{lines} {lost}")))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, LineHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(LineHandler(log))
    root.setLevel(logging.WARNING)
    logging.getLogger("perseid").setLevel(level)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable
    return log


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Fields of a record, for the argument `extra` of a logger's methods."""
    return {"fields": values}


def loop_exception_handler(_loop: "AbstractEventLoop", context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: the library's own writes several lines, and what exceptions say."""
    # "Exception in callback data_received(b'…')": the name of a function, with all that it was called with.
    words = str(context.get("message", "")).partition("(")[0]
    _logger.error("in the event loop: %s", words, exc_info=context.get("exception"))


def account_of(error: BaseException) -> str:
    """The kind of an exception and the places it came through, and those of the exceptions behind it."""
    told: list[str] = []
    current: BaseException | None = error
    while current is not None and len(told) < MAX_CAUSES:
        words = f": {os.strerror(current.errno)}" if isinstance(current, OSError) and current.errno else ""
        told.append(f"{type(current).__qualname__}{words}{_places(current.__traceback__)}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return ", after ".join(told)


def stamp(seconds: float) -> str:
    """A time as it stands in lines: in UTC, with milliseconds."""
    whole = int(seconds)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def notice(style: Style, level: int, message: str) -> str:
    """A line about the log itself, made without the library."""
    begin = style.begin(level, stamp(time()))
    return f'{begin},"message":{json_text(message)}}}\n' if style.json else f"{begin} {escaped(message)}\n"


def _places(trace: TracebackType | None) -> str:
    """Where an exception came through, the innermost place first, without reading any source."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    places = [f"{code.co_name}:{line}" for code, line in reversed(frames[-MAX_PLACES:])]
    return " in " + " < ".join(places) if places else ""


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - an argument that has no text, or one too many
        return f"{_shown(record.msg)} (its arguments do not fit)"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a record; one that is called like something else in the line gets another name."""
    given = getattr(record, "fields", None)
    if not isinstance(given, Mapping):
        return {}
    return {f"{name}_" if name in _STANDARD else str(name): value for name, value in given.items()}


def _shown(value: object) -> str:
    """Any value as text."""
    try:
        if isinstance(value, bytes):
            return text_of(value)
        return value.name if isinstance(value, Enum) else str(value)
    except Exception:  # noqa: BLE001 - the objects of others
        return f"<{type(value).__name__} without text>"


def _json_value(value: object) -> str:
    if isinstance(value, Enum):
        return json_text(_shown(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value in _INTEGERS:
        return int.__repr__(value)
    if isinstance(value, float) and math.isfinite(value):
        return float.__repr__(value)
    return json_text(_shown(value), MAX_TEXT)


def _within(parts: list[str], more: list[str], mark: str) -> list[str]:
    """The parts of a line, and of the fields as many as there is room for."""
    room = MAX_LINE - _CUT_FIELDS - sum(len(part.encode()) + 1 for part in parts)
    for each in more:
        room -= len(each.encode()) + 1
        if room < 0:
            return [*parts, mark]
        parts.append(each)
    return parts


def _priority(level: int) -> int:
    return next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG_PRIORITY)


def _is_journal(descriptor: int, stream: str) -> bool:
    """Whether a descriptor is the stream that systemd named: it may have been redirected since."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _logger.critical("the process ends by an error", exc_info=(kind, error, trace))


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread else "unknown"
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
        _logger.error("a thread ended by an error: %s", name, exc_info=arguments.exc_value)


def _unraisable(arguments: "sys.UnraisableHookArgs") -> None:
    _logger.error("an error that nobody could be told", exc_info=arguments.exc_value)

r"""Logs: one line for each event on standard error, as text for people or JSON for programs.

    2026-03-01T12:00:00.123Z WARNING worker-0 the answers view cannot follow seq=17
    {"time":"2026-03-01T12:00:00.123Z","level":"warning","process":"worker-0","logger":"…","message":"…","seq":17}

Modules use the standard library, `logging.getLogger(__name__)`, and pass fields with `extra=fields(seq=17)`. Every
process of the server calls `configure` once, before anything else can fail.

- Exceptions are logged by type and stack, without their messages, which may contain anything (for example a statement
  with its parameters): no secret may appear in a log. Only errors of the operating system are quoted. Code that knows
  that the text of an error is harmless puts it into the log message.
- The loggers of libraries stay at WARNING, whatever level is configured: some of them write data at lower levels.
- A record that cannot be formatted is replaced by one that says so. Logging never raises and never blocks.
- If standard error is the journal of systemd, each line starts with its priority (`<4>`), which the journal removes,
  and text has no time, because the journal has one.

Names, messages and identities come from the network and are untrusted: line breaks could forge lines, escape sequences
control a terminal, bidirectional marks reorder text. Whatever `str.isprintable` rejects is escaped: controls, formats,
separators other than the space, surrogates, and unassigned characters. Limits are in bytes as written, so that a whole
line has a limit.

    \n \r \t            as in Python        \x1b    another ASCII control
    \u202e \U000e0001   a character         \xff    a byte of 0x80 and above that is not UTF-8

All processes write to the same standard error: a pipe, a journal socket, a file or a terminal. Its reader may be slow
or stopped, and the server must not block for that. A line that cannot be written at once is queued, up to a limit;
beyond it lines are dropped and counted, and a later line reports how many. Writes have at most PIPE_BUF bytes, which a
pipe accepts whole or not at all, so that lines of several processes do not mix; those to a file may be longer.
"""

import logging
import math
import os
import re
import select
import socket
import stat
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from json.encoder import encode_basestring_ascii
from threading import RLock
from time import gmtime, monotonic, strftime, time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

MAX_TEXT: Final = 512
"""Bytes of one text in a line, by default: longer than nearly every handle."""

ELLIPSIS: Final = "…"
"""Marks truncated text."""

_PLAIN = re.compile(r"[!#-\[\]-~]+")  # printable ASCII without space, quotation mark and backslash
_ESCAPED_BYTES = range(0xDC80, 0xDD00)  # from the error handler surrogateescape
_SURROGATES = range(0xD800, 0xE000)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ELLIPSIS_BYTES = len(ELLIPSIS.encode())
_JSON_ELLIPSIS = encode_basestring_ascii(ELLIPSIS)[1:-1]
_QUOTED = '"\\'


def decode_text(data: bytes) -> str:
    """Decode bytes from the network; invalid UTF-8 becomes surrogates, which the functions below escape."""
    return data.decode("utf-8", "surrogateescape")


def escape_text(text: str, limit: int = MAX_TEXT) -> str:
    """Escape a text for a line, truncated to `limit` bytes."""
    if len(text) * 4 <= limit and text.isprintable():
        return text
    return _escape_and_truncate(text, limit, "")


def format_field(text: str, limit: int = MAX_TEXT) -> str:
    """Format the value of a field: quoted unless it is one plain word."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text
    return f'"{_escape_and_truncate(text, limit - 2, _QUOTED)}"'


def format_json(text: str, limit: int = MAX_TEXT) -> str:
    """Format a text as ASCII JSON. Surrogates, which some JSON parsers reject, are escaped twice."""
    if len(text) <= limit:
        written = _encode_json(text)
        if len(written) <= limit:
            return written
    parts: list[str] = []
    room = limit - 2 - len(_JSON_ELLIPSIS)
    for part in (_encode_json(character)[1:-1] for character in text):  # pragma: no branch - not all of it fits
        room -= len(part)
        if room < 0:
            break
        parts.append(part)
    return f'"{"".join(parts)}{_JSON_ELLIPSIS}"'


def _escape_and_truncate(text: str, limit: int, quoted: str) -> str:
    parts: list[str] = []
    size = fitting = 0
    for character in text:
        part = character if character.isprintable() else _escape(character)
        if character in quoted:
            part = "\\" + character
        size += len(part.encode())
        if size > limit:
            return "".join(parts[:fitting]) + ELLIPSIS
        parts.append(part)
        if size <= limit - _ELLIPSIS_BYTES:
            fitting = len(parts)
    return "".join(parts)


def _escape(character: str) -> str:
    number = ord(character)
    if number in _ESCAPED_BYTES:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return _SHORT.get(character) or f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x1_0000 else f"\\U{number:08x}"


def _encode_json(text: str) -> str:
    """Encode printable ASCII JSON: the library does not escape DEL."""
    if not text.isascii():
        text = "".join(_escape(each) if ord(each) in _SURROGATES else each for each in text)
    return encode_basestring_ascii(text).replace("\x7f", "\\u007f")


MAX_LINE: Final = select.PIPE_BUF
"""Bytes of the longest line, with its line break."""

MAX_FILE_BLOCK: Final = 1 << 16
"""Bytes written to a file at once: a batch of the access log. The system keeps other writers out meanwhile."""

MAX_WAITING_BYTES: Final = 1 << 20
"""Bytes queued for a slow reader: some seconds of a busy log."""


class LogOutput:
    """Non-blocking output of lines, for any number of threads."""

    def __init__(self, descriptor: int, lost_message: Callable[[int], str] = "{} log lines were lost".format) -> None:
        """`lost_message` formats the line that reports lost lines. The descriptor stays the caller's."""
        self.lost = 0
        """Number of lost lines."""
        self._lost_message = lost_message
        self._reported = 0  # lost lines already reported
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lock = RLock()  # reentrant: a signal handler may log during a write
        self._pushing = False
        self._descriptor = descriptor
        self._reopened: int | None = None  # our own non-blocking descriptor
        self._socket: socket.socket | None = None
        self._max_block = MAX_LINE
        self._open()

    def _open(self) -> None:
        """Open a non-blocking duplicate: the flags of the descriptor itself are shared with other processes."""
        with suppress(OSError):
            mode = os.fstat(self._descriptor).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(self._descriptor))
            elif stat.S_ISFIFO(mode):
                # The same pipe with its own flags; not permitted if another user owns it, then we poll first.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._reopened = os.open(f"/proc/self/fd/{self._descriptor}", flags)
            elif stat.S_ISREG(mode):
                self._max_block = MAX_FILE_BLOCK

    def write(self, lines: Iterable[str]) -> None:
        """Write complete lines; queue what cannot be written at once."""
        lines = tuple(lines)
        text = "".join(lines)
        with self._lock:
            if text and len(text) <= self._max_block and text.isascii():  # as nearly all batches in files
                lines = ()
                self._put(text.encode("ascii"))
            block: list[str] = []
            size = 0
            for line in lines:
                length = len(line) if line.isascii() else len(line.encode("utf-8", "backslashreplace"))
                if block and size + length > self._max_block:
                    self._put("".join(block).encode("utf-8", "backslashreplace"))
                    block, size = [], 0
                block.append(line)
                size += length
            if block:
                self._put("".join(block).encode("utf-8", "backslashreplace"))
            self._push()

    def flush(self) -> None:
        """Retry queued lines; call this now and then."""
        if self._waiting:
            with self._lock:
                self._push()

    def close(self, seconds: float = 1.0) -> None:
        """Write queued lines within `seconds`, and give up the rest."""
        deadline = monotonic() + seconds
        with self._lock:
            while not self._push() and (left := deadline - monotonic()) > 0:
                self._is_writable(left)
            self.lost += sum(block.count(b"\n") for block in self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            if self._socket is not None:
                self._socket.close()
            if self._reopened is not None:
                os.close(self._reopened)
            self._socket = self._reopened = None

    def _put(self, line: bytes) -> None:
        """Queue one or more whole lines."""
        if self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
            self.lost += line.count(b"\n")
            return
        self._waiting_bytes += len(line)
        if self._waiting and not self._pushing and len(self._waiting[-1]) + len(line) <= self._max_block:
            self._waiting[-1] += line
        else:
            self._waiting.append(line)

    def _push(self) -> bool:
        """Write as much as possible; return whether that was all."""
        if self._pushing:  # called from a signal handler: the interrupted call writes this too
            return True
        self._pushing = True
        try:
            while self._waiting:
                block = self._waiting[0]
                written = self._write(block)
                if written is None:
                    self.lost += block.count(b"\n")
                    written, delivered = len(block), False
                else:
                    delivered = True
                self._waiting_bytes -= written
                if written < len(block):
                    self._waiting[0] = block[written:]
                    return False
                self._waiting.popleft()
                if delivered and self.lost > self._reported and not self._waiting:
                    text, self._reported = self._lost_message(self.lost - self._reported), self.lost
                    self._put(text.encode("utf-8", "backslashreplace"))
            return True
        finally:
            self._pushing = False

    def _write(self, block: bytes) -> int | None:
        """Return the number of bytes written; None if there is no reader, or the disk is full."""
        try:
            if self._socket is not None:
                return self._socket.send(block, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            if self._reopened is not None:
                return os.write(self._reopened, block)
            return os.write(self._descriptor, block) if self._is_writable(0) else 0
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return None

    def _is_writable(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLOUT)
        return bool(poller.poll(seconds * 1000))


if TYPE_CHECKING:
    # Resolvers do not load these.
    from asyncio import AbstractEventLoop

MAX_MESSAGE: Final = 2_048
"""Bytes of the longest message."""

MAX_EXCEPTION: Final = 768
"""Bytes of the longest description of an exception: about a dozen frames."""

MAX_FRAMES: Final = 16
"""Frames of an exception that are logged, innermost first; the outer ones are often the same."""

MAX_CAUSES: Final = 4
"""Exceptions in a chain that are logged."""

JSON: Final = "json"

STDERR: Final = 2

_STANDARD = frozenset(("time", "level", "process", "logger", "message", "exception", "cut"))
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG_PRIORITY = 7
_INTEGERS = range(-(1 << 63), 1 << 64)  # integers that JSON parsers accept
_CUT_FIELDS_BYTES = 24  # reserved for the mark of omitted fields

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Format of lines."""

    process: str
    """The process that writes them."""
    json: bool = False
    journal: bool = False
    """Whether the journal reads them: it adds the time and expects priorities."""

    def begin(self, level: int, at: str) -> str:
        """Return the start of a line: everything before the message."""
        front = f"<{_priority(level)}>" if self.journal else ""
        name = logging.getLevelName(level)
        if self.json:
            process = format_json(self.process)
            return f'{front}{{"time":"{at}","level":{format_json(name.lower())},"process":{process}'
        return f"{front}{'' if self.journal else f'{at} '}{name} {escape_text(self.process)}"


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a process, created by `configure`."""

    style: LineStyle
    output: LogOutput


class LineFormatter(logging.Formatter):
    """Formats a record as one line, with its line break."""

    def __init__(self, style: LineStyle) -> None:
        super().__init__()
        self._line_style = style

    def format(self, record: logging.LogRecord) -> str:
        begin = self._line_style.begin(record.levelno, format_time(record.created))
        message, record_fields = _get_message(record), _get_fields(record)
        error = record.exc_info[1] if record.exc_info else None
        exception = "" if error is None else describe_exception(error)
        if self._line_style.json:
            parts = [begin, f'"logger":{format_json(record.name)}', f'"message":{format_json(message, MAX_MESSAGE)}']
            if exception:
                parts.append(f'"exception":{format_json(exception, MAX_EXCEPTION)}')
            more = [f"{format_json(name)}:{_format_json_value(value)}" for name, value in record_fields.items()]
            return ",".join(_fit_fields(parts, more, '"cut":true')) + "}\n"
        parts = [begin, escape_text(message, MAX_MESSAGE)]
        if exception:
            parts.append(f"exception={format_field(exception, MAX_EXCEPTION)}")
        more = [f"{format_field(name)}={format_field(_to_text(value))}" for name, value in record_fields.items()]
        return " ".join(_fit_fields(parts, more, "cut=true")) + "\n"


class LineHandler(logging.Handler):
    """Writes records as lines; one that cannot be formatted is replaced by one that says so."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.setFormatter(LineFormatter(log.style))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - logging must not fail
            line = format_notice(self._log.style, logging.ERROR, f"cannot format a log record of {record.name}")
        self._log.output.write((line,))

    def close(self) -> None:
        """Flush; the library calls this at the end of the process."""
        super().close()
        self._log.output.close()


def configure(process: str, log_format: str, *, level: int = logging.INFO, descriptor: int = STDERR) -> Log:
    """Configure the log of this process; called again, it replaces the earlier configuration.

    Uncaught exceptions in any thread and warnings of Python are logged too.
    """
    style = LineStyle(
        process,
        getattr(log_format, "value", log_format) == JSON,
        _is_journal(descriptor, os.environ.get("JOURNAL_STREAM", "")),
    )
    lost = "log lines were lost because the reader was too slow"
    log = Log(style, LogOutput(descriptor, lambda lines: format_notice(style, logging.WARNING, f"{lines} {lost}")))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, LineHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(LineHandler(log))
    root.setLevel(logging.WARNING)
    logging.getLogger("perseid").setLevel(level)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable
    return log


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Return fields of a record, for the argument `extra` of a logger's methods."""
    return {"fields": values}


def loop_exception_handler(_loop: "AbstractEventLoop", context: dict[str, Any]) -> None:
    """Log errors of the event loop; the default handler writes several lines, and exception messages."""
    # "Exception in callback data_received(b'…')": without the arguments, which may be data.
    words = str(context.get("message", "")).partition("(")[0]
    _logger.error("error in the event loop: %s", words, exc_info=context.get("exception"))


def describe_exception(error: BaseException) -> str:
    """Return type and stack of an exception and of its causes."""
    descriptions: list[str] = []
    current: BaseException | None = error
    while current is not None and len(descriptions) < MAX_CAUSES:
        words = f": {os.strerror(current.errno)}" if isinstance(current, OSError) and current.errno else ""
        descriptions.append(f"{type(current).__qualname__}{words}{_format_frames(current.__traceback__)}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return ", after ".join(descriptions)


def format_time(seconds: float) -> str:
    """Format a time in UTC, with milliseconds."""
    whole = int(seconds)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def format_notice(style: LineStyle, level: int, message: str) -> str:
    """Format a line about the log itself, without the library."""
    begin = style.begin(level, format_time(time()))
    return f'{begin},"message":{format_json(message)}}}\n' if style.json else f"{begin} {escape_text(message)}\n"


def _format_frames(trace: TracebackType | None) -> str:
    """The frames of an exception, innermost first, without reading any source."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    places = [f"{code.co_name}:{line}" for code, line in reversed(frames[-MAX_FRAMES:])]
    return " in " + " < ".join(places) if places else ""


def _get_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - wrong number of arguments, or one without text
        return f"{_to_text(record.msg)} (invalid arguments)"


def _get_fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a record; names that clash with standard ones get a suffix."""
    extra = getattr(record, "fields", None)
    if not isinstance(extra, Mapping):
        return {}
    return {f"{name}_" if name in _STANDARD else str(name): value for name, value in extra.items()}


def _to_text(value: object) -> str:
    try:
        if isinstance(value, bytes):
            return decode_text(value)
        return value.name if isinstance(value, Enum) else str(value)
    except Exception:  # noqa: BLE001 - objects of other libraries
        return f"<{type(value).__name__} without text>"


def _format_json_value(value: object) -> str:
    if isinstance(value, Enum):
        return format_json(_to_text(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value in _INTEGERS:
        return int.__repr__(value)
    if isinstance(value, float) and math.isfinite(value):
        return float.__repr__(value)
    return format_json(_to_text(value), MAX_TEXT)


def _fit_fields(parts: list[str], more: list[str], mark: str) -> list[str]:
    """The parts of a line, with as many fields as fit."""
    room = MAX_LINE - _CUT_FIELDS_BYTES - sum(len(part.encode()) + 1 for part in parts)
    for each in more:
        room -= len(each.encode()) + 1
        if room < 0:
            return [*parts, mark]
        parts.append(each)
    return parts


def _priority(level: int) -> int:
    return next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG_PRIORITY)


def _is_journal(descriptor: int, stream: str) -> bool:
    """Whether a descriptor is the stream that systemd named: it may have been redirected."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _logger.critical("uncaught exception, the process ends", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread else "unknown"
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
        _logger.error("uncaught exception in thread %s", name, exc_info=arguments.exc_value)


def _log_unraisable(arguments: "sys.UnraisableHookArgs") -> None:
    _logger.error("unraisable exception", exc_info=arguments.exc_value)

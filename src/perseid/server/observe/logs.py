r"""Texts of strangers in the log: one line of printable characters, of bounded length, that can be read back.

Names, texts and identities come from the network and may hold anything: line breaks that would forge lines of the log,
codes that a terminal obeys, marks that turn the direction of writing. What `str.isprintable` does not call printable is
escaped, and that is all of these: controls, formats, separators other than the space, surrogates, and what the
interpreter's Unicode table does not know.

    \n \r \t            as in Python        \x1b    another control of ASCII
    \u202e \U000e0001   a character         \xff    an octet of 0x80 and above that is no UTF-8

Limits are in octets as written, so that a whole line has a limit (see `log_output`).

Lines of the log on their way out of the process: whole, and without ever making it wait.

All processes of a server write to the same standard error: a pipe, a socket of the journal, a file, a terminal. Who
reads it may be slow or stopped, and a server must not stand still for that reason. So a line that cannot be written at
once waits here, up to a bound, and beyond it is lost and counted; when there is room again a line says how many were
lost. Writes have at most PIPE_BUF octets, which a pipe takes whole or not at all, so that lines of several processes do
not run into each other.

The log: one line for each thing worth telling, on standard error, as text for people or JSON for programs.

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

A log that strangers cannot fill: so many lines a second, and how many were left out.
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
"""Octets of one text in a line, unless said otherwise: longer than nearly every name."""

ELLIPSIS: Final = "…"
"""Stands where a text was cut."""

_PLAIN = re.compile(r"[!#-\[\]-~]+")  # printable ASCII without space, quotation mark and backslash
_ESCAPED_BYTES = range(0xDC80, 0xDD00)  # what the error handler surrogateescape makes of octets
_SURROGATES = range(0xD800, 0xE000)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ELLIPSIS_BYTES = len(ELLIPSIS.encode())
_JSON_ELLIPSIS = encode_basestring_ascii(ELLIPSIS)[1:-1]
_QUOTED = '"\\'


def decode_text(octets: bytes) -> str:
    """Octets from the network as text; what is no UTF-8 becomes surrogates, which the functions below escape."""
    return octets.decode("utf-8", "surrogateescape")


def escape_text(text: str, limit: int = MAX_TEXT) -> str:
    """A text as part of a line, of at most so many octets."""
    if len(text) * 4 <= limit and text.isprintable():
        return text
    return _escape_and_truncate(text, limit, "")


def format_field(text: str, limit: int = MAX_TEXT) -> str:
    """A text as the value of a field: in quotation marks unless it is one plain word."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text
    return f'"{_escape_and_truncate(text, limit - 2, _QUOTED)}"'


def format_json(text: str, limit: int = MAX_TEXT) -> str:
    """A text as JSON, in ASCII. Surrogates, which not every reader of JSON takes, are escaped once more."""
    if len(text) <= limit:
        written = _encode_json(text)
        if len(written) <= limit:
            return written
    parts: list[str] = []
    room = limit - 2 - len(_JSON_ELLIPSIS)
    for part in (_encode_json(character)[1:-1] for character in text):  # pragma: no branch - it does not all fit
        room -= len(part)
        if room < 0:
            break
        parts.append(part)
    return f'"{"".join(parts)}{_JSON_ELLIPSIS}"'


def _escape_and_truncate(text: str, limit: int, quoted: str) -> str:
    """The text escaped, and cut at the last character that leaves room for the mark."""
    parts: list[str] = []
    octets = kept = 0
    for character in text:
        part = character if character.isprintable() else _escape(character)
        if character in quoted:
            part = "\\" + character
        octets += len(part.encode())
        if octets > limit:
            return "".join(parts[:kept]) + ELLIPSIS
        parts.append(part)
        if octets <= limit - _ELLIPSIS_BYTES:
            kept = len(parts)
    return "".join(parts)


def _escape(character: str) -> str:
    number = ord(character)
    if number in _ESCAPED_BYTES:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return _SHORT.get(character) or f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x1_0000 else f"\\U{number:08x}"


def _encode_json(text: str) -> str:
    """A text as JSON of printable ASCII: the library leaves DEL as it is."""
    if not text.isascii():
        text = "".join(_escape(each) if ord(each) in _SURROGATES else each for each in text)
    return encode_basestring_ascii(text).replace("\x7f", "\\u007f")


MAX_LINE: Final = select.PIPE_BUF
"""Octets of the longest line, its end included."""

MAX_WAITING_BYTES: Final = 1 << 20
"""Octets that wait for a reader: some seconds of a busy log, and nothing that a machine would notice."""


class LogOutput:
    """Where lines go. For any number of threads."""

    def __init__(self, descriptor: int, lost_message: Callable[[int], str] = "{} lines were lost".format) -> None:
        """`complaint` makes the line that says how many were lost. The descriptor stays the caller's."""
        self.lost = 0
        """Lines that nobody will ever read."""
        self._lost_message = lost_message
        self._reported = 0  # how many of those lost were mentioned
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0  # of what waits
        self._lock = RLock()  # a signal may interrupt a write, and what it does may be worth a line
        self._pushing = False
        self._descriptor = descriptor
        self._reopened: int | None = None  # a descriptor of ours, which does not wait
        self._socket: socket.socket | None = None
        self._open()

    def _open(self) -> None:
        """Find the way not to wait: that of the descriptor itself is shared with other processes, and theirs too."""
        with suppress(OSError):
            mode = os.fstat(self._descriptor).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(self._descriptor))
            elif stat.S_ISFIFO(mode):
                # Opened anew it is the same pipe; refused where the pipe is somebody else's, and then we ask first.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._reopened = os.open(f"/proc/self/fd/{self._descriptor}", flags)

    def write(self, lines: Iterable[str]) -> None:
        """Write lines, each with its end; what cannot be written at once waits."""
        with self._lock:
            for line in lines:
                self._put(line.encode("utf-8", "backslashreplace"))
            self._push()

    def flush(self) -> None:
        """Try again to write what waits; to be called now and then."""
        if self._waiting:
            with self._lock:
                self._push()

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits, for so long as that may take at most, and give up the rest."""
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
        if self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
            self.lost += 1
            return
        self._waiting_bytes += len(line)
        if self._waiting and not self._pushing and len(self._waiting[-1]) + len(line) <= MAX_LINE:
            self._waiting[-1] += line
        else:
            self._waiting.append(line)

    def _push(self) -> bool:
        """Write as much as there is room for; whether that was all."""
        if self._pushing:  # interrupted in the middle of it: whoever was interrupted goes on with this too
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
        """How many octets were taken; None if nobody is there to take any, or the disk is full."""
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
    # Some processes need neither, and do not load them.
    from asyncio import AbstractEventLoop

    from perseid.registry.installation.setting_keys import LogFormat

MAX_MESSAGE: Final = 2_048
"""Octets of the longest message."""

MAX_EXCEPTION: Final = 768
"""Octets of the longest account of an exception: some dozen places."""

MAX_FRAMES: Final = 16
"""How many places of an exception are told, the innermost first; the way there is the same for many."""

MAX_CAUSES: Final = 4
"""How many exceptions behind an exception are told."""

JSON: Final = "json"

STDERR: Final = 2

_STANDARD = frozenset(("time", "level", "process", "logger", "message", "exception", "cut"))
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG_PRIORITY = 7
_INTEGERS = range(-(1 << 63), 1 << 64)  # what readers of JSON take for whole numbers
_CUT_FIELDS_BYTES = 24  # octets left for saying that there were more fields

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LineStyle:
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
            process = format_json(self.process)
            return f'{front}{{"time":"{at}","level":{format_json(name.lower())},"process":{process}'
        return f"{front}{'' if self.journal else f'{at} '}{name} {escape_text(self.process)}"


@dataclass(frozen=True, slots=True)
class Log:
    """Where a process logs, and how; what `configure` made."""

    style: LineStyle
    output: LogOutput


class LineFormatter(logging.Formatter):
    """A record as one line, its end included."""

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
    """Writes records as lines; one that cannot be written is replaced by one that says so."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.setFormatter(LineFormatter(log.style))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - whatever it is, logging must not be what fails
            line = format_notice(
                self._log.style, logging.ERROR, f"a line of the log could not be written: {record.name}"
            )
        self._log.output.write((line,))

    def close(self) -> None:
        """Write what waits; the library does it at the end of the process."""
        super().close()
        self._log.output.close()


def configure(process: str, form: "LogFormat | str", *, level: int = logging.INFO, descriptor: int = STDERR) -> Log:
    """Have this process log in one of the two forms; called again, it replaces what it did before.

    Exceptions that nobody catches, in any thread, and warnings of Python become lines of the log too.
    """
    style = LineStyle(
        process, getattr(form, "value", form) == JSON, _is_journal(descriptor, os.environ.get("JOURNAL_STREAM", ""))
    )
    lost = "lines of the log were lost, because their reader did not keep up"
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
    """Fields of a record, for the argument `extra` of a logger's methods."""
    return {"fields": values}


def loop_exception_handler(_loop: "AbstractEventLoop", context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: the library's own writes several lines, and what exceptions say."""
    # "Exception in callback data_received(b'…')": the name of a function, with all that it was called with.
    words = str(context.get("message", "")).partition("(")[0]
    _logger.error("in the event loop: %s", words, exc_info=context.get("exception"))


def describe_exception(error: BaseException) -> str:
    """The kind of an exception and the places it came through, and those of the exceptions behind it."""
    descriptions: list[str] = []
    current: BaseException | None = error
    while current is not None and len(descriptions) < MAX_CAUSES:
        words = f": {os.strerror(current.errno)}" if isinstance(current, OSError) and current.errno else ""
        descriptions.append(f"{type(current).__qualname__}{words}{_format_frames(current.__traceback__)}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return ", after ".join(descriptions)


def format_time(seconds: float) -> str:
    """A time as it stands in lines: in UTC, with milliseconds."""
    whole = int(seconds)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def format_notice(style: LineStyle, level: int, message: str) -> str:
    """A line about the log itself, made without the library."""
    begin = style.begin(level, format_time(time()))
    return f'{begin},"message":{format_json(message)}}}\n' if style.json else f"{begin} {escape_text(message)}\n"


def _format_frames(trace: TracebackType | None) -> str:
    """Where an exception came through, the innermost place first, without reading any source."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    places = [f"{code.co_name}:{line}" for code, line in reversed(frames[-MAX_FRAMES:])]
    return " in " + " < ".join(places) if places else ""


def _get_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - an argument that has no text, or one too many
        return f"{_to_text(record.msg)} (its arguments do not fit)"


def _get_fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a record; one that is called like something else in the line gets another name."""
    extra = getattr(record, "fields", None)
    if not isinstance(extra, Mapping):
        return {}
    return {f"{name}_" if name in _STANDARD else str(name): value for name, value in extra.items()}


def _to_text(value: object) -> str:
    """Any value as text."""
    try:
        if isinstance(value, bytes):
            return decode_text(value)
        return value.name if isinstance(value, Enum) else str(value)
    except Exception:  # noqa: BLE001 - the objects of others
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
    """The parts of a line, and of the fields as many as there is room for."""
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
    """Whether a descriptor is the stream that systemd named: it may have been redirected since."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _logger.critical("the process ends by an error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread else "unknown"
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
        _logger.error("a thread ended by an error: %s", name, exc_info=arguments.exc_value)


def _log_unraisable(arguments: "sys.UnraisableHookArgs") -> None:
    _logger.error("an error that nobody could be told", exc_info=arguments.exc_value)

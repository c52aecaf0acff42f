"""Access log: one line for each request.

    2026-03-01T12:00:00.123Z INFO worker-0 access transport=tcp address=192.0.2.7 operation=CREATE_HANDLE
        name=12345/x code=SUCCESS microseconds=812 identity=300:0.NA/12345                  (one line)

Lines of HTTP have a method and a status instead of the operation, and a path if no handle was requested:

    2026-03-01T12:00:00.123Z INFO worker-0 access transport=https address=192.0.2.7 method=GET name=12345/x
        status=302 code=- microseconds=52 identity=-                                        (one line)

Lines are formatted and written in batches, without the logging library: when there are enough, when a new second
starts, and on `flush`, which the owner calls about once a second and at its end. A process without access log has no
`AccessLog` at all, so there is no flag to check.
"""

import logging
import re
from collections.abc import Callable
from time import time
from typing import Final, TypeVar

from perseid.wire.codes import OpCode, ResponseCode

from .logs import MAX_TEXT, Log, decode_text, format_field, format_json, format_time

MAX_NAME: Final = 2_048
"""Bytes of the longest name as written: the longest valid name, if nothing in it needs escaping."""

MAX_METHOD: Final = 16
"""Bytes of an HTTP method as written; known ones have at most seven."""

BATCH_LINES: Final = 128
"""Lines written together, so that the cost of writing is a small part of each."""

MISSING: Final = "-"
"""Written for a missing value: no identity, or no response."""

MAX_CACHED_PARTS: Final = 1_024
"""Cached parts of lines: an address with its method, a status with its code. They repeat all the time."""

_PLAIN: Final = re.compile(rb"[!#-\[\]-~]+")  # not escaped, as text or JSON
_OPERATIONS = {opcode.value: opcode.name for opcode in OpCode}
_CODES = {code.value: code.name for code in ResponseCode}


_Front = tuple[str, str, str | int, bool]  # transport, address, HTTP method or opcode, whether it is a name
_Back = tuple[int | None, int | None]  # HTTP status, response code
_Exchange = tuple[float, _Front, bytes, _Back, int, str]  # time, front, name or path, back, microseconds, identity


class AccessLog:
    """The access log of one process, for one of its threads."""

    __slots__ = ("_backs", "_clock", "_fronts", "_json", "_output", "_pending", "_second", "_style")

    def __init__(self, log: Log, clock: Callable[[], float] = time) -> None:
        self._output = log.output
        self._style = log.style
        self._json = log.style.json
        self._clock = clock
        self._pending: list[_Exchange] = []
        self._second = 0
        self._fronts: dict[_Front, str] = {}
        self._backs: dict[_Back, str] = {}

    def log_request(  # noqa: PLR0913, PLR0917 - called for every request: an object would double its cost
        self,
        address: str,
        transport: str,
        operation: int | str,
        code: int | None,
        name: bytes,
        microseconds: int,
        identity: str = "",
        status: int | None = None,
        is_name: bool = True,
    ) -> None:
        """Log a request. `transport` is written as it is; everything else is untrusted.

        `operation` is an opcode, or the method of an HTTP request, which has a `status` too. `code` is None or 0 if
        there is none, or nothing readable was sent. `name` is a path if no handle was requested. `identity` is
        authenticated.
        """
        now = self._clock()
        if not self._second <= now < self._second + 1:
            self.flush()
            self._second = int(now)
        front, back = (transport, address, operation, is_name), (status, code)
        self._pending.append((now, front, name, back, microseconds, identity))
        if len(self._pending) >= BATCH_LINES:
            self.flush()

    def flush(self) -> None:
        """Write pending lines, including those that the reader of the log had no room for before."""
        if self._pending:
            pending, self._pending = self._pending, []
            self._output.write(self._format(pending))
        else:
            self._output.flush()

    # Lines

    def _format(self, exchanges: list[_Exchange]) -> list[str]:
        """Format exchanges of one second."""
        second, fronts, backs = self._second, self._fronts, self._backs
        before, after = self._make_line_start(second)
        anonymous = self._format_identity(MISSING)
        names = self._format_names([exchange[2] for exchange in exchanges])
        begin, milliseconds = before, -1
        lines = []
        for (now, front, _, back, microseconds, identity), name in zip(exchanges, names, strict=True):
            if after and (at := int((now - second) * 1000)) != milliseconds:
                begin, milliseconds = f"{before}{at:03d}{after}", at
            start = fronts.get(front) or _remember(fronts, front, self._format_front(*front))
            middle = backs.get(back) or _remember(backs, back, self._format_back(*back))
            end = self._format_identity(identity) if identity else anonymous
            lines.append(f"{begin}{start}{name}{middle}{microseconds}{end}")
        return lines

    def _format_names(self, names: list[bytes]) -> list[str]:
        """Format names and paths: all at once, if none of them needs escaping or is too long."""
        if _PLAIN.fullmatch(b"".join(names)) and all(names) and len(max(names, key=len)) <= MAX_NAME - len('""'):
            plain = b" ".join(names).decode().split(" ")  # at once; none contains a blank
            return [f'"{name}"' for name in plain] if self._json else plain
        form = format_json if self._json else format_field
        return [form(decode_text(name), MAX_NAME) for name in names]

    def _format_front(self, transport: str, address: str, method: str | int, is_name: bool) -> str:
        """Format what precedes the name or path."""
        key, kind, limit = "method", "name" if is_name else "path", MAX_METHOD
        if isinstance(method, int):
            key, method, limit = "operation", _OPERATIONS.get(method) or str(int(method)), MAX_TEXT
        if self._json:
            shown = f'"address":{format_json(address)},"{key}":{format_json(method, limit)}'
            return f',"message":"access","transport":"{transport}",{shown},"{kind}":'
        shown = f"address={format_field(address)} {key}={format_field(method, limit)}"
        return f" access transport={transport} {shown} {kind}="

    def _format_back(self, status: int | None, code: int | None) -> str:
        """Format what follows it, up to the microseconds."""
        code_name = (_CODES.get(code) or str(int(code))) if code else MISSING
        if self._json:
            shown = "" if status is None else f',"status":{int(status)}'
            return f'{shown},"code":"{code_name}","microseconds":'
        shown = "" if status is None else f" status={int(status)}"
        return f"{shown} code={code_name} microseconds="

    def _format_identity(self, identity: str) -> str:
        return f',"identity":{format_json(identity)}}}\n' if self._json else f" identity={format_field(identity)}\n"

    def _make_line_start(self, second: int) -> tuple[str, str]:
        """How lines of this second start, before and after the milliseconds; the journal has no time."""
        at = format_time(second)
        begin = self._style.begin(logging.INFO, at)
        before, separator, after = begin.partition(at)
        return (before + at.removesuffix("000Z"), "Z" + after) if separator else (begin, "")


_K = TypeVar("_K")


def _remember(known: dict[_K, str], key: _K, text: str) -> str:
    if len(known) >= MAX_CACHED_PARTS:
        known.clear()
    known[key] = text
    return text

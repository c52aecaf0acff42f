"""Access log: one line for each request.

    2026-03-01T12:00:00.123Z INFO worker-0 access transport=tcp address=192.0.2.7 operation=CREATE_HANDLE
        name=12345/x code=SUCCESS microseconds=812 identity=300:0.NA/12345                  (one line)

Lines of HTTP have a method and a status instead of the operation, and a path if no handle was requested:

    2026-03-01T12:00:00.123Z INFO worker-0 access transport=https address=192.0.2.7 method=GET name=12345/x
        status=302 code=- microseconds=52 identity=-                                        (one line)

Lines are formatted without the logging library and written in batches: when there are enough of them, when a new second
starts, and on `flush`, which the owner calls about once a second and at its end. A process without access log has no
`AccessLog` at all, so there is no flag to check.
"""

import logging
from collections.abc import Callable
from time import time
from typing import Final, NamedTuple

from perseid.wire.codes import OpCode, ResponseCode

from .logs import Log, decode_text, format_field, format_json, format_time

MAX_NAME: Final = 2_048
"""Bytes of the longest name as written: the longest valid name, if nothing in it needs escaping."""

MAX_METHOD: Final = 16
"""Bytes of an HTTP method as written; known ones have at most seven."""

BATCH_LINES: Final = 128
"""Lines written together, so that the cost of writing is a small part of each."""

MISSING: Final = "-"
"""Written for a missing value: no identity, or no response."""

_JSON_MISSING = format_json(MISSING)
_OPERATIONS = {opcode.value: opcode.name for opcode in OpCode}
_CODES = {code.value: code.name for code in ResponseCode}


class HttpExchange(NamedTuple):
    """An HTTP request and its result."""

    method: str
    status: int
    target: bytes
    """A handle, or the path if no handle was requested."""
    is_name: bool
    code: int = 0
    """Response code of the Handle System; 0 for none."""


class AccessLog:
    """The access log of one process, for one of its threads."""

    __slots__ = ("_begin", "_clock", "_json", "_lines", "_output", "_second", "_style")

    def __init__(self, log: Log, clock: Callable[[], float] = time) -> None:
        self._output = log.output
        self._style = log.style
        self._json = log.style.json
        self._clock = clock
        self._lines: list[str] = []
        self._second = 0
        self._begin = ("", "")  # before and after the milliseconds

    def log_request(
        self,
        address: str,
        transport: str,
        opcode: int,
        code: int | None,
        name: bytes,
        microseconds: int,
        identity: str = "",
    ) -> None:
        """Log a request. `code` is None if nothing, or nothing readable, was sent; `identity` is authenticated.

        `transport` is written as it is; everything else is untrusted.
        """
        begin = self._current_line_start()
        operation = _OPERATIONS.get(opcode) or str(int(opcode))
        code_name = MISSING if code is None else _CODES.get(code) or str(int(code))
        if self._json:
            line = (
                f'{begin},"message":"access","transport":"{transport}","address":{format_json(address)},'
                f'"operation":"{operation}","name":{format_json(decode_text(name), MAX_NAME)},"code":"{code_name}",'
                f'"microseconds":{int(microseconds)},'
                f'"identity":{format_json(identity) if identity else _JSON_MISSING}}}\n'
            )
        else:
            line = (
                f"{begin} access transport={transport} address={format_field(address)} operation={operation} "
                f"name={format_field(decode_text(name), MAX_NAME)} code={code_name} microseconds={int(microseconds)} "
                f"identity={format_field(identity) if identity else MISSING}\n"
            )
        self._add(line)

    def log_http_request(
        self, address: str, transport: str, exchange: "HttpExchange", microseconds: int, identity: str = ""
    ) -> None:
        """Log an HTTP request."""
        begin = self._current_line_start()
        method, status, target, is_name, code = exchange
        code_name = MISSING if not code else _CODES.get(code) or str(int(code))
        kind = "name" if is_name else "path"
        if self._json:
            line = (
                f'{begin},"message":"access","transport":"{transport}","address":{format_json(address)},'
                f'"method":{format_json(method, MAX_METHOD)},"{kind}":{format_json(decode_text(target), MAX_NAME)},'
                f'"status":{int(status)},"code":"{code_name}","microseconds":{int(microseconds)},'
                f'"identity":{format_json(identity) if identity else _JSON_MISSING}}}\n'
            )
        else:
            line = (
                f"{begin} access transport={transport} address={format_field(address)} "
                f"method={format_field(method, MAX_METHOD)} "
                f"{kind}={format_field(decode_text(target), MAX_NAME)} status={int(status)} code={code_name} "
                f"microseconds={int(microseconds)} identity={format_field(identity) if identity else MISSING}\n"
            )
        self._add(line)

    def _current_line_start(self) -> str:
        now = self._clock()
        second = int(now)
        if second != self._second:
            self.flush()
            self._second = second
            self._begin = self._make_line_start(second)
        front, back = self._begin
        return f"{front}{int((now - second) * 1000):03d}{back}" if back else front

    def _add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= BATCH_LINES:
            self.flush()

    def flush(self) -> None:
        """Write pending lines, including those that the reader of the log had no room for before."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._output.write(lines)
        else:
            self._output.flush()

    def _make_line_start(self, second: int) -> tuple[str, str]:
        """How lines of this second start, before and after the milliseconds; the journal has no time."""
        at = format_time(second)
        begin = self._style.begin(logging.INFO, at)
        before, separator, after = begin.partition(at)
        return (before + at.removesuffix("000Z"), "Z" + after) if separator else (begin, "")

"""The access log: one line for each request, with who asked, from where, what for, how it went and how long it took.

    2026-03-01T12:00:00.123Z INFO control access transport=tcp address=192.0.2.7 operation=CREATE_HANDLE
        name=12345/x code=SUCCESS microseconds=812 who=300:0.NA/12345                       (one line)

Over HTTP there are a method and a status in the place of the operation, and a path where no name was asked for:

    2026-03-01T12:00:00.123Z INFO control access transport=https address=192.0.2.7 method=GET name=12345/x
        status=302 code=- microseconds=52 who=-                                             (one line)

Requests are many and lines are cheap only in numbers. A line is put together without the library of logging, and lines
are written together: when there are enough of them, when a new second begins, and when the owner says `flush`, which it
does about once a second and at its end. Whoever does not want the log has none at all: there is no flag to ask.
"""

import logging
from collections.abc import Callable
from time import time
from typing import Final, NamedTuple

from perseid.wire.codes import OpCode, ResponseCode

from .logs import Log, field, json_text, stamp, text_of

MAX_NAME: Final = 2_048
"""Octets of the longest name as written: the longest name that there is, if nothing in it needs escaping."""

MAX_METHOD: Final = 16
"""Octets of a method of HTTP as written: those that are known have no more than seven."""

CAPACITY: Final = 128
"""Lines that are written together: then the cost of writing is a small part of each."""

NOTHING: Final = "-"
"""Stands for what a request does not have: an identity that was proved, or an answer."""

_NOBODY = json_text(NOTHING)
_OPERATIONS = {opcode.value: opcode.name for opcode in OpCode}
_CODES = {code.value: code.name for code in ResponseCode}


class Exchange(NamedTuple):
    """What was asked for over HTTP, and how it went."""

    method: str
    status: int
    about: bytes
    """A name, or the path if no name was asked for."""
    is_name: bool
    code: int = 0
    """Of the Handle System; 0 for none."""


class AccessLog:
    """The access log of one process, for one thread of it."""

    __slots__ = ("_begin", "_clock", "_json", "_lines", "_output", "_second", "_style")

    def __init__(self, log: Log, clock: Callable[[], float] = time) -> None:
        self._output = log.output
        self._style = log.style
        self._json = log.style.json
        self._clock = clock
        self._lines: list[str] = []
        self._second = 0
        self._begin = ("", "")  # what stands before and behind the milliseconds

    def note(
        self,
        address: str,
        transport: str,
        opcode: int,
        code: int | None,
        name: bytes,
        microseconds: int,
        who: str = "",
    ) -> None:
        """One request. `code` is None if nothing, or nothing readable, was answered; `who` is who proved it.

        `transport` is a word of ours and written as it is; everything else may come from strangers.
        """
        begin = self._start()
        operation = _OPERATIONS.get(opcode) or str(int(opcode))
        answered = NOTHING if code is None else _CODES.get(code) or str(int(code))
        if self._json:
            line = (
                f'{begin},"message":"access","transport":"{transport}","address":{json_text(address)},'
                f'"operation":"{operation}","name":{json_text(text_of(name), MAX_NAME)},"code":"{answered}",'
                f'"microseconds":{int(microseconds)},"who":{json_text(who) if who else _NOBODY}}}\n'
            )
        else:
            line = (
                f"{begin} access transport={transport} address={field(address)} operation={operation} "
                f"name={field(text_of(name), MAX_NAME)} code={answered} microseconds={int(microseconds)} "
                f"who={field(who) if who else NOTHING}\n"
            )
        self._add(line)

    def note_http(self, address: str, transport: str, exchange: "Exchange", microseconds: int, who: str = "") -> None:
        """One request over HTTP."""
        begin = self._start()
        method, status, octets, is_name, code = exchange
        answered = NOTHING if not code else _CODES.get(code) or str(int(code))
        kind = "name" if is_name else "path"
        if self._json:
            line = (
                f'{begin},"message":"access","transport":"{transport}","address":{json_text(address)},'
                f'"method":{json_text(method, MAX_METHOD)},"{kind}":{json_text(text_of(octets), MAX_NAME)},'
                f'"status":{int(status)},"code":"{answered}",'
                f'"microseconds":{int(microseconds)},"who":{json_text(who) if who else _NOBODY}}}\n'
            )
        else:
            line = (
                f"{begin} access transport={transport} address={field(address)} method={field(method, MAX_METHOD)} "
                f"{kind}={field(text_of(octets), MAX_NAME)} status={int(status)} code={answered} "
                f"microseconds={int(microseconds)} who={field(who) if who else NOTHING}\n"
            )
        self._add(line)

    def _start(self) -> str:
        """How a line of this moment begins."""
        now = self._clock()
        second = int(now)
        if second != self._second:
            self.flush()
            self._second = second
            self._begin = self._beginning(second)
        front, behind = self._begin
        return f"{front}{int((now - second) * 1000):03d}{behind}" if behind else front

    def _add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= CAPACITY:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait; also those that the reader of the log had no room for before."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._output.write(lines)
        else:
            self._output.flush()

    def _beginning(self, second: int) -> tuple[str, str]:
        """How lines of this second begin, around the place of the milliseconds; in the journal they have none."""
        at = stamp(second)
        begin = self._style.begin(logging.INFO, at)
        before, found, after = begin.partition(at)
        return (before + at.removesuffix("000Z"), "Z" + after) if found else (begin, "")

"""The exchange format of Handle.Net: one JSON object with all prefixes and records of a server.

    {"homedPrefixes": ["0.NA/12345", …], "handleRecords": {"12345/X": {"handle": "12345/X", "values": […]}, …}}

It is read and written as a stream: memory is bounded by the largest record. Values are as in `records.json_form`.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final

import msgspec

from perseid.records.json_form import value_to_json
from perseid.records.record import Value
from perseid.schema.imports import ImportRow, RowOperation, RowProblem

from . import jsonl
from .formats import Detected, Format, InvalidFile, ReadOptions, Row, RowReader, invalid_file
from .jsonl import MAX_LINE, parse_record

PREFIXES: Final = "homedPrefixes"
RECORDS: Final = "handleRecords"

_CHUNK: Final = 1 << 18
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.?)*+(?:"|$)|[\[\]{},]', re.DOTALL)  # also a string whose end is not read yet
_MAX_TOKEN: Final = 16  # characters of the longest token that can be cut off, a pair of surrogates


def read_exchange(file: BinaryIO, options: ReadOptions | None = None) -> RowReader:
    """The prefixes and records of a file."""
    return RowReader(Detected(Format.EXCHANGE, "UTF-8"), _read(_Scanner(file), options or ReadOptions()))


def _read(scanner: "_Scanner", options: ReadOptions) -> Iterator[Row]:
    """Read prefixes and records. Each has a line of its own: those that share one are numbered on from it."""
    line = 0
    for name in scanner.members():
        if name == PREFIXES:
            for _ in scanner.items():
                line = max(scanner.line, line + 1)
                prefix = msgspec.json.decode(scanner.value())
                if not isinstance(prefix, str):
                    raise scanner.invalid(f"{PREFIXES} contains something that is not a string")
                if prefix:
                    yield ImportRow(line, RowOperation.HOME, prefix)
                else:
                    yield RowProblem(line, PREFIXES, "", "missing-handle", "The prefix is empty.")
        elif name == RECORDS:
            for handle in scanner.members():
                line = max(scanner.line, line + 1)
                yield parse_record(scanner.value(), line, options, handle=handle)
        else:
            scanner.value()
    scanner.finish()


class _Scanner:
    """Scans a JSON text as it comes, value by value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
        self._text = ""
        self._at = 0
        self._is_end = False
        self.line = 1
        """The line of the next value."""

    def members(self) -> Iterator[str]:
        """The names of the members of an object; the caller reads each value."""
        for _ in self._parts("{", "}"):
            name = msgspec.json.decode(self.value())
            if not isinstance(name, str):
                raise self.invalid("the name of a member is missing")
            self._expect(":")
            yield name

    def items(self) -> Iterator[None]:
        """One for each item of an array; the caller reads each value."""
        return self._parts("[", "]")

    def _parts(self, start: str, end: str) -> Iterator[None]:
        self._expect(start)
        if self._peek() == end:
            self._expect(end)
            return
        while True:
            yield
            if self._peek() == end:
                self._expect(end)
                return
            self._expect(",")

    def value(self) -> bytes:
        """The text of the next value."""
        self._peek()
        while True:
            self._check_items()
            try:
                _, end = self._scan(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if not self._is_incomplete(error) or not self._more(len(self._text) - self._at):
                    raise self.invalid("invalid JSON") from None
                continue
            if end == len(self._text) and self._more(_CHUNK):
                continue  # the next digit of a number may follow
            text = self._text[self._at : end]
            self._advance(end)
            try:
                return text.encode()
            except UnicodeEncodeError:  # not from UTF-8
                raise self.invalid("invalid text") from None

    def _check_items(self) -> None:
        """Refuse a value that would take far more memory than its text."""
        if len(self._text) - self._at <= jsonl.MAX_ITEMS:
            return
        depth = items = 0
        for token in _TOKEN.finditer(self._text, self._at):
            character = self._text[token.start()]
            depth += (character in "[{") - (character in "]}")
            if depth <= 0:
                return  # this is the end of the value; other values follow in the text
            items += character in ",[{"
            if items > jsonl.MAX_ITEMS:
                raise invalid_file("too-many-values", jsonl.describe_many_items(), line=self.line)

    def _is_incomplete(self, error: Exception) -> bool:
        """Whether a text that could not be parsed may be valid when more of it is read."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.pos > len(self._text) - _MAX_TOKEN or error.msg.startswith("Unterminated string")

    def finish(self) -> None:
        """Refuse text after the value."""
        if self._peek():
            raise self.invalid("text follows the object")

    def invalid(self, message: str) -> InvalidFile:
        """The error at the current position."""
        fix = f'The file must contain {{"{PREFIXES}": […], "{RECORDS}": {{…}}}}.'
        return invalid_file("invalid-json", f"The file is invalid: {message}.", fix, self.line)

    def _expect(self, character: str) -> None:
        found = self._peek()
        if found != character:
            raise self.invalid(f"{character} expected, but found {found!a}" if found else "it ends too early")
        self._advance(self._at + 1)

    def _peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            match = _BLANK.match(self._text, self._at)
            self._advance(match.end() if match else self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(_CHUNK):
                return ""

    def _advance(self, position: int) -> None:
        self.line += self._text.count("\n", self._at, position)
        self._at = position

    def _more(self, size: int) -> bool:
        """Read at least so many bytes more; returns False at the end of the file."""
        if self._is_end:
            return False
        if len(self._text) - self._at > MAX_LINE:
            raise invalid_file("line-too-long", f"A record has more than {MAX_LINE:,} bytes.", line=self.line)
        chunk = self._file.read(max(size, _CHUNK))
        self._is_end = not chunk
        try:
            self._text = self._text[self._at :] + self._decoder.decode(chunk, final=self._is_end)
        except UnicodeDecodeError:
            raise invalid_file("invalid-encoding", "The file is not UTF-8.", line=self.line) from None
        self._at = 0
        return not self._is_end


class ExchangeWriter:
    """Writes a file in the exchange format."""

    def __init__(self, file: BinaryIO, prefixes: Iterable[str] = ()) -> None:
        self._file = file
        self._is_first = True
        file.write(b'{"%b":%b,"%b":{' % (PREFIXES.encode(), msgspec.json.encode(list(prefixes)), RECORDS.encode()))

    def write(self, handle: str, values: Sequence[Value]) -> None:
        """Write a record."""
        record = msgspec.json.encode({"handle": handle, "values": [value_to_json(value) for value in values]})
        self._file.write(b"%b\n%b:%b" % (b"" if self._is_first else b",", msgspec.json.encode(handle), record))
        self._is_first = False

    def close(self) -> None:
        """Write the end; the file stays open."""
        self._file.write(b"\n}}\n")

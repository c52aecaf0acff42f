"""Handle batch files: operations, separated by blank lines, with one value on each line.

    CREATE 12345/x
    100 HS_ADMIN 86400 1110 ADMIN 300:111111111111:0.NA/12345
    1 URL 86400 1110 UTF8 https://example.org/

A value line is `INDEX TYPE TTL PERMISSIONS FORMAT DATA` with the formats UTF8 (the rest of the line, trimmed), ADMIN
(`INDEX:PERMISSIONS:HANDLE`, the digit of ADD_HANDLE first), LIST (`INDEX:HANDLE;INDEX:HANDLE`) and FILE, which is read
only if the caller gives a function for that. A line that begins with `#` is a comment. AUTHENTICATE and SESSIONSETUP
say how another tool signs in and encrypts: readers of rows report them without their secrets, or refuse a secret.
`find_credential` is for a caller that can verify an identity.

The format has no timestamps, references or absolute TTLs, and only text and two structures as data. `format_create`
says what of a record it could not write.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO, Final

import msgspec

from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.data_types import interpret
from perseid.records.encoding import parse_json, to_base64
from perseid.records.errors import InvalidData
from perseid.records.json_form import FORMATS
from perseid.records.record import MAX_VALUES, TtlType, Value, ValueRef, permissions_from_text
from perseid.records.types import get_base_type
from perseid.schema.imports import ImportRow, RowOperation, RowProblem
from perseid.schema.records import Data, ValueInput

from .formats import MAX_RECORD, Detected, FileReader, Format, InvalidFile, Row, RowReader, invalid_file, shorten

MAX_LINE: Final = 2_097_152
"""Bytes of the longest line: a value has at most half as many."""

BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that deployed software removes at both ends of a text."""

_COMMAND: Final = re.compile(
    r"(CREATE|ADD|MODIFY|REMOVE|DELETE|HOME|UNHOME|AUTHENTICATE|SESSIONSETUP)(?:[ \t]+(.*))?", re.IGNORECASE | re.DOTALL
)
_VALUE: Final = re.compile(
    r"(-?[0-9]{1,10})[ \t]+([^ \t]+)[ \t]+([^ \t]+)[ \t]+([^ \t]+)[ \t]+([A-Za-z0-9]+)(?:[ \t]+(.*))?", re.DOTALL
)
_REMOVAL: Final = re.compile(r"([0-9]{1,10}(?:[ \t]*,[ \t]*[0-9]{1,10})*)[ \t]*:(.+)", re.DOTALL)
_ADMIN: Final = re.compile(r"([0-9]{1,10}):([01]{12}):(.+)", re.DOTALL)
_ENTRY: Final = re.compile(r"([0-9]{1,10}):(.+)", re.DOTALL)
_BLANK: Final = re.compile("[\\x00-\\x20]")
_TTL: Final = re.compile("-?[0-9]{1,10}")
_IDENTITY: Final = re.compile(r"(PUBKEY|SECKEY):([0-9]{1,10}:[^|]+)", re.IGNORECASE)
_PASSPHRASE: Final = re.compile(r"PASSPHRASE[ \t]*:[ \t]*[^ \t]", re.IGNORECASE)
_SPLIT: Final = "Split the file, and import the operations of each identity on their own."
_WITH_VALUES: Final = {
    "CREATE": RowOperation.CREATE,
    "ADD": RowOperation.ADD,
    "MODIFY": RowOperation.MODIFY,
}
_HOSTING: Final = {"HOME": RowOperation.HOME, "UNHOME": RowOperation.UNHOME}
_PERMISSION_BITS: Final = 12
_MAX_INDEX: Final = 0x7FFF_FFFF
_CACHED: Final = 64  # administrators, of which a file has few


class Loss(msgspec.Struct, frozen=True):
    """What a batch file could not express."""

    handle: str
    index: int
    """The index of the value; 0 for the record."""
    type: str
    reason: str
    """A clause, such as `its data is not text`."""
    is_omitted: bool
    """Whether the value is missing in the file; otherwise only a detail of it."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The identity that a batch file signs in with."""

    line: int
    kind: str
    """`SECKEY` or `PUBKEY`."""
    reference: str
    """The key, as in `300:0.NA/12345`."""
    content: str = field(repr=False)
    """The secret; or the path of the private key, with `|` and its passphrase if it has one."""


class CredentialInFile(InvalidFile):
    """A file with the secret or key of an identity, which must not be stored."""


def find_command(line: str) -> str:
    """The command that a line starts, in uppercase; empty if it starts none."""
    match = _COMMAND.fullmatch(line.strip(BLANKS))
    return match[1].upper() if match else ""


def read_batch(file: BinaryIO, read_file: FileReader | None = None, *, refuses_credentials: bool = False) -> RowReader:
    """The operations of a batch file; raises `CredentialInFile` for a secret in it if the caller refuses that."""
    lines = _Lines(file)
    parser = _Parser(lines, read_file, refuses_credentials)
    parser.read_headers()
    detected = Detected(
        Format.BATCH, "UTF-8", authentication=tuple(parser.identities), session_setup=parser.has_session
    )
    return RowReader(detected, parser.read())


def find_credential(file: BinaryIO) -> Credential | None:
    """Find the identity of a batch file; None if it names none.

    Raises `InvalidFile` for operations with different identities, which are never part of one import.
    """
    lines = _Lines(file)
    found: Credential | None = None
    has_operations = False
    while (line := lines.take()) is not None:
        match = _COMMAND.fullmatch(line)
        if match is None or match[1].upper() == "SESSIONSETUP":
            continue
        if match[1].upper() != "AUTHENTICATE":
            has_operations = True
            continue
        number, identity = lines.number, _IDENTITY.fullmatch(match[2] or "")
        if identity is None:
            message = "AUTHENTICATE has no identity of the form SECKEY:INDEX:HANDLE or PUBKEY:INDEX:HANDLE."
            raise invalid_file("invalid-identity", message, line=number)
        credential = Credential(number, identity[1].upper(), identity[2], lines.take() or "")
        if found is None and has_operations:
            message = "AUTHENTICATE comes after operations without an identity."
            raise invalid_file("several-identities", message, _SPLIT, number)
        if found is not None and (found.kind, found.reference) != (credential.kind, credential.reference):
            message = f"The file has another identity than on line {found.line}."
            raise invalid_file("several-identities", message, _SPLIT, number)
        found = found or credential
    return found


class _Lines:
    """The lines of a file, without blanks at their ends, one of which can be looked at before it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._next: str | None = None
        self.number = 0
        """The line that was read last."""

    def peek(self) -> str | None:
        """The next line; None at the end."""
        if self._next is None:
            raw = self._file.readline(MAX_LINE + 1)
            if len(raw) > MAX_LINE:
                message = f"The line has more than {MAX_LINE:,} bytes."
                raise invalid_file("line-too-long", message, line=self.number + 1)
            if not raw:
                return None
            try:
                text = raw.decode("utf-8-sig" if self.number == 0 else "utf-8")
            except UnicodeDecodeError as error:
                message = f"The line is not UTF-8 at byte {error.start + 1}."
                raise invalid_file("invalid-encoding", message, "Save the file as UTF-8.", self.number + 1) from None
            self._next = text.strip(BLANKS)
        return self._next

    def take(self) -> str | None:
        """Read a line; None at the end."""
        line = self.peek()
        if line is not None:
            self.number += 1
            self._next = None
        return line


class _Parser:
    """Parses operations."""

    def __init__(self, lines: _Lines, read_file: FileReader | None, refuses_credentials: bool) -> None:
        self._lines = lines
        self._read_file = read_file
        self._refuses_credentials = refuses_credentials
        self.identities: list[str] = []
        """Identities of AUTHENTICATE, without secrets."""
        self.has_session = False
        """Whether there is a SESSIONSETUP."""

    def read_headers(self) -> None:
        """Read how to sign in, up to the first operation."""
        while (line := self._lines.peek()) is not None:
            match = _COMMAND.fullmatch(line)
            if match is not None and match[1].upper() in ("AUTHENTICATE", "SESSIONSETUP"):
                self._lines.take()
                self._skip_header(match[1].upper(), match[2] or "")
            elif not line or line.startswith("#"):
                self._lines.take()
            else:
                return

    def read(self) -> Iterator[Row]:
        """Yield the operations."""
        while (line := self._lines.take()) is not None:
            if not line or line.startswith("#"):
                continue
            match = _COMMAND.fullmatch(line)
            if match is None:
                message = "The line does not start an operation."
                fix = "Use CREATE, ADD, MODIFY, REMOVE, DELETE, HOME or UNHOME, after a blank line."
                yield self._problem(line, "unknown-operation", message, fix)
                self._skip()
                continue
            word, rest = match[1].upper(), (match[2] or "").strip(BLANKS)
            if word in ("AUTHENTICATE", "SESSIONSETUP"):
                self._skip_header(word, rest)
            elif word in _HOSTING:
                yield from self._read_prefixes(_HOSTING[word])
            elif not rest:
                yield self._problem(line, "missing-handle", "The handle is missing.")
                self._skip()
            elif word in _WITH_VALUES:
                yield self._read_values(_WITH_VALUES[word], rest)
            elif word == "DELETE":
                yield ImportRow(self._lines.number, RowOperation.DELETE, rest)
            else:
                yield self._read_removal(rest)

    def _skip(self) -> None:
        """Skip the rest of an operation."""
        while (line := self._lines.peek()) and not _COMMAND.fullmatch(line):
            self._lines.take()

    def _skip_header(self, word: str, rest: str) -> None:
        if word == "AUTHENTICATE":
            self._refuse_credential("AUTHENTICATE", "AUTHENTICATE and the line after it")
            if _IDENTITY.fullmatch(rest):
                self.identities.append(shorten(rest))
            self._lines.take()  # the key file or the secret
            return
        self.has_session = True
        while line := self._lines.take():
            if _PASSPHRASE.match(line):
                self._refuse_credential("PASSPHRASE of SESSIONSETUP", "SESSIONSETUP and the lines after it")

    def _refuse_credential(self, what: str, lines: str) -> None:
        """Raise `CredentialInFile` if the caller stores the file: a secret must not be stored."""
        if self._refuses_credentials:
            message = f"{what} is not accepted by a server, and the uploaded file was deleted."
            fix = f"Remove {lines}: an import has the permissions of your request."
            raise CredentialInFile(RowProblem(self._lines.number, "", "", "credential-in-file", message, fix))

    def _read_prefixes(self, operation: RowOperation) -> Iterator[Row]:
        while line := self._lines.take():
            yield ImportRow(self._lines.number, operation, line)

    def _read_removal(self, rest: str) -> Row:
        match = _REMOVAL.fullmatch(rest)
        if match is None or not match[2].strip(BLANKS):
            message = "The line does not have the form REMOVE INDEX,INDEX:HANDLE."
            return self._problem(rest, "invalid-removal", message)
        indexes = tuple([int(index) for index in match[1].split(",")])
        return ImportRow(self._lines.number, RowOperation.REMOVE, match[2].strip(BLANKS), indexes=indexes)

    def _read_values(self, operation: RowOperation, handle: str) -> Row:
        start = self._lines.number
        values: list[ValueInput] = []
        size = 0
        while (line := self._lines.peek()) and not _COMMAND.fullmatch(line):
            self._lines.take()
            size += len(line)
            if len(values) == MAX_VALUES or size > MAX_RECORD:
                self._skip()
                message = f"The record has more than {MAX_VALUES:,} values or {MAX_RECORD:,} bytes."
                return RowProblem(start, "", shorten(handle), "too-many-values", message)
            try:
                values.append(self._read_value(line))
            except InvalidData as error:
                message = f"The value on line {self._lines.number} is invalid: {error}."
                self._skip()
                return RowProblem(start, "", shorten(line), "invalid-value-line", message)
        if not values and operation is not RowOperation.CREATE:
            return self._problem(handle, "missing-values", "The operation has no values.")
        return ImportRow(start, operation, handle, tuple(values))

    def _read_value(self, line: str) -> ValueInput:
        match = _VALUE.fullmatch(line)
        if match is None:
            raise InvalidData("it does not have the form INDEX TYPE TTL PERMISSIONS FORMAT DATA")
        index, type_, ttl, permissions, format_, data = match.groups(default="")
        if not _TTL.fullmatch(ttl):
            raise InvalidData(f"the TTL {ttl[:20]!r} is not a number of seconds")
        return ValueInput(
            type_, self._read_data(type_, format_.upper(), data), int(index), _read_permissions(permissions), int(ttl)
        )

    def _read_data(self, type_: str, format_: str, data: str) -> Data:
        if format_ == "UTF8":
            return Data("string", data)
        if format_ == "ADMIN":
            return _read_admin(data)
        if format_ == "LIST":
            return Data("vlist", ValueList(_parse_list(data)).to_json())
        if format_ == "FILE":
            if self._read_file is None:
                raise InvalidData("a server reads no files; import it where the installation is, or use UTF8")
            try:
                content = self._read_file(data)
            except (OSError, ValueError) as error:  # a zero byte in the name is a ValueError
                reason = error.strerror if isinstance(error, OSError) else None
                raise InvalidData(f"the file {shorten(data)!r} cannot be read: {reason or error}") from None
            return _read_content(type_, content)
        raise InvalidData(f"the format {format_[:20]!r} is not UTF8, ADMIN, LIST or FILE")

    def _problem(self, value: str, rule: str, message: str, fix: str = "") -> RowProblem:
        return RowProblem(self._lines.number, "", shorten(value), rule, message, fix)


@lru_cache(_CACHED)
def _read_permissions(text: str) -> str:
    return f"{int(permissions_from_text(text)):04b}"


@lru_cache(_CACHED)
def _read_admin(data: str) -> Data:
    match = _ADMIN.fullmatch(data)
    if match is None:
        raise InvalidData("an administrator has the form INDEX:PERMISSIONS:HANDLE with twelve digits")
    permissions = AdminPermission(int(match[2][::-1], 2))
    return Data("admin", Admin(ValueRef(_index(match[1]), match[3]), permissions).to_json())


def _index(text: str) -> int:
    index = int(text)
    if index > _MAX_INDEX:
        raise InvalidData(f"the index {index} is too large; the maximum is {_MAX_INDEX:,}")
    return index


def _parse_list(data: str) -> tuple[ValueRef, ...]:
    entries: list[ValueRef] = []
    for text in data.split(";"):
        entry = text.strip(BLANKS)
        if not entry:
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise InvalidData("a list has the form INDEX:HANDLE;INDEX:HANDLE")
        entries.append(ValueRef(_index(match[1]), match[2]))
    return tuple(entries)


def _read_content(type_: str, content: bytes) -> Data:
    """The content of a file; site information in JSON is converted, as deployed."""
    if FORMATS.get(get_base_type(type_)) == "site" and content.lstrip()[:1] == b"{":
        site = parse_json(content)
        if isinstance(site, dict):
            return Data("site", site)
    return Data("base64", to_base64(content))


# Writing


def format_create(handle: str, values: Sequence[Value]) -> tuple[bytes, tuple[Loss, ...]]:
    """Format the operation that creates a record, and what it lacks; empty if the handle cannot be written."""
    if not _is_line(handle) or not handle:
        return b"", (Loss(handle, 0, "", "the handle has blanks at an end or a line break", True),)
    lines = [f"CREATE {handle}"]
    losses: list[Loss] = []
    for value in values:
        line, reason = _format_value(value)
        if line:
            lines.append(line)
        if reason:
            losses.append(Loss(handle, value.index, value.type, reason, not line))
    return "\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass"), tuple(losses)


def _format_value(value: Value) -> tuple[str, str]:
    """The line of a value, or an empty text, and why something is lost, or an empty text."""
    if not value.type or _BLANK.search(value.type):
        return "", "its type is empty or has a blank"
    if value.ttl_type != TtlType.RELATIVE:
        return "", "its TTL is not relative"
    formatted = _format_data(value)
    if formatted is None:
        return "", "its data is not text on one line"
    bits = int(value.permissions)
    start = f"{value.index} {value.type} {value.ttl} {bits & 0x0F:04b}"
    reasons = ["its references"] if value.references else []
    if bits > 0x0F:
        reasons.append("unknown permissions")
    return f"{start} {formatted}".rstrip(BLANKS), " and ".join(reasons)


def _format_data(value: Value) -> str | None:
    decoded = interpret(value) if FORMATS.get(get_base_type(value.type)) in ("admin", "vlist") else None
    if isinstance(decoded, Admin):
        text = _format_admin(decoded)
        if text is not None:
            return f"ADMIN {text}"
    elif isinstance(decoded, ValueList):
        entries = [str(entry) for entry in decoded.entries]
        if all(
            entry.index >= 0 and entry.handle and ";" not in entry.handle and _is_line(entry.handle)
            for entry in decoded.entries
        ):
            return f"LIST {';'.join(entries)}"
    try:
        text = value.data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return f"UTF8 {text}" if _is_line(text) else None


def _format_admin(admin: Admin) -> str | None:
    reference = admin.administrator
    if (
        admin.legacy_length
        or admin.permissions > ALL_PERMISSIONS
        or reference.index < 0
        or not _is_line(reference.handle)
    ):
        return None
    digits = f"{admin.permissions:0{_PERMISSION_BITS}b}"[::-1]
    return f"{reference.index}:{digits}:{reference.handle}"


def _is_line(text: str) -> bool:
    """Whether a text is the same at the end of a line."""
    return "\n" not in text and "\r" not in text and text.strip(BLANKS) == text

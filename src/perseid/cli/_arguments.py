"""Options, handles and values that several commands take, and the installation and identity that they use.

On a directory the command line acts as server administrator, by right of the file permissions, and is recorded as
`local:<user>`. `--as INDEX:HANDLE` acts as that identity and is limited to its permissions. Namespace policies bind
both. Most commands are a few lines:

    def delete(handle: HandleArgument, directory: Directory = None, ...) -> None:
        with open_installation(directory, acting_as) as session:
            print_changed(session.do(Delete(parse_handle(handle))), json)

Values are written `[INDEX:]TYPE[!private]=DATA`, or as a whole record in JSON. DATA is text, `@FILE` (the bytes of a
file; `@-` is standard input) or `base64:…`. Structured types have a text form:
`HS_ADMIN=200:0.NA/12345:add_value,modify_value`, `HS_VLIST=300:0.NA/12345,301:0.NA/12345`. `TYPE!private` is readable
by administrators only, `TYPE!public` by everyone. A value without an index gets a free one: see
`perseid.registry.commands.records`.
"""

import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

import typer

from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.names.uri import KNOWN_RESOLVERS, Reference, parse_uri, parse_user_input
from perseid.records.binary import MAX_BYTES
from perseid.records.encoding import MAX_JSON_BYTES, parse_json
from perseid.records.errors import InvalidData
from perseid.records.record import DEFAULT_PERMISSIONS, PRIVATE_PERMISSIONS, Value, ValueRef, ref_from_text
from perseid.records.types import HS_PUBKEY, HS_SECKEY, HS_SITE, URL, has_type

from ._common_options import NAME_OPTIONS, REMOTE, Directory, find_own_resolvers, resolve_directory
from ._output import STANDARD_INPUT, CommandFailed, phrase_warnings, print_json, print_message, print_text

if TYPE_CHECKING:  # loading them takes longer than showing help or resolving a handle
    from perseid.ledger.ledger import Ledger
    from perseid.ledger.log.log import Log
    from perseid.registry.commands.records import PartialValue
    from perseid.registry.context import Command
    from perseid.registry.identity import Identity
    from perseid.registry.installation.installation import Installation
    from perseid.registry.registry import Registry
    from perseid.registry.results import ChangeResult
    from perseid.schema.records import CreatedRecord, RecordChanged, ValueResponse, WarningInfo

__all__ = ["STANDARD_INPUT", "Directory", "resolve_directory"]

MAX_CURSOR_DIGITS: Final = 18
"""Digits of an entry number that fits into 64 bits."""

INTERFACE: Final = "cli"
"""The interface that the ledger records."""

ActingAs: TypeAlias = Annotated[
    str | None,
    typer.Option("--as", metavar="INDEX:HANDLE", help="Act as this identity, with its permissions instead of yours."),
]
"""The option of commands that require a permission."""

Note: TypeAlias = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="The reason; stored with the change, visible to administrators.")
]
"""The option of commands that change records."""

SecretOutput: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write it to this new file, which only you can read."),
]
"""The option of commands that create a secret."""

KeepHistory: TypeAlias = Annotated[
    bool, typer.Option("--keep-history", help="Keep earlier versions public; by default they are hidden as well.")
]
"""The option of commands that hide public values."""

HandleArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="HANDLE", help="A handle, `hdl:` URI or resolver URL.")
]
"""The argument of commands about one identifier; `parse_handle` and `parse_reference` read it."""


Prefix: TypeAlias = Annotated[str, typer.Argument(metavar="PREFIX", help="The prefix of the namespace.")]

Limit: TypeAlias = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most N results.")]
After: TypeAlias = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="Continue after the end of an earlier result.")
]
"""The options of lists; `print_more` prints the cursor."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenInstallation:
    """An open installation, and the identity that works on it."""

    installation: "Installation"
    registry: "Registry"
    identity: "Identity"

    def find_runtime(self) -> Path | None:
        """Return the runtime directory of the server that runs on the installation; None if none does."""
        from perseid.server.state.runtime import WRITER_LINK  # noqa: PLC0415 - as above

        link = self.installation.directory / WRITER_LINK
        return link.readlink().parent if link.is_symlink() else None

    def do(self, command: "Command[T]", note: str = "", *, keep_history: bool = False) -> T:
        """Execute a command; its change is durable when this returns."""
        from perseid.registry.queries.history import keep_history_note  # noqa: PLC0415 - as above

        return self.registry.do(command, self.identity, INTERFACE, keep_history_note(note) if keep_history else note)


@contextmanager
def open_installation(
    directory: Path | None, acting_as: str | None = None, *, maintains: bool = False
) -> Iterator[OpenInstallation]:
    """Open the installation of a command. One that `maintains` views or keys has the ledger itself, beside a server."""
    if REMOTE.get() is not None:
        raise CommandFailed("This command works on a local installation only", "Use -d DIR, without a server")
    from perseid.registry.installation.installation import DatabaseUnreachable, Installation  # noqa: PLC0415 - as above

    identity, where = get_identity(acting_as), resolve_directory(directory)
    try:
        installation = Installation.open(where, open_ledger=None if maintains else find_writer(where))
    except DatabaseUnreachable as problem:
        problem.add_note(
            "Repeat the command when it responds. Until then, perseid resolve HANDLE shows public records."
        )
        raise
    with installation:
        yield OpenInstallation(installation, installation.registry(), identity)


def find_writer(directory: Path) -> "Callable[[Log, Path], Ledger] | None":
    """How to open the ledger beside a running server, which appends for this command; None without one."""
    from perseid.server.state.runtime import WRITER_LINK  # noqa: PLC0415 - as above

    if not (directory / WRITER_LINK).is_symlink():
        return None
    from perseid.server.processes import remote_ledger  # noqa: PLC0415 - most commands do not need it

    return remote_ledger.find_writer(directory)


def get_identity(acting_as: str | None) -> "Identity":
    """Return the identity of the system user, or the one of `--as`."""
    from perseid.registry.identity import KeyIdentity, LocalIdentity, Proof  # noqa: PLC0415 - as above

    if acting_as is None:
        return LocalIdentity(_user_name())
    return KeyIdentity(parse_value_ref(acting_as, "--as"), Proof.FILE_PERMISSION)


def parse_value_ref(text: str, option: str) -> ValueRef:
    """Parse `INDEX:HANDLE` from an option."""
    try:
        ref = ref_from_text(text)
        Handle.parse(ref.handle)
    except (InvalidData, InvalidName) as problem:
        raise typer.BadParameter(f"{problem}; for example: 300:0.NA/12345", param_hint=option) from problem
    return ref


def parse_handle(text: str, *, new: bool = False) -> Handle:
    """Parse the handle of a change; refuse a URI with query or fragment, which are for resolution only.

    A `new` handle must follow the rules of this server. One that exists may come from another server.
    """
    reference = read_name(text) if new else parse_reference(text)
    if reference.tail:
        message = f"{reference.tail} is a query or fragment, which only resolution accepts; use {reference.handle}"
        raise typer.BadParameter(message, param_hint="HANDLE")
    return reference.handle


def parse_reference(text: str) -> Reference:
    """Parse a handle to resolve, also one that cannot be registered here; one that is too long is not found (H9)."""
    try:
        return read_name(text, for_lookup=True)
    except InvalidName as problem:
        if problem.rule == "H9":
            from perseid.registry.context import name_too_long  # noqa: PLC0415 - as above

            raise name_too_long(text) from problem
        raise


def parse_cursor(after: str | None) -> int:
    """Parse a cursor that is the number of an entry; 0 for the start."""
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) <= MAX_CURSOR_DIGITS):
        raise typer.BadParameter("use the cursor that an earlier result ended with", param_hint="--after")
    return int(after or 0)


def print_more(cursor: object) -> None:
    """Say that a list stopped at its limit, and how to continue."""
    print_message(f"There may be more results. To continue: --after {cursor}")


def read_name(text: str, *, for_lookup: bool = False) -> Reference:
    """Read an identifier in any form, or with `--strict` as an exact URI.

    URLs of this installation (`http.public_url`), of `--resolver` and of `KNOWN_RESOLVERS` are read.
    """
    options = NAME_OPTIONS.get()
    own = find_own_resolvers(text, options.directory)
    parse = parse_uri if options.strict else parse_user_input
    return parse(text, [*options.resolvers, *own, *KNOWN_RESOLVERS], for_lookup=for_lookup)


def require_version(command: "Command[T]", handle: Handle, seq: int) -> "Command[T]":
    """Refuse a command if the latest version of the record is not this entry."""
    from perseid.registry.commands.composition import Condition, Conditional, entry_tag  # noqa: PLC0415 - as above

    return Conditional(command, handle, Condition(any_of=(entry_tag(seq),)))


def print_changed(changed: "ChangeResult | RecordChanged | CreatedRecord", json: bool) -> None:
    """Print the handle of a change that is durable, and warnings about it."""
    if json:
        from perseid.registry.responses import to_changed  # noqa: PLC0415 - as above
        from perseid.registry.results import ChangeResult  # noqa: PLC0415

        print_json(to_changed(changed) if isinstance(changed, ChangeResult) else changed)
    else:
        print_text(str(changed.handle))
        print_warnings(changed.warnings)


def print_warnings(warnings: "Sequence[WarningInfo]") -> None:
    """Print the warnings of a command on standard error; with `--json` they are part of the result."""
    for warning in phrase_warnings(warnings):
        print_message(f"Warning: {warning}")


def _user_name() -> str:
    """Return the name of the system user, not of a variable: the ledger stores it permanently."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


FILE_PREFIX: Final = "@"

_SYNTAX = "[INDEX:]TYPE=DATA, as in URL=https://example.org/ or 2:EMAIL=help@example.org"
_VALUE = re.compile(r"(?:(?P<index>[0-9]{1,10}):)?(?P<type>[^=!]+)(?:!(?P<mark>[^=]*))?=(?P<data>.*)", re.DOTALL)
_PAIR: Final = (re.compile(r"[^\s=]+"), re.compile(r"(?![^\s=/:?]+=).+", re.DOTALL))
"""A type and its data without the sign between them."""

_PERMISSIONS = {"private": PRIVATE_PERMISSIONS, "public": DEFAULT_PERMISSIONS}
_MAX_INDEX = 0x7FFF_FFFF

ValueOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="[INDEX:]TYPE=DATA",
        help="A value of the record; repeatable. DATA is text, @FILE or base64:…; TYPE!private hides it.",
    ),
]
UrlOption: TypeAlias = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The target; short for --value URL=…")
]
ValueArguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[INDEX:]TYPE=DATA...", help="Values. DATA is text, @FILE or base64:…; TYPE!private hides it."
    ),
]
FromOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE", help="A whole record in JSON, as printed by `resolve --json`; - is standard input."
    ),
]


def parse_value(text: str) -> "PartialValue":
    """Parse `[INDEX:]TYPE=DATA`."""
    from perseid.registry.commands.records import PartialValue  # noqa: PLC0415 - as above

    match = _VALUE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{quote_text(text)} is not a value; use {_SYNTAX}")
    type_, mark = match["type"].strip(), match["mark"]
    if mark is not None and mark not in _PERMISSIONS:
        raise typer.BadParameter(f"{quote_text(mark)} is not allowed after a type; use !private or !public")
    index = None if match["index"] is None else int(match["index"])
    if not type_ or ":" in type_ or (index is not None and not 0 < index <= _MAX_INDEX):
        raise typer.BadParameter(f"{quote_text(text)} is not a value: an index is a number from 1; use {_SYNTAX}")
    try:
        data = _parse_data(type_, match["data"])
    except InvalidData as problem:
        raise typer.BadParameter(f"{quote_text(type_)}: {problem}") from problem
    return PartialValue(type_, data, index, _PERMISSIONS[mark] if mark else None)


def parse_values(texts: Iterable[str] | None, url: str | None = None) -> "tuple[PartialValue, ...]":
    """Parse the values of a command."""
    texts = list(texts or ())
    if len(texts) == len(_PAIR) and all(map(re.fullmatch, _PAIR, texts)):
        from shlex import quote  # noqa: PLC0415 - only errors need it

        error = typer.BadParameter(f"{quote_text(texts[0])} is not a value; use {_SYNTAX}")
        vars(error)["possibilities"] = [f"{texts[0]}={quote(texts[1])}"]
        raise error
    from perseid.registry.commands.records import PartialValue  # noqa: PLC0415 - as above

    first = () if url is None else (PartialValue(URL, _parse_data(URL, url)),)
    return (*first, *[parse_value(text) for text in texts])


def read_record(path: str) -> tuple[Value, ...]:
    """Read the values of a JSON record from a file or standard input: `{"values": […]}`, an array, or one value."""
    from perseid.records.json_form import values_from_json  # noqa: PLC0415 - as above

    raw = read_bytes(path, MAX_JSON_BYTES)
    return values_from_json(parse_json(raw))


def read_text(path: str) -> str:
    """Read a text in UTF-8 from a file or standard input."""
    raw = read_bytes(path, MAX_JSON_BYTES)
    try:
        return raw.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise InvalidData(f"{quote_text(path)} is not UTF-8 at byte {error.start + 1}") from None


def load_values(values: "Sequence[ValueResponse]") -> tuple[Value, ...]:
    """The values of a response, to print them."""
    import msgspec  # noqa: PLC0415 - as above

    from perseid.records.json_form import values_from_json  # noqa: PLC0415

    return values_from_json(msgspec.to_builtins(values))


def format_data(value: Value) -> str:
    """Format the data of a value on one line; hide secrets."""
    if has_type(value.type, HS_SECKEY):
        return "(secret; --json shows it)"
    from perseid.records.data_types import data_to_text  # noqa: PLC0415 - as above

    return printable(data_to_text(value))


def printable(text: str) -> str:
    """Escape line breaks and everything that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _parse_data(type_: str, text: str) -> bytes:
    from perseid.records.data_types import check_data_length, data_from_text  # noqa: PLC0415 - as above

    if text.startswith(FILE_PREFIX):
        data = check_data_length(read_bytes(text.removeprefix(FILE_PREFIX), MAX_BYTES))
        if type_ == HS_SITE and data.startswith(b"{"):  # siteinfo.json
            return data_from_text(type_, data.decode("utf-8", "replace"))
        if type_ != HS_PUBKEY:
            return data
        from perseid.records.keys import PublicKey  # noqa: PLC0415 - loads cryptography

        return PublicKey.from_file(data).to_bytes()
    return data_from_text(type_, text)


def read_bytes(path: str, limit: int) -> bytes:
    """Read a file or standard input; one byte more than `limit` shows that it is too long."""
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(limit + 1)
    with Path(path).open("rb") as file:
        return file.read(limit + 1)

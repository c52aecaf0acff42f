"""Commands on a server of the native protocol, with the results of the other targets.

The protocol has no states, entries of the ledger, warnings and notes: `state` is `unknown` and `seq` is 0 in results,
and options about them are refused. The registry's rules for partial values are applied here, on the record as it is
read: the protocol has no change that depends on an earlier version.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from perseid.records.types import HS_ADMIN, has_type
from perseid.schema.records import CreatedRecord, Record, RecordChanged, dump_values
from perseid.wire.codes import ResponseCode

from ._output import CommandFailed

if TYPE_CHECKING:  # loading them takes longer than showing help
    from perseid.client.native import NativeClient
    from perseid.records.record import Value
    from perseid.registry.commands.records import (
        AddValues,
        CreateRecord,
        Delete,
        PartialValue,
        Remove,
        ReplaceRecord,
        SetValues,
    )

    RecordCommand: TypeAlias = AddValues | CreateRecord | Delete | Remove | ReplaceRecord | SetValues

UNKNOWN_STATE: Final = "unknown"
"""The state of a record that the native protocol returns."""


class NotSupported(CommandFailed):
    """The native protocol cannot do this."""

    problem_type = "not-supported"


def refuse_native(what: str = "this command") -> NotSupported:
    """The refusal of what only the HTTP API can do."""
    return NotSupported(f"The native protocol does not support {what}", "Use the HTTP API: --server https://HOST")


class NativeTarget:
    """A server of the native protocol."""

    def __init__(self, client: "NativeClient") -> None:
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def resolve(
        self,
        handle: str,
        *,
        types: Iterable[str] = (),
        indexes: Iterable[int] = (),
        at: str | None = None,
        private: bool = False,
        follow: bool = False,
    ) -> Record:
        """Return a record."""
        for option, is_given in (("--at", at is not None), ("--follow", follow)):
            if is_given:
                raise refuse_native(option)
        values = self._read(handle, tuple(types), tuple(indexes), private=private)
        return Record(handle, UNKNOWN_STATE, dump_values(sorted(values, key=lambda value: value.index)), 0)

    def visit_handles(self, prefix: str, visit: Callable[[str], None]) -> None:
        """Call a function with each handle under a prefix, as they arrive."""
        with _in_own_words(prefix):
            self._client.visit_handles(prefix, visit)

    def identify(self, *, is_anonymous: bool) -> None:
        """Let the server check the credentials, if there are any: raise its refusal unless they are right."""
        from perseid.client.errors import Refused  # noqa: PLC0415 - as above

        if is_anonymous:
            self._client.site()
            return
        try:
            self._client.list_prefixes()
        except Refused as refused:  # the identity is proved before its permissions matter
            if refused.code not in _PERMISSION_CODES:
                raise

    def execute(
        self, command: "RecordCommand", note: str = "", if_version: int | None = None, *, keep_history: bool = False
    ) -> RecordChanged | CreatedRecord:
        """Execute a command as the request that means the same."""
        for option, is_given in (("--note", note), ("--if-version", if_version), ("--keep-history", keep_history)):
            if is_given:
                raise refuse_native(option)
        with _in_own_words(str(command.handle)):
            return self._send(command)

    def _send(self, command: "RecordCommand") -> RecordChanged | CreatedRecord:
        from perseid.registry.commands import records as commands  # noqa: PLC0415 - as above

        handle = str(command.handle)
        match command:
            case commands.CreateRecord():
                return CreatedRecord(self._create(handle, command), 0)
            case commands.AddValues():
                self._client.add(handle, commands.assign_indexes(command.values, self._read_all(handle)))
            case commands.SetValues():
                self._set(handle, command.values)
            case commands.ReplaceRecord():
                values = commands.assign_indexes(command.values, command.complete)
                whole = commands.with_administrators(self._read_all(handle), (*command.complete, *values))
                self._client.create(handle, whole, overwrite=True)
            case commands.Remove():
                self._client.remove(handle, command.indexes)
            case commands.Delete():
                self._client.delete(handle)
        return RecordChanged(handle, 0)

    def _create(self, handle: str, command: "CreateRecord") -> str:
        from perseid.client.errors import NotFound  # noqa: PLC0415 - as above
        from perseid.registry.commands.records import assign_indexes, with_administrators  # noqa: PLC0415

        for option, is_given in (
            ("--reuse-deleted", command.reuse_deleted),
            ("--preserve-dates", command.preserve_dates),
        ):
            if is_given:
                raise refuse_native(option)
        values = (*command.complete, *assign_indexes(command.values, command.complete))
        if command.overwrite and not any(has_type(value.type, HS_ADMIN) for value in values):
            with suppress(NotFound):
                values = with_administrators(self._read_all(handle), values)
        return self._client.create(handle, values, overwrite=command.overwrite)

    def _set(self, handle: str, values: "Sequence[PartialValue]") -> None:
        from perseid.registry.commands.records import merge_values  # noqa: PLC0415 - as above

        existing = self._read_all(handle)
        merged = merge_values(values, existing)
        if {value.index for value in merged} <= {value.index for value in existing}:
            self._client.modify(handle, merged)
        else:
            self._client.add(handle, merged, overwrite=True)

    def _read_all(self, handle: str) -> "tuple[Value, ...]":
        """The values that the identity can read, private ones too."""
        return self._read(handle, private=True)

    def _read(
        self, handle: str, types: Sequence[str] = (), indexes: Sequence[int] = (), *, private: bool
    ) -> "tuple[Value, ...]":
        with _in_own_words(handle):
            return self._client.resolve(handle, types=types, indexes=indexes, private=private)


@contextmanager
def _in_own_words(handle: str) -> Iterator[None]:
    """Report what servers say without a text, or with one of deployed servers, as on an installation."""
    from perseid.client.errors import ClientError, NotFound, Refused  # noqa: PLC0415 - as above

    try:
        yield
    except ClientError as error:
        if error.code == ResponseCode.AUTHENTICATION_NEEDED:
            advice = (
                "Use --as INDEX:HANDLE with --secret-file FILE or --key-file FILE. To save them: perseid login SERVER"
            )
            kind = error.problem_type
            raise Refused("Authentication required", advice=advice, code=error.code, problem_type=kind) from error
        reason = {
            ResponseCode.HANDLE_NOT_FOUND: f"Handle {handle} does not exist",
            ResponseCode.SERVER_NOT_RESP: f"This server does not host prefix {handle.partition('/')[0]}",
        }.get(error.code)  # type: ignore[call-overload] # an int, like its keys
        if error.code == ResponseCode.VALUES_NOT_FOUND and error.detail.endswith(str(error.code)):  # no text
            reason = f"Handle {handle} has no matching values"
        if reason is None:
            raise
        raise NotFound(reason, code=error.code, problem_type=error.problem_type) from error


_PERMISSION_CODES: Final = (ResponseCode.INVALID_ADMIN, ResponseCode.INSUFFICIENT_PERMISSIONS)

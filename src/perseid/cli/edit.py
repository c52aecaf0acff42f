"""`perseid edit`: change a record in a text editor."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp

import msgspec
import typer

from perseid.ledger.log.entry import State
from perseid.names.errors import quote_text
from perseid.names.handle import Handle
from perseid.records.encoding import MAX_JSON_BYTES, parse_json
from perseid.records.errors import InvalidData, RecordProblem
from perseid.records.json_form import values_from_json
from perseid.records.record import Value
from perseid.registry.access.permissions import Differences
from perseid.registry.commands.composition import ConditionFailed, policy_values
from perseid.registry.commands.records import ReplaceRecord, keep_administrators, require_record
from perseid.registry.context import Context, still_reserved
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.results import ChangeResult, Refused
from perseid.registry.snapshot import StoredRecord
from perseid.schema.records import dump_values

from ._arguments import (
    INTERFACE,
    ActingAs,
    Directory,
    HandleArgument,
    KeepHistory,
    Note,
    OpenInstallation,
    open_installation,
    parse_handle,
    print_changed,
    require_version,
)
from ._editor import find_editor, run_editor
from ._errors import report_error
from ._output import AsJson, CommandFailed, confirm, is_terminal, print_message
from .history import format_differences
from .lifecycle import Yes


@dataclass(frozen=True, slots=True)
class _Original:
    """A record as it was read."""

    stored: StoredRecord
    readable: tuple[Value, ...]

    def to_text(self) -> str:
        """The readable values as in `resolve --json`, on several lines."""
        document = {"handle": str(self.stored.handle), "values": dump_values(self.readable)}
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"

    def parse(self, raw: bytes) -> tuple[Value, ...]:
        """The values of the changed text, with those that a change of the whole record keeps. Raises `InvalidData`."""
        document = parse_json(raw)
        name = document.get("handle") if isinstance(document, dict) else None
        if name not in (None, str(self.stored.handle)):
            raise InvalidData(f"the handle cannot be changed to {quote_text(str(name))}")
        values = values_from_json(document)
        used = {value.index for value in values}
        shown = {value.index for value in self.readable}
        unreadable = [value for value in self.stored.values if value.index not in shown]
        kept = [value for value in policy_values(self.stored) if value.index not in used and value.index in shown]
        return keep_administrators(self.stored, (*values, *kept, *unreadable))


def edit(
    handle: HandleArgument,
    *,
    yes: Yes = False,
    keep_history: KeepHistory = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Change a record in your editor ($VISUAL, $EDITOR or vi), as JSON.

    The differences are shown before they are saved. If the text is invalid, you can edit it again. Nothing is saved if
    you do not change anything, or if the record was changed by somebody else meanwhile. A text that is refused then, or
    cannot be confirmed without a terminal, is kept in a file. As with `perseid set --from`, values that the policy
    requires stay if you remove them, and so do the administrators unless you name others.

    For example:
        perseid edit 102.100.272/8RBZF0DQH
        perseid edit 102.100.272/8RBZF0DQH --note "corrected the address"
    """
    command = find_editor()
    with open_installation(directory, acting_as) as session:
        original = _read(session, parse_handle(handle))

        def save(raw: bytes) -> ChangeResult:
            stored, values = original.stored, original.parse(raw)
            lines = format_differences(Differences.between(stored.values, values))
            if not lines:
                print_message("Nothing was changed")
                return ChangeResult(stored.handle, stored.seq)
            for line in lines:
                print_message(line)
            if not yes:
                confirm(f"{stored.handle} will change")
            replacement = require_version(ReplaceRecord(stored.handle, values), stored.handle, stored.seq)
            return session.do(replacement, note, keep_history=keep_history)

        print_changed(_edit_until_valid(command, original.to_text(), save), json)


def _read(session: OpenInstallation, handle: Handle) -> _Original:
    with session.registry.snapshot() as snapshot:
        context = Context(snapshot, session.identity, INTERFACE, session.registry.now())
        stored = context.get_hosted(handle)
        require_record(context, stored)
        if stored.state is State.RESERVED:
            raise still_reserved(stored)
        return _Original(stored, resolve(Query(handle, public_only=False), context).values)


def _edit_until_valid(command: list[str], text: str, save: Callable[[bytes], ChangeResult]) -> ChangeResult:
    """Run the editor until the text can be saved, or the user gives up. The file is private, and removed at the end.

    If a refused text cannot be edited again, it is kept in another private file.
    """
    with TemporaryDirectory(prefix="perseid-") as folder:  # for the copies that editors make, too
        path = Path(folder) / "record.json"
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        while True:
            run_editor(command, path)
            try:
                with path.open("rb") as file:
                    return save(file.read(MAX_JSON_BYTES + 1))
            except (CommandFailed, RecordProblem, Refused) as problem:
                if isinstance(problem, ConditionFailed) or not is_terminal(sys.stdin):
                    problem.add_note(f"Nothing was saved. Your text is in {_keep(path)}")
                    raise
                if isinstance(problem, CommandFailed):  # the user does not want it
                    raise
                report_error(problem)
                typer.echo("Edit again? [Y/n] ", nl=False, err=True)
                if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
                    raise CommandFailed("Nothing was changed") from problem


def _keep(path: Path) -> str:
    """Copy a file to one that is not removed, which only the user can read."""
    descriptor, kept = mkstemp(prefix="perseid-", suffix=".json")
    with os.fdopen(descriptor, "wb") as file:
        file.write(path.read_bytes())
    return kept


commands: dict[str, Callable[..., None] | typer.Typer] = {"edit": edit}

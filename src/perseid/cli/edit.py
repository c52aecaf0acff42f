"""`perseid edit`: change a record in a text editor."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import TYPE_CHECKING

import msgspec
import typer

from perseid.client.errors import ClientError, UnknownOutcome, Unreachable
from perseid.client.errors import NotFound as NotFoundThere
from perseid.client.errors import Refused as RefusedThere
from perseid.ledger.log.entry import State
from perseid.names.errors import quote_text
from perseid.names.handle import Handle
from perseid.records.encoding import MAX_JSON_BYTES, parse_json
from perseid.records.errors import InvalidData, RecordProblem
from perseid.records.json_form import values_from_json
from perseid.records.record import Value
from perseid.registry.access.permissions import Differences
from perseid.registry.commands.composition import ConditionFailed, required_values
from perseid.registry.commands.records import ReplaceRecord, require_record, with_administrators
from perseid.registry.context import Context, still_reserved
from perseid.registry.policy.policy import Policy
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.responses import to_changed
from perseid.registry.results import Refused
from perseid.schema.records import RecordChanged, ToSet, ValueInput, dump_values

from ._advice import render_problem
from ._arguments import (
    INTERFACE,
    ActingAs,
    Directory,
    HandleArgument,
    KeepHistory,
    Note,
    OpenInstallation,
    load_values,
    open_installation,
    parse_handle,
    print_changed,
    require_version,
)
from ._common_options import REMOTE
from ._editor import find_editor, run_editor
from ._errors import report_error
from ._local import suggest
from ._output import AsJson, CommandFailed, confirm, is_terminal, print_message, print_text
from ._remote_minting import load_policy
from .history import format_differences
from .lifecycle import Yes
from .records import to_inputs

if TYPE_CHECKING:
    from perseid.client import Client


@dataclass(frozen=True, slots=True)
class _Original:
    """A record as it was read."""

    handle: str
    seq: int
    policy: Policy
    values: tuple[Value, ...]
    """The values that the user can read; the others stay."""

    def to_text(self) -> str:
        """The values as in `resolve --json`, on several lines."""
        document = {"handle": self.handle, "values": dump_values(self.values)}
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"

    def parse(self, raw: bytes) -> tuple[Value, ...]:
        """The values of the changed text, with those that a change of the whole record keeps. Raises `InvalidData`."""
        document = parse_json(raw)
        name = document.get("handle") if isinstance(document, dict) else None
        if name not in (None, self.handle):
            raise InvalidData(f"the handle cannot be changed to {quote_text(str(name))}")
        values = values_from_json(document)
        used = {value.index for value in values}
        kept = [value for value in required_values(self.policy, self.values) if value.index not in used]
        return with_administrators(self.values, (*values, *kept))


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
    command, name = find_editor(), parse_handle(handle)
    with ExitStack() as stack:
        connect = REMOTE.get()
        target: _Local | _Remote
        if connect is None:
            target = _Local(stack.enter_context(open_installation(directory, acting_as)))
        else:
            target = _Remote(stack.enter_context(connect()))
        original = target.read(name)

        def save(raw: bytes) -> RecordChanged:
            values = original.parse(raw)
            lines = format_differences(Differences.between(original.values, values))
            if not lines:
                print_message("Nothing was changed")
                return RecordChanged(original.handle, original.seq)
            for line in lines:
                print_message(line)
            if not yes:
                confirm(f"{original.handle} will change")
            return target.save(original, values, note, keep_history=keep_history)

        print_changed(_edit_until_valid(command, original.to_text(), save), json)


@dataclass(frozen=True, slots=True)
class _Local:
    """Records of an installation."""

    session: OpenInstallation

    def read(self, handle: Handle) -> _Original:
        with suggest(self.session.registry, str(handle)), self.session.registry.snapshot() as snapshot:
            context = Context(snapshot, self.session.identity, INTERFACE, self.session.registry.now())
            stored = context.get_hosted(handle)
            require_record(context, stored)
            if stored.state is State.RESERVED:
                raise still_reserved(stored)
            values = resolve(Query(handle, public_only=False), context).values
            return _Original(str(stored.handle), stored.seq, stored.policy, values)

    def save(self, original: _Original, values: tuple[Value, ...], note: str, *, keep_history: bool) -> RecordChanged:
        handle = Handle.parse_lenient(original.handle)
        command = ReplaceRecord(handle, values, keep_unreadable=True)
        change = require_version(command, handle, original.seq)
        return to_changed(self.session.do(change, note, keep_history=keep_history))


@dataclass(frozen=True, slots=True)
class _Remote:
    """Records of a server."""

    client: "Client"

    def read(self, handle: Handle) -> _Original:
        record = self.client.resolve(str(handle), private=True)
        if record.by_template:
            raise NotFoundThere(f"Handle {record.handle} does not exist: a template creates its values")
        if record.state == State.RESERVED.label:
            explanation = self.client.explain(ToSet(record.handle, (ValueInput("DESC", ""),)))
            raise RefusedThere(explanation.reason, advice=render_problem(explanation), code=explanation.code or 0)
        return _Original(record.handle, record.seq, load_policy(self.client, record.handle), load_values(record.values))

    def save(self, original: _Original, values: tuple[Value, ...], note: str, *, keep_history: bool) -> RecordChanged:
        return self.client.replace(
            original.handle,
            to_inputs(values),
            keep_history=keep_history,
            keep_unreadable=True,
            if_version=original.seq,
            note=note,
        )


def _edit_until_valid(command: list[str], text: str, save: Callable[[bytes], RecordChanged]) -> RecordChanged:
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
            except (ClientError, CommandFailed, RecordProblem, Refused) as problem:
                if _is_final(problem) or not is_terminal(sys.stdin):
                    outcome = "" if isinstance(problem, UnknownOutcome) else "Nothing was saved. "
                    problem.add_note(f"{outcome}Your text is in {_keep(path)}")
                    raise
                if isinstance(problem, CommandFailed):  # the user does not want it
                    raise
                report_error(problem)
                print_text("Edit again? [Y/n] ", nl=False, err=True)
                if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
                    raise CommandFailed("Nothing was changed") from problem


def _is_final(problem: Exception) -> bool:
    """Whether editing again is in vain: somebody else has changed the record, or the server does not answer."""
    has_changed = isinstance(problem, ClientError) and problem.problem_type == "precondition-failed"
    return has_changed or isinstance(problem, ConditionFailed | Unreachable)


def _keep(path: Path) -> str:
    """Copy a file to one that is not removed, which only the user can read."""
    descriptor, kept = mkstemp(prefix="perseid-", suffix=".json")
    with os.fdopen(descriptor, "wb") as file:
        file.write(path.read_bytes())
    return kept


commands: dict[str, Callable[..., None] | typer.Typer] = {"edit": edit}

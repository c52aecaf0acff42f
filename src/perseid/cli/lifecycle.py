"""`perseid publish, unpublish, tombstone, transfer, redact`: the life of a name after it was made."""

import sys
from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.store.jobs import Job
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.lifecycle import Publish, Redact, Revive, Tombstone, Unpublish
from perseid.registry.commands.transfer import Transfer
from perseid.registry.jobs import transfer as transferring
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.queries.history import get_history
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

from ._output import AsJson, print_fields, print_json, print_message, progress
from ._place import (
    INTERFACE,
    ActingAs,
    Directory,
    KeepHistory,
    Name,
    Note,
    OpenInstallation,
    open_installation,
    parse_handle,
    parse_value_ref,
    print_changed,
)
from ._values import printable

MAX_WAIT: Final = 300
"""Seconds that `redact` waits until erased data has left every file: the answers of some million names are built anew
in less. Where somebody keeps an old state open for longer, waiting on would not help."""


Undo: TypeAlias = Annotated[bool, typer.Option("--undo", help="Take the tombstone away: the thing is not gone.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def publish(
    handle: Name, note: Note = "", directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Let everybody resolve a name that was unpublished.

    Nothing happens if everybody can already. A reserved name has no values to show yet: create it instead.

    For example:
        perseid publish 102.100.272/D7J1G0DQH
    """
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Publish(parse_handle(handle)), note), json)


def unpublish(
    handle: Name,
    *,
    keep_past: KeepHistory = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Hide a name from everybody but its administrators; the record stays as it is.

    Everybody else is told that there is no such name, now and for its past. When it is published again, what everybody
    saw before stays hidden unless it is still so; with --keep-past it can be seen again. Nothing happens if the name is
    hidden already.

    For example:
        perseid unpublish 102.100.272/D7J1G0DQH --note "under embargo until spring"
    """
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Unpublish(parse_handle(handle)), note, keep_past=keep_past), json)


def tombstone(  # noqa: PLR0913 - options
    handle: Name,
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why the thing is gone; everybody reads it.")
    ] = None,
    replaced_by: Annotated[
        str | None, typer.Option("--replaced-by", metavar="HANDLE", help="The name to use instead.")
    ] = None,
    undo: Undo = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Say that a thing is gone, why, and what replaces it.

    The name goes on resolving: to the reason, the date and the replacement. What it held before is in its history, and
    nobody gets the name again. On a tombstone this says it better; the date stays. If the thing was not gone after all,
    `--undo` brings back what the record held, with the administrators that it has now.

    For example:
        perseid tombstone 102.100.272/D7J1G0DQH --reason "The map was withdrawn by its publisher"
        perseid tombstone 102.100.272/D7J1G0DQH --undo --note "found again in the attic"
    """
    operation = tombstone_command(handle, reason, replaced_by, undo=undo)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(operation, note), json)


def tombstone_command(handle: str, reason: str | None, replaced_by: str | None, *, undo: bool) -> Tombstone | Revive:
    """What `tombstone` asks for."""
    if undo:
        if reason is not None or replaced_by is not None:
            raise typer.BadParameter("who takes a tombstone away gives neither a reason nor a replacement; use --note")
        return Revive(parse_handle(handle))
    if reason is None:
        raise typer.BadParameter("say why the thing is gone", param_hint="--reason")
    return Tombstone(parse_handle(handle), reason, None if replaced_by is None else parse_handle(replaced_by))


def transfer(  # noqa: PLR0913 - options
    what: Annotated[
        str,
        typer.Argument(
            metavar="HANDLE|PREFIX/…",
            help="A name; a prefix, for everything under it; or the beginning of names and `*`, as in `12345/maps-*`.",
        ),
    ],
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="INDEX:HANDLE", help="The key or group that owns them from then on.")
    ],
    derived: Annotated[
        bool, typer.Option("--derived", help="With a prefix: those derived from it as well, and all under them.")
    ] = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Give names to another owner, who takes the place of all administrators they have.

    Creator and date of creation stay. Everything under a prefix is transferred as one operation, which the log names;
    it asks first. If it was interrupted, `perseid operations resume` goes on with it, and `perseid undo` takes it back.

    For example:
        perseid transfer 102.100.272/D7J1G0DQH --to 200:0.NA/102.100.272
        perseid transfer 102.100.272 --to 200:0.NA/102.100.272 --yes
    """
    beginning, owner = transferring.parse_range(what), parse_value_ref(to, "--to")
    with open_installation(directory, acting_as) as session:
        if beginning is None:
            if derived:
                raise typer.BadParameter("only from a prefix are others derived", param_hint="--derived")
            print_changed(session.do(Transfer(parse_handle(what), owner), note), json)
            return
        if not yes:
            confirm(f"Everything under {display_name(beginning)} gets {owner} as its one administrator. Go on?")
        unit = transferring.start(
            session.registry, TransferAll(beginning, owner, derived), session.identity, INTERFACE, note
        )
        processed = transferred = 0
        with progress("transferring", unit="names") as update:
            try:
                for piece in transferring.run_steps(session.registry, unit, session.identity):
                    processed, transferred = piece.processed, piece.done
                    update(processed)
            except BaseException:
                print_interrupted(unit, transferred)
                raise
    if json:
        print_json({"operation": unit.id, "lookedAt": processed, "transferred": transferred})
    else:
        print_fields({"operation": unit.id, "transferred": f"{transferred:,} of {processed:,} names"})


def redact(  # noqa: PLR0913 - options
    handle: Name,
    index: Annotated[int, typer.Argument(metavar="INDEX", help="The index that the value had.", min=1)],
    *,
    seq: Annotated[
        int,
        typer.Option("--seq", metavar="N", help="An entry at which the record had it; `history` shows them.", min=1),
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept for ever, for administrators.")],
    yes: Yes = False,
    wait: Annotated[
        int,
        typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until it is gone from every file."),
    ] = MAX_WAIT,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Erase a value from the past, for good. **This cannot be undone.**

    For data that the law forbids you to keep. Every copy in the record's history goes; that something was erased, by
    whom and why, stays. Proofs of the other values hold as before. A value that the record still has is not erased:
    remove or replace it first. Backups made before are yours to find and destroy.

    For example:
        perseid set 102.100.272/D7J1G0DQH "1:DESC=a draft for discussion"
        perseid redact 102.100.272/D7J1G0DQH 1 --seq 25 --reason "personal data, at the person's request" --yes
    """
    name = parse_handle(handle)
    order = Redact(name, index, seq, reason)
    with open_installation(directory, acting_as) as session:
        if not yes:
            _check_allowed(session, order)
            what = _describe_value(session, order)
            confirm(f"{what} is erased from all entries that hold it. This cannot be undone. Erase it?")
        changed = session.do(order)
        gone = _wait_until_erased(session, wait)
        if json:
            print_json({"handle": str(changed.handle), "seq": changed.seq, "erasedEverywhere": gone})
        else:
            typer.echo(str(changed.handle))
    if not gone:
        print_message(f"perseid: after {wait:,} s it is erased from the ledger, but not yet from every other file")
        print_message("Somebody keeps an older state open: end long-running readers, then run: perseid rebuild answers")
        raise typer.Exit(1)


def _wait_until_erased(session: OpenInstallation, seconds: int) -> bool:
    """Wait until what was erased is in no file of the installation any more; whether it is so."""
    with progress("erasing everywhere", unit="s") as update:
        for passed in range(seconds):
            if session.registry.ledger.wait_until_erased(1):
                return True
            update(passed)
    return session.registry.ledger.wait_until_erased(0)


def _check_allowed(session: OpenInstallation, order: Redact) -> None:
    """Refuse now what would be refused later: nobody should be asked in vain."""
    explained = session.registry.explain(order, session.identity, INTERFACE)
    if not explained.allowed:
        code = explained.code or ResponseCode.ERROR
        raise Refused(code, explained.reason, explained.advice, explained.rule)


def _describe_value(session: OpenInstallation, order: Redact) -> str:
    """Which value is meant, in words."""
    text = f"Value {order.index} of {display_name(order.handle)} at entry {order.seq}"
    with session.registry.snapshot() as snapshot:
        versions = get_history(snapshot, session.identity, order.handle, order.seq + 1, 1).versions
    types = [value.type for version in versions for value in version.values if value.index == order.index]
    return f"{text} ({printable(types[0])})" if types else text


def print_interrupted(operation: Job, done: int) -> None:
    """Say that something is left to do of a change of many names, and how to go on with it."""
    state = f"{done:,} of {operation.total:,}" if operation.total else f"{done:,}"
    print_message(f"{operation.id} ended early: {state} are changed. Go on: perseid operations resume {operation.id}")


def confirm(question: str) -> None:
    """Ask, on standard error, and stop unless the answer is yes."""
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline() if sys.stdin else ""
    if answer.strip().lower() not in ("y", "yes"):
        lost = "\n" if not answer else ""  # who ends the input has not ended the line
        print_message(f"{lost}perseid: nothing was changed")
        raise typer.Exit(1)


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "publish": publish,
    "unpublish": unpublish,
    "tombstone": tombstone,
    "transfer": transfer,
    "redact": redact,
}

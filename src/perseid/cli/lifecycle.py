"""`perseid publish, unpublish, tombstone, transfer, redact`: the life of a name after it was made."""

import sys
from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.store.jobs import Operation
from perseid.registry.access.permissions import shown
from perseid.registry.commands.lifecycle import Publish, Redact, Revive, Tombstone, Unpublish
from perseid.registry.commands.transfer import Transfer
from perseid.registry.jobs import transfer as transferring
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.queries.history import history
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

from ._output import AsJson, hint, print_facts, print_json, progress
from ._place import DOOR, ActingAs, Directory, KeepPast, Name, Note, Place, named, opened, reference, show_changed
from ._values import printable

LONGEST_WAIT: Final = 300
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
    with opened(directory, acting_as) as place:
        show_changed(place.do(Publish(named(handle)), note), json)


def unpublish(
    handle: Name,
    *,
    keep_past: KeepPast = False,
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
    with opened(directory, acting_as) as place:
        show_changed(place.do(Unpublish(named(handle)), note, keep_past=keep_past), json)


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
    operation = end_or_undo(handle, reason, replaced_by, undo=undo)
    with opened(directory, acting_as) as place:
        show_changed(place.do(operation, note), json)


def end_or_undo(handle: str, reason: str | None, replaced_by: str | None, *, undo: bool) -> Tombstone | Revive:
    """What `tombstone` asks for."""
    if undo:
        if reason is not None or replaced_by is not None:
            raise typer.BadParameter("who takes a tombstone away gives neither a reason nor a replacement; use --note")
        return Revive(named(handle))
    if reason is None:
        raise typer.BadParameter("say why the thing is gone", param_hint="--reason")
    return Tombstone(named(handle), reason, None if replaced_by is None else named(replaced_by))


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
    beginning, owner = transferring.beginning(what), reference(to, "--to")
    with opened(directory, acting_as) as place:
        if beginning is None:
            if derived:
                raise typer.BadParameter("only from a prefix are others derived", param_hint="--derived")
            show_changed(place.do(Transfer(named(what), owner), note), json)
            return
        if not yes:
            confirm(f"Everything under {shown(beginning)} gets {owner} as its one administrator. Go on?")
        unit = transferring.begin(place.registry, TransferAll(beginning, owner, derived), place.who, DOOR, note)
        looked_at = transferred = 0
        with progress("transferring", unit="names") as tell:
            try:
                for piece in transferring.pieces(place.registry, unit, place.who):
                    looked_at, transferred = piece.looked_at, piece.done
                    tell(looked_at)
            except BaseException:
                ended_early(unit, transferred)
                raise
    if json:
        print_json({"operation": unit.id, "lookedAt": looked_at, "transferred": transferred})
    else:
        print_facts({"operation": unit.id, "transferred": f"{transferred:,} of {looked_at:,} names"})


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
    ] = LONGEST_WAIT,
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
    name = named(handle)
    order = Redact(name, index, seq, reason)
    with opened(directory, acting_as) as place:
        if not yes:
            _check(place, order)
            what = _value_of(place, order)
            confirm(f"{what} is erased from all entries that hold it. This cannot be undone. Erase it?")
        changed = place.do(order)
        gone = _wait(place, wait)
        if json:
            print_json({"handle": str(changed.handle), "seq": changed.seq, "erasedEverywhere": gone})
        else:
            typer.echo(str(changed.handle))
    if not gone:
        hint(f"perseid: after {wait:,} s it is erased from the ledger, but not yet from every other file")
        hint("Somebody keeps an older state open: end long-running readers, then run: perseid rebuild answers")
        raise typer.Exit(1)


def _wait(place: Place, seconds: int) -> bool:
    """Wait until what was erased is in no file of the installation any more; whether it is so."""
    with progress("erasing everywhere", unit="s") as tell:
        for passed in range(seconds):
            if place.registry.ledger.wait_until_erased(1):
                return True
            tell(passed)
    return place.registry.ledger.wait_until_erased(0)


def _check(place: Place, order: Redact) -> None:
    """Refuse now what would be refused later: nobody should be asked in vain."""
    explained = place.registry.explain(order, place.who, DOOR)
    if not explained.allowed:
        code = explained.code or ResponseCode.ERROR
        raise Refused(code, explained.reason, explained.advice, explained.rule)


def _value_of(place: Place, order: Redact) -> str:
    """Which value is meant, in words."""
    text = f"Value {order.index} of {shown(order.handle)} at entry {order.seq}"
    with place.registry.facts() as facts:
        versions = history(facts, place.who, order.handle, order.seq + 1, 1).versions
    types = [value.type for version in versions for value in version.values if value.index == order.index]
    return f"{text} ({printable(types[0])})" if types else text


def ended_early(operation: Operation, done: int) -> None:
    """Say that something is left to do of a change of many names, and how to go on with it."""
    state = f"{done:,} of {operation.total:,}" if operation.total else f"{done:,}"
    hint(f"{operation.id} ended early: {state} are changed. Go on: perseid operations resume {operation.id}")


def confirm(question: str) -> None:
    """Ask, on standard error, and stop unless the answer is yes."""
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline() if sys.stdin else ""
    if answer.strip().lower() not in ("y", "yes"):
        lost = "\n" if not answer else ""  # who ends the input has not ended the line
        hint(f"{lost}perseid: nothing was changed")
        raise typer.Exit(1)


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "publish": publish,
    "unpublish": unpublish,
    "tombstone": tombstone,
    "transfer": transfer,
    "redact": redact,
}

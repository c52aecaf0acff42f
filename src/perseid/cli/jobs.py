"""`perseid rewrite, undo, operations`: changes of many names that are one."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.store.jobs import Operation
from perseid.names.errors import quoted
from perseid.records.json_parsing import JsonObject
from perseid.registry.access.permissions import shown
from perseid.registry.jobs import jobs
from perseid.registry.jobs import rewrite as rewriting
from perseid.registry.jobs import undo as undoing
from perseid.registry.jobs.jobs import Progress, Undos
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import Planned, Rewrite
from perseid.registry.jobs.undo import InTheWay

from ._output import AsJson, hint, print_facts, print_json, progress
from ._place import DOOR, ActingAs, Directory, Note, Place, opened
from ._values import printable, shown_data
from .lifecycle import Yes, confirm, ended_early
from .verify import iso_time, short_time

SHOWN: Final = 10
"""How many changes are shown to people who are asked; `--dry-run` shows all."""

Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="OPERATION", help="Its name, as `perseid operations` shows it; or `last`.")
]


class What(StrEnum):
    """What `operations` can do."""

    LIST = "list"
    SHOW = "show"
    RESUME = "resume"


def rewrite(  # noqa: PLR0913 - options
    *,
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="What they lead to now: a URL, or how it begins and `*`.")
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="What they lead to then, with `*` where that has one.")
    ],
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="PREFIX", help="Only names of this namespace.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show every change, and change nothing.")] = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Move what many names lead to: a host has another name, a path begins otherwise.

    It shows what changes, asks, and is one operation: `perseid operations` shows how far it has come, `perseid
    operations resume` goes on with it after an interruption, and `perseid undo` takes it back. Values of type URL and
    places in 10320/loc are moved. With `--json` there is a line for each name, and the last one is about the operation.

    For example:
        perseid create 2000.01/0123456789ABCDEF0123456789ABCDEF --url http://old.example/maps/1
        perseid rewrite --url "http://old.example/*" --to "https://new.example/*" --dry-run
        perseid rewrite --url "http://old.example/*" --to "https://new.example/*" --yes --json
    """
    order = Rewrite(url, to, prefix)
    with opened(directory, acting_as) as place:
        total = left = 0
        for planned in rewriting.preview(place.registry, order, place.who):
            total += bool(planned.changes)
            left += len(planned.left)
            if json:
                print_json(_planned(planned))
            elif dry_run or total <= SHOWN:
                _print_planned(planned)
        if not json and not dry_run and total > SHOWN:
            hint(f"… and {total - SHOWN:,} more; --dry-run shows all")
        if left:
            hint(f"{left:,} values cannot be moved without touching more of their XML; change them by hand.")
        if dry_run or not total:
            _summary(json, {"operation": None, "names": total, "changed": 0})
            return
        if not yes:
            confirm(f"{total:,} {'name leads' if total == 1 else 'names lead'} elsewhere then. Go on?")
        operation = rewriting.begin(place.registry, order, place.who, DOOR, note, total)
        done = _run(place, operation, rewriting.run(place.registry, operation, place.who))
    _summary(json, {"operation": operation.id, "names": total, "changed": done})


def undo(
    operation: Name,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Undo a change of many names: each becomes what it was, by a new entry.

    Names that were made become tombstones, for somebody may have them already. Nothing is undone where later changes
    would be lost, or where data has been erased; the names are listed then. If it was interrupted, do it again: it goes
    on. An undo can be undone.

    For example:
        perseid mint 102.100.272 --count 2 --url https://example.org/maps
        perseid undo last --yes
    """
    with opened(directory, acting_as) as place:
        meant = jobs.found(place.registry, place.who, operation)
        if not yes:
            confirm(f"{_described(meant)}: {meant.done:,} changes are taken back. Go on?")
        try:
            undoing_it = undoing.begin(place.registry, meant.id, place.who, DOOR, note)
        except InTheWay as problem:
            if json:
                for each in problem.obstacles:
                    print_json({"handle": each.handle, "seq": each.seq, "why": each.why})
            raise
        done = _run(place, undoing_it, undoing.run(place.registry, undoing_it, place.who))
    _summary(json, {"operation": undoing_it.id, "undoes": meant.id, "names": undoing_it.total, "changed": done})


def operations(
    what: Annotated[
        What, typer.Argument(metavar="list|show|resume", help="List all; show one; or go on with one.")
    ] = What.LIST,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="The name of an operation; default the last one.")
    ] = jobs.LAST,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show changes of many names: what they are, how far they have come, whether they were undone; go on with one.

    The one that began last comes first. One that is running has not come to its end: somebody is at it, or it was
    interrupted. Then `resume` does what is left; what is done stays done.

    For example:
        perseid mint 102.100.272 --count 2 --reserve
        perseid operations
        perseid operations show last --json
    """
    with opened(directory, acting_as) as place:
        if what is What.LIST:
            undos = Undos.all(place.registry)
            for each in jobs.listed(place.registry, place.who):
                if json:
                    print_json(_document(each, undos))
                else:
                    typer.echo(f"{each.id}  {short_time(each.begun)}  {_state(each, undos)}  {_described(each)}")
            return
        if what is What.SHOW:
            _show(place, jobs.found(place.registry, place.who, operation), json)
            return
        unit, steps = resume(place.registry, operation, place.who, DOOR)
        done = _run(place, unit, steps)
    _summary(json, {"operation": unit.id, "names": unit.total, "changed": done})


def _run(place: Place, operation: Operation, steps: Iterator[Progress]) -> int:
    """Carry out what is left; how many changes there are in all."""
    done = operation.done
    with progress(operation.kind, operation.total or None, "names") as tell:
        try:
            for step in steps:
                done = step.done
                tell(done)
        except BaseException:
            ended_early(operation, done)
            raise
    return jobs.found(place.registry, place.who, operation.id).done


def _summary(json: bool, facts: dict[str, object]) -> None:
    if json:
        print_json(facts)
        return
    named = {name: f"{fact:,}" if isinstance(fact, int) else fact for name, fact in facts.items()}
    print_facts(named)


def _planned(planned: Planned) -> JsonObject:
    return {
        "handle": planned.handle,
        "changes": [
            {"index": old.index, "type": old.type, "old": shown_data(old), "new": shown_data(new)}
            for old, new in planned.changes
        ],
        "left": [value.index for value in planned.left],
    }


def _print_planned(planned: Planned) -> None:
    typer.echo(printable(planned.handle))
    for old, new in planned.changes:
        typer.echo(f"    - {old.index}  {printable(old.type)}  {shown_data(old)}")
        typer.echo(f"    + {new.index}  {printable(new.type)}  {shown_data(new)}")


def _described(operation: Operation) -> str:
    """What an operation is, in a few words."""
    asked = jobs.asked(operation)
    if operation.kind == rewriting.KIND:
        return f"rewrite {shown(str(asked['url']))} to {shown(str(asked['to']))}"
    words = [str(asked[name]) for name in ("operation", "where", "prefix") if asked.get(name)]
    return f"{operation.kind} {printable(quoted(words[0]) if ' ' in words[0] else words[0])}"


def _state(operation: Operation, undos: Undos) -> str:
    if undos.running(operation.id):
        return "being undone"
    if undos.standing(operation.id):
        return "undone"
    of_all = f" of {operation.total:,}" if operation.total else ""
    return f"done {operation.done:,}" if operation.ended else f"running {operation.done:,}{of_all}"


def _document(operation: Operation, undos: Undos) -> JsonObject:
    """An operation as JSON."""
    return {
        "operation": operation.id,
        "kind": operation.kind,
        "state": _state(operation, undos),
        "asked": jobs.asked(operation),
        "done": operation.done,
        "total": operation.total or None,
        "begun": iso_time(operation.begun),
        "ended": iso_time(operation.ended) if operation.ended else None,
        "actor": operation.actor,
        "note": operation.note,
        "undoneBy": undos.standing(operation.id),
    }


def _show(place: Place, operation: Operation, json: bool) -> None:
    document = _document(operation, Undos.of(place.registry, operation.id))
    if json:
        print_json(document)
        return
    print_facts(
        {
            "operation": operation.id,
            "what": _described(operation),
            "state": document["state"],
            "begun": short_time(operation.begun),
            "ended": short_time(operation.ended) if operation.ended else None,
            "by": printable(operation.actor),
            "note": printable(operation.note) if operation.note else None,
            "undone by": document["undoneBy"],
        }
    )


commands: dict[str, Callable[..., None] | typer.Typer] = {"rewrite": rewrite, "undo": undo, "operations": operations}

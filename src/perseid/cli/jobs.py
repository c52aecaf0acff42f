"""`perseid rewrite, undo, operations`: changes of many names that are one."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.store.jobs import Job
from perseid.names.errors import quote_text
from perseid.records.json_parsing import JsonObject
from perseid.registry.access.permissions import display_name
from perseid.registry.jobs import runner
from perseid.registry.jobs import rewrite as rewriting
from perseid.registry.jobs import undo as undoing
from perseid.registry.jobs.runner import Progress, UndoIndex
from perseid.registry.jobs.resume import resume
from perseid.registry.jobs.rewrite import PlannedRewrite, Rewrite
from perseid.registry.jobs.undo import UndoConflict

from ._output import AsJson, print_fields, print_json, print_message, progress
from ._installation import INTERFACE, ActingAs, Directory, Note, OpenInstallation, open_installation
from ._values import format_data, printable
from .lifecycle import Yes, confirm, print_interrupted
from .verify import iso_time, short_time

MAX_SHOWN: Final = 10
"""How many changes are shown to people who are asked; `--dry-run` shows all."""

Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="OPERATION", help="Its name, as `perseid operations` shows it; or `last`.")
]


class JobAction(StrEnum):
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
    with open_installation(directory, acting_as) as session:
        total = left = 0
        for planned in rewriting.preview(session.registry, order, session.identity):
            total += bool(planned.changes)
            left += len(planned.left)
            if json:
                print_json(_planned_to_json(planned))
            elif dry_run or total <= MAX_SHOWN:
                _print_planned(planned)
        if not json and not dry_run and total > MAX_SHOWN:
            print_message(f"… and {total - MAX_SHOWN:,} more; --dry-run shows all")
        if left:
            print_message(f"{left:,} values cannot be moved without touching more of their XML; change them by hand.")
        if dry_run or not total:
            _print_summary(json, {"operation": None, "names": total, "changed": 0})
            return
        if not yes:
            confirm(f"{total:,} {'name leads' if total == 1 else 'names lead'} elsewhere then. Go on?")
        operation = rewriting.start(session.registry, order, session.identity, INTERFACE, note, total)
        done = _run(session, operation, rewriting.run(session.registry, operation, session.identity))
    _print_summary(json, {"operation": operation.id, "names": total, "changed": done})


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
    with open_installation(directory, acting_as) as session:
        meant = runner.find_job(session.registry, session.identity, operation)
        if not yes:
            confirm(f"{_describe(meant)}: {meant.done:,} changes are taken back. Go on?")
        try:
            undoing_it = undoing.start(session.registry, meant.id, session.identity, INTERFACE, note)
        except UndoConflict as problem:
            if json:
                for each in problem.conflicts:
                    print_json({"handle": each.handle, "seq": each.seq, "why": each.why})
            raise
        done = _run(session, undoing_it, undoing.run(session.registry, undoing_it, session.identity))
    _print_summary(json, {"operation": undoing_it.id, "undoes": meant.id, "names": undoing_it.total, "changed": done})


def operations(
    what: Annotated[
        JobAction, typer.Argument(metavar="list|show|resume", help="List all; show one; or go on with one.")
    ] = JobAction.LIST,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="The name of an operation; default the last one.")
    ] = runner.LAST,
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
    with open_installation(directory, acting_as) as session:
        if what is JobAction.LIST:
            undos = UndoIndex.all(session.registry)
            for each in runner.list_jobs(session.registry, session.identity):
                if json:
                    print_json(_to_json(each, undos))
                else:
                    typer.echo(f"{each.id}  {short_time(each.begun)}  {_format_state(each, undos)}  {_describe(each)}")
            return
        if what is JobAction.SHOW:
            _print_job(session, runner.find_job(session.registry, session.identity, operation), json)
            return
        job, steps = resume(session.registry, operation, session.identity, INTERFACE)
        done = _run(session, job, steps)
    _print_summary(json, {"operation": job.id, "names": job.total, "changed": done})


def _run(session: OpenInstallation, operation: Job, steps: Iterator[Progress]) -> int:
    """Carry out what is left; how many changes there are in all."""
    done = operation.done
    with progress(operation.kind, operation.total or None, "names") as update:
        try:
            for step in steps:
                done = step.done
                update(done)
        except BaseException:
            print_interrupted(operation, done)
            raise
    return runner.find_job(session.registry, session.identity, operation.id).done


def _print_summary(json: bool, fields: dict[str, object]) -> None:
    if json:
        print_json(fields)
        return
    named = {name: f"{value:,}" if isinstance(value, int) else value for name, value in fields.items()}
    print_fields(named)


def _planned_to_json(planned: PlannedRewrite) -> JsonObject:
    return {
        "handle": planned.handle,
        "changes": [
            {"index": old.index, "type": old.type, "old": format_data(old), "new": format_data(new)}
            for old, new in planned.changes
        ],
        "left": [value.index for value in planned.left],
    }


def _print_planned(planned: PlannedRewrite) -> None:
    typer.echo(printable(planned.handle))
    for old, new in planned.changes:
        typer.echo(f"    - {old.index}  {printable(old.type)}  {format_data(old)}")
        typer.echo(f"    + {new.index}  {printable(new.type)}  {format_data(new)}")


def _describe(operation: Job) -> str:
    """What an operation is, in a few words."""
    asked = runner.load_parameters(operation)
    if operation.kind == rewriting.KIND:
        return f"rewrite {display_name(str(asked['url']))} to {display_name(str(asked['to']))}"
    words = [str(asked[name]) for name in ("operation", "where", "prefix") if asked.get(name)]
    return f"{operation.kind} {printable(quote_text(words[0]) if ' ' in words[0] else words[0])}"


def _format_state(operation: Job, undos: UndoIndex) -> str:
    if undos.running(operation.id):
        return "being undone"
    if undos.effective_undo(operation.id):
        return "undone"
    of_all = f" of {operation.total:,}" if operation.total else ""
    return f"done {operation.done:,}" if operation.ended else f"running {operation.done:,}{of_all}"


def _to_json(operation: Job, undos: UndoIndex) -> JsonObject:
    """An operation as JSON."""
    return {
        "operation": operation.id,
        "kind": operation.kind,
        "state": _format_state(operation, undos),
        "asked": runner.load_parameters(operation),
        "done": operation.done,
        "total": operation.total or None,
        "begun": iso_time(operation.begun),
        "ended": iso_time(operation.ended) if operation.ended else None,
        "actor": operation.actor,
        "note": operation.note,
        "undoneBy": undos.effective_undo(operation.id),
    }


def _print_job(session: OpenInstallation, operation: Job, json: bool) -> None:
    document = _to_json(operation, UndoIndex.of(session.registry, operation.id))
    if json:
        print_json(document)
        return
    print_fields(
        {
            "operation": operation.id,
            "what": _describe(operation),
            "state": document["state"],
            "begun": short_time(operation.begun),
            "ended": short_time(operation.ended) if operation.ended else None,
            "by": printable(operation.actor),
            "note": printable(operation.note) if operation.note else None,
            "undone by": document["undoneBy"],
        }
    )


commands: dict[str, Callable[..., None] | typer.Typer] = {"rewrite": rewrite, "undo": undo, "operations": operations}

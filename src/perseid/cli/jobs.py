"""`perseid rewrite`, `perseid undo` and `perseid jobs`: changes to many records."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Final, TypeAlias

import msgspec
import typer

from perseid.client.errors import ClientError
from perseid.client.errors import Refused as RefusedByServer
from perseid.names.errors import quote_text
from perseid.records.json_form import value_from_json
from perseid.registry.access.permissions import display_name
from perseid.registry.jobs import rewrite as rewrite_job
from perseid.registry.jobs import runner
from perseid.registry.jobs import undo as undo_job
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.undo import Conflict, UndoConflict
from perseid.registry.queries.find import Search
from perseid.registry.results import Refused
from perseid.schema.jobs import JobResponse, JobState, PlannedChange, PlannedRecord, UndoPlan
from perseid.schema.problems import Problem
from perseid.schema.queries import Selectors
from perseid.schema.records import WarningInfo

from ._advice import phrase_job, render_advice, render_problem
from ._arguments import (
    ActingAs,
    Directory,
    Note,
    format_data,
    parse_reference,
    print_warnings,
    printable,
)
from ._commands import Group, register_command
from ._output import AsJson, confirm, pluralize, print_fields, print_json, print_message, print_row, print_text
from ._target import LocalTarget, Target, open_target
from .lifecycle import Yes, advise_canceled, run_job
from .queries import (
    ChangedSince,
    HostCondition,
    OwnerCondition,
    PathCondition,
    PrefixCondition,
    TypeCondition,
    UrlCondition,
    ValueCondition,
    WordsCondition,
)
from .verify import shorten_time

MAX_SHOWN: Final = 10
"""Changes shown before the prompt; `--dry-run` shows all."""

app = typer.Typer(
    cls=Group,
    help="List, show, cancel, resume and undo jobs: changes to many records.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

OptionalJob: TypeAlias = Annotated[
    str, typer.Argument(metavar="[JOB]", help="The id, as `perseid jobs list` shows it. Default: `last`.")
]


def rewrite(  # noqa: PLR0913 - options
    *,
    url: UrlCondition = None,
    host: HostCondition = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="URL", help="The new URL, with `*` at its end if --url has one, or for --host."),
    ],
    path: PathCondition = None,
    type_: TypeCondition = None,
    value: ValueCondition = None,
    words: WordsCondition = None,
    prefix: PrefixCondition = None,
    owner: OwnerCondition = None,
    changed_since: ChangedSince = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show every change, but change nothing.")] = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Change the URLs of many records, for example when a host or a path has moved.

    The URLs are selected as in `perseid find`, by `--url` or `--host`, and by all other conditions together.

    Values of type URL and locations in 10320/loc are changed. The command shows the changes, asks for confirmation, and
    runs as a job: `perseid jobs show` shows its progress, `perseid jobs resume` resumes it after an interruption, and
    `perseid undo` undoes it. With `--json`, the job is printed; with `--dry-run` as well, one line for each record. If
    nothing matches, nothing is changed and no job is created: `--json` prints zero records, and with `--dry-run` no
    line.

    For example:
        perseid create 2000.01/0123456789ABCDEF0123456789ABCDEF --url http://old.example/maps/1
        perseid rewrite --host old.example --prefix 2000.01 --to "https://new.example/*" --dry-run
        perseid rewrite --url "http://old.example/*" --to "https://new.example/*" --yes --json
    """
    order = Rewrite.of(Search(url=url, host=host), to)  # refuses what no server needs to see
    by = None if owner is None else str(parse_reference(owner).handle)
    selectors = Selectors(url, host, path, type_, value, prefix, by, changed_since=changed_since, words=words)
    with open_target(directory, acting_as) as target:
        total = _preview_rewrite(target.preview_rewrite(selectors, to), json, dry_run)
        if not total:  # no error, as in `find`: the same command may have been run before
            refused = rewrite_job.nothing_matches(order)
            print_message(f"{refused.reason}. {render_advice(refused.advice)}")
        if dry_run or not total:
            summary: dict[str, object] = {"records": total, "changed": 0}
            if not json:
                _print_summary(summary)
            elif not dry_run:
                print_json(summary)
            return
        if not yes:
            confirm(f"The URLs of {pluralize(total, 'record')} will change")
        ended = run_job(target, target.rewrite(selectors, to, note=note))
    if json:
        print_json(ended)
    else:
        _print_summary({"job": ended.job, "records": total, "changed": ended.done})


def _preview_rewrite(planned: Iterable[PlannedRecord], json: bool, dry_run: bool) -> int:
    """Show what a rewrite will change, and return how many records."""
    total = remaining = 0
    warnings: list[WarningInfo] = []
    for each in planned:
        total += bool(each.changes)
        warnings += [warning for change in each.changes for warning in change.warnings][: MAX_SHOWN - len(warnings)]
        remaining += len(each.remaining)
        if json and dry_run:
            print_json(each)
        elif not json and (dry_run or total <= MAX_SHOWN):
            print_planned(each)
    if not json and not dry_run and total > MAX_SHOWN:
        print_message(f"… and {total - MAX_SHOWN:,} more; --dry-run shows all")
    print_warnings(warnings)
    if remaining:
        values, them = pluralize(remaining, "value"), "it" if remaining == 1 else "them"
        print_message(f"{values} cannot be changed without changing more of the XML: edit {them} by hand.")
    return total


def undo(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="The id, as `perseid jobs list` shows it, or `last`, if your last change is a job."
        ),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and the conflicts, but change nothing.")
    ] = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Undo a job: a new entry for each record restores its earlier version.

    Identifiers that the job created become tombstones, because they may be in use; reserved ones stay reserved, until
    you delete them. Nothing is undone if later changes
    would be lost or data has been redacted; these records are listed. If the undo is interrupted, run the command again
    to resume it. An undo can be undone.

    For example:
        perseid mint 102.100.272 --count 2 --url https://example.org/maps
        perseid undo last --dry-run
        perseid undo last --yes
        perseid jobs undo last --yes
    """
    with open_target(directory, acting_as) as target:
        plan = target.preview_undo(job)
        original = target.job(plan.job)
        depth, root = _find_undone(target, original)
        if dry_run:
            _print_undo_plan(plan, original, _describe_undo(plan, depth, root, is_done=False), json)
            return
        if json:
            for each in plan.conflicts:
                print_json(each)
        if plan.problem is not None:  # perhaps of a later step: those before it would be done
            raise _to_refusal(plan.problem, is_local=isinstance(target, LocalTarget))
        if not yes and not plan.possible:
            found = [Conflict(each.handle, each.seq, each.reason, each.changed_later) for each in plan.conflicts]
            raise UndoConflict(plan.job, found, plan.conflict_count)
        if not yes:
            if not json:
                _print_sample(plan)
            confirm(_describe_undo(plan, depth, root, is_done=False))
        ended = run_job(target, target.undo(plan.job, note=note))
    if json:
        print_json(ended)
    else:
        result = _describe_undo(plan, depth, root, is_done=True)
        counts = {"records": ended.total, "changed": ended.done}
        _print_summary({"job": ended.job, "undoes": original.job, "result": result, **counts})


register_command(app, "undo")(undo)


def _to_refusal(problem: Problem, *, is_local: bool) -> ClientError:
    """Convert the problem of a preview to an error."""
    advice = problem.advice or "" if is_local else render_problem(problem)
    slug = problem.type.rpartition("#")[2]
    return RefusedByServer(problem.detail, advice=advice, code=problem.code, rule=problem.rule or "", problem_type=slug)


def _find_undone(target: Target, job: JobResponse) -> tuple[int, JobResponse]:
    """Follow undos to the job that they undo or redo; return how many there are, too."""
    depth = 0
    with suppress(Refused, ClientError):  # one that the caller cannot see
        while job.kind == undo_job.KIND:
            job = target.job(str(job.parameters["job"]))
            depth += 1
    return depth, job


def _describe_undo(plan: UndoPlan, depth: int, root: JobResponse, *, is_done: bool) -> str:
    """Say what becomes of the records; `depth` is how many undos are between this one and `root`."""
    if depth:
        again = "undone" if depth % 2 == 0 else "done"
        undone = "a redo" if depth % 2 == 0 else "an undo"
        return f"{pluralize(plan.total, 'record')}: undoes {undone}, so {_describe(root)} is {again} again"
    restored, parts = plan.total - plan.tombstones - plan.reserved, []
    if plan.tombstones:
        is_one = plan.tombstones == 1
        become = "became" if is_done else "becomes" if is_one else "become"
        new = pluralize(plan.tombstones, "new record")
        parts.append(f"{new} {become} {'a tombstone' if is_one else 'tombstones'}")
    if plan.reserved:
        parts.append(f"{pluralize(plan.reserved, 'identifier')} {'stays' if plan.reserved == 1 else 'stay'} reserved")
    if restored or not parts:
        be = "will be" if not is_done else "was" if restored == 1 else "were"
        parts.append(f"{pluralize(restored, 'record')} {be} restored")
    return f"{' and '.join(parts)}: undo of {_describe(root)}"


def _print_undo_plan(plan: UndoPlan, original: JobResponse, result: str, json: bool) -> None:
    if json:
        print_json(plan)
        return
    problem = None if plan.problem is None else printable(plan.problem.detail)
    refused = f"the undo is refused: {pluralize(plan.conflict_count, 'conflict')}" if plan.conflict_count else None
    will_be = result if plan.possible and problem is None else refused
    about = {"job": plan.job, "action": _describe(original), "result": will_be, "problem": problem}
    _print_summary({**about, "records": plan.total, "conflicts": plan.conflict_count or None})
    for each in plan.conflicts:
        print_text(f"    {printable(each.handle)}: {each.reason}")
    if plan.possible and problem is None:
        _print_sample(plan)


def _print_sample(plan: UndoPlan) -> None:
    """Print what would change in some records; reserved identifiers do not change."""
    for each in plan.sample:
        state = "" if each.new_state == each.state else f": {each.state} → {each.new_state}"
        print_text(f"{printable(each.handle)}{state}")
        print_changes(each.changes)
    remaining = plan.total - plan.reserved - plan.conflict_count - len(plan.sample)
    if plan.sample and remaining > 0:
        print_message(f"… and {remaining:,} more")


@register_command(app, "list")
def list_(directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """List the jobs, newest first: id, start, state and parameters.

    A job is `running` if the server runs it. An `unfinished` job is not complete: it was interrupted, or a command runs
    it. `perseid jobs resume` does the rest.

    For example:
        perseid mint 102.100.272 --count 2 --reserve
        perseid jobs list
    """
    with open_target(directory, acting_as) as target:
        for job in target.jobs():
            if json:
                print_json(job if isinstance(target, LocalTarget) else phrase_job(job))
            else:
                row = f"{job.job}  {shorten_time(job.started_at)}  {_format_state(job)}  {_describe(job)}"
                print_row(row, len(job.job) + 2)


@register_command(app, "show")
def show(
    job: OptionalJob = runner.LAST, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Show a job: its parameters, progress and state.

    For example:
        perseid mint 102.100.272 --count 2 --reserve
        perseid jobs show last --json
    """
    with open_target(directory, acting_as) as target:
        found = target.job(job)
    if json:
        print_json(found if isinstance(target, LocalTarget) else phrase_job(found))
    else:
        _print_job(found)


@register_command(app, "resume")
def resume(
    job: OptionalJob = runner.LAST, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Resume a job that was interrupted or canceled. Changes that are done stay done.

    For example:
        perseid jobs resume last
    """
    with open_target(directory, acting_as) as target:
        ended = run_job(target, target.resume(job))
    if json:
        print_json(ended)
    else:
        _print_summary({"job": ended.job, "records": ended.total, "changed": ended.done})


@register_command(app, "cancel")
def cancel(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The id, as `perseid jobs list` shows it, or `last`.")],
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Cancel an unfinished job, also while it runs: it stops before its next step.

    Changes that are done stay done. `perseid jobs resume` does the rest; `perseid undo` undoes them.

    For example:
        perseid jobs cancel last
    """
    with open_target(directory, acting_as) as target:
        canceled = target.cancel(job)
    if json:
        print_json(canceled)
        return
    _print_summary({"job": canceled.job, "state": JobState.CANCELED.value, "changed": canceled.done})
    print_message(advise_canceled(canceled))


def _print_summary(fields: dict[str, object]) -> None:
    print_fields({name: f"{value:,}" if isinstance(value, int) else value for name, value in fields.items()})


def print_planned(planned: PlannedRecord) -> None:
    """Print the changes of a record, old and new."""
    print_text(printable(planned.handle))
    print_changes(planned.changes)


def print_changes(changes: Iterable[PlannedChange]) -> None:
    """Print values before and after; an absent one has no line."""
    for change in changes:
        for sign, data in (("-", change.old), ("+", change.new)):
            if data is None:
                continue
            value = value_from_json({"index": change.index, "type": change.type, "data": msgspec.to_builtins(data)})
            print_text(f"    {sign} {change.index}  {printable(change.type)}  {format_data(value)}")


def _describe(job: JobResponse) -> str:
    """Describe a job in a few words."""
    parameters = job.parameters
    if job.kind == rewrite_job.KIND:
        return f"rewrite {display_name(str(parameters['url']))} to {display_name(str(parameters['to']))}"
    names = ("job", "where", "file", "prefix", "source", "import")
    words = [str(parameters[name]) for name in names if parameters.get(name)]
    return f"{job.kind} {printable(quote_text(words[0]) if ' ' in words[0] else words[0])}"


def _format_state(job: JobResponse) -> str:
    state = job.state
    is_partial = state in (JobState.CANCELED, JobState.UNFINISHED, JobState.RUNNING)
    of_total = f" of {job.total:,}" if job.total and is_partial else ""
    count = f" {job.done:,}{of_total}" if is_partial or state is JobState.DONE else ""
    return state.value.replace("_", " ") + count


def _print_job(job: JobResponse) -> None:
    print_fields(
        {
            "job": job.job,
            "action": _describe(job),
            "state": _format_state(job),
            "problem": None if job.problem is None else printable(job.problem.detail),
            "started": shorten_time(job.started_at),
            "ended": shorten_time(job.ended_at) if job.ended_at else None,
            "actor": printable(job.actor),
            "note": printable(job.note) if job.note else None,
            "undone by": job.undone_by,
        }
    )


commands: dict[str, Callable[..., None] | typer.Typer] = {"rewrite": rewrite, "undo": undo, "jobs": app}

"""`perseid rewrite`, `perseid undo` and `perseid jobs`: changes to many records."""

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.store.jobs import Job
from perseid.names.errors import quote_text
from perseid.registry.access.permissions import display_name
from perseid.registry.jobs import rewrite as rewrite_job
from perseid.registry.jobs import runner
from perseid.registry.jobs.rewrite import PlannedRewrite, Rewrite
from perseid.registry.jobs.runner import JobRun, UndoIndex
from perseid.registry.jobs.undo import UndoConflict, UndoPreview
from perseid.registry.responses import to_conflict, to_planned_record, to_undo_plan
from perseid.schema.jobs import JobResponse, JobState
from perseid.schema.queries import Selectors

from ._advice import render_advice
from ._arguments import (
    INTERFACE,
    ActingAs,
    Directory,
    Note,
    OpenInstallation,
    format_data,
    open_installation,
    printable,
)
from ._commands import Group, register_command
from ._output import AsJson, confirm, print_fields, print_json, print_message
from .lifecycle import Yes, print_job, run_job, to_job_response
from .queries import (
    ChangedSince,
    HostCondition,
    OwnerCondition,
    PathCondition,
    PrefixCondition,
    TypeCondition,
    UrlCondition,
    ValueCondition,
    select,
)
from .verify import short_time

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
    selectors = Selectors(url, host, path, type_, value, prefix, owner, changed_since=changed_since)
    with open_installation(directory, acting_as) as session:
        order = Rewrite.of(select(session, selectors), to)
        total = _preview_rewrite(session, order, json, dry_run)
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
            confirm(f"The URLs of {total:,} {'record' if total == 1 else 'records'} will change")
        job = rewrite_job.start(session.registry, order, session.identity, INTERFACE, note, total)
        done = run_job(JobRun(session.registry, job, session.identity))
        if json:
            print_job(session, job.id)
        else:
            _print_summary({"job": job.id, "records": total, "changed": done})


def _preview_rewrite(session: OpenInstallation, order: Rewrite, json: bool, dry_run: bool) -> int:
    """Show what a rewrite will change, and return how many records."""
    total = remaining = 0
    for planned in rewrite_job.preview(session.registry, order, session.identity):
        total += bool(planned.changes)
        remaining += len(planned.left)
        if json and dry_run:
            print_json(to_planned_record(planned))
        elif not json and (dry_run or total <= MAX_SHOWN):
            _print_planned(planned)
    if not json and not dry_run and total > MAX_SHOWN:
        print_message(f"… and {total - MAX_SHOWN:,} more; --dry-run shows all")
    if remaining:
        print_message(f"{remaining:,} values cannot be changed without changing more of their XML: edit them by hand.")
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
        bool, typer.Option("--dry-run", help="Show the extent and the conflicts, but change nothing.")
    ] = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Undo a job: a new entry for each record restores its earlier version.

    Identifiers that the job created become tombstones, because they may be in use. Nothing is undone if later changes
    would be lost or data has been redacted; these records are listed. If the undo is interrupted, run the command again
    to resume it. An undo can be undone.

    For example:
        perseid mint 102.100.272 --count 2 --url https://example.org/maps
        perseid undo last --dry-run
        perseid undo last --yes
        perseid jobs undo last --yes
    """
    with open_installation(directory, acting_as) as session:
        preview = UndoPreview(session.registry, job, session.identity)
        while preview.advance():
            pass
        original = preview.original
        if dry_run:
            _print_undo_plan(preview, json)
            return
        if not yes and not preview.conflict_count:
            confirm(f"{preview.total:,} records will be restored: undo of {_describe(original)}")
        try:
            inverse = preview.start(INTERFACE, note)
        except UndoConflict as problem:
            if json:
                for each in problem.conflicts:
                    print_json(to_conflict(each))
            raise
        done = run_job(JobRun(session.registry, inverse, session.identity))
        if json:
            print_job(session, inverse.id)
        else:
            _print_summary({"job": inverse.id, "undoes": original.id, "records": inverse.total, "changed": done})


register_command(app, "undo")(undo)


def _print_undo_plan(preview: UndoPreview, json: bool) -> None:
    if json:
        print_json(to_undo_plan(preview))
        return
    counts = {"records": preview.total, "conflicts": preview.conflict_count}
    _print_summary({"job": preview.original.id, "action": _describe(preview.original), **counts, "changed": 0})
    for each in preview.conflicts:
        typer.echo(f"    {printable(each.handle)}: {each.why}")


@register_command(app, "list")
def list_(directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """List the jobs, newest first: id, start, state and parameters.

    A job is `running` if the server runs it. An `unfinished` job is not complete: it was interrupted, or a command runs
    it. `perseid jobs resume` does the rest.

    For example:
        perseid mint 102.100.272 --count 2 --reserve
        perseid jobs list
    """
    with open_installation(directory, acting_as) as session:
        undos = UndoIndex.all(session.registry)
        for job in runner.list_jobs(session.registry, session.identity):
            response = to_job_response(job, undos, session.find_runtime())
            if json:
                print_json(response)
            else:
                typer.echo(f"{job.id}  {short_time(job.started_at)}  {_format_state(response)}  {_describe(job)}")


@register_command(app, "show")
def show(
    job: OptionalJob = runner.LAST, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Show a job: its parameters, progress and state.

    For example:
        perseid mint 102.100.272 --count 2 --reserve
        perseid jobs show last --json
    """
    with open_installation(directory, acting_as) as session:
        if json:
            print_job(session, job)
        else:
            _print_job(session, runner.find_job(session.registry, session.identity, job))


@register_command(app, "resume")
def resume(
    job: OptionalJob = runner.LAST, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Resume a job that was interrupted or canceled. Changes that are done stay done.

    For example:
        perseid jobs resume last
    """
    with open_installation(directory, acting_as) as session:
        run = runner.resume(session.registry, job, session.identity, INTERFACE)
        done = run_job(run)
        if json:
            print_job(session, run.job.id)
        else:
            _print_summary({"job": run.job.id, "records": run.job.total or None, "changed": done})


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
    with open_installation(directory, acting_as) as session:
        canceled = runner.cancel(session.registry, job, session.identity)
        if json:
            print_job(session, canceled.id)
            return
        _print_summary({"job": canceled.id, "state": JobState.CANCELED.value, "changed": canceled.done})
        resume = f"To do the rest: perseid jobs resume {canceled.id}. " if runner.can_resume(canceled) else ""
        print_message(f"{resume}To undo what is done: perseid undo {canceled.id}")


def _print_summary(fields: dict[str, object]) -> None:
    print_fields({name: f"{value:,}" if isinstance(value, int) else value for name, value in fields.items()})


def _print_planned(planned: PlannedRewrite) -> None:
    typer.echo(printable(planned.handle))
    for old, new in planned.changes:
        typer.echo(f"    - {old.index}  {printable(old.type)}  {format_data(old)}")
        typer.echo(f"    + {new.index}  {printable(new.type)}  {format_data(new)}")


def _describe(job: Job) -> str:
    """Describe a job in a few words."""
    parameters = runner.load_parameters(job)
    if job.kind == rewrite_job.KIND:
        return f"rewrite {display_name(str(parameters['url']))} to {display_name(str(parameters['to']))}"
    words = [str(parameters[name]) for name in ("job", "where", "prefix") if parameters.get(name)]
    return f"{runner.display_kind(job)} {printable(quote_text(words[0]) if ' ' in words[0] else words[0])}"


def _format_state(job: JobResponse) -> str:
    state = job.state
    is_partial = state in (JobState.CANCELED, JobState.UNFINISHED, JobState.RUNNING)
    of_total = f" of {job.total:,}" if job.total and is_partial else ""
    count = f" {job.done:,}{of_total}" if is_partial or state is JobState.DONE else ""
    return state.value.replace("_", " ") + count


def _print_job(session: OpenInstallation, job: Job) -> None:
    response = to_job_response(job, UndoIndex.of(session.registry, job.id), session.find_runtime())
    print_fields(
        {
            "job": job.id,
            "action": _describe(job),
            "state": _format_state(response),
            "problem": None if response.problem is None else printable(response.problem.detail),
            "started": short_time(job.started_at),
            "ended": short_time(job.ended_at) if job.ended_at else None,
            "actor": printable(job.actor),
            "note": printable(job.note) if job.note else None,
            "undone by": response.undone_by,
        }
    )


commands: dict[str, Callable[..., None] | typer.Typer] = {"rewrite": rewrite, "undo": undo, "jobs": app}

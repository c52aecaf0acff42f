"""`perseid publish`, `unpublish`, `tombstone`, `transfer`, `redact` and `link`: the life of an identifier."""

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.errors import JobEnded
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.lifecycle import Redact, Revive, Tombstone
from perseid.registry.context import Context
from perseid.registry.jobs import transfer as transfer_job
from perseid.registry.jobs.runner import can_resume
from perseid.registry.queries.history import get_history
from perseid.registry.results import Refused
from perseid.schema.jobs import JobResponse, JobState
from perseid.schema.records import LinkedHandles

from ._advice import render_advice
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
    parse_value_ref,
    print_changed,
    printable,
)
from ._commands import Group, register_command
from ._output import AsJson, CommandFailed, confirm, pluralize, print_fields, print_json, print_text, progress
from ._target import Target, open_target

MAX_WAIT: Final = 300
"""Seconds that `redact` waits until the data is gone from every file. The answers of a million records are rebuilt in
less; if a reader keeps an old snapshot open for longer, waiting does not help."""

Undo: TypeAlias = Annotated[bool, typer.Option("--undo", help="Remove the tombstone and restore the record.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def publish(
    handle: HandleArgument,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Publish an identifier that was unpublished.

    If it is public already, nothing changes. A reserved identifier has no record: use `perseid create` instead. A
    tombstone stays one: `perseid tombstone --undo` restores its record.

    For example:
        perseid publish 102.100.272/D7J1G0DQH
    """
    name = str(parse_handle(handle))
    with open_target(directory, acting_as) as target:
        print_changed(target.publish(name, note=note), json)


def unpublish(
    handle: HandleArgument,
    *,
    keep_history: KeepHistory = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Hide an identifier from all but its administrators; the record is unchanged.

    For everyone else the identifier and its history do not exist. When it is published again, earlier versions stay
    hidden, except for values that are still the same; with --keep-history they become visible again. If it is
    unpublished already, nothing changes.

    For example:
        perseid unpublish 102.100.272/D7J1G0DQH --note "under embargo until spring"
    """
    name = str(parse_handle(handle))
    with open_target(directory, acting_as) as target:
        print_changed(target.unpublish(name, keep_history=keep_history, note=note), json)


def tombstone(  # noqa: PLR0913 - options
    handle: HandleArgument,
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why the resource is gone; public.")
    ] = None,
    replaced_by: Annotated[
        str | None,
        typer.Option("--replaced-by", metavar="HANDLE", help='The identifier to use instead; "" for none.'),
    ] = None,
    undo: Undo = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Replace a record with a tombstone: the reason and a replacement.

    The handle still resolves, to the reason, the date and the replacement. The earlier record stays in the history, and
    the handle is never reused. On an existing tombstone, the command changes the reason but not the date; the
    replacement stays unless `--replaced-by` names another, or none with `--replaced-by ""`. `--undo` restores the
    record, with its current administrators.

    For example:
        perseid tombstone 102.100.272/D7J1G0DQH --reason "The map was withdrawn by its publisher"
        perseid tombstone 102.100.272/D7J1G0DQH --undo --note "found again in the attic"
    """
    command = tombstone_command(handle, reason, replaced_by, undo=undo)
    with open_target(directory, acting_as) as target:
        if isinstance(command, Revive):
            changed = target.revive(str(command.handle), note=note)
        else:
            replacement = None if command.replacement is None else str(command.replacement)
            changed = target.tombstone(str(command.handle), command.reason, replaced_by=replacement, note=note)
        print_changed(changed, json)


def tombstone_command(handle: str, reason: str | None, replaced_by: str | None, *, undo: bool) -> Tombstone | Revive:
    """Return the command of `tombstone`."""
    if undo:
        if reason is not None or replaced_by is not None:
            raise typer.BadParameter("--undo accepts neither --reason nor --replaced-by; use --note")
        return Revive(parse_handle(handle))
    if reason is None:
        raise typer.BadParameter("Say with --reason TEXT why the resource is gone")
    return Tombstone(parse_handle(handle), reason, parse_handle(replaced_by) if replaced_by else replaced_by)


def transfer(  # noqa: PLR0913 - options
    where: Annotated[
        str,
        typer.Argument(
            metavar="HANDLE|PREFIX|PATTERN",
            help="A handle; a prefix, for all its handles; or the beginning of handles and `*`, as in `12345/maps-*`.",
        ),
    ],
    *,
    to: Annotated[str, typer.Option("--to", metavar="INDEX:HANDLE", help="The new owner: a key or a group.")],
    derived: Annotated[
        bool, typer.Option("--derived", help="With a prefix: include its derived prefixes and their handles.")
    ] = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Transfer identifiers to another owner, who replaces all their administrators.

    Creator and creation date are unchanged. A prefix or pattern asks for confirmation and runs as a job: `perseid jobs
    resume` resumes it after an interruption, and `perseid undo` undoes it.

    For example:
        perseid transfer 102.100.272/D7J1G0DQH --to 200:0.NA/102.100.272
        perseid transfer 102.100.272 --to 200:0.NA/102.100.272 --yes
    """
    key_range, owner = transfer_job.parse_range(where), parse_value_ref(to, "--to")
    if key_range is None:
        if derived:
            raise typer.BadParameter("requires a prefix, not a handle", param_hint="--derived")
        name = str(parse_handle(where))
        with open_target(directory, acting_as) as target:
            print_changed(target.transfer(name, str(owner), note=note), json)
        return
    with open_target(directory, acting_as) as target:
        if not yes:
            next(iter(target.preview_transfer(where, str(owner), derived=derived)), None)  # refused before the prompt
            confirm(f"All handles under {display_name(key_range)} will be transferred to {owner}")
        ended = run_job(target, target.transfer_all(where, str(owner), derived=derived, note=note))
    if json:
        print_json(ended)
    else:
        print_fields({"job": ended.job, "changed": f"{ended.done:,}"})


def redact(  # noqa: PLR0913 - options
    handle: HandleArgument,
    index: Annotated[int, typer.Argument(metavar="INDEX", help="The index of the value.", min=1)],
    *,
    seq: Annotated[
        int,
        typer.Option("--seq", metavar="N", help="An entry that contains the value; see `perseid history`.", min=1),
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason; stored permanently, visible to administrators.")
    ],
    yes: Yes = False,
    wait: Annotated[
        int,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait until the data is gone from every file."
        ),
    ] = MAX_WAIT,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Permanently erase a value from the history. **This cannot be undone.**

    For data that you are not allowed to keep. Every copy in the record's history is erased; an entry records who
    redacted it and why. Proofs of other values stay valid. A value that the record still has is refused: remove or
    replace it first. Earlier backups still contain the data: delete them yourself.

    For example:
        perseid set 102.100.272/D7J1G0DQH "1:DESC=a draft for discussion"
        perseid redact 102.100.272/D7J1G0DQH 1 --seq 25 --reason "personal data, at the person's request" --yes
    """
    name = parse_handle(handle)
    order = Redact(name, index, seq, reason)
    with open_installation(directory, acting_as) as session:
        if not yes:
            _check_allowed(session, order.decide)
            value = _describe_value(session, order)
            confirm(f"{value} will be permanently erased from all entries. This cannot be undone")
        changed = session.do(order)
        erased = _wait_until_erased(session, wait)
        if json:
            print_json({"handle": str(changed.handle), "seq": changed.seq, "erased_everywhere": erased})
        else:
            print_text(str(changed.handle))
    if not erased:
        raise CommandFailed(
            f"After {wait:,} s the value is erased from the ledger, but not from all other files",
            "A process reads an older snapshot: stop long-running readers, then run: perseid rebuild answers",
        )


def _wait_until_erased(session: OpenInstallation, seconds: int) -> bool:
    """Wait until the data is gone from every file of the installation; return whether it is."""
    with progress("erasing everywhere", unit="s") as update:
        for elapsed in range(seconds):
            if session.registry.ledger.wait_until_erased(1):
                return True
            update(elapsed)
    return session.registry.ledger.wait_until_erased(0)


def _check_allowed(session: OpenInstallation, decide: Callable[[Context], object]) -> None:
    """Refuse before the prompt what would be refused after it."""
    with session.registry.snapshot() as snapshot:
        decide(Context(snapshot, session.identity, INTERFACE, session.registry.now()))


def _describe_value(session: OpenInstallation, order: Redact) -> str:
    text = f"Value {order.index} of {display_name(order.handle)} at entry {order.seq}"
    with session.registry.snapshot() as snapshot:
        versions = get_history(snapshot, session.identity, order.handle, order.seq + 1, 1).versions
    types = [value.type for version in versions for value in version.values if value.index == order.index]
    return f"{text} ({printable(types[0])})" if types else text


class JobCanceled(CommandFailed):
    """Somebody canceled a job while the command waited for it."""


def advise_canceled(job: JobResponse) -> str:
    """Say what can be done about a canceled job."""
    resume = f"To do the rest: perseid jobs resume {job.job}. " if can_resume(job.kind) else ""
    return f"{resume}To undo what is done: perseid undo {job.job}"


def _wait(target: Target, job: str, report: Callable[[JobResponse], None]) -> JobResponse:
    """Wait until a job has ended. Raises `JobCanceled`."""
    try:
        ended = target.wait(job, report)
    except JobEnded:
        ended = target.job(job)
        if ended.state is not JobState.CANCELED:
            raise
    if ended.state is JobState.CANCELED:
        of_total = f" of {ended.total:,}" if ended.total else ""
        raise JobCanceled(f"Job {job} was canceled after {ended.done:,}{of_total} changes", advise_canceled(ended))
    return ended


def run_job(target: Target, job: JobResponse) -> JobResponse:
    """Wait until a job has ended, and return it. An error gets a note on what can be done."""
    done, stopped = job.done, False
    with progress(job.kind, job.total, "records") as update:

        def report(current: JobResponse) -> None:
            nonlocal done
            done = current.done
            update(done)

        try:
            ended = _wait(target, job.job, report)
            if ended.problem is not None and ended.state is JobState.UNFINISHED:
                stopped = True
                from perseid.client.api_exchange import to_error  # noqa: PLC0415 - only a server has such a job

                raise to_error(ended.problem)
        except JobCanceled:
            raise
        except BaseException as error:
            counted = pluralize(job.total or done, "change")
            after = f"after {done:,} of {counted}" if job.total else f"after {counted}"
            note = f"Job {job.job} was interrupted {after}. To resume it: perseid jobs resume {job.job}"
            if stopped or isinstance(error, Refused):
                note = f"Job {job.job} stopped {after}. {render_advice(AdviceKind.FIX_AND_RESUME_JOB(job=job.job))}"
            error.add_note(note)
            raise
    return ended


link_app = typer.Typer(
    cls=Group,
    help="Link two identifiers to each other, by values of the types that the policy names.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(link_app, "version")
def version(
    work: Annotated[str, typer.Argument(metavar="WORK", help="The identifier of the work: its latest version.")],
    expression: Annotated[str, typer.Argument(metavar="VERSION", help="The identifier of one fixed version.")],
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Link a work with one fixed version of it.

    The identifier of a work always resolves to the latest version; each version that is cited has its own identifier.
    A work can have many versions, a version has one work. To unlink them, remove the values.

    For example:
        perseid link version 102.100.272/Y35XYS0QH 102.100.272/2RDV0T0QH
    """
    names = str(parse_handle(work)), str(parse_handle(expression))
    with open_target(directory, acting_as) as target:
        _print_linked(target.link_version(*names, note=note), json)


@register_command(link_app, "metadata")
def metadata(
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="The identifier of the resource.")],
    description: Annotated[str, typer.Argument(metavar="METADATA", help="The identifier of its metadata record.")],
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Link a resource with its metadata record, which has its own identifier.

    Each can have one link of this kind. `perseid mint --with-metadata` mints and links both.

    For example:
        perseid link metadata 102.100.272/Y35XYS0QH 102.100.272/8RBZF0DQH
    """
    names = str(parse_handle(resource)), str(parse_handle(description))
    with open_target(directory, acting_as) as target:
        _print_linked(target.link_metadata(*names, note=note), json)


def _print_linked(linked: LinkedHandles, json: bool) -> None:
    if json:
        print_json(linked)
    else:
        print_text("\n".join(linked.handles))


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "publish": publish,
    "unpublish": unpublish,
    "tombstone": tombstone,
    "transfer": transfer,
    "redact": redact,
    "link": link_app,
}

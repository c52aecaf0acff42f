"""`perseid history`, `diff`, `log` and `prove`, and the implementation of `verify --all`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
import typer
from msgspec.structs import replace as replace_fields

from perseid.ledger.errors import CorruptData, StorageFull
from perseid.ledger.log.writer import ChangeWatcher
from perseid.ledger.verify import verify
from perseid.proof import document as proof_document
from perseid.proof.verifier import InvalidProof, LogKey
from perseid.records.encoding import to_base64
from perseid.records.record import Value
from perseid.registry.access.permissions import Differences
from perseid.schema.common import MAX_PAGE, EntryAction, Paging
from perseid.schema.queries import EntryResponse, HistoryPage, LogQuery, ProofDocument, ValueChanges, VersionResponse

from ._arguments import (
    ActingAs,
    After,
    Directory,
    HandleArgument,
    Limit,
    format_data,
    load_values,
    open_installation,
    parse_cursor,
    parse_reference,
    print_more,
    printable,
    resolve_directory,
)
from ._common_options import REMOTE
from ._output import AsJson, print_fields, print_json, print_message, print_row, print_text, progress
from ._target import LocalTarget, Target, open_target
from .keys import finish_rotation
from .queries import PrefixCondition
from .verify import shorten_time

MAX_SHOWN: Final = 20
"""Redacted values that `verify --all` lists without --json."""

SEQ_WIDTH: Final = 7
CHANGE_INDENT: Final = 6
"""Of the continuation of a long line about a version."""
"""Digits of an entry number, so that columns are aligned up to ten million entries."""

MAX_WAITS: Final = 20
"""Waits, one second in all, after which `log --follow` reads anyway: a database may lose a notification."""

POLL_SECONDS: Final = 1.0
"""Seconds between two requests of `log --follow` to a server, as many as the waits on an installation take."""

At: TypeAlias = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME|SEQ", help="At this time, or at this entry of the ledger. Default: now."),
]


def history(
    handle: HandleArgument,
    limit: Limit = None,
    after: After = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show the versions of a record, newest first: what changed, when, by whom and why.

    With `--as`, the output is limited to what that identity can see. Without permissions, these are values that were
    public and have not been hidden since.

    For example:
        perseid history 102.100.272/D7J1G0DQH
        perseid history 102.100.272/D7J1G0DQH --limit 1 --json
    """
    with open_target(directory, acting_as) as target:
        versions: list[VersionResponse] = []
        for page in _pages(target, str(parse_reference(handle).handle), after, limit):
            versions += page.versions
            if not json:
                for version in page.versions:
                    _print_version(version)
    if json:
        print_json(HistoryPage(page.handle, versions, page.complete, page.next))
    elif not page.complete:
        print_message("Earlier versions are hidden: by the policy, or because the history is too long.")
    elif page.next is not None:
        print_more(page.next)


def diff(
    handle: HandleArgument,
    earlier: Annotated[str, typer.Argument(metavar="FROM", help="The earlier time or entry of the ledger.")],
    later: Annotated[
        str | None, typer.Argument(metavar="TO", help="The later time or entry of the ledger. Default: now.")
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show the differences of a record between two times: added (+) and removed (-) values; a modified one is both.

    Before the handle existed, the record has no values. With `--as`, the output is limited to what that identity can
    see.

    For example:
        perseid diff 102.100.272/D7J1G0DQH 1
        perseid diff 102.100.272/D7J1G0DQH 2026-01-01 --json
    """
    with open_target(directory, acting_as) as target:
        result = target.differences(str(parse_reference(handle).handle), earlier, later)
    if json:
        print_json(result)
        return
    lines = _format_changes(result.changed)
    for line in lines:
        print_row(line, CHANGE_INDENT)
    before, after = result.earlier, result.later
    if before.state != after.state:
        print_message(f"The state changed from {before.state} to {after.state}.")
    elif not lines:
        print_message(f"Entries {before.as_of} and {after.as_of} have the same values.")


def log(  # noqa: PLR0913 - options
    *,
    since: Annotated[
        str, typer.Option("--since", metavar="SEQ|TIME", help="Only entries after this entry or time.")
    ] = "0",
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="SEQ|TIME", help="Only entries up to this entry, time or end of a day."),
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option("--actor", metavar="IDENTITY", help="Only changes by INDEX:HANDLE, a handle, local:… or token:…"),
    ] = None,
    action: Annotated[
        EntryAction | None, typer.Option("--action", metavar="ACTION", help=f"One of: {', '.join(EntryAction)}.")
    ] = None,
    prefix: PrefixCondition = None,
    job: Annotated[
        str, typer.Option("--job", metavar="JOB", help="Only entries of this job, as `perseid jobs list` shows it.")
    ] = "",
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new entries until you press Ctrl-C.")
    ] = False,
    limit: Limit = None,
    after: After = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show the entries of the ledger, oldest first: number, time, action, handle, actor and note.

    Entries must match all conditions. `--actor` takes an identity with one key, as in `300:12345/ann`, or its handle,
    for all its keys; both include its tokens. With `--as`, the output is limited to namespaces that the identity can
    list. With `--json`, each line is one document.

    For example:
        perseid log --since 10
        perseid log --since 2026-01-01T00:00:00Z --json
        perseid log --action create --prefix 102.100.272 --since 2026-01-01 --newest
    """
    if follow and (newest or until is not None or limit is not None):
        raise typer.BadParameter("cannot be used with --newest, --until or --limit", param_hint="--follow")
    query = LogQuery(MAX_PAGE, after or "", since, until, newest, job, actor, action, prefix)
    with open_target(directory, acting_as) as target:
        try:
            last = _print_log(target, query, limit, json)
            if follow:
                _follow(target, replace_fields(query, cursor="", since=last), json)
        except KeyboardInterrupt:  # ends --follow
            if not follow:
                raise


def prove(
    handle: HandleArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A new file for the proof. Default: standard output."),
    ] = None,
    at: At = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Include private values, the actor and the note.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Write a proof of a record, now or at a time, that anyone can verify without this server.

    A proof contains public data only, unless you use `--everything`. Verify it with `perseid verify`, or with a program
    of your own: docs/reference/proof-format.md. If no signed checkpoint covers the entry yet, one is signed.

    For example:
        perseid prove 102.100.272/D7J1G0DQH -o map.proof.json
    """
    if output is not None and output.exists():
        raise typer.BadParameter(f"{output} already exists; use another file name", param_hint="--output")
    if REMOTE.get() is None:
        finish_rotation(resolve_directory(directory).resolve())
    with open_target(directory, acting_as) as target:
        text = target.prove(str(parse_reference(handle).handle), at=at, everything=everything).decode()
        key = _find_key(text, [LogKey.parse(each.key) for each in target.ledger_keys().keys])
    proof = msgspec.json.decode(text, type=ProofDocument)
    if output is None:
        if json:
            print_json(msgspec.json.decode(text))
        else:
            print_text(text, nl=False)
        return
    with output.open("x", encoding="utf-8") as file:
        file.write(text)
    if json:
        print_json({"handle": proof.handle, "seq": proof.seq, "file": str(output), "key": key})
    else:
        command = f"perseid verify {output} --key '{key}'"
        print_fields({"proved": proof.handle, "entry": proof.seq, "file": output, "verify with": command})


def verify_all(directory: Path | None, json: bool) -> None:
    """Verify the whole ledger and the view `answers`."""
    with open_installation(directory, maintains=True) as session:
        ledger = session.registry.ledger
        with ledger.open_reader() as reader:
            size = reader.size
        with progress("checking entries", size) as update:
            report = verify(ledger.log, update)
        with progress("comparing answers", unit="records"):
            ledger.answers.catch_up(ledger.open_reader)
            try:
                difference = ledger.answers.differences(ledger.open_reader)
            except StorageFull as problem:
                problem.add_note(f"The {report.entries:,} entries of the ledger are valid")
                raise
        if difference is not None:
            raise CorruptData(
                f"the {report.entries:,} entries are valid, but the view answers differs at {printable(difference)}; "
                "rebuild it with: perseid rebuild answers"
            )
    if json:
        root = to_base64(report.root)
        values = list(report.named)
        print_json({"entries": report.entries, "root": root, "redacted": report.redacted, "redacted_values": values})
        return
    print_fields({"valid": f"{report.entries:,} entries, and the views", "root": to_base64(report.root)})
    for name in report.named[:MAX_SHOWN]:
        print_text(f"redacted  {printable(name)}")
    if report.redacted > MAX_SHOWN:
        print_text(f"redacted  {report.redacted - MAX_SHOWN:,} more; --json lists them")


# History


def _pages(target: Target, handle: str, cursor: str | None, limit: int | None) -> Iterator[HistoryPage]:
    """Yield the pages of a record's history after a cursor, up to `limit` versions."""
    remaining = limit
    while True:
        size = MAX_PAGE if remaining is None else min(remaining, MAX_PAGE)
        if isinstance(target, LocalTarget):
            page = target.read_history(handle, parse_cursor(cursor), size)
        else:
            request = type(target).history.request(target, handle)
            page = target.send(replace(request, query=Paging(size, cursor or "")))
        yield page
        cursor = page.next
        remaining = None if remaining is None else remaining - len(page.versions)
        if cursor is None or remaining == 0:
            return


def _print_version(version: VersionResponse) -> None:
    print_row(f"{version.seq}  {shorten_time(version.at)}  {version.action}{_format_origin(version)}", CHANGE_INDENT)
    changed = version.changed
    if changed is None:
        lines = [_format_value("=", value) for value in load_values(version.values)]
    else:
        lines = _format_changes(changed)
    for line in lines:
        print_row(line, CHANGE_INDENT)
    if version.redacted:
        print_text(f"    permanently redacted: {version.redacted}")


def _format_changes(changed: ValueChanges) -> list[str]:
    old, new = (load_values([getattr(each, side) for each in changed.modified]) for side in ("old", "new"))
    modified = tuple(zip(old, new, strict=True))
    return format_differences(Differences(load_values(changed.added), load_values(changed.removed), modified, ()))


def format_differences(changed: Differences) -> list[str]:
    """Format added and removed values, by index; a modified value is both."""
    lines = [(value.index, _format_value("+", value)) for value in changed.added]
    lines += [(value.index, _format_value("-", value)) for value in changed.removed]
    for old, new in changed.modified:
        before, after = _format_value("-", old), _format_value("+", new)
        if before[_SIGN_WIDTH:] == after[_SIGN_WIDTH:]:  # the difference is elsewhere
            before, after = before + _format_details(old), after + _format_details(new)
        lines += [(new.index, before), (new.index, after)]
    # The sort is stable: the old value of a modification stays before the new one.
    return [line for _, line in sorted(lines, key=lambda line: line[0])]


_SIGN_WIDTH: Final = len("    +")


def _format_value(sign: str, value: Value) -> str:
    private = "" if value.is_public else "!private"
    return f"    {sign} {value.index}  {printable(value.type)}{private}  {format_data(value)}"


def _format_details(value: Value) -> str:
    references = "".join(f", reference {reference}" for reference in value.references)
    return printable(f"  (TTL {value.ttl}, permissions {value.permissions:04b}{references})")


def _format_origin(item: VersionResponse | EntryResponse) -> str:
    actor = "" if not item.actor else f"  by {printable(item.actor)} ({printable(item.interface or '')})"
    return actor + ("" if not item.note else f": {printable(item.note)}")


# The log


def _print_log(target: Target, query: LogQuery, limit: int | None, json: bool) -> str:
    """Print the entries of a query, up to `limit`, and return the last one."""
    remaining = limit
    if isinstance(target, LocalTarget):
        parse_cursor(query.cursor or None)
    while True:
        query = replace_fields(query, limit=MAX_PAGE if remaining is None else min(remaining, MAX_PAGE))
        if isinstance(target, LocalTarget):
            page = target.read_log(query)
        else:
            page = target.send(replace(type(target).log.request(target), query=query))
        for logged in page.entries:
            _print_log_entry(logged, json)
        if page.next is None:
            return str(page.last)
        remaining = None if remaining is None else remaining - len(page.entries)
        if remaining == 0:
            print_more(page.next)
            return ""
        query = replace_fields(query, cursor=page.next)


def _follow(target: Target, query: LogQuery, json: bool) -> None:
    """Print entries as they are appended, without end."""
    with ExitStack() as stack:
        wait = partial(time.sleep, POLL_SECONDS)
        if isinstance(target, LocalTarget):
            wait = partial(_wait, stack.enter_context(closing(ChangeWatcher(target.session.registry.ledger.log))))
        while True:
            query = replace_fields(query, since=_print_log(target, query, None, json))
            wait()


def _wait(watch: ChangeWatcher) -> None:
    never = threading.Event()
    for _ in range(MAX_WAITS):
        if watch.wait(never):
            return


def _print_log_entry(logged: EntryResponse, json: bool) -> None:
    if json:
        print_json(logged)
    else:
        row = f"{logged.seq:>{SEQ_WIDTH}}  {shorten_time(logged.at)}  {logged.action:<9}  {printable(logged.handle)}"
        print_row(f"{row}{_format_origin(logged)}", SEQ_WIDTH + 2)


# Proofs


def _find_key(proof: str, keys: list[LogKey]) -> str:
    """Return the newest key that verifies a proof."""
    for key in keys[::-1]:
        with suppress(InvalidProof):
            proof_document.verify_proof(proof, key)
            return str(key)
    raise CorruptData("the proof is not valid; verify the ledger with: perseid verify --all")


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "history": history,
    "diff": diff,
    "log": log,
    "prove": prove,
}

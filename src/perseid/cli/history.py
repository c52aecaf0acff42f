"""`perseid history`, `log` and `prove`, and the implementation of `verify --all`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.errors import CorruptData, StorageFull
from perseid.ledger.log.writer import ChangeWatcher
from perseid.ledger.merkle import Signer
from perseid.ledger.verify import verify
from perseid.names.handle import Handle
from perseid.proof import document as proof_document
from perseid.proof.verifier import InvalidProof, LogKey
from perseid.records.encoding import to_base64
from perseid.records.record import Value
from perseid.registry.access.permissions import Differences
from perseid.registry.installation.installation import CHECKPOINT_KEY, KEYS_NAME
from perseid.registry.queries import history as past
from perseid.registry.queries import listing
from perseid.registry.queries import prove as proving
from perseid.registry.queries.history import Version, seq_at_time
from perseid.registry.queries.listing import LogEntry
from perseid.registry.queries.paging import MAX_PAGE
from perseid.registry.responses import to_entry, to_version
from perseid.schema.queries import HistoryPage

from ._arguments import (
    ActingAs,
    After,
    Directory,
    HandleArgument,
    Limit,
    OpenInstallation,
    format_data,
    open_installation,
    parse_cursor,
    parse_reference,
    print_more,
    printable,
    resolve_directory,
)
from ._output import AsJson, print_fields, print_json, print_message, progress
from .keys import finish_rotation, list_keys
from .verify import short_time

MAX_SHOWN: Final = 20
"""Redacted values that `verify --all` lists without --json."""

SEQ_WIDTH: Final = 7
"""Digits of an entry number, so that columns are aligned up to ten million entries."""

MAX_WAITS: Final = 20
"""Waits, one second in all, after which `log --follow` reads anyway: a database may lose a notification."""

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
    with open_installation(directory, acting_as) as session:
        versions: list[Version] = []
        name, complete, before = "", True, parse_cursor(after) or None
        for page in _pages(session, parse_reference(handle).handle, before, limit):
            name, complete, before = str(page.handle), page.complete, page.before
            versions += page.versions
            if not json:
                for version in page.versions:
                    _print_version(version)
    if json:
        cursor = None if before is None else str(before)
        print_json(HistoryPage(name, [to_version(version) for version in versions], complete, cursor))
    elif not complete:
        print_message("Earlier versions are hidden: by the policy, or because the history is too long.")
    elif before is not None:
        print_more(before)


def log(
    since: Annotated[
        str, typer.Option("--since", metavar="SEQ|TIME", help="Only entries after this entry or time.")
    ] = "0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new entries until you press Ctrl-C.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show the entries of the ledger, oldest first: number, time, action, handle, actor and note.

    With `--as`, the output is limited to namespaces that the identity can list. With `--json`, each line is one
    document.

    For example:
        perseid log --since 10
        perseid log --since 2026-01-01T00:00:00Z --json
    """
    with open_installation(directory, acting_as) as session:
        with session.registry.snapshot() as snapshot:
            after = seq_at_time(snapshot.reader, since, session.registry.ledger.log.clock.now())
        try:
            after = _print_log(session, after, json)
            if follow:
                _follow(session, after, json)
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
    finish_rotation(resolve_directory(directory).resolve())
    with open_installation(directory, acting_as) as session:
        proof = _make_proof(session, parse_reference(handle).handle, at, public_only=not everything)
        key = _find_key(proof, list_keys(session.installation))
    if output is None:
        if json:
            print_json(proof.document)
        else:
            typer.echo(proof.to_json(), nl=False)
        return
    with output.open("x", encoding="utf-8") as file:
        file.write(proof.to_json())
    if json:
        print_json({"handle": str(proof.handle), "seq": proof.seq, "file": str(output), "key": key})
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
        typer.echo(f"redacted  {printable(name)}")
    if report.redacted > MAX_SHOWN:
        typer.echo(f"redacted  {report.redacted - MAX_SHOWN:,} more; --json lists them")


# History


def _pages(session: OpenInstallation, handle: Handle, before: int | None, limit: int | None) -> Iterator[past.History]:
    """Yield the pages of a record's history before an entry, up to `limit` versions."""
    remaining = limit
    while True:
        size = MAX_PAGE if remaining is None else min(remaining, MAX_PAGE)
        with session.registry.snapshot() as snapshot:
            page = past.get_history(snapshot, session.identity, handle, before, size)
        yield page
        before = page.before
        remaining = None if remaining is None else remaining - len(page.versions)
        if before is None or remaining == 0:
            return


def _print_version(version: Version) -> None:
    typer.echo(f"{version.seq}  {short_time(version.at)}  {version.action.name.lower()}{_format_origin(version)}")
    changed = version.changed
    lines = [_format_value("=", value) for value in version.values] if changed is None else format_differences(changed)
    for line in lines:
        typer.echo(line)
    if version.redacted:
        typer.echo(f"    permanently redacted: {version.redacted}")


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


def _format_origin(item: Version | LogEntry) -> str:
    actor = "" if not item.actor else f"  by {printable(item.actor)} ({printable(item.interface or '')})"
    return actor + ("" if not item.note else f": {printable(item.note)}")


# The log


def _print_log(session: OpenInstallation, after: int, json: bool) -> int:
    """Print the entries after one and return the last number."""
    more = True
    while more:
        with session.registry.snapshot() as snapshot:
            page = listing.list_log(snapshot, session.identity, after, MAX_PAGE)
        for logged in page.items:
            _print_log_entry(logged, json)
        after, more = page.last, page.more
    return after


def _follow(session: OpenInstallation, after: int, json: bool) -> None:
    """Print entries as they are appended, without end."""
    never = threading.Event()
    with closing(ChangeWatcher(session.registry.ledger.log)) as watch:
        while True:
            after = _print_log(session, after, json)
            for _ in range(MAX_WAITS):
                if watch.wait(never):
                    break


def _print_log_entry(logged: LogEntry, json: bool) -> None:
    if json:
        print_json(to_entry(logged))
    else:
        typer.echo(
            f"{logged.seq:>{SEQ_WIDTH}}  {short_time(logged.at)}  {logged.action.name.lower():<9}  "
            f"{printable(logged.handle)}{_format_origin(logged)}"
        )


# Proofs


def _make_proof(session: OpenInstallation, handle: Handle, at: str | None, *, public_only: bool) -> proving.Proof:
    """Make the proof; sign a checkpoint first if none covers the entry."""

    def make() -> proving.Proof:
        with session.registry.snapshot() as snapshot:
            now = session.registry.ledger.log.clock.now()
            seq = None if at is None else seq_at_time(snapshot.reader, at, now)
            return proving.prove(snapshot, session.identity, handle, seq, public_only=public_only)

    try:
        return make()
    except proving.NotCheckpointed as missing:
        proving.ensure_checkpoint(session.registry.ledger.log, _load_signer(session), missing.seq, time.sleep)
    return make()


def _find_key(proof: proving.Proof, keys: list[LogKey]) -> str:
    """Return the newest key that verifies a proof."""
    text = proof.to_json()
    for key in keys[::-1]:
        with suppress(InvalidProof):
            proof_document.verify_proof(text, key)
            return str(key)
    raise CorruptData("the proof is not valid; verify the ledger with: perseid verify --all")


def _load_signer(session: OpenInstallation) -> Signer:
    return Signer.from_bytes((session.installation.directory / KEYS_NAME / CHECKPOINT_KEY).read_bytes())


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "history": history,
    "log": log,
    "prove": prove,
}

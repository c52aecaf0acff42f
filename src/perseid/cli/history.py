"""`perseid history, log, prove`, and what `verify --all` does: the past, seen and proved."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from perseid.ledger.errors import CorruptData
from perseid.ledger.log.writer import ChangeWatcher
from perseid.ledger.merkle import Signer
from perseid.ledger.verify import verify
from perseid.names.handle import Handle
from perseid.proof import document as proof_document
from perseid.proof.verifier import InvalidProof, LogKey
from perseid.records.encoding import to_base64
from perseid.records.json_form import value_to_json
from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.installation.installation import CHECKPOINT_KEY, KEYS_NAME
from perseid.registry.queries import history as past
from perseid.registry.queries import listing
from perseid.registry.queries import prove as proving
from perseid.registry.queries.history import MAX_PAGE, Version, moment
from perseid.registry.queries.listing import LogEntry

from ._output import AsJson, print_fields, print_json, print_message, progress
from ._place import ActingAs, Directory, Name, OpenInstallation, directory_of, open_installation, parse_reference
from ._values import format_data, printable
from .keys import finish_rotation, keys_of
from .verify import iso_time, short_time

MAX_SHOWN: Final = 20
"""How many erased values `verify --all` names for people; with --json all that the ledger names."""

SEQ_WIDTH: Final = 7
"""Digits for the number of an entry, so that lines stand one below the other up to ten million."""

MAX_WAITS: Final = 20
"""After so many looks without news, a second, `log --follow` reads all the same: a database may lose a notification."""

At: TypeAlias = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME|SEQ", help="At this time, or at this entry of the ledger; default now."),
]


def history(
    handle: Name,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the latest so many versions.")
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show what a name was: every version, newest first, with what changed, when, by whom and why.

    With `--as`, what that identity may see: without a right, values that were public and have not been hidden since.

    For example:
        perseid history 102.100.272/D7J1G0DQH
        perseid history 102.100.272/D7J1G0DQH --limit 1 --json
    """
    with open_installation(directory, acting_as) as session:
        found: list[Version] = []
        name, complete = "", True
        for page in _pages(session, parse_reference(handle).handle, limit):
            name, complete = str(page.handle), page.complete
            found += page.versions
            if not json:
                for version in page.versions:
                    _print_version(version)
    if json:
        versions = [_version_to_json(version) for version in found]
        print_json({"handle": name, "versions": versions, "complete": complete})
    elif not complete:
        print_message("What was before is kept back: the policy, or the length of the past, does not let it be shown.")


def log(
    since: Annotated[
        str, typer.Option("--since", metavar="SEQ|TIME", help="Only what came behind this entry, or after this time.")
    ] = "0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is appended, until you stop it.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show what happened in the whole ledger, oldest first: number, time, what was done to which name, by whom, why.

    With `--as`, what that identity may see: the names of namespaces in which it may list names. With `--json` there is
    one document a line.

    For example:
        perseid log --since 10
        perseid log --since 2026-01-01T00:00:00Z --json
    """
    with open_installation(directory, acting_as) as session:
        with session.registry.snapshot() as snapshot:
            after = moment(snapshot.reading, since, session.registry.ledger.log.clock.now())
        try:
            after = _print_log(session, after, json)
            if follow:
                _follow(session, after, json)
        except KeyboardInterrupt:  # how following ends
            if not follow:
                raise


def prove(
    handle: Name,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="A new file for the proof; default: print it.")
    ] = None,
    at: At = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Also values, actor and note that the public may not see.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Prove what a name is, or was, in a file that anybody can check: without this server, for as long as they like.

    It shows what the public may see, unless you ask for everything. It is checked with `perseid verify`, or by whoever
    reads docs/reference/proof-format.md. If the latest changes are not under a signed checkpoint yet, one is signed.

    For example:
        perseid prove 102.100.272/D7J1G0DQH -o map.proof.json
    """
    if output is not None and output.exists():
        raise typer.BadParameter(f"{output} exists; name another file", param_hint="--output")
    finish_rotation(directory_of(directory).resolve())
    with open_installation(directory, acting_as) as session:
        proof = _make_proof(session, parse_reference(handle).handle, at, public_only=not everything)
        key = _find_key(proof, keys_of(session.installation))
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
        check = f"perseid verify {output} --key '{key}'"
        print_fields({"proved": proof.handle, "entry": proof.seq, "file": output, "check": check})


def verify_all(directory: Path | None, json: bool) -> None:
    """Check the whole ledger and the answers; what `verify --all` does."""
    with open_installation(directory) as session:
        ledger = session.registry.ledger
        with ledger.reading() as reading:
            size = reading.size
        with progress("checking entries", size) as update:
            report = verify(ledger.log, update)
        with progress("comparing answers", unit="records"):
            ledger.answers.catch_up(ledger.reading)
            difference = ledger.answers.differences(ledger.reading)
        if difference is not None:
            raise CorruptData(
                f"the {report.entries:,} entries hold, but the answers differ from them at {printable(difference)}; "
                "build these anew with: perseid rebuild answers"
            )
    if json:
        root = to_base64(report.root)
        print_json({"entries": report.entries, "root": root, "redacted": report.redacted, "named": report.named})
        return
    print_fields({"holds": f"{report.entries:,} entries, and the views", "root": to_base64(report.root)})
    for name in report.named[:MAX_SHOWN]:
        typer.echo(f"erased  {printable(name)}")
    if report.redacted > MAX_SHOWN:
        typer.echo(f"erased  {report.redacted - MAX_SHOWN:,} more; --json names them")


# History


def _pages(session: OpenInstallation, handle: Handle, limit: int | None) -> Iterator[past.History]:
    """The pages of a name's history, up to so many versions."""
    before: int | None = None
    left = limit
    while True:
        size = MAX_PAGE if left is None else min(left, MAX_PAGE)
        with session.registry.snapshot() as snapshot:
            page = past.get_history(snapshot, session.identity, handle, before, size)
        yield page
        before = page.before
        left = None if left is None else left - len(page.versions)
        if before is None or left == 0:
            return


def _version_to_json(version: Version) -> JsonObject:
    """A version as JSON; what may not be seen is left out."""
    return {
        "seq": version.seq,
        "at": iso_time(version.at),
        "action": version.action.name.lower(),
        "state": version.state.name.lower(),
        "values": [value_to_json(value) for value in version.values],
        "redacted": version.redacted,
        **_origin_to_json(version),
    }


def _print_version(version: Version) -> None:
    typer.echo(f"{version.seq}  {short_time(version.at)}  {version.action.name.lower()}{_format_origin(version)}")
    changed = version.changed
    lines: list[tuple[int, str, Value]] = []
    if changed is None:
        lines = [(value.index, "=", value) for value in version.values]
    else:
        lines += [(value.index, "+", value) for value in changed.added]
        lines += [(value.index, "-", value) for value in changed.removed]
        for old, new in changed.modified:
            lines += [(new.index, "-", old), (new.index, "+", new)]
    # Of a value that was modified, what it was stands before what it is.
    for index, sign, value in sorted(lines, key=lambda line: line[0]):
        private = "" if value.is_public else "!private"
        typer.echo(f"    {sign} {index}  {printable(value.type)}{private}  {format_data(value)}")
    if version.redacted:
        typer.echo(f"    erased for good: {version.redacted}")


def _origin_to_json(item: Version | LogEntry) -> JsonObject:
    return {name: text for name in ("door", "actor", "note") if (text := getattr(item, name))}


def _format_origin(item: Version | LogEntry) -> str:
    """Who did it and why, if that may be seen."""
    actor = "" if not item.actor else f"  by {printable(item.actor)} ({printable(item.door or '')})"
    return actor + ("" if not item.note else f": {printable(item.note)}")


# The log


def _print_log(session: OpenInstallation, after: int, json: bool) -> int:
    """Print the entries behind one; the last that was looked at."""
    more = True
    while more:
        with session.registry.snapshot() as snapshot:
            page = listing.list_log(snapshot, session.identity, after, MAX_PAGE)
        for logged in page.items:
            _print_log_entry(logged, json)
        after, more = page.last, page.more
    return after


def _follow(session: OpenInstallation, after: int, json: bool) -> None:
    """Print entries as they come, for ever."""
    never = threading.Event()
    with closing(ChangeWatcher(session.registry.ledger.log)) as watch:
        while True:
            after = _print_log(session, after, json)
            for _ in range(MAX_WAITS):
                if watch.wait(never):
                    break


def _print_log_entry(logged: LogEntry, json: bool) -> None:
    action, state = logged.action.name.lower(), logged.state.name.lower()
    if json:
        document: dict[str, Any] = {"seq": logged.seq, "at": iso_time(logged.at), "action": action}
        print_json(document | {"handle": logged.handle, "state": state} | _origin_to_json(logged))
    else:
        typer.echo(
            f"{logged.seq:>{SEQ_WIDTH}}  {short_time(logged.at)}  {action:<9}  "
            f"{printable(logged.handle)}{_format_origin(logged)}"
        )


# Proofs


def _make_proof(session: OpenInstallation, handle: Handle, at: str | None, *, public_only: bool) -> proving.Proof:
    """The proof; if no checkpoint has come to the entry, one is signed first."""

    def proved() -> proving.Proof:
        with session.registry.snapshot() as snapshot:
            now = session.registry.ledger.log.clock.now()
            seq = None if at is None else moment(snapshot.reading, at, now)
            return proving.prove(snapshot, session.identity, handle, seq, public_only=public_only)

    try:
        return proved()
    except proving.NotCheckpointed as missing:
        proving.ensure_checkpoint(session.registry.ledger.log, _load_signer(session), missing.seq, time.sleep)
    return proved()


def _find_key(proof: proving.Proof, keys: list[LogKey]) -> str:
    """The newest key with which a proof can be checked; it has been then."""
    text = proof.to_json()
    for key in keys[::-1]:
        with suppress(InvalidProof):
            proof_document.verify_proof(text, key)
            return str(key)
    raise CorruptData("the proof does not hold; verify the ledger with: perseid verify --all")


def _load_signer(session: OpenInstallation) -> Signer:
    """The key of the installation, which has been found readable when it was opened."""
    return Signer.from_bytes((session.installation.directory / KEYS_NAME / CHECKPOINT_KEY).read_bytes())


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "history": history,
    "log": log,
    "prove": prove,
}

"""`perseid backup`, `restore` and `rebuild`: copies of a ledger, and views computed again.

An installation is restored completely, verified and in place, or not at all.

A backup does not know which numbers were leased after it was made. Suffixes made from the time continue ahead of the
clock. Where suffixes are counted (`scheme = "pattern:…"`), a restored ledger mints none until an operator says which
was the last one: `perseid restore --reopen`.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.ledger.backup.archive import ENTRY, ArchiveReader, Header, save_backup, write_backup
from perseid.ledger.backup.restore import RestoreResult, StoreNotEmpty, reopen_lease
from perseid.ledger.backup.restore import restore as restore_ledger
from perseid.ledger.errors import LeaseClosed, LedgerError, StorageFull
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.record_keys import POLICY
from perseid.ledger.log.requests import Lease, Leased
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import DIRECTORY_MODE, sync_directory
from perseid.ledger.views.rebuild import rebuild as rebuild_view
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.handle import fold
from perseid.names.scheme_loader import PatternScheme
from perseid.names.schemes import DEFAULT_MAX_AHEAD, MemoryLease, Scheme, Source
from perseid.registry.commands.namespaces import check_prefix, namespaces
from perseid.registry.installation.files import place, remove_files, staging_directory, write_file
from perseid.registry.installation.installation import (
    CHECKPOINT_KEY,
    KEYS_NAME,
    Installation,
    new_log,
    open_store,
    translate_errors,
    write_server_files,
)
from perseid.registry.installation.sections import mask_password
from perseid.registry.installation.settings import FILE_NAME, Config, config_template
from perseid.registry.installation.site import SERVER_KEY, SITE_BINARY, SITE_JSON
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.snapshot import POLICY_TYPE, Snapshot

from ._arguments import (
    INTERFACE,
    Directory,
    OpenInstallation,
    get_identity,
    open_installation,
    parse_handle,
    printable,
    resolve_directory,
)
from ._output import AsJson, print_fields, print_json, print_message, progress

STANDARD_OUTPUT: Final = "-"

_MAX_DIGITS = 18  # of a number that the ledger can store
_SEED_SIZE: Final = 32
_POLICY_BYTES: Final = POLICY.encode()


class View(StrEnum):
    """A view of the ledger, in the order of rebuilding: the answers are built from the records."""

    RECORDS = "records"
    SEARCH = "search"
    ANSWERS = "answers"


def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file; - is standard output.")],
    since: Annotated[
        int, typer.Option("--since", metavar="SEQ", min=0, help="Only entries after this one: an increment.")
    ] = 0,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Back up the ledger to a file, also while it is in use. Every entry is verified.

    An increment contains the entries after an earlier backup, and is restored together with it. **A backup contains
    secrets**: keys and private values. It does not contain the settings and private keys of the installation: keep
    copies of `perseid.toml`, `siteinfo.json` and `keys/privkey.bin`. A restore creates a new checkpoint key.

    For example:
        perseid backup monday.backup
        perseid backup tuesday.backup --since 10
    """
    with Installation.open(resolve_directory(directory), writable=False) as installation:
        log = installation.log
        with log.open_reader() as reader:
            size = reader.size
        if file == STANDARD_OUTPUT:
            _write_to_stdout(log, since)
            return
        path = Path(file)
        with progress("backing up", max(0, size - since)) as update:
            header = save_backup(log, path, since, lambda seq: update(seq - since))
    _print_backup(path, header, json)


def restore(
    file: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="A full backup and its increments, in order."),
    ] = None,
    *,
    settings: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="The perseid.toml to use. Default: a new one with defaults."),
    ] = None,
    reopen: Annotated[
        str | None,
        typer.Option("--reopen", metavar="PREFIX", help="After a restore: allow minting again in this namespace."),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option("--last", metavar="HANDLE|N", help="With --reopen: the last handle, or number, that was minted."),
    ] = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Create an installation from backups. Every entry, the Merkle tree and the checkpoint are verified.

    The directory (`-d`) must be new or empty. If the restore fails, it is removed. A restored ledger continues with a
    new origin and a new key, because it is not known what the old key signed after the backup.

    It is not known either which identifiers were minted after the backup. Where suffixes are counted, minting is closed
    until you say which was the last: `--reopen PREFIX --last HANDLE`. If you are not sure, use a later one: skipped
    suffixes are lost, but a suffix that is minted twice is worse.

    For example:
        perseid backup full.backup
        perseid restore full.backup -d restored-data
    """
    if bool(file) == (reopen is not None) or (last is None) != (reopen is None):
        raise typer.BadParameter("use either FILE... or --reopen PREFIX --last HANDLE")
    if reopen is not None and last is not None:
        _reopen(reopen, last, directory, json)
        return
    folder = resolve_directory(directory).resolve()
    text = None if settings is None else settings.read_text(encoding="utf-8-sig")
    with progress("restoring") as update:
        result = restore_installation(folder, file or (), text, (INTERFACE, str(get_identity(None))), update)
    closed = [scope.decode("utf-8", "replace").partition(" ")[0] for scope in result.closed]
    old, branch = result.branch.predecessor, result.branch
    if json:
        print_json(
            {
                "directory": str(folder),
                "entries": old.size,
                "seq": result.seq,
                "origin": branch.new.name,
                "key": str(branch.new),
                "continues": {"origin": old.origin, "size": old.size, "key": str(branch.old)},
                "closed": closed,
            }
        )
        return
    print_fields(
        {
            "restored": f"{old.size:,} entries of {printable(old.origin)}",
            "directory": folder,
            "settings": folder / FILE_NAME if settings else f"{folder / FILE_NAME} (defaults; copy yours over it)",
            "new origin": printable(branch.new.name),
            "new key": printable(str(branch.new)),
        }
    )
    print_message(f"The server has a new key. If you have copies of {SITE_JSON} and {KEYS_NAME}/{SERVER_KEY},")
    print_message(f"put them into {folder} and remove {SITE_BINARY}.")
    print_message(f"Otherwise replace every copy of the old {SITE_JSON} with the new one.")
    for prefix in closed:
        typer.echo(printable(f"minting under {prefix} is closed until: {reopen_command(prefix)}"))


def rebuild(
    view: Annotated[
        View | None, typer.Argument(metavar="answers|records|search", help="The view. Default: all.")
    ] = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Rebuild the views from the ledger, while they are in use.

    Nothing is lost. Run it when `perseid check` or `perseid verify --all` says so. The view `answers` is built from
    `records`: if `records` was damaged, rebuild both.

    For example:
        perseid rebuild
        perseid rebuild answers
    """
    with open_installation(directory, maintains=True) as session:
        ledger = session.registry.ledger
        for each in list(View) if view is None else [view]:
            done = _rebuild(ledger, each)
            if json:
                print_json({"view": each.value, "entries": done})
            else:
                typer.echo(f"{each.value:<7}  {done:,} entries")


def _reopen(prefix: str, last: str, directory: Path | None, json: bool) -> None:
    with open_installation(directory, maintains=True) as session:
        counter = reopen_counter(session, prefix, last)
    if json:
        document: dict[str, object] = {"prefix": counter.prefix, "last": counter.last}
        print_json(document | ({"last_handle": counter.last_handle} if counter.last_handle else {}))
    else:
        print_fields({"minting continues after": printable(counter.last_handle or str(counter.last))})


def _rebuild(ledger: Ledger, view: View) -> int:
    """Rebuild one view and return its last entry."""
    with ledger.open_reader() as reader:
        size = reader.size
    if view is not View.ANSWERS:
        with progress(f"rebuilding {view.value}", size) as update:
            return rebuild_view(ledger.log, view.value, update)
    with progress("rebuilding answers", unit="records") as update:
        if not ledger.answers.rebuild(ledger.open_reader, update):
            raise StorageFull("the view answers cannot be built: storage is full or not writable; nothing is lost")
    return ledger.answers.applied


def _write_to_stdout(log: Log, since: int) -> None:
    if sys.stdout.isatty():
        raise LedgerError(
            "a backup contains secrets and is not printed to a terminal; use a file name or pipe the output"
        )
    with progress("backing up") as update:
        write_backup(log, sys.stdout.buffer, since, update)
    sys.stdout.buffer.flush()


def _print_backup(path: Path, header: Header, json: bool) -> None:
    size = path.stat().st_size
    if json:
        document: dict[str, object] = {"file": str(path), "since": header.since, "until": header.until}
        print_json(document | {"origin": header.origin, "size": size, "created_at": header.made_at})
        return
    print_fields(
        {
            "file": printable(str(path)),
            "entries": f"{header.since + 1:,} to {header.until:,}" if header.until > header.since else "none",
            "size": f"{size:,} bytes",
            "next": f"perseid backup FILE --since {header.until}",
        }
    )


# Restoring


def restore_installation(
    directory: Path, files: Sequence[Path], settings: str | None, by: tuple[str, str], update: Callable[[int], None]
) -> RestoreResult:
    """Create an installation from a full backup and its increments, in a directory that is new or empty.

    `settings` is the text of its `perseid.toml`, or None for the defaults. `by` is the interface and the actor.
    """
    text = config_template() if settings is None else settings
    config = Config.parse(text, os.environ)
    ahead = find_max_ahead(files)
    placed: list[Path] = []
    with staging_directory(directory, FILE_NAME) as work:
        write_file(work / FILE_NAME, text.encode())
        (work / KEYS_NAME).mkdir(DIRECTORY_MODE)
        # No backup contains the server's key. The new one is not encrypted: the old passphrase may be lost.
        write_server_files(work, config)
        with closing(open_store(work, config, new=True)) as store, translate_errors(store, config):
            in_directory = store.dialect == "sqlite"

            def create_key(origin: str) -> Signer:
                """Write the new key to disk before a database has the ledger that names it."""
                signer = Signer.generate(origin, secrets.token_bytes(_SEED_SIZE))
                write_file(work / KEYS_NAME / CHECKPOINT_KEY, signer.to_bytes())
                sync_directory(work / KEYS_NAME)
                if not in_directory:
                    placed.extend(place(work, directory, KEYS_NAME, FILE_NAME))
                return signer

            if store.version() is not None:
                raise StoreNotEmpty(
                    f"{mask_password(config.ledger.database)} already contains a ledger; use an empty database"
                )
            store.upgrade()
            try:
                result = restore_ledger(files, new_log(store), create_key, by, ahead, update)
            except BaseException:
                remove_files(placed)
                raise
            if in_directory:
                store.close()  # removes the files beside the database
                place(work, directory, KEYS_NAME, FILE_NAME)
    return result


def find_max_ahead(files: Sequence[Path]) -> int:
    """Return the longest time, in milliseconds, that any policy in the backups let suffixes run ahead of the clock.

    A backup does not contain the last suffixes, so minting continues after all that can have been used.
    """
    farthest = DEFAULT_MAX_AHEAD
    for path in files:
        with path.open("rb") as stream:
            archive = ArchiveReader(path.name, stream)
            for kind, content in archive.frames():
                if kind == ENTRY and _POLICY_BYTES in content:
                    farthest = max(farthest, _policy_ahead(archive, content))
    return farthest


def _policy_ahead(archive: ArchiveReader, content: bytes) -> int:
    """Return how far the policy in an entry lets suffixes run ahead; 0 for other or damaged entries."""
    seq = int.from_bytes(content[:8], "big", signed=True)
    at, _, _, body = archive.entry(content, seq)
    try:
        entry = Entry.from_body(seq, at, body)
        if not entry.handle.startswith(POLICY) or entry.state is not State.NORMAL:
            return 0
        texts = [value.data.decode("utf-8") for value in entry.record() if value.type == POLICY_TYPE]
        return max([Policy.from_stored(text).lead for text in texts], default=0)
    except (InvalidPolicy, ValueError):
        return 0


# Counters


@dataclass(frozen=True, slots=True)
class Counter:
    """The counter of a namespace whose suffixes are counted."""

    prefix: str
    scheme: Scheme
    closed: bool
    """Whether minting waits for `perseid restore --reopen`."""
    last: int
    """The last number known to be used; -1 for none."""

    @property
    def last_handle(self) -> str:
        """The last handle known to be minted; empty if there is none or the scheme cannot tell."""
        if self.last < 0 or not isinstance(self.scheme, PatternScheme):
            return ""
        try:
            return f"{self.prefix}/{self.scheme.format(self.last)}"
        except NameMisuse:
            return ""  # the pattern has no more suffixes


def reopen_command(prefix: str) -> str:
    """Return the command that allows minting again after a restore."""
    return f"perseid restore --reopen {prefix} --last HANDLE"


def reopen_counter(session: OpenInstallation, prefix: str, last: str) -> Counter:
    """Allow minting again after the last number or handle that was used."""
    check_prefix(prefix)
    with session.registry.snapshot() as snapshot:
        scheme = snapshot.policy(prefix).suffix_scheme()
    if scheme is None or not uses_counter(scheme):
        raise LedgerError(f"prefix {prefix} does not use a counter; minting there needs no --reopen")
    ledger = session.registry.ledger
    if not _load_counter(ledger, prefix, scheme).closed:
        raise LedgerError(f"minting under {prefix} is not suspended; there is nothing to reopen")
    try:
        reopen_lease(ledger.log, _lease_scope(prefix, scheme), _parse_number(last, prefix, scheme))
    except LeaseClosed as closed:
        known = Counter(prefix, scheme, True, closed.last).last_handle or closed.last
        message = f"the backup contains later identifiers, up to {known}; use that one or a later one"
        raise typer.BadParameter(message, param_hint="--last") from closed
    return _load_counter(ledger, prefix, scheme)


def counters(session: OpenInstallation) -> Iterator[Counter]:
    """Yield the counters of all namespaces."""
    with session.registry.snapshot() as snapshot:
        counted = list(_counted_namespaces(snapshot))
    for prefix, scheme in counted:
        yield _load_counter(session.registry.ledger, prefix, scheme)


def uses_counter(scheme: Scheme) -> bool:
    """Whether a scheme leases numbers without a clock; found out by minting one suffix in memory."""
    clocks: list[int] = []
    memory = MemoryLease()

    def lease(count: int, now: int) -> int:
        clocks.append(now)
        return memory(count, now)

    scheme.mint(Source(time.time_ns, secrets.token_bytes, lease, time.sleep), 1)
    return bool(clocks) and not any(clocks)


def _lease_scope(prefix: str, scheme: Scheme) -> bytes:
    """Return the scope of a namespace's lease, as minting names it."""
    return f"{fold(prefix)} {scheme.name}".encode()


def _counted_namespaces(snapshot: Snapshot) -> Iterator[tuple[str, Scheme]]:
    for prefix in namespaces(snapshot.reader):
        try:
            scheme = snapshot.policy(prefix).suffix_scheme()
        except InvalidPolicy:
            continue  # reported as another finding
        if scheme is not None and uses_counter(scheme):
            yield prefix, scheme


def _load_counter(ledger: Ledger, prefix: str, scheme: Scheme) -> Counter:
    """Read a counter by a lease of zero numbers."""
    outcome = ledger.append(Lease(_lease_scope(prefix, scheme), 0, 0))[0]
    if isinstance(outcome, LeaseClosed):
        return Counter(prefix, scheme, True, outcome.last)
    if not isinstance(outcome, Leased):
        raise LedgerError(f"the counter of {prefix} cannot be read: {outcome}")
    return Counter(prefix, scheme, False, outcome.first - 1)


def _parse_number(text: str, prefix: str, scheme: Scheme) -> int:
    """Parse a number, or a handle of the prefix into its number."""
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
        return int(text)
    if "/" not in text:
        raise typer.BadParameter("use the last handle that was minted, or its number", param_hint="--last")
    handle = parse_handle(text, new=True)
    if fold(handle.prefix) != fold(prefix):
        raise typer.BadParameter(f"{handle} does not have the prefix {prefix}", param_hint="--last")
    if not isinstance(scheme, PatternScheme):
        raise typer.BadParameter("use a number: suffixes of this scheme do not contain it", param_hint="--last")
    try:
        return scheme.parse(handle.suffix)
    except InvalidName as problem:
        raise typer.BadParameter(str(problem), param_hint="--last") from problem


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "backup": backup,
    "restore": restore,
    "rebuild": rebuild,
}

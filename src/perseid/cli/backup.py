"""`perseid backup`, `restore` and `rebuild`: copies of an installation, and views computed again.

A backup does not know which numbers were leased after it was made. Suffixes made from the time continue ahead of the
clock. Where suffixes are counted (`scheme = "pattern:…"`), a restored ledger mints none until an operator says which
was the last one: `perseid restore --reopen`.
"""

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, Final, TypeAlias

import typer

from perseid.client.remotes import InvalidRemote, read_secret
from perseid.ledger.backup.archive import Header, create_file, write_backup
from perseid.ledger.backup.restore import reopen_lease
from perseid.ledger.errors import LeaseClosed, LedgerError, StorageFull
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.requests import Lease, Leased
from perseid.ledger.views.rebuild import rebuild as rebuild_view
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.handle import fold
from perseid.names.scheme_loader import PatternScheme
from perseid.names.schemes import MemoryLease, Scheme, Source
from perseid.records.encoding import to_base64
from perseid.registry.commands.namespaces import check_prefix, namespaces
from perseid.registry.installation.full_backup import BackupFile, outside_files, write_full_backup
from perseid.registry.installation.installation import KEYS_NAME, Installation, NoInstallation
from perseid.registry.installation.restoration import RestoreRequest, compare, restore_installation, run_drill
from perseid.registry.installation.settings import FILE_NAME
from perseid.registry.installation.site import SERVER_KEY, SITE_BINARY, SITE_JSON
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.snapshot import Snapshot

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
from ._output import AsJson, CommandFailed, pluralize, print_fields, print_json, print_message, progress

STANDARD_OUTPUT: Final = "-"
VERIFY: Final = "verify"
"""The word before the files of a restore drill."""

_MAX_DIGITS = 18  # of a number that the ledger can store

PassphraseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="A file with the passphrase of full backups."),
]


class View(StrEnum):
    """A view of the ledger, in the order of rebuilding: the answers are built from the records."""

    RECORDS = "records"
    SEARCH = "search"
    ANSWERS = "answers"


def backup(
    files: Annotated[
        list[str],
        typer.Argument(metavar="[verify] FILE", help="A new file; - is standard output. See below for verify."),
    ],
    *,
    since: Annotated[
        int, typer.Option("--since", metavar="SEQ", min=0, help="Only entries after this one: an increment.")
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Also back up settings and keys, and encrypt: see --passphrase-file.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Back up the ledger, or with --full the installation, to a file, also while it is in use. Every entry is verified.

    An increment contains the entries after an earlier backup, and is restored together with it. **A backup without
    --full contains secrets** (keys and private values), is not encrypted, and lacks the settings and private keys of
    the installation: keep copies of `perseid.toml`, `siteinfo.json` and `keys/privkey.bin`.

    `perseid backup verify FILE...` is a restore drill. It restores a backup and its increments into a scratch directory
    in $TMPDIR, verifies everything there, compares it with the installation, if there is one, and removes the scratch
    directory.

    For example:
        perseid backup monday.backup
        perseid backup tuesday.backup --since 10
        perseid backup verify monday.backup
    """
    first, *others = files
    if first == VERIFY and others:
        if since or full:
            raise typer.BadParameter("--since and --full are not for verify; omit them")
        _verify([Path(file) for file in others], passphrase_file, directory, json)
        return
    if others:
        raise typer.BadParameter("use one FILE, or verify FILE...", param_hint="FILE")
    if full != (passphrase_file is not None):
        raise typer.BadParameter("use --full and --passphrase-file FILE together")
    passphrase = _read_passphrase(passphrase_file)
    with Installation.open(resolve_directory(directory), writable=False) as installation:
        with installation.log.open_reader() as reader:
            size = reader.size
        if first == STANDARD_OUTPUT:
            _write_to_stdout(installation, since, passphrase)
            return
        path = Path(first)
        with create_file(path) as stream, progress("backing up", max(0, size - since)) as update:
            header = _write(installation, stream, since, passphrase, lambda seq: update(seq - since))
        outside = outside_files(installation.directory, installation.config) if full else {}
    _print_backup(path, header, passphrase_file, json)
    for name, file in outside.items():
        print_message(f"Not in the backup, because it is outside the directory: {printable(str(file))} ({name})")


def restore(
    file: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="A backup from the first entry on and its increments, in order."),
    ] = None,
    *,
    passphrase_file: PassphraseFile = None,
    settings: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="The perseid.toml to use. Default: that of a full backup."),
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

    The directory (`-d`) must be new or empty. If the restore fails, it is removed. Settings, site information and the
    key of the server are those of the last backup with `--full`. A restored ledger continues with a new origin and a
    new checkpoint key, because it is not known what the old key signed after the backup.

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
    request = _request(file or [], passphrase_file, None if settings is None else settings.read_bytes())
    with progress("restoring") as update:
        result, files = restore_installation(folder, request, update)
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
                "files": sorted(files),
            }
        )
        return
    source = "" if settings or files else " (defaults; copy yours over it)"
    print_fields(
        {
            "restored": f"{old.size:,} entries of {printable(old.origin)}",
            "directory": folder,
            "settings": f"{folder / FILE_NAME}{source}",
            "new origin": printable(branch.new.name),
            "new key": printable(str(branch.new)),
        }
    )
    if not files:
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


def _verify(files: list[Path], passphrase_file: Path | None, directory: Path | None, json: bool) -> None:
    """Run a restore drill, and compare the backup with the installation, if there is one."""
    with progress("restoring") as update:
        drill = run_drill(_request(files, passphrase_file), update)
    folder = resolve_directory(directory)
    try:
        found = compare(folder, drill)
    except NoInstallation:
        if directory is not None:
            raise
        found = None
    header = drill.header
    if json:
        compared = None
        if found is not None:
            changed = list(found.changed_files)
            compared = {"directory": str(folder), "later_entries": found.later_entries, "changed_files": changed}
        document: dict[str, object] = {"entries": header.until, "root": to_base64(header.root_until)}
        print_json(document | {"files": sorted(drill.files), "created_at": header.made_at, "compared": compared})
        return
    contents = [pluralize(header.until, "entry", "entries")]
    contents += [pluralize(len(drill.files), "file")] if drill.files else []
    fields: dict[str, object] = {
        "restored": f"{', '.join(contents)}: valid",
        "created": header.made_at.replace("+00:00", "Z"),
    }
    if found is None:
        fields["compared"] = f"with nothing: no installation in {printable(str(folder))}"
    else:
        later = found.later_entries
        behind = f"; {pluralize(later, 'later entry is', 'later entries are')} not in the backup" if later else ""
        fields["compared"] = f"with {printable(str(folder))}: the same entries{behind}"
        fields["changed"] = printable(", ".join(found.changed_files)) or None
    print_fields(fields)


def _request(files: Sequence[Path], passphrase_file: Path | None, settings: bytes | None = None) -> RestoreRequest:
    passphrase = _read_passphrase(passphrase_file)
    backups = [BackupFile(path, passphrase) for path in files]
    return RestoreRequest(backups, (INTERFACE, str(get_identity(None))), settings)


def _read_passphrase(file: Path | None) -> bytes | None:
    try:
        return None if file is None else read_secret(file, any_lines=True).encode()
    except InvalidRemote as problem:
        raise CommandFailed(str(problem)) from problem


def _write(
    installation: Installation, stream: BinaryIO, since: int, passphrase: bytes | None, update: Callable[[int], None]
) -> Header:
    if passphrase is None:
        return write_backup(installation.log, stream, since, update)
    return write_full_backup(installation, stream, passphrase, since, update)


def _write_to_stdout(installation: Installation, since: int, passphrase: bytes | None) -> None:
    if sys.stdout.isatty():
        raise LedgerError(
            "a backup contains secrets and is not printed to a terminal; use a file name or pipe the output"
        )
    with progress("backing up") as update:
        _write(installation, sys.stdout.buffer, since, passphrase, update)
    sys.stdout.buffer.flush()


def _print_backup(path: Path, header: Header, passphrase_file: Path | None, json: bool) -> None:
    size, is_full = path.stat().st_size, passphrase_file is not None
    if json:
        document: dict[str, object] = {"file": str(path), "since": header.since, "until": header.until, "full": is_full}
        print_json(document | {"origin": header.origin, "size": size, "created_at": header.made_at})
        return
    options = f" --full --passphrase-file {passphrase_file}" if is_full else ""
    print_fields(
        {
            "file": printable(str(path)),
            "contents": "ledger, settings and keys, encrypted"
            if is_full
            else "ledger only, not encrypted, without settings and keys",
            "entries": f"{header.since + 1:,} to {header.until:,}" if header.until > header.since else "none",
            "size": f"{size:,} bytes",
            "next": printable(f"perseid backup FILE --since {header.until}{options}"),
        }
    )


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

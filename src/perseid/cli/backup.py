"""`perseid backup`, `restore` and `rebuild`, and the table of the maintenance commands."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.ledger.backup.archive import Header, save_backup, write_backup
from perseid.ledger.errors import LedgerError, StorageFull
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.log import Log
from perseid.ledger.views.rebuild import rebuild as rebuild_view
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.settings import FILE_NAME
from perseid.registry.installation.site import KEYS_NAME, SERVER_KEY, SITE_BINARY, SITE_JSON

from . import check, keys
from ._installation import INTERFACE, Directory, get_identity, open_installation, resolve_directory
from ._output import AsJson, print_fields, print_json, print_message, progress
from ._restore import reopen_command, reopen_counter, restore_installation
from ._values import printable

STANDARD_OUTPUT: Final = "-"


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
    with open_installation(directory) as session:
        ledger = session.registry.ledger
        for each in list(View) if view is None else [view]:
            done = _rebuild(ledger, each)
            if json:
                print_json({"view": each.value, "entries": done})
            else:
                typer.echo(f"{each.value:<7}  {done:,} entries")


def _reopen(prefix: str, last: str, directory: Path | None, json: bool) -> None:
    with open_installation(directory) as session:
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


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "backup": backup,
    "restore": restore,
    "rebuild": rebuild,
    "check": check.check,
    "key": keys.app,
}

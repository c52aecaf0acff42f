"""`perseid backup, restore, rebuild`, and the other commands with which an installation is kept for decades.

`check` is in `checking`, `key` in `keys`.
"""

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
from perseid.ledger.views.sql import rebuild as rebuild_view
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.settings import FILE_NAME
from perseid.registry.installation.site import KEYS_NAME, SERVER_KEY, SITE_BINARY, SITE_JSON

from . import check, keys
from ._output import AsJson, print_fields, print_json, print_message, progress
from ._place import INTERFACE, Directory, directory_of, get_identity, open_installation
from ._restore import reopen_command, reopen_counter, restore_installation
from ._values import printable

STANDARD_OUTPUT: Final = "-"


class View(StrEnum):
    """What is computed from the ledger, and can be computed again; the answers last, for they are made from records."""

    RECORDS = "records"
    TARGETS = "targets"
    ANSWERS = "answers"


def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file; `-` is standard output.")],
    since: Annotated[
        int, typer.Option("--since", metavar="SEQ", min=0, help="Only what came behind this entry: an increment.")
    ] = 0,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Copy the ledger into a file, also while others write. It is checked on its way.

    An increment holds what came behind an earlier backup, and is restored together with it. **A backup contains
    secrets**: keys and values that are not public. The settings and the private keys of the installation are not in it;
    keep copies of `perseid.toml`, `siteinfo.json` and `keys/privkey.bin`. A restore makes a new checkpoint key.

    For example:
        perseid backup monday.backup
        perseid backup tuesday.backup --since 10
    """
    with Installation.open(directory_of(directory), writable=False) as installation:
        log = installation.log
        with log.reading() as reading:
            size = reading.size
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
        typer.Argument(metavar="FILE...", help="A full backup, and the increments that follow it, in order."),
    ] = None,
    *,
    settings: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="The perseid.toml to use; default: a new one, with defaults."),
    ] = None,
    reopen: Annotated[
        str | None,
        typer.Option("--reopen", metavar="PREFIX", help="After a restore: let names be made again in this namespace."),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option("--last", metavar="NAME|N", help="With --reopen: the last name, or number, that was given out."),
    ] = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Make an installation from backups, verified: every entry, the tree over them, the checkpoint.

    The directory (`-d`) must be new or empty; it is complete in the end, or not there. A restored ledger goes on under
    a new name with a new key, because nobody knows what the old one signed after the backup was made.

    Nobody knows either which names it gave out. Where these are counted, none are made until you have looked where
    names went, and said which was the last: `--reopen PREFIX --last NAME`. If you are not sure, name a later one: what
    is passed over is lost, and what is given out twice is worse.

    For example:
        perseid backup full.backup
        perseid restore full.backup -d restored-data
    """
    if bool(file) == (reopen is not None) or (last is None) != (reopen is None):
        raise typer.BadParameter("name the files to restore; or afterwards --reopen PREFIX --last NAME")
    if reopen is not None and last is not None:
        _reopen(reopen, last, directory, json)
        return
    folder = directory_of(directory).resolve()
    text = None if settings is None else settings.read_text(encoding="utf-8-sig")
    with progress("restoring") as update:
        made = restore_installation(folder, file or (), text, (INTERFACE, str(get_identity(None))), update)
    closed = [scope.decode("utf-8", "replace").partition(" ")[0] for scope in made.closed]
    was, branch = made.branch.predecessor, made.branch
    if json:
        print_json(
            {
                "directory": str(folder),
                "entries": was.size,
                "seq": made.seq,
                "origin": branch.new.name,
                "key": str(branch.new),
                "continues": {"origin": was.origin, "size": was.size, "key": str(branch.old)},
                "closed": closed,
            }
        )
        return
    print_fields(
        {
            "restored": f"{was.size:,} entries of {printable(was.origin)}",
            "directory": folder,
            "settings": folder / FILE_NAME if settings else f"{folder / FILE_NAME}, defaults: copy yours over it",
            "goes on as": printable(branch.new.name),
            "new key": printable(str(branch.new)),
        }
    )
    print_message(
        f"The server's key is a new one too. If you have copies of {SITE_JSON} and {KEYS_NAME}/{SERVER_KEY}, put them"
    )
    print_message(
        f"in its place and remove {SITE_BINARY}; otherwise give the new {SITE_JSON} to whoever has the old one."
    )
    for prefix in closed:
        typer.echo(printable(f"no names are made under {prefix} until: {reopen_command(prefix)}"))


def rebuild(
    view: Annotated[View | None, typer.Argument(metavar="answers|records|targets", help="Which; default all.")] = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Make the views anew from the ledger, while they are in use: what is served, and how records are found.

    Nothing is lost by it. Do it when `perseid check` or `perseid verify --all` says so. Answers are made from records:
    where those were damaged, make both anew.

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
                typer.echo(f"{each.value}  {done:,} entries")


def _reopen(prefix: str, last: str, directory: Path | None, json: bool) -> None:
    with open_installation(directory) as session:
        counter = reopen_counter(session, prefix, last)
    if json:
        document: dict[str, object] = {"prefix": counter.prefix, "last": counter.last}
        print_json(document | ({"lastName": counter.last_name} if counter.last_name else {}))
    else:
        print_fields({"names go on behind": printable(counter.last_name or str(counter.last))})


def _rebuild(ledger: Ledger, view: View) -> int:
    """Make one view anew; up to which entry."""
    with ledger.reading() as reading:
        size = reading.size
    if view is not View.ANSWERS:
        with progress(f"rebuilding {view.value}", size) as update:
            return rebuild_view(ledger.log, view.value, update)
    with progress("rebuilding answers", unit="records") as update:
        if not ledger.answers.rebuild(ledger.reading, update):
            raise StorageFull("the answers could not be built: there is no room, or it cannot be used; nothing is lost")
    return ledger.answers.applied


def _write_to_stdout(log: Log, since: int) -> None:
    if sys.stdout.isatty():
        raise LedgerError(
            "a backup contains secrets and is not shown on a terminal; name a file, or a program behind |"
        )
    with progress("backing up") as update:
        write_backup(log, sys.stdout.buffer, since, update)
    sys.stdout.buffer.flush()


def _print_backup(path: Path, header: Header, json: bool) -> None:
    size = path.stat().st_size
    if json:
        document: dict[str, object] = {"file": str(path), "since": header.since, "until": header.until}
        print_json(document | {"origin": header.origin, "octets": size, "madeAt": header.made_at})
        return
    print_fields(
        {
            "file": printable(str(path)),
            "entries": f"{header.since + 1:,} to {header.until:,}" if header.until > header.since else "none",
            "octets": f"{size:,}",
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

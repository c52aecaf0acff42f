"""`perseid key`: the keys that sign for an installation, and how one takes the place of another.

Which key signs stands in the ledger, and the private key in a file; the two cannot be changed in one step. So the new
key is on the disk before the ledger names it, under a name of its own, and takes the old one's place afterwards:

1. `checkpoint.key.next` is written and synced;
2. an entry of the ledger, signed with the old key, names the new one;
3. `checkpoint.key.next` becomes `checkpoint.key`.

Whoever is interrupted before the second step has the old key, and afterwards both files, of which the ledger says which
one counts: the same command again does the third step. At no point is a key that the ledger names nowhere.

The server's key is exchanged in the same manner, with the site information in the place of the ledger: see
`registry.site_making`.
"""

import secrets
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.entry import Entry
from perseid.ledger.log.record_keys import LEDGER, record_key
from perseid.ledger.log.requests import Appended
from perseid.ledger.log.signing import WrongKey, parse_key_change
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import sync_directory
from perseid.proof.verifier import LogKey
from perseid.registry.installation.files import InstallationError, write_file
from perseid.registry.installation.installation import (
    CHECKPOINT_KEY,
    KEYS_NAME,
    NEXT_CHECKPOINT_KEY,
    Installation,
    load_settings,
)
from perseid.registry.installation.site import fingerprint, load_server_identity
from perseid.registry.installation.site_setup import rotate as rotate_server

from ._loading import Group, register_command
from ._output import AsJson, print_fields, print_json, print_message
from ._place import INTERFACE, Directory, directory_of, get_identity, open_installation
from ._values import printable
from .verify import iso_time, short_time

_SEED_SIZE = 32

app = typer.Typer(cls=Group, help="Show and exchange the keys that sign.", no_args_is_help=True)


class _KeyChange(NamedTuple):
    """An entry that changed the key, with the key before it and the one after it."""

    entry: Entry
    old: LogKey
    new: LogKey


class Purpose(StrEnum):
    """What a key is for."""

    CHECKPOINT = "checkpoint"
    SERVER = "server"


@register_command(app, "list")
def list_(directory: Directory = None, json: AsJson = False) -> None:
    """Show the public keys: of the server, and of the ledger, which has signed with some and signs with the last one.

    Give those of the ledger to whoever checks proofs. That of the server stands in its site information; here it is
    shown with its fingerprint, and with `--json` as a whole.

    For example:
        perseid key list
    """
    with Installation.open(directory_of(directory), writable=False) as installation:
        changes = _key_changes(installation)
        keys = keys_of(installation)
        _print_server_key(installation, json)
    # The entry with which each key began, and the one with which it ended.
    entries = [change.entry for change in changes]
    begins: list[Entry | None] = [None, *entries]
    ends: list[Entry | None] = [*entries, None]
    for key, begin, end in zip(keys, begins, ends, strict=True):
        if json:
            print_json(
                {
                    "purpose": Purpose.CHECKPOINT.value,
                    "key": str(key),
                    "signs": end is None,
                    "since": None if begin is None else begin.seq,
                    "sinceTime": None if begin is None else iso_time(begin.at),
                    "until": None if end is None else end.seq,
                }
            )
        else:
            since = "the beginning" if begin is None else f"entry {begin.seq} ({short_time(begin.at)})"
            until = "signs now" if end is None else f"until entry {end.seq}"
            typer.echo(f"{Purpose.CHECKPOINT.value}  {printable(str(key))}  {until}, since {since}")


@register_command(app, "rotate")
def rotate(
    purpose: Annotated[Purpose, typer.Argument(metavar="server|checkpoint", help="Which key.")],
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Put a new key in the place of the one that signs checkpoints, or of the one with which the server signs.

    If this was interrupted, the same command again finishes it. The old private key is gone then.

    **checkpoint**: the old key signs the hand-over, and whoever trusts it can go on: proofs carry the chain. A server
    that is running learns of the new key when it is started again; until then it signs no checkpoints.

    **server**: the site information gets the new public key and the next serial number, in both forms. A server that is
    running takes it up when it is told to load its settings again (SIGHUP). Clients learn it from the server; where a
    prefix handle or another server of the site has a copy of the site information, put the new one there. Where there
    is no key yet, the first one is made.

    For example:
        perseid key rotate checkpoint
        perseid key rotate server --json
    """
    folder = directory_of(directory).resolve()
    if purpose is Purpose.SERVER:
        _rotate_server(folder, json)
        return
    finished = finish_rotation(folder)
    if finished is None:
        with open_installation(directory) as session:
            ledger = session.registry.ledger
            with ledger.reading() as reading:
                origin = reading.origin
            new = Signer.generate(origin, secrets.token_bytes(_SEED_SIZE))
            _write_next(folder, new)
            outcome = ledger.rotate_key(new, INTERFACE, str(get_identity(None)))
            if not isinstance(outcome, Appended):
                raise outcome if isinstance(outcome, LedgerError) else WrongKey(f"the key stays as it is: {outcome}")
            _put_in_place(folder)
        finished = new.public
    if json:
        print_json({"purpose": purpose.value, "key": str(finished)})
    else:
        print_fields({"signs now": printable(str(finished))})


def _print_server_key(installation: Installation, json: bool) -> None:
    try:
        found = load_server_identity(installation.directory, installation.config)
    except InstallationError as problem:
        print_message(f"perseid: the server's key is not shown: {printable(str(problem))}")
        return
    key, serial = found.key.public, found.site.serial
    if json:
        print_json(
            {
                "purpose": Purpose.SERVER.value,
                "key": key.to_json(),
                "fingerprint": fingerprint(key),
                "signs": True,
                "serialNumber": serial,
                "position": found.position + 1,
            }
        )
    else:
        typer.echo(f"{Purpose.SERVER.value}  {fingerprint(key)}  signs now, with serial number {serial} of the site")


def _rotate_server(folder: Path, json: bool) -> None:
    rotated = rotate_server(folder, load_settings(folder))
    if json:
        print_json(
            {
                "purpose": Purpose.SERVER.value,
                "key": rotated.key.to_json(),
                "fingerprint": fingerprint(rotated.key),
                "serialNumber": rotated.site.serial,
                "siteInformation": [str(path) for path in rotated.site_paths],
            }
        )
        return
    names = ", ".join(printable(str(path)) for path in rotated.site_paths)
    fields = {"signs now": fingerprint(rotated.key), "serial number": rotated.site.serial, "site information": names}
    print_fields(fields)
    print_message(
        "A server that is running takes it up with SIGHUP. Wherever a copy of the site information is kept (prefix"
    )
    print_message("handles, other servers of the site), put the new one.")


def keys_of(installation: Installation) -> list[LogKey]:
    """The keys with which a ledger signs and has signed, the oldest first."""
    changes = _key_changes(installation)
    if not changes:
        path = installation.directory / KEYS_NAME / CHECKPOINT_KEY
        return [Signer.from_bytes(path.read_bytes()).public]
    return [changes[0].old, *[change.new for change in changes]]


def finish_rotation(directory: Path) -> LogKey | None:
    """Do the last step of a rotation that was interrupted; the key that signs now, or None if nothing was left."""
    if not (directory / KEYS_NAME / NEXT_CHECKPOINT_KEY).exists():
        return None
    with Installation.open(directory, writable=False) as installation:
        waiting = find_pending_key(installation)
    if waiting is not None:
        _put_in_place(directory)
    return waiting


def find_pending_key(installation: Installation) -> LogKey | None:
    """The key that the ledger names and that has yet to take the old one's place; None if there is none."""
    try:
        waiting = Signer.from_bytes((installation.directory / KEYS_NAME / NEXT_CHECKPOINT_KEY).read_bytes()).public
    except (FileNotFoundError, ValueError):
        return None  # or it was being written, so the ledger does not name it
    changes = _key_changes(installation)
    return waiting if changes and changes[-1].new == waiting else None


def _write_next(directory: Path, signer: Signer) -> None:
    path = directory / KEYS_NAME / NEXT_CHECKPOINT_KEY
    # Left by somebody who was interrupted; `finish_rotation` has found that it never counted.
    path.unlink(missing_ok=True)
    write_file(path, signer.to_bytes())
    sync_directory(path.parent)


def _put_in_place(directory: Path) -> None:
    folder = directory / KEYS_NAME
    (folder / NEXT_CHECKPOINT_KEY).replace(folder / CHECKPOINT_KEY)
    sync_directory(folder)


def _key_changes(installation: Installation) -> list[_KeyChange]:
    """How the key changed, in order."""
    with installation.log.reading() as reading:
        entries = list(reading.history(record_key(LEDGER)))[::-1]
    return [_KeyChange(entry, *change) for entry in entries if (change := parse_key_change(entry)) is not None]

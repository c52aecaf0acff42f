"""`perseid key`: list and rotate the keys of an installation, and generate keys for users.

The ledger names the key that signs, and a file holds the private key; the two cannot change in one step. So a rotation
writes the new key under another name first:

1. write and sync `checkpoint.key.next`;
2. append an entry, signed with the old key, that names the new one;
3. rename `checkpoint.key.next` to `checkpoint.key`.

If it is interrupted before step 2, the old key stays valid. After step 2, both files exist and the ledger says which
key is valid; the same command then does step 3. A key that the ledger names always exists in a file.

The server's key is rotated in the same way, with the site information in place of the ledger: see
`perseid.registry.installation.site`.
"""

import secrets
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.entry import Entry
from perseid.ledger.log.record_keys import LEDGER, record_key
from perseid.ledger.log.requests import Appended
from perseid.ledger.log.signing import WrongKey, parse_key_change
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import sync_directory
from perseid.proof.verifier import LogKey
from perseid.records.encoding import iso_time
from perseid.records.private_keys import PrivateKey, write_key_file
from perseid.registry.installation.files import InstallationError, write_file
from perseid.registry.installation.installation import (
    CHECKPOINT_KEY,
    KEYS_NAME,
    NEXT_CHECKPOINT_KEY,
    Installation,
    load_settings,
)
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import MAX_PASSPHRASE, generate_key, load_server_identity
from perseid.registry.installation.site import rotate as rotate_server

from ._arguments import INTERFACE, Directory, get_identity, open_installation, printable, read_bytes, resolve_directory
from ._commands import Group, register_command
from ._output import AsJson, print_fields, print_json, print_message, print_text
from .verify import short_time

_SEED_SIZE = 32

app = typer.Typer(
    cls=Group,
    help="List and rotate the signing keys; generate keys for users.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


class _KeyChange(NamedTuple):
    """An entry that changed the key, with the old and the new key."""

    entry: Entry
    old: LogKey
    new: LogKey


class Purpose(StrEnum):
    """The purpose of a key."""

    CHECKPOINT = "checkpoint"
    SERVER = "server"


class KeyFormat(StrEnum):
    """The form of key files."""

    PEM = "pem"
    HANDLE = "handle"


@register_command(app, "list")
def list_(directory: Directory = None, json: AsJson = False) -> None:
    """List the public keys: of the server, and of the ledger, oldest first.

    Users need a key of the ledger to verify proofs. The server's key is also in its site information; here its
    fingerprint is shown, and with `--json` the whole key.

    For example:
        perseid key list
    """
    with Installation.open(resolve_directory(directory), writable=False) as installation:
        changes = _key_changes(installation)
        keys = list_keys(installation)
        _print_server_key(installation, json)
    # The entries that started and ended the use of each key.
    entries = [change.entry for change in changes]
    starts: list[Entry | None] = [None, *entries]
    ends: list[Entry | None] = [*entries, None]
    for key, start, end in zip(keys, starts, ends, strict=True):
        if json:
            print_json(
                {
                    "purpose": Purpose.CHECKPOINT.value,
                    "key": str(key),
                    "active": end is None,
                    "since": None if start is None else start.seq,
                    "since_time": None if start is None else iso_time(start.at),
                    "until": None if end is None else end.seq,
                }
            )
        else:
            since = "the beginning" if start is None else f"entry {start.seq} ({short_time(start.at)})"
            until = "active" if end is None else f"until entry {end.seq}"
            print_text(f"{Purpose.CHECKPOINT.value}  {printable(str(key))}  {until}, since {since}")


@register_command(app, "rotate")
def rotate(
    purpose: Annotated[Purpose, typer.Argument(metavar="server|checkpoint", help="The key to rotate.")],
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Replace the key that signs checkpoints, or the key of the server.

    If the rotation is interrupted, run the same command again to finish it. The old private key is deleted.

    **checkpoint**: the old key signs the entry that names the new one, so users who trust the old key can verify new
    proofs. A running server loads the new key when it is restarted; until then it signs no checkpoints.

    **server**: the site information gets the new public key and the next serial number. A running server loads them on
    SIGHUP. Clients get the new site information from the server; replace the copies in prefix handles and on other
    servers of the site. If there is no key yet, the first one is created.

    For example:
        perseid key rotate checkpoint
        perseid key rotate server --json
    """
    folder = resolve_directory(directory).resolve()
    if purpose is Purpose.SERVER:
        _rotate_server(folder, json)
        return
    current = finish_rotation(folder)
    if current is None:
        with open_installation(directory, maintains=True) as session:
            ledger = session.registry.ledger
            with ledger.open_reader() as reader:
                origin = reader.origin
            new = Signer.generate(origin, secrets.token_bytes(_SEED_SIZE))
            _write_next(folder, new)
            outcome = ledger.rotate_key(new, INTERFACE, str(get_identity(None)))
            if not isinstance(outcome, Appended):
                raise outcome if isinstance(outcome, LedgerError) else WrongKey(f"the key is unchanged: {outcome}")
            _activate_next(folder)
        current = new.public
    if json:
        print_json({"purpose": purpose.value, "key": str(current)})
    else:
        print_fields({"active key": printable(str(current))})
        _mention_nodes(load_settings(folder))


@register_command(app, "generate")
def generate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file for the private key.")],
    format_: Annotated[KeyFormat, typer.Option("--format", help="The form of both files.")] = KeyFormat.PEM,
    passphrase_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt the private key with the passphrase in this file.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Generate a key pair for a user: the private key in FILE, readable only by you, the public key in FILE.pub.

    Store the public key in the handle of the identity, and use the private key to authenticate. **pem** is read by most
    tools, **handle** by those of the Handle System.

    For example:
        perseid key generate my.key
        perseid key generate my.bin --format handle --json
    """
    passphrase = None if passphrase_file is None else read_bytes(str(passphrase_file), MAX_PASSPHRASE).strip(b"\r\n")
    if passphrase == b"":
        raise typer.BadParameter("the file is empty; write a passphrase to it", param_hint="--passphrase-file")
    public_file = file.with_name(f"{file.name}.pub")
    for path in (file, public_file):
        if path.exists():
            raise typer.BadParameter(f"{path} exists; choose another file", param_hint="FILE")
    key = generate_key()
    if format_ is KeyFormat.HANDLE:
        private, public = write_key_file(key, passphrase, secrets.token_bytes), key.public.to_bytes()
    else:
        private, public = _to_pem(key, passphrase)
    write_file(file, private)
    write_file(public_file, public)
    if json:
        files = {"private_key_file": str(file), "public_key_file": str(public_file)}
        print_json({"fingerprint": key.public.fingerprint, "key": key.public.to_json()} | files)
    else:
        fields = {"private key": file, "public key": public_file, "fingerprint": key.public.fingerprint}
        print_fields({name: printable(str(value)) for name, value in fields.items()})


def _to_pem(key: PrivateKey, passphrase: bytes | None) -> tuple[bytes, bytes]:
    """Encode a private and its public key as PEM."""
    library = load_der_private_key(key.to_pkcs8(), None)
    protection = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return (
        library.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection),
        library.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def _print_server_key(installation: Installation, json: bool) -> None:
    try:
        identity = load_server_identity(installation.directory, installation.config)
    except InstallationError as problem:
        print_message(f"perseid: the server's key cannot be shown: {printable(str(problem))}")
        return
    key, serial = identity.key.public, identity.site.serial
    if json:
        print_json(
            {
                "purpose": Purpose.SERVER.value,
                "key": key.to_json(),
                "fingerprint": key.fingerprint,
                "active": True,
                "serial_number": serial,
                "position": identity.position + 1,
            }
        )
    else:
        print_text(f"{Purpose.SERVER.value}  {key.fingerprint}  active, serial number {serial} of the site")


def _rotate_server(folder: Path, json: bool) -> None:
    config = load_settings(folder)
    rotated = rotate_server(folder, config)
    if json:
        print_json(
            {
                "purpose": Purpose.SERVER.value,
                "key": rotated.key.to_json(),
                "fingerprint": rotated.key.fingerprint,
                "serial_number": rotated.site.serial,
                "site_information": [str(path) for path in rotated.site_paths],
            }
        )
        return
    paths = ", ".join(printable(str(path)) for path in rotated.site_paths)
    fields = {"active key": rotated.key.fingerprint, "serial number": rotated.site.serial, "site information": paths}
    print_fields(fields)
    print_message("A running server loads the key on SIGHUP. Replace all copies of the site information, in prefix")
    print_message("handles and on other servers of the site.")
    _mention_nodes(config)


def _mention_nodes(config: Config) -> None:
    if config.ledger.database:
        print_message("Other nodes of the database have the old key: take the new one there at once, by")
        print_message("perseid node export here and perseid node join there.")


def list_keys(installation: Installation) -> list[LogKey]:
    """Return the past keys of a ledger and the active one, oldest first."""
    changes = _key_changes(installation)
    if not changes:
        path = installation.directory / KEYS_NAME / CHECKPOINT_KEY
        return [Signer.from_bytes(path.read_bytes()).public]
    return [changes[0].old, *[change.new for change in changes]]


def finish_rotation(directory: Path) -> LogKey | None:
    """Finish an interrupted rotation and return the active key; return None if there was none."""
    if not (directory / KEYS_NAME / NEXT_CHECKPOINT_KEY).exists():
        return None
    with Installation.open(directory, writable=False) as installation:
        pending = find_pending_key(installation)
    if pending is not None:
        _activate_next(directory)
    return pending


def find_pending_key(installation: Installation) -> LogKey | None:
    """Return the key that the ledger names but that is not in its final file yet, or None."""
    try:
        pending = Signer.from_bytes((installation.directory / KEYS_NAME / NEXT_CHECKPOINT_KEY).read_bytes()).public
    except (FileNotFoundError, ValueError):
        return None  # a partly written key is not named in the ledger
    changes = _key_changes(installation)
    return pending if changes and changes[-1].new == pending else None


def _write_next(directory: Path, signer: Signer) -> None:
    path = directory / KEYS_NAME / NEXT_CHECKPOINT_KEY
    # Left over from an interrupted rotation; `finish_rotation` has checked that the ledger does not name it.
    path.unlink(missing_ok=True)
    write_file(path, signer.to_bytes())
    sync_directory(path.parent)


def _activate_next(directory: Path) -> None:
    folder = directory / KEYS_NAME
    (folder / NEXT_CHECKPOINT_KEY).replace(folder / CHECKPOINT_KEY)
    sync_directory(folder)


def _key_changes(installation: Installation) -> list[_KeyChange]:
    """Return the changes of the key, oldest first."""
    with installation.log.open_reader() as reader:
        entries = list(reader.history(record_key(LEDGER)))[::-1]
    return [_KeyChange(entry, *change) for entry in entries if (change := parse_key_change(entry)) is not None]


commands: dict[str, Callable[..., None] | typer.Typer] = {"key": app}

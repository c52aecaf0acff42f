"""Creating an installation from backups, and the restore drill: restoring into a scratch directory and comparing.

An installation is restored completely, verified and in place, or not at all.
"""

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from perseid.ledger.backup.archive import ENTRY, ArchiveReader, BackupSource, Header
from perseid.ledger.backup.restore import RestoreResult, StoreNotEmpty
from perseid.ledger.backup.restore import restore as restore_ledger
from perseid.ledger.errors import CorruptData
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.record_keys import POLICY
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import DIRECTORY_MODE, sync_directory
from perseid.ledger.verify import verify
from perseid.names.schemes import DEFAULT_MAX_AHEAD
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.snapshot import POLICY_TYPE

from .files import place, remove_files, staging_directory, write_file
from .full_backup import BackupFile, collect_files, restored_name, write_files
from .installation import (
    CHECKPOINT_KEY,
    KEYS_NAME,
    Installation,
    new_log,
    open_store,
    translate_errors,
    write_server_files,
)
from .sections import LedgerSection, mask_password
from .settings import FILE_NAME, Config, config_template, decode_settings

_SEED_SIZE: Final = 32
_POLICY_BYTES: Final = POLICY.encode()


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to restore."""

    backups: Sequence[BackupFile]
    """A backup from the first entry on, and its increments, in order."""
    by: tuple[str, str]
    """The interface and the actor."""
    settings: bytes | None = None
    """The `perseid.toml`; None for that of the last backup, or the defaults if it has none."""


@dataclass(frozen=True, slots=True)
class Drill:
    """The result of a restore drill."""

    header: Header
    """The header of the last backup."""
    files: Mapping[str, bytes]
    """The settings, keys and other files that were restored."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an installation differs from a backup of it."""

    later_entries: int
    """Entries that are not in the backup."""
    changed_files: tuple[str, ...]
    """Files that are in the backup and differ, or do not exist any more."""


def restore_installation(
    directory: Path, request: RestoreRequest, update: Callable[[int], None]
) -> tuple[RestoreResult, Mapping[str, bytes]]:
    """Create an installation in a directory that is new or empty; return also the files that the backup has."""
    files = request.backups[-1].read_files()
    settings = _choose_settings(request, files)
    config = Config.parse(decode_settings(settings), os.environ)
    return _restore(directory, request, files, settings, config, update), files


def run_drill(request: RestoreRequest, update: Callable[[int], None]) -> Drill:
    """Restore backups into a scratch directory, verify everything there, and compare it with the backups.

    No database of the settings is touched. The scratch directory is in $TMPDIR and removed at the end.
    """
    files = request.backups[-1].read_files()
    settings = _choose_settings(request, files)
    config = msgspec.structs.replace(Config.parse(decode_settings(settings), {}), ledger=LedgerSection())
    with tempfile.TemporaryDirectory(prefix="perseid-drill-") as folder:
        directory = Path(folder) / "restored"
        _restore(directory, request, files, settings, config, update)
        header = _read_header(request.backups[-1])
        with closing(open_store(directory, config)) as store:
            log = new_log(store)
            verify(log)
            with log.open_reader() as reader:
                is_same = reader.root(header.until) == header.root_until
        restored = dict(collect_files(directory, config))
        is_same = is_same and all(restored.get(restored_name(name)) == data for name, data in files.items())
    if not is_same:
        raise CorruptData("the restored installation differs from the backup; create another backup")
    return Drill(header, files)


def compare(directory: Path, drill: Drill) -> Comparison:
    """Compare a backup with the installation that it should be of; raise `CorruptData` if it is not."""
    header = drill.header
    with Installation.open(directory, writable=False) as installation, installation.log.open_reader() as reader:
        if reader.origin != header.origin:
            raise CorruptData(
                f"the backup is of the ledger {header.origin}, and the installation in {directory} has "
                f"{reader.origin}; name the installation of the backup with -d DIR"
            )
        if reader.size < header.until or reader.root(header.until) != header.root_until:
            raise CorruptData(
                f"the backup is valid, but the installation in {directory} does not have its {header.until:,} "
                "entries; run: perseid verify --all"
            )
        present = dict(collect_files(installation.directory, installation.config))
        changed = [name for name, data in drill.files.items() if present.get(name) != data]
        return Comparison(reader.size - header.until, tuple(changed))


def _choose_settings(request: RestoreRequest, files: Mapping[str, bytes]) -> bytes:
    if request.settings is not None:
        return request.settings
    return files[FILE_NAME] if files else config_template().encode()


def _read_header(backup: BackupFile) -> Header:
    with backup.open() as stream:
        return ArchiveReader(backup.name, stream).header


def _restore(
    directory: Path,
    request: RestoreRequest,
    files: Mapping[str, bytes],
    settings: bytes,
    config: Config,
    update: Callable[[int], None],
) -> RestoreResult:
    backups, ahead = request.backups, find_max_ahead(request.backups)
    placed: list[Path] = []
    with staging_directory(directory, FILE_NAME) as work:
        (work / KEYS_NAME).mkdir(DIRECTORY_MODE)
        write_files(work, {name: data for name, data in files.items() if name != FILE_NAME})
        write_file(work / FILE_NAME, settings)
        if not files:
            # Without the old key there is a new one. It is not encrypted: the old passphrase may be lost.
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
                result = restore_ledger(backups, new_log(store), create_key, request.by, ahead, update)
            except BaseException:
                remove_files(placed)
                raise
            if in_directory:
                store.close()  # removes the files beside the database
                place(work, directory, KEYS_NAME, FILE_NAME)
    return result


def find_max_ahead(backups: Sequence[BackupSource]) -> int:
    """Return the longest time, in milliseconds, that any policy in the backups let suffixes run ahead of the clock.

    A backup does not contain the last suffixes, so minting continues after all that can have been used.
    """
    farthest = DEFAULT_MAX_AHEAD
    for backup in backups:
        with backup.open("rb") as stream:
            archive = ArchiveReader(backup.name, stream)
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

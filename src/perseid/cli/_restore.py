"""Restoring an installation from backups, and the counters of suffixes after a restore.

The installation is restored completely, verified and in place, or not at all.

A backup does not know which numbers were leased after it was made. Suffixes made from the time continue ahead of the
clock. Where suffixes are counted (`scheme = "pattern:…"`), a restored ledger mints none until an operator says which
was the last one: `perseid restore --reopen`.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from perseid.ledger.backup.archive import ENTRY, ArchiveReader
from perseid.ledger.backup.restore import RestoreResult, StoreNotEmpty, reopen_lease, restore
from perseid.ledger.errors import LeaseClosed, LedgerError
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.record_keys import POLICY
from perseid.ledger.log.requests import Lease, Leased
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import DIRECTORY_MODE, sync_directory
from perseid.names.allocator import DEFAULT_MAX_AHEAD, MemoryLease
from perseid.names.characters import fold
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.pattern import PatternScheme
from perseid.names.suffix_scheme import Scheme, Source
from perseid.registry.commands.namespaces import check_prefix, namespaces
from perseid.registry.installation.files import place, remove_files, staging_directory, write_file
from perseid.registry.installation.installation import (
    CHECKPOINT_KEY,
    KEYS_NAME,
    new_log,
    open_store,
    translate_errors,
    write_server_files,
)
from perseid.registry.installation.sections import mask_password
from perseid.registry.installation.settings import FILE_NAME, Config, config_template
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.snapshot import POLICY_TYPE, Snapshot

from ._installation import OpenInstallation, parse_handle

_MAX_DIGITS = 18  # of a number that the ledger can store


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
    reopen_lease(ledger.log, _lease_scope(prefix, scheme), _parse_number(last, prefix, scheme))
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


_SEED_SIZE: Final = 32
_POLICY_BYTES: Final = POLICY.encode()


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
                result = restore(files, new_log(store), create_key, by, ahead, update)
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

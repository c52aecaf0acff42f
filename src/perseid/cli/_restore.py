"""Counters from which names are made, and how they go on after a restore.

A backup does not know which numbers were given out after it was made. Names made from the time go on ahead of the
clock; where names are counted (`scheme = "pattern:…"`) nobody can tell, so a restored ledger gives out none until an
operator, who knows the last one, says so: `perseid restore --reopen`.

An installation made from backups: whole, checked and in its place, or not at all.
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
from perseid.registry.installation.installation import CHECKPOINT_KEY, KEYS_NAME, new_log, open_store, translate_errors
from perseid.registry.installation.setting_kinds import mask_password
from perseid.registry.installation.settings import FILE_NAME, Config, config_template
from perseid.registry.installation.site_setup import write_server_files
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.snapshot import POLICY_TYPE, Snapshot

from ._place import OpenInstallation, parse_handle

_MAX_DIGITS = 18  # of a number that the ledger can keep


@dataclass(frozen=True, slots=True)
class Counter:
    """A namespace whose names are counted."""

    prefix: str
    scheme: Scheme
    closed: bool
    """Whether nothing is given out until somebody says where to go on."""
    last: int
    """The last number that is known to be given out; -1 if none is."""

    @property
    def last_name(self) -> str:
        """The last name that is known to be given out; empty if none is, or it cannot be told."""
        if self.last < 0 or not isinstance(self.scheme, PatternScheme):
            return ""
        try:
            return f"{self.prefix}/{self.scheme.format(self.last)}"
        except NameMisuse:
            return ""  # beyond what the template has names for


def reopen_command(prefix: str) -> str:
    """The command with which an operator lets names be made again."""
    return f"perseid restore --reopen {prefix} --last NAME"


def reopen_counter(place: OpenInstallation, prefix: str, last: str) -> Counter:
    """Let names be made again behind the last one that was given out, which is a number or a name."""
    check_prefix(prefix)
    with place.registry.snapshot() as snapshot:
        scheme = snapshot.policy(prefix).suffix_scheme()
    if scheme is None or not uses_counter(scheme):
        raise LedgerError(f"the names of {prefix} are not counted, so nothing waits there")
    ledger = place.registry.ledger
    reopen_lease(ledger.log, _lease_scope(prefix, scheme), _parse_number(last, prefix, scheme))
    return _load_counter(ledger, prefix, scheme)


def counters(place: OpenInstallation) -> Iterator[Counter]:
    """The counters of all namespaces."""
    with place.registry.snapshot() as snapshot:
        found = list(_counted_namespaces(snapshot))
    for prefix, scheme in found:
        yield _load_counter(place.registry.ledger, prefix, scheme)


def uses_counter(scheme: Scheme) -> bool:
    """Whether a scheme takes numbers that have no clock; it is tried out to learn that."""
    clocks: list[int] = []
    memory = MemoryLease()

    def lease(count: int, now: int) -> int:
        clocks.append(now)
        return memory(count, now)

    scheme.mint(Source(time.time_ns, secrets.token_bytes, lease, time.sleep), 1)
    return bool(clocks) and not any(clocks)


def _lease_scope(prefix: str, scheme: Scheme) -> bytes:
    """Where the numbers of a namespace are unique, as minting names it."""
    return f"{fold(prefix)} {scheme.name}".encode()


def _counted_namespaces(snapshot: Snapshot) -> Iterator[tuple[str, Scheme]]:
    for prefix in namespaces(snapshot.reading):
        try:
            scheme = snapshot.policy(prefix).suffix_scheme()
        except InvalidPolicy:
            continue  # that is another finding
        if scheme is not None and uses_counter(scheme):
            yield prefix, scheme


def _load_counter(ledger: Ledger, prefix: str, scheme: Scheme) -> Counter:
    """How far a counter has come: a look, which takes no number."""
    outcome = ledger.append(Lease(_lease_scope(prefix, scheme), 0, 0))[0]
    if isinstance(outcome, LeaseClosed):
        return Counter(prefix, scheme, True, outcome.last)
    if not isinstance(outcome, Leased):
        raise LedgerError(f"the counter of {prefix} cannot be read: {outcome}")
    return Counter(prefix, scheme, False, outcome.first - 1)


def _parse_number(text: str, prefix: str, scheme: Scheme) -> int:
    """The number that was given, or that of the name that was given."""
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
        return int(text)
    if "/" not in text:
        raise typer.BadParameter("the last name that was given out is expected, or its number", param_hint="--last")
    handle = parse_handle(text, new=True)
    if fold(handle.prefix) != fold(prefix):
        raise typer.BadParameter(f"{handle} is no name of {prefix}", param_hint="--last")
    if not isinstance(scheme, PatternScheme):
        raise typer.BadParameter("give the number: names of this scheme do not tell it", param_hint="--last")
    try:
        return scheme.parse(handle.suffix)
    except InvalidName as problem:
        raise typer.BadParameter(str(problem), param_hint="--last") from problem


_SEED_SIZE: Final = 32
_POLICY_BYTES: Final = POLICY.encode()


def restore_installation(
    directory: Path, files: Sequence[Path], settings: str | None, by: tuple[str, str], update: Callable[[int], None]
) -> RestoreResult:
    """Make an installation from a full backup and the increments that follow it, in a directory that is new or empty.

    `settings` is the text of its `perseid.toml`; None takes the defaults. `by` is the door and the actor.
    """
    text = config_template() if settings is None else settings
    config = Config.parse(text, os.environ)
    ahead = find_max_ahead(files)
    placed: list[Path] = []
    with staging_directory(directory, FILE_NAME) as work:
        write_file(work / FILE_NAME, text.encode())
        (work / KEYS_NAME).mkdir(DIRECTORY_MODE)
        # The server's key is in no backup. The new one is not protected: the passphrase may be lost with the old one.
        write_server_files(work, config)
        with closing(open_store(work, config, new=True)) as store, translate_errors(store, config):
            in_directory = store.dialect == "sqlite"

            def keep(origin: str) -> Signer:
                """Make the new key. It must be in its place before a database has the ledger that names it."""
                signer = Signer.generate(origin, secrets.token_bytes(_SEED_SIZE))
                write_file(work / KEYS_NAME / CHECKPOINT_KEY, signer.to_bytes())
                sync_directory(work / KEYS_NAME)
                if not in_directory:
                    placed.extend(place(work, directory, KEYS_NAME, FILE_NAME))
                return signer

            if store.version() is not None:
                raise StoreNotEmpty(
                    f"there is a ledger in {mask_password(config.ledger_database)} already; name an empty database"
                )
            store.upgrade()
            try:
                made = restore(files, new_log(store), keep, by, ahead, update)
            except BaseException:
                remove_files(placed)
                raise
            if in_directory:
                store.close()  # nothing is left beside the file then
                place(work, directory, KEYS_NAME, FILE_NAME)
    return made


def find_max_ahead(files: Sequence[Path]) -> int:
    """The farthest, in milliseconds, that a namespace ever let its names run ahead of the clock, as backups tell.

    What was given out last is not in a backup, so names go on behind all that can have been given out.
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
    """How far an entry lets names run ahead, if it holds a policy; what is damaged, the restore will tell."""
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

"""An installation made from backups: whole, checked and in its place, or not at all."""

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from perseid.ledger.backup.archive import ENTRY, ArchiveReader
from perseid.ledger.backup.restore import NotEmpty, Restored, restore
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.record_keys import POLICY
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import DIRECTORY_MODE, sync_directory
from perseid.names.allocator import DEFAULT_MAX_AHEAD
from perseid.registry.installation.files import place, remove, workplace, write
from perseid.registry.installation.installation import CHECKPOINT_KEY, KEYS_NAME, explaining, new_log, open_store
from perseid.registry.installation.setting_kinds import masked
from perseid.registry.installation.settings import FILE_NAME, Config, template
from perseid.registry.installation.site_setup import write_new
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.snapshot import POLICY_TYPE

_SEED_OCTETS: Final = 32
_POLICY_OCTETS: Final = POLICY.encode()


def restored(
    directory: Path, files: Sequence[Path], settings: str | None, by: tuple[str, str], tell: Callable[[int], None]
) -> Restored:
    """Make an installation from a full backup and the increments that follow it, in a directory that is new or empty.

    `settings` is the text of its `perseid.toml`; None takes the defaults. `by` is the door and the actor.
    """
    text = template() if settings is None else settings
    config = Config.parse(text, os.environ)
    ahead = farthest_ahead(files)
    placed: list[Path] = []
    with workplace(directory, FILE_NAME) as work:
        write(work / FILE_NAME, text.encode())
        (work / KEYS_NAME).mkdir(DIRECTORY_MODE)
        # The server's key is in no backup. The new one is not protected: the passphrase may be lost with the old one.
        write_new(work, config)
        with closing(open_store(work, config, new=True)) as store, explaining(store, config):
            in_directory = store.dialect == "sqlite"

            def keep(origin: str) -> Signer:
                """Make the new key. It must be in its place before a database has the ledger that names it."""
                signer = Signer.generate(origin, secrets.token_bytes(_SEED_OCTETS))
                write(work / KEYS_NAME / CHECKPOINT_KEY, signer.to_octets())
                sync_directory(work / KEYS_NAME)
                if not in_directory:
                    placed.extend(place(work, directory, KEYS_NAME, FILE_NAME))
                return signer

            if store.version() is not None:
                raise NotEmpty(f"there is a ledger in {masked(config.ledger_database)} already; name an empty database")
            store.upgrade()
            try:
                made = restore(files, new_log(store), keep, by, ahead, tell)
            except BaseException:
                remove(placed)
                raise
            if in_directory:
                store.close()  # nothing is left beside the file then
                place(work, directory, KEYS_NAME, FILE_NAME)
    return made


def farthest_ahead(files: Sequence[Path]) -> int:
    """The farthest, in milliseconds, that a namespace ever let its names run ahead of the clock, as backups tell.

    What was given out last is not in a backup, so names go on behind all that can have been given out.
    """
    farthest = DEFAULT_MAX_AHEAD
    for path in files:
        with path.open("rb") as stream:
            archive = ArchiveReader(path.name, stream)
            for kind, content in archive.frames():
                if kind == ENTRY and _POLICY_OCTETS in content:
                    farthest = max(farthest, _ahead(archive, content))
    return farthest


def _ahead(archive: ArchiveReader, content: bytes) -> int:
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

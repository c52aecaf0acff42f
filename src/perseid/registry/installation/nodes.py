"""Nodes: machines that serve one installation together, from one PostgreSQL database.

What makes a directory a node are its settings, its site information and its keys. `export_node` writes them to a file,
encrypted like a full backup, without the password of the database; `join` makes another node of it. The nodes are one
server of the site to clients, behind one address, or servers of separate sites.
"""

import os
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

from perseid.ledger.backup.encryption import EncryptedWriter, Output, open_encrypted
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import DIRECTORY_MODE

from .files import InstallationError, place, staging_directory, write_file
from .full_backup import MAX_LINE, collect_files, encode_files, parse_files
from .installation import Installation, check_version, new_log, open_store
from .sections import strip_password
from .settings import FILE_NAME, Config, InvalidConfig, decode_settings
from .site import CHECKPOINT_KEY, KEYS_NAME

FIRST_LINE: Final = b"perseid node 1\n"

# Anywhere, because an earlier URL may be in a comment.
_DATABASE_URL = re.compile(r"""postgres(?:ql)?(?:\+psycopg)?://[^\s"']+""")


def export_node(directory: Path, config: Config, stream: Output, passphrase: bytes) -> bool:
    """Write what another node needs; return whether a password of the database was left out."""
    if not config.ledger.database:
        raise InstallationError(
            "This installation keeps its ledger in a file, which only one node can serve. To move it to PostgreSQL, "
            "set ledger.database in a copy of perseid.toml, and restore a backup: "
            "perseid restore FILE --settings COPY -d DIR"
        )
    files = dict(collect_files(directory, config))
    settings = decode_settings(files[FILE_NAME])
    files[FILE_NAME] = _remove_password(settings).encode()
    encrypted = EncryptedWriter(stream, FIRST_LINE, passphrase)
    encrypted.write(encode_files(files))
    encrypted.end()
    return files[FILE_NAME] != settings.encode() or strip_password(config.ledger.database) != config.ledger.database


def join(
    directory: Path, stream: BinaryIO, name: str, passphrase: bytes, environ: Mapping[str, str] | None = None
) -> None:
    """Create a node in a new or empty directory; nothing is left behind if that fails."""
    if stream.read(len(FIRST_LINE)) != FIRST_LINE:
        raise InstallationError(f"{name} is not a file of `perseid node export`")
    plain = open_encrypted(stream, name, FIRST_LINE, passphrase)
    files = parse_files(plain.readline(MAX_LINE), name)
    config = Config.parse(decode_settings(files[FILE_NAME]), os.environ if environ is None else environ)
    directory = directory.resolve()
    with staging_directory(directory, FILE_NAME) as work:
        for path, data in files.items():
            (work / path).parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            write_file(work / path, data)
        _check_ledger(work, config, name)
        place(work, directory, KEYS_NAME, FILE_NAME)
    with Installation.open(directory, environ=environ) as installation:
        installation.ledger.answers.catch_up(installation.ledger.open_reader)  # so that it resolves at once


def _check_ledger(work: Path, config: Config, name: str) -> None:
    """Check that the database has the ledger whose checkpoints the key signs."""
    signer = Signer.from_bytes((work / KEYS_NAME / CHECKPOINT_KEY).read_bytes())
    with closing(open_store(work, config)) as store:
        check_version(work, store, config)
        with new_log(store).open_reader() as reader:
            if reader.signer != str(signer.public):
                raise InstallationError(
                    f"The database of {name} has another ledger, or its checkpoint key was rotated since; "
                    "run `perseid node export` again at a node of this database"
                )


def _remove_password(settings: str) -> str:
    """Remove the password of the database from the text of the settings, also where a variable overrides it."""
    database = Config.parse(settings, {}).ledger.database
    changed = _DATABASE_URL.sub(lambda match: strip_password(match[0]), settings)
    try:
        is_removed = Config.parse(changed, {}).ledger.database == strip_password(database)
    except InvalidConfig:
        is_removed = False
    if strip_password(database) != database and not is_removed:
        raise InstallationError(
            f"Cannot remove the password of the database from {FILE_NAME}; write the setting without escapes and "
            'other quotes, as in: database = "postgresql://user@host/database"'
        )
    return changed if is_removed else settings

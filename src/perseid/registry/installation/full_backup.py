"""Full backups: the ledger, the settings and the keys of an installation in one encrypted file.

The plaintext is one line of JSON with the small files of the installation, and then the stream of a backup of the
ledger, as `perseid.ledger.backup.archive` writes it. docs/reference/backup-format.md specifies it.

Files outside the directory that the settings name, such as certificates that another program renews, belong to the
machine: they are not in the backup, and `backup` names them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import msgspec

from perseid.ledger.backup.archive import Header, InvalidBackup, Progress, write_backup
from perseid.ledger.backup.encryption import EncryptedWriter, Output, open_encrypted
from perseid.ledger.store.directory import DIRECTORY_MODE, sync_directory
from perseid.names.errors import quote_text

from .files import InstallationError, read_file, write_file
from .settings import FILE_NAME, Config
from .site import BEFORE_SUFFIX, CHECKPOINT_KEY, KEYS_NAME, SITE_NAMES, lock_keys

if TYPE_CHECKING:
    from .installation import Installation

FIRST_LINE: Final = b"perseid full backup 1\n"

MAX_FILES: Final = 16_777_216
"""Maximum bytes of all files but the ledger: twice the longest site information, keys, certificates and a logo."""

FILE_SETTINGS: Final = (
    *("keys.passphrase_file", "http.certificate_file", "http.key_file", "service.logo_file", "identities.root"),
)
"""Settings that can name a file, relative to the directory."""

MAX_LINE: Final = 2 * MAX_FILES
"""Maximum bytes of the line with the files: in base64, with the names."""
_GLOBAL: Final = "global"  # `identities.root` is a file or this word
_TEMPORARY: Final = ".new"


class _Files(msgspec.Struct, frozen=True):
    """The first line of the plaintext: paths relative to the directory, and contents in base64."""

    files: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A backup that may be encrypted, for `restore`."""

    path: Path
    passphrase: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The file name, for errors."""
        return self.path.name

    def open(self, _mode: Literal["rb"] = "rb", /) -> BinaryIO:
        """Open the stream of the ledger."""
        return self._open()[0]

    def read_files(self) -> Mapping[str, bytes]:
        """Read the files of the installation by their relative paths; none if the backup has only the ledger."""
        stream, files = self._open()
        stream.close()
        return files

    def _open(self) -> tuple[BinaryIO, Mapping[str, bytes]]:
        stream = self.path.open("rb")
        try:
            return open_backup(stream, self.name, self.passphrase)
        except BaseException:
            stream.close()
            raise


def open_backup(stream: BinaryIO, name: str, passphrase: bytes | None) -> tuple[BinaryIO, Mapping[str, bytes]]:
    """Return the stream of the ledger in a backup, and the files in it; there are none if it is not encrypted."""
    if stream.read(len(FIRST_LINE)) != FIRST_LINE:
        stream.seek(0)
        return stream, {}
    if passphrase is None:
        raise InvalidBackup(f"{name}: encrypted; use --passphrase-file FILE")
    plain = open_encrypted(stream, name, FIRST_LINE, passphrase)
    return plain, parse_files(plain.readline(MAX_LINE), name)


def parse_files(line: bytes, name: str) -> Mapping[str, bytes]:
    """Parse the first line of the plaintext."""
    try:
        files = msgspec.json.decode(line, type=_Files).files
    except (msgspec.MsgspecError, ValueError):
        raise InvalidBackup(f"{name}: the files of the installation cannot be read; nothing was restored") from None
    if FILE_NAME not in files:
        raise InvalidBackup(f"{name}: {FILE_NAME} is missing; nothing was restored")
    for text in files:
        path = PurePosixPath(text)
        if not path.parts or str(path) != text or path.is_absolute() or ".." in path.parts or "\0" in text:
            raise InvalidBackup(f"{name}: {quote_text(text)} is not a file of an installation; nothing was restored")
    return files


def encode_files(files: Mapping[str, bytes]) -> bytes:
    """Encode the first line of the plaintext."""
    return msgspec.json.encode(_Files(dict(files))) + b"\n"


def write_full_backup(
    installation: "Installation", stream: Output, passphrase: bytes, since: int = 0, progress: Progress = lambda _: None
) -> Header:
    """Write the files and the entries after `since` to a stream, encrypted."""
    encrypted = EncryptedWriter(stream, FIRST_LINE, passphrase)
    files = dict(collect_files(installation.directory, installation.config))
    encrypted.write(encode_files(files))
    header = write_backup(installation.log, encrypted, since, progress)
    encrypted.end()
    return header


def collect_files(directory: Path, config: Config) -> Iterator[tuple[str, bytes]]:
    """Yield the relative paths and contents of the settings, the site information, the keys and files they name."""
    remaining = MAX_FILES
    with lock_keys(directory / KEYS_NAME) as keys:  # so that key and site information match
        paths = [directory / FILE_NAME, *(directory / name for name in SITE_NAMES), *sorted(keys.iterdir())]
        paths += [path for path in _named_files(directory, config).values() if path.is_relative_to(directory)]
        for path in dict.fromkeys(paths):
            if path.is_file() and path.suffix != _TEMPORARY:
                advice = f"move it out of the directory; a full backup has at most {MAX_FILES:,} bytes of files"
                data = read_file(path, remaining, advice, InstallationError)
                remaining -= len(data)
                yield path.relative_to(directory).as_posix(), data


def outside_files(directory: Path, config: Config) -> dict[str, Path]:
    """Return the files outside the directory that settings name; they are not in a backup."""
    named = _named_files(directory, config)
    return {name: path for name, path in named.items() if not path.is_relative_to(directory)}


def write_files(work: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a backup to a new directory.

    The old checkpoint key is kept beside the new one: a restored ledger never signs with it.
    """
    for name, data in files.items():
        path = work / restored_name(name)
        path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        write_file(path, data)
    for folder in {(work / name).parent for name in files}:
        sync_directory(folder)


def restored_name(name: str) -> str:
    """Return the path of a restored file; an old checkpoint key gets another name."""
    return f"{name}{BEFORE_SUFFIX}" if name.startswith(f"{KEYS_NAME}/{CHECKPOINT_KEY}") else name


def _named_files(directory: Path, config: Config) -> dict[str, Path]:
    """Return the files that settings name."""
    values = {name: str(attrgetter(name)(config)) for name in FILE_SETTINGS}
    return {name: (directory / value).resolve() for name, value in values.items() if value not in ("", _GLOBAL)}

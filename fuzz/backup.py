"""Backups: any bytes are refused with a reason, as ledger stream, as encrypted file or as files of an installation.

The first byte of the input says which of them it is.
"""

import io
from typing import BinaryIO, Final

import msgspec

from perseid.ledger.backup.archive import ENTRY, FIRST_LINE, REDACTED, STATE, ArchiveReader, Header, InvalidBackup
from perseid.ledger.backup.encryption import EncryptedWriter, EncryptionError
from perseid.ledger.merkle import Signer
from perseid.registry.installation import full_backup

PASSPHRASE: Final = b"a passphrase for fuzzing"


def _write_start() -> bytes:
    stream = io.BytesIO()
    EncryptedWriter(stream, full_backup.FIRST_LINE, PASSPHRASE)
    return stream.getvalue()


START: Final = _write_start()
"""The start of an encrypted file; its key is computed once."""

HEADER: Final = b"%ssecrets\n%s\n" % (
    FIRST_LINE,
    msgspec.json.encode(
        Header(b"", "o", str(Signer.generate("o", bytes(32)).public), 1, 2, 0, bytes(32), bytes(32), "")
    ),
)
SEEDS: Final = [
    b"\x00" + HEADER + b"E\x00\x00\x00\x02xx",
    b"\x00" + HEADER + b"R\x00\x00\x00\x09" + bytes(7) + b"\x01x" + b"Z\x00\x00\x00\x20" + bytes(32),
    b"\x01" + bytes(100),
    b'\x02{"files":{"perseid.toml":"","keys/x":"AAAA"}}\n',
    b"\x03" + full_backup.FIRST_LINE + bytes(40),
]
WORDS: Final = [b"E", b"R", b"S", b"C", b"Z", b"perseid.toml", b"..", b'{"table":"leases","columns":[],"rows":[[]]}']


def fuzz(data: bytes) -> None:
    """Read a backup."""
    if not data:
        return
    kind, content = data[0] % 4, data[1:]
    try:
        if kind == 0:
            _read_ledger(io.BytesIO(content))
        elif kind == 1:
            _read(START + content, PASSPHRASE)
        elif kind == 2:
            files = full_backup.parse_files(content, "name")
            assert all(path and not path.startswith("/") and ".." not in path.split("/") for path in files), files
        else:
            _read(content, None)  # a passphrase would be tried for half a second
    except (EncryptionError, InvalidBackup) as refusal:
        _check(str(refusal))


def _check(message: str) -> None:
    assert message.startswith("name")
    assert message.isprintable(), message


def _read(content: bytes, passphrase: bytes | None) -> None:
    stream, files = full_backup.open_backup(io.BytesIO(content), "name", passphrase)
    assert not files, "a file without the key was accepted"
    _read_ledger(stream)


def _read_ledger(stream: BinaryIO) -> None:
    archive = ArchiveReader("name", stream)
    for kind, content in archive.frames():
        if kind == ENTRY:
            archive.entry(content, archive.header.since + 1)
        elif kind == REDACTED:
            archive.redacted(content)
        elif kind == STATE:
            archive.rows(content)

"""Encrypted streams: chunks with authenticated content, order and end, under a passphrase.

A stream has a line that says what it is, a salt, a value that tells a wrong passphrase from damage, and chunks of
ChaCha20-Poly1305 (RFC 8439). The nonce of a chunk is its number and whether it is the last, so chunks cannot be
changed, moved, repeated or cut off. The key comes from scrypt (RFC 7914) with a salt of the stream's own, so no nonce
is used twice with a key. docs/reference/backup-format.md specifies it.

Plaintext is returned only after its chunk was authenticated. Memory does not grow with the stream.
"""

import io
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import constant_time
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from perseid.ledger.errors import LedgerError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MIN_PASSPHRASE: Final = 12
"""Shortest passphrase in bytes: users who get hold of the file can try short ones for years, on many machines."""

CHUNK: Final = 65_536
"""Bytes of plaintext in a chunk."""

SCRYPT_COST: Final = 1 << 17
"""Cost of scrypt, with r = 8 and p = 1: 128 MiB and about half a second for each passphrase that is tried."""

_SALT_BYTES: Final = 16
_CHECK_BYTES: Final = 16
_KEY_BYTES: Final = 32
_TAG_BYTES: Final = 16
_COUNTER_BYTES: Final = 11
_KNOWN_KEYS: Final = 64  # a restore reads each file three times


_ANOTHER: Final = "use another copy of the file"


class EncryptionError(LedgerError):
    """An encrypted file cannot be read: wrong passphrase, modified or incomplete."""


class WeakPassphrase(LedgerError):
    """The passphrase is too short."""


class Output(Protocol):
    """A stream that can be written."""

    def write(self, data: bytes, /) -> object: ...


class EncryptedWriter:
    """Encrypts what is written to it. `end` completes the stream; without it readers refuse it."""

    def __init__(self, stream: Output, first_line: bytes, passphrase: bytes) -> None:
        if len(passphrase) < MIN_PASSPHRASE:
            raise WeakPassphrase(
                f"The passphrase has {len(passphrase)} bytes; use at least {MIN_PASSPHRASE}. "
                "To create one: head -c 32 /dev/urandom | base64 > FILE"
            )
        salt = secrets.token_bytes(_SALT_BYTES)
        key, check = _derive(passphrase, salt)
        self._stream = stream
        self._cipher = ChaCha20Poly1305(key)
        self._header = first_line + salt + check
        self._count = 0
        self._waiting = bytearray()
        stream.write(self._header)

    def write(self, data: bytes) -> None:
        """Encrypt data. At most one chunk waits for more."""
        self._waiting += data
        while len(self._waiting) > CHUNK:
            self._write_chunk(is_last=False)

    def end(self) -> None:
        """Write the last chunk."""
        self._write_chunk(is_last=True)

    def _write_chunk(self, *, is_last: bool) -> None:
        chunk = bytes(self._waiting[:CHUNK])
        del self._waiting[:CHUNK]
        self._stream.write(self._cipher.encrypt(_nonce(self._count, is_last=is_last), chunk, self._header))
        self._count += 1


def open_encrypted(stream: BinaryIO, name: str, first_line: bytes, passphrase: bytes) -> BinaryIO:
    """Return the plaintext of a stream whose first line was read already. Raises `EncryptionError`, also later."""
    salt, check = stream.read(_SALT_BYTES), stream.read(_CHECK_BYTES)
    if len(check) < _CHECK_BYTES:
        raise EncryptionError(f"{name}: incomplete: unexpected end; {_ANOTHER}")
    key, expected = _derive(passphrase, salt)
    if not constant_time.bytes_eq(check, expected):
        raise EncryptionError(
            f"{name}: wrong passphrase, or its first bytes were modified; use the passphrase that encrypted it, or "
            "another copy of the file"
        )
    return io.BufferedReader(_Decrypted(stream, name, ChaCha20Poly1305(key), first_line + salt + check), CHUNK)


class _Decrypted(io.RawIOBase):
    """The plaintext of a stream."""

    def __init__(self, stream: BinaryIO, name: str, cipher: ChaCha20Poly1305, header: bytes) -> None:
        super().__init__()
        self._stream, self._name = stream, name
        self._cipher, self._header = cipher, header
        self._count = 0
        self._next = self._read_chunk()
        self._plain = memoryview(b"")
        if not self._next:
            raise EncryptionError(f"{name}: incomplete: unexpected end; {_ANOTHER}")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        target = memoryview(buffer).cast("B")
        if not self._plain and self._next:
            self._plain = memoryview(self._decrypt())
        count = min(len(target), len(self._plain))
        target[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _decrypt(self) -> bytes:
        chunk, self._next = self._next, self._read_chunk()
        is_last = not self._next
        try:
            plain = self._open(chunk, is_last=is_last)
        except InvalidTag:
            problem = "modified or incomplete"
            if is_last and self._is_earlier(chunk):
                problem = "incomplete: unexpected end"
            raise EncryptionError(f"{self._name}: {problem}, in chunk {self._count + 1:,}; {_ANOTHER}") from None
        self._count += 1
        return plain

    def _is_earlier(self, chunk: bytes) -> bool:
        """Whether other chunks followed the one at the end of the file."""
        try:
            self._open(chunk, is_last=False)
        except InvalidTag:
            return False
        return True

    def _open(self, chunk: bytes, *, is_last: bool) -> bytes:
        return self._cipher.decrypt(_nonce(self._count, is_last=is_last), chunk, self._header)

    def _read_chunk(self) -> bytes:
        return self._stream.read(CHUNK + _TAG_BYTES)


def _nonce(count: int, *, is_last: bool) -> bytes:
    return count.to_bytes(_COUNTER_BYTES, "big") + bytes([is_last])


@lru_cache(_KNOWN_KEYS)
def _derive(passphrase: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """Return the key of a stream and the value that shows a wrong passphrase."""
    derived = Scrypt(salt=salt, length=_KEY_BYTES + _CHECK_BYTES, n=SCRYPT_COST, r=8, p=1).derive(passphrase)
    return derived[:_KEY_BYTES], derived[_KEY_BYTES:]

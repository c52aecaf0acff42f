"""The encoding of a text file: found from its bytes, and never guessed where two readings are possible.

A byte order mark decides. Without one, text is UTF-8 if it is valid; UTF-16 if every other byte is zero; and Windows
Latin-1 (cp1252) if it has bytes beyond ASCII and nothing in it looks like UTF-8. A file that is UTF-8 except for some
bytes is refused with the first of them: reading it as Latin-1 would garble the rest.
"""

import codecs
import io
from contextlib import suppress
from typing import BinaryIO, Final

from perseid.registry.advice import AdviceKind

from .formats import invalid_file

SAMPLE: Final = 65_536
"""Bytes from which encoding and delimiter are found: hundreds of rows."""

_CHUNK: Final = 1 << 20
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LABELS: Final = {"utf-8-sig": "UTF-8 with BOM", "utf-8": "UTF-8", "cp1252": "Windows Latin-1 (cp1252)"}
_FEW_ZEROS: Final = 8  # one zero byte in so many is no longer an accident


class _BufferedFile(io.BufferedReader):
    """A buffer before a file, which stays open."""

    def close(self) -> None:
        """Leave the file to the caller, also when this is forgotten."""
        with suppress(ValueError):  # detached already
            self.detach()


def buffer(file: BinaryIO) -> io.BufferedReader | io.BytesIO:
    """A file that can be peeked at."""
    if isinstance(file, io.BufferedReader | io.BytesIO):
        return file
    return _BufferedFile(file, SAMPLE)  # type: ignore[arg-type] # any file with `readinto`


def peek(file: io.BufferedReader | io.BytesIO) -> bytes:
    """The first bytes of a file, without reading them."""
    if isinstance(file, io.BufferedReader) and not file.seekable():
        return file.peek(SAMPLE)[:SAMPLE]
    start = file.tell()
    sample = file.read(SAMPLE)
    file.seek(start)
    return sample


def get_label(encoding: str) -> str:
    """The name of an encoding for people."""
    return _LABELS.get(encoding, encoding.upper())


def find_mark(sample: bytes) -> str:
    """The encoding of the byte order mark with which a file begins; empty without one."""
    return next((encoding for mark, encoding in _MARKS if sample.startswith(mark)), "")


def detect_encoding(file: BinaryIO, sample: bytes) -> str:
    """Find the encoding of a text file that begins with a sample; the position of the file does not change.

    All of the file is looked at if it can be read twice, otherwise the sample.
    """
    if encoding := find_mark(sample):
        return encoding
    if sample.count(0) * _FEW_ZEROS > len(sample):
        return "utf-16-le" if sample[1::2].count(0) >= sample[::2].count(0) else "utf-16-be"
    if not file.seekable():
        return _detect(io.BytesIO(sample), is_whole=False)
    start = file.tell()
    try:
        file.seek(0)
        return _detect(file, is_whole=True)
    finally:
        file.seek(start)


def find_codec(name: str) -> str:
    """Check the name of an encoding that a user chose."""
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        info = None
    if info is None or not info._is_text_encoding or info.name in ("idna", "punycode", "undefined"):  # noqa: SLF001 - as `open`
        fix = "Use utf-8, utf-16 or cp1252."
        raise invalid_file("unknown-encoding", f"Unknown encoding {name[:40]!a}.", fix)
    return info.name


def _detect(file: BinaryIO, is_whole: bool) -> str:
    """UTF-8 if it is valid, otherwise cp1252; refuses a mixture."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = lines = 0
    has_letters = False
    while True:
        chunk = file.read(_CHUNK)
        try:
            text = decoder.decode(chunk, final=is_whole and not chunk)
        except UnicodeDecodeError as error:
            valid = error.object[: error.start]
            line = lines + valid.count(b"\n") + 1
            if has_letters or not valid.isascii() or _looks_like_utf8(error.object[error.start :][:SAMPLE]):
                message = f"The file is UTF-8, but not at byte {before + error.start + 1:,}."
                raise invalid_file("invalid-encoding", message, AdviceKind.CHOOSE_ENCODING(), line) from None
            return "cp1252"
        if not chunk:
            return "utf-8"
        before += len(text.encode())
        lines += text.count("\n")
        has_letters = has_letters or not text.isascii()


def _looks_like_utf8(data: bytes) -> bool:
    """Whether most characters beyond ASCII are valid UTF-8."""
    letters = [letter for letter in data.decode("utf-8", "replace") if letter > "\x7f"]
    return letters.count("\ufffd") * 2 < len(letters)

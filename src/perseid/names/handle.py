"""Handles: `prefix "/" suffix` (H1), in their exact spelling.

Constructors differ in what they reject:

- `Handle.parse` accepts only names that can be registered here (H1–H3, H9).
- `Handle.parse_lenient` also accepts names that another server may have registered; it rejects a missing slash, an
  empty part, invalid UTF-8 and excess length.
- `Handle.for_lookup` is the same, but returns None, which means "not found".
- `Handle.parse_imported` is the same, and also returns the error that `parse` would raise.

Two handles are equal if they are spelled alike. To compare names by the rules of their namespace (H5), compare
`CaseRule.key`.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Self

from .characters import check_blanks, check_characters, check_length, fold, surrogate_error
from .errors import InvalidName, NameMisuse
from .prefixes import check_prefix_structure

MAX_BYTES = 2048
"""Maximum length of a handle in bytes of UTF-8 (H9): the limit of the deployed protocol."""

PREFIX_OF_PREFIXES = "0.NA"
"""Every prefix P is described by the handle `0.NA/P`."""

_PATH = re.compile(r"\A[^?#]+")


@dataclass(frozen=True, slots=True, order=True)
class Handle:
    """A prefix and a suffix, exactly as spelled."""

    prefix: str
    """The part before the first slash."""
    suffix: str
    """The part after it; can contain more slashes."""

    def __post_init__(self) -> None:
        if not self.prefix or not self.suffix or "/" in self.prefix:
            message = 'a handle needs a prefix without "/" and a suffix; use Handle.parse for untrusted text'
            raise NameMisuse("H1", message)
        if not (self.suffix.isascii() and self.prefix.isascii()):
            try:
                self.to_bytes()
            except UnicodeEncodeError:
                message = "a handle cannot contain a surrogate: it has no UTF-8 encoding"
                raise NameMisuse("H4", message) from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a valid handle. Nothing is decoded, folded or stripped."""
        prefix, suffix = _split(text)
        check_prefix_structure(prefix)
        check_length(text, MAX_BYTES, "handle")
        check_characters(text)
        check_blanks(prefix, "prefix", 0)
        check_blanks(suffix, "suffix", len(prefix) + 1)
        return cls(prefix, suffix)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a valid handle in UTF-8 (H4)."""
        return cls.parse(_decode(data))

    @classmethod
    def parse_lenient(cls, name: str | bytes) -> Self:
        """Parse any name that a server may have stored, valid here or not."""
        text = _decode(name) if isinstance(name, bytes) else name
        check_length(text, MAX_BYTES, "handle")
        if not text.isascii():
            _check_utf_8(text)
        return cls(*_split(text))

    @classmethod
    def for_lookup(cls, name: str | bytes) -> Self | None:
        """Parse a name for lookup; None if no record can exist under it."""
        try:
            return cls.parse_lenient(name)
        except InvalidName:
            return None

    @classmethod
    def parse_imported(cls, name: str | bytes) -> tuple[Self, InvalidName | None]:
        """Parse a name that another server registered; also return the error that `parse` would raise."""
        handle = cls.parse_lenient(name)
        try:
            cls.parse(str(handle))
        except InvalidName as problem:
            return handle, problem
        return handle, None

    def __str__(self) -> str:
        return f"{self.prefix}/{self.suffix}"

    def to_bytes(self) -> bytes:
        """The handle in UTF-8 (H4)."""
        return str(self).encode("utf-8")

    @property
    def is_prefix_handle(self) -> bool:
        """Whether this handle describes a prefix: `0.NA/…`."""
        return fold(self.prefix) == PREFIX_OF_PREFIXES


class CaseRule(Enum):
    """Case sensitivity of a namespace (H5). Fixed when the namespace is created."""

    SENSITIVE = "sensitive"
    """Exact spelling; the default."""
    INSENSITIVE = "insensitive"
    """A–Z and a–z are equal; no other letter folds."""
    PATH = "path"
    """Insensitive up to the first "?" or "#" of the suffix; query and fragment are exact."""

    def key(self, handle: Handle) -> str:
        """The key that all spellings of a name share. Prefixes and handles under `0.NA` always fold."""
        if self is CaseRule.INSENSITIVE or handle.is_prefix_handle:
            return fold(str(handle))
        suffix = handle.suffix
        if self is CaseRule.PATH:
            suffix = _PATH.sub(lambda path: fold(path.group()), suffix, count=1)
        return f"{fold(handle.prefix)}/{suffix}"


PROFILE_CASE_RULES = {
    "pilin": CaseRule.INSENSITIVE,
    "cordra": CaseRule.PATH,
    "free": CaseRule.INSENSITIVE,  # as deployed services do
    "exact": CaseRule.SENSITIVE,
}
"""Case rules of the built-in namespace profiles (H5)."""


def _split(text: str) -> tuple[str, str]:
    prefix, slash, suffix = text.partition("/")
    if prefix and suffix:
        return prefix, suffix
    if not slash:
        message = 'a handle is PREFIX/SUFFIX, but there is no "/"' if text else "the name is empty"
        raise InvalidName("H1", message, position=len(text))
    if not prefix:
        raise InvalidName("H1", 'the prefix (before the first "/") is empty', position=0)
    raise InvalidName("H1", 'the suffix (after the first "/") is empty', position=len(text))


def _check_utf_8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise surrogate_error(error) from None


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        message = f"byte {error.start + 1} (0x{byte:02X}) is not valid UTF-8"
        raise InvalidName("H4", message) from None

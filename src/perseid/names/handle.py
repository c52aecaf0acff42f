"""A handle: `prefix "/" suffix` (H1), as an exact, frozen spelling.

Callers differ in what they may refuse, so there is more than one way in:

- `Handle.parse` is for registration and for everything else: only legal names (H1–H3, H9) pass.
- `Handle.keepable` refuses only that under which no record can be kept anywhere: no slash, an empty part, no UTF-8,
  over-length. What another server once registered passes.
- `Handle.for_lookup` is the same without a complaint: None, which is "not found".
- `Handle.imported` is the same and says what registration here would object to.

Two handles are equal when they are spelled alike. Whether two spellings mean the same name is the namespace's
affair (H5): compare `CaseRule.key`.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Self

from . import prefixes
from .characters import check_blanks, check_characters, check_length, fold, surrogate_error
from .errors import InvalidName, NameMisuse

MAX_BYTES = 2048
"""The longest handle in bytes of UTF-8 (H9): the deployed protocol's own limit."""

PREFIX_OF_PREFIXES = "0.NA"
"""Every prefix P is itself described by the handle `0.NA/P`."""

_PATH = re.compile(r"\A[^?#]+")


@dataclass(frozen=True, slots=True, order=True)
class Handle:
    """A name: its prefix and its suffix, exactly as they are spelled."""

    prefix: str
    """What stands before the first slash."""
    suffix: str
    """What stands after it; may hold further slashes."""

    def __post_init__(self) -> None:
        if not self.prefix or not self.suffix or "/" in self.prefix:
            message = 'a handle needs a prefix without "/" and a suffix; use Handle.parse for text from outside'
            raise NameMisuse("H1", message)
        if not (self.suffix.isascii() and self.prefix.isascii()):
            try:
                self.to_bytes()
            except UnicodeEncodeError:
                message = "a handle holds no half of a surrogate pair: that has no UTF-8 form"
                raise NameMisuse("H4", message) from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take a legal handle, literally: nothing in it is decoded, folded or stripped."""
        prefix, suffix = _split(text)
        prefixes.check_structure(prefix)
        check_length(text, MAX_BYTES, "handle")
        check_characters(text)
        check_blanks(prefix, "prefix", 0)
        check_blanks(suffix, "suffix", len(prefix) + 1)
        return cls(prefix, suffix)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Take a legal handle in UTF-8, the only encoding there is (H4)."""
        return cls.parse(_decode(data))

    @classmethod
    def parse_lenient(cls, name: str | bytes) -> Self:
        """Take a name under which some server may keep a record, legal here or not."""
        text = _decode(name) if isinstance(name, bytes) else name
        check_length(text, MAX_BYTES, "handle")
        if not text.isascii():
            _check_utf_8(text)
        return cls(*_split(text))

    @classmethod
    def for_lookup(cls, name: str | bytes) -> Self | None:
        """Take a name to look up; None if no record can be kept under it, so that the answer is "not found"."""
        try:
            return cls.parse_lenient(name)
        except InvalidName:
            return None

    @classmethod
    def parse_imported(cls, name: str | bytes) -> tuple[Self, InvalidName | None]:
        """Take a name that another server registered, with the objection that registration here would raise."""
        handle = cls.parse_lenient(name)
        try:
            cls.parse(str(handle))
        except InvalidName as problem:
            return handle, problem
        return handle, None

    def __str__(self) -> str:
        return f"{self.prefix}/{self.suffix}"

    def to_bytes(self) -> bytes:
        """The handle in UTF-8, as it stands on the wire and on disk (H4)."""
        return str(self).encode("utf-8")

    @property
    def is_prefix_handle(self) -> bool:
        """Whether this handle describes a prefix: `0.NA/…`."""
        return fold(self.prefix) == PREFIX_OF_PREFIXES


class CaseRule(Enum):
    """Whether a namespace tells `a` from `A` (H5). Fixed when the namespace is made."""

    SENSITIVE = "sensitive"
    """Exact spelling counts; so it is where a policy says nothing."""
    INSENSITIVE = "insensitive"
    """The ASCII letters A–Z and a–z are one; no other letter folds."""
    PATH = "path"
    """The same up to the first "?" or "#" of the suffix; the query and fragment from there on are exact."""

    def key(self, handle: Handle) -> str:
        """The one text under which all spellings of a name meet. Prefixes and everything in `0.NA` always fold."""
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
"""What the built-in namespace profiles declare (H5)."""


def _split(text: str) -> tuple[str, str]:
    prefix, slash, suffix = text.partition("/")
    if prefix and suffix:
        return prefix, suffix
    if not slash:
        message = 'a handle is prefix "/" suffix, but there is no "/"' if text else "the name is empty"
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
        message = f"byte {error.start + 1} (0x{byte:02X}) is not UTF-8; names have no other encoding"
        raise InvalidName("H4", message) from None

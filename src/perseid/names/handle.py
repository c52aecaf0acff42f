"""A handle: `prefix "/" suffix` (H1), as an exact, frozen spelling.

Three ways in, because three kinds of callers differ in what they may refuse:

- `Handle.parse` is for registration and for everything else: only legal names (H1–H3, H9) pass.
- `Handle.for_lookup` never complains: a name that cannot have been registered gives None, which is "not found".
- `Handle.imported` keeps what another server once registered and says what is wrong with it.

Two handles are equal when they are spelled alike. Whether two spellings mean the same name is the namespace's
affair (H5): compare `CaseRule.key`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Self

from . import prefixes
from .characters import check_blanks, check_characters, fold
from .errors import InvalidName, NameMisuse, show

MAX_OCTETS = 2048
"""The longest handle in octets of UTF-8 (H9): the deployed protocol's own limit."""

_NEVER_TOO_LONG = MAX_OCTETS // 4  # characters; UTF-8 needs at most four octets for each

PREFIX_OF_PREFIXES = "0.NA"
"""Every prefix P is itself described by the handle `0.NA/P`."""


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

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take a legal handle, literally: nothing in it is decoded, folded or stripped."""
        handle = cls._split(text)
        prefixes.check_structure(handle.prefix)
        _check_length(text)
        check_characters(text)
        check_blanks(handle.prefix, "prefix", 0)
        check_blanks(handle.suffix, "suffix", len(handle.prefix) + 1)
        return handle

    @classmethod
    def from_octets(cls, octets: bytes) -> Self:
        """Take a legal handle in UTF-8, the only encoding there is (H4)."""
        return cls.parse(_decode(octets))

    @classmethod
    def for_lookup(cls, name: str | bytes) -> Self | None:
        """Take a name to look up; None if no record can be kept under it, so that the answer is "not found"."""
        try:
            return cls._keepable(name)
        except InvalidName:
            return None

    @classmethod
    def imported(cls, name: str | bytes) -> tuple[Self, InvalidName | None]:
        """Take a name that another server registered, with the objection that registration here would raise.

        Only what no record can be kept under is refused: no slash, an empty part, no UTF-8, over-length.
        """
        handle = cls._keepable(name)
        try:
            cls.parse(str(handle))
        except InvalidName as problem:
            return handle, problem
        return handle, None

    @classmethod
    def _keepable(cls, name: str | bytes) -> Self:
        text, octets = (_decode(name), name) if isinstance(name, bytes) else (name, _encode(name))
        _check_octets(len(octets))
        return cls._split(text)

    @classmethod
    def _split(cls, text: str) -> Self:
        prefix, slash, suffix = text.partition("/")
        if prefix and suffix:
            return cls(prefix, suffix)
        if not slash:
            message = 'a handle is prefix "/" suffix, but there is no "/"' if text else "the name is empty"
            raise InvalidName("H1", message, position=len(text))
        if not prefix:
            raise InvalidName("H1", 'the prefix (before the first "/") is empty', position=0)
        raise InvalidName("H1", 'the suffix (after the first "/") is empty', position=len(text))

    def __str__(self) -> str:
        return f"{self.prefix}/{self.suffix}"

    def to_octets(self) -> bytes:
        """The handle in UTF-8, as it stands on the wire and on disk (H4)."""
        return str(self).encode("utf-8")

    @property
    def is_prefix_handle(self) -> bool:
        """Whether this handle describes a prefix: `0.NA/…`."""
        return fold(self.prefix) == PREFIX_OF_PREFIXES

    @property
    def prefix_handle(self) -> "Handle":
        """The handle that describes this handle's prefix."""
        return Handle(PREFIX_OF_PREFIXES, self.prefix)


class CaseRule(Enum):
    """Whether a namespace tells `a` from `A` (H5). Fixed when the namespace is made."""

    SENSITIVE = "sensitive"
    """Exact spelling counts; so it is where a policy says nothing."""
    INSENSITIVE = "insensitive"
    """The ASCII letters A–Z and a–z are one; no other letter folds."""

    def key(self, handle: Handle) -> str:
        """The one text under which all spellings of a name meet. Prefixes and everything in `0.NA` always fold."""
        if self is CaseRule.INSENSITIVE or handle.is_prefix_handle:
            return fold(str(handle))
        return f"{fold(handle.prefix)}/{handle.suffix}"


PROFILE_CASE_RULES = {
    "pilin": CaseRule.INSENSITIVE,
    "cordra": CaseRule.INSENSITIVE,
    "free": CaseRule.INSENSITIVE,  # as deployed services do
    "exact": CaseRule.SENSITIVE,
}
"""What the built-in namespace profiles declare (H5). In `cordra` it means the path: see `cordra.normalise`."""


def _check_length(text: str) -> None:
    if len(text) > _NEVER_TOO_LONG:
        _check_octets(len(text.encode("utf-8", "surrogatepass")))


def _check_octets(count: int) -> None:
    if count > MAX_OCTETS:
        raise InvalidName("H9", f"the handle has {count:,} octets in UTF-8; {MAX_OCTETS:,} are the most")


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = text[error.start]
        message = f"{show(surrogate)} is half of a surrogate pair and has no UTF-8 form"
        raise InvalidName("H4", message, position=error.start, character=surrogate) from None


def _decode(octets: bytes) -> str:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError as error:
        octet = octets[error.start]
        message = f"octet {error.start + 1} (0x{octet:02X}) is not UTF-8; names have no other encoding"
        raise InvalidName("H4", message) from None

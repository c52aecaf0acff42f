"""Type names, type matching, and the types whose data is UTF-8 text.

Names are UTF-8 text, case-insensitive for ASCII letters; `.` separates a type from its subtypes. There are three
comparisons:

- `TypeQuery`: a client's query. `URL` matches only `URL`; `URL.` matches `URL`, `URL.us` and all other subtypes.
- `has_type`: the type of a value. `HS_ADMIN.x` is an `HS_ADMIN`, in any case.
- exact spelling, for `SITE_TYPES`, `DELEGATION_TYPES` and for an `HS_PUBKEY` that proves an identity: deployed
  resolvers and servers ignore `hs_site`, so it must have no effect here either.

The text of URL, EMAIL, DESC, HS_SERV and HS_ALIAS is not validated here: a record keeps what its owner wrote. Whether a
URL is one is for the policy of a namespace (`find_url_problem`). All conversions are exact.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Self

from perseid.names.handle import Handle, fold

from .encoding import check_utf8, require_text
from .errors import InvalidData, RecordMisuse

HS_ADMIN: Final = "HS_ADMIN"
HS_VLIST: Final = "HS_VLIST"
HS_PUBKEY: Final = "HS_PUBKEY"
HS_SECKEY: Final = "HS_SECKEY"
HS_SITE: Final = "HS_SITE"
HS_SITE_6: Final = "HS_SITE.6"
HS_SITE_PREFIX: Final = "HS_SITE.PREFIX"
HS_NA_DELEGATE: Final = "HS_NA_DELEGATE"
HS_SERV: Final = "HS_SERV"
HS_SERV_PREFIX: Final = "HS_SERV.PREFIX"
HS_NAMESPACE: Final = "HS_NAMESPACE"
HS_ALIAS: Final = "HS_ALIAS"
HS_SIGNATURE: Final = "HS_SIGNATURE"
HS_CERT: Final = "HS_CERT"
URL: Final = "URL"
EMAIL: Final = "EMAIL"
DESC: Final = "DESC"
LOCATIONS: Final = "10320/loc"
DEFINITION: Final = "PERSEID_TYPE"
"""The type of the value that defines a type: see `data_types.Definition`."""

URL_TYPES: Final = (URL, f"0.TYPE/{URL}")
"""The types of URLs; exact, folded. See `is_url_type` for their subtypes."""

URL_SCHEMES: Final = ("http", "https", "ftp", "mailto")
"""Schemes of URLs to redirect to, by default: what browsers open. They do not know those of identifiers (`urn`, `hdl`);
others run code (`javascript`), contain the data themselves (`data`), or are valid on one machine only (`file`)."""

MAX_CHECKED_URL: Final = 8_192
"""Characters of a URL that are searched for invisible ones: longer ones are not redirected to."""

_WITH_HOST: Final = frozenset(("http", "https", "ftp", "ftps"))
_ABSOLUTE_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.+)", re.DOTALL)
_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f]")
_HOST: Final = re.compile("//[^/?#]")
_WITHOUT_SCHEME: Final = re.compile(
    r"(?://)?(?:[a-z0-9-]{1,63}\.)+[a-z][a-z0-9-]{1,62}(?::[0-9]+)?(?:[/?#][!-~]{,500})?", re.IGNORECASE
)
"""A host with a top-level domain and maybe a port and a path, in printable ASCII: what follows `https://` in a URL."""

MAX_CACHED_TYPES: Final = 1_024
"""Comparisons of types that are remembered: installations have some dozen types, and compare them for every value."""

_MAX_CACHED_LENGTH = 64  # longer types are rare, and would take memory

SITE_TYPES: Final = frozenset({HS_SITE, HS_SITE_6})
"""Sites that host the handles of a prefix; exact spelling."""

DELEGATION_TYPES: Final = frozenset({HS_SITE_PREFIX, HS_NA_DELEGATE, HS_SERV_PREFIX})
"""Sites and service handles that host derived prefixes; exact spelling."""


def has_type(type_: str, base: str) -> bool:
    """Whether a type is `base` or one of its subtypes."""
    return _has_type(type_, base) if len(type_) <= _MAX_CACHED_LENGTH else _has_type.__wrapped__(type_, base)


@lru_cache(MAX_CACHED_TYPES)
def _has_type(type_: str, base: str) -> bool:
    folded, folded_base = fold(type_), fold(base)
    return folded == folded_base or folded.startswith(folded_base + ".")


def has_any_type(type_: str, bases: tuple[str, ...]) -> bool:
    """Whether a type is one of some types, or one of their subtypes."""
    return _has_any_type(type_, bases) if len(type_) <= _MAX_CACHED_LENGTH else _has_any_type.__wrapped__(type_, bases)


@lru_cache(MAX_CACHED_TYPES)
def _has_any_type(type_: str, bases: tuple[str, ...]) -> bool:
    return any(has_type(type_, base) for base in bases)


def is_url_type(type_: str) -> bool:
    """Whether values of a type are URLs, from which the target of a handle is chosen."""
    return _is_url_type(type_) if len(type_) <= _MAX_CACHED_LENGTH else _is_url_type.__wrapped__(type_)


@lru_cache(MAX_CACHED_TYPES)
def _is_url_type(type_: str) -> bool:
    return has_type(type_, URL) or fold(type_) in URL_TYPES


class UrlProblem(NamedTuple):
    """Why data is not a URL to redirect to."""

    reason: str
    """A clause."""
    is_scheme: bool = False
    """Whether it is an absolute URL with another scheme."""
    is_malformed: bool = False
    """Whether it is invalid whatever the schemes are."""
    has_blank: bool = False
    """Whether it has a blank or a control character."""
    meant: str = ""
    """The URL that is probably meant, if only its scheme is missing; otherwise empty."""


def find_url_problem(data: bytes, schemes: Collection[str] = URL_SCHEMES) -> UrlProblem | None:
    """Why data is not an absolute URL with one of these schemes; None if it is."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return UrlProblem("is not UTF-8", is_malformed=True)
    if _BLANK.search(text):
        return UrlProblem("contains a blank or a control character", is_malformed=True, has_blank=True)
    match = _ABSOLUTE_URL.fullmatch(text)
    if (match is None or match[1].lower() not in schemes) and "https" in schemes and _WITHOUT_SCHEME.fullmatch(text):
        return UrlProblem("is not an absolute URL", meant=f"https://{text.removeprefix('//')}")
    if match is None:
        return UrlProblem("is not an absolute URL")
    scheme, rest = match[1].lower(), match[2]
    if scheme not in schemes:
        return UrlProblem(f"has the scheme {scheme}, which is none of {', '.join(schemes)}", is_scheme=True)
    if scheme in _WITH_HOST and not _HOST.match(rest):
        return UrlProblem("has no host", is_malformed=True)
    return None


def get_base_type(type_: str) -> str:
    """The part before the first dot, folded, which selects the data class of a predefined type."""
    return fold(type_.partition(".")[0])


class TypeQuery:
    """Several type queries, prepared once.

    The cost of a match grows with the number of distinct query lengths, not with the number of queries: a request can
    have tens of thousands, and a record thousands of values.
    """

    __slots__ = ("_exact", "_families", "_lengths")

    def __init__(self, queries: Iterable[str]) -> None:
        folded = [fold(query) for query in queries]
        self._exact = frozenset([query.removesuffix(".") for query in folded])
        self._families = frozenset([query for query in folded if query.endswith(".")])
        self._lengths = frozenset([len(query) for query in self._families])

    def finds(self, type_: str) -> bool:
        """Whether one of the queries matches the type."""
        folded = fold(type_)
        return folded in self._exact or any(folded[:length] in self._families for length in self._lengths)


# Text


@dataclass(frozen=True, slots=True)
class Text:
    """Any text; the base class of types with a syntax."""

    text: str
    """The data, decoded."""

    def __post_init__(self) -> None:
        try:
            self.text.encode("utf-8")
        except UnicodeEncodeError:
            raise RecordMisuse("the text contains a surrogate and cannot be encoded in UTF-8") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the data of a value."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidData("the data is not valid UTF-8", error.start) from None
        return cls(text)

    def to_bytes(self) -> bytes:
        """Encode the data of a value."""
        return self.text.encode("utf-8")

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Parse a JSON string."""
        return cls(require_text(obj, "the data"))

    def to_json(self) -> str:
        """A JSON string."""
        return self.text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Create from text."""
        check_utf8(text, "the data")
        return cls(text)

    def to_text(self) -> str:
        """The text itself."""
        return self.text


@dataclass(frozen=True, slots=True)
class Url(Text):
    """URL: the target."""


@dataclass(frozen=True, slots=True)
class Email(Text):
    """EMAIL: a contact address."""


@dataclass(frozen=True, slots=True)
class Description(Text):
    """DESC: a description."""


@dataclass(frozen=True, slots=True)
class HandleText(Text):
    """Text that names another handle."""

    @property
    def handle(self) -> Handle | None:
        """The handle; None if no record can exist under that name."""
        return Handle.for_lookup(self.text)


@dataclass(frozen=True, slots=True)
class ServiceHandle(HandleText):
    """HS_SERV, HS_SERV.PREFIX: the handle whose record has the sites; `0.NA/0.NA` means the root service."""


@dataclass(frozen=True, slots=True)
class Alias(HandleText):
    """HS_ALIAS: another handle for which this one is an alias. Proxies follow it, servers do not."""

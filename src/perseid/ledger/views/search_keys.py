"""Search keys: the ranges of the search view that answer which records have a URL, host, path, type, value, owner or
word of a title.

A URL has two keys, one that starts with its host and one that is only its path (S4):

    https://www.example.org/items/7?v=2     U org.example.www. : /items/7?v=2     P /items/7?v=2
    http://example.org:8080                 U org.example. : http:8080 /          P /
    https://192.0.2.1/x                     U [192.0.2.1] : /x                    P /x
    mailto:alice@example.org                T mailto:alice@example.org

without the spaces. In `U` the host labels are in reverse order, each followed by a dot, so exactly the names below
`example.org` start with `org.example.`; a colon ends the host. Then come the scheme, omitted for https, which is nearly
all of them; the port, unless it is the scheme's default; and path, query and fragment, which always start with a slash.
Addresses have no subdomains: they are not reversed, and are in brackets, IPv6 as 32 hexadecimal digits. `T` is text
that is not a URL with a host, as written.

Equivalent URLs have the same key as far as that needs no guessing. Surrounding whitespace, the user before the host and
the dot after it are dropped; scheme and host are lowercase; an internationalized host and its `xn--` form are equal; an
empty path is `/`. Everything from the path on is unchanged, percent escapes included.

Other values have keys by type, data and administrator (S5):

    EMAIL = someone@example.org             Y email     V <8 bytes>
    HS_ADMIN = 200:12345/ann                O <8 bytes>
    URL = https://example.org/              only the keys above
    TITLE = A Map of Åre                    Y title     V <8 bytes>     W map     W of     W are

`Y` is a lowercase type, `V` a digest of lowercase data, `O` one of an administrator's handle, `W` a word of a title
(see `perseid.records.titles`). A digest finds a few records, which are then checked, so it can be short. Nearly every
record has a URL and an administrator, so these types are found by their own keys (`U`, `T`, `O`). The data of secret
keys has no key.

Keys are truncated at `KEY_LENGTH`. `KeyRange.is_truncated` says so, and `KeyRange.matches_values` then decides by the
values themselves.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv6Address
from struct import Struct, error
from typing import Final

from perseid.records.errors import InvalidData
from perseid.records.locations import Locations
from perseid.records.record import PERMISSIONS_OFFSET, TYPE_LENGTH_OFFSET, TYPE_OFFSET, Permission
from perseid.records.titles import find_words, read_line, select_titles, title_rank

KEY_LENGTH: Final = 512
"""Bytes of the longest key. Hardly any URL is longer, and both back ends store such a key within an index page
(PostgreSQL refuses more than 2,704 bytes, SQLite lets more than about 1,000 overflow). The entry has the whole URL."""

_URL, _PATH, _TEXT = b"U", b"P", b"T"

DEFAULT_PORTS: Final = {b"https": b"443", b"http": b"80", b"ftp": b"21", b"ws": b"80", b"wss": b"443"}
"""Default ports, for the schemes that browsers support."""

_DEFAULT_SCHEME: Final = b"https"

_MAX_IDN_LENGTH: Final = 1_024
"""A longer host is unchanged: DNS names have at most 253 characters, and the conversion takes quadratic time."""

_HOST_CACHE_SIZE: Final = 1_024
"""Most installations use a few hosts, so their part of the key is cached."""

_MAX_CACHED_LENGTH: Final = 256
"""Longer hosts are not cached: no real name is longer, and untrusted input must not fill the memory."""

# The user is everything before the last "@", as in browsers.
_PARTS = re.compile(
    rb"([A-Za-z][A-Za-z0-9+.\-]*)://(?:[^/?#]*@)?(\[[^][/?#@]*\]|[^][/?#@:]+)(?::([^/?#@]*+))?([/?#].*)?", re.DOTALL
)
_HOST_NAME = re.compile(r"[^][/?#@:]+")
_IPV4 = re.compile(rb"\d{1,3}(?:\.\d{1,3}){3}")
_DIGITS = frozenset(b"0123456789")

_LENGTH = Struct(">i")
_PLAIN_URL = b"\0\0\0\3url\0"  # the type and the first byte of the data's length: 0, as data has at most 1 MiB
_PLAIN_URL_DATA = TYPE_OFFSET + 3 + 4
_URL_TYPE_STARTS: Final = (b"url", b"103")  # of the types that `_find_urls` knows
_LOCATIONS = b"10320/loc"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A query as a range of keys: `first` <= key < `end`."""

    first: bytes
    """The first key of the range."""
    end: bytes
    """The first key after the range."""
    is_truncated: bool
    """Whether keys are too short to decide: then a record matches only if `matches_values` is true."""
    full_first: bytes
    """The first key of the range, not truncated."""
    full_end: bytes
    """The first key after the range, not truncated."""

    @property
    def is_of_urls(self) -> bool:
        """Whether all keys in the range are among the `target_keys` of their records."""
        return self.first[:1] in (_URL, _PATH, _TEXT) and self.end <= bytes((self.first[0] + 1,))

    def matches_values(self, contents: Iterable[bytes]) -> bool:
        """Whether one of a record's encoded values really matches the query."""
        return any(self.contains_any(keys) for content in contents for keys in location_keys(content))

    def contains_any(self, keys: Iterable[bytes]) -> bool:
        """Whether one of the full keys of a URL is in the range."""
        return any(self.full_first <= key < self.full_end for key in keys)


def target_keys(contents: Iterable[bytes]) -> set[bytes]:
    """Return the URL keys of a record from its encoded values.

    These are the URLs in values of type URL and its subtypes, and every location of a 10320/loc value; for a location
    with a
    template, the template. Invalid XML has no keys.
    """
    keys: set[bytes] = set()
    for data in _find_urls(contents):
        for key in _full_keys(data):
            keys.add(key if len(key) <= KEY_LENGTH else key[:KEY_LENGTH])
    return keys


def location_keys(content: bytes) -> list[tuple[bytes, ...]]:
    """Return the full keys of each URL in an encoded value, the one by host first."""
    if content[TYPE_OFFSET : TYPE_OFFSET + 3].lower() not in _URL_TYPE_STARTS:
        return []
    return [_full_keys(data) for data in _find_urls((content,))]


def url_keys(url: str | bytes) -> tuple[bytes, ...]:
    """Return the full keys of a URL, the one by host first."""
    return _full_keys(_to_bytes(url).strip())


def url_text(key: bytes) -> bytes:
    """Return the normalized URL or text from its first key."""
    if not key.startswith(_URL):
        return key[1:]
    reversed_host, _, rest = key[1:].partition(b":")
    before, slash, path = rest.partition(b"/")
    scheme, colon, port = before.partition(b":")
    return (scheme or _DEFAULT_SCHEME) + b"://" + _format_host(reversed_host) + colon + port + slash + path


def _format_host(part: bytes) -> bytes:
    """Convert a host from its form in a key to that in a URL."""
    if not part.startswith(b"["):
        name = b".".join(part[:-1].split(b".")[::-1])
        return name + b"." if name.endswith(b".") else name  # one of several dots was dropped
    inner = part[1:-1]
    return inner if _IPV4.fullmatch(inner) else b"[" + str(IPv6Address(bytes.fromhex(inner.decode()))).encode() + b"]"


def exact_url_range(url: str | bytes) -> KeyRange:
    """The range of records that have this URL."""
    return single_key_range(_full_keys(_to_bytes(url).strip())[0])


def url_prefix_range(text: str | bytes) -> KeyRange:
    """The range of records that have a URL with this prefix.

    The host must match as a whole, so `https://example.org` does not find `https://example.organic/`; see `host_range`
    for
    subdomains. From the path on, characters are compared: `https://example.org/items/1` also finds `/items/10`. A
    prefix
    that ends before the host does (`https:`) finds only text that is not a URL.
    """
    return prefix_range(_full_keys(_to_bytes(text).lstrip())[0])


def host_range(name: str, *, subdomains: bool) -> KeyRange:
    """The range of records that have a URL on this host, with any scheme and port, and with subdomains if wanted.

    An address is a host without subdomains; IPv6 may be written with or without brackets.
    """
    stripped = name.strip()
    host = None
    if _HOST_NAME.fullmatch(stripped):
        host = _host_part(stripped.encode("utf-8", "surrogatepass"))
    elif ":" in stripped:
        host = _address_part(stripped.removeprefix("[").removesuffix("]").encode("utf-8", "surrogatepass"))
    if host is None:
        raise InvalidData(f"{name[:40]!r} is not a host name or IP address")
    return prefix_range(_URL + host + (b"" if subdomains else b":"))


def path_prefix_range(text: str | bytes) -> KeyRange:
    """The range of records that have a URL path with this prefix on any host; the first slash is optional."""
    return prefix_range(_PATH + _with_leading_slash(_to_bytes(text)))


def _to_bytes(text: str | bytes) -> bytes:
    """Encode text as in a value; bytes that are not UTF-8 can be searched as they are."""
    # A lone surrogate has no UTF-8 form; encoded like this it matches nothing.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def prefix_range(prefix: bytes) -> KeyRange:
    """The range of keys with a prefix."""
    cut = prefix[:KEY_LENGTH]
    return KeyRange(cut, _prefix_end(cut), len(prefix) > KEY_LENGTH, prefix, _prefix_end(prefix))


def single_key_range(key: bytes) -> KeyRange:
    """The range of one key."""
    is_truncated = len(key) >= KEY_LENGTH  # a key of exactly this length may be truncated, too
    if is_truncated:
        return KeyRange(key[:KEY_LENGTH], _prefix_end(key[:KEY_LENGTH]), is_truncated, key, key + b"\0")
    return KeyRange(key, key + b"\0", is_truncated, key, key + b"\0")


def _prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys with a prefix. The first byte, a letter, can always be incremented."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes((rest[-1] + 1,))


def _find_urls(contents: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the URLs in values, without surrounding whitespace. Other types are skipped without decoding."""
    for content in contents:
        if content[TYPE_LENGTH_OFFSET : TYPE_LENGTH_OFFSET + 8].lower() == _PLAIN_URL:
            start = _PLAIN_URL_DATA
        elif (word := content[TYPE_OFFSET : TYPE_OFFSET + 4].lower()) == b"url.":
            start = TYPE_OFFSET + _LENGTH.unpack_from(content, TYPE_LENGTH_OFFSET)[0] + 4
        elif word == b"1032":
            yield from _find_locations(content)
            continue
        else:
            continue
        yield content[start : start + _LENGTH.unpack_from(content, start - 4)[0]].strip()


def _find_locations(content: bytes) -> Iterator[bytes]:
    """Yield the locations in a value, if it is 10320/loc or one of its subtypes."""
    start = TYPE_OFFSET + _LENGTH.unpack_from(content, TYPE_LENGTH_OFFSET)[0]
    if content[TYPE_OFFSET:start].partition(b".")[0].lower() != _LOCATIONS:
        return
    data = content[start + 4 : start + 4 + _LENGTH.unpack_from(content, start)[0]]
    try:
        locations = Locations.from_bytes(data).locations
    except InvalidData:
        return
    for location in locations:
        url = location.href if location.href is not None else location.href_template
        if url is not None:
            yield url.encode().strip()


def _full_keys(data: bytes) -> tuple[bytes, ...]:
    """Return the full keys of a URL, the one by host first."""
    match = _PARTS.fullmatch(data)
    if match is None:
        return (_TEXT + data,)
    scheme, name, port, rest = match.groups()
    authority = _authority_key(scheme, name, port)
    if authority is None:
        return (_TEXT + data,)
    rest = b"/" if rest is None else _with_leading_slash(rest)
    return (authority + rest, _PATH + rest)


def _with_leading_slash(path: bytes) -> bytes:
    return path if path.startswith(b"/") else b"/" + path


def _authority_key(scheme: bytes, name: bytes, port: bytes | None) -> bytes | None:
    """Return a key up to the path: host, scheme and port; None if the host is invalid."""
    if len(name) <= _MAX_CACHED_LENGTH and len(scheme) <= _MAX_CACHED_LENGTH and port is None:
        return _cached_authority(scheme, name)
    return _build_authority(scheme, name, port)


@lru_cache(_HOST_CACHE_SIZE)
def _cached_authority(scheme: bytes, name: bytes) -> bytes | None:
    return _build_authority(scheme, name, None)


def _build_authority(scheme: bytes, name: bytes, port: bytes | None) -> bytes | None:
    host = _address_part(name[1:-1]) if name.startswith(b"[") else _host_part(name)
    if host is None:
        return None
    scheme = scheme.lower()
    key = _URL + host + b":" + (b"" if scheme == _DEFAULT_SCHEME else scheme)
    if port:
        port = port.lstrip(b"0") or b"0"
        if port != DEFAULT_PORTS.get(scheme):
            key += b":" + port
    return key


def _host_part(name: bytes) -> bytes | None:
    """Convert a host without brackets to its form in a key; None if it is empty."""
    name = name.lower().removesuffix(b".")
    if not name:
        return None
    if name[-1] in _DIGITS and _IPV4.fullmatch(name):
        return b"[" + name + b"]"
    return b".".join(ascii_form(name).split(b".")[::-1]) + b"."


def ascii_form(name: bytes) -> bytes:
    """Convert an internationalized host to its DNS form, label by label.

    This is the `xn--` form of the lowercase NFC form. The codec of the standard library is not used: it follows IDNA
    2003,
    where `straße` is `strasse`, which is another host today. A name that is not UTF-8, or too long, is unchanged.
    """
    if name.isascii() or len(name) > _MAX_IDN_LENGTH:
        return name
    try:
        labels = unicodedata.normalize("NFC", name.decode("utf-8").lower()).split(".")
    except UnicodeDecodeError:
        return name
    return b".".join([label.encode() if label.isascii() else b"xn--" + label.encode("punycode") for label in labels])


def _address_part(text: bytes) -> bytes | None:
    """Convert an IPv6 address to its form in a key; None if it is invalid or has a scope id."""
    try:
        address = IPv6Address(text.decode("ascii"))
    except ValueError:
        return None
    return None if address.scope_id is not None else b"[" + address.packed.hex().encode() + b"]"


ALL_TEXT: Final = prefix_range(_TEXT)
"""All text that is not a URL with a host."""
ALL_URLS: Final = prefix_range(_URL)
"""All URLs with a host."""

_TYPE_KEY, _DATA, _OWNER, _WORD = b"Y", b"V", b"O", b"W"
_DIGEST_LENGTH: Final = 8
_URL_TYPE, _ADMIN, _SECRET = b"url", b"hs_admin", b"hs_seckey"
_HANDLE_AT: Final = 2  # offset of the handle's length in HS_ADMIN data
_VALUE_CACHE_SIZE: Final = 1_024
_TYPE_CACHE_SIZE: Final = 256
_PUBLIC: Final = int(Permission.PUBLIC_READ)


@dataclass(frozen=True, slots=True)
class _TypeRules:
    """Which keys values of a type have."""

    has_urls: bool
    """Whether there may be URLs in the data."""
    key: bytes
    """The key of the type; empty for URL, whose values have URL keys."""
    is_admin: bool
    """Whether the type is HS_ADMIN or one of its subtypes, whose key is that of the owner."""
    is_plain_admin: bool
    has_data_key: bool
    title_rank: int | None

    @classmethod
    def of(cls, raw: bytes) -> "_TypeRules":
        type_ = raw.lower()
        base = type_.partition(b".")[0]
        has_urls = type_ == _URL_TYPE or type_.startswith((b"url.", b"1032"))
        key = b"" if type_ == _URL_TYPE else (_TYPE_KEY + type_)[:KEY_LENGTH]
        has_data_key = base not in (_URL_TYPE, _ADMIN, _SECRET)
        return cls(has_urls, key, base == _ADMIN, type_ == _ADMIN, has_data_key, title_rank(type_))


_cached_rules = lru_cache(_TYPE_CACHE_SIZE)(_TypeRules.of)


def index_keys(contents: Sequence[bytes]) -> set[bytes]:
    """Return all search keys of a record from its encoded values."""
    keys: set[bytes] = set()
    titles: list[tuple[int, bool, str]] = []
    for content in contents:
        if content[TYPE_LENGTH_OFFSET : TYPE_LENGTH_OFFSET + 8].lower() == _PLAIN_URL:
            (length,) = _LENGTH.unpack_from(content, _PLAIN_URL_DATA - 4)
            full = _full_keys(content[_PLAIN_URL_DATA : _PLAIN_URL_DATA + length].strip())
            keys.update([key[:KEY_LENGTH] for key in full])
            continue
        value = content[PERMISSIONS_OFFSET:]
        is_cached = len(value) <= _MAX_CACHED_LENGTH and value[0] & _PUBLIC  # private data is not kept in memory
        of_value, title = (_cached_value_keys if is_cached else _value_keys)(value)
        keys |= of_value
        if title is not None:
            titles.append(title)
    for text in select_titles(titles) if titles else ():
        keys.update([_WORD + word.encode() for word in find_words(text)])
    return keys


def _value_keys(value: bytes) -> tuple[set[bytes], tuple[int, bool, str] | None]:
    """Return the keys of a value, and the title in it, if there is one. Index, time and TTL are not needed."""
    start = TYPE_OFFSET - PERMISSIONS_OFFSET
    end = start + _LENGTH.unpack_from(value, start - 4)[0]
    data = value[end + 4 : end + 4 + _LENGTH.unpack_from(value, end)[0]]
    rules = _cached_rules(value[start:end]) if end <= _MAX_CACHED_LENGTH else _TypeRules.of(value[start:end])
    keys = target_keys((bytes(PERMISSIONS_OFFSET) + value,)) if rules.has_urls else set()
    owner = _owner_key(data) if rules.is_admin else None
    if owner is not None:
        keys.add(owner)
    if rules.key and (owner is None or not rules.is_plain_admin):
        keys.add(rules.key)
    if rules.has_data_key:
        keys.add(_digest_key(_DATA, data))
    text = None if rules.title_rank is None else read_line(data)
    title = None if rules.title_rank is None or text is None else (rules.title_rank, bool(value[0] & _PUBLIC), text)
    return keys, title


_cached_value_keys = lru_cache(_VALUE_CACHE_SIZE)(_value_keys)
"""Administrators, types and constant data are the same in many records."""


def type_ranges(type_: str) -> tuple[KeyRange, ...]:
    """The ranges of records that may have a value of this type; the values must be checked.

    As in resolution, `URL` is that type only, and `URL.` includes its subtypes.
    """
    whole = type_.encode("utf-8", "surrogatepass").lower()
    name = whole.removesuffix(b".")
    if name == _URL_TYPE:
        return ALL_TEXT, ALL_URLS  # subtypes have such keys, too
    ranges = (
        (single_key_range(_TYPE_KEY + name),)
        if whole == name
        else (single_key_range(_TYPE_KEY + name), prefix_range(_TYPE_KEY + whole))
    )
    return (prefix_range(_OWNER), *ranges) if name == _ADMIN else ranges


def word_range(start: str) -> KeyRange:
    """The range of records that have a title with a word that starts like this, in the form of `find_words`."""
    return prefix_range(_WORD + start.encode())


def value_ranges(data: bytes) -> tuple[KeyRange, ...]:
    """The ranges of records that have a value with this data, and a few others."""
    return exact_url_range(data), single_key_range(_digest_key(_DATA, data))


def owner_ranges(handle: str) -> tuple[KeyRange, ...]:
    """The ranges of records with this handle as an administrator or as data, and a few others."""
    raw = handle.encode("utf-8", "surrogatepass")
    return single_key_range(_digest_key(_OWNER, raw)), single_key_range(_digest_key(_DATA, raw))


def _digest_key(kind: bytes, raw: bytes) -> bytes:
    return kind + blake2b(raw.lower(), digest_size=_DIGEST_LENGTH).digest()


def _owner_key(data: bytes) -> bytes | None:
    """Return the key of the administrator in HS_ADMIN data; None if the data is invalid."""
    start = _HANDLE_AT + 4
    try:
        (length,) = _LENGTH.unpack_from(data, _HANDLE_AT)
    except error:
        return None
    # A four-byte index follows the handle.
    return _digest_key(_OWNER, data[start : start + length]) if 0 < length <= len(data) - start - 4 else None

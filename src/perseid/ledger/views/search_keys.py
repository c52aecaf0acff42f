"""Where a record leads, as keys: which identifiers lead to this URL, host or path (S4), each a range of keys.

A URL has two keys, one that begins with its host and one that is only its path:

    https://www.example.org/items/7?v=2     U org.example.www. : /items/7?v=2     P /items/7?v=2
    http://example.org:8080                 U org.example. : http:8080 /          P /
    https://192.0.2.1/x                     U [192.0.2.1] : /x                    P /x
    mailto:alice@example.org                T mailto:alice@example.org

without the blanks. In `U` the labels of the host stand in reverse, each followed by a dot, so all names below
`example.org` begin with `org.example.` and nothing else does; the colon, which no label holds, ends the host. Then
comes the scheme, left out where it is https, for that is nearly all of them; the port, unless it is the scheme's own;
and path, query and fragment, which always begin with a slash. Addresses have no subdomains: they are not reversed, and
stand in brackets, IPv6 as 32 hexadecimal digits. `T` is text that is no URL with a host, as it was written.

URLs that mean the same have the same key as far as that needs no guessing. Blanks around them, the user before the host
and the dot after it are dropped; ASCII letters of scheme and host are small; a host in letters of the world and its
`xn--` form are one; an empty path is `/`. Everything from the path on stays as it is, percent escapes included.

Keys are cut at `KEY_LENGTH`, so what is asked may be longer than any key. `Range.is_cut` says so, and
`Range.finds` then decides by the values themselves.

What a record holds, as keys beside those of where it leads: its types, its data, its administrators (S5).

    EMAIL = someone@example.org             Y email     V <8 octets>
    HS_ADMIN = 200:12345/ann                O <8 octets>
    URL = https://example.org/              its keys of `target_keys` and no others

without the blanks. `Y` is a type with small letters, `V` a digest of data with small letters, `O` one of the handle of
an administrator, likewise. A digest leads to a few records that are looked at, so it need not be long.

Nearly every record has a URL and an administrator. So what finds their types is what finds them anyway (`U` and `T` of
`target_keys`, and `O`), and a URL is looked up as such. Secret keys are found by nobody: their data has no key.
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

KEY_LENGTH: Final = 512
"""Octets of the longest key. Hardly a URL in a record is longer; both back ends keep such a key within a page of an
index (PostgreSQL refuses more than 2,704 octets, SQLite lets more than about 1,000 overflow); and what is cut off is
not lost, for it is in the entry."""

_URL, _PATH, _TEXT = b"U", b"P", b"T"

DEFAULT_PORTS: Final = {b"https": b"443", b"http": b"80", b"ftp": b"21", b"ws": b"80", b"wss": b"443"}
"""The ports that need not be written, for the schemes that browsers know."""

_DEFAULT_SCHEME: Final = b"https"

_MAX_IDN_LENGTH: Final = 1_024
"""A longer host is left as it is: no name in the DNS has more than 253 characters, however they are written, and the
time of the conversion grows with the square of the length."""

_HOST_CACHE_SIZE: Final = 1_024
"""Most installations lead to a few hosts over and over, so their part of the key is remembered."""

_MAX_CACHED_LENGTH: Final = 256
"""Longer hosts are not remembered: no real name is, and strangers must not fill the memory."""

# The user is what stands before the last "@", as browsers read it.
_PARTS = re.compile(
    rb"([A-Za-z][A-Za-z0-9+.\-]*)://(?:[^/?#]*@)?(\[[^][/?#@]*\]|[^][/?#@:]+)(?::([^/?#@]*+))?([/?#].*)?", re.DOTALL
)
_HOST_NAME = re.compile(r"[^][/?#@:]+")
_IPV4 = re.compile(rb"\d{1,3}(?:\.\d{1,3}){3}")
_DIGITS = frozenset(b"0123456789")

# The binary form of a value: the type begins at 14 with its length, the data follows with its own.
_LENGTH = Struct(">i")
_TYPE = 14
_TYPE_NAME = _TYPE + 4
_PLAIN_URL = b"\0\0\0\3url\0"  # the type and the first octet of the data's length: 0, as data has at most a mebibyte
_PLAIN_URL_DATA = _TYPE_NAME + 3 + 4
_LOCATIONS = b"10320/loc"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A question as a range of keys: `first` <= key < `end`."""

    first: bytes
    """The least key in it."""
    end: bytes
    """The least key behind it."""
    is_truncated: bool
    """Whether keys are too short to answer: then a record counts only if it `finds` something in the values."""
    full_first: bytes
    """The least whole key in it, before anything was cut."""
    full_end: bytes
    """The least whole key behind it."""

    def matches_values(self, contents: Iterable[bytes]) -> bool:
        """Whether one of a record's values, in their binary form, is really what was asked for."""
        return any(self.contains_any(keys) for content in contents for keys in location_keys(content))

    def contains_any(self, keys: Iterable[bytes]) -> bool:
        """Whether one of the whole keys of a place is in it."""
        return any(self.full_first <= key < self.full_end for key in keys)


def target_keys(contents: Iterable[bytes]) -> set[bytes]:
    """The keys of a record, given its values in their binary form.

    Values of type URL count, those of its subtypes, and every place in a 10320/loc value. Of a place that is written
    as a template, the template is the target. What is not XML leads nowhere.
    """
    keys: set[bytes] = set()
    for data in _find_urls(contents):
        for key in _full_keys(data):
            keys.add(key if len(key) <= KEY_LENGTH else key[:KEY_LENGTH])
    return keys


def location_keys(content: bytes) -> list[tuple[bytes, ...]]:
    """Where a value in its binary form leads: the whole keys of each place, the one by its host first."""
    return [_full_keys(data) for data in _find_urls((content,))]


def url_text(key: bytes) -> bytes:
    """The URL or text that the first key of a place was made from, in the form in which those that mean the same are
    equal.
    """
    if not key.startswith(_URL):
        return key[1:]
    reversed_host, _, rest = key[1:].partition(b":")
    before, slash, path = rest.partition(b"/")
    scheme, colon, port = before.partition(b":")
    return (scheme or _DEFAULT_SCHEME) + b"://" + _format_host(reversed_host) + colon + port + slash + path


def _format_host(part: bytes) -> bytes:
    """A host as it stands in a URL, from the form that it has in a key."""
    if not part.startswith(b"["):
        name = b".".join(part[:-1].split(b".")[::-1])
        return name + b"." if name.endswith(b".") else name  # of several dots one was dropped
    inner = part[1:-1]
    return inner if _IPV4.fullmatch(inner) else b"[" + str(IPv6Address(bytes.fromhex(inner.decode()))).encode() + b"]"


def exact_url_range(url: str | bytes) -> KeyRange:
    """Everything that leads to this URL."""
    return single_key_range(_full_keys(_to_bytes(url).strip())[0])


def url_prefix_range(text: str | bytes) -> KeyRange:
    """Everything that leads to a URL which begins like this.

    The host counts as a whole, so `https://example.org` does not find `https://example.organic/`; see `host` for
    subdomains. From the path on it is a matter of characters: `https://example.org/items/1` finds `/items/10` as
    well. What ends before the host does (`https:`) finds only text that is no URL.
    """
    return prefix_range(_full_keys(_to_bytes(text).lstrip())[0])


def host_range(name: str, *, subdomains: bool) -> KeyRange:
    """Everything that leads to this host, by any scheme and port; with its subdomains if they are wanted.

    An address is a host without subdomains; IPv6 may be written with or without brackets.
    """
    stripped = name.strip()
    found = None
    if _HOST_NAME.fullmatch(stripped):
        found = _host_part(stripped.encode("utf-8", "surrogatepass"))
    elif ":" in stripped:
        found = _address_part(stripped.removeprefix("[").removesuffix("]").encode("utf-8", "surrogatepass"))
    if found is None:
        raise InvalidData(f"{name[:40]!r} is neither a host name nor an address")
    return prefix_range(_URL + found + (b"" if subdomains else b":"))


def path_prefix_range(text: str | bytes) -> KeyRange:
    """Everything that leads to a path which begins like this, on any host; the slash at its front may be left out."""
    return prefix_range(_PATH + _with_leading_slash(_to_bytes(text)))


def _to_bytes(text: str | bytes) -> bytes:
    """Text as it would stand in a value; octets that are not UTF-8 can be asked for as they are."""
    # Half a surrogate pair has no UTF-8 form; written like this it is found nowhere, which is the truth.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def prefix_range(prefix: bytes) -> KeyRange:
    """All keys that begin like this."""
    cut = prefix[:KEY_LENGTH]
    return KeyRange(cut, _prefix_end(cut), len(prefix) > KEY_LENGTH, prefix, _prefix_end(prefix))


def single_key_range(key: bytes) -> KeyRange:
    """One key and no other."""
    is_truncated = len(key) >= KEY_LENGTH  # a key of just this length may have been cut, too
    if is_truncated:
        return KeyRange(key[:KEY_LENGTH], _prefix_end(key[:KEY_LENGTH]), is_truncated, key, key + b"\0")
    return KeyRange(key, key + b"\0", is_truncated, key, key + b"\0")


def _prefix_end(prefix: bytes) -> bytes:
    """The least octets behind all that begin like this. The letter of the kind, at the front, can always be raised."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes((rest[-1] + 1,))


def _find_urls(contents: Iterable[bytes]) -> Iterator[bytes]:
    """What the values lead to, without the blanks around it. Other types are passed over without being decoded."""
    for content in contents:
        if content[_TYPE : _TYPE + 8].lower() == _PLAIN_URL:
            start = _PLAIN_URL_DATA
        elif (word := content[_TYPE_NAME : _TYPE_NAME + 4].lower()) == b"url.":
            start = _TYPE_NAME + _LENGTH.unpack_from(content, _TYPE)[0] + 4
        elif word == b"1032":
            yield from _find_locations(content)
            continue
        else:
            continue
        yield content[start : start + _LENGTH.unpack_from(content, start - 4)[0]].strip()


def _find_locations(content: bytes) -> Iterator[bytes]:
    """The places in a value that is 10320/loc or one of its subtypes, if it is."""
    start = _TYPE_NAME + _LENGTH.unpack_from(content, _TYPE)[0]
    if content[_TYPE_NAME:start].partition(b".")[0].lower() != _LOCATIONS:
        return
    data = content[start + 4 : start + 4 + _LENGTH.unpack_from(content, start)[0]]
    try:
        found = Locations.from_bytes(data).locations
    except InvalidData:
        return
    for location in found:
        place = location.href if location.href is not None else location.href_template
        if place is not None:
            yield place.encode().strip()


def _full_keys(data: bytes) -> tuple[bytes, ...]:
    """The keys of one URL, not cut: the one by its host first."""
    found = _PARTS.fullmatch(data)
    if found is None:
        return (_TEXT + data,)
    scheme, name, port, rest = found.groups()
    authority = _authority_key(scheme, name, port)
    if authority is None:
        return (_TEXT + data,)
    rest = b"/" if rest is None else _with_leading_slash(rest)
    return (authority + rest, _PATH + rest)


def _with_leading_slash(path: bytes) -> bytes:
    return path if path.startswith(b"/") else b"/" + path


def _authority_key(scheme: bytes, name: bytes, port: bytes | None) -> bytes | None:
    """A key up to the path: host, scheme and port; None if that is no host."""
    if len(name) <= _MAX_CACHED_LENGTH and len(scheme) <= _MAX_CACHED_LENGTH and port is None:
        return _cached_authority(scheme, name)
    return _build_authority(scheme, name, port)


@lru_cache(_HOST_CACHE_SIZE)
def _cached_authority(scheme: bytes, name: bytes) -> bytes | None:
    return _build_authority(scheme, name, None)


def _build_authority(scheme: bytes, name: bytes, port: bytes | None) -> bytes | None:
    found = _address_part(name[1:-1]) if name.startswith(b"[") else _host_part(name)
    if found is None:
        return None
    scheme = scheme.lower()
    key = _URL + found + b":" + (b"" if scheme == _DEFAULT_SCHEME else scheme)
    if port:
        port = port.lstrip(b"0") or b"0"
        if port != DEFAULT_PORTS.get(scheme):
            key += b":" + port
    return key


def _host_part(name: bytes) -> bytes | None:
    """A host that is not in brackets, as it stands in a key; None if nothing is left of it."""
    name = name.lower().removesuffix(b".")
    if not name:
        return None
    if name[-1] in _DIGITS and _IPV4.fullmatch(name):
        return b"[" + name + b"]"
    return b".".join(ascii_form(name).split(b".")[::-1]) + b"."


def ascii_form(name: bytes) -> bytes:
    """A host in letters of the world in the form that the DNS knows, label by label.

    This is the `xn--` form of the small letters, composed. The codec of the standard library is not used: it follows
    the rules of 2003, in which `straße` is `strasse`, another host today. A name that is not UTF-8, or too long to be
    one, stays as it is.
    """
    if name.isascii() or len(name) > _MAX_IDN_LENGTH:
        return name
    try:
        labels = unicodedata.normalize("NFC", name.decode("utf-8").lower()).split(".")
    except UnicodeDecodeError:
        return name
    return b".".join([label.encode() if label.isascii() else b"xn--" + label.encode("punycode") for label in labels])


def _address_part(text: bytes) -> bytes | None:
    """An IPv6 address as it stands in a key; None if it is none, or one that only a single machine understands."""
    try:
        address = IPv6Address(text.decode("ascii"))
    except ValueError:
        return None
    return None if address.scope_id is not None else b"[" + address.packed.hex().encode() + b"]"


ALL_TEXT: Final = prefix_range(_TEXT)
"""Everything that leads to text that is no URL with a host."""
ALL_URLS: Final = prefix_range(_URL)
"""Everything that leads to a URL with a host."""

_TYPE_KEY, _DATA, _OWNER = b"Y", b"V", b"O"
_DIGEST_LENGTH: Final = 8
_URL_TYPE, _ADMIN, _SECRET = b"url", b"hs_admin", b"hs_seckey"
_TYPE_AT: Final = 14  # where the type stands in the binary form of a value, behind its length
_HANDLE_AT: Final = 2  # where the handle stands in the data of an administrator, likewise
_OWNER_CACHE_SIZE: Final = 1_024


def index_keys(contents: Sequence[bytes]) -> set[bytes]:
    """All keys by which a record is found, given its values in their binary form."""
    keys = target_keys(contents)
    for content in contents:
        start = _TYPE_AT + 4
        end = start + _LENGTH.unpack_from(content, _TYPE_AT)[0]
        type_ = content[start:end].lower()
        if type_ == _URL_TYPE:
            continue
        data = content[end + 4 : end + 4 + _LENGTH.unpack_from(content, end)[0]]
        base = type_.partition(b".")[0]
        owner = _owner_key(data) if base == _ADMIN else None
        if owner is not None:
            keys.add(owner)
        if type_ != _ADMIN or owner is None:
            keys.add((_TYPE_KEY + type_)[:KEY_LENGTH])
        if base not in (_URL_TYPE, _ADMIN, _SECRET):
            keys.add(_digest_key(_DATA, data))
    return keys


def type_ranges(type_: str) -> tuple[KeyRange, ...]:
    """Everything with a value that a query for this type finds; some with others, so the values have to be looked at.

    As in resolution, `URL` is that type only, and `URL.` means its subtypes as well.
    """
    whole = type_.encode("utf-8", "surrogatepass").lower()
    name = whole.removesuffix(b".")
    if name == _URL_TYPE:
        return ALL_TEXT, ALL_URLS  # subtypes have such keys too
    found = (
        (single_key_range(_TYPE_KEY + name),)
        if whole == name
        else (single_key_range(_TYPE_KEY + name), prefix_range(_TYPE_KEY + whole))
    )
    return (prefix_range(_OWNER), *found) if name == _ADMIN else found


def value_ranges(data: bytes) -> tuple[KeyRange, ...]:
    """Everything with a value that holds these data, and a few others."""
    return exact_url_range(data), single_key_range(_digest_key(_DATA, data))


def owner_ranges(handle: str) -> tuple[KeyRange, ...]:
    """Everything of which this handle is an administrator, or in which it is named as some party, and a few others."""
    raw = handle.encode("utf-8", "surrogatepass")
    return single_key_range(_digest_key(_OWNER, raw)), single_key_range(_digest_key(_DATA, raw))


def _digest_key(kind: bytes, raw: bytes) -> bytes:
    return kind + blake2b(raw.lower(), digest_size=_DIGEST_LENGTH).digest()


def _owner_key(data: bytes) -> bytes | None:
    """The key of the administrator that data name; None if they cannot be read."""
    return _cached_owner_key(data) if len(data) <= _MAX_CACHED_LENGTH else _build_owner_key(data)


def _build_owner_key(data: bytes) -> bytes | None:
    start = _HANDLE_AT + 4
    try:
        (length,) = _LENGTH.unpack_from(data, _HANDLE_AT)
    except error:
        return None
    # An index of four octets follows the handle.
    return _digest_key(_OWNER, data[start : start + length]) if 0 < length <= len(data) - start - 4 else None


_cached_owner_key = lru_cache(_OWNER_CACHE_SIZE)(_build_owner_key)

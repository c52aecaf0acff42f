"""URLs with `*` for any characters: whether one matches, and in which range of keys it can be.

    https://example.org/items/*      begins like this
    https://*.example.org/*          the subdomains of a host
    *://example.org/*                a host, by any scheme
    *://*/items/*                    a path, on any host
    *.pdf                            no range: everything has to be looked at

A `*` in scheme and host stands for characters of these, one behind them or in a text without `://` for any. What is
matched is the form of a URL in which those that mean the same are equal (`target_keys.url_text`), and the pattern is
brought into it: `HTTP://Example.org:80` is `http://example.org/`. Where the scheme is open, a port stands for itself:
`*://example.org:80/*` finds `http://example.org/`. A pattern that ends with a `*` before its path does goes on with
anything. There is no other sign with a meaning, because `?` and brackets stand in URLs.

Matching takes time in proportion to the text, whatever the pattern: parts are looked for one behind the other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from perseid.records.errors import InvalidData

from .search_keys import (
    ALL_TEXT,
    ALL_URLS,
    DEFAULT_PORTS,
    KeyRange,
    ascii_form,
    exact_url_range,
    host_range,
    location_keys,
    path_prefix_range,
    url_prefix_range,
    url_text,
)

STAR: Final = b"*"
MAX_PATTERN: Final = 4_096
"""Octets of the longest pattern; no URL in use is longer."""

_PARTS = re.compile(rb"([^:/?#]*)://([^/?#]*)(.*)", re.DOTALL)
_ENDS_LIKE_ADDRESS = re.compile(rb"[0-9.]+|\[.*", re.DOTALL)  # a name that could be below it is none of its subdomains
_WITH_PORT = re.compile(rb"(.*?)(:[0-9*]*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class UrlGlob:
    """A pattern for URLs."""

    scheme: bytes | None
    """None where the pattern has no `://`; then `rest` is matched against the whole text."""
    authority: bytes
    rest: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take a pattern as somebody wrote it."""
        raw = text.strip().encode("utf-8", "surrogatepass")
        if not raw or len(raw) > MAX_PATTERN:
            raise InvalidData(f"a URL to look for has 1 to {MAX_PATTERN:,} octets, not {len(raw):,}")
        found = _PARTS.fullmatch(raw)
        if found is None:
            return cls(None, b"", raw)
        scheme, authority, rest = found.groups()
        if not rest and authority.endswith(STAR):
            rest = STAR
        rest = rest if rest == STAR or rest.startswith(b"/") else b"/" + rest
        if STAR not in scheme + authority:
            plain = _split_url(_first_key(scheme + b"://" + authority + b"/"))
            return cls(None, b"", raw) if plain is None else cls(plain[0], plain[1], rest)
        if STAR not in authority and (plain := _split_url(_first_key(b"x://" + authority + b"/"))):
            authority = plain[1]
        return cls(scheme.lower(), _normalize_authority(authority.lower()), rest)

    @property
    def is_exact(self) -> bool:
        """Whether there is no `*` in it."""
        return STAR not in (self.scheme or b"") + self.authority + self.rest

    @property
    def literal(self) -> bytes | None:
        """What stands before a single `*` at the end, scheme and host included; None if the pattern is another one."""
        if self.scheme is None or STAR in self.scheme + self.authority:
            return None
        lead, star, behind = self.rest.partition(STAR)
        return self.scheme + b"://" + self.authority + lead if star and not behind else None

    def matches(self, key: bytes) -> bool:
        """Whether the place with this first key, not cut, is one of those meant."""
        if self.scheme is None:
            return _matches(self.rest, url_text(key))
        found = _split_url(key)
        if found is None:
            return False
        scheme, authority, rest = found
        if not (_matches(self.scheme, scheme) and _matches(self.rest, rest)):
            return False
        return _matches(self.authority, authority) or self._matches_port(scheme, authority)

    def _matches_port(self, scheme: bytes, authority: bytes) -> bool:
        """Whether a port is asked for which is that of the scheme, and therefore not written."""
        default = DEFAULT_PORTS.get(scheme)
        if default is None or b":" in authority.rpartition(b"]")[2] or not _split_port(self.authority)[1]:
            return False
        return _matches(self.authority, authority + b":" + default)

    def matches_values(self, content: bytes) -> bool:
        """Whether a value in its binary form leads to one of those meant."""
        return any(self.matches(keys[0]) for keys in location_keys(content))

    def ranges(self) -> tuple[KeyRange, ...] | None:
        """Where everything that matches stands, and perhaps more; None if nothing is narrower than everything."""
        if self.scheme is None:
            return (exact_url_range(self.rest),) if self.is_exact else None
        lead = self.rest.partition(STAR)[0]
        if STAR not in self.scheme + self.authority:
            whole = self.scheme + b"://" + self.authority + lead
            return (exact_url_range(whole) if self.is_exact else url_prefix_range(whole),)
        below = self.authority.removeprefix(b"*.")
        name = _split_port(below)[0]
        below_host = below != self.authority
        if STAR not in name and name and not (below_host and _ENDS_LIKE_ADDRESS.fullmatch(name)):
            return (host_range(name.decode("utf-8", "surrogatepass"), subdomains=below_host),)
        return (path_prefix_range(lead),) if len(lead) > 1 else None


ALL_KEYS: Final = (ALL_TEXT, ALL_URLS)
"""What is looked through where a pattern has no range."""


def _normalize_authority(authority: bytes) -> bytes:
    """A host with a `*` in it, in the form of a key's text as far as it is written out."""
    name, port = _split_port(authority)
    name = name if name.endswith(b"..") else name.removesuffix(b".")
    labels = [label if STAR in label else ascii_form(label) for label in name.split(b".")]
    digits = port[1:]
    if digits.isdigit():
        digits = digits.lstrip(b"0") or b"0"
    return b".".join(labels) + (b":" + digits if digits else b"")


def _split_port(authority: bytes) -> tuple[bytes, bytes]:
    """A host, and its port with the colon before it; empty if there is none."""
    found = _WITH_PORT.fullmatch(authority)
    return (authority, b"") if found is None else (found[1], found[2] or b"")


def _first_key(url: bytes) -> bytes:
    return exact_url_range(url).full_first


def _split_url(key: bytes) -> Sequence[bytes] | None:
    """Scheme, host with port, and the rest of a URL, from its first key; None if it has no host."""
    found = _PARTS.fullmatch(url_text(key)) if key.startswith(ALL_URLS.first) else None
    return None if found is None else found.groups()


def _matches(pattern: bytes, text: bytes) -> bool:
    first, *others = pattern.split(STAR)
    if not others:
        return text == first
    *middle, last = others
    if not text.startswith(first):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:
        place = text.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return place <= end and text.endswith(last)

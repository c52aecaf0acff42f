"""URL patterns with `*` as a wildcard: matching, and the key ranges that can contain matches.

    https://example.org/items/*      a prefix
    https://*.example.org/*          the subdomains of a host
    *://example.org/*                a host, with any scheme
    *://*/items/*                    a path, on any host
    *.pdf                            no range: everything is scanned

A `*` in scheme or host matches only characters of that part; after them, or in text without `://`, it matches anything.
The pattern is matched against the normalized URL (`search_keys.url_text`) and is normalized itself:
`HTTP://Example.org:80` is `http://example.org/`. If the scheme is open, a port is literal: `*://example.org:80/*` finds
`http://example.org/`. A pattern that ends with a `*` before its path matches any path. No other character is special,
because `?` and brackets occur in URLs.

Matching takes time linear in the text, whatever the pattern: parts are searched one after another.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
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
"""Bytes of the longest pattern; no URL in use is longer."""

_PARTS = re.compile(rb"([^:/?#]*)://([^/?#]*)(.*)", re.DOTALL)
_ENDS_LIKE_ADDRESS = re.compile(rb"[0-9.]+|\[.*", re.DOTALL)  # addresses have no subdomains
_WITH_PORT = re.compile(rb"(.*?)(:[0-9*]*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class UrlGlob:
    """A URL pattern."""

    scheme: bytes | None
    """None if the pattern has no `://`; then `rest` is matched against the whole text."""
    authority: bytes
    rest: bytes
    _start: bytes | None = field(init=False, repr=False, compare=False)
    """How the first keys of all matches, and of no other URLs, start; None if the pattern has another form."""

    def __post_init__(self) -> None:
        literal = self.literal
        start = None if literal is None else url_prefix_range(literal).full_first
        object.__setattr__(self, "_start", start if start is not None and start.startswith(ALL_URLS.first) else None)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern as a user wrote it."""
        raw = text.strip().encode("utf-8", "surrogatepass")
        if not raw or len(raw) > MAX_PATTERN:
            raise InvalidData(f"the URL pattern has {len(raw):,} bytes; allowed are 1 to {MAX_PATTERN:,}")
        match = _PARTS.fullmatch(raw)
        if match is None:
            return cls(None, b"", raw)
        scheme, authority, rest = match.groups()
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
        """Whether it has no `*`."""
        return STAR not in (self.scheme or b"") + self.authority + self.rest

    @property
    def literal(self) -> bytes | None:
        """The text before a single `*` at the end, with scheme and host; None for any other pattern."""
        if self.scheme is None or STAR in self.scheme + self.authority:
            return None
        lead, star, tail = self.rest.partition(STAR)
        return self.scheme + b"://" + self.authority + lead if star and not tail else None

    def matches(self, key: bytes) -> bool:
        """Whether the URL with this full first key matches."""
        return self._matches_parts(key) if self._start is None else key.startswith(self._start)

    def _matches_parts(self, key: bytes) -> bool:
        if self.scheme is None:
            return _matches(self.rest, url_text(key))
        parts = _split_url(key)
        if parts is None:
            return False
        scheme, authority, rest = parts
        if not (_matches(self.scheme, scheme) and _matches(self.rest, rest)):
            return False
        return _matches(self.authority, authority) or self._matches_port(scheme, authority)

    def _matches_port(self, scheme: bytes, authority: bytes) -> bool:
        """Whether the pattern has the scheme's default port, which normalized URLs omit."""
        default = DEFAULT_PORTS.get(scheme)
        if default is None or b":" in authority.rpartition(b"]")[2] or not _split_port(self.authority)[1]:
            return False
        return _matches(self.authority, authority + b":" + default)

    def matches_values(self, content: bytes) -> bool:
        """Whether an encoded value has a URL that matches."""
        return any(self.matches(keys[0]) for keys in location_keys(content))

    def ranges(self) -> tuple[KeyRange, ...] | None:
        """Return ranges that contain all matches, and perhaps more; None if everything must be scanned."""
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
"""What is scanned if a pattern has no range."""


def _normalize_authority(authority: bytes) -> bytes:
    """Normalize a host with a `*` as far as it is literal."""
    name, port = _split_port(authority)
    name = name if name.endswith(b"..") else name.removesuffix(b".")
    labels = [label if STAR in label else ascii_form(label) for label in name.split(b".")]
    digits = port[1:]
    if digits.isdigit():
        digits = digits.lstrip(b"0") or b"0"
    return b".".join(labels) + (b":" + digits if digits else b"")


def _split_port(authority: bytes) -> tuple[bytes, bytes]:
    """Split a host from its port with the colon; empty if there is none."""
    match = _WITH_PORT.fullmatch(authority)
    return (authority, b"") if match is None else (match[1], match[2] or b"")


def _first_key(url: bytes) -> bytes:
    return exact_url_range(url).full_first


def _split_url(key: bytes) -> Sequence[bytes] | None:
    """Split a URL, from its first key, into scheme, authority and rest; None if it has no host."""
    match = _PARTS.fullmatch(url_text(key)) if key.startswith(ALL_URLS.first) else None
    return None if match is None else match.groups()


def _matches(pattern: bytes, text: bytes) -> bool:
    first, *others = pattern.split(STAR)
    if not others:
        return text == first
    *middle, last = others
    if not text.startswith(first):
        return False
    start, end = len(first), len(text) - len(last)
    for part in middle:
        start = text.find(part, start, end)
        if start < 0:
            return False
        start += len(part)
    return start <= end and text.endswith(last)

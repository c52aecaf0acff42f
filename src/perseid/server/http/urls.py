"""URLs of records as they go out in a header: checked, trimmed, and encoded (web resolver, §9.5).

Whoever writes a record may write anything where a URL is expected. Nobody is sent to it unless it begins with a scheme
that the settings permit, holds no control characters and is of a bearable length. An international host is written in
ASCII (IDNA); then every octet outside a fixed set is percent-encoded. Percent signs stay as they are: the text may be
encoded already, and to encode it twice would lead elsewhere.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

MAX_URL: Final = 8_192
"""Characters of the longest URL that goes out, encoded: what common browsers and servers take in a header."""

KEPT: Final = "-._~!$()*,:@/;=+&'?#[]%"
"""What stays as it is, besides letters and digits of ASCII."""

_AROUND: Final = " \t\r\n\f\v"
_MAX_HOST: Final = 253  # octets of the longest name that DNS has; to convert a longer one costs time for nothing
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SCHEME: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]*):")
_WITH_HOST: Final = frozenset(("http", "https", "ftp"))
_PARTS: Final = re.compile(r"(//(?:[^/?#\\]*@)?)([^/?#\\]*?)((?::[0-9]*)?)((?:[/?#\\].*)?)", re.DOTALL)
_HOST: Final = re.compile(r"[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\]")
_ASCII_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")


class Unsuitable(ValueError):
    """Nobody is sent there; the text says why, as a clause."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where somebody can be sent."""

    text: str
    """As the record has it, without blanks around it."""
    location: str
    """As it goes out, in ASCII."""


def target_of(text: str, schemes: Collection[str], appended: str = "") -> Target:
    """A URL of a record as it goes out, with what the request appends to it. Raises `Unsuitable`."""
    text = text.strip(_AROUND)
    location = _encoded(text, schemes)
    if appended:
        text += appended
        longer = _encoded(text, schemes)
        if _owner_of(longer) != _owner_of(location):
            raise Unsuitable("what is appended to the URL would lead to another host")
        location = longer
    return Target(text, location)


def encode(text: str) -> str:
    """Percent-encode every octet of a text in UTF-8 that does not belong in a URL; percent signs stay as they are."""
    return quote(text, safe=KEPT)


def scheme_of(text: str) -> str:
    """The scheme of a URL in lower case; empty if it has none."""
    found = _SCHEME.match(text)
    return found[1].lower() if found else ""


def _encoded(text: str, schemes: Collection[str]) -> str:
    if not text:
        raise Unsuitable("it is empty")
    if _CONTROLS.search(text):
        raise Unsuitable("it holds control characters")
    if len(text) > MAX_URL:
        raise Unsuitable(f"it has {len(text):,} characters; {MAX_URL:,} are the most")
    scheme = scheme_of(text)
    if not scheme:
        raise Unsuitable("it has no scheme, so it leads nowhere by itself")
    if scheme not in schemes:
        raise Unsuitable("its scheme is not one of those that this server redirects to")
    location = encode(_with_ascii_host(text, scheme) if scheme in _WITH_HOST else text)
    if len(location) > MAX_URL:
        raise Unsuitable(f"it has {len(location):,} characters; {MAX_URL:,} are the most")
    return location


def _with_ascii_host(text: str, scheme: str) -> str:
    """The URL with its host in ASCII."""
    parts = _PARTS.fullmatch(text, len(scheme) + 1)
    if parts is None or not parts[2]:
        raise Unsuitable("it names no host")
    before, host, port, rest = parts.groups()
    if rest.startswith("\\"):
        raise Unsuitable("its host ends in a backslash, which some take for a slash and some do not")
    if not host.isascii():
        return f"{text[: len(scheme) + 1]}{before}{_to_ascii(host)}{port}{rest}"
    if _HOST.fullmatch(host) is None:
        raise Unsuitable("its host is no name of a host")
    return text


def _to_ascii(host: str) -> str:
    """The host by the rules of IDNA."""
    try:
        converted = host.encode("idna").decode("ascii") if len(host) <= _MAX_HOST else ""
    except UnicodeError:
        converted = ""
    # Characters that look like a slash or an at sign become one, and then the host would be another.
    if not _ASCII_HOST.fullmatch(converted):
        raise Unsuitable("its host is no name of a host")
    return converted


def _owner_of(location: str) -> str:
    """What must stay the same when something is appended: scheme and host, or the addresses of a letter."""
    scheme = scheme_of(location)
    if scheme in _WITH_HOST:
        parts = _PARTS.fullmatch(location, len(scheme) + 1)
        return location[: parts.end(3)] if parts else location
    return re.split("[?#]", location, maxsplit=1)[0]

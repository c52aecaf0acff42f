"""The logo of the service, from a file in the installation.

It is recognized by its first bytes. An SVG may contain scripts, so pages use it only as an image.
"""

from pathlib import Path
from typing import Final, NamedTuple

from .files import InstallationError, read_file
from .settings import Config

MAX_LOGO: Final = 32 << 10
"""Bytes of the largest logo: every page loads it, and a page with its files has less than 100 kB."""

_ADVICE: Final = "correct service.logo_file"
_WEBP_MARK: Final = slice(8, 12)


class LogoError(InstallationError):
    """The logo is unusable; the message says what to do."""


class Logo(NamedTuple):
    """An image and its media type."""

    data: bytes
    media_type: str


def load_logo(directory: Path, config: Config) -> Logo | None:
    """Load the logo; None if there is none. Raises `LogoError`."""
    if not config.service.logo_file:
        return None
    path = directory / config.service.logo_file
    data = read_file(path, MAX_LOGO, _ADVICE, LogoError)
    media_type = _find_type(data)
    if media_type is None:
        raise LogoError(f"{path} is not an SVG, PNG, JPEG or WebP image; {_ADVICE}")
    return Logo(data, media_type)


def _find_type(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"RIFF") and data[_WEBP_MARK] == b"WEBP":
        return "image/webp"
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return "image/svg+xml" if start.startswith((b"<svg", b"<?xml", b"<!--")) and b"<svg" in data else None

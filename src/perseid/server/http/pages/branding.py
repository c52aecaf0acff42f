"""Who runs the service, as pages show it: name, logo, contact, terms, footer, and the accent color.

A configured color is moved toward black or white until text in it is readable on the pages, and text on it too.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import Response

from .links import TextLink, mail_link
from .texts import _, on_change

SERVICE_CSS: Final = "service.css"
LOGO: Final = "logo"
"""Static files that depend on settings."""

LOGO_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Scripts of an SVG do not run, even if somebody opens it as a page."""

CONTRAST: Final = 4.5
"""Contrast of text, as WCAG 2.2 demands (1.4.3)."""

LIGHT_PAPER: Final = "#f6f7f9"
DARK_PAPER: Final = "#1b2028"
"""The darkest background of links in light mode, and the lightest in dark mode: as in perseid.css."""

_CACHED_SETTINGS: Final = 4  # a process has one, or two during a reload
_STEPS: Final = 64
_WHITE: Final = "#ffffff"
_BLACK: Final = "#000000"
_SOFT: Final = 0.12


@dataclass(frozen=True, slots=True)
class Brand:
    """What the header and footer of every page show."""

    name: str
    description: str
    logo: str
    contact: TextLink | None
    terms: str
    footer: str
    stylesheet: str
    """The path of a stylesheet with the colors; empty for the usual ones."""


@lru_cache(_CACHED_SETTINGS)
def get_brand(settings: HttpSettings) -> Brand:
    """Describe the service."""
    service = settings.service
    return Brand(
        name=site_name(settings),
        description=service.description,
        logo="/static/perseid.svg" if settings.logo is None else f"/static/{LOGO}",
        contact=mail_link(service.contact, settings) if service.contact else None,
        terms=service.terms_url,
        footer=service.footer,
        stylesheet=f"/static/{SERVICE_CSS}" if service.accent_color else "",
    )


on_change(get_brand.cache_clear)


def site_name(settings: HttpSettings) -> str:
    """The name of this service: as configured, or the host of its public URL."""
    return settings.service.name or urlsplit(settings.public_url).netloc or _("Handle resolver")


def get_branded_file(name: str, settings: HttpSettings) -> Response | None:
    """Return a static file that depends on settings; None if there is none of that name."""
    if name == LOGO and settings.logo is not None:
        type_ = ("Content-Type", settings.logo.media_type)
        return Response(200, (type_, ("Content-Security-Policy", LOGO_POLICY)), settings.logo.data)
    if name == SERVICE_CSS and settings.service.accent_color:
        css = make_stylesheet(settings.service.accent_color).encode()
        return Response(200, (("Content-Type", "text/css;charset=utf-8"),), css)
    return None


def make_stylesheet(color: str) -> str:
    """The stylesheet that changes the accent color, in light and in dark mode."""
    light, dark = adjust(color, LIGHT_PAPER, _BLACK), adjust(color, DARK_PAPER, _WHITE)
    return (
        f":root {{{_variables(light, LIGHT_PAPER)}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{{_variables(dark, DARK_PAPER)}}} }}\n"
        f"@media print {{ :root {{{_variables(light, LIGHT_PAPER)}}} }}\n"
    )


def adjust(color: str, paper: str, toward: str) -> str:
    """The nearest color toward black or white that is readable on a paper."""
    shades = [mix(color, toward, step / _STEPS) for step in range(_STEPS + 1)]
    return next(shade for shade in shades if contrast(shade, paper) >= CONTRAST)


def mix(color: str, other: str, share: float) -> str:
    """Mix two colors."""
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join([f"{round(one + (two - one) * share):02x}" for one, two in pairs])


def contrast(one: str, other: str) -> float:
    """The contrast of two colors, from 1 to 21."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _variables(accent: str, paper: str) -> str:
    above = _WHITE if contrast(accent, _WHITE) >= CONTRAST else _BLACK
    soft = mix(paper, accent, _SOFT)
    return f" --accent: {accent}; --on-accent: {above}; --accent-soft: {soft}; --link: {accent}; "


def _luminance(color: str) -> float:
    """The relative luminance of a color (WCAG 2.2)."""
    parts = [channel / 255 for channel in _channels(color)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)

"""Pages: templates filled with what is to be shown, escaped, with the headers that keep a browser to them.

Everything that comes from a record or a request is put into a page as text. The templates escape it, and `visible`
makes readable what would not show, or would turn the direction of writing. Addresses become links only if `urls` lets
them. A page loads its stylesheet and its picture from here and nothing else, runs no script, and is framed by nobody.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final
from urllib.parse import quote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.resolver.paths import get_segments
from perseid.server.http.resolver.redirect import InvalidTarget, parse_target

HTML_TYPE: Final = "text/html;charset=utf-8"

POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What a page may do: have our stylesheet and our picture, and send its form to us."""

STATIC: Final[Mapping[str, str]] = {
    "favicon.ico": "image/x-icon",
    "perseid.css": "text/css;charset=utf-8",
    "perseid.svg": "image/svg+xml",
}
"""Files that come with the program, and what they are."""

MAX_SHOWN: Final = 4_000
"""Characters of one text that a page shows."""

ELLIPSIS: Final = "…"

_UNNAMED: Final = "Handle resolver"
_CONTROLS: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
_PICTURES: Final = 0x2400  # of the characters below U+0020
_DELETE: Final = "\N{SYMBOL FOR DELETE}"
_MAIL: Final = re.compile(r"[^\s@<>\"',;:?&#%/\\]{1,64}@[A-Za-z0-9.-]{1,253}")


@dataclass(frozen=True, slots=True)
class TextLink:
    """A text, and where it leads if it is a link."""

    text: str
    href: str = ""
    away: bool = False
    """Whether it leads to another server."""


NO_TEXT: Final = TextLink("")


def render_page(
    template: str, settings: HttpSettings, status: int = 200, headers: HeaderList = (), **shown: object
) -> Response:
    """A page made of a template; `title` is one of the things that it shows."""
    text = _environment().get_template(template).render(site=site_name(settings), **shown)
    own = (("Content-Type", HTML_TYPE), ("Content-Security-Policy", POLICY))
    return Response(status, (*headers, *own), text.encode("utf-8", "replace"))


def to_visible(text: str, limit: int = MAX_SHOWN) -> str:
    """A text as people can read it: what does not show is written out, and what is too long is cut.

    Line feeds stay. Other control characters have pictures of their own; whatever else cannot be printed, marks that
    turn the direction of writing among it, is shown by its number.
    """
    if len(text) > limit:
        text = text[:limit] + ELLIPSIS
    text = _CONTROLS.sub(lambda found: _DELETE if found[0] == "\x7f" else chr(_PICTURES + ord(found[0])), text)
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() or each == "\n" else f"⟨U+{ord(each):04X}⟩" for each in text])


def to_link(text: str, settings: HttpSettings, limit: int = MAX_SHOWN) -> TextLink:
    """A text that is a link if it is an address that people may be sent to."""
    try:
        return TextLink(to_visible(text, limit), parse_target(text, settings.schemes).location, away=True)
    except InvalidTarget:
        return TextLink(to_visible(text, limit))


def mail_link(text: str, settings: HttpSettings) -> TextLink:
    """An address of mail as a link, if it is one; or whatever else it is."""
    address = text.strip()
    if "mailto" in settings.schemes and _MAIL.fullmatch(address):
        return TextLink(to_visible(text), f"mailto:{quote(address, safe='@.+-_')}", away=True)
    return to_link(text, settings)


def url_templates(settings: HttpSettings) -> tuple[str, ...]:
    """The forms of links that work here, with `{handle}` for the name (U4)."""
    bare = [f"{settings.public_url}/{{handle}}"] if settings.bare else []
    return (*bare, *[f"{settings.public_url}/{segment}/{{handle}}" for segment in get_segments(settings)])


def site_name(settings: HttpSettings) -> str:
    """What this server is called: by its declared address."""
    return urlsplit(settings.public_url).netloc or _UNNAMED


@cache
def read_static(name: str) -> bytes:
    """A file that comes with the program."""
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )

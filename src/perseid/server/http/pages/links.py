"""Text and links on pages, as HTML.

Text from records and requests is untrusted: it is escaped, and `to_visible` replaces characters that do not show or
change the writing direction. Only URLs that `parse_target` accepts become links.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape as escape_html
from typing import Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup, escape

from perseid.names.errors import capitalize
from perseid.server.http.context import HttpSettings
from perseid.server.http.resolver.redirect import InvalidTarget, parse_target

MAX_SHOWN: Final = 4_000
"""Characters of one text that a page shows."""

ELLIPSIS: Final = "…"

MAX_CACHED_TYPES: Final = 256
"""Types that are kept as HTML: records have some dozen different ones."""

SPECIAL: Final = re.compile("[&<>\"']")
_CONTROLS: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
_PICTURES: Final = 0x2400  # of the characters below U+0020
_DELETE: Final = "\N{SYMBOL FOR DELETE}"
_TIME: Final = re.compile(
    "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?Z",
    re.ASCII,
)
_TIME_ELEMENT: Final = r'<time datetime="\g<0>">\g<0></time>'
_BREAK: Final = re.compile("[./:_-](?=.)")
_SLASH: Final = "/<wbr>"
_BREAK_ELEMENT: Final = r"\g<0><wbr>"
_MAIL: Final = re.compile(r"[^\s@<>\"',;:?&#%/\\]{1,64}@[A-Za-z0-9.-]{1,253}")


class TextLink(NamedTuple):
    """Text, optionally a link."""

    text: str
    href: str = ""
    external: bool = False
    """Whether the link points to another server."""
    remark: str = ""
    """Shown after it."""


def escape_text(text: str) -> str:
    """Escape a text for HTML; most texts need no escape, which is found out faster."""
    return text if SPECIAL.search(text) is None else escape_html(text)


def to_sentence(text: str) -> str:
    """Make a clause a sentence."""
    text = capitalize(text.strip())
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def to_visible(text: str, limit: int = MAX_SHOWN) -> str:
    """Make text readable: truncate it and replace characters that do not show.

    Line feeds stay. Other control characters become their control pictures; every other unprintable character,
    including marks that change the writing direction, becomes its code point.
    """
    if len(text) > limit:
        text = text[:limit] + ELLIPSIS
    if text.isprintable():
        return text
    text = _CONTROLS.sub(lambda match: _DELETE if match[0] == "\x7f" else chr(_PICTURES + ord(match[0])), text)
    return "".join([each if each.isprintable() or each == "\n" else f"⟨U+{ord(each):04X}⟩" for each in text])


def mark_times(text: str) -> Markup:
    """Escape a text and mark its times in ISO 8601 for programs."""
    marked = _TIME.sub(_TIME_ELEMENT, str(escape(text)))
    return Markup(marked)  # noqa: S704 - the text is escaped


def render_piece(piece: TextLink) -> Markup:
    """Write a text as HTML, as a link if it is one."""
    return Markup(to_html(piece))  # noqa: S704 - it is escaped


def to_html(piece: TextLink) -> str:
    """The same as text."""
    text, href, external, _ = piece
    escaped = escape_text(text)
    if not href:
        return f"<bdi>{_TIME.sub(_TIME_ELEMENT, escaped) if 'Z' in text and ':' in text else escaped}</bdi>"
    if not external:
        return f'<a href="{escape_text(href)}"><bdi>{escaped}</bdi></a>'
    return f'<a href="{escape_text(href)}" rel="nofollow noopener"><bdi>{_break(escaped)}</bdi></a>'


def break_url(text: str) -> Markup:
    """A URL or handle as HTML; it breaks after slashes, and not in a word."""
    return Markup(_break(escape_text(text)))  # noqa: S704 - it is escaped


def _break(escaped: str) -> str:
    return escaped.replace("/", _SLASH).replace(_SLASH * 2, f"/{_SLASH}")  # faster than an expression


def render_actions(links: Iterable[TextLink]) -> Markup:
    """Write the links below a record as HTML."""
    items = [f'<li><a href="{escape_html(link.href)}">{escape_html(link.text)}</a></li>\n' for link in links]
    return Markup(f'<ul class="actions">\n{"".join(items)}</ul>')  # noqa: S704 - it is escaped


@lru_cache(MAX_CACHED_TYPES)
def type_to_html(type_: TextLink) -> str:
    """Write a type as HTML, with line breaks allowed between its words only."""
    text = f"<bdi>{_BREAK.sub(_BREAK_ELEMENT, escape_html(type_.text))}</bdi>"
    return f'<a href="{escape_html(type_.href)}">{text}</a>' if type_.href else text


def to_link(text: str, settings: HttpSettings, limit: int = MAX_SHOWN) -> TextLink:
    """Return a text, as a link if it is an acceptable target URL."""
    if ":" not in text:
        return TextLink(to_visible(text, limit))
    try:
        return TextLink(to_visible(text, limit), parse_target(text, settings.schemes).location, external=True)
    except InvalidTarget:
        return TextLink(to_visible(text, limit))


def mail_link(text: str, settings: HttpSettings) -> TextLink:
    """Return an email address as a `mailto:` link if it is valid; otherwise like `to_link`."""
    address = text.strip()
    if "mailto" in settings.schemes and _MAIL.fullmatch(address):
        return TextLink(to_visible(text), f"mailto:{quote(address, safe='@.+-_')}", external=True)
    return to_link(text, settings)

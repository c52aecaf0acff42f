"""A language that marks every text of the catalog, and a reader who finds texts that are not in it."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from gettext import NullTranslations
from html.parser import HTMLParser
from typing import Final

from perseid.server.http.pages import texts

LANGUAGE: Final = "x-marked"

_OPEN, _CLOSE = "⟦", "⟧"
_DATA_TAGS: Final = frozenset(("bdi", "code", "kbd", "pre", "time", "textarea", "script", "style", "q", "del", "ins"))
"""Elements whose content is data, or code."""
_VOID: Final = frozenset(("br", "col", "hr", "img", "input", "link", "meta", "wbr"))
_SPOKEN: Final = ("alt", "aria-label", "data-label", "title")
"""Attributes that people read or hear. A placeholder is an example, which is data."""
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_NAMES: Final = frozenset(("API", "JSON", "TTL", "UTC", "URL"))
"""Names that are the same in every language."""
_IDENTITY: Final = re.compile(r"\b\d+:[^\s/]+/[^\s;]+")
"""Data where no element can say so: in the texts of a drawing."""


class Marked(NullTranslations):
    """Every text in brackets."""

    def gettext(self, message: str) -> str:
        return f"{_OPEN}{message}{_CLOSE}"

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return self.gettext(msgid1 if n == 1 else msgid2)


@contextmanager
def marked() -> Iterator[None]:
    """All texts are marked while the block runs."""
    texts.use(Marked(), LANGUAGE)
    try:
        yield
    finally:
        texts.use(NullTranslations(), "en")


class _Reader(HTMLParser):
    """Collects the texts that are neither marked nor data."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._depth = 0
        self._data: list[str] = []
        """The elements of data around the current position, and the elements in them."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        for name in _SPOKEN:
            self._check_attribute(given.get(name, ""))
        if tag == "input" and given.get("type") == "submit":
            self._check_attribute(given.get("value", ""))
        is_data = (
            tag in _DATA_TAGS or given.get("lang", LANGUAGE) != LANGUAGE or (tag == "option" and "value" not in given)
        )
        if tag not in _VOID and (self._data or is_data):
            self._data.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._data and tag not in _VOID:
            self._data.pop()

    def handle_data(self, data: str) -> None:
        for part in re.split(f"([{_OPEN}{_CLOSE}])", data):
            self._depth += {_OPEN: 1, _CLOSE: -1}.get(part, 0)
            if not self._depth and not self._data and self._has_words(part):
                self.found.append(" ".join(part.split()))

    def _check_attribute(self, text: str) -> None:
        rest = re.sub(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}", "", text)
        if self._has_words(rest):
            self.found.append(rest)

    def _has_words(self, text: str) -> bool:
        return any(word not in _NAMES for word in _WORD.findall(_IDENTITY.sub("", text)))


def find_unmarked(html: str, data: Collection[str] = ()) -> list[str]:
    """Return the visible texts of a page that are not in the catalog, not marked as data, and not among `data`."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return [text for text in reader.found if text not in data]

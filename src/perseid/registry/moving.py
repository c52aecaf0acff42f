"""Where a value leads, when hosts and paths have moved: `http://old.example/*` to `https://new.example/*`.

What stands before the `*` is replaced, and what stands behind it stays, letter by letter. Values of type URL, those of
its subtypes, and the places in 10320/loc are moved. In XML only the attribute is written anew; if that cannot be done
without touching anything else, the value is left as it is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self
from xml.sax.saxutils import escape, unescape

from perseid.ledger.views.search_keys import EVERY_URL, places_of, url_exact, url_text
from perseid.ledger.views.url_glob import UrlGlob
from perseid.records.errors import InvalidData
from perseid.records.locations import Locations
from perseid.records.types import LOCATIONS, URL, has_type
from perseid.records.value import Value
from perseid.records.xml import Element
from perseid.registry.access.permissions import shown
from perseid.wire.codes import ResponseCode

from .results import Refused

_STAR = "*"
_PLACES: Final = ("location", "loc_template")
# Comments, instructions and plain text first: what looks like a tag in them is none.
_TAG = re.compile(
    rf"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<(?P<name>{"|".join(_PLACES)})(?=[\s/>])(?:[^"'>]|"[^"]*"|'[^']*')*>""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""(?<=\s)(href|href_template)(\s*=\s*)("[^"<]*"|'[^'<]*')""")
_NAMED = {"&quot;": '"', "&apos;": "'"}


@dataclass(frozen=True, slots=True)
class Move:
    """From where to where."""

    glob: UrlGlob
    before: bytes
    """What is replaced: how URLs begin, in the form of `url_text`, or a whole one."""
    after: str
    """What takes its place."""

    @classmethod
    def parse(cls, url: str, to: str) -> Self:
        """Take what somebody wrote; refused unless both say where, with one `*` at the end or none."""
        try:
            f"{url}{to}".encode()
        except UnicodeEncodeError:
            reason = "a URL that holds half of a surrogate pair has no UTF-8 form"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "write it as in http://old.example/*", "H4") from None
        try:
            glob = UrlGlob.parse(url)
        except InvalidData as problem:
            raise Refused(ResponseCode.INVALID_VALUE, str(problem), "write it as in http://old.example/*") from problem
        target = to.strip()
        before = glob.literal if not glob.is_exact else url_text(url_exact(url).whole_first)
        if before is None or glob.scheme is None:
            reason = (
                f"{shown(url)} does not say which URLs move: that takes a scheme, a host, and at most one * at the end"
            )
            raise Refused(ResponseCode.INVALID_VALUE, reason, "write it as in http://old.example/*")
        stars = 0 if glob.is_exact else 1
        after = target.removesuffix(_STAR) if stars else target
        if target.count(_STAR) != stars or _STAR in after or not _is_url(after, whole=not stars):
            reason = (
                f"{shown(to)} does not say where to: that takes a scheme, a host, and a * just where the other has one"
            )
            raise Refused(ResponseCode.INVALID_VALUE, reason, "write it as in https://new.example/*")
        return cls(glob, before, after)

    @property
    def repeats(self) -> bool:
        """Whether something that was moved could be moved again."""
        after = url_text(url_exact(self.after).whole_first)
        return after.startswith(self.before) or self.before.startswith(after)

    def moved(self, value: Value) -> Value | None:
        """A value after the move; the same if it cannot be moved; None if it leads elsewhere."""
        content = value.to_bytes()
        if not self.glob.finds(content):
            return None
        if has_type(value.type, URL):
            return replace(value, data=self._new(places_of(content)[0][0]))
        return self._moved_places(value) if has_type(value.type, LOCATIONS) else value

    def _new(self, key: bytes) -> bytes:
        return self.after.encode() + url_text(key)[len(self.before) :]

    def _moved_text(self, text: str) -> str:
        """Where a place is after the move; where it was, if it does not move."""
        key = url_exact(text).whole_first
        return self._new(key).decode() if self.glob.matches(key) else text

    def _moved_places(self, value: Value) -> Value:
        old = Locations.from_bytes(value.data)
        text = _TAG.sub(self._moved_tag, old.text)
        try:
            new = Locations.from_bytes(text.encode())
        except InvalidData:
            return value
        return replace(value, data=new.to_bytes()) if new.root == self._moved_root(old.root) else value

    def _moved_tag(self, tag: re.Match[str]) -> str:
        """A tag after the move; letter by letter the same if it is not that of a place."""
        return tag[0] if tag["name"] is None else _ATTRIBUTE.sub(lambda each: _written(each, self._moved_text), tag[0])

    def _moved_root(self, root: Element) -> Element:
        """What the document says after the move; of each place only the attribute changes that counts as its target."""
        children: list[Element | str] = []
        for child in root.children:
            if isinstance(child, Element) and child.name in _PLACES:
                counts = "href" if child.get("href") is not None else "href_template"
                moved = [(name, self._moved_text(text) if name == counts else text) for name, text in child.attributes]
                children.append(replace(child, attributes=tuple(moved)))
            else:
                children.append(child)
        return replace(root, children=tuple(children))


def _written(match: re.Match[str], moved: Callable[[str], str]) -> str:
    """An attribute of a place, as it is written after the move; letter by letter the same if it does not move."""
    quote, inner = match[3][0], match[3][1:-1]
    text = unescape(inner, _NAMED)
    new = moved(text)
    if new == text:
        return match[0]
    return f"{match[1]}{match[2]}{quote}{escape(new, {quote: '&quot;' if quote == chr(34) else '&apos;'})}{quote}"


def _is_url(text: str, *, whole: bool) -> bool:
    """Whether a text has a scheme and a host; as the beginning of URLs it says also where the host ends."""
    key = url_exact(text).whole_first
    return EVERY_URL.first <= key < EVERY_URL.end and (whole or "/" in text.partition("://")[2])

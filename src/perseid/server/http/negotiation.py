"""What a client would rather have, by its headers: which form of an answer, and which of several locations.

`Accept` and `Accept-Language` are lists with weights. They are read leniently: an entry that cannot be read is not
there, and a header of which nothing can be read is as good as none. Weights are counted in thousandths, which is all
the precision they have. Of several entries that fit a media type the most exact one counts, and of two that are
equally exact the higher one.

What is offered for a name is, in this order, so that the earlier one is given where the client does not care:

    redirection   to where the thing is; any `Accept` agrees with it
    page          the record as HTML
    JSON          the record as the API gives it
    other forms   what the record means to machines, and citations: `registry.record_forms`

A redirection is given unless one of these forms is named, by the name of its media type, with a higher weight than HTML
has: programs that take anything besides JSON (`application/json, */*`) are redirected, and so are browsers. Of several
that are named so, the one with the highest weight is given. Where there is nothing to redirect to, or the record itself
is asked for, a form that is named so is given; or JSON, if its weight is higher than that of HTML; and else the page,
also to those who accept nothing of all this: it tells them more than an empty refusal would.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from perseid.registry.queries.signposting import FORMATTERS

MAX_ENTRIES: Final = 64
"""Entries of one header that are looked at: browsers send up to ten."""

MAX_WEIGHT: Final = 1_000
"""The weight of what is accepted without reserve, in thousandths."""

HTML: Final = "text/html"
XHTML: Final = "application/xhtml+xml"
JSON: Final = "application/json"
ANY_TYPE: Final = "*/*"

RECORD_FORMS: Final = (JSON, *FORMATTERS)
"""The forms in which a record is given to programs, the earlier one where they do not care."""

VARY: Final = "Accept, Accept-Datetime"
"""The headers on which every answer about a name as it is now depends: with a time, another answer is given."""

VARY_HISTORY: Final = "Accept"
"""The same for an answer about a moment, which is what it is whatever time a header names."""

_BROWSERS: Final = ("Mozilla/", "Opera/")
_BROWSER_TYPES: Final = frozenset(
    (
        HTML,
        "text/xhtml",
        XHTML,
        "application/pdf",
        "application/vnd.wap.xhtml+xml",
        "text/vnd.wap.wml",
    )
)
_BROWSER_KINDS: Final = ("image/", "audio/", "video/")
_HTML_PREFERENCES: Final = (("ctype", HTML), ("media-type", HTML))

# An entry ends at a comma that does not stand between quotation marks.
_QUOTED: Final = r'"(?>(?:[^"\\]|\\.)*)"?'  # to the end if nothing closes it, so that nobody looks behind it twice
_ENTRY: Final = re.compile(rf'(?>[^",]+|{_QUOTED})+')
_PARAMETER: Final = re.compile(rf';[ \t]*([^;="]*)(?:=[ \t]*({_QUOTED}|[^;]*))?')
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105 - not a secret
_MEDIA_RANGE: Final = re.compile(rf"{_TOKEN}/{_TOKEN}")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9*]{1,8}(?:-[A-Za-z0-9*]{1,8})*")
_WEIGHT: Final = re.compile(r"([01]?)(?:\.([0-9]{0,9}))?")

Preference: TypeAlias = tuple[str, str | None]


class Representation(Enum):
    """What a client is given about a name."""

    REDIRECTION = "redirection"
    PAGE = "page"
    JSON = "json"
    OTHER = "other"
    """One of `record_forms`; `Accepted.named_form` says which."""


@dataclass(frozen=True, slots=True)
class AcceptEntry:
    """An entry of such a header."""

    name: str
    """A media range in lower case, or a language as it was written."""
    weight: int
    """From 0, which is a refusal, to `BEST`."""

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for several media types."""
        return self.name.endswith("/*")


@dataclass(frozen=True, slots=True)
class AcceptHeader:
    """The media types that a client accepts."""

    entries: tuple[AcceptEntry, ...]
    """In the order in which they came; none if there is no header, and then everything is accepted."""

    def weight(self, type_: str) -> int:
        """How much a media type, without a wildcard, is wanted; 0 is not at all."""
        if not self.entries:
            return MAX_WEIGHT
        for name in (type_, f"{type_.partition('/')[0]}/*", ANY_TYPE):
            found = [entry.weight for entry in self.entries if entry.name == name]
            if found:
                return max(found)
        return 0

    @property
    def accepts_anything(self) -> bool:
        """Whether it is no help: anything is accepted."""
        return all(entry.name == ANY_TYPE for entry in self.entries if entry.weight)

    @property
    def prefers_json(self) -> bool:
        """Whether JSON is wanted more than HTML."""
        return self.weight(JSON) > max(self.weight(HTML), self.weight(XHTML))

    @property
    def named_form(self) -> str | None:
        """The form of a record that is wanted more than HTML and called by its name: a media type; None if none is."""
        if not self.entries:
            return None
        html = max(self.weight(HTML), self.weight(XHTML))
        names = {entry.name for entry in self.entries}
        wanted = [type_ for type_ in RECORD_FORMS if type_ in names and self.weight(type_) > html]
        return max(wanted, key=self.weight, default=None)  # of those with the same weight the first

    @property
    def prefers_json_errors(self) -> bool:
        """Whether errors are to be JSON: for whoever wants that, or something that is written in it."""
        return self.prefers_json or (self.named_form or "").endswith("json")

    @property
    def record_form(self) -> str:
        """The media type in which a record is shown."""
        return self.named_form or (JSON if self.prefers_json else HTML)

    def form(self, *, leads: bool) -> Representation:
        """What to give; `leads` says whether there is somewhere to redirect to."""
        if leads and self.named_form is None:
            return Representation.REDIRECTION
        return {HTML: Representation.PAGE, JSON: Representation.JSON}.get(self.record_form, Representation.OTHER)


def parse_accept(lines: Iterable[str]) -> AcceptHeader:
    """Read all `Accept` headers of a request."""
    found = []
    for name, weight in _parse_entries(lines):
        range_ = ANY_TYPE if name == "*" else name.lower()  # an old library writes the one for the other
        if _MEDIA_RANGE.fullmatch(range_) and not (range_.startswith("*/") and range_ != ANY_TYPE):
            found.append(AcceptEntry(range_, weight))
    return AcceptHeader(tuple(found))


def parse_accept_language(lines: Iterable[str]) -> tuple[AcceptEntry, ...]:
    """Read all `Accept-Language` headers of a request."""
    return tuple([AcceptEntry(name, weight) for name, weight in _parse_entries(lines) if _LANGUAGE.fullmatch(name)])


def location_preferences(
    accepted: AcceptHeader, languages: Sequence[AcceptEntry], user_agent: str, *, metadata: bool = False
) -> tuple[Preference, ...]:
    """What headers say about the attributes that a location should have, the most important first.

    With `metadata` the role that a location has in negotiation does not count: the request has named a role itself.
    """
    found = (*_content_preferences(accepted, user_agent), *_language_preferences(languages))
    return tuple([wish for wish in found if wish[0] != "http_role"]) if metadata else found


def _content_preferences(accepted: AcceptHeader, user_agent: str) -> tuple[Preference, ...]:
    wanted = [entry for entry in accepted.entries if entry.weight]
    if accepted.accepts_anything:
        if user_agent.startswith(_BROWSERS):
            return (("http_role", "browser"), *_HTML_PREFERENCES)
        return (("http_role", "no_conneg"),)
    best = max(entry.weight for entry in wanted)
    if max((entry.weight for entry in wanted if _is_for_browsers(entry)), default=0) < best:
        found: list[Preference] = []
        for entry in sorted(wanted, key=lambda entry: -entry.weight):
            if entry.is_wildcard:
                break
            found += [("ctype", entry.name), ("media-type", entry.name)]
        return (*found, ("http_role", "conneg"))
    takes_html = any(entry.name in (HTML, "text/*", ANY_TYPE) for entry in wanted)
    return (("http_role", "browser"), *(_HTML_PREFERENCES if takes_html else ()))


def _is_for_browsers(entry: AcceptEntry) -> bool:
    return entry.is_wildcard or entry.name in _BROWSER_TYPES or entry.name.startswith(_BROWSER_KINDS)


def _language_preferences(languages: Sequence[AcceptEntry]) -> tuple[Preference, ...]:
    wanted = sorted([entry for entry in languages if entry.weight], key=lambda entry: -entry.weight)
    return tuple([("language", entry.name) for entry in wanted if "*" not in entry.name])


def _parse_entries(lines: Iterable[str]) -> list[tuple[str, int]]:
    """The entries of a header that can be read, as names and weights."""
    found: list[tuple[str, int]] = []
    for line in lines:
        for match in _ENTRY.finditer(line):
            if len(found) >= MAX_ENTRIES:
                return found
            name, _, rest = match.group().partition(";")
            weight = _parse_weight(f";{rest}")
            if weight is not None and name.strip():
                found.append((name.strip(), weight))
    return found


def _parse_weight(parameters: str) -> int | None:
    """The weight among the parameters of an entry; None if it cannot be read."""
    for name, value in _PARAMETER.findall(parameters):
        if name.strip().lower() != "q":
            continue
        found = _WEIGHT.fullmatch(value.strip())
        if found is None or not (found[1] or found[2]):
            return None
        return min(int(found[1] or "0") * MAX_WEIGHT + int((found[2] or "").ljust(3, "0")[:3]), MAX_WEIGHT)
    return MAX_WEIGHT

"""Content negotiation: the representation of a record, and which of several locations a client prefers.

`Accept` and `Accept-Language` are weighted lists. They are parsed leniently: an invalid entry is ignored, and a header
without valid entries counts as absent. Weights are integers in thousandths, their full precision. Of several entries
that match a media type the most specific one applies, and of two equally specific ones the higher one.

Representations, in the server's order of preference:

    redirection   to the target; matches any `Accept`
    page          the record as HTML
    JSON          the record as in the API
    other forms   metadata and citations: `registry.queries.signposting`

The client is redirected unless it names the media type of a form with a higher weight than HTML: programs that accept
anything besides JSON (`application/json, */*`) are redirected, and so are browsers. Of several such types the one with
the highest weight is returned. If there is no target, or the record itself is requested, the named form is returned;
or JSON, if its weight is higher than that of HTML; otherwise the page, even if the client accepts none of these: it
says more than an empty 406 would.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from perseid.registry.queries.signposting import FORMATTERS

MAX_ENTRIES: Final = 64
"""Entries of one header that are parsed: browsers send up to ten."""

MAX_WEIGHT: Final = 1_000
"""The highest weight, in thousandths."""

HTML: Final = "text/html"
XHTML: Final = "application/xhtml+xml"
JSON: Final = "application/json"
ANY_TYPE: Final = "*/*"

RECORD_FORMS: Final = (JSON, *FORMATTERS)
"""Media types of a record for programs, in the server's order of preference."""

VARY: Final = "Accept, Accept-Datetime"
"""Headers on which every response about a current record depends."""

VARY_HISTORY: Final = "Accept"
"""The same for a response at a fixed time, which ignores `Accept-Datetime`."""

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

# An entry ends at a comma outside quotation marks.
_QUOTED: Final = r'"(?>(?:[^"\\]|\\.)*)"?'  # to the end if nothing closes it, so that nothing is scanned twice
_ENTRY: Final = re.compile(rf'(?>[^",]+|{_QUOTED})+')
_PARAMETER: Final = re.compile(rf';[ \t]*([^;="]*)(?:=[ \t]*({_QUOTED}|[^;]*))?')
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105 - not a secret
_MEDIA_RANGE: Final = re.compile(rf"{_TOKEN}/{_TOKEN}")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9*]{1,8}(?:-[A-Za-z0-9*]{1,8})*")
_WEIGHT: Final = re.compile(r"([01]?)(?:\.([0-9]{0,9}))?")

Preference: TypeAlias = tuple[str, str | None]


class Representation(Enum):
    """A kind of response about a handle."""

    REDIRECTION = "redirection"
    PAGE = "page"
    JSON = "json"
    OTHER = "other"
    """One of `FORMATTERS`; `AcceptHeader.named_form` is its media type."""


@dataclass(frozen=True, slots=True)
class AcceptEntry:
    """An entry of `Accept` or `Accept-Language`."""

    name: str
    """A media range in lowercase, or a language as written."""
    weight: int
    """From 0, which is a refusal, to `MAX_WEIGHT`."""

    @property
    def is_wildcard(self) -> bool:
        """Whether it matches several media types."""
        return self.name.endswith("/*")


@dataclass(frozen=True, slots=True)
class AcceptHeader:
    """The media types that a client accepts."""

    entries: tuple[AcceptEntry, ...]
    """In the order received; if there are none, everything is accepted."""

    def weight(self, type_: str) -> int:
        """The weight of a media type without wildcard; 0 if it is not accepted."""
        if not self.entries:
            return MAX_WEIGHT
        for name in (type_, f"{type_.partition('/')[0]}/*", ANY_TYPE):
            weights = [entry.weight for entry in self.entries if entry.name == name]
            if weights:
                return max(weights)
        return 0

    @property
    def accepts_anything(self) -> bool:
        """Whether the header expresses no preference."""
        return all(entry.name == ANY_TYPE for entry in self.entries if entry.weight)

    @property
    def prefers_json(self) -> bool:
        """Whether JSON has a higher weight than HTML."""
        return self.weight(JSON) > max(self.weight(HTML), self.weight(XHTML))

    @property
    def named_form(self) -> str | None:
        """The media type of a record form that is named and has a higher weight than HTML; None if there is none."""
        if not self.entries:
            return None
        html = max(self.weight(HTML), self.weight(XHTML))
        names = {entry.name for entry in self.entries}
        named = [type_ for type_ in RECORD_FORMS if type_ in names and self.weight(type_) > html]
        return max(named, key=self.weight, default=None)  # the first of those with the same weight

    @property
    def prefers_json_errors(self) -> bool:
        """Whether errors are returned as JSON: for clients that prefer JSON or a form based on it."""
        return self.prefers_json or (self.named_form or "").endswith("json")

    @property
    def record_form(self) -> str:
        """The media type in which a record is shown."""
        return self.named_form or (JSON if self.prefers_json else HTML)

    def choose(self, *, has_target: bool) -> Representation:
        """Choose a representation; `has_target`: whether there is a target to redirect to."""
        if has_target and self.named_form is None:
            return Representation.REDIRECTION
        return {HTML: Representation.PAGE, JSON: Representation.JSON}.get(self.record_form, Representation.OTHER)


def parse_accept(lines: Iterable[str]) -> AcceptHeader:
    """Parse all `Accept` headers of a request."""
    entries = []
    for name, weight in _parse_entries(lines):
        range_ = ANY_TYPE if name == "*" else name.lower()  # an old library sends * for */*
        if _MEDIA_RANGE.fullmatch(range_) and not (range_.startswith("*/") and range_ != ANY_TYPE):
            entries.append(AcceptEntry(range_, weight))
    return AcceptHeader(tuple(entries))


def parse_accept_language(lines: Iterable[str]) -> tuple[AcceptEntry, ...]:
    """Parse all `Accept-Language` headers of a request."""
    return tuple([AcceptEntry(name, weight) for name, weight in _parse_entries(lines) if _LANGUAGE.fullmatch(name)])


def location_preferences(
    accepted: AcceptHeader, languages: Sequence[AcceptEntry], user_agent: str, *, metadata: bool = False
) -> tuple[Preference, ...]:
    """The location attributes that the headers prefer, the most important first.

    With `metadata` the `http_role` is ignored: the request has named a role itself.
    """
    preferences = (*_content_preferences(accepted, user_agent), *_language_preferences(languages))
    return tuple([each for each in preferences if each[0] != "http_role"]) if metadata else preferences


def _content_preferences(accepted: AcceptHeader, user_agent: str) -> tuple[Preference, ...]:
    entries = [entry for entry in accepted.entries if entry.weight]
    if accepted.accepts_anything:
        if user_agent.startswith(_BROWSERS):
            return (("http_role", "browser"), *_HTML_PREFERENCES)
        return (("http_role", "no_conneg"),)
    best = max(entry.weight for entry in entries)
    if max((entry.weight for entry in entries if _is_for_browsers(entry)), default=0) < best:
        preferences: list[Preference] = []
        for entry in sorted(entries, key=lambda entry: -entry.weight):
            if entry.is_wildcard:
                break
            preferences += [("ctype", entry.name), ("media-type", entry.name)]
        return (*preferences, ("http_role", "conneg"))
    accepts_html = any(entry.name in (HTML, "text/*", ANY_TYPE) for entry in entries)
    return (("http_role", "browser"), *(_HTML_PREFERENCES if accepts_html else ()))


def _is_for_browsers(entry: AcceptEntry) -> bool:
    return entry.is_wildcard or entry.name in _BROWSER_TYPES or entry.name.startswith(_BROWSER_KINDS)


def _language_preferences(languages: Sequence[AcceptEntry]) -> tuple[Preference, ...]:
    entries = sorted([entry for entry in languages if entry.weight], key=lambda entry: -entry.weight)
    return tuple([("language", entry.name) for entry in entries if "*" not in entry.name])


def _parse_entries(lines: Iterable[str]) -> list[tuple[str, int]]:
    """Parse the valid entries of a header, as names and weights."""
    entries: list[tuple[str, int]] = []
    for line in lines:
        for match in _ENTRY.finditer(line):
            if len(entries) >= MAX_ENTRIES:
                return entries
            name, _, rest = match.group().partition(";")
            weight = _parse_weight(f";{rest}")
            if weight is not None and name.strip():
                entries.append((name.strip(), weight))
    return entries


def _parse_weight(parameters: str) -> int | None:
    """Parse the weight among the parameters of an entry; None if it is invalid."""
    for name, value in _PARAMETER.findall(parameters):
        if name.strip().lower() != "q":
            continue
        match = _WEIGHT.fullmatch(value.strip())
        if match is None or not (match[1] or match[2]):
            return None
        return min(int(match[1] or "0") * MAX_WEIGHT + int((match[2] or "").ljust(3, "0")[:3]), MAX_WEIGHT)
    return MAX_WEIGHT

"""What there is to cite about an identifier (S10): both of its forms, and what its record says about the thing.

Title, creators, date, publisher and description are taken from the public values whose types say so: `TITLE`, `AUTHOR`
or `CREATOR`, `DATE` or `ISSUED`, `PUBLISHER`, `DESC`, alone, behind `DC.` (Dublin Core), or as the suffix of a
registered type (`12345/TITLE`). Nothing is invented. In particular, who created the *identifier* and when (A1) is no
author and no date of publication: it is told as what it is.

Citations as people and programs read them: text, BibTeX, CSL-JSON. What is not known is left out.

BibTeX is written for every program that reads it: whatever means something to TeX is written as a command, and braces
too, because BibTeX counts them even behind a backslash. Letters outside of ASCII stay as they are, in UTF-8. A title
stands in two pairs of braces, so that no style changes its capitals, and so does a name, so that none takes it apart.

Names as they are cited and printed: found for whoever asks, in the state of the ledger that they mean.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, to_http, to_path
from perseid.records.encoding import to_iso
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import JsonObject, write_json
from perseid.records.record import Record, ascending
from perseid.records.text_types import Text
from perseid.records.value import Value
from perseid.registry.commands.records import require_record
from perseid.registry.context import Context
from perseid.registry.policy.authority_metadata import build_metadata
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import StoredRecord

from .history import as_of, moment
from .resolve import Query, resolve

TITLES: Final = ("TITLE",)
CREATORS: Final = ("AUTHOR", "CREATOR")
DATES: Final = ("DATE", "ISSUED")
PUBLISHERS: Final = ("PUBLISHER",)
DESCRIPTIONS: Final = ("DESC", "DESCRIPTION", "ABSTRACT")
"""The types that say what a thing is called, and so on; earlier ones come first."""

_DUBLIN_CORE: Final = ("DC.", "DCTERMS.")
_SECOND: Final = 1_000_000
# What a terminal or a reader of citations would act upon, instead of showing it.
_BLANKS: Final = re.compile("[\x00-\x20\x7f-\x9f\u2028\u2029]+")
_BIDI_CONTROLS: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_DATE: Final = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:T[0-9:.]+(?:Z|[+-][0-9:]+)?)?)?)?")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a record that is cited: asking for it by its entry gives the same for ever."""

    seq: int
    """The entry that made the record so."""
    at: str
    """When, in ISO 8601."""


@dataclass(frozen=True, slots=True)
class Citation:
    """An identifier, and what is known about the thing that it stands for; texts are on one line each."""

    hdl: str
    """The identifier as `hdl:` URI."""
    http: str
    """The identifier at a resolver."""
    title: str | None = None
    creators: tuple[str, ...] = ()
    date: str | None = None
    """As the record has it."""
    publisher: str | None = None
    description: str | None = None
    created: str | None = None
    """When the identifier was first associated with the thing, in ISO 8601."""
    creator: str | None = None
    """Who created the identifier, as `hdl:` URI."""
    gone: str | None = None
    """That the thing is gone, and why."""
    version: Version | None = None
    """The version that is cited; None for whatever the identifier stands for when somebody reads the citation."""

    @property
    def date_parts(self) -> tuple[int, ...]:
        """Year, month and day, as far as the date is one of ISO 8601; empty if it is something else."""
        found = _DATE.fullmatch(self.date or "")
        parts = tuple([int(part) for part in found.groups() if part is not None]) if found else ()
        try:
            date(*(*parts, 1, 1)[:3])
        except (TypeError, ValueError):
            return ()
        return parts

    @property
    def state(self) -> tuple[str, ...]:
        """What whoever reads a citation has to know: which version it means, and that the thing is gone."""
        found = [] if self.version is None else [f"as of entry {self.version.seq} ({self.version.at})"]
        return tuple(found if self.gone is None else [*found, self.gone])

    @property
    def origin(self) -> str | None:
        """Since when the identifier exists and who created it."""
        if self.created is None and self.creator is None:
            return None
        on, by = f" {self.created}" if self.created else "", f" by {self.creator}" if self.creator else ""
        return f"identifier created{on}{by}"


def build_citation(
    policy: Policy, resolved: Resolution, asked: Reference, resolver: Resolver, *, fixed: bool = False
) -> Citation:
    """How to cite what somebody resolved; `fixed`, if that version is meant and no later one."""
    name = Reference(resolved.registered, asked.query, asked.fragment)
    known = _PublicTexts(policy, resolved.values)
    said = build_metadata(policy, Record(resolved.registered, resolved.values), None, lambda _: False)
    titles, descriptions = known.texts(TITLES), known.texts(DESCRIPTIONS)
    created = None if said is None or said.created is None else to_iso(said.created)
    creator = None if said is None or said.creator is None else to_path(Reference(said.creator.handle))
    return Citation(
        hdl=to_path(name),
        http=to_http(name, resolver),
        # What a record says of its thing in one sentence names it, where no title does.
        title=next(iter(titles or descriptions), None),
        creators=tuple(known.texts(CREATORS)),
        date=next(iter(known.texts(DATES)), None),
        publisher=next(iter(known.texts(PUBLISHERS)), None),
        description=next(iter(descriptions), None) if titles else None,
        created=created,
        creator=creator,
        gone=_tombstone_text(policy, resolved),
        version=Version(resolved.seq, to_iso(resolved.at // _SECOND)) if fixed else None,
    )


def said(policy: Policy, values: Iterable[Value], words: tuple[str, ...]) -> list[str]:
    """What the public values of these types say about the thing, each on one line."""
    return _PublicTexts(policy, values).texts(words)


def to_single_line(text: str) -> str:
    """A text without line ends, control characters and marks that turn the direction of writing."""
    return _BLANKS.sub(" ", _BIDI_CONTROLS.sub("", text)).strip(" ")


def _tombstone_text(policy: Policy, resolved: Resolution) -> str | None:
    if resolved.state is not State.TOMBSTONE:
        return None
    reasons = [value for value in resolved.values if fold(value.type) == fold(policy.tombstone_reason_type)]
    reason = next(_texts(reasons), "")
    return f"gone: {reason}" if reason else "gone"


class _PublicTexts:
    """What public values say about a thing."""

    def __init__(self, policy: Policy, values: Iterable[Value]) -> None:
        # Who created the identifier, when, and why the thing is gone: of the identifier, not of the thing.
        get_hosted = {fold(type_) for type_ in (*policy.types_used, policy.creator_type, policy.creation_date_type)}
        self._values = [value for value in ascending(values) if value.is_public and fold(value.type) not in get_hosted]

    def texts(self, words: tuple[str, ...]) -> list[str]:
        """What the values of these types say; where there are several words, the first one that says anything."""
        for word in words:
            if found := list(_texts(value for value in self._values if _type_keyword(value.type) == word)):
                return found
        return []


def _texts(values: Iterable[Value]) -> Iterator[str]:
    for value in values:
        try:
            text = to_single_line(Text.from_bytes(value.data).text)
        except InvalidData:
            continue
        if text:
            yield text


def _type_keyword(type_: str) -> str:
    """What a type says by its name: that in its registry, or behind the name of Dublin Core."""
    handle = Handle.for_lookup(type_)
    name = fold(type_ if handle is None else handle.suffix)
    for before in _DUBLIN_CORE:
        name = name.removeprefix(before)
    return name


TEX_ESCAPES: Final[Mapping[str, str]] = {
    "\\": "\\textbackslash{}",
    "{": "\\textbraceleft{}",
    "}": "\\textbraceright{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': '{"}',
    **{character: f"\\{character}" for character in "#$%&_"},
}
"""What each character is written as that means something to TeX, or that its oldest fonts do not have."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_SENTENCE_ENDS: Final = (".", "?", "!")


def format_text(citation: Citation) -> str:
    """One line: who, when, what, where, in both forms."""
    identity = "; ".join(citation.creators)
    when = f"({citation.date})" if citation.date else ""
    beginning = " ".join(filter(None, (identity, when)))
    state = f" [{'; '.join(citation.state)}]" if citation.state else ""
    parts = [_with_period(part) for part in (beginning, citation.title, citation.publisher) if part]
    return " ".join([*parts, f"{citation.hdl}, {citation.http}{state}"])


def format_hdl(citation: Citation) -> str:
    """The identifier as URI of its own scheme."""
    return citation.hdl + _version(citation)


def format_http(citation: Citation) -> str:
    """The identifier at a resolver."""
    return citation.http + _version(citation)


def format_bibtex(citation: Citation) -> str:
    """An entry of a BibTeX file."""
    fields = "".join(f",\n  {name} = {value}" for name, value in _fields(citation))
    return f"@misc{{{_key(citation)}{fields}\n}}"


def format_csl(citation: Citation) -> str:
    """A list of one item in CSL-JSON."""
    return write_json([to_csl(citation)])


def to_csl(citation: Citation) -> JsonObject:
    """An item of CSL-JSON as a plain object."""
    item: JsonObject = {"id": _id(citation), "type": "document"}
    parts = citation.date_parts
    known: JsonObject = {
        "title": citation.title,
        "author": [{"literal": name} for name in citation.creators],
        "issued": {"date-parts": [list(parts)]} if parts else citation.date and {"literal": citation.date},
        "publisher": citation.publisher,
        "abstract": citation.description,
        "version": citation.version and f"entry {citation.version.seq}",
        "URL": citation.http,
        "note": _note(citation),
    }
    return item | {name: value for name, value in known.items() if value}


def to_json(citation: Citation) -> JsonObject:
    """Everything that is known, as a plain object."""
    version = citation.version
    known: JsonObject = {
        "hdl": citation.hdl,
        "http": citation.http,
        "title": citation.title,
        "creators": list(citation.creators),
        "date": citation.date,
        "publisher": citation.publisher,
        "description": citation.description,
        "created": citation.created,
        "creator": citation.creator,
        "gone": citation.gone,
        "version": None if version is None else {"seq": version.seq, "at": version.at},
    }
    return {name: value for name, value in known.items() if value}


class Style(StrEnum):
    """How a citation is written."""

    TEXT = "text"
    HDL = "hdl"
    HTTP = "http"
    BIBTEX = "bibtex"
    CSL_JSON = "csl-json"


FORMATTERS: Final[Mapping[str, Callable[[Citation], str]]] = {
    Style.TEXT: format_text,
    Style.HDL: format_hdl,
    Style.HTTP: format_http,
    Style.BIBTEX: format_bibtex,
    Style.CSL_JSON: format_csl,
}
"""The styles by their names."""


def escaped(text: str) -> str:
    """A text as TeX reads it."""
    return "".join([TEX_ESCAPES.get(character, character) for character in text])


def _fields(citation: Citation) -> Iterator[tuple[str, str]]:
    if citation.title:
        yield "title", f"{{{{{escaped(citation.title)}}}}}"
    if citation.creators:
        yield "author", f"{{{' and '.join(f'{{{escaped(name)}}}' for name in citation.creators)}}}"
    if citation.date:
        parts = citation.date_parts
        yield "year", f"{{{f'{parts[0]:04}' if parts else escaped(citation.date)}}}"
        if len(parts) > 1:
            yield "month", _MONTHS[parts[1] - 1]  # a word that every style knows in its own language
    if citation.publisher:
        yield "publisher", f"{{{{{escaped(citation.publisher)}}}}}"
    if citation.description:
        yield "abstract", f"{{{escaped(citation.description)}}}"
    # An address is taken as it stands, and a URI has nothing in it that could end the field.
    yield "url", f"{{{citation.http}}}"
    yield "note", f"{{{escaped(_note(citation))}}}"


def _note(citation: Citation) -> str:
    return "; ".join(filter(None, (citation.hdl, *citation.state, citation.origin)))


def _version(citation: Citation) -> str:
    return f" as of entry {citation.version.seq}" if citation.version else ""


def _id(citation: Citation) -> str:
    return citation.hdl if citation.version is None else f"{citation.hdl}@{citation.version.seq}"


def _key(citation: Citation) -> str:
    """The key of an entry: of the characters that every reader of BibTeX takes, and one for one with the identifier."""
    return "".join(
        [
            each if each.isascii() and (each.isalnum() or each in ":/.-") else f"_{ord(each):x}_"
            for each in _id(citation)
        ]
    )


def _with_period(sentence: str) -> str:
    return sentence if sentence.endswith(_SENTENCE_ENDS) else f"{sentence}."


def get_citation(
    context: Context, asked: Reference, resolver: Resolver, at: str | None = None, clock: int = 0
) -> Citation:
    """How to cite a name: as it is, or as it was `at` a time or after an entry. Raises `Refused`.

    `clock` is the time in microseconds, before which a past time has to lie.
    """
    snapshot, query = context.snapshot, Query(asked.handle)
    if at is None:
        found = resolve(query, context)
    else:
        found = as_of(snapshot, context.identity, query, moment(snapshot.reading, at, clock)).resolved
    tail = _with_tail(asked.handle, asked, found)
    return build_citation(snapshot.policy(found.registered.prefix), found, tail, resolver, fixed=at is not None)


def find_printable_name(context: Context, asked: Reference) -> Reference:
    """The name for a code: as it is registered, or as it was asked for if a template makes its values.

    One that is reserved will do, since that is what names are reserved for. Raises `Refused`.
    """
    stored = context.get_hosted(asked.handle)
    try:
        require_record(context, stored)
    except Refused:
        made = resolve(Query(asked.handle), context)  # refused in the same way, if there is no template
        return _with_tail(made.registered, asked, made)
    return _with_tail(stored.handle, asked, stored)


def _with_tail(handle: Handle, asked: Reference, found: StoredRecord | Resolution) -> Reference:
    """A name with the query and fragment that were asked for: within the URI, or within a name of CORDRA (C5)."""
    return Reference(
        handle,
        asked.query if found.query is None else found.query,
        asked.fragment if found.fragment is None else found.fragment,
    )

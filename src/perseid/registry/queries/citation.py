"""What there is to cite about an identifier (S10): both of its forms, and what its record says about the thing.

Title, creators, date, publisher and description are taken from the public values whose types say so: `TITLE`, `AUTHOR`
or `CREATOR`, `DATE` or `ISSUED`, `PUBLISHER`, `DESC`, alone, behind `DC.` (Dublin Core), or as the suffix of a
registered type (`12345/TITLE`). Nothing is invented. In particular, who created the *identifier* and when (A1) is no
author and no date of publication: it is told as what it is.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, to_http, to_path
from perseid.records.encoding import to_iso
from perseid.records.errors import InvalidData
from perseid.records.record import Record, ascending
from perseid.records.text_types import Text
from perseid.records.value import Value
from perseid.registry.policy.authority_metadata import metadata
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Resolved

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
_DIRECTIONS: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
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


def citation_of(
    policy: Policy, resolved: Resolved, asked: Reference, resolver: Resolver, *, fixed: bool = False
) -> Citation:
    """How to cite what somebody resolved; `fixed`, if that version is meant and no later one."""
    name = Reference(resolved.registered, asked.query, asked.fragment)
    known = _Known(policy, resolved.values)
    said = metadata(policy, Record(resolved.registered, resolved.values), None, lambda _: False)
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
        gone=_gone(policy, resolved),
        version=Version(resolved.seq, to_iso(resolved.at // _SECOND)) if fixed else None,
    )


def said(policy: Policy, values: Iterable[Value], words: tuple[str, ...]) -> list[str]:
    """What the public values of these types say about the thing, each on one line."""
    return _Known(policy, values).texts(words)


def on_one_line(text: str) -> str:
    """A text without line ends, control characters and marks that turn the direction of writing."""
    return _BLANKS.sub(" ", _DIRECTIONS.sub("", text)).strip(" ")


def _gone(policy: Policy, resolved: Resolved) -> str | None:
    if resolved.state is not State.TOMBSTONE:
        return None
    reasons = [value for value in resolved.values if fold(value.type) == fold(policy.tombstone_reason_type)]
    reason = next(_texts(reasons), "")
    return f"gone: {reason}" if reason else "gone"


class _Known:
    """What public values say about a thing."""

    def __init__(self, policy: Policy, values: Iterable[Value]) -> None:
        # Who created the identifier, when, and why the thing is gone: of the identifier, not of the thing.
        own = {fold(type_) for type_ in (*policy.types_used, policy.creator_type, policy.creation_date_type)}
        self._values = [value for value in ascending(values) if value.is_public and fold(value.type) not in own]

    def texts(self, words: tuple[str, ...]) -> list[str]:
        """What the values of these types say; where there are several words, the first one that says anything."""
        for word in words:
            if found := list(_texts(value for value in self._values if _word(value.type) == word)):
                return found
        return []


def _texts(values: Iterable[Value]) -> Iterator[str]:
    for value in values:
        try:
            text = on_one_line(Text.from_bytes(value.data).text)
        except InvalidData:
            continue
        if text:
            yield text


def _word(type_: str) -> str:
    """What a type says by its name: that in its registry, or behind the name of Dublin Core."""
    handle = Handle.for_lookup(type_)
    name = fold(type_ if handle is None else handle.suffix)
    for before in _DUBLIN_CORE:
        name = name.removeprefix(before)
    return name

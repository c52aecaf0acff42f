"""TimeMaps: which mementos there are of a name (RFC 7089, section 5), page by page.

A page has the versions before an entry, oldest first, and says where the next page of older ones is. The first page
begins with the latest. Each page is a TimeMap of its own, and tells of itself and of those that it links from which
time and until which they reach (section 5.1.1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perseid.names.handle import Handle
from perseid.records.encoding import to_iso
from perseid.records.json_parsing import JsonObject, write_json
from perseid.registry.queries.history import DEFAULT_PAGE, Past, page_size
from perseid.registry.queries.links import LINK_FORMAT, Link, link_format
from perseid.registry.queries.memento import Addresses, Memento, memento_link, version_of
from perseid.wire.codes import ResponseCode

from .context import not_found
from .identity import Identity
from .results import Refused
from .snapshot import Facts

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Reach:
    """The times over which a page reaches: those of its earliest and latest memento."""

    earliest: Memento
    latest: Memento | None
    """None where later ones may be added."""

    def ends(self) -> Iterator[tuple[str, Memento]]:
        """Both ends, by the names that they have in links."""
        yield "from", self.earliest
        if self.latest is not None:
            yield "until", self.latest

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """As a link says it."""
        return tuple([(name, end.datetime) for name, end in self.ends()])

    def to_object(self) -> JsonObject:
        """As JSON says it."""
        return {name: to_iso(end.seconds) for name, end in self.ends()}

    @classmethod
    def of(cls, mementos: Sequence[Memento]) -> "Reach | None":
        """That of mementos, latest first; None if there are none."""
        return cls(mementos[-1], mementos[0]) if mementos else None


@dataclass(frozen=True, slots=True)
class TimeMap:
    """A page of the mementos of a name."""

    handle: Handle
    """The name as it is registered."""
    mementos: tuple[Memento, ...]
    """Oldest first."""
    before: int | None
    """Only those before this entry are meant; None on the first page, which begins with the latest."""
    older: Reach | None
    """That of the next page; None on the last page."""
    complete: bool
    """Whether, on the last page, the oldest one is the first that there was: otherwise the rest is not shown."""
    newest: Reach | None = None
    """That of the first page, to which later ones are added; None if it was not looked at."""

    @property
    def next_before(self) -> int | None:
        """Where the next page begins; None on the last."""
        return None if self.older is None or not self.mementos else self.mementos[0].seq

    def links(self, addresses: Addresses) -> tuple[Link, ...]:
        """The page as links."""

        def page(relation: str, before: int | None, reach: Reach | None) -> Link:
            others = () if reach is None else reach.attributes
            return Link(addresses.timemap(LINK_FORMAT, before), relation, type=LINK_FORMAT, others=others)

        return (
            Link(addresses.original, "original"),
            page("self", self.before, Reach.of(self.mementos[::-1])),
            Link(addresses.timegate, "timegate"),
            *[page("timemap", before, reach) for before, reach in self._others()],
            *[memento_link(version, addresses, *self._roles(version)) for version in self.mementos],
        )

    def to_link_format(self, addresses: Addresses) -> str:
        """The page as a document of the type `application/link-format`."""
        return link_format(self.links(addresses))

    def to_json(self, addresses: Addresses) -> str:
        """The page as JSON, with the names that clients of this protocol know."""
        return write_json(self.to_object(addresses))

    def to_object(self, addresses: Addresses) -> JsonObject:
        """The same as a plain object."""
        listed = [_item(version, addresses) for version in self.mementos]
        mementos: JsonObject = {"list": listed}
        for version, item in zip(self.mementos, listed, strict=True):
            mementos |= dict.fromkeys(self._roles(version), item)
        pages: list[JsonObject] = [
            {"uri": addresses.timemap(JSON, before)} | ({} if reach is None else reach.to_object())
            for before, reach in self._others()
        ]
        plain: JsonObject = {
            "original_uri": addresses.original,
            "timegate_uri": addresses.timegate,
            "timemap_uri": {
                "link_format": addresses.timemap(LINK_FORMAT, self.before),
                "json_format": addresses.timemap(JSON, self.before),
            },
            "mementos": mementos,
            "complete": self.complete,
        }
        return plain | ({"timemap_index": pages} if pages else {})

    def _others(self) -> list[tuple[int | None, Reach | None]]:
        """The pages that this one links, the first and the next: where each begins, and over which times it reaches."""
        first: list[tuple[int | None, Reach | None]] = [] if self.before is None else [(None, self.newest)]
        return first if self.older is None else [*first, (self.next_before, self.older)]

    def _roles(self, version: Memento) -> tuple[str, ...]:
        """Whether a memento is the first or the last of all."""
        roles = []
        if self.older is None and self.complete and version == self.mementos[0]:
            roles.append("first")
        if self.before is None and version == self.mementos[-1]:
            roles.append("last")
        return tuple(roles)


def time_map(
    facts: Facts, who: Identity, handle: Handle, before: int | None = None, limit: int = DEFAULT_PAGE
) -> TimeMap:
    """A page of the mementos of a name, those before an entry. Raises `Refused`.

    What has been hidden since is found by walking back from today, so a page further back costs more; see `past`. The
    next page is walked through as well, to tell over which times it reaches.
    """
    if before is not None and before < 1:
        raise Refused(
            ResponseCode.INVALID_VALUE, f"there is nothing before entry {before}", "take the address of a page"
        )
    past = Past(facts, who, handle)
    limit = page_size(limit)
    walked: list[Memento] = []
    found: list[Memento] = []
    known = False
    for seen in past.versions(before):
        known = True
        version = version_of(seen)
        if version is None:
            continue
        if len(walked) < limit:
            walked.append(version)
        if before is None or version.seq < before:
            found.append(version)
        if len(found) == 2 * limit:
            break
    if not known and (before is None or not past.administers or past.held.entry is None):
        raise not_found(past.held)
    # Whoever may read everything has not been shown it from today back.
    newest = None if past.reads or not walked else Reach(walked[-1], None)
    mementos, older = tuple(found[:limit][::-1]), Reach.of(found[limit:])
    return TimeMap(past.held.handle, mementos, before, older, not past.cut, newest)


def _item(version: Memento, addresses: Addresses) -> JsonObject:
    return {"datetime": to_iso(version.seconds), "uri": addresses.memento(version.seq), "seq": version.seq}

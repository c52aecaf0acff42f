"""TimeMaps: which mementos there are of a name (RFC 7089, section 5), page by page.

A page has the versions before an entry, oldest first, and says where the next page of older ones is. The first page
begins with the latest. Each page is a TimeMap of its own, with the times from which and until which it reaches.
"""

from dataclasses import dataclass
from typing import Final

from perseid.names import Handle
from perseid.records.plain import JsonObject, write_json
from perseid.records.times import to_iso
from perseid.wire.codes import ResponseCode

from .context import not_found
from .facts import Facts
from .identity import Identity
from .links import LINK_FORMAT, Link, link_format
from .memento import Addresses, Memento, memento_link, version_of
from .past import DEFAULT_PAGE, Past, page_size
from .results import Refused

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class TimeMap:
    """A page of the mementos of a name."""

    handle: Handle
    """The name as it is registered."""
    mementos: tuple[Memento, ...]
    """Oldest first."""
    before: int | None
    """Only those before this entry are meant; None on the first page, which begins with the latest."""
    older: Memento | None
    """The latest one of the next page; None on the last page."""
    complete: bool
    """Whether, on the last page, the oldest one is the first that there was: otherwise the rest is not shown."""

    @property
    def next_before(self) -> int | None:
        """Where the next page begins; None on the last."""
        return None if self.older is None or not self.mementos else self.mementos[0].seq

    def links(self, addresses: Addresses) -> tuple[Link, ...]:
        """The page as links."""
        reach = (("from", self.mementos[0].datetime), ("until", self.mementos[-1].datetime)) if self.mementos else ()
        found = [
            Link(addresses.original, "original"),
            Link(addresses.timemap(LINK_FORMAT, self.before), "self", type=LINK_FORMAT, others=reach),
            Link(addresses.timegate, "timegate"),
        ]
        if self.before is not None:
            found.append(Link(addresses.timemap(LINK_FORMAT, None), "timemap", type=LINK_FORMAT))
        if self.older is not None:
            until = (("until", self.older.datetime),)
            found.append(
                Link(addresses.timemap(LINK_FORMAT, self.next_before), "timemap", type=LINK_FORMAT, others=until)
            )
        return (*found, *[memento_link(version, addresses, *self._roles(version)) for version in self.mementos])

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
        pages: list[JsonObject] = []
        if self.before is not None:
            pages.append({"uri": addresses.timemap(JSON, None)})
        if self.older is not None:
            pages.append({"uri": addresses.timemap(JSON, self.next_before), "until": to_iso(self.older.seconds)})
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

    What has been hidden since is found by walking back from today, so a page further back costs more; see `past`.
    """
    if before is not None and before < 1:
        raise Refused(
            ResponseCode.INVALID_VALUE, f"there is nothing before entry {before}", "take the address of a page"
        )
    past = Past(facts, who, handle)
    limit = page_size(limit)
    found: list[Memento] = []
    known = False
    for seen in past.versions(before):
        known = True
        version = version_of(seen)
        if version is not None and (before is None or version.seq < before):
            found.append(version)
        if len(found) > limit:
            break
    if not known and (before is None or not past.administers or past.held.entry is None):
        raise not_found(past.held)
    older = found[limit] if len(found) > limit else None
    return TimeMap(past.held.handle, tuple(found[:limit][::-1]), before, older, not past.cut)


def _item(version: Memento, addresses: Addresses) -> JsonObject:
    return {"datetime": to_iso(version.seconds), "uri": addresses.memento(version.seq), "seq": version.seq}

"""What somebody looks for, and whether a record is it: by where it leads, what it holds, whose it is, when it changed.

All that is asked for has to hold together, and what is asked about values has to hold of one and the same value: a
host and a type mean a value of the type that leads to the host.

`Search.plan` says how it is found. Of several things the one is looked up that leads to the fewest records, as far as
that can be known without looking: a value, a URL, a host, a path, an owner, a moment, a prefix, a type. The records
that come of it are looked at for the rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from perseid.ledger.log.entry import Entry
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.views import search_keys
from perseid.ledger.views.search_keys import Range, owner_ranges, places_of, type_ranges, value_ranges
from perseid.ledger.views.url_glob import EVERYTHING, UrlGlob
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.admin import Admin
from perseid.records.errors import InvalidData
from perseid.records.types import HS_ADMIN, HS_SECKEY, TypeQuery, has_type
from perseid.records.value import Value
from perseid.registry.access.permissions import shown
from perseid.registry.policy.authority_metadata import first_readable, name_key, of_type, read_stored_party
from perseid.registry.policy.policy import Policy
from perseid.wire.codes import ResponseCode

from .results import Refused, Unanswerable

Matched = tuple[bytes, Value]
"""A value in its binary form, and taken apart."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How records are found that may be what is looked for."""

    ranges: tuple[Range, ...] = ()
    """Keys of the view by which records are found, one range after the other; no two have a key in common."""
    names: tuple[bytes, bytes] | None = None
    """Or else the keys of records from the first up to the second."""
    since: int | None = None
    """Or else all that changed behind this entry."""
    scans: UrlGlob | None = None
    """Whether no range is narrower than everything, so that all keys are compared with this."""


@dataclass(frozen=True, slots=True)
class Search:
    """What somebody looks for; what is left out may be anything."""

    url: str | None = None
    """A URL, with `*` for any characters: see `target_globs`."""
    host: str | None = None
    """A host, with its subdomains."""
    path: str | None = None
    """How a path begins, on any host."""
    type: str | None = None
    """As in resolution: with a dot at its end, its subtypes as well."""
    value: bytes | None = None
    """The data of a value, exactly."""
    owner: str | None = None
    """The handle of whom it belongs to: see `owners`."""
    prefix: str | None = None
    since: int | None = None
    """The latest change is behind this entry."""

    def prepared(self) -> "Prepared":
        """The same, checked and ready to be compared; raises `Refused`."""
        if self == Search():
            raise Unanswerable("nothing to look for is named", "name a URL, a host, a type …")
        if self.prefix is not None and ("/" in self.prefix or _prefix_handle(self.prefix) is None):
            reason = f"{shown(self.prefix)} is no prefix"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, "name a prefix, such as 12345", "H2")
        try:
            owner = None if self.owner is None else Handle.for_lookup(self.owner)
            places = [] if self.host is None else [search_keys.host(self.host, subdomains=True)]
            places += [] if self.path is None else [search_keys.path_leading(self.path)]
            glob = None if self.url is None else UrlGlob.parse(self.url)
            ranges = None if glob is None else glob.ranges()
        except InvalidData as problem:
            raise Unanswerable(str(problem), "write it as in https://example.org/*") from problem
        if self.owner is not None and owner is None:
            reason = f"{shown(self.owner)} is no handle"
            raise Unanswerable(reason, "name whom it belongs to, as in 12345/ann")
        types = None if self.type is None else TypeQuery((self.type,))
        return Prepared(self, glob, ranges, tuple(places), types, owner)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What somebody looks for, ready to be compared with records."""

    search: Search
    glob: UrlGlob | None
    _glob_ranges: tuple[Range, ...] | None
    _places: tuple[Range, ...]
    """Each of which holds a key of the place."""
    _types: TypeQuery | None
    _owner: Handle | None

    @property
    def is_about_values(self) -> bool:
        """Whether some value has to be as asked for."""
        search = self.search
        asked = (search.url, search.host, search.path, search.type, search.value)
        return any(each is not None for each in asked)

    def plan(self) -> Plan:
        """How to find it."""
        search = self.search
        if search.value is not None:
            return Plan(value_ranges(search.value))
        if self._glob_ranges is not None:
            return Plan(self._glob_ranges)
        if self._places:
            return Plan(self._places[:1])
        if search.owner is not None:
            return Plan(owner_ranges(search.owner))
        if search.since is not None:
            return Plan(since=search.since)
        if search.prefix is not None:
            first = record_key(f"{search.prefix}/")
            return Plan(names=(first, first[:-1] + bytes((first[-1] + 1,))))
        ranges = EVERYTHING if search.type is None else type_ranges(search.type)
        return Plan(ranges, scans=self.glob if ranges == EVERYTHING else None)

    def concerns(self, entry: Entry) -> bool:
        """Whether a record can be it, by its name and its latest change."""
        search = self.search
        if search.since is not None and entry.seq <= search.since:
            return False
        return search.prefix is None or fold(entry.handle.partition("/")[0]) == fold(search.prefix)

    def meets(self, policy: Policy, entry: Entry, values: Sequence[Matched]) -> tuple[Value, ...] | None:
        """Those of some values of a record that are as asked for; None if the record is not it.

        Where nothing is asked about values, none are named.
        """
        if self._owner is not None and not owns(policy, entry.handle, [value for _, value in values], self._owner):
            return None
        if not self.is_about_values:
            return ()
        found = tuple([value for content, value in values if self._is_met(content, value)])
        return found or None

    def _is_met(self, content: bytes, value: Value) -> bool:
        search = self.search
        if self._types is not None and not self._types.finds(value.type):
            return False
        if search.value is not None and (value.data != search.value or _is_not_looked_up(value)):
            return False
        if self.glob is None and not self._places:
            return True
        return any(self._leads(keys) for keys in places_of(content))

    def _leads(self, keys: tuple[bytes, ...]) -> bool:
        if self.glob is not None and not self.glob.matches(keys[0]):
            return False
        return all(place.holds(keys) for place in self._places)


def _prefix_handle(prefix: str) -> Handle | None:
    return Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{prefix}")


_NEVER_BY_DATA: Final = (HS_ADMIN, HS_SECKEY)


def _is_not_looked_up(value: Value) -> bool:
    """Secrets are found by nobody, and administrators by their names."""
    return any(has_type(value.type, base) for base in _NEVER_BY_DATA)


def owns(policy: Policy, handle: str, values: Sequence[Value], owner: Handle) -> bool:
    """Whether a record belongs to somebody, by the values given."""
    name = Handle.keepable(handle)
    wanted = name_key(policy, name, owner)
    return any(name_key(policy, name, each) == wanted for each in owners(policy, values))


def owners(policy: Policy, values: Sequence[Value]) -> list[Handle]:
    """To whom a record belongs: whom it names as owner where the policy tells owners from managers, otherwise its
    administrators. Where these are no parties but prefix handles, or nobody is named, its creator too (A5).
    """
    named = _parties(of_type(values, policy.owner_type)) if policy.owner_type else _administrators(values)
    if policy.authority and all(each.is_prefix_handle for each in named):
        named += _parties(of_type(values, policy.creator_type))
    return named


def _parties(values: Iterable[Value]) -> list[Handle]:
    """The handles that values name, in the bare form in which they are kept."""
    found = []
    for value in values:
        party = first_readable([value], read_stored_party)
        if party is not None and str(party).encode() == value.data:
            found.append(party)
    return found


def _administrators(values: Iterable[Value]) -> list[Handle]:
    found = []
    for value in values:
        if has_type(value.type, HS_ADMIN):
            try:
                name = Handle.for_lookup(Admin.from_bytes(value.data).administrator.handle)
            except InvalidData:
                continue
            found += [] if name is None else [name]
    return found

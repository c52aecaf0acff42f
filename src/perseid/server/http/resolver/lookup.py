"""What a name stands for, read from one state of the ledger, with all that an answer about it needs.

Everything is what everybody may see: whoever asks here proves nothing. Aliases are followed by the rules of web
resolvers (§9.6): as long as the values that were asked for hold one, and twenty at most. A record that is somebody
else's to answer for is looked up for nothing but its namespace.

Where a moment of the past is asked for, the record is that of then, and so are the aliases on the way and whatever else
decides where it leads. Who answers for the name, whom to ask about it and whether its namespace is in use is a matter
of today.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Final
from urllib.parse import quote

from perseid.ledger.log.entry import State
from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.cordra import join
from perseid.names.errors import NameProblem
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.names.uri import QUERY_SAFE, Reference
from perseid.records.data_types import interpret_as
from perseid.records.errors import InvalidData
from perseid.records.locations import Candidates, find_locations
from perseid.records.namespace import Namespace, Status
from perseid.records.record import Record, ascending
from perseid.records.text_types import Alias
from perseid.records.types import EMAIL, HS_ALIAS, HS_NAMESPACE
from perseid.records.value import Value
from perseid.registry.access.permissions import shown
from perseid.registry.commands.composition import known
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority import Known
from perseid.registry.policy.authority_metadata import AuthorityMetadata, metadata
from perseid.registry.policy.authority_metadata import of_type as of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.templates import public_now
from perseid.registry.queries.history import Searched, as_of, public_then
from perseid.registry.queries.memento import Around
from perseid.registry.queries.resolve import Query, authority_of, last_change, resolve
from perseid.registry.results import Refused, Resolved
from perseid.registry.snapshot import MAX_ANCESTORS, SITE_PREFIX, Facts, of_type
from perseid.server.http.context import DOOR, Place
from perseid.server.native.decisions import WRONG_SERVER, Unkeepable, keepable
from perseid.wire.codes import ResponseCode
from perseid.wire.partition import server_for

from .paths import Named
from .time_travel import entry_for, entry_of_alias, versions_at

MAX_ALIASES: Final = 20
"""How many aliases are followed, as deployed resolvers do."""

CHAIN_TOO_LONG: Final = "Alias chain too long"
"""What deployed resolvers say of more, and of aliases that lead in a circle."""

MAX_LOOKED_FOR: Final = 100
"""How many names are looked for to find out whether they can be linked to: a list may have thousands."""

_KEPT_NAMESPACES: Final = 64  # as many as a server has busy prefixes, and at most some MiB


@dataclass(frozen=True, slots=True)
class Selection:
    """Which values of a name are asked for, and how."""

    types: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    follow: bool = True
    """Whether aliases are followed."""
    query: bytes = b""
    """What a name may have as a query of its own, as it came."""

    @property
    def is_restricted(self) -> bool:
        """Whether values are left out."""
        return bool(self.types or self.indexes)


@dataclass(frozen=True, slots=True)
class Tomb:
    """What became of a thing that is gone (S8)."""

    reason: str
    date: str
    replacement: str
    """A handle, or nothing."""


@dataclass(frozen=True, slots=True)
class Space:
    """What is known of the namespace of a name."""

    contact: str = ""
    """Whom to ask."""
    inactive: str | None = None
    """What is to be said if it is not in use any more; None if it is."""


@dataclass(frozen=True, slots=True)
class Found:
    """A name that stands for something."""

    name: str
    """As it was asked for, or as the last alias spells it."""
    resolved: Resolved
    aliases: tuple[str, ...]
    """The names that led here, the one asked for first; empty if it was this one."""
    used: tuple[Value, ...]
    """All values that the answer rests on."""
    first: Resolved
    """What the name that was asked for stands for itself: an alias, or the same as `resolved`."""
    tomb: Tomb | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """What was asked for."""
        return self.resolved.values


class Lost(Exception):
    """There is nothing to show for a name; what to say instead."""

    def __init__(
        self,
        refused: Refused,
        name: str,
        aliases: tuple[str, ...] = (),
        space: Space | None = None,
        *,
        is_circle: bool = False,
    ) -> None:
        super().__init__(str(refused))
        self.refused = refused
        self.name = name
        """The name at which it ended."""
        self.aliases = aliases
        self.space = Space() if space is None else space
        self.is_circle = is_circle
        """Whether aliases led in a circle, or too far."""
        self.first: Resolved | None = None
        """The alias that was asked for, if there is one; the name at which it ended is another one then."""


@dataclass(frozen=True, slots=True)
class Negotiated:
    """Where somebody is led who asks for a time."""

    name: str
    handle: Handle
    seq: int
    """The entry."""
    versions: Around | None
    """The versions around that time; None if the name has none of its own."""


@dataclass(slots=True)
class Reading:
    """One state of the ledger, and what is read of it for one request."""

    facts: Facts
    place: Place
    now: int
    at: int | None = None
    """After which entry of the ledger; None for the present."""
    _used: list[Value] = field(default_factory=list)
    _looked_for: int = 0
    _searched: Searched = field(default_factory=Searched)
    _versions: dict[str, Around | None] = field(default_factory=dict)

    def find(self, named: Named, selection: Selection) -> Found:
        """What a name stands for. Raises `Lost`."""
        first: list[Resolved] = []
        try:
            return self._find(named, selection, first)
        except Lost as lost:
            lost.first = first[0] if first else None
            raise

    def _find(self, named: Named, selection: Selection, found: list[Resolved]) -> Found:
        """The same; what was found on the way is added to `found`."""
        name = self._meant(named, selection)
        aliases: list[str] = []
        met: set[bytes] = set()
        while True:
            handle = self._handle(name, tuple(aliases))
            resolved, tomb = self._resolved(handle, name, selection, tuple(aliases))
            found.append(resolved)
            self._used += resolved.values
            target = self._alias(resolved) if selection.follow and tomb is None else None
            if target is None:
                return Found(name, resolved, tuple(aliases), tuple(self._used), found[0], tomb)
            key = self.facts.held(handle).key
            if key in met or len(aliases) >= MAX_ALIASES:
                reason = f"{shown(name)} is one alias too many: they lead in a circle, or further than {MAX_ALIASES}"
                raise Lost(Refused(ResponseCode.HANDLE_NOT_FOUND, reason), name, tuple(aliases), is_circle=True)
            met.add(key)
            aliases.append(name)
            name = target

    def handle_of(self, named: Named) -> Handle:
        """The handle that a name means, if this server may answer for it. Raises `Lost`."""
        return self._handle(self._meant(named, Selection()), ())

    def candidates(self, found: Found) -> Candidates:
        """All places that a name may lead to."""
        return find_locations(found.resolved.handle, found.values, self._values_then)

    def authority(self, found: Found) -> AuthorityMetadata | None:
        """What the record says about itself as an identifier."""
        resolved = found.resolved
        if resolved.by_template:
            return None
        held = self.facts.held(resolved.handle)
        if self.at is None:
            return authority_of(self.facts, held)
        if not held.policy.authority:
            return None
        record = Record(resolved.registered, self._values_then(str(resolved.handle)) or ())
        changed = last_change(case_rules.history(self.facts, held, resolved.seq))
        return metadata(held.policy, record, changed, lambda party: known(self.facts, party) is Known.HERE_PUBLIC)

    def policy(self, found: Found) -> Policy:
        """The policy of the namespace of a name."""
        return self.facts.held(found.resolved.handle).policy

    def versions(self, resolved: Resolved) -> Around | None:
        """The version that was found, and those around it; None where nobody asked for the past."""
        if self.at is None or resolved.by_template:
            return None
        handle = resolved.handle
        if str(handle) not in self._versions:
            self._versions[str(handle)] = versions_at(self.facts, handle, self.at)
        return self._versions[str(handle)]

    def versions_of(self, lost: "Lost") -> Around | None:
        """The versions around the moment, or now, where there is no such name; None if there never was one."""
        handle = Handle.for_lookup(Named(lost.name).handle)
        at = self.facts.reading.size if self.at is None else self.at
        return None if handle is None else versions_at(self.facts, handle, at)

    def negotiated(self, named: Named, selection: Selection, seconds: int) -> Negotiated:
        """Where somebody is led who asks for a time. Raises `Lost`."""
        name = self._meant(named, selection)
        handle = self._handle(name, ())
        try:
            seq, versions = entry_for(Context(self.facts, Anonymous(), DOOR, self.now), handle, seconds)
        except Refused as refused:
            raise Lost(refused, name, (), self._space_of(handle, refused)) from refused
        if versions is not None and selection.follow:
            seq = entry_of_alias(self.facts, handle, versions.memento.seq, seconds)
        return Negotiated(name, handle, seq, versions)

    def space(self, handle: Handle) -> Space:
        """What is known of the namespace of a name; that of a derived prefix inherits what it does not say."""
        contact, inactive, decided = "", None, False
        for namespace in self._namespaces(handle.prefix):
            contact = contact or namespace.contact or ""
            if not decided and namespace.root.elements("status"):
                decided = True
                inactive = namespace.status_message or "" if namespace.status is Status.INACTIVE else None
        return Space(contact or self._address(handle.prefix), inactive)

    def is_here(self, handle: Handle) -> bool:
        """Whether everybody can resolve a name at this server, as far as it is worth finding out."""
        if not self._is_responsible(handle) or self._looked_for >= MAX_LOOKED_FOR:
            return False
        self._looked_for += 1
        return self._public_values(str(handle)) is not None

    # Names

    def _meant(self, named: Named, selection: Selection) -> str:
        """The name as it is looked up: with the query of a URI, where such names have one (U6)."""
        handle = Handle.for_lookup(named.handle)
        other = named.otherwise
        if other is not None and (handle is None or not self._is_responsible(handle)):
            named, handle = other, Handle.for_lookup(other.handle)
        if handle is None or not selection.query or not self._is_responsible(handle):
            return named.name
        if self.facts.policy(handle.prefix).scheme != "cordra":
            return named.name
        try:
            query = quote(selection.query.decode("utf-8"), safe=QUERY_SAFE + "%")
            return str(join(Reference(handle, query)))
        except (NameProblem, UnicodeDecodeError):
            return named.name

    def _handle(self, name: str, aliases: tuple[str, ...]) -> Handle:
        """A name as a handle that this server may answer for. Raises `Lost`."""
        octets = Named(name).handle.encode("utf-8", "replace")
        try:
            site = self.place.site
            if len(site.servers) > 1 and server_for(octets, site.hash_option, len(site.servers)) != self.place.position:
                raise Refused(ResponseCode.SERVER_NOT_RESP, WRONG_SERVER)
            handle = keepable(octets)
            if isinstance(handle, Unkeepable):
                handle.check_responsible(self.facts)
                raise Refused(handle.code, handle.problem)
        except Refused as refused:
            raise Lost(refused, name, aliases) from refused
        return handle

    def _resolved(
        self, handle: Handle, name: str, selection: Selection, aliases: tuple[str, ...]
    ) -> tuple[Resolved, Tomb | None]:
        """What a handle stands for, and what became of it if it is a tombstone. Raises `Lost`."""
        try:
            try:
                resolved = self._answer(Query(handle, selection.types, selection.indexes))
            except Refused as refused:
                # Of a thing that is gone this is told, whichever values somebody wanted.
                if refused.code is not ResponseCode.VALUES_NOT_FOUND or not selection.is_restricted:
                    raise
                resolved = self._answer(Query(handle))
                if resolved.state is not State.TOMBSTONE:
                    raise refused from None
        except Refused as refused:
            raise Lost(refused, name, aliases, self._space_of(handle, refused)) from refused
        return resolved, self._tomb(resolved.base or handle) if resolved.state is State.TOMBSTONE else None

    def _answer(self, query: Query) -> Resolved:
        """What a query comes to, at the moment that was asked for."""
        if self.at is None:
            return resolve(query, Context(self.facts, Anonymous(), DOOR, self.now))
        return as_of(self.facts, Anonymous(), query, self.at).resolved

    def _space_of(self, handle: Handle, refused: Refused) -> Space:
        """What is known of the namespace of a name of which there is nothing."""
        return Space() if refused.code is ResponseCode.SERVER_NOT_RESP else self.space(handle)

    def _alias(self, resolved: Resolved) -> str | None:
        """The name that a record is another name for; an alias that cannot be read leads nowhere."""
        for value in ascending(of_type(resolved.values, HS_ALIAS)):
            alias = interpret_as(value, Alias)
            if alias is not None and alias.text.strip():
                return alias.text.strip()
        return None

    def _tomb(self, handle: Handle) -> Tomb:
        policy = self.facts.held(handle).policy
        values = self._values_then(str(handle)) or ()
        said = [
            next((value.data.decode("utf-8", "replace") for value in of_exact_type(values, type_)), "")
            for type_ in (policy.tombstone_reason_type, policy.tombstone_date_type, policy.tombstone_replacement_type)
        ]
        return Tomb(*said)

    # Other records

    def _is_responsible(self, handle: Handle) -> bool:
        return fold(handle.prefix) != SITE_PREFIX and self.facts.is_responsible(handle)

    def _values_then(self, name: str) -> tuple[Value, ...] | None:
        """What everybody may read of another record that is here, as it was at the moment that was asked for."""
        return self._public_values(name, self.at)

    def _public_values(self, name: str, at: int | None = None) -> tuple[Value, ...] | None:
        """What everybody may read of another record that is here, now or after an entry."""
        handle = Handle.for_lookup(name)
        if handle is None or not (handle.is_prefix_handle or self._is_responsible(handle)):
            return None
        try:
            if at is None:
                found = public_now(self.facts, handle, None)
            else:
                found = public_then(self.facts, at, self._searched, handle, None)
        except Refused:
            return None  # of a namespace whose policy, or of a name whose past cannot be read, nothing is known
        return None if found is None else found.values

    def _namespaces(self, prefix: str) -> Iterator[Namespace]:
        """The namespaces of a prefix and of those that it is derived from, nearest first."""
        above = () if fold(prefix) == PREFIX_OF_PREFIXES else filter(None, prefixes.ancestors(prefix))
        for each in (prefix, *islice(above, MAX_ANCESTORS)):
            values = self._public_values(f"{PREFIX_OF_PREFIXES}/{each}") or ()
            for value in ascending(of_type(values, HS_NAMESPACE)):
                namespace = _parsed(value.data)
                if namespace is not None:
                    yield namespace
                    break

    def _address(self, prefix: str) -> str:
        """The address of a prefix, where its namespace names nobody."""
        values = self._public_values(f"{PREFIX_OF_PREFIXES}/{prefix}") or ()
        return next((value.data.decode("utf-8", "replace") for value in ascending(of_type(values, EMAIL))), "")


@lru_cache(_KEPT_NAMESPACES)
def _parsed(data: bytes) -> Namespace | None:
    try:
        return Namespace.from_bytes(data)
    except InvalidData:
        return None

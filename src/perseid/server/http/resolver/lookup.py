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
from perseid.names.cordra import join_reference
from perseid.names.errors import NameProblem
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.names.uri import QUERY_SAFE, Reference
from perseid.records.data_types import interpret_as
from perseid.records.errors import InvalidData
from perseid.records.locations import Candidates, find_locations
from perseid.records.namespace import Namespace, NamespaceStatus
from perseid.records.record import Record, ascending
from perseid.records.text_types import Alias
from perseid.records.types import EMAIL, HS_ALIAS, HS_NAMESPACE
from perseid.records.value import Value
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.composition import get_party_status
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority import PartyStatus
from perseid.registry.policy.authority_metadata import AuthorityMetadata, build_metadata
from perseid.registry.policy.authority_metadata import values_of_exact_type as of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.templates import current_public_record
from perseid.registry.queries.history import SearchBudget, as_of, public_record_at
from perseid.registry.queries.memento import MementoNeighbors
from perseid.registry.queries.resolve import Query, get_authority_metadata, last_change, resolve
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import MAX_ANCESTORS, SITE_PREFIX, Snapshot, values_of_type
from perseid.server.http.context import INTERFACE, ServerContext
from perseid.server.native.decisions import WRONG_SERVER, UnstorableName, parse_lenient
from perseid.wire.codes import ResponseCode
from perseid.wire.partition import find_server_index

from .paths import RequestedName
from .time_travel import find_alias_entry, find_versions, negotiate_entry

MAX_ALIASES: Final = 20
"""How many aliases are followed, as deployed resolvers do."""

CHAIN_TOO_LONG: Final = "Alias chain too long"
"""What deployed resolvers say of more, and of aliases that lead in a circle."""

MAX_LINK_CHECKS: Final = 100
"""How many names are looked for to find out whether they can be linked to: a list may have thousands."""

_CACHED_NAMESPACES: Final = 64  # as many as a server has busy prefixes, and at most some MiB


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
class Tombstone:
    """What became of a thing that is gone (S8)."""

    reason: str
    date: str
    replacement: str
    """A handle, or nothing."""


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """What is known of the namespace of a name."""

    contact: str = ""
    """Whom to ask."""
    inactive: str | None = None
    """What is to be said if it is not in use any more; None if it is."""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """A name that stands for something."""

    name: str
    """As it was asked for, or as the last alias spells it."""
    resolved: Resolution
    aliases: tuple[str, ...]
    """The names that led here, the one asked for first; empty if it was this one."""
    used: tuple[Value, ...]
    """All values that the answer rests on."""
    first: Resolution
    """What the name that was asked for stands for itself: an alias, or the same as `resolved`."""
    tombstone: Tombstone | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """What was asked for."""
        return self.resolved.values


class LookupFailure(Exception):
    """There is nothing to show for a name; what to say instead."""

    def __init__(
        self,
        refused: Refused,
        name: str,
        aliases: tuple[str, ...] = (),
        space: NamespaceInfo | None = None,
        *,
        is_loop: bool = False,
    ) -> None:
        super().__init__(str(refused))
        self.refused = refused
        self.name = name
        """The name at which it ended."""
        self.aliases = aliases
        self.space = NamespaceInfo() if space is None else space
        self.is_loop = is_loop
        """Whether aliases led in a circle, or too far."""
        self.first: Resolution | None = None
        """The alias that was asked for, if there is one; the name at which it ended is another one then."""


@dataclass(frozen=True, slots=True)
class NegotiatedVersion:
    """Where somebody is led who asks for a time."""

    name: str
    handle: Handle
    seq: int
    """The entry."""
    versions: MementoNeighbors | None
    """The versions around that time; None if the name has none of its own."""


@dataclass(slots=True)
class RecordReader:
    """One state of the ledger, and what is read of it for one request."""

    snapshot: Snapshot
    place: ServerContext
    now: int
    at: int | None = None
    """After which entry of the ledger; None for the present."""
    _used: list[Value] = field(default_factory=list)
    _looked_for: int = 0
    _searched: SearchBudget = field(default_factory=SearchBudget)
    _versions: dict[str, MementoNeighbors | None] = field(default_factory=dict)

    def find(self, named: RequestedName, selection: Selection) -> LookupResult:
        """What a name stands for. Raises `Lost`."""
        first: list[Resolution] = []
        try:
            return self._find(named, selection, first)
        except LookupFailure as lost:
            lost.first = first[0] if first else None
            raise

    def _find(self, named: RequestedName, selection: Selection, found: list[Resolution]) -> LookupResult:
        """The same; what was found on the way is added to `found`."""
        name = self._lookup_name(named, selection)
        aliases: list[str] = []
        met: set[bytes] = set()
        while True:
            handle = self._handle(name, tuple(aliases))
            resolved, tombstone = self._resolve(handle, name, selection, tuple(aliases))
            found.append(resolved)
            self._used += resolved.values
            target = self._alias(resolved) if selection.follow and tombstone is None else None
            if target is None:
                return LookupResult(name, resolved, tuple(aliases), tuple(self._used), found[0], tombstone)
            key = self.snapshot.stored(handle).key
            if key in met or len(aliases) >= MAX_ALIASES:
                reason = (
                    f"{display_name(name)} is one alias too many: they lead in a circle, or further than {MAX_ALIASES}"
                )
                raise LookupFailure(Refused(ResponseCode.HANDLE_NOT_FOUND, reason), name, tuple(aliases), is_loop=True)
            met.add(key)
            aliases.append(name)
            name = target

    def find_handle(self, named: RequestedName) -> Handle:
        """The handle that a name means, if this server may answer for it. Raises `Lost`."""
        return self._handle(self._lookup_name(named, Selection()), ())

    def candidates(self, found: LookupResult) -> Candidates:
        """All places that a name may lead to."""
        return find_locations(found.resolved.handle, found.values, self._values_at)

    def authority(self, found: LookupResult) -> AuthorityMetadata | None:
        """What the record says about itself as an identifier."""
        resolved = found.resolved
        if resolved.by_template:
            return None
        stored = self.snapshot.stored(resolved.handle)
        if self.at is None:
            return get_authority_metadata(self.snapshot, stored)
        if not stored.policy.authority:
            return None
        record = Record(resolved.registered, self._values_at(str(resolved.handle)) or ())
        changed = last_change(case_rules.history(self.snapshot, stored, resolved.seq))
        return build_metadata(
            stored.policy,
            record,
            changed,
            lambda party: get_party_status(self.snapshot, party) is PartyStatus.HERE_PUBLIC,
        )

    def policy(self, found: LookupResult) -> Policy:
        """The policy of the namespace of a name."""
        return self.snapshot.stored(found.resolved.handle).policy

    def versions(self, resolved: Resolution) -> MementoNeighbors | None:
        """The version that was found, and those around it; None where nobody asked for the past."""
        if self.at is None or resolved.by_template:
            return None
        handle = resolved.handle
        if str(handle) not in self._versions:
            self._versions[str(handle)] = find_versions(self.snapshot, handle, self.at)
        return self._versions[str(handle)]

    def versions_of(self, lost: "LookupFailure") -> MementoNeighbors | None:
        """The versions around the moment, or now, where there is no such name; None if there never was one."""
        handle = Handle.for_lookup(RequestedName(lost.name).handle)
        at = self.snapshot.reading.size if self.at is None else self.at
        return None if handle is None else find_versions(self.snapshot, handle, at)

    def negotiated(self, named: RequestedName, selection: Selection, seconds: int) -> NegotiatedVersion:
        """Where somebody is led who asks for a time. Raises `Lost`."""
        name = self._lookup_name(named, selection)
        handle = self._handle(name, ())
        try:
            seq, versions = negotiate_entry(Context(self.snapshot, Anonymous(), INTERFACE, self.now), handle, seconds)
        except Refused as refused:
            raise LookupFailure(refused, name, (), self._namespace_info(handle, refused)) from refused
        if versions is not None and selection.follow:
            seq = find_alias_entry(self.snapshot, handle, versions.memento.seq, seconds)
        return NegotiatedVersion(name, handle, seq, versions)

    def space(self, handle: Handle) -> NamespaceInfo:
        """What is known of the namespace of a name; that of a derived prefix inherits what it does not say."""
        contact, inactive, decided = "", None, False
        for namespace in self._namespaces(handle.prefix):
            contact = contact or namespace.contact or ""
            if not decided and namespace.root.elements("status"):
                decided = True
                inactive = namespace.status_message or "" if namespace.status is NamespaceStatus.INACTIVE else None
        return NamespaceInfo(contact or self._address(handle.prefix), inactive)

    def is_here(self, handle: Handle) -> bool:
        """Whether everybody can resolve a name at this server, as far as it is worth finding out."""
        if not self._is_responsible(handle) or self._looked_for >= MAX_LINK_CHECKS:
            return False
        self._looked_for += 1
        return self._public_values(str(handle)) is not None

    # Names

    def _lookup_name(self, named: RequestedName, selection: Selection) -> str:
        """The name as it is looked up: with the query of a URI, where such names have one (U6)."""
        handle = Handle.for_lookup(named.handle)
        other = named.alternative
        if other is not None and (handle is None or not self._is_responsible(handle)):
            named, handle = other, Handle.for_lookup(other.handle)
        if handle is None or not selection.query or not self._is_responsible(handle):
            return named.name
        if self.snapshot.policy(handle.prefix).scheme != "cordra":
            return named.name
        try:
            query = quote(selection.query.decode("utf-8"), safe=QUERY_SAFE + "%")
            return str(join_reference(Reference(handle, query)))
        except (NameProblem, UnicodeDecodeError):
            return named.name

    def _handle(self, name: str, aliases: tuple[str, ...]) -> Handle:
        """A name as a handle that this server may answer for. Raises `Lost`."""
        raw = RequestedName(name).handle.encode("utf-8", "replace")
        try:
            site = self.place.site
            if (
                len(site.servers) > 1
                and find_server_index(raw, site.hash_option, len(site.servers)) != self.place.position
            ):
                raise Refused(ResponseCode.SERVER_NOT_RESP, WRONG_SERVER)
            handle = parse_lenient(raw)
            if isinstance(handle, UnstorableName):
                handle.check_responsible(self.snapshot)
                raise Refused(handle.code, handle.problem)
        except Refused as refused:
            raise LookupFailure(refused, name, aliases) from refused
        return handle

    def _resolve(
        self, handle: Handle, name: str, selection: Selection, aliases: tuple[str, ...]
    ) -> tuple[Resolution, Tombstone | None]:
        """What a handle stands for, and what became of it if it is a tombstone. Raises `Lost`."""
        try:
            try:
                resolved = self._run_query(Query(handle, selection.types, selection.indexes))
            except Refused as refused:
                # Of a thing that is gone this is told, whichever values somebody wanted.
                if refused.code is not ResponseCode.VALUES_NOT_FOUND or not selection.is_restricted:
                    raise
                resolved = self._run_query(Query(handle))
                if resolved.state is not State.TOMBSTONE:
                    raise refused from None
        except Refused as refused:
            raise LookupFailure(refused, name, aliases, self._namespace_info(handle, refused)) from refused
        return resolved, self._tombstone(resolved.base or handle) if resolved.state is State.TOMBSTONE else None

    def _run_query(self, query: Query) -> Resolution:
        """What a query comes to, at the moment that was asked for."""
        if self.at is None:
            return resolve(query, Context(self.snapshot, Anonymous(), INTERFACE, self.now))
        return as_of(self.snapshot, Anonymous(), query, self.at).resolved

    def _namespace_info(self, handle: Handle, refused: Refused) -> NamespaceInfo:
        """What is known of the namespace of a name of which there is nothing."""
        return NamespaceInfo() if refused.code is ResponseCode.SERVER_NOT_RESP else self.space(handle)

    def _alias(self, resolved: Resolution) -> str | None:
        """The name that a record is another name for; an alias that cannot be read leads nowhere."""
        for value in ascending(values_of_type(resolved.values, HS_ALIAS)):
            alias = interpret_as(value, Alias)
            if alias is not None and alias.text.strip():
                return alias.text.strip()
        return None

    def _tombstone(self, handle: Handle) -> Tombstone:
        policy = self.snapshot.stored(handle).policy
        values = self._values_at(str(handle)) or ()
        said = [
            next((value.data.decode("utf-8", "replace") for value in of_exact_type(values, type_)), "")
            for type_ in (policy.tombstone_reason_type, policy.tombstone_date_type, policy.tombstone_replacement_type)
        ]
        return Tombstone(*said)

    # Other records

    def _is_responsible(self, handle: Handle) -> bool:
        return fold(handle.prefix) != SITE_PREFIX and self.snapshot.is_responsible(handle)

    def _values_at(self, name: str) -> tuple[Value, ...] | None:
        """What everybody may read of another record that is here, as it was at the moment that was asked for."""
        return self._public_values(name, self.at)

    def _public_values(self, name: str, at: int | None = None) -> tuple[Value, ...] | None:
        """What everybody may read of another record that is here, now or after an entry."""
        handle = Handle.for_lookup(name)
        if handle is None or not (handle.is_prefix_handle or self._is_responsible(handle)):
            return None
        try:
            if at is None:
                found = current_public_record(self.snapshot, handle, None)
            else:
                found = public_record_at(self.snapshot, at, self._searched, handle, None)
        except Refused:
            return None  # of a namespace whose policy, or of a name whose past cannot be read, nothing is known
        return None if found is None else found.values

    def _namespaces(self, prefix: str) -> Iterator[Namespace]:
        """The namespaces of a prefix and of those that it is derived from, nearest first."""
        above = () if fold(prefix) == PREFIX_OF_PREFIXES else filter(None, prefixes.ancestors(prefix))
        for each in (prefix, *islice(above, MAX_ANCESTORS)):
            values = self._public_values(f"{PREFIX_OF_PREFIXES}/{each}") or ()
            for value in ascending(values_of_type(values, HS_NAMESPACE)):
                namespace = _parse_namespace(value.data)
                if namespace is not None:
                    yield namespace
                    break

    def _address(self, prefix: str) -> str:
        """The address of a prefix, where its namespace names nobody."""
        values = self._public_values(f"{PREFIX_OF_PREFIXES}/{prefix}") or ()
        return next((value.data.decode("utf-8", "replace") for value in ascending(values_of_type(values, EMAIL))), "")


@lru_cache(_CACHED_NAMESPACES)
def _parse_namespace(data: bytes) -> Namespace | None:
    try:
        return Namespace.from_bytes(data)
    except InvalidData:
        return None

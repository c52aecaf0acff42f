"""Lookup of a name in one snapshot of the ledger, with everything a response needs.

Only public data is read: callers are anonymous here. Aliases are followed by the rules of the registry, while the
requested values contain one (§9.6). For a handle that another service hosts, only its namespace is read.

For an earlier time, the record, the aliases on the way and everything else that affects the target are as of that time.
Which server hosts the handle, its contact and the status of its namespace are always current.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Final, TypeVar
from urllib.parse import quote

from perseid.ledger.log.entry import State
from perseid.names.cordra import join_reference
from perseid.names.errors import NameProblem
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, ancestor_prefixes, fold
from perseid.names.uri import MAX_ENCODED_LENGTH, QUERY_SAFE, Reference
from perseid.records.errors import InvalidData
from perseid.records.locations import Candidates, find_locations
from perseid.records.namespace import Namespace, NamespaceStatus
from perseid.records.record import Record, Value, ascending
from perseid.records.types import EMAIL, HS_NAMESPACE
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.policy import case_rules
from perseid.registry.policy.authority import AuthorityMetadata, build_metadata, find_built_in_definition
from perseid.registry.policy.authority import values_of_exact_type as of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.resolution import (
    MAX_ALIASES,
    AliasTrail,
    alias_target,
    current_public_record,
    resolves_here,
)
from perseid.registry.queries.history import SearchBudget, as_of, public_record_at
from perseid.registry.queries.memento import MementoNeighbors, find_deleted
from perseid.registry.queries.resolve import Query, get_authority_metadata, last_change, resolve
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import MAX_ANCESTORS, MAX_SHORT_BYTES, SITE_PREFIX, Snapshot, values_of_type
from perseid.server.http.context import INTERFACE, ServerContext
from perseid.server.native.decisions import UnstorableName, parse_lenient
from perseid.wire.codes import ResponseCode

from .paths import RequestedName, path_to
from .time_travel import find_alias_entry, find_versions, negotiate_entry

CHAIN_TOO_LONG: Final = "Alias chain too long"
"""The words of deployed resolvers for longer chains and loops."""

MAX_LINK_CHECKS: Final = 100
"""Names that are checked to decide whether they can be linked: a list may have thousands."""

T = TypeVar("T")

_PREFIX_HANDLES: Final = f"{PREFIX_OF_PREFIXES}/"
_CACHED_NAMESPACES: Final = 64  # as many as a server has busy prefixes; a few MiB at most


@dataclass(frozen=True, slots=True)
class Selection:
    """Which values of a record are requested, and how."""

    types: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    follow: bool = True
    """Whether aliases are followed."""
    query: bytes = b""
    """The query that belongs to the name itself, as received."""

    @property
    def is_restricted(self) -> bool:
        """Whether only some values are requested."""
        return bool(self.types or self.indexes)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Why an identifier was withdrawn, when, and its replacement (S8)."""

    reason: str
    date: str
    replacement: str
    """A handle, or empty."""


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """Information about the namespace of a handle."""

    contact: str = ""
    """Whom to contact."""
    inactive: str | None = None
    """The status message if the namespace is inactive; None if it is active."""
    has_locations: bool = False
    """Whether the namespace, or one above it, has locations for its handles."""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """A name that resolves."""

    name: str
    """As requested, or as the last alias spells it."""
    resolved: Resolution
    aliases: tuple[str, ...]
    """The aliases that were followed, the requested name first; empty if there were none."""
    used: tuple[Value, ...]
    """All values that the response depends on."""
    first: Resolution
    """The resolution of the requested name itself: an alias, or the same as `resolved`."""
    tombstone: Tombstone | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """The requested values."""
        return self.resolved.values

    @property
    def reference(self) -> Reference:
        """The handle as registered, with the query and fragment of a CORDRA name."""
        return Reference(self.resolved.registered, self.resolved.query, self.resolved.fragment)

    @property
    def registered_name(self) -> str:
        """The same as a name; a prefix stays as it is."""
        if "/" not in self.name:
            return self.name
        reference = self.reference
        return f"{reference.handle}{reference.tail}"


class LookupFailure(Exception):
    """A name that does not resolve to anything that can be shown."""

    def __init__(
        self,
        refused: Refused,
        name: str,
        aliases: tuple[str, ...] = (),
        namespace: NamespaceInfo | None = None,
        *,
        is_loop: bool = False,
    ) -> None:
        super().__init__(str(refused))
        self.refused = refused
        self.name = name
        """The name at which the lookup failed."""
        self.aliases = aliases
        self.namespace = NamespaceInfo() if namespace is None else namespace
        self.is_loop = is_loop
        """Whether aliases form a loop or too long a chain."""
        self.first: Resolution | None = None
        """The requested alias, if there is one; `name` is then a different name."""


@dataclass(frozen=True, slots=True)
class NegotiatedVersion:
    """The version of a handle that was negotiated for a time."""

    name: str
    handle: Handle
    seq: int
    """The entry."""
    versions: MementoNeighbors | None
    """The versions around that time; None if the handle has none of its own."""


@dataclass(slots=True)
class RecordReader:
    """Reads one snapshot of the ledger for one request."""

    snapshot: Snapshot
    server: ServerContext
    now: int
    at: int | None = None
    """The ledger entry after which to read; None for the present."""
    _used: list[Value] = field(default_factory=list)
    _links: dict[str, str] = field(default_factory=dict)
    _search_budget: SearchBudget = field(default_factory=SearchBudget)
    _versions: dict[str, MementoNeighbors | None] = field(default_factory=dict)
    _shared: Mapping[Hashable, object] = field(init=False)

    def __post_init__(self) -> None:
        self._shared = self.server.shared_parts.results(self.snapshot.stamp)

    def find(self, named: RequestedName, selection: Selection) -> LookupResult:
        """Look up a name, following aliases. Raises `LookupFailure`."""
        resolutions: list[Resolution] = []
        try:
            return self._find(named, selection, resolutions)
        except LookupFailure as failure:
            failure.first = resolutions[0] if resolutions else None
            raise

    def _find(self, named: RequestedName, selection: Selection, resolutions: list[Resolution]) -> LookupResult:
        """Look up a name, adding each resolution on the way to `resolutions`."""
        name = self._lookup_name(named, selection)
        aliases: list[str] = []
        trail = AliasTrail()
        while True:
            handle = self._handle(name, tuple(aliases))
            resolved, tombstone = self._resolve(handle, name, selection, tuple(aliases))
            resolutions.append(resolved)
            self._used += resolved.values
            target = alias_target(resolved.values) if selection.follow and tombstone is None else None
            if target is None:
                return LookupResult(name, resolved, tuple(aliases), tuple(self._used), resolutions[0], tombstone)
            if trail.follow(self.snapshot.stored(handle).key) is not None:
                reason = f"the aliases at {display_name(name)} form a loop or a chain of more than {MAX_ALIASES}"
                raise LookupFailure(Refused(ResponseCode.HANDLE_NOT_FOUND, reason), name, tuple(aliases), is_loop=True)
            aliases.append(name)
            name = target

    def find_handle(self, named: RequestedName) -> Handle:
        """Return the handle for a name, if this server is responsible for it. Raises `LookupFailure`."""
        return self._handle(self._lookup_name(named, Selection()), ())

    def candidates(self, found: LookupResult) -> Candidates:
        """Find all locations of a handle."""
        handle = found.resolved.handle
        is_alone = self.at is None and not self.describe_namespace(handle).has_locations
        return find_locations(handle, found.values, self._values_at, is_alone=is_alone)

    def authority(self, found: LookupResult) -> AuthorityMetadata | None:
        """Return the authority metadata of a record."""
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
        return build_metadata(stored.policy, record, changed, lambda party: resolves_here(self.snapshot, party))

    def policy(self, found: LookupResult) -> Policy:
        """Return the policy of a handle's namespace."""
        return self.snapshot.stored(found.resolved.handle).policy

    def versions(self, resolved: Resolution) -> MementoNeighbors | None:
        """Return the version that was found and its neighbors; None for the present."""
        if self.at is None or resolved.by_template:
            return None
        handle = resolved.handle
        if str(handle) not in self._versions:
            self._versions[str(handle)] = find_versions(self.snapshot, handle, self.at)
        return self._versions[str(handle)]

    def versions_of(self, failure: "LookupFailure") -> MementoNeighbors | None:
        """Return the versions around the requested time of a handle without record; None if it never had one.

        Of the present that is the last version.
        """
        handle = Handle.for_lookup(RequestedName(failure.name).handle)
        if handle is None:
            return None
        return find_deleted(self.snapshot, handle) if self.at is None else find_versions(self.snapshot, handle, self.at)

    def negotiate_version(self, named: RequestedName, selection: Selection, seconds: int) -> NegotiatedVersion:
        """Find the version of a name for a time. Raises `LookupFailure`."""
        name = self._lookup_name(named, selection)
        handle = self._handle(name, ())
        try:
            seq, versions = negotiate_entry(Context(self.snapshot, Anonymous(), INTERFACE, self.now), handle, seconds)
        except Refused as refused:
            raise LookupFailure(refused, name, (), self._namespace_info(handle, refused)) from refused
        if versions is not None and selection.follow:
            seq = find_alias_entry(self.snapshot, handle, versions.memento.seq, seconds)
        return NegotiatedVersion(name, handle, seq, versions)

    def describe_namespace(self, handle: Handle) -> NamespaceInfo:
        """Describe the namespace of a handle; a derived prefix inherits what it does not specify."""
        return self.get_cached(("prefix", handle.prefix), lambda: self._read_namespace_info(handle))

    def _read_namespace_info(self, handle: Handle) -> NamespaceInfo:
        contact, inactive, decided, has_locations = "", None, False, False
        for namespace in self._namespaces(handle.prefix):
            has_locations = has_locations or bool(namespace.locations)
            contact = contact or namespace.contact or ""
            if not decided and namespace.root.elements("status"):
                decided = True
                inactive = namespace.status_message or "" if namespace.status is NamespaceStatus.INACTIVE else None
        return NamespaceInfo(contact or self._address(handle.prefix), inactive, has_locations)

    def link_to(self, name: str) -> str:
        """The path of the page of a name; empty if this server has none, and after `MAX_LINK_CHECKS` names.

        Names are texts of values, of any length: those that are longer than any handle are not looked for or cached.
        """
        known = self._links.get(name)
        if known is None:
            is_checked = len(self._links) < MAX_LINK_CHECKS and len(name) <= MAX_ENCODED_LENGTH
            page = self.get_cached(("page", name), lambda: self._find_page(name)) if is_checked else ""
            known = self._links[name] = path_to(page, self.server.settings) if page else ""
        return known

    def _find_page(self, name: str) -> str:
        """The handle that a name means, if this server has a page of it; else empty."""
        handle = Handle.for_lookup(name.strip())
        if handle is None:
            return ""
        if self._is_responsible(handle):
            is_here = self._public_values(str(handle)) is not None
        else:
            is_here = find_built_in_definition(handle) is not None
        return str(handle) if is_here else ""

    # Names

    def _lookup_name(self, named: RequestedName, selection: Selection) -> str:
        """The name to look up: with query and fragment of the URI, in namespaces whose names have them (U6)."""
        handle = Handle.for_lookup(named.handle)
        other = named.alternative
        if other is not None and (handle is None or not self._is_responsible(handle)):
            named, handle = other, Handle.for_lookup(other.handle)
        has_tail = selection.query or named.query is not None or named.fragment is not None
        if handle is None or not has_tail or not self._is_responsible(handle):
            return named.name
        if self.snapshot.policy(handle.prefix).scheme != "cordra":
            return named.name
        try:
            query = quote(selection.query.decode("utf-8"), safe=QUERY_SAFE + "%") if selection.query else named.query
            reference = Reference(handle, query, named.fragment)
            join_reference(reference)
        except (NameProblem, UnicodeDecodeError):
            return named.name
        return named.name + reference.tail  # in the spelling of the request

    def _handle(self, name: str, aliases: tuple[str, ...]) -> Handle:
        """Parse a name as a handle that this server is responsible for. Raises `LookupFailure`."""
        raw = RequestedName(name).handle.encode("utf-8", "replace")
        try:
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
        """Resolve a handle, and read its tombstone if it is one. Raises `LookupFailure`."""
        try:
            try:
                resolved = self._run_query(Query(handle, selection.types, selection.indexes))
            except Refused as refused:
                # A tombstone is shown whichever values were requested.
                if refused.code is not ResponseCode.VALUES_NOT_FOUND or not selection.is_restricted:
                    raise
                resolved = self._run_query(Query(handle))
                if resolved.state is not State.TOMBSTONE:
                    raise refused from None
        except Refused as refused:
            raise LookupFailure(refused, name, aliases, self._namespace_info(handle, refused)) from refused
        return resolved, self._tombstone(resolved.base or handle) if resolved.state is State.TOMBSTONE else None

    def _run_query(self, query: Query) -> Resolution:
        """Run a query as of the requested time."""
        if self.at is None:
            return resolve(query, Context(self.snapshot, Anonymous(), INTERFACE, self.now))
        return as_of(self.snapshot, Anonymous(), query, self.at).resolved

    def _namespace_info(self, handle: Handle, refused: Refused) -> NamespaceInfo:
        return NamespaceInfo() if refused.code is ResponseCode.SERVER_NOT_RESP else self.describe_namespace(handle)

    def _tombstone(self, handle: Handle) -> Tombstone:
        policy = self.snapshot.stored(handle).policy
        values = self._values_at(str(handle)) or ()
        texts = [
            next((value.data.decode("utf-8", "replace") for value in of_exact_type(values, type_)), "")
            for type_ in (policy.tombstone_reason_type, policy.tombstone_date_type, policy.tombstone_replacement_type)
        ]
        return Tombstone(*texts)

    # Other records

    def _is_responsible(self, handle: Handle) -> bool:
        return fold(handle.prefix) != SITE_PREFIX and self.snapshot.is_responsible(handle)

    def _values_at(self, name: str) -> tuple[Value, ...] | None:
        """Read the public values of another record here, as of the requested time."""
        return self._public_values(name, self.at)

    def _public_values(self, name: str, at: int | None = None) -> tuple[Value, ...] | None:
        """Read the public values of another record here, now or after an entry."""
        if at is not None or not name.startswith(_PREFIX_HANDLES):
            return self._read_values(name, at)
        return self.get_cached(("values", name), lambda: (self._read_values(name),), _are_few)[0]

    def _read_values(self, name: str, at: int | None = None) -> tuple[Value, ...] | None:
        handle = Handle.for_lookup(name)
        if handle is None or not (handle.is_prefix_handle or self._is_responsible(handle)):
            return None
        try:
            if at is None:
                record = current_public_record(self.snapshot, handle, None)
            else:
                record = public_record_at(self.snapshot, at, self._search_budget, handle, None)
        except Refused:
            return None  # the policy is invalid, or the history is hidden
        return None if record is None else record.values

    def get_cached(self, key: Hashable, find: Callable[[], T], is_small: Callable[[T], bool] = lambda _: True) -> T:
        """What the pages of many records need of others, found once in each state of the view."""
        known = self._shared.get(key)
        if known is not None:
            return known  # type: ignore[return-value]
        found = find()
        if is_small(found) and len(self._links) < MAX_LINK_CHECKS:  # else it may lack links
            self.server.shared_parts.add(key, self.snapshot.stamp, found)
        return found

    def _namespaces(self, prefix: str) -> Iterator[Namespace]:
        """The namespaces of a prefix and its ancestors, nearest first."""
        ancestors = () if fold(prefix) == PREFIX_OF_PREFIXES else ancestor_prefixes(prefix)
        for each in (prefix, *islice(ancestors, MAX_ANCESTORS)):
            values = self._public_values(f"{PREFIX_OF_PREFIXES}/{each}") or ()
            for value in ascending(values_of_type(values, HS_NAMESPACE)):
                namespace = _parse_namespace(value.data)
                if namespace is not None:
                    yield namespace
                    break

    def _address(self, prefix: str) -> str:
        """The email address of a prefix, for a namespace without contact."""
        values = self._public_values(f"{PREFIX_OF_PREFIXES}/{prefix}") or ()
        return next((value.data.decode("utf-8", "replace") for value in ascending(values_of_type(values, EMAIL))), "")


def _are_few(values: tuple[tuple[Value, ...] | None]) -> bool:
    return sum([len(value.data) for value in values[0] or ()]) <= MAX_SHORT_BYTES


@lru_cache(_CACHED_NAMESPACES)
def _parse_namespace(data: bytes) -> Namespace | None:
    try:
        return Namespace.from_bytes(data)
    except InvalidData:
        return None

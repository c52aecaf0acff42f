"""Aliases: where HS_ALIAS values lead.

Each handle is found by the rules of its own namespace, all in one snapshot, now or at one time. Only public values of
public records are followed, and of the history only what is still public. Which alias is followed, and how many, is in
`policy.resolution`.
"""

from dataclasses import dataclass, replace

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle, fold
from perseid.records.encoding import iso_time
from perseid.records.record import select
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.policy.authority import find_built_in_definition
from perseid.registry.policy.resolution import MAX_ALIASES, AliasOutcome, AliasTrail, alias_target, has_alias
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import SITE_PREFIX, Snapshot
from perseid.schema import records as schema
from perseid.wire.codes import ResponseCode

from .history import resolve_at, seq_at_time
from .resolve import Query, values_not_found


class AliasError(Refused):
    """The requested handle exists, but its aliases do not lead to a record here."""


@dataclass(frozen=True, slots=True)
class AliasChain:
    """The handles that aliases lead to."""

    chain: tuple[Handle, ...]
    """The handles in order, from the requested one to the last."""
    end: AliasOutcome

    @property
    def last(self) -> Handle:
        """The last handle."""
        return self.chain[-1]


def follow_aliases(snapshot: Snapshot, handle: Handle, at: int | None = None, limit: int = MAX_ALIASES) -> AliasChain:
    """Follow aliases, now or as of an earlier entry (see `history.seq_at_time`)."""
    chain: list[Handle] = []
    trail = AliasTrail(limit)
    while True:
        if fold(handle.prefix) == SITE_PREFIX:
            return AliasChain((*chain, handle), AliasOutcome.NOT_FOUND)
        if not snapshot.is_responsible(handle):
            return AliasChain((*chain, handle), AliasOutcome.NOT_HOSTED)
        stored = snapshot.stored(handle)
        # The registered spelling of a handle that is not public is not revealed.
        chain.append(
            stored.handle if stored.is_public else stored.policy.normalize(stored.policy.lookup_form(handle)[0])
        )
        try:
            resolution = resolve_at(Context(snapshot, Anonymous(), "read", 0), Query(handle, refer=False), at)
        except Refused as refused:
            end = AliasOutcome.FOUND if refused.code is ResponseCode.VALUES_NOT_FOUND else AliasOutcome.NOT_FOUND
            return AliasChain(tuple(chain), end)
        # The values from a template may depend on the requested spelling.
        chain[-1] = handle if resolution.by_template else resolution.registered
        if not has_alias(resolution.values):
            return AliasChain(tuple(chain), AliasOutcome.FOUND)
        target = Handle.for_lookup(alias_target(resolution.values) or "")
        if target is None:
            return AliasChain(tuple(chain), AliasOutcome.UNREADABLE)
        if problem := trail.follow(stored.key):
            return AliasChain(tuple(chain), problem)
        handle = target


def resolve_aliases(snapshot: Snapshot, handle: Handle, at: int | None = None) -> AliasChain:
    """Follow aliases to the final record; refused if there is none here."""
    aliases = follow_aliases(snapshot, handle, at)
    if aliases.end is AliasOutcome.FOUND or (aliases.end is AliasOutcome.NOT_FOUND and len(aliases.chain) == 1):
        return aliases  # the handle is not an alias: resolving it gives the error
    last = display_name(aliases.last)
    subject = f"{display_name(handle)} is an alias"
    if aliases.end is AliasOutcome.NOT_FOUND:
        reason = f"{subject} of {last}, which does not exist"
        raise AliasError(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.FIX_ALIAS(handle=aliases.last), "S2")
    if aliases.end is AliasOutcome.NOT_HOSTED:
        if len(aliases.chain) == 1:
            return aliases
        reason, advice = (
            f"{subject} of {last}, which is not hosted here",
            AdviceKind.ASK_HOST(prefix=aliases.last.prefix),
        )
        raise AliasError(ResponseCode.SERVER_NOT_RESP, reason, advice, "S2")
    reasons = {
        AliasOutcome.LOOP: f"{subject} in a loop: {last} leads back to itself",
        AliasOutcome.TOO_LONG: f"{subject} with more than {MAX_ALIASES} steps: {last} is an alias too",
        AliasOutcome.UNREADABLE: f"The alias of {last} is not a valid handle",
    }
    # The record exists, but its target does not.
    raise AliasError(ResponseCode.VALUES_NOT_FOUND, reasons[aliases.end], AdviceKind.RESOLVE_WITHOUT_ALIASES(), "S2")


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, now or at a time."""

    resolution: Resolution
    entry: int | None = None
    """The last ledger entry at the requested time; None if the current record was requested."""
    aliases: tuple[str, ...] = ()
    """The aliases that were followed."""
    is_copy: bool = False
    """Whether another service hosts the handle, a type, and this is the copy that comes with Perseid (A6)."""

    def to_response(self) -> schema.Record:
        """Convert it for every interface; here, because `responses` loads what resolution does not need."""
        resolution = self.resolution
        return schema.Record(
            handle=str(resolution.registered),
            state=resolution.state.label,
            values=schema.dump_values(resolution.values),
            seq=resolution.seq,
            changed=None if self.is_copy else iso_time(resolution.at),
            as_of=self.entry,
            aliases=self.aliases,
            by_template=resolution.by_template,
            template_base=None if resolution.base is None else str(resolution.base),
            query=resolution.query,
            fragment=resolution.fragment,
            copy=self.is_copy,
        )


def find_record(context: Context, query: Query, at: str | None, now: int, *, follow: bool) -> FoundRecord:
    """Resolve a handle now or at a time, if `follow` through its aliases. Raises `Refused`.

    A type that another service hosts resolves to its copy, which has no history.
    """
    snapshot = context.snapshot
    entry = None if at is None else seq_at_time(snapshot.reader, at, now)
    chain = resolve_aliases(snapshot, query.handle, entry).chain if follow else (query.handle,)
    if len(chain) > 1:
        query = replace(query, handle=chain[-1])
    copy = find_built_in_definition(query.handle) if entry is None else None
    if copy is not None and not snapshot.is_responsible(query.handle):
        values = select(copy.values, query.indexes, query.types)
        if not values:
            raise values_not_found(query)
        registered = copy.handle or query.handle
        return FoundRecord(Resolution(query.handle, registered, State.NORMAL, values, 0, 0), is_copy=True)
    return FoundRecord(resolve_at(context, query, entry, at), entry, tuple(map(str, chain[:-1])))

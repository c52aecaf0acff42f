"""Results of commands and queries as the structures of `perseid.schema`.

The HTTP API sends them and the command line prints them with `--json`, so both show the same fields.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from perseid.ledger.store.jobs import Job
from perseid.names.handle import Handle
from perseid.records.data_types import Definition
from perseid.records.encoding import iso_time, parse_json, to_base64, to_iso
from perseid.records.errors import InvalidData
from perseid.registry.access.permissions import Differences
from perseid.registry.access.roles import permission_names
from perseid.registry.access.tokens import TokenStatus
from perseid.registry.commands.access import AccessChange
from perseid.registry.commands.namespaces import Namespace
from perseid.registry.commands.transfer import LinkResult
from perseid.registry.commands.users import UserResult
from perseid.registry.jobs.rewrite import PlannedRewrite
from perseid.registry.jobs.runner import UndoIndex, display_kind, load_parameters
from perseid.registry.jobs.transfer import PlannedTransfer
from perseid.registry.jobs.undo import Conflict, UndoPreview
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.types import RegisteredType
from perseid.registry.queries.access import AccessList, Grantee, UserInfo, WithoutGroup, access_of, count_without
from perseid.registry.queries.aliases import AliasChain
from perseid.registry.queries.citation import FORMATTERS, Citation, to_json
from perseid.registry.queries.find import SearchResult
from perseid.registry.queries.history import RecordHistory, Version, VisibleVersion, resolve_at, seqs_between
from perseid.registry.queries.listing import ChangedRecord, ListedHandle, LogEntry
from perseid.registry.queries.namespaces import dump_policy, summarize
from perseid.registry.queries.prove import Consistency, SigningKey
from perseid.registry.queries.resolve import Query, get_authority_metadata
from perseid.registry.queries.suggest import Suggestions
from perseid.schema import access, jobs, namespaces, queries, records
from perseid.schema.imports import ImportResponse, RowProblemResponse
from perseid.schema.problems import DeletionInfo, PrefixInfo, Problem, Suggestion
from perseid.schema.records import dump_values

from .advice import Advice, from_data, to_data
from .context import Context, not_found
from .results import ChangeResult, Deleted, Explanation, Refused
from .snapshot import Snapshot

# Records


def to_changed(result: ChangeResult) -> records.RecordChanged:
    """Convert the result of a change."""
    return records.RecordChanged(str(result.handle), result.seq, result.warnings)


def to_aliases(aliases: AliasChain) -> records.Aliases:
    """Convert a chain of aliases."""
    return records.Aliases([str(each) for each in aliases.chain], aliases.end.value)


def to_linked(linked: LinkResult) -> records.LinkedHandles:
    """Convert two linked handles."""
    return records.LinkedHandles(tuple(map(str, linked.handles)), linked.seq)


def to_minted(
    handles: Sequence[object], seq: int, handles_per_item: int = 1, warnings: tuple[records.WarningInfo, ...] = ()
) -> records.MintedHandles:
    """Convert new handles; with two for each item, the second is that of the metadata record."""
    names = [str(handle) for handle in handles]
    metadata = names[1::handles_per_item] if handles_per_item > 1 else ()
    return records.MintedHandles(tuple(names[::handles_per_item]), tuple(metadata), seq, warnings)


def to_explanation(explanation: Explanation, advice: str) -> records.Explanation:
    """Convert an explanation, with the advice of the interface."""
    code = None if explanation.code is None else int(explanation.code)
    result = records.Explanation(
        explanation.allowed, explanation.reason, advice or None, explanation.rule or None, code, explanation.warnings
    )
    return with_advice_kind(result, explanation.advice)


# Search and history


def to_found(result: SearchResult) -> queries.FoundHandle:
    """Convert a search result."""
    return queries.FoundHandle(
        result.handle, result.state.label, result.seq, iso_time(result.at), dump_values(result.values)
    )


def to_summary(listed: ListedHandle) -> queries.HandleSummary:
    """Convert a handle of a list."""
    return queries.HandleSummary(listed.handle, listed.state.label, listed.seq)


def to_version(version: Version) -> queries.VersionResponse:
    """Convert a version of a record."""
    return queries.VersionResponse(
        version.seq,
        iso_time(version.at),
        version.action.name.lower(),
        version.state.label,
        dump_values(version.values),
        None if version.changed is None else to_changes(version.changed),
        version.redacted,
        version.interface or None,
        version.actor or None,
        version.note or None,
    )


def to_changes(differences: Differences) -> queries.ValueChanges:
    """Convert the differences between two versions."""
    old, new = (dump_values([pair[side] for pair in differences.modified]) for side in (0, 1))
    modified = [queries.ModifiedValue(after.index, before, after) for before, after in zip(old, new, strict=True)]
    return queries.ValueChanges(dump_values(differences.added), dump_values(differences.removed), modified)


def get_differences(
    context: Context, handle: Handle, earlier: str, later: str | None, clock: int
) -> queries.DifferencesResponse:
    """Compare a record at two times, as `seqs_between` reads them. Raises `Refused`."""
    first, last = seqs_between(context.snapshot.reader, earlier, later, clock)
    history = RecordHistory(context.snapshot, context.identity, handle)
    before, after = history.existing_at(first), history.existing_at(last)
    if before is None and after is None:
        raise not_found(history.stored)
    old, new = (() if version is None else version.values for version in (before, after))
    return queries.DifferencesResponse(
        str(history.stored.handle),
        to_state_at(first, before),
        to_state_at(last, after),
        to_changes(Differences.between(old, new)),
    )


def to_state_at(as_of: int, version: VisibleVersion | None) -> queries.StateAt:
    """Convert the state of a handle at an entry; `version` is None if no record was visible."""
    if version is None:
        return queries.StateAt(as_of)
    entry = version.entry
    return queries.StateAt(as_of, entry.seq, iso_time(entry.at), entry.state.label)


def to_entry(logged: LogEntry) -> queries.EntryResponse:
    """Convert a ledger entry."""
    return queries.EntryResponse(
        logged.seq,
        iso_time(logged.at),
        logged.action.name.lower(),
        logged.handle,
        logged.state.label,
        logged.interface or None,
        logged.actor or None,
        logged.note or None,
    )


def to_changed_handle(changed: ChangedRecord) -> queries.ChangedHandle:
    """Convert a handle that changed between two times."""
    return queries.ChangedHandle(
        changed.handle,
        changed.before,
        changed.after,
        changed.state_before.label,
        changed.state_after.label,
        iso_time(changed.at),
    )


# Proofs and citations


def to_consistency(proof: Consistency) -> queries.ConsistencyProof:
    """Convert a consistency proof."""
    path = [to_base64(each) for each in proof.path]
    return queries.ConsistencyProof(
        proof.old_size, to_base64(proof.old_root), proof.new_size, to_base64(proof.new_root), path
    )


def to_ledger_key(key: SigningKey) -> queries.LedgerKey:
    """Convert a signing key."""
    since, until = (None if entry is None else entry.seq for entry in (key.since, key.until))
    return queries.LedgerKey(str(key.key), since, until)


def to_citation(citation: Citation, style: queries.Style) -> queries.CitationResponse:
    """Convert a citation, with its text in a style."""
    fields = {"citation": FORMATTERS[style](citation), "style": style, **to_json(citation)}
    return msgspec.convert(fields, queries.CitationResponse)


# Namespaces, types and tokens


def to_namespace(snapshot: Snapshot, prefix: str) -> namespaces.Namespace:
    """Summarize a namespace."""
    return msgspec.convert(summarize(snapshot, prefix), namespaces.Namespace)


def to_created_namespace(namespace: Namespace) -> namespaces.CreatedNamespace:
    """Convert a new namespace."""
    policy = namespace.policy
    return namespaces.CreatedNamespace(
        namespace.prefix,
        policy.profile,
        namespace.seq,
        policy.default_creator or None,
        namespace.types_elsewhere,
        namespace.warnings,
    )


def to_policy(prefix: str, policy: Policy) -> namespaces.PolicyResponse:
    """Convert the policy of a namespace."""
    return namespaces.PolicyResponse(prefix, policy.to_toml(), dump_policy(policy))


def get_authority(context: Context, query: Query) -> namespaces.Authority:
    """Return the authority metadata of a handle. Raises `Refused`."""
    resolved = resolve_at(context, query, None)
    metadata = get_authority_metadata(context.snapshot, context.snapshot.stored(resolved.base or query.handle))
    plain = {} if metadata is None else metadata.to_json()
    fields = {"handle": str(resolved.registered), "required": metadata is not None, **plain}
    return msgspec.convert(fields, namespaces.Authority)


def to_type(registered: RegisteredType, *, check: bool = False) -> namespaces.TypeResponse:
    """Convert a registered type. Its definition is checked on request only: that can take half a second."""
    handle, definition = str(registered.handle), registered.definition
    if definition is None:
        return namespaces.TypeResponse(
            handle, registered.seq, description=registered.description or "", problem=registered.problem
        )
    return namespaces.TypeResponse(
        handle,
        registered.seq,
        definition.name,
        definition.description,
        definition.pattern,
        None if definition.schema is None else parse_json(definition.schema),
        definition.example,
        _definition_problem(definition) if check else "",
        registered.is_copy,
    )


def _definition_problem(definition: Definition) -> str:
    """Return why a definition of another version or service cannot be used."""
    try:
        definition.check()
    except InvalidData as problem:
        return str(problem)
    return ""


def to_token(item: TokenStatus, now: int) -> namespaces.TokenResponse:
    """Convert a token and its state at a time."""
    token = item.token
    return namespaces.TokenResponse(
        id=token.id,
        label=token.label,
        issuer=token.issuer,
        scopes=tuple(token.scope.scope_names),
        namespaces=token.scope.namespaces,
        created=to_iso(token.created),
        expires=to_iso(token.expires),
        state=item.state(now),
        seq=item.seq,
        revoked=None if item.revoked is None else to_iso(item.revoked),
        last_used=None if item.used is None else to_iso(item.used)[:10],
    )


# Access


def to_access(found: AccessList) -> access.Access:
    """Convert who can do what."""
    without = tuple(map(_to_without, found.without))
    return access.Access(
        found.on, str(found.handle), [_to_access_entry(each) for each in found.grantees], found.is_truncated, without
    )


def to_access_changed(
    context: Context, change: AccessChange, *, revokes: bool, dry_run: bool = False
) -> access.AccessChanged:
    """Convert the result of granting or revoking, with what the new state of the records says."""
    is_prefix = "/" not in change.on
    without = count_without(context.snapshot, change.on, change.roles) if is_prefix and not revokes else ()
    remaining: tuple[Grantee, ...] = ()
    if revokes and not dry_run:
        with suppress(Refused):  # the caller revoked their own right to see it
            remaining = access_of(context, change.on, change.identity)
    return access.AccessChanged(
        change.on,
        str(change.identity) if change.identity.index else change.identity.handle,
        change.is_changed,
        change.handles,
        change.policy,
        change.seq,
        tuple(map(_to_without, without)),
        tuple(map(_to_access_entry, remaining)),
    )


def _to_access_entry(grantee: Grantee) -> access.AccessEntry:
    return access.AccessEntry(
        str(grantee.identity),
        permission_names(grantee.permissions),
        grantee.state,
        grantee.role,
        grantee.value,
        tuple(map(str, grantee.groups)),
        grantee.setting,
    )


def _to_without(without: WithoutGroup) -> access.RecordsWithoutGroup:
    return access.RecordsWithoutGroup(without.role, str(without.group), without.count, without.is_complete)


def to_user(user: UserInfo) -> access.User:
    """Convert a user."""
    return access.User(user.handle, user.state, user.identities, user.name, user.email)


def to_user_key(result: UserResult, secret: str = "", advice: str = "") -> access.UserKey:
    """Convert a user with a new key; `secret` is shown only once."""
    return access.UserKey(
        str(result.handle), result.identity, result.seq, secret, result.tokens, advice, result.warnings
    )


def to_user_disabled(result: UserResult) -> access.UserDisabled:
    """Convert a disabled user."""
    keys = tuple([f"{index}:{result.handle}" for index in result.keys])
    return access.UserDisabled(str(result.handle), bool(keys or result.tokens), keys, result.tokens, result.seq)


# Problems


P = TypeVar("P", bound=Problem | records.Explanation)


def with_advice_kind(problem: P, advice: Advice | None) -> P:
    """Return a problem with its advice as data, which another interface can phrase (`to_advice`)."""
    if advice is None:
        return problem
    kind, parameters = to_data(advice)
    return replace(problem, advice_kind=kind, advice_parameters=parameters)


def to_advice(
    problem: Problem | records.Explanation | records.WarningInfo | RowProblemResponse | ImportResponse,
) -> Advice | None:
    """Return the advice in a response of a server; None if it has none, or one of a newer version."""
    return from_data(problem.advice_kind, problem.advice_parameters)


def phrase_warnings(
    warnings: Iterable[records.WarningInfo], to_text: Callable[[Advice], str]
) -> tuple[records.WarningInfo, ...]:
    """Return warnings with their advice in the words of an interface.

    Those of planned changes need none: they are about URLs, and that advice reads the same everywhere.
    """
    found = [(each, to_advice(each)) for each in warnings]
    return tuple([each if advice is None else replace(each, advice=to_text(advice)) for each, advice in found])


def with_deletion(problem: P, refused: Refused) -> P:
    """Return a problem about a deleted handle with the time of the deletion."""
    if not isinstance(refused, Deleted):
        return problem
    return replace(problem, deleted=DeletionInfo(iso_time(refused.at), refused.last))


def with_suggestions(problem: P, found: Suggestions) -> P:
    """Return a problem about a missing handle with what may have been meant."""
    suggestions = msgspec.convert([each.to_json() for each in found.suggestions], tuple[Suggestion, ...])
    known = found.prefix
    prefix = None if known is None else PrefixInfo(known.prefix, known.status, known.why, known.related)
    return replace(problem, suggestions=suggestions, prefix=prefix)


# Jobs


def to_job(job: Job, undos: UndoIndex, *, is_running: bool = False, problem: Problem | None = None) -> jobs.JobResponse:
    """Convert a job; `problem` says why an unfinished one failed."""
    state = undos.state(job, is_running=is_running)
    return jobs.JobResponse(
        job.id,
        display_kind(job),
        state,
        load_parameters(job),
        job.done,
        job.total or None,
        iso_time(job.started_at),
        iso_time(job.ended_at) if job.ended_at else None,
        job.actor,
        job.note,
        undos.effective_undo(job.id),
        problem if state is jobs.JobState.UNFINISHED else None,
    )


def to_planned_record(planned: PlannedRewrite) -> jobs.PlannedRecord:
    """Convert the planned changes of one record."""
    changes = []
    for pair in planned.changes:
        old, new = dump_values(pair)
        changes.append(jobs.PlannedChange(new.index, new.type, old.data, new.data, planned.find_warnings(pair)))
    return jobs.PlannedRecord(planned.handle, changes, [value.index for value in planned.left])


def to_planned_transfer(planned: PlannedTransfer) -> jobs.PlannedTransfer:
    """Convert the planned transfer of one record."""
    reason = None if planned.refused is None else planned.refused.reason
    return jobs.PlannedTransfer(planned.handle, list(planned.administrators), planned.refused is None, reason)


def to_conflict(conflict: Conflict) -> jobs.UndoConflictResponse:
    """Convert a record that prevents an undo."""
    return jobs.UndoConflictResponse(conflict.handle, conflict.seq, conflict.why, conflict.changed_later)


def to_undo_plan(preview: UndoPreview, problem: Problem | None = None) -> jobs.UndoPlan:
    """Convert the complete preview of an undo; `problem` says why a record cannot be undone."""
    conflicts = [to_conflict(each) for each in preview.conflicts[: jobs.MAX_CONFLICTS]]
    count = preview.conflict_count
    return jobs.UndoPlan(
        preview.original.id,
        preview.total,
        not count,
        count,
        conflicts,
        preview.tombstones,
        preview.reserved,
        preview.sample,
        problem,
    )

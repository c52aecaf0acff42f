"""Creation of complete namespaces: policy, prefix handle, types and the default creator, in one commit.

If the policy requires a creator and names none, the namespace gets one: a record that names itself (A4). Its handle is
minted inside the commit, and the same commit stores the policy with it. So there is never a namespace whose policy
nobody can meet, and a retry with the same idempotency key gets the same result.

Later parts are decided as if the earlier ones existed already (`_ProjectedSnapshot`): the permission to create handles
under a prefix is in its prefix handle, which is as new as the prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perseid.ledger.log.entry import MICROSECONDS_PER_SECOND, Action, Draft, Entry, Kind, Slot
from perseid.ledger.log.reader import LogReader
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.record import Value
from perseid.registry.access.permissions import HasRole, RequiredScope, Requirement, Role, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context, Deferrable, Plan, Stage, defer
from perseid.registry.policy.policy import Policy
from perseid.registry.results import ChangeResult, Refused
from perseid.registry.snapshot import Snapshot
from perseid.schema.namespaces import Scope
from perseid.wire.codes import ResponseCode

from .composition import compose
from .minting import Mint, RetryLater
from .namespaces import AddNamespace, Namespace, check_prefix


@dataclass(frozen=True, slots=True)
class CreateNamespace(Deferrable):
    """Create a namespace with everything it needs, including a default creator if the policy requires one."""

    namespace: AddNamespace
    since: int | None = None
    """When the first attempt to mint the creator was made; see `minting.RetryLater`."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """Plan a copy of the prefix handle if another service hosts it, the namespace, and its creator."""
        if context.stage is not Stage.COMMIT:
            return defer(self)
        namespace = self.namespace
        copied = self._copy_prefix_handle(context)
        namespace_plan = namespace.namespace_plan(_with_drafts(context, copied))
        warnings = namespace.find_warnings(context.snapshot)
        creator = self._create_creator(_with_drafts(context, (*copied, *namespace_plan.drafts())))
        policy = replace(namespace.policy, default_creator=creator[0].handle) if creator else namespace.policy
        return Plan(
            lambda seq: Namespace(namespace.prefix, policy, seq, namespace_plan.types_elsewhere, warnings),
            (*namespace_plan.drafts(policy), *copied, *creator),
            reason=context.reasons[-1],
        )

    def _copy_prefix_handle(self, context: Context) -> tuple[Draft, ...]:
        """The copy of the prefix handle, if this server is not responsible for it."""
        check_prefix(self.namespace.prefix)
        if context.snapshot.is_responsible(Handle(PREFIX_OF_PREFIXES, self.namespace.prefix)):
            return ()
        return CopyPrefixHandle(self.namespace.prefix, self.namespace.values).decide(context).drafts

    def _create_creator(self, context: Context) -> tuple[Draft, ...]:
        """The entry of the creator, if one is needed."""
        prefix, policy = self.namespace.prefix, self.namespace.policy
        if not policy.authority or policy.default_creator:
            return ()
        try:
            return mint_creator(prefix, policy, self.since).decide(context).drafts
        except RetryLater:
            raise
        except Refused as refused:
            reason = f"The default creator of namespace {display_name(prefix)} cannot be created: {refused.reason}"
            raise Refused(refused.code, reason, AdviceKind.NAME_CREATOR(), refused.rule) from refused


@dataclass(frozen=True, slots=True)
class CopyPrefixHandle(Deferrable):
    """Store a copy of a prefix handle that another service hosts. It is used for authorization and never served."""

    prefix: str
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """Server administrators only; nothing happens if there is a copy already."""
        check_prefix(self.prefix)
        action, servers = f"store a copy of {self.prefix}", HasRole((Role.SERVER,))
        context.require(
            Requirement(
                action, ((servers,),), required_scope=RequiredScope.for_namespace(self.prefix, Scope.NAMESPACES)
            )
        )
        handle = Handle(PREFIX_OF_PREFIXES, self.prefix)
        if context.snapshot.is_responsible(handle):
            reason = f"{display_name(handle)} is hosted here, so no copy is needed"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, AdviceKind.CREATE_NAMESPACE())
        stored = context.snapshot.stored(handle)
        if stored.entry is not None:
            return Plan(lambda _: ChangeResult(stored.handle, stored.seq), reason=context.reasons[-1])
        draft = context.draft(stored, Action.CREATE, compose(context, stored, self.values, creates=True))
        return Plan(lambda seq: ChangeResult(stored.handle, seq), (draft,), reason=context.reasons[-1])


def mint_creator(prefix: str, policy: Policy, since: int | None = None) -> Mint:
    """The command that mints the default creator of a namespace: a record that names itself as creator."""
    text = Value.text(1, "DESC", f"The creator of identifiers under {prefix}")
    return Mint(prefix, values=(text,), own_handle=policy.creator_type, since=since)


class _ProjectedSnapshot(Snapshot):
    """The snapshot as it will be after some entries are appended; what is read is noted as usual."""

    def __init__(self, snapshot: Snapshot, drafts: Sequence[Draft], now: int) -> None:
        super().__init__(None, snapshot.rules)
        self._snapshot = snapshot
        self._projected = {draft.key: _entry(draft, now) for draft in drafts}
        self.usage = snapshot.usage

    @property
    def reader(self) -> LogReader:
        """The state of the ledger itself, without those entries."""
        return self._snapshot.reader

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, noted as a precondition, or the one that will replace it."""
        entry = self._snapshot.entry(key, new=new)
        return self._projected.get(key, entry)


def _with_drafts(context: Context, drafts: Sequence[Draft]) -> Context:
    """The context after some entries are appended."""
    return replace(context, snapshot=_ProjectedSnapshot(context.snapshot, drafts, context.now)) if drafts else context


def _entry(draft: Draft, now: int) -> Entry:
    """The future entry of a draft, without the number, time and salts that the commit assigns."""
    actor, note = f"{draft.interface} {draft.actor}".encode(), draft.note.encode()
    values = [Slot.commit(Kind.VALUE, b"", value.to_bytes()) for value in draft.values]
    return Entry(
        0,
        now * MICROSECONDS_PER_SECOND,
        draft.action,
        draft.state,
        draft.exact,
        draft.handle,
        b"",
        Slot.commit(Kind.ACTOR, b"", actor),
        Slot.commit(Kind.NOTE, b"", note),
        tuple(values),
    )

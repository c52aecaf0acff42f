"""Namespaces made whole: rules, prefix handle, types, and the creator of their identifiers, in one commit.

Where the rules ask every record for a creator and name none, the namespace gets one: a record that names itself (A4).
Its name is made inside the commit, as all new names are, and the policy that names it is written by the same commit.
So no namespace is ever left whose rules nobody can keep, whoever is refused or killed when; and whoever asks again with
the same key gets the same answer.

What is made along is decided as if what comes before it were there already (`_AsIf`): who may make names under a prefix
stands in its prefix handle, which is as new as the prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perseid.ledger.log.entry import MICROSECONDS_PER_SECOND, Action, Draft, Entry, Kind, Slot
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.requests import LeaseProvider
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.value import Value
from perseid.registry.access.permissions import HasRole, Requirement, Role, display_name
from perseid.registry.access.scopes import RequiredScope, Scope
from perseid.registry.context import Context, Plan
from perseid.registry.policy.policy import Policy
from perseid.registry.results import ChangeResult, MintResult, Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .composition import compose
from .minting import Mint, MintInputs
from .namespaces import AddNamespace, Namespace, check_prefix


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Make a namespace with all that it needs: the creator of its identifiers, where its rules ask for one."""

    inputs: MintInputs
    namespace: AddNamespace
    since: int | None = None
    """When an earlier attempt asked for the creator's name; see `minting.MustWait`."""

    def decide(self, context: Context) -> Plan[Namespace]:
        """A copy of the prefix handle, where another service serves that; the namespace; and its creator."""
        wanted = self.namespace
        copied = self._copied(context)
        namespace_plan = wanted.namespace_plan(_with_drafts(context, copied))
        creating = self._creating(_with_drafts(context, (*copied, *namespace_plan.drafts())))
        policy = [wanted.policy]  # as it is written in the end

        def make(lender: LeaseProvider) -> Sequence[Draft]:
            namespace_plan.check(lender)
            records: Sequence[Draft] = ()
            if creating is not None and creating.make is not None:
                records = creating.make(lender)
                policy[:] = [replace(wanted.policy, default_creator=records[0].handle)]
            return (*namespace_plan.drafts(policy[0]), *copied, *records)

        def answer(seq: int) -> Namespace:
            return Namespace(wanted.prefix, policy[0], seq, namespace_plan.types_elsewhere)

        return Plan(answer, make=make, reason=context.reasons[-1])

    def _copied(self, context: Context) -> tuple[Draft, ...]:
        """The copy of the prefix handle, if this server does not answer for that."""
        check_prefix(self.namespace.prefix)
        if context.snapshot.is_responsible(Handle(PREFIX_OF_PREFIXES, self.namespace.prefix)):
            return ()
        return CopyPrefixHandle(self.namespace.prefix, self.namespace.values).decide(context).drafts

    def _creating(self, context: Context) -> Plan[MintResult] | None:
        """The creator, if it has to be made."""
        wanted = self.namespace
        if not wanted.policy.authority or wanted.policy.default_creator:
            return None
        try:
            return mint_creator(self.inputs, wanted.prefix, wanted.policy, self.since).decide(context)
        except Refused as refused:
            reason = f"the namespace {display_name(wanted.prefix)} needs a creator of its identifiers: {refused.reason}"
            advice = "name a creator that exists, or ask as somebody who may also mint names there"
            raise Refused(refused.code, reason, advice, refused.rule) from refused


@dataclass(frozen=True, slots=True)
class CopyPrefixHandle:
    """Keep a copy of a prefix handle that another service serves: it counts for authorisation and is never served."""

    prefix: str
    values: tuple[Value, ...]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        """Server administrators; nothing happens if there is a copy already."""
        check_prefix(self.prefix)
        action, servers = f"keep a copy of {self.prefix}", HasRole((Role.SERVER,))
        context.require(
            Requirement(
                action, ((servers,),), required_scope=RequiredScope.for_namespace(self.prefix, Scope.NAMESPACES)
            )
        )
        handle = Handle(PREFIX_OF_PREFIXES, self.prefix)
        if context.snapshot.is_responsible(handle):
            reason = f"{display_name(handle)} is served here, so there is no copy of it to keep"
            raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "make the namespace")
        stored = context.snapshot.stored(handle)
        if stored.entry is not None:
            return Plan(lambda _: ChangeResult(stored.handle, stored.seq), reason=context.reasons[-1])
        draft = context.draft(stored, Action.CREATE, compose(context, stored, self.values, creates=True))
        return Plan(lambda seq: ChangeResult(stored.handle, seq), (draft,), reason=context.reasons[-1])


def mint_creator(inputs: MintInputs, prefix: str, policy: Policy, since: int | None = None) -> Mint:
    """The order for the record that stands for the creator of a namespace's identifiers, and names itself as its own.

    `since` is as in `Mint`.
    """
    text = f"The creator of identifiers under {prefix}"

    def values(handle: Handle, _: int) -> Sequence[Value]:
        return (Value.text(1, "DESC", text), Value.text(2, policy.creator_type, str(handle)))

    return Mint(inputs, prefix, values=values, since=since)


class _ProjectedSnapshot(Snapshot):
    """Facts as they will be when some entries have been appended. What is read all the same is noted as ever."""

    def __init__(self, snapshot: Snapshot, drafts: Sequence[Draft], now: int) -> None:
        super().__init__(None, snapshot.rules)
        self._snapshot = snapshot
        self._made = {draft.key: _entry(draft, now) for draft in drafts}
        self.usage = snapshot.usage

    @property
    def reading(self) -> LogReader:
        """The state of the ledger itself, which has none of those entries."""
        return self._snapshot.reading

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest entry of a record, on which the decision rests, or the one that is about to take its place."""
        found = self._snapshot.entry(key, new=new)
        return self._made.get(key, found)


def _with_drafts(context: Context, drafts: Sequence[Draft]) -> Context:
    """The same circumstances, when some entries have been appended."""
    return replace(context, snapshot=_ProjectedSnapshot(context.snapshot, drafts, context.now)) if drafts else context


def _entry(draft: Draft, now: int) -> Entry:
    """What an entry will hold; its number, time and salts only the commit can give."""
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

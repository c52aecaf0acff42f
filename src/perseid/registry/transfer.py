"""Handing names over, and linking them with each other.

A transfer gives records a new owner: all their administrators are replaced by one, whose key or group is named
`INDEX:HANDLE`, so that the rights of the old ones end. Creator and date of creation stay (A8). Everything under a
prefix is transferred in many commits that count as one operation (`units`): the note of each entry names it, whoever
looks at the log sees them together, what was interrupted is finished by doing it again, and it can be undone.

What is left to the new owner of a prefix: the groups in its prefix handle, and the default administrators in its
policy. Both are values that only they can judge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perseid.ledger import operations
from perseid.ledger.entry import Action, Draft, State
from perseid.ledger.keys import record_key
from perseid.ledger.operations import Operation
from perseid.names import CaseRule, Handle, InvalidName
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.names.prefixes import is_derived
from perseid.records import Admin, InvalidData
from perseid.records.admin import AdminPermission
from perseid.records.record import ascending
from perseid.records.types import HS_ADMIN
from perseid.records.value import Value, ValueRef
from perseid.wire.codes import ResponseCode

from . import demands, units
from .authority_metadata import first_readable, name_key, of_type, read_stored_party
from .compose import compose
from .context import Context, Plan, administrators, not_found, still_reserved
from .demands import Demand, Differences, Membership, Role, addition, is_admin, shown
from .facts import Held
from .facts import of_type as of_base_type
from .identity import Identity
from .life import held_for, with_value
from .namespaces import checked_prefix, namespaces
from .operations import require_identity, written
from .policy import Policy
from .registry import Registry
from .results import Changed, Refused
from .scopes import Reach, Word

MAX_RECORDS: Final = 1_000
"""Records handed over in one commit: the same bound as for new names, for the same reasons."""

KIND: Final = "transfer"
"""What the unit is called that a transfer of many names is."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Give one record a new owner."""

    handle: Handle
    to: ValueRef

    def decide(self, context: Context) -> Plan[Changed]:
        """What the change of administrators needs on the record: MODIFY_ADMIN, and REMOVE_ADMIN if there are more."""
        held = context.own(self.handle)
        require_identity(context, f"transfer {shown(self.handle)}")
        wanted = _with_owner(held, named_owner(self.to))
        ways = (_transferring(held, wanted), demands.read(held.handle))
        if not held.exists or not (held.is_public or any(map(context.may, ways))):
            raise not_found(held)
        if Differences.between(held.values, wanted).permissions:
            context.demand(_transferring(held, wanted))  # before anything is told of the new owner's record
        owner = checked_owner(context, self.to)
        values = _handed_over(context, held, owner)
        if values is None:
            return Plan(lambda _: Changed(held.handle, held.seq), reason=f"{shown(held.asked)} has that owner already")
        return written(context, held, Action.UPDATE, values, held.state)


@dataclass(frozen=True, slots=True)
class TransferAll:
    """Everything under a prefix, or all names that begin alike, for a new owner; see `transfer`."""

    where: str
    """A prefix; or the beginning of names, as in `12345/abc`."""
    to: ValueRef
    derived: bool = False
    """Whether the prefixes derived from it go along, with all that is under them."""
    operation: str = field(default_factory=units.new_name)
    """The name under which the log has it. Who goes on with an operation gives its name again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a transfer has come; so far is durable."""

    operation: str
    looked_at: int
    """Records, as often as they were looked at."""
    transferred: int
    """Records that got the new owner; the others had it."""


def transfer(registry: Registry, what: TransferAll, who: Identity, door: str, note: str = "") -> Iterator[Progress]:
    """Hand over everything under a prefix, at most `MAX_RECORDS` to a commit, and yield after each.

    It takes LIST_HANDLES on the prefix to begin. Rights are asked for record by record, as for single changes: the
    first that is missing ends it with `Refused`, and what is done by then stays done. The prefix handle comes after the
    names, so that whoever hands over can go on after an interruption; and then the names once more, for those that
    were made meanwhile.
    """
    looked_at = transferred = 0
    ranges = registry.do(_Start(what), who, door)
    unit = _unit(registry, what, who, door, note)
    for first, end in ranges:
        at: bytes | None = first
        while at is not None:
            page = registry.do(_Page(what.where, what.to, at, end), who, door, units.noted(unit), step_of=unit.id)
            looked_at += page.looked_at
            transferred += page.transferred
            at = page.following
            yield Progress(what.operation, looked_at, transferred)
    units.end(registry, unit)


def _unit(registry: Registry, what: TransferAll, who: Identity, door: str, note: str) -> Operation:
    """The unit that a transfer is: a new one, or the one that is gone on with."""
    asked: dict[str, object] = {"where": what.where, "to": str(what.to), "derived": what.derived}
    if operations.find(registry.ledger.log, what.operation) is not None:
        known = units.found(registry, who, what.operation)
        if known.kind != KIND or known.ended or units.asked(known) != asked:
            reason = f"{known.id} is another operation, or has ended"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "give no name, and it is a new operation")
        return known
    return units.begin(registry, KIND, asked, who, door, note, name=what.operation)


@dataclass(frozen=True, slots=True)
class Linked:
    """Two names that lead to each other."""

    handles: tuple[Handle, Handle]
    seq: int
    """The first entry that made it so; 0 if it was so already."""


@dataclass(frozen=True, slots=True)
class LinkVersion:
    """Link a work, whose name leads to the latest version, with one fixed version of it, an expression (S3)."""

    work: Handle
    expression: Handle

    def decide(self, context: Context) -> Plan[Linked]:
        """ADD_VALUE on both. A work has many expressions, an expression one work."""
        work, expression = _linkable(context, self.work, self.expression)
        ways = (
            _Way(work, expression, "expression_type", many=True),
            _Way(expression, work, "work_type", many=False),
        )
        return _linking(context, ways)


@dataclass(frozen=True, slots=True)
class LinkMetadata:
    """Link the name of a thing with the name of its metadata record (S12)."""

    thing: Handle
    metadata: Handle

    def decide(self, context: Context) -> Plan[Linked]:
        """ADD_VALUE on both. Each has one of the other."""
        thing, metadata = _linkable(context, self.thing, self.metadata)
        ways = (_Way(thing, metadata, "metadata_type", many=False), _Way(metadata, thing, "object_type", many=False))
        return _linking(context, ways)


# Owners


def named_owner(owner: ValueRef) -> Admin:
    """An administrator with all permissions; refused if that is no name."""
    try:
        Handle.parse(owner.handle)
    except InvalidName as problem:
        reason = f"{shown(str(owner))} cannot own anything: {problem}"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "name an owner as INDEX:HANDLE", problem.rule) from problem
    return Admin(owner)


def checked_owner(context: Context, owner: ValueRef) -> Admin:
    """The same; refused also if nobody could prove to be it. Whoever asks must have the right to transfer."""
    admin = named_owner(owner)
    handle = Handle.parse(owner.handle)
    if context.facts.is_responsible(handle):
        held = context.facts.held(handle)
        missing = "" if held.exists else f"there is no record of {shown(handle)}, whose prefix is homed here"
        if held.exists and owner.index and owner.index not in {value.index for value in held.values}:
            missing = f"{shown(handle)} has no value with the index {owner.index}"
        if missing:
            reason = f"{shown(str(owner))} cannot own anything: {missing}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "name a key or a group that exists", "S1")
    return admin


def makers_of(context: Context, prefix: str) -> list[Admin]:
    """Those who may make names under a prefix, as owners of names that nobody else is named for."""
    found = []
    for value in of_base_type(context.facts.held(Handle(PREFIX_OF_PREFIXES, prefix)).values, HS_ADMIN):
        try:
            admin = Admin.from_bytes(value.data)
        except InvalidData:
            continue  # as authorisation does: what cannot be read gives nobody a right
        if AdminPermission.ADD_HANDLE in admin.permissions:
            found.append(Admin(admin.administrator))
    return found


# Transferring


@dataclass(frozen=True, slots=True)
class _Turned:
    """What one page of a transfer came to."""

    looked_at: int
    transferred: int
    following: bytes | None
    """Where the next page begins; None if there is none."""


@dataclass(frozen=True, slots=True)
class _Page:
    """Give the next records of a range a new owner."""

    where: str
    to: ValueRef
    first: bytes
    end: bytes

    def decide(self, context: Context) -> Plan[_Turned]:
        require_identity(context, f"transfer {shown(self.where)}")
        owner = checked_owner(context, self.to)
        page = context.facts.reading.names(self.first, self.end, MAX_RECORDS)
        chunk = units.Chunk()
        looked_at = 0
        following = page[-1].key + b"\0" if len(page) == MAX_RECORDS else None
        for entry in page:
            if chunk.is_full:
                following = entry.key
                break
            held = context.facts.held(Handle.keepable(entry.handle))
            if held.key != entry.key or not held.exists or not context.facts.is_responsible(held.handle):
                continue  # what stands under another key ends that of another era
            looked_at += 1
            values = _handed_over(context, held, owner)
            if values is not None:
                chunk.add(context.draft(held, Action.UPDATE, values, held.state))
        turned = _Turned(looked_at, len(chunk.drafts), following)
        return Plan(lambda _: turned, tuple(chunk.drafts), reason=context.reasons[-1] if context.reasons else "")


def _seeing_all(prefix: str) -> Demand:
    """The right to see all names under a prefix, reserved and unpublished ones included."""
    listing = demands.list_handles(prefix)
    ways = (*listing.alternatives, (Membership((Role.SERVER,)),))
    return replace(listing, alternatives=ways, reach=Reach.under(prefix, Word.TRANSFER))


@dataclass(frozen=True, slots=True)
class _Start:
    """Find out what a transfer has to go through."""

    what: TransferAll

    def decide(self, context: Context) -> Plan[list[tuple[bytes, bytes]]]:
        """The right to see the names together: what is refused later names them, reserved ones included."""
        prefix, _, lead = self.what.where.partition("/")
        checked_prefix(prefix)
        require_identity(context, f"transfer {shown(self.what.where)}")
        if not context.facts.is_responsible(Handle(prefix, "…")):
            advice = f"ask the service of the prefix {shown(prefix)}, or home the prefix here"
            raise Refused(ResponseCode.SERVER_NOT_RESP, "that prefix doesn't live here", advice)
        policy = context.facts.policy(prefix)
        # Also where the policy opens the list: what is refused later names records that no list shows.
        context.demand(_seeing_all(prefix))
        if self.what.derived:
            for below in namespaces(context.facts.reading):
                if is_derived(below, prefix):
                    context.demand(_seeing_all(below))
        if lead and self.what.derived:
            reason = f"{shown(self.what.where)} is no prefix, so no prefix is derived from it"
            raise Refused(ResponseCode.INVALID_HANDLE, reason, f"transfer {shown(prefix)} as a whole", "H6")
        checked_owner(context, self.what.to)
        exact = policy.case is CaseRule.SENSITIVE
        steps = [_beginning(record_key(self.what.where, exact=exact))] if lead else _steps(prefix, self.what.derived)
        return Plan(lambda _: steps, reason=context.reasons[-1] if context.reasons else "")


def _steps(prefix: str, derived: bool) -> list[tuple[bytes, bytes]]:
    """The ranges of keys that are gone through for a prefix, one after the other."""
    # Keys have folded prefixes, so all that is derived from `12345` begins with `12345.`
    above = record_key(f"{PREFIX_OF_PREFIXES}/{prefix}")
    names, handles = [_beginning(record_key(f"{prefix}/"))], [(above, above + b"\0")]
    if derived:
        names.append(_beginning(record_key(f"{prefix}.")))
        handles.append(_beginning(record_key(f"{PREFIX_OF_PREFIXES}/{prefix}.")))
    return [*names, *handles, *names]


def _beginning(octets: bytes) -> tuple[bytes, bytes]:
    """The range of keys that begin so. The last octet of UTF-8 is never the highest there is."""
    return octets, octets[:-1] + bytes((octets[-1] + 1,))


def _handed_over(context: Context, held: Held, owner: Admin) -> Sequence[Value] | None:
    """The values of a record with its new owner, if whoever asks may give it one; None if it has that one already."""
    values = _with_owner(held, owner)
    if ascending(values) == ascending(held.values):
        return None
    context.demand(_transferring(held, values))
    return compose(context, held, values)


def _transferring(held: Held, values: Sequence[Value]) -> Demand:
    """The permissions that each single change of administrators needs; never none, so that nobody is let in."""
    needed = Differences.between(held.values, values).permissions or addition(Value(1, HS_ADMIN, b""))
    return demands.on_record(f"transfer {shown(held.handle)}", needed, held.handle, Word.TRANSFER)


def _with_owner(held: Held, owner: Admin) -> tuple[Value, ...]:
    """A record whose only administrator is the owner, and whose only owner that is where the policy tells them apart.

    The value takes the place of the first administrator, with its life and who may read it.
    """
    former = [value for value in held.values if is_admin(value)]
    rest = [value for value in held.values if not is_admin(value)]
    admins = [replace(former[0], data=owner.to_bytes())] if former else administrators(rest, held.policy, [owner])
    return (*_with_owner_value(held, rest, owner.administrator.handle), *admins)


def _with_owner_value(held: Held, values: Sequence[Value], owner: str) -> Sequence[Value]:
    """Where owners have a type of their own: the new one in the place of the others, unless it is the creator."""
    policy = held.policy
    if not (policy.authority and policy.owner_type) or held.state is State.RESERVED:
        return values
    former = of_type(values, policy.owner_type)
    others = [value for value in values if value not in former]
    creator = first_readable(of_type(values, policy.creator_type), read_stored_party)
    party = Handle.keepable(owner)
    if creator is not None and name_key(policy, held.handle, creator) == name_key(policy, held.handle, party):
        return others
    if former:
        return [*others, replace(former[0], data=owner.encode())]
    return with_value(others, policy, policy.owner_type, owner)


# Linking


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction of a link."""

    held: Held
    to: Held
    key: str
    """The policy's key for the type of the value."""
    many: bool
    """Whether a record may have several links of the type."""

    @property
    def type(self) -> str:
        """The type of the value, by the policy of the record that holds it."""
        type_: str = getattr(self.held.policy, self.key)
        return type_


def _linkable(context: Context, one: Handle, other: Handle) -> tuple[Held, Held]:
    """Two records of this server, for whose administrators somebody acts."""
    found = []
    for handle in (one, other):
        held = held_for(context, handle, "link", addition(Value.text(1, "URL", "")), Word.UPDATE)
        if held.state is State.RESERVED:
            raise still_reserved(held)
        if held.state is State.TOMBSTONE:
            reason = f"{shown(handle)} is a tombstone, and leads nowhere but to its replacement"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "link the replacement", "S8")
        found.append(held)
    if found[0].key == found[1].key:
        reason = f"{shown(one)} cannot be linked with itself"
        raise Refused(ResponseCode.INVALID_VALUE, reason, "name two handles", "S3")
    return found[0], found[1]


def _linking(context: Context, ways: tuple[_Way, _Way]) -> Plan[Linked]:
    """The values that are missing, in one commit."""
    drafts: list[Draft] = []
    for way in ways:
        held, policy = way.held, way.held.policy
        present = of_type(held.values, way.type)
        if any(_leads_to(context, value, way.to) for value in present):
            continue
        if present and not way.many:
            raise _linked_otherwise(held, policy, way.key, present[0])
        values = compose(context, held, with_value(held.values, policy, way.type, str(way.to.handle)))
        drafts.append(context.draft(held, Action.UPDATE, values, held.state))
    handles = (ways[0].held.handle, ways[1].held.handle)
    return Plan(lambda seq: Linked(handles, seq), tuple(drafts), reason=context.reasons[-1])


def _leads_to(context: Context, value: Value, to: Held) -> bool:
    target = first_readable([value], read_stored_party)
    return target is not None and context.facts.held(target).key == to.key


def _linked_otherwise(held: Held, policy: Policy, key: str, value: Value) -> Refused:
    reason = f"value {value.index} of {shown(held.asked)} leads to another handle already, and there is one such link"
    advice = f"remove that value first; the policy of this namespace says: {policy.line(key)}"
    return Refused(ResponseCode.INVALID_VALUE, reason, advice, policy.line(key))

"""Changes that are made only if a record is what somebody has seen: nobody overwrites what they do not know of.

A tag stands for a state of a record. What the public is shown has the tag of what the public may read, which anybody
can compute from it, and which tells nothing of the rest; or, where it is told which entry is the record's latest, a tag
of that. Who may read everything gets another tag of the latest entry, which changes with every change.

The condition is asked in the state of the ledger on which the decision rests, and last: whoever may not make the change
learns nothing from it.
"""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from perseid.names.handle import Handle
from perseid.records.record import ascending
from perseid.records.value import Value
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Command, Context, Plan
from perseid.registry.results import Refused
from perseid.registry.snapshot import StoredRecord
from perseid.wire.codes import ResponseCode

TAG_LENGTH: Final = 32
"""Hexadecimal digits of a tag of what the public may read: nobody finds two records that share so many."""

T = TypeVar("T")


class ConditionFailed(Refused):
    """The record is not what somebody made it a condition that it is."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What has to be so for a change to be made."""

    any_of: Collection[str] | None = None
    """The record has one of these tags; None if that does not matter."""
    none_of: Collection[str] = ()
    """The record has none of these tags."""
    exists: bool | None = None
    """Whether there is a record; None if that does not matter."""

    def check(self, stored: StoredRecord) -> None:
        """Refuse a change of a record that is not so."""
        if self.exists is False and stored.exists:
            reason = f"{display_name(stored.requested)} exists already"
            raise ConditionFailed(ResponseCode.HANDLE_ALREADY_EXISTS, reason, "it should not, by the condition")
        wants_one = self.exists is True or self.any_of is not None
        if wants_one and not stored.exists:
            reason = f"there is no record of {display_name(stored.requested)}"
            raise ConditionFailed(ResponseCode.HANDLE_NOT_FOUND, reason, "there should be one, by the condition")
        tags = {public_tag(stored.values), entry_tag(stored.seq), version_tag(stored.seq)} if stored.exists else set()
        if (self.any_of is not None and tags.isdisjoint(self.any_of)) or not tags.isdisjoint(self.none_of):
            reason = f"{display_name(stored.requested)} has been changed since"
            raise ConditionFailed(ResponseCode.ERROR, reason, "read it again, and decide anew")


@dataclass(frozen=True, slots=True)
class Conditional(Generic[T]):
    """An operation on a record that is carried out only under a condition."""

    command: Command[T]
    handle: Handle
    condition: Condition

    def decide(self, context: Context) -> Plan[T]:
        """As the operation decides, and then by the condition."""
        plan = self.command.decide(context)
        self.condition.check(context.snapshot.stored(self.handle))
        return plan


def public_tag(values: Iterable[Value]) -> str:
    """The tag of what the public may read of a record."""
    contents = [value.to_bytes() for value in ascending(values) if value.is_public]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:TAG_LENGTH]


def entry_tag(seq: int) -> str:
    """The tag of a record with all that is in it, by its latest entry."""
    return f"e{seq}"


def version_tag(seq: int) -> str:
    """The tag of what the public may read of a record, where its latest entry is told too."""
    return f"v{seq}"

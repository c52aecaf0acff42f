"""Conditional changes: a command is executed only if the record has not changed since it was read.

A tag identifies a state of a record. Public responses carry a tag of the public values, which anybody can compute and
which reveals nothing else; or, where they show the number of the latest entry, a tag of that number. Callers who can
read everything get a tag that changes with every entry.

The condition is checked last, in the snapshot of the decision: a caller without permission learns nothing from it.
"""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from perseid.names.handle import Handle
from perseid.records.record import ascending
from perseid.records.value import Value
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Command, Context, Plan
from perseid.registry.results import Refused
from perseid.registry.snapshot import StoredRecord
from perseid.wire.codes import ResponseCode

TAG_LENGTH: Final = 32
"""Hexadecimal digits of a public tag: enough that nobody finds two records with the same tag."""

T = TypeVar("T")


class ConditionFailed(Refused):
    """The record does not meet the condition of the request."""

    problem_type = "precondition-failed"


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of a record for a change."""

    any_of: Collection[str] | None = None
    """The record has one of these tags; None for no condition."""
    none_of: Collection[str] = ()
    """The record has none of these tags."""
    exists: bool | None = None
    """Whether there is a record; None for no condition."""

    def check(self, stored: StoredRecord) -> None:
        """Refuse if the record does not meet the condition."""
        if self.exists is False and stored.exists:
            reason = f"Handle {display_name(stored.requested)} already exists"
            raise ConditionFailed(ResponseCode.HANDLE_ALREADY_EXISTS, reason, AdviceKind.REMOVE_NEW_CONDITION())
        wants_one = self.exists is True or self.any_of is not None
        if wants_one and not stored.exists:
            reason = f"Handle {display_name(stored.requested)} does not exist"
            raise ConditionFailed(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.REMOVE_EXISTS_CONDITION())
        tags = {public_tag(stored.values), entry_tag(stored.seq), version_tag(stored.seq)} if stored.exists else set()
        if (self.any_of is not None and tags.isdisjoint(self.any_of)) or not tags.isdisjoint(self.none_of):
            reason = f"Handle {display_name(stored.requested)} has changed since you read it"
            raise ConditionFailed(ResponseCode.ERROR, reason, AdviceKind.READ_AGAIN())


@dataclass(frozen=True, slots=True)
class Conditional(Generic[T]):
    """A command with a condition."""

    command: Command[T]
    handle: Handle
    condition: Condition

    def decide(self, context: Context) -> Plan[T]:
        """Decide the command, then check the condition."""
        plan = self.command.decide(context)
        self.condition.check(context.snapshot.stored(self.handle))
        return plan


def public_tag(values: Iterable[Value]) -> str:
    """The tag of the public values of a record."""
    contents = [value.to_bytes() for value in ascending(values) if value.is_public]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:TAG_LENGTH]


def entry_tag(seq: int) -> str:
    """The tag of a whole record, by its latest entry."""
    return f"e{seq}"


def version_tag(seq: int) -> str:
    """The tag of the public values of a record, where the number of its latest entry is shown."""
    return f"v{seq}"

"""Results of commands and queries, refusals and warnings.

A refusal carries the response code of the protocol, the reason in words, and advice as data (see `advice`). A warning
has a kind with parameters, and such advice too: each interface renders it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, ClassVar, Final, Self

from perseid.ledger.errors import ClockError, OutdatedProgram, ReadOnlyMode, StorageFull
from perseid.ledger.log.entry import State
from perseid.names.errors import quote_text
from perseid.names.handle import Handle
from perseid.records.encoding import iso_time
from perseid.records.record import Value
from perseid.registry.access.authorization import Decision
from perseid.registry.access.permissions import display_name
from perseid.registry.policy.policy import Refusal, Subject
from perseid.schema.records import WarningInfo
from perseid.wire.codes import ResponseCode

from .advice import Advice, AdviceKind, to_data

NOT_A_PREFIX_HANDLE: Final = "Handle is not a prefix handle"
"""A reason that deployed servers give in these words."""


class Refused(Exception):
    """A command was refused. Nothing has changed."""

    problem_type: ClassVar = ""
    """The slug of the problem type (`schema.problems`), if it is more exact than that of the code."""

    def __init__(self, code: ResponseCode, reason: str, advice: Advice | None = None, rule: str = "") -> None:
        super().__init__(reason)
        self.code = code
        """The response code of the protocol."""
        self.reason = reason
        """What is wrong."""
        self.advice = advice
        """How to fix it."""
        self.rule = rule
        """The id of the requirement, or the line of the policy, that was violated."""
        self.suggestions: Any = None
        """What may have been meant (`queries.suggest.Suggestions`), if an interface has looked for it."""

    def __str__(self) -> str:
        return self.reason if self.advice is None else f"{self.reason}. {self.advice}"

    def locate(self, where: str) -> None:
        """Say which of several records it is about, such as `Line 3`."""
        self.reason = f"{where}: {self.reason}"
        self.args = (self.reason,)

    @classmethod
    def from_decision(cls, decision: Decision) -> Self:
        """The refusal of a caller without permission."""
        return cls(decision.code or ResponseCode.INVALID_ADMIN, decision.reason, decision.advice)

    @classmethod
    def from_refusals(cls, refusals: list[Refusal]) -> Self:
        """The refusal by a policy. Only the first is reported, because the protocol has room for one."""
        first = refusals[0]
        code = ResponseCode.INVALID_HANDLE if first.subject is Subject.NAME else ResponseCode.INVALID_VALUE
        return cls(code, first.reason, first.advice, first.line)


class InvalidRequest(Refused):
    """What was asked is invalid in itself, whatever the state, the policy and the permissions."""


class InvalidQuery(InvalidRequest):
    """A well-formed query that has no answer."""

    problem_type = "invalid-query"

    def __init__(self, reason: str, advice: Advice | None = None, rule: str = "") -> None:
        super().__init__(ResponseCode.INVALID_VALUE, reason, advice, rule)


class InvalidTimestamp(InvalidRequest):
    """A value of an import has a timestamp that it cannot have had."""

    def __init__(self, reason: str, advice: Advice, number: int) -> None:
        super().__init__(ResponseCode.INVALID_VALUE, reason, advice)
        self.number = number
        """Which of the requested values it is, from 0."""


class NotPublic(Refused):
    """An unpublished or reserved handle, for a caller who can read it and asked for public values only."""


class Deleted(Refused):
    """A handle whose record was deleted, for a caller who can see that in its history."""

    def __init__(self, handle: Handle, at: int, last: int) -> None:
        reason = f"Handle {display_name(handle)} was deleted at {iso_time(at)}"
        super().__init__(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.SEE_LAST_VERSION(handle=handle, seq=last))
        self.at = at
        """When, in microseconds since 1970."""
        self.last = last
        """The entry of the last version."""


class NotYetCreated(Refused):
    """A handle at a time before its first version, for a caller who can see that in its history."""

    def __init__(self, handle: Handle, when: str, first: int, at: int) -> None:
        """`first` is the entry of the first version, made `at` a time in microseconds since 1970."""
        name, date = display_name(handle), iso_time(at)
        reason = f"Handle {name} did not exist at {display_name(when)}; its first version is entry {first} of {date}"
        super().__init__(ResponseCode.HANDLE_NOT_FOUND, reason, AdviceKind.SEE_FIRST_VERSION(handle=handle, seq=first))


class StateConflict(Refused):
    """A valid command that the present state of a record, namespace or job does not allow."""

    problem_type = "state-conflict"

    def __init__(self, reason: str, advice: Advice | None = None, rule: str = "") -> None:
        super().__init__(ResponseCode.INVALID_VALUE, reason, advice, rule)


class PrefixNotHosted(Refused):
    """The prefix is not hosted here."""


class OtherServer(Refused):
    """Another server of this site is responsible for the handle."""

    problem_type = "other-server"


class ReferralError(Refused):
    """Another service hosts the prefix."""

    def __init__(self, values: tuple[Value, ...]) -> None:
        super().__init__(ResponseCode.PREFIX_REFERRAL, "Another service hosts the handles of this prefix")
        self.values = values
        """The values that say which service."""


class OutOfSpace(Refused):
    """There is no space on the disk of the server."""

    problem_type = "storage-full"

    def __init__(self, *, reads: bool = False) -> None:
        reason = "The disk of the server is full" + ("" if reads else "; nothing was changed")
        super().__init__(ResponseCode.SERVER_BACKUP, reason, AdviceKind.FREE_SPACE())


class WrongClock(Refused):
    """The clock of the server is wrong, and every change is dated."""

    problem_type = "wrong-clock"

    def __init__(self) -> None:
        reason = "The clock of the server is wrong; nothing was changed"
        super().__init__(ResponseCode.SERVER_BACKUP, reason, AdviceKind.SET_CLOCK())


class ReadOnly(Refused):
    """Changes are suspended for maintenance, or this node must be upgraded first."""

    problem_type = "read-only"

    def __init__(self, reason: str, advice: Advice) -> None:
        super().__init__(ResponseCode.SERVER_BACKUP, f"{reason}; nothing was changed", advice)


class StatisticsUnavailable(Refused):
    """The file of statistics is damaged or locked."""

    problem_type = "statistics-unavailable"

    def __init__(self) -> None:
        reason = "The statistics of the server cannot be read"
        super().__init__(ResponseCode.SERVER_TOO_BUSY, reason, AdviceKind.RETRY_STATISTICS())


class CounterClosed(Refused):
    """After a restore it is not known which suffixes of a counter were used."""

    problem_type = "counter-closed"

    def __init__(self, prefix: str) -> None:
        reason = (
            f"Minting under {prefix} is suspended: the server was restored from a backup, and identifiers may have "
            "been minted after it was taken"
        )
        super().__init__(ResponseCode.SERVER_BACKUP, reason, AdviceKind.REOPEN_COUNTER(prefix=prefix))


def find_refusal(error: Exception | None, *, reads: bool = False) -> Refused | None:
    """Return the refusal for an error of the ledger that only an operator can fix; None for others.

    With `reads` the request would not have changed anything.
    """
    match error:
        case StorageFull():
            return OutOfSpace(reads=reads)
        case ClockError():
            return WrongClock()
        case ReadOnlyMode():
            text = str(error)
            return ReadOnly(text[:1].upper() + text[1:], AdviceKind.WAIT_FOR_MAINTENANCE())
        case OutdatedProgram():
            return ReadOnly("This node is read-only until it is upgraded", AdviceKind.UPGRADE_NODE())
    return None


@unique
class WarningKind(Enum):
    """What a result can warn about. The names in braces are parameters, which `!r` quotes."""

    ALIAS_TARGET = "Value {index} is an alias of {target}, which does not exist"
    CREATION_DATES = "Creation dates are ignored, because the policy of the namespace has authority = false"
    DATES_AND_OWNERS = "Ignored, because dates and owners are not preserved: {columns!r}"
    GROUP_REMOVED = "Value {index}, a group, was removed"
    HANDLE_CHARACTER = "{handle} contains {character}"
    MISSING_ADMINISTRATOR = "Administrator {administrator} does not exist here, and cannot authenticate until it does"
    OTHER_SERVER = "{handle} belongs to another server of this site: only the copy that was left here is deleted"
    OTHER_SHEETS = "Only the sheet {sheet!r} is read, not {others!r}"
    REPLACEMENT_TOMBSTONE = "The replacement {replacement} is a tombstone itself"
    ROWS_WITHOUT_URL = "Rows without a URL: {count:,}; see line {lines}"
    TOMBSTONE = "Handle {handle} is a tombstone, and stays one: nothing changed"
    TYPE_CHARACTER = (
        "Value {index} has the type {type!r}, which contains {character}: clients that ask for the type without it do "
        "not find the value"
    )
    TYPE_TYPO = "Value {index} has the type {type!r}, which clients may not know"
    UNUSABLE_URL = "Value {index} of type {type}, {data!r}, {problem}"
    URL_CHARACTER = "Value {index} of type {type}, {data!a}, contains {character}"

    def __call__(self, advice: Advice | None = None, rule: str = "", /, **parameters: object) -> WarningInfo:
        """A warning of this kind."""
        plain = {name: value if isinstance(value, int | tuple) else str(value) for name, value in parameters.items()}
        advised = () if advice is None else (str(advice), *to_data(advice))
        return WarningInfo(self.name.lower(), format_warning(self.value, plain), plain, 0, rule, *advised)


def format_warning(text: str, parameters: Mapping[str, Any]) -> str:
    """Fill in the parameters of a warning. Raises `LookupError` if one is missing."""
    return text.format_map({name: _Parameter(value) for name, value in parameters.items()})


class _Parameter:
    def __init__(self, value: object) -> None:
        self._values = value if isinstance(value, tuple | list) else (value,)

    def __format__(self, spec: str) -> str:
        return ", ".join([format(each, spec) if isinstance(each, int) else display_name(each) for each in self._values])

    def __repr__(self) -> str:
        return ", ".join(map(quote_text, self._values))


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """A record was changed, or already had the requested state."""

    handle: Handle
    """The registered handle."""
    seq: int
    """The entry of the change, or the latest entry of the record if nothing changed."""
    overwritten: bool = False
    """Whether an existing record was replaced."""
    warnings: tuple[WarningInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class MintResult:
    """New handles."""

    handles: tuple[Handle, ...]
    seq: int
    """The entry of the first handle; the others follow."""
    warnings: tuple[WarningInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a handle resolves to."""

    handle: Handle
    """The handle as requested."""
    registered: Handle
    """The registered handle."""
    state: State
    values: tuple[Value, ...]
    """The requested values that the caller can read, by ascending index."""
    seq: int
    """The entry that they come from."""
    at: int
    """When it was written, in microseconds since 1970."""
    query: str | None = None
    fragment: str | None = None
    """The fragment after a CORDRA handle, for the caller (C5)."""
    by_template: bool = False
    """Whether the values come from a template: the handle has no record."""
    base: Handle | None = None
    """The handle that the template was applied to, if it has a record."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a command would be executed, and why."""

    allowed: bool
    reason: str
    code: ResponseCode | None = None
    advice: Advice | None = None
    rule: str = ""
    refused: Refused | None = None
    """The refusal that the command would raise."""
    warnings: tuple[WarningInfo, ...] = ()
    """Those that the result of the command would have."""

"""What the public may no longer see of a record's past: values that were public once and have been hidden since.

Taking PUBLIC_READ from a value hides its past as well, unless whoever does it says otherwise (`keeping_past`). It is
not enough to look at the record of today: what was hidden and then removed, moved or erased is hidden all the same.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from perseid.ledger.log.entry import Entry, State
from perseid.records.record import ascending
from perseid.records.value import Value, ValueRef

MAX_SEARCHED: Final = 20_000
"""How many versions and values are looked at to find what was hidden since: a quarter of a second of work. Everybody
may ask, and a value that everybody may write can be given any number of versions. What is further back is not shown."""

MAX_GAPS: Final = 100
"""How many gaps that redaction left are told apart; beyond, everything further back counts as hidden."""

PAST_STAYS: Final = "past stays public"
"""The first line of the note of an entry that hides values, or a whole record, from then on only."""

_SHOWN_STATES: Final = (State.NORMAL, State.TOMBSTONE)
_INDEXES_END: Final = 1 << 31
_Content: TypeAlias = tuple[str, bytes, tuple[ValueRef, ...]]


class Searched:
    """How much was looked at so far, for one request: it may have to look at the past of many names."""

    def __init__(self) -> None:
        self.count = 0


class Veil:
    """What the public may no longer see of a record's past; it is shown the versions from today's back.

    Hidden are the earlier versions of whatever has lost PUBLIC_READ:

    - values at an index that is private in a later version, also if it was empty in between;
    - values with the data of a value that is private in a later version, at whichever index and of whichever type;
    - what was at the index, or had the data, of a value hidden so: that is its past too;
    - everything before the record was unpublished;
    - values that may be earlier versions of one that was redacted, of which only its place is known.

    What was public again afterwards is not hidden, and what was merely removed or replaced never was. An entry whose
    note begins with `PAST_STAYS` hides nothing before it; if that note was redacted, it does.
    """

    def __init__(self, searched: Searched | None = None) -> None:
        self.ended = False
        """Whether too much was looked at, so that nothing further back is shown."""
        self._later: Entry | None = None
        self._private: list[Value] = []  # of the later version
        self._indexes: set[int] = set()
        self._data: set[bytes] = set()
        self._gaps: set[tuple[int, int]] = set()
        self._everything = False
        self._public: set[_Content] = set()
        self._searched = Searched() if searched is None else searched

    def lift(self, entry: Entry) -> tuple[Value, ...]:
        """The values that are public still, of the version before the one shown last."""
        self._searched.count += 1 + len(entry.values)
        self.ended = self.ended or self._searched.count > MAX_SEARCHED
        if self.ended:
            return ()
        values = entry.record()
        public = [value for value in values if value.is_public]
        private = [value for value in values if not value.is_public]
        if self._later is not None:
            self._cover(self._later, entry, public, private)
        self._later, self._private = entry, private
        if not is_public(entry.state):
            return ()
        # First by place, then by data: what hides one value of this version hides its copies in it.
        self._data.update([value.data for value in public if self._is_hidden(value)])
        hidden = {value.index for value in public if self._is_hidden(value)}
        self._indexes |= hidden
        found = [value for value in public if value.index not in hidden]
        self._public.update(map(_content, found))
        return ascending(found)

    def _cover(self, later: Entry, entry: Entry, public: list[Value], private: list[Value]) -> None:
        """Note what the later version hides of this one, whose values are given, and of all before it."""
        self._gaps.update(_gaps(later, {slot.commitment for slot in entry.values}))
        self._everything = self._everything or len(self._gaps) > MAX_GAPS
        if (later.why or "").partition("\n")[0] == PAST_STAYS:
            return
        # What was private before as well was hidden then, by an entry that may have left its past as it is.
        self._indexes |= {value.index for value in self._private} - {value.index for value in private}
        hidden_before = {value.data for value in private} - {value.data for value in public}
        self._data |= {value.data for value in self._private} - hidden_before
        if later.state is not State.ABSENT and not is_public(later.state) and is_public(entry.state):
            self._everything = True

    def _is_hidden(self, value: Value) -> bool:
        if _content(value) in self._public:
            return False
        if self._everything or value.index in self._indexes or value.data in self._data:
            return True
        return any(low < value.index < high for low, high in self._gaps)


def is_public(state: State) -> bool:
    """Whether everybody may know of a name in this state."""
    return state in _SHOWN_STATES


def keeping_past(note: str) -> str:
    """The note for a change that takes PUBLIC_READ from values, or unpublishes, and leaves the past as it is."""
    return f"{PAST_STAYS}\n{note}" if note else PAST_STAYS


def _content(value: Value) -> _Content:
    return value.type, value.data, value.references


def _gaps(entry: Entry, before: set[bytes]) -> Iterator[tuple[int, int]]:
    """Between which indexes the redacted values of an entry stood: values are kept by ascending index.

    One that the version before has too, by its commitment, has its earlier versions further back, if any.
    """
    low, redacted = -1, False
    for slot in entry.values:
        if slot.content is None:
            redacted = redacted or slot.commitment not in before
            continue
        index = int.from_bytes(slot.content[:4], "big", signed=True)
        if redacted:
            yield low, index
        low, redacted = index, False
    if redacted:
        yield low, _INDEXES_END

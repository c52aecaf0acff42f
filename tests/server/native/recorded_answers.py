"""Comparison with recorded responses: field by field, with a table of allowed differences.

`compare` uses the words of the recorded descriptions; a table of `Difference` decides which differences are allowed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from perseid.wire.message import Envelope, Message
from tests.wire.describe import describe_envelope, describe_message, describe_packets
from tests.wire.recorded import Field

Value: TypeAlias = int | str

ABSENT: Final = "absent"
"""What stands for a field that only one of two messages has."""


@dataclass(frozen=True)
class Found:
    """A field in which a response differs from the recorded one."""

    name: str
    ours: Value
    theirs: Value


@dataclass(frozen=True)
class Difference:
    """Fields in which a response may differ from the recorded one, and why."""

    exchanges: str
    """Which: a regular expression for the names of conversations or exchanges."""
    fields: str
    reason: str
    alike: Callable[[Value, Value], bool] = lambda _ours, _theirs: True
    """What has to be the same all the same."""

    def concerns(self, exchange: str) -> bool:
        return re.fullmatch(self.exchanges, exchange) is not None

    def covers(self, exchange: str, found: Found) -> bool:
        fits = self.concerns(exchange) and re.fullmatch(self.fields, found.name)
        return bool(fits) and self.alike(found.ours, found.theirs)


def compare(ours: Message, theirs: Message) -> Iterator[Found]:
    """Yield the fields in which two messages differ, including those that only one of them has."""
    described = []
    for message in (ours, theirs):
        description = describe_envelope(message.envelope, 0)
        describe_message(description, message)
        described.append(description.fields)
    yield from differences(*described)


def compare_packets(ours: Sequence[bytes], theirs: Sequence[bytes]) -> Iterator[Found]:
    """The same for the envelopes of further packets; the first has the envelope of the message."""
    described = []
    for packets in (ours, theirs):
        fields = describe_packets([Envelope.from_bytes(packet) for packet in packets], []).fields
        described.append([field for field in fields if field.name.startswith("packet[")])
    yield from differences(*described)


def differences(ours: list[Field], theirs: list[Field]) -> Iterator[Found]:
    """Yield the fields in which two descriptions differ."""
    mine, recorded = ({field.name: field.value for field in fields} for fields in (ours, theirs))
    assert len(mine) == len(ours), "no field has the name of another"
    if [name for name in mine if name in recorded] != [name for name in recorded if name in mine]:
        yield Found("order", ",".join(mine), ",".join(recorded))
    for name in mine | recorded:
        values = mine.get(name, ABSENT), recorded.get(name, ABSENT)
        if values[0] != values[1]:
            yield Found(name, *values)


# What is said, and how names are made


def folded(ours: Value, theirs: Value) -> bool:
    return str(ours).upper() == str(theirs).upper()


def minted(ours: Value, theirs: Value) -> bool:
    form = re.compile(r"20\.500\.99999/vec-m-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    return form.fullmatch(str(ours)) is not None is not form.fullmatch(str(theirs))


LENGTHS: Final = r"hdr\.bodyLength|(packet\[\d+\]\.)?env\.messageLength"
TEXT: Final = rf"errorMessage(\.length)?|{LENGTHS}"

IN_WHAT_IS_SAID: Final = (
    Difference(
        r"admin-.*:create-existing\..*",
        TEXT,
        "deployed servers say nothing with 101; ours says what exists and what to do",
    ),
    Difference(
        r"admin-.*:(modify|remove)-value-missing\.[^#]*(#2)?",
        TEXT,
        "deployed servers say nothing with 200; for a change ours says which index is missing",
    ),
    Difference(
        r"admin-.*:delete-missing\.[^#]*(#2)?",
        TEXT,
        "deployed servers say nothing with 100; for a change ours says that there is no record",
    ),
    Difference(
        r"auth-errors:wrong-secret\.[^#]*(#2)?",
        TEXT,
        "deployed servers say nothing with 403; ours says that the answer was made with no key that is held here",
    ),
    Difference(
        r"auth-errors:invalid-admin\.[^#]*(#2)?",
        TEXT,
        "deployed servers say nothing with 400; ours says who lacks which permission",
    ),
    Difference(
        r"lists:list-handles\.tcp(#2)?",
        r"handle\[\d+\]",
        "deployed servers list names in capitals; ours lists them as they are registered",
        folded,
    ),
    Difference(r"mint:mint\.tcp(#2)?", r"handle", "the suffix is drawn at random; its form is compared", minted),
)
"""Differences in what the application says, whichever way it is asked. A name of a conversation stands for all of its
exchanges; of exchanges only the one counts that carries the answer."""

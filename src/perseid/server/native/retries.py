"""Requests that come twice over UDP: the second gets the response of the first, and is not executed again."""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

from perseid.wire.framing import Frame
from perseid.wire.message import Message
from perseid.wire.server import Reply

LIFE: Final = 60.0
"""Seconds for which an answer is remembered: deployed clients give up after three."""

MAX_ANSWERS: Final = 16_384
"""Answers to remember: changes normally go over TCP, so this is a minute of a busy client. The oldest makes room."""

MAX_OCTETS: Final = 8 << 20
"""Octets of all remembered answers. An answer to a change has some dozens."""

MAX_REPLY: Final = 4_096
"""Octets of the longest answer that is remembered; what a change or a wish for a session gets is far shorter."""

MAX_SETUPS: Final = 1_000
"""Answers to wishes for sessions, which anybody can send: as many as there may be sessions in which nobody has proved
anything. They have a table of their own, so that they never take the place of changes."""

_OVERHEAD = 256  # octets that remembering costs beside the answer

Key: TypeAlias = tuple[Hashable, int, int, bytes]
"""Where a request came from, its session and request id, and a hash of what it says."""


def key_of_frame(source: Hashable, frame: Frame) -> Key:
    """What a message as it came is known by."""
    envelope = frame.envelope
    digest = hashlib.sha256(envelope.to_bytes() + frame.payload).digest()
    return source, envelope.session_id, envelope.request_id, digest


def key_of_content(source: Hashable, message: Message) -> Key:
    """What a request in a session is known by, whatever its MAC."""
    envelope = message.envelope
    return source, envelope.session_id, envelope.request_id, hashlib.sha256(message.octets).digest()


@dataclass(slots=True, eq=False)
class _Answer:
    keys: tuple[Key, ...]
    reply: Reply
    since: float
    octets: int


class Repeats:
    """What requests got, oldest first."""

    def __init__(self, limit: int = MAX_ANSWERS, octets: int = MAX_OCTETS) -> None:
        self._limit = limit
        self._max_octets = octets
        self._answers: OrderedDict[int, _Answer] = OrderedDict()
        self._by_key: dict[Key, int] = {}
        self._working: dict[Key, int] = {}
        self._octets = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def octets(self) -> int:
        """What remembering costs."""
        return self._octets

    def find(self, key: Key, now: float) -> Reply | None:
        """What the request got; nothing at all while it is worked on; None if it has not been seen."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._answers[number].reply
        return Reply(()) if key in self._working else None

    def found_by_others(self, key: Key, now: float) -> Reply | None:
        """The same for one who works on it: what another attempt got; nothing at all while another is worked on."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._answers[number].reply
        return Reply(()) if self._working.get(key, 0) > 1 else None

    def begin(self, keys: tuple[Key, ...]) -> None:
        """Note that a request is worked on. `end` must follow."""
        for key in keys:
            self._working[key] = self._working.get(key, 0) + 1

    def end(self, keys: tuple[Key, ...], reply: Reply | None, now: float) -> None:
        """Note what it got, or with None that it may come again."""
        for key in keys:
            self._working[key] -= 1
            if not self._working[key]:
                del self._working[key]
        if reply is None:
            return
        octets = _OVERHEAD + sum(len(frame.payload) for frame in reply.frames)
        if octets > MAX_REPLY or any(key in self._by_key for key in keys):
            return
        self._count += 1
        self._answers[self._count] = _Answer(keys, reply, now, octets)
        self._by_key.update(dict.fromkeys(keys, self._count))
        self._octets += octets
        while len(self._answers) > self._limit or self._octets > self._max_octets:
            self._drop()

    def purge(self, now: float) -> None:
        """Forget what is too old."""
        while self._answers:
            oldest = next(iter(self._answers.values()))
            if abs(now - oldest.since) <= LIFE:
                return
            self._drop()

    def _drop(self) -> None:
        _, answer = self._answers.popitem(last=False)
        self._octets -= answer.octets
        for key in answer.keys:
            del self._by_key[key]

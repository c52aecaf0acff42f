"""Requests that come twice over UDP: the second gets the response of the first, and is not executed again."""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

from perseid.wire.framing import Frame
from perseid.wire.message import Message
from perseid.wire.server import Reply

RETENTION_SECONDS: Final = 60.0
"""Seconds for which an answer is remembered: deployed clients give up after three."""

MAX_REPLIES: Final = 16_384
"""Answers to remember: changes normally go over TCP, so this is a minute of a busy client. The oldest makes room."""

MAX_TOTAL_BYTES: Final = 8 << 20
"""Octets of all remembered answers. An answer to a change has some dozens."""

MAX_REPLY_BYTES: Final = 4_096
"""Octets of the longest answer that is remembered; what a change or a wish for a session gets is far shorter."""

MAX_SETUPS: Final = 1_000
"""Answers to wishes for sessions, which anybody can send: as many as there may be sessions in which nobody has proved
anything. They have a table of their own, so that they never take the place of changes."""

_OVERHEAD = 256  # octets that remembering costs beside the answer

Key: TypeAlias = tuple[Hashable, int, int, bytes]
"""Where a request came from, its session and request id, and a hash of what it says."""


def frame_key(source: Hashable, frame: Frame) -> Key:
    """What a message as it came is known by."""
    envelope = frame.envelope
    digest = hashlib.sha256(envelope.to_bytes() + frame.payload).digest()
    return source, envelope.session_id, envelope.request_id, digest


def content_key(source: Hashable, message: Message) -> Key:
    """What a request in a session is known by, whatever its MAC."""
    envelope = message.envelope
    return source, envelope.session_id, envelope.request_id, hashlib.sha256(message.octets).digest()


@dataclass(slots=True, eq=False)
class _CachedReply:
    keys: tuple[Key, ...]
    reply: Reply
    since: float
    size: int


class ReplyCache:
    """What requests got, oldest first."""

    def __init__(self, limit: int = MAX_REPLIES, size: int = MAX_TOTAL_BYTES) -> None:
        self._limit = limit
        self._max_bytes = size
        self._replies: OrderedDict[int, _CachedReply] = OrderedDict()
        self._by_key: dict[Key, int] = {}
        self._in_progress: dict[Key, int] = {}
        self._total_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def size(self) -> int:
        """What remembering costs."""
        return self._total_bytes

    def find(self, key: Key, now: float) -> Reply | None:
        """What the request got; nothing at all while it is worked on; None if it has not been seen."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._replies[number].reply
        return Reply(()) if key in self._in_progress else None

    def find_concurrent(self, key: Key, now: float) -> Reply | None:
        """The same for one who works on it: what another attempt got; nothing at all while another is worked on."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._replies[number].reply
        return Reply(()) if self._in_progress.get(key, 0) > 1 else None

    def begin(self, keys: tuple[Key, ...]) -> None:
        """Note that a request is worked on. `end` must follow."""
        for key in keys:
            self._in_progress[key] = self._in_progress.get(key, 0) + 1

    def end(self, keys: tuple[Key, ...], reply: Reply | None, now: float) -> None:
        """Note what it got, or with None that it may come again."""
        for key in keys:
            self._in_progress[key] -= 1
            if not self._in_progress[key]:
                del self._in_progress[key]
        if reply is None:
            return
        size = _OVERHEAD + sum(len(frame.payload) for frame in reply.frames)
        if size > MAX_REPLY_BYTES or any(key in self._by_key for key in keys):
            return
        self._count += 1
        self._replies[self._count] = _CachedReply(keys, reply, now, size)
        self._by_key.update(dict.fromkeys(keys, self._count))
        self._total_bytes += size
        while len(self._replies) > self._limit or self._total_bytes > self._max_bytes:
            self._drop()

    def purge(self, now: float) -> None:
        """Forget what is too old."""
        while self._replies:
            oldest = next(iter(self._replies.values()))
            if abs(now - oldest.since) <= RETENTION_SECONDS:
                return
            self._drop()

    def _drop(self) -> None:
        _, answer = self._replies.popitem(last=False)
        self._total_bytes -= answer.size
        for key in answer.keys:
            del self._by_key[key]

"""Replies to requests repeated over UDP.

A client without a response sends its request again under the same request id. Deployed servers execute it again; here a
change, or a session setup, is remembered for a minute with its reply. Two messages are one request if they come from
the same address and are the same bytes; or if they are in the same session, have the same content and id, and differ in
the MAC only, because clients count each attempt. While the first is executed, the second gets no reply: the client will
retry.

Only executed requests are remembered, never a challenge or the refusal of an anonymous client. So the table cannot be
filled with requests that cost the sender nothing.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

from perseid.wire.framing import Frame
from perseid.wire.message import Message
from perseid.wire.server import Reply

RETENTION_SECONDS: Final = 60.0
"""Seconds for which a reply is remembered: deployed clients give up after three."""

MAX_REPLIES: Final = 16_384
"""Replies remembered: changes normally use TCP, so this is a minute of a busy client. The oldest is evicted."""

MAX_TOTAL_BYTES: Final = 8 << 20
"""Bytes of all remembered replies. A reply to a change has some dozens."""

MAX_REPLY_BYTES: Final = 4_096
"""Bytes of the longest remembered reply; replies to changes and session setups are far shorter."""

MAX_SETUPS: Final = 1_000
"""Replies to session setups, which anybody can send: as many as there may be unauthenticated sessions. They have their
own table, so that they never evict changes."""

_OVERHEAD = 256  # bytes for each reply besides its content

Key: TypeAlias = tuple[Hashable, int, int, bytes]
"""Source, session id, request id, and a hash of the content."""


def frame_key(source: Hashable, frame: Frame) -> Key:
    """Return the key of a message as it arrived."""
    envelope = frame.envelope
    digest = hashlib.sha256(envelope.to_bytes() + frame.payload).digest()
    return source, envelope.session_id, envelope.request_id, digest


def content_key(source: Hashable, message: Message) -> Key:
    """Return the key of a request in a session, regardless of its MAC."""
    envelope = message.envelope
    return source, envelope.session_id, envelope.request_id, hashlib.sha256(message.raw).digest()


@dataclass(slots=True, eq=False)
class _CachedReply:
    keys: tuple[Key, ...]
    reply: Reply
    since: float
    size: int


class ReplyCache:
    """Replies to requests, oldest first."""

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
        """Bytes used."""
        return self._total_bytes

    def find(self, key: Key, now: float) -> Reply | None:
        """Return the reply to a request; an empty one while it is executed; None if it is unknown."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._replies[number].reply
        return Reply(()) if key in self._in_progress else None

    def find_concurrent(self, key: Key, now: float) -> Reply | None:
        """The same for a running attempt: whether another attempt has a reply or is running."""
        self.purge(now)
        number = self._by_key.get(key)
        if number is not None:
            return self._replies[number].reply
        return Reply(()) if self._in_progress.get(key, 0) > 1 else None

    def begin(self, keys: tuple[Key, ...]) -> None:
        """Mark a request as running. `end` must follow."""
        for key in keys:
            self._in_progress[key] = self._in_progress.get(key, 0) + 1

    def end(self, keys: tuple[Key, ...], reply: Reply | None, now: float) -> None:
        """Store the reply, or None if the request may be executed again."""
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
        while self._replies:
            oldest = next(iter(self._replies.values()))
            if abs(now - oldest.since) <= RETENTION_SECONDS:
                return
            self._drop()

    def _drop(self) -> None:
        _, dropped = self._replies.popitem(last=False)
        self._total_bytes -= dropped.size
        for key in dropped.keys:
            del self._by_key[key]

"""What a server keeps for clients between two messages, bounded by transport: challenges, sessions and unfinished
messages.

A challenge keeps the request that it is about, so anybody can have the server keep something. Over UDP that costs no
more than a forged address; so challenges given there have a table of their own, and a flood of them takes the place of
each other and never of one that was given over TCP.

Who asks over the native protocol: the key that proves it, and that the key is still there when it counts.

A claim is weighed before it is verified (native protocol, 14): who is no administrator is told so, whether or not the
signature is right. The key is then read from the record of the identity, which has to be held here, because the server
asks no other. Between verification and commit the world may move; so the operation that is carried out reads the key
once more, in the very state in which it is decided, and the ledger checks at commit that the record has not moved.
The same holds for every request in a session: with the key that proved it the session ends.
"""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, Self, TypeVar

from perseid.names.characters import fold
from perseid.records.errors import InvalidData
from perseid.records.public_keys import PublicKey
from perseid.records.types import HS_PUBKEY, HS_SECKEY
from perseid.records.value import Value, ValueRef
from perseid.registry.access.permissions import display_name
from perseid.registry.identity import Anonymous, KeyIdentity, Proof
from perseid.registry.identity import Identity as CallerIdentity
from perseid.registry.installation.setting_limits import MAX_UDP_CHALLENGE_BYTES, MAX_UDP_CHALLENGES
from perseid.registry.installation.settings import Config
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.challenges import MAX_CHALLENGES, MAX_PENDING_BYTES, ChallengeTable, PendingChallenge
from perseid.wire.codes import ResponseCode
from perseid.wire.server import ChallengeProof as ChallengeResponse
from perseid.wire.sessions import MAX_SESSIONS, MAX_UNAUTHENTICATED, Identity

H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TableLimits:
    """How much is kept at most."""

    challenges: int = MAX_CHALLENGES
    challenge_octets: int = MAX_PENDING_BYTES
    udp_challenges: int = MAX_UDP_CHALLENGES
    udp_challenge_octets: int = MAX_UDP_CHALLENGE_BYTES
    sessions: int = MAX_SESSIONS
    unproved_sessions: int = MAX_UNAUTHENTICATED

    @classmethod
    def of(cls, config: Config) -> Self:
        """What the settings say."""
        return cls(
            config.limits_tcp_challenges,
            config.limits_tcp_challenge_octets,
            config.limits_udp_challenges,
            config.limits_udp_challenge_octets,
            config.limits_sessions,
            config.limits_unproved_sessions,
        )


class _ChallengeTable(ChallengeTable):
    def forget(self, challenge_id: int) -> None:
        """Forget a challenge if it is here."""
        self._drop(challenge_id)


class Challenges(_ChallengeTable):
    """All pending challenges. It is itself the table of those that were not given over UDP, and has the other one."""

    def __init__(self, life: float, sizes: TableLimits) -> None:
        super().__init__(life, sizes.challenges, sizes.challenge_octets)
        self.over_udp = _ChallengeTable(life, sizes.udp_challenges, sizes.udp_challenge_octets)
        """Those that were given over UDP."""
        self.issuing_over_udp = False
        """How the next one is given; `NativeServer.identify` says it."""

    def __len__(self) -> int:
        return super().__len__() + len(self.over_udp)

    def __contains__(self, challenge_id: int) -> bool:
        return super().__contains__(challenge_id) or challenge_id in self.over_udp

    def add(self, pending: PendingChallenge) -> None:
        """Keep a challenge; an older one under the same id is replaced, however that was given."""
        if self.issuing_over_udp:
            self.forget(pending.id)
            self.over_udp.add(pending)
        else:
            self.over_udp.forget(pending.id)
            super().add(pending)

    def find(self, challenge_id: int, now: float) -> PendingChallenge | None:
        """The challenge of that id, if it still lives. It may be answered over another transport."""
        found = super().find(challenge_id, now)
        return self.over_udp.find(challenge_id, now) if found is None else found

    def settle(self, pending: PendingChallenge, reply: tuple[bytes, ...]) -> None:
        """Note what the answer that used the challenge up got, where it is kept."""
        super().settle(pending, reply)
        self.over_udp.settle(pending, reply)

    def purge(self, now: float) -> None:
        """Forget what is too old."""
        super().purge(now)
        self.over_udp.purge(now)


class UnfinishedMessages(Generic[H]):
    """How much has come of messages that are not whole yet, over all connections together."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        """Octets in all."""
        self._sizes: dict[H, int] = {}
        self.total = 0

    def note(self, holder: H, size: int) -> list[H]:
        """Say how much somebody has now. Answers who has to go, because all have too much: whoever has the most.

        That hits those who fill the memory: most requests are so short that even among many slow ones they are never
        the longest. And who is cut frees so much that looking for them costs little for each octet that came.
        """
        self.total += size - self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size
        evicted: list[H] = []
        while self.total > self.limit:
            longest = max(self._sizes, key=self._sizes.__getitem__)
            self.total -= self._sizes.pop(longest)
            evicted.append(longest)
        return evicted


MAX_KEYS: Final = 8
"""How many keys of a record are tried for an identity that does not say which one it has (index 0). Each check costs up
to 0.1 s, anybody may ask for it, and people have two or three."""

PROOF_KINDS: Final = {HS_PUBKEY: Proof.PUBLIC_KEY, HS_SECKEY: Proof.SECRET_KEY}
"""What a proof was made with, by the name that the protocol has for it."""


class KeyChanged(Refused):
    """The key that proved an identity is no longer there, or no longer the same."""


@dataclass(frozen=True, slots=True)
class ProvenIdentity(Identity):
    """Somebody who has answered a challenge; a session keeps this."""

    kind: Proof = Proof.PUBLIC_KEY
    fingerprint: bytes = b""
    """What the key was, as a hash."""


def holder(identity: Identity, kind: Proof, *, session: bool) -> KeyIdentity:
    """Who that is to the registry; raises `Refused` if no record can have such a name."""
    try:
        handle = identity.handle.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(ResponseCode.INVALID_ADMIN, "the name of the identity is not UTF-8") from None
    reference = ValueRef(max(identity.index, 0), handle)
    return KeyIdentity(reference, kind, session, identity.key_index)


def caller_identity(proved: ProvenIdentity | None, *, session: bool) -> CallerIdentity:
    """Who asks: somebody who has proved it, or nobody in particular."""
    return Anonymous(session) if proved is None else holder(proved, proved.kind, session=session)


def find_keys(snapshot: Snapshot, identity: KeyIdentity) -> tuple[Value, ...]:
    """The values that can prove an identity, by ascending index; raises `Refused` if its record is not held here.

    As with groups: what is left of a prefix that is no longer homed here counts for nothing.
    """
    values = snapshot.group(identity.reference.handle)
    if values is None:
        reason = f"{display_name(identity.reference.handle)}, which would hold the key, is not held here"
        advice = "this server asks no other one: use a key whose handle is held here"
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, reason, advice)
    return candidate_keys(values, identity.proof, identity.reference.index)


def candidate_keys(values: Sequence[Value], kind: Proof, index: int) -> tuple[Value, ...]:
    """The keys of a kind: the one at the index, or with index 0 the first few. `HS_PUBKEY` counts exactly so only."""
    public = kind is Proof.PUBLIC_KEY
    keys = [value for value in values if (value.type == HS_PUBKEY if public else fold(value.type) == HS_SECKEY)]
    matching = [value for value in keys if value.index > 0 and index in (0, value.index)]
    return tuple(sorted(matching, key=lambda value: value.index)[:MAX_KEYS])


def find_proving_key(response: ChallengeResponse, kind: Proof, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that the answer to a challenge was made with; None if it is none of them. Takes long."""
    for value in keys:
        if kind is Proof.SECRET_KEY:
            if response.check_secret(value.data):
                return value
            continue
        try:
            key = PublicKey.from_bytes(value.data)
        except InvalidData:
            continue
        if response.check_key(key):
            return value
    return None


def authentication_failed(identity: KeyIdentity) -> Refused:
    """The answer was wrong, or there is no such key: which of the two, nobody is told."""
    reason = f"the answer was not made with a key that is held here for {display_name(str(identity))}"
    return Refused(ResponseCode.AUTHENTICATION_FAILED, reason)


def prove_identity(identity: Identity, kind: Proof, key: Value) -> ProvenIdentity:
    """The identity that a key has proved."""
    return ProvenIdentity(identity.handle, identity.index, key.index, kind, key_fingerprint(key))


def key_fingerprint(key: Value) -> bytes:
    """What tells a key from every other: its index is not part of it, its octets are not told by it."""
    return hashlib.sha256(f"{key.type}\0".encode() + key.data).digest()


@dataclass(frozen=True, slots=True)
class Guard:
    """That the key of an identity is still there, and still the same."""

    proved: ProvenIdentity
    session: bool

    def check(self, snapshot: Snapshot) -> None:
        """Refuse an identity whose key has gone. What is read here the decision rests on."""
        proved = self.proved
        values = snapshot.group(proved.handle.decode("utf-8")) or ()
        if any(value.index == proved.key_index and key_fingerprint(value) == proved.fingerprint for value in values):
            return
        identity = display_name(f"{proved.key_index}:{proved.handle.decode('utf-8')}")
        if self.session:
            raise KeyChanged(
                ResponseCode.SESSION_TIMEOUT, f"the session ends: the key {identity} that proved it has changed"
            )
        raise KeyChanged(ResponseCode.AUTHENTICATION_FAILED, f"the key {identity} has changed")


def with_identity(response: ChallengeResponse, proved: ProvenIdentity) -> ChallengeResponse:
    """The answer of somebody who has proved who they are, for `Server.accept`."""
    return replace(response, identity=proved)

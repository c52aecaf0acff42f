"""Authentication over the native protocol, and the limits of the state that a server keeps between two messages.

A caller who is not an administrator is refused as such, whether or not the signature is right (native protocol, 14).
What a caller with a wrong proof learns depends on public records only, and takes the same work whether or not the
identity exists: otherwise anybody could find unpublished and reserved handles by claiming them. The key is read from
the record of the identity, which must be stored here unless other servers may be asked (see `external`). Between
verification and commit the record may change; so the command reads the key again in the snapshot in which it is
decided, and the ledger checks at commit that the record is unchanged. The same applies to every request in a session:
the session ends when the key that proved it changes.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Generic, Self, TypeVar

from perseid.names.handle import Handle, fold
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey, RsaPublicKey
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_PUBKEY, HS_SECKEY
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.identity import Anonymous, KeyIdentity, Proof
from perseid.registry.identity import Identity as CallerIdentity
from perseid.registry.installation.sections import MAX_UDP_CHALLENGE_BYTES, MAX_UDP_CHALLENGES
from perseid.registry.installation.settings import Config
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.challenges import ChallengeLimits
from perseid.wire.codes import ResponseCode
from perseid.wire.sessions import MAX_SESSIONS, MAX_UNAUTHENTICATED, Identity

HolderT = TypeVar("HolderT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Maximum sizes of the tables."""

    challenges: ChallengeLimits = field(default_factory=ChallengeLimits)
    udp_challenges: ChallengeLimits = field(
        default_factory=lambda: ChallengeLimits(MAX_UDP_CHALLENGES, MAX_UDP_CHALLENGE_BYTES)
    )
    sessions: int = MAX_SESSIONS
    unproved_sessions: int = MAX_UNAUTHENTICATED

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the limits of the settings."""
        return cls(
            ChallengeLimits(config.limits.tcp_challenges, config.limits.tcp_challenge_octets),
            ChallengeLimits(config.limits.udp_challenges, config.limits.udp_challenge_octets),
            config.limits.sessions,
            config.limits.unproved_sessions,
        )


class UnfinishedMessages(Generic[HolderT]):
    """Sizes of incomplete messages, over all connections together."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        """Bytes in total."""
        self._sizes: dict[HolderT, int] = {}
        self.total = 0

    def note(self, holder: HolderT, size: int) -> list[HolderT]:
        """Record the size of a holder's message; return the holders to disconnect if the total is over the limit.

        The largest go first. That hits those who fill the memory: most requests are so short that even among many slow
        ones they are never the largest. And each disconnected holder frees so much that finding it costs little per
        byte.
        """
        self.total += size - self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size
        evicted: list[HolderT] = []
        while self.total > self.limit:
            longest = max(self._sizes, key=self._sizes.__getitem__)
            self.total -= self._sizes.pop(longest)
            evicted.append(longest)
        return evicted


EXTERNAL_LIFE: Final = 600
"""Seconds that the proof of a key on another server is valid in a session: nobody tells us that the key was removed."""

MAX_KEYS: Final = 8
"""Public keys of a record that are tried for an identity without an index (index 0). Anybody may ask for it, and users
have two or three."""

MAX_SECRETS: Final = 3
"""The same for secrets. Each check costs up to 0.1 s, and a wrong proof always takes so many, so that its time does not
reveal how many secrets there are."""

PROOF_KINDS: Final = {HS_PUBKEY: Proof.PUBLIC_KEY, HS_SECKEY: Proof.SECRET_KEY}
"""Kinds of proof by their name in the protocol."""


class HostedElsewhere(Refused):
    """Another server hosts the keys of an identity."""


class KeyChanged(Refused):
    """The key that proved an identity was removed or changed."""


@dataclass(frozen=True, slots=True)
class ProvenIdentity(Identity):
    """An authenticated identity; sessions keep it."""

    kind: Proof = Proof.PUBLIC_KEY
    fingerprint: bytes = b""
    """Hash of the key."""
    external_until: int = 0
    """For a key on another server: until when the proof is valid. 0 for a key that is stored here."""


def key_identity(identity: Identity, kind: Proof, *, session: bool) -> KeyIdentity:
    """Return the identity for the registry; raise `Refused` if no record can have such a name."""
    try:
        handle = identity.handle.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(ResponseCode.INVALID_ADMIN, "the handle of the identity is not valid UTF-8") from None
    reference = ValueRef(max(identity.index, 0), handle)
    return KeyIdentity(reference, kind, session, identity.key_index)


def caller_identity(proved: ProvenIdentity | None, *, session: bool) -> CallerIdentity:
    """Return the authenticated identity, or the anonymous one."""
    return Anonymous(session) if proved is None else key_identity(proved, proved.kind, session=session)


def find_keys(snapshot: Snapshot, reference: ValueRef, kind: Proof) -> tuple[Value, ...]:
    """Return the values that can prove an identity, by index; raise `Refused` if another server hosts its prefix.

    That is public. Whether the record exists is not: it may be unpublished or reserved, so without a record there are
    no keys. Records left over from a prefix that this server has stopped hosting are ignored, as with groups.
    """
    handle = reference.handle
    if is_hosted_elsewhere(snapshot, handle):
        reason = hosted_elsewhere_reason(handle)
        raise HostedElsewhere(ResponseCode.AUTHENTICATION_FAILED, reason, AdviceKind.USE_KEY_STORED_HERE())
    return candidate_keys(snapshot.group(handle) or (), kind, reference.index)


def is_unknown_prefix_handle(snapshot: Snapshot, handle: str) -> bool:
    """Whether a name is a prefix handle that is not stored here."""
    name = Handle.for_lookup(handle)
    return name is not None and name.is_prefix_handle and snapshot.group(handle) is None


def is_hosted_elsewhere(snapshot: Snapshot, handle: str) -> bool:
    """Whether another server hosts the prefix of a handle."""
    name = Handle.for_lookup(handle)
    return name is not None and not name.is_prefix_handle and not snapshot.is_responsible(name)


def hosted_elsewhere_reason(handle: str) -> str:
    """Why the holder of a key in such a handle cannot be authenticated."""
    return f"the prefix of {display_name(handle)} is not hosted here, and its keys cannot be read"


def candidate_keys(values: Sequence[Value], kind: Proof, index: int) -> tuple[Value, ...]:
    """Return the keys of a kind: the one at the index, or with index 0 the first few. `HS_PUBKEY` matches exactly."""
    public = kind is Proof.PUBLIC_KEY
    keys = [value for value in values if (value.type == HS_PUBKEY if public else fold(value.type) == HS_SECKEY)]
    matching = [value for value in keys if value.index > 0 and index in (0, value.index)]
    return tuple(sorted(matching, key=lambda value: value.index)[: MAX_KEYS if public else MAX_SECRETS])


DUMMY_SECRET: Final = bytes(range(32))
DUMMY_PUBLIC_KEY: Final = RsaPublicKey(65_537, (1 << 2_048) - 1)
"""What a proof is checked with if there is no key, so that its time does not reveal which identities exist. The result
is ignored."""


def find_proving_secret(keys: Sequence[Value], check: Callable[[bytes], bool], index: int) -> Value | None:
    """Return the first secret that passes the check, or None. An empty one proves nothing.

    A wrong proof takes the same number of checks for an index, whatever secrets there are.
    """
    secrets = [value for value in keys if value.data]
    for value in secrets:
        if check(value.data):
            return value
    for _ in range(len(secrets), count_secrets(index)):
        check(DUMMY_SECRET)
    return None


def count_secrets(index: int) -> int:
    """How many secrets are tried for an index."""
    return 1 if index > 0 else MAX_SECRETS


def find_proving_public_key(keys: Sequence[Value], check: Callable[[PublicKey], bool]) -> Value | None:
    """Return the first public key that passes the check, or None. An invalid one proves nothing."""
    return choose_proving_key(parse_public_keys(keys), check)


def parse_public_keys(keys: Sequence[Value]) -> list[tuple[Value, PublicKey]]:
    """Parse public keys; invalid ones are left out."""
    valid: list[tuple[Value, PublicKey]] = []
    for value in keys:
        with suppress(InvalidData):
            valid.append((value, PublicKey.from_bytes(value.data)))
    return valid


def choose_proving_key(keys: Sequence[tuple[Value, PublicKey]], check: Callable[[PublicKey], bool]) -> Value | None:
    """Return the first of the parsed keys that passes the check, or None. Slow, also without keys."""
    if not keys:
        check(DUMMY_PUBLIC_KEY)
    return next((value for value, key in keys if check(key)), None)


def are_rsa_keys(keys: Sequence[tuple[Value, PublicKey]]) -> bool:
    """Whether all parsed keys are RSA keys, with which a signature is checked in some 30 µs each."""
    return all(isinstance(key, RsaPublicKey) for _, key in keys)


def authentication_failed(identity: KeyIdentity) -> Refused:
    """Return a refusal that does not reveal whether the response was wrong, or the key or its record is missing."""
    reason = f"the response does not match a key of {display_name(str(identity))}"
    return Refused(ResponseCode.AUTHENTICATION_FAILED, reason)


def prove_identity(identity: Identity, kind: Proof, key: Value) -> ProvenIdentity:
    """Return the identity proved by a key."""
    return ProvenIdentity(identity.handle, identity.index, key.index, kind, key_fingerprint(key))


def key_fingerprint(key: Value) -> bytes:
    """Return a hash that identifies a key without revealing it; the index is not part of it."""
    return hashlib.sha256(f"{key.type}\0".encode() + key.data).digest()


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks that the key of an identity is unchanged."""

    proved: ProvenIdentity
    session: bool

    def check(self, snapshot: Snapshot, now: float) -> None:
        """Refuse an identity whose key has changed. What is read here becomes a precondition of the decision.

        A key on another server cannot be read here: its proof is valid for a limited time.
        """
        proved = self.proved
        if proved.external_until:
            if now >= proved.external_until:
                reason = "the session has ended because its key is on another server; authenticate again"
                raise KeyChanged(ResponseCode.SESSION_TIMEOUT, reason)
            return
        values = snapshot.group(proved.handle.decode("utf-8")) or ()
        if any(value.index == proved.key_index and key_fingerprint(value) == proved.fingerprint for value in values):
            return
        identity = display_name(f"{proved.key_index}:{proved.handle.decode('utf-8')}")
        if self.session:
            raise KeyChanged(
                ResponseCode.SESSION_TIMEOUT, f"the session has ended because its key {identity} was changed"
            )
        raise KeyChanged(ResponseCode.AUTHENTICATION_FAILED, f"the key {identity} was changed")

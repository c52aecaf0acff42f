"""Who asks over the native protocol: the key that proves it, and that the key is still there when it counts.

A claim is weighed before it is verified (native protocol, 14): who is no administrator is told so, whether or not the
signature is right. The key is then read from the record of the identity, which has to be held here, because the server
asks no other. Between verification and commit the world may move; so the operation that is carried out reads the key
once more, in the very state in which it is decided, and the ledger checks at commit that the record has not moved.
The same holds for every request in a session: with the key that proved it the session ends.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perseid.names.characters import fold
from perseid.records.errors import InvalidData
from perseid.records.public_keys import PublicKey
from perseid.records.types import HS_PUBKEY, HS_SECKEY
from perseid.records.value import Value, ValueRef
from perseid.registry.access.permissions import shown
from perseid.registry.identity import Anonymous, KeyHolder, Proof
from perseid.registry.identity import Identity as Asker
from perseid.registry.results import Refused
from perseid.registry.snapshot import Facts
from perseid.wire.codes import ResponseCode
from perseid.wire.server import Proof as Answer
from perseid.wire.sessions import Identity

MAX_KEYS: Final = 8
"""How many keys of a record are tried for an identity that does not say which one it has (index 0). Each check costs up
to 0.1 s, anybody may ask for it, and people have two or three."""

KINDS: Final = {HS_PUBKEY: Proof.PUBLIC_KEY, HS_SECKEY: Proof.SECRET_KEY}
"""What a proof was made with, by the name that the protocol has for it."""


class KeyGone(Refused):
    """The key that proved an identity is no longer there, or no longer the same."""


@dataclass(frozen=True, slots=True)
class Proved(Identity):
    """Somebody who has answered a challenge; a session keeps this."""

    kind: Proof = Proof.PUBLIC_KEY
    mark: bytes = b""
    """What the key was, as a hash."""


def holder(identity: Identity, kind: Proof, *, session: bool) -> KeyHolder:
    """Who that is to the registry; raises `Refused` if no record can have such a name."""
    try:
        handle = identity.handle.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(ResponseCode.INVALID_ADMIN, "the name of the identity is not UTF-8") from None
    reference = ValueRef(max(identity.index, 0), handle)
    return KeyHolder(reference, kind, session, identity.key_index)


def asker(proved: Proved | None, *, session: bool) -> Asker:
    """Who asks: somebody who has proved it, or nobody in particular."""
    return Anonymous(session) if proved is None else holder(proved, proved.kind, session=session)


def keys_of(facts: Facts, who: KeyHolder) -> tuple[Value, ...]:
    """The values that can prove an identity, by ascending index; raises `Refused` if its record is not held here.

    As with groups: what is left of a prefix that is no longer homed here counts for nothing.
    """
    values = facts.group(who.reference.handle)
    if values is None:
        reason = f"{shown(who.reference.handle)}, which would hold the key, is not held here"
        advice = "this server asks no other one: use a key whose handle is held here"
        raise Refused(ResponseCode.AUTHENTICATION_FAILED, reason, advice)
    return candidates(values, who.proof, who.reference.index)


def candidates(values: Sequence[Value], kind: Proof, index: int) -> tuple[Value, ...]:
    """The keys of a kind: the one at the index, or with index 0 the first few. `HS_PUBKEY` counts exactly so only."""
    public = kind is Proof.PUBLIC_KEY
    keys = [value for value in values if (value.type == HS_PUBKEY if public else fold(value.type) == HS_SECKEY)]
    wanted = [value for value in keys if value.index > 0 and index in (0, value.index)]
    return tuple(sorted(wanted, key=lambda value: value.index)[:MAX_KEYS])


def proving(answer: Answer, kind: Proof, keys: Sequence[Value]) -> Value | None:
    """The first of the keys that the answer to a challenge was made with; None if it is none of them. Takes long."""
    for value in keys:
        if kind is Proof.SECRET_KEY:
            if answer.check_secret(value.data):
                return value
            continue
        try:
            key = PublicKey.from_bytes(value.data)
        except InvalidData:
            continue
        if answer.check_key(key):
            return value
    return None


def not_proved(who: KeyHolder) -> Refused:
    """The answer was wrong, or there is no such key: which of the two, nobody is told."""
    reason = f"the answer was not made with a key that is held here for {shown(str(who))}"
    return Refused(ResponseCode.AUTHENTICATION_FAILED, reason)


def proved_by(identity: Identity, kind: Proof, key: Value) -> Proved:
    """The identity that a key has proved."""
    return Proved(identity.handle, identity.index, key.index, kind, mark_of(key))


def mark_of(key: Value) -> bytes:
    """What tells a key from every other: its index is not part of it, its octets are not told by it."""
    return hashlib.sha256(f"{key.type}\0".encode() + key.data).digest()


@dataclass(frozen=True, slots=True)
class Guard:
    """That the key of an identity is still there, and still the same."""

    proved: Proved
    session: bool

    def check(self, facts: Facts) -> None:
        """Refuse an identity whose key has gone. What is read here the decision rests on."""
        proved = self.proved
        values = facts.group(proved.handle.decode("utf-8")) or ()
        if any(value.index == proved.key_index and mark_of(value) == proved.mark for value in values):
            return
        who = shown(f"{proved.key_index}:{proved.handle.decode('utf-8')}")
        if self.session:
            raise KeyGone(ResponseCode.SESSION_TIMEOUT, f"the session ends: the key {who} that proved it has changed")
        raise KeyGone(ResponseCode.AUTHENTICATION_FAILED, f"the key {who} has changed")


def claimed(answer: Answer, proved: Proved) -> Answer:
    """The answer of somebody who has proved who they are, for `Server.accept`."""
    return replace(answer, identity=proved)

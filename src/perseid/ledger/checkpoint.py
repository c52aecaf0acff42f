"""Signing checkpoints: the log's own word about its size and root, which anyone can hold it to.

The key is an Ed25519 key of the installation, kept in a file of its own. It is rotated by an entry (ROTATE_KEY) whose
note holds the new key, signed with the old one; a verifier that trusts the first key follows the chain.
"""

from dataclasses import dataclass, field
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from perseid.proof.verifier import ROTATION, Checkpoint, InvalidProof, LogKey, handed_over, write_note


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key that signs checkpoints."""

    name: str
    """The key's name: that of the log."""
    _seed: bytes = field(repr=False)

    @classmethod
    def generate(cls, name: str, random_octets: bytes) -> Self:
        """A new key from 32 random octets."""
        if len(random_octets) != 32:
            raise ValueError("an Ed25519 key is made from 32 random octets")
        return cls(name, random_octets)

    @classmethod
    def from_octets(cls, octets: bytes) -> Self:
        """Take a key from its file: the seed in hexadecimal, a blank, the name."""
        seed, _, name = octets.decode("utf-8").strip().partition(" ")
        return cls.generate(name, bytes.fromhex(seed))

    def to_octets(self) -> bytes:
        """The content of the key's file."""
        return f"{self._seed.hex()} {self.name}\n".encode()

    @property
    def public(self) -> LogKey:
        """What verifiers need."""
        public = self._private().public_key()
        return LogKey(self.name, public.public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, checkpoint: Checkpoint) -> str:
        """The checkpoint as a signed note."""
        return self._note(checkpoint.text())

    def hand_over(self, successor: LogKey) -> str:
        """The note by which this key names the next one."""
        return self._note(f"{ROTATION}\n{self.public}\n{successor}\n")

    def _note(self, text: str) -> str:
        key = self.public
        return write_note(text, [(key.name, key.id, self._private().sign(text.encode()))])

    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self._seed)


def successor(note: str, key: LogKey) -> LogKey:
    """The key that `key` hands over to, if it signed the note."""
    old, new = handed_over(note)
    if old != key:
        raise InvalidProof(f"the hand-over is not signed by {key.name}")
    return new

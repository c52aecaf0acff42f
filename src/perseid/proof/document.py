"""Offline verification of proof documents.

It needs only this module, `verifier` and a trusted public key. The document is JSON, specified in
docs/reference/proof-format.md. What is verified:

- the checkpoint is signed with the trusted key, or with a later key of the ledger: each key rotation is an entry of the
  ledger, signed with the key before;
- the entry, and each key rotation, is in the tree of the checkpoint;
- the entry committed to the disclosed values, actor and note.

Not proved: that no later entry changed the record, and the values that the document does not disclose. The document is
untrusted, so everything in it is limited.
"""

import base64
import binascii
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .verifier import (
    MAX_PROOF,
    Branch,
    Checkpoint,
    InvalidProof,
    Leaf,
    LogKey,
    check_inclusion,
    commitment,
    format_note,
    leaf_hash,
    open_checkpoint,
    parse_key_rotation,
    parse_note,
)

FORMAT: Final = "perseid proof 1"
"""The `format` member of this version."""

MAX_DOCUMENT: Final = 16 * 1_048_576
"""Maximum size of a document in bytes. The longest record that an interface accepts has 4 MiB as JSON; in a proof, with
salts and commitments, it has less than twice as many."""

MAX_LINKS: Final = 1_000
"""Maximum number of key rotations: one per month for eighty years. Each costs a signature check."""

ROTATE_KEY: Final = 11
"""The action of a key rotation."""

BRANCH: Final = 12
"""The action of a branch: a restored ledger continues under a new name and key."""

LEDGER: Final = "0.SITE/LEDGER"
"""The handle of such entries."""

_MEMBERS = frozenset({"format", "handle", "seq", "entry", "values", "checkpoint", "keys"})
_OPTIONAL_MEMBERS = frozenset({"actor", "note"})
_ENTRY_MEMBERS = frozenset({"leaf", "path"})
_LINK_MEMBERS = frozenset({"leaf", "path", "note"})
_OPENING_MEMBERS = frozenset({"salt", "content"})
_SALT_LENGTH = 16
_VALUE = struct.Struct(">iIBiB")  # index, timestamp, TTL type, TTL, permissions
_NUMBER = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class ProvedValue:
    """A value that the entry committed to; see docs/reference/ledger-format.md."""

    index: int
    timestamp: int
    """Seconds since 1970 modulo 2³²; 0 is not set."""
    ttl_type: int
    ttl: int
    permissions: int
    type: str
    data: bytes
    references: tuple[tuple[int, str], ...]
    """Index and handle of each."""
    content: bytes
    """The encoded value, as stored."""


@dataclass(frozen=True, slots=True)
class VerifiedProof:
    """The verified content of a document."""

    handle: str
    """The handle, as spelled in the entry."""
    seq: int
    at: int
    """Time of the entry, in microseconds since 1970."""
    action: int
    state: int
    values: tuple[ProvedValue, ...]
    """The disclosed values, by ascending index."""
    undisclosed: int
    """Number of values that the document does not disclose."""
    actor: str | None
    """Interface and actor, if disclosed."""
    note: str | None
    checkpoint: Checkpoint
    keys: tuple[LogKey, ...]
    """The trusted key and its successors; the last one signed the checkpoint."""
    branch: Branch | None
    """The ledger that this one continues, if it was restored."""


def verify_proof(
    document: str | bytes, key: LogKey, *, handle: str | None = None, seq: int | None = None
) -> VerifiedProof:
    """Verify a document with a trusted key; raises `InvalidProof`.

    With `handle` or `seq`, a proof for another handle or entry is rejected.
    """
    members = _check_object(_parse(document), "the document", _MEMBERS, _OPTIONAL_MEMBERS)
    if members["format"] != FORMAT:
        raise InvalidProof(f"the document does not have the format {FORMAT!r}")
    note = _check_text(members["checkpoint"], "the checkpoint")
    text, signatures = parse_note(note)
    if len(signatures) != 1 or format_note(text, signatures) != note:
        raise InvalidProof("the checkpoint must have one signature and be in canonical form")
    stated = Checkpoint.parse(text)
    # The checkpoint is not verified yet: the key rotations in its tree determine its key.
    leaf = _parse_entry(members["entry"], stated, "the entry")
    links = _parse_links(members["keys"], stated)
    branch = next((each for each in links if isinstance(each, Branch)), None)
    keys = _follow_keys(key, [each for each in links if isinstance(each, str)], branch)
    if signatures[0][:2] != (keys[-1].name, keys[-1].id):
        raise _foreign_key_error(signatures[0][0], key, branch)
    checkpoint = open_checkpoint(note, keys[-1])
    if checkpoint.origin != keys[-1].name:
        raise InvalidProof("the checkpoint and its key have different origins")
    _check_subject(leaf, members, handle, seq)
    values = tuple(_parse_values(members["values"], leaf))
    return VerifiedProof(
        handle=leaf.handle,
        seq=leaf.seq,
        at=leaf.at,
        action=leaf.action,
        state=leaf.state,
        values=values,
        undisclosed=len(leaf.values) - len(values),
        actor=_open_text(members, "actor", b"A", leaf.actor),
        note=_open_text(members, "note", b"N", leaf.note),
        checkpoint=checkpoint,
        keys=keys,
        branch=branch,
    )


def _check_subject(leaf: Leaf, members: dict[str, object], handle: str | None, seq: int | None) -> None:
    stated = _check_text(members["handle"], "the handle")
    if stated != leaf.handle or type(members["seq"]) is not int or members["seq"] != leaf.seq:
        raise InvalidProof(f"the proof is for entry {leaf.seq} of {leaf.handle!r}, unlike the document states")
    if handle is not None and _record_key(handle, leaf.exact) != _record_key(leaf.handle, leaf.exact):
        raise InvalidProof(f"the proof is for {leaf.handle!r}, not for {handle!r}")
    if seq is not None and seq != leaf.seq:
        raise InvalidProof(f"the proof is for entry {leaf.seq}, not for entry {seq}")


# Keys


def _parse_links(value: object, checkpoint: Checkpoint) -> list[str | Branch]:
    """The notes of the key rotations, and the branch, all from entries of the tree."""
    links: list[str | Branch] = []
    last = 0
    for each in _check_list(value, "the keys", MAX_LINKS):
        link = _check_object(each, "a key rotation", _LINK_MEMBERS)
        leaf = _parse_entry({"leaf": link["leaf"], "path": link["path"]}, checkpoint, "a key rotation")
        if leaf.handle != LEDGER or leaf.action not in (ROTATE_KEY, BRANCH) or leaf.seq <= last:
            raise InvalidProof(f"entry {leaf.seq} is not a key rotation, or is out of order")
        note = _open_text(link, "note", b"N", leaf.note) or ""
        if leaf.action == BRANCH and links:
            raise InvalidProof(f"entry {leaf.seq} begins a new ledger, but a key rotation precedes it")
        links.append(Branch.parse(note) if leaf.action == BRANCH else note)
        last = leaf.seq
    return links


def _follow_keys(key: LogKey, notes: list[str], branch: Branch | None) -> tuple[LogKey, ...]:
    """The trusted key and its successors; all key rotations must be consecutive, also those before the trusted key."""
    keys = [key]
    last = None if branch is None else branch.new
    for old, new in map(parse_key_rotation, notes):
        if last not in (None, old):
            raise InvalidProof(f"a key rotation is missing before {old}")
        if old == keys[-1]:
            keys.append(new)
        last = new
    return tuple(keys)


def _foreign_key_error(signer: str, key: LogKey, branch: Branch | None) -> InvalidProof:
    message = f"the checkpoint is signed by {signer}, with a key that is not a successor of {key}"
    if branch is not None and branch.predecessor.origin == key.name:
        message += f"; that ledger was restored and continues as {branch.new.name}: ask its operator for the new key"
    return InvalidProof(message)


# Entries


def _parse_entry(value: object, checkpoint: Checkpoint, what: str) -> Leaf:
    """Parse a leaf and verify that it is in the tree of a checkpoint."""
    members = _check_object(value, what, _ENTRY_MEMBERS)
    raw = _decode_base64(members["leaf"], f"the leaf of {what}")
    path = [
        _decode_base64(each, f"the path of {what}")
        for each in _check_list(members["path"], f"the path of {what}", MAX_PROOF)
    ]
    leaf = Leaf.parse(raw)
    check_inclusion(leaf.seq - 1, checkpoint.size, checkpoint.root, leaf_hash(raw), path)
    return leaf


def _parse_values(value: object, leaf: Leaf) -> Iterator[ProvedValue]:
    """The disclosed values, which the leaf must have committed to, in the same order."""
    positions = {each: position for position, each in enumerate(leaf.values)}
    last = -1
    for each in _check_list(value, "the values", len(leaf.values)):
        salt, content = _parse_opening(each, "a value")
        position = positions.get(commitment(b"V", salt, content))
        if position is None or position <= last:
            raise InvalidProof(f"a value is not part of entry {leaf.seq}, or is out of order")
        last = position
        yield _parse_value(content)


def _parse_value(content: bytes) -> ProvedValue:
    """Decode a value in the encoding of the native protocol."""
    try:
        index, timestamp, ttl_type, ttl, permissions = _VALUE.unpack_from(content)
        type_, at = _read_counted(content, _VALUE.size)
        data, at = _read_counted(content, at)
        (count,) = _NUMBER.unpack_from(content, at)
        at += _NUMBER.size
        references = []
        for _ in range(count):
            handle, at = _read_counted(content, at)
            references.append((int(_NUMBER.unpack_from(content, at)[0]), handle.decode("utf-8")))
            at += _NUMBER.size
        text = type_.decode("utf-8")
    except (struct.error, UnicodeDecodeError):
        raise InvalidProof("the content of a value is malformed") from None
    if count < 0 or at != len(content):
        raise InvalidProof("the content of a value is malformed")
    return ProvedValue(index, timestamp, ttl_type, ttl, permissions, text, data, tuple(references), content)


def _read_counted(raw: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _NUMBER.unpack_from(raw, at)
    start = at + _NUMBER.size
    if not 0 <= length <= len(raw) - start:
        raise struct.error
    return raw[start : start + length], start + length


def _open_text(members: dict[str, object], name: str, kind: bytes, committed: bytes) -> str | None:
    """The actor or note, if disclosed and the entry committed to it."""
    if name not in members:
        return None
    salt, content = _parse_opening(members[name], f"the {name}")
    if commitment(kind, salt, content) != committed:
        raise InvalidProof(f"the {name} is not that of the entry")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidProof(f"the {name} is not text") from None


def _parse_opening(value: object, what: str) -> tuple[bytes, bytes]:
    members = _check_object(value, what, _OPENING_MEMBERS)
    salt = _decode_base64(members["salt"], f"the salt of {what}")
    if len(salt) != _SALT_LENGTH:  # the commitment does not delimit salt and content
        raise InvalidProof(f"the salt of {what} must have {_SALT_LENGTH} bytes")
    return salt, _decode_base64(members["content"], f"the content of {what}")


def _record_key(handle: str, exact: bool) -> str:
    """A handle with a–z replaced by A–Z: all of it, or only the prefix if the suffix is case-sensitive."""
    prefix, slash, suffix = handle.partition("/")
    fold = {letter: letter - 32 for letter in range(ord("a"), ord("z") + 1)}
    return prefix.translate(fold) + slash + (suffix if exact else suffix.translate(fold))


# JSON


def _parse(document: str | bytes) -> object:
    if len(document) > MAX_DOCUMENT:
        raise InvalidProof(f"the document has more than {MAX_DOCUMENT:,} bytes")
    try:
        text = document.decode("utf-8") if isinstance(document, bytes) else document
        value: object = json.loads(text, object_pairs_hook=_reject_duplicates)
    except InvalidProof:
        raise
    except (ValueError, RecursionError):
        raise InvalidProof("the document is not JSON") from None
    return value


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise InvalidProof("the document has a duplicate member")
    return members


def _check_object(
    value: object, what: str, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> dict[str, object]:
    """Return an object with these members only: a proof must not contain anything unverified."""
    if not isinstance(value, dict) or not required <= value.keys() <= required | optional:
        raise InvalidProof(f"{what} must be an object with {', '.join(sorted(required))}, and nothing else")
    return value


def _check_list(value: object, what: str, limit: int) -> list[object]:
    if not isinstance(value, list) or len(value) > limit:
        raise InvalidProof(f"{what} must be an array of at most {limit} items")
    return value


def _check_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidProof(f"{what} must be a string")
    return value


def _decode_base64(value: object, what: str) -> bytes:
    """Decode canonical base64."""
    text = _check_text(value, what)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidProof(f"{what} is not base64") from None
    if base64.b64encode(raw).decode() != text:
        raise InvalidProof(f"{what} is not canonical base64")
    return raw

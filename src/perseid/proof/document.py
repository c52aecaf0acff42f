"""Check a proof document, offline: the history of one name, long after the server that wrote it is gone.

It needs this module, `verification` beside it, and a public key that one trusts; nothing else of this package. The
document is JSON and specified in docs/reference/proof-format.md. What is checked:

- the checkpoint is signed with the trusted key, or with one that it handed over to: each hand-over is an entry of the
  ledger, signed with the key before;
- the entry, and each hand-over, is in the tree of that checkpoint;
- each value, the actor and the note that the document shows are those that the entry committed to.

What is not proved: that no later entry changed the name again, and what the values are that the document does not show.
The document comes from anybody, so everything in it is bounded, and nothing is believed because it is written there.
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
"""What a document of this version says it is."""

MAX_DOCUMENT: Final = 16 * 1_048_576
"""Bytes of the longest document that is read. The longest record that a door accepts has 4 MiB as JSON; in a proof,
with salts and commitments, it has less than twice as many."""

MAX_LINKS: Final = 1_000
"""The most hand-overs in a document: a key that changes every month for eighty years. Each costs a signature check."""

ROTATE_KEY: Final = 11
"""The action of an entry with which the ledger changes its key."""

BRANCH: Final = 12
"""The action of an entry with which a restored ledger goes on under a new name and key."""

LEDGER: Final = "0.SITE/LEDGER"
"""The name that such entries are about."""

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
    """A value that the entry committed to, as docs/reference/ledger-format.md describes it."""

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
    """All of it, as it is stored."""


@dataclass(frozen=True, slots=True)
class VerifiedProof:
    """What a document proves."""

    handle: str
    """The name, as it is spelled in the entry."""
    seq: int
    at: int
    """When the entry was made, in microseconds since 1970."""
    action: int
    state: int
    values: tuple[ProvedValue, ...]
    """The values that the document shows, by ascending index."""
    undisclosed: int
    """How many more the record had, which the document does not show."""
    actor: str | None
    """Door and actor, if the document shows them."""
    note: str | None
    checkpoint: Checkpoint
    keys: tuple[LogKey, ...]
    """The trusted key, and those that it handed over to; the last one signed the checkpoint."""
    branch: Branch | None
    """Which ledger this one continues, if it was restored."""


def verify_proof(
    document: str | bytes, key: LogKey, *, handle: str | None = None, seq: int | None = None
) -> VerifiedProof:
    """Check a document with a key that one trusts; raises `InvalidProof`.

    With `handle` or `seq`, a proof of something else is refused as well.
    """
    members = _check_object(_parse(document), "the document", _MEMBERS, _OPTIONAL_MEMBERS)
    if members["format"] != FORMAT:
        raise InvalidProof(f"this is not a document of the format {FORMAT!r}")
    note = _check_text(members["checkpoint"], "the checkpoint")
    text, signatures = parse_note(note)
    if len(signatures) != 1 or format_note(text, signatures) != note:
        raise InvalidProof("the checkpoint should have one signature, and be written canonically")
    stated = Checkpoint.parse(text)
    # The tree is that of a checkpoint which nobody vouches for yet: whose it is, its own hand-overs tell.
    leaf = _parse_entry(members["entry"], stated, "the entry")
    links = _parse_links(members["keys"], stated)
    branch = next((each for each in links if isinstance(each, Branch)), None)
    keys = _follow_keys(key, [each for each in links if isinstance(each, str)], branch)
    if signatures[0][:2] != (keys[-1].name, keys[-1].id):
        raise _foreign_key_error(signatures[0][0], key, branch)
    checkpoint = open_checkpoint(note, keys[-1])
    if checkpoint.origin != keys[-1].name:
        raise InvalidProof("the checkpoint is about another log than its key")
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
    """Refuse a proof that is not about what it says, or not about what was asked."""
    stated = _check_text(members["handle"], "the handle")
    if stated != leaf.handle or type(members["seq"]) is not int or members["seq"] != leaf.seq:
        raise InvalidProof(f"the document is about entry {leaf.seq} of {leaf.handle!r}, not about what it says")
    if handle is not None and _record_key(handle, leaf.exact) != _record_key(leaf.handle, leaf.exact):
        raise InvalidProof(f"the document is about {leaf.handle!r}, not about {handle!r}")
    if seq is not None and seq != leaf.seq:
        raise InvalidProof(f"the document is about entry {leaf.seq}, not about entry {seq}")


# Keys


def _parse_links(value: object, checkpoint: Checkpoint) -> list[str | Branch]:
    """The notes of the hand-overs, and the ledger that this one continues: all from entries of the tree."""
    found: list[str | Branch] = []
    last = 0
    for each in _check_list(value, "the keys", MAX_LINKS):
        link = _check_object(each, "a hand-over", _LINK_MEMBERS)
        leaf = _parse_entry({"leaf": link["leaf"], "path": link["path"]}, checkpoint, "a hand-over")
        if leaf.handle != LEDGER or leaf.action not in (ROTATE_KEY, BRANCH) or leaf.seq <= last:
            raise InvalidProof(f"entry {leaf.seq} hands over to no key, or stands in the wrong place")
        note = _open_text(link, "note", b"N", leaf.note) or ""
        if leaf.action == BRANCH and found:
            raise InvalidProof(f"entry {leaf.seq} begins a new ledger, so nothing is handed over before it")
        found.append(Branch.parse(note) if leaf.action == BRANCH else note)
        last = leaf.seq
    return found


def _follow_keys(key: LogKey, notes: list[str], branch: Branch | None) -> tuple[LogKey, ...]:
    """The trusted key, and those after it; the hand-overs follow each other, also those from before its time."""
    keys = [key]
    last = None if branch is None else branch.new
    for old, new in map(parse_key_rotation, notes):
        if last not in (None, old):
            raise InvalidProof(f"a hand-over is missing: {old} did not come to sign by those that are there")
        if old == keys[-1]:
            keys.append(new)
        last = new
    return tuple(keys)


def _foreign_key_error(signer: str, key: LogKey, branch: Branch | None) -> InvalidProof:
    message = f"the checkpoint is signed by {signer}, with a key that {key} did not hand over to"
    if branch is not None and branch.predecessor.origin == key.name:
        message += f"; that ledger was restored and goes on as {branch.new.name}: ask its operator for the new key"
    return InvalidProof(message)


# Entries


def _parse_entry(value: object, checkpoint: Checkpoint, what: str) -> Leaf:
    """A leaf that is in the tree of a checkpoint."""
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
    """The values that are shown, each one of those that the leaf committed to, in their order."""
    places = {each: place for place, each in enumerate(leaf.values)}
    last = -1
    for each in _check_list(value, "the values", len(leaf.values)):
        salt, content = _parse_opening(each, "a value")
        place = places.get(commitment(b"V", salt, content))
        if place is None or place <= last:
            raise InvalidProof(f"this is no value of entry {leaf.seq}, or it stands in the wrong place")
        last = place
        yield _parse_value(content)


def _parse_value(content: bytes) -> ProvedValue:
    """Take a value apart, as the native protocol encodes it."""
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
        raise InvalidProof("the content of a value cannot be read") from None
    if count < 0 or at != len(content):
        raise InvalidProof("the content of a value cannot be read")
    return ProvedValue(index, timestamp, ttl_type, ttl, permissions, text, data, tuple(references), content)


def _read_counted(raw: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _NUMBER.unpack_from(raw, at)
    start = at + _NUMBER.size
    if not 0 <= length <= len(raw) - start:
        raise struct.error
    return raw[start : start + length], start + length


def _open_text(members: dict[str, object], name: str, kind: bytes, committed: bytes) -> str | None:
    """The actor or note, if it is shown and the entry committed to it."""
    if name not in members:
        return None
    salt, content = _parse_opening(members[name], f"the {name}")
    if commitment(kind, salt, content) != committed:
        raise InvalidProof(f"this is not the {name} of the entry")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidProof(f"the {name} is not text") from None


def _parse_opening(value: object, what: str) -> tuple[bytes, bytes]:
    members = _check_object(value, what, _OPENING_MEMBERS)
    salt = _decode_base64(members["salt"], f"the salt of {what}")
    if len(salt) != _SALT_LENGTH:  # where salt ends and content begins is not in the commitment
        raise InvalidProof(f"the salt of {what} should have {_SALT_LENGTH} bytes")
    return salt, _decode_base64(members["content"], f"the content of {what}")


def _record_key(handle: str, exact: bool) -> str:
    """A name with the letters a–z replaced by A–Z: all of it, or up to the first slash where letters are told apart."""
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
        raise InvalidProof("a member of the document stands there twice")
    return members


def _check_object(
    value: object, what: str, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> dict[str, object]:
    """An object with these members and no others: what is not checked should not stand in a proof."""
    if not isinstance(value, dict) or not required <= value.keys() <= required | optional:
        raise InvalidProof(f"{what} should be an object with {', '.join(sorted(required))}, and nothing else")
    return value


def _check_list(value: object, what: str, limit: int) -> list[object]:
    if not isinstance(value, list) or len(value) > limit:
        raise InvalidProof(f"{what} should be an array of at most {limit} items")
    return value


def _check_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidProof(f"{what} should be a string")
    return value


def _decode_base64(value: object, what: str) -> bytes:
    """Bytes in base64, as it is written and not otherwise: some texts stand for the same bytes."""
    text = _check_text(value, what)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidProof(f"{what} is not base64") from None
    if base64.b64encode(raw).decode() != text:
        raise InvalidProof(f"{what} is not written as base64 is")
    return raw

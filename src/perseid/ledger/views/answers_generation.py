"""Generations of the answers view: LMDB environments and how entries are written to them.

A generation stores its position in the ledger in the same transaction as its data. It does not know whether it is the
current one; `answers` does.
"""

import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from struct import Struct
from typing import Any, Final, Self, TypeAlias

import lmdb

from perseid.compiled import native
from perseid.ledger.errors import CorruptData, CorruptView
from perseid.ledger.log.entry import PUBLIC_STATES, Change, Source, State
from perseid.ledger.log.record_keys import HOMED, POLICY
from perseid.ledger.store.directory import open_new
from perseid.names.handle import CaseRule
from perseid.records.errors import RecordProblem
from perseid.records.record import Value
from perseid.records.types import DELEGATION_TYPES, HS_NAMESPACE

from .answers_format import (
    EMPTY_PREFIX_ITEM,
    LAYOUT,
    DeletedItem,
    HandleItem,
    PrefixItem,
    decode_handle,
    encode_item,
    has_type,
    is_local,
    is_public,
    merge_item,
    past_key,
    store_key,
    value_type,
)

POLICY_TYPE: Final = b"PERSEID_POLICY"
"""The type of the value with the policy of a namespace."""

MAX_READERS: Final = 512
"""Reader slots. Each concurrently reading thread takes one, and a killed process leaves its own until the next check:
many times the cores of a large machine."""

LOCK_SIZE: Final = (MAX_READERS + 2) * 64
"""Bytes of LMDB's table of readers in `lock.mdb`: 64 for each, and its head."""

SPARE_TRANSACTIONS: Final = 4
"""Read transactions that are kept for reuse; a worker needs a few."""

CHUNK: Final = 1_000
"""Maximum entries applied in one transaction while catching up: other writers wait for some milliseconds."""

BATCH: Final = 20_000
"""Maximum records written in one transaction while building, when nothing waits."""

_MAX_OPEN_ATTEMPTS = 100
_OPEN_PAUSE = 0.01  # seconds
_POSITION = Struct("<Q16sQ32s")  # layout, ledger, entry, leaf
_APPLIED = b"applied"
_BUILT = b"built"
_SEQ = Struct("<Q")
_NO_LEAF = bytes(32)
PREFIX_RECORD_KEYS: Final = (b"0.NA/", b"0.SITE/")
"""How the keys of records about prefixes start."""

_PREFIX_HANDLE = b"0.NA/"
_HOMED_RECORD = HOMED.encode()
_POLICY_RECORD = POLICY.encode()
_REFERRAL_TYPES = frozenset(type_.encode() for type_ in DELEGATION_TYPES)
_DATABASES: Final = (b"handles", b"prefixes", b"policies", b"past", b"meta")

CORRUPTION_ERRORS: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    CorruptData,
)
"""Errors of a generation that is corrupt; a retry does not help."""

_ERRORS: Final = {
    -30798: lmdb.NotFoundError,
    -30797: lmdb.PageNotFoundError,
    -30796: lmdb.CorruptedError,
    -30794: lmdb.VersionMismatchError,
    -30793: lmdb.InvalidError,
}
"""Exceptions by the error number of LMDB (lmdb.h), of those that are distinguished."""

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Progress: TypeAlias = Callable[[int], object]
"""Called from time to time with the number of written records."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a view in a ledger."""

    ledger_id: bytes
    """The ledger's id."""
    seq: int
    """The number of the last applied entry; 0 before the first."""
    leaf: bytes
    """The leaf hash of that entry; zeros before the first."""

    @classmethod
    def of(cls, source: Source) -> Self:
        """Return the end of a state of the ledger."""
        return cls(source.ledger_id, source.size, source.leaf(source.size) if source.size else _NO_LEAF)

    def is_in(self, source: Source) -> bool:
        """Whether a ledger has this very entry."""
        if self.ledger_id != source.ledger_id or self.seq > source.size:
            return False
        return self.leaf == (source.leaf(self.seq) if self.seq else _NO_LEAF)


class Generation:
    """One LMDB environment. It is closed when the last reference is dropped."""

    __slots__ = ("begin", "env", "handles", "meta", "number", "past", "policies", "prefixes")

    def __init__(
        self,
        folder: Path,
        number: int,
        map_size: int,
        *,
        readonly: bool = False,
        new: bool = False,
        state_file: int | None = None,
    ) -> None:
        """Open or create it; with the descriptor of the state file for reading by the compiled module."""
        path = folder / str(number)
        if new:
            path.mkdir(mode=0o700)
            # LMDB would create a sparse file, and using one of its holes on a full disk ends the process (SIGBUS).
            with open_new(path / "lock.mdb") as file:
                file.write(bytes(LOCK_SIZE))
        elif not (path / "data.mdb").exists():
            raise CorruptData(f"{path} is missing; the answers view will be rebuilt")
        self.number = number
        self.env: Any
        if state_file is not None:
            self.env = native.Environment(str(path), map_size, _DATABASES, state_file, number, _to_error)
        else:
            self.env = _open_environment(path, map_size, readonly=readonly, new=new)
        self.env.reader_check()
        databases: list[Any] = [self.env.open_db(name, create=new) for name in _DATABASES]
        self.handles, self.prefixes, self.policies, self.past, self.meta = databases
        self.begin: Callable[..., Transaction] = self.env.begin
        if not new:
            with self.begin() as txn:
                self.position(txn)  # refuses another layout

    def position(self, txn: Transaction) -> Position:
        """Return how far the generation has come."""
        raw = txn.get(_APPLIED, db=self.meta)
        if raw is None or len(raw) != _POSITION.size:
            raise CorruptView("the answers view has no valid position", "answers")
        layout, ledger_id, seq, leaf = _POSITION.unpack(raw)
        if layout != LAYOUT:
            raise CorruptView(f"the answers view has layout {layout} instead of {LAYOUT}", "answers")
        return Position(ledger_id, seq, leaf)

    def _move(self, txn: Transaction, to: Position) -> None:
        txn.put(_APPLIED, _POSITION.pack(LAYOUT, to.ledger_id, to.seq, to.leaf), db=self.meta)

    # Entries

    def write(self, txn: Transaction, ledger_id: bytes, changes: Sequence[Change]) -> None:
        """Apply entries that follow the last applied one."""
        handles = self.handles
        cursor = txn.cursor(handles)
        last = cursor.key() if cursor.last() else b""
        for change in changes:
            record = change.key
            if not is_local(record):
                key = store_key(record)
                self._note_past(txn, change, key)
                if key > last:
                    # Ascending keys, as of counters, are appended, which fills pages completely.
                    item = encode_item(change, key)
                    if item is not None:
                        txn.put(key, item, append=True, db=handles)
                        last = key
                else:
                    before = txn.get(key, db=handles)
                    after = encode_item(change, key) if before is None else _merge_change(key, before, change)
                    _put(txn, handles, key, after)
            if record.startswith(PREFIX_RECORD_KEYS):
                self._write_prefix(txn, change)
        self._move(txn, Position(ledger_id, changes[-1].seq, changes[-1].leaf))

    def _note_past(self, txn: Transaction, change: Change, key: bytes) -> None:
        """Note whether a record is deleted by a change that is not applied yet, and its last version if public."""
        past = past_key(change.key)
        if change.state != State.ABSENT:
            txn.delete(past, db=self.past)
            return
        last = change.last_version
        raw = txn.get(key, db=self.handles)
        for item in () if raw is None else decode_handle(key, raw):
            if item.key == change.key:
                last = item.seq, item.at
        txn.put(past, DeletedItem(change.exact, last).to_bytes(), db=self.past)

    def _write_prefix(self, txn: Transaction, change: Change) -> None:
        part = PrefixPart.of(change)
        if part is not None:
            key = store_key(part.prefix)
            _put(txn, self.prefixes, key, part.merge(txn.get(key, db=self.prefixes)))
            if part.has_policy:
                _put(txn, self.policies, key, part.policy)

    def write_sorted(self, txn: Transaction, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Write items of new records, at least one, by ascending key. Does not move the position."""
        handles = self.handles
        cursor = txn.cursor(handles)
        appends = not cursor.last() or cursor.key() < items[0][0]
        if appends and len({key for key, _ in items}) == len(items):
            cursor.putmulti(items, append=True)
            return
        for key, raw in items:
            if not txn.put(key, raw, overwrite=False, db=handles):
                (item,) = decode_handle(key, raw)
                _put(txn, handles, key, merge_item(key, txn.get(key, db=handles), item.key, item))

    def move(self, txn: Transaction, seq: int, leaf: bytes) -> None:
        """Record that everything up to an entry has been written."""
        self._move(txn, Position(self.position(txn).ledger_id, seq, leaf))

    def follow(self, source: Source, until: int | None = None) -> int:
        """Apply new entries in chunks and return how many. For a generation that is not current yet."""
        end = source.size if until is None else until
        with self.begin() as txn:
            position = self.position(txn)
        seq = position.seq
        while seq < end:
            changes = source.changes(seq, min(CHUNK, end - seq))
            if not changes:
                raise CorruptData(f"entry {seq + 1} is missing. Run: perseid verify --all")
            with self.begin(write=True) as txn:
                self.write(txn, position.ledger_id, changes)
            seq = changes[-1].seq
        return seq - position.seq

    # Building and comparing

    def fill(self, source: Source, progress: Progress | None = None) -> None:
        """Write everything a ledger has into an empty generation."""
        records = source.current()
        done, last = 0, b""
        while batch := list(islice(records, BATCH)):
            with self.begin(write=True) as txn:
                for change in batch:
                    if change.state == State.ABSENT and not is_local(change.key):
                        self._note_past(txn, change, store_key(change.key))
                    last = self._add(txn, change, last)
                    self._write_prefix(txn, change)
            done += len(batch)
            if progress is not None:
                progress(done)
        with self.begin(write=True) as txn:
            self._move(txn, Position.of(source))
            txn.put(_BUILT, _SEQ.pack(source.size), db=self.meta)

    def built(self, txn: Transaction) -> int:
        """Return the entry at which it was built: data redacted by then was never in its files."""
        return int(_SEQ.unpack(txn.get(_BUILT, _SEQ.pack(0), db=self.meta))[0])

    def _add(self, txn: Transaction, change: Change, last: bytes) -> bytes:
        """Write the item of a record, if it has one; return the highest key so far.

        Records come in the order of the ledger's keys, which is nearly always that of the view's; then they are
        appended, which
        fills pages completely. Exact handles and very long ones may be out of order, or share a key.
        """
        key = store_key(change.key)
        item = encode_item(change, key)
        if item is None:
            return last
        if key > last:
            txn.put(key, item, append=True, db=self.handles)
            return key
        before = txn.get(key, db=self.handles)
        _put(txn, self.handles, key, item if before is None else _merge_change(key, before, change))
        return last

    def difference(self, txn: Transaction, other: "Generation") -> str | None:
        """Return database and key of the first difference between this transaction and another generation."""
        with other.begin() as theirs:
            for name, mine, its in (
                ("handles", self.handles, other.handles),
                ("prefixes", self.prefixes, other.prefixes),
                ("policies", self.policies, other.policies),
                ("past", self.past, other.past),
            ):
                for one, another in zip_longest(txn.cursor(mine), theirs.cursor(its)):
                    if one != another:
                        key = min(key for key, _ in filter(None, (one, another)))
                        return f"{name} {key.decode('utf-8', 'backslashreplace')}"
            return None if self.position(txn) == other.position(theirs) else "meta applied"


def _open_environment(path: Path, map_size: int, *, readonly: bool, new: bool) -> "lmdb.Environment":
    """Open an LMDB environment.

    LMDB knows open files by their inode, and forgets one a moment after it was closed: a new file may have got it.
    """
    for attempt in range(_MAX_OPEN_ATTEMPTS):
        try:
            return lmdb.open(
                str(path),
                map_size=map_size,
                readonly=readonly,
                sync=False,  # the state file tells when the data may be torn
                mode=0o600,
                create=new,
                max_readers=MAX_READERS,
                max_dbs=len(_DATABASES),
                max_spare_txns=SPARE_TRANSACTIONS,
            )
        except lmdb.Error as error:
            if not new or type(error) is not lmdb.Error or attempt == _MAX_OPEN_ATTEMPTS - 1:
                raise
            time.sleep(_OPEN_PAUSE)
    raise AssertionError("unreachable")


def _to_error(code: int, text: str) -> lmdb.Error:
    """The exception for an error of the compiled module."""
    return _ERRORS.get(code, lmdb.Error)(text)


def _merge_change(key: bytes, before: bytes, change: Change) -> bytes | None:
    """Return the bytes under a non-empty key after an entry."""
    return merge_item(key, before, change.key, HandleItem.of(change))


def _put(txn: Transaction, database: "lmdb._Database", key: bytes, raw: bytes | None) -> None:
    if raw is None:
        txn.delete(key, db=database)
    else:
        txn.put(key, raw, db=database)


# Prefixes


@dataclass(frozen=True, slots=True)
class PrefixPart:
    """What a record says about a prefix."""

    prefix: bytes
    """The case-folded prefix."""
    fields: dict[str, Any]
    """The fields of the item that this record determines."""
    has_policy: bool = False
    """Whether it is the record of the policy."""
    policy: bytes | None = None
    """The text of the policy, readable or not; None if there is none."""

    @classmethod
    def of(cls, change: Change) -> Self | None:
        """Extract what a change says about a prefix; None if it is not about one."""
        key = change.key
        if not key.startswith(PREFIX_RECORD_KEYS) or key != key.upper():
            return None  # prefixes are never case-sensitive, so an exact record is not about one
        if key.startswith(_PREFIX_HANDLE):
            prefix, fields = key.removeprefix(_PREFIX_HANDLE), _delegation_fields(change)
        elif key.startswith(_POLICY_RECORD):
            prefix, policy = key.removeprefix(_POLICY_RECORD), _policy_text(change)
            return cls(prefix, _policy_fields(policy), True, policy) if prefix and b"/" not in prefix else None
        elif key.startswith(_HOMED_RECORD):
            prefix, field = _parse_homed(key.removeprefix(_HOMED_RECORD))
            fields = {field: change.state == State.NORMAL}
        else:
            return None
        return cls(prefix, fields) if prefix and b"/" not in prefix else None

    def merge(self, raw: bytes | None) -> bytes | None:
        """Return the bytes under the prefix after the change; None if it is empty."""
        before = EMPTY_PREFIX_ITEM if raw is None else PrefixItem.from_bytes(raw)
        after = replace(before, **self.fields)
        return None if after == EMPTY_PREFIX_ITEM else after.to_bytes()


def _parse_homed(name: bytes) -> tuple[bytes, str]:
    """Parse the name of a homed record into the prefix and the field it sets."""
    if not name.startswith(_PREFIX_HANDLE):
        return name, "homed_bare"
    prefix = name.removeprefix(_PREFIX_HANDLE)
    if not prefix.startswith(_PREFIX_HANDLE):
        return prefix, "homed"
    return prefix.removeprefix(_PREFIX_HANDLE), "marker"


def _delegation_fields(change: Change) -> dict[str, Any]:
    """Whether templates may apply, and where derived prefixes are delegated to."""
    if change.state == State.ABSENT:
        return {"templates": False, "referrals": ()}
    served = change.contents if change.state in PUBLIC_STATES else []
    referrals = tuple([content for content in served if is_public(content) and value_type(content) in _REFERRAL_TYPES])
    return {"templates": any(_has_template(content) for content in change.contents), "referrals": referrals}


def _has_template(content: bytes) -> bool:
    """Whether a value may create values for handles without a record."""
    if not has_type([value_type(content).upper()], HS_NAMESPACE):
        return False
    # Imported here so that processes that never call this do not load an XML parser.
    from perseid.records.namespace import Namespace  # noqa: PLC0415

    try:
        return bool(Namespace.from_bytes(Value.from_bytes(content, 0).data).templates)
    except RecordProblem:
        return True  # left to the full check


def _policy_text(change: Change) -> bytes | None:
    """The text of a policy."""
    contents = change.contents if change.state == State.NORMAL else []
    texts = (Value.from_bytes(content, 0).data for content in contents if value_type(content).upper() == POLICY_TYPE)
    return next(texts, None)


def _policy_fields(text: bytes | None) -> dict[str, Any]:
    """The case rule and the scheme of a policy; defaults if it is unreadable."""
    try:
        policy = tomllib.loads("" if text is None else text.decode("utf-8"))
    except (ValueError, RecursionError):
        policy = {}
    rules = {rule.value: rule for rule in CaseRule}
    case, scheme = policy.get("case"), policy.get("scheme")
    return {
        "case": rules.get(case) if isinstance(case, str) else None,
        "scheme": scheme if isinstance(scheme, str) else "",
    }

"""A second reader of the answers view, written from docs/reference/answers-format.md alone, gives the same answers.

It shares no code with the view. A reader in a compiled language will be written from the same page.
"""

import hashlib
import mmap
import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pytest

from perseid.ledger.log.entry import PUBLIC_STATES, State
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.names.handle import CaseRule
from perseid.records.record import Value
from tests.ledger.answer_ledgers import MemoryLedger, typed, url


@dataclass
class Found:
    """What the second reader reads from an item."""

    head: int
    seq: int
    at: int
    last_update: int
    spelling: bytes
    values: list[bytes]


class OtherReader:
    """Opens the current generation; raises if it must not be used."""

    def __init__(self, folder: Path) -> None:
        with (folder / "state").open("rb") as file:
            self.page = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
            inode = os.fstat(file.fileno()).st_ino
        magic, version, self.generation, self.needed, _, clean, boot, place = struct.unpack_from(
            "<8sQQQQQ16sQ", self.page
        )
        assert (magic, version) == (b"PRSDANSW", 1)
        running = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
        if self.generation == 0 or place != inode or not (clean == 1 or boot == running):
            raise LookupError("may not be used")
        self.env = lmdb.open(str(folder / str(self.generation)), map_size=1 << 38, readonly=True, max_dbs=5)
        self.handles, self.prefixes, self.policies, self.past, self.meta = (
            self.env.open_db(name, create=False) for name in (b"handles", b"prefixes", b"policies", b"past", b"meta")
        )
        with self.env.begin(db=self.meta) as txn:
            position = txn.get(b"applied")
            assert position is not None
            layout, self.ledger_id, self.seq, self.leaf = struct.unpack("<Q16sQ32s", position)
        assert layout == 6
        if self.needed > self.seq:
            raise LookupError("behind")

    def close(self) -> None:
        self.env.close()
        self.page.close()

    @staticmethod
    def key(name: bytes) -> bytes:
        folded = bytes(byte - 32 if ord("a") <= byte <= ord("z") else byte for byte in name)
        return folded if len(folded) <= 400 else folded[:400] + hashlib.sha256(folded).digest()[:16]

    def fold_prefix(self, name: bytes) -> bytes:
        slash = name.find(b"/")
        return name.upper() if slash < 0 else name[:slash].upper() + name[slash:]

    @staticmethod
    def number(raw: bytes, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (raw[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if raw[at - 1] < 128:
                return value, at

    def run(self, raw: bytes, at: int) -> tuple[list[bytes], int]:
        count, at = self.number(raw, at)
        lengths = []
        for _ in range(count):
            length, at = self.number(raw, at)
            lengths.append(length)
        values = []
        for length in lengths:
            values.append(raw[at : at + length])
            at += length
        return values, at

    def look_up(self, name: bytes) -> Found | None:
        key = self.key(name)
        with self.env.begin(db=self.handles) as txn:
            raw = txn.get(key)
        at, loose = 0, None
        while raw is not None and at < len(raw):
            head, spelling = raw[at], key
            seq, time = int.from_bytes(raw[at + 1 : at + 7], "little"), int.from_bytes(raw[at + 7 : at + 14], "little")
            entry = (seq, time % (1 << 54), time >> 54)
            at += 14
            if head & 0x80:
                length, at = self.number(raw, at)
                spelling, at = raw[at : at + length], at + length
            values, at = self.run(raw, at)
            if not head & 8:
                loose = Found(head, *entry, spelling, values)
            elif self.fold_prefix(spelling) == self.fold_prefix(name):
                return Found(head, *entry, spelling, values)
        return loose

    def look_up_past(self, name: bytes, *, exact: bool) -> tuple[int, int, int] | None:
        record = self.fold_prefix(name) if exact else name.upper()
        with self.env.begin(db=self.past) as txn:
            raw = txn.get(hashlib.sha256(record).digest()[:16])
        if raw is None:
            return None
        assert len(raw) == 14
        return raw[0], int.from_bytes(raw[1:7], "little"), int.from_bytes(raw[7:], "little")

    def look_up_policy(self, prefix: bytes) -> bytes | None:
        with self.env.begin(db=self.policies) as txn:
            return txn.get(self.key(prefix))

    def look_up_prefix(self, prefix: bytes) -> tuple[int, bytes, list[bytes]] | None:
        with self.env.begin(db=self.prefixes) as txn:
            raw = txn.get(self.key(prefix))
        if raw is None:
            return None
        length, at = self.number(raw, 1)
        referrals, end = self.run(raw, at + length)
        assert end == len(raw)
        return raw[0], raw[at : at + length], referrals


NAMES = [
    *("10.1/a", "10.1/A", "10.1/aB", "10.a/Ab", "10.A/aB", "0.NA/10.1", "0.na/10.a", "1/é", "1/É", "x", "0.NA/10"),
    *("10.1/" + "n" * length for length in (394, 395, 396, 1000, 2043)),
    *("10.1/" + "N" * length for length in (395, 396, 1000)),
]
PREFIXES = ["10.1", "10.A", "10", "0.NA", "p" * 500]


def some_ledger(seed: int) -> MemoryLedger:
    chance = random.Random(seed)
    ledger = MemoryLedger()
    kinds = ["URL", "HS_ALIAS", "10320/loc", "HS_SITE.PREFIX", "HS_SERV.PREFIX", "HS_SECKEY", "hs_alias.x"]
    policies = [b'case = "sensitive"', b'case = "path"\nscheme = "cordra"', b'scheme = "pilin"', b"=="]
    homing = ["0.SITE/HOMED/{}", "0.SITE/HOMED/0.NA/{}", "0.SITE/HOMED/0.NA/0.NA/{}"]
    for _ in range(300):
        state = chance.choice(
            [State.NORMAL, State.NORMAL, State.TOMBSTONE, State.RESERVED, State.UNPUBLISHED, State.ABSENT]
        )
        values = [
            typed(kind, index, chance.randbytes(chance.choice([0, 5, 200, 20_000])), public=chance.random() < 0.7)
            for index, kind in enumerate(chance.sample(kinds, chance.randrange(5)), 1)
        ]
        what = chance.random()
        if what < 0.7:
            name = chance.choice(NAMES)
            exact = chance.random() < 0.5 and not name.upper().startswith("0.NA/")
            ledger.append(name, *values, state=state, exact=exact)
        elif what < 0.85:
            ledger.append(chance.choice(homing).format(chance.choice(PREFIXES)), state=state)
        else:
            policy = typed("PERSEID_POLICY", 1, chance.choice(policies))
            ledger.append(f"0.SITE/POLICY/{chance.choice(PREFIXES)}", policy, state=state)
    return ledger


@pytest.mark.parametrize("seed", range(6))
def test_both_readers_give_the_same_answers(tmp_path: Path, seed: int) -> None:
    ledger = some_ledger(seed)
    folder = tmp_path / "answers"
    with Answers(folder) as answers:
        assert answers.catch_up(MemoryLedger().look)
        assert answers.catch_up(ledger.look)
        assert answers.differences(ledger.look) is None  # a view that is built has the same items
    spellings = [case for name in NAMES for case in (name, name.upper(), name.lower(), name.swapcase())]
    with AnswersReader(folder) as reader:
        mine = {name: reader.find(name.encode()) for name in spellings}
        prefixes = {prefix: reader.prefix(prefix.encode()) for prefix in PREFIXES}
        with reader.snapshot() as snapshot:
            policies = {prefix: snapshot.policy(prefix.encode()) for prefix in PREFIXES}
    other = OtherReader(folder)
    assert (other.ledger_id, other.seq, other.leaf) == (ledger.ledger_id, 300, ledger.entries[-1].leaf)
    for name, item in mine.items():
        theirs = other.look_up(name.encode())
        assert (theirs is None) == (item is None)
        if theirs is not None and item is not None:
            flags = item.exact << 3 | item.private << 4 | item.alias << 5 | item.location << 6
            assert theirs.head & 0x7F == item.state | flags
            assert (theirs.seq, theirs.at, theirs.last_update) == (item.seq, item.at, item.last_update)
            assert (theirs.spelling, tuple(theirs.values)) == (item.spelling, item.values)
            indexes = [struct.unpack_from(">i", value)[0] for value in theirs.values]
            assert indexes == sorted(Value.from_bytes(value, 0).index for value in item.values)
            assert all(value[13] & 2 for value in theirs.values)
            assert [value[18 : 18 + int.from_bytes(value[14:18], "big")].decode() for value in theirs.values] == [
                Value.from_bytes(value, 0).type for value in item.values
            ]
    rules = [None, CaseRule.SENSITIVE, CaseRule.INSENSITIVE, CaseRule.PATH]
    for prefix, found in prefixes.items():
        seen = other.look_up_prefix(prefix.encode())
        assert (seen is None) == (found is None)
        if seen is not None and found is not None:
            head, scheme, referrals = seen
            flags = found.homed | found.homed_bare << 1 | found.marker << 2 | found.templates << 3
            assert head == flags | rules.index(found.case) << 4
            assert (scheme.decode(), tuple(referrals)) == (found.scheme, found.referrals)
    assert policies == {prefix: other.look_up_policy(prefix.encode()) for prefix in PREFIXES}
    latest = {entry.key: entry for entry in ledger.entries}
    for name in spellings:
        for exact in (True, False):
            key = record_key(name, exact=exact)
            entry, past = latest.get(key), None
            if entry is not None and entry.state is State.ABSENT:
                before = [each for each in ledger.entries if each.key == key][-2:-1]
                past = entry.exact << 3, 0, 0
                if before and before[0].state in PUBLIC_STATES:
                    past = entry.exact << 3, before[0].seq, before[0].at
                elif before and before[0].state is not State.ABSENT:
                    past = entry.exact << 3 | 1 << 4, 0, 0
            assert other.look_up_past(name.encode(), exact=exact) == past
    other.close()


def test_second_reader_knows_when_not_to_use_the_view(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    folder = tmp_path / "answers"
    answers = Answers(folder)
    with pytest.raises(LookupError, match="may not be used"):
        OtherReader(folder)
    assert answers.catch_up(ledger.look)
    answers._file.require(1)
    answers.close()
    with pytest.raises(LookupError, match="behind"):
        OtherReader(folder)
    with Answers(folder) as again:
        ledger.append("10.1/x", url("1"))
        assert again.catch_up(ledger.look)
    other = OtherReader(folder)
    assert other.look_up(b"10.1/X") is not None
    other.close()

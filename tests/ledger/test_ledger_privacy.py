"""Privacy of proofs and logs, wrong clocks, and detection of tampering.

Proofs are public. They must not confirm a correct guess of a private value or a hidden name. The same attacks are also
tried on a ledger without randomness, where they succeed.
"""

import base64
import hashlib
import logging
import random
import re
import sqlite3
import struct
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from perseid.ledger.errors import ClockError, CorruptData, PreconditionFailed
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.clock import RELEASE_DATE, SECOND, TOLERANCE
from perseid.ledger.log.entry import Action, Change, Draft, Entry, Slot, State
from perseid.ledger.log.log import CommitResult, Log, NothingToRedact, build_redaction
from perseid.ledger.log.requests import Append, Failed, Lease, Leased, Outcome, Request
from perseid.ledger.log.signing import WrongKey, rotate_key, sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.ledger.store import tables as schema
from perseid.ledger.store.store import Store
from perseid.ledger.verify import verify
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.rebuild import rebuild
from perseid.names import pilin
from perseid.proof.verifier import Leaf, check_consistency, check_inclusion, leaf_hash, open_checkpoint
from perseid.records.record import Permission, TtlType, Value
from tests.ledger.ledgers import NOW, SIGNER, Machine, appended, change, key, look, open_store, secret, url, verified

ACTOR = "300:0.NA/planted.actor"
NOTE = "planted note 5512"
PRIVATE = Permission(0x0C)
HOUR = 3_600 * SECOND
DAY = 24 * HOUR

on_one_back_end = pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
"""For what is decided before anything is stored, and for tests that change the file."""


def draft(
    name: str, *values: Value, action: Action = Action.CREATE, state: State = State.NORMAL, note: str = NOTE
) -> Append:
    return Append(Draft(action, state, f"10.1/{name}", "native", ACTOR, note, values))


def private(data: bytes, index: int = 7, type_: str = "EMAIL") -> Value:
    return Value(index, type_, data, permissions=PRIVATE)


# What proofs reveal


@dataclass(frozen=True)
class Proof:
    """The public data of a proof of one entry."""

    entry: Entry  # not public: for the test itself
    leaf: bytes
    path: list[bytes]
    consistency: list[bytes]
    checkpoint: str
    opened: list[tuple[bytes, bytes]]  # salt and content of each public value

    def raw(self) -> bytes:
        root = base64.b64decode(self.checkpoint.split("\n")[2])
        opened = b"".join(salt + content for salt, content in self.opened)
        return b"".join((self.leaf, *self.path, *self.consistency, self.checkpoint.encode(), root, opened))


def proofs(log: Log) -> list[Proof]:
    """The proofs of every entry of every handle, checked."""
    note = sign_checkpoint(log, SIGNER)
    checkpoint = open_checkpoint(note, SIGNER.public)
    found = []
    with log.open_reader() as reader:
        for entry in list(reader.log(0)):
            path = reader.inclusion(entry.seq, checkpoint.size)
            check_inclusion(entry.seq - 1, checkpoint.size, checkpoint.root, leaf_hash(entry.leaf()), path)
            opened = [(slot.salt, slot.content) for slot in entry.values if slot.content and is_public(slot.content)]
            for salt, content in opened:
                Leaf.parse(entry.leaf()).check_value(salt, content)
            consistency = reader.consistency(entry.seq, checkpoint.size)
            found.append(Proof(entry, entry.leaf(), path, consistency, note, opened))
    return found


def is_public(content: bytes) -> bool:
    return Value.from_bytes(content, NOW // SECOND).is_public


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def leaf_of(entry: Entry, nonce: bytes, salts: list[bytes]) -> bytes:
    """The leaf hash of a guess, composed as in docs/reference/ledger-format.md, with given nonce and salts."""
    name = entry.handle.encode()
    contents = [slot.content or b"" for slot in entry.slots()]
    kinds = [b"A", b"N", *[b"V"] * len(entry.values)]
    commitments = [sha256(kind, salt, content) for kind, salt, content in zip(kinds, salts, contents, strict=True)]
    fixed = struct.pack(">Bqq3Bi", 1, entry.seq, entry.at, entry.action, entry.state, entry.exact, len(name))
    count = struct.pack(">i", len(entry.values))
    return sha256(b"\0", fixed, name, nonce, *commitments[:2], count, *commitments[2:])


class Adversary:
    """Has all public data, and tries every piece of it in place of what is unknown."""

    def __init__(self, handed_out: list[Proof]) -> None:
        self.raw = [proof.raw() for proof in handed_out]
        self.hashes = {run[at : at + 32] for run in self.raw for at in range(len(run) - 31)}
        salts = {run[at : at + 16] for run in self.raw for at in range(len(run) - 15)}
        self.salts = [b"", bytes(16), *sorted(salts)]

    def confirms_entry(self, guess: Entry, nonce: bytes | None = None, salts: list[bytes] | None = None) -> bool:
        """Whether a public hash matches the guessed entry."""
        slots = len(guess.slots())
        if nonce is not None and salts is not None:
            return leaf_of(guess, nonce, salts) in self.hashes
        tries = ((nonce, salt) for nonce in self.salts for salt in (b"", bytes(16), nonce))
        return any(leaf_of(guess, nonce, [salt] * slots) in self.hashes for nonce, salt in tries)

    def confirms_content(self, kind: bytes, content: bytes, salt: bytes | None = None) -> bool:
        """Whether a public commitment matches the guessed content."""
        tries = self.salts if salt is None else [salt]
        return any(sha256(kind, salt, content) in self.hashes for salt in tries)


HIDDEN = ("reserved", "deleted", "empty", "secret", "unpublished")


def fill(log: Log) -> None:
    """A ledger with a public handle next to every hidden one, and every private value in several places."""
    shared = private(b"somebody@example.org")
    log.append(
        [
            draft("public-1", url("https://example.org/1"), shared),
            draft("reserved", action=Action.RESERVE, state=State.RESERVED, note=""),
            draft("deleted", url("https://example.org/hidden")),
            draft("public-2", url("https://example.org/2")),
            draft("empty"),
            draft("public-3", url("https://example.org/3"), secret(b"opensesame"), shared),
            draft("secret", private(b"nobody"), secret(b"opensesame"), shared),
            draft("public-4", replace(url("somebody@example.org", 7), type="EMAIL")),
            draft("public-1", url("https://example.org/1"), private(b"another"), action=Action.UPDATE),
            draft("deleted", action=Action.DELETE, state=State.ABSENT),
            draft("public-2", replace(url("https://example.org/2"), permissions=PRIVATE), action=Action.UPDATE),
            draft("unpublished", url("https://example.org/4"), action=Action.UNPUBLISH, state=State.UNPUBLISHED),
            draft("public-5", url("https://example.org/hidden")),
            draft("reserved", action=Action.PUBLISH, state=State.RESERVED, note=""),
            draft("public-5", action=Action.UPDATE),
        ]
    )


def known_to_others(everything: list[Proof], handle: str) -> Adversary:
    return Adversary([proof for proof in everything if proof.entry.handle != handle])


def known_salts(entry: Entry) -> list[bytes]:
    return [slot.salt for slot in entry.slots()]


@pytest.mark.parametrize("name", HIDDEN)
@on_one_back_end
def test_the_proofs_of_all_other_handles_do_not_confirm_a_hidden_name(log: Log, name: str) -> None:
    fill(log)
    everything = proofs(log)
    others = known_to_others(everything, f"10.1/{name}")
    hidden = [proof.entry for proof in everything if proof.entry.handle == f"10.1/{name}"]
    assert hidden
    assert all(name.encode() not in run for run in others.raw)
    for entry in hidden:
        assert not others.confirms_entry(entry)
        assert others.confirms_entry(entry, entry.nonce, known_salts(entry)), "the guess was right, and its hash there"
        # The nonce protects alone, and so do the salts of actor and note.
        assert not others.confirms_entry(entry, bytes(16), known_salts(entry))
        assert not others.confirms_entry(entry, entry.nonce, [bytes(16)] * len(entry.slots()))


def test_all_proofs_together_do_not_confirm_a_private_value_an_actor_or_a_note(log: Log) -> None:
    fill(log)
    everything = proofs(log)
    adversary = Adversary(everything)
    guessed = 0
    for proof in everything:
        for kind, slot in zip(["A", "N", *"V" * len(proof.entry.values)], proof.entry.slots(), strict=True):
            assert slot.content is not None
            if kind == "V" and is_public(slot.content):
                continue
            guessed += 1
            assert not adversary.confirms_content(kind.encode(), slot.content)
            assert adversary.confirms_content(kind.encode(), slot.content, slot.salt)
    assert guessed > 2 * len(everything)


@on_one_back_end
def test_public_value_does_not_reveal_a_private_copy(log: Log) -> None:
    fill(log)
    everything = proofs(log)
    slots = [slot for proof in everything for slot in proof.entry.values]
    same = [
        slot for slot in slots if slot.content and Value.from_bytes(slot.content, 0).data == b"somebody@example.org"
    ]
    assert len(same) == 4
    assert len({slot.salt for slot in same}) == len({slot.commitment for slot in same}) == 4
    # A public value that becomes private gets a new commitment: the old salt does not open it.
    before, after = (look(log).entry(seq).values[0] for seq in (4, 11))
    assert before.salt != after.salt
    assert not Adversary(everything).confirms_content(b"V", after.content or b"")


@pytest.mark.parametrize("dull", [bytes, lambda count: (b"0123456789abcdef" * count)[:count]])
@on_one_back_end
def test_without_randomness_the_same_attacks_succeed(
    store: Store, machine: Machine, dull: Callable[[int], bytes]
) -> None:
    log = Log(store, machine.clock(), dull)
    log.create(SIGNER)
    fill(log)
    everything = proofs(log)
    for name in HIDDEN:
        others = known_to_others(everything, f"10.1/{name}")
        assert all(others.confirms_entry(proof.entry) for proof in everything if proof.entry.handle == f"10.1/{name}")
    private_one = look(log).entry(7).values[0].content
    assert Adversary(everything).confirms_content(b"V", private_one or b"")


# Planted secrets

PLANTED = {
    "private value": b"planted-private-2291@example.org",
    "private address": b"planted-host-7731",
    "secret key": b"planted-seckey-4418",
    "old secret key": b"planted-old-seckey-9023",
    "redacted value": b"planted-redacted-6120",
    "actor": b"planted.actor",
    "note": b"planted note 5512",
    "seed": bytes(range(200, 232)),
}
PLANTED_SIGNER = Signer.generate(SIGNER.name, PLANTED["seed"])


def forms(raw: bytes) -> Iterator[bytes]:
    """The ways in which bytes may appear in text."""
    yield raw
    yield raw.hex().encode()
    yield repr(raw)[2:-1].encode()
    yield base64.b64encode(raw).rstrip(b"=")[:-1]
    yield str(list(raw))[1:-1].encode()


def leaks(where: bytes | str, secrets: dict[str, bytes] | None = None) -> list[str]:
    """Which of the secrets are in a text, in any form."""
    raw = where.encode("utf-8", "surrogateescape") if isinstance(where, str) else where
    known = PLANTED if secrets is None else secrets
    return [name for name, planted in known.items() if any(form in raw for form in forms(planted))]


def planted_values(number: int = 0) -> tuple[Value, ...]:
    return (
        url(f"https://example.org/{number}"),
        url("https://example.org/planted-redacted-6120", 2) if number == 0 else url("https://example.org/other", 2),
        private(b"https://planted-host-7731.example.org/x", 3, "URL"),
        private(PLANTED["private value"], 4),
        secret(PLANTED["old secret key" if number == 0 else "secret key"]),
    )


class Life:
    """Everything that can happen to a ledger, with all messages."""

    def __init__(self, where: str, folder: Path) -> None:
        self.said: list[str] = []
        self.shown: list[object] = []
        self.machine = Machine()
        self.store = open_store(where)
        self.store.upgrade()
        self.log = Log(self.store, self.machine.clock(), random.Random(7).randbytes)
        self.log.create(PLANTED_SIGNER)
        self.folder = folder
        self.secrets = dict(PLANTED)
        """With the secret salts and nonces."""

    def refused(self, error: BaseException) -> None:
        self.said += [str(error), repr(error), "".join(traceback.format_exception(error))]

    def expect(self, kind: type[Exception], act: Callable[[], object]) -> None:
        with pytest.raises(kind) as caught:
            act()
        self.refused(caught.value)

    def run(self) -> None:
        self.append()
        self.fail()
        self.redact()
        self.rotate()
        self.rebuild()
        self.fill_the_map()
        self.tamper()

    def commit(self, *requests: Append) -> CommitResult:
        committed = self.log.commit(requests)
        self.shown += [committed, *committed.changes, *committed.outcomes, *requests, *[one.draft for one in requests]]
        return committed

    def append(self) -> None:
        with Ledger(self.log, Answers(self.folder / "answers"), PLANTED_SIGNER) as ledger:
            for number in range(3):
                ledger.append(draft("a", *planted_values(number)))
            self.shown += [ledger.find(b"10.1/a"), ledger]
        committed = self.commit(draft("b", *planted_values(1)), draft("b", *planted_values(2)))
        assert len(committed.changes) == 2

    def fail(self) -> None:
        for value in (
            replace(planted_values()[3], ttl=1 << 40),
            replace(planted_values()[4], index=1 << 40),
            replace(planted_values()[3], type="\ud800"),
        ):
            (outcome,) = self.commit(draft("c", value)).outcomes
            assert isinstance(outcome, Failed)
            self.refused(outcome.error)
        (moved,) = self.commit(Append(draft("a", *planted_values()).draft, {key("a"): 99})).outcomes
        assert isinstance(moved, PreconditionFailed)
        self.refused(moved)
        self.machine.wall += HOUR
        self.expect(ClockError, lambda: self.log.append([draft("a", *planted_values())]))
        self.machine.wall -= HOUR
        # A database that fails during queries with private data
        with self.store.writing() as connection:
            connection.execute(text("ALTER TABLE search RENAME TO elsewhere"))
        self.expect(CorruptData, lambda: verify(self.log))
        with self.store.writing() as connection:
            connection.execute(text("ALTER TABLE elsewhere RENAME TO search"))

    def redact(self) -> None:
        by = ("native", ACTOR)
        with self.log.open_reader() as reader:
            entry = reader.entry(1)
            self.expect(NothingToRedact, lambda: build_redaction(reader, key("a"), 3, 4, by, NOTE))
            request = build_redaction(reader, key("a"), 1, 2, by, NOTE)
        self.secrets |= {f"salt {number}": slot.salt for number, slot in enumerate(entry.values) if number > 0}
        self.secrets |= {"salt of the actor": entry.actor.salt, "salt of the note": entry.note.salt}
        del self.secrets["salt 4"]  # empty: the old secret key was redacted when it was replaced
        assert entry.values[4].is_redacted
        self.commit(request)
        self.machine.run(SECOND)
        self.said.append(sign_checkpoint(self.log, PLANTED_SIGNER))

    def rotate(self) -> None:
        self.expect(WrongKey, lambda: sign_checkpoint(self.log, SIGNER))
        rotate_key(self.log, PLANTED_SIGNER, SIGNER, "native", ACTOR)
        self.machine.run(SECOND)
        self.said.append(sign_checkpoint(self.log, SIGNER))

    def rebuild(self) -> None:
        for view in ("records", "search"):
            rebuild(self.log, view)
        with Answers(self.folder / "answers") as answers:
            assert answers.rebuild(self.log.open_reader)
            assert answers.differences(self.log.open_reader) is None
            self.shown.append(answers)
        report = verify(self.log)
        assert report.redacted > 0
        self.shown.append(report)

    def fill_the_map(self) -> None:
        with Answers(self.folder / "small", map_size=100_000) as answers:
            answers.catch_up(self.log.open_reader)
            for number in range(20):
                committed = self.commit(draft(f"large-{number}", url("x" * 9_000), *planted_values(1)[1:]))
                self.shown.append(answers.apply(committed.changes))
            assert not answers.ready
            self.expect(Exception, lambda: answers.find(b"10.1/a"))

    def tamper(self) -> None:
        self.shown += look(self.log).log(0)
        for shift in (1, 40, 60, 150, 190):
            self.machine.run(SECOND)
            body = look(self.log).entry(2).body()
            with self.store.writing() as connection:
                broken = {"body": body[:shift] + b"\xff" + body[shift + 1 :]}
                connection.execute(text("UPDATE entries SET body = :body WHERE seq = 2"), broken)
            self.expect(CorruptData, lambda: verify(self.log))
            with self.store.writing() as connection:
                connection.execute(text("UPDATE entries SET body = :body WHERE seq = 2"), {"body": body})
        verify(self.log)


@pytest.fixture
def life(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Life]:
    """All events of a ledger with full logging."""
    caplog.set_level(logging.DEBUG)
    lived = Life(where, tmp_path)
    lived.run()
    yield lived
    lived.store.close()


def log_texts(caplog: pytest.LogCaptureFixture, ours: bool) -> list[str]:
    records = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    formatter = logging.Formatter("%(name)s %(message)s")
    return [formatter.format(record) for record in records if record.name.startswith("perseid") == ours]


def test_planted_secrets_are_in_no_error(life: Life) -> None:
    assert len(life.said) > 40
    assert [(leaks(said, life.secrets), said) for said in life.said if leaks(said, life.secrets)] == []


def test_planted_secrets_are_in_no_log_record_of_ours(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    records = log_texts(caplog, ours=True)
    assert any("cannot be updated" in record for record in records), "the full map was logged"
    assert [(leaks(record, life.secrets), record) for record in records if leaks(record, life.secrets)] == []


def test_planted_secrets_are_in_no_log_record_of_the_libraries(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    records = log_texts(caplog, ours=False)
    assert any("alembic" in record for record in records), "libraries were listened to"
    assert [(leaks(record, life.secrets), record) for record in records if leaks(record, life.secrets)] == []


@pytest.mark.parametrize(
    "kind",
    [Entry, Slot, Draft, Append, Change, CommitResult, Signer, Store, Log, Ledger, Answers],
)
@on_one_back_end
def test_planted_secrets_are_in_no_representation(life: Life, kind: type) -> None:
    entries = [one for one in life.shown if isinstance(one, Entry)]
    objects = [
        *life.shown,
        *[slot for entry in entries for slot in entry.slots()],
        PLANTED_SIGNER,
        life.store,
        life.log,
    ]
    shown = {repr(one) for one in objects if isinstance(one, kind)}
    assert shown
    assert [(leaks(one, life.secrets), one) for one in shown if leaks(one, life.secrets)] == []


def test_planted_secrets_are_in_no_proof_and_no_public_history(life: Life) -> None:
    for proof in proofs(life.log):
        assert leaks(proof.raw(), life.secrets) == []
        assert leaks(repr(Leaf.parse(proof.leaf)), life.secrets) == []
        assert leaks(repr(proof.entry), life.secrets) == []
    answers = [path.read_bytes() for path in (life.folder / "answers").rglob("*") if path.is_file()]
    assert b"https://example.org/2" in b"".join(answers)
    assert [leaks(raw, life.secrets) for raw in answers if leaks(raw, life.secrets)] == []


# Clocks


class Interface:
    """One way to append: by the log itself, or through a ledger with its views."""

    def __init__(self, kind: str, where: str, folder: Path) -> None:
        self._kind, self._where, self._folder = kind, where, folder
        self._ledger: Ledger | None = None
        self._log: Log | None = None

    @property
    def log(self) -> Log:
        assert self._log is not None, "it is not open"
        return self._log

    def open(self, machine: Machine, *, accepted: bool = False) -> None:
        """Start like a new process."""
        self.close()
        self._log = Log(open_store(self._where), machine.clock(accepted=accepted), random.Random(3).randbytes)
        if self._kind == "ledger":
            self._ledger = Ledger(self.log, Answers(self._folder / "answers"))

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        elif self._log is not None:
            self._log.store.close()

    def append(self, *requests: Request) -> list[Outcome]:
        return self.log.append(requests) if self._ledger is None else self._ledger.append(*requests)

    def date(self, name: str, *values: Value) -> int:
        """Append an entry and return its date."""
        return appended(self.append(change(name, *values))[0]).at

    def values(self, name: str, now: int) -> list[Value]:
        """The values that a reader finds, in the answers view if there is one."""
        if self._ledger is None:
            entry = look(self.log).record(key(name))
            return list(entry.record())
        item = self._ledger.find(f"10.1/{name}".encode())
        assert item is not None
        return [Value.from_bytes(raw, now) for raw in item.values]


@pytest.fixture(params=["log", "ledger"])
def interface(request: pytest.FixtureRequest, log: Log, where: str, tmp_path: Path) -> Iterator[Interface]:
    log.store.close()
    new_interface = Interface(request.param, where, tmp_path)
    yield new_interface
    new_interface.close()


def lease(interface: Interface, count: int, now: int) -> int:
    (outcome,) = interface.append(Lease(b"10.1 pilin", count, now))
    assert isinstance(outcome, Leased)
    return outcome.first


def refuses(interface: Interface, words: str) -> None:
    """Check that nothing is written and nothing has changed."""
    before = look(interface.log).size
    for request in (change("refused", url("x")), Lease(b"10.1 pilin", 5, 1)):
        with pytest.raises(ClockError, match=words):
            interface.append(request)
    assert look(interface.log).size == verified(interface.log) == before
    assert look(interface.log).record(key("refused")) is None
    with interface.log.store.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM leases WHERE last = 5")).scalar_one() == 0


@on_one_back_end
def test_clock_in_1970_refuses_writes_until_set_or_accepted(interface: Interface) -> None:
    machine = Machine(5 * SECOND)
    interface.open(machine)
    refuses(interface, "before the release")
    machine.wall = NOW
    refuses(interface, "jumped")  # correct again, but this cannot be known
    interface.log.clock.accept()
    assert interface.date("a") == NOW
    machine.run(SECOND)
    interface.open(machine)
    assert interface.date("b") == NOW + SECOND
    assert verified(interface.log) == 2


def instant(year: int) -> int:
    return int(datetime(year, 3, 1, 12, tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize("year", [2039, 2056, 2090])
def test_years_after_2038_work(interface: Interface, year: int) -> None:
    start = instant(year)
    machine = Machine(start)
    interface.open(machine)
    seconds = start // SECOND
    first = url("https://example.org/1").with_timestamp(seconds)
    lasting = replace(url("x", 2), ttl_type=TtlType.ABSOLUTE, ttl=seconds + 86_400, timestamp=seconds - 86_400)
    assert interface.date("a", first, lasting) == start
    early = open_checkpoint(sign_checkpoint(interface.log, SIGNER), SIGNER.public)
    machine.run(HOUR)
    second = first.with_timestamp(seconds + 3_600)
    assert interface.date("a", second) == start + HOUR
    late = open_checkpoint(sign_checkpoint(interface.log, SIGNER), SIGNER.public)
    # At any time
    assert [look(interface.log).seq_at(start + delta) for delta in (-1, 0, HOUR - 1, HOUR, DAY)] == [0, 1, 1, 2, 2]
    assert look(interface.log).as_of(key("a"), 1).record() == (first, lasting)
    assert [entry.at for entry in look(interface.log).history(key("a"))] == [start + HOUR, start]
    assert interface.values("a", machine.wall // SECOND) == [second]
    # Checkpoints
    assert (early.size, late.size) == (1, 2)
    check_consistency(1, early.root, 2, late.root, look(interface.log).consistency(1, 2))
    with interface.log.store.reading() as connection:
        dates_signed = connection.execute(text("SELECT at FROM checkpoints ORDER BY size")).scalars().all()
    assert dates_signed == [start, start + HOUR]
    # Leases
    number_now = pilin.from_unix_ns(machine.wall * 1_000)
    assert [lease(interface, 3, number_now), lease(interface, 1, number_now), lease(interface, 1, number_now + 9)] == [
        number_now,
        number_now + 3,
        number_now + 9,
    ]
    assert pilin.format_time(pilin.decode(pilin.encode(number_now))) == f"{year}-03-01T13:00:00.000Z"
    # The next day, by another process
    machine.run(DAY)
    interface.open(machine)
    assert interface.date("b") == start + HOUR + DAY
    assert lease(interface, 1, 0) == number_now + 10
    assert verified(interface.log) == 3


@pytest.mark.parametrize("hours", [1, 7, 24 * 365, -1, -7, -24 * 365])
@on_one_back_end
def test_clock_jump_while_running_refuses_writes_until_corrected(interface: Interface, hours: int) -> None:
    machine = Machine(NOW)
    interface.open(machine)
    assert interface.date("a", url("1")) == NOW
    assert lease(interface, 1, 10) == 10
    machine.run(SECOND)
    machine.wall += hours * HOUR
    refuses(interface, "before the release" if machine.wall < RELEASE_DATE else f"jumped by {hours * 3_600:,} s")
    assert [value.data for value in interface.values("a", 0)] == [b"1"]
    machine.wall -= hours * HOUR
    assert interface.date("b") == NOW + SECOND
    assert lease(interface, 1, 10) == 11
    assert verified(interface.log) == 2


@pytest.mark.parametrize("hours", [-1, -7])
@on_one_back_end
def test_process_started_hours_before_the_last_entry_refuses_writes(interface: Interface, hours: int) -> None:
    machine = Machine(NOW)
    interface.open(machine)
    interface.date("a")
    machine.wall += hours * HOUR
    interface.open(machine)
    refuses(interface, f"{-hours * 3_600:,} s behind the last entry")
    machine.wall -= hours * HOUR
    interface.open(machine)
    assert interface.date("b") == NOW


@on_one_back_end
def test_process_started_years_after_the_last_entry_refuses_writes_unless_accepted(interface: Interface) -> None:
    machine = Machine(NOW)
    interface.open(machine)
    interface.date("a")
    machine.wall = instant(2090)
    interface.open(machine)
    refuses(interface, "days ahead of the last entry")
    interface.open(machine, accepted=True)
    assert interface.date("b") == machine.wall
    assert lease(interface, 1, 5) == 5


@on_one_back_end
def test_small_steps_back_keep_the_last_date(interface: Interface) -> None:
    machine = Machine(NOW)
    interface.open(machine)
    dates = [interface.date("a")]
    machine.wall -= TOLERANCE
    dates += [interface.date("b"), interface.date("c")]
    machine.run(TOLERANCE - 1)
    dates.append(interface.date("d"))
    machine.run(2)
    dates.append(interface.date("e"))
    assert dates == [NOW, NOW, NOW, NOW, NOW + 1]
    assert [look(interface.log).seq_at(instant) for instant in (NOW - 1, NOW, NOW + 1)] == [0, 4, 5]
    assert verified(interface.log) == 5


@on_one_back_end
def test_accepted_clock_continues(interface: Interface) -> None:
    machine = Machine(NOW)
    interface.open(machine)
    interface.date("a")
    machine.wall += 7 * HOUR
    refuses(interface, "jumped")
    interface.log.clock.accept()
    assert interface.date("b") == NOW + 7 * HOUR
    machine.wall -= 9 * HOUR
    interface.log.clock.accept()
    assert interface.date("c") == NOW + 7 * HOUR, "dates never go back, and the clock is bridged"
    machine.run(10 * HOUR)
    assert interface.date("d") == NOW + 8 * HOUR


@on_one_back_end
def test_a_clock_is_accepted_once(interface: Interface) -> None:
    machine = Machine(NOW)
    interface.open(machine)
    machine.wall += 7 * HOUR
    interface.log.clock.accept()
    interface.date("a")
    machine.wall += 24 * 365 * HOUR
    refuses(interface, "jumped")


# Tampering

MASKS = (0x01, 0x20, 0x80, 0x04, 0xFF)
Cell = int | bytes | str


def tampered(value: Cell, is_key: bool) -> Iterator[Cell]:
    """The value with one byte changed, for each byte; a number plus and minus one."""
    if isinstance(value, int):
        yield from (value + 1, value - 1)
        if is_key:
            yield value + 1_000  # the neighboring numbers may be in use
        return
    raw = value.encode() if isinstance(value, str) else value
    for at, byte in enumerate(raw):
        yield raw[:at] + bytes((byte ^ MASKS[at % len(MASKS)],)) + raw[at + 1 :]
    yield raw[:-1]
    yield raw + b"\0"
    if isinstance(value, bytes):
        yield bytes(len(raw) + 1)


def small_ledger(log: Log, machine: Machine) -> None:
    """A ledger with one of everything, to tamper with."""
    log.append(
        [
            change("a", url("https://example.org/1"), private(b"x"), secret(b"opensesame"), action=Action.CREATE),
            change("b", action=Action.RESERVE, state=State.RESERVED),
            change("Cc", url("https://example.org/2"), exact=True),
        ]
    )
    sign_checkpoint(log, SIGNER)
    machine.run(70 * SECOND)
    log.append([change("a", url("https://example.org/1"), private(b"x")), change("b"), change("a")])
    log.append([change("b", url("https://example.org/1")), change("b", action=Action.DELETE, state=State.ABSENT)])
    with log.open_reader() as reader:
        request = build_redaction(reader, key("a"), 1, 7, ("cli", "local:alice"), "reason")
    log.append([request])
    sign_checkpoint(log, SIGNER)
    assert verify(log).redacted == 3


def large_ledger(log: Log, _machine: Machine) -> None:
    """Large enough that the tree has a stored node."""
    log.append([change(str(number)) for number in range(257)])


COLUMNS = [
    ("entries", "seq at previous jump nth leaf body"),
    ("head", "seq at frontier"),
    ("records", "key seq"),
    ("search", "key seq"),
    ("views", "name ledger seq leaf"),
    ("checkpoints", "size note"),
    ("nodes", "level position hash"),
]
UNCHECKED = [
    ("entries", "token", "it tells one commit from another while it is being made, and nothing afterwards"),
    ("head", "one", "it only keeps a second row from being made"),
    ("head", "read_only", "it only keeps changes from being made"),
    ("head", "oldest_program", "it only keeps older programs from writing"),
    ("checkpoints", "at", "it only says when the next one may be signed, and which ones are thinned"),
]


class Tampering:
    """Changes a ledger's file directly, and restores it."""

    def __init__(self, path: Path, table: str, column: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._table, self._column = table, column
        columns = self._connection.execute(f"PRAGMA table_info({table})").fetchall()
        self._names = [name for _, name, *_ in columns]
        self._keys = [name for _, name, *_, place in columns if place]
        self._rows = self._connection.execute(f"SELECT * FROM {table}").fetchall()

    def close(self) -> None:
        self._connection.close()

    def changes(self) -> Iterator[tuple[dict[str, Cell], Cell]]:
        """Apply each change in turn; yield the original row and the new value."""
        for row in (dict(zip(self._names, values, strict=True)) for values in self._rows):
            before = row[self._column]
            for after in tampered(before, self._column in self._keys):
                if self._change(row, after, "CAST(? AS TEXT)" if isinstance(before, str) else "?"):
                    yield row, after
                    self._put_back()

    def _change(self, row: dict[str, Cell], after: Cell, new: str) -> bool:
        where = " AND ".join(f"{name} = ?" for name in self._keys)
        statement = f"UPDATE {self._table} SET {self._column} = {new} WHERE {where}"
        try:
            self._connection.execute(statement, (after, *(row[name] for name in self._keys)))
        except sqlite3.IntegrityError:
            return False  # another row has that key
        return True

    def _put_back(self) -> None:
        places = ", ".join("?" * len(self._names))
        self._connection.execute("BEGIN")
        self._connection.execute(f"DELETE FROM {self._table}")
        self._connection.executemany(f"INSERT INTO {self._table} VALUES ({places})", self._rows)
        self._connection.execute("COMMIT")


def _parameters() -> Iterator[object]:
    for table, columns in COLUMNS:
        yield from (pytest.param(table, column, id=f"{table}.{column}") for column in columns.split())


@pytest.mark.parametrize(("table", "column"), list(_parameters()))
@on_one_back_end
def test_verify_detects_any_changed_byte_of_the_file(
    log: Log, where: str, machine: Machine, table: str, column: str
) -> None:
    (large_ledger if table == "nodes" else small_ledger)(log, machine)
    tampering = Tampering(Path(where), table, column)
    unnoticed, tried = [], 0
    for row, after in tampering.changes():
        tried += 1
        words = verdict(log)
        named = table != "entries" or re.search(rf"\bentry {row['seq']!r}\b", words)
        if not words or not named:
            unnoticed.append((row, after, words))
    tampering.close()
    assert tried > 0
    assert unnoticed == []
    assert verdict(log) == ""


def verdict(log: Log) -> str:
    """The error of verify; None if it accepts the ledger."""
    try:
        verify(log)
    except CorruptData as damaged:
        return str(damaged)
    return ""


def test_every_column_is_tampered_with_or_known_to_be_irrelevant() -> None:
    known = {(table, column) for table, columns in COLUMNS for column in columns.split()}
    known |= {(table, column) for table, column, _ in UNCHECKED}
    tables = (schema.entries, schema.nodes, schema.head, schema.records, schema.search, schema.views)
    assert known == {(table.name, one.name) for table in (*tables, schema.checkpoints) for one in table.columns}

"""The session table: unpredictable ids, limits in total and per address, and timeouts."""

import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from perseid.registry.identity import Proof
from perseid.server.http.auth.session_table import (
    ID_BYTES,
    MAX_ID_LENGTH,
    NONCE_BYTES,
    TIMEOUT,
    USE_INTERVAL,
    Session,
    SessionTable,
)
from perseid.server.native.authentication import ProvenIdentity
from perseid.server.state.state import MAX_EVICTIONS, SharedState, StateFull
from tests.server.shared_state import MAP_BYTES, make_state

NOW = 1_794_724_100.0
HERE, AVAILABLE = "192.0.2.1", "192.0.2.2"
HOSTS = (HERE, AVAILABLE, "2001:db8::1", "2001:db8:0:100::1", "::1")
SOMEBODY = ProvenIdentity(b"12345/u", 300, 300, Proof.SECRET_KEY, b"mark")


def begin(table: SessionTable, host: str = HERE, now: float = NOW, *, proved: bool = False) -> Session:
    session = table.begin(host, now)
    if proved:
        table.prove(session, SOMEBODY, "300:12345/u")
    return session


def is_there(table: SessionTable, session: Session, now: float = NOW) -> bool:
    found = table.find(session.id, now)
    return found is not None and (found, found.proved) == (session, session.proved)


def test_ids_and_nonces_are_long_and_unique() -> None:
    table = SessionTable(make_state())
    made = [begin(table) for _ in range(50)]
    assert len({session.id for session in made}) == len({session.nonce for session in made}) == 50
    assert {len(session.id) * 6 for session in made} == {ID_BYTES * 8}
    assert ID_BYTES * 8 >= 128
    assert {len(session.nonce) for session in made} == {NONCE_BYTES}


def test_only_the_full_id_finds_a_session() -> None:
    table = SessionTable(make_state())
    session = begin(table)
    assert is_there(table, session)
    for text in (
        "",
        session.id[:-1],
        session.id + "A",
        session.id.swapcase(),
        "x" * (MAX_ID_LENGTH + 1),
        "\ud800",
        "\0",
    ):
        assert table.find(text, NOW) is None


def test_id_is_not_in_repr() -> None:
    session = begin(SessionTable(make_state()))
    session.header = b"a secret"
    assert session.id not in repr(session)
    assert "secret" not in repr(session)


def test_use_keeps_session_alive() -> None:
    table = SessionTable(make_state())
    for proved in (False, True):
        session = begin(table, proved=proved)
        assert is_there(table, session, NOW + TIMEOUT)
        assert is_there(table, session, NOW + 2 * TIMEOUT)
        assert is_there(table, session, NOW + 3 * TIMEOUT + USE_INTERVAL - 1)
        assert not is_there(table, session, NOW + 5 * TIMEOUT)
    short = begin(table)
    assert table.find(short.id, NOW + 63, 60) is None
    assert not is_there(table, short)


def test_use_is_written_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    table = SessionTable(state)
    session = begin(table, proved=True)
    monkeypatch.setattr(state, "write", never)
    assert is_there(table, session, NOW + USE_INTERVAL - 1)
    with pytest.raises(AssertionError, match="written"):
        table.find(session.id, NOW + USE_INTERVAL)


def never(*_: object) -> NoReturn:
    raise AssertionError("written")


def test_expired_sessions_are_swept() -> None:
    state = make_state()
    table = SessionTable(state)
    for proved in (False, True):
        for _ in range(5):
            begin(table, proved=proved)
    begin(table, now=time.time() + TIMEOUT)
    state.sweep()
    assert len(table) == 1


def test_expired_session_is_not_found_if_the_state_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    table = SessionTable(state)
    session = begin(table)

    def fail(*_: object) -> NoReturn:
        raise StateFull

    monkeypatch.setattr(state, "write", fail)
    assert table.find(session.id, NOW + 63, 60) is None


def test_session_stays_unauthenticated_if_there_is_no_room() -> None:
    state = make_state()
    for _ in range(MAX_EVICTIONS * 2):
        begin(SessionTable(state), proved=True)
    smaller = SessionTable(state, max_sessions=1)
    session = begin(smaller)
    with pytest.raises(StateFull):
        smaller.prove(session, SOMEBODY, "300:12345/u")
    assert session.proved is None
    assert is_there(smaller, session)


def test_session_of_one_process_is_found_and_ended_in_another(tmp_path: Path) -> None:
    state = SharedState(tmp_path, MAP_BYTES)
    script = (
        "import sys; from pathlib import Path; from perseid.server.state.state import SharedState\n"
        "from perseid.server.http.auth.session_table import SessionTable\n"
        "table = SessionTable(SharedState(Path(sys.argv[1]), int(sys.argv[2])))\n"
        "found = [table.find(text, float(sys.argv[3])) for text in sys.argv[4:]]\n"
        "print(*[session.claimed for session in found], *[table.is_proved_by(session, 'a') for session in found])\n"
        "table.end(found[1])"
    )
    table = SessionTable(state)
    unproved, first, second = begin(table), begin(table), begin(table)
    for session in (first, second):
        table.prove(session, SOMEBODY, "300:12345/u", "a")
    command = [sys.executable, "-c", script, str(tmp_path), str(MAP_BYTES), str(NOW + 1)]
    told = subprocess.run([*command, first.id, second.id], check=True, capture_output=True, text=True).stdout
    assert told.split() == ["300:12345/u"] * 2 + ["True"] * 2
    assert [is_there(table, session) for session in (unproved, first, second)] == [True, True, False]
    state.close()


def test_ended_session_cannot_be_proved() -> None:
    table = SessionTable(make_state())
    session = begin(table)
    table.end(session)
    table.end(session)
    table.prove(session, SOMEBODY, "x")
    assert not is_there(table, session)
    assert session.proved is None
    assert len(table) == 0


@pytest.mark.parametrize("proved", [False, True])
def test_sessions_of_one_address_evict_each_other(proved: bool) -> None:
    table = SessionTable(make_state(), per_address=3, unproved_per_address=3)
    other = begin(table, AVAILABLE, proved=proved)
    first, second, *rest = [begin(table, now=NOW + number, proved=proved) for number in range(3)]
    assert is_there(table, first, NOW + USE_INTERVAL)
    added = begin(table, now=NOW + USE_INTERVAL, proved=proved)
    assert not is_there(table, second), "the one that was not used for longest"
    assert all(is_there(table, session) for session in (other, first, *rest, added))


@pytest.mark.parametrize("proved", [False, True])
def test_oldest_session_is_evicted_at_total_limit(proved: bool) -> None:
    table = SessionTable(make_state(), max_sessions=4, unproved=4)
    made = [begin(table, f"192.0.2.{number}", NOW + number, proved=proved) for number in range(6)]
    assert [is_there(table, session) for session in made] == [False, False, True, True, True, True]


def test_unauthenticated_sessions_do_not_evict_authenticated() -> None:
    table = SessionTable(make_state(), max_sessions=2, per_address=2, unproved=3, unproved_per_address=2)
    known = [begin(table, proved=True) for _ in range(2)]
    for number in range(20):
        begin(table, HERE)
        begin(table, f"198.51.100.{number}")
    assert all(is_there(table, session) for session in known)
    assert (table.proved, len(table)) == (2, 5)


def test_network_has_little_more_than_one_address() -> None:
    """An IPv6 /64 counts as one address, a /56 as two and a /48 as four."""
    table = SessionTable(make_state(), unproved_per_address=2)
    for host in range(10):
        begin(table, f"2001:db8::{host:x}")
    assert len(table) == 2
    for network in range(10):
        begin(table, f"2001:db8:0:{network:x}::1")
    assert len(table) == 4
    for network in range(10):
        begin(table, f"2001:db8:0:{network << 8:x}::1")
    assert len(table) == 8


def test_header_that_proved_session_is_recognized() -> None:
    table = SessionTable(make_state())
    session = table.begin(HERE, NOW)
    assert not table.is_proved_by(session, "a")
    table.prove(session, SOMEBODY, "300:12345/u", "a")
    assert table.is_proved_by(session, "a")
    assert not any(table.is_proved_by(session, text) for text in ("", "b", "a ", "A"))
    assert session.header != b"a"
    table.prove(session, SOMEBODY, "300:12345/u")
    assert not table.is_proved_by(session, "a")
    assert not table.is_proved_by(session, "")


class Tables(RuleBasedStateMachine):
    """Whatever happens, the table keeps its limits, and removed sessions leave nothing."""

    @initialize()
    def make(self) -> None:
        self.table = SessionTable(make_state(), max_sessions=6, per_address=3, unproved=5, unproved_per_address=2)
        self.made: list[Session] = []
        self.hosts: dict[str, str] = {}
        self.now = NOW

    @rule(host=st.sampled_from(HOSTS))
    def begin(self, host: str) -> None:
        self.made.append(self.table.begin(host, self.now))
        self.hosts[self.made[-1].id] = host

    @rule(data=st.data())
    def prove(self, data: st.DataObject) -> None:
        if self.made:
            session = data.draw(st.sampled_from(self.made))
            self.table.prove(session, SOMEBODY, "300:12345/u", data.draw(st.sampled_from(("", "header"))))

    @rule(data=st.data(), seconds=st.integers(0, TIMEOUT))
    def find(self, data: st.DataObject, seconds: int) -> None:
        self.now += seconds
        if self.made:
            session = data.draw(st.sampled_from(self.made))
            found = self.table.find(session.id, self.now)
            assert found in (None, session)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.made:
            session = data.draw(st.sampled_from(self.made))
            self.table.end(session)
            assert self.table.find(session.id, self.now) is None

    @invariant()
    def is_bounded(self) -> None:
        assert self.table.proved <= 6
        assert len(self.table) - self.table.proved <= 5
        found = [session for made in self.made if (session := self.table.find(made.id, self.now)) is not None]
        for is_proved, most in ((True, 3), (False, 2)):
            hosts = [self.hosts[session.id] for session in found if (session.proved is not None) is is_proved]
            assert all(hosts.count(host) <= most for host in HOSTS)  # each is a network of its own


TestTables = Tables.TestCase

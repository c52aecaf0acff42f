"""Handles by state: counting, and listing with an offset."""

from perseid.ledger.log.entry import State
from perseid.ledger.log.log import Log
from tests.ledger.ledgers import change, key, look

STATES = (State.NORMAL, State.RESERVED, State.UNPUBLISHED, State.TOMBSTONE, State.ABSENT)
FIRST, END = key(""), key("") + b"\xff"


def test_handles_are_counted_by_state(log: Log) -> None:
    assert look(log).count_names(FIRST, END, STATES[:4]) == 0
    log.append([change(f"{number:03}", state=STATES[number % 5]) for number in range(100)])
    log.append([change("000", state=State.ABSENT), change("004", state=State.NORMAL)])
    assert look(log).count_names(FIRST, END, [State.NORMAL]) == 20
    assert look(log).count_names(FIRST, END, [State.NORMAL, State.TOMBSTONE]) == 40
    assert look(log).count_names(FIRST, END, STATES[:4]) == 80
    assert look(log).count_names(key("050"), key("060"), STATES[:4]) == 8


def test_handles_of_some_states_are_listed_with_an_offset(log: Log) -> None:
    log.append([change(f"{number:03}", state=STATES[number % 5]) for number in range(100)])
    expected = [f"10.1/{number:03}" for number in range(100) if number % 5 in (0, 3)]
    for skip in (0, 1, 7, 39, 40, 1 << 30):
        found, _ = look(log).names_in_states(FIRST, END, [State.NORMAL, State.TOMBSTONE], 10, skip)
        assert [entry.handle for entry in found] == expected[skip : skip + 10]

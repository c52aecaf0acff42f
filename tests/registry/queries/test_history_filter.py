"""The history filter: values are hidden by index, by data and by redactions, and no others are."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log.entry import Action, Entry, Kind, Slot, State
from perseid.records.record import Value
from perseid.registry.queries import history
from perseid.registry.queries.history import KEEP_HISTORY, HistoryFilter, keep_history_note
from tests.registry.commands.records_in_every_state import hidden, value


def entry(*values: Value, state: State = State.NORMAL, note: str = "", erased: Sequence[int] = ()) -> Entry:
    """Return a version of a record; `erased` are the indexes of redacted values."""
    slots = [Slot.commit(Kind.VALUE, bytes(16), each.to_bytes()) for each in values]
    slots = [slot.redacted() if each.index in erased else slot for each, slot in zip(values, slots, strict=True)]
    why = Slot.commit(Kind.NOTE, bytes(16), note.encode())
    identity = Slot.commit(Kind.ACTOR, bytes(16), b"cli local:alice")
    return Entry(1, 0, Action.UPDATE, state, False, "12345/x", bytes(16), identity, why, tuple(slots))


def shown(*versions: Entry) -> list[list[str]]:
    """Return what is still public of each version, given oldest first."""
    one = HistoryFilter()
    return [[each.data.decode() for each in one.visible_values(version)] for version in reversed(versions)][::-1]


GONE = entry(state=State.ABSENT)


def test_replaced_or_removed_values_stay_public() -> None:
    assert shown(entry(value(1, "a"), value(2, "b")), entry(value(1, "c")), GONE) == [["a", "b"], ["c"], []]


def test_formerly_private_values_are_hidden() -> None:
    assert shown(entry(hidden(1, "a")), entry(value(1, "b"))) == [[], ["b"]]


def test_removing_public_read_hides_history() -> None:
    assert shown(entry(value(1, "a"), value(2)), entry(hidden(1, "a"), value(2))) == [["v2"], ["v2"]]


def test_value_changed_and_hidden_at_once_is_hidden_in_all_versions() -> None:
    assert shown(entry(value(1, "a")), entry(value(1, "b")), entry(hidden(1, "c"))) == [[], [], []]


@pytest.mark.parametrize("today", [entry(), GONE, entry(value(1, "other")), entry(value(2))])
def test_hidden_values_stay_hidden_after_removal(today: Entry) -> None:
    assert shown(entry(value(1, "a")), entry(hidden(1, "a")), today)[0] == []


def test_value_added_again_as_private_is_hidden() -> None:
    assert shown(entry(value(1, "a")), entry(), entry(hidden(1, "b"))) == [[], [], []]


def test_value_moved_to_another_index_as_private_is_hidden() -> None:
    assert shown(entry(value(1, "a")), entry(value(1, "b"), hidden(9, "a"))) == [[], ["b"]]


def test_value_with_only_a_private_copy_left_is_hidden() -> None:
    assert shown(entry(value(1, "a"), hidden(2, "a")), entry(hidden(2, "a"))) == [[], []]


def test_same_data_of_another_type_is_hidden() -> None:
    assert shown(entry(value(1, "a")), entry(hidden(9, "a", "EMAIL"))) == [[], []]


def test_earlier_versions_of_moved_hidden_value_are_hidden() -> None:
    moved = entry(value(1, "w"), value(5, "d1"))
    found = shown(entry(value(1, "d0")), entry(value(1, "d1")), moved, entry(value(5, "d2")), entry(hidden(5, "d2")))
    assert found == [[], [], ["w"], [], []]


def test_copies_in_same_version_are_hidden() -> None:
    found = shown(entry(value(2, "d"), value(3, "d"), value(4, "d")), entry(value(3, "e")), entry(hidden(3, "e")))
    assert found == [[], [], []]


def test_value_public_again_is_not_hidden() -> None:
    assert shown(entry(value(1, "a")), entry(hidden(1, "a")), entry(value(1, "a"))) == [["a"], [], ["a"]]
    again = shown(entry(value(1, "a")), entry(hidden(1, "a")), entry(value(1, "a")), entry(value(1, "b")))
    assert again == [["a"], [], ["a"], ["b"]]


def test_replacement_does_not_reveal_hidden_value() -> None:
    assert shown(entry(value(1, "a")), entry(hidden(1, "a")), entry(value(1, "b"))) == [[], [], ["b"]]


def test_public_value_is_not_hidden_by_private_value_with_same_data() -> None:
    assert shown(entry(value(1, "a")), entry(value(1, "a"), hidden(2, "a", "NOTE"))) == [["a"], ["a"]]


@pytest.mark.parametrize("state", [State.RESERVED, State.UNPUBLISHED, State(77)])
def test_unpublished_versions_show_nothing(state: State) -> None:
    assert shown(entry(value(1), state=state)) == [[]]


def test_unpublishing_hides_earlier_values_not_published_again() -> None:
    unpublished = entry(value(1, "a"), value(2, "b"), state=State.UNPUBLISHED)
    found = shown(entry(value(1, "a"), value(2, "b")), unpublished, entry(value(2, "b"), value(3, "c")))
    assert found == [["b"], [], ["b", "c"]]


def test_hiding_can_keep_history_public() -> None:
    quiet = keep_history_note("moved to the archive")
    assert quiet.endswith("moved to the archive")
    assert keep_history_note("") == KEEP_HISTORY
    assert shown(entry(value(1, "a")), entry(hidden(1, "a"), note=quiet)) == [["a"], []]
    assert shown(entry(value(1, "a")), entry(hidden(1, "a"), note=quiet), entry(hidden(1, "a"))) == [["a"], [], []]
    unpublished = entry(value(1, "a"), state=State.UNPUBLISHED, note=KEEP_HISTORY)
    assert shown(entry(value(1, "a")), unpublished, entry(value(1, "b"))) == [["a"], [], ["b"]]


def test_note_must_start_with_keep_history_line() -> None:
    for note in (f"we say: {KEEP_HISTORY}", f"{KEEP_HISTORY}?", f"why\n{KEEP_HISTORY}"):
        assert shown(entry(value(1, "a")), entry(hidden(1, "a"), note=note)) == [[], []]


def test_redacted_note_does_not_keep_history() -> None:
    quiet = entry(hidden(1, "a"), note=KEEP_HISTORY)
    erased = quiet.redacted(frozenset((quiet.note.commitment,)))
    assert shown(entry(value(1, "a")), erased) == [[], []]


def test_redacting_private_version_does_not_reveal_public_one() -> None:
    first = entry(value(1), value(2, "a"), value(3))
    assert shown(first, entry(value(1), hidden(2, "a"), value(3), erased=[2]), entry(value(1), value(3))) == [
        ["v1", "v3"],
        ["v1", "v3"],
        ["v1", "v3"],
    ]
    assert shown(first, entry(value(1), hidden(7, "a"), erased=[7]), entry()) == [["v1"], ["v1"], []]
    assert shown(first, entry(hidden(0, "a"), value(3), erased=[0]), entry()) == [["v3"], ["v3"], []]


def test_redacted_value_hides_nothing_of_its_own_time() -> None:
    """Old secret keys are redacted when replaced; that must not hide other values."""
    old, new = hidden(300, "s1"), hidden(300, "s2")
    with_old = entry(value(1), value(250, "z"), old, erased=[300]), entry(value(1), old, erased=[300])
    assert shown(*with_old, entry(value(1), new))[0] == ["v1", "z"]


def test_too_many_redactions_hide_everything_older() -> None:
    gaps = [
        entry(value(n), hidden(n + 1), value(n + 2), erased=[n + 1]) for n in range(10, 10 + 2 * history.MAX_GAPS, 2)
    ]
    assert shown(entry(value(1)), *gaps, entry())[0] == ["v1"]
    gaps.append(entry(value(5000), hidden(5001), erased=[5001]))
    assert shown(entry(value(1)), *gaps, entry())[0] == []


def test_versions_beyond_scan_limit_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_VERSIONS_SCANNED", 6)
    one = HistoryFilter()
    found = [one.visible_values(entry(value(1), value(2))) for _ in range(3)]
    assert [len(each) for each in found] == [2, 2, 0]
    assert one.ended


records = st.dictionaries(st.integers(1, 3), st.tuples(st.sampled_from("abc"), st.booleans()), max_size=3)
Versions = list[dict[int, tuple[str, bool]]]


def lifted(versions: Versions) -> list[set[tuple[int, str]]]:
    one = HistoryFilter()
    found = []
    for record in reversed(versions):
        values = [value(n, data) if public else hidden(n, data) for n, (data, public) in sorted(record.items())]
        found.append({(each.index, each.data.decode()) for each in one.visible_values(entry(*values))})
    return found[::-1]


@given(st.lists(records, min_size=1, max_size=6))
def test_later_hidden_values_are_never_shown(versions: Versions) -> None:
    found = lifted(versions)
    private = [
        {part for n, (data, public) in record.items() if not public for part in (n, data)} for record in versions
    ]
    for place, values in enumerate(found):
        later = {data for others in found[place + 1 :] for _, data in others}
        for index, data in values:
            if data not in later:  # what is shown of a later version is no secret in an earlier one
                assert not any({index, data} & parts for parts in private[place + 1 :])


@given(st.lists(records, min_size=1, max_size=6))
def test_visible_values_were_public_then(versions: Versions) -> None:
    then = [{(n, data) for n, (data, public) in record.items() if public} for record in versions]
    found = lifted(versions)
    assert all(now <= past for now, past in zip(found, then, strict=True))
    assert found[-1] == then[-1]
    if all(public for record in versions for _, public in record.values()):
        assert found == then

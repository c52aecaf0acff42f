"""Loading many new names: all or none, whatever happens, and the same views as one by one."""

import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger import loading
from perseid.ledger.answer_format import HandleItem, item_octets, store_key
from perseid.ledger.answers import Answers, Applied
from perseid.ledger.change import Change
from perseid.ledger.entry import Draft, State
from perseid.ledger.errors import Moved, StorageFull
from perseid.ledger.keys import record_key
from perseid.ledger.ledger import Ledger
from perseid.ledger.loading import NameTaken
from perseid.ledger.runs import Runs
from perseid.ledger.store import Store
from perseid.ledger.verify import verify
from perseid.records import Permission, Value
from tests.ledger.ledgers import SIGNER, appended, change, key, log_of_today, open_store, secret, until, url

DEADLINE = 60.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def opened(store: Store, tmp_path: Path) -> Iterator[Ledger]:
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        until(lambda: ledger.ready)
        yield ledger


def drafts(names: Iterator[str] | list[str], exact: bool = False) -> list[Draft]:
    return [change(name, url(f"https://example.org/{name}"), secret(b"s"), exact=exact).draft for name in names]


def sound(ledger: Ledger, entries: int) -> None:
    """The ledger verifies, and all views are those of its entries."""
    assert verify(ledger.log).entries == entries
    assert ledger.answers.ready
    assert ledger.answers.differences(ledger.log.reading) is None


def shuffled(number: int) -> list[str]:
    names = [f"n{each}" for each in range(number)]
    random.Random(5).shuffle(names)
    return names


@pytest.mark.parametrize("run_octets", [1 << 30, 10_000])
def test_a_load_is_appended_with_all_views(opened: Ledger, run_octets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.Load.__init__, "__defaults__", (run_octets,))
    monkeypatch.setattr(loading, "CHUNK", 100)
    opened.append(change("before", url("1")), change("x", url("2"), handle="99.9/behind"))
    told: list[int] = []
    loaded = opened.load(drafts(shuffled(250)), {key("before"): 1}, told.append)
    assert (loaded.first, loaded.count, loaded.last) == (3, 250, 252)
    assert told == [100, 200, 250]
    sound(opened, 252)
    assert appended(opened.append(change("n7", url("3"), n7=loaded.first + shuffled(250).index("n7")))[0]).seq == 253
    item = opened.find(b"10.1/N7")
    assert item is not None
    assert item.private is False
    with opened.reading() as reading:
        assert [entry.handle for entry in reading.names(key("n"), key("n10"), 9)] == ["10.1/n0", "10.1/n1"]
        assert reading.entry(3).at == reading.entry(252).at == loaded.at
    sound(opened, 253)


def test_a_load_of_nothing_writes_nothing(opened: Ledger) -> None:
    loaded = opened.load([])
    assert (loaded.first, loaded.count) == (1, 0)
    sound(opened, 0)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a", "b", "A"], "10.1/A is twice in the load"),
        (["a", "there", "z"], "10.1/THERE has been there since entry"),
    ],
)
def test_a_load_with_a_name_that_is_not_new_leaves_no_trace(opened: Ledger, names: list[str], why: str) -> None:
    opened.append(change("there", url("1")))
    with pytest.raises(NameTaken, match=why):
        opened.load(drafts(names))
    assert opened.find(b"10.1/a") is None
    sound(opened, 1)
    assert opened.load(drafts(["a"])).first == 2


def test_a_load_that_fails_on_the_way_leaves_no_trace(opened: Ledger) -> None:
    def failing() -> Iterator[Draft]:
        yield from drafts(shuffled(150))
        raise OSError("the source has gone")

    with pytest.raises(OSError, match="gone"):
        opened.load(failing())
    with pytest.raises(ValueError, match="about a prefix"):
        opened.load([*drafts(["a"]), change("x", handle="0.NA/10.2").draft])
    with pytest.raises(UnicodeEncodeError):
        opened.load([*drafts(["a"]), change("x", handle="10.1/\ud800").draft])
    sound(opened, 0)


def test_a_load_whose_decision_has_moved_is_refused(opened: Ledger) -> None:
    opened.append(change("policy"), change("policy"))
    with pytest.raises(Moved):
        opened.load(drafts(["a"]), {key("policy"): 1})
    with pytest.raises(Moved):
        opened.load(drafts(["a"]), {key("none"): 1})
    sound(opened, 2)


def test_names_that_differ_in_case_only_meet_under_one_key_of_the_view(opened: Ledger) -> None:
    opened.append(change("B", url("1"), exact=True))
    opened.load(drafts(["aa", "aA", "b", "AA", "c"], exact=True))
    sound(opened, 6)
    item = opened.find(b"10.1/aA")
    assert item is not None
    assert item.spelling == b"10.1/aA"


def test_what_is_handed_in_during_a_load_waits_and_is_done_after_it(opened: Ledger) -> None:
    waiting: list[threading.Thread] = []
    done: list[int] = []

    def source() -> Iterator[Draft]:
        yield from drafts(["a"])
        for number in range(3):
            request = change(f"other-{number}", url("1"))
            waiting.append(threading.Thread(target=lambda: done.append(appended(opened.append(request)[0]).seq)))  # noqa: B023
            waiting[-1].start()
        yield from drafts(["b"])

    assert opened.load(source()).count == 2
    for thread in waiting:
        thread.join(DEADLINE)
    assert sorted(done) == [3, 4, 5]
    sound(opened, 5)


@pytest.mark.parametrize("applied", [Applied.BEHIND, Applied.FAILED, None])
def test_a_view_that_cannot_follow_a_load_does_not_fail_it(
    opened: Ledger, applied: Applied | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Applied:
        opened.answers.behind(3)
        if applied is None:
            raise RuntimeError("no view today")
        return applied

    with monkeypatch.context() as broken:
        broken.setattr(opened.answers, "apply_sorted", fail)
        assert opened.load(drafts(["a", "b", "c"])).last == 3
        assert opened.find(b"10.1/b") is not None
    until(lambda: opened.ready)
    sound(opened, 3)


def test_another_process_may_apply_a_load_first(opened: Ledger) -> None:
    apply_sorted = opened.answers.apply_sorted

    def late(*arguments: object) -> Applied:
        assert opened.answers.follow(opened.log.reading)
        return apply_sorted(*arguments)  # type: ignore[arg-type]

    opened.answers.apply_sorted = late  # type: ignore[assignment,method-assign]
    opened.load(drafts(shuffled(50)))
    sound(opened, 50)


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from perseid.ledger import answers, loading
    from perseid.ledger.answers import Answers
    from perseid.ledger.ledger import Ledger
    from tests.ledger.ledgers import log_of_today, open_store, until
    from tests.ledger.test_ledger_load import drafts, shuffled

    where, folder, moment = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    answers.BATCH = loading.CHUNK = 100

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    ledger = Ledger(log_of_today(open_store(where)), Answers(folder / "answers"))
    until(lambda: ledger.ready)
    apply_batch = ledger.answers._apply_batch

    def half(after, last, leaf, batch, generation, txn):
        if len(batch) < 100:
            die()
        return apply_batch(after, last, leaf, batch, generation, txn)

    if moment == "views":
        ledger.answers._apply_batch = half
    elif moment == "committed":
        ledger.answers.apply_sorted = die
    ledger.load(drafts(shuffled(250)), progress=die if moment == "entries" else lambda _: None)
    """
)


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("moment", "entries"), [("entries", 1), ("committed", 251), ("views", 251)])
def test_a_load_that_is_killed_is_there_as_a_whole_or_not_at_all(
    store: Store, where: str, tmp_path: Path, moment: str, entries: int
) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        ledger.append(change("first", url("1")))
        until(lambda: ledger.ready)
    command = [sys.executable, "-c", KILLED, where, str(tmp_path), moment]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with Ledger(log_of_today(open_store(where)), Answers(tmp_path / "answers")) as ledger:
        there = ledger.find(b"10.1/n249") is not None
        assert there == (entries > 1), "from the view or from the records, it is never wrong"
        until(lambda: ledger.ready)
        sound(ledger, entries)
    assert not [path for path in (tmp_path / "answers").iterdir() if path.name.startswith("tmp")]


@given(st.lists(st.tuples(st.binary(max_size=6), st.integers(0, 1 << 62))), st.integers(0, 4_000))
def test_runs_give_back_everything_in_order(rows: list[tuple[bytes, int]], limit: int) -> None:
    with Runs(tuple[bytes, int], Path(tempfile.gettempdir()), limit) as runs:
        for first in range(0, len(rows), 7):
            part = rows[first : first + 7]
            runs.add(part, sum(len(key) for key, _ in part))
        assert list(runs.sorted()) == sorted(rows)


def test_runs_leave_no_file_behind(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with Runs(tuple[bytes, bytes], tmp_path, 1_000) as runs:
        for number in range(100):
            runs.add([(b"%d" % (number * 7 % 100), b"x" * 100)], 102)
            assert list(tmp_path.iterdir()) == []
        assert [len(row) for _, row in runs.sorted()] == [100] * 100
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_room_for_runs_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(StorageFull, match="no room"), Runs(tuple[bytes, int], tmp_path / "nowhere", 0) as runs:
        runs.add([(b"a", 1)], 1)


VALUES = st.builds(
    Value,
    st.integers(1, 1_000),
    st.sampled_from(["URL", "HS_ADMIN", "HS_ALIAS", "hs_alias.x", "10320/loc", "10320/LOC.y", "EMAIL", "X"]),
    st.binary(max_size=300),
    permissions=st.sampled_from([Permission(0x0C), Permission(0x0E)]),
)


@given(
    st.sampled_from(["10.1/a", "10.1/A", "10.1/ä", "0.SITE/x", "0.NA/10.1", "10.1/" + "x" * 450]),
    st.booleans(),
    st.sampled_from([*State, State(5), State(9)]),
    st.lists(VALUES, max_size=4),
)
def test_items_encoded_in_one_go_are_the_same(handle: str, exact: bool, state: State, values: list[Value]) -> None:
    contents = [value.to_bytes() for value in values]
    place = store_key(record_key(handle, exact=exact))
    told = Change(1, bytes(32), record_key(handle, exact=exact), handle, exact, state, contents)
    item = HandleItem.of(told)
    assert item_octets(told, place) == (None if item is None else item.to_bytes(place))

"""What finding costs: `python -m bench.finding [--records N,N] [--million]`.

A ledger is loaded with records of four values, under names that are in no order to an index, and asked what leads to a
URL, a host, a path, what has a type, a value, a word in its title, an owner, what has changed. Every question is for a
page of ten; those that go on begin in the middle of what there is. Speed is microseconds of CPU, the best of several
rounds. Below stands how many octets the keys of each kind add to a record, as SQLite keeps them in order.
"""

import argparse
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.merkle import Signer
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.names import pilin
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.records import Home
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import new_log
from perseid.registry.queries.find import Search, SearchPage, find
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules

SIZES: Final = "10000,100000"
MILLION: Final = 1_000_000
PREFIX: Final = "10.1"
PAGE: Final = 10
HOSTS: Final = 100
PEOPLE: Final = 1_000
OPERATOR: Final = LocalIdentity("bench")
_ROUNDS = 5
_CALLS = 50
_SMALL = 2_000
_KINDS: Final = {
    "URL by host (U)": "U",
    "URL by path (P)": "P",
    "type (Y)": "Y",
    "data (V)": "V",
    "owner (O)": "O",
    "title words (W)": "W",
}

_folder = tempfile.TemporaryDirectory()
_ledgers: list[Ledger] = []


def _drafts(records: int) -> Iterator[Draft]:
    first = pilin.from_unix_ns(1_794_724_100 * 1_000_000_000)
    for number in range(records):
        values = (
            Value.text(1, "URL", f"https://h{number % HOSTS}.example.org/items/{number}"),
            Value.text(2, "EMAIL", f"person-{number % PEOPLE}@example.org"),
            Value.text(3, "DESC", f"the thing with the number {number}"),
            Value(100, "HS_ADMIN", Admin(ValueRef(300, f"{PREFIX}/person-{number % PEOPLE}")).to_bytes()),
        )
        name = f"{PREFIX}/{pilin.encode(first + number)}"
        yield Draft(Action.CREATE, State.NORMAL, name, "bench", "local:bench", values=values)


def _registry(records: int) -> Registry:
    folder = Path(_folder.name) / f"{records}-{len(_ledgers)}"
    folder.mkdir()
    store = Store.sqlite(folder / "ledger.db")
    store.upgrade()
    log = new_log(store)
    log.create(Signer.generate("bench.example.org", bytes(32)))
    ledger = Ledger(log, Answers(folder / "answers"))
    _ledgers.append(ledger)
    registry = Registry(ledger, Rules())
    registry.do(Home(f"0.NA/{PREFIX}"), OPERATOR, "bench")
    ledger.load(_drafts(records))
    return registry


def _page(registry: Registry, search: Search, after: str | None = None) -> SearchPage:
    with registry.snapshot() as snapshot:
        return find(snapshot, OPERATOR, search, after, PAGE)


def _middle(registry: Registry, search: Search, records: int) -> str | None:
    """A place half-way through what a search finds, which is about so many."""
    with registry.snapshot() as snapshot:
        after: str | None = None
        for _ in range(max(records // 2 // 1_000, 1)):
            after = find(snapshot, OPERATOR, search, after, 1_000).following or after
    return after


def questions(registry: Registry, records: int) -> dict[str, Callable[[], object]]:
    """What is asked, by what it is called."""
    number = records // 3
    searches = {
        "exact URL": Search(url=f"https://h{number % HOSTS}.example.org/items/{number}"),
        "URL by its beginning": Search(url=f"https://h{number % HOSTS}.example.org/items/*"),
        "host with subdomains": Search(host="example.org"),
        "path by its beginning": Search(path=f"/items/{number}"),
        "type": Search(type="EMAIL"),
        "exact value": Search(value=f"the thing with the number {number}".encode()),
        "value of many": Search(value=f"person-{number % PEOPLE}@example.org".encode()),
        "rare word": Search(words=f"{number}"),
        "word of all": Search(words="thing"),
        "rare word and word of all": Search(words=f"number {number}"),
        "owner": Search(owner=f"{PREFIX}/person-{number % PEOPLE}"),
        "changed since": Search(since=number),
        "prefix": Search(prefix=PREFIX),
    }
    asked: dict[str, Callable[[], object]] = {}
    for name, search in searches.items():
        asked[name] = lambda search=search: _page(registry, search)  # type: ignore[misc]
    for name in ("host with subdomains", "type"):
        after = _middle(registry, searches[name], records)
        asked[f"{name}, half-way"] = lambda search=searches[name], after=after: _page(registry, search, after)  # type: ignore[misc]
    return asked


def _best(function: Callable[[], object]) -> float:
    """Microseconds of CPU for a call."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begun = time.thread_time_ns()
        for _ in range(_CALLS):
            function()
        best = min(best, (time.thread_time_ns() - begun) / _CALLS / 1_000)
    return best


def octets(registry: Registry) -> dict[str, int]:
    """How many octets the keys of each kind take, written in order."""
    address = registry.ledger.log.store.engine.url.database
    found = {}
    for name, kind in _KINDS.items():
        with sqlite3.connect(":memory:") as copy:
            copy.execute("CREATE TABLE t (k BLOB, s INTEGER, PRIMARY KEY (k, s)) WITHOUT ROWID")
            with sqlite3.connect(f"file:{address}?mode=ro", uri=True) as source:
                rows = source.execute(
                    "SELECT key, seq FROM search WHERE key >= ? AND key < ? ORDER BY key, seq",
                    (kind.encode(), chr(ord(kind) + 1).encode()),
                )
                copy.executemany("INSERT INTO t VALUES (?, ?)", rows)
            pages, size = (copy.execute(f"PRAGMA {word}").fetchone()[0] for word in ("page_count", "page_size"))
            found[name] = pages * size
    return found


def benches() -> dict[str, Callable[[], object]]:
    """The functions to measure, on a small ledger."""
    threading.Thread(target=_close_at_the_end).start()
    return questions(_registry(_SMALL), _SMALL)


def _close_at_the_end() -> None:
    """A ledger has threads, and the interpreter waits for those before it ends: somebody has to close it by then."""
    threading.main_thread().join()
    _close()


def _close() -> None:
    while _ledgers:
        _ledgers.pop().close()


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description="Print what finding costs.")
    parser.add_argument("--records", default=SIZES, help=f"sizes of the ledgers; default {SIZES}")
    parser.add_argument("--million", action="store_true", help="also a million records")
    options = parser.parse_args()
    sizes = [int(size) for size in options.records.split(",")] + [MILLION] * options.million
    rows: dict[str, list[str]] = {}
    for records in sizes:
        registry = _registry(records)
        for name, function in questions(registry, records).items():
            rows.setdefault(f"{name}, CPU µs", []).append(f"{_best(function):,.0f}")
        for name, taken in octets(registry).items():
            rows.setdefault(f"{name}, octets a record", []).append(f"{taken / records:,.1f}")
        _close()
    width = max(map(len, rows))
    print(f"{'a page of ' + str(PAGE):<{width}}", *[f"{size:>12,}" for size in sizes])
    for name, figures in rows.items():
        growth = [float(figure.replace(",", "")) for figure in figures]
        grows = f"  ×{growth[-1] / growth[0]:.2f}" if list(pairwise(growth)) and growth[0] else ""
        print(f"{name:<{width}}", *[f"{figure:>12}" for figure in figures], grows)


if __name__ == "__main__":
    main()

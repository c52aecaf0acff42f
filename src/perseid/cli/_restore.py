"""Counters from which names are made, and how they go on after a restore.

A backup does not know which numbers were given out after it was made. Names made from the time go on ahead of the
clock; where names are counted (`scheme = "pattern:…"`) nobody can tell, so a restored ledger gives out none until an
operator, who knows the last one, says so: `perseid restore --reopen`.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

import typer

from perseid.ledger.backup.restore import reopen
from perseid.ledger.errors import LeaseClosed, LedgerError
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.requests import Lease, Leased
from perseid.names.allocator import MemoryLease
from perseid.names.characters import fold
from perseid.names.errors import InvalidName, NameMisuse
from perseid.names.pattern import Pattern
from perseid.names.suffix_scheme import Scheme, Source
from perseid.registry.commands.namespaces import checked_prefix, namespaces
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.snapshot import Facts

from ._place import Place, named

_MOST_DIGITS = 18  # of a number that the ledger can keep


@dataclass(frozen=True, slots=True)
class Counter:
    """A namespace whose names are counted."""

    prefix: str
    scheme: Scheme
    closed: bool
    """Whether nothing is given out until somebody says where to go on."""
    last: int
    """The last number that is known to be given out; -1 if none is."""

    @property
    def last_name(self) -> str:
        """The last name that is known to be given out; empty if none is, or it cannot be told."""
        if self.last < 0 or not isinstance(self.scheme, Pattern):
            return ""
        try:
            return f"{self.prefix}/{self.scheme.format(self.last)}"
        except NameMisuse:
            return ""  # beyond what the template has names for


def how_to_reopen(prefix: str) -> str:
    """The command with which an operator lets names be made again."""
    return f"perseid restore --reopen {prefix} --last NAME"


def reopened(place: Place, prefix: str, last: str) -> Counter:
    """Let names be made again behind the last one that was given out, which is a number or a name."""
    checked_prefix(prefix)
    with place.registry.facts() as facts:
        scheme = facts.policy(prefix).suffix_scheme()
    if scheme is None or not is_counted(scheme):
        raise LedgerError(f"the names of {prefix} are not counted, so nothing waits there")
    ledger = place.registry.ledger
    reopen(ledger.log, _scope(prefix, scheme), _number(last, prefix, scheme))
    return _counter(ledger, prefix, scheme)


def counters(place: Place) -> Iterator[Counter]:
    """The counters of all namespaces."""
    with place.registry.facts() as facts:
        found = list(_counted(facts))
    for prefix, scheme in found:
        yield _counter(place.registry.ledger, prefix, scheme)


def is_counted(scheme: Scheme) -> bool:
    """Whether a scheme takes numbers that have no clock; it is tried out to learn that."""
    clocks: list[int] = []
    memory = MemoryLease()

    def lease(count: int, now: int) -> int:
        clocks.append(now)
        return memory(count, now)

    scheme.mint(Source(time.time_ns, secrets.token_bytes, lease, time.sleep), 1)
    return bool(clocks) and not any(clocks)


def _scope(prefix: str, scheme: Scheme) -> bytes:
    """Where the numbers of a namespace are unique, as minting names it."""
    return f"{fold(prefix)} {scheme.name}".encode()


def _counted(facts: Facts) -> Iterator[tuple[str, Scheme]]:
    for prefix in namespaces(facts.reading):
        try:
            scheme = facts.policy(prefix).suffix_scheme()
        except InvalidPolicy:
            continue  # that is another finding
        if scheme is not None and is_counted(scheme):
            yield prefix, scheme


def _counter(ledger: Ledger, prefix: str, scheme: Scheme) -> Counter:
    """How far a counter has come: a look, which takes no number."""
    outcome = ledger.append(Lease(_scope(prefix, scheme), 0, 0))[0]
    if isinstance(outcome, LeaseClosed):
        return Counter(prefix, scheme, True, outcome.last)
    if not isinstance(outcome, Leased):
        raise LedgerError(f"the counter of {prefix} cannot be read: {outcome}")
    return Counter(prefix, scheme, False, outcome.first - 1)


def _number(text: str, prefix: str, scheme: Scheme) -> int:
    """The number that was given, or that of the name that was given."""
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    if "/" not in text:
        raise typer.BadParameter("the last name that was given out is expected, or its number", param_hint="--last")
    handle = named(text, new=True)
    if fold(handle.prefix) != fold(prefix):
        raise typer.BadParameter(f"{handle} is no name of {prefix}", param_hint="--last")
    if not isinstance(scheme, Pattern):
        raise typer.BadParameter("give the number: names of this scheme do not tell it", param_hint="--last")
    try:
        return scheme.parse(handle.suffix)
    except InvalidName as problem:
        raise typer.BadParameter(str(problem), param_hint="--last") from problem

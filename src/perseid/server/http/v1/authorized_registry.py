"""The registry for one who asks, over several steps: whoever loses the key or token that proved them goes no further.

An operation that is one commit is guarded by `ApiCall.change`. What takes many steps, some of them long after the
request was answered, goes through here: in every step, reading ones too, it is looked whether the proof still counts,
and what the settings say by then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from perseid.ledger.log.requests import RestsOn
from perseid.registry.access.token_records import require_counting
from perseid.registry.context import Context, Operation
from perseid.registry.identity import Identity
from perseid.registry.registry import Once, Registry
from perseid.registry.snapshot import Facts, Rules
from perseid.server.http.context import DOOR
from perseid.server.native.authentication import Guard
from perseid.server.native.decisions import Guarded

T = TypeVar("T")


class Acting(Registry):
    """The rules over the ledger of another registry, for one identity."""

    def __init__(
        self, registry: Registry, who: Identity, guard: Guard | None, rules: Callable[[], Rules] | None = None
    ) -> None:
        """`rules` gives those that count at the moment; those of the registry do, if it is not said."""
        super().__init__(registry.ledger, registry.rules)
        self._who = who
        self._guard = guard
        self._rules_now = rules or (lambda: registry.rules)

    def do(
        self,
        operation: Operation[T],
        who: Identity,
        door: str,
        note: str = "",
        rests_on: RestsOn | None = None,
        step_of: str = "",
        once: Once[T] | None = None,
    ) -> T:
        """Carry out an operation, if the key of whoever asks is still what it was."""
        self.rules = self._rules_now()
        return super().do(Guarded(operation, self._guard, refers=True), who, door, note, rests_on, step_of, once)

    @contextmanager
    def facts(self) -> Iterator[Facts]:
        """One state of the ledger, in which the proof of whoever asks counts; raises `Refused` if it does not."""
        self.rules = self._rules_now()
        with super().facts() as facts:
            if self._guard is not None:
                self._guard.check(facts)
            require_counting(Context(facts, self._who, DOOR, self.now()))
            yield facts

"""The registry for one who asks, over several steps: whoever loses the key or token that proved them goes no further.

An operation that is one commit is guarded by `ApiCall.change`. What takes many steps, some of them long after the
request was answered, goes through here: in every step, reading ones too, it is looked whether the proof still counts,
and what the settings say by then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from perseid.ledger.log.requests import Preconditions
from perseid.registry.access.token_records import check_token_identity
from perseid.registry.context import Command, Context
from perseid.registry.identity import Identity
from perseid.registry.registry import IdempotentRequest, Registry
from perseid.registry.snapshot import Rules, Snapshot
from perseid.server.http.context import INTERFACE
from perseid.server.native.authentication import Guard
from perseid.server.native.decisions import GuardedCommand

T = TypeVar("T")


class AuthorizedRegistry(Registry):
    """The rules over the ledger of another registry, for one identity."""

    def __init__(
        self, registry: Registry, identity: Identity, guard: Guard | None, rules: Callable[[], Rules] | None = None
    ) -> None:
        """`rules` gives those that count at the moment; those of the registry do, if it is not said."""
        super().__init__(registry.ledger, registry.rules)
        self._identity = identity
        self._guard = guard
        self._rules_now = rules or (lambda: registry.rules)

    def do(
        self,
        command: Command[T],
        identity: Identity,
        interface: str,
        note: str = "",
        preconditions: Preconditions | None = None,
        job_id: str = "",
        once: IdempotentRequest[T] | None = None,
    ) -> T:
        """Carry out an operation, if the key of whoever asks is still what it was."""
        self.rules = self._rules_now()
        return super().do(
            GuardedCommand(command, self._guard, allow_referrals=True),
            identity,
            interface,
            note,
            preconditions,
            job_id,
            once,
        )

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One state of the ledger, in which the proof of whoever asks counts; raises `Refused` if it does not."""
        self.rules = self._rules_now()
        with super().snapshot() as snapshot:
            if self._guard is not None:
                self._guard.check(snapshot)
            check_token_identity(Context(snapshot, self._identity, INTERFACE, self.now()))
            yield snapshot

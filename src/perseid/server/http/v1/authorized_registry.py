"""A registry bound to one identity, for work of several steps.

`ApiCall.change` guards a command of one commit. Longer work, some of it after the response was sent, uses this class:
every step, reads included, checks that the key or token is still valid and applies the current settings.
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
    """A view of a registry for one identity."""

    def __init__(
        self, registry: Registry, identity: Identity, guard: Guard | None, rules: Callable[[], Rules] | None = None
    ) -> None:
        """`rules` returns the current settings; by default those of the registry."""
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
        """Execute a command if the credentials are still valid."""
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
        """Read one state of the ledger. Raises `Refused` if the credentials are no longer valid."""
        self.rules = self._rules_now()
        with super().snapshot() as snapshot:
            if self._guard is not None:
                self._guard.check(snapshot)
            check_token_identity(Context(snapshot, self._identity, INTERFACE, self.now()))
            yield snapshot

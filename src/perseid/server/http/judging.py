"""What came of a proof, told to the budgets: who fails too often has no further proof looked at.

Two things are counted, as over the native protocol (see `budgets`). An address that fails often is locked out. And a
secret about which many answers were wrong, from wherever, is not judged for strangers for a while, so that many
addresses do not give many guesses. Who proved that very identity from the same address before is no stranger: nobody
is locked out of where they work by others who try their name.

The secret of somebody who proves to be somebody here, and the same secret where another server asks about it, are
counted apart (`of_own`). Whoever asks in the name of another server can then lock nobody out who comes here.
"""

from dataclasses import dataclass
from typing import Protocol

from perseid.records.site import Transport
from perseid.server.native_steps import Guess
from perseid.server.processes.pools import Pools

from .messages import Client

_OWN = b"own "  # no handle begins so: a prefix has no blank in it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a proof."""

    right: bool
    secret_of: bytes | None = None
    """Whose secret the answer says something about, as it was given to `Asking.do`; None for a public key."""
    own: bool = True
    """Whether somebody wanted to prove who they are; else they asked whether another did."""


class Judging(Protocol):
    """Takes note of a verdict."""

    def __call__(self, verdict: Verdict, client: Client) -> None: ...


def of_own(handle: str) -> bytes:
    """What stands for the secrets of a handle, where its owner proves who they are."""
    return _OWN + handle.encode("utf-8", "replace")


def by(pools: Pools) -> Judging:
    """Have verdicts noted in the budgets of the pools."""

    def judge(verdict: Verdict, client: Client) -> None:
        transport = Transport.HTTPS if client.secure else Transport.HTTP
        if verdict.secret_of is not None:
            pools.guessed(Guess(verdict.secret_of, verdict.right), client.host, transport)
        elif not verdict.right:
            pools.failed_proof(client.host, transport)
        if verdict.right and verdict.own:
            pools.proved(client.host, transport)

    return judge

"""What every part that answers HTTP has at hand: the request, what this server is, and a way to have work done.

Parts run in the event loop and never wait for the disk or for arithmetic: what reads the ledger, writes it, or takes
long goes through `Asking.do`, into the pools of the control process, which may refuse it (`Busy`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

from perseid.records.private_keys import PrivateKey
from perseid.records.site import Site, Transport
from perseid.registry.registry import Registry
from perseid.server.http.auth.session_table import SessionTable
from perseid.server.http.v1.state_helpers import ApiState
from perseid.server.limits.budgets import Budget
from perseid.server.native_steps import Kind, Served, Work
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply

from .judging import Judging
from .messages import Client, Request
from .paced_log import PacedLog
from .settings import HttpSettings
from .suggestion_budget import suggestion_budget

T = TypeVar("T")

DOOR = "http"
"""What the ledger keeps as the door through which a change came."""


class Doing(Protocol):
    """Has work done somewhere; raises `Busy` where it is too much."""

    def __call__(self, work: Work, client: Client) -> Awaitable[object]: ...


class Native(Protocol):
    """The native protocol, for messages that come in HTTP requests: `serve.native_service.NativeService`."""

    def served(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[Served, None]: ...

    def early_failure(self, code: ResponseCode, text: str) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Place:
    """What the server is; made anew when settings are read again."""

    registry: Registry
    site: Site
    position: int
    """Which of the site's servers this is, counted from 0."""
    key: PrivateKey
    """The server's own, with which it proves itself."""
    settings: HttpSettings
    do: Doing
    time: Callable[[], float]
    """Seconds since 1970."""
    random: Callable[[int], bytes]
    """So many octets that nobody can guess."""
    ready: Callable[[], str]
    """Why requests should go elsewhere at the moment; empty if they should come."""
    judge: Judging
    """Told what came of each proof of an identity, so that guessing has an end; see `judging.by`."""
    sessions: SessionTable = field(default_factory=SessionTable)
    """Those that were begun over HTTP. They outlive a change of settings: whoever makes another place hands them on."""
    api: ApiState = field(default_factory=ApiState)
    """What our own API keeps; handed on likewise."""
    suggesting: Budget = field(default_factory=suggestion_budget)
    """How often names are suggested; handed on likewise."""
    certificates: PacedLog = field(default_factory=PacedLog)
    """Where it is told why certificates of clients were not accepted."""
    native: Native | None = None
    """What answers native messages; None where nothing does."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One request that is being answered."""

    request: Request
    place: Place

    async def do(
        self, kind: Kind, call: Callable[[], T], *, secret_of: bytes | None = None, price: float | None = None
    ) -> T:
        """Have something done in a thread of the pool for its kind; raises what it raises, or `Busy`."""
        return cast("T", await self.place.do(Work(kind, call, secret_of, price), self.request.client))

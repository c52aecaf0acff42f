"""How HTTP is served here, as the settings of the installation say it.

What came of a proof, told to the budgets: who fails too often has no further proof looked at.

Two things are counted, as over the native protocol (see `budgets`). An address that fails often is locked out. And a
secret about which many answers were wrong, from wherever, is not judged for strangers for a while, so that many
addresses do not give many guesses. Who proved that very identity from the same address before is no stranger: nobody
is locked out of where they work by others who try their name.

The secret of somebody who proves to be somebody here, and the same secret where another server asks about it, are
counted apart (`of_own`). Whoever asks in the name of another server can then lock nobody out who comes here.

How often names are suggested to somebody who asked for one that is not there.

Each time costs up to a thousand look-ups, ten milliseconds, and tells of a few names that are there. People who
mistype a name never notice a limit. A program that asks for one wrong name after the other soon gets the plain answer,
and learns by suggestions no more than by asking for the names themselves.

What every part that answers HTTP has at hand: the request, what this server is, and a way to have work done.

Parts run in the event loop and never wait for the disk or for arithmetic: what reads the ledger, writes it, or takes
long goes through `Asking.do`, into the pools of the control process, which may refuse it (`Busy`).
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, Self, TypeVar, cast

from perseid.records.private_keys import PrivateKey
from perseid.records.site import Site, Transport
from perseid.registry.installation.setting_http import BARE
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.server.http.auth.session_table import SessionTable
from perseid.server.http.v1.state import ApiState
from perseid.server.limits.budgets import Budget, Rate
from perseid.server.limits.udp import RateLimit
from perseid.server.native.steps import NativeResponse, SecretGuess, Work, WorkKind
from perseid.server.processes.pools import Pools
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply

from .messages import Client, Request

HANDLE_SEGMENT: Final = "hdl"
"""The segment behind which every handle can be reached, whatever the server's own paths are called."""

LINES_PER_SECOND: Final = 5.0
BURST_LINES: Final = 50
"""Lines a second, and at once: enough for somebody who looks for the reason of a refusal, and little on a disk."""


class RateLimitedLogger:
    """Tells of what strangers can bring about as often as they like; for one thread."""

    __slots__ = ("_left_out", "_pace")

    def __init__(self) -> None:
        self._pace = RateLimit(LINES_PER_SECOND, BURST_LINES)
        self._left_out = 0

    def info(self, logger: logging.Logger, now: float, message: str) -> None:
        """Tell something at a time, or leave it out."""
        if not self._pace.take(now):
            self._left_out += 1
            return
        more = f" ({self._left_out} like it were not told)" if self._left_out else ""
        self._left_out = 0
        logger.info("%s%s", message, more)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How HTTP is served."""

    public_url: str = ""
    """The address of this server as others know it, `https://hdl.example.org`, without a slash at the end."""
    bare: bool = True
    """Whether `/{handle}` resolves."""
    segments: tuple[str, ...] = (HANDLE_SEGMENT,)
    """Segments behind which `/{segment}/{handle}` resolves; the one of `SEGMENT` always does."""
    redirect_status: int = 302
    """Of a redirection, where the record does not choose one."""
    schemes: frozenset[str] = frozenset(("http", "https", "ftp", "mailto"))
    """Schemes of URLs that are redirected to, and linked on pages."""
    no_values_status: int = 200
    """Of the page for a name without public values; 404 is for link checkers, which take 200 for alive."""
    weak_digests: bool = True
    """Whether MD5 and SHA-1 may be used to prove an identity, as deployed clients do."""
    session_timeout: int = 1_800
    """Seconds of idleness after which a session of the API ends, as in deployed servers."""
    api_requests: int = 6_000
    """Requests to our own API in a minute by one identity; 0 for no limit. A hundred a second: whoever needs more asks
    for many things in one request."""
    api_requests_anonymous: int = 600
    """The same by one network from which nobody says who they are: ten a second, more than anybody reads."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """What the settings of an installation say."""
        forms = config.http_resolver_forms
        segments = tuple(dict.fromkeys(each for each in (*forms, HANDLE_SEGMENT) if each != BARE))
        return cls(
            public_url=config.http_public_url,
            bare=BARE in forms,
            segments=segments,
            redirect_status=config.http_redirect_status,
            schemes=frozenset(config.http_schemes),
            no_values_status=config.http_no_values_status,
            weak_digests=config.http_weak_digests,
            api_requests=config.http_api_requests,
            api_requests_anonymous=config.http_api_requests_anonymous,
        )


_OWN_SECRET = b"own "  # no handle begins so: a prefix has no blank in it


@dataclass(frozen=True, slots=True)
class ProofResult:
    """What came of a proof."""

    succeeded: bool
    secret_of: bytes | None = None
    """Whose secret the answer says something about, as it was given to `Asking.do`; None for a public key."""
    own: bool = True
    """Whether somebody wanted to prove who they are; else they asked whether another did."""


class ProofRecorder(Protocol):
    """Takes note of a verdict."""

    def __call__(self, verdict: ProofResult, client: Client) -> None: ...


def own_secret_id(handle: str) -> bytes:
    """What stands for the secrets of a handle, where its owner proves who they are."""
    return _OWN_SECRET + handle.encode("utf-8", "replace")


def make_proof_recorder(pools: Pools) -> ProofRecorder:
    """Have verdicts noted in the budgets of the pools."""

    def record_proof(verdict: ProofResult, client: Client) -> None:
        transport = Transport.HTTPS if client.secure else Transport.HTTP
        if verdict.secret_of is not None:
            pools.record_guess(SecretGuess(verdict.secret_of, verdict.succeeded), client.host, transport)
        elif not verdict.succeeded:
            pools.record_failed_proof(client.host, transport)
        if verdict.succeeded and verdict.own:
            pools.proved(client.host, transport)

    return record_proof


SUGGESTIONS_PER_ADDRESS: Final = Rate(0.5, 10)
"""Suggestions for one address: thirty a minute, ten of them at once. A person reads each."""

SUGGESTIONS_TOTAL: Final = Rate(10, 50)
"""Suggestions for everybody together, at up to 10 ms each: a tenth of a core, wherever a flood comes from."""


def make_suggestion_budget() -> Budget:
    """A new budget, with nothing used."""
    return Budget(SUGGESTIONS_PER_ADDRESS, SUGGESTIONS_TOTAL)


T = TypeVar("T")

INTERFACE = "http"
"""What the ledger keeps as the door through which a change came."""


class WorkRunner(Protocol):
    """Has work done somewhere; raises `Busy` where it is too much."""

    def __call__(self, work: Work, client: Client) -> Awaitable[object]: ...


class NativeProtocol(Protocol):
    """The native protocol, for messages that come in HTTP requests: `serve.native_service.NativeService`."""

    def served(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[NativeResponse, None]: ...

    def early_failure(self, code: ResponseCode, text: str) -> Reply: ...


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What the server is; made anew when settings are read again."""

    registry: Registry
    site: Site
    position: int
    """Which of the site's servers this is, counted from 0."""
    key: PrivateKey
    """The server's own, with which it proves itself."""
    settings: HttpSettings
    do: WorkRunner
    time: Callable[[], float]
    """Seconds since 1970."""
    random: Callable[[int], bytes]
    """So many octets that nobody can guess."""
    ready: Callable[[], str]
    """Why requests should go elsewhere at the moment; empty if they should come."""
    record_proof: ProofRecorder
    """Told what came of each proof of an identity, so that guessing has an end; see `judging.by`."""
    sessions: SessionTable = field(default_factory=SessionTable)
    """Those that were begun over HTTP. They outlive a change of settings: whoever makes another place hands them on."""
    api: ApiState = field(default_factory=ApiState)
    """What our own API keeps; handed on likewise."""
    suggestion_budget: Budget = field(default_factory=make_suggestion_budget)
    """How often names are suggested; handed on likewise."""
    certificate_log: RateLimitedLogger = field(default_factory=RateLimitedLogger)
    """Where it is told why certificates of clients were not accepted."""
    native: NativeProtocol | None = None
    """What answers native messages; None where nothing does."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request that is being answered."""

    request: Request
    place: ServerContext

    async def do(
        self, kind: WorkKind, call: Callable[[], T], *, secret_of: bytes | None = None, price: float | None = None
    ) -> T:
        """Have something done in a thread of the pool for its kind; raises what it raises, or `Busy`."""
        return cast("T", await self.place.do(Work(kind, call, secret_of, price), self.request.client))

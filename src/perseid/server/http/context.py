"""What every HTTP handler uses: the request, the server's settings and state, and a way to run work.

Handlers run in the event loop and never wait for the disk or long computations: whatever reads or writes the ledger,
or takes long, goes through `RequestContext.do`. The worker runs it in the loop if it is short or only waits for the
writer, else in a thread, or refuses it (`Busy`).

Failed proofs of identity are limited as in the native protocol (`limits.guesses`). Proofs to this server and
verifications for other servers are counted separately (`work.own_secret_id`), so the latter cannot slow down users of
this server.

Suggestions for handles that do not exist cost up to a thousand lookups, about ten milliseconds in small steps, and
reveal a few existing names. People who mistype a name never reach the limit; a program that probes names soon gets
plain errors.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast

from perseid.records.private_keys import PrivateKey
from perseid.records.site import Site, Transport
from perseid.registry.installation.logo import Logo
from perseid.registry.installation.sections import BARE, HANDLE_SEGMENT, ServiceSection
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.registry.snapshot import LedgerNeeded, LongRecord, Snapshot
from perseid.server.http.auth.session_table import SessionTable
from perseid.server.http.auth.web_sessions import WebSessions
from perseid.server.http.v1.state import ApiState
from perseid.server.limits.buckets import Buckets
from perseid.server.limits.budgets import Budget, Rate, get_source
from perseid.server.limits.turns import TooManyWaiting, Turns
from perseid.server.native.decisions import Busy
from perseid.server.native.work import NativeResponse, SecretGuess, Work, WorkKind
from perseid.server.observe.limited_log import RateLimitedLogger
from perseid.server.processes.pools import Pools
from perseid.server.state.state import SharedState
from perseid.wire.codes import ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply

from .caches import (
    MAX_KEPT_PAGES,
    MAX_REQUESTED_PAGES,
    MAX_SHARED_PARTS,
    KeptResults,
    StateCache,
    SuggestionCache,
)
from .messages import Client, Request

if TYPE_CHECKING:
    from perseid.server.http.negotiation import KeptPage
    from perseid.server.native.external import ExternalIdentities

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """HTTP settings of the installation."""

    public_url: str = ""
    """The public address of this server, `https://hdl.example.org`, without a slash at the end."""
    bare: bool = True
    """Whether `/{handle}` resolves."""
    segments: tuple[str, ...] = (HANDLE_SEGMENT,)
    """Segments under which `/{segment}/{handle}` resolves; always includes `HANDLE_SEGMENT`."""
    redirect_status: int = 302
    """Status of a redirect, unless the record chooses one."""
    schemes: frozenset[str] = frozenset(("http", "https", "ftp", "mailto"))
    """URL schemes that are redirected to, and linked on pages."""
    no_values_status: int = 200
    """Status of the page for a handle without public values; link checkers treat 200 as alive, and 404 as not."""
    weak_digests: bool = True
    """Whether MD5 and SHA-1 are accepted in proofs of identity, as deployed clients use them."""
    session_timeout: int = 1_800
    """Seconds of inactivity after which an API session ends, as in deployed servers."""
    api_requests: int = 6_000
    """Requests to the version 1 API per minute and identity; 0 for no limit. Clients that need more than a hundred per
    second can combine items in one request."""
    api_requests_anonymous: int = 600
    """The same per network for anonymous requests: ten per second, more than a person reads."""
    import_size: int = 1 << 30
    """Bytes of the largest file that can be imported."""
    import_spool: int = 4 << 30
    """Bytes for the uploaded files of all users."""
    service: ServiceSection = field(default_factory=ServiceSection)
    """Who runs the service, for its pages."""
    logo: Logo | None = None
    """The logo of the service; None for Perseid's."""

    def __hash__(self) -> int:
        """Of what tells most settings apart: pages look up what they keep by the settings, again and again."""
        return hash((self.public_url, self.bare, self.segments))

    @classmethod
    def of(cls, config: Config, logo: Logo | None = None) -> Self:
        """Read the settings of an installation."""
        return cls(
            public_url=config.http.public_url,
            bare=BARE in config.http.resolver_forms,
            segments=config.http.segments,
            redirect_status=config.http.redirect_status,
            schemes=frozenset(config.http.schemes),
            no_values_status=config.http.no_values_status,
            weak_digests=config.http.weak_digests,
            api_requests=config.http.api_requests,
            api_requests_anonymous=config.http.api_requests_anonymous,
            import_size=config.http.import_size << 20,
            import_spool=config.http.import_spool << 20,
            service=config.service,
            logo=logo,
        )


@dataclass(frozen=True, slots=True)
class ProofResult:
    """The outcome of a proof of identity."""

    succeeded: bool | None
    """None if it is unknown: the server that has the key did not answer, or nothing was decided."""
    secret_of: bytes | None = None
    """The secret that was checked, as passed to `RequestContext.do`; None for a public key."""
    own: bool = True
    """Whether the caller proved their own identity; otherwise they verified another's."""


class ProofRecorder(Protocol):
    """Records the outcome of a proof."""

    def __call__(self, result: ProofResult, client: Client) -> None: ...


def make_proof_recorder(pools: Pools) -> ProofRecorder:
    """Create a recorder that uses the budgets of the pools."""

    def record_proof(result: ProofResult, client: Client) -> None:
        transport = Transport.HTTPS if client.secure else Transport.HTTP
        if result.secret_of is not None:
            pools.record_guess(SecretGuess(result.secret_of, result.succeeded), client.host, transport)
        elif result.succeeded is False:
            pools.record_failed_proof(client.host, transport)
        if result.succeeded and result.own:
            pools.record_proof(client.host, transport)

    return record_proof


SUGGESTIONS_PER_ADDRESS: Final = Rate(0.5, 10)
"""Suggestions per address: thirty per minute, ten in a burst. A person reads each."""

SUGGESTIONS_TOTAL: Final = Rate(10, 50)
"""Suggestions for all clients together: at 10 ms each, a tenth of a core."""


SUGGESTION_SLOTS: Final = 1 << 14
"""Words for the suggestions by address, two for each: a burst of the total takes hardly any, in 128 KiB."""


def make_suggestion_budget(state: SharedState | None = None) -> Budget:
    """Create the budget of all processes with that state; without, an unused one of this process."""
    buckets = None if state is None else Buckets.shared(state, "suggestion_limits", SUGGESTION_SLOTS)
    return Budget(SUGGESTIONS_PER_ADDRESS, SUGGESTIONS_TOTAL, buckets=buckets)


MAX_SEARCHES: Final = 2
"""Searches at a time. More would take longer than people wait, and each costs as much as hundreds of responses; so
under load the pages have no suggestions."""

MAX_WAITING_FOR_SEARCH: Final = 4
"""Pages that may wait beside a search. With more it is given up, so that neither they nor its own page wait for long:
a search has dozens of steps, and all pages that wait take their turns between two of them."""


INTERFACE = "http"
"""The interface that the ledger records for a change."""


class WorkRunner(Protocol):
    """Runs work somewhere; raises `Busy` under overload."""

    def __call__(self, work: Work, client: Client) -> Awaitable[object]: ...


class NativeProtocol(Protocol):
    """The native protocol, for messages in HTTP requests: `server.native.service.NativeService`."""

    def respond(self, frame: Frame, host: str, transport: Transport) -> AsyncGenerator[NativeResponse, None]: ...

    def early_failure(self, code: ResponseCode, text: str) -> Reply: ...


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The server's settings and state; replaced on reload."""

    registry: Registry
    site: Site
    position: int
    """The index of this server in the site, from 0."""
    key: PrivateKey
    """The server's own private key."""
    settings: HttpSettings
    do: WorkRunner
    time: Callable[[], float]
    """Seconds since 1970."""
    random: Callable[[int], bytes]
    """A number of unpredictable bytes."""
    ready: Callable[[], str]
    """Why requests should go to another server; empty if this one is ready."""
    record_proof: ProofRecorder
    """Records the outcome of each proof of identity, which limits guessing; see `make_proof_recorder`."""
    sessions: SessionTable
    """Sessions started over HTTP. They survive a reload, and so do `api`, `suggestion_budget` and `turns`."""
    web_sessions: WebSessions
    """Sessions of the web console."""
    api: ApiState = field(default_factory=ApiState)
    """State of the version 1 API."""
    suggestion_budget: Budget = field(default_factory=make_suggestion_budget)
    suggestion_cache: SuggestionCache = field(default_factory=SuggestionCache)
    shared_parts: StateCache[object] = field(default_factory=lambda: StateCache(MAX_SHARED_PARTS))
    """What the pages of many records need of others, such as the contacts of a prefix."""
    record_pages: StateCache["KeptPage"] = field(default_factory=lambda: StateCache(MAX_KEPT_PAGES))
    """Pages of records that were requested twice."""
    pages_requested_once: StateCache[bool] = field(default_factory=lambda: StateCache(MAX_REQUESTED_PAGES))
    slow_results: KeptResults = field(default_factory=KeptResults)
    """What pages show that takes long to read: see `pages.browse_pages`."""
    turns: Turns = field(default_factory=Turns)
    """Longer pieces of work in the event loop."""
    certificate_log: RateLimitedLogger = field(default_factory=RateLimitedLogger)
    """Logs why client certificates were not accepted."""
    external: "ExternalIdentities | None" = None
    """Asks other servers about identities; None if that is not allowed."""
    native: NativeProtocol | None = None
    """Handles native messages; None if there is no native protocol."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request and the server that handles it."""

    request: Request
    server: ServerContext
    _expected: list[ProofResult] = field(default_factory=list, repr=False)
    """A proof with a key that may have been removed: the decision finds out (`settle_proof`)."""

    def record_proof(self, result: ProofResult) -> None:
        """Record the outcome of a proof by the caller."""
        self.server.record_proof(result, self.request.client)

    def expect_proof(self, result: ProofResult) -> None:
        """Record a proof with a cached key, token or session when it is decided whether that is still valid."""
        self._expected.append(result)

    def settle_proof(self, *, succeeded: bool | None) -> None:
        """Record the outcome of an expected proof, once; None if nothing was decided."""
        while self._expected:
            expected = self._expected.pop()
            self.record_proof(ProofResult(succeeded, expected.secret_of, expected.own))

    async def read_public(self, read: Callable[[Snapshot], T], *, past: bool = False) -> T:
        """Read what everybody can see from the answers view, or if that cannot tell, in a thread from the ledger.

        Long records are read in a thread too. `past` means that the history will be read. Raises what `read` raises, or
        `Busy`.
        """
        registry = self.server.registry
        is_long = False
        if not past:
            await self.take_turn()
            try:
                with registry.public_snapshot() as snapshot:
                    return read(snapshot)
            except LedgerNeeded as needed:
                is_long = isinstance(needed, LongRecord)

        def read_in_thread() -> T:
            if is_long:
                with suppress(LedgerNeeded), registry.public_snapshot(short_only=False) as snapshot:
                    return read(snapshot)
            with registry.snapshot() as snapshot:
                return read(snapshot)

        return await self.do(WorkKind.READ, read_in_thread)

    async def take_turn(self) -> None:
        """Wait until the event loop has time for a longer piece of work; raises `Busy`."""
        try:
            await self.server.turns.take(get_source(self.request.client.host)[0])
        except TooManyWaiting:
            raise Busy from None

    async def do(
        self, kind: WorkKind, call: Callable[[], T], *, secret_of: bytes | None = None, price: float | None = None
    ) -> T:
        """Run a call in a thread of the pool for its kind; raises what the call raises, or `Busy`."""
        return cast("T", await self.server.do(Work(kind, call, secret_of, price), self.request.client))

    async def read_short(
        self,
        read: Callable[[Snapshot], T],
        *,
        secret_of: bytes | None = None,
        accept_recent: Callable[[T], bool] | None = None,
    ) -> T:
        """Read a few records: in the event loop, unless one is long or the database is across a network.

        A result that `accept_recent` accepts may be that of cached entries, which a later decision must check again.
        """

        def call(*, short_only: bool) -> T:
            registry = self.server.registry
            if accept_recent is not None:
                with suppress(LedgerNeeded), registry.recent_snapshot() as recent:
                    if accept_recent(result := read(recent)):
                        return result
            with registry.snapshot(short_only=short_only) as snapshot:
                return read(snapshot)

        if self._reads_are_short:
            work = Work(WorkKind.READ, partial(call, short_only=True), secret_of, is_short=True)
            with suppress(LongRecord):
                return cast("T", await self.server.do(work, self.request.client))
        return await self.do(WorkKind.READ, partial(call, short_only=False), secret_of=secret_of)

    async def change(
        self, call: Callable[[], T], coroutine: Callable[[], Coroutine[Any, Any, T]], *, is_short: bool
    ) -> T:
        """Change something: by a coroutine in the event loop if it is decided in a short time, else in a thread."""
        work = Work(WorkKind.WRITE, call, coroutine=coroutine if is_short and self._reads_are_short else None)
        return cast("T", await self.server.do(work, self.request.client))

    @property
    def _reads_are_short(self) -> bool:
        return not self.server.registry.ledger.log.store.is_remote

"""The rules of resolution, without I/O (native protocol §11): services, referrals, attempts, verification, cache.

`Core` is what a resolver knows. `Core.resolve` is a generator that yields exchanges (see `transport`), and `_Walk` the
state of one resolution.
"""

import ipaddress
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
from perseid.records.keys import PublicKey
from perseid.records.record import Value, ascending, select
from perseid.records.site import Site, Transport
from perseid.records.types import (
    DELEGATION_TYPES,
    HS_ALIAS,
    HS_NAMESPACE,
    HS_SERV,
    HS_SITE,
    HS_SITE_6,
    has_type,
    is_url_type,
)
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import DEFAULT_FLAGS, LocalProtocolError, OpCode, OpFlag, RemoteProtocolError, ResponseCode
from perseid.wire.fragments import MAX_PACKET, split
from perseid.wire.framing import http_request
from perseid.wire.message import Message
from perseid.wire.requests import Resolve, VerifyChallenge
from perseid.wire.responses import Failure, Referral, ResolutionResult, VerificationResult

from .cache import NEGATIVE_LIFETIME, Cache, expiry
from .errors import ClientError, NotFound, ProtocolError, Refused, Unreachable
from .roots import ROOT_HANDLE, Root
from .sites import TRANSPORTS, Peer, ResponseTimes, Service, plan_attempts, read_sites
from .transport import (
    FAILURES,
    Address,
    DatagramReceiver,
    Exchange,
    HttpReceiver,
    Lookup,
    Steps,
    StreamReceiver,
    Turn,
)

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds for a whole resolution."""

MAX_LOOKUPS: Final = 40
"""Records that are read for one resolution, as deployed."""

MAX_REFERRALS: Final = 10
"""Referrals that are followed for one record: each level of delegation needs one."""

MAX_ALIASES: Final = 10
"""Aliases that are followed: more are a mistake."""

_SEE_ALIAS = "Resolve it without following aliases to see the alias itself"
_SERVER_SIZE = 2_048  # bytes of a server in the cache, with its key
_MAX_RECURSION = 10  # servers refuse a higher count
_LOOKUP_TIMEOUT = 5.0  # seconds for the address of a domain
_SERVICE_TYPES = (HS_SITE, HS_SITE_6, HS_SERV, HS_NAMESPACE)  # as deployed clients ask a prefix handle
_CERTIFIED_FLAGS = OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST  # the signature then covers which request it answers
_ROOT_NAMES = ("0.", "0/")  # names that the root has
_MAX_TEXT = 200  # characters of a server's message that an error quotes
_MAX_REASONS = 8  # failed attempts that an error names
_NEGATIVE_CODES = (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND)
_SITE_FAILURES = (ResponseCode.ERROR, ResponseCode.SERVER_TOO_BUSY)  # of this site; another one may succeed
_OUTDATED_CODES = (ResponseCode.SERVER_NOT_RESP, ResponseCode.OUT_OF_DATE_SITE_INFO)

AddressFilter: TypeAlias = Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address, int], bool]
"""Whether an address and port may be contacted."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a resolution."""

    action: str
    """`ask` (a server), `cache`, `referral`, `service` (sites were found), `alias` or `lookup` (of a domain)."""
    handle: str
    """What it is about: a handle, or the domain of a `lookup`."""
    outcome: str
    """The response code, such as `SUCCESS`, or why it failed."""
    started: float
    """Seconds since the start of the resolution."""
    duration: float = 0.0
    """Seconds."""
    address: str = ""
    """The server, for `ask`: `udp://192.0.2.1:2641`."""
    is_certified: bool = False
    """Whether a signature was verified."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolved handle."""

    handle: str
    """The handle whose values these are: the last one, if aliases were followed."""
    values: tuple[Value, ...]
    """The public values, by ascending index."""
    is_certified: bool = False
    """Whether every response on the way was signed, up to the root."""
    is_authoritative: bool = False
    """Whether a primary site answered."""
    aliases: tuple[str, ...] = ()
    """The handles that were aliases, as they were followed."""
    trace: tuple[Step, ...] = ()
    """Every step, if it was asked for."""

    @property
    def target(self) -> str | None:
        """The first URL."""
        found = next((value.data for value in self.values if is_url_type(value.type)), None)
        return None if found is None else found.decode("utf-8", "replace")

    def select(self, *types: str) -> tuple[Value, ...]:
        """The values of some types."""
        return select(self.values, (), types)


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked of a server."""

    handle: str
    types: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    authoritative: bool = False
    challenge: VerifyChallenge | None = None
    """What to verify, instead of asking for values."""

    @property
    def key(self) -> str:
        """The key that all spellings share which every server reads alike: other names can be case-sensitive."""
        if self.handle.startswith("0."):
            return fold(self.handle)
        prefix, slash, suffix = self.handle.partition("/")
        return f"{fold(prefix)}{slash}{suffix}"

    @property
    def selection(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The types and indexes, in one order."""
        return tuple(sorted(map(fold, self.types))), tuple(sorted(self.indexes))


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response, as it is cached."""

    code: ResponseCode
    values: tuple[Value, ...] = ()
    text: str = ""
    is_certified: bool = False
    is_authoritative: bool = False
    expires: float = 0.0


@dataclass(frozen=True, slots=True)
class _FoundService:
    """The service that has a handle."""

    service: Service
    expires: float = 0.0
    """When the prefix handle expires from which it is known; 0 if it is configured."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to resolve."""

    certified: bool = False
    follow_aliases: bool = False
    use_cache: bool = True
    trace: bool = False
    timeout: float = DEFAULT_TIMEOUT


class Core:
    """What a resolver knows: root, caches, response times, settings."""

    def __init__(
        self,
        root: Root,
        cache_size: int,
        transports: Collection[Transport],
        address_filter: AddressFilter | None,
    ) -> None:
        self.root = root
        self.root_service = self.make_service(root.sites)
        self.resolver_service = self.make_service(root.resolver)
        self.local_services = {prefix: self.make_service(sites) for prefix, sites in root.local_sites.items()}
        self.answers: Cache[_Answer] = Cache(cache_size)
        self.services: Cache[_FoundService] = Cache(cache_size)
        self.times = ResponseTimes()
        self.transports = tuple(each for each in TRANSPORTS if each in transports)
        self.address_filter = address_filter
        self.wire = Client(os.urandom)
        self.clock = time.time
        self.timer = time.monotonic

    def make_service(self, sites: Iterable[Site]) -> Service:
        """A service with these sites."""
        return Service(sites, self.root.local_addresses)

    def find_answer(self, query: Query, *, certified: bool) -> _Answer | None:
        """A cached answer that covers a query: for the same selection, or of the whole record."""
        now, key, selection = self.clock(), query.key, query.selection
        for kind in (True,) if certified else (False, True):
            if (found := self.answers.get((key, selection, kind), now)) is not None:
                return found
            if selection != _EVERYTHING and (whole := self.answers.get((key, _EVERYTHING, kind), now)) is not None:
                values = select(whole.values, query.indexes, query.types)
                if values or whole.code is not ResponseCode.SUCCESS:
                    return replace(whole, values=values)
        return None

    def keep_answer(self, query: Query, answer: _Answer) -> None:
        """Cache an answer."""
        size = sum([value.size for value in answer.values])
        key = query.key, query.selection, answer.is_certified
        self.answers.put(key, answer, answer.expires, self.clock(), size)

    def find_service(self, prefix_handle: str, *, certified: bool) -> _FoundService | None:
        """The service of a prefix, if it is known."""
        now = self.clock()
        found = self.services.get((prefix_handle, True), now)
        return self.services.get((prefix_handle, False), now) if found is None and not certified else found

    def resolve(self, query: Query, options: Options) -> Steps[Resolution]:
        """Resolve a handle, and follow aliases if that is asked for."""
        walk = _Walk(self, options)
        followed: list[str] = []
        asked = query
        if options.follow_aliases and (query.types or query.indexes):
            asked = replace(query, types=(*query.types, HS_ALIAS))
        while True:
            answer = yield from walk.read(asked)
            alias = _find_alias(answer.values) if options.follow_aliases else None
            if alias is None:
                if options.follow_aliases and any(has_type(value.type, HS_ALIAS) for value in answer.values):
                    raise ProtocolError(f"the HS_ALIAS value of {asked.handle} is not a handle", advice=_SEE_ALIAS)
                break
            followed.append(asked.handle)
            walk.note("alias", asked.handle, alias)
            if len(followed) > MAX_ALIASES or alias in followed:
                reason = "leads back to itself" if alias in followed else f"has more than {MAX_ALIASES} steps"
                raise ProtocolError(
                    f"the alias of {query.handle} {reason}: {' → '.join([*followed, alias])}",
                    advice=_SEE_ALIAS,
                )
            asked = replace(asked, handle=alias)
        if answer.code is not ResponseCode.SUCCESS:
            raise _make_refusal(asked.handle, answer)
        values = select(answer.values, query.indexes, query.types)
        if not values:
            raise _make_refusal(asked.handle, _Answer(ResponseCode.VALUES_NOT_FOUND))
        return Resolution(
            asked.handle,
            ascending(values),
            answer.is_certified,
            answer.is_authoritative,
            tuple(followed),
            tuple(walk.steps),
        )

    def verify(self, challenge: VerifyChallenge, timeout: float) -> Steps[bool]:
        """Ask the service of an identity whether an answer to a challenge was made with its secret (§13.5)."""
        query = Query(challenge.handle.decode("utf-8"), challenge=challenge)
        response = yield from _Walk(self, Options(certified=True, timeout=timeout)).request(query)
        if not isinstance(response.body, VerificationResult):
            text = response.body.sentence[:_MAX_TEXT] if isinstance(response.body, Failure) else ""
            raise _make_refusal(query.handle, _Answer(response.code, text=text))
        return response.body.is_valid


_EVERYTHING: Final[tuple[tuple[str, ...], tuple[int, ...]]] = ((), ())
"""The selection of a whole record."""


@dataclass(slots=True)
class _Walk:
    """One resolution: its limits and its trace."""

    core: Core
    options: Options
    started: float = field(init=False)
    lookups: int = 0
    steps: list[Step] = field(default_factory=list)
    open_prefixes: set[str] = field(default_factory=set)
    """Prefixes whose sites are being looked for, which must not need each other."""

    def __post_init__(self) -> None:
        self.started = self.core.timer()

    def note(
        self,
        action: str,
        handle: str,
        outcome: str,
        since: float | None = None,
        *,
        address: str = "",
        certified: bool = False,
    ) -> None:
        """Add a step to the trace."""
        if self.options.trace:
            now = self.core.timer()
            start = now if since is None else since
            self.steps.append(Step(action, handle, outcome, start - self.started, now - start, address, certified))

    # Records

    def read(self, query: Query) -> Steps[_Answer]:
        """Read values of a handle: from the cache, or from the service of its prefix."""
        core = self.core
        if self.options.use_cache and not query.authoritative:
            cached = core.find_answer(query, certified=self.options.certified)
            if cached is not None:
                self.note("cache", query.handle, cached.code.name, certified=cached.is_certified)
                return cached
        answer = self.make_answer((yield from self.request(query)))
        core.keep_answer(query, answer)
        return answer

    def request(self, query: Query) -> Steps[VerifiedResponse]:
        """Ask the service that has a handle, and follow its referrals."""
        found = yield from self.find_service(query.handle)
        response = yield from self.ask(found.service, query)
        if response.code in _OUTDATED_CODES and found.expires:  # the prefix handle may have changed
            found = yield from self.find_service(query.handle, again=True)
            response = yield from self.ask(found.service, query)
        for _ in range(MAX_REFERRALS):
            if not isinstance(response.body, Referral):
                break
            delegated = response.code is ResponseCode.PREFIX_REFERRAL
            if delegated and not _is_prefix_handle(query.handle):
                break
            service = yield from self.follow_referral(query, response.body, delegated=delegated)
            response = yield from self.ask(service, query)
        else:
            raise ProtocolError(f"the service of {query.handle} sent more than {MAX_REFERRALS} referrals")
        return response

    def make_answer(self, response: VerifiedResponse) -> _Answer:
        """Convert a response for the cache."""
        now, body, code = self.core.clock(), response.body, response.code
        authoritative = OpFlag.AUTHORITATIVE in response.message.header.flags
        if isinstance(body, ResolutionResult):
            values = tuple([value for value in body.values if value.is_public])
            return _Answer(code, values, "", response.is_certified, authoritative, expiry(values, now))
        expires = now + NEGATIVE_LIFETIME if code in _NEGATIVE_CODES else now
        text = body.sentence[:_MAX_TEXT] if isinstance(body, Failure) else ""
        return _Answer(code, (), text, response.is_certified, authoritative, expires)

    # Services

    def find_service(self, handle: str, *, again: bool = False) -> Steps[_FoundService]:
        """Find the service that has a handle; `again`: ask even if it is known."""
        core, certified = self.core, self.options.certified
        if core.resolver_service:
            return _FoundService(core.resolver_service)
        prefix_handle = _prefix_handle(handle)
        if local := core.local_services.get(prefix_handle):
            return _FoundService(local)
        if handle.startswith(_ROOT_NAMES):
            return _FoundService(core.root_service)
        known = core.find_service(prefix_handle, certified=certified) if self.options.use_cache and not again else None
        if known is not None:
            return known
        is_first = not self.open_prefixes
        if is_first and self.options.use_cache and not again:
            yield from self._wait_for_turn(prefix_handle)
            known = core.find_service(prefix_handle, certified=certified)
            if known is not None:
                yield Turn(prefix_handle, is_over=True)
                return known
        if prefix_handle in self.open_prefixes:
            raise ProtocolError(f"the sites of {prefix_handle} can only be found through {prefix_handle} itself")
        self.open_prefixes.add(prefix_handle)
        found = yield from self._read_service(prefix_handle, again=again)
        self.open_prefixes.discard(prefix_handle)
        size = _SERVER_SIZE * sum(len(site.servers) for site in found.service.sites)
        core.services.put((prefix_handle, certified), found, found.expires, core.clock(), size)
        if is_first:
            yield Turn(prefix_handle, is_over=True)
        return found

    def _wait_for_turn(self, prefix_handle: str) -> Steps[None]:
        """Wait while another resolution finds the same service: thousands can start at the same time."""
        try:
            yield Turn(prefix_handle, max(0.0, self.started + self.options.timeout - self.core.timer()))
        except TimeoutError:
            return  # the first request then reports it

    def _read_service(self, prefix_handle: str, *, again: bool) -> Steps[_FoundService]:
        since, prefix = self.core.timer(), prefix_handle.partition("/")[2]
        answer = _Answer(ResponseCode.HANDLE_NOT_FOUND)
        # At first any site of the root; if that has no sites, a primary one: the prefix may have just been created.
        for authoritative in (self.core.root_service.has_primary,) if again else (False, True):
            answer = yield from self.read(Query(prefix_handle, _SERVICE_TYPES, authoritative=authoritative))
            sites = yield from self.collect_sites(answer.values)
            if service := self.core.make_service(sites):
                self.note("service", prefix_handle, f"sites: {len(service.sites)}", since)
                return _FoundService(service, answer.expires)
            if answer.is_authoritative or not self.core.root_service.has_primary:
                break
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.VALUES_NOT_FOUND):
            # A prefix without sites: an installation that is its own root hosts it, and others say if they do not.
            self.note("service", prefix_handle, "the root itself", since)
            return _FoundService(self.core.root_service, answer.expires)
        if answer.code is ResponseCode.HANDLE_NOT_FOUND:
            raise NotFound(
                f"prefix {prefix} is not registered at {self.core.root.name or 'the root'}",
                advice="Check the prefix, or use another root",
                code=int(answer.code),
            )
        raise _make_refusal(prefix_handle, answer)

    def collect_sites(self, values: Iterable[Value], *, delegated: bool = False) -> Steps[list[Site]]:
        """The sites in values, and in the records of the service handles among them."""
        sites, wanted = read_sites(values, delegated=delegated)
        seen = set[str]()
        while wanted:
            handle = fold(wanted[0]) if wanted[0].startswith(_ROOT_NAMES) else wanted[0]
            del wanted[0]
            if handle in seen:
                continue
            seen.add(handle)
            if handle == ROOT_HANDLE:
                sites += self.core.root_service.sites
                continue
            found = yield from self.read(Query(handle, _SERVICE_TYPES))
            more, services = read_sites(found.values)
            sites += more
            wanted += services
        return list(dict.fromkeys(sites))

    def follow_referral(self, query: Query, referral: Referral, *, delegated: bool) -> Steps[Service]:
        """Find the service that a referral names: by its values, or by the handle that has them."""
        handle, values = referral.handle.decode("utf-8", "replace"), referral.values or ()
        self.note("referral", query.handle, handle or f"values: {len(values)}")
        for source in ("values", "handle") if handle else ("values",):
            if source == "handle":
                found = yield from self.read(Query(handle, (*_SERVICE_TYPES, *sorted(DELEGATION_TYPES))))
                values = found.values
            for as_delegation in (True, False) if delegated else (False,):
                sites = yield from self.collect_sites(values, delegated=as_delegation)
                if service := self.core.make_service(sites):
                    return service
        raise ProtocolError(f"the service of {query.handle} sent a referral without sites")

    # Servers

    def ask(self, service: Service, query: Query) -> Steps[VerifiedResponse]:
        """Ask the servers that have a handle, until one answers."""
        core = self.core
        self.lookups += 1
        if self.lookups > MAX_LOOKUPS:
            raise ProtocolError(f"{query.handle} needs more than {MAX_LOOKUPS} lookups: services refer to each other")
        handle = query.handle.encode("utf-8")
        found = service.find_peers(handle, primary_only=query.authoritative)
        peers = yield from self._locate(core.times.order(found, core.clock()))
        requests: dict[int, Message] = {}
        failures = _Failures(query.handle)
        for peer, address, wait in plan_attempts(peers, core.transports):
            if address in failures.final:
                continue
            since = core.timer()
            left = self.started + self.options.timeout - since
            if left <= 0:
                failures.add(address, TimeoutError(f"the time limit of {self.options.timeout:g} s is over"))
                break
            if id(peer) not in requests:
                requests[id(peer)] = self._make_request(peer, query, handle)
            try:
                self._check_allowed(address)
                response = yield from self._ask_peer(peer, address, requests[id(peer)], handle, min(wait, left))
            except _ATTEMPT_FAILURES as error:
                self.note("ask", query.handle, failures.add(address, error), since, address=str(address))
                core.times.record_failure(peer.host, core.clock())
                continue
            core.times.record(peer.host, core.timer() - since, core.clock())
            if self.options.trace:
                certified = response.is_certified
                self.note("ask", query.handle, response.code.name, since, address=str(address), certified=certified)
            return response
        raise failures.make_error()

    def _make_request(self, peer: Peer, query: Query, handle: bytes) -> Message:
        flags = DEFAULT_FLAGS
        if self.options.certified:
            flags |= _CERTIFIED_FLAGS
        if query.authoritative:
            flags |= OpFlag.AUTHORITATIVE
        return self.core.wire.request(
            OpCode.RESOLUTION if query.challenge is None else OpCode.VERIFY_CHALLENGE,
            query.challenge or Resolve(handle, query.indexes, query.types),
            self.core.clock(),
            flags=flags,
            peer_version=peer.version,
            site_serial=peer.serial,
            recursion=min(len(self.open_prefixes), _MAX_RECURSION),
        )

    def _ask_peer(
        self, peer: Peer, address: Address, request: Message, handle: bytes, wait: float
    ) -> Steps[VerifiedResponse]:
        receiver: DatagramReceiver | StreamReceiver | HttpReceiver
        data: tuple[bytes, ...] = (request.to_bytes(),)
        check = None
        if address.transport is Transport.UDP:
            receiver = DatagramReceiver(request.envelope.request_id)
            if len(data[0]) > MAX_PACKET:
                data = tuple(split(request.envelope, request.payload(), request=True))
        elif address.transport is Transport.TCP:
            receiver = StreamReceiver()
        else:
            receiver = HttpReceiver()
            data = (http_request(data[0], handle, peer.http_authority(address), peer.http_path),)
            check = partial(_check_certificate, peer)
        yield Exchange(address, data, receiver, wait, request.envelope.request_id, check)
        key = peer.key if self.options.certified else None
        response = self.core.wire.read(receiver.frames[-1], request, self.core.clock(), server_key=key)
        if response.code in _SITE_FAILURES:
            text = response.body.sentence[:_MAX_TEXT] if isinstance(response.body, Failure) else ""
            raise _SiteFailure(response.code, text)
        if isinstance(response.body, ResolutionResult) and response.body.handle.upper() != handle.upper():
            raise RemoteProtocolError("the response is about another handle")
        return response

    def _check_allowed(self, address: Address) -> None:
        allows = self.core.address_filter
        if allows is not None and not allows(ipaddress.ip_address(address.host), address.port):
            raise PermissionError("this address is not allowed")

    def _locate(self, peers: list[Peer]) -> Steps[list[Peer]]:
        """Look up the domains among the hosts."""
        if not any(peer.is_domain for peer in peers):
            return peers
        located: list[Peer] = []
        for peer in peers:
            if not peer.is_domain:
                located.append(peer)
                continue
            since = self.core.timer()
            try:
                hosts: tuple[str, ...] = yield Lookup(peer.host, _LOOKUP_TIMEOUT)
            except FAILURES as error:
                self.note("lookup", peer.host, str(error), since)
                continue
            self.note("lookup", peer.host, ", ".join(hosts), since)
            located += [peer.at(host) for host in hosts]
        return located


class _SiteFailure(Exception):
    """A site reports that it cannot answer."""

    def __init__(self, code: ResponseCode, text: str) -> None:
        super().__init__(text or code.name)
        self.code = code


_ATTEMPT_FAILURES: Final = (*FAILURES, LocalProtocolError, _SiteFailure)
"""Why an attempt fails, so that the next one is made."""


@dataclass(slots=True)
class _Failures:
    """The attempts that failed."""

    handle: str
    errors: list[tuple[Address, Exception]] = field(default_factory=list)
    final: set[Address] = field(default_factory=set)
    """Addresses that are not tried again: only a time-out can be a lost packet."""

    def add(self, address: Address, error: Exception) -> str:
        """Add a failure, and describe it."""
        self.errors.append((address, error))
        if not isinstance(error, TimeoutError):
            self.final.add(address)
        return _describe(error)

    def make_error(self) -> ClientError:
        """The error after the last attempt: the most surprising failure decides."""
        reasons = dict.fromkeys(f"{address}: {_describe(error)}" for address, error in self.errors)
        text = "; ".join(list(reasons)[:_MAX_REASONS]) or "no server has an address for queries"
        invalid = [error for _, error in self.errors if isinstance(error, RemoteProtocolError | LocalProtocolError)]
        failed = [error for _, error in self.errors if isinstance(error, _SiteFailure)]
        if invalid:
            return ProtocolError(
                f"no server gave a valid response for {self.handle} ({text})",
                advice="Retry; if it fails again, tell the administrator of the service",
                code=int(invalid[0].code) if len(invalid) == len(self.errors) else 0,
            )
        if failed:
            return _make_refusal(self.handle, _Answer(failed[-1].code, text=text))
        return Unreachable(f"no server answered for {self.handle} ({text})", advice="Check the network, then retry")


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # `asyncio` has texts of its own
    return str(error)


def _make_refusal(handle: str, answer: _Answer) -> ClientError:
    """The error for a response code."""
    from perseid.schema.problems import slug_of_code  # noqa: PLC0415 - not needed if all goes well

    code, more = answer.code, f": {answer.text}" if answer.text else ""
    if code is ResponseCode.HANDLE_NOT_FOUND:
        return NotFound(f"handle {handle} does not exist{more}", code=int(code))
    if code is ResponseCode.VALUES_NOT_FOUND:
        return NotFound(
            f"handle {handle} has no such public values{more}",
            advice="Ask for other types or indexes, or for all values",
            code=int(code),
        )
    if code is ResponseCode.SERVER_NOT_RESP:
        return NotFound(
            f"the service that is registered for {handle} does not host its prefix{more}",
            advice="Ask the administrator of the prefix to correct its HS_SITE values",
            code=int(code),
            problem_type="prefix-not-hosted",
        )
    detail = f"the service of {handle} answered {code.name} ({int(code)}){more}"
    return Refused(detail, code=int(code), problem_type=slug_of_code(int(code)))


def _find_alias(values: Iterable[Value]) -> str | None:
    """The handle that an alias names; the value with the lowest index counts."""
    for value in ascending([value for value in values if has_type(value.type, HS_ALIAS)]):
        handle = Handle.for_lookup(value.data.strip())
        if handle is not None:
            return str(handle)
    return None


def _prefix_handle(handle: str) -> str:
    return f"{PREFIX_OF_PREFIXES}/{fold(handle.partition('/')[0])}"


def _is_prefix_handle(handle: str) -> bool:
    return fold(handle.partition("/")[0]) == PREFIX_OF_PREFIXES


def _check_certificate(peer: Peer, certificate: bytes) -> None:
    """Compare the key of a TLS certificate with that of the site; as deployed, only RSA keys can be compared."""
    from cryptography import x509  # noqa: PLC0415 - only for HTTPS, and slow to import
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415

    if peer.key is None or peer.key.KTY != "RSA":
        return
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
        same = peer.key == PublicKey.from_x509(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    except ValueError as error:
        raise RemoteProtocolError(f"the TLS certificate cannot be read: {error}") from error
    if not same:
        raise RemoteProtocolError("the TLS certificate does not have the key of the site")

"""The rules of resolution, without I/O (native protocol §11): services, referrals, aliases, cache.

`Core` is what a resolver knows. `Core.resolve` is a generator that yields exchanges (see `transport`), and `_Walk` the
state of one resolution. `attempts` has the requests to the servers of a service.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle, fold
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
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import OpFlag, ResponseCode
from perseid.wire.requests import VerifyChallenge
from perseid.wire.responses import Failure, Referral, ResolutionResult, VerificationResult

from .attempts import EVERYTHING, MAX_TEXT, AddressFilter, Attempts, Network, Options, Query, Step, make_refusal
from .bootstrap import ROOT_HANDLE
from .cache import NEGATIVE_LIFETIME, Cache, expiry
from .errors import ClientError, NotFound, ProtocolError
from .roots import Root
from .sites import Peer, Service, read_sites
from .transport import Steps, Turn

MAX_REFERRALS: Final = 10
"""Referrals that are followed for one record: each level of delegation needs one."""

ROOT_LIFETIME: Final = 23 * 3_600.0
"""Seconds after which root information is read again, as in deployed clients: once a day."""

REFRESH_PAUSE: Final = 3_600.0
"""Seconds between two attempts to read root information: a serial number need not be signed, so anybody on the way can
ask for one."""

REFRESH_TIMEOUT: Final = 60.0
"""Seconds for reading root information. Nobody waits for it."""

MAX_ALIASES: Final = 10
"""Aliases that are followed: more are a mistake."""

_SEE_ALIAS = "Resolve it without following aliases to see the alias itself"
# Bytes of objects in the cache besides their data, as measured: short values take more for themselves than for data.
_VALUE_SIZE = 256
_REFERENCE_SIZE = 160
_SITE_SIZE = 1_024
_SERVER_SIZE = 1_024  # with what connections to it need
_PART_SIZE = 128  # an interface of a server, or an attribute of a site
_SERVICE_TYPES = (HS_SITE, HS_SITE_6, HS_SERV, HS_NAMESPACE)  # as deployed clients ask a prefix handle
_ROOT_NAMES = ("0.", "0/")  # names that the root has
_NEGATIVE_CODES = (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND)
_OUTDATED_CODES = (ResponseCode.SERVER_NOT_RESP, ResponseCode.OUT_OF_DATE_SITE_INFO)


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


class Core(Network):
    """What a resolver knows: root, caches, and how servers are reached."""

    def __init__(
        self,
        root: Root,
        cache_size: int,
        transports: Collection[Transport],
        address_filter: AddressFilter | None,
    ) -> None:
        super().__init__(transports, address_filter)
        self.root = root
        self.root_service = self.make_service(root.sites)
        self.resolver_service = self.make_service(root.resolver)
        self.local_services = {prefix: self.make_service(sites) for prefix, sites in root.local_sites.items()}
        self.answers: Cache[_Answer] = Cache(cache_size)
        self.services: Cache[_FoundService] = Cache(cache_size)
        self._is_root_outdated = False
        self._next_refresh = -math.inf
        self._refreshing = Lock()

    def make_service(self, sites: Iterable[Site]) -> Service:
        """A service with these sites."""
        return Service(sites, self.root.local_addresses)

    # Root information (§11.2)

    def learn(self, service: Service, peer: Peer, response: VerifiedResponse) -> None:
        """Notice that a site of the root has changed since its information was read."""
        if service is self.root_service and (
            response.code is ResponseCode.OUT_OF_DATE_SITE_INFO or response.message.header.site_serial > peer.serial
        ):
            self._is_root_outdated = True

    def claim_refresh(self) -> bool:
        """Whether the caller should do `refresh` now, beside other work. Only one caller is told so at a time."""
        if self.resolver_service or ROOT_HANDLE in self.local_services:  # the user has chosen whom to ask
            return False
        now = self.clock()
        # A time in the future is a mistake, and must not keep old information forever.
        if not (self._is_root_outdated or abs(now - self.root.updated) >= ROOT_LIFETIME):
            return False
        with self._refreshing:  # threads share a resolver
            is_claimed = now >= self._next_refresh
            if is_claimed:
                self._next_refresh = now + REFRESH_PAUSE
        return is_claimed

    def refresh(self) -> Steps[bool]:
        """Read the sites of the root again, and use them if there are some; returns whether.

        Every response must be signed, up to the keys of the sites that are known. Otherwise nothing changes.
        """
        walk = _Walk(self, Options(certified=True, use_cache=False, timeout=REFRESH_TIMEOUT))
        query = Query(ROOT_HANDLE, _SERVICE_TYPES, authoritative=self.root_service.has_primary)
        try:
            answer = yield from walk.read(query)
            sites = yield from walk.collect_sites(answer.values)
        except ClientError:
            return False
        service = self.make_service(sites)
        # An installation that is its own root has no such record: what is known is then still right.
        self.root = replace(self.root, sites=service.sites if service else self.root.sites, updated=self.clock())
        self._is_root_outdated = False
        if service:
            self.root_service = service
        return bool(service)

    # Records

    def find_answer(self, query: Query, *, certified: bool) -> _Answer | None:
        """A cached answer that covers a query: for the same selection, or of the whole record."""
        now, key, selection = self.clock(), query.key, query.selection
        for kind in (True,) if certified else (False, True):
            if (found := self.answers.get((key, selection, kind), now)) is not None:
                return found
            if selection != EVERYTHING and (whole := self.answers.get((key, EVERYTHING, kind), now)) is not None:
                values = select(whole.values, query.indexes, query.types)
                if values or whole.code is not ResponseCode.SUCCESS:
                    return replace(whole, values=values)
        return None

    def keep_answer(self, query: Query, answer: _Answer) -> None:
        """Cache an answer."""
        handle, selection = query.key, query.selection
        size = len(handle) + sum(map(len, selection[0]))
        size += sum([value.size + _VALUE_SIZE + _REFERENCE_SIZE * len(value.references) for value in answer.values])
        self.answers.put((handle, selection, answer.is_certified), answer, answer.expires, self.clock(), size)

    def find_service(self, prefix_handle: str, *, certified: bool) -> _FoundService | None:
        """The service of a prefix, if it is known."""
        now = self.clock()
        found = self.services.get((prefix_handle, True), now)
        return self.services.get((prefix_handle, False), now) if found is None and not certified else found

    def resolve(self, query: Query, options: Options) -> Steps[Resolution]:
        """Resolve a handle, and follow aliases if that is asked for."""
        walk = _Walk(self, options)
        followed: list[str] = []
        asked, is_certified = query, True
        if options.follow_aliases and (query.types or query.indexes):
            asked = replace(query, types=(*query.types, HS_ALIAS))
        while True:
            answer = yield from walk.read(asked)
            is_certified = is_certified and answer.is_certified  # a cached one can be, where it was not asked for
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
            raise make_refusal(asked.handle, answer.code, answer.text)
        values = select(answer.values, query.indexes, query.types)
        if not values:
            raise make_refusal(asked.handle, ResponseCode.VALUES_NOT_FOUND)
        return Resolution(
            asked.handle,
            ascending(values),
            is_certified,
            answer.is_authoritative,
            tuple(followed),
            tuple(walk.steps),
        )

    def verify(self, challenge: VerifyChallenge, timeout: float) -> Steps[bool]:
        """Ask the service of an identity whether an answer to a challenge was made with its secret (§13.5)."""
        query = Query(challenge.handle.decode("utf-8"), challenge=challenge)
        response = yield from _Walk(self, Options(certified=True, timeout=timeout)).request(query)
        if not isinstance(response.body, VerificationResult):
            text = response.body.sentence[:MAX_TEXT] if isinstance(response.body, Failure) else ""
            raise make_refusal(query.handle, response.code, text)
        return response.body.is_valid


@dataclass(slots=True)
class _Walk(Attempts):
    """One resolution: which services it needs, and what they answer."""

    core: Core

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
        text = body.sentence[:MAX_TEXT] if isinstance(body, Failure) else ""
        return _Answer(code, (), text, response.is_certified, authoritative, expires)

    # Services

    def find_service(self, handle: str, *, again: bool = False) -> Steps[_FoundService]:
        """Find the service that has a handle; `again`: what is known is wrong, so nothing comes from the cache."""
        if again:
            self.options = replace(self.options, use_cache=False)
        core, certified = self.core, self.options.certified
        if core.resolver_service:
            return _FoundService(core.resolver_service)
        prefix_handle = _prefix_handle(handle)
        if local := core.local_services.get(prefix_handle):
            return _FoundService(local)
        if handle.startswith(_ROOT_NAMES):
            return _FoundService(core.root_service)
        known = core.find_service(prefix_handle, certified=certified) if self.options.use_cache else None
        if known is not None:
            return known
        is_first = not self.open_prefixes
        if is_first and self.options.use_cache:
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
        size = len(prefix_handle) + sum(map(_site_size, found.service.sites))
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
        raise make_refusal(prefix_handle, answer.code, answer.text)

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


def _site_size(site: Site) -> int:
    """Bytes of a site in the cache."""
    servers = [
        _SERVER_SIZE + 2 * len(server.public_key) + _PART_SIZE * len(server.interfaces) for server in site.servers
    ]
    attributes = [_PART_SIZE + len(attribute.name) + len(attribute.value) for attribute in site.attributes]
    return _SITE_SIZE + len(site.hash_filter) + sum(servers) + sum(attributes)


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

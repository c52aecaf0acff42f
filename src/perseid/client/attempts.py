"""Requests to the servers of a service, without I/O: attempts by site and transport, verification, limits, trace.

`Network` is what all resolutions share, and `Attempts` belongs to one. `lookup` decides which service is asked.
"""

import ipaddress
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from perseid.names.handle import fold
from perseid.records.keys import PublicKey
from perseid.records.site import Transport
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import DEFAULT_FLAGS, LocalProtocolError, OpCode, OpFlag, RemoteProtocolError, ResponseCode
from perseid.wire.fragments import MAX_PACKET, split
from perseid.wire.framing import http_request
from perseid.wire.message import Message
from perseid.wire.requests import Resolve, VerifyChallenge
from perseid.wire.responses import Failure, ResolutionResult

from .errors import ClientError, NotFound, ProtocolError, Refused, Unreachable
from .sites import TRANSPORTS, Peer, ResponseTimes, Service, plan_attempts
from .transport import (
    FAILURES,
    Address,
    DatagramReceiver,
    Exchange,
    HttpReceiver,
    Lookup,
    Steps,
    StreamReceiver,
)

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds for a whole resolution."""

MAX_LOOKUPS: Final = 40
"""Records that are read for one resolution, as deployed."""

MAX_TEXT: Final = 200
"""Characters of a server's message that an error quotes."""

_MAX_RECURSION = 10  # servers refuse a higher count
_LOOKUP_TIMEOUT = 5.0  # seconds for the address of a domain
_CERTIFIED_FLAGS = OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST  # the signature then covers which request it answers
_MAX_REASONS = 8  # failed attempts that an error names
_SITE_FAILURES = (ResponseCode.ERROR, ResponseCode.SERVER_TOO_BUSY)  # of this site; another one may succeed

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


EVERYTHING: Final[tuple[tuple[str, ...], tuple[int, ...]]] = ((), ())
"""The selection of a whole record."""


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
        if not (self.types or self.indexes):
            return EVERYTHING
        return tuple(sorted(map(fold, self.types))), tuple(sorted(self.indexes))


@dataclass(frozen=True, slots=True)
class Options:
    """How to resolve."""

    certified: bool = False
    follow_aliases: bool = False
    use_cache: bool = True
    trace: bool = False
    timeout: float = DEFAULT_TIMEOUT


class Network:
    """How servers are reached: settings, measured response times, clocks."""

    def __init__(self, transports: Collection[Transport], address_filter: AddressFilter | None) -> None:
        self.times = ResponseTimes()
        self.transports = tuple(each for each in TRANSPORTS if each in transports)
        self.address_filter = address_filter
        self.wire = Client(os.urandom)
        self.clock = time.time
        self.timer = time.monotonic

    def learn(self, service: Service, peer: Peer, response: VerifiedResponse) -> None:
        """Learn from a response what it says about its service; `Core` does."""


@dataclass(slots=True)
class Attempts:
    """The requests of one resolution, with its limits and its trace."""

    core: Network
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
                failures.add(address, TimeoutError(self._over()))
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
            core.learn(service, peer, response)
            if self.options.trace:
                certified = response.is_certified
                self.note("ask", query.handle, response.code.name, since, address=str(address), certified=certified)
            return response
        raise failures.make_error()

    def _over(self) -> str:
        return f"the time limit of {self.options.timeout:g} s is over"

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
            text = response.body.sentence[:MAX_TEXT] if isinstance(response.body, Failure) else ""
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
            left = self.started + self.options.timeout - since
            if left <= 0:
                raise Unreachable(f"{peer.host} was not looked up: {self._over()}")
            try:
                hosts: tuple[str, ...] = yield Lookup(peer.host, min(_LOOKUP_TIMEOUT, left))
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
            return make_refusal(self.handle, failed[-1].code, text)
        return Unreachable(f"no server answered for {self.handle} ({text})", advice="Check the network, then retry")


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # `asyncio` has texts of its own
    return str(error)


def make_refusal(handle: str, code: ResponseCode, text: str = "") -> ClientError:
    """The error for a response code."""
    from perseid.schema.problems import slug_of_code  # noqa: PLC0415 - not needed if all goes well

    more = f": {text}" if text else ""
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

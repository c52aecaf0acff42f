"""Identities on other servers: their keys are read from the service that hosts them (native protocol, 13.4, 13.5).

Other servers are asked only if the settings allow it (`identities`) or they belong to this site, and only about
identities that would have the permission if they were proved, or over HTTP some permission: nobody else can make this
server send anything. Every response must be signed, up to the key of the root, so servers and ports are those of
certified site information. Addresses that are not public are refused unless they are configured. What fails is logged;
callers learn only that the identity cannot be verified now (`Unverifiable`), because the reason would tell them about
the network of this server. That is not a wrong guess.
"""

import asyncio
import hashlib
import ipaddress
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self, TypeVar

from perseid.client.attempts import AddressFilter, Options, Query
from perseid.client.cache import Cache
from perseid.client.errors import ClientError, NotFound
from perseid.client.lookup import Core
from perseid.client.roots import GLOBAL, Root
from perseid.client.transport import AsyncTransport, Steps
from perseid.names.handle import Handle
from perseid.records.record import Value, ValueRef
from perseid.records.site import Transport
from perseid.records.types import HS_PUBKEY
from perseid.registry.identity import Proof
from perseid.registry.installation.settings import Config
from perseid.registry.partition import Partition
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from perseid.wire.requests import VerifyChallenge

from .authentication import ProvenIdentity, candidate_keys
from .decisions import Busy

TIMEOUT: Final = 10.0
"""Seconds for all that is asked about one identity. Clients wait up to a minute for the response to a challenge."""

MAX_RUNNING: Final = 16
"""Identities that a worker asks other servers about at the same time; further callers are told to retry."""

CACHED_RECORDS: Final = 1_000
"""Prefix handles of other services that are remembered. Keys are asked for with each proof, so that a removed one ends
with the session, or after `EXTERNAL_LIFE`."""

MAX_PROOFS: Final = 1_000
"""Proofs that a worker remembers for HTTP, where many clients send their proof with each request."""

TRANSPORTS: Final = (Transport.UDP, Transport.TCP)
"""No HTTP: its requests could mean something to a server that is not one of handles."""

_MISSING = (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 addresses behind a translator (RFC 6052)
_IPV4_BITS = 0xFFFF_FFFF

T = TypeVar("T")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_logger = logging.getLogger(__name__)


class Run(Protocol):
    """Does the steps of a resolution."""

    def __call__(self, steps: Steps[T], /) -> Awaitable[T]: ...


class ExternalIdentities:
    """Asks other servers about identities."""

    def __init__(
        self,
        load_root: Callable[[], Root] | None,
        allows: AddressFilter,
        run: Run | None = None,
        partition: Partition | None = None,
    ) -> None:
        """`load_root` is called when the root is first needed, in a thread: that of the global system is fetched.

        Without it only the other servers of this site are asked, if it is partitioned.
        """
        self._load_root = load_root
        self._allows = allows
        self._run = run or AsyncTransport().run
        self._core: Core | None = None
        self._partition = partition
        self._site_core = None if partition is None else _make_site_core(partition, allows)
        self._running = 0
        self._proofs: Cache[ProvenIdentity] = Cache(MAX_PROOFS)
        self._proof_key = secrets.token_bytes(32)

    @classmethod
    def of(cls, config: Config, directory: Path, partition: Partition | None = None) -> Self | None:
        """Return it as configured; None if identities on other servers are not accepted, and there is no partition."""
        root, allows = config.identity_root, make_address_filter(config.identities.networks)
        if not root:
            return None if partition is None else cls(None, allows, partition=partition)
        if root == GLOBAL:
            return cls(Root.load_global, allows, partition=partition)
        loaded = Root.load(directory / root)
        return cls(lambda: loaded, allows, partition=partition)

    async def find_keys(self, reference: ValueRef) -> tuple[Value, ...]:
        """Return the public keys that can prove an identity, by index. Raises `Busy`."""
        query = Query(reference.handle, (HS_PUBKEY,), authoritative=True)
        options = Options(certified=True, timeout=TIMEOUT)
        try:
            resolved = await self._ask(reference.handle, lambda core: core.resolve(query, options))
        except _NotFound:
            return ()
        return candidate_keys(resolved.values, Proof.PUBLIC_KEY, reference.index)

    async def verify_secret(self, challenge: VerifyChallenge) -> bool:
        """Ask the service of an identity whether a challenge was answered with its secret. Raises `Busy`.

        The index must be known: the service does not say which of several secrets it was.
        """
        if challenge.index < 1:
            reason = "the index of the secret is missing; an identity on another server needs it, as in 300:HANDLE"
            raise Refused(ResponseCode.INVALID_CREDENTIAL, reason)
        handle = challenge.handle.decode("utf-8", "replace")
        try:
            return await self._ask(handle, lambda core: core.verify(challenge, TIMEOUT))
        except _NotFound:
            return False

    def find_proof(self, evidence: bytes, now: float) -> ProvenIdentity | None:
        """Return the identity that this evidence has proved, if its proof is still valid."""
        return self._proofs.get(self._hash(evidence), now)

    def keep_proof(self, evidence: bytes, proved: ProvenIdentity, now: float) -> None:
        """Remember what proved an identity, as a keyed hash, until the proof ends."""
        self._proofs.put(self._hash(evidence), proved, proved.external_until, now, len(proved.handle))

    def _hash(self, evidence: bytes) -> bytes:
        return hashlib.blake2b(evidence, key=self._proof_key, digest_size=32).digest()

    async def _ask(self, handle: str, ask: Callable[[Core], Steps[T]]) -> T:
        if self._running >= MAX_RUNNING:
            raise Busy
        self._running += 1
        try:
            async with asyncio.timeout(TIMEOUT):
                if self._site_core is not None and self._belongs_to_site(handle):
                    try:
                        return await self._run(ask(self._site_core))
                    except NotFound as error:  # this site does not host the prefix either
                        if error.code != ResponseCode.SERVER_NOT_RESP or self._load_root is None:
                            raise
                if self._load_root is None:
                    raise _NotFound
                if self._core is None:
                    root = await asyncio.to_thread(self._load_root)
                    self._core = Core(root, CACHED_RECORDS, TRANSPORTS, self._allows)
                return await self._run(ask(self._core))
        except (ClientError, TimeoutError, UnicodeError) as error:
            is_missing = isinstance(error, NotFound) and (
                error.code in _MISSING or (error.code == ResponseCode.SERVER_NOT_RESP and self._load_root is None)
            )
            level = logging.INFO if is_missing else logging.WARNING
            _logger.log(level, "cannot verify an identity on another server, %s: %s", ascii(handle), ascii(str(error)))
            raise (_NotFound if is_missing else Unverifiable) from error
        finally:
            self._running -= 1

    def _belongs_to_site(self, handle: str) -> bool:
        """Whether another server of this site has a handle, if the site hosts its prefix."""
        name = Handle.for_lookup(handle)
        return name is not None and self._partition is not None and self._partition.find_other(name) is not None


def _make_site_core(partition: Partition, allows: AddressFilter) -> Core:
    """What resolves at the servers of this site. Their addresses are the operator's."""
    own = {server.ip for server in partition.site.servers}
    root = Root((), resolver=(partition.site,))
    return Core(root, CACHED_RECORDS, TRANSPORTS, lambda address, port: address in own or allows(address, port))


class _NotFound(Exception):
    """The service of an identity says that it has no such key."""


class Unverifiable(Busy):
    """The service of an identity did not answer, or not in a way that can be trusted."""

    text: ClassVar = "the identity cannot be verified at present, because its keys are on another server; retry later"


def make_address_filter(networks: Iterable[str]) -> AddressFilter:
    """Allow public addresses, and the networks of the settings. Never port 0."""
    configured = [ipaddress.ip_network(network) for network in networks]

    def allows(address: Address, port: int) -> bool:
        if port == 0:
            return False
        address = _embedded_address(address)
        if any(address in network for network in configured):
            return True
        # Some ranges, such as the former site-local addresses, are not public in one of these respects only.
        return address.is_global and not (
            address.is_multicast
            or address.is_reserved
            or address.is_private
            or address.is_link_local
            or (isinstance(address, ipaddress.IPv6Address) and address.is_site_local)
        )

    return allows


def _embedded_address(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & _IPV4_BITS)
    teredo = None if address.teredo is None else address.teredo[1]
    return address.ipv4_mapped or address.sixtofour or teredo or address

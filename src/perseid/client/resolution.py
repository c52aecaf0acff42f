"""Resolve handles anywhere: find the service of a prefix, ask it, follow referrals, verify, cache.

    resolver = Resolver("siteinfo.json")
    print(resolver.resolve("12345/x").target)

    async with AsyncResolver("siteinfo.json") as resolver:
        print((await resolver.resolve("12345/x", certified=True)).target)

With `certified=True` every response on the way is signed: those of the root with the keys in the root information,
those of a service with the keys in the prefix handle that the root has signed, and so on.
"""

import os
from collections.abc import Collection
from functools import lru_cache
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from perseid.names.uri import parse_user_input
from perseid.records.site import Transport

from .attempts import DEFAULT_TIMEOUT, AddressFilter, Options, Query, Step
from .cache import MAX_ENTRIES
from .lookup import Core, Resolution
from .options import as_names, check_options
from .roots import ROOT_VARIABLE, Root
from .sites import TRANSPORTS
from .transport import AsyncTransport, Steps, run

if TYPE_CHECKING:
    import asyncio

__all__ = ["AddressFilter", "AsyncResolver", "Resolution", "ResolveOptions", "Resolver", "Step", "resolve"]


class ResolveOptions(TypedDict, total=False):
    """How to resolve a handle."""

    types: Collection[str]
    """Only values of these types: `URL`, or `URL.` with subtypes."""
    indexes: Collection[int]
    """Only the values with these indexes, besides those of `types`."""
    certified: bool
    """Demand signed responses, and verify them up to the key of the root."""
    authoritative: bool
    """Ask a primary site, and no cache."""
    follow_aliases: bool
    """Resolve the handle that an HS_ALIAS value names."""
    use_cache: bool
    """Use cached records; the default."""
    trace: bool
    """Return every step, with times."""
    timeout: float
    """Seconds for the whole resolution; 30 by default."""


class _Settings:
    """What both resolvers have in common."""

    def __init__(
        self,
        root: Root | str | os.PathLike[str] | None = None,
        *,
        cache_size: int = MAX_ENTRIES,
        transports: Collection[Transport] = TRANSPORTS,
        address_filter: AddressFilter | None = None,
    ) -> None:
        """Prepare a resolver; nothing is contacted until it resolves.

        `root` is `"global"`, or the path of a file or folder; the default is the environment variable
        PERSEID_CLIENT_ROOT. `cache_size` is the number of cached records; 0 for none. `transports` limits the ways to
        reach servers: UDP, TCP, HTTP and HTTPS by default. `address_filter` is called with an IP address and a port,
        and returns whether they may be contacted.
        """
        self._core = Core(Root.load(root), cache_size, transports, address_filter)

    def clear_cache(self) -> None:
        """Forget all records and services."""
        self._core.answers.clear()
        self._core.services.clear()

    def _steps(self, handle: str, **options: Unpack[ResolveOptions]) -> Steps[Resolution]:
        check_options(options, ResolveOptions)
        name = str(parse_user_input(handle, for_lookup=True).handle)
        query = Query(
            name,
            as_names(options.get("types", ())),
            tuple(options.get("indexes", ())),
            options.get("authoritative", False),
        )
        return self._core.resolve(
            query,
            Options(
                options.get("certified", False),
                options.get("follow_aliases", False),
                options.get("use_cache", True),
                options.get("trace", False),
                options.get("timeout", DEFAULT_TIMEOUT),
            ),
        )


class Resolver(_Settings):
    """Resolves handles, with blocking calls. It can be shared by threads."""

    def resolve(self, handle: str, **options: Unpack[ResolveOptions]) -> Resolution:
        """Resolve a handle, in any form that people use: `12345/x`, `hdl:12345/x`, `https://doi.org/10.1000/1`.

        Options: see `ResolveOptions`. Raises NotFound, Refused, Unreachable or ProtocolError.
        """
        try:
            return run(self._steps(handle, **options))
        finally:
            if self._core.claim_refresh():
                Thread(target=run, args=(self._core.refresh(),), name="perseid-root", daemon=True).start()


class AsyncResolver(_Settings):
    """Resolves handles in an event loop, like `Resolver`: `resolve` is awaited. Use it in an `async with` statement."""

    async def __aenter__(self) -> Self:
        self._transport = AsyncTransport()
        self._refresh: asyncio.Task[bool] | None = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._refresh is not None:
            import asyncio  # noqa: PLC0415 - blocking clients do not need it

            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)
        self._transport.close()

    async def resolve(self, handle: str, **options: Unpack[ResolveOptions]) -> Resolution:
        """Resolve a handle as `Resolver.resolve` does."""
        try:
            return await self._transport.run(self._steps(handle, **options))
        finally:
            if self._core.claim_refresh():
                import asyncio  # noqa: PLC0415 - blocking clients do not need it

                self._refresh = asyncio.create_task(self._transport.run(self._core.refresh()))


@lru_cache(8)
def _shared_resolver(root: str | None) -> Resolver:
    return Resolver(root)


def resolve(
    handle: str, *, root: str | os.PathLike[str] | None = None, **options: Unpack[ResolveOptions]
) -> Resolution:
    """Resolve a handle, as `Resolver` does; all calls with the same root share its cache.

    Without a root nothing is contacted: `root="global"` asks the global Handle System.
    """
    check_options(options, ResolveOptions)
    chosen = root or os.environ.get(ROOT_VARIABLE)
    return _shared_resolver(None if chosen is None else os.fspath(chosen)).resolve(handle, **options)

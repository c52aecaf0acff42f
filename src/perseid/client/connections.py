"""TCP connections within a time limit, which covers the look-up of a domain.

The system's look-up cannot be interrupted. It runs in a thread of its own, which is left behind when the time is over
and keeps neither the caller nor the end of the program waiting.
"""

import socket
import time
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LOOKUPS: Final = 64
"""Look-ups at a time: as many as an event loop usually resolves. A thread waits some 30 seconds at most."""

_RETRY_SECONDS: Final = 0.01
"""Seconds until an event loop tries again to start a look-up."""

_MAX_LABEL: Final = 63
"""Bytes between two dots of a domain."""

_free = BoundedSemaphore(MAX_LOOKUPS)


def open_stream(host: str, port: int, timeout: float) -> socket.socket:
    """Connect to a host within some seconds; raises OSError. The socket keeps the time limit for each operation."""
    deadline = time.monotonic() + timeout
    failure: OSError | None = None
    for address in look_up(host, timeout):
        try:
            stream = socket.create_connection((address, port), seconds_until(deadline))
        except OSError as error:
            failure = failure or error
            continue
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(timeout)
        return stream
    raise failure or OSError(f"{host} has no address")


class LookupTimeout(TimeoutError):
    """The look-up of a host took too long; no server was asked."""


def seconds_until(deadline: float) -> float:
    """The seconds that are left; raises TimeoutError."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def look_up(host: str, timeout: float) -> tuple[str, ...]:
    """Find the IP addresses of a host within some seconds; raises OSError."""
    deadline = time.monotonic() + timeout
    if (literal := _read_literal(host)) is not None:
        return literal
    if not _free.acquire(timeout=timeout):
        raise _timed_out(host)
    found: list[tuple[str, ...] | OSError] = []
    thread = _start(host, found.append)
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        raise _timed_out(host)
    return _unpack(found[0])


async def look_up_async(host: str, timeout: float) -> tuple[str, ...]:  # noqa: ASYNC109 - as `look_up`
    """Find the IP addresses of a host as `look_up` does, without blocking the event loop."""
    import asyncio  # noqa: PLC0415 - blocking clients do not need it
    from contextlib import suppress  # noqa: PLC0415

    if (literal := _read_literal(host)) is not None:
        return literal
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[str, ...] | OSError] = loop.create_future()

    def finish(result: tuple[str, ...] | OSError) -> None:
        if not future.done():
            future.set_result(result)

    def report(result: tuple[str, ...] | OSError) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(finish, result)

    try:
        async with asyncio.timeout(timeout):
            while not _free.acquire(blocking=False):  # noqa: ASYNC110 - threads share it
                await asyncio.sleep(_RETRY_SECONDS)
            _start(host, report)
            return _unpack(await future)
    except TimeoutError:
        raise _timed_out(host) from None


def _start(host: str, report: "Callable[[tuple[str, ...] | OSError], None]") -> Thread:
    """Look up a domain in a thread, which then ends the turn that the caller has acquired."""
    turns = _free

    def run() -> None:
        try:
            found = socket.getaddrinfo(_encode_domain(host), None, type=socket.SOCK_STREAM)
            report(tuple(dict.fromkeys([str(address[0]) for *_, address in found])))
        except OSError as error:
            report(error)
        finally:
            turns.release()

    thread = Thread(target=run, name="perseid-lookup", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads
        turns.release()
        raise OSError(str(error)) from error
    return thread


def _encode_domain(host: str) -> bytes:
    """Encode a domain; what is not one is a failure of the network, because others may have sent it."""
    try:
        domain = host.encode("ascii" if host.isascii() else "idna")
    except UnicodeError:
        domain = b""
    labels = domain.removesuffix(b".").split(b".")
    if b"\0" in domain or not all(0 < len(label) <= _MAX_LABEL for label in labels):
        raise OSError(f"{host[:80]!r} is not a domain")
    return domain


def _read_literal(host: str) -> tuple[str, ...] | None:
    """The address itself; None for a domain."""
    domain = _encode_domain(host)
    try:
        found = socket.getaddrinfo(domain, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return None
    return (str(found[0][4][0]),)


def _unpack(result: tuple[str, ...] | OSError) -> tuple[str, ...]:
    if isinstance(result, OSError):
        raise result
    return result


def _timed_out(host: str) -> LookupTimeout:
    return LookupTimeout(f"the look-up of {host[:80]} timed out")

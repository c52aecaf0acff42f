"""What answers requests, with a note of each answer: for counters, for the access log, and in what time.

Each connection has an `Observed` of its own, which knows from where it comes; all of them share one `Observing`, which
is told when settings have changed. What can be answered at once is answered here, before the service is asked, and
counted in as little time.
"""

from collections.abc import Callable, Container
from time import perf_counter_ns
from typing import Final

from perseid.records.site import Transport
from perseid.server.http.compat.tunnel import NATIVE_TYPE
from perseid.server.http.connection.requests import Arrived
from perseid.server.observe.access_log import AccessLog, Exchange
from perseid.server.observe.counters import ControlCounts
from perseid.wire.codes import ResponseCode

from .messages import Request, Response
from .service import HttpService

AtOnce = Callable[[Arrived], tuple[bytes, bytes] | None]
"""The octets of an answer and the name that it is about, if it takes no time; see `fast`."""

MOST: Final = 2_000
"""Answers at once for one address in a second, where the settings say nothing."""

_STATUS = slice(9, 12)  # in the first line of an answer
_CLASS = 9
_NO_LIMIT = -(1 << 62)


class Observing:
    """What answers, and where it is noted; for all connections."""

    __slots__ = ("access", "counts", "exempt", "fast", "most", "service", "taken")

    def __init__(
        self, service: HttpService, counts: ControlCounts, fast: AtOnce | None = None, access: AccessLog | None = None
    ) -> None:
        self.service = service
        self.counts = counts
        self.fast = fast
        self.access = access
        self.taken: dict[str, int] = {}
        """What was answered at once in this second, by address."""
        self.most = MOST
        """How much of it an address may have."""
        self.exempt: Container[str] = ()
        """Addresses that may have more."""


class Observed:
    """What answers the requests of one connection."""

    __slots__ = ("_all", "_host", "_transport")

    def __init__(self, observing: Observing, host: str, *, secure: bool) -> None:
        self._all = observing
        self._host = host
        self._transport = Transport.HTTPS if secure else Transport.HTTP

    def at_once(self, request: Arrived) -> bytes | None:
        """The whole answer, if it takes no time."""
        every = self._all
        if every.fast is None:
            return every.service.at_once(request)
        host = request.client.host
        taken = every.taken.get(host, 0)
        if taken >= every.most:
            if host not in every.exempt:
                every.counts.limited("requests at once")
                return every.service.at_once(request)  # the usual way has a budget
            taken = _NO_LIMIT  # for the rest of the second, as looking it up takes time
        access = every.access
        began = perf_counter_ns() if access is not None else 0
        found = every.fast(request)
        if found is None:
            return every.service.at_once(request)
        every.taken[host] = taken + 1
        octets, name = found
        key = (request.client.secure, request.method, octets[_CLASS])
        counted = every.counts.http_at_once
        counted[key] = counted.get(key, 0) + 1
        if access is not None:
            took = (perf_counter_ns() - began) // 1000
            exchange = Exchange(request.method, int(octets[_STATUS]), name, is_name=True, code=ResponseCode.SUCCESS)
            access.note_http(request.client.host, _transport(request).name.lower(), exchange, took)
        return octets

    async def answer(self, request: Request) -> Response:
        """The answer to a request."""
        began = perf_counter_ns()
        response = await self._all.service.answer(request)
        took = (perf_counter_ns() - began) // 1000
        transport = _transport(request)
        self._all.counts.http(transport, request.method, response.status)
        if next(response.values("Content-Type"), "") == NATIVE_TYPE:
            return response  # the native protocol has noted what is in it
        self._all.counts.durations[transport].add(took)
        if self._all.access is not None:
            name = response.name.encode("utf-8", "replace")
            exchange = Exchange(request.method, response.status, name or request.path, bool(name), response.code)
            self._all.access.note_http(request.client.host, transport.name.lower(), exchange, took, response.who)
        return response

    def refused(self, status: int, problem: str, path: bytes) -> Response:
        """What is said about something that is no request."""
        response = self._all.service.refused(status, problem, path)
        self._all.counts.http(self._transport, "", response.status)
        if self._all.access is not None:
            exchange = Exchange("-", response.status, path, is_name=False, code=response.code)
            self._all.access.note_http(self._host, self._transport.name.lower(), exchange, 0)
        return response


def _transport(request: Request) -> Transport:
    return Transport.HTTPS if request.client.secure else Transport.HTTP

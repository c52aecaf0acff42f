"""Generated requests to every route of a running server: every response is valid.

That is: well-formed HTTP, no internal error, JSON below `/api`, with security headers, without anything that the
request tried to smuggle in, and without internals of the server. And the server keeps running.

`EXAMPLES=1000 make test` runs longer.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import perseid
from tests.conftest import EXAMPLES
from tests.server.faults.machine import descriptors, eventually, memory, processes, started
from tests.server.http.generated_requests import ALL_PATHS, Made, made_up
from tests.server.http.raw import NO_LIMITS, Answer, Raw, connected, request, see_sound
from tests.server.installations import PREFIX, SECRET, copy_to
from tests.server.running import Serving, serving

REQUESTS = EXAMPLES * 10
GROWTH = 48 << 20
"""Octets by which a worker may grow: modules that the first requests load, sessions that it keeps for a while."""
INSIDES = (b"Traceback (most recent", b'File "', b"site-packages", str(Path(perseid.__file__).parent).encode())


class Asking:
    """A server, and a client that opens one connection after the other."""

    def __init__(self, server: Serving, directory: Path) -> None:
        self.server = server
        self.never = (*INSIDES, SECRET.encode(), str(directory).encode())
        self._stack = ExitStack()
        self._client: Raw | None = None
        self._secure = False
        self.answered = 0

    def ask(self, made: Made) -> Answer:
        """Send a request and check its response."""
        if self._client is None:
            self._secure = not self._secure
            self._client = self._stack.enter_context(connected(self.server.http, secure=self._secure))
        try:
            answer = self._client.ask(request(made.method, made.target, made.headers, made.body), made.method)
        except BaseException:
            self.close()  # what is left of it would be the next one's
            raise
        see_sound(answer, made.path, *self.never)
        self.answered += 1
        if answer.header("connection") == "close":
            assert self._client.end() == b"", "one request has one answer"
            self.close()
        return answer

    def close(self) -> None:
        self._stack.close()
        self._client = None


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """The same server for all requests; it must be healthy at the end."""
    directory = copy_to(tmp_path_factory.mktemp("generated"))
    with serving(directory, "--workers", "1", **NO_LIMITS) as server:
        pids = started(server)
        (worker,) = pids["worker"]
        open_before, own_before = descriptors(worker), memory(worker).own
        made = Asking(server, directory)
        yield made
        made.close()
        assert processes(server) == pids, "a process was started again"
        assert made.ask(Made("GET", "/healthz", (), None)).body == b"alive\n"
        made.close()
        eventually(lambda: descriptors(worker) <= open_before + 16, "descriptors are closed")
        grown = memory(worker).own - own_before
        assert grown < GROWTH, f"{grown / (1 << 20):.0f} MiB more than before"
        assert "Internal Error" not in server.errors, server.errors
        assert SECRET not in server.errors


def test_every_route_and_method(asking: Asking) -> None:
    """One plain request of each kind, so that none is missed."""
    for path in ALL_PATHS:
        while "{" in path:
            before, _, rest = path.partition("{")
            path = f"{before}{PREFIX}%2Fn1{rest.partition('}')[2]}"  # noqa: PLW2901 - step by step
        for method in ("GET", "HEAD", "OPTIONS", "POST", "PATCH"):
            answer = asking.ask(Made(method, path, ("Accept: */*",), None))
            assert answer.status != 501 or method == "PATCH", (method, path)


@settings(max_examples=REQUESTS, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(made=made_up())
def test_any_request_gets_a_valid_response(asking: Asking, made: Made) -> None:
    asking.ask(made)

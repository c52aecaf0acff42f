"""Routing, cursors and the rate limiter."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.registry.idempotency import NewClaim
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.application import get_router
from perseid.server.http.v1.routing import Reply, Router, Routes, is_parameter
from perseid.server.http.v1.state import WINDOW, CursorCipher, InvalidCursor, RateLimiter, SharedClaims
from perseid.server.http.v1.validation import path_parameters
from perseid.server.state.state import SharedState
from tests.server.shared_state import MAP_BYTES

CURSORS = CursorCipher(bytes(range(32)))


@given(st.one_of(st.integers(-(2**62), 2**62), st.text(), st.lists(st.text(max_size=5))), st.binary())
def test_cursor_round_trip(place: object, belongs_to: bytes) -> None:
    cursor = CURSORS.seal(place, belongs_to)
    assert CURSORS.open(cursor, belongs_to, type(place)) == place
    assert cursor.replace("-", "").replace("_", "").isalnum()


@given(st.data())
def test_altered_cursor_is_refused(data: st.DataObject) -> None:
    cursor = CURSORS.seal(["12345/x", 7], b"a list")
    at = data.draw(st.integers(0, len(cursor) - 1))
    instead = data.draw(st.sampled_from("ABCxyz019-_=!é\0 "))
    touched = data.draw(
        st.sampled_from([cursor[:at] + instead + cursor[at + 1 :], cursor[:at] + instead + cursor[at:], cursor[:at]])
    )
    if touched != cursor:
        with pytest.raises(InvalidCursor):
            CURSORS.open(touched, b"a list", list)


@given(st.text(max_size=100))
def test_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        CURSORS.open(text, b"a list", object)


def test_cursor_belongs_to_its_list() -> None:
    with pytest.raises(InvalidCursor):
        CURSORS.open(CURSORS.seal(7, b"a list"), b"another list", int)
    with pytest.raises(InvalidCursor):
        CURSORS.open(CURSORS.seal(7, b"a list"), b"a list", str)
    with pytest.raises(InvalidCursor):
        CURSORS.open("A" * 10_000, b"a list", int)


def test_cursor_is_encrypted() -> None:
    octets = base64.urlsafe_b64decode(CURSORS.seal("12345/secret", b"") + "==")
    assert b"secret" not in octets


@given(st.integers(1, 500), st.lists(st.floats(0, 100), max_size=200))
def test_rate_limit_holds_in_every_window(limit: int, gaps: list[float]) -> None:
    limiter, now, granted = RateLimiter(), 1_000.0, list[float]()
    for gap in gaps:
        now += gap
        allowance = limiter.take("somebody", limit, now)
        assert 0 <= allowance.remaining <= limit
        if allowance.allowed:
            granted.append(now)
        else:
            assert allowance.remaining == 0
            assert limiter.take("another", limit, now).limit == limit
    for first in granted:
        # A window that begins somewhere may hold what was saved up, and what comes back meanwhile.
        assert len([time for time in granted if first <= time < first + WINDOW]) <= 2 * limit


def test_waiting_for_reset_allows_a_request() -> None:
    limiter = RateLimiter()
    assert all(limiter.take("a", 5, 0.0).allowed for _ in range(5))
    refused = limiter.take("a", 5, 0.0)
    assert not refused.allowed
    assert limiter.take("a", 5, float(refused.reset)).allowed


def test_all_processes_count_requests_together(tmp_path: Path) -> None:
    state = SharedState(tmp_path, MAP_BYTES)
    limiters = [RateLimiter.shared(state) for _ in range(2)]  # each maps the memory
    for client in ("300:12345/user", (77,)):
        allowances = [limiters[number % 2].take(client, 5, 0.0) for number in range(6)]
        assert [allowance.remaining for allowance in allowances] == [4, 3, 2, 1, 0, 0]
        assert [allowance.allowed for allowance in allowances] == [True] * 5 + [False]
    assert limiters[0].take("301:12345/user", 5, 0.0).remaining == 4
    state.close()


def test_claim_holds_in_all_processes_until_it_is_released_or_its_process_ends(tmp_path: Path) -> None:
    state, claim = SharedState(tmp_path, MAP_BYTES), NewClaim(b"caller", b"key", bytes(32))
    one, two = SharedClaims(state), SharedClaims(state)
    assert one.acquire(claim)
    assert not two.acquire(NewClaim(b"caller", b"key", bytes(range(32))))
    assert two.acquire(NewClaim(b"caller", b"another key", bytes(32)))
    one.release(claim)
    script = (
        "import os, sys; from pathlib import Path; from perseid.registry.idempotency import NewClaim\n"
        "from perseid.server.http.v1.state import SharedClaims; from perseid.server.state.state import SharedState\n"
        "claims = SharedClaims(SharedState(Path(sys.argv[1]), int(sys.argv[2])))\n"
        "assert claims.acquire(NewClaim(b'caller', b'key', bytes(32))); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(MAP_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert not one.acquire(claim)
        other.kill()
    assert one.acquire(claim)
    state.close()


async def _answer(_: ApiCall) -> Reply:
    return Reply()


def test_literal_segments_precede_parameters() -> None:
    part = Routes("X", "x")
    for path, name in (("/a/{x}", "one"), ("/a/b", "two"), ("/a/{x}/c", "three"), ("/a/b/{y}/d", "four")):
        part.add("GET", path, name, "…")(_answer)
    found = Router([part])

    def operation(*steps: str) -> str | None:
        at = found.find(steps)
        return None if at is None else at.routes["GET"].operation

    assert operation("a", "b") == "two"
    assert operation("a", "z") == "one"
    assert operation("a", "b", "c") == "three"  # b is a parameter after all
    assert operation("a", "b", "c", "d") == "four"
    assert operation("a") is None
    assert operation("a", "") is None
    assert operation("a", "{x}") == "one"


def test_duplicate_routes_are_an_error() -> None:
    part = Routes("X", "x")
    part.add("GET", "/a/{x}", "one", "…")(_answer)
    part.add("GET", "/a/{y}", "two", "…")(_answer)
    with pytest.raises(ValueError, match=r"^GET /a/\{y\} \(two\) is defined twice$"):
        Router([part])


@given(st.data())
def test_every_route_matches_any_parameters(data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(get_router().routes))
    name = st.text(min_size=1).map(lambda text: f"12345/{text}")
    steps = tuple(data.draw(name) if is_parameter(step) else step for step in route.segments)
    found = get_router().find(steps)
    assert found is not None
    assert found.routes[route.method] is route
    wanted = [step for step, part in zip(steps, route.segments, strict=True) if is_parameter(part)]
    assert list(path_parameters(route, found.parameters).values()) == wanted

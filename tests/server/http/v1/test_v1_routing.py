"""Routing, cursors and the rate limiter."""

import asyncio
import base64
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.registry.idempotency import NewClaim
from perseid.server.http.asgi import call_app
from perseid.server.http.messages import Request
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.application import Api, get_api
from perseid.server.http.v1.problems import ApiError
from perseid.server.http.v1.routing import BASE, EmptyQuery, Reply, Routes
from perseid.server.http.v1.state import WINDOW, CursorCipher, InvalidCursor, RateLimiter, SharedClaims
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


async def answer_both(_: ApiCall) -> Reply[bytes]:
    return Reply()


def test_duplicate_routes_are_an_error() -> None:
    part = Routes("X", "x")
    part.add("GET", "/a/{x}", "…")(answer_both)
    part.add("GET", "/a/{x}", "…")(answer_both)
    with pytest.raises(ValueError, match=r"^GET /a/\{x\} \(answerBoth\) is defined twice$"):
        Api([part])


@given(st.data())
def test_every_route_gets_its_parameters_as_written(data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(get_api().routes))
    names = dict.fromkeys(re.findall(r"{(\w+)}", route.path), "")
    path = BASE + route.path
    for name in names:
        names[name] = data.draw(
            st.text(min_size=1).map(lambda text: f"12345/{text}").filter(lambda text: "\0" not in text)
        )
        path = path.replace(f"{{{name}}}", quote(names[name], safe=""))
    called: list[ApiCall] = []

    async def note(call: ApiCall, **_: object) -> Reply[bytes]:
        called.append(call)
        return Reply()

    section = Routes("X", "x", [replace(route, handler=note, query=EmptyQuery, body=None)])
    request = Request(route.method, path.encode())
    state = {"call": SimpleNamespace(request_context=SimpleNamespace(request=request))}
    asyncio.run(call_app(Api([section]), request, state))
    assert [call.names for call in called] == [names]
    assert called[0].route.operation == route.operation


@pytest.mark.parametrize("path", ["/handles/12345/x", "/handles/", "/handles//history", "/handles/a/history/", "/x"])
def test_other_paths_do_not_exist(path: str) -> None:
    with pytest.raises(ApiError, match="does not exist"):
        asyncio.run(call_app(get_api(), Request("GET", f"{BASE}{path}".encode()), {}))

"""Nodes whose database server fails and is replaced; `tests.server.failover` has the clients."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.wire.codes import OpCode, OpFlag, ResponseCode, default_flags
from tests.server import failover
from tests.server.failover import PREFIX, Pair, make_nodes, perseid, request, token_for, wait_until
from tests.server.native.native_client import NativeClient, Via
from tests.server.running import Serving, serving


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that PostgreSQL's user can reach."""
    with tempfile.TemporaryDirectory(prefix="perseid-fo-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def mint(server: Serving, token: str) -> int:
    body = {"prefix": PREFIX, "values": [{"type": "URL", "data": "https://example.org/minted"}]}
    return request(server.http, "POST", "/api/v1/mint", body, token)[0]


def resolve(server: Serving, suffix: str) -> int:
    return request(server.http, "GET", f"/api/handles/{PREFIX}/{suffix}")[0]


def resolve_certified(server: Serving, suffix: str) -> ResponseCode:
    """Resolve with a signed response, which the compiled module and the fast path leave to the service."""
    flags = default_flags(OpCode.RESOLUTION) | OpFlag.CERTIFY
    with NativeClient(server.native, Via.TCP) as client:
        return client.resolve(f"{PREFIX}/{suffix}", flags=flags).code


def test_two_nodes_follow_a_promoted_standby() -> None:
    assert len(failover.run(1, seed=1)) == 1


def test_a_standby_without_the_last_entries_is_refused(folder: Path) -> None:
    pair = Pair(folder, synchronous=False)
    try:
        (node,) = make_nodes(folder, pair, 1)
        ports = {f"PERSEID_{name}_PORT": "0" for name in ("NATIVE", "HTTP", "METRICS")}
        checked = perseid("check", "--quick", "-d", node, environ=ports)
        assert "all 2 servers in ledger.database can be used" in checked
        token = token_for(node)
        pair.disconnect_standby()
        perseid("create", f"{PREFIX}/last", "--url", "https://example.org/last", "-d", node)
        pair.primary.kill()
        with serving(node, PERSEID_LOG_ACCESS="false") as server:  # waits for its database
            assert (resolve(server, "first"), resolve(server, "last"), mint(server, token)) == (200, 200, 503)
            assert resolve_certified(server, "last") is ResponseCode.SUCCESS
            assert resolve_certified(server, "none") is ResponseCode.HANDLE_NOT_FOUND
            for suffix, status in {"first": 200, "none": 404}.items():
                assert request(server.http, "GET", f"/api/v1/handles/{PREFIX}%2F{suffix}")[0] == status
            assert b"database-unavailable" in request(server.http, "GET", "/readyz")[1]
            pair.standby.execute("SELECT pg_promote()")
            wait_until(lambda: "the database has lost entry " in server.errors, "the loss is recognized")
            assert (resolve(server, "first"), resolve(server, "last"), mint(server, token)) == (200, 200, 503)
            assert "accept the loss on every node: perseid rebuild answers" in server.errors
            perseid("rebuild", "answers", "-d", node)
            wait_until(lambda: mint(server, token) == 201, "changes are accepted")
            assert (resolve(server, "first"), resolve(server, "last")) == (200, 404)
    finally:
        pair.stop()

"""Large requests are processed in a thread and charged to the caller, or refused."""

import asyncio
import json
from dataclasses import replace

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.registry.commands.records import Create
from perseid.registry.installation.settings import Config
from perseid.server.http.messages import MAX_BODY, Client, Request
from perseid.server.http.responses import FORM_TYPE, JSON_TYPE, MAX_INLINE_BYTES, MAX_PARAMETER_BYTES
from perseid.server.http.responses import MAX_INLINE_BYTES as MAX_WRITTEN_AT_ONCE
from perseid.server.native.work import Work, WorkKind
from perseid.server.processes.pools import Pools
from tests.server.http.contexts import Harness, basic, json_of
from tests.server.installations import OPERATOR, PREFIX

N0 = f"/api/handles/{PREFIX}/n0"


@pytest.mark.parametrize(
    "target", [N0, "/api/sessions", "/api/sessions/this", f"/api/verifications/300:{PREFIX}/x", "/api/prefixes"]
)
@pytest.mark.parametrize("media_type", [FORM_TYPE, JSON_TYPE])
def test_parameter_body_is_limited(shared: Harness, target: str, media_type: str) -> None:
    begin, end = (b"x=", b"") if media_type == FORM_TYPE else (b'{"x":"', b'"}')
    room = MAX_PARAMETER_BYTES - len(begin) - len(end)
    headers = {"Content-Type": media_type}
    assert shared.post(target, begin + b"1" * room + end, headers=headers).status != 413
    refused = shared.post(target, begin + b"1" * (room + 1) + end, headers=headers)
    assert refused.status == 413
    assert f"{MAX_PARAMETER_BYTES:,}" in refused.body.decode()


def test_large_record_is_parsed_in_a_thread(server: Harness) -> None:
    """Refusing an anonymous caller needs one thread; parsing a large body needs another."""
    for size, kinds in ((10, [WorkKind.READ]), (MAX_INLINE_BYTES, [WorkKind.READ, WorkKind.READ])):
        server.kinds.clear()
        answer = server.put(f"/api/handles/{PREFIX}/new", [{"index": 1, "type": "DESC", "data": "x" * size}])
        assert answer.status == 401
        assert server.kinds == kinds


def test_large_records_are_limited_per_address(server: Harness) -> None:
    """Parsing is charged before it starts."""
    pools = Pools(Config.parse("", {}), lambda: 1_000.0)

    async def do(work: Work, client: Client) -> object:
        return await pools.do(work, client.host, Transport.HTTPS)

    async def many(host: str, number: int) -> list[int]:
        body = json.dumps([{"index": 1, "type": "DESC", "data": "x" * (MAX_BODY - 100)}]).encode()
        target, headers = f"/api/handles/{PREFIX}/new".encode(), [("content-type", JSON_TYPE)]
        request = Request("PUT", target, headers, body, Client(host, secure=True))
        return [each.status for each in await asyncio.gather(*[server.answer(request) for _ in range(number)])]

    server.service.server = replace(server.context, do=do)
    try:
        found = asyncio.run(many("198.51.100.1", 16))
        assert set(found) == {401, 503}
        assert found.count(401) <= 5
        assert asyncio.run(many("198.51.100.2", 1)) == [401]
    finally:
        pools.close()


def test_error_in_large_record_is_reported(server: Harness) -> None:
    wrong = [{"index": 1, "type": "DESC", "data": "x" * MAX_INLINE_BYTES}, {"index": 2, "type": "DESC"}]
    answer = server.put(f"/api/handles/{PREFIX}/new", wrong, headers=basic())
    assert answer.status == 400
    assert "Value 2 (index 2)" in json_of(answer)["message"]


@pytest.mark.parametrize("query", ["", "?pretty", "?callback=f", "?at=LATEST", "?index=1"])
def test_large_record_is_encoded_in_a_thread(server: Harness, query: str) -> None:
    small = (Value.text(1, "DESC", "x"),)
    large = (Value(1, "DESC", b"x" * MAX_WRITTEN_AT_ONCE),)
    many = tuple([Value(index, "DESC", b"x") for index in range(1, 2_000)])
    for name, values in (("small", small), ("large", large), ("many", many)):
        server.registry.do(Create(Handle.parse(f"{PREFIX}/{name}"), values), OPERATOR, "cli")
    with server.registry.snapshot() as snapshot:
        query = query.replace("LATEST", str(snapshot.reader.seq_at(1 << 62)))
    threads = {}
    for name in ("small", "large", "many"):
        server.kinds.clear()
        answer = server.get(f"/api/handles/{PREFIX}/{name}{query}")
        assert answer.status == 200
        threads[name] = len(server.kinds)
        if "callback" not in query:
            assert len(json.loads(answer.body)["values"]) >= (1_999 if name == "many" and "index" not in query else 1)
    of_today = "at=" not in query  # from the answers view
    assert threads == {"small": 0 if of_today else 1, "large": 2, "many": 1 if "index" in query else 2}

"""Pages and responses with large records."""

import asyncio
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.json_form import value_to_json
from perseid.records.record import Value, ValueRef
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Add, Create
from perseid.registry.jobs import runner
from perseid.registry.policy.policy import PROFILES
from perseid.schema.common import MAX_PAGE_BYTES
from perseid.server.http.messages import Client, Request, Response
from perseid.server.http.negotiation import LONG_BODY_BYTES, compute_etag
from perseid.server.http.responses import MAX_INLINE_BYTES, encode_json, is_small
from perseid.server.native.work import Work, WorkKind
from tests.server.http.contexts import STRANGER, Harness, basic, header_of
from tests.server.http.v1.apis import got, send
from tests.server.http.v1.callers import at
from tests.server.installations import OPERATOR

COUNT, OCTETS = 50, 500_000
NAME = "12345/large"
MOST = 4_300_000
"""Bytes of a page with more than one item, at most: 4 MiB plus field names."""


def text(number: int, octets: int = OCTETS) -> Value:
    return Value(1, "MEMO", f"{number:03} ".encode() * (octets // 4))


def put(server: Harness, name: str, *values: Value, note: str = "") -> int:
    return server.registry.do(Create(Handle.parse(name), values), OPERATOR, "cli", note).seq


def add(server: Harness, name: str, *values: Value) -> int:
    return server.registry.do(Add(Handle.parse(name), values, overwrite=True), OPERATOR, "cli").seq


def pages(server: Harness, path: str, member: str, **how: Any) -> list[list[Any]]:
    """The pages of a list, as the links say; each keeps its limit, and has something on it."""
    found: list[list[Any]] = []
    while True:
        answer = send(server, "GET", path, **how)
        page = got(answer)
        assert len(answer.body) <= MOST or len(page[member]) == 1
        found.append(page[member])
        link = header_of(answer, "Link")
        assert (link is None) == (page.get("next") is None)
        if link is None:
            return found
        path = link[1:].partition(">")[0].removeprefix("https://hdl.example.org/api/v1")


def flat(found: list[list[Any]]) -> list[Any]:
    return [each for page in found for each in page]


# Pages


def test_large_records_are_paged(server: Harness) -> None:
    names = [f"12345/large{number:02}" for number in range(COUNT)]
    for number, name in enumerate(names):
        put(server, name, text(number))
    found = pages(server, "/find?type=MEMO&limit=1000", "results", headers=basic())
    assert len(found) > COUNT * OCTETS // MOST
    assert sorted(each["handle"] for each in flat(found)) == names
    first = flat(found)[0]
    assert first["values"][0]["data"]["value"].encode() == text(int(first["handle"][-2:])).data
    listed = pages(server, "/namespaces/12345/handles?limit=1000", "handles", headers=basic())
    assert len(listed) == 1, "they are the names alone"
    assert set(names) <= {each["handle"] for each in listed[0]}


@pytest.mark.parametrize("private", [False, True])
def test_large_versions_are_paged(server: Harness, *, private: bool) -> None:
    entries = [put(server, NAME, text(0))]
    entries += [add(server, NAME, text(number)) for number in range(1, COUNT)]
    how = {"headers": basic()} if private else {}
    found = pages(server, at(NAME, "/history?limit=1000"), "versions", **how)
    assert len(found) > COUNT * OCTETS // MOST
    versions = flat(found)
    assert [each["seq"] for each in versions] == entries[::-1]
    assert [each["values"][0]["data"]["value"][:3] for each in versions] == [f"{n:03}" for n in range(COUNT)][::-1]
    changed = [[each["old"]["data"]["value"][:3] for each in one["changed"]["modified"]] for one in versions]
    assert changed == [*[[f"{number:03}"] for number in range(COUNT - 1)][::-1], []]


def test_oversized_item_is_a_page_of_its_own(server: Harness) -> None:
    large = [Value(index, "MEMO", b"x" * 1_000_000) for index in range(1, 7)]
    first, second = put(server, NAME, *large), add(server, NAME, Value(7, "MEMO", b"y" * 1_000_000))
    put(server, "12345/small", text(1, 40))
    record = got(send(server, "GET", at(NAME)))
    assert [len(value["data"]["value"]) for value in record["values"][:7]] == [1_000_000] * 7
    assert len(got(send(server, "GET", at(NAME, f"?at={first}")))["values"]) == 7
    found = pages(server, at(NAME, "/history"), "versions")
    assert [[each["seq"] for each in page] for page in found] == [[second], [first]]
    names = [[each["handle"] for each in page] for page in pages(server, "/find?type=MEMO", "results", headers=basic())]
    assert sorted(names) == [[NAME], ["12345/small"]]
    changed = got(send(server, "GET", at(NAME, f"/differences?earlier={first}&later={second}")))["changed"]
    assert [value["index"] for value in changed["added"]] == [7]


def test_long_notes_end_a_log_page(server: Harness) -> None:
    entries = [put(server, f"12345/noted{number}", text(1, 40), note="n" * 400_000) for number in range(20)]
    found = pages(server, f"/log?since={entries[0] - 1}&limit=1000", "entries", headers=basic())
    assert len(found) > 1
    assert [each["seq"] for each in flat(found)] == entries


def test_rewrite_preview_is_paged_by_size(server: Harness) -> None:
    """The places that are there are short, and those that would be are not."""
    names = [f"12345/moved{number:02}" for number in range(60)]
    for name in names:
        put(server, name, *[Value.text(index, "URL", f"http://old.example/{index}") for index in range(1, 16)])
    order = urlencode({"url": "http://old.example/*", "to": f"https://new.example/{'n' * 6_000}/*", "limit": 1000})
    found = pages(server, f"/rewrites/preview?{order}", "handles", headers=basic())
    assert len(found) > 1
    assert sorted(each["handle"] for each in flat(found)) == names
    assert all(len(each["changes"]) == 15 for each in flat(found))


def test_jobs_tokens_and_namespaces_are_paged_by_size(server: Harness) -> None:
    asked: dict[str, object] = {
        "url": f"http://old.example/{'o' * 7_000}*",
        "to": f"https://new.example/{'n' * 7_000}*",
    }
    begun = [runner.start_job(server.registry, "rewrite", asked, OPERATOR, "cli").id for _ in range(400)]
    found = pages(server, "/jobs?limit=1000", "jobs", headers=basic())
    assert len(found) > 1
    assert sorted(each["job"] for each in flat(found)) == sorted(begun)
    made = []
    for number in range(30):
        places = [f"12345.{'p' * 1_900}{number:02}{place:02}.*" for place in range(100)]
        secret = Secret.new(random.Random(number).randbytes)
        made.append(
            server.registry.do(CreateToken(secret, ScopeSet.of(("read",), places), "", 1_000), OPERATOR, "cli").id
        )
    found = pages(server, "/tokens?limit=1000", "tokens", headers=basic())
    assert len(found) > 1
    assert [each["id"] for each in flat(found)] == sorted(made)
    for number in range(26):
        members = [Admin(ValueRef(300, f"12345/{'m' * 1_900}{number:02}{place:02}")) for place in range(100)]
        values = tuple([Value(100 + place, "HS_ADMIN", each.to_bytes()) for place, each in enumerate(members)])
        prefix = f"777.{number:02}"
        server.registry.do(AddNamespace(prefix, PROFILES["free"], values), OPERATOR, "cli")
    found = pages(server, "/namespaces?limit=1000", "namespaces", headers=basic())
    assert len(found) > 1
    names = [each["prefix"] for each in flat(found)]
    assert names == sorted(names)
    assert [name for name in names if name.startswith("777.")] == [f"777.{number:02}" for number in range(26)]


# The event loop

HELD_BY: dict[object, str] = {
    msgspec.json.encode: "writing JSON",
    encode_json.__code__: "writing JSON",
    value_to_json.__code__: "making JSON of a value",
    compute_etag.__code__: "making a tag",
}
"""Functions whose duration grows with the response."""


def held_by(server: Harness, target: str, **headers: str) -> tuple[Response, set[str]]:
    """Return the response of a request that runs in threads, and what ran in the event loop."""
    held: set[str] = set()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        done: CodeType | Any = frame.f_code if event == "call" else argument if event == "c_call" else None
        if done.__hash__ is not None and done in HELD_BY:
            held.add(HELD_BY[done])

    async def answered() -> Response:
        pairs = [(name.lower(), value) for name, value in headers.items()]
        sys.setprofile(watch)  # of this thread alone
        try:
            return await server.answer(Request("GET", target.encode(), pairs, b"", Client(STRANGER, secure=True)))
        finally:
            sys.setprofile(None)

    with ThreadPoolExecutor(1) as pool:

        async def do(work: Work, client: Client) -> object:  # noqa: ARG001 - everybody may have everything done
            return await asyncio.get_running_loop().run_in_executor(pool, work.call)

        server.service.server = replace(server.context, do=do)
        return asyncio.run(answered()), held


@pytest.fixture
def laden(server: Harness) -> Harness:
    """A server with a record of several megabytes, some of which lead elsewhere, and a past."""
    places = [Value.text(index, "URL", f"http://old.example/{index}/{'x' * 2_000}") for index in range(2, 202)]
    put(server, NAME, *places, text(1))
    add(server, NAME, text(2))
    return server


@pytest.mark.parametrize(
    "target",
    [
        "/api/v1/handles/{name}",
        "/api/v1/handles/{name}?private=true",
        "/api/v1/handles/{name}?at={seq}",
        "/api/v1/handles/{name}/history",
        "/api/v1/handles/{name}/differences?earlier={first}&later={seq}",
        "/api/v1/find?type=MEMO",
        "/api/v1/rewrites/preview?url=http%3A%2F%2Fold.example%2F*&to=http%3A%2F%2Fnew.example%2F*",
        "/api/v1/log",
        "/api/v1/namespaces/12345/handles",
        "/api/handles/{name}",
        "/api/handles/{name}?at={seq}",
        "/{name}?noredirect",
        "/{name}?noredirect&at={seq}",
    ],
)
@pytest.mark.parametrize("accepts", ["application/json", "text/html"])
def test_long_response_does_not_block_the_event_loop(laden: Harness, target: str, accepts: str) -> None:
    with laden.registry.snapshot() as snapshot:
        seq = snapshot.reader.size
    target = target.format(name=quote(NAME, safe=""), seq=seq, first=seq - 1)
    answer, held = held_by(laden, target, Accept=accepts, **basic())
    assert answer.status == 200
    assert held == set()
    tag = header_of(answer, "ETag")
    if tag is not None:
        again, held = held_by(laden, target, Accept=accepts, If_None_Match=tag, **basic())
        assert held == set()
        assert again.status in (200, 304)


def test_etag_of_a_long_response_matches_its_bytes(laden: Harness) -> None:
    path = at(NAME, "/history")
    answer = send(laden, "GET", path)
    assert len(answer.body) > LONG_BODY_BYTES
    tag = header_of(answer, "ETag")
    assert tag == f'"{compute_etag("application/json", answer.body)}"'
    assert send(laden, "GET", path, headers={"If-None-Match": tag}).status == 304
    proof = send(laden, "GET", "/ledger/key")
    assert header_of(proof, "ETag") == f'"{compute_etag("application/json", proof.body)}"'


def test_read_and_encode_use_one_thread(server: Harness) -> None:
    """It is written where it was read, whether it is long or short, and so is the cursor."""
    put(server, NAME, text(0))
    for path in (at(NAME), at("12345/n0"), at(NAME, "/history"), "/find?prefix=12345&limit=2"):
        server.kinds.clear()
        assert send(server, "GET", path, headers={} if path.startswith("/h") else basic()).status == 200
        reads = [kind for kind in server.kinds if kind is WorkKind.READ]
        assert len(reads) <= 1 + ("find" in path), path  # whose key it is, is read besides


def test_references_count_toward_the_size() -> None:
    references = tuple([ValueRef(number, "12345/other") for number in range(1_000)])
    assert is_small((Value(1, "MEMO", b"x"),))
    assert not is_small((Value(1, "MEMO", b"x", references=references),))
    assert not is_small((Value(1, "MEMO", b"x" * MAX_INLINE_BYTES),))


def test_page_size_limit_is_documented(server: Harness) -> None:
    described = json.loads(server.get("/openapi.json").body)
    limits = [
        parameter["description"]
        for path in described["paths"].values()
        for method in path.values()
        for parameter in method.get("parameters", ())
        if parameter.get("name") == "limit"
    ]
    assert limits
    assert all(f"{MAX_PAGE_BYTES >> 20} MiB" in limit for limit in limits)

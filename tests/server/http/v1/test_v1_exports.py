"""Exports over HTTP: the parts of a file, for each caller, with every client."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from perseid.bulk.export import export_parts, open_writer
from perseid.client.api import Client, make_options
from perseid.client.api_async import AsyncClient
from perseid.client.errors import ProtocolError, Refused
from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Add, Create, Delete
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries import export as exports
from perseid.registry.queries.export import Selection
from perseid.registry.queries.find import Search
from perseid.schema.exports import ExportFormat
from tests.client.in_process import URL, AsyncInProcess, InProcess
from tests.server.http.contexts import Harness, basic, harness, header_of
from tests.server.http.v1.apis import problem, send
from tests.server.http.v1.callers import ANN, with_token
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET

HIDDEN = Permission.ADMIN_READ | Permission.ADMIN_WRITE


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    """A server with a public list, with hidden handles, private values and a tombstone."""
    with harness() as made:
        with made.registry.snapshot() as snapshot:
            known = snapshot.policy("12345")
        made.registry.do(SetPolicy("12345", replace(known, who_may_list=Audience.PUBLIC)), OPERATOR, "cli")

        def make(name: str, *values: Value, published: bool = True) -> None:
            made.registry.do(Create(Handle.parse(name), values, published=published), OPERATOR, "cli")

        for number in range(5):
            link = Value.text(1, "URL", f"https://example.org/{number}")
            make(f"12345/e{number}", link, Value(2, "EMAIL", b"=x@y.z", permissions=HIDDEN), published=number != 3)
        make("12345/e-gone", Value.text(1, "DESC", "-1"))
        made.registry.do(Tombstone(Handle.parse("12345/e-gone"), "gone", None), OPERATOR, "cli")
        made.registry.do(Delete(Handle.parse("12345/e4")), OPERATOR, "cli")
        yield made


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_RECORDS", 2)


def fetch(server: Harness, query: dict[str, str], headers: dict[str, str] | None = None) -> bytes:
    """Return a whole export, part by part, as the links say."""
    path, found, records = f"/exports?{urlencode(query)}", b"", 0
    while True:
        answer = send(server, "GET", path, headers=headers or {})
        assert answer.status == 200, answer
        found += bytes(answer.body)
        records += int(header_of(answer, "Perseid-Records") or "")
        link = header_of(answer, "Link")
        if link is None:
            return found
        path = link[1:].partition(">")[0].removeprefix("https://hdl.example.org/api/v1")


def expect(server: Harness, identity: Identity, selection: Selection, **how: Any) -> bytes:
    """Return the same export by the registry."""
    format_, at = how.pop("format", ExportFormat.JSONL), how.pop("at", None)
    writer = open_writer(format_, history=selection.history, **how)
    parts = export_parts(server.registry, identity, selection, writer, at)
    return b"".join([piece for part in parts for piece in part.content])


@pytest.mark.parametrize("format_", list(ExportFormat))
@pytest.mark.parametrize("query", [{"prefix": "12345"}, {"host": "example.org"}, {}, {"prefix": "12345", "at": "60"}])
def test_parts_are_the_export_of_the_registry(server: Harness, format_: ExportFormat, query: dict[str, str]) -> None:
    search = Search(prefix=query.get("prefix"), host=query.get("host"))
    for headers, identity in (({}, Anonymous()), (basic(), ANN)):
        found = fetch(server, {**query, "format": format_}, headers)
        assert found == expect(server, identity, Selection(search), format=format_, at=query.get("at"))
        assert found


def test_callers_get_what_they_can_see(server: Harness) -> None:
    public = [json.loads(line) for line in fetch(server, {"prefix": "12345", "type": "URL"}).splitlines()]
    names = ["12345/e0", "12345/e1", "12345/e2"]
    assert [each["handle"] for each in public if each["handle"] in names] == names
    assert b"x@y.z" not in fetch(server, {}) + fetch(server, {"history": "true"})
    mine = fetch(server, {"prefix": "12345", "type": "EMAIL"}, basic())
    assert b"12345/e3" in mine
    assert b"=x@y.z" in mine
    table = fetch(server, {"prefix": "12345", "format": "csv", "type": "EMAIL"}, basic())
    assert table.startswith(b"handle,state,")
    assert table.count(b"handle,state,") == 1
    assert b",'=x@y.z," in table
    assert b",=x@y.z," in fetch(server, {"prefix": "12345", "format": "csv", "raw": "true"}, basic())
    history = fetch(server, {"prefix": "12345", "history": "true"}, basic())
    assert b'{"handle":"12345/e4","state":"deleted"' in history


def test_invalid_requests_are_problems(server: Harness) -> None:
    assert problem(send(server, "GET", "/exports?prefix=99999"), "prefix-not-hosted")["status"] == 404
    assert problem(send(server, "GET", "/exports?history=true&format=csv"), "invalid-query")["status"] == 422
    assert problem(send(server, "GET", "/exports?raw=true"), "invalid-query")["status"] == 422
    assert problem(send(server, "GET", "/exports?at=x"), "invalid-query")["status"] == 422
    assert send(server, "GET", "/exports?format=pdf").status == 400
    assert problem(send(server, "GET", "/exports?prefix=0.NA"), "authentication-required")["status"] == 401
    narrow = with_token(server, "read")
    assert problem(send(server, "GET", "/exports?prefix=0.NA", headers=narrow), "permission-denied")["status"] == 403


def test_cursor_belongs_to_one_export_and_caller(server: Harness) -> None:
    link = header_of(send(server, "GET", "/exports?prefix=12345", headers=basic()), "Link") or ""
    cursor = link.partition("cursor=")[2].partition(">")[0]
    assert problem(send(server, "GET", f"/exports?prefix=12345&cursor={cursor}"), "invalid-cursor")["status"] == 400
    assert problem(send(server, "GET", f"/exports?cursor={cursor}", headers=basic()), "invalid-cursor")
    assert send(server, "GET", f"/exports?prefix=12345&cursor={cursor}", headers=basic()).status == 200


def test_client_resumes_and_sees_one_state(server: Harness) -> None:
    client = Client(make_options(URL, {"identity": ADMINISTRATOR, "secret": SECRET}), InProcess(server))
    whole = b"".join(client.export("12345"))
    assert whole == expect(server, ANN, Selection(Search(prefix="12345")))
    parts = client.export("12345").pages()
    first = next(parts)
    changed = Add(Handle.parse("12345/e2"), (Value.text(1, "URL", "https://changed.example/"),), overwrite=True)
    server.registry.do(changed, OPERATOR, "cli")
    assert first.next is not None
    rest = b"".join(client.export("12345", after=first.next))
    assert b"".join(first.content) + rest == whole
    assert b"".join(client.export("12345", at=first.as_of)) == whole
    assert b"changed.example" in b"".join(client.export("12345"))
    with pytest.raises(Refused, match="has no history"):
        list(client.export(format=ExportFormat.CSV, history=True))

    async def collect() -> bytes:
        options = make_options(URL, {"identity": ADMINISTRATOR, "secret": SECRET})
        async with AsyncClient(options, AsyncInProcess(server)) as other:
            return b"".join([piece async for piece in other.export("12345", at=first.as_of)])

    assert asyncio.run(collect()) == whole


def test_client_refuses_other_servers(server: Harness) -> None:
    client = Client(make_options(URL, {}), InProcess(server))
    request = replace(type(client).export.request(client), path="/names/rules")
    with pytest.raises(ProtocolError):
        client.send(request)

"""Public reads of the present come from the answers view, in the event loop, with the responses that the ledger gives.

Each request is answered twice: from the view while the ledger cannot be read, and from the ledger alone.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from perseid.ledger.errors import StorageFull
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.records import Delete
from perseid.registry.registry import Registry
from perseid.registry.snapshot import LedgerNeeded
from perseid.server.http.messages import Response
from perseid.wire.codes import ResponseCode
from tests.server.http.contexts import Harness
from tests.server.http.resolver.resolver_records import CORDRA_NAME, add_namespace, create, resolver, text
from tests.server.installations import OPERATOR

PILIN_NAME: Final = "102.100.272/0N8J991QH"
TEMPLATE: Final = (
    '<namespace><template delimiter="@"><foreach><if value="type" test="equals" expression="URL">'
    '<value data="${data}?${extension}"/></if></foreach></template></namespace>'
)


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with resolver() as made:
        made.hold_time()
        add_namespace(made, "4000", "exact")
        create(made, "4000/Ab", text(1, "URL", "https://exact.example/"))
        add_namespace(made, "5000", "free", Value.text(7, "HS_NAMESPACE", TEMPLATE))
        create(made, "5000/base", text(1, "URL", "https://base.example/"))
        create(made, "12345/loc", text(1, "10320/loc", '<l><location href="https://l.example/" country="gb"/></l>'))
        create(made, "12345/was-here", text(1, "URL", "https://was.example/"))
        made.registry.do(Delete(Handle.parse("12345/was-here")), OPERATOR, "cli")
        add_namespace(made, "102.100.272", "pilin")
        create(
            made,
            PILIN_NAME,
            text(1, "URL", "https://p.example/"),
            text(2, "102.100.TYPE/CREATOR", PILIN_NAME),
        )
        made.registry.do(Tombstone(Handle.parse("12345/multi"), "Withdrawn."), OPERATOR, "cli")
        yield made


@contextmanager
def without_ledger(server: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> Any:
        raise StorageFull("the ledger must not be read")

    with monkeypatch.context() as patch:
        patch.setattr(server.registry.ledger, "open_reader", refuse)
        yield


@contextmanager
def without_view(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(_: Registry) -> Any:
        raise LedgerNeeded

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "public_snapshot", refuse)
        yield


def ask(server: Harness, target: str, **how: Any) -> Response:
    context = server.context
    server.service.server = replace(context, random=random.Random(7).randbytes)
    try:
        return server.get(target, **how)
    finally:
        server.service.server = context


NAMES: Final = (
    *("12345/url", "12345/URL", "12345/multi", "12345/typed", "12345/nothing", "12345/partly", "12345/script"),
    *("12345/until", "12345/slash%2F..%2F%3F%23%25%20%C3%BC%2F", "12345/alias", "12345/alias-away", "12345/alias-lost"),
    *("12345/alias-gone", "12345/loop", "12345/chain0", "12345/chain5", "12345/gone", "12345/absent", "12345/loc"),
    *(CORDRA_NAME, f"{CORDRA_NAME}?x=1", "4000/Ab", "4000/aB", "5000/base@x", "5000/other@x", PILIN_NAME),
    *("0.NA/12345", "12345", "0.NA/12345.7", "hdl/x", "0.TYPE/URL"),
)
FORMS: Final = (
    *("/{}", "/hdl/{}", "/{}?noredirect", "/{}?auth", "/{}?urlappend=%2Fy", "/{}?locatt=country:gb", "/{}?type=URL"),
    *("/{}?index=2", "/{}?ignore_aliases", "/{}?action=showurls", "/{}?action=explain", "/{}?action=citation"),
    *("/api/handles/{}", "/api/handles/{}?pretty", "/api/handles/{}?type=URL&index=100", "/api/handles/{}?suggest"),
    *("/{}?redirectionHeaders", "/{}?action=metadata"),
)


@pytest.mark.parametrize("name", NAMES)
def test_present_is_read_from_the_view(server: Harness, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for form in FORMS:
        target = form.format(name)
        if "?" in name and "?" in form:
            target = form.replace("?", "&").format(name)
        for headers in ({}, {"Accept": "application/json"}, {"Accept": "text/html"}):
            server.kinds.clear()
            found = ask(server, target, headers=headers)
            # If no values match, there are links to the versions that have some.
            assert server.kinds == [] or found.code == ResponseCode.VALUES_NOT_FOUND, target
            with without_view(monkeypatch):
                assert ask(server, target, headers=headers) == found, target


@pytest.mark.parametrize(
    ("target", "status"),
    [
        *(("/12345/alias", 301), ("/12345/nothing", 200), ("/12345/url?noredirect", 200), ("/12345/multi", 410)),
        *(("/12345/absent", 404), ("/api/handles/12345/absent", 404), ("/5000/base@x", 302), ("/12345/loc", 302)),
        *((f"/{PILIN_NAME}?noredirect", 200), ("/12345/url?locatt=country:gb", 302)),
    ],
)
def test_present_is_read_while_the_ledger_cannot_be_opened(
    server: Harness, monkeypatch: pytest.MonkeyPatch, target: str, status: int
) -> None:
    with without_ledger(server, monkeypatch):
        assert ask(server, target).status == status


@pytest.mark.parametrize(
    "target",
    [
        "/12345/url?at=1",
        "/12345/was-here",
        "/api/handles/12345/was-here",
        "/12345/unpublished",
        "/12345/hidden",
    ],
)
def test_history_is_read_from_the_ledger(server: Harness, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    server.kinds.clear()
    found = ask(server, target)
    assert server.kinds
    with without_view(monkeypatch):
        assert ask(server, target) == found

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
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.views.answers_reader import AnswersSnapshot
from perseid.names.handle import CaseRule, Handle
from perseid.records.record import Value
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Add, Delete
from perseid.registry.identity import Anonymous
from perseid.registry.queries.history import get_history
from perseid.registry.queries.signposting import FORMATTERS
from perseid.registry.registry import Registry
from perseid.registry.snapshot import MAX_SHORT_BYTES, LedgerNeeded
from perseid.server.http.messages import Response
from perseid.server.http.resolver import signposting
from perseid.server.native.work import WorkKind
from tests.server.http.contexts import Harness, header_of
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
        create(made, "4000/Deleted", text(1, "URL", "https://deleted.example/"))
        made.registry.do(Delete(Handle.parse("4000/Deleted")), OPERATOR, "cli")
        change_case(made, "4000", CaseRule.INSENSITIVE)
        create(made, "4000/Folded", text(1, "URL", "https://folded.example/"))
        made.registry.do(Delete(Handle.parse("4000/Folded")), OPERATOR, "cli")
        change_case(made, "4000", CaseRule.SENSITIVE)
        add_namespace(made, "5000", "free", Value.text(7, "HS_NAMESPACE", TEMPLATE))
        create(made, "5000/base", text(1, "URL", "https://base.example/"))
        create(made, "12345/loc", text(1, "10320/loc", '<l><location href="https://l.example/" country="gb"/></l>'))
        create(made, "12345/was-here", text(1, "URL", "https://was.example/"))
        create(made, "12345/was-hidden", text(1, "URL", "https://hidden.example/"))
        made.registry.do(Unpublish(Handle.parse("12345/was-hidden")), OPERATOR, "cli")
        for name in ("12345/was-here", "12345/was-hidden"):
            made.registry.do(Delete(Handle.parse(name)), OPERATOR, "cli")
        create(made, "12345/large", text(1, "URL", "https://long.example/"), text(2, "DESC", "x" * MAX_SHORT_BYTES))
        add_namespace(made, "102.100.272", "pilin")
        create(
            made,
            PILIN_NAME,
            text(1, "URL", "https://p.example/"),
            text(2, "102.100.TYPE/CREATOR", PILIN_NAME),
        )
        made.registry.do(Tombstone(Handle.parse("12345/multi"), "Withdrawn."), OPERATOR, "cli")
        yield made


def change_case(server: Harness, prefix: str, case: CaseRule) -> None:
    with server.registry.snapshot() as snapshot:
        policy = replace(snapshot.policy(prefix), case=case)
    server.registry.do(SetPolicy(prefix, policy, change_case=True), OPERATOR, "cli")


@contextmanager
def without_ledger(server: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> Any:
        raise StorageFull("the ledger must not be read")

    with monkeypatch.context() as patch:
        patch.setattr(server.registry.ledger, "open_reader", refuse)
        yield


@contextmanager
def without_view(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(_: Registry, **__: object) -> Any:
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
    *("12345/was-here", "12345/WAS-HERE", "12345/was-hidden", "12345/unpublished", "12345/hidden"),
    *(CORDRA_NAME, f"{CORDRA_NAME}?x=1", "5000/base@x", "5000/other@x", PILIN_NAME),
    *("4000/Ab", "4000/aB", "4000/deleted"),
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
            is_tombstone_page = found.status == 410 and next(found.values("Content-Type")).startswith("text/html")
            assert server.kinds == [WorkKind.READ] * is_tombstone_page, f"{target}: the page names the last title"
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


@pytest.mark.parametrize("target", ["/12345/was-here", "/api/handles/12345/was-here"])
def test_response_for_a_deleted_handle_has_its_last_version(server: Harness, target: str) -> None:
    with server.registry.snapshot() as snapshot:
        last = get_history(snapshot, Anonymous(), Handle.parse("12345/was-here")).versions[1]
    links = [value for name, value in ask(server, target).headers if name == "Link"]
    assert any(f"at={last.seq}" in value and 'rel="last memento"' in value for value in links)


@pytest.mark.parametrize("target", ["/12345/url?at=1", "/4000/AB", "/4000/Deleted", "/4000/Folded", "/4000/FOLDED"])
def test_history_is_read_from_the_ledger(server: Harness, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    server.kinds.clear()
    found = ask(server, target)
    assert server.kinds
    with without_view(monkeypatch):
        assert ask(server, target) == found


@pytest.mark.parametrize("target", ["/12345/large", "/12345/large?noredirect", "/api/handles/12345/large"])
def test_long_record_is_read_from_the_view_in_a_thread(
    server: Harness, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    server.kinds.clear()
    with without_ledger(server, monkeypatch):
        found = ask(server, target)
    assert found.status < 400
    assert set(server.kinds) == {WorkKind.READ}
    with without_view(monkeypatch):
        assert ask(server, target) == found


def test_page_is_exact_after_changes_of_other_records(server: Harness) -> None:
    kind, status = Handle.parse("12345/kind"), "<namespace><status>inactive</status></namespace>"
    add_namespace(server, "7000", "free")
    create(server, "7000/x", text(1, str(kind), "data"))

    def page() -> str:
        return ask(server, "/7000/x?noredirect").body.decode()

    assert f'href="/{kind}"' not in page()
    create(server, str(kind), text(1, "DESC", "A type."))
    assert f'href="/{kind}"' in page()
    server.registry.do(Delete(kind), OPERATOR, "cli")
    assert f'href="/{kind}"' not in page()
    server.registry.do(Add(Handle.parse("0.NA/7000"), (Value.text(7, "HS_NAMESPACE", status),)), OPERATOR, "cli")
    assert "Handle Values for" not in page()


def test_second_page_of_a_namespace_reads_its_own_record_only(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        create(server, f"12345/{name}-page", text(1, "URL", "https://page.example/"), text(4, "EMAIL", "a@b.example"))
    read: list[bytes] = []
    find = AnswersSnapshot.find

    def note(view: AnswersSnapshot, key: bytes) -> object:
        read.append(key)
        return find(view, key)

    monkeypatch.setattr(AnswersSnapshot, "find", note)
    assert ask(server, "/12345/first-page?noredirect").status == 200
    assert len(read) > 1
    read.clear()
    assert ask(server, "/12345/second-page?noredirect").status == 200
    assert read == [record_key("12345/second-page")]


def test_links_for_machines_are_not_built_without_a_public_url(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []

    def note(*given: object) -> tuple[str, ...]:
        built.append(given)
        return ()

    monkeypatch.setattr(signposting, "format_link_headers", note)
    settings = server.context.settings
    try:
        ask(server, "/12345/url?noredirect")
        assert built
        built.clear()
        server.configure(public_url="")
        assert ask(server, "/12345/url?noredirect").status == 200
        assert not built
    finally:
        server.configure(public_url=settings.public_url)


@pytest.mark.parametrize("accept", [*FORMATTERS, "application/json", "text/html"])
def test_forms_and_conditions_are_read_from_the_view(
    server: Harness, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    with without_ledger(server, monkeypatch):
        for target in ("/12345/url?noredirect", "/api/handles/12345/url"):
            server.kinds.clear()
            headers = {"Accept": accept}
            found = ask(server, target, headers=headers)
            assert server.head(target, headers=headers).status == found.status == 200
            tag = header_of(found, "ETag") or ""
            assert ask(server, target, headers=headers | {"If-None-Match": tag}).status == 304
            assert server.kinds == [], target

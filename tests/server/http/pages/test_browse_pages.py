"""Front page, namespaces, the ledger, suggestions while typing and sitemaps: only what everybody can list."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace as replace_struct

from perseid.ledger.errors import StoreUnavailable
from perseid.ledger.log.reader import LogReader
from perseid.ledger.statistics import DAY, StatisticsStore
from perseid.names.handle import CaseRule, Handle
from perseid.records.encoding import to_iso
from perseid.records.record import Permission, Value
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.commands.records import Create, Delete
from perseid.registry.context import Context
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries import listing
from perseid.registry.queries.browse import NamespaceOverview, get_overview
from perseid.server.http.caches import KeptResults
from perseid.server.http.messages import Client, Request, Response
from perseid.server.http.pages import browse_pages
from perseid.server.http.pages.browse_pages import explain_policy
from perseid.server.http.resolver import resolver as resolver_module
from perseid.server.native.decisions import Busy
from perseid.server.native.work import Work
from tests.server.http.contexts import Harness, header_of, json_of
from tests.server.http.resolver.resolver_records import ADMIN, create, page_of, resolver, text
from tests.server.installations import OPERATOR

OPEN = "20.500.1"
CLOSED = "20.500.2"
ATTACK = "<script>alert(1)</script>"
PUBLIC = replace(PROFILES["free"], who_may_list=Audience.PUBLIC, purpose=f"Reports & {ATTACK}\nMore about them.")


@pytest.fixture
def server() -> Iterator[Harness]:
    with resolver() as made:
        for prefix, policy in ((OPEN, PUBLIC), (CLOSED, replace(PROFILES["free"], purpose="A secret plan."))):
            made.registry.do(AddNamespace(prefix, policy, (ADMIN,)), OPERATOR, "cli")
            for name in ("report-1", "report-2", "other", "withdrawn", "deleted", "hidden", "x<b>&"):
                create(made, f"{prefix}/{name}", text(1, "URL", "https://example.org/"))
            made.registry.do(Tombstone(Handle.parse(f"{prefix}/withdrawn"), "gone"), OPERATOR, "cli")
            made.registry.do(Delete(Handle.parse(f"{prefix}/deleted")), OPERATOR, "cli")
            hide(made, f"{prefix}/report-3")
        yield made


def change(server: Harness, name: str, *values: Value) -> None:
    server.registry.do(Create(Handle.parse(name), values, overwrite=True), OPERATOR, "cli")


def hide(server: Harness, name: str) -> None:
    server.registry.do(
        Create(Handle.parse(name), (text(1, "URL", "https://example.org/"),), published=False), OPERATOR, "cli"
    )


def suggested(server: Harness, typed: str) -> list[str]:
    return list(json_of(server.get(f"/suggest?q={quote(typed, safe='')}"))["suggestions"])


def test_front_page_lists_namespaces_that_everybody_can_list(server: Harness) -> None:
    page = page_of(server.get("/"))
    assert f"/namespaces/{OPEN}" in page.links
    assert f"Reports & {ATTACK}" in page.text
    assert "More about them" not in page.text, "a sentence each"
    assert CLOSED not in page.text
    assert "A secret plan." not in page.text


@pytest.mark.parametrize(
    ("path", "title", "summary"),
    [(f"/namespaces/{OPEN}", f"Namespace {OPEN}", f"Reports & {ATTACK}"), ("/", "hdl.example.org", None)],
)
def test_links_to_pages_have_a_title_and_a_summary(server: Harness, path: str, title: str, summary: str | None) -> None:
    elements = page_of(server.get(path)).elements
    found = {each.get("property") or each.get("name"): each.get("content") for tag, each in elements if tag == "meta"}
    assert (found["og:title"], found["og:url"]) == (title, f"https://hdl.example.org{path}")
    assert (found.get("og:description"), found.get("description")) == (summary, summary)


def test_no_namespace_is_listed_where_listing_is_disabled(server: Harness) -> None:
    server.registry.rules = replace(server.registry.rules, listing_allowed=False)
    assert OPEN not in page_of(server.get("/")).text
    assert suggested(server, f"{OPEN}/r") == []
    assert "not public" in page_of(server.get(f"/namespaces/{OPEN}")).text


@pytest.mark.parametrize(
    "typed",
    [
        f"{OPEN}/rep",
        f"hdl:{OPEN}/rep",
        f"https://hdl.handle.net/{OPEN}/rep",
        f"https://hdl.example.org/{OPEN}/rep",
        f"https://hdl.example.org/hdl/{OPEN}/REP",
    ],
)
def test_every_form_of_a_handle_is_completed(server: Harness, typed: str) -> None:
    """Unpublished handles look free."""
    assert suggested(server, typed) == [f"{OPEN}/report-1", f"{OPEN}/report-2"]


@pytest.mark.parametrize(
    "typed",
    [f"{CLOSED}/rep", f"{OPEN}/", OPEN, "", "/", "0.NA/20", "0.SITE/POLICY/2", f"{OPEN}/" + "x" * 3_000, "999/x"],
)
def test_nothing_else_is_suggested(server: Harness, typed: str) -> None:
    assert suggested(server, typed) == []


def test_handles_of_a_case_sensitive_namespace_are_completed_in_their_case(server: Harness) -> None:
    exact = replace(PUBLIC, case=CaseRule.SENSITIVE)
    server.registry.do(AddNamespace("20.500.3", exact, (ADMIN,)), OPERATOR, "cli")
    for name in ("map-a", "Map-b"):
        create(server, f"20.500.3/{name}", text(1, "URL", "https://example.org/"))
    assert suggested(server, "20.500.3/map") == ["20.500.3/map-a"]
    assert suggested(server, "20.500.3/Map") == ["20.500.3/Map-b"]


def test_deleted_and_withdrawn_handles_are_not_suggested(server: Harness) -> None:
    assert suggested(server, f"{OPEN}/w") == []
    assert suggested(server, f"{OPEN}/d") == []
    assert suggested(server, f"{OPEN}/x") == [f"{OPEN}/x<b>&"]


def test_page_of_a_listed_namespace_has_counts_and_changes(server: Harness) -> None:
    page = page_of(server.get(f"/namespaces/{OPEN}"))
    assert "Public identifiers6" in page.text.replace("identifiers 6", "identifiers6")
    assert "Everybody can list all identifiers." in page.text
    assert f"/{OPEN}/report-2?noredirect" in page.links
    assert "report-3" not in page.text, "unpublished"
    assert f"Reports & {ATTACK}" in page.text


def test_the_newest_changes_are_shown_whatever_was_before(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the log ends after a number of prefixes."""
    monkeypatch.setattr(listing, "MAX_PREFIXES", 1)
    for name in ("first", "last"):
        create(server, f"{OPEN}/{name}", text(1, "URL", "https://example.org/"))
    links = page_of(server.get(f"/namespaces/{OPEN}")).links
    assert [link for link in links if link.startswith(f"/{OPEN}/")] == [
        f"/{OPEN}/last?noredirect",
        f"/{OPEN}/first?noredirect",
    ]


def test_page_of_another_namespace_has_its_rules_only(server: Harness) -> None:
    page = page_of(server.get(f"/namespaces/{CLOSED}"))
    assert "Its administrators can list all identifiers." in page.text
    assert "Recent changes" not in page.text
    assert "report-1" not in page.text


@pytest.mark.parametrize("prefix", ["999", ATTACK])
def test_namespace_of_nobody_is_not_found(server: Harness, prefix: str) -> None:
    answer = server.get(f"/namespaces/{quote(prefix, safe='')}")
    assert answer.status == 404
    page = page_of(answer)
    assert f"This service has no namespace {prefix}." in page.text
    assert "/" in page.links


def test_changes_without_past_are_not_shown(server: Harness) -> None:
    server.registry.do(SetPolicy(OPEN, replace(PUBLIC, show_past=False)), OPERATOR, "cli")
    page = page_of(server.get(f"/namespaces/{OPEN}"))
    assert f"{OPEN}/deleted" not in page.text
    assert "Earlier versions are not public." in page.text


def test_growth_is_drawn_where_everybody_can_list_and_see_the_past(server: Harness, tmp_path: Path) -> None:
    assert "<svg" not in drawn(server, OPEN), "nothing is counted"
    store = server.registry.statistics = StatisticsStore(tmp_path)
    now = server.registry.now()
    with server.registry.snapshot() as snapshot:
        while store.count_changes(snapshot.reader, now):
            pass
    for prefix in (OPEN, CLOSED):  # as if most of them were published three days ago
        store.add(now - 3 * DAY, {(prefix, "published"): 2})
        store.add(now, {(prefix, "withdrawn"): 2})
    assert re.findall(r"<title>([-0-9]+: [0-9]+) ", drawn(server, OPEN)) == [
        f"{to_iso(now - days * DAY)[:10]}: {count}" for days, count in ((4, 0), (3, 2), (2, 2), (1, 2), (0, 5))
    ]
    assert "<svg" not in drawn(server, CLOSED)
    server.registry.do(SetPolicy(OPEN, replace(PUBLIC, show_past=False)), OPERATOR, "cli")
    assert "<svg" not in drawn(server, OPEN), "the number of earlier handles is the past"


def test_unreadable_statistics_do_not_prevent_the_page(server: Harness, tmp_path: Path) -> None:
    store = server.registry.statistics = StatisticsStore(tmp_path)
    store.path.write_bytes(b"damaged " * 1_000)
    page = drawn(server, OPEN)
    assert "Recent changes" in page
    assert "<svg" not in page


def test_a_namespace_is_read_once_for_all_who_wait_in_any_spelling(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.registry.do(AddNamespace("20.Maps", PUBLIC, (ADMIN,)), OPERATOR, "cli")
    read: list[str] = []

    def note(context: Context, prefix: str, store: StatisticsStore | None) -> NamespaceOverview:
        read.append(prefix)
        return get_overview(context, prefix, store)

    do = server.context.do

    async def wait(work: Work, client: Client) -> object:
        if client.host == "192.0.2.9":
            raise Busy
        await asyncio.sleep(0)
        return await do(work, client)

    async def request(*clients: str) -> list[int]:
        paths = (b"/namespaces/20.Maps", b"/namespaces/20.mAPS")
        requests = [
            Request("GET", paths[number % 2], [], b"", Client(host, secure=True)) for number, host in enumerate(clients)
        ]
        return [each.status for each in await asyncio.gather(*map(server.answer, requests))]

    monkeypatch.setattr(browse_pages, "get_overview", note)
    server.service.server = replace(server.context, do=wait)
    assert asyncio.run(request("192.0.2.9", "192.0.2.1", "192.0.2.2", "192.0.2.3")) == [503, 200, 200, 200]
    assert asyncio.run(request("192.0.2.9")) == [200], "it is kept"
    assert len(read) == 1


def test_a_client_that_comes_after_the_refusal_of_another_does_not_block_the_event_loop() -> None:
    async def refuse() -> object:
        raise Busy

    async def read() -> object:
        return "read"

    async def request() -> object:
        kept = KeptResults()
        first = asyncio.ensure_future(kept.get("x", 1.0, refuse))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(kept.get("x", 1.0, read))  # finds what was refused, but is not removed yet
        with pytest.raises(Busy):
            await first
        return await second

    assert asyncio.run(request()) == "read"


def drawn(server: Harness, prefix: str) -> str:
    server.context.slow_results.clear()
    answer = server.get(f"/namespaces/{prefix}")
    assert answer.status == 200
    return answer.body.decode()


def test_every_policy_is_explained() -> None:
    for policy in PROFILES.values():
        sentences = explain_policy(replace(policy, retired=True))
        assert all(re.fullmatch("[A-Z].*[.]", sentence) for sentence in sentences)
        assert "The namespace is retired: no new identifiers are created." in sentences
        assert ("Every record names" in " ".join(sentences)) is policy.authority


def test_ledger_page_shows_key_and_checkpoint(server: Harness) -> None:
    page = page_of(server.get("/ledger"))
    assert "perseid verify FILE --key KEY" in page.text
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.origin in page.text


def test_sitemaps_have_the_listed_handles(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_pages, "SITEMAP_URLS", 4)
    index = server.get("/sitemap.xml")
    assert header_of(index, "Content-Type") == "application/xml;charset=utf-8"
    parts = locations(index)
    assert len(parts) == 2
    found: list[str] = []
    for part in parts:
        url = urlsplit(part)
        found += locations(server.get(f"{url.path}?{url.query}"))
    assert len(found) == len(set(found)) == 6
    assert f"https://hdl.example.org/{OPEN}/report-1?noredirect" in found
    assert not any(CLOSED in each or "report-3" in each for each in found)
    assert server.get(urlsplit(found[0]).path).status in (302, 410)


def test_a_sitemap_costs_the_same_wherever_it_is(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts at a handle: nothing is skipped. A handle that is no longer there does not matter."""
    monkeypatch.setattr(browse_pages, "SITEMAP_URLS", 2)
    parts = locations(server.get("/sitemap.xml"))
    assert len(parts) == 3
    change(server, f"{OPEN}/report-0", text(1, "URL", "https://example.org/"))
    server.registry.do(Delete(Handle.parse(f"{OPEN}/report-1")), OPERATOR, "cli")
    skipped: list[int] = []
    names_in_states = LogReader.names_in_states

    def note(reader: LogReader, *arguments: Any) -> Any:
        skipped.append(arguments[4] if len(arguments) > 4 else 0)
        return names_in_states(reader, *arguments)

    monkeypatch.setattr(LogReader, "names_in_states", note)
    (start,) = [part for part in parts if part.endswith(f"start={quote(f'{OPEN}/report-1', safe='')}")]
    url = urlsplit(start)
    found = [unquote(urlsplit(each).path[1:]) for each in locations(server.get(f"{url.path}?{url.query}"))]
    assert found == [f"{OPEN}/report-2", f"{OPEN}/withdrawn"]
    assert skipped == [0]


def locations(answer: Response) -> list[str]:
    return [each.text or "" for each in ET.fromstring(answer.body).iter() if each.tag.endswith("loc")]


@pytest.mark.parametrize("start", [f"{CLOSED}/report-1", CLOSED, "", "/", "999/x", "0.NA/20", "0.SITE/POLICY/2"])
def test_sitemaps_of_other_prefixes_do_not_exist(server: Harness, start: str) -> None:
    assert server.get(f"/sitemap.xml?start={quote(start, safe='')}").status == 404
    server.configure(public_url="")
    assert server.get("/sitemap.xml").status == 404


# History, feed and QR code


def test_history_shows_public_versions_and_differences(server: Harness) -> None:
    name = f"{OPEN}/report-1"
    secret = Value(2, "NOTE", b"private", permissions=Permission.ADMIN_READ)
    change(server, name, text(1, "URL", "https://example.org/new"), secret, text(3, "DESC", ATTACK))
    answer = server.get(f"/{name}?action=history")
    page = page_of(answer)
    assert "https://example.org/new" in page.text
    assert ATTACK in page.text
    assert "private" not in page.text
    assert b"https://<wbr>example.org/<wbr>new" in answer.body, "it does not break in a word"
    removed = [tag for tag, _ in page.elements if tag == "del"]
    assert len(removed) == 1
    (first, second) = [link for link in page.links if "at=" in link]
    assert "https://example.org/new" in page_of(server.get(first)).text
    assert "https://example.org/new" not in page_of(server.get(second)).text
    (number,) = re.findall("at=([0-9]+)", first)
    earlier = page_of(server.get(f"/{name}?action=history&before={number}"))
    assert len([link for link in earlier.links if "at=" in link]) == 1
    assert f"/{name}?action=history" in earlier.links, "back to the newest"
    assert f"/{name}?action=history" not in page.links
    assert server.get(f"/{name}?action=history&before=x").status == 400


def test_feed_is_valid_atom(server: Harness) -> None:
    name = f"{OPEN}/report-1"
    change(server, name, text(1, "URL", "https://example.org/"), text(2, "TITLE", f"{ATTACK}&\x01"))
    answer = server.get(f"/{name}?action=feed")
    assert header_of(answer, "Content-Type") == "application/atom+xml;charset=utf-8"
    feed = ET.fromstring(answer.body)
    atom = "{http://www.w3.org/2005/Atom}"
    assert feed.tag == f"{atom}feed"
    assert ATTACK in (feed.findtext(f"{atom}title") or "")
    assert feed.findtext(f"{atom}id") == f"https://hdl.example.org/{name}"
    entries = feed.findall(f"{atom}entry")
    assert [each.findtext(f"{atom}title") for each in entries] == ["Changed", "Created"]
    assert entries[0].findtext(f"{atom}summary") == "1 value added"
    ids = [each.findtext(f"{atom}id") for each in entries]
    assert len(set(ids)) == 2
    server.configure(public_url="")
    feed = ET.fromstring(server.get(f"/{name}?action=feed").body)
    assert feed.findtext(f"{atom}id") == f"hdl:{name}"


def test_history_is_hidden_where_the_policy_hides_the_past(server: Harness) -> None:
    name = f"{OPEN}/report-1"
    change(server, name, text(1, "URL", "https://example.org/new"))
    server.registry.do(SetPolicy(OPEN, replace(PUBLIC, show_past=False)), OPERATOR, "cli")
    page = page_of(server.get(f"/{name}?action=history"))
    assert len([link for link in page.links if "at=" in link]) == 1
    assert "Earlier versions are not shown." in page.text


def test_qr_code_of_an_identifier(server: Harness) -> None:
    answer = server.get(f"/{OPEN}/report-1?action=qr")
    assert header_of(answer, "Content-Type") == "image/svg+xml"
    assert ET.fromstring(answer.body).tag == "{http://www.w3.org/2000/svg}svg"
    assert "default-src 'none'" in (header_of(answer, "Content-Security-Policy") or "")


def test_configured_type_is_the_title(server: Harness) -> None:
    create(server, f"{OPEN}/titled", text(1, "TITLE", "Usual"), text(2, "10320/label", "Preferred"))
    assert "Usual" in page_of(server.get(f"/{OPEN}/titled")).title
    service = replace_struct(server.context.settings.service, title_types=("10320/LABEL", "TITLE"))
    server.configure(service=service)
    assert page_of(server.get(f"/{OPEN}/titled")).title.startswith("Preferred – ")


def test_tombstone_page_says_what_it_was_where_the_past_is_public(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.registry.do(SetPolicy(CLOSED, replace(PROFILES["free"], show_past=False)), OPERATOR, "cli")
    for prefix in (OPEN, CLOSED):
        name = f"{prefix}/report-1"
        change(server, name, text(1, "URL", "https://example.org/"), text(2, "TITLE", ATTACK))
        for reason in ("lost", f"{ATTACK}: lost at sea", "lost at sea"):
            server.registry.do(Tombstone(Handle.parse(name), reason), OPERATOR, "cli")
            is_shown = "What it was" in page_of(server.get(f"/{name}")).text
            assert is_shown is (prefix == OPEN and ATTACK not in reason), "the reason says it already"
        answer = server.get(f"/{name}")
        page = page_of(answer)
        assert (answer.status, answer.name, "lost at sea" in page.text) == (410, name, True)
        assert (f"What it was{ATTACK}" in page.text.replace("was ", "was")) is (prefix == OPEN)
    monkeypatch.setattr(resolver_module, "find_last_title", Mock(side_effect=StoreUnavailable))
    answer = server.get(f"/{OPEN}/report-1")
    assert (answer.status, ATTACK in page_of(answer).text) == (410, False)

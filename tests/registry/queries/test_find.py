"""Search: the index returns the same as a full scan, limited to what the caller can see, in pages."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import Append, Appended
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.records import Home
from perseid.registry.identity import Identity
from perseid.registry.policy.policy import Audience
from perseid.registry.queries.find import Search, SearchPage, SearchResult, find
from perseid.registry.queries.listing import list_handles
from perseid.registry.queries.paging import CursorCodec
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    LISTER,
    PREFIX_ADMIN,
    STRANGER,
    hidden,
    policy,
    put,
    reserve,
    rules,
    value,
)
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, registry_in_memory

CLOSED, OPEN, OWNED = "12345", "54321", "777"
"""One namespace is listed by LISTER, one by everybody, one tells owners from managers and creators."""
PRIVATE = Permission(0x0C)
EVERYBODY: tuple[Identity, ...] = (OPERATOR, LISTER, ANN, STRANGER, NOBODY)


def prepare(registry: Registry) -> None:
    add_namespace(registry, CLOSED, policy(), PREFIX_ADMIN)
    add_namespace(registry, OPEN, policy(who_may_list=Audience.PUBLIC))
    party = {"authority": True, "default_creator": f"{OWNED}/maker"}
    add_namespace(registry, OWNED, policy(who_may_list=Audience.PUBLIC, owner_type="OWNER", **party))


@pytest.fixture
def site() -> Iterator[Registry]:
    with registry_in_memory(rules=rules()) as made:
        prepare(made)
        yield made


def pages(registry: Registry, identity: Identity, search: Search, limit: int = 100) -> Iterator[SearchPage]:
    after: str | None = None
    while True:
        with registry.snapshot() as snapshot:
            page = find(snapshot, identity, search, after, limit)
        yield page
        if page.following is None:
            return
        assert page.following != after
        after = page.following


def every(registry: Registry, identity: Identity, search: Search, limit: int = 100) -> list[SearchResult]:
    return [each for page in pages(registry, identity, search, limit) for each in page.items]


def names(registry: Registry, identity: Identity = OPERATOR, limit: int = 100, **asked: Any) -> list[str]:
    return [each.handle for each in every(registry, identity, Search(**asked), limit)]


# Against a full scan


hosts = st.sampled_from(["a.org", "b.a.org", "ba.org", "org", "x.b.a.org"])
paths = st.sampled_from(["/", "/i", "/i/1", "/i/10", "/j?i", "/" + "long/" * 120 + "1", "/" + "long/" * 120 + "2"])
urls = st.builds(
    lambda scheme, host, path: f"{scheme}://{host}{path}", st.sampled_from(["http", "https"]), hosts, paths
)
texts = urls | st.sampled_from(["urn:isbn:1", "mailto:a@a.org", "", "12345/ann", "777/maker", "777/owner", "same"])
TITLE_TYPES = ("TITLE", "DESC", "12345/Title", "dc.title")
types = st.sampled_from(
    ["URL", "url", "URL.x", "EMAIL", "EMAIL.work", "OWNER", "TITLE.x", policy().creator_type, *TITLE_TYPES]
)
parties = st.sampled_from(["12345/ann", "12345/lister", "0.NA/12345", "777/owner"])
titles = st.sampled_from(["A Map of Åre", "map, MAPS & atlas", "Same MAP", "Ann's maps", "!", "é", " ", ""])
permissions = st.sampled_from([Permission(0x0E), Permission(0x0E), PRIVATE, Permission(0x04)])
plain = st.builds(
    lambda type_, text, perms: Value(1, type_, text.encode(), permissions=perms), types, texts, permissions
)
titled = st.builds(
    lambda type_, text, perms: Value(1, type_, text.encode(), permissions=perms),
    st.sampled_from(TITLE_TYPES),
    titles,
    permissions,
)
admins = st.builds(
    lambda party, perms: Value(1, "HS_ADMIN", Admin(ValueRef(300, party)).to_bytes(), permissions=perms),
    parties,
    permissions,
)
odd = st.sampled_from([Value(1, "HS_ADMIN", b"odd"), Value(1, "HS_SECKEY", b"same", permissions=PRIVATE)])
records = st.lists(plain | plain | titled | admins | odd, max_size=5).map(
    lambda found: tuple([replace(each, index=number) for number, each in enumerate(found, 1)])
)
states = st.sampled_from([State.NORMAL, State.NORMAL, State.NORMAL, State.UNPUBLISHED, State.TOMBSTONE, State.ABSENT])
changes = st.tuples(st.sampled_from([CLOSED, OPEN, OWNED]), st.sampled_from("abcdefgh"), records, states)
LONG = "long/" * 120
globs = urls | st.sampled_from(
    ["*", "*1", "http://*", "*://a.org/*", "*://*.a.org/i/*", "https://*/i/1*", "https://a.org/i*", "http*://org/"]
)
globs |= st.sampled_from(
    ["*isbn*", "urn:*", "https://a.org*", "http://a.org/*1", f"*://*/{LONG}*", f"https://a.org/{LONG}*"]
)
searches = st.builds(
    Search,
    url=st.none() | st.none() | globs,
    host=st.none() | st.none() | hosts,
    path=st.none() | st.none() | paths,
    type=st.none()
    | st.none()
    | st.sampled_from(["URL", "URL.", "URL.x", "EMAIL.", "email", "HS_ADMIN", "HS_ADMIN.", "OWNER"]),
    value=st.none() | st.none() | texts.map(str.encode),
    owner=st.none() | st.none() | parties | st.just("777/maker"),
    prefix=st.none() | st.none() | st.just(OPEN),
    since=st.none() | st.none() | st.integers(0, 60),
    words=st.none()
    | st.none()
    | st.sampled_from(["map", "MAPS", "of ma", "ÅRE map", "same", "atlas ma", "ma", "none"]),
).filter(lambda search: search != Search())


def whole_scan(registry: Registry, identity: Identity, search: Search) -> set[tuple[str, tuple[int, ...]]]:
    """Return what `find` should return, by an independent scan of every record."""
    found = set()
    with registry.snapshot() as snapshot:
        for entry in snapshot.reader.names(b"", b"\xff", 100_000):
            prefix = entry.handle.partition("/")[0]
            administers = identity is OPERATOR or (identity is LISTER and prefix == CLOSED)
            is_seen = (
                administers
                or is_reader(identity, entry)
                or (prefix in (OPEN, OWNED) and entry.state in (State.NORMAL, State.TOMBSTONE))
            )
            if prefix == "0.SITE" or entry.state is State.ABSENT or not is_seen:
                continue
            met = meets(entry, search, [each for each in entry.record() if reads(identity, entry, each)], prefix)
            if met is not None:
                found.add((entry.handle, met))
    return found


def reads(identity: Identity, entry: Entry, one: Value) -> bool:
    if one.is_public or not one.permissions & Permission.ADMIN_READ:
        return one.is_public
    return identity is OPERATOR or is_reader(identity, entry)


def is_reader(identity: Identity, entry: Entry) -> bool:
    named = [Admin.from_bytes(each.data) for each in entry.record() if each.type == "HS_ADMIN" and each.data != b"odd"]
    readers = [each.administrator for each in named if AdminPermission.READ_VALUE in each.permissions]
    return any(str(identity) == str(each) for each in readers)


def meets(entry: Entry, search: Search, values: list[Value], prefix: str) -> tuple[int, ...] | None:
    if search.prefix not in (None, prefix) or entry.seq <= (-1 if search.since is None else search.since):
        return None
    if search.owner is not None and search.owner not in owners(values, prefix):
        return None
    named = () if search.words is None else tuple([each.index for each in titles_with(search.words, values)])
    if search.words is not None and not named:
        return None
    if (search.url, search.host, search.path, search.type, search.value) == (None,) * 5:
        return named
    return tuple([each.index for each in values if is_met(each, search)]) or None


def titles_with(words: str, values: list[Value]) -> list[Value]:
    """Titles, or descriptions if no title is public, with words that start with all of these."""
    known = [each for each in values if not each.type.startswith("HS_") and each.data.strip()]
    found = [each for each in known if each.type.upper() in ("TITLE", "12345/TITLE", "DC.TITLE")]
    if not any(each.is_public for each in found):
        found += [each for each in known if each.type == "DESC"]
    return [
        each
        for each in found
        if all(any(word.startswith(one) for word in plain_words(each.data.decode())) for one in plain_words(words))
    ]


def plain_words(text: str) -> list[str]:
    return [word for word in re.split("[^a-zé0-9]+", text.lower().replace("å", "a")) if len(word) > 1]


def owners(values: list[Value], prefix: str) -> set[str]:
    administrators = [Admin.from_bytes(each.data) for each in values if each.type == "HS_ADMIN" and each.data != b"odd"]
    if prefix != OWNED:
        return {each.administrator.handle for each in administrators}
    named = {
        each.data.decode() for each in values if each.type == "OWNER" and re.fullmatch(rb"[^/:]+/[^/]+", each.data)
    }
    makers = {each.data.decode() for each in values if each.type == policy().creator_type}
    return named or makers


def is_met(one: Value, search: Search) -> bool:
    text, type_ = one.data.decode("latin-1"), one.type.upper()
    if search.value is not None and (search.value != one.data or type_ in ("HS_ADMIN", "HS_SECKEY")):
        return False
    if search.type is not None:
        wanted = search.type.upper()
        if type_ != wanted.rstrip(".") and not (wanted.endswith(".") and type_.startswith(wanted)):
            return False
    if (search.url, search.host, search.path) == (None,) * 3:
        return True
    if type_.partition(".")[0] != "URL":
        return False
    parts = re.fullmatch("(https?)://([^/]*)(/.*)", text)
    if search.host is not None and (parts is None or not f".{parts[2]}".endswith(f".{search.host}")):
        return False
    if search.path is not None and (parts is None or not parts[3].startswith(search.path)):
        return False
    return search.url is None or matches(search.url, text)


def matches(glob: str, text: str) -> bool:
    scheme, slashes, rest = glob.partition("://")
    host, slash, path = rest.partition("/")
    if not slashes:
        return re.fullmatch(re.escape(glob).replace(r"\*", ".*"), text) is not None
    behind = re.escape(slash + path).replace(r"\*", ".*") or (".*" if host.endswith("*") else "/")
    words = [re.escape(part).replace(r"\*", "[^/]*") for part in (scheme, host)]
    return re.fullmatch(f"{words[0]}://{words[1]}{behind}", text) is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_s4_s5_results_match_full_scan(registry: Registry, data: st.DataObject) -> None:
    """On both databases, for all callers and combinations of criteria (S4, S5)."""
    with registry.ledger.open_reader() as reader:
        is_new = reader.latest(record_key(f"0.NA/{OWNED}")) == 0
    if is_new:
        prepare(registry)
    for prefix, suffix, values, state in data.draw(st.lists(changes, max_size=4)):
        draft = Draft(Action.UPDATE, state, f"{prefix}/{suffix}", "cli", "local:a", values=() if not state else values)
        assert isinstance(registry.ledger.append(Append(draft))[0], Appended)
    for search in data.draw(st.lists(searches, min_size=1, max_size=4)):
        identity = data.draw(st.sampled_from(EVERYBODY))
        asked = search if identity in (OPERATOR, LISTER) or search.prefix != CLOSED else replace(search, prefix=None)
        found = every(registry, identity, asked, data.draw(st.sampled_from([1, 2, 100])))
        told = [(each.handle, tuple([one.index for one in each.values])) for each in found]
        assert len(set(told)) == len(told), "a name was told twice"
        assert set(told) == whole_scan(registry, identity, asked), (asked, identity)


# Who sees what


def test_private_values_match_only_with_permission(site: Registry) -> None:
    put(site, ADMIN, hidden(1, "https://secret.example/1"), name="54321/a")
    put(site, hidden(2, "somebody@example.org", "EMAIL"), admin(100, "300:54321/other"), name="54321/b")
    questions: list[dict[str, Any]] = [{"host": "secret.example"}, {"path": "/1"}]
    for asked in (*questions, {"url": "https://secret.example/*"}, {"url": "*secret*"}):
        assert names(site, OPERATOR, **asked) == names(site, ANN, **asked) == ["54321/a"]
        assert names(site, STRANGER, **asked) == names(site, NOBODY, **asked) == []
    assert names(site, ANN, value=b"somebody@example.org") == names(site, ANN, type="EMAIL") == []
    assert names(site, OPERATOR, value=b"somebody@example.org") == ["54321/b"]


def test_secrets_are_never_found(site: Registry) -> None:
    put(site, Value(300, "HS_SECKEY", b"hush", permissions=PRIVATE), name="12345/a")
    assert names(site, type="HS_SECKEY") == ["12345/a"]
    assert names(site, value=b"hush") == []


def test_cursors_reveal_nothing(site: Registry) -> None:
    for number in range(3):
        put(site, hidden(1, f"https://secret.example/{number}"), name=f"54321/a{number}")
    put(site, value(1, "https://secret.example/9"), value(2, "https://secret.example/10"), name="54321/z")
    put(site, value(1, "https://secret.example/99"), name="54321/zz")
    page = next(pages(site, NOBODY, Search(host="secret.example"), limit=1))
    assert [each.handle for each in page.items] == ["54321/z"]
    assert page.following is not None
    assert re.fullmatch(r"[0-9a-f]{64}", page.following)
    assert names(site, NOBODY, 1, host="secret.example") == ["54321/z", "54321/zz"]


def accepts(registry: Registry, search: Search, after: str) -> bool:
    with registry.snapshot() as snapshot:
        try:
            find(snapshot, NOBODY, search, after)
        except Refused:
            return False
    return True


def test_forged_cursors_reveal_nothing(site: Registry) -> None:
    """Otherwise private values, including those of the history, could be guessed byte by byte."""
    put(site, hidden(1, "https://secret.example/abc"), name="12345/a")
    put(site, hidden(1, "someone@example.org", "EMAIL"), name="54321/b")
    last = put(site, name="54321/b")
    reserve(site, name="54321/c")
    guesses = [Search(url="https://secret.example/a*"), Search(host="secret.example"), Search(type="EMAIL")]
    for search in (*guesses, Search(value=b"someone@example.org"), Search(prefix="54321")):
        told = [f"{seq}{which}" for seq in range(1, last + 2) for which in ("", ".0", ".1")]
        assert [each for each in told if accepts(site, search, each)] == []


def test_cursor_is_bound_to_its_search(site: Registry) -> None:
    for number in range(3):
        put(site, value(1, f"https://example.org/{number}"), name=f"54321/{number}")
    search = Search(host="example.org")
    place = next(pages(site, NOBODY, search, limit=1)).following
    assert place is not None
    assert accepts(site, search, place)
    assert not accepts(site, Search(host="org"), place)
    assert not accepts(site, replace(search, type="URL"), place)
    for at in range(0, 64, 7):
        assert not accepts(site, search, place[:at] + ("1" if place[at] == "0" else "0") + place[at + 1 :])
    assert not accepts(site, search, place.upper())


def test_private_values_affect_neither_order_nor_paging(site: Registry) -> None:
    put(site, hidden(1, "https://example.org/1"), value(2, "https://example.org/8"), ADMIN, name="54321/a")
    put(site, value(1, "https://example.org/5"), name="54321/b")
    searches: list[dict[str, Any]] = [{"host": "example.org"}, {"url": "*example*"}, {"type": "URL"}]
    for asked in searches:
        assert names(site, NOBODY, **asked) == names(site, NOBODY, 1, **asked) == ["54321/b", "54321/a"]
        assert names(site, ANN, **asked) == names(site, ANN, 1, **asked) == ["54321/a", "54321/b"]
    put(site, hidden(1, "https://example.org/9"), name="54321/c")
    put(site, value(1, "https://example.org/9"), name="12345/d")
    for asked in (*searches, {"path": "/"}):
        with site.snapshot() as snapshot:
            assert find(snapshot, NOBODY, Search(**asked), None, 2).following is None
    with site.snapshot() as snapshot:
        assert find(snapshot, NOBODY, Search(path="/8"), None, 1).following is None


def test_private_owner_is_not_revealed(site: Registry) -> None:
    private = replace(admin(100, "300:777/owner"), permissions=PRIVATE)
    put(site, value(1, "777/owner", type_="OWNER"), name="777/a")
    put(site, value(1, "777/owner", type_="OWNER"), private, name="777/b")
    assert names(site, NOBODY, owner="777/owner") == ["777/a", "777/b"]


def test_search_requires_list_permission(site: Registry) -> None:
    put(site, ADMIN, value(1, "https://example.org/1"), name="12345/a")
    reserve(site, ADMIN, value(1, "https://example.org/2"), name="12345/b")
    put(site, ADMIN, value(1, "https://example.org/3"), name="54321/c")
    reserve(site, ADMIN, value(1, "https://example.org/4"), name="54321/d")
    assert names(site, OPERATOR, host="example.org") == ["12345/a", "12345/b", "54321/c", "54321/d"]
    assert names(site, LISTER, host="example.org") == ["12345/a", "12345/b", "54321/c"]
    assert names(site, STRANGER, host="example.org") == names(site, NOBODY, host="example.org") == ["54321/c"]
    # The owner of the records finds them.
    assert names(site, ANN, host="example.org") == ["12345/a", "12345/b", "54321/c", "54321/d"]
    assert names(site, ANN, prefix="12345", owner="12345/ann") == ["12345/a", "12345/b"]
    assert names(site, STRANGER, prefix="12345", owner="12345/ann") == []
    with site.snapshot() as snapshot, pytest.raises(Refused) as refused:
        find(snapshot, ANN, Search(prefix="12345", host="example.org"))
    assert refused.value.code is ResponseCode.INVALID_ADMIN


def test_search_is_disabled_with_listing() -> None:
    with registry_in_memory(rules=rules(listing_allowed=False)) as made:
        prepare(made)
        with made.snapshot() as snapshot, pytest.raises(Refused, match="Listing handles is disabled"):
            find(snapshot, LISTER, Search(host="example.org"))
        assert names(made, OPERATOR, prefix="12345") == []


def test_prefixes_no_longer_homed_are_not_searched(site: Registry) -> None:
    """They do not resolve either."""
    put(site, value(1, "https://example.org/"), name=f"{OPEN}/a")
    put(site, value(1, "https://example.org/"), name=f"{CLOSED}/a")
    assert names(site, LISTER, host="example.org") == [f"{OPEN}/a", f"{CLOSED}/a"]
    for prefix in (OPEN, CLOSED):
        site.do(Home(f"0.NA/{prefix}", unhome=True), OPERATOR, "cli")
    for identity in (NOBODY, LISTER):
        assert names(site, identity, host="example.org") == names(site, identity, prefix=OPEN) == []
    assert names(site, OPERATOR, host="example.org") == [f"{OPEN}/a", f"{CLOSED}/a"]


def test_invalid_cursor_is_printed_escaped(site: Registry) -> None:
    with site.snapshot() as snapshot, pytest.raises(Refused, match=r"Cursor 'a\\x1b"):
        find(snapshot, OPERATOR, Search(type="URL"), "a\x1b[31m")


def test_search_page_limits_prefixes(site: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        site.do(Home(f"0.NA/9{number}"), OPERATOR, "cli")
        put(site, value(1, "https://example.org/"), name=f"9{number}/a")
    put(site, value(1, "https://example.org/"), name="54321/a")
    monkeypatch.setattr("perseid.registry.queries.listing.MAX_PREFIXES", 2)
    assert names(site, NOBODY, host="example.org") == ["54321/a"]
    assert len(list(pages(site, NOBODY, Search(host="example.org")))) == 3


# Pages


def test_results_are_unlimited_and_pages_skip_a_limited_number(site: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """All records are found, however many (S5)."""
    monkeypatch.setattr("perseid.registry.queries.find.MAX_SCANNED", 10)
    monkeypatch.setattr("perseid.registry.queries.find._MIN_BATCH", 3)
    drafts = [
        Draft(Action.CREATE, State.NORMAL, f"54321/{number:03}", "cli", "local:a", values=(url_and_type(number),))
        for number in range(95)
    ]
    site.ledger.append(*map(Append, drafts))
    for asked in (
        Search(host="example.org"),
        Search(type="DESC"),
        Search(prefix="54321"),
        Search(since=8),
        Search(url="*"),
    ):
        for limit in (4, 7, 100):
            found = [each.handle for each in every(site, OPERATOR, asked, limit)]
            own = [name for name in found if name.startswith("54321/")]
            assert own == sorted(set(own))
            assert len(own) == (47 if asked.type else 48 if asked.host or asked.url else 95)
    narrow = Search(prefix="54321", type="DESC", value=b"7")
    assert [len(page.items) for page in pages(site, OPERATOR, replace(narrow, value=None), 3)].count(3) >= 15
    with site.snapshot() as snapshot:
        assert list_handles(snapshot, OPERATOR, "54321", 0, 100).items[-1].handle == "54321/094"


def url_and_type(number: int) -> Value:
    return Value.text(1, "DESC", "7") if number % 2 else Value.text(1, "URL", f"https://example.org/{number:03}")


def test_record_with_many_keys_is_found_once(site: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.registry.queries.find.MAX_SCANNED", 5)
    put(site, *[value(number, f"https://example.org/{number}") for number in range(1, 40)], name="54321/a")
    put(site, value(1, "https://example.org/x"), name="54321/b")
    for limit in (1, 2, 100):
        assert names(site, OPERATOR, limit, host="example.org") == ["54321/a", "54321/b"]
        assert names(site, OPERATOR, limit, url="*example*") == ["54321/a", "54321/b"]


def test_pattern_without_fixed_start_scans_for_limited_time(site: Registry) -> None:
    for number in range(30):
        put(
            site,
            value(1, f"https://example.org/{number}.{'pdf' if number % 10 == 3 else 'txt'}"),
            name=f"54321/{number}",
        )
    ticks = iter(range(1_000_000))
    after, found, scanned = None, [], 0
    while scanned == 0 or after is not None:
        with site.snapshot() as snapshot:
            page = find(
                snapshot, OPERATOR, Search(url="*.pdf"), after, 100, seconds=7, clock=lambda: float(next(ticks))
            )
        assert page.scans
        found += [each.handle for each in page.items]
        after, scanned = page.following, scanned + 1
    assert found == ["54321/13", "54321/23", "54321/3"]
    assert scanned > 2
    assert not next(pages(site, OPERATOR, Search(url="https://example.org/*.pdf"))).scans
    for type_, scans in (("URL", True), ("url.", True), ("10320/loc", False)):
        assert next(pages(site, OPERATOR, Search(url="*.pdf", type=type_))).scans is scans, "all records have a URL"


def test_unknown_cursor_is_refused(site: Registry) -> None:
    seq = put(site, value(1, "https://example.org/"), name="54321/a")
    made_up = ("x", "1.x", "-1", "", "9" * 30, "99999", "é" * 32, "0" * 64, "g" * 64, "1", f"{seq}.0")
    for asked in (Search(host="example.org"), Search(prefix="54321"), Search(since=0)):
        with site.snapshot() as snapshot:
            of_another_history = CursorCodec(snapshot.reader, asked).encode(10_000)
        for after in (*made_up, of_another_history):
            with site.snapshot() as snapshot, pytest.raises(Refused, match="is not valid for this search"):
                find(snapshot, OPERATOR, asked, after)


def test_words_of_private_replaced_and_redacted_titles_are_not_found(site: Registry) -> None:
    first = put(site, value(1, "The Whole Atlas", type_="TITLE"), name="54321/a")
    put(site, hidden(1, "Secret Atlas", "TITLE"), value(2, "Public Map", type_="DESC"), name="54321/b")
    assert names(site, OPERATOR, words="atlas") == ["54321/a", "54321/b"]
    assert names(site, NOBODY, words="ATL who") == names(site, NOBODY, words="atlas") == ["54321/a"]
    assert names(site, NOBODY, words="map") == names(site, OPERATOR, words="map") == ["54321/b"]
    put(site, value(1, "New", type_="TITLE"), name="54321/a")
    site.do(Redact(Handle.parse("54321/a"), 1, first, "personal"), OPERATOR, "cli")
    assert names(site, NOBODY, words="atlas") == []
    assert names(site, OPERATOR, words="whole") == []
    (found,) = every(site, NOBODY, Search(words="ne"))
    assert [each.data for each in found.values] == [b"New"]


def test_words_and_criteria_about_values_select_values_of_titled_records(site: Registry) -> None:
    put(site, value(1, "https://a.example/1"), value(2, "Map of Venice", type_="TITLE"), name="54321/a")
    put(site, value(1, "https://a.example/2"), value(2, "Map of Rome", type_="TITLE"), name="54321/b")
    (found,) = every(site, OPERATOR, Search(words="venice map", host="a.example"))
    assert (found.handle, [each.index for each in found.values]) == ("54321/a", [1])
    assert names(site, words="venice rome") == []


def test_rare_word_is_found_among_many_records_with_the_others(site: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of the rarest word is read, whatever the order, and so it stays for all pages."""
    for number in range(20):
        put(site, value(1, f"Common words, number {100 + number}", type_="TITLE"), name=f"54321/{number:02}")
    monkeypatch.setattr("perseid.registry.queries.find.MAX_SCANNED", 5)
    for words in ("common words 107", "107 words common", "107 107 number"):
        (page,) = pages(site, OPERATOR, Search(words=words), limit=1)
        assert [each.handle for each in page.items] == ["54321/07"]
    monkeypatch.undo()
    search = Search(words="words 11")
    first = next(pages(site, OPERATOR, search, limit=4))
    for number in range(20, 40):
        put(site, value(1, f"11{number}", type_="TITLE"), name=f"54321/{number:02}")  # now the other word is rarer
    with site.snapshot() as snapshot:
        rest = find(snapshot, OPERATOR, search, first.following)
    assert [each.handle for each in (*first.items, *rest.items)] == [f"54321/{number}" for number in range(10, 20)]


def test_cursor_at_redacted_value_is_refused(site: Registry) -> None:
    first = put(site, value(1, "https://example.org/a"), name="54321/a")
    put(site, value(1, "https://example.org/b"), name="54321/b")
    search = Search(host="example.org")
    page = next(pages(site, OPERATOR, search, limit=1))
    put(site, name="54321/a")
    site.do(Redact(Handle.parse("54321/a"), 1, first, "personal"), OPERATOR, "cli")
    with site.snapshot() as snapshot, pytest.raises(Refused, match="Start again without a cursor"):
        find(snapshot, OPERATOR, search, page.following)


def test_paging_continues_after_changed_record(site: Registry) -> None:
    for name in "abc":
        put(site, value(1, f"https://example.org/{name}"), name=f"54321/{name}")
    page = next(pages(site, OPERATOR, Search(host="example.org"), limit=1))
    put(site, value(1, "https://other.example/"), name="54321/a")
    with site.snapshot() as snapshot:
        rest = find(snapshot, OPERATOR, Search(host="example.org"), page.following)
    assert [each.handle for each in rest.items] == ["54321/b", "54321/c"]


# What is asked


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"host": "a/b"},
        {"url": " "},
        {"owner": "nobody"},
        {"prefix": "1/2"},
        {"prefix": ""},
        {"url": "*://*.a@b/"},
        {"words": "a !"},
    ],
)
def test_invalid_criteria_are_refused(site: Registry, asked: dict[str, str]) -> None:
    with site.snapshot() as snapshot, pytest.raises(Refused) as refused:
        find(snapshot, OPERATOR, Search(**asked))  # type: ignore[arg-type]
    assert refused.value.advice


def test_deleted_and_installation_records_are_not_found(site: Registry) -> None:
    put(site, value(1, "https://example.org/"), name="54321/a")
    put(site, name="54321/a", action=Action.DELETE, state=State.ABSENT)
    assert names(site, host="example.org") == names(site, type="PERSEID_POLICY") == []
    assert all(not each.startswith("0.SITE") for each in names(site, since=0))


def test_s5_report_by_owner_and_by_last_change(site: Registry) -> None:
    """Owners are administrators, or named by the policy's type; a creator without an owner owns (A5)."""
    put(site, ADMIN, name="12345/a")
    first = put(site, admin(100, "200:0.NA/12345"), name="12345/b")
    maker, owner = policy().creator_type, "OWNER"
    put(site, Value.text(1, maker, "777/maker"), ADMIN, name="777/a")
    put(site, Value.text(1, maker, "777/maker"), Value.text(2, owner, "777/owner"), name="777/b")
    put(site, Value.text(1, maker, "777/MAKER"), name="777/c")
    assert names(site, owner="12345/ann") == names(site, owner="12345/ANN") == ["12345/a"]
    assert names(site, owner="0.NA/12345") == ["12345/b"]
    assert names(site, owner="777/maker") == ["777/a", "777/c"]
    assert names(site, owner="777/owner") == ["777/b"]
    assert names(site, since=first) == ["777/a", "777/b", "777/c"]
    put(site, ADMIN, value(1), name="12345/a")
    assert names(site, since=first, prefix="12345") == ["12345/a"]

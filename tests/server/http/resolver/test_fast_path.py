"""The fast path gives the same bytes as the normal path, and handles typical requests."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.ledger.views.answers_format import read_plain_item
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission
from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.registry.commands.lifecycle import Publish, Tombstone, Unpublish
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create, Delete
from perseid.registry.identity import LocalIdentity
from perseid.registry.policy.policy import PROFILES
from perseid.server.http.clients import Peer
from perseid.server.http.connection.requests import HeadParser, ParsedRequest
from perseid.server.http.connection.responses import encode_head, has_body
from perseid.server.http.resolver.fast_path import MAX_QUERY, FastPath
from perseid.server.http.responses import MAX_INLINE_BYTES
from perseid.server.native.resolution import ResolutionSettings
from tests.server.http.contexts import PUBLIC_URL, STRANGER, Harness, harness

OPERATOR = LocalIdentity("tester")
PREFIX = "12345"
ADMIN = Value(100, "HS_ADMIN", Admin(ValueRef(200, f"0.NA/{PREFIX}"), AdminPermission(0xFFF)).to_bytes())
URL = Value.text(1, "URL", "https://example.org/a?b=c&d='e'#f")


class Both:
    """A server with both paths."""

    version = "1.1"
    """Of HTTP."""

    def __init__(self, server: Harness) -> None:
        self.server = server
        ledger = server.registry.ledger
        assert ledger.answers.catch_up(ledger.open_reader)
        self.seconds = server.context.time()  # which stand still, so that both answer in the same
        server.service.server = replace(server.context, time=lambda: self.seconds)
        self.configure()

    def configure(self, **settings: object) -> None:
        self.server.configure(**settings)
        context = self.server.context
        self.fast = FastPath(self.server.registry.ledger.answers, ResolutionSettings(), context.settings, context.time)

    def write(self, name: str, *values: Value) -> None:
        create = Create(Handle.parse(name), values, overwrite=True, reuse_deleted=True)
        self.server.registry.do(create, OPERATOR, "import")  # which may have negative TTLs
        self.seconds = float(self.server.registry.now())

    def handle_fast(self, target: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> bytes | None:
        found = self.fast(arrived(target, headers or {}, method, self.version))
        return None if found is None else found[0]

    def usual(self, target: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> bytes:
        request = arrived(target, headers or {}, method, self.version)
        response = asyncio.run(self.server.answer(request))
        seconds = self.server.context.time()
        head = encode_head(response, version=request.version, keep=request.keep, seconds=seconds)
        return head + response.body if has_body(response.status, method) else head

    def agree(self, target: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> bool:
        """Whether the fast path responds; if so, it must equal the normal path."""
        found = self.handle_fast(target, headers, method)
        if found is not None:
            assert found == self.usual(target, headers, method)
        return found is not None


def arrived(target: str, headers: Mapping[str, str], method: str = "GET", version: str = "1.1") -> ParsedRequest:
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "localhost", **headers}.items())
    return HeadParser(Peer(STRANGER)).read(f"{method} {target} HTTP/{version}\r\n{lines}\r\n".encode("latin-1"))


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with harness() as server:
        yield Both(server)


FORMS = ("/{}", "/hdl/{}", "/api/handles/{}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "values",
    [
        (URL, ADMIN),
        (URL,),
        (Value.text(1, "url", "http://example.org"), Value.text(2, "URL", "https://other.example")),
        (Value.text(3, "0.TYPE/URL", "https://example.org:8443/%20"), Value.text(5, "DESC", "ein Wörterbuch \u2028")),
        (URL, Value(2, "NOTE", b"secret", permissions=Permission.ADMIN_READ)),
        (URL, Value(2, "DESC", b'"quoted" \\ and more', ttl=60)),
        (URL, Value(2, "DATA", bytes(range(256)), ttl=0)),
        (URL, Value(2, "DESC", b"x", ttl=-5)),
    ],
)
def test_typical_records_use_the_fast_path(both: Both, form: str, method: str, values: tuple[Value, ...]) -> None:
    both.write(f"{PREFIX}/Usual.1", *values)
    assert both.agree(form.format(f"{PREFIX}/Usual.1"), method=method)
    assert both.agree(form.format(f"{PREFIX}/uSUAL.1"), {"Accept": "text/html,*/*;q=0.8", "User-Agent": "Mozilla/5.0"})


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}, {"Connection": "keep-alive"}], ids=str)
def test_clients_that_close_the_connection_use_the_fast_path(
    both: Both, version: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies often close it after each request, or use HTTP/1.0."""
    monkeypatch.setattr(both, "version", version)
    for form in FORMS:
        assert both.agree(form.format("12345/n1"), headers)


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/12345/n1?noredirect", {}),
        ("/12345/n%31", {}),
        ("/12345", {}),
        ("/0.NA/12345", {}),
        ("/doi/12345/n1", {}),
        ("/12346/n1", {}),
        ("/12345/n1", {"Accept": "application/json"}),
        ("/12345/n1", {"Accept": "application/ld+json"}),
        ("/12345/n1", {"Accept": "text/x-bibliography, text/html;q=0.5"}),
        ("/12345/n1", {"Accept-Datetime": "Sun, 15 Nov 2026 10:00:00 GMT"}),
        ("/12345/n1", {"Accept-Datetime": "nonsense"}),
        ("/api/handles/12345/n1", {"Accept-Datetime": "Sun, 15 Nov 2026 10:00:00 GMT"}),
        ("/12345/n1?at=1", {}),
        ("/12345/n1", {"If-None-Match": "*"}),
        ("/api/handles/12345/n1", {"Authorization": "Basic eDp5"}),
        ("/api/handles/12345/n1", {"Origin": "https://example.org"}),
        ("/api/handles/12345/n1", {"If-None-Match": '"x"'}),
        ("/api/handles/12345/n1?at=1", {}),
        ("/api/handles/12345/n1?index=x", {}),
        ("/api/handles/12345/n1?publicOnly=false", {}),
        ("/api/handles/12345/nothing-there?suggest", {}),
        ("/api/handles/12345/n1?type=" + "x" * MAX_QUERY, {}),
    ],
)
def test_unusual_requests_use_the_normal_path(both: Both, target: str, headers: dict[str, str]) -> None:
    assert both.handle_fast(target, headers) is None
    assert both.handle_fast("/12345/n1") is not None


QUERIES = (
    *("", "?", "?type=URL", "?type=url&type=0.TYPE%2FURL", "?type=URL.", "?type=", "?type=none", "?type=%C3%9Cnicode"),
    *("?index=1", "?index=1&index=100", "?index=-1", "?index=%2B1&type=DESC", "?index=7&pretty=no", "?type=a%22b"),
    *("?pretty", "?pretty=true&type=HS_ADMIN", "?callback=f", "?callback=1+x%C3%A9&pretty", "?callback=&index=1"),
    *("?auth", "?auth=true&pretty", "?auth=no", "?publicOnly", "?doNotRefer&type=URL&auth&callback=g&callback=h"),
)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("query", QUERIES)
def test_queries_of_the_api_use_the_fast_path(both: Both, query: str, method: str) -> None:
    both.write(f"{PREFIX}/Query", URL, ADMIN, Value.text(7, "DESC", "a \u2028 b"), Value.text(9, "URL.x", "y"))
    for name in ("Query", "nothing-there"):
        assert both.agree(f"/api/handles/{PREFIX}/{name}{query}", method=method), name


REDIRECT_QUERIES = (
    *("?", "?auth", "?type=URL", "?type=0.TYPE%2FURL&index=1", "?index=2", "?index=x", "?ignore_aliases", "?cert"),
    *("?urlappend=%2Fy%3Fa%3Db", "?urlappend=", "?urlappend=%26amp&auth", "?locatt=country:gb", "?utm_source=x&x;y"),
)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("query", REDIRECT_QUERIES)
def test_queries_of_redirects_use_the_fast_path(both: Both, query: str, method: str) -> None:
    both.write(f"{PREFIX}/Query", URL, ADMIN, replace(URL, index=2, ttl=7))
    assert both.agree(f"/{PREFIX}/Query{query}", method=method)


@pytest.mark.parametrize(
    "query",
    [
        *("?noredirect", "?action=showurls", "?at=1", "?redirectionHeaders", "?country=gb", "?ip=192.0.2.9"),
        *(
            "?urlappend=%0A",
            "?urlappend=%C3%BC",
            "?locatt=x",
            "?locatt=Weight:0.0",
            "?type=DESC",
            f"?x={'y' * MAX_QUERY}",
        ),
    ],
)
def test_other_queries_of_redirects_use_the_normal_path(both: Both, query: str) -> None:
    both.write(f"{PREFIX}/Query", URL, ADMIN)
    assert both.handle_fast(f"/{PREFIX}/Query{query}") is None


def test_text_that_might_change_the_host_is_appended_by_the_normal_path(both: Both) -> None:
    both.write(f"{PREFIX}/host", Value.text(1, "URL", "https://example.org"))
    assert both.handle_fast(f"/{PREFIX}/host?urlappend=.evil.example") is None
    assert both.agree(f"/{PREFIX}/host")


def test_query_of_a_cordra_name_uses_the_normal_path() -> None:
    with harness() as server:
        both = Both(server)
        server.registry.do(AddNamespace("3000", PROFILES["cordra"]), OPERATOR, "test")
        both.write("3000/EEF4DF17361A42E2B975E554663B70C3", URL)
        assert both.agree("/3000/EEF4DF17361A42E2B975E554663B70C3?auth")
        assert both.handle_fast("/3000/EEF4DF17361A42E2B975E554663B70C3?part=2") is None


def test_missing_handle_uses_the_fast_path_unless_it_existed(both: Both) -> None:
    name = f"{PREFIX}/short-lived"
    assert both.agree(f"/api/handles/{name}")
    both.write(name, URL)
    assert both.agree(f"/api/handles/{name}?type=none")
    both.server.registry.do(Delete(Handle.parse(name)), OPERATOR, "test")
    assert both.handle_fast(f"/api/handles/{name}") is None
    assert b'rel="' in both.usual(f"/api/handles/{name}")  # the links to its versions
    assert both.handle_fast(f"/api/handles/{name.upper()}") is None


def test_missing_handle_with_a_template_uses_the_normal_path() -> None:
    with harness() as server:
        both = Both(server)
        assert both.agree(f"/api/handles/{PREFIX}/a@b")
        template = '<template delimiter="@"><value type="URL" data="x:y"/></template>'
        space = Value.text(9, "HS_NAMESPACE", f"<namespace>{template}</namespace>")
        both.write(f"0.NA/{PREFIX}", *_values_of(both, f"0.NA/{PREFIX}"), space)
        assert both.handle_fast(f"/api/handles/{PREFIX}/a@b") is None


@pytest.mark.parametrize(
    "value",
    [
        Value.text(1, "URL", "javascript:alert(1)"),
        Value.text(1, "URL", "https://exämple.org/"),
        Value.text(1, "URL", "https://example.org/a b"),
        Value.text(1, "URL", "https://user@example.org/"),
        Value.text(1, "URL", "https://example.org/\r\nX: y"),
        Value.text(1, "URL", "https:///nowhere"),
        Value.text(1, "URL.x", "https://example.org/"),
        Value.text(1, "URL", "https://example.org/" + "a" * 9_000),
        Value(1, "URL", b"https://example.org/", 2_000_000_000, TtlType.ABSOLUTE),
    ],
)
def test_other_urls_use_the_normal_path(both: Both, value: Value) -> None:
    both.write(f"{PREFIX}/other", value)
    assert both.handle_fast(f"/{PREFIX}/other") is None


def test_records_with_special_types_use_the_normal_path(both: Both) -> None:
    for type_, data in (
        ("10320/loc", "<locations/>"),
        ("10320/headers", "Sunset: x"),
        ("10320/links", "<locations/>"),
        ("HS_ALIAS", f"{PREFIX}/n1"),
    ):
        both.write(f"{PREFIX}/more", URL, Value.text(2, type_, data))
        assert both.handle_fast(f"/{PREFIX}/more") is None, type_
        assert both.agree(f"/api/handles/{PREFIX}/more"), type_


def test_tombstones_and_deleted_handles_use_the_normal_path(both: Both) -> None:
    registry, name = both.server.registry, Handle.parse(f"{PREFIX}/gone")
    both.write(str(name), URL)
    assert both.handle_fast(f"/{name}") is not None
    registry.do(Tombstone(name, "it was withdrawn"), OPERATOR, "test")
    assert both.handle_fast(f"/{name}") is None
    assert both.handle_fast(f"/api/handles/{name}") is None
    registry.do(Delete(name), OPERATOR, "test")
    assert both.handle_fast(f"/{name}") is None


def test_handles_without_public_versions_are_answered_like_missing_ones(both: Both) -> None:
    registry, hidden, free = both.server.registry, Handle.parse(f"{PREFIX}/hidden"), f"{PREFIX}/absent"
    registry.do(Create(hidden, (URL,), published=False), OPERATOR, "test")
    for path in (f"/api/handles/{hidden}", f"/api/handles/{str(hidden).upper()}"):
        assert both.agree(path)
    assert both.usual(f"/api/handles/{hidden}") == both.usual(f"/api/handles/{free}").replace(b"absent", b"hidden")
    assert both.handle_fast(f"/{hidden}") is both.handle_fast(f"/{free}") is None
    registry.do(Delete(hidden), OPERATOR, "test")
    assert both.agree(f"/api/handles/{hidden}")
    both.write(str(hidden), URL)
    registry.do(Unpublish(hidden), OPERATOR, "test")
    assert both.agree(f"/api/handles/{hidden}")  # its earlier versions are hidden too
    registry.do(Publish(hidden), OPERATOR, "test")
    registry.do(Delete(hidden), OPERATOR, "test")
    assert both.handle_fast(f"/api/handles/{hidden}") is None  # its last version is public
    assert registry.ledger.answers.differences(registry.ledger.open_reader) is None


def test_namespace_value_takes_effect_at_once() -> None:
    with harness() as server:
        both = Both(server)
        both.write(f"{PREFIX}/n", URL)
        assert both.agree(f"/{PREFIX}/n")
        space = Value.text(9, "HS_NAMESPACE", "<namespace><status>inactive</status></namespace>")
        values = [value for value in _values_of(both, f"0.NA/{PREFIX}") if value.index != 9]
        both.write(f"0.NA/{PREFIX}", *values, space)
        assert both.handle_fast(f"/{PREFIX}/n") is None
        assert both.usual(f"/{PREFIX}/n").startswith(b"HTTP/1.1 404")
        assert both.agree(f"/api/handles/{PREFIX}/n")
        both.write(f"0.NA/{PREFIX}", *values)
        assert both.agree(f"/{PREFIX}/n")


def _values_of(both: Both, name: str) -> tuple[Value, ...]:
    with both.server.registry.snapshot() as snapshot:
        return snapshot.stored(Handle.parse(name)).values


def test_case_sensitive_namespaces_use_the_normal_path() -> None:
    with harness() as server:
        both = Both(server)
        server.registry.do(AddNamespace("777", PROFILES["exact"]), OPERATOR, "test")
        both.write("777/a", URL)
        for form in FORMS:
            assert both.handle_fast(form.format("777/a")) is None
            assert both.handle_fast(form.format("777/A")) is None


def test_record_of_another_case_rule_uses_the_normal_path(both: Both) -> None:
    both.write(f"{PREFIX}/other-rule", URL)
    items = both.server.registry.ledger.answers.get(f"{PREFIX}/other-rule".encode())
    assert items is not None
    assert read_plain_item(items) is not None
    assert read_plain_item(bytes((items[0] | 0x08,)) + items[1:]) is None


def test_settings_affect_the_fast_path(both: Both) -> None:
    try:
        both.configure(bare=False, redirect_status=303)
        assert both.handle_fast("/12345/n1") is None
        assert both.agree("/hdl/12345/n1")
        request = arrived("/hdl/12345/n1", {}, version="1.0")
        assert both.fast(request) is None  # such clients do not know the status
        both.configure(bare=True, segments=("12345", "hdl"))
        assert both.handle_fast("/12345/n1") is None
        both.configure(segments=("hdl",), schemes=frozenset(("http",)))
        both.write(f"{PREFIX}/secure", URL)
        assert both.handle_fast(f"/{PREFIX}/secure") is None
        both.configure(schemes=frozenset(("mailto",)))
        assert both.handle_fast(f"/{PREFIX}/secure") is None
        both.configure(schemes=frozenset(("http", "https")), public_url="")
        assert both.agree("/12345/n1")
        assert b"Link:" not in (both.handle_fast("/12345/n1") or b"")
        both.configure(public_url="https://12345.example/12345/n1", bare=False)
        assert both.agree("/hdl/12345/n1")
    finally:
        both.configure(
            bare=True,
            segments=("hdl",),
            redirect_status=302,
            schemes=frozenset(("http", "https")),
            public_url=PUBLIC_URL,
        )


def test_headers_are_checked_once(both: Both) -> None:
    request = arrived("/12345/n1", {"Accept": "text/html"})
    assert both.fast(request) is not None
    noted = request.fields.noted
    again = ParsedRequest("GET", b"/12345/n2", "1.1", request.fields)
    assert both.fast(again) is not None
    assert request.fields.noted is noted


TYPES = st.sampled_from(
    (
        "URL",
        "url",
        "URL.x",
        "0.TYPE/URL",
        "DESC",
        "EMAIL",
        "HS_ADMIN",
        "HS_VLIST",
        "HS_PUBKEY",
        "hs_site",
        "Ünicode",
        'a"b',
    )
)
URLS = st.sampled_from(
    (
        "https://example.org/",
        "http://a.example:80/x?y#z",
        "HTTPS://EXAMPLE.ORG",
        "ftp://x.example/",
        "mailto:a@b.example",
        "x",
    )
)
DATA = st.one_of(
    URLS.map(str.encode), st.text(max_size=30).map(str.encode), st.binary(max_size=60), st.just(ADMIN.data)
)
VALUES = st.builds(
    Value,
    st.integers(1, 500),
    TYPES,
    DATA,
    st.sampled_from((86_400, 0, -1, 60, 5_000_000)),
    st.sampled_from((TtlType.RELATIVE, TtlType.RELATIVE, TtlType.ABSOLUTE)),
    st.sampled_from((Permission(0x0E), Permission(0x0E), Permission(0x0F), Permission(0x0C), Permission(0x02))),
    references=st.sampled_from(((), (), (ValueRef(1, "12345/n1"),))),
)
RECORDS = st.lists(VALUES, max_size=5, unique_by=lambda value: value.index).map(tuple)
NAMES = st.sampled_from(
    ("Aa", "A.b~c", "x/y//z", "a;b=c", "!$&'()*+,-.:@_", "o" * 200, "o" * 300, "/" * 90, ".", "..", "a/..")
)
ACCEPTS = st.sampled_from(
    (
        *(None, "*/*", "text/html", "application/json;q=0.5, text/html", "text/turtle", "image/png"),
        *("application/ld+json", "application/x-bibtex;q=0.9, */*;q=0.9", "text/x-bibliography, */*;q=0.1"),
    )
)


@given(
    values=RECORDS,
    suffix=NAMES,
    target=st.sampled_from([form + query for form in FORMS for query in (*QUERIES, *REDIRECT_QUERIES)]),
    accept=ACCEPTS,
    head=st.booleans(),
    lower=st.booleans(),
)
@example(values=(URL, ADMIN), suffix="Aa", target="/{}", accept=None, head=False, lower=True)
def test_both_paths_give_the_same_response(
    both: Both,
    values: tuple[Value, ...],
    suffix: str,
    target: str,
    accept: str | None,
    head: bool,
    lower: bool,
) -> None:
    name = f"{PREFIX}/{suffix}"
    both.write(name, *values)
    target = target.replace("{}", name.lower() if lower else name)
    both.agree(target, {} if accept is None else {"Accept": accept}, "HEAD" if head else "GET")


@pytest.mark.parametrize("form", FORMS)
def test_large_records_use_the_normal_path(both: Both, form: str) -> None:
    """Encoding one takes time, for which others would have to wait."""
    for values in (
        (URL, Value(2, "DATA", bytes(MAX_INLINE_BYTES))),
        tuple([replace(URL, index=n) for n in range(1, 300)]),
    ):
        both.write(f"{PREFIX}/large", *values)
        assert not both.agree(form.format(f"{PREFIX}/large"))

"""Shared parts of the web resolver tests: a server with records of every kind, and parsed pages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Final

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create, Home
from perseid.registry.policy.policy import PROFILES
from perseid.server.http.messages import Response
from perseid.server.limits.budgets import Budget, Rate
from tests.server.http.contexts import Harness, harness, header_of
from tests.server.installations import OPERATOR

PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
CORDRA_NAME: Final = "3000.01/EEF4DF17361A42E2B975E554663B70C3"
ADMIN: Final = Value(100, "HS_ADMIN", Admin(ValueRef(300, "0.NA/12345")).to_bytes())
VOID: Final = frozenset(("meta", "link", "input", "br", "img", "wbr"))


def text(index: int, type_: str, data: str, ttl: int = 86_400) -> Value:
    return Value(index, type_, data.encode(), ttl)


def create(server: Harness, name: str, *values: Value) -> None:
    server.registry.do(Create(Handle.parse(name), values), OPERATOR, "cli")


def locations(inner: str, attributes: str = "") -> Value:
    return text(1, "10320/loc", f"<locations {attributes}>{inner}</locations>")


@contextmanager
def resolver() -> Iterator[Harness]:
    """A server with the records below, and those of `installations`."""
    with harness() as server:
        create(server, "12345/url", text(1, "URL", "https://example.org/a", 60))
        create(
            server,
            "12345/multi",
            text(3, "URL", "https://example.org/three"),
            text(1, "URL.x", "https://example.org/x"),
            text(2, "URL", "https://example.org/two"),
        )
        create(server, "12345/subtypes", text(5, "URL.b", "https://b.example/"), text(4, "url.A", "https://a.example/"))
        create(server, "12345/typed", text(1, "0.TYPE/URL", "https://typed.example/"))
        create(server, "12345/nothing", text(1, "DESC", "nowhere to go"))
        hidden = Value(1, "URL", b"https://hidden.example/", permissions=PRIVATE)
        create(server, "12345/hidden", hidden, replace(ADMIN, permissions=PRIVATE))
        create(server, "12345/partly", hidden, text(2, "URL", "https://seen.example/"))
        create(server, "12345/script", text(1, "URL", "javascript:alert(1)"))
        create(server, "12345/second", text(1, "URL", "javascript:alert(1)"), text(2, "URL", "https://second.example/"))
        create(server, "12345/until", Value(1, "URL", b"https://until.example/", 3_000_000_000, TtlType.ABSOLUTE))
        create(server, "12345/past", Value(1, "URL", b"https://past.example/", 1_000_000_000, TtlType.ABSOLUTE))
        create(server, "12345/slash/../?#% ü/", text(1, "URL", "https://odd.example/"))
        create(server, "12345/..", text(1, "URL", "https://dots.example/"))
        create(server, "12345/alias", text(1, "HS_ALIAS", "12345/url"), text(2, "URL", "https://own.example/"))
        create(server, "12345/alias-odd", text(1, "HS_ALIAS", "12345/slash/../?#% ü/"))
        create(server, "12345/alias-away", text(1, "HS_ALIAS", "999/x"))
        create(server, "12345/alias-lost", text(1, "HS_ALIAS", "12345/absent"))
        create(server, "12345/alias-gone", text(1, "HS_ALIAS", "12345/gone"))
        create(server, "12345/loop", text(1, "HS_ALIAS", "12345/pool"))
        create(server, "12345/pool", text(1, "HS_ALIAS", "12345/loop"))
        for number in range(22):
            create(server, f"12345/chain{number}", text(1, "HS_ALIAS", f"12345/chain{number + 1}"))
        create(server, "12345/chain22", text(1, "URL", "https://end.example/"))
        create(server, "12345/gone", text(1, "URL", "https://gone.example/"))
        tombstone = Tombstone(Handle.parse("12345/gone"), "It was <wrong>.", Handle.parse("12345/url"))
        server.registry.do(tombstone, OPERATOR, "cli")
        create(server, "12345/unpublished", text(1, "URL", "https://unpublished.example/"))
        server.registry.do(Unpublish(Handle.parse("12345/unpublished")), OPERATOR, "cli")
        for prefix in ("hdl", "api", "robots.txt", "hdl:77"):
            if prefix == "hdl:77":  # cannot be added as a namespace: it looks like a URI
                server.registry.do(Home(f"0.NA/{prefix}"), OPERATOR, "cli")
            else:
                add_namespace(server, prefix)
            create(server, f"{prefix}/x", text(1, "URL", f"https://{prefix.partition(':')[0]}.example/"))
        add_namespace(server, "3000.01", "cordra")
        create(server, CORDRA_NAME, text(1, "10320/loc", '<l><location href_template="https://c.example/{hdl}"/></l>'))
        yield server


@contextmanager
def without_suggestions(server: Harness) -> Iterator[None]:
    """Disable suggestions while the block runs."""
    context = server.context
    used_up = Budget(Rate(1e-6, 1), Rate(1e-6, 1))
    assert used_up.take((), context.time())
    server.service.server = replace(context, suggestion_budget=used_up)
    try:
        yield
    finally:
        server.service.server = context


def add_namespace(server: Harness, prefix: str, profile: str = "free", *values: Value) -> None:
    server.registry.do(AddNamespace(prefix, PROFILES[profile], (ADMIN, *values)), OPERATOR, "cli")


# Parsing responses


def location_of(response: Response) -> str:
    """The target of a redirect."""
    assert response.status in (301, 302, 303, 307, 308), (response.status, response.body[:2_000])
    return header_of(response, "Location") or ""


@dataclass
class Page(HTMLParser):
    """The content of a page."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    """What stands in elements that nobody sees: JSON-LD."""
    title: str = ""
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} comes twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> ends nothing"
        assert self._open.pop() == tag, f"</{tag}> does not end what was begun last"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "title":
            self.title += data
        elif self._open and self._open[-1] == "script":
            self.data.append(data)
        else:
            self.words.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"a processing instruction: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")

    @property
    def text(self) -> str:
        return re.sub(r"[ \t\n]+", " ", "".join(self.words)).strip()

    @property
    def links(self) -> list[str]:
        return [attributes["href"] or "" for tag, attributes in self.elements if tag == "a"]

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements with their attribute names: they come from a template, never from data."""
        return [(tag, tuple(attributes)) for tag, attributes in self.elements]


def page_of(response: Response) -> Page:
    """Parse a response as a page; every element must be closed."""
    assert header_of(response, "Content-Type") == "text/html;charset=utf-8", response.body
    page = Page()
    page.feed(response.body.decode())
    page.close()
    assert page._open == [], "something was begun and not ended"
    return page

"""Questions that can be asked at every interface; each is answered by one line of text.

A class is one kind of question. Its methods `cli`, `python`, `native`, `compat`, `v1` and `web` ask it at one
interface; where an interface has no such request, a text takes the place of the method and says why. A refusal is
answered with `refused`, the response code, and the rule if the interface reports one.

Every interface has its own copy of one installation, so that none sees the changes of another.
"""

import html
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from perseid.names import pilin
from perseid.names.cordra import CordraName
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import KNOWN_RESOLVERS, Reference, Resolver, parse_uri, parse_user_input
from perseid.records.json_form import value_from_json, value_to_json
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.lifecycle import Publish, Tombstone, Unpublish
from perseid.registry.commands.minting import Mint, Reserve
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create, Modify
from perseid.registry.commands.transfer import Transfer
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.installation.installation import Installation, create
from perseid.registry.installation.setup import (
    add_namespace,
    administrator_key,
    administrator_values,
    create_demonstration,
    create_root,
    with_group_administrators,
)
from perseid.registry.policy.policy import PROFILES
from perseid.registry.policy.policy import Policy as NamespacePolicy
from perseid.registry.queries.aliases import find_record
from perseid.registry.queries.citation import get_citation, to_json
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.history import as_of, get_history
from perseid.registry.queries.listing import list_handles
from perseid.registry.queries.namespaces import summarize
from perseid.registry.queries.resolve import Query, get_authority_metadata
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Rules
from perseid.schema.names import ConversionScheme, Form, convert_name, pilin_at
from perseid.server.native.server import NativeServer
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import OpCode, OpFlag, ResponseCode, default_flags
from perseid.wire.requests import HandleRequest, RequestBody, Resolve, ValuesRequest
from perseid.wire.responses import CreationResult, HandleList, ResolutionResult
from perseid.wire.sessions import Identity as NativeIdentity
from tests.cli.installation import Site
from tests.interfaces import callers
from tests.interfaces.callers import ANN, Request, identity_of
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import PUBLIC_URL, Harness, basic, header_of, serve
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET
from tests.server.native.native_servers import SITE, Visitor, make_server

INTERFACES: Final = ("cli", "python", "native", "compat", "v1", "web")

ONLY_HANDLES: Final = "requests contain a handle, not a URI"
ONLY_READS: Final = "pages read records; they create only minted and reserved handles"
NO_SUCH_REQUEST: Final = "the interface of deployed servers has no such request"
NO_PAGE: Final = "no page shows this"
NOT_AT_SERVERS: Final = "about the syntax alone; a server is not asked"

NO_FLAGS: Final = OpFlag(0)
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
NOT_FOUND: Final = "not found"


# The installation


@dataclass
class World:
    """The copies of the installation."""

    cli: Site
    python: Registry
    native: Registry
    compat: Harness
    v1: Harness
    web: Harness
    earlier: int
    """The entry before `12345/changed` was changed."""


def text(index: int, type_: str, data: str) -> Value:
    return Value.text(index, type_, data)


NAMESPACES: Final = {
    "10.1045": "free",
    "12345.1": "free",
    "12345.Abc": "exact",
    "54321": "exact",
    "100.102": "cordra",
}
"""Namespaces and their profiles, beside `12345` and those of the demonstration."""

GUID: Final = "F58FB49EB1F848f0A606E84CEF294BE5"
"""The example of the CORDRA documents, as it is spelled there."""

RECORDS: Final = (
    "10.1045/april2006-paskin",
    "12345/a/b",
    "12345/a%2Fb",
    "12345/a b",
    "12345/ü",
    "12345/日本語",
    "12345/straße",
    "12345/CamelCase",
    "12345/50%25",
    "12345/q?x#y",
    "12345/taken",
    "12345/unpublished",
    "12345/hidden",
    "12345/shown",
    "12345/gone",
    "12345/withdrawn",
    "12345/changed",
    "12345.1/x",
    "12345.Abc/x",
    "54321/Case",
    "54321/a/b",
    f"100.102/{GUID.upper()}",
)
"""Records; the value DESC of each is its handle."""


HIDDEN: Final = "102.100.272/BCDFGHJHH"
"""An unpublished handle with authority metadata."""

IMPORTED: Final = "12345/imported\u202e"
"""A handle that another server registered, and that cannot be registered here."""


def _build(directory: Path) -> int:
    settings = {"administrators.server": [ADMINISTRATOR], "http.public_url": PUBLIC_URL}
    create(directory, settings=settings, environ={})
    with Installation.open(directory, environ={}) as installation:
        registry = registry_of(installation)
        create_root(registry, OPERATOR, "cli")
        administrator = (administrator_key("12345"),)
        for prefix, profile in {"12345": "free", **NAMESPACES}.items():
            values = administrator_values(prefix, administrator, SECRET if prefix == "12345" else None)
            policy = with_group_administrators(PROFILES[profile])
            add_namespace(registry, AddNamespace(prefix, policy, values), OPERATOR, "cli")
        create_demonstration(registry, OPERATOR, "cli", administrator)
        key = Value(300, "HS_SECKEY", SECRET.encode(), permissions=Permission.ADMIN_READ | Permission.ADMIN_WRITE)
        _create(registry, "12345/ann", key)
        for name in RECORDS:
            _create(registry, name, text(1, "URL", f"https://example.org/{quote(name)}"), text(2, "DESC", name))
        _create(registry, "12345/alias", text(1, "HS_ALIAS", "12345/taken"))
        _create(registry, "12345/typed", text(1, "URL", "https://example.org/t"), text(2, "EMAIL", "t@example.org"))
        _create(registry, HIDDEN, text(1, "URL", "https://example.org/hidden"))
        for name in ("12345/unpublished", "12345/hidden", HIDDEN):
            registry.do(Unpublish(Handle.parse(name)), OPERATOR, "cli")
        withdrawn = Tombstone(Handle.parse("12345/withdrawn"), "Withdrawn", Handle.parse("12345/taken"))
        registry.do(withdrawn, OPERATOR, "cli")
        registry.do(Reserve((Handle.parse("12345/reserved"),)), OPERATOR, "cli")
        imported, _ = Handle.parse_imported(IMPORTED)
        registry.do(Create(imported, (text(2, "DESC", "imported"),)), OPERATOR, "import")
        change = Modify(Handle.parse("12345/changed"), (text(2, "DESC", "12345/changed, later"),))
        return registry.do(change, OPERATOR, "cli").seq - 1


def _create(registry: Registry, handle: str, *values: Value) -> None:
    registry.do(Create(Handle.parse(handle), values), OPERATOR, "cli")


def registry_of(installation: Installation) -> Registry:
    return Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))


@contextmanager
def open_world() -> Iterator[World]:
    """Open a copy of the installation for every interface."""
    with tempfile.TemporaryDirectory(prefix="perseid-statements-") as folder, ExitStack() as stack:
        earlier = _build(Path(folder) / "cli")

        def copy(name: str) -> Registry:
            shutil.copytree(Path(folder) / "cli", Path(folder) / name)
            return registry_of(stack.enter_context(Installation.open(Path(folder) / name, environ={})))

        python, native, *servers = [copy(name) for name in INTERFACES[1:]]
        compat, v1, web = [serve(registry) for registry in servers]
        for server in (compat, v1, web):
            server.configure(api_requests=0)
        yield World(Site(Path(folder) / "cli"), python, native, compat, v1, web, earlier)


# Asking


def refused(code: int, rule: str = "") -> str:
    """The answer for a refusal."""
    if code in (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND, ResponseCode.SERVER_NOT_RESP):
        return NOT_FOUND
    return f"refused {ResponseCode(code).name} {rule}".strip()


def ask_python(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except InvalidName as problem:
        return refused(ResponseCode.INVALID_HANDLE, problem.rule)
    except Refused as refusal:
        return refused(refusal.code, refusal.rule)


def ask_cli(world: World, *words: str, read: Callable[[Any], str], stdin: str = "") -> str:
    """Run a command with `--json` and read its (last) result."""
    done = world.cli("", *words, "--json", stdin=stdin.encode())
    if done.code == 0:
        return read(json.loads(done.out.splitlines()[-1]))
    problem = json.loads(done.err.splitlines()[-1])
    return refused(problem["code"], problem.get("rule", ""))


def ask_v1(
    world: World, method: str, path: str, body: object = None, *, read: Callable[[Any], str], identity: str = ""
) -> str:
    headers = {"Content-Type": "application/json"} | (basic(identity, SECRET) if identity else {})
    answer = world.v1.ask(method, f"/api/v1{path}", "" if body is None else json.dumps(body), headers=headers)
    found = json.loads(answer.body)
    return read(found) if answer.status < 300 else refused(found["code"], found.get("rule", ""))


def ask_compat(world: World, method: str, path: str, body: object = None, *, read: Callable[[Any], str]) -> str:
    headers = {} if method == "GET" else {"Content-Type": "application/json", **basic()}
    answer = world.compat.ask(method, f"/api/handles/{path}", "" if body is None else json.dumps(body), headers=headers)
    found = json.loads(answer.body)
    return read(found) if found["responseCode"] == ResponseCode.SUCCESS else refused(found["responseCode"])


def ask_native(
    world: World, opcode: OpCode, body: RequestBody, flags: OpFlag = NO_FLAGS, *, read: Callable[[Any], str]
) -> str:
    """Send a request; a challenge is answered by the administrator."""
    visitor = Visitor(NativeServer(world.native, make_server(), SITE), now=float(world.native.now()))
    message = visitor.request(opcode, body, flags=flags | default_flags(opcode))
    answer: VerifiedResponse = visitor.ask(message)
    if answer.code == ResponseCode.AUTHENTICATION_NEEDED:
        index, _, owner = ADMINISTRATOR.partition(":")
        claimed = NativeIdentity(owner.encode(), int(index))
        answer = visitor.ask(visitor.answer(answer, message, claimed, SECRET.encode()), about=message)
    return read(answer.body) if answer.code == ResponseCode.SUCCESS else refused(answer.code)


def segment(handle: str | bytes) -> str:
    """A handle as one segment of a path."""
    return quote(handle, safe="")


def ask_page(world: World, handle: str | bytes, query: str, read: Callable[[str], str]) -> str:
    """Read the page of a record."""
    answer = world.web.get(f"/hdl/{segment(handle)}?{query}")
    if answer.status in (400, 404):
        return NOT_FOUND if answer.status == 404 else refused(ResponseCode.INVALID_HANDLE)
    assert answer.status in (200, 410), answer
    return read(answer.body.decode())


def plain(markup: str) -> str:
    """The text of a piece of a page."""
    return html.unescape(re.sub("<[^>]*>", "", markup.replace("<br>", " | "))).strip()


def cells(page: str, label: str) -> list[str]:
    """The texts of a column of a record's page, without notes."""
    page = re.sub('<div class="quiet">.*?</div>', "", page)
    return [plain(each) for each in re.findall(rf'<td data-label="{label}"[^>]*>(.*?)</td>', page, re.DOTALL)]


def facts(page: str) -> dict[str, str]:
    """The facts above the values of a record's page."""
    return {plain(key): plain(value) for key, value in re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", page, re.DOTALL)}


# Names


@dataclass(frozen=True)
class Parse:
    """Which prefix, suffix, query and fragment does a text have? `strict` allows URIs only."""

    text: str
    strict: bool = False
    resolver: str = ""

    native = compat = ONLY_HANDLES
    web = "the look-up box shows the record, not the parts of its name"

    def cli(self, world: World) -> str:
        options = [*(["--strict"] if self.strict else []), *(["--resolver", self.resolver] if self.resolver else [])]
        return ask_cli(world, "name", "parse", self.text, *options, read=self._read)

    def python(self, _: World) -> str:
        resolvers = [Resolver.parse(each) for each in (self.resolver, PUBLIC_URL) if each]
        parse = parse_uri if self.strict else parse_user_input

        def ask() -> str:
            reference = parse(self.text, [*resolvers, *KNOWN_RESOLVERS])
            return self._format(str(reference.handle), reference.query, reference.fragment)

        return ask_python(ask)

    def v1(self, world: World) -> str:
        query = {"text": self.text, **({"strict": "true"} if self.strict else {})}
        query |= {"resolver": self.resolver} if self.resolver else {}
        return ask_v1(world, "GET", f"/names/parse?{urlencode(query)}", read=self._read)

    def _read(self, found: Any) -> str:
        return self._format(found["spelling"], found.get("query"), found.get("fragment"))

    def _format(self, handle: str, query: str | None, fragment: str | None) -> str:
        prefix, _, suffix = handle.partition("/")
        parts = [f"{prefix} / {suffix}", *([f"? {query}"] if query is not None else [])]
        return " ".join([*parts, *([f"# {fragment}"] if fragment is not None else [])])


@dataclass(frozen=True)
class Convert:
    """What is a name in another form?"""

    text: str
    to: str
    resolver: str = ""
    scheme: str = ""

    native = compat = ONLY_HANDLES
    web = "a page shows the forms for citations"

    def cli(self, world: World) -> str:
        options = [*(["--resolver", self.resolver] if self.resolver else [])]
        options += ["--scheme", self.scheme] if self.scheme else []
        return ask_cli(world, "name", "convert", self.text, "--to", self.to, *options, read=lambda each: each["name"])

    def python(self, _: World) -> str:
        own = Resolver.parse(self.resolver) if self.resolver else None
        resolvers = [*([own] if own else []), *KNOWN_RESOLVERS]
        scheme = ConversionScheme(self.scheme) if self.scheme else None
        return ask_python(lambda: convert_name(parse_user_input(self.text, resolvers), Form(self.to), own, scheme).name)

    def v1(self, world: World) -> str:
        query = {"text": self.text, "to": self.to}
        query |= {"resolver": self.resolver} if self.resolver else {}
        query |= {"scheme": self.scheme} if self.scheme else {}
        return ask_v1(world, "GET", f"/names/convert?{urlencode(query)}", read=lambda each: str(each["name"]))


@dataclass(frozen=True)
class Suffix:
    """Which PILIN suffix does a time have?"""

    time: str

    native = compat = NOT_AT_SERVERS
    web = "the console mints, without a chosen time"

    def cli(self, world: World) -> str:
        return ask_cli(world, "suffix", "pilin", "--at", self.time, read=lambda each: str(each["suffix"]))

    def python(self, _: World) -> str:
        return ask_python(lambda: pilin_at(datetime.fromisoformat(self.time)).suffix)

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/suffixes/pilin?at={quote(self.time)}", read=lambda each: str(each["suffix"]))


@dataclass(frozen=True)
class Decode:
    """Which time does a PILIN suffix encode?"""

    suffix: str

    native = compat = NOT_AT_SERVERS
    web = "the console mints, without a chosen time"

    def cli(self, world: World) -> str:
        return ask_cli(world, "suffix", "pilin", "--decode", self.suffix, read=lambda each: str(each["time"]))

    def python(self, _: World) -> str:
        return ask_python(lambda: pilin.format_time(pilin.decode(self.suffix)))

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/suffixes/pilin/{segment(self.suffix)}", read=lambda each: str(each["time"]))


# Reading


@dataclass(frozen=True)
class Look:
    """What are the values of a type in the record of a handle?"""

    handle: str | bytes
    type: str = "DESC"

    def _read(self, found: Any) -> str:
        return " | ".join(str(value["data"]["value"]) for value in found["values"])

    def _argument(self) -> str:
        return self.handle if isinstance(self.handle, str) else self.handle.decode("utf-8", "surrogateescape")

    def cli(self, world: World) -> str:
        return ask_cli(world, "resolve", self._argument(), "--type", self.type, read=self._read)

    def python(self, world: World) -> str:
        handle = Handle.for_lookup(self.handle)
        if handle is None:
            return NOT_FOUND
        query = Query(handle, (self.type,))

        def ask() -> str:
            values = world.python.resolve(query, Anonymous()).values
            return self._read({"values": [value_to_json(value) for value in values]})

        return ask_python(ask)

    def native(self, world: World) -> str:
        def read(body: ResolutionResult) -> str:
            return self._read({"values": [value_to_json(value) for value in body.values]})

        name = self.handle if isinstance(self.handle, bytes) else self.handle.encode()
        return ask_native(world, OpCode.RESOLUTION, Resolve(name, types=(self.type,)), read=read)

    def compat(self, world: World) -> str:
        return ask_compat(world, "GET", f"{segment(self.handle)}?type={quote(self.type)}", read=self._read)

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/handles/{segment(self.handle)}?type={quote(self.type)}", read=self._read)

    def web(self, world: World) -> str:
        query = f"noredirect&ignore_aliases&type={quote(self.type)}"
        return ask_page(world, self.handle, query, lambda page: " | ".join(cells(page, "Data")))


@dataclass(frozen=True)
class Types:
    """Which types do the public values of a record have?"""

    handle: str

    def _join(self, types: Sequence[str]) -> str:
        return " | ".join(sorted(types))

    def _read(self, found: Any) -> str:
        return self._join([value["type"] for value in found["values"]])

    def cli(self, world: World) -> str:
        return ask_cli(world, "resolve", self.handle, read=self._read)

    def python(self, world: World) -> str:
        query = Query(Handle.parse(self.handle))
        return ask_python(lambda: self._join([v.type for v in world.python.resolve(query, Anonymous()).values]))

    def native(self, world: World) -> str:
        def read(body: ResolutionResult) -> str:
            return self._join([value.type for value in body.values])

        return ask_native(world, OpCode.RESOLUTION, Resolve(self.handle.encode()), read=read)

    def compat(self, world: World) -> str:
        return ask_compat(world, "GET", segment(self.handle), read=self._read)

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/handles/{segment(self.handle)}", read=self._read)

    def web(self, world: World) -> str:
        return ask_page(world, self.handle, "noredirect", lambda page: self._join(cells(page, "Type")))


@dataclass(frozen=True)
class Open:
    """Which record does a person get who enters a name in any form? Answered by its DESC."""

    text: str

    native = compat = ONLY_HANDLES
    v1 = "a path contains a handle; /names/parse reads other forms"

    def cli(self, world: World) -> str:
        return ask_cli(world, "resolve", self.text, "--type", "DESC", read=Look("")._read)

    def python(self, world: World) -> str:
        def ask() -> str:
            resolvers = [Resolver.parse(PUBLIC_URL), Resolver.parse(f"{PUBLIC_URL}/hdl"), *KNOWN_RESOLVERS]
            return Look(str(parse_user_input(self.text, resolvers, for_lookup=True).handle)).python(world)

        return ask_python(ask)

    def web(self, world: World) -> str:
        form = urlencode({"hdl": self.text, "page": "yes", "noredirect": "yes", "type": "DESC"})
        answer = world.web.post("/", form, headers=FORM)
        if answer.status in (302, 303):
            answer = world.web.get((header_of(answer, "Location") or "").removeprefix(PUBLIC_URL))
        if answer.status != 200:
            return NOT_FOUND if answer.status == 404 else refused(ResponseCode.INVALID_HANDLE)
        page = answer.body.decode()
        return dict(zip(cells(page, "Type"), cells(page, "Data"), strict=True))["DESC"]


@dataclass(frozen=True)
class Follow:
    """Where does a handle lead, through aliases?"""

    handle: str

    native = compat = "aliases are returned as values; clients follow them"

    def _read(self, found: Any) -> str:
        return next(str(value["data"]["value"]) for value in found["values"] if value["type"] == "URL")

    def cli(self, world: World) -> str:
        return ask_cli(world, "resolve", self.handle, "--follow", read=self._read)

    def python(self, world: World) -> str:
        now = world.python.now()
        with world.python.snapshot() as snapshot:
            context = Context(snapshot, Anonymous(), "cli", now)
            found = find_record(context, Query(Handle.parse(self.handle)), None, now, follow=True)
            return self._read({"values": [value_to_json(value) for value in found.resolution.values]})

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/handles/{segment(self.handle)}?follow=true", read=self._read)

    def web(self, world: World) -> str:
        location = f"/hdl/{segment(self.handle)}"
        while location.startswith("/"):
            answer = world.web.get(location)
            location = (header_of(answer, "Location") or NOT_FOUND).removeprefix(PUBLIC_URL)
        return location


@dataclass(frozen=True)
class Earlier:
    """What was the DESC of a record at an earlier entry of the ledger?"""

    handle: str

    native = "requests contain no time"

    def _read(self, found: Any) -> str:
        return next(str(value["data"]["value"]) for value in found["values"] if value["type"] == "DESC")

    def cli(self, world: World) -> str:
        return ask_cli(world, "resolve", self.handle, "--at", str(world.earlier), read=self._read)

    def python(self, world: World) -> str:
        with world.python.snapshot() as snapshot:
            found = as_of(snapshot, Anonymous(), Query(Handle.parse(self.handle)), world.earlier).resolved
            return self._read({"values": [value_to_json(value) for value in found.values]})

    def compat(self, world: World) -> str:
        return ask_compat(world, "GET", f"{segment(self.handle)}?at={world.earlier}", read=self._read)

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/handles/{segment(self.handle)}?at={world.earlier}", read=self._read)

    def web(self, world: World) -> str:
        query = f"noredirect&type=DESC&at={world.earlier}"
        return ask_page(world, self.handle, query, lambda page: cells(page, "Data")[0])


@dataclass(frozen=True)
class Echo:
    """How does the answer to a look-up spell the handle?"""

    handle: str

    python = "the result has both spellings"
    cli = v1 = "the record is shown with the registered handle"

    def native(self, world: World) -> str:
        def read(body: ResolutionResult) -> str:
            return body.handle.decode()

        return ask_native(world, OpCode.RESOLUTION, Resolve(self.handle.encode()), read=read)

    def compat(self, world: World) -> str:
        return ask_compat(world, "GET", segment(self.handle), read=lambda each: str(each["handle"]))

    def web(self, world: World) -> str:
        def read(page: str) -> str:
            (name,) = re.findall('<bdi class="name" id="name">([^<]*)</bdi>', page.replace("<wbr>", ""))
            return html.unescape(name)

        return ask_page(world, self.handle, "noredirect", read)


@dataclass(frozen=True)
class Tail:
    """Which query and fragment does the answer to a look-up have?"""

    handle: str

    def _join(self, query: str | None, fragment: str | None) -> str:
        return f"{query} | {fragment}"

    def _read(self, found: Any) -> str:
        return self._join(found.get("query"), found.get("fragment"))

    def _read_name(self, name: str) -> str:
        """Of a handle as the answer repeats it."""
        parsed = CordraName.parse(Handle.parse(name))
        return self._join(parsed.query, parsed.fragment)

    def cli(self, world: World) -> str:
        return ask_cli(world, "resolve", self.handle, read=self._read)

    def python(self, world: World) -> str:
        found = world.python.resolve(Query(Handle.parse(self.handle)), Anonymous())
        return self._join(found.query, found.fragment)

    def native(self, world: World) -> str:
        return self._read_name(Echo(self.handle).native(world))

    def compat(self, world: World) -> str:
        return self._read_name(Echo(self.handle).compat(world))

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/handles/{segment(self.handle)}", read=self._read)

    def web(self, world: World) -> str:
        answer = world.web.get(f"/hdl/{segment(self.handle)}")
        return self._join(header_of(answer, "Handle-Query"), header_of(answer, "Handle-Fragment"))


@dataclass(frozen=True)
class Cite:
    """In which forms is a handle cited?"""

    handle: str

    native = compat = NO_SUCH_REQUEST

    def _read(self, found: Any) -> str:
        return f"{found['hdl']} | {found['http']}"

    def python(self, world: World) -> str:
        with world.python.snapshot() as snapshot:
            context = Context(snapshot, Anonymous(), "cli", world.python.now())
            reference, resolver = Reference(Handle.parse(self.handle)), Resolver.parse(PUBLIC_URL)
            return self._read(to_json(get_citation(context, reference, resolver)))

    def cli(self, world: World) -> str:
        return ask_cli(world, "cite", self.handle, read=self._read)

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/handles/{segment(self.handle)}/citation", read=self._read)

    def web(self, world: World) -> str:
        def read(page: str) -> str:
            found = dict(re.findall('<bdi class="name" id="(hdl|uri)">([^<]*)</bdi>', page.replace("<wbr>", "")))
            return html.unescape(f"{found['hdl']} | {found['uri']}")

        return ask_page(world, self.handle, "noredirect", read)


@dataclass(frozen=True)
class Metadata:
    """What is the authority metadata of a handle: creation, last update, creator, owners?"""

    handle: str

    def _join(self, created: str, updated: str, creator: str, owners: Sequence[str]) -> str:
        return " | ".join((created, updated, creator, ", ".join(owners)))

    def _read(self, found: Any) -> str:
        owners = [each["uri"] for each in found["owners"]]
        return self._join(found["created"], found["updated"], found["creator"]["uri"], owners)

    def _from_values(self, values: Sequence[dict[str, Any]]) -> str:
        """As a client of a deployed server computes it."""
        by_type = {value["type"]: value["data"]["value"] for value in values}
        creator = by_type["102.100.TYPE/CREATOR"]
        admins = [value["data"]["value"]["handle"] for value in values if value["type"] == "HS_ADMIN"]
        owners = [f"hdl:{each}" for each in admins if each != creator and not each.startswith("0.NA/")]
        updated = max(value["timestamp"] for value in values)
        return self._join(by_type["102.100.TYPE/CREATION_DATE"], updated, f"hdl:{creator}", owners)

    def cli(self, world: World) -> str:
        return ask_cli(world, "resolve", self.handle, "--authority", read=self._read)

    def python(self, world: World) -> str:
        def ask() -> str:
            handle = Handle.parse(self.handle)
            world.python.resolve(Query(handle), Anonymous())
            with world.python.snapshot() as snapshot:
                metadata = get_authority_metadata(snapshot, snapshot.stored(handle))
                assert metadata is not None
                return self._read(metadata.to_json())

        return ask_python(ask)

    def native(self, world: World) -> str:
        def read(body: ResolutionResult) -> str:
            return self._from_values([value_to_json(value) for value in body.values])

        return ask_native(world, OpCode.RESOLUTION, Resolve(self.handle.encode()), read=read)

    def compat(self, world: World) -> str:
        return ask_compat(world, "GET", segment(self.handle), read=lambda each: self._from_values(each["values"]))

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/handles/{segment(self.handle)}/authority", read=self._read)

    def web(self, world: World) -> str:
        def read(page: str) -> str:
            times = dict(re.findall(r'<dt>([^<]*)</dt><dd><bdi><time datetime="([^"]*)"', page))
            found = facts(page)
            owners = re.findall("hdl:[^ |]+", found.get("Owner", found.get("Owners", "")))
            return self._join(times["Created"], times["Last update"], found["Creator"].split()[0], owners)

        return ask_page(world, self.handle, "noredirect", read)


@dataclass(frozen=True)
class Find:
    """Which handles match a search? As the administrator."""

    key: str
    """`url` or `owner`; the compatible API searches by `url` only."""
    value: str

    native = NO_SUCH_REQUEST
    web = NO_PAGE

    def cli(self, world: World) -> str:
        done = world.cli.ok("find", f"--{self.key}", self.value, "--json")
        return " | ".join(json.loads(line)["handle"] for line in done.out.splitlines())

    def python(self, world: World) -> str:
        with world.python.snapshot() as snapshot:
            searches = {"url": Search(url=self.value), "owner": Search(owner=self.value)}
            page = find(snapshot, identity_of(ADMINISTRATOR), searches[self.key])
            return " | ".join(str(each.handle) for each in page.items)

    def compat(self, world: World) -> str:
        parameter = {"url": "URL"}[self.key]
        answer = world.compat.get(f"/hrls/handles/?{parameter}={quote(self.value, safe='*')}", headers=basic())
        return " | ".join(json.loads(answer.body))

    def v1(self, world: World) -> str:
        query = urlencode({self.key: self.value})
        return ask_v1(
            world,
            "GET",
            f"/find?{query}",
            identity=ADMINISTRATOR,
            read=lambda found: " | ".join(each["handle"] for each in found["results"]),
        )


# Changing


@dataclass(frozen=True)
class Register:
    """Can a handle be registered? Answered by its registered spelling where the answer has it."""

    handle: str | bytes
    values: tuple[dict[str, object], ...] = ({"index": 1, "type": "URL", "data": "https://example.org/"},)

    web = ONLY_READS

    def _created(self, found: Any) -> str:
        return f"created {found['handle']}"

    def _text(self) -> str:
        return self.handle if isinstance(self.handle, str) else self.handle.decode("utf-8", "surrogateescape")

    def cli(self, world: World) -> str:
        body = json.dumps({"values": self.values})
        words = ("create", self._text(), "--from", "-", "--as", ADMINISTRATOR)
        return ask_cli(world, *words, stdin=body, read=self._created)

    def python(self, world: World) -> str:
        values = tuple([value_from_json(value) for value in self.values])

        def ask() -> str:
            handle = Handle.parse(self.handle) if isinstance(self.handle, str) else Handle.from_bytes(self.handle)
            made = world.python.do(Create(handle, values), identity_of(ADMINISTRATOR), "cli")
            return f"created {made.handle}"

        return ask_python(ask)

    def native(self, world: World) -> str:
        values = tuple([value_from_json(value) for value in self.values])
        name = self.handle.encode("utf-8", "surrogatepass") if isinstance(self.handle, str) else self.handle
        return ask_native(world, OpCode.CREATE_HANDLE, ValuesRequest(name, values), read=lambda _: "created")

    def compat(self, world: World) -> str:
        path = f"{segment(self.handle)}?overwrite=false"
        return ask_compat(world, "PUT", path, list(self.values), read=self._created)

    def v1(self, world: World) -> str:
        if isinstance(self.handle, bytes):
            path, values = f"/handles/{segment(self.handle)}", {"values": self.values}
            return ask_v1(world, "PUT", path, values, identity=ADMINISTRATOR, read=self._created)
        body = {"handle": self.handle, "values": self.values}
        return ask_v1(world, "POST", "/handles", body, identity=ADMINISTRATOR, read=self._created)


@dataclass(frozen=True)
class Change:
    """Is a change of a record accepted?"""

    request: Request
    handle: str

    web = ONLY_READS

    def _answer(self, caller: callers.Interface) -> str:
        code = caller.send(self.request, self.handle)
        return "accepted" if code == callers.ACCEPTED else refused(code)

    def cli(self, world: World) -> str:
        return self._answer(callers.CommandLine(world.cli.directory))

    def python(self, world: World) -> str:
        return self._answer(callers.Python(world.python))

    def native(self, world: World) -> str:
        return self._answer(callers.NativeProtocol(world.native))

    def compat(self, world: World) -> str:
        return self._answer(callers.CompatibleApi(world.compat))

    def v1(self, world: World) -> str:
        return self._answer(callers.OwnApi(world.v1))


@dataclass(frozen=True)
class Minted:
    """Which suffixes are minted? Several must differ, and a PILIN suffix must encode the time of the request."""

    prefix: str
    count: int = 1

    def _check(self, mint: Callable[[], list[str]]) -> str:
        start = time.time_ns()
        handles = mint()
        assert len({*handles}) == len(handles) == self.count, handles
        suffixes = [handle.removeprefix(f"{self.prefix}/") for handle in handles]
        if self.prefix == "102.100.272":
            first, last = (pilin.from_unix_ns(each) for each in (start, time.time_ns()))
            # Names of one request may run ahead of the clock: one millisecond each.
            assert all(first <= pilin.decode(suffix) <= last + AHEAD for suffix in suffixes), suffixes
        return suffixes[-1]

    def cli(self, world: World) -> str:
        words = f"mint {self.prefix} --count {self.count} --as {ADMINISTRATOR}"
        return self._check(lambda: world.cli.lines(words))

    def python(self, world: World) -> str:
        command = Mint(self.prefix, self.count)
        by = identity_of(ADMINISTRATOR)
        return self._check(lambda: [str(each) for each in world.python.do(command, by, "cli").handles])

    def native(self, world: World) -> str:
        def read(body: CreationResult) -> str:
            return (body.handle or b"").decode()

        body = ValuesRequest(f"{self.prefix}/".encode(), (text(1, "URL", "https://example.org/"),))

        def mint() -> str:
            return ask_native(world, OpCode.CREATE_HANDLE, body, OpFlag.MINT_SUFFIX, read=read)

        return self._check(lambda: [mint() for _ in range(self.count)])

    def compat(self, world: World) -> str:
        path, body = f"{self.prefix}/?mintNewSuffix=true", [{"index": 1, "type": "URL", "data": "https://example.org/"}]

        def mint() -> str:
            return ask_compat(world, "PUT", path, body, read=lambda each: str(each["handle"]))

        return self._check(lambda: [mint() for _ in range(self.count)])

    def v1(self, world: World) -> str:
        body = {"prefix": self.prefix, "count": self.count}

        def mint() -> str:
            return ask_v1(
                world, "POST", "/mint", body, identity=ADMINISTRATOR, read=lambda each: " ".join(each["handles"])
            )

        return self._check(lambda: mint().split())

    def web(self, world: World) -> str:
        def mint() -> list[str]:
            user = ConsoleUser(world.web).sign_in()
            user.get("/console/new")
            user.submit("/new", prefix=self.prefix, mode="reserve", count=str(self.count))
            found = re.findall(r'<bdi class="name">(.+?)</bdi>', user.page.body.decode())
            names = [name.replace("<wbr>", "") for name in found]
            return [name for name in names if name.startswith(f"{self.prefix}/")]

        return self._check(mint)


AHEAD: Final = 1_000
"""Milliseconds by which the tests of one run may lead the clock."""


@dataclass(frozen=True)
class NewNamespace:
    """Can a namespace be added?"""

    prefix: str
    profile: str = "free"
    identity: str = ADMINISTRATOR
    policy: str = ""
    """A policy in TOML, instead of a profile."""

    native = compat = "hosting a prefix gives it the default policy; it has no profile"
    web = NO_PAGE

    def cli(self, world: World) -> str:
        rules = ("--policy", "-") if self.policy else ("--profile", self.profile)
        words = ("namespace", "add", self.prefix, *rules, "--as", self.identity)
        return ask_cli(world, *words, stdin=self.policy, read=lambda _: "added")

    def python(self, world: World) -> str:
        def ask() -> str:
            policy = NamespacePolicy.from_toml(self.policy) if self.policy else PROFILES[self.profile]
            values = administrator_values(self.prefix, (administrator_key("12345"),))
            namespace = AddNamespace(self.prefix, with_group_administrators(policy), values)
            add_namespace(world.python, namespace, identity_of(self.identity), "cli")
            return "added"

        return ask_python(ask)

    def v1(self, world: World) -> str:
        rules = {"policy": self.policy} if self.policy else {"profile": self.profile}
        body = {"prefix": self.prefix, **rules}
        return ask_v1(world, "POST", "/namespaces", body, identity=self.identity, read=lambda _: "added")


@dataclass(frozen=True)
class Policy:
    """What does the policy of a namespace say?"""

    prefix: str
    keys: tuple[str, ...] = ("scheme", "case", "authority")

    native = compat = NO_SUCH_REQUEST
    web = NO_PAGE

    def _read(self, found: Any) -> str:
        return " | ".join(str(found[key]) for key in self.keys)

    def cli(self, world: World) -> str:
        return ask_cli(world, "namespace", "show", self.prefix, read=self._read)

    def python(self, world: World) -> str:
        with world.python.snapshot() as snapshot:
            return self._read(summarize(snapshot, self.prefix))

    def v1(self, world: World) -> str:
        return ask_v1(world, "GET", f"/namespaces/{self.prefix}", identity=ADMINISTRATOR, read=self._read)


@dataclass(frozen=True)
class Reservation:
    """Can a handle that was just reserved be resolved, and created by somebody else?"""

    name: str
    """A prefix, or a chosen handle."""

    native = compat = NO_SUCH_REQUEST
    web = "the console shows this only to users who have signed in"

    def _check(self, handle: str, ask: Callable[[Look | Change], str]) -> str:
        assert handle.startswith(f"{self.name}/") or handle == self.name
        return f"{ask(Look(handle))} | {ask(Change(Request('create', identity=ANN), handle))}"

    def cli(self, world: World) -> str:
        (handle,) = world.cli.lines(f"reserve {self.name} --as {ADMINISTRATOR}")
        return self._check(handle, lambda each: each.cli(world))

    def python(self, world: World) -> str:
        chosen, minted = Reserve((Handle.for_lookup(self.name) or Handle("0", "0"),)), Mint
        command = chosen if "/" in self.name else minted(self.name, reserve=True)
        (handle,) = world.python.do(command, identity_of(ADMINISTRATOR), "cli").handles
        return self._check(str(handle), lambda each: each.python(world))

    def v1(self, world: World) -> str:
        body: dict[str, object] = {"handles": [self.name]} if "/" in self.name else {"prefix": self.name}
        handle = ask_v1(world, "POST", "/reserve", body, identity=ADMINISTRATOR, read=lambda each: each["handles"][0])
        return self._check(handle, lambda each: each.v1(world))


@dataclass(frozen=True)
class Listed:
    """Which handles are under a prefix? As the administrator."""

    prefix: str

    web = NO_PAGE

    def cli(self, world: World) -> str:
        return " | ".join(world.cli.lines(f"list {self.prefix}"))

    def python(self, world: World) -> str:
        with world.python.snapshot() as snapshot:
            page = list_handles(snapshot, identity_of(ADMINISTRATOR), self.prefix)
            return " | ".join(str(each.handle) for each in page.items)

    def native(self, world: World) -> str:
        def read(body: HandleList) -> str:
            return " | ".join(each.decode() for each in body.handles)

        body = HandleRequest(f"0.NA/{self.prefix}".encode())
        return ask_native(world, OpCode.LIST_HANDLES, body, read=read)

    def compat(self, world: World) -> str:
        answer = world.compat.get(f"/api/handles?prefix={self.prefix}", headers=basic())
        return " | ".join(json.loads(answer.body)["handles"])

    def v1(self, world: World) -> str:
        def read(found: Any) -> str:
            return " | ".join(each["handle"] for each in found["handles"])

        return ask_v1(world, "GET", f"/namespaces/{self.prefix}/handles", identity=ADMINISTRATOR, read=read)


@dataclass(frozen=True)
class WithMetadata:
    """How are an object and its metadata record linked that are minted together?"""

    prefix: str

    native = compat = NO_SUCH_REQUEST
    web = "the console mints no metadata records"

    def _check(self, handles: Sequence[str], types: Callable[[Types], str]) -> str:
        thing, about = handles
        return f"{types(Types(thing))} / {types(Types(about))}"

    def cli(self, world: World) -> str:
        handles = world.cli.lines(f"mint {self.prefix} --with-metadata --as {ADMINISTRATOR}")
        return self._check(handles, lambda each: each.cli(world))

    def python(self, world: World) -> str:
        command = Mint(self.prefix, metadata=())
        made = world.python.do(command, identity_of(ADMINISTRATOR), "cli").handles
        return self._check([str(each) for each in made], lambda each: each.python(world))

    def v1(self, world: World) -> str:
        body = {"prefix": self.prefix, "metadata": []}

        def read(found: Any) -> str:
            return " ".join([*found["handles"], *found["metadata"]])

        handles = ask_v1(world, "POST", "/mint", body, identity=ADMINISTRATOR, read=read)
        return self._check(handles.split(), lambda each: each.v1(world))


@dataclass(frozen=True)
class Actors:
    """Who changed a record, newest first? As the administrator, and as the public sees it."""

    handle: str

    native = compat = NO_SUCH_REQUEST
    web = NO_PAGE

    def _join(self, ours: Sequence[str | None], public: Sequence[str | None]) -> str:
        return f"{', '.join(map(str, ours))} | {', '.join(map(str, public))}"

    def _read(self, found: Any) -> str:
        return ", ".join(str(each.get("actor")) for each in found["versions"])

    def cli(self, world: World) -> str:
        ours = ask_cli(world, "history", self.handle, "--as", ADMINISTRATOR, read=self._read)
        return f"{ours} | {ask_cli(world, 'history', self.handle, '--as', ANN, read=self._read)}"

    def python(self, world: World) -> str:
        with world.python.snapshot() as snapshot:
            ours, public = [
                [version.actor for version in get_history(snapshot, each, Handle.parse(self.handle)).versions]
                for each in (identity_of(ADMINISTRATOR), Anonymous())
            ]
        return self._join(ours, public)

    def v1(self, world: World) -> str:
        path = f"/handles/{segment(self.handle)}/history"
        ours = ask_v1(world, "GET", path, identity=ADMINISTRATOR, read=self._read)
        return f"{ours} | {ask_v1(world, 'GET', path, read=self._read)}"


@dataclass(frozen=True)
class Transferred:
    """Who owns a handle after it was transferred?"""

    handle: str
    to: str

    native = compat = "administrators are changed like other values"
    web = ONLY_READS

    def _read(self, found: Any) -> str:
        admins = [value["data"]["value"] for value in found["values"] if value["type"] == "HS_ADMIN"]
        return " | ".join(f"{each['index']}:{each['handle']}" for each in admins)

    def cli(self, world: World) -> str:
        words = ("transfer", self.handle, "--to", self.to, "--as", ADMINISTRATOR)
        problem = ask_cli(world, *words, read=lambda _: "")
        return problem or ask_cli(world, "resolve", self.handle, read=self._read)

    def python(self, world: World) -> str:
        command = Transfer(Handle.parse(self.handle), ValueRef.parse(self.to))

        def ask() -> str:
            world.python.do(command, identity_of(ADMINISTRATOR), "cli")
            values = world.python.resolve(Query(Handle.parse(self.handle)), Anonymous()).values
            return self._read({"values": [value_to_json(value) for value in values]})

        return ask_python(ask)

    def v1(self, world: World) -> str:
        path = f"/handles/{segment(self.handle)}"
        body = {"to": self.to}
        problem = ask_v1(world, "POST", f"{path}/transfer", body, identity=ADMINISTRATOR, read=lambda _: "")
        return problem or ask_v1(world, "GET", path, read=self._read)


@dataclass(frozen=True)
class Lifecycle:
    """Is a handle published, unpublished or given a tombstone?"""

    action: str
    handle: str

    native = compat = NO_SUCH_REQUEST
    web = ONLY_READS

    def cli(self, world: World) -> str:
        reason = ["--reason", "Withdrawn"] if self.action == "tombstone" else []
        return ask_cli(world, self.action, self.handle, *reason, "--as", ADMINISTRATOR, read=lambda _: "accepted")

    def python(self, world: World) -> str:
        handle = Handle.parse(self.handle)
        commands: dict[str, Publish | Unpublish | Tombstone] = {
            "publish": Publish(handle),
            "unpublish": Unpublish(handle),
            "tombstone": Tombstone(handle, "Withdrawn"),
        }

        def ask() -> str:
            world.python.do(commands[self.action], identity_of(ADMINISTRATOR), "cli")
            return "accepted"

        return ask_python(ask)

    def v1(self, world: World) -> str:
        path = f"/handles/{segment(self.handle)}/{self.action}"
        body = {"reason": "Withdrawn"} if self.action == "tombstone" else None
        return ask_v1(world, "POST", path, body, identity=ADMINISTRATOR, read=lambda _: "accepted")


@dataclass(frozen=True)
class Declared:
    """Which forms of URLs does the resolver declare?"""

    cli = python = native = compat = v1 = "published by the web resolver at /resolver.json"

    def web(self, world: World) -> str:
        forms = json.loads(world.web.get("/resolver.json").body)["forms"]
        return " | ".join(f"{form['template']} {form['segment']}" for form in forms)

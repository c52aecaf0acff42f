"""A static site answers like the server that it replaces, served by nginx and by Apache."""

import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.bulk.static import servers
from perseid.bulk.static.site import StaticRecord, make_id, render_record
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Appended
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import UnsuitableDirectory
from perseid.names.handle import CaseRule
from perseid.proof.document import verify_proof
from perseid.proof.verifier import LogKey
from perseid.records.record import Permission, Value
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import CHECKPOINT_KEY, KEYS_NAME, Installation
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.http.context import HttpSettings
from perseid.server.http.static_export import export_static
from tests.cli.installation import site
from tests.server.faults.machine import eventually
from tests.server.http.contexts import Harness, serve

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
NGINX, APACHE = shutil.which("nginx", path=_PATH), shutil.which("apache2", path=_PATH)
MODULES = Path("/usr/lib/apache2/modules")
OPERATOR = LocalIdentity("ann")
PRIVATE = Permission.ADMIN_READ | Permission.ADMIN_WRITE

LOCATIONS = (
    '<locations http_sc="307"><location id="0" href="https://a.example/${x}" weight="1"/>'
    '<location id="1" href="https://b.example/" weight="0"/></locations>'
)
NAMES = [
    *(
        "12345/plain",
        "12345/MixedCase",
        "12345/a b",
        "12345/grün-ß",
        "12345/日本",
        'xy.z/a"b',
        "12345/a\\b",
        "12345/a\\",
    ),
    *("12345/a$b${c};d}", "12345/a//b", "12345/x/", "12345/%2F", "12345/a%b%20c", "12345/a?b#c", "12345/..", "12345/."),
    *("12345/a/../b", "12345/a/./b", "12345/...", "12345/~x", "12345/default", "12345/'q'", "12345/hostnames"),
    *("12345/include", "12345/*.x", "12345/a\tb", "12345/<b>&amp;", "12345/CON", "12345/a:b|c"),
    *("54321/Aa", "54321/aA", "54321/AA", "54321/b.(c)", "54321/../a", "54321/../A", "0.NA/12345/plain"),
]
TOO_LONG = [*("54321/" + "*" * 2_000 + letter for letter in "bB"), "12345/../" + "ö" * 900]
LONG = ["12345/" + "l" * 1_500, "12345/" + "l" * 1_018 + "/12345/plain", *TOO_LONG]
"""In no map of Apache, and those that are too long in none of nginx either."""
TARGETS = [
    *(
        "https://example.org/{number}",
        'https://example.org/"quoted";}} # {number}',
        "https://example.org/$uri${{x}}/{number}",
    ),
    *(
        "https://example.org/a\\nb\\{number}",
        "http://bücher.example/ü {number}",
        "https://example.org/?a=1&b={number}#c",
    ),
    *("ftp://example.org/{number}", "mailto:a{number}@example.org", "https://example.org/%0d%0aX:{number}"),
    *("javascript:alert({number})", "https://example.org/\r\nX-Evil: {number}", "no url {number}"),
]


def put(registry: Registry, name: str, *values: Value, state: State = State.NORMAL, exact: bool = False) -> None:
    """Append an entry, whatever the rules for new handles say."""
    draft = Draft(Action.CREATE, state, name, "cli", "local:ann", "", values, exact)
    assert isinstance(registry.ledger.append(Append(draft))[0], Appended)


def fill(registry: Registry) -> None:
    """Create records with names and targets of every kind."""
    registry.do(AddNamespace("12345", PROFILES["free"], ()), OPERATOR, "cli")
    registry.do(AddNamespace("xy.z", PROFILES["free"], ()), OPERATOR, "cli")
    sensitive = Policy(**PROFILES["free"].values() | {"case": CaseRule.SENSITIVE})
    registry.do(AddNamespace("54321", sensitive, ()), OPERATOR, "cli")
    for number, name in enumerate([*NAMES, *LONG]):
        url = Value.text(1, "URL", TARGETS[number % len(TARGETS)].format(number=number))
        hidden = Value(2, "EMAIL", b"secret@example.org", permissions=PRIVATE)
        put(registry, name, url, hidden, exact=name.startswith("54321/"))
    put(registry, "12345/loc", Value.text(1, "10320/loc", LOCATIONS))
    put(registry, "12345/alias", Value.text(1, "HS_ALIAS", "12345/alias-2"))
    put(registry, "12345/alias-2", Value.text(1, "HS_ALIAS", "12345/a b"))
    put(registry, "12345/alias-away", Value.text(1, "HS_ALIAS", "99999/x"))
    put(registry, "12345/only-private", Value(1, "URL", b"https://secret.example/", permissions=PRIVATE))
    put(registry, "12345/gone", Value.text(1, "TOMBSTONE.REASON", "<b>Withdrawn</b>"), state=State.TOMBSTONE)
    put(registry, "12345/unpublished", Value.text(1, "URL", "https://unpublished.example/"), state=State.UNPUBLISHED)
    put(registry, "12345/reserved", state=State.RESERVED)
    for number, query in enumerate(("?", "?&", "?a=1&", "?a=1&&", "?a?", "?#c")):
        put(registry, f"12345/query-{number}", Value.text(1, "URL", f"https://example.org/{query}"))
    put(registry, "12345/far", Value.text(1, "URL", "https://example.org/" + "x" * 5_000))


@dataclass(frozen=True)
class Answer:
    status: int
    location: str | None
    body: bytes


@dataclass(frozen=True)
class Both:
    """A server, and nginx and Apache with its static site."""

    server: Harness
    folder: Path
    socket: Path
    port: int
    """Of Apache."""
    signer: Signer

    def ask_server(self, target: bytes, accept: str) -> Answer:
        response = self.server.get(target, headers={"Accept": accept})
        return Answer(response.status, next(response.values("Location"), None), bytes(response.body))

    def ask_nginx(self, target: bytes, accept: str) -> Answer:
        return self._ask(socket.AF_UNIX, str(self.socket), target, accept)

    def ask_apache(self, target: bytes, accept: str) -> Answer:
        return self._ask(socket.AF_INET, ("127.0.0.1", self.port), target, accept)

    def _ask(self, family: int, address: str | tuple[str, int], target: bytes, accept: str) -> Answer:
        with socket.socket(family) as link:
            link.settimeout(30)
            link.connect(address)
            head = f"Host: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode()
            link.sendall(b"GET " + target + b" HTTP/1.1\r\n" + head)
            response = http.client.HTTPResponse(link)
            response.begin()
            return Answer(response.status, response.getheader("Location"), response.read())


@contextmanager
def run_nginx(folder: Path, work: Path) -> Iterator[Path]:
    """Serve a static site with nginx on a Unix socket."""
    assert NGINX is not None
    path = work / "socket"
    text = (folder / "nginx.conf").read_text()
    assert text.count("listen 80;") == 1
    (work / "site.conf").write_text(text.replace("listen 80;", f"listen unix:{path};"))
    temporary = "".join(
        [f"{each}_temp_path {work}/{each};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    (work / "nginx.conf").write_text(
        f"daemon off;\n{user}worker_processes 1;\npid {work}/pid;\nerror_log {work}/errors;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {work}/site.conf;\n}}\n"
    )
    process = subprocess.Popen([NGINX, "-e", f"{work}/errors", "-c", f"{work}/nginx.conf", "-p", str(work)])
    try:
        eventually(lambda: path.exists() or process.poll() is not None, "nginx listens")
        assert process.poll() is None, (work / "errors").read_text()
        yield path
        assert "map_hash" not in (work / "errors").read_text()
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def run_apache(folder: Path, work: Path) -> Iterator[int]:
    """Serve a static site with Apache, which has no Unix sockets; the result is its port."""
    assert APACHE is not None
    with socket.create_server(("127.0.0.1", 0)) as link:
        port: int = link.getsockname()[1]
    modules = ("mpm_event", "authz_core", "rewrite", "headers", "alias", "mime")
    loads = "".join([f"LoadModule {each}_module {MODULES}/mod_{each}.so\n" for each in modules])
    user = "User nobody\nGroup nogroup\n" if os.geteuid() == 0 else ""
    (work / "mime.types").touch()
    (work / "apache.conf").write_text(
        f"{loads}{user}ServerRoot {work}\nDefaultRuntimeDir {work}\nPidFile {work}/apache.pid\n"
        f"ErrorLog {work}/apache-errors\nTypesConfig {work}/mime.types\nServerName localhost\n"
        f'Listen 127.0.0.1:{port}\n<VirtualHost *:{port}>\nInclude "{folder}/apache.conf"\n</VirtualHost>\n'
    )
    process = subprocess.Popen([APACHE, "-f", f"{work}/apache.conf", "-DFOREGROUND"])
    try:
        eventually(lambda: (work / "apache.pid").exists() or process.poll() is not None, "Apache listens")
        assert process.poll() is None, (work / "apache-errors").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    assert NGINX is not None, "nginx is not installed: make test installs it"
    assert APACHE is not None, "Apache is not installed: make test installs it"
    here = site(tmp_path_factory.mktemp("demo"), "--demo").directory
    with (
        tempfile.TemporaryDirectory(prefix="perseid-nginx-") as work,
        Installation.open(here, environ={}) as installation,
    ):
        eventually(lambda: installation.ledger.ready, "the answers view is ready")
        registry = installation.registry()
        fill(registry)
        server = serve(registry)
        server.configure(public_url="")
        signer = Signer.from_bytes((here / KEYS_NAME / CHECKPOINT_KEY).read_bytes())
        folder = Path(work) / "a site"
        summary, _ = export_static(registry, OPERATOR, HttpSettings(), signer, folder)
        assert sorted(summary.pages_only) == sorted(["12345/far", *LONG])
        for each in (Path(work), folder, *folder.rglob("*")):  # Apache has another user than root
            each.chmod(0o755 if each.is_dir() else 0o644)
        with run_nginx(folder, Path(work)) as path, run_apache(folder, Path(work)) as port:
            yield Both(server, folder, path, port, signer)


def public_handles(both: Both) -> list[str]:
    return [json.loads(file.read_bytes())["handle"] for file in both.folder.glob("records/??/*.json")]


def test_apache_answers_every_record_as_the_server_does(both: Both) -> None:
    """Apache writes the target of an alias as a whole URL, and resolves the segments of a path that are dots."""
    here = f"http://localhost:{both.port}"
    for handle in set(public_handles(both)) - {*LONG, "12345/far", "12345/alias-away"}:
        if re.search(r"(^|/)\.\.?(/|$)", handle):
            continue
        for name in {quote(handle, safe="/~!$&'()*+,;=:@"), quote(handle, safe="")}:
            ours, theirs = (ask(f"/{name}".encode(), "text/html") for ask in (both.ask_apache, both.ask_server))
            location = None if ours.location is None else ours.location.removeprefix(here)
            assert (ours.status, location) == (theirs.status, theirs.location), name
            target = f"/api/handles/{name}".encode()
            ours, theirs = (ask(target, "*/*") for ask in (both.ask_apache, both.ask_server))
            assert (ours.status, json.loads(ours.body)) == (theirs.status, json.loads(theirs.body)), name
    for name in ("12345/unpublished", "12345/missing", "99999/x", "apache.conf"):
        assert both.ask_apache(f"/{name}".encode(), "text/html").status == 404
    assert both.ask_apache(b"/", "text/html").status == 200


def test_every_record_is_answered_as_by_the_server(both: Both) -> None:
    handles = public_handles(both)
    assert set(handles) >= {*NAMES, "12345/gone", "102.100.272/0N8J991QH"}
    assert len(handles) == len(set(handles))
    for handle in set(handles) - {*TOO_LONG}:
        for name in {quote(handle, safe="/~!$&'()*+,;=:@"), quote(handle, safe=""), quote(handle, safe="/").lower()}:
            if name.lower() == name and handle.startswith("54321/"):
                continue  # the case of the suffix matters
            for start in ("/", "/hdl/"):
                if re.search(r"(^|/)\.\.?(/|$)", handle) and (
                    start != "/" or name != quote(handle, safe="/~!$&'()*+,;=:@")
                ):
                    continue  # nginx removes such segments; only the usual spelling is recognized
                ours, theirs = (
                    ask(f"{start}{name}".encode(), "text/html") for ask in (both.ask_nginx, both.ask_server)
                )
                if handle == "12345/far":
                    assert (ours.status, theirs.status) == (200, 302)
                    continue
                if handle == "12345/alias-away":
                    assert ours.status == 200  # the server says that another one hosts the target
                    continue
                expected = theirs.location
                if start != "/" and theirs.status == 301 and expected is not None:
                    expected = expected.removeprefix("/hdl")  # an alias leads to the usual path of its target
                assert (ours.status, ours.location) == (theirs.status, expected), (start, name)


def test_json_is_that_of_the_api(both: Both) -> None:
    for handle in set(public_handles(both)) - {*TOO_LONG}:
        if re.search(r"(^|/)\.\.?(/|$)", handle):
            continue
        for name in (quote(handle, safe="/"), quote(handle, safe="")):
            target = f"/api/handles/{name}".encode()
            ours, theirs = (ask(target, "*/*") for ask in (both.ask_nginx, both.ask_server))
            assert (ours.status, json.loads(ours.body)) == (theirs.status, json.loads(theirs.body)), name


def test_other_names_are_not_found(both: Both) -> None:
    for name in (
        "12345/unpublished",
        "12345/reserved",
        "12345/missing",
        "99999/x",
        ".perseid/records/index",
        "nginx.conf",
    ):
        assert both.ask_nginx(f"/{name}".encode(), "text/html").status == 404
        found = both.ask_nginx(f"/api/handles/{name}".encode(), "*/*")
        assert (found.status, json.loads(found.body)) == (404, {"responseCode": 100})
    for name in ("54321/aa", "54321/nothing"):
        assert both.ask_server(f"/{name}".encode(), "text/html").status == 404
    assert both.ask_nginx(b"/", "text/html").status == 200
    gone = both.ask_nginx(b"/12345/gone", "text/html")
    assert b"&lt;b&gt;Withdrawn&lt;/b&gt;" in gone.body


def test_nothing_private_is_in_the_site(both: Both) -> None:
    forbidden = (b"secret", b"unpublished", b"reserved", b"alice")
    for file in both.folder.rglob("*"):
        if file.is_file() and file.name != "README.md":
            data = file.read_bytes()
            assert not [word for word in forbidden if word in data], file


def test_manifest_and_proofs_are_valid(both: Both) -> None:
    lines = (both.folder / "MANIFEST.sha256").read_text().splitlines()
    listed = dict([line.split("  ", 1)[::-1] for line in lines])
    files = {str(file.relative_to(both.folder)) for file in both.folder.rglob("*") if file.is_file()}
    assert set(listed) == files - {"MANIFEST.sha256"}
    for name, digest in listed.items():
        assert hashlib.sha256((both.folder / name).read_bytes()).hexdigest() == digest
    keys = json.loads((both.folder / "ledger" / "keys.json").read_bytes())
    proofs = list(both.folder.glob("proofs/??/*.json"))
    assert len(proofs) >= len(public_handles(both))
    for file in proofs[:5]:
        assert verify_proof(file.read_text(), LogKey.parse(keys["key"])).keys
    leaves = (both.folder / "ledger" / "leaves.txt").read_text().splitlines()
    size = int((both.folder / "ledger" / "checkpoint.txt").read_text().splitlines()[1])
    assert len(leaves) == size


def test_existing_files_are_not_overwritten(both: Both, tmp_path: Path) -> None:
    registry = both.server.registry
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UnsuitableDirectory, match="not empty"):
        export_static(registry, OPERATOR, HttpSettings(), both.signer, tmp_path)
    with pytest.raises(UnsuitableDirectory, match="site is not empty"):
        export_static(registry, OPERATOR, HttpSettings(), both.signer, both.folder)
    with pytest.raises(UnsuitableDirectory, match="characters"):
        export_static(registry, OPERATOR, HttpSettings(), both.signer, tmp_path / "a$b")
    with pytest.raises(Refused):
        export_static(registry, OPERATOR, HttpSettings(), both.signer, tmp_path / "new", "77777")


# Escaping


def read_tokens(text: str) -> list[str]:
    """Split a line of nginx's configuration as nginx does: words, quoted strings, and `;` at the end."""
    tokens, at = [], 0
    while at < len(text):
        if text[at] in " \t\r\n":
            at += 1
            continue
        if text[at] == ";":
            tokens.append(";")
            at += 1
            continue
        if text[at] == '"':
            end, token = at + 1, ""
            while text[end] != '"':
                if text[end] == "\\" and text[end + 1] in "\"'\\tnr":
                    token += {"t": "\t", "n": "\n", "r": "\r"}.get(text[end + 1], text[end + 1])
                    end += 2
                else:
                    token += text[end]
                    end += 1
            assert text[end + 1] in " ;", "a blank or the end follows a quoted string"
            tokens.append(token)
            at = end + 1
            continue
        word = re.match(r"[^\s;{}\"'\\$]+", text[at:])
        assert word is not None, text[at:]
        tokens.append(word[0])
        at += len(word[0])
    return tokens


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(list("\\\"'$;{}#\n\r\t ~*")), max_size=30)


@given(TEXTS, TEXTS)
def test_no_text_becomes_configuration(name: str, location: str) -> None:
    line = f"{servers.quote_nginx(f'/{name}', is_value=False)} {servers.quote_nginx(location)};"
    key, value, end = read_tokens(line)
    assert (key, end) == (f"/{name}", ";")
    assert value.replace("${perseid_dollar}", "\0") == location.replace("$", "\0")
    assert "$" not in value.replace("${perseid_dollar}", "")
    assert len(f"{servers.escape_apache(f'/{name}')} x".split()) == 2
    assert not servers.escape_apache(f"/{name}").startswith("#")
    if servers.fits(location):
        assert len(location.split()) == 1
        assert location.isascii()
        assert location.isprintable()


@given(TEXTS, st.booleans())
def test_file_names_are_safe(name: str, exact: bool) -> None:
    assert re.fullmatch("[0-9a-f]{2}/[0-9a-f]{38}", make_id(f"12345/{name}", exact=exact))
    assert make_id("12345/A", exact=False) == make_id("12345/a", exact=False)
    assert make_id("12345/A", exact=True) != make_id("12345/a", exact=True)


@given(TEXTS, TEXTS)
def test_no_text_becomes_markup(name: str, data: str) -> None:
    record = StaticRecord(name, (name,), False, (Value.text(1, name, data),), b"", 410, data, data)
    page = render_record(record).decode()
    assert len(re.findall("<[a-z!/]", page)) == len(
        re.findall(
            "<[a-z!/]",
            render_record(
                StaticRecord("x", ("x",), False, (Value.text(1, "x", "x"),), b"", 410, data and "x", "x")
            ).decode(),
        )
    )


def test_apache_configuration_is_complete(both: Both) -> None:
    text = (both.folder / "apache.conf").read_text()
    known = {
        *("AllowEncodedSlashes", "MergeSlashes", "Header", "ErrorDocument", "Alias", "Require", "AddDefaultCharset"),
        *("AddType", "RewriteEngine", "RewriteMap", "RewriteRule", "RewriteCond"),
    }
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert [line for line in lines if line.startswith("<")] == [lines[lines.index(lines[6])], "</Directory>"]
    for line in lines:
        assert line.startswith("<") or line.split()[0] in known, line
    conditions = [index for index, line in enumerate(lines) if line.startswith("RewriteCond")]
    assert all(lines[index + 1].startswith(("RewriteCond", "RewriteRule")) for index in conditions)
    named = set(re.findall(r"RewriteMap (\w+) ", text))
    assert named == set(re.findall(r"\$\{(perseid_\w+):", text))
    maps = {
        path.name: dict([line.split() for line in path.read_text().splitlines()])  # two words each
        for path in (both.folder / "apache").iterdir()
    }
    # Apache would read the rest of a longer line as an entry of its own, such as `/12345/plain ID`.
    assert max([len(key) + len(value) + 2 for each in maps.values() for key, value in each.items()]) <= 1_024
    for handle in set(public_handles(both)) - {*LONG}:
        key, exact = servers.escape_apache(f"/{handle}"), handle.startswith("54321/")
        id_ = maps["exact.map"][key] if exact else maps["names.map"][key.lower()]
        assert id_ == make_id(handle, exact=exact)
        answer = both.ask_server(f"/{quote(handle)}".encode(), "text/html")
        if answer.location is not None and handle != "12345/far":
            assert maps[f"{answer.status}.map"][id_] == answer.location

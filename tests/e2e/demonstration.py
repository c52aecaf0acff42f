"""The demonstration of `perseid serve --init-demo`, and additional handles with targets.

Handles of the demonstration have no targets, as their source documents have none. So there is another prefix, `12345`,
whose handles have targets on this machine: no test needs the network.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.lifecycle import Tombstone
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from tests.server.running import Serving, serving

PREFIX: Final = "12345"
ODD_NAME: Final = f"{PREFIX}/a/b?c#d e%20ü\"<&'>"
LONG_NAME: Final = f"{PREFIX}/{'a-very-long-name-without-a-place-to-break' * 8}"
ATTACKS: Final = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</td></tr></table><iframe src=//127.0.0.1:9></iframe>",
    "javascript:document.title='owned'",
    "data:text/html,<script>document.title='owned'</script>",
    "<style>body{display:none}</style>",
    "{{7*7}}${7*7}<!--",
    "\u202eevil\u2066",
    "x" * 3_000,
)

_OPERATOR: Final = LocalIdentity("tests")
_ADMIN: Final = Value(100, "HS_ADMIN", Admin(ValueRef(200, f"0.NA/{PREFIX}")).to_bytes())
_PAGE: Final = """<!DOCTYPE html><html lang="en"><head><title>Target</title><link rel="icon" href="data:,"></head>
<body><h1>Arrived</h1></body></html>"""


@dataclass
class Target:
    """The target of handles: a page that confirms arrival, and a log of visitors."""

    url: str
    came: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Paths with their queries, and the headers of requests in lower case."""


@contextmanager
def target() -> Iterator[Target]:
    """A small server on a free port."""
    made = Target("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.came.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            body = _PAGE.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html;charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Demonstration:
    """A served demonstration."""

    server: Serving
    names: tuple[str, ...]
    """Those that it was made with."""
    target: Target
    administrator: str
    secret: str
    """Of its first administrator, as it was shown once."""

    @property
    def url(self) -> str:
        """Its URL, without a slash at the end."""
        return f"http://127.0.0.1:{self.server.http[1]}"

    @property
    def secure_url(self) -> str:
        """The same over TLS."""
        return f"https://127.0.0.1:{self.server.http[1]}"


@contextmanager
def demonstration(folder: Path) -> Iterator[Demonstration]:
    """Create the demonstration in a directory, and serve it."""
    directory = folder / "demo"
    with target() as led_to, serving(directory, "--init-demo") as server:
        made = json.loads(server.output.splitlines()[0])
        _add_names(directory, led_to.url)
        yield Demonstration(server, tuple(made["demo"]), led_to, made["administrator"], made["secret"])


def _add_names(directory: Path, url: str) -> None:
    """Add handles while it is served, as an operator on the same machine does."""
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        registry.do(AddNamespace(PREFIX, PROFILES["free"], (_ADMIN,)), _OPERATOR, "cli")

        def create(name: str, *values: tuple[str, str]) -> None:
            numbered = [Value.text(index, type_, data) for index, (type_, data) in enumerate(values, 1)]
            registry.do(Create(Handle.parse(name), (*numbered, _ADMIN)), _OPERATOR, "cli")

        create(f"{PREFIX}/leads", ("URL", f"{url}/thing?a=b"), ("DESC", "a thing"), ("EMAIL", "keeper@example.org"))
        create(f"{PREFIX}/other", ("URL", f"{url}/other"))
        create(f"{PREFIX}/alias", ("HS_ALIAS", f"{PREFIX}/leads"))
        by_role = "".join(
            [
                f'<location href="{url}/{place}" http_role="{role}" weight="1"/>'
                for place, role in (("program", "conneg"), ("people", "browser"))
            ]
        )
        create(f"{PREFIX}/chosen", ("10320/loc", f"<locations>{by_role}</locations>"))
        create(ODD_NAME, ("URL", f"{url}/odd"))
        create(LONG_NAME, ("DESC", "word " * 200), ("NOTE", "unbroken" * 400))
        create(f"{PREFIX}/attacks", *[("DESC" if number % 2 else "URL", text) for number, text in enumerate(ATTACKS)])
        create(f"{PREFIX}/script", ("URL", "javascript:document.title='owned'"))
        create(f"{PREFIX}/gone", ("URL", f"{url}/gone"))
        reason = "It was <b>withdrawn</b>.\nNobody knows why."
        tombstone = Tombstone(Handle.parse(f"{PREFIX}/gone"), reason, Handle.parse(f"{PREFIX}/leads"))
        registry.do(tombstone, _OPERATOR, "cli")

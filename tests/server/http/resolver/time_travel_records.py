"""A server with a controlled clock, so that every version of a record has a second of its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Final

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.records import Create
from perseid.server.http.messages import Response
from tests.registry.queries.link_parser import ReadLink, read_links
from tests.server.http.contexts import Harness, recorded_harness
from tests.server.http.resolver.resolver_records import text
from tests.server.installations import OPERATOR
from tests.server.native.native_servers import BY_ADMINS, NOW, PREFIX, Clock

START: Final = int(NOW) + 100
STEP: Final = 60
"""Seconds between two changes."""

JSON: Final = {"Accept": "application/json"}
HOME: Final = "https://hdl.example.org"


@dataclass
class Machine:
    """A server whose clock advances when something is changed."""

    server: Harness
    clock: Clock
    now: int = START

    def do(self, operation: Any, interface: str = "cli") -> int:
        """Change something a while later; return the number of the entry."""
        self.now += STEP
        self.clock.show(self.now)
        self.server.registry.do(operation, OPERATOR, interface)
        with self.server.registry.snapshot() as snapshot:
            return snapshot.reader.size

    def put(self, name: str, *values: Value, interface: str = "cli") -> int:
        create = Create(Handle.parse(name), (*values, BY_ADMINS), overwrite=True, reuse_deleted=True)
        return self.do(create, interface)

    def get(self, target: str, seconds: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
        """Send a request; with `seconds`, for that time."""
        time = {} if seconds is None else {"Accept-Datetime": formatdate(seconds, usegmt=True)}
        return self.server.get(target, headers={**(headers or {}), **time})


@contextmanager
def time_machine() -> Iterator[Machine]:
    """A server with the records that the resolver tests share."""
    clock = Clock()
    clock.show(START)
    with recorded_harness(clock) as server:
        yield Machine(server, clock)


@dataclass(frozen=True)
class Moved:
    """A handle that had two targets, one after the other."""

    name: str
    seqs: tuple[int, int]
    times: tuple[int, int]

    @classmethod
    def made(cls, machine: Machine, name: str = f"{PREFIX}/moved") -> "Moved":
        first = machine.put(name, text(1, "URL", "https://one.example/", 60), text(2, "TITLE", "The thing"))
        begun = machine.now
        second = machine.put(name, text(1, "URL", "https://two.example/", 60), text(2, "TITLE", "The thing"))
        return cls(name, (first, second), (begun, machine.now))


def links_of(answer: Response) -> dict[str, list[ReadLink]]:
    """The links of a response by relation."""
    found: dict[str, list[ReadLink]] = {}
    for link in [link for value in answer.values("Link") for link in read_links(value)]:
        for relation in link.relations:
            found.setdefault(relation, []).append(link)
    return found


def iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")

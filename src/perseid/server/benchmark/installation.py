"""Installations to be measured: created by the command line, filled by appending to the ledger in groups."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Appended
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_ADMIN
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.setup import GROUP_INDEX, administrator_key

PREFIX: Final = "20.500.99999"
FORMAT: Final = PREFIX + "/%07d"
"""The handles, as a `printf` format: every load generator requests the same."""
GROUP: Final = 5_000
"""Records in a commit while an installation is filled."""
INTERFACE: Final = "bench"
ADMINISTRATOR: Final = administrator_key(PREFIX)

LIMITS: Final = {
    "PERSEID_LIMITS_EXEMPT_NETWORKS": "192.0.2.0/24",
    "PERSEID_LIMITS_HTTP_AT_ONCE": "1000000",
    "PERSEID_LIMITS_UDP_OCTETS": "1000000000",
    "PERSEID_LIMITS_UDP_BURST": "1000000000",
    "PERSEID_LIMITS_UDP_OCTETS_IN_ALL": "1000000000",
}
"""Limits that apply to this machine but are never reached."""
QUIET: Final = {
    "PERSEID_LOG_ACCESS": "false",
    "PERSEID_LOG_ACCESS_UDP": "false",
    "PERSEID_LOG_LEVEL": "warning",
}
"""No access log, which could be on a slow terminal."""

_PROGRAM = (sys.executable, "-c", "from perseid.cli import main; main()")
_EMAIL = Value.text(4, "EMAIL", "someone@example.org")
_ADMIN = Value(100, HS_ADMIN, Admin(ValueRef(GROUP_INDEX, f"0.NA/{PREFIX}")).to_bytes())
STOP_SECONDS: Final = 30
"""How long a server may take to stop before it is killed."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that was started to be measured."""

    pid: int
    native: tuple[str, int]
    http: tuple[str, int]
    start_seconds: float
    """From the start of the program to its message that it is ready."""


def three_values(address: str) -> tuple[Value, ...]:
    """A record of usual size: URL, email, administrator."""
    return Value.text(1, "URL", f"https://example.org/items/{address}"), _EMAIL, _ADMIN


def append_request(number: int, address: str | None = None, action: Action = Action.CREATE) -> Append:
    """The record with a number, or another version of it."""
    values = three_values(address or f"{number}")
    return Append(Draft(action, State.NORMAL, FORMAT % number, INTERFACE, f"local:{INTERFACE}", values=values))


def create(directory: Path) -> str:
    """Create an installation with a namespace; return the secret of its administrator."""
    command = [*_PROGRAM, "init", str(directory), "--prefix", PREFIX, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - this program
    return str(json.loads(done.stdout)["secret"])


def fill(installation: Installation, records: int) -> None:
    """Append records."""
    numbers = iter(range(records))
    while group := [append_request(number) for number in islice(numbers, GROUP)]:
        if not all(isinstance(one, Appended) for one in installation.ledger.append(*group)):
            raise RuntimeError("a record was not written")


@contextmanager
def serving(directory: Path, environ: Mapping[str, str]) -> Iterator[RunningServer]:
    """Run a server on free ports of this machine during the block."""
    ports = ("--host", "127.0.0.1", "--native-port", "0", "--http-port", "0", "--metrics-port", "0")
    command = [*_PROGRAM, "serve", "-d", str(directory), *ports, "--json"]
    started = time.monotonic()
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this program
        try:
            if process.stdout is None or not (line := process.stdout.readline()):
                raise RuntimeError("the server did not start; see its messages")
            ready: dict[str, Any] = json.loads(line)
            yield RunningServer(
                process.pid, _address(ready["native"]), _address(ready["http"]), time.monotonic() - started
            )
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(ready: dict[str, Any]) -> tuple[str, int]:
    return ready["host"], ready["port"]

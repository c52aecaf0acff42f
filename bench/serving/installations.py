"""Installations for benchmarks: created by the command line, filled by appending to the ledger in groups."""

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Appended
from perseid.names.handle import Handle
from perseid.records.admin import Admin, ValueList
from perseid.records.private_keys import PrivateKey, read_key_file
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_ADMIN, HS_PUBKEY, HS_VLIST
from perseid.registry.commands.records import Add, Modify
from perseid.registry.commands.users import KEY_INDEX
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.setup import GROUP_INDEX, administrator_key
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules

PREFIX: Final = "20.500.99999"
FORMAT: Final = PREFIX + "/%07d"
"""The handles, as a `printf` format: the independent load generator requests the same."""
GROUP: Final = 5_000
"""Records in a commit while an installation is filled."""

ROOT: Final = Path(__file__).resolve().parents[2]
_RSA_FILE = ROOT / "tests" / "vectors" / "keys" / "rsapriv.bin"
_PREFIX_HANDLE = f"0.NA/{PREFIX}"
_BY_SECRET, _BY_RSA = administrator_key(PREFIX), ValueRef(KEY_INDEX + 1, _PREFIX_HANDLE)
_DOOR = "bench"
_EMAIL = Value.text(4, "EMAIL", "someone@example.org")
_ADMIN = Value(100, HS_ADMIN, Admin(ValueRef(GROUP_INDEX, _PREFIX_HANDLE)).to_bytes())


@dataclass(frozen=True, slots=True)
class Filled:
    """An installation, and the credentials of its administrators."""

    directory: Path
    handles: int
    secret: str

    def proof(self, kind: str) -> tuple[str, PrivateKey | bytes]:
        """Identity and key of an administrator: `rsa` or `secret`."""
        if kind == "rsa":
            return str(_BY_RSA), read_key_file(_RSA_FILE.read_bytes(), None)
        return str(_BY_SECRET), self.secret.encode()


def three_values(address: str) -> tuple[Value, ...]:
    """A record of usual size: URL, email, administrator."""
    return Value.text(1, "URL", f"https://example.org/items/{address}"), _EMAIL, _ADMIN


def make(directory: Path, handles: int) -> Filled:
    """Create an installation with a namespace, two administrators and records."""
    command = [sys.executable, "-c", "from perseid.cli import main; main()", "init", str(directory)]
    done = subprocess.run([*command, "--prefix", PREFIX, "--json"], check=True, capture_output=True, text=True)
    with Installation.open(directory) as installation:
        _add_rsa_key(Registry(installation.ledger, Rules(installation.administration)))
        numbers = iter(range(handles))
        while group := [_request(number) for number in islice(numbers, GROUP)]:
            if not all(isinstance(one, Appended) for one in installation.ledger.append(*group)):
                raise RuntimeError("a record was not written")
    return Filled(directory, handles, json.loads(done.stdout)["secret"])


def renew(directory: Path, number: int, times: int) -> tuple[int, int]:
    """Add versions to a record; return the first and the last entry of them."""
    requests = [_request(number, f"{number}/{version}", Action.UPDATE) for version in range(times)]
    with Installation.open(directory) as installation:
        entries = [one.seq for one in installation.ledger.append(*requests) if isinstance(one, Appended)]
    if len(entries) < times:
        raise RuntimeError("a version was not written")
    return entries[0], entries[-1]


def _add_rsa_key(registry: Registry) -> None:
    handle, identity = Handle.parse(_PREFIX_HANDLE), LocalIdentity(_DOOR)
    key = read_key_file(_RSA_FILE.read_bytes(), None).public
    registry.do(Add(handle, (Value(_BY_RSA.index, HS_PUBKEY, key.to_bytes()),)), identity, _DOOR)
    group = ValueList((_BY_SECRET, _BY_RSA)).to_bytes()
    registry.do(Modify(handle, (Value(GROUP_INDEX, HS_VLIST, group),)), identity, _DOOR)


def _request(number: int, address: str | None = None, action: Action = Action.CREATE) -> Append:
    values = three_values(address or f"{number}")
    return Append(Draft(action, State.NORMAL, FORMAT % number, _DOOR, f"local:{_DOOR}", values=values))

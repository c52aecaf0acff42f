"""Installations for benchmarks, with two administrators."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perseid.cli._benchmark import create
from perseid.ledger.log.entry import Action
from perseid.ledger.log.requests import Appended
from perseid.names.handle import Handle
from perseid.records.admin import ValueList
from perseid.records.private_keys import PrivateKey, read_key_file
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_PUBKEY, HS_VLIST
from perseid.registry.access.roles import KEY_INDEX
from perseid.registry.commands.records import Add, Modify
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.setup import GROUP_INDEX
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.benchmark.installation import ADMINISTRATOR, INTERFACE, PREFIX, append_request, fill

ROOT: Final = Path(__file__).resolve().parents[2]
_RSA_FILE = ROOT / "tests" / "vectors" / "keys" / "rsapriv.bin"
_PREFIX_HANDLE = f"0.NA/{PREFIX}"
_BY_RSA = ValueRef(KEY_INDEX + 1, _PREFIX_HANDLE)


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
        return str(ADMINISTRATOR), self.secret.encode()


def make(directory: Path, handles: int) -> Filled:
    """Create an installation with a namespace, two administrators and records."""
    secret = create(directory)
    with Installation.open(directory) as installation:
        _add_rsa_key(Registry(installation.ledger, Rules(installation.administration)))
        fill(installation, handles)
    return Filled(directory, handles, secret)


def renew(directory: Path, number: int, times: int) -> tuple[int, int]:
    """Add versions to a record; return the first and the last entry of them."""
    requests = [append_request(number, f"{number}/{version}", Action.UPDATE) for version in range(times)]
    with Installation.open(directory) as installation:
        entries = [one.seq for one in installation.ledger.append(*requests) if isinstance(one, Appended)]
    if len(entries) < times:
        raise RuntimeError("a version was not written")
    return entries[0], entries[-1]


def _add_rsa_key(registry: Registry) -> None:
    handle, identity = Handle.parse(_PREFIX_HANDLE), LocalIdentity(INTERFACE)
    key = read_key_file(_RSA_FILE.read_bytes(), None).public
    registry.do(Add(handle, (Value(_BY_RSA.index, HS_PUBKEY, key.to_bytes()),)), identity, INTERFACE)
    group = ValueList((ADMINISTRATOR, _BY_RSA)).to_bytes()
    registry.do(Modify(handle, (Value(GROUP_INDEX, HS_VLIST, group),)), identity, INTERFACE)

"""An export that is imported into an empty installation exports the same again."""

from pathlib import Path

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append, Appended
from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.registry.installation.installation import Installation
from tests.cli.installation import Site, site

ADMIN = Value(100, "HS_ADMIN", bytes.fromhex("0fff0000000a302e4e412f3132333435000000c8"), timestamp=1_500_000_000)
RECORDS = {
    "12345/a": (Value.text(1, "URL", "https://example.org/a").with_timestamp(1_400_000_000),),
    "12345/B c": (Value(7, "X", b"\x00\xff", 300, permissions=Permission(0x0C), timestamp=1_450_000_000),),
    "12345/grün": (
        Value.text(1, "DESC", "=1+1\n'quoted', \"and\" more").with_timestamp(1_460_000_000),
        Value.text(2, "DESC", "-2").with_timestamp(1_460_000_001),
        Value(3, "URL", b"https://example.org/", references=(ValueRef(2, "12345/a"),), timestamp=1_470_000_000),
        Value(4, "EMAIL", b"@x", 1_999_999_999, TtlType.ABSOLUTE, timestamp=1_480_000_000),
    ),
}


def fill(installation: Site) -> None:
    """Create records with values of every kind, in every state."""
    with Installation.open(installation.directory, environ={}) as opened:
        ledger = opened.registry().ledger
        for name, values in RECORDS.items():
            draft = Draft(Action.CREATE, State.NORMAL, name, "import", "local:ann", "", (*values, ADMIN))
            assert isinstance(ledger.append(Append(draft))[0], Appended)
    installation.ok("create 12345/hidden --url https://example.org/hidden")
    installation.ok("unpublish 12345/hidden")


@pytest.mark.parametrize(("format_", "name"), [("jsonl", "records.jsonl"), ("csv", "records.csv")])
def test_import_of_an_export_exports_the_same(tmp_path: Path, format_: str, name: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, second = (site(tmp_path / each, "--prefix", "12345", "--profile", "free") for each in ("one", "two"))
    fill(first)
    file, again = tmp_path / name, tmp_path / f"again-{name}"
    first.ok(f"export 12345 --format {format_} -o {file}")
    second.ok(f"import {file} --preserve-dates --yes")
    second.ok(f"export 12345 --format {format_} -o {again}")
    assert again.read_bytes() == file.read_bytes()
    assert len(second.lines("list 12345")) == len(RECORDS) + 1

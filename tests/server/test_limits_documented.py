"""docs/reference/limits.md lists every limit with its value."""

import importlib
import re
from pathlib import Path

import pytest

from perseid.registry.installation.settings import SETTINGS
from perseid.registry.policy.text import format_toml
from perseid.server.native.work import WorkKind

MANUAL = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "limits.md").read_text()
CONSTANTS = re.findall(r"^\| `(perseid\.[\w.]+)\.([A-Z_0-9]+)` \| ([\d,.]+) \| (.+) \|$", MANUAL, re.MULTILINE)

COMPLETE = (
    "perseid.wire.fragments",
    "perseid.server.limits.udp",
    "perseid.server.limits.budgets",
    "perseid.server.limits.guesses",
    "perseid.server.native.udp",
)
"""Modules of which every number is a limit."""

ELSEWHERE = {"PACKET_PAYLOAD", "MAX_REPLY_BYTES"}
"""Numbers that follow from others, or bound what is kept and not what strangers may do."""


def test_every_setting_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `limits\.(\w+)` \| `(.+?)` \| (.+) \|$", MANUAL, re.MULTILINE)
    assert [(key, default) for key, default, _ in rows] == [
        (limit.key, format_toml(limit.default)) for limit in SETTINGS.values() if limit.section == "limits"
    ]
    assert all(why.endswith(".") for *_, why in rows)


@pytest.mark.parametrize(("module", "name", "value"), [row[:3] for row in CONSTANTS])
def test_documented_value_matches_the_constant(module: str, name: str, value: str) -> None:
    found = getattr(importlib.import_module(module), name)
    assert f"{found:,}".removesuffix(".0") == value


def test_no_limit_is_missing() -> None:
    assert len(CONSTANTS) == MANUAL.count("\n| `perseid.")
    named = {(module, name) for module, name, *_ in CONSTANTS}
    for module in COMPLETE:
        numbers = {
            (module, name)
            for name, value in vars(importlib.import_module(module)).items()
            if name.isupper() and not name.startswith("_") and type(value) in (int, float) and name not in ELSEWHERE
        }
        imported = {
            ("perseid.server.limits.udp", name) for name in ("ENVELOPE", "HEADER", "MESSAGE_LIFETIME", "UNKNOWN_SERIAL")
        }
        imported |= {("perseid.server.native.udp", name) for name in ("MAX_PACKET", "MAX_PACKETS")}
        assert numbers - imported <= named


def test_every_kind_of_work_is_documented() -> None:
    kinds = re.search(r"^## Work\n\n(.+?) are .*kinds of work\.", MANUAL, re.MULTILINE)
    assert kinds
    assert len(re.split(", | and ", kinds[1])) == len(WorkKind)
    assert ("perseid.registry.queries.suggest", "STEP_LOOKUPS") in {row[:2] for row in CONSTANTS}
    assert "waiting for a resolver" not in MANUAL, "workers read datagrams"

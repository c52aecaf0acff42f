"""Every rule that a refusal cites is explained."""

import re
from pathlib import Path

import perseid.names
import perseid.registry
from perseid.names.errors import load_rules as name_rules
from perseid.schema.names import rules

RULE = re.compile(r'"([A-Z][0-9]+)"|\(rule ([A-Z][0-9]+)\)')


def cited_rules(package: Path) -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    return {quoted or named for text in texts for quoted, named in RULE.findall(text)}


def test_every_cited_rule_is_explained() -> None:
    for package in (perseid.names, perseid.registry):
        folder = Path(next(iter(package.__path__)))
        assert cited_rules(folder) <= set(rules()), folder


def test_every_rule_has_a_unique_text() -> None:
    assert set(name_rules()) < set(rules())
    for said in rules().values():
        assert said["title"]
        assert said["text"].endswith(".")
    ids = list(rules())
    assert ids.index("H3") < ids.index("H7") < ids.index("P1")

"""Suggestions for handles that were not found: existing, public, and with limited work."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.names.suggest import MAX_READINGS, MAX_TEXT, find_readings
from perseid.names.uri import KNOWN_RESOLVERS, Resolver
from perseid.records.record import ValueRef
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Create, Delete, Home
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries import suggest
from perseid.registry.queries.resolve import Query
from perseid.registry.queries.suggest import (
    MAX_LOOKUPS,
    MAX_NEIGHBORS,
    MAX_SECONDS,
    MAX_SUGGESTIONS,
    Suggestions,
    TombstoneInfo,
    suggestions,
)
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import PublicSnapshot
from perseid.schema.problems import PrefixStatus
from perseid.wire.codes import ResponseCode
from tests.registry.commands.records_in_every_state import hidden, unpublish, value
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, handle, registry_in_memory
from tests.strategies import texts

OWNER = ValueRef(300, "98765/ann")
LISTED = replace(PROFILES["free"], who_may_list=Audience.PUBLIC)
OURS = (*KNOWN_RESOLVERS, Resolver.parse("https://id.example.org/hdl"))


@pytest.fixture(autouse=True)
def _without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine can take longer than people wait; the limit has its own test, with a clock."""
    monkeypatch.setattr(suggest, "MAX_SECONDS", inf)


@pytest.fixture(scope="module")
def here() -> Iterator[Registry]:
    """Records of every kind: public, reserved, unpublished, deleted, tombstones, no longer homed."""
    with registry_in_memory() as registry:
        add_namespace(registry, "12345", LISTED)
        add_namespace(registry, "10.7", replace(PROFILES["exact"], who_may_list=Audience.PUBLIC))
        add_namespace(registry, "102.100", LISTED)
        pilin = replace(PROFILES["pilin"], authority=False, url_schemes=(), who_may_list=Audience.PUBLIC)
        add_namespace(registry, "102.100.272", pilin)
        for name in ("12345/report-7", "12345/a b", "12345/100%", "12345/x/y", "10.7/ReadMe", "102.100.272/D7J1G0DQH"):
            registry.do(Create(handle(name), (value(1),)), OPERATOR, "cli")
        registry.do(Create(handle("12345/hushed"), (value(1),)), OPERATOR, "cli")
        registry.do(Unpublish(handle("12345/hushed")), OPERATOR, "cli")
        registry.do(Reserve((handle("12345/kept4later"),), OWNER), OPERATOR, "cli")
        registry.do(Create(handle("12345/erased"), (value(1),)), OPERATOR, "cli")
        registry.do(Delete(handle("12345/erased")), OPERATOR, "cli")
        registry.do(Create(handle("12345/old-map"), (value(1),)), OPERATOR, "cli")
        registry.do(Tombstone(handle("12345/old-map"), "lost", handle("12345/report-7")), OPERATOR, "cli")
        registry.do(Create(handle("12345/closed"), (hidden(1),)), OPERATOR, "cli")
        add_namespace(registry, "55555")
        registry.do(Create(handle("55555/gone-away"), (value(1),)), OPERATOR, "cli")
        registry.do(Home("0.NA/55555", unhome=True), OPERATOR, "cli")
        for number in range(100, 200):
            registry.do(Create(handle(f"12345/n{number}"), (value(1),)), OPERATOR, "cli")
        yield registry


def told(registry: Registry, text: str) -> list[str]:
    return [str(each.handle) for each in suggestions(registry, text, OURS).suggestions]


# What is repaired


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (" 12345/report-7\n", "surrounding spaces"),
        ("12345/report-7.", "punctuation"),
        ("(12345/report-7)", "punctuation"),
        ("„12345/report-7“,", "punctuation"),
        ("<12345/report-7>;", "punctuation"),
        ("12345/report-7/", "trailing slash"),
        ("12345/report-7//", "trailing slash"),
        ("hdl:12345/report-7", "URI"),
        ("hdl:/12345/report-7", "URI"),
        ("doi:12345/report-7", "URI"),
        ("https://hdl.handle.net/12345/report-7", "URI"),
        ("https://id.example.org/hdl/12345/report-7", "URI"),
        ("https://elsewhere.example/12345/report-7", "address"),
        ("https://elsewhere.example/handle/12345/report-7", "address"),
        ("hdl.handle.net/12345/report-7", "address"),
        ("12345%2Freport-7", "percent-encoding"),
        ("12345/report%2D7", "percent-encoding"),
        ("12345/report%252D7", "percent-encoding"),
        ("12345%252Freport%25252D7", "percent-encoding"),
        ("12345/report–7", "plain hyphens"),
        ("12345/report−7", "plain hyphens"),  # noqa: RUF001
        ("12345/report\u20117", "plain hyphens"),
        ("12345/re\u00adport-7", "plain hyphens"),
        ("12345\u2044report-7", "plain hyphens"),
        ("１２３４５/report-7", "plain hyphens"),  # noqa: RUF001
        ("\u200b12345/report-7\ufeff", "plain hyphens"),
        ("12345/re port-7", "spaces inside"),
        ("12345/report-\n7", "spaces inside"),
        ("12345/report-7?utm_source=letter", "query or fragment"),
        ("12345/report-7#page=2", "query or fragment"),
        ("“https://hdl.handle.net/12345/report–7”.", "URI"),
    ],
)
def test_repairs_are_applied_and_explained(here: Registry, asked: str, words: str) -> None:
    found = suggestions(here, asked, OURS).suggestions
    assert str(found[0].handle) == "12345/report-7"
    assert found[0].why.startswith("your text ")
    assert words in found[0].why
    assert found[0].gone is None


def test_clean_handle_is_found_without_query(here: Registry) -> None:
    assert told(here, "12345/a\u00a0b")[0] == "12345/a b"
    assert told(here, "12345/100%25")[0] == "12345/100%"
    assert told(here, "12345/x%2Fy/")[0] == "12345/x/y"


def test_text_itself_is_not_suggested(here: Registry) -> None:
    assert "12345/report-7" not in told(here, "12345/report-7")


# Slips of the pen


@pytest.mark.parametrize(
    ("asked", "found", "words"),
    [
        ("102.100.272/D7J1GODQH", "102.100.272/D7J1G0DQH", "easily confused"),
        ("102.100.272/d7jig0dqh", "102.100.272/D7J1G0DQH", "easily confused"),
        ("102.100.272/D7K1G0DQH", "102.100.272/D7J1G0DQH", 'character 15 is "J" (U+004A) instead of "K" (U+004B)'),
        ("102.100.272/D71JG0DQH", "102.100.272/D7J1G0DQH", "swapped"),
        ("102.100.227/D7J1G0DQH", "102.100.272/D7J1G0DQH", "swapped"),
        ("10.7/README", "10.7/ReadMe", "uppercase and lowercase"),
        ("12345/report-8", "12345/report-7", "character 14"),
        ("12354/report-7", "12345/report-7", "swapped"),
        ("hdl:12345/repotr-7.", "12345/report-7", "swapped"),
        ("12345/report-", "12345/report-7", "it has an extra character"),
        ("12345/eport-7", "12345/report-7", "it has an extra character"),
        ("12345/repot-7", "12345/report-7", "it has an extra character"),
        ("12345/reeport-7", "12345/report-7", "it lacks character"),
        ("12345/report-77", "12345/report-7", "it lacks character"),
        ("1234/report-7", "12345/report-7", "it has an extra character"),
        ("123455/report-7", "12345/report-7", "it lacks character"),
        ("102.100.272/D7J1G0DQ", "102.100.272/D7J1G0DQH", "it has an extra character"),
        ("102.100.272/DD7J1G0DQH", "102.100.272/D7J1G0DQH", "it lacks character"),
    ],
)
def test_typos_are_corrected(here: Registry, asked: str, found: str, words: str) -> None:
    nearest = suggestions(here, asked, OURS).suggestions[0]
    assert str(nearest.handle) == found
    assert words in nearest.why


def test_too_many_neighbors_give_no_suggestion(here: Registry) -> None:
    """Among consecutive numbers a suggestion is meaningless, and many would enumerate them."""
    assert told(here, "12345/n1x0") == []
    assert told(here, "12345/n205") == ["12345/n105"], "with one neighbour it may well be that"
    assert told(here, "12345/n150/") == ["12345/n150"], "what needs no guessing is told all the same"
    assert told(here, "12345/n10") == [], "ten of them have one character more"
    assert told(here, "12345/n1555") == ["12345/n155"]
    assert MAX_NEIGHBORS < MAX_SUGGESTIONS


# What is not told


@pytest.mark.parametrize("name", ["12345/hushed", "12345/kept4later", "12345/erased", "55555/gone-away"])
def test_hidden_handles_are_never_suggested(here: Registry, name: str) -> None:
    for asked in (name, f"{name}.", f"{name}/", f"hdl:{name}", name.upper(), name.replace("/", "%2F"), name[:-1] + "0"):
        assert told(here, asked) == []
    assert told(here, "12345/hushde") == []
    for slip in ("12345/hushe", "12345/hushedd", "12345/hushe1", "12345/ushed", "12345/hused"):
        assert told(here, slip) == []


def test_installation_records_are_not_suggested(here: Registry) -> None:
    for asked in ("0.SITE/POLICY/12345.", "0.site/HOMED/0.NA/12345/", "hdl:0.SITE/POLICY/12345"):
        assert not [name for name in told(here, asked) if name.upper().startswith("0.SITE/")]


def test_record_without_public_values_is_suggested(here: Registry) -> None:
    assert told(here, "12345/closed.") == ["12345/closed"]


_CHARACTERS = "ab0-. /%"
_names = st.text(st.sampled_from(_CHARACTERS), min_size=1, max_size=4).map(lambda text: f"12345/{text.strip() or 'a'}")
_kinds = st.sampled_from(["public", "reserved", "unpublished", "deleted", "tombstone"])


@settings(max_examples=settings().max_examples // 2)
@given(st.dictionaries(_names, _kinds, max_size=8), st.lists(_names | texts(), min_size=1, max_size=6), st.booleans())
def test_every_suggestion_exists_and_is_public(kinds: dict[str, str], asked: list[str], exact: bool) -> None:
    """For any records and texts; also right after a record was hidden."""
    with registry_in_memory() as registry:
        policy = PROFILES["exact" if exact else "free"]
        add_namespace(registry, "12345", replace(policy, who_may_list=Audience.PUBLIC))
        public: set[str] = set()
        for name, kind in kinds.items():
            target = Handle.for_lookup(name)
            assert target is not None
            try:
                _make(registry, target, kind)
            except Refused:
                continue  # it exists in another spelling
            if kind in ("public", "tombstone"):
                public.add(str(target))
        for text in [*asked, *kinds, *[f"{name}." for name in kinds], *[f"hdl:{name}/" for name in kinds]]:
            found = suggestions(registry, text)
            assert len(found.suggestions) <= MAX_SUGGESTIONS
            names = [str(each.handle) for each in found.suggestions]
            assert len(set(names)) == len(names)
            assert set(names) <= public
            for each in found.suggestions:
                resolved = registry.resolve(Query(each.handle), NOBODY)
                assert resolved.registered == each.handle
                assert (resolved.state is State.TOMBSTONE) == (each.gone is not None)
                assert each.why
            found.to_json()


def _make(registry: Registry, name: Handle, kind: str) -> None:
    if kind == "reserved":
        registry.do(Reserve((name,), OWNER), OPERATOR, "cli")
        return
    registry.do(Create(name, (value(1),)), OPERATOR, "cli")
    after: dict[str, Callable[[], Any]] = {
        "unpublished": lambda: registry.do(Unpublish(name), OPERATOR, "cli"),
        "deleted": lambda: registry.do(Delete(name), OPERATOR, "cli"),
        "tombstone": lambda: registry.do(Tombstone(name, "gone"), OPERATOR, "cli"),
        "public": lambda: None,
    }
    after[kind]()


# Prefixes


@pytest.mark.parametrize(
    ("asked", "prefix", "status", "related"),
    [
        ("12345/nothing", "12345", PrefixStatus.HOSTED, None),
        ("hdl:12345/nothing.", "12345", PrefixStatus.HOSTED, None),
        ("https://elsewhere.example/12345/nothing", "12345", PrefixStatus.HOSTED, None),
        ("12345.9.1/x", "12345.9.1", PrefixStatus.DERIVED, "12345"),
        ("102.100.272.1/x", "102.100.272.1", PrefixStatus.DERIVED, "102.100.272"),
        ("55555/gone-away", "55555", PrefixStatus.OTHER_SERVICE, None),
        ("99999/x", "99999", PrefixStatus.UNKNOWN, None),
        ("0.SITE/POLICY/12345", "0.SITE", PrefixStatus.UNKNOWN, None),
        ("..../x", "....", PrefixStatus.UNKNOWN, None),
        ("99999", "99999", PrefixStatus.UNKNOWN, None),
        ("12345", "12345", PrefixStatus.HOSTED, None),
    ],
)
def test_prefix_status_is_reported(
    here: Registry, asked: str, prefix: str, status: PrefixStatus, related: str | None
) -> None:
    known = suggestions(here, asked, OURS).prefix
    assert known is not None
    assert (known.prefix, known.status, known.related) == (prefix, status, related)
    assert prefix in known.why
    assert known.to_json()["status"] == status.value


def test_prefix_with_private_record_is_unknown() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "44444")
        registry.do(Home("0.NA/44444", unhome=True), OPERATOR, "cli")
        unpublish(registry, name="0.NA/44444")
        known = suggestions(registry, "44444/x").prefix
        assert known is not None
        assert known.status is PrefixStatus.UNKNOWN


def test_non_root_server_hides_copies_of_prefix_handles() -> None:
    """They are used for authorization only and never served."""
    with registry_in_memory() as registry:
        add_namespace(registry, "44444")
        registry.do(Home("0.NA/0.NA", unhome=True), OPERATOR, "cli")
        assert told(registry, "0.NA/44444.") == []
        assert told(registry, "44444/x/") == []


def test_text_without_handle_has_no_suggestions(here: Registry) -> None:
    for text in ("", "/", "//", "…", "%", "%ff", "\ud800", "/12345/report-7"):
        suggestions(here, text, OURS)
    assert suggestions(here, "", OURS) == Suggestions()
    assert told(here, "/12345/report-7") == ["12345/report-7"]


# What is gone


def test_s8_tombstone_suggestion_has_reason(here: Registry) -> None:
    (found,) = suggestions(here, "12345/old-mpa", OURS).suggestions
    assert str(found.handle) == "12345/old-map"
    assert found.gone is not None
    assert (found.gone.reason, str(found.gone.replacement)) == ("lost", "12345/report-7")
    assert re.fullmatch(r"[0-9-]+T[0-9:]+Z", found.gone.date)
    assert found.to_json()["gone"] == {
        "reason": "lost",
        "date": found.gone.date,
        "replacement": "12345/report-7",
    }


def test_suggestions_as_json(here: Registry) -> None:
    assert suggestions(here, "12345/report-7/").to_json() == {
        "suggestions": [{"handle": "12345/report-7", "why": "your text without the trailing slash"}],
        "prefix": {
            "prefix": "12345",
            "status": "hosted",
            "why": "prefix 12345 is hosted here, but this handle does not exist",
        },
    }


# Bounds


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Record all lookups of handles and prefixes."""
    asked: list[bytes] = []
    for method in ("find", "prefix"):
        original = getattr(Ledger, method)

        def count(ledger: Ledger, name: bytes, original: Callable[..., Any] = original) -> Any:
            asked.append(name)
            return original(ledger, name)

        monkeypatch.setattr(Ledger, method, count)
    yield asked
    monkeypatch.undo()


@pytest.mark.parametrize(
    "asked",
    [
        "12345/report-8",
        "12345/" + "abcdefghij" * 5,
        "12345/" + "o0" * 28,
        "102.100.272/D7J1G0DQX",
        "99999/" + "abc" * 18,
        "0.NA/" + ".".join("123456789"),
        "((((12345/%2525252525252541))))///",
        "https://a.example/" * 40 + "12345/x",
        "%25" * 2_000,
        "12345/" + "%41" * 2_000,
        "/" * MAX_TEXT,
        "12345/" + "." * MAX_TEXT,
    ],
)
def test_lookups_are_limited(here: Registry, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    with counted(monkeypatch) as looked_up:
        suggestions(here, asked, OURS, lambda: 0.0)
    assert len(looked_up) <= MAX_LOOKUPS
    assert len(find_readings(asked, OURS)) <= MAX_READINGS


def test_work_is_independent_of_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lookups, whether or not something is found."""
    asked = "12345/mapp"
    for near in ("12345/mapq", "12345/mapps", "12345/map", "12345/mpap"):
        _same_work(monkeypatch, asked, near)


def _same_work(monkeypatch: pytest.MonkeyPatch, asked: str, near: str) -> None:
    seen: list[list[bytes]] = []
    for kind in ("nothing", "public", "unpublished", "reserved", "deleted"):
        with registry_in_memory() as registry:
            add_namespace(registry, "12345", LISTED)
            if kind != "nothing":
                _make(registry, handle(near), kind)
            with counted(monkeypatch) as looked_up:
                found = suggestions(registry, asked, (), lambda: 0.0)
            assert bool(found.suggestions) == (kind == "public")
            seen.append(looked_up)
    assert all(each == seen[0] for each in seen)


def test_time_is_limited(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(suggest, "MAX_SECONDS", MAX_SECONDS)
    with counted(monkeypatch) as looked_up:
        suggestions(here, "12345/report-8", OURS, lambda: next(ticks) * MAX_SECONDS / 10)
    assert len(looked_up) == 10


def test_matches_before_limit_are_returned(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest, "MAX_LOOKUPS", 5)
    found = suggestions(here, "12345/report-7/", OURS)
    assert [str(each.handle) for each in found.suggestions] == ["12345/report-7"]
    assert found.prefix is not None


@pytest.mark.parametrize("asked", ["12345/report-8", "12345/reprot-7"])
def test_typos_are_corrected_only_where_everybody_can_list_handles(asked: str) -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "12345")
        registry.do(Create(handle("12345/report-7"), (value(1),)), OPERATOR, "cli")
        assert suggestions(registry, asked, OURS).suggestions == ()
        assert told(registry, "12345/report-7.") == ["12345/report-7"], "the same handle as it was pasted"
        (found,) = suggestions(registry, asked, OURS, lists_all=True).suggestions
        assert str(found.handle) == "12345/report-7", "for those who can list everything"
        registry.do(SetPolicy("12345", LISTED), OPERATOR, "cli")
        assert told(registry, asked) == ["12345/report-7"]
        registry.rules = replace(registry.rules, listing_allowed=False)
        assert told(registry, asked) == []


def test_an_unreadable_policy_opens_nothing(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise Refused(ResponseCode.ERROR, "The stored policy is invalid")

    monkeypatch.setattr(PublicSnapshot, "policy", broken)
    assert told(here, "12345/report-8") == []
    (gone,) = suggestions(here, "12345/old-map.", OURS, lists_all=True).suggestions
    assert gone.gone == TombstoneInfo()

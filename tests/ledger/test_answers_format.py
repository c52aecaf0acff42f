"""The layout of the answers view: items round-trip, are canonical, and contain public data only."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.ledger.errors import AnswersUnavailable, CorruptData
from perseid.ledger.log.entry import LastUpdate, State
from perseid.ledger.log.record_keys import record_key as ledger_key
from perseid.ledger.views.answers_format import (
    ALIAS,
    EMPTY_PREFIX_ITEM,
    LOCATION,
    MAX_PLAIN_KEY,
    PRIVATE,
    HandleItem,
    PrefixItem,
    choose_item,
    decode_handle,
    decode_prefix,
    merge_item,
    read_item,
    read_plain_item,
    record_key,
    store_key,
)
from perseid.ledger.views.answers_generation import PrefixPart
from perseid.names.handle import CaseRule
from perseid.records.record import Value
from tests.ledger.answer_ledgers import TIME, change, typed, url
from tests.record_strategies import values as record_values

ENTRY = bytes(13)
"""The number and the time of an entry in an item."""

SPECIFICATION = Path(__file__).parents[2] / "docs" / "reference" / "answers-format.md"

names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60),
    st.text(st.sampled_from("aAbB/éÉ"), min_size=1, max_size=12),
    st.integers(380, 2048).map(lambda length: ("10.1/" + "aB" * 1024)[:length]),
)
stored = [state for state in State if state]
items = st.builds(
    HandleItem,
    names.map(str.encode),
    st.sampled_from(stored) | st.just(State(7)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(st.binary(max_size=300), max_size=5).map(tuple),
    st.integers(0, (1 << 48) - 1),
    st.integers(0, (1 << 54) - 1),
    st.sampled_from(LastUpdate),
)
prefix_items = st.builds(
    PrefixItem,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(CaseRule) | st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.lists(st.binary(max_size=200), max_size=3).map(tuple),
)


# Keys


@given(names)
def test_key_is_the_folded_name_or_its_start_and_hash(name: str) -> None:
    raw = name.encode()
    key = store_key(raw)
    assert len(key) == (len(raw) if len(raw) <= MAX_PLAIN_KEY else MAX_PLAIN_KEY + 16)
    assert key == store_key(raw.upper()) == store_key(raw.lower())
    assert raw.upper().startswith(key[:MAX_PLAIN_KEY])


@pytest.mark.parametrize("length", [1, 2, 399, 400, 401, 511, 512, 2047, 2048])
def test_names_of_every_length_have_valid_lmdb_keys(length: int) -> None:
    name = (b"10.1/" + b"x" * 2048)[:length]
    assert 1 <= len(store_key(name)) <= 511
    assert store_key(name[:-1] + b"y") != store_key(name)


@given(names, st.booleans())
def test_record_keys_equal_those_of_the_ledger(name: str, exact: bool) -> None:
    assert record_key(name.encode(), exact=exact) == ledger_key(name, exact=exact)


# Handle items


@given(items)
def test_item_round_trips(item: HandleItem) -> None:
    key = store_key(item.spelling)
    assert decode_handle(key, item.to_bytes(key)) == (item,)


@given(st.lists(items, min_size=1, max_size=4), names)
def test_items_of_several_spellings_share_a_key(several: list[HandleItem], name: str) -> None:
    key = store_key(name.encode())
    spellings = (name, name.upper(), name.lower(), name.swapcase())
    fitting = [spelling.encode() for spelling in spellings if store_key(spelling.encode()) == key]
    mine = {}
    raw: bytes | None = None
    for number, item in enumerate(several):
        placed = replace(item, spelling=fitting[number % len(fitting)])
        raw = merge_item(key, raw, placed.key, placed)
        mine[placed.key] = placed
    assert raw is not None
    assert decode_handle(key, raw) == tuple(mine[each] for each in sorted(mine))
    for record in mine:
        assert raw is not None
        raw = merge_item(key, raw, record, None)
    assert raw is None
    assert merge_item(key, None, key, None) is None


@given(items, st.binary(max_size=80))
@example(HandleItem(b"A", State.NORMAL), b"")
@example(HandleItem(b"A", State.NORMAL), b"\x01" + ENTRY + b"\x80\x00")  # a number longer than necessary
@example(HandleItem(b"A", State.NORMAL), b"\x01" + ENTRY + b"\x80\x80\x80\x80\x80\x01")
@example(HandleItem(b"A", State.NORMAL), b"\x00" + ENTRY + b"\x00")  # absent
@example(HandleItem(b"A", State.NORMAL), b"\x81" + ENTRY + b"\x01A\x00")  # spelled like the key
@example(HandleItem(b"A", State.NORMAL), b"\x81" + ENTRY + b"\x01B\x00")  # another name
@example(HandleItem(b"A", State.NORMAL), (b"\x01" + ENTRY + b"\x00") * 2)  # the same record twice
@example(HandleItem(b"A", State.NORMAL), b"\x01" + ENTRY + b"\x01\x05abc")
def test_arbitrary_bytes_are_canonical_items_or_refused(item: HandleItem, raw: bytes) -> None:
    key = store_key(item.spelling)
    for wrong in (raw, item.to_bytes(key) + raw, item.to_bytes(key)[:-1]):
        try:
            found = decode_handle(key, wrong)
        except CorruptData:
            continue
        assert b"".join(one.to_bytes(key) for one in found) == wrong


@given(st.lists(record_values(), max_size=6), st.sampled_from(stored))
def test_item_has_public_values_and_a_private_flag(values: list[Value], state: State) -> None:
    item = HandleItem.of(change("10.1/x", *values, state=state))
    assert item is not None
    served = state in (State.NORMAL, State.TOMBSTONE)
    public = [value for value in values if value.is_public] if served else []
    assert item.values == tuple(value.to_bytes() for value in public)
    assert item.private == (not served or len(public) < len(values))
    folded = [value.type.encode().upper().decode() for value in public]
    assert item.alias == any(type_ == "HS_ALIAS" or type_.startswith("HS_ALIAS.") for type_ in folded)
    assert item.location == any(type_ == "10320/LOC" or type_.startswith("10320/LOC.") for type_ in folded)


def test_flags_are_about_public_values_only() -> None:
    hidden = HandleItem.of(change("10.1/x", typed("HS_ALIAS", public=False), typed("10320/loc", 3, public=False)))
    shown = HandleItem.of(change("10.1/x", typed("hs_alias.x"), typed("10320/LOC", 3)))
    assert hidden == HandleItem(b"10.1/x", State.NORMAL, private=True, seq=1, at=TIME + 1)
    assert shown is not None
    assert (shown.alias, shown.location, shown.private) == (True, True, False)


def test_deleted_and_local_records_have_no_item() -> None:
    assert HandleItem.of(change("10.1/x", state=State.ABSENT)) is None
    assert HandleItem.of(change("0.site/POLICY/10.1", url("x"))) is None


def test_unknown_state_shows_no_values() -> None:
    item = HandleItem.of(change("10.1/x", url("x"), state=State(200)))
    assert item == HandleItem(b"10.1/x", State(7), private=True)


def test_invalid_value_is_not_shown() -> None:
    item = HandleItem.of(replace(change("10.1/x"), contents=[b"short"]))
    assert item == HandleItem(b"10.1/x", State.NORMAL, private=True, seq=1, at=TIME + 1)


def test_a_small_record_stays_small() -> None:
    """Three values: the wire encoding plus a few bytes."""
    values = [url("https://example.org/102.100.272/0N5Q3VX7"), typed("HS_ADMIN", 100, bytes(25)), typed("EMAIL", 3)]
    item = HandleItem.of(change("102.100.272/0N5Q3VX7", *values))
    assert item is not None
    assert len(item.to_bytes(store_key(item.spelling))) == sum(len(value.to_bytes()) for value in values) + 18


def test_exact_spelling_is_chosen_before_case_insensitive_one() -> None:
    exact = [HandleItem(name, State.NORMAL, exact=True) for name in (b"10.A/x", b"10.a/X")]
    loose = HandleItem(b"10.a/xx", State.NORMAL)
    assert choose_item(exact, b"10.a/x") is exact[0]
    assert choose_item(exact, b"10.A/X") is exact[1]
    assert choose_item([*exact, loose], b"10.A/x") is exact[0]
    assert choose_item([*exact, loose], b"10.A/xX") is loose
    assert choose_item(exact, b"10.A/xx") is None
    assert choose_item([], b"10.A/x") is None


# Prefix items


@given(prefix_items)
def test_prefix_item_round_trips(item: PrefixItem) -> None:
    assert PrefixItem.from_bytes(item.to_bytes()) == item
    assert item.sensitive == (item.case is CaseRule.SENSITIVE)


@given(prefix_items, st.binary(max_size=60))
@example(EMPTY_PREFIX_ITEM, b"\x40\x00\x00")
@example(EMPTY_PREFIX_ITEM, b"\x00\x01\xff\x00")
@example(EMPTY_PREFIX_ITEM, b"")
def test_arbitrary_bytes_are_a_canonical_prefix_item_or_refused(item: PrefixItem, raw: bytes) -> None:
    for wrong in (raw, item.to_bytes() + raw, item.to_bytes()[:-1]):
        try:
            found = PrefixItem.from_bytes(wrong)
        except CorruptData:
            continue
        assert found.to_bytes() == wrong


def items_after(*changes: tuple[str, tuple[Value, ...], State]) -> dict[bytes, PrefixItem]:
    """The prefix items after some changes."""
    store: dict[bytes, bytes] = {}
    for handle, values, state in changes:
        part = PrefixPart.of(change(handle, *values, state=state))
        if part is not None:
            raw = part.merge(store.pop(part.prefix, None))
            if raw is not None:
                store[part.prefix] = raw
    return {prefix: PrefixItem.from_bytes(raw) for prefix, raw in store.items()}


@pytest.mark.parametrize(
    ("handle", "prefix", "item"),
    [
        ("0.SITE/HOMED/0.NA/10.a", b"10.A", PrefixItem(homed=True)),
        ("0.SITE/HOMED/0.NA/0.NA", b"0.NA", PrefixItem(homed=True)),
        ("0.SITE/HOMED/10.1", b"10.1", PrefixItem(homed_bare=True)),
        ("0.SITE/HOMED/0.NA", b"0.NA", PrefixItem(homed_bare=True)),
        ("0.site/homed/0.na/0.na/10", b"10", PrefixItem(marker=True)),
    ],
)
def test_homed_prefix_is_homed_while_the_record_is_normal(handle: str, prefix: bytes, item: PrefixItem) -> None:
    assert items_after((handle, (), State.NORMAL)) == {prefix: item}
    assert items_after((handle, (), State.NORMAL), (handle, (), State.ABSENT)) == {}
    assert items_after((handle, (), State.RESERVED)) == {}


@pytest.mark.parametrize(
    "handle",
    [
        "0.SITE/LEDGER",
        "0.SITE/HOMED/",
        "0.SITE/POLICY/10.1/x",
        "0.NA/10.1/x",
        "0.SITE/HOMED/0.NA/",
        "10.1/x",
        "0.NAB/x",
    ],
)
def test_other_records_do_not_affect_a_prefix(handle: str) -> None:
    assert items_after((handle, (typed("HS_SITE.PREFIX"),), State.NORMAL)) == {}


def test_exact_record_does_not_affect_a_prefix() -> None:
    assert PrefixPart.of(change("0.NA/10.a", typed("HS_SITE.PREFIX"), exact=True)) is None
    assert PrefixPart.of(change("0.NA/10.A", typed("HS_SITE.PREFIX"), exact=True)) is not None


@pytest.mark.parametrize(
    ("text", "case", "scheme"),
    [
        ('case = "sensitive"\nscheme = "pilin"', CaseRule.SENSITIVE, "pilin"),
        ('case = "insensitive"', CaseRule.INSENSITIVE, ""),
        ('case = "path"\nscheme = "cordra"\n[more]\ncase = 1', CaseRule.PATH, "cordra"),
        ('case = "Sensitive"\nscheme = 3', None, ""),
        ("case = [1]", None, ""),
        ("case = ", None, ""),
        ("a = " + "[" * 100_000, None, ""),
        ("", None, ""),
    ],
)
def test_policy_is_read_as_far_as_possible(text: str, case: CaseRule | None, scheme: str) -> None:
    value = typed("PERSEID_policy", 1, text.encode(), public=False)
    homed = ("0.SITE/HOMED/0.NA/10.A", (), State.NORMAL)
    policy = ("0.SITE/POLICY/10.a", (url("x", 0), value), State.NORMAL)
    expected = {b"10.A": PrefixItem(homed=True, case=case, scheme=scheme)}
    assert items_after(homed, policy) == expected
    assert items_after(policy, homed) == expected
    assert items_after(policy, homed, (policy[0], policy[1], State.TOMBSTONE)) == {b"10.A": PrefixItem(homed=True)}


def test_unreadable_policy_is_kept_and_a_missing_one_is_ignored() -> None:
    part = PrefixPart.of(change("0.SITE/POLICY/10.1", typed("PERSEID_POLICY", 1, b"\xff")))
    assert part == PrefixPart(b"10.1", {"case": None, "scheme": ""}, has_policy=True, policy=b"\xff")
    assert items_after(("0.SITE/POLICY/10.1", (typed("PERSEID_POLICY", 1, b"\xff"),), State.NORMAL)) == {}
    assert items_after(("0.SITE/POLICY/10.1", (url("x"),), State.NORMAL)) == {}


TEMPLATE = b'<namespace><template delimiter="@"><value type="URL" data="x"/></template></namespace>'


@pytest.mark.parametrize(
    ("type_", "data", "public", "may"),
    [
        ("HS_NAMESPACE", TEMPLATE, True, True),
        ("hs_namespace.x", TEMPLATE, False, True),
        ("HS_NAMESPACE", b"<namespace><status>active</status></namespace>", True, False),
        ("HS_NAMESPACE", b"<namespace>", True, True),
        ("HS_NAMESPACE", b"\xff", True, True),
        ("URL", TEMPLATE, True, False),
    ],
)
def test_templates_may_apply_if_present_or_unreadable(type_: str, data: bytes, public: bool, may: bool) -> None:
    value = typed(type_, 1, data, public=public)
    for state in (State.NORMAL, State.UNPUBLISHED):
        found = items_after(("0.NA/10.1", (value,), state)).get(b"10.1", EMPTY_PREFIX_ITEM)
        assert (found.templates, found.referrals) == (may, ())
    assert items_after(("0.NA/10.1", (value,), State.NORMAL), ("0.NA/10.1", (), State.ABSENT)) == {}


def test_referrals_are_the_public_values_that_delegate() -> None:
    kinds = ("HS_SITE.PREFIX", "HS_NA_DELEGATE", "HS_SERV.PREFIX")
    public = [typed(kind, index) for index, kind in enumerate(kinds, 1)]
    others = [typed("HS_SITE", 4), typed("hs_site.prefix", 5), typed("HS_SITE.PREFIX", 6, public=False)]
    expected = PrefixItem(referrals=tuple(value.to_bytes() for value in public))
    for state in (State.NORMAL, State.TOMBSTONE):
        assert items_after(("0.NA/10.1", (*public, *others), state)) == {b"10.1": expected}
    assert items_after(("0.NA/10.1", tuple(public), State.UNPUBLISHED)) == {}


def test_examples_of_the_specification_match() -> None:
    example_blocks = re.findall(r"```text\n(.*?)```", SPECIFICATION.read_text(), re.DOTALL)
    raw = [
        bytes.fromhex("".join(re.match(r"(?:[0-9a-f]{2} ?)+", line)[0] for line in block.splitlines()))  # type: ignore[index]
        for block in example_blocks
    ]
    item = HandleItem.of(change("10.1/x", url("https://example.org/"), typed("HS_SECKEY", 300, public=False)))
    assert item is not None
    assert raw[0] == item.to_bytes(b"10.1/X")
    assert raw[1] == PrefixItem(homed=True, case=CaseRule.SENSITIVE, scheme="pilin").to_bytes()
    assert len(raw) == 2


# Reading without objects


@given(
    spellings=st.sets(st.sampled_from(("aB", "Ab", "AB", "ab", "a" * 500, "A" * 500)), min_size=1),
    asked=st.sampled_from(("aB", "ab", "AB", "A" * 500, "aA" * 250)),
)
def test_exact_spelling_is_found_if_case_sensitive(spellings: set[str], asked: str) -> None:
    name = f"10.x/{asked}".encode()
    kept = sorted(f"10.X/{each}".encode() for each in spellings if len(each) == len(asked))
    items = [HandleItem(each, State.NORMAL, exact=True, values=(Value(1, "T", each).to_bytes(),)) for each in kept]
    items.sort(key=lambda item: item.key)
    raw = b"".join(item.to_bytes(store_key(name)) for item in items)
    if not raw:
        return
    item = read_item(name, raw, sensitive=True)
    if b"10.X/" + asked.encode() not in kept:
        assert item is None
    else:
        assert item is not None
        _, _, whole, at, _ = item
        assert whole[at:] == Value(1, "T", b"10.X/" + asked.encode()).to_bytes()


@pytest.mark.parametrize("raw", [b"\1" + ENTRY + b"\x80\x80\x80\x80\x80\x01", b"\x81" + ENTRY + b"\xff" * 6])
def test_endless_number_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        read_item(b"10/x", raw, sensitive=False)


@pytest.mark.parametrize("sensitive", [True, False])
def test_item_of_another_case_rule_is_not_read(sensitive: bool) -> None:
    folded = HandleItem(b"10/A", State.NORMAL).to_bytes(b"10/A")
    exact = HandleItem(b"10/a", State.NORMAL, exact=True).to_bytes(b"10/A")
    for raw in (folded if sensitive else exact, folded + exact):
        with pytest.raises(AnswersUnavailable):
            read_item(b"10/a", raw, sensitive=sensitive)


@given(
    spelling=st.sampled_from((b"10/A", b"10/a", b"10/" + b"a" * 200)),
    state=st.sampled_from((State.NORMAL, State.TOMBSTONE, State.RESERVED)),
    flags=st.tuples(*[st.booleans()] * 4),
    values=st.lists(st.binary(max_size=300), max_size=200).map(tuple),
    refused=st.sampled_from((0, PRIVATE, ALIAS | LOCATION)),
)
def test_plain_item_is_found_by_its_flags(
    spelling: bytes, state: State, flags: tuple[bool, ...], values: tuple[bytes, ...], refused: int
) -> None:
    exact, private, alias, location = flags
    raw = HandleItem(spelling, state, exact, private, alias, location, values).to_bytes(store_key(spelling))
    plain = read_plain_item(raw, refused)
    has_refused = (private and refused & PRIVATE) or (alias and refused & ALIAS) or (location and refused & LOCATION)
    if state is not State.NORMAL or exact or has_refused or not values or len(spelling) > 0x7F:
        assert plain is None
    else:
        assert plain is not None
        at, lengths = plain
        assert (raw[at:], list(lengths)) == (b"".join(values), [len(value) for value in values])
        assert read_plain_item(raw + raw, refused) is None


def test_scheme_of_any_length_is_read() -> None:
    long = b"pattern:" + b"n" * 200
    assert decode_prefix(b"\x21\x06cordra\0").scheme == "cordra"
    assert decode_prefix(b"\x21\xd0\x01" + long + b"\0").scheme == long.decode()

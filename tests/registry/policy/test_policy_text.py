"""The text of a policy: strict parser, complete formatter, and the same text after a round trip."""

import json
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from perseid.names.handle import CaseRule
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission
from perseid.registry.policy.policy import (
    DEFAULTS,
    KEYS,
    MAX_AHEAD,
    MAX_LINE_LENGTH,
    PROFILES,
    Audience,
    Deletion,
    Policy,
)
from perseid.registry.policy.text import MAX_TYPE, InvalidPolicy, format_toml
from perseid.registry.queries.namespaces import RETIRED, apply_policy_text
from perseid.schema.namespaces import MAX_TEXT_BYTES
from tests.strategies import handles, templates, texts

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"

_TYPES = st.text(st.sampled_from([*"AZaz09_./-é\N{CJK UNIFIED IDEOGRAPH-4E00}"]), min_size=1, max_size=12).filter(
    lambda text: bool(text.strip(".")) and not text.upper().startswith("HS_")
)
_OWN_TYPES = [key for key in KEYS if key.endswith("_type")]
_SCHEMES: list[tuple[str, dict[str, Any]]] = [
    ("free", {}),
    ("pilin", {}),
    ("pilin-check", {}),
    ("cordra", {"version": 1}),
    ("uuid", {"version": 7}),
]


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Policies with every key drawn, without contradictions."""
    scheme, options = draw(st.sampled_from(_SCHEMES) | templates().map(lambda template: (f"pattern:{template}", {})))
    capitals = scheme in {"pilin", "pilin-check", "cordra"}
    cases = [CaseRule.INSENSITIVE, *([] if capitals else [CaseRule.SENSITIVE])]
    types = draw(st.lists(_TYPES, max_size=len(_OWN_TYPES), unique_by=str.upper))
    concrete = [name for name in types if not name.endswith(".")]
    needed = dict(zip(_OWN_TYPES, [*concrete, *(f"T{number}".ljust(13, "_") for number in range(20))], strict=False))
    queries = st.lists(_TYPES | st.sampled_from(["URL", "URL."]), max_size=3).map(tuple)
    required, forbidden = draw(queries), draw(queries)
    values: dict[str, Any] = {
        "profile": draw(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")),
        "purpose": draw(texts().map(lambda text: text.encode("utf-8", "ignore").decode()[:300])),
        "scheme": scheme,
        "scheme_options": options if draw(st.booleans()) else {},
        "case": CaseRule.PATH if scheme == "cordra" and draw(st.booleans()) else draw(st.sampled_from(cases)),
        "max_ahead": draw(st.integers(0, MAX_AHEAD)),
        "who_may_mint": draw(st.sampled_from([Audience.ADMINISTRATORS, Audience.SERVER, Audience.AUTHENTICATED])),
        "who_may_list": draw(st.sampled_from(Audience)),
        "required_types": required,
        "allowed_types": draw(queries),
        "forbidden_types": tuple(query for query in forbidden if not clashes(query, [*required, *needed.values()])),
        "default_creator": draw(st.sampled_from(["", "102.100.272/0N8J991QH", "10.1/é?x#y%41"])),
        "deletion": draw(st.sampled_from(Deletion)),
        "default_ttl": draw(st.integers(0, 0x7FFF_FFFF)),
        "default_administrators": draw(st.sampled_from([(), ("200:0.NA/{prefix}", "300:1/x:add_value,modify_value")])),
        **needed,
        **{key: draw(st.booleans()) for key in flags()},
    }
    return Policy(**values)


def flags() -> list[str]:
    return [key for key, value in DEFAULTS.values().items() if isinstance(value, bool)]


def clashes(query: str, types: list[str]) -> bool:
    """Whether a forbidden type may match a required one; stricter than the rule, for drawing only."""
    return any(type_.upper().startswith(query.rstrip(".").upper()) for type_ in types)


def refused(text: str) -> InvalidPolicy:
    with pytest.raises(InvalidPolicy) as caught:
        Policy.from_toml(text)
    return caught.value


@given(policies())
def test_policy_round_trips_through_its_text(policy: Policy) -> None:
    text = policy.to_toml()
    assert Policy.from_stored(text) == policy
    assert Policy.from_toml(text) == policy
    assert Policy.from_toml(text).to_toml() == text
    assert len(text.encode()) <= MAX_TEXT_BYTES


@pytest.mark.parametrize("name", PROFILES)
def test_profile_name_alone_is_a_policy(name: str) -> None:
    assert Policy.from_toml(f'profile = "{name}"') == PROFILES[name]


def test_keys_and_fields_are_the_same_in_the_same_order() -> None:
    assert [field.name for field in fields(Policy)] == list(KEYS)


def test_stored_text_has_every_key_with_a_comment() -> None:
    lines = PROFILES["pilin"].to_toml().split("\n")
    assert lines[-1] == ""
    entries = [lines[start : start + 3] for start in range(0, len(lines) - 1, 3)]
    assert [entry[1].split(" = ")[0] for entry in entries] == list(KEYS)
    assert [entry[0] for entry in entries] == [f"# {key.about}" for key in KEYS.values()]
    assert {entry[2] for entry in entries} == {""}


@pytest.mark.parametrize("name", PROFILES)
def test_case_and_scheme_are_top_level_keys(name: str) -> None:
    plain = tomllib.loads(PROFILES[name].to_toml())
    assert (plain["case"], plain["scheme"]) == (PROFILES[name].case.value, PROFILES[name].scheme)


def test_stored_policy_does_not_change_with_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PROFILES["pilin"]
    text = before.to_toml()
    monkeypatch.setitem(PROFILES, "pilin", replace(before, show_actors=True, deletion=Deletion.ALLOWED))
    assert Policy.from_stored(text) == Policy.from_toml(text) == before
    assert Policy.from_toml('profile = "pilin"').show_actors


def test_key_newer_than_the_stored_text_has_its_default() -> None:
    text = PROFILES["pilin"].to_toml().replace('deletion = "tombstone"\n', "")
    assert Policy.from_stored(text).deletion is DEFAULTS.deletion is Deletion.ALLOWED
    assert Policy.from_toml(text).deletion is Deletion.TOMBSTONE


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("default_creator", 'default_creator = "10.1/old\\u200b"\n'),
        ("default_administrators", 'default_administrators = ["300:10.1/old\\u200b"]\n'),
    ],
)
def test_handle_in_a_stored_policy_need_not_be_legal_any_more(key: str, line: str) -> None:
    problem = refused(line)
    assert (problem.key, "invisible" in problem.message) == (key, True)
    before = Policy.from_stored(line)
    assert Policy.from_stored(before.to_toml()) == before
    for text in (RETIRED, before.to_toml().replace("retired = false", "retired = true"), line + RETIRED):
        assert apply_policy_text(before, text) == replace(before, retired=True)
    with pytest.raises(InvalidPolicy, match="invisible"):
        apply_policy_text(before, line.replace("old", "new"))


def test_text_overrides_its_profile() -> None:
    policy = Policy.from_toml('profile = "pilin"\nwho_may_mint = "server"\npurpose = "Maps"\n')
    assert policy == replace(PROFILES["pilin"], who_may_mint=Audience.SERVER, purpose="Maps")


def test_empty_text_is_case_sensitive_and_free() -> None:
    policy = Policy.from_toml("")
    assert policy == DEFAULTS
    assert (policy.profile, policy.case, policy.scheme) == ("own", CaseRule.SENSITIVE, "free")
    assert replace(policy, profile="exact") == PROFILES["exact"]


def test_site_can_define_its_own_profile() -> None:
    text = 'profile = "museum"\nscheme = "pattern:MS-dddd"\nrequired_types = ["URL"]'
    museum = Policy.from_toml(text)
    assert (museum.profile, museum.case, museum.required_types) == ("museum", CaseRule.SENSITIVE, ("URL",))
    other = Policy.from_toml('profile = "museum"\npurpose = "Coins"', {**PROFILES, "museum": museum})
    assert other == replace(museum, purpose="Coins")


def test_typo_in_a_profile_name_is_refused() -> None:
    problem = refused('profile = "pilim"\nwho_may_mint = "server"')
    assert problem.key == "profile"
    assert problem.message == "'pilim' is none of pilin, cordra, free, exact; your own profile must name its scheme"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('forbiden_types = ["EMAIL"]', "forbiden_types", "unknown key; did you mean forbidden_types?"),
        ("Case = 1", "Case", "did you mean case?"),
        ("zzz = 1", "zzz", "keys: profile, purpose, scheme"),
        ('"\\u001b[2J" = 1', "\\x1b[2J", "unknown key"),
        ("colour = true", "colour", "unknown key"),
        ('max_ahead = "1h"', "max_ahead", "expected an integer from 0 to 2,592,000,000, not a string"),
        ("max_ahead = 1.5", "max_ahead", "not a float"),
        ("max_ahead = 1.0", "max_ahead", "not a float"),
        ("max_ahead = true", "max_ahead", "not true"),
        ("max_ahead = -1", "max_ahead", "an integer from 0"),
        (f"max_ahead = {10**30}", "max_ahead", "an integer from 0"),
        ("strict_clock = 1", "strict_clock", "expected true or false, not an integer"),
        ('authority = "on"', "authority", "expected true or false, not a string"),
        ("[authority]\ncreator_type = 'X'", "authority", "expected true or false, not a table"),
        ("purpose = 2026-01-01", "purpose", "expected a string, not a date or time"),
        ("case = false", "case", "not false"),
        ('case = "Sensitive"', "case", 'expected "sensitive", "insensitive" or "path", not \'Sensitive\''),
        ('who_may_mint = "public"', "who_may_mint", 'expected "administrators", "server" or "authenticated"'),
        ('who_may_list = "all"', "who_may_list", '"authenticated" or "public"'),
        ('deletion = "never"', "deletion", 'expected "allowed" or "tombstone"'),
        ('required_types = "URL"', "required_types", "expected a list of types, not a string"),
        ('required_types = ["URL", 1]', "required_types", "not a list that contains an integer"),
        ("allowed_types = [[]]", "allowed_types", "not a list that contains a list"),
        ('allowed_types = ["."]', "allowed_types", "the name of a type is empty"),
        ('allowed_types = ["URL "]', "allowed_types", "ends with a space"),
        ('allowed_types = ["UR\\u0000L"]', "allowed_types", "U+0000 is a control character"),
        (f'allowed_types = ["{"X" * 256}"]', "allowed_types", f"has 256 characters; the limit is {MAX_TYPE}"),
        ('allowed_types = ["URL, TITLE"]', "allowed_types", "'URL, TITLE' is a list; name each type by itself"),
        ('url_schemes = ["https", "htp"]', "url_schemes", "'htp' is not a URL scheme; did you mean http?"),
        ('creator_type = ""', "creator_type", "the name of a type is empty"),
        ('creator_type = "X."', "creator_type", "means a family of types"),
        ('owner_type = "hs_admin"', "owner_type", "is a type of the Handle System"),
        ('default_creator = "hdl:1/x"', "default_creator", "write the handle bare: '1/x', not 'hdl:1/x'"),
        ('default_creator = " 1/x"', "default_creator", "write the handle bare"),
        ('default_creator = "nobody"', "default_creator", 'there is no "/"'),
        ('default_administrators = ["0.NA/1"]', "default_administrators", "INDEX:HANDLE"),
        ('default_administrators = ["300:x"]', "default_administrators", 'there is no "/"'),
        ('default_administrators = ["-1:0.NA/1"]', "default_administrators", "the index is negative"),
        ('default_administrators = ["300:1/x:fly"]', "default_administrators", "'fly' is not a permission"),
        ('profile = "a/b"\nscheme = "free"', "profile", "expected a name of letters, digits and ._-"),
        ('profile = "a\\n"\nscheme = "free"', "profile", "expected a name of letters, digits and ._-"),
        (f'profile = "{"a" * 65}"\nscheme = "free"', "profile", "65 characters; the limit is 64"),
        (f'purpose = "{"a" * 2001}"', "purpose", "2,001 characters; the limit is 2,000"),
        ("scheme_options = { version = 1.0 }", "scheme_options", "a table of options such as { version = 1 }"),
        ("scheme_options = { version = 1.5 }", "scheme_options", "a table of options such as { version = 1 }"),
        ('scheme_options = { "a b" = 1 }', "scheme_options", "is not a valid option name"),
        (f"scheme_options = {{ a = {1 << 63} }}", "scheme_options", "more than 64 bits"),
        ('scheme = ""', "scheme", "expected a scheme or pattern:TEMPLATE"),
        ('scheme = "pattern"', "scheme", "expected a scheme or pattern:TEMPLATE"),
        ('scheme = "cordra:1"', "scheme", "expected a scheme or pattern:TEMPLATE"),
        ('scheme = "pattern:"', "scheme", "the template is empty"),
        ('scheme = "pattern:TEA"', "scheme", "is not allowed in a template"),
        ('scheme = "pattern:dd"\nscheme_options = { template = "d" }', "scheme", "cannot be used here"),
        ('scheme = "uuid"\nscheme_options = { version = 2 }', "scheme", "version 1, 4 or 7"),
        ('scheme = "uuid"\nscheme_options = { name = "x" }', "scheme", "cannot be used here"),
        ('scheme = "roman"', "scheme", "unknown scheme 'roman'"),
        ("scheme_options = { version = 4 }", "scheme_options", 'scheme = "free" has no options'),
        ('scheme = "pilin"', "case", 'scheme = "pilin" ignores case; write case = "insensitive"'),
        ('scheme = "cordra"', "case", 'write case = "path"'),
        ('profile = "pilin"\ncase = "sensitive"', "case", 'write case = "insensitive"'),
        ('case = "path"', "case", 'case = "path" requires the scheme cordra'),
        ('work_type = "X"\nobject_type = "x"', None, "the type 'x' is used twice in this policy"),
        ('forbidden_types = ["HS_ADMIN"]', "forbidden_types", "'HS_ADMIN' is required and cannot be forbidden"),
        ('forbidden_types = ["TOMBSTONE."]', "forbidden_types", "'TOMBSTONE.REASON' is required"),
        ('required_types = ["URL"]\nforbidden_types = ["url."]', "forbidden_types", "'URL' is required"),
        ("case = ", None, "Invalid TOML: Invalid value (at end of document)"),
        ("purpose = 'a'\npurpose = 'b'\n", None, "at line 2"),
        ("a = " + "[" * 5000, None, "nested more than 8 levels deep"),
        ("a." * 8000 + "a = 1", None, "8,000 dots outside of strings; the limit is 32"),
        (f"max_ahead = {'9' * 5000}", None, "Invalid TOML"),
        ("purpose = 'a\ud800'", None, "character 13 is half of a surrogate pair"),
        ("#" * (MAX_TEXT_BYTES + 1), None, "the policy has 16,385 bytes; the limit is 16,384"),
        (f"required_types = {format_toml(['é' * 255] * 29)}", None, "the complete policy has"),
    ],
)
def test_invalid_text_is_refused_with_key_and_expectation(text: str, key: str | None, words: str) -> None:
    problem = refused(text)
    assert problem.key == key
    assert words in problem.message
    assert str(problem) == (problem.message if key is None else f"{key}: {problem.message}")


def test_required_family_can_be_met_by_a_subtype() -> None:
    """`URL.us` meets the requirement of the family `URL.` if `URL` itself is forbidden."""
    policy = Policy.from_toml('required_types = ["URL."]\nforbidden_types = ["URL"]')
    assert policy.required_types == ("URL.",)


@given(texts())
def test_any_text_is_a_policy_or_is_refused(text: str) -> None:
    try:
        policy = Policy.from_toml(text)
    except InvalidPolicy:
        return
    assert Policy.from_stored(policy.to_toml()) == policy


_PLAIN = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["pilin", "URL", "path", "cordra", "1/x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["version", "a"]), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(list(KEYS)), _PLAIN, max_size=4))
def test_any_value_of_any_key_is_accepted_or_refused(plain: dict[str, Any]) -> None:
    try:
        text = "".join(f"{key} = {format_toml(item)}\n" for key, item in plain.items())
    except OverflowError:  # TOML has 64 bits for a number
        return
    assert tomllib.loads(text) == plain
    try:
        policy = Policy.from_toml(text)
    except InvalidPolicy:
        return
    assert Policy.from_stored(policy.to_toml()) == policy


@given(st.text())
def test_every_string_can_be_formatted(text: str) -> None:
    assert tomllib.loads(f"a = {format_toml(text)}") == {"a": text}


def test_long_line_is_truncated_in_refusals() -> None:
    policy = Policy(forbidden_types=tuple(f"TYPE{number}" for number in range(100)))
    assert policy.line("forbidden_types").startswith('forbidden_types = ["TYPE0", "TYPE1", ')
    assert len(policy.line("forbidden_types")) == MAX_LINE_LENGTH + 1
    assert Policy.from_toml(policy.to_toml()) == policy


def test_default_administrators_expand_the_prefix() -> None:
    policy = Policy(default_administrators=("200:0.NA/{prefix}", "300:{prefix}/me:add_value"))
    group, person = policy.administrators("10.1:x")
    assert (str(group.administrator), group.permissions) == ("200:0.NA/10.1:x", ALL_PERMISSIONS)
    assert person == Admin.from_text("300:10.1:x/me:add_value")
    assert person.permissions == AdminPermission.ADD_VALUE


@given(handles().filter(lambda handle: not re.match("(?i)hdl:|doi:|info:|https?:", str(handle))))
def test_every_legal_handle_can_be_the_default_creator(handle: object) -> None:
    assert Policy(default_creator=str(handle)).default_creator == str(handle)


# The documentation of the keys matches the code. To write both files after a change:
# python -m tests.registry.policy.test_policy_text


def schema() -> dict[str, Any]:
    """The JSON Schema of a policy's text, for TOML editors. It cannot express every check of the parser."""
    properties = msgspec.json.schema(Policy)["$defs"]["Policy"]["properties"]
    properties["scheme_options"]["default"] = {}
    for part in properties.values():
        part.pop("$ref", None)  # to an enumeration whose members it lists
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The policy of a namespace",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"description": None, **part} for name, part in properties.items()},
    }


_VALIDATOR = Draft202012Validator(schema())


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


def manual_table() -> str:
    """One row for each key, with the default and the values of the built-in profiles."""
    rows = ["| key | value | default | in profiles | description |", "|---|---|---|---|---|"]
    for name, key in KEYS.items():
        default = getattr(DEFAULTS, name)
        others = [
            f"{profile}: `{format_toml(getattr(policy, name))}`"
            for profile, policy in PROFILES.items()
            if getattr(policy, name) != default and name != "profile"
        ]
        shown = "; ".join(others) or "–"
        rows.append(f"| `{name}` | {key.expects} | `{format_toml(default)}` | {shown} | {key.about} |")
    return "\n".join(rows) + "\n"


def test_published_schema_matches_the_code() -> None:
    assert (REFERENCE / "policy.schema.json").read_text() == schema_text()


def test_manual_table_matches_the_code() -> None:
    assert manual_table() in (REFERENCE / "policy.md").read_text()


@given(policies())
def test_schema_accepts_every_policy(policy: Policy) -> None:
    plain = tomllib.loads(policy.to_toml())
    assert plain.keys() == schema()["properties"].keys()
    _VALIDATOR.validate(plain)


@pytest.mark.parametrize(
    "text",
    [
        "zzz = 1",
        "max_ahead = -1",
        "max_ahead = 1.5",
        "nfc = 1",
        'case = "Sensitive"',
        'who_may_mint = "public"',
        'profile = "a/b"',
        'profile = "a\\n"',
        'creator_type = ""',
        'required_types = [""]',
        'scheme_options = { "a b" = 1 }',
        "scheme_options = { a = 1.5 }",
        f'purpose = "{"a" * 2001}"',
    ],
)
def test_schema_and_parser_refuse_the_same_texts(text: str) -> None:
    assert not _VALIDATOR.is_valid(tomllib.loads(text))
    refused(f'scheme = "uuid"\n{text}')


def write_published() -> None:
    """Write the schema, and the table in the manual."""
    (REFERENCE / "policy.schema.json").write_text(schema_text())
    manual = REFERENCE / "policy.md"
    before, _, rest = manual.read_text().partition("\n| key |")
    after = rest.partition("\n\n")[2]
    manual.write_text(f"{before}\n{manual_table()}\n{after}")


if __name__ == "__main__":
    write_published()

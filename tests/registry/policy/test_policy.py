"""What a policy allows: names, values, deletion, change; each refusal names the policy's line and has advice."""

import pickle
from dataclasses import FrozenInstanceError, replace
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.names import pilin, scheme_loader
from perseid.names.cordra import CordraScheme, UuidScheme
from perseid.names.errors import InvalidName
from perseid.names.handle import PROFILE_CASE_RULES, CaseRule, Handle
from perseid.names.pilin import PilinScheme, check_character
from perseid.names.scheme_loader import PatternScheme
from perseid.names.schemes import STRICT_CLOCK, Details, Source
from perseid.records.record import Value
from perseid.records.types import TypeQuery
from perseid.registry.advice import AdviceKind
from perseid.registry.policy.policy import (
    DEFAULT_OWNER_TYPE,
    DEFAULTS,
    PROFILES,
    Audience,
    Deletion,
    Policy,
    Refusal,
    Subject,
)
from perseid.registry.policy.text import InvalidPolicy
from tests.names.support import attempt
from tests.strategies import authorities, handles, hexadecimal, milliseconds, queries

PATH = "F58FB49EB1F848F0A606E84CEF294BE5"
UUID = "5f3c1f6e-7d0f-4d8e-9a39-2b6c1d1c9f00"


class Roman:
    """A third party's scheme."""

    name = "roman"

    def __init__(self, smallest: str = "I") -> None:
        self.smallest = smallest

    def mint(self, source: Source, count: int = 1) -> list[str]:
        return [self.smallest * (source.lease(1, 1) + number) for number in range(count)]

    def validate(self, handle: Handle) -> None:
        if set(handle.suffix) != {self.smallest}:
            raise InvalidName("P8", "not Roman")

    def normalize(self, handle: Handle) -> Handle:
        raise AssertionError(f"{handle}: names of third-party schemes are not normalized")

    def describe(self, handle: Handle) -> Details:
        return {"number": len(handle.suffix)}


@pytest.fixture
def roman(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    points = EntryPoints([EntryPoint("roman", f"{__name__}:Roman", scheme_loader.ENTRY_POINT_GROUP)])
    monkeypatch.setattr(scheme_loader, "entry_points", points.select)
    return monkeypatch


def only(refusals: list[Refusal]) -> Refusal:
    (refusal,) = refusals
    return refusal


def record(*types: str) -> list[Value]:
    return [Value.text(index, type_, "x") for index, type_ in enumerate(types, 1)]


# The built-in profiles


def test_profiles_have_their_case_rules() -> None:
    assert {name: policy.case for name, policy in PROFILES.items()} == PROFILE_CASE_RULES
    assert all(policy.profile == name for name, policy in PROFILES.items())


def test_pilin_profile_follows_the_pilin_documents() -> None:
    policy = PROFILES["pilin"]
    assert policy.suffix_scheme() == PilinScheme()
    assert policy.authority
    assert policy.creation_date_type == "102.100.TYPE/CREATION_DATE"
    assert policy.creator_type == "102.100.TYPE/CREATOR"
    assert (policy.owner_type, policy.default_creator) == ("", "")
    assert DEFAULT_OWNER_TYPE == "102.100.TYPE/OWNER"
    assert (policy.deletion, policy.show_actors) == (Deletion.TOMBSTONE, False)
    assert all(type_.startswith("102.100.TYPE/") for type_ in policy.types_used)
    assert len(policy.types_used) == 9


def test_cordra_profile_forbids_deletion_and_free_ones_allow_it() -> None:
    assert PROFILES["cordra"].suffix_scheme() == CordraScheme()
    assert PROFILES["cordra"].deletion is Deletion.TOMBSTONE
    for name in ("free", "exact"):
        assert PROFILES[name].suffix_scheme() is None
        assert PROFILES[name].deletion is Deletion.ALLOWED
        assert not PROFILES[name].authority


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_give_permissions_to_administrators_only(name: str) -> None:
    assert (PROFILES[name].who_may_mint, PROFILES[name].who_may_list) == (
        Audience.ADMINISTRATORS,
        Audience.ADMINISTRATORS,
    )
    assert not PROFILES[name].show_actors


def test_policy_is_immutable() -> None:
    policy = PROFILES["pilin"]
    with pytest.raises(FrozenInstanceError):
        policy.case = CaseRule.PATH  # type: ignore[misc]
    assert policy == replace(policy) == pickle.loads(pickle.dumps(policy))
    assert len({policy, replace(policy)}) == 1
    with pytest.raises(InvalidPolicy, match="case"):
        replace(policy, case=CaseRule.SENSITIVE)


def test_lead_follows_max_ahead_and_strict_clock() -> None:
    assert DEFAULTS.lead == 3_600_000
    assert Policy(max_ahead=5).lead == 5
    assert Policy(max_ahead=5, strict_clock=True).lead == STRICT_CLOCK


def test_owner_type_is_used_only_with_authority() -> None:
    policy = replace(PROFILES["pilin"], owner_type=DEFAULT_OWNER_TYPE)
    assert DEFAULT_OWNER_TYPE in policy.types_used
    assert DEFAULT_OWNER_TYPE not in replace(policy, authority=False).types_used


# Names


@given(handles())
def test_free_profiles_accept_any_legal_handle(handle: Handle) -> None:
    for profile in ("free", "exact"):
        assert PROFILES[profile].check_name(handle) == []
        assert PROFILES[profile].normalize(handle) == handle
        assert PROFILES[profile].lookup_form(handle) == (handle, None, None)


@given(handles(), st.sampled_from(["pilin", "cordra"]))
def test_handle_is_refused_exactly_when_its_scheme_refuses_it(handle: Handle, profile: str) -> None:
    policy = PROFILES[profile]
    problem = attempt((PilinScheme() if profile == "pilin" else CordraScheme()).validate, handle)
    assert [refusal.message for refusal in policy.check_name(handle)] == ([] if problem is None else [str(problem)])
    if problem is not None:
        assert policy.normalize(handle) == handle
        assert policy.lookup_form(handle) == (handle, None, None)


@given(milliseconds(), st.booleans())
def test_pilin_handles_are_registered_in_uppercase(moment: int, small: bool) -> None:
    suffix = pilin.encode(moment)
    handle = Handle("102.100.pilin", suffix.lower() if small else suffix)
    policy = PROFILES["pilin"]
    assert policy.check_name(handle) == []
    assert policy.normalize(handle) == Handle("102.100.pilin", suffix)
    assert policy.lookup_form(handle) == (handle, None, None)
    assert policy.case.key(policy.normalize(handle)) == policy.case.key(handle)


@given(authorities(), hexadecimal(32), queries(), queries())
def test_cordra_handle_is_looked_up_and_registered_without_query(
    authority: str, path: str, query: str | None, fragment: str | None
) -> None:
    tail = ("" if query is None else f"?{query}") + ("" if fragment is None else f"#{fragment}")
    handle, bare = Handle(authority, path + tail), Handle(authority, path.upper())
    policy = PROFILES["cordra"]
    assert policy.lookup_form(handle) == (bare, query, fragment)
    assert policy.normalize(handle) == Handle(authority, path.upper() + tail)
    if not tail:
        assert policy.check_name(handle) == []
        return
    refusal = only(policy.check_name(handle))
    assert (refusal.subject, refusal.line) == (Subject.NAME, 'scheme = "cordra"')
    assert refusal.advice == AdviceKind.REGISTER_WITHOUT_QUERY(handle=bare)
    assert "(rule C5)" in refusal.message


DECOMPOSED, COMPOSED = "12345/cafe\u0301", "12345/caf\u00e9"
MIXED = "12345/p\u0430per"


def test_handle_not_in_nfc_is_refused() -> None:
    policy = Policy(nfc=True)
    refusal = only(policy.check_name(Handle.parse(DECOMPOSED)))
    assert (refusal.subject, refusal.key, refusal.line) == (Subject.NAME, "nfc", "nfc = true")
    assert refusal.message.endswith("is not in Unicode normalization form C, from character 10 on")
    assert str(refusal.advice) == f"Register {COMPOSED}, which is '12345/caf\\xe9'"
    assert policy.check_name(Handle.parse(COMPOSED)) == []
    assert policy.check_name(Handle.parse("12345/cafe")) == []
    assert Policy().check_name(Handle.parse(DECOMPOSED)) == []
    beyond = only(policy.check_name(Handle.parse("12345/\ufacf")))
    assert beyond.advice == AdviceKind.CHOOSE_CHARACTERS()


def test_handle_with_mixed_scripts_is_refused() -> None:
    policy = Policy(single_script=True)
    refusal = only(policy.check_name(Handle.parse(MIXED)))
    assert (refusal.subject, refusal.key, refusal.line) == (Subject.NAME, "single_script", "single_script = true")
    assert "mixes scripts: character 8, " in refusal.message
    assert refusal.message.endswith("(U+0430), is Cyrillic, and the characters before it are Latin")
    assert refusal.advice == AdviceKind.USE_ONE_SCRIPT()
    assert policy.check_name(Handle.parse(DECOMPOSED)) == []
    assert Policy().check_name(Handle.parse(MIXED)) == []


def test_nfc_and_single_script_apply_to_the_suffix_only() -> None:
    policy = Policy(nfc=True, single_script=True)
    assert policy.check_name(Handle.parse(f"e\u0301p\u0430/{COMPOSED}")) == []
    both = policy.check_name(Handle.parse("12345/p\u0430e\u0301"))
    assert [refusal.key for refusal in both] == ["nfc", "single_script"]


@given(handles())
def test_suggested_nfc_handle_is_accepted(handle: Handle) -> None:
    policy = Policy(nfc=True)
    for refusal in policy.check_name(handle):
        if refusal.advice.kind is AdviceKind.REGISTER_COMPOSED:
            assert policy.check_name(Handle.parse(str(dict(refusal.advice.parameters)["handle"]))) == []


def test_suffix_of_another_scheme_is_refused() -> None:
    refusal = only(PROFILES["pilin"].check_name(Handle("102.100.272", "D7J1GODQH")))
    assert (refusal.subject, refusal.key, refusal.line) == (Subject.NAME, "scheme", 'scheme = "pilin"')
    assert refusal.message.startswith("at character 18: ")
    assert refusal.message.endswith("(rule P7)")
    assert str(refusal) == (
        f'{refusal.message}; the policy of this namespace says: scheme = "pilin". '
        "Mint a handle, or use a suffix that follows the scheme"
    )


@pytest.mark.parametrize(
    ("policy", "right", "wrong"),
    [
        (
            Policy(scheme="pilin-check", case=CaseRule.INSENSITIVE),
            f"D7J1G0DQH{check_character('D7J1G0DQH')}",
            "D7J1G0DQH",
        ),
        (Policy(scheme="uuid"), UUID, UUID[:-1]),
        (Policy(scheme="uuid", case=CaseRule.INSENSITIVE), UUID.upper(), PATH),
        (Policy(scheme="pattern:TR-dddd"), "TR-0001", "TR-001"),
        (PROFILES["cordra"], PATH, PATH[1:]),
        (replace(PROFILES["cordra"], case=CaseRule.INSENSITIVE), PATH.lower(), f"{PATH}0"),
    ],
    ids=lambda policy: policy.scheme if isinstance(policy, Policy) else None,
)
def test_each_scheme_accepts_its_own_suffixes(policy: Policy, right: str, wrong: str) -> None:
    assert policy.check_name(Handle("10.1", right)) == []
    refusal = only(policy.check_name(Handle("10.1", wrong)))
    assert refusal.line == f'scheme = "{policy.scheme}"'


@pytest.mark.parametrize(
    ("scheme", "suffix"), [("uuid", UUID.upper()), ("uuid", UUID), ("pattern:TR-dddd", "tr-0001"), ("free", "a/B")]
)
def test_other_schemes_keep_the_spelling(scheme: str, suffix: str) -> None:
    policy = Policy(scheme=scheme, case=CaseRule.INSENSITIVE)
    handle = Handle("10.1", suffix)
    assert policy.check_name(handle) == []
    assert policy.normalize(handle) is handle


def test_options_are_passed_to_the_scheme() -> None:
    assert Policy.from_toml('profile="cordra"\nscheme_options = { version = 1 }').suffix_scheme() == CordraScheme(
        version=1
    )
    assert Policy(scheme="uuid", scheme_options={"version": 7}).suffix_scheme() == UuidScheme(version=7)
    policy = Policy(scheme="pattern:TR-dddd")
    assert policy.suffix_scheme() == PatternScheme("TR-dddd")
    assert policy.suffix_scheme() is policy.suffix_scheme()


@pytest.mark.usefixtures("roman")
def test_third_party_scheme_works_like_a_built_in_one() -> None:
    policy = Policy.from_toml('scheme = "roman"\nscheme_options = { smallest = "J" }')
    handle = Handle("10.1", "JJJ")
    assert policy.check_name(handle) == []
    assert policy.normalize(handle) is handle
    assert only(policy.check_name(Handle("10.1", "III"))).message == "not Roman (rule P8)"


def test_policy_with_a_missing_scheme_is_read_and_registers_nothing(
    roman: pytest.MonkeyPatch,
) -> None:
    text = Policy.from_toml('scheme = "roman"').to_toml()
    roman.undo()
    policy = Policy.from_stored(text)
    handle = Handle("10.1", "III")
    assert policy.lookup_form(handle) == (handle, None, None)
    refusal = only(policy.check_name(handle))
    assert refusal.line == 'scheme = "roman"'
    assert "unknown scheme 'roman'" in refusal.message
    assert refusal.advice == AdviceKind.INSTALL_SCHEME()
    with pytest.raises(InvalidPolicy, match="roman"):
        policy.suffix_scheme()


# Values


def test_empty_policy_accepts_every_record() -> None:
    assert DEFAULTS.check_values([]) == []
    assert DEFAULTS.check_values([Value.text(1, "URL", "notaurl")]) == []
    assert DEFAULTS.check_values(record("URL", "EMAIL", "HS_SECKEY", "x")) == []


def test_forbidden_type_is_refused_with_line_index_and_advice() -> None:
    policy = Policy(forbidden_types=("EMAIL",))
    refusal = only(policy.check_values(record("URL", "email", "EMAIL.x")))
    assert str(refusal) == (
        "value 2 is of type 'email'; the policy of this namespace says: forbidden_types = [\"EMAIL\"]. "
        "Omit it, or use a type that is not forbidden"
    )
    assert (refusal.subject, refusal.key) == (Subject.VALUES, "forbidden_types")


@pytest.mark.parametrize("profile", ["pilin", "cordra"])
@pytest.mark.parametrize("type_", ["URL", "url", "URL.us", "0.TYPE/URL"])
def test_profile_refuses_what_is_not_a_url(profile: str, type_: str) -> None:
    wrong, right = Value.text(1, type_, "javascript:alert(1)"), Value.text(2, type_, "https://example.org/")
    policy = PROFILES[profile]
    refusal = only(policy.check_values([wrong, right, Value.text(3, "NOTE", "notaurl")]))
    assert refusal.message.startswith(f"value 1 of type '{type_}', 'javascript:alert(1)', has the scheme javascript, ")
    assert (refusal.key, refusal.advice) == ("url_schemes", AdviceKind.USE_OTHER_SCHEME())
    assert "; the policy of this namespace says: url_schemes = " in refusal.reason
    malformed = only(policy.check_values([Value.text(1, type_, "https://example.org/a b")]))
    clause = f"value 1 of type '{type_}', 'https://example.org/a b', contains a blank or a control character"
    assert malformed.reason == clause, "whatever it says"
    assert malformed.advice == AdviceKind.ENCODE_BLANK()
    relative = only(policy.check_values([Value.text(1, type_, "notaurl"), right]))
    assert relative.advice == AdviceKind.USE_ABSOLUTE_URL()
    host = only(policy.check_values([Value.text(1, type_, "example.org/a"), right]))
    assert (host.key, host.advice) == ("url_schemes", AdviceKind.USE_URL(url="https://example.org/a"))
    assert policy.check_values([wrong], known=[replace(wrong, index=7)]) == [], (
        "what it had before is not checked again"
    )


@pytest.mark.parametrize("profile", ["pilin", "cordra"])
def test_profile_accepts_the_schemes_that_it_always_accepted(profile: str) -> None:
    """A prefix without a policy uses a profile itself, so a shorter list would change existing namespaces."""
    schemes = ("http", "https", "ftp", "ftps", "mailto", "urn", "hdl", "doi", "info")
    assert PROFILES[profile].url_schemes == schemes
    values = [Value.text(index, "URL", f"{scheme}://example.org/") for index, scheme in enumerate(schemes, 1)]
    assert PROFILES[profile].check_values(values, complete=False) == []
    assert "has no host" in only(PROFILES[profile].check_values([Value.text(1, "URL", "ftps:x")])).message


def test_url_schemes_are_chosen_by_the_policy() -> None:
    policy = Policy(url_schemes=("ark",))
    assert policy.check_values([Value.text(1, "URL", "ark:/12345/x")]) == []
    assert only(policy.check_values([Value.text(1, "URL", "https://example.org/")])).key == "url_schemes"
    with pytest.raises(InvalidPolicy, match="'HTTP:' is not a URL scheme; write it in lowercase, without a colon"):
        Policy(url_schemes=("HTTP:",))


def test_stored_policy_without_url_schemes_accepts_every_url() -> None:
    """Policies of versions that did not have the key keep their meaning."""
    text = "\n".join(line for line in PROFILES["pilin"].to_toml().splitlines() if not line.startswith("url_schemes"))
    assert Policy.from_stored(text).check_values([Value.text(1, "URL", "notaurl")]) == []


def test_values_of_one_type_are_refused_once() -> None:
    policy = Policy(forbidden_types=("EMAIL.",))
    refusals = policy.check_values(record(*["EMAIL"] * 3, *["EMAIL.x"] * 7))
    assert [refusal.message for refusal in refusals] == [
        "values 1, 2, 3 are of type 'EMAIL'",
        "values 4, 5, 6, 7, 8, … are of type 'EMAIL.x'",
    ]


def test_only_listed_and_needed_types_are_allowed() -> None:
    policy = replace(PROFILES["pilin"], allowed_types=("URL.",), required_types=("DESC",), url_schemes=())
    own = ["HS_ADMIN", "hs_admin.x", "DESC", *policy.types_used]
    assert policy.check_values(record("url", "URL.us", *own)) == []
    refusal = only(policy.check_values(record("DESC", "EMAIL")))
    assert (refusal.key, refusal.line) == ("allowed_types", 'allowed_types = ["URL."]')
    assert refusal.message == "value 2 is of type 'EMAIL'"
    assert refusal.advice == AdviceKind.OMIT_OTHER_TYPE()


def test_forbidden_overrides_allowed() -> None:
    policy = Policy(allowed_types=("URL.",), forbidden_types=("URL.x",))
    assert only(policy.check_values(record("URL", "URL.x"))).key == "forbidden_types"


def test_required_types_must_exist_unless_the_record_is_incomplete() -> None:
    policy = Policy(required_types=("URL.", "DESC"))
    assert policy.check_values(record("url.us", "desc")) == []
    missing = policy.check_values(record("DESC.x"))
    assert [refusal.message for refusal in missing] == [
        "the record has no value of type 'URL.'",
        "the record has no value of type 'DESC'",
    ]
    assert {refusal.line for refusal in missing} == {'required_types = ["URL.", "DESC"]'}
    assert [refusal.advice for refusal in missing] == [AdviceKind.ADD_VALUE()] * len(missing)
    assert policy.check_values(record("TOMBSTONE.REASON"), complete=False) == []


_SOME_TYPES = st.sampled_from(["URL", "url", "URL.x", "URL.x.y", "URLX", "EMAIL", "DESC", ""])
_SOME_QUERIES = st.lists(st.sampled_from(["URL", "URL.", "URL.x.", "email", "DESC"]), max_size=2).map(tuple)


@given(st.lists(_SOME_TYPES, max_size=4), _SOME_QUERIES, _SOME_QUERIES, _SOME_QUERIES)
def test_types_match_as_they_do_in_queries(
    types: list[str], required: tuple[str, ...], allowed: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    try:
        policy = Policy(required_types=required, allowed_types=allowed, forbidden_types=forbidden)
    except InvalidPolicy:
        return
    fine = (
        not any(TypeQuery((query,)).finds(type_) for query in forbidden for type_ in types)
        and all(any(TypeQuery((query,)).finds(type_) for query in (*allowed, *required)) for type_ in types if allowed)
        and all(any(TypeQuery((query,)).finds(type_) for type_ in types) for query in required)
    )
    assert (policy.check_values(record(*types)) == []) is fine


# Deletion and change


def test_refused_deletion_advises_a_tombstone() -> None:
    handle = Handle("102.100.272", "D7J1G0DQH")
    assert PROFILES["free"].check_deletion(handle) == []
    refusal = only(PROFILES["pilin"].check_deletion(handle))
    assert (refusal.subject, refusal.line) == (Subject.DELETION, 'deletion = "tombstone"')
    assert refusal.advice == AdviceKind.TOMBSTONE_INSTEAD(handle=handle)


@pytest.mark.parametrize("old", PROFILES)
@pytest.mark.parametrize("new", PROFILES)
def test_policy_can_change_except_for_the_case_rule(old: str, new: str) -> None:
    refusals = PROFILES[old].check_change(PROFILES[new])
    if PROFILES[old].case is PROFILES[new].case:
        assert refusals == []
        return
    refusal = only(refusals)
    assert (refusal.subject, refusal.line) == (Subject.POLICY, f'case = "{PROFILES[old].case.value}"')
    assert refusal.message.startswith(f'case = "{PROFILES[new].case.value}" would change')
    assert refusal.advice == AdviceKind.CHANGE_CASE()

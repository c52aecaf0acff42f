"""Suffix schemes: found by name, configured by options, recognized by syntax."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest
from hypothesis import given

from perseid.names import scheme_loader
from perseid.names.cordra import CordraScheme, UuidScheme
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.pilin import PilinCheckScheme, PilinScheme
from perseid.names.scheme_loader import PatternScheme, load_scheme, recognize, scheme_names
from perseid.names.schemes import Details, Scheme, Source
from tests.names.support import FakeClock, attempt, misuse_error, name_error
from tests.strategies import handles

BUILT_IN = ["pilin", "pilin-check", "cordra", "uuid", "pattern"]
EVERY_KIND: list[Scheme] = [
    PilinScheme(),
    PilinCheckScheme(),
    CordraScheme(),
    CordraScheme(version=1),
    UuidScheme(),
    UuidScheme(version=7),
    PatternScheme("TR-dddd"),
    PatternScheme("eeeek"),
]
PATH = "F58FB49EB1F848F0A606E84CEF294BE5"


class Roman:
    """A third-party scheme."""

    name = "roman"

    def __init__(self, **options: object) -> None:
        self.options = options

    def mint(self, source: Source, count: int = 1) -> list[str]:
        first = source.lease(count, 1)
        return ["I" * number for number in range(first, first + count)]

    def validate(self, handle: Handle) -> None:
        if set(handle.suffix) != {"I"}:
            raise InvalidName("P8", "not Roman")

    def normalize(self, handle: Handle) -> Handle:
        return handle

    def describe(self, handle: Handle) -> Details:
        return {"number": len(handle.suffix)}


@pytest.fixture
def third_party_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Third-party packages provide `roman` and try to replace `pilin`."""
    points = EntryPoints(EntryPoint(name, f"{__name__}:Roman", "perseid.schemes") for name in ("roman", "pilin"))
    monkeypatch.setattr(scheme_loader, "entry_points", points.select)


@pytest.mark.parametrize("scheme", EVERY_KIND, ids=repr)
def test_minted_names_are_valid_normalized_and_described(scheme: Scheme) -> None:
    minted = scheme.mint(FakeClock().source(0x5A), 3)
    assert len(minted) == 3
    for suffix in minted:
        handle = Handle.parse(f"102.100.272/{suffix}")
        scheme.validate(handle)
        assert scheme.normalize(handle) == handle
        for key, value in scheme.describe(handle).items():
            assert isinstance(key, str)
            assert value is None or isinstance(value, str | int)


@pytest.mark.parametrize("scheme", EVERY_KIND, ids=repr)
def test_scheme_refuses_a_foreign_suffix_with_a_position_in_the_handle(scheme: Scheme) -> None:
    for method in (scheme.validate, scheme.normalize):
        problem = name_error(method, Handle("102.100.272", "*"))
        assert (problem.position, problem.character) == (12, "*")


@pytest.mark.parametrize("scheme", EVERY_KIND, ids=repr)
def test_scheme_mints_one_name_by_default_and_has_no_state(scheme: Scheme) -> None:
    first, second = scheme.mint(FakeClock().source()), scheme.mint(FakeClock().source(), 1)
    assert first == second
    assert len(first) == 1


def test_built_in_schemes_are_found_by_name() -> None:
    assert scheme_names()[:5] == BUILT_IN
    for name in BUILT_IN[:-1]:
        assert load_scheme(name).name == name
    assert load_scheme("pattern", template="dd") == PatternScheme("dd")
    assert load_scheme("cordra", version=1) == CordraScheme(version=1)
    assert load_scheme("uuid", version=7) == UuidScheme(version=7)


def test_unknown_scheme_is_misuse_and_the_error_names_known_schemes() -> None:
    problem = misuse_error(load_scheme, "pilim")
    assert problem.rule == "P8"
    assert "'pilim'" in problem.message
    assert all(name in problem.message for name in BUILT_IN)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("pilin", {"version": 4}, "'version'"),
        ("pattern", {}, "template"),
        ("pattern", {"template": 5}, "string"),
        ("pattern", {"template": "ABC"}, '"A"'),
        ("cordra", {"version": 7}, "version 1 or 4"),
        ("cordra", {"version": []}, "unhashable"),
        ("uuid", {"version": 5}, "version 5"),
    ],
)
def test_unknown_scheme_option_is_misuse(name: str, options: dict[str, object], words: str) -> None:
    assert words in misuse_error(load_scheme, name, **options).message


@pytest.mark.usefixtures("third_party_schemes")
def test_third_party_scheme_is_found_and_receives_the_options() -> None:
    assert scheme_names() == [*BUILT_IN, "roman"]
    scheme = load_scheme("roman", numerals="upper")
    assert getattr(scheme, "options", None) == {"numerals": "upper"}
    assert scheme.mint(FakeClock().source(), 3) == ["I", "II", "III"]
    assert "roman" in misuse_error(load_scheme, "x").message


@pytest.mark.usefixtures("third_party_schemes")
def test_third_party_scheme_cannot_replace_a_built_in_scheme() -> None:
    assert load_scheme("pilin") == PilinScheme()
    assert scheme_names().count("pilin") == 1


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("102.100.272/D7J1G0DQH", "pilin"),
        ("102.100.272/d7j1g0dqh", "pilin"),
        ("102.100.272/D7J1G0DQHJ", "pilin-check"),
        ("102.100.272/D7J1G0DQHK", None),
        (f"100.102/{PATH}", "cordra"),
        (f"100.102/{PATH.lower()}?q#f", "cordra"),
        (f"pilin.2/{PATH}", None),
        ("10.1/f58fb49e-b1f8-48f0-a606-e84cef294be5", "uuid"),
        ("10.1/TR-0001", None),
        ("10.1/D7J1G0DQO", None),
    ],
)
def test_u6_scheme_is_recognized_by_syntax(name: str, scheme: str | None) -> None:
    found = recognize(Handle.parse(name))
    assert (None if found is None else found.name) == scheme


@given(handles())
def test_u6_recognized_scheme_accepts_the_handle(handle: Handle) -> None:
    found = recognize(handle)
    if found is not None:
        assert not isinstance(attempt(found.normalize, handle), InvalidName)


@pytest.mark.parametrize("name", ["pilin", "pilin-check", "cordra", "uuid", "pattern"])
def test_negative_count_is_misuse_and_zero_mints_nothing_in_every_scheme(name: str) -> None:
    options = {"template": "dd"} if name == "pattern" else {}
    scheme = load_scheme(name, **options)
    assert scheme.mint(FakeClock().source(), 0) == []
    assert misuse_error(scheme.mint, FakeClock().source(), -1).rule == "P6"


@pytest.mark.parametrize("name", ["pilin", "pilin-check", "cordra", "uuid", "pattern"])
def test_describing_a_foreign_suffix_is_refused_with_a_position_in_the_handle(name: str) -> None:
    options = {"template": "dd"} if name == "pattern" else {}
    problem = name_error(load_scheme(name, **options).describe, Handle("10.1", "!"))
    assert problem.position == 5
    assert problem.character == "!"

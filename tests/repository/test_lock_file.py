"""requirements.lock pins every dependency with hashes and names no registry."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import licenses
import lock

HASH = "--hash=sha256:" + 64 * "0"


def direct_requirements(root: Path) -> list[Requirement]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def pins_here() -> dict[str, lock.Pin]:
    """The pins that apply to this Python and platform, by name."""
    here = [
        pin
        for pin in lock.parse(lock.LOCK.read_text())
        if pin.requirement.marker is None or pin.requirement.marker.evaluate()
    ]
    by_name: dict[str, lock.Pin] = {canonicalize_name(pin.requirement.name): pin for pin in here}
    assert len(by_name) == len(here), "a distribution is pinned twice for one environment"
    return by_name


def test_lock_names_no_registry() -> None:
    text = lock.LOCK.read_text()
    for word in ("://", "index-url", "find-links", "trusted-host"):
        assert word not in text


def test_every_locked_requirement_has_a_hash() -> None:
    pins = lock.parse(lock.LOCK.read_text())
    assert pins
    assert all(pin.hashes for pin in pins)


def test_every_direct_dependency_is_pinned_within_its_bounds(root: Path) -> None:
    pins = pins_here()
    for requirement in direct_requirements(root):
        if requirement.marker is None or requirement.marker.evaluate():
            pin = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin.version), f"{requirement} is locked as {pin.version}"


def test_installed_run_time_dependencies_have_the_locked_versions() -> None:
    pins = pins_here()
    installed = {
        canonicalize_name(each.metadata["Name"]): each.version for each in licenses.closure("perseid", ["postgres"])
    }
    assert installed == {name: pins[name].version for name in installed}


def test_installed_tools_have_the_locked_versions() -> None:
    different = {
        name: (pin.version, metadata.version(name))
        for name, pin in pins_here().items()
        if metadata.version(name) != pin.version
    }
    assert not different, "locked and installed versions differ; run: make env"


def test_pin_has_version_marker_and_hashes() -> None:
    (pin,) = lock.parse(f"# comment\n\nsome-thing==1.2 ; python_version == '3.11' \\\n    {HASH}\n")
    assert (pin.requirement.name, pin.version) == ("some-thing", "1.2")
    assert str(pin.requirement.marker) == 'python_version == "3.11"'
    assert pin.hashes == (HASH.removeprefix("--hash="),)
    assert pin.text == f"some-thing==1.2 ; python_version == '3.11' \\\n    {HASH}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"thing @ https://example.org/thing-1.whl \\\n    {HASH}", "an address"),
        (f"thing==1 \\\n    {HASH} # from file:///somewhere", "an address"),
        ("--index-url mirror", "an option"),
        ("-r others.txt", "an option"),
        ("thing==1", "no hash"),
        ("thing==1 \\\n    --hash=md5:00", "not a requirement with sha256 hashes"),
        (f"thing>=1 \\\n    {HASH}", "not exactly one version"),
        (f"thing==1.* \\\n    {HASH}", "not exactly one version"),
        (f"thing \\\n    {HASH}", "not exactly one version"),
        ("thing==1 \\", "ends in the middle"),
    ],
)
def test_invalid_lock_entries_are_refused(text: str, reason: str) -> None:
    with pytest.raises(lock.LockError, match=reason):
        lock.parse(f"first==1 \\\n    {HASH}\n{text}\n")


def test_refreshing_replaces_the_lock_and_counts_distributions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = f"one==1 ; python_version == '3.11' \\\n    {HASH}\ntwo==2 \\\n    {HASH} \\\n    {HASH}\n"
    monkeypatch.setattr(lock, "LOCK", tmp_path / "some.lock")
    monkeypatch.setattr(lock, "compile_lock", lambda: compiled)
    lock.main()
    assert (tmp_path / "some.lock").read_text() == lock.HEADER + compiled
    assert capsys.readouterr().out == "some.lock: 2 pinned versions\n"


def test_refreshing_does_not_change_the_lock_if_the_resolver_writes_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.lock").write_text("as it was")
    monkeypatch.setattr(lock, "LOCK", tmp_path / "some.lock")
    monkeypatch.setattr(lock, "compile_lock", lambda: "--index-url https://example.org/simple\n")
    with pytest.raises(SystemExit, match="left as it is; the resolver wrote an address"):
        lock.main()
    assert (tmp_path / "some.lock").read_text() == "as it was"

"""Only allowed licenses reach users."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pytest

import licenses

Make = Callable[..., metadata.Distribution]
Site = Mapping[str, metadata.Distribution]


@pytest.fixture
def site() -> dict[str, metadata.Distribution]:
    """Distributions by name, as if installed."""
    return {}


@pytest.fixture
def make(tmp_path: Path, site: dict[str, metadata.Distribution]) -> Make:
    def make(name: str, *fields: str, needs: Sequence[str] = ()) -> metadata.Distribution:
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        requires = [f"Requires-Dist: {need}" for need in needs]
        lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *fields, *requires]
        (about / "METADATA").write_text("\n".join(lines) + "\n")
        site[name] = metadata.Distribution.at(about)
        return site[name]

    return make


def finder(site: Site) -> licenses.Find:
    def find(name: str) -> metadata.Distribution:
        try:
            return site[name]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    return find


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("mit", True),
        ("LGPL-3.0-only", True),
        ("GPL-3.0-only", False),
        ("GPL-2.0+", False),
        ("AGPL-3.0-or-later", False),
        ("LicenseRef-Proprietary", False),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only OR MIT AND AGPL-3.0-only", False),
        ("(GPL-3.0-only OR MIT) AND BSD-3-Clause", True),
        ("(GPL-3.0-only OR MIT) AND (AGPL-3.0-only)", False),
        ("MIT AND (ISC OR (GPL-3.0-only AND MIT))", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH LLVM-exception AND GPL-3.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
    ],
)
def test_expression_is_allowed_if_one_choice_is_allowed(expression: str, allowed: bool) -> None:
    assert licenses.is_allowed(expression) is allowed


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        (["License-Expression: Apache-2.0 OR MIT"], "Apache-2.0 OR MIT"),
        (["License-Expression: MIT", "License: GPL-3.0-only"], "MIT"),
        (["License: ISC License"], "ISC"),
        (["License: The MIT License (MIT)", "Classifier: License :: OSI Approved :: MIT License"], "MIT"),
        (["License: BSD-3-Clause"], "BSD-3-Clause"),
        (["License: MIT License", "        ", "        Permission is hereby granted"], "MIT"),
        (
            ["License: see the file", "Classifier: License :: OSI Approved :: BSD License"],
            "BSD-2-Clause OR BSD-3-Clause",
        ),
        (["Classifier: License :: OSI Approved", "License: MIT"], "MIT"),
        (
            [
                "Classifier: License :: OSI Approved :: MIT License",
                "Classifier: License :: OSI Approved :: Apache Software License",
            ],
            "(MIT) AND (Apache-2.0)",
        ),
    ],
)
def test_license_is_read_from_the_metadata(make: Make, fields: list[str], expression: str) -> None:
    assert licenses.judge(make("thing", *fields)) == licenses.Finding("thing", "1.0", expression, None)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ([], "the metadata names no license"),
        (["License: UNKNOWN"], "the metadata names no license"),
        (["License: my own words"], "the words are not in the table"),
        (["License-Expression: my own words"], "not an SPDX expression"),
        (["License-Expression: GPL-3.0-or-later"], "not in the list of allowed licenses"),
        (["License: AGPL-3.0-only"], "not in the list of allowed licenses"),
        (["License: GPLv3", "Classifier: License :: OSI Approved :: MIT License"], "the words are not in the table"),
        (["License: GNU General Public License"], "the words are not in the table"),
        (
            ["License: MIT", "Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)"],
            "the classifier is not in the table",
        ),
        (["Classifier: License :: Other/Proprietary License"], "the classifier is not in the table"),
    ],
)
def test_unknown_and_copyleft_licenses_are_refused(make: Make, fields: list[str], fault: str) -> None:
    assert licenses.judge(make("thing", *fields)).fault == fault


def test_closure_follows_requirements_extras_and_markers(make: Make, site: Site) -> None:
    make(
        "perseid",
        needs=["Direct_One", "loop", "other; sys_platform == 'none'", "db[fast]; extra == 'postgres'"],
    )
    make("direct-one", needs=["deep>=0.1", "tests-only; extra == 'test'"])
    make("deep")
    make("loop", needs=["perseid", "loop"])
    make("db", needs=["db-fast; extra == 'fast'"])
    make("db-fast")

    def names(*extras: str) -> list[str]:
        return [each.metadata["Name"] for each in licenses.closure("Perseid", extras, finder(site))]

    assert names() == ["deep", "direct-one", "loop"]
    assert names("postgres") == ["db", "db-fast", "deep", "direct-one", "loop"]


def test_command_prints_all_licenses_and_the_refused_ones(
    make: Make, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    make("perseid", "Provides-Extra: postgres", needs=["good", "bad", "db; extra == 'postgres'"])
    make("good", "License-Expression: MIT")
    make("bad", "License-Expression: GPL-3.0-only")
    make("db", "License-Expression: LGPL-3.0-only")
    assert licenses.main(finder(site)) == 1
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        ["name", "version", "license"],
        ["bad", "1.0", "GPL-3.0-only"],
        ["db", "1.0", "LGPL-3.0-only"],
        ["good", "1.0", "MIT"],
    ]
    assert err == "refused: bad 1.0: GPL-3.0-only: not in the list of allowed licenses\n"


def test_missing_dependency_fails_the_check(make: Make, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    make("perseid", "Provides-Extra: postgres", needs=["absent"])
    assert licenses.main(finder(site)) == 1
    assert "absent is needed and not installed" in capsys.readouterr().err


def test_checked_extras_exist(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {*licenses.EXTRAS} <= project["optional-dependencies"].keys()


def test_licenses_of_run_time_dependencies_are_allowed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert licenses.main() == 0
    named = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {"msgspec", "rich", "typer", "psycopg"} <= named

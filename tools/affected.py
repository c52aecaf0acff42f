"""Print the test folders and files that a change affects, for `make quick`.

A change is everything that differs from HEAD, with new files, or else the last commit. A changed module affects the
tests in the folder that mirrors its own, or in the nearest parent folder with tests.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = Path("src/perseid")
TESTS: Final = Path("tests")
WHOLE_TREE: Final = (TESTS / "repository" / "test_text.py",)
"""Tests for every change: rules about the text of all files."""
OTHERS: Final = {
    "docs": (TESTS / "test_documentation.py",),
    "README.md": (TESTS / "test_documentation.py",),
    "bench": (TESTS / "test_bench_smoke.py",),
    "fuzz": (TESTS / "test_fuzz_smoke.py",),
    "Makefile": (TESTS / "repository" / "test_make.py",),
}
"""Tests of other files, by the first part of their path."""


def changed_files(root: Path) -> list[Path]:
    """Return the files that differ from HEAD, or those of the last commit."""
    different = _git(root, "diff", "--name-only", "HEAD") + _git(root, "ls-files", "--others", "--exclude-standard")
    return [Path(line) for line in different or _git(root, "diff", "--name-only", "HEAD~1", "HEAD")]


def tests_for(path: Path, root: Path) -> tuple[Path, ...]:
    """Return the tests that a changed file affects, relative to the root."""
    if path.is_relative_to(SOURCES):
        folder = TESTS / path.relative_to(SOURCES).parent
        while not any((root / folder).glob("test_*.py")) and folder != TESTS:
            folder = folder.parent
        return () if folder == TESTS else (folder,)
    if path.is_relative_to(TESTS):
        return (path,) if path.name.startswith("test_") else (path.parent,) if path.parent != TESTS else ()
    return OTHERS.get(path.parts[0], ())


def affected(root: Path) -> list[Path]:
    """Return all affected tests, without those inside an affected folder."""
    found = {*WHOLE_TREE, *(test for path in changed_files(root) for test in tests_for(path, root))}
    existing = sorted(test for test in found if (root / test).exists())
    return [test for test in existing if not any(parent in found for parent in test.parents)]


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)  # noqa: S607
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{test}\n" for test in affected(ROOT)))

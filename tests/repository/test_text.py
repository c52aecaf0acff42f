"""Rules for the text of all files of the repository."""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

# A path that exists on one machine only. Names and addresses may contain the same words after other characters.
MACHINE_PATH = re.compile(r"(?<![\w.:/%-])/(?:home|mnt|opt|root|srv|work|Users)/[\w.]|\b[A-Z]:\\(?:Users)\\")
# Hosts of package registries: builders choose their own.
REGISTRY = re.compile(
    r"\b(?:(?:test\.)?py[p]i\.(?:org|python\.org|io)|python[h]osted\.org|registry\.np[m]js\.org|anacond[a]\.(?:org|com))"
    r"|\b(?:artifac[t]ory|nexu[s]|devp[i])\.[a-z]"
)
# The SHA-256 of the Apache License 2.0 as its authors publish it.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
# Phrases that readers would have to translate; CONTRIBUTING.md has the terms to use instead.
ODD_PHRASE = re.compile(
    r"\b(?:[Ss]ay who you are|not believed|(?:can )?read along|[Tt]hat is no(?! longer)|[Gg]o(?:ne)? on with"
    r"|nobody in particular"
    r"|[Ww]ithout further ado|at every door|of strangers|anew|mend(?:ed|s)?|who may make|taken back|leads? elsewhere"
    r"|[Ww]hoever (?:asks|shows|may)|change of many names|kept back|stands for nothing)\b"
)
# British spelling of words that also occur in identifiers.
BRITISH = re.compile(
    r"\b\w*(?:[Aa]uthoris|[Rr]ecognis|[Nn]ormalis|[Ss]erialis|[Oo]rganis)\w*|\b(?:licence|behaviour)s?\b"
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def files(root: Path) -> dict[Path, str]:
    """Every text file of the repository, those not committed yet included."""
    # The owner of the checkout may be another user, for example in a container.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=30).stdout
    texts = {}
    for name in listed.decode().split("\0"):
        path = root / name
        if name and path.is_file():
            content = path.read_bytes()
            if b"\0" not in content:
                texts[path] = content.decode()
    return texts


def matches(pattern: re.Pattern[str], files: dict[Path, str], root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_one_machine(files: dict[Path, str], root: Path) -> None:
    assert matches(MACHINE_PATH, files, root) == []


def test_no_file_names_a_package_registry(files: dict[Path, str], root: Path) -> None:
    assert matches(REGISTRY, files, root) == []


def test_patterns_find_paths_and_registries() -> None:
    slash, dot = "/", "."
    for path in ("home/me/x", "work/main", "root/.cache", "opt/wheels"):
        assert MACHINE_PATH.search(f"see {slash}{path}")
        assert MACHINE_PATH.search(f'"{slash}{path}"')
        assert not MACHINE_PATH.search(f"http://example.org/{path}")
        assert not MACHINE_PATH.search(f"10.1/{path}")
    for host in ("py" + "pi" + dot + "org", "files" + dot + "python" + "hosted" + dot + "org"):
        assert REGISTRY.search(f"https://{host}/simple")


def shipped(files: dict[Path, str], root: Path) -> dict[Path, str]:
    """The texts that users and contributors read: sources, documents and the files at the top."""
    own = {path.relative_to(root): path for path in files}
    return {path: files[path] for name, path in own.items() if name.parts[0] in ("src", "docs") or name.suffix == ".md"}


def test_no_text_has_an_odd_phrase(files: dict[Path, str], root: Path) -> None:
    assert matches(ODD_PHRASE, shipped(files, root), root) == []


def test_the_spelling_is_american(files: dict[Path, str], root: Path) -> None:
    assert matches(BRITISH, shipped(files, root), root) == []


def test_patterns_find_odd_phrases_and_british_spelling() -> None:
    assert ODD_PHRASE.search("Whoever " + "may do this")
    assert not ODD_PHRASE.search("recommended")
    assert BRITISH.search("un" + "authorised")


def test_license_is_the_unchanged_apache_license(root: Path) -> None:
    assert hashlib.sha256((root / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0


def prose(text: str) -> Iterator[str]:
    """The lines of a Markdown text that are not inside a code block."""
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield line


def anchors(text: str) -> set[str]:
    """The fragments that lead to the headings of a Markdown text."""
    headings = [line.lstrip("#").strip().lower() for line in prose(text) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def test_links_between_documents_are_valid(files: dict[Path, str], root: Path) -> None:
    broken = []
    for document in (path for path in files if path.suffix == ".md"):
        for target in LINK.findall("\n".join(prose(files[document]))):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, fragment = target.partition("#")
            path = (document.parent / name).resolve() if name else document
            exists = path.exists() and path.is_relative_to(root)
            if not exists or (fragment and fragment not in anchors(files.get(path, ""))):
                broken.append(f"{document.relative_to(root)}: {target}")
    assert broken == []

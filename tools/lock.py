"""Write requirements.lock: every dependency, all extras, with hashes and without registry addresses.

The file is valid for every supported Python (by environment markers) and names no index, so that a build in five years
works with any mirror.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Every dependency with its hashes: run-time, tests and tools.
# `make env` installs it; `make lock` refreshes it.
"""
_HASH = re.compile(r"\s--hash=(sha256:[0-9a-f]{64})(?=\s|$)")
_ONE_VERSION = re.compile(r"==[^=*,]+")


class LockError(ValueError):
    """An invalid line of a lock file."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One requirement of the lock file: exactly one version, and the hashes of its files."""

    requirement: Requirement
    hashes: tuple[str, ...]
    text: str
    """Its lines, without the last line break."""

    @property
    def version(self) -> str:
        """The one version it allows."""
        return str(self.requirement.specifier).removeprefix("==")


def compile_lock() -> str:
    """Resolve all dependencies of pyproject.toml for every Python from 3.11."""
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml"),
        *("--all-extras", "--universal", "--python-version", "3.11"),
        *("--generate-hashes", "--upgrade", "--quiet", "--no-header", "--no-annotate"),
        *("--no-emit-index-url", "--no-emit-find-links"),
    ]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def parse(text: str) -> list[Pin]:
    """Read a lock file; refuse every line that is not one version of one distribution with its hashes."""
    pins = []
    for block in _blocks(text):
        line = block.replace("\\\n", " ")
        if "://" in line:
            raise LockError(f"an address: {block.splitlines()[0]}")
        if line.startswith("-"):
            raise LockError(f"an option: {line}")
        try:
            requirement = Requirement(_HASH.sub("", line))
        except InvalidRequirement as error:
            raise LockError(f"not a requirement with sha256 hashes: {block.splitlines()[0]}") from error
        if not _ONE_VERSION.fullmatch(str(requirement.specifier)):
            raise LockError(f"not exactly one version: {requirement}")
        hashes = tuple(_HASH.findall(line))
        if not hashes:
            raise LockError(f"no hash: {requirement}")
        pins.append(Pin(requirement, hashes, block))
    return pins


def _blocks(text: str) -> Iterator[str]:
    """Yield logical lines, joined at backslashes, without comments and empty lines."""
    block: list[str] = []
    for line in text.splitlines():
        if not block and (not line.strip() or line.startswith("#")):
            continue
        block.append(line)
        if not line.endswith("\\"):
            yield "\n".join(block)
            block = []
    if block:
        raise LockError(f"the text ends in the middle of a requirement: {block[0]}")


def main() -> None:
    """Replace the lock file and print the number of distributions."""
    text = compile_lock()
    try:
        pins = parse(text)
    except LockError as error:
        sys.exit(f"{LOCK.name} was left as it is; the resolver wrote {error}")
    LOCK.write_text(HEADER + text)
    print(f"{LOCK.name}: {len(pins)} pinned versions")


if __name__ == "__main__":
    main()

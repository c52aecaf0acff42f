"""Check the licenses of all run-time dependencies of perseid.

Follows the requirements of the installed distribution, with the extras that users install, and fails if a license is
unknown or not allowed. A license is read from `License-Expression`, or else from the `License` field and the
classifiers together. What is ambiguous is refused, until someone extends a table here.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("server", "postgres")
"""The extras that users install; the others are for development."""

# SPDX identifiers of licenses whose terms let Apache-2.0 software depend on the work and travel with it.
ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "OLDAP-2.8",
        "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
        # Weak copyleft: binds changes to the work itself. We import it unchanged and the user can replace it.
        "MPL-2.0",
        "LGPL-2.1-only", "LGPL-2.1-or-later", "LGPL-3.0-only", "LGPL-3.0-or-later",
    }
)  # fmt: skip

# What the `License` field and the classifiers say, in lowercase letters and digits, without "the", "license",
# "licence" and "version". Texts without a variant stand for variants that are all allowed.
SPELLINGS = {
    "0bsd": "0BSD",
    "apache 2": "Apache-2.0",
    "apache 2 0": "Apache-2.0",
    "apache software": "Apache-2.0",
    "apache software 2 0": "Apache-2.0",
    "bsd": "BSD-2-Clause OR BSD-3-Clause",
    "bsd 2 clause": "BSD-2-Clause",
    "bsd 3 clause": "BSD-3-Clause",
    "2 clause bsd": "BSD-2-Clause",
    "3 clause bsd": "BSD-3-Clause",
    "modified bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "simplified bsd": "BSD-2-Clause",
    "cc0 1 0": "CC0-1.0",
    "cc0 1 0 universal cc0 1 0 public domain dedication": "CC0-1.0",
    "isc": "ISC",
    "isc iscl": "ISC",
    "gnu lesser general public v3 lgplv3": "LGPL-3.0-only",
    "gnu lesser general public v3 or later lgplv3": "LGPL-3.0-or-later",
    "mit": "MIT",
    "mit no attribution mit 0": "MIT-0",
    "mpl 2 0": "MPL-2.0",
    "mozilla public 2 0 mpl 2 0": "MPL-2.0",
    "psf": "PSF-2.0",
    "psf 2 0": "PSF-2.0",
    "python software foundation": "PSF-2.0",
    "unlicense unlicense": "Unlicense",
    "unlicense": "Unlicense",
    "zlib": "Zlib",
    "zlib libpng zlib": "Zlib",
}

_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(.+)")
_COPYLEFT = re.compile(r"\b(?:A?GPL)|\b(?:Affero|GNU) General Public", re.IGNORECASE)

Find = Callable[[str], metadata.Distribution]


@dataclass(frozen=True, slots=True)
class Finding:
    """A dependency, its license, and what is wrong with it."""

    name: str
    version: str
    license: str
    fault: str | None


def closure(name: str, extras: Iterable[str] = (), find: Find = metadata.distribution) -> list[metadata.Distribution]:
    """Return all distributions that `name` with these extras requires, without itself, by name.

    Raises `PackageNotFoundError` when one of them is not installed.
    """
    found: dict[str, metadata.Distribution] = {}
    done: set[tuple[str, str]] = set()
    root = canonicalize_name(name)
    waiting: list[tuple[str, str]] = [(root, extra) for extra in ("", *extras)]
    while waiting:
        step = waiting.pop()
        if step in done:
            continue
        done.add(step)
        needer, extra = step
        if needer not in found:
            found[needer] = find(needer)
        for line in found[needer].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                waiting += [(needed, wanted) for wanted in ("", *requirement.extras)]
    return [found[needed] for needed in sorted(found) if needed != root]


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression grants at least one way of use under allowed licenses only.

    An exception (`WITH`) adds permissions, so the license before it decides.
    Raises `InvalidLicenseExpression` when the text is not such an expression.
    """
    words = re.findall(r"[()]|[^\s()]+", canonicalize_license_expression(expression))
    return _any_of(words[::-1])


# The three below eat words from the end of a reversed, valid expression; AND binds more tightly than OR.
def _any_of(words: list[str]) -> bool:
    verdict = _all_of(words)
    while words and words[-1] == "OR":
        words.pop()
        verdict |= _all_of(words)
    return verdict


def _all_of(words: list[str]) -> bool:
    verdict = _one(words)
    while words and words[-1] == "AND":
        words.pop()
        verdict &= _one(words)
    return verdict


def _one(words: list[str]) -> bool:
    word = words.pop()
    if word == "(":
        verdict = _any_of(words)
        words.pop()
        return verdict
    if words and words[-1] == "WITH":
        del words[-2:]
    return word.removesuffix("+") in ALLOWED


def stated(distribution: metadata.Distribution) -> tuple[str, str | None]:
    """Return the license as an SPDX expression, and why it is unknown if it is."""
    fields = distribution.metadata
    for expression in _values(fields, "License-Expression"):
        return expression, None
    expressions: list[str] = []
    strange: list[str] = []
    for classifier in _values(fields, "Classifier"):
        if (match := _CLASSIFIER.fullmatch(classifier)) and match[1] != "OSI Approved":
            known = SPELLINGS.get(_plain(match[1]))
            (expressions if known else strange).append(known or match[1])
    if strange:
        return "; ".join(strange), "the classifier is not in the table"
    for field in _values(fields, "License"):
        first = field.splitlines()[0].strip()
        if known := SPELLINGS.get(_plain(first)) or _as_expression(first):
            expressions.append(known)
        elif _COPYLEFT.search(first) or not expressions:
            return first, "the words are not in the table"
    if not expressions:
        return "", "the metadata names no license"
    distinct = list(dict.fromkeys(expressions))
    return distinct[0] if len(distinct) == 1 else " AND ".join(f"({each})" for each in distinct), None


def _values(fields: metadata.PackageMetadata, name: str) -> list[str]:
    return [value for value in fields.get_all(name) or () if value.strip() and value != "UNKNOWN"]


def _plain(words: str) -> str:
    """Normalize to lowercase letters and digits, without filler words."""
    parts = re.findall(r"[a-z0-9]+", words.lower())
    return " ".join(part for part in parts if part not in {"the", "license", "licence", "version"})


def _as_expression(words: str) -> str | None:
    """Return the text as an SPDX expression, if it is one."""
    try:
        return canonicalize_license_expression(words)
    except InvalidLicenseExpression:
        return None


def judge(distribution: metadata.Distribution) -> Finding:
    """Check the license of one distribution."""
    expression, fault = stated(distribution)
    if fault is None:
        try:
            fault = None if is_allowed(expression) else "not in the list of allowed licenses"
        except InvalidLicenseExpression:
            fault = "not an SPDX expression"
    return Finding(distribution.metadata["Name"], distribution.version, expression or "unknown", fault)


def table(findings: Sequence[Finding]) -> str:
    """Format the findings in three aligned columns: name, version, license."""
    rows = [("name", "version", "license"), *((each.name, each.version, each.license) for each in findings)]
    first = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    return "\n".join(f"{name:<{first}}  {version:<{second}}  {expression}" for name, version, expression in rows)


def main(find: Find = metadata.distribution) -> int:
    """Print the table; return 1, with the reasons on standard error, when a license is refused."""
    try:
        findings = [judge(distribution) for distribution in closure("perseid", EXTRAS, find)]
    except metadata.PackageNotFoundError as error:
        print(f"{error.name} is needed and not installed; `make env` installs it", file=sys.stderr)
        return 1
    print(table(findings))
    refused = [finding for finding in findings if finding.fault]
    for finding in refused:
        print(f"refused: {finding.name} {finding.version}: {finding.license}: {finding.fault}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

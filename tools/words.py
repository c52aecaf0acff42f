"""Print every text that users see: help, errors, log lines, metrics, settings, API descriptions, pages.

Each line is `path:line: text`. Read the output as somebody who is new to the project would.

    python tools/words.py            # all texts
    python tools/words.py server/http/v1
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "perseid"
PROSE: Final = re.compile(r"[A-Za-z]{2,}[ ,.:;]+[A-Za-z{]")
"""What makes a string a text for people: two words in a row."""
TAGS: Final = re.compile(r"\{[%#].*?[%#]\}|\{\{.*?\}\}|<(script|style).*?</\1>|<[^>]*>", re.DOTALL)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of one file with their line numbers."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(ast.parse(source), help_texts=path.parent.name == "cli")
    elif path.suffix == ".html":
        for number, line in enumerate(TAGS.sub(lambda tag: "\n" * tag[0].count("\n"), source).splitlines(), 1):
            if PROSE.search(line):
                yield number, line.strip()
    elif path.suffix == ".toml":
        yield from ((1, text) for text in toml_texts(tomllib.loads(source)))


def python_texts(tree: ast.Module, *, help_texts: bool) -> Iterator[tuple[int, str]]:
    """The strings of a module that are texts; docstrings only where they are the help of commands."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    if help_texts:
        commands = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        docstrings -= {id(node.body[0].value) for node in commands if isinstance(node.body[0], ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in docstrings or id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if PROSE.search(text):
            yield node.lineno, " ".join(text.split())


def toml_texts(value: object) -> Iterator[str]:
    """The texts of a TOML file."""
    if isinstance(value, dict):
        for part in value.values():
            yield from toml_texts(part)
    elif isinstance(value, str) and PROSE.search(value):
        yield " ".join(value.split())


def main(folder: str = "") -> None:
    """Print the texts of the package, or of one of its folders."""
    for path in sorted((PACKAGE / folder).rglob("*")):
        if path.suffix in {".py", ".html", ".toml"} and "migrations" not in path.parts:
            for line, text in texts(path):
                print(f"{path.relative_to(ROOT)}:{line}: {text}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

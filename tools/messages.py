"""The texts of the pages for translators: `python tools/messages.py` writes `locale/perseid.pot`.

Texts are in templates (`{% trans %}`, `_()`) and in Python (`_()`, `ngettext()`), below `src/perseid/server/http`. What
the rules of a policy are for (`about()`), and what a change can warn about, is in the registry.
"""

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from jinja2 import Environment
from jinja2.ext import extract_from_ast

from perseid.registry.results import WarningKind

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "src" / "perseid" / "server" / "http"
POLICY: Final = ROOT / "src" / "perseid" / "registry" / "policy" / "policy.py"
CATALOG: Final = SOURCES / "pages" / "locale" / "perseid.pot"

_FUNCTIONS: Final = ("_", "gettext", "mark", "ngettext")
_HEAD: Final = """\
# The texts of the pages, as `python tools/messages.py` finds them.
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"
"""

Message = tuple[str, ...]
"""A text, or its singular and plural."""


def find_messages() -> dict[Message, list[str]]:
    """Return all texts, in the order of the files, and the files that contain them."""
    found: dict[Message, list[str]] = {}
    for path in sorted((*SOURCES.rglob("*.html"), *SOURCES.rglob("*.py"))):
        name = path.relative_to(SOURCES).as_posix()
        source = path.read_text(encoding="utf-8")
        for message in _in_template(source) if path.suffix == ".html" else _in_python(source):
            places = found.setdefault(message, [])
            if name not in places:
                places.append(name)
    for message in _in_python(POLICY.read_text(encoding="utf-8"), ("about",)):
        found.setdefault(message, []).append(POLICY.relative_to(ROOT / "src" / "perseid").as_posix())
    for kind in WarningKind:
        found.setdefault((kind.value,), []).append("registry/results.py")
    return found


def format_catalog(messages: dict[Message, list[str]]) -> str:
    """Write the texts as a template for translations."""
    entries = [_HEAD]
    for message, places in messages.items():
        lines = [f"#: {' '.join(places)}", f"msgid {_quote(message[0])}"]
        if len(message) == 1:
            lines.append('msgstr ""')
        else:
            lines += [f"msgid_plural {_quote(message[1])}", 'msgstr[0] ""', 'msgstr[1] ""']
        entries.append("\n".join(lines) + "\n")
    return "\n".join(entries)


def _in_template(source: str) -> Iterator[Message]:
    environment = Environment(extensions=["jinja2.ext.i18n"], autoescape=True)
    environment.policies["ext.i18n.trimmed"] = True
    for _, _, message in extract_from_ast(environment.parse(source)):
        texts = (message,) if isinstance(message, str) else message or ()
        if found := tuple([text for text in texts if text is not None]):
            yield found  # others are variables


def _in_python(source: str, functions: Collection[str] = _FUNCTIONS) -> Iterator[Message]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            count = 2 if node.func.id == "ngettext" else 1
            texts = [each.value for each in node.args[:count] if isinstance(each, ast.Constant)]
            if len(texts) == count:
                yield tuple(map(str, texts))


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def main() -> int:
    """Write the catalog."""
    CATALOG.parent.mkdir(exist_ok=True)
    CATALOG.write_text(format_catalog(find_messages()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

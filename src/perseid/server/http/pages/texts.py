"""Texts for people, in one catalog.

The English texts in templates (`{% trans %}`) and in Python (`_`) are the keys. `locale/perseid.pot` lists them all;
`python tools/messages.py` writes it. A process has one language: templates are compiled with its texts, so a
translated text costs nothing when a page is rendered.
"""

from collections.abc import Callable
from gettext import NullTranslations
from typing import Final

from jinja2 import nodes
from jinja2.ext import InternationalizationExtension
from jinja2.parser import Parser


class _Catalog:
    """The language of this process."""

    def __init__(self) -> None:
        self.translations = NullTranslations()
        self.language = "en"
        self.on_change: list[Callable[[], object]] = []


_catalog: Final = _Catalog()


def _(text: str) -> str:
    """Translate a text. Insert values with `.format`, so that translations can change their order."""
    return _catalog.translations.gettext(text)


def mark(text: str) -> str:
    """Mark a text for the catalog that `_` translates later."""
    return text


def ngettext(singular: str, plural: str, count: int) -> str:
    """Translate a text that depends on a number."""
    return _catalog.translations.ngettext(singular, plural, count)


def get_language() -> str:
    """The language of the texts, as in HTML."""
    return _catalog.language


def use(translations: NullTranslations, language: str) -> None:
    """Use other texts from now on."""
    _catalog.translations, _catalog.language = translations, language
    for forget in _catalog.on_change:
        forget()


def on_change(forget: Callable[[], object]) -> None:
    """Call a function when the language changes: it forgets what contains texts."""
    _catalog.on_change.append(forget)


class CompiledTexts(InternationalizationExtension):
    """Like `jinja2.ext.i18n`, but a text without variables is translated when its template is compiled."""

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Parse `{% trans %}`."""
        parsed = super().parse(parser)
        text = _get_constant(parsed)
        if text is None:
            return parsed
        return nodes.Output([nodes.TemplateData(_(text))])


def _get_constant(node: nodes.Node | list[nodes.Node]) -> str | None:
    """The text of a call of gettext with nothing but a text."""
    calls = [] if isinstance(node, list) else list(node.find_all(nodes.Call))
    if len(calls) != 1 or not isinstance(node, nodes.Output) or any(node.find_all(nodes.Mod)):
        return None
    (argument, *others) = calls[0].args
    return argument.value if isinstance(argument, nodes.Const) and not others and not calls[0].kwargs else None

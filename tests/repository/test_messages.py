"""The catalog of texts is complete."""

from messages import CATALOG, find_messages, format_catalog


def test_catalog_has_all_texts() -> None:
    """Update it with: python tools/messages.py"""
    assert format_catalog(find_messages()) == CATALOG.read_text(encoding="utf-8")


def test_texts_of_templates_and_python_are_found() -> None:
    found = find_messages()
    assert found["Skip to content",] == ["pages/templates/base.html"]
    assert found["Handle resolver",] == ["pages/branding.py"]

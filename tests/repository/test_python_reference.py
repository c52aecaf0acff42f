"""The reference of the Python client is generated from the code."""

import re

import pytest

from perseid import client
from perseid.client import AsyncClient, AsyncNativeClient, AsyncResolver, Client, NativeClient, Resolver
from python_reference import PAGE, page


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python tools/python_reference.py"


def test_the_reference_has_every_exported_name_and_operation_with_a_docstring() -> None:
    text = page()
    described = re.findall(r"^#{3,4} (\S+)\n\n(?:```text\n.*?^```\n\n)?(?=[^#\n|`])", text, re.MULTILINE | re.DOTALL)
    assert described == re.findall(r"^#{3,4} (\S+)$", text, re.MULTILINE), "a docstring is missing"
    assert len(described) == len(set(described)), "two entries have the same anchor"
    assert set(client.__all__) <= set(described)
    operations = {f"Client.{name}" for name in dir(Client) if name[0] != "_"}
    assert operations - set(described) == {"Client.send", "Client.iterate"}, "methods that only operations call"


@pytest.mark.parametrize(
    ("blocking", "asynchronous"), [(Client, AsyncClient), (Resolver, AsyncResolver), (NativeClient, AsyncNativeClient)]
)
def test_asynchronous_clients_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    """The reference lists them once."""
    assert {name for name in dir(blocking) if name[0] != "_"} == {name for name in dir(asynchronous) if name[0] != "_"}

"""Fixtures: the registry on both back ends, over an empty store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.ledger.store.store import Store
from perseid.registry.registry import Registry
from tests.ledger.conftest import back_end, machine, postgres, store, where
from tests.ledger.ledgers import Machine
from tests.registry.commands.records_in_every_state import site
from tests.registry.registries import registry_on

__all__ = ["back_end", "machine", "postgres", "store", "where"]


@pytest.fixture
def registry(store: Store, tmp_path: Path, machine: Machine) -> Iterator[Registry]:
    """A registry on each back end; it is its own root."""
    with registry_on(store, tmp_path, machine) as made:
        yield made


@pytest.fixture
def here(machine: Machine) -> Iterator[Registry]:
    """A registry with the namespace 12345, for tests of the history."""
    with site(machine) as made:
        yield made

"""Fixtures of tests that read earlier versions."""

from collections.abc import Iterator

import pytest

from tests.server.http.resolver.time_travel_records import Machine, Moved, time_machine


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with time_machine() as made:
        yield made


@pytest.fixture(scope="module")
def moved(machine: Machine) -> Moved:
    return Moved.made(machine)

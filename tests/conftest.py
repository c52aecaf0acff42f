"""What holds for all tests: how far hypothesis looks, what runs first, and what is not looked through for garbage.

Hypothesis is set up here and nowhere else, for whichever of several profiles was loaded last would hold for all. There
are no deadlines, because no test asserts how long something takes. `EXAMPLES=1000 make test` looks further than the run
that everybody waits for.
"""

import gc
import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "50"))

LONGEST: Final = (
    "serve/test_serving.py",
    "serve/test_load_and_faults.py",
    "ledger/test_ledger_backup.py",
    "serve/http/test_http_serving.py",
    "cli/test_cli_keeping.py",
    "cli/test_cli_hostile.py",
    "cli/test_cli_usage.py",
    "serve/http/test_hostile_pages.py",
    "cli/test_cli_history.py",
    "serve/http/v1/test_v1_schemathesis.py",
    "repository/test_wheel.py",
    "registry/test_registry_model.py",
    "serve/http/v1/test_v1_alike.py",
    "test_documentation.py",
    "e2e/test_browser.py",
    "registry/test_registry_concurrency.py",
    "serve/test_answering_differential.py",
    "serve/test_abuse.py",
    "serve/test_native_door.py",
    "serve/test_live_vectors.py",
    "serve/test_floods.py",
    "ledger/test_ledger_privacy.py",
    "serve/test_no_secrets_in_logs.py",
    "serve/http/v1/test_operations_live.py",
    "ledger/test_ledger_load.py",
    "test_fuzz_smoke.py",
)
"""The files that take longest, from twenty seconds on. They begin first, so that nobody waits for one at the end."""

_HERE: Final = Path(__file__).resolve().parent

settings.register_profile("perseid", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perseid")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; all others, and the tests of each file, stay in their order."""
    places = {_HERE / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what stays to the end: the tests, and all modules that they have loaded."""
    gc.collect()
    gc.freeze()

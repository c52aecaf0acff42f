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
    "test_documentation.py",
    "serve/test_load_and_faults.py",
    "serve/http/test_hostile_pages.py",
    "ledger/test_ledger_backup.py",
    "repository/test_wheel.py",
    "serve/http/test_http_serving.py",
    "registry/test_registry_model.py",
    "cli/test_cli_keeping.py",
    "serve/http/v1/test_v1_schemathesis.py",
    "ledger/test_ledger_sql_views.py",
    "ledger/test_ledger_crash.py",
    "serve/http/v1/test_v1_long_answers.py",
    "ledger/test_ledger_privacy.py",
    "registry/test_installation.py",
    "test_fuzz_smoke.py",
    "cli/test_cli_history.py",
    "serve/test_answering_differential.py",
    "registry/test_registry_concurrency.py",
    "cli/test_cli_usage.py",
    "e2e/test_browser.py",
    "cli/test_cli_hostile.py",
    "serve/http/v1/test_v1_alike.py",
    "ledger/test_ledger_load.py",
    "ledger/test_ledger_log.py",
    "test_bench_smoke.py",
    "serve/http/v1/test_operations_live.py",
    "serve/test_abuse.py",
    "ledger/test_ledger_whole.py",
    "serve/http/test_running_hostile.py",
    "serve/test_floods.py",
    "e2e/test_pages_in_browser.py",
)
"""The files that take twenty seconds and more, the longest first. So nobody is left waiting for one at the end."""

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

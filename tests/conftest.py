"""What holds for all tests: how far hypothesis looks, what runs first, where files are, and what is not looked through
for garbage.

Hypothesis is set up here and nowhere else, for whichever of several profiles was loaded last would hold for all. There
are no deadlines, because no test asserts how long something takes. `EXAMPLES=1000 make test` looks further than the run
that everybody waits for.
"""

import fcntl
import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "20"))

LONGEST: Final = (
    "test_documentation.py",
    "server/processes/test_processes.py",
    "server/http/pages/test_hostile_pages.py",
    "ledger/test_ledger_backup.py",
    "e2e/test_console_pages.py",
    "e2e/test_api_pages.py",
    "e2e/test_console_security.py",
    "server/test_nodes.py",
    "server/test_failover.py",
    "ledger/test_ledger_load.py",
    "server/limits/test_floods.py",
    "server/native/test_abuse.py",
    "ledger/test_ledger_sql_views.py",
    "repository/test_container.py",
    "e2e/test_browser.py",
    "server/http/v1/test_v1_same_rules.py",
    "ledger/test_ledger_privacy.py",
    "server/http/v1/test_v1_schemathesis.py",
    "e2e/test_public_pages.py",
    "registry/test_registry_concurrency.py",
    "e2e/test_console_journeys.py",
    "server/http/v1/test_v1_jobs_live.py",
    "server/test_load_and_faults.py",
    "interfaces/test_same_output.py",
    "cli/test_cli_sites.py",
    "registry/jobs/test_jobs.py",
    "cli/test_cli_history.py",
    "registry/installation/test_installation.py",
    "test_fuzz_smoke.py",
    "ledger/test_ledger_log.py",
    "test_bench_table.py",
    "test_bench_smoke.py",
    "cli/test_cli_bench.py",
    "cli/test_cli_minting.py",
    "stored/test_stored_forms.py",
    "server/http/v1/test_v1_guides.py",
    "bulk/test_migration_sql.py",
    "server/test_no_secrets_in_logs.py",
    "cli/test_cli_hostile.py",
    "server/native/test_resolution_differential.py",
    "test_bench_serving.py",
    "e2e/test_pages_in_browser.py",
    "ledger/test_ledger_verify.py",
    "cli/test_cli_backup.py",
    "cli/test_cli_usage.py",
    "server/http/v1/test_v1_long_responses.py",
    "registry/jobs/test_import_jobs.py",
    "interfaces/test_statements.py",
    "server/http/test_live_hostile.py",
    "e2e/test_links.py",
    "repository/test_wheel.py",
    "server/http/v1/test_v1_uploads_live.py",
    "server/http/test_http_application.py",
    "interfaces/test_advice.py",
    "registry/test_registry_model.py",
    "server/native/test_native_server.py",
    "wire/test_wire_messages.py",
)
"""The files that take longest, in this order. So nobody is left waiting for one at the end."""

MEMORY: Final = Path("/dev/shm")
"""A file system in memory."""

MEMORY_BYTES: Final = 8 << 30
"""What must be free there: several times what all tests write, and what their processes take."""

_PREFIX: Final = "perseid-tests-"

_HERE: Final = Path(__file__).resolve().parent

settings.register_profile("perseid", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perseid")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick`, which `make quick` uses."""
    parser.addoption("--quick", action="store_true", help="leave out the files that take longest")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of parallel tests in memory, if there is enough.

    There, too, what a process has written outlives it. Only the end of the machine would make a difference, and on a
    disk everybody waits for everybody's `fsync`.
    """
    if config.getoption("dist", "no") != "no" and config.option.basetemp is None and _has_memory():
        _remove_left()
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY)
        lock = _lock(Path(folder))
        config.option.basetemp = str(Path(folder, "t"))
        config.add_cleanup(lambda: os.close(lock))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def _remove_left() -> None:
    """Remove the folders of runs that were killed: nobody has locked them any more."""
    for left in MEMORY.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, somebody else's, or just removed
            lock = _lock(left)
            try:
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a folder until the descriptor is closed. Raises `OSError`."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _has_memory() -> bool:
    """Whether tests can write and execute files there; in containers it is often small."""
    try:
        status = os.statvfs(MEMORY)
        available = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]
    except (OSError, IndexError):
        return False
    free = min(status.f_bavail * status.f_frsize, int(available) * 1024)
    return free >= MEMORY_BYTES and not status.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, or leave them out; all others, and the tests of each file, stay in their order."""
    places = {_HERE / name: place for place, name in enumerate(LONGEST)}
    if config.getoption("--quick"):
        long = [item for item in items if item.path in places]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item.path not in places]
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Do not look for garbage while modules are loaded and tests collected: there is hardly any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what stays to the end: the tests, and all modules that they have loaded."""
    gc.collect()
    gc.freeze()

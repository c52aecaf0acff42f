"""Metrics of all processes; a part that cannot be read does not hide the others."""

import re
from pathlib import Path
from time import monotonic, sleep

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from perseid.records.site import Transport
from perseid.registry.installation.installation import Installation
from perseid.server.native.work import WorkKind
from perseid.server.observe.collector import create_registry
from perseid.server.observe.counters import MAX_PUBLISHED
from perseid.server.observe.metrics import (
    FAMILIES,
    HISTOGRAM,
    Histogram,
    LedgerState,
    MetricSources,
    WorkerCounters,
    encode_samples,
    get_ledger_state,
    keep_counters,
    read_worker,
)
from perseid.server.processes.pools import PoolStats
from perseid.server.state.state import TableSize
from perseid.wire.codes import OpCode, ResponseCode
from tests.server.installations import copy_to

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "serving.md"
STATE = LedgerState(entries=30, checkpoint=28, applied=29, ready=True)


@pytest.fixture
def counts() -> WorkerCounters:
    return WorkerCounters()


def scraped(sources: MetricSources) -> dict[tuple[str, ...], float]:
    """What Prometheus reads: name and label values, without those of histograms."""
    text = generate_latest(create_registry(sources)).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def answer(code: int) -> bytes:
    return bytes(24) + code.to_bytes(4, "big") + bytes(12)


def test_requests_of_all_workers_are_counted_together(counts: WorkerCounters) -> None:
    other = WorkerCounters()
    for each, code in ((counts, 1), (other, 1), (other, 100), (other, 12_345)):
        each.count_udp_response(answer(code), 40)
    other.count_drop("too old")
    other.count_request(Transport.TCP, OpCode.RESOLUTION, ResponseCode.SUCCESS, 200)
    counts.count_fast_response((1).to_bytes(4, "big"))
    counts.count_fast_response((1).to_bytes(4, "big"))
    counts.count_fast_response((777).to_bytes(4, "big"))
    counts.count_request(Transport.UDP, OpCode.RESOLUTION, ResponseCode.SUCCESS, 300)
    counts.count_request(Transport.TCP, OpCode.CREATE_HANDLE, ResponseCode.AUTHENTICATION_FAILED, 300)
    counts.count_request(Transport.TCP, OpCode(4711), None, 300)
    counts.count_request(Transport.TCP, OpCode(4712), None, 300)
    counts.count_drop("too old")
    counts.count_limit("slow_connection")
    found = scraped(
        MetricSources(
            counts=counts,
            ready=lambda: "",
            ledger=lambda: STATE,
            limits=lambda: {"x": 2},
            other_workers=lambda: [published(other), b"", b"of another version"],
        )
    )
    requests = {key[1:]: value for key, value in found.items() if key[0] == "perseid_requests_total"}
    assert requests == {  # code, operation, transport
        ("success", "resolution", "udp"): 3,
        ("handle_not_found", "resolution", "udp"): 1,
        ("other", "resolution", "udp"): 1,
        ("success", "resolution", "tcp"): 3,
        ("other", "resolution", "tcp"): 1,
        ("authentication_failed", "create_handle", "tcp"): 1,
        ("none", "other", "tcp"): 2,
    }
    assert found["perseid_authentication_failures_total", "tcp"] == 1
    assert found["perseid_udp_dropped_total", "too old"] == 2
    assert found["perseid_udp_sent_bytes_total",] == 160
    assert found["perseid_limits_triggered_total", "slow_connection"] == 1
    assert found["perseid_limits_triggered_total", "x"] == 2
    assert found["perseid_request_duration_seconds_count", "tcp"] == 4
    assert found["perseid_request_duration_seconds_bucket", "0.0005", "tcp"] == 4
    assert found["perseid_request_duration_seconds_bucket", "0.00025", "tcp"] == 1
    assert found["perseid_request_duration_seconds_sum", "tcp"] == pytest.approx(0.0011)


def published(counts: WorkerCounters, connections: int = 0) -> bytes:
    sources = MetricSources(counts=counts, ready=lambda: "", ledger=lambda: STATE, connections=lambda: connections)
    return encode_samples(read_worker(sources))


def test_counters_outlive_their_process_and_gauges_do_not(counts: WorkerCounters) -> None:
    earlier = WorkerCounters()
    earlier.count_udp_response(answer(1), 40)
    sources = MetricSources(
        counts=counts,
        ready=lambda: "",
        ledger=lambda: STATE,
        connections=lambda: 1,
        other_workers=lambda: [keep_counters(published(earlier, 7)), published(WorkerCounters(), 2)],
    )
    found = scraped(sources)
    assert found["perseid_requests_total", "success", "resolution", "udp"] == 1
    assert found["perseid_udp_sent_bytes_total",] == 40
    assert found["perseid_connections",] == 3


def test_all_series_of_a_worker_fit_into_shared_memory() -> None:
    counts = WorkerCounters()
    for transport in Transport:
        for opcode in OpCode:
            for code in (*ResponseCode, None):
                counts.count_request(transport, opcode, code, 100)
    assert len(published(counts)) <= MAX_PUBLISHED


def test_unknown_codes_create_no_new_series(counts: WorkerCounters) -> None:
    for number in range(1000, 3000):
        counts.count_request(Transport.TCP, OpCode(number + 10_000), ResponseCode.OPERATION_NOT_SUPPORTED, 1)
    assert counts.requests() == {("tcp", "other", "operation_not_supported"): 2000}
    assert len(counts._served) == 1


def test_state_of_the_server_is_shown(counts: WorkerCounters) -> None:
    counts.lags.add(20_000)
    sources = MetricSources(
        counts=counts,
        ready=lambda: "the view is built anew",
        ledger=lambda: STATE,
        accepts_changes=lambda: False,
        connections=lambda: 7,
        tick_age=lambda: 0.25,
        sessions=lambda: 3,
        challenges=lambda: 2,
        state=lambda: {"http_sessions": TableSize(5, 4096)},
        pools=lambda: {WorkKind.SIGN: PoolStats(1, 4, 100, 5, 6, 1.5)},
        restarts=lambda: {"worker": 2},
        lines_lost=lambda: 9,
    )
    found = scraped(sources)
    expected = {
        ("perseid_ready",): 0,
        ("perseid_accepts_changes",): 0,
        ("perseid_connections",): 7,
        ("perseid_loop_last_tick_seconds",): 0.25,
        ("perseid_sessions",): 3,
        ("perseid_challenges_pending",): 2,
        ("perseid_state_entries", "http_sessions"): 5,
        ("perseid_state_bytes", "http_sessions"): 4096,
        ("perseid_pool_busy", "sign"): 1,
        ("perseid_pool_waiting", "sign"): 4,
        ("perseid_pool_done_total", "sign"): 100,
        ("perseid_pool_refused_total", "sign", "full"): 5,
        ("perseid_pool_refused_total", "sign", "over_budget"): 6,
        ("perseid_pool_cpu_seconds_total", "sign"): 1.5,
        ("perseid_ledger_entries",): 30,
        ("perseid_ledger_checkpoint_entries",): 28,
        ("perseid_answers_lag_entries",): 1,
        ("perseid_answers_ready",): 1,
        ("perseid_restarts_total", "worker"): 2,
        ("perseid_log_lines_lost_total",): 9,
        ("perseid_loop_lag_seconds_bucket", "0.05"): 1,
        ("perseid_loop_lag_seconds_bucket", "0.01"): 0,
        ("perseid_scrape_errors_total",): 0,
    }
    assert {key: found[key] for key in expected} == expected
    assert found["perseid_process_resident_memory_bytes", "worker-0"] > 1 << 20
    assert found["perseid_process_cpu_seconds_total", "worker-0"] > 0
    assert found["perseid_process_open_fds", "worker-0"] > 2


def test_unreadable_source_does_not_hide_others(counts: WorkerCounters) -> None:
    def away() -> LedgerState:
        raise ConnectionError("the database is away")

    sources = MetricSources(
        counts=counts,
        ready=lambda: "",
        ledger=away,
        processes=lambda: {"worker-1": 2**22 + 1},
    )
    found = scraped(sources)
    assert found["perseid_scrape_errors_total",] == 1
    assert (found["perseid_ready",], found["perseid_accepts_changes",]) == (1, 1)
    assert not any(name[0].startswith(("perseid_ledger_", "perseid_process_")) for name in found)


def test_collector_yields_all_families(counts: WorkerCounters) -> None:
    sources = MetricSources(counts=counts, ready=lambda: "", ledger=lambda: STATE)
    text = generate_latest(create_registry(sources)).decode()
    given = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert sorted(given) == sorted((name, family.kind) for name, family in FAMILIES.items())
    for name, about in re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE):
        assert about == FAMILIES[name].about


def test_names_follow_the_prometheus_conventions() -> None:
    for name, family in FAMILIES.items():
        assert re.fullmatch("perseid_[a-z_]+", name)
        assert name.endswith("_total") == (family.kind == "counter")
        assert name.endswith("_seconds") or family.kind != HISTOGRAM
        assert not {"le", "instance", "job"} & set(family.labels)


def format_table() -> str:
    """The guide's table: one row for each metric."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for name, family in FAMILIES.items():
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        rows.append(f"| `{name}` | {family.kind} | {labels} | {family.about} |")
    return "\n".join(rows) + "\n"


def test_guide_documents_every_metric() -> None:
    assert f"\n{format_table()}\n" in GUIDE.read_text()


def test_histogram_bounds_are_inclusive() -> None:
    histogram = Histogram((10, 20))
    for microseconds in (0, 10, 11, 20, 21, 1_000_000):
        histogram.add(microseconds)
    assert histogram.read() == [2, 4, 6, 1.000062]


def test_ledger_state_is_read(tmp_path: Path) -> None:
    with Installation.open(copy_to(tmp_path), environ={}) as installation:
        deadline = monotonic() + 30
        while not (state := get_ledger_state(installation.ledger)).ready:  # the view is built first
            assert monotonic() < deadline
            sleep(0.01)
        assert state == LedgerState(state.entries, state.checkpoint, state.entries, ready=True)
        assert state.entries > 0
        installation.ledger.answers.discard()
        assert not get_ledger_state(installation.ledger).ready


def write_published() -> None:
    """Update the guide's table: python -m tests.server.observe.test_metrics"""
    before, start, rest = GUIDE.read_text().partition("\n| metric |")
    assert start
    GUIDE.write_text(f"{before}\n{format_table()}\n{rest.partition(chr(10) * 2)[2]}")


if __name__ == "__main__":
    write_published()

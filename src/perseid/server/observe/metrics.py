"""Metrics for Prometheus.

A counter of the metrics library costs a tenth of a request. So requests are counted in plain numbers: those of
resolvers in shared memory (`counters`), those of control in its own (`control_counts`). The library is used only when
metrics are collected: a collector reads the numbers and names them. `FAMILIES` defines all metrics, for the collector
and for the manual.

The collector runs in another thread than the event loop. It copies each table in one step and calls the functions of
`MetricSources`; what fails there is left out and counted.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from perseid import __version__
from perseid.server.observe.control_counts import OTHER, RESOLUTION, ControlCounters
from perseid.server.observe.counters import CounterTotals, SharedCounters

if TYPE_CHECKING:
    from perseid.ledger.ledger import Ledger
    from perseid.server.native.steps import WorkKind
    from perseid.server.processes.pools import PoolStats

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric."""

    kind: str
    about: str
    labels: tuple[str, ...] = ()


FAMILIES: Final[Mapping[str, MetricFamily]] = {
    "perseid_build_info": MetricFamily(GAUGE, "Always 1; the label is the version of Perseid.", ("version",)),
    "perseid_ready": MetricFamily(GAUGE, "1 if the server is ready for requests, like /ready."),
    "perseid_requests_total": MetricFamily(
        COUNTER,
        "Requests of the native protocol by transport, operation and response code.",
        ("transport", "operation", "code"),
    ),
    "perseid_request_duration_seconds": MetricFamily(
        HISTOGRAM, "Duration of requests that were not answered from the answers view alone.", ("transport",)
    ),
    "perseid_http_requests_total": MetricFamily(
        COUNTER, "HTTP requests by method and status class.", ("transport", "method", "status")
    ),
    "perseid_tls_handshakes_total": MetricFamily(
        COUNTER, "TLS handshakes by result: `done`, or why they failed.", ("result",)
    ),
    "perseid_authentication_failures_total": MetricFamily(COUNTER, "Failed authentications.", ("transport",)),
    "perseid_udp_forwarded_total": MetricFamily(COUNTER, "Datagrams that resolvers forwarded to control."),
    "perseid_udp_dropped_total": MetricFamily(COUNTER, "Datagrams that got no response, or a short one.", ("reason",)),
    "perseid_udp_sent_bytes_total": MetricFamily(COUNTER, "Bytes sent over UDP."),
    "perseid_limits_triggered_total": MetricFamily(COUNTER, "How often a limit was reached.", ("limit",)),
    "perseid_connections": MetricFamily(GAUGE, "Open TCP connections, including HTTP."),
    "perseid_http_connections": MetricFamily(GAUGE, "Open HTTP connections."),
    "perseid_sessions": MetricFamily(GAUGE, "Open sessions."),
    "perseid_challenges_pending": MetricFamily(GAUGE, "Challenges waiting for a response."),
    "perseid_pool_busy": MetricFamily(GAUGE, "Tasks running in a thread pool.", ("kind",)),
    "perseid_pool_waiting": MetricFamily(GAUGE, "Tasks waiting for a thread pool.", ("kind",)),
    "perseid_pool_done_total": MetricFamily(COUNTER, "Finished tasks.", ("kind",)),
    "perseid_pool_cpu_seconds_total": MetricFamily(COUNTER, "CPU seconds of finished tasks.", ("kind",)),
    "perseid_pool_refused_total": MetricFamily(
        COUNTER, "Refused tasks: the queue was full, or a budget was used up.", ("kind", "reason")
    ),
    "perseid_loop_lag_seconds": MetricFamily(HISTOGRAM, "Lag of control's event loop, measured once a second."),
    "perseid_loop_last_tick_seconds": MetricFamily(GAUGE, "Seconds since the last tick of control's event loop."),
    "perseid_ledger_entries": MetricFamily(GAUGE, "Entries in the ledger."),
    "perseid_ledger_checkpoint_entries": MetricFamily(GAUGE, "Entries covered by the last signed checkpoint."),
    "perseid_answers_lag_entries": MetricFamily(GAUGE, "Entries that the answers view has not applied yet."),
    "perseid_answers_ready": MetricFamily(
        GAUGE, "1 if the answers view is in use; otherwise resolution reads the records."
    ),
    "perseid_restarts_total": MetricFamily(COUNTER, "Restarted processes.", ("process",)),
    "perseid_log_lines_lost_total": MetricFamily(
        COUNTER, "Log lines of control that were lost because the reader was too slow."
    ),
    "perseid_process_cpu_seconds_total": MetricFamily(COUNTER, "CPU seconds used.", ("process",)),
    "perseid_process_resident_memory_bytes": MetricFamily(GAUGE, "Resident memory.", ("process",)),
    "perseid_process_open_fds": MetricFamily(GAUGE, "Open file descriptors.", ("process",)),
    "perseid_scrape_errors_total": MetricFamily(COUNTER, "Metrics that could not be read during a scrape."),
}
"""All metrics by name."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Progress of the ledger and its views."""

    entries: int
    checkpoint: int
    """Entries covered by the last signed checkpoint."""
    applied: int
    """Entries that the answers view has applied."""
    ready: bool
    """Whether the answers view can be used and is being updated."""


def get_ledger_state(ledger: "Ledger") -> LedgerState:
    """Read the state of a ledger from its database; blocks, so do not call it in an event loop."""
    with ledger.open_reader() as reader:
        entries, checkpoint = reader.size, reader.checkpoint_size() or 0
    ready = ledger.ready
    return LedgerState(entries, checkpoint, ledger.answers.applied if ready else 0, ready)


def _empty() -> Mapping[str, int]:
    return {}


def _zero() -> int:
    return 0


def _this_process() -> Mapping[str, int]:
    return {"control": os.getpid()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """Sources of numbers. All are called in the metrics thread, and may take some milliseconds."""

    shared_counters: SharedCounters
    counts: ControlCounters
    ready: Callable[[], str]
    """Why the server should not get requests; empty if it should."""
    ledger: Callable[[], LedgerState]
    connections: Callable[[], int] = _zero
    http_connections: Callable[[], int] = _zero
    handshakes: Callable[[], Mapping[str, int]] = _empty
    """TLS handshakes by result."""
    sessions: Callable[[], int] = _zero
    challenges: Callable[[], int] = _zero
    pools: Callable[[], "Mapping[WorkKind, PoolStats]"] = dict
    """Statistics of the thread pools, by kind of work."""
    limits: Callable[[], Mapping[str, int]] = _empty
    """Limits reached that are counted elsewhere than in `counts`."""
    restarts: Callable[[], Mapping[str, int]] = _empty
    """Restarts by kind of process."""
    lines_lost: Callable[[], int] = _zero
    processes: Callable[[], Mapping[str, int]] = _this_process
    """Names and ids of the server's processes, to read their numbers from /proc."""


_Sample = tuple[tuple[str, ...], float]


class ServerCollector(Collector):
    """Collects all metrics."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._errors = 0

    def describe(self) -> Iterable[Metric]:
        """Return the families without values, for `register`."""
        return [
            (_create_histogram if about.kind == HISTOGRAM else _create_family)(name) for name, about in FAMILIES.items()
        ]

    def collect(self) -> Iterator[Metric]:
        readers: tuple[Callable[[], Mapping[str, Iterable[_Sample]]], ...] = (
            self._about, self._requests, self._udp, self._state, self._ledger, self._processes
        )  # fmt: skip
        for read in readers:
            try:
                samples = read()
            except Exception as error:  # noqa: BLE001 - a missing number must not hide the others
                self._errors += 1
                _logger.warning("metrics are incomplete: %s", type(error).__qualname__)
                continue
            for name, values in samples.items():
                family = _create_family(name)
                for labels, value in values:
                    family.add_metric(labels, value)
                yield family
        yield from self._histograms()
        errors = _create_family("perseid_scrape_errors_total")
        errors.add_metric((), self._errors)
        yield errors

    def _about(self) -> Mapping[str, Iterable[_Sample]]:
        return {
            "perseid_build_info": [((__version__,), 1)],
            "perseid_ready": [((), not self._sources.ready())],
            "perseid_loop_last_tick_seconds": [((), self._sources.counts.seconds_since_tick)],
        }

    def _requests(self) -> Mapping[str, Iterable[_Sample]]:
        requests = self._sources.counts.requests()
        total = self._sources.shared_counters.total()
        for code, count in total.by_code.items():
            requests["udp", RESOLUTION, code.name.lower()] += count
        if total.other_code:
            requests["udp", RESOLUTION, OTHER] += total.other_code
        failures = self._sources.counts.authentication_failures()
        return {
            "perseid_requests_total": sorted(requests.items()),
            "perseid_http_requests_total": sorted(self._sources.counts.http_requests().items()),
            "perseid_tls_handshakes_total": _samples_by_label(self._sources.handshakes()),
            "perseid_authentication_failures_total": _samples_by_label(failures),
        }

    def _udp(self) -> Mapping[str, Iterable[_Sample]]:
        total: CounterTotals = self._sources.shared_counters.total()
        dropped = self._sources.counts.drops()
        dropped["resolver"] += total.dropped
        return {
            "perseid_udp_forwarded_total": [((), total.forwarded)],
            "perseid_udp_dropped_total": _samples_by_label(dropped),
            "perseid_udp_sent_bytes_total": [((), total.bytes_sent)],
        }

    def _state(self) -> Mapping[str, Iterable[_Sample]]:
        sources = self._sources
        pools = [(kind.value, stats) for kind, stats in sources.pools().items()]
        limits = sources.counts.limits()
        limits.update(sources.limits())
        return {
            "perseid_limits_triggered_total": _samples_by_label(limits),
            "perseid_connections": [((), sources.connections())],
            "perseid_http_connections": [((), sources.http_connections())],
            "perseid_sessions": [((), sources.sessions())],
            "perseid_challenges_pending": [((), sources.challenges())],
            "perseid_pool_busy": [((kind,), stats.busy) for kind, stats in pools],
            "perseid_pool_waiting": [((kind,), stats.waiting) for kind, stats in pools],
            "perseid_pool_done_total": [((kind,), stats.done) for kind, stats in pools],
            "perseid_pool_cpu_seconds_total": [((kind,), stats.seconds) for kind, stats in pools],
            "perseid_pool_refused_total": [
                sample
                for kind, stats in pools
                for sample in (((kind, "full"), stats.full), ((kind, "over_budget"), stats.over_budget))
            ],
            "perseid_restarts_total": _samples_by_label(sources.restarts()),
            "perseid_log_lines_lost_total": [((), sources.lines_lost())],
        }

    def _ledger(self) -> Mapping[str, Iterable[_Sample]]:
        state = self._sources.ledger()
        return {
            "perseid_ledger_entries": [((), state.entries)],
            "perseid_ledger_checkpoint_entries": [((), state.checkpoint)],
            "perseid_answers_lag_entries": [((), max(0, state.entries - state.applied))],
            "perseid_answers_ready": [((), state.ready)],
        }

    def _processes(self) -> Mapping[str, Iterable[_Sample]]:
        samples: dict[str, list[_Sample]] = {name: [] for name in FAMILIES if name.startswith("perseid_process_")}
        for process, number in self._sources.processes().items():
            for metric in ProcessCollector(pid=partial(int, number), registry=None).collect():
                for sample in metric.samples:
                    if (name := f"perseid_{sample.name}") in samples:
                        samples[name].append(((process,), sample.value))
        return samples

    def _histograms(self) -> Iterator[Metric]:
        counts = self._sources.counts
        durations = _create_histogram("perseid_request_duration_seconds")
        for transport, histogram in counts.durations.items():
            durations.add_metric((transport.name.lower(),), *histogram.read())
        lags = _create_histogram("perseid_loop_lag_seconds")
        lags.add_metric((), *counts.lags.read())
        yield from (durations, lags)


def create_registry(sources: MetricSources) -> CollectorRegistry:
    """Create a registry with the metrics of the server only, without those of libraries."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(sources))
    return registry


def format_table() -> str:
    """Return the manual's table: one row for each metric."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for name, family in FAMILIES.items():
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        rows.append(f"| `{name}` | {family.kind} | {labels} | {family.about} |")
    return "\n".join(rows) + "\n"


def _samples_by_label(counts: Mapping[str, int]) -> list[_Sample]:
    return sorted(((label,), count) for label, count in counts.items())


def _create_family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    about = FAMILIES[name]
    family_class = CounterMetricFamily if about.kind == COUNTER else GaugeMetricFamily
    return family_class(name, about.about, labels=about.labels)


def _create_histogram(name: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, FAMILIES[name].about, labels=FAMILIES[name].labels)

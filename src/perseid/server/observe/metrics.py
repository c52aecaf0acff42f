"""Metrics for Prometheus: what there is, and how it is put together when somebody asks.

A counter of the metrics library costs as much as a tenth of a request. So requests are counted in plain numbers: those
of resolvers in shared memory (`counters`), those of control in its own (`control_counts`). The library comes in when
somebody scrapes: a collector reads the numbers and names them. `FAMILIES` says once what there is, for the collector
and for the manual.

The collector runs in another thread than the event loop. It copies each table of numbers in one step, and calls what
`Sources` names; what fails there is left out, and counted, and the rest is shown.
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
    """One metric."""

    kind: str
    about: str
    labels: tuple[str, ...] = ()


FAMILIES: Final[Mapping[str, MetricFamily]] = {
    "perseid_build_info": MetricFamily(GAUGE, "Always 1; the version of the program is a label.", ("version",)),
    "perseid_ready": MetricFamily(GAUGE, "1 if the server should get requests, as /ready says."),
    "perseid_requests_total": MetricFamily(
        COUNTER, "Requests by how they came, what they asked for and how they went.", ("transport", "operation", "code")
    ),
    "perseid_request_duration_seconds": MetricFamily(
        HISTOGRAM, "How long requests took that were more than a look at the answers view.", ("transport",)
    ),
    "perseid_http_requests_total": MetricFamily(
        COUNTER, "Requests over HTTP by method and class of status.", ("transport", "method", "status")
    ),
    "perseid_tls_handshakes_total": MetricFamily(
        COUNTER, "TLS handshakes: done, or why they came to nothing.", ("result",)
    ),
    "perseid_failed_proofs_total": MetricFamily(
        COUNTER, "Requests whose sender tried to prove an identity and failed.", ("transport",)
    ),
    "perseid_udp_handed_over_total": MetricFamily(COUNTER, "Datagrams that resolvers handed over to control."),
    "perseid_udp_dropped_total": MetricFamily(COUNTER, "Datagrams that got no answer, or a short one.", ("reason",)),
    "perseid_udp_sent_bytes_total": MetricFamily(COUNTER, "Octets sent over UDP."),
    "perseid_limits_triggered_total": MetricFamily(COUNTER, "How often a limit was reached.", ("limit",)),
    "perseid_connections": MetricFamily(GAUGE, "TCP connections that are open, those of HTTP included."),
    "perseid_http_connections": MetricFamily(GAUGE, "Those of HTTP."),
    "perseid_sessions": MetricFamily(GAUGE, "Sessions."),
    "perseid_challenges_pending": MetricFamily(GAUGE, "Challenges that wait for an answer."),
    "perseid_pool_busy": MetricFamily(GAUGE, "Pieces of work that are being done.", ("kind",)),
    "perseid_pool_waiting": MetricFamily(GAUGE, "Pieces of work that wait to be done.", ("kind",)),
    "perseid_pool_done_total": MetricFamily(COUNTER, "Pieces of work that were done.", ("kind",)),
    "perseid_pool_cpu_seconds_total": MetricFamily(
        COUNTER, "What they have cost, in seconds of a processor.", ("kind",)
    ),
    "perseid_pool_refused_total": MetricFamily(
        COUNTER, "Pieces of work that were refused: too much of it waited, or a budget was used up.", ("kind", "reason")
    ),
    "perseid_loop_lag_seconds": MetricFamily(HISTOGRAM, "How late control's event loop was, looked at once a second."),
    "perseid_loop_silence_seconds": MetricFamily(GAUGE, "Seconds since control's event loop was last seen at work."),
    "perseid_ledger_entries": MetricFamily(GAUGE, "Entries of the ledger: the number of the last one."),
    "perseid_ledger_checkpoint_entries": MetricFamily(GAUGE, "Entries under the last signed checkpoint."),
    "perseid_answers_lag_entries": MetricFamily(GAUGE, "Entries that the answers view has not applied yet."),
    "perseid_answers_ready": MetricFamily(GAUGE, "1 if the answers view may be used; otherwise records are read."),
    "perseid_restarts_total": MetricFamily(COUNTER, "Processes that were started again.", ("process",)),
    "perseid_log_lines_lost_total": MetricFamily(COUNTER, "Lines of control's log that nobody read in time."),
    "perseid_process_cpu_seconds_total": MetricFamily(COUNTER, "Seconds of a processor that were used.", ("process",)),
    "perseid_process_resident_memory_bytes": MetricFamily(GAUGE, "Memory in use.", ("process",)),
    "perseid_process_open_fds": MetricFamily(GAUGE, "Open descriptors.", ("process",)),
    "perseid_scrape_errors_total": MetricFamily(
        COUNTER, "Numbers that could not be read when somebody asked for them."
    ),
}
"""Every metric by its name."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """How far the ledger and its views are."""

    entries: int
    checkpoint: int
    """Entries under the last signed checkpoint."""
    applied: int
    """Entries that the answers view has applied."""
    ready: bool
    """Whether the answers view may be used, and somebody looks after it."""


def get_ledger_state(ledger: "Ledger") -> LedgerState:
    """How far a ledger is; reads its database, so it is nothing for an event loop."""
    with ledger.reading() as reading:
        entries, checkpoint = reading.size, reading.checkpoint_size() or 0
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
    """Where numbers come from. All are called in the thread of the metrics, and may take some milliseconds."""

    board: SharedCounters
    counts: ControlCounters
    ready: Callable[[], str]
    """Why the server should get no requests; empty if it should."""
    ledger: Callable[[], LedgerState]
    connections: Callable[[], int] = _zero
    http_connections: Callable[[], int] = _zero
    handshakes: Callable[[], Mapping[str, int]] = _empty
    """TLS handshakes by what came of them."""
    sessions: Callable[[], int] = _zero
    challenges: Callable[[], int] = _zero
    pools: Callable[[], "Mapping[WorkKind, PoolStats]"] = dict
    """What is done in the pools, by kind of work."""
    limits: Callable[[], Mapping[str, int]] = _empty
    """Limits that were reached and counted elsewhere than in `counts`."""
    restarts: Callable[[], Mapping[str, int]] = _empty
    """Processes that were started again, by their kind."""
    lines_lost: Callable[[], int] = _zero
    processes: Callable[[], Mapping[str, int]] = _this_process
    """Processes of the server whose numbers are in /proc: names and ids."""


_Sample = tuple[tuple[str, ...], float]


class ServerCollector(Collector):
    """Gives all metrics, read at the moment when somebody asks."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._errors = 0

    def describe(self) -> Iterable[Metric]:
        """What `register` compares names by, without reading anything."""
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
            except Exception as error:  # noqa: BLE001 - one number that is missing must not hide the others
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
            "perseid_loop_silence_seconds": [((), self._sources.counts.silence)],
        }

    def _requests(self) -> Mapping[str, Iterable[_Sample]]:
        requests = self._sources.counts.requests()
        total = self._sources.board.total()
        for code, count in total.by_code.items():
            requests["udp", RESOLUTION, code.name.lower()] += count
        if total.other_code:
            requests["udp", RESOLUTION, OTHER] += total.other_code
        failed = self._sources.counts.failed_proofs()
        return {
            "perseid_requests_total": sorted(requests.items()),
            "perseid_http_requests_total": sorted(self._sources.counts.http_requests().items()),
            "perseid_tls_handshakes_total": _samples_by_label(self._sources.handshakes()),
            "perseid_failed_proofs_total": sorted(((transport,), count) for transport, count in failed.items()),
        }

    def _udp(self) -> Mapping[str, Iterable[_Sample]]:
        total: CounterTotals = self._sources.board.total()
        dropped = self._sources.counts.drops()
        dropped["in a resolver"] += total.dropped
        return {
            "perseid_udp_handed_over_total": [((), total.handed_over)],
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
                for sample in (((kind, "full"), stats.full), ((kind, "over budget"), stats.over_budget))
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
    """A registry of our own with everything in it: what libraries register for themselves is no business of ours."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(sources))
    return registry


def format_table() -> str:
    """The manual's table: one row for each metric."""
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
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

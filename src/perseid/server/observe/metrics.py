"""Metrics for Prometheus.

A counter of the metrics library costs a tenth of a request. So requests are counted in plain numbers: those of
resolvers in shared memory (`counters`), those of control in `ControlCounters`. The library is used only when metrics
are collected: a collector reads the numbers and names them. `FAMILIES` defines all metrics, for the collector and for
the manual.

The collector runs in another thread than the event loop. It copies each table in one step and calls the functions of
`MetricSources`; what fails there is left out and counted.
"""

import logging
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from perseid import __version__
from perseid.records.site import Transport
from perseid.wire.codes import OpCode, ResponseCode

from .counters import SharedCounters

if TYPE_CHECKING:
    from perseid.ledger.ledger import Ledger
    from perseid.server.native.steps import WorkKind
    from perseid.server.processes.pools import PoolStats
    from perseid.server.state.state import TableSize

DURATION_BOUNDS: Final = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
)
"""Upper bounds of the buckets for requests, in microseconds: from a lookup to a write that waits for others."""

LAG_BOUNDS: Final = (1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
"""Upper bounds of the buckets for the lag of the event loop, in microseconds."""

OTHER: Final = "other"
"""Label of unknown codes: clients must not be able to create new series."""

NO_RESPONSE: Final = "none"
"""Label of the code if nothing, or nothing readable, was sent."""

_MICROSECONDS = 1_000_000

RESOLUTION: Final = OpCode.RESOLUTION.name.lower()

METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT"))
"""HTTP methods with their own series."""

_OPCODES = frozenset(OpCode)
_RESPONSE_CODES = frozenset(ResponseCode)
_logger = logging.getLogger(__name__)


class Histogram:
    """The plain numbers of a histogram, in microseconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0

    def add(self, microseconds: int) -> None:
        self._counts[bisect_left(self._bounds, microseconds)] += 1
        self._sum += microseconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return cumulative buckets as Prometheus has them, and the sum; in seconds."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, None), self._counts.copy(), strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound / _MICROSECONDS), float(total)))
        return buckets, self._sum / _MICROSECONDS


class ControlCounters:
    """The counters of the control process, in plain numbers.

    Only the event loop counts. Readers copy each table in one step, so they can be in any thread; they may see one
    request partly counted. No table grows with what clients send: unknown codes are counted together.
    """

    def __init__(self) -> None:
        self._fast_responses = dict.fromkeys([code.to_bytes(4, "big") for code in ResponseCode], 0)
        self._served: Counter[tuple[Transport, OpCode, ResponseCode | None]] = Counter()
        self._dropped: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._http: Counter[tuple[Transport, str, int]] = Counter()
        self.http_fast_responses: dict[tuple[bool, str, int], int] = {}
        """HTTP requests answered from the view: over TLS or not, method, first digit of the status."""
        self._http_authentication_failures: Counter[Transport] = Counter()
        self.durations = {transport: Histogram(DURATION_BOUNDS) for transport in Transport}
        self.lags = Histogram(LAG_BOUNDS)
        self._loop_lag = 0.0
        self._last_tick = monotonic()

    def count_fast_response(self, code: bytes) -> None:
        """Count a public resolution over TCP answered from the view; `code` as in the response."""
        self._fast_responses[code] = self._fast_responses.get(code, 0) + 1

    def served(self, transport: Transport, opcode: OpCode, code: ResponseCode | None, microseconds: int) -> None:
        """Count a request of the native protocol."""
        if opcode not in _OPCODES:  # a client that tries all numbers must not fill the memory
            opcode = OpCode.RESERVED
        self._served[transport, opcode, code] += 1
        self.durations[transport].add(microseconds)

    def http(self, transport: Transport, method: str, status: int) -> None:
        """Count an HTTP request."""
        self._http[transport, method if method in METHODS else OTHER, status // 100] += 1

    def count_http_failed_proof(self, transport: Transport) -> None:
        """Count a failed authentication over HTTP."""
        self._http_authentication_failures[transport] += 1

    def dropped(self, reason: str) -> None:
        """Count a forwarded datagram that gets no response, or a short one. The reason is a label of ours."""
        self._dropped[reason] += 1

    def limited(self, limit: str) -> None:
        """Count a limit that was reached. Its name is a label of ours."""
        self._limited[limit] += 1

    @property
    def loop_lag(self) -> float:
        """How late the event loop was at its last tick, in seconds. Setting it records a tick."""
        return self._loop_lag

    @loop_lag.setter
    def loop_lag(self, seconds: float) -> None:
        self._loop_lag = seconds
        self._last_tick = monotonic()
        self.lags.add(int(seconds * _MICROSECONDS))

    @property
    def seconds_since_tick(self) -> float:
        """Seconds since the last tick of the event loop."""
        return monotonic() - self._last_tick

    def requests(self) -> Counter[tuple[str, str, str]]:
        """Return requests by transport, operation and code."""
        totals: Counter[tuple[str, str, str]] = Counter()
        for code_bytes, count in self._fast_responses.copy().items():
            if count:
                totals["tcp", RESOLUTION, _code_label(int.from_bytes(code_bytes, "big"))] += count
        for (transport, opcode, code), count in self._served.copy().items():
            totals[transport.name.lower(), _operation_label(opcode), _code_label(code)] += count
        return totals

    def authentication_failures(self) -> Counter[str]:
        """Return failed authentications by transport."""
        totals: Counter[str] = Counter()
        for (transport, _, code), count in self._served.copy().items():
            if code in (ResponseCode.AUTHENTICATION_FAILED, ResponseCode.INVALID_SESSION_KEY):
                totals[transport.name.lower()] += count
        for transport, count in self._http_authentication_failures.copy().items():
            totals[transport.name.lower()] += count
        return totals

    def http_requests(self) -> Counter[tuple[str, str, str]]:
        """Return HTTP requests by transport, method and class of status."""
        totals: Counter[tuple[str, str, str]] = Counter()
        for (transport, method, hundreds), count in self._http.copy().items():
            totals[transport.name.lower(), method, f"{hundreds}xx"] += count
        for (secure, method, digit), count in self.http_fast_responses.copy().items():
            totals["https" if secure else "http", method, f"{chr(digit)}xx"] += count
        return totals

    def drops(self) -> Counter[str]:
        """Return dropped datagrams by reason."""
        return self._dropped.copy()

    def limits(self) -> Counter[str]:
        """Return how often limits were reached."""
        return self._limited.copy()


def _operation_label(opcode: OpCode) -> str:
    return OTHER if opcode is OpCode.RESERVED else opcode.name.lower()


def _code_label(code: int | None) -> str:
    if code is None:
        return NO_RESPONSE
    return ResponseCode(code).name.lower() if code in _RESPONSE_CODES else OTHER


COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_CLASSES: Final[Mapping[str, type[_Family]]] = {
    COUNTER: CounterMetricFamily,
    GAUGE: GaugeMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}


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
    "perseid_state_entries": MetricFamily(GAUGE, "Entries in a table of the shared state.", ("table",)),
    "perseid_state_bytes": MetricFamily(GAUGE, "Bytes of a table of the shared state.", ("table",)),
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
    state: Callable[[], "Mapping[str, TableSize]"] = dict
    """Sizes of the tables of the shared state."""
    pools: Callable[[], "Mapping[WorkKind, PoolStats]"] = dict
    """Statistics of the thread pools, by kind of work."""
    limits: Callable[[], Mapping[str, int]] = _empty
    """Limits reached that are counted elsewhere than in `counts`."""
    restarts: Callable[[], Mapping[str, int]] = _empty
    """Restarts by kind of process."""
    lines_lost: Callable[[], int] = _zero
    processes: Callable[[], Mapping[str, int]] = _this_process
    """Names and ids of the server's processes, to read their numbers from /proc."""


_Samples: TypeAlias = Mapping[str, float | Iterable[tuple[Any, ...]]]
"""Metrics by name: a number, or labels with the arguments of `add_metric`."""


class ServerCollector(Collector):
    """Collects all metrics."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._errors = 0

    def describe(self) -> Iterable[Metric]:
        """Return the families without values, for `register`."""
        return [_create_family(name) for name in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        for read in (self._about, self._requests, self._udp, self._state, self._ledger, self._processes, self._times):
            try:
                yield from [_create_family(name, values) for name, values in read().items()]
            except Exception as error:  # noqa: BLE001 - a missing number must not hide the others
                self._errors += 1
                _logger.warning("metrics are incomplete: %s", type(error).__qualname__)
        yield _create_family("perseid_scrape_errors_total", self._errors)

    def _about(self) -> _Samples:
        return {
            "perseid_build_info": [((__version__,), 1)],
            "perseid_ready": not self._sources.ready(),
            "perseid_loop_last_tick_seconds": self._sources.counts.seconds_since_tick,
        }

    def _requests(self) -> _Samples:
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

    def _udp(self) -> _Samples:
        total = self._sources.shared_counters.total()
        dropped = self._sources.counts.drops()
        dropped["resolver"] += total.dropped
        return {
            "perseid_udp_forwarded_total": total.forwarded,
            "perseid_udp_dropped_total": _samples_by_label(dropped),
            "perseid_udp_sent_bytes_total": total.bytes_sent,
        }

    def _state(self) -> _Samples:
        sources = self._sources
        tables = sources.state()
        pools = [(kind.value, stats) for kind, stats in sources.pools().items()]
        limits = sources.counts.limits()
        limits.update(sources.limits())
        return {
            "perseid_limits_triggered_total": _samples_by_label(limits),
            "perseid_connections": sources.connections(),
            "perseid_http_connections": sources.http_connections(),
            "perseid_sessions": sources.sessions(),
            "perseid_challenges_pending": sources.challenges(),
            "perseid_state_entries": [((table,), size.entries) for table, size in tables.items()],
            "perseid_state_bytes": [((table,), size.bytes) for table, size in tables.items()],
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
            "perseid_log_lines_lost_total": sources.lines_lost(),
        }

    def _ledger(self) -> _Samples:
        state = self._sources.ledger()
        return {
            "perseid_ledger_entries": state.entries,
            "perseid_ledger_checkpoint_entries": state.checkpoint,
            "perseid_answers_lag_entries": max(0, state.entries - state.applied),
            "perseid_answers_ready": state.ready,
        }

    def _processes(self) -> _Samples:
        samples: dict[str, list[tuple[Any, ...]]] = {
            name: [] for name in FAMILIES if name.startswith("perseid_process_")
        }
        for process, number in self._sources.processes().items():
            for metric in ProcessCollector(pid=partial(int, number), registry=None).collect():
                for sample in metric.samples:
                    if (name := f"perseid_{sample.name}") in samples:
                        samples[name].append(((process,), sample.value))
        return samples

    def _times(self) -> _Samples:
        counts = self._sources.counts
        durations = [((transport.name.lower(),), *times.read()) for transport, times in counts.durations.items()]
        return {
            "perseid_request_duration_seconds": durations,
            "perseid_loop_lag_seconds": [((), *counts.lags.read())],
        }


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


def _samples_by_label(counts: Mapping[str, int]) -> list[tuple[Any, ...]]:
    return sorted(((label,), count) for label, count in counts.items())


def _create_family(name: str, values: float | Iterable[tuple[Any, ...]] = ()) -> Metric:
    about = FAMILIES[name]
    family: _Family = _CLASSES[about.kind](name, about.about, labels=about.labels)
    for labels, *value in [((), values)] if isinstance(values, int | float) else values:
        family.add_metric(labels, *value)
    return family

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
from perseid.server.observe.control_counts import OTHER, RESOLUTION, ControlCounts
from perseid.server.observe.counters import Board, Count

if TYPE_CHECKING:
    from perseid.ledger.ledger import Ledger
    from perseid.server.native.steps import Kind
    from perseid.server.processes.pools import Figures

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    kind: str
    about: str
    labels: tuple[str, ...] = ()


FAMILIES: Final[Mapping[str, Family]] = {
    "perseid_build_info": Family(GAUGE, "Always 1; the version of the program is a label.", ("version",)),
    "perseid_ready": Family(GAUGE, "1 if the server should get requests, as /ready says."),
    "perseid_requests_total": Family(
        COUNTER, "Requests by how they came, what they asked for and how they went.", ("transport", "operation", "code")
    ),
    "perseid_request_duration_seconds": Family(
        HISTOGRAM, "How long requests took that were more than a look at the answers view.", ("transport",)
    ),
    "perseid_http_requests_total": Family(
        COUNTER, "Requests over HTTP by method and class of status.", ("transport", "method", "status")
    ),
    "perseid_tls_handshakes_total": Family(COUNTER, "TLS handshakes: done, or why they came to nothing.", ("result",)),
    "perseid_failed_proofs_total": Family(
        COUNTER, "Requests whose sender tried to prove an identity and failed.", ("transport",)
    ),
    "perseid_udp_handed_over_total": Family(COUNTER, "Datagrams that resolvers handed over to control."),
    "perseid_udp_dropped_total": Family(COUNTER, "Datagrams that got no answer, or a short one.", ("reason",)),
    "perseid_udp_sent_bytes_total": Family(COUNTER, "Octets sent over UDP."),
    "perseid_limits_triggered_total": Family(COUNTER, "How often a limit was reached.", ("limit",)),
    "perseid_connections": Family(GAUGE, "TCP connections that are open, those of HTTP included."),
    "perseid_http_connections": Family(GAUGE, "Those of HTTP."),
    "perseid_sessions": Family(GAUGE, "Sessions."),
    "perseid_challenges_pending": Family(GAUGE, "Challenges that wait for an answer."),
    "perseid_pool_busy": Family(GAUGE, "Pieces of work that are being done.", ("kind",)),
    "perseid_pool_waiting": Family(GAUGE, "Pieces of work that wait to be done.", ("kind",)),
    "perseid_pool_done_total": Family(COUNTER, "Pieces of work that were done.", ("kind",)),
    "perseid_pool_cpu_seconds_total": Family(COUNTER, "What they have cost, in seconds of a processor.", ("kind",)),
    "perseid_pool_refused_total": Family(
        COUNTER, "Pieces of work that were refused: too much of it waited, or a budget was used up.", ("kind", "reason")
    ),
    "perseid_loop_lag_seconds": Family(HISTOGRAM, "How late control's event loop was, looked at once a second."),
    "perseid_loop_silence_seconds": Family(GAUGE, "Seconds since control's event loop was last seen at work."),
    "perseid_ledger_entries": Family(GAUGE, "Entries of the ledger: the number of the last one."),
    "perseid_ledger_checkpoint_entries": Family(GAUGE, "Entries under the last signed checkpoint."),
    "perseid_answers_lag_entries": Family(GAUGE, "Entries that the answers view has not applied yet."),
    "perseid_answers_ready": Family(GAUGE, "1 if the answers view may be used; otherwise records are read."),
    "perseid_restarts_total": Family(COUNTER, "Processes that were started again.", ("process",)),
    "perseid_log_lines_lost_total": Family(COUNTER, "Lines of control's log that nobody read in time."),
    "perseid_process_cpu_seconds_total": Family(COUNTER, "Seconds of a processor that were used.", ("process",)),
    "perseid_process_resident_memory_bytes": Family(GAUGE, "Memory in use.", ("process",)),
    "perseid_process_open_fds": Family(GAUGE, "Open descriptors.", ("process",)),
    "perseid_scrape_errors_total": Family(COUNTER, "Numbers that could not be read when somebody asked for them."),
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


def state_of(ledger: "Ledger") -> LedgerState:
    """How far a ledger is; reads its database, so it is nothing for an event loop."""
    with ledger.reading() as reading:
        entries, checkpoint = reading.size, reading.checkpoint_size() or 0
    ready = ledger.ready
    return LedgerState(entries, checkpoint, ledger.answers.applied if ready else 0, ready)


def _nothing() -> Mapping[str, int]:
    return {}


def _zero() -> int:
    return 0


def _this_process() -> Mapping[str, int]:
    return {"control": os.getpid()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where numbers come from. All are called in the thread of the metrics, and may take some milliseconds."""

    board: Board
    counts: ControlCounts
    ready: Callable[[], str]
    """Why the server should get no requests; empty if it should."""
    ledger: Callable[[], LedgerState]
    connections: Callable[[], int] = _zero
    http_connections: Callable[[], int] = _zero
    handshakes: Callable[[], Mapping[str, int]] = _nothing
    """TLS handshakes by what came of them."""
    sessions: Callable[[], int] = _zero
    challenges: Callable[[], int] = _zero
    pools: Callable[[], "Mapping[Kind, Figures]"] = dict
    """What is done in the pools, by kind of work."""
    limits: Callable[[], Mapping[str, int]] = _nothing
    """Limits that were reached and counted elsewhere than in `counts`."""
    restarts: Callable[[], Mapping[str, int]] = _nothing
    """Processes that were started again, by their kind."""
    lines_lost: Callable[[], int] = _zero
    processes: Callable[[], Mapping[str, int]] = _this_process
    """Processes of the server whose numbers are in /proc: names and ids."""


_Sample = tuple[tuple[str, ...], float]


class ServerCollector(Collector):
    """Gives all metrics, read at the moment when somebody asks."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._errors = 0

    def describe(self) -> Iterable[Metric]:
        """What `register` compares names by, without reading anything."""
        return [(_histogram if about.kind == HISTOGRAM else _family)(name) for name, about in FAMILIES.items()]

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
                family = _family(name)
                for labels, value in values:
                    family.add_metric(labels, value)
                yield family
        yield from self._histograms()
        errors = _family("perseid_scrape_errors_total")
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
            "perseid_tls_handshakes_total": _by_label(self._sources.handshakes()),
            "perseid_failed_proofs_total": sorted(((transport,), count) for transport, count in failed.items()),
        }

    def _udp(self) -> Mapping[str, Iterable[_Sample]]:
        total: Count = self._sources.board.total()
        dropped = self._sources.counts.drops()
        dropped["in a resolver"] += total.dropped
        return {
            "perseid_udp_handed_over_total": [((), total.handed_over)],
            "perseid_udp_dropped_total": _by_label(dropped),
            "perseid_udp_sent_bytes_total": [((), total.octets_out)],
        }

    def _state(self) -> Mapping[str, Iterable[_Sample]]:
        sources = self._sources
        pools = [(kind.value, figures) for kind, figures in sources.pools().items()]
        limits = sources.counts.limits()
        limits.update(sources.limits())
        return {
            "perseid_limits_triggered_total": _by_label(limits),
            "perseid_connections": [((), sources.connections())],
            "perseid_http_connections": [((), sources.http_connections())],
            "perseid_sessions": [((), sources.sessions())],
            "perseid_challenges_pending": [((), sources.challenges())],
            "perseid_pool_busy": [((kind,), figures.busy) for kind, figures in pools],
            "perseid_pool_waiting": [((kind,), figures.waiting) for kind, figures in pools],
            "perseid_pool_done_total": [((kind,), figures.done) for kind, figures in pools],
            "perseid_pool_cpu_seconds_total": [((kind,), figures.seconds) for kind, figures in pools],
            "perseid_pool_refused_total": [
                sample
                for kind, figures in pools
                for sample in (((kind, "full"), figures.full), ((kind, "over budget"), figures.over_budget))
            ],
            "perseid_restarts_total": _by_label(sources.restarts()),
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
        found: dict[str, list[_Sample]] = {name: [] for name in FAMILIES if name.startswith("perseid_process_")}
        for process, number in self._sources.processes().items():
            for metric in ProcessCollector(pid=partial(int, number), registry=None).collect():
                for sample in metric.samples:
                    if (name := f"perseid_{sample.name}") in found:
                        found[name].append(((process,), sample.value))
        return found

    def _histograms(self) -> Iterator[Metric]:
        counts = self._sources.counts
        durations = _histogram("perseid_request_duration_seconds")
        for transport, histogram in counts.durations.items():
            durations.add_metric((transport.name.lower(),), *histogram.read())
        lags = _histogram("perseid_loop_lag_seconds")
        lags.add_metric((), *counts.lags.read())
        yield from (durations, lags)


def registry_of(sources: Sources) -> CollectorRegistry:
    """A registry of our own with everything in it: what libraries register for themselves is no business of ours."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(sources))
    return registry


def table() -> str:
    """The manual's table: one row for each metric."""
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for name, family in FAMILIES.items():
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        rows.append(f"| `{name}` | {family.kind} | {labels} | {family.about} |")
    return "\n".join(rows) + "\n"


def _by_label(counts: Mapping[str, int]) -> list[_Sample]:
    return sorted(((label,), count) for label, count in counts.items())


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    about = FAMILIES[name]
    made = CounterMetricFamily if about.kind == COUNTER else GaugeMetricFamily
    return made(name, about.about, labels=about.labels)


def _histogram(name: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, FAMILIES[name].about, labels=FAMILIES[name].labels)

"""Collector of the metrics, for the library of Prometheus.

Only what is scraped imports this module: loading the library takes a fiftieth of a start.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from perseid import __version__

from .metrics import (
    _MICROSECONDS,
    COUNTER,
    FAMILIES,
    GAUGE,
    HISTOGRAM,
    MetricSources,
    _sample,
    _Samples,
    _samples_by_label,
    add_samples,
    decode_samples,
    read_worker,
)

_logger = logging.getLogger(__name__)

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_CLASSES: Final[Mapping[str, type[_Family]]] = {
    COUNTER: CounterMetricFamily,
    GAUGE: GaugeMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}


class ServerCollector(Collector):
    """Collects all metrics."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._errors = 0

    def describe(self) -> Iterable[Metric]:
        """Return the families without values, for `register`."""
        return [_create_family(name) for name in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        for read in (self._about, self._workers, self._ledger, self._processes):
            try:
                yield from [_create_family(name, values) for name, values in read().items()]
            except Exception as error:  # noqa: BLE001 - a missing number must not hide the others
                self._errors += 1
                _logger.warning("metrics are incomplete: %s", type(error).__qualname__)
        yield _create_family("perseid_scrape_errors_total", _sample(self._errors))

    def _about(self) -> _Samples:
        tables = self._sources.state()
        return {
            "perseid_build_info": [((__version__,), [1])],
            "perseid_ready": _sample(not self._sources.ready()),
            "perseid_accepts_changes": _sample(self._sources.accepts_changes()),
            "perseid_loop_last_tick_seconds": _sample(self._sources.tick_age()),
            "perseid_restarts_total": _samples_by_label(self._sources.restarts()),
            "perseid_sessions": _sample(self._sources.sessions()),
            "perseid_challenges_pending": _sample(self._sources.challenges()),
            "perseid_state_entries": _samples_by_label({table: size.entries for table, size in tables.items()}),
            "perseid_state_bytes": _samples_by_label({table: size.bytes for table, size in tables.items()}),
        }

    def _workers(self) -> _Samples:
        return add_samples([read_worker(self._sources), *map(decode_samples, self._sources.other_workers())])

    def _ledger(self) -> _Samples:
        state = self._sources.ledger()
        return {
            "perseid_ledger_entries": _sample(state.entries),
            "perseid_ledger_checkpoint_entries": _sample(state.checkpoint),
            "perseid_answers_lag_entries": _sample(max(0, state.entries - state.applied)),
            "perseid_answers_ready": _sample(state.ready),
            "perseid_node_info": [((node.name, node.version), [1]) for node in state.nodes],
            "perseid_node_report_age_seconds": [((node.name,), [node.age]) for node in state.nodes],
            "perseid_node_lag_entries": [((node.name,), [node.behind]) for node in state.nodes],
            "perseid_node_clock_difference_seconds": [((node.name,), [node.clock_difference]) for node in state.nodes],
        }

    def _processes(self) -> _Samples:
        samples: _Samples = {name: [] for name in FAMILIES if name.startswith("perseid_process_")}
        for process, number in self._sources.processes().items():
            for metric in ProcessCollector(pid=partial(int, number), registry=None).collect():
                for sample in metric.samples:
                    if (name := f"perseid_{sample.name}") in samples:
                        samples[name].append(((process,), [sample.value]))
        return samples


def create_registry(sources: MetricSources) -> CollectorRegistry:
    """Create a registry with the metrics of the server only, without those of libraries."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(sources))
    return registry


def _create_family(name: str, rows: Iterable[tuple[tuple[str, ...], list[float]]] = ()) -> Metric:
    about = FAMILIES[name]
    family: _Family = _CLASSES[about.kind](name, about.about, labels=about.labels)
    for labels, numbers in rows:
        if isinstance(family, HistogramMetricFamily):
            bounds = [*(str(bound / _MICROSECONDS) for bound in about.bounds), "+Inf"]
            family.add_metric(labels, list(zip(bounds, numbers, strict=False)), numbers[-1])
        else:
            family.add_metric(labels, numbers[0])
    return family

"""Metrics of a server with several models: which are loaded, how often they were, what they take, in Prometheus' text format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MODEL: Final = ["model_name"]


@dataclass(slots=True)
class ModelTotals:
    """Totals of one model. load_seconds: of all loads; bytes: of memory, as measured when it was loaded last; waiting: requests for its
    load."""

    is_loaded: bool = False
    loads: int = 0
    unloads: int = 0
    load_seconds: float = 0.0
    bytes: int = 0
    waiting: int = 0


class ModelsCollector(Collector):
    """Metrics of all models, by name."""

    def __init__(self, models: Mapping[str, ModelTotals]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Every family, in a fixed order."""
        for name, text, values in (
            ("ridgeline_model_loaded", "1 for a model that is loaded.", {k: float(v.is_loaded) for k, v in self._models.items()}),
            ("ridgeline_model_waiting", "Requests that wait for a load.", {k: v.waiting for k, v in self._models.items()}),
            ("ridgeline_model_memory_bytes", "Memory with the whole KV cache, measured.", {k: v.bytes for k, v in self._models.items()}),
        ):
            gauge = GaugeMetricFamily(name, text, labels=MODEL)
            for model, value in values.items():
                gauge.add_metric([model], value)
            yield gauge
        for name, text, counts in (
            ("ridgeline_model_loads", "Loads.", {k: v.loads for k, v in self._models.items()}),
            ("ridgeline_model_unloads", "Unloads.", {k: v.unloads for k, v in self._models.items()}),
            ("ridgeline_model_load_seconds", "Seconds of all loads.", {k: v.load_seconds for k, v in self._models.items()}),
        ):
            counter = CounterMetricFamily(name, text, labels=MODEL)
            for model, count in counts.items():
                counter.add_metric([model], count)
            yield counter


class MergedCollector(Collector):
    """The families of several collectors, those of one name as one; each has the label `model_name`.

    parts  name of a model → its collectors
    """

    def __init__(self, parts: Mapping[str, list[Collector]]) -> None:
        self._parts = parts

    def describe(self) -> list[Metric]:
        """An empty list: names are not checked against other collectors."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Families in the order of the first model that has them."""
        families: dict[str, Metric] = {}
        for model, collectors in self._parts.items():
            for collector in collectors:
                for family in collector.collect():
                    samples = [each._replace(labels={"model_name": model, **each.labels}) for each in family.samples]
                    if (known := families.setdefault(family.name, family)) is family:
                        family.samples = samples
                    else:
                        known.samples += samples
        yield from families.values()

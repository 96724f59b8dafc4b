"""The verdict and what requests cost, in Prometheus' text format."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeline.observe.live import Live
from ridgeline.observe.verdict import BOTTLENECKS, Verdict

MODEL: Final = ["model_name"]


class LiveCollector(Collector):
    """Metrics of one server. `tenants`: labels of those that are shown."""

    def __init__(self, live: Live, verdict: Verdict, model_name: str, tenants: Collection[str], phases: Mapping[str, float]) -> None:
        self._phases = phases
        self._live, self._verdict, self._model = live, verdict, model_name
        self._tenants = sorted(tenants)

    def describe(self) -> list[Metric]:
        """An empty list: names are not checked against other collectors, there are none."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family, in a fixed order."""
        spending = self._live.spending
        yield self._counter("ridgeline_busy_seconds", "Seconds in which a step was in flight.", spending.allocated)
        yield self._counter("ridgeline_run_seconds", "Seconds of steps in the executor.", self._live.run_seconds)
        yield from self._of_verdict()
        starts = GaugeMetricFamily("ridgeline_start_seconds", "Seconds of the server's start, by phase.", labels=[*MODEL, "phase"])
        for phase, seconds in self._phases.items():
            starts.add_metric([self._model, phase], seconds)
        yield starts
        for name, value in (spending.joules or {}).items():
            yield self._counter(f"ridgeline_{name}_joules", f"Energy of the CPU while steps were in flight ({name}).", value)
        if self._tenants:
            yield from self._by_tenant()

    def _of_verdict(self) -> Iterator[Metric]:
        found = self._verdict
        binding = GaugeMetricFamily("ridgeline_bottleneck", "1 for the bottleneck of the last ten seconds.", labels=[*MODEL, "bottleneck"])
        for each in BOTTLENECKS:
            binding.add_metric([self._model, each], each == found.bottleneck)
        yield binding
        shares = {"compute": found.compute, "memory": found.memory}
        ceilings = GaugeMetricFamily(
            "ridgeline_ceiling_ratio", "Share of this machine's ceiling that steps reach while they run.", labels=[*MODEL, "resource"]
        )
        for name, share in shares.items():
            if share is not None:
                ceilings.add_metric([self._model, name], share)
        yield ceilings
        for name, text, value in (
            ("ridgeline_host_ratio", "Share of busy time outside of the executor.", found.host),
            ("ridgeline_batch", "Mean rows per step.", found.batch),
            ("ridgeline_knee_batch", "Rows beyond which latency grows faster than throughput; 0: unknown.", found.knee or 0),
        ):
            family = GaugeMetricFamily(name, text, labels=MODEL)
            family.add_metric([self._model], value)
            yield family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=MODEL)
        family.add_metric([self._model], value)
        return family

    def _by_tenant(self) -> Iterator[Metric]:
        spending, labels = self._live.spending, [*MODEL, "tenant"]
        columns: dict[str, tuple[str, Callable[[str], float | None]]] = {
            "busy_seconds": ("Engine seconds allocated to requests.", lambda label: spending.spent(label).seconds),
            "kv_token_seconds": ("Tokens in the KV cache, times seconds.", lambda label: spending.spent(label).kv_token_seconds),
            "dollars": ("Price of the seconds (--price-per-hour).", lambda label: spending.dollars(spending.spent(label).seconds)),
            "joules": ("Energy by the seconds.", spending.tenant_joules),
        }
        for name, (text, value) in columns.items():
            family = CounterMetricFamily(f"ridgeline_tenant_{name}", text, labels=labels)
            for label in self._tenants:
                found = value(label)
                if found is not None:
                    family.add_metric([self._model, label], found)
            yield family

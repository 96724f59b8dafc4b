"""Explanation of every setting: value, origin, reason, cost, and the metric that shows a bad value.

Texts are those of `config.groups`, values come from `config.resolve`, costs from the planner: the same functions that the engine runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from ridgeline.config.groups import EngineConfig, public_name
from ridgeline.config.peers import parse_listen
from ridgeline.config.resolve import Decision, KVCosts, Resolved
from ridgeline.config.setting import setting_of
from ridgeline.config.sources import Settings, show_value
from ridgeline.config.values import GIB
from ridgeline.facts.hardware.disk import folder_rate
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.memory import adapter_bytes
from ridgeline.planning.report import tier_prices
from ridgeline.planning.step import RowGroup, pass_seconds, step_work


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """One setting. `bytes` and `seconds` are the cost of its value; None where there is none of the kind.

    origin  flag, environment, file, default, model or machine
    place   flag, variable, or file and key that gives the value; "" where none does
    """

    name: str
    value: object
    origin: str
    place: str
    reason: str
    metric: str
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CostInput:
    """Input of the costs of settings. `pace`: the tokens that `step_ms` allows, by the planner's estimate; an engine measures. `rates`:
    bytes per second of tiers that have been measured."""

    config: EngineConfig
    blocks: int
    costs: KVCosts
    facts: ModelFacts
    deployment: Deployment
    pace: Decision
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.config.max_model_len or 2

    def step_seconds(self, rows: RowGroup) -> float:
        """Estimated seconds of a step on the deployment's device."""
        return pass_seconds(self.deployment, step_work(self.deployment, [rows]))


TIERS: Final = {"kv_cache_dir": "file", "kv_cache_redis": "redis", "kv_cache_peers": "peer"}
"""Setting → the tier that it opens, by its name in prices."""


def _rates(config: EngineConfig) -> Mapping[str, float]:
    """Bytes per second of the tiers that can be measured: of the largest file of blocks, as it is read now, where there is one."""
    rate = None if config.kv_cache_dir is None else folder_rate(config.kv_cache_dir, ".kv")
    return {} if rate is None else {"file": rate}


def _bringing(name: str) -> "Seconds":
    """Seconds that a tier takes for the blocks of the longest sequence; None where it is not used."""

    def seconds(given: CostInput) -> float | None:
        size = given.costs.sequence_blocks(given.length) * given.costs.block_bytes
        prices = {each.tier: each.seconds for each in tier_prices(size, 1.0, given.rates)}
        return prices[TIERS[name]] if getattr(given.config, name) else None

    return seconds


Bytes = Callable[[CostInput], int]
Seconds = Callable[[CostInput], float | None]
COSTS: Final[Mapping[str, tuple[Bytes | None, Seconds | None]]] = {
    "max_model_len": (
        lambda given: given.costs.sequence_blocks(given.length) * given.costs.block_bytes,
        lambda given: given.step_seconds(RowGroup(given.length - 1, 1)),
    ),
    "max_num_seqs": (None, lambda given: given.step_seconds(RowGroup(given.length // 2, 1, given.config.rows))),
    "max_num_batched_tokens": (None, lambda given: given.step_seconds(RowGroup(0, given.config.tokens))),
    "kv_cache_memory_bytes": (lambda given: given.blocks * given.costs.block_bytes, None),
    "max_lora_rank": (lambda given: adapter_bytes(given.facts, given.config.max_lora_rank) if given.config.adapter_slots else 0, None),
    "swap_space": (lambda given: int(given.config.swap_space * GIB), None),
    "kv_cache_dir_bytes": (lambda given: given.config.kv_cache_dir_bytes if given.config.kv_cache_dir else 0, None),
    "kv_cache_listen": (lambda given: parse_listen(given.config.kv_cache_listen)[2] if given.config.kv_cache_listen else 0, None),
    **{name: (None, _bringing(name)) for name in TIERS},
    "block_size": (lambda given: given.costs.block_bytes, None),
}
"""Costs of a setting's value, where it has any."""


def explain(given: Settings, resolved: Resolved, costs: CostInput) -> list[ExplainedSetting]:
    """All settings of the engine and of the server, in the order of their groups. A secret has no value here."""
    decided = {decision.name: decision for decision in given.with_origins(resolved.decisions)}
    costs, explained = replace(costs, rates=_rates(resolved.config)), []
    for group in (resolved.config, given.server):
        for entry in fields(group):
            name, setting, value = public_name(entry), setting_of(entry), getattr(group, entry.name)
            decision, origin = decided.get(entry.name), given.origins.get(name)
            kind = origin.kind if origin else decision.origin if decision else "default"
            place = "" if origin is None else origin.place
            reason = "; ".join(each for each in (decision.reason if decision else "", setting.why) if each not in ("", place))
            if name == "step_ms":
                reason += f": {costs.pace.value} tokens, as {costs.pace.reason}; an engine measures its own seconds at its start"
            if name in TIERS and value:
                computing = costs.step_seconds(RowGroup(0, costs.length))
                reason += f"; the cost is bringing the blocks of {costs.length:,} tokens, which take {computing:.3g} s to compute"
                if (rate := costs.rates.get(TIERS[name])) is not None:
                    reason += f"; what lies there is read at {rate / 1e9:.2g} GB/s"
            size, seconds = COSTS.get(name, (None, None))
            explained.append(
                ExplainedSetting(
                    name, show_value(value, setting) if setting.secret else value, kind, place, reason,
                    setting.wrong, size and size(costs), seconds and seconds(costs),
                )
            )  # fmt: skip
    return explained
